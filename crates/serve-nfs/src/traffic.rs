//! What clients do, counted where it is done.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use access::{Traffic, TrafficCounts, TrafficKind};
use parking_lot::{Mutex, RwLock};

/// Clients of a share that are remembered; the counts of others go to the share alone.
const CLIENTS_MAX: usize = 1024;
/// Who has not asked for anything for so long is forgotten when there are too many.
const IDLE: Duration = Duration::from_secs(3600);

/// A client of a share.
#[derive(Debug)]
struct Client {
    traffic: Traffic,
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
    pub counts: TrafficCounts,
    /// Time since its last request.
    pub idle: Duration,
}

/// Counts of a share and of its clients.
#[derive(Debug, Default)]
pub(crate) struct ShareTraffic {
    all: Traffic,
    clients: RwLock<BTreeMap<IpAddr, Arc<Client>>>,
}

/// What one request turns out to be.
#[derive(Debug, Clone, Copy)]
enum Ending {
    Moved(TrafficKind, u64),
    Failed,
}

/// One request, which is counted when this is dropped: as one that moved no content, unless it is
/// told otherwise.
pub(crate) struct Counted {
    traffic: Arc<ShareTraffic>,
    client: Option<Arc<Client>>,
    since: Instant,
    ending: Mutex<Ending>,
}

impl ShareTraffic {
    /// A request of a client.
    pub(crate) fn request(self: &Arc<Self>, address: IpAddr) -> Counted {
        let known = self.clients.read().get(&address).cloned();
        let client = known.or_else(|| self.meet(address));
        let since = Instant::now();
        if let Some(client) = &client {
            *client.last.lock() = since;
        }
        Counted {
            traffic: Arc::clone(self),
            client,
            since,
            ending: Mutex::new(Ending::Moved(TrafficKind::Other, 0)),
        }
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
                traffic: Traffic::default(),
                last: Mutex::new(Instant::now()),
            })
        });
        Some(Arc::clone(client))
    }

    pub(crate) fn all(&self) -> TrafficCounts {
        self.all.counts()
    }

    pub(crate) fn clients(&self, is_connected: impl Fn(&IpAddr) -> bool) -> Vec<ClientReport> {
        let clients = self.clients.read();
        let report = |(address, client): (&IpAddr, &Arc<Client>)| ClientReport {
            address: *address,
            is_connected: is_connected(address),
            counts: client.traffic.counts(),
            idle: client.last.lock().elapsed(),
        };
        clients.iter().map(report).collect()
    }
}

impl Counted {
    /// Content was read.
    pub(crate) fn read(&self, bytes: u64) {
        *self.ending.lock() = Ending::Moved(TrafficKind::Read, bytes);
    }

    /// Content was written.
    pub(crate) fn written(&self, bytes: u64) {
        *self.ending.lock() = Ending::Moved(TrafficKind::Write, bytes);
    }

    /// The server could not do what was asked for.
    pub(crate) fn failed(&self) {
        *self.ending.lock() = Ending::Failed;
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        let (ending, time) = (*self.ending.get_mut(), self.since.elapsed());
        let of_client = self.client.iter().map(|client| &client.traffic);
        for traffic in of_client.chain([&self.traffic.all]) {
            match ending {
                Ending::Moved(kind, bytes) => traffic.count(kind, bytes, time),
                Ending::Failed => traffic.count_failure(),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_count_what_their_clients_do() {
        let traffic = Arc::new(ShareTraffic::default());
        let one: IpAddr = "10.0.0.1".parse().unwrap();
        traffic.request(one).read(100);
        traffic.request(one).written(7);
        traffic.request(one).failed();
        drop(traffic.request(one));
        for n in 0..2 * CLIENTS_MAX as u32 {
            traffic.request(IpAddr::V4(n.into()));
        }
        let clients = traffic.clients(|address| *address == one);
        assert_eq!(clients.len(), CLIENTS_MAX);
        let found = clients.iter().find(|client| client.is_connected).unwrap();
        let counts = found.counts;
        assert_eq!((counts.reads, counts.read_bytes), (1, 100));
        assert_eq!((counts.writes, counts.written_bytes), (1, 7));
        assert_eq!((counts.others, counts.failures), (1, 1));
        assert!(counts.read_time > Duration::ZERO && counts.write_time > Duration::ZERO);
        let all = traffic.all();
        assert_eq!((all.reads, all.writes, all.failures), (1, 1, 1));
        assert_eq!(all.others, 1 + 2 * CLIENTS_MAX as u64);
    }
}
