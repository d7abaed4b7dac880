//! Raising a pool's version (`spa_sync_upgrades`, module/zfs/spa.c; `dsl_pool_upgrade_dir_clones`,
//! module/zfs/dsl_pool.c).
//!
//! With version 26 come the pool's list of blocks to be freed, the directory `$FREE` that their
//! space counts for, and lists of clones by directory. Deadlists that are there stay as they are:
//! one becomes a map when the next snapshot is taken, and its keys are made of the snapshots then.
//!
//! # What a crash leaves
//! All of it is one transaction group, whose uberblock says the new version: the old pool or the
//! new one.

use std::sync::Arc;

use format::{ObjectId, names};
use object::{SyncContext, Zap};
use zio::Tx;

use crate::DatasetError;
use crate::dsl::DslPool;
use crate::state::{Dir, Ds};
use crate::version::{DEADLISTS, FEATURES};

/// What an upgrade would make is there.
fn newer_than_version(object: ObjectId) -> DatasetError {
    DatasetError::corrupt(object, "it has what only later versions of pools have")
}

impl DslPool {
    /// Version of the pool: 1 to 28, or 5000 with feature flags.
    pub fn version(&self) -> u64 {
        self.pool_version().get()
    }

    /// Reads what [`Self::upgrade`] will, so that damage refuses it instead of stopping the pool.
    ///
    /// # Errors
    /// Of reading.
    pub async fn check_upgrade(self: &Arc<Self>, to: u64) -> Result<(), DatasetError> {
        if to >= DEADLISTS && !self.pool_version().has_deadlist_maps() {
            let (readable, directories) = (self.readable(), self.directories());
            let (root, free) = (directories.root_dir(), names::hidden_directory::FREE);
            readable.new_dir(root, free).await?;
            let dir = directories.child_dir(root, free).await?;
            let list = self.directory.lookup(names::pool::FREE_BPOBJ).await?;
            if dir.is_some() || list.is_some() {
                return Err(newer_than_version(ObjectId::POOL_DIRECTORY));
            }
            for (head, origin) in self.clones().await? {
                readable.dataset(&head).await?;
                let of = origin.dir();
                readable.whole(of.object).await?;
                if !of.state().phys.clones.is_zero() {
                    return Err(newer_than_version(of.object));
                }
            }
        }
        Ok(())
    }

    /// Raises the version, in syncing context. The uberblock of this transaction group has to say
    /// it too. Where the pool has that version already, nothing is changed.
    ///
    /// # Errors
    /// When the MOS cannot be read or written.
    pub async fn upgrade(self: &Arc<Self>, ctx: &SyncContext, to: u64) -> Result<(), DatasetError> {
        if to >= DEADLISTS && !self.pool_version().has_deadlist_maps() {
            let root = self.directories().root_dir();
            self.destroyer().create(ctx, root).await?;
            self.note_clones(ctx).await?;
        }
        if to >= FEATURES {
            self.features().upgrade(ctx).await?;
        }
        self.pool_version().raise(to);
        self.allow_logs();
        Ok(())
    }

    /// Enters every head into its origin's directory, in syncing context.
    async fn note_clones(self: &Arc<Self>, ctx: &SyncContext) -> Result<(), DatasetError> {
        let tx = Tx::syncing(ctx.txg);
        for (head, origin) in self.clones().await? {
            let datasets = self.datasets();
            datasets.note_clone(&tx, &origin.dir(), head.object).await?;
        }
        Ok(())
    }

    /// Every head that is a clone, which all are but hidden ones, with its origin. What a receive
    /// works in is among them.
    async fn clones(self: &Arc<Self>) -> Result<Vec<(Arc<Ds>, Arc<Ds>)>, DatasetError> {
        let directories = self.directories();
        let mut pending: Vec<Arc<Dir>> = vec![directories.root_dir().clone()];
        let mut clones = Vec::new();
        while let Some(dir) = pending.pop() {
            let (children, origin): (ObjectId, ObjectId) = {
                let state = dir.state();
                (state.phys.child_directories, state.phys.origin)
            };
            for entry in Zap::hold(self.mos(), children).await?.all().await? {
                let name = entry.name_str().into_owned();
                if !name.starts_with('$') {
                    pending.extend(directories.child_dir(&dir, &name).await?);
                }
            }
            if !origin.is_zero() {
                let head = directories.head(&dir).await?;
                clones.push((head, directories.dataset(origin).await?));
            }
        }
        Ok(clones)
    }
}
