//! How long a tree's devices may keep operations waiting, and how long they do. Module `deadman`
//! acts on it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use format::Guid;
use parking_lot::Mutex;

/// How long a device may take over what it has accepted before it is opened again, or over its
/// labels when they are to tell whose the pool is. A person waits for that.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// How long the oldest operation of a device may wait, in seconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeadmanLimits {
    /// From here on, reads are answered without the device where that is possible.
    pub lag_s: u32,
    /// From here on, the pool does without the device where that is possible. Longer than what
    /// counts as slow (`zio_slow_io_ms`), and than the system takes to reset a disk.
    pub give_up_s: u32,
    /// From here on, the pool is taken to stand still (`zfs_deadman_ziotime_ms`).
    pub stand_still_s: u32,
}

impl Default for DeadmanLimits {
    fn default() -> Self {
        DeadmanLimits {
            lag_s: 5,
            give_up_s: 40,
            stand_still_s: 300,
        }
    }
}

/// The patience with the devices of one tree.
///
/// Locks: `limits`, `longest`; for one value each.
#[derive(Debug, Default)]
pub struct Patience {
    limits: Mutex<DeadmanLimits>,
    /// Which device in use keeps an operation waiting longest, and for how many seconds.
    longest: Mutex<Option<(Guid, u32)>>,
    /// See [`Self::set_opening`].
    is_opening: AtomicBool,
}

impl Patience {
    /// How long devices may keep operations waiting.
    pub fn limits(&self) -> DeadmanLimits {
        *self.limits.lock()
    }

    /// Says how long devices may keep operations waiting.
    pub fn set_limits(&self, limits: DeadmanLimits) {
        *self.limits.lock() = limits;
    }

    /// The device in use whose oldest operation waits longest, and for how many seconds.
    pub fn longest_wait(&self) -> Option<(Guid, u32)> {
        *self.longest.lock()
    }

    pub(crate) fn set_longest_wait(&self, longest: Option<(Guid, u32)>) {
        *self.longest.lock() = longest;
    }

    /// While the pool is being opened, devices that do not answer are given up although it cannot
    /// do without them: whoever opens it is to be told.
    pub fn set_opening(&self, is_opening: bool) {
        self.is_opening.store(is_opening, Ordering::Release);
    }

    pub(crate) fn is_opening(&self) -> bool {
        self.is_opening.load(Ordering::Acquire)
    }
}
