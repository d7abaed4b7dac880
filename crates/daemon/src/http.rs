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
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use api::{
    AlertList, AlertSettingsGet, AlertSettingsSet, AlertTest, ApiKeyList, ApiKeyMake, ApiKeyRemove,
    AuditEntry, AuditList, Call, CertificateRenew, CertificateSet, CertificateStatus, ConsoleLink,
    DiskLightsTest, DiskList, DiskLocate, DiskOverview, DiskShow, DiskTest, EVENTS_PATH, Empty,
    FILE_DOWNLOAD_PATH, Failure, FailureKind, FileList, FileRestore, IscsiSecretList,
    IscsiSecretRemove, IscsiSecretSet, JobCancel, JobGet, JobKind, JobList, JobResult,
    METRICS_PATH, OPENAPI_PATH, ReplicationChange, ReplicationCreate, ReplicationList,
    ReplicationPause, ReplicationRemove, ReplicationRun, ReportGet, ReportList, STREAM_JOB_HEADER,
    STREAM_PROTOCOL, ScheduleList, SchedulePause, ScheduleRemove, ScheduleRun, ScheduleSet,
    ServerInfo, ServerStop, ShareList, SmbUserAdd, SmbUserList, SmbUserPassword, SmbUserRemove,
    UpsStatus, UserAdd, UserChange, UserList, UserRemove, ZfsAllow, ZfsAllowList, ZfsBookmark,
    ZfsChangeKey, ZfsClone, ZfsCreate, ZfsDestroy, ZfsDiff, ZfsHold, ZfsHolds, ZfsInherit, ZfsKeys,
    ZfsList, ZfsLoadKey, ZfsMount, ZfsMountList, ZfsProject, ZfsPromote, ZfsReceive,
    ZfsReceiveAbort, ZfsRedact, ZfsRelease, ZfsRename, ZfsRewrite, ZfsRollback, ZfsSend,
    ZfsSendPlan, ZfsSet, ZfsShare, ZfsSnapshot, ZfsSpace, ZfsUnloadKey, ZfsUnmount, ZfsUnshare,
    ZfsWait, ZpoolAdd, ZpoolAttach, ZpoolCheckpoint, ZpoolClear, ZpoolCreate, ZpoolDestroy,
    ZpoolDetach, ZpoolEvents, ZpoolEventsClear, ZpoolExport, ZpoolHistory, ZpoolImport,
    ZpoolInitialize, ZpoolLabelClear, ZpoolList, ZpoolOffline, ZpoolOnline, ZpoolReguid,
    ZpoolRemove, ZpoolReopen, ZpoolResilver, ZpoolScrub, ZpoolSet, ZpoolSplit, ZpoolStatus,
    ZpoolSync, ZpoolTrim, ZpoolUpgrade,
};
use axum::body::Body;
use axum::extract::{ConnectInfo, Query, Request};
use axum::http::header::{CONNECTION, CONTENT_TYPE, HeaderName, UPGRADE};
use axum::http::{HeaderMap, StatusCode};
use axum::response::sse::{self, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use device::BoxFuture;
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use rustix::process::geteuid;
use serde::Serialize;
use tokio::net::UnixListener;
use tokio::sync::oneshot;
use tokio::task::{JoinError, JoinHandle};

use web::caller::{Caller, Door};

use crate::service::Service;
use crate::{DaemonError, alerts, download, ups};
use automation::{replicate, schedules};
use service::asking::work_for;
use service::events::Wanted;
use service::jobs::Work;
use telemetry::{figures, metrics};
use verbs::create::Maker;
use verbs::{
    activity, create, destroy, diff, files, import, keys, owners, permissions, properties, receive,
    redact, reopen, rewrite, scrub, send, snapshots, split, topology, upgrade, usage, vdevs, zfs,
    zpool,
};
use web::about;
use web::message::{refuse, understand};

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
    let router = router(service).into_make_service_with_connect_info::<Caller>();
    let (stop, stopped) = oneshot::channel();
    let task = tokio::spawn(async move {
        let serving = axum::serve(Door::new(listener), router).with_graceful_shutdown(async {
            // An error means that the daemon is leaving without a word.
            let _ = stopped.await;
        });
        if let Err(error) = serving.await {
            tracing::error!("the API's socket failed: {error}");
        }
    });
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
            "the service manager's socket is {address:?}; commands look for it at {}",
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
    let routes = Routes {
        service,
        router: Router::new(),
    };
    routes
        .on(|service, _: ServerInfo| async move { Ok(service.info()) })
        .on(|service, _: ServerStop| async move {
            service.request_stop();
            // Who asked finds the pools exported.
            service.stopped().await;
            Ok(Empty {})
        })
        .on(|service, call: ZpoolCreate| async move { zpool::zpool_create(&service.serving, call).await })
        .on(|service, call: ZpoolAdd| async move { vdevs::zpool_add(&service.serving, call).await })
        .on(|service, call: ZpoolRemove| async move { vdevs::zpool_remove(&service.serving, call).await })
        .on(|service, call: ZpoolAttach| async move {
            topology::zpool_attach(&service.serving, call).await
        })
        .on(|service, call: ZpoolDetach| async move {
            topology::zpool_detach(&service.serving, call).await
        })
        .on(|service, call: ZpoolOffline| async move {
            topology::zpool_offline(&service.serving, call).await
        })
        .on(|service, call: ZpoolOnline| async move {
            topology::zpool_online(&service.serving, call).await
        })
        .on(|service, call: ZpoolInitialize| async move {
            activity::zpool_initialize(&service.serving, call).await
        })
        .on(|service, call: ZpoolTrim| async move {
            activity::zpool_trim(&service.serving, call).await
        })
        .on(|service, call: ZpoolSplit| async move { split::zpool_split(&service.serving, &call).await })
        .on(|service, call: ZpoolReopen| async move { reopen::zpool_reopen(&service.serving, &call).await })
        .on(|service, call: ZpoolResilver| async move {
            reopen::zpool_resilver(&service.serving, &call).await
        })
        .on(|service, call: ZpoolReguid| async move { vdevs::zpool_reguid(&service.serving, call).await })
        .on(|service, call: ZpoolLabelClear| async move {
            vdevs::zpool_labelclear(&service.serving, &call).await
        })
        .on_behalf(|service, caller, call: ZpoolUpgrade| async move {
            vdevs::zpool_upgrade(&service.serving, &call, caller.may_change()).await
        })
        .on(|service, call: ZpoolDestroy| async move { zpool::zpool_destroy(&service.serving, call).await })
        .on_job(|service, call: ZpoolImport, _| async move {
            import::zpool_import(&service.serving, call).await
        })
        .on_job(|service, call: ZpoolExport, _| async move {
            zpool::zpool_export(&service.serving, call).await
        })
        .on(|service, call: ZpoolList| async move { zpool::zpool_list(&service.serving, &call).await })
        .on_behalf(|service, caller, call: ZpoolStatus| async move {
            // Names of damaged files are root's to know (`zfs_secpolicy_inject` for
            // `ZFS_IOC_ERROR_LOG`).
            zpool::zpool_status(&service.serving, &call, caller.may_change()).await
        })
        .on(|service, call: ZpoolSet| async move { zpool::zpool_set(&service.serving, call).await })
        .on(|service, call: ZpoolHistory| async move {
            zpool::zpool_history(&service.serving, &call).await
        })
        .on(|service, call: ZpoolSync| async move { zpool::zpool_sync(&service.serving, &call).await })
        .on(|service, _: UpsStatus| async move { Ok(ups::status(&service.ups)) })
        .on_behalf(|service, caller, _: AlertList| async move {
            Ok(alerts::list(&service.alerts, caller.may_change()))
        })
        .on(|service, _: AlertSettingsGet| async move { alerts::settings(&service.alerts) })
        .on(|service, call: AlertSettingsSet| async move { alerts::set_settings(&service.alerts, call) })
        .on(|service, _: AlertTest| async move { alerts::test(&service.alerts).await })
        .on(|service, _: CertificateStatus| async move { service.web.certificate_status() })
        .on(|service, call: CertificateSet| async move {
            service.web.set_certificate(call.acme)
        })
        .on(|service, call: CertificateRenew| async move {
            service.web.renew_certificate(call.only_if_due).await
        })
        .on(|service, _: ZpoolEvents| async move { Ok(zpool::zpool_events(&service.serving)) })
        .on(|service, _: ZpoolEventsClear| async move { Ok(zpool::zpool_events_clear(&service.serving)) })
        .on(|service, call: ZpoolClear| async move { zpool::zpool_clear(&service.serving, &call).await })
        .on(|service, call: ZpoolScrub| async move { scrub::zpool_scrub(&service.serving, &call).await })
        .on(|service, call: ZpoolCheckpoint| async move {
            scrub::zpool_checkpoint(&service.serving, &call).await
        })
        .on_behalf(|service, caller, call: JobList| async move {
            Ok(scrub::job_list(&service.serving, &call, caller.may_change()))
        })
        .on_behalf(|service, caller, call: JobGet| async move {
            scrub::job_get(&service.serving, &call, caller.may_change())
        })
        .on_behalf(|service, caller, call: JobResult| async move {
            let ids = caller.ids();
            let is_own = ids.is_some_and(|(uid, _)| service.serving.jobs.is_of(call.id, uid));
            if !caller.may_change() && !is_own {
                return Err(Failure::denied(&format!("cannot get the result of job {}", call.id)));
            }
            scrub::job_result(&service.serving, &call)
        })
        .on(|service, call: JobCancel| async move { scrub::job_cancel(&service.serving, &call).await })
        .on_behalf(|service, caller, mut call: ZfsList| async move {
            if let Some(properties) = &mut call.properties {
                properties.retain(|property| caller.may_see(property));
            }
            zfs::zfs_list(&service.serving, &call).await
        })
        .on_behalf(|service, caller, call: ZfsCreate| async move {
            create::zfs_create(&service.serving, call, Maker::of(caller.ordinary_ids())).await
        })
        .on_job(|service, call: ZfsDestroy, work| async move {
            destroy::zfs_destroy(&service.serving, call, &work).await
        })
        .on(|service, call: ZfsSet| async move { properties::zfs_set(&service.serving, call).await })
        .on(|service, call: ZfsInherit| async move {
            properties::zfs_inherit(&service.serving, call).await
        })
        .on(|service, call: ZfsSnapshot| async move { zfs::zfs_snapshot(&service.serving, call).await })
        .on_behalf(|service, caller, call: ZfsClone| async move {
            snapshots::zfs_clone(&service.serving, call, Maker::of(caller.ordinary_ids())).await
        })
        .on(|service, call: ZfsPromote| async move {
            snapshots::zfs_promote(&service.serving, call).await
        })
        .on(|service, call: ZfsBookmark| async move {
            snapshots::zfs_bookmark(&service.serving, call).await
        })
        .on(|service, call: ZfsHold| async move { snapshots::zfs_hold(&service.serving, call).await })
        .on(|service, call: ZfsRelease| async move {
            snapshots::zfs_release(&service.serving, call).await
        })
        .on(|service, call: ZfsDiff| async move { diff::zfs_diff(&service.serving, &call).await })
        .on(|service, call: ZfsAllow| async move { permissions::zfs_allow(&service.serving, call).await })
        .on(|service, call: ZfsAllowList| async move {
            permissions::zfs_allow_list(&service.serving, &call).await
        })
        .on(|service, call: ZfsWait| async move { upgrade::zfs_wait(&service.serving, &call).await })
        .on(|service, call: ZfsRollback| async move { zfs::zfs_rollback(&service.serving, call).await })
        .on(|service, call: ZfsRename| async move { zfs::zfs_rename(&service.serving, call).await })
        .on(|service, call: ZfsMount| async move { zfs::zfs_mount(&service.serving, call).await })
        .on(|service, call: ZfsUnmount| async move { zfs::zfs_unmount(&service.serving, call).await })
        .on(|service, call: ZfsShare| async move { service.serving.zfs_share(call).await })
        .on(|service, call: ZfsUnshare| async move { service.serving.zfs_unshare(call).await })
        .on(|service, call: ZfsSpace| async move { usage::zfs_space(&service.serving, &call).await })
        .on(|service, call: ZfsProject| async move { owners::zfs_project(&service.serving, call).await })
        .on_job(|service, call: ZfsRedact, work| async move {
            redact::zfs_redact(&service.serving, &call, &work).await
        })
        .on_job(|service, call: ZfsRewrite, work| async move {
            rewrite::zfs_rewrite(&service.serving, &call, &work).await
        })
        .on_stream(|service, call: ZfsReceive, input, work| async move {
            receive::zfs_receive(&service.serving, call, input, &work).await
        })
        .on_stream(|service, call: ZfsSend, output, work| async move {
            send::zfs_send(&service.serving, call, output, &work).await
        })
        .on(|service, call: ZfsSendPlan| async move { send::zfs_send_plan(&service.serving, &call).await })
        .on(|service, call: ZfsReceiveAbort| async move {
            receive::zfs_receive_abort(&service.serving, &call).await
        })
        .on(|service, call: ZfsHolds| async move { usage::zfs_holds(&service.serving, &call).await })
        .on(|service, call: ZfsKeys| async move { keys::zfs_keys(&service.serving, &call).await })
        .on(|service, call: ZfsLoadKey| async move { keys::zfs_load_key(&service.serving, call).await })
        .on(|service, call: ZfsUnloadKey| async move { keys::zfs_unload_key(&service.serving, call).await })
        .on(|service, call: ZfsChangeKey| async move { keys::zfs_change_key(&service.serving, call).await })
        .on(|service, call: IscsiSecretSet| async move { service.serving.iscsi_secret_set(call).await })
        .on(|service, call: IscsiSecretList| async move { service.serving.iscsi_secret_list(&call) })
        .on(|service, call: IscsiSecretRemove| async move {
            service.serving.iscsi_secret_remove(call).await
        })
        .on(|service, call: ReplicationCreate| async move {
            replicate::create(&service.automation, call).await
        })
        .on(|service, call: ReplicationChange| async move { replicate::change(&service.automation, &call) })
        .on(|service, call: ReplicationRun| async move { replicate::run_now(&service.automation, &call) })
        .on(|service, call: ReplicationRemove| async move {
            replicate::remove(&service.automation, &call).await
        })
        .on(|service, call: ReplicationPause| async move {
            replicate::pause(&service.automation, &call).await
        })
        .on(|service, _: ReplicationList| async move { replicate::list(&service.automation) })
        .on(|service, call: ScheduleSet| async move { schedules::set(&service.automation, call).await })
        .on(|service, call: ScheduleRun| async move { schedules::run_now(&service.automation, &call) })
        .on(|service, call: ScheduleRemove| async move {
            schedules::remove(&service.automation, &call).await
        })
        .on(|service, call: SchedulePause| async move { schedules::pause(&service.automation, &call).await })
        .on_behalf(|service, caller, _: ReportList| async move {
            Ok(figures::list(&service.figures, caller.may_change()))
        })
        .on_behalf(|service, caller, call: ReportGet| async move {
            figures::get(&service.figures, call, caller.may_change()).await
        })
        .on_behalf(|service, caller, _: ScheduleList| async move {
            schedules::list(&service.automation, caller.may_change())
        })
        .on(|service, call: FileList| async move { files::list(&service.serving, &call).await })
        .on_job(|service, call: FileRestore, work| async move {
            files::restore(&service.serving, &call, &work).await
        })
        .on(|service, _: DiskList| async move { disks::disk_list(&service.serving, service.disks.drives.sysfs(), &service.looks).await })
        .on(|service, _: DiskOverview| async move { Ok(disks::overview(&service.disks).await) })
        .on_behalf(|service, caller, call: DiskShow| async move {
            disks::show(&service.disks, &call, caller.may_change()).await
        })
        .on(|service, call: DiskLocate| async move { disks::locate(&service.disks, call).await })
        .on(|service, call: DiskTest| async move { disks::test(&service.disks, call).await })
        .on(|service, call: DiskLightsTest| async move {
            disks::lights_test(&service.disks, call).await
        })
        .on(|service, _: ShareList| async move { Ok(service.serving.share_list().await) })
        .on(|service, call: SmbUserAdd| async move { service.serving.smb_user_add(call).await })
        .on(|service, call: SmbUserPassword| async move { service.serving.smb_user_password(call).await })
        .on(|service, call: SmbUserList| async move { service.serving.smb_user_list(&call).await })
        .on(|service, call: SmbUserRemove| async move { service.serving.smb_user_remove(call).await })
        .on(|service, _: ZfsMountList| async move { Ok(service.serving.zfs_mounts()) })
        .on(|service, call: UserList| async move { service.web.user_list(&call) })
        .on(|service, call: UserAdd| async move { service.web.user_add(call).await })
        .on(|service, call: UserChange| async move { service.web.user_change(call).await })
        .on(|service, call: UserRemove| async move { service.web.user_remove(&call) })
        .on(|service, call: ApiKeyList| async move { service.web.api_key_list(&call) })
        .on_behalf(|service, caller, call: ApiKeyMake| async move {
            service.web.api_key_make(&caller, &call)
        })
        .on(|service, call: ApiKeyRemove| async move { service.web.api_key_remove(&call) })
        .on(|service, call: AuditList| async move { service.web.audit_list(&call).await })
        .on(|service, _: ConsoleLink| async move { Ok(service.web.link()) })
        .with_events()
        .with_downloads()
        .with_description()
        .with_metrics()
        .router
}

fn no_such_request() -> Failure {
    let message = "there is no such request; is the command of another version than the daemon?";
    Failure::new(FailureKind::Unsupported, message)
}

/// A connection that is a stream.
pub(crate) type Connection = TokioIo<Upgraded>;

struct Routes {
    service: Arc<Service>,
    router: Router,
}

impl Routes {
    /// Requests of which everybody who may make them gets the same answer.
    fn on<C, F, Fut>(self, handler: F) -> Self
    where
        C: Call,
        F: Fn(Arc<Service>, C) -> Fut + Clone + Send + Sync + 'static,
        Fut: Future<Output = Result<C::Reply, Failure>> + Send + 'static,
    {
        self.on_behalf(move |service, _, call| handler(service, call))
    }

    /// Requests of which the answer depends on who asks.
    fn on_behalf<C, F, Fut>(self, handler: F) -> Self
    where
        C: Call,
        F: Fn(Arc<Service>, Caller, C) -> Fut + Clone + Send + Sync + 'static,
        Fut: Future<Output = Result<C::Reply, Failure>> + Send + 'static,
    {
        let service = Arc::clone(&self.service);
        let answer = move |ConnectInfo(caller): ConnectInfo<Caller>, body: Body| async move {
            let (call, record): (C, _) = match admit(&service, &caller, body).await {
                Ok(admitted) => admitted,
                Err(failure) => return refuse(failure),
            };
            let place = caller.place().await;
            let work = async move {
                let asks = caller.ids().map(|(uid, _)| uid);
                let outcome = work_for(asks, handler(service, caller, call)).await;
                drop(place);
                record.write(outcome.as_ref().err()).await;
                outcome
            };
            answer_with(tokio::spawn(work).await)
        };
        Self {
            router: self.router.route(C::PATH, post(answer)),
            service: self.service,
        }
    }

    /// Requests that are jobs while they are worked at ([`Call::JOB`]).
    fn on_job<C, F, Fut>(self, handler: F) -> Self
    where
        C: Call,
        F: Fn(Arc<Service>, C, Arc<Work>) -> Fut + Clone + Send + Sync + 'static,
        Fut: Future<Output = Result<C::Reply, Failure>> + Send + 'static,
    {
        let kind = C::JOB.expect("a call that is a job");
        let service = Arc::clone(&self.service);
        let answer = move |ConnectInfo(caller): ConnectInfo<Caller>,
                           headers: HeaderMap,
                           body: Body| async move {
            let (call, record): (C, _) = match admit(&service, &caller, body).await {
                Ok(admitted) => admitted,
                Err(failure) => return refuse(failure),
            };
            let can_cancel = matches!(
                kind,
                JobKind::Destroy | JobKind::Redact | JobKind::Rewrite | JobKind::Restore
            );
            let work = service
                .serving
                .jobs
                .begin(kind, call.pool(), None, can_cancel);
            let work = Arc::new(work);
            let id = work.id();
            let uid = caller.ids().map(|(uid, _)| uid);
            work.asked_by(uid);
            let jobs = Arc::clone(&service.serving.jobs);
            let mut working = tokio::spawn(async move {
                let working = handler(service, call, Arc::clone(&work));
                let outcome = work_for(uid, working).await;
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
        Self {
            router: self.router.route(C::PATH, post(answer)),
            service: self.service,
        }
    }

    /// Requests whose connection becomes a stream ([`api::STREAM_PROTOCOL`]). They are jobs.
    fn on_stream<C, F, Fut>(self, handler: F) -> Self
    where
        C: Call,
        F: Fn(Arc<Service>, C, Connection, Arc<Work>) -> Fut + Clone + Send + Sync + 'static,
        Fut: Future<Output = Result<C::Reply, Failure>> + Send + 'static,
    {
        let kind = C::JOB.expect("a call that is a job");
        let service = Arc::clone(&self.service);
        let answer = move |info: ConnectInfo<Caller>, mut request: Request| async move {
            let ConnectInfo(caller) = info;
            let switched = hyper::upgrade::on(&mut request);
            let wants = request.headers().get(UPGRADE);
            let is_switch = wants.is_some_and(|wants| wants == STREAM_PROTOCOL);
            let body = request.into_body();
            let (call, record): (C, _) = match admit(&service, &caller, body).await {
                Ok(admitted) => admitted,
                Err(failure) => return refuse(failure),
            };
            if !is_switch {
                let message = format!("the request must switch to '{STREAM_PROTOCOL}'");
                return refuse(Failure::new(FailureKind::Invalid, message));
            }
            let place = caller.place().await;
            let work = service.serving.jobs.begin(kind, call.pool(), None, true);
            let work = Arc::new(work);
            let id = work.id();
            let uid = caller.ids().map(|(uid, _)| uid);
            work.asked_by(uid);
            tokio::spawn(async move {
                let _place = place;
                let outcome = match switched.await {
                    Ok(connection) => {
                        let connection = TokioIo::new(connection);
                        let working = handler(service, call, connection, Arc::clone(&work));
                        work_for(uid, working).await
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
            service: self.service,
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
            service: self.service,
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
            service: self.service,
        }
    }

    /// The description of all this.
    fn with_description(self) -> Self {
        let description = LazyLock::new(|| Json(api::openapi(env!("CARGO_PKG_VERSION"))));
        let description = Arc::new(description);
        let answer = move || async move { (*description).clone() };
        Self {
            router: self.router.route(OPENAPI_PATH, get(answer)),
            service: self.service,
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
}

impl Record {
    fn write(self, failure: Option<&Failure>) -> impl Future<Output = ()> + use<> {
        let kind = failure.map(|failure| failure.kind);
        async move {
            if let Some(mut entry) = self.entry {
                entry.time_s = web::now_s();
                entry.failure = kind;
                self.audit.record(entry).await;
            }
        }
    }
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
        };
        record.write(Some(&failure)).await;
        return Err(failure);
    }
    let call: C = understand(body, caller.request_bytes_max()).await?;
    let record = Record {
        entry: call.changes().then(|| caller.entry(C::PATH, about(&call))),
        audit: Arc::clone(&service.web.audit),
    };
    match permit(service, caller, call).await {
        Ok(call) => Ok((call, record)),
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
    let Err(denied) = caller.check(&call) else {
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
