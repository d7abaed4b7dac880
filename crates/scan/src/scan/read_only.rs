//! Scrubs of pools that were imported read-only: there the blocks stand still, and nothing is
//! written.
//!
//! ```text
//!   MOS, then datasets -> walks (8 tasks) -> a queue of blocks -> issued by vdev and offset
//! ```
//!
//! The walks fill one queue while what the one before had is read. Every dataset of the MOS is
//! walked from the snapshot before it on (`traverse_pool`, module/zfs/dmu_traverse.c): so clones,
//! snapshots, datasets that are being destroyed and hidden ones need no rules of their own.
//!
//! # Ownership and locks
//! [`Scrub`] belongs to the pool and knows the last run. A [`Run`] is shared by its tasks; its
//! times are behind a lock that is held for a few instructions. A pause lets what is being read
//! end. Closing the pool stops the run and waits for its tasks ([`Scrub::end`]). They are a group
//! ([`device::Tasks`]): when one panics, all end, and the pool is suspended.
//!
//! # What a crash leaves
//! Nothing: a scrub of a read-only pool is forgotten with the import.

use std::pin::pin;
use std::sync::Arc;

use bytes::Bytes;
use device::{BoxFuture, Tasks, World};
use format::{
    BlockPointer, Bookmark, DnodePhys, DslDatasetPhys, Endian, ObjectId, ObjectType, ObjsetId, Txg,
};
use object::{Met, Traverse, Traversed, Visitor, traverse};
use parking_lot::Mutex;
use spa::PoolError;
use spa::events::{Events, Sysevent};
use tokio::sync::watch;
use vdev::ScanRead;
use zio::ZioError;

use super::blocks::{Blocks, Wanted, add};
use super::cost::ScanCosts;
use super::queue::Queue;
use super::visit::visit_log;
use super::{ScrubCommand, ScrubNumbers};
use crate::{ScanFunction, ScanState, ScanStatus, Scans};

/// Blocks that wait to be read, about 200 bytes each; there are two such queues.
const QUEUE_BLOCKS_MAX: usize = 128 << 10;
/// Object sets that are walked at the same time.
const WALKS: usize = 8;
/// All blocks.
const WANTED: Wanted = Wanted {
    read: ScanRead::Scrub,
    after: Txg::ZERO,
    before: Txg::new(u64::MAX),
    until: Txg::new(u64::MAX),
    is_again: false,
};

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
    blocks: Arc<Blocks>,
    wanted: Wanted,
    events: Arc<Events>,
    /// First txg after the state that is scrubbed.
    first_txg: Txg,
    to_examine_bytes: u64,
    state: watch::Sender<State>,
    times: Mutex<Times>,
    /// Object sets to walk, found in the MOS.
    places: Mutex<Vec<Place>>,
    ended: watch::Sender<bool>,
}

/// An object set that is to be walked.
#[derive(Debug, Clone, Copy)]
struct Place {
    objset: ObjsetId,
    root: BlockPointer,
    /// What was born until then belongs to an older snapshot.
    after: Txg,
    /// Whether its intent log counts (snapshots have none) and was not met yet.
    has_log: bool,
    /// Where to go on.
    from: Option<Bookmark>,
}

/// Walks one object set.
struct Walk {
    run: Arc<Run>,
    objset: ObjsetId,
}

impl Visitor for Walk {
    fn ends_before(&self, _bookmark: &Bookmark) -> bool {
        !self.run.is_running() || self.run.blocks.queue.len() >= QUEUE_BLOCKS_MAX
    }

    fn meet(&self, met: &Met<'_>) -> bool {
        self.run.blocks.meet(met, &self.run.wanted)
    }

    fn read(
        self: Arc<Self>,
        pointer: BlockPointer,
        bookmark: Bookmark,
    ) -> BoxFuture<'static, Result<Bytes, ZioError>> {
        let wanted = self.run.wanted;
        self.run.blocks.clone().read(pointer, bookmark, wanted)
    }

    fn entered(&self, met: &Met<'_>, result: Result<(), &ZioError>) {
        self.run.blocks.entered(met, result, &self.run.wanted);
    }

    fn dnode(&self, object: ObjectId, dnode: &DnodePhys, endian: Endian) {
        if !self.objset.is_zero() || dnode.bonus_type != ObjectType::DSL_DATASET {
            return;
        }
        match DslDatasetPhys::decode(&dnode.bonus, endian) {
            Ok(phys) => self.run.add_place(object, &phys),
            Err(error) => {
                let bookmark = Bookmark::new(ObjsetId::ZERO, object, 0, 0);
                self.damaged(&bookmark, &error.to_string());
            }
        }
    }

    fn damaged(&self, bookmark: &Bookmark, why: &str) {
        self.run.blocks.note_lost(bookmark, Txg::ZERO, why);
    }
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

    fn is_running(&self) -> bool {
        *self.state.borrow() == State::Running
    }

    fn add_place(&self, object: ObjectId, phys: &DslDatasetPhys) {
        let objset = ObjsetId::new(object.get());
        let mut places = self.places.lock();
        // A block of dnodes is entered again when the walk goes on in it.
        if places.iter().any(|place| place.objset == objset) {
            return;
        }
        add(&self.blocks.numbers.datasets, 1);
        places.push(Place {
            objset,
            root: phys.block,
            after: phys.previous_snapshot_txg,
            has_log: !phys.is_snapshot(),
            from: None,
        });
    }

    fn numbers(&self) -> ScrubNumbers {
        self.blocks.numbers.values()
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

    /// Walks an object set as far as it gets; what is left of it.
    async fn walk(self: &Arc<Self>, mut place: Place) -> Option<Place> {
        if place.has_log {
            place.has_log = false;
            let (objset, root) = (place.objset, &place.root);
            visit_log(
                &self.blocks,
                &self.tasks,
                objset,
                root,
                self.first_txg,
                &self.wanted,
            )
            .await;
        }
        let what = Traverse {
            root: place.root,
            objset: place.objset,
            after: place.after.max(self.wanted.after),
            from: place.from,
        };
        let walk = Arc::new(Walk {
            run: self.clone(),
            objset: place.objset,
        });
        match traverse(&what, &self.tasks, &walk).await {
            Traversed::Whole => None,
            Traversed::Until(bookmark) => {
                place.from = Some(bookmark);
                Some(place)
            }
        }
    }

    /// Walks until the queue is full, or nothing is left to walk.
    async fn walk_all(self: &Arc<Self>, places: Vec<Place>) -> Vec<Place> {
        let waiting = Arc::new(Mutex::new(places));
        let left: Arc<Mutex<Vec<Place>>> = Arc::default();
        let walkers = self.tasks.group();
        for _ in 0..WALKS {
            let (own, waiting, left) = (self.clone(), waiting.clone(), left.clone());
            walkers.spawn("scrub", async move {
                while own.is_running() && own.blocks.queue.len() < QUEUE_BLOCKS_MAX {
                    let Some(place) = waiting.lock().pop() else {
                        break;
                    };
                    if let Some(place) = own.walk(place).await {
                        left.lock().push(place);
                    }
                }
            });
        }
        walkers.wait().await;
        let mut rest = std::mem::take(&mut *waiting.lock());
        rest.append(&mut left.lock());
        rest
    }

    /// Reads the blocks of a full queue.
    async fn issue(self: Arc<Self>, queue: Queue) {
        let queue = Arc::new(queue);
        let own = self.clone();
        let is_over: super::visit::IsOver = Arc::new(move || !own.is_running());
        while !queue.is_empty() && !self.tasks.is_cancelled() && self.go_on().await {
            let blocks = &self.blocks;
            blocks
                .issue(&queue, ScanRead::Scrub, &self.tasks, &is_over)
                .await;
        }
    }

    /// Everything, from the MOS's root.
    async fn scrub(self: Arc<Self>, root: BlockPointer) {
        let mut ending = Ending {
            run: &self,
            is_whole: false,
        };
        let mut places = vec![Place {
            objset: ObjsetId::ZERO,
            root,
            after: Txg::ZERO,
            has_log: false,
            from: None,
        }];
        let mut issuing = self.tasks.group();
        let mut is_in_mos = true;
        while !places.is_empty() && !self.tasks.is_cancelled() && self.go_on().await {
            places = self.walk_all(places).await;
            if places.is_empty() && is_in_mos {
                is_in_mos = false;
                places = std::mem::take(&mut *self.places.lock());
                if self.blocks.queue.len() < QUEUE_BLOCKS_MAX {
                    continue;
                }
            }
            if self.is_running() || places.is_empty() {
                issuing.wait().await;
                issuing = self.tasks.group();
                issuing.spawn("scrub", self.clone().issue(self.blocks.queue.take_all()));
            }
        }
        issuing.wait().await;
        self.clone().issue(self.blocks.queue.take_all()).await;
        // A task that panicked leaves as one that has finished.
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
        // One that left out blocks says nothing of what is known of them.
        let is_of_all = run.wanted.after == WANTED.after && run.wanted.before == WANTED.before;
        run.blocks.errors.end_scrub(self.is_whole && is_of_all);
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
pub struct Scrub {
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
    pub fn status(&self) -> Option<ScanStatus> {
        self.last().map(|run| run.status())
    }

    pub fn costs(&self) -> Option<ScanCosts> {
        let run = self.last()?;
        Some(ScanCosts {
            by_objset: run.blocks.costs.values(),
            is_continued: false,
        })
    }

    pub fn numbers(&self) -> Option<ScrubNumbers> {
        self.last().map(|run| run.numbers())
    }

    /// Waits until none is under way; with `paused`, a paused one counts as under way too.
    pub async fn wait(&self, paused: bool) {
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

    /// Stops it and waits until nothing of it is left; by `force`, of reads under way too, which a
    /// device may never answer.
    pub async fn end(&self, force: bool) {
        if let Some(run) = self.active() {
            run.state.send_replace(State::Stopped);
            if force {
                run.tasks.cancel();
            }
            self.wait(true).await;
        }
    }

    /// Stops it; its tasks end by themselves.
    pub fn abandon(&self) {
        if let Some(run) = self.active() {
            run.state.send_replace(State::Stopped);
        }
    }
}

/// Carries out a command on a pool's scrub.
pub fn command(scans: &Scans, command: ScrubCommand) -> Result<(), PoolError> {
    let mut last = scans.scan.read_only.last.lock();
    let active = last.clone().filter(|run| !run.is_ended());
    let pool = || scans.spa.identity.name();
    match (command, active) {
        (
            ScrubCommand::Start | ScrubCommand::Between { .. } | ScrubCommand::Continue,
            Some(run),
        ) => {
            let mut times = run.times.lock();
            if *run.state.borrow() != State::Paused {
                return Err(PoolError::ScrubActive { pool: pool() });
            }
            let paused = run.now_s().saturating_sub(times.pause_s);
            times.paused_s += paused;
            times.pause_s = 0;
            scans.spa.events.tell(Sysevent::ScrubResume);
            run.state.send_replace(State::Running);
            Ok(())
        }
        (ScrubCommand::Start | ScrubCommand::Between { .. } | ScrubCommand::Continue, None) => {
            scans.spa.events.tell(Sysevent::ScrubStart);
            let (after, before) = match command {
                ScrubCommand::Between { from_s, until_s } => {
                    scans.spa.txg_times.between(from_s, until_s)
                }
                _ => (Txg::ZERO, None),
            };
            let wanted = Wanted {
                after,
                before: before.unwrap_or(WANTED.before),
                ..WANTED
            };
            *last = Some(start(scans, wanted));
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
            scans.spa.events.tell(Sysevent::ScrubPaused);
            Ok(())
        }
        (ScrubCommand::Stop, Some(run)) => {
            run.state.send_replace(State::Stopped);
            Ok(())
        }
        (ScrubCommand::Errors, _) => {
            let pool = scans.spa.identity.name();
            Err(PoolError::ReadOnly { pool })
        }
        (ScrubCommand::Pause | ScrubCommand::Stop, None) => {
            Err(PoolError::NoScrub { pool: pool() })
        }
    }
}

fn start(scans: &Scans, wanted: Wanted) -> Arc<Run> {
    let (synced, checkpoint) = {
        let state = scans.spa.state.lock();
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
        world: scans.spa.world.clone(),
        tasks: scans.spa.pipeline.tasks().group(),
        blocks: Blocks::new(scans.spa.pipeline.clone(), scans.spa.errors.clone()),
        wanted,
        events: scans.spa.events.clone(),
        first_txg,
        to_examine_bytes: scans.spa.pipeline.allocator().totals().allocated_bytes,
        state: watch::Sender::new(State::Running),
        times: Mutex::default(),
        places: Mutex::default(),
        ended: watch::Sender::new(false),
    });
    run.times.lock().start_s = run.now_s();
    scans.spa.errors.begin_scrub();
    let task = run.clone().scrub(scans.spa.dsl.root_bp());
    run.tasks.spawn("scrub", task);
    run
}
