//! Making bookmarks, of snapshots and of other bookmarks, and moving them to another head
//! (`dsl_bookmark_create_check`, `dsl_bookmark_create_sync`, module/zfs/dsl_bookmark.c).
//!
//! A new bookmark takes no key in the deadlists: its snapshot, or the bookmark that it is a copy
//! of, has one already.

use std::collections::BTreeSet;
use std::sync::Arc;

use device::BoxFuture;
use format::{NvList, ObjectType, RedactionListPhys, SnapshotBookmark, Txg, names};
use object::{SyncContext, Zap, ZapOptions, ZapValue};
use zio::Tx;

use crate::DatasetError;
use crate::bookmark::Bookmarks;
use crate::create::SNAPSHOT_NAME_NORMALIZATION;
use crate::dsl::DslPool;
use crate::features::guid;
use crate::name::{check_bookmark_name, check_name};
use crate::state::{BookmarkEntry, Ds};
use crate::task::{BLOCKS_MIN, SpaceCheck, SyncTask};

/// A bookmark to make: its full name, and that of the snapshot or bookmark it is made of.
pub type NewBookmark = (String, String);

impl Bookmarks<'_> {
    /// Makes bookmarks, all of them or none. The source of each is a snapshot or a bookmark of the
    /// dataset that gets it, or of what that is a clone of.
    ///
    /// # Errors
    /// [`DatasetError::NotFound`], [`DatasetError::Exists`], [`DatasetError::InvalidName`],
    /// [`DatasetError::NotAncestor`], [`DatasetError::Unsupported`] without feature `bookmarks`.
    pub async fn create(&self, bookmarks: &[NewBookmark]) -> Result<(), DatasetError> {
        let mut seen = BTreeSet::new();
        for (name, source) in bookmarks {
            check_names(name, source)?;
            if !seen.insert(name) {
                return Err(DatasetError::Exists { name: name.clone() });
            }
        }
        let task = CreateBookmarksTask {
            dsl: self.dsl.clone(),
            bookmarks: bookmarks.to_vec(),
        };
        self.dsl.tasks().run(Arc::new(task)).await?;
        let mut input = NvList::new();
        for (name, source) in bookmarks {
            input.set(name, source.as_str());
        }
        self.dsl.env().hooks.fulfilled("bookmark", input);
        Ok(())
    }

    /// The task that makes one bookmark, for who runs tasks in syncing context
    /// ([`crate::ProgramPool`]).
    ///
    /// # Errors
    /// [`DatasetError::InvalidName`].
    pub fn create_task(&self, name: &str, source: &str) -> Result<Arc<dyn SyncTask>, DatasetError> {
        check_names(name, source)?;
        Ok(Arc::new(CreateBookmarksTask {
            dsl: self.dsl.clone(),
            bookmarks: vec![(name.to_owned(), source.to_owned())],
        }))
    }

    /// Whether a bookmark can be made of a snapshot or bookmark (`dsl_bookmark_create_check_impl`).
    pub(crate) async fn check_new(&self, name: &str, source: &str) -> Result<(), DatasetError> {
        let (head, short) = self.head_of(name).await?;
        if head.state().bookmarks.find(short).is_some() {
            return Err(DatasetError::Exists {
                name: name.to_owned(),
            });
        }
        let (dir, txg) = if source.contains('#') {
            let (of, entry) = self.entry(source).await?;
            (of.dir(), entry.creation_txg())
        } else {
            let snapshot = self.dsl.directories().resolve(source).await?;
            if let Some(with) = snapshot.redacted_with() {
                self.check_list(name, with.len())?;
            }
            self.phys_of(&snapshot).await?;
            (snapshot.dir(), snapshot.phys().creation_txg)
        };
        if !self.is_before(&head.dir(), &dir, txg).await? {
            return Err(DatasetError::NotAncestor {
                name: name.to_owned(),
            });
        }
        self.dsl.readable().bookmarks(&head).await
    }

    /// What a bookmark of a snapshot holds (`dsl_bookmark_set_phys`).
    async fn phys_of(&self, snapshot: &Arc<Ds>) -> Result<SnapshotBookmark, DatasetError> {
        let from = snapshot.phys();
        let features = self.dsl.features();
        let mut phys = SnapshotBookmark {
            guid: from.guid,
            creation_txg: from.creation_txg,
            creation_time_seconds: from.creation_time_seconds,
            ..SnapshotBookmark::default()
        };
        if snapshot.is_encrypted() && features.is_enabled(guid::BOOKMARK_V2) {
            let zap = Zap::hold(self.dsl.mos(), snapshot.object).await?;
            let stored = zap.lookup_u64(names::dataset::IVSET_GUID).await?;
            phys.ivset_guid = stored.unwrap_or(0);
        }
        if features.is_enabled(guid::BOOKMARK_WRITTEN) {
            let next = self.dsl.directories().dataset(from.next_snapshot).await?;
            let freed = self.dsl.deadlists().of(&next).await?.space().await?;
            self.dsl.deadlists().let_go(&next).await;
            phys.flags = SnapshotBookmark::FLAG_SNAPSHOT_EXISTS
                | SnapshotBookmark::FLAG_HAS_FREED_BEFORE_NEXT;
            phys.referenced_bytes = from.referenced_bytes;
            phys.compressed_bytes = from.compressed_bytes;
            phys.uncompressed_bytes = from.uncompressed_bytes;
            phys.referenced_freed_before_next_bytes = freed.used.max(0) as u64;
            phys.compressed_freed_before_next_bytes = freed.compressed.max(0) as u64;
            phys.uncompressed_freed_before_next_bytes = freed.uncompressed.max(0) as u64;
        }
        Ok(phys)
    }

    /// Adds a bookmark to a head (`dsl_bookmark_node_add`). `entry.is_long` says whether all words
    /// are stored; what that counts in features is the caller's.
    async fn add_entry(
        &self,
        ctx: &SyncContext,
        head: &Arc<Ds>,
        entry: BookmarkEntry,
    ) -> Result<(), DatasetError> {
        let tx = Tx::syncing(ctx.txg);
        let mut zap = head.state().bookmarks.zap();
        if zap.is_zero() {
            let mut options = ZapOptions::new(ObjectType::OTN_ZAP_METADATA);
            options.normalization = SNAPSHOT_NAME_NORMALIZATION;
            zap = Zap::create(self.dsl.mos(), &tx, options).await?.id();
            let features = self.dsl.features();
            features.increment(ctx, guid::BOOKMARKS).await?;
            self.dsl
                .zapify_dataset(ctx, head)
                .await?
                .add_u64(&tx, names::dataset::BOOKMARK_NAMES, zap.get())
                .await?;
        }
        let mut words = entry.phys.to_words().to_vec();
        if !entry.is_long {
            words.truncate(SnapshotBookmark::WORDS_V1);
        }
        Zap::hold(self.dsl.mos(), zap)
            .await?
            .add(&tx, &entry.name, ZapValue::from_u64s(&words))
            .await?;
        head.state().bookmarks.insert(zap, entry);
        Ok(())
    }

    async fn create_now(
        &self,
        ctx: &SyncContext,
        name: &str,
        source: &str,
    ) -> Result<(), DatasetError> {
        if !source.contains('#') {
            return self.create_of_snapshot(ctx, name, source, None).await;
        }
        let (head, short) = self.head_of(name).await?;
        let (of, entry) = self.entry(source).await?;
        let mut phys = entry.phys;
        // The list belongs to the other one, and goes with it.
        phys.redaction_list = format::ObjectId::ZERO;
        let text = format!(
            "name={short} creation_txg={} source_guid={}",
            phys.creation_txg, phys.guid
        );
        self.add_new(ctx, &head, short, phys).await?;
        let told_of = self.dsl.directories().full_name(&of).await?;
        self.dsl
            .history(ctx, "bookmark", told_of, of.object, text)
            .await
    }

    /// Makes a bookmark of a snapshot, with a redaction list or without, in syncing context
    /// (`dsl_bookmark_create_sync_impl_snap`). One of a redacted snapshot has a list that names no
    /// blocks, only the snapshots.
    pub(crate) async fn create_of_snapshot(
        &self,
        ctx: &SyncContext,
        name: &str,
        source: &str,
        list: Option<RedactionListPhys>,
    ) -> Result<(), DatasetError> {
        let (head, short) = self.head_of(name).await?;
        let snapshot = self.dsl.directories().resolve(source).await?;
        let mut phys = self.phys_of(&snapshot).await?;
        let of_redacted = snapshot.redacted_with().map(|snapshots| RedactionListPhys {
            reached: RedactionListPhys::WHOLE,
            entries: 0,
            snapshots,
        });
        if let Some(list) = of_redacted.or(list) {
            phys.redaction_list = self.create_list(ctx, &list).await?;
        }
        let text = format!(
            "name={short} creation_txg={} target_snap={} redact_obj={}",
            phys.creation_txg, snapshot.object, phys.redaction_list
        );
        self.add_new(ctx, &head, short, phys).await?;
        let told_of = self.dsl.directories().full_name(&head).await?;
        self.dsl
            .history(ctx, "bookmark", told_of, head.object, text)
            .await
    }

    async fn add_new(
        &self,
        ctx: &SyncContext,
        head: &Arc<Ds>,
        short: &str,
        phys: SnapshotBookmark,
    ) -> Result<(), DatasetError> {
        let features = self.dsl.features();
        let counts_freed = phys.flags & SnapshotBookmark::FLAG_HAS_FREED_BEFORE_NEXT != 0;
        if counts_freed {
            features.increment(ctx, guid::BOOKMARK_WRITTEN).await?;
        }
        let has_list = !phys.redaction_list.is_zero();
        let is_long = features.is_enabled(guid::BOOKMARK_V2)
            && (phys.ivset_guid != 0 || counts_freed || has_list);
        if is_long {
            features.increment(ctx, guid::BOOKMARK_V2).await?;
        }
        let entry = BookmarkEntry::new(short, phys, is_long);
        self.add_entry(ctx, head, entry).await
    }

    /// Names of a head's bookmarks of `until` or earlier.
    pub(crate) fn names_until(head: &Arc<Ds>, until: Txg) -> Vec<String> {
        let state = head.state();
        let entries = state.bookmarks.entries().iter();
        entries
            .take_while(|entry| entry.creation_txg() <= until)
            .map(|entry| entry.name.clone())
            .collect()
    }

    /// Gives the bookmarks of `until` or earlier to another head (`dsl_dataset_promote_sync`). What
    /// they count as in features does not change.
    pub(crate) async fn give(
        &self,
        ctx: &SyncContext,
        from: &Arc<Ds>,
        to: &Arc<Ds>,
        until: Txg,
    ) -> Result<(), DatasetError> {
        let tx = Tx::syncing(ctx.txg);
        let moved = from.state().bookmarks.take_until(until);
        if moved.is_empty() {
            return Ok(());
        }
        let zap = from.state().bookmarks.zap();
        let zap = Zap::hold(self.dsl.mos(), zap).await?;
        for entry in moved {
            zap.remove(&tx, &entry.name).await?;
            self.add_entry(ctx, to, entry).await?;
        }
        self.forget_empty(ctx, from).await
    }
}

/// Checks the names of a new bookmark and of what it is made of.
fn check_names(name: &str, source: &str) -> Result<(), DatasetError> {
    check_bookmark_name(name)?;
    match source.contains('#') {
        true => check_bookmark_name(source)?,
        false => check_name(source)?,
    }
    match source.contains(['@', '#']) {
        true => Ok(()),
        false => Err(DatasetError::InvalidName {
            name: source.to_owned(),
            reason: "missing '@' or '#' delimiter in the source's name".into(),
        }),
    }
}

struct CreateBookmarksTask {
    dsl: Arc<DslPool>,
    bookmarks: Vec<NewBookmark>,
}

impl SyncTask for CreateBookmarksTask {
    fn name(&self) -> &'static str {
        "bookmark"
    }
    fn space_check(&self) -> SpaceCheck {
        SpaceCheck::Normal
    }
    fn blocks(&self) -> u64 {
        BLOCKS_MIN.max(self.bookmarks.len() as u64)
    }
    fn check<'a>(&'a self, _ctx: &'a SyncContext) -> BoxFuture<'a, Result<(), DatasetError>> {
        Box::pin(async {
            if !self.dsl.features().is_enabled(guid::BOOKMARKS) {
                return Err(DatasetError::Unsupported {
                    name: self.dsl.pool_name(),
                    what: "bookmark feature not enabled: it".into(),
                });
            }
            for (name, source) in &self.bookmarks {
                self.dsl.bookmarks().check_new(name, source).await?;
            }
            Ok(())
        })
    }
    fn apply<'a>(&'a self, ctx: &'a SyncContext) -> BoxFuture<'a, Result<(), DatasetError>> {
        Box::pin(async {
            for (name, source) in &self.bookmarks {
                self.dsl.bookmarks().create_now(ctx, name, source).await?;
            }
            Ok(())
        })
    }
}
