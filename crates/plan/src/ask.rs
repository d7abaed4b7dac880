//! Questions and answers.

use serde::{Deserialize, Serialize};

use crate::capacity::Capacity;
use crate::choose::{self, Purpose, Recommended, helper, recommend};
use crate::full::{Limit, LimitedBy, Load, Path, Rates};
use crate::risk::{Assumptions, Risk};
use crate::scan::Passes;
use crate::simple::Simple;
use crate::sizes::{LOG_SECONDS, cache_memory, log_size, volume_cost};
use crate::{Bus, Disks, Layout, Note, PlanError};

/// Which model tells rates.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Model {
    /// Multiples of one disk ([`crate::simple`]).
    Simple,
    /// Seeks, queues, buses and links ([`crate::full`]).
    #[default]
    Full,
}

/// What one wants to know.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
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
            assumed: None,
        }
    }
}

/// What a layout costs, in the currency of the disks' prices.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Cost {
    /// All disks of the kind that holds the data, with spares.
    pub total: f64,
    /// For each usable 10^12 bytes.
    pub per_terabyte: f64,
    /// For each random read a second.
    pub per_read_iops: f64,
}

/// A layout as it would be.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
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
        let blocks = self.capacity.for_blocks_of(block_bytes);
        blocks.map_or(self.usable_bytes, |blocks| blocks.usable_bytes)
    }
}

/// The layouts side by side.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
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

/// Answers a question.
///
/// # Errors
/// No disks, figures out of bounds, or a layout that cannot be on these disks.
pub fn answer(question: &Question) -> Result<Answer, PlanError> {
    question.check()?;
    let disks = question.data_disks()?.clone();
    let count = disks.count.saturating_sub(question.spares);
    let layouts = match question.layouts.as_slice() {
        [] => choose::layouts(count),
        given => given.to_vec(),
    };
    if layouts.is_empty() {
        return Err(PlanError::TooFewDisks {
            layout: "a pool".to_owned(),
            needed: 1 + question.spares,
            count: disks.count,
        });
    }
    for layout in &layouts {
        layout.check()?;
        if layout.disks() > count {
            return Err(PlanError::TooFewDisks {
                layout: layout.to_string(),
                needed: layout.disks(),
                count,
            });
        }
    }
    let purposes = match question.purposes.as_slice() {
        [] => &[Purpose::Random],
        purposes => purposes,
    };
    let load_of = |purpose: Purpose| question.load.unwrap_or_else(|| purpose.usual_load());
    let load = load_of(purposes[0]);
    let plan = Plan {
        question,
        disks: &disks,
        assumed: question
            .assumed
            .unwrap_or_else(|| Assumptions::usual(disks.kind)),
    };
    let mut planned = Vec::new();
    for layout in &layouts {
        match plan.layout(*layout, &load) {
            Ok(one) => planned.push(one),
            // Of many, those that need bigger disks are left out.
            Err(PlanError::TooSmall { .. }) if question.layouts.is_empty() => {}
            Err(error) => return Err(error),
        }
    }
    if planned.is_empty() {
        return Err(PlanError::TooSmall {
            layout: "every layout".to_owned(),
            size_bytes: disks.size_bytes,
        });
    }
    let mut recommended = Vec::new();
    for purpose in purposes {
        let load = load_of(*purpose);
        let rates: Vec<Rates> = planned
            .iter()
            .map(|planned| plan.rates(planned.layout, &load))
            .collect();
        recommended.extend(recommend(*purpose, &load, &planned, &rates));
    }
    let notes = plan.notes(&load, &planned, &recommended, purposes[0]);
    Ok(Answer {
        disks,
        load,
        layouts: planned,
        recommended,
        notes,
    })
}

impl Question {
    fn check(&self) -> Result<(), PlanError> {
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
        if self.buses.len() > 1000 {
            return bad(
                "the number of buses",
                self.buses.len().to_string(),
                "up to 1,000",
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
            let figures = [
                assumed.failures_per_year,
                assumed.bits_per_error,
                assumed.scrub_interval_seconds,
            ];
            let are_positive = figures
                .iter()
                .all(|figure| *figure > 0.0 && figure.is_finite());
            if !are_positive
                || !(0.0..=1.0).contains(&assumed.filled)
                || !(0.0..=1e10).contains(&assumed.replace_seconds)
            {
                return bad(
                    "an assumption",
                    format!("{assumed:?}"),
                    "above 0; the part in use 0 to 1",
                );
            }
        }
        Ok(())
    }

    /// The disks that hold most together.
    fn data_disks(&self) -> Result<&Disks, PlanError> {
        let bytes = |disks: &&Disks| u128::from(disks.count) * u128::from(disks.size_bytes);
        self.disks
            .iter()
            .max_by_key(bytes)
            .ok_or(PlanError::NoDisks)
    }
}

struct Plan<'a> {
    question: &'a Question,
    disks: &'a Disks,
    assumed: Assumptions,
}

impl Plan<'_> {
    fn layout(&self, layout: Layout, load: &Load) -> Result<Planned, PlanError> {
        let (question, disks) = (self.question, self.disks);
        let capacity = Capacity::of(layout, disks.size_bytes, question.ashift)?;
        let passes = Passes::of(
            layout,
            disks,
            &capacity,
            &question.buses,
            self.assumed.filled,
        );
        let used_bytes = crate::scan::used_of_disk(layout, &capacity, self.assumed.filled);
        let spares = disks.count - layout.disks();
        let risk = Risk::of(
            layout,
            spares,
            passes.rebuild_seconds,
            used_bytes,
            &self.assumed,
        );
        let rates = self.rates(layout, load);
        let simple =
            (question.model == Model::Simple).then(|| Simple::of(layout, disks.size_bytes));
        let total = disks.price * disks.count as f64;
        let cost = (total > 0.0).then(|| Cost {
            total,
            per_terabyte: total / (capacity.usable_bytes as f64 / 1e12),
            per_read_iops: total / rates.read_iops,
        });
        Ok(Planned {
            layout,
            spares,
            usable_bytes: capacity.usable_bytes,
            loss_per_year: risk.loss_per_year,
            read_iops: rates.read_iops,
            write_iops: rates.write_iops,
            read_rate: rates.read_rate,
            write_rate: rates.write_rate,
            limited_by: rates.limited_by,
            streams_max: rates.streams_max,
            scrub_seconds: passes.scrub_seconds,
            rebuild_seconds: passes.rebuild_seconds,
            cost,
            simple,
            capacity,
            risk,
        })
    }

    fn rates(&self, layout: Layout, load: &Load) -> Rates {
        let question = self.question;
        let path = Path {
            buses: &question.buses,
            network_rate: question.network_rate,
        };
        let full = Rates::of(layout, self.disks, question.ashift, load, path);
        if question.model == Model::Full {
            return full;
        }
        let simple = Simple::of(layout, self.disks.size_bytes);
        let (y, z) = (self.disks.accesses_per_second, self.disks.rate as f64);
        let (read_iops, write_iops) = (simple.iops_read * y, simple.iops_write * y);
        let share = load.read_share.clamp(0.0, 1.0);
        Rates {
            read_iops,
            write_iops,
            mixed_iops: 1.0 / (share / read_iops + (1.0 - share) / write_iops),
            read_rate: simple.rate_read * z,
            write_rate: simple.rate_write * z,
            limited_by: LimitedBy {
                read_iops: Limit::Seeks,
                write_iops: Limit::Seeks,
                read_rate: Limit::Disks,
                write_rate: Limit::Disks,
            },
            ..full
        }
    }

    fn notes(
        &self,
        load: &Load,
        planned: &[Planned],
        recommended: &[Recommended],
        purpose: Purpose,
    ) -> Vec<Note> {
        let mut notes = Vec::new();
        for one in recommended {
            let of = planned.iter().find(|planned| planned.layout == one.layout);
            notes.extend(of.map(|best| Note::Recommended {
                purpose: one.purpose,
                layout: one.layout,
                reason: one.reason,
                usable_bytes: best.usable_for(load.block_bytes),
                loss_per_year: best.loss_per_year,
            }));
        }
        // All that can be said of every layout is too much: of those that were asked for or are
        // recommended.
        let is_asked = !self.question.layouts.is_empty();
        for one in planned {
            let is_recommended = recommended.iter().any(|best| best.layout == one.layout);
            if is_asked || is_recommended {
                notes.extend(self.notes_of(one, load));
            }
        }
        self.add_notes_of_others(load, purpose, &mut notes);
        notes.push(Note::Assumed {
            assumed: self.assumed,
        });
        notes
    }

    fn notes_of(&self, one: &Planned, load: &Load) -> Vec<Note> {
        /// From so many data disks on a vdev of RAID-Z is wide.
        const WIDE: f64 = 12.0;
        /// Blocks with less data than this in what they take are told of, where others have more.
        const POOR: f64 = 0.8;
        /// Chance of lost blocks in a year that is told of.
        const DAMAGE: f64 = 1e-3;
        let layout = one.layout;
        let mut notes = vec![Note::Fixed { layout }];
        if layout.may_fail() == 0 {
            notes.push(Note::NoRedundancy { layout });
        }
        let volume = volume_cost(layout, self.question.ashift, 1 << 30, load.block_bytes);
        let usual = volume_cost(
            layout,
            self.question.ashift,
            1 << 30,
            volume.better_block_bytes,
        );
        if volume.efficiency < POOR * usual.efficiency {
            notes.push(Note::SmallBlocks {
                layout,
                block_bytes: load.block_bytes,
                efficiency: volume.efficiency,
                better_block_bytes: volume.better_block_bytes,
            });
        }
        if layout.may_fail() > 0 && one.risk.damage_per_year > DAMAGE {
            notes.push(Note::Unreadable {
                layout,
                damage_per_year: one.risk.damage_per_year,
            });
        }
        if let (Layout::Raidz { .. }, Some(rebuild_seconds)) = (layout, one.rebuild_seconds)
            && layout.data_disks_of_vdev() > WIDE
        {
            notes.push(Note::Wide {
                layout,
                rebuild_seconds,
            });
        }
        if one.spares > self.question.spares {
            notes.push(Note::Spare {
                layout,
                count: one.spares,
            });
        }
        if let Some(streams_max) = one.streams_max
            && load.streams > streams_max
        {
            notes.push(Note::Streams {
                layout,
                streams: load.streams,
                streams_max,
            });
        }
        notes
    }

    /// About disks that do not hold the data, and the sizes of what they may be.
    fn add_notes_of_others(&self, load: &Load, purpose: Purpose, notes: &mut Vec<Note>) {
        let question = self.question;
        for others in question.disks.iter().filter(|other| *other != self.disks) {
            let what = helper(self.disks.kind, others.kind, others.count, purpose);
            notes.push(Note::Helper {
                count: others.count,
                kind: others.kind,
                helper: what,
            });
            let device_bytes = others.count.saturating_mul(others.size_bytes);
            let index_bytes = cache_memory(device_bytes, load.block_bytes).bytes;
            if let (choose::Helper::Cache, Some(memory_bytes)) = (what, question.memory_bytes)
                && index_bytes > memory_bytes / 8
            {
                notes.push(Note::CacheMemory {
                    device_bytes,
                    index_bytes,
                    memory_bytes,
                });
            }
            if let (choose::Helper::Log, Some(size)) =
                (what, log_size(question.network_rate, LOG_SECONDS, None))
            {
                notes.push(Note::Log { bytes: size.bytes });
            }
        }
    }
}
