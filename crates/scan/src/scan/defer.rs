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
use spa::PoolError;
use zio::Tx;

use super::resilver::When;
use super::{Scan, get};
use crate::Scans;

/// The feature, and the pair of a device that waits.
const RESILVER_DEFER: &str = "com.datto:resilver_defer";
/// Of what is to be read, the part after which a resilver does not begin anew
/// (`zfs_resilver_defer_percent`), unless [`Scan::set_defer_percent`] says otherwise.
pub(super) const DEFER_PERCENT: u64 = 10;

/// Whether a device waits for a resilver to end.
pub fn is_deferred(vdev: &vdev::Vdev) -> bool {
    vdev.has_config(RESILVER_DEFER)
}

impl Scan {
    /// The scan that is under way is not to end for a resilver (`zpool reopen -n`).
    pub fn finish_first(&self) {
        let mut state = self.state.lock();
        state.finishes_first = state.current.is_running();
    }

    /// Up to which part a resilver begins anew for a device that comes back.
    pub fn set_defer_percent(&self, percent: u64) {
        self.defer_percent.store(percent, Ordering::Relaxed);
    }

    /// Whether a resilver under way goes on although `later` devices lack what it does not give
    /// them.
    fn goes_on(&self, scans: &Scans) -> bool {
        if !scans.spa.dsl.features().is_enabled(RESILVER_DEFER) {
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
        scans: &Scans,
        ctx: &SyncContext,
        later: &[Guid],
    ) -> Result<bool, PoolError> {
        if !self.goes_on(scans) {
            return Ok(false);
        }
        let features = scans.spa.dsl.features();
        for vdev in later.iter().filter_map(|guid| scans.spa.tree.find(*guid)) {
            if !is_deferred(&vdev) {
                vdev.set_config(RESILVER_DEFER, NvValue::Boolean);
                scans.spa.identity.mark_dirty();
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
        scans: &Scans,
        ctx: &SyncContext,
    ) -> Result<(), PoolError> {
        let tree = &scans.spa.tree;
        let spares = tree.topology().draid_spares();
        for vdev in tree.leaves().into_iter().chain(spares) {
            if is_deferred(&vdev) {
                vdev.remove_config(RESILVER_DEFER);
                scans.spa.identity.mark_dirty();
            }
        }
        let features = scans.spa.dsl.features();
        if !features.is_enabled(RESILVER_DEFER) {
            return Ok(());
        }
        let count = features.refcount(RESILVER_DEFER).unwrap_or(0);
        let less = i64::try_from(count).unwrap_or(0).saturating_neg();
        features.adjust(ctx, RESILVER_DEFER, less).await?;
        if self.needed_resilver(scans, ctx.txg, When::Soon).is_some() {
            let text = format!("errors={}", scans.spa.errors.count());
            let (tx, event) = (Tx::syncing(ctx.txg), "starting deferred resilver");
            scans.spa.history.internal(&tx, event, text).await;
        }
        Ok(())
    }
}

/// Begins the resilver that is needed at once, if one is (`spa_scan`, module/zfs/spa.c).
pub async fn resilver(scans: &Arc<Scans>) -> Result<(), PoolError> {
    scans.spa.check_not_suspended()?;
    if !scans.spa.dsl.features().is_enabled(RESILVER_DEFER) {
        return Err(PoolError::NoResilverDefer {
            pool: scans.spa.identity.name(),
        });
    }
    if scans.is_rebuilding() {
        let pool = scans.spa.identity.name();
        return Err(PoolError::Resilvering { pool });
    }
    scans.scan.forget_unmended();
    let open_txg = scans.spa.txgs.open_txg();
    if scans
        .scan
        .needed_resilver(scans, open_txg, When::Soon)
        .is_none()
    {
        return Ok(());
    }
    let task = RestartTask {
        scans: scans.clone(),
    };
    scans.spa.run_task(task).await
}

struct RestartTask {
    scans: Arc<Scans>,
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
            let (scans, scan) = (&self.scans, &self.scans.scan);
            scan.state.lock().is_asked_for = true;
            let begun = scan.begin_resilver(scans, ctx).await;
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
