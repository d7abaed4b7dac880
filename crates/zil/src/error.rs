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
    /// A record cannot be replayed: the log stays as it is from that record on, and nothing else is
    /// done to the dataset.
    #[error(
        "'{name}': record {sequence} of kind {kind} in its intent log cannot be replayed: \
         {reason}; the log is kept, and 'zfs mount --discard-log {name}' goes on without what \
         cannot be replayed"
    )]
    Record {
        /// The dataset.
        name: String,
        /// Number of the record.
        sequence: u64,
        /// Its kind.
        kind: format::LogKind,
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
