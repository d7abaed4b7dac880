//! Goal: no two hosts write a pool with `multihost=on`, whatever becomes of their ways to its
//! devices. Method: one or two hosts at the same simulated disks.

use std::sync::Arc;
use std::time::Duration;

use crate::common::{data, get, open, put};
use device::sim::{Fault, FaultEffect, PowerCut, SimDisk, SimOp, SimWorld};
use pool::{Pool, PoolError};
use sim::torture::{Layout, create, inspect, patiently, simulate};

/// Imports the pool as another host, even by force.
async fn import_as(sim: &SimWorld, hostid: u64) -> Result<Arc<Pool>, PoolError> {
    import_by(sim, hostid, true).await
}

async fn import_by(sim: &SimWorld, hostid: u64, force: bool) -> Result<Arc<Pool>, PoolError> {
    let found = sim::torture::find(sim).await.unwrap();
    let host = pool::HostIdentity {
        hostid,
        hostname: format!("host{hostid}"),
    };
    let mut spec = pool::ImportSpec::new(found, host);
    spec.force = force;
    Pool::import(&sim.world(), spec).await
}

/// A pool with multihost=on is left alone by other hosts while somebody is at work on it, idle or
/// not; when that host is dead it is taken; and a host without an identity gets nothing.
#[test]
fn a_pool_in_use_elsewhere_is_not_imported() {
    for layout in [Layout::Single, Layout::Mirror(2), Layout::Raidz(1, 3)] {
        simulate(async move {
            let sim = SimWorld::new(71);
            let pool = create(&sim, layout, 96, false).await.unwrap();
            let refused = pool.properties().set("multihost", "on").await.unwrap_err();
            assert!(refused.to_string().contains("non-zero system hostid"));
            pool.export(false).await.unwrap();
            drop(pool);
            let pool = import_as(&sim, 1).await.unwrap();
            pool.properties().set("multihost", "on").await.unwrap();
            let fs = open(&sim, &pool).await.unwrap();
            put(&fs, "file", &data(1, 300_000)).await.unwrap();
            pool.sync().await.unwrap();
            // Idle for long: only heartbeats are written.
            tokio::time::sleep(Duration::from_secs(300)).await;
            let txg = pool.synced_txg();
            let error = import_as(&sim, 2).await.unwrap_err();
            let text = error.to_string();
            assert!(
                text.contains("it is imported on the host 'host1' (id 0x1)"),
                "{text}"
            );
            assert_eq!(pool.synced_txg(), txg);
            // Nobody is told to use force on it.
            let error = import_by(&sim, 2, false).await.unwrap_err();
            assert!(matches!(error, PoolError::RemoteActive { .. }));
            // Its host dies.
            sim.power_cut(PowerCut::LoseUnflushed);
            sim.kill_tasks().await;
            drop((fs, pool));
            sim.kill_tasks().await;
            sim.power_on();
            inspect_unwatched(&sim).await;
            let error = import_as(&sim, 0).await.unwrap_err();
            assert!(matches!(error, PoolError::NoHostid { .. }), "{error}");
            let error = import_by(&sim, 2, false).await.unwrap_err();
            assert!(matches!(error, PoolError::ForeignHost { .. }));
            let before = sim.elapsed();
            let pool = import_as(&sim, 2).await.unwrap();
            let took = sim.elapsed() - before;
            assert!(took >= Duration::from_secs(20 + 10), "{took:?}");
            let fs = open(&sim, &pool).await.unwrap();
            assert_eq!(get(&fs, "file").await.unwrap(), data(1, 300_000));
            fs.close().await.unwrap();
            pool.export(false).await.unwrap();
            drop((fs, pool));
            // Exported by this very host: nothing to watch.
            let before = sim.elapsed();
            let pool = import_as(&sim, 2).await.unwrap();
            assert!(sim.elapsed() - before < Duration::from_secs(10));
            pool.properties().set("multihost", "off").await.unwrap();
            pool.export(false).await.unwrap();
            drop(pool);
            let before = sim.elapsed();
            let pool = import_as(&sim, 3).await.unwrap();
            assert!(sim.elapsed() - before < Duration::from_secs(10));
            pool.export(false).await.unwrap();
        });
    }
}

/// zdb looks at pools without caring who uses them; so does what only looks here.
async fn inspect_unwatched(sim: &SimWorld) {
    let found = sim::torture::find(sim).await.unwrap();
    let before = sim.elapsed();
    let probe = pool::probe(&sim.world(), &found).await.unwrap();
    assert!(probe.unusable.is_none(), "{:?}", probe.unusable);
    assert!(sim.elapsed() - before < Duration::from_secs(10));
}

/// Who cannot write heartbeats stops, as another host may take the pool; and goes on only if none
/// has.
#[test]
fn without_heartbeats_the_pool_stops() {
    simulate(async {
        let sim = SimWorld::new(72);
        let pool = create(&sim, Layout::Single, 96, false).await.unwrap();
        pool.export(false).await.unwrap();
        drop(pool);
        let pool = import_as(&sim, 1).await.unwrap();
        pool.properties().set("multihost", "on").await.unwrap();
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert!(pool.suspended().is_none());
        // Only the slots of heartbeats fail, the last ones of the rings: transaction groups could
        // go on.
        let disk = sim.disk("disk0").unwrap();
        let slot = (128 << 10) + 31 * 4096;
        for label in 0..4 {
            let start = format::label_offset(96 << 20, label).unwrap() + slot;
            disk.inject(Fault::new(SimOp::Write, FaultEffect::Error).within(start..start + 4096));
        }
        tokio::time::sleep(Duration::from_secs(9)).await;
        assert!(pool.suspended().is_none());
        tokio::time::sleep(Duration::from_secs(20)).await;
        let why = pool.suspended().unwrap();
        assert!(why.contains("heartbeat"), "{why}");
        disk.clear_faults();
        patiently("clear", pool.clear(None)).await.unwrap().unwrap();
        pool.sync().await.unwrap();
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert!(pool.suspended().is_none());
        let error = import_as(&sim, 2).await.unwrap_err();
        assert!(error.to_string().contains("it is imported on the host"));
        pool.export(false).await.unwrap();
        drop(pool);
        inspect(&sim, "after all", false).await.unwrap();
    });
}

/// A pool with `multihost=on` that host 1 has, and its disks.
async fn begin(sim: &SimWorld, layout: Layout) -> (Arc<Pool>, Vec<SimDisk>) {
    let pool = create(sim, layout, 96, false).await.unwrap();
    pool.export(false).await.unwrap();
    drop(pool);
    let pool = import_as(sim, 1).await.unwrap();
    pool.properties().set("multihost", "on").await.unwrap();
    pool.sync().await.unwrap();
    let names = sim.disk_names();
    let disks = names.iter().filter_map(|name| sim.disk(name)).collect();
    (pool, disks)
}

/// Where a disk has heartbeats: the last slot of the ring of each label.
fn heartbeat_slots() -> [std::ops::Range<u64>; 4] {
    [0, 1, 2, 3].map(|label| {
        let slot = format::label_offset(96 << 20, label).unwrap() + (128 << 10) + 31 * 4096;
        slot..slot + 4096
    })
}

/// The host's heartbeats are accepted from now on, and nothing comes of them.
fn stall_heartbeats(disks: &[SimDisk], host: &SimWorld) {
    for disk in disks {
        for slot in heartbeat_slots() {
            let fault = Fault::new(SimOp::Write, FaultEffect::Stall);
            disk.inject(fault.within(slot).only_on(host));
        }
    }
}

/// Writes, flushes and discards of a host in the log so far.
fn changes_by(sim: &SimWorld, host: &SimWorld) -> usize {
    let log = sim.take_log().into_iter();
    log.filter(|record| record.host == host.host_number() && record.op != SimOp::Read)
        .count()
}

async fn is_suspended_for_silence(pool: &Pool) {
    patiently("the suspension", pool.until_suspended())
        .await
        .unwrap();
    let why = pool.suspended().unwrap();
    assert!(why.contains("heartbeat"), "{why}");
}

/// A host whose way to the disks stalls stops before another one takes the pool, and gives them
/// nothing afterwards: not the uberblock of the txg that it was writing either. It does not go on
/// when the disks answer again.
#[test]
fn a_host_that_stalls_stops_before_another_takes_the_pool() {
    for (seed, layout) in [
        (81, Layout::Single),
        (82, Layout::Mirror(2)),
        (83, Layout::Raidz(1, 3)),
    ] {
        simulate(async move {
            let sim = SimWorld::new(seed);
            let other = sim.another_host();
            let (pool, disks) = begin(&sim, layout).await;
            let fs = open(&sim, &pool).await.unwrap();
            put(&fs, "file", &data(1, 300_000)).await.unwrap();
            pool.sync().await.unwrap();
            // The txg's blocks get there; the flush before its uberblock does not come back.
            stall_heartbeats(&disks, &sim);
            for disk in &disks {
                disk.inject(Fault::new(SimOp::Flush, FaultEffect::Stall).only_on(&sim));
            }
            put(&fs, "unsynced", &data(2, 300_000)).await.unwrap();
            let syncing = {
                let pool = pool.clone();
                tokio::spawn(async move { pool.sync().await })
            };
            let theirs = patiently("the other's import", import_as(&other, 2)).await;
            let theirs = theirs.unwrap().unwrap();
            is_suspended_for_silence(&pool).await;
            sim.start_log();
            let their_fs = open(&other, &theirs).await.unwrap();
            assert_eq!(get(&their_fs, "file").await.unwrap(), data(1, 300_000));
            put(&their_fs, "theirs", &data(3, 3_000_000)).await.unwrap();
            theirs.sync().await.unwrap();

            disks.iter().for_each(SimDisk::release);
            tokio::time::sleep(Duration::from_secs(120)).await;
            assert!(!syncing.is_finished(), "told that it is on disk");
            assert!(pool.suspended().is_some());
            let error = patiently("clear", pool.clear(None)).await.unwrap();
            assert!(
                matches!(error, Err(PoolError::TakenOver { .. })),
                "{error:?}"
            );
            theirs.sync().await.unwrap();
            their_fs.close().await.unwrap();
            theirs.export(false).await.unwrap();
            drop((their_fs, theirs));
            // It is quiet now, and still not ours.
            let error = patiently("clear", pool.clear(None)).await.unwrap();
            assert!(
                matches!(error, Err(PoolError::TakenOver { .. })),
                "{error:?}"
            );
            patiently("export", pool.export(true))
                .await
                .unwrap()
                .unwrap();
            assert!(patiently("sync", syncing).await.unwrap().unwrap().is_err());
            drop((fs, pool));
            assert_eq!(
                changes_by(&sim, &sim),
                0,
                "{layout:?}: it wrote after it had stopped"
            );
            inspect(&other, "after all", true).await.unwrap();
            let theirs = import_as(&other, 2).await.unwrap();
            let fs = open(&other, &theirs).await.unwrap();
            assert_eq!(get(&fs, "theirs").await.unwrap(), data(3, 3_000_000));
            assert!(get(&fs, "unsynced").await.is_err());
        });
    }
}

/// What a host's late heartbeats and its late uberblock left is its own: it goes on when the disks
/// answer again, after it was told to, and what it was writing is there.
#[test]
fn late_heartbeats_are_ones_own() {
    for uberblock in [false, true] {
        simulate(async move {
            let sim = SimWorld::new(84);
            let (pool, disks) = begin(&sim, Layout::Mirror(2)).await;
            let fs = open(&sim, &pool).await.unwrap();
            stall_heartbeats(&disks, &sim);
            if uberblock {
                // The flush behind the uberblock: that is on disk, and nobody here knows.
                for disk in &disks {
                    let stall = Fault::new(SimOp::Flush, FaultEffect::Stall);
                    disk.inject(stall.after(1));
                }
            }
            put(&fs, "file", &data(1, 300_000)).await.unwrap();
            is_suspended_for_silence(&pool).await;
            let before = pool.synced_txg();
            disks.iter().for_each(SimDisk::release);
            tokio::time::sleep(Duration::from_secs(60)).await;
            assert!(pool.suspended().is_some(), "it goes on by itself");
            assert_eq!(pool.synced_txg(), before);
            patiently("clear", pool.clear(None)).await.unwrap().unwrap();
            patiently("sync", pool.sync()).await.unwrap().unwrap();
            tokio::time::sleep(Duration::from_secs(60)).await;
            assert!(pool.suspended().is_none());
            assert_eq!(get(&fs, "file").await.unwrap(), data(1, 300_000));
            let error = import_as(&sim.another_host(), 2).await.unwrap_err();
            assert!(error.to_string().contains("it is imported on the host"));
            fs.close().await.unwrap();
            pool.export(false).await.unwrap();
            drop((fs, pool));
            inspect(&sim, "after all", true).await.unwrap();
        });
    }
}

/// Whether another host has the pool cannot be told while a disk does not answer: 'zpool clear'
/// says so instead of waiting for it, and the pool can be given up.
#[test]
fn a_disk_that_does_not_answer_keeps_nobody_waiting() {
    simulate(async {
        let sim = SimWorld::new(85);
        let (pool, disks) = begin(&sim, Layout::Mirror(2)).await;
        let fs = open(&sim, &pool).await.unwrap();
        for op in [SimOp::Read, SimOp::Write, SimOp::Flush] {
            for disk in &disks {
                disk.inject(Fault::new(op, FaultEffect::Stall));
            }
        }
        put(&fs, "file", &data(1, 300_000)).await.unwrap();
        is_suspended_for_silence(&pool).await;
        let error = patiently("clear", pool.clear(None)).await.unwrap();
        let text = error.unwrap_err().to_string();
        assert!(text.contains("disk0: the device does not answer"), "{text}");
        // One of them is well again; the other may have anything.
        disks[0].release();
        let error = patiently("clear", pool.clear(None)).await.unwrap();
        let text = error.unwrap_err().to_string();
        assert!(text.contains("disk1: the device does not answer"), "{text}");
        patiently("export", pool.export(true))
            .await
            .unwrap()
            .unwrap();
        drop((fs, pool));
        sim.kill_tasks().await;
        disks[1].release();
        let pool = import_as(&sim, 2).await.unwrap();
        pool.export(false).await.unwrap();
        drop(pool);
        inspect(&sim, "after all", true).await.unwrap();
    });
}
