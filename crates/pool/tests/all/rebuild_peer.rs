//! Goal: the real OpenZFS ends a sequential rebuild that we began, and we end one that it began.
//! Method: one trip to the machine in shared/peer with a mirror of two and a third disk.

use std::time::Duration;

use crate::common::*;
use device::World;
use pool::{
    AttachSpec, LeafSpec, Pool, RebuildState, ScanFunction, ScanState, VdevLayout, VdevStatus,
};

const SCRIPT: &str = r"
set -e
zfs_scan=/sys/module/zfs/parameters/zfs_scan_suspend_progress
echo 1 > $zfs_scan
zpool import -d /dev/disk/peer -N tank
zpool status tank | sed 's/^/BEFORE /'
zpool get -H -o value feature@device_rebuild tank | sed 's/^/BEFORE feature /'
echo 0 > $zfs_scan
zpool wait -t resilver tank
zpool wait -t scrub tank
zpool status tank | sed 's/^/AFTER /'
zpool get -H -o value feature@device_rebuild tank | sed 's/^/AFTER feature /'
zpool history -i tank | grep rebuild | sed 's/^/HISTORY /'
zpool detach tank /dev/disk/peer/d2
zpool labelclear -f /dev/disk/peer/d2 || true
zpool offline tank /dev/disk/peer/d1
zpool detach tank /dev/disk/peer/d1
zfs create -o mountpoint=/mnt/theirs tank/theirs
zfs mount tank/theirs 2>/dev/null || true
dd if=/dev/urandom of=/mnt/theirs/one bs=64k count=20 2>/dev/null
sync
echo 1 > $zfs_scan
zpool attach -f -s tank /dev/disk/peer/d0 /dev/disk/peer/d2
zpool status tank | sed 's/^/LEFT /'
zpool export tank
echo 0 > $zfs_scan
echo PEER-DONE
";

fn rebuilt(pool: &Pool) -> pool::RebuildStatus {
    pool.scans()
        .rebuilds()
        .into_iter()
        .next()
        .expect("a rebuild")
}

fn is_stale(vdev: &VdevStatus) -> bool {
    vdev.is_stale || vdev.children.iter().any(is_stale)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rebuilds_go_on_in_openzfs_and_back() {
    let Some(peer) = Peer::find() else { return };
    let images = Images::new();
    let world = World::system(2);
    let leaves = images.make(3, 512);
    let leaves = leaves.into_iter().map(|leaf| LeafSpec {
        is_file: false,
        ..leaf
    });
    let mut leaves: Vec<LeafSpec> = leaves.collect();
    let third = leaves.pop().expect("three");
    let target = leaves[1].path.clone();
    let vdevs = vec![normal(VdevLayout::Mirror(leaves))];
    let pool = Pool::create(&world, spec("tank", vdevs))
        .await
        .expect("create");
    let dataset = pool.dsl().open_dataset("tank").await.expect("open");
    let objects = write_objects(&dataset, 160, 8).await;
    drop(dataset);
    pool.sync().await.expect("sync");
    let attach = AttachSpec {
        device: third,
        ashift: None,
        force: false,
        replace: false,
        sequential: true,
        untouched: false,
    };
    pool.attach(&target, &attach).await.expect("attach");
    // As soon as something was copied; it may be all, where the disk is quick.
    while rebuilt(&pool).rebuilt_bytes == 0 {
        tokio::time::sleep(Duration::from_micros(200)).await;
    }
    pool.scans().hold(true);
    pool.sync().await.expect("sync");
    let ours = rebuilt(&pool);
    assert_eq!(ours.state, RebuildState::Active, "{ours:?}");
    pool.export(false).await.expect("export");
    zdb_is_clean(images.path(), "tank");

    let text = run_in_peer(&peer, images.path(), SCRIPT);
    assert!(text.contains("PEER-DONE"), "{text}");
    let line = |mark: &str, word: &str| {
        text.lines()
            .any(|line| line.starts_with(mark) && line.contains(word))
    };
    let in_progress = "resilver (mirror-0) in progress since";
    assert!(line("BEFORE", in_progress), "{text}");
    assert!(line("BEFORE feature", "active"), "{text}");
    assert!(line("AFTER", "resilvered (mirror-0)"), "{text}");
    assert!(line("AFTER", "scrub repaired 0B"), "{text}");
    assert!(line("AFTER", "with 0 errors on"), "{text}");
    assert!(line("AFTER", "No known data errors"), "{text}");
    assert!(line("AFTER feature", "enabled"), "{text}");
    assert!(line("HISTORY", "complete"), "{text}");
    assert!(line("LEFT", in_progress), "{text}");

    let pool = import(&world, images.path()).await;
    assert_eq!(rebuilt(&pool).state, RebuildState::Active);
    assert!(is_stale(&pool.status().root));
    pool.scans().wait_for_rebuild().await;
    pool.scans().wait_for_scrub(true).await;
    let theirs = rebuilt(&pool);
    assert_eq!((theirs.state, theirs.errors), (RebuildState::Complete, 0));
    assert!(theirs.rebuilt_bytes > 1 << 20, "{theirs:?}");
    let scan = pool.status().scan.expect("a scan");
    assert_eq!(
        (scan.function, scan.state),
        (ScanFunction::Scrub, ScanState::Finished)
    );
    assert_eq!((scan.errors, scan.repaired_bytes), (0, 0), "{scan:?}");
    assert!(!is_stale(&pool.status().root));
    // The new one alone has everything.
    let first = pool.status().root.children[0].children[0].name.clone();
    pool.detach(&first).await.expect("detach");
    pool.pipeline().cache().clear();
    let dataset = pool.dsl().open_dataset("tank").await.expect("open");
    check_objects(&dataset, &objects, 8).await;
    drop(dataset);
    pool.export(false).await.expect("export");
    zdb_is_clean(images.path(), "tank");
}
