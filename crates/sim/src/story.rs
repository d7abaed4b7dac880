//! A server of 2010 in simulated time: what its owner measured and published, told again with the
//! real engine on models of its disks.
//!
//! Twenty hard disks as ten mirrors, 11 GB of cache in memory, a volume of 25 GB, random reads of
//! 4 KiB, 32 at a time, over one gigabit link. Published are 2,532 reads a second after ten minutes
//! and 20,873 in the end, when two SSDs as cache devices held the rest of the volume.
//!
//! [`Server::new`] takes a factor by which all sizes and all rates are smaller: a story at 1:16
//! takes as long in virtual time as the whole one and does a sixteenth of the operations. Figures
//! in a [`Point`] are those of the whole story, that is multiplied by the factor.
//!
//! What is not simulated: the iSCSI target. A command costs a message each way, with the sizes that
//! iSCSI's have, and [`COMMAND`] of the server's processor, one at a time.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use device::World;
use device::sim::model::{HddSpec, LinkSpec, SsdSpec};
use device::sim::{Latency, Model, SimLink, SimWorld};
use l2arc::LevelOptions;
use parking_lot::Mutex;
use pool::{
    AddSpec, CreateSpec, FeatureChoice, ImportSpec, Pool, ScanSpec, VdevClass, VdevLayout, VdevSpec,
};
use volume::{Volume, ZvolInit};

use crate::layout::leaf;
use crate::rng::Rng;
use crate::torture::{POOL, host};
use crate::verify::Failure;

const GB: u64 = 1_000_000_000;
/// Size of each hard disk.
const DISK_BYTES: u64 = 500 * GB;
/// Hard disks, two in each mirror.
const DISKS: usize = 20;
/// Size of each cache device.
const CACHE_DEVICE_BYTES: u64 = 160 * GB;
/// Cache in memory.
const CACHE_BYTES: u64 = 11 * GB;
/// What is read from.
const SET_BYTES: u64 = 25 * GB;
/// One read; a block of the volume.
const READ_BYTES: u64 = 4096;
/// Reads at a time.
const DEPTH: u64 = 32;
/// Head of a SCSI command and of its data (RFC 7143 section 11.2).
const HEAD_BYTES: u64 = 48;
/// What the server's processor does for a command. An assumption: the published plateau is a
/// quarter below what the link would carry.
const COMMAND: Duration = Duration::from_micros(40);
const VOLUME: &str = "tank/set";

/// Hard disks of the story.
pub fn hard_disk() -> Model {
    Model::Hdd(HddSpec::WD_RE3_500GB)
}

/// Its cache devices.
pub fn cache_device() -> Model {
    Model::Ssd(SsdSpec::INTEL_X25_M_160GB)
}

/// How it went in a stretch of time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Point {
    /// The end of the stretch, since the load began.
    pub at: Duration,
    /// Reads a second in it.
    pub reads_per_second: f64,
    /// How many of a thousand were in memory.
    pub hits_permille: u64,
}

/// The server, its pool filled, and its client.
pub struct Server {
    /// The world that it is in, for its disks: `disk0` to `disk19`.
    pub sim: SimWorld,
    /// Its pool.
    pub pool: Arc<Pool>,
    volume: Arc<Volume>,
    link: Arc<SimLink>,
    factor: u32,
    /// Until when the server's processor is busy, since the world was made.
    processor: Arc<Mutex<u64>>,
}

impl Server {
    /// Makes the pool and fills the volume. Writing takes no virtual time; then the disks get their
    /// models, and the cache is empty.
    ///
    /// # Errors
    /// Of the engine.
    pub async fn new(seed: u64, factor: u32) -> Result<Self, Failure> {
        let by = u64::from(factor);
        let sim = SimWorld::in_microseconds(seed);
        let names: Vec<String> = (0..DISKS).map(|disk| format!("disk{disk}")).collect();
        for name in &names {
            sim.add_disk(name, whole_mebibytes(DISK_BYTES / by))
                .set_latency(Latency::NONE);
        }
        let pool = Pool::create(&sim.world(), spec(&names)).await?;
        let set_bytes = whole_mebibytes(SET_BYTES / by);
        let init = Arc::new(ZvolInit::new(set_bytes, READ_BYTES as u32));
        let datasets = pool.dsl().datasets();
        let properties = [("compression".to_owned(), "off".to_owned())];
        datasets
            .create_with_key(VOLUME, &properties, init, None)
            .await?;
        let dataset = pool.dsl().open_dataset(VOLUME).await?;
        let volume = Volume::open(dataset, sim.world()).await?;
        let memory = pool.pipeline().cache().shared();
        memory.set_limit_bytes(CACHE_BYTES / by);
        let mut rng = Rng::new(seed);
        let piece_bytes = 256 << 10;
        for offset in (0..set_bytes).step_by(piece_bytes) {
            let mut piece = vec![0; piece_bytes];
            // All blocks differ, and none is zeros.
            for block in piece.chunks_mut(512) {
                block[..8].copy_from_slice(&(rng.next_u64() | 1).to_le_bytes());
            }
            volume.write(offset, Bytes::from(piece), false).await?;
        }
        pool.sync().await?;
        let model = hard_disk().scaled(factor);
        for name in &names {
            let disk = sim.disk(name).ok_or("a disk of the story is missing")?;
            disk.set_model(&model);
        }
        pool.pipeline().cache().clear();
        Ok(Server {
            link: Arc::new(SimLink::new(&sim, &LinkSpec::GIGABIT.scaled(factor))),
            processor: Arc::default(),
            sim,
            pool,
            volume,
            factor,
        })
    }

    /// Gives the pool disks of the story's kind as cache devices: `cache0` and so on.
    ///
    /// # Errors
    /// Of the engine.
    pub async fn add_cache_devices(&self, count: usize) -> Result<(), Failure> {
        let size_bytes = whole_mebibytes(CACHE_DEVICE_BYTES / u64::from(self.factor));
        let model = cache_device().scaled(self.factor);
        let mut vdevs = Vec::new();
        for number in 0..count {
            let path = format!("cache{number}");
            self.sim.add_disk_of(&path, size_bytes, &model);
            vdevs.push(VdevSpec {
                layout: VdevLayout::Leaf(leaf(path)),
                class: VdevClass::Cache,
            });
        }
        let spec = AddSpec {
            vdevs,
            ashift: Some(12),
            force: false,
            allow_ashift_mismatch: false,
        };
        Ok(self.pool.add(&spec).await?)
    }

    /// Has the cache devices filled as the published server's were: by `bytes_a_second` in all, of
    /// the whole story, however empty they are.
    pub fn fill_slowly(&self, bytes_a_second: u64) {
        let level = self.pool.pipeline().second_level();
        let devices = level.figures().len().max(1) as u64;
        level.set_options(LevelOptions {
            rounds_a_day_percent: None,
            rate_max: Some(bytes_a_second / u64::from(self.factor) / devices),
            trim_ahead_percent: 0,
        });
    }

    /// What was written to the cache devices, in bytes of the whole story.
    pub fn cache_bytes_written(&self) -> u64 {
        let caches = self.pool.status().caches;
        let bytes: u64 = caches.iter().map(|cache| cache.write_bytes).sum();
        bytes * u64::from(self.factor)
    }

    /// Exports the pool and imports it again: memory is empty then.
    ///
    /// # Errors
    /// Of the engine.
    pub async fn restart(&mut self) -> Result<(), Failure> {
        self.volume.close().await?;
        self.pool.export(false).await?;
        let spec = ScanSpec {
            paths: self.sim.disk_names(),
            ..ScanSpec::default()
        };
        let found = pool::scan(&self.sim.world(), &spec).await?;
        let found = found.into_iter().next().ok_or("the pool is not found")?;
        let spec = ImportSpec::new(found, host());
        self.pool = Pool::import(&self.sim.world(), spec).await?;
        let memory = self.pool.pipeline().cache().shared();
        memory.set_limit_bytes(CACHE_BYTES / u64::from(self.factor));
        let dataset = self.pool.dsl().open_dataset(VOLUME).await?;
        self.volume = Volume::open(dataset, self.sim.world()).await?;
        Ok(())
    }

    /// Reads for so long; a point for each stretch of `every`.
    ///
    /// # Errors
    /// Of a read.
    pub async fn read(
        &self,
        seed: u64,
        lasting: Duration,
        every: Duration,
    ) -> Result<Vec<Point>, Failure> {
        let begun = self.sim.elapsed();
        let ended = Arc::new(std::sync::atomic::AtomicU64::new(0));
        let clients: Vec<_> = (0..DEPTH)
            .map(|client| {
                let client = Client {
                    world: self.sim.world(),
                    volume: self.volume.clone(),
                    link: self.link.clone(),
                    processor: self.processor.clone(),
                    command: COMMAND * self.factor,
                    rng: Rng::new(seed << 8 | client),
                    ended: ended.clone(),
                };
                tokio::spawn(client.run())
            })
            .collect();
        let mut points = Vec::new();
        let mut before = self.seen(&ended);
        let mut last = Duration::ZERO;
        while last < lasting {
            let at = lasting.min(last + every);
            let left = (begun + at).saturating_sub(self.sim.elapsed());
            self.sim.world().clock.sleep(left).await;
            let now = self.seen(&ended);
            let reads = now.reads - before.reads;
            let hits = now.hits - before.hits;
            let misses = now.misses - before.misses;
            points.push(Point {
                at,
                reads_per_second: reads as f64 * f64::from(self.factor) / (at - last).as_secs_f64(),
                hits_permille: hits * 1000 / (hits + misses).max(1),
            });
            (before, last) = (now, at);
        }
        for client in clients {
            client.abort();
            // Others were cancelled, as they should be; a panic was reported when it happened.
            if let Ok(Err(failure)) = client.await {
                return Err(failure);
            }
        }
        Ok(points)
    }

    fn seen(&self, ended: &std::sync::atomic::AtomicU64) -> Seen {
        let stats = self.pool.pipeline().cache().stats().total();
        Seen {
            reads: ended.load(std::sync::atomic::Ordering::Relaxed),
            hits: stats.hits,
            misses: stats.misses,
        }
    }

    /// Closes the volume and exports the pool.
    ///
    /// # Errors
    /// Of either.
    pub async fn close(self) -> Result<(), Failure> {
        self.volume.close().await?;
        self.pool.export(false).await?;
        Ok(())
    }
}

struct Seen {
    reads: u64,
    hits: u64,
    misses: u64,
}

/// One of the reads that are under way at a time.
struct Client {
    world: World,
    volume: Arc<Volume>,
    link: Arc<SimLink>,
    processor: Arc<Mutex<u64>>,
    command: Duration,
    rng: Rng,
    ended: Arc<std::sync::atomic::AtomicU64>,
}

impl Client {
    /// The server's processor does one command after the other.
    async fn command_processed(&self) {
        let now_ns = self.world.clock.monotonic_ns();
        let done_ns = {
            let mut busy_until_ns = self.processor.lock();
            *busy_until_ns = now_ns.max(*busy_until_ns) + self.command.as_nanos() as u64;
            *busy_until_ns
        };
        let left = Duration::from_nanos(done_ns - now_ns);
        self.world.clock.sleep(left).await;
    }

    async fn run(mut self) -> Result<(), Failure> {
        let blocks = self.volume.size_bytes() / READ_BYTES;
        loop {
            let offset = self.rng.below(blocks) * READ_BYTES;
            self.link.to_server(HEAD_BYTES).await;
            self.command_processed().await;
            let data = self.volume.read(offset, READ_BYTES as usize).await?;
            let bytes: usize = data.iter().map(Bytes::len).sum();
            self.link.to_client(HEAD_BYTES + bytes as u64).await;
            (self.ended).fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        }
    }
}

fn whole_mebibytes(bytes: u64) -> u64 {
    bytes >> 20 << 20
}

fn spec(names: &[String]) -> CreateSpec {
    let mirrors = names.chunks(2).map(|pair| VdevSpec {
        layout: VdevLayout::Mirror(pair.iter().cloned().map(leaf).collect()),
        class: VdevClass::Normal,
    });
    CreateSpec {
        name: POOL.into(),
        vdevs: mirrors.collect(),
        properties: Vec::new(),
        features: FeatureChoice::All,
        root_properties: Vec::new(),
        root_init: Arc::new(filesystem::ZplInit::new()),
        altroot: None,
        force: false,
        host: host(),
        cache: None,
        events: None,
    }
}
