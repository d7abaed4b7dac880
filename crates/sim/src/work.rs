//! Random operations on datasets, and the history of what they were told is durable.
//!
//! A [`Worker`] owns everything below one dataset and does one operation after the other; several
//! workers run at the same time. Before an operation starts, the state that it leads to is added to
//! the [`History`]; so after a power cut what is found must be one of the states of the history, not
//! before the last that was reported durable. Where an intent log is in use files and datasets may
//! each be at another state, since only what was asked for is in the log.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use dataset::{DatasetError, PropertyChange};
use device::World;
use engine::Pool;
use filesystem::{
    Allocate, Caller, FileKind, Filesystem, FsError, RenameMode, SetAttributes, XattrMode,
};
use parking_lot::Mutex;
use volume::{Volume, VolumeError};

use crate::model::{
    Content, DatasetModel, File, FileId, FsModel, Ids, ROOT, SECTOR, Seeds, State, VolumeModel,
    difference, file_difference, observe_files, observe_volume, sector,
};
use crate::rng::Rng;
use crate::verify::Failure;

/// Size of volumes, in bytes: below the size at which a write is split.
const VOLUME_BYTES: u64 = 3 << 20;
/// Files per filesystem, about.
const FILES_MAX: usize = 60;
/// Snapshots per dataset.
const SNAPSHOTS_MAX: usize = 4;
/// A property that is being set.
const UNKNOWN: &str = "?";
/// Filesystems per worker.
const FILESYSTEMS_MAX: usize = 3;

/// The states that a worker's datasets went through.
#[derive(Debug, Default)]
pub struct History {
    steps: Vec<(String, Arc<State>)>,
    /// Number of the first of `steps`.
    base: usize,
    /// Everything up to this step is on disk, in every dataset.
    synced: usize,
    /// In this dataset everything up to this step.
    datasets: BTreeMap<String, usize>,
    /// Of this file everything up to this step.
    files: BTreeMap<(String, FileId), usize>,
    /// Whether an intent log was there.
    pub uses_log: bool,
}

impl History {
    /// From a state that is on disk.
    pub fn new(state: State) -> Self {
        History {
            steps: vec![("start".into(), Arc::new(state))],
            ..History::default()
        }
    }

    fn last(&self) -> usize {
        self.base + self.steps.len() - 1
    }

    fn issue(&mut self, what: String, state: State) -> usize {
        if std::env::var_os("MILLPOND_TRACE").is_some() {
            eprintln!("step {}: {what}", self.last() + 1);
        }
        self.steps.push((what, Arc::new(state)));
        self.last()
    }

    /// The last operation was not done.
    fn cancel(&mut self) {
        self.steps.pop();
    }

    fn set_synced(&mut self, step: usize) {
        self.synced = self.synced.max(step);
        let before = self.synced - self.base;
        self.steps.drain(..before);
        self.base = self.synced;
    }

    /// The state that the last operation leads to.
    pub fn newest(&self) -> Arc<State> {
        self.steps.last().expect("never empty").1.clone()
    }

    /// Number of operations so far.
    pub fn len(&self) -> usize {
        self.last()
    }

    /// Whether nothing was done.
    pub fn is_empty(&self) -> bool {
        self.last() == 0
    }

    /// Compares what was found after a crash with the history.
    ///
    /// # Errors
    /// What does not fit, in words.
    pub fn check(&self, found: &State) -> Result<(), String> {
        let mut problems = Vec::new();
        for (index, (what, wanted)) in self.steps.iter().enumerate().rev() {
            match state_difference(wanted, found) {
                None => return Ok(()),
                Some(differs) => {
                    problems.push(format!("  step {} ({what}): {differs}", self.base + index));
                }
            }
        }
        let strict = format!(
            "matches none of the states since step {} (last {}):\n{}",
            self.synced,
            self.last(),
            problems.join("\n")
        );
        if !self.uses_log {
            return Err(strict);
        }
        self.check_each(found)
            .map_err(|relaxed| format!("{strict}\nand each on its own: {relaxed}"))
    }

    fn since(&self, step: usize) -> impl DoubleEndedIterator<Item = &Arc<State>> {
        self.steps[step.max(self.base) - self.base..]
            .iter()
            .map(|(_, state)| state)
    }

    /// Each dataset, and in filesystems each file, on its own.
    fn check_each(&self, found: &State) -> Result<(), String> {
        let shape = |state: &State| -> Vec<(String, Vec<String>)> {
            let names = |dataset: &DatasetModel| {
                dataset
                    .snapshots
                    .iter()
                    .map(|(name, _)| name.clone())
                    .collect()
            };
            state
                .iter()
                .map(|(name, dataset)| (name.clone(), names(dataset)))
                .collect()
        };
        let same_shape = self
            .since(0)
            .find(|state| {
                shape(state) == shape(found)
                    && found.iter().all(|(name, dataset)| {
                        let wanted = state[name].snapshots.iter();
                        wanted
                            .zip(&dataset.snapshots)
                            .all(|(one, other)| difference(&one.1, &other.1).is_none())
                    })
            })
            .is_some();
        if !same_shape {
            return Err("datasets or snapshots differ".into());
        }
        for (name, dataset) in found {
            let from = self.datasets.get(name).copied().unwrap_or(0);
            let mut why = Vec::new();
            let fits = self.since(from).rev().any(|state| {
                let Some(wanted) = state.get(name) else {
                    return false;
                };
                let differs = match (&*wanted.content, &*dataset.content) {
                    (Content::Files(wanted), Content::Files(found)) => {
                        self.files_fit(name, wanted, found).err()
                    }
                    (wanted, found) => difference(wanted, found),
                };
                let fits = differs.is_none();
                why.extend(differs);
                fits
            });
            if !fits {
                why.dedup();
                return Err(format!("{name} since step {from}: {}", why.join("; ")));
            }
        }
        Ok(())
    }

    fn files_fit(&self, name: &str, wanted: &FsModel, found: &FsModel) -> Result<(), String> {
        let (wanted, found) = (wanted.view(), found.view());
        let lossy = String::from_utf8_lossy;
        if let Some(path) = wanted.keys().find(|path| !found.contains_key(*path)) {
            return Err(format!("{} is missing", lossy(path)));
        }
        for (path, seen) in &found {
            let Some(model) = wanted.get(path) else {
                return Err(format!("{} should not be there", lossy(path)));
            };
            if model.same_as != seen.same_as || model.file.kind != seen.file.kind {
                return Err(format!("{} is another file", lossy(path)));
            }
            let key = (name.to_owned(), model.id);
            let from = self.files.get(&key).copied().unwrap_or(0);
            let versions: Vec<&Arc<File>> = self
                .since(from)
                .filter_map(|state| match &*state.get(name)?.content {
                    Content::Files(files) => files.files.get(&model.id),
                    Content::Sectors(_) => None,
                })
                .collect();
            // Data, permissions and attributes come to the log separately.
            let data = versions
                .iter()
                .any(|version| version.data == seen.file.data);
            let owner = versions
                .iter()
                .any(|version| (version.mode, version.owner) == (seen.file.mode, seen.file.owner));
            let xattrs = versions
                .iter()
                .any(|version| version.xattrs == seen.file.xattrs);
            if !(data && owner && xattrs) {
                let differs = versions
                    .last()
                    .and_then(|version| file_difference(version, &seen.file));
                return Err(format!("{}: {differs:?} (since step {from})", lossy(path)));
            }
        }
        Ok(())
    }
}

fn state_difference(wanted: &State, found: &State) -> Option<String> {
    for (name, dataset) in wanted {
        let Some(other) = found.get(name) else {
            return Some(format!("{name} is missing"));
        };
        if let Some(what) = difference(&dataset.content, &other.content) {
            return Some(format!("{name}: {what}"));
        }
        let names = |dataset: &DatasetModel| -> Vec<String> {
            dataset
                .snapshots
                .iter()
                .map(|(name, _)| name.clone())
                .collect()
        };
        if names(dataset) != names(other) {
            return Some(format!(
                "{name}: snapshots {:?}, not {:?}",
                names(other),
                names(dataset)
            ));
        }
        for ((snapshot, one), (_, two)) in dataset.snapshots.iter().zip(&other.snapshots) {
            if let Some(what) = difference(one, two) {
                return Some(format!("{name}@{snapshot}: {what}"));
            }
        }
        for (property, value) in &dataset.properties {
            // How a value reads is known once it was set.
            if value != UNKNOWN && other.properties.get(property) != Some(value) {
                return Some(format!(
                    "{name}: {property} is {:?}, not {value}",
                    other.properties.get(property)
                ));
            }
        }
        if dataset.origin != other.origin {
            return Some(format!(
                "{name}: a clone of {:?}, not {:?}",
                other.origin, dataset.origin
            ));
        }
    }
    let extra = found.keys().find(|name| !wanted.contains_key(*name))?;
    Some(format!("{extra} should not be there"))
}

/// What outlives the worker's task.
#[derive(Debug, Default)]
pub struct Book {
    /// The states.
    pub history: History,
    /// Files' objects.
    pub ids: Ids,
    /// Seeds of sectors.
    pub seeds: Seeds,
    /// Names used so far.
    pub names: u64,
    /// What went wrong although nothing was made to.
    pub failure: Option<String>,
    /// It did all its steps.
    pub finished: bool,
    /// Operations refused for lack of space.
    pub refused: u64,
}

enum Handle {
    Files(Arc<Filesystem>),
    Sectors(Arc<Volume>),
}

/// How an operation ended.
enum End {
    Done,
    Refused,
}

/// Whether an error only says that there is no space.
trait Refusal: std::fmt::Display {
    fn is_refusal(&self) -> bool;
}

impl Refusal for FsError {
    fn is_refusal(&self) -> bool {
        matches!(self, FsError::NoSpace | FsError::QuotaExceeded)
    }
}

impl Refusal for VolumeError {
    fn is_refusal(&self) -> bool {
        matches!(self, VolumeError::NoSpace { .. })
    }
}

impl Refusal for DatasetError {
    fn is_refusal(&self) -> bool {
        matches!(
            self,
            DatasetError::NoSpace { .. } | DatasetError::QuotaExceeded { .. }
        )
    }
}

/// How big and how wild the work is.
#[derive(Debug, Clone, Copy)]
pub struct WorkOptions {
    /// Operations.
    pub steps: usize,
    /// Largest file, in bytes.
    pub file_bytes_max: u64,
    /// Of a hundred operations, how many are on datasets.
    pub dataset_percent: u64,
    /// Of a hundred, how many make something durable.
    pub sync_percent: u64,
    /// Little of what is written is new ([`crate::dedup`]).
    pub repeats: bool,
}

impl Default for WorkOptions {
    fn default() -> Self {
        WorkOptions {
            steps: 120,
            file_bytes_max: 600 << 10,
            dataset_percent: 10,
            sync_percent: 6,
            repeats: false,
        }
    }
}

/// Does random operations on the datasets below one.
pub struct Worker {
    world: World,
    pool: Arc<Pool>,
    top: String,
    rng: Rng,
    book: Arc<Mutex<Book>>,
    open: BTreeMap<String, Handle>,
    options: WorkOptions,
}

impl Worker {
    /// A worker on what `book` says is there.
    pub fn new(
        world: World,
        pool: Arc<Pool>,
        top: String,
        rng: Rng,
        book: Arc<Mutex<Book>>,
        options: WorkOptions,
    ) -> Self {
        Worker {
            world,
            pool,
            top,
            rng,
            book,
            open: BTreeMap::new(),
            options,
        }
    }

    /// Makes the datasets that the work is on; they are on disk afterwards.
    ///
    /// # Errors
    /// Of making them.
    pub async fn prepare(&mut self) -> Result<(), Failure> {
        let dsl = self.pool.dsl();
        let files = Arc::new(filesystem::ZplInit::new());
        dsl.create_dataset(&self.top, &[], files).await?;
        let volume = format!("{}/v", self.top);
        let block = [4096u32, 8192, 16384][self.rng.below(3) as usize];
        let init = Arc::new(volume::ZvolInit::new(VOLUME_BYTES, block));
        let own = vec![
            ("volsize".to_owned(), VOLUME_BYTES.to_string()),
            ("volblocksize".to_owned(), block.to_string()),
        ];
        dsl.create_dataset(&volume, &own, init).await?;
        let dataset = |content| DatasetModel {
            content: Arc::new(content),
            snapshots: Vec::new(),
            origin: None,
            properties: BTreeMap::new(),
            sync_disabled: None,
        };
        let sectors = VolumeModel {
            size_bytes: VOLUME_BYTES,
            sectors: Arc::default(),
        };
        let state = State::from([
            (self.top.clone(), dataset(Content::Files(FsModel::new()))),
            (volume, dataset(Content::Sectors(sectors))),
        ]);
        self.book.lock().history = History::new(state);
        Ok(())
    }

    /// Works. What goes wrong is noted in the book.
    pub async fn run(mut self) {
        for _ in 0..self.options.steps {
            if let Err(error) = self.step().await {
                let step = self.book.lock().history.last();
                self.book.lock().failure = Some(format!("{} step {step}: {error}", self.top));
                return;
            }
        }
        self.close_all().await;
        self.book.lock().finished = true;
    }

    async fn close_all(&mut self) {
        for (_, handle) in std::mem::take(&mut self.open) {
            let _ = match handle {
                Handle::Files(fs) => fs.close().await.map_err(|error| error.to_string()),
                Handle::Sectors(volume) => volume.close().await.map_err(|error| error.to_string()),
            };
        }
    }

    fn state(&self) -> State {
        (*self.book.lock().history.newest()).clone()
    }

    fn issue(&self, what: String, state: State) {
        self.book.lock().history.issue(what, state);
    }

    fn settle<T, E: Refusal>(
        &self,
        what: &str,
        result: Result<T, E>,
    ) -> Result<Option<T>, Failure> {
        match result {
            Ok(done) => Ok(Some(done)),
            Err(error) if error.is_refusal() => {
                let mut book = self.book.lock();
                book.history.cancel();
                book.refused += 1;
                Ok(None)
            }
            Err(error) => Err(format!("{what}: {error}").into()),
        }
    }

    fn name(&mut self, prefix: &str) -> String {
        let mut book = self.book.lock();
        book.names += 1;
        format!("{prefix}{}", book.names)
    }

    async fn files(&mut self, name: &str) -> Result<Arc<Filesystem>, Failure> {
        if let Some(Handle::Files(fs)) = self.open.get(name) {
            return Ok(fs.clone());
        }
        let dataset = self.pool.dsl().open_dataset(name).await?;
        if dataset.log().is_some() {
            self.book.lock().history.uses_log = true;
        }
        let fs = Filesystem::open(dataset, self.world.clone()).await?;
        self.open.insert(name.to_owned(), Handle::Files(fs.clone()));
        Ok(fs)
    }

    async fn volume(&mut self, name: &str) -> Result<Arc<Volume>, Failure> {
        if let Some(Handle::Sectors(volume)) = self.open.get(name) {
            return Ok(volume.clone());
        }
        let dataset = self.pool.dsl().open_dataset(name).await?;
        if dataset.log().is_some() {
            self.book.lock().history.uses_log = true;
        }
        let volume = Volume::open(dataset, self.world.clone()).await?;
        self.open
            .insert(name.to_owned(), Handle::Sectors(volume.clone()));
        Ok(volume)
    }

    async fn close(&mut self, name: &str) -> Result<(), Failure> {
        match self.open.remove(name) {
            Some(Handle::Files(fs)) => fs.close().await?,
            Some(Handle::Sectors(volume)) => volume.close().await?,
            None => {}
        }
        Ok(())
    }

    async fn step(&mut self) -> Result<(), Failure> {
        let roll = self.rng.below(100);
        let (datasets, syncs) = (self.options.dataset_percent, self.options.sync_percent);
        if roll < datasets {
            return self.dataset_step().await;
        }
        if roll < datasets + 3 {
            let pause = Duration::from_millis(self.rng.below(7000));
            self.world.clock.sleep(pause).await;
            return Ok(());
        }
        if roll < datasets + 5 {
            return self.compare().await;
        }
        let state = self.state();
        let names: Vec<String> = state.keys().cloned().collect();
        let name = self.rng.pick(&names).ok_or("no datasets")?;
        if roll < datasets + 5 + syncs {
            return self.make_durable(&name, &state).await;
        }
        match &*state[&name].content {
            Content::Files(_) => self.file_step(&name, state).await,
            Content::Sectors(_) => self.sector_step(&name, state).await,
        }
    }

    async fn make_durable(&mut self, name: &str, state: &State) -> Result<(), Failure> {
        let step = self.book.lock().history.last();
        if self.rng.percent(35) {
            self.pool.sync().await?;
            self.book.lock().history.set_synced(step);
            return Ok(());
        }
        let disabled = is_sync_disabled(state, name);
        let mut file = None;
        match &*state[name].content {
            Content::Files(model) => {
                let fs = self.files(name).await?;
                let files = model.of_kind(FileKind::Regular);
                match self.rng.pick(&files) {
                    Some(id) if self.rng.percent(70) => {
                        let ino = self.book.lock().ids.ino(&fs, id);
                        fs.sync_file(ino).await?;
                        file = Some(vec![id]);
                    }
                    _ => {
                        fs.sync_all().await?;
                        file = Some(model.files.keys().copied().collect());
                    }
                }
            }
            Content::Sectors(_) => self.volume(name).await?.flush().await?,
        }
        if disabled {
            return Ok(());
        }
        let mut book = self.book.lock();
        let history = &mut book.history;
        if history.uses_log {
            history.datasets.insert(name.to_owned(), step);
            for id in file.into_iter().flatten() {
                history.files.insert((name.to_owned(), id), step);
            }
        } else {
            history.set_synced(step);
        }
        Ok(())
    }

    /// Everything open against the model, while it runs.
    async fn compare(&mut self) -> Result<(), Failure> {
        let state = self.state();
        for (name, dataset) in &state {
            let found = match &*dataset.content {
                Content::Files(_) => {
                    let fs = self.files(name).await?;
                    let mut ids = Ids::default();
                    Content::Files(observe_files(&fs, &mut ids).await?)
                }
                Content::Sectors(_) => {
                    let volume = self.volume(name).await?;
                    let seeds = self.book.lock().seeds.clone();
                    Content::Sectors(observe_volume(&volume, &seeds).await?)
                }
            };
            if let Some(what) = difference(&dataset.content, &found) {
                return Err(format!("{name} while running: {what}").into());
            }
        }
        Ok(())
    }

    async fn sector_step(&mut self, name: &str, mut state: State) -> Result<(), Failure> {
        let volume = self.volume(name).await?;
        let dataset = state.get_mut(name).expect("a dataset of the state");
        let Content::Sectors(model) = &*dataset.content else {
            return Ok(());
        };
        let mut model = model.clone();
        let total = model.size_bytes / SECTOR;
        let at = self.rng.below(total);
        let count = (1 + self.rng.below(24)).min(total - at);
        let sectors = Arc::make_mut(&mut model.sectors);
        if self.rng.percent(25) {
            for index in at..at + count {
                sectors.remove(&index);
            }
            dataset.content = Arc::new(Content::Sectors(model));
            let what = format!("unmap {at}+{count}");
            self.issue(what.clone(), state);
            let (start, length) = (at * SECTOR, count * SECTOR);
            let result = if self.rng.percent(50) {
                volume.unmap(start, length).await
            } else {
                volume.write_zeroes(start, length, false).await
            };
            self.settle(&what, result)?;
            return Ok(());
        }
        let mut data = Vec::new();
        for index in at..at + count {
            let seed = match self.options.repeats {
                true => crate::dedup::sector_seed(&mut self.rng),
                false => self.rng.next_u64() >> 1,
            };
            self.book.lock().seeds.add(seed);
            sectors.insert(index, seed);
            data.extend(sector(seed));
        }
        dataset.content = Arc::new(Content::Sectors(model));
        let what = format!("{name}: write sectors {at}+{count}");
        self.issue(what.clone(), state);
        let result = volume.write(at * SECTOR, data.into(), false).await;
        self.settle(&what, result)?;
        Ok(())
    }

    async fn file_step(&mut self, name: &str, mut state: State) -> Result<(), Failure> {
        let fs = self.files(name).await?;
        let dataset = state.get_mut(name).expect("a dataset of the state");
        let Content::Files(model) = &*dataset.content else {
            return Ok(());
        };
        let mut model = model.clone();
        let dirs = model.of_kind(FileKind::Directory);
        let files = model.of_kind(FileKind::Regular);
        let parent = self.rng.pick(&dirs).unwrap_or(ROOT);
        let file = self.rng.pick(&files);
        let crowded = model.files.len() > FILES_MAX;
        let set = |state: &mut State, model: FsModel| {
            let dataset = state.get_mut(name).expect("a dataset of the state");
            dataset.content = Arc::new(Content::Files(model));
        };
        let ino = |id: FileId| self.book.lock().ids.ino(&fs, id);
        match self.rng.below(100) {
            0..=17 if !crowded => self.make(name, &fs, state, model, parent).await,
            18..=44 => {
                let Some(id) = file else { return Ok(()) };
                let size = model.files[&id].data.len() as u64;
                let offset = match self.rng.below(3) {
                    0 => size,
                    1 => self.rng.below(size + 1) / 4096 * 4096,
                    _ => self.rng.below(size + size / 4 + 4096),
                };
                let length = match self.rng.below(3) {
                    0 => 1 + self.rng.below(300),
                    1 => 1 + self.rng.below(20 << 10),
                    _ => 1 + self.rng.below(200 << 10),
                };
                if offset + length > self.options.file_bytes_max {
                    return Ok(());
                }
                let content = match self.options.repeats {
                    true => crate::dedup::content(&mut self.rng, offset, length as usize),
                    false => self.rng.content(length as usize),
                };
                let data = Arc::make_mut(&mut model.file(id).data);
                let end = (offset + length) as usize;
                if data.len() < end {
                    data.resize(end, 0);
                }
                data[offset as usize..end].copy_from_slice(&content);
                set(&mut state, model);
                let what = format!("{name}: write file {id} {offset}+{length}");
                self.issue(what.clone(), state);
                let ino = self.book.lock().ids.ino(&fs, id);
                let result = fs
                    .write(ino, offset, content.into(), false, Caller::ROOT)
                    .await;
                self.settle(&what, result)?;
                Ok(())
            }
            45..=52 => {
                let Some(id) = file else { return Ok(()) };
                let size = model.files[&id].data.len() as u64;
                let new = match self.rng.below(3) {
                    0 => 0,
                    1 => self.rng.below(size + 1),
                    _ => self
                        .rng
                        .below((size * 2 + 1000).min(self.options.file_bytes_max)),
                };
                Arc::make_mut(&mut model.file(id).data).resize(new as usize, 0);
                set(&mut state, model);
                let what = format!("{name}: truncate file {id} {size} -> {new}");
                let ino = ino(id);
                self.issue(what.clone(), state);
                let attributes = SetAttributes {
                    size_bytes: Some(new),
                    ..SetAttributes::default()
                };
                let result = fs.set_attributes(ino, &attributes, Caller::ROOT).await;
                self.settle(&what, result)?;
                Ok(())
            }
            53..=57 => {
                let Some(id) = file else { return Ok(()) };
                let size = model.files[&id].data.len() as u64;
                let start = self.rng.below(size + 1);
                let length = 1 + self.rng.below(300 << 10);
                let data = Arc::make_mut(&mut model.file(id).data);
                let end = ((start + length) as usize).min(data.len());
                data[(start as usize).min(end)..end].fill(0);
                set(&mut state, model);
                let what = format!("{name}: punch file {id} {start}+{length}");
                let ino = ino(id);
                self.issue(what.clone(), state);
                let result = fs.allocate(ino, Allocate::PunchHole, start, length).await;
                self.settle(&what, result)?;
                Ok(())
            }
            58..=67 => self.rename(name, &fs, state, model).await,
            68..=76 => self.remove(name, &fs, state, model, parent).await,
            77..=82 => {
                let Some(id) = file else { return Ok(()) };
                let new = format!("l{}", self.rng.below(200)).into_bytes();
                if model.files[&parent].entries.contains_key(&new) {
                    return Ok(());
                }
                model.link(parent, &new, id);
                model.file(id).links += 1;
                set(&mut state, model);
                let (from, to) = (ino(id), ino(parent));
                self.issue(format!("{name}: link file {id}"), state);
                let result = fs.link(from, to, &new).await;
                self.settle("link", result)?;
                Ok(())
            }
            83..=91 => self.attribute(name, &fs, state, model).await,
            92..=96 => {
                let all: Vec<FileId> = model.files.keys().copied().collect();
                let id = self.rng.pick(&all).unwrap_or(ROOT);
                if model.files[&id].kind == FileKind::Symlink {
                    return Ok(());
                }
                let mode = 0o400 | self.rng.below(0o400) as u32;
                let owner = (self.rng.below(5) as u32, self.rng.below(5) as u32);
                model.file(id).mode = mode;
                model.file(id).owner = owner;
                set(&mut state, model);
                let ino = self.book.lock().ids.ino(&fs, id);
                self.issue(format!("{name}: chmod file {id} {mode:o} {owner:?}"), state);
                let attributes = SetAttributes {
                    mode: Some(mode),
                    uid: Some(owner.0),
                    gid: Some(owner.1),
                    ..SetAttributes::default()
                };
                let result = fs.set_attributes(ino, &attributes, Caller::ROOT).await;
                self.settle("chmod", result)?;
                Ok(())
            }
            _ => {
                let Some(id) = file else { return Ok(()) };
                let wanted = model.files[&id].data.clone();
                let start = self.rng.below(wanted.len() as u64 + 1);
                let length = self.rng.below(100 << 10) as usize;
                let found = fs.read(ino(id), start, length).await?.concat();
                let start = start as usize;
                if found != wanted[start..(start + length).min(wanted.len())] {
                    return Err(format!("file {id} read {start}+{length} is wrong").into());
                }
                Ok(())
            }
        }
    }

    async fn make(
        &mut self,
        name: &str,
        fs: &Arc<Filesystem>,
        mut state: State,
        mut model: FsModel,
        parent: FileId,
    ) -> Result<(), Failure> {
        let new = match self.rng.below(30) {
            0 => vec![b'x'; 255],
            _ => format!("f{}", self.rng.below(300)).into_bytes(),
        };
        if model.files[&parent].entries.contains_key(&new) {
            return Ok(());
        }
        let id = self.book.lock().ids.fresh();
        let kind = match self.rng.below(10) {
            0..=1 => FileKind::Directory,
            2 => FileKind::Symlink,
            _ => FileKind::Regular,
        };
        let mode = match kind {
            FileKind::Symlink => 0o777,
            _ => 0o600 | self.rng.below(0o200) as u32,
        };
        let mut made = File::new(kind, mode);
        let length = 1 + self.rng.below(200);
        let target = vec![b't'; length as usize];
        if kind == FileKind::Symlink {
            made.data = Arc::new(target.clone());
        }
        model.files.insert(id, Arc::new(made));
        model.link(parent, &new, id);
        let dataset = state.get_mut(name).expect("a dataset of the state");
        dataset.content = Arc::new(Content::Files(model));
        let at = self.book.lock().ids.ino(fs, parent);
        let what = format!("{name}: make {kind:?} {id} in {parent}");
        self.issue(what.clone(), state);
        let result = match kind {
            FileKind::Directory => fs.make_directory(at, &new, mode, Caller::ROOT).await,
            FileKind::Symlink => fs.symlink(at, &new, &target, Caller::ROOT).await,
            _ => fs.create(at, &new, mode, Caller::ROOT).await,
        };
        if let Some(found) = self.settle(&what, result)? {
            self.book.lock().ids.set(id, found.ino);
        }
        Ok(())
    }

    fn any_entry(&mut self, model: &FsModel) -> Option<(FileId, Vec<u8>, FileId)> {
        let all: Vec<(FileId, Vec<u8>, FileId)> = model
            .files
            .iter()
            .flat_map(|(dir, file)| {
                let entry = |(name, id): (&Vec<u8>, &FileId)| (*dir, name.clone(), *id);
                file.entries.iter().map(entry).collect::<Vec<_>>()
            })
            .collect();
        self.rng.pick(&all)
    }

    async fn rename(
        &mut self,
        name: &str,
        fs: &Arc<Filesystem>,
        mut state: State,
        mut model: FsModel,
    ) -> Result<(), Failure> {
        let Some((from, old, id)) = self.any_entry(&model) else {
            return Ok(());
        };
        let dirs = model.of_kind(FileKind::Directory);
        let mut to = self.rng.pick(&dirs).unwrap_or(ROOT);
        let mut new = format!("r{}", self.rng.below(300)).into_bytes();
        if self.rng.percent(40)
            && let Some((dir, entry, _)) = self.any_entry(&model)
        {
            (to, new) = (dir, entry);
        }
        let victim = model.files[&to].entries.get(&new).copied();
        if victim == Some(id) || model.is_within(to, id) {
            return Ok(());
        }
        let is_dir = |id: FileId| model.files[&id].kind == FileKind::Directory;
        let exchange = victim.is_some() && self.rng.percent(30);
        let mode = if exchange {
            RenameMode::Exchange
        } else {
            RenameMode::Replace
        };
        if let Some(victim) = victim {
            if model.is_within(from, victim) {
                return Ok(());
            }
            let fits = is_dir(victim) == is_dir(id)
                && (!is_dir(victim) || model.files[&victim].entries.is_empty());
            if !exchange && !fits {
                return Ok(());
            }
        }
        match victim {
            Some(victim) if exchange => {
                model.link(from, &old, victim);
                model.link(to, &new, id);
            }
            _ => {
                model.unlink(to, &new);
                Arc::make_mut(&mut model.file(from).entries).remove(&old);
                model.link(to, &new, id);
            }
        }
        let dataset = state.get_mut(name).expect("a dataset of the state");
        dataset.content = Arc::new(Content::Files(model));
        let what = format!("{name}: rename ({mode:?}) file {id} to {to}, over {victim:?}");
        self.issue(what.clone(), state);
        let (from, to) = {
            let book = self.book.lock();
            (book.ids.ino(fs, from), book.ids.ino(fs, to))
        };
        let result = fs.rename(from, &old, to, &new, mode).await;
        self.settle(&what, result)?;
        Ok(())
    }

    async fn remove(
        &mut self,
        name: &str,
        fs: &Arc<Filesystem>,
        mut state: State,
        mut model: FsModel,
        _parent: FileId,
    ) -> Result<(), Failure> {
        let Some((dir, entry, id)) = self.any_entry(&model) else {
            return Ok(());
        };
        let is_dir = model.files[&id].kind == FileKind::Directory;
        if is_dir && !model.files[&id].entries.is_empty() {
            return Ok(());
        }
        model.unlink(dir, &entry);
        let dataset = state.get_mut(name).expect("a dataset of the state");
        dataset.content = Arc::new(Content::Files(model));
        let what = format!("{name}: remove file {id}");
        self.issue(what.clone(), state);
        let at = self.book.lock().ids.ino(fs, dir);
        let result = if is_dir {
            fs.remove_directory(at, &entry).await
        } else {
            fs.unlink(at, &entry).await
        };
        self.settle(&what, result)?;
        Ok(())
    }

    async fn attribute(
        &mut self,
        name: &str,
        fs: &Arc<Filesystem>,
        mut state: State,
        mut model: FsModel,
    ) -> Result<(), Failure> {
        let all: Vec<FileId> = model.files.keys().copied().collect();
        let id = self.rng.pick(&all).unwrap_or(ROOT);
        if model.files[&id].kind == FileKind::Symlink {
            return Ok(());
        }
        let key = format!("user.a{}", self.rng.below(6)).into_bytes();
        let has = model.files[&id].xattrs.contains_key(&key);
        let ino = self.book.lock().ids.ino(fs, id);
        let removes = has && self.rng.percent(40);
        let length = match self.rng.below(4) {
            0 => self.rng.below(20),
            1 => self.rng.below(3000),
            2 => self.rng.below(300),
            _ => self.rng.below(60),
        };
        let value = self.rng.content(length as usize);
        let xattrs = Arc::make_mut(&mut model.file(id).xattrs);
        if removes {
            xattrs.remove(&key);
        } else {
            xattrs.insert(key.clone(), value.clone());
        }
        let dataset = state.get_mut(name).expect("a dataset of the state");
        dataset.content = Arc::new(Content::Files(model));
        let what = format!("{name}: attribute of file {id}, {length} bytes, {removes}");
        self.issue(what.clone(), state);
        let result = if removes {
            fs.remove_xattr(ino, &key, Caller::ROOT).await
        } else {
            fs.set_xattr(ino, &key, &value, XattrMode::Any, Caller::ROOT)
                .await
        };
        self.settle(&what, result)?;
        Ok(())
    }

    async fn dataset_step(&mut self) -> Result<(), Failure> {
        let mut state = self.state();
        let names: Vec<String> = state.keys().cloned().collect();
        let name = self.rng.pick(&names).ok_or("no datasets")?;
        let dsl = self.pool.dsl().clone();
        let dataset = state.get_mut(&name).expect("a dataset of the state");
        let what;
        let end = match self.rng.below(100) {
            0..=29 => {
                let many = self.rng.percent(40);
                let snapshot = self.name("s");
                let mut full = Vec::new();
                for (other, dataset) in &mut state {
                    if (many || *other == name) && dataset.snapshots.len() < SNAPSHOTS_MAX {
                        let content = dataset.content.clone();
                        dataset.snapshots.push((snapshot.clone(), content));
                        full.push(format!("{other}@{snapshot}"));
                    }
                }
                if full.is_empty() {
                    return Ok(());
                }
                what = format!("snapshot {full:?}");
                self.issue(what.clone(), state);
                self.settle(&what, dsl.snapshot(&full, &[]).await)?
            }
            30..=49 => {
                let clones: Vec<String> = state
                    .values()
                    .filter_map(|dataset| dataset.origin.clone())
                    .collect();
                let dataset = state.get_mut(&name).expect("a dataset of the state");
                if dataset.snapshots.is_empty() {
                    return Ok(());
                }
                let at = self.rng.below(dataset.snapshots.len() as u64) as usize;
                let full = format!("{name}@{}", dataset.snapshots[at].0);
                if clones.contains(&full) {
                    return Ok(());
                }
                dataset.snapshots.remove(at);
                what = format!("destroy {full}");
                self.issue(what.clone(), state);
                self.settle(&what, dsl.destroy_snapshots(&[full], false).await)?
            }
            50..=61 => {
                let Some((_, content)) = dataset.snapshots.last().cloned() else {
                    return Ok(());
                };
                dataset.content = content;
                // What is not synced is gone with the rollback in any case.
                self.close(&name).await?;
                what = format!("rollback {name}");
                self.issue(what.clone(), state);
                let done = self.settle(&what, dsl.rollback(&name, None).await)?;
                done.map(drop)
            }
            62..=71 => {
                let filesystems = state
                    .values()
                    .filter(|dataset| matches!(*dataset.content, Content::Files(_)))
                    .count();
                let dataset = &state[&name];
                let is_files = matches!(*dataset.content, Content::Files(_));
                let Some((snapshot, content)) = self.rng.pick(&dataset.snapshots) else {
                    return Ok(());
                };
                if !is_files || filesystems >= FILESYSTEMS_MAX {
                    return Ok(());
                }
                let origin = format!("{name}@{snapshot}");
                let own = self.name("c");
                let clone = format!("{}/{own}", self.top);
                state.insert(
                    clone.clone(),
                    DatasetModel {
                        content,
                        snapshots: Vec::new(),
                        origin: Some(origin.clone()),
                        properties: BTreeMap::new(),
                        sync_disabled: None,
                    },
                );
                what = format!("clone {origin} to {clone}");
                self.issue(what.clone(), state);
                self.settle(&what, dsl.clone_dataset(&origin, &clone, &[]).await)?
            }
            72..=77 => {
                let has_clones = state.values().any(|other| {
                    other
                        .origin
                        .as_ref()
                        .is_some_and(|origin| dataset::name::split_snapshot(origin).0 == name)
                });
                let dataset = &state[&name];
                // The top one, which the others are below, is a clone when one of them was promoted.
                let is_top = name == self.top;
                let is_clone = dataset.origin.is_some() && !is_top;
                if !is_clone || has_clones || !dataset.snapshots.is_empty() {
                    return Ok(());
                }
                self.close(&name).await?;
                state.remove(&name);
                what = format!("destroy {name}");
                self.issue(what.clone(), state);
                self.settle(&what, dsl.destroy(&name).await)?
            }
            78..=83 => {
                let Some(origin) = dataset.origin.clone() else {
                    return Ok(());
                };
                promote(&mut state, &name, &origin);
                what = format!("promote {name}");
                self.issue(what.clone(), state);
                self.settle(&what, dsl.promote(&name).await)?
            }
            _ => {
                let is_files = matches!(*dataset.content, Content::Files(_));
                let choices: &[(&str, &str)] = &[
                    ("compression", "off"),
                    ("compression", "lz4"),
                    ("compression", "zstd"),
                    ("compression", "gzip-1"),
                    ("checksum", "sha256"),
                    ("checksum", "fletcher4"),
                    ("checksum", "blake3"),
                    ("copies", "1"),
                    ("copies", "2"),
                    ("user:note", "something"),
                    ("redundant_metadata", "most"),
                    ("sync", "standard"),
                    ("sync", "always"),
                    ("sync", "disabled"),
                    ("recordsize", "4096"),
                    ("recordsize", "131072"),
                    ("recordsize", "1048576"),
                    ("dnodesize", "auto"),
                    ("dnodesize", "legacy"),
                    ("xattr", "sa"),
                    ("atime", "off"),
                ];
                let count = if is_files { choices.len() } else { 14 };
                let (property, value) = choices[self.rng.below(count as u64) as usize];
                dataset.properties.insert(property.into(), UNKNOWN.into());
                let mut known = state.clone();
                what = format!("set {property}={value} {name}");
                self.issue(what.clone(), state);
                let change = (property.to_owned(), PropertyChange::Set(value.to_owned()));
                let done = self.settle(&what, dsl.set_properties(&name, &[change]).await)?;
                if done.is_some() {
                    let read = format!("{:?}", dsl.property(&name, property).await?.value);
                    let dataset = known.get_mut(&name).expect("a dataset of the state");
                    dataset.properties.insert(property.into(), read);
                    if property == "sync" {
                        dataset.sync_disabled = Some(value == "disabled");
                    }
                    let mut book = self.book.lock();
                    book.history.cancel();
                    book.history.issue(what.clone(), known);
                }
                done
            }
        };
        let end = if end.is_some() {
            End::Done
        } else {
            End::Refused
        };
        if let End::Done = end {
            let mut book = self.book.lock();
            let step = book.history.last();
            book.history.set_synced(step);
        }
        Ok(())
    }
}

/// A clone and what it is a clone of change places.
fn promote(state: &mut State, clone: &str, origin: &str) {
    let (parent, Some(snapshot)) = dataset::name::split_snapshot(origin) else {
        return;
    };
    let (parent, snapshot) = (parent.to_owned(), snapshot.to_owned());
    let Some(above) = state.get_mut(&parent) else {
        return;
    };
    let Some(at) = above
        .snapshots
        .iter()
        .position(|(name, _)| *name == snapshot)
    else {
        return;
    };
    let rest = above.snapshots.split_off(at + 1);
    let mut moved = std::mem::replace(&mut above.snapshots, rest);
    let names: Vec<String> = moved.iter().map(|(name, _)| name.clone()).collect();
    let above_origin = above.origin.replace(format!("{clone}@{snapshot}"));
    let below = state.get_mut(clone).expect("the clone");
    moved.append(&mut below.snapshots);
    below.snapshots = moved;
    below.origin = above_origin;
    for (name, dataset) in state.iter_mut() {
        if let Some(origin) = &mut dataset.origin
            && *name != parent
            && let (of, Some(snapshot)) = dataset::name::split_snapshot(origin)
            && of == parent
            && names.iter().any(|name| name == snapshot)
        {
            *origin = format!("{clone}@{snapshot}");
        }
    }
}

/// Whether property `sync` says that nothing is synchronous.
fn is_sync_disabled(state: &State, name: &str) -> bool {
    let mut name = name;
    loop {
        if let Some(set) = state.get(name).and_then(|dataset| dataset.sync_disabled) {
            return set;
        }
        match dataset::name::split_parent(name) {
            (Some(parent), _) => name = parent,
            (None, _) => return false,
        }
    }
}
