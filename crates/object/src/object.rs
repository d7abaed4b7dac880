//! One object: its bytes, its bonus and its spill block.
//!
//! # Writing part of a block
//! What a block held before is read without a lock; then, under the object's lock, the new bytes
//! are merged into the open slot's version when there is one by now, else into what was read. That
//! is right because the layers below the open slot cannot change their content while the [`Tx`] is
//! held. Blocks are immutable [`Bytes`]: a version that a reader or the sync still holds is copied,
//! one that nobody holds is changed in place.

mod bonus;
mod holes;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use format::{Checksum, Compression, DNODE_SLOT_BYTES, Endian, ObjectId, ObjectType, SECTOR_BYTES};
use futures::StreamExt;
use zio::{Added, BlockData, Tx};

use crate::added;
use crate::byteswap::to_native;
use crate::dnode::{Dnode, DnodeState, Found, Meta, change_in_place, parity};
use crate::error::{ObjectError, OfObject, Result};
use crate::objset::{ObjectSet, free_dnode};
use crate::readahead::ReadAhead;
use crate::tree::{Block, Keeping, NEWEST};

pub(crate) use self::bonus::{BonusAndSpill, change_bonus, put_bonus};

static ZEROS: [u8; 128 << 10] = [0; 128 << 10];

/// Blocks of one request that are read at the same time.
const READS_IN_FLIGHT: usize = 32;
/// Blocks of one written buffer that share its memory, at most.
const PIECES_SHARED_MAX: usize = 8;

/// What there is to know of an object (`dmu_object_info_t`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectInfo {
    /// Its type.
    pub object_type: ObjectType,
    /// Type of its bonus.
    pub bonus_type: ObjectType,
    /// Length of its bonus in bytes.
    pub bonus_bytes: usize,
    /// Most that the bonus can hold, in bytes, without a spill block.
    pub bonus_room_bytes: usize,
    /// Size of its data blocks in bytes.
    pub data_block_bytes: u32,
    /// log2 of the size of its indirect blocks.
    pub indirect_block_shift: u8,
    /// Levels of its tree as of the last sync.
    pub levels: u8,
    /// 512-byte slots of its dnode.
    pub slots: u8,
    /// Block pointers in its dnode.
    pub pointers: u8,
    /// Number of its last data block.
    pub max_block_id: u64,
    /// Space used as of the last sync, in bytes, indirect blocks included.
    pub used_bytes: u64,
    /// Whether it has a spill block.
    pub has_spill: bool,
    /// Its own checksum, or `Inherit`.
    pub checksum: Checksum,
    /// Its own compression, or `Inherit`.
    pub compression: Compression,
}

/// A handle on one object. Cheap to clone; sequential reads are detected per handle (clones share).
#[derive(Clone)]
pub struct Object {
    set: Arc<ObjectSet>,
    pub(crate) dnode: Arc<Dnode>,
    ahead: Arc<ReadAhead>,
}

impl std::fmt::Debug for Object {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "Object({} of {:?})", self.id(), self.set)
    }
}

/// Has what is written to an object from now on stored where dedup tables are, as long as a handle
/// on it is held: its type does not say so (`dnode_set_storage_type`, module/zfs/dnode.c).
pub fn store_with_dedup_tables(object: &Object) {
    object.dnode.in_dedup_class.store(true, Ordering::Relaxed);
}

impl Object {
    pub(crate) fn new(set: Arc<ObjectSet>, dnode: Arc<Dnode>) -> Self {
        Object {
            set,
            dnode,
            ahead: Arc::default(),
        }
    }

    /// Its number.
    pub fn id(&self) -> ObjectId {
        self.dnode.id
    }

    /// The object set it is in.
    pub fn objset(&self) -> &Arc<ObjectSet> {
        &self.set
    }

    /// What there is to know of it, newest.
    pub fn info(&self) -> ObjectInfo {
        let state = self.dnode.lock();
        let meta = state.meta();
        ObjectInfo {
            object_type: meta.object_type,
            bonus_type: meta.bonus_type,
            bonus_bytes: meta.bonus.len(),
            bonus_room_bytes: meta.bonus_room(meta.has_spill),
            data_block_bytes: meta.block_bytes,
            indirect_block_shift: meta.indirect_shift,
            levels: state.tree.levels.max(meta.levels_needed()),
            slots: meta.slots,
            pointers: meta.pointers,
            max_block_id: meta.max_block,
            used_bytes: state.used_bytes,
            has_spill: meta.has_spill,
            checksum: meta.checksum,
            compression: meta.compression,
        }
    }

    /// Whether it still exists: another handle may have freed it.
    pub fn exists(&self) -> bool {
        self.dnode.lock().meta().exists
    }

    /// Changes the meta in `tx`.
    pub(crate) fn change_meta<T>(
        &self,
        tx: &Tx,
        change: impl FnOnce(&mut Meta) -> Result<T>,
    ) -> Result<T> {
        self.set.dirty.note(tx.txg());
        let mut state = self.dnode.lock();
        let mut meta = state.meta_at(tx.txg()).clone();
        if !meta.exists {
            return Err(self.dnode.missing());
        }
        let result = change(&mut meta)?;
        self.set.dirty.slot_mut(&self.dnode, &mut state, tx).meta = Some(meta);
        Ok(result)
    }

    /// Has it written again as it is.
    ///
    /// # Errors
    /// [`ObjectError::NoSuchObject`] where it was freed.
    pub fn touch(&self, tx: &Tx) -> Result<()> {
        self.change_meta(tx, |_| Ok(()))
    }

    /// The newest content of a block in our byte order; `None` for zeros. Outer `None`: not in
    /// memory.
    pub(crate) fn try_block(&self, block: u64) -> Option<Result<Option<Bytes>>> {
        let found = self.set.blocks.try_block(&self.dnode, block)?;
        Some(native(&self.dnode, found))
    }

    /// The newest content of a block in our byte order; `None` for zeros.
    pub(crate) fn block(&self, block: u64) -> impl Future<Output = Result<Option<Bytes>>> {
        self.block_keeping(block, Keeping::AsProperties)
    }

    async fn block_keeping(&self, block: u64, keeping: Keeping) -> Result<Option<Bytes>> {
        if let Some(found) = self.try_block(block) {
            return found;
        }
        let blocks = &self.set.blocks;
        let found = blocks
            .block_for(&self.dnode, block, NEWEST, keeping)
            .await?;
        native(&self.dnode, found)
    }

    /// [`Self::try_read`] that reads nothing ahead, as for what was just written.
    pub fn peek(&self, offset_bytes: u64, length_bytes: usize) -> Option<Vec<Bytes>> {
        let mut out = Vec::new();
        for piece in pieces(offset_bytes, length_bytes, self.dnode.block_bytes()) {
            let data = self.try_block(piece.block)?.ok()?;
            piece.slice(data, &mut out);
        }
        Some(out)
    }

    /// Reads without waiting, when everything is in memory: slices of blocks that together are
    /// exactly `length_bytes` long. What was never written reads as zeros.
    pub fn try_read(&self, offset_bytes: u64, length_bytes: usize) -> Option<Vec<Bytes>> {
        let block_bytes = self.dnode.block_bytes();
        let start = (offset_bytes % block_bytes) as usize;
        let mut out;
        if length_bytes > 0 && (start + length_bytes) as u64 <= block_bytes {
            out = Vec::with_capacity(1);
            let piece = Piece {
                block: offset_bytes / block_bytes,
                start,
                length: length_bytes,
            };
            piece.slice(self.try_block(piece.block)?.ok()?, &mut out);
        } else {
            out = Vec::new();
            for piece in pieces(offset_bytes, length_bytes, block_bytes) {
                piece.slice(self.try_block(piece.block)?.ok()?, &mut out);
            }
        }
        self.ahead
            .read(&self.set, &self.dnode, offset_bytes, length_bytes as u64);
        Some(out)
    }

    /// Reads `length_bytes` at `offset_bytes`: slices of blocks, not copies.
    ///
    /// # Errors
    /// Errors of reading.
    pub fn read(
        &self,
        offset_bytes: u64,
        length_bytes: usize,
    ) -> impl Future<Output = Result<Vec<Bytes>>> {
        self.read_keeping(offset_bytes, length_bytes, Keeping::AsProperties)
    }

    /// [`Self::read`] past the cache: what is there or dirty is taken from memory, what is read
    /// from disk is not kept, and nothing is read ahead (`dmu_read_abd`, module/zfs/dmu_direct.c).
    ///
    /// # Errors
    /// As [`Self::read`].
    pub fn read_past_cache(
        &self,
        offset_bytes: u64,
        length_bytes: usize,
    ) -> impl Future<Output = Result<Vec<Bytes>>> {
        self.read_keeping(offset_bytes, length_bytes, Keeping::Nothing)
    }

    async fn read_keeping(
        &self,
        offset_bytes: u64,
        length_bytes: usize,
        keeping: Keeping,
    ) -> Result<Vec<Bytes>> {
        let in_memory = match keeping {
            Keeping::AsProperties => self.try_read(offset_bytes, length_bytes),
            Keeping::Nothing => self.peek(offset_bytes, length_bytes),
        };
        if let Some(found) = in_memory {
            return Ok(found);
        }
        if keeping == Keeping::AsProperties {
            self.ahead
                .read(&self.set, &self.dnode, offset_bytes, length_bytes as u64);
        }
        let pieces = pieces(offset_bytes, length_bytes, self.dnode.block_bytes());
        let pieces: Vec<_> = pieces.collect();
        let mut out = Vec::with_capacity(pieces.len());
        if let [piece] = pieces.as_slice() {
            let data = self.block_keeping(piece.block, keeping).await?;
            piece.slice(data, &mut out);
            return Ok(out);
        }
        let mut blocks = futures::stream::iter(pieces)
            .map(|piece| async move { (piece, self.block_keeping(piece.block, keeping).await) })
            .buffered(READS_IN_FLIGHT);
        while let Some((piece, data)) = blocks.next().await {
            piece.slice(data?, &mut out);
        }
        Ok(out)
    }

    /// Like [`Self::read`], in one piece (copied only when it crosses blocks).
    ///
    /// # Errors
    /// As [`Self::read`].
    pub async fn read_bytes(&self, offset_bytes: u64, length_bytes: usize) -> Result<Bytes> {
        let parts = self.read(offset_bytes, length_bytes).await?;
        Ok(match <[Bytes; 1]>::try_from(parts) {
            Ok([single]) => single,
            Err(parts) => Bytes::from(parts.concat()),
        })
    }

    /// Writes `data` at `offset_bytes`. Whole blocks are taken as they are, without copying.
    ///
    /// # Errors
    /// [`ObjectError::NoSuchObject`] when it was freed; errors of reading what a partly written
    /// block held, and what the sync has to read ([`Self::prepare_write`]).
    pub async fn write(&self, tx: &Tx, offset_bytes: u64, data: Bytes) -> Result<()> {
        if offset_bytes.checked_add(data.len() as u64).is_none() {
            return Err(ObjectError::TooBig {
                object: self.id(),
                what: format!("a write of {} bytes at {offset_bytes}", data.len()),
            });
        }
        self.prepare_write(offset_bytes, data.len() as u64).await?;
        self.write_prepared(tx, offset_bytes, data).await
    }

    /// [`Self::write`] of what may come with its compressed form: a whole block is stored as that,
    /// unless it is changed before it is on disk.
    ///
    /// # Errors
    /// As [`Self::write`].
    pub async fn write_packed(&self, tx: &Tx, offset_bytes: u64, data: BlockData) -> Result<()> {
        self.write(tx, offset_bytes, data.bytes().clone()).await?;
        let (block_bytes, packed_bytes) = (self.dnode.block_bytes(), data.packed_bytes());
        let is_whole = data.bytes().len() as u64 == block_bytes;
        if packed_bytes > 0 && is_whole && offset_bytes.is_multiple_of(block_bytes) {
            // A write that came in between put other bytes there, of which this says nothing.
            if let Some(slot) = self.dnode.lock().slot(tx.txg()) {
                slot.pack(offset_bytes / block_bytes, data);
            }
            tx.dirtied(packed_bytes);
        }
        Ok(())
    }

    /// [`Self::write`] after [`Self::prepare_write`]: whole blocks are then written in any case.
    pub(crate) async fn write_prepared(
        &self,
        tx: &Tx,
        offset_bytes: u64,
        data: Bytes,
    ) -> Result<()> {
        let block_bytes = self.dnode.block_bytes();
        let mut at = 0;
        for piece in pieces(offset_bytes, data.len(), block_bytes) {
            let part = data.slice(at..at + piece.length);
            at += piece.length;
            if piece.length as u64 == block_bytes {
                // A small piece would keep the whole request in memory for as long as it is cached.
                let part = if piece.length * PIECES_SHARED_MAX < data.len() {
                    Bytes::copy_from_slice(&part)
                } else {
                    part
                };
                self.put_block(tx, piece.block, part)?;
            } else {
                self.modify_block(tx, piece.block, |block| {
                    block[piece.start..piece.start + piece.length].copy_from_slice(&part);
                })
                .await?;
            }
        }
        Ok(())
    }

    /// Writes a whole block.
    fn put_block(&self, tx: &Tx, block: u64, data: Bytes) -> Result<()> {
        self.set.dirty.note(tx.txg());
        let mut state = self.dnode.lock();
        tx.dirtied_whole(self.insert_block(&mut state, tx, block, data)?);
        Ok(())
    }

    /// Has those blocks of a range not kept in the cache when they are on disk that `tx` writes and
    /// that are in it whole. Until then they are in memory, where readers find them. Whatever
    /// changes one of them afterwards takes that back. Keep others from writing to the range since
    /// [`Self::write`].
    pub fn let_go_when_synced(&self, tx: &Tx, offset_bytes: u64, length_bytes: u64) {
        let mut state = self.dnode.lock();
        let block_bytes = u64::from(state.meta_at(tx.txg()).block_bytes);
        let first = offset_bytes.div_ceil(block_bytes);
        let end = offset_bytes.saturating_add(length_bytes) / block_bytes;
        if let Some(slot) = state.slot(tx.txg()) {
            slot.passing.add(first, end);
        }
    }

    /// Puts a block into the slot. How many bytes of it were not dirty yet, which the caller is to
    /// account for.
    pub(crate) fn insert_block(
        &self,
        state: &mut DnodeState,
        tx: &Tx,
        block: u64,
        data: Bytes,
    ) -> Result<u64> {
        let meta = state.meta_at(tx.txg());
        if !meta.exists {
            return Err(self.dnode.missing());
        }
        if data.len() != meta.block_bytes as usize {
            return Err(ObjectError::Misuse {
                object: self.id(),
                what: "the block size was changed during a write",
            });
        }
        self.set
            .options()
            .check_block(self.id(), meta.block_bytes)?;
        if block > meta.max_block {
            self.set.dirty.meta_mut(&self.dnode, state, tx).max_block = block;
        }
        let slot = self.set.dirty.slot_mut(&self.dnode, state, tx);
        slot.freed.remove(block, block + 1);
        slot.drop_clone(block);
        let length = data.len() as u64;
        let before = slot.blocks.get(&block).map(|data| data.len() as u64);
        let more = length.saturating_sub(before.unwrap_or(0));
        if more > 0
            && let Some(slot) = state.slots[parity(tx.txg())].as_deref()
        {
            tx.adds(added::by_block(state, slot, block, more, before.is_none()));
        }
        let slot = self.set.dirty.slot_mut(&self.dnode, state, tx);
        slot.put(block, data);
        Ok(more)
    }

    /// Changes one block's bytes in place: `change` gets the whole block `block_id`, as of `tx`,
    /// zeros when it was never written. Runs under the object's lock: it must not block.
    ///
    /// # Errors
    /// As [`Self::write`].
    pub async fn modify_block<T>(
        &self,
        tx: &Tx,
        block_id: u64,
        change: impl FnOnce(&mut [u8]) -> T,
    ) -> Result<T> {
        self.set.dirty.note(tx.txg());
        {
            let mut state = self.dnode.lock();
            if let Some(slot) = state.slot(tx.txg())
                && slot.blocks.contains_key(&block_id)
            {
                return Ok(change_in_place(slot, block_id, change));
            }
        }
        self.prepare_dnode().await?;
        self.set
            .blocks
            .prepare(&self.dnode, block_id, block_id)
            .await?;
        let base = match self
            .set
            .blocks
            .block_at(&self.dnode, block_id, tx.txg())
            .await?
        {
            Block::Zeros => None,
            block => native(&self.dnode, block)?,
        };
        let mut state = self.dnode.lock();
        if let Some(slot) = state.slot(tx.txg()) {
            if slot.blocks.contains_key(&block_id) {
                return Ok(change_in_place(slot, block_id, change));
            }
            if slot.freed.contains(block_id) {
                let size = state.meta_at(tx.txg()).block_bytes as usize;
                let mut bytes = vec![0; size];
                let result = change(&mut bytes);
                tx.dirtied(self.insert_block(&mut state, tx, block_id, Bytes::from(bytes))?);
                return Ok(result);
            }
        }
        let size = state.meta_at(tx.txg()).block_bytes as usize;
        let mut bytes = Vec::with_capacity(size);
        if let Some(base) = &base {
            bytes.extend_from_slice(&base[..base.len().min(size)]);
        }
        bytes.resize(size, 0);
        let result = change(&mut bytes);
        tx.dirtied(self.insert_block(&mut state, tx, block_id, Bytes::from(bytes))?);
        Ok(result)
    }

    /// Frees a range: it reads as zeros. `length_bytes` of `u64::MAX` means to the end.
    ///
    /// # Errors
    /// As [`Self::write`]: the blocks at the ends may be freed in part. What is below an indirect
    /// block that is freed whole is not looked at here: see [`Self::prepare_free`].
    pub async fn free_range(&self, tx: &Tx, offset_bytes: u64, length_bytes: u64) -> Result<()> {
        let (block_bytes, max_block) = {
            let state = self.dnode.lock();
            let meta = state.meta_at(tx.txg());
            if !meta.exists {
                return Err(self.dnode.missing());
            }
            (u64::from(meta.block_bytes), meta.max_block)
        };
        let object_end = max_block.saturating_add(1).saturating_mul(block_bytes);
        let end = offset_bytes.saturating_add(length_bytes);
        // Whatever is beyond the last block is free already: a range that reaches there takes
        // the last block whole.
        let to_end = end >= object_end;
        if offset_bytes >= object_end || length_bytes == 0 {
            return Ok(());
        }
        let first_whole = offset_bytes.div_ceil(block_bytes);
        let end_whole = if to_end {
            max_block.saturating_add(1)
        } else {
            end / block_bytes
        };
        self.prepare_dnode().await?;
        if first_whole < end_whole {
            self.set
                .blocks
                .prepare(&self.dnode, first_whole, first_whole)
                .await?;
            self.set
                .blocks
                .prepare(&self.dnode, end_whole - 1, end_whole - 1)
                .await?;
        }
        let first = offset_bytes / block_bytes;
        let head_start = (offset_bytes % block_bytes) as usize;
        if head_start > 0 {
            let head_end = if to_end || end / block_bytes > first {
                block_bytes as usize
            } else {
                (end % block_bytes) as usize
            };
            self.zero_part(tx, first, head_start, head_end).await?;
        }
        let tail_end = (end % block_bytes) as usize;
        if !to_end && tail_end > 0 && end / block_bytes >= first_whole {
            self.zero_part(tx, end / block_bytes, 0, tail_end).await?;
        }
        if first_whole < end_whole {
            self.set.dirty.note(tx.txg());
            let mut state = self.dnode.lock();
            // The length of a raw file is what its dnode says.
            if to_end && !self.set.options().raw {
                let meta = self.set.dirty.meta_mut(&self.dnode, &mut state, tx);
                meta.max_block = first_whole.saturating_sub(1);
            }
            let slot = self.set.dirty.slot_mut(&self.dnode, &mut state, tx);
            slot.drop_blocks(first_whole, end_whole);
            slot.freed.add(first_whole, end_whole);
            tx.dirtied(DNODE_SLOT_BYTES as u64);
            // The indirect blocks at its ends are written again.
            tx.adds(Added {
                data_bytes: 0,
                metadata_bytes: 2 << state.meta_at(tx.txg()).indirect_shift,
            });
        }
        Ok(())
    }

    /// Zeros part of a block, unless it is all zeros without that.
    async fn zero_part(&self, tx: &Tx, block: u64, start: usize, end: usize) -> Result<()> {
        if let Block::Zeros = self
            .set
            .blocks
            .block_at(&self.dnode, block, tx.txg())
            .await?
        {
            return Ok(());
        }
        self.modify_block(tx, block, |bytes| bytes[start..end].fill(0))
            .await
    }

    /// Changes the size of data blocks (and, when not 0, of indirect blocks) while there is at most
    /// one block. A larger block is filled up with zeros, a smaller one is cut.
    ///
    /// # Errors
    /// [`ObjectError::BlockSizeFixed`], [`ObjectError::TooBig`], [`ObjectError::BlockTooLong`],
    /// errors of reading.
    pub async fn set_block_size(
        &self,
        tx: &Tx,
        data_block_bytes: u32,
        indirect_block_shift: u8,
    ) -> Result<()> {
        let size = data_block_bytes
            .max(SECTOR_BYTES as u32)
            .next_multiple_of(SECTOR_BYTES as u32);
        if u64::from(size) > format::MAX_BLOCK_BYTES {
            return Err(ObjectError::TooBig {
                object: self.id(),
                what: format!("a block size of {size} bytes"),
            });
        }
        self.set.options().check_block(self.id(), size)?;
        let base = match self.set.blocks.block_at(&self.dnode, 0, tx.txg()).await? {
            Block::Zeros => None,
            block => native(&self.dnode, block)?,
        };
        self.set.dirty.note(tx.txg());
        let mut state = self.dnode.lock();
        let found = state.find(0, tx.txg());
        let single_on_disk = state.tree.levels == 1
            && state.tree.pointers[1..]
                .iter()
                .all(|pointer| pointer.is_hole());
        let meta = state.meta_at(tx.txg());
        if !meta.exists {
            return Err(self.dnode.missing());
        }
        let shift = match indirect_block_shift {
            0 => meta.indirect_shift,
            shift => shift.clamp(format::MIN_INDIRECT_SHIFT, format::MAX_INDIRECT_SHIFT),
        };
        if meta.block_bytes == size && meta.indirect_shift == shift {
            return Ok(());
        }
        // Blocks of the layers below that are freed but not written yet still count: their
        // place in the tree depends on the sizes.
        let pending = state
            .layers(tx.txg())
            .any(|slot| slot.has_blocks(1..u64::MAX));
        if meta.max_block > 0 || !single_on_disk || pending {
            return Err(ObjectError::BlockSizeFixed { object: self.id() });
        }
        let data = match found {
            Found::Data(data) => Some(data),
            Found::Zeros => None,
            Found::Cloned(_) | Found::Raw(_) | Found::Disk => base,
        };
        let meta = self.set.dirty.meta_mut(&self.dnode, &mut state, tx);
        let same_size = meta.block_bytes == size;
        meta.block_bytes = size;
        meta.indirect_shift = shift;
        if let Some(data) = data
            && !same_size
        {
            let mut bytes = Vec::with_capacity(size as usize);
            bytes.extend_from_slice(&data[..data.len().min(size as usize)]);
            bytes.resize(size as usize, 0);
            tx.dirtied(self.insert_block(&mut state, tx, 0, Bytes::from(bytes))?);
        }
        Ok(())
    }

    /// Space used as of the last sync, in bytes.
    pub fn used_bytes(&self) -> u64 {
        self.dnode.lock().used_bytes
    }

    /// Whether it has changes that wait for their txg to be synced.
    pub fn is_dirty(&self) -> bool {
        self.dnode.lock().is_dirty()
    }

    /// Sets the object's own checksum.
    ///
    /// # Errors
    /// [`ObjectError::NoSuchObject`].
    pub fn set_checksum(&self, tx: &Tx, checksum: Checksum) -> Result<()> {
        self.change_meta(tx, |meta| {
            meta.checksum = checksum;
            Ok(())
        })
    }

    /// Sets the object's own compression.
    ///
    /// # Errors
    /// [`ObjectError::NoSuchObject`].
    pub fn set_compression(&self, tx: &Tx, compression: Compression) -> Result<()> {
        self.change_meta(tx, |meta| {
            meta.compression = compression;
            Ok(())
        })
    }

    /// Changes the object's type (`dmu_object_zapify`): for objects without data.
    pub(crate) fn set_object_type(&self, tx: &Tx, object_type: ObjectType) -> Result<()> {
        self.change_meta(tx, |meta| {
            meta.object_type = object_type;
            Ok(())
        })
    }

    /// The block pointer of a data block as of the last sync (for intent log and diagnostics).
    ///
    /// # Errors
    /// Errors of reading indirect blocks.
    pub async fn block_pointer(&self, block_id: u64) -> Result<format::BlockPointer> {
        let tree = self.dnode.lock().tree.clone();
        self.set.blocks.resolve(self.id(), &tree, block_id).await
    }

    /// The pointer of a block of any level as of the last sync; a hole where there is no such
    /// block.
    ///
    /// # Errors
    /// Errors of reading indirect blocks.
    pub async fn pointer_at(&self, level: u8, block_id: u64) -> Result<format::BlockPointer> {
        if level == 0 {
            return self.block_pointer(block_id).await;
        }
        let tree = self.dnode.lock().tree.clone();
        self.set
            .blocks
            .resolve_above(self.id(), &tree, (level, block_id))
            .await
    }
}

/// Frees an object with all its blocks, as [`ObjectSet::free`] does by its number.
///
/// # Errors
/// [`ObjectError::NoSuchObject`].
pub fn free_object(tx: &Tx, object: &Object) -> Result<()> {
    free_dnode(&object.set, tx, &object.dnode)
}

/// What was read, in our byte order; `None` for zeros.
pub(crate) fn native(dnode: &Dnode, block: Block) -> Result<Option<Bytes>> {
    match block {
        Block::Zeros => Ok(None),
        Block::Data(data, Endian::Little) => Ok(Some(data)),
        Block::Data(data, endian) => {
            let kind = dnode.lock().meta().object_type;
            to_native(kind, data, endian).of(dnode.id).map(Some)
        }
    }
}

/// Part of a request that lies in one block.
#[derive(Debug, Clone, Copy)]
struct Piece {
    block: u64,
    /// Offset in the block.
    start: usize,
    length: usize,
}

impl Piece {
    /// Adds this piece of a block's data (`None` for zeros) to `out`.
    fn slice(&self, data: Option<Bytes>, out: &mut Vec<Bytes>) {
        let end = self.start + self.length;
        let mut missing = self.length;
        if let Some(data) = data
            && self.start < data.len()
        {
            let part = data.slice(self.start..end.min(data.len()));
            missing -= part.len();
            out.push(part);
        }
        // A block that is shorter than its place ends in zeros.
        while missing > 0 {
            let length = missing.min(ZEROS.len());
            out.push(Bytes::from_static(&ZEROS[..length]));
            missing -= length;
        }
    }
}

/// Cuts a request at block boundaries.
fn pieces(offset: u64, length: usize, block_bytes: u64) -> impl Iterator<Item = Piece> {
    let (mut at, mut left) = (offset, length);
    std::iter::from_fn(move || {
        let start = (at % block_bytes) as usize;
        let length = left.min(block_bytes as usize - start);
        let piece = (length > 0).then_some(Piece {
            block: at / block_bytes,
            start,
            length,
        });
        left -= length;
        at = at.saturating_add(length as u64);
        piece
    })
}
