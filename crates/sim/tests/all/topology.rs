//! Goal: whatever moment the power goes at while a device is attached, replaced or detached, the
//! pool is the one before or the one after, and what was written is there. Method: every write and
//! flush as the moment (a sample of them by default, all with `MILLPOND_LONG=1`), with files being
//! written meanwhile. What a resilver would do is done by copying the disk.

use std::sync::Arc;

use crate::common::{data, get, open, put};
use crate::vdevs::{CUTS, count, moments, power_cycle, until_cut};
use device::sim::{PowerCut, SimOp, SimWorld};
use filesystem::Filesystem;
use pool::{
    AttachSpec, LeafSpec, OfflineSpec, Pool, PoolError, TopologyError, VdevState, VdevStatus,
};
use sim::torture::{Layout, create, import, inspect, simulate, zdb};

const DISK_MIB: u64 = 96;

/// A device to attach, by force.
pub fn spec(path: &str, replace: bool) -> AttachSpec {
    AttachSpec {
        device: LeafSpec {
            path: path.to_owned(),
            is_file: false,
        },
        ashift: None,
        force: true,
        replace,
        sequential: false,
        untouched: false,
    }
}

/// A new disk.
pub fn add_disk(sim: &SimWorld, name: &str) {
    if sim.disk(name).is_none() {
        sim.add_disk(name, DISK_MIB << 20).set_sector_bytes(4096);
    }
}

/// The first top-level vdev: types and disks.
pub fn shape(pool: &Pool) -> String {
    fn walk(vdev: &VdevStatus) -> String {
        let below: Vec<String> = vdev.children.iter().map(walk).collect();
        match below.is_empty() {
            true => vdev.name.clone(),
            false => format!("{}({})", vdev.kind, below.join(" ")),
        }
    }
    walk(&pool.status().root.children[0])
}

/// The vdev of that name.
pub fn find<'a>(vdev: &'a VdevStatus, name: &str) -> Option<&'a VdevStatus> {
    if vdev.name == name {
        return Some(vdev);
    }
    vdev.children.iter().find_map(|child| find(child, name))
}

/// Resilvers a device, and holds resilvers again.
pub async fn resilver(pool: &Pool, to: &str) {
    pool.scans().hold(false);
    while find(&pool.status().root, to).expect("a device").is_stale {
        pool.sync_config().await.unwrap();
    }
    pool.scans().hold(true);
}

#[derive(Debug, Clone, Copy)]
enum Step {
    /// A mirror of two gets a third device.
    Attach,
    /// A disk becomes a mirror.
    Mirror,
    /// A mirror of two becomes a disk.
    Detach,
    /// A device of a mirror is to be replaced.
    Replace,
    /// The replacement ends by itself.
    Finish,
    /// It is given up.
    Cancel,
}

impl Step {
    fn layout(self) -> Layout {
        match self {
            Step::Mirror => Layout::Single,
            _ => Layout::Mirror(2),
        }
    }

    /// The pool's shape before and after.
    fn shapes(self) -> [&'static str; 2] {
        let replacing = "mirror(disk0 replacing(disk1 new))";
        match self {
            Step::Attach => ["mirror(disk0 disk1)", "mirror(disk0 disk1 new)"],
            Step::Mirror => ["disk0", "mirror(disk0 new)"],
            Step::Detach => ["mirror(disk0 disk1)", "disk0"],
            Step::Replace => ["mirror(disk0 disk1)", replacing],
            Step::Finish => [replacing, "mirror(disk0 new)"],
            Step::Cancel => [replacing, "mirror(disk0 disk1)"],
        }
    }

    /// Whether every device has everything: else a scrub finds what a resilver did not do.
    fn is_whole(self, shape: &str) -> bool {
        !shape.contains("new") || matches!(self, Step::Finish) && shape == self.shapes()[1]
    }

    async fn prepare(self, sim: &SimWorld) -> (Arc<Pool>, Arc<Filesystem>) {
        add_disk(sim, "new");
        let pool = create(sim, self.layout(), DISK_MIB, false).await.unwrap();
        // What is half done stays so.
        pool.scans().hold(true);
        let fs = open(sim, &pool).await.unwrap();
        let ino = put(&fs, "old", &data(1, 500_000)).await.unwrap();
        fs.sync_file(ino).await.unwrap();
        pool.sync().await.unwrap();
        if matches!(self, Step::Finish | Step::Cancel) {
            pool.attach("disk1", &spec("new", true)).await.unwrap();
            pool.sync().await.unwrap();
        }
        put(&fs, "newer", &data(2, 300_000)).await.unwrap();
        (pool, fs)
    }

    async fn run(self, pool: &Pool, fs: &Filesystem) -> Result<(), PoolError> {
        let changing = async {
            match self {
                Step::Attach => pool.attach("disk0", &spec("new", false)).await,
                Step::Mirror => pool.attach("disk0", &spec("new", false)).await,
                Step::Replace => pool.attach("disk1", &spec("new", true)).await,
                Step::Detach => pool.detach("disk1").await,
                Step::Cancel => pool.detach("new").await,
                Step::Finish => {
                    resilver(pool, "new").await;
                    while shape(pool) != self.shapes()[1] {
                        pool.sync_config().await?;
                    }
                    pool.sync().await
                }
            }
        };
        if let Step::Finish = self {
            return changing.await;
        }
        let content = data(4, 2_000_000);
        let writing = put(fs, "during", &content);
        let (changed, written) = tokio::join!(changing, writing);
        written.unwrap();
        changed
    }
}

async fn check_old(fs: &Filesystem) {
    assert!(get(fs, "old").await.unwrap() == data(1, 500_000));
}

#[test]
fn a_device_comes_or_goes_or_does_not() {
    for step in [
        Step::Attach,
        Step::Mirror,
        Step::Detach,
        Step::Replace,
        Step::Finish,
        Step::Cancel,
    ] {
        let [before, after] = step.shapes();
        let total = simulate(async {
            let sim = SimWorld::new(1);
            let (pool, fs) = step.prepare(&sim).await;
            assert_eq!(shape(&pool), before);
            let start = (count(&sim, SimOp::Write), count(&sim, SimOp::Flush));
            step.run(&pool, &fs).await.unwrap();
            assert_eq!(shape(&pool), after, "{step:?}");
            let total = (
                count(&sim, SimOp::Write) - start.0,
                count(&sim, SimOp::Flush) - start.1,
            );
            check_old(&fs).await;
            fs.close().await.unwrap();
            pool.export(false).await.unwrap();
            drop((fs, pool));
            inspect(&sim, "whole", step.is_whole(after)).await.unwrap();
            total
        });
        let mut outcomes = [0, 0];
        for (op, how) in CUTS {
            let most = if op == SimOp::Write { total.0 } else { total.1 };
            // Six changes take their time: fewer moments of each.
            let sparse = match std::env::var_os("MILLPOND_LONG") {
                Some(_) => 1,
                None => 3,
            };
            for at in moments(most).step_by(sparse) {
                let is_after = simulate(async {
                    let sim = SimWorld::new(at);
                    let (pool, fs) = step.prepare(&sim).await;
                    sim.cut_power_at(op, at, how);
                    let about = format!("{step:?} {op:?} {at} {how:?}");
                    let changed = until_cut(&sim, step.run(&pool, &fs)).await;
                    let is_done = changed.is_some();
                    if let Some(result) = changed {
                        result.unwrap();
                    }
                    drop((fs, pool));
                    power_cycle(&sim).await;
                    inspect(&sim, &about, matches!(step, Step::Detach))
                        .await
                        .unwrap();
                    let pool = import(&sim, false)
                        .await
                        .unwrap_or_else(|error| panic!("{about}: {error}"));
                    pool.scans().hold(true);
                    let found = shape(&pool);
                    let is_after = found == after;
                    assert!(is_after || found == before && !is_done, "{about}: {found}");
                    let health = pool.status().root.state;
                    assert_eq!(
                        health,
                        VdevState::Online,
                        "{about}: {:?}",
                        pool.status().root
                    );
                    let fs = open(&sim, &pool).await.unwrap();
                    check_old(&fs).await;
                    if !is_after && !matches!(step, Step::Finish) {
                        step.run(&pool, &fs)
                            .await
                            .unwrap_or_else(|error| panic!("{about}: again: {error}"));
                    }
                    let ino = put(&fs, "more", &data(3, 3_000_000)).await.unwrap();
                    fs.sync_file(ino).await.unwrap();
                    fs.close().await.unwrap();
                    pool.export(false).await.unwrap();
                    let found = shape(&pool);
                    drop((fs, pool));
                    inspect(&sim, &about, step.is_whole(&found)).await.unwrap();
                    is_after
                });
                outcomes[usize::from(is_after)] += 1;
            }
        }
        assert!(
            outcomes.iter().all(|count| *count > 0),
            "{step:?}: {outcomes:?}"
        );
    }
}

/// A disk dies, is replaced by a bigger one under the same path, and later the other one is
/// detached: what is left has everything. zdb agrees.
#[test]
fn disks_go_one_after_the_other() {
    simulate(async {
        let sim = SimWorld::new(7);
        let (pool, fs) = Step::Replace.prepare(&sim).await;
        sim.disk("disk1").unwrap().set_gone(true);
        put(&fs, "alone", &data(5, 700_000)).await.unwrap();
        pool.sync().await.unwrap();
        // The last disk that works stays.
        for refused in [
            pool.detach("disk0").await,
            pool.offline("disk0", OfflineSpec::default()).await,
        ] {
            let is_only_copy = matches!(
                refused,
                Err(PoolError::Topology(TopologyError::OnlyCopy { .. }))
            );
            assert!(is_only_copy, "{refused:?}");
        }
        sim.add_disk("disk1", (2 * DISK_MIB) << 20)
            .set_sector_bytes(4096);
        pool.attach("disk1", &spec("disk1", true)).await.unwrap();
        assert_eq!(shape(&pool), "mirror(disk0 replacing(disk1/old disk1))");
        let twice = pool.attach("disk0", &spec("disk1", false)).await;
        assert!(
            matches!(twice, Err(PoolError::DeviceInUse { .. })),
            "{twice:?}"
        );
        resilver(&pool, "disk1").await;
        while shape(&pool) != "mirror(disk0 disk1)" {
            pool.sync_config().await.unwrap();
        }
        // Out and back: what it missed is on record.
        let temporary = OfflineSpec {
            temporary: true,
            fault: false,
        };
        pool.offline("disk1", temporary).await.unwrap();
        put(&fs, "missed", &data(6, 400_000)).await.unwrap();
        pool.sync().await.unwrap();
        let refused = pool.detach("disk0").await;
        assert!(refused.is_err(), "{refused:?}");
        assert_eq!(
            pool.online("disk1", false).await.unwrap().state,
            VdevState::Online
        );
        let root = pool.status().root;
        assert!(find(&root, "disk1").unwrap().is_stale);
        resilver(&pool, "disk1").await;
        pool.detach("disk0").await.unwrap();
        assert_eq!(shape(&pool), "disk1");
        let history = pool.history().await.unwrap();
        let text = format!("{history:?}");
        for words in [
            "replace vdev=disk1 for vdev=disk1/old",
            "vdev=disk1/old",
            "vdev=disk0",
        ] {
            assert!(text.contains(words), "{words}: {text}");
        }
        fs.close().await.unwrap();
        pool.export(false).await.unwrap();
        drop((fs, pool));
        inspect(&sim, "at last", true).await.unwrap();
        let pool = import(&sim, false).await.unwrap();
        let fs = open(&sim, &pool).await.unwrap();
        check_old(&fs).await;
        assert!(get(&fs, "alone").await.unwrap() == data(5, 700_000));
        assert!(get(&fs, "missed").await.unwrap() == data(6, 400_000));
        fs.close().await.unwrap();
        pool.export(false).await.unwrap();
        drop((fs, pool));
        zdb(&sim).unwrap();
    });
}

/// Labels with the guid that a disk took over from its mirror, and an uberblock from before that:
/// the disk is still known, and it is the only one that works.
#[test]
fn a_disk_takes_over_its_mirrors_guid_or_not() {
    let prepare = async |sim: &SimWorld| {
        let pool = create(sim, Layout::Mirror(2), DISK_MIB, false)
            .await
            .unwrap();
        sim.disk("disk1").unwrap().set_gone(true);
        let fs = open(sim, &pool).await.unwrap();
        put(&fs, "old", &data(1, 500_000)).await.unwrap();
        fs.close().await.unwrap();
        pool.sync().await.unwrap();
        pool
    };
    let total = simulate(async {
        let sim = SimWorld::new(1);
        let pool = prepare(&sim).await;
        let start = count(&sim, SimOp::Write);
        pool.detach("disk1").await.unwrap();
        count(&sim, SimOp::Write) - start
    });
    let mut outcomes = [0, 0];
    for at in 1..=total {
        let is_after = simulate(async {
            let sim = SimWorld::new(at);
            let pool = prepare(&sim).await;
            sim.cut_power_at(SimOp::Write, at, PowerCut::KeepAll);
            let changed = until_cut(&sim, pool.detach("disk1")).await;
            if let Some(result) = changed {
                result.unwrap();
            }
            drop(pool);
            power_cycle(&sim).await;
            let pool = import(&sim, false)
                .await
                .unwrap_or_else(|error| panic!("{at} of {total}: {error}"));
            let fs = open(&sim, &pool).await.unwrap();
            check_old(&fs).await;
            let is_after = shape(&pool) == "disk0";
            fs.close().await.unwrap();
            pool.export(false).await.unwrap();
            is_after
        });
        outcomes[usize::from(is_after)] += 1;
    }
    assert!(outcomes.iter().all(|count| *count > 0), "{outcomes:?}");
}
