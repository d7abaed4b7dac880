//! Who knows where copies are of what is on a vdev that is being removed.

use format::{Txg, VdevId};

/// A part of the copy of a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CopyPlace {
    /// The vdev that it is on.
    pub vdev: VdevId,
    /// Where on it, in bytes.
    pub offset: u64,
    /// Its length in bytes.
    pub length: u64,
    /// The txg in which it was copied.
    pub birth: Txg,
}

/// Knows what was copied of a vdev that is being removed.
pub trait Copies: Send + Sync {
    /// A range of a vdev was written anew, as it was wrong: tells where its copy is, or the copy of
    /// its beginning, in order. What is being copied just now is copied again.
    fn healed(&self, vdev: VdevId, offset: u64, length: u64) -> Vec<CopyPlace>;

    /// A copy of what was healed could not be written.
    fn spoil(&self);
}
