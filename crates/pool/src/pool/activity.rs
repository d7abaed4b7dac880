//! Initializing and trimming devices of an open pool.

use device::BoxFuture;
use format::Guid;
use trim::{ActivityKind, ActivityObstacle, ActivityOutcome, ActivitySpec, LeafActivity};

use super::Pool;
use crate::{PoolError, topology};

impl Pool {
    /// Begins or stops to initialize or trim devices, all of them without names. If one has a name
    /// that the pool does not know, it is done on none.
    ///
    /// # Errors
    /// [`PoolError::ReadOnly`], [`PoolError::Suspended`].
    pub async fn activity(
        &self,
        devices: &[String],
        spec: &ActivitySpec,
    ) -> Result<ActivityOutcome, PoolError> {
        self.core.check_writeable()?;
        let find = |name: &str| {
            topology::find(&self.core, name).map_err(|error| match error {
                PoolError::IsSpare { .. } => ActivityObstacle::Spare,
                PoolError::IsCache { .. } => ActivityObstacle::Cache,
                _ => ActivityObstacle::NoSuchDevice,
            })
        };
        let done: BoxFuture<'_, _> =
            Box::pin(trim::command(&self.core.passes, devices, find, spec));
        done.await
    }

    /// Whether the last such work on a device is done.
    pub fn is_activity_complete(&self, leaf: Guid, kind: ActivityKind) -> bool {
        let vdev = self.core.tree.find(leaf);
        vdev.is_some_and(|vdev| self.core.passes.activities.is_complete(&vdev, kind))
    }

    /// Devices that are being initialized or trimmed.
    pub fn activities(&self) -> Vec<LeafActivity> {
        self.core.passes.activities.under_way(&self.core)
    }
}
