//! The vdev tree.

/// The vdevs of a pool.
pub struct VdevTree {}
