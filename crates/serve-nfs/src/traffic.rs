//! What clients do, counted where it is done.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, RwLock};

/// Clients of a share that are remembered; the counts of others go to the share alone.
const CLIENTS_MAX: usize = 1024;
/// Who has not asked for anything for so long is forgotten when there are too many.
const IDLE: Duration = Duration::from_secs(3600);

/// Counts of operations and bytes.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    operations: AtomicU64,
    reads: AtomicU64,
    read_bytes: AtomicU64,
    writes: AtomicU64,
    written_bytes: AtomicU64,
}

/// Counts at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Requests of any kind.
    pub operations: u64,
    /// Those that read content.
    pub reads: u64,
    /// Bytes that they gave.
    pub read_bytes: u64,
    /// Those that wrote content.
    pub writes: u64,
    /// Bytes that they took.
    pub written_bytes: u64,
}

impl Counters {
    fn now(&self) -> Counts {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Counts {
            operations: of(&self.operations),
            reads: of(&self.reads),
            read_bytes: of(&self.read_bytes),
            writes: of(&self.writes),
            written_bytes: of(&self.written_bytes),
        }
    }
}

/// A client of a share.
#[derive(Debug)]
struct Client {
    counters: Counters,
    last: Mutex<Instant>,
}

/// A client of a share, at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientReport {
    /// Its address.
    pub address: IpAddr,
    /// Whether it has a connection.
    pub is_connected: bool,
    /// What it did since the share began.
    pub counts: Counts,
    /// Time since its last request.
    pub idle: Duration,
}

/// Counts of a share and of its clients.
#[derive(Debug, Default)]
pub(crate) struct Traffic {
    all: Counters,
    clients: RwLock<BTreeMap<IpAddr, Arc<Client>>>,
}

/// Where the counts of one request go.
pub(crate) struct Counted {
    traffic: Arc<Traffic>,
    client: Option<Arc<Client>>,
}

impl Traffic {
    /// A request of a client.
    pub(crate) fn request(self: &Arc<Self>, address: IpAddr) -> Counted {
        let known = self.clients.read().get(&address).cloned();
        let client = known.or_else(|| self.meet(address));
        if let Some(client) = &client {
            *client.last.lock() = Instant::now();
        }
        let counted = Counted {
            traffic: Arc::clone(self),
            client,
        };
        counted.add(|counters| &counters.operations, 1);
        counted
    }

    fn meet(&self, address: IpAddr) -> Option<Arc<Client>> {
        let mut clients = self.clients.write();
        if clients.len() >= CLIENTS_MAX {
            clients.retain(|_, client| client.last.lock().elapsed() < IDLE);
        }
        if clients.len() >= CLIENTS_MAX {
            return None;
        }
        let client = clients.entry(address).or_insert_with(|| {
            Arc::new(Client {
                counters: Counters::default(),
                last: Mutex::new(Instant::now()),
            })
        });
        Some(Arc::clone(client))
    }

    pub(crate) fn all(&self) -> Counts {
        self.all.now()
    }

    pub(crate) fn clients(&self, is_connected: impl Fn(&IpAddr) -> bool) -> Vec<ClientReport> {
        let clients = self.clients.read();
        let report = |(address, client): (&IpAddr, &Arc<Client>)| ClientReport {
            address: *address,
            is_connected: is_connected(address),
            counts: client.counters.now(),
            idle: client.last.lock().elapsed(),
        };
        clients.iter().map(report).collect()
    }
}

impl Counted {
    fn add(&self, counter: impl Fn(&Counters) -> &AtomicU64, count: u64) {
        counter(&self.traffic.all).fetch_add(count, Ordering::Relaxed);
        if let Some(client) = &self.client {
            counter(&client.counters).fetch_add(count, Ordering::Relaxed);
        }
    }

    /// Content was read.
    pub(crate) fn read(&self, bytes: u64) {
        self.add(|counters| &counters.reads, 1);
        self.add(|counters| &counters.read_bytes, bytes);
    }

    /// Content was written.
    pub(crate) fn written(&self, bytes: u64) {
        self.add(|counters| &counters.writes, 1);
        self.add(|counters| &counters.written_bytes, bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_count_what_their_clients_do() {
        let traffic = Arc::new(Traffic::default());
        let one: IpAddr = "10.0.0.1".parse().unwrap();
        traffic.request(one).read(100);
        traffic.request(one).written(7);
        for n in 0..2 * CLIENTS_MAX as u32 {
            traffic.request(IpAddr::V4(n.into()));
        }
        let clients = traffic.clients(|address| *address == one);
        assert_eq!(clients.len(), CLIENTS_MAX);
        let found = clients.iter().find(|client| client.is_connected).unwrap();
        let expected = Counts {
            operations: 2,
            reads: 1,
            read_bytes: 100,
            writes: 1,
            written_bytes: 7,
        };
        assert_eq!(found.counts, expected);
        assert_eq!(traffic.all().operations, 2 + 2 * CLIENTS_MAX as u64);
    }
}
