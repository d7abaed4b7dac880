//! Writing a dataset with a transaction group, in the first pass of the sync or in a sync task.
//!
//! Each block that is written is reported to the dataset's [accounts](crate::account). Once all are
//! written, dead blocks that a snapshot has go to the deadlist, and what is kept beside the blocks
//! (bookmarks, livelist, how far a receive came, features in use) is stored. Structures that
//! changed go into the bonuses of their MOS objects.

use std::sync::Arc;

use device::BoxFuture;
use format::{ObjsetKind, Txg};
use object::SyncContext;
use zil::ChainChange;
use zio::Tx;

use crate::DatasetError;
use crate::account::HeadAccounting;
use crate::dsl::DslPool;
use crate::features::guid;
use crate::state::{Dir, DirtyItem, Ds, set_once};

/// Writing a transaction group: [`DslPool::syncer`].
#[derive(Clone, Copy)]
pub struct Syncer<'a> {
    pub(crate) dsl: &'a Arc<DslPool>,
}

impl DslPool {
    /// Writing transaction groups: for the sync loop.
    pub fn syncer(self: &Arc<Self>) -> Syncer<'_> {
        Syncer { dsl: self }
    }
}

impl<'a> Syncer<'a> {
    pub(crate) fn set_mos_dir(&self, dir: Arc<Dir>) {
        set_once(&self.dsl.sync_state.mos_dir, dir);
    }

    /// Writes one dirty dataset's object set.
    pub(crate) async fn write_dataset(
        &self,
        ctx: &SyncContext,
        head: &Arc<Ds>,
    ) -> Result<(), DatasetError> {
        let open = head.open.lock().clone();
        let Some(open) = open else { return Ok(()) };
        if let Some(log) = &open.log {
            log.sync(ctx).await;
        }
        let accounting = HeadAccounting {
            pipeline: &self.dsl.env().pipeline,
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
    pub(crate) fn sync_dataset_now<'b>(
        &'b self,
        ctx: &'b SyncContext,
        head: &'b Arc<Ds>,
    ) -> BoxFuture<'b, Result<(), DatasetError>> {
        Box::pin(async move {
            let mut others = self.dsl.sync_state.datasets.take(ctx.txg);
            others.retain(|other| !Arc::ptr_eq(other, head));
            for other in others {
                self.dsl.sync_state.datasets.add(ctx.txg, other);
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
            self.dsl
                .deadlists()
                .of(head)
                .await?
                .insert(&self.dsl.lists, ctx, &dead)
                .await?;
        }
        self.dsl.receives().save(ctx, head).await?;
        self.dsl.bookmarks().save(ctx, head).await?;
        self.dsl.deadlists().flush_livelist(ctx, head).await?;
        self.log_changed(ctx, head).await?;
        let activating = std::mem::take(&mut head.state().activating);
        for feature in activating {
            if head.state().features.contains_key(feature) {
                continue;
            }
            self.dsl
                .activate_feature(ctx, head, feature, object::ZapValue::from_u64(0))
                .await?;
        }
        Ok(())
    }

    /// Feature `zilsaxattr` is active for a filesystem while it has a log (`zil_create`,
    /// `zil_sync`).
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
                self.dsl
                    .deactivate_feature(ctx, head, guid::ZILSAXATTR)
                    .await?;
            }
            _ => {}
        }
        Ok(())
    }

    /// Writes every changed structure into the bonus of its object.
    pub(crate) async fn flush_structures(&self, ctx: &SyncContext) -> Result<(), DatasetError> {
        let tx = Tx::syncing(ctx.txg);
        for item in self.dsl.sync_state.queue.take() {
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
                    let held = self.dsl.mos().hold(dir.object).await?;
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
                    let held = self.dsl.mos().hold(dataset.object).await?;
                    held.set_bonus(&tx, phys.to_vec())?;
                }
            }
        }
        Ok(())
    }

    /// Lets go of a dataset's object set that nobody uses and that is clean.
    pub(crate) fn close_if_idle(&self, dataset: &Arc<Ds>) {
        if dataset.hold_count() > 0 || dataset.opening.try_lock().is_err() {
            return;
        }
        let mut open = dataset.open.lock();
        let idle = open.as_ref().is_some_and(|open| {
            let newest = self.dsl.env().txgs.open_txg();
            let is_dirty = [newest.get(), newest.get().saturating_sub(1)]
                .iter()
                .any(|txg| open.objset.is_dirty(Txg::new(*txg)));
            !is_dirty && open.log.as_ref().is_none_or(|log| log.is_idle())
        });
        if idle && dataset.hold_count() == 0 {
            *open = None;
        }
    }
}
