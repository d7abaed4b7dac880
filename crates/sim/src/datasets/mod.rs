//! Runs of operations on the datasets of two pools, with streams between them, and power cuts: what
//! is found must be what a plain model says, file by file, and figures must be those that counting
//! block by block gives.
//!
//! One operation comes after the other. Those on datasets are on disk when they end; files that
//! were written are so with the next of them. So after a power cut a pool must be in one of the
//! states since then, or in the one that the operation under way leads to. Operations that the
//! model refuses are tried as well, and must be refused.
//!
//! | Module | What it is |
//! |---|---|
//! | [`model`] | what datasets should be, and what is refused |
//! | [`found`] | what they are |
//! | [`steps`] | random operations |
//! | [`programs`] | several of them in one transaction group |
//! | [`streams`] | random streams |

mod found;
mod model;
mod programs;
mod steps;
mod streams;

use std::collections::BTreeMap;
use std::future::Future;
use std::path::Path;
use std::sync::Arc;

use dataset::{DatasetError, PropertyChange};
use device::sim::{PowerCut, SimOp, SimWorld};
use filesystem::Filesystem;
use pool::Pool;
use volume::Volume;

use crate::rng::Rng;
use crate::torture::{Layout, POOL, create_with, import, inspect, patiently, simulate, zdb};
use crate::verify::{Failure, verify_pool};
pub use found::Figures;
use found::{Found, check_figures, difference, figures, observe};
use model::{PoolModel, Sent};

/// A run.
#[derive(Debug, Clone, Copy)]
pub struct DatasetPlan {
    /// What decides everything that is left to chance.
    pub seed: u64,
    /// Operations.
    pub steps: usize,
    /// Of a hundred operations, how many the power goes in.
    pub cut_percent: u64,
    /// Have zdb look at the images, after power cuts and in the end, where there is one.
    pub zdb: bool,
    /// The pools lack features, each other ones: some of [`UNASKED`].
    pub lacks_features: bool,
    /// Some operations are programs of several.
    pub has_programs: bool,
}

/// Features that no operation and no stream asks for: a pool without them does the same.
pub const UNASKED: &[&str] = &[
    "empty_bpobj",
    "enabled_txg",
    "hole_birth",
    "device_removal",
    "obsolete_counts",
    "zpool_checkpoint",
    "spacemap_v2",
    "resilver_defer",
    "log_spacemap",
    "livelist",
    "zilsaxattr",
    "head_errlog",
    "block_cloning",
    "vdev_zaps_v2",
];

impl DatasetPlan {
    /// What one seed stands for.
    pub fn of(seed: u64) -> Self {
        let mut rng = Rng::new(seed ^ 0x6461_7461);
        DatasetPlan {
            seed,
            steps: 60 + rng.below(120) as usize,
            cut_percent: [0, 3, 8][rng.below(3) as usize],
            zdb: seed.is_multiple_of(4),
            lacks_features: false,
            has_programs: false,
        }
    }
}

/// What a run did.
#[derive(Debug, Default)]
pub struct DatasetOutcome {
    /// Operations that were done, by name.
    pub done: BTreeMap<&'static str, u64>,
    /// Operations that were refused, as they had to be, by name.
    pub refused: BTreeMap<&'static str, u64>,
    /// Power cuts in the middle of an operation.
    pub cuts: u64,
    /// Figures that were compared with what counting gives.
    pub figures: u64,
}

/// The rest of an interrupted receive.
#[derive(Debug, Clone)]
struct Rest {
    /// Which pool it came from.
    source: usize,
    sent: Sent,
    token: String,
}

/// A dataset that is open.
#[derive(Clone)]
enum Opened {
    Filesystem(Arc<Filesystem>),
    Volume(Arc<Volume>),
}

/// A pool, its model, and what is open.
struct Side {
    sim: SimWorld,
    /// Nothing while it has no power.
    pool: Option<Arc<Pool>>,
    open: BTreeMap<String, Opened>,
    /// States since the last that is on disk, each with what led to it.
    history: Vec<(String, Arc<PoolModel>)>,
    rests: BTreeMap<String, Rest>,
    /// What is being received, if something is.
    receiving: Option<(String, Rest)>,
}

impl Side {
    async fn new(seed: u64, layout: Layout, lacks_features: bool) -> Result<Self, Failure> {
        let sim = SimWorld::new(seed);
        let mut rng = Rng::new(seed ^ 0x6665_6174);
        let mut lacks = UNASKED.to_vec();
        lacks.retain(|_| lacks_features && rng.percent(50));
        let lacks = lacks
            .into_iter()
            .map(|name| (format!("feature@{name}"), "disabled".to_owned()));
        let pool = create_with(&sim, layout, 128, false, lacks.collect()).await?;
        // What is read to be compared is not changed by that.
        let change = PropertyChange::Set("off".into());
        let properties = pool.dsl().properties();
        properties.set(POOL, &[("atime".into(), change)]).await?;
        Ok(Side {
            sim,
            pool: Some(pool),
            open: BTreeMap::new(),
            history: vec![("start".into(), Arc::default())],
            rests: BTreeMap::new(),
            receiving: None,
        })
    }

    fn pool(&self) -> &Arc<Pool> {
        self.pool.as_ref().expect("a pool with power")
    }

    /// What there should be now.
    fn model(&self) -> &Arc<PoolModel> {
        &self.history.last().expect("never empty").1
    }

    fn issue(&mut self, what: &str, model: PoolModel) {
        if std::env::var_os("MILLPOND_TRACE").is_some() {
            eprintln!("{what}");
        }
        self.history.push((what.to_owned(), Arc::new(model)));
    }

    /// All up to now is on disk.
    fn is_synced(&mut self) {
        self.history.drain(..self.history.len() - 1);
    }

    async fn opened(&mut self, name: &str) -> Result<Opened, Failure> {
        if let Some(opened) = self.open.get(name) {
            return Ok(opened.clone());
        }
        let dataset = self.pool().dsl().open_dataset(name).await?;
        let world = self.sim.world();
        let opened = match self.model().sets[name].is_volume {
            true => Opened::Volume(Volume::open(dataset, world).await?),
            false => Opened::Filesystem(Filesystem::open(dataset, world).await?),
        };
        self.open.insert(name.to_owned(), opened.clone());
        Ok(opened)
    }

    /// Loads the user's key of a dataset's encryption root, as it came with a raw stream.
    async fn load_key(&mut self, name: &str) -> Result<(), Failure> {
        let model = self.model().clone();
        let Some(key) = model.key(name) else {
            return Ok(());
        };
        let root = model.root_name(key.root).ok_or("no encryption root")?;
        self.close("").await?;
        let keys = self.pool().dsl().keys();
        match keys.unload(root).await {
            Ok(()) | Err(DatasetError::KeyNotLoaded { .. }) => {}
            Err(error) => return Err(format!("unload {root}: {error}").into()),
        }
        let loaded = keys.load(root, found::wrapping(key.user), false).await;
        loaded.map_err(|error| format!("load {root} {}: {error}", key.user).into())
    }

    /// Closes what is open at and below a filesystem; everything where there is no name.
    async fn close(&mut self, name: &str) -> Result<(), Failure> {
        let below = format!("{name}/");
        let is_meant = |open: &String| name.is_empty() || open == name || open.starts_with(&below);
        let names: Vec<String> = self
            .open
            .keys()
            .filter(|open| is_meant(open))
            .cloned()
            .collect();
        for name in names {
            match self.open.remove(&name) {
                Some(Opened::Filesystem(fs)) => fs.close().await?,
                Some(Opened::Volume(volume)) => volume.close().await?,
                None => {}
            }
        }
        Ok(())
    }
}

/// Two pools.
struct Run {
    rng: Rng,
    sides: [Side; 2],
    /// Of snapshots, by number in the models.
    guids: BTreeMap<u64, u64>,
    /// Numbers and names so far.
    last: u64,
    has_programs: bool,
    outcome: DatasetOutcome,
}

impl Run {
    fn fresh(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    fn name(&mut self, prefix: &str) -> String {
        format!("{prefix}{}", self.fresh())
    }

    /// Compares a pool with its model, and its figures with its blocks.
    async fn compare(&mut self, side: usize, when: &str) -> Result<(), Failure> {
        let world = self.sides[side].sim.world();
        self.sides[side].close("").await?;
        let pool = self.sides[side].pool().clone();
        pool.sync().await?;
        self.sides[side].is_synced();
        let found = observe(pool.dsl(), &world).await?;
        let model = self.sides[side].model().clone();
        if let Some(what) = difference(&model, &found, &self.guids) {
            return Err(format!("{when}: pool {side}: {what}").into());
        }
        let rests: Vec<_> = found.rests.keys().collect();
        let wanted: Vec<_> = self.sides[side].rests.keys().collect();
        if rests != wanted || !found.dead.is_empty() {
            let dead = &found.dead;
            return Err(
                format!("{when}: pool {side}: rests {rests:?} {dead:?}, not {wanted:?}").into(),
            );
        }
        self.learn(&model, &found);
        // Reading marks nothing as changed.
        pool.sync().await?;
        let report = verify_pool(&pool).await?;
        if !report.problems.is_empty() {
            let some: Vec<_> = report.problems.iter().take(25).cloned().collect();
            return Err(format!("{when}: pool {side}:\n{}", some.join("\n")).into());
        }
        let figures = check_figures(pool.dsl(), &report).await;
        self.outcome.figures += figures.map_err(|error| format!("{when}: pool {side}: {error}"))?;
        Ok(())
    }

    /// Notes GUIDs of snapshots.
    fn learn(&mut self, model: &PoolModel, found: &Found) {
        for (name, set) in &model.sets {
            for (snap, other) in set.snaps.iter().zip(&found.sets[name].snaps) {
                self.guids.insert(snap.id, other.guid);
            }
        }
    }

    /// After a power cut: the pool comes back, and is what it was at some moment since it was last
    /// on disk.
    async fn recover(&mut self, side: usize, with_zdb: bool) -> Result<(), Failure> {
        self.outcome.cuts += 1;
        let world = self.sides[side].sim.world();
        {
            let side = &mut self.sides[side];
            patiently("killing the tasks", side.sim.kill_tasks()).await?;
            let pool = side.pool.take().expect("a pool that had power");
            pool.dsl().tasks().close();
            side.open.clear();
            let left = Arc::downgrade(pool.pipeline());
            drop(pool);
            side.sim.kill_tasks().await;
            if left.strong_count() > 0 {
                return Err("after a power cut the pool is still held".into());
            }
            side.sim.power_on();
            let report = inspect(&side.sim, "after the power cut", true);
            patiently("inspection", report).await??;
            // It takes what a receive has begun for whole.
            if with_zdb && side.rests.is_empty() && side.receiving.is_none() {
                zdb(&side.sim)?;
            }
        }
        let pool = patiently("import", import(&self.sides[side].sim, false)).await??;
        // As the server does it.
        pool.dsl().receives().destroy_interrupted().await?;
        let found = patiently("reading", observe(pool.dsl(), &world)).await??;
        if !found.dead.is_empty() {
            return Err(format!("pool {side}: rests stay: {:?}", found.dead).into());
        }
        let mut problems = Vec::new();
        let history = std::mem::take(&mut self.sides[side].history);
        for (what, model) in history.iter().rev() {
            match difference(model, &found, &self.guids) {
                None => {
                    self.sides[side].history = vec![(what.clone(), model.clone())];
                    break;
                }
                Some(differs) => problems.push(format!("  {what}: {differs}")),
            }
        }
        if self.sides[side].history.is_empty() {
            let all = problems.join("\n");
            return Err(format!("pool {side} is none of what it was:\n{all}").into());
        }
        let model = self.sides[side].model().clone();
        self.learn(&model, &found);
        let here = &mut self.sides[side];
        if let Some((name, rest)) = here.receiving.take() {
            here.rests.entry(name).or_insert(rest);
        }
        let unknown = found
            .rests
            .keys()
            .find(|name| !here.rests.contains_key(*name));
        if let Some(name) = unknown {
            return Err(format!("pool {side}: {name} has the rest of a receive").into());
        }
        here.rests.retain(|name, _| found.rests.contains_key(name));
        for (name, (token, _)) in found.rests {
            let rest = here.rests.get_mut(&name);
            rest.expect("it was kept").token = token;
        }
        here.pool = Some(pool);
        Ok(())
    }

    /// Does something to a pool, in the middle of which its power may go; whether it did not.
    async fn unless_cut<T>(
        sim: SimWorld,
        work: impl Future<Output = Result<T, Failure>>,
    ) -> Result<Option<T>, Failure> {
        tokio::select! {
            biased;
            () = sim.power_lost() => Ok(None),
            done = patiently("an operation", work) => match done? {
                Ok(done) => Ok(Some(done)),
                Err(_) if !sim.is_powered() => Ok(None),
                Err(error) => Err(error),
            },
        }
    }

    /// Does what the plan says, and exports the pools; what they said of themselves last.
    async fn all(&mut self, plan: &DatasetPlan) -> Result<Vec<Figures>, Failure> {
        let mut said = Vec::new();
        for step in 0..plan.steps {
            let side = self.rng.below(2) as usize;
            let sim = self.sides[side].sim.clone();
            if self.rng.percent(plan.cut_percent) {
                let most = [10, 60, 400][self.rng.below(3) as usize];
                let count = 1 + self.rng.below(most);
                sim.cut_power_at(SimOp::Write, count, PowerCut::Random);
            }
            let done = Self::unless_cut(sim.clone(), self.step(side)).await;
            let done = done.map_err(|error| format!("step {step}: {error}"))?;
            sim.cancel_power_cut();
            if done.is_none() {
                let back = self.recover(side, plan.zdb).await;
                back.map_err(|error| format!("step {step}: {error}"))?;
            }
            self.sides[side].receiving = None;
            if self.rng.percent(5) {
                self.compare(side, &format!("step {step}")).await?;
            }
        }
        for side in 0..2 {
            if plan.zdb {
                // It takes them for whole datasets.
                self.abandon_all(side).await?;
            }
            self.compare(side, "in the end").await?;
            let pool = self.sides[side].pool.take().expect("a pool");
            said.push(figures(pool.dsl()).await?);
            patiently("the export", pool.export(false)).await??;
            let left = Arc::downgrade(pool.pipeline());
            drop(pool);
            self.sides[side].sim.kill_tasks().await;
            if left.strong_count() > 0 {
                return Err("after the export the pool is still held".into());
            }
            let sim = &self.sides[side].sim;
            patiently("inspection", inspect(sim, "after the export", true)).await??;
            if plan.zdb {
                zdb(sim)?;
            }
        }
        Ok(said)
    }
}

async fn run(plan: &DatasetPlan) -> Result<(Run, Vec<Figures>), Failure> {
    let mut rng = Rng::new(plan.seed);
    let layouts = [Layout::Single, Layout::Mirror(2), Layout::Raidz(1, 3)];
    let mut layout = || layouts[rng.below(3) as usize];
    let layouts = [layout(), layout()];
    let mut run = Run {
        sides: [
            Side::new(plan.seed, layouts[0], plan.lacks_features).await?,
            Side::new(
                plan.seed ^ 0x006f_7468_6572,
                layouts[1],
                plan.lacks_features,
            )
            .await?,
        ],
        rng,
        guids: BTreeMap::new(),
        last: 0,
        has_programs: plan.has_programs,
        outcome: DatasetOutcome::default(),
    };
    let said = run.all(plan).await?;
    Ok((run, said))
}

/// Runs a seed's plan; the error names the seed.
///
/// # Errors
/// What was lost, damaged, wrong or hung, in words.
pub fn run_datasets(plan: &DatasetPlan) -> Result<DatasetOutcome, String> {
    named(plan, async { Ok(run(plan).await?.0.outcome) })
}

/// The same, for somebody else to look at the pools, both called [`POOL`]: stores the images of
/// their disks in directories `0` and `1` of `directory`, and gives what each pool says of its
/// datasets. Rests of receives are abandoned in the end where the plan has zdb look.
///
/// # Errors
/// As [`run_datasets`].
pub fn run_datasets_into(plan: &DatasetPlan, directory: &Path) -> Result<Vec<Figures>, String> {
    named(plan, async {
        let (run, said) = run(plan).await?;
        for (number, side) in run.sides.iter().enumerate() {
            let own = directory.join(number.to_string());
            std::fs::create_dir_all(&own)?;
            for name in side.sim.disk_names() {
                if let Some(disk) = side.sim.disk(&name) {
                    disk.save_image(own.join(format!("{name}.img")))?;
                }
            }
        }
        Ok(said)
    })
}

fn named<T>(
    plan: &DatasetPlan,
    work: impl Future<Output = Result<T, Failure>>,
) -> Result<T, String> {
    simulate(work)
        .map_err(|error| format!("MILLPOND_SEED={} fails ({plan:?}):\n{error}", plan.seed))
}
