//! Creating directories and datasets: new ones, and clones of snapshots
//! (`dsl_dir_create_sync`, `dsl_dataset_create_sync_dd`, `dmu_objset_create_sync`).

use std::sync::Arc;

use device::BoxFuture;
use format::{DslDatasetPhys, DslDirPhys, ObjectId, ObjectType, ObjsetKind, Txg, ZilHeader};
use object::{NewObject, ObjectSet, SyncContext, Zap, ZapOptions};
use zio::Tx;

use crate::deadlist::Deadlist;
use crate::dsl::{CreateParams, DslPool, ORIGIN_DIR, ObjsetInit};
use crate::features::guid;
use crate::info::DatasetKind;
use crate::name::{check_name, split_parent};
use crate::state::{Dir, DirState, Ds};
use crate::stored::{check_settable, check_together, parse_setting};
use crate::task::{SpaceCheck, SyncTask};
use crate::{DatasetError, PropertyValue};

/// Names of snapshots are upper-cased for comparison where asked (`U8_TEXTPREP_TOUPPER`).
const SNAPSHOT_NAME_NORMALIZATION: u64 = 2;

/// Counts kept in a directory's own ZAP (feature `filesystem_limits`).
pub(crate) const FILESYSTEM_COUNT: &str = "com.joyent:filesystem_count";
pub(crate) const SNAPSHOT_COUNT: &str = "com.joyent:snapshot_count";

/// What a new filesystem has as its parent has it, and keeps in itself from then on
/// (`zfs_fill_zplprops_impl`, module/zfs/zfs_ioctl.c).
const FROM_PARENT: [&str; 3] = ["normalization", "utf8only", "casesensitivity"];

/// Kind of a dataset whose object set is of this kind.
pub(crate) fn kind_of(kind: ObjsetKind) -> DatasetKind {
    match kind {
        ObjsetKind::Volume => DatasetKind::Volume,
        _ => DatasetKind::Filesystem,
    }
}

impl DslPool {
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
            creation_time_seconds: self.now_seconds(),
            flags: DslDirPhys::FLAG_USED_BREAKDOWN,
            ..DslDirPhys::default()
        };
        let new = NewObject::new(ObjectType::DSL_DIR)
            .with_bonus(ObjectType::DSL_DIR, phys.encode().to_vec());
        let object = self.mos().allocate(&tx, new).await?.id();
        if let Some(parent) = parent {
            let children = parent.state().phys.child_directories;
            Zap::hold(self.mos(), children)
                .await?
                .add_u64(&tx, name, object.get())
                .await?;
            phys.parent = parent.object;
            self.adjust_count(ctx, parent, 1, FILESYSTEM_COUNT).await?;
        }
        let zap = Zap::create(self.mos(), &tx, ZapOptions::new(ObjectType::DSL_PROPS)).await?;
        phys.properties = zap.id();
        let options = ZapOptions::new(ObjectType::DSL_DIR_CHILD_MAP);
        phys.child_directories = Zap::create(self.mos(), &tx, options).await?.id();
        let dir = self.register_dir(
            object,
            DirState {
                phys,
                name: name.to_owned(),
                parent: parent.cloned(),
                origin_txg: Txg::ZERO,
                is_zapified: false,
                to_write: [0; 2],
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
        Box::pin(self.create_head_of(ctx, dir, origin.or(self.origin())))
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
            fsid_guid: self.random_fsid(),
            guid: self.random_guid(),
            creation_time_seconds: self.now_seconds(),
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
        let object = self.mos().allocate(&tx, new).await?.id();
        phys.snapshot_names = Zap::create(self.mos(), &tx, names).await?.id();
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
            let origin_head = self.head(&origin_dir).await?;
            let chain = self.snapshot_chain_keys(origin.object).await?;
            phys.deadlist = self
                .deadlist(&origin_head)
                .await?
                .clone_keys(self, ctx, from.creation_txg, &chain)
                .await?;
            if from.next_clones.is_zero() {
                let zap = Zap::create(self.mos(), &tx, ZapOptions::new(ObjectType::NEXT_CLONES))
                    .await?
                    .id();
                origin.change(|state| state.phys.next_clones = zap);
            }
            origin.change(|state| state.phys.children += 1);
            let next_clones = origin.phys().next_clones;
            Zap::hold(self.mos(), next_clones)
                .await?
                .add_int(&tx, object.get(), object.get())
                .await?;
            if origin_dir.state().phys.clones.is_zero() {
                let zap = Zap::create(self.mos(), &tx, ZapOptions::new(ObjectType::DSL_CLONES))
                    .await?
                    .id();
                origin_dir.change(|state| state.phys.clones = zap);
            }
            let clones = origin_dir.state().phys.clones;
            Zap::hold(self.mos(), clones)
                .await?
                .add_int(&tx, object.get(), object.get())
                .await?;
            let is_clone = self
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
            phys.deadlist = Deadlist::create(self, ctx).await?;
        }
        self.mos()
            .hold(object)
            .await?
            .set_bonus(&tx, phys.encode().to_vec())?;
        dir.change(|state| state.phys.head_dataset = object);
        let dataset = self.dataset(object).await?;
        if let Some(origin) = origin {
            let features = origin.state().features.clone();
            for (feature, value) in features {
                self.activate_feature(ctx, &dataset, &feature, value)
                    .await?;
            }
        }
        Ok(dataset)
    }

    /// Txgs before each snapshot of the chain that ends in `snapshot`: keys for deadlists.
    pub(crate) async fn snapshot_chain_keys(
        &self,
        snapshot: ObjectId,
    ) -> Result<Vec<Txg>, DatasetError> {
        let head_dir = self.dataset(snapshot).await?.dir();
        let head = self.head(&head_dir).await?;
        let is_old = self.deadlist(&head).await?.is_old();
        let mut keys = Vec::new();
        let mut at = snapshot;
        while is_old && !at.is_zero() {
            let phys = self.dataset(at).await?.phys();
            keys.push(phys.previous_snapshot_txg);
            at = phys.previous_snapshot;
        }
        Ok(keys)
    }

    /// Makes `$ORIGIN` and its empty snapshot, which every dataset is a clone of
    /// (`dsl_pool_create_origin`).
    pub(crate) async fn create_origin(
        self: &Arc<Self>,
        ctx: &SyncContext,
    ) -> Result<(), DatasetError> {
        let root_dir = self.root_dir().clone();
        let dir = self.create_dir(ctx, Some(&root_dir), ORIGIN_DIR).await?;
        let head = self.create_head(ctx, &dir, None).await?;
        let origin = self
            .take_snapshot(ctx, &head, ORIGIN_DIR, self.now_seconds())
            .await?;
        self.set_origin(origin);
        Ok(())
    }

    pub(crate) async fn create_root_dataset(
        self: &Arc<Self>,
        ctx: &SyncContext,
        params: &CreateParams,
    ) -> Result<(), DatasetError> {
        let kind = kind_of(params.root_init.kind()).kinds();
        let mut properties = Vec::new();
        for (name, typed) in &params.root_properties {
            properties.push((name.clone(), parse_setting(name, typed, kind, true)?));
        }
        let root_dir = self.root_dir().clone();
        let head = self.create_head(ctx, &root_dir, None).await?;
        self.fill_new(ctx, &head, &properties, params.root_init.as_ref())
            .await
    }

    /// The properties of a new dataset, with those that come from its parent where they are not given.
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
        let parent_head = self.head(parent).await?;
        let given = |name: &str| properties.iter().rev().find(|(given, _)| given == name);
        let any_bytes = given("utf8only").is_some_and(|(_, value)| value.number() == Some(0));
        for name in FROM_PARENT {
            // Names that need not be UTF-8 are not normalized (`zfs_valid_proplist`, lib/libzfs).
            if given(name).is_some() || any_bytes && name == "normalization" {
                continue;
            }
            if let Some(value) = self.filesystem_property(&parent_head, name).await? {
                all.push((name.to_owned(), value));
            }
        }
        Ok(all)
    }

    /// Sets the properties of a new dataset and fills its object set.
    async fn fill_new(
        self: &Arc<Self>,
        ctx: &SyncContext,
        head: &Arc<Ds>,
        properties: &[(String, PropertyValue)],
        init: &dyn ObjsetInit,
    ) -> Result<(), DatasetError> {
        let tx = Tx::syncing(ctx.txg);
        for (name, value) in properties {
            // Those of encryption are in the crypto key object.
            let is_encryption = matches!(name.as_str(), "encryption" | "keyformat");
            if !is_encryption && !init.own_properties().contains(&name.as_str()) {
                self.change_property(ctx, head, name, Some(value)).await?;
            }
        }
        self.ensure_key(head).await?;
        let options = self.objset_options(head).await?;
        let objset = ObjectSet::create(
            self.env().pipeline.clone(),
            self.env().world.clone(),
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
        self.sync_dataset_now(ctx, head).await?;
        *head.open.lock() = None;
        if properties
            .iter()
            .any(|(name, value)| name == "casesensitivity" && *value != PropertyValue::Number(0))
        {
            head.change(|state| state.phys.flags |= DslDatasetPhys::FLAG_CASE_INSENSITIVE);
        }
        let name = self.full_name(head).await?;
        self.history(ctx, "create", name, head.object, " ").await
    }

    /// A new filesystem counts space by user, group and project from the start, so it need not be
    /// counted anew (`dmu_objset_create_impl_dnstats`).
    fn new_objset_flags(&self, head: &Arc<Ds>, objset: &Arc<ObjectSet>, tx: &Tx) {
        if objset.kind() != ObjsetKind::Filesystem {
            return;
        }
        let mut flags = format::OBJSET_FLAG_USER_ACCOUNTING;
        let mut state = head.state();
        if self.features().is_enabled(guid::USEROBJ_ACCOUNTING) {
            flags |= format::OBJSET_FLAG_USER_OBJECT_ACCOUNTING;
            state.activating.insert(guid::USEROBJ_ACCOUNTING);
        }
        if self.features().is_enabled(guid::PROJECT_QUOTA) {
            flags |= format::OBJSET_FLAG_PROJECT_QUOTA;
            state.activating.insert(guid::PROJECT_QUOTA);
        }
        drop(state);
        objset.set_flags(tx, flags);
    }

    /// Makes a clone's object set forget the log that was in the origin's
    /// (`dsl_dataset_zero_zil`).
    pub(crate) async fn forget_log(
        self: &Arc<Self>,
        ctx: &SyncContext,
        head: &Arc<Ds>,
    ) -> Result<(), DatasetError> {
        if head.phys().block.is_hole() {
            return Ok(());
        }
        if Self::is_encrypted(head) {
            return self
                .set_locked_log_head(ctx, head, &ZilHeader::default())
                .await;
        }
        let objset = self.open_objset(head).await?;
        if objset.zil_header() != ZilHeader::default() {
            objset.set_zil_header(&Tx::syncing(ctx.txg), ZilHeader::default());
            self.attach_without_log(head, objset).await?;
            self.sync_dataset_now(ctx, head).await?;
            *head.open.lock() = None;
        }
        Ok(())
    }

    /// Changes a count of filesystems or snapshots, here and above, as far as it is kept
    /// (`dsl_fs_ss_count_adjust`).
    pub(crate) async fn adjust_count(
        &self,
        ctx: &SyncContext,
        dir: &Arc<Dir>,
        delta: i64,
        which: &str,
    ) -> Result<(), DatasetError> {
        let tx = Tx::syncing(ctx.txg);
        let mut at = Some(dir.clone());
        while let Some(dir) = at {
            let (is_hidden, is_zapified, parent) = {
                let state = dir.state();
                (
                    state.name.starts_with('$') && which == FILESYSTEM_COUNT,
                    state.is_zapified,
                    state.parent.clone(),
                )
            };
            if is_hidden || delta == 0 || !is_zapified {
                return Ok(());
            }
            let zap = Zap::hold(self.mos(), dir.object).await?;
            let Some(count) = zap.lookup_u64(which).await? else {
                return Ok(());
            };
            zap.update_u64(&tx, which, count.saturating_add_signed(delta))
                .await?;
            at = parent;
        }
        Ok(())
    }

    /// Counts what is below a directory on which a limit was set, so that it can be enforced
    /// (`dsl_dir_init_fs_ss_count`); from then on the counts are kept up.
    pub(crate) async fn count_below(
        &self,
        ctx: &SyncContext,
        dir: &Arc<Dir>,
    ) -> Result<(), DatasetError> {
        if !self.features().is_enabled(guid::FILESYSTEM_LIMITS) {
            return Err(DatasetError::Unsupported {
                name: self.pool_name(),
                what: "a limit on filesystems or snapshots".into(),
            });
        }
        if !self.features().is_active(guid::FILESYSTEM_LIMITS) {
            self.features()
                .increment(ctx, guid::FILESYSTEM_LIMITS)
                .await?;
        }
        self.init_counts(ctx, dir).await?;
        Ok(())
    }

    fn init_counts<'a>(
        &'a self,
        ctx: &'a SyncContext,
        dir: &'a Arc<Dir>,
    ) -> BoxFuture<'a, Result<(u64, u64), DatasetError>> {
        Box::pin(async move {
            let tx = Tx::syncing(ctx.txg);
            if dir.state().is_zapified {
                let zap = Zap::hold(self.mos(), dir.object).await?;
                if let (Some(filesystems), Some(snapshots)) = (
                    zap.lookup_u64(FILESYSTEM_COUNT).await?,
                    zap.lookup_u64(SNAPSHOT_COUNT).await?,
                ) {
                    return Ok((filesystems, snapshots));
                }
            }
            let (mut filesystems, mut snapshots) = (0, 0);
            let children = dir.state().phys.child_directories;
            for entry in Zap::hold(self.mos(), children).await?.all().await? {
                if entry.name.starts_with(b"$") || entry.name.starts_with(b"%") {
                    continue;
                }
                let child = self.dir(entry.value.as_u64().unwrap_or(0).into()).await?;
                let (below, of_them) = self.init_counts(ctx, &child).await?;
                filesystems += below + 1;
                snapshots += of_them;
            }
            let head = self.head(dir).await?;
            let names = head.phys().snapshot_names;
            snapshots += Zap::hold(self.mos(), names).await?.count().await?;
            let zap = self.zapify_dir(ctx, dir).await?;
            zap.update_u64(&tx, FILESYSTEM_COUNT, filesystems).await?;
            zap.update_u64(&tx, SNAPSHOT_COUNT, snapshots).await?;
            Ok((filesystems, snapshots))
        })
    }

    /// Refuses what would exceed a limit here or above (`dsl_fs_ss_limit_check`). `below` is where to stop.
    pub(crate) async fn check_limit(
        &self,
        dir: &Arc<Dir>,
        more: u64,
        which: &str,
        below: Option<&Arc<Dir>>,
    ) -> Result<(), DatasetError> {
        let property = if which == FILESYSTEM_COUNT {
            "filesystem_limit"
        } else {
            "snapshot_limit"
        };
        let mut at = Some(dir.clone());
        while let Some(dir) = at {
            if more == 0 || below.is_some_and(|below| Arc::ptr_eq(below, &dir)) {
                return Ok(());
            }
            let (is_zapified, parent) = {
                let state = dir.state();
                (state.is_zapified, state.parent.clone())
            };
            if !is_zapified {
                return Ok(());
            }
            let zap = Zap::hold(self.mos(), dir.object).await?;
            let Some(count) = zap.lookup_u64(which).await? else {
                return Ok(());
            };
            let limit = self.own_setting(&dir, property).await?.unwrap_or(u64::MAX);
            if count.saturating_add(more) > limit {
                return Err(DatasetError::LimitReached {
                    name: dir.full_name(&self.pool_name()),
                    property,
                });
            }
            at = parent;
        }
        Ok(())
    }

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

    /// Creates a filesystem or volume. Its parent must exist.
    ///
    /// # Errors
    /// [`DatasetError::Exists`], [`DatasetError::NotFound`] (parent),
    /// [`DatasetError::InvalidProperty`], [`DatasetError::NoSpace`], ...
    pub async fn create_dataset(
        self: &Arc<Self>,
        name: &str,
        properties: &[(String, String)],
        init: Arc<dyn ObjsetInit>,
    ) -> Result<(), DatasetError> {
        let kinds = kind_of(init.kind()).kinds();
        let mut parsed = Vec::new();
        for (property, typed) in properties {
            parsed.push((
                property.clone(),
                parse_setting(property, typed, kinds, true)?,
            ));
        }
        {
            let _config = self.config.read().await;
            self.check_new_name(name).await?;
        }
        self.run_task(Arc::new(CreateTask {
            dsl: self.clone(),
            name: name.to_owned(),
            properties: parsed,
            source: Source::New(init),
        }))
        .await
    }

    /// Creates a filesystem or volume from a snapshot.
    ///
    /// # Errors
    /// As [`Self::create_dataset`]; [`DatasetError::WrongKind`] when `origin` is no snapshot.
    pub async fn clone_dataset(
        self: &Arc<Self>,
        origin: &str,
        name: &str,
        properties: &[(String, String)],
    ) -> Result<(), DatasetError> {
        let parsed = {
            let _config = self.config.read().await;
            self.check_new_name(name).await?;
            let snapshot = self.resolve(origin).await?;
            if !snapshot.is_snapshot() {
                return Err(DatasetError::WrongKind {
                    name: origin.to_owned(),
                    reason: "only snapshots can be cloned".into(),
                });
            }
            let kinds = kind_of(self.objset_kind(&snapshot).await?).kinds();
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
        self.run_task(Arc::new(CreateTask {
            dsl: self.clone(),
            name: name.to_owned(),
            properties: parsed,
            source: Source::Snapshot(origin.to_owned()),
        }))
        .await
    }
}

/// The number that a property is set to; the last word counts.
fn last_number(properties: &[(String, PropertyValue)], wanted: &str) -> Option<u64> {
    let mut given = properties.iter().rev();
    given.find(|(name, _)| name == wanted)?.1.number()
}

enum Source {
    New(Arc<dyn ObjsetInit>),
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
        let (parent, _) = self.dsl.check_new_name(&self.name).await?;
        self.dsl
            .check_limit(&parent, 1, FILESYSTEM_COUNT, None)
            .await?;
        if let Source::Snapshot(origin) = &self.source {
            let origin = self.dsl.resolve(origin).await?;
            if !origin.is_snapshot() {
                return Err(DatasetError::WrongKind {
                    name: self.name.clone(),
                    reason: "only snapshots can be cloned".into(),
                });
            }
        }
        if let Source::New(_) = &self.source {
            self.dsl
                .check_new_encryption(&parent, &self.properties)
                .await?;
        }
        check_together(|wanted| last_number(&self.properties, wanted))?;
        let limit = self.dsl.space_available(&parent, None, false);
        for (name, value) in &self.properties {
            if matches!(name.as_str(), "reservation" | "refreservation")
                && value.number().unwrap_or(0) > limit
            {
                return Err(DatasetError::NoSpace {
                    name: self.name.clone(),
                });
            }
            if let Some(number) = value.number() {
                self.dsl.check_feature_of(&self.name, name, number)?;
            }
        }
        Ok(())
    }

    async fn do_apply(&self, ctx: &SyncContext) -> Result<(), DatasetError> {
        let dsl = &self.dsl;
        let (parent, last) = dsl.check_new_name(&self.name).await?;
        let dir = dsl.create_dir(ctx, Some(&parent), &last).await?;
        if dsl.features().is_active(guid::FILESYSTEM_LIMITS) {
            let tx = Tx::syncing(ctx.txg);
            let zap = dsl.zapify_dir(ctx, &dir).await?;
            zap.update_u64(&tx, FILESYSTEM_COUNT, 0).await?;
            zap.update_u64(&tx, SNAPSHOT_COUNT, 0).await?;
        }
        match &self.source {
            Source::New(init) => {
                let head = dsl.create_head(ctx, &dir, None).await?;
                dsl.encrypt_new(ctx, &parent, &head, &self.properties)
                    .await?;
                let properties = dsl
                    .with_those_of_parent(&parent, init.kind(), &self.properties)
                    .await?;
                dsl.fill_new(ctx, &head, &properties, init.as_ref()).await
            }
            Source::Snapshot(origin_name) => {
                let origin = dsl.resolve(origin_name).await?;
                let head = dsl.create_head(ctx, &dir, Some(&origin)).await?;
                dsl.share_key(ctx, &origin.dir(), &dir).await?;
                dsl.forget_log(ctx, &head).await?;
                for (name, value) in &self.properties {
                    dsl.change_property(ctx, &head, name, Some(value)).await?;
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
    fn check<'a>(&'a self, _ctx: &'a SyncContext) -> BoxFuture<'a, Result<(), DatasetError>> {
        Box::pin(self.do_check())
    }
    fn apply<'a>(&'a self, ctx: &'a SyncContext) -> BoxFuture<'a, Result<(), DatasetError>> {
        Box::pin(self.do_apply(ctx))
    }
}
