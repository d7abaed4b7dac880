//! Which bytes of each vdev are allocated, on disk: space maps of metaslabs, and log space maps.
//!
//! The allocator (crate `zio`) knows what is free; this crate makes it last. Per top-level vdev
//! there is an object with one object number per metaslab (`metaslab_array`), each a space map.
//! With the feature `log_spacemap`, changes first go into one log space map per transaction group
//! and, in memory, into two sets per metaslab (`allocs`, `frees`: what its own space map lacks);
//! a few metaslabs are flushed in every transaction group (`logmaps`).
//!
//! ```text
//!   free(metaslab) = everything - replay(space map) - allocs + frees
//! ```
//!
//! Everything is written in syncing context by the sync loop; loading for the allocator may run at
//! any time. The lock of a metaslab makes the two see one of two consistent states; it is held
//! across awaits (a `tokio` mutex), and nothing else is locked while it is waited for. A crash
//! leaves the space maps of the last synced transaction group, all together.
//!
//! Source: module/zfs/metaslab.c (`metaslab_sync`, `metaslab_flush`, `metaslab_condense`),
//! space_map.c, spa_log_spacemap.c, vdev.c (`vdev_sync`, `vdev_metaslab_init`).

#![forbid(unsafe_code)]

mod condense;
mod load;
mod logmaps;
mod lost;
pub mod names;

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bytes::Bytes;
use dataset::{DatasetError, Features};
use format::{NvList, ObjectId, ObjectType, Txg, VdevId};
use object::{
    NewObject, Object, ObjectError, ObjectSet, SpaceMapKind, SpaceMapObject, SyncContext, Zap,
    ZapOptions,
};
use parking_lot::Mutex;
use vdev::metaslab_span;
use vdev::{METASLABS_MAX, RangeSet};
use zio::alloc::MetaslabChange;
use zio::pipeline::waits_for_devices;
use zio::{Pipeline, Tx, ZioError};

use crate::logmaps::LogBook;
use crate::names::{LOG_SPACEMAP, OBSOLETE_COUNTS, SPACEMAP_HISTOGRAM, SPACEMAP_V2};

pub use crate::logmaps::MetaslabId;

/// Block size of space maps while logs exist (`zfs_metaslab_sm_blksz_with_log`) and of logs
/// (`zfs_log_sm_blksz`), in bytes.
const MAP_BLOCK_BYTES: u32 = 128 << 10;
/// Block size of space maps without logs (`zfs_metaslab_sm_blksz_no_log`), in bytes.
const MAP_BLOCK_BYTES_NO_LOG: u32 = 16 << 10;
/// Ranges of all unflushed changes that are kept in memory, before metaslabs are flushed for it.
const UNFLUSHED_RANGES_MAX: u64 = 2 << 20;
/// Buckets of a space map's histogram (`SPACE_MAP_HISTOGRAM_SIZE`).
const HISTOGRAM_BUCKETS: usize = 32;

/// How a top-level vdev is cut into metaslabs, from its configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TopShape {
    /// The vdev.
    pub vdev: VdevId,
    /// Log2 of its smallest block, in bytes.
    pub ashift: u8,
    /// Log2 of a metaslab's size, in bytes.
    pub ms_shift: u8,
    /// How many metaslabs it has.
    pub ms_count: u64,
    /// Bytes of a stripe on dRAID, where metaslabs have whole ones only; else zero.
    pub stripe_bytes: u64,
    /// Object with the space maps' numbers; zero until first synced.
    pub ms_array: ObjectId,
    /// The vdev's ZAP; zero if it has none yet.
    pub top_zap: ObjectId,
}

impl TopShape {
    /// From a top-level vdev's configuration; `None` for holes and vdevs without metaslabs.
    pub fn from_config(config: &NvList) -> Option<Self> {
        if let Some("hole" | "indirect" | "missing") = config.string("type") {
            return None;
        }
        let ms_shift = config
            .u64("metaslab_shift")
            .filter(|shift| (9..64).contains(shift))?;
        let ms_count = config.u64("asize")? >> ms_shift;
        let ashift = config
            .u64("ashift")
            .filter(|shift| (9..=16).contains(shift))?;
        (ms_count > 0 && ms_count <= METASLABS_MAX).then_some(())?;
        let stripe_bytes = match config.string("type") {
            Some("draid") => {
                let columns = config
                    .u64("draid_ndata")?
                    .checked_add(config.u64("nparity")?)?;
                columns.min(255) << ashift
            }
            _ => 0,
        };
        Some(Self {
            vdev: VdevId::new(u32::try_from(config.u64("id")?).ok()?),
            ashift: ashift as u8,
            ms_shift: ms_shift as u8,
            ms_count,
            stripe_bytes,
            ms_array: ObjectId::new(config.u64("metaslab_array").unwrap_or(0)),
            top_zap: ObjectId::new(config.u64(names::TOP_ZAP).unwrap_or(0)),
        })
    }

    /// The bytes of a metaslab.
    pub fn span(&self, metaslab: u64) -> Range<u64> {
        metaslab_span(metaslab, self.ms_shift.into(), self.stripe_bytes)
    }
}

/// One metaslab.
#[derive(Default)]
struct Metaslab {
    map: Option<SpaceMapObject>,
    /// Allocated, but not so in `map`.
    allocs: RangeSet,
    /// Free, but not so in `map`.
    frees: RangeSet,
    /// Length of the map when condensing was considered last, in bytes.
    considered_bytes: u64,
    /// Last txg whose histogram was written.
    histogram_txg: Txg,
}

/// What is recorded of a metaslab.
pub struct Recorded {
    /// The metaslab.
    pub id: MetaslabId,
    /// Allocated in it, unflushed changes included.
    pub allocated_bytes: u64,
    /// Free ranges by log2 of their size; `None` without a space map.
    pub histogram: Option<[u64; 64]>,
}

struct Top {
    shape: TopShape,
    array: Mutex<Option<Object>>,
    flush_txgs: Mutex<Option<Object>>,
    /// Freed, but the checkpoint's: all "free" entries (`vdev_checkpoint_sm`).
    checkpoint: Mutex<Option<SpaceMapObject>>,
    top_zap: AtomicU64,
    metaslabs: Vec<Arc<tokio::sync::Mutex<Metaslab>>>,
}

impl Top {
    fn new(shape: TopShape) -> Self {
        Self {
            shape,
            array: Mutex::new(None),
            flush_txgs: Mutex::new(None),
            checkpoint: Mutex::new(None),
            top_zap: AtomicU64::new(shape.top_zap.get()),
            metaslabs: (0..shape.ms_count).map(|_| Arc::default()).collect(),
        }
    }

    /// The same with more metaslabs. Whoever reads from this one meanwhile sees the same.
    fn grown(&self, ms_count: u64) -> Self {
        let mut metaslabs = self.metaslabs.clone();
        metaslabs.resize_with(metaslabs.len().max(ms_count as usize), Arc::default);
        Self {
            shape: TopShape {
                ms_count: metaslabs.len() as u64,
                ..self.shape
            },
            array: Mutex::new(self.array.lock().clone()),
            flush_txgs: Mutex::new(self.flush_txgs.lock().clone()),
            checkpoint: Mutex::new(self.checkpoint.lock().clone()),
            top_zap: AtomicU64::new(self.top_zap.load(Ordering::Relaxed)),
            metaslabs,
        }
    }

    fn span(&self, metaslab: u64) -> Range<u64> {
        self.shape.span(metaslab)
    }
}

/// Everything about space on disk.
#[derive(Default)]
pub struct Space {
    mos: Mutex<Option<Arc<ObjectSet>>>,
    tops: Mutex<BTreeMap<VdevId, Arc<Top>>>,
    book: Mutex<LogBook>,
    /// Ranges in all `allocs` and `frees`.
    unflushed: AtomicU64,
    log_zap: Mutex<Option<ObjectId>>,
    log: Mutex<Option<(Txg, SpaceMapObject)>>,
    /// All metaslabs are flushed with the next txg (before export).
    flush_all: AtomicBool,
}

/// One pass of the sync loop, as far as space maps are concerned.
pub struct SpaceSync<'a> {
    /// Transaction group and number of the pass.
    pub ctx: &'a SyncContext,
    /// The transaction that objects of the MOS are changed in.
    pub tx: &'a Tx,
    /// The pool's features.
    pub features: &'a Features,
    /// The pool's pipeline, with the allocator.
    pub pipeline: &'a Arc<Pipeline>,
}

impl Space {
    /// Knows nothing yet.
    pub fn new() -> Arc<Self> {
        Arc::new(Self::default())
    }

    /// Has all metaslabs flushed with the next txg, or not.
    pub fn set_flush_all(&self, flush_all: bool) {
        self.flush_all.store(flush_all, Ordering::Relaxed);
    }

    /// Whether all metaslabs are to be flushed with the next txg.
    pub fn is_flushing_all(&self) -> bool {
        self.flush_all.load(Ordering::Relaxed)
    }

    /// The same, once: whoever asks flushes them.
    pub fn take_flush_all(&self) -> bool {
        self.flush_all.swap(false, Ordering::Relaxed)
    }

    fn mos(&self) -> Arc<ObjectSet> {
        self.mos
            .lock()
            .clone()
            .expect("the MOS is known before space is synced, and until the pool is closed")
    }

    /// Lets go of the MOS: it leads back here through the allocator, and nothing would ever be
    /// freed.
    pub fn close(&self) {
        *self.mos.lock() = None;
        *self.log.lock() = None;
        self.tops.lock().clear();
    }

    fn top(&self, vdev: VdevId) -> Option<Arc<Top>> {
        self.tops.lock().get(&vdev).cloned()
    }

    /// A pool's top-level vdevs that have no space maps yet.
    pub fn start(&self, shapes: &[TopShape]) {
        for shape in shapes {
            self.tops
                .lock()
                .insert(shape.vdev, Arc::new(Top::new(*shape)));
        }
    }

    /// A top-level vdev has more metaslabs from now on, in syncing context.
    pub fn grow(&self, vdev: VdevId, ms_count: u64) {
        let mut tops = self.tops.lock();
        if let Some(top) = tops.get_mut(&vdev) {
            *top = Arc::new(top.grown(ms_count));
        }
    }

    /// Space maps live there.
    pub fn set_mos(&self, mos: &Arc<ObjectSet>) {
        *self.mos.lock() = Some(mos.clone());
    }

    /// Object numbers of the metaslab arrays that exist by now.
    pub fn arrays(&self) -> Vec<(VdevId, ObjectId)> {
        let tops = self.tops.lock();
        tops.iter()
            .filter_map(|(vdev, top)| Some((*vdev, top.array.lock().as_ref()?.id())))
            .collect()
    }

    /// The ZAP of a top-level vdev exists now.
    pub fn set_top_zap(&self, vdev: VdevId, zap: ObjectId) {
        if let Some(top) = self.top(vdev) {
            top.top_zap.store(zap.get(), Ordering::Relaxed);
        }
    }

    /// Changes that are in logs and not in the metaslabs' own maps yet: ranges of them, all of
    /// which are in memory.
    pub fn unflushed_ranges(&self) -> u64 {
        self.unflushed.load(Ordering::Relaxed)
    }

    /// Number of log space maps.
    pub fn log_count(&self) -> usize {
        self.book.lock().log_count()
    }

    /// Changes the two sets of a metaslab, and the count of all ranges.
    fn apply(
        &self,
        metaslab: &mut Metaslab,
        kind: SpaceMapKind,
        ranges: impl IntoIterator<Item = (u64, u64)>,
    ) {
        let before = metaslab.allocs.segments() + metaslab.frees.segments();
        let Metaslab { allocs, frees, .. } = metaslab;
        for (start, length) in ranges {
            match kind {
                SpaceMapKind::Allocate => cancel_or_add(frees, allocs, start, length),
                SpaceMapKind::Free => cancel_or_add(allocs, frees, start, length),
            }
        }
        let after = metaslab.allocs.segments() + metaslab.frees.segments();
        self.unflushed.fetch_add(
            (after as u64).wrapping_sub(before as u64),
            Ordering::Relaxed,
        );
    }

    /// What is free by the space map and the two sets.
    async fn free_ranges(
        top: &Top,
        index: u64,
        metaslab: &Metaslab,
    ) -> Result<RangeSet, ObjectError> {
        let mut free = RangeSet::default();
        let span = top.span(index);
        free.add(span.start, span.end - span.start);
        if let Some(map) = &metaslab.map {
            let id = map.id();
            map.for_each(map.length_bytes(), &mut |entry| {
                let end = entry.offset_bytes.saturating_add(entry.length_bytes);
                if entry.offset_bytes < span.start || end > span.end {
                    return Err(damaged(
                        id,
                        format!("bytes {}..{end} are outside", entry.offset_bytes),
                    ));
                }
                let changed = match entry.kind {
                    SpaceMapKind::Allocate => free.remove(entry.offset_bytes, entry.length_bytes),
                    SpaceMapKind::Free => free.add(entry.offset_bytes, entry.length_bytes),
                };
                if changed != entry.length_bytes {
                    let what = match entry.kind {
                        SpaceMapKind::Allocate => "allocated",
                        SpaceMapKind::Free => "freed",
                    };
                    return Err(damaged(
                        id,
                        format!("bytes {}..{end} are {what} twice", entry.offset_bytes),
                    ));
                }
                Ok(())
            })
            .await?;
        }
        free.remove_all(&metaslab.allocs);
        free.add_all(&metaslab.frees);
        Ok(free)
    }

    /// Records what the current pass allocated and freed. In pass 1, flushes some metaslabs first
    /// if the txg is dirty anyway; all of them with `flush_all`.
    pub async fn sync_pass(
        &self,
        sync: &SpaceSync<'_>,
        dirty: bool,
        flush_all: bool,
    ) -> Result<(), DatasetError> {
        if sync.ctx.pass == 1 && (dirty || flush_all) && sync.features.is_active(LOG_SPACEMAP) {
            self.flush(sync, flush_all).await?;
        }
        let changes = sync
            .pipeline
            .frees()
            .take_changes(sync.ctx.txg)
            .await
            .map_err(ObjectError::from)?;
        for change in changes {
            if !change.kept.is_empty() {
                self.keep(sync, &change).await?;
            }
            if !change.allocated.is_empty() || !change.freed.is_empty() {
                self.record(sync, change).await?;
            }
        }
        self.record_obsolete(sync).await
    }

    /// Records what nothing refers to any more of removed vdevs (`vdev_indirect_sync_obsolete`,
    /// module/zfs/vdev_indirect.c). Without the feature nobody wants to know.
    async fn record_obsolete(&self, sync: &SpaceSync<'_>) -> Result<(), DatasetError> {
        let obsolete = sync.pipeline.dvas().take_obsolete(sync.ctx.txg);
        if !sync.features.is_enabled(OBSOLETE_COUNTS) {
            return Ok(());
        }
        for (vdev, ranges) in obsolete {
            let top = sync
                .pipeline
                .tree()
                .top(vdev)
                .ok_or_else(|| missing_top(vdev))?;
            let Some(zap) = top.config_u64(names::TOP_ZAP).filter(|id| *id != 0) else {
                continue;
            };
            let mos = self.mos();
            let zap = Zap::hold(&mos, ObjectId::new(zap)).await?;
            let id = match zap.lookup_u64(names::OBSOLETE_SPACE_MAP).await? {
                Some(id) if id != 0 => ObjectId::new(id),
                _ => {
                    let id = new_map(sync, &mos, MAP_BLOCK_BYTES).await?;
                    zap.add_u64(sync.tx, names::OBSOLETE_SPACE_MAP, id.get())
                        .await?;
                    sync.features.increment(sync.ctx, OBSOLETE_COUNTS).await?;
                    id
                }
            };
            let range = (top.asize_bytes(), 0);
            let map = SpaceMapObject::open(&mos, id, 0, range.0, range.1).await?;
            let changed = (SpaceMapKind::Allocate, &ranges);
            let place = (zap.id(), names::OBSOLETE_SPACE_MAP);
            lost::append_listed(sync, (&mos, map), changed, place, range).await?;
        }
        Ok(())
    }

    /// Everything of `txg` is on disk.
    pub fn sync_done(&self) {
        if let Some((log_txg, map)) = self.log.lock().take() {
            let blocks = map.length_bytes().div_ceil(u64::from(MAP_BLOCK_BYTES));
            self.book.lock().set_blocks(log_txg, blocks);
        }
    }

    /// Makes sure that every vdev with metaslabs has its array (`vdev_sync`). Returns whether one
    /// was made: the configuration changed then.
    pub async fn sync_arrays(&self, sync: &SpaceSync<'_>) -> Result<bool, DatasetError> {
        let tops: Vec<Arc<Top>> = self.tops.lock().values().cloned().collect();
        let mut made = false;
        for top in tops {
            if top.array.lock().is_none() {
                let new = NewObject::new(ObjectType::OBJECT_ARRAY);
                let object = self.mos().allocate(sync.tx, new).await?;
                *top.array.lock() = Some(object);
                made = true;
            }
        }
        Ok(made)
    }

    /// Frees all that is kept of a vdev on which nothing is allocated any more
    /// (`vdev_destroy_spacemaps`). Entries of logs about it are skipped by those who read them.
    pub async fn remove_top(&self, sync: &SpaceSync<'_>, vdev: VdevId) -> Result<(), DatasetError> {
        let Some(top) = self.tops.lock().remove(&vdev) else {
            return Ok(());
        };
        self.book.lock().forget(vdev);
        for slot in &top.metaslabs {
            let mut metaslab = slot.lock().await;
            let ranges = metaslab.allocs.take().segments() + metaslab.frees.take().segments();
            self.unflushed.fetch_sub(ranges as u64, Ordering::Relaxed);
            if let Some(map) = metaslab.map.take() {
                free_map(sync, map).await?;
            }
        }
        let objects = [top.array.lock().take(), top.flush_txgs.lock().take()];
        for object in objects.into_iter().flatten() {
            self.mos().free(sync.tx, object.id()).await?;
        }
        Ok(())
    }

    /// Space that only the checkpoint uses, by vdev.
    pub fn checkpoint_bytes(&self) -> BTreeMap<VdevId, u64> {
        let tops = self.tops.lock();
        tops.iter()
            .filter_map(|(vdev, top)| {
                let map = top.checkpoint.lock();
                Some((*vdev, map.as_ref()?.allocated_bytes().unsigned_abs()))
            })
            .collect()
    }

    /// Writes down what was freed but is the checkpoint's (`metaslab_sync`): the metaslab's own
    /// space map goes on calling it allocated; the vdev's checkpoint map says what to free when the
    /// checkpoint goes.
    async fn keep(
        &self,
        sync: &SpaceSync<'_>,
        change: &MetaslabChange,
    ) -> Result<(), DatasetError> {
        let top = self
            .top(change.vdev)
            .ok_or_else(|| missing_top(change.vdev))?;
        let known = top.checkpoint.lock().clone();
        let map = match known {
            Some(map) => map,
            None => {
                let mos = self.mos();
                let id = new_map(sync, &mos, MAP_BLOCK_BYTES).await?;
                Zap::hold(&mos, ObjectId::new(top.top_zap.load(Ordering::Relaxed)))
                    .await?
                    .add_u64(sync.tx, names::CHECKPOINT_SPACE_MAP, id.get())
                    .await?;
                let map = open_checkpoint(&mos, id, &top.shape).await?;
                *top.checkpoint.lock() = Some(map.clone());
                map
            }
        };
        let changed = (SpaceMapKind::Free, &change.kept);
        let zap = ObjectId::new(top.top_zap.load(Ordering::Relaxed));
        let place = (zap, names::CHECKPOINT_SPACE_MAP);
        let range = (u64::MAX, top.shape.ashift);
        let mos = self.mos();
        let map = lost::append_listed(sync, (&mos, map), changed, place, range).await?;
        *top.checkpoint.lock() = Some(map);
        let kept = self.checkpoint_bytes().values().sum();
        sync.pipeline.allocator().set_checkpoint_bytes(kept);
        Ok(())
    }

    /// Frees what a discarded checkpoint kept, at most `max` ranges of it, from the ends of the
    /// maps; a map that is empty goes. Tells whether anything is left
    /// (`spa_checkpoint_discard_thread_sync`).
    pub async fn discard(
        &self,
        sync: &SpaceSync<'_>,
        mut max: usize,
    ) -> Result<bool, DatasetError> {
        let tops: Vec<Arc<Top>> = self.tops.lock().values().cloned().collect();
        let allocator = sync.pipeline.allocator();
        let mut is_left = false;
        for top in tops {
            let Some(map) = top.checkpoint.lock().clone() else {
                continue;
            };
            let mut is_lost = false;
            let mut tries = 0;
            while max > 0 && map.length_bytes() > 0 {
                let entries = match waits_for_devices(map.pop(sync.tx, max)).await {
                    Ok(entries) => entries,
                    Err(error) if lost::may_try_again(sync, &mut tries, &error).await => continue,
                    Err(error) if lost::is_lost(&error) => {
                        let (vdev, lost_bytes) = (top.shape.vdev, map.allocated_bytes());
                        tracing::error!(
                            %vdev, lost_bytes = lost_bytes.unsigned_abs(), %error,
                            "space that a checkpoint kept is lost: its list cannot be read"
                        );
                        is_lost = true;
                        break;
                    }
                    Err(error) => return Err(error.into()),
                };
                max -= entries.len().min(max);
                for entry in entries {
                    if entry.kind != SpaceMapKind::Free {
                        let what = "a checkpoint's map says that something was allocated";
                        return Err(damaged(map.id(), what.into()).into());
                    }
                    let (offset, length) = (entry.offset_bytes, entry.length_bytes);
                    allocator
                        .free_range(sync.ctx.txg, top.shape.vdev, offset, length)
                        .map_err(ObjectError::from)?;
                }
            }
            if map.length_bytes() > 0 && !is_lost {
                is_left = true;
                continue;
            }
            let zap = ObjectId::new(top.top_zap.load(Ordering::Relaxed));
            Zap::hold(&self.mos(), zap)
                .await?
                .remove(sync.tx, names::CHECKPOINT_SPACE_MAP)
                .await?;
            free_map(sync, map).await?;
            *top.checkpoint.lock() = None;
        }
        allocator.set_checkpoint_bytes(self.checkpoint_bytes().values().sum());
        Ok(is_left)
    }

    async fn record(
        &self,
        sync: &SpaceSync<'_>,
        change: MetaslabChange,
    ) -> Result<(), DatasetError> {
        let id = (change.vdev, change.metaslab);
        let top = self
            .top(change.vdev)
            .ok_or_else(|| missing_top(change.vdev))?;
        let slot = usize::try_from(change.metaslab)
            .ok()
            .and_then(|index| top.metaslabs.get(index))
            .ok_or_else(|| missing_top(change.vdev))?;
        let logged = sync.features.is_enabled(LOG_SPACEMAP);
        let log = if logged {
            Some(self.log(sync).await?)
        } else {
            None
        };
        let mut metaslab = slot.lock().await;
        if metaslab.map.is_none() {
            let block_bytes = if logged {
                MAP_BLOCK_BYTES
            } else {
                MAP_BLOCK_BYTES_NO_LOG
            };
            metaslab.map = Some(
                self.create_map(sync, &top, change.metaslab, block_bytes)
                    .await?,
            );
        }
        if let Some(log) = log {
            let flushed = self.book.lock().flushed(id);
            if flushed.is_none_or(|flushed| !flushed.dirty) {
                self.set_flushed(sync, &top, id, true).await?;
            }
            log.append(
                sync.tx,
                SpaceMapKind::Allocate,
                Some(change.vdev),
                &lengths(&change.allocated),
            )
            .await?;
            log.append(
                sync.tx,
                SpaceMapKind::Free,
                Some(change.vdev),
                &lengths(&change.freed),
            )
            .await?;
            self.apply(
                &mut metaslab,
                SpaceMapKind::Allocate,
                change.allocated.iter(),
            );
            self.apply(&mut metaslab, SpaceMapKind::Free, change.freed.iter());
        } else {
            if sync.ctx.pass == 1 {
                self.condense(sync, &top, change.metaslab, &mut metaslab)
                    .await?;
            }
            let place = (&*top, change.metaslab);
            let changed = (&change.allocated, &change.freed);
            self.append_to_map(sync, place, &mut metaslab, changed)
                .await?;
        }
        if metaslab.histogram_txg != sync.ctx.txg {
            metaslab.histogram_txg = sync.ctx.txg;
            let map = metaslab.map.clone().expect("made above");
            self.write_histogram(sync, &top, &change, &map).await?;
        }
        Ok(())
    }

    async fn write_histogram(
        &self,
        sync: &SpaceSync<'_>,
        top: &Top,
        change: &MetaslabChange,
        map: &SpaceMapObject,
    ) -> Result<(), DatasetError> {
        let mut buckets = map.histogram();
        if buckets.is_empty() {
            return Ok(());
        }
        buckets.resize(HISTOGRAM_BUCKETS, 0);
        match sync
            .pipeline
            .allocator()
            .histogram(change.vdev, change.metaslab)
        {
            Some(sizes) => buckets = fold_histogram(&sizes, top.shape.ashift),
            None => {
                let freed = fold_histogram(&change.freed.histogram(), top.shape.ashift);
                for (bucket, more) in buckets.iter_mut().zip(freed) {
                    *bucket += more;
                }
            }
        }
        Ok(map.set_histogram(sync.tx, &buckets).await?)
    }

    async fn create_map(
        &self,
        sync: &SpaceSync<'_>,
        top: &Top,
        index: u64,
        block_bytes: u32,
    ) -> Result<SpaceMapObject, DatasetError> {
        let shape = &top.shape;
        let id = new_map(sync, &self.mos(), block_bytes).await?;
        let array = top
            .array
            .lock()
            .clone()
            .expect("arrays are made before changes are recorded");
        array
            .write(
                sync.tx,
                index * 8,
                Bytes::copy_from_slice(&id.get().to_le_bytes()),
            )
            .await?;
        let span = top.span(index);
        Ok(SpaceMapObject::open(
            &self.mos(),
            id,
            span.start,
            span.end - span.start,
            shape.ashift,
        )
        .await?)
    }

    /// The log of this txg, made when there is none (`spa_generate_syncing_log_sm`).
    async fn log(&self, sync: &SpaceSync<'_>) -> Result<SpaceMapObject, DatasetError> {
        let txg = sync.ctx.txg;
        if let Some((log_txg, map)) = &*self.log.lock()
            && *log_txg == txg
        {
            return Ok(map.clone());
        }
        let mos = &self.mos();
        let known = *self.log_zap.lock();
        let zap = match known {
            Some(id) => Zap::hold(mos, id).await?,
            None => {
                let zap = Zap::create(mos, sync.tx, ZapOptions::new(ObjectType::OTN_ZAP_METADATA))
                    .await?;
                let directory = Zap::hold(mos, ObjectId::POOL_DIRECTORY).await?;
                directory
                    .add_u64(sync.tx, names::LOG_SPACEMAP_ZAP, zap.id().get())
                    .await?;
                sync.features.increment(sync.ctx, LOG_SPACEMAP).await?;
                *self.log_zap.lock() = Some(zap.id());
                zap
            }
        };
        let id = new_map(sync, mos, MAP_BLOCK_BYTES).await?;
        zap.add_int(sync.tx, txg.get(), id.get()).await?;
        let map = SpaceMapObject::open(mos, id, 0, u64::MAX, 9).await?;
        self.book.lock().add_log(txg, id, 0);
        *self.log.lock() = Some((txg, map.clone()));
        Ok(map)
    }

    /// Notes on disk and in the book that a metaslab is flushed as of this txg; drops logs that
    /// nobody needs any more.
    async fn set_flushed(
        &self,
        sync: &SpaceSync<'_>,
        top: &Top,
        id: MetaslabId,
        dirty: bool,
    ) -> Result<(), DatasetError> {
        let txg = sync.ctx.txg;
        let known = top.flush_txgs.lock().clone();
        let object = match known {
            Some(object) => object,
            None => {
                let new =
                    NewObject::new(ObjectType::OTN_UINT64_METADATA).with_block_bytes(128 << 10);
                let object = self.mos().allocate(sync.tx, new).await?;
                let zap_id = ObjectId::new(top.top_zap.load(Ordering::Relaxed));
                let zap = Zap::hold(&self.mos(), zap_id).await?;
                zap.add_u64(sync.tx, names::MS_UNFLUSHED_PHYS_TXGS, object.id().get())
                    .await?;
                *top.flush_txgs.lock() = Some(object.clone());
                object
            }
        };
        object
            .write(
                sync.tx,
                id.1 * 8,
                Bytes::copy_from_slice(&txg.get().to_le_bytes()),
            )
            .await?;
        let obsolete = {
            let mut book = self.book.lock();
            book.set_flushed(id, txg, dirty);
            book.take_obsolete()
        };
        for (log_txg, log) in obsolete {
            let map = SpaceMapObject::open(&self.mos(), log, 0, u64::MAX, 9).await?;
            free_map(sync, map).await?;
            let zap_id = self.log_zap.lock().expect("logs are listed in the ZAP");
            Zap::hold(&self.mos(), zap_id)
                .await?
                .remove_int(sync.tx, log_txg.get())
                .await?;
        }
        Ok(())
    }

    /// Flushes metaslabs, those flushed longest ago first (`spa_flush_metaslabs`).
    async fn flush(&self, sync: &SpaceSync<'_>, all: bool) -> Result<(), DatasetError> {
        let txg = sync.ctx.txg;
        if self.book.lock().oldest_before(txg).is_none() {
            return Ok(());
        }
        self.log(sync).await?;
        let mut wanted = if all {
            u64::MAX
        } else {
            self.book.lock().to_flush(txg)
        };
        loop {
            let too_many = self.unflushed.load(Ordering::Relaxed) > UNFLUSHED_RANGES_MAX;
            if wanted == 0 && !too_many {
                return Ok(());
            }
            let oldest = self.book.lock().oldest_before(txg);
            let Some((id, flushed)) = oldest else {
                return Ok(());
            };
            let top = self.top(id.0).ok_or_else(|| missing_top(id.0))?;
            if flushed.dirty {
                let mut metaslab = top.metaslabs[id.1 as usize].lock().await;
                if metaslab.map.is_some() {
                    let condensed = self.condense(sync, &top, id.1, &mut metaslab).await?;
                    let (allocs, frees) = (metaslab.allocs.take(), metaslab.frees.take());
                    let ranges = allocs.segments() + frees.segments();
                    if !condensed {
                        let place = (&*top, id.1);
                        let appended = self
                            .append_to_map(sync, place, &mut metaslab, (&allocs, &frees))
                            .await;
                        if let Err(error) = appended {
                            // The map does not have them: without them a metaslab that is loaded
                            // from it would take what is allocated for free.
                            (metaslab.allocs, metaslab.frees) = (allocs, frees);
                            return Err(error);
                        }
                    }
                    self.unflushed.fetch_sub(ranges as u64, Ordering::Relaxed);
                }
                wanted = wanted.saturating_sub(u64::from(!all));
            }
            self.set_flushed(sync, &top, id, false).await?;
        }
    }
}

/// Sorts free ranges counted by log2 of their size into a space map's buckets, in units of
/// `1 << shift` (`space_map_histogram_add`): what is bigger than the last bucket counts there in
/// its unit.
fn fold_histogram(sizes: &[u64; 64], shift: u8) -> Vec<u64> {
    let mut buckets = vec![0u64; HISTOGRAM_BUCKETS];
    for (log2, count) in sizes.iter().enumerate().skip(usize::from(shift)) {
        let bucket = (log2 - usize::from(shift)).min(HISTOGRAM_BUCKETS - 1);
        let excess = log2 - usize::from(shift) - bucket;
        buckets[bucket] =
            buckets[bucket].saturating_add(count.checked_shl(excess as u32).unwrap_or(u64::MAX));
    }
    buckets
}

fn lengths(ranges: &RangeSet) -> Vec<(u64, u64)> {
    ranges.iter().collect()
}

/// Bytes of the range that are in `from` leave it, the others enter `to`
/// (`zfs_range_tree_remove_xor_add_segment`).
fn cancel_or_add(from: &mut RangeSet, to: &mut RangeSet, start: u64, length: u64) {
    let mut at = start;
    // They come in descending order.
    let common: Vec<Range<u64>> = from.intersection(start, length).collect();
    for range in common.into_iter().rev() {
        if at < range.start {
            to.add(at, range.start - at);
        }
        from.remove(range.start, range.end - range.start);
        at = range.end;
    }
    if at < start + length {
        to.add(at, start + length - at);
    }
}

/// The map of what only the checkpoint uses, over a whole vdev.
async fn open_checkpoint(
    mos: &Arc<ObjectSet>,
    id: ObjectId,
    shape: &TopShape,
) -> Result<SpaceMapObject, ObjectError> {
    SpaceMapObject::open(mos, id, 0, u64::MAX, shape.ashift).await
}

/// Makes a space map; one with a histogram is counted.
pub async fn new_map(
    sync: &SpaceSync<'_>,
    mos: &Arc<ObjectSet>,
    block_bytes: u32,
) -> Result<ObjectId, DatasetError> {
    let histogram = sync.features.is_enabled(SPACEMAP_HISTOGRAM);
    let id = SpaceMapObject::create_with(mos, sync.tx, block_bytes, histogram).await?;
    if histogram {
        sync.features
            .increment(sync.ctx, SPACEMAP_HISTOGRAM)
            .await?;
    }
    Ok(id)
}

/// A space map to append to: in entries of two words only where the pool has the feature for them.
pub fn writeable(sync: &SpaceSync<'_>, map: SpaceMapObject) -> SpaceMapObject {
    map.with_two_words(sync.features.is_active(SPACEMAP_V2))
}

/// Frees a space map, and takes it out of the count of those with histograms.
pub async fn free_map(sync: &SpaceSync<'_>, map: SpaceMapObject) -> Result<(), DatasetError> {
    let counted = !map.histogram().is_empty();
    map.free(sync.tx).await?;
    if counted && sync.features.is_active(SPACEMAP_HISTOGRAM) {
        sync.features
            .decrement(sync.ctx, SPACEMAP_HISTOGRAM)
            .await?;
    }
    Ok(())
}

fn damaged(object: ObjectId, detail: String) -> ObjectError {
    ObjectError::Damaged {
        object,
        structure: "space map",
        detail,
    }
}

fn missing_top(vdev: VdevId) -> ObjectError {
    ObjectError::Zio(ZioError::Vdev(vdev::VdevError::NoSuchVdev { vdev }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_freed_again_was_never_allocated() {
        let (mut allocs, mut frees) = (RangeSet::default(), RangeSet::default());
        cancel_or_add(&mut frees, &mut allocs, 1000, 100);
        cancel_or_add(&mut allocs, &mut frees, 1050, 100);
        assert_eq!(lengths(&allocs), vec![(1000, 50)]);
        assert_eq!(lengths(&frees), vec![(1100, 50)]);
        cancel_or_add(&mut frees, &mut allocs, 1090, 100);
        assert_eq!(lengths(&allocs), vec![(1000, 50), (1090, 10), (1150, 40)]);
        assert_eq!(lengths(&frees), Vec::new());
        // Several ranges at once, with gaps between them.
        cancel_or_add(&mut allocs, &mut frees, 990, 300);
        assert_eq!(lengths(&allocs), Vec::new());
        assert_eq!(
            lengths(&frees),
            vec![(990, 10), (1050, 40), (1100, 50), (1190, 100)]
        );
    }

    #[test]
    fn histograms_count_in_the_maps_unit() {
        let mut sizes = [0; 64];
        sizes[12] = 3;
        sizes[13] = 1;
        sizes[45] = 2;
        let buckets = fold_histogram(&sizes, 12);
        assert_eq!(buckets[0], 3);
        assert_eq!(buckets[1], 1);
        assert_eq!(buckets[31], 2 << 2);
        assert_eq!(buckets.iter().sum::<u64>(), 12);
    }

    #[test]
    fn shapes_that_cannot_be_are_refused() {
        let mut config = NvList::new();
        config
            .set("id", 1u64)
            .set("ashift", 12u64)
            .set("asize", 1u64 << 30);
        config
            .set("metaslab_shift", 24u64)
            .set("metaslab_array", 77u64);
        let shape = TopShape::from_config(&config).unwrap();
        assert_eq!((shape.ms_count, shape.ms_array), (64, ObjectId::new(77)));
        config.set("metaslab_shift", 64u64);
        assert_eq!(TopShape::from_config(&config), None);
        config.set("metaslab_shift", 9u64).set("asize", u64::MAX);
        assert_eq!(TopShape::from_config(&config), None);
    }
}
