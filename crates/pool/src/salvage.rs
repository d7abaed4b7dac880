//! Opening a pool of which parts are damaged or missing, to save what can be read.
//!
//! An import refuses a pool as soon as anything that it needs cannot be read: a top-level vdev, the
//! configuration, the object directory, a directory of datasets. A [`Salvage`] goes on: it is
//! read-only, and what is damaged is left out and told.
//!
//! # How
//! - The vdevs are opened as the MOS's configuration tells, or else as the labels do; top-level
//!   vdevs may be missing (like OpenZFS's `zfs_max_missing_tvds`), reads of blocks on them fail one
//!   by one.
//! - The newest uberblock whose MOS has any dataset that can be opened is taken, of those not newer
//!   than asked for.
//! - Datasets are not found through the tree of directories but by their dnodes: every object of
//!   the MOS whose bonus is a directory or a dataset counts. Names come from whatever maps of names
//!   can still be read; what has lost its name gets one by its object number.
//! - A dataset that is lost or whose root cannot be read is looked for in the older uberblocks'
//!   MOS. It is then older than the others ([`SalvagedDataset::txg`]). Blocks that were written
//!   over since fail their checksums, so nothing wrong comes of that.
//!
//! Source: module/zfs/spa.c (`spa_load_impl`, `spa_ld_*`), dsl_dir.c, dsl_dataset.c; the order in
//! which damage is worked around is our own.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use dataset::DatasetKind;
use dataset::Features;
use device::World;
use format::{
    DslDatasetPhys, DslDirPhys, Endian, Guid, NvList, NvValue, ObjectId, ObjectType, ObjsetKind,
    Txg, Uberblock,
};
use object::{ObjectError, ObjectSet, ObjsetOptions, SalvagedZap, salvage_zap};
use spa::dtl::{DirtyTimes, distrust_stale};
use spa::{config, damaged, directory, features};
use vdev::OpenOptions;

use crate::open::{Ground, mos_options, read_trusted_config};
use crate::{FoundPool, HostIdentity, ImportSpec, PoolError, removed, rewind};

/// The mark of an encrypted dataset in its object.
const ENCRYPTION: &str = "com.datto:encryption";
/// Idle objects of one dataset that stay in memory.
const OBJECT_CACHE: usize = 16 << 10;
/// Depth of directories of datasets beyond which their chain counts as a loop.
const DEPTH_MAX: usize = 256;
/// Problems that are kept; what comes after is counted only.
const PROBLEMS_MAX: usize = 10_000;

/// What to salvage.
#[derive(Debug, Clone)]
pub struct SalvageSpec {
    /// What [`crate::scan`] found.
    pub found: FoundPool,
    /// Take no uberblock that is newer than this transaction group.
    pub txg_max: Option<Txg>,
    /// Look for lost datasets in older uberblocks.
    pub older: bool,
}

/// Something that is lost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// What it is about: `MOS object 42`, `tank/home`.
    pub what: String,
    /// What is wrong.
    pub why: String,
}

/// A dataset or snapshot of a pool that is being salvaged.
#[derive(Debug, Clone)]
pub struct SalvagedDataset {
    /// Full name; made up where it is lost.
    pub name: String,
    /// Whether the name is made up.
    pub is_name_lost: bool,
    /// Object number in the MOS.
    pub object: ObjectId,
    /// Kind of the content; `None` when the root block cannot be read.
    pub kind: Option<DatasetKind>,
    /// Whether it is a snapshot.
    pub is_snapshot: bool,
    /// Txg in which it was made.
    pub creation_txg: Txg,
    /// Space that it refers to, in bytes.
    pub referenced_bytes: u64,
    /// Of which transaction group's state it is.
    pub txg: Txg,
    /// Whether it is encrypted.
    pub is_encrypted: bool,
    /// Whether it has an intent log whose records are not in it.
    pub has_log: bool,
    /// Why it cannot be opened, when it cannot.
    pub problem: Option<String>,
    root: Option<format::BlockPointer>,
}

/// One uberblock's MOS, as far as it can be read.
struct View {
    uberblock: Uberblock,
    datasets: Vec<SalvagedDataset>,
    /// Numbers of MOS objects of which nothing is known.
    lost: Vec<Range<u64>>,
    problems: Vec<Problem>,
}

impl View {
    fn is_worth_something(&self) -> bool {
        self.datasets
            .iter()
            .any(|dataset| dataset.problem.is_none())
    }

    fn covers(&self, object: ObjectId) -> bool {
        self.lost.iter().any(|range| range.contains(&object.get()))
    }

    fn is_incomplete(&self) -> bool {
        !self.lost.is_empty()
            || self
                .datasets
                .iter()
                .any(|dataset| dataset.problem.is_some() && !dataset.is_encrypted)
    }
}

/// A damaged pool, open for reading.
pub struct Salvage {
    world: World,
    ground: Ground,
    name: String,
    guid: Guid,
    uberblock: Uberblock,
    newest: Option<Txg>,
    missing: Vec<String>,
    datasets: Vec<SalvagedDataset>,
    problems: Vec<Problem>,
}

impl Salvage {
    /// Opens what can be opened. Writes nothing.
    ///
    /// # Errors
    /// When no uberblock has any dataset that can be read.
    pub async fn open(world: &World, spec: &SalvageSpec) -> Result<Self, PoolError> {
        let mut import = ImportSpec::new(spec.found.clone(), HostIdentity::default());
        import.read_only = true;
        let mut ground = rewind::untrusted(world, &import).await?;
        let result = Self::open_on(world, spec, &import, &mut ground).await;
        match result {
            Ok(open) => Ok(open.finish(world, spec, ground)),
            Err(error) => {
                ground.tree.close();
                Err(error)
            }
        }
    }

    async fn open_on(
        world: &World,
        spec: &SalvageSpec,
        import: &ImportSpec,
        ground: &mut Ground,
    ) -> Result<Opened, PoolError> {
        let name = &spec.found.name;
        distrust_stale(&ground.tree).await;
        let all = ground.tree.uberblocks().await;
        let newest = all.first().map(|uberblock| uberblock.txg);
        let limit = spec.txg_max.unwrap_or(Txg::new(u64::MAX));
        let wanted: Vec<Uberblock> = all
            .into_iter()
            .filter(|uberblock| uberblock.txg <= limit)
            .collect();
        if wanted.is_empty() {
            return Err(damaged(
                name,
                "every uberblock",
                match spec.txg_max {
                    Some(txg) => {
                        format!("none up to transaction group {txg} has the right checksum")
                    }
                    None => "none has the right checksum".to_owned(),
                },
            ));
        }
        let mut problems = Vec::new();
        trust(world, import, ground, &wanted, &mut problems).await;
        let mut rest = wanted.iter();
        let mut best: Option<View> = None;
        let mut first_error = None;
        for uberblock in rest.by_ref() {
            match survey(world, ground, name, *uberblock).await {
                Ok(view) if view.is_worth_something() => {
                    best = Some(view);
                    break;
                }
                Ok(view) => {
                    let why = "none of its datasets can be read".to_owned();
                    problems.push(state_problem(uberblock, &why));
                    first_error.get_or_insert(why);
                    // Better than nothing, if no other is better.
                    best.get_or_insert(view);
                }
                Err(error) => {
                    problems.push(state_problem(uberblock, &error.to_string()));
                    first_error.get_or_insert(error.to_string());
                }
            }
        }
        let Some(mut view) = best else {
            return Err(damaged(
                name,
                "the pool's state in every uberblock",
                first_error.unwrap_or_default(),
            ));
        };
        if spec.older {
            for uberblock in rest {
                if !view.is_incomplete() {
                    break;
                }
                match survey(world, ground, name, *uberblock).await {
                    Ok(older) => take_lost(&mut view, older),
                    // Its blocks were used for something else since: nothing that this state lacks.
                    Err(error) => {
                        tracing::debug!(txg = %uberblock.txg, %error, "too old to be read")
                    }
                }
            }
        }
        Ok(Opened {
            view,
            newest,
            problems,
        })
    }

    /// The pool's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its identity.
    pub fn guid(&self) -> Guid {
        self.guid
    }

    /// The uberblock that was taken.
    pub fn uberblock(&self) -> &Uberblock {
        &self.uberblock
    }

    /// The newest uberblock's transaction group.
    pub fn newest_txg(&self) -> Option<Txg> {
        self.newest
    }

    /// Top-level vdevs that are missing or damaged.
    pub fn missing(&self) -> &[String] {
        &self.missing
    }

    /// Datasets and snapshots by name; those that cannot be opened have a problem.
    pub fn datasets(&self) -> &[SalvagedDataset] {
        &self.datasets
    }

    /// What of the pool's own structures is lost.
    pub fn problems(&self) -> &[Problem] {
        &self.problems
    }

    /// Opens a dataset's objects.
    ///
    /// # Errors
    /// When its root cannot be read, or it is encrypted.
    pub async fn objset(&self, dataset: &SalvagedDataset) -> Result<Arc<ObjectSet>, PoolError> {
        let lost = |why: &str| damaged(&self.name, &dataset.name, why);
        if let Some(problem) = &dataset.problem {
            return Err(lost(problem));
        }
        let root = dataset.root.ok_or_else(|| lost("it has no content"))?;
        let options = dataset_options(dataset.object);
        Ok(ObjectSet::open(
            self.ground.pipeline.clone(),
            self.world.clone(),
            root,
            options,
        )
        .await?)
    }

    /// Lets go of the devices.
    pub fn close(&self) {
        self.ground.tree.close();
    }
}

/// What [`Salvage::open`] found.
struct Opened {
    view: View,
    newest: Option<Txg>,
    problems: Vec<Problem>,
}

impl Opened {
    fn finish(self, world: &World, spec: &SalvageSpec, ground: Ground) -> Salvage {
        let View {
            uberblock,
            mut datasets,
            problems,
            ..
        } = self.view;
        datasets.sort_by(|a, b| {
            let key = |dataset: &SalvagedDataset| {
                let (head, snapshot) = match dataset.name.split_once('@') {
                    Some((head, snapshot)) => (head.to_owned(), Some(snapshot.to_owned())),
                    None => (dataset.name.clone(), None),
                };
                (head, snapshot.is_some(), dataset.creation_txg, snapshot)
            };
            key(a).cmp(&key(b))
        });
        let missing = ground
            .tree
            .tops()
            .iter()
            .filter(|top| !top.state().0.is_usable())
            .map(|top| format!("{} is {}", top.display_name(), top.state().0))
            .collect();
        let mut all = self.problems;
        all.extend(problems);
        all.truncate(PROBLEMS_MAX);
        Salvage {
            world: world.clone(),
            ground,
            name: spec.found.name.clone(),
            guid: spec.found.guid,
            uberblock,
            newest: self.newest,
            missing,
            datasets,
            problems: all,
        }
    }
}

fn state_problem(uberblock: &Uberblock, why: &str) -> Problem {
    Problem {
        what: format!("the state of transaction group {}", uberblock.txg),
        why: why.to_owned(),
    }
}

/// How a dataset's objects are opened just to be read.
fn dataset_options(dataset: ObjectId) -> ObjsetOptions {
    ObjsetOptions {
        read_only: true,
        object_cache_limit: OBJECT_CACHE,
        dataset,
        ..mos_options()
    }
}

/// Replaces the vdevs of the labels by those of the newest MOS whose configuration can be read, and
/// sets what else reading depends on: the salt of checksums, and what devices missed.
async fn trust(
    world: &World,
    import: &ImportSpec,
    ground: &mut Ground,
    wanted: &[Uberblock],
    problems: &mut Vec<Problem>,
) {
    let name = &import.found.name;
    let mut trusted: Option<(NvList, Arc<ObjectSet>)> = None;
    let mut salt = None;
    let mut first_error = None;
    for uberblock in wanted {
        let Ok(mos) = open_mos(world, ground, uberblock).await else {
            continue;
        };
        if trusted.is_none() {
            match read_trusted_config(name, &mos).await {
                Ok(config) if config.list("vdev_tree").is_some() => {
                    trusted = Some((config, mos.clone()));
                }
                Ok(_) => {}
                Err(error) => {
                    first_error.get_or_insert(error.to_string());
                }
            }
        }
        if salt.is_none() {
            salt = read_salt(&mos).await;
        }
        if trusted.is_some() && salt.is_some() {
            break;
        }
    }
    if let Some((config, _)) = &trusted
        && let Some(root) = config.list("vdev_tree")
    {
        let mut root = root.clone();
        add_missing_tops(&mut root, &import.found.config);
        config::fix_paths(&mut root, &import.found.paths);
        let options = OpenOptions {
            read_only: true,
            paths: import.found.paths.clone(),
            pool_guid: Some(import.found.guid),
            ..OpenOptions::default()
        };
        match Ground::open(world, &root, options, [0; 32], import.cache()).await {
            Ok(better) => {
                ground.tree.close();
                *ground = better;
                distrust_stale(&ground.tree).await;
            }
            Err(error) => {
                first_error.get_or_insert(error.to_string());
            }
        }
    } else {
        problems.push(Problem {
            what: "the configuration in the MOS".into(),
            why: format!(
                "{}; the labels' is used",
                first_error.unwrap_or_else(|| "no MOS can be read".into())
            ),
        });
    }
    if let Some(salt) = salt {
        ground.pipeline.set_salt(salt);
    }
    // By number, as the first MOS was opened on other vdevs.
    for uberblock in wanted {
        let Ok(mos) = open_mos(world, ground, uberblock).await else {
            continue;
        };
        let times = DirtyTimes::default();
        if !times.load(&mos, &ground.tree, uberblock.txg).await {
            distrust_stale(&ground.tree).await;
        }
        return;
    }
}

/// Adds top-level vdevs that only the labels have: an older configuration does not know newer ones.
fn add_missing_tops(root: &mut NvList, labels: &NvList) {
    let found = labels
        .list("vdev_tree")
        .and_then(|tree| tree.lists("children"));
    let Some(NvValue::ListArray(tops)) = root.get_mut("children") else {
        return;
    };
    for (index, top) in found.unwrap_or_default().iter().enumerate() {
        match tops.get(index) {
            None => tops.push(top.clone()),
            Some(known)
                if matches!(known.string("type"), Some("missing" | "hole"))
                    && top.u64("ashift").is_some() =>
            {
                tops[index] = top.clone();
            }
            Some(_) => {}
        }
    }
}

async fn open_mos(
    world: &World,
    ground: &Ground,
    uberblock: &Uberblock,
) -> Result<Arc<ObjectSet>, ObjectError> {
    ground.tree.set_uberblock(uberblock);
    let mos = ObjectSet::open(
        ground.pipeline.clone(),
        world.clone(),
        uberblock.root,
        mos_options(),
    )
    .await?;
    // What is not on removed vdevs can be read all the same.
    if let Err(error) = removed::load(&ground.tree, &mos).await {
        tracing::warn!(%error, "blocks of removed vdevs cannot be found");
    }
    Ok(mos)
}

async fn read_salt(mos: &Arc<ObjectSet>) -> Option<[u8; 32]> {
    let object = mos.hold(ObjectId::POOL_DIRECTORY).await.ok()?;
    let entries = salvage_zap(&object).await.entries;
    let (_, value) = entries
        .iter()
        .find(|(name, _)| name == directory::CHECKSUM_SALT.as_bytes())?;
    value.data.as_ref().try_into().ok()
}

/// Everything of the MOS that has to do with datasets.
#[derive(Default)]
struct Parts {
    dirs: BTreeMap<ObjectId, DslDirPhys>,
    datasets: BTreeMap<ObjectId, (DslDatasetPhys, bool)>,
    /// Names of directories and snapshots by the map that has them.
    maps: BTreeMap<ObjectId, SalvagedZap>,
    lost: Vec<Range<u64>>,
    problems: Vec<Problem>,
}

impl Parts {
    fn lose(&mut self, what: String, why: impl ToString) {
        self.problems.push(Problem {
            what,
            why: why.to_string(),
        });
    }

    async fn gather(mos: &Arc<ObjectSet>) -> Self {
        let mut parts = Self::default();
        let mut from = Some(0);
        while let Some(at) = from {
            let run = mos.dnode_run(at).await;
            from = run.next;
            if let Some((range, error)) = run.lost {
                let what = format!("MOS objects {} to {}", range.start, range.end - 1);
                parts.lose(what, error);
                parts.lost.push(range);
            }
            for id in run.objects {
                if let Err(error) = parts.take(mos, id).await {
                    parts.lose(format!("MOS object {id}"), error);
                    parts.lost.push(id.get()..id.get() + 1);
                }
            }
        }
        parts
    }

    async fn take(&mut self, mos: &Arc<ObjectSet>, id: ObjectId) -> Result<(), PoolError> {
        let object = mos.hold(id).await?;
        let info = object.info();
        match (info.object_type, info.bonus_type) {
            (_, ObjectType::DSL_DIR) => {
                let phys = DslDirPhys::decode(&object.bonus(), Endian::Little)?;
                self.dirs.insert(id, phys);
            }
            (kind, ObjectType::DSL_DATASET) => {
                let phys = DslDatasetPhys::decode(&object.bonus(), Endian::Little)?;
                let mut is_encrypted = phys.block.is_encrypted();
                if kind == ObjectType::OTN_ZAP_METADATA {
                    let marks = salvage_zap(&object).await;
                    is_encrypted |= marks.number(ENCRYPTION).is_some();
                    for error in marks.losses {
                        self.lose(format!("features of dataset object {id}"), error);
                    }
                }
                self.datasets.insert(id, (phys, is_encrypted));
            }
            (ObjectType::DSL_DIR_CHILD_MAP | ObjectType::DSL_DS_SNAP_MAP, _) => {
                let map = salvage_zap(&object).await;
                for error in &map.losses {
                    self.lose(format!("names in MOS object {id}"), error);
                }
                self.maps.insert(id, map);
            }
            _ => {}
        }
        Ok(())
    }

    /// A name for `object` in the map it should be in, or else in any.
    fn name_in(&self, map: Option<ObjectId>, object: ObjectId) -> Option<String> {
        let find = |map: &SalvagedZap| {
            let name = map.name_of(object.get())?;
            Some(String::from_utf8_lossy(name).into_owned())
        };
        map.and_then(|map| find(self.maps.get(&map)?))
            .or_else(|| self.maps.values().find_map(find))
    }

    /// Full name of a directory, and whether any part of it is made up.
    fn dir_name(&self, pool: &str, id: ObjectId) -> (String, bool) {
        let mut parts = Vec::new();
        let mut is_lost = false;
        let mut at = id;
        let mut seen = BTreeSet::new();
        loop {
            let made_up = format!("lost-{at}");
            if parts.len() >= DEPTH_MAX || !seen.insert(at) {
                is_lost = true;
                break;
            }
            let Some(phys) = self.dirs.get(&at) else {
                is_lost = true;
                parts.push(self.name_in(None, at).unwrap_or(made_up));
                break;
            };
            if phys.parent.is_zero() {
                break;
            }
            let map = self
                .dirs
                .get(&phys.parent)
                .map(|parent| parent.child_directories);
            match self.name_in(map, at) {
                Some(name) => parts.push(name),
                None => {
                    is_lost = true;
                    parts.push(made_up);
                }
            }
            at = phys.parent;
        }
        parts.push(pool.to_owned());
        parts.reverse();
        (parts.join("/"), is_lost)
    }
}

/// All datasets that can be found from one uberblock.
async fn survey(
    world: &World,
    ground: &Ground,
    pool: &str,
    uberblock: Uberblock,
) -> Result<View, PoolError> {
    let mos = open_mos(world, ground, &uberblock).await?;
    let mut parts = Parts::gather(&mos).await;
    match Features::open(&mos).await {
        Ok(found) => {
            let (unreadable, _) = features::blocked(&found.all());
            if !unreadable.is_empty() {
                parts.lose(
                    "what needs features that this release lacks".into(),
                    unreadable.join(", "),
                );
            }
        }
        Err(error) => parts.lose("the feature flags".into(), error),
    }
    let mut datasets = Vec::new();
    for (id, (phys, is_encrypted)) in &parts.datasets {
        let (dir_name, mut is_name_lost) = parts.dir_name(pool, phys.directory);
        if dir_name.split('/').any(|part| part.starts_with('$')) {
            continue;
        }
        let dir = parts.dirs.get(&phys.directory);
        let mut name = dir_name;
        if phys.is_snapshot() {
            let head = dir.and_then(|dir| parts.datasets.get(&dir.head_dataset));
            let map = head.map(|(head, _)| head.snapshot_names);
            let snapshot = parts.name_in(map, *id);
            is_name_lost |= snapshot.is_none();
            name.push('@');
            name.push_str(&snapshot.unwrap_or_else(|| format!("lost-{id}")));
        } else if dir.is_some_and(|dir| dir.head_dataset != *id) {
            name = format!("{name}/lost-{id}");
            is_name_lost = true;
        }
        let mut dataset = SalvagedDataset {
            name,
            is_name_lost,
            object: *id,
            kind: None,
            is_snapshot: phys.is_snapshot(),
            creation_txg: phys.creation_txg,
            referenced_bytes: phys.referenced_bytes,
            txg: uberblock.txg,
            is_encrypted: *is_encrypted,
            has_log: false,
            problem: None,
            root: None,
        };
        open_root(world, ground, phys, &mut dataset).await;
        datasets.push(dataset);
    }
    lost_names(pool, &parts, uberblock.txg, &mut datasets);
    Ok(View {
        uberblock,
        datasets,
        lost: parts.lost,
        problems: parts.problems,
    })
}

async fn open_root(
    world: &World,
    ground: &Ground,
    phys: &DslDatasetPhys,
    dataset: &mut SalvagedDataset,
) {
    if dataset.is_encrypted {
        dataset.problem = Some("it is encrypted; import the pool to load its key".into());
        return;
    }
    if phys.block.is_hole() {
        dataset.problem = Some("it has no content".into());
        return;
    }
    let options = dataset_options(dataset.object);
    let opened = ObjectSet::open(ground.pipeline.clone(), world.clone(), phys.block, options).await;
    match opened {
        Ok(objset) => {
            dataset.root = Some(phys.block);
            dataset.has_log =
                zil::awaits_replay(&ground.pipeline, &objset.zil_header(), dataset.txg).await;
            dataset.kind = match objset.kind() {
                ObjsetKind::Filesystem => Some(DatasetKind::Filesystem),
                ObjsetKind::Volume => Some(DatasetKind::Volume),
                _ => None,
            };
            if dataset.kind.is_none() {
                dataset.problem = Some("it is neither a filesystem nor a volume".into());
            }
        }
        Err(error) => dataset.problem = Some(error.to_string()),
    }
}

/// Names that maps have and whose datasets are gone.
fn lost_names(pool: &str, parts: &Parts, txg: Txg, datasets: &mut Vec<SalvagedDataset>) {
    let mut lose = |name: String, object: ObjectId, is_snapshot, why: &str| {
        datasets.push(SalvagedDataset {
            name,
            is_name_lost: false,
            object,
            kind: None,
            is_snapshot,
            creation_txg: Txg::ZERO,
            referenced_bytes: 0,
            txg,
            is_encrypted: false,
            has_log: false,
            problem: Some(why.to_owned()),
            root: None,
        });
    };
    for (id, dir) in &parts.dirs {
        let (dir_name, _) = parts.dir_name(pool, *id);
        if dir_name.split('/').any(|part| part.starts_with('$')) {
            continue;
        }
        for (name, value) in parts
            .maps
            .get(&dir.child_directories)
            .map_or(&[][..], |map| &map.entries)
        {
            let child = ObjectId::new(value.as_u64().unwrap_or(0));
            let name = String::from_utf8_lossy(name);
            if !name.starts_with('$') && !parts.dirs.contains_key(&child) {
                let name = format!("{dir_name}/{name}");
                lose(name, child, false, "its directory in the MOS is lost");
            }
        }
        let head = dir.head_dataset;
        match parts.datasets.get(&head) {
            None if !head.is_zero() => {
                lose(dir_name, head, false, "its dataset in the MOS is lost");
            }
            None => {}
            Some((phys, _)) => {
                let names = parts.maps.get(&phys.snapshot_names);
                for (name, value) in names.map_or(&[][..], |map| &map.entries) {
                    let child = ObjectId::new(value.as_u64().unwrap_or(0));
                    if !parts.datasets.contains_key(&child) {
                        let name = format!("{dir_name}@{}", String::from_utf8_lossy(name));
                        lose(name, child, true, "its dataset in the MOS is lost");
                    }
                }
            }
        }
    }
}

/// Replaces what is lost in `view` by what an older state has of it.
fn take_lost(view: &mut View, older: View) {
    for dataset in older.datasets {
        if dataset.problem.is_some() {
            continue;
        }
        let is_covered = view.covers(dataset.object);
        let same = view
            .datasets
            .iter_mut()
            .find(|known| known.object == dataset.object || known.name == dataset.name);
        match same {
            Some(known) if known.problem.is_some() && !known.is_encrypted => {
                let why = known.problem.take().unwrap_or_default();
                view.problems.push(Problem {
                    what: dataset.name.clone(),
                    why: format!(
                        "{why}; its older state of transaction group {} is used",
                        dataset.txg
                    ),
                });
                let name = if known.is_name_lost {
                    dataset.name.clone()
                } else {
                    known.name.clone()
                };
                *known = SalvagedDataset { name, ..dataset };
            }
            Some(known) if known.is_name_lost && !dataset.is_name_lost => {
                known.name = dataset.name;
                known.is_name_lost = false;
            }
            Some(_) => {}
            None if is_covered => {
                view.problems.push(Problem {
                    what: dataset.name.clone(),
                    why: format!(
                        "it is lost; its older state of transaction group {} is used",
                        dataset.txg
                    ),
                });
                view.datasets.push(dataset);
            }
            None => {}
        }
    }
}
