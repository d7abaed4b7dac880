//! Messages of the planner (crate `plan`): what disks will do as a pool, how big a log device need
//! be, and what deduplication would save.

use plan::sizes::LogSize;
use plan::{Answer, Question};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Access, Call, DedupReport, JobKind, Role};

/// Asks what disks will do as a pool, layout by layout. Without disks, those of the host are meant
/// that nothing uses.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PlanAsk {
    /// Disks, what they hang on, and what the pool is for.
    #[serde(default)]
    pub question: Question,
}

/// What they will do.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct PlanAskReply {
    /// The layouts side by side.
    pub answer: Answer,
    /// Its notes as sentences, in their order.
    pub sentences: Vec<String>,
}

impl Call for PlanAsk {
    const PATH: &'static str = "/v1/plan/ask";
    const ACCESS: Access<Self> = Access::Read;
    type Reply = PlanAskReply;
}

/// Asks how big a log device of a pool need be: by the most that its intent logs held within the
/// last year, as reports have it, and by the network.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PlanLog {
    /// Name of the pool.
    pub pool: String,
    /// Bytes a second that the network carries.
    #[serde(default)]
    pub network_rate: Option<u64>,
    /// Seconds that synchronous writes stay in the log, 1 to 3,600; 8 where nothing is said: until
    /// the transaction group ends and is on disk.
    #[serde(default)]
    pub seconds: Option<f64>,
}

/// How big a log device need be.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct PlanLogReply {
    /// The most that the pool's intent logs held, in bytes; none where there is no report of it.
    pub seen_bytes: Option<u64>,
    /// Seconds that were counted with.
    pub seconds: f64,
    /// The size; none where neither the network nor a report tells.
    pub size: Option<LogSize>,
}

impl Call for PlanLog {
    const PATH: &'static str = "/v1/plan/log";
    const ACCESS: Access<Self> = Access::Read;
    type Reply = PlanLogReply;
}

/// Foretells what dedup tables would hold if all that a pool has were deduplicated (`zdb -S`). All
/// pointers of the pool are read for it, and no data.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PlanDedup {
    /// Name of the pool.
    pub pool: String,
    /// How many different blocks are remembered, 100 to 16,777,216, up to 100 bytes of memory
    /// each; 1,048,576 where nothing is said. Of a pool that has more, these are a sample.
    #[serde(default)]
    pub sample: Option<u64>,
}

/// What dedup tables would hold. What is told of more blocks than were remembered is estimated.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct PlanDedupReply {
    /// The tables: entries, bytes on disk and in memory, and blocks by references.
    pub table: DedupReport,
    /// Part of the different blocks that was looked at, 0 to 1; 1: all.
    pub sampled: f64,
    /// How many times as much is referenced as would be allocated.
    pub ratio: f64,
    /// How far off that may be: within it are 95 of 100 samples.
    pub ratio_error: f64,
    /// Blocks of pointers that could not be read: what they lead to is not counted.
    pub unreadable: u64,
}

impl Call for PlanDedup {
    const PATH: &'static str = "/v1/plan/dedup";
    const ACCESS: Access<Self> =
        Access::Change(|call| format!("cannot forecast dedup of '{}'", call.pool));
    const ROLE: Option<Role> = Some(Role::Operator);
    const JOB: Option<JobKind> = Some(JobKind::DedupForecast);
    type Reply = PlanDedupReply;

    fn changes(&self) -> bool {
        false
    }

    fn pool(&self) -> Option<String> {
        Some(self.pool.clone())
    }
}
