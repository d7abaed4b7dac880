//! Directories and datasets in memory: one shared value for each.
//!
//! Every [`Dir`] and [`Ds`] exists at most once (the registry hands out the same `Arc`). Their
//! structures are read by anybody under their locks, and changed in syncing context only; a
//! changed one is noted in the [`DirtyQueue`] and written into its MOS object's bonus before the
//! MOS is. Locks: a dataset's before its directory's, a child's before its parent's, the queue
//! last; none is held across an await.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use format::{BlockPointer, DslDatasetPhys, DslDirPhys, Guid, ObjectId, ObjsetKind, Txg, UsedBy};
use object::{ObjectSet, ZapValue};
use parking_lot::{Mutex, MutexGuard};
use zil::Zil;

use super::bookmarks::SnapshotBookmarks;
use super::deadlist::{Deadlist, Pending};
use super::open::{OpenState, ResumePoint};
use super::space::{Space, accounted_delta, apply};
use crate::features::guid;

/// What was changed in syncing context and must be written to the MOS.
#[derive(Default)]
pub(crate) struct DirtyQueue {
    items: Mutex<Vec<DirtyItem>>,
}

/// Something whose structure was changed.
pub(crate) enum DirtyItem {
    Dir(Arc<Dir>),
    Dataset(Arc<Ds>),
}

impl DirtyQueue {
    pub(crate) fn take(&self) -> Vec<DirtyItem> {
        std::mem::take(&mut self.items.lock())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.items.lock().is_empty()
    }
}

/// A directory: a filesystem or volume with its snapshots, and a node of the tree of names.
pub(crate) struct Dir {
    pub object: ObjectId,
    queue: Arc<DirtyQueue>,
    state: Mutex<DirState>,
    /// Its livelist, once it was opened; in syncing context only.
    pub livelist: tokio::sync::Mutex<Option<Deadlist>>,
}

pub(crate) struct DirState {
    pub phys: DslDirPhys,
    /// Last component of the name.
    pub name: String,
    pub parent: Option<Arc<Dir>>,
    /// Creation of the snapshot that it is a clone of, if it is one; else zero.
    pub origin_txg: Txg,
    /// Its livelist, if it is a clone that has one; else zero.
    pub livelist: ObjectId,
    pub is_zapified: bool,
    /// What open and syncing txg may write below it, as estimated, by parity of the txg.
    pub to_write: [u64; 2],
    /// Whether it is among those for which something was granted, likewise.
    pub is_granted: [bool; 2],
    /// Its structure differs from the MOS object's bonus.
    pub is_dirty: bool,
    /// It was destroyed: nothing is written any more.
    pub is_gone: bool,
}

impl Dir {
    pub(crate) fn new(object: ObjectId, queue: Arc<DirtyQueue>, state: DirState) -> Arc<Self> {
        Arc::new(Dir {
            object,
            queue,
            state: Mutex::new(state),
            livelist: tokio::sync::Mutex::new(None),
        })
    }

    /// Looks.
    pub(crate) fn state(&self) -> MutexGuard<'_, DirState> {
        self.state.lock()
    }

    /// Changes the structure, in syncing context.
    pub(crate) fn change<T>(self: &Arc<Self>, change: impl FnOnce(&mut DirState) -> T) -> T {
        let mut state = self.state.lock();
        let result = change(&mut state);
        if !state.is_dirty && !state.is_gone {
            state.is_dirty = true;
            self.queue.items.lock().push(DirtyItem::Dir(self.clone()));
        }
        result
    }

    pub(crate) fn parent(&self) -> Option<Arc<Dir>> {
        self.state().parent.clone()
    }

    /// Whether it is `ancestor` or below it.
    pub(crate) fn is_within(self: &Arc<Self>, ancestor: &Arc<Dir>) -> bool {
        let mut at = Some(self.clone());
        while let Some(dir) = at {
            if Arc::ptr_eq(&dir, ancestor) {
                return true;
            }
            at = dir.parent();
        }
        false
    }

    /// Full name: the pool's name for the root.
    pub(crate) fn full_name(&self, pool_name: &str) -> String {
        let (parent, name) = {
            let state = self.state();
            (state.parent.clone(), state.name.clone())
        };
        match parent {
            None => pool_name.to_owned(),
            Some(parent) => format!("{}/{name}", parent.full_name(pool_name)),
        }
    }

    /// Changes what is used of `by`, here and (as far as it exceeds reservations) in all ancestors
    /// (`dsl_dir_diduse_space`).
    pub(crate) fn did_use(self: &Arc<Self>, by: UsedBy, space: Space) {
        if space.is_zero() {
            return;
        }
        let (accounted, parent) = self.change(|state| {
            let accounted = parent_delta(&state.phys, space.used);
            add_space(&mut state.phys, space);
            if state.phys.flags & DslDirPhys::FLAG_USED_BREAKDOWN != 0 {
                apply(&mut state.phys.used_breakdown[by as usize], space.used);
            }
            (accounted, state.parent.clone())
        });
        if let Some(parent) = parent {
            parent.child_did_use(accounted, space);
        }
    }

    /// Changes what is used, and moves space between two parts (`dsl_dir_diduse_transfer_space`):
    /// `from` gives `to_new - space.used`, `to` gets `to_new`.
    pub(crate) fn did_use_transfer(
        self: &Arc<Self>,
        space: Space,
        to_new: i64,
        from: UsedBy,
        to: UsedBy,
    ) {
        let mut dir = self.clone();
        let (mut space, mut to_new, mut from, mut to) = (space, to_new, from, to);
        loop {
            let (accounted, parent) = dir.change(|state| {
                let accounted = parent_delta(&state.phys, space.used);
                add_space(&mut state.phys, space);
                if state.phys.flags & DslDirPhys::FLAG_USED_BREAKDOWN != 0 {
                    apply(
                        &mut state.phys.used_breakdown[from as usize],
                        space.used - to_new,
                    );
                    apply(&mut state.phys.used_breakdown[to as usize], to_new);
                }
                (accounted, state.parent.clone())
            });
            let Some(parent) = parent else { return };
            to_new = space.used;
            space.used = accounted;
            (from, to) = (UsedBy::ChildrenReservation, UsedBy::Children);
            dir = parent;
        }
    }

    fn child_did_use(self: &Arc<Self>, accounted: i64, space: Space) {
        self.did_use_transfer(
            Space {
                used: accounted,
                ..space
            },
            space.used,
            UsedBy::ChildrenReservation,
            UsedBy::Children,
        );
    }

    /// Moves space between two parts (`dsl_dir_transfer_space`).
    pub(crate) fn transfer(self: &Arc<Self>, delta: i64, from: UsedBy, to: UsedBy) {
        if delta == 0 || self.state().phys.flags & DslDirPhys::FLAG_USED_BREAKDOWN == 0 {
            return;
        }
        self.change(|state| {
            apply(&mut state.phys.used_breakdown[from as usize], -delta);
            apply(&mut state.phys.used_breakdown[to as usize], delta);
        });
    }

    /// Changes the reservation, and what the parent sees of it
    /// (`dsl_dir_set_reservation_sync_impl`).
    pub(crate) fn set_reservation(self: &Arc<Self>, bytes: u64) {
        let (delta, parent) = self.change(|state| {
            let used = state.phys.used_bytes;
            let delta = used.max(bytes) as i64 - used.max(state.phys.reserved_bytes) as i64;
            state.phys.reserved_bytes = bytes;
            (delta, state.parent.clone())
        });
        if let Some(parent) = parent {
            parent.did_use(
                UsedBy::ChildrenReservation,
                Space {
                    used: delta,
                    ..Space::default()
                },
            );
        }
    }
}

fn add_space(phys: &mut DslDirPhys, space: Space) {
    apply(&mut phys.used_bytes, space.used);
    apply(&mut phys.compressed_bytes, space.compressed);
    apply(&mut phys.uncompressed_bytes, space.uncompressed);
}

/// How a change of what a directory uses looks to its parent, which counts what is reserved and
/// not used too.
fn parent_delta(phys: &DslDirPhys, delta: i64) -> i64 {
    accounted_delta(phys.used_bytes, phys.reserved_bytes, delta)
}

/// A dataset: a head, or a snapshot.
pub(crate) struct Ds {
    pub object: ObjectId,
    queue: Arc<DirtyQueue>,
    state: Mutex<DsState>,
    /// How many handles and operations hold it (`ds_longholds`).
    holds: AtomicU32,
    /// The object set and what goes with it, while open.
    pub open: Mutex<Option<Arc<OpenState>>>,
    /// Opening takes this, so that it is done once.
    pub opening: tokio::sync::Mutex<()>,
    /// The list of blocks that a snapshot before this one still refers to.
    pub deadlist: tokio::sync::Mutex<Option<Deadlist>>,
}

pub(crate) struct DsState {
    pub phys: DslDatasetPhys,
    pub dir: Arc<Dir>,
    /// Of a head: its previous snapshot.
    pub prev: Option<Arc<Ds>>,
    /// Name of a snapshot, once known.
    pub snapshot_name: Option<String>,
    pub is_zapified: bool,
    /// Features that its blocks need, with their values.
    pub features: BTreeMap<String, ZapValue>,
    /// Features that its blocks need since this txg.
    pub activating: BTreeSet<&'static str>,
    /// Property `refquota` in bytes, zero for none.
    pub refquota_bytes: u64,
    /// Property `refreservation` in bytes.
    pub reserved_bytes: u64,
    /// Number of user holds.
    pub user_holds: u64,
    /// Bookmarks of a head.
    pub bookmarks: SnapshotBookmarks,
    /// Blocks that died in this pass and go to the deadlist.
    pub dead: Vec<BlockPointer>,
    /// What was allocated and freed in this pass, for the livelist.
    pub live: Pending,
    /// How far a receive into it came, by parity of the txg that has what was received.
    pub received: [Option<ResumePoint>; 2],
    /// What its object set holds, once known.
    pub kind: Option<ObjsetKind>,
    pub is_dirty: bool,
    pub is_gone: bool,
}

impl Ds {
    pub(crate) fn new(object: ObjectId, queue: Arc<DirtyQueue>, state: DsState) -> Arc<Self> {
        Arc::new(Ds {
            object,
            queue,
            state: Mutex::new(state),
            holds: AtomicU32::new(0),
            open: Mutex::new(None),
            opening: tokio::sync::Mutex::new(()),
            deadlist: tokio::sync::Mutex::new(None),
        })
    }

    /// Looks.
    pub(crate) fn state(&self) -> MutexGuard<'_, DsState> {
        self.state.lock()
    }

    /// A copy of the structure.
    pub(crate) fn phys(&self) -> DslDatasetPhys {
        self.state().phys
    }

    pub(crate) fn dir(&self) -> Arc<Dir> {
        self.state().dir.clone()
    }

    pub(crate) fn prev(&self) -> Option<Arc<Ds>> {
        self.state().prev.clone()
    }

    pub(crate) fn is_snapshot(&self) -> bool {
        self.state().phys.is_snapshot()
    }

    /// Changes the structure, in syncing context.
    pub(crate) fn change<T>(self: &Arc<Self>, change: impl FnOnce(&mut DsState) -> T) -> T {
        let mut state = self.state.lock();
        let result = change(&mut state);
        if !state.is_dirty && !state.is_gone {
            state.is_dirty = true;
            self.queue
                .items
                .lock()
                .push(DirtyItem::Dataset(self.clone()));
        }
        result
    }

    pub(crate) fn hold(&self) {
        self.holds.fetch_add(1, Ordering::AcqRel);
    }

    /// Lets go; says whether that was the last hold.
    pub(crate) fn release(&self) -> bool {
        self.holds.fetch_sub(1, Ordering::AcqRel) == 1
    }

    pub(crate) fn hold_count(&self) -> u32 {
        self.holds.load(Ordering::Acquire)
    }

    /// Whether its blocks are encrypted.
    pub(crate) fn is_encrypted(&self) -> bool {
        self.state().features.contains_key(guid::ENCRYPTION)
    }

    /// The snapshots that it is redacted with, if it is (`dsl_dataset_get_uint64_array_feature`).
    pub(crate) fn redacted_with(&self) -> Option<Vec<Guid>> {
        let state = self.state();
        let guids = state.features.get(guid::REDACTED_DATASETS)?;
        Some(guids.to_u64s().into_iter().map(Guid::new).collect())
    }

    /// Whether it is one that is received into.
    pub(crate) fn is_inconsistent(&self) -> bool {
        self.phys().flags & DslDatasetPhys::FLAG_INCONSISTENT != 0
    }

    /// Its intent log, while it is open.
    pub(crate) fn open_log(&self) -> Option<Arc<Zil>> {
        self.open.lock().as_ref()?.log.clone()
    }

    /// Whether its log is at work or has a chain: nobody may take the dataset away then.
    pub(crate) fn has_busy_log(&self) -> bool {
        self.open_log().is_some_and(|log| !log.is_closed())
    }

    /// The object set, if it is open.
    pub(crate) fn open_objset(&self) -> Option<Arc<ObjectSet>> {
        self.open.lock().as_ref().map(|open| open.objset.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dir(queue: &Arc<DirtyQueue>, object: u64, parent: Option<Arc<Dir>>) -> Arc<Dir> {
        Dir::new(
            ObjectId::new(object),
            queue.clone(),
            DirState {
                phys: DslDirPhys {
                    flags: DslDirPhys::FLAG_USED_BREAKDOWN,
                    ..DslDirPhys::default()
                },
                name: format!("d{object}"),
                parent,
                origin_txg: Txg::ZERO,
                livelist: ObjectId::ZERO,
                is_zapified: false,
                to_write: [0; 2],
                is_granted: [false; 2],
                is_dirty: false,
                is_gone: false,
            },
        )
    }

    fn used(bytes: i64) -> Space {
        Space {
            used: bytes,
            compressed: bytes,
            uncompressed: bytes * 2,
        }
    }

    #[test]
    fn space_and_reservations_propagate_to_all_ancestors() {
        let queue = Arc::new(DirtyQueue::default());
        let root = dir(&queue, 1, None);
        let middle = dir(&queue, 2, Some(root.clone()));
        let leaf = dir(&queue, 3, Some(middle.clone()));
        leaf.did_use(UsedBy::Head, used(1000));
        assert_eq!(root.state().phys.used_bytes, 1000);
        assert_eq!(root.state().phys.used_breakdown, [0, 0, 1000, 0, 0]);
        leaf.set_reservation(5000);
        assert_eq!(middle.state().phys.used_breakdown, [0, 0, 1000, 4000, 0]);
        assert_eq!(root.state().phys.used_bytes, 5000);
        // Within the reservation nothing changes above, but for its kind.
        leaf.did_use(UsedBy::Head, used(500));
        assert_eq!(middle.state().phys.used_breakdown, [0, 0, 1500, 3500, 0]);
        assert_eq!(root.state().phys.used_bytes, 5000);
        leaf.did_use(UsedBy::Head, used(4500));
        assert_eq!(middle.state().phys.used_breakdown, [0, 0, 6000, 0, 0]);
        leaf.did_use(UsedBy::Head, used(-6000));
        leaf.set_reservation(0);
        for dir in [&root, &middle, &leaf] {
            let state = dir.state();
            assert_eq!(state.phys.used_bytes, 0);
            assert_eq!(state.phys.uncompressed_bytes, 0);
            assert_eq!(state.phys.used_breakdown, [0; 5]);
        }
        assert_eq!(queue.take().len(), 3);
        assert_eq!(leaf.full_name("tank"), "tank/d2/d3");
        assert!(leaf.is_within(&root) && !root.is_within(&leaf));
    }

    #[test]
    fn a_transfer_moves_between_parts_only() {
        let queue = Arc::new(DirtyQueue::default());
        let root = dir(&queue, 1, None);
        let leaf = dir(&queue, 2, Some(root.clone()));
        leaf.did_use(UsedBy::Head, used(100));
        leaf.transfer(40, UsedBy::Head, UsedBy::Snapshots);
        assert_eq!(leaf.state().phys.used_breakdown, [60, 40, 0, 0, 0]);
        assert_eq!(root.state().phys.used_breakdown, [0, 0, 100, 0, 0]);
        // A refreservation of 70 that 30 new bytes of the head come out of.
        leaf.did_use(
            UsedBy::RefReservation,
            Space {
                used: 70,
                ..Space::default()
            },
        );
        leaf.did_use_transfer(
            Space {
                used: 0,
                compressed: 30,
                uncompressed: 60,
            },
            30,
            UsedBy::RefReservation,
            UsedBy::Head,
        );
        assert_eq!(leaf.state().phys.used_breakdown, [90, 40, 0, 0, 40]);
        assert_eq!(leaf.state().phys.used_bytes, 170);
        assert_eq!(root.state().phys.used_bytes, 170);
    }
}
