//! What `zpool initialize` and `zpool trim` did to leaves, as the leaves' ZAPs have it (`vdev_initialize_restart`,
//! module/zfs/vdev_initialize.c; `vdev_trim_restart`, module/zfs/vdev_trim.c). Neither is done here, so what OpenZFS began
//! stands still while we have the pool, and goes on there.

use std::collections::BTreeMap;
use std::sync::Arc;

use format::{Guid, ObjectId};
use object::{ObjectSet, Zap};
use vdev::{Vdev, VdevKind, VdevTree};

use crate::core::Core;
use crate::status::VdevStatus;
use crate::{PoolError, config, directory};

/// State of such work (`vdev_initializing_state_t` and `vdev_trim_state_t`, include/sys/fs/zfs.h).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
pub enum ActivityState {
    /// It was never done, or a state that this release does not know.
    #[default]
    None,
    /// Under way.
    Active,
    /// Stopped, and given up.
    Canceled,
    /// Stopped, to go on some time.
    Suspended,
    /// Done.
    Complete,
}

impl ActivityState {
    fn new(number: u64) -> Self {
        match number {
            1 => Self::Active,
            2 => Self::Canceled,
            3 => Self::Suspended,
            4 => Self::Complete,
            _ => Self::None,
        }
    }
}

/// Such work on one leaf.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ActivityStatus {
    /// Its state.
    pub state: ActivityState,
    /// When it became that, in seconds since 1970.
    pub time_s: u64,
    /// Free bytes of the device that it came to; zero unless it is under way or suspended.
    pub done_bytes: u64,
    /// Free bytes of the device in all; zero unless it is under way or suspended.
    pub total_bytes: u64,
}

#[derive(Debug, Clone, Copy, Default)]
struct Activity {
    state: ActivityState,
    time_s: u64,
    /// Where on the device it goes on.
    next_offset_bytes: u64,
}

impl Activity {
    async fn load(zap: &Zap, names: [&str; 3]) -> Result<Self, PoolError> {
        let [state, time, offset] = names;
        let number = async |name: &str| zap.lookup_u64(name).await;
        Ok(Self {
            state: ActivityState::new(number(state).await?.unwrap_or(0)),
            time_s: number(time).await?.unwrap_or(0),
            next_offset_bytes: number(offset).await?.unwrap_or(0),
        })
    }

    fn is_partial(&self) -> bool {
        matches!(self.state, ActivityState::Active | ActivityState::Suspended)
    }

    /// With how far it came (`vdev_initialize_calculate_progress`). Of the metaslab that it is in, as much as of its
    /// length: free ranges are not looked at.
    fn status(&self, metaslabs: &[(std::ops::Range<u64>, u64)], disks: u64) -> ActivityStatus {
        let mut out = ActivityStatus {
            state: self.state,
            time_s: self.time_s,
            ..ActivityStatus::default()
        };
        if !self.is_partial() {
            return out;
        }
        for (range, free) in metaslabs {
            let free = free / disks;
            let (start, length) = (range.start / disks, (range.end - range.start) / disks);
            let done = self.next_offset_bytes.saturating_sub(start).min(length);
            let part = u128::from(free) * u128::from(done) / u128::from(length.max(1));
            out.total_bytes = out.total_bytes.saturating_add(free);
            out.done_bytes = out
                .done_bytes
                .saturating_add(u64::try_from(part).unwrap_or(free));
        }
        out
    }
}

/// Such work on all leaves of a pool, as at its import.
#[derive(Debug, Clone, Default)]
pub(crate) struct Activities(BTreeMap<Guid, [Activity; 2]>);

impl Activities {
    pub(crate) async fn load(mos: &Arc<ObjectSet>, tree: &VdevTree) -> Result<Self, PoolError> {
        let mut out = BTreeMap::new();
        for leaf in tree.tops().iter().flat_map(Vdev::leaves) {
            let id = leaf.config_u64(config::LEAF_ZAP).unwrap_or(0);
            if id == 0 {
                continue;
            }
            let zap = Zap::hold(mos, ObjectId::new(id)).await?;
            let found = [
                Activity::load(&zap, directory::INITIALIZE).await?,
                Activity::load(&zap, directory::TRIM).await?,
            ];
            if found.iter().any(|at| at.state != ActivityState::None) {
                out.insert(leaf.guid(), found);
            }
        }
        Ok(Self(out))
    }

    /// Adds them to the leaves of a top-level vdev.
    pub(crate) fn add_to(&self, top: &mut VdevStatus, core: &Core) {
        if self.0.is_empty() {
            return;
        }
        let Some(vdev) = core.tree.find(top.guid) else {
            return;
        };
        let id = vdev.top().map(|top| top.id);
        let metaslabs =
            id.map_or_else(Vec::new, |id| core.pipeline.allocator().metaslab_spaces(id));
        let disks = match vdev.kind() {
            VdevKind::Raidz(_) => vdev.children().len() as u64,
            VdevKind::Draid(draid) => draid.layout.children.saturating_sub(draid.layout.spares),
            _ => 1,
        };
        self.add_below(top, &metaslabs, disks.max(1));
    }

    fn add_below(
        &self,
        vdev: &mut VdevStatus,
        metaslabs: &[(std::ops::Range<u64>, u64)],
        disks: u64,
    ) {
        if let Some([initialize, trim]) = self.0.get(&vdev.guid) {
            vdev.initialize = initialize.status(metaslabs, disks);
            vdev.trim = trim.status(metaslabs, disks);
        }
        for child in &mut vdev.children {
            self.add_below(child, metaslabs, disks);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_counts_what_is_free() {
        let metaslabs = [(0..1000, 1000), (1000..2000, 0), (2000..3000, 500)];
        let mut activity = Activity {
            state: ActivityState::Suspended,
            time_s: 77,
            next_offset_bytes: 2200,
        };
        let status = activity.status(&metaslabs, 1);
        assert_eq!((status.done_bytes, status.total_bytes), (1100, 1500));
        assert_eq!(status.time_s, 77);
        // On RAID-Z the leaf has a part of each metaslab.
        activity.next_offset_bytes = 550;
        let status = activity.status(&metaslabs, 4);
        assert_eq!((status.done_bytes, status.total_bytes), (275, 375));
        activity.state = ActivityState::Complete;
        assert_eq!(activity.status(&metaslabs, 1).total_bytes, 0);
    }
}
