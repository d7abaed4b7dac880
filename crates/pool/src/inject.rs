//! Faults that are asked for: where those of a pool are kept, and what is done to it besides.

use std::sync::Arc;

use format::Guid;
use vdev::Injector;

use crate::{Pool, PoolError, topology};

/// What devices and blocks of the pool are made to do wrong.
pub fn injector(pool: &Pool) -> Arc<Injector> {
    vdev::injector(&pool.core.tree).clone()
}

/// Forgets the blocks of the pool that are in memory: each is read from a device when it is needed
/// again (`arc_flush`). What is not written yet is not among them.
pub fn empty_cache(pool: &Pool) {
    pool.core.pipeline.cache().clear();
}

/// The device of that name, path or guid.
///
/// # Errors
/// [`PoolError::NotInPool`], also of what has devices below it; [`PoolError::IsSpare`],
/// [`PoolError::IsCache`].
pub fn leaf_named(pool: &Pool, device: &str) -> Result<Guid, PoolError> {
    let vdev = topology::find(&pool.core, device)?;
    match vdev.leaf() {
        Some(_) => Ok(vdev.guid()),
        None => Err(PoolError::NotInPool {
            device: device.to_owned(),
        }),
    }
}

/// Has a device that works count as one with too many errors: out of use with `fault`, unless some
/// data is on it alone (`vdev_fault`, `vdev_degrade`, module/zfs/vdev.c).
///
/// # Errors
/// [`PoolError::Zio`] where it does not work.
pub fn set_device_bad(pool: &Pool, device: Guid, fault: bool) -> Result<(), PoolError> {
    let tree = &pool.core.tree;
    let state = match fault {
        true => tree.fault(device)?,
        false => tree.degrade(device)?,
    };
    tracing::warn!(%device, %state, "somebody asked for that");
    Ok(())
}

/// Lets scrubs, resilvers and rebuilds, or removals of vdevs with data, wait where they are, or go
/// on (tunables `zfs_scan_suspend_progress` and `zfs_removal_suspend_progress`).
pub fn hold_work(pool: &Pool, scans: bool, removals: bool) {
    pool.core.evacuation.set_held(removals);
    pool.core.scans.scan.set_held(scans);
    pool.core.txgs.go_on();
}

/// Has the pool write no more transaction groups: what intent logs get is all that comes to it,
/// and its export leaves it as a crash would (`spa_freeze`, module/zfs/spa_misc.c). What was
/// written until now is on disk.
///
/// # Errors
/// Of a pool that nothing may be written to; of writing.
pub async fn freeze(pool: &Pool) -> Result<(), PoolError> {
    let core = &pool.core;
    core.check_writeable()?;
    let injector = vdev::injector(&core.tree);
    // Once frozen, no group that could be waited for comes any more.
    if !injector.is_frozen() {
        core.unless_suspended(core.txgs.sync()).await?;
    }
    injector.freeze();
    core.txgs.kick();
    let held = async {
        injector.until_held().await;
        Ok::<(), zio::ZioError>(())
    };
    core.unless_suspended(held).await?;
    Ok(())
}

/// Whether it was frozen.
pub fn is_frozen(pool: &Pool) -> bool {
    vdev::injector(&pool.core.tree).is_frozen()
}
