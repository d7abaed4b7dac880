//! Goal: whatever moment the power goes at while a pool is split, the old pool has everything, and
//! the new one is whole or not there. Method: every write and flush as the moment (a sample of them
//! by default, all with `MILLPOND_LONG=1`), with files being written meanwhile.

use std::sync::Arc;

use crate::common::{data, get, open, put};
use crate::vdevs::{CUTS, count, moments, power_cycle, until_cut};
use device::sim::{SimOp, SimWorld};
use filesystem::Filesystem;
use pool::{FoundPool, ImportSpec, Pool, PoolError, PoolHealth, ScanSpec, SplitSpec};
use sim::torture::{Layout, POOL, create, host, simulate};
use sim::verify::verify_pool;

const DISK_MIB: u64 = 96;
const NEW: &str = "half";

async fn found(sim: &SimWorld, name: &str) -> Option<FoundPool> {
    let spec = ScanSpec {
        paths: sim.disk_names(),
        ..ScanSpec::default()
    };
    let found = pool::scan(&sim.world(), &spec).await.unwrap();
    found.into_iter().find(|pool| pool.name == name)
}

async fn imported(sim: &SimWorld, name: &str, read_only: bool) -> Arc<Pool> {
    let found = found(sim, name).await.expect("there is such a pool");
    let mut spec = ImportSpec::new(found, host());
    spec.read_only = read_only;
    spec.unwatched = read_only;
    let pool = Pool::import(&sim.world(), spec).await;
    pool.unwrap_or_else(|error| panic!("{name}: {error}"))
}

async fn prepare(sim: &SimWorld, layout: Layout) -> (Arc<Pool>, Arc<Filesystem>) {
    let pool = create(sim, layout, DISK_MIB, false).await.unwrap();
    let fs = open(sim, &pool).await.unwrap();
    let ino = put(&fs, "old", &data(1, 500_000)).await.unwrap();
    fs.sync_file(ino).await.unwrap();
    pool.sync().await.unwrap();
    let ino = put(&fs, "newer", &data(2, 300_000)).await.unwrap();
    fs.sync_file(ino).await.unwrap();
    (pool, fs)
}

async fn split(pool: &Pool, fs: &Filesystem) -> Result<(), PoolError> {
    let spec = SplitSpec {
        new_name: NEW.to_owned(),
        ..SplitSpec::default()
    };
    let content = data(4, 2_000_000);
    let writing = put(fs, "during", &content);
    let (split, written) = tokio::join!(pool.split(&spec), writing);
    written.unwrap();
    split
}

/// Devices below each top-level vdev.
fn widths(pool: &Pool) -> Vec<usize> {
    let tops = pool.status().root.children;
    tops.iter().map(|top| top.children.len()).collect()
}

/// A pool verifies, and has what was there before the split.
async fn check(sim: &SimWorld, name: &str, about: &str) {
    let pool = imported(sim, name, true).await;
    let report = verify_pool(&pool).await;
    let report = report.unwrap_or_else(|error| panic!("{about}: {name}: {error}"));
    assert!(
        report.problems.is_empty(),
        "{about}: {name}: {:?}",
        report.problems
    );
    pool.export(false).await.unwrap();
    drop(pool);
    let pool = imported(sim, name, false).await;
    let fs = open(sim, &pool).await.unwrap();
    assert!(
        get(&fs, "old").await.unwrap() == data(1, 500_000),
        "{about}: {name}"
    );
    assert!(
        get(&fs, "newer").await.unwrap() == data(2, 300_000),
        "{about}: {name}"
    );
    // Checked once before.
    if get(&fs, "later").await.is_err() {
        put(&fs, "later", &data(7, 300_000)).await.unwrap();
    }
    fs.close().await.unwrap();
    pool.export(false).await.unwrap();
}

/// Both pools have everything and can be written; log devices stay behind.
#[test]
fn a_pool_becomes_two() {
    for layout in [Layout::Mirror(3), Layout::Mirrors, Layout::MirrorAndLogs] {
        simulate(async {
            let sim = SimWorld::new(3);
            let (pool, fs) = prepare(&sim, layout).await;
            let before = widths(&pool);
            split(&pool, &fs).await.unwrap();
            let after = widths(&pool);
            // A mirror of one is a disk.
            let less = |width: &usize| if *width == 2 { 0 } else { width - 1 };
            let logs = usize::from(layout == Layout::MirrorAndLogs);
            let mut wanted: Vec<usize> = before.iter().map(less).collect();
            if logs > 0 {
                *wanted.last_mut().unwrap() = *before.last().unwrap();
            }
            assert_eq!(after, wanted, "{layout:?}");
            assert!(get(&fs, "during").await.unwrap() == data(4, 2_000_000));
            fs.close().await.unwrap();
            pool.export(false).await.unwrap();
            drop((fs, pool));
            check(&sim, POOL, "whole").await;
            check(&sim, NEW, "whole").await;
            let new = imported(&sim, NEW, true).await;
            assert_eq!(widths(&new), vec![0; before.len() - logs], "{layout:?}");
            new.export(false).await.unwrap();
        });
    }
}

/// What stands in the way is told, and nothing has changed.
#[test]
fn what_cannot_be_split_stays() {
    simulate(async {
        let sim = SimWorld::new(5);
        let (pool, fs) = prepare(&sim, Layout::Raidz(1, 3)).await;
        let refused = split(&pool, &fs).await;
        assert!(
            matches!(refused, Err(PoolError::CannotSplit { .. })),
            "{refused:?}"
        );
        fs.close().await.unwrap();
        pool.export(false).await.unwrap();
    });
    simulate(async {
        let sim = SimWorld::new(6);
        let (pool, fs) = prepare(&sim, Layout::Mirror(2)).await;
        let spec = SplitSpec {
            new_name: NEW.to_owned(),
            devices: vec!["disk0".to_owned(), "disk1".to_owned()],
            ..SplitSpec::default()
        };
        let refused = pool.split(&spec).await;
        assert!(
            matches!(refused, Err(PoolError::CannotSplit { .. })),
            "{refused:?}"
        );
        sim.disk("disk1").unwrap().set_gone(true);
        put(&fs, "alone", &data(5, 700_000)).await.unwrap();
        pool.sync().await.unwrap();
        let refused = split(&pool, &fs).await;
        assert!(
            matches!(refused, Err(PoolError::CannotSplit { .. })),
            "{refused:?}"
        );
        assert_eq!(widths(&pool), [2]);
        fs.close().await.unwrap();
        pool.export(false).await.unwrap();
    });
}

#[test]
fn a_pool_is_split_or_is_not() {
    let layout = Layout::Mirrors;
    let total = simulate(async {
        let sim = SimWorld::new(1);
        let (pool, fs) = prepare(&sim, layout).await;
        let start = (count(&sim, SimOp::Write), count(&sim, SimOp::Flush));
        split(&pool, &fs).await.unwrap();
        let total = (
            count(&sim, SimOp::Write) - start.0,
            count(&sim, SimOp::Flush) - start.1,
        );
        fs.close().await.unwrap();
        pool.export(false).await.unwrap();
        total
    });
    let mut outcomes = [0, 0];
    for (op, how) in CUTS {
        let most = if op == SimOp::Write { total.0 } else { total.1 };
        for at in moments(most) {
            let is_split = simulate(async {
                let sim = SimWorld::new(at);
                let (pool, fs) = prepare(&sim, layout).await;
                sim.cut_power_at(op, at, how);
                let about = format!("{op:?} {at} {how:?}");
                let result = until_cut(&sim, split(&pool, &fs)).await;
                let is_done = result.is_some();
                if let Some(result) = result {
                    result.unwrap();
                }
                drop((fs, pool));
                power_cycle(&sim).await;
                check(&sim, POOL, &about).await;
                let new = found(&sim, NEW).await;
                let is_split = new.is_some_and(|new| new.health == PoolHealth::Online);
                assert!(is_split || !is_done, "{about}");
                if is_split {
                    check(&sim, NEW, &about).await;
                    // Not after that, whoever writes to either.
                    check(&sim, POOL, &about).await;
                    let old = imported(&sim, POOL, false).await;
                    assert_eq!(widths(&old), [0, 0], "{about}");
                    old.export(false).await.unwrap();
                }
                is_split
            });
            outcomes[usize::from(is_split)] += 1;
        }
    }
    assert!(outcomes.iter().all(|count| *count > 0), "{outcomes:?}");
}
