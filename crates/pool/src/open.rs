//! Opening pools that exist.
//!
//! An import has two rounds. First, the vdevs as the labels tell are opened read-only, the newest
//! uberblock chosen, and the MOS's own copy of the configuration read. Then everything is closed
//! and opened again by that copy, which alone knows all vdevs, with the paths where devices were
//! found. Nothing is written before every check has passed; then one transaction group claims the
//! intent logs' blocks and says in all labels who has the pool now.
//!
//! Source: module/zfs/spa.c (`spa_load_impl` and the `spa_ld_*` functions).

mod stored;
mod trusted;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use dataset::{DslEnvironment, DslPool, LogClaim, OLDEST_WRITTEN};
use dedup::{CloneTables, DedupStatus, SharedBlocks};
use device::World;
use format::{Guid, NvList, ObjectId, Txg, Uberblock};
use object::ObjectSet;
use parking_lot::Mutex;
use scan::{ErrorScrub, Expanding, KnownExpansion, Rebuilds, Scan, Scans};
use spa::bootfs::{self, BootFs};
use spa::dtl::{DirtyTimes, distrust_stale};
use spa::errors::ErrorLog;
use spa::events::{Events, LoadState, Reports};
use spa::history::{HistoryLog, HistoryWhat};
use spa::identity::{Identity, Pairs};
use spa::props::Props;
use spa::props::Stored;
use spa::{Spa, State, config, damaged, directory, errlog, features, unless_suspended};
use space::{Space, TopShape};
use trim::{Activities, Autotrim, Gate, Passes};
use vdev::{OpenOptions, Vdev, VdevKind, VdevTree, best_uberblock};
use zio::alloc::{Allocator, fragmentation};
use zio::{Cache, Pipeline, PipelineOptions, TxgLimits, TxgManager, ZioError};

use crate::checkpoint::{Checkpoint, CheckpointState};
use crate::claims::LogClaims;
use crate::condensing::{self, Condensing};
use crate::core::Core;
use crate::deferred::DeferredFrees;
use crate::evacuation::{Evacuation, Found};
use crate::gone::Replacements;
use crate::hooks::Hooks;
use crate::standby::Spares;
use crate::{
    FoundState, ImportSpec, MissingLogs, PoolError, layout, multihost, removed, split, tables,
};
use stored::{check_old_scan, check_space_unit, load_directory, load_scan, load_txg_times};
use trusted::{add_allocation_bias, read_config, successors};

pub(crate) use trusted::{mos_options, read_trusted_config};

/// Everything that is needed before the MOS can be opened.
pub(crate) struct Ground {
    pub(crate) tree: Arc<VdevTree>,
    pub(crate) pipeline: Arc<Pipeline>,
    pub(crate) space: Arc<Space>,
    pub(crate) errors: Arc<ErrorLog>,
    pub(crate) events: Arc<Events>,
}

impl Ground {
    pub(crate) async fn open(
        world: &World,
        root: &NvList,
        options: OpenOptions,
        salt: [u8; 32],
        cache: Cache,
    ) -> Result<Self, PoolError> {
        let read_only = options.read_only;
        let tree = VdevTree::open(world.clone(), root, options).await?;
        tree.patience().set_opening(true);
        let allocator = Arc::new(Allocator::new());
        let space = Space::new();
        allocator.set_source(space.clone());
        for top in tree.tops() {
            if let Some(spec) = vdev::TopSpec::of(&top) {
                allocator.add_top(spec);
            }
        }
        let errors = Arc::new(ErrorLog::default());
        let events = Events::new(world);
        let reports = Arc::new(Reports {
            errors: errors.clone(),
            events: events.clone(),
        });
        tree.set_error_sink(reports.clone());
        let options = PipelineOptions {
            salt,
            read_only,
            ..PipelineOptions::default()
        };
        let pipeline = Pipeline::new(
            world.clone(),
            tree.clone(),
            allocator,
            Arc::new(cache),
            options,
            reports,
        );
        Ok(Self {
            tree,
            pipeline,
            space,
            errors,
            events,
        })
    }

    pub(crate) fn shapes(&self) -> Vec<TopShape> {
        self.tree
            .to_config(vdev::Scope::Mos)
            .lists("children")
            .unwrap_or(&[])
            .iter()
            .filter_map(TopShape::from_config)
            .collect()
    }
}

pub(crate) fn software() -> String {
    format!(
        "pool version 5000; software version millpond-{}",
        env!("CARGO_PKG_VERSION")
    )
}

/// Starts the sync loop, and has the transaction groups hear when the pipeline suspends.
pub(crate) fn start(core: &Arc<Core>) {
    let (txgs, dsl) = (core.txgs.clone(), Arc::downgrade(&core.dsl));
    let (events, is_told) = (core.events.clone(), AtomicBool::new(false));
    core.pipeline
        .suspension()
        .set_hook(Arc::new(move |error, fail_mode| {
            txgs.set_suspended(error.clone(), fail_mode);
            if error.is_none() {
                is_told.store(false, Ordering::Relaxed);
            } else if !is_told.swap(true, Ordering::Relaxed) {
                events.suspended();
            }
            // Nobody will write a txg any more: who waits for one hears so.
            if let Some(error) = error.filter(ZioError::is_final) {
                txgs.stop(error);
                if let Some(dsl) = dsl.upgrade() {
                    dsl.tasks().close();
                }
            }
        }));
    core.scans.start();
    let looping = core.clone();
    core.looping
        .spawn("sync loop", async move { looping.sync_loop().await });
    core.start_heart();
    core.passes.start();
    core.start_spares();
    core.start_deadman();
    let weak = Arc::downgrade(core);
    core.pipeline
        .second_level()
        .on_failure(Box::new(move |guid| {
            let Some(core) = weak.upgrade() else { return };
            let path = {
                let lists = core.auxiliary.lock();
                let status = lists.caches.status(guid);
                status.and_then(|status| status.path.clone())
            };
            core.events.cache_failed(guid, path);
        }));
}

/// Names what no pool can do without, in an error of reading it.
fn indispensable<E: Into<PoolError>>(pool: &str, what: &str) -> impl FnOnce(E) -> PoolError {
    move |error| {
        let error = error.into();
        match error {
            PoolError::Damaged { .. } => error,
            _ if error.is_damage() => damaged(pool, what, error),
            _ => error,
        }
    }
}

fn check_host(spec: &ImportSpec) -> Result<(), PoolError> {
    let found = &spec.found;
    let foreign = found.hostid != 0 && found.hostid != spec.host.hostid;
    if found.state == FoundState::Active && foreign && !spec.force {
        return Err(PoolError::ForeignHost {
            pool: found.name.clone(),
            hostname: found.hostname.clone(),
            hostid: found.hostid,
        });
    }
    if found.state == FoundState::Destroyed && !spec.destroyed {
        return Err(PoolError::Destroyed {
            pool: found.name.clone(),
        });
    }
    Ok(())
}

/// Refuses a tree that lacks too much; names what is missing.
pub(crate) fn check_tree(
    pool: &str,
    tree: &VdevTree,
    missing_logs: MissingLogs,
) -> Result<(), PoolError> {
    check_tops(pool, tree, missing_logs, |_| true)
}

fn check_tops(
    pool: &str,
    tree: &VdevTree,
    missing_logs: MissingLogs,
    counts: impl Fn(&Arc<Vdev>) -> bool,
) -> Result<(), PoolError> {
    let mut lacking = Vec::new();
    for top in tree.tops().into_iter().filter(counts) {
        let (state, _) = top.state();
        let is_log = top.is_log();
        if !(state.is_usable() || is_log && missing_logs != MissingLogs::Refused) {
            let mut names = unusable_leaves(std::slice::from_ref(&top));
            if names.is_empty() {
                names.push(format!("{} is {state}", top.display_name()));
            }
            lacking.append(&mut names);
        }
    }
    if lacking.is_empty() {
        return Ok(());
    }
    Err(PoolError::MissingDevices {
        pool: pool.to_owned(),
        why: lacking.join(", "),
    })
}

/// The top-level vdevs that hold data and are missing or cannot be opened.
pub(crate) fn lost_data(tree: &VdevTree) -> Vec<Arc<Vdev>> {
    let is_lost = |top: &Arc<Vdev>| !top.is_log() && !top.state().0.is_usable();
    tree.tops().into_iter().filter(is_lost).collect()
}

/// Tells what a pool is opened without, which somebody allowed.
///
/// # Errors
/// [`PoolError::MissingDevices`] where nothing is left to read.
fn tell_lost_data(pool: &str, tree: &VdevTree) -> Result<(), PoolError> {
    let lost = lost_data(tree);
    let is_there = |top: &Arc<Vdev>| !top.is_log() && top.state().0.is_usable();
    if !tree.tops().iter().any(is_there) {
        return Err(PoolError::MissingDevices {
            pool: pool.to_owned(),
            why: unusable_leaves(&lost).join(", "),
        });
    }
    if !lost.is_empty() {
        let devices = unusable_leaves(&lost).join(", ");
        tracing::warn!("pool '{pool}' is opened without vdevs that hold data: {devices}");
    }
    Ok(())
}

/// Names and states of the devices that cannot be used.
pub(crate) fn unusable_leaves(tops: &[Arc<Vdev>]) -> Vec<String> {
    let leaves = tops.iter().flat_map(Vdev::leaves);
    leaves
        .filter(|vdev| !vdev.state().0.is_usable())
        .map(|vdev| format!("{} is {}", vdev.display_name(), vdev.state().0))
        .collect()
}

/// The log vdevs that are missing or damaged.
pub(crate) fn lost_logs(tree: &VdevTree) -> Vec<Arc<Vdev>> {
    let lost = |top: &Arc<Vdev>| top.is_log() && !top.state().0.is_usable();
    tree.tops().into_iter().filter(lost).collect()
}

/// The refusal to import without log devices, which tells what would be lost.
fn missing_log(pool: &str, lost: &[Arc<Vdev>], datasets: Vec<String>) -> PoolError {
    let mut devices = Vec::new();
    for top in lost {
        devices.push(format!("    {} [log]", top.display_name()));
        if top.leaf().is_none() {
            for leaf in top.leaves() {
                devices.push(format!("      {}", leaf.display_name()));
            }
        }
    }
    PoolError::MissingLog {
        pool: pool.to_owned(),
        devices,
        datasets,
    }
}

/// [`check_tree`], without top-level vdevs of which nothing was found; tells how many those are.
pub(crate) fn check_known(
    pool: &str,
    tree: &VdevTree,
    missing_logs: MissingLogs,
) -> Result<usize, PoolError> {
    let is_unknown = |top: &Arc<Vdev>| matches!(top.kind(), VdevKind::Missing);
    let unknown = tree.tops().iter().filter(|top| is_unknown(top)).count();
    match check_tops(pool, tree, missing_logs, |top| !is_unknown(top)) {
        Ok(()) => Ok(unknown),
        Err(error) => Err(error),
    }
}

/// Opens the MOS of an uberblock just to read it; before, what has to be known to read anything.
pub(crate) async fn open_mos(
    world: &World,
    ground: &Ground,
    uberblock: &Uberblock,
) -> Result<Arc<ObjectSet>, PoolError> {
    ground.tree.set_uberblock(uberblock);
    let (pipeline, root) = (ground.pipeline.clone(), uberblock.root);
    let mos = ObjectSet::open(pipeline, world.clone(), root, mos_options()).await?;
    removed::load(&ground.tree, &mos).await?;
    Ok(mos)
}

/// The vdevs as the configuration in the MOS tells, read-only.
pub(crate) async fn open_trusted(
    world: &World,
    spec: &ImportSpec,
    config: &NvList,
) -> Result<Ground, PoolError> {
    let mut root = config.require_list("vdev_tree")?.clone();
    config::fix_paths(&mut root, &spec.found.paths);
    let options = OpenOptions {
        read_only: true,
        paths: spec.found.paths.clone(),
        pool_guid: Some(spec.found.guid),
        ..OpenOptions::default()
    };
    Ground::open(world, &root, options, [0; 32], spec.cache()).await
}

/// [`add_allocation_bias`] where vdevs were removed: the ZAPs may lie on those, so the tree
/// has to be known first.
async fn add_bias_of_removed(
    world: &World,
    spec: &ImportSpec,
    uberblock: &Uberblock,
    config: &mut NvList,
) -> Result<(), PoolError> {
    let ground = open_trusted(world, spec, config).await?;
    let result = async {
        let mos = open_mos(world, &ground, uberblock).await?;
        add_allocation_bias(&mos, config).await
    }
    .await;
    ground.tree.close();
    result
}

/// The newest uberblock (or the one given), and the configuration that the MOS it points to holds.
pub(crate) async fn read_trusted(
    world: &World,
    spec: &ImportSpec,
    given: Option<Uberblock>,
) -> Result<(Uberblock, NvList), PoolError> {
    let name = &spec.found.name;
    let root = spec.found.config.require_list("vdev_tree")?;
    let options = OpenOptions {
        read_only: true,
        paths: spec.found.paths.clone(),
        pool_guid: Some(spec.found.guid),
        ..OpenOptions::default()
    };
    let ground = Ground::open(world, root, options, [0; 32], spec.cache()).await?;
    let result = async {
        // Labels do not tell which vdevs were removed, so what looks missing may not be needed.
        let placeholders = match check_known(name, &ground.tree, MissingLogs::Accepted) {
            Err(_) if spec.missing_data => 0,
            known => known?,
        };
        distrust_stale(&ground.tree).await;
        let uberblock = match given {
            Some(uberblock) => uberblock,
            None => best_uberblock(&ground.tree.uberblocks().await, Txg::new(u64::MAX))
                .ok_or_else(|| damaged(name, "every uberblock", "none has the right checksum"))?,
        };
        if given.is_none() {
            multihost::check_unused(world, spec, &ground.tree, &uberblock).await?;
        }
        check_version(name, uberblock.version, spec.read_only)?;
        let needed: Vec<(String, u64, bool)> = spec
            .found
            .config
            .list("features_for_read")
            .map(|list| {
                list.iter()
                    .map(|(guid, _)| (guid.to_owned(), 1, true))
                    .collect()
            })
            .unwrap_or_default();
        features::check(name, &needed, spec.read_only)?;
        let read = async {
            let mos = open_mos(world, &ground, &uberblock).await;
            let mos = mos.map_err(indispensable(name, "the root of its metadata"))?;
            let config = read_config(name, &mos).await;
            let mut config = config.map_err(indispensable(name, "its configuration"))?;
            let added = if removed::is_in(&config) {
                add_bias_of_removed(world, spec, &uberblock, &mut config).await
            } else {
                add_allocation_bias(&mos, &mut config).await
            };
            added.map_err(indispensable(name, "what it keeps about a vdev"))?;
            Ok::<_, PoolError>(config)
        };
        let config = read.await.map_err(|error| {
            let mut absent = unusable_leaves(&ground.tree.tops());
            if placeholders > 0 {
                absent.push(format!("{placeholders} top-level vdevs were not found"));
            }
            if absent.is_empty() {
                return error;
            }
            PoolError::MissingDevices {
                pool: name.clone(),
                why: format!(
                    "{}; the others do not hold what was written last ({error})",
                    absent.join(", ")
                ),
            }
        })?;
        Ok((uberblock, config))
    }
    .await;
    ground.tree.close();
    result
}

/// Pools before feature flags are written from the version on from which all that they lack is left
/// out of what is written; older ones are only read.
fn check_version(pool: &str, version: u64, read_only: bool) -> Result<(), PoolError> {
    let (supported, advice) = match version {
        Uberblock::VERSION_FEATURES | OLDEST_WRITTEN..=Uberblock::VERSION_BEFORE_FEATURES => {
            return Ok(());
        }
        1..OLDEST_WRITTEN if read_only => return Ok(()),
        1..OLDEST_WRITTEN => (
            "11 to 28 and 5000 for writing",
            "import it with '-o readonly=on', or upgrade it with OpenZFS ('zpool upgrade')",
        ),
        _ => (
            "5000 (feature flags) and 11 to 28, and 1 to 10 for reading",
            "use a newer release",
        ),
    };
    Err(PoolError::UnsupportedVersion {
        pool: pool.to_owned(),
        version,
        supported,
        advice,
    })
}

/// What can be refused before any device is read.
pub(crate) fn check_spec(spec: &ImportSpec) -> Result<(), PoolError> {
    check_host(spec)?;
    if spec.missing_data && !spec.read_only {
        return Err(PoolError::BadProperty {
            property: "readonly".to_owned(),
            value: "off".to_owned(),
            why: "a pool that lacks vdevs with data is only read: import it with '-o readonly=on'"
                .into(),
        });
    }
    if let Some(name) = &spec.new_name {
        layout::check_name(name)?;
    }
    Ok(())
}

/// A state to open a pool at that is older than its newest.
pub(crate) struct Past {
    pub(crate) uberblock: Uberblock,
    /// The newest, which is given up when the pool is opened for writing.
    pub(crate) newest: Uberblock,
    /// The state is the pool's checkpoint.
    pub(crate) is_checkpoint: bool,
}

/// Imports a pool at its newest uberblock, or at a past one (`spa_import`, `spa_load`).
///
/// A past state that is to be written goes on in the transaction group after the newest
/// (`spa_first_txg`): its first uberblock wins over all that are on disk. A crash before that
/// leaves the newest in the labels; parts of it may be overwritten, as nothing of it counts as
/// allocated, while the past state is whole. For a checkpoint, which only the newest state can tell
/// of, an uberblock is written before anything else.
pub(crate) async fn import(
    world: &World,
    spec: &ImportSpec,
    past: Option<&Past>,
) -> Result<Arc<Core>, PoolError> {
    let (uberblock, trusted) = read_trusted(world, spec, past.map(|past| past.uberblock)).await?;
    let disk_name = match &spec.new_name {
        Some(name) if !spec.temporary_name => name.clone(),
        _ => trusted.require_string("name")?.to_owned(),
    };
    let name = spec.new_name.clone().unwrap_or_else(|| disk_name.clone());
    let guid = Guid::new(trusted.require_u64("pool_guid")?);
    if guid != spec.found.guid {
        return Err(damaged(
            &name,
            "the configuration",
            format!("it is of the pool {guid}"),
        ));
    }
    let mut root = trusted.require_list("vdev_tree")?.clone();
    config::fix_paths(&mut root, &spec.found.paths);
    let successors = match past {
        Some(past) if !past.is_checkpoint => successors(&root),
        _ => BTreeMap::new(),
    };
    let options = OpenOptions {
        successors,
        read_only: spec.read_only,
        // A second server could change what is read here, and mount it over this one's mounts.
        keep_writers_out: !spec.only_looked_at,
        paths: spec.found.paths.clone(),
        pool_guid: Some(guid),
        ..OpenOptions::default()
    };
    let ground = Ground::open(world, &root, options, [0; 32], spec.cache()).await?;
    let names = (name.as_str(), disk_name.as_str());
    // Of an earlier import.
    let mut trusted = trusted;
    trusted.remove("split_guid");
    let result = import_on(world, spec, &ground, uberblock, past, &trusted, names).await;
    if result.is_err() {
        ground.tree.close();
    }
    let core = result?;
    if !core.read_only {
        vdev::forget_successors(&ground.tree);
    }
    if !core.read_only && !spec.only_looked_at {
        let level = core.pipeline.second_level();
        crate::second::follow(level, &core.world, core.guid(), &core.auxiliary).await;
    }
    let unfinished = split::unfinished(&trusted);
    if !core.read_only && !unfinished.is_empty() {
        split::finish(&core, &unfinished).await?;
    }
    Ok(core)
}

/// Opens a pool on devices that are labelled as another one's, at that one's state `uberblock`, by
/// a configuration that is none of its own (`SPA_IMPORT_ASSEMBLE`). The first txg makes labels and
/// configuration its own.
pub(crate) async fn assemble(
    world: &World,
    spec: &ImportSpec,
    uberblock: Uberblock,
    config: &NvList,
) -> Result<Arc<Core>, PoolError> {
    let name = config.require_string("name")?;
    let options = OpenOptions {
        keep_writers_out: true,
        paths: spec.found.paths.clone(),
        ..OpenOptions::default()
    };
    let root = config.require_list("vdev_tree")?;
    let ground = Ground::open(world, root, options, [0; 32], spec.cache()).await?;
    let uberblock = Uberblock {
        guid_sum: ground.tree.guid_sum(),
        ..uberblock
    };
    let result = async {
        check_tree(name, &ground.tree, MissingLogs::Refused)?;
        ground.tree.expect_own_labels();
        import_on(world, spec, &ground, uberblock, None, config, (name, name)).await
    }
    .await;
    if result.is_err() {
        ground.tree.close();
    }
    result
}

async fn import_on(
    world: &World,
    spec: &ImportSpec,
    ground: &Ground,
    uberblock: Uberblock,
    past: Option<&Past>,
    trusted: &NvList,
    (name, disk_name): (&str, &str),
) -> Result<Arc<Core>, PoolError> {
    let newest = past.map_or(uberblock, |past| past.newest);
    match spec.missing_data {
        true => tell_lost_data(name, &ground.tree)?,
        false => check_tree(name, &ground.tree, MissingLogs::Accepted)?,
    }
    let lost_logs = lost_logs(&ground.tree);
    if !lost_logs.is_empty() {
        ground.pipeline.log_blocks().give_up_lost();
    }
    if spec.missing_logs == MissingLogs::Accepted {
        ground.pipeline.log_blocks().give_up_unreadable();
    }
    if ground.tree.guid_sum() != uberblock.guid_sum {
        return Err(PoolError::MissingDevices {
            pool: name.to_owned(),
            why: "the devices found are not all devices of the pool".into(),
        });
    }
    let txgs = TxgManager::new(
        world.clone(),
        first_synced(&newest, past),
        TxgLimits::default(),
    );
    let history = HistoryLog::new(world.clone(), &spec.host.hostname, &ground.events);
    let bootfs = Arc::new(BootFs::default());
    let scan = Arc::new(Scan::default());
    let env = DslEnvironment {
        pool_name: name.to_owned(),
        pipeline: ground.pipeline.clone(),
        world: world.clone(),
        txgs: txgs.clone(),
        hooks: Arc::new(Hooks {
            history: history.clone(),
            errors: ground.errors.clone(),
            bootfs: bootfs.clone(),
            scan: scan.clone(),
            events: ground.events.clone(),
        }),
        read_only: spec.read_only,
        spa_version: uberblock.version,
    };
    multihost::claim(world, spec, &ground.tree, &newest).await?;
    distrust_stale(&ground.tree).await;
    open_mos(world, ground, &uberblock).await?;
    let dsl = DslPool::open(env, uberblock.root).await;
    let dsl = dsl.map_err(indispensable(
        name,
        "its feature flags or its root directory",
    ))?;
    features::check(name, &dsl.features().all(), spec.read_only)?;
    if !spec.read_only {
        check_space_unit(name, dsl.directory(), &ground.tree).await?;
        check_old_scan(name, uberblock.version, dsl.directory()).await?;
    }
    if dsl.features().is_active(features::DYNAMIC_GANG_HEADER) {
        ground.pipeline.wide_gangs().write();
    }
    let under_way = removed::under_way(&ground.tree);
    if !under_way.is_empty() && !spec.read_only {
        return Err(PoolError::UnsupportedForWrite {
            pool: name.to_owned(),
            features: under_way,
        });
    }
    if !lost_logs.is_empty() && spec.missing_logs != MissingLogs::Accepted {
        let datasets = dsl.logs().with_lost_devices().await?;
        if !datasets.is_empty() || spec.missing_logs == MissingLogs::Refused {
            return Err(missing_log(name, &lost_logs, datasets));
        }
        let devices = unusable_leaves(&lost_logs).join(", ");
        tracing::warn!(
            "pool '{name}' is opened without devices of the intent log, on which nothing was: \
             {devices}"
        );
    }

    let mos = dsl.mos().clone();
    let pairs = Pairs {
        version: uberblock.version,
        errata: features::errata(dsl.features(), trusted.u64("errata").unwrap_or(0)),
        comment: trusted.string("comment").map(str::to_owned),
        compatibility: trusted.string("compatibility").map(str::to_owned),
        dirty: !spec.read_only,
        split_guid: trusted.u64("split_guid").unwrap_or(0),
        ..Pairs::new(name, disk_name)
    };
    let errata = pairs.errata;
    let multihost_was_on = uberblock.multihost.is_some_and(|of| of.delay_ns != 0);
    let mut stored =
        load_directory(&mos, pairs, ground, &history, world, spec, multihost_was_on).await?;
    if let Some(Stored::Number(dataset)) = stored.props.stored.remove(bootfs::NAME) {
        bootfs.set(&mos, stored.props.object, ObjectId::new(dataset));
    }
    if !matches!(errata, 0 | features::ERRATA_ENCRYPTION) && !spec.read_only {
        return Err(damaged(
            name,
            "an errata number",
            format!("{errata} must be dealt with by OpenZFS first"),
        ));
    }
    errlog::load(&dsl, &ground.errors, spec.read_only).await?;
    if !spec.read_only && stored.props.stored.get("autoexpand") == Some(&Stored::Number(1)) {
        expand(name, ground);
    }
    let space = load_space(ground, &mos).await;
    space.map_err(indispensable(name, "a record of free space"))?;
    let allocator = ground.pipeline.allocator();
    let read = async {
        let saved = match DedupStatus::load(&mos, allocator).await {
            // Figures come from there, and nothing of what the datasets hold.
            Err(error) if spec.read_only && error.is_damage() => {
                tracing::warn!(%error, pool = name, "what dedup tables hold cannot be read");
                DedupStatus::default()
            }
            saved => saved?,
        };
        let tables = tables::load(&mos, &ground.tree).await?;
        let activities = Activities::load(name, &mos, &ground.tree).await;
        let rebuilds = Rebuilds::load(name, &mos, &ground.tree).await?;
        let error_scrub = dsl.directory().lookup(directory::ERROR_SCRUB).await?;
        let error_scrub = ErrorScrub::load(error_scrub.as_ref());
        Ok::<_, PoolError>((saved, tables, activities, rebuilds, error_scrub))
    };
    let (saved, tables, activities, rebuilds, error_scrub) = read.await.map_err(indispensable(
        name,
        "a dedup table or what it keeps about a vdev",
    ))?;
    let dedup = dedup::of_pool(&dsl, &ground.pipeline);
    dedup.set_status(&saved);
    if !spec.read_only {
        let loaded = dedup.load(name).await;
        loaded.map_err(indispensable(name, "a dedup table"))?;
        // Blocks of dedup tables are not freed before the tables are ready.
        dsl.destroyer().put_off(dedup.has_logs());
    }
    let clones = CloneTables::load(name, &mos, &ground.tree, &ground.pipeline).await;
    let clones = clones.map_err(indispensable(name, "a table of cloned blocks"))?;
    if clones.is_foreign() && !spec.read_only {
        return Err(PoolError::UnsupportedForWrite {
            pool: name.to_owned(),
            features: vec![features::FOREIGN_CLONES.to_owned()],
        });
    }
    let found = Found::load(&mos, &ground.tree, ground.pipeline.dvas()).await;
    let found = found.map_err(indispensable(
        name,
        "how far the removal of a vdev has come",
    ))?;
    let condensed = condensing::Found::load(&mos, &ground.tree).await;
    let condensed = condensed.map_err(indispensable(
        name,
        "how far the mapping of a removed vdev is condensed",
    ))?;
    let checkpoint = CheckpointState::load(tables.checkpoint.as_ref(), dsl.features());
    ground.pipeline.dvas().set_checkpoint(checkpoint.txg());
    allocator.set_checkpoint_bytes(ground.space.checkpoint_bytes().values().sum());
    let dirty_times = DirtyTimes::default();
    dirty_times.load(&mos, &ground.tree, uberblock.txg).await;
    let written_by = uberblock.software_version;
    load_scan(name, &scan, &mos, txgs.synced_txg(), written_by).await?;
    let txg_times = load_txg_times(name, &mos).await?;

    let spa = Arc::new(Spa {
        world: world.clone(),
        load_guid: world.random.next_u64(),
        host: Mutex::new(spec.host.clone()),
        read_only: spec.read_only,
        altroot: spec.altroot.clone(),
        opened_ns: world.clock.monotonic_ns(),
        tree: ground.tree.clone(),
        pipeline: ground.pipeline.clone(),
        txgs: txgs.clone(),
        dsl,
        space: ground.space.clone(),
        dirty_times,
        txg_times,
        history,
        errors: ground.errors.clone(),
        events: ground.events.clone(),
        bootfs,
        state: Mutex::new(State::new(uberblock)),
        identity: Identity::new(stored.pairs),
        props: Props::new(stored.props),
        admin: tokio::sync::Mutex::new(()),
    });
    let expansion = tables.expansion;
    let passes = Arc::new(Passes {
        spa: spa.clone(),
        gate: Gate::default(),
        autotrim: Autotrim::default(),
        activities,
    });
    let scans = Arc::new(Scans {
        spa: spa.clone(),
        scan: scan.clone(),
        error_scrub,
        rebuilds,
        expanding: Expanding {
            spa: spa.clone(),
            known: KnownExpansion::new(expansion),
        },
    });
    let new_tops = Arc::default();
    let spares = Arc::new(Spares::new(spec.spares_by_hand));
    let core = Arc::new(Core {
        evacuation: Evacuation::new(&spa, &scans, &passes, &new_tops, found),
        condensing: Condensing::new(&scans, condensed),
        heart: crate::heart::Heart::default(),
        auxiliary: Mutex::new(stored.auxiliary),
        checkpoint: Checkpoint::new(checkpoint, &scan, &spares),
        claims: LogClaims::new((!spec.read_only).then_some(log_claim(&uberblock, past))),
        salt: stored.salt,
        deferred_frees: DeferredFrees::new(stored.deferred_frees, &dedup),
        new_tops,
        replacements: Replacements::default(),
        spares,
        returned: Mutex::default(),
        shared_blocks: SharedBlocks {
            dedup,
            clones,
            forecast: Arc::default(),
        },
        looping: ground.pipeline.tasks().group(),
        passes,
        scans,
        spa,
    });
    let sink = spec.events.clone().filter(|_| !spec.only_looked_at);
    let spares = Arc::downgrade(&core);
    core.events
        .begin(&core.spa, spares, sink, LoadState::Import);
    core.apply_fail_mode();
    core.apply_dedup_quota();
    core.passes.apply_autotrim();
    core.shared_blocks.note_saved_space(&core);
    if !spec.read_only {
        core.history.queue(HistoryWhat::Internal {
            event: "import".into(),
            text: software(),
            txg: 0,
            dataset: None,
        });
        if past.is_some_and(|past| past.is_checkpoint) {
            core.begin_at_checkpoint(txgs.synced_txg()).await?;
        }
        start(&core);
        txgs.kick();
        let begin = async {
            txgs.sync().await?;
            // Blocks of claimed logs must not be from the future for anything that is written from
            // now on (`spa_load`: `spa_claim_max_txg`).
            let newest = core.claims.newest();
            txgs.wait_synced(newest).await?;
            while core.shared_blocks.dedup.has_logs() {
                txgs.kick();
                txgs.sync().await?;
            }
            Ok(())
        };
        if let Err(error) = unless_suspended(&core.pipeline, name, begin).await {
            core.txgs.stop(zio::ZioError::Closing);
            core.pipeline.suspension().abandon(zio::ZioError::Closing);
            core.wait_ended().await;
            core.close();
            return Err(error);
        }
        core.dsl.destroyer().put_off(false);
    } else {
        // What was under way stays as it is: whoever waited for its end would do so for ever.
        core.scans.rebuilds.closed();
        core.scans.error_scrub.closed();
    }
    core.tree.patience().set_opening(false);
    core.events.loaded();
    if !spec.read_only && !spec.only_looked_at {
        // What went bad while nobody looked, and what is not there.
        core.spares.want_all(&core.tree);
    }
    Ok(core)
}

/// The txg that counts as synced: the next is the first that is written.
fn first_synced(newest: &Uberblock, past: Option<&Past>) -> Txg {
    match past {
        Some(past) if past.is_checkpoint => newest.txg.next(),
        _ => newest.txg,
    }
}

/// What is done with intent logs that nobody claimed (`spa_min_claim_txg`, `zil_claim`). Those of a
/// checkpoint are dropped, as blocks of theirs may have been used again since; and so they are
/// after a crash right after going back to one.
fn log_claim(uberblock: &Uberblock, past: Option<&Past>) -> LogClaim {
    if !uberblock.checkpoint_txg.is_zero() {
        LogClaim {
            first_txg: uberblock.checkpoint_txg.next(),
            is_dropped: true,
        }
    } else {
        LogClaim {
            first_txg: uberblock.txg.next(),
            is_dropped: past.is_some_and(|past| past.is_checkpoint),
        }
    }
}

/// Takes into use what devices have grown by (`autoexpand=on`). The first txg writes the
/// configuration in any case.
fn expand(pool: &str, ground: &Ground) {
    let tree = &ground.tree;
    for top in tree.tops().iter().filter(|top| vdev::sizes::expand(top)) {
        tracing::info!(
            pool, vdev = %top.display_name(),
            "its devices are bigger now; it uses all of them"
        );
        if let Some(spec) = vdev::TopSpec::of(top) {
            ground.pipeline.allocator().add_top(spec);
        }
    }
}

async fn load_space(ground: &Ground, mos: &Arc<ObjectSet>) -> Result<(), PoolError> {
    let recorded = ground.space.open(mos, &ground.shapes()).await?;
    let allocator = ground.pipeline.allocator();
    for metaslab in recorded {
        // A histogram that tells nothing is as good as none.
        let histogram = metaslab
            .histogram
            .filter(|sizes| fragmentation(sizes).is_some());
        allocator.set_recorded(
            metaslab.id.0,
            metaslab.id.1,
            metaslab.allocated_bytes,
            histogram,
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{HostIdentity, ScanSpec};

    /// Goal: space maps and logs of OpenZFS's pools add up. Method: what a metaslab has
    /// allocated by the maps' own totals is what its loaded free ranges leave, on every metaslab.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn space_of_golden_pools_adds_up() {
        let Some(golden) = oracles::golden() else {
            return;
        };
        for name in [
            "plain",
            "mirror3",
            "stripe_of_mirrors",
            "raidz1_3",
            "raidz2_multi",
            "raidz3_8",
            "raidz_expanded",
            "raidz_expanding",
            "draid",
            "draid_spare",
            "removed",
            "removing",
        ] {
            let dir = tempfile::tempdir().expect("a directory");
            let images = oracles::unpack(&golden, name, dir.path());
            let world = World::system(1);
            let path = images.to_str().expect("UTF-8").to_owned();
            let spec = ScanSpec {
                paths: vec![path],
                ..ScanSpec::default()
            };
            let found = crate::scan(&world, &spec).await.expect("scan").remove(0);
            let spec = ImportSpec {
                read_only: true,
                ..ImportSpec::new(found, HostIdentity::default())
            };
            let (uberblock, config) = read_trusted(&world, &spec, None)
                .await
                .expect("trusted configuration");
            assert_eq!(config.string("name"), Some(spec.found.name.as_str()));
            let root = config.require_list("vdev_tree").expect("vdev_tree");
            let options = OpenOptions {
                read_only: true,
                paths: spec.found.paths.clone(),
                pool_guid: Some(spec.found.guid),
                ..OpenOptions::default()
            };
            let ground = Ground::open(&world, root, options, [0; 32], spec.cache())
                .await
                .expect("open");
            assert_eq!(ground.tree.guid_sum(), uberblock.guid_sum);
            let mos = open_mos(&world, &ground, &uberblock).await.expect("MOS");
            let shapes = ground.shapes();
            let recorded = ground.space.open(&mos, &shapes).await.expect("space maps");
            assert!(
                recorded
                    .iter()
                    .map(|metaslab| metaslab.allocated_bytes)
                    .sum::<u64>()
                    > 0
            );
            for metaslab in recorded {
                use zio::alloc::MetaslabSource;
                let shape = shapes
                    .iter()
                    .find(|shape| shape.vdev == metaslab.id.0)
                    .expect("a shape");
                let free = ground
                    .space
                    .load(metaslab.id.0, metaslab.id.1)
                    .await
                    .expect("load");
                assert_eq!(
                    free.space() + metaslab.allocated_bytes,
                    shape.span(metaslab.id.1).end - shape.span(metaslab.id.1).start,
                    "{name}"
                );
            }
            ground.space.close();
            ground.tree.close();
        }
    }
}
