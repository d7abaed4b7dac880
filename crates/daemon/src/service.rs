//! What the daemon holds: imported pools, mounts, volumes, targets, jobs and events, each a part
//! that owns what it changes. Requests are functions of the modules named after what they are
//! about; they change the parts through their own methods, and pools and what is served of them
//! through the service's.
//!
//! The order of locks is that of crate `serving`.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use api::{Failure, FailureKind, ServerInfoReply, ServerMemoryReply, ServerOption};
use device::World;
use futures::future::join_all;
use pool::{CacheDeviceOptions, HostIdentity};
use serve_iscsi::Limits;
use tokio::sync::{Notify, watch};

use crate::alerts::Alerts;
use crate::history::History;
use crate::ups::Ups;
use crate::{DaemonError, Options};
use automation::Automation;
use disks::Looks;
use disks::{Drives, Parts};
use host::State;
use service::events::Events;
use service::jobs::Jobs;
use service::pools::{OpenPool, Pools};
use serving::Serving;
use serving::mounts::Mounts;
use serving::nfs::Nfs;
use serving::owners::Owners;
use serving::people::People;
use serving::secrets::Secrets;
use serving::shares::Withheld;
use serving::smb::Smb;
use serving::volumes::Volumes;
use telemetry::figures::Figures;
use verbs::measuring::Bench;
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

/// The daemon's state. See the module's header for the order of locks.
pub(crate) struct Service {
    pub(crate) serving: Arc<Serving>,
    pub(crate) alerts: Arc<Alerts>,
    pub(crate) history: Arc<History>,
    pub(crate) disks: Arc<Parts>,
    pub(crate) automation: Arc<Automation>,
    pub(crate) figures: Arc<Figures>,
    pub(crate) looks: Looks,
    pub(crate) web: Arc<Web>,
    pub(crate) bench: Arc<Bench>,
    pub(crate) ups: Ups,
    /// Where operators choose mount points.
    pub(crate) operator_mounts: Option<PathBuf>,
    state: State,
    /// What it was started with.
    options: Vec<ServerOption>,
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
        let cache_bytes = options
            .cache_bytes
            .unwrap_or_else(|| host::memory_bytes() / 4);
        device::FileDevice::keep_memory_at_most(cache_bytes / 8);
        let world = World::system(threads);
        let nfs = Nfs::new(
            options.nfs_address,
            options.nfs_portmapper,
            options.insecure,
            (cache_bytes / 8).clamp(NFS_BYTES_MIN, NFS_BYTES_MAX),
            state.directory().join("nfs"),
            Arc::clone(&world.random),
        );
        let cache_devices = CacheDeviceOptions {
            rounds_a_day_percent: options.cache_wear_percent,
            trim_ahead_percent: options.cache_trim_ahead_percent,
        };
        let pools = Arc::new(Pools::new(
            &state,
            cache_bytes,
            cache_devices,
            options.spares_by_hand,
        ));
        if options.inject {
            tracing::warn!("faults may be injected into the pools of this server");
            pools.injections.allow();
        }
        let owners = Arc::new(Owners::load(state.directory()));
        let volumes = Volumes::new(
            state.directory().join("zvol"),
            options.iscsi_addresses.clone(),
            options.insecure,
            iscsi_limits(options, cache_bytes),
            Secrets::load(state.directory()),
            Arc::clone(&pools),
            Arc::clone(&owners),
        );
        let expecting = Arc::downgrade(&pools);
        nfs.shares().expect_by(move || {
            let pools = expecting.upgrade();
            pools.is_some_and(|pools| pools.is_expecting())
        });
        let events = Arc::new(Events::default());
        let host = host_identity();
        let web = Web::new(state.directory(), Arc::clone(&world.random), &host.hostname);
        let alerts = Alerts::load(state.directory().to_owned(), &host.hostname);
        let serving = Arc::new(Serving {
            jobs: Jobs::new(Arc::clone(&events)),
            events,
            world,
            smb: Smb::new(
                state.directory(),
                &host.hostname,
                options.smb,
                options.insecure,
            ),
            people: People::load(state.directory()),
            withheld: Withheld::default(),
            host: host_identity,
            mounts: Mounts::default(),
            volumes,
            nfs,
            owners,
            pools,
        });
        let settings = Arc::clone(&alerts);
        let disks = Arc::new(Parts {
            pools: Arc::clone(&serving.pools),
            events: Arc::clone(&serving.events),
            settings: Box::new(move || settings.current()),
            drives: Drives::load(state.directory()),
        });
        Ok(Arc::new(Self {
            automation: Automation::load(&state, Arc::clone(&serving), disks.clone()),
            disks,
            bench: Bench::load(state.directory(), Arc::clone(&serving)),
            serving,
            web,
            alerts,
            history: History::load(state.directory()),
            figures: Figures::load(state.directory()),
            looks: Looks::default(),
            ups: Ups::new(options.ups.clone()),
            operator_mounts: options.operator_mounts.clone(),
            state,
            options: options.settings.clone(),
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

    /// Unshares, unmounts and exports everything, remembering what to import at the next start.
    pub(crate) async fn shut_down(&self) {
        self.disks.drives.stop();
        self.figures.stop(&self.serving).await;
        self.automation.stop().await;
        self.bench.stop().await;
        // First: clients that ask later find their files with the next server.
        self.serving.nfs.stop_serving().await;
        self.serving.volumes.stop_serving().await;
        self.serving.smb.stop().await;
        // What is being imported is exported below; what hangs meanwhile is as after a crash.
        if tokio::time::timeout(LAST_IMPORTS, self.serving.pools.close_names())
            .await
            .is_err()
        {
            tracing::warn!("pools are still being imported; leaving");
        }
        self.serving.leave(&self.serving.pools.all(), true).await;
        self.serving.volumes.close_directory().await;
        self.stopped.send_replace(true);
    }

    /// Stops serving and exports every pool before the power fails. What clients use is there again
    /// with [`Service::come_back`], or with the next start.
    pub(crate) async fn rest(&self) {
        tracing::error!("the battery of the UPS is nearly empty: all pools are being exported");
        // What is dirty is the first to be safe: what follows takes its time.
        let pools = self.serving.pools.all();
        let syncs = pools.iter().map(|open| open.pool.sync());
        let _ = tokio::time::timeout(LAST_SYNC, join_all(syncs)).await;
        self.serving.nfs.stop_serving().await;
        self.serving.volumes.stop_serving().await;
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
        self.serving.leave(&pools, false).await;
        let is_here = |open: &Arc<OpenPool>| {
            let found = self.serving.pools.get(&open.pool.name());
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
        for cached in self.serving.pools.expect_cached() {
            self.serving.pools.could_not_be_imported(cached.guid, &why);
        }
    }

    /// Imports and serves again what [`Service::rest`] exported, or the start left alone.
    pub(crate) async fn come_back(self: &Arc<Self>) {
        tracing::warn!("there is power again: pools are imported");
        self.serving.volumes.begin_again().await;
        // What could not be exported may have lost its mounts and shares.
        for open in self.ups.left_behind() {
            let _admin = open.admin.lock().await;
            let mut warnings = self.serving.mount_all(&open, &[]).await;
            warnings.extend(self.serving.volumes.open_volumes(&open).await);
            warnings.extend(self.serving.follow_nfs(&open, &open.pool.name()).await);
            for warning in warnings {
                tracing::warn!("{warning}");
            }
        }
        self.ups.has_left(Vec::new());
        self.serving.import_cached().await;
        self.serving.nfs.begin().await;
    }

    /// Who has how much of the process's memory.
    ///
    /// # Errors
    /// When the task that looks has failed.
    pub(crate) async fn memory(&self) -> Result<ServerMemoryReply, Failure> {
        let serving = Arc::clone(&self.serving);
        let look = move || telemetry::memory::report(serving.memory(), &serving.pools);
        let looked = tokio::task::spawn_blocking(look).await;
        looked.map_err(|error| {
            let message = format!("the server's memory could not be looked at: {error}");
            Failure::new(FailureKind::Other, message)
        })
    }

    /// What the daemon is and does.
    pub(crate) fn info(&self) -> ServerInfoReply {
        ServerInfoReply {
            version: env!("CARGO_PKG_VERSION").into(),
            process_id: std::process::id(),
            pools: self
                .serving
                .pools
                .all()
                .iter()
                .map(|open| open.pool.name())
                .collect(),
            shares: self.serving.offered(),
            not_shared: self.serving.not_shared(),
            options: self.options.clone(),
        }
    }
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
