//! Hot spares: they stand in for devices that went bad, and return to their list.
//!
//! **Standing in.** That a device went bad is told where events are made ([`Spares::want`]); an
//! import looks for such devices, and so does `zpool clear`. A task of the pool then tries the
//! spares of the list one after the other, the best first ([`best_first`]), until one is attached:
//! beside the device, below a vdev of its own kind (`spare-0`), in the same way as any other device
//! ([`crate::topology`]). A person can do the same by `zpool replace`. When none fits, that is all:
//! the device is not tried again until it goes bad anew. Devices of a vdev that is being removed
//! get none.
//!
//! **Distributed spares** (`draid1-0-0`) are room on the devices of a dRAID vdev, for these alone.
//! They come first, and are rebuilt sequentially where that can be: every device gives and takes a
//! part. But a device that answers and gave wrong data is resilvered, as checksums tell what it
//! has. They have no device and no label, and never stay for good: when the device that one stands
//! in for is detached, the spare is in its place until it is replaced.
//!
//! **Returning.** A spare goes back to the list when it is detached, when the device that it stands
//! in for was replaced, or works again and lacks nothing ([`vdev::Topology::unspare`]); either ends
//! like any other replacement. When the device is detached instead, the spare stays for good and is
//! taken off the list.
//!
//! **Several pools** may have the same spare in their lists. Its label tells which one uses it
//! ([`spare_use`]). A spare is opened for writing before its label is looked at again and written,
//! and is nobody else's from then on, in this process or another one.
//!
//! **What a crash leaves.** Before the txg that attaches a spare: a label with txg 0, which counts
//! as that of a spare. After the txg that detaches it and before its label is written: one of this
//! pool, which does not have the device any more; it is written at the import
//! ([`Core::tidy_spares`]).
//!
//! Locks: `wanted`, for a few instructions. The task takes `admin` for as long as it changes
//! something.
//!
//! Source: cmd/zed/agents/zfs_retire.c (`replace_with_spare`, `spare_is_preferred`),
//! module/zfs/spa.c (`spa_vdev_attach`, `spa_vdev_resilver_done`), module/zfs/vdev_label.c
//! (`vdev_inuse`).

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::sync::{Arc, Weak};

use format::Guid;
use scan::Rebuilds;
use spa::config;
use spa::props::Stored;
use vdev::{MirrorRole, TopologyError, Vdev, VdevAux, VdevKind, write_detached_labels};

use crate::core::Core;
use crate::layout::{self, Making, usable_bytes};
use crate::standby::{SpareUse, Spares, is_bad, spare_use};
use crate::topology::take_in;
use crate::{
    DeviceUse, LeafSpec, PoolError, VdevClass, VdevLayout, VdevSpec, VdevStatus, auxiliary,
};

/// The spares that wait, those to try first in front: distributed ones of the device's vdev
/// (`own`), then large enough ones before others, smaller ones before bigger ones
/// (`spare_is_preferred`).
fn best_first(spares: &[VdevStatus], needed_bytes: u64, own: &BTreeSet<Guid>) -> Vec<Guid> {
    let waits = |spare: &&VdevStatus| {
        (spare.kind != "dspare" || own.contains(&spare.guid))
            && spare.state == crate::VdevState::Online
            && spare.aux == VdevAux::None
    };
    let mut waiting: Vec<&VdevStatus> = spares.iter().filter(waits).collect();
    waiting.sort_by_key(|spare| {
        let bytes = usable_bytes(spare.physical_bytes);
        let is_own = own.contains(&spare.guid);
        (Reverse(is_own), Reverse(bytes >= needed_bytes), bytes)
    });
    waiting.iter().map(|spare| spare.guid).collect()
}

/// The spare that waits in the pool's list and is called so.
pub(crate) fn waiting(core: &Core, name: &str) -> Option<Guid> {
    let guid = core.auxiliary.lock().spares.find(name)?;
    core.tree.find(guid).is_none().then_some(guid)
}

async fn work(spares: Arc<Spares>, weak: Weak<Core>) {
    if let Some(core) = weak.upgrade() {
        core.tidy_spares().await;
    }
    loop {
        spares.woken().await;
        let Some(core) = weak.upgrade() else { return };
        if spares.take_look() {
            core.look_at_spares().await;
            core.tidy_spares().await;
        }
        while let Some(device) = spares.next() {
            if let Err(error) = core.spare_for(device).await {
                let pool = core.identity.name();
                tracing::warn!(pool, %device, %error, "no spare stands in for a device");
            }
        }
    }
}

impl Core {
    /// Starts the task that lets spares stand in.
    pub(crate) fn start_spares(self: &Arc<Self>) {
        let working = work(self.spares.clone(), Arc::downgrade(self));
        self.pipeline.tasks().spawn("spares", working);
    }

    /// Looks how the spares are.
    pub(crate) async fn look_at_spares(&self) {
        let _admin = self.admin.lock().await;
        auxiliary::look_at_auxiliary(self, &self.auxiliary).await;
    }

    /// Lets the best spare stand in for a device, if it is bad and has none; if that fails, the
    /// next one. That there is nothing to be done, or no spare, is no error.
    async fn spare_for(self: &Arc<Self>, device: Guid) -> Result<(), PoolError> {
        let _admin = self.admin.lock().await;
        let is_leaving = self.identity.lock().pool_state != config::STATE_ACTIVE;
        if is_leaving || self.state.lock().closed {
            return Ok(());
        }
        let (bytes, name, own, sequential) = {
            let Some(vdev) = self.tree.find(device) else {
                return Ok(());
            };
            let check = self
                .tree
                .topology()
                .check_attach(device, MirrorRole::Spare, true);
            // What has a spare needs none, and logs get none.
            if !is_bad(vdev.state()) || check.is_err() {
                return Ok(());
            }
            let Some(top) = self.tree.topology().top_of(device) else {
                return Ok(());
            };
            // What is being removed gets no devices any more, but when that is given up: whoever
            // says so then finds it noted.
            self.spares.set_refused(device, true);
            if top.config_u64(format::names::config::REMOVING) == Some(1) {
                return Ok(());
            }
            self.spares.set_refused(device, false);
            let bytes = vdev::sizes::least_child_bytes(&top);
            let own = self.auxiliary.lock().spares.draid_spares_of(top.guid());
            // What still answers, and lies, is not to be copied.
            let is_dead = !vdev.state().0.is_usable();
            let sequential = is_dead && Rebuilds::check(&self.scans, &top).is_ok();
            (bytes, vdev.display_name(), own, sequential)
        };
        if self.auxiliary.lock().spares.statuses.is_empty() {
            return Ok(());
        }
        self.check_not_suspended()?;
        self.check_no_checkpoint()?;
        // They may have come or gone since, or be another pool's now.
        auxiliary::look_at_auxiliary(self, &self.auxiliary).await;
        let statuses = self.auxiliary.lock().spares.statuses.clone();
        for spare in best_first(&statuses, bytes, &own) {
            let sequential = sequential && own.contains(&spare);
            let mut attached = stand_in(self, device, spare, None, sequential).await;
            if let Err(PoolError::ResilverUnderWay { .. }) = attached {
                // It began just now.
                attached = stand_in(self, device, spare, None, false).await;
            }
            match attached {
                Ok(()) => {
                    tracing::warn!(device = name, %spare, "a spare stands in for a device");
                    return Ok(());
                }
                Err(error) if error.is_suspended() => return Err(error),
                Err(error) => {
                    tracing::warn!(device = name, %spare, %error, "a spare cannot be used");
                }
            }
        }
        Ok(())
    }

    /// Labels spares that wait, and whose labels say that they are in use by this pool, as what
    /// they are.
    pub(crate) async fn tidy_spares(&self) {
        let _admin = self.admin.lock().await;
        let statuses = self.auxiliary.lock().spares.statuses.clone();
        let mut is_changed = false;
        for spare in statuses {
            let (guid, Some(path)) = (spare.guid, &spare.path) else {
                continue;
            };
            let is_there = spare.state == crate::VdevState::Online && spare.kind != "dspare";
            if !is_there || spare.aux != VdevAux::None || self.tree.find(guid).is_some() {
                continue;
            }
            match self.tidy(guid, path).await {
                Ok(changed) => is_changed |= changed,
                Err(error) => tracing::warn!(path, %error, "a spare keeps the label that it has"),
            }
        }
        if is_changed {
            auxiliary::look_at_auxiliary(self, &self.auxiliary).await;
        }
    }

    /// Whether the label was another one before.
    async fn tidy(&self, guid: Guid, path: &str) -> Result<bool, PoolError> {
        let opener = &self.world.opener;
        let device = vdev::open_patiently(&self.world, path, true).await?;
        if label_use(self, &*device, guid).await != Some(SpareUse::Own) {
            return Ok(false);
        }
        drop(device);
        self.auxiliary.lock().spares.release(guid);
        opener.lend(path).await;
        let device = vdev::open_patiently(&self.world, path, false).await?;
        if label_use(self, &*device, guid).await == Some(SpareUse::Own) {
            let version = self.identity.lock().version;
            let label = auxiliary::label_of(version, config::STATE_SPARE, guid, path);
            write_detached_labels(&*device, &label).await?;
        }
        Ok(true)
    }
}

/// Who uses the device; `None` when it is not that spare.
async fn label_use(core: &Core, device: &dyn device::Device, guid: Guid) -> Option<SpareUse> {
    let labels = vdev::read_labels(device).await.ok()?;
    let label = labels.config(format::Txg::new(u64::MAX))?;
    let is_it = label.u64("guid") == Some(guid.get());
    is_it.then(|| spare_use(label, core.guid()))
}

/// Lets a spare of the list stand in for a device. The caller holds `admin`.
///
/// # Errors
/// [`PoolError::Topology`], [`PoolError::DeviceInUse`] of a spare that another pool uses, and
/// failures of devices.
pub(crate) async fn stand_in(
    core: &Arc<Core>,
    target: Guid,
    spare: Guid,
    ashift: Option<u8>,
    sequential: bool,
) -> Result<(), PoolError> {
    core.tree
        .topology()
        .check_attach(target, MirrorRole::Spare, true)?;
    let spread = core.auxiliary.lock().spares.draid_spare(spare).cloned();
    if let Some(config) = spread {
        // It has no device and no label: nobody else may have it.
        let owner = Guid::new(config.u64("top_guid").unwrap_or(0));
        core.tree.topology().check_own_spare(target, owner)?;
        let create_txg = core.txgs.open_txg();
        let new = core.tree.prepare_draid_spare(&config)?;
        let role = (MirrorRole::Spare, sequential);
        let result = take_in(core, target, &new, role, create_txg).await;
        auxiliary::look_at_auxiliary(core, &core.auxiliary).await;
        return result;
    }
    let (path, is_file) = {
        let auxiliary = core.auxiliary.lock();
        let known = auxiliary.spares.status(spare);
        let path = known.and_then(|status| status.path.clone());
        let kind = known.map(|status| status.kind.as_str());
        match (path, kind) {
            (Some(path), Some("file")) => (path, true),
            (Some(path), Some("disk")) => (path, false),
            _ => return Err(TopologyError::NoSuchVdev { guid: spare }.into()),
        }
    };
    let check_free = |used: Option<SpareUse>| match used {
        Some(SpareUse::Waits | SpareUse::Own) => Ok(()),
        Some(SpareUse::Other { pool }) => Err(PoolError::DeviceInUse {
            path: path.clone(),
            device_use: DeviceUse::ActivePool { pool },
        }),
        None => Err(TopologyError::NoSuchVdev { guid: spare }.into()),
    };
    let device = vdev::open_patiently(&core.world, &path, true).await?;
    check_free(label_use(core, &*device, spare).await)?;
    drop(device);
    let vdevs = [VdevSpec {
        layout: VdevLayout::Leaf(LeafSpec {
            path: path.clone(),
            is_file,
        }),
        class: VdevClass::Normal,
    }];
    // Its label is that of a spare, which we know.
    let facts = layout::examine(&core.world, &vdevs, true).await?;
    let stored = match core.props.get("ashift") {
        Some(Stored::Number(ashift)) => ashift as u8,
        _ => 0,
    };
    let create_txg = core.txgs.open_txg();
    let making = Making {
        ashift: ashift.unwrap_or(stored),
        create_txg,
        random: &*core.world.random,
    };
    let configs = layout::build_tops(core.tree.top_count() as u64, &vdevs, &facts, &making)?;
    let mut config = configs.into_iter().next().unwrap_or_default();
    config.set("guid", spare.get()).set("is_spare", 1u64);
    let bytes = facts
        .first()
        .map_or(0, |leaf| usable_bytes(leaf.size_bytes));
    let wanted = config.u64("ashift").unwrap_or(0) as u32;
    core.tree
        .topology()
        .check_fits(target, &path, bytes, wanted)?;
    // From here on nobody keeps others off but who opens it.
    core.auxiliary.lock().spares.release(spare);
    core.world.opener.lend(&path).await;
    let result = async {
        let new = core.tree.prepare_leaf(&config).await?;
        let device = new.leaf().and_then(|leaf| leaf.device());
        let used = match &device {
            Some(device) => label_use(core, &**device, spare).await,
            None => None,
        };
        if let Err(error) = check_free(used) {
            new.close();
            return Err(error);
        }
        drop(device);
        let role = (MirrorRole::Spare, sequential);
        take_in(core, target, &new, role, create_txg).await
    }
    .await;
    auxiliary::look_at_auxiliary(core, &core.auxiliary).await;
    if result.is_err() {
        // Its label may be the pool's by now.
        core.spares.look();
    }
    result
}

/// Whether a device is one that is being replaced, or replaces another one.
pub(crate) fn is_in_replacement(core: &Core, vdev: &Vdev) -> bool {
    let parent = core.tree.topology().parent_of(vdev.guid());
    parent.is_some_and(|parent| match parent.kind() {
        VdevKind::Mirror(mirror) => mirror.role == MirrorRole::Replacing,
        _ => false,
    })
}

#[cfg(test)]
mod tests {
    use format::NvList;

    use super::*;

    #[test]
    fn labels_tell_who_uses_a_spare() {
        let label = |state: u64, pool: u64, txg: u64| {
            let mut label = NvList::new();
            label
                .set("state", state)
                .set("pool_guid", pool)
                .set("name", "tank")
                .set("txg", txg);
            label
        };
        let use_of = |state, pool, txg| spare_use(&label(state, pool, txg), Guid::new(7));
        let other = || SpareUse::Other {
            pool: "tank".to_owned(),
        };
        assert_eq!(use_of(config::STATE_ACTIVE, 7, 100), SpareUse::Own);
        assert_eq!(use_of(config::STATE_ACTIVE, 7, 0), SpareUse::Own);
        assert_eq!(use_of(config::STATE_ACTIVE, 8, 100), other());
        assert_eq!(use_of(config::STATE_EXPORTED, 8, 100), other());
        // It was not part of that pool yet, or that pool is no more.
        assert_eq!(use_of(config::STATE_ACTIVE, 8, 0), SpareUse::Waits);
        assert_eq!(use_of(config::STATE_DESTROYED, 8, 100), SpareUse::Waits);
        let mut spare = NvList::new();
        spare.set("state", config::STATE_SPARE);
        assert_eq!(spare_use(&spare, Guid::new(7)), SpareUse::Waits);
    }
}
