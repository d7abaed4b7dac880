//! Goal: whatever moment the power goes at while a pool of before features is upgraded, it is of
//! the old version or of the new one, and whole; then its snapshots and clones can go. Method:
//! every write and flush as the moment (a sample of them by default, all with `MILLPOND_LONG=1`).

use std::sync::Arc;

use bytes::Bytes;
use device::sim::{SimOp, SimWorld};
use filesystem::{Caller, Filesystem};
use pool::Pool;
use sim::torture::{Layout, POOL, create_with, import, inspect, simulate};

use crate::common::{data, get, open, put};
use crate::vdevs::{CUTS, count, moments, power_cycle, until_cut};

const DISK_MIB: u64 = 96;

/// Changes a file from its beginning, or makes it.
async fn write(fs: &Filesystem, name: &str, content: &Bytes) {
    match fs.lookup(fs.root(), name.as_bytes()).await {
        Ok(found) => {
            let caller = Caller::ROOT;
            let written = fs.write(found.ino, 0, content.clone(), false, caller).await;
            written.unwrap();
        }
        Err(_) => {
            put(fs, name, content).await.unwrap();
        }
    }
}

/// A pool with snapshots of a filesystem that changed between them, and a clone of the first.
async fn before_upgrade(sim: &SimWorld, version: u64) -> Arc<Pool> {
    let properties = vec![("version".to_owned(), version.to_string())];
    let made = create_with(sim, Layout::Mirror(2), DISK_MIB, false, properties).await;
    let pool = made.unwrap();
    for round in 1..=3 {
        let fs = open(sim, &pool).await.unwrap();
        write(&fs, "changing", &data(round, 300_000)).await;
        write(&fs, &format!("of round {round}"), &data(round, 100_000)).await;
        fs.close().await.unwrap();
        drop(fs);
        let names = [format!("{POOL}@{round}")];
        pool.dsl().snapshots().take(&names, &[]).await.unwrap();
    }
    let (origin, clone) = (format!("{POOL}@1"), format!("{POOL}/clone"));
    let datasets = pool.dsl().datasets();
    datasets.clone_snapshot(&origin, &clone, &[]).await.unwrap();
    pool.dsl().sync().await.unwrap();
    pool
}

/// All that is old goes, a little new comes.
async fn after_upgrade(sim: &SimWorld, pool: &Arc<Pool>, about: &str) {
    let fs = open(sim, pool).await.unwrap();
    assert!(
        get(&fs, "changing").await.unwrap() == data(3, 300_000),
        "{about}"
    );
    write(&fs, "changing", &data(4, 300_000)).await;
    fs.close().await.unwrap();
    drop(fs);
    let names = [format!("{POOL}@4")];
    pool.dsl().snapshots().take(&names, &[]).await.unwrap();
    for doomed in ["@2", "/clone", "@1", "@3"] {
        let doomed = format!("{POOL}{doomed}");
        let destroyed = pool.dsl().destroyer().destroy(&doomed).await;
        destroyed.unwrap_or_else(|error| panic!("{about}: {doomed}: {error}"));
    }
}

#[test]
fn a_pool_is_upgraded_or_not() {
    for (from, to) in [(11, 28), (25, 5000)] {
        let total = simulate(async {
            let sim = SimWorld::new(1);
            let pool = before_upgrade(&sim, from).await;
            let before = (count(&sim, SimOp::Write), count(&sim, SimOp::Flush));
            pool.properties().raise_version(to).await.unwrap();
            let total = (
                count(&sim, SimOp::Write) - before.0,
                count(&sim, SimOp::Flush) - before.1,
            );
            pool.export(false).await.unwrap();
            total
        });
        let mut outcomes = [0, 0];
        for (op, how) in CUTS {
            let most = if op == SimOp::Write { total.0 } else { total.1 };
            for at in moments(most) {
                let is_new = simulate(async {
                    let sim = SimWorld::new(at);
                    let pool = before_upgrade(&sim, from).await;
                    sim.cut_power_at(op, at, how);
                    let about = format!("{from} to {to}: {op:?} {at} {how:?}");
                    let raising = async { pool.properties().raise_version(to).await };
                    let raised = until_cut(&sim, raising).await;
                    let is_raised = raised.is_some();
                    if let Some(result) = raised {
                        result.unwrap();
                    }
                    drop(pool);
                    power_cycle(&sim).await;
                    inspect(&sim, &about, true).await.unwrap();
                    let pool = import(&sim, false)
                        .await
                        .unwrap_or_else(|error| panic!("{about}: {error}"));
                    let version = pool.status().version;
                    let is_old = version == from && !is_raised;
                    assert!(is_old || version == to, "{about}: {version}");
                    after_upgrade(&sim, &pool, &about).await;
                    pool.export(false).await.unwrap();
                    drop(pool);
                    inspect(&sim, &about, true).await.unwrap();
                    version == to
                });
                outcomes[usize::from(is_new)] += 1;
            }
        }
        assert!(outcomes.iter().all(|count| *count > 3), "{outcomes:?}");
    }
}
