//! Goal: after a power cut at any moment the pool imports at its last synced txg, with everything
//! that was synced, and its space maps are right.
//! Method: simulated disks with a volatile cache under a seed; the power goes at the n-th write or
//! flush; then import, compare, and for some seeds zdb on the disks' images.

use std::sync::Arc;

use crate::common::*;
use device::sim::{PowerCut, SimOp, SimWorld};
use engine::{LeafSpec, Pool, ScanSpec, VdevLayout, VdevSpec};
use format::ObjectId;
use parking_lot::Mutex;

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
            pool.export(false).await?;
            let spec = ScanSpec {
                paths: sim.disk_names(),
                ..ScanSpec::default()
            };
            let mut found = engine::scan(&sim.world(), &spec).await?;
            let found = found.pop().ok_or("no pool")?;
            pool = Pool::import(&sim.world(), engine::ImportSpec::new(found, host())).await?;
        }
    }
    Ok(())
}

async fn find_sim(sim: &SimWorld) -> engine::FoundPool {
    let spec = ScanSpec {
        paths: sim.disk_names(),
        ..ScanSpec::default()
    };
    let mut found = engine::scan(&sim.world(), &spec).await.expect("scan");
    assert_eq!(found.len(), 1);
    found.remove(0)
}

async fn one(seed: u64, with_zdb: bool) {
    let sim = SimWorld::new(seed);
    let vdevs = layout(seed, leaves(&sim, 3));
    let world = sim.world();
    let pool = Pool::create(&world, spec("tank", vdevs))
        .await
        .expect("create");
    let ledger = Arc::new(Ledger::default());
    // Anywhere from just after the creation to deep in the work.
    let count = sim.counts().get(SimOp::Write) + 1 + (seed * 7919) % 6000;
    sim.cut_power_at(SimOp::Write, count, PowerCut::Random);
    {
        let (sim, ledger) = (sim.clone(), ledger.clone());
        world.spawn.spawn(Box::pin(async move {
            drop(work(&sim, pool, &ledger).await);
        }));
    }
    tokio::select! {
        () = sim.power_lost() => {}
        () = tokio::time::sleep(std::time::Duration::from_secs(600)) => sim.power_cut(PowerCut::Random),
    }
    sim.kill_tasks().await;
    sim.power_on();

    let found = find_sim(&sim).await;
    let pool = Pool::import(&sim.world(), engine::ImportSpec::new(found, host()))
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
        let images = Images::new();
        for name in sim.disk_names() {
            let disk = sim.disk(&name).expect("a disk");
            disk.save_image(images.path().join(format!("{name}.img")))
                .expect("save");
        }
        zdb_is_clean(images.path(), "tank");
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
