//! Beginning to receive: whether a stream fits a target, and the dataset that its contents go to
//! (`dmu_recv_begin_check`, `dmu_recv_begin_sync`).

use std::sync::Arc;

use device::BoxFuture;
use format::stream::{Begin, StreamFeatures};
use format::{DslDatasetPhys, ObjectId, ObjsetKind, ZilHeader, names};
use object::{ObjectSet, RawRoot, SyncContext, Zap, ZapValue};
use parking_lot::Mutex;
use zio::Tx;

use crate::DatasetError;
use crate::are_same_snapshots;
use crate::dsl::DslPool;
use crate::features::guid;
use crate::obstacle::ReceiveObstacle;
use crate::resume::CLONE_NAME;
use crate::state::Ds;
use crate::task::{SpaceCheck, SyncTask};

use super::target::ReceiveTarget;

pub(super) struct BeginTask {
    pub(super) dsl: Arc<DslPool>,
    pub(super) target: Arc<ReceiveTarget>,
    /// Where contents go, and whether that is a new dataset.
    pub(super) begun: Mutex<Option<(ObjectId, bool)>>,
}

/// Where contents are to go.
enum Place {
    /// A hidden clone of this snapshot, below the dataset; `None`: of nothing.
    Below(Arc<Ds>, Option<Arc<Ds>>),
    /// A new dataset, a clone of this snapshot or of nothing.
    New(Option<Arc<Ds>>),
    /// Where an interrupted one went; whether that is the target itself.
    Again(Arc<Ds>, bool),
}

impl BeginTask {
    pub(super) fn check_features(&self) -> Result<(), DatasetError> {
        let target = &self.target;
        let features = target.begin.features;
        if !self.dsl.pool_version().has_system_attributes() {
            return Err(DatasetError::Unsupported {
                name: target.name.clone(),
                what: "receiving into a pool of a version before 24".into(),
            });
        }
        if features.without(StreamFeatures::KNOWN) != StreamFeatures::default() {
            return target.refuse(ReceiveObstacle::UnknownFeature);
        }
        if target.begin.kind().is_none() {
            return target.refuse(ReceiveObstacle::BadStream);
        }
        for (feature, needs) in [
            (StreamFeatures::LZ4, guid::LZ4_COMPRESS),
            (StreamFeatures::ZSTD, guid::ZSTD_COMPRESS),
            (StreamFeatures::EMBED_DATA, guid::EMBEDDED_DATA),
            (StreamFeatures::LARGE_BLOCKS, guid::LARGE_BLOCKS),
            (StreamFeatures::LARGE_DNODE, guid::LARGE_DNODE),
            (StreamFeatures::LARGE_MICROZAP, guid::LARGE_MICROZAP),
            (StreamFeatures::REDACTED, guid::REDACTED_DATASETS),
            (StreamFeatures::LONG_NAME, guid::LONGNAME),
            (StreamFeatures::RAW, guid::ENCRYPTION),
        ] {
            if features.contains(feature) && !self.dsl.features().is_enabled(needs) {
                return Err(DatasetError::Unsupported {
                    name: target.name.clone(),
                    what: format!("receiving this stream without feature {needs}"),
                });
            }
        }
        if target.resumable && !self.dsl.features().is_enabled(guid::EXTENSIBLE_DATASET) {
            return Err(DatasetError::Unsupported {
                name: target.name.clone(),
                what: format!(
                    "a resumable receive without feature {}",
                    guid::EXTENSIBLE_DATASET
                ),
            });
        }
        // Without the flag nobody could tell which spill blocks are gone.
        let says_spill = target.begin.flags & Begin::FLAG_SPILL_BLOCK != 0;
        if target.is_raw() && (features.contains(StreamFeatures::EMBED_DATA) || !says_spill) {
            return target.refuse(ReceiveObstacle::BadStream);
        }
        target.key()?;
        if features.contains(StreamFeatures::REDACTED) && !target.redaction.is_sound() {
            return target.refuse(ReceiveObstacle::BadStream);
        }
        Ok(())
    }

    async fn place(&self, ctx: &SyncContext) -> Result<Place, DatasetError> {
        let target = &self.target;
        self.check_features()?;
        if target.has(StreamFeatures::RESUMING) {
            return self.place_again().await;
        }
        match self.dsl.directories().resolve(&target.name).await {
            Ok(head) => self.place_below(ctx, head).await,
            Err(DatasetError::NotFound { .. }) => self.place_new().await,
            Err(error) => Err(error),
        }
    }

    async fn place_again(&self) -> Result<Place, DatasetError> {
        let target = &self.target;
        let receives = self.dsl.receives();
        let Some(dataset) = receives.partial(&target.name).await? else {
            return target.refuse(ReceiveObstacle::NothingToResume);
        };
        let head = self.dsl.directories().resolve(&target.name).await?;
        let is_new = Arc::ptr_eq(&head, &dataset);
        if !is_new && target.begin.from_guid.get() == 0 && !target.force {
            return target.refuse(ReceiveObstacle::Exists);
        }
        if dataset.hold_count() > 0 {
            return target.refuse(ReceiveObstacle::UnderWay);
        }
        let zap = Zap::hold(self.dsl.mos(), dataset.object).await?;
        let to = zap.lookup_u64(names::dataset::RESUME_TOGUID).await?;
        let from = zap.lookup_u64(names::dataset::RESUME_FROMGUID).await?;
        if to != Some(target.begin.to_guid.get())
            || from.unwrap_or(0) != target.begin.from_guid.get()
        {
            return target.refuse(ReceiveObstacle::NothingToResume);
        }
        if target.has(StreamFeatures::REDACTED) {
            let stored = dataset.redacted_with().unwrap_or_default();
            let with = target.redaction.with.as_deref().unwrap_or_default();
            if !are_same_snapshots(with, &stored) {
                return target.refuse(ReceiveObstacle::NothingToResume);
            }
        }
        let had_large = dataset.state().features.contains_key(guid::LARGE_BLOCKS);
        if had_large && !target.has(StreamFeatures::LARGE_BLOCKS) {
            return target.refuse(ReceiveObstacle::LargeBlocks);
        }
        let was_raw = zap
            .lookup_u64(names::dataset::RESUME_RAWOK)
            .await?
            .is_some();
        if was_raw != target.is_raw() {
            return target.refuse(ReceiveObstacle::NothingToResume);
        }
        match target.key()? {
            None => self.dsl.keys().ensure(&dataset).await?,
            Some(key) => {
                let stored = self.dsl.keys().stored(&dataset.dir()).await?;
                if stored.is_none_or(|stored| stored.guid != key.guid()) {
                    return target.refuse(ReceiveObstacle::OtherKey);
                }
            }
        }
        Ok(Place::Again(dataset, is_new))
    }

    async fn place_below(&self, ctx: &SyncContext, head: Arc<Ds>) -> Result<Place, DatasetError> {
        let (dsl, target) = (&self.dsl, &self.target);
        let directories = dsl.directories();
        let dir = head.dir();
        if target.origin.is_some() || target.begin.flags & Begin::FLAG_CLONE != 0 {
            return target.refuse(ReceiveObstacle::Exists);
        }
        if directories.child_dir(&dir, CLONE_NAME).await?.is_some() {
            let rest = dsl.receives().rest(&target.name).await?;
            return target.refuse(match rest {
                Some(rest) if rest.hold_count() == 0 => ReceiveObstacle::Interrupted,
                _ => ReceiveObstacle::UnderWay,
            });
        }
        if head.is_inconsistent() {
            return target.refuse(match head.hold_count() {
                0 => ReceiveObstacle::Interrupted,
                _ => ReceiveObstacle::UnderWay,
            });
        }
        if directories
            .snapshot_of(&head, &target.snapshot)
            .await?
            .is_some()
        {
            return Err(DatasetError::Exists {
                name: format!("{}@{}", target.name, target.snapshot),
            });
        }
        let kind = directories.objset_kind(&head).await?;
        if target.begin.kind() != Some(kind) {
            return target.refuse(ReceiveObstacle::BadStream);
        }
        let is_encrypted = head.is_encrypted();
        if is_encrypted && target.has(StreamFeatures::EMBED_DATA) {
            return target.refuse(ReceiveObstacle::Encrypted);
        }
        dsl.limits()
            .check(&dir, 1, names::directory::SNAPSHOT_COUNT, None)
            .await?;
        if target.begin.from_guid.get() == 0 {
            if !target.force {
                return target.refuse(ReceiveObstacle::Exists);
            }
            if is_encrypted || target.is_raw() {
                return target.refuse(ReceiveObstacle::Encrypted);
            }
            return Ok(Place::Below(head, None));
        }
        match target.is_raw() {
            true if !is_encrypted => return target.refuse(ReceiveObstacle::NotEncrypted),
            true => {}
            false => dsl.keys().ensure(&head).await?,
        }
        let mut at = head.clone();
        let source = loop {
            let before = directories.before(&at).await?;
            let Some(snapshot) = before.filter(|before| Arc::ptr_eq(&before.dir(), &dir)) else {
                return target.refuse(ReceiveObstacle::NoSource);
            };
            if snapshot.phys().guid == target.begin.from_guid {
                break snapshot;
            }
            at = snapshot;
        };
        if source.phys().creation_txg >= ctx.txg {
            return Err(DatasetError::Again {
                name: target.name.clone(),
            });
        }
        target.check_redaction(&source)?;
        let had_large = source.state().features.contains_key(guid::LARGE_BLOCKS);
        if had_large && !target.has(StreamFeatures::LARGE_BLOCKS) {
            return target.refuse(ReceiveObstacle::LargeBlocks);
        }
        if target.force {
            target.check_key(dsl, Some(&source)).await?;
            return Ok(Place::Below(head, Some(source)));
        }
        if dsl.is_modified_since(&head, &source).await? {
            return target.refuse(ReceiveObstacle::Modified);
        }
        let newest = head.prev().unwrap_or_else(|| source.clone());
        // Snapshots without changes have sets of IVs of their own.
        if target.is_raw() && !Arc::ptr_eq(&newest, &source) {
            return target.refuse(ReceiveObstacle::Modified);
        }
        target.check_key(dsl, Some(&newest)).await?;
        if newest.phys().creation_txg >= ctx.txg {
            return Err(DatasetError::Again {
                name: target.name.clone(),
            });
        }
        Ok(Place::Below(head, Some(newest)))
    }

    async fn place_new(&self) -> Result<Place, DatasetError> {
        let (dsl, target) = (&self.dsl, &self.target);
        let is_clone = target.begin.flags & Begin::FLAG_CLONE != 0;
        if is_clone && target.origin.is_none() {
            return target.refuse(ReceiveObstacle::Origin);
        }
        let from = target.begin.from_guid;
        if from.get() != 0 && target.origin.is_none() {
            return target.refuse(ReceiveObstacle::NoTarget);
        }
        if from.get() == 0
            && target.origin.is_some()
            && target.begin.flags & Begin::FLAG_FREE_RECORDS == 0
        {
            return target.refuse(ReceiveObstacle::Origin);
        }
        let (parent, _) = dsl.directories().check_new_name(&target.name).await?;
        for count in [
            names::directory::FILESYSTEM_COUNT,
            names::directory::SNAPSHOT_COUNT,
        ] {
            dsl.limits().check(&parent, 1, count, None).await?;
        }
        let Some(origin) = &target.origin else {
            if target.is_raw() {
                // Whatever is above it.
                target.check_key(dsl, None).await?;
                return Ok(Place::New(None));
            }
            let keys = dsl.keys();
            let (properties, key) = (&target.properties, target.new_key.as_ref());
            keys.check_new(&parent, &target.name, properties, key)
                .await?;
            if target.has(StreamFeatures::EMBED_DATA)
                && keys.is_new_encrypted(&parent, properties, key).await?
            {
                return target.refuse(ReceiveObstacle::Encrypted);
            }
            return Ok(Place::New(None));
        };
        let origin = dsl.directories().resolve(origin).await?;
        let phys = origin.phys();
        if !origin.is_snapshot() || from.get() != 0 && phys.guid != from {
            return target.refuse(ReceiveObstacle::Origin);
        }
        target.check_redaction(&origin)?;
        let had_large = origin.state().features.contains_key(guid::LARGE_BLOCKS);
        if had_large && !target.has(StreamFeatures::LARGE_BLOCKS) {
            return target.refuse(ReceiveObstacle::LargeBlocks);
        }
        if origin.is_encrypted() && target.has(StreamFeatures::EMBED_DATA) {
            return target.refuse(ReceiveObstacle::Encrypted);
        }
        match target.is_raw() {
            true => target.check_key(dsl, Some(&origin)).await?,
            false => dsl.keys().ensure(&origin).await?,
        }
        Ok(Place::New(Some(origin)))
    }

    /// What applying it will read.
    async fn check_readable(&self, place: &Place) -> Result<(), DatasetError> {
        let (directories, readable) = (self.dsl.directories(), self.dsl.readable());
        let (parent, last, source) = match place {
            Place::Again(dataset, _) => {
                if let Some(key) = self.target.key()? {
                    let keys = self.dsl.keys();
                    keys.check_receive_key(&dataset.dir(), &key).await?;
                }
                return readable.properties(dataset).await;
            }
            Place::Below(head, source) => (head.dir(), CLONE_NAME.to_owned(), source),
            Place::New(source) => {
                let (parent, last) = directories.check_new_name(&self.target.name).await?;
                (parent, last, source)
            }
        };
        let above = directories.head(&parent).await?;
        readable.new_dir(&parent, &last).await?;
        readable.properties(&above).await?;
        match source {
            Some(source) => {
                if let Some(key) = self.target.key()? {
                    let keys = self.dsl.keys();
                    keys.check_receive_key(&source.dir(), &key).await?;
                }
                readable.clone_of(source, &above).await
            }
            None => {
                readable.new_head(None).await?;
                readable.settings(&above).await
            }
        }
    }

    async fn do_apply(&self, ctx: &SyncContext) -> Result<(), DatasetError> {
        let (dsl, target) = (&self.dsl, &self.target);
        let directories = dsl.directories();
        let (parent, last, source, is_new) = match self.place(ctx).await? {
            Place::Again(dataset, is_new) => {
                let name = directories.full_name(&dataset).await?;
                dsl.history(ctx, "resume receive", name, dataset.object, " ")
                    .await?;
                if is_new && let Some(key) = target.key()? {
                    dsl.keys().receive_key(ctx, &dataset, &key).await?;
                }
                *self.begun.lock() = Some((dataset.object, is_new));
                return Ok(());
            }
            Place::Below(head, source) => (head.dir(), CLONE_NAME.to_owned(), source, false),
            Place::New(source) => {
                let (parent, last) = directories.check_new_name(&target.name).await?;
                (parent, last, source, true)
            }
        };
        let dir = dsl.datasets().create_dir(ctx, Some(&parent), &last).await?;
        if is_new && dsl.features().is_active(guid::FILESYSTEM_LIMITS) {
            let tx = Tx::syncing(ctx.txg);
            let zap = dsl.zapify_dir(ctx, &dir).await?;
            zap.update_u64(&tx, names::directory::FILESYSTEM_COUNT, 0)
                .await?;
            zap.update_u64(&tx, names::directory::SNAPSHOT_COUNT, 0)
                .await?;
        }
        let head = dsl
            .datasets()
            .create_head(ctx, &dir, source.as_ref())
            .await?;
        if dsl.features().is_active(guid::REDACTED_DATASETS)
            && head.state().features.contains_key(guid::REDACTED_DATASETS)
        {
            dsl.deactivate_feature(ctx, &head, guid::REDACTED_DATASETS)
                .await?;
        }
        if target.has(StreamFeatures::REDACTED)
            && let Some(with) = &target.redaction.with
        {
            let with = ZapValue::from_u64s(with);
            dsl.activate_feature(ctx, &head, guid::REDACTED_DATASETS, with)
                .await?;
        }
        let key = target.key()?;
        match &source {
            Some(source) => {
                dsl.keys().share(ctx, &source.dir(), &dir).await?;
                dsl.datasets().forget_log(ctx, &head).await?;
                if let Some(key) = &key {
                    dsl.datasets().set_raw_root(ctx, &head, key).await?;
                }
            }
            None => {
                if is_new && key.is_none() {
                    let (properties, key) = (&target.properties, target.new_key.as_ref());
                    dsl.keys()
                        .encrypt(ctx, Some(&parent), &head, properties, key)
                        .await?;
                    let location = properties.iter().find(|(name, _)| name == "keylocation");
                    if let Some((name, location)) = location.filter(|_| key.is_some()) {
                        dsl.properties()
                            .change_property(ctx, &head, name, Some(location))
                            .await?;
                    }
                }
            }
        }
        // That of another dataset changes when all of the stream is there.
        if is_new && let Some(key) = &key {
            dsl.keys().receive_key(ctx, &head, key).await?;
        }
        if source.is_none() {
            let kind = target.begin.kind().unwrap_or(ObjsetKind::Filesystem);
            let root = key.as_ref().map(|key| key.root);
            dsl.datasets().fill_empty(ctx, &head, kind, root).await?;
        }
        let flags = match target.begin.flags & Begin::FLAG_CASE_INSENSITIVE {
            0 => DslDatasetPhys::FLAG_INCONSISTENT,
            _ => DslDatasetPhys::FLAG_INCONSISTENT | DslDatasetPhys::FLAG_CASE_INSENSITIVE,
        };
        head.change(|state| state.phys.flags |= flags);
        if target.resumable {
            self.note_resumable(ctx, &head).await?;
        }
        for (feature, needs) in [
            (StreamFeatures::LARGE_BLOCKS, guid::LARGE_BLOCKS),
            (StreamFeatures::LONG_NAME, guid::LONGNAME),
            (StreamFeatures::LARGE_MICROZAP, guid::LARGE_MICROZAP),
        ] {
            let has = head.state().features.contains_key(needs);
            if target.has(feature) && !has {
                dsl.activate_feature(ctx, &head, needs, ZapValue::from_u64(0))
                    .await?;
            }
        }
        let name = directories.full_name(&head).await?;
        dsl.history(ctx, "receive", name, head.object, " ").await?;
        *self.begun.lock() = Some((head.object, is_new));
        Ok(())
    }

    async fn note_resumable(&self, ctx: &SyncContext, head: &Arc<Ds>) -> Result<(), DatasetError> {
        let (begin, tx) = (&self.target.begin, Tx::syncing(ctx.txg));
        let zap = self.dsl.zapify_dataset(ctx, head).await?;
        use names::dataset as field;
        if begin.from_guid.get() != 0 {
            zap.add_u64(&tx, field::RESUME_FROMGUID, begin.from_guid.get())
                .await?;
        }
        zap.add_u64(&tx, field::RESUME_TOGUID, begin.to_guid.get())
            .await?;
        let name = ZapValue::from_str_z(&begin.to_name);
        zap.add(&tx, field::RESUME_TONAME, name).await?;
        if let Some(from) = self
            .target
            .redaction
            .from
            .as_ref()
            .filter(|from| !from.is_empty())
        {
            let from = ZapValue::from_u64s(from);
            zap.add(&tx, field::RESUME_REDACT_BOOKMARK_SNAPS, from)
                .await?;
        }
        for (name, number) in [
            (field::RESUME_OBJECT, 1),
            (field::RESUME_OFFSET, 0),
            (field::RESUME_BYTES, 0),
        ] {
            zap.add_u64(&tx, name, number).await?;
        }
        for (feature, name) in [
            (StreamFeatures::LARGE_BLOCKS, field::RESUME_LARGEBLOCK),
            (StreamFeatures::EMBED_DATA, field::RESUME_EMBEDOK),
            (StreamFeatures::COMPRESSED, field::RESUME_COMPRESSOK),
            (StreamFeatures::RAW, field::RESUME_RAWOK),
        ] {
            if begin.features.contains(feature) {
                zap.add_u64(&tx, name, 1).await?;
            }
        }
        Ok(())
    }
}

impl SyncTask for BeginTask {
    fn name(&self) -> &'static str {
        "receive"
    }
    fn space_check(&self) -> SpaceCheck {
        SpaceCheck::Normal
    }
    fn check<'a>(&'a self, ctx: &'a SyncContext) -> BoxFuture<'a, Result<(), DatasetError>> {
        Box::pin(async {
            let place = self.place(ctx).await?;
            self.check_readable(&place).await
        })
    }
    fn apply<'a>(&'a self, ctx: &'a SyncContext) -> BoxFuture<'a, Result<(), DatasetError>> {
        Box::pin(self.do_apply(ctx))
    }
}

impl crate::Datasets<'_> {
    /// Gives a dataset that is received into an object set without objects.
    async fn fill_empty(
        &self,
        ctx: &SyncContext,
        head: &Arc<Ds>,
        kind: ObjsetKind,
        raw: Option<RawRoot>,
    ) -> Result<(), DatasetError> {
        let tx = Tx::syncing(ctx.txg);
        let options = match raw {
            Some(_) => self.raw_options(head).await?,
            None => {
                self.dsl.keys().ensure(head).await?;
                self.objset_options(head).await?
            }
        };
        let objset = ObjectSet::create(
            self.dsl.env().pipeline.clone(),
            self.dsl.env().world.clone(),
            kind,
            options,
            &tx,
        );
        head.state().kind = Some(kind);
        match raw {
            Some(root) => objset.set_raw_root(&tx, root),
            None => self.new_objset_flags(head, &objset, &tx),
        }
        objset.set_zil_header(&tx, ZilHeader::default());
        self.attach_without_log(head, objset).await?;
        self.dsl.syncer().sync_dataset_now(ctx, head).await?;
        *head.open.lock() = None;
        Ok(())
    }
}
