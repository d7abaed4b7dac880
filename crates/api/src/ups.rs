//! Messages about the UPS that the server's power comes from.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Access, Call};

/// How a UPS is, in a word; the worst that is so.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum UpsCondition {
    /// It has told nothing yet.
    #[default]
    Unknown,
    /// There is power.
    Online,
    /// Its battery is to be replaced.
    ReplaceBattery,
    /// It does not answer.
    NoAnswer,
    /// It runs on its battery.
    OnBattery,
    /// Its battery is nearly empty, or the power is switched off soon: pools are being exported.
    LowBattery,
}

/// A UPS, and how it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct UpsReport {
    /// What it is called, and where it is asked for: `ups@localhost`.
    pub name: String,
    /// How it is.
    pub condition: UpsCondition,
    /// What it said last, in NUT's words: `OL`, `OB`, `LB`, ...
    pub status: Vec<String>,
    /// How full its battery is, in percent.
    pub charge_percent: Option<u64>,
    /// For how long that lasts, in seconds.
    pub runtime_s: Option<u64>,
    /// Why it tells nothing now.
    pub problem: Option<String>,
    /// Whether all pools were exported, until there is power again.
    pub are_pools_exported: bool,
    /// Pools that are to be, and could not be yet; it is tried again.
    pub not_exported: Vec<String>,
}

/// Asks for the UPS, and how it is.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct UpsStatus {}

/// The UPS.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct UpsStatusReply {
    /// None where the server was given none.
    pub ups: Option<UpsReport>,
}

impl Call for UpsStatus {
    const PATH: &'static str = "/v1/ups/status";
    const ACCESS: Access<Self> = Access::Read;
    type Reply = UpsStatusReply;
}
