//! Goal: whoever reads in small pieces gets what slow disks give to large requests: files and
//! volumes forward, backward, in several streams and with strides; directories with all about their
//! entries; streams of datasets. Who reads at random gets nothing more than was asked for. Method:
//! the real engine on models of hard disks of 2010, everything cold, in virtual time.
//!
//! What is right and fair: large requests to a disk alone come at its media rate. A mirror has its
//! blocks on all its disks alike, so a stream is worth one disk of each mirror: the others pass
//! over what they do not read. RAID-Z has parity among its data, which takes as much of a disk's
//! time as what is read: a stream is worth as many disks as hold data.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use dataset::PropertyChange;
use device::sim::model::{Access, HddSpec, Load, Machine, measure};
use device::sim::{Latency, Model, SimOp, SimWorld};
use filesystem::{Caller, Filesystem, SetAttributes, ZplInit};
use pool::{CreateSpec, FeatureChoice, ImportSpec, LeafSpec, Pool, ScanSpec};
use pool::{VdevClass, VdevLayout, VdevSpec};
use sim::rng::Rng;
use sim::torture::{POOL, host, simulate};
use stream::{Progress, SendOptions};
use volume::{Volume, ZvolInit};

/// The disks.
const HARD_DISK: Model = Model::Hdd(HddSpec::WD_RE3_500GB);
const K: u64 = 1 << 10;
const M: u64 = 1 << 20;
const DISK_BYTES: u64 = 32 << 30;
/// What is read from: a file and a volume of this size.
const SET_BYTES: u64 = 64 * M;
const FILES: &str = "tank/files";
const VOLUME: &str = "tank/volume";

#[derive(Clone, Copy)]
enum Layout {
    /// Two mirrors of two disks each.
    Mirrors,
    /// One vdev of four disks with one parity.
    Raidz,
}

impl Layout {
    /// Disks that a stream is worth.
    fn disks(self) -> u64 {
        match self {
            Layout::Mirrors => 2,
            Layout::Raidz => 3,
        }
    }

    /// What part of the disks' rate files and volumes are read at, at least. Blocks of 16 KiB on
    /// RAID-Z are four sectors and up to two of parity and padding, which are passed over.
    fn least(self) -> (f64, f64) {
        match self {
            Layout::Mirrors => (0.9, 0.7),
            Layout::Raidz => (0.75, 0.5),
        }
    }

    fn vdevs(self, names: &[String]) -> Vec<VdevSpec> {
        let leaf = |name: &String| LeafSpec {
            path: name.clone(),
            is_file: false,
        };
        let vdev = |layout| VdevSpec {
            layout,
            class: VdevClass::Normal,
        };
        match self {
            Layout::Mirrors => names
                .chunks(2)
                .map(|pair| vdev(VdevLayout::Mirror(pair.iter().map(leaf).collect())))
                .collect(),
            Layout::Raidz => vec![vdev(VdevLayout::Raidz {
                parity: 1,
                leaves: names.iter().map(leaf).collect(),
            })],
        }
    }
}

/// A pool whose disks are slow from when it is filled on.
struct Rig {
    sim: SimWorld,
    pool: Arc<Pool>,
    layout: Layout,
}

impl Rig {
    async fn new(layout: Layout) -> Rig {
        let sim = SimWorld::in_microseconds(3);
        let names: Vec<String> = (0..4).map(|disk| format!("disk{disk}")).collect();
        for name in &names {
            sim.add_disk(name, DISK_BYTES).set_latency(Latency::NONE);
        }
        let spec = CreateSpec {
            name: POOL.into(),
            vdevs: layout.vdevs(&names),
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
        let pool = Pool::create(&sim.world(), spec).await.unwrap();
        Rig { sim, pool, layout }
    }

    async fn create_files(&self) -> Arc<Filesystem> {
        let datasets = self.pool.dsl().datasets();
        let init = Arc::new(ZplInit::new());
        let created = datasets.create_with_key(FILES, &[], init, None).await;
        created.unwrap();
        self.files().await
    }

    /// A file and a volume, filled.
    async fn fill(&self) {
        let files = self.create_files().await;
        let file = files.create(files.root(), b"file", 0o600, Caller::ROOT);
        let ino = file.await.unwrap().ino;
        let datasets = self.pool.dsl().datasets();
        let init = Arc::new(ZvolInit::new(SET_BYTES, 16 * K as u32));
        let created = datasets.create_with_key(VOLUME, &[], init, None).await;
        created.unwrap();
        let volume = self.volume().await;
        let mut rng = Rng::new(5);
        for offset in (0..SET_BYTES).step_by(M as usize) {
            let data = random(&mut rng, M as usize);
            let written = files.write(ino, offset, data, false, Caller::ROOT);
            written.await.unwrap();
        }
        self.pool.sync().await.unwrap();
        for offset in (0..SET_BYTES).step_by(M as usize) {
            let data = random(&mut rng, M as usize);
            volume.write(offset, data, false).await.unwrap();
        }
        files.close().await.unwrap();
        volume.close().await.unwrap();
        self.pool.sync().await.unwrap();
    }

    async fn files(&self) -> Arc<Filesystem> {
        let dataset = self.pool.dsl().open_dataset(FILES).await.unwrap();
        Filesystem::open(dataset, self.sim.world()).await.unwrap()
    }

    async fn volume(&self) -> Arc<Volume> {
        let dataset = self.pool.dsl().open_dataset(VOLUME).await.unwrap();
        Volume::open(dataset, self.sim.world()).await.unwrap()
    }

    /// Exports the pool and imports it again: nothing is in memory then. Disks are slow from now
    /// on.
    async fn restart(&mut self) {
        self.pool.export(false).await.unwrap();
        let paths = self.sim.disk_names();
        for path in &paths {
            self.sim.disk(path).unwrap().set_model(&HARD_DISK);
        }
        let spec = ScanSpec {
            paths,
            ..ScanSpec::default()
        };
        let found = pool::scan(&self.sim.world(), &spec).await.unwrap();
        let found = found.into_iter().next().unwrap();
        let spec = ImportSpec::new(found, host());
        self.pool = Pool::import(&self.sim.world(), spec).await.unwrap();
    }

    /// Bytes a second of large requests in sequence to the disks that count.
    fn disks_rate(&self) -> f64 {
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
        let one = measure(&mut machine, 0, &load).bytes_per_second;
        one * self.layout.disks() as f64
    }

    /// Runs a client's reads, `depth` at a time, each as soon as there is room, on `target`. Gives
    /// bytes a second, as a part of what the disks give to large requests.
    async fn rate(&self, target: &Target, reads: &[(u64, u64)], depth: usize) -> f64 {
        let begun = self.sim.elapsed();
        run(target, reads, depth).await;
        let bytes: u64 = reads.iter().map(|(_, length)| length).sum();
        let took = self.sim.elapsed() - begun;
        bytes as f64 / took.as_secs_f64() / self.disks_rate()
    }

    /// Bytes that the disks read since the log was begun.
    fn disk_reads(&self) -> u64 {
        let log = self.sim.take_log();
        let reads = log.iter().filter(|record| record.op == SimOp::Read);
        reads.map(|record| record.length_bytes).sum()
    }

    async fn open(&self, kind: Kind) -> Target {
        match kind {
            Kind::File => {
                let files = self.files().await;
                let file = files.lookup(files.root(), b"file").await.unwrap();
                Target::File(files, file.ino)
            }
            Kind::Volume => Target::Volume(self.volume().await),
        }
    }
}

#[derive(Debug, Clone, Copy)]
enum Kind {
    File,
    Volume,
}

#[derive(Clone)]
enum Target {
    File(Arc<Filesystem>, u64),
    Volume(Arc<Volume>),
}

impl Target {
    async fn read(&self, offset: u64, length: u64) {
        let data = match self {
            Target::File(files, ino) => files.read(*ino, offset, length as usize).await.unwrap(),
            Target::Volume(volume) => volume.read(offset, length as usize).await.unwrap(),
        };
        let bytes: usize = data.iter().map(Bytes::len).sum();
        assert_eq!(bytes as u64, length, "at {offset}");
    }

    async fn close(self) {
        match self {
            Target::File(files, _) => files.close().await.unwrap(),
            Target::Volume(volume) => volume.close().await.unwrap(),
        }
    }
}

async fn run(target: &Target, reads: &[(u64, u64)], depth: usize) {
    let left: VecDeque<(u64, u64)> = reads.iter().copied().collect();
    let left = Arc::new(parking_lot::Mutex::new(left));
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..depth {
        let (target, left) = (target.clone(), left.clone());
        tasks.spawn(async move {
            loop {
                let next = left.lock().pop_front();
                let Some((offset, length)) = next else { return };
                target.read(offset, length).await;
            }
        });
    }
    while let Some(ended) = tasks.join_next().await {
        ended.unwrap();
    }
}

/// Incompressible, and no two blocks are alike.
pub fn random(rng: &mut Rng, bytes: usize) -> Bytes {
    let mut data = vec![0; bytes];
    for word in data.chunks_mut(512) {
        word[..8].copy_from_slice(&(rng.next_u64() | 1).to_le_bytes());
    }
    Bytes::from(data)
}

fn forward(range: std::ops::Range<u64>, length: u64) -> Vec<(u64, u64)> {
    range
        .step_by(length as usize)
        .map(|at| (at, length))
        .collect()
}

/// The parts of several streams by turns.
fn by_turns(streams: &[Vec<(u64, u64)>]) -> Vec<(u64, u64)> {
    let steps = streams.iter().map(Vec::len).max().unwrap_or(0);
    let step = |at: usize| {
        streams
            .iter()
            .filter_map(move |stream| stream.get(at).copied())
    };
    (0..steps).flat_map(step).collect()
}

fn sequential(layout: Layout) {
    simulate(async {
        let mut rig = Rig::new(layout).await;
        rig.fill().await;
        let mut rates = Vec::new();
        for kind in [Kind::File, Kind::Volume] {
            for (length, depth) in [(16 * K, 1), (16 * K, 9), (32 * K, 1), (32 * K, 9)] {
                rig.restart().await;
                let target = rig.open(kind).await;
                let rate = rig
                    .rate(&target, &forward(0..SET_BYTES, length), depth)
                    .await;
                target.close().await;
                println!("{kind:?}, {length} bytes, {depth} at a time: {rate:.2} of the disks");
                rates.push(rate);
            }
        }
        rig.pool.export(false).await.unwrap();
        let (files, volumes) = rates.split_at(4);
        let (of_files, of_volumes) = layout.least();
        assert!(files.iter().all(|rate| *rate >= of_files), "{rates:.2?}");
        let is_enough = |rate: &f64| *rate >= of_volumes;
        assert!(volumes.iter().all(is_enough), "{rates:.2?}");
    });
}

#[test]
fn mirrors_are_read_in_small_pieces_as_fast_as_in_large_ones() {
    sequential(Layout::Mirrors);
}

#[test]
fn raidz_is_read_in_small_pieces_as_fast_as_in_large_ones() {
    sequential(Layout::Raidz);
}

/// Streams far from each other cost seeks, so less than one stream's rate is right: with a window
/// of a mebibyte and more, a seek and half a revolution (13 ms) come with 10 ms and more of
/// reading.
#[test]
fn streams_of_all_kinds_are_read_ahead_of() {
    simulate(async {
        let mut rig = Rig::new(Layout::Mirrors).await;
        rig.fill().await;
        let part = SET_BYTES / 4;
        let parts: Vec<_> = (0..4)
            .map(|stream| forward(stream * part..(stream + 1) * part, 16 * K))
            .collect();
        let mut backward = forward(0..SET_BYTES, 16 * K);
        backward.reverse();
        // Each sixteenth: of a file's records of 128 KiB that is every other one.
        let strided: Vec<_> = forward(0..SET_BYTES, 256 * K)
            .into_iter()
            .map(|(at, _)| (at + 16 * K, 16 * K))
            .collect();
        let mut told = Vec::new();
        for kind in [Kind::File, Kind::Volume] {
            let cases = [
                ("four streams", by_turns(&parts), 4),
                ("backward", backward.clone(), 1),
                ("strided", strided.clone(), 1),
            ];
            for (name, reads, depth) in cases {
                rig.restart().await;
                let target = rig.open(kind).await;
                let rate = rig.rate(&target, &reads, depth).await;
                target.close().await;
                println!("{kind:?}, {name}: {rate:.3} of the disks");
                told.push((name, rate));
            }
        }
        // Four clients, each with streams of its own on the same file, each at its own pace.
        rig.restart().await;
        let target = rig.open(Kind::File).await;
        let begun = rig.sim.elapsed();
        let clients = parts.iter().map(|reads| run(&target, reads, 1));
        futures_all(clients).await;
        let took = (rig.sim.elapsed() - begun).as_secs_f64();
        let rate = SET_BYTES as f64 / took / rig.disks_rate();
        println!("four clients: {rate:.2} of the disks");
        target.close().await;
        told.push(("four clients", rate));
        rig.pool.export(false).await.unwrap();
        for (name, rate) in told {
            let least = match name {
                "strided" => 0.06,
                "backward" => 0.7,
                _ => 0.4,
            };
            assert!(rate >= least, "{name}: {rate:.3}");
        }
    });
}

async fn futures_all(all: impl Iterator<Item = impl Future<Output = ()>>) {
    let mut all: Vec<_> = all.map(Box::pin).collect();
    std::future::poll_fn(|context| {
        all.retain_mut(|one| one.as_mut().poll(context).is_pending());
        match all.is_empty() {
            true => std::task::Poll::Ready(()),
            false => std::task::Poll::Pending,
        }
    })
    .await;
}

#[test]
fn random_reads_read_nothing_ahead() {
    simulate(async {
        let mut rig = Rig::new(Layout::Mirrors).await;
        rig.fill().await;
        for (kind, block) in [(Kind::File, 128 * K), (Kind::Volume, 16 * K)] {
            rig.restart().await;
            let target = rig.open(kind).await;
            let mut rng = Rng::new(9);
            let reads: Vec<_> = (0..400)
                .map(|_| (rng.below(SET_BYTES / (16 * K)) * 16 * K, 16 * K))
                .collect();
            // Each block that is asked for once, and the indirect blocks: 4 KiB hold 32 pointers.
            let blocks: std::collections::BTreeSet<u64> =
                reads.iter().map(|(at, _)| at / block).collect();
            rig.sim.start_log();
            run(&target, &reads, 1).await;
            let read = rig.disk_reads();
            let asked = blocks.len() as u64 * block;
            println!("{kind:?}: {asked} bytes asked for, {read} read");
            target.close().await;
            assert!(
                read < asked + asked / 8 + 4 * M,
                "{kind:?}: {asked}, {read}"
            );
        }
        rig.pool.export(false).await.unwrap();
    });
}

/// A tree of some thousand files, listed as `ls -lR` does, whose dnodes were changed in many
/// transaction groups with data between them: they lie here and there on disk.
#[test]
fn a_tree_is_listed_ahead_of_who_lists_it() {
    simulate(async {
        let mut rig = Rig::new(Layout::Mirrors).await;
        let files = rig.create_files().await;
        // One big directory, and many of usual size. Their files were made by turns, so what lies
        // side by side on disk does not belong together.
        let (mut directories, mut inodes) = (Vec::new(), Vec::new());
        for number in 0..40 {
            let name = format!("directory{number}").into_bytes();
            let made = files.make_directory(files.root(), &name, 0o700, Caller::ROOT);
            directories.push(made.await.unwrap().ino);
        }
        for number in 0..5000 {
            let directory = match number % 2 {
                0 => directories[0],
                _ => directories[1 + number / 2 % 39],
            };
            let name = format!("a file with a name of usual length {number}").into_bytes();
            let made = files.create(directory, &name, 0o600, Caller::ROOT);
            inodes.push(made.await.unwrap().ino);
        }
        let log = files.create(files.root(), b"log", 0o600, Caller::ROOT);
        let log = log.await.unwrap().ino;
        let mut rng = Rng::new(7);
        for round in 0..60 {
            for _ in 0..40 {
                let ino = inodes[rng.below(inodes.len() as u64) as usize];
                let mode = SetAttributes {
                    mode: Some(0o600 + rng.below(64) as u32),
                    ..SetAttributes::default()
                };
                let set = files.set_attributes(ino, &mode, Caller::ROOT);
                set.await.unwrap();
            }
            let data = random(&mut rng, 4 * M as usize);
            let written = files.write(log, round * 4 * M, data, false, Caller::ROOT);
            written.await.unwrap();
            rig.pool.sync().await.unwrap();
        }
        files.close().await.unwrap();
        for (name, plus) in [("readdirplus", true), ("lookups", false)] {
            let mut took = Vec::new();
            for prefetch in ["none", "all"] {
                let change = PropertyChange::Set(prefetch.into());
                let changes = [("prefetch".to_owned(), change)];
                let properties = rig.pool.dsl().properties();
                properties.set(FILES, &changes).await.unwrap();
                rig.restart().await;
                let files = rig.files().await;
                let begun = rig.sim.elapsed();
                let seen = list(&files, files.root(), plus).await;
                took.push(rig.sim.elapsed() - begun);
                assert_eq!(seen, 5041);
                files.close().await.unwrap();
            }
            println!("{name}: {took:.0?} without and with reading ahead");
            assert!(took[1] < took[0] * 2 / 3, "{name}: {took:?}");
        }
        rig.pool.export(false).await.unwrap();
    });
}

/// Entries of a directory and of those below, as a client of the kernel asks for them.
fn list(
    files: &Arc<Filesystem>,
    directory: u64,
    plus: bool,
) -> std::pin::Pin<Box<dyn Future<Output = u64> + '_>> {
    const ENTRIES: usize = 128;
    Box::pin(async move {
        let mut entries = Vec::new();
        let mut cookie = 0;
        loop {
            let found = match plus {
                true => {
                    let found = files.read_directory_with_attributes(directory, cookie, ENTRIES);
                    let found = found.await.unwrap();
                    assert!(found.iter().all(|(_, attributes)| attributes.is_some()));
                    found.into_iter().map(|(entry, _)| entry).collect()
                }
                false => {
                    let found = files.read_directory(directory, cookie, ENTRIES).await;
                    found.unwrap()
                }
            };
            let Some(last) = found.last() else { break };
            cookie = last.next_cookie;
            entries.extend(found);
        }
        entries.retain(|entry| entry.name != b"." && entry.name != b"..");
        entries.sort_by(|a, b| a.name.cmp(&b.name));
        let mut seen = entries.len() as u64;
        if !plus {
            for entry in &entries {
                files.lookup(directory, &entry.name).await.unwrap();
            }
        }
        for entry in &entries {
            if entry.kind == Some(filesystem::FileKind::Directory) {
                seen += list(files, entry.ino, plus).await;
            }
        }
        seen
    })
}

#[test]
fn streams_of_datasets_come_at_the_disks_rate() {
    simulate(async {
        let mut rig = Rig::new(Layout::Mirrors).await;
        rig.fill().await;
        let names = [FILES, VOLUME].map(|name| format!("{name}@one"));
        let taken = rig.pool.dsl().snapshots().take(&names, &[]).await;
        taken.unwrap();
        let mut rates = Vec::new();
        for name in &names {
            rig.restart().await;
            let source = rig.pool.dsl().sends().source(name, None).await.unwrap();
            let begun = rig.sim.elapsed();
            let mut bytes = Vec::new();
            let options = SendOptions::default();
            let sent = stream::send(&source, &options, &mut bytes, &Progress::default()).await;
            sent.unwrap();
            let took = (rig.sim.elapsed() - begun).as_secs_f64();
            assert!(bytes.len() as u64 > SET_BYTES);
            let rate = SET_BYTES as f64 / took / rig.disks_rate();
            println!("{name}: {rate:.2} of the disks");
            rates.push(rate);
        }
        rig.pool.export(false).await.unwrap();
        assert!(rates.iter().all(|rate| *rate >= 0.75), "{rates:.2?}");
    });
}
