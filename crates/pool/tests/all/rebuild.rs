//! Goal: a device that is attached to be rebuilt sequentially has everything in the end, whatever
//! happens to the pool meanwhile, and is not trusted before.
//! Method: simulated disks, with load, power cuts, failures and exports in the middle; at the end
//! contents with the new device alone, a scrub that finds nothing, and zdb.

use std::sync::Arc;
use std::time::Duration;

use crate::common::*;
use device::sim::{Fault, FaultEffect, Latency, PowerCut, SimOp, SimWorld};
use format::{LABEL_BYTES, LABEL_START_BYTES};
use pool::{
    AttachSpec, FeatureChoice, ImportSpec, LeafSpec, Pool, PoolError, RebuildState, RebuildStatus,
    ScanFunction, ScanSpec, ScanState, ScrubCommand, VdevLayout, VdevSpec, VdevStatus,
};

const DISK_BYTES: u64 = 96 << 20;
const FEATURE: &str = "org.openzfs:device_rebuild";

fn leaf(sim: &SimWorld, name: &str) -> LeafSpec {
    sim.add_disk(name, DISK_BYTES);
    LeafSpec {
        path: name.to_owned(),
        is_file: false,
    }
}

fn mirror(sim: &SimWorld, names: &[&str]) -> VdevSpec {
    normal(VdevLayout::Mirror(
        names.iter().map(|name| leaf(sim, name)).collect(),
    ))
}

async fn create(sim: &SimWorld, vdevs: Vec<VdevSpec>) -> Arc<Pool> {
    let pool = Pool::create(&sim.world(), spec("tank", vdevs)).await;
    pool.expect("create")
}

async fn import_sim(sim: &SimWorld) -> Arc<Pool> {
    let spec = ScanSpec {
        paths: sim.disk_names(),
        ..ScanSpec::default()
    };
    let found = pool::scan(&sim.world(), &spec).await.expect("scan");
    let found = found.into_iter().next().expect("a pool");
    let spec = ImportSpec::new(found, host());
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

/// Attaches or replaces, sequentially or not.
fn attach(sim: &SimWorld, name: &str, replace: bool, sequential: bool) -> AttachSpec {
    AttachSpec {
        device: match sim.disk(name) {
            Some(_) => LeafSpec {
                path: name.to_owned(),
                is_file: false,
            },
            None => leaf(sim, name),
        },
        ashift: None,
        force: false,
        replace,
        sequential,
        untouched: false,
    }
}

fn device<'a>(vdev: &'a VdevStatus, name: &str) -> Option<&'a VdevStatus> {
    if vdev.path.as_deref() == Some(name) {
        return Some(vdev);
    }
    vdev.children.iter().find_map(|child| device(child, name))
}

fn is_stale(pool: &Pool, name: &str) -> bool {
    device(&pool.status().root, name).expect("there").is_stale
}

fn rebuild(pool: &Pool) -> RebuildStatus {
    let status = pool.status();
    status.root.children[0].rebuild.expect("a rebuild")
}

fn is_active(pool: &Pool) -> bool {
    let features = pool.properties().features();
    let mut rebuild = features.iter().filter(|feature| feature.guid == FEATURE);
    rebuild.next().expect("known").refcount > 0
}

/// Waits until no rebuild is under way, nor the scan that follows.
async fn settle(pool: &Pool) {
    pool.scans().wait_for_rebuild().await;
    for _ in 0..4 {
        pool.sync().await.expect("sync");
        tokio::time::sleep(Duration::from_secs(6)).await;
        pool.scans().wait_for_scrub(true).await;
    }
}

fn errors(vdev: &VdevStatus) -> u64 {
    let own = vdev.read_errors + vdev.write_errors + vdev.checksum_errors;
    own + vdev.children.iter().map(errors).sum::<u64>()
}

/// The scrub that followed by itself found nothing, and verified everything.
fn is_verified(pool: &Pool) {
    let scan = pool.status().scan.expect("a scan");
    assert_eq!(scan.function, ScanFunction::Scrub);
    assert_eq!(scan.state, ScanState::Finished);
    assert_eq!((scan.errors, scan.repaired_bytes), (0, 0));
    assert!(scan.issued_bytes > 1 << 20, "{scan:?}");
    assert_eq!(errors(&pool.status().root), 0);
}

fn slow(sim: &SimWorld) {
    let slow = Latency {
        read: Duration::from_millis(20),
        ..Latency::default()
    };
    for name in sim.disk_names() {
        sim.disk(&name).expect("a disk").set_latency(slow);
    }
}

/// Lets a rebuild copy something, and stops it there.
async fn halfway(pool: &Pool) {
    pool.scans().hold(false);
    while rebuild(pool).rebuilt_bytes == 0 {
        assert_eq!(rebuild(pool).state, RebuildState::Active);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    pool.scans().hold(true);
    pool.sync().await.expect("sync");
    let status = rebuild(pool);
    assert_eq!(status.state, RebuildState::Active);
    assert!(status.scanned_bytes < status.estimated_bytes, "{status:?}");
}

/// A disk becomes a mirror, and one of its devices is replaced, while the pool is in use: the new
/// device alone has all.
#[tokio::test(start_paused = true)]
async fn a_device_is_rebuilt_under_load() {
    let sim = SimWorld::new(1);
    let pool = create(&sim, vec![normal(VdevLayout::Leaf(leaf(&sim, "disk0")))]).await;
    let dataset = pool.dsl().open_dataset("tank").await.expect("open");
    let mut objects = write_objects(&dataset, 12, 6).await;
    let mut gone = write_objects(&dataset, 14, 2).await;
    pool.sync().await.expect("sync");
    assert!(!is_active(&pool));
    for (target, name, replace) in [("disk0", "disk1", false), ("disk0", "disk2", true)] {
        let spec = attach(&sim, name, replace, true);
        pool.attach(target, &spec).await.expect("attach");
        assert!(is_active(&pool) && is_stale(&pool, name));
        for _ in 0..6 {
            objects.extend(write_objects(&dataset, 2, 6).await);
            free_objects(&dataset, &gone.split_off(gone.len() - 2)).await;
            pool.sync().await.expect("sync");
            if replace {
                break;
            }
        }
        settle(&pool).await;
        let status = rebuild(&pool);
        assert_eq!((status.state, status.errors), (RebuildState::Complete, 0));
        assert!(status.rebuilt_bytes > 1 << 20, "{status:?}");
        assert!(!is_active(&pool) && !is_stale(&pool, name));
        is_verified(&pool);
    }
    let root = pool.status().root;
    assert!(device(&root, "disk0").is_none(), "it was replaced");
    let history = format!("{:?}", pool.history().await.expect("history"));
    for words in ["vdev_id=0", "started", "complete", "rebuild"] {
        assert!(history.contains(words), "{words}: {history}");
    }
    sim.disk("disk1").expect("a disk").set_gone(true);
    pool.pipeline().cache().clear();
    check_objects(&dataset, &objects, 6).await;
    sim.disk("disk1").expect("a disk").set_gone(false);
    pool.clear(None).await.expect("clear");
    settle(&pool).await;
    drop(dataset);
    pool.export(false).await.expect("export");
    zdb_of_sim(&sim);
    let pool = import_sim(&sim).await;
    // Of a rebuild nothing is told once there was a resilver.
    assert!(
        pool.scans().rebuilds().is_empty(),
        "{:?}",
        pool.scans().rebuilds()
    );
    pool.export(false).await.expect("export");
}

/// A crash before a new device has anything: nobody reads from it, and finds it wrong, what the
/// pool needs to know that.
#[tokio::test(start_paused = true)]
async fn a_new_device_is_not_read_at_the_import_for_what_it_lacks() {
    for (seed, sequential) in [(0, false), (1, true), (2, false)] {
        let sim = SimWorld::new(60 + seed);
        let disk = VdevLayout::Leaf(leaf(&sim, "disk0"));
        let pool = create(&sim, vec![normal(disk)]).await;
        let dataset = pool.dsl().open_dataset("tank").await.expect("open");
        let objects = write_objects(&dataset, 40, 8).await;
        pool.sync().await.expect("sync");
        pool.scans().hold(true);
        let spec = attach(&sim, "new", false, sequential);
        pool.attach("disk0", &spec).await.expect("attach");
        drop(dataset);
        sim.power_cut(PowerCut::KeepAll);
        drop(pool);
        sim.kill_tasks().await;
        sim.power_on();
        let pool = import_sim(&sim).await;
        let status = pool.status();
        let new = device(&status.root, "new").expect("there");
        assert_eq!(new.checksum_errors, 0, "case {seed}");
        let dataset = pool.dsl().open_dataset("tank").await.expect("open");
        check_objects(&dataset, &objects, 8).await;
        drop(dataset);
        pool.export(false).await.expect("export");
    }
}

/// An export, and power cuts, in the middle: it goes on at the stored place.
#[tokio::test(start_paused = true)]
async fn a_rebuild_goes_on_after_exports_and_power_cuts() {
    for seed in 0..8 {
        let sim = SimWorld::new(40 + seed);
        let pool = create(&sim, vec![mirror(&sim, &["disk0", "disk1"])]).await;
        let dataset = pool.dsl().open_dataset("tank").await.expect("open");
        let objects = write_objects(&dataset, 20, 8).await;
        pool.sync().await.expect("sync");
        slow(&sim);
        let spec = attach(&sim, "new", seed % 2 == 0, true);
        pool.attach("disk1", &spec).await.expect("attach");
        halfway(&pool).await;
        let before = rebuild(&pool);
        drop(dataset);
        if seed < 2 {
            pool.export(false).await.expect("export");
            drop(pool);
        } else {
            pool.scans().hold(false);
            tokio::time::sleep(Duration::from_millis(3 * seed)).await;
            sim.power_cut(PowerCut::Random);
            drop(pool);
            sim.kill_tasks().await;
            sim.power_on();
        }
        let pool = import_sim(&sim).await;
        let status = rebuild(&pool);
        assert!(status.scanned_bytes >= before.scanned_bytes, "{status:?}");
        assert_eq!(status.start_time_s, before.start_time_s);
        if status.state == RebuildState::Active {
            assert!(is_stale(&pool, "new"));
            assert!(device(&pool.status().root, "disk1").is_some());
        }
        settle(&pool).await;
        assert_eq!(rebuild(&pool).state, RebuildState::Complete, "{seed}");
        is_verified(&pool);
        let dataset = pool.dsl().open_dataset("tank").await.expect("open");
        for name in ["disk0", "disk1"] {
            sim.disk(name).expect("a disk").set_gone(true);
        }
        pool.pipeline().cache().clear();
        check_objects(&dataset, &objects, 8).await;
        for name in ["disk0", "disk1"] {
            sim.disk(name).expect("a disk").set_gone(false);
        }
        pool.clear(None).await.expect("clear");
        settle(&pool).await;
        drop(dataset);
        pool.export(false).await.expect("export");
        zdb_of_sim(&sim);
    }
}

/// What cannot be read from the only device that has it is not taken to be on the new one: a
/// resilver finds out what that is.
#[tokio::test(start_paused = true)]
async fn what_cannot_be_read_is_left_to_a_resilver() {
    let sim = SimWorld::new(70);
    let pool = create(&sim, vec![normal(VdevLayout::Leaf(leaf(&sim, "disk0")))]).await;
    let dataset = pool.dsl().open_dataset("tank").await.expect("open");
    let objects = write_objects(&dataset, 12, 6).await;
    pool.sync().await.expect("sync");
    let disk = sim.disk("disk0").expect("a disk");
    let object = dataset.objset().hold(objects[3]).await.expect("hold");
    let pointer = object.block_pointer(2).await.expect("a pointer");
    let place = pointer.dva(0).expect("a place").offset_bytes();
    let spec = attach(&sim, "disk1", false, true);
    pool.scans().hold(true);
    pool.attach("disk0", &spec).await.expect("attach");
    disk.make_unreadable(LABEL_START_BYTES + place, 4096);
    pool.scans().hold(false);
    pool.scans().wait_for_rebuild().await;
    disk.make_all_readable();
    settle(&pool).await;
    let scan = pool.status().scan.expect("a scan");
    assert_eq!(scan.function, ScanFunction::Resilver, "{scan:?}");
    assert_eq!((scan.state, scan.errors), (ScanState::Finished, 0));
    assert!(!is_stale(&pool, "disk1"));
    disk.set_gone(true);
    pool.pipeline().cache().clear();
    check_objects(&dataset, &objects, 6).await;
    disk.set_gone(false);
    pool.clear(None).await.expect("clear");
    settle(&pool).await;
    drop(dataset);
    pool.export(false).await.expect("export");
    zdb_of_sim(&sim);
}

/// A device that fails a copy, or is away for a while, does not count as whole; a resilver is for
/// it.
#[tokio::test(start_paused = true)]
async fn a_device_that_misses_a_copy_is_resilvered() {
    for is_away in [false, true] {
        let sim = SimWorld::new(80);
        let pool = create(&sim, vec![mirror(&sim, &["disk0", "disk1"])]).await;
        let dataset = pool.dsl().open_dataset("tank").await.expect("open");
        let objects = write_objects(&dataset, 20, 8).await;
        pool.sync().await.expect("sync");
        slow(&sim);
        let spec = attach(&sim, "new", false, true);
        pool.attach("disk1", &spec).await.expect("attach");
        halfway(&pool).await;
        let new = sim.disk("new").expect("a disk");
        if is_away {
            new.set_gone(true);
            pool.scans().hold(false);
            settle(&pool).await;
            assert_eq!(rebuild(&pool).state, RebuildState::Canceled);
            assert!(!is_active(&pool));
            new.set_gone(false);
            pool.clear(None).await.expect("clear");
        } else {
            let data = LABEL_START_BYTES..DISK_BYTES - 2 * LABEL_BYTES;
            // The second one is the write tried again.
            let fault = Fault::new(SimOp::Write, FaultEffect::Error);
            new.inject(fault.within(data).times(2));
            pool.scans().hold(false);
        }
        settle(&pool).await;
        let scan = pool.status().scan.expect("a scan");
        assert_eq!(scan.function, ScanFunction::Resilver, "{is_away} {scan:?}");
        assert_eq!((scan.state, scan.errors), (ScanState::Finished, 0));
        assert!(!is_stale(&pool, "new"));
        for name in ["disk0", "disk1"] {
            sim.disk(name).expect("a disk").set_gone(true);
        }
        pool.pipeline().cache().clear();
        check_objects(&dataset, &objects, 8).await;
        for name in ["disk0", "disk1"] {
            sim.disk(name).expect("a disk").set_gone(false);
        }
        pool.clear(None).await.expect("clear");
        settle(&pool).await;
        drop(dataset);
        pool.export(false).await.expect("export");
        zdb_of_sim(&sim);
    }
}

/// A second device begins it anew, for both; when the last one is taken away it is canceled.
#[tokio::test(start_paused = true)]
async fn devices_come_and_go_during_a_rebuild() {
    let sim = SimWorld::new(90);
    let pool = create(&sim, vec![mirror(&sim, &["disk0", "disk1"])]).await;
    let dataset = pool.dsl().open_dataset("tank").await.expect("open");
    let objects = write_objects(&dataset, 20, 8).await;
    pool.sync().await.expect("sync");
    slow(&sim);
    let first = attach(&sim, "new", false, true);
    pool.scans()
        .scrub(ScrubCommand::Start)
        .await
        .expect("scrub");
    pool.attach("disk1", &first).await.expect("attach");
    let scan = pool.status().scan.expect("a scan");
    assert_eq!(scan.state, ScanState::Canceled, "a scrub gives way");
    halfway(&pool).await;
    let refused = pool.scans().scrub(ScrubCommand::Start).await;
    let resilvering = |result: &Result<(), _>| matches!(result, Err(PoolError::Resilvering { .. }));
    assert!(resilvering(&refused), "{refused:?}");
    let refused = pool.scans().resilver().await;
    assert!(resilvering(&refused), "{refused:?}");
    let healing = attach(&sim, "other", false, false);
    let refused = pool.attach("disk1", &healing).await;
    let is_right = matches!(refused, Err(PoolError::RebuildUnderWay { .. }));
    assert!(is_right, "{refused:?}");
    // One device goes, and another comes.
    let second = attach(&sim, "other", false, true);
    pool.attach("disk1", &second).await.expect("attach");
    assert_eq!(rebuild(&pool).scanned_bytes, 0);
    halfway(&pool).await;
    pool.detach("new").await.expect("detach");
    assert_eq!(rebuild(&pool).state, RebuildState::Active);
    pool.detach("other").await.expect("detach");
    pool.scans().hold(false);
    settle(&pool).await;
    assert_eq!(rebuild(&pool).state, RebuildState::Canceled);
    assert!(!is_active(&pool));
    // Both at a time.
    for (name, spec) in [("new", &first), ("other", &second)] {
        let spec = AttachSpec {
            force: true,
            ..spec.clone()
        };
        pool.attach("disk1", &spec).await.expect(name);
    }
    settle(&pool).await;
    assert_eq!(rebuild(&pool).state, RebuildState::Complete);
    assert!(!is_active(&pool) && !is_stale(&pool, "new") && !is_stale(&pool, "other"));
    is_verified(&pool);
    for name in ["disk0", "disk1"] {
        pool.detach(name).await.expect(name);
    }
    pool.pipeline().cache().clear();
    check_objects(&dataset, &objects, 8).await;
    drop(dataset);
    pool.export(false).await.expect("export");
    zdb_of_sim(&sim);
}

/// What OpenZFS refuses is refused.
#[tokio::test(start_paused = true)]
async fn rebuilds_are_refused_where_they_cannot_be() {
    let sim = SimWorld::new(95);
    let raidz = VdevLayout::Raidz {
        parity: 1,
        leaves: ["disk0", "disk1", "disk2"]
            .map(|name| leaf(&sim, name))
            .to_vec(),
    };
    let pool = create(&sim, vec![normal(raidz)]).await;
    let spec = attach(&sim, "new", true, true);
    let refused = pool.attach("disk1", &spec).await;
    let is_right = matches!(refused, Err(PoolError::CannotRebuild { .. }));
    assert!(is_right, "{refused:?}");
    pool.export(false).await.expect("export");

    let sim = SimWorld::new(96);
    let mut making = crate::common::spec("tank", vec![mirror(&sim, &["disk0", "disk1"])]);
    making.features = FeatureChoice::None;
    let pool = Pool::create(&sim.world(), making).await.expect("create");
    let spec = attach(&sim, "new", true, true);
    let refused = pool.attach("disk1", &spec).await;
    let is_right = matches!(refused, Err(PoolError::RebuildDisabled { .. }));
    assert!(is_right, "{refused:?}");
    pool.export(false).await.expect("export");

    let sim = SimWorld::new(97);
    let pool = create(&sim, vec![mirror(&sim, &["disk0", "disk1"])]).await;
    pool.scans().hold(true);
    let healing = attach(&sim, "new", false, false);
    pool.attach("disk1", &healing).await.expect("attach");
    let spec = attach(&sim, "other", true, true);
    let refused = pool.attach("disk1", &spec).await;
    let is_right = matches!(refused, Err(PoolError::ResilverUnderWay { .. }));
    assert!(is_right, "{refused:?}");
    pool.scans().hold(false);
    pool.export(false).await.expect("export");
}
