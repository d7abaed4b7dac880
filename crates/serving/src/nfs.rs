//! Filesystems on the network by NFS: what `sharenfs` asks for.
//!
//! Each filesystem whose `sharenfs` is not `off` is a share of its own, by the path where its
//! properties have it mounted (`mountpoint`, `canmount`), whether FUSE could mount it or not. It is
//! shared as the property says or not at all: where everybody on the network would be let in and
//! the server was not started with `--insecure`, it is not, and `millpond shares` and the log say
//! why.
//!
//! Shares are there before the server listens: clients that come back after a restart find all
//! files where they were. It listens while anything is shared, and from then on, until
//! [`Nfs::stop_serving`]: then not before [`Nfs::begin`].

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use access::Snapdir;
use api::{Failure, FailureKind, NotShared, Protocol, ShareClient, ShareInfo, ShareReport};
use dataset::{DatasetKind, ListOptions};
use device::Random;
use parking_lot::Mutex;
use serve_nfs::{
    ClientReport, PORTMAPPER_PORT, Policy, Server, ServerError, ShareError, ShareSpec, Shares,
};

use crate::Serving;
use crate::identity::{self, Identity};
use crate::mounts::is_at_or_below;
use crate::owners::{self, Claim, Present};
use crate::place::{Place, place};
use crate::shares::traffic;
use service::error::from_dataset;
use service::pools::OpenPool;

/// The property that shares a filesystem by NFS.
pub const NFS_PROPERTY: &str = "sharenfs";
/// Properties that decide whether and how a filesystem is shared.
pub const SHARE_PROPERTIES: [&str; 4] = [NFS_PROPERTY, "mountpoint", "canmount", "snapdir"];

/// What is offered by NFS.
pub struct Nfs {
    shares: Arc<Shares>,
    /// What clients have. Another one after each stop, as another server would have: clients of
    /// version 4 find that they may take back what they had, however long it lasted.
    service: Mutex<Arc<serve_nfs::Service>>,
    /// Where clients are remembered.
    directory: PathBuf,
    random: Arc<dyn Random>,
    /// Where it is to listen, and since it does, where it does: port 0 is another one then.
    address: Mutex<SocketAddr>,
    /// Whether it answers on a portmapper's port as well.
    is_portmapper: bool,
    /// Whether filesystems are shared with everybody on the network where their property says so.
    is_insecure: bool,
    /// For what its clients have under way.
    memory_bytes: u64,
    /// Whether all is shared that was when the server last ran.
    is_ready: AtomicBool,
    /// Whether it is not to listen, whatever is shared. Set with `server` locked.
    is_stopped: AtomicBool,
    server: tokio::sync::Mutex<Option<Server>>,
    /// Why filesystems are not shared that are meant to be.
    refused: Mutex<BTreeMap<String, String>>,
}

impl Nfs {
    /// Clients are remembered in `directory`.
    pub fn new(
        address: SocketAddr,
        is_portmapper: bool,
        is_insecure: bool,
        memory_bytes: u64,
        directory: PathBuf,
        random: Arc<dyn Random>,
    ) -> Self {
        let shares = Arc::<Shares>::default();
        let service = service_of(&shares, &directory, &random);
        Self {
            shares,
            service: Mutex::new(service),
            directory,
            random,
            address: Mutex::new(address),
            is_portmapper,
            is_insecure,
            memory_bytes,
            is_ready: AtomicBool::new(false),
            is_stopped: AtomicBool::new(false),
            server: tokio::sync::Mutex::new(None),
            refused: Mutex::default(),
        }
    }

    /// What is shared, and with whom.
    pub fn shares(&self) -> &Shares {
        &self.shares
    }

    /// Where NFS listens, or will.
    pub fn address(&self) -> SocketAddr {
        *self.address.lock()
    }

    /// Lets another address be tried, before anything listens.
    pub fn set_address(&self, address: SocketAddr) {
        *self.address.lock() = address;
    }

    /// Makes sure that it listens, unless it is stopped.
    pub async fn listen(&self) -> Result<(), ServerError> {
        let mut server = self.server.lock().await;
        if server.is_none() && !self.is_stopped.load(Ordering::Acquire) {
            let service = Arc::clone(&self.service.lock());
            let mut bound = Server::bind(self.address(), service, self.memory_bytes).await?;
            if self.is_portmapper {
                let address = SocketAddr::new(self.address().ip(), PORTMAPPER_PORT);
                bound.also_bind(address).await?;
            }
            *self.address.lock() = bound.local_address();
            *server = Some(bound);
        }
        Ok(())
    }

    /// Bytes that clients have under way, and have at most: none while nobody is served, or the
    /// server begins or ends.
    pub fn memory_bytes(&self) -> (u64, u64) {
        let server = self.server.try_lock().ok();
        let server = server.as_ref().and_then(|server| server.as_ref());
        server.map_or((0, 0), Server::memory_bytes)
    }

    /// All that was shared when the server last ran is: clients may come.
    pub async fn begin(&self) {
        self.is_stopped.store(false, Ordering::Release);
        self.is_ready.store(true, Ordering::Release);
        if !self.shares().datasets().is_empty()
            && let Err(error) = self.listen().await
        {
            self.refuse_all(&error);
        }
    }

    fn refuse_all(&self, error: &ServerError) {
        tracing::error!("{error}");
        eprintln!("{error}");
        let mut refused = self.refused.lock();
        for dataset in self.shares().datasets() {
            refused.insert(dataset, error.to_string());
        }
    }

    /// Answers what is asked, and stops listening, until it begins again: what is shared meanwhile
    /// is not served. Shares stay, as clients find them with the next server.
    pub async fn stop_serving(&self) {
        let mut server = self.server.lock().await;
        self.is_stopped.store(true, Ordering::Release);
        if let Some(server) = server.take() {
            server.shutdown().await;
            *self.service.lock() = service_of(&self.shares, &self.directory, &self.random);
        }
    }

    /// What is offered, and what clients have done with it.
    pub fn in_use(&self) -> Vec<ShareReport> {
        let address = self.address().to_string();
        let reports = self.shares().report().into_iter();
        let reports = reports.map(|report| ShareReport {
            share: ShareInfo {
                protocol: Protocol::Nfs,
                dataset: report.dataset,
                name: report.path,
                address: address.clone(),
                other_addresses: Vec::new(),
                user: None,
                secret: None,
                mutual: None,
                only: Vec::new(),
                is_open: false,
            },
            traffic: Some(traffic(&report.counts)),
            clients: report.clients.into_iter().map(client).collect(),
        });
        reports.collect()
    }

    /// What is offered, for an overview.
    pub fn offered(&self) -> Vec<ShareInfo> {
        if self.is_stopped.load(Ordering::Acquire) {
            return Vec::new();
        }
        let in_use = self.in_use().into_iter();
        in_use.map(|report| report.share).collect()
    }

    /// What is meant to be offered and is not.
    pub fn not_shared(&self) -> Vec<NotShared> {
        let refused = self.refused.lock();
        let not_shared = refused.iter().map(|(dataset, why)| NotShared {
            protocol: Protocol::Nfs,
            dataset: dataset.clone(),
            why: why.clone(),
        });
        let mut not_shared: Vec<NotShared> = not_shared.collect();
        if self.is_stopped.load(Ordering::Acquire) {
            let stopped = self.shares().datasets().into_iter();
            let stopped = stopped.filter(|dataset| !refused.contains_key(dataset));
            not_shared.extend(stopped.map(|dataset| {
                NotShared {
                protocol: Protocol::Nfs,
                dataset,
                why: "NFS is stopped, as the battery of the UPS is nearly empty; it goes on when \
                      there is power"
                    .to_owned(),
            }
            }));
        }
        not_shared
    }

    /// Forgets what was said of datasets at and below `top`.
    fn forget(&self, top: &str) {
        let is_kept = |name: &str| !is_at_or_below(name, top);
        self.refused.lock().retain(|name, _| is_kept(name));
        for name in self.shares().awaited_datasets() {
            if !is_kept(&name) {
                self.shares().set_awaited(&name, None);
            }
        }
        for name in self.shares().other_datasets() {
            if !is_kept(&name) {
                self.shares().set_other(&name, None);
            }
        }
    }

    /// The path of a share.
    fn path_of(&self, dataset: &str) -> Option<String> {
        let reports = self.shares().report().into_iter();
        let mut found = reports.filter(|report| report.dataset == dataset);
        found.next().map(|report| report.path)
    }

    /// Refuses to let everybody on the network in.
    fn check_openness(&self, policy: &Policy) -> Result<(), String> {
        let address = self.address();
        let is_loopback = address.ip().to_canonical().is_loopback();
        if self.is_insecure || is_loopback || !policy.is_open_to_everybody() {
            return Ok(());
        }
        Err(format!(
            "NFS listens on {address}, where everybody could mount it; name who may, as \
             {NFS_PROPERTY}=rw=@192.168.1.0/24, or start the server with --insecure"
        ))
    }

    /// Checks a value of `sharenfs`.
    fn check(&self, typed: &str) -> Result<Option<Policy>, String> {
        let policy = Policy::parse(typed).map_err(|error| error.to_string())?;
        if let Some(policy) = &policy {
            self.check_openness(policy)?;
        }
        Ok(policy)
    }

    /// Checks a value of `sharenfs` before it is set.
    pub fn check_share(&self, typed: &str) -> Result<(), Failure> {
        let checked = self.check(typed);
        checked
            .map(|_| ())
            .map_err(|why| Failure::new(FailureKind::Invalid, why))
    }
}

/// What clients will have, beginning with what those may take back who are remembered.
fn service_of(
    shares: &Arc<Shares>,
    directory: &Path,
    random: &Arc<dyn Random>,
) -> Arc<serve_nfs::Service> {
    let directory = Some(directory.to_owned());
    serve_nfs::Service::new(Arc::clone(shares), directory, Arc::clone(random))
}

/// What clients know a filesystem by.
async fn identity_of(open: &OpenPool, name: &str) -> Result<u64, String> {
    let found = identity::of(open, name).await;
    found
        .map(Identity::number)
        .map_err(|failure| failure.message)
}

/// Whether a filesystem asks to be shared, and then whether its path came with a stream.
async fn is_meant(open: &OpenPool, name: &str, nfs: &Nfs) -> Option<bool> {
    let setting = open.pool.dsl().properties().get(name, NFS_PROPERTY).await;
    let setting = setting.ok()?;
    match nfs.check(setting.value.text().unwrap_or("off")) {
        Ok(None) => None,
        Ok(Some(_)) | Err(_) => Some(owners::is_received(open, name, "mountpoint").await),
    }
}

fn client(report: ClientReport) -> ShareClient {
    ShareClient {
        name: None,
        address: report.address.to_string(),
        is_connected: report.is_connected,
        idle_seconds: Some(report.idle.as_secs()),
        traffic: Some(traffic(&report.counts)),
    }
}

impl Serving {
    /// Shares filesystems at and below a dataset, or ends their shares, as their properties say
    /// now. Answers what cannot be shared.
    pub async fn follow_nfs(&self, open: &OpenPool, top: &str) -> Vec<String> {
        let options = ListOptions {
            volumes: false,
            ..ListOptions::default()
        };
        let listed = open.pool.dsl().directories();
        let (listed, lost) = match listed.list_readable(top, &options).await {
            Ok(found) => found,
            Err(error) => {
                return vec![from_dataset(&format!("cannot share '{top}'"), &error).message];
            }
        };
        // It could not be mounted either, which was said.
        for (name, error) in lost {
            tracing::warn!(name, %error, "if it is to be shared, it is not");
        }
        let mut warnings = Vec::new();
        for info in listed {
            if info.kind != DatasetKind::Filesystem {
                continue;
            }
            self.nfs.refused.lock().remove(&info.name);
            if let Err(why) = self.follow_one(open, &info.name).await {
                warnings.push(format!("cannot share '{}' by NFS: {why}", info.name));
                self.nfs.refused.lock().insert(info.name, why);
            }
        }
        warnings
    }

    /// Shares a filesystem anew that could not be opened again after a rollback: one that can by
    /// now is served, and of another one the list of shares says why it is not.
    pub async fn share_anew(&self, open: &OpenPool, name: &str) {
        for warning in self.follow_nfs(open, name).await {
            tracing::warn!("{warning}");
        }
    }

    /// The policy and the path that a filesystem is to be shared with, if it is.
    pub async fn wanted_share(
        &self,
        open: &OpenPool,
        name: &str,
    ) -> Result<Option<(Policy, String, Snapdir)>, String> {
        let properties = open.pool.dsl().properties();
        let setting = properties.get(name, NFS_PROPERTY).await;
        let setting = setting.map_err(|error| error.to_string())?;
        let Some(policy) = self.nfs.check(setting.value.text().unwrap_or("off"))? else {
            return Ok(None);
        };
        if self.withheld.has(name, Protocol::Nfs) || open.is_locked(name).await {
            return Ok(None);
        }
        let placed = place(open, name).await;
        let (place, mounts_by_itself) = placed.map_err(|failure| failure.message)?;
        let Place::At(path) = place else {
            return Ok(None);
        };
        if !mounts_by_itself && self.mounts.mountpoint(name).is_none() {
            return Ok(None);
        }
        let snapdir = properties.get(name, "snapdir").await;
        let snapdir = snapdir.map_err(|error| error.to_string())?.value.number();
        let path = path.to_string_lossy().into_owned();
        Ok(Some((policy, path, Snapdir::of(snapdir.unwrap_or(0)))))
    }

    /// What clients know a filesystem by that is to be shared as soon as its key is there.
    async fn awaited_share(&self, open: &OpenPool, name: &str) -> Option<u64> {
        let setting = open.pool.dsl().properties().get(name, NFS_PROPERTY).await;
        let typed = setting.ok()?.value.text().map(str::to_owned);
        let is_wanted = matches!(
            self.nfs.check(typed.as_deref().unwrap_or("off")),
            Ok(Some(_))
        );
        let is_awaited =
            is_wanted && !self.withheld.has(name, Protocol::Nfs) && open.is_locked(name).await;
        match is_awaited {
            true => identity_of(open, name).await.ok(),
            false => None,
        }
    }

    /// Shares a filesystem by NFS as its property says, or ends that.
    ///
    /// # Errors
    /// Why it is not shared.
    pub async fn follow_one(&self, open: &OpenPool, name: &str) -> Result<(), String> {
        let wanted = self.wanted_share(open, name).await;
        let Ok(Some((policy, path, snapdir))) = wanted else {
            let awaited = self.awaited_share(open, name).await;
            self.nfs.shares().set_awaited(name, awaited);
            self.nfs.shares().remove(name).await;
            let place = match place(open, name).await {
                Ok((Place::At(path), _)) => Some(path.to_string_lossy().into_owned()),
                _ => None,
            };
            self.nfs.shares().set_other(name, place);
            return wanted.map(|_| ());
        };
        self.nfs.shares().set_other(name, None);
        let told = async {
            let identity = identity_of(open, name).await?;
            let is_received = owners::is_received(open, name, "mountpoint").await;
            let claim = Claim::new(Protocol::Nfs, &path, open, name, is_received).await?;
            Ok::<_, String>((identity, claim))
        };
        let (identity, claim) = match told.await {
            Ok(told) => told,
            Err(why) => {
                // Clients would go on by what the property said before.
                self.nfs.shares().remove(name).await;
                return Err(why);
            }
        };
        let present = self.owners.present(&self.pools, &claim).await;
        let asks = match &present {
            Present::Here(there, owner) => match place(there, owner).await {
                Ok((Place::At(theirs), mounts_by_itself)) if theirs == Path::new(&path) => {
                    let is_served = !self.withheld.has(owner, Protocol::Nfs)
                        && (mounts_by_itself
                            || self.mounts.mountpoint(owner).is_some()
                            || there.is_locked(owner).await);
                    match is_served {
                        true => is_meant(there, owner, &self.nfs).await,
                        false => None,
                    }
                }
                _ => None,
            },
            Present::None | Present::Away(..) => None,
        };
        match self.owners.take(claim, present, asks) {
            Ok(None) => {}
            Ok(Some(before)) => {
                if self
                    .nfs
                    .path_of(&before)
                    .is_some_and(|theirs| theirs == path)
                {
                    let ending = self.nfs.shares().remove(&before);
                    if self.pools.unless_suspended(&before, ending).await.is_none() {
                        self.nfs.shares().remove(name).await;
                        return Err(format!("'{before}' has {path} until its pool is cleared"));
                    }
                    let why = format!("{path} is now '{name}', whose mountpoint was set by hand");
                    self.nfs.refused.lock().insert(before, why);
                }
            }
            Err(why) => {
                self.nfs.shares().remove(name).await;
                return Err(why);
            }
        }
        let spec = ShareSpec {
            dataset: name.to_owned(),
            path,
            policy,
            access: Arc::clone(&open.access),
            snapdir,
            identity,
        };
        let verifier = self.world.random.next_u64();
        let added = self.nfs.shares().add(spec, verifier).await;
        let awaited = match &added {
            Err(ShareError::Access(_)) => Some(identity),
            _ => None,
        };
        self.nfs.shares().set_awaited(name, awaited);
        added.map_err(|error| error.to_string())?;
        if self.nfs.is_ready.load(Ordering::Acquire) {
            let listening = self.nfs.listen().await;
            listening.map_err(|error| error.to_string())?;
        }
        Ok(())
    }

    /// Ends shares of datasets for good: they or their pool go away.
    pub async fn end_nfs(&self, names: &[String]) {
        for name in names {
            self.nfs.shares().remove(name).await;
            self.nfs.shares().set_other(name, None);
            self.nfs.shares().set_awaited(name, None);
            self.nfs.refused.lock().remove(name);
            self.withheld.forget(name, None);
        }
    }

    /// Ends all shares of a pool.
    pub async fn end_nfs_of_pool(&self, open: &OpenPool) {
        let pool = open.pool.name();
        let mut names = self.nfs.shares().datasets();
        names.retain(|name| is_at_or_below(name, &pool));
        // Side by side: each may wait for requests that do not end.
        let ending = names.iter().map(|name| self.nfs.shares().remove(name));
        futures::future::join_all(ending).await;
        self.nfs.forget(&pool);
        self.withheld.forget(&pool, None);
    }

    /// Ends shares of filesystems that are not to be mounted, or not to be shared, for now.
    pub async fn withhold_nfs(&self, names: &[String]) {
        for name in names {
            // First, so that nothing shares it again meanwhile.
            self.withheld.add(name, Protocol::Nfs);
            self.nfs.shares().set_awaited(name, None);
            let path = self.nfs.path_of(name);
            self.nfs.shares().remove(name).await;
            if path.is_some() {
                self.nfs.shares().set_other(name, path);
            }
        }
    }

    /// Lets shares follow datasets that were renamed; handles that clients have stay good.
    pub async fn nfs_renamed(&self, open: &OpenPool, from: &str, to: &str) -> Vec<String> {
        for name in self.nfs.shares().datasets() {
            if is_at_or_below(&name, from) {
                let now = format!("{to}{}", &name[from.len()..]);
                self.nfs.shares().rename(&name, &now);
            }
        }
        self.nfs.forget(from);
        self.follow_nfs(open, to).await
    }
}
