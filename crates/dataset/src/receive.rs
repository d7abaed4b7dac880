//! Receiving a stream, as far as it is about datasets: where its contents go, and making a snapshot
//! of them (module/zfs/dmu_recv.c). What is in a stream is crate `stream`'s business.
//!
//! # Where contents go
//! A dataset that does not exist is made, empty or as a clone, and is *inconsistent* until the
//! receive has ended: nobody opens it or takes snapshots of it. Into one that exists, contents go
//! by way of a hidden clone below it, [`CLONE_NAME`], of the snapshot that the stream is the
//! difference to; at the end the two swap what they have, as with a rollback, and the clone is
//! destroyed.
//!
//! # Going on after a break
//! With `zfs receive -s` the dataset says how far it came, in its ZAP, in the same transaction
//! group that has what was received ([`names::dataset`], `RESUME_*`). Without, what a receive
//! leaves is destroyed when it fails, or at the next import ([`Receives::destroy_interrupted`]).
//!
//! # What a crash leaves
//! The target as it was, or with the whole snapshot; and beside it the inconsistent dataset.

mod begin;
mod heal;

use std::sync::Arc;

use device::BoxFuture;
use format::stream::{Begin, StreamFeatures};
use format::{DslDatasetPhys, Guid, NvList, ObjectId, names};
use object::{SyncContext, Zap, ZapValue};
use parking_lot::Mutex;
use zio::Tx;

use crate::bookmark_create::redacted_with;
use crate::dataset::Dataset;
use crate::dsl::DslPool;
use crate::logs::LOG_TRIES_MAX;
use crate::name::check_name;
use crate::new_key::NewKey;
use crate::obstacle::ReceiveObstacle;
use crate::raw::KeyData;
use crate::state::{Ds, ResumePoint, slot};
use crate::task::{SpaceCheck, SyncTask};
use crate::token::ResumeToken;
use crate::{DatasetError, PropertyValue};

use begin::BeginTask;

pub use heal::Corrective;

/// Name of the clone that a receive into an existing dataset writes to (`recv_clone_name`).
pub(crate) const CLONE_NAME: &str = "%recv";

/// Most snapshots that a dataset may be redacted with: a ZAP's value has to hold their GUIDs
/// (`ZAP_MAXVALUELEN`).
const REDACTION_GUIDS_MAX: usize = 1024;

/// What is to be received, and where.
#[derive(Debug, Clone)]
pub struct ReceiveTarget {
    /// The filesystem or volume.
    pub name: String,
    /// The snapshot that it gets, after the `@`.
    pub snapshot: String,
    /// The stream's first record.
    pub begin: Begin,
    /// The snapshot that a new dataset is to be a clone of.
    pub origin: Option<String>,
    /// Changes and snapshots since the one that the stream is the difference to are given up.
    pub force: bool,
    /// After a break one can go on.
    pub resumable: bool,
    /// Of a new dataset whose stream is not raw: `encryption`, and what goes with it, as they were
    /// given ([`crate::encryption_properties`]).
    pub properties: Vec<(String, PropertyValue)>,
    /// The key that makes it an encryption root. Loaded then.
    pub new_key: Option<NewKey>,
    /// What a raw stream's description says of the key (`crypt_keydata`).
    pub key_data: Option<NvList>,
    /// What the stream's description says of what it leaves out.
    pub redaction: Redaction,
}

/// What a stream's description says of redaction: GUIDs of snapshots.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Redaction {
    /// Those that it is redacted with (`redact_snaps`).
    pub with: Option<Vec<u64>>,
    /// Those that what it follows was redacted with (`redact_from_snaps`).
    pub from: Option<Vec<u64>>,
}

impl Redaction {
    /// From a stream's description.
    pub fn of(list: &NvList) -> Self {
        let guids = |name| list.u64s(name).map(<[u64]>::to_vec);
        Self {
            with: guids("redact_snaps"),
            from: guids("redact_from_snaps"),
        }
    }

    /// Whether it says what a redacted stream has to say, and no more than can be stored of it.
    fn is_sound(&self) -> bool {
        let fits = |guids: &Vec<u64>| guids.len() <= REDACTION_GUIDS_MAX;
        let with = self.with.as_ref();
        with.is_some_and(|with| !with.is_empty() && fits(with))
            && self.from.as_ref().is_none_or(fits)
    }
}

impl ReceiveTarget {
    fn has(&self, feature: StreamFeatures) -> bool {
        self.begin.features.contains(feature)
    }

    fn is_raw(&self) -> bool {
        self.has(StreamFeatures::RAW)
    }

    /// The key of a raw stream.
    fn key(&self) -> Result<Option<KeyData>, DatasetError> {
        if !self.is_raw() {
            return Ok(None);
        }
        let Some(list) = &self.key_data else {
            return self.refuse(ReceiveObstacle::BadStream);
        };
        match KeyData::decode(list) {
            Ok(key) => Ok(Some(key)),
            Err(obstacle) => self.refuse(obstacle),
        }
    }

    /// Refuses a raw stream that does not fit what it is the difference to (`None`: nothing).
    async fn check_key(
        &self,
        dsl: &Arc<DslPool>,
        source: Option<&Arc<Ds>>,
    ) -> Result<(), DatasetError> {
        let Some(key) = self.key()? else {
            return Ok(());
        };
        match dsl.keys().check_raw(&key, source).await? {
            Ok(()) => Ok(()),
            Err(obstacle) => self.refuse(obstacle),
        }
    }

    /// Refuses a stream that takes blocks for granted which the snapshot that it follows lacks
    /// (`redact_check`, module/zfs/dmu_recv.c).
    fn check_redaction(&self, source: &Arc<Ds>) -> Result<(), DatasetError> {
        if self.begin.from_guid.get() == 0 {
            return Ok(());
        }
        let Some(lacks) = redacted_with(source) else {
            return Ok(());
        };
        let has = |guid: &u64| lacks.contains(&Guid::new(*guid));
        // With fewer snapshots more is left out: what was, is so still.
        let is_part = |guids: &[u64]| guids.len() <= lacks.len() && guids.iter().all(has);
        let fits = match (&self.redaction.from, &self.redaction.with) {
            (Some(from), _) => is_part(from),
            (None, Some(with)) if self.has(StreamFeatures::REDACTED) => is_part(with),
            (None, _) => has(&self.begin.to_guid.get()),
        };
        match fits {
            true => Ok(()),
            false => self.refuse(ReceiveObstacle::Redaction),
        }
    }

    fn refuse<T>(&self, obstacle: ReceiveObstacle) -> Result<T, DatasetError> {
        Err(DatasetError::Receive {
            name: self.name.clone(),
            obstacle,
        })
    }
}

/// A receive that has begun. Dropping it leaves what was received, as a crash would.
pub struct Receiving {
    target: Arc<ReceiveTarget>,
    dataset: Dataset,
    object: ObjectId,
    is_new: bool,
    resumed_at: Option<ResumePoint>,
}

/// Ends a receive, whoever else has it: see [`Receives::finish`].
#[derive(Clone)]
pub struct Finisher {
    target: Arc<ReceiveTarget>,
    object: ObjectId,
    is_new: bool,
}

impl Finisher {
    /// Ends it.
    ///
    /// # Errors
    /// As [`Receives::finish`].
    pub async fn run(&self, dsl: &Arc<DslPool>) -> Result<(), DatasetError> {
        dsl.receives().finish_with(self).await
    }
}

impl Receiving {
    /// What ends it.
    pub fn finisher(&self) -> Finisher {
        Finisher {
            target: self.target.clone(),
            object: self.object,
            is_new: self.is_new,
        }
    }

    /// Where contents go.
    pub fn dataset(&self) -> &Dataset {
        &self.dataset
    }

    /// What was to be received.
    pub fn target(&self) -> &ReceiveTarget {
        &self.target
    }

    /// Whether the target did not exist.
    pub fn is_new(&self) -> bool {
        self.is_new
    }

    /// Where it goes on, if it was interrupted.
    pub fn resumed_at(&self) -> Option<ResumePoint> {
        self.resumed_at
    }

    /// Notes, with the group of `tx`, how far it came.
    pub fn note(&self, tx: &Tx, point: ResumePoint) {
        if self.target.resumable || self.resumed_at.is_some() {
            self.dataset.note_received(tx, point);
        }
    }
}

/// Receiving: [`DslPool::receives`].
#[derive(Clone, Copy)]
pub struct Receives<'a> {
    pub(crate) dsl: &'a Arc<DslPool>,
}

impl DslPool {
    /// Receiving streams.
    pub fn receives(self: &Arc<Self>) -> Receives<'_> {
        Receives { dsl: self }
    }
}

/// What a receive may have left below a dataset cannot be read.
fn left_alone(head: &Ds, error: &DatasetError) {
    let dataset = head.object.get();
    tracing::warn!(dataset, %error, "the rest of a receive, if there is one, stays");
}

impl Receives<'_> {
    /// Begins to receive: makes the dataset that contents go to, or finds the one to go on with.
    ///
    /// # Errors
    /// [`DatasetError::Receive`], and those of creating a dataset.
    pub async fn begin(&self, target: ReceiveTarget) -> Result<Receiving, DatasetError> {
        check_name(&format!("{}@{}", target.name, target.snapshot))?;
        let target = Arc::new(target);
        let mut attempts = 0;
        let task = loop {
            self.dsl.logs().settle(&target.name).await;
            let task = Arc::new(BeginTask {
                dsl: self.dsl.clone(),
                target: target.clone(),
                begun: Mutex::default(),
            });
            match self.dsl.tasks().run(task.clone()).await {
                Err(DatasetError::Again { .. }) if attempts < 100 => attempts += 1,
                Err(error) => return Err(error),
                Ok(()) => break task,
            }
        };
        let begun = task.begun.lock().take();
        let (object, is_new) = begun
            .ok_or_else(|| DatasetError::corrupt(ObjectId::ZERO, "a receive had no target"))?;
        match self.open(&target, object, is_new).await {
            Ok(receiving) => Ok(receiving),
            Err(error) => {
                // Nobody would go on with it.
                if !target.has(StreamFeatures::RESUMING)
                    && let Err(error) = self.destroy_rest(object).await
                {
                    tracing::warn!(target = target.name, %error, "what a receive began stays");
                }
                Err(error)
            }
        }
    }

    async fn open(
        &self,
        target: &Arc<ReceiveTarget>,
        object: ObjectId,
        is_new: bool,
    ) -> Result<Receiving, DatasetError> {
        let dataset = self.dsl.open_receiving(object, target.is_raw()).await?;
        let resumed_at = match target.has(StreamFeatures::RESUMING) {
            true => Some(self.resume_point(object).await?),
            false => None,
        };
        Ok(Receiving {
            target: target.clone(),
            dataset,
            object,
            is_new,
            resumed_at,
        })
    }

    /// Destroys what a receive left that nobody goes on with.
    async fn destroy_rest(&self, object: ObjectId) -> Result<(), DatasetError> {
        let dsl = self.dsl.clone();
        let task = AbortTask { dsl, object };
        self.dsl.tasks().run(Arc::new(task)).await
    }

    async fn resume_point(&self, object: ObjectId) -> Result<ResumePoint, DatasetError> {
        let zap = Zap::hold(self.dsl.mos(), object).await?;
        let number = async |name: &str| -> Result<u64, DatasetError> {
            Ok(zap.lookup_u64(name).await?.unwrap_or(0))
        };
        Ok(ResumePoint {
            object: number(names::dataset::RESUME_OBJECT).await?,
            offset_bytes: number(names::dataset::RESUME_OFFSET).await?,
            stream_bytes: number(names::dataset::RESUME_BYTES).await?,
        })
    }

    /// Ends a receive: what was received becomes the target's snapshot. Nothing may have the target
    /// open.
    ///
    /// # Errors
    /// [`DatasetError::Receive`], [`DatasetError::Busy`], [`DatasetError::QuotaExceeded`], ...;
    /// then nothing has changed, and the receive can be given up or ended again.
    pub async fn finish(&self, receiving: &Receiving) -> Result<(), DatasetError> {
        receiving.finisher().run(self.dsl).await
    }

    async fn finish_with(&self, finisher: &Finisher) -> Result<(), DatasetError> {
        let name = &finisher.target.name;
        let mut attempts = 0;
        loop {
            if !finisher.is_new {
                self.dsl.logs().settle(name).await;
            }
            let task = FinishTask {
                dsl: self.dsl.clone(),
                target: finisher.target.clone(),
                object: finisher.object,
                is_new: finisher.is_new,
            };
            match self.dsl.tasks().run(Arc::new(task)).await {
                Err(DatasetError::Again { .. }) if attempts < 100 => attempts += 1,
                // Its log was being closed at that very moment.
                Err(DatasetError::Busy { .. })
                    if attempts < LOG_TRIES_MAX
                        && !finisher.is_new
                        && self.dsl.logs().is_unused(name).await =>
                {
                    attempts += 1;
                }
                other => return other,
            }
        }
    }

    /// Gives a receive up: what was received is destroyed, or kept to go on with.
    ///
    /// # Errors
    /// Those of destroying a dataset.
    pub async fn give_up(&self, receiving: Receiving, keep: bool) -> Result<(), DatasetError> {
        // What is on its way to the disk says how far it came.
        self.dsl.sync().await?;
        let (object, keeps) = (receiving.object, keep && receiving.target.resumable);
        let resumes = receiving.resumed_at.is_some();
        drop(receiving);
        if keeps || resumes {
            return Ok(());
        }
        self.destroy_rest(object).await
    }

    /// `zfs receive -A`: destroys the rest of an interrupted receive, also of one that nobody could
    /// go on with.
    ///
    /// # Errors
    /// [`DatasetError::NotFound`]; [`DatasetError::Receive`] where there is none.
    pub async fn abort(&self, name: &str) -> Result<(), DatasetError> {
        let object = {
            let _config = self.dsl.config.read().await;
            let refused = || DatasetError::Receive {
                name: name.to_owned(),
                obstacle: ReceiveObstacle::NothingToResume,
            };
            self.rest(name).await?.ok_or_else(refused)?.object
        };
        self.destroy_rest(object).await
    }

    /// Destroys the rest of an interrupted receive into `name`, if that is all there is below it
    /// (`zfs_ioc_destroy`, module/zfs/zfs_ioctl.c). Whether it did.
    pub(crate) async fn abort_below(&self, name: &str) -> Result<bool, DatasetError> {
        let object = {
            let _config = self.dsl.config.read().await;
            let directories = self.dsl.directories();
            let dir = directories.resolve(name).await?.dir();
            let children = dir.state().phys.child_directories;
            if Zap::hold(self.dsl.mos(), children).await?.count().await? != 1 {
                return Ok(false);
            }
            let Some(hidden) = directories.child_dir(&dir, CLONE_NAME).await? else {
                return Ok(false);
            };
            let rest = directories.head(&hidden).await?;
            if rest.hold_count() > 0 {
                return Ok(false);
            }
            rest.object
        };
        self.destroy_rest(object).await?;
        Ok(true)
    }

    /// Destroys what an interrupted receive left beside `name`: a hidden clone of one of its
    /// snapshots, which would keep that. One that is under way stays.
    ///
    /// # Errors
    /// [`DatasetError::NotFound`].
    pub async fn abort_clone(&self, name: &str) -> Result<(), DatasetError> {
        let object = {
            let _config = self.dsl.config.read().await;
            let directories = self.dsl.directories();
            let dir = directories.resolve(name).await?.dir();
            let Some(hidden) = directories.child_dir(&dir, CLONE_NAME).await? else {
                return Ok(());
            };
            let rest = directories.head(&hidden).await?;
            if rest.hold_count() > 0 {
                return Ok(());
            }
            rest.object
        };
        self.destroy_rest(object).await
    }

    /// The dataset with the rest of a receive that was interrupted and that can be gone on with.
    pub(crate) async fn partial(&self, name: &str) -> Result<Option<Arc<Ds>>, DatasetError> {
        let Some(rest) = self.rest(name).await? else {
            return Ok(None);
        };
        let is_partial = self.has_resume_state(&rest).await?;
        Ok(is_partial.then_some(rest))
    }

    /// The dataset with what a receive has received or left: the hidden clone of `name`, or itself.
    async fn rest(&self, name: &str) -> Result<Option<Arc<Ds>>, DatasetError> {
        let directories = self.dsl.directories();
        let head = directories.resolve(name).await?;
        if head.is_snapshot() {
            return Ok(None);
        }
        let hidden = directories.child_dir(&head.dir(), CLONE_NAME).await?;
        let dataset = match hidden {
            Some(dir) => directories.head(&dir).await?,
            None => head,
        };
        Ok(is_inconsistent(&dataset).then_some(dataset))
    }

    async fn has_resume_state(&self, dataset: &Arc<Ds>) -> Result<bool, DatasetError> {
        let is_zapified = dataset.state().is_zapified;
        if !is_zapified {
            return Ok(false);
        }
        let zap = Zap::hold(self.dsl.mos(), dataset.object).await?;
        Ok(zap
            .lookup_u64(names::dataset::RESUME_TOGUID)
            .await?
            .is_some())
    }

    /// Property `receive_resume_token` (`get_receive_resume_token`, module/zfs/dsl_dataset.c).
    pub(crate) async fn token(&self, name: &str) -> Result<Option<String>, DatasetError> {
        let Some(dataset) = self.partial(name).await? else {
            return Ok(None);
        };
        let zap = Zap::hold(self.dsl.mos(), dataset.object).await?;
        use names::dataset as field;
        let number = async |name: &str| -> Result<Option<u64>, DatasetError> {
            Ok(zap.lookup_u64(name).await?)
        };
        let to_name = zap.lookup(field::RESUME_TONAME).await?;
        let to_name = to_name.as_ref().and_then(ZapValue::as_str);
        let redacted = zap.lookup(field::RESUME_REDACT_BOOKMARK_SNAPS).await?;
        let token = ResumeToken {
            from_guid: number(field::RESUME_FROMGUID).await?.map(Guid::new),
            object: number(field::RESUME_OBJECT).await?.unwrap_or(0),
            offset_bytes: number(field::RESUME_OFFSET).await?.unwrap_or(0),
            stream_bytes: number(field::RESUME_BYTES).await?.unwrap_or(0),
            to_guid: Guid::new(number(field::RESUME_TOGUID).await?.unwrap_or(0)),
            to_name: to_name.unwrap_or_default().to_owned(),
            large_blocks: number(field::RESUME_LARGEBLOCK).await?.is_some(),
            embedded: number(field::RESUME_EMBEDOK).await?.is_some(),
            compressed: number(field::RESUME_COMPRESSOK).await?.is_some(),
            raw: number(field::RESUME_RAWOK).await?.is_some(),
            redact_snaps: redacted_with(&dataset)
                .map(|guids| guids.iter().map(|guid| guid.get()).collect()),
            redacted_with: redacted.map(|value| value.to_u64s()),
        };
        Ok(Some(token.encode()))
    }

    /// Stores how far a receive came with the txg that is written (`dsl_dataset_sync`).
    pub(crate) async fn save(&self, ctx: &SyncContext, head: &Arc<Ds>) -> Result<(), DatasetError> {
        let received = head.state().received[slot(ctx.txg)].take();
        let Some(point) = received else { return Ok(()) };
        let tx = Tx::syncing(ctx.txg);
        let zap = Zap::hold(self.dsl.mos(), head.object).await?;
        for (name, number) in [
            (names::dataset::RESUME_OBJECT, point.object),
            (names::dataset::RESUME_OFFSET, point.offset_bytes),
            (names::dataset::RESUME_BYTES, point.stream_bytes),
        ] {
            zap.update_u64(&tx, name, number).await?;
        }
        Ok(())
    }

    /// Destroys what receives left that nobody can go on with, after a crash
    /// (`dsl_destroy_inconsistent`, module/zfs/dsl_destroy.c).
    ///
    /// # Errors
    /// Of reading the namespace, and of destroying.
    pub async fn destroy_interrupted(&self) -> Result<(), DatasetError> {
        let mut doomed = Vec::new();
        {
            let _config = self.dsl.config.read().await;
            let directories = self.dsl.directories();
            let mut heads = Vec::new();
            for head in directories.heads().await {
                let clone = async {
                    match directories.child_dir(&head.dir(), CLONE_NAME).await? {
                        Some(dir) => directories.head(&dir).await.map(Some),
                        None => Ok(None),
                    }
                };
                match clone.await {
                    Ok(clone) => heads.extend(clone),
                    Err(error) => left_alone(&head, &error),
                }
                heads.push(head);
            }
            for head in heads {
                if !is_inconsistent(&head) || head.hold_count() > 0 {
                    continue;
                }
                match self.has_resume_state(&head).await {
                    Ok(true) => {}
                    Ok(false) => doomed.push(head.object),
                    Err(error) => left_alone(&head, &error),
                }
            }
        }
        for object in doomed {
            match self.destroy_rest(object).await {
                // A receive began meanwhile, or it has children.
                Err(error @ (DatasetError::Busy { .. } | DatasetError::HasChildren { .. })) => {
                    tracing::info!(object = object.get(), %error, "an interrupted receive stays");
                }
                other => other?,
            }
        }
        Ok(())
    }

    /// Whether a head was changed since one of its snapshots (`dsl_dataset_modified_since_snap`).
    /// That its log was is none.
    async fn is_modified_since(
        &self,
        head: &Arc<Ds>,
        snapshot: &Arc<Ds>,
    ) -> Result<bool, DatasetError> {
        let (now, then) = (head.phys().block, snapshot.phys());
        if now.is_hole() || now.birth() <= then.creation_txg {
            return Ok(false);
        }
        let (now, then) = (self.dsl.root_of(head), self.dsl.root_of(snapshot));
        Ok(now.await?.meta_dnode != then.await?.meta_dnode)
    }
}

/// Whether a dataset is one that is received into.
pub(crate) fn is_inconsistent(dataset: &Arc<Ds>) -> bool {
    dataset.phys().flags & DslDatasetPhys::FLAG_INCONSISTENT != 0
}

struct FinishTask {
    dsl: Arc<DslPool>,
    target: Arc<ReceiveTarget>,
    object: ObjectId,
    is_new: bool,
}

impl FinishTask {
    /// The target's snapshots that are to be destroyed, newest first.
    async fn newer(&self, head: &Arc<Ds>, clone: &Arc<Ds>) -> Result<Vec<Arc<Ds>>, DatasetError> {
        let until = clone.phys().previous_snapshot;
        let mut newer = Vec::new();
        let mut at = head.phys().previous_snapshot;
        while at != until {
            if at.is_zero() {
                return self.target.refuse(ReceiveObstacle::NoSource);
            }
            let snapshot = self.dsl.directories().dataset(at).await?;
            if !Arc::ptr_eq(&snapshot.dir(), &head.dir()) {
                return self.target.refuse(ReceiveObstacle::NoSource);
            }
            at = snapshot.phys().previous_snapshot;
            newer.push(snapshot);
        }
        Ok(newer)
    }

    async fn do_check(&self, ctx: &SyncContext) -> Result<(), DatasetError> {
        let (dsl, target) = (&self.dsl, &self.target);
        let directories = dsl.directories();
        let received = directories.dataset(self.object).await?;
        let again = || DatasetError::Again {
            name: target.name.clone(),
        };
        let full_name = format!("{}@{}", target.name, target.snapshot);
        if !is_inconsistent(&received) {
            return target.refuse(ReceiveObstacle::NothingToResume);
        }
        let head = match self.is_new {
            true => received.clone(),
            false => directories.resolve(&target.name).await?,
        };
        if received.phys().previous_snapshot_txg >= ctx.txg
            || head.phys().previous_snapshot_txg >= ctx.txg
        {
            return Err(again());
        }
        // It may have been made, renamed or moved since the receive began.
        if !self.is_new
            && !received
                .dir()
                .parent()
                .is_some_and(|parent| Arc::ptr_eq(&parent, &head.dir()))
        {
            return target.refuse(ReceiveObstacle::NoSource);
        }
        let newer = match target.force && !self.is_new {
            true => self.newer(&head, &received).await?,
            false => Vec::new(),
        };
        if let Some(same) = directories.snapshot_of(&head, &target.snapshot).await?
            && !newer.iter().any(|newer| Arc::ptr_eq(newer, &same))
        {
            return Err(DatasetError::Exists { name: full_name });
        }
        dsl.limits()
            .check(&head.dir(), 1, names::directory::SNAPSHOT_COUNT, None)
            .await?;
        dsl.readable()
            .received(&received, &head, &target.snapshot)
            .await?;
        if self.is_new {
            return Ok(());
        }
        if head.hold_count() > 0 || head.has_busy_log() {
            return Err(DatasetError::Busy {
                name: target.name.clone(),
                reason: "it is open or mounted".into(),
            });
        }
        if target.force {
            for snapshot in &newer {
                dsl.destroyer()
                    .check_destroy_snapshot(snapshot, false)
                    .await?;
            }
        } else {
            if head.phys().previous_snapshot != received.phys().previous_snapshot {
                return target.refuse(ReceiveObstacle::Modified);
            }
            if let Some(newest) = head.prev()
                && dsl.receives().is_modified_since(&head, &newest).await?
            {
                return target.refuse(ReceiveObstacle::Modified);
            }
        }
        let (refquota, reserved) = {
            let state = head.state();
            (state.refquota_bytes, state.reserved_bytes)
        };
        if refquota != 0 && received.phys().referenced_bytes > refquota {
            return Err(DatasetError::QuotaExceeded {
                name: target.name.clone(),
            });
        }
        let needed = reserved.min(received.phys().unique_bytes);
        if needed > 0 && needed > dsl.space().available(&head.dir(), None, true) {
            return Err(DatasetError::NoSpace {
                name: target.name.clone(),
            });
        }
        Ok(())
    }

    async fn do_apply(&self, ctx: &SyncContext) -> Result<(), DatasetError> {
        let (dsl, target) = (&self.dsl, &self.target);
        let directories = dsl.directories();
        let received = directories.dataset(self.object).await?;
        let name = directories.full_name(&received).await?;
        let text = format!("snap={}", target.snapshot);
        dsl.history(ctx, "finish receiving", name, received.object, text)
            .await?;
        let head = match self.is_new {
            true => received.clone(),
            false => directories.resolve(&target.name).await?,
        };
        if !self.is_new {
            if target.force {
                for snapshot in self.newer(&head, &received).await? {
                    dsl.destroyer()
                        .destroy_snapshot_now(ctx, &snapshot, false)
                        .await?;
                }
            }
            dsl.snapshots().swap_clone(ctx, &received, &head).await?;
            dsl.datasets().forget_log(ctx, &head).await?;
        }
        let key = target.key()?;
        if !self.is_new
            && let Some(key) = &key
        {
            dsl.keys().receive_key(ctx, &head, key).await?;
        }
        let snapshot = dsl
            .snapshots()
            .take_now(
                ctx,
                &head,
                &target.snapshot,
                target.begin.creation_time_seconds,
            )
            .await?;
        for dataset in [&snapshot, &head] {
            dataset.change(|state| state.phys.flags &= !DslDatasetPhys::FLAG_INCONSISTENT);
        }
        snapshot.change(|state| state.phys.guid = target.begin.to_guid);
        if let Some(key) = &key {
            dsl.keys().receive_iv_set(ctx, &snapshot, key).await?;
        }
        if self.is_new {
            self.forget_resume_state(ctx, &head).await?;
            // It was open without a log.
            *head.open.lock() = None;
        } else {
            dsl.destroyer().destroy_head_now(ctx, &received).await?;
        }
        Ok(())
    }

    async fn forget_resume_state(
        &self,
        ctx: &SyncContext,
        head: &Arc<Ds>,
    ) -> Result<(), DatasetError> {
        if !self.dsl.receives().has_resume_state(head).await? {
            return Ok(());
        }
        let tx = Tx::syncing(ctx.txg);
        let zap = Zap::hold(self.dsl.mos(), head.object).await?;
        use names::dataset as field;
        for name in [
            field::RESUME_FROMGUID,
            field::RESUME_OBJECT,
            field::RESUME_OFFSET,
            field::RESUME_BYTES,
            field::RESUME_TOGUID,
            field::RESUME_TONAME,
            field::RESUME_LARGEBLOCK,
            field::RESUME_EMBEDOK,
            field::RESUME_COMPRESSOK,
            field::RESUME_RAWOK,
            field::RESUME_REDACT_BOOKMARK_SNAPS,
        ] {
            match zap.remove(&tx, name).await {
                Err(error) if !error.is_not_found() => return Err(error.into()),
                _ => {}
            }
        }
        Ok(())
    }
}

impl SyncTask for FinishTask {
    fn name(&self) -> &'static str {
        "finish receiving"
    }
    fn space_check(&self) -> SpaceCheck {
        SpaceCheck::Normal
    }
    fn check<'a>(&'a self, ctx: &'a SyncContext) -> BoxFuture<'a, Result<(), DatasetError>> {
        Box::pin(self.do_check(ctx))
    }
    fn apply<'a>(&'a self, ctx: &'a SyncContext) -> BoxFuture<'a, Result<(), DatasetError>> {
        Box::pin(self.do_apply(ctx))
    }
}

struct AbortTask {
    dsl: Arc<DslPool>,
    object: ObjectId,
}

impl SyncTask for AbortTask {
    fn name(&self) -> &'static str {
        "give up receiving"
    }
    fn space_check(&self) -> SpaceCheck {
        SpaceCheck::ExtraReserved
    }
    fn check<'a>(&'a self, _ctx: &'a SyncContext) -> BoxFuture<'a, Result<(), DatasetError>> {
        Box::pin(async {
            let dataset = self.dsl.directories().dataset(self.object).await?;
            if !is_inconsistent(&dataset) {
                return Err(DatasetError::Receive {
                    name: self.dsl.directories().full_name(&dataset).await?,
                    obstacle: ReceiveObstacle::NothingToResume,
                });
            }
            self.dsl.destroyer().check_destroy_head(&dataset).await
        })
    }
    fn apply<'a>(&'a self, ctx: &'a SyncContext) -> BoxFuture<'a, Result<(), DatasetError>> {
        Box::pin(async {
            let dataset = self.dsl.directories().dataset(self.object).await?;
            self.dsl.destroyer().destroy_head_now(ctx, &dataset).await
        })
    }
}
