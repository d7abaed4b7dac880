//! Scrub and resilver: every block is read, and what is wrong or missing on a device is written.
//!
//! ```text
//!   visit (which object sets) -> object::traverse -> queue, by vdev and offset -> issue
//! ```
//!
//! A scrub reads every copy of every block, with all parity; a resilver gives devices that came
//! back what they missed, and reads no more than that takes. Both are one scan, [`Scan`], a
//! participant of the sync loop. Its state is stored as OpenZFS stores it (`position`), so that
//! either goes on with what the other began. Pools that were imported read-only are scrubbed by
//! `read_only`.
//!
//! # Rhythm
//! In the first pass of each transaction group, after datasets were written, the scan has its turn
//! (`dsl_scan_sync`, module/zfs/dsl_scan.c): it walks and gathers blocks until the queue is full or
//! everything was walked, and then reads the queue in the order of the devices. A turn takes a
//! second, more when nobody needs the next group, less when somebody waits for it. When the queue
//! is empty the place that the walk has come to is stored: it is never beyond what was read.
//!
//! Datasets that gained pointers to old blocks meanwhile come first in a turn (`again`), and have
//! half of it while there is something to walk.
//!
//! # Why no block changes while it is read
//! A block that waits in the queue is allocated: whoever frees its space takes it out
//! ([`zio::pipeline::FreedHook`]). What is freed in a group is not allocated again before two more
//! groups are on disk ([`zio::alloc::DEFER_TXGS`]), for logs too, and is not discarded before that.
//! All reads of a turn end with it, before its group is on disk. So what is read in a turn has not
//! been overwritten, whoever frees it meanwhile. Blocks that are rewritten in place were born in
//! the group that is written, and a scan leaves out what was born after it began. Repairs go to the
//! same places, in the same time.
//!
//! # What devices lack
//! A device that a resilver begins with has all missed txgs before `max_txg`. At the end of a whole
//! scan such devices lack them no more (`Scans::settle_missing`), but for txgs of which a block
//! could not be read, or not be written to the device. A device that was away at any time since the
//! scan began missed a later txg as well, and keeps everything: the next resilver is for it.
//!
//! Each txg it is looked whether a resilver is needed: some top-level vdev that works has a device
//! that can be written and lacks txgs. What the last resilver could not mend is left alone until it
//! changes.
//!
//! # What a crash leaves
//! The stored place: the scan goes on there; while something is left to look at again, that is its
//! begin. A resilver that had errors begins anew, as what could
//! not be mended is known only in memory (`dsl_scan_init`).
//!
//! # Locks
//! `state` and `blocks`, each for a few instructions; `state` first.

mod again;
mod blocks;
mod command;
mod cost;
mod defer;
mod lane;
mod position;
mod queue;
mod read_only;
mod rebuilt;
mod resilver;
mod share;
mod visit;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use format::{Guid, ObjectId, ObjectType, ScanPhys, Txg};
use object::{SyncContext, Zap, ZapOptions, ZapValue};
use parking_lot::{Mutex, RwLock};
use spa::dtl::{Uses, uses_of};
use spa::events::Sysevent;
use spa::{Pass, PoolError, directory};
use tokio::sync::watch;
use vdev::{RangeSet, ScanRead};
use zio::Tx;

use crate::rebuild::resilver_type;
use crate::{ScanFunction, ScanState, ScanStatus, Scans};
use again::Again;
use blocks::{Blocks, get, repaired_bytes};
use position::{DESTROYED, Position, leave_out_tables};
use resilver::When;
use share::Sharing;
use visit::{IsOver, Visit};

pub use command::command;
pub use cost::{ScanCost, ScanCosts};
pub use defer::{is_deferred, resilver};

/// Words of [`ScanPhys`].
const WORDS: usize = ScanPhys::BYTES / 8;
/// Blocks in the queue, about 200 bytes each, unless [`Scan::set_queue_blocks_max`] says otherwise.
const QUEUE_BLOCKS_MAX: usize = 256 << 10;
/// How long a turn of a scrub and of a resilver takes at least (`zfs_scrub_min_time_ms`,
/// `zfs_resilver_min_time_ms`).
const TURN: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(3)];
/// The same while somebody waits for the txg, or much is dirty.
const TURN_WAITED_FOR: [Duration; 2] = [Duration::from_millis(200), Duration::from_millis(500)];
/// How long it takes at most (`zfs_txg_timeout`).
const TURN_MAX: Duration = Duration::from_secs(5);
/// Seconds by which what a pool notes of its groups may be newer than a scan that began later.
const LIMIT_SLACK_S: u64 = 5;
/// Txgs after an import in which no scan goes on.
const TXGS_AFTER_IMPORT: u64 = 2;

/// What to do with a pool's scrub.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ScrubCommand {
    /// Start it, or go on with a paused one.
    Start,
    /// The same, of what was written between two moments, as far as the pool notes when its
    /// transaction groups were written: rather more than less, but for what users wrote in the
    /// last seconds, which may have gone to disk later.
    Between {
        /// Seconds since 1970; without it, all that is older too.
        from_s: Option<u64>,
        /// Seconds since 1970; without it, all that is newer too.
        until_s: Option<u64>,
    },
    /// The same, of what was written since the last one that was finished.
    Continue,
    /// Start one of the blocks that the error log names, or go on with a paused one.
    Errors,
    /// Pause it.
    Pause,
    /// Stop it.
    Stop,
}

impl ScrubCommand {
    /// Whether a scrub begins, or a paused one goes on.
    fn begins(self) -> bool {
        matches!(self, Self::Start | Self::Between { .. } | Self::Continue)
    }
}

/// What a scrub has done, in numbers. Blocks and bytes are counted by pointer: all copies of one,
/// with parity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ScrubNumbers {
    /// Pointers found, embedded ones among them.
    pub found_blocks: u64,
    /// Bytes allocated for them.
    pub found_bytes: u64,
    /// Pointers that hold their data themselves: there is nothing to read.
    pub embedded_blocks: u64,
    /// Pointers whose block was verified; of several to the same block met together, all.
    pub verified_blocks: u64,
    /// Bytes allocated for them.
    pub verified_bytes: u64,
    /// Pointers to a block that had just been verified for another one.
    pub shared_blocks: u64,
    /// Bytes allocated for them.
    pub shared_bytes: u64,
    /// Datasets found, snapshots among them.
    pub datasets: u64,
    /// Blocks of which no copy is good, or that cannot be understood.
    pub errors: u64,
}

/// The part of a scan that this import has done.
#[derive(Debug, Default)]
struct Run {
    /// As it was when the run began.
    base: ScanPhys,
    /// It began before the import: what of it failed until then is not known.
    is_continued: bool,
    /// Bytes that scans had repaired by then, on all devices.
    repaired_before: u64,
    /// The same by device.
    repaired_by_device: BTreeMap<Guid, u64>,
    start_s: u64,
    /// Since when it is paused; zero when it is not.
    pause_s: u64,
    /// Seconds spent paused.
    paused_s: u64,
}

#[derive(Debug, Default)]
struct State {
    /// A scan was stored, or begun.
    is_known: bool,
    /// Where the walk is.
    current: Position,
    /// Up to where everything was read: what is on disk, once `is_dirty` is not set.
    stored: Position,
    /// The stored queue is the one in the MOS.
    disk_queue: BTreeMap<u64, u64>,
    /// The queue of a scan that was given up at the import, which is to be freed.
    left_queue: ObjectId,
    /// Datasets to visit once more.
    again: Again,
    /// What is in the MOS is the scan at its begin, as something is left to look at again.
    is_stored_at_begin: bool,
    /// Words that follow the stored state, of a newer release.
    rest: Vec<u64>,
    is_dirty: bool,
    /// Everything was walked.
    is_walked: bool,
    /// The queue is being read.
    is_clearing: bool,
    run: Run,
    /// The scrub under way leaves out blocks that were there when it began, as they are too new.
    is_limited: bool,
    /// Txg of the import.
    first_txg: Txg,
    /// What devices lacked when the last resilver was done and had not mended it.
    unmended: BTreeMap<Guid, RangeSet>,
    last_scrubbed_txg: Txg,
    /// The scan under way does not end for a resilver.
    finishes_first: bool,
    /// Somebody asked for a resilver, which has not begun yet.
    is_asked_for: bool,
}

impl State {
    fn is_active(&self) -> bool {
        self.current.is_running() && !self.current.is_paused()
    }
}

/// A pool's scan.
pub struct Scan {
    state: Mutex<State>,
    /// Of the scan under way, or the last one.
    blocks: RwLock<Option<Arc<Blocks>>>,
    /// The pool is being exported.
    is_closing: AtomicBool,
    is_held: AtomicBool,
    queue_blocks_max: AtomicUsize,
    defer_percent: AtomicU64,
    /// Of the disks' time, that scrubs have; zero: none is said.
    share_percent: AtomicU8,
    /// Whether a scan runs, and whether it is paused.
    active: watch::Sender<(bool, bool)>,
    /// Of a pool that was imported read-only.
    pub read_only: read_only::Scrub,
}

impl Default for Scan {
    fn default() -> Self {
        Scan {
            state: Mutex::default(),
            blocks: RwLock::default(),
            is_closing: AtomicBool::new(false),
            is_held: AtomicBool::new(false),
            queue_blocks_max: AtomicUsize::new(QUEUE_BLOCKS_MAX),
            defer_percent: AtomicU64::new(defer::DEFER_PERCENT),
            share_percent: AtomicU8::new(0),
            active: watch::Sender::new((false, false)),
            read_only: read_only::Scrub::default(),
        }
    }
}

fn now_s(scans: &Scans) -> u64 {
    scans.spa.world.clock.wall_ns() / 1_000_000_000
}

impl Scan {
    /// Takes over what the MOS's directory says, at the import.
    ///
    /// `is_outdated` where software had the pool since that knows nothing of such scans
    /// (`spa_prev_software_version`, module/zfs/dsl_scan.c): what it snapshotted was not noted, and
    /// would be passed over. A resilver that is still needed begins anew.
    ///
    /// # Errors
    /// [`format::FormatError`], by its type: any number of words can be read.
    pub fn load(
        &self,
        value: Option<&ZapValue>,
        queue: Option<BTreeMap<u64, u64>>,
        last_scrubbed_txg: Txg,
        synced: Txg,
        is_outdated: bool,
    ) -> Result<(), PoolError> {
        let mut state = self.state.lock();
        state.first_txg = synced.next();
        state.last_scrubbed_txg = last_scrubbed_txg;
        let Some(value) = value else { return Ok(()) };
        let mut words = value.to_u64s();
        let is_short = words.len() < WORDS;
        words.resize(words.len().max(WORDS), 0);
        state.rest = words.split_off(WORDS);
        let mut phys = ScanPhys::from_words(&words)?;
        state.is_known = true;
        if phys.state == ScanPhys::STATE_SCANNING && is_outdated {
            // So that nobody else goes on with it either.
            state.is_dirty = true;
            if queue.is_some() {
                state.left_queue = phys.queue;
            }
        }
        let queue = queue.filter(|_| !is_outdated).unwrap_or_else(|| {
            // Nobody knows what it has not come to: it is given up. A queue that cannot be read is
            // left behind.
            if phys.state == ScanPhys::STATE_SCANNING {
                phys.state = ScanPhys::STATE_CANCELED;
            }
            phys.queue = ObjectId::ZERO;
            BTreeMap::new()
        });
        let is_ours = matches!(
            phys.function,
            ScanPhys::FUNCTION_SCRUB | ScanPhys::FUNCTION_RESILVER
        );
        if phys.state == ScanPhys::STATE_SCANNING && (is_short || !is_ours) {
            // Of a release whose places are not ours.
            phys.state = ScanPhys::STATE_CANCELED;
        }
        if phys.state == ScanPhys::STATE_SCANNING {
            leave_out_tables(&mut phys);
        }
        state.disk_queue = queue.clone();
        state.current = Position { phys, queue };
        state.stored = state.current.clone();
        Ok(())
    }

    /// The object that holds the queue of datasets of what is stored.
    pub fn stored_queue(value: &ZapValue) -> ObjectId {
        // The third word.
        ObjectId::new(value.to_u64s().get(2).copied().unwrap_or(0))
    }

    /// Goes on with what was loaded; the pool is open.
    pub(crate) fn start(scans: &Scans) {
        let scan = &scans.scan;
        if scan.state.lock().current.is_running() {
            scan.begin_run(scans, None);
            let times = scans.spa.txg_times.times();
            let mut state = scan.state.lock();
            let phys = state.current.phys;
            // What was written before it began is in earlier groups than those that one of all
            // leaves out.
            let before_s = phys.start_time_seconds.saturating_sub(LIMIT_SLACK_S);
            let noted = times.until(before_s);
            state.is_limited = noted.is_some_and(|noted| phys.max_txg <= noted.txg);
            if state.current.is_paused() {
                state.run.pause_s = now_s(scans);
            }
        }
        let own = Arc::downgrade(scan);
        scans
            .spa
            .pipeline
            .frees()
            .set_hook(Box::new(move |pointer| {
                if let Some(scan) = own.upgrade()
                    && let Some(blocks) = &*scan.blocks.read()
                {
                    blocks.freed(pointer);
                }
            }));
        let own = Arc::downgrade(scan);
        let sharing = scans.spa.pipeline.sharing();
        sharing.set_hook(Box::new(move |objset, pointer| {
            if let Some(scan) = own.upgrade() {
                scan.shared(objset, pointer);
            }
        }));
        scan.tell();
    }

    /// Blocks that wait to be read at the same time, at most: the place is stored when none does.
    pub fn set_queue_blocks_max(&self, blocks: usize) {
        self.queue_blocks_max
            .store(blocks.max(1), Ordering::Relaxed);
    }

    /// Bytes that the blocks take in memory, roughly, that wait to be read.
    pub fn memory_bytes(&self) -> u64 {
        let blocks = self.blocks.read().clone();
        blocks.map_or(0, |blocks| {
            blocks.queue.memory_bytes() + blocks.again.memory_bytes()
        })
    }

    /// Up to which txg the last scrub came that was finished.
    pub fn last_scrubbed_txg(&self) -> Txg {
        self.state.lock().last_scrubbed_txg
    }

    fn tell(&self) {
        let state = self.state.lock();
        let now = (state.current.is_running(), state.current.is_paused());
        self.active.send_if_modified(|active| {
            let is_new = *active != now;
            *active = now;
            is_new
        });
    }

    /// Readies what a scan counts since it began, with the devices that were in use then, or since
    /// it was continued after an import.
    fn begin_run(&self, scans: &Scans, uses: Option<Uses>) {
        let is_continued = uses.is_none();
        let blocks = Blocks::new(scans.spa.pipeline.clone(), scans.spa.errors.clone());
        *self.blocks.write() = Some(blocks);
        scans.spa.errors.begin_scrub();
        if let Some(uses) = uses {
            scans.spa.dirty_times.note_uses(uses);
        }
        let mut state = self.state.lock();
        state.run = Run {
            base: state.current.phys,
            is_continued,
            repaired_before: repaired_bytes(scans),
            repaired_by_device: (scans.spa.tree.leaves().iter())
                .map(|leaf| (leaf.guid(), leaf.counters().scan_repaired_bytes))
                .collect(),
            start_s: now_s(scans),
            ..Run::default()
        };
        let at = &state.current;
        state.is_walked = at.phys.bookmark.objset == DESTROYED && at.queue.is_empty();
        state.is_clearing = false;
    }

    /// Brings the numbers of a position up to date.
    fn count(&self, scans: &Scans, state: &mut State) {
        let Some(blocks) = self.blocks.read().clone() else {
            return;
        };
        let (base, numbers) = (&state.run.base, &blocks.numbers);
        let repaired = repaired_bytes(scans).saturating_sub(state.run.repaired_before);
        let phys = &mut state.current.phys;
        phys.examined_bytes = base
            .examined_bytes
            .saturating_add(get(&numbers.found_bytes));
        phys.skipped_bytes = base
            .skipped_bytes
            .saturating_add(get(&numbers.skipped_bytes));
        phys.processed_bytes = base.processed_bytes.saturating_add(repaired);
        phys.errors = base.errors.saturating_add(get(&numbers.errors));
    }

    /// For people.
    pub fn status(&self, scans: &Scans) -> Option<ScanStatus> {
        if let Some(status) = self.read_only.status() {
            return Some(status);
        }
        let mut state = self.state.lock();
        if !state.is_known {
            return None;
        }
        // Of a pool that is only read, nothing goes on with it.
        let is_running = state.current.is_running() && !scans.spa.read_only;
        if is_running {
            self.count(scans, &mut state);
        }
        let phys = &state.current.phys;
        let function = match phys.function {
            ScanPhys::FUNCTION_SCRUB => ScanFunction::Scrub,
            ScanPhys::FUNCTION_RESILVER => ScanFunction::Resilver,
            _ => return None,
        };
        let scan_state = match phys.state {
            ScanPhys::STATE_SCANNING => ScanState::Scanning,
            ScanPhys::STATE_FINISHED => ScanState::Finished,
            ScanPhys::STATE_CANCELED => ScanState::Canceled,
            _ => return None,
        };
        let (run, blocks) = (&state.run, self.blocks.read().clone());
        let issued = match (&blocks, is_running) {
            (Some(blocks), true) => {
                let before = run
                    .base
                    .examined_bytes
                    .saturating_sub(run.base.skipped_bytes);
                before.saturating_add(get(&blocks.numbers.verified_bytes))
            }
            _ => phys.examined_bytes.saturating_sub(phys.skipped_bytes),
        };
        let elapsed_s = match is_running {
            true => {
                let until_s = if run.pause_s == 0 {
                    now_s(scans)
                } else {
                    run.pause_s
                };
                until_s
                    .saturating_sub(run.start_s)
                    .saturating_sub(run.paused_s)
            }
            false => phys
                .end_time_seconds
                .saturating_sub(phys.start_time_seconds),
        };
        Some(ScanStatus {
            function,
            state: scan_state,
            start_time_s: phys.start_time_seconds,
            end_time_s: phys.end_time_seconds,
            to_examine_bytes: phys.to_examine_bytes.saturating_sub(phys.skipped_bytes),
            examined_bytes: phys.examined_bytes,
            issued_bytes: issued,
            repaired_bytes: phys.processed_bytes,
            errors: phys.errors,
            pause_time_s: run.pause_s,
            elapsed_s,
            verify_only: false,
        })
    }

    /// Bytes that the scan under way has written to a device since it began, or since the import
    /// (`vs_scan_processed`); zero when none is.
    pub fn repaired_on(&self, vdev: &vdev::Vdev) -> u64 {
        let state = self.state.lock();
        if !state.current.is_running() {
            return 0;
        }
        let before = state.run.repaired_by_device.get(&vdev.guid());
        let now = vdev.counters().scan_repaired_bytes;
        now.saturating_sub(before.copied().unwrap_or(0))
    }

    /// What the last scan since the import has done so far.
    pub fn numbers(&self) -> Option<ScrubNumbers> {
        let of_run = || Some(self.blocks.read().as_ref()?.numbers.values());
        self.read_only.numbers().or_else(of_run)
    }

    /// Waits until none is under way; with `paused`, a paused one counts as under way too.
    pub async fn wait(&self, paused: bool) {
        self.read_only.wait(paused).await;
        let mut active = self.active.subscribe();
        let ended = active.wait_for(|(runs, pauses)| !*runs || *pauses && !paused);
        // The sender is in this very value.
        let _ = ended.await;
    }

    /// Lets scans wait where they are, or go on (tunable `zfs_scan_suspend_progress`).
    pub fn set_held(&self, is_held: bool) {
        self.is_held.store(is_held, Ordering::Release);
    }

    /// Whether turns are skipped for now.
    pub fn rests(&self) -> bool {
        self.is_closing.load(Ordering::Acquire) || self.is_held.load(Ordering::Acquire)
    }

    /// Whether a scan is under way, though it may be paused.
    pub fn is_running(&self) -> bool {
        self.state.lock().current.is_running()
    }

    /// The pool is being exported, or stays after all: turns end, or may begin again.
    pub fn set_closing(&self, is_closing: bool) {
        self.is_closing.store(is_closing, Ordering::Release);
    }

    /// What could not be mended is tried once more: somebody did something about it.
    pub fn forget_unmended(&self) {
        self.state.lock().unmended.clear();
    }

    /// The pool is closed: nobody waits any more.
    pub fn closed(&self) {
        self.active.send_replace((false, false));
    }

    /// A dataset is destroyed in this txg; `next` follows a snapshot.
    pub fn destroyed(&self, dataset: ObjectId, next: Option<ObjectId>) {
        self.follow(
            |at| at.destroyed(dataset, next),
            |again| again.destroyed(dataset, next),
        );
    }

    /// A snapshot was taken in this txg.
    pub fn snapshotted(&self, head: ObjectId, snapshot: ObjectId) {
        self.follow(
            |at| at.snapshotted(head, snapshot),
            |again| again.snapshotted(head, snapshot),
        );
    }

    /// Two datasets exchanged what they have in this txg.
    pub fn swapped(&self, a: ObjectId, b: ObjectId) {
        self.follow(|at| at.swapped(a, b), |again| again.swapped(a, b));
    }

    fn follow(&self, change: impl Fn(&mut Position), of_again: impl Fn(&mut Again)) {
        let mut state = self.state.lock();
        if state.current.is_running() {
            of_again(&mut state.again);
            change(&mut state.current);
            let before = state.stored.clone();
            change(&mut state.stored);
            state.is_dirty |= state.stored != before;
        }
    }

    /// Begins a scan, in syncing context (`dsl_scan_setup_sync`). `uses` are from before its txgs
    /// were chosen.
    async fn setup(
        &self,
        scans: &Scans,
        tx: &Tx,
        function: u64,
        (min_txg, max_txg): (Txg, Txg),
        uses: Uses,
    ) -> Result<(), PoolError> {
        scans.error_scrub.give_way(scans, tx).await?;
        let mut phys = ScanPhys {
            function,
            state: ScanPhys::STATE_SCANNING,
            min_txg,
            max_txg,
            start_time_seconds: now_s(scans),
            to_examine_bytes: scans.spa.pipeline.allocator().totals().allocated_bytes,
            ..ScanPhys::default()
        };
        leave_out_tables(&mut phys);
        {
            let mut state = self.state.lock();
            state.is_known = true;
            state.rest.clear();
            state.disk_queue.clear();
            state.current = Position {
                phys,
                queue: BTreeMap::new(),
            };
            state.stored = state.current.clone();
            state.again = Again::default();
            state.is_dirty = true;
            state.is_limited = max_txg < tx.txg() && function == ScanPhys::FUNCTION_SCRUB;
        }
        for leaf in scans.spa.tree.leaves() {
            if let Some(leaf) = leaf.leaf() {
                leaf.dirty_times().take_scan_failed();
                leaf.dirty_times().take_scan_refused();
            }
        }
        self.begin_run(scans, Some(uses));
        scans.spa.identity.mark_dirty();
        let text = format!("func={function} mintxg={min_txg} maxtxg={max_txg}");
        scans.spa.history.internal(tx, "scan setup", text).await;
        match function {
            ScanPhys::FUNCTION_RESILVER => {
                scans.rebuilds.forget_ended();
                let event = Sysevent::ResilverStart;
                scans
                    .spa
                    .events
                    .tell_about(event, None, resilver_type("healing"));
            }
            _ => scans.spa.events.tell(Sysevent::ScrubStart),
        }
        self.tell();
        Ok(())
    }

    /// Ends a scan, in syncing context (`dsl_scan_done`).
    async fn finish(
        &self,
        scans: &Scans,
        ctx: &SyncContext,
        is_whole: bool,
        event: &str,
    ) -> Result<(), PoolError> {
        let tx = &Tx::syncing(ctx.txg);
        let (phys, queue) = {
            let mut state = self.state.lock();
            self.count(scans, &mut state);
            let phys = &mut state.current.phys;
            let queue = std::mem::replace(&mut phys.queue, ObjectId::ZERO);
            phys.flags &= !ScanPhys::FLAG_PAUSED;
            phys.state = match is_whole {
                true => ScanPhys::STATE_FINISHED,
                false => ScanPhys::STATE_CANCELED,
            };
            phys.end_time_seconds = now_s(scans);
            state.current.queue.clear();
            state.disk_queue.clear();
            state.stored = state.current.clone();
            state.again = Again::default();
            state.is_dirty = true;
            state.run.pause_s = 0;
            state.finishes_first = false;
            (state.current.phys, queue)
        };
        let mos = scans.spa.dsl.mos();
        if !queue.is_zero() {
            mos.free(tx, queue).await?;
        }
        let blocks = self.blocks.read().clone();
        let lost = blocks.as_ref().map(|blocks| {
            let _ = blocks.queue.take_all();
            let _ = blocks.again.take_all();
            blocks.lost_txgs.lock().clone()
        });
        let text = format!("errors={}", scans.spa.errors.count());
        scans.spa.history.internal(tx, event, text).await;
        let is_scrub = phys.function == ScanPhys::FUNCTION_SCRUB;
        let before = self.last_scrubbed_txg();
        // (OpenZFS takes the end of any, so that what one by date left out is left out by `-C`.)
        // A scan leaves out the group of its end, so the next one is to read that.
        let goes_on = phys.min_txg.is_zero() || phys.min_txg < before;
        if is_whole && is_scrub && goes_on && before < phys.max_txg {
            let directory = Zap::hold(mos, ObjectId::POOL_DIRECTORY).await?;
            let name = directory::LAST_SCRUBBED_TXG;
            directory.update_u64(tx, name, phys.max_txg.get()).await?;
            self.state.lock().last_scrubbed_txg = phys.max_txg;
        }
        // A resilver of which something failed would have begun anew.
        let knows_all = !is_scrub || !self.state.lock().run.is_continued;
        let lost = lost.unwrap_or_default();
        let unmended = scans.settle_missing(&phys, is_whole && knows_all, &lost);
        self.state.lock().unmended = unmended;
        self.end_deferral(scans, ctx).await?;
        // One that left out blocks says nothing of what is known of them.
        let is_of_all = phys.min_txg.is_zero() && !self.state.lock().is_limited;
        scans
            .spa
            .errors
            .end_scrub(is_whole && is_scrub && is_of_all);
        match (is_whole, is_scrub) {
            (true, true) => scans.spa.events.tell(Sysevent::ScrubFinish),
            (true, false) => {
                let event = Sysevent::ResilverFinish;
                scans
                    .spa
                    .events
                    .tell_about(event, None, resilver_type("healing"));
            }
            (false, true) => scans.spa.events.tell(Sysevent::ScrubAbort),
            // The next one starts at once.
            (false, false) => {}
        }
        tracing::info!(?phys, is_whole, "a scan ended");
        self.tell();
        Ok(())
    }

    /// Begins the resilver that is needed, if one is, in syncing context. A scrub ends for it; a
    /// resilver under way goes on, or begins anew: see [`defer`].
    async fn begin_resilver(&self, scans: &Scans, ctx: &SyncContext) -> Result<(), PoolError> {
        let txg = ctx.txg;
        let (is_running, is_resilvering, is_asked_for, finishes_first, restarts) = {
            let state = self.state.lock();
            let at = &state.current;
            let is_resilvering = at.is_running() && at.is_resilver();
            // What could not be mended before the import is not known.
            let restarts = is_resilvering && state.run.base.errors > 0 && at.phys.errors > 0;
            (
                at.is_running(),
                is_resilvering,
                state.is_asked_for,
                state.finishes_first && !at.is_paused(),
                restarts,
            )
        };
        if finishes_first && !is_asked_for {
            return Ok(());
        }
        if is_resilvering && !is_asked_for && !restarts {
            let later = {
                let state = self.state.lock();
                resilver::later(
                    &scans.spa.tree,
                    &state.unmended,
                    txg,
                    state.current.phys.max_txg,
                )
            };
            if later.is_empty() || self.defer(scans, ctx, &later).await? {
                return Ok(());
            }
        }
        if scans.is_rebuilding() {
            return Ok(());
        }
        let uses = uses_of(scans.spa.tree.leaves());
        let Some(range) = self.needed_resilver(scans, txg, When::Now) else {
            return Ok(());
        };
        if is_running {
            let event = "scan aborted, restarting";
            self.finish(scans, ctx, false, event).await?;
        }
        self.state.lock().is_asked_for = false;
        let tx = Tx::syncing(txg);
        self.setup(scans, &tx, ScanPhys::FUNCTION_RESILVER, range, uses)
            .await
    }

    /// Whether a resilver is to begin, now or when a few txgs have passed.
    pub fn is_resilver_due(&self, scans: &Scans) -> bool {
        self.is_resilver_due_by(scans, When::Later)
    }

    fn is_resilver_due_by(&self, scans: &Scans, when: When) -> bool {
        let is_resilvering = {
            let state = self.state.lock();
            state.current.is_running() && state.current.is_resilver()
        };
        !is_resilvering
            && !scans.is_rebuilding()
            && self
                .needed_resilver(scans, scans.spa.txgs.open_txg(), when)
                .is_some()
    }

    /// The txgs that devices lack which can be resilvered.
    fn needed_resilver(&self, scans: &Scans, txg: Txg, when: When) -> Option<(Txg, Txg)> {
        let state = self.state.lock();
        resilver::needed(&scans.spa.tree, &state.unmended, txg, when)
    }

    /// The turn in the first pass of a transaction group.
    pub(crate) async fn turn(&self, scans: &Scans, pass: &Pass<'_>) -> Result<(), PoolError> {
        let tx = pass.tx;
        let is_early = {
            let state = self.state.lock();
            pass.ctx.txg.get() < state.first_txg.get().saturating_add(TXGS_AFTER_IMPORT)
        };
        let is_closing = self.is_closing.load(Ordering::Acquire);
        if !is_early && !is_closing {
            self.begin_resilver(scans, pass.ctx).await?;
            // What is being destroyed is in no dataset, and is sooner freed than read
            // (`dsl_process_async_destroys`).
            // But what is to be looked at again is: until then the scan is stored at its begin.
            let is_destroying = scans.spa.dsl.destroyer().has_work();
            if self.state.lock().is_active() && !self.rests() {
                self.work(scans, pass, is_destroying).await?;
            }
        }
        self.store(scans, tx).await
    }

    /// Walks and reads until the turn is over; does not walk while it is `put_off`.
    async fn work(&self, scans: &Scans, pass: &Pass<'_>, put_off: bool) -> Result<(), PoolError> {
        let txg = pass.ctx.txg;
        let Some(blocks) = self.blocks.read().clone() else {
            return Ok(());
        };
        let Some(origin) = scans.spa.dsl.directories().origin_object() else {
            // Pools before version 11; they are only scrubbed when imported read-only.
            return self.finish(scans, pass.ctx, false, "scan cancelled").await;
        };
        let tasks = scans.spa.pipeline.tasks().group();
        let is_resilver = self.state.lock().current.is_resilver();
        let read = match is_resilver {
            true => ScanRead::Resilver,
            false => ScanRead::Scrub,
        };
        let share = self.share().filter(|_| !is_resilver);
        let is_over = self.turn_of(scans, txg, usize::from(is_resilver), 1);
        // However much there is to look at again, the walk goes on.
        let is_half_over = self.turn_of(scans, txg, usize::from(is_resilver), 2);
        let max = self.queue_blocks_max.load(Ordering::Relaxed);
        loop {
            let has_more = {
                let state = self.state.lock();
                !state.is_walked || !blocks.queue.is_empty()
            };
            let until = match has_more && !put_off {
                true => &is_half_over,
                false => &is_over,
            };
            self.look_again(scans, &blocks, read, &tasks, (until, max))
                .await?;
            if put_off {
                let mut state = self.state.lock();
                self.count(scans, &mut state);
                return Ok(());
            }
            let (is_walked, is_clearing) = {
                let state = self.state.lock();
                (state.is_walked, state.is_clearing)
            };
            if !is_walked && !is_clearing {
                let (own, over) = (blocks.clone(), is_over.clone());
                let visit = Visit {
                    blocks: &blocks,
                    mos: scans.spa.dsl.mos(),
                    mos_root: scans.spa.dsl.root_bp(),
                    origin,
                    tasks: &tasks,
                    is_over: Arc::new(move || over() || own.queue.len() >= max),
                };
                let mut at = self.state.lock().current.clone();
                let done = visit.go_on(&mut at).await?;
                let mut state = self.state.lock();
                state.current = at;
                state.is_walked = done;
                state.is_clearing = done || blocks.queue.len() >= max;
            }
            if self.state.lock().is_clearing {
                {
                    // All of it has been read when that is over.
                    let _sharing = Sharing::new(&scans.spa.tree, share);
                    blocks.issue(&blocks, read, &tasks, &is_over).await;
                }
                if blocks.queue.is_empty() {
                    self.reach(scans);
                    let is_done = {
                        let state = self.state.lock();
                        state.is_walked && !self.is_again(&state)
                    };
                    if is_done {
                        return self.finish(scans, pass.ctx, true, "scan done").await;
                    }
                }
            }
            if is_over() || tasks.is_cancelled() {
                let mut state = self.state.lock();
                self.count(scans, &mut state);
                return Ok(());
            }
        }
    }

    /// Everything up to the walk's place was read.
    fn reach(&self, scans: &Scans) {
        let failed = |leaf: &vdev::Leaf| !leaf.dirty_times().scan_failed().is_empty();
        let leaves = scans.spa.tree.leaves();
        let has_failed = leaves
            .iter()
            .filter_map(|vdev| vdev.leaf())
            .any(|leaf| failed(leaf));
        let mut state = self.state.lock();
        self.count(scans, &mut state);
        state.stored = state.current.clone();
        if has_failed && state.current.is_resilver() {
            // After a crash nobody knows which: a resilver begins anew then.
            let errors = &mut state.stored.phys.errors;
            *errors = (*errors).max(1);
        }
        state.is_clearing = false;
        state.is_dirty = true;
    }

    /// Says when a turn is over, or one part of so many.
    fn turn_of(&self, scans: &Scans, txg: Txg, which: usize, parts: u32) -> IsOver {
        let clock = scans.spa.world.clock.clone();
        let (txgs, pipeline) = (scans.spa.txgs.clone(), scans.spa.pipeline.clone());
        let start_ns = clock.monotonic_ns();
        let scan = scans.scan.clone();
        Arc::new(move || {
            if scan.rests() || pipeline.suspension().error().is_some() {
                return true;
            }
            let passed = Duration::from_nanos(clock.monotonic_ns().saturating_sub(start_ns));
            let passed = passed.saturating_mul(parts);
            passed >= TURN_WAITED_FOR[which] && (txgs.is_waited_for(txg) || txgs.is_much_dirty())
                || passed >= TURN[which] && txgs.is_open_used()
                || passed >= TURN_MAX
        })
    }

    /// Stores what changed.
    async fn store(&self, scans: &Scans, tx: &Tx) -> Result<(), PoolError> {
        let (mut stored, disk_queue, rest, left) = {
            let mut state = self.state.lock();
            let at_begin = self.is_again(&state);
            let before = std::mem::replace(&mut state.is_stored_at_begin, at_begin);
            if !std::mem::take(&mut state.is_dirty) && before == at_begin {
                return Ok(());
            }
            let stored = match at_begin {
                true => state.stored.at_begin(),
                false => state.stored.clone(),
            };
            let left = std::mem::replace(&mut state.left_queue, ObjectId::ZERO);
            (stored, state.disk_queue.clone(), state.rest.clone(), left)
        };
        let mos = scans.spa.dsl.mos();
        if !left.is_zero()
            && let Ok(queue) = mos.hold(left).await
            && queue.info().object_type == ObjectType::SCAN_QUEUE
        {
            mos.free(tx, left).await?;
        }
        if stored.is_running() {
            let zap = match stored.phys.queue.is_zero() {
                true => Zap::create(mos, tx, ZapOptions::new(ObjectType::SCAN_QUEUE)).await?,
                false => Zap::hold(mos, stored.phys.queue).await?,
            };
            stored.phys.queue = zap.id();
            for dataset in disk_queue.keys() {
                if !stored.queue.contains_key(dataset) {
                    zap.remove_int(tx, *dataset).await?;
                }
            }
            for (dataset, txg) in &stored.queue {
                if disk_queue.get(dataset) != Some(txg) {
                    zap.update_int(tx, *dataset, *txg).await?;
                }
            }
        }
        let directory = Zap::hold(mos, ObjectId::POOL_DIRECTORY).await?;
        let words = [stored.phys.to_words(), rest].concat();
        let value = ZapValue::from_u64s(&words);
        directory.update(tx, directory::SCAN, value).await?;
        let mut state = self.state.lock();
        state.current.phys.queue = stored.phys.queue;
        state.stored.phys.queue = stored.phys.queue;
        state.disk_queue = stored.queue;
        Ok(())
    }
}

impl Scan {
    fn has_work_by(&self, scans: &Scans, when: When) -> bool {
        if self.is_closing.load(Ordering::Acquire) || scans.spa.read_only {
            return false;
        }
        let (is_active, is_dirty, finishes_first) = {
            let state = self.state.lock();
            let is_active = state.is_active();
            (is_active, state.is_dirty, is_active && state.finishes_first)
        };
        let is_due = || !finishes_first && self.is_resilver_due_by(scans, when);
        is_active && !self.rests() || is_dirty || is_due()
    }
}

impl Scan {
    /// Whether it needs a transaction group although nobody asked for one.
    pub(crate) fn has_work(&self, scans: &Scans) -> bool {
        self.has_work_by(scans, When::Later)
    }

    /// A transaction group is on disk.
    pub(crate) fn done(&self, scans: &Scans) {
        // A device that failed lately has time.
        if self.has_work_by(scans, When::Soon) {
            scans.spa.txgs.go_on();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(words: &[u64]) -> Scan {
        load_after(words, false)
    }

    fn load_after(words: &[u64], is_outdated: bool) -> Scan {
        let scan = Scan::default();
        let (value, queue) = (ZapValue::from_u64s(words), Some(BTreeMap::new()));
        scan.load(Some(&value), queue, Txg::ZERO, Txg::new(9), is_outdated)
            .expect("any number of words");
        scan
    }

    /// Goal: scans of older and newer releases are read, and what we do not know of them is kept.
    #[test]
    fn scans_of_other_releases_are_read() {
        let mut words = vec![0; WORDS + 2];
        (words[0], words[1], words[13]) = (ScanPhys::FUNCTION_SCRUB, ScanPhys::STATE_SCANNING, 3);
        // It was walking its dedup tables, which are not walked here.
        (words[14], words[15]) = (2, 1);
        words[WORDS + 1] = 7;
        let newer = load(&words);
        let state = newer.state.lock();
        let phys = &state.current.phys;
        assert!(state.is_active());
        assert_eq!((phys.errors, &state.rest[..]), (3, &[0, 7][..]));
        assert!(phys.ddt_bookmark.class > phys.ddt_class_max);
        // Software that knows nothing of it had the pool since.
        words[2] = 5;
        let outdated = load_after(&words, true);
        let state = outdated.state.lock();
        assert!(!state.is_active() && state.is_dirty);
        assert_eq!(state.left_queue, ObjectId::new(words[2]));
        assert!(state.stored.phys.queue.is_zero());
        drop(state);
        // A place in fewer words is not understood.
        let older = load(&words[..14]);
        let state = older.state.lock();
        assert!(!state.is_active());
        assert_eq!(state.current.phys.errors, 3);
        assert!(load(&[]).state.lock().is_known);
        // Nor is something else than a scrub or resilver.
        words[0] = 9;
        assert!(!load(&words).state.lock().is_active());
    }
}
