//! Node numbers of a mount: which filesystem an inode number of the kernel's belongs to.
//!
//! | bits | node |
//! |---|---|
//! | the number 1 | the root of the mounted filesystem |
//! | 62 set | `.zfs` (…1), `.zfs/snapshot` (…2), `.zfs/shares` (…3) |
//! | 48 to 61: slot, 0 to 47: object | a file of the filesystem in that slot; object 1: its root |
//!
//! Slot 0 is the mounted filesystem. When another state of it takes its place (rollback), files that
//! are in both keep their nodes. Where the kernel knows a file that is not in the new state, whatever
//! has or gets its object number is in a slot of its own from then on ([`Moved`]): what the kernel has
//! of the old one is stale rather than wrong. A snapshot gets a slot when it is first listed or looked up; its filesystem is closed again when it is not used for a
//! while or somebody wants to destroy it, and opened again when the slot is used again.
//!
//! What the kernel knows of a snapshot is counted ([`Uses`]): an open file or somebody's directory there is no request,
//! and the file may be read from after hours. Only the kernel knows of them, and says so by not forgetting the node.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use filesystem::{Filesystem, FsError};
use fuser::Errno;
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::convert::errno;
use crate::mount::SnapshotProvider;

/// The root of every FUSE mount (`FUSE_ROOT_ID`).
pub(crate) const ROOT: u64 = 1;
const CONTROL: u64 = 1 << 62;
/// `.zfs`.
pub(crate) const ZFS: u64 = CONTROL | 1;
/// `.zfs/snapshot`.
pub(crate) const SNAPSHOTS: u64 = CONTROL | 2;
/// `.zfs/shares`.
pub(crate) const SHARES: u64 = CONTROL | 3;
const SLOT_SHIFT: u32 = 48;
const SLOT_MAX: u64 = (1 << 14) - 1;
/// An unused snapshot is closed after this time.
const IDLE: Duration = Duration::from_secs(60);

/// Slots of files of the mounted filesystem that are not in slot 0, by object.
pub(crate) type Moved = HashMap<u64, u64>;

/// How long requests may take that are under way while another state is to take the filesystem's place.
const PAUSING: Duration = Duration::from_secs(10);
/// How often that is looked at.
const LOOK: Duration = Duration::from_millis(1);

/// What a node is.
#[derive(Clone)]
pub(crate) enum Target {
    /// A file.
    File(File),
    /// `.zfs`.
    Zfs,
    /// `.zfs/snapshot`.
    Snapshots,
    /// `.zfs/shares`, which is empty.
    Shares,
}

/// A file of some filesystem.
#[derive(Clone)]
pub(crate) struct File {
    pub(crate) filesystem: Arc<Filesystem>,
    pub(crate) ino: u64,
    /// Of a snapshot; 0 of the mounted filesystem.
    pub(crate) slot: u64,
    /// Of the mounted filesystem, not of a snapshot.
    pub(crate) is_live: bool,
    /// While a request has it, no other state takes the place of the mounted filesystem.
    live: Option<Arc<Live>>,
    /// What the kernel knows of the snapshot; none of the mounted filesystem, which counts by itself.
    uses: Option<Arc<Uses>>,
}

/// How often the kernel was told nodes of a snapshot, less how often it forgot one (`nlookup` of all its inodes,
/// fs/fuse/fuse_i.h): zero when nothing of the snapshot is open, mapped, anybody's directory, or just remembered.
#[derive(Debug, Default)]
pub(crate) struct Uses(AtomicU64);

impl Uses {
    pub(crate) fn count(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }

    fn retain(&self) {
        self.0.fetch_add(1, Ordering::AcqRel);
    }

    /// Never below zero: a slot that was given to another snapshot may hear of nodes from before.
    fn release(&self, count: u64) {
        let less = |uses: u64| Some(uses.saturating_sub(count));
        let _ = self
            .0
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, less);
    }
}

impl File {
    /// The kernel is about to be told this file or another of its filesystem.
    pub(crate) fn retain(&self, ino: u64) {
        match &self.uses {
            Some(uses) => uses.retain(),
            None => self.filesystem.retain(ino, 1),
        }
    }

    /// The number that `stat` shows: that of the object. A snapshot's files keep their slot in it:
    /// all snapshots are one device to the kernel, and two files with the same number on the same
    /// device are one to `tar`, `cp -a` and `rsync -H`, which would copy the wrong content.
    pub(crate) fn shown(&self, ino: u64) -> u64 {
        if self.is_live { ino } else { self.node(ino) }
    }

    /// How long the kernel may keep attributes that come with an entry: no time where the number
    /// to show is not that of the node, which is the one that an entry tells.
    pub(crate) fn has_own_number(&self, ino: u64) -> bool {
        self.shown(ino) == self.node(ino)
    }

    /// The node number of another file of the same filesystem.
    pub(crate) fn node(&self, ino: u64) -> u64 {
        match ino == self.filesystem.root() {
            true if self.is_live => ROOT,
            true => root_of(self.slot),
            false => match &self.live {
                Some(live) => live.node(ino),
                None => self.slot << SLOT_SHIFT | ino,
            },
        }
    }
}

/// A state of the mounted filesystem.
struct Live {
    filesystem: Arc<Filesystem>,
    moved: Arc<Moved>,
}

impl Live {
    fn node(&self, ino: u64) -> u64 {
        match ino == self.filesystem.root() {
            true => ROOT,
            false => self.moved.get(&ino).copied().unwrap_or(0) << SLOT_SHIFT | ino,
        }
    }
}

/// The node of the root directory of a slot's filesystem: object 1 is its master node, never a
/// file, so the number is free, and known before the filesystem is open.
fn root_of(slot: u64) -> u64 {
    slot << SLOT_SHIFT | 1
}

struct Snapshot {
    name: String,
    /// Its dataset's, once it was open.
    guid: Option<u64>,
    open: Arc<tokio::sync::Mutex<Option<Arc<Filesystem>>>>,
    /// The same, to be looked at without waiting.
    cached: Option<Arc<Filesystem>>,
    last_use: Instant,
    uses: Arc<Uses>,
}

struct State {
    live: Arc<Live>,
    /// Nobody gets at the mounted filesystem: another state is to take its place.
    is_paused: bool,
    /// Slots of files of the mounted filesystem, but 0.
    live_slots: HashSet<u64>,
    next_slot: u64,
    snapshots: HashMap<u64, Snapshot>,
}

/// All nodes of a mount.
pub(crate) struct Nodes {
    state: Mutex<State>,
    /// Told when the mounted filesystem can be got at again.
    resumed: Notify,
    provider: Option<Arc<dyn SnapshotProvider>>,
    since: SystemTime,
}

impl Nodes {
    pub(crate) fn new(live: Arc<Filesystem>, provider: Option<Arc<dyn SnapshotProvider>>) -> Self {
        let state = State {
            live: Arc::new(Live {
                filesystem: live,
                moved: Arc::default(),
            }),
            is_paused: false,
            live_slots: HashSet::new(),
            next_slot: 1,
            snapshots: HashMap::new(),
        };
        Self {
            state: Mutex::new(state),
            resumed: Notify::new(),
            provider,
            since: SystemTime::now(),
        }
    }

    pub(crate) fn live(&self) -> Arc<Filesystem> {
        Arc::clone(&self.state.lock().live.filesystem)
    }

    /// When it was mounted: the time of `.zfs`.
    pub(crate) fn since(&self) -> SystemTime {
        self.since
    }

    pub(crate) fn provider(&self) -> Option<&Arc<dyn SnapshotProvider>> {
        self.provider.as_ref()
    }

    /// Lets nobody at the mounted filesystem, until [`Self::resume`]; whether all who were are done.
    pub(crate) async fn pause(&self) -> bool {
        let before = {
            let mut state = self.state.lock();
            state.is_paused = true;
            // Who has the one before is under way.
            let same = Live {
                filesystem: Arc::clone(&state.live.filesystem),
                moved: Arc::clone(&state.live.moved),
            };
            std::mem::replace(&mut state.live, Arc::new(same))
        };
        let since = Instant::now();
        while Arc::strong_count(&before) > 1 {
            if since.elapsed() > PAUSING {
                return false;
            }
            tokio::time::sleep(LOOK).await;
        }
        true
    }

    /// Lets requests at the mounted filesystem again.
    pub(crate) fn resume(&self) {
        self.state.lock().is_paused = false;
        self.resumed.notify_waiters();
    }

    /// Puts another state into the place of the mounted filesystem, which is paused. `survives` tells which files that
    /// the kernel knows are in both.
    pub(crate) fn replace(&self, live: Arc<Filesystem>, survives: impl Fn(u64) -> bool) {
        let mut state = self.state.lock();
        let mut moved = Moved::clone(&state.live.moved);
        let mut slot = None;
        for (ino, count) in state.live.filesystem.retained() {
            if survives(ino) {
                live.retain(ino, count);
                continue;
            }
            let slot = *slot.get_or_insert_with(|| take_slot(&mut state));
            state.live_slots.insert(slot);
            moved.insert(ino, slot);
        }
        state.live = Arc::new(Live {
            filesystem: live,
            moved: Arc::new(moved),
        });
    }

    /// The node number of a file of the mounted filesystem.
    pub(crate) fn live_node(&self, ino: u64) -> u64 {
        let live = Arc::clone(&self.state.lock().live);
        live.node(ino)
    }

    /// The kernel forgot what it was told `count` times of a file of the mounted filesystem; whether that frees it.
    pub(crate) fn release_live(&self, node: u64, count: u64) -> bool {
        // Under the lock: who replaces the filesystem takes the counts along.
        let state = self.state.lock();
        match state.live_ino(node) {
            Some(ino) if node != ROOT => state.live.filesystem.release(ino, count),
            _ => false,
        }
    }

    /// What a node is, if that is known without waiting.
    pub(crate) fn try_resolve(&self, node: u64) -> Option<Target> {
        match node {
            ZFS => return Some(Target::Zfs),
            SNAPSHOTS => return Some(Target::Snapshots),
            SHARES => return Some(Target::Shares),
            _ => {}
        }
        let mut state = self.state.lock();
        let slot = node >> SLOT_SHIFT;
        let ino = node & ((1 << SLOT_SHIFT) - 1);
        if state.is_live(node) {
            if state.is_paused {
                return None;
            }
            let ino = state.live_ino(node)?;
            return Some(Target::File(File {
                filesystem: Arc::clone(&state.live.filesystem),
                ino,
                slot: 0,
                is_live: true,
                live: Some(Arc::clone(&state.live)),
                uses: None,
            }));
        }
        let snapshot = state.snapshots.get_mut(&slot)?;
        snapshot.last_use = Instant::now();
        let filesystem = snapshot.cached.clone()?;
        let uses = Arc::clone(&snapshot.uses);
        Some(Target::File(snapshot_file(filesystem, ino, slot, uses)))
    }

    /// What a node is.
    pub(crate) async fn resolve(&self, node: u64) -> Result<Target, Errno> {
        loop {
            let resumed = self.resumed.notified();
            if let Some(target) = self.try_resolve(node) {
                return Ok(target);
            }
            {
                let state = self.state.lock();
                if !state.is_live(node) {
                    break;
                }
                if !state.is_paused {
                    match state.live_ino(node) {
                        Some(_) => continue,
                        None => return Err(Errno::ESTALE),
                    }
                }
            }
            resumed.await;
        }
        let slot = node >> SLOT_SHIFT;
        let (filesystem, uses) = self.reopen(slot).await?;
        let ino = node & ((1 << SLOT_SHIFT) - 1);
        Ok(Target::File(snapshot_file(filesystem, ino, slot, uses)))
    }

    /// The file that a node is.
    pub(crate) async fn file(&self, node: u64) -> Result<File, Errno> {
        match self.resolve(node).await? {
            Target::File(file) => Ok(file),
            Target::Zfs | Target::Snapshots | Target::Shares => Err(Errno::EPERM),
        }
    }

    /// The files that two nodes are, which must be of one filesystem.
    pub(crate) async fn files(&self, one: u64, other: u64) -> Result<(File, File), Errno> {
        loop {
            // Who waits has none: the one would keep the other from coming.
            drop(self.file(one).await?);
            drop(self.file(other).await?);
            if let (Some(one), Some(other)) = (self.try_file(one), self.try_file(other)) {
                return match one.slot == other.slot {
                    true => Ok((one, other)),
                    false => Err(Errno::EXDEV),
                };
            }
        }
    }

    /// The same without waiting.
    pub(crate) fn try_file(&self, node: u64) -> Option<File> {
        match self.try_resolve(node)? {
            Target::File(file) => Some(file),
            Target::Zfs | Target::Snapshots | Target::Shares => None,
        }
    }

    /// Opens a slot's snapshot again.
    async fn reopen(&self, slot: u64) -> Result<(Arc<Filesystem>, Arc<Uses>), Errno> {
        let (name, guid, open, uses) = {
            let state = self.state.lock();
            let snapshot = state.snapshots.get(&slot).ok_or(Errno::ESTALE)?;
            (
                snapshot.name.clone(),
                snapshot.guid,
                Arc::clone(&snapshot.open),
                Arc::clone(&snapshot.uses),
            )
        };
        let mut open = open.lock().await;
        if let Some(filesystem) = &*open {
            return Ok((Arc::clone(filesystem), uses));
        }
        let provider = self.provider.as_ref().ok_or(Errno::ESTALE)?;
        let filesystem = provider.open(&name).await.map_err(|error| match error {
            FsError::NotFound { .. } => Errno::ESTALE,
            other => errno(&other),
        })?;
        let found = guid_of(&filesystem);
        if guid.is_some_and(|guid| guid != found) {
            // Another snapshot has the name now.
            let _ = filesystem.close().await;
            self.state.lock().snapshots.remove(&slot);
            return Err(Errno::ESTALE);
        }
        *open = Some(Arc::clone(&filesystem));
        if let Some(snapshot) = self.state.lock().snapshots.get_mut(&slot) {
            snapshot.guid = Some(found);
            snapshot.cached = Some(Arc::clone(&filesystem));
            snapshot.last_use = Instant::now();
        }
        Ok((filesystem, uses))
    }

    /// The kernel is about to be told the root directory of a snapshot, which need not be open.
    pub(crate) fn retain_snapshot(&self, node: u64) {
        if let Some(snapshot) = self.state.lock().snapshots.get(&(node >> SLOT_SHIFT)) {
            snapshot.uses.retain();
        }
    }

    /// The kernel forgot what it was told `count` times of a node, if that is a snapshot's.
    pub(crate) fn release_snapshot(&self, node: u64, count: u64) {
        if let Some(snapshot) = self.state.lock().snapshots.get(&(node >> SLOT_SHIFT)) {
            snapshot.uses.release(count);
        }
    }

    /// What the kernel knows of the snapshot called `name`; none where it was never told of it.
    pub(crate) fn uses(&self, name: &str) -> Option<Arc<Uses>> {
        let state = self.state.lock();
        let mut snapshots = state.snapshots.values();
        let snapshot = snapshots.find(|there| there.name == name)?;
        Some(Arc::clone(&snapshot.uses))
    }

    /// The node of the root directory of the snapshot called `name`, which is not opened yet.
    pub(crate) fn snapshot_node(&self, name: &str) -> u64 {
        let mut state = self.state.lock();
        let known = state.snapshots.iter().find(|(_, there)| there.name == name);
        if let Some(slot) = known.map(|(slot, _)| *slot) {
            return root_of(slot);
        }
        let slot = take_slot(&mut state);
        let snapshot = Snapshot {
            name: name.to_owned(),
            guid: None,
            open: Arc::default(),
            cached: None,
            last_use: Instant::now(),
            uses: Arc::default(),
        };
        state.snapshots.insert(slot, snapshot);
        root_of(slot)
    }

    /// The root directory of the snapshot called `name`.
    pub(crate) async fn snapshot(&self, name: &str) -> Result<File, Errno> {
        // A second time where another snapshot got the name.
        for _ in 0..2 {
            let node = self.snapshot_node(name);
            match self.file(node).await {
                Err(Errno::ESTALE) => {
                    self.state.lock().snapshots.remove(&(node >> SLOT_SHIFT));
                }
                other => return other,
            }
        }
        Err(Errno::ENOENT)
    }

    /// Closes snapshots: the one called `name`, or all (`None`) that have not been used for
    /// `at_least`. Returns their names.
    pub(crate) async fn close_snapshots(
        &self,
        name: Option<&str>,
        at_least: Duration,
    ) -> Vec<String> {
        let wanted: Vec<_> = {
            let mut state = self.state.lock();
            state
                .snapshots
                .values_mut()
                .filter(|there| name.is_none_or(|name| there.name == name))
                .filter(|there| there.last_use.elapsed() >= at_least)
                .map(|there| {
                    there.cached = None;
                    (there.name.clone(), Arc::clone(&there.open))
                })
                .collect()
        };
        let mut closed = Vec::new();
        for (name, open) in wanted {
            if let Some(filesystem) = open.lock().await.take() {
                let _ = filesystem.close().await;
            }
            closed.push(name);
        }
        closed
    }

    /// Closes what has been idle.
    pub(crate) async fn close_idle(&self) {
        self.close_snapshots(None, IDLE).await;
    }
}

fn snapshot_file(filesystem: Arc<Filesystem>, ino: u64, slot: u64, uses: Arc<Uses>) -> File {
    let ino = if ino == 1 { filesystem.root() } else { ino };
    File {
        filesystem,
        ino,
        slot,
        is_live: false,
        live: None,
        uses: Some(uses),
    }
}

fn guid_of(filesystem: &Filesystem) -> u64 {
    filesystem
        .dataset()
        .map_or(0, |dataset| dataset.guid().get())
}

impl State {
    /// Whether a node is of the mounted filesystem.
    fn is_live(&self, node: u64) -> bool {
        let slot = node >> SLOT_SHIFT;
        slot == 0 || self.live_slots.contains(&slot)
    }

    /// The object that such a node is; none where it was another state's.
    fn live_ino(&self, node: u64) -> Option<u64> {
        if node == ROOT {
            return Some(self.live.filesystem.root());
        }
        let ino = node & ((1 << SLOT_SHIFT) - 1);
        (self.live.node(ino) == node).then_some(ino)
    }
}

fn take_slot(state: &mut State) -> u64 {
    loop {
        let slot = state.next_slot;
        state.next_slot = if slot >= SLOT_MAX { 1 } else { slot + 1 };
        if !state.live_slots.contains(&slot) && !state.snapshots.contains_key(&slot) {
            return slot;
        }
        // So many snapshots at once: the one not used for longest makes room.
        if (state.snapshots.len() + state.live_slots.len()) as u64 >= SLOT_MAX - 1 {
            let oldest = state
                .snapshots
                .iter()
                .min_by_key(|(_, there)| there.last_use);
            if let Some(oldest) = oldest.map(|(slot, _)| *slot) {
                state.snapshots.remove(&oldest);
            }
        }
    }
}
