//! What scans and sequential rebuilds ([`crate::rebuild`]) owe each other: no two at a time, a turn
//! is as long for both, and a scrub follows the last rebuild (`zfs_rebuild_scrub_enabled`,
//! module/zfs/vdev_rebuild.c).

use std::sync::Arc;

use format::{ScanPhys, Txg};
use object::SyncContext;
use spa::PoolError;
use spa::dtl::uses_of;
use zio::Tx;

use super::Scan;
use super::resilver::When;
use crate::Scans;

impl Scan {
    /// Whether a resilver is under way.
    pub fn is_resilvering(&self) -> bool {
        let state = self.state.lock();
        state.current.is_running() && state.current.is_resilver()
    }

    /// Says when a rebuild's turn in the group that is written is over: as a resilver's.
    pub fn turn_is_over(&self, scans: &Scans, txg: Txg) -> Arc<dyn Fn() -> bool + Send + Sync> {
        self.turn_of(scans, txg, 1, 1)
    }

    /// A rebuild begins, in syncing context: a scrub ends for it (`vdev_rebuild_thread`).
    pub async fn give_way(&self, scans: &Scans, ctx: &SyncContext) -> Result<(), PoolError> {
        scans
            .error_scrub
            .give_way(scans, &Tx::syncing(ctx.txg))
            .await?;
        match self.is_running() {
            true => self.finish(scans, ctx, false, "scan cancelled").await,
            false => Ok(()),
        }
    }

    /// The last rebuild is done, in syncing context: all is verified, unless a device that could be
    /// resilvered lacks some txgs still. Then a resilver comes, which verifies what it reads, and
    /// the rest waits for a scrub that somebody begins.
    pub async fn verify_rebuilt(&self, scans: &Scans, ctx: &SyncContext) -> Result<(), PoolError> {
        let uses = uses_of(scans.spa.tree.leaves());
        let is_to_come = self.needed_resilver(scans, ctx.txg, When::Later).is_some();
        if self.is_running() || is_to_come || scans.spa.dsl.directories().origin_object().is_none()
        {
            return Ok(());
        }
        let (tx, range) = (Tx::syncing(ctx.txg), (Txg::ZERO, ctx.txg));
        self.setup(scans, &tx, ScanPhys::FUNCTION_SCRUB, range, uses)
            .await
    }
}
