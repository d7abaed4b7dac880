//! Messages of measurements (crate `bench`): loads that fio runs below a dataset, on a dataset of
//! their own, and reports of what came of them.

use ::bench::compare::Comparison;
use ::bench::{Profile, Report, Test};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Access, Call, Empty, JobKind, Role};

/// Lists the loads that can be run, and whether there is what runs them.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BenchProfiles {}

/// Loads that can be run.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct BenchProfilesReply {
    /// All of them.
    pub profiles: Vec<BenchLoads>,
    /// Where fio is, which runs them; none where it is not installed.
    pub fio: Option<String>,
    /// What to do where it is not.
    pub problem: Option<String>,
}

/// A list of loads.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct BenchLoads {
    /// Its name.
    pub profile: Profile,
    /// The loads, in a line.
    pub title: String,
    /// How many loads there are; none where that depends on what comes of them.
    pub loads: Option<u64>,
    /// Whether they can be run at other depths.
    pub has_depths: bool,
    /// Seconds that each is measured for where nothing is said.
    pub seconds: u64,
    /// Bytes that they go over where nothing is said and there is room.
    pub size_bytes: u64,
}

impl Call for BenchProfiles {
    const PATH: &'static str = "/v1/bench/profiles";
    const ACCESS: Access<Self> = Access::Read;
    type Reply = BenchProfilesReply;
}

/// What is to be measured.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BenchWanted {
    /// Name of the filesystem below which a dataset is made for it, with the properties that are
    /// inherited there.
    pub dataset: String,
    /// The loads.
    pub profile: Profile,
    /// The dataset is a volume, whose file is used.
    #[serde(default)]
    pub is_volume: bool,
    /// Size of its blocks in bytes, `recordsize` or `volblocksize`, where it is not to be as usual.
    #[serde(default)]
    pub block_bytes: Option<u64>,
    /// Its property `compression`, where it is not to be inherited.
    #[serde(default)]
    pub compression: Option<String>,
    /// Bytes that the loads go over, 1 MiB at least; the usual where nothing is said, but a quarter
    /// of what is available at most.
    #[serde(default)]
    pub size_bytes: Option<u64>,
    /// Accesses under way, 1 to 1,024 each; those of the profile where none are named.
    #[serde(default)]
    pub depths: Vec<u32>,
    /// Seconds that each load is measured for, 1 to 3,600; for streams 600 at most.
    #[serde(default)]
    pub seconds: Option<u64>,
    /// Seconds within which a load has to be steady before that, 3,600 at most; 60 where nothing is
    /// said, 0: nobody looks.
    #[serde(default)]
    pub warm_up_seconds: Option<u64>,
    /// Seconds of a warm-up in all, 1 to 172,800; four hours where nothing is said.
    #[serde(default)]
    pub total_seconds: Option<u64>,
    /// Bytes a second of a stream; 1,250,000 where nothing is said.
    #[serde(default)]
    pub stream_rate: Option<u64>,
}

/// Asks what a measurement would do, without doing it. What would be refused is.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BenchLook {
    /// What is to be measured.
    pub wanted: BenchWanted,
}

/// What a measurement would do to a pool.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct BenchLookReply {
    /// Bytes that the loads go over: as much is written first.
    pub size_bytes: u64,
    /// Bytes that this takes of the pool, with copies and parity: it is used up until the end.
    pub space_bytes: u64,
    /// Bytes that are available there now, with quotas.
    pub available_bytes: u64,
    /// Bytes that are available in the pool.
    pub pool_available_bytes: u64,
    /// The quota that leaves least, if there is one.
    pub quota: Option<BenchQuota>,
    /// The loads in order; none of streams, which are searched for.
    pub tests: Vec<Test>,
    /// Seconds in which loads write over it again and again, with what comes before they count.
    pub writing_seconds: u64,
    /// Seconds after which all is ended, whether it is done or not.
    pub seconds_max: u64,
    /// What fio lacks, or that it is not there; it cannot be run then.
    pub problem: Option<String>,
}

/// A quota.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct BenchQuota {
    /// The dataset that has it.
    pub dataset: String,
    /// Bytes of it.
    pub quota_bytes: u64,
    /// Bytes that are used of it.
    pub used_bytes: u64,
}

impl Call for BenchLook {
    const PATH: &'static str = "/v1/bench/look";
    const ACCESS: Access<Self> =
        Access::Change(|call| format!("cannot measure '{}'", call.wanted.dataset));
    const ROLE: Option<Role> = Some(Role::Operator);
    type Reply = BenchLookReply;

    fn changes(&self) -> bool {
        false
    }
}

/// Measures: makes a dataset, has fio run loads on it, destroys it, and keeps the report. There is
/// one such run at a time.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BenchRun {
    /// What is to be measured.
    pub wanted: BenchWanted,
}

/// What came of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct BenchRunReply {
    /// Number of the report that is kept.
    pub id: u64,
    /// What is not as it should be besides.
    pub warnings: Vec<String>,
}

impl Call for BenchRun {
    const PATH: &'static str = "/v1/bench/run";
    const ACCESS: Access<Self> =
        Access::Change(|call| format!("cannot measure '{}'", call.wanted.dataset));
    const ROLE: Option<Role> = Some(Role::Operator);
    const JOB: Option<JobKind> = Some(JobKind::Bench);
    type Reply = BenchRunReply;

    fn pool(&self) -> Option<String> {
        let dataset = &self.wanted.dataset;
        Some(dataset.split('/').next().unwrap_or(dataset).to_owned())
    }
}

/// Asks what is being measured, and what came of it so far. The job's events tell when there is
/// more.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BenchProgress {}

/// What is being measured.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct BenchProgressReply {
    /// None where nothing is.
    pub running: Option<BenchRunning>,
}

/// A measurement that is under way.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct BenchRunning {
    /// Its job.
    pub job: u64,
    /// What was asked for.
    pub wanted: BenchWanted,
    /// When it began, in seconds since 1970.
    pub began_s: u64,
    /// When it is ended at the latest, likewise.
    pub until_s: u64,
    /// What it is at.
    pub step: BenchStep,
    /// What was found so far.
    pub report: Option<Report>,
}

/// What a measurement is at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "step", rename_all = "kebab-case")]
pub enum BenchStep {
    /// Its dataset is made.
    Making,
    /// What the loads go over is written.
    Filling,
    /// A load runs.
    Load {
        /// Which.
        name: String,
        /// Its number, from 1 on.
        number: u64,
        /// Of so many.
        count: u64,
    },
    /// So many streams of each kind are tried.
    Streams {
        /// How many.
        count: u32,
    },
    /// A warm-up reads.
    Warming {
        /// Seconds that are done.
        done_seconds: u64,
        /// Of so many.
        total_seconds: u64,
    },
    /// Its dataset is destroyed.
    Ending,
}

impl Call for BenchProgress {
    const PATH: &'static str = "/v1/bench/progress";
    const ACCESS: Access<Self> = Access::Read;
    type Reply = BenchProgressReply;
}

/// Lists the reports that are kept.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BenchList {}

/// The reports that are kept.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct BenchListReply {
    /// The latest first.
    pub reports: Vec<BenchKept>,
    /// So many are kept; the oldest goes when there is one more.
    pub most: u64,
}

/// A report that is kept.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct BenchKept {
    /// Its number.
    pub id: u64,
    /// When it began, in seconds since 1970.
    pub began_s: u64,
    /// Name of the dataset below which it was measured.
    pub dataset: String,
    /// The loads.
    pub profile: Profile,
    /// Whether it was a volume.
    pub is_volume: bool,
    /// Bytes that they went over.
    pub size_bytes: u64,
    /// The most operations a second of a load.
    pub iops_max: Option<f64>,
    /// The most bytes a second of a load.
    pub rate_max: Option<f64>,
    /// The most streams without a gap.
    pub streams: Option<u32>,
}

impl Call for BenchList {
    const PATH: &'static str = "/v1/bench/list";
    const ACCESS: Access<Self> = Access::Read;
    type Reply = BenchListReply;
}

/// Asks for a report that is kept.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BenchGet {
    /// Its number.
    pub id: u64,
}

/// A report.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct BenchGetReply {
    /// What was asked for.
    pub wanted: BenchWanted,
    /// What came of it.
    pub report: Report,
}

impl Call for BenchGet {
    const PATH: &'static str = "/v1/bench/get";
    const ACCESS: Access<Self> = Access::Read;
    type Reply = BenchGetReply;
}

/// Forgets a report.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BenchRemove {
    /// Its number.
    pub id: u64,
}

impl Call for BenchRemove {
    const PATH: &'static str = "/v1/bench/remove";
    const ACCESS: Access<Self> = Access::Change(|call| format!("cannot forget report {}", call.id));
    const ROLE: Option<Role> = Some(Role::Operator);
    type Reply = Empty;
}

/// Puts two reports side by side.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BenchCompare {
    /// Number of the first.
    pub before: u64,
    /// Number of the second.
    pub after: u64,
}

impl Call for BenchCompare {
    const PATH: &'static str = "/v1/bench/compare";
    const ACCESS: Access<Self> = Access::Read;
    type Reply = Comparison;
}
