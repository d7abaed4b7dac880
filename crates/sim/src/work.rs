//! Random operations on datasets, and the history of what they were told is durable.
//!
//! A [`Worker`] owns everything below one dataset and does one operation after the other; several
//! workers run at the same time. Before an operation starts, the state that it leads to is added to
//! the [`History`]; so after a power cut what is found must be one of the states of the history,
//! not before the last that was reported durable. Where an intent log is in use files and datasets
//! may each be at another state, since only what was asked for is in the log.

mod datasets;
mod files;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use dataset::DatasetError;
use device::World;
use filesystem::{FileKind, Filesystem, FsError};
use parking_lot::Mutex;
use pool::Pool;
use volume::{Volume, VolumeError};

use crate::golden::Golden;
use crate::history::History;
use crate::model::{
    Content, DatasetModel, FsModel, Ids, SECTOR, Seeds, State, VolumeModel, difference,
    observe_files, observe_volume, sector,
};
use crate::rng::Rng;
use crate::verify::Failure;

/// Size of volumes, in bytes: below the size at which a write is split.
const VOLUME_BYTES: u64 = 3 << 20;
/// Files per filesystem, about.
const FILES_MAX: usize = 60;
/// Snapshots per dataset.
const SNAPSHOTS_MAX: usize = 4;
/// Filesystems per worker.
const FILESYSTEMS_MAX: usize = 3;

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
    /// Or that the pool lacks a feature.
    fn is_unsupported(&self) -> bool {
        false
    }
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

    fn is_unsupported(&self) -> bool {
        matches!(self, DatasetError::Unsupported { .. })
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
    /// Ranges of files are copied, which shares blocks where it can.
    pub copies: bool,
    /// Files are rewritten as they are, physically or not.
    pub rewrites: bool,
    /// The pool lacks features: what needs one is refused.
    pub lacks_features: bool,
    /// Keys are unloaded now and then, and loaded again.
    pub keys: Option<&'static Golden>,
}

impl Default for WorkOptions {
    fn default() -> Self {
        WorkOptions {
            steps: 120,
            file_bytes_max: 600 << 10,
            dataset_percent: 10,
            sync_percent: 6,
            repeats: false,
            copies: false,
            rewrites: false,
            lacks_features: false,
            keys: None,
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
        dsl.datasets().create(&self.top, &[], files).await?;
        let volume = format!("{}/v", self.top);
        let block = [4096u32, 8192, 16384][self.rng.below(3) as usize];
        let init = Arc::new(volume::ZvolInit::new(VOLUME_BYTES, block));
        let own = vec![
            ("volsize".to_owned(), VOLUME_BYTES.to_string()),
            ("volblocksize".to_owned(), block.to_string()),
        ];
        dsl.datasets().create(&volume, &own, init).await?;
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
            Err(error)
                if error.is_refusal() || self.options.lacks_features && error.is_unsupported() =>
            {
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
        if let Some(golden) = self.options.keys
            && self.rng.percent(2)
        {
            return self.lock_for_a_while(golden).await;
        }
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
