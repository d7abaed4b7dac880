//! Goal: cache devices are used, found warm again after an export and an import, come and go while
//! the pool is in use, and are never a reason for an error. Method: pools on files and on simulated
//! disks; reads counted at the pool's own devices. What a cache device holds, to the bit: crates
//! `l2arc` and `zio`; both ways with OpenZFS: the command line's tests.

use std::sync::Arc;
use std::time::Duration;

use crate::common::*;
use device::World;
use format::ObjectId;
use pool::{AddSpec, ImportSpec, OfflineSpec, Pool, VdevClass, VdevLayout, VdevSpec, VdevState};
use pool::{LeafSpec, VdevStatus};

const BLOCKS: u64 = 8;

fn cache(leaf: &LeafSpec) -> VdevSpec {
    VdevSpec {
        layout: VdevLayout::Leaf(leaf.clone()),
        class: VdevClass::Cache,
    }
}

fn add(vdevs: Vec<VdevSpec>) -> AddSpec {
    AddSpec {
        vdevs,
        ashift: None,
        force: false,
        allow_ashift_mismatch: false,
    }
}

fn the_cache(pool: &Pool) -> VdevStatus {
    let mut caches = pool.status().caches;
    assert_eq!(caches.len(), 1);
    caches.remove(0)
}

/// Reads all objects, none of which is in memory.
async fn read_all(pool: &Pool, objects: &[ObjectId]) {
    let dataset = pool.dsl().open_dataset("tank").await.expect("open");
    pool.pipeline().cache().clear();
    check_objects(&dataset, objects, BLOCKS).await;
}

fn data_reads(pool: &Pool) -> u64 {
    pool.status().root.children[0].read_ops
}

/// Waits until the cache device is written with all that was offered, or read after an import.
async fn until_quiet(pool: &Pool) {
    let mut before = (u64::MAX, 0);
    loop {
        tokio::time::sleep(Duration::from_millis(300)).await;
        let status = the_cache(pool);
        let now = (status.write_bytes, status.allocated_bytes);
        if now == before {
            return;
        }
        before = now;
    }
}

async fn make(images: &Images) -> (Arc<Pool>, World, Vec<LeafSpec>, Vec<ObjectId>) {
    let world = World::system(2);
    let leaves = images.make(3, 1200);
    let vdevs = vec![
        normal(VdevLayout::Leaf(leaves[0].clone())),
        cache(&leaves[1]),
    ];
    let pool = Pool::create(&world, spec("tank", vdevs)).await;
    let pool = pool.expect("create");
    let dataset = pool.dsl().open_dataset("tank").await.expect("open");
    let objects = write_objects(&dataset, 40, BLOCKS).await;
    drop(dataset);
    pool.sync().await.expect("sync");
    (pool, world, leaves, objects)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cache_device_is_warm_after_an_import() {
    let images = Images::new();
    let (pool, world, _leaves, objects) = make(&images).await;
    // What comes faster than it is written is not waited for; it is offered again.
    for _ in 0..5 {
        read_all(&pool, &objects).await;
        until_quiet(&pool).await;
    }
    let status = the_cache(&pool);
    // 40 MiB, half of which compresses.
    assert!(status.allocated_bytes > 15 << 20, "{status:?}");
    assert!(status.size_bytes > 1100 << 20, "{status:?}");
    let before = (status.read_ops, data_reads(&pool));
    read_all(&pool, &objects).await;
    let hits = the_cache(&pool).read_ops - before.0;
    let reads = data_reads(&pool) - before.1;
    assert!(hits >= 320 && reads < 50, "{hits} hits, {reads} reads");

    pool.export(false).await.expect("export");
    let pool = import(&world, images.path()).await;
    until_quiet(&pool).await;
    assert!(the_cache(&pool).allocated_bytes > 15 << 20);
    let before = data_reads(&pool);
    read_all(&pool, &objects).await;
    let (hits, reads) = (the_cache(&pool).read_ops, data_reads(&pool) - before);
    assert!(hits >= 320 && reads < 100, "{hits} hits, {reads} reads");
    pool.export(false).await.expect("export");
    zdb_is_clean(images.path(), "tank");
    // One that only reads leaves it alone.
    let found = find(&world, images.path()).await;
    let mut spec = ImportSpec::new(found, host());
    spec.read_only = true;
    let pool = Pool::import(&world, spec).await.expect("import");
    read_all(&pool, &objects).await;
    assert_eq!(the_cache(&pool).read_ops, 0);
    pool.export(false).await.expect("export");
    // Without it the pool is as well.
    std::fs::remove_file(images.path().join("d1.img")).expect("the cache device");
    let pool = import(&world, images.path()).await;
    read_all(&pool, &objects).await;
    assert_eq!(the_cache(&pool).state, VdevState::CantOpen);
    pool.export(false).await.expect("export");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cache_devices_come_and_go_while_the_pool_is_in_use() {
    let images = Images::new();
    let (pool, _world, leaves, objects) = make(&images).await;
    let reading = {
        let (pool, objects) = (pool.clone(), objects.clone());
        tokio::spawn(async move {
            for _ in 0..30 {
                read_all(&pool, &objects).await;
            }
        })
    };
    let pause = || tokio::time::sleep(Duration::from_millis(200));
    for _ in 0..3 {
        pause().await;
        let offline = OfflineSpec::default();
        pool.offline("d1.img", offline).await.expect("offline");
        assert_eq!(the_cache(&pool).state, VdevState::Offline);
        pause().await;
        let online = pool.online("d1.img", false).await.expect("online");
        assert_eq!(
            (online.state, online.was_usable),
            (VdevState::Online, false)
        );
        pause().await;
        pool.remove("d1.img").await.expect("remove");
        assert!(pool.status().caches.is_empty());
        // It may be another's at once.
        pool.add(&add(vec![cache(&leaves[1]), cache(&leaves[2])]))
            .await
            .expect("add");
        pause().await;
        pool.remove("d2.img").await.expect("remove");
    }
    reading.await.expect("all reads were right");
    read_all(&pool, &objects).await;
    until_quiet(&pool).await;
    read_all(&pool, &objects).await;
    let status = the_cache(&pool);
    assert!(status.read_ops > 0, "{status:?}");
    assert_eq!((status.read_errors, status.checksum_errors), (0, 0));
    pool.export(false).await.expect("export");
    zdb_is_clean(images.path(), "tank");
}
