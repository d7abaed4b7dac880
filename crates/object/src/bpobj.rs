//! Lists of block pointers (bpobj): deadlists, deferred frees, what is to be freed in the background.

use std::sync::Arc;

use format::{BlockPointer, ObjectId};
use pool::Tx;

use crate::error::Result;
use crate::objset::ObjectSet;

/// Space that a list's blocks take, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct BpobjSpace {
    /// Allocated, deflated (`bpo_bytes`).
    pub used_bytes: u64,
    /// Compressed (`bpo_comp`).
    pub compressed_bytes: u64,
    /// Uncompressed (`bpo_uncomp`).
    pub uncompressed_bytes: u64,
}

/// A list of block pointers, which may include other lists. Lives in the MOS, written in syncing context only.
#[derive(Clone)]
pub struct Bpobj {}

impl Bpobj {
    /// Opens a list.
    pub async fn open(objset: &Arc<ObjectSet>, id: ObjectId) -> Result<Self> {
        let _ = (objset, id);
        todo!()
    }
    /// Creates an empty list; `block_bytes` 0 for the default (128 KiB).
    pub async fn create(objset: &Arc<ObjectSet>, tx: &Tx, block_bytes: u32) -> Result<Self> {
        let _ = (objset, tx, block_bytes);
        todo!()
    }
    /// Frees the list and all lists it includes, not the blocks that they name.
    pub async fn destroy(self, tx: &Tx) -> Result<()> {
        let _ = tx;
        todo!()
    }
    /// Its number.
    pub fn id(&self) -> ObjectId {
        todo!()
    }
    /// Appends a block.
    pub async fn append(&self, tx: &Tx, block: &BlockPointer, freed: bool) -> Result<()> {
        let _ = (tx, block, freed);
        todo!()
    }
    /// Appends many blocks at once.
    pub async fn append_all(&self, tx: &Tx, blocks: &[BlockPointer]) -> Result<()> {
        let _ = (tx, blocks);
        todo!()
    }
    /// Includes another list, which belongs to this one from then on (`bpobj_enqueue_subobj`). An empty one is freed instead.
    pub async fn include(&self, tx: &Tx, other: ObjectId) -> Result<()> {
        let _ = (tx, other);
        todo!()
    }
    /// Space of all blocks, included lists' too.
    pub async fn space(&self) -> Result<BpobjSpace> {
        todo!()
    }
    /// Space of blocks born in `(min_txg, max_txg]`.
    pub async fn space_range(
        &self,
        min_txg: format::Txg,
        max_txg: format::Txg,
    ) -> Result<BpobjSpace> {
        let _ = (min_txg, max_txg);
        todo!()
    }
    /// Whether it names no block.
    pub async fn is_empty(&self) -> Result<bool> {
        todo!()
    }
    /// Calls `visit` with every block, oldest first, included lists' first... without changing the list.
    pub async fn for_each(
        &self,
        visit: &mut (dyn FnMut(&BlockPointer, bool) -> Result<()> + Send),
    ) -> Result<()> {
        let _ = visit;
        todo!()
    }
    /// Takes up to `limit` blocks off the end, calling `visit` with each; included lists that become empty are freed. Returns how many were taken.
    pub async fn drain(
        &self,
        tx: &Tx,
        limit: u64,
        visit: &mut (dyn FnMut(&BlockPointer) -> Result<()> + Send),
    ) -> Result<u64> {
        let _ = (tx, limit, visit);
        todo!()
    }
}
