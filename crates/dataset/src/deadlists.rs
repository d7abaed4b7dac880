//! Deadlists of datasets: the [list](Deadlist) of each, loaded when it is needed, in syncing
//! context.

use std::collections::HashSet;
use std::sync::Arc;

use format::{DslDatasetPhys, ObjectId, Txg};
use object::{SyncContext, Zap};
use tokio::sync::{MappedMutexGuard, MutexGuard};

use crate::DatasetError;
use crate::dsl::DslPool;
use crate::state::{Deadlist, Dir, Ds};

/// Deadlists of datasets: [`DslPool::deadlists`].
#[derive(Clone, Copy)]
pub(crate) struct Deadlists<'a> {
    pub(crate) dsl: &'a Arc<DslPool>,
}

impl DslPool {
    /// Deadlists.
    pub(crate) fn deadlists(self: &Arc<Self>) -> Deadlists<'_> {
        Deadlists { dsl: self }
    }
}

impl Deadlists<'_> {
    /// A dataset's deadlist, locked, in syncing context, or when a head is opened, under the lock
    /// of the namespace. A head's stays loaded.
    pub(crate) async fn of<'a>(
        &self,
        dataset: &'a Arc<Ds>,
    ) -> Result<MappedMutexGuard<'a, Deadlist>, DatasetError> {
        let mut slot = dataset.deadlist.lock().await;
        let object = dataset.state().phys.deadlist;
        if slot.as_ref().map(Deadlist::object) != Some(object) {
            *slot = Some(Deadlist::open(self.dsl.mos(), object).await?);
        }
        Ok(MutexGuard::map(slot, |slot| {
            slot.as_mut().expect("opened just now")
        }))
    }

    /// A deadlist that was loaded is not needed for the moment. A head's stays loaded; a snapshot's
    /// does until those of some others were, as snapshots are mostly destroyed beside each other.
    pub(crate) async fn let_go(&self, dataset: &Arc<Ds>) {
        if dataset.is_snapshot()
            && let Some(other) = self.dsl.recent_deadlists.note(dataset)
            && let Some(list) = other.deadlist.lock().await.take()
        {
            list.forget_content().await;
        }
    }

    /// A deadlist out of its dataset, which is being destroyed.
    pub(crate) async fn take(&self, dataset: &Arc<Ds>) -> Result<Deadlist, DatasetError> {
        let object = dataset.phys().deadlist;
        match dataset.deadlist.lock().await.take() {
            Some(list) if list.object() == object => Ok(list),
            _ => Deadlist::open(self.dsl.mos(), object).await,
        }
    }

    /// Txgs before each snapshot of the chain that ends in `snapshot`: keys for a deadlist that is
    /// made after `of`'s, where that has none and new ones do (`dsl_deadlist_regenerate`).
    ///
    /// It is that one list that counts: a clone from before an upgrade may have an old one while
    /// the filesystem that it was made of has a map.
    pub(crate) async fn snapshot_chain_keys(
        &self,
        of: &Arc<Ds>,
        snapshot: ObjectId,
    ) -> Result<Vec<Txg>, DatasetError> {
        let lacks_keys = self.of(of).await?.is_old() && self.dsl.lists.has_maps();
        let mut keys = Vec::new();
        if !lacks_keys || snapshot.is_zero() {
            return Ok(keys);
        }
        let mut at = Some(self.dsl.directories().dataset(snapshot).await?);
        while let Some(dataset) = at {
            keys.push(dataset.phys().previous_snapshot_txg);
            at = self.dsl.directories().before(&dataset).await?;
        }
        Ok(keys)
    }

    /// Unique bytes of a head: what it refers to, without what its previous snapshot has too
    /// (`dsl_dataset_recalc_head_uniq`).
    pub(crate) async fn recount_unique(&self, head: &Arc<Ds>) -> Result<(), DatasetError> {
        let shared = match head.prev() {
            Some(prev) => prev.phys().referenced_bytes,
            None => 0,
        };
        let dead = self.of(head).await?.space().await?;
        head.change(|state| {
            let still_shared = shared.saturating_add_signed(-dead.used);
            state.phys.unique_bytes = state.phys.referenced_bytes.saturating_sub(still_shared);
            state.phys.flags |= DslDatasetPhys::FLAG_UNIQUE_ACCURATE;
        });
        Ok(())
    }

    /// Removes a destroyed snapshot's key from the deadlists of all clones made after it
    /// (`dsl_dir_remove_clones_key`).
    pub(crate) async fn remove_clones_key(
        &self,
        ctx: &SyncContext,
        dir: &Arc<Dir>,
        key: Txg,
    ) -> Result<(), DatasetError> {
        let mut pending = vec![dir.clone()];
        let mut seen = HashSet::from([dir.object]);
        while let Some(dir) = pending.pop() {
            let clones = dir.state().phys.clones;
            if clones.is_zero() {
                continue;
            }
            for entry in Zap::hold(self.dsl.mos(), clones).await?.all().await? {
                let clone = self
                    .dsl
                    .directories()
                    .dataset(entry.value.as_u64().unwrap_or(0).into())
                    .await?;
                let clone_dir = clone.dir();
                if clone_dir.state().origin_txg > key && seen.insert(clone_dir.object) {
                    self.of(&clone)
                        .await?
                        .remove_key(&self.dsl.lists, ctx, key)
                        .await?;
                    self.remove_remaps_key(ctx, &clone, key).await?;
                    pending.push(clone_dir);
                }
            }
        }
        Ok(())
    }
}
