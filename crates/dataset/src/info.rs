//! What callers are told about datasets.

use format::{Guid, ObjectId, ObjsetKind, Txg};

use crate::DatasetError;
use crate::props::Kinds;

/// Kind of a dataset.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DatasetKind {
    /// A filesystem.
    Filesystem,
    /// A volume.
    Volume,
    /// A snapshot of either.
    Snapshot,
}

impl DatasetKind {
    /// As `zfs get type` shows it.
    pub const fn name(self) -> &'static str {
        match self {
            DatasetKind::Filesystem => "filesystem",
            DatasetKind::Volume => "volume",
            DatasetKind::Snapshot => "snapshot",
        }
    }

    /// As a set.
    pub const fn kinds(self) -> Kinds {
        match self {
            DatasetKind::Filesystem => Kinds::FILESYSTEM,
            DatasetKind::Volume => Kinds::VOLUME,
            DatasetKind::Snapshot => Kinds::SNAPSHOT,
        }
    }
}

/// A dataset in numbers, as `zfs list` shows it. Sizes in bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct DatasetInfo {
    /// Full name.
    pub name: String,
    /// Kind.
    pub kind: DatasetKind,
    /// For a snapshot: the kind of what it is a snapshot of. Else the same as `kind`.
    pub head_kind: DatasetKind,
    /// Object number in the MOS (`objsetid`).
    pub object: ObjectId,
    /// Identity.
    pub guid: Guid,
    /// Seconds since the epoch.
    pub creation_seconds: u64,
    /// Txg of creation.
    pub createtxg: Txg,
    /// Space used: by the dataset and everything below it; for a snapshot, what destroying it alone
    /// would free.
    pub used_bytes: u64,
    /// Space available to it and everything below it; zero for a snapshot.
    pub available_bytes: u64,
    /// Space of what it refers to.
    pub referenced_bytes: u64,
    /// The snapshot that it is a clone of.
    pub origin: Option<String>,
    /// Part of a receive that has not finished, or damaged by one.
    pub is_inconsistent: bool,
    /// It was received of a redacted stream, and lacks blocks.
    pub is_redacted: bool,
    /// For a snapshot: how many holds are on it.
    pub user_holds: u64,
}

/// Which datasets to list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListOptions {
    /// Filesystems.
    pub filesystems: bool,
    /// Volumes.
    pub volumes: bool,
    /// Snapshots.
    pub snapshots: bool,
    /// Levels below the named dataset; `None` for all. Snapshots of a dataset are one level below
    /// it.
    pub depth: Option<usize>,
}

impl Default for ListOptions {
    fn default() -> Self {
        ListOptions {
            filesystems: true,
            volumes: true,
            snapshots: false,
            depth: None,
        }
    }
}

/// What could not be read, by name, and why.
pub type Lost = Vec<(String, DatasetError)>;

/// What was found, unless something is lost.
pub(crate) fn none_lost<T>(found: T, lost: Lost) -> Result<T, DatasetError> {
    match lost.into_iter().next() {
        Some((_, error)) => Err(error),
        None => Ok(found),
    }
}

/// A change to one property.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PropertyChange {
    /// Set it to what a person typed.
    Set(String),
    /// Remove the setting: inherit, or take the default.
    Inherit,
    /// Remove the setting and go back to what a receive brought, if it did.
    Received,
}

/// What an operation is expected to write, for the space check and the write throttle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DirtyEstimate {
    /// Bytes that it dirties, data and metadata.
    pub bytes: u64,
    /// How big the blocks are that it writes, in bytes: small ones take more than their size on
    /// RAID-Z. Zero: as `recordsize` says.
    pub block_bytes: u32,
    /// In the end it frees space (remove, truncate): allowed although the pool is (nearly) full.
    pub frees_space: bool,
}

impl DirtyEstimate {
    /// Room for the metadata that any one operation touches.
    pub(crate) const METADATA_BYTES: u64 = 256 << 10;
    /// What freeing a small object dirties beside: the block of dnodes that it is in, and itself.
    const SMALL_OBJECT_BYTES: u64 = 32 << 10;

    /// A write of data, and the metadata that goes with it.
    pub const fn write(bytes: u64) -> Self {
        DirtyEstimate {
            bytes: bytes + bytes / 64 + Self::METADATA_BYTES,
            block_bytes: 0,
            frees_space: false,
        }
    }

    /// The same in blocks of `block_bytes`.
    pub const fn in_blocks_of(mut self, block_bytes: u32) -> Self {
        self.block_bytes = block_bytes;
        self
    }

    /// An operation on metadata only.
    pub const fn metadata() -> Self {
        DirtyEstimate {
            bytes: Self::METADATA_BYTES,
            block_bytes: 0,
            frees_space: false,
        }
    }

    /// An operation that frees space.
    pub const fn free() -> Self {
        DirtyEstimate {
            bytes: Self::METADATA_BYTES,
            block_bytes: 0,
            frees_space: true,
        }
    }

    /// An operation that frees several objects to whose blocks their dnodes lead.
    pub const fn free_small(objects: u64) -> Self {
        DirtyEstimate {
            bytes: Self::METADATA_BYTES + objects * Self::SMALL_OBJECT_BYTES,
            block_bytes: 0,
            frees_space: true,
        }
    }
}

/// Kind of a dataset whose object set is of this kind.
pub(crate) fn kind_of(kind: ObjsetKind) -> DatasetKind {
    match kind {
        ObjsetKind::Volume => DatasetKind::Volume,
        _ => DatasetKind::Filesystem,
    }
}
