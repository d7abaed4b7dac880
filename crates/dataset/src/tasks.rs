//! Sync tasks: the queue of changes to the pool's own state, and running them.
//!
//! Whoever wants something changed queues a task for the open transaction group and waits
//! ([`Tasks::run`]). The sync loop runs the tasks of a group one after the other, alone with the
//! namespace (`DslPool::config`), and answers when the group is on disk. The queue's lock is short.
//! A crash leaves nothing of a task whose group is not on disk; nobody was told otherwise.

use std::sync::Arc;

use device::BoxFuture;
use format::Txg;
use object::SyncContext;
use tokio::sync::oneshot;
use zio::pipeline::may_fail;

use crate::DatasetError;
use crate::dsl::DslPool;
use crate::state::QueuedTask;
use crate::task::{SpaceCheck, SyncTask};
use crate::unbound::carried;

/// Bytes of a block that a sync task writes, on average (`DST_AVG_BLKSHIFT`).
const TASK_BLOCK_BYTES: u64 = 16 << 10;
/// Copies of such a block.
const TASK_COPIES: u64 = 3;

/// Txgs that a task waits for freed space to become usable, where it would have room with it.
const SPACE_TRIES_MAX: u32 = 8;

/// Whether there is room for a task.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum TaskRoom {
    Fits,
    /// In the next txg, but for what those before it in this one may take.
    Later,
    /// Once what was freed lately can be used.
    Deferred,
    None,
}

/// Sync tasks: [`DslPool::tasks`].
#[derive(Clone, Copy)]
pub struct Tasks<'a> {
    pub(crate) dsl: &'a Arc<DslPool>,
}

impl DslPool {
    /// Sync tasks.
    pub fn tasks(self: &Arc<Self>) -> Tasks<'_> {
        Tasks { dsl: self }
    }
}

impl Tasks<'_> {
    /// Notes in the pool's history what was done to a dataset in open context
    /// (`spa_history_log_internal_ds`).
    ///
    /// # Errors
    /// [`DatasetError::NotFound`], and where the pool is left.
    pub async fn note(
        &self,
        name: &str,
        event: &'static str,
        text: String,
    ) -> Result<(), DatasetError> {
        let task = NoteTask {
            dsl: self.dsl.clone(),
            name: name.to_owned(),
            event,
            text,
        };
        self.run(Arc::new(task)).await
    }

    /// Runs tasks of a transaction group, in syncing context, under the lock of the namespace.
    pub(crate) async fn run_queue(
        &self,
        ctx: &SyncContext,
        queue: Vec<QueuedTask>,
    ) -> Result<(), DatasetError> {
        self.dsl.tasks.begin();
        for queued in queue {
            self.run_queued(ctx, queued).await?;
        }
        Ok(())
    }

    /// Runs the tasks of a txg that want to be first ([`SyncTask::is_early`]): before any block is
    /// freed or written.
    ///
    /// # Errors
    /// As [`Self::sync_pass`].
    pub async fn run_early(&self, ctx: &SyncContext) -> Result<(), DatasetError> {
        let early = self.dsl.tasks.take_early(ctx.txg);
        if early.is_empty() {
            return Ok(());
        }
        let _config = self.dsl.config.write().await;
        self.run_queue(ctx, early).await
    }

    async fn run_queued(&self, ctx: &SyncContext, queued: QueuedTask) -> Result<(), DatasetError> {
        // Nobody wants it any more: whoever asked was killed, or did not wait for a suspended pool.
        if queued.answer.is_closed() {
            return Ok(());
        }
        let room = self.task_room(&*queued.task);
        if room == TaskRoom::Later || room == TaskRoom::Deferred && queued.tries < SPACE_TRIES_MAX {
            let tries = queued.tries + u32::from(room == TaskRoom::Deferred);
            self.put_off(ctx, QueuedTask { tries, ..queued });
            return Ok(());
        }
        let QueuedTask { task, answer, .. } = queued;
        let checked = match room {
            // What it cannot read is refused: only what is applied must succeed.
            TaskRoom::Fits => may_fail(task.check(ctx)).await,
            TaskRoom::Later | TaskRoom::Deferred | TaskRoom::None => Err(DatasetError::NoSpace {
                name: self.dsl.pool_name(),
            }),
        };
        if let Err(error) = checked {
            let _ = answer.send(Err(error));
            return Ok(());
        }
        task.apply(ctx).await.inspect_err(|error| {
            tracing::error!(task = task.name(), %error, "a sync task failed while applied");
        })?;
        self.take_space(&*task);
        self.dsl.tasks.add_done(ctx.txg, answer);
        Ok(())
    }

    /// What a task may take on disk, at worst.
    fn task_bytes(&self, task: &dyn SyncTask) -> u64 {
        let allocator = self.dsl.env().pipeline.allocator();
        let block_bytes = allocator.worst_deflated_bytes(TASK_BLOCK_BYTES);
        task.blocks()
            .saturating_mul(TASK_COPIES * block_bytes.max(TASK_BLOCK_BYTES))
    }

    /// Notes that a task was run which has taken space. What may go beyond what all may use frees
    /// space in the end, and must not wait for others of its kind.
    pub(crate) fn take_space(&self, task: &dyn SyncTask) {
        if task.space_check() == SpaceCheck::Normal {
            self.dsl.tasks.take_space(self.task_bytes(task));
        }
    }

    /// Whether a task finds room beside those before it in this txg; freed space cannot be used for
    /// some txgs.
    pub(crate) fn task_room(&self, task: &dyn SyncTask) -> TaskRoom {
        let check = task.space_check();
        if check == SpaceCheck::None {
            return TaskRoom::Fits;
        }
        let needed_bytes = self.task_bytes(task);
        let taken_bytes = self.dsl.tasks.taken_bytes();
        let used = self.dsl.directories().root_dir().state().phys.used_bytes;
        let wanted = used.saturating_add(needed_bytes);
        let room = self.dsl.space().unreserved_space(check);
        if wanted <= room {
            match check == SpaceCheck::Normal && wanted.saturating_add(taken_bytes) > room {
                true => TaskRoom::Later,
                false => TaskRoom::Fits,
            }
        } else if wanted <= self.dsl.space().adjusted_size(check) {
            TaskRoom::Deferred
        } else {
            TaskRoom::None
        }
    }

    /// What a task may take of the space that its check is about, at worst; nothing where it has
    /// none.
    pub(crate) fn checked_bytes(&self, task: &dyn SyncTask) -> u64 {
        match task.space_check() {
            SpaceCheck::None => 0,
            _ => self.task_bytes(task),
        }
    }

    /// Whether a task finds room beside others in this txg that may take so much, of whatever kind
    /// they are.
    pub(crate) fn fits_beside(&self, task: &dyn SyncTask, taken_bytes: u64) -> bool {
        let check = task.space_check();
        if check == SpaceCheck::None {
            return true;
        }
        let used = self.dsl.directories().root_dir().state().phys.used_bytes;
        let needed_bytes = self.task_bytes(task).saturating_add(taken_bytes);
        used.saturating_add(needed_bytes) <= self.dsl.space().unreserved_space(check)
    }

    /// Has a task run in the next txg, which is not being written yet, and comes at once.
    fn put_off(&self, ctx: &SyncContext, queued: QueuedTask) {
        if self.dsl.tasks.add(ctx.txg.next(), queued) {
            self.dsl.env().txgs.kick();
        }
    }

    /// Answers those who wait for the sync tasks of a txg that is on disk: last of all, as they
    /// then see the pool without further waiting (its size after `zpool add`).
    pub fn answer(&self, txg: Txg) {
        for answer in self.dsl.tasks.take_done(txg) {
            let _ = answer.send(Ok(()));
        }
    }

    /// Everything is over: those who wait get an error.
    pub fn close(&self) {
        self.dsl.tasks.close();
    }

    /// From now on, who wants something of a suspended pool hears so at once instead of waiting (as
    /// OpenZFS's `POOL_CHECK_SUSPENDED`, module/zfs/zfs_ioctl.c).
    pub fn refuse_while_suspended(&self) {
        self.dsl.tasks.refuse_while_suspended();
    }

    /// Queues a task for the open txg and waits until it is on disk.
    ///
    /// # Errors
    /// What its check says; [`DatasetError::Closed`] when the pool closes before it is on disk;
    /// [`DatasetError::Pool`] at once when the pool is suspended, where
    /// [`Self::refuse_while_suspended`] says so. One that is under way then waits.
    pub async fn run(&self, task: Arc<dyn SyncTask>) -> Result<(), DatasetError> {
        if self.dsl.env().read_only {
            return Err(DatasetError::ReadOnly {
                name: self.dsl.pool_name(),
                reason: "the pool was imported read-only; import it for writing",
            });
        }
        let refuses = self.dsl.tasks.refuses_while_suspended();
        if let Some(error) = self
            .dsl
            .env()
            .pipeline
            .suspension()
            .error()
            .filter(|_| refuses)
        {
            return Err(error.into());
        }
        let (answer, answered) = oneshot::channel();
        let tx = self.dsl.env().txgs.assign(0).await?;
        let queued = QueuedTask {
            task: carried(task),
            tries: 0,
            answer,
        };
        if !self.dsl.tasks.add(tx.txg(), queued) {
            return Err(DatasetError::Closed);
        }
        self.dsl.env().txgs.kick();
        drop(tx);
        answered.await.unwrap_or(Err(DatasetError::Closed))
    }
}

struct NoteTask {
    dsl: Arc<DslPool>,
    name: String,
    event: &'static str,
    text: String,
}

impl SyncTask for NoteTask {
    fn name(&self) -> &'static str {
        "note"
    }
    fn check<'a>(&'a self, _ctx: &'a SyncContext) -> BoxFuture<'a, Result<(), DatasetError>> {
        Box::pin(async {
            self.dsl.directories().resolve(&self.name).await?;
            Ok(())
        })
    }
    fn apply<'a>(&'a self, ctx: &'a SyncContext) -> BoxFuture<'a, Result<(), DatasetError>> {
        Box::pin(async {
            let dataset = self.dsl.directories().resolve(&self.name).await?;
            let (name, text) = (self.name.clone(), self.text.clone());
            self.dsl
                .history(ctx, self.event, name, dataset.object, text)
                .await
        })
    }
}
