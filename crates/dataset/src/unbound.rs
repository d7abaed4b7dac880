//! Whom limits on filesystems and snapshots do not bind: root, and who runs the server; and, of a
//! limit that `zfs allow` lets somebody change, that one (`dsl_enforce_ds_ss_limits`,
//! module/zfs/dsl_dir.c). Whoever works for somebody says so ([`with_limits`]), and tasks that are
//! queued by that carry it to the sync loop.

use std::sync::Arc;

use device::BoxFuture;
use object::SyncContext;

use crate::DatasetError;
use crate::credentials::Credentials;
use crate::task::{SpaceCheck, SyncTask};

/// Which limits on filesystems and snapshots bind.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Limited {
    /// All.
    #[default]
    ByAll,
    /// Those that these may not change.
    ByOthers(Arc<Credentials>),
    /// None.
    ByNone,
}

tokio::task_local! {
    /// Which limits bind whom the task works for.
    static LIMITED: Limited;
}

/// Works for somebody whom these limits bind.
pub async fn with_limits<T>(limited: Limited, work: impl Future<Output = T>) -> T {
    LIMITED.scope(limited, work).await
}

/// Which limits bind whom this works for.
pub(crate) fn limited() -> Limited {
    LIMITED.try_with(Clone::clone).unwrap_or_default()
}

/// The task as the sync loop is to run it: for the one who asks for it here.
pub(crate) fn carried(task: Arc<dyn SyncTask>) -> Arc<dyn SyncTask> {
    match limited() {
        Limited::ByAll => task,
        limited => Arc::new(Unbound(task, limited)),
    }
}

/// A task of somebody whom not all limits bind.
struct Unbound(Arc<dyn SyncTask>, Limited);

impl SyncTask for Unbound {
    fn name(&self) -> &'static str {
        self.0.name()
    }
    fn check<'a>(&'a self, ctx: &'a SyncContext) -> BoxFuture<'a, Result<(), DatasetError>> {
        Box::pin(with_limits(self.1.clone(), self.0.check(ctx)))
    }
    fn space_check(&self) -> SpaceCheck {
        self.0.space_check()
    }
    fn blocks(&self) -> u64 {
        self.0.blocks()
    }
    fn is_early(&self) -> bool {
        self.0.is_early()
    }
    fn apply<'a>(&'a self, ctx: &'a SyncContext) -> BoxFuture<'a, Result<(), DatasetError>> {
        Box::pin(with_limits(self.1.clone(), self.0.apply(ctx)))
    }
}
