//! Goal: what a person asks for never stops a pool: it is cut, or refused before anything is
//! written.
//! Method: texts with zero bytes, texts that are too long, paths that labels have no room for; the
//! pool goes on and can be imported again.

use std::sync::Arc;

use crate::common::*;
use dataset::{DatasetError, SyncTask};
use device::{BoxFuture, World};
use object::SyncContext;
use pool::{
    AddSpec, CreateSpec, FeatureChoice, FoundPool, HistoryWhat, ImportSpec, LeafSpec, Pool,
    PoolError, VdevLayout,
};

async fn small(images: &Images, world: &World) -> Arc<Pool> {
    let leaves = images.make(1, 64);
    let vdevs = vec![normal(VdevLayout::Leaf(leaves[0].clone()))];
    Pool::create(world, spec("tank", vdevs))
        .await
        .expect("create")
}

async fn commands(pool: &Pool) -> Vec<String> {
    let history = pool.history().await.expect("history");
    let commands = history.into_iter().filter_map(|record| match record.what {
        HistoryWhat::Command(command) => Some(command),
        _ => None,
    });
    commands.collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_command_text_stops_a_pool() {
    let world = World::system(1);
    let images = Images::new();
    let pool = small(&images, &world).await;
    let long = "ä".repeat(100_000);
    for command in ["zpool create tank", "zfs set a\0b tank", &long] {
        pool.log_history(command, Some(1000)).await.expect("queued");
        pool.sync().await.expect("the pool goes on");
    }
    let kept = ["zpool create tank", "zfs set a", &long[..8192]];
    assert_eq!(commands(&pool).await, kept);
    // The ring of a small pool is 128 KiB: the oldest give way.
    for _ in 0..40 {
        pool.log_history(&long, None).await.expect("queued");
    }
    pool.sync().await.expect("the pool goes on");
    assert!(commands(&pool).await.len() > 10);
    pool.export(false).await.expect("export");
    zdb_is_clean(images.path(), "tank");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn long_properties_of_a_pool_and_of_vdevs_stop_nothing() {
    let world = World::system(1);
    let images = Images::new();
    let leaves = images.make(1, 64);
    let vdevs = vec![normal(VdevLayout::Leaf(leaves[0].clone()))];
    let mut spec = spec("tank", vdevs);
    for index in 0..40 {
        let name = format!("org.example:p{index}");
        spec.properties.push((name, "x".repeat(8191)));
    }
    let pool = Pool::create(&world, spec).await.expect("create");
    for (name, value) in [
        ("compatibility", "x".repeat(100_000)),
        ("compatibility", "a\0b".into()),
        ("comment", "a\0b".into()),
        ("org.example:p0", "a\0b".into()),
    ] {
        let refused = pool.properties().set(name, &value).await;
        assert!(
            matches!(refused, Err(PoolError::BadProperty { .. })),
            "{name}: {refused:?}"
        );
    }
    let vdev = pool.status().root.children[0].guid;
    for name in ["comment", "org.example:p0"] {
        let refused = pool.properties().set_of_vdev(vdev, name, "a\0b").await;
        assert!(
            matches!(refused, Err(PoolError::BadVdevProperty { .. })),
            "{name}: {refused:?}"
        );
    }
    let compatibility = "x".repeat(4095);
    pool.properties()
        .set("compatibility", &compatibility)
        .await
        .expect("set");
    pool.properties()
        .set_of_vdev(vdev, "comment", &"y".repeat(4095))
        .await
        .expect("set");
    pool.sync().await.expect("the pool goes on");
    pool.export(false).await.expect("export");
    let pool = import(&world, images.path()).await;
    let prop = pool.properties().get("compatibility").expect("it is known");
    assert_eq!(prop.value, compatibility);
    let prop = pool
        .properties()
        .get("org.example:p39")
        .expect("it is known");
    assert_eq!(prop.value.len(), 8191);
    pool.export(false).await.expect("export");
}

/// Devices whose paths have some 3,000 bytes each.
fn far_away(images: &Images, name: &str, count: usize) -> Vec<LeafSpec> {
    let mut dir = images.path().join(name);
    for _ in 0..12 {
        dir.push("d".repeat(240));
    }
    std::fs::create_dir_all(&dir).expect("directories");
    (0..count)
        .map(|index| {
            let path = dir.join(format!("{index}.img"));
            let file = std::fs::File::create(&path).expect("an image");
            file.set_len(64 << 20).expect("its size");
            LeafSpec {
                path: path.to_str().expect("UTF-8").to_owned(),
                is_file: true,
            }
        })
        .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn paths_that_labels_have_no_room_for_are_refused() {
    let world = World::system(1);
    let images = Images::new();
    let wide = |name: &str, count| {
        normal(VdevLayout::Raidz {
            parity: 1,
            leaves: far_away(&images, name, count),
        })
    };
    let no_room = |result: Result<(), PoolError>| match result {
        Err(PoolError::BadVdevs { why }) => assert!(why.contains("shorter paths"), "{why}"),
        other => panic!("{other:?}"),
    };
    let created = Pool::create(&world, spec("wide", vec![wide("a", 40)])).await;
    no_room(created.map(|_| ()));
    let mut spec = spec("tank", vec![wide("b", 34)]);
    spec.features = FeatureChoice::All;
    let pool = Pool::create(&world, spec).await.expect("create");
    let add = AddSpec {
        vdevs: vec![wide("c", 40)],
        ..AddSpec::default()
    };
    no_room(pool.add(&add).await);
    // Each replacement adds a path, until there is no room for one more.
    let leaves: Vec<String> = pool.status().root.children[0]
        .children
        .iter()
        .filter_map(|leaf| leaf.path.clone())
        .collect();
    let mut refused = None;
    for (old, new) in leaves.iter().zip(far_away(&images, "d", 8)) {
        let spec = pool::AttachSpec {
            device: new,
            replace: true,
            force: false,
            ashift: None,
            sequential: false,
            untouched: false,
        };
        if let Err(error) = pool.attach(old, &spec).await {
            refused = Some(error);
            break;
        }
    }
    no_room(Err(refused.expect("there was no room any more")));
    let text = "x".repeat(4095);
    let set = pool.properties().set("compatibility", &text).await;
    assert!(matches!(set, Err(PoolError::BadProperty { .. })), "{set:?}");
    let dataset = pool.dsl().open_dataset("tank").await.expect("open");
    let objects = write_objects(&dataset, 2, 2).await;
    pool.sync().await.expect("the pool goes on");
    check_objects(&dataset, &objects, 2).await;
    drop(dataset);
    pool.export(false).await.expect("export");
}

/// Makes a pool one that counts space with parity, or that old software scans.
struct Mark {
    pool: Arc<Pool>,
    is_scanned: bool,
}

impl SyncTask for Mark {
    fn name(&self) -> &'static str {
        "mark"
    }
    fn check<'a>(&'a self, _ctx: &'a SyncContext) -> BoxFuture<'a, Result<(), DatasetError>> {
        Box::pin(std::future::ready(Ok(())))
    }
    fn apply<'a>(&'a self, ctx: &'a SyncContext) -> BoxFuture<'a, Result<(), DatasetError>> {
        Box::pin(async move {
            let (directory, tx) = (self.pool.dsl().directory(), zio::Tx::syncing(ctx.txg));
            match self.is_scanned {
                true => directory.add_u64(&tx, "scrub_func", 1).await?,
                false => directory.remove(&tx, "deflate").await?,
            }
            Ok(())
        })
    }
}

/// A pool that was marked so, and exported.
async fn marked(world: &World, images: &Images, made: CreateSpec, is_scanned: bool) -> FoundPool {
    let pool = Pool::create(world, made).await.expect("create");
    let mark = Mark {
        pool: pool.clone(),
        is_scanned,
    };
    pool.dsl().tasks().run(Arc::new(mark)).await.expect("done");
    pool.export(false).await.expect("export");
    drop(pool);
    find(world, images.path()).await
}

/// It is imported read-only, and refused for writing for a reason.
async fn is_only_read(world: &World, found: FoundPool, why: &str) {
    let written = Pool::import(world, ImportSpec::new(found.clone(), host())).await;
    let error = written.expect_err("it is only read").to_string();
    assert!(error.contains(why), "{error}");
    let only_read = ImportSpec {
        read_only: true,
        ..ImportSpec::new(found, host())
    };
    let pool = Pool::import(world, only_read).await.expect("read");
    pool.export(false).await.expect("export");
}

/// Goal: a pool whose space counts with parity is only read. Without parity that is the same, and
/// it gets none.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pools_that_count_raw_space_are_only_read() {
    let world = World::system(2);
    let raidz = |leaves| VdevLayout::Raidz { parity: 1, leaves };
    let images = Images::new();
    let made = spec("tank", vec![normal(raidz(images.make(3, 64)))]);
    let found = marked(&world, &images, made, false).await;
    is_only_read(&world, found, "with parity").await;

    let images = Images::new();
    let made = spec("tank", vec![normal(VdevLayout::Mirror(images.make(2, 64)))]);
    let found = marked(&world, &images, made, false).await;
    let pool = Pool::import(&world, ImportSpec::new(found, host())).await;
    let pool = pool.expect("as ever");
    let others = Images::new();
    let add = |layout| AddSpec {
        vdevs: vec![normal(layout)],
        force: true,
        ..AddSpec::default()
    };
    let refused = pool.add(&add(raidz(others.make(3, 64)))).await;
    let error = refused.expect_err("it has parity").to_string();
    assert!(error.contains("with parity"), "{error}");
    let more = Images::new();
    let mirror = VdevLayout::Mirror(more.make(2, 64));
    pool.add(&add(mirror)).await.expect("added");
    pool.export(false).await.expect("export");
}

/// Goal: what old software scans is only read, as it would go on without what changed meanwhile.
/// Later software begins anew.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pools_that_old_software_scans_are_only_read() {
    let world = World::system(2);
    for version in [24, 25] {
        let images = Images::new();
        let made = CreateSpec {
            properties: vec![("version".to_owned(), version.to_string())],
            ..spec("tank", vec![normal(VdevLayout::Mirror(images.make(2, 64)))])
        };
        let found = marked(&world, &images, made, true).await;
        if version < 25 {
            is_only_read(&world, found, "old software").await;
            continue;
        }
        let pool = Pool::import(&world, ImportSpec::new(found, host())).await;
        let exported = pool.expect("as ever").export(false).await;
        exported.expect("export");
    }
}
