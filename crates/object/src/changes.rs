//! The changes of an object set since a transaction group, in the order of objects and blocks:
//! for streams (`send_cb`, module/zfs/dmu_send.c) and for redaction (`redact_cb`,
//! module/zfs/dmu_redact.c).
//!
//! A traversal meets all dnodes of a block at once, and their data after that. A dnode is so kept
//! until its own data, or what comes behind it, is met. A traversal ends when a batch is full, and
//! goes on where it ended: the dnodes of the block that it ended in are met again, and those that
//! were told are known by their numbers.
//!
//! Blocks are old by when their data was written: a block that was only moved (`zfs rewrite -P`)
//! did not change. Without the key, as raw streams go, it did: it was encrypted again, and the MACs
//! above it cover its new one. Objects of space accounting are left out.
//!
//! Memory is bounded by a batch and one block of dnodes. Nothing is written.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use device::BoxFuture;
use format::{
    BlockPointer, Bookmark, DNODES_PER_BLOCK, DnodePhys, Endian, ObjectId, ObjectType, ObjsetPhys,
};
use parking_lot::Mutex;
use zio::pipeline::Pipeline;
use zio::{ReadContext, ZioError};

use crate::traverse::{Leads, Met, Traverse, Traversed, Visitor, traverse};

/// log2 of a block pointer's size (`SPA_BLKPTRSHIFT`).
const POINTER_SHIFT: u32 = 7;

/// How an object's blocks are arranged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Geometry {
    /// Size of a data block.
    pub block_bytes: u32,
    /// log2 of the size of an indirect block.
    indirect_shift: u8,
    /// Blocks that the tree can have as it is.
    pub capacity_blocks: u64,
    /// The last block that was ever written.
    pub last_block: u64,
    /// The object's type.
    pub object_type: ObjectType,
    /// The type of its bonus.
    pub bonus_type: ObjectType,
}

impl Geometry {
    /// Of the object with this dnode.
    pub fn of(dnode: &DnodePhys) -> Self {
        let mut out = Self {
            block_bytes: dnode.data_block_bytes,
            indirect_shift: dnode.indirect_block_shift,
            capacity_blocks: 0,
            last_block: dnode.max_block_id,
            object_type: dnode.object_type,
            bonus_type: dnode.bonus_type,
        };
        let below_top = out.blocks_below(i64::from(dnode.levels) - 1);
        out.capacity_blocks = below_top.saturating_mul(dnode.pointers.len() as u64);
        out
    }

    /// Blocks of data that a pointer to a block of this level leads to.
    fn blocks_below(&self, level: i64) -> u64 {
        let pointers_shift = u32::from(self.indirect_shift).saturating_sub(POINTER_SHIFT);
        let level = u32::try_from(level).unwrap_or(0);
        let shift = pointers_shift.saturating_mul(level);
        1u64.checked_shl(shift).unwrap_or(u64::MAX)
    }
}

/// One change.
#[derive(Debug, Clone, PartialEq)]
pub enum Change {
    /// A block of dnodes was written: objects of it follow.
    Dnodes {
        /// The first object number in it.
        first: u64,
        /// The block.
        pointer: BlockPointer,
    },
    /// An object is there, and its dnode is in a block that was written. Its own changes follow.
    Object {
        /// Its number.
        object: u64,
        /// Its dnode.
        dnode: Box<DnodePhys>,
        /// The byte order of the bonus.
        endian: Endian,
    },
    /// No objects have these numbers.
    Free {
        /// The first of them. Number 0 is no object and may be among them.
        first: u64,
        /// How many.
        count: u64,
    },
    /// A block of data, or a spill block, was written.
    Block {
        /// Its object.
        object: u64,
        /// Its number, [`Bookmark::SPILL_BLOCK_ID`] for a spill block.
        block: u64,
        /// Where it is.
        pointer: BlockPointer,
        /// How the object's blocks are arranged.
        geometry: Geometry,
    },
    /// Blocks are holes, or redacted.
    Hole {
        /// Their object.
        object: u64,
        /// The first of them.
        first: u64,
        /// How many.
        blocks: u64,
        /// How the object's blocks are arranged.
        geometry: Geometry,
    },
}

/// Some changes.
#[derive(Debug)]
pub struct ChangeBatch {
    /// In order.
    pub changes: Vec<Change>,
    /// No object of the set has this number or a higher one.
    pub objects_end: u64,
    /// Nothing follows.
    pub is_last: bool,
}

/// Why changes could not be found.
#[derive(Debug, thiserror::Error)]
pub enum ChangesError {
    /// A block could not be read.
    #[error(transparent)]
    Zio(#[from] ZioError),
    /// A block does not hold what it should.
    #[error("{bookmark}: {why}; scrub the pool or restore from a backup")]
    Damaged {
        /// The block.
        bookmark: Bookmark,
        /// What is wrong.
        why: String,
    },
}

/// When a batch is full.
#[derive(Debug, Clone, Copy)]
pub struct ChangeLimits {
    /// So many changes.
    pub changes: usize,
    /// Or blocks of so many bytes, uncompressed.
    pub block_bytes: u64,
}

#[derive(Default)]
struct State {
    changes: Vec<Change>,
    /// Blocks among them, in bytes.
    block_bytes: u64,
    /// Slots of dnodes that were met, and not told yet; none for free ones.
    waiting: BTreeMap<u64, Option<(Box<DnodePhys>, Endian)>>,
    /// Objects of the block of dnodes that was met last.
    objects: BTreeMap<u64, Geometry>,
    /// The object set's own dnode.
    meta: Option<Geometry>,
    /// Numbers below this were told.
    told_below: u64,
    /// First object and pointer of a block of dnodes of which nothing was told yet.
    dnodes: Option<(u64, BlockPointer)>,
    /// First object of the block of dnodes that was told last.
    dnodes_told: Option<u64>,
    error: Option<ChangesError>,
}

impl State {
    /// Tells of the objects with numbers below this.
    fn tell_below(&mut self, below: u64) {
        while let Some(entry) = self.waiting.first_entry() {
            let object = *entry.key();
            if object >= below {
                return;
            }
            if let Some((first, pointer)) = self.dnodes.take() {
                self.dnodes_told = Some(first);
                self.changes.push(Change::Dnodes { first, pointer });
            }
            self.changes.push(match entry.remove() {
                None => Change::Free {
                    first: object,
                    count: 1,
                },
                Some((dnode, endian)) => Change::Object {
                    object,
                    dnode,
                    endian,
                },
            });
            self.told_below = object + 1;
        }
    }

    fn wait(&mut self, object: u64, dnode: Option<(Box<DnodePhys>, Endian)>) {
        if object >= self.told_below {
            self.waiting.insert(object, dnode);
        }
    }

    /// A block of dnodes is met.
    fn dnodes(&mut self, block: u64, pointer: BlockPointer) {
        let first = block.saturating_mul(DNODES_PER_BLOCK);
        self.tell_below(first);
        self.objects.clear();
        // The block that the last batch ended in is met again.
        let is_told = self.dnodes_told == Some(first);
        self.dnodes = (!is_told).then_some((first, pointer));
    }

    /// A block that holds data is met.
    fn block(&mut self, object: u64, block: u64, pointer: BlockPointer) {
        self.tell_below(object + 1);
        if let Some(geometry) = self.objects.get(&object).copied() {
            self.block_bytes += pointer.lsize_bytes();
            self.changes.push(Change::Block {
                object,
                block,
                pointer,
                geometry,
            });
        }
    }

    /// A hole is met in the place of a block of this level.
    fn hole(&mut self, object: u64, level: i64, block: u64) {
        let is_meta = object == 0;
        if !is_meta {
            self.tell_below(object + 1);
        }
        let geometry = match is_meta {
            true => self.meta,
            false => self.objects.get(&object).copied(),
        };
        let Some(geometry) = geometry else { return };
        let blocks = geometry.blocks_below(level);
        // A place that no block can have is always a hole.
        let Some(first) = blocks.checked_mul(block) else {
            return;
        };
        if is_meta {
            let first = first.saturating_mul(DNODES_PER_BLOCK);
            self.tell_below(first.max(1));
            let count = blocks.saturating_mul(DNODES_PER_BLOCK);
            self.changes.push(Change::Free { first, count });
        } else {
            self.changes.push(Change::Hole {
                object,
                first,
                blocks,
                geometry,
            });
        }
    }

    fn objects_end(&self) -> u64 {
        let last = self.meta.map_or(0, |meta| meta.last_block);
        last.saturating_add(1).saturating_mul(DNODES_PER_BLOCK)
    }
}

struct Finder {
    pipeline: Arc<Pipeline>,
    without_key: bool,
    limits: ChangeLimits,
    state: Mutex<State>,
}

fn is_special(object: ObjectId) -> bool {
    object.get() >= ObjectId::LIMIT
}

impl Visitor for Finder {
    fn ends_before(&self, _bookmark: &Bookmark) -> bool {
        let state = self.state.lock();
        state.block_bytes >= self.limits.block_bytes
            || state.changes.len() >= self.limits.changes
            || state.error.is_some()
    }

    fn wants_holes(&self) -> bool {
        true
    }

    fn goes_by_data(&self) -> bool {
        !self.without_key
    }

    fn hole(&self, met: &Met<'_>) {
        let at = met.bookmark;
        if !is_special(at.object) && at.block_id != Bookmark::SPILL_BLOCK_ID {
            let mut state = self.state.lock();
            state.hole(at.object.get(), at.level, at.block_id);
        }
    }

    fn meet(&self, met: &Met<'_>) -> bool {
        let at = met.bookmark;
        if is_special(at.object) {
            return false;
        }
        let mut state = self.state.lock();
        if state.error.is_some() {
            return false;
        }
        match met.leads {
            Leads::Root | Leads::Indirect => true,
            Leads::Dnodes => {
                if at.level == 0 {
                    state.dnodes(at.block_id, *met.pointer);
                }
                true
            }
            Leads::Nowhere => {
                state.block(at.object.get(), at.block_id, *met.pointer);
                false
            }
        }
    }

    fn read(
        self: Arc<Self>,
        pointer: BlockPointer,
        bookmark: Bookmark,
    ) -> BoxFuture<'static, Result<Bytes, ZioError>> {
        Box::pin(async move {
            let context = ReadContext {
                without_key: self.without_key,
                ..ReadContext::new(bookmark)
            };
            self.pipeline.read(&pointer, &context).await
        })
    }

    fn entered(&self, _met: &Met<'_>, result: Result<(), &ZioError>) {
        if let Err(error) = result {
            let mut state = self.state.lock();
            state.error.get_or_insert(error.clone().into());
        }
    }

    fn objset(&self, objset: &ObjsetPhys) {
        self.state.lock().meta = Some(Geometry::of(&objset.meta_dnode));
    }

    fn dnode(&self, object: ObjectId, dnode: &DnodePhys, endian: Endian) {
        if !is_special(object) {
            let mut state = self.state.lock();
            state.objects.insert(object.get(), Geometry::of(dnode));
            state.wait(object.get(), Some((Box::new(dnode.clone()), endian)));
        }
    }

    fn free_slot(&self, object: ObjectId) {
        if !is_special(object) {
            self.state.lock().wait(object.get(), None);
        }
    }

    fn damaged(&self, bookmark: &Bookmark, why: &str) {
        let mut state = self.state.lock();
        state.error.get_or_insert(ChangesError::Damaged {
            bookmark: *bookmark,
            why: why.to_owned(),
        });
    }
}

/// The changes of an object set, batch by batch.
pub struct Changes {
    what: Traverse,
    finder: Arc<Finder>,
}

impl Changes {
    /// Of what is to be traversed. Objects with numbers below `first` are not told, their blocks
    /// are. With `without_key` dnodes have the bonuses of encrypted datasets as they are stored,
    /// and blocks that were moved count as changed.
    pub fn new(
        pipeline: Arc<Pipeline>,
        what: Traverse,
        first: u64,
        without_key: bool,
        limits: ChangeLimits,
    ) -> Self {
        let state = State {
            // Number 0 is the object set's own dnode.
            told_below: first.max(1),
            ..State::default()
        };
        Self {
            what,
            finder: Arc::new(Finder {
                pipeline,
                without_key,
                limits,
                state: Mutex::new(state),
            }),
        }
    }

    /// The next batch. Dropping the future loses what it had found.
    ///
    /// # Errors
    /// A block could not be read, or does not hold what it should.
    pub async fn next(&mut self) -> Result<ChangeBatch, ChangesError> {
        let tasks = self.finder.pipeline.tasks();
        let is_last = match traverse(&self.what, tasks, &self.finder).await {
            Traversed::Whole => true,
            Traversed::Until(at) => {
                self.what.from = Some(at);
                false
            }
        };
        let mut state = self.finder.state.lock();
        if let Some(error) = state.error.take() {
            return Err(error);
        }
        if is_last {
            state.tell_below(u64::MAX);
        }
        state.block_bytes = 0;
        Ok(ChangeBatch {
            changes: std::mem::take(&mut state.changes),
            objects_end: state.objects_end(),
            is_last,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dnode(levels: u8) -> Option<(Box<DnodePhys>, Endian)> {
        let mut out = DnodePhys::new(ObjectType::PLAIN_FILE_CONTENTS, 4096, 17, 1);
        out.levels = levels;
        Some((Box::new(out), Endian::Little))
    }

    /// A block of dnodes is met, with this object in slot 2 and one of two levels in slot 3. All
    /// other slots are free.
    fn meet_dnodes(state: &mut State, block: u64) {
        state.dnodes(block, BlockPointer::HOLE);
        for slot in 0..DNODES_PER_BLOCK {
            let object = block * DNODES_PER_BLOCK + slot;
            let there = match slot {
                2 => dnode(1),
                3 => dnode(2),
                _ => None,
            };
            if let Some((dnode, _)) = &there {
                state.objects.insert(object, Geometry::of(dnode));
            }
            state.wait(object, there);
        }
    }

    fn told(state: &mut State) -> Vec<String> {
        let changes = std::mem::take(&mut state.changes).into_iter();
        let words = changes.map(|change| match change {
            Change::Dnodes { first, .. } => format!("dnodes from {first}"),
            Change::Object { object, .. } => format!("object {object}"),
            Change::Free { first, count } => format!("free {first}+{count}"),
            Change::Block { object, block, .. } => format!("block {object}:{block}"),
            Change::Hole {
                object,
                first,
                blocks,
                ..
            } => format!("hole {object}:{first}+{blocks}"),
        });
        words.collect()
    }

    /// Goal: an object is told right before its data, in whichever order they are met, and once,
    /// also when the block of dnodes is met again by the next batch.
    #[test]
    fn objects_are_told_before_their_data_and_once() {
        let mut state = State {
            told_below: 35,
            ..State::default()
        };
        meet_dnodes(&mut state, 1);
        assert!(told(&mut state).is_empty(), "nothing is known to be whole");
        // An object that another batch told.
        state.block(34, 7, BlockPointer::HOLE);
        assert_eq!(told(&mut state), ["block 34:7"]);
        state.hole(35, 1, 2);
        assert_eq!(
            told(&mut state),
            ["dnodes from 32", "object 35", "hole 35:2048+1024"]
        );
        meet_dnodes(&mut state, 1);
        state.block(35, 9, BlockPointer::HOLE);
        assert_eq!(told(&mut state), ["block 35:9"]);
        // A hole among the dnodes: what is before it is told, then it.
        state.meta = Geometry::of(&DnodePhys::new(ObjectType::DNODE, 16384, 17, 3)).into();
        state.hole(0, 0, 2);
        let changes = told(&mut state);
        assert_eq!(changes.len(), 28 + 1);
        assert_eq!(changes[0], "free 36+1");
        assert_eq!(changes[27..], ["free 63+1", "free 64+32"]);
        state.tell_below(u64::MAX);
        assert!(state.waiting.is_empty() && state.changes.is_empty());
    }

    /// Goal: places that no block can have end no traversal and overflow nothing.
    #[test]
    fn holes_without_a_place_are_left_out() {
        let mut state = State::default();
        meet_dnodes(&mut state, 0);
        state.hole(3, 5, u64::MAX);
        let changes = told(&mut state);
        assert_eq!(changes.last().map(String::as_str), Some("object 3"));
        state.hole(3, 9, 0);
        assert_eq!(told(&mut state), [format!("hole 3:0+{}", u64::MAX)]);
        // Nobody knows the object.
        state.hole(900, 0, 0);
        state.block(900, 0, BlockPointer::HOLE);
        assert!(!told(&mut state).iter().any(|words| words.contains("900:")));
    }

    /// Goal: the tree of a dnode has room for what its pointers can lead to.
    #[test]
    fn capacities_follow_levels_and_pointers() {
        let of = |levels, pointers| {
            let mut dnode = DnodePhys::new(ObjectType::PLAIN_FILE_CONTENTS, 512, 17, pointers);
            dnode.levels = levels;
            Geometry::of(&dnode).capacity_blocks
        };
        assert_eq!(of(1, 3), 3);
        assert_eq!(of(2, 3), 3 << 10);
        assert_eq!(of(3, 1), 1 << 20);
        assert_eq!(of(12, 3), u64::MAX);
    }
}
