//! What is asked of a pool about the removal of a vdev with data.

use crate::vdevs::find_top;
use crate::{Condensing, Evacuation, Pool, PoolError};

/// The removal of a vdev with data that is under way, and the last one.
pub fn removal(pool: &Pool) -> &Evacuation {
    &pool.core.evacuation
}

/// The condensing of mappings of vdevs that were removed.
pub fn condensing(pool: &Pool) -> &Condensing {
    &pool.core.condensing
}

/// Has the removal that is under way stopped (`zpool remove -s`): what was copied is freed again.
/// Returns once it is.
///
/// # Errors
/// [`PoolError::NoRemoval`], [`PoolError::ReadOnly`], [`PoolError::Suspended`].
pub async fn stop_removal(pool: &Pool) -> Result<(), PoolError> {
    let core = &pool.core;
    core.check_writeable()?;
    let _admin = core.admin.lock().await;
    core.evacuation.stop().await
}

/// Bytes of memory that the mapping of a vdev with data would take if it were removed now, roughly
/// (`zpool remove -n`).
///
/// # Errors
/// [`PoolError::CannotRemove`] when it is no such vdev.
pub fn removal_memory(pool: &Pool, device: &str) -> Result<u64, PoolError> {
    let core = &pool.core;
    let top = find_top(core, device).filter(|top| !top.is_log() && top.geometry().is_some());
    match top {
        Some(top) => Ok(core.evacuation.estimated_mapping_bytes(top.vdev_id())),
        None => Err(PoolError::CannotRemove {
            device: device.to_owned(),
            why: "no such top-level device with data in pool; see 'zpool status'".to_owned(),
        }),
    }
}
