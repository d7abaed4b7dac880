//! Goal: a spare stands in for a device that goes bad, and returns to its list, whatever moment the
//! power goes at; those who use the pool notice nothing, and one spare is never two pools'. Method:
//! scripts in the simulated world, and power cuts at writes and flushes of each change (a sample of
//! them by default, all with `MILLPOND_LONG=1`).

use std::sync::Arc;
use std::time::Duration;

use crate::common::{data, get, open, put};
use crate::topology::{add_disk, find, resilver, shape, spec};
use crate::vdevs::{CUTS, count, moments, power_cycle, until_cut};
use device::sim::{Fault, FaultEffect, SimOp, SimWorld};
use filesystem::Filesystem;
use format::{
    LABEL_BYTES, LABEL_CONFIG_BYTES, LABEL_CONFIG_OFFSET, LABEL_COUNT, LABEL_START_BYTES,
    label_offset,
};
use parking_lot::Mutex;
use pool::{
    AddSpec, CreateSpec, EventSink, FeatureChoice, ImportSpec, LeafSpec, OfflineSpec, Pool,
    PoolError, PoolEvent, ScanSpec, ScrubCommand, TopologyError, VdevAux, VdevClass, VdevLayout,
    VdevSpec, VdevState,
};
use sim::torture::{
    Layout, create, create_told, find as find_pool, host, import, inspect, simulate, zdb,
};

const DISK_MIB: u64 = 96;
const SECOND: Duration = Duration::from_secs(1);

fn leaf(name: &str) -> VdevLayout {
    VdevLayout::Leaf(LeafSpec {
        path: name.to_owned(),
        is_file: false,
    })
}

/// Adds a new disk as a spare.
pub async fn add_spare(sim: &SimWorld, pool: &Pool, name: &str) {
    add_disk(sim, name);
    let spec = AddSpec {
        vdevs: vec![VdevSpec {
            layout: leaf(name),
            class: VdevClass::Spare,
        }],
        ashift: None,
        force: false,
        allow_ashift_mismatch: false,
    };
    pool.add(&spec).await.unwrap();
}

/// How the spares are: names, and whether they are in use.
pub fn spares(pool: &Pool) -> String {
    let spares = pool.status().spares;
    let words: Vec<String> = spares
        .iter()
        .map(|spare| {
            let how = match (spare.state, spare.aux, &spare.used_by) {
                (VdevState::Online, VdevAux::None, None) => "waits".to_owned(),
                (VdevState::Online, VdevAux::Spared, None) => "used".to_owned(),
                (VdevState::Online, VdevAux::Spared, Some(pool)) => format!("used by {pool}"),
                other => format!("{other:?}"),
            };
            format!("{} {how}", spare.name)
        })
        .collect();
    words.join(", ")
}

/// Waits, while txgs come, until something is so.
pub async fn until(pool: &Pool, what: &str, is_so: impl Fn(&Pool) -> bool) {
    for _ in 0..300 {
        if is_so(pool) {
            return;
        }
        pool.sync_config().await.unwrap();
        tokio::time::sleep(SECOND).await;
    }
    panic!("{what}: {} [{}]", shape(pool), spares(pool));
}

/// Whether a disk works and lacks nothing.
pub fn is_whole(pool: &Pool, disk: &str) -> bool {
    find(&pool.status().root, disk)
        .is_some_and(|vdev| vdev.state == VdevState::Online && !vdev.is_stale)
}

/// Writes files of 300 KB, some time apart.
pub async fn write_files(fs: &Filesystem, numbers: std::ops::Range<u64>) {
    for number in numbers {
        let name = format!("file{number}");
        put(fs, &name, &data(number, 300_000)).await.unwrap();
        tokio::time::sleep(SECOND / 4).await;
    }
}

/// Reads those again.
pub async fn files_are_whole(pool: &Pool, fs: &Filesystem, numbers: std::ops::Range<u64>) {
    pool.pipeline().cache().clear();
    for number in numbers {
        let content = get(fs, &format!("file{number}")).await.unwrap();
        assert!(content == data(number, 300_000), "file{number}");
    }
}

/// Scrubs.
pub async fn scrub_finds_nothing(pool: &Pool) {
    pool.scans().scrub(ScrubCommand::Start).await.unwrap();
    pool.scans().wait_for_scrub(true).await;
    let scan = pool.scans().scrub_status().unwrap();
    let root = pool.status().root;
    assert_eq!(
        (scan.errors, scan.repaired_bytes),
        (0, 0),
        "{scan:?} {root:#?}"
    );
}

/// Closes and exports.
pub async fn leave(pool: Arc<Pool>, fs: Arc<Filesystem>) {
    fs.close().await.unwrap();
    pool.export(false).await.unwrap();
}

/// Keeps all events.
#[derive(Default)]
pub struct Told(Mutex<Vec<PoolEvent>>);

impl EventSink for Told {
    fn event(&self, event: PoolEvent) {
        self.0.lock().push(event);
    }
}

impl Told {
    /// What was told of this class.
    pub fn of(&self, class: &str) -> Vec<PoolEvent> {
        let events = self.0.lock();
        let is_it = |event: &&PoolEvent| event.class == class;
        events.iter().filter(is_it).cloned().collect()
    }

    /// What was told of vdevs and resilvers, in order.
    fn classes(&self) -> Vec<String> {
        let events = self.0.lock();
        let words = ["vdev_", "removed", "statechange", "resilver_"];
        let classes = events.iter().map(|event| event.class.clone());
        let mut classes: Vec<String> = classes
            .filter(|class| words.iter().any(|word| class.contains(word)))
            .map(|class| class.rsplit('.').next().unwrap_or("").to_owned())
            .collect();
        classes.dedup();
        classes
    }
}

/// A disk dies under load: the spare that fits best stands in, is resilvered, and goes when the
/// disk is back. Nobody who uses the pool notices; zdb agrees each time.
#[test]
fn a_spare_stands_in_under_load_and_returns() {
    for (seed, layout) in [(601, Layout::Mirror(2)), (602, Layout::Raidz(1, 3))] {
        simulate(async {
            let sim = SimWorld::new(seed);
            let told = Arc::new(Told::default());
            let pool = create_told(&sim, layout, DISK_MIB, told.clone())
                .await
                .unwrap();
            // One too small, one needlessly big, and the right one.
            sim.add_disk("small", 72 << 20).set_sector_bytes(4096);
            sim.add_disk("big", 160 << 20).set_sector_bytes(4096);
            for name in ["small", "big", "spare"] {
                add_spare(&sim, &pool, name).await;
            }
            let fs = open(&sim, &pool).await.unwrap();
            write_files(&fs, 0..20).await;
            pool.sync().await.unwrap();
            let whole = shape(&pool);
            let mut told_before = told.classes().len();
            sim.disk("disk1").unwrap().set_gone(true);
            write_files(&fs, 20..60).await;
            until(&pool, "the spare has everything", |pool| {
                is_whole(pool, "spare")
            })
            .await;
            assert_eq!(shape(&pool), whole.replace("disk1", "spare(disk1 spare)"));
            assert_eq!(spares(&pool), "small waits, big waits, spare used");
            files_are_whole(&pool, &fs, 0..60).await;
            let classes = told.classes().split_off(told_before);
            let words = [
                "removed",
                "statechange",
                "vdev_spare",
                "vdev_attach",
                "resilver_start",
            ];
            assert_eq!(classes[..5], words, "{classes:?}");
            assert_eq!(classes.last().unwrap(), "resilver_finish");
            scrub_finds_nothing(&pool).await;
            // Not by another device, and not removed.
            add_disk(&sim, "other");
            let refused = pool.attach("spare", &spec("other", true)).await;
            assert!(
                matches!(
                    refused,
                    Err(PoolError::Topology(TopologyError::OnlyBySpare { .. }))
                ),
                "{refused:?}"
            );
            let refused = pool.remove("spare").await;
            assert!(
                matches!(refused, Err(PoolError::CannotRemove { .. })),
                "{refused:?}"
            );

            // What the spare knows outlasts an import.
            leave(pool, fs).await;
            inspect(&sim, "with a spare in use", true).await.unwrap();
            zdb(&sim).unwrap();
            let pool = import(&sim, false).await.unwrap();
            let fs = open(&sim, &pool).await.unwrap();
            assert_eq!(spares(&pool), "small waits, big waits, spare used");
            write_files(&fs, 60..70).await;
            told_before = told.classes().len();

            // The disk is back, and lacks what was written since.
            sim.disk("disk1").unwrap().set_gone(false);
            assert_eq!(pool.look_for_devices().await.unwrap(), 1);
            until(&pool, "the spare is back", |pool| shape(pool) == whole).await;
            until(&pool, "all wait", |pool| {
                spares(pool) == "small waits, big waits, spare waits"
            })
            .await;
            assert!(is_whole(&pool, "disk1"));
            assert_eq!(told.classes().len(), told_before, "another import");
            files_are_whole(&pool, &fs, 0..70).await;
            scrub_finds_nothing(&pool).await;
            leave(pool, fs).await;
            inspect(&sim, "without", true).await.unwrap();
            zdb(&sim).unwrap();
        });
    }
}

/// A disk that lies is degraded: a spare stands in, and goes with the clear. A second one that
/// fails while the spare is in use gets none; a spare that dies is replaced by the next.
#[test]
fn spares_stand_in_for_whatever_is_bad() {
    simulate(async {
        let sim = SimWorld::new(603);
        let pool = create(&sim, Layout::Raidz(2, 5), DISK_MIB, false)
            .await
            .unwrap();
        let whole = shape(&pool);
        for name in ["s0", "s1"] {
            add_spare(&sim, &pool, name).await;
        }
        let fs = open(&sim, &pool).await.unwrap();
        write_files(&fs, 0..40).await;
        pool.sync().await.unwrap();
        let bad = sim.disk("disk3").unwrap();
        let blocks = LABEL_START_BYTES..(DISK_MIB << 20) - 2 * LABEL_BYTES;
        bad.inject(Fault::new(SimOp::Read, FaultEffect::Corrupt).within(blocks));
        files_are_whole(&pool, &fs, 0..40).await;
        until(&pool, "a spare for the liar", |pool| is_whole(pool, "s0")).await;
        let disk3 = find(&pool.status().root, "disk3").unwrap().clone();
        assert_eq!(
            (disk3.state, disk3.aux),
            (VdevState::Degraded, VdevAux::ErrorsExceeded)
        );
        assert_eq!(shape(&pool), whole.replace("disk3", "spare(disk3 s0)"));

        // That it lies is known after an import as well (`vdev_alloc`).
        leave(pool, fs).await;
        let pool = import(&sim, false).await.unwrap();
        let fs = open(&sim, &pool).await.unwrap();
        let disk3 = find(&pool.status().root, "disk3").unwrap().clone();
        assert_eq!(
            (disk3.state, disk3.aux),
            (VdevState::Degraded, VdevAux::ErrorsExceeded)
        );
        assert_eq!(spares(&pool), "s0 used, s1 waits");

        // The spare dies as well.
        sim.disk("s0").unwrap().set_gone(true);
        write_files(&fs, 40..50).await;
        until(&pool, "a spare for the spare", |pool| is_whole(pool, "s1")).await;
        assert_eq!(shape(&pool), whole.replace("disk3", "spare(disk3 s0 s1)"));
        // Nothing is left for this one, which a person takes for failed.
        let fault = OfflineSpec {
            temporary: true,
            fault: true,
        };
        pool.offline("disk0", fault).await.unwrap();
        write_files(&fs, 50..52).await;
        assert_eq!(spares(&pool), "s0 used, s1 used");

        bad.clear_faults();
        pool.clear(None).await.unwrap();
        until(&pool, "all is as it was", |pool| shape(pool) == whole).await;
        sim.disk("s0").unwrap().set_gone(false);
        pool.look_at_spares().await;
        assert_eq!(spares(&pool), "s0 waits, s1 waits");
        until(&pool, "resilvered", |pool| {
            is_whole(pool, "disk0") && is_whole(pool, "disk3")
        })
        .await;
        files_are_whole(&pool, &fs, 0..52).await;
        // What a disk that lies said of the rest of a block's last sector, which no checksum is of,
        // may have gone into parity.
        pool.scans().scrub(ScrubCommand::Start).await.unwrap();
        pool.scans().wait_for_scrub(true).await;
        assert_eq!(pool.scans().scrub_status().unwrap().errors, 0);
        scrub_finds_nothing(&pool).await;
        leave(pool, fs).await;
        inspect(&sim, "at last", true).await.unwrap();
        zdb(&sim).unwrap();
    });
}

/// What went bad while nobody looked, and a new disk in an old one's place.
#[test]
fn a_spare_stands_in_at_the_import() {
    simulate(async {
        let sim = SimWorld::new(604);
        let pool = create(&sim, Layout::Mirror(2), DISK_MIB, false)
            .await
            .unwrap();
        add_spare(&sim, &pool, "spare").await;
        pool.properties().set("autoreplace", "on").await.unwrap();
        let fs = open(&sim, &pool).await.unwrap();
        write_files(&fs, 0..10).await;
        leave(pool, fs).await;
        sim.disk("disk1").unwrap().set_gone(true);
        // Who only looks changes nothing.
        inspect(&sim, "a disk is missing", true).await.unwrap();
        let pool = import(&sim, false).await.unwrap();
        until(&pool, "a spare is there", |pool| is_whole(pool, "spare")).await;
        assert_eq!(shape(&pool), "mirror(disk0 spare(disk1 spare))");
        let fs = open(&sim, &pool).await.unwrap();
        write_files(&fs, 10..20).await;
        assert_eq!(
            pool.look_for_devices().await.unwrap(),
            0,
            "nothing is there"
        );
        sim.add_disk("disk1", (2 * DISK_MIB) << 20)
            .set_sector_bytes(4096);
        assert_eq!(pool.look_for_devices().await.unwrap(), 1);
        assert_eq!(
            shape(&pool),
            "mirror(disk0 spare(replacing(disk1/old disk1) spare))"
        );
        until(&pool, "the new one is alone", |pool| {
            shape(pool) == "mirror(disk0 disk1)" && spares(pool) == "spare waits"
        })
        .await;
        files_are_whole(&pool, &fs, 0..20).await;
        scrub_finds_nothing(&pool).await;
        leave(pool, fs).await;
        inspect(&sim, "with another disk", true).await.unwrap();
        zdb(&sim).unwrap();
    });
}

/// A disk whose labels are lost has its data still: it is no new one in its own place.
#[test]
fn a_disk_without_labels_but_with_uberblocks_is_not_taken() {
    simulate(async {
        let sim = SimWorld::new(607);
        let pool = create(&sim, Layout::Mirror(2), DISK_MIB, false)
            .await
            .unwrap();
        pool.properties().set("autoreplace", "on").await.unwrap();
        pool.export(false).await.unwrap();
        let device = sim.world().opener.open("disk1", false).await.unwrap();
        for label in 0..LABEL_COUNT {
            let start = label_offset(device.size_bytes(), label).unwrap();
            let zeros = vec![0u8; LABEL_CONFIG_BYTES];
            let written = device.write(start + LABEL_CONFIG_OFFSET, zeros.into());
            written.await.unwrap();
        }
        device.flush().await.unwrap();
        drop(device);
        let pool = import(&sim, false).await.unwrap();
        assert_eq!(pool.look_for_devices().await.unwrap(), 0);
        assert_eq!(shape(&pool), "mirror(disk0 disk1)");
        pool.export(false).await.unwrap();
    });
}

/// Spares that are left to people stand in only when they are told to, after an import as well, and
/// return as others do.
#[test]
fn spares_that_are_left_to_people_wait_for_them() {
    simulate(async {
        let sim = SimWorld::new(651);
        let pool = create(&sim, Layout::Mirror(2), DISK_MIB, false)
            .await
            .unwrap();
        pool::leave_spares_to_people(&pool);
        add_spare(&sim, &pool, "spare").await;
        sim.disk("disk1").unwrap().set_gone(true);
        let nothing_stands_in = async |pool: &Pool| {
            for _ in 0..5 {
                pool.sync_config().await.unwrap();
                tokio::time::sleep(SECOND).await;
            }
            assert_eq!(shape(pool), "mirror(disk0 disk1)");
            assert_eq!(spares(pool), "spare waits");
        };
        nothing_stands_in(&pool).await;
        pool.clear(None).await.unwrap();
        nothing_stands_in(&pool).await;
        pool.export(false).await.unwrap();

        let mut import = ImportSpec::new(find_pool(&sim).await.unwrap(), host());
        import.spares_by_hand = true;
        let pool = Pool::import(&sim.world(), import).await.unwrap();
        nothing_stands_in(&pool).await;
        pool.attach("disk1", &spec("spare", true)).await.unwrap();
        until(&pool, "it stands in", |pool| is_whole(pool, "spare")).await;
        assert_eq!(spares(&pool), "spare used");
        sim.disk("disk1").unwrap().set_gone(false);
        assert_eq!(pool.look_for_devices().await.unwrap(), 1);
        until(&pool, "it is back", |pool| spares(pool) == "spare waits").await;
        pool.export(false).await.unwrap();
    });
}

/// Two pools have one spare: one uses it at a time, and when that one keeps it, the other one
/// knows.
#[test]
fn two_pools_share_a_spare() {
    simulate(async {
        let sim = SimWorld::new(605);
        let first = create(&sim, Layout::Mirror(2), DISK_MIB, false)
            .await
            .unwrap();
        add_spare(&sim, &first, "spare").await;
        for name in ["other0", "other1"] {
            add_disk(&sim, name);
        }
        let both = ["other0", "other1"].map(|name| LeafSpec {
            path: name.to_owned(),
            is_file: false,
        });
        let vdev = |layout, class| VdevSpec { layout, class };
        let create = CreateSpec {
            name: "second".into(),
            vdevs: vec![
                vdev(VdevLayout::Mirror(both.to_vec()), VdevClass::Normal),
                vdev(leaf("spare"), VdevClass::Spare),
            ],
            properties: Vec::new(),
            features: FeatureChoice::All,
            root_properties: Vec::new(),
            root_init: Arc::new(filesystem::ZplInit::new()),
            altroot: None,
            force: false,
            host: host(),
            events: None,
            cache: None,
        };
        let second = Pool::create(&sim.world(), create).await.unwrap();
        let guid = |pool: &Pool| pool.status().spares[0].guid;
        assert_eq!(guid(&first), guid(&second));
        let name = first.name();

        sim.disk("disk1").unwrap().set_gone(true);
        first.sync_config().await.unwrap();
        until(&first, "the first one has it", |pool| {
            is_whole(pool, "spare")
        })
        .await;
        second.look_at_spares().await;
        assert_eq!(spares(&first), "spare used");
        assert_eq!(spares(&second), format!("spare used by {name}"));
        sim.disk("other0").unwrap().set_gone(true);
        for _ in 0..5 {
            second.sync_config().await.unwrap();
            tokio::time::sleep(SECOND).await;
        }
        assert_eq!(shape(&second), "mirror(other0 other1)");
        let refused = second.attach("other1", &spec("spare", true)).await;
        assert!(
            matches!(refused, Err(PoolError::DeviceInUse { .. })),
            "{refused:?}"
        );

        // It returns, and the other pool takes it.
        sim.disk("disk1").unwrap().set_gone(false);
        assert_eq!(first.look_for_devices().await.unwrap(), 1);
        until(&first, "it is back", |pool| spares(pool) == "spare waits").await;
        second.clear(None).await.unwrap();
        until(&second, "the second one has it", |pool| {
            is_whole(pool, "spare")
        })
        .await;
        first.look_at_spares().await;
        assert_eq!(spares(&first), "spare used by second");
        // For good.
        second.detach("other0").await.unwrap();
        assert_eq!(shape(&second), "mirror(spare other1)");
        assert_eq!(spares(&second), "");
        first.look_at_spares().await;
        assert_eq!(spares(&first), "spare used by second");
        first.remove("spare").await.unwrap();
        second.export(false).await.unwrap();
        first.export(false).await.unwrap();

        // Each is found, without the other's devices.
        let spec = ScanSpec {
            paths: sim.disk_names(),
            ..ScanSpec::default()
        };
        for found in pool::scan(&sim.world(), &spec).await.unwrap() {
            let pool = Pool::import(&sim.world(), ImportSpec::new(found, host()))
                .await
                .unwrap();
            assert_eq!(pool.status().root.state, VdevState::Online);
            pool.export(false).await.unwrap();
        }
    });
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Step {
    /// A spare stands in.
    StandIn,
    /// It is told to go.
    Return,
    /// It goes by itself, as the device works again.
    ReturnAlone,
    /// What it stands in for goes.
    Stay,
    /// That was replaced.
    Replaced,
}

const SPARED: &str = "mirror(disk0 spare(disk1 spare))";
const PLAIN: &str = "mirror(disk0 disk1)";

impl Step {
    /// The pool's shape and its spares, before and after.
    fn states(self) -> [(&'static str, &'static str); 2] {
        match self {
            Step::StandIn => [(PLAIN, "spare waits"), (SPARED, "spare used")],
            Step::Return | Step::ReturnAlone => [(SPARED, "spare used"), (PLAIN, "spare waits")],
            Step::Stay => [(SPARED, "spare used"), ("mirror(disk0 spare)", "")],
            Step::Replaced => [
                (
                    "mirror(disk0 spare(replacing(disk1 new) spare))",
                    "spare used",
                ),
                ("mirror(disk0 new)", "spare waits"),
            ],
        }
    }

    async fn prepare(self, sim: &SimWorld) -> (Arc<Pool>, Arc<Filesystem>) {
        add_disk(sim, "new");
        let pool = create(sim, Layout::Mirror(2), DISK_MIB, false)
            .await
            .unwrap();
        pool.scans().hold(true);
        add_spare(sim, &pool, "spare").await;
        let fs = open(sim, &pool).await.unwrap();
        let ino = put(&fs, "old", &data(1, 500_000)).await.unwrap();
        fs.sync_file(ino).await.unwrap();
        pool.sync().await.unwrap();
        if self != Step::StandIn {
            pool.attach("disk1", &spec("spare", true)).await.unwrap();
            resilver(&pool, "spare").await;
        }
        if self == Step::Replaced {
            pool.attach("disk1", &spec("new", true)).await.unwrap();
        }
        pool.sync().await.unwrap();
        put(&fs, "newer", &data(2, 300_000)).await.unwrap();
        (pool, fs)
    }

    async fn run(self, pool: &Pool, fs: &Filesystem, file: &str) -> Result<(), PoolError> {
        let changing = async {
            match self {
                Step::StandIn => pool.attach("disk1", &spec("spare", true)).await?,
                Step::Return => pool.detach("spare").await?,
                Step::Stay => pool.detach("disk1").await?,
                Step::ReturnAlone => pool.clear(None).await?,
                Step::Replaced => resilver(pool, "new").await,
            }
            while shape(pool) != self.states()[1].0 {
                pool.sync_config().await?;
            }
            pool.sync().await
        };
        let content = data(4, 1_000_000);
        let writing = put(fs, file, &content);
        let (changed, written) = tokio::join!(changing, writing);
        written.unwrap();
        changed
    }
}

#[test]
fn a_spare_comes_or_goes_or_does_not() {
    for step in [
        Step::StandIn,
        Step::Return,
        Step::ReturnAlone,
        Step::Stay,
        Step::Replaced,
    ] {
        let [before, after] = step.states();
        let state = |pool: &Pool| (shape(pool), spares(pool));
        let total = simulate(async {
            let sim = SimWorld::new(1);
            let (pool, fs) = step.prepare(&sim).await;
            assert_eq!(state(&pool), (before.0.to_owned(), before.1.to_owned()));
            let start = (count(&sim, SimOp::Write), count(&sim, SimOp::Flush));
            step.run(&pool, &fs, "during").await.unwrap();
            let total = (
                count(&sim, SimOp::Write) - start.0,
                count(&sim, SimOp::Flush) - start.1,
            );
            until(&pool, "it is done", |pool| {
                state(pool) == (after.0.to_owned(), after.1.to_owned())
            })
            .await;
            assert!(get(&fs, "old").await.unwrap() == data(1, 500_000));
            fs.close().await.unwrap();
            pool.export(false).await.unwrap();
            total
        });
        let mut outcomes = [0, 0];
        for (op, how) in CUTS {
            let most = if op == SimOp::Write { total.0 } else { total.1 };
            let sparse = match std::env::var_os("MILLPOND_LONG") {
                Some(_) => 1,
                None => 4,
            };
            for at in moments(most).step_by(sparse) {
                let is_after = simulate(async {
                    let sim = SimWorld::new(at);
                    let (pool, fs) = step.prepare(&sim).await;
                    sim.cut_power_at(op, at, how);
                    let about = format!("{step:?} {op:?} {at} {how:?}");
                    let changed = until_cut(&sim, step.run(&pool, &fs, "during")).await;
                    let is_done = changed.is_some();
                    if let Some(result) = changed {
                        result.unwrap();
                    }
                    drop((fs, pool));
                    power_cycle(&sim).await;
                    inspect(&sim, &about, false).await.unwrap();
                    let pool = import(&sim, false)
                        .await
                        .unwrap_or_else(|error| panic!("{about}: {error}"));
                    pool.scans().hold(true);
                    let found = shape(&pool);
                    // What was to go by itself may go as soon as the pool is open.
                    let is_after = found == after.0;
                    assert!(
                        is_after || found == before.0 && !is_done,
                        "{about}: {found}"
                    );
                    let expected = if is_after { after.1 } else { before.1 };
                    pool.look_at_spares().await;
                    assert_eq!(spares(&pool), expected, "{about}");
                    let root = pool.status().root;
                    assert_eq!(root.state, VdevState::Online, "{about}: {root:?}");
                    let fs = open(&sim, &pool).await.unwrap();
                    assert!(get(&fs, "old").await.unwrap() == data(1, 500_000));
                    if !is_after {
                        let done = step.run(&pool, &fs, "again").await;
                        done.unwrap_or_else(|error| panic!("{about}: again: {error}"));
                    }
                    pool.scans().hold(false);
                    until(&pool, &about, |pool| {
                        state(pool) == (after.0.to_owned(), after.1.to_owned())
                    })
                    .await;
                    let last = find(&pool.status().root, "spare").map(|_| "spare");
                    let last = last.unwrap_or(if step == Step::Replaced {
                        "new"
                    } else {
                        "disk1"
                    });
                    until(&pool, &about, |pool| is_whole(pool, last)).await;
                    let ino = put(&fs, "more", &data(3, 3_000_000)).await.unwrap();
                    fs.sync_file(ino).await.unwrap();
                    fs.close().await.unwrap();
                    pool.export(false).await.unwrap();
                    drop((fs, pool));
                    inspect(&sim, &about, true).await.unwrap();
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
