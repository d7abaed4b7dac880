//! Livelists: what a clone allocated since it was made, and what it freed of that again, so that
//! destroying it need not look through a tree most of which is its origin's
//! (module/zfs/dsl_deadlist.c, "Livelist Overview"; `dsl_flush_pending_livelist`,
//! module/zfs/dsl_dataset.c).
//!
//! A livelist has the form of a [deadlist](crate::state::Deadlist), and its object stands in the
//! ZAP of the clone's directory. Its parts take the blocks of whole transaction groups, so that a
//! block's birth and its death are in the same part, and a part has some [`PART_BLOCKS_MAX`] living
//! blocks. Where two parts that follow each other have few of them left, they become one. Once a
//! clone shares too little with its origin, its list goes, and its tree is walked when it is
//! destroyed.
//!
//! # After a crash
//! The list is written with the transaction group that has the blocks. A destroyed clone's list is
//! put among the pool's `deleted_clones` with the transaction group in which the clone goes, and
//! freed part by part from there ([`crate::destroy`]).
//!
//! # When a list is not right
//! What it says of space must be what the directory counts; where it is not, the tree is walked.
//! A list that cannot be read, or not be written to, goes at once: the pool must not stop for what
//! it can do without.

use std::sync::Arc;

use format::{ObjectId, ObjectType, Txg, UsedBy, names};
use object::{SyncContext, Zap, ZapOptions};
use zio::Tx;
use zio::pipeline::may_fail;

use crate::DatasetError;
use crate::deadlists::Deadlists;
use crate::features::guid;
use crate::state::{Deadlist, Dir, Ds, Pending, Space};

/// Living blocks from which on the next transaction group begins another part
/// (`zfs_livelist_max_entries`). OpenZFS has half a million; two parts are in memory when they
/// become one, and that in the middle of a sync.
pub(crate) const PART_BLOCKS_MAX: u64 = 16 << 10;
/// Entries of two parts up to which they become one: OpenZFS's may be longer.
const CONDENSED_MAX: u64 = 8 * PART_BLOCKS_MAX;
/// How much must be shared with the origin, in percent (`zfs_livelist_min_percent_shared`).
const SHARED_MIN: u64 = 75;

/// Whether a clone shares too little with its origin for a list to be of use
/// (`dsl_livelist_should_disable`).
fn shares_too_little(referenced_bytes: u64, own_bytes: u64) -> bool {
    let shared = u128::from(referenced_bytes.saturating_sub(own_bytes));
    referenced_bytes > 0 && shared * 100 / u128::from(referenced_bytes) <= u128::from(SHARED_MIN)
}

impl Deadlists<'_> {
    /// Gives a new clone an empty list, before it has a block of its own
    /// (`dsl_dataset_create_sync`).
    pub(crate) async fn add_livelist(
        &self,
        ctx: &SyncContext,
        dir: &Arc<Dir>,
    ) -> Result<(), DatasetError> {
        if dir.state().origin_txg.is_zero() || !self.dsl.features().is_enabled(guid::LIVELIST) {
            return Ok(());
        }
        let zap = self.dsl.zapify_dir(ctx, dir).await?;
        let list = Deadlist::create(&self.dsl.lists, ctx).await?;
        let tx = Tx::syncing(ctx.txg);
        zap.add_u64(&tx, names::directory::LIVELIST, list.get())
            .await?;
        self.dsl.features().increment(ctx, guid::LIVELIST).await?;
        dir.state().livelist = list;
        Ok(())
    }

    /// Writes what a head allocated and freed in this sync to its list, if it has one.
    pub(crate) async fn flush_livelist(
        &self,
        ctx: &SyncContext,
        head: &Arc<Ds>,
    ) -> Result<(), DatasetError> {
        let pending = std::mem::take(&mut head.state().live);
        let dir = head.dir();
        let object = dir.state().livelist;
        if object.is_zero() {
            return Ok(());
        }
        let (referenced_bytes, own_bytes) = {
            let own_bytes = dir.state().phys.used_breakdown[UsedBy::Head as usize];
            (head.phys().referenced_bytes, own_bytes)
        };
        if shares_too_little(referenced_bytes, own_bytes) {
            return self.remove_livelist(ctx, &dir).await;
        }
        let Err(error) = may_fail(self.carry_on(ctx, &dir, object, &pending)).await else {
            return Ok(());
        };
        let clone = dir.object;
        tracing::warn!(
            %clone, %error,
            "a clone's list of blocks cannot be carried on; it goes, and destroying the clone \
             takes longer"
        );
        self.remove_livelist(ctx, &dir).await
    }

    /// Adds what a clone allocated and freed to its list, and makes that shorter.
    async fn carry_on(
        &self,
        ctx: &SyncContext,
        dir: &Arc<Dir>,
        object: ObjectId,
        pending: &Pending,
    ) -> Result<(), DatasetError> {
        let mut slot = dir.livelist.lock().await;
        if slot.as_ref().map(Deadlist::object) != Some(object) {
            *slot = Some(Deadlist::open(self.dsl.mos(), object).await?);
        }
        let Some(list) = slot.as_mut() else {
            return Ok(());
        };
        list.add_live(&self.dsl.lists, ctx, pending, PART_BLOCKS_MAX)
            .await?;
        list.condense(&self.dsl.lists, ctx, PART_BLOCKS_MAX, CONDENSED_MAX)
            .await
    }

    /// Lets go of a list, if there is one: of a clone that is promoted, or whose contents another
    /// one gets (`dsl_dir_remove_livelist`).
    pub(crate) async fn remove_livelist(
        &self,
        ctx: &SyncContext,
        dir: &Arc<Dir>,
    ) -> Result<(), DatasetError> {
        if let Some(object) = self.take_livelist(ctx, dir).await? {
            Deadlist::destroy(&self.dsl.lists, ctx, object).await?;
            self.dsl.features().decrement(ctx, guid::LIVELIST).await?;
        }
        Ok(())
    }

    async fn take_livelist(
        &self,
        ctx: &SyncContext,
        dir: &Arc<Dir>,
    ) -> Result<Option<ObjectId>, DatasetError> {
        *dir.livelist.lock().await = None;
        let object = std::mem::take(&mut dir.state().livelist);
        if object.is_zero() {
            return Ok(None);
        }
        Zap::hold(self.dsl.mos(), dir.object)
            .await?
            .remove(&Tx::syncing(ctx.txg), names::directory::LIVELIST)
            .await?;
        Ok(Some(object))
    }

    /// Puts the list of a clone that is being destroyed among those whose blocks are to be freed
    /// (`dsl_async_clone_destroy`). `used` is what the clone's directory counts. Answers the space
    /// and the first transaction group of the list; `None` where there is none that is right.
    pub(crate) async fn delete_by_livelist(
        &self,
        ctx: &SyncContext,
        dir: &Arc<Dir>,
        used: Space,
    ) -> Result<Option<(Space, Txg)>, DatasetError> {
        let object = dir.state().livelist;
        if object.is_zero() {
            return Ok(None);
        }
        let opened = may_fail(async {
            let list = Deadlist::open(self.dsl.mos(), object).await?;
            let space = list.space().await?;
            Ok::<_, DatasetError>((list, space))
        });
        let (list, space) = match opened.await {
            Ok(opened) => opened,
            Err(error) => {
                tracing::warn!(%error, "a clone's list of blocks cannot be read");
                self.remove_livelist(ctx, dir).await?;
                return Ok(None);
            }
        };
        // Blocks that are in their pointers count for nothing but what they hold.
        if space.used != used.used || space.compressed != used.compressed {
            let (found, counted) = (space.used, used.used);
            tracing::warn!(found, counted, "a clone's list of blocks is not right");
            self.remove_livelist(ctx, dir).await?;
            return Ok(None);
        }
        let first = list.first().map_or(Txg::ZERO, |(key, _)| key);
        self.take_livelist(ctx, dir).await?;
        let tx = Tx::syncing(ctx.txg);
        let mut queue = self.dsl.destroy_state.deleted_clones();
        if queue.is_zero() {
            let options = ZapOptions::new(ObjectType::OTN_ZAP_METADATA);
            queue = Zap::create(self.dsl.mos(), &tx, options).await?.id();
            self.dsl
                .directory
                .add_u64(&tx, names::pool::DELETED_CLONES, queue.get())
                .await?;
            self.dsl.destroy_state.set_deleted_clones(queue);
        }
        Zap::hold(self.dsl.mos(), queue)
            .await?
            .add_int(&tx, object.get(), object.get())
            .await?;
        Ok(Some((space, first)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_of_use_while_most_is_shared() {
        assert!(!shares_too_little(0, 0));
        assert!(!shares_too_little(1000, 0));
        assert!(!shares_too_little(1000, 240));
        assert!(shares_too_little(1000, 241));
        assert!(shares_too_little(1000, 250));
        assert!(shares_too_little(1000, 2000));
        assert!(!shares_too_little(u64::MAX, 1));
    }
}
