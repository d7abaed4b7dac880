//! Goal: what is done in the background, after the call that began it, is waited for by those who
//! say that it is done. Method: tasks begin late, and a txg cannot end, until the test lets them.

use std::pin::pin;
use std::sync::Arc;
use std::thread::ThreadId;
use std::time::Duration;

use dataset::DirtyEstimate;
use device::{BoxFuture, Spawn, World};
use filesystem::{Filesystem, QuotaKind};
use futures::FutureExt;
use parking_lot::Mutex;

use crate::common::*;
use crate::newkeys::{ROOT_OF_RAW, make, raw, read, wrapping, write};
use crate::rawstreams::send;
use crate::streams::{How, receive};

const CONTENT: &[u8] = b"the quick brown fox";

/// Starts tasks like `inner`, but for those that a thread keeps.
struct Keeping {
    inner: Arc<dyn Spawn>,
    kept: Mutex<Option<(ThreadId, Vec<BoxFuture<'static, ()>>)>>,
}

impl Keeping {
    /// What `work` has started in the background, not begun yet.
    fn during(&self, work: impl FnOnce()) -> Vec<BoxFuture<'static, ()>> {
        *self.kept.lock() = Some((std::thread::current().id(), Vec::new()));
        work();
        let kept = self.kept.lock().take();
        kept.map(|(_, tasks)| tasks).unwrap_or_default()
    }
}

impl Spawn for Keeping {
    fn spawn(&self, task: BoxFuture<'static, ()>) {
        match &mut *self.kept.lock() {
            Some((thread, tasks)) if *thread == std::thread::current().id() => tasks.push(task),
            _ => self.inner.spawn(task),
        }
    }
}

/// Goal: a key is unloaded as soon as nobody uses its datasets, however late the machine gets round
/// to closing their logs. Method: the task that closes one begins after that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_does_not_wait_for_tasks_that_close_logs() {
    let mut world = World::system(2);
    let keeping = Arc::new(Keeping {
        inner: world.spawn.clone(),
        kept: Mutex::default(),
    });
    world.spawn = keeping.clone();
    let image = Image::new(128);
    let pool = create(&world, &image, &[]).await;
    make(&pool, "tank/a", &ROOT_OF_RAW, Some(raw(1)))
        .await
        .expect("made");
    let filesystem = open(&world, &pool, "tank/a").await;
    write(&filesystem, b"file", CONTENT).await;
    filesystem.sync_all().await.expect("on disk");
    let last = filesystem.dataset().expect("open");
    filesystem.close().await.expect("close");
    let late = keeping.during(|| drop(last));
    assert_eq!(late.len(), 1, "its log is closed");
    let keys = pool.dsl().keys();
    keys.unload("tank/a").await.expect("unloaded");
    futures::future::join_all(late).await;
    keys.load("tank/a", wrapping(1), false).await.expect("load");
    let filesystem = open(&world, &pool, "tank/a").await;
    assert_eq!(read(&filesystem, b"file").await, CONTENT);
    filesystem.close().await.expect("close");
    pool.export(false).await.expect("export");
    zdb_is_clean(image.path(), "tank");
}

/// Goal: when owners are said to be counted, that can be seen and is on disk, also when others
/// counted them a moment before. Method: a txg that cannot end keeps what the background counted
/// from the disk.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn owners_are_counted_when_it_is_on_disk() {
    const ALL: u64 = format::OBJSET_FLAG_USER_ACCOUNTING
        | format::OBJSET_FLAG_USER_OBJECT_ACCOUNTING
        | format::OBJSET_FLAG_PROJECT_QUOTA;
    let world = World::system(2);
    let image = Image::new(128);
    let pool = create(&world, &image, &[]).await;
    make(&pool, "tank/a", &ROOT_OF_RAW, Some(raw(1)))
        .await
        .expect("made");
    let source = open(&world, &pool, "tank/a").await;
    write(&source, b"file", CONTENT).await;
    source.sync_all().await.expect("on disk");
    let name = "tank/a@s".to_owned();
    let snapshots = pool.dsl().snapshots();
    let taken = snapshots.take(std::slice::from_ref(&name), &[]).await;
    taken.expect("taken");
    let stream = send(&pool, &name, None).await;
    let received = receive(&pool, &stream, "tank/b", &How::default()).await;
    received.expect("received");
    let keys = pool.dsl().keys();
    keys.load("tank/b", wrapping(1), false).await.expect("load");

    let dataset = pool.dsl().open_dataset("tank/b").await.expect("open");
    let objset = dataset.objset().clone();
    assert_ne!(objset.flags() & ALL, ALL, "nobody could count it");
    let estimate = DirtyEstimate::metadata();
    let tx = dataset.assign(estimate).await.expect("assigned");
    let copy = Filesystem::open(dataset, world.clone()).await;
    let copy = copy.expect("open");
    while objset.flags() & ALL != ALL {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    {
        let mut counting = pin!(copy.counting().count_owners());
        let early = counting.as_mut().now_or_never();
        assert!(early.is_none(), "{early:?}");
        drop(tx);
        counting.await.expect("counted");
    }
    for kind in [QuotaKind::User, QuotaKind::Group, QuotaKind::Project] {
        let rows = async |of: &Filesystem| {
            let found = of.quotas().space_by(kind).await.expect("space");
            let rows = found.iter().map(|space| (space.id, space.used_objects));
            rows.collect::<Vec<_>>()
        };
        let rows = [rows(&copy).await, rows(&source).await];
        assert!(!rows[0].is_empty(), "{kind:?}");
        assert_eq!(rows[0], rows[1], "{kind:?}");
    }
    drop(objset);
    copy.close().await.expect("close");
    source.close().await.expect("close");
    pool.export(false).await.expect("export");
    zdb_is_clean(image.path(), "tank");
}
