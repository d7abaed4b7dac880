//! Sync tasks: changes to the pool's own state, made in syncing context, each whole or not at all.

use device::BoxFuture;
use format::{NvList, ObjectId, Txg};
use object::SyncContext;

use crate::DatasetError;

/// How much of the pool's space must be left for a task (`zfs_space_check_t`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SpaceCheck {
    /// All but the slop space may be used before.
    Normal,
    /// Half of the slop space may be used too: for what frees space in the end.
    Reserved,
    /// Three quarters of it.
    ExtraReserved,
    /// It is done whatever is left.
    #[default]
    None,
}

/// Blocks that any task may write.
pub(crate) const BLOCKS_MIN: u64 = 3;

/// A change to the pool's state, run by the sync loop in the first pass of the txg it was given
/// to. [`SyncTask::check`] looks and refuses; [`SyncTask::apply`] then must succeed: an error of it
/// is a failure of the pool (I/O, damage), not of the request.
pub trait SyncTask: Send + Sync {
    /// What it does, in a word or two; for messages.
    fn name(&self) -> &'static str;
    /// Whether it can be done, at this moment, given everything that was done before it.
    fn check<'a>(&'a self, ctx: &'a SyncContext) -> BoxFuture<'a, Result<(), DatasetError>>;
    /// How much space must be left.
    fn space_check(&self) -> SpaceCheck {
        SpaceCheck::None
    }
    /// Blocks of the pool's own that it writes, about: as many as it has things to change, or some
    /// times that (`blocks_modified` of `dsl_sync_task`). For the check of space.
    fn blocks(&self) -> u64 {
        BLOCKS_MIN
    }
    /// Whether it is done before anything else of its txg is written (`dsl_early_sync_task`).
    fn is_early(&self) -> bool {
        false
    }
    /// Does it.
    fn apply<'a>(&'a self, ctx: &'a SyncContext) -> BoxFuture<'a, Result<(), DatasetError>>;
}

/// Something that happened to a dataset, for the pool's history
/// (`spa_history_log_internal_ds`, module/zfs/spa_history.c).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HistoryEvent {
    /// What happened: `create`, `snapshot`, `destroy`, `set`, ...
    pub event: &'static str,
    /// The dataset's full name.
    pub dataset: String,
    /// Its object number in the MOS.
    pub dataset_object: u64,
    /// More about it.
    pub text: String,
}

/// What the layer above does for this one.
pub trait DslHooks: Send + Sync {
    /// Writes an event to the pool's history, in syncing context.
    fn history<'a>(
        &'a self,
        ctx: &'a SyncContext,
        event: HistoryEvent,
    ) -> BoxFuture<'a, Result<(), DatasetError>>;

    /// A request of this name was fulfilled, for the pool's history: what OpenZFS records of its
    /// ioctls, with what was asked (`zfsdev_ioctl_common`, module/zfs/zfs_ioctl.c).
    fn fulfilled(&self, _request: &'static str, _input: NvList) {}

    /// A dataset or snapshot is being destroyed in this txg, in syncing context; its object number
    /// may be used again. `next` is what follows a snapshot; `None` for a live dataset.
    fn destroying<'a>(
        &'a self,
        _ctx: &'a SyncContext,
        _dataset: ObjectId,
        _next: Option<ObjectId>,
    ) -> BoxFuture<'a, Result<(), DatasetError>> {
        Box::pin(async { Ok(()) })
    }

    /// The intent log of a live dataset cannot be replayed, for this reason: it is kept, and the
    /// dataset cannot be used.
    fn log_not_replayed(&self, _dataset: &str, _object: ObjectId, _reason: &str) {}

    /// In this txg, `snapshot` was taken of the live dataset `head`.
    fn snapshotted(&self, _head: ObjectId, _snapshot: ObjectId) {}

    /// In this txg, two live datasets exchange what they refer to.
    fn swapped(&self, _a: ObjectId, _b: ObjectId) {}

    /// A live dataset was destroyed in this txg; its object number may be used again.
    fn destroyed(&self, _head: ObjectId) {}

    /// In this txg, snapshots up to the one made in `origin_txg` became those of `new_head`, and
    /// were of `old_head` before.
    fn promoted(&self, _new_head: ObjectId, _old_head: ObjectId, _origin_txg: Txg) {}
}

/// Keeps no history.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoHooks;

impl DslHooks for NoHooks {
    fn history<'a>(
        &'a self,
        _ctx: &'a SyncContext,
        _event: HistoryEvent,
    ) -> BoxFuture<'a, Result<(), DatasetError>> {
        Box::pin(async { Ok(()) })
    }
}
