//! Syncing: what the sync loop calls for each pass of a txg, and the queue of sync tasks.
//!
//! # A pass of syncing
//! In pass 1: dirty datasets are written, several at a time, each block reported to its
//! [accounts](crate::account); dead blocks that a snapshot has go to deadlists; then the queued
//! sync tasks, one after the other; then a bounded piece of background freeing. In every pass:
//! changed structures go into the bonuses of their MOS objects, and the MOS is written.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use device::BoxFuture;
use format::{ObjectId, ObjectType, ObjsetKind, Txg, UsedBy};
use futures::stream::{FuturesUnordered, StreamExt};
use object::{SyncContext, Zap};
use tokio::sync::oneshot;
use zio::Tx;

use crate::DatasetError;
use crate::account::{HeadAccounting, MosAccounting};
use crate::dsl::{DslPool, slot};
use crate::features::guid;
use crate::state::{Dir, DirtyItem, Ds};
use crate::task::{SpaceCheck, SyncTask};
use zil::ChainChange;

/// Datasets written at the same time.
const SYNC_DATASETS_MAX: usize = 8;
/// Datasets kept in memory although nobody uses them.
const IDLE_DATASETS_MAX: usize = 8192;
/// Space that a sync task may need, for the check before it (`DST_AVG_BLKSHIFT`).
const TASK_SPACE_BYTES: u64 = 8 << 14;

/// Txgs that a task waits for freed space to become usable, where it would have room with it.
const SPACE_TRIES_MAX: u32 = 8;

pub(crate) struct QueuedTask {
    task: Arc<dyn SyncTask>,
    /// How often it was put off to the next txg.
    tries: u32,
    answer: oneshot::Sender<Result<(), DatasetError>>,
}

/// Whether there is room for a task.
#[derive(Clone, Copy, PartialEq, Eq)]
enum TaskRoom {
    Fits,
    /// Once what was freed lately can be used.
    Deferred,
    None,
}

#[derive(Default)]
pub(crate) struct Tasks {
    queued: [Vec<QueuedTask>; 2],
    done: [Vec<oneshot::Sender<Result<(), DatasetError>>>; 2],
    is_closed: bool,
    /// Refuse tasks while the pool is suspended.
    refuses: bool,
}

impl DslPool {
    /// Whether `txg` has anything to write, or background work waits.
    pub fn has_dirty(&self, txg: Txg) -> bool {
        !self.dirty_datasets.is_empty(txg)
            || !self.tasks.lock().queued[slot(txg)].is_empty()
            || self.mos().is_dirty(txg)
            || !self.queue.is_empty()
            || self.has_background_work()
    }

    /// One pass of syncing a txg (`dsl_pool_sync`): in pass 1 dirty datasets, then sync tasks and
    /// background frees; in every pass the MOS, when dirty.
    ///
    /// # Errors
    /// Of reading and writing: the txg cannot be synced, and the pool should be suspended.
    pub async fn sync_pass(self: &Arc<Self>, ctx: &SyncContext) -> Result<(), DatasetError> {
        if ctx.pass == 1 {
            self.sync_datasets(ctx).await?;
            self.run_tasks(ctx).await?;
            self.sync_datasets(ctx).await?;
            self.free_in_background(ctx).await?;
        }
        let delta = std::mem::take(&mut *self.mos_delta.lock());
        if let Some(mos_dir) = self.mos_dir.get() {
            mos_dir.did_use(UsedBy::Head, delta);
        }
        self.flush_structures(ctx).await?;
        if self.mos().is_dirty(ctx.txg) {
            let accounting = MosAccounting {
                pipeline: &self.env().pipeline,
                txg: ctx.txg,
                delta: &self.mos_delta,
            };
            self.mos().sync(ctx, &accounting).await?;
        }
        Ok(())
    }

    async fn sync_datasets(self: &Arc<Self>, ctx: &SyncContext) -> Result<(), DatasetError> {
        let dirty = self.dirty_datasets.take(ctx.txg);
        let mut waiting = dirty.iter();
        let mut running = FuturesUnordered::new();
        for head in waiting.by_ref().take(SYNC_DATASETS_MAX) {
            running.push(self.write_dataset(ctx, head));
        }
        while let Some(result) = running.next().await {
            result?;
            if let Some(head) = waiting.next() {
                running.push(self.write_dataset(ctx, head));
            }
        }
        drop(running);
        for head in &dirty {
            self.dataset_written(ctx, head).await?;
        }
        Ok(())
    }

    /// Writes one dirty dataset's object set.
    async fn write_dataset(&self, ctx: &SyncContext, head: &Arc<Ds>) -> Result<(), DatasetError> {
        let open = head.open.lock().clone();
        let Some(open) = open else { return Ok(()) };
        if let Some(log) = &open.log {
            log.sync(ctx).await;
        }
        let accounting = HeadAccounting {
            pipeline: &self.env().pipeline,
            txg: ctx.txg,
            head,
        };
        let root = open.objset.sync(ctx, &accounting).await?;
        head.change(|state| state.phys.block = root);
        if open.objset.used_large_dnodes() {
            head.state().activating.insert(guid::LARGE_DNODE);
        }
        // `zfs_link_create` (module/os/linux/zfs/zfs_dir.c).
        if open.objset.used_long_names() {
            head.state().activating.insert(guid::LONGNAME);
        }
        Ok(())
    }

    /// Writes a dataset in the middle of a sync task.
    pub(crate) fn sync_dataset_now<'a>(
        &'a self,
        ctx: &'a SyncContext,
        head: &'a Arc<Ds>,
    ) -> BoxFuture<'a, Result<(), DatasetError>> {
        Box::pin(async move {
            let mut others = self.dirty_datasets.take(ctx.txg);
            others.retain(|other| !Arc::ptr_eq(other, head));
            for other in others {
                self.dirty_datasets.add(ctx.txg, other);
            }
            self.write_dataset(ctx, head).await?;
            self.dataset_written(ctx, head).await
        })
    }

    /// What is left to do for a dataset after its blocks are written (`dsl_dataset_sync_done`).
    pub(crate) async fn dataset_written(
        &self,
        ctx: &SyncContext,
        head: &Arc<Ds>,
    ) -> Result<(), DatasetError> {
        let dead = std::mem::take(&mut head.state().dead);
        if !dead.is_empty() {
            self.deadlist(head).await?.insert(self, ctx, &dead).await?;
        }
        self.save_bookmarks(ctx, head).await?;
        self.remove_livelist(ctx, &head.dir()).await?;
        self.log_changed(ctx, head).await?;
        let activating = std::mem::take(&mut head.state().activating);
        for feature in activating {
            if head.state().features.contains_key(feature) {
                continue;
            }
            self.activate_feature(ctx, head, feature, object::ZapValue::from_u64(0))
                .await?;
        }
        Ok(())
    }

    /// Feature `zilsaxattr` is active for a filesystem while it has a log (`zil_create`, `zil_sync`).
    async fn log_changed(&self, ctx: &SyncContext, head: &Arc<Ds>) -> Result<(), DatasetError> {
        let open = head.open.lock().clone();
        let Some(open) = open else { return Ok(()) };
        match open.log.as_ref().and_then(|log| log.take_change()) {
            Some(ChainChange::Created) if open.objset.kind() != ObjsetKind::Volume => {
                head.state().activating.insert(guid::ZILSAXATTR);
            }
            Some(ChainChange::Destroyed)
                if head.state().features.contains_key(guid::ZILSAXATTR) =>
            {
                self.deactivate_feature(ctx, head, guid::ZILSAXATTR).await?;
            }
            _ => {}
        }
        Ok(())
    }

    /// Writes every changed structure into the bonus of its object.
    pub(crate) async fn flush_structures(&self, ctx: &SyncContext) -> Result<(), DatasetError> {
        let tx = Tx::syncing(ctx.txg);
        for item in self.queue.take() {
            match item {
                DirtyItem::Dir(dir) => {
                    let phys = {
                        let mut state = dir.state();
                        state.is_dirty = false;
                        if state.is_gone {
                            continue;
                        }
                        state.phys.encode()
                    };
                    let held = self.mos().hold(dir.object).await?;
                    held.set_bonus(&tx, phys.to_vec())?;
                }
                DirtyItem::Dataset(dataset) => {
                    let phys = {
                        let mut state = dataset.state();
                        state.is_dirty = false;
                        if state.is_gone {
                            continue;
                        }
                        state.phys.encode()
                    };
                    let held = self.mos().hold(dataset.object).await?;
                    held.set_bonus(&tx, phys.to_vec())?;
                }
            }
        }
        Ok(())
    }

    async fn run_tasks(self: &Arc<Self>, ctx: &SyncContext) -> Result<(), DatasetError> {
        let queued = std::mem::take(&mut self.tasks.lock().queued[slot(ctx.txg)]);
        let interrupted = self.has_temporary_holds.swap(false, Ordering::AcqRel);
        if queued.is_empty() && !interrupted {
            return Ok(());
        }
        let _config = self.config.write().await;
        if interrupted {
            self.release_temporary_holds(ctx).await?;
        }
        for queued in queued {
            self.run_queued(ctx, queued).await?;
        }
        Ok(())
    }

    /// Runs the tasks of a txg that want to be first ([`SyncTask::is_early`]): before any block is freed or written.
    ///
    /// # Errors
    /// As [`Self::sync_pass`].
    pub async fn run_early_tasks(self: &Arc<Self>, ctx: &SyncContext) -> Result<(), DatasetError> {
        let early: Vec<QueuedTask> = {
            let mut tasks = self.tasks.lock();
            let queued = &mut tasks.queued[slot(ctx.txg)];
            queued
                .extract_if(.., |queued| queued.task.is_early())
                .collect()
        };
        if early.is_empty() {
            return Ok(());
        }
        let _config = self.config.write().await;
        for queued in early {
            self.run_queued(ctx, queued).await?;
        }
        Ok(())
    }

    async fn run_queued(
        self: &Arc<Self>,
        ctx: &SyncContext,
        queued: QueuedTask,
    ) -> Result<(), DatasetError> {
        // Nobody wants it any more: whoever asked was killed, or did not wait for a suspended pool.
        if queued.answer.is_closed() {
            return Ok(());
        }
        let room = self.task_room(queued.task.space_check());
        if room == TaskRoom::Deferred && queued.tries < SPACE_TRIES_MAX {
            self.put_off(ctx, queued);
            return Ok(());
        }
        let QueuedTask { task, answer, .. } = queued;
        let checked = match room {
            TaskRoom::Fits => task.check(ctx).await,
            TaskRoom::Deferred | TaskRoom::None => Err(DatasetError::NoSpace {
                name: self.pool_name(),
            }),
        };
        if let Err(error) = checked {
            let _ = answer.send(Err(error));
            return Ok(());
        }
        task.apply(ctx).await.inspect_err(|error| {
            tracing::error!(task = task.name(), %error, "a sync task failed while applied");
        })?;
        self.tasks.lock().done[slot(ctx.txg)].push(answer);
        Ok(())
    }

    /// Whether a task finds room; freed space cannot be used for some txgs.
    fn task_room(&self, check: SpaceCheck) -> TaskRoom {
        if check == SpaceCheck::None {
            return TaskRoom::Fits;
        }
        let used = self.root_dir().state().phys.used_bytes;
        let wanted = used.saturating_add(TASK_SPACE_BYTES);
        if wanted <= self.unreserved_space(check) {
            TaskRoom::Fits
        } else if wanted <= self.adjusted_size(check) {
            TaskRoom::Deferred
        } else {
            TaskRoom::None
        }
    }

    /// Has a task run in the next txg, which is not being written yet, and comes at once.
    fn put_off(&self, ctx: &SyncContext, mut queued: QueuedTask) {
        queued.tries += 1;
        let mut tasks = self.tasks.lock();
        if !tasks.is_closed {
            tasks.queued[slot(ctx.txg.next())].push(queued);
            self.env().txgs.kick();
        }
    }

    /// The txg is on disk: forgets what it kept for it. [`Self::answer_tasks`] comes later.
    pub fn sync_done(&self, txg: Txg) {
        let mut registry = self.registry.lock();
        for dir in registry.dirs.values() {
            dir.state().to_write[slot(txg)] = 0;
        }
        let open: Vec<Arc<Ds>> = registry.datasets.values().cloned().collect();
        for dataset in &open {
            let log = dataset
                .open
                .lock()
                .as_ref()
                .and_then(|open| open.log.clone());
            if let Some(log) = log {
                log.clean(txg);
            }
            self.close_if_idle(dataset);
        }
        drop(open);
        if registry.datasets.len() > IDLE_DATASETS_MAX {
            registry.datasets.retain(|_, dataset| {
                Arc::strong_count(dataset) > 1
                    || dataset.open.lock().is_some()
                    || dataset.state().is_dirty
            });
        }
    }

    /// Answers those who wait for the sync tasks of a txg that is on disk: last of all, as they then see the pool
    /// without further waiting (its size after `zpool add`).
    pub fn answer_tasks(&self, txg: Txg) {
        let done = std::mem::take(&mut self.tasks.lock().done[slot(txg)]);
        for answer in done {
            let _ = answer.send(Ok(()));
        }
    }

    /// Lets go of a dataset's object set that nobody uses and that is clean.
    pub(crate) fn close_if_idle(&self, dataset: &Arc<Ds>) {
        if dataset.hold_count() > 0 || dataset.opening.try_lock().is_err() {
            return;
        }
        let mut open = dataset.open.lock();
        let idle = open.as_ref().is_some_and(|open| {
            let newest = self.env().txgs.open_txg();
            let is_dirty = [newest.get(), newest.get().saturating_sub(1)]
                .iter()
                .any(|txg| open.objset.is_dirty(Txg::new(*txg)));
            !is_dirty && open.log.as_ref().is_none_or(|log| log.is_idle())
        });
        if idle && dataset.hold_count() == 0 {
            *open = None;
        }
    }

    /// Everything is over: those who wait get an error.
    pub fn close(&self) {
        let mut tasks = self.tasks.lock();
        tasks.is_closed = true;
        tasks.queued = Default::default();
        tasks.done = Default::default();
    }

    /// From now on, who wants something of a suspended pool hears so at once instead of waiting (as OpenZFS's
    /// `POOL_CHECK_SUSPENDED`, module/zfs/zfs_ioctl.c).
    pub fn refuse_while_suspended(&self) {
        self.tasks.lock().refuses = true;
    }

    /// Queues a task for the open txg and waits until it is on disk.
    ///
    /// # Errors
    /// What its check says; [`DatasetError::Closed`] when the pool closes before it is on disk;
    /// [`DatasetError::Pool`] at once when the pool is suspended, where [`Self::refuse_while_suspended`] says so. One
    /// that is under way then waits.
    pub async fn run_task(self: &Arc<Self>, task: Arc<dyn SyncTask>) -> Result<(), DatasetError> {
        if self.env().read_only {
            return Err(DatasetError::ReadOnly {
                name: self.pool_name(),
                reason: "the pool was imported read-only; import it for writing",
            });
        }
        let refuses = self.tasks.lock().refuses;
        if let Some(error) = self.env().pipeline.suspended().filter(|_| refuses) {
            return Err(error.into());
        }
        let (answer, answered) = oneshot::channel();
        let tx = self.env().txgs.assign(0).await?;
        {
            let mut tasks = self.tasks.lock();
            if tasks.is_closed {
                return Err(DatasetError::Closed);
            }
            tasks.queued[slot(tx.txg())].push(QueuedTask {
                task,
                tries: 0,
                answer,
            });
        }
        self.env().txgs.kick();
        drop(tx);
        answered.await.unwrap_or(Err(DatasetError::Closed))
    }

    /// Adds a marker of a feature to a dataset (`dsl_dataset_activate_feature`).
    pub(crate) async fn activate_feature(
        &self,
        ctx: &SyncContext,
        dataset: &Arc<Ds>,
        feature: &str,
        value: object::ZapValue,
    ) -> Result<(), DatasetError> {
        if !self.features().is_enabled(feature) {
            // Old pools write without the marker what needs none.
            tracing::debug!(feature, "used although it is not enabled");
            return Ok(());
        }
        self.features().increment(ctx, feature).await?;
        let zap = self.zapify_dataset(ctx, dataset).await?;
        zap.add(&Tx::syncing(ctx.txg), feature, value.clone())
            .await?;
        dataset.state().features.insert(feature.to_owned(), value);
        Ok(())
    }

    /// Removes a marker of a feature (`dsl_dataset_deactivate_feature`).
    pub(crate) async fn deactivate_feature(
        &self,
        ctx: &SyncContext,
        dataset: &Arc<Ds>,
        feature: &str,
    ) -> Result<(), DatasetError> {
        let zap = Zap::hold(self.mos(), dataset.object).await?;
        zap.remove(&Tx::syncing(ctx.txg), feature).await?;
        self.features().decrement(ctx, feature).await?;
        dataset.state().features.remove(feature);
        Ok(())
    }

    /// Makes a dataset's object a ZAP too (`dmu_object_zapify`).
    pub(crate) async fn zapify_dataset(
        &self,
        ctx: &SyncContext,
        dataset: &Arc<Ds>,
    ) -> Result<Zap, DatasetError> {
        if dataset.state().is_zapified {
            return Ok(Zap::hold(self.mos(), dataset.object).await?);
        }
        let zap = self
            .zapify(ctx, dataset.object, ObjectType::DSL_DATASET)
            .await?;
        dataset.state().is_zapified = true;
        Ok(zap)
    }

    /// Makes a directory's object a ZAP too.
    pub(crate) async fn zapify_dir(
        &self,
        ctx: &SyncContext,
        dir: &Arc<Dir>,
    ) -> Result<Zap, DatasetError> {
        if dir.state().is_zapified {
            return Ok(Zap::hold(self.mos(), dir.object).await?);
        }
        let zap = self.zapify(ctx, dir.object, ObjectType::DSL_DIR).await?;
        dir.state().is_zapified = true;
        Ok(zap)
    }

    async fn zapify(
        &self,
        ctx: &SyncContext,
        object: ObjectId,
        old_type: ObjectType,
    ) -> Result<Zap, DatasetError> {
        let zap = Zap::zapify(self.mos(), &Tx::syncing(ctx.txg), object, old_type).await?;
        self.features()
            .increment(ctx, guid::EXTENSIBLE_DATASET)
            .await?;
        Ok(zap)
    }

    /// Frees an object that may have been made a ZAP (`dmu_object_free_zapified`).
    pub(crate) async fn free_zapified(
        &self,
        ctx: &SyncContext,
        object: ObjectId,
        is_zapified: bool,
    ) -> Result<(), DatasetError> {
        if is_zapified {
            self.features()
                .decrement(ctx, guid::EXTENSIBLE_DATASET)
                .await?;
        }
        self.mos().free(&Tx::syncing(ctx.txg), object).await?;
        Ok(())
    }
}
