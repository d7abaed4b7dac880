//! Open volumes: as files below `STATE/zvol`, and on the network where shared (`shares`).
//!
//! Snapshots of a volume are files beside it, `VOLUME@SNAPSHOT`, read-only, where `snapdev=visible`
//! (`zvol_create_snapshots`, module/zfs/zvol.c).

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use access::{Exclusion, Lease, User};
use api::{Failure, FailureKind};
use dataset::ListOptions;
use parking_lot::Mutex;
use serve_fuse::{UnmountMode, ZvolDirectory};
use serve_iscsi::{Limits, Server, TargetSet};
use volume::Volume;

use crate::iscsi::Sharing;
use crate::mounts::{from_mount, is_at_or_below};
use crate::secrets::Secrets;
use service::error::{from_access, from_dataset};
use service::pools::{OpenPool, Pools};

/// How often it is asked whether an open file is still open, and how long apart.
const CLOSE_ASKS: u32 = 20;
const CLOSE_PAUSE: Duration = Duration::from_millis(50);

/// A volume that is kept open. Its file and its target have leases of their own.
struct OpenVolume {
    lease: Arc<Lease<Volume>>,
    sharing: Sharing,
}

/// Open volumes of all pools.
pub struct Volumes {
    /// The pools that they are of.
    pub(crate) pools: Arc<Pools>,
    /// What iSCSI's initiators and targets prove themselves with.
    pub secrets: Secrets,
    directory_path: PathBuf,
    /// Where iSCSI is to listen, and since it does, where it does: port 0 is another one then.
    addresses: Mutex<Vec<SocketAddr>>,
    /// Whether volumes are shared with everybody on the network where their property says so.
    pub is_insecure: bool,
    directory: tokio::sync::Mutex<Option<Arc<ZvolDirectory>>>,
    /// One for each address; none before the first share.
    servers: tokio::sync::Mutex<Vec<Server>>,
    /// Whether it is not to listen, whatever is shared. Set with `servers` locked.
    is_stopped: AtomicBool,
    targets: Arc<TargetSet>,
    by_name: Mutex<BTreeMap<String, OpenVolume>>,
}

impl Volumes {
    /// Nothing open yet, nothing mounted, nothing listening.
    pub fn new(
        directory_path: PathBuf,
        addresses: Vec<SocketAddr>,
        is_insecure: bool,
        limits: Limits,
        secrets: Secrets,
        pools: Arc<Pools>,
    ) -> Self {
        Self {
            pools,
            secrets,
            directory_path,
            addresses: Mutex::new(addresses),
            is_insecure,
            directory: tokio::sync::Mutex::new(None),
            servers: tokio::sync::Mutex::default(),
            is_stopped: AtomicBool::new(false),
            targets: Arc::new(TargetSet::with_limits(limits)),
            by_name: Mutex::new(BTreeMap::new()),
        }
    }

    /// Where iSCSI listens, or will.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.addresses.lock().clone()
    }

    /// What is offered by iSCSI.
    pub fn targets(&self) -> &TargetSet {
        &self.targets
    }

    /// Whether each open volume is on the network.
    pub fn sharing(&self) -> Vec<(String, Sharing)> {
        let by_name = self.by_name.lock();
        let pairs = by_name.iter();
        pairs
            .map(|(name, open)| (name.clone(), open.sharing.clone()))
            .collect()
    }

    /// Whether one is.
    pub fn sharing_of(&self, name: &str) -> Sharing {
        let by_name = self.by_name.lock();
        let open = by_name.get(name);
        open.map(|open| open.sharing.clone()).unwrap_or_default()
    }

    /// Notes whether one is, if it is open.
    pub fn set_sharing(&self, name: &str, sharing: Sharing) {
        if let Some(open) = self.by_name.lock().get_mut(name) {
            open.sharing = sharing;
        }
    }

    /// Where a volume's file is.
    pub fn file(&self, name: &str) -> PathBuf {
        self.directory_path.join(name)
    }

    /// The open volume of this name, as it is now.
    pub fn get(&self, name: &str) -> Option<Arc<Volume>> {
        let by_name = self.by_name.lock();
        by_name.get(name).map(|open| open.lease.get())
    }

    /// Opens a volume and keeps it open.
    async fn keep(&self, open: &OpenPool, name: &str) -> access::Result<()> {
        let lease = open.access.volume(name, User::Server).await?;
        let kept = OpenVolume {
            lease: Arc::new(lease),
            sharing: Sharing::Off,
        };
        self.by_name.lock().insert(name.to_owned(), kept);
        Ok(())
    }

    /// A lease on an open volume for somebody else.
    pub async fn share(
        &self,
        open: &OpenPool,
        name: &str,
        user: User,
    ) -> access::Result<Lease<Volume>> {
        let kept = {
            let by_name = self.by_name.lock();
            by_name.get(name).map(|open| Arc::clone(&open.lease))
        };
        match kept {
            Some(lease) => lease.share(user).await,
            None => open.access.volume(name, user).await,
        }
    }

    /// Names of open volumes at and below a dataset, and of their snapshots.
    pub fn below(&self, top: &str) -> Vec<String> {
        let by_name = self.by_name.lock();
        let head = |name: &str| name.split('@').next().unwrap_or_default().to_owned();
        by_name
            .keys()
            .filter(|name| is_at_or_below(&head(name), top))
            .cloned()
            .collect()
    }

    /// Names of a volume's snapshots that are open.
    fn snapshots_of(&self, head: &str) -> Vec<String> {
        let prefix = format!("{head}@");
        let by_name = self.by_name.lock();
        let names = by_name.keys().filter(|name| name.starts_with(&prefix));
        names.cloned().collect()
    }

    /// Makes sure that iSCSI listens, at all its addresses or none, unless it is stopped.
    pub async fn listen(&self) -> Result<(), serve_iscsi::ServerError> {
        let mut servers = self.servers.lock().await;
        if !servers.is_empty() || self.is_stopped.load(Ordering::Acquire) {
            return Ok(());
        }
        let mut bound = Vec::new();
        for address in self.addresses() {
            match Server::bind(address, Arc::clone(&self.targets)).await {
                Ok(server) => bound.push(server),
                Err(error) => {
                    for server in bound {
                        server.stop_listening().await;
                    }
                    return Err(error);
                }
            }
        }
        *self.addresses.lock() = bound.iter().map(Server::local_address).collect();
        *servers = bound;
        Ok(())
    }

    /// Lets iSCSI listen again, and has it listen where a volume is shared by it.
    pub async fn begin_again(&self) {
        self.is_stopped.store(false, Ordering::Release);
        let mut sharing = self.sharing().into_iter();
        if sharing.any(|(_, sharing)| matches!(sharing, Sharing::On { .. }))
            && let Err(error) = self.listen().await
        {
            tracing::error!("{error}");
            eprintln!("{error}");
        }
    }

    /// Logs initiators out and stops listening, until it begins again.
    pub async fn stop_serving(&self) {
        let mut servers = {
            let mut servers = self.servers.lock().await;
            self.is_stopped.store(true, Ordering::Release);
            std::mem::take(&mut *servers)
        };
        let last = servers.pop();
        for server in servers {
            server.stop_listening().await;
        }
        if let Some(last) = last {
            last.shutdown().await;
        }
    }

    /// Takes away the directory that a server before this one left mounted.
    pub async fn take_away_dead_directory(&self) {
        let path = self.directory_path.clone();
        let gone = serve_fuse::aside(move || serve_fuse::take_away_dead_mounts(&path));
        if let Err(error) = gone.await {
            tracing::warn!("{error}");
        }
    }

    async fn directory(&self) -> Result<Arc<ZvolDirectory>, Failure> {
        let mut directory = self.directory.lock().await;
        if let Some(directory) = directory.as_ref() {
            return Ok(Arc::clone(directory));
        }
        let mounted = ZvolDirectory::mount(&self.directory_path)
            .await
            .map_err(|error| from_mount("cannot show volumes as files", &error))?;
        Ok(Arc::clone(directory.insert(Arc::new(mounted))))
    }

    /// Takes the directory of volumes away.
    pub async fn close_directory(&self) {
        if let Some(directory) = self.directory.lock().await.take()
            && let Err(error) = directory.unmount(UnmountMode::Clean).await
        {
            tracing::warn!("{error}");
            let _ = directory.unmount(UnmountMode::Lazy).await;
        }
    }

    /// Opens every volume of a pool. Answers what failed.
    pub async fn open_volumes(&self, open: &OpenPool) -> Vec<String> {
        let options = ListOptions {
            filesystems: false,
            volumes: true,
            snapshots: false,
            depth: None,
        };
        let name = open.pool.name();
        let listed = open.pool.dsl().directories();
        let (listed, lost) = match listed.list_readable(&name, &options).await {
            Ok(found) => found,
            Err(error) => return vec![format!("cannot list the volumes of '{name}': {error}")],
        };
        // The filesystems among what is lost fail to be mounted.
        for (name, error) in lost {
            tracing::warn!(name, %error, "if there is a volume, it is not opened");
        }
        let mut failures = Vec::new();
        for info in listed {
            if info.is_inconsistent || open.is_locked(&info.name).await {
                continue;
            }
            if let Err(failure) = self.open_volume(open, &info.name).await {
                failures.push(failure.message);
            }
        }
        failures
    }

    /// Opens one volume, shows it as a file and shares it as its property says.
    pub async fn open_volume(&self, open: &OpenPool, name: &str) -> Result<(), Failure> {
        let doing = format!("cannot open volume '{name}'");
        if self.get(name).is_none() {
            let kept = self.keep(open, name).await;
            kept.map_err(|error| from_access(&doing, &error))?;
        }
        // The file is a convenience that needs FUSE; the network share works without it.
        let shown = self.show_volume(open, name).await;
        self.share_volume(open, name).await?;
        shown
    }

    /// Shows an open volume and its snapshots as files, or does not, as `volmode` says now.
    /// Partitions are up to whoever attaches a file, so `full` and `dev` are the same.
    async fn show_volume(&self, open: &OpenPool, name: &str) -> Result<(), Failure> {
        /// `ZFS_VOLMODE_NONE` (include/sys/fs/zfs.h).
        const NONE: u64 = 3;
        if self.get(name).is_none() {
            return Ok(());
        }
        let doing = format!("cannot show volume '{name}'");
        let volmode = open.pool.dsl().properties().get(name, "volmode").await;
        let volmode = volmode.map_err(|error| from_dataset(&doing, &error))?;
        if volmode.value.number() == Some(NONE) {
            // What is open stays until it is closed: the property is set, and says what is to be
            // shown from then on (`zvol_set_volmode_impl`, `zvol_remove_minor_impl`,
            // module/zfs/zvol.c).
            for snapshot in self.snapshots_of(name) {
                if let Err(failure) = self.close_one_volume(&snapshot, UnmountMode::Clean).await {
                    tracing::debug!("{failure}");
                }
            }
            if let Some(directory) = self.directory.lock().await.as_ref() {
                directory.set_leaving(name, true);
            }
            return Ok(());
        }
        let directory = self.directory().await?;
        // One that is shown may be open, and stays so.
        directory.set_leaving(name, false);
        if !directory.names().iter().any(|shown| shown == name) {
            self.show_file(open, &directory, name, &doing).await?;
        }
        self.show_volume_snapshots(open, name).await
    }

    async fn show_file(
        &self,
        open: &OpenPool,
        directory: &ZvolDirectory,
        name: &str,
        doing: &str,
    ) -> Result<(), Failure> {
        let path = self.file(name);
        let user = User::VolumeFile { path };
        let lease = self.share(open, name, user).await;
        directory.insert(name, lease.map_err(|error| from_access(doing, &error))?);
        Ok(())
    }

    /// Has the file of a volume show the volume's new size.
    pub async fn show_new_size(&self, name: &str) {
        let directory = self.directory.lock().await.clone();
        if let Some(directory) = directory {
            directory.resized(name).await;
        }
    }

    /// Does so for all volumes at and below a dataset.
    pub async fn show_volumes_below(&self, open: &OpenPool, top: &str) -> Result<(), Failure> {
        for name in self.below(top) {
            if !name.contains('@') {
                self.show_volume(open, &name).await?;
            }
        }
        Ok(())
    }

    /// Shows or hides the snapshots of an open volume as its `snapdev` says now.
    pub async fn show_volume_snapshots(&self, open: &OpenPool, head: &str) -> Result<(), Failure> {
        let doing = format!("cannot show the snapshots of '{head}'");
        let failed = |error| from_dataset(&doing, &error);
        if self.get(head).is_none() {
            return Ok(());
        }
        let dsl = open.pool.dsl();
        if !shows_snapshots(open, head).await? {
            return self.hide_volume_snapshots(head, UnmountMode::Clean).await;
        }
        let options = ListOptions {
            filesystems: false,
            volumes: false,
            snapshots: true,
            depth: Some(1),
        };
        for info in dsl
            .directories()
            .list(head, &options)
            .await
            .map_err(failed)?
        {
            let of_head = info.name.split_once('@').is_some_and(|(of, _)| of == head);
            if !of_head || self.get(&info.name).is_some() {
                continue;
            }
            let kept = self.keep(open, &info.name).await;
            kept.map_err(|error| from_access(&doing, &error))?;
            let directory = self.directory().await?;
            let shown = self.show_file(open, &directory, &info.name, &doing);
            shown.await?;
        }
        Ok(())
    }

    /// Does so for all volumes at and below a dataset.
    pub async fn show_snapshots_below(&self, open: &OpenPool, top: &str) -> Result<(), Failure> {
        for name in self.below(top) {
            if !name.contains('@') {
                self.show_volume_snapshots(open, &name).await?;
            }
        }
        Ok(())
    }

    /// Closes what is shown of snapshots of the volumes at and below a dataset.
    pub async fn hide_snapshots_below(&self, top: &str, mode: UnmountMode) -> Result<(), Failure> {
        for name in self.below(top) {
            if name.contains('@') {
                self.close_one_volume(&name, mode).await?;
            }
        }
        Ok(())
    }

    /// Closes the snapshots of a volume that are shown.
    pub async fn hide_volume_snapshots(
        &self,
        head: &str,
        mode: UnmountMode,
    ) -> Result<(), Failure> {
        for name in self.snapshots_of(head) {
            self.close_one_volume(&name, mode).await?;
        }
        Ok(())
    }

    /// Lets an open volume, or a snapshot of one, follow its dataset to another name: it stays
    /// open.
    pub async fn volume_renamed(
        &self,
        open: &OpenPool,
        from: &str,
        to: &str,
    ) -> Result<(), Failure> {
        {
            let mut by_name = self.by_name.lock();
            let Some(volume) = by_name.remove(from) else {
                return Ok(());
            };
            by_name.insert(to.to_owned(), volume);
        }
        if let Some(directory) = self.directory.lock().await.as_ref() {
            directory.rename(from, to);
        }
        self.share_renamed(open, to).await
    }

    /// Unshares and closes one volume with its snapshots; refuses while its file is in use, unless
    /// forced.
    pub async fn close_volume(&self, name: &str, mode: UnmountMode) -> Result<(), Failure> {
        self.hide_volume_snapshots(name, mode).await?;
        self.close_one_volume(name, mode).await
    }

    async fn close_one_volume(&self, name: &str, mode: UnmountMode) -> Result<(), Failure> {
        if self.get(name).is_none() {
            return Ok(());
        }
        let directory = self.directory.lock().await.clone();
        if let Some(directory) = &directory
            && mode == UnmountMode::Clean
            && stays_open(directory, name).await
        {
            let file = self.file(name);
            let message = format!(
                "'{name}' is busy: {} is open; close it (losetup -d, lsof) or use '-f'",
                file.display()
            );
            return Err(Failure::new(FailureKind::Busy, message));
        }
        if let Some(iqn) = self.sharing_of(name).iqn() {
            self.unshare(name, iqn).await;
        }
        if let Some(directory) = &directory {
            directory.remove(name);
        }
        let Some(kept) = self.by_name.lock().remove(name) else {
            return Ok(());
        };
        let open = self.pools.of_dataset(name)?;
        let closing = async {
            let closed = kept.lease.close().await;
            // Requests that are under way at its file or target are cut off.
            let names = [name.to_owned()];
            let alone = open.access.exclusive(&names, Exclusion::Forced).await;
            closed.and(alone.map(drop))
        };
        match self.pools.unless_suspended(name, closing).await {
            None | Some(Ok(())) => Ok(()),
            Some(Err(error)) => Err(Failure::new(
                FailureKind::Io,
                format!("cannot close volume '{name}': {error}"),
            )),
        }
    }

    /// Closes the volumes at and below a dataset.
    pub async fn close_volumes(&self, top: &str, mode: UnmountMode) -> Result<(), Failure> {
        for name in self.below(top) {
            self.close_volume(&name, mode).await?;
        }
        Ok(())
    }
}

/// Whether property `snapdev` of a dataset shows snapshots of volumes.
pub async fn shows_snapshots(open: &OpenPool, name: &str) -> Result<bool, Failure> {
    /// `ZFS_SNAPDEV_VISIBLE` (include/sys/fs/zfs.h).
    const VISIBLE: u64 = 1;
    let snapdev = open.pool.dsl().properties().get(name, "snapdev").await;
    let snapdev =
        snapdev.map_err(|error| from_dataset(&format!("cannot open '{name}'"), &error))?;
    Ok(snapdev.value.number() == Some(VISIBLE))
}

/// Whether somebody has a volume's file open. The kernel tells of a close after it has answered it,
/// so what was closed this moment may look open: asked again for a while.
async fn stays_open(directory: &ZvolDirectory, name: &str) -> bool {
    for _ in 0..CLOSE_ASKS {
        if !directory.is_open(name) {
            return false;
        }
        tokio::time::sleep(CLOSE_PAUSE).await;
    }
    true
}
