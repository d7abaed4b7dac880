//! The server of a trial: its disks, its pool, its set, and the network before it.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use device::World;
use device::sim::model::LinkSpec;
use device::sim::{Latency, SimLink, SimWorld};
use filesystem::{Caller, Filesystem, ZplInit};
use l2arc::LevelOptions;
use parking_lot::Mutex;
use plan::Layout;
use plan::layout::Footprint;
use pool::{
    AddSpec, CreateSpec, FeatureChoice, HostIdentity, ImportSpec, LeafSpec, LogLimits, Pool,
    ScanSpec, VdevClass, VdevLayout, VdevSpec,
};
use volume::{Volume, ZvolInit};

use crate::bus::{Bus, Busy, Wire, wired};
use crate::rng::Rng;
use crate::spec::{Devices, SetKind, Trial, model};
use crate::{TrialError, engine};

pub(crate) const POOL: &str = "trial";
const DATASET: &str = "trial/set";
const FILE: &[u8] = b"set";
/// Files in each directory of a set of many.
const FILES_OF_DIRECTORY: u64 = 1000;
const ASHIFT: u8 = 12;
/// Smallest disk that a pool is made of, with room for labels.
const DISK_MIN_BYTES: u64 = 80 << 20;
/// What may be written and not on disk yet, in bytes of the whole trial: crate `service` has the
/// same limits.
const DIRTY_BYTES: std::ops::Range<u64> = 64 << 20..4 << 30;
/// At any scale, so much is needed for a pool to go on.
const DIRTY_BYTES_MIN: u64 = 4 << 20;
/// Bytes of one write of the filling.
const PIECE_BYTES: u64 = 1 << 20;

/// What is read and written.
#[derive(Clone)]
pub(crate) enum Target {
    Volume(Arc<Volume>),
    File(Arc<Filesystem>, u64),
    Files(Files),
}

/// Many files of the same length.
#[derive(Clone)]
pub(crate) struct Files {
    filesystem: Arc<Filesystem>,
    inos: Arc<[u64]>,
    file_bytes: u64,
}

impl Files {
    /// The file at an offset of all of them one behind the other, and the offset in it.
    fn at(&self, offset_bytes: u64) -> (u64, u64) {
        let number = offset_bytes / self.file_bytes;
        (self.inos[number as usize], offset_bytes % self.file_bytes)
    }
}

impl Target {
    /// `made` is what was made of a set of many files.
    async fn open(
        pool: &Pool,
        world: &World,
        trial: &Trial,
        made: Option<Arc<[u64]>>,
    ) -> Result<Self, TrialError> {
        let dataset = pool.dsl().open_dataset(DATASET).await;
        let dataset = dataset.map_err(engine("opening the set"))?;
        Ok(match trial.set.kind {
            SetKind::Volume => {
                let volume = Volume::open(dataset, world.clone()).await;
                Target::Volume(volume.map_err(engine("opening the volume"))?)
            }
            SetKind::Files => {
                let filesystem = Filesystem::open(dataset, world.clone()).await;
                Target::Files(Files {
                    filesystem: filesystem.map_err(engine("opening the filesystem"))?,
                    inos: made.unwrap_or_default(),
                    file_bytes: trial.file_bytes().unwrap_or(1),
                })
            }
            SetKind::File => {
                let filesystem = Filesystem::open(dataset, world.clone()).await;
                let filesystem = filesystem.map_err(engine("opening the filesystem"))?;
                let root = filesystem.root();
                let found = filesystem.lookup(root, FILE).await;
                let file = found.map_err(engine("opening the file"))?;
                Target::File(filesystem, file.ino)
            }
        })
    }

    pub(crate) async fn read(&self, offset_bytes: u64, bytes: u64) -> Result<(), TrialError> {
        let length = bytes as usize;
        let read = match self {
            Target::Volume(volume) => {
                let read = volume.read(offset_bytes, length).await;
                read.map_err(engine("a read of the volume"))?
            }
            Target::File(filesystem, ino) => {
                let read = filesystem.read(*ino, offset_bytes, length).await;
                read.map_err(engine("a read of the file"))?
            }
            Target::Files(files) => {
                let (ino, offset_bytes) = files.at(offset_bytes);
                let read = files.filesystem.read(ino, offset_bytes, length).await;
                read.map_err(engine("a read of a file"))?
            }
        };
        debug_assert_eq!(read.iter().map(Bytes::len).sum::<usize>(), length);
        Ok(())
    }

    pub(crate) async fn write(
        &self,
        offset_bytes: u64,
        data: Bytes,
        sync: bool,
    ) -> Result<(), TrialError> {
        match self {
            Target::Volume(volume) => {
                let written = volume.write(offset_bytes, data, sync).await;
                written.map_err(engine("a write to the volume"))
            }
            Target::File(filesystem, ino) => {
                let written = filesystem.write(*ino, offset_bytes, data, sync, Caller::ROOT);
                written.await.map_err(engine("a write to the file"))
            }
            Target::Files(files) => {
                let (ino, offset_bytes) = files.at(offset_bytes);
                let filesystem = &files.filesystem;
                let written = filesystem.write(ino, offset_bytes, data, sync, Caller::ROOT);
                written.await.map_err(engine("a write to a file"))
            }
        }
    }

    /// Stores access times that reads have moved on, as a server does from time to time.
    pub(crate) async fn store_access_times(&self) {
        match self {
            Target::Volume(_) => {}
            Target::File(filesystem, _) | Target::Files(Files { filesystem, .. }) => {
                filesystem.store_access_times().await;
            }
        }
    }

    async fn close(&self) -> Result<(), TrialError> {
        match self {
            Target::Volume(volume) => volume.close().await.map_err(engine("closing the volume")),
            Target::File(filesystem, _) | Target::Files(Files { filesystem, .. }) => {
                let closed = filesystem.close().await;
                closed.map_err(engine("closing the filesystem"))
            }
        }
    }
}

/// Between clients and the server.
pub(crate) struct Network {
    links: Vec<SimLink>,
    /// Until when the server's processor is busy.
    processor_ns: Mutex<u64>,
    request: Duration,
}

impl Network {
    /// The link of a client.
    pub(crate) fn link(&self, client: usize) -> &SimLink {
        &self.links[client % self.links.len()]
    }

    /// The server's processor does one request after the other.
    pub(crate) async fn request_processed(&self, world: &World) {
        let now_ns = world.clock.monotonic_ns();
        let done_ns = {
            let mut busy_until_ns = self.processor_ns.lock();
            *busy_until_ns = now_ns.max(*busy_until_ns) + self.request.as_nanos() as u64;
            *busy_until_ns
        };
        let left = Duration::from_nanos(done_ns - now_ns);
        world.clock.sleep(left).await;
    }

    /// Bytes that all links carry in a second, one way.
    pub(crate) fn sent_bytes(&self) -> (u64, u64) {
        let sent = self.links.iter().map(SimLink::sent_bytes);
        sent.fold((0, 0), |(to, from), (a, b)| (to + a, from + b))
    }

    pub(crate) fn links(&self) -> usize {
        self.links.len()
    }
}

/// Everything that a trial has made.
pub(crate) struct Server {
    pub(crate) sim: SimWorld,
    pub(crate) world: World,
    pub(crate) pool: Arc<Pool>,
    pub(crate) target: Target,
    pub(crate) network: Option<Arc<Network>>,
    pub(crate) buses: Vec<Arc<Bus>>,
    /// Of the pool's data disks, in order.
    pub(crate) busy: Vec<Arc<Busy>>,
    disk_bytes: u64,
    /// How many disks took the place of others.
    replaced: usize,
}

impl Server {
    /// Makes the pool and fills the set. That takes no virtual time; then the disks get their
    /// models, and the cache is empty.
    pub(crate) async fn new(trial: &Trial) -> Result<Self, TrialError> {
        let by = u64::from(trial.scale);
        let sim = SimWorld::in_microseconds(trial.seed);
        let disks = trial.pool.layout.disks() as usize;
        let disk_bytes = disk_bytes(trial)?;
        let names: Vec<String> = (0..disks).map(|disk| format!("disk{disk}")).collect();
        for name in &names {
            sim.add_disk(name, disk_bytes).set_latency(Latency::NONE);
        }
        let buses: Vec<Arc<Bus>> = (trial.bus.iter())
            .map(|bus| Arc::new(Bus::new(bus.rate / by, bus.rate_to_disks() / by)))
            .collect();
        let on = trial.bus.iter().zip(&buses);
        let mut on = on.flat_map(|(spec, bus)| std::iter::repeat_n(bus.clone(), spec.disks));
        let mut wires = HashMap::new();
        let mut busy = Vec::new();
        for (number, name) in names.iter().enumerate() {
            let wire = Wire {
                bus: on.next(),
                busy: Arc::default(),
            };
            busy.push(wire.busy.clone());
            // The disk that takes its place is on the same bus.
            wires.insert(replacement(number), wire.clone());
            wires.insert(name.clone(), wire);
        }
        let world = wired(&sim.world(), wires);
        let spec = create_spec(trial.pool.layout, &names);
        let pool = Pool::create(&world, spec).await;
        let pool = pool.map_err(engine("making the pool"))?;
        set_memory(&pool, trial);
        add_at_once(
            &sim,
            &pool,
            trial,
            "dedup",
            &trial.pool.dedup,
            VdevClass::Dedup,
        )
        .await?;
        let made = make_set(&pool, &world, trial).await?;
        let mut target = Target::open(&pool, &world, trial, made.clone()).await?;
        fill(&target, trial).await?;
        pool.sync().await.map_err(engine("filling the set"))?;
        if made.is_some() {
            // No file is in memory any more.
            target.close().await?;
            target = Target::open(&pool, &world, trial, made).await?;
        }
        let disk_model = trial.disk()?.model.scaled(trial.scale);
        for name in &names {
            if let Some(disk) = sim.disk(name) {
                disk.set_model(&disk_model);
            }
        }
        set_models(&sim, trial, "dedup", &trial.pool.dedup)?;
        let network = trial.network.as_ref().map(|network| {
            let link = match network.jumbo {
                true => LinkSpec::GIGABIT_JUMBO,
                false => LinkSpec::GIGABIT,
            };
            let link = link.scaled(trial.scale);
            Arc::new(Network {
                links: (0..network.links)
                    .map(|_| SimLink::new(&sim, &link))
                    .collect(),
                processor_ns: Mutex::default(),
                request: Duration::from_micros(network.request_us) * trial.scale,
            })
        });
        let server = Server {
            sim,
            world,
            pool,
            target,
            network,
            buses,
            busy,
            disk_bytes,
            replaced: 0,
        };
        server
            .add(trial, "cache", &trial.pool.cache, VdevClass::Cache)
            .await?;
        server.fill_slowly(trial);
        server
            .add(trial, "log", &trial.pool.log, VdevClass::Log)
            .await?;
        server.clear_cache();
        Ok(server)
    }

    async fn add(
        &self,
        trial: &Trial,
        prefix: &str,
        devices: &[Devices],
        class: VdevClass,
    ) -> Result<(), TrialError> {
        add_at_once(&self.sim, &self.pool, trial, prefix, devices, class).await?;
        set_models(&self.sim, trial, prefix, devices)
    }

    /// What log devices hold, in bytes of the whole trial.
    pub(crate) fn log_bytes(&self, trial: &Trial) -> u64 {
        let vdevs = self.pool.status().root.children;
        let logs = vdevs.iter().filter(|vdev| vdev.class == VdevClass::Log);
        logs.map(|vdev| vdev.allocated_bytes).sum::<u64>() * u64::from(trial.scale)
    }

    /// Has cache devices filled at the trial's rate, if it has one.
    fn fill_slowly(&self, trial: &Trial) {
        let Some(rate) = trial.pool.cache_fill else {
            return;
        };
        let devices: usize = trial.pool.cache.iter().map(|devices| devices.count).sum();
        let devices = devices.max(1) as u64;
        let level = self.pool.pipeline().second_level();
        level.set_options(LevelOptions {
            rounds_a_day_percent: None,
            rate_max: Some(rate / u64::from(trial.scale) / devices),
            trim_ahead_percent: 0,
        });
    }

    /// Cache devices are new ones.
    async fn forget_caches(&self, trial: &Trial) -> Result<(), TrialError> {
        let number: usize = trial.pool.cache.iter().map(|devices| devices.count).sum();
        for number in 0..number {
            let removed = self.pool.remove(&format!("cache{number}")).await;
            removed.map_err(engine("removing a cache device"))?;
        }
        self.add(trial, "cache", &trial.pool.cache, VdevClass::Cache)
            .await
    }

    /// What was written to cache devices since the pool was opened, in bytes of the whole trial.
    pub(crate) fn cache_bytes_written(&self, trial: &Trial) -> u64 {
        let caches = self.pool.status().caches;
        let bytes: u64 = caches.iter().map(|cache| cache.write_bytes).sum();
        bytes * u64::from(trial.scale)
    }

    /// Memory is cold.
    pub(crate) fn clear_cache(&self) {
        self.pool.pipeline().cache().clear();
    }

    /// A disk that takes the place of another one, by number.
    pub(crate) fn new_disk(&mut self, trial: &Trial, number: usize) -> Result<String, TrialError> {
        let name = replacement(number);
        if self.sim.disk(&name).is_some() {
            return Err(TrialError::Spec(format!(
                "disk {number} is replaced once only"
            )));
        }
        let scaled = trial.disk()?.model.scaled(trial.scale);
        self.sim.add_disk_of(&name, self.disk_bytes, &scaled);
        self.replaced += 1;
        Ok(name)
    }

    /// Exports the pool and imports it again.
    pub(crate) async fn restart(&mut self, trial: &Trial) -> Result<(), TrialError> {
        self.target.close().await?;
        self.pool
            .export(false)
            .await
            .map_err(engine("the export"))?;
        let spec = ScanSpec {
            paths: self.sim.disk_names(),
            ..ScanSpec::default()
        };
        let found = pool::scan(&self.world, &spec).await;
        let found = found.map_err(engine("looking for the pool"))?;
        let found = found.into_iter().next();
        let found = found.ok_or_else(|| TrialError::Spec("the pool is not found again".into()))?;
        let spec = ImportSpec::new(found, host());
        self.pool = Pool::import(&self.world, spec)
            .await
            .map_err(engine("the import"))?;
        set_memory(&self.pool, trial);
        if trial.pool.cache_lost {
            self.forget_caches(trial).await?;
        }
        self.fill_slowly(trial);
        let made = match &self.target {
            Target::Files(files) => Some(files.inos.clone()),
            Target::Volume(_) | Target::File(..) => None,
        };
        self.target = Target::open(&self.pool, &self.world, trial, made).await?;
        Ok(())
    }

    /// Closes the set and exports the pool.
    pub(crate) async fn close(self) -> Result<(), TrialError> {
        self.target.close().await?;
        self.pool.export(false).await.map_err(engine("the export"))
    }
}

/// Gives a pool the trial's memory: for its cache, and, as a server does, two fifths of it for what
/// is written and not on disk yet. Of dedup tables, too, what goes by the size of memory.
fn set_memory(pool: &Pool, trial: &Trial) {
    let by = u64::from(trial.scale);
    let memory_bytes = trial.pool.memory;
    let cache = pool.pipeline().cache().shared();
    cache.set_limit_bytes(memory_bytes / by);
    let dirty_bytes = (memory_bytes / 5 * 2).clamp(DIRTY_BYTES.start, DIRTY_BYTES.end);
    pool.set_dirty_max_bytes((dirty_bytes / by).max(DIRTY_BYTES_MIN));
    let limits = LogLimits::default();
    // What a transaction group does is smaller as well.
    let smaller = |count: usize| (count / trial.scale.max(1) as usize).max(1);
    let limits = LogLimits {
        is_written: trial.pool.dedup_logs,
        flushed_least: smaller(limits.flushed_least),
        flushed_at_rest: smaller(limits.flushed_at_rest),
        ..limits
    };
    pool::set_dedup_log_limits(pool, limits);
}

/// Bytes of each disk: the model's, or so few that the set is spread over the part of them that
/// the trial says.
pub(crate) fn disk_bytes(trial: &Trial) -> Result<u64, TrialError> {
    let by = u64::from(trial.scale);
    let Some(spread) = trial.pool.spread_percent else {
        let size_bytes = trial.pool.disk_bytes.unwrap_or(trial.disk()?.size_bytes);
        return Ok(whole_mebibytes(size_bytes / by).max(DISK_MIN_BYTES));
    };
    let bytes = set_bytes_of_disk(trial) * 100 / u64::from(spread);
    Ok(whole_mebibytes(bytes).max(DISK_MIN_BYTES))
}

/// Bytes that the set takes of each disk, at the trial's scale.
pub(crate) fn set_bytes_of_disk(trial: &Trial) -> u64 {
    let layout = trial.pool.layout;
    let block = Footprint::of(layout, ASHIFT.into(), trial.set.block);
    let copies = match layout {
        Layout::Mirror { ways, .. } => ways,
        _ => 1,
    };
    let blocks = trial.set_bytes() / trial.set.block;
    blocks * block.allocated_bytes * copies / layout.disks()
}

/// Adds devices beside the disks, which take no time yet.
async fn add_at_once(
    sim: &SimWorld,
    pool: &Pool,
    trial: &Trial,
    prefix: &str,
    devices: &[Devices],
    class: VdevClass,
) -> Result<(), TrialError> {
    let mut vdevs = Vec::new();
    for devices in devices {
        let known = model(&devices.disk)?;
        let size_bytes = whole_mebibytes(known.size_bytes / u64::from(trial.scale));
        for _ in 0..devices.count {
            let path = format!("{prefix}{}", vdevs.len());
            let disk = sim.add_disk(&path, size_bytes.max(DISK_MIN_BYTES));
            disk.set_latency(Latency::NONE);
            let layout = VdevLayout::Leaf(leaf(&path));
            vdevs.push(VdevSpec { layout, class });
        }
    }
    if vdevs.is_empty() {
        return Ok(());
    }
    let spec = AddSpec {
        vdevs,
        ashift: Some(ASHIFT),
        // They have no redundancy, whatever the disks have.
        force: true,
        allow_ashift_mismatch: false,
    };
    let added = pool.add(&spec).await;
    added.map_err(engine(format!("adding {prefix} devices")))
}

/// From now on these devices are as fast as their models.
fn set_models(
    sim: &SimWorld,
    trial: &Trial,
    prefix: &str,
    devices: &[Devices],
) -> Result<(), TrialError> {
    let each = devices
        .iter()
        .flat_map(|devices| std::iter::repeat_n(devices, devices.count));
    for (number, devices) in each.enumerate() {
        let scaled = model(&devices.disk)?.model.scaled(trial.scale);
        if let Some(disk) = sim.disk(&format!("{prefix}{number}")) {
            disk.set_model(&scaled);
        }
    }
    Ok(())
}

/// Makes the dataset and what is in it, but for the data. The numbers of files of a set of many.
async fn make_set(
    pool: &Pool,
    world: &World,
    trial: &Trial,
) -> Result<Option<Arc<[u64]>>, TrialError> {
    let datasets = pool.dsl().datasets();
    let mut properties = vec![("compression".to_owned(), "off".to_owned())];
    if trial.set.dedup {
        properties.push(("dedup".to_owned(), "on".to_owned()));
    }
    match trial.set.kind {
        SetKind::Volume => {
            let init = Arc::new(ZvolInit::new(trial.set_bytes(), trial.set.block as u32));
            let made = datasets.create_with_key(DATASET, &properties, init, None);
            made.await.map_err(engine("making the volume"))?;
            Ok(None)
        }
        SetKind::File | SetKind::Files => {
            let on_or_off = |is_on: bool| if is_on { "on" } else { "off" }.to_owned();
            properties.push(("recordsize".to_owned(), trial.set.block.to_string()));
            properties.push(("atime".to_owned(), on_or_off(trial.set.atime)));
            properties.push(("relatime".to_owned(), "off".to_owned()));
            let init = Arc::new(ZplInit::new());
            let made = datasets.create_with_key(DATASET, &properties, init, None);
            made.await.map_err(engine("making the filesystem"))?;
            let dataset = pool.dsl().open_dataset(DATASET).await;
            let dataset = dataset.map_err(engine("opening the set"))?;
            let filesystem = Filesystem::open(dataset, world.clone()).await;
            let filesystem = filesystem.map_err(engine("opening the filesystem"))?;
            let made = match trial.set.kind {
                SetKind::Files => Some(make_files(&filesystem, trial).await?),
                SetKind::File | SetKind::Volume => {
                    let made = filesystem.create(filesystem.root(), FILE, 0o644, Caller::ROOT);
                    made.await.map_err(engine("making the file"))?;
                    None
                }
            };
            let closed = filesystem.close().await;
            closed.map_err(engine("making the files"))?;
            Ok(made)
        }
    }
}

/// Makes many files, empty ones.
async fn make_files(filesystem: &Filesystem, trial: &Trial) -> Result<Arc<[u64]>, TrialError> {
    let files = trial.set.files / u64::from(trial.scale);
    let mut inos = Vec::new();
    let mut directory = filesystem.root();
    for number in 0..files {
        let name = number.to_string();
        if number % FILES_OF_DIRECTORY == 0 {
            let name = format!("d{name}");
            let root = filesystem.root();
            let made = filesystem.make_directory(root, name.as_bytes(), 0o755, Caller::ROOT);
            directory = made.await.map_err(engine("making a directory"))?.ino;
        }
        let made = filesystem.create(directory, name.as_bytes(), 0o644, Caller::ROOT);
        inos.push(made.await.map_err(engine("making a file"))?.ino);
    }
    Ok(inos.into())
}

async fn fill(target: &Target, trial: &Trial) -> Result<(), TrialError> {
    let mut rng = Rng::new(trial.seed);
    let set_bytes = trial.set_bytes();
    let piece_bytes = (trial.file_bytes()).unwrap_or(PIECE_BYTES.max(trial.set.block));
    let empty_bytes = set_bytes / 100 * u64::from(100 - trial.set.filled_percent);
    let start = empty_bytes / piece_bytes * piece_bytes;
    for offset in (start..set_bytes).step_by(piece_bytes as usize) {
        let bytes = piece_bytes.min(set_bytes - offset);
        target.write(offset, data(&mut rng, bytes), false).await?;
    }
    Ok(())
}

/// Data of which no block is like another one, or zeros.
pub(crate) fn data(rng: &mut Rng, bytes: u64) -> Bytes {
    let mut data = vec![0; bytes as usize];
    for block in data.chunks_mut(512) {
        let number = (rng.next() | 1).to_le_bytes();
        let length = block.len().min(number.len());
        block[..length].copy_from_slice(&number[..length]);
    }
    Bytes::from(data)
}

fn replacement(number: usize) -> String {
    format!("new{number}")
}

fn leaf(path: &str) -> LeafSpec {
    LeafSpec {
        path: path.to_owned(),
        is_file: false,
    }
}

fn host() -> HostIdentity {
    HostIdentity {
        hostid: 0,
        hostname: "trial".into(),
    }
}

fn whole_mebibytes(bytes: u64) -> u64 {
    bytes >> 20 << 20
}

/// The top-level vdevs of a layout, from disks in order.
fn vdevs(layout: Layout, names: &[String]) -> Vec<VdevSpec> {
    let of_one = |names: &[String]| {
        let mut leaves: Vec<LeafSpec> = names.iter().map(|name| leaf(name)).collect();
        // `Layout::check` has seen to it that all of these are small.
        let layout = match layout {
            Layout::Stripe { .. } => VdevLayout::Leaf(leaves.remove(0)),
            Layout::Mirror { .. } => VdevLayout::Mirror(leaves),
            Layout::Raidz { parity, .. } => VdevLayout::Raidz {
                parity: parity as u8,
                leaves,
            },
            Layout::Draid {
                parity,
                data,
                spares,
                ..
            } => VdevLayout::Draid {
                parity: parity as u8,
                data: data as u8,
                spares: spares as u8,
                leaves,
            },
        };
        VdevSpec {
            layout,
            class: VdevClass::Normal,
        }
    };
    let vdevs = names.chunks(layout.disks_of_vdev() as usize);
    vdevs.map(of_one).collect()
}

pub(crate) fn create_spec(layout: Layout, names: &[String]) -> CreateSpec {
    CreateSpec {
        name: POOL.into(),
        vdevs: vdevs(layout, names),
        properties: vec![("ashift".to_owned(), ASHIFT.to_string())],
        features: FeatureChoice::All,
        root_properties: Vec::new(),
        root_init: Arc::new(ZplInit::new()),
        altroot: None,
        force: false,
        host: host(),
        cache: None,
        events: None,
    }
}
