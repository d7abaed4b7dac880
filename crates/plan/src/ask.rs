//! Questions and answers.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::capacity::Capacity;
use crate::choose::{Purpose, Recommended};
use crate::full::{LimitedBy, Load};
use crate::risk::{Assumptions, Risk};
use crate::simple::Simple;
use crate::{Bus, Disks, Layout, Note, PlanError};

/// Kinds of disks, buses or layouts of a question at most.
const LIST_MAX: usize = 256;

/// Which model tells rates.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "PlanModel")]
#[serde(rename_all = "lowercase")]
pub enum Model {
    /// Multiples of one disk ([`crate::simple`]).
    Simple,
    /// Seeks, queues, buses and links ([`crate::full`]).
    #[default]
    Full,
}

/// What one wants to know.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "PlanQuestion")]
#[serde(default, deny_unknown_fields)]
pub struct Question {
    /// Disks. Those that hold most together hold the data; what others may be, notes tell.
    pub disks: Vec<Disks>,
    /// Disks of those that hold the data which shall be spares.
    pub spares: u64,
    /// Layouts to look at; none: every sensible one ([`choose::layouts`]).
    pub layouts: Vec<Layout>,
    /// What the pool is for. Rates are of the first.
    pub purposes: Vec<Purpose>,
    /// What clients do, where it is not what they usually do for the purpose.
    pub load: Option<Load>,
    /// Which model tells rates.
    pub model: Model,
    /// log2 of the bytes of a sector: 12 for disks that are sold today.
    pub ashift: u32,
    /// Controllers and buses between disks and memory.
    pub buses: Vec<Bus>,
    /// Bytes a second that the network carries in each direction.
    pub network_rate: Option<u64>,
    /// Bytes of memory.
    pub memory_bytes: Option<u64>,
    /// The most that intent logs of such clients held, in bytes, where it was seen.
    pub log_seen_bytes: Option<u64>,
    /// About failures, where it is not what is usual for the kind of disk.
    pub assumed: Option<Assumptions>,
}

impl Default for Question {
    fn default() -> Self {
        Question {
            disks: Vec::new(),
            spares: 0,
            layouts: Vec::new(),
            purposes: vec![Purpose::Random],
            load: None,
            model: Model::Full,
            ashift: 12,
            buses: Vec::new(),
            network_rate: None,
            memory_bytes: None,
            log_seen_bytes: None,
            assumed: None,
        }
    }
}

/// What a layout costs, in the currency of the disks' prices.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "PlanCost")]
pub struct Cost {
    /// All disks of the kind that holds the data, with spares.
    pub total: f64,
    /// For each usable 10^12 bytes.
    pub per_terabyte: f64,
    /// For each random read a second.
    pub per_read_iops: f64,
}

/// A layout as it would be.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "PlanLayout")]
pub struct Planned {
    /// Which.
    pub layout: Layout,
    /// Disks that are left over, with the spares that were asked for.
    pub spares: u64,
    /// What `zfs list` tells as USED and AVAIL together.
    pub usable_bytes: u64,
    /// Chance that the pool is lost, in a year.
    pub loss_per_year: f64,
    /// Random reads a second.
    pub read_iops: f64,
    /// Random writes a second.
    pub write_iops: f64,
    /// Bytes a second that a stream reads.
    pub read_rate: f64,
    /// Bytes a second that streams write.
    pub write_rate: f64,
    /// What limits each of these.
    pub limited_by: LimitedBy,
    /// Streams that are served without a gap, where a rate of streams was given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub streams_max: Option<u64>,
    /// Until all is read and verified.
    pub scrub_seconds: f64,
    /// Until a failed disk is rebuilt; `None` without redundancy.
    pub rebuild_seconds: Option<f64>,
    /// What it costs; `None` when no price is known.
    pub cost: Option<Cost>,
    /// Rates in multiples of one disk, when the simple model was asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub simple: Option<Simple>,
    /// More about space.
    pub capacity: Capacity,
    /// More about failures.
    pub risk: Risk,
}

impl Planned {
    /// Bytes that fit of blocks of one size.
    pub fn usable_for(&self, block_bytes: u64) -> u64 {
        let blocks = self.capacity.for_blocks_of(self.layout, block_bytes);
        blocks.usable_bytes
    }
}

/// The layouts side by side.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "PlanAnswer")]
pub struct Answer {
    /// The disks that hold the data.
    pub disks: Disks,
    /// What rates are told for.
    pub load: Load,
    /// Each layout.
    pub layouts: Vec<Planned>,
    /// The best for each purpose.
    pub recommended: Vec<Recommended>,
    /// What is worth saying.
    pub notes: Vec<Note>,
}

impl Question {
    /// The same, with what is usual for disks where nothing was said of them.
    pub(crate) fn or_usual(&self) -> Self {
        let mut question = self.clone();
        let disks = question.disks.into_iter();
        question.disks = disks.map(Disks::or_usual).collect();
        question
    }

    /// Whether all figures can be true.
    pub(crate) fn check(&self) -> Result<(), PlanError> {
        let bad = |what, value: String, wanted| {
            Err(PlanError::OutOfRange {
                what,
                value,
                wanted,
            })
        };
        for disks in &self.disks {
            disks.check()?;
        }
        if !(9..=16).contains(&self.ashift) {
            return bad("ashift", self.ashift.to_string(), "9 to 16");
        }
        if self.network_rate.is_some_and(|rate| rate < 1000) {
            return bad(
                "the network's rate",
                "below 1 kB/s".into(),
                "1 kB/s or more",
            );
        }
        for (what, count) in [
            ("the number of kinds of disks", self.disks.len()),
            ("the number of buses", self.buses.len()),
            ("the number of layouts", self.layouts.len()),
        ] {
            if count > LIST_MAX {
                return bad(what, count.to_string(), "up to 256");
            }
        }
        if self.purposes.len() > Purpose::ALL.len() {
            return bad(
                "the number of uses",
                self.purposes.len().to_string(),
                "up to 4, each once",
            );
        }
        for bus in &self.buses {
            if bus.read_rate < 1000 || bus.write_rate < 1000 {
                return bad("a bus's rate", bus.name.clone(), "1 kB/s or more");
            }
        }
        if let Some(load) = &self.load {
            if !(512..=16 << 20).contains(&load.block_bytes) {
                return bad(
                    "the block size",
                    load.block_bytes.to_string(),
                    "512 to 16,777,216 bytes",
                );
            }
            if load.depth == 0 {
                return bad("the depth", "0".into(), "1 or more");
            }
            if !(0.0..=1.0).contains(&load.read_share) {
                return bad("the share of reads", load.read_share.to_string(), "0 to 1");
            }
        }
        if let Some(assumed) = &self.assumed {
            assumed.check()?;
        }
        Ok(())
    }

    /// The disks that hold most together.
    pub(crate) fn data_disks(&self) -> Result<&Disks, PlanError> {
        let bytes = |disks: &&Disks| u128::from(disks.count) * u128::from(disks.size_bytes);
        self.disks
            .iter()
            .max_by_key(bytes)
            .ok_or(PlanError::NoDisks)
    }
}
