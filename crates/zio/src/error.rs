//! The one error type of this crate.

use format::{BlockPointer, ObjsetId, Txg, VdevId};
use thiserror::Error;
use vdev::VdevError;

/// Why a pool could not do what it was asked. Cheap to clone, so that one failure can be told to
/// everybody who waits for it.
#[derive(Debug, Clone, Error)]
#[non_exhaustive]
pub enum ZioError {
    /// A vdev failed, or cannot be what its label says.
    #[error(transparent)]
    Vdev(VdevError),
    /// No vdev has room for the block, not even in pieces.
    #[error(
        "no space for {size_bytes} bytes in txg {txg}; destroy files or snapshots, or add a vdev"
    )]
    NoSpace {
        /// Bytes that were asked for.
        size_bytes: u64,
        /// The txg that asked.
        txg: Txg,
    },
    /// Every copy that could be read fails its checksum.
    #[error(
        "{block}: no copy has the right checksum; restore the affected file from a backup, and \
         scrub the pool to find out what else is damaged"
    )]
    Checksum {
        /// The block.
        block: String,
        /// A device that was there failed as well: the same read may succeed another time.
        device_failed: bool,
    },
    /// No copy could be read, because of device errors or missing devices.
    #[error(
        "{block}: no copy can be read ({cause}); reattach the missing devices and run 'zpool clear'"
    )]
    Unreadable {
        /// The block.
        block: String,
        /// The last failure.
        cause: String,
        /// A device that was there failed: the same read may succeed another time.
        device_failed: bool,
    },
    /// Some write or flush could not be absorbed by redundancy, and the pool has stopped writing.
    #[error("the pool is suspended: {reason}; reattach its devices and run 'zpool clear'")]
    Suspended {
        /// What happened.
        reason: String,
    },
    /// No heartbeat of multi-host protection could be written for long: another host may take the
    /// pool.
    #[error(
        "no multihost heartbeat could be written for {silent_ms} ms; make the pool's devices \
         available and run 'zpool clear'"
    )]
    HeartbeatsFailed {
        /// For how long.
        silent_ms: u64,
    },
    /// A task of the pool panicked: what it left half done must not be written.
    #[error(
        "its task '{task}' failed ({message}); what was not written yet is lost: run 'zpool \
         export -f' and import it again, and report this"
    )]
    TaskPanicked {
        /// The task.
        task: &'static str,
        /// What the panic said.
        message: String,
    },
    /// A block passed its checksum, but does not decompress or cannot be interpreted.
    #[error(
        "{block}: {what}; the block was damaged before it was written, so restore the affected \
         file from a backup"
    )]
    Corrupt {
        /// The block.
        block: String,
        /// What is wrong.
        what: String,
    },
    /// A block of an encrypted dataset was asked for without its key.
    #[error("{block}: the key of dataset {objset} is not loaded; load it with 'zfs load-key'")]
    KeyNotLoaded {
        /// The block.
        block: String,
        /// The dataset, by its object number.
        objset: ObjsetId,
    },
    /// A block passed its checksum, but not its MAC: somebody without the key wrote it, or another
    /// key is loaded.
    #[error(
        "{block}: the block is not what was encrypted (its MAC does not fit); restore the \
         affected file from a backup"
    )]
    Authentication {
        /// The block.
        block: String,
    },
    /// A block pointer cannot be right: it must not be followed.
    #[error(
        "{block}: the block pointer is damaged ({what}); restore the affected file from a backup"
    )]
    BadPointer {
        /// The pointer, as text.
        block: String,
        /// What is wrong with it.
        what: String,
    },
    /// The block was left out of the redacted stream that its dataset came from.
    #[error("{block} was left out of a redacted stream; receive a stream that fills it in")]
    Redacted {
        /// The block.
        block: String,
    },
    /// Writing to a pool that was opened read-only.
    #[error("the pool is open read-only; import it for writing")]
    ReadOnly,
    /// The pool is being closed.
    #[error("the pool is closing; try again after it was imported")]
    Closing,
    /// A metaslab's space map could not be loaded.
    #[error("metaslab {metaslab} of vdev {vdev}: cannot be loaded: {cause}; scrub the pool")]
    MetaslabLoad {
        /// The top-level vdev.
        vdev: VdevId,
        /// Index of the metaslab in it.
        metaslab: u64,
        /// Why.
        cause: String,
    },
    /// Space that is allocated already was claimed, or free space freed: the space maps are wrong.
    #[error(
        "vdev {vdev}: {length_bytes} bytes at {offset_bytes:#x} are {found}; the pool's space \
         maps are damaged, so import it read-only and copy its data"
    )]
    SpaceMap {
        /// The top-level vdev.
        vdev: VdevId,
        /// First byte.
        offset_bytes: u64,
        /// Length in bytes.
        length_bytes: u64,
        /// What was found.
        found: &'static str,
    },
}

impl ZioError {
    /// Whether a pool that is suspended for it can only be given up.
    pub fn is_final(&self) -> bool {
        matches!(self, ZioError::TaskPanicked { .. })
    }
}

/// What a vdev says of a block or of the whole pool becomes an error of those.
impl From<VdevError> for ZioError {
    fn from(error: VdevError) -> Self {
        match error {
            VdevError::NotDurable { reason } => ZioError::Suspended { reason },
            VdevError::BadAddress { place: block, what } => ZioError::BadPointer { block, what },
            other => ZioError::Vdev(other),
        }
    }
}

impl From<format::FormatError> for ZioError {
    fn from(error: format::FormatError) -> Self {
        ZioError::Vdev(error.into())
    }
}

/// What becomes of space that cannot be freed, for the log.
pub(crate) const LEAKED: &str = "its space is lost until the pool is checked";

/// A block's name in messages.
pub(crate) fn name_of(bp: &BlockPointer) -> String {
    match bp.dva(0) {
        Some(dva) => format!("block {dva} of txg {}", bp.physical_birth()),
        None => "block without a place".to_owned(),
    }
}

/// An error that only a mistake in this program can cause.
pub(crate) fn bug(error: impl std::fmt::Display) -> ZioError {
    ZioError::Corrupt {
        block: "a block that is being written".to_owned(),
        what: error.to_string(),
    }
}
