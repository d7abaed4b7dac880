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

/// Datasets in memory from which on those that nobody uses are forgotten, a kilobyte each: who
/// lists more than this finds none of them there the next time.
const IDLE_DATASETS_MAX: usize = 32 << 10;

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
    /// Identities of the datasets as mounted filesystems.
    fsids: HashMap<u64, ObjectId>,
    /// Datasets that were opened: those that are not open any more leave when it is asked for.
    opened: HashMap<ObjectId, Arc<Ds>>,
    /// Number of datasets at which idle ones are looked for next.
    sweep_at: usize,
}

impl Loaded {
    /// Takes a dataset out.
    fn remove(&mut self, dataset: &Ds) {
        self.datasets.remove(&dataset.object);
        self.opened.remove(&dataset.object);
        let fsid = dataset.state().phys.fsid_guid;
        if self.fsids.get(&fsid) == Some(&dataset.object) {
            self.fsids.remove(&fsid);
        }
    }
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
        let mut loaded = self.loaded.lock();
        if let Some(dataset) = loaded.datasets.get(&object) {
            return dataset.clone();
        }
        let dataset = make();
        let fsid = dataset.state().phys.fsid_guid;
        loaded.fsids.insert(fsid, object);
        loaded.datasets.insert(object, dataset.clone());
        dataset
    }

    /// Whether a dataset in memory has this identity as a mounted filesystem.
    pub(crate) fn has_fsid(&self, guid: u64) -> bool {
        self.loaded.lock().fsids.contains_key(&guid)
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
        self.loaded.lock().remove(dataset);
    }

    /// Does something to each directory.
    pub(crate) fn for_each_dir(&self, mut action: impl FnMut(&Arc<Dir>)) {
        for dir in self.loaded.lock().dirs.values() {
            action(dir);
        }
    }

    /// Forgets datasets that nobody uses, where there are many. When most are in use, the next look
    /// is worth it only after some growth.
    pub(crate) fn forget_idle(&self) {
        let mut loaded = self.loaded.lock();
        if loaded.datasets.len() <= loaded.sweep_at.max(IDLE_DATASETS_MAX) {
            return;
        }
        let idle = |dataset: &&Arc<Ds>| {
            Arc::strong_count(dataset) == 1
                && dataset.open.lock().is_none()
                && !dataset.state().is_dirty
        };
        let idle: Vec<ObjectId> = (loaded.datasets.values().filter(idle))
            .map(|dataset| dataset.object)
            .collect();
        for object in idle {
            if let Some(dataset) = loaded.datasets.get(&object).cloned() {
                loaded.remove(&dataset);
            }
        }
        loaded.sweep_at = loaded.datasets.len() / 4 * 5;
    }

    /// A dataset was opened: call this after it was.
    pub(crate) fn note_opened(&self, dataset: &Arc<Ds>) {
        let mut loaded = self.loaded.lock();
        loaded.opened.insert(dataset.object, dataset.clone());
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
        let mut loaded = self.loaded.lock();
        loaded
            .opened
            .retain(|_, dataset| dataset.open.lock().is_some());
        loaded.opened.values().cloned().collect()
    }
}
