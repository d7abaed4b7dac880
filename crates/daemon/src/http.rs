//! The API's server: HTTP on a Unix socket, one `POST` a request.
//!
//! The socket's directory decides who may connect; the socket itself is for its owner only. A
//! request runs as a task of its own: a client that goes away does not stop half-way what it asked for.

use std::future::Future;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use api::{
    Call, Empty, Failure, FailureKind, IscsiSecretList, IscsiSecretRemove, IscsiSecretSet,
    ServerInfo, ServerStop, ZfsCreate, ZfsDestroy, ZfsHolds, ZfsInherit, ZfsKeys, ZfsList,
    ZfsLoadKey, ZfsMount, ZfsMountList, ZfsProject, ZfsRename, ZfsRollback, ZfsSet, ZfsSnapshot,
    ZfsSpace, ZfsUnloadKey, ZfsUnmount, ZpoolAdd, ZpoolCheckpoint, ZpoolClear, ZpoolCreate,
    ZpoolDestroy, ZpoolExport, ZpoolHistory, ZpoolImport, ZpoolLabelClear, ZpoolList, ZpoolReguid,
    ZpoolRemove, ZpoolScrub, ZpoolSet, ZpoolStatus, ZpoolSync, ZpoolUpgrade, ZpoolWait,
};
use axum::extract::DefaultBodyLimit;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Json, Router};
use tokio::net::UnixListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::DaemonError;
use crate::service::Service;

/// Largest request in bytes: a command line cannot be longer.
const REQUEST_BYTES_MAX: usize = 4 << 20;

/// How long a stopping server may take to send its last answers.
const LAST_ANSWERS: Duration = Duration::from_secs(1);

/// The running server.
pub(crate) struct Listening {
    task: JoinHandle<()>,
    stop: oneshot::Sender<()>,
    path: PathBuf,
}

impl Listening {
    /// Takes no more requests, and sends the answers that are due (to `millpond down`, for one).
    pub(crate) async fn stop(self) {
        let _ = std::fs::remove_file(&self.path);
        let _ = self.stop.send(());
        if tokio::time::timeout(LAST_ANSWERS, self.task).await.is_err() {
            tracing::debug!("requests are left that were not answered");
        }
    }
}

/// Starts to serve the API.
pub(crate) async fn listen(service: Arc<Service>) -> Result<Listening, DaemonError> {
    let path = service.state().directory().join("millpond.sock");
    // The lock on the state directory says that whoever left this socket is gone.
    let _ = std::fs::remove_file(&path);
    let failed = |source| DaemonError::Socket {
        path: path.clone(),
        source,
    };
    let listener = UnixListener::bind(&path).map_err(failed)?;
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).map_err(failed)?;
    let router = router(service);
    let (stop, stopped) = oneshot::channel();
    let task = tokio::spawn(async move {
        let serving = axum::serve(listener, router).with_graceful_shutdown(async {
            // An error means that the daemon is leaving without a word.
            let _ = stopped.await;
        });
        if let Err(error) = serving.await {
            tracing::error!("the API's socket failed: {error}");
        }
    });
    Ok(Listening { task, stop, path })
}

fn router(service: Arc<Service>) -> Router {
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
        .on(|service, call: ZpoolCreate| async move { service.zpool_create(call).await })
        .on(|service, call: ZpoolAdd| async move { service.zpool_add(call).await })
        .on(|service, call: ZpoolRemove| async move { service.zpool_remove(call).await })
        .on(|service, call: ZpoolReguid| async move { service.zpool_reguid(call).await })
        .on(|service, call: ZpoolLabelClear| async move { service.zpool_labelclear(&call).await })
        .on(|service, call: ZpoolUpgrade| async move { service.zpool_upgrade(&call).await })
        .on(|service, call: ZpoolDestroy| async move { service.zpool_destroy(call).await })
        .on(|service, call: ZpoolImport| async move { service.zpool_import(call).await })
        .on(|service, call: ZpoolExport| async move { service.zpool_export(call).await })
        .on(|service, call: ZpoolList| async move { service.zpool_list(&call).await })
        .on(|service, call: ZpoolStatus| async move { service.zpool_status(&call).await })
        .on(|service, call: ZpoolSet| async move { service.zpool_set(call).await })
        .on(|service, call: ZpoolHistory| async move { service.zpool_history(&call).await })
        .on(|service, call: ZpoolSync| async move { service.zpool_sync(&call).await })
        .on(|service, call: ZpoolClear| async move { service.zpool_clear(&call).await })
        .on(|service, call: ZpoolScrub| async move { service.zpool_scrub(&call).await })
        .on(|service, call: ZpoolCheckpoint| async move { service.zpool_checkpoint(&call).await })
        .on(|service, call: ZpoolWait| async move { service.zpool_wait(&call).await })
        .on(|service, call: ZfsList| async move { service.zfs_list(&call).await })
        .on(|service, call: ZfsCreate| async move { service.zfs_create(call).await })
        .on(|service, call: ZfsDestroy| async move { service.zfs_destroy(call).await })
        .on(|service, call: ZfsSet| async move { service.zfs_set(call).await })
        .on(|service, call: ZfsInherit| async move { service.zfs_inherit(call).await })
        .on(|service, call: ZfsSnapshot| async move { service.zfs_snapshot(call).await })
        .on(|service, call: ZfsRollback| async move { service.zfs_rollback(call).await })
        .on(|service, call: ZfsRename| async move { service.zfs_rename(call).await })
        .on(|service, call: ZfsMount| async move { service.zfs_mount(call).await })
        .on(|service, call: ZfsUnmount| async move { service.zfs_unmount(call).await })
        .on(|service, call: ZfsSpace| async move { service.zfs_space(&call).await })
        .on(|service, call: ZfsProject| async move { service.zfs_project(call).await })
        .on(|service, call: ZfsHolds| async move { service.zfs_holds(&call).await })
        .on(|service, call: ZfsKeys| async move { service.zfs_keys(&call).await })
        .on(|service, call: ZfsLoadKey| async move { service.zfs_load_key(call).await })
        .on(|service, call: ZfsUnloadKey| async move { service.zfs_unload_key(call).await })
        .on(|service, call: IscsiSecretSet| async move { service.iscsi_secret_set(call).await })
        .on(|service, call: IscsiSecretList| async move { service.iscsi_secret_list(&call) })
        .on(|service, call: IscsiSecretRemove| async move {
            service.iscsi_secret_remove(call).await
        })
        .on(|service, _: ZfsMountList| async move { Ok(service.zfs_mounts()) })
        .router
        .layer(DefaultBodyLimit::max(REQUEST_BYTES_MAX))
}

struct Routes {
    service: Arc<Service>,
    router: Router,
}

impl Routes {
    fn on<C, F, Fut>(self, handler: F) -> Self
    where
        C: Call,
        F: Fn(Arc<Service>, C) -> Fut + Clone + Send + Sync + 'static,
        Fut: Future<Output = Result<C::Reply, Failure>> + Send + 'static,
    {
        let service = Arc::clone(&self.service);
        let answer = move |body: axum::body::Bytes| async move {
            let call: C = match serde_json::from_slice(&body) {
                Ok(call) => call,
                Err(error) => {
                    let message = format!(
                        "the request was not understood ({error}); is the command of another version than the daemon?"
                    );
                    return refuse(Failure::new(FailureKind::Invalid, message));
                }
            };
            match tokio::spawn(handler(service, call)).await {
                Ok(Ok(reply)) => Json(reply).into_response(),
                Ok(Err(failure)) => refuse(failure),
                Err(error) => refuse(Failure::new(
                    FailureKind::Other,
                    format!("the daemon failed at this request: {error}; see its log"),
                )),
            }
        };
        Self {
            router: self.router.route(C::PATH, post(answer)),
            service: self.service,
        }
    }
}

fn refuse(failure: Failure) -> Response {
    let status = StatusCode::from_u16(failure.kind.http_status())
        .unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    (status, Json(failure)).into_response()
}
