//! Where a scan is, as it is stored: `dsl_scan_phys_t` and the queue of datasets, in the words of
//! module/zfs/dsl_scan.c.
//!
//! There are two of it. One is where the walk is; the other is on disk, and says up to where
//! everything was read: it becomes the first one whenever no block waits to be read. What happens
//! to datasets changes both ([`Position::destroyed`] and so on: `dsl_scan_ds_destroyed`,
//! `dsl_scan_ds_snapshotted`, `dsl_scan_ds_clone_swapped`).

use std::collections::BTreeMap;

use format::{Bookmark, DdtBookmark, ObjectId, ObjsetId, ScanPhys, Txg};

/// Dataset of a place that is no more (`ZB_DESTROYED_OBJSET`).
pub(super) const DESTROYED: ObjsetId = ObjsetId::new(u64::MAX);

/// Where a scan is.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Position {
    pub(super) phys: ScanPhys,
    /// Datasets to visit, with the txg from which on; zero: since the snapshot before.
    pub(super) queue: BTreeMap<u64, u64>,
}

impl Position {
    /// The same scan, which has come nowhere yet.
    pub(super) fn at_begin(&self) -> Self {
        let phys = ScanPhys {
            bookmark: Bookmark::default(),
            current_min_txg: Txg::ZERO,
            current_max_txg: Txg::ZERO,
            flags: self.phys.flags & !ScanPhys::FLAG_VISIT_AGAIN,
            examined_bytes: 0,
            skipped_bytes: 0,
            ..self.phys
        };
        Position {
            phys,
            queue: BTreeMap::new(),
        }
    }

    pub(super) fn is_running(&self) -> bool {
        self.phys.state == ScanPhys::STATE_SCANNING
    }

    pub(super) fn is_resilver(&self) -> bool {
        self.phys.function == ScanPhys::FUNCTION_RESILVER
    }

    pub(super) fn is_paused(&self) -> bool {
        self.phys.flags & ScanPhys::FLAG_PAUSED != 0
    }

    /// A dataset is destroyed; `next` follows a snapshot.
    pub(super) fn destroyed(&mut self, dataset: ObjectId, next: Option<ObjectId>) {
        let phys = &mut self.phys;
        if phys.bookmark.objset.get() == dataset.get() {
            match next {
                Some(next) => {
                    phys.bookmark.objset = ObjsetId::new(next.get());
                    phys.flags |= ScanPhys::FLAG_VISIT_AGAIN;
                }
                None => phys.bookmark = Bookmark::new(DESTROYED, ObjectId::ZERO, 0, 0),
            }
        }
        if let Some(txg) = self.queue.remove(&dataset.get())
            && let Some(next) = next
        {
            self.queue.insert(next.get(), txg);
        }
    }

    /// A snapshot was taken: it has what the live dataset had.
    pub(super) fn snapshotted(&mut self, head: ObjectId, snapshot: ObjectId) {
        let bookmark = &mut self.phys.bookmark;
        if bookmark.objset.get() == head.get() {
            bookmark.objset = ObjsetId::new(snapshot.get());
        }
        if let Some(txg) = self.queue.remove(&head.get()) {
            self.queue.insert(snapshot.get(), txg);
        }
    }

    /// Two datasets exchange what they have.
    pub(super) fn swapped(&mut self, a: ObjectId, b: ObjectId) {
        let bookmark = &mut self.phys.bookmark;
        if bookmark.objset.get() == a.get() {
            bookmark.objset = ObjsetId::new(b.get());
        } else if bookmark.objset.get() == b.get() {
            bookmark.objset = ObjsetId::new(a.get());
        }
        let (of_a, of_b) = (self.queue.remove(&a.get()), self.queue.remove(&b.get()));
        if let Some(txg) = of_a {
            self.queue.insert(b.get(), txg);
        }
        if let Some(txg) = of_b {
            self.queue.insert(a.get(), txg);
        }
    }
}

/// Dedup tables are not walked: every block of theirs is met in the datasets, all the same, and
/// blocks that gain a reference are looked at again (`scn_ddt_class_max`; the place is behind it).
pub(super) fn leave_out_tables(phys: &mut ScanPhys) {
    phys.ddt_class_max = 0;
    phys.ddt_bookmark = DdtBookmark {
        class: 1,
        ..DdtBookmark::default()
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(number: u64) -> ObjectId {
        ObjectId::new(number)
    }

    /// Goal: what is being visited, or waits to be, is found again whatever happens to it.
    #[test]
    fn a_position_follows_its_datasets() {
        let mut at = Position {
            queue: [(50, 7), (60, 0)].into(),
            ..Position::default()
        };
        at.phys.bookmark = Bookmark::new(ObjsetId::new(40), id(9), 0, 3);
        at.snapshotted(id(40), id(41));
        at.snapshotted(id(60), id(61));
        assert_eq!(
            at.phys.bookmark,
            Bookmark::new(ObjsetId::new(41), id(9), 0, 3)
        );
        assert_eq!(at.queue, [(50, 7), (61, 0)].into());
        // A snapshot's blocks are those of what follows it, which is visited again.
        at.destroyed(id(41), Some(id(40)));
        at.destroyed(id(61), Some(id(60)));
        assert_eq!(
            at.phys.bookmark,
            Bookmark::new(ObjsetId::new(40), id(9), 0, 3)
        );
        assert_eq!(at.phys.flags, ScanPhys::FLAG_VISIT_AGAIN);
        assert_eq!(at.queue, [(50, 7), (60, 0)].into());
        at.swapped(id(70), id(40));
        at.swapped(id(50), id(71));
        assert_eq!(at.phys.bookmark.objset, ObjsetId::new(70));
        assert_eq!(at.queue, [(60, 0), (71, 7)].into());
        at.destroyed(id(70), None);
        at.destroyed(id(60), None);
        assert_eq!(at.phys.bookmark.objset, DESTROYED);
        assert_eq!(at.queue, [(71, 7)].into());
    }
}
