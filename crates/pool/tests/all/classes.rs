//! Goal: pools with log, cache, spare, special and dedup devices are right for OpenZFS's zdb,
//! whether made with them or given them later; metadata goes where it should; devices can be taken
//! away again, and log devices be lost. Method: pools on files, objects written through a dataset;
//! zdb after every step.

use crate::common::*;
use dataset::DirtyEstimate;
use device::World;
use format::{ObjectId, ObjectType, Txg};
use object::NewObject;
use pool::{
    AddSpec, FeatureState, ImportSpec, LeafSpec, MissingLogs, Pool, PoolError, PoolHealth,
    VdevClass, VdevLayout, VdevSpec, VdevState, VdevStatus,
};

fn classed(class: VdevClass, layout: VdevLayout) -> VdevSpec {
    VdevSpec { layout, class }
}

fn single(class: VdevClass, leaf: &LeafSpec) -> VdevSpec {
    classed(class, VdevLayout::Leaf(leaf.clone()))
}

fn mirror(class: VdevClass, leaves: &[LeafSpec]) -> VdevSpec {
    classed(class, VdevLayout::Mirror(leaves.to_vec()))
}

/// Ten files: a mirror, a mirrored log, a mirrored special vdev, and one each of dedup, cache and
/// spare.
fn everything(leaves: &[LeafSpec]) -> Vec<VdevSpec> {
    vec![
        mirror(VdevClass::Normal, &leaves[0..2]),
        mirror(VdevClass::Log, &leaves[2..4]),
        mirror(VdevClass::Special, &leaves[4..6]),
        single(VdevClass::Dedup, &leaves[6]),
        single(VdevClass::Cache, &leaves[7]),
        single(VdevClass::Spare, &leaves[8]),
        single(VdevClass::Spare, &leaves[9]),
    ]
}

fn top(pool: &Pool, class: VdevClass) -> VdevStatus {
    let tops = pool.status().root.children;
    tops.into_iter()
        .find(|top| top.class == class)
        .expect("such a vdev")
}

fn feature(pool: &Pool, name: &str) -> (FeatureState, u64) {
    let features = pool.properties().features();
    let feature = features.into_iter().find(|feature| feature.name == name);
    let feature = feature.expect("the feature");
    (feature.state, feature.refcount)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pool_is_made_with_every_class() {
    let world = World::system(2);
    let images = Images::new();
    let leaves = images.make(10, 64);
    let mut spec = spec("tank", everything(&leaves));
    spec.root_properties
        .push(("special_small_blocks".into(), "8K".into()));
    let pool = Pool::create(&world, spec).await.expect("create");
    let status = pool.status();
    assert_eq!(status.health, PoolHealth::Online);
    assert_eq!(status.root.children.len(), 4);
    assert_eq!((status.caches.len(), status.spares.len()), (1, 2));
    assert!(
        status
            .caches
            .iter()
            .chain(&status.spares)
            .all(|vdev| vdev.state == VdevState::Online)
    );
    assert_eq!(
        feature(&pool, "allocation_classes"),
        (FeatureState::Active, 2)
    );
    let dataset = pool.dsl().open_dataset("tank").await.expect("open");
    let objects = write_objects(&dataset, 12, 4).await;
    for _ in 0..5 {
        write_logged(&dataset).await;
    }
    assert!(
        top(&pool, VdevClass::Log).write_bytes > 5 * (128 << 10),
        "the intent log is on the log vdev"
    );
    pool.sync().await.expect("sync");
    let normal = top(&pool, VdevClass::Normal).allocated_bytes;
    let special = top(&pool, VdevClass::Special).allocated_bytes;
    // 48 blocks of data of 64 KiB, which compress; metadata only on the special vdev.
    assert!(special > 100 << 10, "{special}");
    assert!(normal > 1 << 20, "{normal}");

    // Small blocks go there, too; big ones do not.
    let before = top(&pool, VdevClass::Normal).allocated_bytes;
    for _ in 0..20 {
        let tx = dataset
            .assign(DirtyEstimate::write(8 << 10))
            .await
            .expect("assign");
        let new = NewObject::new(ObjectType::PLAIN_FILE_CONTENTS).with_block_bytes(8 << 10);
        let object = dataset.objset().allocate(&tx, new).await.expect("object");
        let data = content(object.id().get(), 0, 8 << 10);
        object.write(&tx, 0, data).await.expect("write");
    }
    pool.sync().await.expect("sync");
    assert_eq!(top(&pool, VdevClass::Normal).allocated_bytes, before);
    drop(dataset);
    pool.export(false).await.expect("export");
    zdb_is_clean(images.path(), "tank");
    let config = zdb(images.path(), "tank", &["-C"]);
    assert!(config.contains("is_log: 1"), "{config}");

    let pool = import(&world, images.path()).await;
    let status = pool.status();
    assert_eq!((status.caches.len(), status.spares.len()), (1, 2));
    assert!(status.caches[0].state == VdevState::Online);
    let dataset = pool.dsl().open_dataset("tank").await.expect("open");
    check_objects(&dataset, &objects, 4).await;
    free_objects(&dataset, &objects[..6]).await;
    drop(dataset);
    pool.export(false).await.expect("export");
    zdb_is_clean(images.path(), "tank");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_special_vdev_falls_back_to_the_normal_ones() {
    let world = World::system(2);
    let images = Images::new();
    let leaves = images.make(2, 256);
    let small = LeafSpec {
        path: images.path().join("s.img").to_str().expect("UTF-8").into(),
        is_file: true,
    };
    std::fs::File::create(&small.path)
        .and_then(|file| file.set_len(64 << 20))
        .expect("an image");
    let mut spec = spec(
        "tank",
        vec![
            single(VdevClass::Normal, &leaves[0]),
            single(VdevClass::Special, &small),
        ],
    );
    spec.root_properties
        .push(("special_small_blocks".into(), "128K".into()));
    spec.root_properties
        .push(("compression".into(), "off".into()));
    let pool = Pool::create(&world, spec).await.expect("create");
    let dataset = pool.dsl().open_dataset("tank").await.expect("open");
    let mut objects = Vec::new();
    for _ in 0..24 {
        objects.extend(write_objects(&dataset, 10, 4).await);
        pool.sync().await.expect("sync");
    }
    let special = top(&pool, VdevClass::Special);
    let normal = top(&pool, VdevClass::Normal);
    // Data stops short of the reserve for metadata, of which one txg may take some.
    assert!(
        special.allocated_bytes * 100 / special.size_bytes >= 70
            && special.allocated_bytes * 100 / special.size_bytes <= 95,
        "{} of {}",
        special.allocated_bytes,
        special.size_bytes
    );
    assert!(normal.allocated_bytes > 60 << 20);
    check_objects(&dataset, &objects, 4).await;
    drop(dataset);
    pool.export(false).await.expect("export");
    zdb_is_clean(images.path(), "tank");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn vdevs_of_every_class_are_added_and_some_removed() {
    let world = World::system(2);
    let images = Images::new();
    let leaves = images.make(12, 64);
    let pool = Pool::create(
        &world,
        spec("tank", vec![mirror(VdevClass::Normal, &leaves[0..2])]),
    )
    .await
    .expect("create");
    assert_eq!(
        feature(&pool, "allocation_classes").0,
        FeatureState::Enabled
    );
    let dataset = pool.dsl().open_dataset("tank").await.expect("open");
    let objects = write_objects(&dataset, 12, 4).await;
    write_logged(&dataset).await;
    let before = top(&pool, VdevClass::Normal).size_bytes;
    let add = |vdevs: Vec<VdevSpec>| AddSpec {
        vdevs,
        ..AddSpec::default()
    };
    for vdev in everything(&leaves).split_off(1) {
        pool.add(&add(vec![vdev])).await.expect("add");
    }
    pool.add(&add(vec![mirror(VdevClass::Normal, &leaves[10..12])]))
        .await
        .expect("add");
    // A device of the pool is not taken twice, not even by force.
    let again = AddSpec {
        force: true,
        ..add(vec![single(VdevClass::Normal, &leaves[0])])
    };
    assert!(matches!(
        pool.add(&again).await,
        Err(PoolError::BadVdevs { .. })
    ));
    assert_eq!(
        feature(&pool, "allocation_classes"),
        (FeatureState::Active, 2)
    );
    assert!(pool.numbers().size_bytes > 3 * before);
    let more = write_objects(&dataset, 30, 4).await;
    for _ in 0..5 {
        write_logged(&dataset).await;
    }
    pool.sync().await.expect("sync");
    let tops = pool.status().root.children;
    assert_eq!(tops.len(), 5);
    assert!(
        tops.iter()
            .all(|top| top.class == VdevClass::Dedup || top.write_bytes > 1 << 20),
        "{tops:?}"
    );
    // As after a crash.
    zdb_is_clean(images.path(), "tank");

    let log = top(&pool, VdevClass::Log);
    pool.remove(&log.name).await.expect("the log is removed");
    pool.remove(&leaves[7].path).await.expect("the cache");
    pool.remove("d8.img").await.expect("a spare");
    assert!(matches!(
        pool.remove(&leaves[0].path).await,
        Err(PoolError::CannotRemove { .. })
    ));
    assert!(matches!(
        pool.remove("nosuch").await,
        Err(PoolError::CannotRemove { .. })
    ));
    let status = pool.status();
    assert_eq!(status.root.children.len(), 4);
    assert_eq!((status.caches.len(), status.spares.len()), (0, 1));
    write_logged(&dataset).await;
    let new = format::Guid::new(4711);
    pool.change_guid(new).await.expect("reguid");
    assert_eq!(pool.guid(), new);
    write_logged(&dataset).await;
    drop(dataset);
    pool.export(false).await.expect("export");
    zdb_is_clean(images.path(), "tank");

    let found = find(&world, images.path()).await;
    assert_eq!(found.guid, new);
    let pool = Pool::import(&world, ImportSpec::new(found, host()))
        .await
        .expect("import");
    let status = pool.status();
    assert_eq!(status.root.children.len(), 4);
    assert_eq!((status.caches.len(), status.spares.len()), (0, 1));
    let dataset = pool.dsl().open_dataset("tank").await.expect("open");
    check_objects(&dataset, &objects, 4).await;
    check_objects(&dataset, &more, 4).await;
    // What was removed can be added again, and gets a new place.
    pool.add(&add(vec![mirror(VdevClass::Log, &leaves[2..4])]))
        .await
        .expect("the log again");
    write_logged(&dataset).await;
    assert!(top(&pool, VdevClass::Log).write_bytes > 128 << 10);
    // Those with data are emptied first.
    for class in [VdevClass::Special, VdevClass::Dedup] {
        let gone = top(&pool, class);
        let begun = pool.remove(&gone.name).await;
        begun.expect("it begins");
        let removal = pool::removal(&pool);
        removal.wait().await;
        let status = removal.status().expect("the last one");
        assert_eq!(status.state, pool::RemovalState::Finished);
        let has_some = class == VdevClass::Special;
        assert!(status.copied_bytes > 0 || !has_some, "{status:?}");
    }
    check_objects(&dataset, &objects, 4).await;
    check_objects(&dataset, &more, 4).await;
    drop(dataset);
    pool.export(false).await.expect("export");
    zdb_is_clean(images.path(), "tank");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pool_without_features_gets_them_later() {
    let world = World::system(2);
    let images = Images::new();
    let leaves = images.make(3, 64);
    let plain = pool::CreateSpec {
        features: pool::FeatureChoice::None,
        ..spec("tank", vec![single(VdevClass::Normal, &leaves[0])])
    };
    let pool = Pool::create(&world, plain).await.expect("create");
    let dataset = pool.dsl().open_dataset("tank").await.expect("open");
    let objects = write_objects(&dataset, 12, 4).await;
    free_objects(&dataset, &objects[..4]).await;
    pool.sync().await.expect("sync");
    let special = AddSpec {
        vdevs: vec![single(VdevClass::Special, &leaves[1])],
        ..AddSpec::default()
    };
    assert!(matches!(
        pool.add(&special).await,
        Err(PoolError::BadVdevs { .. })
    ));
    zdb_is_clean(images.path(), "tank");
    let enabled = pool
        .properties()
        .upgrade(&|name| name != "edonr")
        .await
        .expect("upgrade");
    assert!(enabled.contains(&"allocation_classes".to_owned()));
    assert_eq!(
        pool.properties().disabled_features(),
        ["edonr", "dynamic_gang_header"]
    );
    pool.add(&special).await.expect("add");
    let more = write_objects(&dataset, 12, 4).await;
    pool.sync().await.expect("sync");
    free_objects(&dataset, &objects[4..8]).await;
    check_objects(&dataset, &objects[8..], 4).await;
    check_objects(&dataset, &more, 4).await;
    drop(dataset);
    pool.export(false).await.expect("export");
    zdb_is_clean(images.path(), "tank");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_sector_size_needs_force() {
    let world = World::system(2);
    let images = Images::new();
    let leaves = images.make(3, 64);
    let mut spec = spec("tank", vec![single(VdevClass::Normal, &leaves[0])]);
    spec.properties.push(("ashift".into(), "12".into()));
    let pool = Pool::create(&world, spec).await.expect("create");
    let nine = AddSpec {
        vdevs: vec![single(VdevClass::Normal, &leaves[1])],
        ashift: Some(9),
        ..AddSpec::default()
    };
    let error = pool.add(&nine).await.expect_err("another ashift");
    assert!(
        matches!(
            error,
            PoolError::AshiftMismatch {
                new: 9,
                known: 12,
                ..
            }
        ),
        "{error}"
    );
    let forced = AddSpec {
        allow_ashift_mismatch: true,
        ..nine
    };
    pool.add(&forced).await.expect("allowed");
    let by_property = AddSpec {
        vdevs: vec![single(VdevClass::Normal, &leaves[2])],
        ..AddSpec::default()
    };
    pool.add(&by_property).await.expect("by the property");
    let shifts: Vec<u8> = pool
        .status()
        .root
        .children
        .iter()
        .map(|top| top.ashift)
        .collect();
    assert_eq!(shifts, [12, 9, 12]);
    let dataset = pool.dsl().open_dataset("tank").await.expect("open");
    let objects = write_objects(&dataset, 40, 4).await;
    pool.sync().await.expect("sync");
    check_objects(&dataset, &objects, 4).await;
    drop(dataset);
    pool.export(false).await.expect("export");
    zdb_is_clean(images.path(), "tank");
}

/// A pool with a single log device that was in use when the power went; returns what was synced.
async fn crashed_with_log(images: &Images, world: &World) -> Vec<ObjectId> {
    let leaves = images.make(3, 64);
    let pool = Pool::create(
        world,
        spec(
            "tank",
            vec![
                mirror(VdevClass::Normal, &leaves[0..2]),
                single(VdevClass::Log, &leaves[2]),
            ],
        ),
    )
    .await
    .expect("create");
    let dataset = pool.dsl().open_dataset("tank").await.expect("open");
    let objects = write_objects(&dataset, 12, 4).await;
    drop(dataset);
    let mut pool = pool;
    loop {
        let dataset = pool.dsl().open_dataset("tank").await.expect("open");
        // The first makes the log, for which a txg ends.
        write_logged(&dataset).await;
        pool.sync().await.expect("sync");
        let synced = pool.synced_txg();
        write_logged(&dataset).await;
        write_logged(&dataset).await;
        drop(dataset);
        drop(pool);
        tokio::time::sleep(std::time::Duration::from_millis(300)).await;
        let device = world.opener.open(&leaves[0].path, true).await;
        let labels = vdev::read_labels(&*device.expect("open")).await;
        let newest = labels
            .expect("labels")
            .best_uberblock(Txg::new(u64::MAX))
            .expect("an uberblock");
        // On a slow machine the txg may have ended in time, and the log is not needed. (Txgs
        // without changes have no uberblock.)
        if newest.txg <= synced {
            return objects;
        }
        pool = import(world, images.path()).await;
    }
}

async fn import_without_log(images: &Images, world: &World, objects: &[ObjectId]) {
    let found = find(world, images.path()).await;
    let error = Pool::import(world, ImportSpec::new(found.clone(), host()))
        .await
        .expect_err("the log is missing");
    let PoolError::MissingLog {
        datasets, devices, ..
    } = &error
    else {
        panic!("{error}")
    };
    assert_eq!(datasets, &["tank"]);
    let told = "may be lost in tank";
    assert!(error.to_string().contains(told), "{error}");
    assert!(devices[0].contains("d2.img [log]"), "{devices:?}");
    let if_unused = |found| ImportSpec {
        missing_logs: MissingLogs::AcceptedIfUnused,
        ..ImportSpec::new(found, host())
    };
    let error = Pool::import(world, if_unused(found.clone())).await;
    let error = error.expect_err("something is on the log");
    assert!(matches!(error, PoolError::MissingLog { .. }), "{error}");
    let without = ImportSpec {
        missing_logs: MissingLogs::Accepted,
        ..ImportSpec::new(found, host())
    };
    let pool = Pool::import(world, without).await.expect("import -m");
    assert_eq!(pool.health(), PoolHealth::Degraded);
    let dataset = pool.dsl().open_dataset("tank").await.expect("open");
    check_objects(&dataset, objects, 4).await;
    write_logged(&dataset).await;
    drop(dataset);
    // What it lost, it lost: from now on it comes without being told again.
    pool.export(false).await.expect("export");
    let found = find(world, images.path()).await;
    let refused = Pool::import(world, ImportSpec::new(found.clone(), host())).await;
    let error = refused.expect_err("nobody allowed it");
    assert!(error.to_string().contains("nothing is lost"), "{error}");
    let pool = Pool::import(world, if_unused(found)).await;
    let pool = pool.expect("nothing is on the log");
    assert_eq!(pool.health(), PoolHealth::Degraded);
    // The missing device can be removed; then the pool is whole again.
    let log = top(&pool, VdevClass::Log);
    pool.remove(&log.guid.to_string()).await.expect("remove");
    assert_eq!(pool.health(), PoolHealth::Online);
    pool.export(false).await.expect("export");
    zdb_is_clean(images.path(), "tank");
    let pool = import(world, images.path()).await;
    let dataset = pool.dsl().open_dataset("tank").await.expect("open");
    check_objects(&dataset, objects, 4).await;
    drop(dataset);
    pool.export(false).await.expect("export");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_missing_log_device_costs_only_what_was_in_it() {
    let world = World::system(2);
    let images = Images::new();
    let objects = crashed_with_log(&images, &world).await;
    std::fs::remove_file(images.path().join("d2.img")).expect("the log goes");
    import_without_log(&images, &world, &objects).await;
}

/// Logs of different sizes come and go while the log space maps that speak of them stay.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_id_of_a_removed_log_is_not_used_again() {
    const ROUNDS: usize = 6;
    let world = World::system(2);
    let images = Images::new();
    let leaves = images.make(4, 128);
    let bigger = std::fs::File::options().write(true).open(&leaves[3].path);
    bigger
        .and_then(|file| file.set_len(256 << 20))
        .expect("its size");
    let spec = spec("tank", vec![single(VdevClass::Normal, &leaves[0])]);
    let mut pool = Pool::create(&world, spec).await.expect("create");
    for round in 1..=ROUNDS {
        let log = &leaves[1 + round % 3];
        let add = AddSpec {
            vdevs: vec![single(VdevClass::Log, log)],
            force: true,
            ..AddSpec::default()
        };
        pool.add(&add).await.expect("add");
        let tops = pool.pipeline().tree().tops();
        let newest = tops.last().expect("a vdev");
        assert_eq!(newest.vdev_id().get() as usize, round);
        assert_eq!(newest.path().as_deref(), Some(&*log.path));
        let dataset = pool.dsl().open_dataset("tank").await.expect("open");
        write_logged(&dataset).await;
        drop(dataset);
        pool.sync().await.expect("sync");
        if round == ROUNDS {
            break;
        }
        pool.remove(&log.path).await.expect("remove");
        if round % 2 == 0 {
            pool.export(false).await.expect("export");
            drop(pool);
            zdb_is_clean(images.path(), "tank");
            pool = import(&world, images.path()).await;
        }
    }
    pool.export(false).await.expect("export");
    drop(pool);
    zdb_is_clean(images.path(), "tank");
    let pool = import(&world, images.path()).await;
    assert_eq!(pool.health(), PoolHealth::Online);
    pool.export(false).await.expect("export");
}

/// openzfs/zfs#2099: a log device full of garbage.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_corrupt_log_device_costs_only_what_was_in_it() {
    let world = World::system(2);
    let images = Images::new();
    let objects = crashed_with_log(&images, &world).await;
    std::fs::write(images.path().join("d2.img"), vec![0xa5; 64 << 20]).expect("garbage");
    import_without_log(&images, &world, &objects).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn golden_pools_with_classes_are_written_to() {
    let Some(golden) = golden() else { return };
    let world = World::system(2);
    for (name, class) in [
        ("logs_cache", VdevClass::Log),
        ("special", VdevClass::Special),
    ] {
        let images = Images::new();
        let dir = unpack(&golden, name, images.path());
        let pool = import(&world, &dir).await;
        assert_eq!(pool.health(), PoolHealth::Online);
        let dataset = pool.dsl().open_dataset(name).await.expect("open");
        let before = top(&pool, class).write_bytes;
        let objects = write_objects(&dataset, 12, 2).await;
        if class == VdevClass::Special {
            pool.sync().await.expect("sync");
        }
        // The first one begins the log, and waits for its group.
        write_logged(&dataset).await;
        write_logged(&dataset).await;
        let written = top(&pool, class).write_bytes - before;
        assert!(written >= 8 << 10, "{name}: {written}");
        check_objects(&dataset, &objects, 2).await;
        drop(dataset);
        pool.export(false).await.expect("export");
        zdb_is_clean(&dir, name);
        let pool = import(&world, &dir).await;
        assert_eq!(
            pool.status().caches.len(),
            usize::from(class == VdevClass::Log)
        );
        if class == VdevClass::Log {
            pool.remove("mirror-1").await.expect("the log is removed");
            pool.remove(&pool.status().caches[0].guid.to_string())
                .await
                .expect("the cache is removed");
            assert!(pool.status().caches.is_empty());
        }
        pool.export(false).await.expect("export");
        zdb_is_clean(&dir, name);
    }
}
