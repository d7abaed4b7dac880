//! Who uses an open dataset.

use std::fmt;
use std::path::PathBuf;

/// Who uses an open dataset, as data: whoever is refused learns from it what to end.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum User {
    /// A mount.
    Mount {
        /// Its directory.
        path: PathBuf,
    },
    /// A mount's `.zfs/snapshot`, which opened a snapshot on demand.
    SnapshotDirectory {
        /// The directory of the mount.
        path: PathBuf,
    },
    /// A volume's file.
    VolumeFile {
        /// The file.
        path: PathBuf,
    },
    /// An iSCSI target.
    Target {
        /// Its name.
        iqn: String,
    },
    /// A share by NFS, with snapshots that its clients look at.
    NfsShare {
        /// The path that clients mount.
        path: String,
    },
    /// The server, which keeps a volume ready.
    Server,
    /// A command, for a moment.
    Command {
        /// Its name, as `userspace`.
        name: &'static str,
    },
}

impl User {
    /// Whether it is done in a moment, so that others wait for it instead of being refused.
    pub fn is_brief(&self) -> bool {
        matches!(self, User::Command { .. })
    }
}

impl fmt::Display for User {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            User::Mount { path } => write!(out, "mounted at {}", path.display()),
            User::SnapshotDirectory { path } => {
                write!(out, "in use below {}/.zfs/snapshot", path.display())
            }
            User::VolumeFile { path } => write!(out, "shown as {}", path.display()),
            User::Target { iqn } => write!(out, "shared as {iqn}"),
            User::NfsShare { path } => write!(out, "shared by NFS as {path}"),
            User::Server => write!(out, "kept open by the server"),
            User::Command { name } => write!(out, "used by '{name}'"),
        }
    }
}
