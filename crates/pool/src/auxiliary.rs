//! Spares and cache devices: what they are, whether they are there, and their lists in the MOS. A
//! spare that stands in for a device is a part of the vdev tree as well (`spares`); cache devices
//! at work belong to the second level of the cache (`second`).
//!
//! Several pools may have the same spare, which then has one guid in all of their lists. Its label
//! tells whether one of them uses it: there is nothing else that all of them would see, since they
//! may be open in different processes.
//!
//! A device's own label has nothing but its guid and what it is for, by which a scan finds it. The
//! lists are written in syncing context, in the txg that adds or removes devices. A device is
//! labelled before: after a crash in between it names no pool, and is free for any.
//!
//! Source: module/zfs/spa.c (`spa_load_spares`, `spa_load_l2cache`, `spa_sync_aux_dev`,
//! `spa_validate_aux_devs`), module/zfs/vdev_label.c (`vdev_aux_label_generate`), module/zfs/arc.c
//! (`l2arc_add_vdev`).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use dataset::DatasetError;
use device::{Device, Hold, World};
use format::{
    Guid, LABEL_BYTES, LABEL_END_BYTES, LABEL_START_BYTES, NvEncoding, NvList, NvValue, ObjectId,
    ObjectType, Txg,
};
use object::{NewObject, ObjectSet, Zap};
use parking_lot::Mutex;
use spa::identity::CONFIG_BLOCK_BYTES;
use spa::{Spa, config, directory, lost};
use trim::ActivityStatus;
use vdev::{VdevTree, read_labels, write_detached_labels};
use zio::Tx;

use crate::layout::{self, LeafFacts, Making};
use crate::standby::{SpareUse, spare_use};
use crate::{PoolError, VdevAux, VdevClass, VdevSpec, VdevState, VdevStatus, second};

/// Longest packed list that is believed, in bytes.
const LIST_BYTES_MAX: u64 = 16 << 20;
/// Least size of the header in front of what a cache device holds (`l2arc_dev_hdr_phys_t`), in
/// bytes.
const CACHE_HEADER_BYTES: u64 = 512;
/// What is zeroed of it on a new cache device: enough for every sector size.
const CACHE_HEADER_BYTES_MAX: usize = 64 << 10;

/// A pool's spares, or its cache devices.
#[derive(Debug, Clone, Default)]
pub(crate) struct AuxList {
    /// MOS object of the list; zero without.
    object: ObjectId,
    /// The devices as the list has them.
    configs: Vec<NvList>,
    /// How they are, in the same order.
    pub(crate) statuses: Vec<VdevStatus>,
    /// What keeps others off them, by guid: all that are there and not in the vdev tree, which
    /// holds its own.
    holds: BTreeMap<Guid, Hold>,
    /// Those that were taken out of use, until the pool is imported anew.
    offline: BTreeSet<Guid>,
}

impl AuxList {
    /// How it is.
    pub(crate) fn status(&self, guid: Guid) -> Option<&VdevStatus> {
        self.statuses.iter().find(|status| status.guid == guid)
    }

    /// The configuration of a distributed spare.
    pub(crate) fn draid_spare(&self, guid: Guid) -> Option<&NvList> {
        let is_it = |config: &&NvList| {
            config.u64("guid") == Some(guid.get()) && config.string("type") == Some("dspare")
        };
        self.configs.iter().find(is_it)
    }

    /// The distributed spares of a dRAID vdev.
    pub(crate) fn draid_spares_of(&self, top: Guid) -> BTreeSet<Guid> {
        let is_its = |config: &&NvList| {
            config.u64("top_guid") == Some(top.get()) && config.string("type") == Some("dspare")
        };
        let guids = self.configs.iter().filter(is_its);
        let guids = guids.filter_map(|config| config.u64("guid"));
        guids.map(Guid::new).collect()
    }

    /// The guids of all.
    pub(crate) fn guids(&self) -> BTreeSet<Guid> {
        let guids = self.configs.iter().filter_map(|config| config.u64("guid"));
        guids.map(Guid::new).collect()
    }

    /// Notes that a device is to be used, or not.
    pub(crate) fn set_offline(&mut self, guid: Guid, is_offline: bool) {
        match is_offline {
            true => self.offline.insert(guid),
            false => self.offline.remove(&guid),
        };
    }

    /// Lets go of a device that the vdev tree or the second level of the cache is to have.
    pub(crate) fn release(&mut self, guid: Guid) {
        self.holds.remove(&guid);
    }

    /// A device that was released cannot be used by them for this reason.
    pub(crate) fn leave(&mut self, guid: Guid, why: VdevAux, hold: Option<Hold>) {
        let mut statuses = self.statuses.iter_mut();
        if let Some(status) = statuses.find(|status| status.guid == guid) {
            status.state = VdevState::CantOpen;
            status.aux = why;
            self.holds.extend(hold.map(|hold| (guid, hold)));
        }
    }

    /// The guid of the device that a person calls `name`: path, guid, or the last part of the path.
    pub(crate) fn find(&self, name: &str) -> Option<Guid> {
        self.statuses
            .iter()
            .find(|vdev| vdev.is_called(name))
            .map(|vdev| vdev.guid)
    }
}

/// Spares and cache devices of a pool.
#[derive(Debug, Clone, Default)]
pub(crate) struct Auxiliary {
    pub(crate) spares: AuxList,
    pub(crate) caches: AuxList,
}

/// The name of a list in the object directory, and of the pair in it.
const fn list_name(class: VdevClass) -> &'static str {
    match class {
        VdevClass::Spare => directory::SPARES,
        _ => directory::L2CACHE,
    }
}

/// Devices that are to become spares or cache devices, labelled and not in any list yet.
#[derive(Debug, Default)]
pub(crate) struct NewAuxiliary {
    spares: Vec<NvList>,
    caches: Vec<NvList>,
    /// Spares of other pools, which have their labels.
    shared: BTreeSet<Guid>,
}

impl NewAuxiliary {
    /// Their configurations, with the distributed spares of new dRAID vdevs (`tops`). What is
    /// labelled as a spare keeps its guid, as it may be another pool's as well (`vdev_label_init`,
    /// module/zfs/vdev_label.c); but for those that are in the pool's own list (`known`) by that.
    pub(crate) fn build(
        vdevs: &[VdevSpec],
        tops: &[NvList],
        facts: &[LeafFacts],
        making: &Making<'_>,
        known: &BTreeSet<Guid>,
    ) -> Result<Self, PoolError> {
        let mut spares = layout::build_auxiliary(VdevClass::Spare, vdevs, facts, making)?;
        let mut shared = BTreeSet::new();
        for spare in &mut spares {
            let path = spare.string("path");
            let facts = facts.iter().find(|leaf| Some(&*leaf.spec.path) == path);
            let Some(guid) = facts.and_then(|leaf| leaf.spare) else {
                continue;
            };
            if !known.contains(&guid) && shared.insert(guid) {
                spare.set("guid", guid.get());
            }
        }
        spares.extend(layout::build_draid_spares(tops, making));
        Ok(Self {
            spares,
            shared,
            caches: layout::build_auxiliary(VdevClass::Cache, vdevs, facts, making)?,
        })
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.spares.is_empty() && self.caches.is_empty()
    }

    /// Those of which there are some.
    pub(crate) fn classes(&self) -> Vec<VdevClass> {
        let all = [
            (VdevClass::Spare, &self.spares),
            (VdevClass::Cache, &self.caches),
        ];
        let used = all.into_iter().filter(|(_, configs)| !configs.is_empty());
        used.map(|(class, _)| class).collect()
    }

    /// Labels the devices.
    pub(crate) async fn label(&self, world: &World, version: u64) -> Result<(), PoolError> {
        let all = [
            (config::STATE_SPARE, &self.spares),
            (config::STATE_L2CACHE, &self.caches),
        ];
        for (state, configs) in all {
            // Distributed spares have no device of their own.
            let is_labelled = |list: &&NvList| {
                let guid = Guid::new(list.u64("guid").unwrap_or(0));
                list.string("type") == Some("dspare") || self.shared.contains(&guid)
            };
            let devices = configs.iter().filter(|list| !is_labelled(list));
            for list in devices {
                let path = list.require_string("path")?;
                let device = vdev::open_patiently(world, path, false).await?;
                if state == config::STATE_L2CACHE {
                    // What another pool cached there must not be taken for ours.
                    let zeros = Bytes::from(vec![0; CACHE_HEADER_BYTES_MAX]);
                    device.write(LABEL_START_BYTES, zeros).await?;
                }
                let guid = Guid::new(list.require_u64("guid")?);
                let mut label = label_of(version, state, guid, path);
                if state == config::STATE_L2CACHE {
                    label.set("ashift", list.require_u64("ashift")?);
                }
                write_detached_labels(&*device, &label).await?;
            }
        }
        Ok(())
    }
}

impl Auxiliary {
    /// The list of a class.
    pub(crate) fn list(&self, class: VdevClass) -> &AuxList {
        match class {
            VdevClass::Spare => &self.spares,
            _ => &self.caches,
        }
    }

    fn list_mut(&mut self, class: VdevClass) -> &mut AuxList {
        match class {
            VdevClass::Spare => &mut self.spares,
            _ => &mut self.caches,
        }
    }

    /// Adds devices; then [`write`] both lists.
    pub(crate) fn add(&mut self, new: &NewAuxiliary) {
        self.spares.configs.extend(new.spares.iter().cloned());
        self.caches.configs.extend(new.caches.iter().cloned());
    }

    /// Takes a device out; then [`write`] the list.
    pub(crate) fn remove(&mut self, class: VdevClass, guid: Guid) {
        let list = self.list_mut(class);
        list.configs
            .retain(|config| config.u64("guid") != Some(guid.get()));
        list.statuses.retain(|status| status.guid != guid);
        list.holds.remove(&guid);
    }

    /// Leaves the devices to others.
    pub(crate) fn release(&mut self) {
        self.spares.holds.clear();
        self.caches.holds.clear();
    }

    /// Looks at all devices again.
    pub(crate) async fn look(&self, places: &Places<'_>) -> Self {
        let mut out = self.clone();
        for class in [VdevClass::Spare, VdevClass::Cache] {
            let list = out.list_mut(class);
            list.statuses.clear();
            // Held again before they are let go: one may have been lent to another pool meanwhile.
            let _before = std::mem::take(&mut list.holds);
            for config in &list.configs {
                let mut status = status(config, class, places).await;
                if list.offline.contains(&status.guid) {
                    status.state = VdevState::Offline;
                    status.aux = VdevAux::None;
                }
                let is_idle = is_idle(&status) && !places.in_use.contains(&status.guid);
                if let Some(path) = status.path.as_deref().filter(|_| is_idle) {
                    let hold = hold(path, places).await;
                    list.holds.extend(hold.map(|hold| (status.guid, hold)));
                }
                list.statuses.push(status);
            }
        }
        out
    }
}

/// The label of a device that is in no vdev tree (`vdev_aux_label_generate`), of a pool of a
/// version.
pub(crate) fn label_of(version: u64, state: u64, guid: Guid, path: &str) -> NvList {
    let mut label = NvList::new();
    label
        .set("version", version)
        .set("state", state)
        .set("guid", guid.get())
        .set("path", path);
    label
}

/// Writes a list to the MOS, in syncing context (`spa_sync_aux_dev`). Returns its object.
pub(crate) async fn write(
    mos: &Arc<ObjectSet>,
    tx: &Tx,
    class: VdevClass,
    auxiliary: &Auxiliary,
) -> Result<ObjectId, DatasetError> {
    let list = auxiliary.list(class);
    let object = if list.object.is_zero() {
        let new = NewObject::new(ObjectType::PACKED_NVLIST)
            .with_block_bytes(CONFIG_BLOCK_BYTES)
            .with_bonus(ObjectType::PACKED_NVLIST_SIZE, vec![0; 8]);
        let object = mos.allocate(tx, new).await?;
        Zap::hold(mos, ObjectId::POOL_DIRECTORY)
            .await?
            .update_u64(tx, list_name(class), object.id().get())
            .await?;
        object
    } else {
        mos.hold(list.object).await?
    };
    let mut packed = NvList::new();
    packed.set(list_name(class), NvValue::ListArray(list.configs.clone()));
    let mut packed = packed.encode(NvEncoding::Xdr)?;
    let length = packed.len() as u64;
    packed.resize(
        packed.len().next_multiple_of(CONFIG_BLOCK_BYTES as usize),
        0,
    );
    object.write(tx, 0, Bytes::from(packed)).await?;
    object.set_bonus(tx, length.to_le_bytes().to_vec())?;
    Ok(object.id())
}

/// [`write`]s the lists of these classes and remembers their objects.
pub(crate) async fn write_lists(
    spa: &Spa,
    lists: &Mutex<Auxiliary>,
    tx: &Tx,
    classes: &[VdevClass],
) -> Result<(), DatasetError> {
    for class in classes {
        let auxiliary = lists.lock().clone();
        let object = write(spa.dsl.mos(), tx, *class, &auxiliary).await?;
        lists.lock().list_mut(*class).object = object;
    }
    Ok(())
}

/// Where devices are.
pub(crate) struct Places<'a> {
    /// The pool's name.
    pub(crate) pool: &'a str,
    pub(crate) world: &'a World,
    pub(crate) tree: &'a VdevTree,
    /// Where a scan found devices, by guid.
    pub(crate) paths: &'a BTreeMap<Guid, String>,
    /// The pool is only read: nobody is kept off.
    pub(crate) read_only: bool,
    /// Cache devices that the second level has open.
    pub(crate) in_use: BTreeSet<Guid>,
}

/// The lists of spares and cache devices in the MOS.
pub(crate) async fn read(
    mos: &Arc<ObjectSet>,
    places: &Places<'_>,
) -> Result<Auxiliary, PoolError> {
    let directory = Zap::hold(mos, ObjectId::POOL_DIRECTORY).await?;
    let mut out = Auxiliary::default();
    for class in [VdevClass::Spare, VdevClass::Cache] {
        let id = ObjectId::new(directory.lookup_u64(list_name(class)).await?.unwrap_or(0));
        if !id.is_zero() {
            let list = out.list_mut(class);
            list.object = id;
            match read_list(mos, id, list_name(class)).await {
                Ok(configs) => list.configs = configs,
                Err(error) => {
                    // The next change makes a new list.
                    list.object = ObjectId::ZERO;
                    lost(places.pool, list_name(class), &error);
                }
            }
            list.configs
                .iter_mut()
                .for_each(|config| config::fix_paths(config, places.paths));
        }
    }
    Ok(out.look(places).await)
}

async fn read_list(
    mos: &Arc<ObjectSet>,
    id: ObjectId,
    name: &str,
) -> Result<Vec<NvList>, PoolError> {
    let object = mos.hold(id).await?;
    let bonus = object.bonus();
    let Some(raw) = bonus.get(..8) else {
        return Ok(Vec::new());
    };
    let length = u64::from_le_bytes(raw.try_into().expect("eight bytes")).min(LIST_BYTES_MAX);
    let list = NvList::decode(&object.read_bytes(0, length as usize).await?)?;
    Ok(list.lists(name).unwrap_or(&[]).to_vec())
}

async fn status(config: &NvList, class: VdevClass, places: &Places<'_>) -> VdevStatus {
    let guid = Guid::new(config.u64("guid").unwrap_or(0));
    let kind = config.string("type").unwrap_or("disk").to_owned();
    let path = places
        .paths
        .get(&guid)
        .cloned()
        .or_else(|| config.string("path").map(str::to_owned));
    let mut out = VdevStatus {
        name: path.clone().unwrap_or_else(|| guid.to_string()),
        kind,
        parity: 0,
        path,
        guid,
        class,
        state: VdevState::Online,
        aux: VdevAux::None,
        used_by: None,
        is_removing: false,
        is_non_allocating: false,
        is_stale: false,
        is_out: false,
        is_deferred: false,
        scan_repaired_bytes: 0,
        rebuild: None,
        read_errors: 0,
        write_errors: 0,
        checksum_errors: 0,
        is_expanding: false,
        slow_ios: 0,
        initialize: ActivityStatus::default(),
        trim: ActivityStatus::default(),
        can_trim: true,
        read_ops: 0,
        read_bytes: 0,
        write_ops: 0,
        write_bytes: 0,
        trim_ops: 0,
        trim_bytes: 0,
        trim_errors: 0,
        size_bytes: 0,
        expandable_bytes: 0,
        physical_bytes: 0,
        asize_bytes: 0,
        allocated_bytes: 0,
        fragmentation_percent: None,
        ashift: 0,
        small_sectors: None,
        properties: Vec::new(),
        children: Vec::new(),
    };
    if let Some(vdev) = places.tree.find(guid) {
        out.aux = VdevAux::Spared;
        out.physical_bytes = vdev::sizes::physical_bytes(&vdev).unwrap_or(0);
        return out;
    }
    let found = if out.kind == "dspare" {
        let top = Guid::new(config.u64("top_guid").unwrap_or(0));
        let top = places.tree.find(top);
        top.and_then(|top| vdev::sizes::spare_bytes(&top))
            .map(|bytes| (bytes, SpareUse::Waits))
            .ok_or(VdevAux::OpenFailed)
    } else {
        measure(&out, places).await
    };
    match found {
        Ok((bytes, used)) => {
            out.physical_bytes = bytes;
            if let (VdevClass::Spare, SpareUse::Other { pool }) = (class, used) {
                out.aux = VdevAux::Spared;
                out.used_by = Some(pool);
            }
        }
        Err(aux) => {
            out.state = VdevState::CantOpen;
            out.aux = aux;
        }
    }
    if class == VdevClass::Cache && out.state == VdevState::Online {
        out.ashift = config.u64("ashift").unwrap_or(0).min(16) as u8;
        let sector = 1u64 << out.ashift;
        out.size_bytes = (out.physical_bytes & !(LABEL_BYTES - 1))
            .saturating_sub(LABEL_START_BYTES + LABEL_END_BYTES)
            .saturating_sub(sector.max(CACHE_HEADER_BYTES));
        out.fragmentation_percent = Some(0);
    }
    out
}

/// Whether the device is there and nobody here uses it.
fn is_idle(status: &VdevStatus) -> bool {
    status.state == VdevState::Online && status.aux == VdevAux::None && status.kind != "dspare"
}

/// Keeps others off a device. Another pool's server may have the same spare: then it is as it is.
async fn hold(path: &str, places: &Places<'_>) -> Option<Hold> {
    if places.read_only {
        return None;
    }
    match places.world.opener.hold(path).await {
        Ok(hold) => Some(hold),
        Err(error) => {
            tracing::warn!(path, %error, "others are not kept off a spare or cache device");
            None
        }
    }
}

/// Size of the device in bytes, if it is the right one, and who uses it; else why it cannot be
/// used.
async fn measure(vdev: &VdevStatus, places: &Places<'_>) -> Result<(u64, SpareUse), VdevAux> {
    let path = vdev.path.as_deref().ok_or(VdevAux::OpenFailed)?;
    let device: Arc<dyn Device> = match vdev::open_patiently(places.world, path, true).await {
        Ok(device) => device,
        Err(error) => {
            tracing::warn!(path, %error, "a spare or cache device cannot be opened");
            return Err(VdevAux::OpenFailed);
        }
    };
    let labels = read_labels(&*device)
        .await
        .map_err(|_| VdevAux::OpenFailed)?;
    let config = labels
        .config(Txg::new(u64::MAX))
        .ok_or(VdevAux::CorruptData)?;
    if config.u64("guid") != Some(vdev.guid.get()) {
        return Err(VdevAux::CorruptData);
    }
    Ok((device.size_bytes(), spare_use(config, places.tree.guid())))
}

/// Adds spares and cache devices to their lists, in syncing context.
pub(crate) async fn add_auxiliary(
    spa: &Spa,
    lists: &Mutex<Auxiliary>,
    tx: &Tx,
    new: &NewAuxiliary,
) -> Result<(), DatasetError> {
    lists.lock().add(new);
    write_lists(spa, lists, tx, &new.classes()).await
}

/// Looks how spares and cache devices are, and uses the latter.
pub(crate) async fn look_at_auxiliary(spa: &Spa, lists: &Mutex<Auxiliary>) {
    let before = lists.lock().clone();
    let pool = spa.identity.name();
    let places = Places {
        pool: &pool,
        world: &spa.world,
        tree: &spa.tree,
        paths: &BTreeMap::new(),
        read_only: spa.read_only,
        in_use: (spa.pipeline.second_level().figures().iter())
            .map(|figures| figures.device)
            .collect(),
    };
    let after = before.look(&places).await;
    *lists.lock() = after;
    if !spa.read_only {
        let level = spa.pipeline.second_level();
        second::follow(level, &spa.world, spa.guid(), lists).await;
    }
}
