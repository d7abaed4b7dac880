//! Listening and accepting.

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::watch;

use crate::{Place, Places};

/// Connections that wait to be accepted.
const BACKLOG: u32 = 256;
/// Pause after an accept that failed (the process is out of file descriptors, usually).
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// Listens on an address. An IPv6 one takes IPv4 as well, where the system does so. An address that
/// a server before had is free at once, also while its connections are still being closed.
///
/// # Errors
/// Of the system: the address is taken, is not one of this machine, or its port is for root.
pub fn listen(address: SocketAddr) -> std::io::Result<TcpListener> {
    let socket = match address {
        SocketAddr::V4(_) => TcpSocket::new_v4(),
        SocketAddr::V6(_) => TcpSocket::new_v6(),
    }?;
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Accepts connections until the sender of `stopped` is dropped, and spawns what `serve` makes of
/// each. Those that find no place are closed at once. `protocol` names the server in the log.
pub async fn accept<T, F>(
    listener: TcpListener,
    protocol: &'static str,
    places: Arc<Places<T>>,
    mut stopped: watch::Receiver<()>,
    serve: impl Fn(TcpStream, SocketAddr, Place<T>) -> F,
) where
    T: Clone,
    F: Future<Output = ()> + Send + 'static,
{
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            // The sender never sends; an error says that it is gone.
            _ = stopped.changed() => return,
        };
        match accepted {
            Ok((socket, peer)) => match places.take(peer.ip()) {
                Ok(place) => {
                    tokio::spawn(serve(socket, peer, place));
                }
                Err(full) => tracing::warn!(%peer, "refused a connection by {protocol}: {full}"),
            },
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection by {protocol}");
                tokio::time::sleep(ACCEPT_RETRY).await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PlaceLimits;
    use tokio::io::AsyncReadExt;

    /// Goal: a connection without a place is closed, one with a place is served, and no more come
    /// in once the server stops.
    #[tokio::test]
    async fn connections_are_accepted_while_there_are_places() {
        let listener = listen("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = listener.local_addr().unwrap();
        let limits = PlaceLimits {
            connections: 1,
            strangers: 1,
            strangers_of_address: 1,
        };
        let places = Arc::new(Places::new(limits, || ()));
        let (stop, stopped) = watch::channel(());
        let (served, mut comes) = tokio::sync::mpsc::unbounded_channel();
        let accepting = accept(
            listener,
            "test",
            places,
            stopped,
            move |socket, _, place| {
                let served = served.clone();
                async move { served.send((socket, place)).unwrap() }
            },
        );
        let accepting = tokio::spawn(accepting);
        let mut first = TcpStream::connect(address).await.unwrap();
        let held = comes.recv().await.unwrap();
        let mut second = TcpStream::connect(address).await.unwrap();
        assert_eq!(second.read(&mut [0]).await.unwrap(), 0, "no place is left");
        drop(held);
        assert_eq!(first.read(&mut [0]).await.unwrap(), 0);
        let _third = TcpStream::connect(address).await.unwrap();
        let _held = comes.recv().await.unwrap();
        drop(stop);
        accepting.await.unwrap();
    }
}
