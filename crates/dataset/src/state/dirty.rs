//! What is dirty in memory, until its transaction group is written. It is [`crate::Syncer`]'s.

use std::sync::{Arc, OnceLock};

use format::Txg;
use parking_lot::Mutex;

use super::slot;
use super::space::Space;
use super::structures::{Dir, DirtyQueue, Ds};

/// Datasets that became dirty, by parity of the txg.
#[derive(Default)]
pub(crate) struct DirtyDatasets {
    slots: Mutex<[Vec<Arc<Ds>>; 2]>,
}

impl DirtyDatasets {
    pub(crate) fn add(&self, txg: Txg, dataset: Arc<Ds>) {
        let mut slots = self.slots.lock();
        let slot = &mut slots[slot(txg)];
        if !slot.iter().any(|known| Arc::ptr_eq(known, &dataset)) {
            slot.push(dataset);
        }
    }

    pub(crate) fn take(&self, txg: Txg) -> Vec<Arc<Ds>> {
        std::mem::take(&mut self.slots.lock()[slot(txg)])
    }

    pub(crate) fn is_empty(&self, txg: Txg) -> bool {
        self.slots.lock()[slot(txg)].is_empty()
    }
}

/// What is dirty in memory.
#[derive(Default)]
pub(crate) struct SyncState {
    /// Structures of directories and datasets.
    pub queue: Arc<DirtyQueue>,
    pub datasets: Arc<DirtyDatasets>,
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
