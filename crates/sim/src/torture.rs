//! Runs: a pool on simulated disks, random work, a power cut, import, comparison, again and again.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use dataset::PropertySource;
use device::sim::{Fault, FaultEffect, PowerCut, SimDisk, SimOp, SimWorld};
use device::{BoxFuture, World};
use format::Txg;
use parking_lot::Mutex;
use pool::{
    CreateSpec, EventSink, FeatureChoice, FoundPool, HostIdentity, ImportSpec, Pool, Rewind,
    ScanSpec, VdevStatus, is_default_feature, supported_features,
};
use zio::alloc::DEFER_TXGS;

use crate::cache_device;
use crate::copies::every_copy;
use crate::golden::Golden;
use crate::history::History;
pub use crate::layout::Layout;
use crate::layout::leaf;
use crate::model::{DatasetModel, State, list, observe};
use crate::raising;
use crate::rng::Rng;
use crate::verify::{Failure, Report, verify_pool};
use crate::work::{Book, WorkOptions, Worker};

/// Name of the pool.
pub const POOL: &str = "tank";
/// Memory for blocks, where much is to be read from a cache device.
const LITTLE_MEMORY_BYTES: u64 = 1 << 20;
/// Virtual time that nothing takes: longer is hanging.
const PATIENCE: Duration = Duration::from_secs(4 * 3600);

/// When the power goes, counted from the start of the work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cut {
    /// At this operation of this kind, if the work gets that far; else after it.
    At(SimOp, u64, PowerCut),
    /// The seed decides.
    Random,
    /// The same, later.
    RandomLate,
    /// When the work is done.
    Later,
    /// Never: the pool is exported.
    Never,
}

/// A run.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    /// What decides everything that is left to chance.
    pub seed: u64,
    /// Disks.
    pub layout: Layout,
    /// Size of each disk.
    pub disk_mib: u64,
    /// Sectors of 512 bytes (else 4 KiB).
    pub small_sectors: bool,
    /// Power cuts.
    pub cycles: u32,
    /// Workers at the same time.
    pub workers: usize,
    /// What they do in each cycle.
    pub work: WorkOptions,
    /// When the power goes.
    pub cut: Cut,
    /// Keep a log of all operations of the disks.
    pub log: bool,
    /// Disks fail, as many as the layout can do without.
    pub faults: bool,
    /// All disks fail now and then, and lose what is in their caches: the pool stands still, until
    /// they are well and it is cleared. Nothing may show of that.
    pub standstills: bool,
    /// A cache device of so many MiB that fails, lies and vanishes, and so little memory that much
    /// is read from there. Nothing may show of that.
    pub cached_mib: Option<u64>,
    /// It is trimmed ahead of what is written: trims take effect at once and for good, and some of
    /// them fail.
    pub cache_trim: bool,
    /// Property `dedup` of the pool, if it is not off; then little of what is written is new.
    pub dedup: Option<&'static str>,
    /// Property `autotrim`, on disks that carry discards out at once and for good. After a power
    /// cut, states before the newest are verified as well, as far as their blocks cannot have been
    /// used again.
    pub autotrim: bool,
    /// Devices are initialized and trimmed meanwhile.
    pub passes: bool,
    /// The pool lacks some features, those that the seed says. What cannot be set without them is
    /// refused.
    pub lacks_features: bool,
    /// The pool is of this version, of before features, in its first cycle, and is raised step by
    /// step in the others, in the middle of the work.
    pub version: Option<u64>,
    /// Work below the encryption roots of this pool, whose layout and disks count then.
    pub golden: Option<&'static Golden>,
    /// Have zdb look at the images, after power cuts and in the end, where there is one.
    pub zdb: bool,
}

impl Plan {
    /// What one seed stands for.
    pub fn of(seed: u64) -> Self {
        let mut rng = Rng::new(seed ^ 0x706c_616e);
        // Some go on for long, on disks that get full.
        let is_long = seed % 9 == 8;
        Plan {
            seed,
            layout: Layout::ALL[(seed % Layout::ALL.len() as u64) as usize],
            disk_mib: if is_long { 64 } else { 96 },
            small_sectors: rng.percent(40),
            cycles: 1 + rng.below(3) as u32,
            workers: 1 + rng.below(3) as usize,
            work: WorkOptions {
                steps: (40 + rng.below(150) as usize) * if is_long { 6 } else { 1 },
                dataset_percent: [4, 10, 20][rng.below(3) as usize],
                sync_percent: [2, 6, 15][rng.below(3) as usize],
                ..WorkOptions::default()
            },
            cut: if is_long {
                Cut::RandomLate
            } else {
                Cut::Random
            },
            log: false,
            faults: false,
            standstills: false,
            cached_mib: None,
            cache_trim: false,
            dedup: None,
            autotrim: false,
            passes: false,
            lacks_features: false,
            version: None,
            golden: None,
            zdb: false,
        }
    }
}

/// What a run did.
#[derive(Debug, Default)]
pub struct Outcome {
    /// Operations of all workers.
    pub operations: u64,
    /// Writes to disks during the work of the first cycle.
    pub writes: u64,
    /// Flushes of disks, in the same time.
    pub flushes: u64,
    /// Power cuts in the middle of the work.
    pub cuts: u32,
    /// Power cuts while the pool was imported and logs replayed.
    pub recovery_cuts: u32,
    /// How often the pool was imported after a power cut, and left again without having had its
    /// keys.
    pub locked_visits: u32,
    /// Blocks in the pool in the end.
    pub blocks: u64,
    /// MACs that were verified with keys in the end.
    pub macs: u64,
    /// Blocks of intent logs that were seen after power cuts.
    pub log_blocks: u64,
    /// References to shared blocks that were seen after power cuts.
    pub shared_references: u64,
    /// Entries in logs of dedup tables that were seen after power cuts.
    pub logged_entries: u64,
    /// References to cloned blocks that were seen after power cuts.
    pub cloned_references: u64,
    /// Reads from a cache device.
    pub cached_reads: u64,
    /// Discards.
    pub discards: u64,
    /// States before the newest that were verified after power cuts.
    pub older_states: u64,
    /// Operations refused for lack of space.
    pub refused: u64,
    /// The log of operations of disks, when the plan asks for it.
    pub log: Vec<device::sim::OpRecord>,
}

/// Runs something in a world of its own: one thread, time that passes only when nobody works.
///
/// # Panics
/// When there is no memory for a runtime.
pub fn simulate<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime")
        .block_on(future)
}

/// The identity of the simulated machine.
pub fn host() -> HostIdentity {
    HostIdentity {
        hostid: 0,
        hostname: "sim".into(),
    }
}

/// Makes a pool on new disks.
///
/// # Errors
/// Of making it.
pub async fn create(
    sim: &SimWorld,
    layout: Layout,
    disk_mib: u64,
    small_sectors: bool,
) -> Result<Arc<Pool>, Failure> {
    create_with(sim, layout, disk_mib, small_sectors, Vec::new()).await
}

/// Makes a pool on new disks with these properties; features are all enabled but those that are
/// named `disabled` and that no other one needs.
///
/// # Errors
/// Of making it.
pub async fn create_with(
    sim: &SimWorld,
    layout: Layout,
    disk_mib: u64,
    small_sectors: bool,
    properties: Vec<(String, String)>,
) -> Result<Arc<Pool>, Failure> {
    add_disks(sim, layout, disk_mib, small_sectors);
    let spec = CreateSpec {
        properties,
        ..spec_on(layout, false)
    };
    Ok(Pool::create(&sim.world(), spec).await?)
}

/// Properties that leave some features out of a new pool; those that the layout, or a feature that
/// is left, needs are there all the same.
fn without_some_features(plan: &Plan) -> Vec<(String, String)> {
    let mut rng = Rng::new(plan.seed ^ 0x6665_6174);
    let percent = [10, 40, 70, 95][rng.below(4) as usize];
    let mut out = Vec::new();
    for feature in supported_features() {
        let is_needed = match feature.name {
            "allocation_classes" => {
                matches!(plan.layout, Layout::Classes | Layout::MirrorAndSpecial)
            }
            "draid" => matches!(plan.layout, Layout::Draid(..)),
            // zdb believes that every log space map has one (`get_log_spacemap_refcount`).
            "spacemap_histogram" => plan.zdb,
            _ => false,
        };
        if is_default_feature(feature.name) && rng.percent(percent) && !is_needed {
            out.push((format!("feature@{}", feature.name), "disabled".to_owned()));
        }
    }
    out
}

/// Makes a pool on new disks whose events somebody is told.
///
/// # Errors
/// Of making it.
pub async fn create_told(
    sim: &SimWorld,
    layout: Layout,
    disk_mib: u64,
    events: Arc<dyn EventSink>,
) -> Result<Arc<Pool>, Failure> {
    add_disks(sim, layout, disk_mib, false);
    let spec = CreateSpec {
        events: Some(events),
        ..spec_on(layout, false)
    };
    Ok(Pool::create(&sim.world(), spec).await?)
}

fn add_disks(sim: &SimWorld, layout: Layout, disk_mib: u64, small_sectors: bool) {
    let mut count = 0;
    layout.vdevs(|| {
        let disk = sim.add_disk(&disk_name(count), disk_mib << 20);
        disk.set_sector_bytes(if small_sectors { 512 } else { 4096 });
        // Some make durable what an intent log asks for and nothing else, some are flushed for it.
        disk.set_durable_writes(!count.is_multiple_of(2));
        count += 1;
        leaf(disk_name(count - 1))
    });
}

/// Makes a pool on disks that are there: `disk0` and so on; with `force`, also where another one
/// was.
///
/// # Errors
/// Of making it.
pub async fn create_on(sim: &SimWorld, layout: Layout, force: bool) -> Result<Arc<Pool>, Failure> {
    Ok(Pool::create(&sim.world(), spec_on(layout, force)).await?)
}

fn spec_on(layout: Layout, force: bool) -> CreateSpec {
    let mut count = 0;
    let vdevs = layout.vdevs(|| {
        count += 1;
        leaf(disk_name(count - 1))
    });
    CreateSpec {
        name: POOL.into(),
        vdevs,
        properties: Vec::new(),
        features: FeatureChoice::All,
        root_properties: Vec::new(),
        root_init: Arc::new(filesystem::ZplInit::new()),
        altroot: None,
        force,
        host: host(),
        events: None,
        cache: None,
    }
}

pub(crate) fn disk_name(number: usize) -> String {
    format!("disk{number}")
}

/// The pool on the disks.
///
/// # Errors
/// When there is none, or more than one.
pub async fn find(sim: &SimWorld) -> Result<FoundPool, Failure> {
    let spec = ScanSpec {
        paths: sim.disk_names(),
        ..ScanSpec::default()
    };
    let mut found = pool::scan(&sim.world(), &spec).await?;
    if found.len() != 1 {
        return Err(format!("{} pools found, not one", found.len()).into());
    }
    Ok(found.remove(0))
}

/// Imports the pool on the disks.
///
/// # Errors
/// Of importing.
pub async fn import(sim: &SimWorld, read_only: bool) -> Result<Arc<Pool>, Failure> {
    let mut spec = ImportSpec::new(find(sim).await?, host());
    spec.read_only = read_only;
    spec.unwatched = read_only;
    Ok(Pool::import(&sim.world(), spec).await?)
}

/// Verifies the states before the newest from txg `first` on. Returns how many there are.
async fn inspect_older(sim: &SimWorld, first: Txg) -> Result<u64, Failure> {
    let mut txgs = BTreeSet::new();
    for name in sim.disk_names() {
        let device = sim.world().opener.open(&name, true).await?;
        let labels = vdev::read_labels(&*device).await?.labels;
        let uberblocks = labels.iter().flat_map(|label| &label.uberblocks);
        txgs.extend(uberblocks.map(|uberblock| uberblock.txg));
    }
    let mut count = 0;
    for txg in txgs
        .into_iter()
        .rev()
        .skip(1)
        .take_while(|txg| *txg >= first)
    {
        let when = format!("before the newest state, at txg {txg}");
        let mut spec = ImportSpec::new(find(sim).await?, host());
        (spec.read_only, spec.unwatched) = (true, true);
        spec.rewind = Rewind::To(txg);
        let pool = Pool::import(&sim.world(), spec)
            .await
            .map_err(|error| format!("{when}: {error}"))?;
        let found = pool.rewound().map(|rewound| rewound.txg);
        let report = verify_pool(&pool).await?;
        pool.export(false).await?;
        if found != Some(txg) || !report.problems.is_empty() {
            let some: Vec<_> = report.problems.iter().take(25).cloned().collect();
            return Err(format!("{when}: at {found:?}:\n{}", some.join("\n")).into());
        }
        count += 1;
    }
    Ok(count)
}

/// Looks at the pool on the disks without changing it, and verifies all of it.
///
/// # Errors
/// Also when there are problems.
pub async fn inspect(sim: &SimWorld, when: &str, without_errors: bool) -> Result<Report, Failure> {
    inspect_with(sim, when, without_errors, None).await
}

/// The same with keys, so that MACs are verified too.
///
/// # Errors
/// Also when there are problems.
pub async fn inspect_with(
    sim: &SimWorld,
    when: &str,
    without_errors: bool,
    keys: Option<&Golden>,
) -> Result<Report, Failure> {
    let pool = import(sim, true)
        .await
        .map_err(|error| format!("{when}: import read-only: {error}"))?;
    if let Some(keys) = keys {
        let opened = keys.open_all(&pool).await;
        opened.map_err(|error| format!("{when}: {error}"))?;
    }
    let report = verify_pool(&pool)
        .await
        .map_err(|error| format!("{when}: {error}"))?;
    let errors = errors_of(&pool.status().root);
    if without_errors && errors == 0 && report.problems.is_empty() {
        every_copy(&pool, when).await?;
    }
    pool.export(false).await?;
    drop(pool);
    if !report.problems.is_empty() {
        let some: Vec<_> = report.problems.iter().take(25).cloned().collect();
        let count = report.problems.len();
        return Err(format!("{when}: {count} problems:\n{}", some.join("\n")).into());
    }
    if without_errors && errors != 0 {
        return Err(format!("{when}: {errors} errors of devices that had none").into());
    }
    Ok(report)
}

/// Errors that a vdev and those below it count.
pub fn errors_of(vdev: &VdevStatus) -> u64 {
    vdev.read_errors
        + vdev.write_errors
        + vdev.checksum_errors
        + vdev.children.iter().map(errors_of).sum::<u64>()
}

/// Something that must end in simulated time.
///
/// # Errors
/// When it does not.
pub async fn patiently<T>(what: &str, future: impl Future<Output = T>) -> Result<T, Failure> {
    tokio::time::timeout(PATIENCE, future)
        .await
        .map_err(|_| format!("{what} does not end").into())
}

/// Everything below a dataset, as it is.
///
/// # Errors
/// Of reading any of it.
pub async fn observe_all(
    sim: &SimWorld,
    pool: &Pool,
    top: &str,
    book: &Mutex<Book>,
) -> Result<State, Failure> {
    let dsl = pool.dsl();
    let world = sim.world();
    let seeds = book.lock().seeds.clone();
    let mut ids = book.lock().ids.clone();
    let mut state = State::new();
    for (name, snapshots) in list(dsl, top).await? {
        let at = |error: Failure| -> Failure { format!("{name}: {error}").into() };
        let content = observe(dsl, &world, &name, &seeds, &mut ids)
            .await
            .map_err(at)?;
        let mut seen = Vec::new();
        for snapshot in snapshots {
            let full = format!("{name}@{snapshot}");
            let at = |error: Failure| -> Failure { format!("{full}: {error}").into() };
            let content = observe(dsl, &world, &full, &seeds, &mut ids)
                .await
                .map_err(at)?;
            seen.push((snapshot, Arc::new(content)));
        }
        let mut properties = BTreeMap::new();
        let mut sync_disabled = None;
        for setting in dsl.properties().all(&name).await? {
            if setting.source == PropertySource::Local {
                if setting.name == "sync" {
                    sync_disabled = Some(setting.value.number() == Some(2));
                }
                properties.insert(setting.name, format!("{:?}", setting.value));
            }
        }
        let origin = dsl.directories().lookup(&name).await?.origin;
        state.insert(
            name.clone(),
            DatasetModel {
                content: Arc::new(content),
                snapshots: seen,
                origin,
                properties,
                sync_disabled,
            },
        );
    }
    book.lock().ids = ids;
    Ok(state)
}

/// Makes disks fail in all kinds of ways, and come back.
async fn torment(
    world: &World,
    pool: &Weak<Pool>,
    victims: &[SimDisk],
    size_bytes: u64,
    mut rng: Rng,
) {
    loop {
        let pause = Duration::from_millis(50 + rng.below(2500));
        world.clock.sleep(pause).await;
        let Some(disk) = rng.pick(victims) else {
            return;
        };
        let fault = |op, effect| Fault::new(op, effect);
        match rng.below(12) {
            0 => disk.inject(fault(SimOp::Write, FaultEffect::Error).times(1 + rng.below(20))),
            1 => disk.inject(fault(SimOp::Read, FaultEffect::Error).times(1 + rng.below(20))),
            2 => disk.inject(
                fault(SimOp::Read, FaultEffect::Corrupt)
                    .chance(200)
                    .times(50),
            ),
            3 => disk.inject(fault(SimOp::Write, FaultEffect::Lost).times(1 + rng.below(30))),
            4 => disk.inject(fault(SimOp::Write, FaultEffect::Misdirected(4096)).times(2)),
            5 => disk.inject(fault(SimOp::Flush, FaultEffect::Error).times(1 + rng.below(3))),
            6 => disk.inject(fault(SimOp::Write, FaultEffect::Short).times(1 + rng.below(5))),
            7 => {
                let slow = Duration::from_secs(1 + rng.below(40));
                disk.inject(fault(SimOp::Write, FaultEffect::Delay(slow)).times(2));
            }
            8 => disk.set_gone(true),
            9 | 10 => {
                for _ in 0..=rng.below(50) {
                    disk.corrupt(rng.below(size_bytes - 8192), 1 + rng.below(8192) as usize);
                }
            }
            _ => {
                disk.clear_faults();
                disk.set_gone(false);
                if let Some(pool) = pool.upgrade() {
                    // A pool that is not suspended is not hurt by this.
                    let _ = pool.clear(None).await;
                }
            }
        }
    }
}

/// Makes disks refuse writes beyond redundancy, and lose their caches; then makes them well again.
async fn stop_and_go(world: &World, pool: &Weak<Pool>, disks: &[SimDisk], mut rng: Rng) {
    loop {
        let pause = Duration::from_millis(20 + rng.below(4000));
        world.clock.sleep(pause).await;
        let mut reset = Vec::new();
        for disk in disks {
            if !rng.percent(70) {
                continue;
            }
            let effect = match rng.below(3) {
                0 => FaultEffect::Error,
                1 => FaultEffect::NoSpace,
                _ => FaultEffect::Short,
            };
            let loses_cache = rng.percent(60);
            let skip = if loses_cache { 0 } else { rng.below(40) };
            disk.inject(Fault::new(SimOp::Write, effect).after(skip));
            disk.inject(Fault::new(SimOp::Flush, FaultEffect::Error));
            if loses_cache {
                reset.push(disk);
            }
        }
        let pause = Duration::from_millis(rng.below(20_000));
        world.clock.sleep(pause).await;
        let Some(pool) = pool.upgrade() else { return };
        // Nobody could notice a disk that forgets something while the pool is at work.
        if pool.suspended().is_some() {
            for disk in reset {
                disk.lose_cache(PowerCut::Random);
            }
        }
        disks.iter().for_each(SimDisk::clear_faults);
        let _ = pool.clear(None).await;
    }
}

/// Imports the pool and reads everything, which replays the logs.
async fn recover(
    sim: &SimWorld,
    books: &[(String, Arc<Mutex<Book>>)],
) -> Result<(Arc<Pool>, Vec<State>), Failure> {
    let pool = import(sim, false)
        .await
        .map_err(|error| format!("import: {error}"))?;
    let mut states = Vec::new();
    for (top, book) in books {
        states.push(observe_all(sim, &pool, top, book).await?);
    }
    Ok((pool, states))
}

/// Saves the disks as images and has zdb compare every block with the space maps.
///
/// # Errors
/// What zdb complains about. Without zdb nothing is done.
pub fn zdb(sim: &SimWorld) -> Result<(), Failure> {
    zdb_without(sim, &[])
}

/// The same without some disks. It reads like a scrub, which asks all that is below a spare, also
/// what is old there.
///
/// # Errors
/// As [`zdb`].
pub fn zdb_without(sim: &SimWorld, gone: &[&str]) -> Result<(), Failure> {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let dir = std::env::temp_dir().join(format!("millpond-sim-{}-{count}", std::process::id()));
    std::fs::create_dir_all(&dir)?;
    let outcome = zdb_in(sim, gone, &dir);
    std::fs::remove_dir_all(&dir)?;
    outcome
}

/// zdb; the script has it end sooner.
const ZDB: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/zdb");

fn zdb_in(sim: &SimWorld, gone: &[&str], dir: &Path) -> Result<(), Failure> {
    let mut names = sim.disk_names();
    names.retain(|name| !gone.contains(&name.as_str()));
    for name in names {
        if let Some(disk) = sim.disk(&name) {
            disk.save_image(dir.join(format!("{name}.img")))?;
        }
    }
    for options in ["-bcc", "-d"] {
        let output = Command::new(ZDB)
            .args(["-e", "-p"])
            .arg(dir)
            .args([options, POOL])
            .output()?;
        // As shells say that there is no such program.
        if output.status.code() == Some(127) {
            return Ok(());
        }
        let mut text = String::from_utf8_lossy(&output.stdout).into_owned();
        text.push_str(&String::from_utf8_lossy(&output.stderr));
        let text = text.replace("nothing leaked", "");
        let bad = [
            "leaked",
            "mismatch",
            "ERROR",
            "error:",
            "failed",
            "assertion",
        ];
        if !output.status.success() || bad.iter().any(|word| text.contains(word)) {
            let lines: Vec<_> = text.lines().take(60).collect();
            return Err(format!("zdb {options}: {}\n{}", output.status, lines.join("\n")).into());
        }
    }
    Ok(())
}

/// Does what the plan says.
///
/// # Errors
/// What was lost, damaged or hung, in words; the seed is for the caller to tell.
pub async fn run(plan: &Plan) -> Result<(Outcome, SimWorld), Failure> {
    let sim = SimWorld::new(plan.seed);
    if plan.log {
        sim.start_log();
    }
    let mut rng = Rng::new(plan.seed);
    let mut outcome = Outcome::default();
    let mut pool = match plan.golden {
        Some(golden) => golden.begin(&sim, plan.small_sectors).await?,
        None => {
            let properties = match (plan.version, plan.lacks_features) {
                (Some(version), _) => vec![("version".to_owned(), version.to_string())],
                (None, true) => without_some_features(plan),
                (None, false) => Vec::new(),
            };
            let (layout, mib, small) = (plan.layout, plan.disk_mib, plan.small_sectors);
            create_with(&sim, layout, mib, small, properties).await?
        }
    };
    if let Some(mib) = plan.cached_mib {
        cache_device::add(&sim, &pool, mib).await?;
    }
    if let Some(dedup) = plan.dedup {
        crate::dedup::prepare(&pool, dedup).await?;
    }
    if plan.work.rewrites {
        pool.properties()
            .set("feature@physical_rewrite", "enabled")
            .await?;
    }
    if plan.autotrim {
        let names = sim.disk_names();
        let disks = names.iter().filter_map(|name| sim.disk(name));
        disks.for_each(|disk| disk.set_eager_discards(true));
        pool.set_trim_batch_txgs(1);
        pool.properties().set("autotrim", "on").await?;
    }
    let tops = match plan.golden {
        Some(golden) => golden.tops(plan.workers, &mut rng),
        None => (0..plan.workers)
            .map(|index| format!("{POOL}/w{index}"))
            .collect(),
    };
    let mut books = Vec::new();
    for top in tops {
        let book = Arc::new(Mutex::new(Book::default()));
        let worker_rng = Rng::new(rng.next_u64());
        Worker::new(
            sim.world(),
            pool.clone(),
            top.clone(),
            worker_rng,
            book.clone(),
            plan.work,
        )
        .prepare()
        .await?;
        books.push((top, book));
    }
    let victims: Vec<SimDisk> = if plan.faults {
        let numbers = plan.layout.victims(&mut rng).into_iter();
        numbers
            .filter_map(|number| sim.disk(&format!("disk{number}")))
            .collect()
    } else {
        Vec::new()
    };
    let mut first = Txg::ZERO;
    let has_no_errors = victims.is_empty() && !plan.standstills;
    for cycle in 0..plan.cycles {
        let not_raised = match cycle > 0 && plan.version.is_some() {
            true => raising::spawn(&sim.world(), &pool, Rng::new(rng.next_u64())),
            false => Arc::default(),
        };
        if plan.standstills {
            let names = sim.disk_names();
            let disks: Vec<_> = names.iter().filter_map(|name| sim.disk(name)).collect();
            let (world, pool) = (sim.world(), Arc::downgrade(&pool));
            let rng = Rng::new(rng.next_u64());
            world.clone().spawn.spawn(Box::pin(async move {
                stop_and_go(&world, &pool, &disks, rng).await;
            }));
        }
        if !victims.is_empty() {
            let (victims, pool) = (victims.clone(), Arc::downgrade(&pool));
            let (world, rng) = (sim.world(), Rng::new(rng.next_u64()));
            let size_bytes = plan.disk_mib << 20;
            world.clone().spawn.spawn(Box::pin(async move {
                torment(&world, &pool, &victims, size_bytes, rng).await;
            }));
        }
        if let (Some(mib), Some(ssd)) = (plan.cached_mib, sim.disk(cache_device::NAME)) {
            let memory = pool.pipeline().cache().shared();
            memory.set_limit_bytes(LITTLE_MEMORY_BYTES);
            if plan.cache_trim {
                cache_device::trim(&pool, &ssd);
            }
            let (world, pool) = (sim.world(), Arc::downgrade(&pool));
            let rng = Rng::new(rng.next_u64());
            world.clone().spawn.spawn(Box::pin(async move {
                torment(&world, &pool, &[ssd], mib << 20, rng).await;
            }));
        }
        if plan.passes {
            crate::passes::spawn(&sim.world(), &pool, Rng::new(rng.next_u64()));
        }
        if plan.dedup.is_some() {
            crate::dedup::limit_logs(&pool, plan.seed.wrapping_add(cycle.into()));
        }
        let before = sim.counts();
        match plan.cut {
            Cut::At(op, count, how) => sim.cut_power_at(op, count, how),
            Cut::Random | Cut::RandomLate => {
                // Most of the interesting moments are few: early ones are as likely as late ones.
                let late = if plan.cut == Cut::RandomLate { 5 } else { 1 };
                let (op, most) = if rng.percent(70) {
                    (SimOp::Write, 4000 * late)
                } else {
                    (SimOp::Flush, 150 * late)
                };
                let limit = 1 + rng.below(most);
                sim.cut_power_at(op, 1 + rng.below(limit), PowerCut::Random);
            }
            Cut::Later | Cut::Never => {}
        }
        for (top, book) in &books {
            book.lock().finished = false;
            let worker = Worker::new(
                sim.world(),
                pool.clone(),
                top.clone(),
                Rng::new(rng.next_u64()),
                book.clone(),
                plan.work,
            );
            sim.world().spawn.spawn(Box::pin(worker.run()));
        }
        let working = async {
            while sim.is_powered() {
                let over = |(_, book): &(String, Arc<Mutex<Book>>)| {
                    let book = book.lock();
                    book.finished || book.failure.is_some()
                };
                if books.iter().all(over) {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        patiently("the work", working).await?;
        let in_the_middle = !sim.is_powered();
        let caches = pool.status().caches;
        outcome.cached_reads += caches.iter().map(|cache| cache.read_ops).sum::<u64>();
        // What is freed can be used again two txgs later, whether these left uberblocks or not; one
        // more may be nearly done. And an import does not know what waited. So these states are
        // whole by all means.
        first = first.max(Txg::new(
            (pool.synced_txg().get() + 1).saturating_sub(DEFER_TXGS),
        ));
        for (top, book) in &books {
            let book = book.lock();
            if let (Some(failure), false) = (&book.failure, in_the_middle) {
                return Err(format!("cycle {cycle} {top}: {failure}").into());
            }
        }
        if let (Some(error), false) = (not_raised.lock().take(), in_the_middle) {
            return Err(format!("cycle {cycle}: the version is not raised: {error}").into());
        }
        if plan.cut == Cut::Never {
            patiently("the export", pool.export(false)).await??;
            sim.kill_tasks().await;
            drop(pool);
        } else {
            sim.cancel_power_cut();
            if in_the_middle {
                outcome.cuts += 1;
            } else {
                sim.power_cut(PowerCut::Random);
            }
            patiently("killing the tasks", sim.kill_tasks()).await?;
            let left = Arc::downgrade(pool.pipeline());
            // Tasks that wait for a sync hold the pool.
            pool.dsl().tasks().close();
            drop(pool);
            sim.kill_tasks().await;
            nothing_left(&left, "a power cut")?;
            sim.power_on();
        }
        if cycle == 0 {
            outcome.writes = sim.counts().writes - before.writes;
            outcome.flushes = sim.counts().flushes - before.flushes;
        }
        for name in sim.disk_names() {
            if let Some(disk) = sim.disk(&name) {
                disk.clear_faults();
            }
        }
        if let Some(ssd) = sim.disk(cache_device::NAME) {
            ssd.set_gone(rng.percent(20));
        }
        for victim in &victims {
            // It may stay away.
            victim.set_gone(rng.percent(30));
        }
        let states = loop {
            // Without keys as well: all but the MACs can be verified.
            let keys = plan.golden.filter(|_| rng.percent(50));
            let report = inspect_with(&sim, "after the power cut", has_no_errors, keys);
            let report = patiently("inspection", report).await??;
            if cycle == 0 && plan.version.is_some_and(|has| has < 27) && report.log_blocks > 0 {
                return Err("a pool of a version before 27 has an intent log".into());
            }
            outcome.log_blocks += report.log_blocks;
            outcome.shared_references += report.shared_references;
            outcome.logged_entries += report.logged_entries;
            outcome.cloned_references += report.cloned_references;
            if plan.autotrim && has_no_errors {
                let older = patiently("older states", inspect_older(&sim, first));
                outcome.older_states += older.await??;
            }
            if plan.zdb {
                zdb(&sim)?;
            }
            // Recovery may be interrupted as well.
            if plan.cut != Cut::Never && rng.percent(40) {
                sim.cut_power_at(SimOp::Write, 1 + rng.below(150), PowerCut::Random);
            }
            if let Some(golden) = plan.golden
                && plan.cut != Cut::Never
                && rng.percent(30)
            {
                let visit = golden.visit_without_keys(&sim, Rng::new(rng.next_u64()));
                tokio::select! {
                    biased;
                    () = sim.power_lost() => {}
                    visited = patiently("a visit without keys", visit) => {
                        let visited = visited?;
                        if sim.is_powered() {
                            visited.map_err(|error| format!("cycle {cycle}: {error}"))?;
                        }
                    }
                }
                outcome.locked_visits += 1;
                sim.cancel_power_cut();
                patiently("killing the tasks", sim.kill_tasks()).await?;
                sim.power_on();
                continue;
            }
            let recovery: BoxFuture<'_, _> = match plan.golden {
                Some(golden) => {
                    let rng = Rng::new(rng.next_u64());
                    Box::pin(golden.recover(&sim, &books, rng))
                }
                None => Box::pin(recover(&sim, &books)),
            };
            let found = tokio::select! {
                biased;
                () = sim.power_lost() => None,
                found = patiently("recovery", recovery) => Some(found?),
            };
            if let (Some(found), true) = (found, sim.is_powered()) {
                sim.cancel_power_cut();
                let (imported, states) =
                    found.map_err(|error| format!("cycle {cycle}: {error}"))?;
                pool = imported;
                break states;
            }
            // Nobody knows where that import began.
            first = Txg::new(u64::MAX);
            outcome.recovery_cuts += 1;
            patiently("killing the tasks", sim.kill_tasks()).await?;
            sim.power_on();
        };
        for ((top, book), found) in books.iter().zip(states) {
            let mut book = book.lock();
            book.history
                .check(&found)
                .map_err(|error| format!("cycle {cycle} {top} {error}"))?;
            outcome.operations += book.history.len() as u64;
            book.failure = None;
            book.history = History::new(found);
        }
        if plan.autotrim {
            pool.set_trim_batch_txgs(1);
            first = pool.synced_txg();
        }
        // What was found, and what the replay did, is on disk from now on.
        patiently("a sync", pool.sync()).await??;
    }
    outcome.discards = sim.counts().discards;
    outcome.refused = books.iter().map(|(_, book)| book.lock().refused).sum();
    patiently("the export", pool.export(false)).await??;
    let left = Arc::downgrade(pool.pipeline());
    drop(pool);
    sim.kill_tasks().await;
    nothing_left(&left, "the export")?;
    let report = inspect_with(&sim, "after the export", has_no_errors, plan.golden);
    let report = patiently("inspection", report).await??;
    (outcome.blocks, outcome.macs) = (report.blocks, report.macs);
    if plan.zdb {
        zdb(&sim)?;
    }
    if plan.log {
        outcome.log = sim.take_log();
    }
    Ok((outcome, sim))
}

/// A pool that is gone must not be held by anything: a server imports and exports pools for years.
fn nothing_left(pipeline: &Weak<zio::Pipeline>, after: &str) -> Result<(), Failure> {
    match pipeline.strong_count() {
        0 => Ok(()),
        count => Err(format!("after {after} the pool is still held {count} times").into()),
    }
}

/// Runs a seed's plan; the error names the seed.
///
/// # Errors
/// As [`run`].
pub fn run_plan(plan: &Plan) -> Result<(Outcome, SimWorld), String> {
    simulate(run(plan))
        .map_err(|error| format!("MILLPOND_SEED={} fails ({plan:?}):\n{error}", plan.seed))
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// What `MILLPOND_SEED` says, alone, or all of these.
pub fn one_or(all: Vec<u64>) -> Vec<u64> {
    number("MILLPOND_SEED").map_or(all, |seed| vec![seed])
}

/// The seeds to run: `most` of them with `MILLPOND_LONG`, else half, or what the environment says.
pub fn seeds(most: u64) -> Vec<u64> {
    let default = match std::env::var_os("MILLPOND_LONG") {
        Some(_) => most,
        None => most.div_ceil(2),
    };
    let first = number("MILLPOND_SIM_FIRST").unwrap_or(1);
    let count = number("MILLPOND_SIM_SEEDS").unwrap_or(default);
    one_or((first..first + count).collect())
}
