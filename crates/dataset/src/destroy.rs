//! Destroying snapshots, filesystems and volumes (module/zfs/dsl_destroy.c).
//!
//! A snapshot's own blocks are on the next dataset's deadlist: they move, as whole lists, to the
//! pool's free list; what is left joins the next deadlist. A head's tree goes to the pool's queue
//! of trees. Both are freed in the background, a bounded piece in each txg.

use std::sync::Arc;

use device::BoxFuture;
use format::{BlockPointer, DslDatasetPhys, ObjectId, Txg, UsedBy};
use object::{Bptree, BptreeEntry, SyncContext, Zap};
use zio::Tx;

use crate::DatasetError;
use crate::create::{FILESYSTEM_COUNT, SNAPSHOT_COUNT};
use crate::deadlist::Deadlist;
use crate::dsl::{BPTREE_OBJ, DslPool};
use crate::features::guid;
use crate::logs::LOG_TRIES_MAX;
use crate::name::split_snapshot;
use crate::state::{Dir, Ds, Space, apply};
use crate::task::{SpaceCheck, SyncTask};

impl DslPool {
    /// Whether a snapshot can be destroyed now (`dsl_destroy_snapshot_check_impl`).
    pub(crate) async fn check_destroy_snapshot(
        &self,
        snapshot: &Arc<Ds>,
        defer: bool,
    ) -> Result<(), DatasetError> {
        let name = self.full_name(snapshot).await?;
        if snapshot.hold_count() > 0 {
            return Err(DatasetError::Busy {
                name,
                reason: "it is open".into(),
            });
        }
        if defer {
            return Ok(());
        }
        let state = snapshot.state();
        if state.user_holds > 0 {
            return Err(DatasetError::Held { name });
        }
        if state.phys.children > 1 {
            return Err(DatasetError::HasClones { name });
        }
        Ok(())
    }

    /// Destroys a snapshot, in syncing context (`dsl_destroy_snapshot_sync_impl`).
    pub(crate) async fn destroy_snapshot_now(
        &self,
        ctx: &SyncContext,
        snapshot: &Arc<Ds>,
        defer: bool,
    ) -> Result<(), DatasetError> {
        let tx = Tx::syncing(ctx.txg);
        let full_name = self.full_name(snapshot).await?;
        let (phys, user_holds) = {
            let state = snapshot.state();
            (state.phys, state.user_holds)
        };
        if defer && (user_holds > 0 || phys.children > 1) {
            snapshot.change(|state| state.phys.flags |= DslDatasetPhys::FLAG_DEFER_DESTROY);
            return self
                .history(ctx, "defer_destroy", full_name, snapshot.object, " ")
                .await;
        }
        self.history(ctx, "destroy", full_name.clone(), snapshot.object, " ")
            .await?;
        self.env().hooks.destroying(ctx, snapshot.object).await?;
        let dir = snapshot.dir();
        let head = self.head(&dir).await?;
        let next = self.dataset(phys.next_snapshot).await?;
        let keeps_key = self
            .bookmarks_snapshot_destroyed(ctx, &head, snapshot, &next)
            .await?;
        let features: Vec<String> = snapshot.state().features.keys().cloned().collect();
        for feature in features {
            self.deactivate_feature(ctx, snapshot, &feature).await?;
        }

        // Out of the chain.
        let prev = match phys.previous_snapshot.is_zero() {
            true => None,
            false => Some(self.dataset(phys.previous_snapshot).await?),
        };
        let mut after_branch_point = false;
        if let Some(prev) = &prev {
            let prev_phys = prev.phys();
            after_branch_point = prev_phys.next_snapshot != snapshot.object;
            if after_branch_point && !prev_phys.next_clones.is_zero() {
                self.remove_next_clone(ctx, prev, snapshot.object).await?;
                Zap::hold(self.mos(), prev_phys.next_clones)
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
        let is_old = self.deadlist(&next).await?.is_old();
        if is_old {
            self.destroy_old_deadlist(ctx, snapshot, prev.as_ref(), &next, after_branch_point)
                .await?;
        } else {
            self.destroy_deadlist(ctx, &dir, &phys, prev.as_ref(), &next, after_branch_point)
                .await?;
        }
        *snapshot.deadlist.lock().await = None;
        let own_deadlist = snapshot.phys().deadlist;
        Deadlist::destroy(self, ctx, own_deadlist).await?;
        snapshot.change(|state| state.phys.deadlist = ObjectId::ZERO);
        self.remaps_destroyed(ctx, snapshot, &next, phys.previous_snapshot_txg)
            .await?;
        if !keeps_key {
            self.remove_clones_key(ctx, &dir, phys.creation_txg).await?;
        }

        if next.is_snapshot() {
            // Blocks that only these two had: born after the snapshot before, and dead by the
            // dataset after next.
            let after_next = self.dataset(next.phys().next_snapshot).await?;
            let shared = self
                .deadlist(&after_next)
                .await?
                .space_range(self, phys.previous_snapshot_txg, phys.creation_txg)
                .await?;
            self.unload_deadlist(&after_next).await;
            self.unload_deadlist(&next).await;
            next.change(|state| apply(&mut state.phys.unique_bytes, shared.used));
            if !keeps_key {
                self.deadlist(&head)
                    .await?
                    .remove_key(self, ctx, phys.creation_txg)
                    .await?;
            }
            self.remove_remaps_key(ctx, &head, phys.creation_txg)
                .await?;
        } else {
            next.change(|state| state.prev = prev.clone());
            self.recount_unique(&next).await?;
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
        Zap::hold(self.mos(), head.phys().snapshot_names)
            .await?
            .remove(&tx, name.unwrap_or_default())
            .await?;
        self.adjust_count(ctx, &dir, -1, SNAPSHOT_COUNT).await?;
        self.note_snapshots_changed(ctx, &dir).await?;
        for zap in [phys.next_clones, phys.properties, phys.user_references] {
            if !zap.is_zero() {
                self.mos().free(&tx, zap).await?;
            }
        }
        let is_zapified = snapshot.state().is_zapified;
        self.forget_dataset(snapshot);
        self.free_zapified(ctx, snapshot.object, is_zapified).await
    }

    async fn destroy_deadlist(
        &self,
        ctx: &SyncContext,
        dir: &Arc<Dir>,
        phys: &DslDatasetPhys,
        prev: Option<&Arc<Ds>>,
        next: &Arc<Ds>,
        after_branch_point: bool,
    ) -> Result<(), DatasetError> {
        let free_list = self.free_list.get().ok_or_else(|| {
            DatasetError::corrupt(ObjectId::POOL_DIRECTORY, "the pool has no free list")
        })?;
        if let Some(prev) = prev
            && !after_branch_point
        {
            // What the snapshot before now has alone.
            let from = prev.phys().previous_snapshot_txg;
            let space = self
                .deadlist(next)
                .await?
                .space_range(self, from, phys.previous_snapshot_txg)
                .await?;
            prev.change(|state| apply(&mut state.phys.unique_bytes, space.used));
        }
        let mut slot = next.deadlist.lock().await;
        let mut list = match slot.take() {
            Some(list) => list,
            None => Deadlist::open(self.mos(), next.phys().deadlist).await?,
        };
        let freed = list
            .space_range(self, phys.previous_snapshot_txg, Txg::new(u64::MAX))
            .await?;
        dir.did_use(UsedBy::Snapshots, freed.negated());
        list.move_to(self, ctx, free_list, phys.previous_snapshot_txg)
            .await?;
        if let Some(free_dir) = self.free_dir() {
            free_dir.did_use(UsedBy::Head, freed);
        }
        list.merge(self, ctx, phys.deadlist).await?;
        if !next.is_snapshot() {
            *slot = Some(list);
        }
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
        let pipeline = &self.env().pipeline;
        let phys = snapshot.phys();
        let blocks = self.deadlist(next).await?.old_blocks().await?;
        let mut kept: Vec<BlockPointer> = Vec::new();
        let mut freed = Space::default();
        let mut prev_unique = 0i64;
        for (block, _) in blocks {
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
        if let Some(prev) = prev {
            prev.change(|state| apply(&mut state.phys.unique_bytes, prev_unique));
        }
        self.deadlist(snapshot)
            .await?
            .insert(self, ctx, &kept)
            .await?;
        snapshot.dir().did_use(UsedBy::Snapshots, freed.negated());
        let (ours, theirs) = (snapshot.phys().deadlist, next.phys().deadlist);
        snapshot.change(|state| state.phys.deadlist = theirs);
        next.change(|state| state.phys.deadlist = ours);
        Ok(())
    }

    /// Unique bytes of a head: what it refers to, without what its previous snapshot has too
    /// (`dsl_dataset_recalc_head_uniq`).
    pub(crate) async fn recount_unique(&self, head: &Arc<Ds>) -> Result<(), DatasetError> {
        let shared = match head.prev() {
            Some(prev) => prev.phys().referenced_bytes,
            None => 0,
        };
        let dead = self.deadlist(head).await?.space().await?;
        head.change(|state| {
            let still_shared = shared.saturating_add_signed(-dead.used);
            state.phys.unique_bytes = state.phys.referenced_bytes.saturating_sub(still_shared);
            state.phys.flags |= DslDatasetPhys::FLAG_UNIQUE_ACCURATE;
        });
        Ok(())
    }

    /// Removes a destroyed snapshot's key from the deadlists of all clones made after it
    /// (`dsl_dir_remove_clones_key`).
    pub(crate) async fn remove_clones_key(
        &self,
        ctx: &SyncContext,
        dir: &Arc<Dir>,
        key: Txg,
    ) -> Result<(), DatasetError> {
        let mut pending = vec![dir.clone()];
        while let Some(dir) = pending.pop() {
            let clones = dir.state().phys.clones;
            if clones.is_zero() {
                continue;
            }
            for entry in Zap::hold(self.mos(), clones).await?.all().await? {
                let clone = self
                    .dataset(entry.value.as_u64().unwrap_or(0).into())
                    .await?;
                let clone_dir = clone.dir();
                if clone_dir.state().origin_txg > key {
                    self.deadlist(&clone)
                        .await?
                        .remove_key(self, ctx, key)
                        .await?;
                    self.remove_remaps_key(ctx, &clone, key).await?;
                    pending.push(clone_dir);
                }
            }
        }
        Ok(())
    }

    /// Whether a head can be destroyed now (`dsl_destroy_head_check_impl`).
    pub(crate) async fn check_destroy_head(&self, head: &Arc<Ds>) -> Result<(), DatasetError> {
        let name = self.full_name(head).await?;
        if head.hold_count() > 0 || head.has_busy_log() {
            return Err(DatasetError::Busy {
                name,
                reason: "it is open or mounted".into(),
            });
        }
        let dir = head.dir();
        let names = head.phys().snapshot_names;
        if Zap::hold(self.mos(), names).await?.count().await? > 0 {
            return Err(DatasetError::HasSnapshots { name });
        }
        if let Some(prev) = head.prev()
            && prev.phys().next_snapshot == head.object
        {
            return Err(DatasetError::HasSnapshots { name });
        }
        let children = dir.state().phys.child_directories;
        if Zap::hold(self.mos(), children).await?.count().await? > 0 {
            return Err(DatasetError::HasChildren { name });
        }
        if self.origin_goes_too(head) && head.prev().is_some_and(|prev| prev.hold_count() > 0) {
            return Err(DatasetError::Busy {
                name,
                reason: "its origin is open".into(),
            });
        }
        Ok(())
    }

    /// Whether this is the last clone of a snapshot that waits to be destroyed.
    fn origin_goes_too(&self, head: &Arc<Ds>) -> bool {
        let Some(prev) = head.prev() else {
            return false;
        };
        if self.origin().is_some_and(|empty| Arc::ptr_eq(empty, &prev)) {
            return false;
        }
        let state = prev.state();
        state.phys.flags & DslDatasetPhys::FLAG_DEFER_DESTROY != 0
            && state.phys.children == 2
            && state.user_holds == 0
    }

    /// Destroys a head with its directory, in syncing context (`dsl_destroy_head_sync_impl`).
    pub(crate) async fn destroy_head_now(
        self: &Arc<Self>,
        ctx: &SyncContext,
        head: &Arc<Ds>,
    ) -> Result<(), DatasetError> {
        let tx = Tx::syncing(ctx.txg);
        let full_name = self.full_name(head).await?;
        let origin_goes_too = self.origin_goes_too(head);
        let dir = head.dir();
        self.set_refreservation(head, 0);
        let features: Vec<String> = head.state().features.keys().cloned().collect();
        for feature in features {
            self.deactivate_feature(ctx, head, &feature).await?;
        }
        let prev = head.prev();
        if let Some(prev) = &prev {
            if !prev.phys().next_clones.is_zero() {
                self.remove_next_clone(ctx, prev, head.object).await?;
            }
            prev.change(|state| state.phys.children = state.phys.children.saturating_sub(1));
        }
        let phys = head.phys();
        *head.deadlist.lock().await = None;
        Deadlist::destroy(self, ctx, phys.deadlist).await?;
        head.change(|state| state.phys.deadlist = ObjectId::ZERO);
        self.destroy_remaps(ctx, head).await?;
        self.remove_livelist(ctx, &dir).await?;

        // The log, then the tree.
        if !phys.block.is_hole() {
            let header = match head.open_objset() {
                Some(objset) => objset.zil_header(),
                None => self.stored_log_head(head).await?,
            };
            self.free_log(ctx, &header).await;
            *head.open.lock() = None;
        }
        let text = format!("(bptree, mintxg={})", phys.previous_snapshot_txg);
        self.history(ctx, "destroy", full_name, head.object, text)
            .await?;
        self.env().hooks.destroying(ctx, head.object).await?;
        let used = {
            let state = dir.state();
            Space {
                used: state.phys.used_bytes as i64,
                compressed: state.phys.compressed_bytes as i64,
                uncompressed: state.phys.uncompressed_bytes as i64,
            }
        };
        self.queue_tree(ctx, phys.block, phys.previous_snapshot_txg, used)
            .await?;
        dir.did_use(UsedBy::Head, used.negated());
        if let Some(free_dir) = self.free_dir() {
            free_dir.did_use(UsedBy::Head, used);
        }

        if let Some(prev) = &prev {
            let clones = prev.dir().state().phys.clones;
            if !clones.is_zero() {
                Zap::hold(self.mos(), clones)
                    .await?
                    .remove_int(&tx, head.object.get())
                    .await?;
            }
        }
        dir.change(|state| state.phys.head_dataset = ObjectId::ZERO);
        self.mos().free(&tx, phys.snapshot_names).await?;
        self.free_bookmarks(ctx, head).await?;
        self.env().hooks.destroyed(head.object);
        let is_zapified = head.state().is_zapified;
        self.forget_dataset(head);
        self.free_zapified(ctx, head.object, is_zapified).await?;
        self.destroy_dir(ctx, &dir).await?;
        if origin_goes_too && let Some(prev) = prev {
            self.destroy_snapshot_now(ctx, &prev, false).await?;
        }
        Ok(())
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
            tracing::warn!(%name, used = phys.used_bytes, "a destroyed directory still counted space");
        }
        if let Some(parent) = &parent {
            self.adjust_count(ctx, parent, -1, FILESYSTEM_COUNT).await?;
            let children = parent.state().phys.child_directories;
            Zap::hold(self.mos(), children)
                .await?
                .remove(&tx, &name)
                .await?;
        }
        self.release_key(ctx, dir).await?;
        if !phys.delegation.is_zero() {
            // A ZAP of ZAPs.
            for entry in Zap::hold(self.mos(), phys.delegation).await?.all().await? {
                if let Some(zap) = entry.value.as_u64() {
                    self.mos().free(&tx, zap.into()).await?;
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
                self.mos().free(&tx, zap).await?;
            }
        }
        self.forget_dir(dir);
        self.free_zapified(ctx, dir.object, is_zapified).await
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
        if !self.features().is_enabled(guid::ASYNC_DESTROY) {
            return Err(DatasetError::Unsupported {
                name: self.pool_name(),
                what: "destroying a dataset without feature async_destroy".into(),
            });
        }
        let existing = *self.bptree.lock();
        let queue = if existing.is_zero() {
            let queue = Bptree::create(self.mos(), &tx).await?;
            self.directory
                .add_u64(&tx, BPTREE_OBJ, queue.id().get())
                .await?;
            self.features().increment(ctx, guid::ASYNC_DESTROY).await?;
            *self.bptree.lock() = queue.id();
            queue
        } else {
            Bptree::open(self.mos(), existing).await?
        };
        *self.background_stalled.lock() = false;
        let entry = BptreeEntry {
            root,
            birth_txg: after,
            bookmark: [0; 4],
        };
        queue.add(&tx, entry, space.into()).await?;
        Ok(())
    }

    /// Lets go of the list of what a clone allocated (`dsl_dir_remove_livelist`). We do not keep such
    /// lists: a clone that changes must not have a stale one.
    pub(crate) async fn remove_livelist(
        &self,
        ctx: &SyncContext,
        dir: &Arc<Dir>,
    ) -> Result<(), DatasetError> {
        const LIVELIST: &str = "com.delphix:livelist";
        {
            let state = dir.state();
            if !state.is_zapified || state.origin_txg.is_zero() {
                return Ok(());
            }
        }
        let zap = Zap::hold(self.mos(), dir.object).await?;
        let Some(object) = zap.lookup_u64(LIVELIST).await? else {
            return Ok(());
        };
        zap.remove(&Tx::syncing(ctx.txg), LIVELIST).await?;
        Deadlist::destroy(self, ctx, object.into()).await?;
        self.features().decrement(ctx, guid::LIVELIST).await
    }

    /// Destroys one filesystem or volume, without children or snapshots, or one snapshot without
    /// clones.
    ///
    /// # Errors
    /// [`DatasetError::NotFound`], [`DatasetError::Busy`], [`DatasetError::HasChildren`],
    /// [`DatasetError::HasSnapshots`], [`DatasetError::HasClones`], [`DatasetError::Held`].
    pub async fn destroy(self: &Arc<Self>, name: &str) -> Result<(), DatasetError> {
        let mut attempts = 0;
        loop {
            self.settle_log(name).await;
            let task = DestroyTask {
                dsl: self.clone(),
                names: vec![name.to_owned()],
                defer: false,
            };
            match self.run_task(Arc::new(task)).await {
                // Its log was being closed at that very moment.
                Err(DatasetError::Busy { .. })
                    if attempts < LOG_TRIES_MAX && self.is_unused(name).await =>
                {
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
        self: &Arc<Self>,
        names: &[String],
        defer: bool,
    ) -> Result<(), DatasetError> {
        if let Some(head) = names.iter().find(|name| !name.contains('@')) {
            return Err(DatasetError::WrongKind {
                name: head.clone(),
                reason: "it is not a snapshot".into(),
            });
        }
        self.run_task(Arc::new(DestroyTask {
            dsl: self.clone(),
            names: names.to_vec(),
            defer,
        }))
        .await?;
        self.fulfilled("destroy_snaps", "snaps", names);
        Ok(())
    }
}

struct DestroyTask {
    dsl: Arc<DslPool>,
    names: Vec<String>,
    defer: bool,
}

impl DestroyTask {
    async fn do_check(&self) -> Result<(), DatasetError> {
        for name in &self.names {
            let dataset = self.dsl.resolve(name).await?;
            if dataset.is_snapshot() {
                self.dsl
                    .check_destroy_snapshot(&dataset, self.defer)
                    .await?;
            } else {
                if Arc::ptr_eq(&dataset.dir(), self.dsl.root_dir()) {
                    return Err(DatasetError::WrongKind {
                        name: name.clone(),
                        reason: "operation does not apply to pools; use 'zpool destroy'".into(),
                    });
                }
                self.dsl.check_destroy_head(&dataset).await?;
                if !self.dsl.features().is_enabled(guid::ASYNC_DESTROY) {
                    return Err(DatasetError::Unsupported {
                        name: name.clone(),
                        what: "destroying a dataset without feature async_destroy".into(),
                    });
                }
            }
        }
        Ok(())
    }

    async fn do_apply(&self, ctx: &SyncContext) -> Result<(), DatasetError> {
        for name in &self.names {
            let dataset = self.dsl.resolve(name).await?;
            if dataset.is_snapshot() {
                self.dsl
                    .destroy_snapshot_now(ctx, &dataset, self.defer)
                    .await?;
            } else {
                self.dsl.destroy_head_now(ctx, &dataset).await?;
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
