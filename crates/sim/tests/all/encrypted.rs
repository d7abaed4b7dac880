//! Goal: what is written to encrypted datasets survives power cuts as everything else does, also
//! where the pool is imported without their keys: then their logs are claimed, and replayed when
//! the keys are there. Method: as `crash`, below encryption roots of golden pools; OpenZFS's own
//! logs; administration of datasets whose keys are not loaded and whose logs wait.

use std::sync::Arc;

use crate::common::golden::{encrypted, zil_dirty};
use crate::common::{data, get, put};
use crate::crash::{run_all, run_every_moment};
use device::sim::{PowerCut, SimOp, SimWorld};
use filesystem::Filesystem;
use parking_lot::Mutex;
use pool::Pool;
use sim::golden::{Golden, replay_all};
use sim::model::{State, difference, list};
use sim::rng::Rng;
use sim::torture::{
    POOL, Plan, import, inspect_with, observe_all, one_or, patiently, run_plan, seeds, simulate,
};
use sim::verify::Failure;
use sim::work::WorkOptions;

fn is_long() -> bool {
    std::env::var_os("MILLPOND_LONG").is_some()
}

/// So many seeds, or thousands.
fn some_seeds(few: u64) -> Vec<u64> {
    seeds(if is_long() { 3000 } else { few })
}

fn with_keys(seed: u64, golden: &'static Golden) -> Plan {
    let plan = Plan::of(seed);
    Plan {
        golden: Some(golden),
        // zdb of 2.3 takes blocks that were moved for as old as they look.
        zdb: plan.zdb && seed % 4 != 2,
        work: WorkOptions {
            keys: Some(golden),
            copies: seed % 4 == 1,
            rewrites: seed % 4 == 2,
            repeats: seed % 4 == 2,
            ..plan.work
        },
        // No standstills: what is not cached yet cannot be read then, and reads that users wait for
        // fail at once.
        standstills: false,
        ..plan
    }
}

#[test]
fn a_power_cut_loses_nothing_that_is_encrypted() {
    let Some(golden) = encrypted() else { return };
    run_all(&some_seeds(8), |seed| with_keys(seed, golden));
}

/// The same where logs have devices of their own.
#[test]
fn encrypted_logs_on_log_vdevs_lose_nothing() {
    let Some(golden) = zil_dirty() else { return };
    run_all(&some_seeds(4), |seed| with_keys(seed, golden));
}

/// There is something to be lost, and it is looked at.
#[test]
fn encrypted_logs_wait_when_the_power_goes() {
    let Some(golden) = encrypted() else { return };
    let (mut logs, mut visits, mut macs) = (0, 0, 0);
    for seed in 0..6 {
        let (outcome, _) = run_plan(&with_keys(seed, golden)).unwrap();
        logs += outcome.log_blocks;
        visits += outcome.locked_visits;
        macs += outcome.macs;
    }
    assert!(logs > 10, "{logs} log blocks");
    assert!(visits > 0 && macs > 3000, "{visits} visits, {macs} MACs");
}

/// zdb, who has no keys and needs none for this, finds the pools sound.
#[test]
fn zdb_agrees_about_encrypted_pools() {
    let Some(golden) = encrypted() else { return };
    run_all(&some_seeds(2), |seed| Plan {
        zdb: true,
        ..with_keys(seed + 200, golden)
    });
}

/// Every write and flush of a small workload (a sample by default).
#[test]
fn every_moment_of_a_small_encrypted_workload() {
    let Some(golden) = encrypted() else { return };
    let stride = if is_long() { 1 } else { 97 };
    let plan = Plan {
        cycles: 1,
        workers: 1,
        work: WorkOptions {
            steps: 40,
            dataset_percent: 15,
            sync_percent: 12,
            ..with_keys(6, golden).work
        },
        standstills: false,
        ..with_keys(6, golden)
    };
    run_every_moment(plan, stride);
}

/// Lets something be done until it ends or the power goes; then the power is back and nothing runs
/// any more.
pub async fn until_the_power_goes<T>(
    sim: &SimWorld,
    what: &str,
    doing: impl Future<Output = Result<T, Failure>>,
) -> Result<Option<T>, Failure> {
    let done = tokio::select! {
        biased;
        () = sim.power_lost() => None,
        done = patiently(what, doing) => Some(done?),
    };
    if sim.is_powered()
        && let Some(done) = done
    {
        sim.cancel_power_cut();
        return Ok(Some(done.map_err(|error| format!("{what}: {error}"))?));
    }
    sim.kill_tasks().await;
    sim.power_on();
    Ok(None)
}

/// All of the pool's datasets.
async fn all(sim: &SimWorld, pool: &Pool) -> Result<State, Failure> {
    observe_all(sim, pool, POOL, &Mutex::default()).await
}

/// A file comes and goes, through two txgs; one may be left of a power cut.
async fn take_and_give_back(sim: &SimWorld, pool: &Arc<Pool>) -> Result<(), Failure> {
    let fs = crate::common::open(sim, pool).await?;
    if fs.lookup(fs.root(), b"between").await.is_err() {
        put(&fs, "between", &data(1, 300_000)).await?;
    }
    pool.sync().await?;
    fs.unlink(fs.root(), b"between").await?;
    fs.close().await?;
    Ok(pool.sync().await?)
}

/// The logs are claimed, wait for their keys, and are replayed.
async fn replay_slowly(sim: &SimWorld, golden: &Golden, pool: &Arc<Pool>) -> Result<(), Failure> {
    // Unencrypted ones are replayed now, encrypted ones wait through some txgs.
    take_and_give_back(sim, pool).await?;
    golden.load_keys(pool).await?;
    replay_all(sim, pool).await
}

/// A pool whose logs OpenZFS left loses its power while they are claimed and replayed, one of them
/// long after its claim.
async fn cut_replay(
    golden: &Golden,
    number: u64,
    cut: Option<(SimOp, u64)>,
    wanted: Option<&State>,
) -> Result<(State, u64), Failure> {
    let sim = SimWorld::new(number);
    let how = [
        PowerCut::Random,
        PowerCut::LoseUnflushed,
        PowerCut::Shuffle,
        PowerCut::KeepAll,
    ][number as usize % 4];
    if let Some((op, count)) = cut {
        sim.cut_power_at(op, count, how);
    }
    let first = async {
        let pool = golden.begin_locked(&sim, true).await?;
        replay_slowly(&sim, golden, &pool).await?;
        pool.export(false).await?;
        Ok(())
    };
    until_the_power_goes(&sim, "the first replay", first).await?;
    let writes = sim.counts().writes;
    // And once more, somewhere.
    inspect_with(&sim, "after the power cut", true, None).await?;
    if cut.is_some() {
        sim.cut_power_at(SimOp::Write, 1 + number % 170, how);
        let second = async {
            let pool = golden.import(&sim).await?;
            replay_slowly(&sim, golden, &pool).await
        };
        until_the_power_goes(&sim, "the second replay", second).await?;
        sim.power_cut(how);
        sim.kill_tasks().await;
        sim.power_on();
        inspect_with(&sim, "after the second power cut", true, None).await?;
    }
    let pool = golden.import(&sim).await?;
    golden.load_keys(&pool).await?;
    take_and_give_back(&sim, &pool).await?;
    let found = all(&sim, &pool).await?;
    pool.sync().await?;
    pool.export(false).await?;
    drop(pool);
    inspect_with(&sim, "after the export", true, Some(golden)).await?;
    let Some(wanted) = wanted else {
        return Ok((found, writes));
    };
    if wanted.len() != found.len() {
        return Err("datasets came or went".into());
    }
    for (name, dataset) in wanted {
        if let Some(what) = difference(&dataset.content, &found[name].content) {
            return Err(format!("{name}: {what}").into());
        }
    }
    Ok((found, writes))
}

/// Blocks of a log may be born in later txgs than the one that claims them. Once only the import
/// that claimed them waited for those: after a power cut in between, the next one freed what it had
/// replayed too early, and log blocks leaked.
#[test]
fn openzfs_logs_are_replayed_whenever_their_keys_come() {
    let Some(golden) = zil_dirty() else { return };
    let (wanted, writes) = simulate(cut_replay(golden, 0, None, None)).unwrap();
    let stride = if is_long() { 1 } else { 151 };
    let moments: Vec<u64> = (1..=writes).step_by(stride).collect();
    assert!(moments.len() >= 4, "{writes} writes");
    for at in one_or(moments) {
        let cut = Some((SimOp::Write, at));
        let cut = cut_replay(golden, at, cut, Some(&wanted));
        let outcome = simulate(patiently("it", cut)).and_then(|done| done);
        outcome.unwrap_or_else(|error| panic!("MILLPOND_SEED={at}: {error}"));
    }
}

/// What was on disk, and what the log has: of a file that was there and changed, and of one that is
/// new.
const OLD: u64 = 1;
const NEW: u64 = 2;

fn old() -> bytes::Bytes {
    data(OLD, 50_000)
}

fn new() -> bytes::Bytes {
    data(NEW, 60_000)
}

/// Whether a filesystem has what the log had; anything in between is wrong.
async fn has_logged(sim: &SimWorld, pool: &Pool, name: &str) -> Result<bool, Failure> {
    let fs = Filesystem::open(pool.dsl().open_dataset(name).await?, sim.world()).await?;
    let changed = get(&fs, "changed").await?;
    let is_there = fs.lookup(fs.root(), b"logged").await.is_ok();
    let logged = match is_there {
        true => get(&fs, "logged").await?,
        false => Vec::new(),
    };
    fs.close().await?;
    match (changed == new(), is_there) {
        (true, true) if logged == new() => Ok(true),
        (false, false) if changed == old() => Ok(false),
        _ => Err(format!("{name} is half replayed").into()),
    }
}

/// What may be done to a dataset without its key, while its log waits.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Step {
    Sync,
    Snapshot,
    Clone,
    Rollback,
    Destroy,
    Rename,
    Promote,
    LoadAndUnload,
    ExportAndImport,
}

const TOP: &str = "tank/rawkey/top";
const RENAMED: &str = "tank/rawkey/renamed";
const CLONE: &str = "tank/rawkey/clone";

/// Which dataset is at a name, if any.
async fn here(pool: &Pool) -> Result<Option<&'static str>, Failure> {
    let names = list(pool.dsl(), POOL).await?;
    Ok([TOP, RENAMED]
        .into_iter()
        .find(|name| names.contains_key(*name)))
}

fn trace(what: &str) {
    if std::env::var_os("MILLPOND_TRACE").is_some() {
        eprintln!("{what}");
    }
}

/// Does steps without keys; refusals are in order, as of a rollback without a snapshot.
async fn administer(
    sim: &SimWorld,
    golden: &Golden,
    steps: &[Step],
    begun: &Mutex<Vec<Step>>,
) -> Result<(), Failure> {
    let mut pool = import(sim, false).await?;
    for step in steps {
        let dsl = pool.dsl().clone();
        let Some(name) = here(&pool).await? else {
            return Ok(());
        };
        trace(&format!("{step:?}"));
        begun.lock().push(*step);
        let snapshot = format!("{name}@s");
        let done = match step {
            Step::Sync => Ok(pool.sync().await?),
            Step::Snapshot => dsl.snapshots().take(&[snapshot], &[]).await,
            Step::Clone => dsl.datasets().clone_snapshot(&snapshot, CLONE, &[]).await,
            Step::Rollback => dsl.snapshots().rollback(name, None).await.map(drop),
            Step::Destroy => dsl.destroyer().destroy(name).await,
            Step::Rename => dsl.directories().rename(name, RENAMED).await,
            Step::Promote => dsl.snapshots().promote(CLONE).await,
            Step::LoadAndUnload => {
                let (root, wrapping) = golden.key_of(TOP).ok_or("no key")?;
                dsl.keys().load(root, wrapping.clone(), false).await?;
                dsl.keys().unload(root).await
            }
            Step::ExportAndImport => {
                drop(dsl);
                pool.export(false).await?;
                pool = import(sim, false).await?;
                Ok(())
            }
        };
        trace(&format!("-> {done:?}"));
    }
    Ok(())
}

async fn administer_with_cuts(golden: &Golden, seed: u64) -> Result<bool, Failure> {
    let mut rng = Rng::new(seed);
    let sim = SimWorld::new(seed);
    let pool = golden.begin(&sim, rng.percent(50)).await?;
    let init = Arc::new(filesystem::ZplInit::new());
    pool.dsl().datasets().create(TOP, &[], init).await?;
    let fs = Filesystem::open(pool.dsl().open_dataset(TOP).await?, sim.world()).await?;
    let changed = put(&fs, "changed", &old()).await?;
    // The chain is there.
    fs.sync_file(changed).await?;
    pool.sync().await?;
    let logged = put(&fs, "logged", &new()).await?;
    fs.write(changed, 0, new(), false, filesystem::Caller::ROOT)
        .await?;
    fs.sync_file(logged).await?;
    fs.sync_file(changed).await?;
    sim.power_cut(PowerCut::Random);
    sim.kill_tasks().await;
    pool.dsl().tasks().close();
    drop((pool, fs));
    sim.kill_tasks().await;
    sim.power_on();

    trace("power back");
    let kinds = [
        Step::Sync,
        Step::Snapshot,
        Step::Snapshot,
        Step::Clone,
        Step::Clone,
        Step::Rollback,
        Step::Destroy,
        Step::Rename,
        Step::Promote,
        Step::LoadAndUnload,
        Step::ExportAndImport,
    ];
    let steps: Vec<Step> = (0..1 + rng.below(7))
        .filter_map(|_| rng.pick(&kinds))
        .collect();
    let begun = Mutex::new(Vec::new());
    for _ in 0..rng.below(3) {
        inspect_with(&sim, "before", true, None).await?;
        sim.cut_power_at(SimOp::Write, 1 + rng.below(120), PowerCut::Random);
        let administer = administer(&sim, golden, &steps, &begun);
        if until_the_power_goes(&sim, "steps", administer)
            .await?
            .is_some()
        {
            sim.power_cut(PowerCut::Random);
            sim.kill_tasks().await;
            sim.power_on();
        }
    }
    trace("the last time");
    let last = administer(&sim, golden, &steps, &begun).await;
    last.map_err(|error| format!("{steps:?}: {error}"))?;
    sim.power_cut(PowerCut::Random);
    sim.kill_tasks().await;
    sim.power_on();
    trace("inspection");
    inspect_with(&sim, "after all steps", true, Some(golden)).await?;

    trace("the end");
    let begun = begun.into_inner();
    let pool = import(&sim, false).await?;
    golden.load_keys(&pool).await?;
    let names = list(pool.dsl(), POOL).await?;
    let mut replayed = false;
    match here(&pool).await? {
        Some(name) => {
            replayed = has_logged(&sim, &pool, name).await?;
            if !replayed && !begun.contains(&Step::Rollback) {
                return Err(format!("{begun:?}: the log was not replayed").into());
            }
        }
        None if begun.contains(&Step::Destroy) => {}
        None => return Err(format!("{begun:?}: the dataset is gone").into()),
    }
    // Snapshots and clones are of what was on disk.
    let of = |name: &&String| [TOP, RENAMED, CLONE].contains(&name.as_str());
    for name in names.keys().filter(of) {
        for snapshot in &names[name] {
            if has_logged(&sim, &pool, &format!("{name}@{snapshot}")).await? {
                return Err(format!("{begun:?}: {name}@{snapshot} has what the log had").into());
            }
        }
        if name == CLONE && has_logged(&sim, &pool, name).await? {
            return Err(format!("{begun:?}: {name} has what the log had").into());
        }
    }
    pool.export(false).await?;
    drop(pool);
    inspect_with(&sim, "after the export", true, Some(golden)).await?;
    Ok(replayed)
}

/// Snapshots, clones, rollbacks, renames, ... of datasets without keys whose logs wait: the logs go
/// on waiting, or go away.
#[test]
fn locked_datasets_are_administered_while_their_logs_wait() {
    let Some(golden) = encrypted() else { return };
    let all = some_seeds(25);
    let mut replayed = 0;
    for seed in &all {
        let outcome = simulate(patiently("it", administer_with_cuts(golden, *seed)));
        let outcome = outcome.and_then(|done| done);
        let outcome = outcome.unwrap_or_else(|error| panic!("MILLPOND_SEED={seed}: {error}"));
        replayed += u64::from(outcome);
    }
    assert!(all.len() == 1 || replayed > 3, "{replayed} logs replayed");
}
