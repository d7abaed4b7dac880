//! The TCP layer: one listener, one task for each connection (see `connection`).

mod connection;
mod places;

use crate::{ServerError, TargetSet};
pub(crate) use connection::Joining;
use connection::serve;
use places::Places;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpSocket};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// The iSCSI port (RFC 7143 section 4.2.7.1).
pub const ISCSI_PORT: u16 = 3260;
/// Connections that wait to be accepted.
const BACKLOG: u32 = 256;
/// How long a shutdown waits for requests in flight.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(30);
/// Pause after an accept that failed (the process is out of file descriptors, usually).
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

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
        let listener = listen(address).map_err(|source| bind_error(address, source))?;
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

fn listen(address: SocketAddr) -> std::io::Result<TcpListener> {
    let socket = match address {
        SocketAddr::V4(_) => TcpSocket::new_v4(),
        SocketAddr::V6(_) => TcpSocket::new_v6(),
    }?;
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
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

async fn accept(listener: TcpListener, targets: Arc<TargetSet>, mut stopped: watch::Receiver<()>) {
    let places = Arc::new(Places::default());
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            // The sender never sends; an error says that it is gone.
            _ = stopped.changed() => return,
        };
        let (socket, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "cannot accept an iSCSI connection");
                tokio::time::sleep(ACCEPT_RETRY).await;
                continue;
            }
        };
        let place = match places.take(peer.ip()) {
            Ok(place) => place,
            Err(full) => {
                tracing::warn!(%peer, "refused an iSCSI connection: {full}");
                continue;
            }
        };
        let targets = targets.clone();
        let stopped = stopped.clone();
        tokio::spawn(async move {
            match serve(socket, peer, place, targets, stopped).await {
                Ok(()) => tracing::debug!(%peer, "iSCSI connection ended"),
                Err(error) => tracing::warn!(%peer, %error, "iSCSI connection failed"),
            }
        });
    }
}
