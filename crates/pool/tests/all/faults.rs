//! Goal: a failing device is survived where redundancy allows, and where not, the pool stops and
//! says so, and goes on or can be left.
//! Method: simulated disks with faults.

use std::time::Duration;

use crate::common::*;
use device::sim::{Fault, FaultEffect, SimOp, SimWorld};
use pool::{ImportSpec, LeafSpec, Pool, PoolHealth, ScanSpec, VdevLayout, VdevState};

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

async fn import_sim(sim: &SimWorld) -> std::sync::Arc<Pool> {
    let spec = ScanSpec {
        paths: sim.disk_names(),
        ..ScanSpec::default()
    };
    let found = pool::scan(&sim.world(), &spec)
        .await
        .expect("scan")
        .remove(0);
    Pool::import(&sim.world(), ImportSpec::new(found, host()))
        .await
        .expect("import")
}

fn save(sim: &SimWorld) -> Images {
    let images = Images::new();
    for name in sim.disk_names() {
        let disk = sim.disk(&name).expect("a disk");
        disk.save_image(images.path().join(format!("{name}.img")))
            .expect("save");
    }
    images
}

#[tokio::test(start_paused = true)]
async fn a_suspended_pool_says_so_and_goes_on_after_clear() {
    let sim = SimWorld::new(7);
    let leaf = leaves(&sim, 1).remove(0);
    let world = sim.world();
    let pool = Pool::create(&world, spec("tank", vec![normal(VdevLayout::Leaf(leaf))]))
        .await
        .expect("create");
    let dataset = pool.dsl().open_dataset("tank").await.expect("open");
    let before = write_objects(&dataset, 2, 2).await;
    pool.sync().await.expect("sync");
    let disk = sim.disk("disk0").expect("a disk");
    disk.inject(Fault::new(SimOp::Write, FaultEffect::Error));
    let after = write_objects(&dataset, 2, 2).await;
    let syncing = {
        let pool = pool.clone();
        tokio::spawn(async move { pool.sync().await })
    };
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert!(pool.suspended().is_some());
    assert_eq!(pool.health(), PoolHealth::Suspended);
    assert!(!syncing.is_finished());
    let error = pool.export(false).await.expect_err("suspended");
    assert!(error.to_string().contains("zpool clear"), "{error}");
    // Reading goes on.
    check_objects(&dataset, &before, 2).await;

    disk.clear_faults();
    pool.clear(None).await.expect("clear");
    syncing.await.expect("joined").expect("synced");
    assert_eq!(pool.health(), PoolHealth::Online);
    check_objects(&dataset, &after, 2).await;
    drop(dataset);
    pool.export(false).await.expect("export");
    let pool = import_sim(&sim).await;
    let dataset = pool.dsl().open_dataset("tank").await.expect("open");
    check_objects(&dataset, &before, 2).await;
    check_objects(&dataset, &after, 2).await;
    drop(dataset);
    pool.export(false).await.expect("export");
    zdb_is_clean(save(&sim).path(), "tank");
}

#[tokio::test(start_paused = true)]
async fn a_suspended_pool_can_be_left_by_force() {
    let sim = SimWorld::new(8);
    let leaf = leaves(&sim, 1).remove(0);
    let world = sim.world();
    let pool = Pool::create(&world, spec("tank", vec![normal(VdevLayout::Leaf(leaf))]))
        .await
        .expect("create");
    let dataset = pool.dsl().open_dataset("tank").await.expect("open");
    let before = write_objects(&dataset, 2, 2).await;
    pool.sync().await.expect("sync");
    let disk = sim.disk("disk0").expect("a disk");
    disk.set_gone(true);
    write_objects(&dataset, 2, 2).await;
    let syncing = {
        let pool = pool.clone();
        tokio::spawn(async move { pool.sync().await })
    };
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert_eq!(pool.health(), PoolHealth::Suspended);
    drop(dataset);
    pool.export(true).await.expect("forced export");
    syncing
        .await
        .expect("joined")
        .expect_err("what was not written is lost");
    disk.set_gone(false);
    let pool = import_sim(&sim).await;
    let dataset = pool.dsl().open_dataset("tank").await.expect("open");
    check_objects(&dataset, &before, 2).await;
    drop(dataset);
    pool.export(false).await.expect("export");
    zdb_is_clean(save(&sim).path(), "tank");
}

#[tokio::test(start_paused = true)]
async fn a_device_that_comes_back_is_not_trusted_with_what_it_missed() {
    let sim = SimWorld::new(9);
    let leaves = leaves(&sim, 3);
    let world = sim.world();
    let vdevs = vec![normal(VdevLayout::Raidz { parity: 1, leaves })];
    let pool = Pool::create(&world, spec("tank", vdevs))
        .await
        .expect("create");
    let dataset = pool.dsl().open_dataset("tank").await.expect("open");
    let before = write_objects(&dataset, 3, 2).await;
    pool.sync().await.expect("sync");
    let disk = sim.disk("disk1").expect("a disk");
    disk.set_gone(true);
    let missed = write_objects(&dataset, 6, 2).await;
    pool.sync().await.expect("sync");
    assert_eq!(pool.health(), PoolHealth::Degraded);
    let status = pool.status();
    let leaf = &status.root.children[0].children[1];
    assert!(leaf.state < VdevState::Degraded, "{leaf:?}");
    check_objects(&dataset, &missed, 2).await;
    drop(dataset);
    pool.export(false).await.expect("export");

    disk.set_gone(false);
    let pool = import_sim(&sim).await;
    let dataset = pool.dsl().open_dataset("tank").await.expect("open");
    check_objects(&dataset, &before, 2).await;
    check_objects(&dataset, &missed, 2).await;
    let leaf = pool.status().root.children[0].children[1].clone();
    assert_eq!(
        leaf.checksum_errors, 0,
        "stale data was read from {}",
        leaf.name
    );
    let more = write_objects(&dataset, 2, 2).await;
    pool.sync().await.expect("sync");
    check_objects(&dataset, &more, 2).await;
    drop(dataset);
    pool.export(false).await.expect("export");
    // zdb as well reads around what the device missed.
    zdb_is_clean(save(&sim).path(), "tank");
}
