//! Goal: a pool that lost a vdev with data is opened on request, and only to be read: it tells what
//! it lacks, gives what has copies elsewhere, an error for the rest, and writes nothing. Method: a
//! stripe of three, of which one image is away, and comes back.

use crate::common::*;
use device::World;
use pool::{ImportSpec, Pool, PoolError, VdevLayout};

const RECORD: usize = 128 << 10;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_other_vdevs_hold_is_read_on_request() {
    let world = World::system(2);
    let images = Images::new();
    let leaves = images.make(3, 64);
    let vdevs = leaves.iter().cloned().map(VdevLayout::Leaf).map(normal);
    let made = Pool::create(&world, spec("tank", vdevs.collect())).await;
    let pool = made.expect("create");
    let dataset = pool.dsl().open_dataset("tank").await.expect("open");
    let objects = write_objects(&dataset, 24, 4).await;
    drop(dataset);
    pool.export(false).await.expect("export");
    drop(pool);
    let elsewhere = tempfile::tempdir().expect("a directory");
    let away = elsewhere.path().join("d1.img");
    std::fs::copy(&leaves[1].path, &away).expect("copied");
    std::fs::remove_file(&leaves[1].path).expect("gone");

    let found = find(&world, images.path()).await;
    let only_read = ImportSpec {
        read_only: true,
        ..ImportSpec::new(found.clone(), host())
    };
    let refused = Pool::import(&world, only_read.clone()).await;
    let error = refused.expect_err("nobody allowed it");
    assert!(matches!(error, PoolError::MissingDevices { .. }), "{error}");
    let written = ImportSpec {
        missing_data: true,
        ..ImportSpec::new(found, host())
    };
    let refused = Pool::import(&world, written).await;
    let error = refused.expect_err("it would be written");
    assert!(error.to_string().contains("readonly=on"), "{error}");

    let changed = || [0, 2].map(|at| std::fs::read(&leaves[at].path).expect("an image"));
    let before = changed();
    let rescue = ImportSpec {
        missing_data: true,
        ..only_read
    };
    let pool = Pool::import(&world, rescue).await.expect("rescued");
    let missing = pool::missing_data(&pool);
    assert!(
        missing.len() == 1 && missing[0].contains("d1.img"),
        "{missing:?}"
    );
    let dataset = pool.dsl().open_dataset("tank").await.expect("open");
    let (mut right, mut lost) = (0, 0);
    for id in &objects {
        let object = dataset
            .objset()
            .hold(*id)
            .await
            .expect("its dnode has copies");
        for block in 0..4 {
            match object.read_bytes(block * RECORD as u64, RECORD).await {
                Ok(data) => {
                    assert!(data == content(id.get(), block, RECORD), "{id} {block}");
                    right += 1;
                }
                Err(_) => lost += 1,
            }
        }
    }
    assert!(right > 10 && lost > 10, "{right} {lost}");
    drop(dataset);
    pool.export(false).await.expect("export");
    drop(pool);
    assert!(changed() == before, "something was written");

    std::fs::copy(&away, &leaves[1].path).expect("it is back");
    let pool = import(&world, images.path()).await;
    assert!(pool::missing_data(&pool).is_empty());
    let dataset = pool.dsl().open_dataset("tank").await.expect("open");
    check_objects(&dataset, &objects, 4).await;
    drop(dataset);
    pool.export(false).await.expect("export");
}
