//! Goal: devices that come back while a scan is under way get what they lack, in the order that
//! feature `resilver_defer` and `zpool reopen -n` say; a scrub of what is new reads only that.
//! Method: simulated disks that go away and come back while scans are held; at the end a scrub that
//! finds nothing, and zdb.

use std::sync::Arc;
use std::time::Duration;

use crate::common::*;
use device::sim::SimWorld;
use pool::{
    LeafSpec, OfflineSpec, Pool, PoolError, ScanFunction, ScanState, ScrubCommand, VdevLayout,
    VdevStatus,
};

const DISK_BYTES: u64 = 96 << 20;

async fn create(sim: &SimWorld) -> Arc<Pool> {
    let leaves = ["disk0", "disk1", "disk2"].map(|name| {
        sim.add_disk(name, DISK_BYTES);
        LeafSpec {
            path: name.to_owned(),
            is_file: false,
        }
    });
    let vdevs = vec![normal(VdevLayout::Mirror(leaves.to_vec()))];
    let pool = Pool::create(&sim.world(), spec("tank", vdevs)).await;
    let pool = pool.expect("create");
    let dataset = pool.dsl().open_dataset("tank").await.expect("open");
    write_objects(&dataset, 20, 4).await;
    pool.sync().await.expect("sync");
    pool
}

/// A device misses something.
async fn absence(pool: &Pool, device: &str) {
    let spec = OfflineSpec::default();
    pool.offline(device, spec).await.expect("offline");
    let dataset = pool.dsl().open_dataset("tank").await.expect("open");
    write_objects(&dataset, 5, 2).await;
    pool.sync().await.expect("sync");
    pool.online(device, false).await.expect("online");
    pool.sync().await.expect("sync");
    pool.sync_config().await.expect("sync");
}

fn leaf(pool: &Pool, name: &str) -> VdevStatus {
    let tops = pool.status().root.children;
    let found = tops[0].children.iter().find(|leaf| leaf.name == name);
    found.expect("a device").clone()
}

fn is_resilvering(pool: &Pool) -> bool {
    pool.status().scan.is_some_and(|scan| scan.is_resilvering())
}

async fn count(pool: &Pool, event: &str) -> usize {
    let history = pool.history().await.expect("history");
    let texts = history.iter().map(|record| format!("{record:?}"));
    texts.filter(|text| text.contains(event)).count()
}

async fn finish(sim: &SimWorld, pool: &Arc<Pool>) {
    pool.scans().hold(false);
    for _ in 0..6 {
        pool.sync_config().await.expect("sync");
        tokio::time::sleep(Duration::from_secs(6)).await;
        pool.scans().wait_for_scrub(true).await;
    }
    for name in ["disk0", "disk1", "disk2"] {
        let leaf = leaf(pool, name);
        assert!(!leaf.is_stale && !leaf.is_deferred, "{leaf:?}");
    }
    pool.scans()
        .scrub(ScrubCommand::Start)
        .await
        .expect("scrub");
    pool.scans().wait_for_scrub(true).await;
    let scan = pool.status().scan.expect("a scan");
    assert_eq!((scan.repaired_bytes, scan.errors), (0, 0));
    pool.export(false).await.expect("export");
    let images = Images::new();
    for name in sim.disk_names() {
        let disk = sim.disk(&name).expect("a disk");
        disk.save_image(images.path().join(format!("{name}.img")))
            .expect("save");
    }
    zdb_is_clean(images.path(), "tank");
}

fn simulate(work: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime");
    runtime.block_on(work);
}

#[test]
fn a_second_resilver_waits_or_the_first_begins_anew() {
    for percent in [0, 10] {
        simulate(async {
            let sim = SimWorld::new(percent);
            let pool = create(&sim).await;
            pool.scans().set_resilver_defer_percent(percent);
            pool.scans().hold(true);
            absence(&pool, "disk1").await;
            assert!(is_resilvering(&pool));
            absence(&pool, "disk2").await;
            let waits = percent == 0;
            assert_eq!(leaf(&pool, "disk2").is_deferred, waits);
            assert!(!leaf(&pool, "disk1").is_deferred);
            let feature = "feature@resilver_defer";
            let is_active = pool.properties().get(feature).expect("a feature").value == "active";
            assert_eq!(is_active, waits);
            assert_eq!(
                count(&pool, "aborted, restarting").await,
                usize::from(!waits)
            );
            if waits {
                // Whoever does not want to wait asks for it.
                pool.scans().resilver().await.expect("resilver");
                assert!(!leaf(&pool, "disk2").is_deferred);
                assert_eq!(count(&pool, "starting deferred resilver").await, 1);
                assert!(is_resilvering(&pool));
                absence(&pool, "disk1").await;
                assert!(leaf(&pool, "disk1").is_deferred);
            }
            finish(&sim, &pool).await;
        });
    }
}

#[test]
fn without_the_feature_nothing_waits() {
    simulate(async {
        let sim = SimWorld::new(4);
        let leaves = ["disk0", "disk1", "disk2"].map(|name| {
            sim.add_disk(name, DISK_BYTES);
            LeafSpec {
                path: name.to_owned(),
                is_file: false,
            }
        });
        let vdevs = vec![normal(VdevLayout::Mirror(leaves.to_vec()))];
        let mut wanted = spec("tank", vdevs);
        wanted.properties = vec![("feature@resilver_defer".into(), "disabled".into())];
        let pool = Pool::create(&sim.world(), wanted).await.expect("create");
        pool.scans().set_resilver_defer_percent(0);
        let refused = pool.scans().resilver().await;
        assert!(matches!(refused, Err(PoolError::NoResilverDefer { .. })));
        pool.scans().hold(true);
        absence(&pool, "disk1").await;
        absence(&pool, "disk2").await;
        assert_eq!(count(&pool, "aborted, restarting").await, 1);
        finish(&sim, &pool).await;
    });
}

#[test]
fn a_scrub_ends_for_a_device_that_is_back_or_does_not() {
    for restarts in [false, true] {
        simulate(async {
            let sim = SimWorld::new(7);
            let pool = create(&sim).await;
            let disk = sim.disk("disk1").expect("a disk");
            disk.set_gone(true);
            pool.reopen(true).await.expect("reopen");
            let dataset = pool.dsl().open_dataset("tank").await.expect("open");
            write_objects(&dataset, 5, 2).await;
            pool.sync().await.expect("sync");
            pool.scans().hold(true);
            pool.scans()
                .scrub(ScrubCommand::Start)
                .await
                .expect("scrub");
            disk.set_gone(false);
            pool.reopen(restarts).await.expect("reopen");
            for _ in 0..8 {
                pool.sync_config().await.expect("sync");
            }
            assert_eq!(is_resilvering(&pool), restarts);
            finish(&sim, &pool).await;
        });
    }
}

#[test]
fn a_scrub_goes_on_from_the_last_one() {
    simulate(async {
        let sim = SimWorld::new(9);
        let pool = create(&sim).await;
        pool.scans()
            .scrub(ScrubCommand::Continue)
            .await
            .expect("scrub");
        pool.scans().wait_for_scrub(true).await;
        let all = pool.status().scan.expect("a scan");
        assert_eq!(
            (all.function, all.state),
            (ScanFunction::Scrub, ScanState::Finished)
        );
        let dataset = pool.dsl().open_dataset("tank").await.expect("open");
        write_objects(&dataset, 1, 1).await;
        pool.sync().await.expect("sync");
        // Old blocks are left alone.
        sim.disk("disk1")
            .expect("a disk")
            .corrupt(20 << 20, 40 << 20);
        pool.scans()
            .scrub(ScrubCommand::Continue)
            .await
            .expect("scrub");
        pool.scans().wait_for_scrub(true).await;
        let new = pool.status().scan.expect("a scan");
        assert_eq!(new.state, ScanState::Finished);
        assert!(new.issued_bytes < all.issued_bytes / 2, "{new:?} {all:?}");
        pool.scans()
            .scrub(ScrubCommand::Start)
            .await
            .expect("scrub");
        pool.scans().wait_for_scrub(true).await;
        finish(&sim, &pool).await;
    });
}
