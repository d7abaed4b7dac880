//! What is in memory of a pool's datasets: the state of all parts, which knows neither the parts
//! nor the pool.
//!
//! | Module | What it has |
//! |---|---|
//! | [`structures`] | directories and datasets, one shared value for each |
//! | [`recent`] | snapshots whose deadlists stay loaded for a while |
//! | [`registry`] | those that were looked at, by object number |
//! | [`space`] | the arithmetic of space accounts |
//! | [`deadlist`] | deadlists and livelists |
//! | [`lists`] | the list without blocks that deadlists share |
//! | [`bookmarks`] | bookmarks of a head |
//! | [`open`] | what all handles on an open dataset share |
//! | [`dirty`] | what waits to be written |
//! | [`freeing`] | what waits to be freed |
//! | [`task_queue`] | sync tasks that wait |
//! | [`keys`] | encryption keys that are loaded |
//! | [`lists_in_use`] | redaction lists that are read or made |

mod bookmarks;
mod deadlist;
mod dirty;
mod freeing;
mod keys;
mod lists;
mod lists_in_use;
mod open;
mod recent;
mod registry;
mod space;
mod structures;
mod task_queue;

use std::sync::OnceLock;

use format::Txg;

pub(crate) use bookmarks::{BookmarkEntry, SnapshotBookmarks};
pub(crate) use deadlist::{Deadlist, Pending, living};
pub(crate) use dirty::SyncState;
pub(crate) use freeing::{DestroyState, Stall};
pub(crate) use keys::KeyStore;
pub(crate) use lists::Lists;
pub(crate) use lists_in_use::ListsInUse;
pub(crate) use open::OpenState;
pub use open::{DatasetSettings, ResumePoint};
pub(crate) use recent::RecentDeadlists;
pub(crate) use registry::Registry;
pub(crate) use space::{Space, accounted_delta, apply};
pub(crate) use structures::{Dir, DirState, DirtyItem, Ds, DsState};
pub(crate) use task_queue::{QueuedTask, TaskQueue};

/// Where the state of a transaction group is that has one of two slots, by its parity.
pub(crate) fn slot(txg: Txg) -> usize {
    (txg.get() & 1) as usize
}

/// Sets what is set once, when a pool is created or opened.
pub(crate) fn set_once<T>(cell: &OnceLock<T>, value: T) {
    let is_first = cell.set(value).is_ok();
    debug_assert!(is_first, "it is set once");
}
