//! Walking an object set: every block of it, in one order, from any place on.
//!
//! [`traverse`] goes through an object set from its block pointer, depth first: the object set's
//! block, the meta-dnode's tree, with every object's tree where its dnode is met, and at last the
//! objects of space accounting. The order is that of OpenZFS's bookmarks (`order`), so a place to
//! go on from means the same here and there. Only what was born after a given transaction group is
//! entered: a block is never older than what it leads to.
//!
//! A [`Visitor`] is told of each block that is met, before what the block leads to. It reads those
//! that lead to others, so that it can verify them, and it may end the traversal before any block
//! of level 0. Going on at the bookmark that this gave, in the same object set or in a later state
//! of it, meets the rest and enters again what leads there ([`Met::is_again`]).
//!
//! # Reading ahead
//! What leads to others is read in tasks, ahead of its turn: of each level of the traversal's stack
//! the next [`AHEAD_PER_FRAME`]. When [`traverse`] returns, no such task is left.
//!
//! # State
//! A stack of frames, one for each block that was entered, with the pointers in it that are still
//! to be met: memory is bounded by depth times fan-out. A crash leaves nothing.
//!
//! Source: module/zfs/dmu_traverse.c (`traverse_visitbp`), module/zfs/dsl_scan.c
//! (`dsl_scan_visitbp`, `dsl_scan_recurse`, `dsl_scan_check_resume`).

mod order;

use std::sync::Arc;

use bytes::Bytes;
use device::{BoxFuture, Tasks};
use format::{
    BlockPointer, Bookmark, DNODE_SLOT_BYTES, DnodePhys, Endian, ObjectId, ObjectType, ObjsetId,
    ObjsetPhys, Txg,
};
use futures::channel::oneshot;
use zio::ZioError;

use order::{Shape, is_accounting, is_before, is_from};

/// Blocks of one frame that are read ahead at the same time.
const AHEAD_PER_FRAME: usize = 16;
/// Of an object set's root no dnode says how it is: nothing is before or after it.
const ROOT_SHAPE: Shape = Shape {
    block_sectors: 1,
    indirect_shift: 0,
};

/// What a block is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Leads {
    /// An object set.
    Root,
    /// An indirect block of a meta-dnode, or a block of dnodes.
    Dnodes,
    /// An indirect block.
    Indirect,
    /// Data, or a spill block: it leads nowhere.
    Nowhere,
}

/// A block that is met.
#[derive(Debug, Clone, Copy)]
pub struct Met<'a> {
    /// Its pointer: no hole, not redacted, but for [`Visitor::hole`].
    pub pointer: &'a BlockPointer,
    /// Where it is.
    pub bookmark: Bookmark,
    /// What it is.
    pub leads: Leads,
    /// It was met by the traversal that is gone on with: it is entered once more.
    pub is_again: bool,
}

/// Who is told of the blocks.
pub trait Visitor: Send + Sync + 'static {
    /// Whether to end before this block, which is of level 0 or an object set's root.
    fn ends_before(&self, _bookmark: &Bookmark) -> bool {
        false
    }

    /// Whether to be told of holes and of redacted blocks, as of any other block: [`Self::hole`].
    /// Those that never were anything else count as changed.
    fn wants_holes(&self) -> bool {
        false
    }

    /// Whether blocks are old by when their data was written, rather than by when their space was
    /// allocated: then blocks that were only moved (`zfs rewrite -P`) are not met
    /// (`TRAVERSE_LOGICAL`, `traverse_visitbp`, module/zfs/dmu_traverse.c). A block above is never
    /// older than those below it, by either.
    fn goes_by_data(&self) -> bool {
        false
    }

    /// A hole or a redacted block is met.
    fn hole(&self, _met: &Met<'_>) {}

    /// A slot of a block of dnodes holds no object.
    fn free_slot(&self, _object: ObjectId) {}

    /// A block is met. Whether to enter it, if it leads to others.
    fn meet(&self, met: &Met<'_>) -> bool;

    /// Reads a block that leads to others, perhaps long before it is met, or in vain.
    fn read(
        self: Arc<Self>,
        pointer: BlockPointer,
        bookmark: Bookmark,
    ) -> BoxFuture<'static, Result<Bytes, ZioError>>;

    /// A block that was met and is to be entered was read, or could not be.
    fn entered(&self, _met: &Met<'_>, _result: Result<(), &ZioError>) {}

    /// An object's dnode is met: its blocks follow.
    fn dnode(&self, _object: ObjectId, _dnode: &DnodePhys, _endian: Endian) {}

    /// An object set's block was entered: its blocks follow.
    fn objset(&self, _objset: &ObjsetPhys) {}

    /// What a block holds cannot be understood, so what it leads to is not met.
    fn damaged(&self, _bookmark: &Bookmark, _why: &str) {}
}

/// What to traverse.
#[derive(Debug, Clone, Copy)]
pub struct Traverse {
    /// The object set's block.
    pub root: BlockPointer,
    /// The object set's number, for bookmarks.
    pub objset: ObjsetId,
    /// Only what was born after this.
    pub after: Txg,
    /// Where to go on; `None` from the start.
    pub from: Option<Bookmark>,
}

/// How a traversal ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Traversed {
    /// Everything was met.
    Whole,
    /// The visitor ended it; it goes on here.
    Until(Bookmark),
}

type Read = Result<Bytes, ZioError>;

/// A pointer that is still to be met.
struct Item {
    pointer: BlockPointer,
    bookmark: Bookmark,
    leads: Leads,
    shape: Shape,
    /// Being read ahead.
    read: Option<oneshot::Receiver<Read>>,
}

/// The pointers in a block that was entered.
#[derive(Default)]
struct Frame {
    items: std::vec::IntoIter<Item>,
    /// Items at the front that were looked at for reading ahead.
    looked_at: usize,
    /// Items that are being read ahead.
    reading: usize,
}

struct Traversal<V> {
    visitor: Arc<V>,
    tasks: Tasks,
    objset: ObjsetId,
    after: Txg,
    /// The place to go on from, until it is found.
    from: Option<Bookmark>,
    stack: Vec<Frame>,
}

/// Walks an object set; see the module. Tasks that read ahead belong to `tasks`.
pub async fn traverse<V: Visitor>(what: &Traverse, tasks: &Tasks, visitor: &Arc<V>) -> Traversed {
    let tasks = tasks.group();
    let mut traversal = Traversal {
        visitor: visitor.clone(),
        tasks: tasks.clone(),
        objset: what.objset,
        after: what.after,
        from: what.from.filter(|at| !is_start(at)),
        stack: Vec::new(),
    };
    let root = Bookmark::new(what.objset, ObjectId::ZERO, Bookmark::ROOT_LEVEL, 0);
    let mut items = Vec::new();
    traversal.add(what.root, root, Leads::Root, ROOT_SHAPE, &mut items);
    traversal.push(items);
    let traversed = traversal.run().await;
    // What was read in vain.
    tasks.wait().await;
    traversed
}

/// Whether nothing is stored where a pointer leads.
fn is_empty(pointer: &BlockPointer) -> bool {
    pointer.is_hole() || pointer.is_redacted()
}

/// Whether a place is the start of an object set.
fn is_start(at: &Bookmark) -> bool {
    at.object.is_zero() && at.level == 0 && at.block_id == 0
}

impl<V: Visitor> Traversal<V> {
    async fn run(&mut self) -> Traversed {
        loop {
            self.read_ahead();
            let Some(frame) = self.stack.last_mut() else {
                return Traversed::Whole;
            };
            let Some(mut item) = frame.items.next() else {
                self.stack.pop();
                continue;
            };
            frame.looked_at = frame.looked_at.saturating_sub(1);
            frame.reading -= usize::from(item.read.is_some());
            let never_skipped = is_accounting(item.bookmark.object);
            let mut is_found = false;
            if let Some(from) = &self.from
                && !never_skipped
                && item.leads != Leads::Root
            {
                if is_before(item.shape, &item.bookmark, from) {
                    continue;
                }
                if is_from(item.shape, &item.bookmark, from) {
                    self.from = None;
                    is_found = true;
                }
            }
            // Whoever goes on gets at least one block further. The first block of dnodes is where
            // those begin who begin.
            let may_end = item.bookmark.level == 0 && !is_start(&item.bookmark);
            if (may_end || item.leads == Leads::Root)
                && !is_found
                && self.from.is_none()
                && !never_skipped
                && self.visitor.ends_before(&item.bookmark)
            {
                return Traversed::Until(match item.leads {
                    Leads::Root => Bookmark::new(self.objset, ObjectId::ZERO, 0, 0),
                    _ => item.bookmark,
                });
            }
            self.meet(&mut item).await;
        }
    }

    async fn meet(&mut self, item: &mut Item) {
        let met = Met {
            pointer: &item.pointer,
            bookmark: item.bookmark,
            leads: item.leads,
            is_again: self.from.is_some() && !is_accounting(item.bookmark.object),
        };
        if is_empty(&item.pointer) {
            self.visitor.hole(&met);
            return;
        }
        if !self.visitor.meet(&met) || item.leads == Leads::Nowhere {
            return;
        }
        let ahead = match item.read.take() {
            // Its task may have been cancelled.
            Some(read) => read.await.ok(),
            None => None,
        };
        let read = match ahead {
            Some(read) => read,
            None => {
                let visitor = self.visitor.clone();
                visitor.read(item.pointer, item.bookmark).await
            }
        };
        self.visitor.entered(&met, read.as_ref().map(|_| ()));
        if let Ok(data) = read {
            let items = self.enter(item, &data);
            self.push(items);
        }
    }

    fn push(&mut self, items: Vec<Item>) {
        if !items.is_empty() {
            self.stack.push(Frame {
                items: items.into_iter(),
                ..Frame::default()
            });
        }
    }

    /// Starts reading what comes next, nearest first.
    fn read_ahead(&mut self) {
        for frame in self.stack.iter_mut().rev() {
            let left = frame.items.as_mut_slice();
            while frame.reading < AHEAD_PER_FRAME && frame.looked_at < left.len() {
                let item = &mut left[frame.looked_at];
                frame.looked_at += 1;
                let is_skipped = || {
                    self.from.as_ref().is_some_and(|from| {
                        item.leads != Leads::Root && is_before(item.shape, &item.bookmark, from)
                    })
                };
                if item.leads == Leads::Nowhere || is_empty(&item.pointer) || is_skipped() {
                    continue;
                }
                let (send, receive) = oneshot::channel();
                let read = self.visitor.clone().read(item.pointer, item.bookmark);
                self.tasks.spawn("traversal", async move {
                    let _ = send.send(read.await);
                });
                item.read = Some(receive);
                frame.reading += 1;
            }
        }
    }

    /// The pointers in a block.
    fn enter(&self, item: &Item, data: &[u8]) -> Vec<Item> {
        let endian = item.pointer.endian();
        let mut out = Vec::new();
        match item.leads {
            Leads::Root => match ObjsetPhys::decode(data, endian) {
                Ok(objset) => {
                    self.visitor.objset(&objset);
                    self.add_objset(&objset, endian, &mut out);
                }
                Err(error) => self.visitor.damaged(&item.bookmark, &error.to_string()),
            },
            Leads::Dnodes if item.bookmark.level == 0 => {
                self.add_dnodes(item, data, endian, &mut out);
            }
            Leads::Dnodes | Leads::Indirect => {
                let pointers = BlockPointer::decode_all(data, endian);
                let count = pointers.len() as u64;
                for (index, pointer) in pointers.enumerate() {
                    let first = item.bookmark.block_id.saturating_mul(count);
                    let below = Bookmark {
                        level: item.bookmark.level - 1,
                        block_id: first.saturating_add(index as u64),
                        ..item.bookmark
                    };
                    self.add(pointer, below, item.leads, item.shape, &mut out);
                }
            }
            Leads::Nowhere => {}
        }
        out
    }

    fn add_objset(&self, objset: &ObjsetPhys, endian: Endian, out: &mut Vec<Item>) {
        self.add_dnode(&objset.meta_dnode, ObjectId::ZERO, endian, out);
        if let Some(dnode) = objset.project_used.as_deref() {
            self.add_dnode(dnode, ObjectId::PROJECT_USED, endian, out);
        }
        if let Some([user, group]) = objset.user_group_used.as_deref() {
            self.add_dnode(group, ObjectId::GROUP_USED, endian, out);
            self.add_dnode(user, ObjectId::USER_USED, endian, out);
        }
    }

    fn add_dnodes(&self, item: &Item, data: &[u8], endian: Endian, out: &mut Vec<Item>) {
        let per_block = (data.len() / DNODE_SLOT_BYTES) as u64;
        let first = item.bookmark.block_id.saturating_mul(per_block);
        let mut slot = 0;
        while let Some(raw) = data
            .get(slot * DNODE_SLOT_BYTES..)
            .filter(|raw| !raw.is_empty())
        {
            let object = ObjectId::new(first.saturating_add(slot as u64));
            match DnodePhys::decode(raw, endian) {
                Ok(dnode) => {
                    slot += dnode.slots();
                    self.add_dnode(&dnode, object, endian, out);
                }
                Err(error) => {
                    slot += 1;
                    let bookmark = Bookmark {
                        object,
                        ..item.bookmark
                    };
                    self.visitor.damaged(&bookmark, &error.to_string());
                }
            }
        }
    }

    fn add_dnode(&self, dnode: &DnodePhys, object: ObjectId, endian: Endian, out: &mut Vec<Item>) {
        let is_meta = object.is_zero();
        if dnode.is_free() {
            if !is_meta {
                self.visitor.free_slot(object);
            }
            return;
        }
        if !is_meta {
            self.visitor.dnode(object, dnode, endian);
        }
        let shape = Shape {
            block_sectors: dnode.data_block_bytes >> 9,
            indirect_shift: dnode.indirect_block_shift,
        };
        let leads = match is_meta {
            true => Leads::Dnodes,
            false => Leads::Indirect,
        };
        for (index, pointer) in dnode.pointers.iter().enumerate() {
            let level = i64::from(dnode.levels) - 1;
            let bookmark = Bookmark::new(self.objset, object, level, index as u64);
            self.add(*pointer, bookmark, leads, shape, out);
        }
        if let Some(spill) = &dnode.spill {
            let bookmark = Bookmark::new(self.objset, object, 0, Bookmark::SPILL_BLOCK_ID);
            self.add(*spill, bookmark, Leads::Nowhere, shape, out);
        }
    }

    /// Adds a pointer that is to be met.
    fn add(
        &self,
        pointer: BlockPointer,
        bookmark: Bookmark,
        leads: Leads,
        shape: Shape,
        out: &mut Vec<Item>,
    ) {
        let birth = match self.visitor.goes_by_data() {
            true => pointer.logical_birth(),
            false => pointer.birth(),
        };
        if is_empty(&pointer) {
            // A hole that was never anything else has no birth.
            let is_old = !birth.is_zero() && birth <= self.after;
            if self.visitor.wants_holes() && !is_old {
                out.push(Item {
                    pointer,
                    bookmark,
                    leads,
                    shape,
                    read: None,
                });
            }
            return;
        }
        if birth <= self.after {
            return;
        }
        let is_leaf = bookmark.level == 0 && leads == Leads::Indirect;
        // A tree is as deep as its dnode says: so no pointer leads in circles.
        let level = bookmark.level.max(0);
        if !pointer.is_embedded() && level != i64::from(pointer.level()) {
            self.visitor
                .damaged(&bookmark, "a block pointer has the wrong level");
            return;
        }
        if leads == Leads::Root && pointer.object_type() != ObjectType::OBJSET {
            self.visitor.damaged(
                &bookmark,
                "a dataset's block pointer leads to no object set",
            );
            return;
        }
        out.push(Item {
            pointer,
            bookmark,
            leads: match is_leaf {
                true => Leads::Nowhere,
                false => leads,
            },
            shape,
            read: None,
        });
    }
}
