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
//! A block that cannot be read keeps what is below it: that space is leaked, and moves to the
//! directory `$LEAK` in the end.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use device::BoxFuture;
use format::{
    BLOCK_POINTER_SHIFT, BlockPointer, Bookmark, DNODE_SLOT_BYTES, DnodePhys, Endian, ObjectId,
    ObjectType, ObjsetId, ObjsetPhys, Txg, UsedBy, names,
};
use object::{Bpobj, Bptree, SyncContext, Zap, ZapCursor};
use vdev::Priority;
use zio::pipeline::waits_for_devices;
use zio::{CacheUse, Pipeline, ReadContext, Tx};

use crate::DatasetError;
use crate::deadlist::Deadlist;
use crate::destroy::Destroyer;
use crate::dsl::DslPool;
use crate::features::guid;
use crate::livelist::living;
use crate::state::{Dir, Space};
use crate::task::SpaceCheck;

/// Blocks freed in one txg.
const BLOCKS_MAX: u64 = 100_000;
/// Time spent on it in one txg (`zfs_free_min_time_ms`).
const TIME_MAX_NS: u64 = 1_000_000_000;
/// Blocks taken off the free list at a time.
const LIST_CHUNK: u64 = 4096;

/// Object set number that stands for a destroyed one (`ZB_DESTROYED_OBJSET`).
const DESTROYED: u64 = u64::MAX;

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
            && !self.must_not_free()
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
        let clock = &self.dsl.env().world.clock;
        let mut budget = Budget {
            blocks: BLOCKS_MAX,
            until_ns: clock.monotonic_ns().saturating_add(TIME_MAX_NS),
            is_begun: false,
        };
        let tx = Tx::syncing(ctx.txg);
        let pipeline = &self.dsl.env().pipeline;
        let mut list_is_empty = true;
        if let Some(list) = self.dsl.destroy_state.free_list.get() {
            loop {
                let chunk = LIST_CHUNK.min(budget.blocks);
                if budget.is_over(clock.monotonic_ns()) {
                    list_is_empty = false;
                    break;
                }
                let mut freed = Space::default();
                let taken = list
                    .drain(&tx, chunk, &mut |block| {
                        freed.add(Space::of(pipeline, block));
                        pipeline.free(ctx.txg, block);
                        Ok(())
                    })
                    .await?;
                if let Some(free_dir) = self.free_dir() {
                    free_dir.did_use(UsedBy::Head, freed.negated());
                }
                budget.blocks -= taken.min(budget.blocks);
                budget.is_begun = true;
                if taken < chunk {
                    break;
                }
            }
        }
        let queue = *self.dsl.destroy_state.bptree.lock();
        if list_is_empty && !queue.is_zero() {
            budget.is_begun = false;
            self.free_trees(ctx, queue, &mut budget).await?;
        }
        if list_is_empty && self.dsl.destroy_state.bptree.lock().is_zero() {
            let clones = *self.dsl.destroy_state.deleted_clones.lock();
            if clones.is_zero() {
                self.book_leaks(ctx).await?;
            } else {
                self.free_clone_list(ctx, clones).await?;
            }
        }
        Ok(())
    }

    /// Frees what a clone that was destroyed had allocated: one part of its livelist
    /// (`sublist_delete_sync` and `livelist_delete_sync`, module/zfs/spa.c). A part names blocks as
    /// they were allocated and freed, of half a million entries or a little more; those that were
    /// not freed are.
    async fn free_clone_list(
        &self,
        ctx: &SyncContext,
        clones: ObjectId,
    ) -> Result<(), DatasetError> {
        let tx = Tx::syncing(ctx.txg);
        let pipeline = &self.dsl.env().pipeline;
        let zap = Zap::hold(self.dsl.mos(), clones).await?;
        let Some(entry) = zap.entries(ZapCursor::START, 1).await?.pop() else {
            self.dsl
                .directory
                .remove(&tx, names::pool::DELETED_CLONES)
                .await?;
            self.dsl.mos().free(&tx, clones).await?;
            *self.dsl.destroy_state.deleted_clones.lock() = ObjectId::ZERO;
            return Ok(());
        };
        let object: ObjectId = entry.value.as_u64().unwrap_or(0).into();
        let is_lost = |error: &DatasetError| {
            tracing::error!(
                %object, %error,
                "a list of a destroyed clone's blocks cannot be read: they stay allocated"
            );
        };
        let opened = waits_for_devices(Deadlist::open(self.dsl.mos(), object)).await;
        let list = opened.inspect_err(is_lost).ok();
        let first = list.as_ref().and_then(Deadlist::first);
        let (Some(mut list), Some((key, part))) = (list, first) else {
            zap.remove(&tx, &entry.name).await?;
            Deadlist::destroy(self.dsl, ctx, object).await?;
            return self.dsl.features().decrement(ctx, guid::LIVELIST).await;
        };
        if part != self.dsl.deadlists().empty_list() {
            let blocks = waits_for_devices(async {
                let part = Bpobj::open(self.dsl.mos(), part).await?;
                living(&part).await
            });
            let blocks = blocks.await.inspect_err(is_lost).unwrap_or_default();
            let mut freed = Space::default();
            for block in blocks {
                freed.add(Space::of(pipeline, &block));
                pipeline.free(ctx.txg, &block);
            }
            if let Some(free_dir) = self.free_dir() {
                free_dir.did_use(UsedBy::Head, freed.negated());
            }
        }
        list.remove_part(self.dsl, ctx, key).await
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
            budget: &mut budget,
        };
        // It never pauses, with that budget.
        let _ = walk.tree(root).await;
        walk.freed
    }

    async fn free_trees(
        &self,
        ctx: &SyncContext,
        queue: ObjectId,
        budget: &mut Budget,
    ) -> Result<(), DatasetError> {
        let tx = Tx::syncing(ctx.txg);
        let queue = Bptree::open(self.dsl.mos(), queue).await?;
        for entry in queue.entries().await? {
            let mut walk = Walk {
                pipeline: &self.dsl.env().pipeline,
                dsl: self.dsl,
                txg: ctx.txg,
                after: entry.birth_txg,
                resume: resume_point(entry.bookmark),
                freed: Space::default(),
                budget,
            };
            let outcome = walk.tree(&entry.root).await;
            let freed = walk.freed;
            if let Some(free_dir) = self.free_dir() {
                free_dir.did_use(UsedBy::Head, freed.negated());
            }
            match outcome {
                Step::Done => queue.pop(&tx, freed.into()).await?,
                Step::Paused(at) => {
                    queue.advance(&tx, at.to_words(), freed.into()).await?;
                    return Ok(());
                }
            }
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
        Ok(())
    }

    /// Everything was freed that could be: what is left in `$FREE` is lost, and goes to `$LEAK`.
    async fn book_leaks(&self, ctx: &SyncContext) -> Result<(), DatasetError> {
        let Some(free_dir) = self.free_dir() else {
            return Ok(());
        };
        let left = {
            let phys = free_dir.state().phys;
            Space {
                used: phys.used_bytes as i64,
                compressed: phys.compressed_bytes as i64,
                uncompressed: phys.uncompressed_bytes as i64,
            }
        };
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
                    .directories()
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

struct Budget {
    blocks: u64,
    /// When it is over, once something was freed of what is being freed.
    until_ns: u64,
    /// Whether something was.
    is_begun: bool,
}

impl Budget {
    fn is_over(&self, now_ns: u64) -> bool {
        self.blocks == 0 || self.is_begun && now_ns > self.until_ns
    }
}

fn resume_point(words: [u64; 4]) -> Option<Bookmark> {
    let bookmark = Bookmark::new(
        ObjsetId::new(words[0]),
        ObjectId::new(words[1]),
        words[2] as i64,
        words[3],
    );
    (words != [0; 4]).then_some(bookmark)
}

enum Step {
    Done,
    /// The budget is used up before this block was freed.
    Paused(Bookmark),
}

/// Shape of an object's tree, for comparing places in it.
#[derive(Clone, Copy)]
struct Shape {
    /// log2 of the pointers in an indirect block.
    fanout_shift: u32,
    /// The same, of the meta-dnode.
    meta_fanout_shift: u32,
    /// Dnodes in a block, of the meta-dnode.
    dnodes_per_block: u64,
}

struct Walk<'a> {
    pipeline: &'a Arc<Pipeline>,
    dsl: &'a Arc<DslPool>,
    txg: Txg,
    after: Txg,
    /// Where to go on; none once that place was reached.
    resume: Option<Bookmark>,
    freed: Space,
    budget: &'a mut Budget,
}

fn fanout_shift(dnode: &DnodePhys) -> u32 {
    u32::from(dnode.indirect_block_shift).saturating_sub(BLOCK_POINTER_SHIFT)
}

/// First data block below a block, and the first behind it.
fn span(fanout_shift: u32, level: i64, block: u64) -> (u64, u64) {
    let shift = fanout_shift.saturating_mul(level.max(0) as u32);
    let first = block
        .checked_shl(shift)
        .filter(|_| shift < 64)
        .unwrap_or(u64::MAX);
    let behind = (block.saturating_add(1))
        .checked_shl(shift)
        .filter(|_| shift < 64)
        .unwrap_or(u64::MAX);
    (first, behind)
}

/// Whether everything in and below `at` comes before `resume` in the order of the walk
/// (`zbookmark_subtree_completed`, module/zfs/zio.c).
fn is_completed(shape: Shape, at: &Bookmark, resume: &Bookmark) -> bool {
    if at.level < 0 {
        return false;
    }
    if resume.level < 0 {
        return true;
    }
    let is_special = |object: ObjectId| object.get() >= ObjectId::LIMIT;
    match (at.object, resume.object) {
        (ours, theirs) if ours == theirs => {
            if at.level == resume.level && at.block_id == resume.block_id {
                return false;
            }
            if at.block_id == Bookmark::SPILL_BLOCK_ID {
                return false;
            }
            if resume.block_id == Bookmark::SPILL_BLOCK_ID {
                return true;
            }
            let (our_first, our_behind) = span(shape.fanout_shift, at.level, at.block_id);
            let (their_first, their_behind) =
                span(shape.fanout_shift, resume.level, resume.block_id);
            if our_behind <= their_first {
                return true;
            }
            // Below the block to go on with: done before it.
            at.level < resume.level && our_first >= their_first && our_behind <= their_behind
        }
        // Blocks of dnodes, while going on in one of the objects.
        (ours, theirs) if ours == ObjectId::META_DNODE => {
            if is_special(theirs) {
                return true;
            }
            let (_, behind) = span(shape.meta_fanout_shift, at.level, at.block_id);
            behind.saturating_mul(shape.dnodes_per_block) <= theirs.get()
        }
        // An object, while going on in the blocks of dnodes.
        (ours, theirs) if theirs == ObjectId::META_DNODE => {
            if is_special(ours) {
                return false;
            }
            let (_, behind) = span(shape.meta_fanout_shift, resume.level, resume.block_id);
            ours.get() < behind.saturating_mul(shape.dnodes_per_block)
        }
        (ours, theirs) => ours < theirs,
    }
}

impl Walk<'_> {
    async fn tree(&mut self, root: &BlockPointer) -> Step {
        if root.is_hole() || root.birth() <= self.after {
            return Step::Done;
        }
        let at = Bookmark::new(
            ObjsetId::new(DESTROYED),
            ObjectId::META_DNODE,
            Bookmark::ROOT_LEVEL,
            0,
        );
        let is_resume = self.resume == Some(at);
        if is_resume {
            self.resume = None;
        } else {
            match self.read(root, &at).await {
                Some((data, endian)) => {
                    if let Step::Paused(at) = self.objset(&data, endian).await {
                        return Step::Paused(at);
                    }
                }
                None => return Step::Done,
            }
        }
        // The root goes right after the last of its children: never a place to pause.
        self.free(root);
        Step::Done
    }

    async fn objset(&mut self, data: &[u8], endian: Endian) -> Step {
        let Ok(phys) = ObjsetPhys::decode(data, endian) else {
            tracing::warn!("the object set of a destroyed dataset is damaged; its space is lost");
            return Step::Done;
        };
        let mut dnodes = vec![(ObjectId::META_DNODE, phys.meta_dnode)];
        if let Some(project) = phys.project_used {
            dnodes.push((ObjectId::PROJECT_USED, *project));
        }
        if let Some(used) = phys.user_group_used {
            let [user, group] = *used;
            dnodes.push((ObjectId::GROUP_USED, group));
            dnodes.push((ObjectId::USER_USED, user));
        }
        let meta = Shape {
            fanout_shift: fanout_shift(&dnodes[0].1),
            meta_fanout_shift: fanout_shift(&dnodes[0].1),
            dnodes_per_block: u64::from(dnodes[0].1.data_block_bytes) / DNODE_SLOT_BYTES as u64,
        };
        for (object, dnode) in dnodes {
            if let Step::Paused(at) = self.dnode(object, &dnode, meta).await {
                return Step::Paused(at);
            }
        }
        Step::Done
    }

    async fn dnode(&mut self, object: ObjectId, dnode: &DnodePhys, meta: Shape) -> Step {
        if dnode.object_type == ObjectType::NONE {
            return Step::Done;
        }
        let shape = Shape {
            fanout_shift: fanout_shift(dnode),
            ..meta
        };
        let level = i64::from(dnode.levels) - 1;
        for (index, pointer) in dnode.pointers.iter().enumerate() {
            let at = Bookmark::new(ObjsetId::new(DESTROYED), object, level, index as u64);
            if let Step::Paused(at) = self.block(pointer, at, shape).await {
                return Step::Paused(at);
            }
        }
        if let Some(spill) = &dnode.spill {
            let at = Bookmark::new(
                ObjsetId::new(DESTROYED),
                object,
                0,
                Bookmark::SPILL_BLOCK_ID,
            );
            return self.block(spill, at, shape).await;
        }
        Step::Done
    }

    fn block<'b>(
        &'b mut self,
        pointer: &'b BlockPointer,
        at: Bookmark,
        shape: Shape,
    ) -> BoxFuture<'b, Step> {
        Box::pin(async move {
            // A block that an earlier snapshot has too has only such blocks below it.
            if pointer.is_hole() || pointer.birth() <= self.after {
                return Step::Done;
            }
            let mut descend = true;
            if let Some(resume) = self.resume {
                if is_completed(shape, &at, &resume) {
                    return Step::Done;
                }
                if at == resume {
                    self.resume = None;
                    descend = false;
                }
            }
            let has_children = pointer.level() > 0 || pointer.object_type() == ObjectType::DNODE;
            if descend && has_children {
                let Some((data, endian)) = self.read(pointer, &at).await else {
                    // What is below is lost; the block itself is freed.
                    return self.free_or_pause(pointer, at);
                };
                let step = if pointer.level() > 0 {
                    self.indirect(&data, endian, at, shape).await
                } else {
                    self.dnode_block(&data, endian, at, shape).await
                };
                if let Step::Paused(at) = step {
                    return Step::Paused(at);
                }
            }
            self.free_or_pause(pointer, at)
        })
    }

    async fn indirect(&mut self, data: &[u8], endian: Endian, at: Bookmark, shape: Shape) -> Step {
        let children: Vec<BlockPointer> = BlockPointer::decode_all(data, endian).collect();
        let first = at
            .block_id
            .checked_shl(shape.fanout_shift)
            .unwrap_or(u64::MAX);
        if at.level > 1 || at.object == ObjectId::META_DNODE {
            for child in children.iter().filter(|child| child.birth() > self.after) {
                self.pipeline.prefetch(child, &self.context(&at));
            }
        }
        for (index, child) in children.iter().enumerate() {
            let below = Bookmark::new(
                at.objset,
                at.object,
                at.level - 1,
                first.saturating_add(index as u64),
            );
            if let Step::Paused(at) = self.block(child, below, shape).await {
                return Step::Paused(at);
            }
        }
        Step::Done
    }

    async fn dnode_block(
        &mut self,
        data: &[u8],
        endian: Endian,
        at: Bookmark,
        shape: Shape,
    ) -> Step {
        let per_block = (data.len() / DNODE_SLOT_BYTES) as u64;
        let first = at.block_id.saturating_mul(per_block);
        let mut slot = 0;
        while slot < per_block {
            let offset = slot as usize * DNODE_SLOT_BYTES;
            let dnode = match DnodePhys::decode(&data[offset..], endian) {
                Ok(dnode) => dnode,
                Err(error) => {
                    tracing::warn!(
                        %error,
                        "a dnode of a destroyed dataset is damaged; its space is lost"
                    );
                    slot += 1;
                    continue;
                }
            };
            let slots = u64::from(dnode.extra_slots) + 1;
            let object = ObjectId::new(first + slot);
            if let Step::Paused(at) = self.dnode(object, &dnode, shape).await {
                return Step::Paused(at);
            }
            slot += slots;
        }
        Step::Done
    }

    fn free_or_pause(&mut self, pointer: &BlockPointer, at: Bookmark) -> Step {
        let now_ns = self.dsl.env().world.clock.monotonic_ns();
        if self.budget.is_over(now_ns) {
            return Step::Paused(at);
        }
        self.budget.blocks -= 1;
        self.budget.is_begun = true;
        self.free(pointer);
        Step::Done
    }

    fn free(&mut self, pointer: &BlockPointer) {
        self.freed.add(Space::of(self.pipeline, pointer));
        self.pipeline.free(self.txg, pointer);
    }

    fn context(&self, at: &Bookmark) -> ReadContext {
        ReadContext {
            bookmark: *at,
            priority: Priority::Async,
            cache: CacheUse::NoFill,
            speculative: false,
            // Pointers are in the clear; the key is gone with the dataset.
            without_key: true,
        }
    }

    async fn read(&self, pointer: &BlockPointer, at: &Bookmark) -> Option<(bytes::Bytes, Endian)> {
        match self.pipeline.read(pointer, &self.context(at)).await {
            Ok(data) => Some((data, pointer.endian())),
            Err(error) => {
                tracing::warn!(
                    %error,
                    place = %at,
                    "a block of a destroyed dataset cannot be read; what is below it is lost"
                );
                None
            }
        }
    }
}

impl<'a> Destroyer<'a> {
    /// The directory that space waiting to be freed counts for.
    pub(crate) fn free_dir(&self) -> Option<&'a Arc<Dir>> {
        self.dsl.destroy_state.free_dir.get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: Shape = Shape {
        fanout_shift: 3,
        meta_fanout_shift: 3,
        dnodes_per_block: 32,
    };

    fn place(object: u64, level: i64, block: u64) -> Bookmark {
        Bookmark::new(
            ObjsetId::new(DESTROYED),
            ObjectId::new(object),
            level,
            block,
        )
    }

    #[test]
    fn places_before_the_bookmark_are_done_and_its_ancestors_are_not() {
        // Going on with block 9 of level 1 of object 40: data blocks 72 to 79.
        let resume = place(40, 1, 9);
        for (at, done) in [
            (place(40, 0, 71), true),
            (place(40, 0, 72), true),
            (place(40, 0, 79), true),
            (place(40, 0, 80), false),
            (place(40, 1, 8), true),
            (place(40, 1, 9), false),
            (place(40, 1, 10), false),
            (place(40, 2, 0), true),
            (place(40, 2, 1), false),
            (place(39, 2, 7), true),
            (place(41, 0, 0), false),
            // Object 40 is in the second block of dnodes.
            (place(0, 0, 0), true),
            (place(0, 0, 1), false),
            (place(0, 1, 0), false),
            (place(u64::MAX, 0, 0), false),
            (place(0, Bookmark::ROOT_LEVEL, 0), false),
        ] {
            assert_eq!(is_completed(SHAPE, &at, &resume), done, "{at}");
        }
        // Going on with a block of dnodes: the objects in it are done.
        let resume = place(0, 0, 1);
        assert!(is_completed(SHAPE, &place(63, 1, 0), &resume));
        assert!(!is_completed(SHAPE, &place(64, 1, 0), &resume));
        // Accounting objects come after everything else, in the order project, group, user.
        let resume = place(u64::MAX - 1, 0, 0);
        assert!(is_completed(SHAPE, &place(0, 3, 0), &resume));
        assert!(is_completed(SHAPE, &place(u64::MAX - 2, 0, 0), &resume));
        assert!(!is_completed(SHAPE, &place(u64::MAX, 0, 0), &resume));
        // A spill block comes after the object's other blocks.
        let resume = place(5, 0, Bookmark::SPILL_BLOCK_ID);
        assert!(is_completed(SHAPE, &place(5, 4, 0), &resume));
    }
}
