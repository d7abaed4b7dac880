//! Goal: a device with too many errors is taken out of use or marked, as OpenZFS's fault daemon
//! would, while those who use the pool notice nothing, and what happened is told in order.
//! Method: scripts in the simulated world, with disks that fail, lie or are slow.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use crate::common::{data, get, open, put};
use device::sim::{Fault, FaultEffect, PowerCut, SimOp, SimWorld};
use filesystem::Filesystem;
use format::{Guid, LABEL_BYTES, LABEL_START_BYTES, NvList, NvValue};
use parking_lot::Mutex;
use pool::{EventSink, Pool, PoolEvent, PoolHealth, ScrubCommand, VdevAux, VdevState};
use sim::torture::{Layout, create_told, import, inspect, simulate};

const DISK_MIB: u64 = 96;
const SECOND: Duration = Duration::from_secs(1);
/// Longer than failed operations wait for a removal.
const DIAGNOSED: Duration = Duration::from_secs(20);

/// Keeps events.
#[derive(Default)]
struct Told(Mutex<Vec<PoolEvent>>);

impl EventSink for Told {
    fn event(&self, event: PoolEvent) {
        self.0.lock().push(event);
    }
}

impl Told {
    /// Those of a class, by the end of its name.
    fn of(&self, class: &str) -> Vec<NvList> {
        let events = self.0.lock();
        let of_class = events.iter().filter(|event| event.class.ends_with(class));
        of_class.map(|event| event.pairs.clone()).collect()
    }

    /// The classes in order, each once where it comes several times on end, without a word of
    /// histories and configurations.
    fn classes(&self) -> Vec<String> {
        let events = self.0.lock();
        let mut classes: Vec<String> = events.iter().map(|event| event.class.clone()).collect();
        classes
            .retain(|class| !class.ends_with("history_event") && !class.ends_with("config_sync"));
        classes.dedup();
        classes
    }
}

/// Where blocks are: a probe of the device finds nothing wrong with it.
fn blocks() -> Range<u64> {
    LABEL_START_BYTES..(DISK_MIB << 20) - 2 * LABEL_BYTES
}

/// A pool, its filesystem, and what it tells.
async fn begin(sim: &SimWorld, layout: Layout) -> (Arc<Pool>, Arc<Filesystem>, Arc<Told>) {
    let told = Arc::new(Told::default());
    let pool = create_told(sim, layout, DISK_MIB, told.clone())
        .await
        .unwrap();
    let fs = open(sim, &pool).await.unwrap();
    (pool, fs, told)
}

/// State, reason and guid of the device on this disk.
fn device(pool: &Pool, disk: &str) -> (VdevState, VdevAux, Guid) {
    let root = pool.status().root;
    let tops = root.children.iter();
    let leaves = tops.flat_map(|top| match top.children.as_slice() {
        [] => std::slice::from_ref(top),
        children => children,
    });
    let found = leaves
        .into_iter()
        .find(|leaf| leaf.path.as_deref() == Some(disk))
        .unwrap();
    (found.state, found.aux, found.guid)
}

fn is_so(pool: &Pool, disk: &str, state: VdevState, aux: VdevAux) {
    let (found, why, _) = device(pool, disk);
    assert_eq!((found, why), (state, aux), "{disk}");
}

/// Writes files with a second between them, each of which has to be taken.
async fn write_files(pool: &Pool, fs: &Filesystem, numbers: Range<u64>) {
    for number in numbers {
        let name = format!("file{number}");
        put(fs, &name, &data(number, 300_000)).await.unwrap();
        pool.sync().await.unwrap();
        tokio::time::sleep(SECOND).await;
    }
}

/// All files have what was written, by the disks.
async fn files_are_whole(pool: &Pool, fs: &Filesystem, numbers: Range<u64>) {
    pool.pipeline().cache().clear();
    for number in numbers {
        let content = get(fs, &format!("file{number}")).await.unwrap();
        assert!(content == data(number, 300_000), "file{number}");
    }
}

async fn leave(pool: Arc<Pool>, fs: Arc<Filesystem>) {
    fs.close().await.unwrap();
    pool.export(false).await.unwrap();
}

/// A disk that does not take writes is faulted, and the load goes on without an error. It misses
/// what was written since, also when it is cleared and trusted again.
#[test]
fn a_disk_with_too_many_errors_is_faulted_under_load() {
    simulate(async {
        let sim = SimWorld::new(501);
        let (pool, fs, told) = begin(&sim, Layout::Mirror(2)).await;
        write_files(&pool, &fs, 0..3).await;
        let bad = sim.disk("disk0").unwrap();
        bad.inject(Fault::new(SimOp::Write, FaultEffect::Error).within(blocks()));
        write_files(&pool, &fs, 3..40).await;
        is_so(&pool, "disk0", VdevState::Faulted, VdevAux::ErrorsExceeded);
        is_so(&pool, "disk1", VdevState::Online, VdevAux::None);
        assert_eq!(pool.health(), PoolHealth::Degraded);
        let (.., guid) = device(&pool, "disk0");

        // Told in order, and only of that disk.
        let classes = [
            "sysevent.fs.zfs.pool_create",
            "ereport.fs.zfs.io",
            "resource.fs.zfs.statechange",
        ];
        assert_eq!(told.classes(), classes);
        let errors = told.of("fs.zfs.io");
        assert!(errors.len() >= 10, "{}", errors.len());
        for error in &errors {
            assert_eq!(error.u64("vdev_guid"), Some(guid.get()));
            assert_eq!(error.string("vdev_path"), Some("disk0"));
            assert_eq!(error.string("pool"), Some(sim::torture::POOL));
            assert_eq!(error.string("pool_failmode"), Some("wait"));
            assert_eq!(error.string("parent_type"), Some("mirror"));
            assert_eq!(error.get("zio_err"), Some(&NvValue::Int32(5)));
            assert_eq!(error.get("pool_context"), Some(&NvValue::Int32(0)));
            let offset = error.u64("zio_offset").unwrap();
            assert!(blocks().contains(&offset), "{offset}");
            assert!(error.u64("zio_size").unwrap() > 0);
            let detector = error.list("detector").unwrap();
            assert_eq!(detector.u64("vdev"), Some(guid.get()));
        }
        let changes = told.of("statechange");
        let [change] = changes.as_slice() else {
            panic!("{changes:?}");
        };
        assert_eq!(change.u64("vdev_guid"), Some(guid.get()));
        assert_eq!(change.u64("vdev_state"), Some(5));
        assert_eq!(change.u64("vdev_laststate"), Some(7));

        // It comes back without what it missed.
        bad.clear_faults();
        files_are_whole(&pool, &fs, 0..40).await;
        pool.clear(None).await.unwrap();
        is_so(&pool, "disk0", VdevState::Online, VdevAux::None);
        let last = told.classes().split_off(3);
        assert_eq!(last, ["sysevent.fs.zfs.vdev_clear"]);
        files_are_whole(&pool, &fs, 0..40).await;
        leave(pool, fs).await;
        // What it still lacks counts as its errors.
        inspect(&sim, "after the fault", false).await.unwrap();
        let pool = import(&sim, false).await.unwrap();
        let fs = open(&sim, &pool).await.unwrap();
        files_are_whole(&pool, &fs, 0..40).await;
        leave(pool, fs).await;
    });
}

/// What a faulted disk missed is known after a crash, too: nothing is read from it that is old.
#[test]
fn what_a_faulted_disk_misses_outlives_a_crash() {
    for (seed, layout) in [(507, Layout::Mirror(2)), (508, Layout::Raidz(1, 3))] {
        simulate(async move {
            let sim = SimWorld::new(seed);
            let (pool, fs, _) = begin(&sim, layout).await;
            write_files(&pool, &fs, 0..3).await;
            let bad = sim.disk("disk0").unwrap();
            bad.inject(Fault::new(SimOp::Write, FaultEffect::Error).within(blocks()));
            write_files(&pool, &fs, 3..30).await;
            is_so(&pool, "disk0", VdevState::Faulted, VdevAux::ErrorsExceeded);
            sim.power_cut(PowerCut::Random);
            sim.kill_tasks().await;
            pool.dsl().tasks().close();
            drop((pool, fs));
            sim.kill_tasks().await;
            sim.power_on();
            bad.clear_faults();
            let pool = import(&sim, false).await.unwrap();
            let fs = open(&sim, &pool).await.unwrap();
            is_so(&pool, "disk0", VdevState::Online, VdevAux::None);
            let root = pool.status().root;
            let is_stale = root.children[0].children.iter().map(|leaf| leaf.is_stale);
            assert_eq!(is_stale.filter(|is_stale| *is_stale).count(), 1);
            files_are_whole(&pool, &fs, 0..30).await;
            leave(pool, fs).await;
        });
    }
}

/// A disk that lies is marked, and goes on being read and repaired; a clear forgets that.
#[test]
fn a_disk_that_lies_is_degraded() {
    simulate(async {
        let sim = SimWorld::new(502);
        let (pool, fs, told) = begin(&sim, Layout::Mirror(2)).await;
        write_files(&pool, &fs, 0..40).await;
        let bad = sim.disk("disk1").unwrap();
        bad.inject(Fault::new(SimOp::Read, FaultEffect::Corrupt).within(blocks()));
        files_are_whole(&pool, &fs, 0..40).await;
        tokio::time::sleep(DIAGNOSED).await;
        is_so(&pool, "disk1", VdevState::Degraded, VdevAux::ErrorsExceeded);
        is_so(&pool, "disk0", VdevState::Online, VdevAux::None);
        files_are_whole(&pool, &fs, 0..40).await;
        assert!(told.of("fs.zfs.checksum").len() >= 10);
        assert_eq!(told.of("statechange")[0].u64("vdev_state"), Some(6));
        bad.clear_faults();
        pool.clear(Some("disk1")).await.unwrap();
        is_so(&pool, "disk1", VdevState::Online, VdevAux::None);
        leave(pool, fs).await;
        inspect(&sim, "after the lies", true).await.unwrap();
    });
}

/// The only disk that has the data is marked at most, however often it fails.
#[test]
fn the_last_copy_is_never_faulted() {
    for (seed, layout) in [(503, Layout::Single), (504, Layout::Mirror(2))] {
        simulate(async move {
            let sim = SimWorld::new(seed);
            let (pool, fs, _) = begin(&sim, layout).await;
            write_files(&pool, &fs, 0..40).await;
            if let Some(other) = sim.disk("disk1") {
                other.set_gone(true);
                write_files(&pool, &fs, 40..42).await;
                assert_eq!(device(&pool, "disk1").0, VdevState::Removed);
            }
            let last = sim.disk("disk0").unwrap();
            last.inject(
                Fault::new(SimOp::Read, FaultEffect::Error)
                    .within(blocks())
                    .times(30),
            );
            pool.pipeline().cache().clear();
            for number in 0..40 {
                // Some fail, and nothing can be done about it.
                let _ = get(&fs, &format!("file{number}")).await;
            }
            tokio::time::sleep(DIAGNOSED).await;
            is_so(&pool, "disk0", VdevState::Degraded, VdevAux::ErrorsExceeded);
            last.clear_faults();
            assert!(pool.suspended().is_none(), "{:?}", pool.suspended());
            files_are_whole(&pool, &fs, 0..40).await;
            leave(pool, fs).await;
        });
    }
}

/// Limits of vdevs hold for the devices below, and slow operations count where there is one.
#[test]
fn limits_of_vdevs_are_honoured() {
    simulate(async {
        let sim = SimWorld::new(505);
        let (pool, fs, told) = begin(&sim, Layout::Mirror(2)).await;
        write_files(&pool, &fs, 0..40).await;
        let slow = sim.disk("disk0").unwrap();
        let late = FaultEffect::Delay(Duration::from_secs(31));
        let fault = || Fault::new(SimOp::Read, late).within(blocks()).times(1);
        // While it lags it is not read from.
        let read_slowly = async || {
            for _ in 0..5 {
                slow.inject(fault());
                files_are_whole(&pool, &fs, 0..40).await;
                tokio::time::sleep(DIAGNOSED * 2).await;
            }
        };
        read_slowly().await;
        assert_eq!(told.of("fs.zfs.delay").len(), 5);
        is_so(&pool, "disk0", VdevState::Online, VdevAux::None);

        let mirror = pool.status().root.children[0].clone();
        for (name, value) in [("slow_io_n", "4"), ("slow_io_t", "1000")] {
            pool.properties()
                .set_of_vdev(mirror.guid, name, value)
                .await
                .unwrap();
        }
        // Nobody hears of a device that is known to be slow.
        let leaf = mirror.children[0].guid;
        let quiet = async |value| {
            pool.properties()
                .set_of_vdev(leaf, "slow_io_events", value)
                .await
        };
        quiet("off").await.unwrap();
        read_slowly().await;
        assert_eq!(told.of("fs.zfs.delay").len(), 5);
        is_so(&pool, "disk0", VdevState::Online, VdevAux::None);
        quiet("on").await.unwrap();
        read_slowly().await;
        is_so(&pool, "disk0", VdevState::Degraded, VdevAux::ErrorsExceeded);
        let delay = told.of("fs.zfs.delay").pop().unwrap();
        assert_eq!(delay.u64("vdev_slow_io_n"), Some(4));
        assert!(delay.u64("zio_delay").unwrap() >= 31_000_000_000);
        leave(pool, fs).await;
    });
}

/// A disk that fails because it is pulled out is removed, not faulted.
#[test]
fn a_disk_that_is_pulled_out_is_not_at_fault() {
    simulate(async {
        let sim = SimWorld::new(506);
        let (pool, fs, told) = begin(&sim, Layout::Mirror(2)).await;
        write_files(&pool, &fs, 0..3).await;
        let pulled = sim.disk("disk0").unwrap();
        pulled.inject(Fault::new(SimOp::Write, FaultEffect::Error).within(blocks()));
        write_files(&pool, &fs, 3..8).await;
        assert!(told.of("fs.zfs.io").len() >= 10);
        is_so(&pool, "disk0", VdevState::Online, VdevAux::None);
        pulled.set_gone(true);
        write_files(&pool, &fs, 8..40).await;
        is_so(&pool, "disk0", VdevState::Removed, VdevAux::None);
        let classes = told.classes().split_off(2);
        let removed = ["resource.fs.zfs.removed", "resource.fs.zfs.statechange"];
        assert_eq!(classes, removed);
        assert!(told.of("fs.zfs.removed")[0].contains("by_kernel"));
        files_are_whole(&pool, &fs, 0..40).await;
        leave(pool, fs).await;
    });
}

/// What a scrub finds is told and counted, and does not degrade a device: it is being repaired.
#[test]
fn what_a_scrub_finds_does_not_degrade() {
    simulate(async {
        let sim = SimWorld::new(509);
        let (pool, fs, _) = begin(&sim, Layout::Mirror(2)).await;
        write_files(&pool, &fs, 0..40).await;
        leave(pool, fs).await;
        let pool = import(&sim, true).await.unwrap();
        let bad = sim.disk("disk0").unwrap();
        bad.inject(Fault::new(SimOp::Read, FaultEffect::Corrupt).within(blocks()));
        pool.scans().scrub(ScrubCommand::Start).await.unwrap();
        pool.scans().wait_for_scrub(true).await;
        tokio::time::sleep(DIAGNOSED).await;
        let root = pool.status().root;
        let errors = root.children[0].children[0].checksum_errors;
        assert!(errors >= 40, "{errors}");
        is_so(&pool, "disk0", VdevState::Online, VdevAux::None);
        // What programs read counts.
        let fs = open(&sim, &pool).await.unwrap();
        files_are_whole(&pool, &fs, 0..40).await;
        tokio::time::sleep(DIAGNOSED).await;
        is_so(&pool, "disk0", VdevState::Degraded, VdevAux::ErrorsExceeded);
        fs.close().await.unwrap();
        pool.export(false).await.unwrap();
    });
}
