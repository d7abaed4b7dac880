//! What goes wrong with operations on a simulated disk.

use std::ops::Range;
use std::time::Duration;

use super::op::SimOp;

/// What an operation that meets a [`Fault`] does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FaultEffect {
    /// Fails with EIO, having done nothing.
    Error,
    /// Fails with ENOSPC, having done nothing.
    NoSpace,
    /// Does the first half (of a write), then fails: an unexpected end for reads, EIO for writes.
    Short,
    /// A read returns data with one bit flipped, and says all is well; the stored data is intact.
    Corrupt,
    /// A write, flush or discard does nothing, and says all is well.
    Lost,
    /// A write goes this many bytes further along the disk, and says all is well.
    Misdirected(u64),
    /// Takes this much longer.
    Delay(Duration),
    /// Is accepted and not answered until [`SimDisk::release`](super::SimDisk::release). Nothing of
    /// it reaches the medium before that.
    Stall,
    /// The disk disappears: this and every later operation fails, and it can't be opened.
    Vanish,
}

/// Something that goes wrong with operations of one kind that touch a range.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// Operations of this kind. Flushes touch the whole disk.
    pub op: SimOp,
    /// Bytes that an operation must touch to meet the fault.
    pub range_bytes: Range<u64>,
    /// How many operations pass unharmed first.
    pub skip: u64,
    /// How many operations are harmed, then the fault is gone.
    pub times: u64,
    /// Of those that are due, how many in a thousand are harmed.
    pub chance_permille: u32,
    /// Only operations of this host, by its number; `None`: of all.
    pub host: Option<u32>,
    /// What happens.
    pub effect: FaultEffect,
}

impl Fault {
    /// `effect` on every operation `op`, everywhere, until cleared.
    pub fn new(op: SimOp, effect: FaultEffect) -> Self {
        Fault {
            op,
            range_bytes: 0..u64::MAX,
            skip: 0,
            times: u64::MAX,
            chance_permille: 1000,
            host: None,
            effect,
        }
    }

    /// Only in this range.
    #[must_use]
    pub fn within(mut self, range_bytes: Range<u64>) -> Self {
        self.range_bytes = range_bytes;
        self
    }

    /// Only this often.
    #[must_use]
    pub fn times(mut self, times: u64) -> Self {
        self.times = times;
        self
    }

    /// Only after so many operations passed.
    #[must_use]
    pub fn after(mut self, skip: u64) -> Self {
        self.skip = skip;
        self
    }

    /// Only this often in a thousand.
    #[must_use]
    pub fn chance(mut self, permille: u32) -> Self {
        self.chance_permille = permille;
        self
    }
}
