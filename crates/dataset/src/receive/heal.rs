//! Corrective receives, as far as they are about datasets: whether a stream is one of a snapshot
//! that is here, and opening that (`recv_begin_check_existing_impl`, module/zfs/dmu_recv.c). The
//! snapshot stays what it is; crate `stream` puts its damaged blocks right.

use std::sync::Arc;

use device::BoxFuture;
use format::ObjectId;
use format::stream::StreamFeatures;
use object::SyncContext;
use parking_lot::Mutex;

use crate::dataset::Dataset;
use crate::dsl::DslPool;
use crate::name::check_name;
use crate::resume::{CLONE_NAME, Receives};
use crate::state::Ds;
use crate::task::{SpaceCheck, SyncTask};
use crate::{DatasetError, ReceiveObstacle};

use super::begin::BeginTask;
use super::target::ReceiveTarget;

/// A corrective receive that has begun. While there is one, its snapshot cannot be destroyed.
pub struct Corrective {
    target: Arc<ReceiveTarget>,
    snapshot: Dataset,
}

impl Corrective {
    /// The snapshot, open to be read: as its blocks are stored, where the stream is raw.
    pub fn snapshot(&self) -> &Dataset {
        &self.snapshot
    }

    /// What is received.
    pub fn target(&self) -> &ReceiveTarget {
        &self.target
    }
}

impl Receives<'_> {
    /// Begins to receive a stream of a snapshot that is here (`zfs receive -c`).
    ///
    /// # Errors
    /// [`DatasetError::Receive`] where there is no such snapshot or it is another one, where its
    /// key is needed and not loaded, and where the target is being received into.
    pub async fn begin_corrective(
        &self,
        target: ReceiveTarget,
    ) -> Result<Corrective, DatasetError> {
        let full_name = format!("{}@{}", target.name, target.snapshot);
        check_name(&full_name)?;
        let target = Arc::new(target);
        self.note_corrective(&target, Step::Begins).await?;
        let snapshot = match target.is_raw() {
            true => self.dsl.open_raw_snapshot(&full_name).await?,
            false => self.dsl.open_dataset(&full_name).await?,
        };
        // It may have been replaced by another one of its name.
        if snapshot.guid() != target.begin.to_guid {
            return target.refuse(ReceiveObstacle::OtherSnapshot);
        }
        Ok(Corrective { target, snapshot })
    }

    /// Ends a corrective receive: what was written is on disk then.
    ///
    /// # Errors
    /// Those of writing a transaction group.
    pub async fn end_corrective(&self, corrective: Corrective) -> Result<(), DatasetError> {
        let step = Step::Ends(corrective.snapshot.object());
        self.note_corrective(&corrective.target, step).await
    }

    async fn note_corrective(
        &self,
        target: &Arc<ReceiveTarget>,
        step: Step,
    ) -> Result<(), DatasetError> {
        let task = CorrectiveTask {
            dsl: self.dsl.clone(),
            target: target.clone(),
            step,
        };
        self.dsl.tasks().run(Arc::new(task)).await
    }
}

#[derive(Clone, Copy)]
enum Step {
    Begins,
    /// The snapshot, which may have another name by now.
    Ends(ObjectId),
}

/// Checks the target, and notes in the history what is done.
struct CorrectiveTask {
    dsl: Arc<DslPool>,
    target: Arc<ReceiveTarget>,
    step: Step,
}

impl CorrectiveTask {
    async fn snapshot(&self) -> Result<Arc<Ds>, DatasetError> {
        let (directories, target) = (self.dsl.directories(), &self.target);
        if let Step::Ends(object) = self.step {
            return directories.dataset(object).await;
        }
        let head = match directories.resolve(&target.name).await {
            Err(DatasetError::NotFound { .. }) => {
                return target.refuse(ReceiveObstacle::NothingToHeal);
            }
            head => head?,
        };
        match directories.snapshot_of(&head, &target.snapshot).await? {
            Some(snapshot) => Ok(snapshot),
            None => target.refuse(ReceiveObstacle::NothingToHeal),
        }
    }

    async fn do_check(&self) -> Result<(), DatasetError> {
        let (dsl, target) = (&self.dsl, &self.target);
        if let Step::Ends(_) = self.step {
            return self.snapshot().await.map(|_| ());
        }
        let begin = BeginTask {
            dsl: dsl.clone(),
            target: target.clone(),
            begun: Mutex::default(),
        };
        begin.check_features()?;
        let snapshot = self.snapshot().await?;
        let head = dsl.directories().resolve(&target.name).await?;
        let hidden = dsl.directories().child_dir(&head.dir(), CLONE_NAME).await?;
        if hidden.is_some() || head.is_inconsistent() {
            return target.refuse(ReceiveObstacle::UnderWay);
        }
        let kind = dsl.directories().objset_kind(&head).await?;
        if target.begin.kind() != Some(kind) || target.force {
            return target.refuse(ReceiveObstacle::BadStream);
        }
        if snapshot.phys().guid != target.begin.to_guid {
            return target.refuse(ReceiveObstacle::OtherSnapshot);
        }
        let is_encrypted = snapshot.is_encrypted();
        if is_encrypted && target.has(StreamFeatures::EMBED_DATA) {
            return target.refuse(ReceiveObstacle::Encrypted);
        }
        if target.is_raw() {
            return match is_encrypted {
                true => Ok(()),
                false => target.refuse(ReceiveObstacle::NotEncrypted),
            };
        }
        match dsl.keys().ensure(&snapshot).await {
            Err(DatasetError::KeyNotLoaded { .. }) => target.refuse(ReceiveObstacle::NeedsKey),
            ensured => ensured,
        }
    }
}

impl SyncTask for CorrectiveTask {
    fn name(&self) -> &'static str {
        "corrective receive"
    }
    fn space_check(&self) -> SpaceCheck {
        SpaceCheck::Reserved
    }
    fn check<'a>(&'a self, _ctx: &'a SyncContext) -> BoxFuture<'a, Result<(), DatasetError>> {
        Box::pin(self.do_check())
    }
    fn apply<'a>(&'a self, ctx: &'a SyncContext) -> BoxFuture<'a, Result<(), DatasetError>> {
        Box::pin(async {
            let snapshot = self.snapshot().await?;
            let name = self.dsl.directories().full_name(&snapshot).await?;
            let (what, text) = match self.step {
                Step::Begins => ("receive", " ".to_owned()),
                Step::Ends(_) => ("finish receiving", format!("snap={}", self.target.snapshot)),
            };
            (self.dsl)
                .history(ctx, what, name, snapshot.object, text)
                .await
        })
    }
}
