//! Which layouts there are for so many disks, and what counts for what.

use std::collections::BTreeSet;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::full::{Load, Rates};
use crate::{DiskKind, Layout, PlanError};

/// What a pool is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "PlanPurpose")]
#[serde(rename_all = "lowercase")]
pub enum Purpose {
    /// Files that are read and written here and there.
    Random,
    /// Few big files, read and written from beginning to end.
    Stream,
    /// Disks of virtual machines, and databases.
    Vm,
    /// Backups: written, and hardly ever read.
    Backup,
}

impl Purpose {
    /// All of them.
    pub const ALL: [Purpose; 4] = [
        Purpose::Random,
        Purpose::Stream,
        Purpose::Vm,
        Purpose::Backup,
    ];

    /// What clients usually do then: blocks as `recordsize` and `volblocksize` are by default (1
    /// MiB for backups), as many at a time as several clients ask for.
    pub fn usual_load(self) -> Load {
        let (block_bytes, depth, read_share) = match self {
            Purpose::Random => (128 << 10, 32, 0.7),
            Purpose::Stream => (128 << 10, 32, 0.5),
            Purpose::Vm => (16 << 10, 32, 0.6),
            Purpose::Backup => (1 << 20, 32, 0.1),
        };
        Load {
            block_bytes,
            depth,
            read_share,
            streams: 0,
            stream_rate: 0,
        }
    }

    /// How much rates count beside the bytes that fit, 0 to 1.
    pub(crate) fn weight_of_rates(self) -> f64 {
        match self {
            Purpose::Random | Purpose::Vm => 0.7,
            Purpose::Stream => 0.5,
            Purpose::Backup => 0.2,
        }
    }

    /// The rate that counts.
    pub(crate) fn rate(self, rates: &Rates, load: &Load) -> f64 {
        let share = load.read_share.clamp(0.0, 1.0);
        match self {
            Purpose::Random | Purpose::Vm => rates.mixed_iops,
            Purpose::Stream | Purpose::Backup => {
                1.0 / (share / rates.read_rate + (1.0 - share) / rates.write_rate)
            }
        }
    }

    /// The word for it.
    pub fn word(self) -> &'static str {
        match self {
            Purpose::Random => "random",
            Purpose::Stream => "stream",
            Purpose::Vm => "vm",
            Purpose::Backup => "backup",
        }
    }
}

impl std::str::FromStr for Purpose {
    type Err = PlanError;

    fn from_str(word: &str) -> Result<Self, PlanError> {
        let mut all = Purpose::ALL.into_iter();
        all.find(|purpose| purpose.word() == word)
            .ok_or_else(|| PlanError::word(word, "a use is random, stream, vm or backup"))
    }
}

/// Data disks of a RAID-Z vdev that is not unusually wide, at most.
const DATA_MAX: u64 = 16;
/// Disks from which on dRAID is worth its whole stripes.
const DRAID_MIN: u64 = 10;
/// Disks for each distributed spare.
const DISKS_OF_SPARE: u64 = 24;
/// Disks that a vdev has at most.
const CHILDREN_MAX: u64 = 255;

/// Every sensible layout of so many disks: mirrors of two and three, RAID-Z of each parity with two
/// to sixteen data disks, dRAID from ten disks on. A layout leaves an eighth of the disks over at
/// most (they are spares then), and has redundancy unless there is but one disk.
pub fn layouts(disks: u64) -> Vec<Layout> {
    let mut found = BTreeSet::new();
    if disks == 1 {
        found.insert(Layout::Stripe { disks });
    }
    let leaves_few = |used: u64| used > 0 && disks - used <= (disks / 8).max(1);
    for ways in 2..=3 {
        let vdevs = disks / ways;
        if leaves_few(vdevs * ways) {
            found.insert(Layout::Mirror { vdevs, ways });
        }
    }
    for parity in 1..=3 {
        for width in parity + 2..=parity + DATA_MAX {
            let vdevs = disks / width;
            if leaves_few(vdevs * width) {
                found.insert(Layout::Raidz {
                    parity,
                    vdevs,
                    disks: width,
                });
            }
        }
        if disks < DRAID_MIN {
            continue;
        }
        let vdevs = disks.div_ceil(CHILDREN_MAX);
        let children = disks / vdevs;
        let spares = children.div_ceil(DISKS_OF_SPARE);
        for data in [4, 8] {
            let layout = Layout::Draid {
                parity,
                data,
                vdevs,
                children,
                spares,
            };
            if layout.check().is_ok() && leaves_few(layout.disks()) {
                found.insert(layout);
            }
        }
    }
    // Of very many disks there would be more vdevs than a pool has.
    let can_be = |layout: &Layout| layout.check().is_ok();
    found.into_iter().filter(can_be).collect()
}

/// Why a layout is recommended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "PlanReason")]
#[serde(rename_all = "lowercase")]
pub enum Reason {
    /// The best for the purpose, of those that are safe.
    Best,
    /// None is safe: the one that loses data least often.
    Safest,
    /// The only one.
    Only,
}

/// The layout that is the best for a purpose.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "PlanRecommended")]
pub struct Recommended {
    /// For what.
    pub purpose: Purpose,
    /// Which.
    pub layout: Layout,
    /// Why.
    pub reason: Reason,
}

/// What disks that are no data disks may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "PlanHelper")]
#[serde(rename_all = "lowercase")]
pub enum Helper {
    /// A mirror for metadata and small blocks.
    Special,
    /// A log device.
    Log,
    /// A cache device.
    Cache,
    /// Spares.
    Spare,
    /// Nothing: they are not better than those that hold the data.
    Nothing,
}

/// What further disks may do for a pool on `data` disks.
pub fn helper(data: DiskKind, other: DiskKind, count: u64, purpose: Purpose) -> Helper {
    let rank = |kind| match kind {
        DiskKind::Hdd => 0,
        DiskKind::Ssd => 1,
        DiskKind::Nvme => 2,
    };
    if rank(other) <= rank(data) {
        return match other == data {
            true => Helper::Spare,
            false => Helper::Nothing,
        };
    }
    match purpose {
        // A special vdev that is lost takes the pool along: two at least.
        Purpose::Random | Purpose::Stream | Purpose::Backup if count >= 2 => Helper::Special,
        Purpose::Vm => Helper::Log,
        _ => Helper::Cache,
    }
}
