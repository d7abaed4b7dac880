//! What sessions have done to units, for reports.

use std::net::SocketAddr;

use access::TrafficCounts;

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
}

impl UnitTraffic {
    /// One of which sessions that have ended have done this.
    pub(crate) fn new(iqn: String, lun: u16, ended: TrafficCounts) -> Self {
        Self {
            iqn,
            lun,
            total: ended,
            clients: Vec::new(),
        }
    }

    pub(crate) fn add(&mut self, client: ClientTraffic) {
        self.total.add(&client.counts);
        self.clients.push(client);
    }
}

/// What sessions that have ended have done.
#[derive(Debug, Default)]
pub(crate) struct Ended(parking_lot::Mutex<TrafficCounts>);

impl Ended {
    pub(crate) fn add(&self, counts: &TrafficCounts) {
        self.0.lock().add(counts);
    }

    pub(crate) fn counts(&self) -> TrafficCounts {
        *self.0.lock()
    }
}
