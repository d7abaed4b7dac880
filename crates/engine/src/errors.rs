//! What went wrong with devices and blocks while the pool is open.
//!
//! The pipeline reports here. Errors are counted per vdev by the vdev tree itself; this keeps
//! the blocks of which no good copy is left, for `zpool status`, until the pool is closed.

use std::collections::BTreeSet;

use ::pool::{Bookmark, ErrorReport, ErrorSink};
use parking_lot::Mutex;

/// Damaged blocks that are remembered, at most.
const DAMAGED_MAX: usize = 100_000;

/// Blocks that are lost.
#[derive(Debug, Default)]
pub(crate) struct ErrorLog {
    damaged: Mutex<BTreeSet<Bookmark>>,
}

impl ErrorLog {
    /// Number of blocks of which no good copy was found.
    pub(crate) fn damaged_count(&self) -> u64 {
        self.damaged.lock().len() as u64
    }

    /// Forgets them (`zpool clear`).
    pub(crate) fn clear(&self) {
        self.damaged.lock().clear();
    }
}

impl ErrorSink for ErrorLog {
    fn report(&self, report: ErrorReport) {
        match report {
            ErrorReport::Data {
                bookmark,
                vdev,
                offset_bytes,
                birth,
            } => {
                tracing::error!(?bookmark, %vdev, offset_bytes, %birth, "no good copy of a block is left");
                let mut damaged = self.damaged.lock();
                if damaged.len() < DAMAGED_MAX {
                    damaged.insert(bookmark);
                }
            }
            ErrorReport::Checksum {
                leaf,
                offset_bytes,
                bookmark,
            } => {
                tracing::warn!(%leaf, offset_bytes, ?bookmark, "a device returned wrong data");
            }
            ErrorReport::Device {
                leaf,
                message,
                bookmark,
            } => {
                tracing::warn!(%leaf, message, ?bookmark, "a device failed");
            }
            _ => {}
        }
    }
}
