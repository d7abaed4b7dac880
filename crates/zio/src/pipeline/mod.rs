//! The I/O pipeline: block pointers to data and back.
//!
//! **Read** (`read`): cache; else the copies in turn, each verified (and repaired by its vdev when
//! redundancy has what is right), bad copies rewritten from a good one; then decompressed and
//! kept in the cache. Readers of the same block wait for one read. Gang blocks are put together from
//! their members (`gang`), embedded ones decoded, holes are zeros.
//!
//! **Write** (`write`): zeros become holes, the rest is compressed and checksummed (one trip to a
//! CPU worker), embedded in the pointer when small enough, else allocated, on as many places as there are copies (or as a gang
//! block when there is no such run of free space), and written everywhere. Nothing is durable before a flush.
//!
//! **Deduplication** (`dedup`): blocks that may be shared are looked up before they are allocated, and lose a reference when
//! they are freed.
//!
//! **Encryption** (`crypt`): blocks of encrypted datasets are decrypted before they are decompressed; the cache
//! holds them decrypted.
//!
//! **Suspension** (`suspend`): a write that redundancy cannot absorb is never dropped: the pipeline
//! is suspended, the write waits and is tried again after [`Pipeline::resume`]; [`Pipeline::abandon`] makes it fail.
//!
//! Order of sizes, as everywhere in ZFS: *lsize* (the data), *psize* (compressed, whole sectors),
//! *asize* (with parity).
//!
//! Locks: `flights` (reads under way, sharded), `keys`, `pending_frees`, `obsolete`, those of `dedup`; each for a map operation. Bounds: writes
//! in flight and prefetches by semaphores, reads by the leaves' queues.

mod check;
mod crypt;
#[cfg(test)]
mod crypt_tests;
mod dedup;
#[cfg(test)]
mod dedup_tests;
mod gang;
mod places;
mod policy;
mod read;
mod scrub;
mod suspend;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod vdev_tests;
mod write;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use bytes::Bytes;
use codec::checksum::Salt;
use device::{TaskPanic, Tasks, World};
use format::{BlockPointer, Dva, ObjectType, Txg, VdevId};
use parking_lot::{Mutex, RwLock};
use tokio::sync::Semaphore;

pub use crypt::BlockKey;
pub use dedup::{DedupName, DedupPolicy, DedupTables, LiveEntry, StoredEntry, pointer_of_place};
pub use policy::{CacheUse, FailMode, LogPlaces, ReadContext, WritePolicy};
pub use scrub::ScrubOutcome;
pub(crate) use suspend::must_succeed;
pub use suspend::{SuspendHook, Suspension};

use crate::alloc::{Allocator, MetaslabChange, SpaceTotals};
use crate::cache::{Cache, CacheKey};
use crate::clones::Clones;
use crate::error::ZioError;
use read::Flights;
use suspend::Gate;
use vdev::{ErrorSink, LabelSync, RangeSet, VdevTree};

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
    /// Blocks that are read ahead at the same time, at most.
    pub prefetches_max: usize,
}

impl Default for PipelineOptions {
    fn default() -> Self {
        PipelineOptions {
            salt: [0; 32],
            fail_mode: FailMode::Wait,
            read_only: false,
            writes_in_flight_max: 256,
            prefetches_max: 64,
        }
    }
}

/// Reads and writes blocks by their pointers.
pub struct Pipeline {
    world: World,
    tasks: Tasks,
    tree: Arc<VdevTree>,
    allocator: Arc<Allocator>,
    cache: Arc<Cache>,
    errors: Arc<dyn ErrorSink>,
    salt: RwLock<Arc<Salt>>,
    read_only: bool,
    gate: Gate,
    writes: Semaphore,
    prefetches: Arc<Semaphore>,
    flights: Flights,
    keys: crypt::Keys,
    /// What intent logs have on log vdevs that are missing counts as never written.
    without_lost_logs: AtomicBool,
    /// What cannot be read of an intent log counts as never written.
    without_unreadable_logs: AtomicBool,
    /// Gang blocks to free, whose headers must be read first.
    pending_frees: Mutex<BTreeMap<Txg, Vec<BlockPointer>>>,
    /// Ranges of removed vdevs that nothing refers to any more, not recorded yet.
    obsolete: Mutex<BTreeMap<Txg, BTreeMap<VdevId, RangeSet>>>,
    /// Last txg of the pool's checkpoint, or zero.
    checkpoint_txg: AtomicU64,
    clones: Clones,
    dedup: dedup::Dedup,
}

impl Pipeline {
    /// A pipeline over open vdevs. `errors` is told of the vdevs' errors as well.
    pub fn new(
        world: World,
        tree: Arc<VdevTree>,
        allocator: Arc<Allocator>,
        cache: Arc<Cache>,
        options: PipelineOptions,
        errors: Arc<dyn ErrorSink>,
    ) -> Arc<Self> {
        tree.set_error_sink(errors.clone());
        Arc::new_cyclic(|me: &Weak<Pipeline>| Pipeline {
            tasks: Tasks::new(&world, suspend_at_panic(me.clone())),
            world,
            read_only: options.read_only || tree.is_read_only(),
            tree,
            allocator,
            cache,
            errors,
            salt: RwLock::new(Arc::new(Salt::new(options.salt))),
            gate: Gate::new(options.fail_mode),
            writes: Semaphore::new(options.writes_in_flight_max.max(1)),
            prefetches: Arc::new(Semaphore::new(options.prefetches_max)),
            flights: Flights::default(),
            keys: crypt::Keys::default(),
            without_lost_logs: AtomicBool::new(false),
            without_unreadable_logs: AtomicBool::new(false),
            pending_frees: Mutex::new(BTreeMap::new()),
            obsolete: Mutex::new(BTreeMap::new()),
            checkpoint_txg: AtomicU64::new(0),
            clones: Clones::default(),
            dedup: dedup::Dedup::default(),
        })
    }

    /// Makes intent logs end where they go on on a log vdev that is missing (`zpool import -m`).
    pub fn give_up_lost_logs(&self) {
        self.without_lost_logs.store(true, Ordering::Relaxed);
    }

    /// Whether an intent log's block is given up: see [`Self::give_up_lost_logs`].
    pub fn is_given_up(&self, block: &BlockPointer) -> bool {
        self.without_lost_logs.load(Ordering::Relaxed) && self.tree.is_on_lost_log(block)
    }

    /// Makes intent logs end where they cannot be read, whatever was in them (`zpool import -m`).
    pub fn give_up_unreadable_logs(&self) {
        self.without_unreadable_logs.store(true, Ordering::Relaxed);
    }

    /// Whether [`Self::give_up_unreadable_logs`] was said.
    pub fn gives_up_unreadable_logs(&self) -> bool {
        self.without_unreadable_logs.load(Ordering::Relaxed)
    }

    /// The world it runs in.
    pub fn world(&self) -> &World {
        &self.world
    }

    /// The owner of the pool's tasks: one that panics suspends the pool ([`ZioError::TaskPanicked`]).
    pub fn tasks(&self) -> &Tasks {
        &self.tasks
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

    /// The cloned blocks.
    pub fn clones(&self) -> &Clones {
        &self.clones
    }

    /// Whether writes are refused.
    pub fn is_read_only(&self) -> bool {
        self.read_only
    }

    /// Replaces the key of salted checksums (known only after the MOS was read).
    pub fn set_salt(&self, salt: [u8; 32]) {
        *self.salt.write() = Arc::new(Salt::new(salt));
    }

    fn salt(&self) -> Arc<Salt> {
        self.salt.read().clone()
    }

    /// The block if it is in memory; never waits. Holes and embedded blocks are not served here.
    pub fn read_cached(&self, bp: &BlockPointer) -> Option<Bytes> {
        CacheKey::of(bp).and_then(|key| self.cache.get(key))
    }

    /// What a block occupies as users see it, parity deducted (`bp_get_dsize_sync`): zero for holes
    /// and embedded blocks, the allocated size on unknown vdevs.
    pub fn dsize_bytes(&self, bp: &BlockPointer) -> u64 {
        bp.dvas()
            .map(|dva| {
                self.allocator
                    .deflated_bytes(&dva)
                    .unwrap_or(dva.asize_bytes())
            })
            .fold(0, u64::saturating_add)
    }

    /// The pool's space as of the last synced txg. Cheap.
    pub fn space(&self) -> SpaceTotals {
        self.allocator.totals()
    }

    /// One pointer less leads to a block. Its space is freed as [`Self::free_space`] does, unless other files may
    /// share it: then the sync loop finds out.
    pub fn free(&self, txg: Txg, bp: &BlockPointer) {
        if !self.clones.keep(txg, bp) {
            self.free_space(txg, bp);
        }
    }

    /// Frees a block's space, at the end of `txg` plus [`crate::alloc::DEFER_TXGS`]; of a deduplicated block, drops a
    /// reference ([`Self::drop_dedup_references`]). Holes and embedded blocks: nothing to do. Space that is
    /// free already is reported and left alone.
    pub fn free_space(&self, txg: Txg, bp: &BlockPointer) {
        let Some(key) = CacheKey::of(bp) else { return };
        if self.dedup.queue_free(txg, bp) {
            return;
        }
        self.cache.remove(key);
        if bp.is_gang() {
            self.pending_frees.lock().entry(txg).or_default().push(*bp);
            return;
        }
        let is_log = bp.object_type() == ObjectType::INTENT_LOG;
        for dva in bp.dvas() {
            if is_log {
                self.allocator.note_log_freed(txg, &dva);
            }
            if let Err(error) = self.free_dva(txg, bp, &dva) {
                tracing::error!(%error, block = %bp, "a block cannot be freed; its space is lost until the pool is checked");
            }
        }
    }

    /// Frees one place of `bp`; what the checkpoint has as well stays allocated (`metaslab_free`).
    fn free_dva(&self, txg: Txg, bp: &BlockPointer, dva: &Dva) -> Result<(), ZioError> {
        let kept = bp.physical_birth().get() <= self.checkpoint_txg.load(Ordering::Relaxed);
        self.free_place(txg, dva, kept)
    }

    /// Blocks born up to `txg` belong to the pool's checkpoint from now on, and freeing them keeps their space
    /// (module/zfs/spa_checkpoint.c); zero: there is no checkpoint.
    pub fn set_checkpoint(&self, txg: Txg) {
        self.checkpoint_txg.store(txg.get(), Ordering::Relaxed);
    }

    /// Whether the pool has a checkpoint.
    pub fn has_checkpoint(&self) -> bool {
        self.checkpoint_txg.load(Ordering::Relaxed) != 0
    }

    /// Marks a block that is in an intent log as allocated (`zio_claim`), during import.
    ///
    /// # Errors
    /// [`ZioError::SpaceMap`] when its space is allocated already.
    pub async fn claim(&self, txg: Txg, bp: &BlockPointer) -> Result<(), ZioError> {
        if bp.is_gang() {
            return self.claim_gang(txg, bp).await;
        }
        for dva in bp.dvas() {
            self.claim_place(txg, &dva).await?;
        }
        self.note_log_block(bp);
        Ok(())
    }

    /// Counts a block that is allocated as space that an intent log holds, if it is one of a log's chain.
    pub fn note_log_block(&self, bp: &BlockPointer) {
        if bp.object_type() == ObjectType::INTENT_LOG {
            bp.dvas().for_each(|dva| self.allocator.note_log_held(&dva));
        }
    }

    /// What this txg allocated and freed since the last call, for the space maps. Frees of gang
    /// blocks are followed here, so it reads their headers.
    ///
    /// # Errors
    /// None at present: a gang header that cannot be read is reported, and its members' space lost.
    pub async fn take_changes(&self, txg: Txg) -> Result<Vec<MetaslabChange>, ZioError> {
        let gangs = self.pending_frees.lock().remove(&txg).unwrap_or_default();
        for bp in gangs {
            self.free_gang(txg, &bp).await;
        }
        Ok(self.allocator.take_changes(txg))
    }

    /// `txg` is on disk: see [`Allocator::sync_done`].
    pub fn sync_done(&self, txg: Txg) {
        self.allocator.sync_done(txg);
        self.clones.sync_done(txg);
    }

    /// Makes every completed write durable, on every vdev.
    ///
    /// # Errors
    /// [`ZioError::Suspended`]: then the pipeline is suspended.
    pub async fn flush(&self) -> Result<(), ZioError> {
        self.check_writable()?;
        self.tree
            .flush()
            .await
            .map_err(ZioError::from)
            .inspect_err(|error| self.suspend(error.clone()))
    }

    /// Makes the completed writes of these blocks durable: flushes the vdevs that they are on. A failure does not
    /// suspend the pool: the blocks of a log are not needed once their txg is on disk.
    ///
    /// # Errors
    /// [`ZioError::Suspended`], or [`vdev::VdevError::VdevUnavailable`] when a device did not take them that a crash would let
    /// be trusted: then wait for the txg instead.
    pub async fn flush_for(&self, blocks: &[BlockPointer]) -> Result<(), ZioError> {
        self.check_writable()?;
        let mut ids: Vec<_> = blocks
            .iter()
            .flat_map(|bp| bp.dvas())
            .map(|dva| dva.vdev())
            .collect();
        ids.sort_unstable();
        ids.dedup();
        let tops: Vec<_> = ids.into_iter().filter_map(|id| self.tree.top(id)).collect();
        self.tree
            .flush_tops(&tops)
            .await
            .inspect_err(|_| self.leave_failed_logs())?;
        Ok(blocks
            .iter()
            .try_for_each(|bp| self.tree.check_recorded(bp))?)
    }

    /// [`VdevTree::sync_labels`]; what fails is tried once more at once (`vdev_config_sync`, module/zfs/vdev_label.c), then
    /// whenever the pool resumes.
    ///
    /// # Errors
    /// What [`Self::abandon`] said.
    pub async fn sync_labels(&self, sync: &LabelSync<'_>) -> Result<(), ZioError> {
        let mut again = true;
        loop {
            self.wait_resumed().await?;
            let result = self.tree.sync_labels(sync).await.map_err(ZioError::from);
            if self.suspended().is_some() {
                // Another host may have taken the pool before the uberblock was there: nobody is told that the txg is on
                // disk until it is known that none has.
                again = true;
                continue;
            }
            match result {
                Ok(()) => return Ok(()),
                Err(ZioError::Suspended { reason }) if again => {
                    tracing::warn!(reason, "labels are written again");
                    again = false;
                }
                Err(error @ ZioError::Suspended { .. }) => {
                    again = true;
                    self.suspend(error);
                }
                Err(error) => {
                    self.suspend(error.clone());
                    return Err(error);
                }
            }
        }
    }

    fn check_writable(&self) -> Result<(), ZioError> {
        if self.read_only {
            Err(ZioError::ReadOnly)
        } else {
            Ok(())
        }
    }
}

impl std::fmt::Debug for Pipeline {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Pipeline")
            .field("tree", &self.tree)
            .field("suspended", &self.suspended())
            .finish_non_exhaustive()
    }
}

fn suspend_at_panic(pipeline: Weak<Pipeline>) -> impl Fn(TaskPanic) + Send + Sync {
    move |panic| {
        if let Some(pipeline) = pipeline.upgrade() {
            pipeline.suspend(ZioError::TaskPanicked {
                task: panic.task,
                message: panic.message,
            });
        }
    }
}

/// Zeros, shared as far as possible.
fn zeros(length: usize) -> Bytes {
    static ZEROS: std::sync::OnceLock<Bytes> = std::sync::OnceLock::new();
    let shared = ZEROS.get_or_init(|| Bytes::from(vec![0; 1 << 20]));
    if length <= shared.len() {
        shared.slice(..length)
    } else {
        Bytes::from(vec![0; length])
    }
}
