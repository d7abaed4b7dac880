//! Freeing blocks, and marking those of intent logs as allocated.
//!
//! A free is settled where it can be: a block that may be cloned is left to [`Clones`], one with
//! the D bit to [`Dedup`], and the members of a gang block are known only once its headers were
//! read, which the sync loop has done at its end ([`Frees::take_changes`]). So are frees of a vdev
//! that is being removed settled, since its mapping grows meanwhile.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use format::{BlockPointer, ObjectType, Txg};
use parking_lot::Mutex;

use super::ReadContext;
use super::dedup::Dedup;
use super::dvas::Dvas;
use super::gang_read::GangReader;
use crate::alloc::{Allocator, MetaslabChange};
use crate::cache::{Cache, CacheKey};
use crate::clones::Clones;
use crate::error::{LEAKED, ZioError};

/// Frees and claims blocks.
pub struct Frees {
    pub(super) allocator: Arc<Allocator>,
    pub(super) cache: Arc<Cache>,
    pub(super) clones: Arc<Clones>,
    pub(super) dedup: Arc<Dedup>,
    pub(super) dvas: Arc<Dvas>,
    pub(super) gangs: Arc<GangReader>,
    /// Gang blocks to free, whose headers must be read first.
    pub(super) gang_frees: Mutex<BTreeMap<Txg, Vec<BlockPointer>>>,
    /// Who hears of every block whose space is freed.
    pub(super) hook: OnceLock<FreedHook>,
}

/// Is told of a block whose space is freed. Called from any task: quick, never blocks.
pub type FreedHook = Box<dyn Fn(&BlockPointer) + Send + Sync>;

impl Frees {
    /// Has somebody hear of every block whose space is freed, before anything else can have that
    /// space (`dsl_scan_freed`, module/zfs/dsl_scan.c). Only the first call counts.
    pub fn set_hook(&self, hook: FreedHook) {
        let _ = self.hook.set(hook);
    }

    /// One pointer less leads to a block. Its space is freed as [`Self::free_space`] does, unless
    /// other files may share it: then the sync loop finds out.
    pub fn free(&self, txg: Txg, bp: &BlockPointer) {
        if !self.clones.keep(txg, bp) {
            self.free_space(txg, bp);
        }
    }

    /// Frees a block's space, at the end of `txg` plus [`crate::alloc::DEFER_TXGS`]; of a
    /// deduplicated block, drops a reference ([`Self::drop_dedup_references`]). Holes and embedded
    /// blocks have nothing to free. Space that is free already is reported and left alone.
    pub fn free_space(&self, txg: Txg, bp: &BlockPointer) {
        let Some(key) = CacheKey::of(bp) else { return };
        if self.dedup.queue_free(txg, bp) {
            return;
        }
        self.cache.remove(key);
        if let Some(hook) = self.hook.get() {
            hook(bp);
        }
        if bp.is_gang() {
            self.gang_frees.lock().entry(txg).or_default().push(*bp);
            return;
        }
        let is_log = bp.object_type() == ObjectType::INTENT_LOG;
        for dva in bp.dvas() {
            if is_log {
                self.allocator.note_log_freed(txg, &dva);
            }
            if let Err(error) = self.dvas.free(txg, bp, &dva) {
                tracing::error!(%error, block = %bp, "a block cannot be freed; {LEAKED}");
            }
        }
    }

    /// Drops the references of up to `limit` freed blocks that may be shared; returns how many
    /// there were. Call it when nothing in this pass is being written any more.
    ///
    /// # Errors
    /// Of reading tables, but for damage: then the block's space is lost.
    pub async fn drop_dedup_references(&self, txg: Txg, limit: usize) -> Result<usize, ZioError> {
        let free = |bp: &BlockPointer| self.free_space(txg, bp);
        self.dedup.drop_references(txg, limit, free).await
    }

    /// Marks a block that is in an intent log as allocated (`zio_claim`), during import.
    ///
    /// # Errors
    /// [`ZioError::SpaceMap`] when its space is allocated already.
    pub async fn claim(&self, txg: Txg, bp: &BlockPointer) -> Result<(), ZioError> {
        if bp.is_gang() {
            let mut members = Vec::new();
            self.gangs
                .members(bp, &ReadContext::default(), 0, &mut members)
                .await?;
            for dva in members.iter().flat_map(BlockPointer::dvas) {
                self.dvas.claim(txg, &dva).await?;
            }
            return Ok(());
        }
        for dva in bp.dvas() {
            self.dvas.claim(txg, &dva).await?;
        }
        if bp.object_type() == ObjectType::INTENT_LOG {
            bp.dvas().for_each(|dva| self.allocator.note_log_held(&dva));
        }
        Ok(())
    }

    /// What this txg allocated and freed since the last call, for the space maps. Frees of gang
    /// blocks are followed here, so it reads their headers.
    ///
    /// # Errors
    /// None at present: a gang header that cannot be read is reported, and its members' space lost.
    pub async fn take_changes(&self, txg: Txg) -> Result<Vec<MetaslabChange>, ZioError> {
        let gangs = self.gang_frees.lock().remove(&txg).unwrap_or_default();
        for bp in gangs {
            self.free_gang(txg, &bp).await;
        }
        self.dvas.settle_removal(txg);
        Ok(self.allocator.take_changes(txg))
    }

    async fn free_gang(&self, txg: Txg, bp: &BlockPointer) {
        let (members, result) = self.gangs.members_to_free(bp).await;
        if let Err(error) = result {
            tracing::error!(
                %error, block = %bp, "a gang block's members cannot be freed; {LEAKED}"
            );
        }
        for member in &members {
            for dva in member.dvas() {
                if let Err(error) = self.dvas.free(txg, member, &dva) {
                    tracing::error!(
                        %error, block = %bp, "a member of a gang block cannot be freed; {LEAKED}"
                    );
                }
            }
        }
    }
}
