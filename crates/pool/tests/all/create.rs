//! Goal: what we create, OpenZFS's zdb finds nothing wrong with, on every layout.
//! Method: make a pool on files, write, overwrite and free through a dataset, export, run zdb,
//! import again, compare.

use crate::common::*;
use device::World;
use pool::{FoundState, ImportSpec, LeafSpec, Pool, PoolError, PoolHealth, VdevLayout, VdevSpec};

fn raidz(parity: u8, leaves: Vec<LeafSpec>) -> Vec<VdevSpec> {
    vec![normal(VdevLayout::Raidz { parity, leaves })]
}

/// The whole life of a pool on these vdevs.
async fn life(images: &Images, vdevs: Vec<VdevSpec>, ashift: &str) {
    let world = World::system(2);
    let mut spec = spec("tank", vdevs);
    spec.properties.push(("ashift".into(), ashift.into()));
    let pool = Pool::create(&world, spec).await.expect("create");
    assert_eq!(pool.health(), PoolHealth::Online);
    let dataset = pool.dsl().open_dataset("tank").await.expect("open");
    let first = write_objects(&dataset, 12, 4).await;
    pool.sync().await.expect("sync");
    let second = write_objects(&dataset, 8, 3).await;
    free_objects(&dataset, &first[..6]).await;
    pool.sync().await.expect("sync");
    free_objects(&dataset, &second[..4]).await;
    pool.log_history("zpool test", None).await.expect("history");
    drop(dataset);
    pool.export(false).await.expect("export");
    zdb_is_clean(images.path(), "tank");

    let found = find(&world, images.path()).await;
    assert_eq!(found.state, FoundState::Exported);
    let pool = Pool::import(&world, ImportSpec::new(found, host()))
        .await
        .expect("import");
    let dataset = pool.dsl().open_dataset("tank").await.expect("open");
    check_objects(&dataset, &first[6..], 4).await;
    check_objects(&dataset, &second[4..], 3).await;
    let third = write_objects(&dataset, 6, 5).await;
    pool.sync().await.expect("sync");
    check_objects(&dataset, &third, 5).await;
    drop(dataset);
    pool.export(false).await.expect("export");
    zdb_is_clean(images.path(), "tank");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_single_device() {
    let images = Images::new();
    let leaves = images.make(1, 128);
    life(
        &images,
        vec![normal(VdevLayout::Leaf(leaves[0].clone()))],
        "0",
    )
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stripe() {
    let images = Images::new();
    let vdevs = images
        .make(3, 64)
        .into_iter()
        .map(|leaf| normal(VdevLayout::Leaf(leaf)))
        .collect();
    life(&images, vdevs, "12").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mirrors() {
    let images = Images::new();
    let leaves = images.make(5, 64);
    let vdevs = vec![
        normal(VdevLayout::Mirror(leaves[..2].to_vec())),
        normal(VdevLayout::Mirror(leaves[2..].to_vec())),
    ];
    life(&images, vdevs, "9").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn raidz1() {
    let images = Images::new();
    let leaves = images.make(3, 64);
    life(&images, raidz(1, leaves), "9").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn raidz2() {
    let images = Images::new();
    let leaves = images.make(6, 64);
    life(&images, raidz(2, leaves), "12").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn raidz3() {
    let images = Images::new();
    let leaves = images.make(7, 64);
    life(&images, raidz(3, leaves), "12").await;
}

fn draid(parity: u8, data: u8, spares: u8, leaves: Vec<LeafSpec>) -> Vec<VdevSpec> {
    vec![normal(VdevLayout::Draid {
        parity,
        data,
        spares,
        leaves,
    })]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn draid_of_several_shapes() {
    for (parity, data, spares, children, ashift) in
        [(1, 2, 1, 5, "12"), (2, 3, 2, 11, "9"), (3, 1, 0, 5, "12")]
    {
        let images = Images::new();
        let leaves = images.make(children, 128);
        life(&images, draid(parity, data, spares, leaves), ashift).await;
    }
}

/// dRAID beside other vdevs, added later.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn draid_is_added() {
    let images = Images::new();
    let world = World::system(2);
    let mut leaves = images.make(8, 128);
    let others = leaves.split_off(2);
    let pool = Pool::create(
        &world,
        spec("tank", vec![normal(VdevLayout::Mirror(leaves))]),
    )
    .await
    .expect("create");
    let dataset = pool.dsl().open_dataset("tank").await.expect("open");
    let before = write_objects(&dataset, 6, 3).await;
    let add = pool::AddSpec {
        vdevs: draid(1, 3, 1, others),
        ..pool::AddSpec::default()
    };
    pool.add(&add).await.expect("add");
    let after = write_objects(&dataset, 30, 3).await;
    pool.sync().await.expect("sync");
    let used: Vec<u64> = pool
        .status()
        .root
        .children
        .iter()
        .map(|top| top.allocated_bytes)
        .collect();
    assert!(used[1] > 1 << 20, "{used:?}");
    assert_eq!(pool.status().spares.len(), 1);
    assert_eq!(pool.status().spares[0].name, "draid1-1-0");
    drop(dataset);
    pool.export(false).await.expect("export");
    zdb_is_clean(images.path(), "tank");
    let pool = import(&world, images.path()).await;
    let dataset = pool.dsl().open_dataset("tank").await.expect("open");
    check_objects(&dataset, &before, 3).await;
    check_objects(&dataset, &after, 3).await;
    drop(dataset);
    pool.export(false).await.expect("export");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_sector_size() {
    for ashift in ["10", "11", "13", "14", "15", "16"] {
        let images = Images::new();
        let leaves = images.make(2, 256);
        life(&images, vec![normal(VdevLayout::Mirror(leaves))], ashift).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn devices_in_use_are_left_alone() {
    let world = World::system(1);
    let images = Images::new();
    let leaves = images.make(1, 64);
    let vdevs = || vec![normal(VdevLayout::Leaf(leaves[0].clone()))];
    let pool = Pool::create(&world, spec("first", vdevs()))
        .await
        .expect("create");
    pool.export(false).await.expect("export");
    let error = Pool::create(&world, spec("second", vdevs()))
        .await
        .expect_err("in use");
    assert!(
        matches!(
            &error,
            PoolError::DeviceInUse {
                device_use: pool::DeviceUse::ExportedPool { pool },
                ..
            } if pool == "first"
        ),
        "{error}"
    );
    let forced = pool::CreateSpec {
        force: true,
        ..spec("second", vdevs())
    };
    let pool = Pool::create(&world, forced).await.expect("forced");
    pool.destroy(false).await.expect("destroy");
    assert_eq!(
        find(&world, images.path()).await.state,
        FoundState::Destroyed
    );
    // A destroyed pool's devices are free again.
    let pool = Pool::create(&world, spec("third", vdevs()))
        .await
        .expect("after destroy");
    pool.export(false).await.expect("export");
    zdb_is_clean(images.path(), "third");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn properties_and_history_last() {
    let world = World::system(1);
    let images = Images::new();
    let leaves = images.make(1, 64);
    let mut spec = spec("tank", vec![normal(VdevLayout::Leaf(leaves[0].clone()))]);
    spec.properties
        .push(("comment".into(), "made in a test".into()));
    spec.properties.push(("failmode".into(), "continue".into()));
    spec.properties
        .push(("feature@zstd_compress".into(), "disabled".into()));
    let pool = Pool::create(&world, spec).await.expect("create");
    pool.log_history("zpool create tank ...", None)
        .await
        .expect("history");
    pool.properties()
        .set("listsnapshots", "on")
        .await
        .expect("set");
    pool.properties()
        .set("org.example:colour", "blue")
        .await
        .expect("set");
    assert!(pool.properties().set("size", "1").await.is_err());
    pool.export(false).await.expect("export");
    zdb_is_clean(images.path(), "tank");
    let shown = zdb(images.path(), "tank", &["-h"]);
    assert!(shown.contains("zpool create tank ..."), "{shown}");
    assert!(shown.contains("set listsnapshots=1"), "{shown}");

    let pool = import(&world, images.path()).await;
    let value = |name: &str| {
        pool.properties()
            .get(name)
            .map(|prop| prop.value)
            .unwrap_or_default()
    };
    assert_eq!(value("comment"), "made in a test");
    assert_eq!(value("failmode"), "continue");
    assert_eq!(value("listsnapshots"), "on");
    assert_eq!(value("org.example:colour"), "blue");
    assert_eq!(value("feature@zstd_compress"), "disabled");
    assert_eq!(value("feature@log_spacemap"), "active");
    let history = pool.history().await.expect("history");
    let commands: Vec<String> = history
        .iter()
        .filter_map(|record| match &record.what {
            pool::HistoryWhat::Command(command) => Some(command.clone()),
            _ => None,
        })
        .collect();
    assert_eq!(commands, ["zpool create tank ..."]);
    pool.properties()
        .set("feature@zstd_compress", "enabled")
        .await
        .expect("enable");
    pool.export(false).await.expect("export");
    zdb_is_clean(images.path(), "tank");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn logs_of_space_maps_are_flushed_and_dropped() {
    let world = World::system(2);
    let images = Images::new();
    let leaves = images.make(1, 512);
    let vdevs = vec![normal(VdevLayout::Leaf(leaves[0].clone()))];
    let pool = Pool::create(&world, spec("tank", vdevs))
        .await
        .expect("create");
    let dataset = pool.dsl().open_dataset("tank").await.expect("open");
    let mut kept = Vec::new();
    for round in 0..40 {
        let objects = write_objects(&dataset, 3, 2).await;
        if round % 3 == 0 {
            kept.extend(objects);
        } else {
            free_objects(&dataset, &objects).await;
        }
        pool.sync().await.expect("sync");
    }
    assert!(pool.log_space_maps() > 1);
    // A crash: the logs stay, and are read at the next import.
    drop(dataset);
    drop(pool);
    tokio::time::sleep(std::time::Duration::from_millis(300)).await;
    zdb_is_clean(images.path(), "tank");
    let pool = import(&world, images.path()).await;
    assert!(pool.log_space_maps() > 1);
    let dataset = pool.dsl().open_dataset("tank").await.expect("open");
    check_objects(&dataset, &kept, 2).await;
    free_objects(&dataset, &kept).await;
    drop(dataset);
    pool.export(false).await.expect("export");
    zdb_is_clean(images.path(), "tank");
    let found = find(&world, images.path()).await;
    let mut spec = ImportSpec::new(found, host());
    spec.read_only = true;
    let pool = Pool::import(&world, spec).await.expect("read-only");
    assert_eq!(pool.log_space_maps(), 1, "export flushes all");
}
