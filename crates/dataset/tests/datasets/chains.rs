//! Pools that were made so that a walk would not end: chains of snapshots, clones and directories
//! that lead back to where they began. Whoever walks them gets an error.

use crate::common::TestPool;
use dataset::{DatasetError, ListOptions};
use format::{DslDatasetPhys, DslDirPhys, Endian, ObjectId};
use object::Zap;

/// Changes a dataset's structure behind the pool's back, from its next opening on.
async fn change(pool: &TestPool, object: ObjectId, change: impl FnOnce(&mut DslDatasetPhys)) {
    let held = pool.dsl.mos().hold(object).await.expect("a dataset");
    let mut phys = DslDatasetPhys::decode(&held.bonus(), Endian::Little).expect("a dataset");
    change(&mut phys);
    let tx = pool.txgs.assign(0).await.expect("a txg");
    held.set_bonus(&tx, phys.encode().to_vec()).expect("is set");
    drop(tx);
    pool.sync().await;
}

async fn phys(pool: &TestPool, object: ObjectId) -> DslDatasetPhys {
    let held = pool.dsl.mos().hold(object).await.expect("a dataset");
    DslDatasetPhys::decode(&held.bonus(), Endian::Little).expect("a dataset")
}

async fn object(pool: &TestPool, name: &str) -> ObjectId {
    let found = pool.dsl.directories().lookup(name).await;
    found.expect("is there").object
}

/// A pool with `tank/a` and its snapshots 1, 2 and 3.
async fn three_snapshots() -> TestPool {
    let pool = TestPool::new(256 << 20).await;
    pool.create("tank/a", &[]).await.expect("created");
    for name in ["tank/a@1", "tank/a@2", "tank/a@3"] {
        let taken = pool.dsl.snapshots().take(&[name.into()], &[]).await;
        taken.expect("taken");
    }
    pool
}

fn is_damage<T: std::fmt::Debug>(outcome: Result<T, DatasetError>) -> bool {
    matches!(outcome, Err(DatasetError::Corrupt { .. }))
}

/// Goal: no walk along a chain of snapshots that is a circle goes on for ever. Method: the oldest
/// snapshot says that the newest one is before it; then what walks the chain.
#[tokio::test]
async fn a_circle_of_snapshots_is_damage() {
    let pool = three_snapshots().await;
    let (oldest, newest) = (
        object(&pool, "tank/a@1").await,
        object(&pool, "tank/a@3").await,
    );
    let of_newest = phys(&pool, newest).await;
    change(&pool, oldest, |phys| {
        phys.previous_snapshot = newest;
        phys.previous_snapshot_txg = of_newest.creation_txg;
    })
    .await;
    let pool = pool.reopen().await;
    let dsl = &pool.dsl;
    let taken = dsl.snapshots().take(&["tank@other".into()], &[]).await;
    taken.expect("the others are whole");
    // Nothing of this chain is found before it.
    let written = dsl.properties().get("tank/a", "written@tank@other").await;
    assert!(is_damage(written));
    let sent = dsl.sends().source("tank/a@2", Some("tank@other")).await;
    assert!(is_damage(sent.map(drop)));
    let everything = ListOptions::default();
    let listed = dsl.directories().list("tank", &everything).await;
    assert_eq!(listed.expect("a list").len(), 2);
}

/// Two heads that each say the other one is the snapshot before them are not loaded for ever.
#[tokio::test]
async fn a_circle_of_heads_is_damage() {
    let pool = TestPool::new(256 << 20).await;
    for name in ["tank/a", "tank/b"] {
        pool.create(name, &[]).await.expect("created");
    }
    let a = object(&pool, "tank/a").await;
    let b = object(&pool, "tank/b").await;
    change(&pool, a, |phys| phys.previous_snapshot = b).await;
    change(&pool, b, |phys| phys.previous_snapshot = a).await;
    let pool = pool.reopen().await;
    for name in ["tank/a", "tank/b"] {
        assert!(is_damage(pool.dsl.directories().lookup(name).await));
    }
    let everything = ListOptions::default();
    let directories = pool.dsl.directories();
    let listed = directories.list_readable("tank", &everything).await;
    let (listed, lost) = listed.expect("a list");
    assert_eq!((listed.len(), lost.len()), (1, 2));
}

/// A directory that is listed below itself is not walked for ever, nor are two that are each
/// above the other.
#[tokio::test]
async fn a_circle_of_directories_is_damage() {
    let pool = TestPool::new(256 << 20).await;
    for name in ["tank/a", "tank/a/b"] {
        pool.create(name, &[]).await.expect("created");
    }
    let mos = pool.dsl.mos();
    let (a, b) = (
        phys(&pool, object(&pool, "tank/a").await).await.directory,
        phys(&pool, object(&pool, "tank/a/b").await).await.directory,
    );
    let held = mos.hold(b).await.expect("a directory");
    let of_b = DslDirPhys::decode(&held.bonus(), Endian::Little).expect("a directory");
    let tx = pool.txgs.assign(0).await.expect("a txg");
    let below_b = Zap::hold(mos, of_b.child_directories).await.expect("a ZAP");
    below_b.add_u64(&tx, "a", a.get()).await.expect("is added");
    drop((tx, held, below_b));
    let pool = pool.reopen().await;
    let everything = ListOptions::default();
    let directories = pool.dsl.directories();
    let listed = directories.list_readable("tank", &everything).await;
    let (listed, lost) = listed.expect("a list");
    assert_eq!((listed.len(), lost.len()), (3, 1));
    assert_eq!(lost[0].0, "tank/a/b/a");
    assert!(is_damage(pool.dsl.directories().lookup("tank/a/b/a").await));
}

/// A directory that is listed where it is not is damage there, and found where it is: also when it
/// was looked for in the wrong place first.
#[tokio::test]
async fn a_directory_that_is_listed_elsewhere_too_keeps_its_place() {
    let pool = TestPool::new(256 << 20).await;
    for name in ["tank/a", "tank/b", "tank/b/c"] {
        pool.create(name, &[]).await.expect("created");
    }
    let mos = pool.dsl.mos();
    let (a, c) = (
        phys(&pool, object(&pool, "tank/a").await).await.directory,
        phys(&pool, object(&pool, "tank/b/c").await).await.directory,
    );
    let held = mos.hold(a).await.expect("a directory");
    let of_a = DslDirPhys::decode(&held.bonus(), Endian::Little).expect("a directory");
    let tx = pool.txgs.assign(0).await.expect("a txg");
    let below_a = Zap::hold(mos, of_a.child_directories).await.expect("a ZAP");
    below_a.add_u64(&tx, "x", c.get()).await.expect("is added");
    drop((tx, held, below_a));
    let pool = pool.reopen().await;
    assert!(is_damage(pool.dsl.directories().lookup("tank/a/x").await));
    let found = pool.dsl.directories().lookup("tank/b/c").await;
    assert_eq!(found.expect("is there").name, "tank/b/c");
}
