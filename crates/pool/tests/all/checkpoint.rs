//! Goal: a checkpoint keeps a state whole, whatever happens to the pool, until it is discarded, and
//! then nothing of it is left; a discard that was cut off goes on. Method: small pools on files;
//! zdb checks the pool's state, the checkpoint's, and that neither leaks.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::common::*;
use dataset::{Dataset, DirtyEstimate};
use device::World;
use format::ObjectId;
use pool::{
    AddSpec, ImportSpec, LeafSpec, Pool, PoolError, Rewind, VdevClass, VdevLayout, VdevSpec,
};

async fn make(world: &World, images: &Images, layout: usize) -> Arc<Pool> {
    let leaves = images.make(4, 128);
    let vdevs = match layout {
        0 => vec![
            normal(VdevLayout::Leaf(leaves[0].clone())),
            normal(VdevLayout::Mirror(leaves[1..3].to_vec())),
        ],
        _ => vec![normal(VdevLayout::Raidz { parity: 1, leaves })],
    };
    Pool::create(world, spec("tank", vdevs))
        .await
        .expect("create")
}

async fn open(pool: &Pool) -> Dataset {
    pool.dsl().open_dataset("tank").await.expect("open")
}

async fn overwrite(dataset: &Dataset, objects: &[ObjectId]) {
    for id in objects {
        let object = dataset.objset().hold(*id).await.expect("hold");
        let tx = dataset
            .assign(DirtyEstimate::write(512))
            .await
            .expect("assign");
        let data = content(id.get() + 1000, 7, 512);
        object.write(&tx, 0, data).await.expect("write");
    }
}

/// Every second object is freed, in several transaction groups; some of the others are written.
async fn change(pool: &Pool, dataset: &Dataset, objects: &[ObjectId]) -> Vec<ObjectId> {
    let mut kept = Vec::new();
    for (index, chunk) in objects.chunks(8).enumerate() {
        let freed: Vec<ObjectId> = chunk.iter().step_by(2).copied().collect();
        free_objects(dataset, &freed).await;
        if index == 0 {
            overwrite(dataset, &[chunk[1]]).await;
            kept.extend(chunk.iter().skip(3).step_by(2));
        } else {
            kept.extend(chunk.iter().skip(1).step_by(2));
        }
        pool.sync().await.expect("sync");
    }
    kept
}

fn checkpoint_bytes(pool: &Pool) -> u64 {
    let prop = pool.properties().get("checkpoint").expect("checkpoint");
    prop.number.unwrap_or(0)
}

fn feature(pool: &Pool) -> String {
    pool.properties()
        .get("feature@zpool_checkpoint")
        .expect("feature")
        .value
}

/// zdb finds nothing wrong with the state that the checkpoint has.
fn zdb_of_checkpoint(dir: &Path) {
    let text = zdb(dir, "tank", &["-k", "-bcc"]);
    assert!(text.contains("No leaks"), "{text}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_checkpoint_is_kept_and_a_discard_goes_on_after_a_crash() {
    for layout in 0..2 {
        let world = World::system(1);
        let images = Images::new();
        let pool = make(&world, &images, layout).await;
        let error = pool.discard_checkpoint().await.expect_err("there is none");
        assert!(
            matches!(error, PoolError::NoCheckpointToDiscard { .. }),
            "{error}"
        );
        let dataset = open(&pool).await;
        let objects = write_objects(&dataset, 64, 3).await;
        assert_eq!(feature(&pool), "enabled");
        pool.checkpoint().await.expect("checkpoint");
        assert_eq!(feature(&pool), "active");
        // Blocks of the MOS that were written again.
        assert!(checkpoint_bytes(&pool) < 256 << 10);
        let kept = change(&pool, &dataset, &objects).await;
        check_objects(&dataset, &kept, 3).await;
        let used = checkpoint_bytes(&pool);
        assert!(used > 32 * 3 * 4096, "{used}");
        for result in [
            pool.checkpoint().await,
            pool.remove("d0.img").await,
            pool.change_guid(format::Guid::new(4711)).await,
        ] {
            let error = result.expect_err("there is a checkpoint");
            assert!(matches!(error, PoolError::HasCheckpoint { .. }), "{error}");
        }
        drop(dataset);
        pool.export(false).await.expect("export");
        zdb_is_clean(images.path(), "tank");
        zdb_of_checkpoint(images.path());

        // Discarded one range at a time, and cut off.
        let pool = import(&world, images.path()).await;
        let used = checkpoint_bytes(&pool);
        let allocated = pool.numbers().allocated_bytes;
        pool.set_discard_step(1);
        pool.discard_checkpoint().await.expect("discard");
        assert!(pool.is_discarding());
        let refused = [
            pool.discard_checkpoint().await,
            pool.checkpoint().await,
            pool.remove("d0.img").await,
        ];
        for result in refused {
            let error = result.expect_err("it is being discarded");
            assert!(
                matches!(error, PoolError::DiscardingCheckpoint { .. }),
                "{error}"
            );
        }
        drop(pool);
        tokio::time::sleep(Duration::from_millis(200)).await;
        zdb_is_clean(images.path(), "tank");
        let mut spec = ImportSpec::new(find(&world, images.path()).await, host());
        spec.read_only = true;
        let pool = Pool::import(&world, spec).await.expect("import");
        assert!(pool.is_discarding());
        let checkpoint = pool.status().checkpoint.expect("what is left of it");
        assert_eq!(checkpoint.created_s, None);
        let left: u64 = checkpoint.space_bytes.values().sum();
        assert!(0 < left && left < used, "{left} of {used}");
        pool.export(false).await.expect("close");
        let mut spec = ImportSpec::new(find(&world, images.path()).await, host());
        spec.rewind = Rewind::Checkpoint;
        let error = Pool::import(&world, spec).await.expect_err("it is gone");
        assert!(matches!(error, PoolError::NoCheckpoint { .. }), "{error}");

        let pool = import(&world, images.path()).await;
        let mut tries = 0;
        while pool.is_discarding() {
            tries += 1;
            assert!(tries < 1000, "it does not end");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        assert_eq!(feature(&pool), "enabled");
        assert_eq!(checkpoint_bytes(&pool), 0);
        assert!(pool.status().checkpoint.is_none());
        for _ in 0..3 {
            pool.sync().await.expect("sync");
        }
        let now = pool.numbers().allocated_bytes;
        assert!(now + used / 2 < allocated, "{now} of {allocated}");
        let dataset = open(&pool).await;
        check_objects(&dataset, &kept, 3).await;
        // What was freed is used again.
        let objects = write_objects(&dataset, 32, 3).await;
        check_objects(&dataset, &objects, 3).await;
        drop(dataset);
        let history = pool.history().await.expect("history");
        let events: Vec<String> = history
            .iter()
            .map(|record| format!("{:?}", record.what))
            .filter(|event| event.contains("spa ") && event.contains("checkpoint"))
            .collect();
        assert_eq!(events.len(), 3, "{events:?}");
        pool.export(false).await.expect("export");
        zdb_is_clean(images.path(), "tank");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_pool_goes_back_to_checkpoints_again_and_again() {
    let world = World::system(1);
    let images = Images::new();
    let mut pool = make(&world, &images, 0).await;
    let dataset = open(&pool).await;
    let mut objects = write_objects(&dataset, 24, 3).await;
    drop(dataset);
    for round in 0..3 {
        // At once after the changes before, and after idle transaction groups.
        if round > 0 {
            for _ in 0..round {
                pool.sync().await.expect("sync");
            }
        }
        pool.checkpoint().await.expect("checkpoint");
        let dataset = open(&pool).await;
        change(&pool, &dataset, &objects).await;
        write_objects(&dataset, 10, 2).await;
        drop(dataset);
        let extra = format!("tank/extra{round}");
        pool.dsl()
            .datasets()
            .create(&extra, &[], Arc::new(BareFilesystem))
            .await
            .expect("create");
        if round == 1 {
            // A crash instead of an export.
            pool.sync().await.expect("sync");
            drop(pool);
            tokio::time::sleep(Duration::from_millis(200)).await;
        } else {
            pool.export(false).await.expect("export");
        }
        let mut spec = ImportSpec::new(find(&world, images.path()).await, host());
        spec.rewind = Rewind::Checkpoint;
        pool = Pool::import(&world, spec).await.expect("rewind");
        assert!(pool.status().checkpoint.is_none());
        assert_eq!(feature(&pool), "enabled");
        assert!(pool.dsl().directories().lookup(&extra).await.is_err());
        let dataset = open(&pool).await;
        check_objects(&dataset, &objects, 3).await;
        objects.extend(write_objects(&dataset, 8, 3).await);
        drop(dataset);
        pool.export(false).await.expect("export");
        zdb_is_clean(images.path(), "tank");
        pool = import(&world, images.path()).await;
    }
    let dataset = open(&pool).await;
    check_objects(&dataset, &objects, 3).await;
    drop(dataset);
    pool.export(false).await.expect("export");
}

/// Who asks for something need not wait until it is done; then it was done, or not, and the pool
/// goes on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_that_nobody_waits_for_do_no_harm() {
    let world = World::system(1);
    let images = Images::new();
    let pool = make(&world, &images, 0).await;
    for round in 0..60 {
        let patience = Duration::from_micros(round * 400);
        let _ = tokio::time::timeout(patience, pool.checkpoint()).await;
        let made = pool.checkpoint().await;
        assert!(pool.status().checkpoint.is_some(), "{round}: {made:?}");
        let _ = tokio::time::timeout(patience, pool.discard_checkpoint()).await;
        let discarded = pool.discard_checkpoint().await;
        while pool.is_discarding() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let left = pool.status().checkpoint;
        assert!(left.is_none(), "{round}: {discarded:?}");
    }
    pool.sync().await.expect("sync");
    pool.export(false).await.expect("export");
    zdb_is_clean(images.path(), "tank");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_the_feature_there_is_no_checkpoint() {
    let world = World::system(1);
    let images = Images::new();
    let leaves = images.make(1, 64);
    let mut create = spec("tank", vec![normal(VdevLayout::Leaf(leaves[0].clone()))]);
    create.features = pool::FeatureChoice::None;
    let pool = Pool::create(&world, create).await.expect("create");
    let error = pool.checkpoint().await.expect_err("no feature");
    assert!(
        matches!(&error, PoolError::CannotCheckpoint { why, .. } if why.contains("feature@")),
        "{error}"
    );
    pool.properties()
        .set("feature@zpool_checkpoint", "enabled")
        .await
        .expect("enable");
    let dataset = open(&pool).await;
    let objects = write_objects(&dataset, 16, 2).await;
    pool.checkpoint().await.expect("checkpoint");
    change(&pool, &dataset, &objects).await;
    drop(dataset);
    pool.discard_checkpoint().await.expect("discard");
    // It goes on while the pool is left.
    pool.export(false).await.expect("export");
    zdb_is_clean(images.path(), "tank");
    let pool = import(&world, images.path()).await;
    while pool.is_discarding() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    pool.export(false).await.expect("export");
    zdb_is_clean(images.path(), "tank");
}

/// With a checkpoint whatever is freed takes space: the pool gets full, says so, and is as good as
/// new once the checkpoint is gone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pool_that_its_checkpoint_fills_is_not_stuck() {
    let world = World::system(1);
    let images = Images::new();
    let leaves = images.make(1, 256);
    let vdevs = vec![normal(VdevLayout::Leaf(leaves[0].clone()))];
    let pool = Pool::create(&world, spec("tank", vdevs))
        .await
        .expect("create");
    pool.dsl()
        .datasets()
        .create("tank/gone", &[], Arc::new(BareFilesystem))
        .await
        .expect("create");
    let gone = pool.dsl().open_dataset("tank/gone").await.expect("open");
    write_objects(&gone, 40, 4).await;
    drop(gone);
    let dataset = open(&pool).await;
    let mut objects = write_objects(&dataset, 260, 4).await;
    pool.sync().await.expect("sync");
    let before = pool.numbers();
    pool.checkpoint().await.expect("checkpoint");
    let mut refused = 0;
    for round in 0..160u64 {
        pool.sync().await.expect("sync");
        // Freed and written anew until neither goes on.
        let freed = match objects.pop() {
            Some(id) => try_free_objects(&dataset, &[id]).await,
            None => Ok(()),
        };
        let wrote = try_write_objects(&dataset, 1, 4).await;
        if let Ok(made) = &wrote {
            objects.splice(0..0, made.iter().copied());
        }
        if freed.is_err() || wrote.is_err() {
            refused += 1;
        }
        let comment = pool.properties().set("comment", &round.to_string()).await;
        comment.expect("a property");
        if round == 100 {
            match pool.dsl().destroyer().destroy("tank/gone").await {
                Ok(()) | Err(dataset::DatasetError::NoSpace { .. }) => {}
                Err(error) => panic!("{error}"),
            }
        }
    }
    assert!(refused > 20, "{refused}");
    assert!(pool.status().suspended_why.is_none());
    let dataset_used = objects.len() as u64 * 512 * 1024;
    drop(dataset);
    pool.export(false).await.expect("export");
    zdb_is_clean(images.path(), "tank");
    zdb_of_checkpoint(images.path());
    let pool = import(&world, images.path()).await;
    pool.discard_checkpoint().await.expect("discard");
    while pool.is_discarding() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    for _ in 0..5 {
        pool.sync().await.expect("sync");
    }
    let after = pool.numbers();
    assert!(
        after.allocated_bytes < before.allocated_bytes + dataset_used,
        "{} of {}",
        after.allocated_bytes,
        before.allocated_bytes
    );
    let dataset = open(&pool).await;
    free_objects(&dataset, &objects).await;
    pool.sync().await.expect("sync");
    let objects = write_objects(&dataset, 60, 4).await;
    check_objects(&dataset, &objects, 4).await;
    drop(dataset);
    pool.export(false).await.expect("export");
    zdb_is_clean(images.path(), "tank");
}

/// Going back leaves vdevs that came later, with what was in the intent log on them; those the
/// checkpoint knows are used as before, and the others can be added again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_added_after_the_checkpoint_is_left() {
    let world = World::system(1);
    let images = Images::new();
    let leaves = images.make(4, 128);
    let of = |class, index: usize| VdevSpec {
        layout: VdevLayout::Leaf(leaves[index].clone()),
        class,
    };
    let vdevs = vec![of(VdevClass::Normal, 0), of(VdevClass::Log, 1)];
    let pool = Pool::create(&world, spec("tank", vdevs))
        .await
        .expect("create");
    let dataset = open(&pool).await;
    let objects = write_objects(&dataset, 24, 3).await;
    let mut logged = vec![write_logged(&dataset).await];
    pool.checkpoint().await.expect("checkpoint");
    logged.push(write_logged(&dataset).await);
    let more = AddSpec {
        vdevs: vec![of(VdevClass::Normal, 2), of(VdevClass::Log, 3)],
        ..AddSpec::default()
    };
    pool.add(&more).await.expect("add");
    change(&pool, &dataset, &objects).await;
    write_objects(&dataset, 100, 3).await;
    pool.sync().await.expect("sync");
    logged.push(write_logged(&dataset).await);
    // A crash, with logs that nobody replayed: all files are copied as they are at one moment, in
    // an open txg that cannot end, and none is being written.
    let open_txg = dataset
        .assign(DirtyEstimate::metadata())
        .await
        .expect("assign");
    while pool.synced_txg().next() != open_txg.txg() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let after = Images::new();
    for index in 0..4 {
        let name = format!("d{index}.img");
        std::fs::copy(images.path().join(&name), after.path().join(&name)).expect("copy");
    }
    drop(open_txg);
    let mut spec = ImportSpec::new(find(&world, after.path()).await, host());
    spec.rewind = Rewind::Checkpoint;
    spec.force = true;
    let rewound = Pool::import(&world, spec).await.expect("rewind");
    assert_eq!(rewound.status().root.children.len(), 2);
    let of_past = open(&rewound).await;
    check_objects(&of_past, &objects, 3).await;
    check_objects(&of_past, &logged[..1], 1).await;
    assert!(of_past.objset().hold(logged[1]).await.is_err());
    assert!(!of_past.log().expect("a log").needs_replay());
    let made = write_objects(&of_past, 30, 3).await;
    let again = write_logged(&of_past).await;
    drop(of_past);
    rewound.export(false).await.expect("export");
    zdb_is_clean(after.path(), "tank");
    let rewound = import(&world, after.path()).await;
    let added = [2, 3].map(|index| {
        let path = after.path().join(format!("d{index}.img"));
        LeafSpec {
            path: path.to_str().expect("UTF-8").into(),
            is_file: true,
        }
    });
    let more = AddSpec {
        vdevs: [VdevClass::Normal, VdevClass::Log]
            .into_iter()
            .zip(&added)
            .map(|(class, leaf)| VdevSpec {
                layout: VdevLayout::Leaf(leaf.clone()),
                class,
            })
            .collect(),
        force: true,
        ..AddSpec::default()
    };
    rewound.add(&more).await.expect("add");
    let of_past = open(&rewound).await;
    check_objects(&of_past, &made, 3).await;
    check_objects(&of_past, &[again], 1).await;
    drop(of_past);
    rewound.export(false).await.expect("export");
    zdb_is_clean(after.path(), "tank");
    drop(dataset);
    pool.export(false).await.expect("export");
}
