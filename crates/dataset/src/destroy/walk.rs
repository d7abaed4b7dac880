//! The walk that frees a destroyed dataset's tree (`traverse_dataset_destroyed`,
//! module/zfs/dmu_traverse.c), what it may take, and where it stops.

use std::sync::Arc;

use device::BoxFuture;
use format::{
    BLOCK_POINTER_SHIFT, BlockPointer, Bookmark, DNODE_SLOT_BYTES, DnodePhys, Endian, ObjectId,
    ObjectType, ObjsetId, ObjsetPhys, Txg,
};
use object::ObjectError;
use vdev::Priority;
use zio::pipeline::may_fail;
use zio::{CacheUse, Pipeline, ReadContext, ZioError};

use crate::DatasetError;
use crate::dsl::DslPool;
use crate::state::Space;

/// Object set number that stands for a destroyed one (`ZB_DESTROYED_OBJSET`).
const DESTROYED: u64 = u64::MAX;

pub(super) fn tell_stalled(what: &str, error: &dyn std::fmt::Display) {
    tracing::error!(
        %error,
        "{what} cannot be read: that space is not freed until 'zpool clear' or the next import \
         finds it readable"
    );
}

/// Whether what could not be read will not be read another time either: all devices work, and what
/// they gave is wrong.
fn is_lost(pipeline: &Pipeline, error: &ZioError) -> bool {
    let is_wrong = !matches!(
        error,
        ZioError::Checksum {
            device_failed: true,
            ..
        } | ZioError::Unreadable { .. }
            | ZioError::Suspended { .. }
    );
    let leaves = pipeline.tree().leaves();
    is_wrong && leaves.iter().all(|leaf| leaf.state().0.is_usable())
}

pub(super) fn is_list_lost(pipeline: &Pipeline, error: &DatasetError) -> bool {
    match error {
        DatasetError::Zio(error) | DatasetError::Object(ObjectError::Zio(error)) => {
            is_lost(pipeline, error)
        }
        _ => true,
    }
}

pub(super) struct Budget {
    pub(super) blocks: u64,
    /// When it is over, once something was freed of what is being freed.
    pub(super) until_ns: u64,
    /// Whether something was.
    pub(super) is_begun: bool,
}

impl Budget {
    pub(super) fn is_over(&self, now_ns: u64) -> bool {
        self.blocks == 0 || self.is_begun && now_ns > self.until_ns
    }
}

pub(super) fn resume_point(words: [u64; 4]) -> Option<Bookmark> {
    let bookmark = Bookmark::new(
        ObjsetId::new(words[0]),
        ObjectId::new(words[1]),
        words[2] as i64,
        words[3],
    );
    (words != [0; 4]).then_some(bookmark)
}

pub(super) enum Step {
    Done,
    /// The budget is used up before this block was freed.
    Paused(Bookmark),
    /// Something could not be read; to go on from here.
    Stalled(Bookmark),
}

/// What a read gives.
enum Found {
    Data(bytes::Bytes, Endian),
    /// Nothing, nor will it another time.
    Lost,
    Stalled,
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

pub(super) struct Walk<'a> {
    pub(super) pipeline: &'a Arc<Pipeline>,
    pub(super) dsl: &'a Arc<DslPool>,
    pub(super) txg: Txg,
    pub(super) after: Txg,
    /// Where to go on; none once that place was reached.
    pub(super) resume: Option<Bookmark>,
    pub(super) freed: Space,
    /// Whether anything was freed, so that the place to go on from was passed.
    pub(super) has_freed: bool,
    /// Whether it ends at what a device does not give, instead of waiting for it.
    pub(super) stalls: bool,
    pub(super) budget: &'a mut Budget,
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

/// A place behind everything that comes before the subtree of `at`, and before everything in it
/// that could be freed: of objects it is their first block of data, there or not. A block of dnodes
/// will not do: who goes on there takes what is below it for free.
fn first_below(shape: Shape, at: &Bookmark) -> Bookmark {
    if at.level < 0 {
        return *at;
    }
    let (first, _) = span(shape.fanout_shift, at.level, at.block_id);
    let (object, block) = match at.object == ObjectId::META_DNODE {
        // Object 0 are the dnodes themselves.
        true => (first.saturating_mul(shape.dnodes_per_block).max(1), 0),
        false => (at.object.get(), first),
    };
    Bookmark::new(at.objset, ObjectId::new(object), 0, block)
}

impl Walk<'_> {
    pub(super) async fn tree(&mut self, root: &BlockPointer) -> Step {
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
                Found::Data(data, endian) => match self.objset(&data, endian).await {
                    Step::Done => {}
                    step => return step,
                },
                Found::Lost => return Step::Done,
                Found::Stalled => return Step::Stalled(at),
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
            match self.dnode(object, &dnode, meta).await {
                Step::Done => {}
                step => return step,
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
            match self.block(pointer, at, shape).await {
                Step::Done => {}
                step => return step,
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
                let step = match self.read(pointer, &at).await {
                    Found::Data(data, endian) if pointer.level() > 0 => {
                        self.indirect(&data, endian, at, shape).await
                    }
                    Found::Data(data, endian) => self.dnode_block(&data, endian, at, shape).await,
                    // What is below is lost; the block itself is freed.
                    Found::Lost => Step::Done,
                    Found::Stalled => Step::Stalled(first_below(shape, &at)),
                };
                match step {
                    Step::Done => {}
                    step => return step,
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
            match self.block(child, below, shape).await {
                Step::Done => {}
                step => return step,
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
            match self.dnode(object, &dnode, shape).await {
                Step::Done => {}
                step => return step,
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
        self.has_freed = true;
        self.freed.add(Space::of(self.pipeline, pointer));
        self.pipeline.free(self.txg, pointer);
    }

    fn context(&self, at: &Bookmark) -> ReadContext {
        ReadContext {
            priority: Priority::Async,
            cache: CacheUse::NoFill,
            // Pointers are in the clear; the key is gone with the dataset.
            without_key: true,
            ..ReadContext::new(*at)
        }
    }

    async fn read(&self, pointer: &BlockPointer, at: &Bookmark) -> Found {
        let context = self.context(at);
        let read = self.pipeline.read(pointer, &context);
        let read = match self.stalls {
            true => may_fail(read).await,
            false => read.await,
        };
        match read {
            Ok(data) => Found::Data(data, pointer.endian()),
            Err(error) if self.stalls && !is_lost(self.pipeline, &error) => {
                tell_stalled(&format!("a block of a destroyed dataset ({at})"), &error);
                Found::Stalled
            }
            Err(error) => {
                tracing::warn!(
                    %error,
                    place = %at,
                    "a block of a destroyed dataset cannot be read; what is below it is lost"
                );
                Found::Lost
            }
        }
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

    /// Goal: from the place that is stored for a subtree that could not be read, all of it is gone
    /// through, and nothing that comes before it.
    #[test]
    fn a_stall_goes_on_with_the_whole_subtree() {
        for (at, before) in [
            (
                place(40, 1, 9),
                vec![place(40, 0, 71), place(40, 1, 8), place(39, 0, 3)],
            ),
            (place(40, 2, 1), vec![place(40, 1, 7), place(40, 2, 0)]),
            (
                place(0, 0, 3),
                vec![place(95, 0, 0), place(95, 3, 0), place(0, 0, 2)],
            ),
            (
                place(0, 1, 2),
                vec![place(511, 0, 0), place(0, 0, 15), place(0, 1, 1)],
            ),
            (place(0, 0, 0), vec![]),
        ] {
            let resume = first_below(SHAPE, &at);
            assert_eq!(resume.level, 0, "{at}");
            for before in before {
                assert!(is_completed(SHAPE, &before, &resume), "{at}: {before}");
            }
            let mut inside = vec![at];
            match at.object == ObjectId::META_DNODE {
                true => {
                    let (first, behind) = span(SHAPE.meta_fanout_shift, at.level, at.block_id);
                    inside.extend([place(0, 0, first), place(0, 0, behind - 1)]);
                    let first = (first * SHAPE.dnodes_per_block).max(1);
                    inside.extend([place(first, 2, 0), place(behind * 32 - 1, 0, 0)]);
                }
                false => {
                    let (first, behind) = span(SHAPE.fanout_shift, at.level, at.block_id);
                    inside.extend([place(40, 0, first), place(40, 0, behind - 1)]);
                }
            }
            for inside in inside {
                assert!(!is_completed(SHAPE, &inside, &resume), "{at}: {inside}");
                let has_children = inside.level > 0 || inside.object == ObjectId::META_DNODE;
                assert!(!has_children || inside != resume, "{at}: {inside}");
            }
        }
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
