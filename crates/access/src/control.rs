//! `.zfs` of a filesystem: what is in it, and snapshots, opened when they are looked up and closed
//! when they are idle.
//!
//! ```text
//!   .zfs ─┬─ snapshot ── one directory per snapshot: its root
//!         ├─ shares ──── empty
//!         └─ shadow ──── one directory per snapshot, named after the second that it was made in
//! ```
//!
//! `shadow` is not listed. Its names are those that Windows gives previous versions,
//! `@GMT-YYYY.MM.DD-HH.MM.SS` ([`shadow`]), which Samba looks for, so that snapshots are
//! such versions whatever they are called. What is under such a name is a place of its own, as if
//! there were another snapshot: a directory is in one place only, to the kernel and to clients.
//!
//! Each server of a filesystem has a control directory of its own, since each has clients of its
//! own that know snapshots by it ([`Snapshot::retain`]); the snapshots that several have open are
//! the same, as always ([`crate::Access`]). A snapshot is known by its name: closed and opened
//! again, it is stale if another one has the name by then.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use dataset::ListOptions;
use device::BoxFuture;
use filesystem::{Filesystem, FsError};
use format::{Guid, ObjectId};
use parking_lot::Mutex;

use crate::access::Access;
use crate::lease::Lease;
use crate::shadow;
use crate::user::User;

/// A snapshot that was not used for so long is closed.
const IDLE_NS: u64 = 60_000_000_000;

/// Property `snapdir`: what is to be seen of `.zfs`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(u8)]
pub enum Snapdir {
    /// It is not listed, but can be reached.
    #[default]
    Hidden,
    /// It is listed.
    Visible,
    /// There is none.
    Disabled,
}

impl Snapdir {
    /// As it is stored (`zfs_snapdir`, include/sys/fs/zfs.h).
    pub fn of(stored: u64) -> Self {
        match stored {
            1 => Snapdir::Visible,
            2 => Snapdir::Disabled,
            _ => Snapdir::Hidden,
        }
    }
}

/// A directory that only exists here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ControlNode {
    /// `.zfs`.
    Zfs,
    /// `.zfs/snapshot`.
    Snapshots,
    /// `.zfs/shares`, which is empty.
    Shares,
    /// `.zfs/shadow`.
    Shadow,
}

/// An entry of a [`ControlNode`].
#[derive(Debug, Clone)]
pub enum ControlEntry {
    /// One of these directories.
    Node(ControlNode),
    /// A snapshot's root directory.
    Snapshot(Arc<Snapshot>),
}

/// What is to be told of a [`ControlNode`] (`zpl_root_getattr` and others,
/// module/os/linux/zfs/zpl_ctldir.c).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ControlAttributes {
    /// Links, as of a directory.
    pub links: u32,
    /// Size in bytes.
    pub size_bytes: u64,
    /// When it changed last.
    pub modified: SystemTime,
}

impl ControlNode {
    /// The number that it shows (`ZFSCTL_INO_*`, include/os/linux/zfs/sys/zfs_ctldir.h).
    pub const fn number(self) -> u64 {
        const ZFSCTL_INO_ROOT: u64 = (1 << 48) - 1;
        match self {
            ControlNode::Zfs => ZFSCTL_INO_ROOT,
            ControlNode::Shares => ZFSCTL_INO_ROOT - 1,
            ControlNode::Snapshots => ZFSCTL_INO_ROOT - 2,
            // Ours; `ZFSCTL_INO_SNAPDIRS`, where OpenZFS's snapshots begin, shows nothing here.
            ControlNode::Shadow => ZFSCTL_INO_ROOT - 3,
        }
    }
}

/// A snapshot in a control directory, open or not.
#[derive(Debug)]
pub struct Snapshot {
    name: String,
    /// Its dataset's name after the `@`, where it is in `.zfs/shadow`.
    of: Option<String>,
    /// Held while it is opened or closed.
    lease: tokio::sync::Mutex<Option<Lease<Filesystem>>>,
    known: Mutex<Known>,
    /// How many references clients have to it.
    uses: AtomicU64,
}

struct Known {
    /// Its dataset's, once it was open.
    guid: Option<Guid>,
    /// What is open, to be had without waiting.
    open: Option<Arc<Filesystem>>,
    last_use_ns: u64,
}

impl std::fmt::Debug for Known {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Known")
            .field("guid", &self.guid)
            .field("is_open", &self.open.is_some())
            .finish_non_exhaustive()
    }
}

impl Snapshot {
    /// Its name in its directory.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The directory that it is in.
    pub fn directory(&self) -> ControlNode {
        match self.of {
            Some(_) => ControlNode::Shadow,
            None => ControlNode::Snapshots,
        }
    }

    /// What it is found by among all: datasets' names have no `@`.
    fn key(name: &str, of: Option<&str>) -> String {
        match of {
            Some(of) => format!("{name}@{of}"),
            None => name.to_owned(),
        }
    }

    /// Its dataset's name, after the `@`.
    fn dataset(&self) -> &str {
        self.of.as_deref().unwrap_or(&self.name)
    }

    /// How many references clients have: they know its files, so that it is in use, open or not.
    pub fn uses(&self) -> u64 {
        self.uses.load(Ordering::Acquire)
    }

    /// A client is given a reference to a file in it.
    pub fn retain(&self) {
        self.uses.fetch_add(1, Ordering::AcqRel);
    }

    /// A client has let go of references. There are never less than none: a client may speak of
    /// another snapshot, which it knew by the same number before.
    pub fn release(&self, count: u64) {
        let less = |uses: u64| Some(uses.saturating_sub(count));
        let _ = self
            .uses
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, less);
    }
}

/// `.zfs` of a filesystem, for one server.
pub struct ControlDirectory {
    access: Arc<Access>,
    /// The filesystem's dataset, whose name may change.
    head: ObjectId,
    user: User,
    snapdir: AtomicU8,
    since: SystemTime,
    by_name: Mutex<HashMap<String, Arc<Snapshot>>>,
}

impl Access {
    /// `.zfs` of the filesystem `head`, for `user`. Snapshots in it that are not used for a minute
    /// are closed.
    pub fn control_directory(
        self: &Arc<Self>,
        head: ObjectId,
        user: User,
        snapdir: Snapdir,
    ) -> Arc<ControlDirectory> {
        let since = Duration::from_nanos(self.world().clock.wall_ns());
        let control = Arc::new(ControlDirectory {
            access: Arc::clone(self),
            head,
            user,
            snapdir: AtomicU8::new(snapdir as u8),
            since: UNIX_EPOCH + since,
            by_name: Mutex::default(),
        });
        self.keep_house_of(Arc::downgrade(&control));
        control
    }
}

impl ControlDirectory {
    pub(crate) fn access(&self) -> &Arc<Access> {
        &self.access
    }

    /// The filesystem's dataset.
    pub(crate) fn head(&self) -> ObjectId {
        self.head
    }

    /// What is to be seen of it.
    pub fn snapdir(&self) -> Snapdir {
        Snapdir::of(self.snapdir.load(Ordering::Relaxed).into())
    }

    /// Changes what is to be seen of it, and tells what was before.
    pub fn set_snapdir(&self, snapdir: Snapdir) -> Snapdir {
        Snapdir::of(self.snapdir.swap(snapdir as u8, Ordering::Relaxed).into())
    }

    /// What is to be told of one of its directories.
    pub async fn attributes(&self, of: ControlNode) -> ControlAttributes {
        let (links, modified) = match of {
            ControlNode::Zfs => (1, self.since),
            ControlNode::Shares => (2, self.since),
            ControlNode::Snapshots | ControlNode::Shadow => self.snapshots_modified().await,
        };
        let size_bytes = match of {
            ControlNode::Zfs => 0,
            ControlNode::Shares | ControlNode::Snapshots | ControlNode::Shadow => links.into(),
        };
        ControlAttributes {
            links,
            size_bytes,
            modified,
        }
    }

    async fn snapshots_modified(&self) -> (u32, SystemTime) {
        let Ok(list) = self.list().await else {
            return (2, UNIX_EPOCH);
        };
        let newest = list.iter().map(|(_, seconds)| *seconds).max();
        // Pools that do not keep it know at least when the newest was made.
        let changed = self.changed_seconds().await;
        let seconds = changed.or(newest).unwrap_or(0);
        let modified = UNIX_EPOCH.checked_add(Duration::from_secs(seconds));
        (2 + list.len() as u32, modified.unwrap_or(UNIX_EPOCH))
    }

    /// Names of the filesystem's snapshots, and when they were made, in seconds since the epoch.
    fn list(&self) -> BoxFuture<'_, Result<Vec<(String, u64)>, FsError>> {
        Box::pin(self.list_now())
    }

    async fn list_now(&self) -> Result<Vec<(String, u64)>, FsError> {
        let options = ListOptions {
            filesystems: false,
            volumes: false,
            snapshots: true,
            depth: Some(1),
        };
        let dsl = self.access.dsl();
        let head = dsl.directories().name_of(self.head).await?;
        let listed = dsl.directories().list(&head, &options).await?.into_iter();
        Ok(listed
            .filter_map(|info| {
                let (of, snapshot) = info.name.split_once('@')?;
                (of == head).then(|| (snapshot.to_owned(), info.creation_seconds))
            })
            .collect())
    }

    /// When a snapshot was last made or destroyed (property `snapshots_changed`).
    async fn changed_seconds(&self) -> Option<u64> {
        let dsl = self.access.dsl();
        let head = dsl.directories().name_of(self.head).await.ok()?;
        let setting = dsl.properties().get(&head, "snapshots_changed").await;
        setting.ok()?.value.number()
    }

    /// What is in one of its directories, but `.` and `..`. Snapshots are not opened for it.
    ///
    /// # Errors
    /// Of reading.
    pub async fn entries(&self, of: ControlNode) -> Result<Vec<(String, ControlEntry)>, FsError> {
        Ok(match of {
            ControlNode::Zfs => {
                let node = |name: &str, node| (name.to_owned(), ControlEntry::Node(node));
                vec![
                    node("shares", ControlNode::Shares),
                    node("snapshot", ControlNode::Snapshots),
                ]
            }
            ControlNode::Shares => Vec::new(),
            ControlNode::Snapshots => {
                let listed = self.list().await?;
                self.forget_others(&listed);
                let listed = listed.into_iter();
                let entry = |(name, _): (String, u64)| {
                    let snapshot = ControlEntry::Snapshot(self.known(&name, None));
                    (name, snapshot)
                };
                listed.map(entry).collect()
            }
            ControlNode::Shadow => {
                let listed = self.list().await?;
                self.forget_others(&listed);
                let entry = |(shown, name): (String, String)| {
                    let snapshot = ControlEntry::Snapshot(self.known(&shown, Some(name)));
                    (shown, snapshot)
                };
                shadow::names(listed).into_iter().map(entry).collect()
            }
        })
    }

    /// What has this name in one of its directories. A snapshot is open then.
    ///
    /// # Errors
    /// [`FsError::NotFound`], and as [`Self::open`].
    pub async fn lookup(&self, of: ControlNode, name: &[u8]) -> Result<ControlEntry, FsError> {
        let missing = || FsError::NotFound { ino: of.number() };
        match (of, name) {
            (ControlNode::Zfs, b".") => Ok(ControlEntry::Node(ControlNode::Zfs)),
            (ControlNode::Zfs, b"shares") => Ok(ControlEntry::Node(ControlNode::Shares)),
            (ControlNode::Zfs, b"snapshot") => Ok(ControlEntry::Node(ControlNode::Snapshots)),
            (ControlNode::Zfs, b"shadow") => Ok(ControlEntry::Node(ControlNode::Shadow)),
            (ControlNode::Snapshots | ControlNode::Shadow, name) => {
                let name = std::str::from_utf8(name).map_err(|_| missing())?;
                // A second time where another snapshot got the name.
                for _ in 0..2 {
                    let dataset = match of {
                        ControlNode::Shadow => {
                            let found = shadow::find(name, self.list().await?);
                            Some(found.ok_or_else(missing)?)
                        }
                        // What is no name of a dataset's is found by no other name.
                        _ if name.contains('@') => return Err(missing()),
                        _ => None,
                    };
                    let snapshot = self.known(name, dataset);
                    match self.open(&snapshot).await {
                        Ok(_) => return Ok(ControlEntry::Snapshot(snapshot)),
                        Err(FsError::Stale { .. }) => {}
                        Err(error) => return Err(error),
                    }
                }
                Err(missing())
            }
            (ControlNode::Zfs | ControlNode::Shares, _) => Err(missing()),
        }
    }

    /// The snapshot of this name, be there one or not; one in `.zfs/shadow` with that of its
    /// dataset.
    fn known(&self, name: &str, of: Option<String>) -> Arc<Snapshot> {
        let key = Snapshot::key(name, of.as_deref());
        let mut by_name = self.by_name.lock();
        if let Some(snapshot) = by_name.get(&key) {
            return Arc::clone(snapshot);
        }
        let known = Known {
            guid: None,
            open: None,
            last_use_ns: self.now_ns(),
        };
        let snapshot = Arc::new(Snapshot {
            name: name.to_owned(),
            of,
            lease: tokio::sync::Mutex::default(),
            known: Mutex::new(known),
            uses: AtomicU64::new(0),
        });
        by_name.insert(key, Arc::clone(&snapshot));
        snapshot
    }

    /// The places of the snapshot whose dataset has this name, as far as clients were ever told of
    /// them.
    pub fn places_of(&self, dataset: &str) -> Vec<Arc<Snapshot>> {
        let by_name = self.by_name.lock();
        let places = by_name.values().filter(|known| known.dataset() == dataset);
        places.cloned().collect()
    }

    /// Forgets snapshots that are not there any more, and that nobody uses.
    fn forget_others(&self, listed: &[(String, u64)]) {
        let there: HashSet<&str> = listed.iter().map(|(name, _)| name.as_str()).collect();
        self.by_name.lock().retain(|_, snapshot| {
            there.contains(snapshot.dataset())
                || snapshot.uses() > 0
                || snapshot.known.lock().open.is_some()
        });
    }

    /// Forgets a snapshot that is stale.
    fn forget(&self, snapshot: &Arc<Snapshot>) {
        let key = Snapshot::key(&snapshot.name, snapshot.of.as_deref());
        let mut by_name = self.by_name.lock();
        if let Some(known) = by_name.get(&key)
            && Arc::ptr_eq(known, snapshot)
        {
            by_name.remove(&key);
        }
    }

    fn now_ns(&self) -> u64 {
        self.access.world().clock.monotonic_ns()
    }

    /// A snapshot's filesystem, if it is open; used now.
    pub fn try_open(&self, snapshot: &Snapshot) -> Option<Arc<Filesystem>> {
        let mut known = snapshot.known.lock();
        known.last_use_ns = self.now_ns();
        // Who had to be rid of it may have closed it under us.
        let open = known.open.as_ref();
        open.filter(|filesystem| !filesystem.is_closed()).cloned()
    }

    /// A snapshot's filesystem, which is opened if it is not; used now.
    ///
    /// # Errors
    /// [`FsError::Stale`], where it is gone or another has its name: it is forgotten then. And as
    /// [`Filesystem::open`].
    pub async fn open(&self, snapshot: &Arc<Snapshot>) -> Result<Arc<Filesystem>, FsError> {
        let mut lease = snapshot.lease.lock().await;
        if lease.as_ref().is_none_or(|lease| !lease.is_good()) {
            // Boxed: opening is deep, and rare.
            let leasing: BoxFuture<'_, _> = Box::pin(self.lease(snapshot));
            *lease = Some(leasing.await?);
        }
        let filesystem = lease.as_ref().map(Lease::get).ok_or(FsError::Closed)?;
        let mut known = snapshot.known.lock();
        known.last_use_ns = self.now_ns();
        known.open = Some(Arc::clone(&filesystem));
        Ok(filesystem)
    }

    async fn lease(&self, snapshot: &Arc<Snapshot>) -> Result<Lease<Filesystem>, FsError> {
        let stale = || {
            self.forget(snapshot);
            FsError::Stale { ino: 0 }
        };
        let head = self.access.dsl().directories().name_of(self.head).await?;
        let name = format!("{head}@{}", snapshot.dataset());
        let leased = self.access.filesystem(&name, self.user.clone()).await;
        let lease = leased.map_err(|error| match FsError::from(error) {
            FsError::NotFound { .. } => stale(),
            other => other,
        })?;
        let guid = lease.get().dataset()?.guid();
        let before = snapshot.known.lock().guid.replace(guid);
        match before {
            // Another snapshot has the name now.
            Some(before) if before != guid => Err(stale()),
            _ => Ok(lease),
        }
    }

    /// Closes snapshots: the one whose dataset has this name, or all. What is used again is opened
    /// again. Gives their places.
    pub async fn close(&self, dataset: Option<&str>) -> Vec<Arc<Snapshot>> {
        self.close_unused(dataset, 0).await
    }

    /// Closes what has been idle.
    pub(crate) async fn close_idle(&self) {
        self.close_unused(None, IDLE_NS).await;
    }

    async fn close_unused(&self, dataset: Option<&str>, at_least_ns: u64) -> Vec<Arc<Snapshot>> {
        let now_ns = self.now_ns();
        let wanted: Vec<_> = {
            let by_name = self.by_name.lock();
            let all = by_name.values();
            let wanted = all.filter(|there| dataset.is_none_or(|name| there.dataset() == name));
            let mut unused = Vec::new();
            for snapshot in wanted {
                let mut known = snapshot.known.lock();
                if now_ns.saturating_sub(known.last_use_ns) >= at_least_ns {
                    known.open = None;
                    unused.push(Arc::clone(snapshot));
                }
            }
            unused
        };
        let mut closed = Vec::new();
        for snapshot in wanted {
            if let Some(lease) = snapshot.lease.lock().await.take() {
                close_one(&snapshot, lease).await;
            }
            closed.push(snapshot);
        }
        closed
    }
}

async fn close_one(snapshot: &Snapshot, lease: Lease<Filesystem>) {
    // It may have been opened meanwhile by who found it closed.
    snapshot.known.lock().open = None;
    if let Err(error) = lease.close().await {
        tracing::debug!(snapshot = snapshot.name, %error, "a snapshot was not closed well");
    }
}
