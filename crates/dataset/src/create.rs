//! Creating directories and datasets: new ones, and clones of snapshots
//! (`dsl_dir_create_sync`, `dsl_dataset_create_sync_dd`, `dmu_objset_create_sync`).

use std::sync::Arc;

use device::BoxFuture;
use format::{
    DslDatasetPhys, DslDirPhys, NvList, NvValue, ObjectId, ObjectType, ObjsetKind, Txg,
    ZPL_VERSION, ZilHeader, names,
};
use object::{NewObject, ObjectSet, SyncContext, Zap, ZapOptions};
use zio::Tx;

use crate::check::{check_settable, check_together, parse_setting};
use crate::dsl::DslPool;
use crate::features::guid;
use crate::info::kind_of;
use crate::new_key::{NewKey, check_clone_properties, complete, is_in_key_object};
use crate::opening::Datasets;
use crate::state::{Deadlist, Dir, DirState, Ds};
use crate::task::{BLOCKS_MIN, SpaceCheck, SyncTask};
use crate::{DatasetError, PropertyValue};

/// Names of snapshots are upper-cased for comparison where asked (`U8_TEXTPREP_TOUPPER`).
pub(crate) const SNAPSHOT_NAME_NORMALIZATION: u64 = 2;

/// What a new filesystem has as its parent has it, and keeps in itself from then on
/// (`zfs_fill_zplprops_impl`, module/zfs/zfs_ioctl.c).
const FROM_PARENT: [&str; 3] = ["normalization", "utf8only", "casesensitivity"];

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

impl Datasets<'_> {
    /// Makes a directory below `parent` (`dsl_dir_create_sync`); the root directory is entered
    /// into the object directory by the caller.
    pub(crate) async fn create_dir(
        &self,
        ctx: &SyncContext,
        parent: Option<&Arc<Dir>>,
        name: &str,
    ) -> Result<Arc<Dir>, DatasetError> {
        let tx = Tx::syncing(ctx.txg);
        let mut phys = DslDirPhys {
            creation_time_seconds: self.dsl.now_seconds(),
            flags: match self.dsl.pool_version().has_used_breakdown() {
                true => DslDirPhys::FLAG_USED_BREAKDOWN,
                false => 0,
            },
            ..DslDirPhys::default()
        };
        let new = NewObject::new(ObjectType::DSL_DIR)
            .with_bonus(ObjectType::DSL_DIR, phys.encode().to_vec());
        let object = self.dsl.mos().allocate(&tx, new).await?.id();
        if let Some(parent) = parent {
            let children = parent.state().phys.child_directories;
            Zap::hold(self.dsl.mos(), children)
                .await?
                .add_u64(&tx, name, object.get())
                .await?;
            phys.parent = parent.object;
            self.dsl
                .limits()
                .adjust(ctx, parent, 1, names::directory::FILESYSTEM_COUNT)
                .await?;
        }
        let zap = Zap::create(self.dsl.mos(), &tx, ZapOptions::new(ObjectType::DSL_PROPS)).await?;
        phys.properties = zap.id();
        let options = ZapOptions::new(ObjectType::DSL_DIR_CHILD_MAP);
        phys.child_directories = Zap::create(self.dsl.mos(), &tx, options).await?.id();
        let dir = self.dsl.directories().register_dir(
            object,
            DirState {
                phys,
                name: name.to_owned(),
                parent: parent.cloned(),
                origin_txg: Txg::ZERO,
                livelist: ObjectId::ZERO,
                is_zapified: false,
                to_write: [0; 2],
                is_granted: [false; 2],
                is_dirty: false,
                is_gone: false,
            },
        );
        dir.change(|_| ());
        Ok(dir)
    }

    /// Makes the head dataset of a directory, empty or with what `origin` has
    /// (`dsl_dataset_create_sync_dd`). Without an origin it is the pool's empty one.
    pub(crate) fn create_head<'a>(
        &'a self,
        ctx: &'a SyncContext,
        dir: &'a Arc<Dir>,
        origin: Option<&'a Arc<Ds>>,
    ) -> BoxFuture<'a, Result<Arc<Ds>, DatasetError>> {
        Box::pin(self.create_head_of(ctx, dir, origin.or(self.dsl.directories().origin())))
    }

    async fn create_head_of(
        &self,
        ctx: &SyncContext,
        dir: &Arc<Dir>,
        origin: Option<&Arc<Ds>>,
    ) -> Result<Arc<Ds>, DatasetError> {
        let tx = Tx::syncing(ctx.txg);
        let mut names = ZapOptions::new(ObjectType::DSL_DS_SNAP_MAP);
        names.normalization = SNAPSHOT_NAME_NORMALIZATION;
        let mut phys = DslDatasetPhys {
            directory: dir.object,
            fsid_guid: self.dsl.directories().random_fsid(),
            guid: self.dsl.random_guid(),
            creation_time_seconds: self.dsl.now_seconds(),
            creation_txg: if ctx.txg == Txg::INITIAL {
                Txg::new(1)
            } else {
                ctx.txg
            },
            flags: DslDatasetPhys::FLAG_UNIQUE_ACCURATE,
            ..DslDatasetPhys::default()
        };
        // The object first, so that its number is below those of what hangs off it, as OpenZFS's.
        let new = NewObject::new(ObjectType::DSL_DATASET)
            .with_bonus(ObjectType::DSL_DATASET, phys.encode().to_vec());
        let object = self.dsl.mos().allocate(&tx, new).await?.id();
        phys.snapshot_names = Zap::create(self.dsl.mos(), &tx, names).await?.id();
        if let Some(origin) = origin {
            let from = origin.phys();
            phys.previous_snapshot = origin.object;
            phys.previous_snapshot_txg = from.creation_txg;
            phys.referenced_bytes = from.referenced_bytes;
            phys.compressed_bytes = from.compressed_bytes;
            phys.uncompressed_bytes = from.uncompressed_bytes;
            phys.block = from.block;
            phys.flags |= from.flags
                & (DslDatasetPhys::FLAG_INCONSISTENT | DslDatasetPhys::FLAG_CASE_INSENSITIVE);
            let origin_dir = origin.dir();
            let origin_head = self.dsl.directories().head(&origin_dir).await?;
            let chain = self
                .dsl
                .deadlists()
                .snapshot_chain_keys(&origin_head, origin.object)
                .await?;
            phys.deadlist = self
                .dsl
                .deadlists()
                .of(&origin_head)
                .await?
                .clone_keys(&self.dsl.lists, ctx, from.creation_txg, &chain)
                .await?
                .object();
            if from.next_clones.is_zero() {
                let zap = Zap::create(
                    self.dsl.mos(),
                    &tx,
                    ZapOptions::new(ObjectType::NEXT_CLONES),
                )
                .await?
                .id();
                origin.change(|state| state.phys.next_clones = zap);
            }
            origin.change(|state| state.phys.children += 1);
            let next_clones = origin.phys().next_clones;
            Zap::hold(self.dsl.mos(), next_clones)
                .await?
                .add_int(&tx, object.get(), object.get())
                .await?;
            // Before version 26 directories do not know their clones; an upgrade enters all.
            if self.dsl.pool_version().has_deadlist_maps() {
                self.note_clone(&tx, &origin_dir, object).await?;
            }
            let is_clone = self
                .dsl
                .directories()
                .origin()
                .is_some_and(|empty| !Arc::ptr_eq(empty, origin));
            dir.change(|state| {
                state.phys.origin = origin.object;
                state.origin_txg = if is_clone {
                    from.creation_txg
                } else {
                    Txg::ZERO
                };
            });
        } else {
            phys.deadlist = Deadlist::create(&self.dsl.lists, ctx).await?;
        }
        self.dsl
            .mos()
            .hold(object)
            .await?
            .set_bonus(&tx, phys.encode().to_vec())?;
        dir.change(|state| state.phys.head_dataset = object);
        let dataset = self.dsl.directories().dataset(object).await?;
        if let Some(origin) = origin {
            let features = origin.state().features.clone();
            for (feature, value) in features {
                self.dsl
                    .activate_feature(ctx, &dataset, &feature, value)
                    .await?;
            }
        }
        Ok(dataset)
    }

    /// Enters a head into the list of clones of its origin's directory.
    pub(crate) async fn note_clone(
        &self,
        tx: &Tx,
        origin_dir: &Arc<Dir>,
        head: ObjectId,
    ) -> Result<(), DatasetError> {
        if origin_dir.state().phys.clones.is_zero() {
            let zap = Zap::create(self.dsl.mos(), tx, ZapOptions::new(ObjectType::DSL_CLONES))
                .await?
                .id();
            origin_dir.change(|state| state.phys.clones = zap);
        }
        let clones = origin_dir.state().phys.clones;
        Zap::hold(self.dsl.mos(), clones)
            .await?
            .add_int(tx, head.get(), head.get())
            .await?;
        Ok(())
    }

    /// Makes `$ORIGIN` and its empty snapshot, which every dataset is a clone of
    /// (`dsl_pool_create_origin`).
    pub(crate) async fn create_origin(&self, ctx: &SyncContext) -> Result<(), DatasetError> {
        let root_dir = self.dsl.directories().root_dir().clone();
        let dir = self
            .dsl
            .datasets()
            .create_dir(ctx, Some(&root_dir), names::hidden_directory::ORIGIN)
            .await?;
        let head = self.create_head(ctx, &dir, None).await?;
        let origin = self
            .dsl
            .snapshots()
            .take_now(
                ctx,
                &head,
                names::hidden_directory::ORIGIN,
                self.dsl.now_seconds(),
            )
            .await?;
        self.dsl.directories().set_origin(origin);
        Ok(())
    }

    pub(crate) async fn create_root_dataset(
        &self,
        ctx: &SyncContext,
        params: &CreateParams,
    ) -> Result<(), DatasetError> {
        let kind = kind_of(params.root_init.kind()).kinds();
        let mut properties = Vec::new();
        for (name, typed) in &params.root_properties {
            properties.push((name.clone(), parse_setting(name, typed, kind, true)?));
        }
        if params.root_init.kind() == ObjsetKind::Filesystem {
            self.add_version(&mut properties);
        }
        let root_dir = self.dsl.directories().root_dir().clone();
        complete(&mut properties, params.root_key.as_ref());
        let head = self.create_head(ctx, &root_dir, None).await?;
        self.dsl
            .keys()
            .encrypt(ctx, None, &head, &properties, params.root_key.as_ref())
            .await?;
        self.fill_new(ctx, &head, &properties, params.root_init.as_ref())
            .await
    }

    /// The properties of a new dataset, with those that come from its parent where they are not
    /// given.
    async fn with_those_of_parent(
        &self,
        parent: &Arc<Dir>,
        kind: ObjsetKind,
        properties: &[(String, PropertyValue)],
    ) -> Result<Vec<(String, PropertyValue)>, DatasetError> {
        let mut all = properties.to_vec();
        if kind != ObjsetKind::Filesystem {
            return Ok(all);
        }
        self.add_version(&mut all);
        let parent_head = self.dsl.directories().head(parent).await?;
        let given = |name: &str| properties.iter().rev().find(|(given, _)| given == name);
        let any_bytes = given("utf8only").is_some_and(|(_, value)| value.number() == Some(0));
        for name in FROM_PARENT {
            // Names that need not be UTF-8 are not normalized (`zfs_valid_proplist`, lib/libzfs).
            if given(name).is_some() || any_bytes && name == "normalization" {
                continue;
            }
            if let Some(value) = self
                .dsl
                .properties()
                .filesystem_property(&parent_head, name)
                .await?
            {
                all.push((name.to_owned(), value));
            }
        }
        Ok(all)
    }

    /// A new filesystem has the newest version that the pool can have, if not said otherwise
    /// (`zfs_fill_zplprops`, module/zfs/zfs_ioctl.c).
    fn add_version(&self, properties: &mut Vec<(String, PropertyValue)>) {
        let newest = self.dsl.pool_version().newest_filesystem();
        let is_given = properties.iter().any(|(name, _)| name == "version");
        if newest < ZPL_VERSION && !is_given {
            properties.push(("version".to_owned(), PropertyValue::Number(newest)));
        }
    }

    /// Sets the properties of a new dataset and fills its object set.
    async fn fill_new(
        &self,
        ctx: &SyncContext,
        head: &Arc<Ds>,
        properties: &[(String, PropertyValue)],
        init: &dyn ObjsetInit,
    ) -> Result<(), DatasetError> {
        let tx = Tx::syncing(ctx.txg);
        for (name, value) in properties {
            // Some of encryption are in the crypto key object.
            if !is_in_key_object(name) && !init.own_properties().contains(&name.as_str()) {
                self.dsl
                    .properties()
                    .change_property(ctx, head, name, Some(value))
                    .await?;
            }
        }
        self.dsl.keys().ensure(head).await?;
        let options = self.objset_options(head).await?;
        let objset = ObjectSet::create(
            self.dsl.env().pipeline.clone(),
            self.dsl.env().world.clone(),
            init.kind(),
            options,
            &tx,
        );
        head.state().kind = Some(init.kind());
        self.new_objset_flags(head, &objset, &tx);
        init.init(&objset, properties, &tx)
            .await
            .map_err(|source| DatasetError::Hook {
                what: "filling a new dataset".into(),
                source,
            })?;
        self.attach(head, objset).await?;
        self.dsl.syncer().sync_dataset_now(ctx, head).await?;
        *head.open.lock() = None;
        if properties
            .iter()
            .any(|(name, value)| name == "casesensitivity" && *value != PropertyValue::Number(0))
        {
            head.change(|state| state.phys.flags |= DslDatasetPhys::FLAG_CASE_INSENSITIVE);
        }
        let name = self.dsl.directories().full_name(head).await?;
        self.dsl
            .history(ctx, "create", name, head.object, " ")
            .await
    }

    /// A new filesystem counts space by user, group and project from the start, so it need not be
    /// counted anew (`dmu_objset_create_impl_dnstats`).
    pub(crate) fn new_objset_flags(&self, head: &Arc<Ds>, objset: &Arc<ObjectSet>, tx: &Tx) {
        let has_accounts = self.dsl.pool_version().has_accounts();
        if objset.kind() != ObjsetKind::Filesystem || !has_accounts {
            return;
        }
        let mut flags = format::OBJSET_FLAG_USER_ACCOUNTING;
        let mut state = head.state();
        if self.dsl.features().is_enabled(guid::USEROBJ_ACCOUNTING) {
            flags |= format::OBJSET_FLAG_USER_OBJECT_ACCOUNTING;
            state.activating.insert(guid::USEROBJ_ACCOUNTING);
        }
        if self.dsl.features().is_enabled(guid::PROJECT_QUOTA) {
            flags |= format::OBJSET_FLAG_PROJECT_QUOTA;
            state.activating.insert(guid::PROJECT_QUOTA);
        }
        drop(state);
        objset.set_flags(tx, flags);
    }

    /// Makes a clone's object set forget the log that was in the origin's
    /// (`dsl_dataset_zero_zil`).
    pub(crate) async fn forget_log(
        &self,
        ctx: &SyncContext,
        head: &Arc<Ds>,
    ) -> Result<(), DatasetError> {
        if head.phys().block.is_hole() {
            return Ok(());
        }
        if head.is_encrypted() {
            return self
                .dsl
                .logs()
                .set_locked_head(ctx, head, &ZilHeader::default())
                .await;
        }
        let objset = self.open_objset(head).await?;
        if objset.zil_header() != ZilHeader::default() {
            objset.set_zil_header(&Tx::syncing(ctx.txg), ZilHeader::default());
            self.attach_without_log(head, objset).await?;
            self.dsl.syncer().sync_dataset_now(ctx, head).await?;
            *head.open.lock() = None;
        }
        Ok(())
    }

    /// Creates a filesystem or volume. Its parent must exist.
    ///
    /// # Errors
    /// [`DatasetError::Exists`], [`DatasetError::NotFound`] (parent),
    /// [`DatasetError::InvalidProperty`], [`DatasetError::NoSpace`], ...
    pub async fn create(
        &self,
        name: &str,
        properties: &[(String, String)],
        init: Arc<dyn ObjsetInit>,
    ) -> Result<(), DatasetError> {
        self.create_with_key(name, properties, init, None).await
    }

    /// The same; with a key, it is an encryption root, whose key that is. The key is loaded then.
    ///
    /// # Errors
    /// As [`Self::create`]; [`DatasetError::KeyNotLoaded`] where the parent's key is needed and not
    /// there.
    pub async fn create_with_key(
        &self,
        name: &str,
        properties: &[(String, String)],
        init: Arc<dyn ObjsetInit>,
        key: Option<NewKey>,
    ) -> Result<(), DatasetError> {
        let kind = init.kind();
        let kinds = kind_of(kind).kinds();
        let mut parsed = Vec::new();
        for (property, typed) in properties {
            parsed.push((
                property.clone(),
                parse_setting(property, typed, kinds, true)?,
            ));
        }
        complete(&mut parsed, key.as_ref());
        {
            let _config = self.dsl.config.read().await;
            self.dsl.directories().check_new_name(name).await?;
        }
        self.dsl
            .tasks()
            .run(Arc::new(CreateTask {
                dsl: self.dsl.clone(),
                name: name.to_owned(),
                properties: parsed.clone(),
                source: Source::New(init, key),
            }))
            .await?;
        let mut input = NvList::new();
        let code = if kind == ObjsetKind::Volume { 3 } else { 2 };
        input.set("type", NvValue::Int32(code));
        parsed.retain(|(name, _)| !is_in_key_object(name));
        if !parsed.is_empty() {
            input.set("props", as_nvlist(&parsed));
        }
        self.dsl.env().hooks.fulfilled("create", input);
        Ok(())
    }

    /// Creates a filesystem or volume from a snapshot.
    ///
    /// # Errors
    /// As [`Self::create_dataset`]; [`DatasetError::WrongKind`] when `origin` is no snapshot.
    pub async fn clone_snapshot(
        &self,
        origin: &str,
        name: &str,
        properties: &[(String, String)],
    ) -> Result<(), DatasetError> {
        check_clone_properties(properties)?;
        let parsed = {
            let _config = self.dsl.config.read().await;
            self.dsl.directories().check_new_name(name).await?;
            let snapshot = self.dsl.directories().resolve(origin).await?;
            if !snapshot.is_snapshot() {
                return Err(DatasetError::WrongKind {
                    name: origin.to_owned(),
                    reason: "only snapshots can be cloned".into(),
                });
            }
            let kinds = kind_of(self.dsl.directories().objset_kind(&snapshot).await?).kinds();
            let mut parsed = Vec::new();
            for (property, typed) in properties {
                check_settable(property, kinds, false)?;
                parsed.push((
                    property.clone(),
                    parse_setting(property, typed, kinds, false)?,
                ));
            }
            parsed
        };
        self.dsl
            .tasks()
            .run(Arc::new(CreateTask {
                dsl: self.dsl.clone(),
                name: name.to_owned(),
                properties: parsed.clone(),
                source: Source::Snapshot(origin.to_owned()),
            }))
            .await?;
        let mut input = NvList::new();
        input.set("origin", origin);
        if !parsed.is_empty() {
            input.set("props", as_nvlist(&parsed));
        }
        self.dsl.env().hooks.fulfilled("clone", input);
        Ok(())
    }
}

/// Properties as requests of OpenZFS have them.
fn as_nvlist(properties: &[(String, PropertyValue)]) -> NvList {
    let mut list = NvList::new();
    for (name, value) in properties {
        match value {
            PropertyValue::Number(number) => list.set(name, *number),
            PropertyValue::Text(text) => list.set(name, text.as_str()),
        };
    }
    list
}

/// The number that a property is set to; the last word counts.
fn last_number(properties: &[(String, PropertyValue)], wanted: &str) -> Option<u64> {
    let mut given = properties.iter().rev();
    given.find(|(name, _)| name == wanted)?.1.number()
}

enum Source {
    /// With what an encryption root gets for a key.
    New(Arc<dyn ObjsetInit>, Option<NewKey>),
    Snapshot(String),
}

struct CreateTask {
    dsl: Arc<DslPool>,
    name: String,
    properties: Vec<(String, PropertyValue)>,
    source: Source,
}

impl CreateTask {
    async fn do_check(&self) -> Result<(), DatasetError> {
        let (parent, last) = self.dsl.directories().check_new_name(&self.name).await?;
        self.dsl
            .limits()
            .check(&parent, 1, names::directory::FILESYSTEM_COUNT, None)
            .await?;
        if let Source::Snapshot(origin) = &self.source {
            let origin = self.dsl.directories().resolve(origin).await?;
            if !origin.is_snapshot() {
                return Err(DatasetError::WrongKind {
                    name: self.name.clone(),
                    reason: "only snapshots can be cloned".into(),
                });
            }
        }
        if let Source::New(_, key) = &self.source {
            self.dsl
                .keys()
                .check_new(&parent, &self.name, &self.properties, key.as_ref())
                .await?;
        }
        check_together(|wanted| last_number(&self.properties, wanted))?;
        let limit = self.dsl.space().available(&parent, None, false);
        for (name, value) in &self.properties {
            if matches!(name.as_str(), "reservation" | "refreservation")
                && value.number().unwrap_or(0) > limit
            {
                return Err(DatasetError::NoSpace {
                    name: self.name.clone(),
                });
            }
            if let Some(number) = value.number() {
                self.dsl
                    .properties()
                    .check_feature_of(&self.name, name, number)?;
            }
        }
        self.check_readable(&parent, &last).await
    }

    /// What applying it will read.
    async fn check_readable(&self, parent: &Arc<Dir>, last: &str) -> Result<(), DatasetError> {
        let (dsl, readable) = (&self.dsl, self.dsl.readable());
        readable.new_dir(parent, last).await?;
        let parent_head = dsl.directories().head(parent).await?;
        // What is set is told with what it inherits.
        readable.properties(&parent_head).await?;
        match &self.source {
            Source::New(init, _) => {
                readable.new_head(None).await?;
                readable.settings(&parent_head).await?;
                dsl.datasets()
                    .with_those_of_parent(parent, init.kind(), &self.properties)
                    .await
                    .map(drop)
            }
            Source::Snapshot(origin) => {
                let origin = dsl.directories().resolve(origin).await?;
                readable.clone_of(&origin, &parent_head).await
            }
        }
    }

    async fn do_apply(&self, ctx: &SyncContext) -> Result<(), DatasetError> {
        let dsl = &self.dsl;
        let (parent, last) = dsl.directories().check_new_name(&self.name).await?;
        let dir = dsl.datasets().create_dir(ctx, Some(&parent), &last).await?;
        if dsl.features().is_active(guid::FILESYSTEM_LIMITS) {
            let tx = Tx::syncing(ctx.txg);
            let zap = dsl.zapify_dir(ctx, &dir).await?;
            zap.update_u64(&tx, names::directory::FILESYSTEM_COUNT, 0)
                .await?;
            zap.update_u64(&tx, names::directory::SNAPSHOT_COUNT, 0)
                .await?;
        }
        match &self.source {
            Source::New(init, key) => {
                let head = dsl.datasets().create_head(ctx, &dir, None).await?;
                dsl.keys()
                    .encrypt(ctx, Some(&parent), &head, &self.properties, key.as_ref())
                    .await?;
                let properties = dsl
                    .datasets()
                    .with_those_of_parent(&parent, init.kind(), &self.properties)
                    .await?;
                dsl.datasets()
                    .fill_new(ctx, &head, &properties, init.as_ref())
                    .await
            }
            Source::Snapshot(origin_name) => {
                let origin = dsl.directories().resolve(origin_name).await?;
                let head = dsl.datasets().create_head(ctx, &dir, Some(&origin)).await?;
                dsl.deadlists().add_livelist(ctx, &dir).await?;
                dsl.keys().share(ctx, &origin.dir(), &dir).await?;
                dsl.datasets().forget_log(ctx, &head).await?;
                for (name, value) in &self.properties {
                    dsl.properties()
                        .change_property(ctx, &head, name, Some(value))
                        .await?;
                }
                let text = format!("origin={origin_name} ({})", origin.object);
                dsl.history(ctx, "clone", self.name.clone(), head.object, text)
                    .await
            }
        }
    }
}

impl SyncTask for CreateTask {
    fn name(&self) -> &'static str {
        "create"
    }
    fn space_check(&self) -> SpaceCheck {
        SpaceCheck::Normal
    }
    fn blocks(&self) -> u64 {
        2 + BLOCKS_MIN + self.properties.len() as u64
    }
    fn check<'a>(&'a self, _ctx: &'a SyncContext) -> BoxFuture<'a, Result<(), DatasetError>> {
        Box::pin(self.do_check())
    }
    fn apply<'a>(&'a self, ctx: &'a SyncContext) -> BoxFuture<'a, Result<(), DatasetError>> {
        Box::pin(self.do_apply(ctx))
    }
}
