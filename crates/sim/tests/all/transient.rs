//! Goal: a device that fails now and then, and otherwise works, costs at most a standstill until
//! the pool is cleared, and nothing that was promised; also where nothing else has its data.
//! Method: scripts in the simulated world, with faults that pass by themselves or stay in one
//! place.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use crate::common::{ROOT, data, get, open, put, remove, remove_and_forget};
use device::sim::{Fault, FaultEffect, Latency, SimOp, SimWorld};
use filesystem::Filesystem;
use format::{LABEL_BYTES, LABEL_START_BYTES};
use pool::{Pool, PoolHealth, VdevState};
use sim::torture::{Layout, create, errors_of, import, inspect, patiently, simulate};

const DISK_MIB: u64 = 96;

/// Where blocks are: a probe of the device finds nothing wrong with it.
fn blocks() -> Range<u64> {
    LABEL_START_BYTES..(DISK_MIB << 20) - 2 * LABEL_BYTES
}

fn inject(sim: &SimWorld, fault: &Fault) {
    for name in sim.disk_names() {
        sim.disk(&name).unwrap().inject(fault.clone());
    }
}

fn clear_faults(sim: &SimWorld) {
    for name in sim.disk_names() {
        sim.disk(&name).unwrap().clear_faults();
    }
}

/// Syncs; whenever the pool stands still, clears it. How often it did.
async fn sync_with_clears(pool: &Arc<Pool>) -> u32 {
    let syncing = {
        let pool = pool.clone();
        tokio::spawn(async move { pool.sync().await })
    };
    let mut clears = 0;
    while !syncing.is_finished() {
        tokio::time::sleep(Duration::from_secs(30)).await;
        if pool.suspended().is_some() {
            clears += 1;
            assert!(clears < 200, "{:?}", pool.suspended());
            patiently("clear", pool.clear(None)).await.unwrap().unwrap();
        }
    }
    syncing.await.unwrap().unwrap();
    clears
}

/// A pool with a file to keep and one to remove, of which nothing is in memory but what removing
/// needs at once.
async fn with_files(sim: &SimWorld, layout: Layout) -> (Arc<Pool>, Arc<Filesystem>) {
    let pool = create(sim, layout, DISK_MIB, false).await.unwrap();
    let fs = open(sim, &pool).await.unwrap();
    for (name, seed, length) in [
        ("kept", 1, 3_000_000),
        ("removed", 2, 5_000_000),
        ("small", 3, 1000),
    ] {
        put(&fs, name, &data(seed, length)).await.unwrap();
    }
    fs.close().await.unwrap();
    pool.export(false).await.unwrap();
    drop((fs, pool));
    let pool = import(sim, false).await.unwrap();
    let fs = open(sim, &pool).await.unwrap();
    for name in ["small", "removed"] {
        fs.lookup(fs.root(), name.as_bytes()).await.unwrap();
    }
    remove(&fs, "small").await;
    pool.sync().await.unwrap();
    (pool, fs)
}

/// Leaves the pool and looks at all of it.
async fn check(sim: &SimWorld, pool: Arc<Pool>, fs: Arc<Filesystem>, files: &[(&str, u64, usize)]) {
    clear_faults(sim);
    fs.close().await.unwrap();
    patiently("export", pool.export(false))
        .await
        .unwrap()
        .unwrap();
    drop((fs, pool));
    inspect(sim, "after all", false).await.unwrap();
    let pool = import(sim, false).await.unwrap();
    let fs = open(sim, &pool).await.unwrap();
    for (name, seed, length) in files {
        assert!(
            get(&fs, name).await.unwrap() == data(*seed, *length),
            "{name}"
        );
    }
    fs.close().await.unwrap();
    pool.export(false).await.unwrap();
}

/// What the sync loop must read fails although the device is there: the pool stands still until it
/// is cleared, and goes on. The sync loop once ended there, and only an export by force was left.
#[test]
fn the_sync_loop_waits_for_a_read_that_fails() {
    for (seed, layout) in [
        (101, Layout::Single),
        (102, Layout::Mirror(2)),
        (103, Layout::Raidz(1, 3)),
    ] {
        simulate(async move {
            let sim = SimWorld::new(seed);
            let (pool, fs) = with_files(&sim, layout).await;
            remove_and_forget(&pool, &fs, "removed").await;
            inject(
                &sim,
                &Fault::new(SimOp::Read, FaultEffect::Error).within(blocks()),
            );
            let syncing = {
                let pool = pool.clone();
                tokio::spawn(async move { pool.sync().await })
            };
            tokio::time::sleep(Duration::from_secs(60)).await;
            assert!(!syncing.is_finished(), "{layout:?}");
            assert_eq!(pool.status().health, PoolHealth::Suspended);
            for top in &pool.status().root.children {
                assert_eq!(top.state, VdevState::Online, "a device that is there");
            }
            // Nothing changed: it stands still again.
            patiently("clear", pool.clear(None)).await.unwrap().unwrap();
            tokio::time::sleep(Duration::from_secs(60)).await;
            assert!(!syncing.is_finished());
            assert_eq!(pool.status().health, PoolHealth::Suspended);
            clear_faults(&sim);
            patiently("clear", pool.clear(None)).await.unwrap().unwrap();
            patiently("sync", syncing).await.unwrap().unwrap().unwrap();
            assert!(pool.suspended().is_none());
            put(&fs, "more", &data(4, 100_000)).await.unwrap();
            check(
                &sim,
                pool,
                fs,
                &[("kept", 1, 3_000_000), ("more", 4, 100_000)],
            )
            .await;
        });
    }
}

/// It can be left as well.
#[test]
fn a_pool_that_waits_for_a_read_can_be_left() {
    simulate(async {
        let sim = SimWorld::new(104);
        let (pool, fs) = with_files(&sim, Layout::Single).await;
        remove_and_forget(&pool, &fs, "removed").await;
        inject(
            &sim,
            &Fault::new(SimOp::Read, FaultEffect::Error).within(blocks()),
        );
        let syncing = {
            let pool = pool.clone();
            tokio::spawn(async move { pool.sync().await })
        };
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert_eq!(pool.status().health, PoolHealth::Suspended);
        patiently("export by force", pool.export(true))
            .await
            .unwrap()
            .unwrap();
        assert!(patiently("sync", syncing).await.unwrap().unwrap().is_err());
        let _ = patiently("close", fs.close()).await.unwrap();
        drop((fs, pool));
        sim.kill_tasks().await;
        clear_faults(&sim);
        inspect(&sim, "after all", true).await.unwrap();
    });
}

/// Reads that fail once are made once more; of those that fail a few times, the sync loop makes the
/// rest when the pool is cleared.
#[test]
fn reads_that_fail_a_few_times_cost_nothing() {
    for times in [1, 2, 3, 5, 9] {
        simulate(async move {
            let sim = SimWorld::new(110 + times);
            let (pool, fs) = with_files(&sim, Layout::Single).await;
            inject(
                &sim,
                &Fault::new(SimOp::Read, FaultEffect::Error)
                    .within(blocks())
                    .times(times),
            );
            remove(&fs, "removed").await;
            let clears = sync_with_clears(&pool).await;
            if times == 1 {
                assert_eq!(clears, 0);
                assert!(errors_of(&pool.status().root) > 0, "no read met the fault");
            }
            check(&sim, pool, fs, &[("kept", 1, 3_000_000)]).await;
        });
    }
}

/// The same for writes, flushes, and what labels are written with: whatever fails, however often.
#[test]
fn whatever_fails_a_few_times_costs_nothing() {
    let labels = [
        0..LABEL_START_BYTES,
        (DISK_MIB << 20) - 2 * LABEL_BYTES..DISK_MIB << 20,
    ];
    let mut faults = Vec::new();
    for effect in [FaultEffect::Error, FaultEffect::NoSpace, FaultEffect::Short] {
        for times in [1, 4, 13] {
            faults.push(
                Fault::new(SimOp::Write, effect)
                    .within(blocks())
                    .times(times),
            );
            for label in &labels {
                let fault = Fault::new(SimOp::Write, effect).within(label.clone());
                faults.push(fault.times(times));
            }
        }
    }
    for times in [1, 3] {
        faults.push(Fault::new(SimOp::Flush, FaultEffect::Error).times(times));
    }
    for (number, fault) in faults.into_iter().enumerate() {
        for layout in [Layout::Single, Layout::Raidz(1, 3)] {
            for skip in [0, 7] {
                let fault = fault.clone().after(skip);
                simulate(async move {
                    let sim = SimWorld::new(1000 + number as u64);
                    let pool = create(&sim, layout, DISK_MIB, false).await.unwrap();
                    let fs = open(&sim, &pool).await.unwrap();
                    put(&fs, "before", &data(1, 300_000)).await.unwrap();
                    pool.sync().await.unwrap();
                    inject(&sim, &fault);
                    let promised = put(&fs, "promised", &data(2, 200_000)).await.unwrap();
                    let promise = {
                        let fs = fs.clone();
                        tokio::spawn(async move { fs.sync_file(promised).await })
                    };
                    put(&fs, "during", &data(3, 2_000_000)).await.unwrap();
                    let clears = sync_with_clears(&pool).await;
                    patiently("fsync", promise).await.unwrap().unwrap().unwrap();
                    let is_single_write = fault.op == SimOp::Write && fault.times == 1;
                    if is_single_write && fault.range_bytes == blocks() {
                        assert_eq!(clears, 0, "{layout:?} {fault:?}");
                    }
                    put(&fs, "after", &data(4, 200_000)).await.unwrap();
                    sync_with_clears(&pool).await;
                    let files = [
                        ("before", 1, 300_000),
                        ("promised", 2, 200_000),
                        ("during", 3, 2_000_000),
                        ("after", 4, 200_000),
                    ];
                    check(&sim, pool, fs, &files).await;
                });
            }
        }
    }
}

/// A place that takes no writes, on a device that works elsewhere: blocks go elsewhere, the pool
/// goes on, and what was taken in vain is free again. Once it stood still, and no clear helped.
#[test]
fn blocks_go_around_a_bad_place() {
    for effect in [FaultEffect::Error, FaultEffect::NoSpace] {
        simulate(async move {
            let sim = SimWorld::new(121);
            let pool = create(&sim, Layout::Single, DISK_MIB, false).await.unwrap();
            let disk = sim.disk("disk0").unwrap();
            disk.set_latency(Latency::NONE);
            let fs = open(&sim, &pool).await.unwrap();
            let ino = put(&fs, "before", &data(1, 1 << 20)).await.unwrap();
            pool.sync().await.unwrap();
            let object = fs
                .dataset()
                .unwrap()
                .objset()
                .hold(format::ObjectId::new(ino))
                .await
                .unwrap();
            let last = object.block_pointer(7).await.unwrap().dva(0).unwrap();
            let free = last.offset_bytes() + last.asize_bytes() + LABEL_START_BYTES;
            // One sector every 4 MiB, for as long as the file is.
            for start in (free..free + (24 << 20)).step_by(4 << 20) {
                let sector = Fault::new(SimOp::Write, effect);
                disk.inject(sector.within(start + 40960..start + 45056));
            }
            put(&fs, "during", &data(2, 8 << 20)).await.unwrap();
            patiently("sync", pool.sync()).await.unwrap().unwrap();
            assert!(pool.suspended().is_none());
            assert!(errors_of(&pool.status().root) > 0, "no write met the fault");
            let files = [("before", 1, 1 << 20), ("during", 2, 8 << 20)];
            check(&sim, pool, fs, &files).await;
        });
    }
}

/// A pool that cannot be written is not imported for writing, nor made: nobody could clear it.
#[test]
fn import_and_create_do_not_hang_on_a_bad_disk() {
    for op in [SimOp::Write, SimOp::Flush] {
        simulate(async move {
            let sim = SimWorld::new(131);
            let pool = create(&sim, Layout::Single, DISK_MIB, false).await.unwrap();
            let fs = open(&sim, &pool).await.unwrap();
            put(&fs, "kept", &data(1, 300_000)).await.unwrap();
            fs.close().await.unwrap();
            pool.export(false).await.unwrap();
            drop((fs, pool));
            inject(
                &sim,
                &Fault::new(op, FaultEffect::Error).within(LABEL_START_BYTES..u64::MAX),
            );
            let error = patiently("import", import(&sim, false))
                .await
                .unwrap()
                .expect_err("nothing can be written");
            assert!(error.to_string().contains("suspended"), "{error}");
            sim.kill_tasks().await;
            clear_faults(&sim);
            let pool = import(&sim, false).await.unwrap();
            let fs = open(&sim, &pool).await.unwrap();
            assert!(get(&fs, "kept").await.unwrap() == data(1, 300_000));
            fs.close().await.unwrap();
            pool.export(false).await.unwrap();
            drop((fs, pool));

            let sim = SimWorld::new(132);
            sim.add_disk("disk0", DISK_MIB << 20);
            // Labels can be written at first.
            inject(
                &sim,
                &Fault::new(op, FaultEffect::Error)
                    .within(blocks())
                    .after(u64::from(op == SimOp::Flush)),
            );
            let made = sim::torture::create_on(&sim, Layout::Single, false);
            let error = patiently("create", made)
                .await
                .unwrap()
                .expect_err("nothing can be written");
            assert!(error.to_string().contains("suspended"), "{error}");
        });
    }
}

/// What a suspended pool refuses is refused by a pool whose sync loop waits for a read, too; and a
/// file that was removed meanwhile comes back to nobody.
#[test]
fn a_pool_that_waits_for_a_read_serves_what_it_has() {
    simulate(async {
        let sim = SimWorld::new(141);
        let (pool, fs) = with_files(&sim, Layout::Single).await;
        remove_and_forget(&pool, &fs, "removed").await;
        let kept = get(&fs, "kept").await.unwrap();
        inject(
            &sim,
            &Fault::new(SimOp::Read, FaultEffect::Error).within(blocks()),
        );
        let syncing = {
            let pool = pool.clone();
            tokio::spawn(async move { pool.sync().await })
        };
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert!(pool.suspended().is_some());
        assert!(get(&fs, "kept").await.unwrap() == kept, "from memory");
        fs.lookup(fs.root(), b"removed").await.unwrap_err();
        assert!(
            pool.export(false)
                .await
                .unwrap_err()
                .to_string()
                .contains("clear")
        );
        let writing = {
            let fs = fs.clone();
            tokio::spawn(async move {
                let made = fs.create(fs.root(), b"waits", 0o644, ROOT).await?;
                fs.sync_file(made.ino).await
            })
        };
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert!(!writing.is_finished());
        clear_faults(&sim);
        patiently("clear", pool.clear(None)).await.unwrap().unwrap();
        patiently("sync", syncing).await.unwrap().unwrap().unwrap();
        patiently("write", writing).await.unwrap().unwrap().unwrap();
        check(&sim, pool, fs, &[("kept", 1, 3_000_000), ("waits", 0, 0)]).await;
    });
}
