//! The datasets of a pool: opening, creating, and syncing them.
//!
//! # In memory
//! The [registry](Registry) has every directory and dataset that was looked at, once. `config` is
//! OpenZFS's `dp_config_rwlock`: who looks at names, properties or chains of snapshots holds it for
//! reading; sync tasks run under it for writing. Nobody who holds it waits for a txg. Space
//! accounts have locks of their own, as the writing of datasets changes them all the time.
//!
//! How a txg is written is in `sync.rs`.
//!
//! # What a crash leaves
//! Nothing of a txg is visible before its uberblock; a crash leaves the txg before, whole.
//! Background frees note how far they are in the same txg that frees.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use device::{BoxFuture, World};
use format::{
    BlockPointer, DslDatasetPhys, DslDirPhys, Endian, Guid, NvList, NvValue, ObjectId, ObjectType,
    ObjsetKind, Txg, names,
};
use object::{Bpobj, ObjectSet, ObjsetOptions, SyncContext, Zap, ZapOptions};
use parking_lot::{Mutex, RwLock};
use tokio::sync::{MappedMutexGuard, MutexGuard};
use zio::{Pipeline, Tx, TxgManager};

use crate::bookmark::SnapshotBookmarks;
use crate::crypto::KeyStore;
use crate::deadlist::Deadlist;
use crate::features::{Features, PER_DATASET, guid};
use crate::settings::mos_properties;
use crate::state::{Dir, DirState, DirtyQueue, Ds, DsState, Space};
use crate::sync::Tasks;
use crate::task::{DslHooks, HistoryEvent};
use crate::{DatasetError, PropertyValue};

/// Names of the directories that users do not see.
pub(crate) const MOS_DIR: &str = "$MOS";
pub(crate) const FREE_DIR: &str = "$FREE";
pub(crate) const LEAK_DIR: &str = "$LEAK";
pub(crate) const ORIGIN_DIR: &str = "$ORIGIN";

/// Entries of the object directory.
const ROOT_DATASET: &str = "root_dataset";
const FREE_BPOBJ: &str = "free_bpobj";
pub(crate) const BPTREE_OBJ: &str = "bptree_obj";
const EMPTY_BPOBJ: &str = "empty_bpobj";
pub(crate) const DELETED_CLONES: &str = "com.delphix:deleted_clones";

/// Objects of the MOS kept in memory although nobody uses them.
const MOS_OBJECT_CACHE: usize = 16 << 10;

/// Fills a new dataset's object set, in syncing context (`zfs_create_fs`, `zvol_create_cb`).
pub trait ObjsetInit: Send + Sync {
    /// Whether the object set is a filesystem's or a volume's.
    fn kind(&self) -> ObjsetKind;
    /// Creates the objects that a new dataset has. `properties` are those it was created with.
    fn init<'a>(
        &'a self,
        objset: &'a Arc<ObjectSet>,
        properties: &'a [(String, PropertyValue)],
        tx: &'a Tx,
    ) -> BoxFuture<'a, Result<(), Box<dyn std::error::Error + Send + Sync>>>;
    /// Properties that the initialiser itself keeps (in the object set): not stored in the
    /// dataset's properties.
    fn own_properties(&self) -> &'static [&'static str] {
        &[]
    }
}

/// What every DSL call needs of the pool.
#[derive(Clone)]
pub struct DslEnvironment {
    /// Name of the pool.
    pub pool_name: String,
    /// Blocks.
    pub pipeline: Arc<Pipeline>,
    /// The world.
    pub world: World,
    /// Transaction groups.
    pub txgs: Arc<TxgManager>,
    /// The layer above.
    pub hooks: Arc<dyn DslHooks>,
    /// Nothing will be written.
    pub read_only: bool,
    /// Version of the pool (`SPA_VERSION_*`; 5000 with feature flags).
    pub spa_version: u64,
}

/// What [`DslPool::create`] makes.
#[derive(Clone)]
pub struct CreateParams {
    /// Guids of the features to enable, in this order (dependencies are enabled before).
    pub features: Vec<String>,
    /// Properties of the root dataset, as typed.
    pub root_properties: Vec<(String, String)>,
    /// Fills the root dataset.
    pub root_init: Arc<dyn ObjsetInit>,
}

#[derive(Default)]
pub(crate) struct Registry {
    pub dirs: HashMap<ObjectId, Arc<Dir>>,
    pub datasets: HashMap<ObjectId, Arc<Ds>>,
}

/// Datasets that became dirty, by parity of the txg.
#[derive(Default)]
pub(crate) struct DirtyDatasets {
    slots: Mutex<[Vec<Arc<Ds>>; 2]>,
}

impl DirtyDatasets {
    pub(crate) fn add(&self, txg: Txg, dataset: Arc<Ds>) {
        let mut slots = self.slots.lock();
        let slot = &mut slots[slot(txg)];
        if !slot.iter().any(|known| Arc::ptr_eq(known, &dataset)) {
            slot.push(dataset);
        }
    }

    pub(crate) fn take(&self, txg: Txg) -> Vec<Arc<Ds>> {
        std::mem::take(&mut self.slots.lock()[slot(txg)])
    }

    pub(crate) fn is_empty(&self, txg: Txg) -> bool {
        self.slots.lock()[slot(txg)].is_empty()
    }
}

impl Drop for DslPool {
    /// What is dirty refers to the queues that it stands in; where nothing will be written any more (a suspended
    /// pool that is exported by force), these are taken apart, else all that memory would never be freed.
    fn drop(&mut self) {
        self.queue.take();
        for txg in [Txg::ZERO, Txg::ZERO.next()] {
            self.dirty_datasets.take(txg);
        }
    }
}

pub(crate) fn slot(txg: Txg) -> usize {
    (txg.get() & 1) as usize
}

/// The datasets of one pool, over its MOS.
pub struct DslPool {
    env: DslEnvironment,
    pool_name: RwLock<String>,
    mos: Arc<ObjectSet>,
    pub(crate) directory: Zap,
    features: Arc<Features>,
    pub(crate) config: tokio::sync::RwLock<()>,
    pub(crate) registry: Mutex<Registry>,
    pub(crate) queue: Arc<DirtyQueue>,
    pub(crate) dirty_datasets: Arc<DirtyDatasets>,
    pub(crate) tasks: Mutex<Tasks>,
    root_dir: OnceLock<Arc<Dir>>,
    pub(crate) mos_dir: OnceLock<Arc<Dir>>,
    free_dir: OnceLock<Arc<Dir>>,
    pub(crate) leak_dir: Mutex<Option<Arc<Dir>>>,
    origin: OnceLock<Arc<Ds>>,
    pub(crate) free_list: OnceLock<Bpobj>,
    pub(crate) bptree: Mutex<ObjectId>,
    pub(crate) deleted_clones: Mutex<ObjectId>,
    pub(crate) empty_list: Mutex<ObjectId>,
    pub(crate) mos_delta: Mutex<Space>,
    pub(crate) background_stalled: Mutex<bool>,
    /// Background frees wait for the pool to be ready for them.
    pub(crate) background_held: AtomicBool,
    pub(crate) keys: KeyStore,
    /// Holds of sends that a crash or export interrupted are still there.
    pub(crate) has_temporary_holds: AtomicBool,
}

impl DslPool {
    fn assemble(
        env: DslEnvironment,
        mos: Arc<ObjectSet>,
        directory: Zap,
        features: Arc<Features>,
    ) -> Self {
        DslPool {
            pool_name: RwLock::new(env.pool_name.clone()),
            env,
            mos,
            directory,
            features,
            config: tokio::sync::RwLock::new(()),
            registry: Mutex::default(),
            queue: Arc::default(),
            dirty_datasets: Arc::default(),
            tasks: Mutex::default(),
            root_dir: OnceLock::new(),
            mos_dir: OnceLock::new(),
            free_dir: OnceLock::new(),
            leak_dir: Mutex::new(None),
            origin: OnceLock::new(),
            free_list: OnceLock::new(),
            bptree: Mutex::new(ObjectId::ZERO),
            deleted_clones: Mutex::new(ObjectId::ZERO),
            empty_list: Mutex::new(ObjectId::ZERO),
            mos_delta: Mutex::default(),
            background_stalled: Mutex::new(false),
            background_held: AtomicBool::new(false),
            keys: KeyStore::default(),
            has_temporary_holds: AtomicBool::new(false),
        }
    }

    /// Makes the MOS of a new pool, its feature flags and first datasets, in syncing context
    /// (`dsl_pool_create`, module/zfs/dsl_pool.c). `ctx.txg` must be [`Txg::INITIAL`] or later.
    ///
    /// # Errors
    /// Of writing, and of properties or features that are not valid.
    pub async fn create(
        env: DslEnvironment,
        ctx: &SyncContext,
        params: CreateParams,
    ) -> Result<Arc<Self>, DatasetError> {
        let tx = Tx::syncing(ctx.txg);
        let is_enabled = |guid: &str| params.features.iter().any(|enabled| enabled == guid);
        let options = ObjsetOptions {
            properties: mos_properties(is_enabled(guid::LZ4_COMPRESS)),
            hole_birth: is_enabled(guid::HOLE_BIRTH),
            embedded_data: is_enabled(guid::EMBEDDED_DATA),
            lz4_metadata: is_enabled(guid::LZ4_COMPRESS),
            read_only: false,
            encrypted: false,
            without_key: false,
            object_cache_limit: MOS_OBJECT_CACHE,
            dataset: ObjectId::ZERO,
        };
        let mos = ObjectSet::create(
            env.pipeline.clone(),
            env.world.clone(),
            ObjsetKind::Meta,
            options,
            &tx,
        );
        let mut directory_options = ZapOptions::new(ObjectType::OBJECT_DIRECTORY);
        directory_options.claim = Some(ObjectId::POOL_DIRECTORY);
        let directory = Zap::create(&mos, &tx, directory_options).await?;
        let features = Features::create(&mos, &directory, &tx).await?;
        let dsl = Arc::new(DslPool::assemble(env, mos, directory, features));

        let root_dir = dsl.create_dir(ctx, None, "").await?;
        dsl.directory
            .add_u64(&tx, ROOT_DATASET, root_dir.object.get())
            .await?;
        dsl.set_special(&dsl.root_dir, root_dir.clone());
        let mos_dir = dsl.create_dir(ctx, Some(&root_dir), MOS_DIR).await?;
        dsl.set_special(&dsl.mos_dir, mos_dir);
        let free_dir = dsl.create_dir(ctx, Some(&root_dir), FREE_DIR).await?;
        dsl.set_special(&dsl.free_dir, free_dir);
        let free_list = Bpobj::create(&dsl.mos, &tx, 0).await?;
        dsl.directory
            .add_u64(&tx, FREE_BPOBJ, free_list.id().get())
            .await?;
        let _ = dsl.free_list.set(free_list);
        dsl.create_origin(ctx).await?;
        // The lists of a new pool are its own, so that the feature is active with the first dataset
        // that a user makes.
        let (last, first): (Vec<_>, Vec<_>) =
            (params.features.iter()).partition(|guid| *guid == guid::EMPTY_BPOBJ);
        for guid in first {
            dsl.features.enable(ctx, guid).await?;
        }
        dsl.create_root_dataset(ctx, &params).await?;
        for guid in last {
            dsl.features.enable_unrecorded(ctx, guid).await?;
        }
        dsl.flush_structures(ctx).await?;
        Ok(dsl)
    }

    fn set_special<T>(&self, cell: &OnceLock<T>, value: T) {
        let is_first = cell.set(value).is_ok();
        debug_assert!(is_first, "special directories are set once");
    }

    /// Opens the datasets of an existing pool.
    ///
    /// # Errors
    /// Of reading, and when the MOS is damaged.
    pub async fn open(env: DslEnvironment, root: BlockPointer) -> Result<Arc<Self>, DatasetError> {
        let mut options = ObjsetOptions {
            properties: mos_properties(true),
            hole_birth: true,
            embedded_data: true,
            lz4_metadata: true,
            read_only: env.read_only,
            encrypted: false,
            without_key: false,
            object_cache_limit: MOS_OBJECT_CACHE,
            dataset: ObjectId::ZERO,
        };
        let open =
            |options| ObjectSet::open(env.pipeline.clone(), env.world.clone(), root, options);
        let mut mos = open(options.clone()).await?;
        let mut features = Features::open(&mos).await?;
        // Only the features say how the MOS is to be written; most pools have them all.
        let lz4 = features.is_active(guid::LZ4_COMPRESS);
        let wanted = (
            features.is_active(guid::HOLE_BIRTH),
            features.is_active(guid::EMBEDDED_DATA),
            lz4,
        );
        if wanted != (true, true, true) {
            options.properties = mos_properties(lz4);
            (
                options.hole_birth,
                options.embedded_data,
                options.lz4_metadata,
            ) = wanted;
            mos = open(options).await?;
            features = Features::open(&mos).await?;
        }
        let directory = Zap::hold(&mos, ObjectId::POOL_DIRECTORY).await?;
        let dsl = Arc::new(DslPool::assemble(env, mos, directory, features));
        dsl.load_special().await?;
        Ok(dsl)
    }

    async fn load_special(&self) -> Result<(), DatasetError> {
        let entry = |name: &'static str| self.directory.lookup_u64(name);
        let root = entry(ROOT_DATASET).await?.ok_or_else(|| {
            DatasetError::corrupt(
                ObjectId::POOL_DIRECTORY,
                "the object directory names no root dataset",
            )
        })?;
        let root_dir = self.dir(root.into()).await?;
        self.set_special(&self.root_dir, root_dir.clone());
        if let Some(dir) = self.child_dir(&root_dir, MOS_DIR).await? {
            self.set_special(&self.mos_dir, dir);
        }
        if let Some(dir) = self.child_dir(&root_dir, FREE_DIR).await? {
            self.set_special(&self.free_dir, dir);
        }
        *self.leak_dir.lock() = self.child_dir(&root_dir, LEAK_DIR).await?;
        if let Some(dir) = self.child_dir(&root_dir, ORIGIN_DIR).await? {
            let head = self.head(&dir).await?;
            let snapshot = head.phys().previous_snapshot;
            if !snapshot.is_zero() {
                self.set_special(&self.origin, self.dataset(snapshot).await?);
                // Those loaded before it was known looked like clones of it.
                for dir in self.registry.lock().dirs.values() {
                    let mut state = dir.state();
                    if state.phys.origin == snapshot {
                        state.origin_txg = Txg::ZERO;
                    }
                }
            }
        }
        if let Some(object) = entry(FREE_BPOBJ).await? {
            let list = Bpobj::open(&self.mos, object.into()).await?;
            self.set_special(&self.free_list, list);
        }
        *self.bptree.lock() = entry(BPTREE_OBJ).await?.unwrap_or(0).into();
        self.has_temporary_holds.store(true, Ordering::Release);
        *self.empty_list.lock() = entry(EMPTY_BPOBJ).await?.unwrap_or(0).into();
        *self.deleted_clones.lock() = entry(DELETED_CLONES).await?.unwrap_or(0).into();
        Ok(())
    }

    /// The pool's own objects.
    pub fn mos(&self) -> &Arc<ObjectSet> {
        &self.mos
    }
    /// The object directory of the MOS.
    pub fn directory(&self) -> &Zap {
        &self.directory
    }
    /// Feature flags.
    pub fn features(&self) -> &Arc<Features> {
        &self.features
    }
    /// The MOS's newest root block.
    pub fn root_bp(&self) -> BlockPointer {
        self.mos.root()
    }
    /// The pool's name.
    pub fn pool_name(&self) -> String {
        self.pool_name.read().clone()
    }
    pub(crate) fn env(&self) -> &DslEnvironment {
        &self.env
    }
    /// The directory of the root dataset.
    pub(crate) fn root_dir(&self) -> &Arc<Dir> {
        self.root_dir.get().expect("set when the pool was opened")
    }
    /// The directory that space waiting to be freed counts for.
    pub(crate) fn free_dir(&self) -> Option<&Arc<Dir>> {
        self.free_dir.get()
    }
    /// The empty snapshot that every dataset which is no clone is one of.
    pub(crate) fn origin(&self) -> Option<&Arc<Ds>> {
        self.origin.get()
    }
    pub(crate) fn set_origin(&self, origin: Arc<Ds>) {
        self.set_special(&self.origin, origin);
    }
    /// Seconds since the epoch.
    pub(crate) fn now_seconds(&self) -> u64 {
        self.env.world.clock.wall_ns() / 1_000_000_000
    }
    pub(crate) fn random_guid(&self) -> Guid {
        loop {
            let guid = self.env.world.random.next_u64();
            if guid != 0 {
                return Guid::new(guid);
            }
        }
    }
    /// A guid of 56 bits for a mounted filesystem (`unique_create`).
    pub(crate) fn random_fsid(&self) -> u64 {
        loop {
            let guid = self.env.world.random.next_u64() & ((1 << 56) - 1);
            let taken = self
                .registry
                .lock()
                .datasets
                .values()
                .any(|dataset| dataset.state().phys.fsid_guid == guid);
            if guid != 0 && !taken {
                return guid;
            }
        }
    }

    // The registry.

    /// The directory with this object number.
    pub(crate) fn dir(&self, object: ObjectId) -> BoxFuture<'_, Result<Arc<Dir>, DatasetError>> {
        Box::pin(self.dir_named(object, None))
    }

    async fn dir_named(
        &self,
        object: ObjectId,
        name: Option<&str>,
    ) -> Result<Arc<Dir>, DatasetError> {
        if let Some(dir) = self.registry.lock().dirs.get(&object) {
            return Ok(dir.clone());
        }
        let held = self.mos.hold(object).await?;
        let info = held.info();
        if info.bonus_type != ObjectType::DSL_DIR {
            return Err(DatasetError::corrupt(object, "it is not a DSL directory"));
        }
        let phys = DslDirPhys::decode(&held.bonus(), Endian::Little)?;
        let is_zapified = info.object_type == ObjectType::OTN_ZAP_METADATA;
        let parent = if phys.parent.is_zero() {
            None
        } else if phys.parent == object {
            return Err(DatasetError::corrupt(object, "it is its own parent"));
        } else {
            Some(self.dir(phys.parent).await?)
        };
        let name = match (name, &parent) {
            (Some(name), _) => name.to_owned(),
            (None, None) => String::new(),
            (None, Some(parent)) => {
                let children = parent.state().phys.child_directories;
                let found = Zap::hold(&self.mos, children)
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
            && self.origin.get().map(|origin| origin.object) != Some(phys.origin);
        let origin_txg = if is_clone {
            let origin = self.mos.hold(phys.origin).await?;
            DslDatasetPhys::decode(&origin.bonus(), Endian::Little)?.creation_txg
        } else {
            Txg::ZERO
        };
        Ok(self.register_dir(
            object,
            DirState {
                phys,
                name,
                parent,
                origin_txg,
                is_zapified,
                to_write: [0; 2],
                is_dirty: false,
                is_gone: false,
            },
        ))
    }

    pub(crate) fn register_dir(&self, object: ObjectId, state: DirState) -> Arc<Dir> {
        self.registry
            .lock()
            .dirs
            .entry(object)
            .or_insert_with(|| Dir::new(object, self.queue.clone(), state))
            .clone()
    }

    /// The directory called `name` below `parent`, if there is one.
    pub(crate) async fn child_dir(
        &self,
        parent: &Arc<Dir>,
        name: &str,
    ) -> Result<Option<Arc<Dir>>, DatasetError> {
        let children = parent.state().phys.child_directories;
        match Zap::hold(&self.mos, children)
            .await?
            .lookup_u64(name)
            .await?
        {
            Some(object) => Ok(Some(self.dir_named(object.into(), Some(name)).await?)),
            None => Ok(None),
        }
    }

    /// The dataset with this object number.
    pub(crate) fn dataset(&self, object: ObjectId) -> BoxFuture<'_, Result<Arc<Ds>, DatasetError>> {
        Box::pin(self.load_dataset(object))
    }

    async fn load_dataset(&self, object: ObjectId) -> Result<Arc<Ds>, DatasetError> {
        if let Some(dataset) = self.registry.lock().datasets.get(&object) {
            return Ok(dataset.clone());
        }
        let held = self.mos.hold(object).await?;
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
            for entry in Zap::hold(&self.mos, object).await?.all().await? {
                let name = String::from_utf8_lossy(&entry.name).into_owned();
                if PER_DATASET.contains(&name.as_str()) {
                    features.insert(name, entry.value);
                } else if name == names::dataset::BOOKMARK_NAMES
                    && let Some(zap) = entry.value.as_u64()
                {
                    bookmarks = SnapshotBookmarks::load(self, zap.into()).await?;
                }
            }
        }
        let is_snapshot = phys.is_snapshot();
        let mut prev = None;
        let (mut refquota_bytes, mut reserved_bytes, mut user_holds) = (0, 0, 0);
        if is_snapshot {
            if !phys.user_references.is_zero() {
                user_holds = Zap::hold(&self.mos, phys.user_references)
                    .await?
                    .count()
                    .await?;
            }
        } else {
            if !phys.previous_snapshot.is_zero() {
                prev = Some(self.dataset(phys.previous_snapshot).await?);
            }
            refquota_bytes = self.own_number(&dir, "refquota").await?;
            reserved_bytes = self.own_number(&dir, "refreservation").await?;
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
            kind: None,
            is_dirty: false,
            is_gone: false,
        };
        Ok(self
            .registry
            .lock()
            .datasets
            .entry(object)
            .or_insert_with(|| Ds::new(object, self.queue.clone(), state))
            .clone())
    }

    /// The head dataset of a directory.
    pub(crate) async fn head(&self, dir: &Arc<Dir>) -> Result<Arc<Ds>, DatasetError> {
        let object = dir.state().phys.head_dataset;
        if object.is_zero() {
            return Err(DatasetError::not_found(dir.full_name(&self.pool_name())));
        }
        self.dataset(object).await
    }

    /// Forgets a directory that was destroyed.
    pub(crate) fn forget_dir(&self, dir: &Arc<Dir>) {
        let mut state = dir.state();
        state.is_gone = true;
        drop(state);
        self.registry.lock().dirs.remove(&dir.object);
    }

    /// Forgets a dataset that was destroyed.
    pub(crate) fn forget_dataset(&self, dataset: &Arc<Ds>) {
        dataset.state().is_gone = true;
        *dataset.open.lock() = None;
        self.registry.lock().datasets.remove(&dataset.object);
    }

    /// Datasets that are open now.
    pub(crate) fn open_datasets(&self) -> Vec<Arc<Ds>> {
        self.registry
            .lock()
            .datasets
            .values()
            .filter(|dataset| dataset.open.lock().is_some())
            .cloned()
            .collect()
    }

    /// A dataset's deadlist, locked, in syncing context. A head's stays loaded.
    pub(crate) async fn deadlist<'a>(
        &self,
        dataset: &'a Arc<Ds>,
    ) -> Result<MappedMutexGuard<'a, Deadlist>, DatasetError> {
        let mut slot = dataset.deadlist.lock().await;
        let object = dataset.state().phys.deadlist;
        if slot.as_ref().map(Deadlist::object) != Some(object) {
            *slot = Some(Deadlist::open(&self.mos, object).await?);
        }
        Ok(MutexGuard::map(slot, |slot| {
            slot.as_mut().expect("opened just now")
        }))
    }

    /// Forgets a deadlist that was loaded: a snapshot's is needed when one is destroyed only.
    pub(crate) async fn unload_deadlist(&self, dataset: &Arc<Ds>) {
        if dataset.is_snapshot() {
            *dataset.deadlist.lock().await = None;
        }
    }

    /// Has the open txg written, and waits until it is.
    ///
    /// # Errors
    /// Where the pool is suspended or left meanwhile.
    pub async fn sync(&self) -> Result<(), DatasetError> {
        self.env().txgs.sync().await?;
        Ok(())
    }

    /// Notes something in the pool's history.
    pub(crate) async fn history(
        &self,
        ctx: &SyncContext,
        event: &'static str,
        dataset: String,
        object: ObjectId,
        text: impl Into<String>,
    ) -> Result<(), DatasetError> {
        let event = HistoryEvent {
            event,
            dataset,
            dataset_object: object.get(),
            text: text.into(),
        };
        self.env.hooks.history(ctx, event).await
    }

    /// Notes in the pool's history that something was asked for and done, with the names that it
    /// was about.
    pub(crate) fn fulfilled(&self, request: &'static str, list: &str, names: &[String]) {
        let mut about = NvList::new();
        for name in names {
            about.push(name.as_str(), NvValue::Boolean);
        }
        let mut input = NvList::new();
        input.set(list, about);
        self.env.hooks.fulfilled(request, input);
    }
}
