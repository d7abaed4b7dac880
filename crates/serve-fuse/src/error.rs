//! Why something could not be mounted or unmounted.

use std::io;
use std::path::PathBuf;

/// Why something could not be mounted or unmounted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MountError {
    /// The mountpoint has files in it, and no overlay was asked for.
    #[error(
        "{path}: directory is not empty; empty it, set another mountpoint, or use 'zfs mount -O'",
        path = path.display()
    )]
    NotEmpty {
        /// The mountpoint.
        path: PathBuf,
    },
    /// Something is mounted there already.
    #[error(
        "{path}: {source_name} is mounted there already; unmount it first, or use 'zfs mount -O'",
        path = path.display()
    )]
    AlreadyMounted {
        /// The mountpoint.
        path: PathBuf,
        /// What is mounted there.
        source_name: String,
    },
    /// It is not the directory of the user who mounts.
    #[error(
        "{path}: permission denied: the directory is not yours; users mount at their own",
        path = path.display()
    )]
    NotOwned {
        /// The mountpoint.
        path: PathBuf,
    },
    /// The mountpoint does not exist and cannot be made, or is no directory.
    #[error(
        "{path}: cannot be used as a mountpoint: {source}; check the path and its permissions",
        path = path.display()
    )]
    BadMountpoint {
        /// The mountpoint.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// There is no FUSE on this machine (or in this container).
    #[error(
        "/dev/fuse cannot be opened: {source}; load the fuse module (modprobe fuse), or give the \
         container the device /dev/fuse"
    )]
    NoFuse {
        /// Why.
        source: io::Error,
    },
    /// The kernel or fusermount3 refused the mount.
    #[error(
        "{path}: mounting failed: {source}; mounting needs root or fusermount3, and allow_other \
         needs user_allow_other in /etc/fuse.conf",
        path = path.display()
    )]
    Refused {
        /// The mountpoint.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Files are open in it.
    #[error(
        "{path}: in use; close its files (lsof, fuser -m), or use 'zfs unmount -f'",
        path = path.display()
    )]
    Busy {
        /// The mountpoint.
        path: PathBuf,
    },
    /// Another mount lies over it, so that no path leads to it.
    #[error(
        "{path}: {source_name} is mounted over it, at {cover}; unmount that first",
        path = path.display(), cover = cover.display()
    )]
    Covered {
        /// The mountpoint.
        path: PathBuf,
        /// Where the other is mounted.
        cover: PathBuf,
        /// What is mounted there.
        source_name: String,
        /// Whether that is a mount of this program, too: then it can be unmounted first.
        is_like_it: bool,
    },
    /// Another filesystem is mounted inside of it.
    #[error(
        "{path}: {source_name} is mounted inside of it, at {inner}; unmount that first",
        path = path.display(), inner = inner.display()
    )]
    Inside {
        /// The mountpoint.
        path: PathBuf,
        /// Where the other is mounted.
        inner: PathBuf,
        /// What is mounted there.
        source_name: String,
    },
    /// It is unmounted here, but in use elsewhere.
    #[error(
        "{path}: it is not mounted there any more, but still in use: moved or bound to another \
         place (mount --move, --bind), in another mount namespace, or by files open since 'umount \
         -l'; end that, or use -f",
        path = path.display()
    )]
    Elsewhere {
        /// The mountpoint.
        path: PathBuf,
    },
    /// Somebody uses what is in a snapshot.
    #[error(
        "snapshot '{name}' is in use; close its files and leave its directories (lsof, fuser -m), \
         then try again"
    )]
    SnapshotBusy {
        /// Its name, after the `@`.
        name: String,
    },
    /// Unmounting failed otherwise.
    #[error("{path}: unmounting failed: {source}; try 'zfs unmount -f'", path = path.display())]
    Unmount {
        /// The mountpoint.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The filesystem could not be put on stable storage while unmounting.
    #[error(
        "{path}: unmounted, but its last changes could not be made durable: {source}",
        path = path.display()
    )]
    Flush {
        /// The mountpoint.
        path: PathBuf,
        /// Why.
        source: filesystem::FsError,
    },
}

/// Short for results of this crate.
pub type Result<T> = std::result::Result<T, MountError>;
