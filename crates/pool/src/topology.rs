//! Devices that come and go below top-level vdevs: attach, replace, detach, offline, online.
//!
//! **Attach and replace.** The device is opened and labelled with txg 0 (a crash leaves it free for
//! any pool). Then one txg makes it a part of the vdev tree and of the configuration, with dirty
//! times that say that it lacks everything. What it lacks is a resilver's business, which starts by
//! itself.
//!
//! **Detach.** One txg takes the device out of the tree, frees its ZAP and its dirty times, and
//! says so in the configuration. Then its labels are written over. A crash in between leaves a
//! device with an old label that the configuration does not know.
//!
//! **A replacement that is done** is a detach that the pool does by itself: before each txg is
//! written, it looks whether there is a device whose successor lacks nothing, in memory and on disk
//! ([`vdev::Topology::replaced`]). Nothing else has to be remembered for that.
//!
//! **A device attached to a RAID-Z vdev** makes that wider: module `expand`.
//!
//! **Offline and online** change states, which the configuration tells where a person wanted them
//! to last. A log that is back gets blocks once that is on disk ([`allow_blocks`]).
//!
//! Source: module/zfs/spa.c (`spa_vdev_attach`, `spa_vdev_detach`, `spa_vdev_resilver_done`),
//! module/zfs/vdev.c (`vdev_offline`, `vdev_online`, `vdev_fault`).

use std::sync::Arc;

use dataset::{DatasetError, SyncTask};
use device::BoxFuture;
use format::{Guid, NvList, ObjectId, Txg};
use object::{SyncContext, Zap};
use parking_lot::Mutex;
use scan::{Rebuilds, as_task_error};
use spa::config::{REBUILD_TXG, RESILVER_TXG};
use spa::events::{About, Sysevent};
use spa::props::Stored;
use spa::{Participant, Pass, Spa, Turn, config};
use space::SpaceSync;
use vdev::{
    Detached, MirrorRole, Scope, TopologyError, Vdev, VdevKind, VdevState, leaf_label_config,
};
use zio::Tx;

use crate::core::Core;
use crate::gone::Gone;
use crate::layout::{self, Making, usable_bytes};
use crate::newtops::Emptied;
use crate::vdevs::{evacuate, is_itself_called};
use crate::{
    DeviceUse, LeafSpec, PoolError, VdevClass, VdevLayout, VdevSpec, auxiliary, labelroom, reopen,
    second, spares,
};

/// The first version of pools in which what replaces a device can be replaced itself
/// (`SPA_VERSION_MULTI_REPLACE`).
const MULTI_REPLACE: u64 = 28;

/// Txgs that can be under way at once (`TXG_CONCURRENT_STATES`).
const CONCURRENT_TXGS: u64 = 3;

/// What [`crate::Pool::attach`] is to attach.
#[derive(Debug, Clone)]
pub struct AttachSpec {
    /// The device.
    pub device: LeafSpec,
    /// log2 of its smallest block; else the pool's property, else what the device wants.
    pub ashift: Option<u8>,
    /// Overwrite a device that holds another pool.
    pub force: bool,
    /// It takes the place of the other device, which goes when it has everything.
    pub replace: bool,
    /// It is rebuilt in the order of the disk, without checksums, and everything verified then.
    pub sequential: bool,
    /// Nobody has named it: without `force`, it is refused if a pool has or had anything there,
    /// also a pool that was destroyed.
    pub untouched: bool,
}

/// How a device is taken out of use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct OfflineSpec {
    /// Until the next import only.
    pub temporary: bool,
    /// As a device that failed: `zpool clear` brings it back.
    pub fault: bool,
}

/// A device that is to be used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Onlined {
    /// Its state now.
    pub state: crate::VdevState,
    /// Whether it was in use before.
    pub was_usable: bool,
}

/// The device of the tree that a person calls `name`.
pub(crate) fn find(core: &Core, name: &str) -> Result<Arc<Vdev>, PoolError> {
    fn walk(vdev: &Arc<Vdev>, name: &str) -> Option<Arc<Vdev>> {
        if is_itself_called(vdev, name) {
            return Some(vdev.clone());
        }
        vdev.children().iter().find_map(|child| walk(child, name))
    }
    let device = || name.to_owned();
    if let Some(vdev) = core.tree.tops().iter().find_map(|top| walk(top, name)) {
        return Ok(vdev);
    }
    let auxiliary = core.auxiliary.lock();
    if auxiliary.spares.find(name).is_some() {
        return Err(PoolError::IsSpare { device: device() });
    }
    if auxiliary.caches.find(name).is_some() {
        return Err(PoolError::IsCache { device: device() });
    }
    Err(PoolError::NotInPool { device: device() })
}

/// A guid for a new vdev.
fn new_guid(core: &Core) -> Guid {
    loop {
        match core.world.random.next_u64() {
            0 => {}
            guid => return Guid::new(guid),
        }
    }
}

/// A device that works for this pool cannot come in again, not even by force.
pub(crate) async fn refuse_own(
    core: &Core,
    path: &str,
    old: &Vdev,
    replace: bool,
) -> Result<(), PoolError> {
    let in_use = || {
        Err(PoolError::DeviceInUse {
            path: path.to_owned(),
            device_use: DeviceUse::ActivePool {
                pool: core.identity.name(),
            },
        })
    };
    let is_old = |vdev: &Arc<Vdev>| replace && vdev.guid() == old.guid();
    let leaves = core.tree.leaves();
    let mut others = leaves.iter().filter(|vdev| !is_old(vdev));
    let listed = {
        let auxiliary = core.auxiliary.lock();
        [&auxiliary.spares, &auxiliary.caches].iter().any(|list| {
            list.statuses
                .iter()
                .any(|vdev| vdev.path.as_deref() == Some(path))
        })
    };
    if listed || others.any(|vdev| vdev.path().as_deref() == Some(path)) {
        return in_use();
    }
    // Under another name, or the very device that is to be replaced.
    let device = vdev::open_patiently(&core.world, path, true).await?;
    let label = crate::discover::read_label(&device, path).await;
    let own = label
        .filter(|label| label.config.u64("pool_guid") == Some(core.guid().get()))
        .filter(|label| label.config.u64("txg").unwrap_or(0) != 0)
        .and_then(|label| core.tree.find(Guid::new(label.config.u64("guid")?)));
    match own {
        Some(_) => in_use(),
        None => Ok(()),
    }
}

pub(crate) async fn attach(
    core: &Arc<Core>,
    target: &str,
    spec: &AttachSpec,
) -> Result<(), PoolError> {
    let _admin = core.admin.lock().await;
    core.check_not_suspended()?;
    core.check_no_checkpoint()?;
    core.evacuation.check_none()?;
    let old = find(core, target)?;
    match spec.sequential {
        true => {
            let top = core.tree.topology().top_of(old.guid());
            let top = top.ok_or(TopologyError::NoSuchVdev { guid: old.guid() })?;
            Rebuilds::check(&core.scans, &top)?;
        }
        false if core.scans.is_rebuilding() => {
            let pool = core.identity.name();
            return Err(PoolError::RebuildUnderWay { pool });
        }
        false => {}
    }
    if !spec.replace && matches!(old.kind(), VdevKind::Raidz(_)) {
        let target = old.guid();
        drop(old);
        return core.attach_to_raidz(target, spec).await;
    }
    if spec.replace
        && let Some(spare) = spares::waiting(core, &spec.device.path)
    {
        let target = old.guid();
        drop(old);
        return spares::stand_in(core, target, spare, spec.ashift, spec.sequential).await;
    }
    let role = match spec.replace {
        true => MirrorRole::Replacing,
        false => MirrorRole::Mirror,
    };
    let version = core.identity.lock().version;
    if spec.replace && version < MULTI_REPLACE && spares::is_in_replacement(core, &old) {
        return Err(PoolError::BadVdevs {
            why: format!(
                "in a pool of version {version} a device that is being replaced cannot be replaced \
                 again before that is done; 'zpool upgrade' allows it"
            ),
        });
    }
    core.tree.topology().check_attach(old.guid(), role, false)?;
    let path = &spec.device.path;
    let is_in_place = spec.replace && old.path().as_deref() == Some(path);
    if is_in_place && !core.tree.topology().is_required(old.guid()) {
        // Whoever wrote over the device did not tell: it is still open for what it was.
        let top = core
            .tree
            .topology()
            .top_of(old.guid())
            .map(|top| top.guid());
        leave_failed_logs(core);
        core.unless_suspended(core.tree.look_again(top)).await?;
        allow_blocks(core);
    }
    refuse_own(core, path, &old, spec.replace).await?;
    if spec.untouched && !spec.force {
        layout::check_untouched(&core.world, path, core.guid()).await?;
    }
    let target = old.guid();
    drop(old);
    let (new, create_txg) = core.open_new(target, spec).await?;
    take_in(core, target, &new, (role, spec.sequential), create_txg).await
}

impl Core {
    /// Opens a device that is to be attached to `target`, or below it, if it fits; no part of the
    /// tree yet. Returns the txg that its labels are to tell as well.
    pub(crate) async fn open_new(
        &self,
        target: Guid,
        spec: &AttachSpec,
    ) -> Result<(Arc<Vdev>, Txg), PoolError> {
        let path = &spec.device.path;
        let vdevs = [VdevSpec {
            layout: VdevLayout::Leaf(spec.device.clone()),
            class: VdevClass::Normal,
        }];
        let facts = layout::examine(&self.world, &vdevs, spec.force).await?;
        let stored = match self.props.get("ashift") {
            Some(Stored::Number(ashift)) => ashift as u8,
            _ => 0,
        };
        let create_txg = self.txgs.open_txg();
        let making = Making {
            ashift: spec.ashift.unwrap_or(stored),
            create_txg,
            random: &*self.world.random,
        };
        let configs = layout::build_tops(self.tree.top_count() as u64, &vdevs, &facts, &making)?;
        let [config] = configs.as_slice() else {
            return Err(TopologyError::NotADevice { vdev: path.clone() }.into());
        };
        let usable = facts
            .first()
            .map_or(0, |leaf| usable_bytes(leaf.size_bytes));
        let ashift = config.u64("ashift").unwrap_or(0) as u32;
        self.tree
            .topology()
            .check_fits(target, path, usable, ashift)?;
        Ok((self.tree.prepare_leaf(config).await?, create_txg))
    }
}

/// Labels a device that was opened and makes it a part of the vdev tree beside `target`; closes it
/// when that fails. It is resilvered then, or rebuilt. The caller holds `admin`, and has checked
/// that it fits.
pub(crate) async fn take_in(
    core: &Arc<Core>,
    target: Guid,
    new: &Arc<Vdev>,
    (role, sequential): (MirrorRole, bool),
    create_txg: Txg,
) -> Result<(), PoolError> {
    // The last moment at which nothing is written to the device.
    core.check_not_suspended().inspect_err(|_| new.close())?;
    if let Some(top) = core.tree.topology().top_of(target) {
        let (top, leaf) = (top.to_config(Scope::Label), new.to_config(Scope::Label));
        let pairs = core.pairs(Txg::ZERO);
        labelroom::check_attach(&pairs, &top, &leaf).inspect_err(|_| new.close())?;
    }
    let outcome = Arc::new(Mutex::new(None));
    let result = async {
        let labels = core.pairs(Txg::ZERO).label_config();
        let fresh = std::slice::from_ref(new);
        core.tree.init_labels(fresh, &labels, create_txg).await?;
        let task = AttachTask {
            core: core.clone(),
            target,
            new: new.clone(),
            role,
            sequential,
            parent: new_guid(core),
            refused: outcome.clone(),
        };
        core.run_task(task).await?;
        match outcome.lock().take() {
            Some(refused) => Err(refused),
            None => Ok(()),
        }
    }
    .await;
    if let Err(error) = &result {
        let error: &PoolError = error;
        // In a suspended pool it may just be becoming a part of it.
        if !error.is_suspended() && core.tree.find(new.guid()).is_none() {
            new.close();
        }
    }
    result
}

struct AttachTask {
    core: Arc<Core>,
    target: Guid,
    new: Arc<Vdev>,
    role: MirrorRole,
    sequential: bool,
    parent: Guid,
    refused: Arc<Mutex<Option<PoolError>>>,
}

impl SyncTask for AttachTask {
    fn name(&self) -> &'static str {
        "attach a device"
    }

    fn check<'a>(&'a self, _ctx: &'a SyncContext) -> BoxFuture<'a, Result<(), DatasetError>> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn apply<'a>(&'a self, ctx: &'a SyncContext) -> BoxFuture<'a, Result<(), DatasetError>> {
        Box::pin(async move {
            let core = &self.core;
            let (_, until) = open_txgs(core, ctx.txg);
            if self.sequential && core.scans.scan.is_resilvering() {
                let pool = core.identity.name();
                *self.refused.lock() = Some(PoolError::ResilverUnderWay { pool });
                return Ok(());
            }
            // One that comes back with its new device.
            leave_failed_logs(core);
            let attached = core
                .tree
                .attach(self.target, &self.new, self.role, self.parent, until);
            let top = match attached {
                Ok(top) => top,
                Err(refused) => {
                    *self.refused.lock() = Some(refused.into());
                    return Ok(());
                }
            };
            // Until it has everything its label says so: the MOS, which has its dirty time log, is
            // read from others then. What is in the tree has a configuration of its own.
            let pair = match self.sequential {
                true => REBUILD_TXG,
                false => RESILVER_TXG,
            };
            if let Some(new) = core.tree.find(self.new.guid()) {
                new.set_config(pair, ctx.txg.get());
            }
            if self.sequential {
                let begun = core.scans.rebuilds.begin(&core.scans, ctx, &top).await;
                begun.map_err(as_task_error)?;
            }
            core.identity.mark_dirty();
            core.new_tops.push(top.vdev_id(), ctx.txg);
            if self.role == MirrorRole::Spare {
                core.events
                    .tell_vdev(Sysevent::VdevSpare, About::vdev(&self.new));
            }
            core.events
                .tell_vdev(Sysevent::VdevAttach, About::vdev(&self.new));
            let old = core.tree.find(self.target);
            let name = |vdev: Option<String>| vdev.unwrap_or_else(|| "none".to_owned());
            let (verb, to) = match self.role {
                MirrorRole::Mirror => ("attach", "to"),
                MirrorRole::Replacing => ("replace", "for"),
                MirrorRole::Spare => ("spare in", "for"),
            };
            let text = format!(
                "{verb} vdev={} {to} vdev={}",
                name(self.new.path()),
                name(old.and_then(|old| old.path()))
            );
            let history = &core.history;
            history
                .internal(&Tx::syncing(ctx.txg), "vdev attach", text)
                .await;
            Ok(())
        })
    }
}

/// The txgs that may be open or be written now: from the one that is being written, to before the
/// second.
fn open_txgs(core: &Core, syncing: Txg) -> (Txg, Txg) {
    let open = core.txgs.open_txg().max(syncing);
    (
        syncing,
        Txg::new(open.get().saturating_add(CONCURRENT_TXGS)),
    )
}

/// Detaches a device, in syncing context.
pub(crate) async fn detach_in(
    core: &Core,
    ctx: &SyncContext,
    target: Guid,
    parent: Option<Guid>,
) -> Result<Result<Gone, TopologyError>, DatasetError> {
    let tx = Tx::syncing(ctx.txg);
    let (from, until) = open_txgs(core, ctx.txg);
    let detached = match core.tree.detach(target, parent, from, until).await {
        Ok(detached) => detached,
        Err(refused) => return Ok(Err(refused)),
    };
    let Detached {
        vdev,
        before,
        after,
        renamed,
        unspared,
    } = detached;
    let label = label_of_gone(core, &before, &vdev);
    let is_spare = vdev.config_u64("is_spare") == Some(1);
    let last = (!is_spare).then(|| core.state.lock().uberblock);
    drop(before);
    let sync = SpaceSync {
        ctx,
        tx: &tx,
        features: core.dsl.features(),
        pipeline: &core.pipeline,
    };
    let mos = core.dsl.mos();
    core.dirty_times.remove(&sync, mos, &vdev).await?;
    if let Some((before, now)) = renamed {
        core.dirty_times.renamed(before, now);
    }
    if let Some(zap) = vdev.config_u64(config::LEAF_ZAP).filter(|zap| *zap != 0) {
        mos.free(&tx, ObjectId::new(zap)).await?;
        core.props.forget_vdev(ObjectId::new(zap));
        let all = core.identity.lock().all_vdev_zaps;
        if !all.is_zero() {
            Zap::hold(mos, all).await?.remove_int(&tx, zap).await?;
        }
    }
    if let Some(spare) = unspared {
        core.auxiliary.lock().remove(VdevClass::Spare, spare);
        auxiliary::write_lists(core, &core.auxiliary, &tx, &[VdevClass::Spare]).await?;
        let about = About::auxiliary(spare, None);
        core.events.tell_vdev(Sysevent::VdevRemoveAux, about);
    }
    core.identity.mark_dirty();
    core.events
        .tell_vdev(Sysevent::VdevRemove, About::vdev(&vdev));
    if reopen::grows_by_itself(core) {
        // The smallest device may have been the one that went.
        reopen::grow_in(core, ctx, &after).await?;
    }
    drop(after);
    let path = vdev.path().unwrap_or_else(|| "none".to_owned());
    let text = format!("vdev={path}");
    core.history.internal(&tx, "detach", text).await;
    Ok(Ok(Gone { vdev, label, last }))
}

/// What the label of a detached device says: that it is free, or a hot spare as before
/// (`vdev_label_init`, module/zfs/vdev_label.c).
fn label_of_gone(core: &Core, before: &Vdev, vdev: &Vdev) -> NvList {
    if vdev.config_u64("is_spare") == Some(1) {
        let path = vdev.path().unwrap_or_default();
        let version = core.identity.lock().version;
        return auxiliary::label_of(version, config::STATE_SPARE, vdev.guid(), &path);
    }
    let mut pool = core.pairs(Txg::ZERO).label_config();
    pool.set("txg", 0u64);
    let mut label = leaf_label_config(&pool, &core.tree, before, vdev);
    label.set("create_txg", 0u64);
    label
}

struct DetachTask {
    core: Arc<Core>,
    target: Guid,
    parent: Option<Guid>,
    outcome: Arc<Mutex<Option<Result<Gone, TopologyError>>>>,
}

impl SyncTask for DetachTask {
    fn name(&self) -> &'static str {
        "detach a device"
    }

    fn check<'a>(&'a self, _ctx: &'a SyncContext) -> BoxFuture<'a, Result<(), DatasetError>> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn apply<'a>(&'a self, ctx: &'a SyncContext) -> BoxFuture<'a, Result<(), DatasetError>> {
        Box::pin(async move {
            let outcome = detach_in(&self.core, ctx, self.target, self.parent).await?;
            *self.outcome.lock() = Some(outcome);
            Ok(())
        })
    }
}

pub(crate) async fn detach(core: &Arc<Core>, target: &str) -> Result<(), PoolError> {
    let _admin = core.admin.lock().await;
    core.check_not_suspended()?;
    core.check_no_checkpoint()?;
    let (guid, parent) = {
        // Nobody may hold a top-level vdev.
        let vdev = find(core, target)?;
        let parent = core.tree.topology().parent_of(vdev.guid());
        (vdev.guid(), parent.map(|parent| parent.guid()))
    };
    core.tree.topology().check_detach(guid)?;
    check_spared(&core.tree, guid, target)?;
    let outcome = Arc::new(Mutex::new(None));
    let task = DetachTask {
        core: core.clone(),
        target: guid,
        parent,
        outcome: outcome.clone(),
    };
    {
        // What goes is somebody else's from now on: nothing may be discarded there any more.
        let _gate = core.passes.gate.lock().await;
        core.run_task(task).await?;
        let gone = outcome.lock().take();
        match gone {
            Some(Ok(gone)) => gone.leave().await,
            Some(Err(refused)) => return Err(refused.into()),
            None => {}
        }
    }
    auxiliary::look_at_auxiliary(core, &core.auxiliary).await;
    Ok(())
}

/// Refuses what takes away a device that the pool is to seem to need, as somebody asked for that.
fn check_spared(tree: &vdev::VdevTree, device: Guid, name: &str) -> Result<(), PoolError> {
    match vdev::injector(tree).requires(device) {
        true => Err(TopologyError::OnlyCopy {
            vdev: name.to_owned(),
        }
        .into()),
        false => Ok(()),
    }
}

pub(crate) async fn offline(
    core: &Arc<Core>,
    target: &str,
    spec: OfflineSpec,
) -> Result<(), PoolError> {
    let _admin = core.admin.lock().await;
    core.check_not_suspended()?;
    let cache = core.auxiliary.lock().caches.find(target);
    if let Some(cache) = cache {
        core.auxiliary.lock().caches.set_offline(cache, true);
        auxiliary::look_at_auxiliary(core, &core.auxiliary).await;
        return Ok(());
    }
    let guid = find(core, target)?.guid();
    check_spared(&core.tree, guid, target)?;
    let top = core.tree.topology().top_of(guid);
    let top = top.ok_or(TopologyError::NoSuchVdev { guid })?;
    let id = top.vdev_id();
    let is_emptied = top.is_log() && core.tree.topology().is_required(guid);
    let emptied =
        is_emptied.then(|| Emptied::begin(&core.new_tops, core.pipeline.allocator(), vec![id]));
    if is_emptied {
        let evacuated = core.unless_suspended(evacuate(core, id)).await;
        if !matches!(evacuated, Ok(true)) {
            drop(emptied);
            allow_blocks(core);
            evacuated?;
            let vdev = target.to_owned();
            return Err(TopologyError::OnlyCopy { vdev }.into());
        }
    }
    let taken = core.tree.take_out(guid, spec.fault, spec.temporary);
    drop(emptied);
    if taken.is_err() {
        allow_blocks(core);
    }
    taken?;
    settle(core).await
}

pub(crate) async fn online(
    core: &Arc<Core>,
    target: &str,
    expand: bool,
) -> Result<Onlined, PoolError> {
    let _admin = core.admin.lock().await;
    core.check_not_suspended()?;
    let cache = core.auxiliary.lock().caches.find(target);
    if let Some(cache) = cache {
        let level = core.pipeline.second_level();
        let before = second::state_of(level, &core.auxiliary, cache);
        core.auxiliary.lock().caches.set_offline(cache, false);
        second::let_go_of_failed(level, |guid| guid == cache).await;
        auxiliary::look_at_auxiliary(core, &core.auxiliary).await;
        return Ok(Onlined {
            state: second::state_of(level, &core.auxiliary, cache),
            was_usable: before == crate::VdevState::Online,
        });
    }
    let vdev = find(core, target)?;
    let guid = vdev.guid();
    let was_usable = vdev.state().0.is_usable();
    drop(vdev);
    leave_failed_logs(core);
    let state: VdevState = core.tree.bring_back(guid).await?;
    if let Some(vdev) = core.tree.find(guid)
        && !was_usable
        && state.is_usable()
    {
        let about = About::vdev(&vdev);
        core.events.tell_vdev(Sysevent::VdevOnline, about);
    }
    let top = core.tree.topology().top_of(guid).map(|top| top.guid());
    core.unless_suspended(core.tree.look_again(top)).await?;
    core.pipeline.suspension().note_reopened();
    settle(core).await?;
    if expand || reopen::grows_by_itself(core) {
        reopen::grow(core, top).await?;
    }
    Ok(Onlined {
        state: crate::status::map_state(state),
        was_usable,
    })
}

/// Before devices are looked at again: log vdevs that are out of use get no blocks any more, not
/// even when they come back by that ([`allow_blocks`]).
pub(crate) fn leave_failed_logs(core: &Core) {
    core.pipeline.log_blocks().leave_failed_logs();
}

/// After states have changed: where blocks may go.
///
/// A log vdev that is back gets blocks when the configuration that says so is on disk, which is
/// written with the open txg at the latest. An import after a crash before that would take the
/// device for one that is out of use, and what was acknowledged meanwhile would be missing. Other
/// vdevs the pool has never been without in a configuration on disk.
pub(crate) fn allow_blocks(core: &Core) {
    core.identity.mark_dirty();
    let txg = core.txgs.open_txg();
    let allocator = core.pipeline.allocator();
    for top in core.tree.tops() {
        let Some(spec) = vdev::TopSpec::of(&top) else {
            continue;
        };
        let is_back = spec.allocatable && !allocator.is_allocatable(spec.vdev);
        match is_back && top.is_log() {
            true => core.new_tops.push(spec.vdev, txg),
            false => allocator.set_allocatable(spec.vdev, spec.allocatable),
        }
    }
}

/// After states have changed: where blocks may go, and what the configuration says.
pub(crate) async fn settle(core: &Core) -> Result<(), PoolError> {
    allow_blocks(core);
    core.unless_suspended(core.txgs.sync()).await?;
    Ok(())
}

impl Core {
    /// Ends the replacements that are complete, in syncing context.
    async fn end_replacements(&self, pass: &Pass<'_>) -> Result<(), PoolError> {
        if self.tree.topology().replaced().is_none() {
            return Ok(());
        }
        // Whoever changes vdevs, or discards on them, comes first.
        let (Ok(_admin), Ok(_gate)) = (self.admin.try_lock(), self.passes.gate.try_lock()) else {
            return Ok(());
        };
        // With a device that was replaced goes the spare that stood in for it.
        while let Some(done) = self.tree.topology().replaced() {
            match detach_in(self, pass.ctx, done.old, Some(done.parent)).await? {
                Ok(gone) => self.replacements.gone.lock().push(gone),
                Err(refused) => {
                    tracing::warn!(%refused, "a replaced device stays for now");
                    break;
                }
            }
            // Should the spare not go now, a later txg remembers.
            if let Some(new) = done.unspares {
                self.tree.topology().unspare(new);
            }
        }
        Ok(())
    }
}

/// The pool's own turn, of what concerns several parts: it goes on with the removal of a vdev and
/// with condensing, ends replacements, and has vdevs grow.
impl Participant for Core {
    fn has_work(&self, _spa: &Spa) -> bool {
        let is_replaced = || self.tree.topology().replaced().is_some();
        self.evacuation.has_work()
            || self.condensing.has_work()
            || self.check_no_checkpoint().is_ok() && is_replaced()
    }

    fn pass<'a>(&'a self, pass: &'a Pass<'a>) -> Turn<'a> {
        Box::pin(async move {
            self.evacuation.turn(pass).await?;
            self.condensing.turn(pass).await?;
            if pass.is_first() && self.check_no_checkpoint().is_ok() {
                self.end_replacements(pass).await?;
            }
            if let Some(top) = self.scans.expanding.take_ended() {
                reopen::grow_in(self, pass.ctx, &top).await?;
            }
            Ok(())
        })
    }

    fn done(&self, _spa: &Spa, txg: Txg, _wrote: bool) {
        if self.evacuation.done(txg) {
            self.spares.want_refused();
        }
        self.condensing.done();
        for gone in std::mem::take(&mut *self.replacements.gone.lock()) {
            let spares = self.spares.clone();
            self.pipeline.tasks().spawn("leave a device", async move {
                gone.leave().await;
                spares.look();
            });
        }
    }
}
