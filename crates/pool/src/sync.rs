//! The sync loop: one task per pool that writes transaction groups to disk, one after the other.
//!
//! One txg is written in passes, until nothing in the MOS is dirty any more: writing the MOS
//! allocates and frees blocks, recording that changes space maps, which are in the MOS. It
//! converges because from pass 2 on blocks of the MOS born in the same txg are rewritten in place.
//!
//! 1. pass 1: tasks that must be first (checkpoints); history that waits; the configuration if it changed; dirty datasets; sync tasks; the MOS
//! 2. pass 1: damaged blocks that were found, into the error logs; every pass: settle the tables of cloned blocks and then those of dedup, with the frees that depend on them; flush some
//!    metaslabs (pass 1), record allocations and frees in space maps
//! 3. pass 1: the configuration again if the tasks changed it; frees left over from another release
//! 4. again from the MOS, while it is dirty
//! 5. labels and uberblocks: the configuration first where it changed, in the order that leaves
//!    one valid set of labels at any moment; then the txg is on disk. Who waits for its sync tasks is told last of all
//!
//! A txg with nothing to write leaves no trace. A crash before the new uberblock leaves the
//! previous txg, whole, since nothing it refers to is overwritten before two more txgs passed.
//!
//! When a write fails beyond redundancy the pipeline suspends the pool and the write waits inside
//! it for `zpool clear`; so does a read when a device that stopped working may have the block, or one that works did
//! not give it ([`zio::Pipeline::syncing`]). An error that comes out here is one that cannot be retried (damage,
//! no space, abandoned): the loop stops and the pool stays suspended until it is exported by force.
//!
//! Source: module/zfs/spa.c (`spa_sync`, `spa_sync_iterate_to_convergence`, `spa_sync_config_object`).

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use device::BoxFuture;
use format::{Guid, NvEncoding, ObjectId, ObjectType, Txg, Uberblock};
use futures::future::{Either, select};
use object::{Bpobj, SyncContext, Zap, ZapOptions, ZapValue};
use vdev::{LabelSync, Scope};
use zio::txg::Work;
use zio::{Tx, ZioError};

use crate::checkpoint::CheckpointState;
use crate::clones::CloneSync;
use crate::core::Core;
use crate::open::scan_status;
use crate::space::SpaceSync;
use crate::{PoolError, config, directory, features};

/// Passes after which a txg is given up: OpenZFS needs fewer than ten.
const PASSES_MAX: u32 = 100;
/// The packed configuration is written in blocks of this size (`SPA_CONFIG_BLOCKSIZE`).
pub(crate) const CONFIG_BLOCK_BYTES: u32 = 16 << 10;
/// How long devices may take over what they have accepted when the pool is given up.
const ABANDONED_PATIENCE: Duration = Duration::from_secs(5);
/// Deferred frees of another release that are processed in one step.
const DEFERRED_STEP: u64 = 100_000;

/// Words of `dsl_scan_phys_t` (include/sys/dsl_scan.h).
const SCAN_STATE: usize = 1;
const SCAN_QUEUE: usize = 2;
const SCAN_END_TIME: usize = 8;
const SCAN_FLAGS: usize = 23;
const SCAN_SCANNING: u64 = 1;
const SCAN_CANCELED: u64 = 3;

impl Core {
    /// Runs until the pool is closed. When it is given up, a device that does not answer is not waited for.
    pub(crate) async fn sync_loop(self: Arc<Self>) {
        let stalled = async {
            self.pipeline.until_abandoned().await;
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
            let txg = self.txgs.quiesce().await;
            self.write_for_trim(txg);
            match self.pipeline.syncing(self.sync_txg(txg)).await {
                Ok(()) => self.txgs.synced(txg),
                Err(error) => {
                    self.fail(txg, &error);
                    break;
                }
            }
        }
    }

    fn fail(&self, txg: Txg, error: &PoolError) {
        tracing::error!(pool = %self.state.lock().name, %txg, %error, "the pool stopped writing");
        let reason = format!("txg {txg} cannot be written: {error}");
        self.state.lock().failure = Some(reason.clone());
        let error = ZioError::Suspended { reason };
        self.pipeline.suspend(error.clone());
        self.txgs.stop(error);
        self.dsl.tasks().close();
    }

    /// Whether a txg is needed although nobody asked for one.
    fn has_work(&self) -> bool {
        let state = self.state.lock();
        state.config_dirty
            || state.flush_all
            || state.claim_logs.is_some()
            || state.checkpoint == CheckpointState::Discarding
            || self.history.has_pending()
            || self.errors.has_pending()
            || self.dsl.syncer().has_dirty(self.txgs.open_txg())
            || self.pipeline.allocator().has_deferred()
            || self.trim_has_work()
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

    /// Writes one closed txg. In a box: what waits for it would else be a future too deep for the compiler.
    pub(crate) fn sync_txg(&self, txg: Txg) -> BoxFuture<'_, Result<(), PoolError>> {
        Box::pin(self.sync_passes(txg))
    }

    async fn sync_passes(&self, txg: Txg) -> Result<(), PoolError> {
        let tx = Tx::syncing(txg);
        let mut pass = 0;
        let mut config = false;
        loop {
            pass += 1;
            if pass > PASSES_MAX {
                return Err(PoolError::Damaged {
                    pool: self.state.lock().name.clone(),
                    what: "the sync loop".into(),
                    why: format!("txg {txg} does not converge in {PASSES_MAX} passes"),
                });
            }
            let ctx = self.context(txg, pass);
            if pass == 1 {
                self.dsl.tasks().run_early(&ctx).await?;
                let claim = self.state.lock().claim_logs.take();
                if let Some(claim) = claim {
                    let newest = self.dsl.logs().claim(&ctx, claim).await?;
                    self.state.lock().claimed_birth = newest;
                    self.cancel_scan(&tx).await?;
                }
                self.history.flush(&tx).await?;
                self.sync_config(&ctx, &tx, &mut config).await?;
            }
            if pass == 1 && self.dedup.has_logs() {
                self.dedup.flush_logs(&ctx, &tx, &self.pipeline).await?;
                self.note_saved_space();
            }
            self.dsl.syncer().pass(&ctx).await?;
            if pass == 1 {
                self.sync_errors(&tx).await;
            }
            self.sync_clones(&ctx, &tx).await?;
            if self.dedup.sync(&ctx, &tx, &self.pipeline).await? {
                self.note_saved_space();
            }
            if pass == 1 {
                self.discard_step(&ctx, &tx).await?;
            }
            self.sync_space(&ctx, &tx).await?;
            if pass == 1 {
                if self.dsl.features().take_label_change() {
                    self.state.lock().config_dirty = true;
                }
                self.sync_config(&ctx, &tx, &mut config).await?;
                if !self.wrote(txg) && !self.dsl.mos().is_dirty(txg) {
                    break;
                }
                self.sync_salt(&tx).await?;
                self.sync_deferred_frees(&ctx, &tx).await?;
                self.sync_clones(&ctx, &tx).await?;
            } else {
                self.sync_config(&ctx, &tx, &mut config).await?;
            }
            if !self.dsl.mos().is_dirty(txg) && !self.pipeline.has_dedup_work(txg) {
                break;
            }
        }
        if self.wrote(txg) {
            self.write_labels(txg, config).await?;
            self.dirty_times.synced(&self.tree, txg);
        }
        self.dsl.syncer().done(txg);
        self.pipeline.sync_done(txg);
        self.txg_trimmed(txg, self.wrote(txg));
        self.space.sync_done();
        let added = std::mem::take(&mut self.state.lock().added_tops);
        for spec in added.iter().filter_map(|top| self.tree.top_spec(top)) {
            self.pipeline.allocator().add_top(spec);
        }
        self.dsl.tasks().answer(txg);
        if self.is_discarding() {
            self.txgs.kick();
        }
        tracing::debug!(%txg, pass, "synced");
        Ok(())
    }

    /// Whether this txg has a MOS of its own.
    fn wrote(&self, txg: Txg) -> bool {
        self.dsl.root_bp().birth() == txg
    }

    /// Brings the tables of cloned blocks up to date ([`crate::clones`]).
    async fn sync_clones(&self, ctx: &SyncContext, tx: &Tx) -> Result<(), PoolError> {
        let sync = CloneSync {
            ctx,
            tx,
            mos: self.dsl.mos(),
            features: self.dsl.features(),
            pipeline: &self.pipeline,
        };
        let before = self.clones.status().saved_bytes;
        self.clones.sync(&sync).await?;
        if self.clones.status().saved_bytes != before {
            self.note_saved_space();
        }
        Ok(())
    }

    async fn sync_space(&self, ctx: &SyncContext, tx: &Tx) -> Result<(), PoolError> {
        let sync = SpaceSync {
            ctx,
            tx,
            features: self.dsl.features(),
            pipeline: &self.pipeline,
        };
        let dirty = self.wrote(ctx.txg) || self.dsl.mos().is_dirty(ctx.txg);
        if dirty && self.space.sync_arrays(&sync).await? {
            for (vdev, array) in self.space.arrays() {
                if let Some(top) = self.tree.top(vdev) {
                    top.set_metaslabs(array.get(), top.metaslab_shift());
                }
            }
            self.state.lock().config_dirty = true;
        }
        if dirty
            && self
                .dirty_times
                .sync(&sync, self.dsl.mos(), &self.tree)
                .await?
        {
            self.state.lock().config_dirty = true;
        }
        let flush_all = ctx.pass == 1 && std::mem::take(&mut self.state.lock().flush_all);
        Ok(self.space.sync_pass(&sync, dirty, flush_all).await?)
    }

    /// Writes the configuration to the MOS when it changed (`spa_sync_config_object`); it goes to
    /// the labels at the end of the txg.
    async fn sync_config(
        &self,
        ctx: &SyncContext,
        tx: &Tx,
        changed: &mut bool,
    ) -> Result<(), PoolError> {
        let anew = std::mem::take(&mut self.state.lock().config_dirty);
        *changed |= anew;
        // In pass 1 what was written before the sync tasks may be stale. In later passes only news
        // is written: else the MOS would be dirty for ever.
        if !(anew || *changed && ctx.pass == 1) {
            return Ok(());
        }
        self.make_vdev_zaps(ctx, tx).await?;
        let pairs = self.pairs(ctx.txg);
        let list = pairs.mos_config(&self.tree.to_config(Scope::Mos));
        let object = self.state.lock().config_object;
        let mut packed = list.encode(NvEncoding::Xdr)?;
        let length = packed.len() as u64;
        packed.resize(
            packed.len().next_multiple_of(CONFIG_BLOCK_BYTES as usize),
            0,
        );
        let object = self.dsl.mos().hold(object).await?;
        object.write(tx, 0, Bytes::from(packed)).await?;
        object.set_bonus(tx, length.to_le_bytes().to_vec())?;
        Ok(())
    }

    /// Makes the ZAPs of vdevs that have none (`vdev_construct_zaps`): of the root (with feature
    /// `vdev_zaps_v2`), of every top-level vdev and of every leaf; all listed in one more ZAP.
    async fn make_vdev_zaps(&self, ctx: &SyncContext, tx: &Tx) -> Result<(), PoolError> {
        let mos = self.dsl.mos();
        let known = self.state.lock().all_vdev_zaps;
        let all = if known.is_zero() {
            let zap = Zap::create(mos, tx, ZapOptions::new(ObjectType::OTN_ZAP_METADATA)).await?;
            let directory = Zap::hold(mos, ObjectId::POOL_DIRECTORY).await?;
            directory
                .add_u64(tx, directory::VDEV_ZAP_MAP, zap.id().get())
                .await?;
            self.state.lock().all_vdev_zaps = zap.id();
            zap
        } else {
            Zap::hold(mos, known).await?
        };
        let with_root = self.dsl.features().is_enabled(features::VDEV_ZAPS_V2);
        let root = self.tree.to_config(Scope::Mos);
        for want in config::missing_zaps(&root, with_root) {
            let zap = Zap::create(mos, tx, ZapOptions::new(ObjectType::OTN_ZAP_METADATA)).await?;
            all.add_int(tx, zap.id().get(), zap.id().get()).await?;
            if want.pair == config::ROOT_ZAP
                && !self.dsl.features().is_active(features::VDEV_ZAPS_V2)
            {
                self.dsl
                    .features()
                    .increment(ctx, features::VDEV_ZAPS_V2)
                    .await?;
            }
            if want.pair == config::TOP_ZAP && want.kind == "draid" {
                self.dsl.features().increment(ctx, features::DRAID).await?;
            }
            if let Some(bias) = &want.allocation_bias {
                zap.add(tx, directory::ALLOCATION_BIAS, ZapValue::from_str_z(bias))
                    .await?;
                self.note_vdev_text(zap.id(), directory::ALLOCATION_BIAS, bias);
                if matches!(bias.as_str(), "special" | "dedup") {
                    let features = self.dsl.features();
                    features
                        .increment(ctx, features::ALLOCATION_CLASSES)
                        .await?;
                }
            }
            match self.tree.find(Guid::new(want.guid)) {
                Some(vdev) => vdev.set_config(want.pair, zap.id().get()),
                None => self.tree.set_root_config(want.pair, zap.id().get()),
            }
            if let Some(top) = want.top {
                self.space.set_top_zap(top, zap.id());
            }
        }
        Ok(())
    }

    /// The last step: labels, if the configuration changed, and the uberblock.
    async fn write_labels(&self, txg: Txg, config: bool) -> Result<(), PoolError> {
        let previous = self.state.lock().uberblock;
        let multihost = self.multihost_of_txg();
        let uberblock = Uberblock {
            endian: format::Endian::Little,
            version: self.state.lock().version,
            txg,
            guid_sum: self.tree.guid_sum(),
            timestamp_seconds: self.world.clock.wall_ns() / 1_000_000_000,
            root: self.dsl.root_bp(),
            software_version: Uberblock::VERSION_FEATURES,
            multihost: Some(multihost),
            checkpoint_txg: Txg::ZERO,
            ..previous
        };
        let list = config.then(|| self.pairs(txg).label_config());
        let sync = LabelSync {
            uberblock: &uberblock,
            multihost: self.is_multihost(),
            config: list.as_ref(),
        };
        self.uberblock_begins(&uberblock);
        self.pipeline.sync_labels(&sync).await?;
        self.uberblock_written(&uberblock);
        let mut state = self.state.lock();
        state.uberblock = uberblock;
        if config {
            state.config_txg = txg;
        }
        Ok(())
    }

    /// Makes the checkpoint the newest state, as an uberblock of `txg` that says so (`spa_ld_checkpoint_rewind`):
    /// what is written next may overwrite the state in which the checkpoint is recorded.
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

    /// Ends a scrub or resilver that another release left in progress (`dsl_scan_cancel`): its queue of
    /// datasets would not follow what happens to them here. What a device lacks stays known, so
    /// that OpenZFS starts the resilver again.
    async fn cancel_scan(&self, tx: &Tx) -> Result<(), PoolError> {
        let mut words = self.state.lock().scan_words.clone();
        if words.len() <= SCAN_FLAGS || words[SCAN_STATE] != SCAN_SCANNING {
            return Ok(());
        }
        let mos = self.dsl.mos();
        if words[SCAN_QUEUE] != 0 {
            mos.free(tx, ObjectId::new(words[SCAN_QUEUE])).await?;
        }
        words[SCAN_QUEUE] = 0;
        words[SCAN_STATE] = SCAN_CANCELED;
        words[SCAN_END_TIME] = self.world.clock.wall_ns() / 1_000_000_000;
        words[SCAN_FLAGS] = 0;
        let directory = Zap::hold(mos, ObjectId::POOL_DIRECTORY).await?;
        directory
            .update(tx, directory::SCAN, ZapValue::from_u64s(&words))
            .await?;
        self.history
            .internal(
                tx,
                "scan aborted",
                "the pool was imported by millpond".into(),
            )
            .await?;
        let mut state = self.state.lock();
        state.scan = scan_status(&words);
        state.scan_words = words;
        Ok(())
    }

    /// Writes the salt of checksums, once (`spa_sync_upgrades`).
    async fn sync_salt(&self, tx: &Tx) -> Result<(), PoolError> {
        let missing = self.state.lock().salt_missing.take();
        if let Some(salt) = missing {
            let directory = Zap::hold(self.dsl.mos(), ObjectId::POOL_DIRECTORY).await?;
            directory
                .add(
                    tx,
                    directory::CHECKSUM_SALT,
                    ZapValue::from_bytes(salt.to_vec()),
                )
                .await?;
        }
        Ok(())
    }

    /// Frees what an earlier txg (of a release without log space maps) put off.
    async fn sync_deferred_frees(&self, ctx: &SyncContext, tx: &Tx) -> Result<(), PoolError> {
        let id = self.state.lock().deferred_frees;
        if id.is_zero() || self.dedup.has_logs() {
            return Ok(());
        }
        let list = Bpobj::open(self.dsl.mos(), id).await?;
        if list.is_empty().await? {
            return Ok(());
        }
        loop {
            let taken = list
                .drain(tx, DEFERRED_STEP, &mut |block| {
                    self.pipeline.free(ctx.txg, block);
                    Ok(())
                })
                .await?;
            if taken < DEFERRED_STEP {
                return Ok(());
            }
        }
    }
}
