//! What devices lack: whether a resilver is needed, and what they do not lack any more when a scan
//! is done (`vdev_resilver_needed`, `vdev_dtl_reassess`, module/zfs/vdev.c).
//!
//! Blocks of removed vdevs were copied to where they are in txgs after that of their birth. A
//! device that lacks such a txg lacks blocks of any birth: it is resilvered from the first txg on,
//! and no scan that leaves blocks out gives it all. OpenZFS goes by the births of blocks alone.
//! While a vdev is being removed, its blocks are read where they were, so that scans do not come
//! upon the copies: what a device lacks of these it lacks until the removal has ended.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use format::names::config::REMOVING;
use format::{Guid, ScanPhys, Txg};
use spa::config::{REBUILD_TXG, RESILVER_TXG};
use vdev::{RangeSet, Vdev, VdevTree, mapping_of, spares_that_took_all};

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

/// What a device or distributed spare lacks that can be given to it.
struct Lacking {
    vdev: Arc<Vdev>,
    first: u64,
    /// One after the last.
    end: u64,
    /// The last txg in which it, or what a spare is on, failed to take a write; zero is none.
    failed: u64,
}

/// The last txg of which some of these devices failed to take a write; zero is none.
fn last_failed(devices: &[Arc<Vdev>]) -> u64 {
    let leaves = devices.iter().filter_map(|vdev| vdev.leaf());
    let failed = leaves.map(|leaf| leaf.dirty_times().last_failed_txg().get());
    failed.max().unwrap_or(0)
}

/// The devices and distributed spares of a top-level vdev that lack something and can be given all
/// of it, each with [`Lacking::failed`]. What a spare has is on other devices; while one of them is
/// away, and nothing stands in for it, it would not be whole in the end.
fn can_be_whole(top: &Arc<Vdev>) -> Vec<(Arc<Vdev>, u64)> {
    let is_writeable = |vdev: &Arc<Vdev>| vdev.leaf().is_some_and(|leaf| leaf.is_writeable());
    let leaves = top.leaves();
    let lacks = |vdev: &Arc<Vdev>| !vdev.own_missing().is_empty();
    let mut out: Vec<(Arc<Vdev>, u64)> = leaves
        .iter()
        .filter(|vdev| lacks(vdev) && is_writeable(vdev))
        .map(|vdev| (vdev.clone(), last_failed(std::slice::from_ref(vdev))))
        .collect();
    let spares = top.draid_spares().into_iter();
    let mut spares = spares.filter(lacks).peekable();
    if spares.peek().is_some() {
        let there = spares_that_took_all(top, &is_writeable);
        // One that is away fails in every txg.
        let writeable = leaves.iter().filter(|vdev| is_writeable(vdev)).cloned();
        let failed = last_failed(&writeable.collect::<Vec<_>>());
        let spares = spares.filter(|spare| there.contains(&spare.guid()));
        out.extend(spares.map(|spare| (spare, failed)));
    }
    out
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
    let devices = tops.flat_map(|top| can_be_whole(&top));
    let lacks = |(vdev, failed): (Arc<Vdev>, u64)| {
        let missing = vdev.own_missing();
        if missing.is_empty() || unmended.get(&vdev.guid()) == Some(&missing) {
            return None;
        }
        let (first, _) = missing.iter().next()?;
        let end = last_end(&missing).min(txg.get());
        let ahead = last_end(&missing) - end;
        if first >= end || when == When::Now && (1..=AHEAD_TXGS).contains(&ahead) {
            return None;
        }
        if when < When::Later && failed != 0 && txg.get() <= failed.saturating_add(GOOD_TXGS) {
            return None;
        }
        Some(Lacking {
            vdev,
            first,
            end,
            failed,
        })
    };
    devices.filter_map(lacks).collect()
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
    let moved = moved(tree);
    let lacks_moved = |lacks: &Lacking| overlap(&lacks.vdev.own_missing(), &moved);
    let from = match lacking.iter().any(lacks_moved) {
        true => 0,
        false => from.saturating_sub(1),
    };
    Some((Txg::new(from), Txg::new(until)))
}

/// The txgs in which blocks of removed vdevs came to where they are.
fn moved(tree: &VdevTree) -> RangeSet {
    let mut out = RangeSet::new();
    for map in tree.tops().iter().filter_map(|top| mapping_of(top)) {
        out.add_all(&map.birth_txgs());
    }
    out
}

/// The devices of a vdev that is being removed.
fn devices_that_leave(tree: &VdevTree) -> BTreeSet<Guid> {
    let tops = tree.tops().into_iter();
    let tops = tops.filter(|top| top.config_u64(REMOVING) == Some(1));
    tops.flat_map(|top| top.leaves())
        .map(|vdev| vdev.guid())
        .collect()
}

fn overlap(one: &RangeSet, other: &RangeSet) -> bool {
    one.iter()
        .any(|(first, count)| other.overlaps(first, count))
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
    let is_later = |lacks: &Lacking| lacks.end > max_txg.get() && lacks.failed == 0;
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
        // Copies that the scan did not come upon, and those of which another one will.
        let mut kept = lost.clone();
        let mut again = RangeSet::new();
        if !phys.min_txg.is_zero() || !lost.is_empty() {
            let moved = moved(&self.spa.tree);
            kept.add_all(&moved);
            if !phys.min_txg.is_zero() {
                again = moved;
            }
        }
        let lost = kept.clone();
        let dvas = self.spa.pipeline.dvas();
        if let Some(births) = dvas.with_removal(|map| map.birth_txgs()) {
            kept.add_all(&births);
        }
        let from = devices_that_leave(&self.spa.tree);
        // What only the checkpoint has was not met.
        let counts = is_whole && !self.spa.pipeline.dvas().has_checkpoint();
        // Of all devices that were there: a distributed spare is on several.
        let (mut all_failed, mut any_refused) = (RangeSet::new(), false);
        let mut took_all = BTreeSet::new();
        for vdev in self.spa.tree.leaves() {
            let Some(leaf) = vdev.leaf() else { continue };
            let failed = leaf.dirty_times().take_scan_failed();
            let was_refused = leaf.dirty_times().take_scan_refused();
            any_refused |= was_refused;
            let was_there = leaf.is_writeable() && self.spa.dirty_times.was_noted(&vdev);
            // One that was away in an earlier run of this scan lacks later txgs.
            if was_there && last_end(&leaf.dirty_times().missing()) <= max {
                took_all.insert(vdev.guid());
                // Others have taken what those that are away did not.
                all_failed.add_all(&failed);
            }
            // The others may have come back in this txg.
            if !is_whole || !was_there || leaf.dirty_times().missing().is_empty() {
                continue;
            }
            // What is copied from has no copies.
            let lost = match from.contains(&vdev.guid()) {
                true => &lost,
                false => &kept,
            };
            leaf.dirty_times().change_missing(|missing| {
                if last_end(missing) > max {
                    // It was away meanwhile: the next resilver is for it.
                    return;
                }
                if counts && !begins_before(missing, phys.min_txg) {
                    *missing = both(missing, lost, &failed);
                }
                // What a device could not be given while the pool stood still, it takes now.
                if !missing.is_empty() && !was_refused && !overlap(missing, &again) {
                    unmended.insert(vdev.guid(), missing.clone());
                }
            });
            self.settled(&vdev);
        }
        // What is on a device that was away was not written, and that device will not know: its own
        // log tells of later txgs.
        for top in self.spa.tree.tops().into_iter().filter(|_| is_whole) {
            let whole = spares_that_took_all(&top, &|leaf| took_all.contains(&leaf.guid()));
            for spare in top.draid_spares() {
                let Some(own) = spare.kind().draid_spare() else {
                    continue;
                };
                if own.missing().is_empty() || !whole.contains(&spare.guid()) {
                    continue;
                }
                if counts && !begins_before(&own.missing(), phys.min_txg) {
                    self.owe_the_same(&top, &spare, max, &took_all);
                }
                own.change_missing(|missing| {
                    if last_end(missing) > max {
                        return;
                    }
                    if counts && !begins_before(missing, phys.min_txg) {
                        *missing = both(missing, &lost, &all_failed);
                    }
                    if !missing.is_empty() && !any_refused {
                        unmended.insert(spare.guid(), missing.clone());
                    }
                });
                self.settled(&spare);
            }
        }
        unmended
    }
}

impl Scans {
    /// A device or distributed spare may lack nothing any more, in syncing context: then its
    /// configuration does not say either that it does.
    pub(crate) fn settled(&self, vdev: &Vdev) {
        if vdev.own_missing().is_empty() {
            vdev.remove_config(RESILVER_TXG);
            vdev.remove_config(REBUILD_TXG);
            self.spa.identity.mark_dirty();
        }
    }

    /// A distributed spare is about to lack nothing any more that it lacks now, if that is all
    /// before `max`. On some children others had it than all devices that are there, or may come
    /// back: those that were not in `took_all` lack it from now on. Such a device knows only what
    /// came since it went away, and would be trusted with what the spare has on it as soon as it
    /// was given that. Its configuration says so as well, for who cannot read the MOS yet.
    pub(crate) fn owe_the_same(
        &self,
        top: &Arc<Vdev>,
        spare: &Arc<Vdev>,
        max: u64,
        took_all: &BTreeSet<Guid>,
    ) {
        let owed = spare.own_missing();
        if owed.is_empty() || last_end(&owed) > max {
            return;
        }
        let behind = top.children().iter();
        let behind = behind.filter(|child| child.find(spare.guid()).is_none());
        for vdev in behind.flat_map(Vdev::leaves) {
            if let Some(leaf) = vdev.leaf()
                && !took_all.contains(&vdev.guid())
            {
                let times = leaf.dirty_times();
                times.change_missing(|missing| missing.add_all(&owed));
                vdev.set_config(RESILVER_TXG, max);
                self.spa.identity.mark_dirty();
            }
        }
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

    #[test]
    fn sets_overlap_where_both_have_a_txg() {
        let set = |ranges: &[(u64, u64)]| RangeSet::from_iter(ranges.iter().copied());
        assert!(overlap(&set(&[(3, 2), (8, 5)]), &set(&[(12, 1)])));
        assert!(!overlap(&set(&[(3, 2), (8, 5)]), &set(&[(5, 3), (13, 1)])));
        assert!(!overlap(&set(&[]), &set(&[(1, 9)])));
    }

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
