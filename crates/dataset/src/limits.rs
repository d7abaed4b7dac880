//! Limits on the number of filesystems and snapshots (`filesystem_limit`, `snapshot_limit`;
//! `dsl_fs_ss_limit_check` and its like, module/zfs/dsl_dir.c).
//!
//! A directory's ZAP counts what is below it, once a limit was set on it or above it; from then on
//! the counts are kept up. Changed by sync tasks only. Whom limits do not bind is in `unbound`.

use std::sync::Arc;

use device::BoxFuture;
use format::names;
use object::{SyncContext, Zap};
use zio::Tx;

use crate::DatasetError;
use crate::dsl::DslPool;
use crate::features::guid;
use crate::state::Dir;
use crate::unbound::{Limited, limited};

/// Limits on filesystems and snapshots: [`DslPool::limits`].
#[derive(Clone, Copy)]
pub(crate) struct Limits<'a> {
    pub(crate) dsl: &'a Arc<DslPool>,
}

impl DslPool {
    /// Limits on the number of filesystems and snapshots.
    pub(crate) fn limits(self: &Arc<Self>) -> Limits<'_> {
        Limits { dsl: self }
    }
}

impl Limits<'_> {
    /// Changes a count of filesystems or snapshots, here and above, as far as it is kept
    /// (`dsl_fs_ss_count_adjust`).
    pub(crate) async fn adjust(
        &self,
        ctx: &SyncContext,
        dir: &Arc<Dir>,
        delta: i64,
        which: &str,
    ) -> Result<(), DatasetError> {
        let tx = Tx::syncing(ctx.txg);
        let mut at = Some(dir.clone());
        while let Some(dir) = at {
            let (is_hidden, is_zapified, parent) = {
                let state = dir.state();
                (
                    state.name.starts_with('$') && which == names::directory::FILESYSTEM_COUNT,
                    state.is_zapified,
                    state.parent.clone(),
                )
            };
            if is_hidden || delta == 0 || !is_zapified {
                return Ok(());
            }
            let zap = Zap::hold(self.dsl.mos(), dir.object).await?;
            let Some(count) = zap.lookup_u64(which).await? else {
                return Ok(());
            };
            zap.update_u64(&tx, which, count.saturating_add_signed(delta))
                .await?;
            at = parent;
        }
        Ok(())
    }

    /// Counts what is below a directory on which a limit was set, so that it can be enforced
    /// (`dsl_dir_init_fs_ss_count`); from then on the counts are kept up.
    pub(crate) async fn count_below(
        &self,
        ctx: &SyncContext,
        dir: &Arc<Dir>,
    ) -> Result<(), DatasetError> {
        if !self.dsl.features().is_enabled(guid::FILESYSTEM_LIMITS) {
            return Err(DatasetError::Unsupported {
                name: self.dsl.pool_name(),
                what: "a limit on filesystems or snapshots".into(),
            });
        }
        if !self.dsl.features().is_active(guid::FILESYSTEM_LIMITS) {
            self.dsl
                .features()
                .increment(ctx, guid::FILESYSTEM_LIMITS)
                .await?;
        }
        self.init_counts(ctx, dir).await?;
        Ok(())
    }

    fn init_counts<'a>(
        &'a self,
        ctx: &'a SyncContext,
        dir: &'a Arc<Dir>,
    ) -> BoxFuture<'a, Result<(u64, u64), DatasetError>> {
        Box::pin(async move {
            let tx = Tx::syncing(ctx.txg);
            if dir.state().is_zapified {
                let zap = Zap::hold(self.dsl.mos(), dir.object).await?;
                if let (Some(filesystems), Some(snapshots)) = (
                    zap.lookup_u64(names::directory::FILESYSTEM_COUNT).await?,
                    zap.lookup_u64(names::directory::SNAPSHOT_COUNT).await?,
                ) {
                    return Ok((filesystems, snapshots));
                }
            }
            let (mut filesystems, mut snapshots) = (0, 0);
            let children = dir.state().phys.child_directories;
            for entry in Zap::hold(self.dsl.mos(), children).await?.all().await? {
                if entry.name.starts_with(b"$") || entry.name.starts_with(b"%") {
                    continue;
                }
                let child = self
                    .dsl
                    .directories()
                    .dir(entry.value.as_u64().unwrap_or(0).into())
                    .await?;
                let (below, of_them) = self.init_counts(ctx, &child).await?;
                filesystems += below + 1;
                snapshots += of_them;
            }
            let head = self.dsl.directories().head(dir).await?;
            let names = head.phys().snapshot_names;
            snapshots += Zap::hold(self.dsl.mos(), names).await?.count().await?;
            let zap = self.dsl.zapify_dir(ctx, dir).await?;
            zap.update_u64(&tx, names::directory::FILESYSTEM_COUNT, filesystems)
                .await?;
            zap.update_u64(&tx, names::directory::SNAPSHOT_COUNT, snapshots)
                .await?;
            Ok((filesystems, snapshots))
        })
    }

    /// Refuses what would exceed a limit here or above (`dsl_fs_ss_limit_check`) that binds who
    /// asks. `below` is where to stop.
    pub(crate) async fn check(
        &self,
        dir: &Arc<Dir>,
        more: u64,
        which: &str,
        below: Option<&Arc<Dir>>,
    ) -> Result<(), DatasetError> {
        let limited = limited();
        if limited == Limited::ByNone {
            return Ok(());
        }
        let property = if which == names::directory::FILESYSTEM_COUNT {
            "filesystem_limit"
        } else {
            "snapshot_limit"
        };
        let mut at = Some(dir.clone());
        while let Some(dir) = at {
            if more == 0 || below.is_some_and(|below| Arc::ptr_eq(below, &dir)) {
                return Ok(());
            }
            let (is_zapified, parent) = {
                let state = dir.state();
                (state.is_zapified, state.parent.clone())
            };
            if !is_zapified {
                return Ok(());
            }
            let zap = Zap::hold(self.dsl.mos(), dir.object).await?;
            let Some(count) = zap.lookup_u64(which).await? else {
                return Ok(());
            };
            let limit = self
                .dsl
                .properties()
                .own_setting(&dir, property)
                .await?
                .unwrap_or(u64::MAX);
            let is_bound = match &limited {
                _ if count.saturating_add(more) <= limit => false,
                Limited::ByOthers(who) => {
                    let delegation = self.dsl.delegation();
                    !delegation.allows_at(&dir, property, who).await?
                }
                Limited::ByAll | Limited::ByNone => true,
            };
            if is_bound {
                return Err(DatasetError::LimitReached {
                    name: dir.full_name(&self.dsl.pool_name()),
                    property,
                });
            }
            at = parent;
        }
        Ok(())
    }
}
