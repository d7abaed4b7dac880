//! Goal: the real OpenZFS goes on with a scrub that we began, we go on with one that it began, and
//! we repair what it wrote.
//! Method: one trip to the machine in shared/peer with a mirror of two; a golden pool.

use crate::common::*;
use device::World;
use pool::{LeafSpec, Pool, ScanFunction, ScanState, ScrubCommand, VdevLayout};

const SCRIPT: &str = r"
set -e
zpool import -d /dev/disk/peer -N tank
zpool status tank | sed 's/^/BEFORE /'
zpool scrub tank
zpool wait -t scrub tank
zpool status tank | sed 's/^/AFTER /'
zpool history -i tank | grep scan | sed 's/^/HISTORY /'
zfs create -o mountpoint=/mnt/theirs tank/theirs
zfs mount tank/theirs 2>/dev/null || true
dd if=/dev/urandom of=/mnt/theirs/one bs=64k count=20 2>/dev/null
sync
echo 1 > /sys/module/zfs/parameters/zfs_scan_suspend_progress
zpool scrub tank
zpool scrub -p tank
zpool status tank | sed 's/^/LEFT /'
echo 0 > /sys/module/zfs/parameters/zfs_scan_suspend_progress
zpool export tank
echo PEER-DONE
";

/// The words of what is stored of the scan.
async fn words(pool: &Pool) -> Vec<u64> {
    let value = pool.dsl().directory().lookup("scan").await;
    value.expect("lookup").expect("a scan").to_u64s()
}

/// Begins a scrub and pauses it when it has met a part of the blocks. One that is over before it
/// was caught is begun anew.
async fn pause_half_done(pool: &Pool) {
    // A block at a time, so that its place is somewhere in between.
    pool.scans().set_queue(1);
    for _ in 0..50 {
        pool.scans()
            .scrub(ScrubCommand::Start)
            .await
            .expect("start");
        while pool
            .scans()
            .scrub_numbers()
            .is_some_and(|numbers| numbers.verified_blocks < 20)
        {
            tokio::task::yield_now().await;
        }
        pool.scans().hold(true);
        let paused = pool.scans().scrub(ScrubCommand::Pause).await;
        pool.scans().hold(false);
        let scan = pool.status().scan.expect("a scan");
        if paused.is_ok() && scan.state == ScanState::Scanning {
            return;
        }
    }
    panic!("each scrub was over before it could be paused");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scrubs_go_on_in_openzfs_and_back() {
    let Some(peer) = Peer::find() else { return };
    let images = Images::new();
    let world = World::system(2);
    let leaves = images.make(2, 256);
    let leaves = leaves.into_iter().map(|leaf| LeafSpec {
        is_file: false,
        ..leaf
    });
    let vdevs = vec![normal(VdevLayout::Mirror(leaves.collect()))];
    let pool = Pool::create(&world, spec("tank", vdevs))
        .await
        .expect("create");
    let dataset = pool.dsl().open_dataset("tank").await.expect("open");
    let objects = write_objects(&dataset, 60, 8).await;
    drop(dataset);
    pool.sync().await.expect("sync");
    pause_half_done(&pool).await;
    let stored = words(&pool).await;
    assert_ne!(stored[19..23], [0; 4], "a place, that is not the start");
    assert!(stored[10] < stored[9], "not everything was met");
    pool.export(false).await.expect("export");
    zdb_is_clean(images.path(), "tank");

    let text = run_in_peer(&peer, images.path(), SCRIPT);
    assert!(text.contains("PEER-DONE"), "{text}");
    let line = |mark: &str, word: &str| {
        text.lines()
            .any(|line| line.starts_with(mark) && line.contains(word))
    };
    assert!(line("BEFORE", "scrub paused since"), "{text}");
    assert!(line("AFTER", "scrub repaired 0B"), "{text}");
    assert!(line("AFTER", "No known data errors"), "{text}");
    assert!(line("LEFT", "scrub paused since"), "{text}");

    let pool = import(&world, images.path()).await;
    let scan = pool.status().scan.expect("a scan");
    assert_eq!(
        (scan.function, scan.state),
        (ScanFunction::Scrub, ScanState::Scanning)
    );
    assert_ne!(scan.pause_time_s, 0);
    pool.scans()
        .scrub(ScrubCommand::Start)
        .await
        .expect("continue");
    pool.scans().wait_for_scrub(true).await;
    let scan = pool.status().scan.expect("a scan");
    assert_eq!(
        (scan.state, scan.errors),
        (ScanState::Finished, 0),
        "{scan:?}"
    );
    let numbers = pool.scans().scrub_numbers().expect("numbers");
    assert!(numbers.found_blocks > 480, "{numbers:?}");
    let dataset = pool.dsl().open_dataset("tank").await.expect("open");
    check_objects(&dataset, &objects, 8).await;
    drop(dataset);
    pool.export(false).await.expect("export");
    zdb_is_clean(images.path(), "tank");
}

/// A golden pool one of whose devices was offline while OpenZFS wrote: it gets that once it is
/// back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_device_that_missed_writes_of_openzfs_is_resilvered() {
    let Some(golden) = golden() else { return };
    let images = Images::new();
    let dir = unpack(&golden, "stale", images.path());
    let pool = import(&World::system(2), &dir).await;
    let tree = pool.pipeline().tree();
    for vdev in tree.leaves() {
        pool.online(&vdev.display_name(), false)
            .await
            .expect("online");
    }
    let lacks = || {
        let leaves = tree.leaves();
        let mut leaves = leaves.iter().filter_map(|vdev| vdev.leaf());
        leaves.any(|leaf| !leaf.dirty_times().missing().is_empty())
    };
    for _ in 0..20 {
        pool.sync().await.expect("sync");
    }
    assert!(!lacks());
    let scan = pool.status().scan.expect("a scan");
    let end = (scan.function, scan.state, scan.errors);
    assert_eq!(end, (ScanFunction::Resilver, ScanState::Finished, 0));
    assert!(scan.repaired_bytes > 0);
    let name = pool.name();
    pool.export(false).await.expect("export");
    zdb_is_clean(&dir, &name);
}
