//! Adding and removing vdevs of a pool that is open, and giving it another guid.
//!
//! Adding: the devices are opened and labelled with txg 0 (a crash leaves them free for any pool);
//! then one txg makes them part of the vdev tree, the configuration, the space maps and the
//! uberblock's sum of guids, all at once. Only once that txg is on disk the allocator hears of
//! them: else an intent log block of the next txg could lie on a vdev that, after a crash, nobody
//! knows.
//!
//! Removing a log vdev: nothing is allocated from it any more; all intent logs are given back;
//! after the txgs that freed space waits, nothing is left on it. Then one txg frees its space maps
//! and ZAPs and puts a hole in its place. At last its labels are written over, so that nobody takes
//! it for a part of the pool. A crash in between leaves the vdev in the pool, or a device with an
//! old label that the configuration does not know.
//!
//! Other vdevs have data, which is copied first, in the background (`evacuation`).
//!
//! A hole stays, and its number is never used again, as in OpenZFS since it has log space maps:
//! these name vdevs by their numbers, and what is still said in them of the vdev that was removed
//! would be taken for the new one's. A hole costs eight bytes of a label.
//!
//! A pool that is suspended, or gets so meanwhile, is not waited for (`Core::run_task`). Before
//! labels are written everything is checked that can be.
//!
//! Spares and cache devices only are in lists (`auxiliary`).
//!
//! Source: module/zfs/spa.c (`spa_vdev_add`, `spa_change_guid`), module/zfs/vdev_removal.c
//! (`spa_vdev_remove`, `spa_vdev_remove_log`, `vdev_remove_empty_log`).

use std::sync::Arc;

use dataset::{DatasetError, SyncTask};
use device::{BoxFuture, World};
use format::{Guid, NvList, ObjectId, Txg, VdevId};
use object::{SyncContext, Zap};
use spa::events::{About, Sysevent};
use spa::props::Stored;
use spa::{config, directory, features};
use space::{SpaceSync, TopShape};
use vdev::{Scope, Vdev, clear_labels, leaf_label_config, write_detached_labels};
use zio::alloc::TopSpace;
use zio::{Tx, ZioError};

use crate::auxiliary::{self, NewAuxiliary};
use crate::core::Core;
use crate::layout::{self, Making};
use crate::newtops::Emptied;
use crate::topology::allow_blocks;
use crate::{PoolError, VdevClass, VdevSpec, labelroom, second};

/// Txgs after which everything must have left a log vdev: those under way, and those that freed
/// space waits.
const EVACUATION_TXGS_MAX: u32 = 12;

/// The first version of pools that can have a hole where a log device was (`SPA_VERSION_HOLES`).
pub(crate) const LOG_REMOVAL: u64 = 19;

/// What [`crate::Pool::add`] is to add.
#[derive(Debug, Clone, Default)]
pub struct AddSpec {
    /// The vdevs.
    pub vdevs: Vec<VdevSpec>,
    /// log2 of their smallest block; else the pool's property, else what the devices want.
    pub ashift: Option<u8>,
    /// Overwrite devices that hold another pool, and allow another ashift than the pool's.
    pub force: bool,
    /// Allow another ashift than the pool's.
    pub allow_ashift_mismatch: bool,
}

/// Whether a pool counts space with parity, as those do that were made in version 1 or 2, whatever
/// their version is now. On vdevs without parity that is the same.
pub(crate) async fn counts_raw_space(directory: &Zap) -> Result<bool, PoolError> {
    Ok(directory.lookup(directory::DEFLATE).await?.is_none())
}

pub(crate) async fn add(core: &Arc<Core>, spec: &AddSpec) -> Result<(), PoolError> {
    let _admin = core.admin.lock().await;
    core.check_not_suspended()?;
    layout::check_vdevs(&spec.vdevs)?;
    features::check_classes(&spec.vdevs, |guid| core.dsl.features().is_enabled(guid))?;
    let version = core.identity.lock().version;
    features::check_parity(&spec.vdevs, version)?;
    let raidz = spec.vdevs.iter().any(|vdev| {
        use crate::VdevLayout::{Draid, Raidz};
        matches!(vdev.layout, Raidz { .. } | Draid { .. })
    });
    if raidz && counts_raw_space(core.dsl.directory()).await? {
        return Err(PoolError::BadVdevs {
            why: "a raidz or draid vdev cannot be added to a pool that counts space with parity, \
                  as those do that version 1 or 2 made"
                .into(),
        });
    }
    let is_removing = core.evacuation.is_active();
    let removed = core.tree.tops().iter().any(|top| top.kind().is_indirect());
    if raidz && (removed || is_removing) {
        return Err(PoolError::BadVdevs {
            why: "a raidz or draid vdev cannot be added to a pool from which vdevs were removed"
                .into(),
        });
    }
    refuse_own(core, &spec.vdevs)?;
    let facts = layout::examine(&core.world, &spec.vdevs, spec.force).await?;
    let stored = match core.props.get("ashift") {
        Some(Stored::Number(ashift)) => ashift as u8,
        _ => 0,
    };
    let create_txg = core.txgs.open_txg();
    let making = Making {
        ashift: spec.ashift.unwrap_or(stored),
        create_txg,
        random: &*core.world.random,
    };
    let first = core.tree.top_count() as u64;
    let configs = layout::build_tops(first, &spec.vdevs, &facts, &making)?;
    // What is copied from a vdev that is being removed may go to the new ones.
    if is_removing || !(spec.force || spec.allow_ashift_mismatch) {
        check_ashift(core, &configs)?;
    }
    let known = core.auxiliary.lock().spares.guids();
    let new = NewAuxiliary::build(&spec.vdevs, &configs, &facts, &making, &known)?;
    labelroom::check(&core.pairs(Txg::ZERO), &configs)?;
    let tops = core.tree.prepare_tops(&configs).await?;
    // The last moment at which nothing is written to the devices.
    core.check_not_suspended()?;
    let result = async {
        let labels = core.pairs(Txg::ZERO).label_config();
        core.tree.init_labels(&tops, &labels, create_txg).await?;
        new.label(&core.world, version).await?;
        let task = AddTask {
            core: core.clone(),
            tops: tops.clone(),
            new,
        };
        core.run_task(task).await
    }
    .await;
    if let Err(error) = result {
        // A task that was applied has made them part of the pool, whatever became of the txg; in a
        // suspended pool it may just be doing so.
        let strange = |top: &&Arc<Vdev>| core.tree.find(top.guid()).is_none();
        if !error.is_suspended() {
            tops.iter().filter(strange).for_each(Vdev::close);
        }
        return Err(error);
    }
    auxiliary::look_at_auxiliary(core, &core.auxiliary).await;
    core.events.tell(Sysevent::VdevAdd);
    Ok(())
}

/// A device that is a part of this pool cannot be added to it again, not even by force.
fn refuse_own(core: &Core, vdevs: &[VdevSpec]) -> Result<(), PoolError> {
    let mut own: Vec<String> = core
        .tree
        .leaves()
        .iter()
        .filter_map(|vdev| vdev.path())
        .collect();
    let auxiliary = core.auxiliary.lock();
    for list in [&auxiliary.spares, &auxiliary.caches] {
        own.extend(list.statuses.iter().filter_map(|vdev| vdev.path.clone()));
    }
    let mut leaves = vdevs.iter().flat_map(|vdev| vdev.layout.leaves());
    match leaves.find(|leaf| own.contains(&leaf.path)) {
        Some(leaf) => Err(PoolError::BadVdevs {
            why: format!(
                "{} is part of active pool '{}'",
                leaf.path,
                core.identity.name()
            ),
        }),
        None => Ok(()),
    }
}

/// Where all normal vdevs have one ashift, so must new vdevs: else none could ever be removed.
fn check_ashift(core: &Core, configs: &[NvList]) -> Result<(), PoolError> {
    let mut known: Vec<u64> = core
        .tree
        .to_config(Scope::Mos)
        .lists("children")
        .unwrap_or(&[])
        .iter()
        .filter(|top| top.u64("is_log") != Some(1) && top.string("alloc_bias").is_none())
        .filter_map(|top| top.u64("ashift").filter(|ashift| *ashift != 0))
        .collect();
    known.dedup();
    let &[known] = known.as_slice() else {
        return Ok(());
    };
    let differs = |top: &&NvList| top.u64("ashift") != Some(known);
    match configs.iter().find(differs) {
        Some(top) => Err(PoolError::AshiftMismatch {
            pool: core.identity.name(),
            new: top.u64("ashift").unwrap_or(0),
            known,
        }),
        None => Ok(()),
    }
}

struct AddTask {
    core: Arc<Core>,
    tops: Vec<Arc<Vdev>>,
    new: NewAuxiliary,
}

impl SyncTask for AddTask {
    fn name(&self) -> &'static str {
        "add vdevs"
    }

    fn check<'a>(&'a self, _ctx: &'a SyncContext) -> BoxFuture<'a, Result<(), DatasetError>> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn apply<'a>(&'a self, ctx: &'a SyncContext) -> BoxFuture<'a, Result<(), DatasetError>> {
        Box::pin(async move {
            let core = &self.core;
            core.tree.insert_tops(&self.tops).map_err(ZioError::from)?;
            let shapes: Vec<TopShape> = self
                .tops
                .iter()
                .filter_map(|top| TopShape::from_config(&top.to_config(Scope::Mos)))
                .collect();
            core.space.start(&shapes);
            core.identity.mark_dirty();
            for top in &self.tops {
                core.new_tops.push(top.vdev_id(), ctx.txg);
            }
            auxiliary::add_auxiliary(core, &core.auxiliary, &Tx::syncing(ctx.txg), &self.new).await
        })
    }
}

pub(crate) async fn remove(core: &Arc<Core>, name: &str) -> Result<(), PoolError> {
    let _admin = core.admin.lock().await;
    core.check_not_suspended()?;
    let refuse = |why: &str| PoolError::CannotRemove {
        device: name.to_owned(),
        why: why.to_owned(),
    };
    core.check_no_checkpoint()?;
    let auxiliary = {
        let auxiliary = core.auxiliary.lock();
        [VdevClass::Spare, VdevClass::Cache]
            .into_iter()
            .find_map(|class| Some((class, auxiliary.list(class).find(name)?)))
    };
    if let Some((class, guid)) = auxiliary {
        if core.tree.find(guid).is_some() {
            return Err(refuse("it is in use; detach it first"));
        }
        let is_spread = core.auxiliary.lock().spares.draid_spare(guid).is_some();
        if class == VdevClass::Spare && is_spread {
            return Err(refuse(
                "it is room on the devices of its dRAID vdev, and goes with that",
            ));
        }
        let path = {
            let auxiliary = core.auxiliary.lock();
            let mut statuses = auxiliary.list(class).statuses.iter();
            let gone = statuses.find(|vdev| vdev.guid == guid);
            gone.and_then(|vdev| vdev.path.clone())
        };
        let task = RemoveTask {
            core: core.clone(),
            what: Removal::Auxiliary(class, guid),
        };
        core.run_task(task).await?;
        let level = core.pipeline.second_level();
        second::follow(level, &core.world, core.guid(), &core.auxiliary).await;
        let about = About::auxiliary(guid, path);
        core.events.tell_vdev(Sysevent::VdevRemoveAux, about);
        return Ok(());
    }
    let Some(top) = find_top(core, name) else {
        let mut all = core.tree.tops().into_iter();
        return Err(match all.find(|top| is_called(top, name)) {
            Some(top) => refuse(&format!(
                "it is a part of {}, and only whole vdevs can be removed; 'zpool detach' takes \
                 devices out of mirrors",
                top.display_name()
            )),
            None => refuse("no such device in pool; see 'zpool status'"),
        });
    };
    if !top.is_log() {
        // Also when nobody waits for it any more.
        let _after = AllowsBlocks(core);
        return core.evacuation.begin(&top).await;
    }
    if core.identity.lock().version < LOG_REMOVAL {
        return Err(refuse(
            "log devices can be removed from version 19 on; 'zpool upgrade' raises the pool's",
        ));
    }
    remove_log(core, &top, &refuse).await
}

/// Says where blocks may go, in the end.
struct AllowsBlocks<'a>(&'a Core);

impl Drop for AllowsBlocks<'_> {
    fn drop(&mut self) {
        allow_blocks(self.0);
    }
}

/// The top-level vdev that a person calls `name`: by its own name, its guid, or as a device without
/// others.
pub(crate) fn find_top(core: &Core, name: &str) -> Option<Arc<Vdev>> {
    let mut tops = core.tree.tops().into_iter();
    tops.find(|top| is_itself_called(top, name))
}

pub(crate) fn is_itself_called(vdev: &Vdev, name: &str) -> bool {
    let path = vdev.path();
    let last = path.as_deref().and_then(|path| path.rsplit('/').next());
    vdev.display_name() == name
        || vdev.guid().to_string() == name
        || path.as_deref() == Some(name)
        || last == Some(name)
}

/// Whether a person calls a vdev, or one below it, `name`.
pub(crate) fn is_called(vdev: &Vdev, name: &str) -> bool {
    let mut children = vdev.children().iter();
    is_itself_called(vdev, name) || children.any(|child| is_called(child, name))
}

/// The devices that a person means by `device`: it, or those below a vdev that is called so; all
/// when nothing is named.
pub(crate) fn leaves_called(vdev: &Arc<Vdev>, device: Option<&str>, out: &mut Vec<Arc<Vdev>>) {
    if device.is_none_or(|device| is_itself_called(vdev, device)) {
        out.extend(vdev.leaves());
        return;
    }
    for child in vdev.children() {
        leaves_called(child, device, out);
    }
}

/// Whether the pool has a vdev, spare or cache device that a person calls `name`.
pub(crate) fn has(core: &Core, name: &str) -> bool {
    let auxiliary = core.auxiliary.lock();
    let mut lists = [&auxiliary.spares, &auxiliary.caches].into_iter();
    lists.any(|list| list.find(name).is_some())
        || core.tree.tops().iter().any(|top| is_called(top, name))
}

/// Whether `name` is a spare that is not in use.
pub(crate) fn is_waiting_spare(core: &Core, name: &str) -> bool {
    let is_in_tree = core.tree.tops().iter().any(|top| is_called(top, name));
    !is_in_tree && core.auxiliary.lock().spares.find(name).is_some()
}

async fn remove_log(
    core: &Arc<Core>,
    top: &Arc<Vdev>,
    refuse: &(dyn Fn(&str) -> PoolError + Sync),
) -> Result<(), PoolError> {
    let emptied = Emptied::begin(
        &core.new_tops,
        core.pipeline.allocator(),
        vec![top.vdev_id()],
    );
    let removed = empty_and_remove_log(core, top, refuse).await;
    drop(emptied);
    if removed.is_err() {
        // It stays, and is used as before. A removal that a suspended pool has only begun is done
        // with its group, before that gives anything to a log.
        allow_blocks(core);
    }
    removed
}

async fn empty_and_remove_log(
    core: &Arc<Core>,
    top: &Arc<Vdev>,
    refuse: &(dyn Fn(&str) -> PoolError + Sync),
) -> Result<(), PoolError> {
    let id = top.vdev_id();
    if !core.unless_suspended(evacuate(core, id)).await? {
        return Err(refuse(
            "intent logs on it wait to be replayed; mount their filesystems first (encrypted ones \
             need their keys)",
        ));
    }
    let mut label = core.pairs(Txg::ZERO).label_config();
    label.set("txg", 0u64);
    let labels: Vec<(Arc<Vdev>, NvList)> = top
        .leaves()
        .into_iter()
        .map(|leaf| {
            let mut own = leaf_label_config(&label, &core.tree, top, &leaf);
            own.set("create_txg", 0u64);
            (leaf, own)
        })
        .collect();
    let task = RemoveTask {
        core: core.clone(),
        what: Removal::Log(id),
    };
    // What is removed is somebody else's from now on: nothing may be discarded there any more.
    let _gate = core.passes.gate.lock().await;
    let about = About::vdev(top);
    core.run_task(task).await?;
    core.events.tell_vdev(Sysevent::VdevRemoveDev, about);
    for (vdev, own) in labels {
        let Some(device) = vdev.leaf().and_then(|leaf| leaf.device()) else {
            continue;
        };
        if let Err(error) = write_detached_labels(&*device, &own).await {
            tracing::warn!(
                %error, device = vdev.display_name(),
                "the label of a removed device stays as it was"
            );
        }
    }
    top.close();
    Ok(())
}

/// Gives all intent logs back until nothing is on a log vdev any more; tells whether that was
/// reached.
pub(crate) async fn evacuate(core: &Core, id: VdevId) -> Result<bool, PoolError> {
    for _ in 0..EVACUATION_TXGS_MAX {
        core.dsl.logs().close_all().await?;
        core.txgs.sync().await?;
        let is_used =
            |space: &TopSpace| space.vdev == id && space.allocated_bytes + space.pending_bytes > 0;
        if !core.pipeline.allocator().top_spaces().iter().any(is_used) {
            return Ok(true);
        }
    }
    Ok(false)
}

enum Removal {
    Auxiliary(VdevClass, Guid),
    Log(VdevId),
}

struct RemoveTask {
    core: Arc<Core>,
    what: Removal,
}

impl SyncTask for RemoveTask {
    fn name(&self) -> &'static str {
        "remove a vdev"
    }

    fn check<'a>(&'a self, _ctx: &'a SyncContext) -> BoxFuture<'a, Result<(), DatasetError>> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn apply<'a>(&'a self, ctx: &'a SyncContext) -> BoxFuture<'a, Result<(), DatasetError>> {
        Box::pin(async move {
            let tx = Tx::syncing(ctx.txg);
            let (kind, path) = match self.what {
                Removal::Auxiliary(class, guid) => {
                    let list = match class {
                        VdevClass::Spare => "spare",
                        _ => "l2cache",
                    };
                    (list, self.remove_auxiliary(&tx, class, guid).await?)
                }
                Removal::Log(id) => ("log", self.remove_log(ctx, &tx, id).await?),
            };
            let name = self.core.identity.lock().disk_name.clone();
            self.core
                .history
                .internal(&tx, "vdev remove", format!("{name} vdev ({kind}) {path}"))
                .await;
            Ok(())
        })
    }
}

impl RemoveTask {
    async fn remove_auxiliary(
        &self,
        tx: &Tx,
        class: VdevClass,
        guid: Guid,
    ) -> Result<String, DatasetError> {
        let core = &self.core;
        let path = {
            let mut auxiliary = core.auxiliary.lock();
            let statuses = &auxiliary.list(class).statuses;
            let gone = statuses.iter().find(|vdev| vdev.guid == guid);
            let path = gone.and_then(|vdev| vdev.path.clone());
            auxiliary.remove(class, guid);
            path
        };
        auxiliary::write_lists(core, &core.auxiliary, tx, &[class]).await?;
        Ok(path.unwrap_or_else(|| "-".to_owned()))
    }

    async fn remove_log(
        &self,
        ctx: &SyncContext,
        tx: &Tx,
        id: VdevId,
    ) -> Result<String, DatasetError> {
        let core = &self.core;
        let sync = SpaceSync {
            ctx,
            tx,
            features: core.dsl.features(),
            pipeline: &core.pipeline,
        };
        core.space.remove_top(&sync, id).await?;
        let top = core
            .tree
            .top(id)
            .ok_or(ZioError::Vdev(vdev::VdevError::NoSuchVdev { vdev: id }))?;
        let mos = core.dsl.mos();
        let all = core.identity.lock().all_vdev_zaps;
        let mut zaps = vec![top.config_u64(config::TOP_ZAP)];
        for leaf in top.leaves() {
            core.dirty_times.remove(&sync, mos, &leaf).await?;
            zaps.push(leaf.config_u64(config::LEAF_ZAP));
        }
        for zap in zaps.into_iter().flatten().filter(|zap| *zap != 0) {
            mos.free(tx, ObjectId::new(zap)).await?;
            core.props.forget_vdev(ObjectId::new(zap));
            if !all.is_zero() {
                Zap::hold(mos, all).await?.remove_int(tx, zap).await?;
            }
        }
        core.tree.replace_with_hole(id).map_err(ZioError::from)?;
        core.pipeline.allocator().remove_top(id);
        core.identity.mark_dirty();
        Ok(top.path().unwrap_or_else(|| "-".to_owned()))
    }
}

pub(crate) async fn change_guid(core: &Arc<Core>, new: Guid) -> Result<(), PoolError> {
    let _admin = core.admin.lock().await;
    core.check_not_suspended()?;
    core.check_no_checkpoint()?;
    if crate::status::health(core) != crate::PoolHealth::Online {
        return Err(PoolError::NotHealthy {
            pool: core.identity.name(),
        });
    }
    let task = GuidTask {
        core: core.clone(),
        new,
    };
    core.run_task(task).await?;
    core.events.tell(Sysevent::PoolReguid);
    Ok(())
}

/// Makes a device forget the pool that it was a part of (`zpool labelclear`); with `force`, also
/// one that was not destroyed. Whether that pool is open is the caller's to know.
///
/// # Errors
/// [`PoolError::NoLabel`], [`PoolError::DeviceInUse`], and failures of the device.
pub async fn clear_label(world: &World, path: &str, force: bool) -> Result<(), PoolError> {
    let device = vdev::open_patiently(world, path, false).await?;
    let Some(label) = crate::discover::read_label(&device, path).await else {
        return Err(PoolError::NoLabel {
            path: path.to_owned(),
        });
    };
    if !force && let Some(device_use) = layout::in_use(&label.config) {
        return Err(PoolError::DeviceInUse {
            path: path.to_owned(),
            device_use,
        });
    }
    Ok(clear_labels(&*device).await?)
}

/// The guid that the newest label of a device has for it; none where it has no label.
///
/// # Errors
/// Failures of opening the device, also as somebody uses it.
pub async fn label_guid(world: &World, path: &str) -> Result<Option<Guid>, PoolError> {
    let device = vdev::open_patiently(world, path, false).await?;
    let label = crate::discover::read_label(&device, path).await;
    Ok(label
        .and_then(|label| label.config.u64("guid"))
        .map(Guid::new))
}

struct GuidTask {
    core: Arc<Core>,
    new: Guid,
}

impl SyncTask for GuidTask {
    fn name(&self) -> &'static str {
        "change the pool's guid"
    }

    fn check<'a>(&'a self, _ctx: &'a SyncContext) -> BoxFuture<'a, Result<(), DatasetError>> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn apply<'a>(&'a self, ctx: &'a SyncContext) -> BoxFuture<'a, Result<(), DatasetError>> {
        Box::pin(async move {
            let old = self.core.guid();
            self.core.tree.set_guid(self.new);
            self.core.identity.mark_dirty();
            let text = format!("old={old} new={}", self.new);
            self.core
                .history
                .internal(&Tx::syncing(ctx.txg), "guid change", text)
                .await;
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use device::World;
    use futures::FutureExt;
    use zio::ZioError;

    use crate::{
        AddSpec, HostIdentity, ImportSpec, LeafSpec, Pool, PoolError, ScanSpec, VdevClass,
        VdevLayout, VdevSpec,
    };

    /// Goal: a log that could not be removed in the end is used again. Method: its removal waits
    /// for a pass over free space when the pool is suspended.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_log_whose_removal_fails_late_is_used_again() {
        let Some(golden) = oracles::golden() else {
            return;
        };
        let dir = tempfile::tempdir().expect("a directory");
        let images = oracles::unpack(&golden, "mirror3", dir.path());
        let world = World::system(1);
        let spec = ScanSpec {
            paths: vec![images.to_str().expect("UTF-8").into()],
            ..ScanSpec::default()
        };
        let found = crate::scan(&world, &spec).await.expect("scan").remove(0);
        let spec = ImportSpec::new(found, HostIdentity::default());
        let pool = Pool::import(&world, spec).await.expect("import");
        let path = dir.path().join("log").display().to_string();
        let file = std::fs::File::create(&path).expect("a file");
        file.set_len(128 << 20).expect("its length");
        let log = LeafSpec {
            path: path.clone(),
            is_file: true,
        };
        let add = AddSpec {
            vdevs: vec![VdevSpec {
                layout: VdevLayout::Leaf(log),
                class: VdevClass::Log,
            }],
            force: true,
            ..AddSpec::default()
        };
        pool.add(&add).await.expect("added");
        pool.sync().await.expect("sync");
        let core = &pool.core;
        let tops = core.tree.tops();
        let id = tops.iter().find(|top| top.is_log()).expect("it").vdev_id();
        let gets_blocks = || core.pipeline.allocator().is_allocatable(id);
        assert!(gets_blocks());
        let pass = core.passes.gate.enter().await;
        let fails = async {
            // Nobody enters any more once the removal waits.
            while core.passes.gate.enter().now_or_never().is_some() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            let error = ZioError::HeartbeatsFailed { silent_ms: 1 };
            core.pipeline.suspension().suspend(error);
            drop(pass);
        };
        let (removed, ()) = tokio::join!(pool.remove(&path), fails);
        assert!(
            matches!(removed, Err(PoolError::Suspended { .. })),
            "{removed:?}"
        );
        assert!(!gets_blocks(), "before it is said on disk");
        pool.clear(None).await.expect("it goes on");
        pool.sync().await.expect("sync");
        pool.sync().await.expect("sync");
        assert!(gets_blocks());
        pool.remove(&path).await.expect("removed");
        pool.export(false).await.expect("export");
    }
}
