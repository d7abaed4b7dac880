//! Node numbers of a mount: which filesystem an inode number of the kernel's belongs to.
//!
//! | bits | node |
//! |---|---|
//! | the number 1 | the root of the mounted filesystem |
//! | 62 set | `.zfs` (…1), `.zfs/snapshot` (…2), `.zfs/shares` (…3), `.zfs/shadow` (…4) |
//! | 48 to 61: slot, 0 to 47: object | a file of the filesystem in that slot; object 1: its root |
//!
//! Slot 0 is the mounted filesystem. When another state of it takes its place (rollback), files
//! that are in both keep their nodes. Where the kernel knows a file that is not in the new state,
//! whatever has or gets its object number is in another slot from then on ([`Moved`]): what the
//! kernel has of the old one is stale rather than wrong. A snapshot gets a slot when it is first
//! listed or looked up; when it is open is up to the control directory
//! ([`access::ControlDirectory`]).
//!
//! No slot is given to another filesystem while the kernel knows a node in it: whoever had a file
//! open would read another one. Where all slots are known, what would need one is refused: a lookup
//! of a snapshot by ENFILE (generations do not help, as requests carry none), and a rollback
//! ([`Nodes::pause`]). For the mounted filesystem's slots see module `slots`.
//!
//! What the kernel knows of a snapshot is counted ([`Snapshot::uses`]): an open file or somebody's
//! directory there is no request, and the file may be read from after hours. Only the kernel knows
//! of them, and says so by not forgetting the node.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use access::{ControlDirectory, ControlNode, Snapshot};
use filesystem::{Filesystem, FsError};
use fuser::Errno;
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::convert::errno;
use crate::slots::{self, LiveSlots, Moved};

/// The root of every FUSE mount (`FUSE_ROOT_ID`).
pub(crate) const ROOT: u64 = 1;
const CONTROL: u64 = 1 << 62;
/// `.zfs`.
pub(crate) const ZFS: u64 = CONTROL | 1;
/// `.zfs/snapshot`.
pub(crate) const SNAPSHOTS: u64 = CONTROL | 2;
/// `.zfs/shares`.
pub(crate) const SHARES: u64 = CONTROL | 3;
/// `.zfs/shadow`.
pub(crate) const SHADOW: u64 = CONTROL | 4;
const SLOT_SHIFT: u32 = 48;

/// How long requests may take that are under way while another state is to take the filesystem's
/// place.
const PAUSING: Duration = Duration::from_secs(10);
/// How often that is looked at.
const LOOK: Duration = Duration::from_millis(1);

/// What a node is.
#[derive(Clone)]
pub(crate) enum Target {
    /// A file.
    File(File),
    /// `.zfs` or a directory in it.
    Control(ControlNode),
}

/// The node of a control directory.
pub(crate) fn control_node(of: ControlNode) -> u64 {
    match of {
        ControlNode::Zfs => ZFS,
        ControlNode::Snapshots => SNAPSHOTS,
        ControlNode::Shares => SHARES,
        ControlNode::Shadow => SHADOW,
    }
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
    /// The snapshot, which counts what the kernel knows of it; none of the mounted filesystem,
    /// which counts by itself.
    snapshot: Option<Arc<Snapshot>>,
}

impl File {
    /// The kernel is about to be told this file or another of its filesystem.
    pub(crate) fn retain(&self, ino: u64) {
        match &self.snapshot {
            Some(snapshot) => snapshot.retain(),
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

struct State {
    live: Arc<Live>,
    /// Nobody gets at the mounted filesystem: another state is to take its place.
    is_paused: bool,
    /// Slots of the mounted filesystem, but 0.
    live_slots: LiveSlots,
    /// The slot that was taken last.
    last_slot: u64,
    snapshots: HashMap<u64, Slot>,
}

/// The slot of a snapshot.
struct Slot {
    snapshot: Arc<Snapshot>,
    last_use: Instant,
}

/// All nodes of a mount.
pub(crate) struct Nodes {
    state: Mutex<State>,
    /// Told when the mounted filesystem can be got at again.
    resumed: Notify,
    control: Arc<ControlDirectory>,
    /// Mounted read-only, whatever the filesystem says.
    is_read_only: AtomicBool,
}

impl Nodes {
    pub(crate) fn new(live: Arc<Filesystem>, control: Arc<ControlDirectory>) -> Self {
        let state = State {
            live: Arc::new(Live {
                filesystem: live,
                moved: Arc::default(),
            }),
            is_paused: false,
            live_slots: LiveSlots::default(),
            last_slot: 0,
            snapshots: HashMap::new(),
        };
        Self {
            state: Mutex::new(state),
            resumed: Notify::new(),
            control,
            is_read_only: AtomicBool::new(false),
        }
    }

    /// Whether the mount is read-only. The kernel refuses changes itself then, but for ioctls that
    /// it does not know.
    pub(crate) fn is_read_only(&self) -> bool {
        self.is_read_only.load(Ordering::Acquire)
    }

    /// Says whether it is from now on.
    pub(crate) fn set_read_only(&self, is_read_only: bool) {
        self.is_read_only.store(is_read_only, Ordering::Release);
    }

    pub(crate) fn live(&self) -> Arc<Filesystem> {
        Arc::clone(&self.state.lock().live.filesystem)
    }

    pub(crate) fn control(&self) -> &Arc<ControlDirectory> {
        &self.control
    }

    /// Lets nobody at the mounted filesystem, until [`Self::resume`]; whether another state may
    /// take its place: all who were are done, and there are slots for files that the kernel knows.
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
        // Nobody has a node of the mounted filesystem now that the kernel is yet to be told.
        let has_room = self.state.lock().settle();
        if !has_room {
            tracing::warn!(
                "a filesystem cannot be replaced under use: too many states of a file that were \
                 before are still in use by the kernel"
            );
        }
        has_room
    }

    /// Lets requests at the mounted filesystem again.
    pub(crate) fn resume(&self) {
        self.state.lock().is_paused = false;
        self.resumed.notify_waiters();
    }

    /// Puts another state into the place of the mounted filesystem, which is paused. `survives`
    /// tells which files that the kernel knows are in both.
    pub(crate) fn replace(&self, live: Arc<Filesystem>, survives: impl Fn(u64) -> bool) {
        let mut state = self.state.lock();
        let before = Arc::clone(&state.live);
        let mut moved = Moved::clone(&before.moved);
        let (root, root_before) = (live.root(), before.filesystem.root());
        // Free, as `pause` and the limit of snapshots see to.
        let fresh = state.free_slot().unwrap_or(slots::LAST);
        for (ino, count) in before.filesystem.retained() {
            if ino == root_before {
                // Its node is the root of every state, and never forgotten.
                if ino == root {
                    live.retain(ino, count);
                }
            } else if ino != root && survives(ino) {
                live.retain(ino, count);
            } else {
                state.live_slots.leave(&mut moved, (ino, count), fresh);
            }
        }
        if state.live_slots.contains(fresh) {
            state.last_slot = fresh;
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

    /// The kernel forgot what it was told `count` times of a node; whether that frees a file of the
    /// mounted filesystem.
    pub(crate) fn forget(&self, node: u64, count: u64) -> bool {
        // Under the lock: who replaces the filesystem takes the counts along.
        let mut state = self.state.lock();
        if let Some(there) = state.snapshots.get(&(node >> SLOT_SHIFT)) {
            there.snapshot.release(count);
            return false;
        }
        match state.live_ino(node) {
            Some(_) if node == ROOT => false,
            Some(ino) => state.live.filesystem.release(ino, count),
            None => {
                let (slot, ino) = (node >> SLOT_SHIFT, node & ((1 << SLOT_SHIFT) - 1));
                state.live_slots.forget(slot, ino, count);
                false
            }
        }
    }

    /// What a node is, if that is known without waiting.
    pub(crate) fn try_resolve(&self, node: u64) -> Option<Target> {
        match node {
            ZFS => return Some(Target::Control(ControlNode::Zfs)),
            SNAPSHOTS => return Some(Target::Control(ControlNode::Snapshots)),
            SHARES => return Some(Target::Control(ControlNode::Shares)),
            SHADOW => return Some(Target::Control(ControlNode::Shadow)),
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
                snapshot: None,
            }));
        }
        let there = state.snapshots.get_mut(&slot)?;
        there.last_use = Instant::now();
        let snapshot = Arc::clone(&there.snapshot);
        drop(state);
        let filesystem = self.control.try_open(&snapshot)?;
        let file = snapshot_file(filesystem, ino, slot, snapshot);
        Some(Target::File(file))
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
        let snapshot = match self.state.lock().snapshots.get(&slot) {
            Some(there) => Arc::clone(&there.snapshot),
            None => return Err(Errno::ESTALE),
        };
        let filesystem = match self.control.open(&snapshot).await {
            Ok(filesystem) => filesystem,
            Err(error) => {
                // What the kernel knows of one that was destroyed stays stale.
                if matches!(error, FsError::Stale { .. }) {
                    self.state.lock().remove_snapshot(slot, &snapshot);
                }
                return Err(errno(&error));
            }
        };
        let ino = node & ((1 << SLOT_SHIFT) - 1);
        let file = snapshot_file(filesystem, ino, slot, snapshot);
        Ok(Target::File(file))
    }

    /// The file that a node is.
    pub(crate) async fn file(&self, node: u64) -> Result<File, Errno> {
        match self.resolve(node).await? {
            Target::File(file) => Ok(file),
            Target::Control(_) => Err(Errno::EPERM),
        }
    }

    /// The files that two nodes are, the first one of the filesystem that the other is of or of one
    /// of its snapshots.
    pub(crate) async fn files(&self, one: u64, other: u64) -> Result<(File, File), Errno> {
        loop {
            // Who waits has none: the one would keep the other from coming.
            drop(self.file(one).await?);
            drop(self.file(other).await?);
            if let (Some(one), Some(other)) = (self.try_file(one), self.try_file(other)) {
                return match one.slot == other.slot || other.is_live {
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
            Target::Control(_) => None,
        }
    }

    /// The kernel is about to be told the root directory of a snapshot, which need not be open, by
    /// a number that [`Self::shown_snapshot`] gave; not if that is not the snapshot's any more.
    pub(crate) fn retain_shown(&self, node: u64, snapshot: &Arc<Snapshot>) -> bool {
        let state = self.state.lock();
        let there = state.snapshots.get(&(node >> SLOT_SHIFT));
        let is_same = there.is_some_and(|there| Arc::ptr_eq(&there.snapshot, snapshot));
        if is_same {
            snapshot.retain();
        }
        is_same
    }

    /// The kernel forgot what it was told `count` times of a node, if that is a snapshot's.
    pub(crate) fn release_snapshot(&self, node: u64, count: u64) {
        if let Some(there) = self.state.lock().snapshots.get(&(node >> SLOT_SHIFT)) {
            there.snapshot.release(count);
        }
    }

    /// The node of the root directory of a snapshot, which need not be open; the kernel is about to
    /// be told it. Whoever does not tell it after all takes that back
    /// ([`Self::release_snapshot`]).
    ///
    /// # Errors
    /// ENFILE where the kernel knows files of so many snapshots that there is no slot.
    pub(crate) fn retain_snapshot(&self, snapshot: &Arc<Snapshot>) -> Result<u64, Errno> {
        let slot = {
            let mut state = self.state.lock();
            let slot = state.snapshot_slot(snapshot, slots::SNAPSHOTS_MAX);
            if slot.is_some() {
                // Under the lock: the slot is not given to another from here on.
                snapshot.retain();
            }
            slot
        };
        let Some(slot) = slot else {
            let most = slots::SNAPSHOTS_MAX;
            tracing::warn!(
                most,
                "a snapshot is refused: the kernel uses too many of the mount"
            );
            return Err(Errno::ENFILE);
        };
        Ok(root_of(slot))
    }

    /// The number that a listing shows for the root directory of a snapshot: its node, if it has or
    /// gets a slot.
    pub(crate) fn shown_snapshot(&self, snapshot: &Arc<Snapshot>) -> Option<u64> {
        let mut state = self.state.lock();
        let slot = state.snapshot_slot(snapshot, slots::LISTED_MAX);
        slot.map(root_of)
    }
}

fn snapshot_file(
    filesystem: Arc<Filesystem>,
    ino: u64,
    slot: u64,
    snapshot: Arc<Snapshot>,
) -> File {
    let ino = if ino == 1 { filesystem.root() } else { ino };
    File {
        filesystem,
        ino,
        slot,
        is_live: false,
        live: None,
        snapshot: Some(snapshot),
    }
}

impl State {
    /// Whether a node is of the mounted filesystem.
    fn is_live(&self, node: u64) -> bool {
        let slot = node >> SLOT_SHIFT;
        slot == 0 || self.live_slots.contains(slot)
    }

    /// The object that such a node is; none where it was another state's.
    fn live_ino(&self, node: u64) -> Option<u64> {
        if node == ROOT {
            return Some(self.live.filesystem.root());
        }
        let ino = node & ((1 << SLOT_SHIFT) - 1);
        (self.live.node(ino) == node).then_some(ino)
    }

    /// Gives back slots that the kernel knows nothing in any more; whether there is one for every
    /// file that it knows. To be called while nobody has the mounted filesystem.
    fn settle(&mut self) -> bool {
        let known = self.live.filesystem.retained();
        let mut moved = Moved::clone(&self.live.moved);
        self.live_slots.settle(&mut moved, &known);
        let has_room = self.live_slots.have_room(&moved, &known);
        self.live = Arc::new(Live {
            filesystem: Arc::clone(&self.live.filesystem),
            moved: Arc::new(moved),
        });
        has_room
    }

    /// A slot that nothing is in.
    fn free_slot(&self) -> Option<u64> {
        let is_free =
            |slot: &u64| !self.live_slots.contains(*slot) && !self.snapshots.contains_key(slot);
        slots::after(self.last_slot).find(is_free)
    }

    /// The slot of a snapshot. It gets one if fewer than `most` have one, or if the kernel does not
    /// know one of them, which makes room: that one which was not used for longest.
    fn snapshot_slot(&mut self, snapshot: &Arc<Snapshot>, most: usize) -> Option<u64> {
        let mut known = self.snapshots.iter();
        if let Some((slot, _)) = known.find(|(_, there)| Arc::ptr_eq(&there.snapshot, snapshot)) {
            return Some(*slot);
        }
        if self.snapshots.len() >= most {
            let unknown = (self.snapshots.iter()).filter(|(_, there)| there.snapshot.uses() == 0);
            let oldest = unknown.min_by_key(|(_, there)| there.last_use);
            let oldest = oldest.map(|(slot, _)| *slot)?;
            self.snapshots.remove(&oldest);
        }
        let slot = self.free_slot()?;
        let there = Slot {
            snapshot: Arc::clone(snapshot),
            last_use: Instant::now(),
        };
        self.snapshots.insert(slot, there);
        self.last_slot = slot;
        Some(slot)
    }

    fn remove_snapshot(&mut self, slot: u64, snapshot: &Arc<Snapshot>) {
        let there = self.snapshots.get(&slot);
        // Under the lock, as the kernel is told of it under it.
        if there.is_some_and(|there| Arc::ptr_eq(&there.snapshot, snapshot)) && snapshot.uses() == 0
        {
            self.snapshots.remove(&slot);
        }
    }
}
