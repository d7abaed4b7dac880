//! Syncing: what the sync loop calls for each pass of a transaction group.
//!
//! # A pass of syncing
//! In pass 1: dirty datasets are [written](crate::write), several at a time; then the queued sync
//! tasks, one after the other; then a bounded piece of background freeing. In every pass:
//! changed structures go into the bonuses of their MOS objects, and the MOS is written.

use format::{Txg, UsedBy};
use futures::stream::{FuturesUnordered, StreamExt};
use object::SyncContext;

use crate::DatasetError;
use crate::account::MosAccounting;
use crate::write::Syncer;

/// Datasets written at the same time.
const SYNC_DATASETS_MAX: usize = 8;

impl Syncer<'_> {
    /// Whether `txg` has anything to write, or background work waits.
    pub fn has_dirty(&self, txg: Txg) -> bool {
        !self.dsl.sync_state.datasets.is_empty(txg)
            || self.dsl.tasks.has_queued(txg)
            || self.dsl.mos().is_dirty(txg)
            || !self.dsl.sync_state.queue.is_empty()
            || self.dsl.destroyer().has_work()
    }

    /// One pass of syncing a txg (`dsl_pool_sync`): in pass 1 dirty datasets, then sync tasks and
    /// background frees; in every pass the MOS, when dirty.
    ///
    /// # Errors
    /// Of reading and writing: the txg cannot be synced, and the pool should be suspended.
    pub async fn pass(&self, ctx: &SyncContext) -> Result<(), DatasetError> {
        if ctx.pass == 1 {
            self.sync_datasets(ctx).await?;
            self.run_tasks(ctx).await?;
            self.sync_datasets(ctx).await?;
            self.dsl.destroyer().free_some(ctx).await?;
        }
        let delta = std::mem::take(&mut *self.dsl.sync_state.mos_delta.lock());
        if let Some(mos_dir) = self.dsl.sync_state.mos_dir.get() {
            mos_dir.did_use(UsedBy::Head, delta);
        }
        self.flush_structures(ctx).await?;
        if self.dsl.mos().is_dirty(ctx.txg) {
            let accounting = MosAccounting {
                pipeline: &self.dsl.env().pipeline,
                txg: ctx.txg,
                delta: &self.dsl.sync_state.mos_delta,
            };
            self.dsl.mos().sync(ctx, &accounting).await?;
        }
        Ok(())
    }

    /// Runs the tasks of a transaction group. The first one after an import releases the holds of
    /// sends before.
    async fn run_tasks(&self, ctx: &SyncContext) -> Result<(), DatasetError> {
        let queued = self.dsl.tasks.take(ctx.txg);
        let interrupted = self.dsl.holds().take_interrupted();
        if queued.is_empty() && !interrupted {
            return Ok(());
        }
        let _config = self.dsl.config.write().await;
        if interrupted {
            self.dsl.holds().release_temporary(ctx).await?;
        }
        self.dsl.tasks().run_queue(ctx, queued).await
    }

    async fn sync_datasets(&self, ctx: &SyncContext) -> Result<(), DatasetError> {
        let dirty = self.dsl.sync_state.datasets.take(ctx.txg);
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

    /// The txg is on disk: forgets what it kept for it, and what was dirty in memory may be given
    /// back. [`crate::Tasks::answer`] comes later.
    pub fn done(&self, txg: Txg) {
        let registry = &self.dsl.registry;
        self.dsl.sync_state.granted.forget(txg);
        for dataset in registry.open_datasets() {
            if let Some(log) = dataset.open_log() {
                log.clean(txg);
            }
            self.close_if_idle(&dataset);
        }
        registry.forget_idle();
        let pipeline = &self.dsl.env().pipeline;
        pipeline.cache().charge().settle_again();
    }
}
