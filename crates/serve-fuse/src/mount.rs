//! A filesystem mounted through FUSE.
#![allow(clippy::todo, unused_variables, clippy::unused_async, missing_docs)]

use std::path::{Path, PathBuf};
use std::sync::Arc;

use device::BoxFuture;
use filesystem::{Filesystem, FsError};

use crate::error::Result;

/// How to mount.
#[derive(Debug, Clone)]
pub struct MountOptions {
    /// What `mount` and `df` show as the source: the dataset's name.
    pub source_name: String,
    /// Refuse writes (`-o ro`).
    pub read_only: bool,
    /// Let other users in (needs root, or user_allow_other).
    pub allow_other: bool,
    /// Obey device files (`devices`).
    pub devices: bool,
    /// Obey set-id bits (`setuid`).
    pub setuid: bool,
    /// Allow programs to run (`exec`).
    pub exec: bool,
    /// Mount over a directory that is not empty (`overlay`).
    pub overlay: bool,
    /// List `.zfs` in the root directory (`snapdir=visible`); it can be reached in any case.
    pub snapdir_visible: bool,
}

impl MountOptions {
    /// The defaults for a dataset: all allowed, `.zfs` hidden, overlay as OpenZFS's default (on).
    pub fn new(source_name: impl Into<String>) -> Self {
        Self {
            source_name: source_name.into(),
            read_only: false,
            allow_other: true,
            devices: true,
            setuid: true,
            exec: true,
            overlay: true,
            snapdir_visible: false,
        }
    }
}

/// A snapshot, as shown in `.zfs/snapshot`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SnapshotEntry {
    /// Its name, after the `@`.
    pub name: String,
    /// When it was made, in seconds since the epoch.
    pub creation_seconds: u64,
}

/// Where `.zfs/snapshot` gets its snapshots from.
pub trait SnapshotProvider: Send + Sync + 'static {
    /// The filesystem's snapshots.
    fn list(&self) -> BoxFuture<'_, std::result::Result<Vec<SnapshotEntry>, FsError>>;
    /// Opens one, read-only; [`FsError::NotFound`] where there is none of that name. The mount keeps
    /// it open while it is used.
    fn open<'a>(
        &'a self,
        name: &'a str,
    ) -> BoxFuture<'a, std::result::Result<Arc<Filesystem>, FsError>>;
}

/// How to unmount.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum UnmountMode {
    /// Refuse if files are open.
    #[default]
    Clean,
    /// Cut off whoever has files open (`-f`): their operations fail.
    Force,
    /// Take it out of the tree now; it ends when the last file is closed (`-l`).
    Lazy,
}

/// A mounted filesystem. Dropping it unmounts lazily.
pub struct Mount {
    _private: (),
}

impl Mount {
    /// Mounts `filesystem` at `mountpoint` (which is made where it does not exist). Call it within
    /// a tokio runtime, where requests are then served.
    pub async fn new(
        filesystem: Arc<Filesystem>,
        mountpoint: &Path,
        options: MountOptions,
        snapshots: Option<Arc<dyn SnapshotProvider>>,
    ) -> Result<Self> {
        todo!()
    }
    /// Where it is mounted.
    pub fn mountpoint(&self) -> &Path {
        todo!()
    }
    /// Whether it is still mounted (someone may have run umount).
    pub fn is_mounted(&self) -> bool {
        todo!()
    }
    /// Serves another state of the filesystem in its place (after a rollback or receive): the
    /// kernel's caches are dropped, and files whose object is gone answer ESTALE.
    pub async fn replace(&self, filesystem: Arc<Filesystem>) -> Result<()> {
        todo!()
    }
    /// Changes whether `.zfs` is listed.
    pub fn set_snapdir_visible(&self, visible: bool) {
        todo!()
    }
    /// Unmounts, waits for requests under way, puts everything on stable storage. The filesystem
    /// itself stays open (and can be mounted again).
    pub async fn unmount(&self, mode: UnmountMode) -> Result<()> {
        todo!()
    }
    /// Completes when it is not mounted any more, whoever did it.
    pub async fn ended(&self) {
        todo!()
    }
}

/// What is mounted exactly at `path`, if something is: its source and type of filesystem.
pub fn mounted_at(path: &Path) -> std::io::Result<Option<(String, String)>> {
    todo!()
}

#[allow(dead_code)]
fn _paths(_: PathBuf) {}
