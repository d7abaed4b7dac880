//! Finding and reading blocks through an object's tree on disk.

use std::sync::Arc;

use bytes::Bytes;
use format::Bookmark;
use format::{BlockPointer, Endian, ObjectId, ObjectType, ObjsetId, Txg};
use parking_lot::RwLock;
use zio::{CacheUse, Pipeline, ReadContext};

use crate::dnode::{Dnode, Found, Tree, shl, shr};
use crate::error::{ObjectError, Result, damaged};
use crate::indirect::{IndirectCache, child};
use crate::options::{ObjsetOptions, WriteProperties};
use crate::raw::RawDnodeBlocks;

/// A block's newest content.
#[derive(Debug, Clone)]
pub(crate) enum Block {
    /// These bytes, in this byte order.
    Data(Bytes, Endian),
    /// Never written, or freed: reads as zeros.
    Zeros,
}

/// What the caches keep of a data block that is read; what they have is used in any case. The
/// indirect blocks on the way to it are kept as properties say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Keeping {
    /// As `primarycache` and `secondarycache` say.
    AsProperties,
    /// Nothing.
    Nothing,
}

/// Blocks `first..end` that cannot be reached, as an indirect block above them cannot be read.
#[derive(Debug)]
pub(crate) struct LostBlocks {
    pub first: u64,
    pub end: u64,
    pub error: ObjectError,
}

/// Txg of readers who want the newest.
pub(crate) const NEWEST: Txg = Txg::new(u64::MAX);

tokio::task_local! {
    /// Whether the task reads ahead.
    static AHEAD: bool;
}

/// Runs what reads ahead of somebody: what others wait for goes before what it reads, and a failure
/// is nobody's, whoever needs the block will hear of it.
pub async fn reads_ahead<T>(work: impl Future<Output = T>) -> T {
    AHEAD.scope(true, work).await
}

/// Reads an object set's blocks, each through the tree of its object.
pub(crate) struct Blocks {
    pub(crate) pipeline: Arc<Pipeline>,
    pub(crate) options: ObjsetOptions,
    /// How blocks are written, and which the cache keeps.
    pub(crate) properties: RwLock<WriteProperties>,
    pub(crate) indirects: Arc<IndirectCache>,
    pub(crate) raw_dnodes: RawDnodeBlocks,
}

impl Blocks {
    /// Nothing known yet.
    pub(crate) fn new(pipeline: Arc<Pipeline>, options: ObjsetOptions) -> Self {
        Blocks {
            properties: RwLock::new(options.properties),
            options,
            indirects: IndirectCache::new(64, pipeline.cache().charge()),
            pipeline,
            raw_dnodes: RawDnodeBlocks::default(),
        }
    }

    pub(crate) fn bookmark(&self, object: ObjectId, level: u8, block: u64) -> Bookmark {
        Bookmark {
            objset: ObjsetId::new(self.options.dataset.get()),
            object,
            level: i64::from(level),
            block_id: block,
        }
    }

    /// How a block of an object is read: as somebody waits for it, unless the task reads ahead.
    pub(crate) fn read_context(
        &self,
        object: ObjectId,
        object_type: ObjectType,
        level: u8,
        block: u64,
    ) -> ReadContext {
        let (cached, cached_second) = {
            let properties = self.properties.read();
            (properties.cached, properties.cached_second)
        };
        let bookmark = self.bookmark(object, level, block);
        let is_ahead = AHEAD.try_with(|ahead| *ahead).unwrap_or(false);
        let context = match is_ahead {
            true => ReadContext::in_background(bookmark),
            false => ReadContext::new(bookmark),
        };
        ReadContext {
            without_key: self.options.without_key,
            cache: cached.on_read(object_type, level),
            second: cached_second.has(object_type, level),
            speculative: is_ahead,
            ..context
        }
    }

    /// The pointer of `block` as on disk when everything on the way is in memory.
    pub(crate) fn try_resolve(
        &self,
        object: ObjectId,
        tree: &Tree,
        block: u64,
    ) -> Option<BlockPointer> {
        let mut level = tree.levels - 1;
        let top = shr(block, tree.span_shift(level));
        if top >= u64::from(tree.pointer_count) {
            return Some(BlockPointer::HOLE);
        }
        let mut pointer = tree.pointers[top as usize];
        if level == 0 {
            return Some(pointer);
        }
        let shift = tree.pointers_shift();
        let mask = shl(1, shift) - 1;
        let first = shr(block, shift);
        if let Some(found) = self.indirects.get(
            object.get(),
            first,
            tree.generation,
            (block & mask) as usize,
        ) {
            return Some(found);
        }
        while level > 0 {
            if pointer.is_hole() {
                return Some(BlockPointer::HOLE);
            }
            let data = self.pipeline.read_cached(&pointer)?;
            level -= 1;
            let index = shr(block, tree.span_shift(level)) & mask;
            let next = child(&data, pointer.endian(), index as usize)?;
            if level == 0 {
                self.indirects
                    .put(object.get(), first, tree.generation, pointer.endian(), data);
            }
            pointer = next;
        }
        Some(pointer)
    }

    /// The pointer of `block` as on disk.
    pub(crate) async fn resolve(
        &self,
        object: ObjectId,
        tree: &Tree,
        block: u64,
    ) -> Result<BlockPointer> {
        if let Some(found) = self.try_resolve(object, tree, block) {
            return Ok(found);
        }
        let mut level = tree.levels - 1;
        let shift = tree.pointers_shift();
        let mask = shl(1, shift) - 1;
        let mut pointer = tree.pointers[shr(block, tree.span_shift(level)) as usize];
        while level > 0 {
            if pointer.is_hole() {
                return Ok(BlockPointer::HOLE);
            }
            let number = shr(block, tree.span_shift(level));
            let data = self.read_indirect(object, level, number, &pointer).await?;
            level -= 1;
            let index = shr(block, tree.span_shift(level)) & mask;
            let next = child(&data, pointer.endian(), index as usize)
                .ok_or_else(|| short_indirect(object, level + 1, number))?;
            if level == 0 {
                self.indirects.put(
                    object.get(),
                    number,
                    tree.generation,
                    pointer.endian(),
                    data,
                );
            }
            pointer = next;
        }
        Ok(pointer)
    }

    /// The pointer of block `number` of a level above 0, as on disk; a hole where the tree has no
    /// such block.
    pub(crate) async fn resolve_above(
        &self,
        object: ObjectId,
        tree: &Tree,
        (wanted, number): (u8, u64),
    ) -> Result<BlockPointer> {
        let mut level = tree.levels.saturating_sub(1);
        if wanted > level {
            return Ok(BlockPointer::HOLE);
        }
        let number_at = |level: u8| {
            let shift = tree.pointers_shift() * u32::from(level - wanted);
            shr(number, shift)
        };
        let top = number_at(level);
        if top >= u64::from(tree.pointer_count) {
            return Ok(BlockPointer::HOLE);
        }
        let mask = shl(1, tree.pointers_shift()) - 1;
        let mut pointer = tree.pointers[top as usize];
        while level > wanted && !pointer.is_hole() {
            let above = number_at(level);
            let data = self.read_indirect(object, level, above, &pointer).await?;
            level -= 1;
            let index = number_at(level) & mask;
            pointer = child(&data, pointer.endian(), index as usize)
                .ok_or_else(|| short_indirect(object, level + 1, above))?;
        }
        Ok(pointer)
    }

    pub(crate) async fn read_indirect(
        &self,
        object: ObjectId,
        level: u8,
        number: u64,
        pointer: &BlockPointer,
    ) -> Result<Bytes> {
        if let Some(data) = self.pipeline.read_cached(pointer) {
            return Ok(data);
        }
        // Above level 0 the type does not matter.
        let context = self.read_context(object, ObjectType::DNODE, level, number);
        Ok(self.pipeline.read(pointer, &context).await?)
    }

    /// The newest content of a block when it is in memory.
    pub(crate) fn try_block(&self, dnode: &Dnode, block: u64) -> Option<Block> {
        let pointer = {
            let state = dnode.lock();
            match state.find(block, NEWEST) {
                Found::Data(data) => return Some(Block::Data(data, Endian::Little)),
                Found::Zeros => return Some(Block::Zeros),
                Found::Cloned(pointer) => pointer,
                Found::Raw(data) => return raw_block(dnode, data).ok(),
                Found::Disk => self.try_resolve(dnode.id, &state.tree, block)?,
            }
        };
        if pointer.is_hole() {
            return Some(Block::Zeros);
        }
        // The cache has what somebody decrypted.
        if self.options.without_key {
            let data = self.raw_dnodes.recent(&pointer)?;
            return Some(Block::Data(data, pointer.endian()));
        }
        let data = self.pipeline.read_cached(&pointer)?;
        Some(Block::Data(data, pointer.endian()))
    }

    /// The content of a block as of `txg`.
    pub(crate) fn block_at(
        &self,
        dnode: &Dnode,
        block: u64,
        txg: Txg,
    ) -> impl Future<Output = Result<Block>> {
        self.block_for(dnode, block, txg, Keeping::AsProperties)
    }

    /// [`Self::block_at`] for a reader who says what is to be kept of it.
    pub(crate) async fn block_for(
        &self,
        dnode: &Dnode,
        block: u64,
        txg: Txg,
        keeping: Keeping,
    ) -> Result<Block> {
        let mut seen = None;
        loop {
            let (tree, cloned) = {
                let state = dnode.lock();
                let cloned = match state.find(block, txg) {
                    Found::Data(data) => return Ok(Block::Data(data, Endian::Little)),
                    Found::Zeros => return Ok(Block::Zeros),
                    Found::Cloned(pointer) => Some(pointer),
                    Found::Raw(data) => return raw_block(dnode, data),
                    Found::Disk => None,
                };
                (state.tree.clone(), cloned)
            };
            // A tree read in pieces may be replaced meanwhile, and after some txgs its blocks
            // hold something else. An error counts only when the tree is still the same one.
            let stale = |generation| dnode.lock().tree.generation != generation;
            let result = async {
                let pointer = match cloned {
                    Some(pointer) => pointer,
                    None => self.resolve(dnode.id, &tree, block).await?,
                };
                if pointer.is_hole() {
                    return Ok(Block::Zeros);
                }
                let without_key = self.options.without_key;
                let in_memory = match without_key {
                    true => self.raw_dnodes.recent(&pointer),
                    false => self.pipeline.read_cached(&pointer),
                };
                if let Some(data) = in_memory {
                    return Ok(Block::Data(data, pointer.endian()));
                }
                let object_type = dnode.lock().meta().object_type;
                let context = self.read_context(dnode.id, object_type, 0, block);
                let context = match keeping {
                    Keeping::AsProperties => context,
                    Keeping::Nothing => ReadContext {
                        cache: CacheUse::NoFill,
                        second: false,
                        ..context
                    },
                };
                let data = self.pipeline.read(&pointer, &context).await?;
                if without_key && dnode.id == ObjectId::META_DNODE {
                    self.raw_dnodes.note(&pointer, &data);
                }
                Ok(Block::Data(data, pointer.endian()))
            }
            .await;
            self.pipeline.cache().charge().settle();
            match result {
                Err(_) if seen != Some(tree.generation) && stale(tree.generation) => {
                    seen = Some(tree.generation);
                }
                other => return other,
            }
        }
    }

    /// The first block number at or after `from` that is reached through pointers which all
    /// satisfy `wanted(level, pointer)`. A hole that satisfies it is not entered.
    pub(crate) async fn next_in_tree(
        &self,
        object: ObjectId,
        tree: &Tree,
        from: u64,
        wanted: &(dyn Fn(u8, &BlockPointer) -> bool + Send + Sync),
    ) -> Result<Option<u64>> {
        self.next_in_tree_or_lost(object, tree, from, wanted)
            .await
            .map_err(|lost| lost.error)
    }

    /// Like [`Self::next_in_tree`]; the failure tells which blocks cannot be reached for it.
    pub(crate) async fn next_in_tree_or_lost(
        &self,
        object: ObjectId,
        tree: &Tree,
        from: u64,
        wanted: &(dyn Fn(u8, &BlockPointer) -> bool + Send + Sync),
    ) -> std::result::Result<Option<u64>, LostBlocks> {
        let shift = tree.pointers_shift();
        let fanout = shl(1, shift);
        let mut at = from;
        'top: loop {
            let mut level = tree.levels - 1;
            let index = shr(at, tree.span_shift(level));
            if index >= u64::from(tree.pointer_count) {
                return Ok(None);
            }
            let mut pointer = tree.pointers[index as usize];
            if !wanted(level, &pointer) {
                let Some(next) = skip(at, tree.span_shift(level)) else {
                    return Ok(None);
                };
                at = next;
                continue 'top;
            }
            loop {
                if level == 0 || pointer.is_hole() {
                    return Ok(Some(at));
                }
                let number = shr(at, tree.span_shift(level));
                let (parent_span, endian) = (tree.span_shift(level), pointer.endian());
                let lost = |error| LostBlocks {
                    first: at,
                    end: skip(at, parent_span).unwrap_or(u64::MAX),
                    error,
                };
                let data = self
                    .read_indirect(object, level, number, &pointer)
                    .await
                    .map_err(lost)?;
                level -= 1;
                let span = tree.span_shift(level);
                let first = shr(at, span) & (fanout - 1);
                let mut found = None;
                for index in first..fanout {
                    let next = child(&data, endian, index as usize)
                        .ok_or_else(|| lost(short_indirect(object, level + 1, number)))?;
                    if wanted(level, &next) {
                        found = Some((index, next));
                        break;
                    }
                }
                let Some((index, next)) = found else {
                    let Some(next) = skip(at, parent_span) else {
                        return Ok(None);
                    };
                    at = next;
                    continue 'top;
                };
                let start = shl(shl(number, shift).saturating_add(index), span);
                at = at.max(start);
                pointer = next;
            }
        }
    }
}

/// What is about to be stored as it is: of blocks of dnodes, all but bonuses is in the clear.
fn raw_block(dnode: &Dnode, stored: Bytes) -> Result<Block> {
    match dnode.id {
        ObjectId::META_DNODE => Ok(Block::Data(stored, Endian::Little)),
        object => Err(ObjectError::Misuse {
            object,
            what: "a block of a raw stream is read before it is on disk",
        }),
    }
}

/// The first number behind the aligned run of `1 << span_shift` that holds `at`.
fn skip(at: u64, span_shift: u32) -> Option<u64> {
    let number = shr(at, span_shift).checked_add(1)?;
    let next = shl(number, span_shift);
    (next != u64::MAX && next > at).then_some(next)
}

pub(crate) fn short_indirect(object: ObjectId, level: u8, number: u64) -> ObjectError {
    damaged(
        object,
        "blkptr_t",
        format!("indirect block {number} of level {level} is shorter than its dnode says"),
    )
}
