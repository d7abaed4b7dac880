//! Directories and datasets by name and by object number. Those that were looked at are in the
//! [registry](crate::state::Registry).
//!
//! Public functions take the namespace's lock (`DslPool::config`) shared. Those for this crate
//! expect that the caller holds it (or is a sync task): taking it twice would deadlock with a sync
//! task that waits in between.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use device::BoxFuture;
use format::{DslDatasetPhys, DslDirPhys, Endian, ObjectId, ObjectType, ObjsetKind, Txg, names};
use futures::StreamExt;
use object::Zap;

use crate::DatasetError;
use crate::dsl::DslPool;
use crate::features::PER_DATASET;
use crate::info::{Lost, none_lost};
use crate::name::{check_name, split_parent, split_snapshot};
use crate::state::{Dir, DirState, Ds, DsState, Pending, SnapshotBookmarks, set_once};

/// Levels of directories: names have at most 255 bytes.
const DEPTH_MAX: u32 = 128;
/// Directories and datasets that are read at the same time, where many are.
const READS_IN_FLIGHT: usize = 16;

/// What a chain of snapshots must not be.
fn not_before(dataset: ObjectId, before: ObjectId, why: &str) -> DatasetError {
    let what = format!("dataset {before} cannot be the snapshot before it: {why}");
    DatasetError::corrupt(dataset, what)
}

/// Does something with each, several at the same time; what comes of it is in their order.
pub(crate) async fn several_at_once<T, F: Future>(
    items: impl IntoIterator<Item = T>,
    start: impl FnMut(T) -> F,
) -> Vec<F::Output> {
    let started = futures::stream::iter(items).map(start);
    started.buffered(READS_IN_FLIGHT).collect().await
}

/// Directories and datasets by name and number: [`DslPool::directories`].
#[derive(Clone, Copy)]
pub struct Directories<'a> {
    pub(crate) dsl: &'a Arc<DslPool>,
}

impl DslPool {
    /// Directories and datasets by name and number.
    pub fn directories(self: &Arc<Self>) -> Directories<'_> {
        Directories { dsl: self }
    }
}

impl<'a> Directories<'a> {
    /// Checks that `name` can be created: its parent is a filesystem, and it does not exist.
    /// Returns the parent's directory and the last component.
    pub(crate) async fn check_new_name(
        &self,
        name: &str,
    ) -> Result<(Arc<Dir>, String), DatasetError> {
        check_name(name)?;
        let (Some(parent_name), last) = split_parent(name) else {
            return Err(DatasetError::Exists {
                name: name.to_owned(),
            });
        };
        if name.contains('@') {
            return Err(DatasetError::InvalidName {
                name: name.to_owned(),
                reason: "snapshot delimiter '@' is not expected here".into(),
            });
        }
        let parent = self.resolve_dir(parent_name).await?;
        if self.child_dir(&parent, last).await?.is_some() {
            return Err(DatasetError::Exists {
                name: name.to_owned(),
            });
        }
        let parent_head = self.head(&parent).await?;
        if self.objset_kind(&parent_head).await? != ObjsetKind::Filesystem {
            return Err(DatasetError::WrongKind {
                name: parent_name.to_owned(),
                reason: "parent is not a filesystem".into(),
            });
        }
        Ok((parent, last.to_owned()))
    }

    /// The directory called `name`.
    pub(crate) async fn resolve_dir(&self, name: &str) -> Result<Arc<Dir>, DatasetError> {
        let mut parts = name.split('/');
        if parts.next() != Some(self.dsl.pool_name().as_str()) {
            return Err(DatasetError::not_found(name));
        }
        let mut dir = self.root_dir().clone();
        for part in parts {
            dir = self
                .child_dir(&dir, part)
                .await?
                .ok_or_else(|| DatasetError::not_found(name))?;
        }
        Ok(dir)
    }

    /// The dataset or snapshot called `name`.
    pub(crate) async fn resolve(&self, name: &str) -> Result<Arc<Ds>, DatasetError> {
        let (head_name, snapshot) = split_snapshot(name);
        let dir = self.resolve_dir(head_name).await?;
        let head = self.head(&dir).await?;
        match snapshot {
            None => Ok(head),
            Some(snapshot) => self
                .snapshot_of(&head, snapshot)
                .await?
                .ok_or_else(|| DatasetError::not_found(name)),
        }
    }

    /// The snapshot of `head` called `name`, if there is one.
    pub(crate) async fn snapshot_of(
        &self,
        head: &Arc<Ds>,
        name: &str,
    ) -> Result<Option<Arc<Ds>>, DatasetError> {
        let names = head.phys().snapshot_names;
        let Some(object) = Zap::hold(self.dsl.mos(), names)
            .await?
            .lookup_u64(name)
            .await?
        else {
            return Ok(None);
        };
        let snapshot = self.dataset(object.into()).await?;
        snapshot
            .state()
            .snapshot_name
            .get_or_insert_with(|| name.to_owned());
        Ok(Some(snapshot))
    }

    /// Name of a snapshot, after the `@`.
    pub(crate) async fn snapshot_name(&self, snapshot: &Arc<Ds>) -> Result<String, DatasetError> {
        if let Some(name) = &snapshot.state().snapshot_name {
            return Ok(name.clone());
        }
        let head = self.head(&snapshot.dir()).await?;
        let names = head.phys().snapshot_names;
        let name = Zap::hold(self.dsl.mos(), names)
            .await?
            .value_search(snapshot.object.get(), u64::MAX)
            .await?
            .ok_or_else(|| {
                DatasetError::corrupt(
                    snapshot.object,
                    "its dataset does not have it as a snapshot",
                )
            })?;
        let name = String::from_utf8_lossy(&name).into_owned();
        snapshot.state().snapshot_name = Some(name.clone());
        Ok(name)
    }

    /// Full name of a dataset or snapshot.
    pub(crate) async fn full_name(&self, dataset: &Arc<Ds>) -> Result<String, DatasetError> {
        let head = dataset.dir().full_name(&self.dsl.pool_name());
        if !dataset.is_snapshot() {
            return Ok(head);
        }
        Ok(format!("{head}@{}", self.snapshot_name(dataset).await?))
    }

    /// Directories below a directory, hidden ones left out, sorted by name.
    pub(crate) async fn children(&self, dir: &Arc<Dir>) -> Result<Vec<Arc<Dir>>, DatasetError> {
        let mut lost = Lost::new();
        let children = self.children_and_lost(dir, &mut lost).await;
        none_lost(children, lost)
    }

    /// Those that can be read.
    pub(crate) async fn children_and_lost(&self, dir: &Arc<Dir>, lost: &mut Lost) -> Vec<Arc<Dir>> {
        let names = self.child_names(dir, lost).await;
        let found = several_at_once(names, |name| self.child_or_lost(dir.clone(), name)).await;
        let mut children = Vec::with_capacity(found.len());
        for child in found {
            match child {
                Ok(child) => children.extend(child),
                Err(one) => lost.push(one),
            }
        }
        children
    }

    /// Names of the directories below a directory, sorted, hidden ones left out.
    async fn child_names(&self, dir: &Arc<Dir>, lost: &mut Lost) -> Vec<String> {
        let entries = async {
            let children = dir.state().phys.child_directories;
            Zap::hold(self.dsl.mos(), children).await?.all().await
        };
        match entries.await {
            Ok(entries) => {
                let names = entries.iter().map(|entry| entry.name_str().into_owned());
                let mut names: Vec<String> =
                    names.filter(|name| !name.starts_with(['$', '%'])).collect();
                names.sort_unstable();
                names
            }
            Err(error) => {
                let above = dir.full_name(&self.dsl.pool_name());
                lost.push((format!("{above}/..."), error.into()));
                Vec::new()
            }
        }
    }

    /// A directory below another one; where it cannot be read, its name and why.
    async fn child_or_lost(
        &self,
        dir: Arc<Dir>,
        name: String,
    ) -> Result<Option<Arc<Dir>>, (String, DatasetError)> {
        let child = self.child_dir(&dir, &name).await;
        child.map_err(|error| {
            let above = dir.full_name(&self.dsl.pool_name());
            (format!("{above}/{name}"), error)
        })
    }

    /// Snapshots of a head with their names, oldest first.
    pub(crate) async fn snapshots(
        &self,
        head: &Arc<Ds>,
    ) -> Result<Vec<(String, Arc<Ds>)>, DatasetError> {
        let names = head.phys().snapshot_names;
        let entries = Zap::hold(self.dsl.mos(), names).await?.all().await?;
        let numbers = entries.iter().map(|entry| entry.value.as_u64());
        let numbers: Vec<ObjectId> = numbers
            .map(|number| ObjectId::new(number.unwrap_or(0)))
            .collect();
        let found = several_at_once(numbers, |number| self.dataset(number)).await;
        let mut out = Vec::with_capacity(found.len());
        for (entry, snapshot) in entries.iter().zip(found) {
            let (name, snapshot) = (entry.name_str().into_owned(), snapshot?);
            let (txg, number) = {
                let mut state = snapshot.state();
                state.snapshot_name.get_or_insert_with(|| name.clone());
                (state.phys.creation_txg, snapshot.object)
            };
            out.push((txg, number, name, snapshot));
        }
        out.sort_by_key(|(txg, number, ..)| (*txg, *number));
        Ok(out
            .into_iter()
            .map(|(_, _, name, snapshot)| (name, snapshot))
            .collect())
    }

    /// What a dataset's object set holds.
    pub(crate) async fn objset_kind(&self, dataset: &Arc<Ds>) -> Result<ObjsetKind, DatasetError> {
        if let Some(kind) = dataset.state().kind {
            return Ok(kind);
        }
        if let Some(objset) = dataset.open_objset() {
            let kind = objset.kind();
            dataset.state().kind = Some(kind);
            return Ok(kind);
        }
        let root = dataset.phys().block;
        let kind = if root.is_hole() {
            ObjsetKind::None
        } else {
            // Of an encrypted dataset this is in the clear, and shown without its key.
            self.dsl.root_of(dataset).await?.kind
        };
        dataset.state().kind = Some(kind);
        Ok(kind)
    }

    /// Every head dataset of the pool.
    pub(crate) async fn heads(&self) -> Vec<Arc<Ds>> {
        let (heads, lost) = self.heads_and_lost().await;
        for (dataset, error) in lost {
            tracing::warn!(dataset, %error, "a dataset cannot be read; it is left out");
        }
        heads
    }

    /// The same with those that cannot be read, by name, or what is above them: level by level, of
    /// each level several at the same time.
    pub(crate) async fn heads_and_lost(&self) -> (Vec<Arc<Ds>>, Lost) {
        let pool = self.dsl.pool_name();
        let mut level = vec![self.root_dir().clone()];
        let (mut heads, mut lost) = (Vec::new(), Lost::new());
        while !level.is_empty() {
            let found = several_at_once(level.clone(), |dir| self.head_of(dir)).await;
            for (dir, head) in level.iter().zip(found) {
                match head {
                    Ok(head) => heads.push(head),
                    Err(error) => lost.push((dir.full_name(&pool), error)),
                }
            }
            let named = several_at_once(level, |dir| self.children_named(dir)).await;
            let mut below = Vec::new();
            for (names, mut without) in named {
                below.extend(names);
                lost.append(&mut without);
            }
            let found = several_at_once(below, |(dir, name)| self.child_or_lost(dir, name)).await;
            level = Vec::with_capacity(found.len());
            for child in found {
                match child {
                    Ok(child) => level.extend(child),
                    Err(one) => lost.push(one),
                }
            }
        }
        (heads, lost)
    }

    async fn head_of(&self, dir: Arc<Dir>) -> Result<Arc<Ds>, DatasetError> {
        self.head(&dir).await
    }

    /// A directory with the name of each below it.
    async fn children_named(&self, dir: Arc<Dir>) -> (Vec<(Arc<Dir>, String)>, Lost) {
        let mut lost = Lost::new();
        let names = self.child_names(&dir, &mut lost).await.into_iter();
        (names.map(|name| (dir.clone(), name)).collect(), lost)
    }

    /// What the pool's datasets use, and what is reserved for them beside that: with writes under
    /// way and freed space that cannot be used yet, in bytes as users see them.
    pub fn spoken_for_bytes(&self) -> u64 {
        let deferred = self.dsl.env().pipeline.space().deferred_deflated_bytes;
        let state = self.root_dir().state();
        let used = state.phys.used_bytes.max(state.phys.reserved_bytes);
        used.saturating_add(state.to_write[0] + state.to_write[1])
            .saturating_add(deferred)
    }

    /// The directory of the root dataset.
    pub(crate) fn root_dir(&self) -> &'a Arc<Dir> {
        self.dsl
            .registry
            .root
            .get()
            .expect("set when the pool was opened")
    }
    pub(crate) fn set_root(&self, root: Arc<Dir>) {
        set_once(&self.dsl.registry.root, root);
    }
    /// The closest directory that two are at or below.
    pub(crate) fn common_ancestor(&self, one: &Arc<Dir>, other: &Arc<Dir>) -> Arc<Dir> {
        let mut ancestor = Some(one.clone());
        while let Some(dir) = &ancestor {
            if other.is_within(dir) {
                break;
            }
            ancestor = dir.parent();
        }
        ancestor.unwrap_or_else(|| self.root_dir().clone())
    }

    /// The empty snapshot that every dataset which is no clone is one of.
    pub(crate) fn origin(&self) -> Option<&'a Arc<Ds>> {
        self.dsl.registry.origin.get()
    }
    /// Its object number; pools before version 11 have none.
    pub fn origin_object(&self) -> Option<ObjectId> {
        self.origin().map(|origin| origin.object)
    }
    pub(crate) fn set_origin(&self, origin: Arc<Ds>) {
        set_once(&self.dsl.registry.origin, origin);
    }
    /// A guid of 56 bits for a mounted filesystem (`unique_create`).
    pub(crate) fn random_fsid(&self) -> u64 {
        loop {
            let guid = self.dsl.env().world.random.next_u64() & ((1 << 56) - 1);
            if guid != 0 && !self.dsl.registry.has_fsid(guid) {
                return guid;
            }
        }
    }

    // The registry.

    /// The directory with this object number.
    pub(crate) fn dir(&self, object: ObjectId) -> BoxFuture<'_, Result<Arc<Dir>, DatasetError>> {
        self.dir_at(object, 0)
    }

    /// The same, so many levels above one that is being read.
    fn dir_at(
        &self,
        object: ObjectId,
        depth: u32,
    ) -> BoxFuture<'_, Result<Arc<Dir>, DatasetError>> {
        Box::pin(self.dir_named(object, None, depth))
    }

    /// The same; `place` is where it was found, if that is known: a directory, and the name there.
    /// Where another one is its parent, its name is looked up in that.
    async fn dir_named(
        &self,
        object: ObjectId,
        place: Option<(&Arc<Dir>, &str)>,
        depth: u32,
    ) -> Result<Arc<Dir>, DatasetError> {
        if let Some(dir) = self.dsl.registry.dir(object) {
            return Ok(dir);
        }
        let held = self.dsl.mos().hold(object).await?;
        let info = held.info();
        if info.bonus_type != ObjectType::DSL_DIR {
            return Err(DatasetError::corrupt(object, "it is not a DSL directory"));
        }
        let phys = DslDirPhys::decode(&held.bonus(), Endian::Little)?;
        let is_zapified = info.object_type == ObjectType::OTN_ZAP_METADATA;
        let parent = if phys.parent.is_zero() {
            None
        } else if phys.parent == object || depth == DEPTH_MAX {
            return Err(DatasetError::corrupt(object, "it is its own parent"));
        } else {
            Some(self.dir_at(phys.parent, depth + 1).await?)
        };
        let name = match (place, &parent) {
            (Some((above, name)), Some(parent)) if Arc::ptr_eq(above, parent) => name.to_owned(),
            (_, None) => String::new(),
            (_, Some(parent)) => {
                let children = parent.state().phys.child_directories;
                let found = Zap::hold(self.dsl.mos(), children)
                    .await?
                    .value_search(object.get(), u64::MAX)
                    .await?
                    .ok_or_else(|| {
                        DatasetError::corrupt(object, "its parent does not have it as a child")
                    })?;
                String::from_utf8_lossy(&found).into_owned()
            }
        };
        let is_clone = !phys.origin.is_zero()
            && self.dsl.registry.origin.get().map(|origin| origin.object) != Some(phys.origin);
        let origin_txg = if is_clone {
            let origin = self.dsl.mos().hold(phys.origin).await?;
            DslDatasetPhys::decode(&origin.bonus(), Endian::Little)?.creation_txg
        } else {
            Txg::ZERO
        };
        let livelist = match is_clone && is_zapified {
            true => {
                let zap = Zap::hold(self.dsl.mos(), object).await?;
                zap.lookup_u64(names::directory::LIVELIST).await?
            }
            false => None,
        };
        Ok(self.register_dir(
            object,
            DirState {
                phys,
                name,
                parent,
                origin_txg,
                livelist: livelist.unwrap_or(0).into(),
                is_zapified,
                to_write: [0; 2],
                is_granted: [false; 2],
                is_dirty: false,
                is_gone: false,
            },
        ))
    }

    pub(crate) fn register_dir(&self, object: ObjectId, state: DirState) -> Arc<Dir> {
        let queue = &self.dsl.sync_state.queue;
        let make = || Dir::new(object, queue.clone(), state);
        self.dsl.registry.dir_or(object, make)
    }

    /// The directory called `name` below `parent`, if there is one.
    pub(crate) async fn child_dir(
        &self,
        parent: &Arc<Dir>,
        name: &str,
    ) -> Result<Option<Arc<Dir>>, DatasetError> {
        let children = parent.state().phys.child_directories;
        match Zap::hold(self.dsl.mos(), children)
            .await?
            .lookup_u64(name)
            .await?
        {
            Some(object) => {
                let child = self
                    .dir_named(object.into(), Some((parent, name)), 0)
                    .await?;
                // So a walk from the root down comes to its end, and meets each once.
                let is_there = {
                    let state = child.state();
                    let above = state.parent.as_ref();
                    above.is_some_and(|above| Arc::ptr_eq(above, parent)) && state.name == name
                };
                if !is_there {
                    let what = format!("directory {} has it as '{name}'", parent.object);
                    return Err(DatasetError::corrupt(child.object, what));
                }
                Ok(Some(child))
            }
            None => Ok(None),
        }
    }

    /// The dataset with this object number.
    pub(crate) fn dataset(&self, object: ObjectId) -> BoxFuture<'_, Result<Arc<Ds>, DatasetError>> {
        Box::pin(self.load_dataset(object))
    }

    async fn load_dataset(&self, object: ObjectId) -> Result<Arc<Ds>, DatasetError> {
        if let Some(dataset) = self.dsl.registry.dataset(object) {
            return Ok(dataset);
        }
        let held = self.dsl.mos().hold(object).await?;
        let info = held.info();
        if info.bonus_type != ObjectType::DSL_DATASET {
            return Err(DatasetError::corrupt(object, "it is not a DSL dataset"));
        }
        let phys = DslDatasetPhys::decode(&held.bonus(), Endian::Little)?;
        let is_zapified = info.object_type == ObjectType::OTN_ZAP_METADATA;
        let dir = self.dir(phys.directory).await?;
        let mut features = BTreeMap::new();
        let mut bookmarks = SnapshotBookmarks::default();
        if is_zapified {
            for entry in Zap::hold(self.dsl.mos(), object).await?.all().await? {
                let name = String::from_utf8_lossy(&entry.name).into_owned();
                if PER_DATASET.contains(&name.as_str()) {
                    features.insert(name, entry.value);
                } else if name == names::dataset::BOOKMARK_NAMES
                    && let Some(zap) = entry.value.as_u64()
                {
                    bookmarks = SnapshotBookmarks::load(self.dsl.mos(), zap.into()).await?;
                }
            }
        }
        let is_snapshot = phys.is_snapshot();
        let mut prev = None;
        let (mut refquota_bytes, mut reserved_bytes, mut user_holds) = (0, 0, 0);
        if is_snapshot {
            if !phys.user_references.is_zero() {
                user_holds = Zap::hold(self.dsl.mos(), phys.user_references)
                    .await?
                    .count()
                    .await?;
            }
        } else {
            if !phys.previous_snapshot.is_zero() {
                prev = Some(
                    self.snapshot_of_head(object, phys.previous_snapshot)
                        .await?,
                );
            }
            refquota_bytes = self.dsl.properties().own_number(&dir, "refquota").await?;
            reserved_bytes = self
                .dsl
                .properties()
                .own_number(&dir, "refreservation")
                .await?;
        }
        let state = DsState {
            phys,
            dir,
            prev,
            snapshot_name: None,
            is_zapified,
            features,
            activating: BTreeSet::new(),
            refquota_bytes,
            reserved_bytes,
            user_holds,
            bookmarks,
            dead: Vec::new(),
            live: Pending::default(),
            received: [None; 2],
            kind: None,
            is_dirty: false,
            is_gone: false,
        };
        let queue = &self.dsl.sync_state.queue;
        let make = || Ds::new(object, queue.clone(), state);
        Ok(self.dsl.registry.dataset_or(object, make))
    }

    /// The snapshot before a dataset in its chain; `None` where the chain begins.
    ///
    /// # Errors
    /// [`DatasetError::Corrupt`] where what stands there is no snapshot, or one that is not older
    /// than the snapshot after it. So whoever follows a chain comes to its end, also where a pool
    /// was made to have none.
    pub(crate) async fn before(&self, dataset: &Ds) -> Result<Option<Arc<Ds>>, DatasetError> {
        let later = dataset.phys();
        if later.previous_snapshot.is_zero() {
            return Ok(None);
        }
        let before = self.dataset(later.previous_snapshot).await?;
        let earlier = before.phys();
        if !earlier.is_snapshot() {
            return Err(not_before(
                dataset.object,
                before.object,
                "it is no snapshot",
            ));
        }
        if later.is_snapshot() && earlier.creation_txg >= later.creation_txg {
            return Err(not_before(dataset.object, before.object, "it is not older"));
        }
        Ok(Some(before))
    }

    /// What a head names as the snapshot before it. That it is one is looked at before it is
    /// loaded: two heads that name each other would be loaded for ever.
    async fn snapshot_of_head(
        &self,
        head: ObjectId,
        snapshot: ObjectId,
    ) -> Result<Arc<Ds>, DatasetError> {
        if let Some(snapshot) = self.dsl.registry.dataset(snapshot) {
            return Ok(snapshot);
        }
        let held = self.dsl.mos().hold(snapshot).await?;
        let is_dataset = held.info().bonus_type == ObjectType::DSL_DATASET;
        if is_dataset && !DslDatasetPhys::decode(&held.bonus(), Endian::Little)?.is_snapshot() {
            return Err(not_before(head, snapshot, "it is no snapshot"));
        }
        self.dataset(snapshot).await
    }

    /// The head dataset of a directory.
    pub(crate) async fn head(&self, dir: &Arc<Dir>) -> Result<Arc<Ds>, DatasetError> {
        let object = dir.state().phys.head_dataset;
        if object.is_zero() {
            return Err(DatasetError::not_found(
                dir.full_name(&self.dsl.pool_name()),
            ));
        }
        self.dataset(object).await
    }

    /// Finds the root directory and the empty snapshot of a pool that is being opened.
    pub(crate) async fn load(&self, root: ObjectId) -> Result<(), DatasetError> {
        let root = self.dir(root).await?;
        self.set_root(root.clone());
        let Some(dir) = self
            .child_dir(&root, names::hidden_directory::ORIGIN)
            .await?
        else {
            return Ok(());
        };
        let snapshot = self.head(&dir).await?.phys().previous_snapshot;
        if !snapshot.is_zero() {
            self.set_origin(self.dataset(snapshot).await?);
            // Those loaded before it was known looked like clones of it.
            self.dsl.registry.for_each_dir(|dir| {
                let mut state = dir.state();
                if state.phys.origin == snapshot {
                    state.origin_txg = Txg::ZERO;
                }
            });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// Goal: of many reads a bounded number is under way at the same time, as many as may be, and
    /// what was read comes in order. Method: reads that wait, each another time.
    #[tokio::test]
    async fn several_are_under_way_and_all_come_in_order() {
        let (running, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let read = async |number: usize| {
            let now = running.fetch_add(1, Ordering::Relaxed) + 1;
            most.fetch_max(now, Ordering::Relaxed);
            for _ in 0..number % 5 + 1 {
                tokio::task::yield_now().await;
            }
            running.fetch_sub(1, Ordering::Relaxed);
            number
        };
        let found = several_at_once(0..100, read).await;
        assert!(found.into_iter().eq(0..100));
        assert_eq!(most.into_inner(), READS_IN_FLIGHT);
    }
}
