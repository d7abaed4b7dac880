//! Scrubbing: verifying every copy of every block of a pool.
//!
//! ```text
//!   MOS, datasets -> walk (8 tasks) -> batches -> issue: per vdev, by offset (32 tasks each)
//! ```
//!
//! [`walk`] finds the blocks, [`issue`] verifies them with [`zio::pipeline::Reader::scrub`], which reads all
//! copies, mirror children and parity. Errors are counted where OpenZFS counts them: wrong data at the leaf that returned it;
//! blocks without a good copy in the pool's error log, by whose block they are. Only pools that were
//! imported read-only can be scrubbed so far: there the blocks stand still, and nothing is written.
//!
//! # Bounds
//! Blocks wait in at most three batches (some 60 MB), what is read and not yet verified is at most
//! [`IN_FLIGHT_BYTES_MAX`], and the leaves' queues bound scrub reads on their own, so that who uses the pool meanwhile
//! is served first.
//!
//! # Ownership and locks
//! [`Scrub`] belongs to the pool and knows the last run. A [`Run`] is shared by its tasks; its
//! numbers are atomics, its times behind a lock that is held for a few instructions. A pause lets what is being read
//! end. Closing the pool stops the run and waits for its tasks ([`Scrub::end`]). They are a group ([`device::Tasks`]): when
//! one panics, all end, and the pool is suspended.
//!
//! # What a crash leaves
//! Nothing: a scrub of a read-only pool is forgotten with the import.

mod issue;
mod walk;

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use device::{Tasks, World};
use format::Bookmark;
use format::{BlockPointer, Txg};
use futures::future::join;
use parking_lot::Mutex;
use tokio::sync::{Semaphore, mpsc, watch};
use vdev::Priority;
use zio::{CacheUse, Pipeline, ReadContext, ZioError};

use crate::core::Core;
use crate::errors::ErrorLog;
use crate::events::{Events, Sysevent};
use crate::{PoolError, ScanFunction, ScanState, ScanStatus};

/// Bytes that are read and not yet verified, at most.
const IN_FLIGHT_BYTES_MAX: u64 = 128 << 20;
/// In-flight bytes are counted in pieces of this size.
const PIECE_BYTES: u64 = 1 << 10;

/// What to do with a pool's scrub.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ScrubCommand {
    /// Start it, or go on with a paused one.
    Start,
    /// Pause it.
    Pause,
    /// Stop it.
    Stop,
}

/// What a scrub has done, in numbers. Blocks and bytes are counted by pointer: all copies of one, with parity.
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

/// A block that was found and is to be verified.
struct Found {
    bp: BlockPointer,
    bookmark: Bookmark,
    /// Of an intent log: the last one of a chain may not have been written.
    is_log: bool,
}

impl Found {
    fn is_same_block(&self, other: &Found) -> bool {
        self.bp.same_block(&other.bp) && self.bp.psize_bytes() == other.bp.psize_bytes()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Running,
    Paused,
    Stopped,
}

/// When what happened, in seconds since the epoch; zero is never.
#[derive(Debug, Clone, Copy, Default)]
struct Times {
    start_s: u64,
    end_s: u64,
    /// Since when it is paused.
    pause_s: u64,
    /// Seconds spent paused.
    paused_s: u64,
    /// It ended because it was stopped.
    canceled: bool,
}

/// A scrub under way, or the last one.
struct Run {
    world: World,
    tasks: Tasks,
    pipeline: Arc<Pipeline>,
    errors: Arc<ErrorLog>,
    events: Arc<Events>,
    /// First txg after the state that is scrubbed.
    first_txg: Txg,
    to_examine_bytes: u64,
    state: watch::Sender<State>,
    times: Mutex<Times>,
    in_flight: Semaphore,
    found_blocks: AtomicU64,
    found_bytes: AtomicU64,
    embedded_blocks: AtomicU64,
    verified_blocks: AtomicU64,
    verified_bytes: AtomicU64,
    shared_blocks: AtomicU64,
    shared_bytes: AtomicU64,
    datasets: AtomicU64,
    error_count: AtomicU64,
    ended: watch::Sender<bool>,
}

fn add(counter: &AtomicU64, number: u64) {
    counter.fetch_add(number, Ordering::Relaxed);
}

impl Run {
    fn now_s(&self) -> u64 {
        self.world.clock.wall_ns() / 1_000_000_000
    }

    fn is_stopped(&self) -> bool {
        *self.state.borrow() == State::Stopped
    }

    fn is_ended(&self) -> bool {
        *self.ended.borrow()
    }

    /// Waits while it is paused; false when it was stopped.
    async fn go_on(&self) -> bool {
        match *self.state.borrow() {
            State::Running => return true,
            State::Stopped => return false,
            State::Paused => {}
        }
        let mut changes = self.state.subscribe();
        let state = changes.wait_for(|state| *state != State::Paused).await;
        // The sender is in this very value.
        state.is_ok_and(|state| *state == State::Running)
    }

    /// Counts a block, unless there is none or an older snapshot has it; says whether it counts.
    fn meet(&self, bp: &BlockPointer, after: Txg) -> bool {
        if bp.is_hole() || bp.is_redacted() || bp.birth() <= after {
            return false;
        }
        add(&self.found_blocks, 1);
        add(&self.found_bytes, bp.asize_bytes());
        if bp.is_embedded() {
            add(&self.embedded_blocks, 1);
        }
        true
    }

    /// Notes damage; the block it is in was written in `birth`.
    fn note_lost(&self, bookmark: Bookmark, birth: Txg, why: &str) {
        tracing::error!(
            ?bookmark,
            why,
            "a scrub found damage that cannot be repaired"
        );
        add(&self.error_count, 1);
        self.errors.add(bookmark, birth);
    }

    fn note_error(&self, bookmark: Bookmark, why: &str) {
        self.note_lost(bookmark, Txg::ZERO, why);
    }

    fn note_verified(&self, bp: &BlockPointer) {
        add(&self.verified_blocks, 1);
        add(&self.verified_bytes, bp.asize_bytes());
    }

    /// Place for a block's bytes in memory; a bigger one than all of it gets all of it.
    async fn place(&self, bp: &BlockPointer) -> Option<tokio::sync::SemaphorePermit<'_>> {
        let bytes = bp.asize_bytes().clamp(PIECE_BYTES, IN_FLIGHT_BYTES_MAX);
        self.in_flight
            .acquire_many((bytes / PIECE_BYTES) as u32)
            .await
            .ok()
    }

    fn context(bookmark: Bookmark, is_log: bool) -> ReadContext {
        ReadContext {
            // What cannot be decrypted is verified by its checksum.
            without_key: true,
            bookmark,
            priority: Priority::Scrub,
            cache: CacheUse::Bypass,
            speculative: is_log,
        }
    }

    /// Verifies a block; whether a copy is good.
    async fn verify(&self, found: &Found) -> bool {
        let _place = self.place(&found.bp).await;
        let context = Self::context(found.bookmark, found.is_log);
        let result = self.pipeline.reader().scrub(&found.bp, &context).await;
        self.note_verified(&found.bp);
        match result {
            Ok(_) => true,
            Err(_) if found.is_log => true,
            Err(error) => {
                let birth = found.bp.physical_birth();
                self.note_lost(found.bookmark, birth, &error.to_string());
                false
            }
        }
    }

    /// The same block as one that was verified, for somebody else.
    fn share(&self, found: &Found, good: bool) {
        self.note_verified(&found.bp);
        add(&self.shared_blocks, 1);
        add(&self.shared_bytes, found.bp.asize_bytes());
        if !good {
            let birth = found.bp.physical_birth();
            self.note_lost(found.bookmark, birth, "no copy of a shared block is good");
        }
    }

    /// Verifies a block that leads to others, and gives it if it can be understood.
    async fn verify_and_read(&self, bp: &BlockPointer, bookmark: Bookmark) -> Option<Bytes> {
        let found = self.read(bp, bookmark).await;
        self.note_verified(bp);
        found
    }

    /// The same for one that is not counted.
    async fn read(&self, bp: &BlockPointer, bookmark: Bookmark) -> Option<Bytes> {
        let _place = self.place(bp).await;
        let context = Self::context(bookmark, false);
        let result = self.pipeline.reader().scrub_and_read(bp, &context).await;
        result
            .inspect_err(|error: &ZioError| {
                self.note_lost(bookmark, bp.physical_birth(), &error.to_string());
            })
            .ok()
    }

    fn numbers(&self) -> ScrubNumbers {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        ScrubNumbers {
            found_blocks: get(&self.found_blocks),
            found_bytes: get(&self.found_bytes),
            embedded_blocks: get(&self.embedded_blocks),
            verified_blocks: get(&self.verified_blocks),
            verified_bytes: get(&self.verified_bytes),
            shared_blocks: get(&self.shared_blocks),
            shared_bytes: get(&self.shared_bytes),
            datasets: get(&self.datasets),
            errors: get(&self.error_count),
        }
    }

    fn status(&self) -> ScanStatus {
        let numbers = self.numbers();
        let times = *self.times.lock();
        let state = match (self.is_ended(), times.canceled) {
            (false, _) => ScanState::Scanning,
            (true, false) => ScanState::Finished,
            (true, true) => ScanState::Canceled,
        };
        let until_s = match (self.is_ended(), times.pause_s) {
            (true, _) => times.end_s,
            (false, 0) => self.now_s(),
            (false, paused) => paused,
        };
        let elapsed_s = until_s.saturating_sub(times.start_s);
        ScanStatus {
            function: ScanFunction::Scrub,
            state,
            start_time_s: times.start_s,
            end_time_s: times.end_s,
            to_examine_bytes: self.to_examine_bytes,
            examined_bytes: numbers.found_bytes,
            issued_bytes: numbers.verified_bytes,
            repaired_bytes: 0,
            errors: numbers.errors,
            pause_time_s: times.pause_s,
            elapsed_s: elapsed_s.saturating_sub(times.paused_s),
            verify_only: true,
        }
    }

    /// Everything, from the MOS's root.
    async fn scrub(self: Arc<Self>, root: BlockPointer) {
        let mut ending = Ending {
            run: &self,
            is_whole: false,
        };
        let (send, mut batches) = mpsc::channel(1);
        let walk = walk::Walk::new(self.clone(), root, send);
        let walkers = self.tasks.group();
        for _ in 0..walk::WALKERS {
            let walk = walk.clone();
            walkers.spawn("scrub", async move { walk.work().await });
        }
        let walking = async {
            walkers.wait().await;
            walk.finish().await;
            // With this the channel ends.
            drop(walk);
        };
        let issuing = async {
            while let Some(batch) = batches.recv().await {
                if self.is_stopped() {
                    break;
                }
                issue::issue(&self, batch).await;
            }
            // Who still has something for it is told that nobody takes it.
            drop(batches);
        };
        join(walking, issuing).await;
        // A walker that panicked leaves the channel as one that has finished.
        ending.is_whole = !self.is_stopped() && !self.tasks.is_cancelled();
    }
}

/// The end of a run, whichever way it comes: also by a panic, or because its tasks were cancelled.
struct Ending<'a> {
    run: &'a Run,
    is_whole: bool,
}

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        let run = self.run;
        {
            let mut times = run.times.lock();
            times.end_s = run.now_s();
            times.canceled = !self.is_whole;
        }
        run.errors.end_scrub(self.is_whole);
        run.events.tell(match self.is_whole {
            true => Sysevent::ScrubFinish,
            false => Sysevent::ScrubAbort,
        });
        tracing::info!(numbers = ?run.numbers(), is_whole = self.is_whole, "a scrub ended");
        run.ended.send_replace(true);
    }
}

/// A pool's scrub.
#[derive(Default)]
pub(crate) struct Scrub {
    last: Mutex<Option<Arc<Run>>>,
}

impl Scrub {
    fn last(&self) -> Option<Arc<Run>> {
        self.last.lock().clone()
    }

    /// The one that has not ended.
    fn active(&self) -> Option<Arc<Run>> {
        self.last().filter(|run| !run.is_ended())
    }

    /// How the last one stands or ended; `None` before the first since the import.
    pub(crate) fn status(&self) -> Option<ScanStatus> {
        self.last().map(|run| run.status())
    }

    pub(crate) fn numbers(&self) -> Option<ScrubNumbers> {
        self.last().map(|run| run.numbers())
    }

    /// Waits until none is under way; with `paused`, a paused one counts as under way too.
    pub(crate) async fn wait(&self, paused: bool) {
        let Some(run) = self.active() else { return };
        let mut ended = run.ended.subscribe();
        let mut state = run.state.subscribe();
        let ends = pin!(ended.wait_for(|ended| *ended));
        if paused {
            let _ = ends.await;
            return;
        }
        let pauses = pin!(state.wait_for(|state| *state == State::Paused));
        futures::future::select(ends, pauses).await;
    }

    /// Stops it and waits until nothing of it is left; by `force`, of reads under way too, which a device may never answer.
    pub(crate) async fn end(&self, force: bool) {
        if let Some(run) = self.active() {
            run.state.send_replace(State::Stopped);
            if force {
                run.tasks.cancel();
            }
            self.wait(true).await;
        }
    }

    /// Stops it; its tasks end by themselves.
    pub(crate) fn abandon(&self) {
        if let Some(run) = self.active() {
            run.state.send_replace(State::Stopped);
        }
    }
}

/// Carries out a command on a pool's scrub.
pub(crate) fn command(core: &Core, command: ScrubCommand) -> Result<(), PoolError> {
    let mut last = core.scrub.last.lock();
    let active = last.clone().filter(|run| !run.is_ended());
    let pool = || core.identity.name();
    match (command, active) {
        (ScrubCommand::Start, Some(run)) => {
            let mut times = run.times.lock();
            if *run.state.borrow() != State::Paused {
                return Err(PoolError::ScrubActive { pool: pool() });
            }
            let paused = run.now_s().saturating_sub(times.pause_s);
            times.paused_s += paused;
            times.pause_s = 0;
            core.events.tell(Sysevent::ScrubResume);
            run.state.send_replace(State::Running);
            Ok(())
        }
        (ScrubCommand::Start, None) => {
            if !core.read_only {
                return Err(PoolError::ScrubForWrite { pool: pool() });
            }
            core.events.tell(Sysevent::ScrubStart);
            *last = Some(start(core));
            Ok(())
        }
        (ScrubCommand::Pause, Some(run)) => {
            let mut times = run.times.lock();
            match *run.state.borrow() {
                State::Running => {}
                State::Paused => return Err(PoolError::ScrubPaused { pool: pool() }),
                State::Stopped => return Err(PoolError::NoScrub { pool: pool() }),
            }
            times.pause_s = run.now_s();
            run.state.send_replace(State::Paused);
            core.events.tell(Sysevent::ScrubPaused);
            Ok(())
        }
        (ScrubCommand::Stop, Some(run)) => {
            run.state.send_replace(State::Stopped);
            Ok(())
        }
        (ScrubCommand::Pause | ScrubCommand::Stop, None) => {
            Err(PoolError::NoScrub { pool: pool() })
        }
    }
}

fn start(core: &Core) -> Arc<Run> {
    let (synced, checkpoint) = {
        let state = core.state.lock();
        (state.uberblock.txg, state.uberblock.checkpoint_txg)
    };
    // Where nothing may be claimed (`spa_min_claim_txg`, module/zfs/spa_misc.c).
    let first_txg = if checkpoint.is_zero() {
        synced
    } else {
        checkpoint
    }
    .next();
    let run = Arc::new(Run {
        world: core.world.clone(),
        tasks: core.pipeline.tasks().group(),
        pipeline: core.pipeline.clone(),
        errors: core.errors.clone(),
        events: core.events.clone(),
        first_txg,
        to_examine_bytes: core.pipeline.allocator().totals().allocated_bytes,
        state: watch::Sender::new(State::Running),
        times: Mutex::default(),
        in_flight: Semaphore::new((IN_FLIGHT_BYTES_MAX / PIECE_BYTES) as usize),
        found_blocks: AtomicU64::new(0),
        found_bytes: AtomicU64::new(0),
        embedded_blocks: AtomicU64::new(0),
        verified_blocks: AtomicU64::new(0),
        verified_bytes: AtomicU64::new(0),
        shared_blocks: AtomicU64::new(0),
        shared_bytes: AtomicU64::new(0),
        datasets: AtomicU64::new(0),
        error_count: AtomicU64::new(0),
        ended: watch::Sender::new(false),
    });
    run.times.lock().start_s = run.now_s();
    core.errors.begin_scrub();
    let task = run.clone().scrub(core.dsl.root_bp());
    run.tasks.spawn("scrub", task);
    run
}
