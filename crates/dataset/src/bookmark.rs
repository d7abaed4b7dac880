//! Bookmarks of a dataset, and how changing the dataset changes them (module/zfs/dsl_bookmark.c).
//!
//! A bookmark remembers a snapshot's txg and guid after the snapshot is gone. Since feature
//! `bookmark_written` it also counts the space that it referred to and that died before the next
//! snapshot ("freed before next", FBN); that count changes with every block that dies.

use std::sync::Arc;

use format::{SnapshotBookmark, Txg, names};
use object::{SyncContext, Zap, ZapValue};
use zio::Tx;

use crate::DatasetError;
use crate::dsl::DslPool;
use crate::features::guid;
use crate::state::{BookmarkEntry, Dir, Ds};

/// A bookmark as `zfs list -t bookmark` shows it.
#[derive(Debug, Clone)]
pub struct BookmarkInfo {
    /// Full name, `POOL/DATASET#BOOKMARK`.
    pub name: String,
    /// What is stored.
    pub phys: SnapshotBookmark,
}

/// Bookmarks of datasets: [`DslPool::bookmarks`].
#[derive(Clone, Copy)]
pub struct Bookmarks<'a> {
    pub(crate) dsl: &'a Arc<DslPool>,
}

impl DslPool {
    /// Bookmarks.
    pub fn bookmarks(self: &Arc<Self>) -> Bookmarks<'_> {
        Bookmarks { dsl: self }
    }
}

impl Bookmarks<'_> {
    /// Bookmarks of a filesystem or volume, oldest first (`dsl_get_bookmarks_impl`).
    ///
    /// # Errors
    /// [`DatasetError::NotFound`].
    pub async fn list(&self, name: &str) -> Result<Vec<BookmarkInfo>, DatasetError> {
        let _config = self.dsl.config.read().await;
        let head = self.dsl.directories().resolve(name).await?;
        let entries = head.state().bookmarks.entries.clone();
        let full = |entry: BookmarkEntry| BookmarkInfo {
            name: format!("{name}#{}", entry.name),
            phys: entry.phys,
        };
        Ok(entries.into_iter().map(full).collect())
    }
}

impl Bookmarks<'_> {
    /// The head of a bookmark's full name, and the name behind `#`.
    pub(crate) async fn head_of<'a>(
        &self,
        name: &'a str,
    ) -> Result<(Arc<Ds>, &'a str), DatasetError> {
        let (head, short) = name.split_once('#').unwrap_or((name, ""));
        Ok((self.dsl.directories().resolve(head).await?, short))
    }

    /// The bookmark of this full name.
    pub(crate) async fn entry(&self, name: &str) -> Result<(Arc<Ds>, BookmarkEntry), DatasetError> {
        let (head, short) = self.head_of(name).await?;
        let entry = head.state().bookmarks.find(short);
        match entry {
            Some(entry) => Ok((head, entry)),
            None => Err(DatasetError::not_found(name)),
        }
    }

    /// Whether what `earlier` was in `txg` is a state that `later` once had
    /// (`dsl_dataset_is_before`).
    pub(crate) async fn is_before(
        &self,
        later: &Arc<Dir>,
        earlier: &Arc<Dir>,
        txg: Txg,
    ) -> Result<bool, DatasetError> {
        let mut later = later.clone();
        let mut until = Txg::new(u64::MAX);
        loop {
            if Arc::ptr_eq(&later, earlier) {
                return Ok(txg <= until);
            }
            let origin = later.state().phys.origin;
            if origin.is_zero() {
                return Ok(false);
            }
            let origin = self.dsl.directories().dataset(origin).await?;
            let created = origin.phys().creation_txg;
            if created >= until {
                let what = "a clone that it is cloned from is cloned from it";
                return Err(DatasetError::corrupt(later.object, what));
            }
            until = created;
            later = origin.dir();
            if txg > until {
                return Ok(false);
            }
        }
    }
}

impl Bookmarks<'_> {
    /// Writes the bookmarks of a head that changed (`dsl_bookmark_sync_done`).
    pub(crate) async fn save(&self, ctx: &SyncContext, head: &Arc<Ds>) -> Result<(), DatasetError> {
        let (zap, dirty) = {
            let mut state = head.state();
            (state.bookmarks.zap, state.bookmarks.take_dirty())
        };
        if dirty.is_empty() {
            return Ok(());
        }
        let tx = Tx::syncing(ctx.txg);
        let zap = Zap::hold(self.dsl.mos(), zap).await?;
        for entry in dirty {
            zap.update(
                &tx,
                &entry.name,
                ZapValue::from_u64s(&entry.phys.to_words()),
            )
            .await?;
        }
        Ok(())
    }

    /// A snapshot of `head` is being destroyed (`dsl_bookmark_ds_destroyed`). Says whether a
    /// bookmark of it needs its key in deadlists.
    pub(crate) async fn snapshot_destroyed(
        &self,
        ctx: &SyncContext,
        head: &Arc<Ds>,
        snapshot: &Arc<Ds>,
        next: &Arc<Ds>,
    ) -> Result<bool, DatasetError> {
        let phys = snapshot.phys();
        let affected: Vec<Txg> = head
            .state()
            .bookmarks
            .entries
            .iter()
            .filter(|entry| {
                entry.counts_freed()
                    && entry.creation_txg() >= phys.previous_snapshot_txg
                    && entry.creation_txg() < phys.creation_txg
            })
            .map(BookmarkEntry::creation_txg)
            .collect();
        for txg in affected {
            let space = self
                .dsl
                .deadlists()
                .of(next)
                .await?
                .space_range(&self.dsl.lists, Txg::ZERO, txg)
                .await?;
            for entry in &mut head.state().bookmarks.entries {
                if entry.counts_freed() && entry.creation_txg() == txg && !entry.is_dirty {
                    entry.add_freed(space);
                    entry.is_dirty = true;
                }
            }
        }
        let mut needs_key = false;
        for entry in &mut head.state().bookmarks.entries {
            if entry.creation_txg() == phys.creation_txg && entry.counts_freed() {
                entry.phys.flags &= !SnapshotBookmark::FLAG_SNAPSHOT_EXISTS;
                entry.is_dirty = true;
                needs_key = true;
            }
        }
        self.save(ctx, head).await?;
        Ok(needs_key)
    }

    /// The dataset after `origin` is another one now (`dsl_bookmark_next_changed`): counts what
    /// died between the two anew.
    pub(crate) async fn next_changed(
        &self,
        ctx: &SyncContext,
        head: &Arc<Ds>,
        origin: &Arc<Ds>,
    ) -> Result<(), DatasetError> {
        let origin_txg = origin.phys().creation_txg;
        let any = head
            .state()
            .bookmarks
            .entries
            .iter()
            .any(|entry| entry.counts_freed() && entry.creation_txg() == origin_txg);
        if !any {
            return Ok(());
        }
        let next = origin.phys().next_snapshot;
        let next = self.dsl.directories().dataset(next).await?;
        let freed = self.dsl.deadlists().of(&next).await?.space().await?;
        self.dsl.deadlists().let_go(&next).await;
        for entry in &mut head.state().bookmarks.entries {
            if entry.counts_freed() && entry.creation_txg() == origin_txg {
                entry.phys.referenced_freed_before_next_bytes = 0;
                entry.phys.compressed_freed_before_next_bytes = 0;
                entry.phys.uncompressed_freed_before_next_bytes = 0;
                entry.add_freed(freed);
                entry.is_dirty = true;
            }
        }
        self.save(ctx, head).await
    }
}

impl Bookmarks<'_> {
    /// Frees the ZAP of a head that has no bookmark left.
    pub(crate) async fn forget_empty(
        &self,
        ctx: &SyncContext,
        head: &Arc<Ds>,
    ) -> Result<(), DatasetError> {
        let is_last = head.state().bookmarks.entries.is_empty();
        if !is_last {
            return Ok(());
        }
        Zap::hold(self.dsl.mos(), head.object)
            .await?
            .remove(&Tx::syncing(ctx.txg), names::dataset::BOOKMARK_NAMES)
            .await?;
        self.free_all(ctx, head).await
    }

    /// Frees all bookmarks of a head, which is being destroyed or has none left.
    pub(crate) async fn free_all(
        &self,
        ctx: &SyncContext,
        head: &Arc<Ds>,
    ) -> Result<(), DatasetError> {
        let bookmarks = std::mem::take(&mut head.state().bookmarks);
        if bookmarks.zap.is_zero() {
            return Ok(());
        }
        for entry in &bookmarks.entries {
            self.release_bookmark(ctx, entry).await?;
        }
        let tx = Tx::syncing(ctx.txg);
        self.dsl.mos().free(&tx, bookmarks.zap).await?;
        self.dsl.features().decrement(ctx, guid::BOOKMARKS).await
    }

    /// Gives back what a bookmark uses beside its entry.
    pub(crate) async fn release_bookmark(
        &self,
        ctx: &SyncContext,
        entry: &BookmarkEntry,
    ) -> Result<(), DatasetError> {
        let features = self.dsl.features();
        // OpenZFS forgets to count down those of a dataset that is destroyed, never up: the count
        // is not too low.
        if entry.is_long {
            features.decrement(ctx, guid::BOOKMARK_V2).await?;
        }
        if entry.counts_freed() {
            features.decrement(ctx, guid::BOOKMARK_WRITTEN).await?;
        }
        let redaction = entry.phys.redaction_list;
        if redaction.is_zero() {
            return Ok(());
        }
        if self.dsl.mos().hold(redaction).await?.info().has_spill {
            let spill = guid::REDACTION_LIST_SPILL;
            features.decrement(ctx, spill).await?;
        }
        self.dsl
            .mos()
            .free(&Tx::syncing(ctx.txg), redaction)
            .await?;
        features.decrement(ctx, guid::REDACTION_BOOKMARKS).await
    }
}
