//! Filesystems and volumes in the host's file tree, through FUSE.
//!
//! [`Mount`] serves a [`filesystem::Filesystem`] at a mountpoint, with `.zfs/snapshot` when given a
//! [`SnapshotProvider`]; [`ZvolDirectory`] shows volumes as files `POOL/VOLUME` that `losetup` takes.

mod error;
mod mount;
mod zvol;

pub use error::{MountError, Result};
pub use mount::{Mount, MountOptions, SnapshotEntry, SnapshotProvider, UnmountMode, mounted_at};
pub use zvol::ZvolDirectory;
