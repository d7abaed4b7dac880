//! One object in memory: what is on disk, and the two slots of changes over it.
//!
//! # Layers
//! ```text
//!   slot of the open txg      (newest)
//!   slot of the syncing txg   frozen: nobody holds that txg any more
//!   disk                      meta, block tree
//! ```
//! A layer's `meta` replaces the one below it whole; its `blocks` and `freed` hide blocks of the
//! layers below. Only the sync of a txg changes the disk layer, and it clears that txg's slot in
//! the same critical section, so no reader sees a state in between.
//!
//! # Locks
//! `state` guards everything but `zap`. It is never held across an await.

use std::collections::BTreeMap;
use std::ops::{Deref, Range};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use bytes::{Bytes, BytesMut};
use format::{
    BlockPointer, Checksum, Compression, DNODE_SLOT_BYTES, DnodeFlags, DnodePhys, ObjectId,
    ObjectType, Txg,
};
use parking_lot::{Mutex, MutexGuard};
use zio::{BlockData, Charge, Charged, RawBlock, Tx};

use crate::error::ObjectError;
use crate::rangeset::RangeSet;
use crate::zap::ZapShared;

/// What users can change of an object besides its blocks.
#[derive(Debug, Clone)]
pub(crate) struct Meta {
    /// Whether the object exists at all.
    pub exists: bool,
    pub object_type: ObjectType,
    pub bonus_type: ObjectType,
    pub bonus: Bytes,
    /// What is behind the bonus of a raw dnode ([`DnodePhys::bonus_tail`]).
    pub bonus_tail: Bytes,
    pub checksum: Checksum,
    pub compression: Compression,
    pub block_bytes: u32,
    pub indirect_shift: u8,
    /// Block pointers in the dnode.
    pub pointers: u8,
    /// 512-byte slots of the dnode.
    pub slots: u8,
    pub max_block: u64,
    pub has_spill: bool,
    /// The tree has at least so many levels.
    pub levels_min: u8,
}

impl Meta {
    pub(crate) fn free() -> Self {
        Meta {
            exists: false,
            object_type: ObjectType::NONE,
            bonus_type: ObjectType::NONE,
            bonus: Bytes::new(),
            bonus_tail: Bytes::new(),
            checksum: Checksum::Inherit,
            compression: Compression::Inherit,
            block_bytes: 512,
            indirect_shift: 17,
            pointers: 1,
            slots: 1,
            max_block: 0,
            has_spill: false,
            levels_min: 1,
        }
    }

    pub(crate) fn from_phys(phys: &DnodePhys, bonus: Bytes) -> Self {
        if phys.is_free() {
            return Meta::free();
        }
        Meta {
            exists: true,
            object_type: phys.object_type,
            bonus_type: phys.bonus_type,
            bonus,
            bonus_tail: Bytes::copy_from_slice(&phys.bonus_tail),
            checksum: phys.checksum,
            compression: phys.compression,
            block_bytes: phys.data_block_bytes,
            indirect_shift: phys.indirect_block_shift,
            pointers: phys.pointers.len() as u8,
            slots: phys.slots() as u8,
            max_block: phys.max_block_id,
            has_spill: phys.spill.is_some(),
            levels_min: 1,
        }
    }

    /// log2 of the pointers in an indirect block.
    pub(crate) fn pointers_shift(&self) -> u32 {
        u32::from(self.indirect_shift).saturating_sub(7)
    }

    /// Levels that a tree needs whose last block is `max_block` (`dnode_new_blkid`).
    pub(crate) fn levels_needed(&self) -> u8 {
        let shift = self.pointers_shift();
        let mut levels = 1u8;
        // As few as there can be, but for raw ones.
        while levels < format::MAX_LEVELS {
            let span_shift = shift * u32::from(levels - 1);
            let top = self.max_block.checked_shr(span_shift).unwrap_or_default();
            if top < u64::from(self.pointers) {
                break;
            }
            levels += 1;
        }
        levels.max(self.levels_min)
    }

    /// Whether the dnode has a place for the pointer of a spill block.
    pub(crate) fn has_spill_room(&self) -> bool {
        let pointers = usize::from(self.pointers) + 1;
        let taken = format::DNODE_CORE_BYTES + pointers * format::BLOCK_POINTER_BYTES;
        taken <= usize::from(self.slots) * format::DNODE_SLOT_BYTES
    }

    /// Room for the bonus in bytes, with the spill pointer that there is (or will be).
    pub(crate) fn bonus_room(&self, with_spill: bool) -> usize {
        let taken = format::DNODE_CORE_BYTES
            + (usize::from(self.pointers) + usize::from(with_spill)) * format::BLOCK_POINTER_BYTES;
        (usize::from(self.slots) * format::DNODE_SLOT_BYTES).saturating_sub(taken)
    }
}

/// A block as it is to be stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RawData {
    /// Its bytes: whole sectors, compressed and encrypted.
    pub stored: Bytes,
    /// What its pointer is to say.
    pub block: RawBlock,
}

/// Blocks by number. Without any, as in most changes of an object, it takes no memory. Clones share
/// the map until one of them is changed.
#[derive(Debug)]
pub(crate) struct BlockMap<V>(Option<Arc<BTreeMap<u64, V>>>);

impl<V> BlockMap<V> {
    /// The map, to be changed.
    pub(crate) fn to_mut(&mut self) -> &mut BTreeMap<u64, V>
    where
        V: Clone,
    {
        Arc::make_mut(self.0.get_or_insert_default())
    }
}

impl<V> Default for BlockMap<V> {
    fn default() -> Self {
        Self(None)
    }
}

impl<V> Clone for BlockMap<V> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<V> From<BTreeMap<u64, V>> for BlockMap<V> {
    fn from(map: BTreeMap<u64, V>) -> Self {
        Self(Some(Arc::new(map)))
    }
}

impl<V> Deref for BlockMap<V> {
    type Target = BTreeMap<u64, V>;

    fn deref(&self) -> &Self::Target {
        match &self.0 {
            Some(map) => map,
            None => const { &BTreeMap::new() },
        }
    }
}

/// What a txg does to the spill block.
#[derive(Debug, Clone, Default)]
pub(crate) enum SpillChange {
    #[default]
    Keep,
    Write(Bytes),
    WriteRaw(RawData),
    Remove,
}

/// Changes of one txg.
#[derive(Debug, Clone, Default)]
pub(crate) struct Slot {
    pub txg: Txg,
    /// What the object itself counts as dirty in the txg, without its blocks.
    pub dirty_bytes: u64,
    pub meta: Option<Meta>,
    pub blocks: BlockMap<Bytes>,
    /// Blocks that are to be shared with others: pointers as they were read, never holes. None is
    /// in `blocks` too.
    pub cloned: BlockMap<BlockPointer>,
    /// Blocks that are stored as they are. None is in `blocks` or `cloned` too.
    pub raw: BlockMap<RawData>,
    /// How some of `blocks` were compressed where they came from. What is of other bytes than those
    /// in `blocks` ([`BlockData::is_of`]) says nothing any more.
    pub packed: BlockMap<BlockData>,
    pub freed: RangeSet,
    /// Those of `blocks` that hold what they held before, and are to be as old as they were.
    pub moved: RangeSet,
    /// Blocks that are written even where they hold what they held before: `zfs rewrite`.
    pub again: RangeSet,
    /// Those of `blocks` that the cache does not keep when they are written.
    pub passing: RangeSet,
    pub spill: SpillChange,
}

impl Slot {
    /// Puts a block that holds something else than it did.
    pub(crate) fn put(&mut self, block: u64, data: Bytes) {
        self.moved.remove(block, block + 1);
        self.passing.remove(block, block + 1);
        if self.raw.contains_key(&block) {
            self.raw.to_mut().remove(&block);
        }
        self.blocks.to_mut().insert(block, data);
    }

    /// Says how a block that is here was compressed.
    pub(crate) fn pack(&mut self, block: u64, data: BlockData) {
        self.packed.to_mut().insert(block, data);
    }

    /// A block that is here, to be changed.
    pub(crate) fn change(&mut self, block: u64) -> Option<&mut Bytes> {
        self.moved.remove(block, block + 1);
        self.passing.remove(block, block + 1);
        self.blocks.to_mut().get_mut(&block)
    }

    /// The first block at or after `from` that this txg writes or shares.
    pub(crate) fn next_unwritten(&self, from: u64) -> Option<u64> {
        let written = self.blocks.range(from..).next().map(|(block, _)| *block);
        let cloned = self.cloned.range(from..).next().map(|(block, _)| *block);
        let raw = self.raw.range(from..).next().map(|(block, _)| *block);
        written.into_iter().chain(cloned).chain(raw).min()
    }

    /// Whether this txg writes or shares any of these blocks.
    pub(crate) fn has_blocks(&self, blocks: Range<u64>) -> bool {
        self.blocks.range(blocks.clone()).next().is_some()
            || self.cloned.range(blocks.clone()).next().is_some()
            || self.raw.range(blocks).next().is_some()
    }

    /// Takes a block out of those that are to be shared.
    pub(crate) fn drop_clone(&mut self, block: u64) {
        if self.cloned.contains_key(&block) {
            self.cloned.to_mut().remove(&block);
        }
    }

    /// Takes block ids in `start..end` out of `blocks` and `cloned`.
    pub(crate) fn drop_blocks(&mut self, start: u64, end: u64) {
        self.moved.remove(start, end);
        drop_range(&mut self.blocks, start, end);
        drop_range(&mut self.cloned, start, end);
        drop_range(&mut self.raw, start, end);
        drop_range(&mut self.packed, start, end);
    }
}

/// Takes keys in `start..end` out; a map that is shared is copied only when it has some.
fn drop_range<V: Clone>(map: &mut BlockMap<V>, start: u64, end: u64) {
    let keys: Vec<u64> = map.range(start..end).map(|(key, _)| *key).collect();
    if keys.is_empty() {
        return;
    }
    let map = map.to_mut();
    for key in keys {
        map.remove(&key);
    }
}

/// The block tree on disk.
#[derive(Debug, Clone)]
pub(crate) struct Tree {
    pub pointers: [BlockPointer; 3],
    pub pointer_count: u8,
    pub levels: u8,
    pub indirect_shift: u8,
    /// Changes whenever the tree does: what was learned from another generation is stale.
    pub generation: u64,
}

impl Tree {
    pub(crate) fn empty() -> Self {
        Tree {
            pointers: [BlockPointer::HOLE; 3],
            pointer_count: 1,
            levels: 1,
            indirect_shift: 17,
            generation: 0,
        }
    }

    pub(crate) fn from_phys(phys: &DnodePhys) -> Self {
        if phys.is_free() {
            return Tree::empty();
        }
        let mut pointers = [BlockPointer::HOLE; 3];
        pointers[..phys.pointers.len()].copy_from_slice(&phys.pointers);
        Tree {
            pointers,
            pointer_count: phys.pointers.len() as u8,
            levels: phys.levels,
            indirect_shift: phys.indirect_block_shift,
            generation: 0,
        }
    }

    pub(crate) fn pointers_shift(&self) -> u32 {
        u32::from(self.indirect_shift).saturating_sub(7)
    }

    /// Level-0 blocks under one pointer at `level` as log2; saturates above 63.
    pub(crate) fn span_shift(&self, level: u8) -> u32 {
        self.pointers_shift() * u32::from(level)
    }
}

/// `value >> shift`, zero for shifts of 64 and more.
pub(crate) fn shr(value: u64, shift: u32) -> u64 {
    value.checked_shr(shift).unwrap_or(0)
}

/// `value << shift`, saturating.
pub(crate) fn shl(value: u64, shift: u32) -> u64 {
    if value == 0 {
        0
    } else if shift >= 64 || value.leading_zeros() < shift {
        u64::MAX
    } else {
        value << shift
    }
}

/// Where a block's newest content is.
#[derive(Debug)]
pub(crate) enum Found {
    /// Here.
    Data(Bytes),
    /// On disk, in a block that another pointer leads to.
    Cloned(BlockPointer),
    /// Here, as it is to be stored: of use where it is in the clear.
    Raw(Bytes),
    /// Nowhere: it reads as zeros.
    Zeros,
    /// On disk, if anywhere.
    Disk,
}

pub(crate) struct DnodeState {
    /// The disk layer. Everything but the block tree and spill.
    pub disk: Meta,
    pub tree: Tree,
    pub spill: Option<BlockPointer>,
    pub used_bytes: u64,
    pub flags: DnodeFlags,
    /// What was read from disk, for fields that we only carry along.
    pub base: Option<Box<DnodePhys>>,
    /// By the parity of the txg; none where it changes nothing. Most objects in memory have none.
    pub slots: [Option<Box<Slot>>; 2],
}

impl DnodeState {
    /// Indices of slots, newest first.
    fn order(&self) -> [usize; 2] {
        let [even, odd] = &self.slots;
        let txg = |slot: &Option<Box<Slot>>| slot.as_ref().map(|slot| slot.txg);
        if txg(even) > txg(odd) { [0, 1] } else { [1, 0] }
    }

    /// Dirty slots as of `txg`, newest first.
    pub(crate) fn layers(&self, txg: Txg) -> impl Iterator<Item = &Slot> {
        self.order()
            .into_iter()
            .filter_map(|index| self.slots[index].as_deref())
            .filter(move |slot| slot.txg <= txg)
    }

    /// The newest meta.
    pub(crate) fn meta(&self) -> &Meta {
        self.meta_at(Txg::new(u64::MAX))
    }

    /// The meta as of `txg`.
    pub(crate) fn meta_at(&self, txg: Txg) -> &Meta {
        self.layers(txg)
            .find_map(|slot| slot.meta.as_ref())
            .unwrap_or(&self.disk)
    }

    /// Where block `block` is, as of `txg`.
    pub(crate) fn find(&self, block: u64, txg: Txg) -> Found {
        for slot in self.layers(txg) {
            if let Some(data) = slot.blocks.get(&block) {
                return Found::Data(data.clone());
            }
            if let Some(pointer) = slot.cloned.get(&block) {
                return Found::Cloned(*pointer);
            }
            if let Some(raw) = slot.raw.get(&block) {
                return Found::Raw(raw.stored.clone());
            }
            if slot.freed.contains(block) {
                return Found::Zeros;
            }
            if let Some(meta) = &slot.meta
                && !meta.exists
            {
                return Found::Zeros;
            }
        }
        Found::Disk
    }

    /// The slot of `txg` if it is dirty.
    pub(crate) fn slot(&mut self, txg: Txg) -> Option<&mut Slot> {
        let slot = self.slots[parity(txg)].as_deref_mut();
        slot.filter(|slot| slot.txg == txg)
    }

    pub(crate) fn is_dirty(&self) -> bool {
        self.slots.iter().any(Option::is_some)
    }
}

/// Which slot a txg uses.
pub(crate) fn parity(txg: Txg) -> usize {
    (txg.get() & 1) as usize
}

/// One object in memory.
pub(crate) struct Dnode {
    pub id: ObjectId,
    state: Mutex<DnodeState>,
    /// Used since the cache of objects last looked.
    pub used: AtomicBool,
    /// What all handles on a ZAP share.
    pub zap: OnceLock<Arc<ZapShared>>,
    /// Its blocks go where dedup tables are.
    pub in_dedup_class: AtomicBool,
    _charged: Charged,
}

/// What an object in memory takes in bytes, but for a long bonus, a ZAP's content and what is
/// dirty: beside itself its dnode as on disk, with pointers and bonus in allocations of their own,
/// and its place in the table. The allocator rounds up by an eighth on average.
const DNODE_BYTES: usize = (size_of::<Dnode>() + size_of::<DnodePhys>() + 512) / 8 * 9;
/// What an object that is dirty takes in bytes until its txg is synced, but for its blocks: itself,
/// which has to stay, its slot, and what the sync makes of them.
pub(crate) const DIRTY_DNODE_BYTES: u64 =
    (DNODE_BYTES + size_of::<Slot>() + 2 * size_of::<DnodePhys>() + 1024) as u64;

impl Dnode {
    /// From disk. What it takes is charged until it is dropped.
    pub(crate) fn from_phys(
        id: ObjectId,
        mut phys: DnodePhys,
        bonus: Bytes,
        charge: &Arc<Charge>,
    ) -> Arc<Self> {
        let long_bytes = bonus.len().saturating_sub(DNODE_SLOT_BYTES);
        let disk = Meta::from_phys(&phys, bonus);
        phys.bonus = Vec::new();
        phys.bonus_tail = Vec::new();
        let state = DnodeState {
            disk,
            tree: Tree::from_phys(&phys),
            spill: phys.spill,
            used_bytes: phys.used_bytes,
            flags: phys.flags,
            base: (!phys.is_free()).then(|| Box::new(phys)),
            slots: Default::default(),
        };
        Arc::new(Dnode {
            id,
            state: Mutex::new(state),
            used: AtomicBool::new(true),
            zap: OnceLock::new(),
            in_dedup_class: AtomicBool::new(false),
            _charged: charge.take((DNODE_BYTES + long_bytes) as u64),
        })
    }

    /// Not on disk yet.
    pub(crate) fn free(id: ObjectId, charge: &Arc<Charge>) -> Arc<Self> {
        Dnode::from_phys(id, DnodePhys::free(), Bytes::new(), charge)
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, DnodeState> {
        self.state.lock()
    }

    /// The state of one that nobody else has.
    pub(crate) fn state_mut(&mut self) -> &mut DnodeState {
        self.state.get_mut()
    }

    pub(crate) fn touch(&self) {
        if !self.used.load(Ordering::Relaxed) {
            self.used.store(true, Ordering::Relaxed);
        }
    }

    /// The error of whoever finds that it was freed.
    pub(crate) fn missing(&self) -> ObjectError {
        ObjectError::NoSuchObject { object: self.id }
    }

    /// Size of its data blocks, newest.
    pub(crate) fn block_bytes(&self) -> u64 {
        self.lock().meta().block_bytes.into()
    }

    /// Whether a block has a version that is not on disk yet.
    pub(crate) fn is_block_unwritten(&self, block: u64) -> bool {
        let state = self.lock();
        matches!(
            state.find(block, Txg::new(u64::MAX)),
            Found::Data(_) | Found::Cloned(_) | Found::Raw(_)
        )
    }

    /// Whether the txg of `tx` writes, shares or frees a block.
    pub(crate) fn is_of_open_txg(&self, tx: &Tx, block: u64) -> bool {
        let mut state = self.lock();
        state.slot(tx.txg()).is_some_and(|slot| {
            slot.has_blocks(block..block.saturating_add(1)) || slot.freed.contains(block)
        })
    }

    /// Changes a block in place if it is dirty in `tx` already, and `length` bytes long; else
    /// false, with nothing done.
    pub(crate) fn change_dirty_block(
        &self,
        tx: &Tx,
        block_id: u64,
        length: usize,
        change: impl FnOnce(&mut [u8]),
    ) -> bool {
        let mut state = self.lock();
        let Some(slot) = state.slot(tx.txg()) else {
            return false;
        };
        let fits = slot.blocks.get(&block_id).map(Bytes::len) == Some(length);
        if fits {
            change_in_place(slot, block_id, change);
        }
        fits
    }
}

/// Changes a block that the slot holds, copying it only when somebody else holds it too.
pub(crate) fn change_in_place<T>(
    slot: &mut Slot,
    block: u64,
    change: impl FnOnce(&mut [u8]) -> T,
) -> T {
    let place = slot
        .change(block)
        .expect("the caller found the block in this slot under the same lock");
    let mut bytes = match std::mem::take(place).try_into_mut() {
        Ok(bytes) => bytes,
        Err(shared) => BytesMut::from(&shared[..]),
    };
    let result = change(&mut bytes);
    *place = bytes.freeze();
    result
}
