//! Loads: clients that read and write, each one request at a time.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use device::World;
use tokio::task::JoinHandle;

use crate::report::Point;
use crate::rng::Rng;
use crate::server::{Network, Server, Target, data};
use crate::spec::{Access, Load, Trial};
use crate::{TrialError, engine};

/// Bytes of a request without data, and around data: an iSCSI header (RFC 7143 section 11.2).
const HEAD_BYTES: u64 = 48;

/// What all clients of a load count.
#[derive(Debug, Default)]
struct Counts {
    ended: AtomicU64,
    /// Sum of how long requests took.
    took_ns: AtomicU64,
    longest_ns: AtomicU64,
    /// The next block of a sequential load.
    next: AtomicU64,
}

struct Client {
    number: usize,
    world: World,
    target: Target,
    network: Option<Arc<Network>>,
    load: Load,
    blocks: u64,
    rng: Rng,
    counts: Arc<Counts>,
}

impl Client {
    async fn run(mut self) -> Result<(), TrialError> {
        loop {
            let begun_ns = self.world.clock.monotonic_ns();
            let block = match self.load.access {
                Access::Random => self.rng.below(self.blocks),
                Access::Sequential => {
                    self.counts.next.fetch_add(1, Ordering::Relaxed) % self.blocks
                }
            };
            let offset_bytes = block * self.load.block;
            match self.rng.percent(self.load.reads_percent) {
                true => self.read(offset_bytes).await?,
                false => self.write(offset_bytes).await?,
            }
            let took_ns = self.world.clock.monotonic_ns() - begun_ns;
            self.counts.ended.fetch_add(1, Ordering::Relaxed);
            self.counts.took_ns.fetch_add(took_ns, Ordering::Relaxed);
            self.counts.longest_ns.fetch_max(took_ns, Ordering::Relaxed);
            if took_ns == 0 {
                // From memory, with nothing that takes time: others have their turn, and time
                // goes on.
                self.world.clock.sleep(Duration::from_micros(1)).await;
            }
        }
    }

    async fn read(&self, offset_bytes: u64) -> Result<(), TrialError> {
        let bytes = self.load.block;
        let Some(network) = &self.network else {
            return self.target.read(offset_bytes, bytes).await;
        };
        let link = network.link(self.number);
        link.to_server(HEAD_BYTES).await;
        network.request_processed(&self.world).await;
        self.target.read(offset_bytes, bytes).await?;
        link.to_client(HEAD_BYTES + bytes).await;
        Ok(())
    }

    async fn write(&mut self, offset_bytes: u64) -> Result<(), TrialError> {
        let data = data(&mut self.rng, self.load.block);
        let bytes = self.load.block;
        let sync = self.load.sync;
        let Some(network) = &self.network else {
            return self.target.write(offset_bytes, data, sync).await;
        };
        let link = network.link(self.number);
        link.to_server(HEAD_BYTES + bytes).await;
        network.request_processed(&self.world).await;
        self.target.write(offset_bytes, data, sync).await?;
        link.to_client(HEAD_BYTES).await;
        Ok(())
    }
}

/// Counters at a time.
#[derive(Debug, Clone, Copy)]
struct Seen {
    at_ns: u64,
    ended: u64,
    hits: u64,
    misses: u64,
}

/// How often a server stores access times (crate `access`).
const HOUSEKEEPING: Duration = Duration::from_secs(30);

/// Stores access times from time to time, until it is stopped.
async fn keep_house(world: World, target: Target) -> Result<(), TrialError> {
    loop {
        world.clock.sleep(HOUSEKEEPING).await;
        target.store_access_times().await;
    }
}

/// Clients at work.
pub(crate) struct Running {
    /// And who keeps house for them.
    clients: Vec<JoinHandle<Result<(), TrialError>>>,
    counts: Arc<Counts>,
}

impl Running {
    /// Begins a load on a server.
    pub(crate) async fn begin(
        server: &Server,
        trial: &Trial,
        load: &Load,
        seed: u64,
    ) -> Result<Self, TrialError> {
        if load.cold {
            let synced = server.pool.sync().await;
            synced.map_err(engine("a sync before the load"))?;
            server.clear_cache();
        }
        let counts = Arc::new(Counts::default());
        let client = |number: usize| Client {
            number,
            world: server.world.clone(),
            target: server.target.clone(),
            network: server.network.clone(),
            load: load.clone(),
            blocks: trial.set_bytes() / load.block,
            rng: Rng::new(seed << 16 | number as u64),
            counts: counts.clone(),
        };
        let clients = (0..load.depth).map(|number| tokio::spawn(client(number).run()));
        let mut clients: Vec<_> = clients.collect();
        if trial.set.atime {
            clients.push(tokio::spawn(keep_house(
                server.world.clone(),
                server.target.clone(),
            )));
        }
        Ok(Running { clients, counts })
    }

    /// Requests that were answered until now.
    pub(crate) fn ended(&self) -> u64 {
        self.counts.ended.load(Ordering::Relaxed)
    }

    /// Stops the clients.
    pub(crate) async fn end(self) -> Result<(), TrialError> {
        let mut ended = Ok(());
        for client in self.clients {
            client.abort();
            // A client ends by an error alone; the others were cancelled.
            if let Ok(Err(error)) = client.await {
                ended = Err(error);
            }
        }
        ended
    }
}

/// What a load saw, in figures of the whole trial.
pub(crate) struct Loaded {
    /// The most that log devices held, in bytes.
    pub(crate) log_bytes: Option<u64>,
    pub(crate) points: Vec<Point>,
    pub(crate) iops: f64,
    pub(crate) mean: Duration,
    pub(crate) longest: Duration,
    pub(crate) hits_permille: u64,
}

/// Runs a load on a server. `progress` hears of each stretch.
pub(crate) async fn run(
    server: &Server,
    trial: &Trial,
    load: &Load,
    seed: u64,
    progress: &mut dyn FnMut(&str),
    is_stopped: &dyn Fn() -> bool,
) -> Result<Loaded, TrialError> {
    let running = Running::begin(server, trial, load, seed).await?;
    let counts = running.counts.clone();
    let seen = || {
        let stats = server.pool.pipeline().cache().stats().total();
        Seen {
            at_ns: server.world.clock.monotonic_ns(),
            ended: counts.ended.load(Ordering::Relaxed),
            hits: stats.hits,
            misses: stats.misses,
        }
    };
    let has_log = !trial.pool.log.is_empty();
    let mut log_bytes = 0;
    let clock = &server.world.clock;
    clock.sleep(Duration::from_secs(load.warm_up_seconds)).await;
    let first = seen();
    let took_ns = counts.took_ns.load(Ordering::Relaxed);
    counts.longest_ns.store(0, Ordering::Relaxed);
    let every = match load.every_seconds {
        0 => load.seconds,
        every => every,
    };
    let factor = f64::from(trial.scale);
    let rate = |from: &Seen, to: &Seen| {
        let seconds = (to.at_ns - from.at_ns).max(1) as f64 / 1e9;
        (to.ended - from.ended) as f64 * factor / seconds
    };
    let hits = |from: &Seen, to: &Seen| {
        let (hits, misses) = (to.hits - from.hits, to.misses - from.misses);
        hits * 1000 / (hits + misses).max(1)
    };
    let mut points = Vec::new();
    let (mut before, mut done_seconds) = (first, 0);
    while done_seconds < load.seconds {
        let seconds = every.min(load.seconds - done_seconds);
        if has_log {
            for _ in 0..seconds {
                clock.sleep(Duration::from_secs(1)).await;
                log_bytes = server.log_bytes(trial).max(log_bytes);
            }
        } else {
            clock.sleep(Duration::from_secs(seconds)).await;
        }
        done_seconds += seconds;
        let now = seen();
        let point = Point {
            at: Duration::from_secs(done_seconds),
            iops: rate(&before, &now),
            hits_permille: hits(&before, &now),
        };
        if load.every_seconds > 0 {
            progress(&point.to_string());
        }
        points.push(point);
        before = now;
        if is_stopped() {
            break;
        }
    }
    running.end().await?;
    if is_stopped() {
        return Err(TrialError::Stopped);
    }
    let ended = (before.ended - first.ended).max(1);
    let took_ns = counts.took_ns.load(Ordering::Relaxed) - took_ns;
    // All that takes time takes longer by the factor.
    let whole = |ns: u64| Duration::from_nanos(ns / u64::from(trial.scale));
    Ok(Loaded {
        iops: rate(&first, &before),
        mean: whole(took_ns / ended),
        longest: whole(counts.longest_ns.load(Ordering::Relaxed)),
        hits_permille: hits(&first, &before),
        log_bytes: has_log.then_some(log_bytes),
        points,
    })
}
