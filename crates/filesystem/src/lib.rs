//! A POSIX filesystem on a dataset: what OpenZFS calls the ZPL.
//!
//! [`Filesystem`] offers every POSIX operation by object number ("inode"), asynchronously. It knows
//! nothing of FUSE or NFS: those turn their requests into calls here and [`FsError::errno`] into
//! their status. Permission checks are left to who serves it (the kernel, with
//! `default_permissions`).

mod error;
mod filesystem;
mod types;

pub use error::{FsError, Result, errno};
pub use filesystem::{Filesystem, OpenOptions};
pub use types::{
    Allocate, Attributes, Caller, DirEntry, FileKind, FsStatistics, RenameMode, SeekTo,
    SetAttributes, SetTime, Time, XattrMode,
};
