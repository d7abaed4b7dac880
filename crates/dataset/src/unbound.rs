//! Whom limits on filesystems and snapshots do not bind: root, and who runs the server; not yet
//! whom `zfs allow` lets change them (`dsl_enforce_ds_ss_limits`, module/zfs/dsl_dir.c). Whoever
//! works for such a one says so ([`lift_limits`]), and tasks that are queued by that carry it to
//! the sync loop.

use std::sync::Arc;

use device::BoxFuture;
use object::SyncContext;

use crate::DatasetError;
use crate::task::{SpaceCheck, SyncTask};

tokio::task_local! {
    /// Whether no limit binds whom the task works for.
    static LIFTED: bool;
}

/// Works for somebody whom limits do not bind, where they are `lifted`.
pub async fn lift_limits<T>(lifted: bool, work: impl Future<Output = T>) -> T {
    LIFTED.scope(lifted, work).await
}

/// Whether no limit binds whom this works for.
pub(crate) fn are_lifted() -> bool {
    LIFTED.try_with(|lifted| *lifted).unwrap_or(false)
}

/// The task as the sync loop is to run it: for the one who asks for it here.
pub(crate) fn carried(task: Arc<dyn SyncTask>) -> Arc<dyn SyncTask> {
    match are_lifted() {
        true => Arc::new(Unbound(task)),
        false => task,
    }
}

/// A task of somebody whom limits do not bind.
struct Unbound(Arc<dyn SyncTask>);

impl SyncTask for Unbound {
    fn name(&self) -> &'static str {
        self.0.name()
    }
    fn check<'a>(&'a self, ctx: &'a SyncContext) -> BoxFuture<'a, Result<(), DatasetError>> {
        Box::pin(lift_limits(true, self.0.check(ctx)))
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
        Box::pin(lift_limits(true, self.0.apply(ctx)))
    }
}
