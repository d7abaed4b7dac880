//! What clients have read and written, counted where their commands are answered.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// What has been done.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TrafficCounts {
    /// Reads that ended well.
    pub reads: u64,
    /// What they gave, in bytes.
    pub read_bytes: u64,
    /// How long they took together, from the arrival of a command to its answer.
    pub read_time: Duration,
    /// Commands that changed the medium and ended well.
    pub writes: u64,
    /// What came with them, in bytes.
    pub written_bytes: u64,
    /// How long they took together, the transfer of their data included.
    pub write_time: Duration,
    /// All other commands that ended well.
    pub others: u64,
    /// Commands that failed.
    pub failures: u64,
}

impl TrafficCounts {
    fn add(&mut self, more: &Self) {
        self.reads += more.reads;
        self.read_bytes += more.read_bytes;
        self.read_time += more.read_time;
        self.writes += more.writes;
        self.written_bytes += more.written_bytes;
        self.write_time += more.write_time;
        self.others += more.others;
        self.failures += more.failures;
    }
}

/// What a command counts as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Read,
    Write,
    Other,
}

/// Counters of one nexus and unit. Each is exact; a reader may see one of two that belong together
/// before the other.
#[derive(Debug, Default)]
pub(crate) struct Traffic {
    reads: AtomicU64,
    read_bytes: AtomicU64,
    read_nanoseconds: AtomicU64,
    writes: AtomicU64,
    written_bytes: AtomicU64,
    write_nanoseconds: AtomicU64,
    others: AtomicU64,
    failures: AtomicU64,
}

impl Traffic {
    /// A command has ended well, having moved so much.
    pub(crate) fn count(&self, kind: Kind, bytes: u64, time: Duration) {
        let (operations, moved, spent) = match kind {
            Kind::Read => (&self.reads, &self.read_bytes, &self.read_nanoseconds),
            Kind::Write => (&self.writes, &self.written_bytes, &self.write_nanoseconds),
            Kind::Other => {
                self.others.fetch_add(1, Ordering::Relaxed);
                return;
            }
        };
        let nanoseconds = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        operations.fetch_add(1, Ordering::Relaxed);
        moved.fetch_add(bytes, Ordering::Relaxed);
        spent.fetch_add(nanoseconds, Ordering::Relaxed);
    }

    /// A command has failed.
    pub(crate) fn count_failure(&self) {
        self.failures.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn counts(&self) -> TrafficCounts {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        TrafficCounts {
            reads: get(&self.reads),
            read_bytes: get(&self.read_bytes),
            read_time: Duration::from_nanos(get(&self.read_nanoseconds)),
            writes: get(&self.writes),
            written_bytes: get(&self.written_bytes),
            write_time: Duration::from_nanos(get(&self.write_nanoseconds)),
            others: get(&self.others),
            failures: get(&self.failures),
        }
    }
}

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
