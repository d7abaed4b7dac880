//! Destroying snapshots, filesystems and volumes (module/zfs/dsl_destroy.c).
//!
//! A snapshot's own blocks are on the next dataset's deadlist: they move, as whole lists, to the
//! pool's free list; what is left joins the next deadlist. A head's tree goes to the pool's queue
//! of trees. Both are freed in the background, a bounded piece in each txg.

mod background;
mod rest;
mod walk;

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use device::BoxFuture;
use format::{BlockPointer, DslDatasetPhys, ObjectId, Txg, UsedBy, names};
use object::{Bpobj, Bptree, BptreeEntry, SyncContext, Zap};
use zio::Tx;
use zio::pipeline::waits_for_devices;

use crate::DatasetError;
use crate::dsl::DslPool;
use crate::features::guid;
use crate::logs::LOG_TRIES_MAX;
use crate::name::split_snapshot;
use crate::readable::Seen;
use crate::state::{Deadlist, Dir, Ds, Space, apply, set_once};
use crate::task::{SpaceCheck, SyncTask};

/// Destroying datasets and snapshots, and freeing what they held: [`DslPool::destroyer`].
#[derive(Clone, Copy)]
pub struct Destroyer<'a> {
    pub(crate) dsl: &'a Arc<DslPool>,
}

impl DslPool {
    /// Destroying, and freeing in the background.
    pub fn destroyer(self: &Arc<Self>) -> Destroyer<'_> {
        Destroyer { dsl: self }
    }
}

impl Destroyer<'_> {
    /// Makes the directory and the list of a new pool, in syncing context.
    pub(crate) async fn create(
        &self,
        ctx: &SyncContext,
        root: &Arc<Dir>,
    ) -> Result<(), DatasetError> {
        let tx = Tx::syncing(ctx.txg);
        let state = &self.dsl.destroy_state;
        let dir = self
            .dsl
            .datasets()
            .create_dir(ctx, Some(root), names::hidden_directory::FREE)
            .await?;
        set_once(&state.free_dir, dir);
        let list = Bpobj::create(self.dsl.mos(), &tx, 0).await?;
        let object = list.id().get();
        self.dsl
            .directory
            .add_u64(&tx, names::pool::FREE_BPOBJ, object)
            .await?;
        let _ = state.free_list.set(list);
        Ok(())
    }

    /// Finds what waits in a pool that is being opened.
    pub(crate) async fn load(&self) -> Result<(), DatasetError> {
        let state = &self.dsl.destroy_state;
        let directories = self.dsl.directories();
        let root = directories.root_dir();
        let entry = |name: &'static str| self.dsl.directory.lookup_u64(name);
        if let Some(dir) = directories
            .child_dir(root, names::hidden_directory::FREE)
            .await?
        {
            set_once(&state.free_dir, dir);
        }
        *state.leak_dir.lock() = directories
            .child_dir(root, names::hidden_directory::LEAK)
            .await?;
        if let Some(object) = entry(names::pool::FREE_BPOBJ).await? {
            let list = Bpobj::open(self.dsl.mos(), object.into()).await?;
            let _ = state.free_list.set(list);
        }
        *state.bptree.lock() = entry(names::pool::BPTREE_OBJ).await?.unwrap_or(0).into();
        *state.deleted_clones.lock() = entry(names::pool::DELETED_CLONES)
            .await?
            .unwrap_or(0)
            .into();
        Ok(())
    }

    /// Whether snapshots can be destroyed now (`dsl_destroy_snapshot_check_impl`); of those of one
    /// dataset the newest come first, as they go.
    pub(crate) async fn check_destroy_snapshots(
        &self,
        doomed: &[Arc<Ds>],
        defer: bool,
    ) -> Result<(), DatasetError> {
        for snapshot in doomed {
            self.check_unneeded(snapshot, defer).await?;
        }
        // What they share (their directory, the deadlist of what follows them) is read once.
        let seen = Seen::default();
        let readable = self.dsl.readable().once(&seen);
        let mut heirs: HashMap<ObjectId, ObjectId> = HashMap::new();
        for snapshot in doomed {
            if defer && self.is_put_off(snapshot) {
                readable.dataset(snapshot).await?;
                continue;
            }
            let next = snapshot.phys().next_snapshot;
            // By then those after it that go too are gone.
            let heir = heirs.get(&next).copied().unwrap_or(next);
            heirs.insert(snapshot.object, heir);
            readable.destroyed_snapshot(snapshot, heir).await?;
        }
        Ok(())
    }

    /// Refuses a snapshot that somebody needs.
    async fn check_unneeded(&self, snapshot: &Arc<Ds>, defer: bool) -> Result<(), DatasetError> {
        let name = self.dsl.directories().full_name(snapshot).await?;
        if snapshot.hold_count() > 0 {
            return Err(DatasetError::Busy {
                name,
                reason: "it is open".into(),
            });
        }
        if defer && self.is_put_off(snapshot) {
            return Ok(());
        }
        let (user_holds, children) = {
            let state = snapshot.state();
            (state.user_holds, state.phys.children)
        };
        if user_holds > 0 {
            return Err(DatasetError::Held { name });
        }
        if children > 1 {
            return Err(DatasetError::HasClones { name });
        }
        Ok(())
    }

    /// Why snapshots cannot be destroyed now, of each that is open or held
    /// (`zfs_destroy_snaps_nvl`, lib/libzfs/libzfs_dataset.c, tells of each).
    ///
    /// # Errors
    /// [`DatasetError::NotFound`].
    pub async fn needed(
        &self,
        names: &[String],
        defer: bool,
    ) -> Result<Vec<DatasetError>, DatasetError> {
        let _config = self.dsl.config.read().await;
        let mut needed = Vec::new();
        for name in names {
            let snapshot = self.dsl.directories().resolve(name).await?;
            match self.check_unneeded(&snapshot, defer).await {
                Err(error @ (DatasetError::Busy { .. } | DatasetError::Held { .. })) => {
                    needed.push(error);
                }
                Ok(()) | Err(DatasetError::HasClones { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(needed)
    }

    /// Whether a snapshot that is to be destroyed once nobody needs it is needed now.
    fn is_put_off(&self, snapshot: &Arc<Ds>) -> bool {
        let state = snapshot.state();
        state.user_holds > 0 || state.phys.children > 1
    }

    /// Destroys a snapshot, in syncing context (`dsl_destroy_snapshot_sync_impl`).
    pub(crate) fn destroy_snapshot_now<'a>(
        &'a self,
        ctx: &'a SyncContext,
        snapshot: &'a Arc<Ds>,
        defer: bool,
    ) -> BoxFuture<'a, Result<(), DatasetError>> {
        Box::pin(async move {
            let tx = Tx::syncing(ctx.txg);
            let full_name = self.dsl.directories().full_name(snapshot).await?;
            let phys = snapshot.phys();
            if defer && self.is_put_off(snapshot) {
                snapshot.change(|state| state.phys.flags |= DslDatasetPhys::FLAG_DEFER_DESTROY);
                return self
                    .dsl
                    .history(ctx, "defer_destroy", full_name, snapshot.object, " ")
                    .await;
            }
            self.dsl
                .history(ctx, "destroy", full_name.clone(), snapshot.object, " ")
                .await?;
            self.dsl
                .env()
                .hooks
                .destroying(ctx, snapshot.object, Some(phys.next_snapshot))
                .await?;
            let dir = snapshot.dir();
            let head = self.dsl.directories().head(&dir).await?;
            let next = self.dsl.directories().dataset(phys.next_snapshot).await?;
            let keeps_key = self
                .dsl
                .bookmarks()
                .snapshot_destroyed(ctx, &head, snapshot, &next)
                .await?;
            let features: Vec<String> = snapshot.state().features.keys().cloned().collect();
            for feature in features {
                self.dsl.deactivate_feature(ctx, snapshot, &feature).await?;
            }

            // Out of the chain.
            let prev = match phys.previous_snapshot.is_zero() {
                true => None,
                false => Some(
                    self.dsl
                        .directories()
                        .dataset(phys.previous_snapshot)
                        .await?,
                ),
            };
            let mut after_branch_point = false;
            if let Some(prev) = &prev {
                let prev_phys = prev.phys();
                after_branch_point = prev_phys.next_snapshot != snapshot.object;
                if after_branch_point && !prev_phys.next_clones.is_zero() {
                    self.dsl
                        .snapshots()
                        .remove_next_clone(ctx, prev, snapshot.object)
                        .await?;
                    Zap::hold(self.dsl.mos(), prev_phys.next_clones)
                        .await?
                        .add_int(&tx, next.object.get(), next.object.get())
                        .await?;
                }
                if !after_branch_point {
                    prev.change(|state| state.phys.next_snapshot = next.object);
                }
            }
            let old_unique = next.phys().unique_bytes;
            next.change(|state| {
                state.phys.previous_snapshot = phys.previous_snapshot;
                state.phys.previous_snapshot_txg = phys.previous_snapshot_txg;
            });

            // Blocks.
            let is_old = self.dsl.deadlists().of(&next).await?.is_old();
            if is_old {
                self.destroy_old_deadlist(ctx, snapshot, prev.as_ref(), &next, after_branch_point)
                    .await?;
                *snapshot.deadlist.lock().await = None;
                let own_deadlist = snapshot.phys().deadlist;
                Deadlist::destroy(&self.dsl.lists, ctx, own_deadlist).await?;
            } else {
                self.destroy_deadlist(ctx, snapshot, prev.as_ref(), &next, after_branch_point)
                    .await?;
            }
            snapshot.change(|state| state.phys.deadlist = ObjectId::ZERO);
            self.dsl
                .deadlists()
                .remaps_destroyed(ctx, snapshot, &next, phys.previous_snapshot_txg)
                .await?;
            if !keeps_key {
                self.dsl
                    .deadlists()
                    .remove_clones_key(ctx, &dir, phys.creation_txg)
                    .await?;
            }

            if next.is_snapshot() {
                // Blocks that only these two had: born after the snapshot before, and dead by the
                // dataset after next.
                let after_next = self
                    .dsl
                    .directories()
                    .dataset(next.phys().next_snapshot)
                    .await?;
                let shared = self
                    .dsl
                    .deadlists()
                    .of(&after_next)
                    .await?
                    .space_range(
                        &self.dsl.lists,
                        phys.previous_snapshot_txg,
                        phys.creation_txg,
                    )
                    .await?;
                self.dsl.deadlists().let_go(&after_next).await;
                self.dsl.deadlists().let_go(&next).await;
                next.change(|state| apply(&mut state.phys.unique_bytes, shared.used));
                if !keeps_key {
                    self.dsl
                        .deadlists()
                        .of(&head)
                        .await?
                        .remove_key(&self.dsl.lists, ctx, phys.creation_txg)
                        .await?;
                }
                self.dsl
                    .deadlists()
                    .remove_remaps_key(ctx, &head, phys.creation_txg)
                    .await?;
            } else {
                next.change(|state| state.prev = prev.clone());
                self.dsl.deadlists().recount_unique(&next).await?;
                let (reserved, new_unique) = {
                    let state = next.state();
                    (state.reserved_bytes, state.phys.unique_bytes)
                };
                if old_unique < reserved {
                    let less = new_unique
                        .saturating_sub(old_unique)
                        .min(reserved - old_unique);
                    dir.did_use(
                        UsedBy::RefReservation,
                        Space {
                            used: -(less as i64),
                            ..Space::default()
                        },
                    );
                }
            }

            // Out of the names.
            let (_, name) = split_snapshot(&full_name);
            Zap::hold(self.dsl.mos(), head.phys().snapshot_names)
                .await?
                .remove(&tx, name.unwrap_or_default())
                .await?;
            self.dsl
                .limits()
                .adjust(ctx, &dir, -1, names::directory::SNAPSHOT_COUNT)
                .await?;
            self.dsl
                .snapshots()
                .note_snapshots_changed(ctx, &dir)
                .await?;
            for zap in [phys.next_clones, phys.properties, phys.user_references] {
                if !zap.is_zero() {
                    self.dsl.mos().free(&tx, zap).await?;
                }
            }
            let is_zapified = snapshot.state().is_zapified;
            self.forget(snapshot);
            self.dsl
                .free_zapified(ctx, snapshot.object, is_zapified)
                .await
        })
    }

    /// Of what `next` has on its deadlist, what only the snapshot had is freed; the snapshot's own
    /// deadlist joins it, and is freed. Where many go, `next` stays loaded meanwhile, and each list
    /// of blocks moves once: those that go are the newest first, so `next` is one that stays.
    async fn destroy_deadlist(
        &self,
        ctx: &SyncContext,
        snapshot: &Arc<Ds>,
        prev: Option<&Arc<Ds>>,
        next: &Arc<Ds>,
        after_branch_point: bool,
    ) -> Result<(), DatasetError> {
        let (phys, dir) = (snapshot.phys(), snapshot.dir());
        let free_list = self.dsl.destroy_state.free_list.get().ok_or_else(|| {
            DatasetError::corrupt(ObjectId::POOL_DIRECTORY, "the pool has no free list")
        })?;
        if let Some(prev) = prev
            && !after_branch_point
        {
            // What the snapshot before now has alone.
            let from = prev.phys().previous_snapshot_txg;
            let space = self
                .dsl
                .deadlists()
                .of(next)
                .await?
                .space_range(&self.dsl.lists, from, phys.previous_snapshot_txg)
                .await?;
            prev.change(|state| apply(&mut state.phys.unique_bytes, space.used));
        }
        let own = self.dsl.deadlists().take(snapshot).await?;
        let mut slot = next.deadlist.lock().await;
        let mut list = match slot.take() {
            Some(list) => list,
            None => Deadlist::open(self.dsl.mos(), next.phys().deadlist).await?,
        };
        let freed = list
            .space_range(
                &self.dsl.lists,
                phys.previous_snapshot_txg,
                Txg::new(u64::MAX),
            )
            .await?;
        dir.did_use(UsedBy::Snapshots, freed.negated());
        list.move_to(&self.dsl.lists, ctx, free_list, phys.previous_snapshot_txg)
            .await?;
        if let Some(free_dir) = self.free_dir() {
            free_dir.did_use(UsedBy::Head, freed);
        }
        list.absorb(&self.dsl.lists, ctx, own).await?;
        *slot = Some(list);
        Ok(())
    }

    /// The same for deadlists of pools before version 26 (`process_old_deadlist`): block by block,
    /// and then the two datasets swap their lists.
    async fn destroy_old_deadlist(
        &self,
        ctx: &SyncContext,
        snapshot: &Arc<Ds>,
        prev: Option<&Arc<Ds>>,
        next: &Arc<Ds>,
        after_branch_point: bool,
    ) -> Result<(), DatasetError> {
        let pipeline = &self.dsl.env().pipeline;
        let phys = snapshot.phys();
        let mut freed = Space::default();
        let mut prev_unique = 0i64;
        let mut seen = 0;
        loop {
            let blocks = self
                .dsl
                .deadlists()
                .of(next)
                .await?
                .old_blocks(seen)
                .await?;
            if blocks.is_empty() {
                break;
            }
            seen += blocks.len() as u64;
            let mut kept: Vec<BlockPointer> = Vec::new();
            for block in blocks {
                let space = Space::of(pipeline, &block);
                if block.birth() <= phys.previous_snapshot_txg {
                    kept.push(block);
                    if let Some(prev) = prev
                        && !after_branch_point
                        && block.birth() > prev.state().phys.previous_snapshot_txg
                    {
                        prev_unique += space.used;
                    }
                } else {
                    freed.add(space);
                    pipeline.free(ctx.txg, &block);
                }
            }
            let mut own = self.dsl.deadlists().of(snapshot).await?;
            own.insert(&self.dsl.lists, ctx, &kept).await?;
        }
        if let Some(prev) = prev {
            prev.change(|state| apply(&mut state.phys.unique_bytes, prev_unique));
        }
        snapshot.dir().did_use(UsedBy::Snapshots, freed.negated());
        let (ours, theirs) = (snapshot.phys().deadlist, next.phys().deadlist);
        snapshot.change(|state| state.phys.deadlist = theirs);
        next.change(|state| state.phys.deadlist = ours);
        Ok(())
    }

    /// Whether a head can be destroyed now (`dsl_destroy_head_check_impl`).
    pub(crate) async fn check_destroy_head(&self, head: &Arc<Ds>) -> Result<(), DatasetError> {
        let name = self.dsl.directories().full_name(head).await?;
        if head.hold_count() > 0 || head.has_busy_log() {
            return Err(DatasetError::Busy {
                name,
                reason: "it is open or mounted".into(),
            });
        }
        let dir = head.dir();
        let names = head.phys().snapshot_names;
        if Zap::hold(self.dsl.mos(), names).await?.count().await? > 0 {
            return Err(DatasetError::HasSnapshots { name });
        }
        if let Some(prev) = head.prev()
            && prev.phys().next_snapshot == head.object
        {
            return Err(DatasetError::HasSnapshots { name });
        }
        let children = dir.state().phys.child_directories;
        if Zap::hold(self.dsl.mos(), children).await?.count().await? > 0 {
            return Err(DatasetError::HasChildren { name });
        }
        if self.origin_goes_too(head)
            && let Some(prev) = head.prev()
        {
            if prev.hold_count() > 0 {
                return Err(DatasetError::Busy {
                    name,
                    reason: "its origin is open".into(),
                });
            }
            let heir = prev.phys().next_snapshot;
            self.dsl.readable().destroyed_snapshot(&prev, heir).await?;
        }
        self.dsl.readable().destroyed_head(head).await
    }

    /// Whether this is the last clone of a snapshot that waits to be destroyed.
    fn origin_goes_too(&self, head: &Arc<Ds>) -> bool {
        let Some(prev) = head.prev() else {
            return false;
        };
        if self
            .dsl
            .directories()
            .origin()
            .is_some_and(|empty| Arc::ptr_eq(empty, &prev))
        {
            return false;
        }
        let state = prev.state();
        state.phys.flags & DslDatasetPhys::FLAG_DEFER_DESTROY != 0
            && state.phys.children == 2
            && state.user_holds == 0
    }

    /// Destroys a head with its directory, in syncing context (`dsl_destroy_head_sync_impl`).
    pub(crate) async fn destroy_head_now(
        &self,
        ctx: &SyncContext,
        head: &Arc<Ds>,
    ) -> Result<(), DatasetError> {
        let tx = Tx::syncing(ctx.txg);
        let full_name = self.dsl.directories().full_name(head).await?;
        let origin_goes_too = self.origin_goes_too(head);
        let dir = head.dir();
        self.dsl.space().set_refreservation(head, 0);
        let features: Vec<String> = head.state().features.keys().cloned().collect();
        for feature in features {
            self.dsl.deactivate_feature(ctx, head, &feature).await?;
        }
        let prev = head.prev();
        if let Some(prev) = &prev {
            if !prev.phys().next_clones.is_zero() {
                self.dsl
                    .snapshots()
                    .remove_next_clone(ctx, prev, head.object)
                    .await?;
            }
            prev.change(|state| state.phys.children = state.phys.children.saturating_sub(1));
        }
        let phys = head.phys();
        *head.deadlist.lock().await = None;
        Deadlist::destroy(&self.dsl.lists, ctx, phys.deadlist).await?;
        head.change(|state| state.phys.deadlist = ObjectId::ZERO);
        self.dsl.deadlists().destroy_remaps(ctx, head).await?;
        // The log, then the tree.
        if !phys.block.is_hole() {
            let header = match head.open_objset() {
                Some(objset) => Ok(objset.zil_header()),
                None => waits_for_devices(self.dsl.logs().stored_head(head)).await,
            };
            match header {
                Ok(header) => self.dsl.logs().free(ctx, head, &header).await,
                // OpenZFS refuses to destroy such a dataset (`zfs_ioc_destroy`,
                // module/zfs/zfs_ioctl.c), which leaves it for good.
                Err(error) => tracing::warn!(
                    dataset = full_name, %error,
                    "a destroyed dataset cannot be read: the space of its intent log, if it has \
                     one, is lost until the pool is checked"
                ),
            }
            *head.open.lock() = None;
        }
        self.dsl
            .env()
            .hooks
            .destroying(ctx, head.object, None)
            .await?;
        let used = {
            let state = dir.state();
            Space {
                used: state.phys.used_bytes as i64,
                compressed: state.phys.compressed_bytes as i64,
                uncompressed: state.phys.uncompressed_bytes as i64,
            }
        };
        let deadlists = self.dsl.deadlists();
        let (text, waits) = match deadlists.delete_by_livelist(ctx, &dir, used).await? {
            Some((space, first)) => (format!("(livelist, mintxg={first})"), space),
            None => {
                let before = phys.previous_snapshot_txg;
                if self.dsl.features().is_enabled(guid::ASYNC_DESTROY) {
                    self.queue_tree(ctx, phys.block, before, used).await?;
                    (format!("(bptree, mintxg={before})"), used)
                } else {
                    let mut lost = used;
                    let freed = self.free_tree_now(ctx, &phys.block, before).await;
                    lost.add(freed.negated());
                    (format!("(synchronous, mintxg={before})"), lost)
                }
            }
        };
        self.dsl
            .history(ctx, "destroy", full_name, head.object, text)
            .await?;
        dir.did_use(UsedBy::Head, used.negated());
        if let Some(free_dir) = self.free_dir() {
            free_dir.did_use(UsedBy::Head, waits);
        }

        if let Some(prev) = &prev {
            let clones = prev.dir().state().phys.clones;
            if !clones.is_zero() {
                Zap::hold(self.dsl.mos(), clones)
                    .await?
                    .remove_int(&tx, head.object.get())
                    .await?;
            }
        }
        dir.change(|state| state.phys.head_dataset = ObjectId::ZERO);
        self.dsl.mos().free(&tx, phys.snapshot_names).await?;
        self.dsl.bookmarks().free_all(ctx, head).await?;
        self.dsl.env().hooks.destroyed(head.object);
        let is_zapified = head.state().is_zapified;
        self.forget(head);
        self.dsl
            .free_zapified(ctx, head.object, is_zapified)
            .await?;
        self.destroy_dir(ctx, &dir).await?;
        if origin_goes_too && let Some(prev) = prev {
            self.destroy_snapshot_now(ctx, &prev, false).await?;
        }
        Ok(())
    }

    /// Forgets what is in memory of a dataset that was destroyed. The MOS gives its number to
    /// another object, which must not have this one's key.
    fn forget(&self, dataset: &Arc<Ds>) {
        self.dsl.registry.forget_dataset(dataset);
        let objset = dataset.object.get().into();
        self.dsl.env().pipeline.keys().forget(objset);
    }

    /// Frees a directory that has no dataset any more (`dsl_dir_destroy_sync`).
    async fn destroy_dir(&self, ctx: &SyncContext, dir: &Arc<Dir>) -> Result<(), DatasetError> {
        let tx = Tx::syncing(ctx.txg);
        dir.set_reservation(0);
        let (phys, name, parent, is_zapified) = {
            let state = dir.state();
            (
                state.phys,
                state.name.clone(),
                state.parent.clone(),
                state.is_zapified,
            )
        };
        if phys.used_bytes != 0 || phys.reserved_bytes != 0 {
            let used = phys.used_bytes;
            tracing::warn!(%name, used, "a destroyed directory still counted space");
        }
        if let Some(parent) = &parent {
            self.dsl
                .limits()
                .adjust(ctx, parent, -1, names::directory::FILESYSTEM_COUNT)
                .await?;
            let children = parent.state().phys.child_directories;
            Zap::hold(self.dsl.mos(), children)
                .await?
                .remove(&tx, &name)
                .await?;
        }
        self.dsl.keys().release(ctx, dir).await?;
        if !phys.delegation.is_zero() {
            // A ZAP of ZAPs.
            for entry in Zap::hold(self.dsl.mos(), phys.delegation)
                .await?
                .all()
                .await?
            {
                if let Some(zap) = entry.value.as_u64() {
                    self.dsl.mos().free(&tx, zap.into()).await?;
                }
            }
        }
        for zap in [
            phys.child_directories,
            phys.properties,
            phys.clones,
            phys.delegation,
        ] {
            if !zap.is_zero() {
                self.dsl.mos().free(&tx, zap).await?;
            }
        }
        self.dsl.registry.forget_dir(dir);
        self.dsl.free_zapified(ctx, dir.object, is_zapified).await
    }

    /// Queues a tree to be freed in the background (`dsl_async_dataset_destroy`).
    async fn queue_tree(
        &self,
        ctx: &SyncContext,
        root: BlockPointer,
        after: Txg,
        space: Space,
    ) -> Result<(), DatasetError> {
        let tx = Tx::syncing(ctx.txg);
        if root.is_hole() && space.is_zero() {
            return Ok(());
        }
        let existing = *self.dsl.destroy_state.bptree.lock();
        let queue = if existing.is_zero() {
            let queue = Bptree::create(self.dsl.mos(), &tx).await?;
            self.dsl
                .directory
                .add_u64(&tx, names::pool::BPTREE_OBJ, queue.id().get())
                .await?;
            self.dsl
                .features()
                .increment(ctx, guid::ASYNC_DESTROY)
                .await?;
            *self.dsl.destroy_state.bptree.lock() = queue.id();
            queue
        } else {
            Bptree::open(self.dsl.mos(), existing).await?
        };
        let entry = BptreeEntry {
            root,
            birth_txg: after,
            bookmark: [0; 4],
        };
        queue.add(&tx, entry, space.into()).await?;
        Ok(())
    }

    /// Destroys one filesystem or volume, without children or snapshots, or one snapshot without
    /// clones.
    ///
    /// # Errors
    /// [`DatasetError::NotFound`], [`DatasetError::Busy`], [`DatasetError::HasChildren`],
    /// [`DatasetError::HasSnapshots`], [`DatasetError::HasClones`], [`DatasetError::Held`].
    pub async fn destroy(&self, name: &str) -> Result<(), DatasetError> {
        let mut attempts = 0;
        loop {
            self.dsl.logs().settle(name).await;
            let task = DestroyTask {
                dsl: self.dsl.clone(),
                names: vec![name.to_owned()],
                defer: false,
            };
            match self.dsl.tasks().run(Arc::new(task)).await {
                // Its log was being closed at that very moment.
                Err(DatasetError::Busy { .. })
                    if attempts < LOG_TRIES_MAX && self.dsl.logs().is_unused(name).await =>
                {
                    attempts += 1;
                }
                Err(DatasetError::HasChildren { name: parent })
                    if attempts < LOG_TRIES_MAX && self.destroy_rest_below(name).await? =>
                {
                    tracing::info!(dataset = parent, "its interrupted receive is given up");
                    attempts += 1;
                }
                other => return other,
            }
        }
    }

    /// Destroys snapshots, all of them or none; with `defer`, those in use once they are not any
    /// more.
    ///
    /// # Errors
    /// As [`Self::destroy`], of the first that cannot be destroyed.
    pub async fn destroy_snapshots(
        &self,
        names: &[String],
        defer: bool,
    ) -> Result<(), DatasetError> {
        if let Some(head) = names.iter().find(|name| !name.contains('@')) {
            return Err(DatasetError::WrongKind {
                name: head.clone(),
                reason: "it is not a snapshot".into(),
            });
        }
        self.dsl
            .tasks()
            .run(Arc::new(DestroyTask {
                dsl: self.dsl.clone(),
                names: names.to_vec(),
                defer,
            }))
            .await?;
        self.dsl.fulfilled("destroy_snaps", "snaps", names);
        Ok(())
    }

    /// The task that destroys one dataset or snapshot, for who runs tasks in syncing context
    /// ([`crate::ProgramPool`]).
    pub fn destroy_task(&self, name: &str, defer: bool) -> Arc<dyn SyncTask> {
        Arc::new(DestroyTask {
            dsl: self.dsl.clone(),
            names: vec![name.to_owned()],
            defer,
        })
    }
}

struct DestroyTask {
    dsl: Arc<DslPool>,
    names: Vec<String>,
    defer: bool,
}

impl DestroyTask {
    /// What is to be destroyed, each once.
    async fn named(&self) -> Result<Vec<Arc<Ds>>, DatasetError> {
        let (mut named, mut seen) = (Vec::new(), HashSet::new());
        for name in &self.names {
            let dataset = self.dsl.directories().resolve(name).await?;
            if seen.insert(dataset.object) {
                named.push(dataset);
            }
        }
        Ok(named)
    }

    /// The same from the newest to the oldest, so that what one snapshot has goes at once to where
    /// it stays, and not on to the next one that goes.
    async fn doomed(&self) -> Result<Vec<Arc<Ds>>, DatasetError> {
        let mut doomed = self.named().await?;
        doomed.sort_by_cached_key(|dataset| Reverse(dataset.phys().creation_txg));
        Ok(doomed)
    }

    async fn do_check(&self) -> Result<(), DatasetError> {
        if self.defer && !self.dsl.pool_version().has_holds() {
            return Err(DatasetError::Unsupported {
                name: self.names.first().cloned().unwrap_or_default(),
                what: "putting off a destroy in a pool of a version before 18".into(),
            });
        }
        let destroyer = self.dsl.destroyer();
        // Of several that are needed the first one is told of.
        for dataset in self.named().await? {
            if dataset.is_snapshot() {
                destroyer.check_unneeded(&dataset, self.defer).await?;
            }
        }
        let (snapshots, heads): (Vec<_>, Vec<_>) =
            (self.doomed().await?.into_iter()).partition(|dataset| dataset.is_snapshot());
        for head in heads {
            if Arc::ptr_eq(&head.dir(), self.dsl.directories().root_dir()) {
                return Err(DatasetError::WrongKind {
                    name: self.dsl.directories().full_name(&head).await?,
                    reason: "operation does not apply to pools; use 'zpool destroy'".into(),
                });
            }
            destroyer.check_destroy_head(&head).await?;
        }
        destroyer
            .check_destroy_snapshots(&snapshots, self.defer)
            .await
    }

    async fn do_apply(&self, ctx: &SyncContext) -> Result<(), DatasetError> {
        let destroyer = self.dsl.destroyer();
        for dataset in self.doomed().await? {
            if dataset.is_snapshot() {
                destroyer
                    .destroy_snapshot_now(ctx, &dataset, self.defer)
                    .await?;
            } else {
                destroyer.destroy_head_now(ctx, &dataset).await?;
            }
        }
        Ok(())
    }
}

impl SyncTask for DestroyTask {
    fn name(&self) -> &'static str {
        "destroy"
    }
    fn space_check(&self) -> SpaceCheck {
        SpaceCheck::ExtraReserved
    }
    fn check<'a>(&'a self, _ctx: &'a SyncContext) -> BoxFuture<'a, Result<(), DatasetError>> {
        Box::pin(self.do_check())
    }
    fn apply<'a>(&'a self, ctx: &'a SyncContext) -> BoxFuture<'a, Result<(), DatasetError>> {
        Box::pin(self.do_apply(ctx))
    }
}

impl Destroyer<'_> {
    /// Space that would come free if the snapshots from `first` to `last` of one dataset were
    /// destroyed: what was born after the snapshot before them and died before the one after them
    /// (`dsl_dataset_space_wouldfree`).
    ///
    /// # Errors
    /// [`DatasetError::NotFound`]; [`DatasetError::WrongKind`] where they are no such range.
    pub async fn space_freed_with(&self, first: &str, last: &str) -> Result<u64, DatasetError> {
        let _config = self.dsl.config.read().await;
        let (first_ds, last_ds) = (
            self.dsl.directories().resolve(first).await?,
            self.dsl.directories().resolve(last).await?,
        );
        let no_range = || DatasetError::WrongKind {
            name: first.to_owned(),
            reason: format!("it is not an earlier snapshot of the dataset of {last}"),
        };
        if !first_ds.is_snapshot()
            || !last_ds.is_snapshot()
            || !Arc::ptr_eq(&first_ds.dir(), &last_ds.dir())
        {
            return Err(no_range());
        }
        let since = first_ds.phys().previous_snapshot_txg;
        let mut total = 0i64;
        let next = last_ds.phys().next_snapshot;
        let mut at = self.dsl.directories().dataset(next).await?;
        while at.object != first_ds.object {
            let deadlist = at.phys().deadlist;
            total += Deadlist::open(self.dsl.mos(), deadlist)
                .await?
                .space_range(&self.dsl.lists, since, Txg::new(u64::MAX))
                .await?
                .used;
            let before = self.dsl.directories().before(&at).await?;
            at = before.ok_or_else(no_range)?;
        }
        Ok(total.max(0) as u64)
    }
}
