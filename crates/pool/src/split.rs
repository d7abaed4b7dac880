//! A new pool of one device of each mirror (`zpool split`).
//!
//! 1. Intent logs are taken off log vdevs, which the new pool does not get.
//! 2. In one txg the devices are taken out of use. What they have is the state of the txg before,
//!    whole: later writes only went to space that is free in it. The configuration names them
//!    (`splitcfg`).
//! 3. Once nothing is under way to them any more, a pool of another guid is opened on them at that
//!    state. Its first txg makes their labels its own; those say which pool they were split off
//!    (`split_guid`). The next one frees what belongs to vdevs that are not there.
//! 4. It is exported, and one more txg of the old pool detaches the devices.
//!
//! # What a crash leaves
//! - Before a label is written: the old pool, with its mirrors; the devices are resilvered.
//! - While labels are written: the old pool, without the devices whose labels are new. A device one
//!   of whose labels says that it was split off is none of the old pool's any more, even where
//!   others have not been written yet: uberblocks are written after the first labels. The new pool
//!   lacks devices; those with old labels are resilvered in the old one.
//! - After that: the new pool, and the old one with devices that are a part of another pool. An
//!   import of the old pool detaches them if all of them are ([`finish`]; `spa_try_repair`).
//!
//! The old pool has one device of each mirror left at any time, with everything.
//!
//! Source: module/zfs/spa.c (`spa_vdev_split_mirror`), lib/libzfs/libzfs_pool.c
//! (`zpool_vdev_split`).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use dataset::{DatasetError, SyncTask};
use device::BoxFuture;
use format::{Guid, NvList, NvValue, ObjectId, Uberblock, VdevId};
use object::{SyncContext, Zap};
use parking_lot::Mutex;
use spa::history::HistoryWhat;
use spa::{config, directory, props};
use vdev::{MirrorRole, Scope, TopologyError, Vdev, VdevAux, VdevKind, VdevState};
use zio::Tx;

use crate::core::Core;
use crate::discover::{FoundPool, FoundState};
use crate::newtops::Emptied;
use crate::topology::{allow_blocks, detach_in, settle};
use crate::vdevs::{LOG_REMOVAL, evacuate, is_itself_called};
use crate::{
    ImportSpec, MissingLogs, Pool, PoolError, PoolHealth, VdevClass, auxiliary, layout, open,
};

/// Pairs of a top-level vdev that its device takes over.
const TOP_PAIRS: [&str; 9] = [
    "metaslab_array",
    "metaslab_shift",
    "ashift",
    "asize",
    "is_log",
    "alloc_bias",
    "non_allocating",
    config::TOP_ZAP,
    "create_txg",
];

/// What [`crate::Pool::split`] is to make.
#[derive(Debug, Clone, Default)]
pub struct SplitSpec {
    /// Name of the new pool.
    pub new_name: String,
    /// Devices to take, at most one of each mirror; of other mirrors the last one.
    pub devices: Vec<String>,
    /// Properties of the new pool.
    pub properties: Vec<(String, String)>,
}

/// Where a top-level vdev of the old pool goes.
enum Part {
    /// The new pool has a hole there.
    Hole,
    /// It has the same.
    Same,
    /// It has this device.
    Device(Arc<Vdev>),
}

fn refused(core: &Core, why: impl Into<String>) -> PoolError {
    PoolError::CannotSplit {
        pool: core.identity.name(),
        why: why.into(),
    }
}

/// Which device of each mirror goes.
fn plan(core: &Core, devices: &[String]) -> Result<Vec<Part>, PoolError> {
    let mut found = vec![false; devices.len()];
    let mut parts = Vec::new();
    for top in core.tree.tops() {
        let role = match top.kind() {
            VdevKind::Hole => {
                parts.push(Part::Hole);
                continue;
            }
            VdevKind::Indirect(_) => {
                parts.push(Part::Same);
                continue;
            }
            _ if top.is_log() => {
                parts.push(Part::Hole);
                continue;
            }
            VdevKind::Mirror(mirror) => Some(mirror.role),
            _ => None,
        };
        if role != Some(MirrorRole::Mirror) {
            return Err(refused(
                core,
                "Source pool must be composed only of mirrors",
            ));
        }
        let children = top.children();
        let named = devices.iter().enumerate().find_map(|(index, name)| {
            let child = children
                .iter()
                .find(|child| is_itself_called(child, name))?;
            (!found[index]).then_some((index, child))
        });
        if let Some((index, _)) = named {
            found[index] = true;
        }
        let Some(child) = named.map(|(_, child)| child).or(children.last()) else {
            return Err(refused(core, "a mirror of it has no devices"));
        };
        check(core, child)?;
        parts.push(Part::Device(child.clone()));
    }
    if found.contains(&false) {
        return Err(refused(
            core,
            "Device list must include at most one disk from each mirror",
        ));
    }
    while matches!(parts.last(), Some(Part::Hole)) {
        parts.pop();
    }
    Ok(parts)
}

/// Whether a device has everything, and is not needed.
fn check(core: &Core, vdev: &Arc<Vdev>) -> Result<(), PoolError> {
    let name = vdev.display_name();
    let Some(leaf) = vdev.leaf() else {
        return Err(refused(core, format!("{name} is being replaced")));
    };
    if vdev.config_u64("is_spare") == Some(1) {
        return Err(refused(core, format!("{name} is a hot spare")));
    }
    if leaf.state().0 != VdevState::Healthy || !leaf.is_writeable() {
        return Err(refused(core, format!("{name} is not online")));
    }
    if !leaf.dirty_times().missing().is_empty() {
        return Err(refused(
            core,
            format!("{name} lacks data; wait until it is resilvered"),
        ));
    }
    if core.tree.topology().is_required(vdev.guid()) {
        return Err(TopologyError::OnlyCopy { vdev: name }.into());
    }
    Ok(())
}

/// The devices that would go, by their guids, in the order of their mirrors.
pub(crate) fn planned(core: &Core, devices: &[String]) -> Result<Vec<Guid>, PoolError> {
    let parts = plan(core, devices)?;
    Ok(taken(&parts).iter().map(|vdev| vdev.guid()).collect())
}

fn taken(parts: &[Part]) -> Vec<Arc<Vdev>> {
    let devices = parts.iter().filter_map(|part| match part {
        Part::Device(vdev) => Some(vdev.clone()),
        _ => None,
    });
    devices.collect()
}

/// Splits the pool; the new one is exported.
pub(crate) async fn split(core: &Arc<Core>, spec: &SplitSpec) -> Result<(), PoolError> {
    layout::check_name(&spec.new_name)?;
    for (name, value) in &spec.properties {
        props::parse(name, value)?;
    }
    let _admin = core.admin.lock().await;
    core.check_not_suspended()?;
    core.check_no_checkpoint()?;
    core.evacuation.check_none()?;
    plan(core, &spec.devices)?;
    let tops = core.tree.tops().into_iter();
    let logs: Vec<VdevId> = tops
        .filter(|top| top.is_log() && !top.kind().is_hole())
        .map(|top| top.vdev_id())
        .collect();
    if !logs.is_empty() && core.identity.lock().version < LOG_REMOVAL {
        return Err(PoolError::CannotSplit {
            pool: core.identity.name(),
            why: "log devices can be left behind from version 19 on; upgrade the pool first".into(),
        });
    }
    let emptied = Emptied::begin(&core.new_tops, core.pipeline.allocator(), logs.clone());
    let result = split_without_logs(core, spec, &logs).await;
    drop(emptied);
    allow_blocks(core);
    result
}

async fn split_without_logs(
    core: &Arc<Core>,
    spec: &SplitSpec,
    logs: &[VdevId],
) -> Result<(), PoolError> {
    for log in logs {
        if !core.unless_suspended(evacuate(core, *log)).await? {
            return Err(refused(
                core,
                "intent logs on its log devices wait to be replayed; mount their filesystems first",
            ));
        }
    }
    core.dsl.logs().close_open().await?;
    core.unless_suspended(core.txgs.sync()).await?;
    // Nothing may be discarded any more on what goes.
    let _gate = core.passes.gate.lock().await;
    let task = TakeTask {
        core: core.clone(),
        devices: spec.devices.clone(),
        taken: Arc::default(),
    };
    let planned = planned(core, &spec.devices)?;
    let outcome = task.taken.clone();
    core.run_task(task).await?;
    let taken = outcome.lock().take();
    let taken = taken.unwrap_or_else(|| Err(refused(core, "it was not looked at")));
    let taken = match taken {
        Ok(taken) => taken,
        Err(error) => {
            bring_back(core, &planned).await?;
            return Err(error);
        }
    };
    let made = make(core, spec, &taken).await;
    core.identity.lock().splitting.clear();
    if let Err(error) = made {
        bring_back(core, &taken.guids).await?;
        return Err(error);
    }
    let_go(core, &taken.guids).await
}

/// The devices are used again. Those whose labels are the new pool's already stay out.
async fn bring_back(core: &Core, guids: &[Guid]) -> Result<(), PoolError> {
    for guid in guids {
        if let Err(error) = core.tree.bring_back(*guid).await {
            tracing::warn!(%guid, %error, "a device that was to be split off stays out");
        }
    }
    settle(core).await
}

/// What was taken out of the old pool.
struct Taken {
    guids: Vec<Guid>,
    /// The state that the devices have.
    uberblock: Uberblock,
    /// The vdevs of the new pool.
    root: NvList,
    /// The vdevs of the old pool that the new one has not, by their configurations.
    left_out: Vec<NvList>,
}

/// Takes the devices out of use, in syncing context.
struct TakeTask {
    core: Arc<Core>,
    devices: Vec<String>,
    taken: Arc<Mutex<Option<Result<Taken, PoolError>>>>,
}

impl TakeTask {
    fn take(&self, ctx: &SyncContext) -> Result<Taken, PoolError> {
        let core = &self.core;
        let parts = plan(core, &self.devices)?;
        let uberblock = core.state.lock().uberblock;
        if uberblock.txg >= ctx.txg {
            return Err(refused(core, "its state is of a later txg"));
        }
        let old = core.tree.to_config(Scope::Mos);
        let mut guid = 0;
        while guid == 0 {
            guid = core.world.random.next_u64();
        }
        let (root, left_out) = new_root(&old, &parts, guid);
        let taken = taken(&parts);
        let guids: Vec<Guid> = taken.iter().map(|vdev| vdev.guid()).collect();
        for (index, guid) in guids.iter().enumerate() {
            if let Err(error) = core.tree.take_out(*guid, false, true) {
                tracing::warn!(%error, index, "a device cannot be split off");
                return Err(error.into());
            }
        }
        let list = parts.iter().map(|part| match part {
            Part::Device(vdev) => vdev.guid().get(),
            _ => 0,
        });
        let mut pairs = core.identity.lock();
        pairs.splitting = list.collect();
        pairs.dirty = true;
        Ok(Taken {
            guids,
            uberblock,
            root,
            left_out,
        })
    }
}

impl SyncTask for TakeTask {
    fn name(&self) -> &'static str {
        "split a pool"
    }

    fn check<'a>(&'a self, _ctx: &'a SyncContext) -> BoxFuture<'a, Result<(), DatasetError>> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn apply<'a>(&'a self, ctx: &'a SyncContext) -> BoxFuture<'a, Result<(), DatasetError>> {
        Box::pin(async move {
            let taken = self.take(ctx);
            *self.taken.lock() = Some(taken);
            Ok(())
        })
    }
}

/// The new pool's vdevs, and those that it has not.
fn new_root(old: &NvList, parts: &[Part], guid: u64) -> (NvList, Vec<NvList>) {
    let mut left_out = Vec::new();
    let mut children = Vec::new();
    for (index, top) in config::children(old).iter().enumerate() {
        let id = index as u64;
        match parts.get(index) {
            Some(Part::Device(vdev)) => {
                let mut rest = top.clone();
                let (own, others): (Vec<_>, Vec<_>) = config::children(top)
                    .iter()
                    .cloned()
                    .partition(|child| child.u64("guid") == Some(vdev.guid().get()));
                // What the top-level vdev has goes on.
                for pair in ["metaslab_array", config::TOP_ZAP] {
                    rest.remove(pair);
                }
                rest.set("children", others);
                left_out.push(rest);
                for mut own in own {
                    own.set("id", id);
                    for pair in TOP_PAIRS {
                        if let Some(value) = top.get(pair) {
                            own.set(pair, value.clone());
                        }
                    }
                    for pair in ["offline", "aux_state"] {
                        own.remove(pair);
                    }
                    children.push(own);
                }
            }
            Some(Part::Same) => children.push(top.clone()),
            part => {
                if top.string("type") != Some("hole") {
                    left_out.push(top.clone());
                }
                if part.is_some() {
                    children.push(hole(id));
                }
            }
        }
    }
    let mut root = NvList::new();
    for (name, value) in old.iter().filter(|(name, _)| *name != "children") {
        root.set(name, value.clone());
    }
    root.set("guid", guid);
    root.set("children", children);
    (root, left_out)
}

fn hole(id: u64) -> NvList {
    let mut hole = NvList::new();
    hole.set("type", "hole").set("id", id).set("guid", 0u64);
    for name in [
        "metaslab_array",
        "metaslab_shift",
        "ashift",
        "asize",
        "is_log",
    ] {
        hole.set(name, 0u64);
    }
    hole.set("is_hole", 1u64);
    hole
}

/// Makes the new pool of what was taken, and exports it.
async fn make(core: &Arc<Core>, spec: &SplitSpec, taken: &Taken) -> Result<(), PoolError> {
    for guid in &taken.guids {
        core.tree.settle_taken(*guid).await?;
    }
    let guid = Guid::new(taken.root.u64("guid").unwrap_or(0));
    let mut paths = BTreeMap::new();
    config::for_each(&taken.root, &mut |vdev| {
        if let (Some(path), Some(guid)) = (vdev.string("path"), vdev.u64("guid")) {
            paths.insert(Guid::new(guid), path.to_owned());
        }
    });
    let (errata, version) = {
        let pairs = core.identity.lock();
        (pairs.errata, pairs.version)
    };
    let mut pairs = NvList::new();
    pairs
        .set("version", version)
        .set("name", spec.new_name.as_str())
        .set("pool_guid", guid.get())
        .set("errata", errata)
        .set("split_guid", core.guid().get())
        .set("vdev_tree", NvValue::List(taken.root.clone()));
    let host = core.host.lock().clone();
    let found = FoundPool {
        name: spec.new_name.clone(),
        guid,
        state: FoundState::Exported,
        config: pairs.clone(),
        config_txg: taken.uberblock.txg,
        uberblock_txg: taken.uberblock.txg,
        timestamp_s: taken.uberblock.timestamp_seconds,
        hostid: host.hostid,
        hostname: host.hostname.clone(),
        comment: None,
        health: PoolHealth::Online,
        missing: Vec::new(),
        paths,
        standing_by: BTreeSet::new(),
    };
    let import = ImportSpec {
        // Log devices stay behind.
        missing_logs: MissingLogs::Accepted,
        unwatched: true,
        force: true,
        cache: Some(core.pipeline.cache().shared().clone()),
        ..ImportSpec::new(found, host)
    };
    let assembled = open::assemble(&core.world, &import, taken.uberblock, &pairs).await?;
    let pool = Pool::of(assembled.clone());
    let done = async {
        let forget = ForgetTask {
            core: assembled.clone(),
            left_out: taken.left_out.clone(),
        };
        assembled.run_task(forget).await?;
        assembled.history.queue(HistoryWhat::Internal {
            event: "split".into(),
            text: format!("from pool {}", core.identity.name()),
            txg: 0,
            dataset: None,
        });
        for (name, value) in &spec.properties {
            pool.properties().set(name, value).await?;
        }
        Ok(())
    }
    .await;
    pool.export(done.is_err()).await?;
    done
}

/// Frees what the new pool's MOS has of vdevs that are not there, in syncing context.
struct ForgetTask {
    core: Arc<Core>,
    left_out: Vec<NvList>,
}

impl ForgetTask {
    async fn forget(&self, ctx: &SyncContext, vdev: &NvList) -> Result<(), DatasetError> {
        let (core, tx) = (&self.core, Tx::syncing(ctx.txg));
        let mos = core.dsl.mos();
        let object = |pair: &str| {
            let id = vdev.u64(pair).filter(|id| *id != 0);
            id.map(ObjectId::new)
        };
        if let Some(array) = object("metaslab_array") {
            let shift = vdev.u64("metaslab_shift").unwrap_or(63).min(63);
            let count = vdev.u64("asize").unwrap_or(0) >> shift;
            let maps = mos.hold(array).await?;
            let raw = maps.read_bytes(0, (count * 8) as usize).await?;
            for raw in raw.chunks_exact(8) {
                let id = u64::from_le_bytes(raw.try_into().expect("eight bytes"));
                if id != 0 {
                    mos.free(&tx, ObjectId::new(id)).await?;
                }
            }
            mos.free(&tx, array).await?;
        }
        if let Some(times) = object("DTL") {
            mos.free(&tx, times).await?;
        }
        if let Some(zap) = object(config::TOP_ZAP) {
            let names = [
                directory::MS_UNFLUSHED_PHYS_TXGS,
                directory::CHECKPOINT_SPACE_MAP,
            ];
            let own = Zap::hold(mos, zap).await?;
            for name in names {
                if let Some(id) = own.lookup_u64(name).await? {
                    mos.free(&tx, ObjectId::new(id)).await?;
                }
            }
        }
        let all = core.identity.lock().all_vdev_zaps;
        for zap in [object(config::TOP_ZAP), object(config::LEAF_ZAP)] {
            let Some(zap) = zap else { continue };
            mos.free(&tx, zap).await?;
            core.props.forget_vdev(zap);
            if !all.is_zero() {
                let all = Zap::hold(mos, all).await?;
                all.remove_int(&tx, zap.get()).await?;
            }
        }
        Ok(())
    }
}

impl SyncTask for ForgetTask {
    fn name(&self) -> &'static str {
        "forget vdevs of another pool"
    }

    fn check<'a>(&'a self, _ctx: &'a SyncContext) -> BoxFuture<'a, Result<(), DatasetError>> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn apply<'a>(&'a self, ctx: &'a SyncContext) -> BoxFuture<'a, Result<(), DatasetError>> {
        Box::pin(async move {
            let core = &self.core;
            let mut vdevs = Vec::new();
            for top in &self.left_out {
                config::for_each(top, &mut |vdev| vdevs.push(vdev.clone()));
            }
            for vdev in &vdevs {
                self.forget(ctx, vdev).await?;
            }
            let classes = [VdevClass::Spare, VdevClass::Cache];
            for class in classes {
                let guids: Vec<Guid> = {
                    let auxiliary = core.auxiliary.lock();
                    let statuses = &auxiliary.list(class).statuses;
                    statuses.iter().map(|vdev| vdev.guid).collect()
                };
                for guid in guids {
                    core.auxiliary.lock().remove(class, guid);
                }
            }
            auxiliary::write_lists(core, &core.auxiliary, &Tx::syncing(ctx.txg), &classes).await?;
            core.identity.mark_dirty();
            Ok(())
        })
    }
}

/// The devices have become the new pool's: the old one goes on without them.
async fn let_go(core: &Arc<Core>, guids: &[Guid]) -> Result<(), PoolError> {
    let task = LetGoTask {
        core: core.clone(),
        guids: guids.to_vec(),
        refused: Arc::default(),
    };
    let refused = task.refused.clone();
    core.run_task(task).await?;
    match refused.lock().take() {
        Some(refused) => Err(refused.into()),
        None => Ok(()),
    }
}

struct LetGoTask {
    core: Arc<Core>,
    guids: Vec<Guid>,
    refused: Arc<Mutex<Option<TopologyError>>>,
}

impl SyncTask for LetGoTask {
    fn name(&self) -> &'static str {
        "let go of devices that were split off"
    }

    fn check<'a>(&'a self, _ctx: &'a SyncContext) -> BoxFuture<'a, Result<(), DatasetError>> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn apply<'a>(&'a self, ctx: &'a SyncContext) -> BoxFuture<'a, Result<(), DatasetError>> {
        Box::pin(async move {
            for guid in &self.guids {
                match detach_in(&self.core, ctx, *guid, None).await? {
                    // Its labels are another pool's.
                    Ok(gone) => gone.close(),
                    Err(refused) => {
                        tracing::warn!(%refused, "a device that was split off stays in the pool");
                        *self.refused.lock() = Some(refused);
                    }
                }
            }
            Ok(())
        })
    }
}

/// After an import: a split that a crash came into is ended if the new pool has all of its devices
/// (`spa_try_repair`). `list` are their guids, zero for none.
pub(crate) async fn finish(core: &Arc<Core>, list: &[u64]) -> Result<(), PoolError> {
    let _admin = core.admin.lock().await;
    let guids: Vec<Guid> = list
        .iter()
        .filter(|guid| **guid != 0)
        .map(|guid| Guid::new(*guid))
        .collect();
    let has_gone = |guid: &Guid| {
        let vdev = core.tree.find(*guid);
        vdev.is_none_or(|vdev| vdev.state().1 == VdevAux::SplitPool)
    };
    if guids.is_empty() || !guids.iter().all(has_gone) {
        return Ok(());
    }
    let here = guids
        .into_iter()
        .filter(|guid| core.tree.find(*guid).is_some());
    let here: Vec<Guid> = here.collect();
    let_go(core, &here).await
}

/// The devices that a configuration says were being split off.
pub(crate) fn unfinished(trusted: &NvList) -> Vec<u64> {
    let split = trusted.list("splitcfg");
    let list = split.and_then(|split| split.u64s("guid_list"));
    list.unwrap_or_default().to_vec()
}
