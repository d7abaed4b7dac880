//! The I/O pipeline: block pointers to data and back.

mod policy;

use std::sync::Arc;

use bytes::Bytes;
use device::World;
use format::{BlockPointer, Txg};

pub use policy::{
    AllocClass, Bookmark, CacheUse, ErrorReport, ErrorSink, FailMode, IgnoreErrors, Priority,
    ReadContext, WritePolicy,
};

use crate::alloc::{Allocator, MetaslabChange};
use crate::cache::Cache;
use crate::error::PoolError;
use crate::vdev::VdevTree;

/// Settings of a pipeline.
#[derive(Debug, Clone)]
pub struct PipelineOptions {
    /// Key of salted checksums (`DMU_POOL_CHECKSUM_SALT`).
    pub salt: [u8; 32],
    /// What to do when a write fails beyond redundancy.
    pub fail_mode: FailMode,
    /// Refuse writes.
    pub read_only: bool,
    /// Blocks that are written at the same time, at most.
    pub writes_in_flight_max: usize,
}

impl Default for PipelineOptions {
    fn default() -> Self {
        PipelineOptions {
            salt: [0; 32],
            fail_mode: FailMode::Wait,
            read_only: false,
            writes_in_flight_max: 64,
        }
    }
}

/// Reads and writes blocks by their pointers.
pub struct Pipeline {
    world: World,
    tree: Arc<VdevTree>,
    allocator: Arc<Allocator>,
    cache: Arc<Cache>,
}

impl Pipeline {
    /// A pipeline over open vdevs.
    pub fn new(
        world: World,
        tree: Arc<VdevTree>,
        allocator: Arc<Allocator>,
        cache: Arc<Cache>,
        _options: PipelineOptions,
        _errors: Arc<dyn ErrorSink>,
    ) -> Arc<Self> {
        Arc::new(Pipeline {
            world,
            tree,
            allocator,
            cache,
        })
    }

    /// The world it runs in.
    pub fn world(&self) -> &World {
        &self.world
    }

    /// The vdevs.
    pub fn tree(&self) -> &Arc<VdevTree> {
        &self.tree
    }

    /// The allocator.
    pub fn allocator(&self) -> &Arc<Allocator> {
        &self.allocator
    }

    /// The cache.
    pub fn cache(&self) -> &Arc<Cache> {
        &self.cache
    }

    /// Replaces the key of salted checksums (known only after the MOS was read).
    pub fn set_salt(&self, _salt: [u8; 32]) {
        todo!()
    }

    /// Replaces the `failmode`.
    pub fn set_fail_mode(&self, _mode: FailMode) {
        todo!()
    }

    /// The block if it is in memory; never waits. Holes and embedded blocks are not served here.
    pub fn read_cached(&self, _bp: &BlockPointer) -> Option<Bytes> {
        todo!()
    }

    /// The block's data: `lsize_bytes` of it, verified and decompressed; zeros for holes.
    ///
    /// # Errors
    /// [`PoolError::Checksum`], [`PoolError::Unreadable`], [`PoolError::Corrupt`],
    /// [`PoolError::BadPointer`], [`PoolError::Unsupported`] (encrypted blocks).
    pub async fn read(
        &self,
        _bp: &BlockPointer,
        _context: &ReadContext,
    ) -> Result<Bytes, PoolError> {
        todo!()
    }

    /// The stored bytes (`psize_bytes` of them): verified, but as compressed or encrypted as they are.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub async fn read_raw(
        &self,
        _bp: &BlockPointer,
        _context: &ReadContext,
    ) -> Result<Bytes, PoolError> {
        todo!()
    }

    /// Starts reading into the cache, in the background; bounded: does nothing when there is too
    /// much of it already.
    pub fn prefetch(self: &Arc<Self>, _bp: &BlockPointer, _context: &ReadContext) {
        todo!()
    }

    /// Writes a block: compresses, allocates, checksums; returns its pointer. All zeros become a hole.
    ///
    /// # Errors
    /// [`PoolError::NoSpace`]; [`PoolError::Suspended`] after [`Self::abandon`].
    pub async fn write(
        &self,
        _txg: Txg,
        _data: Bytes,
        _policy: &WritePolicy,
    ) -> Result<BlockPointer, PoolError> {
        todo!()
    }

    /// Writes a new version of `old`; in its place when it was born in this txg and fits, else
    /// elsewhere, freeing `old` if it was born in this txg (an older `old` is left to the caller).
    ///
    /// # Errors
    /// As [`Self::write`].
    pub async fn rewrite(
        &self,
        _txg: Txg,
        _old: &BlockPointer,
        _data: Bytes,
        _policy: &WritePolicy,
    ) -> Result<BlockPointer, PoolError> {
        todo!()
    }

    /// Frees a block's space, at the end of `txg` plus [`crate::alloc::DEFER_TXGS`]. Holes and embedded
    /// blocks: nothing to do.
    pub fn free(&self, _txg: Txg, _bp: &BlockPointer) {
        todo!()
    }

    /// Allocates an intent log block of `size_bytes`. Its checksum words are zero: the caller sets
    /// them to the log's nonce and sequence ([`BlockPointer::set_checksum`]) before writing.
    /// `previous` is the block before it in the log, if any, for locality.
    ///
    /// # Errors
    /// [`PoolError::NoSpace`].
    pub async fn allocate_log_block(
        &self,
        _txg: Txg,
        _size_bytes: u64,
        _previous: Option<&BlockPointer>,
    ) -> Result<BlockPointer, PoolError> {
        todo!()
    }

    /// Writes an intent log block: sets the checksum in its chain header (`zc_eck`) and writes it.
    /// Durable after [`Self::flush_for`] or [`Self::flush`].
    ///
    /// # Errors
    /// [`PoolError::Suspended`].
    pub async fn write_log_block(
        &self,
        _bp: &BlockPointer,
        _data: Vec<u8>,
    ) -> Result<(), PoolError> {
        todo!()
    }

    /// Marks a block that is in an intent log as allocated (`zio_claim`), during import.
    ///
    /// # Errors
    /// [`PoolError::SpaceMap`] when its space is allocated already.
    pub async fn claim(&self, _txg: Txg, _bp: &BlockPointer) -> Result<(), PoolError> {
        todo!()
    }

    /// Makes every completed write durable, on every vdev.
    ///
    /// # Errors
    /// [`PoolError::Suspended`].
    pub async fn flush(&self) -> Result<(), PoolError> {
        todo!()
    }

    /// Makes the completed writes of these blocks durable: flushes the vdevs that they are on.
    ///
    /// # Errors
    /// [`PoolError::Suspended`].
    pub async fn flush_for(&self, _blocks: &[BlockPointer]) -> Result<(), PoolError> {
        todo!()
    }

    /// What this txg allocated and freed since the last call, for the space maps. Frees of gang
    /// blocks are followed here, so it reads their headers.
    ///
    /// # Errors
    /// When a gang header cannot be read.
    pub async fn take_changes(&self, _txg: Txg) -> Result<Vec<MetaslabChange>, PoolError> {
        todo!()
    }

    /// Why the pool is suspended, if it is.
    pub fn suspended(&self) -> Option<PoolError> {
        todo!()
    }

    /// Tries the writes that suspended the pool again ('zpool clear').
    pub fn resume(&self) {
        todo!()
    }

    /// Gives up: every write that waits, and every later one, fails (export of a suspended pool).
    pub fn abandon(&self, _error: PoolError) {
        todo!()
    }
}
