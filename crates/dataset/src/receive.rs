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
mod target;

use std::sync::Arc;

use device::BoxFuture;
use format::stream::StreamFeatures;
use format::{DslDatasetPhys, ObjectId, names};
use object::{SyncContext, Zap};
use parking_lot::Mutex;
use zio::Tx;

use crate::DatasetError;
use crate::dataset::Dataset;
use crate::dsl::DslPool;
use crate::logs::LOG_TRIES_MAX;
use crate::name::check_name;
use crate::obstacle::ReceiveObstacle;
use crate::resume::{CLONE_NAME, Receives};
use crate::state::{Ds, ResumePoint};
use crate::task::{SpaceCheck, SyncTask};

use begin::BeginTask;

pub use heal::Corrective;
pub use target::{ReceiveTarget, Redaction};

/// How far what is received may be over the target's own `refquota`: as far as what was sent may be
/// over it, which is what one transaction may take (`DMU_MAX_ACCESS` times `spa_asize_inflation`;
/// `dsl_dataset_clone_swap_check_impl`, module/zfs/dsl_dataset.c).
const REFQUOTA_SLACK_BYTES: u64 = 24 * (64 << 20);

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
                    && let Err(error) = self.dsl.destroyer().destroy_rest(object).await
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
        self.dsl.destroyer().destroy_rest(object).await
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
        self.dsl.destroyer().destroy_rest(object).await
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
        self.dsl.destroyer().destroy_rest(object).await
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
                if !head.is_inconsistent() || head.hold_count() > 0 {
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
            match self.dsl.destroyer().destroy_rest(object).await {
                // A receive began meanwhile, or it has children.
                Err(error @ (DatasetError::Busy { .. } | DatasetError::HasChildren { .. })) => {
                    tracing::info!(object = object.get(), %error, "an interrupted receive stays");
                }
                other => other?,
            }
        }
        Ok(())
    }
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
        let mut newer: Vec<Arc<Ds>> = Vec::new();
        loop {
            let at = newer.last().unwrap_or(head);
            if at.phys().previous_snapshot == until {
                return Ok(newer);
            }
            let before = self.dsl.directories().before(at).await?;
            match before.filter(|before| Arc::ptr_eq(&before.dir(), &head.dir())) {
                Some(snapshot) => newer.push(snapshot),
                None => return self.target.refuse(ReceiveObstacle::NoSource),
            }
        }
    }

    async fn do_check(&self, ctx: &SyncContext) -> Result<(), DatasetError> {
        let (dsl, target) = (&self.dsl, &self.target);
        let directories = dsl.directories();
        let received = directories.dataset(self.object).await?;
        let again = || DatasetError::Again {
            name: target.name.clone(),
        };
        let full_name = format!("{}@{}", target.name, target.snapshot);
        if !received.is_inconsistent() {
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
        if !self.is_new
            && let Some(key) = target.key()?
        {
            dsl.keys().check_receive_key(&head.dir(), &key).await?;
        }
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
            dsl.destroyer()
                .check_destroy_snapshots(&newer, false)
                .await?;
        } else {
            if head.phys().previous_snapshot != received.phys().previous_snapshot {
                return target.refuse(ReceiveObstacle::Modified);
            }
            if let Some(newest) = head.prev()
                && dsl.is_modified_since(&head, &newest).await?
            {
                return target.refuse(ReceiveObstacle::Modified);
            }
        }
        let (refquota, reserved) = {
            let state = head.state();
            (state.refquota_bytes, state.reserved_bytes)
        };
        let most = refquota.saturating_add(REFQUOTA_SLACK_BYTES);
        if refquota != 0 && received.phys().referenced_bytes > most {
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
