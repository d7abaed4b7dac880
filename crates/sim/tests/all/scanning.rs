//! Goal: scrubs, resilvers and rebuilds of disks that turn go at the disks' rate, also in a pool
//! that was used, and cost those who read meanwhile little. Method: the real engine on models of
//! hard disks of 2010, everything cold, in virtual time.
//!
//! What is right and fair: a scrub reads all that is allocated on each disk, a resilver writes it
//! to one, each beside walking the pool and the transaction groups that all of it is part of. So a
//! large pool comes near the rate at which one disk gives a sequence of large requests, and what is
//! asked for of this small one is less. Where a pool was used, disks pass over what is free.

use std::sync::Arc;
use std::time::Duration;

use crate::readahead::random;
use crate::topology::{find, spec};
use device::sim::model::{Access, HddSpec, Load, Machine, measure};
use device::sim::{Latency, Model, SimOp, SimWorld};
use filesystem::{Caller, Filesystem, ZplInit};
use pool::{AttachSpec, CreateSpec, FeatureChoice, ImportSpec, LeafSpec, Pool, ScanSpec};
use pool::{ScanState, ScrubCommand, VdevClass, VdevLayout, VdevSpec};
use sim::rng::Rng;
use sim::torture::{POOL, host, simulate};
use volume::{Volume, ZvolInit};

/// The disks.
const HARD_DISK: Model = Model::Hdd(HddSpec::WD_RE3_500GB);
const K: u64 = 1 << 10;
const M: u64 = 1 << 20;
const DISK_BYTES: u64 = 32 << 30;
/// A file of large records and a volume of small blocks.
const FILE_BYTES: u64 = 96 * M;
const RECORD: u64 = 128 * K;
const VOLUME_BYTES: u64 = 48 * M;
const BLOCK: u64 = 16 * K;
const FILES: &str = "tank/files";
const VOLUME: &str = "tank/volume";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Layout {
    Mirror,
    Raidz,
}

impl Layout {
    fn disks(self) -> u64 {
        match self {
            Layout::Mirror => 2,
            Layout::Raidz => 4,
        }
    }

    /// Disks whose rate is that of a scrub, by allocated bytes.
    fn scrubbed_disks(self) -> u64 {
        match self {
            Layout::Mirror => 1,
            Layout::Raidz => 4,
        }
    }
}

/// A pool whose disks are slow from when it is filled on, and the disk `new` beside it.
struct Rig {
    sim: SimWorld,
    pool: Arc<Pool>,
    layout: Layout,
}

impl Rig {
    async fn new(layout: Layout) -> Rig {
        let sim = SimWorld::in_microseconds(3);
        let names: Vec<String> = (0..layout.disks()).map(|at| format!("disk{at}")).collect();
        for name in names.iter().map(String::as_str).chain(["new"]) {
            sim.add_disk(name, DISK_BYTES).set_latency(Latency::NONE);
        }
        let leaf = |name: &String| LeafSpec {
            path: name.clone(),
            is_file: false,
        };
        let leaves = names.iter().map(leaf).collect();
        let vdev = VdevSpec {
            layout: match layout {
                Layout::Mirror => VdevLayout::Mirror(leaves),
                Layout::Raidz => VdevLayout::Raidz { parity: 1, leaves },
            },
            class: VdevClass::Normal,
        };
        let create = CreateSpec {
            name: POOL.into(),
            vdevs: vec![vdev],
            properties: Vec::new(),
            features: FeatureChoice::All,
            root_properties: vec![("compression".into(), "off".into())],
            root_init: Arc::new(ZplInit::new()),
            altroot: None,
            force: false,
            host: host(),
            cache: None,
            events: None,
        };
        let pool = Pool::create(&sim.world(), create).await.unwrap();
        Rig { sim, pool, layout }
    }

    async fn files(&self) -> Arc<Filesystem> {
        let dataset = self.pool.dsl().open_dataset(FILES).await.unwrap();
        Filesystem::open(dataset, self.sim.world()).await.unwrap()
    }

    async fn volume(&self) -> Arc<Volume> {
        let dataset = self.pool.dsl().open_dataset(VOLUME).await.unwrap();
        Volume::open(dataset, self.sim.world()).await.unwrap()
    }

    /// A file and a volume, written in sequence.
    async fn fill(&self) {
        let datasets = self.pool.dsl().datasets();
        let init = Arc::new(ZplInit::new());
        let created = datasets.create_with_key(FILES, &[], init, None).await;
        created.unwrap();
        let files = self.files().await;
        let file = files.create(files.root(), b"file", 0o600, Caller::ROOT);
        let ino = file.await.unwrap().ino;
        let init = Arc::new(ZvolInit::new(VOLUME_BYTES, BLOCK as u32));
        let datasets = self.pool.dsl().datasets();
        let created = datasets.create_with_key(VOLUME, &[], init, None).await;
        created.unwrap();
        let volume = self.volume().await;
        let mut rng = Rng::new(5);
        for offset in (0..FILE_BYTES).step_by(M as usize) {
            let data = random(&mut rng, M as usize);
            let written = files.write(ino, offset, data, false, Caller::ROOT);
            written.await.unwrap();
        }
        self.pool.sync().await.unwrap();
        for offset in (0..VOLUME_BYTES).step_by(M as usize) {
            let data = random(&mut rng, M as usize);
            volume.write(offset, data, false).await.unwrap();
        }
        files.close().await.unwrap();
        volume.close().await.unwrap();
        self.pool.sync().await.unwrap();
    }

    /// Writes half of the file's records and two thirds of the volume's blocks anew, here and
    /// there, in many transaction groups.
    async fn age(&self) {
        let (files, volume) = (self.files().await, self.volume().await);
        let file = files.lookup(files.root(), b"file").await.unwrap().ino;
        let mut rng = Rng::new(7);
        for _ in 0..24 {
            for _ in 0..16 {
                let offset = rng.below(FILE_BYTES / RECORD) * RECORD;
                let data = random(&mut rng, RECORD as usize);
                let written = files.write(file, offset, data, false, Caller::ROOT);
                written.await.unwrap();
            }
            for _ in 0..85 {
                let offset = rng.below(VOLUME_BYTES / BLOCK) * BLOCK;
                let data = random(&mut rng, BLOCK as usize);
                volume.write(offset, data, false).await.unwrap();
            }
            self.pool.sync().await.unwrap();
        }
        files.close().await.unwrap();
        volume.close().await.unwrap();
        self.pool.sync().await.unwrap();
    }

    /// Exports the pool and imports it again: nothing is in memory then. Disks are slow from now
    /// on.
    async fn restart(&mut self) {
        self.pool.export(false).await.unwrap();
        let paths = self.sim.disk_names();
        for path in &paths {
            self.sim.disk(path).unwrap().set_model(&HARD_DISK);
        }
        let scan = ScanSpec {
            paths,
            ..ScanSpec::default()
        };
        let found = pool::scan(&self.sim.world(), &scan).await.unwrap();
        let found = found.into_iter().next().unwrap();
        let import = ImportSpec::new(found, host());
        self.pool = Pool::import(&self.sim.world(), import).await.unwrap();
    }

    /// Bytes a second of large requests in sequence to one disk.
    fn disk_rate(&self) -> f64 {
        let load = Load {
            op: SimOp::Read,
            access: Access::Sequential,
            block_bytes: M,
            depth: 4,
            range_bytes: 0..256 * M,
            count: 256,
            seed: 1,
        };
        let mut machine = Machine::new(&HARD_DISK, DISK_BYTES);
        measure(&mut machine, 0, &load).bytes_per_second
    }

    async fn until(&self, is: impl Fn(&Pool) -> bool) {
        while !is(&self.pool) {
            let clock = self.sim.world().clock;
            clock.sleep(Duration::from_millis(5)).await;
        }
    }

    /// Until a scan has read something.
    async fn until_begun(&self) {
        let has_read = |pool: &Pool| {
            let status = pool.scans().scrub_status();
            status.is_some_and(|at| at.state == ScanState::Scanning && at.issued_bytes > 0)
        };
        self.until(has_read).await;
    }

    /// Scrubs; at what part of the disks' rate.
    async fn scrub(&self) -> f64 {
        self.pool.scans().scrub(ScrubCommand::Start).await.unwrap();
        self.until_begun().await;
        let begun = self.sim.elapsed();
        self.pool.scans().wait_for_scrub(true).await;
        let took = (self.sim.elapsed() - begun).as_secs_f64();
        let numbers = self.pool.scans().scrub_numbers().unwrap();
        assert_eq!(numbers.errors, 0);
        assert!(numbers.verified_bytes > FILE_BYTES + VOLUME_BYTES);
        let disks = self.layout.scrubbed_disks() as f64;
        numbers.verified_bytes as f64 / took / self.disk_rate() / disks
    }

    /// Replaces a disk by another one; at what part of its rate.
    async fn resilver(&self, from: &str, to: &str) -> f64 {
        self.pool.attach(from, &spec(to, true)).await.unwrap();
        self.until_begun().await;
        let begun = self.sim.elapsed();
        self.pool.scans().wait_for_scrub(true).await;
        let took = (self.sim.elapsed() - begun).as_secs_f64();
        let status = self.pool.scans().scrub_status().unwrap();
        assert_eq!((status.state, status.errors), (ScanState::Finished, 0));
        while find(&self.pool.status().root, from).is_some() {
            self.pool.sync_config().await.unwrap();
        }
        status.repaired_bytes as f64 / took / self.disk_rate()
    }
}

/// A resilver and a scrub of a pool just filled, then of one that was used; at least these parts of
/// the disks' rate.
fn scan(layout: Layout, least: [f64; 4]) {
    simulate(async {
        let mut rig = Rig::new(layout).await;
        rig.fill().await;
        let mut rates = Vec::new();
        for (from, to) in [("disk1", "new"), ("new", "disk1")] {
            rig.restart().await;
            let scrubbed = rig.scrub().await;
            rig.restart().await;
            rig.sim.start_log();
            let resilvered = rig.resilver(from, to).await;
            let log = rig.sim.take_log();
            let sizes = |op: SimOp, disk: &str| -> (u64, u64) {
                let of_disk = log.iter().filter(|at| at.op == op && *at.disk == *disk);
                of_disk.fold((0, 0), |(count, bytes), at| {
                    (count + 1, bytes + at.length_bytes)
                })
            };
            let (reads, writes) = (sizes(SimOp::Read, "disk0"), sizes(SimOp::Write, to));
            println!("{layout:?}: scrub {scrubbed:.2}, resilver {resilvered:.2} of a disk");
            println!("resilver: reads of disk0 {reads:?}, writes {writes:?} (operations, bytes)");
            rates.extend([resilvered, scrubbed]);
            if to == "new" {
                for name in rig.sim.disk_names() {
                    let disk = rig.sim.disk(&name).unwrap();
                    disk.set_latency(Latency::NONE);
                }
                rig.age().await;
            }
        }
        rig.pool.export(false).await.unwrap();
        let is_enough = |(rate, least): (&f64, &f64)| rate >= least;
        assert!(rates.iter().zip(&least).all(is_enough), "{rates:.2?}");
    });
}

#[test]
fn mirrors_are_scanned_at_the_disks_rate() {
    scan(Layout::Mirror, [0.6, 0.6, 0.3, 0.4]);
}

#[test]
fn raidz_is_scanned_at_the_disks_rate() {
    // What is next to what on so small a pool makes 0.1 of a difference.
    scan(Layout::Raidz, [0.4, 0.5, 0.25, 0.35]);
}

/// No block pointers are followed.
#[test]
fn mirrors_are_rebuilt_at_the_disks_rate() {
    simulate(async {
        let mut rig = Rig::new(Layout::Mirror).await;
        rig.fill().await;
        rig.restart().await;
        let begun = rig.sim.elapsed();
        let sequential = AttachSpec {
            sequential: true,
            ..spec("new", false)
        };
        rig.pool.attach("disk1", &sequential).await.unwrap();
        rig.until(|pool| pool.scans().is_rebuilding()).await;
        rig.until(|pool| !pool.scans().is_rebuilding()).await;
        let took = (rig.sim.elapsed() - begun).as_secs_f64();
        let rate = (FILE_BYTES + VOLUME_BYTES) as f64 / took / rig.disk_rate();
        println!("rebuilt at {rate:.2} of a disk");
        // Of the scrub that follows.
        let _ = rig.pool.scans().scrub(ScrubCommand::Stop).await;
        rig.pool.export(false).await.unwrap();
        assert!(rate >= 0.4, "{rate:.2}");
    });
}

async fn scrub_on(pool: &Pool) {
    loop {
        pool.scans().scrub(ScrubCommand::Start).await.unwrap();
        pool.scans().wait_for_scrub(true).await;
    }
}

/// Who reads at random waits for what a scrub is doing at that moment, which is half of the time
/// something, and not long; and the disk's arm comes from further away than from another of its
/// own reads, which all lie close together here.
#[test]
fn a_scrub_costs_readers_little() {
    simulate(async {
        let mut rig = Rig::new(Layout::Mirror).await;
        rig.fill().await;
        rig.restart().await;
        let volume = rig.volume().await;
        let mut rng = Rng::new(11);
        // No block twice: what was read is in memory.
        let mut blocks: Vec<u64> = (0..VOLUME_BYTES / BLOCK).collect();
        for at in (1..blocks.len()).rev() {
            blocks.swap(at, rng.below(at as u64 + 1) as usize);
        }
        let mean_ms = async |blocks: &[u64]| {
            let begun = rig.sim.elapsed();
            for block in blocks {
                volume.read(block * BLOCK, BLOCK as usize).await.unwrap();
            }
            (rig.sim.elapsed() - begun).as_secs_f64() * 1e3 / blocks.len() as f64
        };
        let quiet = mean_ms(&blocks[..300]).await;
        let busy = tokio::select! {
            biased;
            busy = mean_ms(&blocks[300..900]) => busy,
            () = scrub_on(&rig.pool) => unreachable!("it scrubs for ever"),
        };
        let numbers = rig.pool.scans().scrub_numbers().unwrap();
        println!("{quiet:.1} ms a read, {busy:.1} ms beside a scrub; {numbers:?}");
        // The last one may just be done.
        let _ = rig.pool.scans().scrub(ScrubCommand::Stop).await;
        volume.close().await.unwrap();
        rig.pool.export(false).await.unwrap();
        assert!(numbers.verified_bytes > 0);
        assert!(busy < quiet * 2.5, "{busy} {quiet}");
    });
}
