//! Why a change of the tree is refused.

use format::Guid;
use thiserror::Error;

/// Why a tree does not change.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum TopologyError {
    /// There is no such vdev.
    #[error("there is no vdev {guid} in the pool; see 'zpool status -g'")]
    NoSuchVdev {
        /// Which one was meant.
        guid: Guid,
    },
    /// It has children.
    #[error("{vdev} is not a device; name one of its devices")]
    NotADevice {
        /// The vdev.
        vdev: String,
    },
    /// It is neither a top-level device nor one of a mirror.
    #[error("{vdev}: can only attach to mirrors and top-level disks; replace it instead")]
    CannotAttach {
        /// The vdev.
        vdev: String,
    },
    /// It is a part of something that a device of this kind cannot be a part of.
    #[error(
        "{vdev} is already in replacing/spare config; wait for completion or use 'zpool detach'"
    )]
    CannotReplace {
        /// The vdev.
        vdev: String,
    },
    /// It is a spare that stands in, which other devices do not replace.
    #[error("{vdev} is a hot spare in use, and can only be replaced by another hot spare")]
    OnlyBySpare {
        /// The spare.
        vdev: String,
    },
    /// It is a device of another vdev than the distributed spare.
    #[error(
        "{vdev}: dRAID spares can only replace child devices in their parent's dRAID vdev; use \
         another spare"
    )]
    OtherDraid {
        /// The device.
        vdev: String,
    },
    /// Spares do not stand in for devices of logs.
    #[error("{vdev} holds intent logs, and a hot spare cannot replace it; use another device")]
    IsLog {
        /// The device.
        vdev: String,
    },
    /// The new device has not got the room that the vdev needs.
    #[error(
        "{path} has room for {usable_bytes} bytes, and {needed_bytes} are needed; use a larger \
         device"
    )]
    TooSmall {
        /// The new device.
        path: String,
        /// What blocks can be on.
        usable_bytes: u64,
        /// What they may be on already.
        needed_bytes: u64,
    },
    /// The new device wants larger sectors than its top-level vdev has.
    #[error(
        "the new device wants an ashift of {wanted}, and the top-level vdev has {known}; give '-o \
         ashift={known}' if the device can do that"
    )]
    Ashift {
        /// log2 of the device's sectors.
        wanted: u32,
        /// That of the vdev.
        known: u32,
    },
    /// No other device has all that it has, by its vdev's layout.
    #[error("{vdev}: only applicable to mirror and replacing vdevs; use 'zpool replace'")]
    CannotDetach {
        /// The vdev.
        vdev: String,
    },
    /// Some of what is on it is on no other device that works.
    #[error("{vdev} has the only valid copy of some data; wait for the resilver of the others")]
    OnlyCopy {
        /// The vdev.
        vdev: String,
    },
    /// It has another parent than when it was looked at.
    #[error("{vdev} has become a part of something else meanwhile; look at 'zpool status' again")]
    Changed {
        /// The vdev.
        vdev: String,
    },
    /// A RAID-Z vdev is being made wider.
    #[error("a raidz expansion is under way in the pool; wait until it has ended")]
    Expanding,
    /// It cannot be made wider without all of its devices.
    #[error("{vdev} has devices that do not work or are being replaced; see to these first")]
    NotWell {
        /// The vdev.
        vdev: String,
    },
    /// It is too wide for the size of its sectors, or has hardly any space.
    #[error("{vdev} cannot be made wider: the space for boot loaders is too small for that")]
    CannotWiden {
        /// The vdev.
        vdev: String,
    },
    /// I/O that began before does not end.
    #[error("{vdev} is busy: its devices do not answer; try again when they do")]
    Busy {
        /// The vdev.
        vdev: String,
    },
}
