//! What sessions have done to units, for reports.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use access::{Traffic, TrafficCounts};
use parking_lot::Mutex;

/// Initiators of a unit that are remembered when their sessions have ended; others count for the
/// unit alone.
const INITIATORS_MAX: usize = 1024;

/// What one session has done to a unit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientTraffic {
    /// The initiator's name.
    pub initiator: String,
    /// Where it comes from; the first connection's address where there are several.
    pub peer: SocketAddr,
    /// Target session identifying handle.
    pub tsih: u16,
    /// Its counters since it logged in.
    pub counts: TrafficCounts,
}

/// What has been done to a unit since it is shared.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnitTraffic {
    /// Its target.
    pub iqn: String,
    /// Its number.
    pub lun: u16,
    /// By all sessions, those that have ended included.
    pub total: TrafficCounts,
    /// By each session that there is.
    pub clients: Vec<ClientTraffic>,
    /// By initiators' names, in sessions that have ended.
    pub ended: BTreeMap<String, TrafficCounts>,
}

impl UnitTraffic {
    /// One of which sessions that have ended have done this.
    pub(crate) fn new(iqn: String, lun: u16, ended: &Ended) -> Self {
        let ended = ended.0.lock();
        Self {
            iqn,
            lun,
            total: ended.all,
            clients: Vec::new(),
            ended: ended.by_initiator.clone(),
        }
    }

    pub(crate) fn add(&mut self, client: ClientTraffic) {
        self.total.add(&client.counts);
        self.clients.push(client);
    }
}

/// What sessions that have ended have done.
#[derive(Debug, Default)]
pub(crate) struct Ended(Mutex<EndedCounts>);

#[derive(Debug, Default)]
struct EndedCounts {
    all: TrafficCounts,
    by_initiator: BTreeMap<String, TrafficCounts>,
}

impl Ended {
    pub(crate) fn add(&self, initiator: &str, counts: &TrafficCounts) {
        let mut ended = self.0.lock();
        ended.all.add(counts);
        let is_full = ended.by_initiator.len() >= INITIATORS_MAX;
        match ended.by_initiator.get_mut(initiator) {
            Some(own) => own.add(counts),
            None if is_full => {}
            None => {
                ended.by_initiator.insert(initiator.to_owned(), *counts);
            }
        }
    }
}

/// Addresses of this host that are counted by themselves: one that listens on every address has as
/// many portals as that has addresses.
const PORTALS_MAX: usize = 256;

/// Counters by the address of this host that connections came in by.
#[derive(Debug, Default)]
pub(crate) struct ByPortal(Mutex<BTreeMap<SocketAddr, Arc<Traffic>>>);

impl ByPortal {
    /// The counters of an address; nobody's, where there are too many already.
    pub(crate) fn of(&self, local: SocketAddr) -> Arc<Traffic> {
        let local = SocketAddr::new(local.ip().to_canonical(), local.port());
        let mut all = self.0.lock();
        match all.len() < PORTALS_MAX || all.contains_key(&local) {
            true => Arc::clone(all.entry(local).or_default()),
            false => Arc::default(),
        }
    }

    pub(crate) fn counts(&self) -> BTreeMap<SocketAddr, TrafficCounts> {
        let all = self.0.lock();
        let counts = all
            .iter()
            .map(|(portal, traffic)| (*portal, traffic.counts()));
        counts.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn portals_count_by_the_address_that_was_used() {
        let all = ByPortal::default();
        let address = |text: &str| text.parse::<SocketAddr>().expect("an address");
        let time = std::time::Duration::from_millis(1);
        for (portal, bytes) in [
            ("10.0.0.1:3260", 512),
            ("[::ffff:10.0.0.1]:3260", 1024),
            ("10.0.1.1:3260", 4096),
        ] {
            let kind = access::TrafficKind::Read;
            all.of(address(portal)).count(kind, bytes, time);
        }
        let counts = all.counts();
        assert_eq!(counts.len(), 2);
        assert_eq!(counts[&address("10.0.0.1:3260")].read_bytes, 1536);
        assert_eq!(counts[&address("10.0.1.1:3260")].reads, 1);
        for port in 0..2 * PORTALS_MAX as u16 {
            all.of(address(&format!("10.0.2.1:{port}")));
        }
        assert_eq!(all.counts().len(), PORTALS_MAX);
    }

    #[test]
    fn initiators_are_remembered_and_not_too_many_of_them() {
        let ended = Ended::default();
        let counts = TrafficCounts {
            reads: 1,
            read_bytes: 512,
            ..TrafficCounts::default()
        };
        for n in 0..2 * INITIATORS_MAX {
            ended.add(&format!("iqn.2026-11.test:{n}"), &counts);
        }
        ended.add("iqn.2026-11.test:0", &counts);
        let told = UnitTraffic::new("iqn".into(), 0, &ended);
        assert_eq!(told.ended.len(), INITIATORS_MAX);
        assert_eq!(told.ended["iqn.2026-11.test:0"].read_bytes, 1024);
        assert_eq!(told.total.reads, 2 * INITIATORS_MAX as u64 + 1);
    }
}
