//! Snapshots whose deadlists stay in memory for a while.
//!
//! A deadlist has a key for each snapshot before it, so that reading it takes as long as there are
//! many; and where a snapshot is destroyed, those of its neighbours are needed, again and again
//! when the neighbours go too. The few that were used last are kept.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;

use super::structures::Ds;

/// Deadlists that stay: of what follows the snapshot that goes, of what follows that, the
/// snapshot's own, and the one before.
const RECENT_MAX: usize = 4;

/// Snapshots whose deadlists stay in memory, the one used last at the end.
#[derive(Default)]
pub(crate) struct RecentDeadlists {
    snapshots: Mutex<VecDeque<Arc<Ds>>>,
}

impl RecentDeadlists {
    /// Notes that a snapshot's was used now. The one that is to be forgotten for it, if any.
    pub(crate) fn note(&self, snapshot: &Arc<Ds>) -> Option<Arc<Ds>> {
        let mut snapshots = self.snapshots.lock();
        snapshots.retain(|other| !Arc::ptr_eq(other, snapshot));
        snapshots.push_back(snapshot.clone());
        match snapshots.len() > RECENT_MAX {
            true => snapshots.pop_front(),
            false => None,
        }
    }
}
