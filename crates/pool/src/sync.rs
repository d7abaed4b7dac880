//! The sync loop: one task per pool that writes transaction groups to disk, one after the other.
//!
//! One txg is written in passes, until nothing in the MOS is dirty any more: writing the MOS
//! allocates and frees blocks, recording that changes space maps, which are in the MOS. It
//! converges because from pass 2 on blocks of the MOS born in the same txg are rewritten in place.
//!
//! 1. pass 1: tasks that must be first (checkpoints), then the participants' early turns
//!    ([`spa::Participant`]): claims of logs, history, logs of dedup, the configuration
//! 2. dirty datasets, sync tasks, the MOS
//! 3. the participants' turns, in an order that matters ([`Core::participants`]): what was freed is
//!    settled, space is recorded, the configuration is written if any of that changed it
//! 4. pass 1, if there is anything to write: what other releases left to do
//! 5. again from 2, while the MOS is dirty
//! 6. if devices failed to take or to flush something since what they lack was recorded: again from
//!    2
//! 7. labels and uberblocks: the configuration first where it changed, in the order that leaves one
//!    valid set of labels at any moment; then the txg is on disk. Who waits for its sync tasks is
//!    told last of all
//!
//! A pool that was frozen, for a test, closes no more txgs: what its intent logs have is all that
//! is added to it, and it is left as after a crash.
//!
//! A txg with nothing to write leaves no trace. A crash before the new uberblock leaves the
//! previous txg, whole, since nothing it refers to is overwritten before two more txgs passed.
//!
//! When a write fails beyond redundancy the pipeline suspends the pool and the write waits inside
//! it for `zpool clear`; so does a read when a device that stopped working may have the block, or
//! one that works did not give it ([`zio::pipeline::must_succeed`]). An error that comes out here
//! is one that cannot be retried (damage, no space, abandoned): the loop stops and the pool stays
//! suspended until it is exported by force.
//!
//! Source: module/zfs/spa.c (`spa_sync`, `spa_sync_iterate_to_convergence`).

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use device::BoxFuture;
use format::{Txg, Uberblock};
use futures::future::{Either, select};
use object::SyncContext;
use spa::Pass;
use spa::events::Sysevent;
use vdev::{LabelSync, VdevError};
use zio::pipeline::must_succeed;
use zio::txg::Work;
use zio::{Tx, ZioError};

use crate::PoolError;
use crate::core::Core;

/// Passes after which a txg is given up: OpenZFS needs fewer than ten.
const PASSES_MAX: u32 = 100;
/// Passes that are made because devices failed in the pass before; then the uberblock is written
/// all the same, as devices that fail without end would stop the pool.
const RECORDING_PASSES_MAX: u32 = 10;
/// How long devices may take over what they have accepted when the pool is given up.
const ABANDONED_PATIENCE: Duration = Duration::from_secs(5);

impl Core {
    /// Runs until the pool is closed. When it is given up, a device that does not answer is not
    /// waited for.
    pub(crate) async fn sync_loop(self: Arc<Self>) {
        let stalled = async {
            self.pipeline.suspension().until_abandoned().await;
            self.world.clock.sleep(ABANDONED_PATIENCE).await;
        };
        if let Either::Right(_) = select(pin!(self.sync_until_stopped()), pin!(stalled)).await {
            self.txgs.stop(ZioError::Closing);
            self.dsl.tasks().close();
        }
    }

    async fn sync_until_stopped(&self) {
        loop {
            match self.txgs.wait_for_work().await {
                Work::Stopped => break,
                Work::Timeout { assigned: false } if !self.has_work() => {
                    self.txgs.skip_timeout();
                    continue;
                }
                _ => {}
            }
            if vdev::injector(&self.tree).is_frozen() {
                // What there is to write stays in memory until the pool is given up, and with it
                // what frees would let be overwritten.
                vdev::injector(&self.tree).hold();
                self.pipeline.suspension().until_abandoned().await;
                self.dsl.tasks().close();
                break;
            }
            let txg = self.txgs.quiesce().await;
            self.passes.write_for_trim(txg);
            match must_succeed(self.sync_txg(txg)).await {
                Ok(()) => self.txgs.synced(txg),
                Err(error) => {
                    self.fail(txg, &error);
                    break;
                }
            }
        }
    }

    fn fail(&self, txg: Txg, error: &PoolError) {
        tracing::error!(pool = %self.identity.name(), %txg, %error, "the pool stopped writing");
        let reason = format!("txg {txg} cannot be written: {error}");
        self.state.lock().failure = Some(reason.clone());
        let error = ZioError::Suspended { reason };
        self.pipeline.suspension().suspend(error.clone());
        self.txgs.stop(error);
        self.dsl.tasks().close();
    }

    /// Whether a txg is needed although nobody asked for one.
    fn has_work(&self) -> bool {
        self.participants()
            .iter()
            .any(|participant| participant.has_work(self))
            || self.dsl.syncer().has_dirty(self.txgs.open_txg())
            || self.pipeline.allocator().has_deferred()
    }

    pub(crate) fn context(&self, txg: Txg, pass: u32) -> SyncContext {
        SyncContext {
            txg,
            pass,
            pipeline: self.pipeline.clone(),
            world: self.world.clone(),
            txgs: Some(self.txgs.clone()),
        }
    }

    /// Writes one closed txg. In a box: what waits for it would else be a future too deep for the
    /// compiler.
    pub(crate) fn sync_txg(&self, txg: Txg) -> BoxFuture<'_, Result<(), PoolError>> {
        Box::pin(self.sync_passes(txg))
    }

    async fn sync_passes(&self, txg: Txg) -> Result<(), PoolError> {
        let tx = Tx::syncing(txg);
        let participants = self.participants();
        let is_scanning = || self.scans.is_scanning();
        let mut number = 0;
        let mut recordings = 0;
        loop {
            number += 1;
            if number > PASSES_MAX {
                return Err(PoolError::Damaged {
                    pool: self.identity.name(),
                    what: "the sync loop".into(),
                    why: format!("txg {txg} does not converge in {PASSES_MAX} passes"),
                });
            }
            let ctx = self.context(txg, number);
            let pass = Pass {
                spa: self,
                ctx: &ctx,
                tx: &tx,
                is_scanning: &is_scanning,
            };
            if pass.is_first() {
                self.dsl.tasks().run_early(&ctx).await?;
                for participant in &participants {
                    participant.early(&pass).await?;
                }
            }
            self.dsl.syncer().pass(&ctx).await?;
            for participant in &participants {
                participant.pass(&pass).await?;
            }
            if pass.is_first() {
                if !pass.is_dirty() {
                    break;
                }
                for participant in &participants {
                    participant.late(&pass).await?;
                }
            }
            if self.dsl.mos().is_dirty(txg) || self.pipeline.dedup().has_work(txg) {
                continue;
            }
            if !self.wrote(txg) {
                break;
            }
            let is_last = recordings == RECORDING_PASSES_MAX;
            match self.write_labels(txg, is_last).await {
                Err(PoolError::Zio(ZioError::Vdev(VdevError::Unrecorded))) => recordings += 1,
                written => {
                    written?;
                    break;
                }
            }
        }
        let wrote = self.wrote(txg);
        self.dsl.syncer().done(txg);
        self.pipeline.end_txg(txg).await;
        for participant in &participants {
            participant.done(self, txg, wrote);
        }
        self.dsl.tasks().answer(txg);
        if self.checkpoint.is_discarding() {
            self.txgs.kick();
        }
        tracing::debug!(%txg, passes = number, "synced");
        Ok(())
    }

    /// The last step: labels, if the configuration changed, and the uberblock.
    /// Fails with [`VdevError::Unrecorded`], before anything is written, when devices lack what the
    /// MOS does not tell; unless it is written `anyway`.
    async fn write_labels(&self, txg: Txg, anyway: bool) -> Result<(), PoolError> {
        let config = self.identity.has_changed();
        let multihost = self.multihost_of_txg();
        let (reflow_offset_bytes, reflow_state) = self.tree.reflow();
        let uberblock = Uberblock {
            endian: format::Endian::Little,
            version: self.identity.lock().version,
            txg,
            guid_sum: self.tree.guid_sum(),
            timestamp_seconds: self.world.clock.wall_ns() / 1_000_000_000,
            root: self.dsl.root_bp(),
            software_version: Uberblock::VERSION_FEATURES,
            multihost: Some(multihost),
            checkpoint_txg: Txg::ZERO,
            reflow_offset_bytes,
            reflow_state,
        };
        let list = config.then(|| self.pairs(txg).label_config());
        let is_recorded = || {
            let is_scanning = self.scans.is_scanning();
            anyway || self.dirty_times.is_recorded(&self.tree, is_scanning)
        };
        let sync = LabelSync {
            is_recorded: &is_recorded,
            uberblock: &uberblock,
            multihost: self.is_multihost(),
            config: list.as_ref(),
        };
        self.uberblock_begins(&uberblock);
        self.pipeline.sync_labels(&sync).await?;
        self.uberblock_written(&uberblock);
        self.state.lock().uberblock = uberblock;
        if config {
            self.events.tell(Sysevent::ConfigSync);
        }
        Ok(())
    }

    /// Makes the checkpoint the newest state, as an uberblock of `txg` that says so
    /// (`spa_ld_checkpoint_rewind`): what is written next may overwrite the state in which the
    /// checkpoint is recorded.
    pub(crate) async fn begin_at_checkpoint(&self, txg: Txg) -> Result<(), PoolError> {
        let checkpoint = self.state.lock().uberblock;
        let uberblock = Uberblock {
            txg,
            timestamp_seconds: self.world.clock.wall_ns() / 1_000_000_000,
            checkpoint_txg: checkpoint.txg,
            ..checkpoint
        };
        let list = self.pairs(txg).label_config();
        let sync = LabelSync {
            is_recorded: &|| true,
            uberblock: &uberblock,
            multihost: self.is_multihost(),
            config: Some(&list),
        };
        self.uberblock_begins(&uberblock);
        self.pipeline.sync_labels(&sync).await?;
        self.uberblock_written(&uberblock);
        self.state.lock().uberblock = uberblock;
        Ok(())
    }
}
