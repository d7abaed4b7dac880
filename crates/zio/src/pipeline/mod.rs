//! The I/O pipeline: block pointers to data and back.
//!
//! [`Pipeline`] puts the parts together and hands them out. A part knows only parts above it here,
//! and only a part changes what it owns:
//!
//! | Module | Part | Does, and owns |
//! |---|---|---|
//! | `suspension` | [`Suspension`] | whether the pool writes, and who waits until it does |
//! | `keys` | [`Keys`] | the loaded keys; decrypts and encrypts blocks |
//! | `dvas` | [`Dvas`] | frees and claims single copies; checkpoint, obsolete ranges |
//! | `leaving` | | the vdev that is being removed; what is freed of it |
//! | `inject` | | faults of blocks that somebody asked for |
//! | `copies` | `Copies` | reads a block's copies, repairs bad ones |
//! | `gang_read` | `GangReader` | puts gang blocks together |
//! | `read`, `scrub`, `heal` | [`Reader`] | cache, reads under way, decompression; scrubs; healing |
//! | `dedup` | [`Dedup`] | live entries of dedup tables, references to drop |
//! | `frees` | [`Frees`] | frees and claims blocks; gang blocks to free |
//! | `prepare` | | compression, encryption and checksum of what is written |
//! | `turns` | [`Turns`] | in which order blocks get their space |
//! | `gang_write` | `GangPlanner` | plans gang blocks |
//! | `placement` | `Placement` | allocates a block's space and writes it |
//! | `dedup_write` | `DedupWriter` | writes blocks that may be shared |
//! | `write` | [`Writer`] | writes blocks, bounded |
//! | `log_blocks` | [`LogBlocks`] | blocks of intent logs; which of them are given up |
//!
//! **Read**: cache; else the copies in turn, each verified (and repaired by its vdev when
//! redundancy has what is right), bad copies rewritten from a good one; then decrypted,
//! decompressed and kept in the cache. Readers of the same block wait for one read. Gang blocks are
//! put together from their members, embedded ones decoded, holes are zeros.
//!
//! **Write**: zeros become holes, the rest is compressed (but for what comes so, [`BlockData`]),
//! encrypted and checksummed (one trip to a CPU worker), embedded in the pointer when small enough,
//! looked up in the dedup table when it may be shared, else allocated once for each copy (or as a
//! gang block when there is no such run of free space), and written everywhere. Nothing is durable
//! before a flush.
//!
//! **Suspension**: a write that redundancy cannot absorb is never dropped. The pool is suspended,
//! the write waits and is tried again after [`Suspension::resume`]; [`Suspension::abandon`] makes
//! it fail.
//!
//! Order of sizes, as everywhere in ZFS: *lsize* (the data), *psize* (compressed, whole sectors),
//! *asize* (with parity).
//!
//! Locks: each part has at most a few, all private, each held for a map operation; only the entry
//! of a dedup table is locked while its block is written. Bounds: writes in flight and prefetches
//! by semaphores, reads by the leaves' queues.

mod check;
mod copies;
#[cfg(test)]
mod crypt_tests;
mod dedup;
#[cfg(test)]
mod dedup_tests;
mod dedup_write;
mod dvas;
mod frees;
mod gang_read;
mod gang_write;
mod heal;
mod inject;
mod keys;
mod leaving;
mod log_blocks;
#[cfg(test)]
mod packed_tests;
mod placement;
mod policy;
mod prepare;
mod read;
#[cfg(test)]
mod repair_tests;
mod scrub;
mod second;
#[cfg(test)]
mod second_tests;
mod sharing;
mod suspension;
#[cfg(test)]
mod tests;
mod turns;
#[cfg(test)]
mod vdev_tests;
mod write;

use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock, Weak};

use bytes::Bytes;
use device::{TaskPanic, Tasks, World};
use format::{BlockPointer, Txg};
use l2arc::{LevelOptions, SecondLevel};
use parking_lot::Mutex;
use tokio::sync::Semaphore;
use vdev::{ErrorSink, LabelSync, VdevTree};

pub use copies::ScrubOutcome;
pub use dedup::{
    Dedup, DedupName, DedupPolicy, DedupTables, LiveEntry, StoredEntry, pointer_of_place,
};
pub use dvas::Dvas;
pub use frees::{FreedHook, Frees};
pub use heal::{Healing, Replacement};
pub use keys::{BlockKey, Keys};
pub use log_blocks::LogBlocks;
pub use policy::{BlockData, CacheUse, FailMode, LogPlaces, RawBlock, ReadContext, WritePolicy};
pub use read::Reader;
pub use sharing::{SharedHook, Sharing};
pub use suspension::{
    SuspendHook, SuspendState, Suspension, may_fail, must_succeed, waits_for_devices,
};
pub use turns::{Turn, Turns};
pub use write::Writer;

use crate::alloc::{Allocator, SpaceTotals};
use crate::cache::Cache;
use crate::clones::Clones;
use crate::error::ZioError;
use check::PoolSalt;
use copies::Copies;
use dedup_write::DedupWriter;
use gang_read::GangReader;
use gang_write::GangPlanner;
pub use gang_write::WideGangs;
use placement::Placement;
use read::{Flights, PREFETCH_UNIT_BYTES};

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
    /// Bytes, uncompressed, that are read ahead at the same time, at most.
    pub prefetch_bytes_max: u64,
}

impl Default for PipelineOptions {
    fn default() -> Self {
        PipelineOptions {
            salt: [0; 32],
            fail_mode: FailMode::Wait,
            read_only: false,
            writes_in_flight_max: 256,
            // Two of the longest windows; hard disks want a megabyte each to be busy.
            prefetch_bytes_max: 64 << 20,
        }
    }
}

/// The parts that read and write blocks by their pointers, put together.
pub struct Pipeline {
    world: World,
    tasks: Tasks,
    tree: Arc<VdevTree>,
    allocator: Arc<Allocator>,
    cache: Arc<Cache>,
    second: Arc<SecondLevel>,
    salt: Arc<PoolSalt>,
    suspension: Arc<Suspension>,
    keys: Arc<Keys>,
    clones: Arc<Clones>,
    dedup: Arc<Dedup>,
    dvas: Arc<Dvas>,
    wide_gangs: Arc<WideGangs>,
    frees: Frees,
    sharing: Arc<Sharing>,
    reader: Arc<Reader>,
    writer: Writer,
    log_blocks: LogBlocks,
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
        let suspension = Arc::new(Suspension::new(
            tree.clone(),
            allocator.clone(),
            options.read_only,
            options.fail_mode,
        ));
        let tasks = Tasks::new(&world, suspend_at_panic(Arc::downgrade(&suspension)));
        let salt = PoolSalt::new(options.salt);
        let keys = Keys::new(world.random.clone(), cache.clone());
        let clones = Arc::new(Clones::default());
        let dedup = Arc::new(Dedup::default());
        let sharing = Arc::new(Sharing::default());
        let dvas = Arc::new(Dvas::new(tree.clone(), allocator.clone()));
        let copies = Arc::new(Copies {
            world: world.clone(),
            tree: tree.clone(),
            errors,
            salt: salt.clone(),
            suspension: suspension.clone(),
        });
        let charge = cache.charge();
        let second = SecondLevel::new(world.clone(), LevelOptions::default(), charge.clone());
        let holder = Arc::downgrade(&second);
        charge.add_holder(holder);
        let gangs = Arc::new(GangReader {
            copies: copies.clone(),
        });
        let wide_gangs = Arc::new(WideGangs::default());
        let reader = Arc::new(Reader {
            world: world.clone(),
            tasks: tasks.clone(),
            cache: cache.clone(),
            second: second.clone(),
            keys: keys.clone(),
            copies,
            gangs: gangs.clone(),
            flights: Flights::default(),
            prefetches: Arc::new(Semaphore::new(
                (options.prefetch_bytes_max / PREFETCH_UNIT_BYTES) as usize,
            )),
        });
        let placement = Arc::new(Placement {
            tree: tree.clone(),
            allocator: allocator.clone(),
            suspension: suspension.clone(),
            gangs: GangPlanner {
                tree: tree.clone(),
                allocator: allocator.clone(),
                salt: salt.clone(),
                gangs: gangs.clone(),
                wide: wide_gangs.clone(),
            },
        });
        let writer = Writer {
            world: world.clone(),
            tree: tree.clone(),
            cache: cache.clone(),
            salt: salt.clone(),
            keys: keys.clone(),
            suspension: suspension.clone(),
            dedup: DedupWriter {
                dedup: dedup.clone(),
                placement: placement.clone(),
                reader: reader.clone(),
                cache: cache.clone(),
                sharing: sharing.clone(),
            },
            placement,
            in_flight: Semaphore::new(options.writes_in_flight_max.max(1)),
        };
        let frees = Frees {
            allocator: allocator.clone(),
            cache: cache.clone(),
            clones: clones.clone(),
            dedup: dedup.clone(),
            dvas: dvas.clone(),
            gangs,
            gang_frees: Mutex::new(BTreeMap::new()),
            hook: OnceLock::new(),
        };
        let log_blocks = LogBlocks {
            random: world.random.clone(),
            tree: tree.clone(),
            allocator: allocator.clone(),
            keys: keys.clone(),
            suspension: suspension.clone(),
            without_lost_logs: AtomicBool::new(false),
            without_unreadable_logs: AtomicBool::new(false),
            are_refused: AtomicBool::new(false),
        };
        Arc::new(Pipeline {
            world,
            tasks,
            tree,
            allocator,
            cache,
            second,
            salt,
            suspension,
            keys,
            clones,
            dedup,
            dvas,
            wide_gangs,
            frees,
            sharing,
            reader,
            writer,
            log_blocks,
        })
    }

    /// The world it runs in.
    pub fn world(&self) -> &World {
        &self.world
    }

    /// The owner of the pool's tasks: one that panics suspends the pool
    /// ([`ZioError::TaskPanicked`]).
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

    /// The second level of the cache: the pool's cache devices.
    pub fn second_level(&self) -> &Arc<SecondLevel> {
        &self.second
    }

    /// Whether the pool writes.
    pub fn suspension(&self) -> &Suspension {
        &self.suspension
    }

    /// The keys of encrypted datasets.
    pub fn keys(&self) -> &Keys {
        &self.keys
    }

    /// The cloned blocks.
    pub fn clones(&self) -> &Clones {
        &self.clones
    }

    /// The deduplicated blocks.
    pub fn dedup(&self) -> &Dedup {
        &self.dedup
    }

    /// Who hears of pointers to blocks that were there before.
    pub fn sharing(&self) -> &Sharing {
        &self.sharing
    }

    /// Single copies: the checkpoint's and those on removed vdevs.
    pub fn dvas(&self) -> &Dvas {
        &self.dvas
    }

    /// Whether gang headers may be longer than 512 bytes.
    pub fn wide_gangs(&self) -> &WideGangs {
        &self.wide_gangs
    }

    /// Frees of blocks.
    pub fn frees(&self) -> &Frees {
        &self.frees
    }

    /// Reads beyond the ordinary ones: raw, scrubs, gang headers, healing.
    pub fn reader(&self) -> &Reader {
        &self.reader
    }

    /// Blocks of intent logs.
    pub fn log_blocks(&self) -> &LogBlocks {
        &self.log_blocks
    }

    /// Whether writes are refused.
    pub fn is_read_only(&self) -> bool {
        self.suspension.is_read_only()
    }

    /// Replaces the key of salted checksums (known only after the MOS was read).
    pub fn set_salt(&self, salt: [u8; 32]) {
        self.salt.set(salt);
    }

    /// [`Reader::read_cached`].
    pub fn read_cached(&self, bp: &BlockPointer) -> Option<Bytes> {
        self.reader.read_cached(bp)
    }

    /// [`Reader::read`].
    ///
    /// # Errors
    /// As that.
    pub async fn read(&self, bp: &BlockPointer, context: &ReadContext) -> Result<Bytes, ZioError> {
        self.reader.read(bp, context).await
    }

    /// [`Reader::prefetch`].
    pub fn prefetch(&self, bp: &BlockPointer, context: &ReadContext) {
        self.reader.prefetch(bp, context);
    }

    /// [`Writer::write`].
    ///
    /// # Errors
    /// As that.
    ///
    /// # Panics
    /// As that.
    pub async fn write(
        &self,
        txg: Txg,
        data: Bytes,
        policy: &WritePolicy,
    ) -> Result<BlockPointer, ZioError> {
        self.writer.write(txg, data, policy).await
    }

    /// [`Writer::write_in_turn`].
    ///
    /// # Errors
    /// As that.
    pub async fn write_in_turn(
        &self,
        txg: Txg,
        data: BlockData,
        policy: &WritePolicy,
        turn: Option<Turn>,
    ) -> Result<BlockPointer, ZioError> {
        self.writer.write_in_turn(txg, data, policy, turn).await
    }

    /// [`Writer::rewrite`].
    ///
    /// # Errors
    /// As that.
    pub async fn rewrite(
        &self,
        txg: Txg,
        old: &BlockPointer,
        data: Bytes,
        policy: &WritePolicy,
    ) -> Result<BlockPointer, ZioError> {
        self.writer.rewrite(txg, old, data, policy).await
    }

    /// [`Writer::relocate`].
    ///
    /// # Errors
    /// As that.
    pub async fn relocate(
        &self,
        txg: Txg,
        old: &BlockPointer,
        data: Bytes,
        policy: &WritePolicy,
        turn: Option<Turn>,
    ) -> Result<BlockPointer, ZioError> {
        self.writer.relocate(txg, old, data, policy, turn).await
    }

    /// [`Writer::overwrite`].
    ///
    /// # Errors
    /// As that.
    pub async fn overwrite(
        &self,
        txg: Txg,
        old: &BlockPointer,
        data: BlockData,
        policy: &WritePolicy,
        turn: Option<Turn>,
    ) -> Result<BlockPointer, ZioError> {
        self.writer.overwrite(txg, old, data, policy, turn).await
    }

    /// [`Frees::free`].
    pub fn free(&self, txg: Txg, bp: &BlockPointer) {
        self.frees.free(txg, bp);
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

    /// `txg` is on disk: [`Self::sync_done`], once no repair of a reader is under way, as freed
    /// space may be used again from then on. That of a pool that is given up is not waited for.
    pub async fn end_txg(&self, txg: Txg) {
        let held = tokio::select! {
            held = self.tree.hold_repairs() => Some(held),
            () = self.suspension.until_abandoned() => None,
        };
        self.sync_done(txg);
        drop(held);
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
        self.suspension.check_writable()?;
        self.tree
            .flush()
            .await
            .map_err(ZioError::from)
            .inspect_err(|error| self.suspension.suspend(error.clone()))
    }

    /// [`VdevTree::sync_labels`]; what fails is tried once more at once (`vdev_config_sync`,
    /// module/zfs/vdev_label.c), then whenever the pool resumes.
    ///
    /// # Errors
    /// What [`Suspension::abandon`] said; [`vdev::VdevError::Unrecorded`].
    pub async fn sync_labels(&self, sync: &LabelSync<'_>) -> Result<(), ZioError> {
        let mut again = true;
        loop {
            self.suspension.wait_resumed().await?;
            let result = self.tree.sync_labels(sync).await.map_err(ZioError::from);
            if self.suspension.error().is_some() {
                // Another host may have taken the pool before the uberblock was there: nobody is
                // told that the txg is on disk until it is known that none has.
                again = true;
                continue;
            }
            match result {
                Ok(()) => return Ok(()),
                Err(error @ ZioError::Vdev(vdev::VdevError::Unrecorded)) => return Err(error),
                Err(ZioError::Suspended { reason }) if again => {
                    tracing::warn!(reason, "labels are written again");
                    again = false;
                }
                Err(error @ ZioError::Suspended { .. }) => {
                    again = true;
                    self.suspension.suspend(error);
                }
                Err(error) => {
                    self.suspension.suspend(error.clone());
                    return Err(error);
                }
            }
        }
    }
}

impl std::fmt::Debug for Pipeline {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Pipeline")
            .field("tree", &self.tree)
            .field("suspended", &self.suspension.error())
            .finish_non_exhaustive()
    }
}

fn suspend_at_panic(suspension: Weak<Suspension>) -> impl Fn(TaskPanic) + Send + Sync {
    move |panic| {
        if let Some(suspension) = suspension.upgrade() {
            suspension.suspend(ZioError::TaskPanicked {
                task: panic.task,
                message: panic.message,
            });
        }
    }
}
