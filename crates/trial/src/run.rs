//! The steps of a trial, one after the other.

use std::time::Duration;

use pool::{AttachSpec, LeafSpec, Pool, ScanState, ScrubCommand, VdevAux, VdevStatus};

use crate::report::{DISKS_LIMITING_PERCENT, Outcome, Report, Told};
use crate::server::Server;
use crate::servers::Trials;
use crate::spec::{Load, STEP_MAX, Step, Trial};
use crate::{TrialError, engine};
use crate::{load, predict};

/// A part of a resource that is in use for so much of the time is what limits.
const LIMITING_PERCENT: f64 = 90.0;

/// Tells the same of all servers of a file, one after the other.
///
/// # Errors
/// As [`run`] has them.
pub fn run_all(
    trials: &Trials,
    progress: &mut dyn FnMut(&str),
    is_stopped: &dyn Fn() -> bool,
) -> Result<Told, TrialError> {
    let mut servers = Vec::new();
    for trial in &trials.servers {
        if !trial.server.is_empty() {
            progress(&format!("{}:", trial.server));
        }
        servers.push(run(trial, progress, is_stopped)?);
    }
    Ok(Told {
        title: trials.title.clone(),
        servers,
    })
}

/// Tells a trial. `progress` hears, a line at a time, of each step when it begins, and of each
/// stretch of a load when it has ended; `is_stopped` is asked between them.
///
/// # Errors
/// What is wrong with the trial, or the engine's failure.
///
/// # Panics
/// When there is no memory for a runtime.
pub fn run(
    trial: &Trial,
    progress: &mut dyn FnMut(&str),
    is_stopped: &dyn Fn() -> bool,
) -> Result<Report, TrialError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime");
    runtime.block_on(tell(trial, progress, is_stopped))
}

async fn tell(
    trial: &Trial,
    progress: &mut dyn FnMut(&str),
    is_stopped: &dyn Fn() -> bool,
) -> Result<Report, TrialError> {
    progress("making the pool ...");
    let mut server = Server::new(trial).await?;
    let mut steps = Vec::new();
    for (number, step) in trial.step.iter().enumerate() {
        if is_stopped() {
            return Err(TrialError::Stopped);
        }
        let name = name(step);
        progress(&format!("{name} ..."));
        let before = Use::of(&server, trial);
        let outcome = match step {
            Step::Load(load) => {
                let seed = trial.seed << 8 | number as u64;
                let loaded = load::run(&server, trial, load, seed, progress, is_stopped);
                let loaded = loaded.await?;
                Outcome {
                    predicted_iops: predict::iops(trial, load)?,
                    ..of_load(name, load, loaded)
                }
            }
            Step::Fail { disk } => {
                fail(&server, *disk).await?;
                continue;
            }
            Step::Replace { disk, sequential } => {
                let new = server.new_disk(trial, *disk)?;
                replace(&server, *disk, new, *sequential).await?;
                of_scan(name, &server, trial)
            }
            Step::Scrub {
                beside,
                published_seconds,
            } => {
                let seed = trial.seed << 8 | number as u64;
                Outcome {
                    published_seconds: *published_seconds,
                    ..scrub(name, &server, trial, beside.as_ref(), seed).await?
                }
            }
            Step::Restart => {
                server.restart(trial).await?;
                continue;
            }
        };
        let mut outcome = before.until_now(&server, trial, outcome);
        if let Step::Load(load) = step {
            outcome.difference = predict::difference(load, &outcome);
        }
        steps.push(outcome);
    }
    server.close().await?;
    Ok(Report {
        server: trial.server.clone(),
        layout: trial.pool.layout.to_string(),
        disk: trial.disk()?.title.to_owned(),
        scale: trial.scale,
        steps,
    })
}

fn name(step: &Step) -> String {
    match step {
        Step::Load(load) => load.name.clone(),
        Step::Fail { disk } => format!("disk {disk} fails"),
        Step::Replace { disk, .. } => format!("resilver of disk {disk}"),
        Step::Scrub { .. } => "scrub".into(),
        Step::Restart => "restart".into(),
    }
}

/// For how long things were in use until a time.
struct Use {
    at_ns: u64,
    disks_ns: u64,
    /// Disks' reads and writes, and their bytes.
    transferred: (u64, u64),
    buses_ns: Vec<u64>,
    network_bytes: (u64, u64),
    cache_bytes: u64,
}

impl Use {
    fn of(server: &Server, trial: &Trial) -> Self {
        let at_ns = server.world.clock.monotonic_ns();
        let network = server.network.as_ref();
        Use {
            at_ns,
            disks_ns: server.busy.iter().map(|busy| busy.busy_ns(at_ns)).sum(),
            transferred: (server.busy.iter().map(|busy| busy.transferred()))
                .fold((0, 0), |all, one| (all.0 + one.0, all.1 + one.1)),
            buses_ns: server.buses.iter().map(|bus| bus.busy_ns()).collect(),
            network_bytes: network
                .map(|network| network.sent_bytes())
                .unwrap_or_default(),
            cache_bytes: server.cache_bytes_written(trial),
        }
    }

    /// Adds to an outcome what was in use meanwhile.
    fn until_now(&self, server: &Server, trial: &Trial, mut outcome: Outcome) -> Outcome {
        let now = Use::of(server, trial);
        let passed_ns = (now.at_ns - self.at_ns).max(1) as f64;
        let disks = (now.disks_ns - self.disks_ns) as f64 / server.busy.len().max(1) as f64;
        let buses = now.buses_ns.iter().zip(&self.buses_ns);
        let bus = buses.map(|(now, before)| now - before).max();
        let percent = |ns: f64| ns / passed_ns * 100.0;
        outcome.disks_busy_percent = percent(disks);
        let transfers = now.transferred.0 - self.transferred.0;
        let bytes = now.transferred.1 - self.transferred.1;
        outcome.disk_transfer_bytes = (transfers > 0).then(|| bytes as f64 / transfers as f64);
        let has_caches = !trial.pool.cache.is_empty();
        // A restart counts anew, but is no step of its own.
        let written = now.cache_bytes.saturating_sub(self.cache_bytes);
        outcome.cache_written_bytes = has_caches.then_some(written);
        let level = server.pool.pipeline().second_level();
        let index_bytes = level.index_bytes() as f64 / level.blocks().max(1) as f64;
        outcome.cache_index_bytes = has_caches.then_some(index_bytes);
        outcome.bus_busy_percent = bus.map(|ns| percent(ns as f64));
        outcome.network_busy_percent = server.network.as_ref().map(|network| {
            let to = now.network_bytes.0 - self.network_bytes.0;
            let from = now.network_bytes.1 - self.network_bytes.1;
            let bits = to.max(from) as f64 * 8.0 * f64::from(trial.scale);
            let all = network.links() as f64 * 1e9;
            bits / all / (passed_ns / 1e9) * 100.0
        });
        let limits = |percent: Option<f64>| percent.is_some_and(|busy| busy >= LIMITING_PERCENT);
        outcome.limited_by = if limits(outcome.network_busy_percent) {
            "network"
        } else if limits(outcome.bus_busy_percent) {
            "bus"
        } else if outcome.disks_busy_percent >= DISKS_LIMITING_PERCENT {
            "disks"
        } else {
            "requests"
        };
        outcome.seconds = passed_ns / 1e9;
        outcome
    }
}

fn empty(name: String) -> Outcome {
    Outcome {
        name,
        seconds: 0.0,
        iops: None,
        rate: None,
        mean_ms: None,
        longest_ms: None,
        hits_permille: None,
        cache_written_bytes: None,
        cache_index_bytes: None,
        limited_by: "",
        disk_transfer_bytes: None,
        disks_busy_percent: 0.0,
        bus_busy_percent: None,
        network_busy_percent: None,
        predicted_iops: None,
        difference: None,
        published_iops: None,
        published_rate: None,
        published_seconds: None,
        log_bytes: None,
        published_log_bytes: None,
        published: Vec::new(),
        points: Vec::new(),
    }
}

fn of_load(name: String, load: &Load, loaded: load::Loaded) -> Outcome {
    let points = match loaded.points.len() {
        1 => Vec::new(),
        _ => loaded.points,
    };
    Outcome {
        iops: Some(loaded.iops),
        rate: Some(loaded.iops * load.block as f64),
        mean_ms: Some(loaded.mean.as_secs_f64() * 1e3),
        longest_ms: Some(loaded.longest.as_secs_f64() * 1e3),
        hits_permille: Some(loaded.hits_permille),
        published_iops: load.published_iops,
        published_rate: load.published_rate.map(|rate| rate as f64),
        log_bytes: loaded.log_bytes,
        published_log_bytes: load.published_log,
        published: load.published.clone(),
        points,
        ..empty(name)
    }
}

fn of_scan(name: String, server: &Server, trial: &Trial) -> Outcome {
    let scan = server.pool.status().scan;
    let rate = scan.map(|scan| {
        let seconds = (scan.end_time_s.saturating_sub(scan.start_time_s)).max(1);
        scan.examined_bytes as f64 * f64::from(trial.scale) / seconds as f64
    });
    Outcome {
        rate,
        ..empty(name)
    }
}

/// Verifies everything, while clients do something else, or nothing.
async fn scrub(
    name: String,
    server: &Server,
    trial: &Trial,
    beside: Option<&Load>,
    seed: u64,
) -> Result<Outcome, TrialError> {
    let running = match beside {
        Some(load) => Some(load::Running::begin(server, trial, load, seed).await?),
        None => None,
    };
    let begun_ns = server.world.clock.monotonic_ns();
    let begun = server.pool.scans().scrub(ScrubCommand::Start).await;
    begun.map_err(engine("beginning the scrub"))?;
    until(server, "the scrub", |pool| !is_scanning(pool)).await?;
    let mut outcome = of_scan(name, server, trial);
    if let Some(running) = running {
        let seconds = (server.world.clock.monotonic_ns() - begun_ns).max(1) as f64 / 1e9;
        let ended = running.ended() as f64 * f64::from(trial.scale);
        outcome.iops = Some(ended / seconds);
        running.end().await?;
    }
    Ok(outcome)
}

/// A disk is pulled out; the pool goes on without it. Where a distributed spare waits, it stands in
/// by itself, and has everything before somebody brings a disk.
async fn fail(server: &Server, number: usize) -> Result<(), TrialError> {
    let waiting = |pool: &Pool| {
        let spares = pool.status().spares.into_iter();
        spares.filter(|spare| spare.aux == VdevAux::None).count()
    };
    let before = waiting(&server.pool);
    let name = format!("disk{number}");
    if let Some(disk) = server.sim.disk(&name) {
        disk.set_gone(true);
    }
    let looked = server.pool.reopen(false).await;
    looked.map_err(engine("looking at the disks"))?;
    if before == 0 {
        return Ok(());
    }
    until(server, "the spare", |pool| {
        let is_used = waiting(pool) < before;
        is_used && !is_scanning(pool) && !is_any_stale(&pool.status().root)
    })
    .await
}

fn is_any_stale(vdev: &VdevStatus) -> bool {
    vdev.is_stale || vdev.children.iter().any(is_any_stale)
}

async fn replace(
    server: &Server,
    number: usize,
    new: String,
    sequential: bool,
) -> Result<(), TrialError> {
    let spec = AttachSpec {
        device: LeafSpec {
            path: new.clone(),
            is_file: false,
        },
        ashift: None,
        force: true,
        replace: true,
        sequential,
        untouched: false,
    };
    let attached = server.pool.attach(&format!("disk{number}"), &spec).await;
    attached.map_err(engine("beginning the replacement"))?;
    until(server, "the resilver", |pool| {
        let root = pool.status().root;
        let new = find(&root, &new);
        !is_scanning(pool) && new.is_some_and(|new| !new.is_stale)
    })
    .await
}

fn find<'a>(vdev: &'a VdevStatus, path: &str) -> Option<&'a VdevStatus> {
    if vdev.path.as_deref() == Some(path) {
        return Some(vdev);
    }
    vdev.children.iter().find_map(|child| find(child, path))
}

fn is_scanning(pool: &Pool) -> bool {
    let scan = pool.status().scan;
    scan.is_some_and(|scan| scan.state == ScanState::Scanning)
}

/// Waits for it, a second at a time.
async fn until(
    server: &Server,
    what: &str,
    is_done: impl Fn(&Pool) -> bool,
) -> Result<(), TrialError> {
    let step = Duration::from_secs(1);
    let mut waited = Duration::ZERO;
    while !is_done(&server.pool) {
        if let Some(why) = server.pool.suspended() {
            return Err(TrialError::Spec(format!("the pool is suspended: {why}")));
        }
        if waited >= STEP_MAX {
            return Err(TrialError::Spec(format!("{what} has not ended in 30 days")));
        }
        server.world.clock.sleep(step).await;
        waited += step;
    }
    Ok(())
}
