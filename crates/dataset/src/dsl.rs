//! What all parts of the DSL share: the MOS, the lock of the namespace, and the state of the parts.
//!
//! # In memory
//! The [registry](Registry) has every directory and dataset that was looked at, once. `config` is
//! OpenZFS's `dp_config_rwlock`: readers of names, properties or chains of snapshots hold it
//! shared; sync tasks run under it alone. Nobody who holds it waits for a txg. Space accounts have
//! locks of their own, as the writing of datasets changes them all the time.
//!
//! Each part adds the function that gives it ([`DslPool::keys`]) in its own module. How a pool is
//! made and opened is in `pool.rs`, how a txg is written in `sync.rs`.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use device::World;
use format::{BlockPointer, Guid, NvList, NvValue, ObjectId};
use object::{Bpobj, ObjectSet, SyncContext, Zap};
use parking_lot::RwLock;
use zio::{Pipeline, Tx, TxgManager};

use crate::DatasetError;
use crate::features::Features;
use crate::state::{
    DestroyState, KeyStore, Lists, ListsInUse, RecentDeadlists, Registry, SyncState, TaskQueue,
};
use crate::task::{DslHooks, HistoryEvent};
use crate::version::PoolVersion;

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
    /// Version of the pool when it is opened or made (`SPA_VERSION_*`; 5000 with feature flags).
    pub spa_version: u64,
}

/// The datasets of one pool, over its MOS: what all parts share, and the state of each.
pub struct DslPool {
    env: DslEnvironment,
    version: Arc<PoolVersion>,
    pool_name: RwLock<String>,
    mos: Arc<ObjectSet>,
    pub(crate) directory: Zap,
    features: Arc<Features>,
    /// Lists of blocks.
    pub(crate) lists: Lists,
    /// The namespace: held shared to look, alone by sync tasks and while keys change.
    pub(crate) config: tokio::sync::RwLock<()>,
    pub(crate) registry: Registry,
    pub(crate) recent_deadlists: RecentDeadlists,
    pub(crate) sync_state: SyncState,
    pub(crate) tasks: TaskQueue,
    pub(crate) destroy_state: DestroyState,
    pub(crate) keys: KeyStore,
    /// Holds of sends that a crash or an export interrupted may still be there.
    pub(crate) has_interrupted_holds: AtomicBool,
    pub(crate) lists_in_use: ListsInUse,
}

impl DslPool {
    pub(crate) fn assemble(
        env: DslEnvironment,
        mos: Arc<ObjectSet>,
        directory: Zap,
        features: Arc<Features>,
    ) -> Self {
        let pipeline = env.pipeline.clone();
        let version = Arc::new(PoolVersion::new(env.spa_version));
        let pool = DslPool {
            lists: Lists::new(
                mos.clone(),
                directory.clone(),
                features.clone(),
                version.clone(),
                pipeline,
            ),
            version,
            pool_name: RwLock::new(env.pool_name.clone()),
            env,
            mos,
            directory,
            features,
            config: tokio::sync::RwLock::new(()),
            registry: Registry::default(),
            recent_deadlists: RecentDeadlists::default(),
            sync_state: SyncState::default(),
            tasks: TaskQueue::default(),
            destroy_state: DestroyState::default(),
            keys: KeyStore::default(),
            has_interrupted_holds: AtomicBool::new(false),
            lists_in_use: ListsInUse::default(),
        };
        pool.allow_logs();
        pool
    }

    /// Makes a list of blocks in the MOS, as pools of this version have them; `block_bytes` 0 for
    /// the default.
    ///
    /// # Errors
    /// Of writing.
    pub async fn create_list(&self, tx: &Tx, block_bytes: u32) -> Result<Bpobj, DatasetError> {
        let list = match self.version.has_deadlist_maps() {
            true => Bpobj::create(&self.mos, tx, block_bytes).await?,
            false => Bpobj::create_plain(&self.mos, tx, block_bytes).await?,
        };
        Ok(list)
    }

    /// Has intent logs written, or not, as the pool's version says.
    pub(crate) fn allow_logs(&self) {
        let logs = self.env.pipeline.log_blocks();
        logs.allow(self.version.has_logs());
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
    pub(crate) fn pool_version(&self) -> &PoolVersion {
        &self.version
    }
    /// Bytes that directories, datasets and snapshots take in memory, roughly, without objects.
    pub fn memory_bytes(&self) -> u64 {
        self.registry.memory_bytes()
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
