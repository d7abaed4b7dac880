//! The handle of an imported pool.

mod activity;
mod properties;
mod scans;

pub use properties::Properties;
pub use scans::Scans;

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::Arc;

use dataset::{DslPool, NewKey};
use device::{BoxFuture, World};
use format::Bookmark;
use format::{Guid, NvList, Txg};
use futures::future::{Either, select};
use spa::events::{About, Sysevent};
use spa::history::HistoryWhat;
use spa::props::Change;
use spa::{bootfs, config, props};
use vdev::{IoStats, MirrorRole, Scope, Vdev, VdevKind, VdevState as State};
use zio::ZioError;

use crate::core::Core;
use crate::{
    AddSpec, AttachSpec, CreateSpec, HistoryRecord, ImportSpec, OfflineSpec, Onlined, PoolError,
    PoolHealth, PoolStatus, Rewound, SplitSpec, auxiliary, create, open, reopen, rewind, second,
    split, status, topology, vdevs,
};

/// A pool's space in numbers, all in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PoolNumbers {
    /// Raw space of the normal, special and dedup classes.
    pub size_bytes: u64,
    /// Allocated.
    pub allocated_bytes: u64,
    /// Free.
    pub free_bytes: u64,
    /// Freed in the background, not yet free.
    pub freeing_bytes: u64,
    /// Leaked by a failed background free.
    pub leaked_bytes: u64,
    /// Fragmentation in percent, when known.
    pub fragmentation_percent: Option<u8>,
    /// Space that devices could give to the pool by expansion.
    pub expandsize_bytes: u64,
}

impl PoolNumbers {
    /// Percent allocated.
    pub const fn capacity_percent(&self) -> u64 {
        if self.size_bytes == 0 {
            0
        } else {
            (self.allocated_bytes as u128 * 100 / self.size_bytes as u128) as u64
        }
    }
}

/// One imported pool. Dropping the last handle without [`Pool::export`] leaves the pool as a
/// crash would: consistent at its last synced transaction group.
pub struct Pool {
    pub(crate) core: Arc<Core>,
}

/// Devices of the top-level vdevs with data that a pool was imported without
/// ([`ImportSpec::missing_data`]), each with its state.
pub fn missing_data(pool: &Pool) -> Vec<String> {
    open::unusable_leaves(&open::lost_data(&pool.core.tree))
}

/// Has a pool that was frozen be suspended, so that it can be left: no group that somebody waits
/// for will ever be written.
pub fn end_freeze(pool: &Pool) {
    let core = &pool.core;
    if vdev::injector(&core.tree).is_frozen() && core.suspended().is_none() {
        let reason = "it was frozen for a test".to_owned();
        let suspension = core.pipeline.suspension();
        suspension.suspend(ZioError::Suspended { reason });
    }
}

impl Pool {
    /// Creates a pool and leaves it imported.
    ///
    /// # Errors
    /// [`PoolError::BadName`], [`PoolError::BadVdevs`], [`PoolError::DeviceInUse`],
    /// [`PoolError::TooSmall`], [`PoolError::BadProperty`], and failures of devices.
    pub async fn create(world: &World, spec: CreateSpec) -> Result<Arc<Pool>, PoolError> {
        Self::create_with_key(world, spec, None).await
    }

    /// The same; with a key, the root dataset is an encryption root, whose key that is.
    ///
    /// # Errors
    /// As [`Pool::create`].
    pub async fn create_with_key(
        world: &World,
        spec: CreateSpec,
        root_key: Option<NewKey>,
    ) -> Result<Arc<Pool>, PoolError> {
        // In a box: what waits for it would else be a future too deep for the compiler.
        let created: BoxFuture<'_, _> = Box::pin(create::create(world, spec, root_key));
        Ok(Arc::new(Pool {
            core: created.await?,
        }))
    }

    pub(crate) fn of(core: Arc<Core>) -> Arc<Pool> {
        Arc::new(Pool { core })
    }

    /// Makes a new pool of one device of each mirror (`zpool split`). It is exported when this
    /// returns.
    ///
    /// # Errors
    /// [`PoolError::CannotSplit`], [`PoolError::BadName`], [`PoolError::BadProperty`],
    /// [`PoolError::Topology`], [`PoolError::HasCheckpoint`], [`PoolError::ReadOnly`].
    pub async fn split(&self, spec: &SplitSpec) -> Result<(), PoolError> {
        self.core.check_writeable()?;
        // In a box: it contains an import.
        let split: BoxFuture<'_, _> = Box::pin(split::split(&self.core, spec));
        split.await
    }

    /// The devices that [`Self::split`] would take, one of each mirror.
    ///
    /// # Errors
    /// [`PoolError::CannotSplit`].
    pub fn plan_split(&self, devices: &[String]) -> Result<Vec<Guid>, PoolError> {
        split::planned(&self.core, devices)
    }

    /// Imports a pool.
    ///
    /// # Errors
    /// [`PoolError::ForeignHost`], [`PoolError::Destroyed`], [`PoolError::MissingDevices`],
    /// [`PoolError::UnsupportedFeatures`], [`PoolError::UnsupportedForWrite`],
    /// [`PoolError::UnsupportedVersion`], [`PoolError::Damaged`], and failures of devices.
    pub async fn import(world: &World, spec: ImportSpec) -> Result<Arc<Pool>, PoolError> {
        let mut changes = Vec::new();
        for (name, value) in &spec.properties {
            let change = props::parse(name, value)?;
            if matches!(&change, Change::Stored(name, _) if name == bootfs::NAME) {
                return Err(props::only_later(name, value));
            }
            changes.push(change);
        }
        // In a box, as that of `create`.
        let imported: BoxFuture<'_, _> = Box::pin(rewind::import(world, spec));
        let pool = Arc::new(Pool {
            core: imported.await?,
        });
        for change in changes {
            let changed: BoxFuture<'_, _> = Box::pin(pool.properties().change(change));
            changed.await?;
        }
        pool.core.events.tell(Sysevent::PoolImport);
        Ok(pool)
    }

    /// Writes everything, marks the pool exported, closes its devices. With `force`, also when it
    /// is suspended (what was not written is lost, and the pool stays as after a crash).
    ///
    /// # Errors
    /// [`PoolError::Suspended`] without `force`.
    pub async fn export(&self, force: bool) -> Result<(), PoolError> {
        let finished: BoxFuture<'_, _> = Box::pin(self.finish(config::STATE_EXPORTED, force));
        finished.await
    }

    /// Marks the pool destroyed and closes its devices. With `force`, a suspended one is just left:
    /// its devices, when they are back, show it as it was. One that is open read-only is just left
    /// too, as nothing is written to it (`spa_export_common`, module/zfs/spa.c).
    ///
    /// # Errors
    /// [`PoolError::Suspended`] without `force`.
    pub async fn destroy(&self, force: bool) -> Result<(), PoolError> {
        let finished: BoxFuture<'_, _> = Box::pin(self.finish(config::STATE_DESTROYED, force));
        finished.await
    }

    /// Gives a suspended pool up: whatever waits for it fails. Only [`Pool::export`] by force is
    /// left then.
    pub fn give_up(&self) {
        if self.core.suspended().is_some() {
            self.core.pipeline.suspension().abandon(ZioError::Closing);
            self.core.txgs.stop(ZioError::Closing);
        }
    }

    /// Returns when the pool is suspended.
    pub async fn until_suspended(&self) {
        self.core.until_suspended().await;
    }

    async fn finish(&self, pool_state: u64, force: bool) -> Result<(), PoolError> {
        let core = &self.core;
        if core.state.lock().closed {
            return Err(PoolError::Closed { pool: self.name() });
        }
        end_freeze(self);
        let force = force || vdev::injector(&core.tree).is_frozen();
        core.scans.scan.read_only.end(force).await;
        core.scans.scan.set_closing(true);
        if !core.read_only {
            if core.suspended().is_none() {
                let writing = pin!(self.write_last(pool_state));
                if let Either::Left((result, _)) =
                    select(writing, pin!(core.until_suspended())).await
                    && core.suspended().is_none()
                {
                    result?;
                }
            }
            if let Some(why) = core.suspended() {
                if !force {
                    let mut pairs = core.identity.lock();
                    if pairs.pool_state != config::STATE_ACTIVE {
                        // When it is cleared it goes on, and says so.
                        pairs.pool_state = config::STATE_ACTIVE;
                        pairs.dirty = true;
                        core.space.set_flush_all(false);
                    }
                    core.scans.scan.set_closing(false);
                    return Err(PoolError::Suspended {
                        pool: pairs.name.clone(),
                        why,
                    });
                }
                core.pipeline.suspension().abandon(ZioError::Closing);
            }
            core.txgs.stop(ZioError::Closing);
            core.wait_ended().await;
            if core.suspended().is_none() {
                core.evacuation.wait_left().await;
            }
        }
        // Nobody else may have the devices while they discard for us. Those of a pool that is given
        // up may never answer; they stay locked until they do.
        let _gate = match core.suspended() {
            None => Some(core.passes.gate.lock().await),
            Some(_) => core.passes.gate.try_lock().ok(),
        };
        if core.suspended().is_none() {
            core.pipeline.second_level().close().await;
        }
        core.identity.lock().pool_state = pool_state;
        core.events.tell(match pool_state {
            config::STATE_DESTROYED => Sysevent::PoolDestroy,
            _ => Sysevent::PoolExport,
        });
        core.close();
        Ok(())
    }

    /// The last txgs of a pool that is left.
    async fn write_last(&self, pool_state: u64) -> Result<(), PoolError> {
        let core = &self.core;
        core.dsl.logs().close_open().await?;
        core.txgs.sync().await?;
        {
            let mut pairs = core.identity.lock();
            pairs.pool_state = pool_state;
            pairs.dirty = true;
            core.space
                .set_flush_all(pool_state == config::STATE_EXPORTED);
        }
        // What the frees of the last txgs gave back is not needed any more: one txg,
        // with the space maps flushed and the new state in every label, is the last.
        core.txgs.sync().await?;
        Ok(())
    }

    /// Has autotrim gather what comes free over so many txgs (16 unless told) before it discards
    /// it.
    pub fn set_trim_batch_txgs(&self, txgs: u64) {
        self.core.pipeline.allocator().set_trim_batch_txgs(txgs);
    }

    /// Name.
    pub fn name(&self) -> String {
        self.core.identity.name()
    }

    /// Identity.
    pub fn guid(&self) -> Guid {
        self.core.guid()
    }

    /// Nanoseconds since it was opened: what counters count since then.
    pub fn uptime_ns(&self) -> u64 {
        let now_ns = self.core.world.clock.monotonic_ns();
        now_ns.saturating_sub(self.core.opened_ns)
    }

    /// Latencies, sizes and queue depths of the vdevs' I/O since it was opened; of the whole pool
    /// under its own guid.
    pub fn io_stats(&self) -> BTreeMap<Guid, IoStats> {
        fn walk(vdev: &Vdev, out: &mut BTreeMap<Guid, IoStats>) {
            out.insert(vdev.guid(), vdev.io_stats());
            vdev.children().iter().for_each(|child| walk(child, out));
        }
        let mut out = BTreeMap::new();
        let mut whole = IoStats::default();
        for top in self.core.tree.tops() {
            walk(&top, &mut out);
            whole.add(&top.io_stats());
        }
        out.insert(self.guid(), whole);
        out
    }

    /// Whether it was imported read-only.
    pub fn is_read_only(&self) -> bool {
        self.core.read_only
    }

    /// What was given up to import it, when an older state than the newest was imported.
    pub fn rewound(&self) -> Option<Rewound> {
        self.core.state.lock().rewound
    }

    /// Prefix of all mount points.
    pub fn altroot(&self) -> Option<&str> {
        self.core.altroot.as_deref()
    }

    /// Datasets.
    pub fn dsl(&self) -> &Arc<DslPool> {
        &self.core.dsl
    }

    /// The I/O pipeline (cache statistics, limits).
    pub fn pipeline(&self) -> &Arc<zio::Pipeline> {
        &self.core.pipeline
    }

    /// State of the pool and its vdevs.
    pub fn status(&self) -> PoolStatus {
        status::pool_status(&self.core)
    }

    /// Space in numbers.
    pub fn numbers(&self) -> PoolNumbers {
        let totals = self.core.pipeline.allocator().totals();
        let tree = &self.core.tree;
        let tops = self.core.pipeline.allocator().top_spaces();
        // Fragmentation of the pool is the mean of its vdevs', by their size.
        let mut weighted = 0u128;
        let mut size = 0u128;
        for top in tops {
            if let Some(percent) = top.fragmentation_percent {
                weighted += u128::from(percent) * u128::from(top.size_bytes);
                size += u128::from(top.size_bytes);
            }
        }
        PoolNumbers {
            size_bytes: totals.size_bytes,
            allocated_bytes: totals.allocated_bytes,
            free_bytes: totals.size_bytes.saturating_sub(totals.allocated_bytes),
            freeing_bytes: self.core.dsl.destroyer().freeing_bytes(),
            leaked_bytes: self.core.dsl.destroyer().leaked_bytes(),
            fragmentation_percent: (size > 0).then(|| (weighted / size) as u8),
            expandsize_bytes: (tree.tops().iter())
                .filter(|top| {
                    let class = top.top().map(|top| top.class);
                    class == Some(vdev::AllocClass::Normal)
                })
                .map(vdev::sizes::expandable_bytes)
                .sum(),
        }
    }

    /// Adds vdevs, spares and cache devices (`zpool add`). Returns once they are a part of the pool
    /// on disk.
    ///
    /// # Errors
    /// [`PoolError::BadVdevs`], [`PoolError::DeviceInUse`], [`PoolError::TooSmall`],
    /// [`PoolError::AshiftMismatch`], [`PoolError::ReadOnly`].
    pub async fn add(&self, spec: &AddSpec) -> Result<(), PoolError> {
        self.core.check_writeable()?;
        vdevs::add(&self.core, spec).await
    }

    /// Removes a top-level vdev, a spare or a cache device by its name, path or guid (`zpool
    /// remove`). Returns once the pool on disk is without it; of a vdev with data, which is emptied
    /// in the background ([`crate::removal`]), once the pool on disk says that it is being removed.
    ///
    /// # Errors
    /// [`PoolError::CannotRemove`], [`PoolError::ReadOnly`].
    pub async fn remove(&self, device: &str) -> Result<(), PoolError> {
        self.core.check_writeable()?;
        vdevs::remove(&self.core, device).await
    }

    /// Attaches a device to another one, to mirror or to replace it, or to a RAID-Z vdev, to make
    /// that wider in the background (`zpool attach`, `zpool replace`). A hot spare of the pool that
    /// stands by stands in for what it is to replace. Returns once it is a part of the pool on
    /// disk; it is resilvered after that.
    ///
    /// # Errors
    /// [`PoolError::Topology`], [`PoolError::NotInPool`], [`PoolError::IsSpare`],
    /// [`PoolError::IsCache`], [`PoolError::DeviceInUse`], [`PoolError::HasCheckpoint`],
    /// [`PoolError::ReadOnly`], [`PoolError::ResilverUnderWay`], [`PoolError::RebuildUnderWay`],
    /// [`PoolError::CannotRebuild`], [`PoolError::RebuildDisabled`],
    /// [`PoolError::ExpansionDisabled`].
    pub async fn attach(&self, target: &str, spec: &AttachSpec) -> Result<(), PoolError> {
        self.core.check_writeable()?;
        topology::attach(&self.core, target, spec).await
    }

    /// Takes a device out of its mirror, or gives up the replacement that it is a part of (`zpool
    /// detach`). Returns once the pool on disk is without it.
    ///
    /// # Errors
    /// As [`Self::attach`].
    pub async fn detach(&self, target: &str) -> Result<(), PoolError> {
        self.core.check_writeable()?;
        topology::detach(&self.core, target).await
    }

    /// Takes a device out of use (`zpool offline`).
    ///
    /// # Errors
    /// [`PoolError::Topology`], [`PoolError::NotInPool`], [`PoolError::ReadOnly`].
    pub async fn offline(&self, target: &str, spec: OfflineSpec) -> Result<(), PoolError> {
        self.core.check_writeable()?;
        topology::offline(&self.core, target, spec).await
    }

    /// Uses a device again (`zpool online`); what it missed is in its dirty times. With `expand`,
    /// or property `autoexpand`, its vdev uses all of devices that have become larger.
    ///
    /// # Errors
    /// [`PoolError::Topology`], [`PoolError::NotInPool`], [`PoolError::ReadOnly`].
    pub async fn online(&self, target: &str, expand: bool) -> Result<Onlined, PoolError> {
        self.core.check_writeable()?;
        topology::online(&self.core, target, expand).await
    }

    /// Looks at all devices again (`zpool reopen`). What came back is resilvered; unless this
    /// `restarts` a scan that is under way, when that has ended.
    ///
    /// # Errors
    /// [`PoolError::ReadOnly`], [`PoolError::Suspended`].
    pub async fn reopen(&self, restarts: bool) -> Result<(), PoolError> {
        self.core.check_writeable()?;
        reopen::reopen(&self.core, restarts).await
    }

    /// Looks how the spares are: another pool may use one of them, or have left it.
    pub async fn look_at_spares(&self) {
        if self.core.check_open().is_ok() {
            self.core.look_at_spares().await;
        }
    }

    /// Looks for devices that are not there. One that is there again is used again, and a spare
    /// that stands in for it goes when it has what it missed; with property `autoreplace`, a new
    /// one at the same path replaces it. Returns how many did.
    ///
    /// # Errors
    /// [`PoolError::ReadOnly`], [`PoolError::Closed`].
    pub async fn look_for_devices(&self) -> Result<usize, PoolError> {
        self.core.check_writeable()?;
        Ok(self.core.look_for_devices().await)
    }

    /// Gives the pool another guid, which is not zero (`zpool reguid`).
    ///
    /// # Errors
    /// [`PoolError::NotHealthy`], [`PoolError::ReadOnly`].
    pub async fn change_guid(&self, guid: Guid) -> Result<(), PoolError> {
        self.core.check_writeable()?;
        vdevs::change_guid(&self.core, guid).await
    }

    /// Makes a checkpoint of everything done before the call (`zpool checkpoint`): the pool can go
    /// back to it at an import ([`crate::Rewind::Checkpoint`]) until it is discarded.
    ///
    /// # Errors
    /// [`PoolError::HasCheckpoint`], [`PoolError::DiscardingCheckpoint`],
    /// [`PoolError::CannotCheckpoint`],
    /// [`PoolError::ReadOnly`]; [`DatasetError::NoSpace`] in a full pool.
    pub async fn checkpoint(&self) -> Result<(), PoolError> {
        self.core.check_writeable()?;
        crate::checkpoint::command::take(&self.core).await
    }

    /// Gives the checkpoint up (`zpool checkpoint -d`). What it kept is freed in the background,
    /// see
    /// [`Pool::is_discarding`].
    ///
    /// # Errors
    /// [`PoolError::NoCheckpointToDiscard`], [`PoolError::DiscardingCheckpoint`],
    /// [`PoolError::ReadOnly`].
    pub async fn discard_checkpoint(&self) -> Result<(), PoolError> {
        self.core.check_writeable()?;
        crate::checkpoint::command::discard(&self.core).await
    }

    /// Whether what a discarded checkpoint kept is being freed.
    pub fn is_discarding(&self) -> bool {
        self.core.checkpoint.is_discarding()
    }

    /// Changes how many ranges of a discarded checkpoint are freed in one txg
    /// (`zfs_spa_discard_memory_limit`).
    pub fn set_discard_step(&self, ranges: usize) {
        self.core.checkpoint.set_discard_step(ranges);
    }

    /// The history, oldest first.
    ///
    /// # Errors
    /// When it cannot be read.
    pub async fn history(&self) -> Result<Vec<HistoryRecord>, PoolError> {
        self.core.check_open()?;
        if self.core.history.has_pending() && self.core.suspended().is_none() {
            self.core.txgs.sync().await?;
        }
        Ok(self.core.history.read_all().await?)
    }

    /// Adds a command to the history, of the user `who` or of who this process runs as. Returns
    /// once it is queued; it is on disk with the next transaction group.
    ///
    /// # Errors
    /// [`PoolError::ReadOnly`].
    pub async fn log_history(&self, command: &str, who: Option<u32>) -> Result<(), PoolError> {
        self.core.check_writeable()?;
        self.core
            .history
            .queue_of(HistoryWhat::Command(command.to_owned()), who);
        Ok(())
    }

    /// Returns once everything done before the call is on disk (`zpool sync`).
    ///
    /// # Errors
    /// [`PoolError::Suspended`] when the pool stopped.
    pub async fn sync(&self) -> Result<(), PoolError> {
        self.core.check_writeable()?;
        self.core.txgs.sync().await?;
        Ok(())
    }

    /// [`Self::sync`], which writes the configuration too, whether it changed or not (`zpool sync
    /// -f`).
    ///
    /// # Errors
    /// The same.
    pub async fn sync_config(&self) -> Result<(), PoolError> {
        self.core.check_writeable()?;
        self.core.identity.mark_dirty();
        self.sync().await
    }

    /// Changes how many bytes may wait to be written (`zfs_dirty_data_max`).
    pub fn set_dirty_max_bytes(&self, bytes: u64) {
        self.core.txgs.set_dirty_max_bytes(bytes);
    }

    /// Last transaction group on disk.
    pub fn synced_txg(&self) -> Txg {
        self.core.txgs.synced_txg()
    }

    /// Waits until a transaction group after `txg` is on disk, for whoever follows what happens in
    /// the pool; nothing is written for it.
    ///
    /// # Errors
    /// When no more will be: the pool was closed, or stopped for good.
    pub async fn synced_after(&self, txg: Txg) -> Result<Txg, PoolError> {
        Ok(self.core.txgs.synced_after(txg).await?)
    }

    /// Why the pool is suspended, if it is.
    pub fn suspended(&self) -> Option<String> {
        self.core.suspended()
    }

    /// Clears error counters, reopens devices, and resumes a suspended pool (`zpool clear`);
    /// `device` limits it to one.
    ///
    /// # Errors [`PoolError::NoSuchDevice`]; [`PoolError::IsSpare`]; [`PoolError::ReadOnly`],
    /// except of a pool that has to be resumed; [`PoolError::Suspended`] when the pool cannot go
    /// on.
    pub async fn clear(&self, device: Option<&str>) -> Result<(), PoolError> {
        self.core.check_open()?;
        let core = &self.core;
        if core.read_only && self.suspended().is_none() {
            return Err(PoolError::ReadOnly { pool: self.name() });
        }
        if let Some(device) = device.filter(|device| vdevs::is_waiting_spare(core, device)) {
            return Err(PoolError::IsSpare {
                device: device.to_owned(),
            });
        }
        if let Some(device) = device.filter(|device| !vdevs::has(core, device)) {
            return Err(PoolError::NoSuchDevice {
                device: device.to_owned(),
            });
        }
        core.check_tasks()?;
        core.check_still_ours().await?;
        let mut cleared = Vec::new();
        for top in core.tree.tops() {
            vdevs::leaves_called(&top, device, &mut cleared);
        }
        let guids: Vec<Guid> = cleared.iter().map(|vdev| vdev.guid()).collect();
        core.events.clear(&guids);
        cleared.retain(|vdev| vdev.state().0 != State::Healthy);
        reopen::open_again(core, device).await?;
        core.scans.scan.forget_unmended();
        for top in core.tree.tops() {
            clear_errors(&top, device);
        }
        for vdev in &cleared {
            let about = About::vdev(vdev);
            core.events.tell_vdev(Sysevent::VdevClear, about);
        }
        if device.is_none() {
            core.errors.clear();
        }
        let failure = core.state.lock().failure.clone();
        if let Some(why) = failure {
            return Err(PoolError::Suspended {
                pool: self.name(),
                why,
            });
        }
        core.pipeline.suspension().resume()?;
        if !core.read_only {
            for guid in &guids {
                core.tree.topology().unspare(*guid);
            }
            core.spares.want_all(&core.tree);
            topology::allow_blocks(core);
            core.txgs.kick();
            // Who administrates the pool right now looks at them as well.
            if let Ok(_admin) = core.admin.try_lock() {
                let meant = device.and_then(|device| core.auxiliary.lock().caches.find(device));
                let is_meant = |guid| device.is_none() || meant == Some(guid);
                second::let_go_of_failed(core.pipeline.second_level(), is_meant).await;
                auxiliary::look_at_auxiliary(core, &core.auxiliary).await;
            }
        }
        Ok(())
    }

    /// Whether a device is taking another one's place, or a spare that stands in for one is being
    /// resilvered (`vdev_replace_in_progress`, module/zfs/vdev.c).
    pub fn is_replacing(&self) -> bool {
        fn replaces(vdev: &Vdev) -> bool {
            let kind = vdev.kind();
            let is_here = match kind {
                VdevKind::Mirror(mirror) => match (mirror.role, vdev.children()) {
                    (MirrorRole::Replacing, _) => true,
                    (MirrorRole::Spare, [_, spare]) => {
                        spare.is_readable() && !spare.own_missing().is_empty()
                    }
                    (MirrorRole::Spare, _) => true,
                    (MirrorRole::Mirror, _) => false,
                },
                _ => false,
            };
            is_here || kind.children().iter().any(|child| replaces(child))
        }
        self.core.tree.tops().iter().any(|top| replaces(top))
    }

    /// Says how long devices may keep operations waiting (tunable `zfs_deadman_ziotime_ms`).
    pub fn set_deadman_limits(&self, limits: vdev::DeadmanLimits) {
        self.core.tree.patience().set_limits(limits);
    }

    /// Bytes that are in the background to be freed: those of destroyed datasets.
    pub fn freeing_bytes(&self) -> u64 {
        self.core.dsl.destroyer().freeing_bytes()
    }

    /// The blocks of which no copy is good, as far as the pool's logs and what was read and
    /// scrubbed since the import tell, in order of dataset and object; with feature `head_errlog`
    /// in every dataset that has them.
    pub async fn damaged(&self) -> Vec<Bookmark> {
        self.core.damaged().await
    }

    /// The configuration as kept in a pool cache: feed it to [`crate::found_in_cache`].
    pub fn cached_config(&self) -> NvList {
        let core = &self.core;
        core.pairs(core.txgs.synced_txg())
            .mos_config(&core.tree.to_config(Scope::Mos))
    }

    /// Health.
    pub fn health(&self) -> PoolHealth {
        status::health(&self.core)
    }

    /// Number of log space maps; for tests and statistics.
    pub fn log_space_maps(&self) -> usize {
        self.core.space.log_count()
    }

    /// Bytes that only the checkpoint uses, or what is left of it.
    pub fn checkpoint_bytes(&self) -> u64 {
        self.core.space.checkpoint_bytes().values().sum()
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        if self.core.state.lock().closed {
            return;
        }
        self.core.scans.scan.read_only.abandon();
        // The sync loop holds the core as well: without this it would go on for ever.
        self.core.txgs.stop(ZioError::Closing);
        let core = self.core.clone();
        self.core.world.spawn.spawn(Box::pin(async move {
            core.wait_ended().await;
            let _gate = core.passes.gate.lock().await;
            core.close();
        }));
    }
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Pool")
            .field("name", &self.name())
            .field("guid", &self.guid())
            .finish()
    }
}

fn clear_errors(vdev: &Arc<Vdev>, device: Option<&str>) {
    if device.is_none_or(|device| vdevs::is_itself_called(vdev, device)) {
        vdev.clear_errors();
        return;
    }
    for child in vdev.children() {
        clear_errors(child, device);
    }
}
