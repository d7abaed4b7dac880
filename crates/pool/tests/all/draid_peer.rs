//! Goal: the real OpenZFS ends the rebuild of a distributed spare that we began, and we end one
//! that it began; either then frees the spare of the other. Method: two trips to the machine in
//! shared/peer with a dRAID of six disks and two spares.

use std::time::Duration;

use crate::common::*;
use device::World;
use pool::{
    AttachSpec, LeafSpec, OfflineSpec, Pool, RebuildState, ScanFunction, ScanState, VdevLayout,
    VdevStatus,
};

const MIDDLE: &str = r"
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
zpool offline -f tank /dev/disk/peer/d4
echo 1 > $zfs_scan
zpool replace -s tank /dev/disk/peer/d4 draid1-0-1
zpool status tank | sed 's/^/LEFT /'
zpool export tank
echo 0 > $zfs_scan
echo PEER-DONE
";

const AT_LAST: &str = r"
set -e
zpool import -d /dev/disk/peer -N tank
zpool scrub -w tank
zpool status tank | sed 's/^/SCRUBBED /'
zpool clear tank
tries=150
while [ $tries -gt 0 ] && zpool status tank | grep -q INUSE; do
  tries=$((tries - 1))
  sleep 1
done
zpool status tank | sed 's/^/FREE /'
zpool export tank
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

fn has(text: &str, mark: &str, word: &str) {
    let is_it = |line: &str| line.starts_with(mark) && line.contains(word);
    assert!(text.lines().any(is_it), "{mark} {word}: {text}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rebuilds_of_distributed_spares_go_on_in_openzfs_and_back() {
    let Some(peer) = Peer::find() else { return };
    let images = Images::new();
    let world = World::system(2);
    let leaves = images.make(6, 256).into_iter();
    let leaves: Vec<LeafSpec> = leaves
        .map(|leaf| LeafSpec {
            is_file: false,
            ..leaf
        })
        .collect();
    let first = leaves[1].path.clone();
    let layout = VdevLayout::Draid {
        parity: 1,
        data: 2,
        spares: 2,
        leaves,
    };
    let pool = Pool::create(&world, spec("tank", vec![normal(layout)]));
    let pool = pool.await.expect("create");
    let dataset = pool.dsl().open_dataset("tank").await.expect("open");
    let objects = write_objects(&dataset, 160, 8).await;
    drop(dataset);
    pool.sync().await.expect("sync");
    // As a device that failed, for good: a spare stands in by itself.
    let fault = OfflineSpec {
        temporary: false,
        fault: true,
    };
    pool.offline(&first, fault).await.expect("faulted");
    let attach = AttachSpec {
        device: LeafSpec {
            path: "draid1-0-0".to_owned(),
            is_file: false,
        },
        ashift: None,
        force: false,
        replace: true,
        sequential: true,
        untouched: false,
    };
    while pool.scans().rebuilds().is_empty() {
        // Who comes second is refused.
        let _ = pool.attach(&first, &attach).await;
        tokio::time::sleep(Duration::from_micros(200)).await;
    }
    // As soon as something was computed; it may be all, where the disk is quick.
    while rebuilt(&pool).rebuilt_bytes == 0 {
        tokio::time::sleep(Duration::from_micros(200)).await;
    }
    pool.scans().hold(true);
    pool.sync().await.expect("sync");
    let ours = rebuilt(&pool);
    assert_eq!(ours.state, RebuildState::Active, "{ours:?}");
    pool.export(false).await.expect("export");
    zdb_is_clean(images.path(), "tank");

    let text = run_in_peer(&peer, images.path(), MIDDLE);
    assert!(text.contains("PEER-DONE"), "{text}");
    let name = "(draid1:2d:6c:2s-0)";
    has(&text, "BEFORE", &format!("resilver {name} in progress"));
    has(&text, "BEFORE feature", "active");
    has(&text, "AFTER", &format!("resilvered {name}"));
    has(&text, "AFTER", "scrub repaired 0B");
    has(&text, "AFTER", "with 0 errors on");
    has(&text, "AFTER", "No known data errors");
    has(&text, "AFTER feature", "enabled");
    has(&text, "LEFT", &format!("resilver {name} in progress"));

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
    pool.pipeline().cache().clear();
    let dataset = pool.dsl().open_dataset("tank").await.expect("open");
    check_objects(&dataset, &objects, 8).await;
    drop(dataset);
    pool.export(false).await.expect("export");
    zdb_is_clean(images.path(), "tank");

    // With both spares in use it finds nothing, and frees them when the disks are used again.
    let text = run_in_peer(&peer, images.path(), AT_LAST);
    assert!(text.contains("PEER-DONE"), "{text}");
    has(&text, "SCRUBBED", "scrub repaired 0B");
    has(&text, "SCRUBBED", "with 0 errors on");
    has(&text, "FREE", "No known data errors");
    let free = |line: &&str| line.starts_with("FREE") && line.contains("AVAIL");
    assert_eq!(text.lines().filter(free).count(), 2, "{text}");
    let pool = import(&world, images.path()).await;
    let used: Vec<String> = (pool.status().spares.iter())
        .map(|spare| format!("{} {:?}", spare.name, spare.aux))
        .collect();
    assert_eq!(used, ["draid1-0-0 None", "draid1-0-1 None"]);
    let dataset = pool.dsl().open_dataset("tank").await.expect("open");
    check_objects(&dataset, &objects, 8).await;
    drop(dataset);
    pool.export(false).await.expect("export");
    zdb_is_clean(images.path(), "tank");
}
