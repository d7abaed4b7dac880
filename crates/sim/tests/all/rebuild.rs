//! Goal: whatever moment the power goes at while a device is rebuilt sequentially, under load and
//! synchronous writes, the pool has everything, and the new device alone has it once it is told to
//! be whole. Method: writes and flushes as the moment (a sample of them by default, all with
//! `MILLPOND_LONG=1`); then what was acknowledged is read from the new device alone. zdb agrees.

use std::sync::Arc;
use std::time::Duration;

use crate::common::{data, get, open, put, remove};
use crate::topology::{add_disk, find, shape, spec};
use crate::vdevs::{CUTS, count, moments, power_cycle, until_cut};
use bytes::Bytes;
use device::sim::{Latency, SimOp, SimWorld};
use filesystem::Filesystem;
use parking_lot::Mutex;
use pool::{AttachSpec, Pool, RebuildState};
use sim::torture::{Layout, create, import, inspect, simulate, zdb};
use sim::verify::Failure;

const DISK_MIB: u64 = 96;

/// What was acknowledged as on disk: numbers of files.
type Acknowledged = Arc<Mutex<Vec<u64>>>;

fn content(number: u64) -> Bytes {
    data(number, 20_000 + (number as usize * 7919) % 60_000)
}

fn sequential(replace: bool) -> AttachSpec {
    AttachSpec {
        sequential: true,
        ..spec("new", replace)
    }
}

/// A pool on two disks with files, holes between them, and a third disk.
async fn prepare(sim: &SimWorld) -> (Arc<Pool>, Arc<Filesystem>) {
    add_disk(sim, "new");
    let pool = create(sim, Layout::Mirror(2), DISK_MIB, false)
        .await
        .unwrap();
    let fs = open(sim, &pool).await.unwrap();
    for number in 0..24 {
        put(&fs, &format!("old{number}"), &data(number, 300_000))
            .await
            .unwrap();
    }
    pool.sync().await.unwrap();
    for number in (1..24).step_by(2) {
        remove(&fs, &format!("old{number}")).await;
    }
    // Reads take time, so that writes come in between.
    let slow = Latency {
        read: Duration::from_millis(8),
        bytes_per_second: 8 << 20,
        ..Latency::default()
    };
    for name in ["disk0", "disk1"] {
        sim.disk(name).unwrap().set_latency(slow);
    }
    (pool, fs)
}

fn state(pool: &Pool) -> Option<RebuildState> {
    let status = pool.status();
    status.root.children[0].rebuild.map(|rebuild| rebuild.state)
}

/// Attaches, and writes synchronously until the device is whole.
async fn run(
    pool: &Pool,
    fs: &Filesystem,
    replace: bool,
    acknowledged: &Acknowledged,
) -> Result<(), Failure> {
    // With a log, synchronous writes do not wait for groups.
    let ino = put(fs, "first", &content(99)).await?;
    fs.sync_file(ino).await?;
    pool.attach("disk1", &sequential(replace)).await?;
    for number in 100.. {
        let ino = put(fs, &format!("sync{number}"), &content(number)).await?;
        fs.sync_file(ino).await?;
        acknowledged.lock().push(number);
        if state(pool) != Some(RebuildState::Active) {
            break;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    Ok(())
}

/// Until the device is whole, and the other one gone if it was to go.
async fn finish(pool: &Pool, replace: bool) {
    let is_whole = || {
        let root = pool.status().root;
        let new = find(&root, "new").is_some_and(|new| !new.is_stale);
        new && (!replace || find(&root, "disk1").is_none())
    };
    while state(pool) == Some(RebuildState::Active) || !is_whole() {
        pool.sync_config().await.unwrap();
    }
}

async fn check(fs: &Filesystem, acknowledged: &Acknowledged, about: &str) {
    for number in (0..24).step_by(2) {
        let read = get(fs, &format!("old{number}")).await.unwrap();
        assert!(read == data(number, 300_000), "{about}: old{number}");
    }
    let acknowledged = acknowledged.lock().clone();
    for number in acknowledged {
        let read = get(fs, &format!("sync{number}")).await.unwrap();
        assert!(read == content(number), "{about}: sync{number}");
    }
}

/// As the new device alone has it.
async fn check_alone(sim: &SimWorld, acknowledged: &Acknowledged, about: &str) {
    let disks = ["disk0", "disk1"].map(|name| sim.disk(name).unwrap());
    disks.iter().for_each(|disk| disk.set_gone(true));
    let pool = import(sim, false)
        .await
        .unwrap_or_else(|error| panic!("{about}: alone: {error}"));
    let fs = open(sim, &pool).await.unwrap();
    check(&fs, acknowledged, about).await;
    fs.close().await.unwrap();
    pool.export(false).await.unwrap();
    drop((fs, pool));
    disks.iter().for_each(|disk| disk.set_gone(false));
}

#[test]
fn power_cuts_during_a_rebuild_lose_nothing() {
    for replace in [false, true] {
        let (under_way, total) = simulate(async {
            let sim = SimWorld::new(1);
            let (pool, fs) = prepare(&sim).await;
            let ops = [SimOp::Write, SimOp::Flush];
            let start = ops.map(|op| count(&sim, op));
            let since =
                |before: [u64; 2]| [0, 1].map(|index| count(&sim, ops[index]) - before[index]);
            let acknowledged = Acknowledged::default();
            run(&pool, &fs, replace, &acknowledged).await.unwrap();
            let under_way = since(start);
            finish(&pool, replace).await;
            let total = since(start);
            let count = acknowledged.lock().len();
            assert!(count > 3, "there was no load: {count}");
            check(&fs, &acknowledged, "whole").await;
            fs.close().await.unwrap();
            pool.export(false).await.unwrap();
            drop((fs, pool));
            inspect(&sim, "whole", true).await.unwrap();
            check_alone(&sim, &acknowledged, "whole").await;
            (under_way, total)
        });
        let mut went_on = 0;
        for (op, how) in CUTS {
            let index = usize::from(op == SimOp::Flush);
            // Most of the whole is what comes after.
            for at in moments(under_way[index]).chain(moments(total[index])) {
                went_on += simulate(async {
                    let sim = SimWorld::new(at);
                    let (pool, fs) = prepare(&sim).await;
                    let acknowledged = Acknowledged::default();
                    sim.cut_power_at(op, at, how);
                    let about = format!("replace: {replace} {op:?} {at} {how:?}");
                    let done = until_cut(&sim, run(&pool, &fs, replace, &acknowledged)).await;
                    if let Some(result) = done {
                        result.unwrap();
                    }
                    drop((fs, pool));
                    power_cycle(&sim).await;
                    inspect(&sim, &about, false).await.unwrap();
                    let pool = import(&sim, false)
                        .await
                        .unwrap_or_else(|error| panic!("{about}: {error}"));
                    let is_active = state(&pool) == Some(RebuildState::Active);
                    let found = shape(&pool);
                    if is_active {
                        assert!(found.contains("disk1"), "{about}: {found}");
                    }
                    let fs = open(&sim, &pool).await.unwrap();
                    check(&fs, &acknowledged, &about).await;
                    if found.contains("new") {
                        // More of it, and then the new device is taken at its word, after a crash.
                        let ino = put(&fs, "sync7", &content(7)).await.unwrap();
                        finish(&pool, replace).await;
                        fs.sync_file(ino).await.unwrap();
                        acknowledged.lock().push(7);
                        drop((fs, pool));
                        power_cycle(&sim).await;
                        check_alone(&sim, &acknowledged, &about).await;
                        let pool = import(&sim, false)
                            .await
                            .unwrap_or_else(|error| panic!("{about}: all: {error}"));
                        pool.export(false).await.unwrap();
                    } else {
                        fs.close().await.unwrap();
                        pool.export(false).await.unwrap();
                    }
                    u32::from(is_active)
                });
            }
        }
        assert!(went_on > 0, "no cut was in the middle");
    }
}

/// What a rebuild left behind satisfies zdb, also in the middle of it.
#[test]
fn zdb_is_content_with_a_rebuild() {
    simulate(async {
        let sim = SimWorld::new(3);
        let (pool, fs) = prepare(&sim).await;
        let acknowledged = Acknowledged::default();
        pool.scans().hold(true);
        pool.attach("disk1", &sequential(true)).await.unwrap();
        fs.close().await.unwrap();
        pool.export(false).await.unwrap();
        drop((fs, pool));
        zdb(&sim).unwrap();
        let pool = import(&sim, false).await.unwrap();
        finish(&pool, true).await;
        let fs = open(&sim, &pool).await.unwrap();
        check(&fs, &acknowledged, "after an export").await;
        fs.close().await.unwrap();
        pool.export(false).await.unwrap();
        drop((fs, pool));
        zdb(&sim).unwrap();
    });
}
