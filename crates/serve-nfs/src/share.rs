//! Filesystems that are shared, and who may use them.
//!
//! Each dataset with `sharenfs` is a share of its own, as with OpenZFS: a mount point of another
//! dataset within it shows the plain directory. A share has a lease on its filesystem, so it does
//! not matter whether that is mounted.
//!
//! # What a restart leaves
//!
//! Handles go on. Data that clients wrote and did not commit may be lost: they learn that from the
//! write verifier, which is made up anew each time a share begins, and write it again. Shares come
//! before the server listens ([`crate::Server`]), so that no client hears that its files are gone.
//! What is expected and not there yet, as its pool is away or its key is not loaded, is answered so
//! that clients ask again ([`Shares::expect_by`], [`Shares::set_awaited`]): a file that is said to
//! be gone is gone for good to whoever has it open.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use access::{Access, AccessError, ControlDirectory, Credentials, Lease, Paused, Resident};
use access::{Snapdir, Snapshot, TrafficCounts, User};
use dataset::{DatasetInfo, ListOptions};
use device::BoxFuture;
use filesystem::{Filesystem, FsError, Sharing};
use parking_lot::{Mutex, RwLock};
use tokio::sync::{OwnedRwLockReadGuard, OwnedRwLockWriteGuard};
use tokio::time::Instant;

use crate::handle::{Handle, Place};
use crate::policy::{Admission, Names, Policy};
use crate::rpc::Credential;
use crate::traffic::{ClientReport, Counted, ShareTraffic};

/// How long a rollback, or the end of a share, waits for requests that are under way.
const REQUESTS_PATIENCE: Duration = Duration::from_secs(10);
/// How long the end of a share waits until its filesystem is closed.
const CLOSING_PATIENCE: Duration = Duration::from_secs(10);
/// Snapshots whose names are remembered.
const SNAPSHOTS_MAX: usize = 4096;
/// Parts that directories are spread over, to change one at a time.
const TURNS: usize = 64;

/// What to share.
pub struct ShareSpec {
    /// The filesystem's dataset.
    pub dataset: String,
    /// The path by which clients mount it.
    pub path: String,
    /// Who may.
    pub policy: Policy,
    /// The registry of its pool.
    pub access: Arc<Access>,
    /// What is to be seen of `.zfs`.
    pub snapdir: Snapdir,
    /// What clients know it by: no other filesystem has this number, in whatever pool, and it has
    /// the same one after each restart. Not zero.
    pub identity: u64,
}

/// Why a filesystem cannot be shared.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ShareError {
    /// It cannot be opened.
    #[error(transparent)]
    Access(#[from] AccessError),
    /// Another one that is shared has the same identity.
    #[error(
        "clients would take it for '{other}', as one is a copy of the other; where it is this one \
         that none of them knows yet, 'zpool set millpond:identities=none POOL' gives what is in \
         its pool identities of its own"
    )]
    SameIdentity {
        /// The other dataset.
        other: String,
    },
    /// Another one is shared by this path.
    #[error("'{other}' is shared as {path} already; choose another mountpoint")]
    SamePath {
        /// The other dataset.
        other: String,
        /// The path.
        path: String,
    },
}

/// How a share is called.
#[derive(Debug, Clone)]
pub(crate) struct Called {
    pub(crate) dataset: String,
    pub(crate) path: String,
}

/// A filesystem that is shared.
pub(crate) struct Share {
    /// The dataset's guid.
    guid: u64,
    /// What clients know it by, in handles.
    pub(crate) identity: u64,
    names: RwLock<Called>,
    policy: RwLock<Arc<Policy>>,
    access: Arc<Access>,
    lease: Lease<Filesystem>,
    /// Mounts know that they are not alone.
    _sharing: Sharing,
    pub(crate) control: Arc<ControlDirectory>,
    /// Requests hold it shared, who exchanges the filesystem alone.
    gate: Arc<tokio::sync::RwLock<()>>,
    is_ended: AtomicBool,
    pub(crate) verifier: [u8; 8],
    traffic: Arc<ShareTraffic>,
    /// Names of snapshots by their guids.
    snapshots: Mutex<HashMap<u64, String>>,
    /// Whoever changes a directory holds one of them, so that what is told of it before and after
    /// is what this change made of it.
    pub(crate) turns: [tokio::sync::Mutex<()>; TURNS],
}

/// A request that may use a share: while it lives, the filesystem stays.
pub(crate) struct Entered {
    pub(crate) share: Arc<Share>,
    pub(crate) filesystem: Arc<Filesystem>,
    pub(crate) who: Credentials,
    /// The share's policy lets this client change nothing.
    pub(crate) is_read_only: bool,
    pub(crate) counted: Counted,
    /// Something may have been changed since mounts were told last.
    has_changed: AtomicBool,
    _gate: OwnedRwLockReadGuard<()>,
}

impl Entered {
    /// Something is about to be changed.
    pub(crate) fn note_change(&self) {
        self.has_changed.store(true, Ordering::Relaxed);
    }

    /// Completes when no mount has anything older than what was changed: before the client is
    /// answered, and when nothing of the filesystem is locked any more.
    pub(crate) async fn mounts_told(&self) {
        if self.has_changed.swap(false, Ordering::Relaxed) {
            self.share.lease.changes().told().await;
        }
    }
}

/// Why a request may not use a share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refused {
    /// There is no such share, or it has ended.
    NoShare,
    /// There is none yet: it, or one that may be it, is expected.
    NotYet,
    /// The policy does not let the client in.
    NotAdmitted,
}

impl Share {
    pub(crate) fn names(&self) -> Called {
        self.names.read().clone()
    }

    /// A handle of the share's root.
    pub(crate) async fn root(&self, filesystem: &Filesystem) -> Result<Handle, FsError> {
        let ino = filesystem.root();
        let generation = filesystem.attributes(ino).await?.generation;
        Ok(Handle {
            dataset: self.identity,
            place: Place::File { ino, generation },
        })
    }

    /// A snapshot's filesystem, by its guid.
    pub(crate) async fn snapshot(&self, guid: u64) -> Result<Arc<Filesystem>, FsError> {
        let known = self.snapshots.lock().get(&guid).cloned();
        if let Some(name) = known {
            if let Some(filesystem) = self.open_snapshot(&name, guid).await? {
                return Ok(filesystem);
            }
            self.snapshots.lock().remove(&guid);
        }
        // Renamed, or not seen yet.
        let listed = self.snapshots_listed().await?;
        let found = listed.into_iter().find(|info| info.guid.get() == guid);
        let name = found.and_then(|info| snapshot_name(&info).map(str::to_owned));
        let name = name.ok_or(FsError::Stale { ino: 0 })?;
        let open = self.open_snapshot(&name, guid).await?;
        let filesystem = open.ok_or(FsError::Stale { ino: 0 })?;
        self.remember_snapshot(guid, name);
        Ok(filesystem)
    }

    pub(crate) fn remember_snapshot(&self, guid: u64, name: String) {
        let mut snapshots = self.snapshots.lock();
        if snapshots.len() >= SNAPSHOTS_MAX {
            snapshots.clear();
        }
        snapshots.insert(guid, name);
    }

    async fn open_snapshot(
        &self,
        name: &str,
        guid: u64,
    ) -> Result<Option<Arc<Filesystem>>, FsError> {
        let mut known = self.control.places_of(name).into_iter();
        let known = known.find(|place| place.directory() == access::ControlNode::Snapshots);
        let snapshot = match known {
            Some(snapshot) => snapshot,
            None => {
                let node = access::ControlNode::Snapshots;
                match self.control.lookup(node, name.as_bytes()).await {
                    Ok(access::ControlEntry::Snapshot(snapshot)) => snapshot,
                    Ok(access::ControlEntry::Node(_)) | Err(FsError::NotFound { .. }) => {
                        return Ok(None);
                    }
                    Err(error) => return Err(error),
                }
            }
        };
        let filesystem = self.opened(&snapshot).await;
        match filesystem {
            Ok(filesystem) if filesystem.dataset()?.guid().get() == guid => Ok(Some(filesystem)),
            Ok(_) | Err(FsError::Stale { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    pub(crate) async fn opened(
        &self,
        snapshot: &Arc<Snapshot>,
    ) -> Result<Arc<Filesystem>, FsError> {
        match self.control.try_open(snapshot) {
            Some(filesystem) => Ok(filesystem),
            None => self.control.open(snapshot).await,
        }
    }

    /// The filesystem's snapshots, by the numbers of their objects, which stay.
    pub(crate) fn snapshots_listed(&self) -> BoxFuture<'_, Result<Vec<DatasetInfo>, FsError>> {
        // Boxed: it is deep, and rare.
        Box::pin(async move {
            let directories = self.access.dsl().directories();
            let head = directories.name_of(self.lease.object()).await?;
            let options = ListOptions {
                filesystems: false,
                volumes: false,
                snapshots: true,
                depth: Some(1),
            };
            let mut listed = directories.list(&head, &options).await?;
            listed.retain(|info| info.name.split_once('@').is_some_and(|(of, _)| of == head));
            listed.sort_by_key(|info| info.object);
            Ok(listed)
        })
    }

    /// Takes no more requests, and waits for those that are under way; not for ever, as their pool
    /// may be suspended.
    async fn end(&self) {
        self.is_ended.store(true, Ordering::Release);
        let gate = Arc::clone(&self.gate);
        if tokio::time::timeout(REQUESTS_PATIENCE, gate.write_owned())
            .await
            .is_err()
        {
            tracing::warn!(
                path = self.names().path,
                "NFS requests do not end; they are given up"
            );
        }
        // Given back at once. While the pool is suspended, closing goes on in the registry.
        let closing = async {
            let closed = self.lease.close().await;
            self.control.close(None).await;
            closed
        };
        match tokio::time::timeout(CLOSING_PATIENCE, closing).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                tracing::warn!(%error, "a filesystem that was shared is not closed well");
            }
            Err(_) => tracing::warn!("a filesystem that was shared is still being closed"),
        }
    }
}

/// A snapshot's name, after the `@`.
pub(crate) fn snapshot_name(info: &DatasetInfo) -> Option<&str> {
    Some(info.name.split_once('@')?.1)
}

impl Resident for Share {
    fn pause(self: Arc<Self>) -> BoxFuture<'static, Option<Box<dyn Paused>>> {
        Box::pin(async move {
            let gate = Arc::clone(&self.gate).write_owned();
            let alone = tokio::time::timeout(REQUESTS_PATIENCE, gate).await.ok()?;
            // Snapshots that clients merely looked into may be destroyed with the rollback.
            self.control.close(None).await;
            Some(Box::new(Pause { _alone: alone }) as Box<dyn Paused>)
        })
    }
}

struct Pause {
    _alone: OwnedRwLockWriteGuard<()>,
}

impl Paused for Pause {
    fn resume(self: Box<Self>) -> BoxFuture<'static, ()> {
        // Requests that waited ask the lease for what is open now.
        Box::pin(async move { drop(self) })
    }
}

/// A share, at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShareReport {
    /// The dataset's guid, which it keeps when it is called otherwise.
    pub guid: u64,
    /// The dataset.
    pub dataset: String,
    /// The path by which clients mount it.
    pub path: String,
    /// What its clients did since it began.
    pub counts: TrafficCounts,
    /// Its clients.
    pub clients: Vec<ClientReport>,
}

type Expects = Box<dyn Fn() -> bool + Send + Sync>;

/// For how long clients are told to ask again about a filesystem that waits for a person: long
/// enough to type its key after a restart, so that what clients have not committed yet outlives
/// that. Afterwards it is as one that is not mounted, whose files knfsd says are stale: nothing
/// brings it by itself, and clients must not hang for good.
const AWAITED_FOR: Duration = Duration::from_secs(600);

/// A filesystem that is to be shared and cannot be yet.
#[derive(Clone, Copy)]
struct Awaited {
    identity: u64,
    until: Instant,
}

impl Awaited {
    fn is_over(&self) -> bool {
        Instant::now() >= self.until
    }
}

/// All that is shared.
#[derive(Default)]
pub struct Shares {
    by_identity: RwLock<HashMap<u64, Arc<Share>>>,
    hosts: Names,
    /// Paths of filesystems that are not shared, by their datasets.
    others: RwLock<BTreeMap<String, String>>,
    /// Whether filesystems are expected of which nobody knows yet which they are.
    expects: OnceLock<Expects>,
    /// Filesystems that are to be shared and cannot be yet, by datasets.
    awaited: RwLock<BTreeMap<String, Awaited>>,
    /// Connections by the addresses that they come from.
    connections: Mutex<BTreeMap<IpAddr, usize>>,
}

impl Shares {
    /// Shares a filesystem, or lets a share that there is be as `spec` says. One whose filesystem a
    /// rollback could not open again begins anew. `verifier` is of 64 random bits: clients write
    /// again what was not committed when it has changed.
    ///
    /// # Errors
    /// [`ShareError`].
    pub async fn add(&self, spec: ShareSpec, verifier: u64) -> Result<(), ShareError> {
        if self.has(&spec.dataset) && !self.is_served(&spec.dataset) {
            // Until it is there again, its clients are to ask again, as they do now: to be told
            // that a file is gone they would take for the truth.
            self.set_awaited(&spec.dataset, Some(spec.identity));
            self.remove(&spec.dataset).await;
        }
        if let Some(share) = self.of_dataset(&spec.dataset) {
            if let Some(other) = self.other_at(&spec.dataset, &spec.path) {
                self.remove(&spec.dataset).await;
                let path = spec.path;
                return Err(ShareError::SamePath { other, path });
            }
            *share.policy.write() = Arc::new(spec.policy);
            share.names.write().path = spec.path;
            let before = share.control.set_snapdir(spec.snapdir);
            if spec.snapdir == Snapdir::Disabled && before != Snapdir::Disabled {
                // Boxed: closing is deep, and rare.
                let closing: BoxFuture<'_, _> = Box::pin(share.control.close(None));
                closing.await;
            }
            return Ok(());
        }
        let user = User::NfsShare {
            path: spec.path.clone(),
        };
        let lease = spec.access.filesystem(&spec.dataset, user.clone()).await?;
        let dataset = lease.get().dataset().map_err(AccessError::from)?;
        let guid = dataset.guid().get();
        drop(dataset);
        let control = spec
            .access
            .control_directory(lease.object(), user, spec.snapdir);
        let share = Arc::new(Share {
            guid,
            identity: spec.identity,
            names: RwLock::new(Called {
                dataset: spec.dataset,
                path: spec.path,
            }),
            policy: RwLock::new(Arc::new(spec.policy)),
            access: spec.access,
            _sharing: lease.changes().share(),
            lease,
            control,
            gate: Arc::default(),
            is_ended: AtomicBool::new(false),
            verifier: verifier.to_be_bytes(),
            traffic: Arc::default(),
            snapshots: Mutex::default(),
            turns: std::array::from_fn(|_| tokio::sync::Mutex::default()),
        });
        let resident: Arc<dyn Resident> = Arc::<Share>::clone(&share);
        share.lease.set_resident(Arc::downgrade(&resident));
        let refused = self.insert(&share);
        if refused.is_err() {
            share.end().await;
        }
        refused
    }

    /// Another dataset that is shared by this path.
    fn other_at(&self, dataset: &str, path: &str) -> Option<String> {
        let by_identity = self.by_identity.read();
        let mut names = by_identity.values().map(|share| share.names());
        let other = names.find(|names| names.path == path && names.dataset != dataset);
        other.map(|names| names.dataset)
    }

    fn insert(&self, share: &Arc<Share>) -> Result<(), ShareError> {
        let mut by_identity = self.by_identity.write();
        if let Some(other) = by_identity.get(&share.identity) {
            let other = other.names().dataset;
            return Err(ShareError::SameIdentity { other });
        }
        let Called { path, .. } = share.names();
        let same = by_identity
            .values()
            .find(|other| other.names.read().path == path);
        if let Some(other) = same {
            let other = other.names().dataset;
            return Err(ShareError::SamePath { other, path });
        }
        by_identity.insert(share.identity, Arc::clone(share));
        Ok(())
    }

    /// Ends a share: its clients' files are gone for them. Nothing happens where there is none.
    pub async fn remove(&self, dataset: &str) {
        let Some(share) = self.of_dataset(dataset) else {
            return;
        };
        self.by_identity.write().remove(&share.identity);
        share.end().await;
    }

    /// Says where a filesystem is that is not shared, or (`None`) that it is nowhere: the directory
    /// in another share that it would be mounted at cannot be mounted in its place.
    pub fn set_other(&self, dataset: &str, path: Option<String>) {
        let mut others = self.others.write();
        match path {
            Some(path) => others.insert(dataset.to_owned(), path),
            None => others.remove(dataset),
        };
    }

    /// Has `expects` say whether filesystems are expected of which nobody knows yet which they are:
    /// while they are, no handle is said to lead nowhere. It may take short locks, and is asked
    /// only about handles that lead to no share. The first one that is given counts.
    pub fn expect_by(&self, expects: impl Fn() -> bool + Send + Sync + 'static) {
        let _first = self.expects.set(Box::new(expects));
    }

    /// Says that a filesystem is to be shared and cannot be yet, and what clients know it by; or
    /// that it is not expected any more. It is expected for ten minutes from when that was first
    /// said.
    pub fn set_awaited(&self, dataset: &str, identity: Option<u64>) {
        let mut awaited = self.awaited.write();
        let Some(identity) = identity else {
            awaited.remove(dataset);
            return;
        };
        let is_known = awaited
            .get(dataset)
            .is_some_and(|known| known.identity == identity);
        if !is_known {
            let until = Instant::now() + AWAITED_FOR;
            awaited.insert(dataset.to_owned(), Awaited { identity, until });
        }
    }

    /// Datasets that are expected ([`Self::set_awaited`]).
    pub fn awaited_datasets(&self) -> Vec<String> {
        self.awaited.read().keys().cloned().collect()
    }

    /// Whether anything is expected.
    pub(crate) fn is_expecting(&self) -> bool {
        let is_awaiting = |awaited: &Awaited| !awaited.is_over();
        self.awaited.read().values().any(is_awaiting)
            || self.expects.get().is_some_and(|expects| expects())
    }

    /// What is said of a dataset that is not shared.
    fn absent(&self, identity: u64) -> Refused {
        let is_it = |awaited: &Awaited| awaited.identity == identity && !awaited.is_over();
        match self.awaited.read().values().any(is_it)
            || self.expects.get().is_some_and(|expects| expects())
        {
            true => Refused::NotYet,
            false => Refused::NoShare,
        }
    }

    /// A share by what clients know it by.
    fn of_identity(&self, identity: u64) -> Result<Arc<Share>, Refused> {
        let find = || self.by_identity.read().get(&identity).cloned();
        if let Some(share) = find() {
            return Ok(share);
        }
        match self.absent(identity) {
            // It may have come before it ceased to be expected.
            Refused::NoShare => find().ok_or(Refused::NoShare),
            refused => Err(refused),
        }
    }

    /// Datasets that [`Self::set_other`] was told of.
    pub fn other_datasets(&self) -> Vec<String> {
        self.others.read().keys().cloned().collect()
    }

    pub(crate) fn other_paths(&self) -> Vec<String> {
        self.others.read().values().cloned().collect()
    }

    /// Lets a share follow its dataset to another name.
    pub fn rename(&self, dataset: &str, to: &str) {
        if let Some(share) = self.of_dataset(dataset) {
            to.clone_into(&mut share.names.write().dataset);
        }
    }

    /// Closes a snapshot of a dataset that clients looked at, so that it can be destroyed.
    pub async fn release_snapshot(&self, dataset: &str, snapshot: &str) {
        if let Some(share) = self.of_dataset(dataset) {
            share.control.close(Some(snapshot)).await;
        }
    }

    /// Datasets that are shared.
    pub fn datasets(&self) -> Vec<String> {
        let by_identity = self.by_identity.read();
        let mut names: Vec<String> = by_identity
            .values()
            .map(|share| share.names().dataset)
            .collect();
        names.sort_unstable();
        names
    }

    /// What is shared, and who uses it.
    pub fn report(&self) -> Vec<ShareReport> {
        let connections = self.connections.lock().clone();
        let by_identity = self.by_identity.read();
        let reports = by_identity.values().map(|share| {
            let Called { dataset, path } = share.names();
            ShareReport {
                guid: share.guid,
                dataset,
                path,
                counts: share.traffic.all(),
                clients: share
                    .traffic
                    .clients(|address| connections.contains_key(address)),
            }
        });
        let mut reports: Vec<ShareReport> = reports.collect();
        reports.sort_by(|one, other| one.dataset.cmp(&other.dataset));
        reports
    }

    fn has(&self, dataset: &str) -> bool {
        self.of_dataset(dataset).is_some()
    }

    /// Whether a filesystem is shared and open. One that a rollback could not open again is not.
    pub fn is_served(&self, dataset: &str) -> bool {
        let share = self.of_dataset(dataset);
        share.is_some_and(|share| share.lease.is_open())
    }

    fn of_dataset(&self, dataset: &str) -> Option<Arc<Share>> {
        let by_identity = self.by_identity.read();
        let found = by_identity
            .values()
            .find(|share| share.names.read().dataset == dataset);
        found.cloned()
    }

    /// All shares, ordered by their paths.
    pub(crate) fn all(&self) -> Vec<Arc<Share>> {
        let mut all: Vec<_> = self.by_identity.read().values().cloned().collect();
        all.sort_by_cached_key(|share| share.names().path);
        all
    }

    /// Where other shares are within a share, as paths from its root.
    pub(crate) fn places_within(&self, path: &str) -> Vec<PathBuf> {
        let by_identity = self.by_identity.read();
        let within = by_identity.values().filter_map(|share| {
            let names = share.names.read();
            let below = Path::new(&names.path).strip_prefix(path).ok()?;
            (below != Path::new("")).then(|| below.to_owned())
        });
        within.collect()
    }

    /// Whether a share's path is below another one's and ends in `name`.
    pub(crate) fn has_below(&self, path: &str, name: &str) -> bool {
        let path = path.trim_end_matches('/');
        let by_identity = self.by_identity.read();
        by_identity.values().any(|share| {
            let names = share.names.read();
            let below = names.path.trim_end_matches('/').strip_prefix(path);
            below.is_some_and(|below| {
                below.starts_with('/') && below.rsplit('/').next() == Some(name)
            })
        })
    }

    /// Whether any share lets in who comes from an address and a port.
    ///
    /// # Errors
    /// [`Refused::NotYet`] where one may yet come that does, [`Refused::NotAdmitted`].
    pub(crate) async fn admit(&self, peer: SocketAddr) -> Result<(), Refused> {
        let mut policies: Vec<Arc<Policy>> = Vec::new();
        {
            let by_identity = self.by_identity.read();
            for share in by_identity.values() {
                let policy = Arc::clone(&share.policy.read());
                // Most inherit one.
                if !policies.contains(&policy) {
                    policies.push(policy);
                }
            }
        }
        for policy in policies {
            let admission = policy.admits(peer.ip(), peer.port(), &self.hosts).await;
            if admission != Admission::None {
                return Ok(());
            }
        }
        match self.is_expecting() {
            true => Err(Refused::NotYet),
            false => Err(Refused::NotAdmitted),
        }
    }

    /// Lets a request of a client use a share.
    pub(crate) async fn enter(
        &self,
        identity: u64,
        peer: SocketAddr,
        credential: &Credential,
    ) -> Result<Entered, Refused> {
        let share = self.of_identity(identity)?;
        self.enter_share(share, peer, credential).await
    }

    /// The same, of a share that was found.
    pub(crate) async fn enter_share(
        &self,
        share: Arc<Share>,
        peer: SocketAddr,
        credential: &Credential,
    ) -> Result<Entered, Refused> {
        let policy = Arc::clone(&share.policy.read());
        let admission = policy.admits(peer.ip(), peer.port(), &self.hosts).await;
        let Admission::Admitted {
            read_only,
            squashes_root,
        } = admission
        else {
            return Err(Refused::NotAdmitted);
        };
        let gate = Arc::clone(&share.gate).read_owned().await;
        if share.is_ended.load(Ordering::Acquire) {
            return Err(self.absent(share.identity));
        }
        Ok(Entered {
            filesystem: share.lease.get(),
            who: policy.credentials(credential, squashes_root),
            is_read_only: read_only,
            counted: share.traffic.request(peer.ip().to_canonical()),
            has_changed: AtomicBool::new(false),
            _gate: gate,
            share,
        })
    }

    /// Hosts that a share names, for lists of exports.
    pub(crate) fn listed_hosts(share: &Share) -> Vec<String> {
        share.policy.read().listed_hosts()
    }

    /// A connection of a client begins (`true`) or ends.
    pub(crate) fn connection(&self, peer: IpAddr, begins: bool) {
        let mut connections = self.connections.lock();
        let peer = peer.to_canonical();
        if begins {
            *connections.entry(peer).or_default() += 1;
        } else if let Some(count) = connections.get_mut(&peer) {
            *count -= 1;
            if *count == 0 {
                connections.remove(&peer);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: clients do not ask again for ever for what waits for a key, nor because of it for
    /// anything else; that nothing has changed begins no new wait.
    #[tokio::test(start_paused = true)]
    async fn a_filesystem_without_its_key_is_expected_for_a_while() {
        let shares = Shares::default();
        let says = |guid: u64| shares.of_identity(guid).map(|_| ()).expect_err("no share");
        shares.set_awaited("tank/locked", Some(7));
        assert!(shares.is_expecting());
        assert!(matches!(says(7), Refused::NotYet));
        assert!(matches!(says(8), Refused::NoShare));
        tokio::time::advance(AWAITED_FOR / 2).await;
        shares.set_awaited("tank/locked", Some(7));
        assert!(matches!(says(7), Refused::NotYet));
        tokio::time::advance(AWAITED_FOR / 2).await;
        shares.set_awaited("tank/locked", Some(7));
        assert!(!shares.is_expecting());
        assert!(matches!(says(7), Refused::NoShare));
        // It came, and its key was unloaded.
        shares.set_awaited("tank/locked", None);
        shares.set_awaited("tank/locked", Some(7));
        assert!(matches!(says(7), Refused::NotYet));
    }
}
