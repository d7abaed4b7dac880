//! Freed space that devices are told of (property `autotrim`): which of it, when, and holding it
//! back meanwhile.
//!
//! ```text
//!  defer[2] --sync_done--> collecting --age--> ripening --age--> ripe --hold--> held
//!                              |                   |               |             |
//!                              +---- allocated ----+---------------+             +--release-->
//!                                                  |                                allocatable
//!                                                  +--> forgotten
//! ```
//!
//! All of it but what is held can be allocated at any time, and is forgotten then: so it is free,
//! and nothing was written there since. What is *held* is in no free map: nobody gets it until the
//! devices have answered. Totals go on counting it as free, since it is.
//!
//! **What a crash or a rewind may find.** A device may carry a discard out at once and for good. So
//! a range must be free in every state that an import may choose: the newest, and [`DEFER_TXGS`]
//! uberblocks before it (`import -F`). Space waits that many txgs before it can be used again; of
//! these some may have left no uberblock, as nothing was written. Hence a range is ripe only when
//! so many uberblocks were *written* after it had come free. What was freed while space was short
//! did not wait, and is never discarded. What a checkpoint has is not freed at all.
//!
//! **Running out.** Little is held at any time ([`HOLD_BYTES_MAX`], a part of what is free),
//! nothing where little is free, and an allocation that finds no place while something is held
//! waits for it; then this vdev is left alone for a while.
//!
//! **Memory** is bounded by [`RANGES_MAX`]: the smallest ranges are forgotten first. Nothing is
//! stored: what is forgotten, or not done before export, is discarded when it was used and freed
//! again.
//!
//! Source: module/zfs/metaslab.c (`metaslab_sync_done`, `ms_trim`), vdev_trim.c
//! (`vdev_autotrim_thread`, `vdev_trim_ranges`).

use std::sync::Arc;

use format::{Txg, VdevId};
use tokio::sync::Notify;
use vdev::{RangeSet, TRIM_EXTENT_BYTES_MIN};

use super::{DEFER_TXGS, Entry};

/// Txgs over which freed space is gathered before it ripens, so that neighbours become one range,
/// and what is used again soon is left alone. A range is 16 to 32 txgs old when it is discarded
/// (`zfs_trim_txg_batch` is 32).
pub const TRIM_BATCH_TXGS: u64 = 16;
/// Bytes of a vdev that are held back at the same time, at most (`zfs_trim_extent_bytes_max`).
const HOLD_BYTES_MAX: u64 = 128 << 20;
/// Ranges that are held at the same time.
const HOLD_RANGES_MAX: usize = 4096;
/// At most this part of what is free is held.
const HOLD_FRACTION: u64 = 16;
/// Nothing is held where less than this part of a vdev is free.
const FREE_FRACTION_MIN: u64 = 16;
/// Txgs for which nothing more is held of a vdev, after an allocation had to wait.
const PAUSE_TXGS: u64 = 32;
/// Ranges that are remembered of a vdev in each of the three sets.
const RANGES_MAX: usize = 1 << 15;

/// What trimming waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum TrimWait {
    /// That txgs pass, also empty ones.
    Txgs,
    /// That an uberblock is written.
    Uberblock,
}

/// Ranges that came free at about the same time.
#[derive(Debug, Default)]
struct Batch {
    ranges: RangeSet,
    /// It has something that an idle pool is to write uberblocks for.
    matters: bool,
}

/// What may be discarded of one vdev.
#[derive(Debug, Default)]
pub(super) struct TrimQueue {
    collecting: Batch,
    ripening: Batch,
    ripe: RangeSet,
    /// Of `ripening`: the txg in which it began, and what `written` was.
    since: (Txg, u64),
    /// Uberblocks that were written so far.
    written: u64,
    /// The last txg that is on disk.
    now: Txg,
    /// Until then nothing is held.
    paused_until: Txg,
    /// The last txgs whose uberblock was only written because trimming waited for it: what they
    /// free does not matter, or an idle pool would never come to rest.
    forced: [Txg; 2 * DEFER_TXGS as usize],
}

impl TrimQueue {
    /// Takes what can be used again from now on, freed in txg `freed`.
    pub(super) fn collect(&mut self, ranges: &RangeSet, freed: Txg) {
        let matters = !self.forced.contains(&freed);
        for (start, length) in ranges.iter() {
            let batch = &mut self.collecting;
            batch.ranges.add_observed(start, length, &mut |new, range| {
                batch.matters |= new && matters && range.end - range.start >= TRIM_EXTENT_BYTES_MIN;
            });
        }
        forget_small(&mut self.collecting.ranges, RANGES_MAX);
    }

    /// Forgets what is used again.
    pub(super) fn forget(&mut self, start: u64, length: u64) {
        self.collecting.ranges.remove(start, length);
        self.ripening.ranges.remove(start, length);
        self.ripe.remove(start, length);
    }

    /// `txg` is on disk, with an uberblock (`wrote`) or without. Batches take `batch_txgs`.
    pub(super) fn age(&mut self, txg: Txg, wrote: bool, batch_txgs: u64) {
        self.now = txg;
        self.written += u64::from(wrote);
        if self.is_old(batch_txgs) && self.uberblocks_missing() == 0 {
            let done = std::mem::take(&mut self.ripening);
            for (start, length) in done.ranges.iter() {
                if length >= TRIM_EXTENT_BYTES_MIN {
                    self.ripe.add(start, length);
                }
            }
            forget_small(&mut self.ripe, RANGES_MAX);
        }
        if self.ripening.ranges.is_empty() {
            self.ripening = std::mem::take(&mut self.collecting);
            self.since = (txg, self.written);
        }
    }

    fn is_old(&self, batch_txgs: u64) -> bool {
        self.now.get() >= self.since.0.get().saturating_add(batch_txgs)
    }

    /// Uberblocks that have to be written before `ripening` is ripe.
    fn uberblocks_missing(&self) -> u64 {
        (self.since.1 + DEFER_TXGS).saturating_sub(self.written)
    }

    /// What an idle pool has to do so that something gets ripe.
    pub(super) fn waits(&self, batch_txgs: u64) -> Option<TrimWait> {
        let matters = |batch: &Batch| batch.matters && !batch.ranges.is_empty();
        if !matters(&self.collecting) && !matters(&self.ripening) {
            return None;
        }
        // Also what does not matter has to get out of the way of what does.
        let lacks_uberblocks = !self.ripening.ranges.is_empty()
            && self.now.get() + self.uberblocks_missing() >= self.since.0.get() + batch_txgs
            && self.uberblocks_missing() > 0;
        Some(match lacks_uberblocks {
            true => TrimWait::Uberblock,
            false => TrimWait::Txgs,
        })
    }

    /// `txg` will have an uberblock only because this waits for one.
    pub(super) fn note_forced(&mut self, txg: Txg) {
        self.forced[(txg.get() % self.forced.len() as u64) as usize] = txg;
    }

    /// An allocation of `txg` needs what is held.
    pub(super) fn pause(&mut self, txg: Txg) {
        self.paused_until = Txg::new(txg.get() + PAUSE_TXGS);
    }

    /// Whether something may be held now.
    pub(super) fn is_ready(&self) -> bool {
        !self.ripe.is_empty() && self.now >= self.paused_until
    }

    /// Where the first ripe range begins.
    pub(super) fn first(&self) -> Option<u64> {
        self.ripe.iter().next().map(|(start, _)| start)
    }

    /// Takes ripe ranges from the first one on, up to `end`, at most `bytes` of them (and that much
    /// of a longer one).
    pub(super) fn take(&mut self, end: u64, mut bytes: u64) -> RangeSet {
        let mut out = RangeSet::new();
        while bytes >= TRIM_EXTENT_BYTES_MIN && out.segments() < HOLD_RANGES_MAX {
            let first = self.ripe.iter().next();
            let Some((start, length)) = first.filter(|first| first.0 < end) else {
                break;
            };
            let length = length.min(end - start).min(bytes);
            self.ripe.remove(start, length);
            if length >= TRIM_EXTENT_BYTES_MIN {
                out.add(start, length);
                bytes -= length;
            }
        }
        out
    }
}

/// How much of a vdev may be held: whole allocation units of `unit_bytes`; zero when too little is
/// free.
pub(super) fn hold_budget(free_bytes: u64, size_bytes: u64, unit_bytes: u64) -> u64 {
    if free_bytes < size_bytes / FREE_FRACTION_MIN {
        return 0;
    }
    let budget = (free_bytes / HOLD_FRACTION).min(HOLD_BYTES_MAX);
    budget / unit_bytes * unit_bytes
}

/// Forgets the smallest ranges when there are more than `max`.
fn forget_small(ranges: &mut RangeSet, max: usize) {
    let mut least = TRIM_EXTENT_BYTES_MIN;
    while ranges.segments() > max {
        *ranges = ranges.iter().filter(|range| range.1 >= least).collect();
        least *= 2;
    }
}

/// Free space of a vdev that nobody gets until [`TrimHold::done`]. One that is dropped stays held
/// for as long as the pool is open: nobody knows whether devices are still about to discard it.
pub struct TrimHold {
    pub(super) entry: Arc<Entry>,
    pub(super) loads: Arc<Notify>,
    pub(super) metaslab: usize,
    pub(super) ranges: RangeSet,
    pub(super) is_done: bool,
}

impl TrimHold {
    /// The vdev.
    pub fn vdev(&self) -> VdevId {
        self.entry.vdev
    }

    /// The ranges, as offsets on the vdev.
    pub fn ranges(&self) -> &RangeSet {
        &self.ranges
    }

    /// The devices have answered: the space can be used again.
    pub fn done(mut self) {
        self.is_done = true;
    }
}

impl Drop for TrimHold {
    fn drop(&mut self) {
        let returned = self.is_done.then_some(&self.ranges);
        self.entry.top.lock().release(self.metaslab, returned);
        self.loads.notify_waiters();
    }
}

impl std::fmt::Debug for TrimHold {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("TrimHold")
            .field("vdev", &self.vdev())
            .field("ranges", &self.ranges)
            .finish_non_exhaustive()
    }
}
