//! What I/O brings along, and what it reports: how urgent it is, whose block it is for, what went
//! wrong with it.

use format::{Bookmark, Guid, VdevId};

use crate::state::{VdevAux, VdevState};

/// How urgent an I/O is. Leaves keep places in their queues free for the urgent ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Priority {
    /// Somebody waits for it.
    #[default]
    Sync,
    /// Nobody waits yet: read-ahead, write-back.
    Async,
    /// Background: scrub, resilver.
    Scrub,
}

/// What a device is asked to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Operation {
    /// Give bytes.
    Read,
    /// Take bytes.
    Write,
    /// Make durable what it took.
    Flush,
}

/// One operation of a device that a report is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceIo {
    /// What was asked.
    pub operation: Operation,
    /// Offset on the device in bytes, labels included; zero of a flush.
    pub offset_bytes: u64,
    /// How much, in bytes; zero of a flush.
    pub size_bytes: u64,
    /// Whose block it was; that of a write put together from several is not known.
    pub bookmark: Bookmark,
    /// How urgent it was.
    pub priority: Priority,
    /// It belongs to a scrub or resilver.
    pub scrub: bool,
    /// It was tried before, and failed.
    pub retried: bool,
    /// When it began, by the monotonic clock; zero where that is not known.
    pub begun_ns: u64,
    /// How long the device was at it, in nanoseconds; zero where that is not known.
    pub took_ns: u64,
}

/// What a read of a scrub or resilver does beyond reading a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum ScanRead {
    /// It is an ordinary read: the first copy that is right will do.
    #[default]
    No,
    /// Every copy and all parity are read and compared, and what is wrong or missing is written.
    Scrub,
    /// Devices that lack the block's transaction group get what they lack; others are read only as
    /// far as that takes.
    Resilver,
}

impl ScanRead {
    /// Whether a scrub or resilver asks.
    pub const fn is_scan(self) -> bool {
        !matches!(self, ScanRead::No)
    }

    /// Whether every copy is to be read.
    pub const fn reads_all(self) -> bool {
        matches!(self, ScanRead::Scrub)
    }
}

/// One thing that went wrong with a block or a device.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorReport {
    /// A device returned wrong bytes (they were repaired or read elsewhere if possible), though it
    /// does not lack that block.
    Checksum {
        /// Guid of the leaf.
        leaf: Guid,
        /// What it was read by.
        io: DeviceIo,
    },
    /// A device that was in use failed an operation, also when it was tried again.
    Device {
        /// Guid of the leaf.
        leaf: Guid,
        /// What failed.
        io: DeviceIo,
        /// The system's number of the error.
        errno: i32,
        /// The same, as text.
        message: String,
    },
    /// A device took longer than 30 seconds over an operation (`zio_slow_io_ms`).
    Slow {
        /// Guid of the leaf.
        leaf: Guid,
        /// What it did.
        io: DeviceIo,
    },
    /// A device does not answer an operation (`zio_deadman`).
    Deadman {
        /// Guid of the leaf.
        leaf: Guid,
        /// The oldest that it does not answer.
        io: DeviceIo,
    },
    /// After an error, a device did not read and write its labels' padding any more.
    ProbeFailed {
        /// Guid of the leaf.
        leaf: Guid,
        /// The state that it had.
        state: VdevState,
    },
    /// The state of a device changed, other than by closing or first opening it.
    State {
        /// Guid of the leaf.
        leaf: Guid,
        /// What it was.
        from: VdevState,
        /// What it is.
        to: VdevState,
        /// Why.
        aux: VdevAux,
    },
    /// No good copy is left: the block is lost. Belongs into the pool's error log.
    Data {
        /// Whose block it was.
        bookmark: Bookmark,
        /// Where its first copy is.
        vdev: VdevId,
        /// Offset of that copy.
        offset_bytes: u64,
        /// Birth of the block.
        birth: format::Txg,
    },
    /// A block that was lost is there again: it belongs out of the pool's error log.
    Healed {
        /// Whose block it is.
        bookmark: Bookmark,
        /// Birth of the block.
        birth: format::Txg,
    },
}

/// Who hears of errors: the engine's error log and events.
pub trait ErrorSink: Send + Sync {
    /// Takes note. Called from I/O tasks: quick, never blocks.
    fn report(&self, report: ErrorReport);
}

/// Drops all reports.
#[derive(Debug, Default, Clone, Copy)]
pub struct IgnoreErrors;

impl ErrorSink for IgnoreErrors {
    fn report(&self, _report: ErrorReport) {}
}
