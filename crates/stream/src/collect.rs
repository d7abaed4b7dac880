//! Traversing what is to be sent: what there is to write, in the order in which it is written
//! (`send_cb`, module/zfs/dmu_send.c).
//!
//! A traversal tells of all dnodes of a block at once, and of their data after that. An object is
//! so kept until its own data, or what comes behind it, is met. A traversal ends when enough has
//! been found, and goes on where it ended: the dnodes of the block that it ended in are met again,
//! and those that were told are known by their numbers.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use device::BoxFuture;
use format::{
    BlockPointer, Bookmark, DNODES_PER_BLOCK, DnodePhys, Endian, ObjectId, ObjectType, ObjsetPhys,
    Txg,
};
use object::{Leads, Met, Visitor};
use parking_lot::Mutex;
use zio::pipeline::Pipeline;
use zio::{ReadContext, ZioError};

use crate::StreamError;

/// Bytes of blocks that end a traversal.
const BATCH_BYTES: u64 = 32 << 20;
/// Things to write that end it.
const BATCH_EVENTS: usize = 8192;

/// Something to write.
pub(crate) enum Event {
    Object {
        object: u64,
        dnode: Box<DnodePhys>,
        endian: Endian,
    },
    /// What the block of dnodes is stored with that the objects behind this are in; of raw streams.
    ObjectRange {
        first: u64,
        pointer: BlockPointer,
    },
    FreeObjects {
        first: u64,
        count: u64,
    },
    Data {
        object: u64,
        block: u64,
        pointer: BlockPointer,
        block_bytes: u64,
        object_type: ObjectType,
    },
    Spill {
        object: u64,
        pointer: BlockPointer,
        bonus_type: ObjectType,
        /// The receiver has it.
        is_old: bool,
    },
    Hole {
        object: u64,
        offset_bytes: u64,
        length_bytes: u64,
        block_bytes: u64,
    },
    /// Blocks that are left out.
    Redact {
        object: u64,
        offset_bytes: u64,
        length_bytes: u64,
    },
}

/// What of an object later events need.
#[derive(Clone, Copy)]
struct Shape {
    block_bytes: u64,
    indirect_shift: u8,
    last_block: u64,
    object_type: ObjectType,
    bonus_type: ObjectType,
}

#[derive(Default)]
struct State {
    events: Vec<Event>,
    bytes: u64,
    /// Slots of dnodes that were met, and not told yet; none for free ones.
    waiting: BTreeMap<u64, Option<(Box<DnodePhys>, Endian)>>,
    /// Objects of the block of dnodes that was met last.
    shapes: BTreeMap<u64, Shape>,
    meta: Option<Shape>,
    /// Numbers below this were told.
    told_below: u64,
    /// First object and pointer of a block of dnodes of which nothing was told yet.
    range: Option<(u64, BlockPointer)>,
    /// First object of the block of dnodes that was told last.
    range_told: Option<u64>,
    error: Option<StreamError>,
}

/// Told of an object set.
pub(crate) struct Collector {
    pipeline: Arc<Pipeline>,
    after: Txg,
    /// Dnodes are told with their bonuses as they are stored, and blocks of them as well.
    is_raw: bool,
    state: Mutex<State>,
}

fn is_special(object: ObjectId) -> bool {
    object.get() >= ObjectId::LIMIT
}

impl Collector {
    /// Of what was born after `after`, from this object on.
    pub(crate) fn new(
        pipeline: Arc<Pipeline>,
        after: Txg,
        from: Option<u64>,
        is_raw: bool,
    ) -> Arc<Self> {
        Arc::new(Self {
            pipeline,
            after,
            is_raw,
            state: Mutex::new(State {
                told_below: from.unwrap_or(1),
                ..State::default()
            }),
        })
    }

    /// What was found; at the end also what was kept for its data.
    pub(crate) fn take(&self, is_end: bool) -> Result<Vec<Event>, StreamError> {
        let mut state = self.state.lock();
        if let Some(error) = state.error.take() {
            return Err(error);
        }
        if is_end {
            state.tell_below(u64::MAX, self.after);
        }
        state.bytes = 0;
        Ok(std::mem::take(&mut state.events))
    }
}

impl State {
    /// Tells of the objects with numbers below this.
    fn tell_below(&mut self, below: u64, after: Txg) {
        while let Some(entry) = self.waiting.first_entry() {
            let object = *entry.key();
            if object >= below {
                return;
            }
            if let Some((first, pointer)) = self.range.take() {
                self.range_told = Some(first);
                self.events.push(Event::ObjectRange { first, pointer });
            }
            match entry.remove() {
                None => self.free_objects(object, 1),
                Some((dnode, endian)) => {
                    let old_spill = dnode.spill.filter(|spill| {
                        !after.is_zero() && !spill.is_hole() && spill.logical_birth() <= after
                    });
                    let bonus_type = dnode.bonus_type;
                    self.events.push(Event::Object {
                        object,
                        dnode,
                        endian,
                    });
                    // One that was taken for removed by old receivers (piggyback_unmodified_spill).
                    if let Some(pointer) = old_spill {
                        self.events.push(Event::Spill {
                            object,
                            pointer,
                            bonus_type,
                            is_old: true,
                        });
                    }
                }
            }
            self.told_below = object + 1;
        }
    }

    fn free_objects(&mut self, first: u64, count: u64) {
        // Numbers beyond the last block of dnodes are free anyway.
        let last = self.meta.map_or(0, |meta| meta.last_block);
        let end = last.saturating_add(1).saturating_mul(DNODES_PER_BLOCK);
        let count = first.saturating_add(count).min(end).saturating_sub(first);
        if count > 0 {
            self.events.push(Event::FreeObjects { first, count });
        }
    }

    fn hole(&mut self, met: &Met<'_>, after: Txg) {
        let bookmark = met.bookmark;
        let object = bookmark.object.get();
        let is_meta = object == 0;
        let shape = match is_meta {
            true => self.meta,
            false => self.shapes.get(&object).copied(),
        };
        let Some(shape) = shape else { return };
        let pointers_shift = u32::from(shape.indirect_shift).saturating_sub(7);
        let level = u32::try_from(bookmark.level).unwrap_or(0);
        let span = 1u64.checked_shl(pointers_shift.saturating_mul(level));
        // A place that no block can have is always a hole.
        let Some(span) = span else { return };
        let Some(first) = span.checked_mul(bookmark.block_id) else {
            return;
        };
        if is_meta {
            let first = first.saturating_mul(DNODES_PER_BLOCK);
            self.tell_below(first.max(1), after);
            let count = span.saturating_mul(DNODES_PER_BLOCK);
            self.free_objects(first, count);
            return;
        }
        let is_beyond = first > shape.last_block && !shape.object_type.is_metadata();
        self.tell_below(object + 1, after);
        if is_beyond {
            return;
        }
        let Some(offset_bytes) = first.checked_mul(shape.block_bytes) else {
            return;
        };
        let length_bytes = span
            .checked_mul(shape.block_bytes)
            .unwrap_or(u64::MAX - offset_bytes);
        self.events.push(Event::Hole {
            object,
            offset_bytes,
            length_bytes,
            block_bytes: shape.block_bytes,
        });
    }
}

impl Visitor for Collector {
    fn ends_before(&self, _bookmark: &Bookmark) -> bool {
        let state = self.state.lock();
        state.bytes >= BATCH_BYTES || state.events.len() >= BATCH_EVENTS || state.error.is_some()
    }

    fn wants_holes(&self) -> bool {
        true
    }

    // The other side has the data of blocks that were only moved.
    fn goes_by_data(&self) -> bool {
        true
    }

    fn hole(&self, met: &Met<'_>) {
        if !is_special(met.bookmark.object) && met.bookmark.block_id != Bookmark::SPILL_BLOCK_ID {
            self.state.lock().hole(met, self.after);
        }
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
                    state.tell_below(first, self.after);
                    state.shapes.clear();
                    // The block that the last part ended in is met again.
                    let is_told = state.range_told == Some(first);
                    state.range = (self.is_raw && !is_told).then_some((first, *met.pointer));
                }
                true
            }
            Leads::Nowhere => {
                let object = bookmark.object.get();
                state.tell_below(object + 1, self.after);
                let Some(shape) = state.shapes.get(&object).copied() else {
                    return false;
                };
                state.bytes += met.pointer.lsize_bytes();
                let event = match bookmark.block_id {
                    Bookmark::SPILL_BLOCK_ID => Event::Spill {
                        object,
                        pointer: *met.pointer,
                        bonus_type: shape.bonus_type,
                        is_old: false,
                    },
                    block => Event::Data {
                        object,
                        block,
                        pointer: *met.pointer,
                        block_bytes: shape.block_bytes,
                        object_type: shape.object_type,
                    },
                };
                state.events.push(event);
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
                without_key: self.is_raw,
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
        self.state.lock().meta = Some(shape(&objset.meta_dnode));
    }

    fn dnode(&self, object: ObjectId, dnode: &DnodePhys, endian: Endian) {
        if is_special(object) {
            return;
        }
        let mut state = self.state.lock();
        state.shapes.insert(object.get(), shape(dnode));
        if object.get() >= state.told_below {
            let dnode = Some((Box::new(dnode.clone()), endian));
            state.waiting.insert(object.get(), dnode);
        }
    }

    fn free_slot(&self, object: ObjectId) {
        let mut state = self.state.lock();
        if object.get() >= state.told_below && !is_special(object) {
            state.waiting.insert(object.get(), None);
        }
    }

    fn damaged(&self, bookmark: &Bookmark, why: &str) {
        let mut state = self.state.lock();
        let error = StreamError::Damaged {
            what: format!("{bookmark}: {why}"),
        };
        state.error.get_or_insert(error);
    }
}

fn shape(dnode: &DnodePhys) -> Shape {
    Shape {
        block_bytes: dnode.data_block_bytes.into(),
        indirect_shift: dnode.indirect_block_shift,
        last_block: dnode.max_block_id,
        object_type: dnode.object_type,
        bonus_type: dnode.bonus_type,
    }
}
