//! Goal: what was promised on a mirrored intent log is there after a crash, or the import says that
//! it may not be: never does a device that missed it tell alone that the log ended before it.
//! Method: scripts in the simulated world, with a filesystem's `fsync` as the promise.

use std::sync::Arc;
use std::time::Duration;

use crate::common::{data, get, open, put};
use device::sim::{Fault, FaultEffect, PowerCut, SimOp, SimWorld};
use filesystem::Filesystem;
use pool::{AttachSpec, ImportSpec, LeafSpec, MissingLogs, OfflineSpec, Pool};
use sim::torture::{Layout, create, find, host, import, simulate};

/// A pool whose filesystem has a log on disks 2 and 3, and the disks.
async fn begin(seed: u64) -> (SimWorld, Arc<Pool>, Arc<Filesystem>) {
    begin_with(seed, Layout::MirrorAndLogs).await
}

async fn begin_with(seed: u64, layout: Layout) -> (SimWorld, Arc<Pool>, Arc<Filesystem>) {
    let sim = SimWorld::new(seed);
    let pool = create(&sim, layout, 96, false).await.unwrap();
    let fs = open(&sim, &pool).await.unwrap();
    let first = put(&fs, "first", &data(1, 10_000)).await.unwrap();
    fs.sync_file(first).await.unwrap();
    pool.sync().await.unwrap();
    (sim, pool, fs)
}

/// A promise.
async fn promise(fs: &Filesystem, name: &str) {
    let ino = put(fs, name, &data(7, 30_000)).await.unwrap();
    fs.sync_file(ino).await.unwrap();
}

async fn cut(sim: &SimWorld, pool: Arc<Pool>, fs: Arc<Filesystem>) {
    sim.power_cut(PowerCut::LoseUnflushed);
    sim.kill_tasks().await;
    pool.dsl().tasks().close();
    drop((pool, fs));
    sim.kill_tasks().await;
    sim.power_on();
    for name in sim.disk_names() {
        sim.disk(&name).unwrap().clear_faults();
    }
}

async fn import_without_log(sim: &SimWorld) -> Arc<Pool> {
    let mut spec = ImportSpec::new(find(sim).await.unwrap(), host());
    spec.missing_logs = MissingLogs::Accepted;
    Pool::import(&sim.world(), spec).await.unwrap()
}

/// One log device is away while a promise is made, and comes back when the other one is away.
#[test]
fn a_log_device_that_was_away_does_not_end_the_log() {
    for ways in 0..3 {
        simulate(async move {
            let (sim, pool, fs) = begin(70 + ways).await;
            let (stale, good) = (sim.disk("disk2").unwrap(), sim.disk("disk3").unwrap());
            stale.set_gone(true);
            // Whether the state on disk knows of that.
            promise(&fs, "before").await;
            if ways > 0 {
                pool.sync().await.unwrap();
            }
            if ways > 1 {
                promise(&fs, "between").await;
                pool.sync().await.unwrap();
            }
            let waits = pool.dsl().open_dataset(sim::torture::POOL).await.unwrap();
            let before = waits.log().unwrap().stats().txg_waits;
            promise(&fs, "late").await;
            promise(&fs, "later").await;
            promise(&fs, "latest").await;
            let waited = waits.log().unwrap().stats().txg_waits - before;
            assert!(waited <= 3, "a log that lacks a device is slow for ever");
            drop(waits);
            cut(&sim, pool, fs).await;
            stale.set_gone(false);
            good.set_gone(true);
            let lost = match import(&sim, false).await {
                Err(error) => {
                    let said = error.to_string();
                    assert!(said.contains("import -m"), "{said}");
                    let pool = import_without_log(&sim).await;
                    let fs = open(&sim, &pool).await.unwrap();
                    assert_eq!(get(&fs, "first").await.unwrap(), data(1, 10_000));
                    fs.close().await.unwrap();
                    pool.export(false).await.unwrap();
                    true
                }
                Ok(pool) => {
                    let fs = open(&sim, &pool).await.unwrap();
                    for name in ["before", "late", "later", "latest"] {
                        assert_eq!(get(&fs, name).await.unwrap(), data(7, 30_000), "{name}");
                    }
                    false
                }
            };
            // What was promised last was in the log only.
            assert!(lost, "way {ways}");
        });
    }
}

/// The same, with the good device back in time.
#[test]
fn a_log_device_that_was_away_may_be_there_with_the_other_one() {
    simulate(async {
        let (sim, pool, fs) = begin(75).await;
        let (stale, good) = (sim.disk("disk2").unwrap(), sim.disk("disk3").unwrap());
        stale.set_gone(true);
        promise(&fs, "before").await;
        pool.sync().await.unwrap();
        promise(&fs, "late").await;
        promise(&fs, "latest").await;
        cut(&sim, pool, fs).await;
        stale.set_gone(false);
        good.set_gone(true);
        assert!(import(&sim, false).await.is_err());
        // Nothing was changed by that.
        good.set_gone(false);
        let pool = import(&sim, false).await.unwrap();
        let fs = open(&sim, &pool).await.unwrap();
        for name in ["before", "late", "latest"] {
            assert_eq!(get(&fs, name).await.unwrap(), data(7, 30_000), "{name}");
        }
    });
}

/// A log device that goes away while nothing is wrong with the other one hinders nobody, whether a
/// promise was made or not.
#[test]
fn a_log_that_lost_a_device_is_imported() {
    for promises in 0..3 {
        simulate(async move {
            let (sim, pool, fs) = begin(80 + promises).await;
            for number in 0..promises {
                promise(&fs, &format!("p{number}")).await;
            }
            cut(&sim, pool, fs).await;
            sim.disk("disk2").unwrap().set_gone(true);
            let pool = import(&sim, false).await.unwrap();
            let fs = open(&sim, &pool).await.unwrap();
            for number in 0..promises {
                let name = format!("p{number}");
                assert_eq!(get(&fs, &name).await.unwrap(), data(7, 30_000));
            }
        });
    }
}

/// One write of a log device fails, and nobody tells: the promise is kept by what the other one
/// has, or by the txg.
#[test]
fn a_write_that_a_log_device_missed_is_on_record_before_the_promise() {
    for times in [1, 2, 3, 5] {
        simulate(async move {
            let (sim, pool, fs) = begin(85 + times).await;
            promise(&fs, "before").await;
            let stale = sim.disk("disk2").unwrap();
            stale.inject(
                Fault::new(SimOp::Write, FaultEffect::Error)
                    .within(format::LABEL_START_BYTES..u64::MAX)
                    .times(times),
            );
            promise(&fs, "late").await;
            promise(&fs, "latest").await;
            cut(&sim, pool, fs).await;
            sim.disk("disk3").unwrap().set_gone(true);
            let pool = match import(&sim, false).await {
                Ok(pool) => pool,
                Err(error) => {
                    assert!(error.to_string().contains("import -m"), "{error}");
                    return;
                }
            };
            let fs = open(&sim, &pool).await.unwrap();
            for name in ["before", "late", "latest"] {
                assert_eq!(
                    get(&fs, name).await.unwrap(),
                    data(7, 30_000),
                    "{name}, {times}"
                );
            }
        });
    }
}

/// A read error of one log device and the other one's lack of the block are no end of the log
/// either.
#[test]
fn a_log_device_that_fails_to_read_ends_no_log() {
    simulate(async {
        let (sim, pool, fs) = begin(95).await;
        let stale = sim.disk("disk2").unwrap();
        stale.inject(
            Fault::new(SimOp::Write, FaultEffect::Lost).within(format::LABEL_START_BYTES..u64::MAX),
        );
        promise(&fs, "late").await;
        cut(&sim, pool, fs).await;
        let good = sim.disk("disk3").unwrap();
        let anywhere = format::LABEL_START_BYTES..(96 << 20) - format::LABEL_END_BYTES;
        good.inject(Fault::new(SimOp::Read, FaultEffect::Error).within(anywhere));
        let error = import(&sim, false).await.map(|_| ()).unwrap_err();
        assert!(error.to_string().contains("import -m"), "{error}");
        good.clear_faults();
        let pool = import(&sim, false).await.unwrap();
        let fs = open(&sim, &pool).await.unwrap();
        assert_eq!(get(&fs, "late").await.unwrap(), data(7, 30_000));
    });
}

/// How a log device that is out of use comes back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Return {
    Online,
    Clear,
    /// Another device takes its place.
    Replace,
}

async fn come_back(pool: &Pool, how: Return) {
    let done = match how {
        Return::Online => pool.online("disk2", false).await.map(|_| ()),
        Return::Clear => pool.clear(Some("disk2")).await,
        Return::Replace => {
            let spec = AttachSpec {
                device: LeafSpec {
                    path: "new".to_owned(),
                    is_file: false,
                },
                ashift: None,
                force: true,
                replace: true,
                sequential: false,
                untouched: false,
            };
            pool.attach("disk2", &spec).await
        }
    };
    // The group that tells of it need not end.
    drop(done);
}

/// The only log device is back, and the power goes before the configuration on disk says so: what
/// was promised meanwhile is elsewhere. When it is on disk, the device is used again.
#[test]
fn a_log_device_that_is_back_is_used_once_that_is_on_disk() {
    for how in [Return::Online, Return::Clear, Return::Replace] {
        for is_on_disk in [false, true] {
            simulate(async move {
                let (sim, pool, fs) = begin_with(100, Layout::MirrorAndLog).await;
                sim.add_disk("new", 96 << 20).set_sector_bytes(4096);
                let spec = OfflineSpec {
                    temporary: false,
                    fault: how == Return::Clear,
                };
                pool.offline("disk2", spec).await.unwrap();
                promise(&fs, "without").await;
                pool.sync().await.unwrap();
                if !is_on_disk {
                    // No group ends any more, and the log goes on.
                    for name in ["disk0", "disk1"] {
                        let disk = sim.disk(name).unwrap();
                        let labels = Fault::new(SimOp::Write, FaultEffect::Stall);
                        disk.inject(labels.within(0..512 << 10));
                    }
                }
                let coming = {
                    let pool = pool.clone();
                    tokio::spawn(async move { come_back(&pool, how).await })
                };
                tokio::time::sleep(Duration::from_millis(500)).await;
                if is_on_disk {
                    coming.await.unwrap();
                    pool.sync().await.unwrap();
                } else {
                    coming.abort();
                }
                let log = if how == Return::Replace {
                    "new"
                } else {
                    "disk2"
                };
                let log = sim.disk(log).unwrap();
                let before = log.counts().writes;
                for name in ["a", "b", "c", "d"] {
                    promise(&fs, name).await;
                }
                let is_used = log.counts().writes > before;
                assert!(is_used || !is_on_disk, "{how:?}: it is not used again");
                cut(&sim, pool, fs).await;
                // A device that is on record as out of use is not there; nothing is lost with it.
                let pool = import_without_log(&sim).await;
                let fs = open(&sim, &pool).await.unwrap();
                for name in ["without", "a", "b", "c", "d"] {
                    assert_eq!(
                        get(&fs, name).await.unwrap(),
                        data(7, 30_000),
                        "{how:?} {name}"
                    );
                }
            });
        }
    }
}
