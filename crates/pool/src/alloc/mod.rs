//! Which bytes of which vdev are free.

use device::BoxFuture;
use format::{Txg, VdevId};

use crate::error::PoolError;

/// Txgs for which freed space is kept unused after its txg synced (`TXG_DEFER_SIZE`), so that the
/// uberblocks of the txgs before still find their blocks.
pub const DEFER_TXGS: u64 = 2;

/// A run of bytes: start (inclusive) and end (exclusive).
pub type Range = std::ops::Range<u64>;

/// What one txg (pass) changed in one metaslab. Offsets are on the top-level vdev.
///
/// `allocated` must be recorded before `freed`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MetaslabChange {
    /// The top-level vdev.
    pub vdev: VdevId,
    /// Index of the metaslab.
    pub metaslab: u64,
    /// Newly allocated, in order of offsets.
    pub allocated: Vec<Range>,
    /// Newly freed, in order of offsets.
    pub freed: Vec<Range>,
}

/// The free ranges of a metaslab as recorded by its space map and the space map logs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoadedMetaslab {
    /// Free ranges (offsets on the top-level vdev).
    pub free: Vec<Range>,
    /// The last txg whose changes ([`Allocator::take_changes`]) are all contained.
    pub as_of: Txg,
}

/// Where the allocator gets a metaslab's free ranges from when it needs them: the engine.
pub trait MetaslabSource: Send + Sync {
    /// The free ranges of a metaslab.
    fn load(&self, vdev: VdevId, metaslab: u64)
    -> BoxFuture<'_, Result<LoadedMetaslab, PoolError>>;
}

/// The allocator of a pool.
pub struct Allocator {}
