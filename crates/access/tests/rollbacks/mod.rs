//! Rollbacks under those who use a dataset: who is told, what is handed over, and when.

use access::{Paused, Resident};
use device::BoxFuture;

use super::*;

/// A volume that is a file and a target at once is rolled back under both, while both write.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rollback_takes_file_and_target_along() {
    let rig = Rig::new().await;
    rig.make_volume().await;
    let (lun, shown) = (
        Arc::new(rig.volume(target()).await),
        Arc::new(rig.volume(file()).await),
    );
    assert!(Arc::ptr_eq(&lun.get(), &shown.get()));
    let block = |fill: u8| Bytes::from(vec![fill; 8192]);
    lun.write(0, block(1), true).await.expect("write");
    rig.snapshot("tank/vol@s").await;
    lun.write(0, block(2), true).await.expect("write");
    shown.write(8192, block(3), false).await.expect("write");

    let stop = Arc::new(AtomicUsize::new(0));
    let writers = [(&lun, 16 * 8192), (&shown, 17 * 8192)].map(|(lease, offset)| {
        let (lease, stop) = (Arc::clone(lease), Arc::clone(&stop));
        tokio::spawn(async move {
            let mut written = 0u64;
            while stop.load(Ordering::Acquire) == 0 {
                let data = Bytes::from(vec![written as u8; 8192]);
                lease.write(offset, data, written.is_multiple_of(4)).await?;
                let back = lease.read(offset, 8192).await?.concat();
                // A rollback may have come between.
                assert!(back.iter().all(|byte| *byte == written as u8 || *byte == 0));
                written += 1;
            }
            Ok::<_, volume::VolumeError>(written)
        })
    });
    for _ in 0..5 {
        let before = lun.get();
        let work = rig.rollback("tank/vol", "s");
        rig.access.exchange("tank/vol", work).await.expect("done");
        assert!(!Arc::ptr_eq(&lun.get(), &before));
        assert!(Arc::ptr_eq(&lun.get(), &shown.get()));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    stop.store(1, Ordering::Release);
    for writer in writers {
        let written = writer.await.expect("no panic");
        assert!(written.expect("no write fails") > 0);
    }
    let first = shown.read(0, 16384).await.expect("read").concat();
    assert!(first == [block(1), vec![0; 8192].into()].concat());
    drop((lun, shown));
    let _leaving = rig.access.leave(Exclusion::Refused).await.expect("leave");
    rig.pool.export(false).await.expect("export");
}

/// A mount, as far as a rollback knows it.
struct Mounted {
    lease: Lease<Filesystem>,
    /// What happened, in this order.
    told: Arc<Mutex<Vec<String>>>,
    ends: bool,
    /// A file that it has open.
    open: Option<u64>,
}

struct PausedMount(Arc<Mounted>);

impl Resident for Mounted {
    fn pause(self: Arc<Self>) -> BoxFuture<'static, Option<Box<dyn Paused>>> {
        Box::pin(async move {
            assert!(!self.lease.get().is_closed());
            self.told.lock().push("pause".into());
            self.ends.then(|| Box::new(PausedMount(self)) as _)
        })
    }
}

impl Paused for PausedMount {
    fn adopt(&mut self) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            let filesystem = self.0.lease.get();
            if let Some(open) = self.0.open {
                // Long enough to be freed, were that begun already.
                tokio::time::sleep(Duration::from_millis(50)).await;
                filesystem.retain(open, 1);
            }
            self.0.told.lock().push("adopt".into());
        })
    }

    fn resume(self: Box<Self>) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            let content = read(&self.0.lease.get(), "file").await;
            let content = String::from_utf8_lossy(&content).into_owned();
            self.0.told.lock().push(content);
        })
    }
}

/// A rollback tells mounts before and after; who cannot go along, or does not come to rest, keeps
/// the dataset as it is and is named.
#[tokio::test]
async fn a_rollback_tells_mounts_or_is_refused() {
    let rig = Rig::new().await;
    let lease = rig.filesystem(mount()).await;
    write(&lease.get(), "file", b"old", false).await;
    rig.snapshot("tank@s").await;
    write(&lease.get(), "file", b"new", false).await;
    let told = Arc::new(Mutex::new(Vec::new()));
    let roll_back = || {
        let (work, told) = (rig.rollback("tank", "s"), Arc::clone(&told));
        rig.access.exchange("tank", async move {
            told.lock().push("work".to_owned());
            work.await;
        })
    };
    let in_use = |outcome: access::Result<()>| match outcome {
        Err(AccessError::InUse { users, .. }) => users,
        other => panic!("{other:?}"),
    };
    assert_eq!(in_use(roll_back().await), [mount()], "it is told nothing");

    let resident = |lease: Lease<Filesystem>, ends| {
        let told = Arc::clone(&told);
        let mounted = Arc::new(Mounted {
            lease,
            told,
            ends,
            open: None,
        });
        let weak: Weak<Mounted> = Arc::downgrade(&mounted);
        mounted.lease.set_resident(weak);
        mounted
    };
    let choices = filesystem::MountChoices {
        atime: Some(false),
        ..Default::default()
    };
    lease.get().choose_for_mount(choices);
    let restless = resident(lease.share(mount()).await.expect("a lease"), false);
    let mounted = resident(lease, true);
    assert_eq!(in_use(roll_back().await), [mount()], "one does not rest");
    assert_eq!(*told.lock(), ["pause", "pause"]);
    assert_eq!(read(&mounted.lease.get(), "file").await, b"new");
    drop(restless);
    told.lock().clear();

    let before = mounted.lease.get();
    roll_back().await.expect("rolled back");
    assert_eq!(*told.lock(), ["pause", "work", "adopt", "old"]);
    assert!(before.is_closed() && !mounted.lease.get().is_closed());
    assert_eq!(mounted.lease.get().mount_choices(), choices);

    // Nobody is told where nobody uses it.
    mounted.lease.close().await.expect("close");
    told.lock().clear();
    roll_back().await.expect("rolled back");
    assert_eq!(*told.lock(), ["work"]);
}

/// All who use a filesystem hand over what they have open before the first is let go on: a file
/// without a name, which only one of them has open, is there for the others too.
#[tokio::test]
async fn what_is_open_is_handed_over_before_anybody_goes_on() {
    let rig = Rig::new().await;
    let lease = rig.filesystem(mount()).await;
    write(&lease.get(), "file", b"old", false).await;
    write(&lease.get(), "nameless", b"held", false).await;
    let filesystem = lease.get();
    let root = filesystem.root();
    let found = filesystem
        .lookup(root, b"nameless")
        .await
        .expect("it is there");
    filesystem.retain(found.ino, 1);
    let removed = filesystem.unlink(root, b"nameless").await;
    removed.expect("remove");
    rig.snapshot("tank@s").await;

    let told = Arc::new(Mutex::new(Vec::new()));
    let mut residents = Vec::new();
    for open in [None, Some(found.ino)] {
        let resident = Arc::new(Mounted {
            lease: lease.share(mount()).await.expect("a lease"),
            told: Arc::clone(&told),
            ends: true,
            open,
        });
        let weak: Weak<Mounted> = Arc::downgrade(&resident);
        resident.lease.set_resident(weak);
        residents.push(resident);
    }
    lease.close().await.expect("close");
    let (work, seen) = (rig.rollback("tank", "s"), Arc::clone(&told));
    let work = async move {
        work.await;
        seen.lock().push("work".to_owned());
    };
    rig.access
        .exchange("tank", work)
        .await
        .expect("rolled back");
    let order = ["pause", "pause", "work", "adopt", "adopt", "old", "old"];
    assert_eq!(*told.lock(), order);
    let now = residents[0].lease.get();
    let held = now.read(found.ino, 0, 100).await.expect("it is there");
    assert_eq!(held.concat(), b"held");
    now.release(found.ino, 1);
}

/// A rollback goes on to its end when whoever asked for it gives up, and others wait for it.
#[tokio::test]
async fn a_rollback_is_not_cut_short() {
    let rig = Rig::new().await;
    rig.make_volume().await;
    let lease = rig.volume(target()).await;
    rig.snapshot("tank/vol@s").await;
    let before = lease.get();
    let (go, gone) = tokio::sync::oneshot::channel::<()>();
    let work = rig.rollback("tank/vol", "s");
    let exchange = rig.access.exchange("tank/vol", async move {
        let _ = gone.await;
        work.await;
    });
    let patience = Duration::from_millis(50);
    let given_up = tokio::time::timeout(patience, exchange).await.is_err();
    assert!(given_up && before.flush().await.is_err());
    let mut other = Box::pin(rig.access.volume("tank/vol", file()));
    let mut flush = Box::pin(lease.flush());
    assert!(tokio::time::timeout(patience, &mut other).await.is_err());
    assert!(tokio::time::timeout(patience, &mut flush).await.is_err());
    let _ = go.send(());
    let other = other.await.expect("a lease");
    flush.await.expect("it has waited");
    assert!(Arc::ptr_eq(&other.get(), &lease.get()));
    assert!(!Arc::ptr_eq(&other.get(), &before));
}
