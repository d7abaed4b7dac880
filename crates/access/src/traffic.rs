//! What clients of servers on the network do, counted where it is answered. One set of counters
//! for all protocols, so that one overview has them side by side.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// What has been done.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TrafficCounts {
    /// Operations that read content and ended well.
    pub reads: u64,
    /// What they gave, in bytes.
    pub read_bytes: u64,
    /// How long they took together, from the arrival of each to its answer.
    pub read_time: Duration,
    /// Operations that changed content and ended well.
    pub writes: u64,
    /// What came with them, in bytes.
    pub written_bytes: u64,
    /// How long they took together.
    pub write_time: Duration,
    /// All other operations that ended well.
    pub others: u64,
    /// Operations that failed.
    pub failures: u64,
}

impl TrafficCounts {
    /// Adds what somebody else has done.
    pub fn add(&mut self, more: &Self) {
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

/// What an operation counts as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TrafficKind {
    /// It reads content.
    Read,
    /// It changes content.
    Write,
    /// Anything else.
    Other,
}

/// Counters, of one client or of many. Each is exact; a reader may see one of two that belong
/// together before the other.
#[derive(Debug, Default)]
pub struct Traffic {
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
    /// An operation has ended well, having moved so much in that time.
    pub fn count(&self, kind: TrafficKind, bytes: u64, time: Duration) {
        let (operations, moved, spent) = match kind {
            TrafficKind::Read => (&self.reads, &self.read_bytes, &self.read_nanoseconds),
            TrafficKind::Write => (&self.writes, &self.written_bytes, &self.write_nanoseconds),
            TrafficKind::Other => {
                self.others.fetch_add(1, Ordering::Relaxed);
                return;
            }
        };
        let nanoseconds = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        operations.fetch_add(1, Ordering::Relaxed);
        moved.fetch_add(bytes, Ordering::Relaxed);
        spent.fetch_add(nanoseconds, Ordering::Relaxed);
    }

    /// An operation has failed.
    pub fn count_failure(&self) {
        self.failures.fetch_add(1, Ordering::Relaxed);
    }

    /// What was counted so far.
    pub fn counts(&self) -> TrafficCounts {
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
