//! Lists of blocks in the MOS, of which deadlists and livelists consist, and the one without
//! blocks that they share.

use std::sync::Arc;

use format::{ObjectId, names};
use object::{Bpobj, ObjectSet, SyncContext, Zap};
use parking_lot::Mutex;
use zio::{Pipeline, Tx};

use super::space::Space;
use crate::DatasetError;
use crate::features::{Features, guid};
use crate::version::PoolVersion;

/// The lists of blocks of a pool.
pub(crate) struct Lists {
    mos: Arc<ObjectSet>,
    directory: Zap,
    features: Arc<Features>,
    version: Arc<PoolVersion>,
    pipeline: Arc<Pipeline>,
    /// The list without entries that new deadlists share; zero while there is none.
    empty_list: Mutex<ObjectId>,
}

impl Lists {
    pub(crate) fn new(
        mos: Arc<ObjectSet>,
        directory: Zap,
        features: Arc<Features>,
        version: Arc<PoolVersion>,
        pipeline: Arc<Pipeline>,
    ) -> Self {
        Lists {
            mos,
            directory,
            features,
            version,
            pipeline,
            empty_list: Mutex::default(),
        }
    }

    pub(crate) fn mos(&self) -> &Arc<ObjectSet> {
        &self.mos
    }

    pub(crate) fn features(&self) -> &Arc<Features> {
        &self.features
    }

    /// Whether new deadlists are maps of lists, or one list each.
    pub(crate) fn has_maps(&self) -> bool {
        self.version.has_deadlist_maps()
    }

    pub(crate) fn pipeline(&self) -> &Arc<Pipeline> {
        &self.pipeline
    }

    /// Finds the shared empty list of a pool that is being opened.
    pub(crate) async fn load(&self) -> Result<(), DatasetError> {
        let list = self.directory.lookup_u64(names::pool::EMPTY_BPOBJ).await?;
        *self.empty_list.lock() = list.unwrap_or(0).into();
        Ok(())
    }

    /// The shared empty list's object, zero without one.
    pub(crate) fn empty_list(&self) -> ObjectId {
        *self.empty_list.lock()
    }

    /// An empty list: the shared one where the feature allows (`bpobj_alloc_empty`).
    pub(crate) async fn new_empty_list(&self, ctx: &SyncContext) -> Result<ObjectId, DatasetError> {
        let lists = self.new_empty_lists(ctx, 1).await?;
        Ok(lists[0])
    }

    /// So many empty lists: the refcount of the shared one is stored once.
    pub(crate) async fn new_empty_lists(
        &self,
        ctx: &SyncContext,
        count: usize,
    ) -> Result<Vec<ObjectId>, DatasetError> {
        let tx = Tx::syncing(ctx.txg);
        if !self.features.is_enabled(guid::EMPTY_BPOBJ) {
            let mut lists = Vec::with_capacity(count);
            for _ in 0..count {
                lists.push(Bpobj::create(&self.mos, &tx, 0).await?.id());
            }
            return Ok(lists);
        }
        if self.empty_list().is_zero() && count > 0 {
            let list = Bpobj::create(&self.mos, &tx, 0).await?.id();
            self.directory
                .add_u64(&tx, "empty_bpobj", list.get())
                .await?;
            *self.empty_list.lock() = list;
        }
        self.features
            .adjust(ctx, guid::EMPTY_BPOBJ, count as i64)
            .await?;
        Ok(vec![self.empty_list(); count])
    }

    /// One use less of the shared empty list (`bpobj_decr_empty`).
    pub(crate) async fn release_empty_list(&self, ctx: &SyncContext) -> Result<(), DatasetError> {
        self.release_empty_lists(ctx, 1).await
    }

    /// So many uses less.
    pub(crate) async fn release_empty_lists(
        &self,
        ctx: &SyncContext,
        count: i64,
    ) -> Result<(), DatasetError> {
        if count == 0 {
            return Ok(());
        }
        self.features.adjust(ctx, guid::EMPTY_BPOBJ, -count).await?;
        if !self.features.is_active(guid::EMPTY_BPOBJ) {
            let tx = Tx::syncing(ctx.txg);
            self.directory.remove(&tx, "empty_bpobj").await?;
            let list = std::mem::take(&mut *self.empty_list.lock());
            self.mos.free(&tx, list).await?;
        }
        Ok(())
    }

    /// Space of a list.
    pub(crate) async fn list_space(&self, list: ObjectId) -> Result<Space, DatasetError> {
        if list == self.empty_list() {
            return Ok(Space::default());
        }
        Ok(Bpobj::open(&self.mos, list).await?.space().await?.into())
    }
}
