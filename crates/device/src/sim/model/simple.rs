//! A disk of fixed latencies and one rate: enough where only order and faults matter.

use std::time::Duration;

use super::{Command, SimOp};
use crate::sim::rng::Rng;

/// How long operations take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Latency {
    /// A read of nothing.
    pub read: Duration,
    /// A write of nothing.
    pub write: Duration,
    /// A flush.
    pub flush: Duration,
    /// Up to this much of an operation's time is added at random, in thousandths.
    pub jitter_permille: u32,
    /// Rate at which data moves, one operation at a time; 0: at once.
    pub bytes_per_second: u64,
}

impl Latency {
    /// Nothing takes time; operations that are in flight together still complete in random order.
    pub const NONE: Latency = Latency {
        read: Duration::ZERO,
        write: Duration::ZERO,
        flush: Duration::ZERO,
        jitter_permille: 0,
        bytes_per_second: 0,
    };
}

impl Default for Latency {
    /// A fast disk: one millisecond for reads and writes, three for flushes, give or take.
    fn default() -> Self {
        Latency {
            read: Duration::from_millis(1),
            write: Duration::from_millis(1),
            flush: Duration::from_millis(3),
            jitter_permille: 2000,
            bytes_per_second: 0,
        }
    }
}

/// The state of such a disk.
#[derive(Debug, Clone)]
pub(super) struct Simple {
    pub(super) latency: Latency,
    /// When the disk has moved all data it was asked to, in virtual time.
    busy_until_ns: u64,
}

impl Simple {
    pub(super) fn new(latency: Latency) -> Self {
        Simple {
            latency,
            busy_until_ns: 0,
        }
    }

    /// When the operation will be complete.
    pub(super) fn submit(&mut self, now_ns: u64, command: &Command, rng: &mut Rng) -> u64 {
        let base = match command.op {
            SimOp::Read => self.latency.read,
            SimOp::Write | SimOp::Discard => self.latency.write,
            SimOp::Flush => self.latency.flush,
        };
        let base_ns = base.as_nanos() as u64;
        let jitter_max_ns = base_ns.saturating_mul(u64::from(self.latency.jitter_permille)) / 1000;
        let mut total_ns = base_ns + rng.below(jitter_max_ns + 1);
        let moves_data = matches!(command.op, SimOp::Read | SimOp::Write);
        if moves_data && self.latency.bytes_per_second > 0 {
            let rate = u128::from(self.latency.bytes_per_second);
            let transfer_ns = u128::from(command.length_bytes) * 1_000_000_000 / rate;
            self.busy_until_ns = self.busy_until_ns.max(now_ns) + transfer_ns as u64;
            total_ns += self.busy_until_ns - now_ns;
        }
        now_ns + total_ns
    }

    /// The power went: nothing is under way any more.
    pub(super) fn reset(&mut self) {
        self.busy_until_ns = 0;
    }
}
