//! What the daemon holds: imported pools, mounts, volumes, targets.
//!
//! Locks, in the order in which they are taken: a pool's `admin` lock (one change to its datasets,
//! mounts or shares at a time; held across awaits), then the short locks of [`crate::mounts::Mounts`]
//! and [`crate::volumes::Volumes`], then `pools`. Short locks are never held across an await, so a
//! pool that hangs stops only requests about itself.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use api::{Failure, FailureKind, ServerInfoReply};
use device::{BoxFuture, World};
use futures::future::join_all;
use parking_lot::Mutex;
use pool::{HostIdentity, ImportSpec, MissingLogs, Pool, ScanSpec};
use serve_fuse::UnmountMode;
use tokio::sync::{Notify, watch};

use crate::error::{all_done, from_engine, suspended};
use crate::filesystems::Filesystems;
use crate::mounts::Mounts;
use crate::names::{Claim, PoolNames};
use crate::secrets::Secrets;
use crate::state::{CachedPool, State};
use crate::volumes::Volumes;
use crate::{DaemonError, Options};

/// An imported pool and what is known of it besides.
pub(crate) struct OpenPool {
    /// The pool.
    pub(crate) pool: Arc<Pool>,
    /// Serialises changes to its datasets, mounts and shares.
    pub(crate) admin: tokio::sync::Mutex<()>,
    /// Its filesystems that are open.
    pub(crate) filesystems: Filesystems,
    /// The guid that it is being given, while it is.
    pub(crate) next_guid: Mutex<Option<u64>>,
}

impl OpenPool {
    /// Whether it is imported again at the next start.
    fn is_cached(&self) -> bool {
        let cachefile = self.pool.prop("cachefile");
        cachefile.is_none_or(|property| property.value != "none")
    }
}

/// A pool that was imported when the server last ran, and is not any more.
struct Absent {
    cached: CachedPool,
    /// Why it could not be imported, once that was tried.
    why: Option<String>,
}

impl Absent {
    fn new(cached: CachedPool) -> Self {
        Self { cached, why: None }
    }

    fn told(&self) -> String {
        let name = &self.cached.name;
        let why = self.why.as_deref().unwrap_or("it was not tried yet");
        format!(
            "pool '{name}' could not be imported: {why}\nThe next start tries again, unless 'zpool export {name}' ends that."
        )
    }
}

/// How much of a pool may be dirty at least, and at most.
const DIRTY_BYTES_MIN: u64 = 512 << 20;
const DIRTY_BYTES_MAX: u64 = 4 << 30;

/// How much memory iSCSI sessions may have together at least, and at most; between these it is a
/// quarter of the cache's limit.
const ISCSI_BYTES_MIN: u64 = 128 << 20;
const ISCSI_BYTES_MAX: u64 = 4 << 30;

/// How long those who make or import a pool may take when the server leaves.
const LAST_IMPORTS: Duration = Duration::from_secs(30);

/// How long a pool's export may take when the server leaves. Long enough for all that may be dirty to reach slow disks:
/// what is left behind is lost like in a crash.
const LAST_EXPORT: Duration = Duration::from_secs(300);

/// The daemon's state. See the module's header for the order of locks.
pub(crate) struct Service {
    pub(crate) world: World,
    pub(crate) host: HostIdentity,
    pub(crate) mounts: Mounts,
    pub(crate) volumes: Volumes,
    pub(crate) secrets: Secrets,
    state: State,
    cache_bytes: u64,
    pools: Mutex<BTreeMap<String, Arc<OpenPool>>>,
    names: PoolNames,
    /// Pools of the last run that are not imported, or not yet: they stay on the list for the next start.
    absent: Mutex<Vec<Absent>>,
    stop: Notify,
    /// Whether all is left: what [`Service::shut_down`] does is done.
    stopped: watch::Sender<bool>,
}

impl Service {
    /// Prepares everything but imports nothing.
    pub(crate) async fn new(options: &Options, state: State) -> Result<Arc<Self>, DaemonError> {
        let threads = std::thread::available_parallelism().map_or(2, usize::from);
        let cache_bytes = options.cache_bytes.unwrap_or_else(|| memory_bytes() / 4);
        let volumes = Volumes::new(
            state.directory().join("zvol"),
            options.iscsi_address,
            options.iscsi_insecure,
            (cache_bytes / 4).clamp(ISCSI_BYTES_MIN, ISCSI_BYTES_MAX),
        );
        Ok(Arc::new(Self {
            world: World::system(threads),
            host: host_identity(),
            mounts: Mounts::default(),
            volumes,
            secrets: Secrets::load(state.directory()),
            state,
            cache_bytes,
            pools: Mutex::new(BTreeMap::new()),
            names: PoolNames::default(),
            absent: Mutex::new(Vec::new()),
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

    /// Every imported pool, by name.
    pub(crate) fn pools(&self) -> Vec<Arc<OpenPool>> {
        self.pools.lock().values().cloned().collect()
    }

    /// The pools of these names; every pool where there are none.
    pub(crate) fn pools_named(&self, names: &[String]) -> Result<Vec<Arc<OpenPool>>, Failure> {
        if names.is_empty() {
            return Ok(self.pools());
        }
        names.iter().map(|name| self.pool(name)).collect()
    }

    /// The pools of these names that are here, each once, and why others are not; fails where none is here. Every pool
    /// where there are no names.
    pub(crate) fn pools_found(
        &self,
        names: &[String],
    ) -> Result<(Vec<Arc<OpenPool>>, Vec<String>), Failure> {
        if names.is_empty() {
            return Ok((self.pools(), self.absent()));
        }
        let mut names: Vec<&String> = names.iter().collect();
        let mut seen = HashSet::new();
        names.retain(|name| seen.insert(*name));
        let (mut found, mut failures) = (Vec::new(), Vec::new());
        for name in names {
            match self.pool(name) {
                Ok(open) => found.push(open),
                Err(failure) => failures.push(failure),
            }
        }
        if found.is_empty() {
            all_done(&failures)?;
        }
        Ok((found, failures.iter().map(Failure::to_string).collect()))
    }

    /// The pool of this name.
    pub(crate) fn pool(&self, name: &str) -> Result<Arc<OpenPool>, Failure> {
        let found = self.pools.lock().get(name).cloned();
        found.ok_or_else(|| {
            let absent = self.absent.lock();
            let known = absent
                .iter()
                .find(|absent| absent.cached.name == name && absent.why.is_some());
            let why = known.map_or_else(
                || "no such pool; 'zpool list' shows those that are imported".to_owned(),
                Absent::told,
            );
            Failure::new(
                FailureKind::NotFound,
                format!("cannot open '{name}': {why}"),
            )
        })
    }

    /// The pool that a dataset belongs to.
    pub(crate) fn pool_of(&self, dataset: &str) -> Result<Arc<OpenPool>, Failure> {
        let pool = dataset.split(['/', '@', '#']).next().unwrap_or(dataset);
        let found = self.pools.lock().get(pool).cloned();
        found.ok_or_else(|| {
            Failure::new(
                FailureKind::NotFound,
                format!(
                    "cannot open '{dataset}': dataset does not exist (there is no pool '{pool}')"
                ),
            )
        })
    }

    /// Has a pool of this name, and with this guid if it has one yet, for whoever makes it or takes it in; until then
    /// nobody else does.
    pub(crate) async fn claim(
        &self,
        doing: &str,
        name: &str,
        guid: Option<format::Guid>,
    ) -> Result<Claim<'_>, Failure> {
        let guid = guid.map(|guid| guid.get().to_string());
        let keys = std::iter::once(name.to_owned()).chain(guid).collect();
        self.names.claim(keys).await.ok_or_else(|| {
            let message = format!("{doing}: the server is stopping; start it again for this");
            Failure::new(FailureKind::Busy, message)
        })
    }

    /// Takes a pool in that was created or imported, while its name is claimed, mounts and shares what it holds unless told not to.
    /// What could not be mounted or shared is answered as warnings.
    pub(crate) async fn adopt(&self, pool: Arc<Pool>, mount: bool) -> Vec<String> {
        pool.dsl().tasks().refuse_while_suspended();
        let open = Arc::new(OpenPool {
            pool,
            admin: tokio::sync::Mutex::new(()),
            filesystems: Filesystems::default(),
            next_guid: Mutex::new(None),
        });
        self.pools
            .lock()
            .insert(open.pool.name(), Arc::clone(&open));
        self.share_out_cache();
        self.save_cached_pools();
        let _admin = open.admin.lock().await;
        let mut warnings = Vec::new();
        if mount {
            warnings.extend(self.mount_all(&open).await);
        }
        warnings.extend(self.open_volumes(&open).await);
        warnings
    }

    /// Forgets a pool that was exported or destroyed.
    pub(crate) fn forget(&self, name: &str, keep_cached: bool) {
        self.pools.lock().remove(name);
        self.share_out_cache();
        if !keep_cached {
            self.save_cached_pools();
        }
    }

    /// Every pool gets the same part of the memory for caching, and may have as much dirty as OpenZFS allows where
    /// the cache has a quarter of the memory: a tenth of it, at most 4 GiB (`zfs_dirty_data_max`, `..._max_max`).
    fn share_out_cache(&self) {
        let pools = self.pools.lock();
        let share = self.cache_bytes / pools.len().max(1) as u64;
        for open in pools.values() {
            open.pool.pipeline().cache().set_limit_bytes(share);
            open.pool
                .set_dirty_max_bytes((share / 5 * 2).clamp(DIRTY_BYTES_MIN, DIRTY_BYTES_MAX));
        }
    }

    /// Keeps which pools are open, with their devices, for the next start.
    pub(crate) fn save_cached_pools(&self) {
        let pools = self.pools();
        let mut absent = self.absent.lock();
        absent.retain(|absent| {
            pools
                .iter()
                .all(|open| !absent.cached.is(open.pool.guid().get()))
        });
        let mut cached: Vec<CachedPool> = pools
            .iter()
            .filter(|open| open.is_cached())
            .map(|open| CachedPool {
                name: open.pool.name(),
                guid: open.pool.guid().get(),
                next_guid: *open.next_guid.lock(),
                devices: crate::reports::device_paths(&open.pool.status()),
                read_only: open.pool.is_read_only(),
            })
            .collect();
        cached.extend(absent.iter().map(|absent| absent.cached.clone()));
        if let Err(error) = self.state.set_cached_pools(&cached) {
            tracing::warn!(
                "the list of pools could not be kept: {error}; they must be imported by hand at the next start"
            );
        }
    }

    /// Imports what was imported when the daemon last ran. What cannot be is reported, and tried again at the next start:
    /// a disk that came too late must not cost a pool its place.
    pub(crate) async fn import_cached(&self) {
        let cached = self.state.cached_pools();
        *self.absent.lock() = cached.iter().cloned().map(Absent::new).collect();
        for cached in cached {
            if let Err(failure) = self.import_one_cached(&cached).await {
                tracing::error!("pool '{}' of the last run: {failure}", cached.name);
                let mut absent = self.absent.lock();
                let listed = absent.iter_mut();
                for one in listed.filter(|one| one.cached.guid == cached.guid) {
                    one.why = Some(failure.to_string());
                    eprintln!("{}", one.told());
                }
            }
        }
    }

    /// Of every pool that could not be imported at the start and is still waited for, why.
    pub(crate) fn absent(&self) -> Vec<String> {
        let absent = self.absent.lock();
        let failed = absent.iter().filter(|absent| absent.why.is_some());
        failed.map(Absent::told).collect()
    }

    /// Forgets a pool that is not here, so that no start looks for it again; tells whether it was on the list.
    pub(crate) fn forget_absent(&self, name: &str) -> bool {
        let mut absent = self.absent.lock();
        let before = absent.len();
        absent.retain(|absent| absent.cached.name != name);
        let forgotten = absent.len() < before;
        drop(absent);
        if forgotten {
            self.save_cached_pools();
        }
        forgotten
    }

    async fn import_one_cached(&self, cached: &CachedPool) -> Result<(), Failure> {
        let doing = format!("cannot import '{}'", cached.name);
        let spec = ScanSpec {
            paths: cached.devices.clone(),
            guid: None,
            name: None,
        };
        let found = pool::scan(&self.world, &spec)
            .await
            .map_err(|error| from_engine(&doing, &error))?;
        let mut found = found.into_iter();
        let Some(found) = found.find(|found| cached.is(found.guid.get())) else {
            let message = format!(
                "{doing}: none of its devices is there ({}); bring them back and run 'zpool import -d DIR {}'",
                cached.devices.join(", "),
                cached.name
            );
            return Err(Failure::new(FailureKind::NotFound, message));
        };
        let _claim = self.claim(&doing, &cached.name, Some(found.guid)).await?;
        let mut import = ImportSpec::new(found, self.host.clone());
        import.read_only = cached.read_only;
        import.missing_logs = MissingLogs::AcceptedIfUnused;
        let pool = Pool::import(&self.world, import)
            .await
            .map_err(|error| from_engine(&doing, &error))?;
        for warning in self.adopt(pool, true).await {
            tracing::warn!("{warning}");
            eprintln!("{warning}");
        }
        Ok(())
    }

    /// Unshares, unmounts and exports everything, remembering what to import at the next start.
    pub(crate) async fn shut_down(&self) {
        self.volumes.stop_serving().await;
        // What is being imported is exported below; what hangs meanwhile is as after a crash.
        if tokio::time::timeout(LAST_IMPORTS, self.names.close())
            .await
            .is_err()
        {
            tracing::warn!("pools are still being imported; leaving");
        }
        let pools = self.pools();
        let leaving = pools.iter().map(|open| {
            let left: BoxFuture<'_, ()> = Box::pin(self.leave_pool(open));
            (open.pool.name(), left)
        });
        for name in side_by_side(leaving.collect(), LAST_EXPORT).await {
            let message = format!(
                "pool '{name}' could not be exported in {} seconds and is left as after a crash: see whether its devices answer",
                LAST_EXPORT.as_secs()
            );
            tracing::error!("{message}");
            eprintln!("{message}");
        }
        self.volumes.close_directory().await;
        self.stopped.send_replace(true);
    }

    /// Unshares, unmounts and exports a pool, by force if need be.
    async fn leave_pool(&self, open: &OpenPool) {
        let name = open.pool.name();
        let doing = format!("cannot export '{name}'");
        let work = async {
            let _admin = open.admin.lock().await;
            if let Err(failure) = self.release_pool(open, UnmountMode::Clean).await {
                tracing::warn!("{failure}; cutting off whoever uses it");
                if let Err(failure) = self.release_pool(open, UnmountMode::AtAnyCost).await {
                    tracing::error!("{failure}");
                }
            }
            let exported = open.pool.export(true).await;
            exported.map_err(|error| from_engine(&doing, &error))
        };
        match self.leaving(open, &doing, true, work).await {
            Ok(()) => self.forget(&name, true),
            Err(failure) => {
                tracing::error!("{failure}");
                eprintln!("{failure}");
            }
        }
    }

    /// Unmounts a pool's filesystems and closes its volumes. When one is in use, all are as they were.
    pub(crate) async fn release_pool(
        &self,
        open: &OpenPool,
        mode: UnmountMode,
    ) -> Result<(), Failure> {
        let name = open.pool.name();
        let mounted = self.mounts.last_first(&name);
        let directories = self.mounts.own_directories(&mounted);
        let released = async {
            self.close_volumes(&name, mode).await?;
            self.take_away(open, mounted, mode).await
        };
        if let Err(failure) = released.await {
            for warning in self.open_volumes(open).await {
                tracing::warn!("{warning}");
            }
            return Err(failure);
        }
        self.remove_directories(directories).await;
        Ok(())
    }

    /// Closes something of a dataset, `name`. While its pool is suspended that goes on in the background (what is
    /// not written yet stays in memory until the pool is cleared or left): `None`.
    pub(crate) async fn unless_suspended<T: Send + 'static>(
        &self,
        name: &str,
        closing: impl Future<Output = T> + Send + 'static,
    ) -> Option<T> {
        let Ok(open) = self.pool_of(name) else {
            return Some(closing.await);
        };
        let mut closing = tokio::spawn(closing);
        let result = tokio::select! {
            biased;
            result = &mut closing => Some(result.unwrap_or_else(|panic| {
                std::panic::resume_unwind(panic.into_panic())
            })),
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

    /// Runs an export, a sync or the like of a pool. When the pool is suspended, or gets so, that fails at once, or by
    /// force the pool is given up, so that nothing waits for it any more.
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
            pools: self.pools().iter().map(|open| open.pool.name()).collect(),
            shares: self.volumes.shares(&self.secrets),
            not_shared: self.volumes.not_shared(),
        }
    }
}

/// Does all of these at the same time, each for no longer than `limit`; gives the names of those that were not done.
async fn side_by_side(all: Vec<(String, BoxFuture<'_, ()>)>, limit: Duration) -> Vec<String> {
    let limited = all.into_iter().map(|(name, work)| async move {
        let done = tokio::time::timeout(limit, work).await;
        done.is_err().then_some(name)
    });
    join_all(limited).await.into_iter().flatten().collect()
}

/// `gethostid(3)` as OpenZFS on Linux finds it: `$ZFS_HOSTID` (`get_system_hostid`, lib/libspl), `/etc/hostid`,
/// else zero (no check of owners).
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
                    "ZFS_HOSTID is ignored, as it is no number of 32 bits: '{text}'; write it as 0x12345678"
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
