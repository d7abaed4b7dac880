//! Which bytes of which vdev are free.
//!
//! Every top-level vdev is cut into metaslabs; a metaslab's free ranges are in memory once it is
//! used ([`MetaslabSource`] reads them). [`Allocator::allocate`] chooses, for every copy of a
//! block, a vdev (in turn, more often those with more free space), a metaslab (longest free runs
//! first, and then the same one for as long as it serves) and a place (after the last one of such a
//! size, or the tightest fit when space is short).
//!
//! Facts from module/zfs/metaslab.c: the sets per txg and what moves between them, the two
//! txgs that freed space waits, ditto copies on different vdevs or at least 1/8 vdev apart,
//! fallback between classes, the aliquot that goes to a vdev before the next one's turn.
//!
//! Nothing here is on disk: the engine records what [`Allocator::take_changes`] hands out. A crash
//! therefore leaves what the last synced txg recorded.
//!
//! Trimming ([`Allocator::set_trimming`]) takes free space away for a moment and gives it back:
//! module `trim`. So do passes over all free space ([`Allocator::hold_free`]): module `pass`.
//!
//! Locks: the list of vdevs (`tops`, read-mostly), one rotor per class, one lock per vdev with all
//! its metaslabs. A vdev's lock is held for one allocation (microseconds) and never while a
//! metaslab is loaded; `loads` wakes those who wait for somebody else's load, or for
//! what trimming holds.

mod free_map;
mod metaslab;
mod pass;
#[cfg(test)]
mod pass_tests;
pub mod settled;
mod space;
#[cfg(test)]
mod tests;
mod top;
mod trim;
#[cfg(test)]
mod trim_tests;

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use device::BoxFuture;
use format::{DVAS_PER_POINTER, Dva, GANG_HEADER_BYTES, Txg, VdevId};
use parking_lot::{Mutex, RwLock};
use tokio::sync::Notify;
use vdev::{AllocClass, Geometry, RangeSet, TopSpec};

pub use pass::{FreeHold, FreeHoldResult};
pub use settled::Settled;
pub use space::{SpaceTotals, TopSpace, deflate, fragmentation, slop_bytes};
pub use trim::{TRIM_BATCH_TXGS, TrimHold, TrimWait};

use crate::error::ZioError;
use crate::pipeline::{must_succeed, waits_for_devices};
use top::{Attempt, Top};

/// Txgs for which freed space is kept unused after its txg synced (`TXG_DEFER_SIZE`), so that the
/// uberblocks of the txgs before still find their blocks.
pub const DEFER_TXGS: u64 = 2;
/// Percent of the special class that only metadata may take
/// (`zfs_special_class_metadata_reserve_pct`).
const SPECIAL_RESERVE_PERCENT: u64 = 25;
/// Copies of a block, at most.
const COPIES_MAX: usize = DVAS_PER_POINTER;
/// Bytes per child that go to a vdev before it is the next one's turn (`metaslab_aliquot`).
const ALIQUOT_BYTES: u64 = 1 << 20;
/// Copies on the same vdev are at least this fraction of it apart
/// (`ditto_same_vdev_distance_shift`).
const DITTO_DISTANCE_SHIFT: u32 = 3;

/// A run of bytes: start (inclusive) and end (exclusive).
pub type Range = std::ops::Range<u64>;

/// What one txg (pass) changed in one metaslab. Offsets are on the top-level vdev.
///
/// A range is never in both. Record `allocated` before `freed`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MetaslabChange {
    /// The top-level vdev.
    pub vdev: VdevId,
    /// Index of the metaslab.
    pub metaslab: u64,
    /// Newly allocated.
    pub allocated: RangeSet,
    /// Newly freed; allocated before (in this txg or an earlier one) and recorded so.
    pub freed: RangeSet,
    /// Freed, but the checkpoint has it: stays allocated in the space map.
    pub kept: RangeSet,
}

/// Where the allocator gets a metaslab's free ranges from when it needs them: the engine.
pub trait MetaslabSource: Send + Sync {
    /// The free ranges of a metaslab (offsets on the top-level vdev), as recorded. All changes up
    /// to the last [`Allocator::sync_done`] before the call must be contained; of those handed out
    /// later any part may be, in the order in which they were handed out.
    fn load(&self, vdev: VdevId, metaslab: u64) -> BoxFuture<'_, Result<RangeSet, ZioError>>;
}

/// A source for new pools: everything is free.
#[derive(Debug, Clone, Copy)]
pub struct AllFree {
    /// log2 of the metaslab size.
    pub metaslab_shift: u32,
}

impl MetaslabSource for AllFree {
    fn load(&self, _vdev: VdevId, metaslab: u64) -> BoxFuture<'_, Result<RangeSet, ZioError>> {
        let length = 1u64 << self.metaslab_shift;
        Box::pin(async move { Ok(RangeSet::from_iter([(metaslab * length, length)])) })
    }
}

/// A request for space.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// For which txg.
    pub txg: Txg,
    /// Stored size of the block in bytes.
    pub psize_bytes: u64,
    /// Copies, 1 to 3.
    pub copies: usize,
    /// Preferred class.
    pub class: AllocClass,
    /// Whether to fall back to other classes.
    pub fallback: bool,
    /// Whether the places are for a gang header.
    pub gang: bool,
}

#[derive(Debug, Default)]
struct Rotor {
    current: usize,
    given_bytes: u64,
}

/// A top-level vdev: what never changes beside the lock, the rest behind it.
struct Entry {
    vdev: VdevId,
    class: AllocClass,
    deflate_ratio: u64,
    allocatable: AtomicBool,
    /// How many see to it that it gets nothing, whatever `allocatable` says.
    holds: AtomicU32,
    /// For a few instructions, under no other lock.
    sizes: RwLock<Sizes>,
    top: Mutex<Top>,
}

/// How much blocks take of a vdev: it changes when a RAID-Z vdev is made wider.
#[derive(Debug, Clone, Copy)]
struct Sizes {
    geometry: Geometry,
    /// Those of earlier txgs, until none of them is open any more.
    before: Option<(Txg, Geometry)>,
}

impl Sizes {
    fn of(spec: &TopSpec) -> Self {
        Sizes {
            geometry: spec.geometry,
            before: spec.before,
        }
    }

    /// What a block takes that is written in an open txg, at most.
    fn worst_asize(&self, psize_bytes: u64) -> u64 {
        let asize = self.geometry.asize(psize_bytes);
        let before = self.before.map(|(_, geometry)| geometry.asize(psize_bytes));
        asize.max(before.unwrap_or(0))
    }
}

impl Entry {
    fn gets_blocks(&self) -> bool {
        self.allocatable.load(Ordering::Acquire) && self.holds.load(Ordering::Acquire) == 0
    }

    /// What a block written in `txg` takes.
    fn asize(&self, psize_bytes: u64, txg: Txg) -> u64 {
        let sizes = self.sizes();
        match sizes.before {
            Some((from, geometry)) if txg < from => geometry.asize(psize_bytes),
            _ => sizes.geometry.asize(psize_bytes),
        }
    }

    fn sizes(&self) -> Sizes {
        *self.sizes.read()
    }

    /// Bytes that a DVA itself takes: a gang header's covers its children's as well
    /// (`vdev_gang_header_asize`).
    fn own_asize(&self, dva: &Dva) -> u64 {
        if dva.is_gang() {
            self.sizes().geometry.asize(GANG_HEADER_BYTES as u64)
        } else {
            dva.asize_bytes()
        }
    }
}

/// The allocator of a pool.
pub struct Allocator {
    source: RwLock<Option<Arc<dyn MetaslabSource>>>,
    tops: RwLock<BTreeMap<VdevId, Arc<Entry>>>,
    rotors: [Mutex<Rotor>; 4],
    loads: Arc<Notify>,
    /// Numbers for what passes over free space hold.
    pass_ids: AtomicU64,
    /// Whether what comes free is remembered for trimming.
    trimming: AtomicBool,
    trim_batch_txgs: AtomicU64,
    /// The pool's totals, `None` when something changed.
    totals: Mutex<Option<SpaceTotals>>,
    /// What dedup and cloning save.
    saved_bytes: AtomicU64,
    checkpoint_bytes: AtomicU64,
    logs: Mutex<LogSpace>,
}

/// Space that intent logs hold, as users see it.
#[derive(Debug, Default)]
struct LogSpace {
    /// Outside of log vdevs: nobody's use of space counts it, and it cannot be used.
    among_data: HeldSpace,
    on_log_devices: HeldSpace,
    /// The most that was held together since somebody asked.
    peak_bytes: u64,
}

/// Space that intent logs hold on some vdevs.
#[derive(Debug, Default)]
struct HeldSpace {
    bytes: u64,
    /// Of that, what a txg that is not on disk yet frees.
    freed_bytes: BTreeMap<Txg, u64>,
}

impl HeldSpace {
    /// `txg` is on disk.
    fn sync_done(&mut self, txg: Txg) {
        let later = self.freed_bytes.split_off(&txg.next());
        let freed = std::mem::replace(&mut self.freed_bytes, later);
        self.bytes = self.bytes.saturating_sub(freed.values().sum());
    }
}

impl LogSpace {
    fn on(&mut self, class: AllocClass) -> &mut HeldSpace {
        match class {
            AllocClass::Log => &mut self.on_log_devices,
            _ => &mut self.among_data,
        }
    }

    fn bytes(&self) -> u64 {
        self.among_data.bytes + self.on_log_devices.bytes
    }
}

impl Default for Allocator {
    fn default() -> Self {
        Allocator::new()
    }
}

impl Allocator {
    /// An allocator without vdevs and without a source; both can be given later.
    pub fn new() -> Self {
        Allocator {
            source: RwLock::new(None),
            tops: RwLock::new(BTreeMap::new()),
            rotors: Default::default(),
            loads: Arc::default(),
            pass_ids: AtomicU64::new(0),
            trimming: AtomicBool::new(false),
            trim_batch_txgs: AtomicU64::new(TRIM_BATCH_TXGS),
            totals: Mutex::new(None),
            saved_bytes: AtomicU64::new(0),
            checkpoint_bytes: AtomicU64::new(0),
            logs: Mutex::default(),
        }
    }

    /// Says where free ranges are read from.
    pub fn set_source(&self, source: Arc<dyn MetaslabSource>) {
        *self.source.write() = Some(source);
    }

    /// Adds a top-level vdev, or grows the one of the same id to more metaslabs.
    pub fn add_top(&self, spec: TopSpec) {
        {
            let mut tops = self.tops.write();
            match tops.get(&spec.vdev) {
                Some(entry) => {
                    entry.top.lock().grow(spec.metaslab_count);
                    entry.allocatable.store(spec.allocatable, Ordering::Release);
                }
                None => {
                    let trimming = self.trimming.load(Ordering::Relaxed);
                    let entry = Entry {
                        vdev: spec.vdev,
                        class: spec.class,
                        deflate_ratio: spec.deflate_ratio,
                        allocatable: AtomicBool::new(spec.allocatable),
                        holds: AtomicU32::new(0),
                        sizes: RwLock::new(Sizes::of(&spec)),
                        top: Mutex::new(Top::new(spec)),
                    };
                    entry.top.lock().set_trimming(trimming);
                    tops.insert(entry.vdev, Arc::new(entry));
                }
            }
        }
        *self.totals.lock() = None;
    }

    /// A RAID-Z vdev is wider from some txg on, which is not open yet: blocks take less then.
    pub fn widen(&self, spec: &TopSpec) {
        if let Some(entry) = self.entry(spec.vdev) {
            *entry.sizes.write() = Sizes::of(spec);
        }
    }

    /// Forgets a vdev on which nothing is allocated any more (removal of a log vdev).
    pub fn remove_top(&self, vdev: VdevId) {
        self.tops.write().remove(&vdev);
        *self.totals.lock() = None;
    }

    /// Stops or resumes allocating from a vdev.
    pub fn set_allocatable(&self, vdev: VdevId, allocatable: bool) {
        if let Some(entry) = self.entry(vdev) {
            entry.allocatable.store(allocatable, Ordering::Release);
        }
    }

    /// Whether blocks are allocated from a vdev.
    pub fn is_allocatable(&self, vdev: VdevId) -> bool {
        self.entry(vdev).is_some_and(|entry| entry.gets_blocks())
    }

    /// Says how much of a metaslab is allocated, and its free runs by log2 of their length if
    /// known, without loading it: totals and choices are right from the start.
    pub fn set_recorded(
        &self,
        vdev: VdevId,
        metaslab: u64,
        allocated_bytes: u64,
        histogram: Option<[u64; 64]>,
    ) {
        let Some(entry) = self.entry(vdev) else {
            return;
        };
        entry
            .top
            .lock()
            .set_recorded(metaslab as usize, allocated_bytes, histogram);
        *self.totals.lock() = None;
    }

    fn entry(&self, vdev: VdevId) -> Option<Arc<Entry>> {
        self.tops.read().get(&vdev).cloned()
    }

    /// Allocates places for all copies of a block. Gives all or none.
    ///
    /// # Errors
    /// [`ZioError::NoSpace`]; what the [`MetaslabSource`] says is reported by `tracing` and the
    /// metaslab not used.
    pub async fn allocate(&self, request: &Request) -> Result<[Option<Dva>; COPIES_MAX], ZioError> {
        let mut out = [None; COPIES_MAX];
        for copy in 0..request.copies.clamp(1, COPIES_MAX) {
            match self.allocate_copy(request, copy, &out).await {
                Some(dva) => out[copy] = Some(dva),
                None => {
                    for dva in out.iter().flatten() {
                        self.unallocate(request.txg, dva);
                    }
                    return Err(ZioError::NoSpace {
                        size_bytes: request.psize_bytes,
                        txg: request.txg,
                    });
                }
            }
        }
        Ok(out)
    }

    /// Whether nothing is allocated from some metaslabs because their space maps could not be read.
    pub fn has_broken(&self) -> bool {
        let entries: Vec<_> = self.tops.read().values().cloned().collect();
        entries.iter().any(|entry| entry.top.lock().has_broken())
    }

    /// Has them loaded again when they are needed.
    pub fn retry_broken(&self) {
        let entries: Vec<_> = self.tops.read().values().cloned().collect();
        for entry in entries {
            entry.top.lock().retry_broken();
        }
    }

    /// The space map of a metaslab is lost, and another one begins, in syncing context: returns
    /// what it may call free with all changes handed out so far, `known` among it. That is all free
    /// space while the metaslab is loaded; else the remainder of it is lost.
    pub fn begin_anew(&self, vdev: VdevId, metaslab: u64, known: &RangeSet) -> RangeSet {
        match self.entry(vdev) {
            Some(entry) => entry.top.lock().begin_anew(metaslab as usize, known),
            None => known.clone(),
        }
    }

    /// Takes back places that nobody refers to, allocated by this txg and not handed out yet.
    pub fn unallocate(&self, txg: Txg, dva: &Dva) {
        if let Some(entry) = self.entry(dva.vdev()) {
            let length = entry.own_asize(dva);
            entry.top.lock().unallocate(txg, dva.offset_bytes(), length);
        }
    }

    async fn allocate_copy(
        &self,
        request: &Request,
        copy: usize,
        before: &[Option<Dva>; COPIES_MAX],
    ) -> Option<Dva> {
        let chain: &[AllocClass] = match (request.class, request.fallback) {
            (AllocClass::Normal, _) => &[AllocClass::Normal],
            (AllocClass::Log, true) => &[AllocClass::Log, AllocClass::Normal],
            (AllocClass::Special, true) => &[AllocClass::Special, AllocClass::Normal],
            (AllocClass::Dedup, true) => {
                &[AllocClass::Dedup, AllocClass::Special, AllocClass::Normal]
            }
            (AllocClass::Log, false) => &[AllocClass::Log],
            (AllocClass::Special, false) => &[AllocClass::Special],
            (AllocClass::Dedup, false) => &[AllocClass::Dedup],
        };
        for &class in chain {
            let tops = self.in_turn(class);
            let used = |vdev: VdevId| before.iter().flatten().any(|dva| dva.vdev() == vdev);
            // Another vdev than the other copies', else far from them, else anywhere.
            for (wants_used, far) in [(false, true), (true, true), (true, false)] {
                for entry in tops.iter().filter(|entry| used(entry.vdev) == wants_used) {
                    if let Some(dva) = self.allocate_from(request, copy, before, entry, far).await {
                        self.note_given(class, entry.vdev, dva.asize_bytes(), &tops);
                        return Some(dva);
                    }
                }
            }
        }
        None
    }

    /// The class's vdevs, the one whose turn it is first.
    fn in_turn(&self, class: AllocClass) -> Vec<Arc<Entry>> {
        let mut tops: Vec<_> = self
            .tops
            .read()
            .values()
            .filter(|entry| entry.class == class && entry.gets_blocks())
            .cloned()
            .collect();
        if tops.len() > 1 {
            let current = self.rotors[class as usize].lock().current;
            let count = tops.len();
            tops.rotate_left(current % count);
        }
        tops
    }

    /// Moves on to the next vdev when this one had its share: an aliquot, scaled by how its free
    /// space compares with the others'.
    fn note_given(&self, class: AllocClass, vdev: VdevId, bytes: u64, tops: &[Arc<Entry>]) {
        if tops.len() < 2 {
            return;
        }
        let mut rotor = self.rotors[class as usize].lock();
        let first = &tops[0];
        if vdev != first.vdev {
            return;
        }
        rotor.given_bytes += bytes;
        if rotor.given_bytes < ALIQUOT_BYTES / 4 {
            return;
        }
        let free: Vec<u64> = tops
            .iter()
            .map(|entry| entry.top.lock().free_bytes())
            .collect();
        let sum: u128 = free.iter().map(|bytes| u128::from(*bytes)).sum();
        let average = (sum / free.len() as u128).max(1);
        let aliquot = ALIQUOT_BYTES * first.sizes().geometry.children();
        let share = u128::from(aliquot) * u128::from(free[0]) / average;
        let share = share.clamp(u128::from(ALIQUOT_BYTES / 4), u128::from(aliquot * 4));
        if u128::from(rotor.given_bytes) >= share {
            rotor.given_bytes = 0;
            rotor.current = (rotor.current + 1) % tops.len();
        }
    }

    async fn allocate_from(
        &self,
        request: &Request,
        copy: usize,
        before: &[Option<Dva>; COPIES_MAX],
        entry: &Entry,
        far: bool,
    ) -> Option<Dva> {
        let vdev = entry.vdev;
        let avoid: Vec<u64> = before
            .iter()
            .flatten()
            .filter(|dva| dva.vdev() == vdev)
            .map(|dva| dva.offset_bytes())
            .collect();
        let asize = entry.asize(request.psize_bytes, request.txg);
        loop {
            let mut loads = pin!(self.loads.notified());
            loads.as_mut().enable();
            let attempt = {
                let mut top = entry.top.lock();
                // It may have been held while a metaslab was loaded.
                if !entry.gets_blocks() {
                    return None;
                }
                let size = top.spec.metaslab_count << top.spec.metaslab_shift;
                let distance = if far { size >> DITTO_DISTANCE_SHIFT } else { 0 };
                top.allocate(request.txg, asize, copy, &avoid, distance)
            };
            match attempt {
                Attempt::Done(offset) => {
                    return Some(
                        Dva::new(vdev, offset, asize, request.gang)
                            .expect("what a metaslab gives fits a DVA: it is within its vdev"),
                    );
                }
                Attempt::Load(index) => self.load(request.txg, entry, index, false).await,
                Attempt::Wait => loads.await,
                Attempt::Full => return None,
            }
        }
    }

    /// Reads a metaslab's free ranges; it is marked as loading.
    async fn load(&self, txg: Txg, entry: &Entry, index: usize, is_needed: bool) {
        struct Guard<'a>(&'a Allocator, &'a Entry, usize);
        impl Drop for Guard<'_> {
            fn drop(&mut self) {
                self.1.top.lock().abort_load(self.2);
                self.0.loads.notify_waiters();
            }
        }
        let vdev = entry.vdev;
        let guard = Guard(self, entry, index);
        let source = self.source.read().clone();
        let result = match source {
            Some(source) if is_needed => must_succeed(source.load(vdev, index as u64)).await,
            // What cannot be loaded is not used any more until the pool is opened again, or finds
            // no room without it.
            Some(source) => waits_for_devices(source.load(vdev, index as u64)).await,
            None => Err(ZioError::MetaslabLoad {
                vdev,
                metaslab: index as u64,
                cause: "nothing to load it from yet".to_owned(),
            }),
        };
        let mut top = entry.top.lock();
        let free = match result {
            Ok(free) => {
                let within = top.metaslab(index).is_some_and(|metaslab| {
                    let end = metaslab.start + metaslab.length;
                    free.ranges()
                        .next()
                        .is_none_or(|range| range.start >= metaslab.start)
                        && free
                            .ranges()
                            .next_back()
                            .is_none_or(|range| range.end <= end)
                });
                if !within {
                    tracing::error!(
                        %vdev, metaslab = index, "a space map reaches outside of its metaslab"
                    );
                }
                within.then_some(free)
            }
            Err(error) => {
                tracing::error!(%vdev, metaslab = index, %error, "a metaslab cannot be loaded");
                None
            }
        };
        top.finish_load(index, free, txg);
        drop(top);
        drop(guard);
    }

    /// Frees one copy's place at the end of `txg`.
    ///
    /// # Errors
    /// [`ZioError::SpaceMap`] when it is free already, [`vdev::VdevError::NoSuchVdev`].
    pub fn free(&self, txg: Txg, dva: &Dva) -> Result<(), ZioError> {
        let vdev = dva.vdev();
        let entry = self
            .entry(vdev)
            .ok_or(ZioError::Vdev(vdev::VdevError::NoSuchVdev { vdev }))?;
        let length = entry.own_asize(dva);
        let result = entry.top.lock().free(txg, dva.offset_bytes(), length);
        result.map_err(|found| space_map_error(dva, found))
    }

    /// Gives a range back that stayed allocated for a checkpoint that is being discarded, at the
    /// end of `txg`.
    ///
    /// # Errors
    /// [`ZioError::SpaceMap`] when it is free already or not within one metaslab,
    /// [`vdev::VdevError::NoSuchVdev`].
    pub fn free_range(
        &self,
        txg: Txg,
        vdev: VdevId,
        offset_bytes: u64,
        length_bytes: u64,
    ) -> Result<(), ZioError> {
        let entry = self
            .entry(vdev)
            .ok_or(ZioError::Vdev(vdev::VdevError::NoSuchVdev { vdev }))?;
        let result = entry.top.lock().free(txg, offset_bytes, length_bytes);
        result.map_err(|found| ZioError::SpaceMap {
            vdev,
            offset_bytes,
            length_bytes,
            found,
        })
    }

    /// Notes that one copy's place was freed in `txg` but belongs to the pool's checkpoint: it
    /// stays allocated, and is handed out as [`MetaslabChange::kept`] (`metaslab_free_concrete`).
    ///
    /// # Errors
    /// [`ZioError::SpaceMap`] when it is free already, [`vdev::VdevError::NoSuchVdev`].
    pub fn keep(&self, txg: Txg, dva: &Dva) -> Result<(), ZioError> {
        let vdev = dva.vdev();
        let entry = self
            .entry(vdev)
            .ok_or(ZioError::Vdev(vdev::VdevError::NoSuchVdev { vdev }))?;
        let length = entry.own_asize(dva);
        let result = entry.top.lock().keep(txg, dva.offset_bytes(), length);
        result.map_err(|found| space_map_error(dva, found))
    }

    /// Marks one copy's place as allocated by `txg` (import of an intent log).
    ///
    /// # Errors
    /// [`ZioError::SpaceMap`] when it is allocated already, [`vdev::VdevError::NoSuchVdev`].
    pub async fn claim(&self, txg: Txg, dva: &Dva) -> Result<(), ZioError> {
        let vdev = dva.vdev();
        let entry = self
            .entry(vdev)
            .ok_or(ZioError::Vdev(vdev::VdevError::NoSuchVdev { vdev }))?;
        let length = entry.own_asize(dva);
        self.ensure_loaded(txg, &entry, dva, length).await?;
        let result = entry.top.lock().claim(txg, dva.offset_bytes(), length);
        result.map_err(|found| space_map_error(dva, found))
    }

    async fn ensure_loaded(
        &self,
        txg: Txg,
        entry: &Entry,
        dva: &Dva,
        length: u64,
    ) -> Result<(), ZioError> {
        loop {
            let mut loads = pin!(self.loads.notified());
            loads.as_mut().enable();
            let to_load = {
                let mut top = entry.top.lock();
                let index = top
                    .index_of(dva.offset_bytes(), length)
                    .ok_or_else(|| space_map_error(dva, "not within a metaslab"))?;
                match top.metaslab_mut(index).map(|metaslab| &mut metaslab.loaded) {
                    Some(state @ metaslab::Loaded::No) => {
                        *state = metaslab::Loaded::Loading;
                        Some(index)
                    }
                    Some(metaslab::Loaded::Loading) => None,
                    _ => return Ok(()),
                }
            };
            match to_load {
                // A log ends where a block of it cannot be claimed, with all that was promised
                // behind it.
                Some(index) => self.load(txg, entry, index, true).await,
                None => loads.await,
            }
        }
    }

    /// What changed in `txg` since the last call for it; may be called in every pass.
    pub fn take_changes(&self, txg: Txg) -> Vec<MetaslabChange> {
        let mut out = Vec::new();
        for entry in self.tops.read().values() {
            entry.top.lock().take_changes(txg, &mut out);
        }
        out
    }

    /// `txg` is on disk: space that it freed starts its wait, and what waited long enough can be
    /// used.
    pub fn sync_done(&self, txg: Txg) {
        let totals = self.totals();
        // Short of space: better to reuse at once than to run out.
        let defer = totals.normal_free_bytes > totals.slop_bytes;
        for entry in self.tops.read().values() {
            entry.top.lock().sync_done(txg, defer);
            if entry.sizes().before.is_some_and(|(from, _)| from <= txg) {
                entry.sizes.write().before = None;
            }
        }
        *self.totals.lock() = None;
        // From here on it counts as deferred, or as free.
        let mut logs = self.logs.lock();
        logs.among_data.sync_done(txg);
        logs.on_log_devices.sync_done(txg);
    }

    /// Begins or stops to remember what comes free, for [`Self::hold_for_trim`].
    pub fn set_trimming(&self, on: bool) {
        // The list's lock, so that no vdev is added in between.
        let tops = self.tops.write();
        self.trimming.store(on, Ordering::Relaxed);
        for entry in tops.values() {
            entry.top.lock().set_trimming(on);
        }
    }

    /// Changes over how many txgs freed space is gathered before it is trimmed
    /// ([`TRIM_BATCH_TXGS`]).
    pub fn set_trim_batch_txgs(&self, txgs: u64) {
        self.trim_batch_txgs.store(txgs, Ordering::Relaxed);
    }

    /// After [`Self::sync_done`]: tells whether `txg` left an uberblock, without which it protects
    /// nobody.
    pub fn age_trim(&self, txg: Txg, wrote: bool) {
        let batch_txgs = self.trim_batch_txgs.load(Ordering::Relaxed);
        self.for_each_trim(|queue| queue.age(txg, wrote, batch_txgs));
    }

    /// What has to happen so that something can be trimmed, if anything has to.
    pub fn trim_waits(&self) -> Option<TrimWait> {
        let batch_txgs = self.trim_batch_txgs.load(Ordering::Relaxed);
        let mut out = None;
        self.for_each_trim(|queue| out = out.max(queue.waits(batch_txgs)));
        out
    }

    /// `txg` leaves an uberblock only since [`TrimWait::Uberblock`] asked for it.
    pub fn note_forced_by_trim(&self, txg: Txg) {
        self.for_each_trim(|queue| queue.note_forced(txg));
    }

    fn for_each_trim(&self, mut act: impl FnMut(&mut trim::TrimQueue)) {
        if !self.trimming.load(Ordering::Relaxed) {
            return;
        }
        for entry in self.tops.read().values() {
            if let Some(queue) = entry.top.lock().trim_queue() {
                act(queue);
            }
        }
    }

    /// Takes some free space of a vdev that may be discarded. Nothing while space is short, or
    /// nothing is due.
    pub fn hold_for_trim(&self, vdev: VdevId) -> Option<TrimHold> {
        if !self.trimming.load(Ordering::Relaxed) {
            return None;
        }
        let totals = self.totals();
        if totals.normal_free_bytes <= totals.slop_bytes {
            return None;
        }
        let entry = self.entry(vdev)?;
        let (metaslab, ranges) = entry.top.lock().hold_for_trim()?;
        Some(TrimHold {
            entry,
            loads: self.loads.clone(),
            metaslab,
            ranges,
            is_done: false,
        })
    }

    /// Notes that an intent log holds this place: it was allocated for a log's block, or found in
    /// one at import.
    pub fn note_log_held(&self, dva: &Dva) {
        let (class, bytes) = self.log_bytes(dva);
        let mut logs = self.logs.lock();
        logs.on(class).bytes += bytes;
        logs.peak_bytes = logs.peak_bytes.max(logs.bytes());
    }

    /// Notes that `txg` frees this place of an intent log's block.
    pub fn note_log_freed(&self, txg: Txg, dva: &Dva) {
        let (class, bytes) = self.log_bytes(dva);
        if bytes > 0 {
            let mut logs = self.logs.lock();
            *logs.on(class).freed_bytes.entry(txg).or_default() += bytes;
        }
    }

    /// Bytes that intent logs hold outside of log vdevs, as users see them.
    pub fn log_held_bytes(&self) -> u64 {
        self.logs.lock().among_data.bytes
    }

    /// Bytes that intent logs hold now, wherever, and the most that they held since this was asked
    /// before; as users see them.
    pub fn take_log_peak(&self) -> (u64, u64) {
        let mut logs = self.logs.lock();
        let now = logs.bytes();
        (now, std::mem::replace(&mut logs.peak_bytes, now))
    }

    /// What a place takes, as users see it, and of which class of vdevs. Nothing where the vdev is
    /// gone.
    fn log_bytes(&self, dva: &Dva) -> (AllocClass, u64) {
        self.entry(dva.vdev())
            .map_or((AllocClass::Normal, 0), |entry| {
                let bytes = deflate(entry.own_asize(dva), entry.deflate_ratio);
                (entry.class, bytes)
            })
    }

    /// Space that only the checkpoint uses, over all vdevs: nobody else may count on it
    /// (`spa_get_checkpoint_space`).
    pub fn set_checkpoint_bytes(&self, bytes: u64) {
        self.checkpoint_bytes.store(bytes, Ordering::Relaxed);
        *self.totals.lock() = None;
    }

    /// Whether freed space is still waiting: further (even empty) txgs bring it back.
    pub fn has_deferred(&self) -> bool {
        self.totals().deferred_bytes > 0
    }

    /// Space of every vdev, by id.
    pub fn top_spaces(&self) -> Vec<TopSpace> {
        let entries: Vec<_> = self.tops.read().values().cloned().collect();
        entries
            .iter()
            .map(|entry| {
                let top = entry.top.lock();
                TopSpace {
                    fragmentation_percent: top.fragmentation(),
                    ..top.space()
                }
            })
            .collect()
    }

    /// Bytes that what is known of free space takes in memory, roughly. Each vdev is locked while
    /// its metaslabs are counted.
    pub fn memory_bytes(&self) -> u64 {
        let entries: Vec<_> = self.tops.read().values().cloned().collect();
        let bytes = entries.iter().map(|entry| entry.top.lock().memory_bytes());
        bytes.sum()
    }

    /// Space of the pool as of the last synced txg. Cheap.
    pub fn totals(&self) -> SpaceTotals {
        let mut cached = self.totals.lock();
        *cached.get_or_insert_with(|| self.sum_totals())
    }

    /// Whether data may still go to the special class; no while that has no vdevs.
    pub fn has_special_room(&self) -> bool {
        let totals = self.totals();
        let limit = totals.special_size_bytes / 100 * (100 - SPECIAL_RESERVE_PERCENT);
        totals.special_allocated_bytes < limit
    }

    /// Space that dedup and cloning save: datasets count it, though nothing takes it.
    pub fn set_saved_bytes(&self, bytes: u64) {
        self.saved_bytes.store(bytes, Ordering::Relaxed);
        *self.totals.lock() = None;
    }

    fn sum_totals(&self) -> SpaceTotals {
        let mut out = SpaceTotals::default();
        let mut offered_bytes = 0;
        for entry in self.tops.read().values() {
            let (top, is_withheld) = {
                let top = entry.top.lock();
                (top.space(), top.spec.is_withheld)
            };
            if top.class == AllocClass::Log {
                continue;
            }
            out.size_bytes += top.size_bytes;
            out.allocated_bytes += top.allocated_bytes;
            out.deferred_bytes += top.deferred_bytes;
            out.size_deflated_bytes += top.size_deflated_bytes;
            out.allocated_deflated_bytes += top.allocated_deflated_bytes;
            out.deferred_deflated_bytes += top.deferred_deflated_bytes;
            if top.class == AllocClass::Special {
                out.special_size_bytes += top.size_bytes;
                out.special_allocated_bytes += top.allocated_bytes;
            }
            if top.class == AllocClass::Dedup {
                out.dedup_size_bytes += top.size_bytes;
                out.dedup_allocated_bytes += top.allocated_bytes;
            }
            if top.class == AllocClass::Normal {
                out.normal_deflated_bytes += top.size_deflated_bytes;
                if !is_withheld {
                    offered_bytes += top.size_deflated_bytes;
                    out.usable_deflated_bytes += top.size_deflated_bytes;
                    out.normal_free_bytes += top.size_bytes.saturating_sub(top.allocated_bytes);
                }
            } else {
                out.usable_deflated_bytes += top.allocated_deflated_bytes;
            }
        }
        out.slop_bytes = slop_bytes(offered_bytes);
        out.usable_deflated_bytes += self.saved_bytes.load(Ordering::Relaxed);
        out.usable_deflated_bytes = out
            .usable_deflated_bytes
            .saturating_sub(self.checkpoint_bytes.load(Ordering::Relaxed));
        out
    }

    /// Free runs of a metaslab by log2 of their length, counting those that wait; `None` when it
    /// is neither loaded nor has a recorded histogram.
    pub fn histogram(&self, vdev: VdevId, metaslab: u64) -> Option<[u64; 64]> {
        let entry = self.entry(vdev)?;
        let top = entry.top.lock();
        top.metaslab(metaslab as usize)?.histogram()
    }

    /// The metaslabs of a vdev: where they are, and their free bytes as recorded.
    pub fn metaslab_spaces(&self, vdev: VdevId) -> Vec<(Range, u64)> {
        let Some(entry) = self.entry(vdev) else {
            return Vec::new();
        };
        let top = entry.top.lock();
        (0..)
            .map_while(|index| top.metaslab(index))
            .map(|metaslab| {
                let end = metaslab.start + metaslab.length;
                let free = metaslab.length.saturating_sub(metaslab.recorded_bytes);
                (metaslab.start..end, free)
            })
            .collect()
    }

    /// Free ranges of a metaslab as its space map will say after the changes handed out so far;
    /// `None` when it is not loaded. For condensing space maps and for checks.
    pub fn recorded_free(&self, vdev: VdevId, metaslab: u64) -> Option<RangeSet> {
        let entry = self.entry(vdev)?;
        let top = entry.top.lock();
        top.metaslab(metaslab as usize)?.recorded_free()
    }

    /// Size on `vdev` of a block with `psize_bytes` stored.
    pub fn asize(&self, vdev: VdevId, psize_bytes: u64) -> Option<u64> {
        Some(self.entry(vdev)?.sizes().geometry.asize(psize_bytes))
    }

    /// What a block with `psize_bytes` stored takes as users see it, where it takes most.
    pub fn worst_deflated_bytes(&self, psize_bytes: u64) -> u64 {
        let tops = self.tops.read();
        tops.values()
            .filter(|entry| entry.class != AllocClass::Log)
            .map(|entry| deflate(entry.sizes().worst_asize(psize_bytes), entry.deflate_ratio))
            .max()
            .unwrap_or(psize_bytes)
    }

    /// Whether what a DVA takes lies within one metaslab of a vdev that is there: of a gang block,
    /// its header. Not the sum of the metaslabs' sizes decides: on dRAID each of them is cut to
    /// whole stripes, so the last one ends behind that sum.
    pub fn contains(&self, dva: &Dva) -> bool {
        self.entry(dva.vdev()).is_some_and(|entry| {
            let length = entry.own_asize(dva);
            let top = entry.top.lock();
            top.index_of(dva.offset_bytes(), length).is_some()
        })
    }

    /// A DVA's allocated size as users see it (`dva_get_dsize_sync`); `None` for unknown vdevs.
    pub fn deflated_bytes(&self, dva: &Dva) -> Option<u64> {
        let tops = self.tops.read();
        let entry = tops.get(&dva.vdev())?;
        Some(deflate(dva.asize_bytes(), entry.deflate_ratio))
    }
}

impl std::fmt::Debug for Allocator {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Allocator")
            .field("totals", &self.totals())
            .finish_non_exhaustive()
    }
}

fn space_map_error(dva: &Dva, found: &'static str) -> ZioError {
    ZioError::SpaceMap {
        vdev: dva.vdev(),
        offset_bytes: dva.offset_bytes(),
        length_bytes: dva.asize_bytes(),
        found,
    }
}
