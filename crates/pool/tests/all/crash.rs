//! Goal: after a power cut at any moment the pool imports at its last synced txg, with everything
//! that was synced, and its space maps are right; a checkpoint is whole or gone, and a discard goes
//! on. Method: simulated disks with a volatile cache under a seed; the power goes at the n-th write
//! or flush; then import, compare, and for some seeds zdb on the disks' images.

use std::sync::Arc;

use crate::common::*;
use device::sim::{PowerCut, SimOp, SimWorld};
use format::ObjectId;
use parking_lot::Mutex;
use pool::{ImportSpec, LeafSpec, Pool, Rewind, ScanSpec, VdevLayout, VdevSpec};

fn leaves(sim: &SimWorld, count: usize) -> Vec<LeafSpec> {
    (0..count)
        .map(|index| {
            let name = format!("disk{index}");
            sim.add_disk(&name, 64 << 20);
            LeafSpec {
                path: name,
                is_file: false,
            }
        })
        .collect()
}

fn layout(kind: u64, leaves: Vec<LeafSpec>) -> Vec<VdevSpec> {
    match kind % 3 {
        0 => vec![normal(VdevLayout::Mirror(leaves))],
        1 => vec![normal(VdevLayout::Raidz { parity: 1, leaves })],
        _ => leaves
            .into_iter()
            .map(|leaf| normal(VdevLayout::Leaf(leaf)))
            .collect(),
    }
}

/// What survived must be what was synced, or newer.
#[derive(Default)]
struct Ledger {
    synced: Mutex<Vec<ObjectId>>,
    /// What the checkpoint has, if there is one.
    checkpointed: Mutex<Vec<ObjectId>>,
}

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Works until the power goes: then anything may fail. Now and then the pool is exported and
/// imported again, so that the power also goes while labels change.
async fn work(sim: &SimWorld, mut pool: Arc<Pool>, ledger: &Ledger) -> Result<(), Failure> {
    for round in 0..60 {
        let dataset = pool.dsl().open_dataset("tank").await?;
        let objects = try_write_objects(&dataset, 2, 2).await?;
        pool.sync().await?;
        ledger.synced.lock().extend(&objects);
        if round % 4 == 3 {
            let gone: Vec<ObjectId> = ledger.synced.lock().drain(..6).collect();
            try_free_objects(&dataset, &gone).await?;
        }
        drop(dataset);
        if round % 5 == 4 {
            pool = again(sim, &pool).await?;
        }
    }
    Ok(())
}

async fn again(sim: &SimWorld, pool: &Pool) -> Result<Arc<Pool>, Failure> {
    pool.export(false).await?;
    let spec = ScanSpec {
        paths: sim.disk_names(),
        ..ScanSpec::default()
    };
    let mut found = pool::scan(&sim.world(), &spec).await?;
    let found = found.pop().ok_or("no pool")?;
    Ok(Pool::import(&sim.world(), ImportSpec::new(found, host())).await?)
}

/// The same with checkpoints, most of whose state is freed before they are discarded in small
/// steps.
async fn work_with_checkpoints(
    sim: &SimWorld,
    mut pool: Arc<Pool>,
    ledger: &Ledger,
) -> Result<(), Failure> {
    for round in 0..40 {
        pool.set_discard_step(1 + round % 3);
        let dataset = pool.dsl().open_dataset("tank").await?;
        let objects = try_write_objects(&dataset, 4, 2).await?;
        pool.sync().await?;
        ledger.synced.lock().extend(&objects);
        *ledger.checkpointed.lock() = ledger.synced.lock().clone();
        pool.checkpoint().await?;
        for _ in 0..3 {
            let gone = ledger.synced.lock().remove(0);
            try_free_objects(&dataset, &[gone]).await?;
            pool.sync().await?;
        }
        let objects = try_write_objects(&dataset, 1, 2).await?;
        pool.sync().await?;
        ledger.synced.lock().extend(&objects);
        drop(dataset);
        if round % 3 == 2 {
            pool = again(sim, &pool).await?;
            pool.set_discard_step(1);
        }
        pool.discard_checkpoint().await?;
        while pool.is_discarding() {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    }
    Ok(())
}

async fn find_sim(sim: &SimWorld) -> pool::FoundPool {
    let spec = ScanSpec {
        paths: sim.disk_names(),
        ..ScanSpec::default()
    };
    let mut found = pool::scan(&sim.world(), &spec).await.expect("scan");
    assert_eq!(found.len(), 1);
    found.remove(0)
}

/// Works until the power goes, at the write of this number after the pool was made, and has it back
/// then.
async fn cut(seed: u64, count: u64, checkpoints: bool) -> (SimWorld, Arc<Ledger>) {
    let sim = SimWorld::new(seed);
    let vdevs = layout(seed, leaves(&sim, 3));
    let world = sim.world();
    let pool = Pool::create(&world, spec("tank", vdevs))
        .await
        .expect("create");
    let ledger = Arc::new(Ledger::default());
    let count = sim.counts().get(SimOp::Write) + 1 + count;
    sim.cut_power_at(SimOp::Write, count, PowerCut::Random);
    {
        let (sim, ledger) = (sim.clone(), ledger.clone());
        world.spawn.spawn(Box::pin(async move {
            drop(match checkpoints {
                false => work(&sim, pool, &ledger).await,
                true => work_with_checkpoints(&sim, pool, &ledger).await,
            });
        }));
    }
    tokio::select! {
        () = sim.power_lost() => {}
        () = tokio::time::sleep(std::time::Duration::from_secs(600)) => {
            sim.power_cut(PowerCut::Random);
        }
    }
    sim.kill_tasks().await;
    sim.power_on();
    (sim, ledger)
}

fn zdb_of_sim(sim: &SimWorld) {
    let images = Images::new();
    for name in sim.disk_names() {
        let disk = sim.disk(&name).expect("a disk");
        disk.save_image(images.path().join(format!("{name}.img")))
            .expect("save");
    }
    zdb_is_clean(images.path(), "tank");
}

async fn one(seed: u64, with_zdb: bool) {
    // Anywhere from just after the creation to deep in the work.
    let (sim, ledger) = cut(seed, (seed * 7919) % 6000, false).await;
    let found = find_sim(&sim).await;
    let pool = Pool::import(&sim.world(), ImportSpec::new(found, host()))
        .await
        .expect("import");
    let dataset = pool.dsl().open_dataset("tank").await.expect("open");
    let synced = ledger.synced.lock().clone();
    check_objects(&dataset, &synced, 2).await;
    // And it goes on from there.
    let more = write_objects(&dataset, 3, 2).await;
    pool.sync().await.expect("sync");
    check_objects(&dataset, &more, 2).await;
    drop(dataset);
    pool.export(false).await.expect("export");

    if with_zdb {
        zdb_of_sim(&sim);
    }
}

/// Says what was found: a checkpoint, one that is being discarded, or none.
async fn one_with_checkpoints(seed: u64, with_zdb: bool) -> &'static str {
    let (sim, ledger) = cut(seed, (seed * 7919) % 4000, true).await;
    let synced = ledger.synced.lock().clone();
    // An import for writing goes on with a discard at once.
    let mut spec = ImportSpec::new(find_sim(&sim).await, host());
    spec.read_only = true;
    let pool = Pool::import(&sim.world(), spec).await.expect("import");
    let found = pool.status().checkpoint;
    pool.export(false).await.expect("close");
    let spec = ImportSpec::new(find_sim(&sim).await, host());
    let pool = Pool::import(&sim.world(), spec).await.expect("import");
    let dataset = pool.dsl().open_dataset("tank").await.expect("open");
    check_objects(&dataset, &synced, 2).await;
    drop(dataset);
    pool.export(false).await.expect("export");
    if with_zdb {
        zdb_of_sim(&sim);
    }

    let mut spec = ImportSpec::new(find_sim(&sim).await, host());
    let has_checkpoint = found.as_ref().is_some_and(|at| at.created_s.is_some());
    if has_checkpoint {
        spec.rewind = Rewind::Checkpoint;
    }
    let pool = Pool::import(&sim.world(), spec).await.expect("import");
    while pool.is_discarding() {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    assert!(pool.status().checkpoint.is_none());
    let dataset = pool.dsl().open_dataset("tank").await.expect("open");
    if has_checkpoint {
        let checkpointed = ledger.checkpointed.lock().clone();
        check_objects(&dataset, &checkpointed, 2).await;
    } else {
        check_objects(&dataset, &synced, 2).await;
    }
    let more = write_objects(&dataset, 8, 2).await;
    pool.sync().await.expect("sync");
    check_objects(&dataset, &more, 2).await;
    drop(dataset);
    pool.export(false).await.expect("export");
    if with_zdb {
        zdb_of_sim(&sim);
    }
    match found {
        None => "none",
        Some(_) if has_checkpoint => "one",
        Some(_) => "a discard",
    }
}

#[tokio::test(start_paused = true)]
async fn a_power_cut_loses_nothing_that_was_synced() {
    let seeds = std::env::var("MILLPOND_TEST_SEEDS")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(40);
    for seed in 1..=seeds {
        eprintln!("seed {seed}");
        one(seed, seed % 8 == 0).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_power_cut_leaves_a_checkpoint_whole_or_gone() {
    let seeds = if std::env::var_os("MILLPOND_LONG").is_some() {
        400
    } else {
        24
    };
    let mut seen = std::collections::BTreeMap::<&str, u32>::new();
    for seed in 1..=seeds {
        eprintln!("seed {seed}");
        let found = one_with_checkpoints(seed, seed % 8 == 0).await;
        *seen.entry(found).or_default() += 1;
    }
    eprintln!("{seen:?}");
    let all = ["one", "a discard"].map(|what| seen.contains_key(what));
    assert_eq!(all, [true; 2], "{seen:?}");
}
