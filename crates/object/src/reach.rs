//! Reading, before a change is made, what the sync will have to read to write it, so that whoever
//! asks for the change gets the error, and not the pool.
//!
//! A sync reads the indirect blocks above what changed, all those below what is freed, and the
//! block of dnodes that the object is in. When one of them cannot be read the txg cannot be
//! written, and the pool stops; after a crash the intent log would have it stop again at each
//! import. So a range is checked twice: by who changes it before joining a txg
//! ([`Object::prepare_write`], [`Object::prepare_free`]), so that no txg waits for the device, and
//! by the change itself before it dirties anything, which is a look into the cache by then.
//!
//! # Cost
//! Blocks of one indirect block that are changed in one txg are checked once: where there is a
//! dirty block under it, it was read. Otherwise a check is what finding the block's pointer costs.
//!
//! # What is left
//! Nothing keeps what was read in the cache until the sync: it may be evicted, and then fail to be
//! read. Such a second failure still suspends the pool; after an import the same change is refused.
//!
//! Source: module/zfs/dmu_tx.c (`dmu_tx_hold_write`, `dmu_tx_hold_free`, `dmu_tx_check_ioerr`).

use std::ops::Range;

use device::BoxFuture;
use format::{BlockPointer, DNODES_PER_BLOCK, ObjectId};
use futures::StreamExt;

use crate::dnode::{Dnode, DnodeState, Tree, shl, shr};
use crate::error::{ObjectError, Result};
use crate::indirect::child;
use crate::object::Object;
use crate::tree::{Blocks, LostBlocks, NEWEST, short_indirect};

/// Indirect blocks of one parent that are read at the same time.
const READS_IN_FLIGHT: usize = 8;

impl Object {
    /// Makes sure that a sync will be able to write these bytes. To be called before joining the
    /// txg in which they are written.
    ///
    /// # Errors
    /// Errors of reading the indirect blocks above them and the block of the object's dnode;
    /// [`ObjectError::BlockTooLong`].
    pub async fn prepare_write(&self, offset_bytes: u64, length_bytes: u64) -> Result<()> {
        let options = self.objset().options();
        options.check_block(self.id(), self.info().data_block_bytes)?;
        self.prepare_dnode().await?;
        let Some(last_byte) = length_bytes
            .checked_sub(1)
            .map(|more| offset_bytes.saturating_add(more))
        else {
            return Ok(());
        };
        let block_bytes = self.dnode.block_bytes();
        self.objset()
            .blocks
            .prepare(
                &self.dnode,
                offset_bytes / block_bytes,
                last_byte / block_bytes,
            )
            .await
    }

    /// Makes sure that a sync will be able to free these bytes, as [`Object::free_range`] or
    /// [`crate::ObjectSet::free`] ask it to; `length_bytes` of `u64::MAX` means to the end. To be
    /// called before joining the txg.
    ///
    /// # Errors
    /// Errors of reading the indirect blocks above them and the block of the object's dnode.
    pub async fn prepare_free(&self, offset_bytes: u64, length_bytes: u64) -> Result<()> {
        self.prepare_dnode().await?;
        let lost = self
            .objset()
            .blocks
            .lost_below(&self.dnode, offset_bytes, length_bytes)
            .await;
        lost.into_iter()
            .next()
            .map_or(Ok(()), |lost| Err(lost.error))
    }

    /// The ranges of bytes in a range that cannot be reached, and so cannot be freed, in order.
    pub async fn unreachable_ranges(
        &self,
        offset_bytes: u64,
        length_bytes: u64,
    ) -> Vec<(Range<u64>, ObjectError)> {
        let block_bytes = self.dnode.block_bytes();
        let bytes = |block: u64| block.saturating_mul(block_bytes);
        let lost = self
            .objset()
            .blocks
            .lost_below(&self.dnode, offset_bytes, length_bytes)
            .await;
        lost.into_iter()
            .map(|lost| (bytes(lost.first)..bytes(lost.end), lost.error))
            .collect()
    }

    /// Makes sure that the block of dnodes can be read which a change of this object writes anew.
    ///
    /// # Errors
    /// Errors of reading it.
    pub async fn prepare_dnode(&self) -> Result<()> {
        let id = self.id();
        // The special objects are in the head.
        let is_special = id == ObjectId::META_DNODE || id >= ObjectId::PROJECT_USED;
        if is_special || self.dnode.lock().is_dirty() {
            return Ok(());
        }
        let (set, block) = (self.objset(), id.get() / DNODES_PER_BLOCK);
        if set.blocks.try_block(&set.meta_dnode, block).is_none() {
            set.dnode_block(block).await?;
        }
        Ok(())
    }
}

impl Blocks {
    /// Makes sure of the indirect blocks above blocks `first..=last`.
    pub(crate) async fn prepare(&self, dnode: &Dnode, first: u64, last: u64) -> Result<()> {
        let mut from = first;
        loop {
            let (block, tree) = {
                let state = dnode.lock();
                match self.first_unread(dnode.id, &state, from, last) {
                    Some(block) => (block, state.tree.clone()),
                    None => return Ok(()),
                }
            };
            match self.resolve(dnode.id, &tree, block).await {
                // Whether the cache keeps it or not.
                Ok(_) => match span_of(&tree, block).end {
                    end if end > last => return Ok(()),
                    end => from = end,
                },
                // A tree that was replaced meanwhile may be gone from the disk.
                Err(_) if dnode.lock().tree.generation != tree.generation => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// The first of these blocks above which an indirect block is neither in memory nor known to be
    /// readable.
    fn first_unread(
        &self,
        object: ObjectId,
        state: &DnodeState,
        first: u64,
        last: u64,
    ) -> Option<u64> {
        let tree = &state.tree;
        if tree.levels <= 1 {
            return None;
        }
        let mut block = first;
        while block <= last {
            let span = span_of(tree, block);
            let is_known = state
                .layers(NEWEST)
                .any(|slot| slot.has_blocks(span.clone()));
            if !is_known && self.try_resolve(object, tree, block).is_none() {
                return Some(block);
            }
            block = span.end;
            if block == u64::MAX {
                break;
            }
        }
        None
    }

    /// What is on disk below a range of bytes and cannot be reached, in order.
    async fn lost_below(
        &self,
        dnode: &Dnode,
        offset_bytes: u64,
        length_bytes: u64,
    ) -> Vec<LostBlocks> {
        // The dnode itself leads to all blocks of a small file.
        if length_bytes == 0 || dnode.lock().tree.levels <= 1 {
            return Vec::new();
        }
        let block_bytes = dnode.block_bytes();
        let end_bytes = offset_bytes.saturating_add(length_bytes);
        let range = offset_bytes / block_bytes..end_bytes.div_ceil(block_bytes);
        loop {
            let tree = dnode.lock().tree.clone();
            let mut lost = Vec::new();
            for (number, pointer) in (0u64..).zip(&tree.pointers[..usize::from(tree.pointer_count)])
            {
                let level = tree.levels - 1;
                lost.extend(
                    self.lost_in(dnode.id, &tree, (level, number), *pointer, &range)
                        .await,
                );
            }
            if lost.is_empty() || dnode.lock().tree.generation == tree.generation {
                return lost;
            }
        }
    }

    /// What of a range is below a block of the tree and cannot be reached.
    fn lost_in<'a>(
        &'a self,
        object: ObjectId,
        tree: &'a Tree,
        (level, number): (u8, u64),
        pointer: BlockPointer,
        range: &'a Range<u64>,
    ) -> BoxFuture<'a, Vec<LostBlocks>> {
        Box::pin(async move {
            let span_shift = tree.span_shift(level);
            let first = shl(number, span_shift).max(range.start);
            let end = shl(number.saturating_add(1), span_shift).min(range.end);
            if level == 0 || pointer.is_hole() || first >= end {
                return Vec::new();
            }
            let read = self.read_indirect(object, level, number, &pointer).await;
            let fanout = shl(1, tree.pointers_shift());
            let data = read.and_then(|data| {
                match child(&data, pointer.endian(), fanout as usize - 1).is_some() {
                    true => Ok(data),
                    false => Err(short_indirect(object, level, number)),
                }
            });
            let data = match data {
                Ok(data) => data,
                Err(error) => return vec![LostBlocks { first, end, error }],
            };
            if level == 1 {
                return Vec::new();
            }
            let below = tree.span_shift(level - 1);
            let children: Vec<(u64, BlockPointer)> = (shr(first, below)..=shr(end - 1, below))
                .filter_map(|number| {
                    let index = (number & (fanout - 1)) as usize;
                    Some((number, child(&data, pointer.endian(), index)?))
                })
                .collect();
            futures::stream::iter(children)
                .map(|(number, pointer)| {
                    self.lost_in(object, tree, (level - 1, number), pointer, range)
                })
                .buffered(READS_IN_FLIGHT)
                .concat()
                .await
        })
    }
}

/// The blocks whose pointers are in one indirect block with that of `block`.
fn span_of(tree: &Tree, block: u64) -> Range<u64> {
    let shift = tree.pointers_shift();
    let number = shr(block, shift);
    shl(number, shift)..shl(number.saturating_add(1), shift)
}
