//! Goal: a pool whose newest state is damaged, or not wanted, opens read-only at an older one, and
//! nothing is written while looking.
//! Method: small pools on files; the newest MOS is overwritten on the device.

mod common;

use std::os::unix::fs::FileExt;

use common::*;
use device::World;
use engine::{EngineError, ImportSpec, Pool, Rewind, VdevLayout};
use format::{LABEL_START_BYTES, Txg};

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
        pool.set_prop("comment", comment).await.expect("set");
        pool.sync().await.expect("sync");
        txgs.push(pool.status().synced_txg);
    }
    pool.export(false).await.expect("export");

    // A state by its number; the pool is not changed by looking at it.
    let before = contents(&path);
    let spec = read_only(&world, &images, Rewind::To(txgs[1])).await;
    let pool = Pool::import(&world, spec).await.expect("import");
    assert_eq!(pool.prop("comment").expect("comment").value, "two");
    let rewound = pool.rewound().expect("it went back");
    // Transaction groups in which nothing happened have no uberblock.
    assert!((txgs[0]..=txgs[1]).contains(&rewound.txg), "{rewound:?}");
    assert!(rewound.newest_txg > txgs[3]);
    pool.export(false).await.expect("close");
    let spec = read_only(&world, &images, Rewind::To(Txg::new(1))).await;
    let error = Pool::import(&world, spec).await.expect_err("too old");
    assert!(matches!(error, EngineError::NoState { .. }), "{error}");
    // Only the newest is written to.
    let mut spec = read_only(&world, &images, Rewind::To(txgs[1])).await;
    spec.read_only = false;
    let error = Pool::import(&world, spec).await.expect_err("for writing");
    assert!(
        matches!(error, EngineError::RewindReadOnly { .. }),
        "{error}"
    );
    let spec = read_only(&world, &images, Rewind::Checkpoint).await;
    let error = Pool::import(&world, spec).await.expect_err("no checkpoint");
    assert!(matches!(error, EngineError::NoCheckpoint { .. }), "{error}");
    assert!(contents(&path) == before, "looking changed the pool");

    // The newest MOS is lost, in all its copies.
    let device = world.opener.open(&path, true).await.expect("open");
    let labels = ::pool::vdev::read_labels(&*device).await.expect("labels");
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
    Pool::import(&world, spec).await.expect_err("it is damaged");
    for rewind in [Rewind::Recent, Rewind::Extreme] {
        let spec = read_only(&world, &images, rewind).await;
        let pool = Pool::import(&world, spec).await.expect("rewind");
        assert_eq!(pool.prop("comment").expect("comment").value, "four");
        let rewound = pool.rewound().expect("it went back");
        assert!(rewound.txg < newest.txg && rewound.newest_txg == newest.txg);
        pool.export(false).await.expect("close");
    }
    assert!(contents(&path) == before, "looking changed the pool");
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
    pool.set_prop("comment", "written").await.expect("set");
    pool.export(false).await.expect("export");
    zdb_is_clean(images.path(), "tank");
}
