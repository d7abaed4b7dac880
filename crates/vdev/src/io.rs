//! The vocabulary of I/O: its circumstances, its failures, and the check of what was read. It is
//! the same for vdevs of all kinds, and knows none of them.

use std::sync::Arc;

use bytes::Bytes;
use device::{BoxFuture, DeviceError};
use format::{Bookmark, Txg};

use crate::repairs::RepairEpoch;
use crate::report::{Priority, ScanRead};
use crate::state::VdevState;

/// Circumstances of a vdev I/O.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct IoContext {
    /// Whose block it is.
    pub bookmark: Bookmark,
    /// How urgent.
    pub priority: Priority,
    /// Txg in which the block was written; zero when that is not known.
    pub birth: Txg,
    /// Failures are expected and not reported.
    pub speculative: bool,
    /// A read that is not to wait for a device that lags, as it can perhaps be answered without.
    pub hasty: bool,
    /// What a scrub or resilver asks for.
    pub scan: ScanRead,
    /// When the read began that finds something to be repaired; nothing where nobody can free the
    /// block meanwhile.
    pub since: Option<RepairEpoch>,
    /// A write that puts wrong or missing data right.
    pub repair: bool,
    /// A write of [`Priority::Sync`] is durable when it is done (intent log). It alone: what was
    /// written before still waits for a flush.
    pub durable: bool,
    /// A read that is made to fail, as somebody asked for that ([`crate::inject`]).
    pub strike: bool,
}

impl IoContext {
    /// Of a write that puts right what was read with this. Whoever reads a block waits for its
    /// repair, which goes straight to the device. Repairs of a scrub or resilver are many, and
    /// neighbours: they are put together in the queue, as the writes of transaction groups are
    /// (`vdev_mirror_io_done`, module/zfs/vdev_mirror.c: `ZIO_PRIORITY_ASYNC_WRITE`). Either is on
    /// the device, though not flushed, when it is done.
    #[must_use]
    pub fn for_repair(&self) -> IoContext {
        IoContext {
            priority: match self.scan.is_scan() {
                true => Priority::Async,
                false => Priority::Sync,
            },
            repair: true,
            strike: false,
            ..*self
        }
    }
}

/// Why a leaf did not do an I/O.
#[derive(Debug, Clone)]
pub(crate) enum LeafError {
    /// There is no usable device.
    Unavailable(VdevState),
    /// The device is open for reading only.
    ReadOnly,
    /// The pool is suspended: devices get nothing. The device itself is well, and the I/O is to be
    /// done again when the pool resumes.
    Halted,
    /// The device lags, and the read is hasty: it was not waited for, and nothing is wrong.
    Slow,
    /// The device failed.
    Device(Arc<DeviceError>),
    /// The device took a write, and failed to flush: it is faulted, and the write is kept.
    Flush(Arc<DeviceError>),
    /// The device took a write, and was out of use before that was known to be durable. The write
    /// is kept.
    Unflushed(VdevState),
}

impl std::fmt::Display for LeafError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            LeafError::Unavailable(state) | LeafError::Unflushed(state) => {
                write!(f, "a device is {state}")
            }
            LeafError::ReadOnly => f.write_str("a device is open for reading only"),
            LeafError::Halted => f.write_str("the pool is suspended"),
            LeafError::Slow => f.write_str("a device does not answer"),
            LeafError::Device(error) | LeafError::Flush(error) => error.fmt(f),
        }
    }
}

/// Wrong, or not there.
#[derive(Debug, Clone)]
pub struct ReadFailure {
    /// Something was read, but failed its checksum.
    pub checksum: bool,
    /// A device that was there failed: the same read may succeed another time.
    pub device: bool,
    /// The read was hasty, and a device was not waited for ([`IoContext::hasty`]).
    pub slow: bool,
    /// The last cause.
    pub cause: String,
}

/// Some children did not take a write, more than redundancy allows.
#[derive(Debug, Clone)]
pub struct WriteFailure {
    /// The pool is suspended; no device is known to lack it.
    pub halted: bool,
    /// The last cause.
    pub cause: String,
}

impl WriteFailure {
    /// One of devices, or because there are too few.
    pub(crate) fn new(cause: impl Into<String>) -> Self {
        WriteFailure {
            halted: false,
            cause: cause.into(),
        }
    }
}

/// Decides whether what was read is right.
pub trait Verify: Sync {
    /// Whether it is. May hand the work to a CPU worker.
    fn verify<'a>(&'a self, data: &'a Bytes) -> BoxFuture<'a, bool>;

    /// How many bytes it looks at, where those behind them fill the block's last sector with zeros.
    fn covered_bytes(&self) -> Option<usize> {
        None
    }

    /// Whether it tells right from wrong: else whatever is read counts as right.
    fn can_tell(&self) -> bool {
        true
    }
}

/// Takes everything: for parts of a block, which are checked as a whole.
pub(crate) struct Unverified;

impl Verify for Unverified {
    fn verify<'a>(&'a self, _data: &'a Bytes) -> BoxFuture<'a, bool> {
        Box::pin(std::future::ready(true))
    }

    fn can_tell(&self) -> bool {
        false
    }
}
