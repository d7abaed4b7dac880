//! [`SimWorld`]: power, time, randomness, tasks and the disks by name.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, Sleep};

use super::disk::{DiskState, SimDevice, SimDisk};
use super::fault::Fault;
use super::model::{Latency, Model};
use super::op::{OpCounts, OpRecord, PowerCut, SimOp};
use super::rng::Rng;
use crate::{BoxFuture, Clock, Device, DeviceError, InlineCpu, Opener, Random, Spawn, World};

/// Wall clock when a simulation starts: 2026-01-01 00:00 UTC, in seconds since the epoch.
const WALL_START_SECONDS: u64 = 1_767_225_600;
/// Finished tasks are forgotten when this many handles are kept.
const TASK_HANDLES_MAX: usize = 1024;

/// Everything behind one lock: a simulation has one thread, so the lock is never waited for.
pub(super) struct State {
    pub(super) rng: Rng,
    pub(super) disks: BTreeMap<Arc<str>, DiskState>,
    pub(super) powered: bool,
    /// Which power-on this is; handles belong to one.
    pub(super) incarnation: u64,
    counts: OpCounts,
    /// Cut the power when the count of this operation reaches this.
    cut_at: Option<(SimOp, u64, PowerCut)>,
    log: Option<Vec<OpRecord>>,
}

pub(super) struct Shared {
    pub(super) state: Mutex<State>,
    time: Time,
    powered: watch::Sender<bool>,
    /// A disk was released, or all lost their power: stalled operations look whether they go on.
    pub(super) released: watch::Sender<()>,
    hosts: AtomicU32,
    random: Mutex<Rng>,
    tasks: Mutex<Vec<JoinHandle<()>>>,
}

/// Virtual time. tokio's timers count milliseconds; a world whose devices are faster than that has
/// its runtime's clock go faster than its own.
#[derive(Debug, Clone, Copy)]
struct Time {
    start: Instant,
    /// How many nanoseconds of the runtime's clock are one of the world's.
    runtime_ns: u32,
}

impl Time {
    fn elapsed(&self) -> Duration {
        self.start.elapsed() / self.runtime_ns
    }

    fn sleep(&self, duration: Duration) -> Sleep {
        tokio::time::sleep(duration.saturating_mul(self.runtime_ns))
    }
}

impl Shared {
    pub(super) fn elapsed_ns(&self) -> u64 {
        self.time.elapsed().as_nanos() as u64
    }

    pub(super) fn sleep(&self, duration: Duration) -> Sleep {
        self.time.sleep(duration)
    }

    /// Counts and logs an operation about to be issued. True when it is the one at which the
    /// power is to be cut: the caller issues it, then calls [`Shared::cut`].
    pub(super) fn note_op(
        &self,
        state: &mut State,
        (host, disk): (u32, &Arc<str>),
        op: SimOp,
        offset_bytes: u64,
        length_bytes: u64,
    ) -> Option<PowerCut> {
        state.counts.add(op);
        if let Some(log) = &mut state.log {
            log.push(OpRecord {
                at_ns: self.elapsed_ns(),
                host,
                disk: disk.clone(),
                op,
                offset_bytes,
                length_bytes,
            });
        }
        let (kind, count, how) = state.cut_at?;
        (kind == op && state.counts.get(op) >= count).then_some(how)
    }

    /// Cuts the power.
    pub(super) fn cut(&self, state: &mut State, how: PowerCut) {
        if !state.powered {
            return;
        }
        state.powered = false;
        state.cut_at = None;
        let how = match how {
            PowerCut::Random => match state.rng.below(6) {
                0 => PowerCut::LoseUnflushed,
                1 => PowerCut::KeepAll,
                _ => PowerCut::Shuffle,
            },
            given => given,
        };
        for disk in state.disks.values_mut() {
            disk.lose_power(how, &mut state.rng);
        }
        self.powered.send_replace(false);
        self.released.send_replace(());
    }
}

/// The simulated world as one host sees it. Cheap to clone; all clones are the same world and host.
#[derive(Clone)]
pub struct SimWorld {
    pub(super) shared: Arc<Shared>,
    host: u32,
}

impl SimWorld {
    /// A world without disks, with the power on. Make it inside the (paused) runtime.
    pub fn new(seed: u64) -> Self {
        SimWorld::with_runtime_ns(seed, 1)
    }

    /// A world whose timers count microseconds, for models of devices that are faster than the
    /// millisecond that tokio's timers count: a millisecond of the runtime's clock is a microsecond
    /// here. What runs in it takes the time from [`World::clock`] alone: a `tokio::time::sleep`
    /// is a thousand times shorter than it says.
    pub fn in_microseconds(seed: u64) -> Self {
        SimWorld::with_runtime_ns(seed, 1000)
    }

    fn with_runtime_ns(seed: u64, runtime_ns: u32) -> Self {
        SimWorld {
            shared: Arc::new(Shared {
                state: Mutex::new(State {
                    rng: Rng::new(seed),
                    disks: BTreeMap::new(),
                    powered: true,
                    incarnation: 0,
                    counts: OpCounts::default(),
                    cut_at: None,
                    log: None,
                }),
                time: Time {
                    start: Instant::now(),
                    runtime_ns,
                },
                powered: watch::Sender::new(true),
                released: watch::Sender::new(()),
                hosts: AtomicU32::new(1),
                random: Mutex::new(Rng::new(seed ^ 0x5eed_0f72_616e_646f)),
                tasks: Mutex::new(Vec::new()),
            }),
            host: 0,
        }
    }

    /// Another host that reaches the same disks: nothing keeps it from opening for writing what
    /// another one has open so. It shares the power, and a crash stops its tasks as well.
    pub fn another_host(&self) -> SimWorld {
        SimWorld {
            shared: self.shared.clone(),
            host: self.shared.hosts.fetch_add(1, Ordering::Relaxed),
        }
    }

    /// Which of the hosts this is; the first is 0.
    pub fn host_number(&self) -> u32 {
        self.host
    }

    /// The world as the engine sees it.
    pub fn world(&self) -> World {
        World {
            clock: Arc::new(SimClock {
                time: self.shared.time,
            }),
            random: Arc::new(SimRandom {
                shared: self.shared.clone(),
            }),
            spawn: Arc::new(SimSpawn {
                shared: self.shared.clone(),
            }),
            cpu: Arc::new(InlineCpu),
            opener: Arc::new(self.clone()),
        }
    }

    /// Adds a disk of `size_bytes` zeros, as fast as [`Latency::default`] says. A disk of that name
    /// that existed is replaced.
    pub fn add_disk(&self, name: &str, size_bytes: u64) -> SimDisk {
        self.add_disk_of(name, size_bytes, &Model::Simple(Latency::default()))
    }

    /// The same of a model. Solid-state disks want a world [in
    /// microseconds](SimWorld::in_microseconds).
    pub fn add_disk_of(&self, name: &str, size_bytes: u64, model: &Model) -> SimDisk {
        let name: Arc<str> = name.into();
        let disk = DiskState::new(size_bytes);
        self.shared.state.lock().disks.insert(name.clone(), disk);
        let disk = SimDisk::new(self.shared.clone(), name);
        disk.set_model(model);
        disk
    }

    /// The disk called `name`.
    pub fn disk(&self, name: &str) -> Option<SimDisk> {
        let name = self
            .shared
            .state
            .lock()
            .disks
            .get_key_value(name)
            .map(|(name, _)| name.clone())?;
        Some(SimDisk::new(self.shared.clone(), name))
    }

    /// Names of all disks, in order.
    pub fn disk_names(&self) -> Vec<String> {
        let state = self.shared.state.lock();
        state.disks.keys().map(|name| name.to_string()).collect()
    }

    /// Cuts the power of all disks at once. Tasks go on running (against dead disks); see
    /// [`SimWorld::crash`].
    pub fn power_cut(&self, how: PowerCut) {
        let mut state = self.shared.state.lock();
        self.shared.cut(&mut state, how);
    }

    /// Cuts the power when the `count`-th operation of kind `op` from now on is issued (1: the
    /// next). That operation is in flight when it happens.
    pub fn cut_power_at(&self, op: SimOp, count: u64, how: PowerCut) {
        let mut state = self.shared.state.lock();
        let at = state.counts.get(op) + count.max(1);
        state.cut_at = Some((op, at, how));
    }

    /// Takes [`SimWorld::cut_power_at`] back.
    pub fn cancel_power_cut(&self) {
        self.shared.state.lock().cut_at = None;
    }

    /// Power comes back; handles opened before stay dead.
    pub fn power_on(&self) {
        let mut state = self.shared.state.lock();
        if !state.powered {
            state.powered = true;
            state.incarnation += 1;
            self.shared.powered.send_replace(true);
        }
    }

    /// Whether the power is on.
    pub fn is_powered(&self) -> bool {
        self.shared.state.lock().powered
    }

    /// Completes when the power is off.
    pub async fn power_lost(&self) {
        let mut watch = self.shared.powered.subscribe();
        // The sender lives in `self`, so that waiting can't fail.
        let _ = watch.wait_for(|powered| !powered).await;
    }

    /// Ends every task that the engine started, and waits until they are gone. Not to be called
    /// from one of them.
    pub async fn kill_tasks(&self) {
        loop {
            let tasks = std::mem::take(&mut *self.shared.tasks.lock());
            if tasks.is_empty() {
                return;
            }
            for task in &tasks {
                task.abort();
            }
            for task in tasks {
                // Cancelled is what is wanted; a panic was reported when it happened.
                let _ = task.await;
            }
        }
    }

    /// The machine stops: power cut and all tasks gone. [`SimWorld::power_on`] starts it again.
    pub async fn crash(&self, how: PowerCut) {
        self.power_cut(how);
        self.kill_tasks().await;
    }

    /// Operations issued to all disks since the world was made.
    pub fn counts(&self) -> OpCounts {
        self.shared.state.lock().counts
    }

    /// Starts to keep a log of operations; what was logged before is dropped.
    pub fn start_log(&self) {
        self.shared.state.lock().log = Some(Vec::new());
    }

    /// The operations logged since the last call (or since [`SimWorld::start_log`]).
    pub fn take_log(&self) -> Vec<OpRecord> {
        let mut state = self.shared.state.lock();
        state.log.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Virtual time since the world was made.
    pub fn elapsed(&self) -> Duration {
        self.shared.time.elapsed()
    }

    pub(super) fn elapsed_ns(&self) -> u64 {
        self.shared.elapsed_ns()
    }

    pub(super) async fn sleep_until_ns(&self, at_ns: u64) {
        let left_ns = at_ns.saturating_sub(self.elapsed_ns());
        if left_ns > 0 {
            self.shared.sleep(Duration::from_nanos(left_ns)).await;
        }
    }
}

impl Fault {
    /// Only where this host issues the operation: its way to the disk is at fault.
    #[must_use]
    pub fn only_on(mut self, host: &SimWorld) -> Self {
        self.host = Some(host.host_number());
        self
    }
}

impl std::fmt::Debug for SimWorld {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let state = self.shared.state.lock();
        out.debug_struct("SimWorld")
            .field("disks", &state.disks.keys())
            .field("powered", &state.powered)
            .field("counts", &state.counts)
            .finish_non_exhaustive()
    }
}

impl Opener for SimWorld {
    fn open<'a>(
        &'a self,
        path: &'a str,
        read_only: bool,
    ) -> BoxFuture<'a, Result<Arc<dyn Device>, DeviceError>> {
        Box::pin(async move {
            let mut guard = self.shared.state.lock();
            let state = &mut *guard;
            let gone = || DeviceError::Open {
                path: path.to_owned(),
                source: std::io::ErrorKind::NotFound.into(),
            };
            let (name, _) = state.disks.get_key_value(path).ok_or_else(gone)?;
            let name = name.clone();
            let disk = state.disks.get_mut(path).ok_or_else(gone)?;
            if !state.powered || disk.gone {
                return Err(gone());
            }
            let token = Arc::new(());
            if !read_only {
                let held = |(incarnation, holder): &(u64, Weak<()>)| {
                    *incarnation == state.incarnation && holder.strong_count() > 0
                };
                if disk.writers.get(&self.host).is_some_and(held) {
                    return Err(DeviceError::InUse {
                        path: path.to_owned(),
                    });
                }
                let writer = (state.incarnation, Arc::downgrade(&token));
                disk.writers.insert(self.host, writer);
            }
            let device = SimDevice::new(self, name, disk, read_only, state.incarnation, token);
            Ok(Arc::new(device) as Arc<dyn Device>)
        })
    }
}

/// Virtual time.
#[derive(Debug, Clone, Copy)]
pub struct SimClock {
    time: Time,
}

impl Clock for SimClock {
    fn wall_ns(&self) -> u64 {
        WALL_START_SECONDS * 1_000_000_000 + self.monotonic_ns()
    }

    fn monotonic_ns(&self) -> u64 {
        self.time.elapsed().as_nanos() as u64
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        let time = self.time;
        Box::pin(async move { time.sleep(duration).await })
    }
}

/// Randomness from the world's seed, apart from what disks use.
#[derive(Clone)]
pub struct SimRandom {
    shared: Arc<Shared>,
}

impl Random for SimRandom {
    fn fill(&self, out: &mut [u8]) {
        self.shared.random.lock().fill(out);
    }
}

/// Starts tasks that [`SimWorld::kill_tasks`] can end.
#[derive(Clone)]
pub struct SimSpawn {
    shared: Arc<Shared>,
}

impl Spawn for SimSpawn {
    fn spawn(&self, task: BoxFuture<'static, ()>) {
        let handle = tokio::spawn(task);
        let mut tasks = self.shared.tasks.lock();
        if tasks.len() >= TASK_HANDLES_MAX {
            tasks.retain(|task| !task.is_finished());
        }
        tasks.push(handle);
    }
}
