//! Goal: whatever moment the power goes at while a pool is made or gets new vdevs, there is no pool
//! or a whole one, and the vdevs are part of it or not; what was there before is there. Method:
//! every write and flush as the moment (a sample of them by default, all with `MILLPOND_LONG=1`).

use std::sync::Arc;

use crate::common::{data, get, open, put};
use device::sim::{PowerCut, SimOp, SimWorld};
use format::Guid;
use pool::{AddSpec, LeafSpec, Pool, VdevClass, VdevLayout, VdevSpec};
use sim::torture::{Layout, create, create_on, find, import, inspect, patiently, simulate};

const DISK_MIB: u64 = 96;

/// The moments to try, of `count` operations.
pub fn moments(count: u64) -> impl Iterator<Item = u64> {
    let stride = match std::env::var_os("MILLPOND_LONG") {
        Some(_) => 1,
        None => (count / 12).max(1),
    };
    (1..=count).step_by(stride as usize)
}

/// What the power goes at, and what becomes of what was not flushed.
pub const CUTS: [(SimOp, PowerCut); 4] = [
    (SimOp::Write, PowerCut::Shuffle),
    (SimOp::Write, PowerCut::LoseUnflushed),
    (SimOp::Flush, PowerCut::Shuffle),
    (SimOp::Flush, PowerCut::KeepAll),
];

/// Does something, unless the power goes before it is done.
pub async fn until_cut<T>(sim: &SimWorld, work: impl Future<Output = T>) -> Option<T> {
    let done = tokio::select! {
        biased;
        () = sim.power_lost() => None,
        done = work => Some(done),
    };
    done.filter(|_| sim.is_powered())
}

/// Off, if that has not come, and on again.
pub async fn power_cycle(sim: &SimWorld) {
    if sim.is_powered() {
        sim.cancel_power_cut();
        sim.power_cut(PowerCut::Random);
    }
    patiently("killing the tasks", sim.kill_tasks())
        .await
        .unwrap();
    sim.power_on();
}

/// Operations of one kind since the beginning.
pub fn count(sim: &SimWorld, op: SimOp) -> u64 {
    match op {
        SimOp::Flush => sim.counts().flushes,
        _ => sim.counts().writes,
    }
}

#[test]
fn a_pool_is_made_or_not() {
    for layout in [Layout::Mirror(2), Layout::Classes] {
        let total = simulate(async {
            let sim = SimWorld::new(1);
            let pool = create(&sim, layout, DISK_MIB, false).await.unwrap();
            let total = (count(&sim, SimOp::Write), count(&sim, SimOp::Flush));
            pool.export(false).await.unwrap();
            total
        });
        for (op, how) in CUTS {
            let most = if op == SimOp::Write { total.0 } else { total.1 };
            for at in moments(most) {
                simulate(async {
                    let sim = SimWorld::new(at);
                    sim.cut_power_at(op, at, how);
                    let about = format!("{layout:?} {op:?} {at} {how:?}");
                    let made = until_cut(&sim, create(&sim, layout, DISK_MIB, false)).await;
                    let is_made = made.is_some();
                    drop(made.map(|pool| pool.unwrap()));
                    power_cycle(&sim).await;
                    match import(&sim, false).await {
                        Ok(pool) => {
                            pool.export(false).await.unwrap();
                            drop(pool);
                            inspect(&sim, &about, true).await.unwrap();
                        }
                        Err(error) => {
                            assert!(!is_made, "{about}: {error}");
                            // The disks can be used.
                            let made = create_on(&sim, layout, true).await;
                            let pool = made.unwrap_or_else(|error| panic!("{about}: {error}"));
                            pool.export(false).await.unwrap();
                            drop(pool);
                            inspect(&sim, &about, true).await.unwrap();
                        }
                    }
                });
            }
        }
    }
}

fn addition(sim: &SimWorld) -> AddSpec {
    let leaf = |name: &str| {
        if sim.disk(name).is_none() {
            sim.add_disk(name, DISK_MIB << 20).set_sector_bytes(4096);
        }
        LeafSpec {
            path: name.to_owned(),
            is_file: false,
        }
    };
    let mirror = |a, b| VdevLayout::Mirror(vec![leaf(a), leaf(b)]);
    AddSpec {
        vdevs: vec![
            VdevSpec {
                layout: mirror("new0", "new1"),
                class: VdevClass::Normal,
            },
            VdevSpec {
                layout: VdevLayout::Leaf(leaf("new2")),
                class: VdevClass::Log,
            },
        ],
        ashift: None,
        force: true,
        allow_ashift_mismatch: false,
    }
}

/// A pool with a file, and writes under way; counting starts now.
async fn before_addition(sim: &SimWorld) -> Arc<Pool> {
    let pool = create(sim, Layout::Mirror(2), DISK_MIB, false)
        .await
        .unwrap();
    let fs = open(sim, &pool).await.unwrap();
    let ino = put(&fs, "old", &data(1, 500_000)).await.unwrap();
    fs.sync_file(ino).await.unwrap();
    pool.sync().await.unwrap();
    put(&fs, "newer", &data(2, 300_000)).await.unwrap();
    fs.close().await.unwrap();
    pool
}

#[test]
fn vdevs_are_added_or_not() {
    let total = simulate(async {
        let sim = SimWorld::new(1);
        let pool = before_addition(&sim).await;
        let before = (count(&sim, SimOp::Write), count(&sim, SimOp::Flush));
        pool.add(&addition(&sim)).await.unwrap();
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
                let pool = before_addition(&sim).await;
                let spec = addition(&sim);
                sim.cut_power_at(op, at, how);
                let about = format!("{op:?} {at} {how:?}");
                let added = until_cut(&sim, pool.add(&spec)).await;
                let is_added = added.is_some();
                if let Some(result) = added {
                    result.unwrap();
                }
                drop(pool);
                power_cycle(&sim).await;
                find(&sim)
                    .await
                    .unwrap_or_else(|error| panic!("{about}: {error}"));
                inspect(&sim, &about, true).await.unwrap();
                let pool = import(&sim, false)
                    .await
                    .unwrap_or_else(|error| panic!("{about}: {error}"));
                let tops = pool.status().root.children.len();
                assert!(tops == 1 && !is_added || tops == 3, "{about}: {tops}");
                let fs = open(&sim, &pool).await.unwrap();
                assert!(get(&fs, "old").await.unwrap() == data(1, 500_000));
                if tops == 1 {
                    pool.add(&addition(&sim))
                        .await
                        .unwrap_or_else(|error| panic!("{about}: {error}"));
                }
                let ino = put(&fs, "more", &data(3, 3_000_000)).await.unwrap();
                fs.sync_file(ino).await.unwrap();
                fs.close().await.unwrap();
                pool.export(false).await.unwrap();
                drop((fs, pool));
                let report = inspect(&sim, &about, true).await.unwrap();
                assert!(report.blocks > 0);
                tops == 3
            });
            outcomes[usize::from(is_new)] += 1;
        }
    }
    assert!(outcomes.iter().all(|count| *count > 3), "{outcomes:?}");
}

/// Between labels with the new guid and the first uberblock of their txg, the pool is the old one.
#[test]
fn a_pool_gets_another_guid_or_not() {
    let new = Guid::new(4711);
    let total = simulate(async {
        let sim = SimWorld::new(1);
        let pool = before_addition(&sim).await;
        let before = (count(&sim, SimOp::Write), count(&sim, SimOp::Flush));
        pool.change_guid(new).await.unwrap();
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
        // All of them: only a few lie between.
        for at in 1..=most {
            let is_new = simulate(async {
                let sim = SimWorld::new(at);
                let pool = before_addition(&sim).await;
                let old = pool.guid();
                sim.cut_power_at(op, at, how);
                let about = format!("{op:?} {at} {how:?}");
                let is_changed = until_cut(&sim, pool.change_guid(new)).await.is_some();
                drop(pool);
                power_cycle(&sim).await;
                inspect(&sim, &about, true).await.unwrap();
                let pool = import(&sim, false)
                    .await
                    .unwrap_or_else(|error| panic!("{about}: {error}"));
                let guid = pool.guid();
                assert!(guid == old && !is_changed || guid == new, "{about}: {guid}");
                let fs = open(&sim, &pool).await.unwrap();
                assert!(get(&fs, "old").await.unwrap() == data(1, 500_000));
                let ino = put(&fs, "more", &data(3, 3_000_000)).await.unwrap();
                fs.sync_file(ino).await.unwrap();
                fs.close().await.unwrap();
                pool.export(false).await.unwrap();
                drop((fs, pool));
                inspect(&sim, &about, true).await.unwrap();
                guid == new
            });
            outcomes[usize::from(is_new)] += 1;
        }
    }
    assert!(outcomes.iter().all(|count| *count > 3), "{outcomes:?}");
}
