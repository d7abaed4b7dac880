//! Dedup tables: which blocks are shared, and how often (module/zfs/ddt.c, ddt_zap.c).
//!
//! # On disk
//!
//! A table per checksum, in two forms. Of old: a ZAP per class, `DDT-sha256-zap-unique`, in the
//! object directory. With the feature `fast_dedup`: the same in a directory of its own,
//! `DDT-sha256`, with the table's version and flags, entries that are flat, and two logs of changes
//! that are not in the ZAPs yet. Sums of each ZAP's entries by references are in `DDT-statistics`.
//! Layouts of entries are in [`format`].
//!
//! # What is done here
//!
//! The pipeline asks for entries while a txg is written and keeps those that it changes
//! ([`zio::pipeline::DedupTables`]). When the datasets of a pass are written, [`Dedup::sync`] drops
//! the references of freed blocks, in batches, frees the space of those without references, puts
//! the changed entries down, and brings statistics, status and the count of space saved up to
//! date. Entries are found in the logs, which are in memory, and in the ZAPs, through the cache. A
//! filter in memory says of most entries that are in no ZAP that they are not (`known`): to who
//! writes new data, not to who drops or adds a reference.
//!
//! # Logs
//!
//! A table of old has no logs: what changes is stored in its ZAPs at once (`store`). With the
//! feature, it is appended to a log (`log`), and brought into the ZAPs later, in the order in which
//! these have it, some of it in each txg (`flush`). A table that is much larger than memory is then
//! updated leaf by leaf, with all changes to a leaf at a time, instead of one leaf for each change;
//! the first of them are read before (`ahead`). Logs that are too long to be in memory are flushed
//! whole during the import, before anything else uses the tables; so are all where no logs are to
//! be written ([`LogLimits::is_written`]).
//!
//! # Crash
//!
//! All of it is in the MOS and changes with the txg that writes or frees the blocks: after a crash
//! tables, logs and blocks are those of one txg. What is in memory of the logs is read from them
//! when the pool is imported.
//!
//! Locks: `tables`, then `planned`; `status`, `limits`, `charged`, `chosen` and `ahead`: for some
//! instructions each; before them `is_pruning`, for as long as it takes. Only the sync loop changes
//! tables.

mod ahead;
mod flush;
mod known;
mod log;
mod prune;
mod store;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use codec::compress::{ZstdLevel, compress, decompress};
use dataset::{DslPool, Features};
use device::BoxFuture;
use format::{
    Checksum, Compression, DdtClass, DdtPhys, DdtStat, ObjectId, decode_ddt_value_head,
    encode_ddt_value_head,
};
use futures::future::AbortHandle;
use object::{ObjectError, ObjectSet, SyncContext, Zap, ZapValue};
use parking_lot::{Mutex, RwLock};
use spa::{Pass, PoolError, directory, features};
use zio::alloc::Allocator;
use zio::pipeline::{DedupName, DedupTables, LiveEntry, StoredEntry};
use zio::{Charge, Charged, Pipeline, SharedCache, Tx, ZioError};

pub use log::LogLimits;

use crate::filter::Known;
use crate::prefetch::read_whole;
use crate::status::{BUCKETS, DedupStatus};
use log::{ENTRY_BYTES, Logs};

/// Checksums of which there can be tables.
const CHECKSUMS: [Checksum; 5] = [
    Checksum::Sha256,
    Checksum::Sha512,
    Checksum::Skein,
    Checksum::EdonR,
    Checksum::Blake3,
];
/// Version of tables with a directory (`DDT_VERSION_FDT`).
const VERSION: u64 = 1;
/// Entries have one place (`DDT_FLAG_FLAT`).
const FLAG_FLAT: u64 = 1;
/// Changes are logged (`DDT_FLAG_LOG`).
const FLAG_LOG: u64 = 2;
/// Frees whose entries are in memory at the same time.
const FREES_STEP: usize = 16 << 10;
/// `dedup_table_quota=auto`.
pub const QUOTA_AUTO: u64 = u64::MAX;

/// The dedup tables of a pool, known to its pipeline.
pub fn of_pool(dsl: &DslPool, pipeline: &Pipeline) -> Arc<Dedup> {
    let charge = pipeline.cache().charge();
    let dedup = Arc::new(Dedup {
        mos: dsl.mos().clone(),
        allocator: pipeline.allocator().clone(),
        features: dsl.features().clone(),
        cache: pipeline.cache().shared().clone(),
        charge: charge.clone(),
        charged: Mutex::new(charge.take(0)),
        tables: RwLock::default(),
        planned: Mutex::default(),
        status: Mutex::default(),
        quota_bytes: AtomicU64::new(QUOTA_AUTO),
        has_logs: AtomicBool::new(false),
        flush_step: AtomicUsize::new(0),
        limits: RwLock::default(),
        is_pruning: tokio::sync::Mutex::default(),
        chosen: Mutex::default(),
        pruned: AtomicU64::new(0),
        ahead: Mutex::default(),
    });
    let tables: Arc<dyn DedupTables> = dedup.clone();
    pipeline.dedup().set_tables(&tables);
    dedup
}

/// One table.
#[derive(Default)]
struct Table {
    flat: bool,
    /// What changes in it is logged.
    is_logged: bool,
    /// Its directory; `None` of old, when it is the object directory.
    own_directory: Option<ObjectId>,
    zaps: [Option<Zap>; 3],
    /// Entries by references, of each class.
    histograms: [Vec<DdtStat>; 3],
    logs: Logs,
    /// What its ZAPs have.
    known: Known,
    /// Statistics are to be written.
    touched: bool,
}

/// The dedup tables of an open pool.
pub struct Dedup {
    mos: Arc<ObjectSet>,
    allocator: Arc<Allocator>,
    features: Arc<Features>,
    /// Its limit says how much memory there is.
    cache: Arc<SharedCache>,
    charge: Arc<Charge>,
    /// What the logs are charged.
    charged: Mutex<Charged>,
    /// By the code of the checksum.
    tables: RwLock<BTreeMap<u8, Table>>,
    /// Whether a table that this pass is about to make is flat, by the code of the checksum.
    planned: Mutex<BTreeMap<u8, bool>>,
    status: Mutex<DedupStatus>,
    /// Property `dedup_table_quota`, in bytes; zero is none.
    quota_bytes: AtomicU64,
    /// Logs that are not taken into memory are not flushed yet: those that are too long for it, of
    /// another release or, where there was more memory, our own; or all.
    has_logs: AtomicBool,
    /// Entries of logs in the next step; zero before the first.
    flush_step: AtomicUsize,
    limits: RwLock<LogLimits>,
    /// One at a time removes entries with one reference (`prune`).
    is_pruning: tokio::sync::Mutex<()>,
    /// What is to be removed by the next txg.
    chosen: Mutex<Vec<(DedupName, DdtPhys)>>,
    /// How many were removed.
    pruned: AtomicU64,
    /// Reads of what is flushed next.
    ahead: Mutex<Option<AbortHandle>>,
}

impl Dedup {
    /// What was read of the tables for reports.
    pub fn set_status(&self, status: &DedupStatus) {
        *self.status.lock() = status.clone();
    }

    /// Opens the tables that there are (`ddt_load`).
    ///
    /// # Errors
    /// Of reading; [`PoolError::UnsupportedForWrite`] when one is of a kind that this release does
    /// not know.
    pub async fn load(&self, pool: &str) -> Result<(), PoolError> {
        let root = Zap::hold(&self.mos, ObjectId::POOL_DIRECTORY).await?;
        let Some(statistics) = root.lookup_u64(directory::DDT_STATISTICS).await? else {
            return Ok(());
        };
        let statistics = Zap::hold(&self.mos, ObjectId::new(statistics)).await?;
        for checksum in CHECKSUMS {
            let mut table = Table::default();
            let own = root.lookup_u64(directory_name(checksum)).await?;
            let holder = match own {
                None => root.clone(),
                Some(id) => {
                    let own = Zap::hold(&self.mos, ObjectId::new(id)).await?;
                    let version = own.lookup_u64("version").await?;
                    let flags = own.lookup_u64("flags").await?.unwrap_or(u64::MAX);
                    if version != Some(VERSION) || flags & !(FLAG_FLAT | FLAG_LOG) != 0 {
                        return Err(PoolError::UnsupportedForWrite {
                            pool: pool.to_owned(),
                            features: vec![format!(
                                "dedup table of {checksum} with version {} and flags {flags:#x}",
                                version.unwrap_or(0)
                            )],
                        });
                    }
                    table.flat = flags & FLAG_FLAT != 0;
                    table.is_logged = flags & FLAG_LOG != 0;
                    table.own_directory = Some(own.id());
                    table.logs = Logs::load(&self.mos, &own, checksum, table.flat).await?;
                    own
                }
            };
            let mut exists = own.is_some();
            for class in DdtClass::ALL {
                let name = zap_name(checksum, class);
                let Some(id) = holder.lookup_u64(&name).await? else {
                    continue;
                };
                exists = true;
                let histogram = &mut table.histograms[class.index()];
                histogram.resize(BUCKETS, DdtStat::default());
                if let Some(value) = statistics.lookup(&name).await? {
                    let words = value.to_u64s();
                    let stats = words.chunks_exact(DdtStat::BYTES / 8);
                    for (stat, words) in histogram.iter_mut().zip(stats) {
                        *stat = DdtStat::from_words(words)?;
                    }
                }
                let zap = Zap::hold(&self.mos, ObjectId::new(id)).await?;
                table.zaps[class.index()] = Some(zap);
            }
            if exists {
                self.tables.write().insert(checksum.code(), table);
            }
        }
        self.load_logs().await
    }

    /// Reads the logs. If there is not the memory for all that is in them, or no logs are written,
    /// nothing of it is kept: they are flushed whole.
    async fn load_logs(&self) -> Result<(), PoolError> {
        let mut tables = std::mem::take(&mut *self.tables.write());
        let mut left = self.loaded_entries_max();
        let mut fits = self.limits.read().is_written;
        for table in tables.values_mut() {
            fits = fits && table.logs.load_entries(&self.allocator, left).await?;
            left = left.saturating_sub(table.logs.len());
        }
        if !fits {
            for table in tables.values_mut() {
                table.logs.forget_entries();
            }
        }
        let has_some = tables.values().any(|table| !table.logs.are_empty());
        self.has_logs.store(has_some && !fits, Ordering::Release);
        *self.tables.write() = tables;
        self.charge_logs();
        Ok(())
    }

    /// Entries that may be in the logs of all tables when a txg is on disk.
    fn log_entries_max(&self) -> usize {
        self.limits.read().entries_max(&self.cache)
    }

    /// Entries of logs that are taken into memory, whatever other pools it has: half of the cache's
    /// limit. These are more than there may be later, to which they come down with the next txgs.
    /// Of ours nearly all fit, and what cannot be flushed has to.
    fn loaded_entries_max(&self) -> usize {
        let room = self.cache.limit_bytes() / 2 / ENTRY_BYTES;
        let room = usize::try_from(room).unwrap_or(usize::MAX);
        // Twice as many as are kept are there for a moment, as while a txg is written.
        room.max(self.log_entries_max() * 2)
    }

    /// Changes how far logs grow.
    pub fn set_log_limits(&self, limits: LogLimits) {
        *self.limits.write() = limits;
    }

    /// What filters take in memory. Entries of logs count in the cache's limit.
    pub fn memory_bytes(&self) -> u64 {
        let tables = self.tables.read();
        tables.values().map(|table| table.known.bytes()).sum()
    }

    /// Counts what the logs take now in the cache's limit.
    fn charge_logs(&self) {
        let entries: usize = {
            let tables = self.tables.read();
            tables.values().map(|table| table.logs.len()).sum()
        };
        let charged = self.charge.take(entries as u64 * ENTRY_BYTES);
        *self.charged.lock() = charged;
    }

    /// Whether there is something to flush: then a txg is needed although nobody asks for one.
    pub(crate) fn has_work(&self) -> bool {
        let tables = self.tables.read();
        tables.values().any(|table| table.logs.waiting() > 0)
    }

    /// Reads all tables into the cache; how many bytes that were. Logs are in memory as it is.
    ///
    /// # Errors
    /// Of reading.
    pub async fn prefetch(&self) -> Result<u64, PoolError> {
        let objects: Vec<ObjectId> = {
            let tables = self.tables.read();
            let zaps = tables
                .values()
                .flat_map(|table| table.zaps.iter().flatten());
            zaps.map(Zap::id).collect()
        };
        read_whole(&self.mos, &objects).await
    }

    /// Whether logs that are not in memory wait to be flushed: until then nothing is looked up.
    pub fn has_logs(&self) -> bool {
        self.has_logs.load(Ordering::Acquire)
    }

    /// Property `dedup_table_quota`.
    pub fn set_quota(&self, bytes: u64) {
        self.quota_bytes.store(bytes, Ordering::Relaxed);
    }

    /// For reports.
    pub fn status(&self) -> DedupStatus {
        let mut status = self.status.lock().clone();
        let tables = self.tables.read();
        if !tables.is_empty() && !self.has_logs() {
            (status.table_bytes, status.core_bytes) = sizes(&tables);
        }
        status
    }

    fn is_over_quota(&self) -> bool {
        match self.quota_bytes.load(Ordering::Relaxed) {
            0 => false,
            QUOTA_AUTO => {
                let totals = self.allocator.totals();
                // `ddt_special_over_quota`
                const ROOM_BYTES: u64 = 8 << 30;
                let is_full = |size_bytes: u64, allocated_bytes: u64| {
                    let limit = (size_bytes / 100 * 85).max(size_bytes.saturating_sub(ROOM_BYTES));
                    allocated_bytes >= limit
                };
                if totals.dedup_size_bytes > 0 {
                    is_full(totals.dedup_size_bytes, totals.dedup_allocated_bytes)
                } else if totals.special_size_bytes > 0 {
                    is_full(totals.special_size_bytes, totals.special_allocated_bytes)
                } else {
                    false
                }
            }
            quota_bytes => sizes(&self.tables.read()).0 > quota_bytes,
        }
    }

    fn is_fast_enabled(&self) -> bool {
        self.features.is_enabled(features::FAST_DEDUP)
    }

    /// Whether a table that is not there yet will be flat. That is decided with its first entry: a
    /// txg may enable the feature after some of its blocks were written, and a flat table cannot
    /// hold entries that are not.
    fn will_be_flat(&self, code: u8) -> bool {
        let mut planned = self.planned.lock();
        *planned
            .entry(code)
            .or_insert_with(|| self.is_fast_enabled())
    }

    async fn find(
        &self,
        name: &DedupName,
        trust_filter: bool,
    ) -> Result<Option<StoredEntry>, ObjectError> {
        let (zaps, flat) = {
            let tables = self.tables.read();
            let Some(table) = tables.get(&name.checksum.code()) else {
                return Ok(None);
            };
            if let Some(logged) = table.logs.get(name.key.words()) {
                let (class, value) = (logged.class, logged.value.clone());
                return Ok(Some(StoredEntry { class, value }));
            }
            if trust_filter && table.known.lacks(name.key.words()) {
                return Ok(None);
            }
            (table.zaps.clone(), table.flat)
        };
        for class in DdtClass::ALL {
            let Some(zap) = &zaps[class.index()] else {
                continue;
            };
            if let Some(value) = zap.lookup_u64_key(name.key.words()).await? {
                let value = decode_value(zap.id(), &value.data, flat)?;
                let class = Some(class);
                return Ok(Some(StoredEntry { class, value }));
            }
        }
        Ok(None)
    }

    /// Settles this pass: see the head of this module. Says whether anything changed.
    ///
    /// # Errors
    /// Of reading and writing the MOS: the txg cannot be written.
    async fn sync(
        &self,
        ctx: &SyncContext,
        tx: &Tx,
        pipeline: &Pipeline,
    ) -> Result<bool, PoolError> {
        if self.has_logs() && pipeline.dedup().has_frees(ctx.txg) {
            // Not before they are in the ZAPs can entries be changed.
            while self.flush_logs(ctx, tx).await? {}
        }
        let mut changed = false;
        let mut logged = BTreeSet::new();
        loop {
            let taken = pipeline
                .frees()
                .drop_dedup_references(ctx.txg, FREES_STEP)
                .await?;
            let changes = pipeline.dedup().take_changes();
            if taken == 0 && changes.is_empty() {
                break;
            }
            changed |= !changes.is_empty();
            logged.append(&mut self.put_down(ctx, tx, changes).await?);
        }
        if ctx.pass == 1 {
            changed |= self.flush(ctx, tx, &logged).await?;
            self.charge_logs();
            changed |= self.prune_chosen(tx).await?;
            for code in logged {
                self.learn(ctx, code).await?;
            }
        }
        // No entry is left that waits for its table.
        self.planned.lock().clear();
        if changed {
            self.finish(ctx, tx).await?;
        }
        Ok(changed)
    }
}

impl Dedup {
    /// Puts changed entries, sorted, where they belong: into logs, or into ZAPs where there are no
    /// logs. Which tables have something new in their logs.
    async fn put_down(
        &self,
        ctx: &SyncContext,
        tx: &Tx,
        changes: Vec<(DedupName, LiveEntry)>,
    ) -> Result<BTreeSet<u8>, PoolError> {
        let mut to_log: BTreeMap<u8, Vec<(DedupName, LiveEntry)>> = BTreeMap::new();
        for (name, entry) in changes {
            let code = name.checksum.code();
            if self.is_logged(code) {
                to_log.entry(code).or_default().push((name, entry));
            } else {
                self.store(ctx, tx, &name, entry).await?;
            }
        }
        let logged = to_log.keys().copied().collect();
        for (code, changes) in to_log {
            let checksum = Checksum::from_code(code);
            self.log_changes(ctx, tx, checksum, changes).await?;
        }
        Ok(logged)
    }

    fn is_logged(&self, code: u8) -> bool {
        let tables = self.tables.read();
        let table = tables.get(&code);
        let is_written = self.limits.read().is_written;
        table.map_or_else(
            || self.will_be_flat(code) && is_written,
            // What is in a log already can change only there.
            |table| table.is_logged && (is_written || table.logs.len() > 0),
        )
    }

    /// Flushes a part of logs that are not in memory, before datasets are written. Returns whether
    /// there were any.
    pub(crate) async fn early(&self, pass: &Pass<'_>) -> Result<bool, PoolError> {
        let has_logs = self.has_logs();
        if has_logs {
            self.flush_logs(pass.ctx, pass.tx).await?;
        }
        Ok(has_logs)
    }

    /// Settles what was written and freed so far in this transaction group. Returns whether
    /// anything changed.
    pub(crate) async fn settle(&self, pass: &Pass<'_>) -> Result<bool, PoolError> {
        self.sync(pass.ctx, pass.tx, &pass.spa.pipeline).await
    }
}

impl DedupTables for Dedup {
    fn lookup<'a>(
        &'a self,
        name: &'a DedupName,
        trust_filter: bool,
    ) -> BoxFuture<'a, Result<Option<StoredEntry>, ZioError>> {
        Box::pin(async move {
            let corrupt = |what: String| ZioError::Corrupt {
                block: format!("the dedup table of {}", name.checksum),
                what,
            };
            if self.has_logs() {
                return Err(corrupt("its logs are not flushed yet".into()));
            }
            let found = self.find(name, trust_filter).await;
            found.map_err(|error| match error {
                ObjectError::Zio(error) => error,
                error => corrupt(error.to_string()),
            })
        })
    }

    fn new_entries_are_flat(&self, checksum: Checksum) -> Option<bool> {
        if self.is_over_quota() {
            return None;
        }
        let code = checksum.code();
        let tables = self.tables.read();
        let table = tables.get(&code);
        Some(table.map_or_else(|| self.will_be_flat(code), |table| table.flat))
    }

    fn may_be_pruned(&self, checksum: Checksum) -> bool {
        let tables = self.tables.read();
        let table = tables.get(&checksum.code());
        table.map_or_else(|| self.is_fast_enabled(), |table| table.flat)
    }
}

/// What tables take on disk, and would take in memory.
fn sizes(tables: &BTreeMap<u8, Table>) -> (u64, u64) {
    let (mut disk_bytes, mut core_bytes) = (0u64, 0u64);
    for table in tables.values() {
        for zap in table.zaps.iter().flatten() {
            let info = zap.object().info();
            disk_bytes = disk_bytes.saturating_add(info.used_bytes);
            let blocks = info.max_block_id.saturating_add(1);
            core_bytes =
                core_bytes.saturating_add(blocks.saturating_mul(info.data_block_bytes.into()));
        }
        disk_bytes = disk_bytes.saturating_add(table.logs.used_bytes());
    }
    (disk_bytes, core_bytes)
}

/// Name of a table's directory (`DMU_POOL_DDT_DIR`).
fn directory_name(checksum: Checksum) -> String {
    format!("DDT-{checksum}")
}

/// Name of a table's ZAP (`DMU_POOL_DDT`), in its directory and in the statistics.
fn zap_name(checksum: Checksum, class: DdtClass) -> String {
    format!("DDT-{checksum}-zap-{}", class.word())
}

/// The value of an entry as its ZAP has it (`ddt_zap_compress`).
fn encode_value(value: &DdtPhys) -> ZapValue {
    let plain = value.encode();
    let packed = compress(
        Compression::Zle,
        ZstdLevel::default(),
        &plain,
        plain.len() - 1,
    )
    .expect("zle needs nothing that it could lack");
    let (kind, rest) = match packed {
        Some(packed) => (Compression::Zle, packed),
        None => (Compression::Off, plain),
    };
    let mut out = vec![encode_ddt_value_head(kind)];
    out.extend_from_slice(&rest);
    ZapValue::from_bytes(out)
}

/// Decodes an entry as its ZAP holds it: compressed, or as it is.
///
/// # Errors
/// When the bytes are none of an entry.
pub fn decode_value(object: ObjectId, stored: &[u8], flat: bool) -> Result<DdtPhys, ObjectError> {
    let damaged = |detail: String| ObjectError::Damaged {
        object,
        structure: "ddt_univ_phys_t",
        detail,
    };
    let (head, rest) = stored
        .split_first()
        .ok_or_else(|| damaged("an entry has no value".into()))?;
    let (kind, endian) = decode_ddt_value_head(*head);
    let bytes = if flat {
        DdtPhys::FLAT_BYTES
    } else {
        DdtPhys::TRADITIONAL_BYTES
    };
    let plain = match kind {
        Compression::Off | Compression::Inherit => rest.to_vec(),
        kind => decompress(kind, rest, bytes).map_err(|error| damaged(error.to_string()))?,
    };
    let plain = plain
        .get(..bytes)
        .ok_or_else(|| damaged(format!("a value has {} bytes, not {bytes}", plain.len())))?;
    DdtPhys::decode(plain, endian).map_err(|source| ObjectError::Format { object, source })
}
