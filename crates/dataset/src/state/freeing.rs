//! What waits to be freed in the background, and what of it cannot be. It is
//! [`crate::Destroyer`]'s.

use std::collections::BTreeSet;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};

use format::ObjectId;
use object::Bpobj;
use parking_lot::Mutex;

use super::space::Space;
use super::structures::Dir;

/// What waits to be freed in the background, and where its space counts.
#[derive(Default)]
pub(crate) struct DestroyState {
    /// Space of what waits to be freed.
    pub free_dir: OnceLock<Arc<Dir>>,
    /// Space of what could not be freed, once there is any.
    pub leak_dir: Mutex<Option<Arc<Dir>>>,
    /// Blocks that wait.
    pub free_list: OnceLock<Bpobj>,
    /// Trees that wait ([`object::Bptree`]); zero for none.
    pub bptree: Mutex<ObjectId>,
    /// Livelists of clones that were destroyed; zero for none.
    pub deleted_clones: Mutex<ObjectId>,
    /// Background frees wait for the pool to be ready for them.
    pub is_put_off: AtomicBool,
    /// What of it cannot be read.
    pub stall: Mutex<Option<Stall>>,
}

impl DestroyState {
    /// The object of the list of blocks that wait to be freed, if the pool has one.
    pub(crate) fn free_list_id(&self) -> Option<ObjectId> {
        self.free_list.get().map(Bpobj::id)
    }

    /// The object of the queue of trees that wait; zero for none.
    pub(crate) fn tree_queue(&self) -> ObjectId {
        *self.bptree.lock()
    }

    /// The ZAP of livelists of destroyed clones; zero for none.
    pub(crate) fn deleted_clones(&self) -> ObjectId {
        *self.deleted_clones.lock()
    }

    pub(crate) fn set_deleted_clones(&self, queue: ObjectId) {
        *self.deleted_clones.lock() = queue;
    }
}

/// What of the background frees stopped because something could not be read.
#[derive(Debug, Default)]
pub(crate) struct Stall {
    /// [`zio::pipeline::Suspension::reopened`] then: when that has grown, all is tried again.
    pub reopened: u64,
    /// What waited at the end of the last turn, and whether that was all that could not be freed.
    pub waiting: Space,
    pub rests: bool,
    /// The list of blocks.
    pub list: bool,
    /// The queue of trees, or some of them, by their places in it.
    pub queue: bool,
    pub trees: BTreeSet<u64>,
    /// The lists of destroyed clones.
    pub clones: bool,
}

impl Stall {
    pub(crate) fn is_any(&self) -> bool {
        self.list || self.queue || self.clones || !self.trees.is_empty()
    }
}
