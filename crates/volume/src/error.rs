//! Why an operation on a volume failed.

use zio::ZioError;

/// Why an operation on a volume failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VolumeError {
    /// The range reaches beyond the end.
    #[error(
        "volume {name}: {length_bytes} bytes at {offset_bytes} reach beyond its end at \
         {size_bytes}; stay within its size"
    )]
    OutOfRange {
        /// The volume.
        name: String,
        /// Start of the range.
        offset_bytes: u64,
        /// Length of the range.
        length_bytes: u64,
        /// Size of the volume.
        size_bytes: u64,
    },
    /// Writes are refused.
    #[error("volume {name} is read-only; set readonly=off, or use a volume rather than a snapshot")]
    ReadOnly {
        /// The volume.
        name: String,
    },
    /// No space, or a quota is reached.
    #[error("volume {name}: no space left; free space in the pool, or raise its quota")]
    NoSpace {
        /// The volume.
        name: String,
    },
    /// The size is not one that a volume can have.
    #[error("{}", bad_size(*size_bytes, *block_bytes))]
    BadSize {
        /// The volume.
        name: String,
        /// What was asked for.
        size_bytes: u64,
        /// The volume's block size.
        block_bytes: u64,
    },
    /// The pool is suspended.
    #[error("volume {name}: the pool is suspended; bring its devices back and run 'zpool clear'")]
    Suspended {
        /// The volume.
        name: String,
    },
    /// The volume is closed (exported, destroyed, rolled back).
    #[error("volume {name} is closed; open it again")]
    Closed {
        /// The volume.
        name: String,
    },
    /// Stored data is damaged beyond repair.
    #[error(
        "volume {name}: data at {offset_bytes} is damaged beyond repair; see 'zpool status -v'"
    )]
    Damaged {
        /// The volume.
        name: String,
        /// Where, in bytes.
        offset_bytes: u64,
        /// The block that cannot be read.
        source: ZioError,
    },
    /// The dataset is no volume that we can serve.
    #[error("dataset {name}: {what}")]
    CannotOpen {
        /// The dataset.
        name: String,
        /// Why, ending in advice.
        what: String,
    },
    /// Objects could not be read or changed.
    #[error("volume {name}: {source}")]
    Object {
        /// The volume.
        name: String,
        /// The cause.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

/// In the words of `zfs_valid_proplist` (lib/libzfs/libzfs_dataset.c).
fn bad_size(size_bytes: u64, block_bytes: u64) -> String {
    let block = match block_bytes {
        mebis if mebis >= 1 << 20 => format!("{}M", mebis >> 20),
        kibis if kibis >= 1 << 10 => format!("{}K", kibis >> 10),
        bytes => format!("{bytes}B"),
    };
    match size_bytes {
        0 => "'volsize' cannot be zero".to_owned(),
        _ => format!("'volsize' must be a multiple of volume block size ({block})"),
    }
}

/// Short for results of this crate.
pub type Result<T> = std::result::Result<T, VolumeError>;
