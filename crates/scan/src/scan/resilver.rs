//! What devices lack: whether a resilver is needed, and what they do not lack any more when a scan
//! is done (`vdev_resilver_needed`, `vdev_dtl_reassess`, module/zfs/vdev.c).

use std::collections::BTreeMap;
use std::sync::Arc;

use format::{Guid, ScanPhys, Txg};
use spa::config::{REBUILD_TXG, RESILVER_TXG};
use vdev::{RangeSet, Vdev, VdevTree};

use crate::Scans;

/// Which resilver is meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum When {
    /// One that can begin in this txg.
    Now,
    /// Also one that waits for txgs that may be open already.
    Soon,
    /// Also one that waits until devices that failed have taken a few txgs.
    Later,
}

/// How far ahead of the txg that is written a new device is taken to lack txgs: the open one is at
/// most two further, and from there it is `TXG_CONCURRENT_STATES` (include/sys/txg.h).
const AHEAD_TXGS: u64 = 5;
/// Txgs that a device has to take after one that it did not: a resilver for each txg of a device
/// that fails would only wear the others.
const GOOD_TXGS: u64 = 3;

fn last_end(missing: &RangeSet) -> u64 {
    missing.ranges().next_back().map_or(0, |range| range.end)
}

/// What a device lacks that can be given to it.
struct Lacking {
    vdev: Arc<Vdev>,
    first: u64,
    /// One after the last.
    end: u64,
}

/// What devices lack that can be written, below top-level vdevs that work. What is known to be
/// `unmended` does not count. A scan that begins in `txg` leaves that one out: a device that lacks
/// later txgs too, as one that was just attached, waits for them to pass, or it would be resilvered
/// twice (`scn_restart_txg`). One that failed to take a write lately waits as well. `when` says
/// what is asked for.
fn lacking(
    tree: &VdevTree,
    unmended: &BTreeMap<Guid, RangeSet>,
    txg: Txg,
    when: When,
) -> Vec<Lacking> {
    let tops = tree.tops().into_iter();
    let tops = tops.filter(|top| top.state().0.is_usable());
    let leaves = tops.flat_map(|top| top.leaves());
    let lacks = |vdev: Arc<Vdev>| {
        let leaf = vdev.leaf().filter(|leaf| leaf.is_writeable())?;
        let missing = leaf.dirty_times().missing();
        if missing.is_empty() || unmended.get(&vdev.guid()) == Some(&missing) {
            return None;
        }
        let (first, _) = missing.iter().next()?;
        let end = last_end(&missing).min(txg.get());
        let ahead = last_end(&missing) - end;
        if first >= end || when == When::Now && (1..=AHEAD_TXGS).contains(&ahead) {
            return None;
        }
        let failed = leaf.dirty_times().last_failed_txg().get();
        if when < When::Later && failed != 0 && txg.get() <= failed.saturating_add(GOOD_TXGS) {
            return None;
        }
        Some(Lacking { vdev, first, end })
    };
    leaves.filter_map(lacks).collect()
}

/// The txgs (exclusive on both sides, as `scn_min_txg` and `scn_max_txg`) of what devices lack.
pub(super) fn needed(
    tree: &VdevTree,
    unmended: &BTreeMap<Guid, RangeSet>,
    txg: Txg,
    when: When,
) -> Option<(Txg, Txg)> {
    let lacking = lacking(tree, unmended, txg, when);
    let from = lacking.iter().map(|lacks| lacks.first).min()?;
    let until = lacking.iter().map(|lacks| lacks.end).max()?;
    Some((Txg::new(from.saturating_sub(1)), Txg::new(until)))
}

/// The devices that lack txgs which a resilver up to `max_txg` does not give them: they came back,
/// or came in, since it began. Those that fail writes now and then wait without a word.
pub(super) fn later(
    tree: &VdevTree,
    unmended: &BTreeMap<Guid, RangeSet>,
    txg: Txg,
    max_txg: Txg,
) -> Vec<Guid> {
    let lacking = lacking(tree, unmended, txg, When::Now).into_iter();
    let is_later = |lacks: &Lacking| {
        let leaf = lacks.vdev.leaf();
        let fails = leaf.is_some_and(|leaf| !leaf.dirty_times().last_failed_txg().is_zero());
        lacks.end > max_txg.get() && !fails
    };
    let later = lacking.filter(is_later);
    later.map(|lacks| lacks.vdev.guid()).collect()
}

impl Scans {
    /// A scan ended. When it was whole, devices that were there all the time do not lack what it
    /// gave them any more. `lost` are txgs of which a block could not be read. What devices still
    /// lack that a resilver would not mend either.
    pub(super) fn settle_missing(
        &self,
        phys: &ScanPhys,
        is_whole: bool,
        lost: &RangeSet,
    ) -> BTreeMap<Guid, RangeSet> {
        let mut unmended = BTreeMap::new();
        let max = phys.max_txg.get();
        // What only the checkpoint has was not met.
        let counts = is_whole && !self.spa.pipeline.dvas().has_checkpoint();
        let mut has_failed = false;
        for vdev in self.spa.tree.leaves() {
            let Some(leaf) = vdev.leaf() else { continue };
            let failed = leaf.dirty_times().take_scan_failed();
            let was_refused = leaf.dirty_times().take_scan_refused();
            has_failed |= !failed.is_empty();
            if !is_whole || !leaf.is_writeable() || leaf.dirty_times().missing().is_empty() {
                continue;
            }
            if !self.spa.dirty_times.was_noted(&vdev) {
                // It came back in this txg.
                continue;
            }
            leaf.dirty_times().change_missing(|missing| {
                if last_end(missing) > max {
                    // It was away meanwhile: the next resilver is for it.
                    return;
                }
                if counts && !begins_before(missing, phys.min_txg) {
                    *missing = both(missing, lost, &failed);
                }
                // What a device could not be given while the pool stood still, it takes now.
                if !missing.is_empty() && !was_refused {
                    unmended.insert(vdev.guid(), missing.clone());
                }
            });
            if leaf.dirty_times().missing().is_empty() {
                vdev.remove_config(RESILVER_TXG);
                vdev.remove_config(REBUILD_TXG);
                self.spa.identity.mark_dirty();
            }
        }
        for spare in self.spa.tree.topology().draid_spares() {
            let Some(own) = spare.kind().draid_spare() else {
                continue;
            };
            let missing = own.missing();
            // What is on a device that was away was not written, and that device will not know: its
            // own log tells of later txgs.
            let top = self.spa.tree.topology().top_of(spare.guid());
            let was_there = |leaf: &Arc<Vdev>| {
                let device = leaf.leaf();
                device.is_some_and(|leaf| leaf.is_writeable())
                    && self.spa.dirty_times.was_noted(leaf)
            };
            let were_there = top.is_some_and(|top| {
                let behind = top.leaves_behind(&spare);
                behind.iter().all(was_there)
            });
            if !were_there {
                continue;
            }
            let is_covered = last_end(&missing) <= max && !begins_before(&missing, phys.min_txg);
            if counts && is_covered && lost.is_empty() && !has_failed && !missing.is_empty() {
                own.set_missing(RangeSet::new());
            }
        }
        unmended
    }
}

/// What of `missing` could not be read, or not be written.
fn both(missing: &RangeSet, lost: &RangeSet, failed: &RangeSet) -> RangeSet {
    let mut kept = RangeSet::new();
    for (first, count) in missing.iter() {
        for txgs in [lost, failed] {
            for part in txgs.intersection(first, count) {
                kept.add(part.start, part.end - part.start);
            }
        }
    }
    kept
}

/// Whether a scan left out the first of the txgs.
fn begins_before(missing: &RangeSet, min: Txg) -> bool {
    let first = missing.iter().next();
    first.is_some_and(|(first, _)| first <= min.get())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scan::blocks::lose_below;

    /// Behind a block that cannot be read there may be older ones, which nobody gave the device.
    #[test]
    fn what_is_behind_a_lost_block_stays_missing() {
        let missing = RangeSet::from_iter([(3, 2), (8, 5)]);
        let mut lost = RangeSet::new();
        lose_below(&mut lost, Txg::new(9));
        let kept = both(&missing, &lost, &RangeSet::new());
        assert_eq!(kept, RangeSet::from_iter([(3, 2), (8, 2)]));
        lose_below(&mut lost, Txg::new(u64::MAX));
        assert_eq!(both(&missing, &lost, &RangeSet::new()), missing);
    }
}
