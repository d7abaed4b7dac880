//! Property `bootfs`: the filesystem or snapshot that a boot loader starts from.
//!
//! It is stored as the dataset's object number in the MOS (`spa_prop_validate`, `spa_sync_props`,
//! module/zfs/spa.c), so it follows renames. Who destroys the dataset takes it away in the same txg
//! (`spa_prop_clear_bootfs`), as the number may be used again.

use std::sync::Arc;

use dataset::{DatasetError, DatasetKind, DslPool};
use format::ObjectId;
use object::{ObjectSet, SyncContext, Zap};
use parking_lot::Mutex;
use zio::Tx;
use zio::pipeline::may_fail;

use crate::PoolError;

/// Its name among the pool's properties.
pub const NAME: &str = "bootfs";

/// Where the property is stored, and the dataset.
struct Entry {
    mos: Arc<ObjectSet>,
    properties: ObjectId,
    dataset: ObjectId,
}

/// The `bootfs` of an open pool. Changed in syncing context and at the import only.
#[derive(Default)]
pub struct BootFs {
    entry: Mutex<Option<Entry>>,
}

impl BootFs {
    /// Notes what object `properties` of the MOS says; zero is none.
    pub fn set(&self, mos: &Arc<ObjectSet>, properties: ObjectId, dataset: ObjectId) {
        *self.entry.lock() = (!dataset.is_zero()).then(|| Entry {
            mos: mos.clone(),
            properties,
            dataset,
        });
    }

    /// The dataset's object number.
    pub fn dataset(&self) -> Option<ObjectId> {
        self.entry.lock().as_ref().map(|entry| entry.dataset)
    }

    /// Takes the property away if this dataset has it; where it cannot be read it stays, which
    /// keeps no dataset from being destroyed. Syncing context only.
    pub async fn destroying(
        &self,
        ctx: &SyncContext,
        dataset: ObjectId,
    ) -> Result<(), DatasetError> {
        if self.dataset() != Some(dataset) {
            return Ok(());
        }
        let Some(entry) = self.entry.lock().take() else {
            return Ok(());
        };
        let removed = may_fail(async {
            let zap = Zap::hold(&entry.mos, entry.properties).await?;
            zap.remove(&Tx::syncing(ctx.txg), NAME).await
        });
        if let Err(error) = removed.await {
            tracing::warn!(%dataset, %error, "property bootfs keeps the number of what is gone");
        }
        Ok(())
    }
}

/// The object number of what a person wants to boot from; zero for an empty name.
///
/// # Errors
/// [`PoolError::BadProperty`] if it cannot be: no filesystem or snapshot of one in this pool.
pub async fn find(dsl: &Arc<DslPool>, name: &str) -> Result<ObjectId, PoolError> {
    let bad = |why: &str| PoolError::BadProperty {
        property: NAME.to_owned(),
        value: name.to_owned(),
        why: why.to_owned(),
    };
    if name.is_empty() {
        return Ok(ObjectId::ZERO);
    }
    let below = name.strip_prefix(&dsl.pool_name());
    // As with OpenZFS, a snapshot of the pool's own filesystem is none (`bootfs_name_valid`,
    // lib/libzfs/libzfs_pool.c).
    if !below.is_some_and(|rest| rest.is_empty() || rest.starts_with('/')) {
        return Err(bad(
            "it is an invalid name: give a filesystem or snapshot of this pool",
        ));
    }
    match dsl.directories().lookup(name).await {
        Ok(info) if info.head_kind == DatasetKind::Filesystem => Ok(info.object),
        Ok(_) => Err(bad(
            "property 'bootfs' not supported on volumes; give a filesystem",
        )),
        Err(DatasetError::NotFound { .. } | DatasetError::InvalidName { .. }) => Err(bad(
            "there is no such dataset; give a filesystem or snapshot of this pool",
        )),
        Err(error) => Err(error.into()),
    }
}
