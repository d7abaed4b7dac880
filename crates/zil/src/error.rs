//! What can go wrong with an intent log.

/// Why an operation on an intent log failed.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum ZilError {
    /// A record cannot be read or replayed: the log stays as it is from that record on.
    #[error("'{name}': intent log: {reason}; 'zpool status' tells the state of the log")]
    Log {
        /// The dataset.
        name: String,
        /// Why.
        reason: String,
    },
    /// The task that writes the log ended before it answered.
    #[error("the pool is closing or suspended; 'zpool status' says why")]
    Closed,
    /// The pool failed: blocks, devices, or a transaction group.
    #[error("{0}")]
    Zio(#[from] zio::ZioError),
}
