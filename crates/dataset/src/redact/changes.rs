//! What a later snapshot has no more of an earlier one: ranges of blocks that were written anew or
//! freed since (`redact_cb`, module/zfs/dmu_redact.c).
//!
//! The later one is traversed as for a stream: blocks and holes that were born after the earlier
//! one, in the order of objects and blocks. An object that is gone, or waits to be freed, has none
//! of its blocks. So has one whose blocks are of another size than they were, and what is beyond
//! the blocks that its tree can have is gone, too.
//!
//! A traversal ends when enough has been found, and goes on where it ended: the dnodes of the block
//! that it ended in are met again, and those that were told are known by their numbers.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use bytes::Bytes;
use device::BoxFuture;
use format::{
    BlockPointer, Bookmark, DNODES_PER_BLOCK, DnodePhys, Endian, ObjectId, ObjectType, ObjsetId,
    ObjsetKind, ObjsetPhys, Txg,
};
use object::{Leads, Met, Traverse, Traversed, Visitor, Zap, traverse};
use parking_lot::Mutex;
use zio::pipeline::Pipeline;
use zio::{ReadContext, ZioError};

use super::spans::{Place, Span, push};
use crate::{Dataset, DatasetError};

/// Finds that end a traversal.
const BATCH: usize = 4096;
/// The queue of files that wait to be freed, in a filesystem's master node (`ZFS_UNLINKED_SET`).
const DELETE_QUEUE: &str = "DELETE_QUEUE";

/// What is found, in order.
enum Find {
    /// An object is there: the size of its blocks, and how many its tree can have.
    Object {
        object: u64,
        block_bytes: u32,
        capacity: u64,
    },
    Gone(Span),
    /// Blocks of the object that was found last.
    Blocks(Span),
}

/// How the tree of an object is.
#[derive(Clone, Copy)]
struct Shape {
    block_bytes: u32,
    indirect_shift: u8,
    capacity: u64,
}

impl Shape {
    fn of(dnode: &DnodePhys) -> Self {
        let mut shape = Self {
            block_bytes: dnode.data_block_bytes,
            indirect_shift: dnode.indirect_block_shift,
            capacity: 0,
        };
        let top = shape.blocks_below(i64::from(dnode.levels) - 1);
        shape.capacity = top.saturating_mul(dnode.pointers.len() as u64);
        shape
    }

    /// Blocks of data that a pointer at a level leads to.
    fn blocks_below(&self, level: i64) -> u64 {
        let shift = u32::from(self.indirect_shift).saturating_sub(7);
        let level = u32::try_from(level).unwrap_or(0);
        let shift = shift.saturating_mul(level);
        1u64.checked_shl(shift).unwrap_or(u64::MAX)
    }
}

#[derive(Default)]
struct State {
    finds: Vec<Find>,
    /// Slots that were met and not told yet; `None` where nothing is, or soon will be.
    waiting: BTreeMap<u64, Option<Shape>>,
    /// Objects of the block of dnodes that was met last.
    shapes: BTreeMap<u64, Shape>,
    meta: Option<Shape>,
    /// Numbers below this were told.
    told_below: u64,
    error: Option<DatasetError>,
}

impl State {
    fn tell_below(&mut self, below: u64) {
        while let Some(entry) = self.waiting.first_entry() {
            let object = *entry.key();
            if object >= below {
                return;
            }
            self.finds.push(match entry.remove() {
                None => Find::Gone(Span::objects(object, object)),
                Some(shape) => Find::Object {
                    object,
                    block_bytes: shape.block_bytes,
                    capacity: shape.capacity,
                },
            });
            self.told_below = object + 1;
        }
    }

    fn wait(&mut self, object: u64, shape: Option<Shape>) {
        if object >= self.told_below {
            self.waiting.insert(object, shape);
        }
    }
}

/// Is told of the later snapshot.
struct Changes {
    pipeline: Arc<Pipeline>,
    /// Files that wait to be freed.
    deleted: BTreeSet<u64>,
    state: Mutex<State>,
}

fn is_special(object: ObjectId) -> bool {
    object.get() >= ObjectId::LIMIT
}

impl Visitor for Changes {
    fn ends_before(&self, _bookmark: &Bookmark) -> bool {
        let state = self.state.lock();
        state.finds.len() >= BATCH || state.error.is_some()
    }

    fn wants_holes(&self) -> bool {
        true
    }

    // What was only moved is still there.
    fn goes_by_data(&self) -> bool {
        true
    }

    fn hole(&self, met: &Met<'_>) {
        let Bookmark {
            object,
            level,
            block_id,
            ..
        } = met.bookmark;
        if is_special(object) || block_id == Bookmark::SPILL_BLOCK_ID {
            return;
        }
        let mut state = self.state.lock();
        if object.is_zero() {
            let Some(meta) = state.meta else { return };
            let span = meta.blocks_below(level);
            let first = span.saturating_mul(block_id);
            let last = first.saturating_add(span - 1);
            let (first, last) = (
                first.saturating_mul(DNODES_PER_BLOCK).max(1),
                last.saturating_mul(DNODES_PER_BLOCK)
                    .saturating_add(DNODES_PER_BLOCK - 1),
            );
            state.tell_below(first);
            state.finds.push(Find::Gone(Span::objects(first, last)));
            return;
        }
        let number = object.get();
        state.tell_below(number + 1);
        let Some(shape) = state.shapes.get(&number).copied() else {
            return;
        };
        let span = shape.blocks_below(level);
        // A place that no block can have.
        let Some(first) = span.checked_mul(block_id) else {
            return;
        };
        let last = first.saturating_add(span - 1);
        state
            .finds
            .push(Find::Blocks(Span::blocks(number, first, last)));
    }

    fn meet(&self, met: &Met<'_>) -> bool {
        let bookmark = met.bookmark;
        if is_special(bookmark.object) {
            return false;
        }
        let mut state = self.state.lock();
        if state.error.is_some() {
            return false;
        }
        match met.leads {
            Leads::Root | Leads::Indirect => true,
            Leads::Dnodes => {
                if bookmark.level == 0 {
                    let first = bookmark.block_id.saturating_mul(DNODES_PER_BLOCK);
                    state.tell_below(first);
                    state.shapes.clear();
                }
                true
            }
            Leads::Nowhere => {
                let object = bookmark.object.get();
                state.tell_below(object + 1);
                if bookmark.block_id != Bookmark::SPILL_BLOCK_ID {
                    let block = bookmark.block_id;
                    state
                        .finds
                        .push(Find::Blocks(Span::blocks(object, block, block)));
                }
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
            let context = ReadContext::new(bookmark);
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
        self.state.lock().meta = Some(Shape::of(&objset.meta_dnode));
    }

    fn dnode(&self, object: ObjectId, dnode: &DnodePhys, _endian: Endian) {
        if is_special(object) {
            return;
        }
        let (number, shape) = (object.get(), Shape::of(dnode));
        let mut state = self.state.lock();
        state.shapes.insert(number, shape);
        let is_there = !self.deleted.contains(&number);
        state.wait(number, is_there.then_some(shape));
    }

    fn free_slot(&self, object: ObjectId) {
        if !is_special(object) {
            self.state.lock().wait(object.get(), None);
        }
    }

    fn damaged(&self, bookmark: &Bookmark, why: &str) {
        let mut state = self.state.lock();
        let error = DatasetError::corrupt(bookmark.object, why);
        state.error.get_or_insert(error);
    }
}

/// Ranges of blocks that a later snapshot has no more of an earlier one, in order.
pub(super) struct ChangedSpans {
    earlier: Dataset,
    changes: Arc<Changes>,
    what: Traverse,
    is_over: bool,
    ready: VecDeque<Span>,
    /// All blocks of this object were told already.
    is_told: Option<u64>,
    /// What is gone behind the other blocks of the object that is told now.
    tail: Option<Span>,
}

impl ChangedSpans {
    /// Of `later`, from the block of dnodes on that this place is in.
    pub(super) async fn new(
        earlier: &Dataset,
        since: Txg,
        later: &Dataset,
        from: Place,
    ) -> Result<Self, DatasetError> {
        let objset = ObjsetId::new(later.object().get());
        let block = from.0 / DNODES_PER_BLOCK;
        let start = Bookmark::new(objset, ObjectId::ZERO, 0, block);
        let changes = Changes {
            pipeline: later.objset().pipeline().clone(),
            deleted: deleted(later).await?,
            state: Mutex::new(State {
                told_below: (block * DNODES_PER_BLOCK).max(1),
                ..State::default()
            }),
        };
        Ok(Self {
            earlier: earlier.clone(),
            changes: Arc::new(changes),
            what: Traverse {
                root: later.objset().root(),
                objset,
                after: since,
                from: (block > 0).then_some(start),
            },
            is_over: false,
            ready: VecDeque::new(),
            is_told: None,
            tail: None,
        })
    }

    /// The next range.
    pub(super) async fn next(&mut self) -> Result<Option<Span>, DatasetError> {
        while self.ready.is_empty() && !self.is_over {
            let tasks = self.changes.pipeline.tasks().clone();
            match traverse(&self.what, &tasks, &self.changes).await {
                Traversed::Whole => self.is_over = true,
                Traversed::Until(at) => self.what.from = Some(at),
            }
            let finds = {
                let mut state = self.changes.state.lock();
                if let Some(error) = state.error.take() {
                    return Err(error);
                }
                if self.is_over {
                    state.tell_below(u64::MAX);
                }
                std::mem::take(&mut state.finds)
            };
            let mut spans = Vec::new();
            for find in finds {
                self.take(find, &mut spans).await?;
            }
            if self.is_over
                && let Some(tail) = self.tail.take()
            {
                push(&mut spans, tail);
            }
            self.ready.extend(spans);
        }
        Ok(self.ready.pop_front())
    }

    async fn take(&mut self, find: Find, spans: &mut Vec<Span>) -> Result<(), DatasetError> {
        let span = match find {
            Find::Blocks(span) if self.is_told == Some(span.first.0) => return Ok(()),
            Find::Blocks(span) => span,
            Find::Gone(span) => {
                self.is_told = (span.first.0 == span.last.0).then_some(span.first.0);
                self.put_tail(span.first.0, spans);
                span
            }
            Find::Object {
                object,
                block_bytes,
                capacity,
            } => {
                self.put_tail(object, spans);
                return self.begin(object, block_bytes, capacity, spans).await;
            }
        };
        self.put_tail(span.first.0, spans);
        push(spans, span);
        Ok(())
    }

    /// Tells what is gone behind the other blocks of the last object, where another one follows.
    fn put_tail(&mut self, object: u64, spans: &mut Vec<Span>) {
        if let Some(tail) = self.tail.take_if(|tail| tail.first.0 != object) {
            push(spans, tail);
        }
    }

    /// An object that the later snapshot has: how it was.
    async fn begin(
        &mut self,
        object: u64,
        block_bytes: u32,
        capacity: u64,
        spans: &mut Vec<Span>,
    ) -> Result<(), DatasetError> {
        let held = self.earlier.objset().hold(ObjectId::new(object)).await;
        let info = match held {
            Ok(held) => held.info(),
            Err(error) if error.is_not_found() => {
                self.is_told = Some(object);
                return Ok(());
            }
            Err(error) => return Err(error.into()),
        };
        if info.data_block_bytes != block_bytes {
            self.is_told = Some(object);
            push(spans, Span::objects(object, object));
            return Ok(());
        }
        self.is_told = None;
        self.tail =
            (info.max_block_id >= capacity).then(|| Span::blocks(object, capacity, u64::MAX));
        Ok(())
    }
}

/// Files that a filesystem has only until somebody has the time to free them.
async fn deleted(dataset: &Dataset) -> Result<BTreeSet<u64>, DatasetError> {
    let objset = dataset.objset();
    if objset.kind() != ObjsetKind::Filesystem {
        return Ok(BTreeSet::new());
    }
    let master = Zap::hold(objset, ObjectId::MASTER_NODE).await?;
    let Some(queue) = master.lookup_u64(DELETE_QUEUE).await? else {
        return Ok(BTreeSet::new());
    };
    let queue = Zap::hold(objset, ObjectId::new(queue)).await?;
    let entries = queue.all().await?;
    let numbers = entries.iter().filter_map(|entry| entry.value.as_u64());
    Ok(numbers.collect())
}

/// Whether the blocks of objects of a type are left out: only what users store is.
pub(super) fn is_redacted(kind: ObjectType) -> bool {
    !kind.is_metadata()
}
