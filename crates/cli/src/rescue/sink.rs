//! Where a rescue puts what it finds.

use std::ops::Range;

use filesystem::{Attributes, FileKind, SalvagedXattrs, Time};
use object::{Object, Piece};

use super::archive::Archive;
use super::directory::Directory;
use super::progress::Progress;

/// Something in a filesystem, with its place.
pub struct Item<'a> {
    /// The dataset's full name.
    pub dataset: &'a str,
    /// Names from the dataset's root down to it.
    pub path: &'a [Vec<u8>],
    /// All about it.
    pub attributes: Attributes,
}

/// Bytes to read.
pub struct Content<'a> {
    /// What has them.
    pub object: &'a Object,
    /// How many.
    pub size_bytes: u64,
}

impl Content<'_> {
    /// What a file has that holds all of a volume.
    pub fn volume_attributes(&self, uid: u32, gid: u32, time: Time) -> Attributes {
        Attributes {
            ino: self.object.id().get(),
            generation: 0,
            kind: FileKind::Regular,
            mode: 0o600,
            uid,
            gid,
            nlink: 1,
            size_bytes: self.size_bytes,
            allocated_bytes: 0,
            block_bytes: 0,
            rdev: (0, 0),
            atime: time,
            mtime: time,
            ctime: time,
            crtime: time,
            flags: 0,
            project: None,
            parent: 0,
            is_dirty: false,
        }
    }
}

/// What became of a file with content.
#[derive(Debug, Default)]
pub struct Outcome {
    /// It was looked at to its end.
    pub is_done: bool,
    /// It had been copied before.
    pub was_there: bool,
    /// Ranges that cannot be read.
    pub lost: Vec<Range<u64>>,
    /// Why the first of them cannot.
    pub why: String,
    /// Name of a damaged copy, for people.
    pub saved_as: Option<String>,
    /// The last part of its path, where it is another than its own.
    pub stored_name: Option<Vec<u8>>,
    /// Bytes read.
    pub bytes: u64,
    /// What could not be stored.
    pub not_stored: Vec<String>,
}

impl Outcome {
    /// A range is lost.
    pub fn lose(&mut self, range: Range<u64>, why: &dyn std::fmt::Display) {
        if self.lost.is_empty() {
            self.why = why.to_string();
        }
        self.lost.push(range);
    }
}

/// A way out.
pub enum Sink {
    /// Nothing is kept: everything is read to see what can be.
    Check,
    /// Into a directory.
    Directory(Directory),
    /// Into an archive.
    Archive(Archive),
}

/// Problems that one item has; none when all went well.
pub type Problems = anyhow::Result<Vec<String>>;

impl Sink {
    /// A directory begins. Problems mean that nothing can be put into it.
    pub fn enter(&mut self, item: &Item<'_>) -> Problems {
        match self {
            Self::Directory(to) => to.enter(item),
            Self::Check | Self::Archive(_) => Ok(Vec::new()),
        }
    }

    /// A directory ends: nothing more is put into it.
    pub fn leave(&mut self, item: &Item<'_>, xattrs: &SalvagedXattrs) -> Problems {
        match self {
            Self::Check => Ok(Vec::new()),
            Self::Directory(to) => to.leave(item, xattrs),
            Self::Archive(to) => to.directory(item, xattrs),
        }
    }

    /// A regular file.
    pub async fn file(
        &mut self,
        item: &Item<'_>,
        xattrs: &SalvagedXattrs,
        content: &Content<'_>,
        progress: &Progress,
    ) -> anyhow::Result<Outcome> {
        match self {
            Self::Check => Ok(check(content, progress).await),
            Self::Directory(to) => to.file(item, xattrs, content, progress).await,
            Self::Archive(to) => to.file(item, xattrs, content, progress).await,
        }
    }

    /// Another name of a file; `first` is its first.
    pub fn hard_link(&mut self, item: &Item<'_>, first: &[Vec<u8>]) -> Problems {
        match self {
            Self::Check => Ok(Vec::new()),
            Self::Directory(to) => to.hard_link(item, first),
            Self::Archive(to) => to.hard_link(item, first),
        }
    }

    /// A symbolic link.
    pub fn symlink(&mut self, item: &Item<'_>, xattrs: &SalvagedXattrs, target: &[u8]) -> Problems {
        match self {
            Self::Check => Ok(Vec::new()),
            Self::Directory(to) => to.symlink(item, xattrs, target),
            Self::Archive(to) => to.symlink(item, xattrs, target),
        }
    }

    /// A device, pipe or socket.
    pub fn special(&mut self, item: &Item<'_>, xattrs: &SalvagedXattrs) -> Problems {
        match self {
            Self::Check => Ok(Vec::new()),
            Self::Directory(to) => to.special(item, xattrs),
            Self::Archive(to) => to.special(item, xattrs),
        }
    }

    /// A volume: becomes a file of the dataset's name.
    pub async fn volume(
        &mut self,
        dataset: &str,
        content: &Content<'_>,
        progress: &Progress,
    ) -> anyhow::Result<Outcome> {
        match self {
            Self::Check => Ok(check(content, progress).await),
            Self::Directory(to) => to.volume(dataset, content, progress).await,
            Self::Archive(to) => to.volume(dataset, content, progress).await,
        }
    }

    /// A directory of this name in the dataset's root, for what has lost its own. False where there
    /// cannot be.
    pub fn lost_and_found(&mut self, dataset: &str, name: &[u8]) -> anyhow::Result<bool> {
        match self {
            Self::Directory(to) => to.lost_and_found(dataset, name),
            Self::Check | Self::Archive(_) => Ok(true),
        }
    }

    /// The end. Returns what is to be known of all that was stored.
    pub fn finish(self) -> anyhow::Result<Vec<String>> {
        match self {
            Self::Check => Ok(Vec::new()),
            Self::Directory(to) => to.finish(),
            Self::Archive(to) => to.finish(),
        }
    }
}

/// Ends the name of a copy that has zeros in place of what is lost.
const DAMAGED: &[u8] = b".millpond-damaged";
/// Longest name that most filesystems take, in bytes.
const NAME_BYTES_MAX: usize = 255;

/// The name of a copy that has zeros in place of what is lost.
pub fn damaged_name(name: &[u8]) -> Vec<u8> {
    let mut name = name.to_vec();
    name.truncate(NAME_BYTES_MAX - DAMAGED.len());
    name.extend_from_slice(DAMAGED);
    name
}

/// A dataset's name as path components that stay where they are put, whatever the pool says.
pub fn components(dataset: &str) -> Vec<Vec<u8>> {
    dataset
        .split('/')
        .map(|part| match part {
            "" | "." | ".." => b"lost".to_vec(),
            part => part.replace('\0', "_").into_bytes(),
        })
        .collect()
}

/// Reads all of it.
async fn check(content: &Content<'_>, progress: &Progress) -> Outcome {
    let mut outcome = Outcome::default();
    let mut at = 0;
    while let Some(piece) = content.object.next_piece(at, content.size_bytes).await {
        if progress.is_stopped() {
            return outcome;
        }
        match piece {
            Piece::Data { start_bytes, data } => {
                let length: u64 = data.iter().map(|part| part.len() as u64).sum();
                outcome.bytes += length;
                progress.bytes(length);
                at = start_bytes + length;
            }
            Piece::Lost { range, error } => {
                at = range.end;
                outcome.lose(range, &error);
            }
        }
    }
    outcome.is_done = true;
    outcome
}
