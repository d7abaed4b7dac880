//! Checkpoints: a past state of the whole pool that it can go back to.
//!
//! A checkpoint is the uberblock of a synced txg, kept in the MOS's object directory. It is put there by a task that runs
//! before anything else of the next txg, so that no block of that state is freed without the pipeline knowing
//! ([`zio::pipeline::Dvas::set_checkpoint`]): from then on what the state has stays allocated, and each vdev's checkpoint space
//! map lists what the pool itself has freed of it ([`space`]). Going back is an import ([`crate::rewind`]).
//!
//! Discarding takes the uberblock out of the directory, again as the first thing of a txg, and then frees what the maps
//! list, a bounded number of ranges per txg, from their ends. The feature `zpool_checkpoint` stays active until the last
//! map is gone.
//!
//! Only the sync loop changes it, and `admin` is held while a checkpoint is
//! made or discarded. A crash leaves one of: no checkpoint, a checkpoint, or a discard under way, which the next import
//! goes on with.
//!
//! Source: module/zfs/spa_checkpoint.c.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use dataset::{DatasetError, Features, SpaceCheck, SyncTask};
use device::BoxFuture;
use format::{Guid, ObjectId, Txg, Uberblock};
use object::{SyncContext, Zap, ZapValue};
use parking_lot::Mutex;
use scan::Scan;
use spa::features::ZPOOL_CHECKPOINT;
use spa::{Participant, Pass, Spa, Turn, directory};
use zio::Tx;

use crate::PoolError;
use crate::core::Core;
use crate::removed::RemovalState;
use crate::spares::Spares;

/// Ranges that are freed in one txg (half of what fits into `zfs_spa_discard_memory_limit`).
const DISCARD_STEP: usize = 512 << 10;
/// Units that the offset of a space map's entry of one word can count (`SM_OFFSET_BITS`), as a power of two.
const OFFSET_BITS: u32 = 47;

/// A checkpoint, or what is left of one that is being discarded.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CheckpointStatus {
    /// When it was made, in seconds since 1970; `None` while it is being discarded.
    pub created_s: Option<u64>,
    /// Space that only the checkpoint uses, by top-level vdev.
    pub space_bytes: BTreeMap<Guid, u64>,
}

/// Whether the pool has a checkpoint.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum CheckpointState {
    /// It has none.
    #[default]
    None,
    /// It has one.
    Exists {
        /// The last txg of that state.
        txg: Txg,
        /// When it was made, in seconds since 1970.
        created_s: u64,
    },
    /// What it kept is being freed.
    Discarding,
}

impl CheckpointState {
    /// As the MOS tells: the feature is active until all that the checkpoint kept is free.
    pub(crate) fn load(uberblock: Option<&Uberblock>, features: &Features) -> Self {
        match uberblock {
            Some(uberblock) => Self::Exists {
                txg: uberblock.txg,
                created_s: uberblock.timestamp_seconds,
            },
            None if features.is_active(ZPOOL_CHECKPOINT) => Self::Discarding,
            None => Self::None,
        }
    }

    /// Blocks born up to this txg are the checkpoint's; zero without one.
    pub(crate) const fn txg(&self) -> Txg {
        match self {
            Self::Exists { txg, .. } => *txg,
            Self::None | Self::Discarding => Txg::ZERO,
        }
    }
}

/// The pool's checkpoint. Only the sync loop changes it.
pub(crate) struct Checkpoint {
    state: Mutex<CheckpointState>,
    /// Ranges of a discarded checkpoint that are freed in one txg.
    step: AtomicUsize,
    scan: Arc<Scan>,
    spares: Arc<Spares>,
}

impl Checkpoint {
    /// Resilvers of this scan do not count, and none of these spares stands in, while there is one.
    pub(crate) fn new(state: CheckpointState, scan: &Arc<Scan>, spares: &Arc<Spares>) -> Self {
        Checkpoint {
            scan: scan.clone(),
            spares: spares.clone(),
            state: Mutex::new(state),
            step: AtomicUsize::new(DISCARD_STEP),
        }
    }

    /// Whether there is one.
    pub(crate) fn state(&self) -> CheckpointState {
        *self.state.lock()
    }

    /// Whether what a discarded checkpoint kept is being freed.
    pub(crate) fn is_discarding(&self) -> bool {
        self.state() == CheckpointState::Discarding
    }

    /// Changes how much is freed of a discarded checkpoint in one txg.
    pub(crate) fn set_discard_step(&self, ranges: usize) {
        self.step.store(ranges.max(1), Ordering::Relaxed);
    }
}

impl Participant for Checkpoint {
    fn has_work(&self, _spa: &Spa) -> bool {
        self.is_discarding()
    }

    /// Frees a part of what a discarded checkpoint kept, in the first pass of a txg; says so when
    /// it was the last (`spa_checkpoint_discard_thread_sync`,
    /// `spa_checkpoint_discard_complete_sync`).
    fn pass<'a>(&'a self, pass: &'a Pass<'a>) -> Turn<'a> {
        Box::pin(async move {
            if !pass.is_first() || !self.is_discarding() {
                return Ok(());
            }
            let (spa, step) = (pass.spa, self.step.load(Ordering::Relaxed));
            if spa.space.discard(&pass.space(), step).await? {
                return Ok(());
            }
            let features = spa.dsl.features();
            features.decrement(pass.ctx, ZPOOL_CHECKPOINT).await?;
            spa.history
                .internal(
                    pass.tx,
                    "spa discard checkpoint",
                    "finished discarding checkpointed state from the pool".into(),
                )
                .await;
            *self.state.lock() = CheckpointState::None;
            // A resilver that did not count, as it had not met what only the checkpoint had, is
            // repeated; and spares may stand in.
            self.scan.forget_unmended();
            self.spares.want_all(&spa.tree);
            spa.txgs.kick();
            Ok(())
        })
    }
}

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
    let is_running = |removal: &crate::RemovalStatus| removal.state == RemovalState::Running;
    if core.tables.removal.as_ref().is_some_and(is_running) {
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

    /// Who asked before may not have waited for the answer, and then does not hold `admin` any more.
    fn check<'a>(&'a self, _ctx: &'a SyncContext) -> BoxFuture<'a, Result<(), DatasetError>> {
        let state = self.core.checkpoint.state();
        Box::pin(std::future::ready(match (self.step, state) {
            (Step::Take, CheckpointState::None) => Ok(()),
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
        // A txg in which nothing happened wrote no uberblock: the state is the last one's all the same.
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
