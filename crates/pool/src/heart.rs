//! Heartbeats of multi-host protection, as far as they are known: no I/O is done here.

use std::collections::BTreeSet;

use format::{Guid, Uberblock};
use parking_lot::Mutex;
use vdev::HeartbeatTarget;

/// Milliseconds between heartbeats on one device (`zfs_multihost_interval`).
pub(crate) const INTERVAL_MS: u32 = 1000;
/// Nanoseconds in a millisecond.
pub(crate) const NS_PER_MS: u64 = 1_000_000;

/// What is known of the heartbeats of an open pool.
#[derive(Debug, Default)]
pub(crate) struct Heart {
    pub(crate) state: Mutex<Beats>,
}

#[derive(Debug, Default)]
pub(crate) struct Beats {
    /// The task is at work.
    pub(crate) running: bool,
    /// The newest uberblock that is known to be on disk, heartbeats included.
    pub(crate) last: Option<Uberblock>,
    /// Newer ones that devices were given, and that may be there or not: their writes are under
    /// way, or failed.
    pub(crate) unsettled: Vec<Uberblock>,
    /// Devices with a heartbeat under way.
    pub(crate) pending: BTreeSet<Guid>,
    pub(crate) last_success_ns: u64,
    /// Decaying mean of the time between successes; never less than what heartbeats alone make.
    pub(crate) delay_ns: u64,
    pub(crate) next_device: usize,
}

impl Beats {
    /// `uberblock` is on disk.
    pub(crate) fn note_success(&mut self, uberblock: &Uberblock, now_ns: u64, devices: usize) {
        // A txg's uberblock may have been written meanwhile: that one is newer.
        if self
            .last
            .is_none_or(|last| last.recency() < uberblock.recency())
        {
            self.last = Some(*uberblock);
            self.unsettled
                .retain(|other| other.recency() > uberblock.recency());
        }
        let delay = now_ns.saturating_sub(self.last_success_ns);
        self.last_success_ns = now_ns;
        if delay >= self.delay_ns {
            self.delay_ns = delay;
            return;
        }
        let least = u64::from(INTERVAL_MS) * NS_PER_MS / devices.max(1) as u64;
        self.delay_ns = ((delay + self.delay_ns * 127) / 128).max(least);
    }

    /// A heartbeat failed, or no device was free for one: the next says how long that took
    /// (`mmp_delay_update`).
    pub(crate) fn note_failure(&mut self, now_ns: u64) {
        let delay = now_ns.saturating_sub(self.last_success_ns);
        self.delay_ns = self.delay_ns.max(delay);
    }

    pub(crate) fn begin(&mut self, now_ns: u64) {
        self.last_success_ns = now_ns;
        self.delay_ns = u64::from(INTERVAL_MS) * NS_PER_MS;
    }

    /// The next device in turn without a heartbeat under way.
    pub(crate) fn next_target(&mut self, targets: &[HeartbeatTarget]) -> Option<HeartbeatTarget> {
        let turns = (1..=targets.len()).map(|turn| (self.next_device + turn) % targets.len());
        let mut free = turns.filter(|index| !self.pending.contains(&targets[*index].guid()));
        let index = free.next()?;
        self.next_device = index;
        Some(targets[index].clone())
    }

    /// Whether this host wrote it, or may have, or it is older than what this host wrote.
    pub(crate) fn is_ours(&self, uberblock: &Uberblock) -> bool {
        let is_old = |last: Uberblock| uberblock.recency() <= last.recency();
        self.last.is_some_and(is_old) || self.unsettled.contains(uberblock)
    }
}
