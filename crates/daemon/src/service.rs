//! What the daemon holds: imported pools, mounts, volumes, targets, jobs and events, each a part
//! that owns what it changes. Requests are functions of the modules named after what they are
//! about; they change the parts through their own methods, and pools and what is served of them
//! through the service's.
//!
//! Locks, in the order in which they are taken: a pool's `admin` lock (one change to its datasets,
//! mounts or shares at a time; held across awaits), then the short locks of
//! [`crate::mounts::Mounts`] and [`crate::volumes::Volumes`], then `pools`. Short locks are never
//! held across an await, so a pool that hangs stops only requests about itself.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use access::{Access, Exclusion, Leaving};
use api::{EventKind, Failure, FailureKind, ServerInfoReply};
use device::{BoxFuture, World};
use futures::future::join_all;
use parking_lot::Mutex;
use pool::{HostIdentity, Pool};
use serve_fuse::UnmountMode;
use serve_iscsi::Limits;
use tokio::sync::{Notify, watch};
use tokio::task::{JoinError, JoinHandle};

use crate::alerts::Alerts;
use crate::disks::Looks;
use crate::drives::Drives;
use crate::figures::Figures;
use crate::mounts::Mounts;
use crate::nfs::Nfs;
use crate::replicate::Replications;
use crate::schedules::Schedules;
use crate::secrets::Secrets;
use crate::shares::Withheld;
use crate::smb::Smb;
use crate::ups::Ups;
use crate::volumes::Volumes;
use crate::{DaemonError, Options};
use host::State;
use service::background::{self, Background};
use service::error::{from_access, from_pool, suspended};
use service::events::Events;
use service::jobs::Jobs;
use service::pools::{OpenPool, Pools};
use web::Web;

/// How much memory iSCSI sessions may have together at least, and at most; between these it is a
/// quarter of the cache's limit.
const ISCSI_BYTES_MIN: u64 = 128 << 20;
const ISCSI_BYTES_MAX: u64 = 4 << 30;

/// The same for NFS, of which it is an eighth.
const NFS_BYTES_MIN: u64 = 64 << 20;
const NFS_BYTES_MAX: u64 = 1 << 30;

/// How long those who make or import a pool may take when the server leaves.
const LAST_IMPORTS: Duration = Duration::from_secs(30);

/// How long what is dirty may take to reach disks, before pools are left because the power fails.
const LAST_SYNC: Duration = Duration::from_secs(30);

/// How long a pool's export may take when the server leaves. Long enough for all that may be dirty
/// to reach slow disks: what is left behind is lost like in a crash.
const LAST_EXPORT: Duration = Duration::from_secs(300);

/// The daemon's state. See the module's header for the order of locks.
pub(crate) struct Service {
    pub(crate) world: World,
    pub(crate) host: HostIdentity,
    pub(crate) mounts: Mounts,
    pub(crate) volumes: Volumes,
    pub(crate) nfs: Nfs,
    pub(crate) secrets: Secrets,
    pub(crate) smb: Arc<Smb>,
    pub(crate) withheld: Withheld,
    pub(crate) events: Arc<Events>,
    pub(crate) alerts: Arc<Alerts>,
    pub(crate) drives: Arc<Drives>,
    pub(crate) figures: Arc<Figures>,
    pub(crate) looks: Looks,
    pub(crate) jobs: Arc<Jobs>,
    pub(crate) pools: Arc<Pools>,
    pub(crate) replications: Replications,
    pub(crate) schedules: Schedules,
    pub(crate) web: Arc<Web>,
    pub(crate) ups: Ups,
    state: State,
    stop: Notify,
    /// Whether all is left: what [`Service::shut_down`] does is done.
    stopped: watch::Sender<bool>,
}

/// What iSCSI may use.
fn iscsi_limits(options: &Options, cache_bytes: u64) -> Limits {
    let limits = Limits::default();
    let memory_bytes = (cache_bytes / 4).clamp(ISCSI_BYTES_MIN, ISCSI_BYTES_MAX);
    Limits {
        memory_bytes: options.iscsi_memory_bytes.unwrap_or(memory_bytes),
        sessions: options.iscsi_sessions.unwrap_or(limits.sessions),
        connections_of_session: options
            .iscsi_connections
            .unwrap_or(limits.connections_of_session),
    }
}

impl Service {
    /// Prepares everything but imports nothing.
    pub(crate) async fn new(options: &Options, state: State) -> Result<Arc<Self>, DaemonError> {
        let threads = std::thread::available_parallelism().map_or(2, usize::from);
        let cache_bytes = options.cache_bytes.unwrap_or_else(|| memory_bytes() / 4);
        let volumes = Volumes::new(
            state.directory().join("zvol"),
            options.iscsi_addresses.clone(),
            options.iscsi_insecure,
            iscsi_limits(options, cache_bytes),
        );
        let world = World::system(threads);
        let nfs = Nfs::new(
            options.nfs_address,
            options.nfs_portmapper,
            options.nfs_insecure,
            (cache_bytes / 8).clamp(NFS_BYTES_MIN, NFS_BYTES_MAX),
            state.directory().join("nfs"),
            Arc::clone(&world.random),
        );
        let pools = Arc::new(Pools::new(&state, cache_bytes));
        let expecting = Arc::downgrade(&pools);
        nfs.shares().expect_by(move || {
            let pools = expecting.upgrade();
            pools.is_some_and(|pools| pools.is_expecting())
        });
        let events = Arc::new(Events::default());
        let host = host_identity();
        Ok(Arc::new(Self {
            jobs: Jobs::new(Arc::clone(&events)),
            events,
            web: Web::new(state.directory(), Arc::clone(&world.random), &host.hostname),
            world,
            alerts: Alerts::load(state.directory().to_owned(), &host.hostname),
            drives: Drives::load(state.directory()),
            figures: Figures::load(state.directory()),
            looks: Looks::default(),
            smb: Smb::new(state.directory(), &host.hostname, options.smb),
            withheld: Withheld::default(),
            host,
            mounts: Mounts::default(),
            volumes,
            nfs,
            secrets: Secrets::load(state.directory()),
            pools,
            replications: Replications::load(&state),
            schedules: Schedules::load(&state),
            ups: Ups::new(options.ups.clone()),
            state,
            stop: Notify::new(),
            stopped: watch::Sender::new(false),
        }))
    }

    pub(crate) fn state(&self) -> &State {
        &self.state
    }

    /// Asks the daemon to stop.
    pub(crate) fn request_stop(&self) {
        self.stop.notify_one();
    }

    /// Completes when somebody asked.
    pub(crate) async fn stop_requested(&self) {
        self.stop.notified().await;
    }

    /// Completes when [`Service::shut_down`] has.
    pub(crate) async fn stopped(&self) {
        let mut stopped = self.stopped.subscribe();
        // An error means that the service is gone, which it is not while this borrows it.
        let _ = stopped.wait_for(|stopped| *stopped).await;
    }

    /// Takes a pool in that was created or imported, while its name is claimed, mounts and shares
    /// what it holds unless told not to. What could not be mounted or shared is answered as
    /// warnings. A pool that stands still meanwhile is here, and goes on with this by itself once
    /// it is cleared: its caller, who may be about to bring other pools, does not wait for it.
    pub(crate) async fn adopt(self: &Arc<Self>, pool: Arc<Pool>, mount: bool) -> Vec<String> {
        pool.dsl().tasks().refuse_while_suspended();
        let access = Access::new(Arc::clone(pool.dsl()), self.world.clone());
        let open = Arc::new(OpenPool {
            pool,
            admin: Arc::default(),
            background: Background::new(&self.jobs, &self.events),
            access: Arc::new(access),
            next_guid: Mutex::new(None),
            is_settled: AtomicBool::new(false),
            receives: Arc::new(()),
        });
        let settles = Settles(Arc::clone(&open));
        // Nobody does anything to it before what a crash left in its logs is replayed.
        let admin = Arc::clone(&open.admin).lock_owned().await;
        let not_listed = self.pools.insert(&open);
        self.events.tell_of(&open.pool, EventKind::PoolImported);
        tokio::spawn(background::watch(Arc::clone(&open)));
        tokio::spawn(crate::spares::watch(Arc::clone(&open)));
        tokio::spawn(crate::receive::destroy_interrupted(Arc::clone(&open)));
        let mut warnings = Vec::from_iter(not_listed);
        let service = Arc::clone(self);
        let offering = tokio::spawn(async move {
            let (_admin, settles) = (admin, settles);
            service.offer_adopted(&settles.0, mount).await
        });
        warnings.extend(self.offered_or_suspended(&open, offering).await);
        warnings
    }

    /// Replays the intent logs of a pool that comes, mounts and shares what it holds. Gives what
    /// could not be done.
    async fn offer_adopted(&self, open: &Arc<OpenPool>, mount: bool) -> Vec<String> {
        let unreplayed = open.replay_waiting(None).await;
        let mut warnings = Vec::new();
        if mount {
            warnings.extend(self.mount_all(open).await);
        }
        warnings.extend(self.open_volumes(open).await);
        if mount {
            warnings.extend(self.follow_nfs(open, &open.pool.name()).await);
        }
        unreplayed.add_to(&mut warnings);
        warnings
    }

    /// Waits for [`Self::offer_adopted`], unless the pool stands still: then that goes on alone,
    /// and the log has what it says in the end.
    async fn offered_or_suspended(
        &self,
        open: &OpenPool,
        mut offering: JoinHandle<Vec<String>>,
    ) -> Vec<String> {
        let name = open.pool.name();
        let broken = |error: JoinError| {
            vec![format!(
                "'{name}' is not served as it should be: {error}; export and import it"
            )]
        };
        tokio::select! {
            biased;
            told = &mut offering => return told.unwrap_or_else(broken),
            () = open.pool.until_suspended() => {}
        }
        let why = format!(
            "pool '{name}' is suspended before all that it holds is replayed, mounted and shared; \
             see 'zpool status {name}', make its devices available again and run 'zpool clear \
             {name}': then that goes on"
        );
        tokio::spawn(async move {
            match offering.await {
                Ok(warnings) => warnings.iter().for_each(|told| tracing::warn!("{told}")),
                Err(error) => tracing::error!(%error, "taking a suspended pool in has failed"),
            }
        });
        vec![why]
    }

    /// Unshares, unmounts and exports everything, remembering what to import at the next start.
    pub(crate) async fn shut_down(&self) {
        self.drives.stop();
        self.figures.stop(self).await;
        tokio::join!(
            self.replications.stop(&self.jobs),
            self.schedules.stop(&self.jobs)
        );
        // First: clients that ask later find their files with the next server.
        self.nfs.stop_serving().await;
        self.volumes.stop_serving().await;
        self.smb.stop().await;
        // What is being imported is exported below; what hangs meanwhile is as after a crash.
        if tokio::time::timeout(LAST_IMPORTS, self.pools.close_names())
            .await
            .is_err()
        {
            tracing::warn!("pools are still being imported; leaving");
        }
        self.leave(&self.pools.all(), true).await;
        self.volumes.close_directory().await;
        self.stopped.send_replace(true);
    }

    /// Exports pools, remembering what to import; at last also those that stand still, with what
    /// they have in memory. Those that could not be exported stay.
    async fn leave(&self, pools: &[Arc<OpenPool>], is_last: bool) {
        let leaving = pools.iter().map(|open| {
            let left: BoxFuture<'_, ()> = Box::pin(self.leave_pool(open, is_last));
            (open.pool.name(), left)
        });
        for name in side_by_side(leaving.collect(), LAST_EXPORT).await {
            let message = format!(
                "pool '{name}' could not be exported in {} seconds and is {}: see whether its \
                 devices answer",
                LAST_EXPORT.as_secs(),
                match is_last {
                    true => "left as after a crash",
                    false => "tried again",
                }
            );
            tracing::error!("{message}");
            eprintln!("{message}");
        }
    }

    /// Stops serving and exports every pool before the power fails. What clients use is there again
    /// with [`Service::come_back`], or with the next start.
    pub(crate) async fn rest(&self) {
        tracing::error!("the battery of the UPS is nearly empty: all pools are being exported");
        // What is dirty is the first to be safe: what follows takes its time.
        let pools = self.pools.all();
        let syncs = pools.iter().map(|open| open.pool.sync());
        let _ = tokio::time::timeout(LAST_SYNC, join_all(syncs)).await;
        self.nfs.stop_serving().await;
        self.volumes.stop_serving().await;
        self.leave_for_power(pools).await;
    }

    /// Tries again to export what [`Service::rest`] could not, if anything. What somebody has
    /// imported since is theirs.
    pub(crate) async fn rest_on(&self) {
        let left = self.ups.left_behind();
        if !left.is_empty() {
            self.leave_for_power(left).await;
        }
    }

    /// Exports pools because the power fails. One that stands still keeps what it has in memory:
    /// its devices may come back before the power goes.
    async fn leave_for_power(&self, mut pools: Vec<Arc<OpenPool>>) {
        self.leave(&pools, false).await;
        let is_here = |open: &Arc<OpenPool>| {
            let found = self.pools.get(&open.pool.name());
            found.is_ok_and(|found| Arc::ptr_eq(&found, open))
        };
        pools.retain(is_here);
        match pools.is_empty() {
            true => tracing::error!("all pools are exported until there is power again"),
            false => tracing::error!("pools are left that could not be exported; tried again"),
        }
        self.ups.has_left(pools);
        self.expect_power();
    }

    /// Waits with all pools of the list until there is power again, and says so to who asks.
    pub(crate) fn expect_power(&self) {
        let why =
            "the battery of the UPS is nearly empty; it is imported again when there is power";
        let why = Failure::new(FailureKind::Busy, why);
        for cached in self.pools.expect_cached() {
            self.pools.could_not_be_imported(cached.guid, &why);
        }
    }

    /// Imports and serves again what [`Service::rest`] exported, or the start left alone.
    pub(crate) async fn come_back(self: &Arc<Self>) {
        tracing::warn!("there is power again: pools are imported");
        self.volumes.begin_again().await;
        // What could not be exported may have lost its mounts and shares.
        for open in self.ups.left_behind() {
            let _admin = open.admin.lock().await;
            let mut warnings = self.mount_all(&open).await;
            warnings.extend(self.open_volumes(&open).await);
            warnings.extend(self.follow_nfs(&open, &open.pool.name()).await);
            for warning in warnings {
                tracing::warn!("{warning}");
            }
        }
        self.ups.has_left(Vec::new());
        self.import_cached().await;
        self.nfs.begin().await;
    }

    /// Unshares, unmounts and exports a pool, by force if need be; one that stands still only where
    /// it is the last thing that is done.
    async fn leave_pool(&self, open: &OpenPool, is_last: bool) {
        let name = open.pool.name();
        let doing = format!("cannot export '{name}'");
        let work = async {
            let _admin = open.admin.lock().await;
            let released = match self.release_pool(open, UnmountMode::Clean).await {
                Err(failure) => {
                    tracing::warn!("{failure}; cutting off whoever uses it");
                    self.release_pool(open, UnmountMode::AtAnyCost).await
                }
                released => released,
            };
            let _nobody = released.inspect_err(|failure| tracing::error!("{failure}"));
            let exported = open.pool.export(true).await;
            exported.map_err(|error| from_pool(&doing, &error))
        };
        match self.leaving(open, &doing, is_last, work).await {
            Ok(()) => self.pools.leave(open),
            Err(failure) => {
                tracing::error!("{failure}");
                eprintln!("{failure}");
            }
        }
    }

    /// Unmounts a pool's filesystems and closes its volumes; nobody opens anything of it as long as
    /// what this gives is kept. When one is in use, all are as they were.
    pub(crate) async fn release_pool(
        &self,
        open: &OpenPool,
        mode: UnmountMode,
    ) -> Result<Leaving, Failure> {
        let name = open.pool.name();
        if mode == UnmountMode::Clean && open.is_receiving() {
            let message = format!("'{name}' is busy: a stream is being received into it");
            return Err(Failure::new(FailureKind::Busy, message));
        }
        self.end_nfs_of_pool(open).await;
        let mounted = self.mounts.last_first(&name);
        let directories = self.mounts.own_directories(&mounted);
        let released = async {
            self.close_volumes(&name, mode).await?;
            let taken = self.take_away(open, mounted, mode).await?;
            match open.access.leave(exclusion(mode)).await {
                Ok(leaving) => Ok(leaving),
                Err(error) => {
                    if let Err(failure) = self.bring_back(open, taken).await {
                        tracing::warn!("{failure}");
                    }
                    Err(from_access(&format!("cannot leave '{name}'"), &error))
                }
            }
        };
        let leaving = match released.await {
            Ok(leaving) => leaving,
            Err(failure) => {
                for warning in self.open_volumes(open).await {
                    tracing::warn!("{warning}");
                }
                for warning in self.follow_nfs(open, &name).await {
                    tracing::warn!("{warning}");
                }
                return Err(failure);
            }
        };
        self.remove_directories(directories).await;
        Ok(leaving)
    }

    /// Gives leases on a dataset, `name`, back. While its pool is suspended closing it goes on in
    /// the registry (what is not written yet stays in memory until the pool is cleared or left):
    /// `None`.
    pub(crate) async fn unless_suspended<T>(
        &self,
        name: &str,
        closing: impl Future<Output = T>,
    ) -> Option<T> {
        let Ok(open) = self.pools.of_dataset(name) else {
            return Some(closing.await);
        };
        let result = tokio::select! {
            biased;
            result = closing => Some(result),
            () = open.pool.until_suspended() => None,
        };
        match result {
            Some(result) if open.pool.suspended().is_none() => Some(result),
            _ => {
                tracing::warn!(
                    "'{name}': the pool is suspended; the last changes are not written yet"
                );
                None
            }
        }
    }

    /// Runs an export, a sync or the like of a pool. When the pool is suspended, or gets so, that
    /// fails at once, or by force the pool is given up, so that nothing waits for it any more.
    pub(crate) async fn leaving<T>(
        &self,
        open: &OpenPool,
        doing: &str,
        force: bool,
        work: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, Failure> {
        let standstill = async {
            open.pool.until_suspended().await;
            if force {
                open.pool.give_up();
                std::future::pending::<()>().await;
            }
        };
        tokio::select! {
            biased;
            () = standstill => Err(suspended(doing)),
            result = work => result,
        }
    }

    /// What the daemon is and does.
    pub(crate) fn info(&self) -> ServerInfoReply {
        ServerInfoReply {
            version: env!("CARGO_PKG_VERSION").into(),
            process_id: std::process::id(),
            pools: self
                .pools
                .all()
                .iter()
                .map(|open| open.pool.name())
                .collect(),
            shares: self.offered(),
            not_shared: self.not_shared(),
        }
    }
}

/// A pool is being taken in, until this is dropped.
struct Settles(Arc<OpenPool>);

impl Drop for Settles {
    fn drop(&mut self) {
        self.0.is_settled.store(true, Ordering::Release);
    }
}

/// Whether who uses a dataset keeps it from being taken away.
pub(crate) fn exclusion(mode: UnmountMode) -> Exclusion {
    match mode {
        UnmountMode::Clean => Exclusion::Refused,
        UnmountMode::Force | UnmountMode::AtAnyCost | UnmountMode::Lazy => Exclusion::Forced,
    }
}

/// Does all of these at the same time, each for no longer than `limit`; gives the names of those
/// that were not done.
async fn side_by_side(all: Vec<(String, BoxFuture<'_, ()>)>, limit: Duration) -> Vec<String> {
    let limited = all.into_iter().map(|(name, work)| async move {
        let done = tokio::time::timeout(limit, work).await;
        done.is_err().then_some(name)
    });
    join_all(limited).await.into_iter().flatten().collect()
}

/// `gethostid(3)` as OpenZFS on Linux finds it: `$ZFS_HOSTID` (`get_system_hostid`, lib/libspl),
/// `/etc/hostid`, else zero (no check of owners).
fn host_identity() -> HostIdentity {
    let of_file = || {
        let raw = std::fs::read("/etc/hostid").ok()?;
        Some(u32::from_le_bytes(*raw.first_chunk::<4>()?))
    };
    let of_environment = || {
        let text = std::env::var("ZFS_HOSTID").ok()?;
        let parsed = match text.strip_prefix("0x") {
            Some(digits) => u32::from_str_radix(digits, 16),
            None => text.parse(),
        };
        match parsed {
            Ok(hostid) => Some(hostid),
            Err(_) => {
                tracing::warn!(
                    "ZFS_HOSTID is ignored, as it is no number of 32 bits: '{text}'; write it as \
                     0x12345678"
                );
                None
            }
        }
    };
    let hostid = of_environment().or_else(of_file).unwrap_or(0).into();
    let hostname = rustix::system::uname()
        .nodename()
        .to_string_lossy()
        .into_owned();
    HostIdentity { hostid, hostname }
}

/// The machine's memory, or the control group's limit where that is lower, in bytes.
fn memory_bytes() -> u64 {
    let info = rustix::system::sysinfo();
    let machine = info.totalram as u64 * u64::from(info.mem_unit.max(1));
    let group = std::fs::read_to_string("/sys/fs/cgroup/memory.max")
        .ok()
        .and_then(|text| text.trim().parse::<u64>().ok());
    group.map_or(machine, |group| group.min(machine))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A pool whose export hangs keeps no other from being exported, and is named.
    #[tokio::test(start_paused = true)]
    async fn one_that_hangs_holds_up_nobody() {
        let done = Mutex::new(Vec::new());
        let work = |name: &'static str, hangs: bool| {
            let done = &done;
            let work: BoxFuture<'_, ()> = Box::pin(async move {
                if hangs {
                    std::future::pending::<()>().await;
                }
                tokio::time::sleep(LAST_EXPORT * 3 / 4).await;
                done.lock().push(name);
            });
            (name.to_owned(), work)
        };
        let all = vec![work("a", false), work("stalled", true), work("b", false)];
        assert_eq!(side_by_side(all, LAST_EXPORT).await, ["stalled"]);
        assert_eq!(*done.lock(), ["a", "b"]);
    }
}
