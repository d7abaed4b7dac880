//! The handle of an imported pool.

use std::sync::Arc;

use dataset::DslPool;
use device::World;
use format::{Guid, NvList, Txg};

use crate::{
    CreateSpec, EngineError, FeatureStatus, HistoryRecord, ImportSpec, PoolProperty, PoolStatus,
};

/// A pool's space in numbers, all in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PoolNumbers {
    /// Raw space of the normal, special and dedup classes.
    pub size_bytes: u64,
    /// Allocated.
    pub allocated_bytes: u64,
    /// Free.
    pub free_bytes: u64,
    /// Freed in the background, not yet free.
    pub freeing_bytes: u64,
    /// Leaked by a failed background free.
    pub leaked_bytes: u64,
    /// Fragmentation in percent, when known.
    pub fragmentation_percent: Option<u8>,
    /// Space that devices could give to the pool by expansion.
    pub expandsize_bytes: u64,
}

impl PoolNumbers {
    /// Percent allocated.
    pub const fn capacity_percent(&self) -> u64 {
        if self.size_bytes == 0 {
            0
        } else {
            (self.allocated_bytes as u128 * 100 / self.size_bytes as u128) as u64
        }
    }
}

/// One imported pool. Dropping the last handle without [`Pool::export`] leaves the pool as a
/// crash would: consistent at its last synced transaction group.
pub struct Pool {
    _private: (),
}

impl Pool {
    /// Creates a pool and leaves it imported.
    pub async fn create(world: &World, spec: CreateSpec) -> Result<Arc<Pool>, EngineError> {
        let _ = (world, spec);
        todo!()
    }

    /// Imports a pool.
    pub async fn import(world: &World, spec: ImportSpec) -> Result<Arc<Pool>, EngineError> {
        let _ = (world, spec);
        todo!()
    }

    /// Writes everything, marks the pool exported, closes its devices. With `force`, also when it is suspended
    /// (what was not written is lost, and the pool stays as after a crash).
    pub async fn export(&self, force: bool) -> Result<(), EngineError> {
        let _ = force;
        todo!()
    }

    /// Marks the pool destroyed and closes its devices.
    pub async fn destroy(&self) -> Result<(), EngineError> {
        todo!()
    }

    /// Name.
    pub fn name(&self) -> String {
        todo!()
    }

    /// Identity.
    pub fn guid(&self) -> Guid {
        todo!()
    }

    /// Whether it was imported read-only.
    pub fn is_read_only(&self) -> bool {
        todo!()
    }

    /// Prefix of all mount points.
    pub fn altroot(&self) -> Option<&str> {
        todo!()
    }

    /// Datasets.
    pub fn dsl(&self) -> &Arc<DslPool> {
        todo!()
    }

    /// The I/O pipeline (cache statistics, limits).
    pub fn pipeline(&self) -> &Arc<::pool::Pipeline> {
        todo!()
    }

    /// State of the pool and its vdevs.
    pub fn status(&self) -> PoolStatus {
        todo!()
    }

    /// Space in numbers.
    pub fn numbers(&self) -> PoolNumbers {
        todo!()
    }

    /// All properties, feature flags included, in the order of `zpool get all`.
    pub fn props(&self) -> Vec<PoolProperty> {
        todo!()
    }

    /// One property.
    pub fn prop(&self, name: &str) -> Option<PoolProperty> {
        let _ = name;
        todo!()
    }

    /// Sets a property; `feature@NAME` with `enabled` enables a feature.
    pub async fn set_prop(&self, name: &str, value: &str) -> Result<(), EngineError> {
        let _ = (name, value);
        todo!()
    }

    /// Feature flags, in the order of `zpool get all`.
    pub fn features(&self) -> Vec<FeatureStatus> {
        todo!()
    }

    /// Enables every feature that this release supports; returns their names.
    pub async fn upgrade(&self) -> Result<Vec<String>, EngineError> {
        todo!()
    }

    /// The history, oldest first.
    pub async fn history(&self) -> Result<Vec<HistoryRecord>, EngineError> {
        todo!()
    }

    /// Adds a command to the history. Returns once it is queued; it is on disk with the next transaction group.
    pub async fn log_history(&self, command: &str) -> Result<(), EngineError> {
        let _ = command;
        todo!()
    }

    /// Returns once everything done before the call is on disk (`zpool sync`).
    pub async fn sync(&self) -> Result<(), EngineError> {
        todo!()
    }

    /// Last transaction group on disk.
    pub fn synced_txg(&self) -> Txg {
        todo!()
    }

    /// Why the pool is suspended, if it is.
    pub fn suspended(&self) -> Option<String> {
        todo!()
    }

    /// Clears error counters, reopens devices, and resumes a suspended pool (`zpool clear`); `device` limits it to one.
    pub async fn clear(&self, device: Option<&str>) -> Result<(), EngineError> {
        let _ = device;
        todo!()
    }

    /// The configuration as kept in a pool cache: feed it to [`Pool::from_cache`].
    pub fn cached_config(&self) -> NvList {
        todo!()
    }

    /// What to import from a cached configuration, its devices' labels read afresh.
    pub async fn from_cache(
        world: &World,
        config: &NvList,
    ) -> Result<crate::FoundPool, EngineError> {
        let _ = (world, config);
        todo!()
    }
}
