//! Looks at paths: what they lead to, and what is in a directory.
//!
//! Any path may lead to a server that does not answer (NFS, FUSE), where stat(2) and readdir(3)
//! wait as reads do. So nothing here is done on the caller's thread, and nobody waits longer than
//! for a disk that wakes up; a path at which calls are stuck gets no more of them (`file::aside`).

use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::time::Duration;

use futures::StreamExt;
use futures::future::{Either, select};

use crate::file::away;
use crate::{DeviceError, World};

/// How long a look may take. Longer than a disk takes to wake up.
const PATIENCE: Duration = Duration::from_secs(15);
/// Links of a directory that are followed at the same time.
const LOOKS_IN_FLIGHT: usize = 16;
/// Files of one directory that are looked at.
const FILES_MAX: usize = 100_000;

/// What a path leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathKind {
    /// A regular file.
    File,
    /// A block device.
    BlockDevice,
    /// Something that no vdev can be: a directory, a pipe, a terminal.
    Other,
}

/// What tells whether two paths lead to the same: a block device by its number, anything else by
/// its inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// What it is.
    pub kind: PathKind,
    /// A block device's number; else the filesystem's.
    pub device: u64,
    /// Number of the inode; zero of a block device.
    inode: u64,
}

impl Place {
    fn of(metadata: &std::fs::Metadata) -> Self {
        let kind = metadata.file_type();
        if kind.is_block_device() {
            return Self {
                kind: PathKind::BlockDevice,
                device: metadata.rdev(),
                inode: 0,
            };
        }
        Self {
            kind: match kind.is_file() {
                true => PathKind::File,
                false => PathKind::Other,
            },
            device: metadata.dev(),
            inode: metadata.ino(),
        }
    }
}

/// An entry of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its path.
    pub path: String,
    /// What it is, where that can be told without following a link.
    pub kind: Option<PathKind>,
}

/// The entries of a directory; nothing where the path is none that can be read.
pub(crate) async fn entries_of(path: &str) -> Result<Option<Vec<Entry>>, DeviceError> {
    let directory = path.to_owned();
    let list = move || {
        let entries = std::fs::read_dir(directory).ok()?;
        let entries = entries.flatten().filter_map(|entry| {
            let kind = entry.file_type().ok().filter(|kind| !kind.is_symlink());
            Some(Entry {
                path: entry.path().to_str()?.to_owned(),
                kind: kind.map(|kind| match kind {
                    _ if kind.is_file() => PathKind::File,
                    _ if kind.is_block_device() => PathKind::BlockDevice,
                    _ => PathKind::Other,
                }),
            })
        });
        Some(entries.take(FILES_MAX).collect())
    };
    away(path, list).await
}

/// The path of an entry, if it is a file or block device.
async fn storage(world: World, entry: Entry) -> Option<String> {
    let kind = match entry.kind {
        Some(kind) => kind,
        // /dev/disk/by-id is full of links.
        None => match world.look_at(&entry.path).await {
            Ok(place) => place.kind,
            Err(error @ DeviceError::Hung { .. }) => {
                tracing::warn!(%error, "what a directory leads to is left out");
                PathKind::Other
            }
            Err(_) => PathKind::Other,
        },
    };
    (kind != PathKind::Other).then_some(entry.path)
}

impl World {
    /// Waits for what looks at a path, but not for ever.
    ///
    /// # Errors
    /// Its own; [`DeviceError::Hung`] when it takes too long.
    async fn patiently<T>(
        &self,
        path: &str,
        looking: impl Future<Output = Result<T, DeviceError>> + Send,
    ) -> Result<T, DeviceError> {
        match select(Box::pin(looking), self.clock.sleep(PATIENCE)).await {
            Either::Left((seen, _)) => seen,
            Either::Right(_) => Err(DeviceError::Hung {
                path: path.to_owned(),
            }),
        }
    }

    /// What a path of the system leads to, links followed.
    ///
    /// # Errors
    /// [`DeviceError::Open`] with the system's answer; [`DeviceError::Hung`].
    pub async fn look_at(&self, path: &str) -> Result<Place, DeviceError> {
        let wanted = path.to_owned();
        let look = away(path, move || std::fs::metadata(wanted));
        let seen: io::Result<_> = self.patiently(path, look).await?;
        let seen = seen.map_err(|source| DeviceError::Open {
            path: path.to_owned(),
            source,
        })?;
        Ok(Place::of(&seen))
    }

    /// Paths of the files and block devices in a directory, in order; nothing where the path is no
    /// directory. Opening pipes, sockets or terminals may hang, so they are not among them, nor is
    /// anything that does not answer.
    ///
    /// # Errors
    /// [`DeviceError::Hung`] when the directory does not answer.
    pub async fn storage_in(&self, path: &str) -> Result<Option<Vec<String>>, DeviceError> {
        let Some(entries) = self.patiently(path, self.opener.entries(path)).await? else {
            return Ok(None);
        };
        let looks = entries
            .into_iter()
            .map(|entry| storage(self.clone(), entry));
        let looks = futures::stream::iter(looks).buffer_unordered(LOOKS_IN_FLIGHT);
        let found: Vec<Option<String>> = looks.collect().await;
        let mut files: Vec<String> = found.into_iter().flatten().collect();
        files.sort();
        Ok(Some(files))
    }
}
