//! States and counters of vdevs.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

/// State of a vdev (`vdev_state_t`, include/sys/fs/zfs.h); the order is from worst to best.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum VdevState {
    /// Not opened.
    Closed,
    /// Taken offline by the administrator.
    Offline,
    /// The device was unplugged.
    Removed,
    /// The device cannot be opened, or is not the right one.
    CantOpen,
    /// Too many errors, or faulted by the administrator.
    Faulted,
    /// Works, but some of what is below does not.
    Degraded,
    /// Works.
    Healthy,
}

impl VdevState {
    /// The code in OpenZFS's interfaces.
    pub const fn code(self) -> u64 {
        match self {
            VdevState::Closed => 1,
            VdevState::Offline => 2,
            VdevState::Removed => 3,
            VdevState::CantOpen => 4,
            VdevState::Faulted => 5,
            VdevState::Degraded => 6,
            VdevState::Healthy => 7,
        }
    }

    /// Whether I/O is possible.
    pub const fn is_usable(self) -> bool {
        matches!(self, VdevState::Degraded | VdevState::Healthy)
    }
}

impl fmt::Display for VdevState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            VdevState::Closed => "CLOSED",
            VdevState::Offline => "OFFLINE",
            VdevState::Removed => "REMOVED",
            VdevState::CantOpen => "UNAVAIL",
            VdevState::Faulted => "FAULTED",
            VdevState::Degraded => "DEGRADED",
            VdevState::Healthy => "ONLINE",
        })
    }
}

/// Why a vdev is in its state (`vdev_aux_t`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum VdevAux {
    /// No reason to give.
    #[default]
    None,
    /// The device cannot be opened.
    OpenFailed,
    /// The label is damaged or missing.
    CorruptData,
    /// Too few children work.
    NoReplicas,
    /// The device is too small.
    TooSmall,
    /// The label is another vdev's or pool's, or cannot be.
    BadLabel,
    /// A spare that stands in for a device.
    Spared,
    /// Too many errors.
    ErrorsExceeded,
    /// Faulted by the administrator.
    External,
    /// It is a part of another pool now (`zpool split`).
    SplitPool,
}

impl VdevAux {
    /// The code in OpenZFS's interfaces.
    pub const fn code(self) -> u64 {
        match self {
            VdevAux::None => 0,
            VdevAux::OpenFailed => 1,
            VdevAux::CorruptData => 2,
            VdevAux::NoReplicas => 3,
            VdevAux::TooSmall => 5,
            VdevAux::BadLabel => 6,
            VdevAux::Spared => 10,
            VdevAux::ErrorsExceeded => 11,
            VdevAux::External => 14,
            VdevAux::SplitPool => 15,
        }
    }
}

/// Counters of a vdev, since it was opened or cleared.
#[derive(Debug, Default)]
pub struct Counters {
    /// Reads done.
    pub read_ops: AtomicU64,
    /// Bytes read.
    pub read_bytes: AtomicU64,
    /// Reads that failed.
    pub read_errors: AtomicU64,
    /// Writes done.
    pub write_ops: AtomicU64,
    /// Bytes written.
    pub write_bytes: AtomicU64,
    /// Writes (and flushes) that failed.
    pub write_errors: AtomicU64,
    /// Reads that gave wrong data.
    pub checksum_errors: AtomicU64,
    /// Bytes written to put wrong or missing data right.
    pub repaired_bytes: AtomicU64,
    /// Those of them that scrubs and resilvers wrote (`vs_scan_processed`).
    pub scan_repaired_bytes: AtomicU64,
    /// Discards done.
    pub trim_ops: AtomicU64,
    /// Bytes discarded.
    pub trim_bytes: AtomicU64,
    /// Discards that failed, which is no error of the device.
    pub trim_errors: AtomicU64,
}

/// [`Counters`] at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[allow(missing_docs, reason = "as in Counters")]
pub struct CounterValues {
    pub read_ops: u64,
    pub read_bytes: u64,
    pub read_errors: u64,
    pub write_ops: u64,
    pub write_bytes: u64,
    pub write_errors: u64,
    pub checksum_errors: u64,
    pub repaired_bytes: u64,
    pub scan_repaired_bytes: u64,
    pub trim_ops: u64,
    pub trim_bytes: u64,
    pub trim_errors: u64,
}

impl Counters {
    /// The current values.
    pub fn values(&self) -> CounterValues {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        CounterValues {
            read_ops: load(&self.read_ops),
            read_bytes: load(&self.read_bytes),
            read_errors: load(&self.read_errors),
            write_ops: load(&self.write_ops),
            write_bytes: load(&self.write_bytes),
            write_errors: load(&self.write_errors),
            checksum_errors: load(&self.checksum_errors),
            repaired_bytes: load(&self.repaired_bytes),
            scan_repaired_bytes: load(&self.scan_repaired_bytes),
            trim_ops: load(&self.trim_ops),
            trim_bytes: load(&self.trim_bytes),
            trim_errors: load(&self.trim_errors),
        }
    }

    /// Zeroes the error counters ('zpool clear').
    pub fn clear_errors(&self) {
        for counter in [&self.read_errors, &self.write_errors, &self.checksum_errors] {
            counter.store(0, Ordering::Relaxed);
        }
    }

    pub(crate) fn add(counter: &AtomicU64, value: u64) {
        counter.fetch_add(value, Ordering::Relaxed);
    }
}
