//! One object.

use std::sync::Arc;

use bytes::Bytes;
use format::{Checksum, Compression, ObjectId, ObjectType};
use pool::Tx;

use crate::error::Result;
use crate::objset::ObjectSet;

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
    /// Levels of its tree.
    pub levels: u8,
    /// 512-byte slots of its dnode.
    pub slots: u8,
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

/// A handle on one object. Cheap to clone; sequential reads are detected per handle.
#[derive(Clone)]
pub struct Object {}

impl Object {
    /// Its number.
    pub fn id(&self) -> ObjectId {
        todo!()
    }
    /// The object set it is in.
    pub fn objset(&self) -> &Arc<ObjectSet> {
        todo!()
    }
    /// What there is to know of it, newest.
    pub fn info(&self) -> ObjectInfo {
        todo!()
    }
    /// Its bonus, newest.
    pub fn bonus(&self) -> Bytes {
        todo!()
    }
    /// Replaces the bonus (its length may change).
    pub fn set_bonus(&self, tx: &Tx, bonus: impl Into<Bytes>) -> Result<()> {
        let _ = (tx, bonus.into());
        todo!()
    }
    /// Replaces the bonus and its type.
    pub fn set_bonus_typed(
        &self,
        tx: &Tx,
        bonus_type: ObjectType,
        bonus: impl Into<Bytes>,
    ) -> Result<()> {
        let _ = (tx, bonus_type, bonus.into());
        todo!()
    }
    /// Content of the spill block, if there is one.
    pub async fn spill(&self) -> Result<Option<Bytes>> {
        todo!()
    }
    /// Writes the spill block; `data` is padded to whole sectors (512 bytes to 128 KiB).
    pub fn set_spill(&self, tx: &Tx, data: Bytes) -> Result<()> {
        let _ = (tx, data);
        todo!()
    }
    /// Removes the spill block.
    pub fn remove_spill(&self, tx: &Tx) -> Result<()> {
        let _ = tx;
        todo!()
    }
    /// Reads without waiting, when everything is in memory: slices of blocks that together are
    /// exactly `length_bytes` long. What was never written reads as zeros.
    pub fn try_read(&self, offset_bytes: u64, length_bytes: usize) -> Option<Vec<Bytes>> {
        let _ = (offset_bytes, length_bytes);
        todo!()
    }
    /// Reads `length_bytes` at `offset_bytes`: slices of blocks, not copies.
    pub async fn read(&self, offset_bytes: u64, length_bytes: usize) -> Result<Vec<Bytes>> {
        let _ = (offset_bytes, length_bytes);
        todo!()
    }
    /// Like [`Self::read`], in one piece (copied only when it crosses blocks).
    pub async fn read_bytes(&self, offset_bytes: u64, length_bytes: usize) -> Result<Bytes> {
        let _ = (offset_bytes, length_bytes);
        todo!()
    }
    /// Writes `data` at `offset_bytes`. Whole blocks are taken as they are, without copying.
    pub async fn write(&self, tx: &Tx, offset_bytes: u64, data: Bytes) -> Result<()> {
        let _ = (tx, offset_bytes, data);
        todo!()
    }
    /// Changes one block's bytes in place: `change` gets the whole block `block_id`, as of `tx`.
    pub async fn modify_block<T>(
        &self,
        tx: &Tx,
        block_id: u64,
        change: impl FnOnce(&mut [u8]) -> T + Send,
    ) -> Result<T> {
        let _ = (tx, block_id, change);
        todo!()
    }
    /// Frees a range: it reads as zeros. `length_bytes` of `u64::MAX` means to the end.
    pub async fn free_range(&self, tx: &Tx, offset_bytes: u64, length_bytes: u64) -> Result<()> {
        let _ = (tx, offset_bytes, length_bytes);
        todo!()
    }
    /// Changes the size of data blocks (and, when not 0, of indirect blocks) while there is at most one block.
    pub async fn set_block_size(
        &self,
        tx: &Tx,
        data_block_bytes: u32,
        indirect_block_shift: u8,
    ) -> Result<()> {
        let _ = (tx, data_block_bytes, indirect_block_shift);
        todo!()
    }
    /// Offset of the first data at or after `offset_bytes` (`SEEK_DATA`), unwritten changes included.
    pub async fn next_data(&self, offset_bytes: u64) -> Result<Option<u64>> {
        let _ = offset_bytes;
        todo!()
    }
    /// Offset of the first hole at or after `offset_bytes` (`SEEK_HOLE`); the end of the last block is one.
    pub async fn next_hole(&self, offset_bytes: u64) -> Result<u64> {
        let _ = offset_bytes;
        todo!()
    }
    /// Space used as of the last sync, in bytes.
    pub fn used_bytes(&self) -> u64 {
        todo!()
    }
    /// Whether it has changes that wait for their txg to be synced.
    pub fn is_dirty(&self) -> bool {
        todo!()
    }
    /// Sets the object's own checksum.
    pub fn set_checksum(&self, tx: &Tx, checksum: Checksum) {
        let _ = (tx, checksum);
        todo!()
    }
    /// Sets the object's own compression.
    pub fn set_compression(&self, tx: &Tx, compression: Compression) {
        let _ = (tx, compression);
        todo!()
    }
    /// The block pointer of a data block as of the last sync (for intent log and diagnostics).
    pub async fn block_pointer(&self, block_id: u64) -> Result<format::BlockPointer> {
        let _ = block_id;
        todo!()
    }
}
