//! Making a checkpoint and discarding it, as commands and in syncing context.

use std::sync::Arc;

use dataset::{DatasetError, SpaceCheck, SyncTask};
use device::BoxFuture;
use format::{ObjectId, Txg, Uberblock};
use object::{SyncContext, Zap, ZapValue};
use spa::directory;
use spa::features::ZPOOL_CHECKPOINT;
use zio::Tx;

use super::{CheckpointState, CheckpointStatus};
use crate::PoolError;
use crate::core::Core;

/// Units that the offset of a space map's entry of one word can count (`SM_OFFSET_BITS`), as a
/// power of two.
const OFFSET_BITS: u32 = 47;

impl Core {
    /// The pool's checkpoint, with the space that it takes by now.
    pub(crate) fn checkpoint_status(&self) -> Option<CheckpointStatus> {
        let created_s = match self.checkpoint.state() {
            CheckpointState::None => return None,
            CheckpointState::Exists { created_s, .. } => Some(created_s),
            CheckpointState::Discarding => None,
        };
        let space = self.space.checkpoint_bytes().into_iter();
        let by_guid = |(vdev, bytes)| Some((self.tree.top(vdev)?.guid(), bytes));
        Some(CheckpointStatus {
            created_s,
            space_bytes: space.filter_map(by_guid).collect(),
        })
    }

    /// Refuses what would make it impossible to go back to the checkpoint.
    pub(crate) fn check_no_checkpoint(&self) -> Result<(), PoolError> {
        let pool = self.identity.name();
        match self.checkpoint.state() {
            CheckpointState::None => Ok(()),
            CheckpointState::Exists { .. } => Err(PoolError::HasCheckpoint { pool }),
            CheckpointState::Discarding => Err(PoolError::DiscardingCheckpoint { pool }),
        }
    }
}

/// Why no checkpoint can be made now, if so (`spa_checkpoint_check`).
fn check(core: &Core) -> Result<(), PoolError> {
    let refuse = |why: &str| {
        Err(PoolError::CannotCheckpoint {
            pool: core.identity.name(),
            why: why.to_owned(),
        })
    };
    let features = core.dsl.features();
    if !features.is_enabled(ZPOOL_CHECKPOINT) {
        return refuse(
            "feature@zpool_checkpoint is disabled; enable it with 'zpool set' or 'zpool upgrade'",
        );
    }
    let is_too_big = |top: &Arc<vdev::Vdev>| {
        let bits = top.ashift().saturating_add(OFFSET_BITS);
        bits < u64::BITS && top.asize_bytes() >= 1 << bits
    };
    if !features.is_active(space::names::SPACEMAP_V2) && core.tree.tops().iter().any(is_too_big) {
        return refuse("device exceeds supported size; feature@spacemap_v2 lifts the limit");
    }
    if core.evacuation.is_active() {
        return refuse("device removal in progress; wait until it has ended");
    }
    if core.tree.tops().iter().any(|top| top.is_expanding()) {
        return refuse("raidz expansion in progress; wait until it has ended");
    }
    core.check_no_checkpoint()
}

/// Makes a checkpoint of everything that was done before the call.
pub(crate) async fn take(core: &Arc<Core>) -> Result<(), PoolError> {
    let _admin = core.admin.lock().await;
    core.check_not_suspended()?;
    check(core)?;
    core.unless_suspended(core.txgs.sync()).await?;
    run(core, Step::Take).await
}

/// Begins to discard the checkpoint.
pub(crate) async fn discard(core: &Arc<Core>) -> Result<(), PoolError> {
    let _admin = core.admin.lock().await;
    core.check_not_suspended()?;
    match core.check_no_checkpoint() {
        Err(PoolError::HasCheckpoint { .. }) => {}
        Err(error) => return Err(error),
        Ok(()) => {
            let pool = core.identity.name();
            return Err(PoolError::NoCheckpointToDiscard { pool });
        }
    }
    run(core, Step::Discard).await
}

async fn run(core: &Arc<Core>, step: Step) -> Result<(), PoolError> {
    core.run_task(CheckpointTask {
        core: core.clone(),
        step,
    })
    .await
}

#[derive(Debug, Clone, Copy)]
enum Step {
    /// The state as of the txg before becomes the checkpoint.
    Take,
    /// The checkpoint is not one any more; what it kept can go.
    Discard,
}

/// What is done with the checkpoint before anything else of a txg.
struct CheckpointTask {
    core: Arc<Core>,
    step: Step,
}

impl SyncTask for CheckpointTask {
    fn name(&self) -> &'static str {
        match self.step {
            Step::Take => "checkpoint",
            Step::Discard => "discard the checkpoint",
        }
    }

    fn space_check(&self) -> SpaceCheck {
        match self.step {
            Step::Take => SpaceCheck::Normal,
            Step::Discard => SpaceCheck::None,
        }
    }

    fn is_early(&self) -> bool {
        true
    }

    /// Who asked before may not have waited for the answer, and then does not hold `admin` any
    /// more.
    fn check<'a>(&'a self, _ctx: &'a SyncContext) -> BoxFuture<'a, Result<(), DatasetError>> {
        let state = self.core.checkpoint.state();
        let is_removing = self.core.evacuation.is_active();
        Box::pin(std::future::ready(match (self.step, state) {
            (Step::Take, CheckpointState::None) if !is_removing => Ok(()),
            (Step::Discard, CheckpointState::Exists { .. }) => Ok(()),
            _ => Err(DatasetError::Again {
                name: self.core.identity.name(),
            }),
        }))
    }

    fn apply<'a>(&'a self, ctx: &'a SyncContext) -> BoxFuture<'a, Result<(), DatasetError>> {
        match self.step {
            Step::Take => Box::pin(self.core.begin_checkpoint(ctx)),
            Step::Discard => Box::pin(self.core.begin_discard(ctx)),
        }
    }
}

impl Core {
    async fn begin_checkpoint(&self, ctx: &SyncContext) -> Result<(), DatasetError> {
        let tx = Tx::syncing(ctx.txg);
        let last = self.state.lock().uberblock;
        let txg = Txg::new(ctx.txg.get().saturating_sub(1));
        // A txg in which nothing happened wrote no uberblock: the state is the last one's all the
        // same.
        let uberblock = Uberblock {
            txg,
            checkpoint_txg: txg,
            timestamp_seconds: match last.txg == txg {
                true => last.timestamp_seconds,
                false => self.world.clock.wall_ns() / 1_000_000_000,
            },
            ..last
        };
        self.pipeline.dvas().set_checkpoint(txg);
        let encoded = uberblock.encode();
        let words: Vec<u64> = encoded
            .as_chunks::<8>()
            .0
            .iter()
            .map(|word| u64::from_le_bytes(*word))
            .collect();
        Zap::hold(self.dsl.mos(), ObjectId::POOL_DIRECTORY)
            .await?
            .add(&tx, directory::CHECKPOINT, ZapValue::from_u64s(&words))
            .await?;
        self.dsl.features().increment(ctx, ZPOOL_CHECKPOINT).await?;
        let text = format!("checkpointed uberblock txg={txg}");
        self.history.internal(&tx, "spa checkpoint", text).await;
        *self.checkpoint.state.lock() = CheckpointState::Exists {
            txg,
            created_s: uberblock.timestamp_seconds,
        };
        Ok(())
    }

    async fn begin_discard(&self, ctx: &SyncContext) -> Result<(), DatasetError> {
        let tx = Tx::syncing(ctx.txg);
        Zap::hold(self.dsl.mos(), ObjectId::POOL_DIRECTORY)
            .await?
            .remove(&tx, directory::CHECKPOINT)
            .await?;
        self.pipeline.dvas().set_checkpoint(Txg::ZERO);
        let text = "started discarding checkpointed state from the pool".into();
        self.history
            .internal(&tx, "spa discard checkpoint", text)
            .await;
        *self.checkpoint.state.lock() = CheckpointState::Discarding;
        Ok(())
    }
}
