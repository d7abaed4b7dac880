//! The bookmarks of a head dataset in memory (module/zfs/dsl_bookmark.c).

use std::sync::Arc;

use format::{BlockPointer, ObjectId, SnapshotBookmark, Txg};
use object::{ObjectSet, Zap};

use super::space::{Space, apply};
use crate::DatasetError;

/// A bookmark.

#[derive(Debug, Clone)]
pub(crate) struct BookmarkEntry {
    pub name: String,
    pub phys: SnapshotBookmark,
    /// Whether more is stored than the first release of bookmarks had: what feature `bookmark_v2`
    /// counts.
    pub is_long: bool,
    pub is_dirty: bool,
}

impl BookmarkEntry {
    pub(crate) fn new(name: &str, phys: SnapshotBookmark, is_long: bool) -> Self {
        BookmarkEntry {
            name: name.to_owned(),
            phys,
            is_long,
            is_dirty: false,
        }
    }

    pub(crate) fn creation_txg(&self) -> Txg {
        self.phys.creation_txg
    }

    pub(crate) fn counts_freed(&self) -> bool {
        self.phys.flags & SnapshotBookmark::FLAG_HAS_FREED_BEFORE_NEXT != 0
    }

    pub(crate) fn snapshot_exists(&self) -> bool {
        self.phys.flags & SnapshotBookmark::FLAG_SNAPSHOT_EXISTS != 0
    }

    pub(crate) fn add_freed(&mut self, space: Space) {
        apply(
            &mut self.phys.referenced_freed_before_next_bytes,
            space.used,
        );
        apply(
            &mut self.phys.compressed_freed_before_next_bytes,
            space.compressed,
        );
        apply(
            &mut self.phys.uncompressed_freed_before_next_bytes,
            space.uncompressed,
        );
    }
}

/// The bookmarks of one head dataset, in order of their txgs.
#[derive(Debug, Clone, Default)]
pub(crate) struct SnapshotBookmarks {
    pub zap: ObjectId,
    pub entries: Vec<BookmarkEntry>,
}

impl SnapshotBookmarks {
    /// Reads them; `zap` is zero without any.
    pub(crate) async fn load(mos: &Arc<ObjectSet>, zap: ObjectId) -> Result<Self, DatasetError> {
        let mut entries = Vec::new();
        if !zap.is_zero() {
            for entry in Zap::hold(mos, zap).await?.all().await? {
                let words = entry.value.to_u64s();
                entries.push(BookmarkEntry {
                    name: String::from_utf8_lossy(&entry.name).into_owned(),
                    phys: SnapshotBookmark::from_value(&words)?,
                    is_long: words.len() > SnapshotBookmark::WORDS_V1,
                    is_dirty: false,
                });
            }
            entries.sort_by_key(|entry| entry.phys.creation_txg);
        }
        Ok(SnapshotBookmarks { zap, entries })
    }

    /// The ZAP; zero without any.
    pub(crate) fn zap(&self) -> ObjectId {
        self.zap
    }

    /// The one of this name.
    pub(crate) fn find(&self, name: &str) -> Option<BookmarkEntry> {
        self.entries.iter().find(|one| one.name == name).cloned()
    }

    /// Adds one, which is in the ZAP `zap` already.
    pub(crate) fn insert(&mut self, zap: ObjectId, entry: BookmarkEntry) {
        self.zap = zap;
        let txg = entry.creation_txg();
        let at = (self.entries).partition_point(|other| other.creation_txg() <= txg);
        self.entries.insert(at, entry);
    }

    /// Takes those of `until` and earlier out; the ZAP still has them.
    pub(crate) fn take_until(&mut self, until: Txg) -> Vec<BookmarkEntry> {
        let at = (self.entries).partition_point(|entry| entry.creation_txg() <= until);
        self.entries.drain(..at).collect()
    }

    pub(crate) fn entries(&self) -> &[BookmarkEntry] {
        &self.entries
    }

    /// Txg of the newest one, or zero.
    pub(crate) fn latest_txg(&self) -> Txg {
        self.entries
            .last()
            .map_or(Txg::ZERO, BookmarkEntry::creation_txg)
    }

    /// A block of the head died (`dsl_bookmark_block_killed`).
    pub(crate) fn block_died(&mut self, prev_txg: Txg, block: &BlockPointer, space: Space) {
        for entry in self.entries.iter_mut().rev() {
            if entry.creation_txg() < prev_txg {
                break;
            }
            if block.birth() <= entry.creation_txg() && entry.counts_freed() {
                entry.add_freed(space);
                entry.is_dirty = true;
            }
        }
    }

    /// Keys that a new deadlist needs for the bookmarks since the snapshot before
    /// (`dsl_bookmark_snapshotted`), in rising order.
    pub(crate) fn keys_after(&self, prev_txg: Txg) -> Vec<Txg> {
        let mut keys: Vec<Txg> = self
            .entries
            .iter()
            .filter(|entry| entry.creation_txg() > prev_txg && entry.counts_freed())
            .map(BookmarkEntry::creation_txg)
            .collect();
        keys.dedup();
        keys
    }

    /// Whether one of them counts what dies before the next snapshot.
    pub(crate) fn counts_freed(&self) -> bool {
        self.entries.iter().any(BookmarkEntry::counts_freed)
    }

    pub(crate) fn take_dirty(&mut self) -> Vec<BookmarkEntry> {
        let mut dirty = Vec::new();
        for entry in &mut self.entries {
            if std::mem::take(&mut entry.is_dirty) {
                dirty.push(entry.clone());
            }
        }
        dirty
    }
}
