//! What is worth saying about an answer.
//!
//! A note is a fact with its figures, so that a program can use it; [`Note::sentence`] says it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::amount::{show_block, show_bytes, show_chance, show_seconds};
use crate::choose::{Helper, Purpose, Reason};
use crate::risk::Assumptions;
use crate::{DiskKind, Layout};

/// Something to know before the pool is made.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "PlanNote")]
#[serde(rename_all = "snake_case", tag = "note")]
#[non_exhaustive]
pub enum Note {
    /// The best layout for a purpose.
    Recommended {
        /// For what.
        purpose: Purpose,
        /// Which.
        layout: Layout,
        /// Why.
        reason: Reason,
        /// What fits on it.
        usable_bytes: u64,
        /// Chance of loss in a year.
        loss_per_year: f64,
    },
    /// What cannot be changed once the pool is made.
    Fixed {
        /// Of which layout.
        layout: Layout,
    },
    /// Any disk that fails takes the pool with it.
    NoRedundancy {
        /// On which layout.
        layout: Layout,
    },
    /// Blocks of this size take much more than their data.
    SmallBlocks {
        /// On which layout.
        layout: Layout,
        /// Bytes of a block.
        block_bytes: u64,
        /// Part of what they take that is data, 0 to 1.
        efficiency: f64,
        /// Size of blocks that are nearly as good as can be there.
        better_block_bytes: u64,
    },
    /// A volume of small blocks takes much more than its data.
    SmallVolume {
        /// On which vdev.
        layout: Layout,
        /// Bytes of the volume.
        volume_bytes: u64,
        /// Bytes of a block.
        block_bytes: u64,
        /// Bytes that it takes on disks when it is full, with parity and padding.
        on_disks_bytes: u64,
        /// Bytes that it takes of what `zfs list` tells as available.
        counted_bytes: u64,
        /// Size of blocks that are nearly as good as can be there.
        better_block_bytes: u64,
        /// Bytes that it would take on disks with them.
        better_on_disks_bytes: u64,
    },
    /// An unreadable sector during a rebuild is likely to hit data that nothing else has.
    Unreadable {
        /// On which layout.
        layout: Layout,
        /// Chance of lost blocks in a year.
        damage_per_year: f64,
    },
    /// A vdev of RAID-Z with unusually many disks.
    Wide {
        /// Which layout.
        layout: Layout,
        /// Until a disk of it is rebuilt.
        rebuild_seconds: f64,
    },
    /// Disks that no vdev uses.
    Spare {
        /// On which layout.
        layout: Layout,
        /// How many, with those that were asked for.
        count: u64,
    },
    /// What further disks may be.
    Helper {
        /// How many there are.
        count: u64,
        /// Of which kind.
        kind: DiskKind,
        /// For what.
        helper: Helper,
    },
    /// A cache device's index takes much of the memory.
    CacheMemory {
        /// Bytes of the cache device.
        device_bytes: u64,
        /// Bytes that its index takes.
        index_bytes: u64,
        /// Bytes of memory.
        memory_bytes: u64,
    },
    /// How big a log device need be.
    Log {
        /// Bytes.
        bytes: u64,
    },
    /// More streams than the pool serves.
    Streams {
        /// On which layout.
        layout: Layout,
        /// Asked for.
        streams: u64,
        /// Served without a gap.
        streams_max: u64,
    },
    /// Sectors are configured smaller than the disks have them.
    SmallSectors {
        /// Bytes of a sector, as the pool would have it.
        configured_bytes: u64,
        /// As the disks have it.
        native_bytes: u64,
    },
    /// Disks of one vdev are of different sizes.
    UnequalDisks {
        /// The vdev.
        layout: Layout,
        /// Bytes of them that are not used.
        unused_bytes: u64,
    },
    /// Vdevs differ in how many of their disks may fail.
    WeakestVdev {
        /// The one of which the fewest may.
        layout: Layout,
        /// How many.
        may_fail: u64,
    },
    /// Vdevs differ in size.
    UnequalVdevs {
        /// Bytes of data on the smallest.
        smallest_bytes: u64,
        /// Bytes of data on the biggest.
        biggest_bytes: u64,
    },
    /// What chances are computed from.
    Assumed {
        /// The assumptions.
        assumed: Assumptions,
    },
}

impl Note {
    /// The note as a sentence or two.
    pub fn sentence(&self) -> String {
        match self {
            Note::Recommended {
                purpose,
                layout,
                reason,
                usable_bytes,
                loss_per_year,
            } => {
                let what = match purpose {
                    Purpose::Random => "files that are read and written here and there",
                    Purpose::Stream => "streams",
                    Purpose::Vm => "virtual machines and databases",
                    Purpose::Backup => "backups",
                };
                let usable = show_bytes(*usable_bytes);
                let loss = show_chance(*loss_per_year);
                match reason {
                    Reason::Best => format!(
                        "For {what} take {layout}: of the layouts that lose data rarely enough it \
                         has the best of rate and space together, {usable} usable, lost in a year \
                         with a chance of {loss}."
                    ),
                    Reason::Safest => format!(
                        "For {what} take {layout}, the safest of them with {usable} usable; none \
                         is as safe as a pool should be (lost in a year with a chance of {loss})."
                    ),
                    Reason::Only => format!(
                        "{layout} has {usable} usable, and is lost in a year with a chance of \
                         {loss}."
                    ),
                }
            }
            Note::Fixed { layout } => fixed(*layout),
            Note::NoRedundancy { layout } => format!(
                "{layout} has no redundancy: the first disk that fails takes the whole pool along."
            ),
            Note::SmallBlocks {
                layout,
                block_bytes,
                efficiency,
                better_block_bytes,
            } => format!(
                "On {layout}, blocks of {} take so much parity and padding that {:.0} % of the raw \
                 space holds data; blocks of {} are nearly as good as can be there, and mirrors do \
                 not care.",
                show_block(*block_bytes),
                efficiency * 100.0,
                show_block(*better_block_bytes),
            ),
            Note::SmallVolume {
                layout,
                volume_bytes,
                block_bytes,
                on_disks_bytes,
                counted_bytes,
                better_block_bytes,
                better_on_disks_bytes,
            } => format!(
                "On {layout}, a volume of {} in blocks of {} takes {} on disks when it is full, \
                 and {} of what is available; in blocks of {} it takes {} on disks.",
                show_bytes(*volume_bytes),
                show_block(*block_bytes),
                show_bytes(*on_disks_bytes),
                show_bytes(*counted_bytes),
                show_block(*better_block_bytes),
                show_bytes(*better_on_disks_bytes)
            ),
            Note::Unreadable {
                layout,
                damage_per_year,
            } => format!(
                "On {layout}, some blocks are lost in a year with a chance of {}: while a disk is \
                 rebuilt, nothing else has what a sector that cannot be read had. Take more parity \
                 or another copy.",
                show_chance(*damage_per_year)
            ),
            Note::Wide {
                layout,
                rebuild_seconds,
            } => format!(
                "{layout} has wide vdevs: a rebuild reads {} disks for at least {}.",
                layout.disks_of_vdev().saturating_sub(1),
                show_seconds(*rebuild_seconds)
            ),
            Note::Spare { layout, count } => format!(
                "{layout} leaves {count} {}.",
                match count {
                    1 => "disk as a spare",
                    _ => "disks as spares",
                }
            ),
            Note::Helper {
                count,
                kind,
                helper,
            } => helping(*count, *kind, *helper),
            Note::CacheMemory {
                device_bytes,
                index_bytes,
                memory_bytes,
            } => format!(
                "The index of a cache device of {} takes up to {} of {} of memory.",
                show_bytes(*device_bytes),
                show_bytes(*index_bytes),
                show_bytes(*memory_bytes)
            ),
            Note::Log { bytes } => format!(
                "A log device need not be bigger than {}; that it loses nothing when the power \
                 fails matters more.",
                show_bytes(*bytes)
            ),
            Note::Streams {
                layout,
                streams,
                streams_max,
            } => format!(
                "{layout} serves {streams_max} such streams without a gap, and not {streams}."
            ),
            Note::SmallSectors {
                configured_bytes,
                native_bytes,
            } => format!(
                "block size: {configured_bytes}B configured, {native_bytes}B native. What does not \
                 fill a sector has to be read before it is written, for as long as the vdev \
                 exists; give ashift={}.",
                native_bytes.max(&1).ilog2()
            ),
            Note::UnequalDisks {
                layout,
                unused_bytes,
            } => format!(
                "Disks of {layout} are of different sizes: {} of them are not used until the \
                 smallest is replaced by a bigger one.",
                show_bytes(*unused_bytes)
            ),
            Note::WeakestVdev { layout, may_fail } => format!(
                "The pool is as safe as its weakest vdev, {layout}, of which {} may fail.",
                match may_fail {
                    0 => "no disk".to_owned(),
                    1 => "one disk".to_owned(),
                    disks => format!("{disks} disks"),
                }
            ),
            Note::UnequalVdevs {
                smallest_bytes,
                biggest_bytes,
            } => format!(
                "Vdevs are of different sizes, {} to {}: most of what is written goes to the \
                 bigger ones, so that the pool is less fast than vdevs that are alike.",
                show_bytes(*smallest_bytes),
                show_bytes(*biggest_bytes)
            ),
            Note::Assumed { assumed } => format!(
                "Chances are for disks of which {:.1} % fail in a year, each by itself, {} until \
                 one without a spare is replaced, one unreadable bit in {:.0e}, and a pool that \
                 is {:.0} % full. Disks of one batch fail together more often.",
                assumed.failures_per_year * 100.0,
                show_seconds(assumed.replace_seconds),
                assumed.bits_per_error,
                assumed.filled * 100.0
            ),
        }
    }
}

/// What cannot be changed later (`zpool attach`, `zpool remove`).
fn fixed(layout: Layout) -> String {
    match layout {
        Layout::Stripe { .. } => format!(
            "{layout}: each disk can become a mirror later (zpool attach), and can be removed; \
             disks cannot become raidz."
        ),
        Layout::Mirror { .. } => format!(
            "{layout}: mirrors can get more disks, be added and be removed later; they cannot \
             become raidz."
        ),
        Layout::Raidz { parity, .. } => format!(
            "{layout}: its parity is {parity} for good. Its vdevs can get more disks, one at a \
             time (zpool attach), what is written before keeps the old relation of data to \
             parity, and no vdev of the pool can be removed."
        ),
        Layout::Draid { .. } => format!(
            "{layout}: parity, data disks of a group, number of disks and spares are so for good; \
             a pool grows by whole draid vdevs, and none can be removed."
        ),
    }
}

fn helping(count: u64, kind: DiskKind, helper: Helper) -> String {
    let what = match kind {
        DiskKind::Hdd => "hard disks",
        DiskKind::Ssd => "SSDs",
        DiskKind::Nvme => "NVMe disks",
    };
    match helper {
        Helper::Special => format!(
            "The {count} {what} can be a special vdev, as a mirror: metadata and small blocks are \
             found there without a seek. If it is lost, so is the pool."
        ),
        Helper::Log => format!(
            "The {count} {what} can be log devices, mirrored if there are two: synchronous writes \
             of virtual machines then wait for them instead of for the other disks."
        ),
        Helper::Cache => format!(
            "The {count} {what} can be cache devices: what memory does not hold is read from \
             there. They can be added and removed at any time."
        ),
        Helper::Spare => {
            format!("The {count} {what} of another size can be spares, if they are big enough.")
        }
        Helper::Nothing => format!("The {count} {what} would not make this pool faster."),
    }
}
