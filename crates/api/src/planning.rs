//! Messages of the planner (crate `plan`): what disks will do as a pool, and how big a log device
//! need be.

use plan::sizes::LogSize;
use plan::{Answer, Question};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Access, Call};

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
