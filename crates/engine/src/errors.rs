//! What went wrong with devices and blocks while the pool is open.
//!
//! The pipeline reports here. Errors are counted per vdev by the vdev tree itself; this keeps
//! the blocks of which no good copy is left, for `zpool status`, until the pool is closed. What a
//! whole scrub did not find any more is forgotten, as in OpenZFS (`spa_errlog_rotate`).

use std::collections::BTreeSet;

use ::pool::{Bookmark, ErrorReport, ErrorSink};
use parking_lot::Mutex;

/// Damaged blocks that are remembered, at most.
const DAMAGED_MAX: usize = 100_000;

/// Blocks that are lost.
#[derive(Debug, Default)]
pub(crate) struct ErrorLog {
    damaged: Mutex<Damaged>,
}

#[derive(Debug, Default)]
struct Damaged {
    known: BTreeSet<Bookmark>,
    /// Those found since the scrub under way began.
    by_scrub: Option<BTreeSet<Bookmark>>,
    /// A whole scrub ended: what the log on disk says is out of date.
    scrubbed: bool,
}

impl ErrorLog {
    /// Number of blocks of which no good copy was found, with the `stored` ones of the log on disk, unless a whole scrub has looked at everything since.
    pub(crate) fn count_with(&self, stored: u64) -> u64 {
        let damaged = self.damaged.lock();
        let known = damaged.known.len() as u64;
        if damaged.scrubbed {
            known
        } else {
            known.max(stored)
        }
    }

    /// Those blocks, in order of dataset and object.
    pub(crate) fn damaged(&self) -> Vec<Bookmark> {
        self.damaged.lock().known.iter().copied().collect()
    }

    /// Remembers a block.
    pub(crate) fn add(&self, bookmark: Bookmark) {
        let mut damaged = self.damaged.lock();
        if damaged.known.len() < DAMAGED_MAX {
            damaged.known.insert(bookmark);
        }
        if let Some(found) = &mut damaged.by_scrub
            && found.len() < DAMAGED_MAX
        {
            found.insert(bookmark);
        }
    }

    /// Forgets them (`zpool clear`).
    pub(crate) fn clear(&self) {
        self.damaged.lock().known.clear();
    }

    /// A scrub begins.
    pub(crate) fn begin_scrub(&self) {
        self.damaged.lock().by_scrub = Some(BTreeSet::new());
    }

    /// A scrub ended; when it was `whole`, what it found is all there is.
    pub(crate) fn end_scrub(&self, whole: bool) {
        let mut damaged = self.damaged.lock();
        if let Some(found) = damaged.by_scrub.take()
            && whole
        {
            damaged.known = found;
            damaged.scrubbed = true;
        }
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
                self.add(bookmark);
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
