//! Goal: a pool whose newest state is damaged, or not wanted, opens at an older one, and nothing is
//! written while looking; what is written then takes the newer states' place. Method: small pools
//! on files; the newest MOS is overwritten on the device.

use std::os::unix::fs::FileExt;
use std::sync::Arc;

use crate::common::*;
use dataset::DirtyEstimate;
use device::World;
use format::{LABEL_START_BYTES, ObjectId, ObjectType, Txg};
use pool::{ImportSpec, Pool, PoolError, PoolHealth, Rewind, VdevLayout};

async fn add(pool: &Pool, name: &str) {
    let init = Arc::new(BareFilesystem);
    pool.dsl()
        .datasets()
        .create(name, &[], init)
        .await
        .expect("create");
}

async fn read_only(world: &World, images: &Images, rewind: Rewind) -> ImportSpec {
    let mut spec = ImportSpec::new(find(world, images.path()).await, host());
    spec.read_only = true;
    spec.rewind = rewind;
    spec
}

fn contents(path: &str) -> Vec<u8> {
    std::fs::read(path).expect("the image")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_older_state_opens_when_the_newest_is_damaged() {
    let world = World::system(1);
    let images = Images::new();
    let leaves = images.make(1, 64);
    let path = leaves[0].path.clone();
    let vdevs = vec![normal(VdevLayout::Leaf(leaves[0].clone()))];
    let pool = Pool::create(&world, spec("tank", vdevs))
        .await
        .expect("create");
    let mut txgs = Vec::new();
    for comment in ["one", "two", "three", "four"] {
        pool.properties()
            .set("comment", comment)
            .await
            .expect("set");
        pool.sync().await.expect("sync");
        txgs.push(pool.status().synced_txg);
    }
    pool.export(false).await.expect("export");

    // A state by its number; the pool is not changed by looking at it.
    let before = contents(&path);
    let spec = read_only(&world, &images, Rewind::To(txgs[1])).await;
    let pool = Pool::import(&world, spec).await.expect("import");
    assert_eq!(
        pool.properties().get("comment").expect("comment").value,
        "two"
    );
    let rewound = pool.rewound().expect("it went back");
    // Transaction groups in which nothing happened have no uberblock.
    assert!((txgs[0]..=txgs[1]).contains(&rewound.txg), "{rewound:?}");
    assert!(rewound.newest_txg > txgs[3]);
    pool.export(false).await.expect("close");
    let spec = read_only(&world, &images, Rewind::To(Txg::new(1))).await;
    let error = Pool::import(&world, spec).await.expect_err("too old");
    assert!(matches!(error, PoolError::NoState { .. }), "{error}");
    let spec = read_only(&world, &images, Rewind::Checkpoint).await;
    let error = Pool::import(&world, spec).await.expect_err("no checkpoint");
    assert!(matches!(error, PoolError::NoCheckpoint { .. }), "{error}");
    assert!(contents(&path) == before, "looking changed the pool");

    // The newest MOS is lost, in all its copies.
    let device = world.opener.open(&path, true).await.expect("open");
    let labels = vdev::read_labels(&*device).await.expect("labels");
    let newest = labels
        .best_uberblock(Txg::new(u64::MAX))
        .expect("an uberblock");
    let file = std::fs::File::options()
        .write(true)
        .open(&path)
        .expect("the image");
    for dva in newest.root.dvas() {
        file.write_all_at(&[0x5a; 512], LABEL_START_BYTES + dva.offset_bytes())
            .expect("write");
    }
    let before = contents(&path);
    let spec = read_only(&world, &images, Rewind::No).await;
    let error = Pool::import(&world, spec).await;
    let error = error.expect_err("it is damaged");
    // What asks the user to try an older state.
    assert!(error.is_damage(), "{error}");
    for rewind in [Rewind::Recent, Rewind::Extreme] {
        let spec = read_only(&world, &images, rewind).await;
        let pool = Pool::import(&world, spec).await.expect("rewind");
        assert_eq!(
            pool.properties().get("comment").expect("comment").value,
            "four"
        );
        let rewound = pool.rewound().expect("it went back");
        assert!(rewound.txg < newest.txg && rewound.newest_txg == newest.txg);
        pool.export(false).await.expect("close");
    }
    assert!(contents(&path) == before, "looking changed the pool");

    // For writing: the damaged state is given up.
    let mut spec = read_only(&world, &images, Rewind::Recent).await;
    spec.read_only = false;
    let pool = Pool::import(&world, spec).await.expect("import -F");
    assert!(pool.status().synced_txg > newest.txg);
    pool.properties().set("comment", "five").await.expect("set");
    pool.export(false).await.expect("export");
    zdb_is_clean(images.path(), "tank");
    let spec = read_only(&world, &images, Rewind::No).await;
    let pool = Pool::import(&world, spec).await.expect("import");
    assert_eq!(
        pool.properties().get("comment").expect("comment").value,
        "five"
    );
    pool.export(false).await.expect("close");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_older_state_is_written_to() {
    let world = World::system(1);
    let images = Images::new();
    let leaves = images.make(2, 64);
    let vdevs = leaves
        .iter()
        .map(|leaf| normal(VdevLayout::Leaf(leaf.clone())))
        .collect();
    let pool = Pool::create(&world, spec("tank", vdevs))
        .await
        .expect("create");
    pool.sync().await.expect("sync");
    add(&pool, "tank/early").await;
    pool.sync().await.expect("sync");
    let then = pool.status().synced_txg;
    for name in ["tank/late", "tank/later"] {
        add(&pool, name).await;
        pool.sync().await.expect("sync");
    }
    pool.export(false).await.expect("export");
    for name in ["tank/other", "tank/another"] {
        let mut spec = read_only(&world, &images, Rewind::To(then)).await;
        spec.read_only = false;
        let pool = Pool::import(&world, spec).await.expect("import -T");
        assert!(pool.rewound().is_some());
        for (known, is_there) in [
            ("tank/early", true),
            ("tank/late", false),
            ("tank/other", false),
        ] {
            let found = pool.dsl().directories().lookup(known).await;
            assert_eq!(
                found.is_ok(),
                is_there,
                "{known} before {name}: {:?}",
                found.err()
            );
        }
        add(&pool, name).await;
        pool.export(false).await.expect("export");
        zdb_is_clean(images.path(), "tank");
        let spec = read_only(&world, &images, Rewind::No).await;
        let pool = Pool::import(&world, spec).await.expect("import");
        assert!(pool.dsl().directories().lookup(name).await.is_ok());
        assert!(pool.dsl().directories().lookup("tank/later").await.is_err());
        pool.export(false).await.expect("close");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_whole_pool_needs_no_rewind_and_can_be_written() {
    let world = World::system(1);
    let images = Images::new();
    let leaves = images.make(1, 64);
    let vdevs = vec![normal(VdevLayout::Leaf(leaves[0].clone()))];
    let pool = Pool::create(&world, spec("tank", vdevs))
        .await
        .expect("create");
    pool.export(false).await.expect("export");
    let mut spec = read_only(&world, &images, Rewind::Recent).await;
    spec.read_only = false;
    let pool = Pool::import(&world, spec).await.expect("import -F");
    assert!(pool.rewound().is_none());
    pool.properties()
        .set("comment", "written")
        .await
        .expect("set");
    pool.export(false).await.expect("export");
    zdb_is_clean(images.path(), "tank");
}

/// What the checkpoint has stays while the pool changes: zdb checks both states.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_checkpoint_stays_whole_while_the_pool_changes() {
    let Some(golden) = golden() else { return };
    let images = Images::new();
    let dir = unpack(&golden, "checkpoint", images.path());
    let world = World::system(1);
    let pool = import(&world, &dir).await;
    let used = |pool: &Pool| {
        pool.properties()
            .get("checkpoint")
            .expect("checkpoint")
            .number
    };
    let before = used(&pool);
    let dataset = pool.dsl().open_dataset("checkpoint").await.expect("open");
    for _ in 0..3 {
        let objects = write_objects(&dataset, 20, 4).await;
        pool.sync().await.expect("sync");
        free_objects(&dataset, &objects[..10]).await;
        pool.sync().await.expect("sync");
    }
    // Files that the checkpoint has as well.
    let mut changed = 0;
    for id in 1..500 {
        let Ok(object) = dataset.objset().hold(ObjectId::new(id)).await else {
            continue;
        };
        if object.info().object_type == ObjectType::PLAIN_FILE_CONTENTS && object.used_bytes() > 0 {
            let tx = dataset
                .assign(DirtyEstimate::write(512))
                .await
                .expect("assign");
            let data = content(id, 0, 512);
            object.write(&tx, 0, data).await.expect("write");
            changed += 1;
        }
    }
    assert!(changed > 10, "{changed}");
    drop(dataset);
    pool.dsl()
        .destroyer()
        .destroy("checkpoint/new")
        .await
        .expect("destroy");
    pool.sync().await.expect("sync");
    assert!(
        used(&pool) > before,
        "what the checkpoint has is not counted"
    );
    let error = pool.remove("d0.img").await.expect_err("remove");
    assert!(matches!(error, PoolError::HasCheckpoint { .. }), "{error}");
    let error = pool
        .change_guid(format::Guid::new(4711))
        .await
        .expect_err("reguid");
    assert!(matches!(error, PoolError::HasCheckpoint { .. }), "{error}");
    pool.export(false).await.expect("export");
    zdb_is_clean(&dir, "checkpoint");

    // Once more, from what is on disk.
    let pool = import(&world, &dir).await;
    let dataset = pool.dsl().open_dataset("checkpoint").await.expect("open");
    write_objects(&dataset, 20, 4).await;
    drop(dataset);
    pool.export(false).await.expect("export");
    zdb_is_clean(&dir, "checkpoint");

    let mut spec = ImportSpec::new(find(&world, &dir).await, host());
    spec.rewind = Rewind::Checkpoint;
    let pool = Pool::import(&world, spec).await.expect("rewind");
    assert!(
        pool.dsl()
            .directories()
            .lookup("checkpoint/will_go")
            .await
            .is_ok()
    );
    let dataset = pool.dsl().open_dataset("checkpoint").await.expect("open");
    let objects = write_objects(&dataset, 20, 4).await;
    drop(dataset);
    pool.export(false).await.expect("export");
    zdb_is_clean(&dir, "checkpoint");
    let pool = import(&world, &dir).await;
    assert!(
        pool.dsl()
            .directories()
            .lookup("checkpoint/new")
            .await
            .is_err()
    );
    assert!(pool.status().checkpoint.is_none());
    let dataset = pool.dsl().open_dataset("checkpoint").await.expect("open");
    check_objects(&dataset, &objects, 4).await;
    drop(dataset);
    pool.export(false).await.expect("close");
}

/// Labels do not tell which vdevs were removed: what they seem to miss is not needed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pools_with_removed_vdevs_go_back() {
    let Some(golden) = golden() else { return };
    let images = Images::new();
    let dir = unpack(&golden, "removed", images.path());
    let world = World::system(1);
    let found = || find(&world, &dir);
    for rewind in [Rewind::Recent, Rewind::Extreme] {
        let mut spec = ImportSpec::new(found().await, host());
        (spec.force, spec.rewind) = (true, rewind);
        let pool = Pool::import(&world, spec).await.expect("import -F");
        assert!(pool.rewound().is_none());
        pool.export(false).await.expect("export");
    }
    let mut spec = ImportSpec::new(found().await, host());
    (spec.force, spec.rewind) = (true, Rewind::Checkpoint);
    let error = Pool::import(&world, spec).await.expect_err("none");
    assert!(matches!(error, PoolError::NoCheckpoint { .. }), "{error}");
    zdb_is_clean(&dir, "removed");
}

/// Who goes back behind a detach has both devices again: the one that stayed goes by the guid of
/// the mirror that it was left alone in.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_mirror_is_whole_before_its_detach() {
    let world = World::system(1);
    let images = Images::new();
    let leaves = images.make(2, 64);
    let gone = leaves[1].path.clone();
    let vdevs = vec![normal(VdevLayout::Mirror(leaves))];
    let pool = Pool::create(&world, spec("tank", vdevs))
        .await
        .expect("create");
    add(&pool, "tank/early").await;
    pool.sync().await.expect("sync");
    let then = pool.status().synced_txg;
    pool.detach(&gone).await.expect("detach");
    pool.export(false).await.expect("export");
    let mut spec = read_only(&world, &images, Rewind::To(then)).await;
    spec.read_only = false;
    let pool = Pool::import(&world, spec).await.expect("import -T");
    assert_eq!(pool.health(), PoolHealth::Online);
    assert_eq!(pool.status().root.children[0].children.len(), 2);
    add(&pool, "tank/other").await;
    pool.export(false).await.expect("export");
    zdb_is_clean(images.path(), "tank");
    let spec = read_only(&world, &images, Rewind::No).await;
    let pool = Pool::import(&world, spec).await.expect("import");
    assert_eq!(pool.health(), PoolHealth::Online);
    for name in ["tank/early", "tank/other"] {
        let found = pool.dsl().directories().lookup(name).await;
        found.unwrap_or_else(|error| panic!("{name}: {error}"));
    }
    pool.export(false).await.expect("close");
}
