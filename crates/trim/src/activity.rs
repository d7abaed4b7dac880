//! `zpool initialize` and `zpool trim`: passes over the free space of single devices, which write
//! over it or have it discarded.
//!
//! A pass goes through the free space of its device in order ([`zio::alloc::Allocator::hold_free`]
//! holds a little at a time, `pass` is the task). Where it is, is stored in the device's ZAP as
//! OpenZFS stores it, with each transaction group: so a pass that was under way at an export or
//! crash goes on at the import, here or there, and one that was suspended when somebody starts it
//! again. What is beyond the stored place may be done by then; it is done again.
//!
//! **Crash.** A pass changes nothing but free space, free also in the states that an import may go
//! back to. A crash leaves a stored place that is not beyond what was done.
//!
//! **Who ends a pass.** A device that cannot be written to, or a pool that is suspended, ends the
//! task, not the pass: a look after each transaction group ([`Activities::done`]) begins it again.
//! What was faulted is given up. A task stops between two commands to the device when it is told
//! to, and whoever told it waits for that. Those who take devices out of the pool's hands hold
//! [`crate::Gate`].
//!
//! As in OpenZFS, initializing goes on from where it came to even if it was canceled or complete,
//! unless that is forgotten (`-u`), and trimming begins anew. There is no erasing for good, so
//! a trim of that kind which OpenZFS began stands still here. Which metaslabs were never written is
//! not asked: a partial trim is a whole one here.
//!
//! Locks: `all`, for a few instructions; nothing is told, and no other lock taken, under it.
//!
//! Source: module/zfs/vdev_initialize.c, module/zfs/vdev_trim.c, module/zfs/spa.c
//! (`spa_vdev_initialize_impl`, `spa_vdev_trim_impl`).

mod command;
mod pass;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Weak};

use format::{Guid, ObjectId, Txg};
use object::{ObjectSet, Zap};
use parking_lot::Mutex;
use spa::events::{About, Sysevent};
use spa::{Participant, Pass, PoolError, Spa, Turn, config, directory, lost};
use tokio::sync::watch;
use vdev::{Vdev, VdevKind, VdevTree};

use crate::Passes;

pub use command::{ActivityCommand, ActivityObstacle, ActivityOutcome, ActivitySpec, command};

/// What `zpool initialize` writes unless told (`zfs_initialize_value`).
const VALUE: u64 = 0xdead_beef_dead_beee;

/// What is done to the free space of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ActivityKind {
    /// It is written over.
    Initialize,
    /// It is discarded.
    Trim,
}

impl ActivityKind {
    const ALL: [Self; 2] = [Self::Initialize, Self::Trim];

    /// Names of state, time and place in the device's ZAP.
    fn names(self) -> [&'static str; 3] {
        match self {
            Self::Initialize => directory::INITIALIZE,
            Self::Trim => directory::TRIM,
        }
    }

    /// The event's name in the pool's history.
    fn word(self) -> &'static str {
        match self {
            Self::Initialize => "initialize",
            Self::Trim => "trim",
        }
    }
}

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

    fn number(self) -> u64 {
        match self {
            Self::None => 0,
            Self::Active => 1,
            Self::Canceled => 2,
            Self::Suspended => 3,
            Self::Complete => 4,
        }
    }
}

/// Such work on one leaf.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ActivityStatus {
    /// Its state.
    pub state: ActivityState,
    /// When it became that, in seconds since 1970; of what is suspended, when it began.
    pub time_s: u64,
    /// Free bytes of the device that it came to; zero unless it is under way or suspended.
    pub done_bytes: u64,
    /// Free bytes of the device in all; zero unless it is under way or suspended.
    pub total_bytes: u64,
}

/// Work that is under way on a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeafActivity {
    /// The device.
    pub leaf: Guid,
    /// What is done to it.
    pub kind: ActivityKind,
    /// How far it is.
    pub status: ActivityStatus,
}

/// What is stored, and what is known of its task.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Activity {
    state: ActivityState,
    time_s: u64,
    /// Where on the device it goes on, its first labels included (`vdev_initialize_last_offset`).
    next_offset_bytes: u64,
    /// What is written, if not the usual.
    value: Option<u64>,
    /// Bytes per second; zero for as many as go.
    rate: u64,
    is_partial: bool,
    is_secure: bool,
    /// The stored state is another one.
    is_dirty: bool,
    /// There is a task.
    is_running: bool,
    /// It is to stop.
    is_stopped: bool,
    /// What the pool's history is to tell.
    said: Vec<(&'static str, &'static str)>,
}

impl Activity {
    async fn load(zap: &Zap, kind: ActivityKind) -> Result<Self, PoolError> {
        let [state, time, offset] = kind.names();
        let number = async |name: &str| zap.lookup_u64(name).await;
        let mut out = Self {
            state: ActivityState::new(number(state).await?.unwrap_or(0)),
            time_s: number(time).await?.unwrap_or(0),
            next_offset_bytes: number(offset).await?.unwrap_or(0),
            ..Self::default()
        };
        match kind {
            ActivityKind::Initialize => out.value = number(directory::INITIALIZE_VALUE).await?,
            ActivityKind::Trim => {
                out.rate = number(directory::TRIM_RATE).await?.unwrap_or(0);
                out.is_partial = number(directory::TRIM_PARTIAL).await? == Some(1);
                out.is_secure = number(directory::TRIM_SECURE).await? == Some(1);
            }
        }
        Ok(out)
    }

    async fn store(&self, pass: &Pass<'_>, zap: &Zap, kind: ActivityKind) -> Result<(), PoolError> {
        let [state, time, offset] = kind.names();
        let mut pairs = vec![
            (state, Some(self.state.number())),
            (time, Some(self.time_s)),
            (offset, Some(self.next_offset_bytes)),
        ];
        match kind {
            ActivityKind::Initialize => pairs.push((directory::INITIALIZE_VALUE, self.value)),
            ActivityKind::Trim => pairs.extend([
                (directory::TRIM_RATE, Some(self.rate)),
                (directory::TRIM_PARTIAL, Some(u64::from(self.is_partial))),
                (directory::TRIM_SECURE, Some(u64::from(self.is_secure))),
            ]),
        }
        let is_none = self.state == ActivityState::None;
        for (name, value) in pairs {
            let now = zap.lookup_u64(name).await?;
            match value.filter(|_| !is_none) {
                value if value == now => {}
                Some(value) => zap.update_u64(pass.tx, name, value).await?,
                None => zap.remove(pass.tx, name).await?,
            }
        }
        Ok(())
    }

    fn is_begun(&self) -> bool {
        matches!(self.state, ActivityState::Active | ActivityState::Suspended)
    }

    /// With how far it came (`vdev_initialize_calculate_progress`). Of the metaslab that it is in,
    /// as much as of its length: free ranges are not looked at.
    fn status(&self, metaslabs: &[(std::ops::Range<u64>, u64)], disks: u64) -> ActivityStatus {
        let mut out = ActivityStatus {
            state: self.state,
            time_s: self.time_s,
            ..ActivityStatus::default()
        };
        if !self.is_begun() {
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

/// A device's ZAP, which is the device's for good, and what is done to the device.
type Key = (ObjectId, ActivityKind);

fn zap_of(vdev: &Vdev) -> Option<ObjectId> {
    let id = vdev.config_u64(config::LEAF_ZAP).filter(|id| *id != 0);
    id.map(ObjectId::new)
}

fn leaf_of(tree: &VdevTree, zap: ObjectId) -> Option<Arc<Vdev>> {
    let is_it = |vdev: &Arc<Vdev>| zap_of(vdev) == Some(zap);
    tree.leaves().into_iter().find(is_it)
}

/// Such work on all leaves of a pool.
#[derive(Debug, Default)]
pub struct Activities {
    all: Mutex<BTreeMap<Key, Activity>>,
    /// ZAPs of leaves that could not be read at the import: nothing is begun on these.
    lost: BTreeSet<ObjectId>,
    /// A state changed, or a task ended.
    changed: watch::Sender<()>,
    /// Something may want a task. A task that ends does not say so: what cannot go on would begin
    /// again and again.
    wake: watch::Sender<()>,
}

impl Activities {
    /// As the pool has it at its import.
    pub async fn load(pool: &str, mos: &Arc<ObjectSet>, tree: &VdevTree) -> Self {
        let mut all = BTreeMap::new();
        let mut unreadable = BTreeSet::new();
        for leaf in tree.tops().iter().flat_map(Vdev::leaves) {
            let Some(id) = zap_of(&leaf) else { continue };
            let read = async {
                let zap = Zap::hold(mos, id).await?;
                let mut found = Vec::new();
                for kind in ActivityKind::ALL {
                    found.push((kind, Activity::load(&zap, kind).await?));
                }
                Ok::<_, PoolError>(found)
            };
            match read.await {
                Ok(found) => {
                    let begun = found.into_iter();
                    let begun = begun.filter(|(_, at)| at.state != ActivityState::None);
                    all.extend(begun.map(|(kind, activity)| ((id, kind), activity)));
                }
                Err(error) => {
                    let device = leaf.display_name();
                    lost(
                        pool,
                        &format!("what was initialized and trimmed of {device}"),
                        &error,
                    );
                    unreadable.insert(id);
                }
            }
        }
        Self {
            all: Mutex::new(all),
            lost: unreadable,
            ..Self::default()
        }
    }

    /// How far initializing and trimming are on the leaves of a top-level vdev; empty where none
    /// was ever begun.
    pub fn statuses(&self, spa: &Spa, top: &Arc<Vdev>) -> BTreeMap<Guid, [ActivityStatus; 2]> {
        if self.all.lock().is_empty() {
            return BTreeMap::new();
        }
        let progress = Progress::of(spa, top);
        let leaves = top.leaves().into_iter();
        leaves
            .filter_map(|leaf| {
                let zap = zap_of(&leaf)?;
                let all = self.all.lock();
                let of = |kind| {
                    let activity = all.get(&(zap, kind));
                    activity.map_or_else(ActivityStatus::default, |activity| {
                        progress.status(activity)
                    })
                };
                let both = [of(ActivityKind::Initialize), of(ActivityKind::Trim)];
                Some((leaf.guid(), both))
            })
            .collect()
    }

    /// Whether the last such work on a device is done.
    pub fn is_complete(&self, leaf: &Vdev, kind: ActivityKind) -> bool {
        let Some(zap) = zap_of(leaf) else {
            return false;
        };
        let all = self.all.lock();
        let at = all.get(&(zap, kind));
        at.is_some_and(|at| at.state == ActivityState::Complete)
    }

    /// What is under way, in the order of the devices.
    pub fn under_way(&self, spa: &Spa) -> Vec<LeafActivity> {
        let mut out = Vec::new();
        if spa.read_only || !self.has_active() {
            return out;
        }
        for top in spa.tree.tops() {
            let progress = Progress::of(spa, &top);
            for leaf in top.leaves() {
                let Some(zap) = zap_of(&leaf) else { continue };
                let all = self.all.lock();
                for kind in ActivityKind::ALL {
                    let activity = all.get(&(zap, kind));
                    let active =
                        activity.filter(|activity| activity.state == ActivityState::Active);
                    out.extend(active.map(|activity| LeafActivity {
                        leaf: leaf.guid(),
                        kind,
                        status: progress.status(activity),
                    }));
                }
            }
        }
        out
    }

    fn has_active(&self) -> bool {
        let all = self.all.lock();
        all.values().any(|at| at.state == ActivityState::Active)
    }

    /// Starts what goes on by itself; the pool is open.
    pub(crate) fn start(passes: &Arc<Passes>) {
        if passes.spa.read_only {
            return;
        }
        let (wake, weak) = (passes.activities.wake.subscribe(), Arc::downgrade(passes));
        let looking = begin_until_closed(wake, weak);
        passes.spa.pipeline.tasks().spawn("activities", looking);
    }

    /// What is to have a task, and has none; it counts as running from now on.
    fn to_begin(&self, spa: &Spa) -> Vec<Key> {
        if spa.suspended().is_some() || spa.state.lock().closed {
            return Vec::new();
        }
        let wanted: Vec<Key> = {
            let all = self.all.lock();
            let is_wanted = |at: &Activity| {
                at.state == ActivityState::Active && !at.is_running && !at.is_secure
            };
            let wanted = all.iter().filter(|(_, at)| is_wanted(at));
            wanted.map(|(key, _)| *key).collect()
        };
        let can_be = |key: &Key| {
            let leaf = leaf_of(&spa.tree, key.0)?;
            let top = spa.tree.topology().top_of(leaf.guid())?;
            let is_writeable = leaf.leaf().is_some_and(|leaf| leaf.is_writeable());
            (is_writeable && top.can_discard_free()).then_some(())
        };
        let mut begun = Vec::new();
        for key in wanted.into_iter().filter(|key| can_be(key).is_some()) {
            let mut all = self.all.lock();
            if let Some(at) = all.get_mut(&key)
                && at.state == ActivityState::Active
                && !at.is_running
            {
                (at.is_running, at.is_stopped) = (true, false);
                begun.push(key);
            }
        }
        begun
    }

    /// Changes a state, if it is another one; tells whether it was.
    fn change(
        &self,
        spa: &Spa,
        key: Key,
        state: ActivityState,
        more: impl FnOnce(&mut Activity),
    ) -> bool {
        let now_s = spa.world.clock.wall_ns() / 1_000_000_000;
        let before = {
            let mut all = self.all.lock();
            let at = all.entry(key).or_default();
            let before = at.state;
            if before == state {
                return false;
            }
            if before != ActivityState::Suspended {
                at.time_s = now_s;
            }
            more(at);
            at.state = state;
            at.is_dirty = true;
            let was_begun = matches!(before, ActivityState::Active | ActivityState::Suspended);
            match state {
                ActivityState::Active => at.said.push((key.1.word(), " activated")),
                ActivityState::Suspended => at.said.push((key.1.word(), " suspended")),
                ActivityState::Canceled if was_begun => at.said.push((key.1.word(), " canceled")),
                ActivityState::Canceled => {}
                ActivityState::Complete => at.said.push((key.1.word(), " complete")),
                ActivityState::None => at.said.push(("uninitialize", "")),
            }
            before
        };
        if key.1 == ActivityKind::Trim
            && let Some(leaf) = leaf_of(&spa.tree, key.0)
        {
            let event = match state {
                ActivityState::Active if before == ActivityState::Suspended => Sysevent::TrimResume,
                ActivityState::Active => Sysevent::TrimStart,
                ActivityState::Suspended => Sysevent::TrimSuspend,
                ActivityState::Complete => Sysevent::TrimFinish,
                ActivityState::Canceled | ActivityState::None => Sysevent::TrimCancel,
            };
            spa.events.tell_vdev(event, About::vdev(&leaf));
        }
        self.changed.send_replace(());
        self.wake.send_replace(());
        true
    }

    /// A task has ended.
    fn ended(&self, spa: &Spa, key: Key, is_whole: bool) {
        let leaf = leaf_of(&spa.tree, key.0);
        let is_stopped = {
            let mut all = self.all.lock();
            all.get_mut(&key).is_none_or(|at| {
                at.is_running = false;
                std::mem::take(&mut at.is_stopped) || at.state != ActivityState::Active
            })
        };
        if !is_stopped && let Some(leaf) = leaf {
            if is_whole {
                self.change(spa, key, ActivityState::Complete, |_| {});
            } else if leaf.state().0 == vdev::VdevState::Faulted {
                self.change(spa, key, ActivityState::Canceled, |_| {});
            }
        }
        self.changed.send_replace(());
        if is_whole {
            spa.txgs.kick();
        }
    }

    /// Writes what changed, and tells the history.
    async fn sync(&self, pass: &Pass<'_>) -> Result<(), PoolError> {
        let (spa, mos) = (pass.spa, pass.spa.dsl.mos());
        let leaves: BTreeMap<_, _> = (spa.tree.leaves().iter())
            .filter_map(|leaf| Some((zap_of(leaf)?, leaf.path())))
            .collect();
        let mut changed = Vec::new();
        {
            let mut all = self.all.lock();
            // With the device, its ZAP is gone.
            all.retain(|(zap, _), at| at.is_running || leaves.contains_key(zap));
            for (key, at) in all.iter_mut().filter(|(_, at)| at.is_dirty) {
                let Some(path) = leaves.get(&key.0) else {
                    continue;
                };
                at.is_dirty = false;
                let said = std::mem::take(&mut at.said);
                changed.push((*key, Activity { said, ..at.clone() }, path.clone()));
            }
        }
        for (key, at, path) in changed {
            let zap = Zap::hold(mos, key.0).await?;
            at.store(pass, &zap, key.1).await?;
            for (event, what) in at.said {
                let path = path.as_deref().unwrap_or("none");
                let text = format!("vdev={path}{what}");
                spa.history.internal(pass.tx, event, text).await;
            }
        }
        Ok(())
    }
}

/// How far is how much of a top-level vdev's devices.
struct Progress {
    metaslabs: Vec<(std::ops::Range<u64>, u64)>,
    disks: u64,
}

impl Progress {
    fn of(spa: &Spa, top: &Vdev) -> Self {
        let id = top.top().map(|top| top.id);
        let metaslabs = id.map_or_else(Vec::new, |id| spa.pipeline.allocator().metaslab_spaces(id));
        let disks = match top.kind() {
            VdevKind::Raidz(_) => top.children().len() as u64,
            VdevKind::Draid(draid) => draid.layout.children.saturating_sub(draid.layout.spares),
            _ => 1,
        };
        Self {
            metaslabs,
            disks: disks.max(1),
        }
    }

    fn status(&self, activity: &Activity) -> ActivityStatus {
        activity.status(&self.metaslabs, self.disks)
    }
}

impl Participant for Activities {
    fn has_work(&self, spa: &Spa) -> bool {
        !spa.read_only && self.all.lock().values().any(|at| at.is_dirty)
    }

    fn pass<'a>(&'a self, pass: &'a Pass<'a>) -> Turn<'a> {
        Box::pin(async move {
            match pass.is_first() && self.has_work(pass.spa) {
                true => self.sync(pass).await,
                false => Ok(()),
            }
        })
    }

    fn done(&self, spa: &Spa, _txg: Txg, wrote: bool) {
        if wrote {
            spa.pipeline.allocator().note_written();
        }
        let waits = |at: &Activity| at.state == ActivityState::Active && !at.is_running;
        if self.all.lock().values().any(waits) {
            self.wake.send_replace(());
        }
    }
}

/// Begins passes until the pool is closed.
async fn begin_until_closed(mut wake: watch::Receiver<()>, weak: Weak<Passes>) {
    loop {
        {
            let Some(passes) = weak.upgrade() else { return };
            for key in passes.activities.to_begin(&passes.spa) {
                let task = pass::run(weak.clone(), key);
                passes.spa.pipeline.tasks().spawn(key.1.word(), task);
            }
        }
        if wake.changed().await.is_err() {
            return;
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
            ..Activity::default()
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
