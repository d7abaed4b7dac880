//! The TCP layer: one listener, one task for each connection (see `connection`), and one that waits
//! for clients that are slow to take answers (see `sending`); and what comes by UDP (see
//! `datagrams`).
//!
//! # Memory
//!
//! What is under way has a budget: requests from when they are read until they are done, answers
//! from before they are made until their last byte is sent, by what they hold in memory or a small
//! multiple of it: a part of a block that is small against it is copied. Each half is by itself.
//! All connections of one address have a quarter of it at most, so that whoever sends slowly, or
//! takes no answers, holds up nobody but those of its own address; and it loses its connection for
//! that before long.

mod connection;
mod datagrams;
mod paid;
mod restart;
mod sending;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, UdpSocket};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinHandle;

use crate::error::ServerError;
use crate::service::Service;
use connection::{Connection, RECORD_BYTES_MAX, REQUEST_BYTES, serve};
use net::{PlaceLimits, Places};

/// The port of a portmapper (RFC 1833 section 3.2).
pub const PORTMAPPER_PORT: u16 = 111;
/// The port of NFS (RFC 1813 section 2.1).
pub const NFS_PORT: u16 = 2049;
/// Nobody logs in. A client has as many connections as its mounts ask for (`nconnect`).
const LIMITS: PlaceLimits = PlaceLimits {
    connections: 4096,
    strangers: 4096,
    strangers_of_address: 256,
};
/// How long a shutdown waits for requests in flight.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(30);
/// Least memory that the server works with, in bytes.
const MEMORY_BYTES_MIN: u64 = 16 << 20;
/// Most that its counters can tell.
const MEMORY_BYTES_MAX: u64 = 1 << 30;

/// Most memory of one address, in bytes, of either half.
const ADDRESS_BYTES_MAX: usize = 16 << 20;

/// Memory for what is under way, in bytes: see the head of the module.
#[derive(Debug, Clone)]
pub(crate) struct Budget {
    requests: Arc<Semaphore>,
    answers: Arc<Semaphore>,
    half_bytes: u32,
}

impl Budget {
    fn new(memory_bytes: u64) -> Self {
        let half_bytes = memory_bytes.clamp(MEMORY_BYTES_MIN, MEMORY_BYTES_MAX) / 2;
        // No more than half a GiB.
        Self::of_halves(half_bytes as usize)
    }

    fn of_halves(half_bytes: usize) -> Self {
        Self {
            requests: Arc::new(Semaphore::new(half_bytes)),
            answers: Arc::new(Semaphore::new(half_bytes)),
            half_bytes: half_bytes as u32,
        }
    }

    /// Bytes that are taken, and bytes that there are.
    fn bytes(&self) -> (u64, u64) {
        let half_bytes = u64::from(self.half_bytes);
        let taken = |half: &Semaphore| half_bytes.saturating_sub(half.available_permits() as u64);
        let taken_bytes = taken(&self.requests) + taken(&self.answers);
        (taken_bytes, 2 * half_bytes)
    }

    /// What one address may have of it: more than the biggest request.
    fn of_address(&self) -> Self {
        const REQUEST_BYTES_MAX: usize = RECORD_BYTES_MAX + REQUEST_BYTES as usize;
        const { assert!(MEMORY_BYTES_MIN as usize / 8 > REQUEST_BYTES_MAX) };
        Self::of_halves((self.half_bytes as usize / 4).min(ADDRESS_BYTES_MAX))
    }
}

/// A listening server. Dropping it stops it at once; [`shutdown`](Self::shutdown) does so in good
/// order.
pub struct Server {
    local_address: SocketAddr,
    service: Arc<Service>,
    budget: Arc<Budget>,
    /// Dropped to stop listening and to end connections.
    stop: watch::Sender<()>,
    listeners: Vec<JoinHandle<()>>,
}

impl Server {
    /// Listens on `address` (an IPv6 one takes IPv4 as well, where the system does so) and serves,
    /// with `memory_bytes` for what is under way.
    ///
    /// # Errors
    /// [`ServerError`].
    pub async fn bind(
        address: SocketAddr,
        service: Arc<Service>,
        memory_bytes: u64,
    ) -> Result<Server, ServerError> {
        let failed = |source| ServerError::bind(address, source);
        let listener = net::listen(address).map_err(failed)?;
        let local_address = listener.local_addr().map_err(failed)?;
        let (stop, _) = watch::channel(());
        let mut server = Server {
            local_address,
            service,
            budget: Arc::new(Budget::new(memory_bytes)),
            stop,
            listeners: Vec::new(),
        };
        server.accept_from(listener);
        let by_udp = SocketAddr::new(address.ip(), local_address.port());
        server.hear_datagrams(by_udp).await;
        let locked = server.service.locked_before();
        let telling = restart::tell_all(locked, address.ip(), server.stop.subscribe());
        server.listeners.push(tokio::spawn(telling));
        tracing::info!(%local_address, "NFS server listens");
        Ok(server)
    }

    /// Bytes that clients have under way, and have at most.
    pub fn memory_bytes(&self) -> (u64, u64) {
        self.budget.bytes()
    }

    /// Listens on another address as well, so that clients find the programs there: a portmapper's.
    ///
    /// # Errors
    /// [`ServerError`].
    pub async fn also_bind(&mut self, address: SocketAddr) -> Result<(), ServerError> {
        let listener = net::listen(address).map_err(|source| ServerError::bind(address, source))?;
        self.accept_from(listener);
        self.hear_datagrams(address).await;
        Ok(())
    }

    /// Clients of version 3 that cannot be heard by UDP are served all the same.
    async fn hear_datagrams(&mut self, address: SocketAddr) {
        let socket = match UdpSocket::bind(address).await {
            Ok(socket) => socket,
            Err(error) => {
                tracing::warn!(
                    %address, %error,
                    "NFS clients that crashed are not heard by UDP: what they had locked stays so"
                );
                return;
            }
        };
        let service = Arc::clone(&self.service);
        let port = self.local_address.port();
        let hearing = datagrams::serve(socket, service, port, self.stop.subscribe());
        self.listeners.push(tokio::spawn(hearing));
    }

    fn accept_from(&mut self, listener: TcpListener) {
        let accepting = accept(
            listener,
            Arc::clone(&self.service),
            Arc::clone(&self.budget),
            self.local_address.port(),
            self.stop.subscribe(),
        );
        self.listeners.push(tokio::spawn(accepting));
    }

    /// The address that is listened on (with the real port where 0 was asked for).
    pub fn local_address(&self) -> SocketAddr {
        self.local_address
    }

    /// Stops listening, reads no more requests, and waits until those that there are have been
    /// answered (half a minute at most). Clients ask the next server for the rest.
    pub async fn shutdown(self) {
        drop(self.stop);
        for listener in self.listeners {
            // It ends by itself; it cannot have panicked in a way that matters now.
            let _ = listener.await;
        }
        let all = self.budget.half_bytes;
        let ended = async {
            let requests = self.budget.requests.acquire_many(all).await;
            let answers = self.budget.answers.acquire_many(all).await;
            drop((requests, answers));
        };
        if tokio::time::timeout(SHUTDOWN_TIMEOUT, ended).await.is_err() {
            tracing::warn!("NFS requests still wait for their storage; they are given up");
        }
    }
}

async fn accept(
    listener: TcpListener,
    service: Arc<Service>,
    budget: Arc<Budget>,
    port: u16,
    stopped: watch::Receiver<()>,
) {
    let all = Budget::clone(&budget);
    let places = Arc::new(Places::new(LIMITS, move || all.of_address()));
    let until = stopped.clone();
    net::accept(listener, "NFS", places, stopped, |socket, peer, place| {
        let connection = Connection {
            service: Arc::clone(&service),
            budget: Arc::clone(&budget),
            own: Budget::clone(place.shared()),
            peer,
            port,
            stopped: until.clone(),
        };
        async move {
            match serve(socket, connection).await {
                Ok(()) => tracing::debug!(%peer, "NFS connection ended"),
                Err(error) => tracing::info!(%peer, %error, "NFS connection failed"),
            }
            drop(place);
        }
    })
    .await;
}
