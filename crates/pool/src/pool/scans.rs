//! Scrubs, resilvers and rebuilds of an imported pool, as commands and status have them.

use super::Pool;
use crate::{
    ErrorScrubStatus, PoolError, RebuildStatus, ScanCosts, ScanStatus, ScrubCommand, ScrubNumbers,
    topology,
};

/// What reads all that a pool has: scrubs, resilvers, sequential rebuilds. [`Pool::scans`] gives
/// it.
#[derive(Clone, Copy)]
pub struct Scans<'p> {
    pool: &'p Pool,
}

impl Pool {
    /// Scrubs, resilvers and rebuilds.
    pub fn scans(&self) -> Scans<'_> {
        Scans { pool: self }
    }
}

impl Scans<'_> {
    /// Starts, pauses, continues or stops a scrub. Starting does not wait for its end, see
    /// [`Scans::wait_for_scrub`]; stopping does.
    ///
    /// # Errors
    /// [`PoolError::Resilvering`], [`PoolError::ScrubActive`], [`PoolError::ScrubPaused`],
    /// [`PoolError::NoScrub`], [`PoolError::ErrorScrubActive`], [`PoolError::ErrorScrubPaused`],
    /// [`PoolError::ScrubPausedToCancel`], [`PoolError::NoHeadErrlog`].
    pub async fn scrub(self, command: ScrubCommand) -> Result<(), PoolError> {
        self.pool.core.check_open()?;
        let core = &self.pool.core;
        let look_again = async {
            topology::leave_failed_logs(core);
            core.unless_suspended(core.tree.look_again(None)).await?;
            topology::settle(core).await
        };
        ::scan::command(&core.scans, command, look_again).await?;
        if command == ScrubCommand::Stop {
            self.pool.core.scans.scan.wait(true).await;
            self.pool.core.scans.error_scrub.wait(true).await;
        }
        Ok(())
    }

    /// Waits until no scrub is under way, or it is paused; with `paused`, until a paused one has
    /// ended too.
    pub async fn wait_for_scrub(self, paused: bool) {
        self.pool.core.scans.scan.wait(paused).await;
        self.pool.core.scans.error_scrub.wait(paused).await;
    }

    /// The last scrub or resilver.
    pub fn scrub_status(self) -> Option<ScanStatus> {
        self.pool.core.scans.scan.status(&self.pool.core.scans)
    }

    /// What the last scrub since the import has done so far.
    pub fn scrub_numbers(self) -> Option<ScrubNumbers> {
        self.pool.core.scans.scan.numbers()
    }

    /// What the last scan since the import read of each object set, up to now.
    pub fn scan_costs(self) -> Option<ScanCosts> {
        self.pool.core.scans.scan.costs()
    }

    /// The last scrub of the error log.
    pub fn error_scrub(self) -> Option<ErrorScrubStatus> {
        self.pool.core.scans.error_scrub.status()
    }

    /// How many blocks a scan of a pool in use gathers before it reads them, at most. How far it is
    /// is stored whenever it has read them all: fewer blocks lose less in a crash, more are read in
    /// a better order.
    pub fn set_queue(self, blocks: usize) {
        self.pool.core.scans.scan.set_queue_blocks_max(blocks);
    }

    /// Lets scrubs and resilvers wait where they are, or go on (tunable
    /// `zfs_scan_suspend_progress`).
    pub fn hold(self, hold: bool) {
        self.pool.core.scans.scan.set_held(hold);
        if !hold {
            self.pool.core.txgs.go_on();
        }
    }

    /// Which part of the disks' time scrubs have, in percent, from their next turn on; `None`: half
    /// of a disk's that others read from, else all. Resilvers have no share.
    pub fn set_share(self, percent: Option<u8>) {
        self.pool.core.scans.scan.set_share(percent);
    }

    /// Begins the resilver that devices wait for, in place of one that is under way (`zpool
    /// resilver`). Does nothing when no device lacks anything.
    ///
    /// # Errors
    /// [`PoolError::NoResilverDefer`], [`PoolError::ReadOnly`], [`PoolError::Suspended`].
    pub async fn resilver(self) -> Result<(), PoolError> {
        self.pool.core.check_writeable()?;
        ::scan::resilver(&self.pool.core.scans).await
    }

    /// Whether devices lack what a resilver that has not begun yet will give them.
    pub fn is_resilver_due(self) -> bool {
        !self.pool.is_read_only()
            && self
                .pool
                .core
                .scans
                .scan
                .is_resilver_due(&self.pool.core.scans)
    }

    /// Up to how many percent a resilver begins anew for a device that comes back meanwhile, where
    /// that could wait (tunable `zfs_resilver_defer_percent`).
    pub fn set_resilver_defer_percent(self, percent: u64) {
        self.pool.core.scans.scan.set_defer_percent(percent);
    }

    /// How much of a RAID-Z vdev that is being made wider was moved, and how much there is to move,
    /// in bytes of the vdev; `None` while no expansion goes on.
    pub fn expanded_bytes(self) -> Option<(u64, u64)> {
        self.pool.core.scans.expanding.progress()
    }

    /// Whether devices are being rebuilt sequentially.
    pub fn is_rebuilding(self) -> bool {
        !self.pool.is_read_only() && self.pool.core.scans.is_rebuilding()
    }

    /// The last sequential rebuilds of top-level vdevs.
    pub fn rebuilds(self) -> Vec<RebuildStatus> {
        let tops = self.pool.core.tree.tops();
        let ids: Vec<_> = tops.iter().map(|top| top.vdev_id()).collect();
        drop(tops);
        let rebuilds = &self.pool.core.scans.rebuilds;
        let status = |id| rebuilds.status(&self.pool.core.scans, id);
        ids.into_iter().filter_map(status).collect()
    }

    /// Waits until no device is being rebuilt sequentially.
    pub async fn wait_for_rebuild(self) {
        self.pool.core.scans.rebuilds.wait().await;
    }
}
