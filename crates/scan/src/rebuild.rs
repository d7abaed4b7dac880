//! Sequential rebuild: `zpool attach -s` and `zpool replace -s`.
//!
//! What is allocated on a mirror is copied in the order of the disk, with large reads, to the
//! devices that lack something ([`vdev::VdevTree::rebuild`]); on dRAID it is computed for those
//! that were attached for that. No block pointers are followed and no checksums verified. When the
//! last rebuild of a pool is done, a scrub begins in the same transaction group, which verifies
//! everything; but not where a device that could be resilvered lacks something still, for whatever
//! reason. The resilver that comes then verifies what it reads, and no more.
//!
//! The distributed spares of dRAID stand in so by themselves (`pool::spares`), and have everything
//! when the devices that they are on do ([`spares_that_took_all`]).
//!
//! Each top-level vdev has its own rebuild. Its state is in the vdev's ZAP, as OpenZFS stores it,
//! so that either goes on with what the other began. While one is under way no scrub or resilver
//! begins, and devices are attached without `-s` only by hot spares.
//!
//! # Rhythm
//! In the first pass of each transaction group, rebuilds have a turn that takes as long as a
//! resilver's: metaslab by metaslab, what was allocated before this group
//! ([`zio::Allocator::settled`]). The turn ends before the group's labels are written, and all of
//! its copies with it. OpenZFS has a thread instead, which keeps allocations out of the metaslab
//! that it works at.
//!
//! # What a device has when it is done
//! A rebuild copies only once no group is open any more that was when it began: from then on the
//! new device gets everything that is written ([`RebuildPhys::max_txg`]). What was allocated before
//! a turn is copied by it; what is allocated later is written to all devices, or the one that does
//! not take it lacks that group, and keeps lacking everything. The same holds for a device that did
//! not take a copy, or was away at any time. A log's block has the group in which it was allocated,
//! which may be an earlier one: so none must have failed at all. The last copies are in an earlier
//! group than the end, so that a flush which fails is known by then. And where something could not
//! be read, nobody is taken to have everything. A resilver that begins by itself is for those: it
//! knows what it misses.
//!
//! # What a crash leaves
//! The stored offset, of the same group as the labels: all that this state has below it, and that
//! is older than the rebuild's turn there, was copied and flushed. Devices lack what they lacked
//! until the group in which the rebuild is complete; only then is one that was replaced let go
//! ([`crate::topology`]).
//!
//! Lock: `state`, for a few instructions; nothing else is locked under it.
//!
//! Source: module/zfs/vdev_rebuild.c.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use dataset::DatasetError;
use format::{Guid, ObjectId, RebuildPhys, Txg, VdevId};
use futures::future::join_all;
use futures::stream::StreamExt;
use object::{ObjectSet, SyncContext, Zap, ZapValue};
use parking_lot::Mutex;
use spa::events::{About, Sysevent};
use spa::{Pass, PoolError, config, directory, lost};
use tokio::sync::{Semaphore, watch};
use vdev::{
    RangeSet, Rebuilt, Vdev, VdevKind, VdevTree, copy_end, is_rebuilding, spares_that_took_all,
};
use zio::Tx;
use zio::alloc::Settled;

use crate::Scans;

/// The feature.
const DEVICE_REBUILD: &str = "org.openzfs:device_rebuild";
/// Bytes of one copy on a device (`zfs_rebuild_max_segment`).
const COPY_BYTES: u64 = 1 << 20;
/// Copies of a vdev that are under way, and their bytes (`zfs_rebuild_vdev_limit`). Where a pool
/// was used they are short ones, of which devices make long operations.
const COPIES_MAX: usize = 512;
/// Shared by the vdevs that are rebuilt, each of which has at least the smaller number: more than
/// the largest copy, of a dRAID's data and parity.
const COPIES_BYTES_MAX: u64 = 64 << 20;
const COPIES_BYTES_MIN: u64 = 24 << 20;
/// Txgs after an import in which no rebuild goes on.
const TXGS_AFTER_IMPORT: u64 = 2;
/// Words of [`RebuildPhys`].
const WORDS: usize = RebuildPhys::BYTES / 8;

/// State of a rebuild (`vdev_rebuild_state_t`, include/sys/fs/zfs.h).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RebuildState {
    /// Under way.
    Active,
    /// Stopped: no device lacked anything any more that could be written.
    Canceled,
    /// Done.
    Complete,
}

impl RebuildState {
    fn new(number: u64) -> Option<Self> {
        match number {
            1 => Some(Self::Active),
            2 => Some(Self::Canceled),
            3 => Some(Self::Complete),
            _ => None,
        }
    }

    const fn number(self) -> u64 {
        match self {
            Self::Active => 1,
            Self::Canceled => 2,
            Self::Complete => 3,
        }
    }
}

/// The last rebuild of a top-level vdev (`vdev_rebuild_stat_t`, include/sys/fs/zfs.h).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RebuildStatus {
    /// How far it is.
    pub state: RebuildState,
    /// When it began, in seconds since 1970.
    pub start_time_s: u64,
    /// When it ended; zero while it runs.
    pub end_time_s: u64,
    /// Time spent, over all runs.
    pub scan_time_ms: u64,
    /// Allocated bytes that were looked at.
    pub scanned_bytes: u64,
    /// Of these, bytes that some device lacked.
    pub issued_bytes: u64,
    /// Bytes that were written.
    pub rebuilt_bytes: u64,
    /// Allocated bytes in all, roughly.
    pub estimated_bytes: u64,
    /// What could not be read.
    pub errors: u64,
    /// Time spent since the import, or since it began.
    pub pass_time_ms: u64,
    /// Bytes looked at in that time.
    pub pass_scanned_bytes: u64,
    /// Of these, bytes that some device lacked.
    pub pass_issued_bytes: u64,
    /// Bytes that no device lacked.
    pub pass_skipped_bytes: u64,
}

/// The part of a rebuild that this import has done.
#[derive(Debug, Default)]
struct Run {
    /// By the monotonic clock; zero before its first turn.
    start_ns: u64,
    /// Time spent before.
    before_ms: u64,
    scanned_bytes: u64,
    issued_bytes: u64,
    skipped_bytes: u64,
    /// What scans and rebuilds had written to each device by then.
    written_before: BTreeMap<Guid, u64>,
    /// Writes that each device had failed to take when it began; none at the import.
    lost_before: BTreeMap<Guid, u64>,
    /// The last group in which something was copied.
    last_copy_txg: Txg,
}

#[derive(Debug, Default)]
struct Rebuild {
    phys: RebuildPhys,
    /// Words that follow, of a newer release.
    rest: Vec<u64>,
    is_dirty: bool,
    run: Run,
}

impl Rebuild {
    fn state(&self) -> Option<RebuildState> {
        RebuildState::new(self.phys.state)
    }

    fn is_active(&self) -> bool {
        self.state() == Some(RebuildState::Active)
    }
}

#[derive(Debug, Default)]
struct State {
    all: BTreeMap<VdevId, Rebuild>,
    /// The first txg that was written since the import.
    first_txg: Option<Txg>,
}

/// How a turn of one vdev ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ended {
    More,
    Whole,
    Needless,
}

/// The rebuilds of a pool.
#[derive(Debug, Default)]
pub struct Rebuilds {
    state: Mutex<State>,
    /// Whether one is under way.
    active: watch::Sender<bool>,
}

/// The ZAP of a top-level vdev.
fn zap_of(top: &Vdev) -> Option<ObjectId> {
    let id = top.config_u64(config::TOP_ZAP).filter(|id| *id != 0);
    id.map(ObjectId::new)
}

fn now_s(scans: &Scans) -> u64 {
    scans.spa.world.clock.wall_ns() / 1_000_000_000
}

impl Rebuilds {
    /// As the pool has it at its import. What is damaged or unknown counts as none
    /// (`vdev_rebuild_load`).
    pub async fn load(
        pool: &str,
        mos: &Arc<ObjectSet>,
        tree: &VdevTree,
    ) -> Result<Self, PoolError> {
        let mut all = BTreeMap::new();
        for top in tree.tops() {
            let Some(id) = zap_of(&top) else { continue };
            let zap = Zap::hold(mos, id).await?;
            let Some(value) = zap.lookup(directory::VDEV_REBUILD).await? else {
                continue;
            };
            let mut words = value.to_u64s();
            if words.len() < WORDS {
                continue;
            }
            let rest = words.split_off(WORDS);
            let phys = match RebuildPhys::from_words(&words) {
                Ok(phys) => phys,
                Err(error) => {
                    // What its devices lack is on record: they are resilvered.
                    lost(pool, "how far a rebuild has come", &error);
                    continue;
                }
            };
            if RebuildState::new(phys.state).is_some() {
                let before_ms = phys.scan_time_ms;
                let run = Run {
                    before_ms,
                    ..Run::default()
                };
                let rebuild = Rebuild {
                    phys,
                    rest,
                    run,
                    is_dirty: false,
                };
                all.insert(top.vdev_id(), rebuild);
            }
        }
        let out = Self {
            state: Mutex::new(State {
                all,
                first_txg: None,
            }),
            ..Self::default()
        };
        out.tell();
        Ok(out)
    }

    fn tell(&self) {
        let is_active = self.is_active();
        self.active.send_if_modified(|active| {
            let is_new = *active != is_active;
            *active = is_active;
            is_new
        });
    }

    /// Whether a rebuild is under way.
    pub fn is_active(&self) -> bool {
        self.state.lock().all.values().any(Rebuild::is_active)
    }

    /// Whether one of this top-level vdev is.
    fn is_active_on(&self, id: VdevId) -> bool {
        self.state
            .lock()
            .all
            .get(&id)
            .is_some_and(Rebuild::is_active)
    }

    /// Waits until none is under way.
    pub async fn wait(&self) {
        let mut active = self.active.subscribe();
        // The sender is in this very value.
        let _ = active.wait_for(|active| !*active).await;
    }

    /// The pool is closed, or only read: nobody waits any more.
    pub fn closed(&self) {
        self.active.send_replace(false);
    }

    /// Refuses a rebuild below a top-level vdev (`spa_vdev_attach`, module/zfs/spa.c).
    pub fn check(scans: &Scans, top: &Vdev) -> Result<(), PoolError> {
        let pool = || scans.spa.identity.name();
        if !scans.spa.dsl.features().is_enabled(DEVICE_REBUILD) || zap_of(top).is_none() {
            return Err(PoolError::RebuildDisabled { pool: pool() });
        }
        if scans.scan.is_resilvering()
            || scans.scan.is_resilver_due(scans) && !scans.is_rebuilding()
        {
            return Err(PoolError::ResilverUnderWay { pool: pool() });
        }
        if !top.can_rebuild() {
            let vdev = top.display_name();
            return Err(PoolError::CannotRebuild { vdev });
        }
        Ok(())
    }

    /// Begins the rebuild of a top-level vdev to which a device was just attached, in syncing
    /// context, or begins it anew (`vdev_rebuild`).
    pub async fn begin(
        &self,
        scans: &Scans,
        ctx: &SyncContext,
        top: &Arc<Vdev>,
    ) -> Result<(), PoolError> {
        let id = top.vdev_id();
        let tx = &Tx::syncing(ctx.txg);
        let Some((min_txg, max_txg)) = top.rebuild_txgs() else {
            return Ok(());
        };
        let is_reset = self.is_active_on(id);
        if !is_reset {
            scans
                .spa
                .dsl
                .features()
                .increment(ctx, DEVICE_REBUILD)
                .await?;
        }
        // Devices that come back from now on are not taken to have everything.
        scans.spa.dirty_times.note_uses_of(top.leaves());
        let lost = |vdev: Arc<Vdev>| Some((vdev.guid(), vdev.leaf()?.dirty_times().lost_writes()));
        let lost_before = top.leaves().into_iter().filter_map(lost).collect();
        {
            let mut state = self.state.lock();
            let rebuild = state.all.entry(id).or_default();
            let before = rebuild.phys;
            rebuild.phys = RebuildPhys {
                state: RebuildState::Active.number(),
                min_txg,
                max_txg: max_txg.max(ctx.txg),
                start_time_seconds: match is_reset {
                    true => before.start_time_seconds,
                    false => now_s(scans),
                },
                ..RebuildPhys::default()
            };
            rebuild.run = Run {
                lost_before,
                ..Run::default()
            };
            rebuild.is_dirty = true;
        }
        for leaf in top.leaves() {
            if let Some(leaf) = leaf.leaf() {
                leaf.dirty_times().take_scan_failed();
            }
        }
        let what = if is_reset { "reset" } else { "started" };
        log(scans, tx, top, what).await?;
        if !is_reset {
            tell(scans, top, Sysevent::ResilverStart);
            scans.scan.give_way(scans, ctx).await?;
        }
        self.tell();
        Ok(())
    }

    /// The last rebuild of a top-level vdev.
    pub fn status(&self, scans: &Scans, id: VdevId) -> Option<RebuildStatus> {
        let state = self.state.lock();
        let rebuild = state.all.get(&id)?;
        let (phys, run) = (&rebuild.phys, &rebuild.run);
        let pass_time_ms = match run.start_ns {
            0 => 0,
            start_ns => {
                scans
                    .spa
                    .world
                    .clock
                    .monotonic_ns()
                    .saturating_sub(start_ns)
                    / 1_000_000
            }
        };
        Some(RebuildStatus {
            state: rebuild.state()?,
            start_time_s: phys.start_time_seconds,
            end_time_s: phys.end_time_seconds,
            scan_time_ms: phys.scan_time_ms,
            scanned_bytes: phys.scanned_bytes,
            issued_bytes: phys.issued_bytes,
            rebuilt_bytes: phys.rebuilt_bytes,
            estimated_bytes: phys.estimated_bytes,
            errors: phys.errors,
            pass_time_ms,
            pass_scanned_bytes: run.scanned_bytes,
            pass_issued_bytes: run.issued_bytes,
            pass_skipped_bytes: run.skipped_bytes,
        })
    }

    /// Bytes that the rebuild under way below this top-level vdev has written to a device since it
    /// began, or since the import (`vs_rebuild_processed`); zero when none is.
    pub fn written_on(&self, top: VdevId, vdev: &Vdev) -> u64 {
        let state = self.state.lock();
        let active = state
            .all
            .get(&top)
            .filter(|rebuild| rebuild.is_active() && rebuild.run.start_ns != 0);
        let Some(rebuild) = active else { return 0 };
        let before = rebuild.run.written_before.get(&vdev.guid());
        let now = vdev.counters().scan_repaired_bytes;
        now.saturating_sub(before.copied().unwrap_or(0))
    }

    /// A resilver begins, in syncing context: of rebuilds nothing more is told
    /// (`vdev_rebuild_clear_sync`).
    pub fn forget_ended(&self) {
        for rebuild in self.state.lock().all.values_mut() {
            if !rebuild.is_active() && rebuild.phys != RebuildPhys::default() {
                rebuild.phys = RebuildPhys::default();
                rebuild.run = Run::default();
                rebuild.is_dirty = true;
            }
        }
    }

    fn change(&self, id: VdevId, change: impl FnOnce(&mut Rebuild)) {
        if let Some(rebuild) = self.state.lock().all.get_mut(&id) {
            change(rebuild);
            rebuild.is_dirty = true;
        }
    }

    fn phys(&self, id: VdevId) -> RebuildPhys {
        let state = self.state.lock();
        state
            .all
            .get(&id)
            .map_or_else(RebuildPhys::default, |rebuild| rebuild.phys)
    }

    /// Whether something was copied in this transaction group.
    fn has_copied(&self, id: VdevId, txg: Txg) -> bool {
        let state = self.state.lock();
        let last = state.all.get(&id).map(|rebuild| rebuild.run.last_copy_txg);
        last == Some(txg)
    }

    fn lost_before(&self, id: VdevId) -> BTreeMap<Guid, u64> {
        let state = self.state.lock();
        let run = state.all.get(&id).map(|rebuild| &rebuild.run);
        run.map(|run| run.lost_before.clone()).unwrap_or_default()
    }

    /// Whether turns are over for now.
    fn rests(scans: &Scans) -> bool {
        scans.scan.rests() || scans.spa.suspended().is_some()
    }

    /// The turn in the first pass of a transaction group.
    pub(crate) async fn turn(&self, scans: &Scans, pass: &Pass<'_>) -> Result<(), PoolError> {
        let txg = pass.ctx.txg;
        let ids: Vec<VdevId> = {
            let mut state = self.state.lock();
            let first = *state.first_txg.get_or_insert(txg);
            let is_early = txg.get() < first.get().saturating_add(TXGS_AFTER_IMPORT);
            let active = state.all.iter().filter(|(_, rebuild)| rebuild.is_active());
            active.filter(|_| !is_early).map(|(id, _)| *id).collect()
        };
        if !ids.is_empty() && !Self::rests(scans) {
            let is_over = scans.scan.turn_is_over(scans, txg);
            let works = ids.iter().map(|id| self.work(scans, txg, *id, &*is_over));
            let ended = join_all(works).await;
            for (id, ended) in ids.into_iter().zip(ended) {
                match ended {
                    Ended::More => {}
                    Ended::Whole => self.end(scans, pass, id, RebuildState::Complete).await?,
                    Ended::Needless => self.end(scans, pass, id, RebuildState::Canceled).await?,
                }
            }
        }
        self.store(scans, pass).await
    }

    /// Copies until the turn is over.
    async fn work(
        &self,
        scans: &Scans,
        txg: Txg,
        id: VdevId,
        is_over: &(dyn Fn() -> bool + Send + Sync),
    ) -> Ended {
        let Some(top) = scans.spa.tree.top(id).filter(|top| !top.kind().is_hole()) else {
            return Ended::Needless;
        };
        if !top.state().0.is_usable() {
            // Where that is no log, the pool is about to be suspended.
            return match top.is_log() {
                true => Ended::Needless,
                false => Ended::More,
            };
        }
        self.begin_run(scans, &top);
        loop {
            if top.rebuild_txgs().is_none() || !top.can_rebuild() {
                // The device is gone, or cannot be written now: a resilver is for it when it is
                // back.
                return Ended::Needless;
            }
            if txg < self.phys(id).max_txg {
                return Ended::More;
            }
            if is_over() {
                break;
            }
            let offset = self.phys(id).last_offset_bytes;
            let metaslab = offset >> top.metaslab_shift();
            let end = (metaslab + 1) << top.metaslab_shift();
            let mut ranges = match scans
                .spa
                .pipeline
                .allocator()
                .settled(txg, id, metaslab)
                .await
            {
                Settled::Ranges(ranges) => ranges,
                Settled::Unknown => {
                    self.change(id, |rebuild| {
                        rebuild.phys.errors += 1;
                        rebuild.phys.last_offset_bytes = end;
                    });
                    continue;
                }
                // Its last copies are durable when the group is on disk. A device whose flush
                // fails lacks this group then, and is not taken to have everything.
                Settled::End if self.has_copied(id, txg) => break,
                Settled::End => return Ended::Whole,
            };
            if offset <= metaslab << top.metaslab_shift() {
                self.estimate(scans, id, metaslab);
            }
            ranges.remove(0, offset);
            if !self.copy_all(scans, txg, &top, &ranges, is_over).await {
                break;
            }
            self.change(id, |rebuild| rebuild.phys.last_offset_bytes = end);
        }
        self.change(id, |rebuild| {
            let passed_ns = scans
                .spa
                .world
                .clock
                .monotonic_ns()
                .saturating_sub(rebuild.run.start_ns);
            rebuild.phys.scan_time_ms = rebuild.run.before_ms + passed_ns / 1_000_000;
        });
        Ended::More
    }

    fn begin_run(&self, scans: &Scans, top: &Arc<Vdev>) {
        let written = |vdev: &Arc<Vdev>| (vdev.guid(), vdev.counters().scan_repaired_bytes);
        let written_before = top.leaves().iter().map(written).collect();
        let mut state = self.state.lock();
        if let Some(rebuild) = state.all.get_mut(&top.vdev_id())
            && rebuild.run.start_ns == 0
        {
            rebuild.run.start_ns = scans.spa.world.clock.monotonic_ns().max(1);
            rebuild.run.written_before = written_before;
        }
    }

    /// What there is to look at, from a metaslab on (`vdev_rebuild_update_bytes_est`).
    fn estimate(&self, scans: &Scans, id: VdevId, metaslab: u64) {
        let spaces = scans.spa.pipeline.allocator().metaslab_spaces(id);
        let left = spaces.into_iter().skip(metaslab as usize);
        let left: u64 = left
            .map(|(range, free)| (range.end - range.start).saturating_sub(free))
            .sum();
        self.change(id, |rebuild| {
            rebuild.phys.estimated_bytes = rebuild.phys.scanned_bytes.saturating_add(left);
        });
    }

    /// Copies ranges, in order; whether it came to their end. The stored place follows.
    async fn copy_all(
        &self,
        scans: &Scans,
        txg: Txg,
        top: &Vdev,
        ranges: &RangeSet,
        is_over: &(dyn Fn() -> bool + Send + Sync),
    ) -> bool {
        let (tree, id) = (&scans.spa.tree, top.vdev_id());
        let mut is_whole = true;
        let is_stopped = AtomicBool::new(false);
        let active = |at: &&Rebuild| at.is_active();
        let vdevs = self.state.lock().all.values().filter(active).count();
        let bytes = (COPIES_BYTES_MAX / vdevs.max(1) as u64).max(COPIES_BYTES_MIN);
        let room = Semaphore::new((bytes >> 10) as usize);
        {
            let room = &room;
            let begun = pieces(top, ranges).into_iter().take_while(|_| {
                let stops = is_stopped.load(Ordering::Relaxed);
                is_whole = is_whole && !stops && !is_over();
                is_whole
            });
            let mut copies = futures::stream::iter(begun)
                .map(|piece| async move {
                    let length = piece.end - piece.start;
                    // It is never closed. Earlier ones come first.
                    let _room = room.acquire_many(length.div_ceil(1 << 10) as u32).await;
                    let rebuilt = tree.rebuild(id, piece.start, length, txg).await;
                    (piece, rebuilt)
                })
                .buffered(COPIES_MAX);
            while let Some((piece, rebuilt)) = copies.next().await {
                let length = piece.end - piece.start;
                let rebuilt = rebuilt.unwrap_or_else(|error| {
                    tracing::warn!(%error, "a range cannot be rebuilt");
                    Rebuilt::Unread
                });
                if rebuilt == Rebuilt::Halted || scans.spa.suspended().is_some() {
                    is_stopped.store(true, Ordering::Relaxed);
                }
                if is_stopped.load(Ordering::Relaxed) {
                    // What is under way is waited for: devices may carry it out as long as nobody
                    // has told how it ended. It is copied again, with all that comes behind it.
                    continue;
                }
                self.change(id, |rebuild| {
                    let Rebuild { phys, run, .. } = rebuild;
                    phys.last_offset_bytes = piece.end;
                    phys.scanned_bytes += length;
                    run.scanned_bytes += length;
                    match rebuilt {
                        Rebuilt::Skipped => run.skipped_bytes += length,
                        Rebuilt::Copied { bytes } => phys.rebuilt_bytes += bytes,
                        Rebuilt::Unread | Rebuilt::Halted => phys.errors += 1,
                    }
                    if rebuilt != Rebuilt::Skipped {
                        run.last_copy_txg = txg;
                        phys.issued_bytes += length;
                        run.issued_bytes += length;
                    }
                });
            }
        }
        is_whole && !is_stopped.into_inner()
    }

    /// Ends a rebuild, in syncing context (`vdev_rebuild_complete_sync`,
    /// `vdev_rebuild_cancel_sync`).
    async fn end(
        &self,
        scans: &Scans,
        pass: &Pass<'_>,
        id: VdevId,
        as_: RebuildState,
    ) -> Result<(), PoolError> {
        let now_s = now_s(scans);
        self.change(id, |rebuild| {
            rebuild.phys.state = as_.number();
            rebuild.phys.end_time_seconds = now_s;
        });
        let phys = self.phys(id);
        let lost_before = self.lost_before(id);
        let features = scans.spa.dsl.features();
        if features.refcount(DEVICE_REBUILD).unwrap_or(0) > 0 {
            features.decrement(pass.ctx, DEVICE_REBUILD).await?;
        }
        let top = scans.spa.tree.top(id).filter(|top| !top.kind().is_hole());
        let Some(top) = top else {
            self.state.lock().all.remove(&id);
            self.tell();
            return Ok(());
        };
        if as_ == RebuildState::Complete {
            scans.settle_rebuilt(&top, &phys, &lost_before);
        }
        let what = match as_ {
            RebuildState::Complete => "complete",
            _ => "canceled",
        };
        log(scans, pass.tx, &top, what).await?;
        tell(scans, &top, Sysevent::ResilverFinish);
        tracing::info!(?phys, vdev = top.display_name(), "a rebuild ended");
        if as_ == RebuildState::Complete && !self.is_active() {
            scans.scan.verify_rebuilt(scans, pass.ctx).await?;
        }
        self.tell();
        Ok(())
    }

    /// Stores what changed.
    async fn store(&self, scans: &Scans, pass: &Pass<'_>) -> Result<(), PoolError> {
        let changed: Vec<_> = {
            let mut state = self.state.lock();
            let dirty = state.all.iter_mut().filter(|(_, rebuild)| rebuild.is_dirty);
            dirty
                .map(|(id, rebuild)| {
                    rebuild.is_dirty = false;
                    (
                        *id,
                        [rebuild.phys.to_words(), rebuild.rest.clone()].concat(),
                    )
                })
                .collect()
        };
        for (id, words) in changed {
            let top = scans.spa.tree.top(id);
            let Some(zap) = top.and_then(|top| zap_of(&top)) else {
                continue;
            };
            let zap = Zap::hold(scans.spa.dsl.mos(), zap).await?;
            let value = ZapValue::from_u64s(&words);
            zap.update(pass.tx, directory::VDEV_REBUILD, value).await?;
        }
        Ok(())
    }
}

/// The copies that ranges of a metaslab are made in, in order.
fn pieces(top: &Vdev, ranges: &RangeSet) -> Vec<Range<u64>> {
    let mut out = Vec::new();
    for range in ranges.ranges() {
        let mut start = range.start;
        while start < range.end {
            let end = copy_end(top, start, range.end, COPY_BYTES);
            out.push(start..end);
            start = end;
        }
    }
    out
}

/// What the pool's history says of a rebuild.
async fn log(scans: &Scans, tx: &Tx, top: &Vdev, what: &str) -> Result<(), PoolError> {
    let (id, guid) = (top.vdev_id(), top.guid());
    let text = format!("vdev_id={id} vdev_guid={guid} {what}");
    scans.spa.history.internal(tx, "rebuild", text).await;
    Ok(())
}

fn tell(scans: &Scans, top: &Arc<Vdev>, event: Sysevent) {
    scans
        .spa
        .events
        .tell_about(event, Some(About::vdev(top)), resilver_type("sequential"));
}

/// The pair of a resilver's events that says how it is done.
pub fn resilver_type(how: &str) -> format::NvList {
    let mut more = format::NvList::new();
    more.set("resilver_type", how);
    more
}

/// The end of a run of numbers.
fn last_end(missing: &RangeSet) -> u64 {
    missing.ranges().next_back().map_or(0, |range| range.end)
}

impl Scans {
    /// A rebuild is complete: devices that were there all the time and took everything lack nothing
    /// any more, if all could be read. `lost_before`: [`Run::lost_before`].
    fn settle_rebuilt(
        &self,
        top: &Arc<Vdev>,
        phys: &RebuildPhys,
        lost_before: &BTreeMap<Guid, u64>,
    ) {
        let max = phys.max_txg.get();
        let mut took_all = BTreeSet::new();
        for vdev in top.leaves() {
            let Some(leaf) = vdev.leaf() else { continue };
            let has_failed = !leaf.dirty_times().take_scan_failed().is_empty();
            let is_there = leaf.is_writeable() && self.spa.dirty_times.was_noted(&vdev);
            let lost_before = lost_before.get(&vdev.guid()).copied().unwrap_or(0);
            let has_lost = leaf.dirty_times().lost_writes() != lost_before;
            // One that was away in an earlier run lacks later txgs.
            let is_late = last_end(&leaf.dirty_times().missing()) > max;
            if is_there && !has_failed && !has_lost && !is_late {
                took_all.insert(vdev.guid());
            }
        }
        if phys.errors != 0 {
            return;
        }
        // Of a dRAID vdev's devices, those that lack something else were left alone.
        let is_rebuilt = |vdev: &Vdev| match top.kind() {
            VdevKind::Draid(_) => is_rebuilding(vdev),
            _ => true,
        };
        let settle = |missing: &mut RangeSet| {
            if last_end(missing) <= max {
                *missing = RangeSet::new();
            }
        };
        for vdev in top.leaves() {
            let Some(leaf) = vdev.leaf() else { continue };
            if took_all.contains(&vdev.guid()) && is_rebuilt(&vdev) {
                leaf.dirty_times().change_missing(settle);
                self.settled(&vdev);
            }
        }
        let whole = spares_that_took_all(top, &|leaf| took_all.contains(&leaf.guid()));
        for spare in top.draid_spares() {
            if let Some(own) = spare.kind().draid_spare()
                && whole.contains(&spare.guid())
                && is_rebuilt(&spare)
            {
                self.owe_the_same(top, &spare, max, &took_all);
                own.change_missing(settle);
                self.settled(&spare);
            }
        }
    }
}

impl Rebuilds {
    /// Whether it needs a transaction group although nobody asked for one.
    pub(crate) fn has_work(&self, scans: &Scans) -> bool {
        if scans.spa.read_only {
            return false;
        }
        let is_dirty = || self.state.lock().all.values().any(|at| at.is_dirty);
        self.is_active() && !Self::rests(scans) || is_dirty()
    }

    /// A transaction group is on disk.
    pub(crate) fn done(&self, scans: &Scans) {
        if self.has_work(scans) {
            scans.spa.txgs.go_on();
        }
    }
}

/// An error of a participant, as a sync task gives it.
pub fn as_task_error(error: PoolError) -> DatasetError {
    match error {
        PoolError::Dataset(error) => error,
        error => DatasetError::Corrupt {
            object: ObjectId::POOL_DIRECTORY,
            what: error.to_string(),
        },
    }
}
