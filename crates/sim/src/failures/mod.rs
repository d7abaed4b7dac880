//! Disks that fail while the pool is in use, as many as redundancy can do without, in any mix; and
//! then everything is well again.
//!
//! | Module | What it does |
//! |---|---|
//! | [`plan`] | what a seed stands for |
//! | [`disks`] | which disks are not to be trusted, so that no more fail than may |
//! | [`operator`] | makes disks fail and come back, replaces, attaches, detaches and scrubs |
//! | [`heal`] | after the last failure: until nothing is wrong any more |
//!
//! # What has to hold
//!
//! - Disks that do not answer are done without, and spares stand in for those that are bad.
//! - No client sees an error or a wrong byte, and the pool is never suspended. Workers compare what
//!   they read with a model all the time ([`crate::work`]).
//! - After a power cut at any moment the pool imports, with the disks that are there then, all that
//!   was durable is there, and every block of it can be read.
//! - In the end, once every disk works or was replaced, resilvers end, a scrub repairs what was
//!   silently wrong, a second one finds nothing, no device counts an error, no damage is listed,
//!   and zdb agrees.
//!
//! # How many disks may fail
//!
//! A disk counts as failed from the moment something is wrong with it until it has everything
//! again: until its resilver has ended, or a scrub that began after the last silent error, and the
//! transaction group of that is on disk. A disk that comes in new counts as failed until then as
//! well. Every top-level vdev has as many children without a whole disk as it has parity at most.

pub mod disks;
pub mod heal;
pub mod operator;
pub mod plan;

use std::sync::Arc;
use std::time::Duration;

use device::sim::{PowerCut, SimOp, SimWorld};
use parking_lot::Mutex;
use pool::Pool;

use crate::history::History;
use crate::rng::Rng;
use crate::torture::{create, import, inspect, observe_all, simulate, zdb};
use crate::verify::Failure;
use crate::work::{Book, Worker};
use disks::Disks;
use operator::Operator;
pub use plan::Plan;

/// What a run did.
#[derive(Debug, Default)]
pub struct Outcome {
    /// Operations of all workers.
    pub operations: u64,
    /// What happened to disks, by its name.
    pub events: std::collections::BTreeMap<&'static str, u64>,
    /// Power cuts.
    pub cuts: u32,
    /// Power cuts while a scan was under way, or devices lacked something.
    pub cuts_in_scans: u32,
    /// Simulated time.
    pub took: Duration,
}

/// Longest that anything takes, in simulated time.
const PATIENCE: Duration = Duration::from_secs(3600);

async fn patiently<T>(what: &str, work: impl Future<Output = T>) -> Result<T, Failure> {
    tokio::time::timeout(PATIENCE, work)
        .await
        .map_err(|_| format!("{what} does not end").into())
}

/// Workers and what they own.
type Books = Vec<(String, Arc<Mutex<Book>>)>;

/// Does what the plan says.
///
/// # Errors
/// What was lost, damaged or hung, in words.
pub async fn run(plan: &Plan) -> Result<Outcome, Failure> {
    let sim = SimWorld::new(plan.seed);
    let mut rng = Rng::new(plan.seed);
    let mut outcome = Outcome::default();
    let mut pool = create(&sim, plan.layout, plan.disk_mib, plan.small_sectors).await?;
    let mut books = Books::new();
    for index in 0..plan.workers {
        let (top, book) = (format!("{}/w{index}", crate::torture::POOL), Arc::default());
        worker(&sim, &pool, &top, &book, &mut rng, plan)
            .prepare()
            .await?;
        books.push((top, book));
    }
    let mut disks = Disks::new(&sim, plan, &pool);
    for _ in 0..plan.spares {
        let name = disks.add_spare();
        pool.add(&operator::spare(&name)).await?;
    }
    for cycle in 0..plan.cycles {
        let about = |error: Failure, disks: &Disks| -> Failure {
            format!("cycle {cycle}: {error}\n{}", disks.story()).into()
        };
        let is_cut = rng.percent(plan.cut_percent);
        if is_cut {
            let limit = 1 + rng.below(6000);
            sim.cut_power_at(SimOp::Write, 1 + rng.below(limit), PowerCut::Random);
        }
        let failing = {
            let rng = Rng::new(rng.next_u64());
            Operator::new(&sim, &pool, &mut disks, rng, plan).run(plan.steps)
        };
        let working = work(&sim, &pool, &books, plan, Rng::new(rng.next_u64()));
        let both = async {
            tokio::select! {
                biased;
                () = sim.power_lost() => Ok(()),
                failed = failing => failed,
                failed = working => Err(failed),
            }
        };
        let ended = patiently("the work", both).await;
        let ended = ended.map_err(|error| about(error, &disks))?;
        if sim.is_powered() {
            ended.map_err(|error| about(error, &disks))?;
            sim.cancel_power_cut();
            // Nobody may have noticed the last failure yet.
            finish_work(&books, plan)
                .await
                .map_err(|error| about(error, &disks))?;
        }
        sim.cancel_power_cut();
        if cycle + 1 == plan.cycles && sim.is_powered() {
            break;
        }
        let is_scanning = pool.scans().is_resilver_due()
            || (pool.status().root.children.iter()).any(disks::is_any_stale)
            || pool
                .scans()
                .scrub_status()
                .is_some_and(|scan| scan.end_time_s == 0);
        outcome.cuts += 1;
        outcome.cuts_in_scans += u32::from(is_scanning);
        sim.power_cut(PowerCut::Random);
        sim.kill_tasks().await;
        pool.dsl().tasks().close();
        drop(pool);
        sim.kill_tasks().await;
        sim.power_on();
        disks.power_is_back(&mut rng);
        for (_, book) in &books {
            outcome.operations += book.lock().history.len() as u64;
        }
        pool = recover(&sim, &books, &mut rng)
            .await
            .map_err(|error| about(error, &disks))?;
    }
    let healed = heal::heal(&sim, &pool, &mut disks, &mut rng);
    let healed = patiently("healing", healed).await;
    let healed = healed.and_then(std::convert::identity);
    healed.map_err(|error| format!("healing: {error}\n{}", disks.story()))?;
    patiently("the export", pool.export(false)).await??;
    drop(pool);
    sim.kill_tasks().await;
    let report = patiently("inspection", inspect(&sim, "in the end", true)).await?;
    report.map_err(|error| format!("{error}\n{}", disks.story()))?;
    if plan.zdb {
        disks.forget_strangers();
        zdb(&sim).map_err(|error| format!("{error}\n{}", disks.story()))?;
    }
    for (_, book) in &books {
        outcome.operations += book.lock().history.len() as u64;
    }
    outcome.events = disks.counts().clone();
    outcome.took = sim.elapsed();
    Ok(outcome)
}

fn worker(
    sim: &SimWorld,
    pool: &Arc<Pool>,
    top: &str,
    book: &Arc<Mutex<Book>>,
    rng: &mut Rng,
    plan: &Plan,
) -> Worker {
    Worker::new(
        sim.world(),
        pool.clone(),
        top.to_owned(),
        Rng::new(rng.next_u64()),
        book.clone(),
        plan.work,
    )
}

/// Works until something goes wrong: what ends is begun anew.
async fn work(
    sim: &SimWorld,
    pool: &Arc<Pool>,
    books: &Books,
    plan: &Plan,
    mut rng: Rng,
) -> Failure {
    for (_, book) in books {
        book.lock().finished = true;
    }
    loop {
        for (top, book) in books {
            if let Some(failure) = book.lock().failure.clone() {
                if !is_tolerated(plan, &failure) {
                    return format!("{top}: {failure}").into();
                }
                let mut book = book.lock();
                (book.failure, book.finished) = (None, true);
            }
            if std::mem::take(&mut book.lock().finished) {
                let worker = worker(sim, pool, top, book, &mut rng, plan);
                sim.world().spawn.spawn(Box::pin(worker.run()));
            }
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Whether a log's end was not certain, which is told rather than guessed.
fn is_tolerated(plan: &Plan, failure: &str) -> bool {
    plan.read_faults && failure.contains("intent log: it cannot be read to its end")
}

/// Waits for what the workers are at.
async fn finish_work(books: &Books, plan: &Plan) -> Result<(), Failure> {
    let ending = async {
        loop {
            let over = |(_, book): &(String, Arc<Mutex<Book>>)| {
                let book = book.lock();
                book.finished || book.failure.is_some()
            };
            if books.iter().all(over) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    patiently("the last work", ending).await?;
    for (top, book) in books {
        if let Some(failure) =
            (book.lock().failure.as_ref()).filter(|failure| !is_tolerated(plan, failure))
        {
            return Err(format!("{top}: {failure}").into());
        }
    }
    Ok(())
}

/// Imports the pool, perhaps after the power was cut while that was done, and compares.
async fn recover(sim: &SimWorld, books: &Books, rng: &mut Rng) -> Result<Arc<Pool>, Failure> {
    loop {
        let report = inspect(sim, "after the power cut", false);
        patiently("inspection", report).await??;
        if rng.percent(30) {
            sim.cut_power_at(SimOp::Write, 1 + rng.below(200), PowerCut::Random);
        }
        let importing = async {
            let pool = import(sim, false)
                .await
                .map_err(|error| format!("import: {error}"))?;
            let mut states = Vec::new();
            for (top, book) in books {
                states.push(observe_all(sim, &pool, top, book).await?);
            }
            Ok::<_, Failure>((pool, states))
        };
        let imported = tokio::select! {
            biased;
            () = sim.power_lost() => None,
            imported = patiently("recovery", importing) => Some(imported?),
        };
        let Some(imported) = imported.filter(|_| sim.is_powered()) else {
            sim.kill_tasks().await;
            sim.power_on();
            continue;
        };
        sim.cancel_power_cut();
        let (pool, states) = imported?;
        for ((top, book), found) in books.iter().zip(states) {
            let mut book = book.lock();
            book.history
                .check(&found)
                .map_err(|error| format!("{top} {error}"))?;
            book.failure = None;
            book.history = History::new(found);
        }
        patiently("a sync", pool.sync()).await??;
        return Ok(pool);
    }
}

/// Runs a seed's plan; the error names the seed.
///
/// # Errors
/// As [`run`].
pub fn run_plan(plan: &Plan) -> Result<Outcome, String> {
    simulate(run(plan))
        .map_err(|error| format!("MILLPOND_SEED={} fails ({plan:?}):\n{error}", plan.seed))
}
