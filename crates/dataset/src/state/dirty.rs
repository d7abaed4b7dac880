//! What is dirty in memory, until its transaction group is written. It is [`crate::Syncer`]'s.

use std::collections::HashSet;
use std::sync::{Arc, OnceLock};

use format::Txg;
use parking_lot::Mutex;

use super::slot;
use super::space::Space;
use super::structures::{Dir, DirState, DirtyQueue, Ds};

/// Datasets that became dirty, by parity of the txg.
#[derive(Default)]
pub(crate) struct DirtyDatasets {
    slots: Mutex<[Dirty; 2]>,
}

/// Those of one txg in the order in which they became dirty, and where they are in memory.
#[derive(Default)]
struct Dirty {
    datasets: Vec<Arc<Ds>>,
    known: HashSet<usize>,
}

impl DirtyDatasets {
    pub(crate) fn add(&self, txg: Txg, dataset: Arc<Ds>) {
        let mut slots = self.slots.lock();
        let slot = &mut slots[slot(txg)];
        if slot.known.insert(Arc::as_ptr(&dataset).addr()) {
            slot.datasets.push(dataset);
        }
    }

    pub(crate) fn take(&self, txg: Txg) -> Vec<Arc<Ds>> {
        std::mem::take(&mut self.slots.lock()[slot(txg)]).datasets
    }

    pub(crate) fn is_empty(&self, txg: Txg) -> bool {
        self.slots.lock()[slot(txg)].datasets.is_empty()
    }
}

/// Directories for which something was granted, by parity of the txg: what counts for it is
/// forgotten once the txg is on disk.
#[derive(Default)]
pub(crate) struct GrantedDirs {
    slots: Mutex<[Vec<Arc<Dir>>; 2]>,
}

impl GrantedDirs {
    /// Counts that a txg may write so many bytes below a directory, whose state is locked.
    pub(crate) fn grant(&self, dir: &Arc<Dir>, state: &mut DirState, txg: Txg, bytes: u64) {
        let slot = slot(txg);
        state.to_write[slot] += bytes;
        if !std::mem::replace(&mut state.is_granted[slot], true) {
            self.slots.lock()[slot].push(dir.clone());
        }
    }

    /// The txg is on disk.
    pub(crate) fn forget(&self, txg: Txg) {
        let slot = slot(txg);
        let dirs = std::mem::take(&mut self.slots.lock()[slot]);
        for dir in dirs {
            let mut state = dir.state();
            state.to_write[slot] = 0;
            state.is_granted[slot] = false;
        }
    }
}

/// What is dirty in memory.
#[derive(Default)]
pub(crate) struct SyncState {
    /// Structures of directories and datasets.
    pub queue: Arc<DirtyQueue>,
    pub datasets: Arc<DirtyDatasets>,
    /// What transactions may write.
    pub granted: GrantedDirs,
    /// Space that the MOS took or gave back and that is not in the accounts of `$MOS` yet.
    pub mos_delta: Mutex<Space>,
    pub mos_dir: OnceLock<Arc<Dir>>,
}

impl Drop for SyncState {
    /// What is dirty refers to the queues that it stands in; where nothing will be written any more
    /// (a suspended pool that is exported by force), these are taken apart, else all that memory
    /// would never be freed.
    fn drop(&mut self) {
        self.queue.take();
        for txg in [Txg::ZERO, Txg::ZERO.next()] {
            self.datasets.take(txg);
        }
    }
}
