//! What a sync task is going to read and change in the MOS, read in its check.
//!
//! Applying is final: what cannot be read there stops the pool for good, and what was half done
//! cannot be taken back. So whatever a task needs is read before, where an error refuses the task
//! alone. What was read stays in the cache; that it is evicted, and damaged, before it is needed an
//! instant later is what is left.
//!
//! Objects that a task changes are asked for their block of dnodes too, which the sync writes anew.
//! Of ZAPs that may be big (names of snapshots, clones of an origin, keys of a deadlist) those
//! entries are looked up that will be; where a new object's number is the key, all blocks are read.

use std::collections::HashSet;
use std::sync::Arc;

use format::{DslDatasetPhys, ObjectId, Txg, names};
use futures::StreamExt;
use object::{Bpobj, Object, Zap};
use parking_lot::Mutex;

use crate::DatasetError;
use crate::dsl::DslPool;
use crate::features::guid;
use crate::name::split_snapshot;
use crate::state::{Deadlist, Dir, Ds};

/// Blocks of one object that are read at the same time.
const READS_IN_FLIGHT: usize = 16;
/// Blocks of an object of which all are read. A ZAP of more has half a million entries or more.
const BLOCKS_MAX: u64 = 8192;
/// No block is born later.
const EVER: Txg = Txg::new(u64::MAX);

/// Reading what a task needs: [`DslPool::readable`]. All of it fails with what reading fails with.
#[derive(Clone, Copy)]
pub(crate) struct Readable<'a> {
    pub(crate) dsl: &'a Arc<DslPool>,
    seen: Option<&'a Seen>,
}

/// What was read for a task about many datasets, which is not read again for each.
#[derive(Default)]
pub(crate) struct Seen {
    parts: Mutex<HashSet<(Part, ObjectId)>>,
}

/// What is read of an object.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Part {
    Dnode,
    Blocks,
    List,
}

impl DslPool {
    /// Reading what a sync task needs, in its check.
    pub(crate) fn readable(self: &Arc<Self>) -> Readable<'_> {
        Readable {
            dsl: self,
            seen: None,
        }
    }
}

/// The ZAP of a head's bookmarks, or zero.
fn bookmarks_of(head: &Ds) -> ObjectId {
    head.state().bookmarks.zap()
}

/// An entry that a task will take away is not there.
fn missing(object: ObjectId, entry: impl std::fmt::Display) -> DatasetError {
    DatasetError::corrupt(object, format!("it has no entry '{entry}'"))
}

impl<'a> Readable<'a> {
    /// The same for a task about many datasets: each object is read once.
    pub(crate) fn once(self, seen: &'a Seen) -> Self {
        Readable {
            seen: Some(seen),
            ..self
        }
    }

    /// Whether this was not read yet for the same task.
    fn is_new(&self, part: Part, id: ObjectId) -> bool {
        self.seen
            .is_none_or(|seen| seen.parts.lock().insert((part, id)))
    }

    /// An object that is changed or freed; `None` for zero.
    pub(crate) async fn object(&self, id: ObjectId) -> Result<Option<Object>, DatasetError> {
        if id.is_zero() {
            return Ok(None);
        }
        let object = self.dsl.mos().hold(id).await?;
        if self.is_new(Part::Dnode, id) {
            object.prepare_dnode().await?;
        }
        Ok(Some(object))
    }

    /// An object, and all its blocks.
    pub(crate) async fn whole(&self, id: ObjectId) -> Result<(), DatasetError> {
        if !self.is_new(Part::Blocks, id) {
            return Ok(());
        }
        let Some(object) = self.object(id).await? else {
            return Ok(());
        };
        let info = object.info();
        let block_bytes = u64::from(info.data_block_bytes);
        let blocks = 0..=info.max_block_id.min(BLOCKS_MAX);
        let mut reads = futures::stream::iter(blocks)
            .map(|block| object.read(block * block_bytes, 1))
            .buffer_unordered(READS_IN_FLIGHT);
        while let Some(read) = reads.next().await {
            read?;
        }
        Ok(())
    }

    /// An entry of a ZAP that is changed; says whether it is there.
    pub(crate) async fn name(&self, zap: ObjectId, name: &str) -> Result<bool, DatasetError> {
        match self.object(zap).await? {
            Some(object) => Ok(Zap::open(object).await?.lookup(name).await?.is_some()),
            None => Ok(false),
        }
    }

    /// The same, of a ZAP whose keys are numbers of objects.
    pub(crate) async fn key(&self, zap: ObjectId, key: ObjectId) -> Result<bool, DatasetError> {
        self.number(zap, key.get()).await
    }

    /// The same, of a ZAP whose keys are numbers.
    async fn number(&self, zap: ObjectId, key: u64) -> Result<bool, DatasetError> {
        match self.object(zap).await? {
            Some(object) => {
                let found = Zap::open(object).await?.lookup_int(key).await?;
                Ok(found.is_some())
            }
            None => Ok(false),
        }
    }

    /// A key that must be there.
    pub(crate) async fn key_to_remove(
        &self,
        zap: ObjectId,
        key: ObjectId,
    ) -> Result<(), DatasetError> {
        match zap.is_zero() || self.key(zap, key).await? {
            true => Ok(()),
            false => Err(missing(zap, key)),
        }
    }

    /// A name that must be there.
    pub(crate) async fn name_to_remove(
        &self,
        zap: ObjectId,
        name: &str,
    ) -> Result<(), DatasetError> {
        match self.name(zap, name).await? {
            true => Ok(()),
            false => Err(missing(zap, name)),
        }
    }

    /// A list of blocks that is joined to another one, or joined by one.
    pub(crate) async fn list(&self, id: ObjectId) -> Result<(), DatasetError> {
        if !self.is_new(Part::List, id)
            || self.object(id).await?.is_none()
            || id == self.dsl.lists.empty_list()
        {
            return Ok(());
        }
        let list = Bpobj::open(self.dsl.mos(), id).await?;
        self.object(list.prepare_join().await?).await?;
        Ok(())
    }

    /// What a dataset's deadlist counts of blocks born in `(min, max]`, and the deadlist itself.
    async fn dead_in(&self, dataset: &Arc<Ds>, min: Txg, max: Txg) -> Result<(), DatasetError> {
        let deadlist = dataset.phys().deadlist;
        self.whole(deadlist).await?;
        let lists = {
            let list = self.dsl.deadlists().of(dataset).await?;
            // Of an old one, block by block.
            list.read_old().await?;
            list.lists_in(min, max)
        };
        self.dsl.deadlists().let_go(dataset).await;
        for list in lists {
            self.object(list).await?;
        }
        Ok(())
    }

    /// A deadlist with all its blocks, of which there are few.
    async fn all_dead(&self, deadlist: ObjectId) -> Result<(), DatasetError> {
        self.whole(deadlist).await?;
        let list = Deadlist::open(self.dsl.mos(), deadlist).await?;
        list.read_old().await?;
        for list in list.lists_in(Txg::ZERO, EVER) {
            self.list(list).await?;
            self.whole(list).await?;
        }
        Ok(())
    }

    /// The deadlists of a snapshot that goes, and of what follows it: the blocks that the snapshot
    /// alone has move to the pool's list of free blocks, the others to the second deadlist.
    async fn merged(
        &self,
        snapshot: &Arc<Ds>,
        next: &Arc<Ds>,
        since: Txg,
    ) -> Result<(), DatasetError> {
        let phys = snapshot.phys();
        let deadlists = self.dsl.deadlists();
        self.dead_in(next, Txg::ZERO, Txg::ZERO).await?;
        self.whole(phys.deadlist).await?;
        let lists = {
            let own = deadlists.of(snapshot).await?;
            own.read_old().await?;
            let of_next = deadlists.of(next).await?;
            let mut lists = of_next.lists_in(since.min(phys.previous_snapshot_txg), EVER);
            lists.extend(own.lists_in(Txg::ZERO, EVER));
            lists.extend(of_next.lists_that_take(&own));
            lists
        };
        deadlists.let_go(snapshot).await;
        deadlists.let_go(next).await;
        for list in lists {
            self.list(list).await?;
        }
        match self.dsl.destroy_state.free_list_id() {
            Some(list) => self.list(list).await,
            None => Ok(()),
        }
    }

    /// A dataset's object with its markers, and its directory's.
    pub(crate) async fn dataset(&self, dataset: &Arc<Ds>) -> Result<(), DatasetError> {
        self.whole(dataset.object).await?;
        self.whole(dataset.dir().object).await
    }

    /// The directories whose space and counts a change of `dir` changes.
    pub(crate) async fn ancestors(&self, dir: &Arc<Dir>) -> Result<(), DatasetError> {
        let mut at = Some(dir.clone());
        while let Some(dir) = at {
            self.whole(dir.object).await?;
            at = dir.parent();
        }
        Ok(())
    }

    /// A dataset's root, where it has one.
    pub(crate) async fn root(&self, dataset: &Arc<Ds>) -> Result<(), DatasetError> {
        match dataset.phys().block.is_hole() {
            true => Ok(()),
            false => self.dsl.root_of(dataset).await.map(drop),
        }
    }

    /// What says how a dataset is written, up to the pool's root, and its key.
    pub(crate) async fn settings(&self, dataset: &Arc<Ds>) -> Result<(), DatasetError> {
        self.dsl.datasets().objset_options(dataset).await?;
        self.dsl.properties().dataset_settings(dataset).await?;
        Ok(())
    }

    /// What is told to those who have something open at or below `dir` when its properties change
    /// ([`crate::Properties`], `refresh_open`).
    pub(crate) async fn settings_of_open(&self, dir: &Arc<Dir>) -> Result<(), DatasetError> {
        for dataset in self.dsl.registry.open_datasets() {
            if dataset.dir().is_within(dir) {
                self.settings(&dataset).await?;
            }
        }
        Ok(())
    }

    /// The crypto key of a directory, if it has one.
    pub(crate) async fn crypto_key(&self, dir: &Arc<Dir>) -> Result<(), DatasetError> {
        match self.dsl.keys().object(dir).await? {
            Some(key) => self.whole(key).await,
            None => Ok(()),
        }
    }

    /// The list of places on removed vdevs that a dataset may have.
    async fn remaps(&self, dataset: &Arc<Ds>) -> Result<(), DatasetError> {
        let Some(list) = self.dsl.deadlists().remap_list(dataset).await? else {
            return Ok(());
        };
        self.all_dead(list).await
    }

    /// For a new directory called `name` below `parent`.
    pub(crate) async fn new_dir(&self, parent: &Arc<Dir>, name: &str) -> Result<(), DatasetError> {
        self.ancestors(parent).await?;
        let children = parent.state().phys.child_directories;
        self.name(children, name).await?;
        Ok(())
    }

    /// For a directory that leaves its parent.
    pub(crate) async fn moved(&self, dir: &Arc<Dir>, from: &Arc<Dir>) -> Result<(), DatasetError> {
        self.ancestors(dir).await?;
        let (children, name) = (
            from.state().phys.child_directories,
            dir.state().name.clone(),
        );
        self.name_to_remove(children, &name).await
    }

    /// For a new head: of what `origin` has, or empty, which is a clone too.
    pub(crate) async fn new_head(&self, origin: Option<&Arc<Ds>>) -> Result<(), DatasetError> {
        let Some(origin) = origin.or(self.dsl.directories().origin()) else {
            return Ok(());
        };
        let dir = origin.dir();
        self.dataset(origin).await?;
        let head = self.dsl.directories().head(&dir).await?;
        let deadlists = self.dsl.deadlists();
        deadlists.snapshot_chain_keys(&head, origin.object).await?;
        self.whole(origin.phys().next_clones).await?;
        let clones = dir.state().phys.clones;
        self.whole(clones).await
    }

    /// For a head made of what `origin` has: also the root, whose intent log is forgotten, and what
    /// is needed to write that. `parent` is the head above the new one.
    pub(crate) async fn clone_of(
        &self,
        origin: &Arc<Ds>,
        parent: &Arc<Ds>,
    ) -> Result<(), DatasetError> {
        self.new_head(Some(origin)).await?;
        self.crypto_key(&origin.dir()).await?;
        self.settings(parent).await?;
        self.root(origin).await
    }

    /// For a head that exchanges with a clone what they have.
    pub(crate) async fn swapped(&self, head: &Arc<Ds>) -> Result<(), DatasetError> {
        self.dataset(head).await?;
        self.ancestors(&head.dir()).await?;
        let origin_txg = head.dir().state().origin_txg;
        self.dead_in(head, origin_txg, EVER).await?;
        self.remaps(head).await?;
        self.settings(head).await?;
        self.whole(bookmarks_of(head)).await?;
        if let Some(prev) = head.prev() {
            self.dataset(&prev).await?;
            let next = prev.phys().next_snapshot;
            let next = self.dsl.directories().dataset(next).await?;
            self.dsl.deadlists().of(&next).await?.space().await?;
            self.dsl.deadlists().let_go(&next).await;
        }
        Ok(())
    }

    /// For a new snapshot of a head.
    pub(crate) async fn new_snapshot(
        &self,
        head: &Arc<Ds>,
        name: &str,
    ) -> Result<(), DatasetError> {
        self.dataset(head).await?;
        self.ancestors(&head.dir()).await?;
        drop(self.dsl.deadlists().of(head).await?);
        let phys = head.phys();
        self.name(phys.snapshot_names, name).await?;
        if !phys.previous_snapshot.is_zero() {
            let deadlists = self.dsl.deadlists();
            deadlists
                .snapshot_chain_keys(head, phys.previous_snapshot)
                .await?;
        }
        if let Some(prev) = head.prev() {
            self.object(prev.object).await?;
            let from = prev.phys();
            if from.next_snapshot != head.object {
                self.whole(from.next_clones).await?;
            }
        }
        self.remaps(head).await
    }

    /// For what was received, which becomes a snapshot of `head`: of itself, or of another one,
    /// which exchanges with it what they have.
    pub(crate) async fn received(
        &self,
        received: &Arc<Ds>,
        head: &Arc<Ds>,
        snapshot: &str,
    ) -> Result<(), DatasetError> {
        self.new_snapshot(head, snapshot).await?;
        self.properties(head).await?;
        if Arc::ptr_eq(received, head) {
            return Ok(());
        }
        for each in [head, received] {
            self.swapped(each).await?;
        }
        self.root(received).await?;
        self.destroyed_head(received).await
    }

    /// For a snapshot that goes, whose blocks `heir` has then as far as they stay: the dataset that
    /// follows it, or will when those between the two are gone.
    pub(crate) async fn destroyed_snapshot(
        &self,
        snapshot: &Arc<Ds>,
        heir: ObjectId,
    ) -> Result<(), DatasetError> {
        let directories = self.dsl.directories();
        let phys = snapshot.phys();
        let dir = snapshot.dir();
        let full_name = directories.full_name(snapshot).await?;
        let head = directories.head(&dir).await?;
        let follows = directories.dataset(phys.next_snapshot).await?;
        if follows.phys().previous_snapshot != snapshot.object
            || [phys.next_snapshot, heir].contains(&snapshot.object)
        {
            let what = format!("dataset {} does not follow it", follows.object);
            return Err(DatasetError::corrupt(snapshot.object, what));
        }
        let next = directories.dataset(heir).await?;
        for dataset in [snapshot, &head, &next] {
            self.dataset(dataset).await?;
            self.remaps(dataset).await?;
        }
        self.ancestors(&dir).await?;
        self.whole(bookmarks_of(&head)).await?;
        let mut since = phys.previous_snapshot_txg;
        if let Some(prev) = directories.before(snapshot).await? {
            self.dataset(&prev).await?;
            let from = prev.phys();
            since = from.previous_snapshot_txg;
            if from.next_snapshot != snapshot.object {
                for key in [snapshot.object, next.object] {
                    self.key(from.next_clones, key).await?;
                }
            }
        }
        self.merged(snapshot, &next, since).await?;
        if head.state().bookmarks.counts_freed() {
            self.dead_in(&next, Txg::ZERO, phys.creation_txg).await?;
        }
        if next.is_snapshot() {
            let after_next = directories.dataset(next.phys().next_snapshot).await?;
            self.dead_in(&after_next, phys.previous_snapshot_txg, phys.creation_txg)
                .await?;
            self.part_to_remove(&head, phys.creation_txg).await?;
        }
        self.clones_key(&dir, phys.creation_txg).await?;
        let (_, name) = split_snapshot(&full_name);
        let name = name.unwrap_or_default();
        self.name_to_remove(head.phys().snapshot_names, name)
            .await?;
        for zap in [phys.next_clones, phys.properties, phys.user_references] {
            self.object(zap).await?;
        }
        Ok(())
    }

    /// The list at a key of a dataset's deadlist, which joins the one before.
    async fn part_to_remove(&self, dataset: &Arc<Ds>, key: Txg) -> Result<(), DatasetError> {
        let deadlist = dataset.phys().deadlist;
        let parts = self.dsl.deadlists().of(dataset).await?.joined_at(key);
        for (key, part) in parts {
            // Of a list with a key for each of many snapshots these two are changed.
            self.number(deadlist, key).await?;
            self.list(part).await?;
        }
        Ok(())
    }

    /// What loses a key in the deadlists of all clones made after it.
    pub(crate) async fn clones_key(&self, dir: &Arc<Dir>, key: Txg) -> Result<(), DatasetError> {
        let mut pending = vec![dir.clone()];
        let mut known = HashSet::from([dir.object]);
        while let Some(dir) = pending.pop() {
            let clones = dir.state().phys.clones;
            if clones.is_zero() {
                continue;
            }
            for entry in Zap::hold(self.dsl.mos(), clones).await?.all().await? {
                let clone = ObjectId::new(entry.value.as_u64().unwrap_or(0));
                let clone = self.dsl.directories().dataset(clone).await?;
                let clone_dir = clone.dir();
                if clone_dir.state().origin_txg > key && known.insert(clone_dir.object) {
                    self.part_to_remove(&clone, key).await?;
                    self.remaps(&clone).await?;
                    pending.push(clone_dir);
                }
            }
        }
        Ok(())
    }

    /// For what a head has that goes, as with the head itself. Its blocks, its deadlist and its
    /// livelist need not be readable: what cannot be freed is left.
    pub(crate) async fn destroyed_content(&self, head: &Arc<Ds>) -> Result<(), DatasetError> {
        self.dsl.deadlists().remap_list(head).await?;
        self.whole(self.dsl.destroy_state.deleted_clones()).await?;
        let queue = self.dsl.destroy_state.tree_queue();
        if let Some(queue) = self.object(queue).await? {
            // The next entry is written behind the last one.
            let info = queue.info();
            let last = info.max_block_id * u64::from(info.data_block_bytes);
            queue.read(last, 1).await?;
        }
        Ok(())
    }

    /// For a head that goes, with its directory.
    pub(crate) async fn destroyed_head(&self, head: &Arc<Ds>) -> Result<(), DatasetError> {
        let (phys, dir) = (head.phys(), head.dir());
        self.destroyed_content(head).await?;
        self.dataset(head).await?;
        self.ancestors(&dir).await?;
        if let Some(prev) = head.prev() {
            self.object(prev.object).await?;
            self.key(prev.phys().next_clones, head.object).await?;
            let clones = prev.dir().state().phys.clones;
            self.key_to_remove(clones, head.object).await?;
        }
        let lists = {
            let state = head.state();
            let entries = state.bookmarks.entries().iter();
            let lists: Vec<_> = entries.map(|entry| entry.phys.redaction_list).collect();
            lists
        };
        for list in lists {
            self.object(list).await?;
        }
        let (of_dir, parent, name) = {
            let state = dir.state();
            (state.phys, state.parent.clone(), state.name.clone())
        };
        if let Some(parent) = parent {
            let children = parent.state().phys.child_directories;
            self.name_to_remove(children, &name).await?;
        }
        self.crypto_key(&dir).await?;
        self.delegation(&dir).await?;
        for object in [
            phys.snapshot_names,
            bookmarks_of(head),
            of_dir.child_directories,
            of_dir.properties,
            of_dir.clones,
            of_dir.delegation,
        ] {
            self.object(object).await?;
        }
        Ok(())
    }

    /// For a dataset whose properties change. Also what others inherit from above is read: it is
    /// told.
    pub(crate) async fn properties(&self, dataset: &Arc<Ds>) -> Result<(), DatasetError> {
        self.dataset(dataset).await?;
        self.ancestors(&dataset.dir()).await?;
        let (of_dataset, dir) = (dataset.phys().properties, dataset.dir());
        self.whole(of_dataset).await?;
        let mut at = Some(dir.clone());
        while let Some(dir) = at {
            let properties = dir.state().phys.properties;
            self.whole(properties).await?;
            at = dir.parent();
        }
        self.crypto_key(&dir).await?;
        self.dsl.directories().full_name(dataset).await?;
        Ok(())
    }

    /// A ZAP of ZAPs: what users were delegated.
    pub(crate) async fn delegation(&self, dir: &Arc<Dir>) -> Result<(), DatasetError> {
        let delegation = dir.state().phys.delegation;
        self.whole(delegation).await?;
        if delegation.is_zero() {
            return Ok(());
        }
        for entry in Zap::hold(self.dsl.mos(), delegation).await?.all().await? {
            let set = ObjectId::new(entry.value.as_u64().unwrap_or(0));
            self.whole(set).await?;
        }
        Ok(())
    }

    /// What is counted when a limit is set on `dir`.
    pub(crate) async fn counted_below(&self, dir: &Arc<Dir>) -> Result<(), DatasetError> {
        if !self.dsl.features().is_enabled(guid::FILESYSTEM_LIMITS) {
            return Ok(());
        }
        let mut pending = vec![dir.clone()];
        while let Some(dir) = pending.pop() {
            self.whole(dir.object).await?;
            let head = self.dsl.directories().head(&dir).await?;
            let zap = Zap::hold(self.dsl.mos(), head.phys().snapshot_names).await?;
            zap.count().await?;
            let is_counted = dir.state().is_zapified
                && self
                    .name(dir.object, names::directory::FILESYSTEM_COUNT)
                    .await?;
            if !is_counted {
                pending.extend(self.dsl.directories().children(&dir).await?);
            }
        }
        Ok(())
    }

    /// For a bookmark that comes to a head or goes.
    pub(crate) async fn bookmarks(&self, head: &Arc<Ds>) -> Result<(), DatasetError> {
        self.dataset(head).await?;
        self.whole(bookmarks_of(head)).await
    }

    /// For a bookmark that goes.
    pub(crate) async fn destroyed_bookmark(
        &self,
        head: &Arc<Ds>,
        name: &str,
    ) -> Result<(), DatasetError> {
        self.bookmarks(head).await?;
        let entry = head.state().bookmarks.find(name);
        let Some(entry) = entry else {
            return Ok(());
        };
        self.object(entry.phys.redaction_list).await?;
        if entry.counts_freed() {
            self.clones_key(&head.dir(), entry.creation_txg()).await?;
            self.part_to_remove(head, entry.creation_txg()).await?;
        }
        Ok(())
    }

    /// For a hold of a snapshot that is set or released.
    pub(crate) async fn hold(&self, snapshot: &Arc<Ds>) -> Result<(), DatasetError> {
        self.object(snapshot.object).await?;
        self.whole(snapshot.phys().user_references).await?;
        self.dsl.directories().full_name(snapshot).await?;
        Ok(())
    }

    /// Also where the snapshot goes with its last hold.
    pub(crate) async fn released(&self, snapshot: &Arc<Ds>) -> Result<(), DatasetError> {
        self.hold(snapshot).await?;
        let phys = snapshot.phys();
        if phys.flags & DslDatasetPhys::FLAG_DEFER_DESTROY != 0 && phys.children == 1 {
            self.destroyed_snapshot(snapshot, phys.next_snapshot)
                .await?;
        }
        Ok(())
    }
}
