//! The TCP layer: one listener, one task for each connection (see `connection`).

mod connection;

use crate::{ServerError, TargetSet};
pub(crate) use connection::Joining;
use connection::serve;
use net::{PlaceLimits, Places};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// The iSCSI port (RFC 7143 section 4.2.7.1).
pub const ISCSI_PORT: u16 = 3260;
/// A connection is a stranger until it has logged in to a target: in its login, or a discovery
/// session.
const LIMITS: PlaceLimits = PlaceLimits {
    connections: 4096,
    strangers: 512,
    strangers_of_address: 64,
};
/// How long a shutdown waits for requests in flight.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(30);

/// A listening iSCSI server. Dropping it stops it at once; [`shutdown`](Self::shutdown) does so
/// in good order.
#[derive(Debug)]
pub struct Server {
    local_address: SocketAddr,
    targets: Arc<TargetSet>,
    /// Dropped to stop listening and to end what has not logged in.
    stop: watch::Sender<()>,
    listener: JoinHandle<()>,
}

impl Server {
    /// Listens on `address` (an IPv6 one takes IPv4 as well, where the system does so) and
    /// serves `targets`, of which it is one of the portals: several servers may have the same ones.
    pub async fn bind(address: SocketAddr, targets: Arc<TargetSet>) -> Result<Server, ServerError> {
        let listener = net::listen(address).map_err(|source| bind_error(address, source))?;
        let local_address = listener
            .local_addr()
            .map_err(|source| bind_error(address, source))?;
        let (stop, stopped) = watch::channel(());
        targets.add_portal(local_address);
        let listener = tokio::spawn(accept(listener, targets.clone(), stopped));
        tracing::info!(%local_address, "iSCSI server listens");
        Ok(Server {
            local_address,
            targets,
            stop,
            listener,
        })
    }

    /// The address that is listened on (with the real port where 0 was asked for).
    pub fn local_address(&self) -> SocketAddr {
        self.local_address
    }

    /// Stops listening at this address; sessions that came in by it go on.
    pub async fn stop_listening(self) {
        self.targets.remove_portal(self.local_address);
        drop(self.stop);
        // It ends by itself; it cannot have panicked in a way that matters now.
        let _ = self.listener.await;
    }

    /// Stops listening, asks all sessions (of all servers of its targets) to log out, closes after
    /// a few seconds those that do not, waits for their requests in flight (half a minute at most).
    pub async fn shutdown(self) {
        let targets = self.targets.clone();
        self.stop_listening().await;
        let ended = targets.end_all_sessions();
        if tokio::time::timeout(SHUTDOWN_TIMEOUT, ended).await.is_err() {
            tracing::warn!("iSCSI requests still wait for their storage; they are given up");
        }
    }
}

fn bind_error(address: SocketAddr, source: std::io::Error) -> ServerError {
    use std::io::ErrorKind;
    match source.kind() {
        ErrorKind::AddrInUse => ServerError::AddressInUse { address },
        ErrorKind::PermissionDenied => ServerError::NotAllowed { address },
        ErrorKind::AddrNotAvailable => ServerError::NoSuchAddress { address },
        _ => ServerError::Bind { address, source },
    }
}

async fn accept(listener: TcpListener, targets: Arc<TargetSet>, stopped: watch::Receiver<()>) {
    let places = Arc::new(Places::new(LIMITS, || ()));
    let until = stopped.clone();
    net::accept(listener, "iSCSI", places, stopped, |socket, peer, place| {
        let (targets, until) = (targets.clone(), until.clone());
        async move {
            match serve(socket, peer, place, targets, until).await {
                Ok(()) => tracing::debug!(%peer, "iSCSI connection ended"),
                Err(error) => tracing::warn!(%peer, %error, "iSCSI connection failed"),
            }
        }
    })
    .await;
}
