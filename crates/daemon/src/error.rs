//! Why the daemon cannot run.

use std::io;
use std::path::PathBuf;

use api::Failure;
use host::StateError;
use web::ListenError;

/// Why the daemon could not start or had to stop.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DaemonError {
    /// The state directory cannot be had.
    #[error(transparent)]
    State(#[from] StateError),
    /// The API's socket cannot be made.
    #[error("the socket {path} cannot be made: {source}; check the directory's permissions and \
         that its path is shorter than 90 characters", path = path.display())]
    Socket {
        /// The socket.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// iSCSI cannot listen.
    #[error("iSCSI {source}; or choose another address with --iscsi ADDRESS:PORT")]
    Iscsi {
        /// Why.
        source: serve_iscsi::ServerError,
    },
    /// NFS cannot listen.
    #[error("{source}")]
    Nfs {
        /// Why.
        source: serve_nfs::ServerError,
    },
    /// The API and the console cannot be offered over the network.
    #[error(transparent)]
    Web(#[from] ListenError),
    /// Threads could not be started.
    #[error(
        "the runtime could not be started: {source}; check the limits on threads and open files"
    )]
    Runtime {
        /// The system's answer.
        source: io::Error,
    },
    /// The default pool could not be made or imported.
    #[error("{what}: {source}")]
    DefaultPool {
        /// What was being done.
        what: String,
        /// Why it failed.
        source: Failure,
    },
}
