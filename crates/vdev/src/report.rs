//! What I/O brings along, and what it reports: how urgent it is, whose block it is for, what went
//! wrong with it.

use format::{Bookmark, Guid, VdevId};

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
    /// A device returned wrong bytes (they were repaired or read elsewhere if possible).
    Checksum {
        /// Guid of the leaf.
        leaf: Guid,
        /// Offset on the leaf in bytes, labels included.
        offset_bytes: u64,
        /// Whose block it was.
        bookmark: Bookmark,
    },
    /// A device failed an operation.
    Device {
        /// Guid of the leaf.
        leaf: Guid,
        /// What failed, as text.
        message: String,
        /// Whose block it was.
        bookmark: Bookmark,
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
