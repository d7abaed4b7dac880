//! Resilvers that wait for another one (feature `resilver_defer`; `dsl_scan_assess_vdev`,
//! `dsl_scan_sync`, `dsl_scan_done`, module/zfs/dsl_scan.c).
//!
//! A device that comes back, or comes in, while a resilver is under way lacks txgs that this one
//! does not give it. Without the feature the resilver begins anew at once. With it the device
//! waits, marked in the configuration (`com.datto:resilver_defer`), and its resilver begins when
//! this one ends, or when somebody asks for it (`zpool resilver`). A resilver that has hardly begun
//! ([`DEFER_PERCENT`]) begins anew all the same.
//!
//! The marks are gone when a scan ends, in the same txg. What devices lack is known without them: a
//! crash loses nothing.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use dataset::{DatasetError, SyncTask};
use device::BoxFuture;
use format::{Guid, NvValue, ObjectId};
use object::SyncContext;
use zio::Tx;

use super::resilver::When;
use super::{Scan, get};
use crate::PoolError;
use crate::core::Core;

/// The feature, and the pair of a device that waits.
const RESILVER_DEFER: &str = "com.datto:resilver_defer";
/// Of what is to be read, the part after which a resilver does not begin anew
/// (`zfs_resilver_defer_percent`), unless [`Scan::set_defer_percent`] says otherwise.
pub(super) const DEFER_PERCENT: u64 = 10;

/// Whether a device waits for a resilver to end.
pub(crate) fn is_deferred(vdev: &vdev::Vdev) -> bool {
    vdev.has_config(RESILVER_DEFER)
}

impl Scan {
    /// The scan that is under way is not to end for a resilver (`zpool reopen -n`).
    pub(crate) fn finish_first(&self) {
        let mut state = self.state.lock();
        state.finishes_first = state.current.is_running();
    }

    /// Up to which part a resilver begins anew for a device that comes back.
    pub(crate) fn set_defer_percent(&self, percent: u64) {
        self.defer_percent.store(percent, Ordering::Relaxed);
    }

    /// Whether a resilver under way goes on although `later` devices lack what it does not give
    /// them.
    fn goes_on(&self, core: &Core) -> bool {
        if !core.dsl.features().is_enabled(RESILVER_DEFER) {
            return false;
        }
        let state = self.state.lock();
        let (phys, base) = (&state.current.phys, &state.run.base);
        let blocks = self.blocks.read();
        let run_bytes = blocks
            .as_ref()
            .map_or(0, |blocks| get(&blocks.numbers.verified_bytes));
        let before_bytes = base.examined_bytes.saturating_sub(base.skipped_bytes);
        let issued_bytes = before_bytes.saturating_add(run_bytes);
        let all_bytes = phys.to_examine_bytes.saturating_sub(phys.skipped_bytes);
        let percent = self.defer_percent.load(Ordering::Relaxed);
        issued_bytes >= all_bytes / 100 * percent
    }

    /// Marks the devices that wait, in syncing context; whether all can.
    pub(super) async fn defer(
        &self,
        core: &Core,
        ctx: &SyncContext,
        later: &[Guid],
    ) -> Result<bool, PoolError> {
        if !self.goes_on(core) {
            return Ok(false);
        }
        let features = core.dsl.features();
        for vdev in later.iter().filter_map(|guid| core.tree.find(*guid)) {
            if !is_deferred(&vdev) {
                vdev.set_config(RESILVER_DEFER, NvValue::Boolean);
                core.identity.mark_dirty();
            }
        }
        if !features.is_active(RESILVER_DEFER) {
            features.increment(ctx, RESILVER_DEFER).await?;
        }
        Ok(true)
    }

    /// A scan has ended, in syncing context: no device waits for that any more.
    pub(super) async fn end_deferral(
        &self,
        core: &Core,
        ctx: &SyncContext,
    ) -> Result<(), PoolError> {
        for vdev in core.tree.leaves() {
            if is_deferred(&vdev) {
                vdev.remove_config(RESILVER_DEFER);
                core.identity.mark_dirty();
            }
        }
        let features = core.dsl.features();
        if !features.is_enabled(RESILVER_DEFER) {
            return Ok(());
        }
        let count = features.refcount(RESILVER_DEFER).unwrap_or(0);
        let less = i64::try_from(count).unwrap_or(0).saturating_neg();
        features.adjust(ctx, RESILVER_DEFER, less).await?;
        if self.needed_resilver(core, ctx.txg, When::Soon).is_some() {
            let text = format!("errors={}", core.errors.count());
            let (tx, event) = (Tx::syncing(ctx.txg), "starting deferred resilver");
            core.history.internal(&tx, event, text).await;
        }
        Ok(())
    }
}

/// Begins the resilver that is needed at once, if one is (`spa_scan`, module/zfs/spa.c).
pub(crate) async fn resilver(core: &Arc<Core>) -> Result<(), PoolError> {
    core.check_not_suspended()?;
    if !core.dsl.features().is_enabled(RESILVER_DEFER) {
        return Err(PoolError::NoResilverDefer {
            pool: core.identity.name(),
        });
    }
    if core.is_rebuilding() {
        let pool = core.identity.name();
        return Err(PoolError::Resilvering { pool });
    }
    core.scan.forget_unmended();
    let open_txg = core.txgs.open_txg();
    if core
        .scan
        .needed_resilver(core, open_txg, When::Soon)
        .is_none()
    {
        return Ok(());
    }
    let core = core.clone();
    core.clone().run_task(RestartTask { core }).await
}

struct RestartTask {
    core: Arc<Core>,
}

impl SyncTask for RestartTask {
    fn name(&self) -> &'static str {
        "resilver"
    }

    fn check<'a>(&'a self, _ctx: &'a SyncContext) -> BoxFuture<'a, Result<(), DatasetError>> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn apply<'a>(&'a self, ctx: &'a SyncContext) -> BoxFuture<'a, Result<(), DatasetError>> {
        Box::pin(async move {
            let (core, scan) = (&self.core, &self.core.scan);
            scan.state.lock().is_asked_for = true;
            let begun = scan.begin_resilver(core, ctx).await;
            begun.map_err(|error| match error {
                PoolError::Dataset(error) => error,
                error => DatasetError::Corrupt {
                    object: ObjectId::POOL_DIRECTORY,
                    what: error.to_string(),
                },
            })
        })
    }
}
