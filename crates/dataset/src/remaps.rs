//! Remap deadlists: places on removed vdevs that only snapshots refer to any more
//! (module/zfs/dsl_dataset.c, `dsl_dataset_block_remapped`; dsl_destroy.c,
//! `dsl_destroy_snapshot_handle_remaps`).
//!
//! Where OpenZFS writes a pointer to a block that was on a removed vdev, it puts in where the block
//! is now. The mapping is then needed no more, unless a snapshot has the old pointer: then the old
//! place goes to the dataset's remap deadlist, a [`Deadlist`] in the dataset's ZAP whose entries
//! are pointers with nothing but one place and a birth. They move as deadlists do: a snapshot takes
//! its head's, and when it is destroyed, what no other snapshot has is obsolete. Feature
//! `obsolete_counts` counts the lists.
//!
//! We never put in new places, so that lists are made here only to merge others.

use std::sync::Arc;

use format::{ObjectId, Txg, names};
use object::{SyncContext, Zap};
use zio::Tx;

use crate::DatasetError;
use crate::deadlists::Deadlists;
use crate::features::guid;
use crate::state::{Deadlist, Ds};

impl Deadlists<'_> {
    /// A dataset's list, if it has one.
    pub(crate) async fn remap_list(
        &self,
        dataset: &Arc<Ds>,
    ) -> Result<Option<ObjectId>, DatasetError> {
        let possible = self.dsl.features().is_active(guid::OBSOLETE_COUNTS);
        if !possible || !dataset.state().is_zapified {
            return Ok(None);
        }
        let zap = Zap::hold(self.dsl.mos(), dataset.object).await?;
        let object = zap.lookup_u64(names::dataset::REMAP_DEADLIST).await?;
        Ok(object.filter(|object| *object != 0).map(ObjectId::new))
    }

    async fn set_remap_list(
        &self,
        ctx: &SyncContext,
        dataset: &Arc<Ds>,
        list: Option<ObjectId>,
    ) -> Result<(), DatasetError> {
        let tx = Tx::syncing(ctx.txg);
        match list {
            Some(list) => {
                let zap = self.dsl.zapify_dataset(ctx, dataset).await?;
                zap.add_u64(&tx, names::dataset::REMAP_DEADLIST, list.get())
                    .await?;
            }
            None => {
                let zap = Zap::hold(self.dsl.mos(), dataset.object).await?;
                zap.remove(&tx, names::dataset::REMAP_DEADLIST).await?;
            }
        }
        Ok(())
    }

    /// A new snapshot takes over its head's list.
    pub(crate) async fn remaps_snapshotted(
        &self,
        ctx: &SyncContext,
        head: &Arc<Ds>,
        snapshot: &Arc<Ds>,
    ) -> Result<(), DatasetError> {
        if let Some(list) = self.remap_list(head).await? {
            self.set_remap_list(ctx, head, None).await?;
            self.set_remap_list(ctx, snapshot, Some(list)).await?;
        }
        Ok(())
    }

    /// A snapshot goes: what only it had of `next`'s list is obsolete, and `next` takes over its
    /// own. Its deadlist must be merged already.
    pub(crate) async fn remaps_destroyed(
        &self,
        ctx: &SyncContext,
        snapshot: &Arc<Ds>,
        next: &Arc<Ds>,
        after: Txg,
    ) -> Result<(), DatasetError> {
        let of_next = self.remap_list(next).await?;
        if let Some(list) = of_next {
            let mut list = Deadlist::open(self.dsl.mos(), list).await?;
            let pipeline = &self.dsl.env().pipeline;
            for block in list.take(&self.dsl.lists, ctx, after).await? {
                for dva in block.dvas() {
                    let (offset, length) = (dva.offset_bytes(), dva.asize_bytes());
                    pipeline
                        .dvas()
                        .mark_obsolete(ctx.txg, dva.vdev(), offset, length);
                }
            }
        }
        let Some(own) = self.remap_list(snapshot).await? else {
            return Ok(());
        };
        let list = match of_next {
            Some(list) => list,
            None => {
                let keys = self
                    .of(next)
                    .await?
                    .clone_keys(&self.dsl.lists, ctx, Txg::new(u64::MAX), &[])
                    .await?
                    .object();
                self.let_go(next).await;
                self.set_remap_list(ctx, next, Some(keys)).await?;
                self.dsl
                    .features()
                    .increment(ctx, guid::OBSOLETE_COUNTS)
                    .await?;
                keys
            }
        };
        let own = Deadlist::open(self.dsl.mos(), own).await?;
        Deadlist::open(self.dsl.mos(), list)
            .await?
            .absorb(&self.dsl.lists, ctx, own)
            .await?;
        self.forget_remaps(ctx, snapshot).await
    }

    /// The key of a snapshot that was destroyed leaves a dataset's list.
    pub(crate) async fn remove_remaps_key(
        &self,
        ctx: &SyncContext,
        dataset: &Arc<Ds>,
        key: Txg,
    ) -> Result<(), DatasetError> {
        if let Some(list) = self.remap_list(dataset).await? {
            let mut list = Deadlist::open(self.dsl.mos(), list).await?;
            list.remove_key(&self.dsl.lists, ctx, key).await?;
        }
        Ok(())
    }

    /// Frees the list of a dataset that goes.
    pub(crate) async fn destroy_remaps(
        &self,
        ctx: &SyncContext,
        dataset: &Arc<Ds>,
    ) -> Result<(), DatasetError> {
        if let Some(list) = self.remap_list(dataset).await? {
            Deadlist::destroy(&self.dsl.lists, ctx, list).await?;
            self.forget_remaps(ctx, dataset).await?;
        }
        Ok(())
    }

    /// A dataset's list is freed.
    async fn forget_remaps(
        &self,
        ctx: &SyncContext,
        dataset: &Arc<Ds>,
    ) -> Result<(), DatasetError> {
        self.set_remap_list(ctx, dataset, None).await?;
        let features = self.dsl.features();
        match features.is_active(guid::OBSOLETE_COUNTS) {
            true => features.decrement(ctx, guid::OBSOLETE_COUNTS).await,
            false => Ok(()),
        }
    }

    /// Two datasets swap their lists (`dsl_dataset_swap_remap_deadlists`).
    pub(crate) async fn swap_remaps(
        &self,
        ctx: &SyncContext,
        clone: &Arc<Ds>,
        head: &Arc<Ds>,
    ) -> Result<(), DatasetError> {
        let lists = (self.remap_list(clone).await?, self.remap_list(head).await?);
        for (dataset, had) in [(clone, lists.0), (head, lists.1)] {
            if had.is_some() {
                self.set_remap_list(ctx, dataset, None).await?;
            }
        }
        for (dataset, list) in [(head, lists.0), (clone, lists.1)] {
            if list.is_some() {
                self.set_remap_list(ctx, dataset, list).await?;
            }
        }
        Ok(())
    }
}
