//! A filesystem mounted through FUSE.

use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use access::{Access, ControlNode, Lease, Snapdir, Snapshot, Traffic, TrafficCounts, User};
use filesystem::{Filesystem, FsError, Listener, Listening, Origin};
use fuser::{Config, INodeNo, Notifier, Session, SessionACL};
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::aside::aside;
use crate::attach::Attachment;
use crate::error::{MountError, Result};
use crate::handler::Handler;
use crate::host;
use crate::mountinfo::{Anchor, MountTable};
use crate::nodes::{self, Nodes};
use crate::readers::Readers;
use crate::task::Runner;
use crate::teller::Teller;

/// Threads that read requests. What has to wait goes on as a task, so few are enough.
const THREADS_MAX: usize = 4;
/// How long the kernel may take to say that it forgot one more node of a snapshot, before what it
/// still knows counts as in use.
const FORGETTING: Duration = Duration::from_secs(2);
/// The same, where it can be asked again.
const FORGETTING_MOSTLY: Duration = Duration::from_millis(100);
/// How often that is looked at.
const LOOK: Duration = Duration::from_millis(5);
/// How long an unmounted filesystem may take to answer its last requests.
const LAST_REQUESTS: Duration = Duration::from_secs(30);
/// How long one that somebody else unmounted may take to end.
const ENDING: Duration = Duration::from_secs(1);

/// How to mount.
#[derive(Debug, Clone)]
pub struct MountOptions {
    /// What `mount` and `df` show as the source: the dataset's name.
    pub source_name: String,
    /// Refuse writes (`-o ro`).
    pub read_only: bool,
    /// Let other users in (needs root, or user_allow_other).
    pub allow_other: bool,
    /// Obey device files (`devices`).
    pub devices: bool,
    /// Obey set-id bits (`setuid`).
    pub setuid: bool,
    /// Allow programs to run (`exec`).
    pub exec: bool,
    /// Mount over a directory that is not empty (`overlay`).
    pub overlay: bool,
    /// What is to be seen of `.zfs`.
    pub snapdir: Snapdir,
    /// Number of the user who mounts it, and whose directory that is to be; none where it is
    /// root's to say.
    pub user: Option<u32>,
}

impl MountOptions {
    /// The defaults for a dataset: all allowed, `.zfs` hidden, overlay as OpenZFS's default (on).
    pub fn new(source_name: impl Into<String>) -> Self {
        Self {
            source_name: source_name.into(),
            read_only: false,
            allow_other: true,
            devices: true,
            setuid: true,
            exec: true,
            overlay: true,
            snapdir: Snapdir::Hidden,
            user: None,
        }
    }

    fn to_attachment(&self) -> Attachment {
        Attachment {
            source_name: self.source_name.clone(),
            read_only: self.read_only,
            devices: self.devices,
            setuid: self.setuid,
            exec: self.exec,
            allow_other: self.allow_other,
        }
    }
}

/// How to unmount.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum UnmountMode {
    /// Refuse if files are open.
    #[default]
    Clean,
    /// Cut off whoever has files open (`-f`): their operations fail.
    Force,
    /// The same, and what others mounted inside goes too: the server ends.
    AtAnyCost,
    /// Take it out of the tree now; it ends when the last file is closed (`-l`).
    Lazy,
}

/// A FUSE session that is served by threads of its own.
pub(crate) struct Served {
    anchor: Anchor,
    notifier: Notifier,
    ended: watch::Receiver<bool>,
    /// Whether somebody unmounted it here; so that it is not done twice.
    is_unmounted: AtomicBool,
}

impl Served {
    /// Mounts `handler` at `mountpoint` and starts to serve it with some threads.
    pub(crate) async fn start(
        handler: impl fuser::Filesystem,
        readers: &Readers,
        mountpoint: &Path,
        attachment: Attachment,
        threads: usize,
        (overlay, user): (bool, Option<u32>),
    ) -> Result<Self> {
        let path = mountpoint.to_owned();
        let readers = readers.clone();
        let place = aside(move || host::prepare_mountpoint(&path, overlay, user)).await?;
        // The descriptor of the connection is this process's: not aside.
        let start = move || {
            host::check_fuse()?;
            let mountpoint = place.path.clone();
            let refused = |source| MountError::Refused {
                path: mountpoint.clone(),
                source,
            };
            let mut config = Config::default();
            config.n_threads = Some(threads);
            config.clone_fd = true;
            let acl = match attachment.allow_other {
                true => SessionACL::All,
                false => SessionACL::Owner,
            };
            let (connection, anchor) = attachment.mount(&place).map_err(refused)?;
            // From here on it is mounted.
            let take_away = {
                let anchor = anchor.clone();
                move || {
                    let gone = host::unmount_ours(&anchor, UnmountMode::Lazy);
                    if let Err(error) = gone {
                        tracing::debug!(%error, "a mount could not be taken away");
                    }
                }
            };
            let session = Session::from_fd(handler, connection, acl, config)
                .inspect_err(|_| take_away())
                .map_err(refused)?;
            let notifier = session.notifier();
            if let Ok(device) = session.as_fd().try_clone_to_owned() {
                readers.attach(device);
            }
            let (end, ended) = watch::channel(false);
            let name = "fuse".to_owned();
            let ended_anchor = anchor.clone();
            let serve = move || {
                if let Err(error) = session.run() {
                    tracing::debug!(%error, "a FUSE session ended with an error");
                }
                // Where it was not unmounted, nobody serves it any more.
                if let Err(error) = host::take_away_ended(&ended_anchor) {
                    tracing::debug!(%error, "a mount could not be taken away");
                }
                let _ = end.send(true);
            };
            std::thread::Builder::new()
                .name(name)
                .spawn(serve)
                .inspect_err(|_| take_away())
                .map_err(refused)?;
            Ok(Self {
                anchor,
                notifier,
                ended,
                is_unmounted: AtomicBool::new(false),
            })
        };
        match tokio::task::spawn_blocking(start).await {
            Ok(outcome) => outcome,
            Err(panic) => std::panic::resume_unwind(panic.into_panic()),
        }
    }

    /// Where it was mounted.
    pub(crate) fn mountpoint(&self) -> &Path {
        &self.anchor.path
    }

    pub(crate) fn anchor(&self) -> &Anchor {
        &self.anchor
    }

    pub(crate) fn notifier(&self) -> &Notifier {
        &self.notifier
    }

    /// Whether it is still served and, for all that is known, mounted.
    fn is_served(&self) -> bool {
        !self.is_unmounted.load(Ordering::Acquire) && !*self.ended.borrow()
    }

    /// Whether it is still mounted (someone may have run umount); be it covered by another mount.
    pub(crate) fn is_mounted_in(&self, table: Option<&MountTable>) -> bool {
        let is_listed = |table: &MountTable| table.place_of(&self.anchor).is_some();
        self.is_served() && table.is_none_or(is_listed)
    }

    pub(crate) async fn ended(&self) {
        let mut ended = self.ended.clone();
        // An error means that the thread is gone, which is the end as well.
        let _ = ended.wait_for(|ended| *ended).await;
    }

    /// Unmounts; returns when the last request was answered (or, lazily, at once).
    pub(crate) async fn unmount(&self, mode: UnmountMode) -> Result<()> {
        if self.is_served() {
            let anchor = self.anchor.clone();
            let unmount = move || {
                let outcome = host::unmount_ours(&anchor, mode);
                match outcome {
                    // A dead one below another of ours would be in its way for good.
                    Err(MountError::Covered {
                        is_like_it: true, ..
                    }) if mode == UnmountMode::Force => outcome,
                    Err(error @ MountError::Covered { .. }) if mode != UnmountMode::Clean => {
                        tracing::warn!(%error, "its server leaves it there, dead");
                        Ok(false)
                    }
                    outcome => outcome,
                }
            };
            let was_there = aside(unmount).await?;
            let patience = if was_there { LAST_REQUESTS } else { ENDING };
            self.end_within(patience, mode).await?;
            self.is_unmounted.store(true, Ordering::Release);
        }
        Ok(())
    }

    /// Waits for the session's end, now that the host's tree does not have it at its place any
    /// more. Who uses it in another place goes on undisturbed, or by force is cut off.
    async fn end_within(&self, patience: Duration, mode: UnmountMode) -> Result<()> {
        if mode == UnmountMode::Lazy || tokio::time::timeout(patience, self.ended()).await.is_ok() {
            return Ok(());
        }
        let path = self.anchor.path.clone();
        if mode == UnmountMode::Clean {
            return Err(MountError::Elsewhere { path });
        }
        tracing::warn!(path = %path.display(), "cutting off who uses it elsewhere");
        if let Some(identity) = self.anchor.identity.clone() {
            let _ = tokio::task::spawn_blocking(move || host::cut_off(&identity)).await;
        }
        let _ = tokio::time::timeout(LAST_REQUESTS, self.ended()).await;
        Ok(())
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        if self.is_served()
            && let Err(error) = host::unmount_ours(&self.anchor, UnmountMode::Lazy)
        {
            tracing::debug!(%error, "a mount could not be taken away");
        }
    }
}

/// A mounted filesystem. Dropping it unmounts lazily.
pub struct Mount {
    inner: Arc<Inner>,
    posix_acl: bool,
    traffic: Arc<Traffic>,
    housekeeper: Mutex<Option<tokio::task::AbortHandle>>,
}

/// What a rollback needs of a mount.
pub(crate) struct Inner {
    /// What others change is told while this lives.
    _listening: Listening,
    pub(crate) served: Served,
    pub(crate) nodes: Arc<Nodes>,
    pub(crate) teller: Arc<Teller>,
    pub(crate) lease: Lease<Filesystem>,
}

impl Drop for Mount {
    fn drop(&mut self) {
        self.stop_housekeeping();
    }
}

impl Mount {
    /// Mounts a filesystem at `mountpoint` (which is made where it does not exist). Call it within
    /// a tokio runtime, where requests are then served.
    ///
    /// # Errors
    /// What stands in the way of mounting, as [`MountError`] tells apart. The lease is given back
    /// then.
    pub async fn new(
        access: &Arc<Access>,
        lease: Lease<Filesystem>,
        mountpoint: &Path,
        options: MountOptions,
    ) -> Result<Self> {
        let filesystem = lease.get();
        let posix_acl = filesystem.has_posix_acls();
        let path = mountpoint.to_owned();
        let (head, user) = (lease.object(), User::SnapshotDirectory { path });
        let control = access.control_directory(head, user, options.snapdir);
        let nodes = Arc::new(Nodes::new(filesystem, control));
        nodes.set_read_only(options.read_only);
        let teller = Teller::new(&nodes);
        let listener: Arc<dyn Listener> = Arc::<Teller>::clone(&teller);
        let origin = Origin::unique();
        // Before the kernel knows anything.
        let listening = lease.changes().listen(origin, Arc::downgrade(&listener));
        let runtime = Runner::current(origin);
        let readers = runtime.readers.clone();
        let notifier = Arc::new(OnceLock::new());
        let traffic = Arc::new(Traffic::default());
        let handler = Handler {
            nodes: Arc::clone(&nodes),
            runtime,
            posix_acl,
            traffic: Arc::clone(&traffic),
            notifier: Arc::clone(&notifier),
        };
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let (attachment, threads) = (options.to_attachment(), threads.min(THREADS_MAX));
        let how = (options.overlay, options.user);
        let served = Served::start(handler, &readers, mountpoint, attachment, threads, how);
        let served = served.await?;
        let _ = notifier.set(served.notifier().clone());
        teller.begin(served.notifier().clone(), served.anchor());
        if let Some(identity) = &served.anchor.identity {
            host::raise_read_ahead(identity);
        }
        let housekeeper = tokio::spawn(let_go_at_end(Arc::clone(&nodes), served.ended.clone()));
        let inner = Arc::new(Inner {
            _listening: listening,
            served,
            nodes,
            teller,
            lease,
        });
        let resident: Weak<Inner> = Arc::downgrade(&inner);
        inner.lease.set_resident(resident);
        Ok(Self {
            inner,
            posix_acl,
            traffic,
            housekeeper: Mutex::new(Some(housekeeper.abort_handle())),
        })
    }

    fn stop_housekeeping(&self) {
        if let Some(housekeeper) = self.housekeeper.lock().take() {
            housekeeper.abort();
        }
    }

    /// The lease on the filesystem, which the mount keeps until it is dropped. Whoever unmounts it
    /// for good gives it back.
    pub fn lease(&self) -> &Lease<Filesystem> {
        &self.inner.lease
    }

    /// What was read and written through it since it was mounted. What programs find in the
    /// kernel's cache does not come here; operations that move no content, and failed ones, are not
    /// counted.
    pub fn traffic(&self) -> TrafficCounts {
        self.traffic.counts()
    }

    /// Has the kernel ask again for all that it knows of content and attributes.
    pub async fn forget_pages(&self) {
        self.inner.teller.forget_all().await;
    }

    /// Where it was mounted.
    pub fn mountpoint(&self) -> &Path {
        self.inner.served.mountpoint()
    }

    /// Where it was when `table` was read, if it had moved: with a directory above it that was
    /// renamed, or by itself.
    pub fn moved_to(&self, table: Option<&MountTable>) -> Option<PathBuf> {
        let place = table?.place_of(self.inner.served.anchor())?;
        (place != self.mountpoint()).then(|| place.to_owned())
    }

    /// Whether it is still mounted (someone may have run umount); be it covered by another mount.
    pub fn is_mounted(&self) -> bool {
        self.is_mounted_in(MountTable::now().as_ref())
    }

    /// [`Self::is_mounted`] when `table` was read; for all that is known, without one.
    pub fn is_mounted_in(&self, table: Option<&MountTable>) -> bool {
        self.inner.served.is_mounted_in(table)
    }

    /// Whether the kernel was told to obey POSIX access control lists, when this was mounted.
    pub fn has_posix_acls(&self) -> bool {
        self.posix_acl
    }

    /// Whether something else is mounted at `path` in it, or below that; also where that cannot be
    /// told. Giving the name to another file takes such a mount away.
    pub fn is_over_mount(&self, path: &Path) -> bool {
        let Some(table) = MountTable::now() else {
            return true;
        };
        let places = table.places_inside(self.inner.served.anchor());
        places.iter().any(|place| place.starts_with(path))
    }

    /// Changes what is to be seen of `.zfs`.
    pub async fn set_snapdir(&self, snapdir: Snapdir) {
        if self.inner.nodes.control().set_snapdir(snapdir) == snapdir {
            return;
        }
        let notifier = self.inner.served.notifier().clone();
        // One that is listed counts as a link to the root directory.
        let ask_again = move || notifier.inval_inode(INodeNo(nodes::ROOT), -1, 0);
        let _ = tokio::task::spawn_blocking(ask_again).await;
        if snapdir == Snapdir::Disabled {
            let notifier = self.inner.served.notifier().clone();
            // The kernel may call back for what it drops: not on a thread of the runtime.
            let forget = move || notifier.inval_entry(INodeNo(nodes::ROOT), ".zfs".as_ref());
            let _ = tokio::task::spawn_blocking(forget).await;
            self.release_snapshots(None).await;
        }
    }

    /// Makes the kernel obey other options than those that it was mounted with: `read_only`,
    /// `devices`, `setuid`, `exec`.
    ///
    /// # Errors
    /// [`MountError::Covered`], where another mount lies over it; [`MountError::Refused`], where
    /// the kernel does not let us.
    pub async fn remount(&self, options: &MountOptions) -> Result<()> {
        let anchor = self.inner.served.anchor().clone();
        let attachment = options.to_attachment();
        aside(move || host::remount(&anchor, &attachment)).await?;
        self.inner.nodes.set_read_only(options.read_only);
        Ok(())
    }

    /// Lets go of the snapshot called `name`, or of all: they can be destroyed then. One that is
    /// used again is opened again.
    pub async fn release_snapshots(&self, name: Option<&str>) {
        self.inner.release_snapshots(name).await;
    }

    /// [`Self::release_snapshots`] of one that nobody uses: no file in it is open or mapped, and it
    /// is no process's directory. What the kernel merely remembers of it is no use.
    ///
    /// # Errors
    /// [`MountError::SnapshotBusy`]; whoever uses it goes on undisturbed then.
    ///
    /// Source: module/zfs/zfs_ioctl.c (`zfs_unmount_snap`), module/os/linux/zfs/zfs_ctldir.c
    /// (`zfsctl_snapshot_unmount`): there each snapshot is a mount of its own, whose unmounting
    /// finds that out.
    pub async fn release_unused_snapshot(&self, name: &str) -> Result<()> {
        // Without `.zfs` nobody could find back to what the kernel is to forget: who still has
        // something open hears ESTALE.
        let control = self.inner.nodes.control();
        let is_reachable = control.snapdir() != Snapdir::Disabled && self.is_mounted();
        for snapshot in control.places_of(name) {
            if snapshot.uses() == 0 || !is_reachable {
                continue;
            }
            let place = || vec![Arc::clone(&snapshot)];
            self.inner.forget_snapshots(place()).await;
            if !forgotten(&snapshot, FORGETTING_MOSTLY).await {
                // An attempt that was refused cut the directory off its name: what has become
                // unused in it since is only found when it has its name again. And whoever works in
                // it has a working directory again.
                self.find_snapshot(&snapshot).await;
                self.inner.forget_snapshots(place()).await;
                if !forgotten(&snapshot, FORGETTING).await {
                    self.find_snapshot(&snapshot).await;
                    let name = name.to_owned();
                    return Err(MountError::SnapshotBusy { name });
                }
            }
        }
        self.release_snapshots(Some(name)).await;
        Ok(())
    }

    /// Has the kernel look a snapshot's directory up, where its name is one.
    async fn find_snapshot(&self, snapshot: &Snapshot) {
        let directory = match snapshot.directory() {
            ControlNode::Shadow => ".zfs/shadow",
            _ => ".zfs/snapshot",
        };
        let table = MountTable::now();
        let mountpoint = self.moved_to(table.as_ref());
        let mountpoint = mountpoint.unwrap_or_else(|| self.mountpoint().to_owned());
        let path = mountpoint.join(directory).join(snapshot.name());
        let find = move || std::fs::symlink_metadata(path).map(drop);
        // The pool may not answer; nothing is lost then but the name.
        let _ = tokio::time::timeout(FORGETTING, aside(find)).await;
    }

    /// Unmounts, waits for requests under way, and lets go of snapshots. What was changed need not
    /// be on stable storage yet: [`Filesystem::close`] sees to that.
    ///
    /// # Errors
    /// [`MountError::Busy`], [`MountError::Covered`], [`MountError::Inside`],
    /// [`MountError::Elsewhere`] and what else stands in the way.
    pub async fn detach(&self, mode: UnmountMode) -> Result<()> {
        self.inner.served.unmount(mode).await?;
        if mode != UnmountMode::Lazy {
            self.stop_housekeeping();
            self.inner.nodes.control().close(None).await;
        }
        Ok(())
    }

    /// [`Self::detach`], then puts everything on stable storage. The filesystem itself stays open
    /// (and can be mounted again).
    ///
    /// # Errors
    /// [`MountError::Busy`] and what else stands in the way; [`MountError::Flush`] when it is
    /// unmounted but not all is on stable storage.
    pub async fn unmount(&self, mode: UnmountMode) -> Result<()> {
        self.detach(mode).await?;
        match self.inner.lease.get().sync_all().await {
            Ok(()) | Err(FsError::Closed) => Ok(()),
            Err(source) => Err(MountError::Flush {
                path: self.mountpoint().to_owned(),
                source,
            }),
        }
    }

    /// Completes when it is not mounted any more, whoever did it.
    pub async fn ended(&self) {
        self.inner.served.ended().await;
    }
}

impl Inner {
    /// Lets go of the snapshot called `name`, or of all.
    pub(crate) async fn release_snapshots(&self, name: Option<&str>) {
        let closed = self.nodes.control().close(name).await;
        self.forget_snapshots(closed).await;
    }

    /// Has the kernel forget these places, and all below them that is not in use.
    async fn forget_snapshots(&self, places: Vec<Arc<Snapshot>>) {
        let notifier = self.served.notifier().clone();
        // The kernel may call back for what it drops: not on a thread of the runtime.
        let forget = move || {
            for place in places {
                let above = INodeNo(nodes::control_node(place.directory()));
                let _ = notifier.inval_entry(above, place.name().as_ref());
            }
        };
        let _ = tokio::task::spawn_blocking(forget).await;
    }
}

/// Whether the kernel lets go of all that it knows of a snapshot. It has been told to; what it does
/// comes one by one.
async fn forgotten(snapshot: &Snapshot, patience: Duration) -> bool {
    let (mut left, mut since) = (snapshot.uses(), Instant::now());
    while left > 0 {
        if since.elapsed() > patience {
            return false;
        }
        tokio::time::sleep(LOOK).await;
        let now = snapshot.uses();
        if now != left {
            (left, since) = (now, Instant::now());
        }
    }
    true
}

/// Lets go of snapshots when the mount has ended, whoever unmounted it.
async fn let_go_at_end(nodes: Arc<Nodes>, mut ended: watch::Receiver<bool>) {
    // An error means that the thread is gone, which is the end as well.
    let _ = ended.wait_for(|ended| *ended).await;
    nodes.control().close(None).await;
}
