//! `zpool attach POOL raidz1-0 DEVICE`: a RAID-Z vdev is made wider.
//!
//! The device is opened and labelled with txg 0, as any that is attached ([`crate::topology`]).
//! Then one txg makes it one more child of its vdev, in the tree and in the configuration, and
//! counts the feature; nothing is on it yet. A crash before that leaves a device that is free for
//! any pool. What is moved there after that is the business of [`scan::Expanding`]; in the end the
//! vdev grows by what the device adds.
//!
//! Source: module/zfs/spa.c (`spa_vdev_attach`).

use std::sync::Arc;

use dataset::{DatasetError, SyncTask};
use device::BoxFuture;
use format::{Guid, Txg};
use object::SyncContext;
use parking_lot::Mutex;
use spa::events::{About, Sysevent};
use spa::features;
use vdev::{Scope, Vdev};

use crate::core::Core;
use crate::topology::refuse_own;
use crate::{AttachSpec, PoolError, labelroom};

impl Core {
    /// Makes a device one more child of the RAID-Z vdev `target`. The caller holds `admin`.
    pub(crate) async fn attach_to_raidz(
        self: &Arc<Self>,
        target: Guid,
        spec: &AttachSpec,
    ) -> Result<(), PoolError> {
        if !self.dsl.features().is_enabled(features::RAIDZ_EXPANSION) {
            return Err(PoolError::ExpansionDisabled {
                pool: self.identity.name(),
            });
        }
        let label = {
            // Nobody may hold a top-level vdev for long.
            let top = self.tree.check_widen(target)?;
            refuse_own(self, &spec.device.path, &top, false).await?;
            top.to_config(Scope::Label)
        };
        let (new, create_txg) = self.open_new(target, spec).await?;
        let pairs = self.pairs(Txg::ZERO);
        let leaf = new.to_config(Scope::Label);
        labelroom::check_attach(&pairs, &label, &leaf).inspect_err(|_| new.close())?;
        // The last moment at which nothing is written to the device.
        self.check_not_suspended().inspect_err(|_| new.close())?;
        let refused = Arc::new(Mutex::new(None));
        let result = async {
            let labels = pairs.label_config();
            let fresh = std::slice::from_ref(&new);
            self.tree.init_labels(fresh, &labels, create_txg).await?;
            // Free space that is being discarded may come to belong to others.
            let _gate = self.passes.gate.lock().await;
            let task = ExpandTask {
                core: self.clone(),
                target,
                new: new.clone(),
                refused: refused.clone(),
            };
            self.run_task(task).await?;
            match refused.lock().take() {
                Some(refused) => Err(refused),
                None => Ok(()),
            }
        }
        .await;
        if let Err(error) = &result {
            let error: &PoolError = error;
            // In a suspended pool it may just be becoming a part of it.
            if !error.is_suspended() && self.tree.find(new.guid()).is_none() {
                new.close();
            }
        }
        result
    }
}

struct ExpandTask {
    core: Arc<Core>,
    target: Guid,
    new: Arc<Vdev>,
    refused: Arc<Mutex<Option<PoolError>>>,
}

impl SyncTask for ExpandTask {
    fn name(&self) -> &'static str {
        "expand a raidz vdev"
    }

    fn check<'a>(&'a self, _ctx: &'a SyncContext) -> BoxFuture<'a, Result<(), DatasetError>> {
        Box::pin(async move {
            match self.core.tree.find(self.target) {
                Some(top) => self.core.scans.expanding.check(&top).await,
                None => Ok(()),
            }
        })
    }

    fn apply<'a>(&'a self, ctx: &'a SyncContext) -> BoxFuture<'a, Result<(), DatasetError>> {
        Box::pin(async move {
            let core = &*self.core;
            let (former, after) = match core.tree.widen(self.target, &self.new) {
                Ok(widened) => widened,
                Err(refused) => {
                    *self.refused.lock() = Some(refused.into());
                    return Ok(());
                }
            };
            core.scans.expanding.begin(ctx, former, &after).await?;
            core.identity.mark_dirty();
            core.new_tops.push(after.vdev_id(), ctx.txg);
            core.events
                .tell_vdev(Sysevent::VdevAttach, About::vdev(&self.new));
            Ok(())
        })
    }
}
