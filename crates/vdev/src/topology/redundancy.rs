//! Whether the devices that are there make up for those that are not: for one device, for one
//! block, or for the pool.

use std::sync::Arc;

use format::{BlockPointer, DVAS_PER_POINTER, Dva, Guid, Txg};

use super::Topology;
use crate::error::VdevError;
use crate::kind::VdevKind;
use crate::lacking::{REBUILD_TXG, RESILVER_TXG};
use crate::node::Vdev;
use crate::range_set::RangeSet;
use crate::recorded::Recorded;
use crate::top_spec::AllocClass;

impl Topology {
    /// Whether some data is on no other device that works than this one (`vdev_dtl_required`,
    /// module/zfs/vdev.c): always of a top-level vdev that is a device.
    pub fn is_required(&self, guid: Guid) -> bool {
        self.top_of(guid)
            .is_some_and(|top| !outage(&top, guid).is_empty())
    }

    /// Whether a top-level vdev other than logs cannot be used.
    pub fn lacks_tops(&self) -> bool {
        self.list.read().iter().any(|top| {
            top.top().is_some_and(|top| top.class != AllocClass::Log) && !top.state().0.is_usable()
        })
    }

    /// Whether a block lies on log vdevs alone that are not there (`zpool import -m`).
    pub fn is_on_lost_log(&self, block: &BlockPointer) -> bool {
        let lost = |dva: &Dva| {
            self.get(dva.vdev()).is_some_and(|top| {
                !top.state().0.is_usable()
                    && top.top().is_some_and(|top| top.class == AllocClass::Log)
            })
        };
        let mut places = (0..DVAS_PER_POINTER).filter_map(|copy| block.dva(copy));
        let mut any = false;
        places.all(|dva| {
            any = true;
            lost(&dva)
        }) && any
    }

    /// Whether a block that cannot be read now may be readable when devices that stopped working
    /// since the pool was opened are back: those that are there may lack it. Devices that were
    /// attached after it was written, and not resilvered since, have nothing to bring back. Not so
    /// those that only count as lacking everything, for a vdev that was removed meanwhile.
    pub fn may_come_back(&self, block: &BlockPointer) -> bool {
        let birth = block.physical_birth();
        is_any_out(self, block, |vdev| !was_attached_after(vdev, birth))
    }

    /// Whether an intent log's block of which no device that works has a right copy was certainly
    /// never acknowledged: all its devices are there, or so many of those that must have it that
    /// they would make up for the others. Those must that are not known to lack its txg
    /// ([`Self::check_recorded`]). Not so when one stopped working since the pool was opened.
    pub fn tells_of(&self, block: &BlockPointer) -> bool {
        let (birth, length) = (block.physical_birth(), block.psize_bytes() as usize);
        let is_there = |vdev: &Arc<Vdev>| vdev.leaf().is_some_and(|leaf| leaf.is_readable());
        let tells = |dva: &Dva| {
            self.get(dva.vdev()).is_some_and(|top| {
                top.leaves().iter().all(is_there)
                    || !top.may_lack_block(dva.offset_bytes(), length, birth)
            })
        };
        !is_any_out(self, block, |_| true) && block.dvas().all(|dva| tells(&dva))
    }

    /// After an intent log's block was written and flushed: whether it is durable, and the pool's
    /// state on disk tells of every device that did not take it. Such a device would else be
    /// trusted after a crash, and could say alone that the block was never written.
    ///
    /// # Errors
    /// [`VdevError::VdevUnavailable`]: some device lacks it, which the next txg will record; or too
    /// many lack it.
    pub fn check_recorded(&self, block: &BlockPointer) -> Result<(), VdevError> {
        let birth = block.physical_birth();
        for top in block.dvas().filter_map(|dva| self.get(dva.vdev())) {
            let mut all = top.leaves().into_iter().chain(top.draid_spares());
            let lacking = match top.lacks_txg(birth) {
                true => Some(top.clone()),
                false => all.find(|vdev| vdev.forgets_missing(birth)),
            };
            if let Some(vdev) = lacking {
                return Err(VdevError::VdevUnavailable {
                    vdev: vdev.display_name(),
                    cause: "it did not take a write, which is not on record yet".to_owned(),
                });
            }
        }
        Ok(())
    }
}

/// The transaction groups some of whose data is lost without the device `without`
/// (`vdev_dtl_reassess` of `DTL_OUTAGE`, module/zfs/vdev.c).
pub(super) fn outage(vdev: &Vdev, without: Guid) -> RangeSet {
    let all = || RangeSet::from_iter([(0, u64::MAX)]);
    match &vdev.kind {
        VdevKind::Leaf(own) if vdev.guid != without && own.leaf.is_readable() => {
            own.leaf.dirty_times().missing()
        }
        VdevKind::DraidSpare(spare) if vdev.guid != without && spare.top.get().is_some() => {
            spare.missing.lock().clone()
        }
        VdevKind::Leaf(_) | VdevKind::DraidSpare(_) | VdevKind::Missing | VdevKind::Other(_) => {
            all()
        }
        VdevKind::Hole | VdevKind::Indirect(_) => RangeSet::new(),
        VdevKind::Mirror(_) | VdevKind::Raidz(_) | VdevKind::Draid(_) => {
            let children = vdev.children().iter();
            let sets: Vec<RangeSet> = children.map(|child| outage(child, without)).collect();
            in_more_than(&sets, vdev.redundancy())
        }
    }
}

/// Whether a resilver of this device, or of one that holds the same, has ended, in the pool's
/// state on disk as well.
pub(super) fn misses_nothing(vdev: &Vdev) -> bool {
    match &vdev.kind {
        VdevKind::Mirror(mirror) => mirror.children.iter().any(|child| misses_nothing(child)),
        _ => {
            let is_there = vdev.is_readable() && vdev.own_missing().is_empty();
            is_there && vdev.recorded().is_some_and(Recorded::is_whole)
        }
    }
}

/// What is in more than `count` of the sets.
fn in_more_than(sets: &[RangeSet], count: usize) -> RangeSet {
    let mut ends: Vec<(u64, i64)> = Vec::new();
    for range in sets.iter().flat_map(RangeSet::ranges) {
        ends.push((range.start, 1));
        ends.push((range.end, -1));
    }
    ends.sort_unstable();
    let mut out = RangeSet::new();
    let (mut depth, mut from) = (0, 0);
    for (at, step) in ends {
        if depth > count as i64 {
            out.add(from, at - from);
        }
        depth += step;
        from = at;
    }
    out
}

/// Whether a device that may have a part of the block stopped working since the pool was opened, of
/// those that count.
fn is_any_out(topology: &Topology, block: &BlockPointer, counts: impl Fn(&Vdev) -> bool) -> bool {
    let is_out = |vdev: &Arc<Vdev>| vdev.leaf().is_some_and(|leaf| leaf.is_out()) && counts(vdev);
    let is_removed = |dva: Dva| {
        let top = topology.get(dva.vdev());
        top.is_some_and(|top| top.kind().is_indirect())
    };
    if block.is_gang() || block.dvas().any(is_removed) {
        // Its pieces may be anywhere.
        return topology.leaves().iter().any(is_out);
    }
    block
        .dvas()
        .filter_map(|dva| topology.get(dva.vdev()))
        .any(|top| top.leaves().iter().any(is_out))
}

/// Whether a device was attached after `txg`, and no resilver of it has ended: its configuration
/// says so, and it lacks everything from the pool's first txg on, while one that failed lacks what
/// came since. One that lacks as much without having been attached may have the block
/// (`evacuation::lack_all`).
fn was_attached_after(vdev: &Vdev, txg: Txg) -> bool {
    let is_set = |pair: &str| vdev.config_u64(pair).is_some_and(|since| since != 0);
    let first = Txg::INITIAL;
    let length = txg.get().saturating_add(1).saturating_sub(first.get());
    (is_set(RESILVER_TXG) || is_set(REBUILD_TXG))
        && txg >= first
        && vdev.own_missing().contains(first.get(), length)
}
