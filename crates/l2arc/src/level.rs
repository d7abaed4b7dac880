//! A pool's cache devices together: what is worth a place, who writes it, who reads it.
//!
//! **What is worth a place.** As long as a device was not filled once, everything that is offered,
//! as fast as the device takes it: a cache that is empty helps nobody. Then only what was asked for
//! *again* ([`Worth::Again`]: memory remembered it, although it had left), and metadata, within a
//! budget of wear: by default each device is written over once a day. What may not be written now
//! is not kept for later; it will be offered again if it is worth it.
//!
//! **Writing.** Each device has a queue of few megabytes and a task that empties it, in writes of
//! up to a megabyte. A full queue takes nothing more: nobody ever waits for a cache device to
//! write. A block goes to the device whose queue is the shortest, of those to the one that wrote
//! the least.
//!
//! **Trimming.** Off unless it is asked for ([`LevelOptions::trim_ahead_percent`]), as in OpenZFS:
//! a ring is written in sequence, so a solid-state disk finds room in large pieces by itself, and
//! there are disks that answer nobody while they trim. What becomes of trims is nobody's error.
//!
//! **Reading.** The index tells device and place. What is read is verified by whoever asked; if it
//! is wrong, that is told ([`SecondLevel::was_wrong`]), the copy is forgotten, and the device is
//! taken out when it was wrong too often. A device that does not answer in time is not waited for.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use bytes::Bytes;
use device::{Clock, Device, TaskPanic, Tasks, World};
use format::{Compression, Dva, Guid, L2Entry, Txg};
use parking_lot::{Mutex, RwLock};
use tokio::sync::{Notify, watch};

use crate::index::{DEVICES_MAX, Found, Hashed, Index, Memory};
use crate::ring::{self, Geometry, Identity, Outgoing, Rebuilt, Ring, Trim, Trimmed};

/// What waits for a device to write it, at most.
const QUEUE_BYTES_MAX: u64 = 16 << 20;
/// What is written in one go.
const BATCH_BYTES: u64 = 1 << 20;
/// Errors and wrong copies within [`FAILURES_TIME`] after which a device is taken out. Few over a
/// long time may have other reasons: a copy is taken for another block's now and then, as the index
/// knows blocks by a hash.
const FAILURES_MAX: u64 = 32;
/// After so long, failures are counted anew.
const FAILURES_TIME: Duration = Duration::from_secs(3600);
/// A read that is late counts as so many errors: each holds somebody up for [`READ_TIME_MAX`].
const LATE_WEIGHT: u64 = 8;
/// Devices that are let go of have this long to write what leads to what they hold.
const CLOSE_TIME_MAX: Duration = Duration::from_secs(10);
/// A read that takes longer is given up, and counts as an error.
const READ_TIME_MAX: Duration = Duration::from_secs(2);
const SECOND_NS: u128 = 1_000_000_000;
const DAY_NS: u128 = 86_400 * SECOND_NS;
/// What a device may write at once of what it saved up: this part of a day.
const BURST_PARTS_OF_DAY: u64 = 24;
/// States of the ARC that a log block notes (`arc_state_type_t`): used once, used often.
const STATE_MRU: u8 = 1;
const STATE_MFU: u8 = 3;

/// Whether a block was asked for before, as far as anybody remembers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Worth {
    /// For the first time.
    First,
    /// It was in memory and had left.
    Again,
}

/// A block of the pool, by its pointer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Block {
    /// Its first copy.
    pub dva: Dva,
    /// The txg in which that was written.
    pub birth: Txg,
    /// Size once decompressed, in bytes.
    pub logical_bytes: u64,
    /// Size as stored, in bytes.
    pub stored_bytes: u64,
    /// How it is compressed.
    pub compression: Compression,
    /// Metadata rather than the content of files.
    pub metadata: bool,
    /// Encrypted or authenticated.
    pub protected: bool,
}

/// A copy that was read; whoever verifies it says so when it is wrong.
#[derive(Clone)]
pub struct Copy {
    /// As it is stored.
    pub stored: Bytes,
    key: Hashed,
    found: Found,
    member: Weak<Member>,
}

/// A device to be used as a cache.
pub struct CacheDevice {
    /// The device, opened for writing.
    pub device: Arc<dyn Device>,
    /// Which device of which pool.
    pub identity: Identity,
    /// Sectors of `1 << ashift` bytes.
    pub ashift: u32,
}

/// What may be set.
#[derive(Debug, Clone, Copy)]
pub struct LevelOptions {
    /// How often a day a device that was filled once may be written over, in hundredths; `None`
    /// without limit.
    pub rounds_a_day_percent: Option<u32>,
    /// How many bytes a second a device is written at most, also while it is filled for the first
    /// time; `None` as many as it takes. OpenZFS's `l2arc_write_max`.
    pub rate_max: Option<u64>,
    /// How much more than is about to be written is evicted and trimmed, in hundredths of that but
    /// 64 MiB at least; a device that is empty is trimmed as a whole. 0: nothing is. OpenZFS's
    /// `l2arc_trim_ahead`, with the same default.
    pub trim_ahead_percent: u32,
}

impl Default for LevelOptions {
    fn default() -> Self {
        Self {
            rounds_a_day_percent: Some(100),
            rate_max: None,
            trim_ahead_percent: 0,
        }
    }
}

/// How a device is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// What it holds from before is being read; it is used meanwhile, and not written.
    Rebuilding,
    /// In use.
    Online,
    /// It failed too often and was taken out.
    Failed,
}

/// Figures of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Figures {
    /// The device.
    pub device: Guid,
    /// How it is.
    pub state: State,
    /// Bytes of it that hold something, and that there are.
    pub used_bytes: u64,
    /// Bytes that there are.
    pub size_bytes: u64,
    /// Whether it was filled once.
    pub is_filled: bool,
    /// Reads that found their block here.
    pub hits: u64,
    /// Bytes that were read.
    pub read_bytes: u64,
    /// Writes, each of many blocks.
    pub writes: u64,
    /// Bytes that were written, log blocks included.
    pub written_bytes: u64,
    /// Reads that failed, or were not answered in time.
    pub read_errors: u64,
    /// Writes that failed.
    pub write_errors: u64,
    /// Copies that were wrong.
    pub wrong: u64,
    /// What the last rebuild found.
    pub rebuilt: Rebuilt,
    /// What became of trims.
    pub trimmed: Trimmed,
}

impl Figures {
    /// Whether what it holds from before is being read.
    pub fn is_rebuilding(&self) -> bool {
        self.state == State::Rebuilding
    }
}

/// Tells how much a device may write.
#[derive(Debug)]
struct Budget {
    /// What it may write in `period_ns`; `None` without limit.
    bytes: Option<u64>,
    period_ns: u128,
    /// What it may save up.
    most_bytes: u64,
    left_bytes: u64,
    told_ns: u64,
}

impl Budget {
    /// So many hundredths of its length in a day.
    fn a_day(length_bytes: u64, percent: Option<u32>, now_ns: u64) -> Self {
        let day = |percent: u32| (u128::from(length_bytes) * u128::from(percent) / 100) as u64;
        let bytes = percent.map(day);
        Self {
            bytes,
            period_ns: DAY_NS,
            most_bytes: bytes.unwrap_or(0) / BURST_PARTS_OF_DAY,
            left_bytes: 0,
            told_ns: now_ns,
        }
    }

    /// So many bytes a second, but for one write.
    fn a_second(bytes: Option<u64>, now_ns: u64) -> Self {
        Self {
            bytes,
            period_ns: SECOND_NS,
            most_bytes: bytes.unwrap_or(0).max(BATCH_BYTES),
            left_bytes: 0,
            told_ns: now_ns,
        }
    }

    /// What may be written now, in bytes.
    fn left_bytes(&mut self, now_ns: u64) -> u64 {
        let Some(bytes) = self.bytes else {
            return u64::MAX;
        };
        let passed_ns = u128::from(now_ns.saturating_sub(self.told_ns));
        let earned_bytes = u128::from(bytes) * passed_ns / self.period_ns;
        if earned_bytes > 0 {
            self.told_ns = now_ns;
            let left_bytes = u128::from(self.left_bytes) + earned_bytes;
            self.left_bytes = left_bytes.min(self.most_bytes.into()) as u64;
        }
        self.left_bytes
    }

    fn spend(&mut self, bytes: u64) {
        self.left_bytes = self.left_bytes.saturating_sub(bytes);
    }
}

#[derive(Debug)]
struct Queue {
    blocks: VecDeque<Outgoing>,
    bytes: u64,
    /// Of wear, once it was filled.
    budget: Budget,
    rate: Budget,
    state: State,
    is_filled: bool,
    used_bytes: u64,
    rebuilt: Rebuilt,
    trim_ahead_percent: u32,
    trimmed: Trimmed,
    is_closing: bool,
}

impl Queue {
    /// What waits is spent already, so that nothing more is taken than may be written.
    fn spend(&mut self, bytes: u64) {
        self.rate.spend(bytes);
        if self.is_filled {
            self.budget.spend(bytes);
        }
    }
}

struct Member {
    clock: Arc<dyn Clock>,
    ring: Arc<Ring>,
    queue: Mutex<Queue>,
    wake: Notify,
    /// Closed when its task has ended, however.
    ended: watch::Receiver<()>,
    is_gone: AtomicBool,
    on_failure: Arc<OnceLock<FailureHook>>,
    hits: AtomicU64,
    read_bytes: AtomicU64,
    writes: AtomicU64,
    written_bytes: AtomicU64,
    read_errors: AtomicU64,
    write_errors: AtomicU64,
    wrong: AtomicU64,
    failures: Mutex<Failures>,
}

/// What decides whether a device is taken out.
#[derive(Debug, Default)]
struct Failures {
    count: u64,
    since_ns: u64,
}

impl Failures {
    /// Whether it is enough with so many more.
    fn are_too_many(&mut self, more: u64, now_ns: u64) -> bool {
        if u128::from(now_ns.saturating_sub(self.since_ns)) > FAILURES_TIME.as_nanos() {
            (self.count, self.since_ns) = (0, now_ns);
        }
        self.count += more;
        self.count >= FAILURES_MAX
    }
}

impl Member {
    fn figures(&self) -> Figures {
        let queue = self.queue.lock();
        Figures {
            device: self.ring.identity.device,
            state: queue.state,
            used_bytes: queue.used_bytes,
            size_bytes: self.ring.geometry.length_bytes(),
            is_filled: queue.is_filled,
            hits: self.hits.load(Ordering::Relaxed),
            read_bytes: self.read_bytes.load(Ordering::Relaxed),
            writes: self.writes.load(Ordering::Relaxed),
            written_bytes: self.written_bytes.load(Ordering::Relaxed),
            read_errors: self.read_errors.load(Ordering::Relaxed),
            write_errors: self.write_errors.load(Ordering::Relaxed),
            wrong: self.wrong.load(Ordering::Relaxed),
            rebuilt: queue.rebuilt,
            trimmed: queue.trimmed,
        }
    }

    /// Whether it failed, or is let go of.
    fn is_ending(&self) -> bool {
        self.is_gone.load(Ordering::Acquire) || self.queue.lock().is_closing
    }

    /// Counts a failure; a device that fails too often is taken out.
    fn count(&self, counter: &AtomicU64, weight: u64, now_ns: u64) {
        counter.fetch_add(1, Ordering::Relaxed);
        let are_too_many = self.failures.lock().are_too_many(weight, now_ns);
        if are_too_many {
            self.fail();
        }
    }

    fn fail(&self) {
        if self.is_gone.swap(true, Ordering::AcqRel) {
            return;
        }
        self.ring.index.set_truth(self.ring.number, u64::MAX);
        let mut queue = self.queue.lock();
        queue.state = State::Failed;
        queue.blocks.clear();
        queue.bytes = 0;
        queue.used_bytes = 0;
        drop(queue);
        self.wake.notify_one();
        let path = self.ring.device.path();
        tracing::warn!(path, "a cache device failed and is not used any more");
        if let Some(hook) = self.on_failure.get() {
            hook(self.ring.identity.device);
        }
    }

    fn takes(&self, block: &Block, worth: Worth, now_ns: u64) -> Option<u64> {
        let mut queue = self.queue.lock();
        let is_wanted = queue.state == State::Online
            && !queue.is_closing
            && queue.bytes + block.stored_bytes <= QUEUE_BYTES_MAX;
        if !is_wanted {
            return None;
        }
        let waiting_bytes = queue.bytes;
        let needed_bytes = block.stored_bytes;
        let is_worth_wear = worth == Worth::Again || block.metadata;
        let is_allowed =
            !queue.is_filled || is_worth_wear && queue.budget.left_bytes(now_ns) >= needed_bytes;
        let is_slow_enough = queue.rate.left_bytes(now_ns) >= needed_bytes;
        (is_allowed && is_slow_enough).then_some(waiting_bytes)
    }

    /// Writes what waits, until the device fails or is to be closed.
    async fn run(&self) {
        let rebuilt = ring::rebuild(self.ring.clone(), |done| self.queue.lock().rebuilt = done);
        let mut writer = match rebuilt.await {
            Ok((writer, rebuilt)) => {
                let mut queue = self.queue.lock();
                queue.rebuilt = rebuilt;
                queue.is_filled = !writer.is_first_round();
                queue.used_bytes = writer.used_bytes();
                if queue.state == State::Rebuilding {
                    queue.state = State::Online;
                }
                writer
            }
            Err(error) => {
                tracing::warn!(%error, "a cache device cannot be read");
                self.fail();
                return;
            }
        };
        loop {
            let wake = self.wake.notified();
            let Some(batch) = self.next_batch() else {
                if self.is_ending() {
                    break;
                }
                wake.await;
                continue;
            };
            let queued_bytes: u64 = batch.iter().map(|block| block.stored.len() as u64).sum();
            let trim = Trim {
                ahead_percent: self.queue.lock().trim_ahead_percent,
                now_s: self.clock.wall_ns() / SECOND_NS as u64,
                goes_on: &|| !self.is_ending(),
            };
            match writer.write(batch, trim).await {
                Ok(bytes) => {
                    self.writes.fetch_add(1, Ordering::Relaxed);
                    self.written_bytes.fetch_add(bytes, Ordering::Relaxed);
                    let mut queue = self.queue.lock();
                    queue.is_filled = !writer.is_first_round();
                    queue.used_bytes = writer.used_bytes();
                    queue.trimmed = writer.trimmed();
                    // Beside the blocks, log blocks and what fills sectors up.
                    queue.spend(bytes.saturating_sub(queued_bytes));
                }
                Err(error) => {
                    tracing::warn!(%error, "a cache device cannot be written");
                    self.write_errors.fetch_add(1, Ordering::Relaxed);
                    self.fail();
                }
            }
        }
        if !self.is_gone.load(Ordering::Acquire)
            && let Err(error) = writer.close().await
        {
            tracing::warn!(%error, "a cache device cannot be closed in an orderly way");
        }
        self.ring.index.set_truth(self.ring.number, u64::MAX);
    }

    fn next_batch(&self) -> Option<Vec<Outgoing>> {
        let mut queue = self.queue.lock();
        let mut batch = Vec::new();
        let mut bytes = 0;
        while let Some(block) = queue.blocks.front() {
            let next = block.stored.len() as u64;
            if !batch.is_empty() && bytes + next > BATCH_BYTES {
                break;
            }
            bytes += next;
            batch.extend(queue.blocks.pop_front());
        }
        queue.bytes -= bytes;
        (!batch.is_empty()).then_some(batch)
    }
}

/// The second level of a pool's cache.
pub struct SecondLevel {
    world: World,
    tasks: Tasks,
    index: Arc<Index>,
    options: Mutex<LevelOptions>,
    members: RwLock<Vec<Arc<Member>>>,
    /// Numbers of devices that were let go of, until their tasks have ended: a write of one that
    /// hangs may still come to an end, and tell the index so. Locked after `members`.
    leaving: Mutex<Vec<(u8, watch::Receiver<()>)>>,
    misses: AtomicU64,
    is_closed: AtomicBool,
    on_failure: Arc<OnceLock<FailureHook>>,
}

/// Who hears that a device failed; it must not block.
pub type FailureHook = Box<dyn Fn(Guid) + Send + Sync>;

impl SecondLevel {
    /// One without devices. A task of it that panics takes all devices out, and is nobody else's
    /// error. The index is part of what `memory` limits.
    pub fn new(world: World, options: LevelOptions, memory: Arc<dyn Memory>) -> Arc<Self> {
        Arc::new_cyclic(|level: &Weak<Self>| Self {
            tasks: Tasks::new(&world, fail_at_panic(level.clone())),
            world,
            index: Arc::new(Index::new(memory)),
            options: Mutex::new(options),
            members: RwLock::default(),
            leaving: Mutex::default(),
            misses: AtomicU64::new(0),
            is_closed: AtomicBool::new(false),
            on_failure: Arc::default(),
        })
    }

    /// Has `hook` hear of each device that fails, from now on. The first call counts.
    pub fn on_failure(&self, hook: FailureHook) {
        let _ = self.on_failure.set(hook);
    }

    /// Changes what may be set, also of devices that are in use. What they saved up is lost.
    pub fn set_options(&self, options: LevelOptions) {
        let members = self.members.read();
        *self.options.lock() = options;
        let now_ns = self.world.clock.monotonic_ns();
        for member in members.iter() {
            let length_bytes = member.ring.geometry.length_bytes();
            let mut queue = member.queue.lock();
            queue.budget = Budget::a_day(length_bytes, options.rounds_a_day_percent, now_ns);
            queue.rate = Budget::a_second(options.rate_max, now_ns);
            queue.trim_ahead_percent = options.trim_ahead_percent;
        }
    }

    /// What the index takes, in bytes.
    pub fn index_bytes(&self) -> u64 {
        self.index.size_bytes()
    }

    /// Blocks that the devices have. It goes through the whole index.
    pub fn blocks(&self) -> u64 {
        self.index.count()
    }

    /// Blocks that were not kept since there was no memory for them in the index.
    pub fn left_out(&self) -> u64 {
        self.index.left_out()
    }

    /// Has the index forget blocks until it is within its limit, or `is_enough` says so.
    pub fn give_back(&self, is_enough: &dyn Fn() -> bool) {
        self.index.give_back(is_enough);
    }

    /// Reads that no device had the block of.
    pub fn misses(&self) -> u64 {
        self.misses.load(Ordering::Relaxed)
    }

    /// Figures of all devices.
    pub fn figures(&self) -> Vec<Figures> {
        let members = self.members.read();
        members.iter().map(|member| member.figures()).collect()
    }

    /// Whether there is a device.
    pub fn is_empty(&self) -> bool {
        self.members.read().is_empty()
    }

    /// Uses a device: what it holds from before is found in the background. `false` where it is too
    /// small, there are too many, or all were let go of for good.
    pub fn add(&self, device: CacheDevice) -> bool {
        let Some(geometry) = Geometry::of(device.device.size_bytes(), device.ashift) else {
            return false;
        };
        let mut members = self.members.write();
        if self.is_closed.load(Ordering::Acquire) {
            return false;
        }
        let mut leaving = self.leaving.lock();
        leaving.retain(|(_, ended)| ended.has_changed().is_ok());
        let is_free = |number: &usize| {
            let rings = members.iter().map(|member| member.ring.number);
            let mut taken = rings.chain(leaving.iter().map(|(number, _)| *number));
            !taken.any(|other| usize::from(other) == *number)
        };
        let Some(number) = (0..DEVICES_MAX).find(is_free) else {
            return false;
        };
        drop(leaving);
        // The number may have been another device's.
        self.index.set_truth(number as u8, u64::MAX);
        self.index.sweep();
        let options = *self.options.lock();
        let now_ns = self.world.clock.monotonic_ns();
        let (end, ended) = watch::channel(());
        let member = Arc::new(Member {
            clock: self.world.clock.clone(),
            ring: Arc::new(Ring {
                device: device.device,
                geometry,
                identity: device.identity,
                number: number as u8,
                index: self.index.clone(),
            }),
            queue: Mutex::new(Queue {
                blocks: VecDeque::new(),
                bytes: 0,
                budget: Budget::a_day(
                    geometry.length_bytes(),
                    options.rounds_a_day_percent,
                    now_ns,
                ),
                rate: Budget::a_second(options.rate_max, now_ns),
                state: State::Rebuilding,
                is_filled: false,
                used_bytes: 0,
                rebuilt: Rebuilt::default(),
                trim_ahead_percent: options.trim_ahead_percent,
                trimmed: Trimmed::default(),
                is_closing: false,
            }),
            wake: Notify::new(),
            ended,
            is_gone: AtomicBool::new(false),
            on_failure: self.on_failure.clone(),
            hits: AtomicU64::new(0),
            read_bytes: AtomicU64::new(0),
            writes: AtomicU64::new(0),
            written_bytes: AtomicU64::new(0),
            read_errors: AtomicU64::new(0),
            write_errors: AtomicU64::new(0),
            wrong: AtomicU64::new(0),
            failures: Mutex::default(),
        });
        members.push(member.clone());
        self.tasks.spawn("cache device", async move {
            // Dropped last, also by a task that is cancelled or panics: whoever waits may open the
            // device anew.
            let _end = end;
            let member = member;
            member.run().await;
        });
        true
    }

    /// Lets go of a device, in an orderly way: what it holds is found again by who adds it next.
    pub async fn remove(&self, device: Guid) {
        let removed = {
            let mut members = self.members.write();
            let at = members
                .iter()
                .position(|member| member.ring.identity.device == device);
            at.map(|at| {
                let member = members.remove(at);
                let mut leaving = self.leaving.lock();
                leaving.push((member.ring.number, member.ended.clone()));
                member
            })
        };
        let Some(member) = removed else { return };
        let is_failed = {
            let mut queue = member.queue.lock();
            queue.is_closing = true;
            queue.state == State::Failed
        };
        member.wake.notify_one();
        let mut ended = member.ended.clone();
        drop(member);
        if !is_failed {
            // Nothing is ever sent: it is an error when the task has ended.
            let _ = ended.changed().await;
        }
        let index = self.index.clone();
        self.world.compute(move || index.sweep()).await;
    }

    /// Lets go of all devices for good, in an orderly way. What a device does not take in time is
    /// not waited for.
    pub async fn close(&self) {
        self.is_closed.store(true, Ordering::Release);
        let figures = self.figures();
        let mut removed = Vec::with_capacity(figures.len());
        for figures in &figures {
            removed.push(self.remove(figures.device));
        }
        let late = self.world.clock.sleep(CLOSE_TIME_MAX);
        tokio::select! {
            biased;
            _ = futures::future::join_all(removed) => {}
            () = late => tracing::warn!("cache devices do not end in time"),
        }
        self.abandon();
        self.tasks.wait().await;
    }

    /// Lets go of all devices for good, at once: what no log block names is lost.
    pub fn abandon(&self) {
        self.is_closed.store(true, Ordering::Release);
        self.tasks.cancel();
        let gone = std::mem::take(&mut *self.members.write());
        for member in gone {
            self.index.set_truth(member.ring.number, u64::MAX);
        }
    }

    /// Takes a copy of a block that was just read from the pool, if it is worth a place and there
    /// is one. Never waits.
    pub fn offer(&self, block: &Block, stored: &Bytes, worth: Worth) {
        let key = Hashed::of(block.dva, block.birth);
        let members = self.members.read();
        if members.is_empty() || self.index.find(key).is_some() {
            return;
        }
        let now_ns = self.world.clock.monotonic_ns();
        let takers = members
            .iter()
            .filter_map(|member| Some((member.takes(block, worth, now_ns)?, member)));
        let by_need = |(waiting_bytes, member): &(u64, &Arc<Member>)| {
            (*waiting_bytes, member.written_bytes.load(Ordering::Relaxed))
        };
        let Some((_, member)) = takers.min_by_key(by_need) else {
            return;
        };
        let entry = L2Entry {
            dva: block.dva,
            birth: block.birth,
            offset_bytes: 0,
            logical_bytes: block.logical_bytes,
            stored_bytes: block.stored_bytes,
            compression: block.compression,
            level: 0,
            metadata: block.metadata,
            protected: block.protected,
            prefetched: false,
            state: match worth {
                Worth::First => STATE_MRU,
                Worth::Again => STATE_MFU,
            },
        };
        let mut queue = member.queue.lock();
        queue.bytes += stored.len() as u64;
        queue.spend(stored.len() as u64);
        queue.blocks.push_back(Outgoing {
            entry,
            stored: stored.clone(),
        });
        drop(queue);
        member.wake.notify_one();
    }

    /// A copy of the block, if a device has one: as it is stored, not verified.
    pub async fn read(&self, block: &Block) -> Option<Copy> {
        let key = Hashed::of(block.dva, block.birth);
        let Some(found) = self.index.find(key) else {
            self.misses.fetch_add(1, Ordering::Relaxed);
            return None;
        };
        let member = {
            let members = self.members.read();
            let mut members = members.iter();
            members
                .find(|member| member.ring.number == found.device)?
                .clone()
        };
        let length_bytes = block.stored_bytes as usize;
        let read = member.ring.read(key, found, length_bytes);
        let late = self.world.clock.sleep(READ_TIME_MAX);
        let answer = tokio::select! {
            biased;
            answer = read => Some(answer),
            () = late => None,
        };
        let weight = if answer.is_none() { LATE_WEIGHT } else { 1 };
        match answer {
            Some(Ok(Some(stored))) => {
                member.hits.fetch_add(1, Ordering::Relaxed);
                let bytes = stored.len() as u64;
                member.read_bytes.fetch_add(bytes, Ordering::Relaxed);
                let member = Arc::downgrade(&member);
                Some(Copy {
                    stored,
                    key,
                    found,
                    member,
                })
            }
            Some(Ok(None)) => None,
            Some(Err(_)) | None => {
                let now_ns = self.world.clock.monotonic_ns();
                member.count(&member.read_errors, weight, now_ns);
                self.index.remove(key, found);
                None
            }
        }
    }

    /// A copy was wrong: it is forgotten, and its device is counted.
    pub fn was_wrong(&self, copy: &Copy) {
        self.index.remove(copy.key, copy.found);
        if let Some(member) = copy.member.upgrade() {
            member.hits.fetch_sub(1, Ordering::Relaxed);
            let now_ns = self.world.clock.monotonic_ns();
            member.count(&member.wrong, 1, now_ns);
        }
    }
}

fn fail_at_panic(level: Weak<SecondLevel>) -> impl Fn(TaskPanic) + Send + Sync {
    move |panic| {
        let (task, message) = (panic.task, panic.message);
        tracing::error!(task, message, "cache devices are not used any more");
        if let Some(level) = level.upgrade() {
            let members = level.members.read();
            members.iter().for_each(|member| member.fail());
        }
    }
}
