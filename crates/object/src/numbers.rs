//! Object numbers: finding free ones, and claiming given ones.
//!
//! The allocator goes through blocks of 32 dnodes, skipping full ones by the fill counts of
//! their pointers, and keeps a bit mask of the current block. Blocks in which dnodes were freed are
//! remembered and used first. So a number costs a bit operation, and a read per block.
//!
//! A number is free when its slots are free on disk and not given out in a txg that is still to be
//! synced; the number of a freed object so becomes free once that txg is synced.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use format::{BlockPointer, DNODE_SLOT_BYTES, DNODES_PER_BLOCK, ObjectId};
use zio::Tx;

use crate::dnode::{Dnode, Meta, parity, shl};
use crate::error::{ObjectError, Result};
use crate::object::Object;
use crate::objset::ObjectSet;
use crate::options::NewObject;
use crate::tree::Block;

/// Where free object numbers come from.
pub(crate) struct IdAllocator {
    /// The current block of dnodes.
    block: u64,
    /// Its free slots.
    free: u32,
    /// Where the search for another block goes on.
    scan: u64,
    /// A block with this many dnodes or more is taken to be full (less than 32 with large dnodes).
    full_fill: u64,
    /// Blocks in which dnodes were freed.
    pub hints: BTreeSet<u64>,
}

/// Object numbers given out in a txg that is not on disk yet: by block, slots taken and first
/// slots.
#[derive(Debug, Default)]
pub(crate) struct PendingIds(pub BTreeMap<u64, (u32, u32)>);

impl PendingIds {
    fn add(&mut self, id: u64, slots: u8) {
        let entry = self.0.entry(id / DNODES_PER_BLOCK).or_default();
        let first = (id % DNODES_PER_BLOCK) as u32;
        entry.0 |= slot_mask(first, slots);
        entry.1 |= 1 << first;
    }

    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }
}

/// Slots `first..first+slots` of a block as bits.
fn slot_mask(first: u32, slots: u8) -> u32 {
    let run = if slots >= 32 {
        u32::MAX
    } else {
        (1 << slots) - 1
    };
    run << first
}

/// Which slots of a block of dnodes are taken, and which are the first of a dnode.
pub(crate) fn used_slots(block: &[u8]) -> (u32, u32) {
    let (mut used, mut first) = (0u32, 0u32);
    let mut slot = 0u32;
    for _ in 0..DNODES_PER_BLOCK {
        let at = slot as usize * DNODE_SLOT_BYTES;
        // Type and extra slots are single bytes: the byte order does not matter.
        let (Some(kind), Some(extra)) = (block.get(at), block.get(at + 12)) else {
            break;
        };
        if *kind != 0 {
            let slots = extra.saturating_add(1);
            used |= slot_mask(slot, slots.min(32));
            first |= 1 << slot;
            slot += u32::from(slots);
        } else {
            slot += 1;
        }
        if u64::from(slot) >= DNODES_PER_BLOCK {
            break;
        }
    }
    (used, first)
}

impl Default for IdAllocator {
    /// Looks from the beginning.
    fn default() -> Self {
        IdAllocator {
            block: 0,
            free: 0,
            scan: 0,
            full_fill: DNODES_PER_BLOCK,
            hints: BTreeSet::new(),
        }
    }
}

impl ObjectSet {
    /// Allocates a free object number.
    ///
    /// # Errors
    /// [`ObjectError::TooBig`], [`ObjectError::BlockTooLong`], [`ObjectError::OutOfObjects`],
    /// errors of reading.
    pub async fn allocate(self: &Arc<Self>, tx: &Tx, new: NewObject) -> Result<Object> {
        let meta = new.meta(ObjectId::ZERO)?;
        self.options()
            .check_block(ObjectId::ZERO, meta.block_bytes)?;
        let mut ids = self.ids.lock().await;
        let id = loop {
            if let Some(slot) = take_run(&mut ids.free, meta.slots) {
                break ObjectId::new(ids.block * DNODES_PER_BLOCK + u64::from(slot));
            }
            // Once for many numbers, and much bigger than the rest.
            Box::pin(self.next_id_block(&mut ids)).await?;
        };
        let object = self.install_new(tx, id, meta);
        drop(ids);
        self.charge().settle();
        Ok(object)
    }

    /// Allocates this very object number (log replay, receive, well-known objects).
    ///
    /// # Errors
    /// [`ObjectError::ObjectExists`], also when the object was freed in a txg that is not synced
    /// yet: then it works once that txg is.
    pub async fn claim(self: &Arc<Self>, tx: &Tx, id: ObjectId, new: NewObject) -> Result<Object> {
        let meta = new.meta(id)?;
        self.options().check_block(id, meta.block_bytes)?;
        if let Some(dnode) = self.accounts.iter().find(|dnode| dnode.id == id) {
            if dnode.lock().meta().exists {
                return Err(ObjectError::ObjectExists { object: id });
            }
            self.dirty.note(tx.txg());
            self.allocate_in(dnode, tx, meta);
            return Ok(Object::new(self.clone(), dnode.clone()));
        }
        let slot = (id.get() % DNODES_PER_BLOCK) as u32;
        let out_of_range = id.is_zero()
            || id.get() >= ObjectId::LIMIT
            || u64::from(slot) + u64::from(meta.slots) > DNODES_PER_BLOCK;
        if out_of_range {
            return Err(ObjectError::TooBig {
                object: id,
                what: format!("an object number of {id} with {} slots", meta.slots),
            });
        }
        let mut ids = self.ids.lock().await;
        let block = id.get() / DNODES_PER_BLOCK;
        let wanted = slot_mask(slot, meta.slots);
        if self.used_mask(block).await? & wanted != 0 {
            return Err(ObjectError::ObjectExists { object: id });
        }
        if ids.block == block {
            ids.free &= !wanted;
        }
        let object = self.install_new(tx, id, meta);
        drop(ids);
        self.charge().settle();
        Ok(object)
    }

    /// Puts a new object into table, pending numbers and slot. The lock of the numbers is held;
    /// after that the charge is to be settled.
    fn install_new(self: &Arc<Self>, tx: &Tx, id: ObjectId, meta: Meta) -> Object {
        self.dirty.note(tx.txg());
        if meta.slots > 1 {
            self.large_dnodes.store(true, Ordering::Relaxed);
        }
        self.pending.lock()[parity(tx.txg())].add(id.get(), meta.slots);
        let dnode = Dnode::free(id, self.charge());
        dnode.lock().tree.generation = self.next_generation();
        self.allocate_in(&dnode, tx, meta);
        self.table.replace(id.get(), dnode.clone());
        Object::new(self.clone(), dnode)
    }

    fn allocate_in(&self, dnode: &Arc<Dnode>, tx: &Tx, meta: Meta) {
        let mut state = dnode.lock();
        self.dirty.slot_mut(dnode, &mut state, tx).meta = Some(meta);
    }

    /// Slots of a block of dnodes that are taken on disk or given out.
    async fn used_mask(&self, block: u64) -> Result<u32> {
        let on_disk = match self.dnode_block(block).await? {
            Block::Data(data, _) => used_slots(&data).0,
            Block::Zeros => 0,
        };
        let reserved = u32::from(block == 0);
        let pending = self.pending.lock();
        let given_out = pending
            .iter()
            .filter_map(|ids| ids.0.get(&block))
            .fold(0, |mask, (used, _)| mask | used);
        Ok(on_disk | given_out | reserved)
    }

    /// Makes another block with free slots the current one.
    async fn next_id_block(&self, ids: &mut IdAllocator) -> Result<()> {
        loop {
            let block = match ids.hints.pop_first() {
                Some(block) => block,
                None => {
                    let (tree, full) = (self.meta_dnode.lock().tree.clone(), ids.full_fill);
                    let spans: Vec<u32> = (0..tree.levels)
                        .map(|level| tree.span_shift(level))
                        .collect();
                    let has_room = move |level: u8, pointer: &BlockPointer| {
                        pointer.is_hole() || pointer.fill() < shl(full, spans[usize::from(level)])
                    };
                    let found = self
                        .blocks
                        .next_in_tree(ObjectId::META_DNODE, &tree, ids.scan, &has_room)
                        .await?;
                    let block = found.unwrap_or_else(|| {
                        let beyond = shl(
                            u64::from(tree.pointer_count),
                            tree.span_shift(tree.levels - 1),
                        );
                        ids.scan.max(beyond)
                    });
                    if block >= ObjectId::LIMIT / DNODES_PER_BLOCK {
                        return Err(ObjectError::OutOfObjects);
                    }
                    ids.scan = block + 1;
                    block
                }
            };
            let free = !self.used_mask(block).await?;
            if free == 0 {
                if let Block::Data(data, _) = self.dnode_block(block).await? {
                    let dnodes = u64::from(used_slots(&data).1.count_ones());
                    ids.full_fill = ids.full_fill.min(dnodes.max(1));
                }
                continue;
            }
            ids.block = block;
            ids.free = free;
            return Ok(());
        }
    }
}

/// Takes the first run of `slots` free bits.
fn take_run(free: &mut u32, slots: u8) -> Option<u32> {
    let slots = slots.clamp(1, 32);
    let run = slot_mask(0, slots);
    for first in 0..=(32 - u32::from(slots)) {
        let mask = run << first;
        if *free & mask == mask {
            *free &= !mask;
            return Some(first);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_of_slots_are_taken_within_a_block() {
        let mut free = 0b1111_0110u32;
        assert_eq!(take_run(&mut free, 2), Some(1));
        assert_eq!(free, 0b1111_0000);
        assert_eq!(take_run(&mut free, 4), Some(4));
        assert_eq!(take_run(&mut free, 1), None);
        let mut all = u32::MAX;
        assert_eq!(take_run(&mut all, 32), Some(0));
        assert_eq!(all, 0);
    }
}
