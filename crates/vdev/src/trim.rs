//! Telling devices that free space of a top-level vdev holds nothing any more.
//!
//! A device may only be told of sectors that belong to the free range alone. On disks and mirrors
//! those are the range itself. On RAID-Z every sector of the vdev's address space is one sector of
//! one child (module `geometry`), on dRAID every whole stripe one sector of each child of its group
//! (module `draid`): so there they are exactly the range's sectors, child by child. Spared, as
//! nothing is lost by that: RAID-Z vdevs that were expanded, whose sectors may lie by several
//! widths, and the spare room of dRAID vdevs.
//!
//! Discards are no I/O that has to succeed: a failure is no error of the device, and nothing is
//! tried again (`vdev_trim_cb`, module/zfs/vdev_trim.c). One runs per device at a time.

use std::sync::Arc;

use bytes::Bytes;
use format::{Guid, LABEL_START_BYTES};
use futures::future::join_all;

use super::error::VdevError;
use super::kind::VdevKind;
use super::leaf::Leaf;
use super::node::Vdev;
use crate::range_set::RangeSet;

/// Extents that are shorter are not worth a command (`zfs_trim_extent_bytes_min`).
pub const TRIM_EXTENT_BYTES_MIN: u64 = 32 << 10;
/// Bytes that one command discards, at most (`zfs_trim_extent_bytes_max`).
pub const TRIM_EXTENT_BYTES_MAX: u64 = 128 << 20;

/// What became of discards.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Discarded {
    /// Bytes that devices discarded.
    pub bytes: u64,
    /// Commands that failed.
    pub failures: u64,
}

impl Vdev {
    /// Whether discards can be told to its devices.
    pub fn can_discard_free(&self) -> bool {
        self.kind.expansion().is_none() && self.geometry().is_some()
    }

    /// Has devices discard ranges of this top-level vdev that are free, and stay so until this
    /// returns. Pieces below [`TRIM_EXTENT_BYTES_MIN`] on a device and devices that cannot discard
    /// are left out.
    ///
    /// `goes_on` is asked before each command: a suspended pool may be another host's by now, and
    /// the space no more free there. Not to be cancelled: a device would still be at work.
    pub async fn discard_free(
        &self,
        free: &RangeSet,
        goes_on: &(dyn Fn() -> bool + Sync),
    ) -> Discarded {
        let mut by_leaf = Vec::new();
        leaf_ranges(self, free, &mut by_leaf);
        let results = join_all(
            by_leaf
                .iter()
                .map(|(leaf, ranges)| discard(leaf, ranges, goes_on)),
        )
        .await;
        results
            .into_iter()
            .fold(Discarded::default(), |sum, one| Discarded {
                bytes: sum.bytes + one.bytes,
                failures: sum.failures + one.failures,
            })
    }

    /// What free ranges of this top-level vdev are on a device below it; `None` if it is not below,
    /// or is where no space can be told to be free ([`Self::can_discard_free`]).
    pub fn free_on(self: &Arc<Self>, leaf: Guid, free: &RangeSet) -> Option<RangeSet> {
        if self.leaf().is_some() {
            return (self.guid() == leaf).then(|| free.clone());
        }
        let (index, child) = (self.children().iter().enumerate())
            .find(|(_, child)| child.leaves().iter().any(|vdev| vdev.guid() == leaf))?;
        child.free_on(leaf, &child_ranges(self, index, free)?)
    }
}

/// What ranges of a vdev are on each device below.
fn leaf_ranges(vdev: &Vdev, free: &RangeSet, out: &mut Vec<(Arc<Leaf>, RangeSet)>) {
    if let VdevKind::Leaf(own) = vdev.kind() {
        out.push((own.leaf.clone(), free.clone()));
        return;
    }
    for (index, child) in vdev.children().iter().enumerate() {
        if let Some(ranges) = child_ranges(vdev, index, free) {
            leaf_ranges(child, &ranges, out);
        }
    }
}

/// What the ranges are on one child; `None` where that cannot be told.
fn child_ranges(vdev: &Vdev, index: usize, free: &RangeSet) -> Option<RangeSet> {
    match vdev.kind() {
        VdevKind::Mirror(_) => Some(free.clone()),
        VdevKind::Raidz(raidz) if raidz.expansion.is_none() => {
            let width = raidz.children.len() as u64;
            Some(raidz_ranges(vdev.ashift(), width, index as u64, free))
        }
        VdevKind::Draid(draid) => {
            let mut out = RangeSet::new();
            for range in free.ranges() {
                let columns = draid.layout.whole_stripes(vdev.ashift(), range);
                for column in columns.iter().filter(|column| column.child == index) {
                    out.add(column.offset, column.length as u64);
                }
            }
            Some(out)
        }
        _ => None,
    }
}

/// The sectors of child `child` of `width` that free ranges of a RAID-Z vdev have: sector `b` of
/// the vdev is row `b / width` of child `b % width`.
fn raidz_ranges(ashift: u32, width: u64, child: u64, free: &RangeSet) -> RangeSet {
    // The first row of this child whose sector is not before `sector`.
    let row = |sector: u64| sector.saturating_sub(child).div_ceil(width);
    free.ranges()
        .map(|range| {
            // Only whole sectors of the range.
            let first = row(range.start.div_ceil(1 << ashift));
            let end = row(range.end >> ashift).max(first);
            (first << ashift, (end - first) << ashift)
        })
        .collect()
}

/// Work at the free space of one device, piece by piece: nothing of it has to succeed.
impl Leaf {
    /// Writes over free space (`zpool initialize`). A failure counts as one of the device.
    ///
    /// # Errors
    /// What the device says, or that it, or the pool, is not to be written to.
    pub async fn initialize(
        self: &Arc<Self>,
        offset_bytes: u64,
        data: Bytes,
    ) -> Result<(), VdevError> {
        let raw = offset_bytes.saturating_add(LABEL_START_BYTES);
        let result = self.write_unkept(raw, data).await;
        result.map_err(|error| self.unavailable(error))
    }

    /// Tells the device that free space holds nothing any more (`zpool trim`): at most
    /// [`TRIM_EXTENT_BYTES_MAX`] at a time. A failure is no error of the device.
    ///
    /// # Errors
    /// As [`Self::initialize`].
    pub async fn trim(&self, offset_bytes: u64, length_bytes: u64) -> Result<(), VdevError> {
        let result = self.discard(offset_bytes, length_bytes).await;
        result.map_err(|error| self.unavailable(error))
    }

    fn unavailable(&self, error: impl std::fmt::Display) -> VdevError {
        VdevError::VdevUnavailable {
            vdev: self.guid().to_string(),
            cause: error.to_string(),
        }
    }
}

async fn discard(leaf: &Leaf, ranges: &RangeSet, goes_on: &(dyn Fn() -> bool + Sync)) -> Discarded {
    let mut out = Discarded::default();
    for (start, length) in ranges
        .iter()
        .filter(|range| range.1 >= TRIM_EXTENT_BYTES_MIN)
    {
        let mut at = start;
        while at < start + length {
            if !goes_on() || !leaf.is_writeable() || !leaf.supports_discard() {
                return out;
            }
            let part = (start + length - at).min(TRIM_EXTENT_BYTES_MAX);
            match leaf.discard(at, part).await {
                Ok(()) => out.bytes += part,
                Err(error) => {
                    tracing::debug!(leaf = %leaf.guid(), %error, "a discard failed");
                    out.failures += 1;
                }
            }
            at += part;
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use device::sim::{Fault, FaultEffect, SimOp, SimWorld};

    use super::super::geometry::Geometry;
    use super::*;
    use crate::testing::{TestTree, group, simulate};
    use crate::{Draid, VdevState};

    const ASHIFT: u32 = 12;

    /// Goal: both sides of a mirror are told, short pieces are left out, and a failure is no error
    /// of a device. Method: one of them refuses the first discard.
    #[test]
    fn a_discard_that_fails_is_no_error() {
        simulate(async {
            let sim = SimWorld::new(3);
            let tops = vec![group(&sim, "mirror", 0, "m", 2, 10)];
            let pool = TestTree::create(sim, tops, 12).await;
            let tops = pool.tree.tops();
            let fault = Fault::new(SimOp::Discard, FaultEffect::Error);
            pool.disk("m0").inject(fault.times(1));
            let free = RangeSet::from_iter([
                (0, TRIM_EXTENT_BYTES_MIN),
                (1 << 20, TRIM_EXTENT_BYTES_MIN - 4096),
                (2 << 20, 1 << 20),
            ]);
            let none = tops[0].discard_free(&free, &|| false).await;
            assert_eq!(
                (none, pool.sim.counts().discards),
                (Discarded::default(), 0)
            );
            let discarded = tops[0].discard_free(&free, &|| true).await;
            let bytes = TRIM_EXTENT_BYTES_MIN + (2 << 20);
            assert_eq!(discarded, Discarded { bytes, failures: 1 });
            assert_eq!(pool.sim.counts().discards, 4);
            assert_eq!(tops[0].state().0, VdevState::Healthy);
            for leaf in tops[0].leaves() {
                let counters = leaf.counters();
                assert_eq!((counters.write_errors, counters.read_errors), (0, 0));
            }
            let told: Vec<_> = (tops[0].leaves().iter())
                .map(|leaf| (leaf.counters().trim_ops, leaf.counters().trim_errors))
                .collect();
            assert_eq!(told, [(1, 1), (2, 0)]);
            let all = tops[0].counters();
            assert_eq!((all.trim_ops, all.trim_bytes), (3, bytes));
            assert_eq!(pool.reports.0.lock().len(), 0);
        });
    }

    fn sectors(child: usize, offset: u64, length: u64) -> impl Iterator<Item = (usize, u64)> {
        (offset >> ASHIFT..(offset + length) >> ASHIFT).map(move |sector| (child, sector))
    }

    /// Goal: of blocks side by side, discarding some touches exactly the sectors of these. Method:
    /// all widths and parities, blocks of many sizes, across the offset from which on columns are
    /// swapped.
    #[test]
    fn discards_on_raidz_touch_only_what_is_free() {
        for (width, parity) in [(2, 1), (3, 1), (5, 1), (5, 2), (7, 2), (7, 3), (11, 3)] {
            let geometry = Geometry::raidz(ASHIFT, width, parity).expect("a shape");
            let (mut free, mut gone, mut kept) =
                (RangeSet::new(), BTreeSet::new(), BTreeSet::new());
            let mut at = (1 << 20) - (parity + 1) * 50 * 4096;
            at -= at % ((parity + 1) << ASHIFT);
            for number in 0..200usize {
                let length = (1 + number * 7 % 33) << ASHIFT;
                let asize = geometry.asize(length as u64);
                let columns = geometry.columns(at, length).expect("RAID-Z");
                let into = if number % 3 == 0 {
                    &mut gone
                } else {
                    &mut kept
                };
                for column in columns.columns.iter().chain(&columns.skips) {
                    into.extend(sectors(column.child, column.offset, column.length as u64));
                }
                if number % 3 == 0 {
                    free.add(at, asize);
                }
                at += asize;
            }
            let children: Vec<_> = (0..width as u64)
                .map(|child| raidz_ranges(ASHIFT, width as u64, child, &free))
                .collect();
            let found: BTreeSet<_> = (children.iter().enumerate())
                .flat_map(|(child, set)| {
                    set.iter()
                        .map(move |(start, length)| (child, start, length))
                })
                .flat_map(|(child, start, length)| sectors(child, start, length))
                .collect();
            assert!(found.is_disjoint(&kept), "{width} {parity}");
            assert_eq!(found, gone, "{width} {parity}");
        }
    }

    /// The same on dRAID, around the ends of groups and slices; of what is no whole stripe, nothing
    /// is touched.
    #[test]
    fn discards_on_draid_touch_only_what_is_free() {
        for (parity, data, spares, children) in [(1, 2, 1, 5), (2, 4, 1, 11), (3, 8, 2, 14)] {
            let draid = Draid::new(parity, data, spares, children).expect("a shape");
            let stripe = (parity + data) << ASHIFT;
            let group = (parity + data) << 24;
            for border in [group, group * draid.groups()] {
                let (mut free, mut gone, mut kept) =
                    (RangeSet::new(), BTreeSet::new(), BTreeSet::new());
                let mut at = border - 40 * stripe;
                for number in 0..40usize {
                    let stripes = 1 + number as u64 % 5;
                    let length = ((stripes * data) << ASHIFT) as usize;
                    let into = if number % 3 == 0 {
                        &mut gone
                    } else {
                        &mut kept
                    };
                    for row in draid.rows(ASHIFT, at, length).expect("a block") {
                        for column in row.columns {
                            into.extend(sectors(column.child, column.offset, column.length as u64));
                        }
                    }
                    if number % 3 == 0 {
                        free.add(at, stripes * stripe);
                    }
                    at += stripes * stripe;
                }
                let touched = |range| -> BTreeSet<_> {
                    let columns = draid.whole_stripes(ASHIFT, range).into_iter();
                    columns
                        .flat_map(|column| {
                            sectors(column.child, column.offset, column.length as u64)
                        })
                        .collect()
                };
                let found: BTreeSet<_> = free.ranges().flat_map(touched).collect();
                assert!(found.is_disjoint(&kept));
                assert_eq!(found, gone);
                assert!(touched(border - stripe + 1..border).is_empty());
                assert!(touched(border..border + stripe - 1).is_empty());
            }
        }
    }
}
