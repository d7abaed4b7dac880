//! Messages about reports: what was read and written, how long it took and what was in caches and
//! queues, over an hour to a year.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Access, Call, Guid, Protocol};

/// Most subjects of one request for reports.
pub const REPORT_SUBJECTS_MAX: usize = 64;

/// What a report is about.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "of", rename_all = "kebab-case", deny_unknown_fields)]
pub enum ReportSubject {
    /// A pool: its devices together, its cache, its intent logs.
    Pool {
        /// Its name.
        pool: String,
    },
    /// What the cache in memory and the cache devices are to a pool.
    Cache {
        /// The pool.
        pool: String,
    },
    /// A device of a pool.
    Device {
        /// The pool.
        pool: String,
        /// What the device is known by.
        guid: Guid,
    },
    /// A filesystem where it is mounted on the server itself. SMB's clients come this way, too.
    /// What programs find in the kernel's cache is not in it.
    Mount {
        /// The filesystem.
        dataset: String,
    },
    /// A portal of iSCSI: an address of the server, whatever is read and written by it. The portals
    /// of a target are the paths to it.
    Portal {
        /// Address and port, as initiators used it.
        address: String,
    },
    /// All clients of a share together.
    Share {
        /// Protocol.
        protocol: Protocol,
        /// What is shared.
        dataset: String,
        /// What the share is called.
        share: String,
    },
    /// One client of a share.
    Client {
        /// Protocol.
        protocol: Protocol,
        /// What is shared.
        dataset: String,
        /// What the share is called.
        share: String,
        /// For iSCSI the initiator's name, for NFS the host's address.
        client: String,
    },
}

/// What is told of a subject. Times are in nanoseconds.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum ReportFigure {
    /// Bytes that were read, per second.
    ReadBytes,
    /// Bytes that were written, per second.
    WrittenBytes,
    /// Reads per second.
    Reads,
    /// Writes per second.
    Writes,
    /// The time that half of the reads took at most.
    ReadTimeP50,
    /// The time that 9 of 10 reads took at most.
    ReadTimeP90,
    /// The time that 99 of 100 reads took at most.
    ReadTimeP99,
    /// The time that half of the writes took at most.
    WriteTimeP50,
    /// The time that 9 of 10 writes took at most.
    WriteTimeP90,
    /// The time that 99 of 100 writes took at most.
    WriteTimeP99,
    /// How long a read took on average.
    ReadTime,
    /// How long a write took on average.
    WriteTime,
    /// Reads that found their block in the cache, per second.
    CacheHits,
    /// Reads that did not, per second.
    CacheMisses,
    /// Bytes in the cache.
    CacheBytes,
    /// Of the cache: the part of reads that found their block in memory, 0 to 1.
    CacheHitRate,
    /// Of the cache: the part of reads that memory or a cache device answered, 0 to 1.
    CacheAnswerRate,
    /// Of the cache: reads of what files and volumes hold that found it in memory, per second.
    CacheDataHits,
    /// Those that did not.
    CacheDataMisses,
    /// Reads of metadata that found it in memory, per second.
    CacheMetadataHits,
    /// Those that did not.
    CacheMetadataMisses,
    /// Reads of dedup tables that found their block in memory, per second.
    CacheDedupTableHits,
    /// Those that did not.
    CacheDedupTableMisses,
    /// Misses whose block had left memory not long before, per second: about those that twice as
    /// much memory had answered.
    CacheGhostHits,
    /// Reads that cache devices answered, per second.
    CacheDeviceHits,
    /// Reads that no cache device had the block of, per second.
    CacheDeviceMisses,
    /// Bytes that cache devices hold.
    CacheDeviceBytes,
    /// Bytes of memory that the index of it takes.
    CacheIndexBytes,
    /// Bytes that intent logs hold, on log devices and elsewhere. The most of it is what a log
    /// device has to have room for.
    LogBytes,
    /// Requests that wait for the device or that it is at.
    Queue,
}

/// A stretch of time until now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ReportSpan {
    /// An hour, a point for each 10 seconds.
    #[default]
    Hour,
    /// A day, a point for each 2 minutes.
    Day,
    /// A week, a point for each 10 minutes.
    Week,
    /// 31 days, a point for each hour.
    Month,
    /// 366 days, a point for each half of a day.
    Year,
}

/// Lists what there are reports of. Clients are told to those only who may change things.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ReportList {}

impl Call for ReportList {
    const PATH: &'static str = "/v1/reports/list";
    const ACCESS: Access<Self> = Access::Read;
    type Reply = ReportListReply;
}

/// What there are reports of.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct ReportListReply {
    /// In order.
    pub subjects: Vec<ReportedSubject>,
    /// Bytes that the figures take.
    pub stored_bytes: u64,
    /// Most bytes that they may take: what was seen least recently is forgotten then.
    pub limit_bytes: u64,
    /// Subjects of which nothing is kept now, as there are too many.
    pub left_out: u64,
}

/// Something that there is a report of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ReportedSubject {
    /// What it is.
    pub subject: ReportSubject,
    /// Of a device: its path.
    pub label: Option<String>,
    /// When it was seen last, in seconds since 1970.
    pub seen_s: u64,
}

/// What was, over time. Clients are told to those only who may change things.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ReportGet {
    /// What of, 64 at most. What is not known has no points.
    pub subjects: Vec<ReportSubject>,
    /// How far back.
    #[serde(default)]
    pub span: ReportSpan,
    /// Which figures; all that there are where none is named.
    #[serde(default)]
    pub figures: Vec<ReportFigure>,
}

impl Call for ReportGet {
    const PATH: &'static str = "/v1/reports/get";
    const ACCESS: Access<Self> = Access::Read;
    type Reply = ReportGetReply;
}

/// Reports.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ReportGetReply {
    /// Until when, in seconds since 1970.
    pub now_s: u64,
    /// Seconds from one point to the next one.
    pub step_s: u64,
    /// How many points there are at most.
    pub points: u32,
    /// In the order of the request.
    pub reports: Vec<Report>,
}

/// What was of a subject.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Report {
    /// What of.
    pub subject: ReportSubject,
    /// Of a device: its path.
    pub label: Option<String>,
    /// When the period of each point begins, in seconds since 1970. The last period may not be
    /// over. While the server did not run there are no points.
    pub times_s: Vec<u64>,
    /// What is known.
    pub figures: Vec<ReportValues>,
}

/// One figure of a report.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ReportValues {
    /// Which.
    pub figure: ReportFigure,
    /// For each point its value; null where it has none, as the time of reads where nothing was
    /// read. Of what is per second it is the mean over the time that the server ran.
    pub values: Vec<Option<f64>>,
    /// For each point the highest that was seen, by the finest samples; none of times.
    pub highest: Vec<f64>,
    /// The value over all points together.
    pub value: Option<f64>,
    /// The highest of all; none of times.
    pub most: Option<f64>,
    /// Of what is per second: how much it was in all, bytes or operations.
    pub total: Option<f64>,
}
