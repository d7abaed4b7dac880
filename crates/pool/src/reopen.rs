//! Devices that are looked at again, and vdevs that grow with them, while the pool is in use.
//!
//! **Reopen.** Every device is looked at: is it still there, whose is it, how big is it. What comes
//! back by that is resilvered like any other device; with `-n` a scan that is under way is finished
//! first.
//!
//! **Growth.** One txg makes a top-level vdev as big as its devices, in the configuration and in
//! what is known of its metaslabs. Blocks go there when that txg is on disk. A crash before that
//! leaves the vdev as it was.
//!
//! Source: module/zfs/vdev.c (`vdev_reopen`, `vdev_open`, `vdev_expand`, `vdev_clear`),
//! module/zfs/zfs_ioctl.c (`zfs_ioc_pool_reopen`), module/zfs/spa.c (`spa_async_thread`).

use std::sync::Arc;

use dataset::{DatasetError, SyncTask};
use device::BoxFuture;
use format::Guid;
use object::SyncContext;
use spa::props::Stored;
use vdev::Vdev;
use zio::Tx;

use crate::core::Core;
use crate::topology::{leave_failed_logs, settle};
use crate::{PoolError, vdevs};

/// Whether vdevs grow by themselves (property `autoexpand`).
pub(crate) fn grows_by_itself(core: &Core) -> bool {
    core.props.get("autoexpand") == Some(Stored::Number(1))
}

/// Looks at all devices again. Unless it `restarts`, a scan that is under way ends before what
/// came back is resilvered.
pub(crate) async fn reopen(core: &Arc<Core>, restarts: bool) -> Result<(), PoolError> {
    let _admin = core.admin.lock().await;
    core.check_not_suspended()?;
    if !restarts {
        core.scans.scan.finish_first();
    }
    leave_failed_logs(core);
    core.unless_suspended(core.tree.look_again(None)).await?;
    core.scans.scan.forget_unmended();
    settle(core).await?;
    match grows_by_itself(core) {
        true => grow(core, None).await,
        false => Ok(()),
    }
}

/// Lets top-level vdevs use all of their devices; nobody else changes vdevs meanwhile.
pub(crate) async fn grow(core: &Arc<Core>, only: Option<Guid>) -> Result<(), PoolError> {
    let grows = |top: &Arc<Vdev>| {
        only.is_none_or(|only| top.guid() == only) && vdev::sizes::expandable_bytes(top) > 0
    };
    if !core.tree.tops().iter().any(grows) {
        return Ok(());
    }
    let task = GrowTask {
        core: core.clone(),
        only,
    };
    core.run_task(task).await
}

/// Property `autoexpand` was set.
pub(crate) async fn grow_if_wanted(core: &Arc<Core>) -> Result<(), PoolError> {
    let _admin = core.admin.lock().await;
    match grows_by_itself(core) {
        true => grow(core, None).await,
        false => Ok(()),
    }
}

struct GrowTask {
    core: Arc<Core>,
    only: Option<Guid>,
}

impl SyncTask for GrowTask {
    fn name(&self) -> &'static str {
        "grow vdevs"
    }

    fn check<'a>(&'a self, _ctx: &'a SyncContext) -> BoxFuture<'a, Result<(), DatasetError>> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn apply<'a>(&'a self, ctx: &'a SyncContext) -> BoxFuture<'a, Result<(), DatasetError>> {
        Box::pin(async move {
            for top in self.core.tree.tops() {
                if self.only.is_none_or(|only| top.guid() == only) {
                    grow_in(&self.core, ctx, &top).await?;
                }
            }
            Ok(())
        })
    }
}

/// Lets a top-level vdev use all of its devices, in syncing context.
pub(crate) async fn grow_in(
    core: &Core,
    ctx: &SyncContext,
    top: &Arc<Vdev>,
) -> Result<(), DatasetError> {
    let before_bytes = top.metaslab_count() << top.metaslab_shift();
    if !vdev::sizes::expand(top) {
        return Ok(());
    }
    core.space.grow(top.vdev_id(), top.metaslab_count());
    core.new_tops.push(top.vdev_id(), ctx.txg);
    core.identity.mark_dirty();
    let gained_bytes = (top.metaslab_count() << top.metaslab_shift()).saturating_sub(before_bytes);
    let size_bytes = core.pipeline.allocator().totals().size_bytes;
    tracing::info!(
        vdev = %top.display_name(), gained_bytes, "its devices are bigger; it uses all of them"
    );
    let text = format!(
        "pool '{}' size: {}(+{gained_bytes})",
        core.identity.name(),
        size_bytes.saturating_add(gained_bytes)
    );
    let tx = Tx::syncing(ctx.txg);
    core.history.internal(&tx, "vdev online", text).await;
    Ok(())
}

/// Opens devices that do not work again: all, or those that are `device` or below it. Those of a
/// suspended pool are all needed to resume it.
pub(crate) async fn open_again(core: &Core, device: Option<&str>) -> Result<(), PoolError> {
    let mut wanted = Vec::new();
    for top in core.tree.tops() {
        vdevs::leaves_called(&top, device, &mut wanted);
    }
    let wanted: Vec<Guid> = wanted.iter().map(|vdev| vdev.guid()).collect();
    let is_wanted = |vdev: &Vdev| wanted.contains(&vdev.guid());
    core.pipeline.suspension().reopen_some(&is_wanted).await?;
    Ok(())
}
