//! Goal: a checkpoint keeps a state whole, whatever happens to the pool, until it is discarded, and then nothing of it
//! is left; a discard that was cut off goes on.
//! Method: small pools on files; zdb checks the pool's state, the checkpoint's, and that neither leaks.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::common::*;
use dataset::{Dataset, DirtyEstimate};
use device::World;
use engine::{EngineError, ImportSpec, Pool, Rewind, VdevLayout};
use format::ObjectId;

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
    let prop = pool.prop("checkpoint").expect("checkpoint");
    prop.number.unwrap_or(0)
}

fn feature(pool: &Pool) -> String {
    pool.prop("feature@zpool_checkpoint")
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
            matches!(error, EngineError::NoCheckpointToDiscard { .. }),
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
            pool.change_guid(None).await.map(|_| ()),
        ] {
            let error = result.expect_err("there is a checkpoint");
            assert!(
                matches!(error, EngineError::HasCheckpoint { .. }),
                "{error}"
            );
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
                matches!(error, EngineError::DiscardingCheckpoint { .. }),
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
        assert!(matches!(error, EngineError::NoCheckpoint { .. }), "{error}");

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
            .create_dataset(&extra, &[], Arc::new(BareFilesystem))
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
        assert!(pool.dsl().lookup(&extra).await.is_err());
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_the_feature_there_is_no_checkpoint() {
    let world = World::system(1);
    let images = Images::new();
    let leaves = images.make(1, 64);
    let mut create = spec("tank", vec![normal(VdevLayout::Leaf(leaves[0].clone()))]);
    create.features = engine::FeatureChoice::None;
    let pool = Pool::create(&world, create).await.expect("create");
    let error = pool.checkpoint().await.expect_err("no feature");
    assert!(
        matches!(&error, EngineError::CannotCheckpoint { why, .. } if why.contains("feature@")),
        "{error}"
    );
    pool.set_prop("feature@zpool_checkpoint", "enabled")
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
