//! Freeing in the background: the pool's free list, and the trees of destroyed datasets
//! (`dsl_process_async_destroys`, module/zfs/dsl_scan.c; `traverse_dataset_destroyed`,
//! module/zfs/dmu_traverse.c).
//!
//! In the first pass of each txg a bounded number of blocks is freed, so that writers never wait
//! for a big destroy; but some at least, however long it takes to reach them, so that slow devices
//! do not stop it for good. A tree is walked depth first, children before their parent, from a
//! bookmark that is stored with it: everything before the bookmark is free, the bookmark's block
//! and its ancestors are not. Memory is one path of the tree.
//!
//! A block that a device did not give stops what it belongs to (the list, a tree, a clone's list):
//! a bad sector may be read another time, a device may come back. The rest goes on, and so does the
//! pool. It is tried again when devices were looked at again
//! ([`zio::pipeline::Suspension::reopen`]) and at the next import. The place where a tree stopped
//! is stored, so nothing is freed twice.
//!
//! Where all devices work and gave a wrong block, what is below it is leaked, and moves to the
//! directory `$LEAK` in the end.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use format::{BlockPointer, Bookmark, ObjectId, Txg, UsedBy, names};
use object::{Bpobj, Bptree, BptreeEntry, ObjectError, SyncContext, Zap, ZapCursor};
use zio::Tx;
use zio::pipeline::may_fail;

use crate::DatasetError;
use crate::destroy::Destroyer;
use crate::destroy::walk::{Budget, Step, Walk, is_list_lost, resume_point, tell_stalled};
use crate::features::guid;
use crate::state::{Deadlist, Dir, Space, Stall, living};
use crate::task::SpaceCheck;

/// Blocks freed in one txg.
const BLOCKS_MAX: u64 = 100_000;
/// Time spent on it in one txg (`zfs_free_min_time_ms`).
const TIME_MAX_NS: u64 = 1_000_000_000;
/// Blocks taken off the free list at a time.
const LIST_CHUNK: u64 = 4096;

impl Destroyer<'_> {
    /// Bytes that wait to be freed in the background (`freeing`).
    pub fn freeing_bytes(&self) -> u64 {
        self.free_dir().map_or(0, |dir| dir.state().phys.used_bytes)
    }

    /// Bytes that were lost by background frees that could not read their trees (`leaked`).
    pub fn leaked_bytes(&self) -> u64 {
        self.dsl
            .destroy_state
            .leak_dir
            .lock()
            .as_ref()
            .map_or(0, |dir| dir.state().phys.used_bytes)
    }

    /// Puts background frees off, or no longer.
    pub fn put_off(&self, held: bool) {
        self.dsl
            .destroy_state
            .is_put_off
            .store(held, Ordering::Release);
    }

    /// Whether something waits to be freed and can be.
    pub fn has_work(&self) -> bool {
        let waits = !self.dsl.destroy_state.bptree.lock().is_zero()
            || !self.dsl.destroy_state.deleted_clones.lock().is_zero()
            || self.free_dir().is_some_and(|dir| {
                let phys = dir.state().phys;
                // Blocks that live in their pointers have no place, but a size.
                phys.used_bytes > 0 || phys.compressed_bytes > 0 || phys.uncompressed_bytes > 0
            });
        waits
            && !self.dsl.env().read_only
            && !self.dsl.destroy_state.is_put_off.load(Ordering::Acquire)
            && !self.is_stalled()
            && !self.must_not_free()
    }

    /// Whether all that waits cannot be read, as far as is known. What is destroyed later changes
    /// what waits.
    fn is_stalled(&self) -> bool {
        let stall = self.dsl.destroy_state.stall.lock();
        stall.as_ref().is_some_and(|stall| {
            stall.rests
                && stall.reopened == self.dsl.env().pipeline.suspension().reopened()
                && stall.waiting == self.waiting()
        })
    }

    /// Space of what waits to be freed.
    fn waiting(&self) -> Space {
        self.free_dir().map_or(Space::default(), |dir| {
            let phys = dir.state().phys;
            Space {
                used: phys.used_bytes as i64,
                compressed: phys.compressed_bytes as i64,
                uncompressed: phys.uncompressed_bytes as i64,
            }
        })
    }

    /// With a checkpoint, frees take space instead of giving it: in a full pool they wait for it to
    /// go (`spa_suspend_async_destroy`).
    fn must_not_free(&self) -> bool {
        let used = self.dsl.directories().root_dir().state().phys.used_bytes;
        self.dsl.env().pipeline.dvas().has_checkpoint()
            && self.dsl.space().unreserved_space(SpaceCheck::ExtraReserved) <= used
    }

    /// Frees a bounded number of blocks, in syncing context.
    pub(crate) async fn free_some(&self, ctx: &SyncContext) -> Result<(), DatasetError> {
        if !self.has_work() {
            return Ok(());
        }
        let reopened = self.dsl.env().pipeline.suspension().reopened();
        let before = self.dsl.destroy_state.stall.lock().take();
        let mut stall = before
            .filter(|stall| stall.reopened == reopened)
            .unwrap_or_default();
        stall.reopened = reopened;
        stall.rests = self.free_what_can_be(ctx, &mut stall).await?;
        stall.waiting = self.waiting();
        if stall.is_any() {
            *self.dsl.destroy_state.stall.lock() = Some(stall);
        }
        Ok(())
    }

    /// Frees a bounded number of blocks of what is not stalled. Returns whether that was all.
    async fn free_what_can_be(
        &self,
        ctx: &SyncContext,
        stall: &mut Stall,
    ) -> Result<bool, DatasetError> {
        let clock = &self.dsl.env().world.clock;
        let mut budget = Budget {
            blocks: BLOCKS_MAX,
            until_ns: clock.monotonic_ns().saturating_add(TIME_MAX_NS),
            is_begun: false,
        };
        if !stall.list && !self.free_blocks_of_list(ctx, stall, &mut budget).await {
            return Ok(false);
        }
        let queue = *self.dsl.destroy_state.bptree.lock();
        if !queue.is_zero() && !stall.queue {
            budget.is_begun = false;
            if !self.free_trees(ctx, queue, stall, &mut budget).await? {
                return Ok(false);
            }
        }
        let clones = *self.dsl.destroy_state.deleted_clones.lock();
        if !clones.is_zero() {
            return match stall.clones {
                true => Ok(true),
                false => self.free_clone_list(ctx, clones, stall).await,
            };
        }
        // What waits for devices is not lost.
        if !stall.is_any() {
            self.book_leaks(ctx).await?;
        }
        Ok(true)
    }

    /// Frees what the list names. Returns whether nothing is left of it that can be.
    async fn free_blocks_of_list(
        &self,
        ctx: &SyncContext,
        stall: &mut Stall,
        budget: &mut Budget,
    ) -> bool {
        let Some(list) = self.dsl.destroy_state.free_list.get() else {
            return true;
        };
        let tx = Tx::syncing(ctx.txg);
        let pipeline = &self.dsl.env().pipeline;
        loop {
            let chunk = LIST_CHUNK.min(budget.blocks);
            if budget.is_over(self.dsl.env().world.clock.monotonic_ns()) {
                return false;
            }
            let mut freed = Space::default();
            let mut free = |block: &BlockPointer| {
                freed.add(Space::of(pipeline, block));
                pipeline.free(ctx.txg, block);
                Ok(())
            };
            let drained = may_fail(list.drain(&tx, chunk, &mut free)).await;
            if let Some(free_dir) = self.free_dir() {
                free_dir.did_use(UsedBy::Head, freed.negated());
            }
            budget.blocks -= drained.taken.min(budget.blocks);
            budget.is_begun = true;
            if let Some(error) = drained.failed {
                stall.list = true;
                tell_stalled("the list of blocks to be freed", &error);
                return true;
            }
            if drained.taken < chunk {
                return true;
            }
        }
    }

    /// Frees what a clone that was destroyed had allocated: one part of its livelist
    /// (`sublist_delete_sync` and `livelist_delete_sync`, module/zfs/spa.c). A part names blocks as
    /// they were allocated and freed, of half a million entries or a little more; those that were
    /// not freed are. Returns whether there is no more to do.
    async fn free_clone_list(
        &self,
        ctx: &SyncContext,
        clones: ObjectId,
        stall: &mut Stall,
    ) -> Result<bool, DatasetError> {
        let tx = Tx::syncing(ctx.txg);
        let pipeline = &self.dsl.env().pipeline;
        let mut stalls = |error: &dyn std::fmt::Display| {
            stall.clones = true;
            tell_stalled("a list of a destroyed clone's blocks", error);
            Ok(true)
        };
        let first = may_fail(async {
            let zap = Zap::hold(self.dsl.mos(), clones).await?;
            let entry = zap.entries(ZapCursor::START, 1).await?.pop();
            Ok::<_, ObjectError>((zap, entry))
        });
        let (zap, entry) = match first.await {
            Ok((zap, Some(entry))) => (zap, entry),
            Ok((_, None)) => {
                self.dsl
                    .directory
                    .remove(&tx, names::pool::DELETED_CLONES)
                    .await?;
                self.dsl.mos().free(&tx, clones).await?;
                *self.dsl.destroy_state.deleted_clones.lock() = ObjectId::ZERO;
                return Ok(false);
            }
            Err(error) => return stalls(&error),
        };
        let object: ObjectId = entry.value.as_u64().unwrap_or(0).into();
        let tell_lost = |error: &DatasetError| {
            tracing::error!(
                %object, %error,
                "a list of a destroyed clone's blocks cannot be read: they stay allocated"
            );
        };
        let list = match may_fail(Deadlist::open(self.dsl.mos(), object)).await {
            Err(error) if !is_list_lost(pipeline, &error) => return stalls(&error),
            opened => opened.inspect_err(tell_lost).ok(),
        };
        let first = list.as_ref().and_then(Deadlist::first);
        let (Some(mut list), Some((key, part))) = (list, first) else {
            zap.remove(&tx, &entry.name).await?;
            Deadlist::destroy(&self.dsl.lists, ctx, object).await?;
            self.dsl.features().decrement(ctx, guid::LIVELIST).await?;
            return Ok(false);
        };
        if part != self.dsl.lists.empty_list() {
            let blocks = may_fail(async {
                let part = Bpobj::open(self.dsl.mos(), part).await?;
                living(&part).await
            });
            let blocks = match blocks.await {
                Err(error) if !is_list_lost(pipeline, &error) => return stalls(&error),
                read => read.inspect_err(tell_lost).unwrap_or_default(),
            };
            let mut freed = Space::default();
            for block in blocks {
                freed.add(Space::of(pipeline, &block));
                pipeline.free(ctx.txg, &block);
            }
            if let Some(free_dir) = self.free_dir() {
                free_dir.did_use(UsedBy::Head, freed.negated());
            }
        }
        list.remove_part(&self.dsl.lists, ctx, key).await?;
        Ok(false)
    }

    /// Frees a tree whole, but for what an earlier snapshot has too. Returns what that gave; the
    /// rest of the dataset's space is lost, with what cannot be read.
    pub(super) async fn free_tree_now(
        &self,
        ctx: &SyncContext,
        root: &BlockPointer,
        after: Txg,
    ) -> Space {
        let mut budget = Budget {
            blocks: u64::MAX,
            until_ns: u64::MAX,
            is_begun: false,
        };
        let mut walk = Walk {
            pipeline: &self.dsl.env().pipeline,
            dsl: self.dsl,
            txg: ctx.txg,
            after,
            resume: None,
            freed: Space::default(),
            has_freed: false,
            stalls: false,
            budget: &mut budget,
        };
        // It neither pauses, with that budget, nor stalls.
        let _ = walk.tree(root).await;
        walk.freed
    }

    /// Frees trees, oldest first. Returns whether nothing is left of them that can be freed.
    async fn free_trees(
        &self,
        ctx: &SyncContext,
        queue: ObjectId,
        stall: &mut Stall,
        budget: &mut Budget,
    ) -> Result<bool, DatasetError> {
        let tx = Tx::syncing(ctx.txg);
        let entries = may_fail(async {
            let queue = Bptree::open(self.dsl.mos(), queue).await?;
            let entries = queue.entries().await?;
            Ok::<_, ObjectError>((queue, entries))
        });
        let (queue, entries) = match entries.await {
            Ok(read) => read,
            Err(error) => {
                stall.queue = true;
                tell_stalled("the queue of destroyed datasets", &error);
                return Ok(true);
            }
        };
        for (index, entry) in entries {
            let is_finished = entry.birth_txg == BptreeEntry::FINISHED;
            if stall.trees.contains(&index) || is_finished && !stall.trees.is_empty() {
                continue;
            }
            // How far it comes is written after it was freed: that must need no reading.
            if let Err(error) =
                may_fail(queue.put(&tx, index, entry, Space::default().into())).await
            {
                stall.trees.insert(index);
                tell_stalled("the queue of destroyed datasets", &error);
                continue;
            }
            let mut walk = Walk {
                pipeline: &self.dsl.env().pipeline,
                dsl: self.dsl,
                txg: ctx.txg,
                after: entry.birth_txg,
                resume: resume_point(entry.bookmark),
                freed: Space::default(),
                has_freed: false,
                stalls: true,
                budget,
            };
            let outcome = walk.tree(&entry.root).await;
            let (freed, has_freed) = (walk.freed, walk.has_freed);
            if let Some(free_dir) = self.free_dir() {
                free_dir.did_use(UsedBy::Head, freed.negated());
            }
            let at = |at: Bookmark| BptreeEntry {
                bookmark: at.to_words(),
                ..entry
            };
            match outcome {
                Step::Done => queue.finish(&tx, index, entry, freed.into()).await?,
                Step::Paused(place) => {
                    queue.put(&tx, index, at(place), freed.into()).await?;
                    return Ok(false);
                }
                Step::Stalled(place) => {
                    // Before anything was freed the stored place may be deeper than this one.
                    if has_freed {
                        queue.put(&tx, index, at(place), freed.into()).await?;
                    }
                    stall.trees.insert(index);
                }
            }
        }
        if !stall.trees.is_empty() {
            return Ok(true);
        }
        self.dsl
            .features()
            .decrement(ctx, guid::ASYNC_DESTROY)
            .await?;
        self.dsl
            .directory
            .remove(&tx, names::pool::BPTREE_OBJ)
            .await?;
        queue.destroy(&tx).await?;
        *self.dsl.destroy_state.bptree.lock() = ObjectId::ZERO;
        Ok(true)
    }

    /// Everything was freed that could be: what is left in `$FREE` is lost, and goes to `$LEAK`.
    async fn book_leaks(&self, ctx: &SyncContext) -> Result<(), DatasetError> {
        let Some(free_dir) = self.free_dir() else {
            return Ok(());
        };
        let left = self.waiting();
        if left.is_zero() {
            return Ok(());
        }
        tracing::warn!(bytes = left.used, "space of destroyed datasets was lost");
        let existing = self.dsl.destroy_state.leak_dir.lock().clone();
        let leak_dir = match existing {
            Some(dir) => dir,
            None => {
                let dir = self
                    .dsl
                    .datasets()
                    .create_dir(
                        ctx,
                        Some(self.dsl.directories().root_dir()),
                        names::hidden_directory::LEAK,
                    )
                    .await?;
                *self.dsl.destroy_state.leak_dir.lock() = Some(dir.clone());
                dir
            }
        };
        free_dir.did_use(UsedBy::Head, left.negated());
        leak_dir.did_use(UsedBy::Head, left);
        Ok(())
    }
}

impl<'a> Destroyer<'a> {
    /// The directory that space waiting to be freed counts for.
    pub(crate) fn free_dir(&self) -> Option<&'a Arc<Dir>> {
        self.dsl.destroy_state.free_dir.get()
    }
}
