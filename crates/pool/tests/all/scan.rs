//! Goal: pools in use are scrubbed and resilvered: what is wrong or missing on a device is written
//! anew, whatever happens to the pool meanwhile, and nothing else is counted as an error.
//! Method: simulated disks that lie, go away and come back, and power cuts; at the end contents, a
//! second scrub that finds nothing, and zdb.

use std::sync::Arc;
use std::time::Duration;

use crate::common::*;
use dataset::Dataset;
use device::sim::{PowerCut, SimWorld};
use format::{LABEL_BYTES, LABEL_START_BYTES, ObjectId};
use pool::{
    ImportSpec, LeafSpec, Pool, PoolError, PoolHealth, ScanFunction, ScanSpec, ScanState,
    ScanStatus, ScrubCommand, VdevLayout, VdevSpec, VdevStatus,
};

const DISK_BYTES: u64 = 96 << 20;

fn leaves(sim: &SimWorld, count: usize) -> Vec<LeafSpec> {
    (0..count)
        .map(|index| {
            let name = format!("disk{index}");
            sim.add_disk(&name, DISK_BYTES);
            LeafSpec {
                path: name,
                is_file: false,
            }
        })
        .collect()
}

/// Name, disks, layout.
type Case = (&'static str, usize, fn(Vec<LeafSpec>) -> VdevLayout);

/// Layouts that survive the loss of `disk1`.
fn layouts() -> [Case; 5] {
    [
        ("mirror of 2", 2, VdevLayout::Mirror),
        ("mirror of 3", 3, VdevLayout::Mirror),
        ("raidz1", 4, |leaves| VdevLayout::Raidz {
            parity: 1,
            leaves,
        }),
        ("raidz2", 5, |leaves| VdevLayout::Raidz {
            parity: 2,
            leaves,
        }),
        ("raidz3", 6, |leaves| VdevLayout::Raidz {
            parity: 3,
            leaves,
        }),
    ]
}

async fn create(sim: &SimWorld, vdevs: Vec<VdevSpec>) -> Arc<Pool> {
    let pool = Pool::create(&sim.world(), spec("tank", vdevs)).await;
    pool.expect("create")
}

async fn import_sim(sim: &SimWorld, read_only: bool) -> Arc<Pool> {
    let spec = ScanSpec {
        paths: sim.disk_names(),
        ..ScanSpec::default()
    };
    let found = pool::scan(&sim.world(), &spec).await.expect("scan");
    let found = found.into_iter().next().expect("a pool");
    let mut spec = ImportSpec::new(found, host());
    spec.read_only = read_only;
    Pool::import(&sim.world(), spec).await.expect("import")
}

fn zdb_of_sim(sim: &SimWorld) {
    let images = Images::new();
    for name in sim.disk_names() {
        let disk = sim.disk(&name).expect("a disk");
        disk.save_image(images.path().join(format!("{name}.img")))
            .expect("save");
    }
    zdb_is_clean(images.path(), "tank");
}

fn scan_of(pool: &Pool) -> ScanStatus {
    pool.status().scan.expect("a scan")
}

/// Waits until no scan is under way, and none is needed.
async fn settle(pool: &Pool) -> ScanStatus {
    for _ in 0..4 {
        pool.sync().await.expect("sync");
        tokio::time::sleep(Duration::from_secs(6)).await;
        pool.scans().wait_for_scrub(true).await;
    }
    scan_of(pool)
}

async fn scrub(pool: &Pool) -> ScanStatus {
    pool.scans()
        .scrub(ScrubCommand::Start)
        .await
        .expect("start");
    pool.scans().wait_for_scrub(true).await;
    let scan = scan_of(pool);
    assert_eq!(scan.state, ScanState::Finished);
    assert_eq!(scan.function, ScanFunction::Scrub);
    scan
}

fn errors(vdev: &VdevStatus) -> u64 {
    let own = vdev.read_errors + vdev.write_errors + vdev.checksum_errors;
    own + vdev.children.iter().map(errors).sum::<u64>()
}

fn leaf_errors(pool: &Pool, name: &str) -> u64 {
    fn find(vdev: &VdevStatus, name: &str) -> Option<u64> {
        let own = (vdev.path.as_deref() == Some(name)).then_some(vdev.checksum_errors);
        own.or_else(|| vdev.children.iter().find_map(|child| find(child, name)))
    }
    find(&pool.status().root, name).expect("a leaf")
}

/// Silently overwrites all that is not a label.
fn ruin(sim: &SimWorld, name: &str) {
    let disk = sim.disk(name).expect("a disk");
    let end = DISK_BYTES - 2 * LABEL_BYTES;
    disk.corrupt(LABEL_START_BYTES, (end - LABEL_START_BYTES) as usize);
}

/// Keeps the pool busy until told to stop: objects come and go, snapshots too.
async fn keep_busy(
    pool: Arc<Pool>,
    dataset: Dataset,
    mut stop: tokio::sync::oneshot::Receiver<()>,
) -> Vec<ObjectId> {
    let mut kept = Vec::new();
    for round in 0.. {
        let objects = write_objects(&dataset, 2, 3).await;
        kept.push(objects[0]);
        pool.sync().await.expect("sync");
        free_objects(&dataset, &objects[1..]).await;
        if round % 3 == 0 {
            let name = format!("tank@busy{}", round % 9);
            let snapshots = pool.dsl().snapshots();
            if snapshots
                .take(std::slice::from_ref(&name), &[])
                .await
                .is_err()
            {
                let (dsl, names) = (pool.dsl(), [name]);
                let destroyer = dsl.destroyer();
                let destroyed = destroyer.destroy_snapshots(&names, false).await;
                destroyed.expect("destroy");
            }
        }
        if kept.len() > 8 {
            let gone = kept.remove(0);
            free_objects(&dataset, &[gone]).await;
        }
        check_objects(&dataset, &kept, 3).await;
        if stop.try_recv().is_ok() {
            break;
        }
    }
    kept
}

/// A scrub under load repairs a disk that lies everywhere, on every layout; the next finds nothing.
#[tokio::test(start_paused = true)]
async fn a_scrub_under_load_repairs_a_disk_that_lies() {
    for (seed, (name, count, layout)) in layouts().into_iter().enumerate() {
        let sim = SimWorld::new(900 + seed as u64);
        let vdevs = vec![normal(layout(leaves(&sim, count)))];
        let pool = create(&sim, vdevs).await;
        pool.scans().set_queue(7);
        let dataset = pool.dsl().open_dataset("tank").await.expect("open");
        let objects = write_objects(&dataset, 8, 5).await;
        pool.sync().await.expect("sync");
        ruin(&sim, "disk1");
        pool.pipeline().cache().clear();
        let (stop, stopped) = tokio::sync::oneshot::channel();
        let busy = tokio::spawn(keep_busy(pool.clone(), dataset.clone(), stopped));
        let scan = scrub(&pool).await;
        assert_eq!(scan.errors, 0, "{name}");
        assert!(scan.repaired_bytes > 1 << 20, "{name}: {scan:?}");
        assert!(leaf_errors(&pool, "disk1") > 0, "{name}");
        assert_eq!(leaf_errors(&pool, "disk0"), 0, "{name}");
        stop.send(()).expect("busy");
        let kept = busy.await.expect("joined");
        // What was freed lately is not allocated, and not repaired.
        pool.clear(None).await.expect("clear");
        let scan = scrub(&pool).await;
        assert_eq!((scan.errors, scan.repaired_bytes), (0, 0), "{name}");
        assert_eq!(errors(&pool.status().root), 0, "{name}");
        assert_eq!(pool.damaged().await, Vec::new(), "{name}");
        pool.pipeline().cache().clear();
        check_objects(&dataset, &objects, 5).await;
        check_objects(&dataset, &kept, 3).await;
        drop(dataset);
        pool.export(false).await.expect("export");
        let pool = import_sim(&sim, true).await;
        pool.scans()
            .scrub(ScrubCommand::Start)
            .await
            .expect("start");
        pool.scans().wait_for_scrub(true).await;
        assert_eq!(errors(&pool.status().root), 0, "{name}: by another engine");
        pool.export(false).await.expect("close");
        zdb_of_sim(&sim);
    }
}

/// A device that was away gets what it missed, and nothing else, without being asked for; then it
/// is as good as the others.
#[tokio::test(start_paused = true)]
async fn a_device_that_comes_back_is_resilvered() {
    for (seed, (name, count, layout)) in layouts().into_iter().enumerate() {
        let sim = SimWorld::new(920 + seed as u64);
        let vdevs = vec![normal(layout(leaves(&sim, count)))];
        let pool = create(&sim, vdevs).await;
        pool.scans().set_queue(7);
        let dataset = pool.dsl().open_dataset("tank").await.expect("open");
        let before = write_objects(&dataset, 12, 6).await;
        pool.sync().await.expect("sync");
        let disk = sim.disk("disk1").expect("a disk");
        disk.set_gone(true);
        let during = write_objects(&dataset, 4, 5).await;
        pool.sync().await.expect("sync");
        let writes = disk.counts().get(device::sim::SimOp::Write);
        disk.set_gone(false);
        pool.clear(None).await.expect("clear");
        let scan = settle(&pool).await;
        assert_eq!(scan.function, ScanFunction::Resilver, "{name}");
        assert_eq!(
            (scan.state, scan.errors),
            (ScanState::Finished, 0),
            "{name}"
        );
        assert!(scan.repaired_bytes > 0, "{name}: {scan:?}");
        assert!(disk.counts().get(device::sim::SimOp::Write) > writes);
        assert_eq!(pool.health(), PoolHealth::Online, "{name}");
        assert_eq!(
            errors(&pool.status().root),
            0,
            "{name}: nothing is an error"
        );
        for leaf in pool.pipeline().tree().leaves() {
            assert!(
                leaf.leaf()
                    .expect("a leaf")
                    .dirty_times()
                    .missing()
                    .is_empty(),
                "{name}"
            );
        }
        let scan = scrub(&pool).await;
        assert_eq!((scan.errors, scan.repaired_bytes), (0, 0), "{name}");
        assert_eq!(errors(&pool.status().root), 0, "{name}");
        // Nobody else has it now.
        if count == 2 {
            sim.disk("disk0").expect("a disk").set_gone(true);
        }
        pool.pipeline().cache().clear();
        check_objects(&dataset, &before, 6).await;
        check_objects(&dataset, &during, 5).await;
        if count == 2 {
            sim.disk("disk0").expect("a disk").set_gone(false);
            pool.clear(None).await.expect("clear");
        }
        drop(dataset);
        settle(&pool).await;
        pool.export(false).await.expect("export");
        zdb_of_sim(&sim);
    }
}

/// Power cuts in the middle: the next import goes on from the stored place, and the device has all
/// in the end.
#[tokio::test(start_paused = true)]
async fn scans_go_on_after_power_cuts() {
    let mut went_on = 0;
    for seed in 0..10 {
        let sim = SimWorld::new(940 + seed);
        let (name, count, layout) = layouts()[seed as usize % 5];
        let vdevs = vec![normal(layout(leaves(&sim, count)))];
        let pool = create(&sim, vdevs).await;
        let dataset = pool.dsl().open_dataset("tank").await.expect("open");
        let objects = write_objects(&dataset, 6, 4).await;
        pool.sync().await.expect("sync");
        let disk = sim.disk("disk1").expect("a disk");
        let is_resilver = seed % 2 == 0;
        if is_resilver {
            disk.set_gone(true);
        }
        let more = write_objects(&dataset, 6, 4).await;
        pool.sync().await.expect("sync");
        pool.scans().set_queue(3);
        let slow = device::sim::Latency {
            read: Duration::from_millis(20),
            ..device::sim::Latency::default()
        };
        for name in sim.disk_names() {
            sim.disk(&name).expect("a disk").set_latency(slow);
        }
        match is_resilver {
            true => {
                disk.set_gone(false);
                let _ = pool.clear(None).await;
            }
            false => {
                ruin(&sim, "disk1");
                let _ = pool.scans().scrub(ScrubCommand::Start).await;
            }
        }
        // Somebody waits for every group, so that turns are short and there are many.
        let busy = pool.clone();
        sim.world().spawn.spawn(Box::pin(async move {
            while busy.sync().await.is_ok() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }));
        tokio::time::sleep(Duration::from_millis(300 + 500 * seed)).await;
        sim.power_cut(PowerCut::Random);
        drop((dataset, pool));
        sim.kill_tasks().await;
        sim.power_on();
        let pool = import_sim(&sim, false).await;
        went_on += u32::from(scan_of(&pool).state == ScanState::Scanning);
        let scan = settle(&pool).await;
        assert_eq!(
            (scan.state, scan.errors),
            (ScanState::Finished, 0),
            "{name}"
        );
        let dataset = pool.dsl().open_dataset("tank").await.expect("open");
        pool.pipeline().cache().clear();
        check_objects(&dataset, &objects, 4).await;
        check_objects(&dataset, &more, 4).await;
        for leaf in pool.pipeline().tree().leaves() {
            assert!(
                leaf.leaf()
                    .expect("a leaf")
                    .dirty_times()
                    .missing()
                    .is_empty(),
                "{name}"
            );
        }
        scrub(&pool).await;
        pool.clear(None).await.expect("clear");
        let scan = scrub(&pool).await;
        assert_eq!((scan.errors, scan.repaired_bytes), (0, 0), "{name}");
        assert_eq!(errors(&pool.status().root), 0, "{name}");
        drop(dataset);
        pool.export(false).await.expect("export");
        zdb_of_sim(&sim);
    }
    assert!(went_on > 2, "only {went_on} scans were under way");
}

/// Pause, continue and stop, also over an export: a paused scrub stays paused.
#[tokio::test(start_paused = true)]
async fn a_scrub_of_a_pool_in_use_obeys() {
    let sim = SimWorld::new(960);
    let vdevs = vec![normal(VdevLayout::Mirror(leaves(&sim, 2)))];
    let pool = create(&sim, vdevs).await;
    let dataset = pool.dsl().open_dataset("tank").await.expect("open");
    write_objects(&dataset, 6, 4).await;
    drop(dataset);
    pool.sync().await.expect("sync");
    for command in [ScrubCommand::Pause, ScrubCommand::Stop] {
        let refused = pool.scans().scrub(command).await;
        assert!(matches!(refused, Err(PoolError::NoScrub { .. })));
    }
    // It stands still from the start: after the import nothing goes on for two groups.
    pool.export(false).await.expect("export");
    let pool = import_sim(&sim, false).await;
    pool.scans().set_queue(4);
    let slow = device::sim::Latency {
        read: Duration::from_millis(100),
        ..device::sim::Latency::default()
    };
    for name in sim.disk_names() {
        sim.disk(&name).expect("a disk").set_latency(slow);
    }
    pool.scans()
        .scrub(ScrubCommand::Start)
        .await
        .expect("start");
    let refused = pool.scans().scrub(ScrubCommand::Start).await;
    assert!(matches!(refused, Err(PoolError::ScrubActive { .. })));
    pool.scans()
        .scrub(ScrubCommand::Pause)
        .await
        .expect("pause");
    let refused = pool.scans().scrub(ScrubCommand::Pause).await;
    assert!(matches!(refused, Err(PoolError::ScrubPaused { .. })));
    pool.scans().wait_for_scrub(false).await;
    assert_eq!(scan_of(&pool).state, ScanState::Scanning);
    assert_ne!(scan_of(&pool).pause_time_s, 0);
    pool.export(false).await.expect("export");
    let pool = import_sim(&sim, false).await;
    let scan = scan_of(&pool);
    assert_eq!(scan.state, ScanState::Scanning);
    assert_ne!(scan.pause_time_s, 0);
    let issued = scan.issued_bytes;
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(scan_of(&pool).issued_bytes, issued);
    pool.scans()
        .scrub(ScrubCommand::Start)
        .await
        .expect("continue");
    pool.scans().wait_for_scrub(true).await;
    let scan = scan_of(&pool);
    assert_eq!((scan.state, scan.errors), (ScanState::Finished, 0));
    pool.scans()
        .scrub(ScrubCommand::Start)
        .await
        .expect("start");
    pool.scans().scrub(ScrubCommand::Stop).await.expect("stop");
    assert_eq!(scan_of(&pool).state, ScanState::Canceled);
    pool.export(false).await.expect("export");
    zdb_of_sim(&sim);
}
