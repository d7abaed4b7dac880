//! Goal: whatever moment the power goes at while a RAID-Z vdev is made wider, under load and
//! synchronous writes, with a device that fails meanwhile, the pool has everything, and goes on.
//! Method: writes and flushes as the moment (a sample of them by default, all with
//! `MILLPOND_LONG=1`); every block is verified on all devices after the cut and in the end, then
//! with any device gone. zdb agrees.

use std::sync::Arc;
use std::time::Duration;

use crate::common::{data, get, open, put, remove};
use crate::topology::{add_disk, shape, spec};
use crate::vdevs::{CUTS, count, moments, power_cycle, until_cut};
use bytes::Bytes;
use device::sim::{Fault, FaultEffect, SimOp, SimWorld};
use filesystem::Filesystem;
use parking_lot::Mutex;
use pool::{FeatureState, Pool, PoolError, TopologyError};
use sim::torture::{Layout, create, import, inspect, simulate, zdb};
use sim::verify::Failure;

const DISK_MIB: u64 = 96;
const OLD: u64 = 24;
const WIDE: &str = "raidz(disk0 disk1 disk2 new)";

/// What was acknowledged as on disk: numbers of files.
type Acknowledged = Arc<Mutex<Vec<u64>>>;

fn old(number: u64) -> Bytes {
    data(number, 1_000_000)
}

fn content(number: u64) -> Bytes {
    data(number, 20_000 + (number as usize * 7919) % 60_000)
}

/// A pool on three disks with files, holes between them, and a fourth disk.
async fn prepare(sim: &SimWorld) -> (Arc<Pool>, Arc<Filesystem>) {
    add_disk(sim, "new");
    let pool = create(sim, Layout::Raidz(1, 3), DISK_MIB, false)
        .await
        .unwrap();
    let fs = open(sim, &pool).await.unwrap();
    for number in 0..OLD {
        put(&fs, &format!("old{number}"), &old(number))
            .await
            .unwrap();
    }
    pool.sync().await.unwrap();
    for number in (1..OLD).step_by(2) {
        remove(&fs, &format!("old{number}")).await;
    }
    // With a log, synchronous writes do not wait for groups.
    let ino = put(&fs, "first", &content(99)).await.unwrap();
    fs.sync_file(ino).await.unwrap();
    (pool, fs)
}

/// Attaches, and writes synchronously until everything is moved; meanwhile a device may fail for a
/// while.
async fn run(
    pool: &Pool,
    fs: &Filesystem,
    fails: Option<&SimWorld>,
    acknowledged: &Acknowledged,
) -> Result<(), Failure> {
    pool.attach("raidz1-0", &spec("new", false)).await?;
    for number in 100.. {
        let ino = put(fs, &format!("sync{number}"), &content(number)).await?;
        fs.sync_file(ino).await?;
        acknowledged.lock().push(number);
        if pool.scans().expanded_bytes().is_none() {
            break;
        }
        if let Some(sim) = fails {
            let disk = sim.disk("disk1").unwrap();
            match number {
                102 => disk.inject(Fault::new(SimOp::Write, FaultEffect::Error)),
                106 => {
                    disk.clear_faults();
                    pool.clear(None).await?;
                }
                _ => {}
            }
        }
        // Where it pauses, only a few more.
        let pause_ms = if number < 110 { 1 } else { 200 };
        tokio::time::sleep(Duration::from_millis(pause_ms)).await;
    }
    Ok(())
}

/// Until everything is moved, and verified by the scrub that follows.
async fn finish(pool: &Pool) {
    while pool.scans().expanded_bytes().is_some() {
        pool.sync_config().await.unwrap();
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    pool.scans().wait_for_scrub(true).await;
}

async fn check(fs: &Filesystem, acknowledged: &Acknowledged, about: &str) {
    for number in (0..OLD).step_by(2) {
        let read = get(fs, &format!("old{number}")).await.unwrap();
        assert!(read == old(number), "{about}: old{number}");
    }
    let acknowledged = acknowledged.lock().clone();
    for number in acknowledged {
        let read = get(fs, &format!("sync{number}")).await.unwrap();
        assert!(read == content(number), "{about}: sync{number}");
    }
}

/// As it is without one of the devices.
async fn check_without(sim: &SimWorld, name: &str, acknowledged: &Acknowledged, about: &str) {
    let disk = sim.disk(name).unwrap();
    disk.set_gone(true);
    let pool = import(sim, true)
        .await
        .unwrap_or_else(|error| panic!("{about}: without {name}: {error}"));
    let fs = open(sim, &pool).await.unwrap();
    check(&fs, acknowledged, about).await;
    fs.close().await.unwrap();
    pool.export(false).await.unwrap();
    drop((fs, pool));
    disk.set_gone(false);
}

async fn export(pool: Arc<Pool>, fs: Arc<Filesystem>) {
    fs.close().await.unwrap();
    pool.export(false).await.unwrap();
}

#[test]
fn a_vdev_is_made_wider_and_grows() {
    simulate(async {
        let sim = SimWorld::new(1);
        let (pool, fs) = prepare(&sim).await;
        let before = pool.numbers().size_bytes;
        let acknowledged = Acknowledged::default();
        run(&pool, &fs, None, &acknowledged).await.unwrap();
        finish(&pool).await;
        assert_eq!(shape(&pool), WIDE);
        let status = pool.status().expansion.expect("there was one");
        assert!(
            status.end_s.is_some() && status.copied_bytes > 10 << 20,
            "{status:?}"
        );
        assert_eq!(status.name, "raidz1-0");
        let after = pool.numbers().size_bytes;
        assert!(after > before + (DISK_MIB << 20) / 2, "{before} {after}");
        let features = pool.properties().features();
        let own = features.iter().find(|own| own.name == "raidz_expansion");
        assert_eq!(own.map(|own| own.state), Some(FeatureState::Active));
        check(&fs, &acknowledged, "whole").await;
        // New blocks, where the vdev has grown as well.
        for number in 200..240 {
            put(&fs, &format!("sync{number}"), &content(number))
                .await
                .unwrap();
            acknowledged.lock().push(number);
        }
        // And once more.
        add_disk(&sim, "newer");
        pool.attach("raidz1-0", &spec("newer", false))
            .await
            .unwrap();
        finish(&pool).await;
        check(&fs, &acknowledged, "twice").await;
        export(pool, fs).await;
        inspect(&sim, "twice", true).await.unwrap();
        zdb(&sim).unwrap();
        for name in ["disk1", "newer"] {
            check_without(&sim, name, &acknowledged, "twice").await;
        }
    });
}

#[test]
fn what_cannot_be_widened_is_refused() {
    simulate(async {
        let sim = SimWorld::new(2);
        let (pool, fs) = prepare(&sim).await;
        sim.add_disk("small", (DISK_MIB / 2) << 20)
            .set_sector_bytes(4096);
        let refused = pool.attach("raidz1-0", &spec("small", false)).await;
        let is_right =
            |refused: &Result<(), PoolError>| matches!(refused, Err(PoolError::TooSmall { .. }));
        assert!(is_right(&refused), "{refused:?}");
        pool.scans().hold(true);
        pool.attach("raidz1-0", &spec("new", false)).await.unwrap();
        add_disk(&sim, "newer");
        let refused = pool.attach("raidz1-0", &spec("newer", false)).await;
        let is_right = matches!(refused, Err(PoolError::Topology(TopologyError::Expanding)));
        assert!(is_right, "{refused:?}");
        assert!(pool.checkpoint().await.is_err(), "it is expanding");
        pool.scans().hold(false);
        finish(&pool).await;
        sim.disk("disk0").unwrap().set_gone(true);
        pool.reopen(true).await.unwrap();
        let refused = pool.attach("raidz1-0", &spec("newer", false)).await;
        let is_right = matches!(
            refused,
            Err(PoolError::Topology(TopologyError::NotWell { .. }))
        );
        assert!(is_right, "{refused:?}");
        drop((pool, fs));
    });
}

/// Nothing is moved while a device is away; when it is back and has everything, it goes on.
#[test]
fn it_pauses_while_a_device_is_away() {
    simulate(async {
        let sim = SimWorld::new(3);
        let (pool, fs) = prepare(&sim).await;
        pool.scans().hold(true);
        pool.attach("raidz1-0", &spec("new", false)).await.unwrap();
        let offline = pool::OfflineSpec::default();
        pool.offline("disk2", offline).await.unwrap();
        pool.scans().hold(false);
        for number in 300..310 {
            let ino = put(&fs, &format!("sync{number}"), &content(number))
                .await
                .unwrap();
            fs.sync_file(ino).await.unwrap();
            tokio::time::sleep(Duration::from_secs(3)).await;
        }
        let moved = pool.scans().expanded_bytes().expect("it is under way").0;
        assert_eq!(moved, 0);
        let status = pool.status().expansion.expect("it is under way");
        assert!(status.waits_for.is_some_and(|why| why.contains("disk2")));
        pool.online("disk2", false).await.unwrap();
        finish(&pool).await;
        let acknowledged = Acknowledged::default();
        acknowledged.lock().extend(300..310);
        check(&fs, &acknowledged, "whole").await;
        export(pool, fs).await;
        inspect(&sim, "whole", true).await.unwrap();
        check_without(&sim, "disk0", &acknowledged, "whole").await;
    });
}

/// zdb is content in the middle of it as well.
#[test]
fn zdb_is_content_in_the_middle() {
    simulate(async {
        let sim = SimWorld::new(4);
        let (mut pool, mut fs) = prepare(&sim).await;
        pool.scans().hold(true);
        pool.attach("raidz1-0", &spec("new", false)).await.unwrap();
        let mut seen = Vec::new();
        let acknowledged = Acknowledged::default();
        while let Some((moved, _)) = pool.scans().expanded_bytes() {
            if seen.len() < 4 && seen.last() != Some(&moved) {
                pool.scans().hold(true);
                export(pool, fs).await;
                inspect(&sim, "in the middle", true).await.unwrap();
                zdb(&sim).unwrap();
                check_without(&sim, "disk1", &acknowledged, "in the middle").await;
                pool = import(&sim, false).await.unwrap();
                fs = open(&sim, &pool).await.unwrap();
                check(&fs, &acknowledged, "in the middle").await;
                seen.push(moved);
            }
            pool.scans().hold(false);
            pool.sync_config().await.unwrap();
        }
        assert!(seen.len() > 2, "{seen:?}");
        export(pool, fs).await;
    });
}

#[test]
fn power_cuts_during_an_expansion_lose_nothing() {
    for fails in [false, true] {
        let total = simulate(async {
            let sim = SimWorld::new(1);
            let (pool, fs) = prepare(&sim).await;
            let start = (count(&sim, SimOp::Write), count(&sim, SimOp::Flush));
            let acknowledged = Acknowledged::default();
            run(&pool, &fs, fails.then_some(&sim), &acknowledged)
                .await
                .unwrap();
            let total = (
                count(&sim, SimOp::Write) - start.0,
                count(&sim, SimOp::Flush) - start.1,
            );
            finish(&pool).await;
            check(&fs, &acknowledged, "whole").await;
            export(pool, fs).await;
            inspect(&sim, "whole", !fails).await.unwrap();
            total
        });
        let mut went_on = 0;
        for (op, how) in CUTS {
            let most = if op == SimOp::Write { total.0 } else { total.1 };
            for at in moments(most) {
                went_on += simulate(async {
                    let sim = SimWorld::new(at);
                    let (pool, fs) = prepare(&sim).await;
                    let acknowledged = Acknowledged::default();
                    sim.cut_power_at(op, at, how);
                    let about = format!("fails: {fails} {op:?} {at} {how:?}");
                    let work = run(&pool, &fs, fails.then_some(&sim), &acknowledged);
                    if let Some(result) = until_cut(&sim, work).await {
                        result.unwrap();
                    }
                    drop((fs, pool));
                    power_cycle(&sim).await;
                    sim.disk("disk1").unwrap().clear_faults();
                    inspect(&sim, &about, false).await.unwrap();
                    if !fails {
                        let none = Acknowledged::default();
                        check_without(&sim, "disk0", &none, &about).await;
                    }
                    let pool = import(&sim, false)
                        .await
                        .unwrap_or_else(|error| panic!("{about}: {error}"));
                    let is_active = pool.scans().expanded_bytes().is_some();
                    let fs = open(&sim, &pool).await.unwrap();
                    check(&fs, &acknowledged, &about).await;
                    finish(&pool).await;
                    check(&fs, &acknowledged, &about).await;
                    export(pool, fs).await;
                    inspect(&sim, &about, false).await.unwrap();
                    let without = ["disk0", "disk1", "disk2"][(at % 3) as usize];
                    check_without(&sim, without, &acknowledged, &about).await;
                    u32::from(is_active)
                });
            }
        }
        assert!(went_on > 0, "no cut was in the middle");
    }
}
