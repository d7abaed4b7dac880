//! Opening the object set of a dataset, its intent log and its settings.

use std::sync::{Arc, Weak};

use format::Txg;
use object::{ObjectSet, ObjsetOptions};
use tokio::sync::watch;
use zil::{LogOwner, LogSettings, Zil, ZilError};

use crate::DatasetError;
use crate::dsl::DslPool;
use crate::features::guid;
use crate::state::{DatasetSettings, Ds, OpenState};

/// Objects of a dataset kept in memory although nobody uses them.
const OBJECT_CACHE: usize = 64 << 10;
/// Objects kept of a dataset that is opened for a look only.
const PEEK_OBJECT_CACHE: usize = 64;

/// Datasets: opening their object sets, and making filesystems, volumes and clones:
/// [`DslPool::datasets`].
#[derive(Clone, Copy)]
pub struct Datasets<'a> {
    pub(crate) dsl: &'a Arc<DslPool>,
}

impl DslPool {
    /// Making filesystems, volumes and clones.
    pub fn datasets(self: &Arc<Self>) -> Datasets<'_> {
        Datasets { dsl: self }
    }
}

/// A dataset as its intent log knows it: the log does not keep it open.
struct Owner {
    dsl: Weak<DslPool>,
    dataset: Weak<Ds>,
    settings: watch::Receiver<DatasetSettings>,
}

impl LogOwner for Owner {
    fn name(&self) -> String {
        match (self.dsl.upgrade(), self.dataset.upgrade()) {
            (Some(dsl), Some(dataset)) => dataset.dir().full_name(&dsl.pool_name()),
            _ => "a closed dataset".to_owned(),
        }
    }

    fn has_room(&self, bytes: u64) -> bool {
        let dsl = self.dsl.upgrade();
        dsl.is_some_and(|dsl| dsl.space().has_log_room(bytes))
    }

    fn settings(&self) -> LogSettings {
        let settings = self.settings.borrow();
        LogSettings {
            sync: settings.sync,
            throughput: settings.log_throughput,
        }
    }

    fn not_replayed(&self, reason: &ZilError) {
        if let (Some(dsl), Some(dataset)) = (self.dsl.upgrade(), self.dataset.upgrade()) {
            let name = self.name();
            let hooks = &dsl.env().hooks;
            hooks.log_not_replayed(&name, dataset.object, &reason.to_string());
        }
    }
}

impl Datasets<'_> {
    /// How a dataset's object set is to be opened.
    pub(crate) async fn objset_options(
        &self,
        dataset: &Arc<Ds>,
    ) -> Result<ObjsetOptions, DatasetError> {
        Ok(ObjsetOptions {
            properties: self.dsl.properties().write_properties(dataset).await?,
            hole_birth: self.dsl.features().is_active(guid::HOLE_BIRTH),
            embedded_data: self.dsl.features().is_active(guid::EMBEDDED_DATA),
            lz4_metadata: self.dsl.features().is_active(guid::LZ4_COMPRESS),
            read_only: self.dsl.env().read_only || dataset.is_snapshot(),
            encrypted: dataset.is_encrypted(),
            without_key: false,
            raw: false,
            accounts: self.dsl.pool_version().has_accounts(),
            block_bytes_max: self.dsl.keys().block_bytes_max(dataset).await?,
            object_cache_limit: OBJECT_CACHE,
            dataset: dataset.object,
        })
    }

    /// A dataset's object set, opened if need be; not kept open by this.
    pub(crate) async fn open_objset(
        &self,
        dataset: &Arc<Ds>,
    ) -> Result<Arc<ObjectSet>, DatasetError> {
        if let Some(objset) = dataset.open_objset() {
            return Ok(objset);
        }
        self.dsl.keys().ensure(dataset).await?;
        let root = dataset.phys().block;
        if root.is_hole() {
            return Err(DatasetError::WrongKind {
                name: self.dsl.directories().full_name(dataset).await?,
                reason: "it has no content".into(),
            });
        }
        let options = self.objset_options(dataset).await?;
        let objset = ObjectSet::open(
            self.dsl.env().pipeline.clone(),
            self.dsl.env().world.clone(),
            root,
            options,
        )
        .await?;
        dataset.state().kind = Some(objset.kind());
        Ok(objset)
    }

    /// A dataset's object set for a look at its properties.
    pub(crate) async fn peek_objset(
        &self,
        dataset: &Arc<Ds>,
    ) -> Result<Arc<ObjectSet>, DatasetError> {
        if let Some(objset) = dataset.open_objset() {
            return Ok(objset);
        }
        let without_key = match self.dsl.keys().ensure(dataset).await {
            Ok(()) => false,
            // What properties need is in the clear.
            Err(DatasetError::KeyNotLoaded { .. }) => true,
            Err(error) => return Err(error),
        };
        let options = ObjsetOptions {
            read_only: true,
            without_key,
            object_cache_limit: PEEK_OBJECT_CACHE,
            ..self.objset_options(dataset).await?
        };
        let root = dataset.phys().block;
        let objset = ObjectSet::open(
            self.dsl.env().pipeline.clone(),
            self.dsl.env().world.clone(),
            root,
            options,
        )
        .await?;
        Ok(objset)
    }

    fn watch_dirt(&self, dataset: &Arc<Ds>, objset: &Arc<ObjectSet>) {
        let dirty = self.dsl.sync_state.datasets.clone();
        let weak = Arc::downgrade(dataset);
        objset.set_dirty_hook(Arc::new(move |txg: Txg| {
            if let Some(dataset) = weak.upgrade() {
                dirty.add(txg, dataset);
            }
        }));
    }

    /// Makes `objset` the dataset's open object set.
    pub(crate) async fn attach(
        &self,
        dataset: &Arc<Ds>,
        objset: Arc<ObjectSet>,
    ) -> Result<Arc<OpenState>, DatasetError> {
        self.attach_with(dataset, objset, true).await
    }

    /// The same for a moment of a sync task, without a log.
    pub(crate) async fn attach_without_log(
        &self,
        dataset: &Arc<Ds>,
        objset: Arc<ObjectSet>,
    ) -> Result<Arc<OpenState>, DatasetError> {
        self.attach_with(dataset, objset, false).await
    }

    async fn attach_with(
        &self,
        dataset: &Arc<Ds>,
        objset: Arc<ObjectSet>,
        with_log: bool,
    ) -> Result<Arc<OpenState>, DatasetError> {
        self.watch_dirt(dataset, &objset);
        let settings = watch::Sender::new(self.dsl.properties().dataset_settings(dataset).await?);
        let writable = !self.dsl.env().read_only && !dataset.is_snapshot();
        let log = (with_log && writable).then(|| {
            let owner = Owner {
                dsl: Arc::downgrade(self.dsl),
                dataset: Arc::downgrade(dataset),
                settings: settings.subscribe(),
            };
            let txgs = self.dsl.env().txgs.clone();
            Zil::open(Box::new(owner), objset.clone(), txgs)
        });
        let open = Arc::new(OpenState {
            objset,
            log,
            settings,
        });
        *dataset.open.lock() = Some(open.clone());
        self.dsl.registry.note_opened(dataset);
        Ok(open)
    }

    /// How the object set of a dataset is opened that is received raw.
    pub(crate) async fn raw_options(
        &self,
        dataset: &Arc<Ds>,
    ) -> Result<ObjsetOptions, DatasetError> {
        Ok(ObjsetOptions {
            encrypted: true,
            without_key: true,
            raw: true,
            // They come as they are to be stored.
            block_bytes_max: format::MAX_BLOCK_BYTES as u32,
            ..self.objset_options(dataset).await?
        })
    }

    /// The object set of a dataset that is received raw, or (a snapshot) sent so: without the key,
    /// whether it is loaded or not. It is nobody else's.
    pub(crate) async fn open_raw_objset(
        &self,
        dataset: &Arc<Ds>,
    ) -> Result<Arc<ObjectSet>, DatasetError> {
        let options = self.raw_options(dataset).await?;
        let env = self.dsl.env();
        let root = dataset.phys().block;
        Ok(ObjectSet::open(env.pipeline.clone(), env.world.clone(), root, options).await?)
    }
}
