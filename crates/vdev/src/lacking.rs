//! What a vdev lacks: writes that did not reach its devices (DTLs, `vdev_dtl_*`,
//! module/zfs/vdev.c).
//!
//! A device knows the txgs whose writes it lacks; so does a dRAID spare, which has no device of its
//! own. Vdevs above them lack what more children lack than redundancy makes up for. Where a
//! question is about a block, dRAID asks the columns that the block is on.
//!
//! **A crash leaves** what the pool's state on disk says of it ([`Recorded`]):
//! what was missed since, nobody would know any more ([`Vdev::forgets_missing`]).

use std::collections::BTreeSet;
use std::sync::Arc;

use format::{Guid, Txg};

use super::kind::{LeafVdev, VdevKind};
use super::node::Vdev;
use crate::range_set::RangeSet;
use crate::recorded::Recorded;

/// Pair of a device or dRAID spare that was attached and has not everything yet, in the txg of its
/// value.
pub const RESILVER_TXG: &str = "resilver_txg";
/// The same while it is rebuilt sequentially.
pub const REBUILD_TXG: &str = "rebuild_txg";

impl Vdev {
    /// The txgs whose writes this device or dRAID spare lacks itself; nothing of other kinds.
    pub fn own_missing(&self) -> RangeSet {
        match &self.kind {
            VdevKind::Leaf(vdev) => vdev.leaf.dirty_times().missing(),
            VdevKind::DraidSpare(spare) => spare.missing(),
            _ => RangeSet::new(),
        }
    }

    /// What a crash would leave of what this device or dRAID spare lacks; `None` of other kinds.
    pub fn recorded(&self) -> Option<&Recorded> {
        match &self.kind {
            VdevKind::Leaf(leaf) => Some(&*leaf.recorded),
            VdevKind::DraidSpare(spare) => Some(&*spare.recorded),
            _ => None,
        }
    }

    /// Whether this device or dRAID spare lacks writes of `txg`, and a crash would let that be
    /// forgotten.
    pub(super) fn forgets_missing(&self, txg: Txg) -> bool {
        self.lacks_txg(txg) && !is_recorded_missing(self, txg)
    }

    /// Whether more children than redundancy makes up for lack writes of `txg`.
    pub(super) fn lacks_txg(&self, txg: Txg) -> bool {
        match &self.kind {
            VdevKind::Leaf(vdev) => vdev.leaf.dirty_times().is_missing(txg),
            VdevKind::DraidSpare(spare) => spare.is_missing(txg),
            kind => {
                let children = kind.children().iter();
                children.filter(|child| child.lacks_txg(txg)).count() > self.redundancy()
            }
        }
    }

    /// Whether a block of `txg` of `length` bytes that is not found at `offset` of this top-level
    /// vdev may have been written all the same: more devices than redundancy makes up for are not
    /// there, or are known not to have all of that txg.
    pub(super) fn may_lack_block(&self, offset: u64, length: usize, txg: Txg) -> bool {
        let VdevKind::Draid(draid) = &self.kind else {
            return may_lack(self, offset, txg);
        };
        // What a spare stands on depends on where the block's columns are, not on where the block
        // is. Blocks of logs may be smaller than sectors.
        let length = length.next_multiple_of(1 << self.ashift());
        let rows = draid.layout.rows(self.ashift(), offset, length);
        rows.is_none_or(|rows| {
            rows.iter().any(|row| {
                let columns = row.columns.iter().filter(|column| column.length > 0);
                let lacking = columns.filter(|column| {
                    let child = draid.children.get(column.child);
                    child.is_none_or(|child| may_lack(child, column.offset, txg))
                });
                lacking.count() > row.parity
            })
        })
    }

    /// Whether it lacks writes of this txg at this offset: all of its children that are there do,
    /// and of a dRAID spare the device that has the offset does (`vdev_draid_missing`,
    /// module/zfs/vdev_draid.c).
    pub fn is_missing(&self, offset: u64, txg: Txg) -> bool {
        match &self.kind {
            VdevKind::Leaf(vdev) => vdev.leaf.dirty_times().is_missing(txg),
            VdevKind::DraidSpare(spare) => {
                spare.is_missing(txg)
                    || spare
                        .child(offset)
                        .is_some_and(|child| child.is_missing(offset, txg))
            }
            // Nothing is missing where nothing can be.
            kind if kind.children().is_empty() => false,
            kind => kind
                .children()
                .iter()
                .filter(|child| child.is_readable())
                .all(|child| child.is_missing(offset, txg)),
        }
    }

    /// Whether some of its data is not on it, or on devices that cannot be used now
    /// (`vdev_dtl_required`, module/zfs/vdev.c). Rows of dRAID keep the columns of a device and of
    /// its spare apart, so that a spare counts for itself, whatever becomes of the devices that it
    /// is on.
    pub(super) fn lacks_data(&self) -> bool {
        self.lacks_data_without(&[])
    }

    /// [`Self::lacks_data`], as if some devices were not there.
    pub(super) fn lacks_data_without(&self, gone: &[Guid]) -> bool {
        match &self.kind {
            VdevKind::Leaf(LeafVdev { leaf, .. }) => {
                gone.contains(&self.guid)
                    || !leaf.is_readable()
                    || !leaf.dirty_times().missing().is_empty()
            }
            VdevKind::DraidSpare(spare) => {
                spare.top.get().is_none() || !spare.missing.lock().is_empty()
            }
            kind => {
                let children = kind.children().iter();
                let lacking = children.filter(|child| child.lacks_data_without(gone));
                lacking.count() > self.redundancy()
            }
        }
    }

    /// Whether devices that can be written lack a block of `birth`, or a part of it
    /// (`vdev_dtl_need_resilver`, module/zfs/vdev.c). `psize` is zero where only a part of a block
    /// is at `offset`. Of removed vdevs that is not known: they say yes, as does dRAID where no
    /// block can be.
    pub fn needs_resilver(&self, offset: u64, psize: usize, birth: Txg) -> bool {
        let any = |children: &[std::sync::Arc<Vdev>]| {
            children
                .iter()
                .any(|child| child.needs_resilver(offset, 0, birth))
        };
        match &self.kind {
            VdevKind::Leaf(LeafVdev { leaf, .. }) => {
                leaf.dirty_times().is_missing(birth) && leaf.is_writeable()
            }
            VdevKind::DraidSpare(spare) => {
                self.is_writeable(offset) && spare.is_missing(birth)
                    || spare
                        .child(offset)
                        .is_some_and(|child| child.needs_resilver(offset, 0, birth))
            }
            VdevKind::Indirect(_) => true,
            VdevKind::Raidz(raidz) if psize > 0 && raidz.expansion.is_none() => {
                // A small block is not on all children.
                let length = psize.next_multiple_of(1 << self.ashift());
                let columns = self
                    .geometry()
                    .and_then(|geometry| geometry.columns(offset, length));
                columns.is_none_or(|columns| {
                    columns.columns.iter().any(|column| {
                        let child = raidz.children.get(column.child);
                        column.length > 0
                            && child
                                .is_some_and(|child| child.needs_resilver(column.offset, 0, birth))
                    })
                })
            }
            VdevKind::Draid(draid) => {
                // A spare stands on another device here and there, so it is asked where the columns
                // are: elsewhere it may be told to stand in for itself. Those that the block does
                // not reach are asked as well: they have zeros of it.
                let length = psize.next_multiple_of(1 << self.ashift());
                let rows = draid.layout.rows(self.ashift(), offset, length);
                rows.is_none_or(|rows| {
                    rows.iter().flat_map(|row| &row.columns).any(|column| {
                        let child = draid.children.get(column.child);
                        child.is_none_or(|child| child.needs_resilver(column.offset, 0, birth))
                    })
                })
            }
            kind => any(kind.children()),
        }
    }
}

/// Whether a device or dRAID spare was attached to be rebuilt sequentially, and has not everything
/// yet.
pub fn is_rebuilding(vdev: &Vdev) -> bool {
    vdev.config_u64(REBUILD_TXG).is_some_and(|txg| txg != 0)
}

/// The dRAID spares below a top-level vdev that have what was given to them, if the devices have of
/// which `took_all` says so. A spare is on all children but the one that it stands in for; of a
/// child that consists of several, one is enough.
///
/// Spares may be on each other. That does not go round in circles: in each row, what a column of a
/// block is on is on another column ([`crate::Draid`]). So those are left which nothing speaks
/// against.
pub fn spares_that_took_all(
    top: &Arc<Vdev>,
    took_all: &dyn Fn(&Arc<Vdev>) -> bool,
) -> BTreeSet<Guid> {
    let spares = top.draid_spares();
    let mut good: BTreeSet<Guid> = spares.iter().map(|spare| spare.guid).collect();
    loop {
        let has_taken = |spare: &Guid| {
            let behind = top.children().iter();
            let mut behind = behind.filter(|child| child.find(*spare).is_none());
            behind.all(|child| has_taken_all(child, &good, took_all))
        };
        let left: BTreeSet<Guid> = good.iter().copied().filter(has_taken).collect();
        if left.len() == good.len() {
            return good;
        }
        good = left;
    }
}

/// Whether a device has taken everything, or one of those that a vdev consists of.
fn has_taken_all(
    vdev: &Arc<Vdev>,
    spares: &BTreeSet<Guid>,
    took_all: &dyn Fn(&Arc<Vdev>) -> bool,
) -> bool {
    match &vdev.kind {
        VdevKind::Leaf(_) => took_all(vdev),
        VdevKind::DraidSpare(_) => spares.contains(&vdev.guid),
        kind => {
            let mut children = kind.children().iter();
            children.any(|child| has_taken_all(child, spares, took_all))
        }
    }
}

/// Whether a device or dRAID spare lacks writes of `txg`, and no crash would let that be forgotten.
fn is_recorded_missing(vdev: &Vdev, txg: Txg) -> bool {
    vdev.recorded()
        .is_some_and(|recorded| recorded.contains(txg))
}

/// [`Vdev::may_lack_block`], of the part of a block that is at `offset` of a vdev; of all of a
/// RAID-Z vdev.
fn may_lack(vdev: &Vdev, offset: u64, txg: Txg) -> bool {
    match &vdev.kind {
        VdevKind::Leaf(LeafVdev { leaf, .. }) => {
            !leaf.is_readable()
                || leaf.dirty_times().is_missing(txg)
                || is_recorded_missing(vdev, txg)
        }
        VdevKind::DraidSpare(spare) => {
            spare.is_missing(txg)
                || is_recorded_missing(vdev, txg)
                || spare
                    .child(offset)
                    .is_none_or(|child| may_lack(&child, offset, txg))
        }
        // Its blocks are elsewhere.
        VdevKind::Indirect(_) => false,
        kind if kind.children().is_empty() => true,
        kind => {
            let lacking = kind.children().iter();
            let lacking = lacking.filter(|child| may_lack(child, offset, txg));
            lacking.count() > vdev.redundancy()
        }
    }
}
