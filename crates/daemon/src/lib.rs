//! The process that owns the pools: its API, its mounts, its shares.
//!
//! This crate wires the parts, each a crate of its own: what serves the pools (`serving`, above
//! `service` with their table, jobs and events), disks, alerts, figures, what runs by itself
//! (`automation`), and who may ask (`web`). One `service::Service` holds them. Requests come over
//! HTTP on a Unix socket in the state directory and over the network (module `http`); functions of
//! crate `verbs` carry them out, and get the parts that they use.
//!
//! State directory: `millpond.lock` (held while the daemon lives), `millpond.sock` (the API; a
//! service manager may have made it: `host::supervisor`), `millpond.stopped` (crate `host`),
//! `millpond.toml` (the options of every start), `pools.json` (what to import at the next start:
//! `service::pool_list`), `replications.json` (crate `automation`), `schedules.json` (likewise),
//! `bench/` (measurements: `verbs::measuring`),
//! `iscsi-secrets.json` (for CHAP),
//! `share-names.json` (whose the names of shares are: `serving::owners`), `alerts*.json` (crate
//! `alerts`), `lights.json` and `smart/` (crate `drives`), `figures/` (crate `series`),
//! `history.jsonl` (what has happened), `people.json` (users and API keys), `audit.jsonl` (the
//! record of changes), `https-certificate.pem` and `https-key.pem`, `certificate.json` and
//! `acme-*.json` (crate `web`), `smb/` (all that Samba keeps, with its users), `zvol/` (volumes as
//! files), and for `millpond up` `disks/` and `mnt/` of the default pool. All of it is its user's
//! alone. Where that is root, others pass through to the socket, to `zvol/` and to `mnt/`, which
//! have modes of their own.
//!
//! A crash leaves the pools as a power cut would: each is at its last synced transaction group,
//! and the next import replays the intent logs.

#![forbid(unsafe_code)]

mod alerts;
mod beside;
mod default_pool;
mod download;
mod error;
mod history;
mod http;
mod pressure;
mod service;
mod ups;

use std::net::SocketAddr;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

pub use error::DaemonError;
pub use host::{StateError, is_stopped, stay_stopped};
pub use serving::smb::SmbListen;
pub use ups::UpsAddress;
pub use web::{Https, ListenError};

use api::ServerOption;
use host::{State, supervisor};
use rustix::process::{
    DumpableBehavior, Resource, Rlimit, getrlimit, set_dumpable_behavior, setrlimit,
};
use service::Service;

/// Descriptors that a process has at most where it has no limit of its own (`fs.nr_open`, as
/// kernels come).
const DESCRIPTORS_MAX: u64 = 1 << 20;

/// How long what still runs may take when everything is exported.
const LAST_TASKS: Duration = Duration::from_secs(10);

/// What the daemon is told at its start.
#[derive(Clone, Debug)]
pub struct Options {
    /// The state directory: socket, pool cache, volumes as files.
    pub state: PathBuf,
    /// Where iSCSI listens: the portals of one portal group.
    pub iscsi_addresses: Vec<SocketAddr>,
    /// Most sessions of iSCSI initiators; 4096 where not given.
    pub iscsi_sessions: Option<usize>,
    /// Most connections of one session; 8 where not given.
    pub iscsi_connections: Option<u16>,
    /// Most memory for what iSCSI sessions have under way in bytes; a quarter of the cache's,
    /// within bounds, where not given.
    pub iscsi_memory_bytes: Option<u64>,
    /// Share with everybody on the network what names nobody: volumes whose property asks for no
    /// CHAP, filesystems whose `sharenfs` names no hosts, those with guests by SMB.
    pub insecure: bool,
    /// Where NFS listens.
    pub nfs_address: SocketAddr,
    /// Answer on a portmapper's port too, so that clients find the programs.
    pub nfs_portmapper: bool,
    /// Where SMB listens, while something is shared by it.
    pub smb: SmbListen,
    /// Where the API and the console are offered over the network.
    pub https: Https,
    /// Files of the certificate and of its key, in PEM; where not given one that the settings have
    /// got by ACME, or else one of the server's own.
    pub certificate: Option<(PathBuf, PathBuf)>,
    /// Where operators, who come over the network, choose mount points: at and below this
    /// directory; nowhere where not given.
    pub operator_mounts: Option<PathBuf>,
    /// Most memory for the cache in bytes; a quarter of the machine's where not given.
    pub cache_bytes: Option<u64>,
    /// How often a day a cache device that is full may be written over, in hundredths; `None`
    /// without limit.
    pub cache_wear_percent: Option<u32>,
    /// How much more than a cache device is about to overwrite is trimmed, in hundredths of that
    /// but 64 MiB at least; 0: nothing is.
    pub cache_trim_ahead_percent: u32,
    /// Whether hot spares stand in only by `zpool replace`, not by themselves.
    pub spares_by_hand: bool,
    /// Whether faults may be injected into its pools.
    pub inject: bool,
    /// The UPS that the power comes from.
    pub ups: Option<UpsAddress>,
    /// What is told of these options to who asks.
    pub settings: Vec<ServerOption>,
    /// A file that remembers them, and what is written into it once the server runs.
    pub file: Option<(PathBuf, String)>,
}

/// The embedded pool of `millpond up`.
#[derive(Clone, Debug, Default)]
pub struct DefaultPool {
    /// Size of its disks together in bytes; by the free space where not given.
    pub size_bytes: Option<u64>,
    /// Where its filesystem appears; `mnt` in the state directory where not given.
    pub mountpoint: Option<PathBuf>,
}

/// Runs the daemon until it is told to stop (Ctrl-C, SIGTERM, `millpond down`). Pools are exported
/// on the way out.
///
/// # Errors
/// When another daemon uses the state directory, an address is taken, or the default pool cannot
/// be made.
pub fn run(options: Options, default_pool: Option<DefaultPool>) -> Result<(), DaemonError> {
    // What is above the state directory is as the user's umask has it.
    if let Some(above) = options.state.parent() {
        let failed = |source| StateError::Unusable {
            path: above.to_owned(),
            source,
        };
        std::fs::create_dir_all(above).map_err(failed)?;
    }
    let given = supervisor::given_socket().map_err(|source| DaemonError::Socket {
        path: options.state.join("millpond.sock"),
        source,
    })?;
    keep_files_private();
    keep_memory_private();
    if !codec::crypt::is_memory_locked() {
        tracing::warn!(
            "memory cannot be locked, so keys of encrypted datasets may be swapped out; raise the \
             limit of locked memory (ulimit -l)"
        );
    }
    avoid_huge_pages();
    raise_descriptor_limit();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .thread_name("millpond")
        .build()
        .map_err(|source| DaemonError::Runtime { source })?;
    let served = runtime.block_on(serve(options, default_pool, given));
    // What hangs in the kernel must not keep the process.
    runtime.shutdown_timeout(LAST_TASKS);
    served
}

/// Has every file that this process makes belong to its user alone: pools, keys and logs are in
/// them. What others are meant to reach gets its mode by name. It takes effect on the whole
/// process, so it comes before any thread; files made through mounts have the mode that their
/// maker's umask leaves.
fn keep_files_private() {
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077));
}

/// Keeps what this process has in memory, keys among it, out of core dumps, and from all other
/// processes of its user (`PR_SET_DUMPABLE`): `MILLPOND_CORE_DUMPS=on` allows both, to find faults.
/// Who is not root loses by it files below `/proc/self` that nobody here reads (`auxv`, `environ`,
/// `io`, `mem`); programs that are started are as they would be.
pub fn keep_memory_private() {
    if std::env::var("MILLPOND_CORE_DUMPS").as_deref() == Ok("on") {
        return;
    }
    let none = Rlimit {
        current: Some(0),
        ..getrlimit(Resource::Core)
    };
    let limited = setrlimit(Resource::Core, none);
    let hidden = set_dumpable_behavior(DumpableBehavior::NotDumpable);
    if let Err(error) = limited.and(hidden) {
        tracing::warn!(%error, "core dumps are not switched off; keys may be in them");
    }
}

/// Keeps the kernel from backing our memory with huge pages, which the allocator asks for. Blocks
/// come and go in pieces of 128 KiB and more; whoever first touches one of 2 MiB of fresh memory
/// would wait until all of it is cleared, in a virtual machine also until the host has found it
/// (measured there: sequential writes took five times as long). `MILLPOND_HUGE_PAGES=on` leaves it
/// to the kernel.
fn avoid_huge_pages() {
    if std::env::var("MILLPOND_HUGE_PAGES").as_deref() == Ok("on") {
        return;
    }
    if let Err(error) = rustix::thread::disable_transparent_huge_pages(true) {
        tracing::debug!(%error, "huge pages cannot be switched off");
    }
}

/// Lets the process have as many descriptors as it may: a mounted filesystem takes some for each of
/// its threads, and the usual limit of 1024 is kept for programs that use select(2).
fn raise_descriptor_limit() {
    let limit = getrlimit(Resource::Nofile);
    let most = limit.maximum.unwrap_or(DESCRIPTORS_MAX);
    if limit.current.is_none_or(|current| current >= most) {
        return;
    }
    let raised = Rlimit {
        current: Some(most),
        ..limit
    };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        tracing::warn!(%error, "the limit of open files stays as it is; some hundred filesystems \
             may reach it");
    }
}

async fn serve(
    options: Options,
    default_pool: Option<DefaultPool>,
    given: Option<UnixListener>,
) -> Result<(), DaemonError> {
    supervisor::begins();
    // Where a service manager listens for the server, stopping it is that one's business.
    let is_expected_back = given.is_some();
    let state = State::open(&options.state)?;
    let service = Service::new(&options, state).await?;
    tokio::spawn(give_back_memory());
    let serving = Arc::downgrade(&service.serving);
    let uses = move || serving.upgrade().map(|serving| serving.memory());
    let pools = Arc::downgrade(&service.serving.pools);
    tokio::spawn(pressure::follow(pools, Arc::new(uses)));
    service.serving.volumes.take_away_dead_directory().await;
    // Before anything is shared: who is in a group is looked up as somebody logs in.
    let serving = &service.serving;
    serving.people.begin(&*serving.smb).await;
    // The API answers once the pools are there: a first 'zpool list' must not miss them.
    match default_pool.is_none() && ups::is_empty_at_start(&service.ups).await {
        true => service.expect_power(),
        false => service.serving.import_cached().await,
    }
    let brought_up = match &default_pool {
        Some(wanted) => default_pool::bring_up(&service, wanted).await,
        None => Ok(None),
    };
    service.serving.nfs.begin().await;
    history::begin(&service.history, &service.serving.events);
    alerts::begin(&service);
    disks::begin(&service.disks);
    telemetry::figures::begin(&service.figures, &service.serving);
    service.automation.begin();
    tokio::spawn(verbs::measuring::follow(Arc::downgrade(&service.bench)));
    tokio::spawn(ups::follow(Arc::downgrade(&service)));
    if default_pool.is_some() {
        // What is printed tells what is shared.
        service.serving.smb.settle().await;
    }
    let (listening, secret) = match brought_up {
        Ok(secret) => (listen(&service, &options, given).await, secret),
        Err(error) => (Err(error), None),
    };
    if let Ok((listening, _)) = &listening {
        supervisor::is_ready();
        remember(&options);
        tokio::spawn(supervisor::feed_watchdog(listening.path().to_owned()));
        if default_pool.is_some() {
            default_pool::announce(&service, secret.as_ref());
        }
        let stop = wait_for_stop(&service).await;
        supervisor::leaves();
        if stop == Stop::Asked || !is_expected_back {
            service.state().note_stopped();
        }
        if default_pool.is_some() {
            eprintln!(
                "stopping: exporting pools (once more Ctrl-C leaves at once; nothing that was \
                 synced is lost)"
            );
        }
    }
    tokio::select! {
        () = service.shut_down() => {}
        _ = tokio::signal::ctrl_c() => {}
    }
    let (listening, web) = listening?;
    if let Some(web) = web {
        web.stop().await;
    }
    listening.stop().await;
    Ok(())
}

/// Writes the options down for the next start.
fn remember(options: &Options) {
    let Some((path, text)) = &options.file else {
        return;
    };
    if let Err(error) = device::private::write(path, text.as_bytes()) {
        tracing::warn!(
            "the next start will not have the options of this one: {} cannot be written: {error}",
            path.display()
        );
    }
}

/// Listens on the API's socket and over the network.
async fn listen(
    service: &Arc<Service>,
    options: &Options,
    given: Option<UnixListener>,
) -> Result<(http::Listening, Option<web::Listening>), DaemonError> {
    let web = match listen_over_network(service, options, web::Bounds::default()).await {
        // Nobody has asked for it, so the pools are served without it.
        Err(error) if matches!(options.https, Https::Near(_)) && options.certificate.is_none() => {
            tracing::warn!("{error}");
            None
        }
        web => web?,
    };
    let listening = http::listen(Arc::clone(service), given).await?;
    Ok((listening, web))
}

/// Offers the API and the console over the network, if that is wanted.
async fn listen_over_network(
    service: &Arc<Service>,
    options: &Options,
    bounds: web::Bounds,
) -> Result<Option<web::Listening>, ListenError> {
    let offer = web::Offer {
        https: options.https,
        directory: service.state().directory().to_owned(),
        certificate: options.certificate.clone(),
        bounds,
    };
    let router = http::network_router(service, web::session_routes(&service.web));
    web::listen(&service.web, offer, router).await
}

/// Gives memory back that was kept for reuse and is not needed any more.
async fn give_back_memory() {
    const PAUSE: Duration = Duration::from_secs(10);
    loop {
        tokio::time::sleep(PAUSE).await;
        let give_back = || {
            device::FileDevice::give_back_unused_memory();
            device::give_back_free();
        };
        let _ = tokio::task::spawn_blocking(give_back).await;
    }
}

/// Who stops the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stop {
    /// Somebody, with a request or Ctrl-C.
    Asked,
    /// A service manager, or whoever sends SIGTERM.
    Terminated,
}

/// Waits for Ctrl-C, SIGTERM, or a request to stop.
async fn wait_for_stop(service: &Service) -> Stop {
    use tokio::signal::unix::{SignalKind, signal};
    let terminated = async {
        match signal(SignalKind::terminate()) {
            Ok(mut signal) => {
                signal.recv().await;
            }
            Err(_) => std::future::pending().await,
        }
    };
    tokio::select! {
        _ = tokio::signal::ctrl_c() => Stop::Asked,
        () = terminated => Stop::Terminated,
        () = service.stop_requested() => Stop::Asked,
    }
}
