//! Checkpoints: a past state of the whole pool that it can go back to.
//!
//! A checkpoint is the uberblock of a synced txg, kept in the MOS's object directory. It is put
//! there by a task that runs before anything else of the next txg, so that no block of that state
//! is freed without the pipeline knowing ([`zio::pipeline::Dvas::set_checkpoint`]): from then on
//! what the state has stays allocated, and each vdev's checkpoint space map lists what the pool
//! itself has freed of it ([`space`]). Going back is an import ([`crate::rewind`]).
//!
//! Discarding takes the uberblock out of the directory, again as the first thing of a txg, and then
//! frees what the maps list, a bounded number of ranges per txg, from their ends. The feature
//! `zpool_checkpoint` stays active until the last map is gone.
//!
//! Only the sync loop changes it, and `admin` is held while a checkpoint is
//! made or discarded. A crash leaves one of: no checkpoint, a checkpoint, or a discard under way,
//! which the next import goes on with.
//!
//! Source: module/zfs/spa_checkpoint.c.

pub(crate) mod command;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use dataset::Features;
use format::{Guid, Txg, Uberblock};
use parking_lot::Mutex;
use scan::Scan;
use spa::features::ZPOOL_CHECKPOINT;
use spa::{Participant, Pass, Spa, Turn};

use crate::standby::Spares;

/// Ranges that are freed in one txg (half of what fits into `zfs_spa_discard_memory_limit`).
const DISCARD_STEP: usize = 512 << 10;

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
