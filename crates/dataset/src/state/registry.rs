//! The directories and datasets in memory, by object number. They are [`crate::Directories`]'.
//!
//! Every directory and dataset that was looked at is here once, so that all users share its state.
//! A directory stays until it is destroyed; datasets that nobody uses are forgotten when there are
//! many. The lock is short, and is never held across a read.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use format::ObjectId;
use parking_lot::Mutex;

use super::deadlist::Deadlist;
use super::structures::{Dir, Ds};

/// Datasets kept in memory although nobody uses them.
const IDLE_DATASETS_MAX: usize = 8192;

/// What a directory or dataset takes beside its structure: a place in the table, and its names.
const ENTRY_BYTES: usize = 128;

/// The directories and datasets in memory.
#[derive(Default)]
pub(crate) struct Registry {
    loaded: Mutex<Loaded>,
    /// The directory of the root dataset.
    pub root: OnceLock<Arc<Dir>>,
    /// The empty snapshot that every dataset which is no clone is one of.
    pub origin: OnceLock<Arc<Ds>>,
}

#[derive(Default)]
struct Loaded {
    dirs: HashMap<ObjectId, Arc<Dir>>,
    datasets: HashMap<ObjectId, Arc<Ds>>,
}

impl Registry {
    /// The directory with this object number, if it is in memory.
    pub(crate) fn dir(&self, object: ObjectId) -> Option<Arc<Dir>> {
        self.loaded.lock().dirs.get(&object).cloned()
    }

    /// The directory with this object number, made if it is not in memory.
    pub(crate) fn dir_or(&self, object: ObjectId, make: impl FnOnce() -> Arc<Dir>) -> Arc<Dir> {
        self.loaded
            .lock()
            .dirs
            .entry(object)
            .or_insert_with(make)
            .clone()
    }

    /// The dataset with this object number, if it is in memory.
    pub(crate) fn dataset(&self, object: ObjectId) -> Option<Arc<Ds>> {
        self.loaded.lock().datasets.get(&object).cloned()
    }

    /// The dataset with this object number, made if it is not in memory.
    pub(crate) fn dataset_or(&self, object: ObjectId, make: impl FnOnce() -> Arc<Ds>) -> Arc<Ds> {
        self.loaded
            .lock()
            .datasets
            .entry(object)
            .or_insert_with(make)
            .clone()
    }

    /// Whether a dataset in memory has this identity as a mounted filesystem.
    pub(crate) fn has_fsid(&self, guid: u64) -> bool {
        self.loaded
            .lock()
            .datasets
            .values()
            .any(|dataset| dataset.state().phys.fsid_guid == guid)
    }

    /// Forgets a directory that was destroyed.
    pub(crate) fn forget_dir(&self, dir: &Arc<Dir>) {
        let mut state = dir.state();
        state.is_gone = true;
        drop(state);
        self.loaded.lock().dirs.remove(&dir.object);
    }

    /// Forgets a dataset that was destroyed.
    pub(crate) fn forget_dataset(&self, dataset: &Arc<Ds>) {
        dataset.state().is_gone = true;
        *dataset.open.lock() = None;
        self.loaded.lock().datasets.remove(&dataset.object);
    }

    /// Does something to each directory.
    pub(crate) fn for_each_dir(&self, mut action: impl FnMut(&Arc<Dir>)) {
        for dir in self.loaded.lock().dirs.values() {
            action(dir);
        }
    }

    /// Forgets datasets that nobody uses, where there are many.
    pub(crate) fn forget_idle(&self) {
        let mut loaded = self.loaded.lock();
        if loaded.datasets.len() > IDLE_DATASETS_MAX {
            loaded.datasets.retain(|_, dataset| {
                Arc::strong_count(dataset) > 1
                    || dataset.open.lock().is_some()
                    || dataset.state().is_dirty
            });
        }
    }

    /// Bytes that directories and datasets take, roughly, with their lists of dead blocks but
    /// without object sets that are open. A list that is being worked at is left out.
    pub(crate) fn memory_bytes(&self) -> u64 {
        let loaded = self.loaded.lock();
        let lists = loaded.datasets.values().filter_map(|dataset| {
            let list = dataset.deadlist.try_lock().ok()?;
            list.as_ref().map(Deadlist::memory_bytes)
        });
        let lists_bytes: u64 = lists.sum();
        let dirs_bytes = loaded.dirs.len() * (size_of::<Dir>() + ENTRY_BYTES);
        let datasets_bytes = loaded.datasets.len() * (size_of::<Ds>() + ENTRY_BYTES);
        lists_bytes + (dirs_bytes + datasets_bytes) as u64
    }

    /// Datasets that are open now.
    pub(crate) fn open_datasets(&self) -> Vec<Arc<Ds>> {
        self.loaded
            .lock()
            .datasets
            .values()
            .filter(|dataset| dataset.open.lock().is_some())
            .cloned()
            .collect()
    }
}
