//! Datasets over a pool in memory: what each operation does to contents, names, properties and
//! accounts. After every step [`common::TestPool::check`] compares all accounts with a walk over
//! every block.

mod chains;
mod common;
mod golden;
mod many;
mod programs;
mod scale;
mod space;
mod torture;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use common::TestPool;
use dataset::{
    Credentials, Dataset, DatasetError, DatasetKind, DirtyEstimate, GrantChange, Grantee, Limited,
    ListOptions, PropertyChange, PropertySource, PropertyValue,
};
use device::{BoxFuture, Clock};
use format::{ObjectId, ObjectType};
use object::NewObject;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

/// Objects used by the tests: beyond what the initialisers make.
const OBJECT: u64 = 100;

async fn write(dataset: &Dataset, object: u64, offset: u64, data: Vec<u8>) {
    try_write(dataset, object, offset, data)
        .await
        .expect("room");
}

async fn try_write(
    dataset: &Dataset,
    object: u64,
    offset: u64,
    data: Vec<u8>,
) -> Result<(), DatasetError> {
    let tx = dataset
        .assign(DirtyEstimate::write(data.len() as u64).in_blocks_of(4096))
        .await?;
    let id = ObjectId::new(object);
    let held = match dataset.objset().hold(id).await {
        Ok(held) => held,
        Err(error) if error.is_not_found() => dataset
            .objset()
            .claim(
                &tx,
                id,
                NewObject::new(ObjectType::PLAIN_FILE_CONTENTS).with_block_bytes(4096),
            )
            .await
            .expect("claimed"),
        Err(error) => panic!("{error}"),
    };
    held.write(&tx, offset, data.into()).await.expect("written");
    Ok(())
}

async fn read(dataset: &Dataset, object: u64, length: usize) -> Vec<u8> {
    match dataset.objset().hold(ObjectId::new(object)).await {
        Ok(held) => held.read_bytes(0, length).await.expect("readable").to_vec(),
        Err(error) if error.is_not_found() => vec![0; length],
        Err(error) => panic!("{error}"),
    }
}

fn random(rng: &mut StdRng, length: usize) -> Vec<u8> {
    let mut data = vec![0; length];
    rng.fill(&mut data[..]);
    data
}

fn text(value: &PropertyValue) -> &str {
    value.text().expect("text")
}

async fn set(pool: &TestPool, name: &str, property: &str, value: &str) -> Result<(), DatasetError> {
    pool.dsl
        .properties()
        .set(
            name,
            &[(property.to_owned(), PropertyChange::Set(value.to_owned()))],
        )
        .await
}

async fn names(pool: &TestPool) -> Vec<String> {
    let options = ListOptions {
        snapshots: true,
        ..ListOptions::default()
    };
    let list = pool
        .dsl
        .directories()
        .list("tank", &options)
        .await
        .expect("a list");
    list.into_iter().map(|info| info.name).collect()
}

#[tokio::test]
async fn a_new_pool_is_whole_and_opens_again() {
    let pool = TestPool::new(256 << 20).await;
    pool.check().await;
    assert_eq!(names(&pool).await, ["tank"]);
    let root = pool
        .dsl
        .directories()
        .lookup("tank")
        .await
        .expect("the root");
    assert_eq!(root.kind, DatasetKind::Filesystem);
    assert_eq!(root.createtxg.get(), 1);
    let pool = pool.reopen().await;
    pool.check().await;
    let again = pool
        .dsl
        .directories()
        .lookup("tank")
        .await
        .expect("the root");
    assert_eq!(again.guid, root.guid);
    assert_eq!(again.referenced_bytes, root.referenced_bytes);
    let features = pool.dsl.features();
    assert!(features.is_active("com.delphix:extensible_dataset"));
    assert!(features.is_active("org.zfsonlinux:userobj_accounting"));
    // Those before feature enabled_txg in the list were enabled without their txg on record.
    assert_eq!(features.refcount("com.delphix:enabled_txg"), Some(39));
}

#[tokio::test]
async fn names_and_kinds_are_checked() {
    let pool = TestPool::new(256 << 20).await;
    pool.create("tank/fs", &[]).await.expect("created");
    pool.create("tank/fs/deep", &[]).await.expect("created");
    pool.create("tank/vol", &[("volsize", "1M"), ("volblocksize", "8K")])
        .await
        .expect("created");
    for (name, expected) in [
        ("tank/fs", "exists"),
        ("tank/none/x", "does not exist"),
        ("tank/vol/x", "parent is not a filesystem"),
        ("tank/a//b", "empty component"),
        ("other/x", "does not exist"),
    ] {
        let error = pool.create(name, &[]).await.expect_err(name).to_string();
        assert!(error.contains(expected), "{name}: {error}");
    }
    assert!(
        pool.create("tank/bad", &[("compression", "lz5")])
            .await
            .is_err()
    );
    assert!(pool.create("tank/bad", &[("volmode", "x")]).await.is_err());
    assert!(pool.create("tank/bad", &[("used", "1")]).await.is_err());
    assert_eq!(pool.number("tank/vol", "volsize").await, 1 << 20);
    assert_eq!(pool.number("tank/vol", "volblocksize").await, 8192);
    assert_eq!(pool.number("tank/fs", "version").await, 5);
    assert!(
        pool.dsl
            .properties()
            .get("tank/fs", "volsize")
            .await
            .is_err()
    );
    assert_eq!(
        names(&pool).await,
        ["tank", "tank/fs", "tank/fs/deep", "tank/vol"]
    );
    assert!(matches!(
        pool.dsl.destroyer().destroy("tank/fs").await,
        Err(DatasetError::HasChildren { .. })
    ));
    let held = pool.dsl.open_dataset("tank/fs/deep").await.expect("opens");
    assert!(matches!(
        pool.dsl.destroyer().destroy("tank/fs/deep").await,
        Err(DatasetError::Busy { .. })
    ));
    drop(held);
    pool.dsl
        .destroyer()
        .destroy("tank/fs/deep")
        .await
        .expect("destroyed");
    pool.dsl
        .destroyer()
        .destroy("tank/fs")
        .await
        .expect("destroyed");
    pool.dsl
        .destroyer()
        .destroy("tank/vol")
        .await
        .expect("destroyed");
    assert!(matches!(
        pool.dsl.destroyer().destroy("tank").await,
        Err(DatasetError::WrongKind { .. })
    ));
    assert_eq!(names(&pool).await, ["tank"]);
    pool.check().await;
}

#[tokio::test]
async fn properties_are_inherited_and_change_what_is_open() {
    let pool = TestPool::new(256 << 20).await;
    pool.create("tank/a", &[("org.example:colour", "blue")])
        .await
        .expect("created");
    pool.create("tank/a/b", &[]).await.expect("created");
    let setting =
        async |name: &str, property: &str| pool.dsl.properties().get(name, property).await;
    let open = pool.dsl.open_dataset("tank/a/b").await.expect("opens");
    assert_eq!(open.settings().record_bytes, 128 << 10);
    let mut watched = open.watch_settings();
    set(&pool, "tank/a", "recordsize", "1M").await.expect("set");
    set(&pool, "tank/a", "compression", "zstd-7")
        .await
        .expect("set");
    assert_eq!(open.settings().record_bytes, 1 << 20);
    assert!(watched.has_changed().expect("open"));
    watched.mark_unchanged();
    let written = open.objset().properties();
    assert_eq!(written.compression, format::Compression::Zstd);
    assert_eq!(written.zstd_level.to_string(), "zstd-7");
    let inherited = setting("tank/a/b", "compression").await.expect("known");
    assert_eq!(inherited.source, PropertySource::Inherited("tank/a".into()));
    assert_eq!(inherited.value, PropertyValue::Number(16 | 7 << 7));
    let local = setting("tank/a", "compression").await.expect("known");
    assert_eq!(local.source, PropertySource::Local);
    let user = setting("tank/a/b", "org.example:colour")
        .await
        .expect("known");
    assert_eq!(text(&user.value), "blue");
    assert_eq!(user.source, PropertySource::Inherited("tank/a".into()));

    let mountpoint = setting("tank/a/b", "mountpoint").await.expect("known");
    assert_eq!(text(&mountpoint.value), "/tank/a/b");
    assert_eq!(mountpoint.source, PropertySource::Default);
    set(&pool, "tank", "mountpoint", "/srv/x/")
        .await
        .expect("set");
    let mountpoint = setting("tank/a/b", "mountpoint").await.expect("known");
    assert_eq!(text(&mountpoint.value), "/srv/x/a/b");
    set(&pool, "tank", "mountpoint", "legacy")
        .await
        .expect("set");
    let mountpoint = setting("tank/a/b", "mountpoint").await.expect("known");
    assert_eq!(text(&mountpoint.value), "legacy");

    pool.dsl
        .properties()
        .set(
            "tank/a",
            &[
                ("compression".to_owned(), PropertyChange::Inherit),
                ("org.example:colour".to_owned(), PropertyChange::Inherit),
            ],
        )
        .await
        .expect("inherited");
    let inherited = setting("tank/a/b", "compression").await.expect("known");
    assert_eq!(inherited.source, PropertySource::Inherited("tank".into()));
    assert!(setting("tank/a/b", "org.example:colour").await.is_err());
    // quota is not inherited.
    set(&pool, "tank/a", "quota", "100M").await.expect("set");
    assert_eq!(
        setting("tank/a/b", "quota").await.expect("known").source,
        PropertySource::Default
    );
    // A snapshot has user properties of its own.
    pool.dsl
        .snapshots()
        .take(&["tank/a@s".into()], &[("x:y".into(), "z".into())])
        .await
        .expect("taken");
    assert_eq!(
        text(&setting("tank/a@s", "x:y").await.expect("known").value),
        "z"
    );
    assert!(set(&pool, "tank/a@s", "compression", "on").await.is_err());
    set(&pool, "tank/a@s", "x:z", "1").await.expect("set");
    set(&pool, "tank", "redundant_metadata", "some")
        .await
        .expect("set");
    assert_eq!(pool.number("tank", "redundant_metadata").await, 2);
    drop(open);
    let pool = pool.reopen().await;
    assert_eq!(pool.number("tank/a/b", "recordsize").await, 1 << 20);
    assert_eq!(pool.number("tank", "redundant_metadata").await, 2);
    assert_eq!(pool.number("tank/a", "quota").await, 100 << 20);
    let all = pool.dsl.properties().all("tank/a@s").await.expect("all");
    assert!(all.iter().any(|setting| setting.name == "x:z"));
    assert!(all.iter().all(|setting| setting.name != "quota"));
    let all = pool.dsl.properties().all("tank/a").await.expect("all");
    assert_eq!(all[0].name, "type");
    assert_eq!(text(&all[0].value), "filesystem");
    pool.check().await;
}

#[tokio::test]
async fn snapshots_are_atomic_and_keep_what_was() {
    let pool = TestPool::new(512 << 20).await;
    let mut rng = StdRng::seed_from_u64(3);
    for name in ["tank/a", "tank/a/b", "tank/c"] {
        pool.create(name, &[]).await.expect("created");
    }
    let a = pool.dsl.open_dataset("tank/a").await.expect("opens");
    let first = random(&mut rng, 300_000);
    write(&a, OBJECT, 0, first.clone()).await;
    pool.dsl
        .snapshots()
        .take(&["tank/a@1".into(), "tank/a/b@1".into()], &[])
        .await
        .expect("taken");
    // One that exists spoils all.
    let error = pool
        .dsl
        .snapshots()
        .take(&["tank/c@1".into(), "tank/a@1".into()], &[])
        .await
        .expect_err("it exists");
    assert!(matches!(error, DatasetError::Exists { .. }));
    assert!(pool.dsl.directories().lookup("tank/c@1").await.is_err());
    pool.check().await;
    let second = random(&mut rng, 300_000);
    write(&a, OBJECT, 0, second.clone()).await;
    let snapshot = pool.dsl.open_dataset("tank/a@1").await.expect("opens");
    assert_eq!(read(&snapshot, OBJECT, 300_000).await, first);
    assert_eq!(read(&a, OBJECT, 300_000).await, second);
    assert!(snapshot.assign(DirtyEstimate::metadata()).await.is_err());
    assert_eq!(snapshot.name(), "tank/a@1");
    pool.check().await;
    assert!(pool.number("tank/a@1", "used").await >= 300_000);
    assert!(pool.number("tank/a", "written").await >= 300_000);
    assert_eq!(
        pool.number("tank/a", "written@1").await,
        pool.number("tank/a", "written").await
    );
    drop(snapshot);
    pool.dsl
        .directories()
        .rename("tank/a@1", "tank/a@one")
        .await
        .expect("renamed");
    pool.dsl
        .snapshots()
        .rename_all("tank/a", "one", "two")
        .await
        .expect("renamed");
    assert!(pool.dsl.directories().lookup("tank/a@two").await.is_ok());
    assert!(pool.dsl.directories().lookup("tank/a/b@1").await.is_ok());
    drop(a);
    assert!(matches!(
        pool.dsl.destroyer().destroy("tank/a/b").await,
        Err(DatasetError::HasSnapshots { .. })
    ));
    let pool = pool.reopen().await;
    pool.check().await;
    let snapshot = pool.dsl.open_dataset("tank/a@two").await.expect("opens");
    assert_eq!(read(&snapshot, OBJECT, 300_000).await, first);
    drop(snapshot);
    pool.dsl
        .destroyer()
        .destroy_snapshots(&["tank/a@two".into(), "tank/a/b@1".into()], false)
        .await
        .expect("destroyed");
    pool.check().await;
}

#[tokio::test]
async fn clones_hold_their_origin_and_can_be_promoted() {
    let pool = TestPool::new(512 << 20).await;
    let mut rng = StdRng::seed_from_u64(4);
    pool.create("tank/a", &[]).await.expect("created");
    let a = pool.dsl.open_dataset("tank/a").await.expect("opens");
    let original = random(&mut rng, 400_000);
    write(&a, OBJECT, 0, original.clone()).await;
    for name in ["tank/a@1", "tank/a@2", "tank/a@3"] {
        pool.dsl
            .snapshots()
            .take(&[name.into()], &[])
            .await
            .expect("taken");
        write(&a, OBJECT + 1, 0, random(&mut rng, 100_000)).await;
    }
    pool.dsl
        .datasets()
        .clone_snapshot(
            "tank/a@2",
            "tank/c",
            &[("compression".into(), "lz4".into())],
        )
        .await
        .expect("cloned");
    pool.check().await;
    let c = pool.dsl.open_dataset("tank/c").await.expect("opens");
    assert_eq!(read(&c, OBJECT, 400_000).await, original);
    write(&c, OBJECT, 100_000, random(&mut rng, 100_000)).await;
    pool.check().await;
    assert!(matches!(
        pool.dsl.destroyer().destroy("tank/a@2").await,
        Err(DatasetError::HasClones { .. })
    ));
    let clones = pool
        .dsl
        .properties()
        .get("tank/a@2", "clones")
        .await
        .expect("known");
    assert_eq!(text(&clones.value), "tank/c");
    let origin = pool
        .dsl
        .properties()
        .get("tank/c", "origin")
        .await
        .expect("known");
    assert_eq!(text(&origin.value), "tank/a@2");
    pool.dsl
        .snapshots()
        .take(&["tank/c@mine".into()], &[])
        .await
        .expect("taken");
    write(&c, OBJECT, 0, random(&mut rng, 50_000)).await;
    pool.check().await;
    drop(c);
    pool.dsl
        .snapshots()
        .promote("tank/c")
        .await
        .expect("promoted");
    pool.check().await;
    assert_eq!(
        names(&pool).await,
        [
            "tank",
            "tank/a",
            "tank/a@3",
            "tank/c",
            "tank/c@1",
            "tank/c@2",
            "tank/c@mine"
        ]
    );
    let origin = pool
        .dsl
        .properties()
        .get("tank/a", "origin")
        .await
        .expect("known");
    assert_eq!(text(&origin.value), "tank/c@2");
    drop(a);
    let pool = pool.reopen().await;
    pool.check().await;
    // Deferred: goes with the last clone.
    pool.dsl
        .destroyer()
        .destroy_snapshots(&["tank/c@2".into()], true)
        .await
        .expect("deferred");
    assert_eq!(pool.number("tank/c@2", "defer_destroy").await, 1);
    pool.dsl
        .destroyer()
        .destroy("tank/a@3")
        .await
        .expect("destroyed");
    pool.dsl
        .destroyer()
        .destroy("tank/a")
        .await
        .expect("destroyed");
    assert!(pool.dsl.directories().lookup("tank/c@2").await.is_err());
    pool.check().await;
}

#[tokio::test]
async fn rollback_brings_back_the_snapshot() {
    let pool = TestPool::new(512 << 20).await;
    let mut rng = StdRng::seed_from_u64(5);
    pool.create("tank/a", &[]).await.expect("created");
    let a = pool.dsl.open_dataset("tank/a").await.expect("opens");
    let kept = random(&mut rng, 500_000);
    write(&a, OBJECT, 0, kept.clone()).await;
    pool.dsl
        .snapshots()
        .take(&["tank/a@1".into()], &[])
        .await
        .expect("taken");
    write(&a, OBJECT, 0, random(&mut rng, 500_000)).await;
    write(&a, OBJECT + 1, 0, random(&mut rng, 500_000)).await;
    pool.sync().await;
    assert!(matches!(
        pool.dsl
            .snapshots()
            .rollback("tank/a", Some("tank/a@1"))
            .await,
        Err(DatasetError::Busy { .. })
    ));
    drop(a);
    let target = pool
        .dsl
        .snapshots()
        .rollback("tank/a", Some("tank/a@1"))
        .await
        .expect("rolled back");
    assert_eq!(target, "tank/a@1");
    let a = pool.dsl.open_dataset("tank/a").await.expect("opens");
    assert_eq!(read(&a, OBJECT, 500_000).await, kept);
    assert!(a.objset().hold(ObjectId::new(OBJECT + 1)).await.is_err());
    pool.check().await;
    write(&a, OBJECT, 0, random(&mut rng, 1000)).await;
    pool.dsl
        .snapshots()
        .take(&["tank/a@2".into()], &[])
        .await
        .expect("taken");
    drop(a);
    assert!(matches!(
        pool.dsl
            .snapshots()
            .rollback("tank/a", Some("tank/a@1"))
            .await,
        Err(DatasetError::NewerSnapshots { .. })
    ));
    let pool = pool.reopen().await;
    pool.check().await;
}

#[tokio::test]
async fn renaming_moves_space_and_names() {
    let pool = TestPool::new(512 << 20).await;
    let mut rng = StdRng::seed_from_u64(6);
    for name in ["tank/a", "tank/a/x", "tank/a/x/y", "tank/b"] {
        pool.create(name, &[]).await.expect("created");
    }
    let y = pool.dsl.open_dataset("tank/a/x/y").await.expect("opens");
    write(&y, OBJECT, 0, random(&mut rng, 200_000)).await;
    pool.dsl
        .snapshots()
        .take(&["tank/a/x/y@s".into()], &[])
        .await
        .expect("taken");
    set(&pool, "tank/a/x", "reservation", "10M")
        .await
        .expect("set");
    assert!(
        pool.dsl
            .directories()
            .rename("tank/a", "tank/a/x/z")
            .await
            .is_err(),
        "into itself"
    );
    assert!(
        pool.dsl
            .directories()
            .rename("tank/a", "tank/b")
            .await
            .is_err(),
        "exists"
    );
    pool.dsl
        .directories()
        .rename("tank/a/x", "tank/b/moved")
        .await
        .expect("renamed");
    assert_eq!(y.name(), "tank/b/moved/y");
    assert!(pool.number("tank/b", "used").await >= 10 << 20);
    pool.check().await;
    write(&y, OBJECT, 0, random(&mut rng, 200_000)).await;
    drop(y);
    let pool = pool.reopen().await;
    assert_eq!(
        names(&pool).await,
        [
            "tank",
            "tank/a",
            "tank/b",
            "tank/b/moved",
            "tank/b/moved/y",
            "tank/b/moved/y@s"
        ]
    );
    pool.check().await;
}

/// Below the same parent: once its lock was taken twice, and the pool stood still for ever.
#[tokio::test]
async fn renaming_in_place_changes_names_only() {
    let pool = TestPool::new(256 << 20).await;
    pool.create("tank/a", &[]).await.expect("created");
    pool.create("tank/a/x", &[]).await.expect("created");
    let used = pool.number("tank/a", "used").await;
    pool.dsl
        .directories()
        .rename("tank/a/x", "tank/a/y")
        .await
        .expect("renamed");
    pool.dsl
        .directories()
        .rename("tank/a", "tank/b")
        .await
        .expect("renamed");
    assert_eq!(pool.number("tank/b", "used").await, used);
    pool.check().await;
    let pool = pool.reopen().await;
    assert_eq!(names(&pool).await, ["tank", "tank/b", "tank/b/y"]);
    pool.check().await;
}

#[tokio::test]
async fn limits_on_filesystems_and_snapshots_are_counted() {
    let pool = TestPool::new(256 << 20).await;
    pool.create("tank/a", &[]).await.expect("created");
    pool.create("tank/a/1", &[]).await.expect("created");
    set(&pool, "tank/a", "filesystem_limit", "2")
        .await
        .expect("set");
    set(&pool, "tank/a", "snapshot_limit", "1")
        .await
        .expect("set");
    assert_eq!(pool.number("tank/a", "filesystem_count").await, 1);
    pool.create("tank/a/2", &[]).await.expect("created");
    assert!(matches!(
        pool.create("tank/a/3", &[]).await,
        Err(DatasetError::LimitReached { .. })
    ));
    pool.dsl
        .snapshots()
        .take(&["tank/a/1@s".into()], &[])
        .await
        .expect("taken");
    assert!(matches!(
        pool.dsl.snapshots().take(&["tank/a@s".into()], &[]).await,
        Err(DatasetError::LimitReached { .. })
    ));
    set(&pool, "tank/a", "snapshot_limit", "0")
        .await
        .expect("set");
    assert!(
        pool.dsl
            .snapshots()
            .take(&["tank/a/2@s".into()], &[])
            .await
            .is_err()
    );
    pool.dsl
        .destroyer()
        .destroy("tank/a/1@s")
        .await
        .expect("destroyed");
    pool.dsl
        .destroyer()
        .destroy("tank/a/1")
        .await
        .expect("destroyed");
    assert_eq!(pool.number("tank/a", "filesystem_count").await, 1);
    assert_eq!(pool.number("tank/a", "snapshot_count").await, 0);
    // They do not bind who may change them; what is there beyond them is counted.
    for number in 3..6 {
        let name = format!("tank/a/{number}");
        let made = dataset::with_limits(Limited::ByNone, pool.create(&name, &[])).await;
        made.expect("created");
    }
    let names = ["tank/a/3@s".to_owned()];
    let snapshots = pool.dsl.snapshots();
    let taken = dataset::with_limits(Limited::ByNone, snapshots.take(&names, &[])).await;
    taken.expect("taken");
    let more = dataset::with_limits(Limited::ByAll, pool.create("tank/a/6", &[])).await;
    assert!(matches!(more, Err(DatasetError::LimitReached { .. })));
    assert_eq!(pool.number("tank/a", "filesystem_count").await, 4);
    assert_eq!(pool.number("tank/a", "snapshot_count").await, 1);
    // Nor does one limit bind who may change that one.
    let change = GrantChange {
        grantee: Grantee::User(7),
        local: true,
        descendent: false,
        permissions: Some(vec!["filesystem_limit".to_owned()]),
    };
    let given = pool
        .dsl
        .delegation()
        .change("tank/a", &[change], false)
        .await;
    given.expect("allowed");
    let user = |uid| {
        let gids = vec![100];
        Limited::ByOthers(Arc::new(Credentials { uid, gids }))
    };
    let others = dataset::with_limits(user(8), pool.create("tank/a/6", &[])).await;
    assert!(matches!(others, Err(DatasetError::LimitReached { .. })));
    let made = dataset::with_limits(user(7), pool.create("tank/a/6", &[])).await;
    made.expect("created");
    let names = ["tank/a/6@s".to_owned()];
    let taken = dataset::with_limits(user(7), snapshots.take(&names, &[])).await;
    assert!(matches!(taken, Err(DatasetError::LimitReached { .. })));
    pool.check().await;
}

#[tokio::test]
async fn holds_keep_snapshots_until_they_are_released() {
    let pool = TestPool::new(256 << 20).await;
    pool.create("tank/a", &[]).await.expect("created");
    let names = ["tank/a@1".to_owned()];
    pool.dsl.snapshots().take(&names, &[]).await.expect("taken");
    pool.dsl.holds().hold(&names, "keep").await.expect("held");
    assert!(matches!(
        pool.dsl.holds().hold(&names, "keep").await,
        Err(DatasetError::Exists { .. })
    ));
    assert!(
        pool.dsl
            .holds()
            .hold(&["tank/a".to_owned()], "keep")
            .await
            .is_err()
    );
    assert_eq!(pool.number("tank/a@1", "userrefs").await, 1);
    let pool = pool.reopen().await;
    let holds = pool.dsl.holds().list("tank/a@1").await.expect("known");
    assert_eq!(holds.len(), 1);
    assert_eq!(holds[0].0, "keep");
    assert!(matches!(
        pool.dsl.destroyer().destroy("tank/a@1").await,
        Err(DatasetError::Held { .. })
    ));
    pool.dsl
        .destroyer()
        .destroy_snapshots(&names, true)
        .await
        .expect("deferred");
    assert!(pool.dsl.holds().release(&names, "other").await.is_err());
    pool.dsl
        .holds()
        .release(&names, "keep")
        .await
        .expect("released");
    assert!(pool.dsl.directories().lookup("tank/a@1").await.is_err());
    pool.check().await;
}

/// A clock by which everything takes long.
struct Slow(Arc<dyn Clock>, AtomicU64);

impl Clock for Slow {
    fn wall_ns(&self) -> u64 {
        self.0.wall_ns()
    }
    fn monotonic_ns(&self) -> u64 {
        self.1.fetch_add(2_000_000_000, Ordering::Relaxed)
    }
    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        self.0.sleep(duration)
    }
}

/// Goal: a destroyed tree is freed in the end on devices so slow that a group's time is over before
/// the first block is reached. Method: a clock that goes on by two seconds whenever it is asked.
#[tokio::test]
async fn a_tree_on_slow_devices_is_freed_all_the_same() {
    let mut pool = TestPool::new(256 << 20).await;
    pool.create(
        "tank/slow",
        &[("compression", "off"), ("recordsize", "512")],
    )
    .await
    .expect("created");
    let slow = pool.dsl.open_dataset("tank/slow").await.expect("opens");
    let tx = slow
        .assign(DirtyEstimate::write(1 << 20))
        .await
        .expect("room");
    let objset = slow.objset();
    let new = NewObject::new(ObjectType::PLAIN_FILE_CONTENTS).with_block_bytes(512);
    let claimed = objset.claim(&tx, ObjectId::new(OBJECT), new).await;
    let held = claimed.expect("claimed");
    let mut rng = StdRng::seed_from_u64(7);
    held.write(&tx, 0, random(&mut rng, 64 << 9).into())
        .await
        .expect("written");
    drop((held, tx));
    pool.sync().await;
    drop(slow);
    let clock = Arc::clone(&pool.world.clock);
    pool.world.clock = Arc::new(Slow(clock, AtomicU64::new(0)));
    let pool = pool.reopen().await;
    let destroyed = pool.dsl.destroyer().destroy("tank/slow").await;
    destroyed.expect("destroyed");
    assert!(pool.dsl.destroyer().freeing_bytes() > 0);
    pool.check().await;
    assert_eq!(pool.dsl.destroyer().leaked_bytes(), 0);
}

#[tokio::test]
async fn a_big_tree_is_freed_over_several_txgs() {
    let pool = TestPool::new(1 << 30).await;
    pool.create("tank/big", &[("compression", "off"), ("recordsize", "512")])
        .await
        .expect("created");
    let big = pool.dsl.open_dataset("tank/big").await.expect("opens");
    // More blocks than one txg frees.
    let tx = big
        .assign(DirtyEstimate::write(64 << 20))
        .await
        .expect("room");
    let held = big
        .objset()
        .claim(
            &tx,
            ObjectId::new(OBJECT),
            NewObject::new(ObjectType::PLAIN_FILE_CONTENTS).with_block_bytes(512),
        )
        .await
        .expect("claimed");
    let mut rng = StdRng::seed_from_u64(7);
    for chunk in 0..130u64 {
        held.write(&tx, chunk << 19, random(&mut rng, 1 << 19).into())
            .await
            .expect("written");
    }
    drop((held, tx));
    pool.sync().await;
    drop(big);
    pool.dsl
        .destroyer()
        .destroy("tank/big")
        .await
        .expect("destroyed");
    let waiting = pool.dsl.destroyer().freeing_bytes();
    assert!(waiting > 0, "130,000 blocks are not freed in one txg");
    assert!(pool.dsl.features().is_active("com.delphix:async_destroy"));
    let pool = {
        // A reopen in the middle goes on where it was.
        let synced = pool.txgs.synced_txg();
        assert!(synced.get() > 0);
        pool.reopen().await
    };
    pool.check().await;
    assert!(!pool.dsl.features().is_active("com.delphix:async_destroy"));
    assert_eq!(pool.dsl.destroyer().leaked_bytes(), 0);
}
