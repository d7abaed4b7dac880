//! Vdevs: as they are asked for, and as they are.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Guid, Settings};

/// A top-level vdev, spare or cache device that a pool is to have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct VdevSpec {
    /// What it is for.
    #[serde(default)]
    pub class: VdevClass,
    /// What it is made of.
    pub layout: VdevLayout,
}

/// What a vdev is made of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum VdevLayout {
    /// One device.
    Device(DeviceSpec),
    /// Each device has everything.
    Mirror {
        /// The devices.
        devices: Vec<DeviceSpec>,
    },
    /// RAID-Z.
    Raidz {
        /// Devices that may fail: 1 to 3.
        parity: u8,
        /// The devices.
        devices: Vec<DeviceSpec>,
    },
    /// RAID-Z over parts of many devices, with distributed spares.
    Draid {
        /// Devices of a group that may fail: 1 to 3.
        parity: u8,
        /// Data columns of a group.
        data: u8,
        /// Distributed spares.
        spares: u8,
        /// The devices.
        devices: Vec<DeviceSpec>,
    },
}

impl VdevLayout {
    /// The devices, in order.
    pub fn devices(&self) -> &[DeviceSpec] {
        match self {
            Self::Device(device) => std::slice::from_ref(device),
            Self::Mirror { devices }
            | Self::Raidz { devices, .. }
            | Self::Draid { devices, .. } => devices,
        }
    }
}

/// A disk or file that a vdev is made of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DeviceSpec {
    /// Absolute path.
    pub path: String,
    /// What it is; told in answers, found out in requests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<DeviceKind>,
}

/// What a device is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum DeviceKind {
    /// A block device.
    Disk,
    /// A file.
    File,
}

/// What a vdev is for (allocation class).
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Serialize,
    Deserialize,
    JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum VdevClass {
    /// Data.
    #[default]
    Normal,
    /// Intent log.
    Log,
    /// Metadata and small blocks.
    Special,
    /// Dedup tables.
    Dedup,
    /// Stands by for a device that fails.
    Spare,
    /// Second-level cache.
    Cache,
}

/// What a vdev is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum VdevKind {
    /// The pool.
    Root,
    /// A block device.
    #[default]
    Disk,
    /// A file.
    File,
    /// Members have everything each.
    Mirror,
    /// RAID-Z.
    Raidz,
    /// Distributed RAID.
    Draid,
    /// A distributed spare.
    DraidSpare,
    /// A device and the one that takes its place.
    Replacing,
    /// A device and the spare that stands in for it.
    Spare,
    /// A removed log: its place stays empty.
    Hole,
    /// Removed: its data is elsewhere.
    Indirect,
    /// One of which no device was found.
    Missing,
    /// One that this release does not know, as the pool calls it.
    #[serde(untagged)]
    Other(String),
}

/// How a vdev is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum VdevState {
    /// Works.
    #[default]
    Online,
    /// Works with less redundancy than it has.
    Degraded,
    /// Not used: too many errors, or by hand.
    Faulted,
    /// Taken offline by a person.
    Offline,
    /// Could not be opened.
    Unavailable,
    /// Removed from the system.
    Removed,
    /// Of a spare: stands by.
    Available,
    /// Of a spare: stands in for a device.
    InUse,
    /// Of the root: the pool stopped after an I/O failure, until it is cleared.
    Suspended,
}

/// Why a vdev is as it is (`vdev_aux_t`, include/sys/fs/zfs.h).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum VdevAux {
    /// The device cannot be opened.
    OpenFailed,
    /// The label, or what it leads to, is damaged.
    CorruptData,
    /// Too few members work.
    NoReplicas,
    /// Devices of whole vdevs were not found.
    BadGuidSum,
    /// The device is too small.
    TooSmall,
    /// The label is another vdev's, or cannot be.
    BadLabel,
    /// The pool's version is not supported.
    VersionNewer,
    /// A feature of the pool is not supported.
    UnsupportedFeature,
    /// A spare that stands in for a device.
    Spared,
    /// Too many errors.
    ErrorsExceeded,
    /// Faulted by a person.
    External,
    /// It is a part of another pool now.
    SplitPool,
}

/// A vdev with its state and counters.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct VdevReport {
    /// `tank`, `mirror-0`, or a leaf's path.
    pub name: String,
    /// What it is.
    pub kind: VdevKind,
    /// GUID.
    pub guid: Guid,
    /// What it is for; that of the top-level vdev for those below one.
    #[serde(default)]
    pub class: VdevClass,
    /// Path of a leaf.
    pub path: Option<String>,
    /// How it is.
    pub state: VdevState,
    /// Why it is so.
    #[serde(default)]
    pub aux: Option<VdevAux>,
    /// Of a spare that another pool uses: that pool's name.
    #[serde(default)]
    pub used_by: Option<String>,
    /// A leaf of an imported pool that was not there at the import: `path` is where it was.
    #[serde(default)]
    pub is_absent: bool,
    /// It is being removed.
    #[serde(default)]
    pub is_removing: bool,
    /// It gets no new blocks.
    #[serde(default)]
    pub is_non_allocating: bool,
    /// A leaf that is there but lacks writes that were made while it was away.
    #[serde(default)]
    pub is_stale: bool,
    /// A device whose resilver waits for the one that is under way.
    #[serde(default)]
    pub is_deferred: bool,
    /// Bytes that the scrub, resilver or sequential rebuild under way has written to a device.
    #[serde(default)]
    pub scan_repaired_bytes: u64,
    /// Of a top-level vdev: its last sequential rebuild, if there was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rebuild: Option<RebuildReport>,
    /// Bytes of space, for top-level vdevs and the root.
    pub size_bytes: u64,
    /// Bytes allocated.
    pub allocated_bytes: u64,
    /// Bytes of a leaf's device.
    #[serde(default)]
    pub physical_bytes: u64,
    /// Bytes of a top-level vdev, or of a leaf's device without its labels.
    #[serde(default)]
    pub asize_bytes: u64,
    /// Bytes by which the devices are bigger than what is used of them, for top-level vdevs and
    /// the root.
    #[serde(default)]
    pub expandable_bytes: u64,
    /// Bytes that only the checkpoint uses, for top-level vdevs.
    #[serde(default)]
    pub checkpoint_bytes: u64,
    /// Fragmentation in percent, where known.
    pub fragmentation_percent: Option<u64>,
    /// Read errors.
    pub read_errors: u64,
    /// Write errors.
    pub write_errors: u64,
    /// Checksum errors.
    pub checksum_errors: u64,
    /// A RAID-Z vdev that is being made wider.
    #[serde(default)]
    pub is_expanding: bool,
    /// I/Os of a leaf that took longer than 30 seconds.
    #[serde(default)]
    pub slow_ios: u64,
    /// Of a leaf: its last `zpool initialize`, if there was one.
    #[serde(default)]
    pub initialize: Option<ActivityReport>,
    /// Of a leaf: its last `zpool trim`, if there was one.
    #[serde(default)]
    pub trim: Option<ActivityReport>,
    /// A leaf that discards do not reach.
    #[serde(default)]
    pub cannot_trim: bool,
    /// What was read since the import.
    #[serde(default)]
    pub reads: Operations,
    /// What was written.
    #[serde(default)]
    pub writes: Operations,
    /// What was discarded.
    #[serde(default)]
    pub trims: Operations,
    /// Of a leaf: discards that failed.
    #[serde(default)]
    pub trim_errors: u64,
    /// Parity of a raidz or draid, else zero.
    #[serde(default)]
    pub parity: u8,
    /// `log2` of the smallest block, of top-level vdevs.
    #[serde(default)]
    pub ashift: u8,
    /// Of a leaf that is open: its device has bigger sectors than the vdev is written in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub small_sectors: Option<SmallSectors>,
    /// Properties that were set: native ones where they differ from their defaults, and those of
    /// users.
    #[serde(default, skip_serializing_if = "Settings::is_empty")]
    pub properties: Settings,
    /// Latencies, sizes and queue depths, if they were asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub io: Option<Box<IoReport>>,
    /// Members.
    #[serde(default)]
    pub children: Vec<VdevReport>,
}

/// What a vdev is written in, where its device has bigger sectors: what does not fill one of these
/// has to be read before it is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SmallSectors {
    /// Bytes of a sector, as the vdev has it.
    pub configured_bytes: u32,
    /// Bytes of a sector of the device, physically.
    pub native_bytes: u32,
}

/// Operations that were done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Operations {
    /// How many.
    pub count: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// The last sequential rebuild of a top-level vdev's devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RebuildReport {
    /// How far it is.
    pub state: RebuildState,
    /// When it began, in seconds since 1970.
    pub start_time_s: u64,
    /// When it ended; zero while it runs.
    pub end_time_s: u64,
    /// Time spent, over all runs.
    pub scan_time_ms: u64,
    /// Allocated bytes that were looked at.
    pub scanned_bytes: u64,
    /// Of these, bytes that some device lacked.
    pub issued_bytes: u64,
    /// Bytes that were written.
    pub rebuilt_bytes: u64,
    /// Allocated bytes in all, roughly.
    pub estimated_bytes: u64,
    /// What could not be read.
    pub errors: u64,
    /// Time spent since the import, or since it began.
    pub pass_time_ms: u64,
    /// Bytes looked at in that time.
    pub pass_scanned_bytes: u64,
    /// Of these, bytes that some device lacked.
    pub pass_issued_bytes: u64,
    /// Bytes that no device lacked.
    pub pass_skipped_bytes: u64,
}

/// Whether a sequential rebuild is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum RebuildState {
    /// Under way.
    Active,
    /// Stopped: no device lacked anything any more that could be written.
    Canceled,
    /// Done.
    Complete,
}

/// How far a leaf was initialized or trimmed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ActivityReport {
    /// Whether it is done.
    pub state: ActivityState,
    /// When it became that, in seconds since 1970.
    pub time_s: u64,
    /// Free bytes that it came to, while it is not complete.
    pub done_bytes: u64,
    /// Free bytes in all.
    pub total_bytes: u64,
}

/// Whether something that a leaf does in the background is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ActivityState {
    /// Under way.
    Active,
    /// Stopped, and given up.
    Canceled,
    /// Stopped, to go on some time.
    Suspended,
    /// Done.
    Complete,
}

/// Latencies, sizes and queue depths of a vdev's I/O since the import.
///
/// Bucket *n* of a histogram counts values from 2^n to 2^(n+1)-1, of bytes (25 buckets) or
/// nanoseconds (37).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct IoReport {
    /// By class, in the order of [`IoClass`].
    pub classes: Vec<ClassIo>,
    /// Times of reads.
    pub reads: Latencies,
    /// Times of writes.
    pub writes: Latencies,
}

/// I/O of a class.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ClassIo {
    /// Which.
    pub class: IoClass,
    /// Requests that wait now.
    pub pending: u64,
    /// Operations that devices are at now.
    pub active: u64,
    /// Histogram of the sizes of operations of one request.
    pub individual: Vec<u64>,
    /// Histogram of the sizes of operations put together from several.
    pub aggregated: Vec<u64>,
    /// Histogram of the times that requests waited.
    pub queued: Vec<u64>,
}

/// How long I/O takes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Latencies {
    /// Histogram of the times of requests in all.
    pub total: Vec<u64>,
    /// Histogram of the times of devices.
    pub disk: Vec<u64>,
}

/// Classes of I/O, each with queues of its own (`zio_priority_t`, include/sys/zio_priority.h).
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum IoClass {
    /// Reads that somebody waits for.
    SyncRead,
    /// Writes that somebody waits for.
    SyncWrite,
    /// Reads ahead.
    AsyncRead,
    /// Writes of transaction groups.
    AsyncWrite,
    /// Reads of scrubs.
    Scrub,
    /// Discards.
    Trim,
    /// Writes of sequential resilvers.
    Rebuild,
}

impl IoClass {
    /// All, in order.
    pub const ALL: [Self; 7] = [
        Self::SyncRead,
        Self::SyncWrite,
        Self::AsyncRead,
        Self::AsyncWrite,
        Self::Scrub,
        Self::Trim,
        Self::Rebuild,
    ];
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round<T: Serialize + serde::de::DeserializeOwned>(value: &T) -> (String, T) {
        let text = serde_json::to_string(value).unwrap();
        let back = serde_json::from_str(&text).unwrap();
        (text, back)
    }

    #[test]
    fn kinds_are_known_words_or_what_the_pool_says() {
        for (kind, expected) in [
            (VdevKind::Root, r#""root""#),
            (VdevKind::DraidSpare, r#""draid-spare""#),
            (VdevKind::Other("anyraid".into()), r#""anyraid""#),
        ] {
            let (text, back) = round(&kind);
            assert_eq!((text.as_str(), back), (expected, kind));
        }
    }

    #[test]
    fn layouts_are_objects_with_names() {
        let device = DeviceSpec {
            path: "/a".into(),
            kind: Some(DeviceKind::File),
        };
        let spec = VdevSpec {
            class: VdevClass::Special,
            layout: VdevLayout::Raidz {
                parity: 2,
                devices: vec![device],
            },
        };
        let (text, back) = round(&spec);
        assert_eq!(
            text,
            r#"{"class":"special","layout":{"raidz":{"parity":2,"devices":[{"path":"/a","kind":"file"}]}}}"#
        );
        assert_eq!(back, spec);
        let misspelt = text.replace("parity", "parities");
        assert!(serde_json::from_str::<VdevSpec>(&misspelt).is_err());
    }

    #[test]
    fn states_are_words_and_no_others() {
        assert_eq!(round(&VdevState::Unavailable).0, r#""unavailable""#);
        assert!(serde_json::from_str::<VdevState>(r#""UNAVAIL""#).is_err());
        assert_eq!(round(&VdevAux::BadGuidSum).0, r#""bad-guid-sum""#);
    }
}
