//! Where an object has data, and where it has none.

use crate::dnode::{Dnode, Found};
use crate::error::Result;
use crate::tree::{Blocks, NEWEST};

use super::Object;

impl Object {
    /// Offset of the first data at or after `offset_bytes` (`SEEK_DATA`), unwritten changes
    /// included.
    ///
    /// # Errors
    /// Errors of reading indirect blocks.
    pub async fn next_data(&self, offset_bytes: u64) -> Result<Option<u64>> {
        self.set
            .blocks
            .next_data(&self.dnode, offset_bytes, false)
            .await
    }

    /// The same, where blocks that cannot be reached count as data.
    pub(crate) async fn next_data_or_unreachable(&self, offset_bytes: u64) -> Result<Option<u64>> {
        self.set
            .blocks
            .next_data(&self.dnode, offset_bytes, true)
            .await
    }

    /// Offset of the first hole at or after `offset_bytes` (`SEEK_HOLE`); the end of the last block
    /// is one.
    ///
    /// # Errors
    /// Errors of reading indirect blocks.
    pub async fn next_hole(&self, offset_bytes: u64) -> Result<u64> {
        let block_bytes = self.dnode.block_bytes();
        let mut block = offset_bytes / block_bytes;
        loop {
            let (tree, found, last) = {
                let state = self.dnode.lock();
                (
                    state.tree.clone(),
                    state.find(block, NEWEST),
                    state.meta().max_block,
                )
            };
            let hole = block > last
                || match found {
                    Found::Data(_) | Found::Cloned(_) | Found::Raw(_) => false,
                    Found::Zeros => true,
                    Found::Disk => self
                        .set
                        .blocks
                        .resolve(self.id(), &tree, block)
                        .await?
                        .is_hole(),
                };
            if hole {
                return Ok((block * block_bytes).max(offset_bytes));
            }
            block += 1;
        }
    }
}

impl Blocks {
    /// Offset of the first data of an object at or after `offset_bytes`, unwritten changes
    /// included; `or_unreachable`, blocks that cannot be reached count as data.
    pub(crate) async fn next_data(
        &self,
        dnode: &Dnode,
        offset_bytes: u64,
        or_unreachable: bool,
    ) -> Result<Option<u64>> {
        let block_bytes = dnode.block_bytes();
        let mut from = offset_bytes / block_bytes;
        loop {
            let (tree, unwritten, last) = {
                let state = dnode.lock();
                let unwritten = state
                    .layers(NEWEST)
                    .filter_map(|slot| slot.next_unwritten(from))
                    .min();
                (state.tree.clone(), unwritten, state.meta().max_block)
            };
            let not_hole = |_: u8, pointer: &format::BlockPointer| !pointer.is_hole();
            let on_disk = match self
                .next_in_tree_or_lost(dnode.id, &tree, from, &not_hole)
                .await
            {
                Ok(found) => found,
                Err(lost) if or_unreachable => Some(lost.first),
                Err(lost) => return Err(lost.error),
            };
            let Some(block) = on_disk.into_iter().chain(unwritten).min() else {
                return Ok(None);
            };
            if block > last {
                return Ok(None);
            }
            let next = {
                let state = dnode.lock();
                match state.find(block, NEWEST) {
                    Found::Data(_) | Found::Cloned(_) | Found::Raw(_) => None,
                    Found::Disk if on_disk == Some(block) => None,
                    _ => {
                        // A freed range hides what is below it, but may have been written again
                        // above.
                        let hidden = state
                            .layers(NEWEST)
                            .filter_map(|slot| slot.freed.end_of(block))
                            .min();
                        let written = state
                            .layers(NEWEST)
                            .filter_map(|slot| slot.next_unwritten(block + 1))
                            .min();
                        let next = hidden.unwrap_or(block + 1);
                        Some(written.map_or(next, |written| next.min(written)))
                    }
                }
            };
            match next {
                None => return Ok(Some((block * block_bytes).max(offset_bytes))),
                Some(next) => from = next.max(block + 1),
            }
        }
    }
}
