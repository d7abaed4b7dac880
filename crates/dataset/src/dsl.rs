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

use std::sync::{Arc, OnceLock};

use device::{BoxFuture, World};
use format::{BlockPointer, Guid, NvList, NvValue, ObjectId, ObjectType, ObjsetKind, Txg, names};
use object::{ObjectSet, ObjsetOptions, SyncContext, Zap, ZapOptions};
use parking_lot::RwLock;
use zio::{Pipeline, Tx, TxgManager};

use crate::bookmark::Bookmarks;
use crate::create::Datasets;
use crate::crypto::{KeyStore, Keys};
use crate::damage::Damage;
use crate::deadlist::{DeadlistState, Deadlists};
use crate::delegation::Delegation;
use crate::destroy::{DestroyState, Destroyer};
use crate::directories::{Directories, Registry};
use crate::features::{Features, guid};
use crate::holds::{HoldState, Holds};
use crate::limits::Limits;
use crate::logs::Logs;
use crate::new_key::NewKey;
use crate::readable::Readable;
use crate::redact::ListsInUse;
use crate::settings::mos_properties;
use crate::snapshot::Snapshots;
use crate::space::SpaceLimits;
use crate::stored::Properties;
use crate::sync::{SyncState, Syncer};
use crate::task::{DslHooks, HistoryEvent};
use crate::tasks::{TaskQueue, Tasks};
use crate::{DatasetError, PropertyValue};

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
    /// The key of the root dataset, where that is an encryption root.
    pub root_key: Option<NewKey>,
}

pub(crate) fn slot(txg: Txg) -> usize {
    (txg.get() & 1) as usize
}

/// The datasets of one pool, over its MOS: what all parts share, and the parts by name. Each part
/// has its state to itself.
pub struct DslPool {
    env: DslEnvironment,
    pool_name: RwLock<String>,
    mos: Arc<ObjectSet>,
    pub(crate) directory: Zap,
    features: Arc<Features>,
    /// The namespace: held shared to look, alone by sync tasks and while keys change.
    pub(crate) config: tokio::sync::RwLock<()>,
    pub(crate) registry: Registry,
    pub(crate) sync_state: SyncState,
    pub(crate) tasks: TaskQueue,
    pub(crate) destroy_state: DestroyState,
    pub(crate) deadlist_state: DeadlistState,
    pub(crate) keys: KeyStore,
    pub(crate) hold_state: HoldState,
    pub(crate) lists_in_use: ListsInUse,
}

/// Sets what is set once, when a pool is created or opened.
pub(crate) fn set_once<T>(cell: &OnceLock<T>, value: T) {
    let is_first = cell.set(value).is_ok();
    debug_assert!(is_first, "it is set once");
}

/// The parts.
impl DslPool {
    /// Directories and datasets by name and number.
    pub fn directories(self: &Arc<Self>) -> Directories<'_> {
        Directories { dsl: self }
    }
    /// Making filesystems, volumes and clones.
    pub fn datasets(self: &Arc<Self>) -> Datasets<'_> {
        Datasets { dsl: self }
    }
    /// Snapshots: taking, renaming, rolling back, promoting.
    pub fn snapshots(self: &Arc<Self>) -> Snapshots<'_> {
        Snapshots { dsl: self }
    }
    /// Properties.
    pub fn properties(self: &Arc<Self>) -> Properties<'_> {
        Properties { dsl: self }
    }
    /// Keys of encrypted datasets.
    pub fn keys(self: &Arc<Self>) -> Keys<'_> {
        Keys { dsl: self }
    }
    /// User holds.
    pub fn holds(self: &Arc<Self>) -> Holds<'_> {
        Holds { dsl: self }
    }
    /// Bookmarks.
    pub fn bookmarks(self: &Arc<Self>) -> Bookmarks<'_> {
        Bookmarks { dsl: self }
    }
    /// What users other than root may do.
    pub fn delegation(self: &Arc<Self>) -> Delegation<'_> {
        Delegation { dsl: self }
    }
    /// Destroying, and freeing in the background.
    pub fn destroyer(self: &Arc<Self>) -> Destroyer<'_> {
        Destroyer { dsl: self }
    }
    /// Intent logs of all datasets.
    pub fn logs(self: &Arc<Self>) -> Logs<'_> {
        Logs { dsl: self }
    }
    /// What damaged blocks belong to.
    pub fn damage(self: &Arc<Self>) -> Damage<'_> {
        Damage { dsl: self }
    }
    /// Sync tasks.
    pub fn tasks(self: &Arc<Self>) -> Tasks<'_> {
        Tasks { dsl: self }
    }
    /// Writing transaction groups: for the sync loop.
    pub fn syncer(self: &Arc<Self>) -> Syncer<'_> {
        Syncer { dsl: self }
    }
    /// Quotas and reservations.
    pub(crate) fn space(self: &Arc<Self>) -> SpaceLimits<'_> {
        SpaceLimits { dsl: self }
    }
    /// Limits on the number of filesystems and snapshots.
    pub(crate) fn limits(self: &Arc<Self>) -> Limits<'_> {
        Limits { dsl: self }
    }
    /// Reading what a sync task needs, in its check.
    pub(crate) fn readable(self: &Arc<Self>) -> Readable<'_> {
        Readable { dsl: self }
    }
    /// Deadlists.
    pub(crate) fn deadlists(self: &Arc<Self>) -> Deadlists<'_> {
        Deadlists { dsl: self }
    }
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
            registry: Registry::default(),
            sync_state: SyncState::default(),
            tasks: TaskQueue::default(),
            destroy_state: DestroyState::default(),
            deadlist_state: DeadlistState::default(),
            keys: KeyStore::default(),
            hold_state: HoldState::default(),
            lists_in_use: ListsInUse::default(),
        }
    }

    /// Makes the MOS of a new pool, its feature flags and first datasets, in syncing context
    /// (`dsl_pool_create`, module/zfs/dsl_pool.c). `ctx.txg` must be [`Txg::INITIAL`] or later.
    ///
    /// # Errors
    /// Of writing, and of properties or features that are not valid.
    pub fn create<'a>(
        env: DslEnvironment,
        ctx: &'a SyncContext,
        params: CreateParams,
    ) -> BoxFuture<'a, Result<Arc<Self>, DatasetError>> {
        Box::pin(async move {
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
                raw: false,
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

            let directories = dsl.directories();
            let root = directories.create_dir(ctx, None, "").await?;
            let object = root.object.get();
            dsl.directory
                .add_u64(&tx, names::pool::ROOT_DATASET, object)
                .await?;
            directories.set_root(root.clone());
            let mos_dir = directories
                .create_dir(ctx, Some(&root), names::hidden_directory::MOS)
                .await?;
            dsl.syncer().set_mos_dir(mos_dir);
            dsl.destroyer().create(ctx, &root).await?;
            dsl.datasets().create_origin(ctx).await?;
            // The lists of a new pool are its own, so that the feature is active with the first
            // dataset that a user makes.
            let (last, first): (Vec<_>, Vec<_>) =
                (params.features.iter()).partition(|guid| *guid == guid::EMPTY_BPOBJ);
            for guid in first {
                dsl.features.enable(ctx, guid).await?;
            }
            dsl.datasets().create_root_dataset(ctx, &params).await?;
            for guid in last {
                dsl.features.enable_unrecorded(ctx, guid).await?;
            }
            dsl.syncer().flush_structures(ctx).await?;
            Ok(dsl)
        })
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
            raw: false,
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
        dsl.load().await?;
        Ok(dsl)
    }

    async fn load(self: &Arc<Self>) -> Result<(), DatasetError> {
        let root = self.directory.lookup_u64(names::pool::ROOT_DATASET).await?;
        let root = root.ok_or_else(|| {
            DatasetError::corrupt(
                ObjectId::POOL_DIRECTORY,
                "the object directory names no root dataset",
            )
        })?;
        let directories = self.directories();
        directories.load(root.into()).await?;
        let mos_dir = directories.child_dir(directories.root_dir(), names::hidden_directory::MOS);
        if let Some(dir) = mos_dir.await? {
            self.syncer().set_mos_dir(dir);
        }
        self.destroyer().load().await?;
        self.deadlists().load().await?;
        self.holds().note_interrupted();
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
        let mut input = NvList::new();
        input.set(list, all_true(names));
        self.env.hooks.fulfilled(request, input);
    }

    /// The same where the names are all that was asked with.
    pub(crate) fn fulfilled_each(&self, request: &'static str, names: &[String]) {
        self.env.hooks.fulfilled(request, all_true(names));
    }
}

/// A list of names.
pub(crate) fn all_true(names: &[String]) -> NvList {
    let mut list = NvList::new();
    for name in names {
        list.push(name.as_str(), NvValue::Boolean);
    }
    list
}
