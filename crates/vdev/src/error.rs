//! The one error type of this crate.

use std::sync::Arc;

use device::DeviceError;
use format::{FormatError, Guid, VdevId};
use thiserror::Error;

/// Why a vdev or its labels could not do what was asked. Cheap to clone, so that one failure can
/// be told to everybody who waits for it.
#[derive(Debug, Clone, Error)]
#[non_exhaustive]
pub enum VdevError {
    /// A device neither does what it was asked nor fails.
    #[error(
        "{vdev}: the device does not answer; make it answer again or take it away from this \
         host, then run 'zpool clear'"
    )]
    Stalled {
        /// Which device.
        vdev: String,
    },
    /// A device failed.
    #[error(transparent)]
    Device(Arc<DeviceError>),
    /// Bytes from disk are not what they must be.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// A top-level vdev that does not exist was referred to.
    #[error("the pool has no top-level vdev {vdev}; import it with all its devices present")]
    NoSuchVdev {
        /// The vdev.
        vdev: VdevId,
    },
    /// A vdev has too few working children.
    #[error(
        "{vdev}: too few working devices ({cause}); reattach the missing devices and run 'zpool \
         clear'"
    )]
    VdevUnavailable {
        /// Which vdev, as a person would name it.
        vdev: String,
        /// What is missing.
        cause: String,
    },
    /// A vdev of a kind that this release cannot do I/O on.
    #[error("{vdev}: vdevs of the type '{kind}' are not supported yet; use OpenZFS for this pool")]
    UnsupportedVdev {
        /// Which vdev.
        vdev: String,
        /// Its type.
        kind: String,
    },
    /// The configuration of the pool or of a vdev cannot be right.
    #[error(
        "the pool's configuration is damaged: {what}; try another device's label, or import with -F"
    )]
    BadConfig {
        /// What is wrong.
        what: String,
    },
    /// A device's label does not belong where the device is.
    #[error(
        "{path}: the device holds vdev {found} and not {expected}; give the right device, or \
         replace it"
    )]
    WrongDevice {
        /// Path of the device.
        path: String,
        /// The guid in its label.
        found: Guid,
        /// The guid that it should have.
        expected: Guid,
    },
    /// A device is a part of another pool now.
    #[error("{path}: the device was split off into another pool; detach it here")]
    SplitOff {
        /// Path of the device.
        path: String,
    },
    /// No valid label was found.
    #[error("{path}: no valid ZFS label; check that this is a device of the pool")]
    NoLabel {
        /// Path of the device.
        path: String,
    },
    /// A device is smaller than ZFS's minimum, or than it was.
    #[error(
        "{path}: {size_bytes} bytes is too small, {needed_bytes} are needed; use a bigger device"
    )]
    TooSmall {
        /// Path of the device.
        path: String,
        /// Its size.
        size_bytes: u64,
        /// The size that is needed.
        needed_bytes: u64,
    },
    /// What was written is not on enough devices, and redundancy cannot make up for that: the pool
    /// must be suspended.
    #[error("{reason}; reattach the pool's devices and run 'zpool clear'")]
    NotDurable {
        /// What happened.
        reason: String,
    },
    /// A device lacks something of which the state to be written does not tell.
    #[error("a device did not take a write, which is not on record yet; try again")]
    Unrecorded,
    /// Sectors of a RAID-Z vdev that is being made wider were not moved.
    #[error(
        "{vdev}: its expansion pauses ({cause}); it goes on when all of its devices work and have \
         everything"
    )]
    NotMoved {
        /// Which vdev.
        vdev: String,
        /// Why not.
        cause: String,
    },
    /// An address beyond the end of its vdev, or between sectors.
    #[error("{place}: {what}; restore the affected file from a backup")]
    BadAddress {
        /// The address, as text.
        place: String,
        /// What is wrong with it.
        what: String,
    },
}

impl From<DeviceError> for VdevError {
    fn from(error: DeviceError) -> Self {
        VdevError::Device(Arc::new(error))
    }
}

/// A configuration that cannot be right, and why.
pub(crate) fn bad(what: impl Into<String>) -> VdevError {
    VdevError::BadConfig { what: what.into() }
}
