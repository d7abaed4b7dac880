//! The datasets of a pool.

use std::sync::Arc;

use device::{BoxFuture, World};
use format::{BlockPointer, ObjectId, Txg};
use object::{ObjectSet, SyncContext};
use pool::{Pipeline, Tx, TxgManager};

use crate::features::Features;
use crate::task::{DslHooks, SyncTask};
use crate::{
    Dataset, DatasetError, DatasetInfo, ListOptions, PropertyChange, PropertySetting, PropertyValue,
};

/// Fills a new dataset's object set, in syncing context (`zfs_create_fs`, `zvol_create_cb`).
pub trait ObjsetInit: Send + Sync {
    /// Whether the object set is a filesystem's or a volume's.
    fn kind(&self) -> format::ObjsetKind;
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
    /// Guids of the features to enable.
    pub features: Vec<String>,
    /// Properties of the root dataset, as typed.
    pub root_properties: Vec<(String, String)>,
    /// Fills the root dataset.
    pub root_init: Arc<dyn ObjsetInit>,
}

/// The datasets of one pool, over its MOS.
pub struct DslPool {}

impl DslPool {
    /// Makes the MOS of a new pool, its feature flags and first datasets, in syncing context
    /// (`dsl_pool_create`, module/zfs/dsl_pool.c).
    pub async fn create(
        env: DslEnvironment,
        ctx: &SyncContext,
        params: CreateParams,
    ) -> Result<Arc<Self>, DatasetError> {
        let _ = (env, ctx, params);
        todo!()
    }
    /// Opens the datasets of an existing pool.
    pub async fn open(env: DslEnvironment, root: BlockPointer) -> Result<Arc<Self>, DatasetError> {
        let _ = (env, root);
        todo!()
    }
    /// The pool's own objects.
    pub fn mos(&self) -> &Arc<ObjectSet> {
        todo!()
    }
    /// Feature flags.
    pub fn features(&self) -> &Arc<Features> {
        todo!()
    }
    /// The MOS's newest root block.
    pub fn root_bp(&self) -> BlockPointer {
        todo!()
    }

    // What the sync loop calls.

    /// Whether `txg` has anything to write.
    pub fn has_dirty(&self, txg: Txg) -> bool {
        let _ = txg;
        todo!()
    }
    /// One pass of syncing a txg (`dsl_pool_sync`): in pass 1 dirty datasets, then sync tasks and
    /// background frees; in every pass the MOS, when dirty.
    pub async fn sync_pass(&self, ctx: &SyncContext) -> Result<(), DatasetError> {
        let _ = ctx;
        todo!()
    }
    /// The txg is on disk: answers those who wait for its sync tasks, forgets what it kept.
    pub fn sync_done(&self, txg: Txg) {
        let _ = txg;
        todo!()
    }
    /// Everything is over: those who wait get `error`.
    pub fn close(&self) {
        todo!()
    }
    /// Queues a task for the open txg and waits until it is on disk.
    pub async fn run_task(self: &Arc<Self>, task: Arc<dyn SyncTask>) -> Result<(), DatasetError> {
        let _ = task;
        todo!()
    }
    /// At import, after a crash: marks the intent logs' blocks as allocated (`zil_claim`), before
    /// anything is allocated. Call in the first syncing txg.
    pub async fn claim_logs(&self, ctx: &SyncContext) -> Result<(), DatasetError> {
        let _ = ctx;
        todo!()
    }
    /// Bytes that wait to be freed in the background (`freeing`).
    pub fn freeing_bytes(&self) -> u64 {
        todo!()
    }

    // Looking.

    /// The pool's name.
    pub fn pool_name(&self) -> String {
        todo!()
    }
    /// A dataset or snapshot in numbers.
    pub async fn lookup(&self, name: &str) -> Result<DatasetInfo, DatasetError> {
        let _ = name;
        todo!()
    }
    /// The dataset `name` and what is below it, sorted as `zfs list` does.
    pub async fn list(
        &self,
        name: &str,
        options: &ListOptions,
    ) -> Result<Vec<DatasetInfo>, DatasetError> {
        let _ = (name, options);
        todo!()
    }
    /// Full name of the dataset that has this object number.
    pub async fn name_of(&self, object: ObjectId) -> Result<String, DatasetError> {
        let _ = object;
        todo!()
    }
    /// Every property of a dataset, native ones in the order of `zfs get all`, then user properties.
    pub async fn properties(&self, name: &str) -> Result<Vec<PropertySetting>, DatasetError> {
        let _ = name;
        todo!()
    }
    /// One property.
    pub async fn property(
        &self,
        name: &str,
        property: &str,
    ) -> Result<PropertySetting, DatasetError> {
        let _ = (name, property);
        todo!()
    }

    // Changing.

    /// Creates a filesystem or volume. Its parent must exist.
    pub async fn create_dataset(
        self: &Arc<Self>,
        name: &str,
        properties: &[(String, String)],
        init: Arc<dyn ObjsetInit>,
    ) -> Result<(), DatasetError> {
        let _ = (name, properties, init);
        todo!()
    }
    /// Creates a filesystem or volume from a snapshot.
    pub async fn clone_dataset(
        self: &Arc<Self>,
        origin: &str,
        name: &str,
        properties: &[(String, String)],
    ) -> Result<(), DatasetError> {
        let _ = (origin, name, properties);
        todo!()
    }
    /// Takes snapshots, all of them in one txg or none.
    pub async fn snapshot(
        self: &Arc<Self>,
        names: &[String],
        properties: &[(String, String)],
    ) -> Result<(), DatasetError> {
        let _ = (names, properties);
        todo!()
    }
    /// Destroys one filesystem or volume, without children or snapshots, or one snapshot without clones.
    pub async fn destroy(self: &Arc<Self>, name: &str) -> Result<(), DatasetError> {
        let _ = name;
        todo!()
    }
    /// Destroys snapshots, all of them or none; with `defer`, those in use once they are not any more.
    pub async fn destroy_snapshots(
        self: &Arc<Self>,
        names: &[String],
        defer: bool,
    ) -> Result<(), DatasetError> {
        let _ = (names, defer);
        todo!()
    }
    /// Makes a filesystem or volume what its most recent snapshot is. `snapshot`: must be that one.
    pub async fn rollback(
        self: &Arc<Self>,
        name: &str,
        snapshot: Option<&str>,
    ) -> Result<String, DatasetError> {
        let _ = (name, snapshot);
        todo!()
    }
    /// Gives a filesystem or volume (with all below it) or a snapshot another name.
    pub async fn rename(self: &Arc<Self>, from: &str, to: &str) -> Result<(), DatasetError> {
        let _ = (from, to);
        todo!()
    }
    /// Renames the snapshots `old` of a filesystem and of all below it, all or none.
    pub async fn rename_snapshots(
        self: &Arc<Self>,
        head: &str,
        old: &str,
        new: &str,
    ) -> Result<(), DatasetError> {
        let _ = (head, old, new);
        todo!()
    }
    /// Makes a clone's origin a clone of it (`zfs promote`).
    pub async fn promote(self: &Arc<Self>, name: &str) -> Result<(), DatasetError> {
        let _ = name;
        todo!()
    }
    /// Sets or inherits properties, all or none.
    pub async fn set_properties(
        self: &Arc<Self>,
        name: &str,
        changes: &[(String, PropertyChange)],
    ) -> Result<(), DatasetError> {
        let _ = (name, changes);
        todo!()
    }
    /// Opens a dataset or snapshot.
    pub async fn open_dataset(self: &Arc<Self>, name: &str) -> Result<Dataset, DatasetError> {
        let _ = name;
        todo!()
    }
}
