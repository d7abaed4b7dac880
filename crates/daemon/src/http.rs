//! The API's server: HTTP on a Unix socket, one `POST` a request. The same requests come over the
//! network ([`crate::web`]).
//!
//! Every local user may connect to the server of root, and is told apart by the kernel
//! ([`crate::caller`]); that of another user is theirs alone. A request runs as a task of its own:
//! a client that goes away does not stop half-way what it asked for. What takes long is a job
//! meanwhile ([`service::jobs`]), and is answered as one if the client prefers that. One `GET`
//! streams events ([`service::events`]), another one gives a file ([`crate::files`]); they end with
//! their client.

use std::collections::HashMap;
use std::future::Future;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use api::{
    AlertList, AlertSettingsGet, AlertSettingsSet, AlertTest, ApiKeyList, ApiKeyMake, ApiKeyRemove,
    AuditEntry, AuditList, BenchCompare, BenchGet, BenchList, BenchLook, BenchProfiles,
    BenchProgress, BenchRemove, BenchRun, CacheGet, Call, CertificateRenew, CertificateSet,
    CertificateStatus, ConsoleLink, DiskLightsTest, DiskList, DiskLocate, DiskOverview, DiskPower,
    DiskShow, DiskTest, EVENTS_PATH, Empty, EventHistory, FILE_DOWNLOAD_PATH, Failure, FailureKind,
    FileList, FileRestore, HostBuses, InjectAdd, InjectCancel, InjectList, InjectTune,
    IscsiSecretList, IscsiSecretRemove, IscsiSecretSet, JobCancel, JobGet, JobKind, JobList,
    JobResult, METRICS_PATH, OPENAPI_PATH, PlanAsk, PlanDedup, PlanLog, ReplicationChange,
    ReplicationCreate, ReplicationList, ReplicationPause, ReplicationRemove, ReplicationRun,
    ReportGet, ReportList, STREAM_JOB_HEADER, STREAM_PROTOCOL, ScheduleList, SchedulePause,
    ScheduleRemove, ScheduleRun, ScheduleSet, ServerInfo, ServerMemory, ServerStop, ShareList,
    UpsStatus, UserAdd, UserChange, UserList, UserRemove, ZfsAllow, ZfsAllowList, ZfsBookmark,
    ZfsChangeKey, ZfsClone, ZfsCreate, ZfsDestroy, ZfsDiff, ZfsHold, ZfsHolds, ZfsInherit, ZfsKeys,
    ZfsList, ZfsLoadKey, ZfsMount, ZfsMountList, ZfsProgram, ZfsProject, ZfsPromote, ZfsReceive,
    ZfsReceiveAbort, ZfsRedact, ZfsRelease, ZfsRename, ZfsRewrite, ZfsRollback, ZfsSend,
    ZfsSendPlan, ZfsSet, ZfsShare, ZfsSnapshot, ZfsSpace, ZfsUnloadKey, ZfsUnmount, ZfsUnshare,
    ZfsWait, ZpoolAdd, ZpoolAttach, ZpoolCheckpoint, ZpoolClear, ZpoolCreate, ZpoolDdtPrune,
    ZpoolDestroy, ZpoolDetach, ZpoolEvents, ZpoolEventsClear, ZpoolExport, ZpoolFreeze,
    ZpoolHistory, ZpoolImport, ZpoolInitialize, ZpoolLabelClear, ZpoolList, ZpoolOffline,
    ZpoolOnline, ZpoolPrefetch, ZpoolReguid, ZpoolRemove, ZpoolReopen, ZpoolResilver,
    ZpoolScanCost, ZpoolScrub, ZpoolSet, ZpoolSplit, ZpoolStatus, ZpoolSync, ZpoolTrim,
    ZpoolUpgrade, may_hold_secrets,
};
use axum::body::Body;
use axum::extract::{ConnectInfo, Query, Request};
use axum::http::header::{CONNECTION, CONTENT_TYPE, HeaderName, UPGRADE};
use axum::http::{HeaderMap, StatusCode};
use axum::middleware::map_response;
use axum::response::sse::{self, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get, post};
use axum::{Json, Router};
use device::BoxFuture;
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use rustix::process::geteuid;
use serde::Serialize;
use tokio::net::UnixListener;
use tokio::sync::oneshot;
use tokio::task::{JoinError, JoinHandle};

use web::caller::{Caller, Door, may_all};

use crate::service::Service;
use crate::{DaemonError, alerts, download, history, ups};
use automation::{replicate, schedules};
use dataset::Limited;
use service::events::Wanted;
use service::jobs::{Asker, Jobs, Work};
use telemetry::{figures, metrics};
use verbs::create::Maker;
use verbs::permissions::credentials;
use verbs::{
    activity, create, destroy, diff, files, import, inject, keys, owners, permissions, planning,
    program, properties, receive, redact, reopen, replica, rewrite, scrub, send, snapshots, split,
    topology, upgrade, usage, vdevs, zfs, zpool,
};
use web::message::{end_after_secrets, never_compress, refuse, understand};
use web::{Bounded, about};

mod accounts;

/// How often it is looked whether a reader of events may still read them.
const STILL_CURRENT: Duration = Duration::from_secs(15);

/// How long a stopping server may take to send its last answers.
const LAST_ANSWERS: Duration = Duration::from_secs(1);

/// The running server.
pub(crate) struct Listening {
    task: JoinHandle<()>,
    stop: oneshot::Sender<()>,
    path: PathBuf,
    /// Whether the socket is a service manager's, who listens on when the daemon has left.
    is_given: bool,
}

impl Listening {
    /// Where clients find the socket.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Takes no more requests, and sends the answers that are due (to `millpond down`, for one).
    pub(crate) async fn stop(self) {
        if !self.is_given {
            let _ = std::fs::remove_file(&self.path);
        }
        let _ = self.stop.send(());
        if tokio::time::timeout(LAST_ANSWERS, self.task).await.is_err() {
            tracing::debug!("requests are left that were not answered");
        }
    }
}

/// Starts to serve the API, on the socket that a service manager made, or on one of our own.
pub(crate) async fn listen(
    service: Arc<Service>,
    given: Option<std::os::unix::net::UnixListener>,
) -> Result<Listening, DaemonError> {
    let own = service.state().directory().join("millpond.sock");
    let is_given = given.is_some();
    let listened = match given {
        Some(given) => take(given, &own),
        None => bind(&own).map(|listener| (listener, own.clone())),
    };
    let (listener, path) = listened.map_err(|source| DaemonError::Socket { path: own, source })?;
    let router = router(service);
    let (stop, stopped) = oneshot::channel();
    let task = tokio::spawn(web::serve_socket(Door::new(listener), router, async {
        // An error means that the daemon is leaving without a word.
        let _ = stopped.await;
    }));
    Ok(Listening {
        task,
        stop,
        path,
        is_given,
    })
}

/// Listens on a socket of our own.
fn bind(path: &Path) -> std::io::Result<UnixListener> {
    // The lock on the state directory says that whoever left this socket is gone.
    let _ = std::fs::remove_file(path);
    let listener = UnixListener::bind(path)?;
    // Others may look at what root's server has.
    let mode = if geteuid().is_root() { 0o666 } else { 0o600 };
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))?;
    Ok(listener)
}

/// Listens on the socket of a service manager, who has given it its mode; and says where it is.
fn take(
    given: std::os::unix::net::UnixListener,
    own: &Path,
) -> std::io::Result<(UnixListener, PathBuf)> {
    let address = given.local_addr()?;
    // Its path may be another root's.
    let path = address.as_pathname().filter(|path| path.exists());
    let path = path.unwrap_or(own).to_owned();
    if address.as_pathname() != Some(own) {
        tracing::warn!(
            "the service manager's socket is {}; commands look for it at {}",
            address
                .as_pathname()
                .unwrap_or(Path::new("without a path"))
                .display(),
            own.display()
        );
    }
    Ok((UnixListener::from_std(given)?, path))
}

fn router(service: Arc<Service>) -> Router {
    finished(requests(service))
}

/// The requests over the network: those of the socket, and those that only it has.
pub(crate) fn network_router(service: &Arc<Service>, more: Router) -> Router {
    finished(requests(Arc::clone(service)).merge(more))
}

fn finished(router: Router) -> Router {
    router
        .fallback(|| async { refuse(no_such_request()) })
        .method_not_allowed_fallback(|| async { refuse(no_such_request()) })
}

fn requests(service: Arc<Service>) -> Router {
    let serving = Arc::clone(&service.serving);
    let routes = Routes {
        parts: Arc::clone(&service),
        service: Arc::clone(&service),
        router: Router::new(),
    };
    routes
        .on(|service, _: ServerInfo| async move { Ok(service.info()) })
        .on(|service, _: ServerMemory| async move { service.memory().await })
        .on(|service, _: ServerStop| async move {
            service.request_stop();
            // Who asked finds the pools exported.
            service.stopped().await;
            Ok(Empty {})
        })
        .on(|service, _: UpsStatus| async move { Ok(ups::status(&service.ups)) })
        .on(|service, _: DiskList| async move {
            let sysfs = service.disks.drives.sysfs();
            disks::disk_list(&service.serving, sysfs, &service.looks).await
        })
        .on(|service, call: PlanAsk| async move {
            let sysfs = service.disks.drives.sysfs();
            let listed = disks::disk_list(&service.serving, sysfs, &service.looks);
            disks::plan_ask(call, listed).await
        })
        .with(&service.serving)
        .on(|serving, call: ZpoolCreate| async move { zpool::zpool_create(&serving, call).await })
        .on(|serving, call: ZpoolAdd| async move { vdevs::zpool_add(&serving, call).await })
        .on(|serving, call: ZpoolRemove| async move { vdevs::zpool_remove(&serving, call).await })
        .on(|serving, call: ZpoolAttach| async move {
            topology::zpool_attach(&serving, call).await
        })
        .on(|serving, call: ZpoolDetach| async move {
            topology::zpool_detach(&serving, call).await
        })
        .on(|serving, call: ZpoolOffline| async move {
            topology::zpool_offline(&serving, call).await
        })
        .on(|serving, call: ZpoolOnline| async move {
            topology::zpool_online(&serving, call).await
        })
        .on(|serving, call: ZpoolInitialize| async move {
            activity::zpool_initialize(&serving, call).await
        })
        .on(|serving, call: ZpoolTrim| async move {
            activity::zpool_trim(&serving, call).await
        })
        .on(|serving, call: InjectAdd| async move {
            inject::add(&serving.pools, &serving.mounts, &serving.events, call).await
        })
        .on(|serving, call: ZpoolFreeze| async move {
            inject::freeze(&serving.pools, &call).await
        })
        .on(|serving, _: InjectList| async move { inject::list(&serving.pools) })
        .on(|serving, call: InjectCancel| async move { inject::cancel(&serving.pools, &call) })
        .on(|serving, call: InjectTune| async move { inject::tune(&serving.pools, &call) })
        .on(|serving, call: ZpoolSplit| async move { split::zpool_split(&serving, &call).await })
        .on(|serving, call: ZpoolReopen| async move { reopen::zpool_reopen(&serving, &call).await })
        .on(|serving, call: ZpoolResilver| async move {
            reopen::zpool_resilver(&serving, &call).await
        })
        .on(|serving, call: ZpoolReguid| async move { vdevs::zpool_reguid(&serving, call).await })
        .on(|serving, call: ZpoolLabelClear| async move {
            vdevs::zpool_labelclear(&serving, &call).await
        })
        .on_behalf(|serving, caller, call: ZpoolUpgrade| async move {
            vdevs::zpool_upgrade(&serving, &call, caller.may_change()).await
        })
        .on(|serving, call: ZpoolDestroy| async move { zpool::zpool_destroy(&serving, call).await })
        .on_job(|serving, call: ZpoolImport, _| async move {
            import::zpool_import(&serving, call).await
        })
        .on_job(|serving, call: ZpoolExport, _| async move {
            zpool::zpool_export(&serving, call).await
        })
        .on(|serving, call: ZpoolList| async move {
            zpool::zpool_list(&serving.pools, &call).await
        })
        .on_behalf(|serving, caller, call: ZpoolStatus| async move {
            // Names of damaged files are root's to know (`zfs_secpolicy_inject` for
            // `ZFS_IOC_ERROR_LOG`).
            zpool::zpool_status(&serving, &call, caller.may_change()).await
        })
        .on(|serving, call: ZpoolSet| async move { zpool::zpool_set(&serving, call).await })
        .on(|serving, call: ZpoolHistory| async move {
            zpool::zpool_history(&serving.pools, &call).await
        })
        .on(|serving, call: ZpoolSync| async move {
            zpool::zpool_sync(&serving.pools, &call).await
        })
        .on(|serving, call: ZpoolPrefetch| async move {
            zpool::zpool_prefetch(&serving.pools, &call).await
        })
        .on(|serving, call: ZpoolDdtPrune| async move {
            zpool::zpool_ddtprune(&serving.pools, &call).await
        })
        .on(|serving, _: ZpoolEvents| async move { Ok(zpool::zpool_events(&serving.events)) })
        .on(|serving, _: ZpoolEventsClear| async move {
            Ok(zpool::zpool_events_clear(&serving.events))
        })
        .on(|serving, call: ZpoolClear| async move { zpool::zpool_clear(&serving, &call).await })
        .on(|serving, call: ZpoolScrub| async move {
            scrub::zpool_scrub(&serving.pools, &call).await
        })
        .on(|serving, call: ZpoolScanCost| async move {
            scrub::zpool_scan_cost(&serving.pools, &call).await
        })
        .on(|serving, call: ZpoolCheckpoint| async move {
            scrub::zpool_checkpoint(&serving, &call).await
        })
        .on_behalf(|serving, caller, call: JobList| async move {
            Ok(scrub::job_list(&serving, &call, caller.may_change()))
        })
        .on_behalf(|serving, caller, call: JobGet| async move {
            if caller.replica().is_some() {
                own_job(&serving.jobs, &caller, call.id)?;
            }
            scrub::job_get(&serving.jobs, &call, caller.may_change())
        })
        .on_behalf(|serving, caller, call: JobResult| async move {
            if !caller.may_change() {
                own_job(&serving.jobs, &caller, call.id)?;
            }
            scrub::job_result(&serving.jobs, &call)
        })
        .on(|serving, call: JobCancel| async move { scrub::job_cancel(&serving, &call).await })
        .on_behalf(|serving, caller, mut call: ZfsList| async move {
            if let Some(properties) = &mut call.properties {
                properties.retain(|property| caller.may_see(property));
            }
            zfs::zfs_list(&serving, &call).await
        })
        .on_behalf(|serving, caller, call: ZfsCreate| async move {
            create::zfs_create(&serving, call, Maker::of(caller.ordinary_ids())).await
        })
        .on_job(|serving, call: ZfsDestroy, work| async move {
            destroy::zfs_destroy(&serving, call, &work).await
        })
        .on(|serving, call: ZfsSet| async move { properties::zfs_set(&serving, call).await })
        .on(|serving, call: ZfsInherit| async move {
            properties::zfs_inherit(&serving, call).await
        })
        .on(|serving, call: ZfsSnapshot| async move { zfs::zfs_snapshot(&serving, call).await })
        .on_behalf(|serving, caller, call: ZfsClone| async move {
            snapshots::zfs_clone(&serving, call, Maker::of(caller.ordinary_ids())).await
        })
        .on(|serving, call: ZfsPromote| async move {
            snapshots::zfs_promote(&serving, call).await
        })
        .on(|serving, call: ZfsBookmark| async move {
            snapshots::zfs_bookmark(&serving.pools, call).await
        })
        .on(|serving, call: ZfsHold| async move { snapshots::zfs_hold(&serving, call).await })
        .on(|serving, call: ZfsRelease| async move {
            snapshots::zfs_release(&serving, call).await
        })
        .on(|serving, call: ZfsDiff| async move { diff::zfs_diff(&serving, &call).await })
        .on(|serving, call: ZfsAllow| async move {
            permissions::zfs_allow(&serving.pools, call).await
        })
        .on(|serving, call: ZfsAllowList| async move {
            permissions::zfs_allow_list(&serving.pools, &call).await
        })
        .on(|serving, call: ZfsWait| async move { upgrade::zfs_wait(&serving, &call).await })
        .on(|serving, call: ZfsRollback| async move { zfs::zfs_rollback(&serving, call).await })
        .on(|serving, call: ZfsRename| async move { zfs::zfs_rename(&serving, call).await })
        .on_behalf(|serving, caller, call: ZfsMount| async move {
            let user = caller.ordinary_ids().map(|(uid, _)| uid);
            zfs::zfs_mount(&serving, call, user).await
        })
        .on(|serving, call: ZfsUnmount| async move { zfs::zfs_unmount(&serving, call).await })
        .on(|serving, call: ZfsShare| async move { serving.zfs_share(call).await })
        .on(|serving, call: ZfsUnshare| async move { serving.zfs_unshare(call).await })
        .on(|serving, call: ZfsSpace| async move { usage::zfs_space(&serving, &call).await })
        .on(|serving, call: ZfsProject| async move {
            owners::zfs_project(&serving.mounts, call).await
        })
        .on_until_left(|serving, call: ZfsProgram, has_left| async move {
            let shown = program::Shown {
                events: &serving.events,
                volumes: &serving.volumes,
                nfs: &serving.nfs,
            };
            program::zfs_program(&serving.pools, shown, call, has_left).await
        })
        .on_job(|serving, call: ZfsRedact, work| async move {
            redact::zfs_redact(&serving.pools, &call, &work).await
        })
        .on_job(|serving, call: ZfsRewrite, work| async move {
            rewrite::zfs_rewrite(&serving, &call, &work).await
        })
        .on_stream(|serving, call: ZfsReceive, input, work| async move {
            receive::zfs_receive(&serving, call, input, &work).await
        })
        .on_stream(|serving, call: ZfsSend, output, work| async move {
            send::zfs_send(&serving.pools, call, output, &work).await
        })
        .on(|serving, call: ZfsSendPlan| async move {
            send::zfs_send_plan(&serving.pools, &call).await
        })
        .on(|serving, call: ZfsReceiveAbort| async move {
            receive::zfs_receive_abort(&serving.pools, &call).await
        })
        .on(|serving, call: ZfsHolds| async move { usage::zfs_holds(&serving.pools, &call).await })
        .on(|serving, call: ZfsKeys| async move { keys::zfs_keys(&serving.pools, &call).await })
        .on(|serving, call: ZfsLoadKey| async move { keys::zfs_load_key(&serving, call).await })
        .on(|serving, call: ZfsUnloadKey| async move { keys::zfs_unload_key(&serving, call).await })
        .on(|serving, call: ZfsChangeKey| async move {
            keys::zfs_change_key(&serving.pools, call).await
        })
        .on(|serving, call: IscsiSecretSet| async move {
            serving.volumes.secret_set(call, &*serving.world.random).await
        })
        .on(|serving, call: IscsiSecretList| async move { serving.volumes.secret_list(&call) })
        .on(|serving, call: IscsiSecretRemove| async move {
            serving.volumes.secret_remove(call).await
        })
        .on_job(|serving, call: PlanDedup, work| async move {
            planning::plan_dedup(&serving.pools, call, &work).await
        })
        .on(|serving, call: FileList| async move { files::list(&serving.pools, &call).await })
        .on_job(|serving, call: FileRestore, work| async move {
            files::restore(&serving, &call, &work).await
        })
        .on(|serving, _: ShareList| async move { Ok(serving.share_list().await) })
        .accounts()
        .on(|serving, _: ZfsMountList| async move { Ok(serving.mounts.list()) })
        .with(&service.bench)
        .on(|bench, _: BenchProfiles| async move { Ok(bench.profiles()) })
        .on(|bench, call: BenchLook| async move { bench.look(call).await })
        .on_job(|bench, call: BenchRun, work| async move { bench.run(call, &work).await })
        .on(|bench, _: BenchProgress| async move { Ok(bench.progress()) })
        .on(|bench, _: BenchList| async move { Ok(bench.list()) })
        .on(|bench, call: BenchGet| async move { bench.get(&call) })
        .on(|bench, call: BenchRemove| async move { bench.remove(&call) })
        .on(|bench, call: BenchCompare| async move { bench.compare(&call) })
        .with(&service.automation)
        .on(|automation, call: ReplicationCreate| async move {
            replicate::create(&automation, call).await
        })
        .on(|automation, call: ReplicationChange| async move {
            replicate::change(&automation, &call)
        })
        .on(|automation, call: ReplicationRun| async move {
            replicate::run_now(&automation, &call)
        })
        .on(|automation, call: ReplicationRemove| async move {
            replicate::remove(&automation, &call).await
        })
        .on(|automation, call: ReplicationPause| async move {
            replicate::pause(&automation, &call).await
        })
        .on(|automation, _: ReplicationList| async move { replicate::list(&automation) })
        .on(|automation, call: ScheduleSet| async move {
            schedules::set(&automation, call).await
        })
        .on(|automation, call: ScheduleRun| async move {
            schedules::run_now(&automation, &call)
        })
        .on(|automation, call: ScheduleRemove| async move {
            schedules::remove(&automation, &call).await
        })
        .on(|automation, call: SchedulePause| async move {
            schedules::pause(&automation, &call).await
        })
        .on_behalf(|automation, caller, _: ScheduleList| async move {
            schedules::list(&automation, caller.may_change())
        })
        .with(&service.disks)
        .on(|disks, _: DiskOverview| async move { Ok(disks::overview(&disks).await) })
        .on(|disks, _: HostBuses| async move { Ok(disks::buses(&disks).await) })
        .on_behalf(|disks, caller, call: DiskShow| async move {
            disks::show(&disks, &call, caller.may_change()).await
        })
        .on(|disks, call: DiskLocate| async move { disks::locate(&disks, call).await })
        .on(|disks, call: DiskPower| async move { disks::power(&disks, call).await })
        .on(|disks, call: DiskTest| async move { disks::test(&disks, call).await })
        .on(|disks, call: DiskLightsTest| async move {
            disks::lights_test(&disks, call).await
        })
        .with(&service.web)
        .on(|web, _: CertificateStatus| async move { web.certificate_status() })
        .on(|web, call: CertificateSet| async move {
            web.set_certificate(call.acme)
        })
        .on(|web, call: CertificateRenew| async move {
            web.renew_certificate(call.only_if_due).await
        })
        .on(|web, call: UserList| async move { web.user_list(&call) })
        .on(|web, call: UserAdd| async move { web.user_add(call).await })
        .on(|web, call: UserChange| async move { web.user_change(call).await })
        .on(|web, call: UserRemove| async move { web.user_remove(&call) })
        .on(|web, call: ApiKeyList| async move { web.api_key_list(&call) })
        .on_behalf(|web, caller, call: ApiKeyMake| async move {
            web.api_key_make(&caller, &call)
        })
        .on(|web, call: ApiKeyRemove| async move { web.api_key_remove(&call) })
        .on(|web, call: AuditList| async move { web.audit_list(&call).await })
        .on(|web, _: ConsoleLink| async move { Ok(web.link()) })
        .with(&service.alerts)
        .on_behalf(|alerts, caller, _: AlertList| async move {
            Ok(alerts::list(&alerts, caller.may_change()))
        })
        .on(|alerts, _: AlertSettingsGet| async move { alerts::settings(&alerts) })
        .on(|alerts, call: AlertSettingsSet| async move { alerts::set_settings(&alerts, call) })
        .on(|alerts, _: AlertTest| async move { alerts::test(&alerts).await })
        .with(&service.history)
        .on_behalf(|history, caller, call: EventHistory| async move {
            Ok(history::list(&history, &call, caller.may_change()))
        })
        .with(&service.figures)
        .on_behalf(|figures, caller, _: ReportList| async move {
            Ok(figures::list(&figures, caller.may_change()))
        })
        .on_behalf(|figures, caller, call: ReportGet| async move {
            figures::get(&figures, call, caller.may_change()).await
        })
        .on(|figures, call: PlanLog| async move { figures::plan_log(&figures, call).await })
        .on(move |figures, call: CacheGet| {
            let serving = Arc::clone(&serving);
            async move { figures::cache(&figures, &serving.pools, call).await }
        })
        .with_events()
        .with_downloads()
        .with_description()
        .with_metrics()
        .router
}

/// Who asks for a job.
fn asker(caller: &Caller) -> Option<Asker> {
    let user = caller.ids().map(|(uid, _)| Asker::User(uid));
    user.or_else(|| caller.key().map(|key| Asker::Key(key.to_owned())))
}

/// Refuses those who have not asked for a job.
fn own_job(jobs: &Jobs, caller: &Caller, id: u64) -> Result<(), Failure> {
    match asker(caller).is_some_and(|asker| jobs.is_of(id, &asker)) {
        true => Ok(()),
        false => Err(Failure::denied(&format!(
            "cannot get the result of job {id}"
        ))),
    }
}

fn no_such_request() -> Failure {
    let message = "there is no such request; is the command of another version than the daemon?";
    Failure::new(FailureKind::Unsupported, message)
}

/// A connection that is a stream.
pub(crate) type Connection = Bounded<TokioIo<Upgraded>>;

/// Tells that who asked has left.
struct Left(Arc<AtomicBool>);

impl Drop for Left {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The requests, of which each gets the parts of the server that it works on.
struct Routes<P> {
    /// For what every request goes through: permissions, the record of changes, jobs.
    service: Arc<Service>,
    parts: Arc<P>,
    router: Router,
}

impl<P: Send + Sync + 'static> Routes<P> {
    /// The requests that follow get these parts.
    fn with<Q>(self, parts: &Arc<Q>) -> Routes<Q> {
        Routes {
            service: self.service,
            parts: Arc::clone(parts),
            router: self.router,
        }
    }

    /// A request at its path.
    fn at<C: Call>(self, mut answer: MethodRouter) -> Self {
        if may_hold_secrets::<C>() {
            answer = answer.layer(map_response(end_after_secrets));
        }
        if may_hold_secrets::<C::Reply>() {
            answer = answer.layer(map_response(never_compress));
        }
        Self {
            router: self.router.route(C::PATH, answer),
            ..self
        }
    }

    /// Requests of which everybody who may make them gets the same answer.
    fn on<C, F, Fut>(self, handler: F) -> Self
    where
        C: Call,
        F: Fn(Arc<P>, C) -> Fut + Clone + Send + Sync + 'static,
        Fut: Future<Output = Result<C::Reply, Failure>> + Send + 'static,
    {
        self.on_behalf(move |parts, _, call| handler(parts, call))
    }

    /// Requests of which the answer depends on who asks.
    fn on_behalf<C, F, Fut>(self, handler: F) -> Self
    where
        C: Call,
        F: Fn(Arc<P>, Caller, C) -> Fut + Clone + Send + Sync + 'static,
        Fut: Future<Output = Result<C::Reply, Failure>> + Send + 'static,
    {
        let (service, parts) = (Arc::clone(&self.service), Arc::clone(&self.parts));
        let answer = move |ConnectInfo(caller): ConnectInfo<Caller>, body: Body| async move {
            // A request counts from before it is read.
            let place = caller.place().await;
            let (call, record): (C, _) = match admit(&service, &caller, body).await {
                Ok(admitted) => admitted,
                Err(failure) => return refuse(failure),
            };
            let work = async move {
                let asks = caller.ids();
                let outcome = work_for(asks, handler(parts, caller, call)).await;
                drop(place);
                record.write(outcome.as_ref().err()).await;
                outcome
            };
            let working = match may_hold_secrets::<C>() {
                true => tokio::spawn(device::wipe_freed(work)),
                false => tokio::spawn(work),
            };
            answer_with(working.await)
        };
        self.at::<C>(post(answer))
    }

    /// Requests of which the handler is told when who asked has left.
    fn on_until_left<C, F, Fut>(self, handler: F) -> Self
    where
        C: Call,
        F: Fn(Arc<P>, C, Arc<AtomicBool>) -> Fut + Clone + Send + Sync + 'static,
        Fut: Future<Output = Result<C::Reply, Failure>> + Send + 'static,
    {
        let (service, parts) = (Arc::clone(&self.service), Arc::clone(&self.parts));
        let answer = move |ConnectInfo(caller): ConnectInfo<Caller>, body: Body| async move {
            let place = caller.place().await;
            let (call, record): (C, _) = match admit(&service, &caller, body).await {
                Ok(admitted) => admitted,
                Err(failure) => return refuse(failure),
            };
            // Dropped with this future, which ends with its connection.
            let left = Left(Arc::default());
            let has_left = Arc::clone(&left.0);
            let working = tokio::spawn(async move {
                let asks = caller.ids();
                let outcome = work_for(asks, handler(parts, call, has_left)).await;
                drop(place);
                record.write(outcome.as_ref().err()).await;
                outcome
            });
            answer_with(working.await)
        };
        self.at::<C>(post(answer))
    }

    /// Requests that are jobs while they are worked at ([`Call::JOB`]).
    fn on_job<C, F, Fut>(self, handler: F) -> Self
    where
        C: Call,
        F: Fn(Arc<P>, C, Arc<Work>) -> Fut + Clone + Send + Sync + 'static,
        Fut: Future<Output = Result<C::Reply, Failure>> + Send + 'static,
    {
        let kind = C::JOB.expect("a call that is a job");
        let (service, parts) = (Arc::clone(&self.service), Arc::clone(&self.parts));
        let answer = move |ConnectInfo(caller): ConnectInfo<Caller>,
                           headers: HeaderMap,
                           body: Body| async move {
            // A request counts while it is read, and a job does not.
            let place = caller.place().await;
            let admitted = admit(&service, &caller, body).await;
            drop(place);
            let (call, record): (C, _) = match admitted {
                Ok(admitted) => admitted,
                Err(failure) => return refuse(failure),
            };
            let can_cancel = matches!(
                kind,
                JobKind::Destroy
                    | JobKind::Redact
                    | JobKind::Rewrite
                    | JobKind::Restore
                    | JobKind::DedupForecast
                    | JobKind::Bench
            );
            let work = service
                .serving
                .jobs
                .begin(kind, call.pool(), None, can_cancel);
            let work = Arc::new(work);
            let id = work.id();
            let asks = caller.ids();
            work.asked_by(asker(&caller));
            let jobs = Arc::clone(&service.serving.jobs);
            let mut working = tokio::spawn(async move {
                // Who has left counts until the job is done.
                let _caller = caller;
                let working = handler(parts, call, Arc::clone(&work));
                let outcome = work_for(asks, working).await;
                let reply = outcome.as_ref().map_err(Clone::clone).and_then(|reply| {
                    serde_json::to_value(reply)
                        .map_err(|error| Failure::new(FailureKind::Other, error.to_string()))
                });
                record.write(outcome.as_ref().err()).await;
                work.answer(reply);
                outcome
            });
            let Some(wait) = wait_before_job(&headers) else {
                return answer_with(working.await);
            };
            match tokio::time::timeout(wait, &mut working).await {
                Ok(done) => answer_with(done),
                Err(_) => match jobs.get(id) {
                    Ok(job) => (StatusCode::ACCEPTED, Json(job)).into_response(),
                    Err(failure) => refuse(failure),
                },
            }
        };
        self.at::<C>(post(answer))
    }

    /// Requests whose connection becomes a stream ([`api::STREAM_PROTOCOL`]). They are jobs.
    fn on_stream<C, F, Fut>(self, handler: F) -> Self
    where
        C: Call,
        F: Fn(Arc<P>, C, Connection, Arc<Work>) -> Fut + Clone + Send + Sync + 'static,
        Fut: Future<Output = Result<C::Reply, Failure>> + Send + 'static,
    {
        let kind = C::JOB.expect("a call that is a job");
        let (service, parts) = (Arc::clone(&self.service), Arc::clone(&self.parts));
        let answer = move |info: ConnectInfo<Caller>, mut request: Request| async move {
            let ConnectInfo(caller) = info;
            let switched = hyper::upgrade::on(&mut request);
            let wants = request.headers().get(UPGRADE);
            let is_switch = wants.is_some_and(|wants| wants == STREAM_PROTOCOL);
            let body = request.into_body();
            let place = caller.place().await;
            let (call, record): (C, _) = match admit(&service, &caller, body).await {
                Ok(admitted) => admitted,
                Err(failure) => return refuse(failure),
            };
            if !is_switch {
                let message = format!("the request must switch to '{STREAM_PROTOCOL}'");
                return refuse(Failure::new(FailureKind::Invalid, message));
            }
            let work = service.serving.jobs.begin(kind, call.pool(), None, true);
            let work = Arc::new(work);
            let id = work.id();
            let asks = caller.ids();
            work.asked_by(asker(&caller));
            let is_local = caller.is_local();
            tokio::spawn(async move {
                let _place = place;
                let outcome = match switched.await {
                    Ok(connection) => {
                        let connection = Bounded::new(TokioIo::new(connection), is_local);
                        let working = handler(parts, call, connection, Arc::clone(&work));
                        work_for(asks, working).await
                    }
                    Err(error) => Err(Failure::new(
                        FailureKind::Canceled,
                        format!("the connection broke off: {error}"),
                    )),
                };
                record.write(outcome.as_ref().err()).await;
                work.answer(outcome.and_then(|reply| {
                    serde_json::to_value(reply)
                        .map_err(|error| Failure::new(FailureKind::Other, error.to_string()))
                }));
            });
            let headers = [
                (CONNECTION, "upgrade".to_owned()),
                (UPGRADE, STREAM_PROTOCOL.to_owned()),
                (HeaderName::from_static(STREAM_JOB_HEADER), id.to_string()),
            ];
            (StatusCode::SWITCHING_PROTOCOLS, headers).into_response()
        };
        Self {
            router: self.router.route(C::PATH, post(answer)),
            ..self
        }
    }

    /// The stream of events.
    fn with_events(self) -> Self {
        let events = Arc::clone(&self.service.serving.events);
        let answer = move |ConnectInfo(caller): ConnectInfo<Caller>,
                           Query(query): Query<HashMap<String, String>>,
                           headers: HeaderMap| async move {
            let header = headers.get("last-event-id");
            let header = header.and_then(|value| value.to_str().ok());
            let after = query.get("after").map(String::as_str).or(header);
            let after = after.map(str::parse).transpose();
            let Ok(after) = after else {
                let message = "the number of the last event makes no sense; leave it out";
                return refuse(Failure::new(FailureKind::Invalid, message));
            };
            let may_change = caller.may_change();
            let wanted = match query.get("kind").map(String::as_str) {
                None if may_change => Wanted::All,
                None | Some("own") => Wanted::Own,
                Some("zfs") if may_change => Wanted::Zfs,
                Some("zfs") => {
                    let message = "cannot read events: permission denied";
                    return refuse(Failure::new(FailureKind::Denied, message));
                }
                Some(_) => {
                    let message =
                        "there is no such kind of events; leave it out, or say 'own' or 'zfs'";
                    return refuse(Failure::new(FailureKind::Invalid, message));
                }
            };
            let reader = events.reader(after, wanted);
            let reading = (reader, caller);
            let stream = futures::stream::unfold(reading, move |(mut reader, caller)| async move {
                // A session may end, or its user may get another role, while the stream goes on.
                let mut event = loop {
                    let next = tokio::time::timeout(STILL_CURRENT, reader.next()).await;
                    if !caller.is_current() {
                        return None;
                    }
                    if let Ok(next) = next {
                        break next?;
                    }
                };
                if !may_change {
                    event.kind = event.kind.for_looking();
                }
                Some((as_sse(&event), (reader, caller)))
            });
            Sse::new(stream)
                .keep_alive(KeepAlive::default())
                .into_response()
        };
        Self {
            router: self.router.route(EVENTS_PATH, get(answer)),
            ..self
        }
    }

    /// What programs that watch servers ask for.
    fn with_metrics(self) -> Self {
        let service = Arc::clone(&self.service);
        let answer = move |ConnectInfo(caller): ConnectInfo<Caller>| async move {
            let _place = caller.place().await;
            let standing = alerts::list(&service.alerts, true);
            let text = metrics::text(&service.serving, &standing, &service.automation).await;
            ([(CONTENT_TYPE, metrics::CONTENT_TYPE)], text)
        };
        Self {
            router: self.router.route(METRICS_PATH, get(answer)),
            ..self
        }
    }

    /// What files hold.
    fn with_downloads(self) -> Self {
        let serving = Arc::clone(&self.service.serving);
        let audit = Arc::clone(&self.service.web.audit);
        let answer = move |ConnectInfo(caller): ConnectInfo<Caller>,
                           Query(query): Query<HashMap<String, String>>| {
            download::download(Arc::clone(&serving), Arc::clone(&audit), caller, query)
        };
        Self {
            router: self.router.route(FILE_DOWNLOAD_PATH, get(answer)),
            ..self
        }
    }

    /// The description of all this.
    fn with_description(self) -> Self {
        let description = LazyLock::new(|| Json(api::openapi(env!("CARGO_PKG_VERSION"))));
        let description = Arc::new(description);
        let answer = move || async move { (*description).clone() };
        Self {
            router: self.router.route(OPENAPI_PATH, get(answer)),
            ..self
        }
    }
}

fn as_sse(event: &api::Event) -> Result<sse::Event, axum::Error> {
    let sse = sse::Event::default().event(event.kind.class());
    sse.id(event.sequence.to_string()).json_data(event)
}

/// How long a request is held before it is answered as a job; none where it is held until it is
/// done (RFC 7240, sections 4.1 and 4.3).
fn wait_before_job(headers: &HeaderMap) -> Option<Duration> {
    let values = headers.get_all("prefer").iter();
    let values = values.filter_map(|value| value.to_str().ok());
    let words: Vec<&str> = values
        .flat_map(|value| value.split([',', ';']))
        .map(str::trim)
        .collect();
    if !words.contains(&"respond-async") {
        return None;
    }
    let mut waits = words.iter().filter_map(|word| word.strip_prefix("wait="));
    let seconds = waits.find_map(|seconds| seconds.parse().ok());
    Some(Duration::from_secs(seconds.unwrap_or(0)))
}

fn answer_with<R: Serialize>(done: Result<Result<R, Failure>, JoinError>) -> Response {
    match done {
        Ok(Ok(reply)) => Json(reply).into_response(),
        Ok(Err(failure)) => refuse(failure),
        Err(error) => refuse(Failure::new(
            FailureKind::Other,
            format!("the daemon failed at this request: {error}; see its log"),
        )),
    }
}

/// The record of a request that changes something ([`web::Audit`]); it is made when it is
/// known what came of it.
struct Record {
    entry: Option<AuditEntry>,
    audit: Arc<web::Audit>,
    /// Room for it, which is kept while the change is made.
    room: Option<web::Room>,
}

impl Record {
    fn write(self, failure: Option<&Failure>) -> impl Future<Output = ()> + use<> {
        let kind = failure.map(|failure| failure.kind);
        async move {
            let _room = self.room;
            if let Some(mut entry) = self.entry {
                entry.time_s = web::now_s();
                entry.failure = kind;
                self.audit.record(entry).await;
            }
        }
    }
}

/// Works at a request of the user with these numbers. Limits on filesystems and snapshots do not
/// bind who may do everything, or who may change them.
async fn work_for<T>(asks: Option<(u32, u32)>, work: impl Future<Output = T>) -> T {
    let limited = match asks {
        None => Limited::ByAll,
        Some((uid, _)) if may_all(uid) => Limited::ByNone,
        Some((uid, gid)) => Limited::ByOthers(Arc::new(credentials(uid, gid))),
    };
    let work = dataset::with_limits(limited, work);
    service::asking::work_for(asks.map(|(uid, _)| uid), work).await
}

/// Reads a request, and refuses what a caller may not ask, which is put on record.
async fn admit<C: Call>(
    service: &Arc<Service>,
    caller: &Caller,
    body: Body,
) -> Result<(C, Record), Failure> {
    // What is refused whatever it says is not read.
    if let Err(failure) = caller.check_role(C::ROLE) {
        let record = Record {
            entry: Some(caller.entry(C::PATH, Vec::new())),
            audit: Arc::clone(&service.web.audit),
            room: None,
        };
        record.write(Some(&failure)).await;
        return Err(failure);
    }
    let call: C = understand(body, caller.request_bytes_max()).await?;
    let mut record = Record {
        entry: call.changes().then(|| caller.entry(C::PATH, about(&call))),
        audit: Arc::clone(&service.web.audit),
        room: None,
    };
    match permit(service, caller, call).await {
        Ok(call) => {
            // A server that cannot be stopped would help nobody.
            if record.entry.is_some() && C::PATH != ServerStop::PATH {
                record.room = Some(Arc::clone(&record.audit).make_room().await?);
            }
            Ok((call, record))
        }
        Err(failure) => {
            record.write(Some(&failure)).await;
            Err(failure)
        }
    }
}

async fn permit<C: Call>(
    service: &Arc<Service>,
    caller: &Caller,
    mut call: C,
) -> Result<C, Failure> {
    if let Some(replica) = caller.replica() {
        let denied = |why: &str| Failure::new(FailureKind::Denied, replica.denied(why));
        // Narrowed to what such a key may ask.
        let gone = call.narrow(&replica.dataset).map_err(denied)?;
        replica::check_destroy(&service.serving.pools, replica, &gone).await?;
        return Ok(call);
    }
    let Err(denied) = caller.check(&call) else {
        if caller.is_operator() {
            let narrowed = call.narrow_mounts(service.operator_mounts.as_deref());
            narrowed.map_err(|why| Failure::new(FailureKind::Denied, why))?;
        }
        return Ok(call);
    };
    let needs = caller.ids().and_then(|(uid, _)| call.needs(uid));
    let (Some((uid, gid)), Some(needs)) = (caller.ids(), needs) else {
        return Err(denied);
    };
    let serving = Arc::clone(&service.serving);
    let may: BoxFuture<'_, bool> = Box::pin(permissions::may(serving, needs, uid, gid));
    if !may.await {
        return Err(denied);
    }
    call.restrict();
    Ok(call)
}

#[cfg(test)]
mod tests;
