//! Redaction: bookmarks that list which blocks of a snapshot are to be left out of its stream,
//! since none of some later snapshots has them any more (`zfs redact`; module/zfs/dmu_redact.c).
//!
//! What each of those snapshots has changed is found by a traversal ([`changes`]), what all of them
//! have is intersected ([`spans`]) and clipped to what the snapshot has, and appended to the list
//! ([`list`]) a part at a time.
//!
//! # What a crash leaves
//! A bookmark whose list has the parts that were appended; it says that it is not whole, so that no
//! stream is made with it. The same request again goes on behind the last entry. What was found
//! before is traversed again from the block of dnodes on that this is in.

mod changes;
mod list;
mod spans;

use std::sync::Arc;

use device::BoxFuture;
use format::{Guid, ObjectId, RedactBlock, RedactionListPhys, Txg};
use object::{Object, SyncContext};

use crate::bookmark::Bookmarks;
use crate::dsl::DslPool;
use crate::features::guid;
use crate::name::check_bookmark_name;
use crate::obstacle::RedactObstacle;
use crate::task::{SpaceCheck, SyncTask};
use crate::{Dataset, DatasetError};

use changes::{ChangedSpans, is_redacted};
pub(crate) use list::refused;
pub use list::{RedactionList, are_same_snapshots};
use spans::{Place, Span, common};

/// Entries that are appended at once.
const PART_ENTRIES: usize = 16 << 10;
/// Ranges that are looked at before what was found is appended, however little it is.
const PART_SPANS: usize = 256 << 10;

impl Bookmarks<'_> {
    /// Makes the redaction bookmark `bookmark` (after the `#`) of a snapshot, of which all that is
    /// left out which none of the snapshots `with` has. Goes on with one that is not whole.
    /// `stops` is asked now and then whether to stop, which leaves what was done.
    ///
    /// # Errors
    /// [`DatasetError::Redact`], [`DatasetError::NotFound`], [`DatasetError::KeyNotLoaded`],
    /// [`DatasetError::Unsupported`] without the feature; [`DatasetError::Interrupted`]; and of
    /// reading.
    pub async fn redact(
        &self,
        snapshot: &str,
        bookmark: &str,
        with: &[String],
        stops: &(dyn Fn() -> bool + Send + Sync),
    ) -> Result<(), DatasetError> {
        self.redact_in_parts(snapshot, bookmark, with, stops, PART_ENTRIES)
            .await
    }

    /// The same in parts of this many entries each, as a test wants them.
    ///
    /// # Errors
    /// As [`Self::redact`].
    pub async fn redact_in_parts(
        &self,
        snapshot: &str,
        bookmark: &str,
        with: &[String],
        stops: &(dyn Fn() -> bool + Send + Sync),
        part_entries: usize,
    ) -> Result<(), DatasetError> {
        let Some((head, _)) = snapshot.split_once('@') else {
            return Err(DatasetError::WrongKind {
                name: snapshot.to_owned(),
                reason: "it is not a snapshot".into(),
            });
        };
        let name = format!("{head}#{bookmark}");
        if name.len() >= crate::name::NAME_MAX_BYTES {
            return refused(&name, RedactObstacle::NameTooLong);
        }
        check_bookmark_name(&name)?;
        let source = self.open_whole(snapshot).await?;
        let mut names: Vec<&String> = Vec::new();
        for one in with {
            if !names.contains(&one) {
                names.push(one);
            }
        }
        if names.is_empty() {
            return refused(&name, RedactObstacle::NoSnapshots);
        }
        let mut later = Vec::new();
        for one in names {
            let opened = self.open_whole(one).await?;
            if !self.follows(&opened, &source).await? {
                return refused(one, RedactObstacle::NotDescendant);
            }
            later.push(opened);
        }
        let guids: Vec<Guid> = later.iter().map(Dataset::guid).collect();
        let list = self.begin(&name, snapshot, &source, &guids).await?;
        let since = source.creation_txg();
        let from = match list.phys().entries.checked_sub(1) {
            None => (1, 0),
            Some(last) => {
                let entries = list.read(last, 1).await?;
                let last = entries.first().copied().unwrap_or_default();
                (last.object.get(), last.end())
            }
        };
        let mut work = Work {
            bookmarks: *self,
            list: &list,
            source,
            from,
            building: None,
            ready: Vec::new(),
            looked_at: 0,
            held: None,
            stops,
            part_entries,
        };
        work.run(since, &later).await
    }

    /// Opens a snapshot that is not redacted itself.
    async fn open_whole(&self, name: &str) -> Result<Dataset, DatasetError> {
        let dataset = self.dsl.open_dataset(name).await?;
        if !dataset.is_snapshot() {
            return Err(DatasetError::WrongKind {
                name: name.to_owned(),
                reason: "it is not a snapshot".into(),
            });
        }
        match dataset.uses_feature(guid::REDACTED_DATASETS) {
            true => refused(name, RedactObstacle::Redacted),
            false => Ok(dataset),
        }
    }

    /// Whether a snapshot comes after another one, in the same dataset or in a clone
    /// (`dsl_dataset_is_before`).
    async fn follows(&self, later: &Dataset, earlier: &Dataset) -> Result<bool, DatasetError> {
        let _config = self.dsl.config.read().await;
        let directories = self.dsl.directories();
        let later = directories.dataset(later.object()).await?;
        let earlier = directories.dataset(earlier.object()).await?;
        let txg = earlier.phys().creation_txg;
        if later.phys().creation_txg <= txg {
            return Ok(false);
        }
        self.is_before(&later.dir(), &earlier.dir(), txg).await
    }

    /// Makes the bookmark, or finds the one to go on with. Nobody else gets at its list.
    async fn begin(
        &self,
        name: &str,
        snapshot: &str,
        source: &Dataset,
        with: &[Guid],
    ) -> Result<RedactionList, DatasetError> {
        let existing = {
            let _config = self.dsl.config.read().await;
            match self.entry(name).await {
                Ok((_, entry)) => Some(entry.phys),
                Err(DatasetError::NotFound { .. }) => None,
                Err(error) => return Err(error),
            }
        };
        match existing {
            None => {
                let task = RedactTask {
                    dsl: self.dsl.clone(),
                    name: name.to_owned(),
                    snapshot: snapshot.to_owned(),
                    with: with.to_vec(),
                };
                self.dsl.tasks().run(Arc::new(task)).await?;
            }
            Some(phys) if phys.redaction_list.is_zero() || phys.guid != source.guid() => {
                return refused(name, RedactObstacle::Exists);
            }
            Some(_) => {}
        }
        let _config = self.dsl.config.read().await;
        let (_, entry) = self.entry(name).await?;
        if entry.phys.redaction_list.is_zero() {
            return refused(name, RedactObstacle::Exists);
        }
        let list = RedactionList::open(self.dsl, entry.phys.redaction_list, true).await?;
        let Some(list) = list else {
            return refused(name, RedactObstacle::UnderWay);
        };
        if !are_same_snapshots(&list.snapshots(), with) {
            return refused(name, RedactObstacle::OtherSnapshots);
        }
        match list.phys().is_whole() {
            true => refused(name, RedactObstacle::Exists),
            false => Ok(list),
        }
    }

    /// Opens the list of a bookmark that a stream is to be made with. The namespace is locked.
    pub(crate) async fn open_list(
        &self,
        name: &str,
        list: ObjectId,
    ) -> Result<RedactionList, DatasetError> {
        if list.is_zero() {
            return refused(name, RedactObstacle::NoList);
        }
        let list = RedactionList::open(self.dsl, list, false).await?;
        match list {
            Some(list) if list.phys().is_whole() => Ok(list),
            _ => refused(name, RedactObstacle::NotWhole),
        }
    }
}

/// Filling a list (`perform_redaction`).
struct Work<'a> {
    bookmarks: Bookmarks<'a>,
    list: &'a RedactionList,
    source: Dataset,
    /// What is before this is listed already.
    from: Place,
    /// An entry that may still grow.
    building: Option<RedactBlock>,
    ready: Vec<RedactBlock>,
    looked_at: usize,
    held: Option<Object>,
    stops: &'a (dyn Fn() -> bool + Send + Sync),
    /// Entries that are appended at once.
    part_entries: usize,
}

impl Work<'_> {
    async fn run(&mut self, since: Txg, later: &[Dataset]) -> Result<(), DatasetError> {
        let mut changed = Vec::new();
        let mut heads = Vec::new();
        for one in later {
            let mut spans = ChangedSpans::new(&self.source, since, one, self.from).await?;
            heads.push(spans.next().await?);
            changed.push(spans);
        }
        while let Some((found, done)) = common(&heads) {
            if let Some(span) = found {
                self.add(span).await?;
            }
            heads[done] = changed[done].next().await?;
            self.looked_at += 1;
            self.append_if_full().await?;
        }
        self.ready.extend(self.building.take());
        self.append(RedactionListPhys::WHOLE).await
    }

    /// Stores what was found, if that is much; and stops if that is asked for.
    async fn append_if_full(&mut self) -> Result<(), DatasetError> {
        if let Some(entry) = self.building
            && (self.ready.len() >= self.part_entries || self.looked_at >= PART_SPANS)
        {
            // What still grows is found again.
            self.append((entry.object.get(), entry.block_id)).await?;
        }
        match (self.stops)() {
            true => Err(DatasetError::Interrupted),
            false => Ok(()),
        }
    }

    async fn append(&mut self, reached: Place) -> Result<(), DatasetError> {
        self.looked_at = 0;
        let entries = std::mem::take(&mut self.ready);
        self.bookmarks
            .append(self.list.id(), entries, reached)
            .await
    }

    /// Lists what the snapshot has of a range.
    async fn add(&mut self, span: Span) -> Result<(), DatasetError> {
        let first = span.first.max(self.from);
        let mut at = first.0;
        while at <= span.last.0 {
            let Some(object) = self.object_from(at).await? else {
                return Ok(());
            };
            let number = object.id().get();
            if number > span.last.0 {
                return Ok(());
            }
            let info = object.info();
            let start = match number == first.0 {
                true => first.1,
                false => 0,
            };
            let last = match number == span.last.0 {
                true => span.last.1.min(info.max_block_id),
                false => info.max_block_id,
            };
            if start <= last && is_redacted(info.object_type) {
                self.list_blocks(&object, start, last - start + 1);
            }
            at = number + 1;
            self.append_if_full().await?;
        }
        Ok(())
    }

    /// The first object of this number or a later one.
    async fn object_from(&mut self, number: u64) -> Result<Option<Object>, DatasetError> {
        if let Some(held) = self.held.as_ref().filter(|held| held.id().get() == number) {
            return Ok(Some(held.clone()));
        }
        let objset = self.source.objset();
        let before = number.checked_sub(1).filter(|before| *before > 0);
        let next = objset.next_object(before.map(ObjectId::new)).await?;
        let Some(id) = next else { return Ok(None) };
        let object = objset.hold(id).await?;
        Ok(Some(self.held.insert(object).clone()))
    }

    /// Appends blocks of an object, joined with those before them (`update_redaction_list`).
    fn list_blocks(&mut self, object: &Object, mut first: u64, mut count: u64) {
        let (id, bytes) = (object.id(), u64::from(object.info().data_block_bytes));
        if let Some(last) = &mut self.building
            && last.object == id
            && last.end() == first
        {
            let more = count.min(RedactBlock::COUNT_MAX - last.count());
            *last = RedactBlock::new(id, last.block_id, last.count() + more, bytes);
            (first, count) = (first + more, count - more);
        }
        while count > 0 {
            let part = count.min(RedactBlock::COUNT_MAX);
            let entry = RedactBlock::new(id, first, part, bytes);
            self.ready.extend(self.building.replace(entry));
            (first, count) = (first + part, count - part);
        }
    }
}

/// Makes a redaction bookmark whose list is still empty.
struct RedactTask {
    dsl: Arc<DslPool>,
    name: String,
    snapshot: String,
    with: Vec<Guid>,
}

impl SyncTask for RedactTask {
    fn name(&self) -> &'static str {
        "redaction bookmark"
    }
    fn space_check(&self) -> SpaceCheck {
        SpaceCheck::Normal
    }
    fn check<'a>(&'a self, _ctx: &'a SyncContext) -> BoxFuture<'a, Result<(), DatasetError>> {
        Box::pin(async {
            let bookmarks = self.dsl.bookmarks();
            bookmarks.check_list(&self.name, self.with.len())?;
            match bookmarks.check_new(&self.name, &self.snapshot).await {
                Err(DatasetError::Exists { .. }) => refused(&self.name, RedactObstacle::Exists),
                checked => checked,
            }
        })
    }
    fn apply<'a>(&'a self, ctx: &'a SyncContext) -> BoxFuture<'a, Result<(), DatasetError>> {
        Box::pin(async {
            let list = RedactionListPhys {
                snapshots: self.with.clone(),
                ..RedactionListPhys::default()
            };
            (self.dsl.bookmarks())
                .create_of_snapshot(ctx, &self.name, &self.snapshot, Some(list))
                .await
        })
    }
}
