//! Creating a pool: the first transaction group, with the whole MOS.
//!
//! Nothing is written before all that was asked for is checked and every device was looked at; then
//! the labels, then txg 4 (`TXG_INITIAL`). A crash before its uberblock leaves devices whose labels
//! have txg 0 and name a pool that was never there: `zpool create` may take them again without
//! '-f'.
//!
//! Source: module/zfs/spa.c `spa_create`.

use std::collections::BTreeSet;
use std::sync::Arc;

use dataset::{CreateParams, DslEnvironment, DslPool, NewKey, RootKey};
use dedup::{CloneTables, SharedBlocks};
use device::{BoxFuture, World};
use format::{Compression, Guid, ObjectId, ObjectType, Txg, Uberblock};
use object::{NewObject, Zap};
use parking_lot::Mutex;
use scan::{ErrorScrub, Expanding, KnownExpansion, Rebuilds, Scan, Scans};
use spa::bootfs::{self, BootFs};
use spa::dtl::DirtyTimes;
use spa::events::{LoadState, Sysevent};
use spa::history::{History, HistoryLog};
use spa::identity::CONFIG_BLOCK_BYTES;
use spa::identity::{Identity, Pairs};
use spa::props::{Change, Stored};
use spa::props::{PropValues, Props};
use spa::{Spa, State, TxgTimeLog, config, directory, features, props, unless_suspended};
use trim::{Activities, Autotrim, Gate, Passes};
use vdev::OpenOptions;
use zio::pipeline::must_succeed;
use zio::{TxgLimits, TxgManager};

use crate::auxiliary::{self, NewAuxiliary};
use crate::checkpoint::{Checkpoint, CheckpointState};
use crate::claims::LogClaims;
use crate::condensing::{self, Condensing};
use crate::core::Core;
use crate::deferred::{DeferredFrees, Salt};
use crate::evacuation::{Evacuation, Found};
use crate::gone::Replacements;
use crate::hooks::Hooks;
use crate::open::{Ground, software, start};
use crate::{CreateSpec, FeatureChoice, PoolError, labelroom, layout};

/// The name that a new pool has until it is exported (`ZPOOL_PROP_TNAME`).
const TEMPORARY_NAME: &str = "tname";

/// Creates a pool (`spa_create`).
pub(crate) async fn create(
    world: &World,
    spec: CreateSpec,
    root_key: Option<NewKey>,
) -> Result<Arc<Core>, PoolError> {
    let (ground, mut choices) = plan(world, &spec, RootKey::Given(root_key.as_ref())).await?;
    choices.root_key = root_key;
    let pipeline = ground.pipeline.clone();
    // In a box: its type is too deep for compilers to nest it further.
    let work: BoxFuture<'_, _> = Box::pin(create_on(world, &spec, choices, &ground));
    let result = unless_suspended(&pipeline, &spec.name, must_succeed(work)).await;
    if result.is_err() {
        ground.tree.close();
    }
    result
}

/// Checks all that [`Pool::create`] checks before it writes, but for the key of the root dataset;
/// nothing is written.
///
/// # Errors
/// As [`Pool::create`].
///
/// [`Pool::create`]: crate::Pool::create
pub async fn check_create(world: &World, spec: &CreateSpec) -> Result<(), PoolError> {
    // In a box: what waits for it would else be a future too deep for the compiler.
    let planned: BoxFuture<'_, _> = Box::pin(plan(world, spec, RootKey::Later));
    let (ground, _) = planned.await?;
    ground.tree.close();
    Ok(())
}

/// Checks all that was asked for and opens the devices; nothing is written.
async fn plan(
    world: &World,
    spec: &CreateSpec,
    root_key: RootKey<'_>,
) -> Result<(Ground, Choices), PoolError> {
    layout::check_name(&spec.name)?;
    layout::check_new_pool(&spec.vdevs)?;
    let mut changes = Vec::new();
    let mut ashift = 0;
    let mut guids = match spec.features {
        FeatureChoice::All => features::defaults(),
        FeatureChoice::None => Vec::new(),
    };
    let mut cachefile = None;
    let mut temporary_name = None;
    let mut version = Uberblock::VERSION_FEATURES;
    let mut asks_for_features = false;
    for (name, value) in &spec.properties {
        // A feature can be left out of a new pool, and only of a new one.
        if let (Some(feature), "disabled") = (name.strip_prefix("feature@"), value.as_str()) {
            let guid = features::guid_to_enable(feature)?;
            guids.retain(|known| known != guid);
            continue;
        }
        // Not a property of the pool but the name that it has until it is exported, handed over
        // like one.
        if name == TEMPORARY_NAME {
            layout::check_name(value)?;
            temporary_name = Some(value.clone());
            continue;
        }
        match props::parse(name, value)? {
            Change::Feature(feature) => {
                let guid = features::guid_to_enable(&feature)?.to_owned();
                asks_for_features = true;
                if !guids.contains(&guid) {
                    guids.push(guid);
                }
            }
            Change::Session("cachefile", value) => {
                cachefile = (!value.is_empty()).then_some(value);
            }
            Change::Session(..) => return Err(props::only_at_import(name, value)),
            Change::Stored(name, _) if name == bootfs::NAME => {
                return Err(props::only_later(&name, value));
            }
            Change::Version(wanted) => version = wanted,
            change => {
                props::check_host(&change, spec.host.hostid)?;
                if let Change::Stored(name, Stored::Number(number)) = &change
                    && name == "ashift"
                {
                    ashift = *number as u8;
                }
                changes.push(change);
            }
        }
    }
    if version != Uberblock::VERSION_FEATURES {
        if asks_for_features {
            return Err(PoolError::BadProperty {
                property: "version".to_owned(),
                value: version.to_string(),
                why: "pools of this version have no features: ask for one or the other".into(),
            });
        }
        guids.clear();
    }
    let properties = &spec.root_properties;
    dataset::check_root_properties(&spec.name, properties, &guids, version)?;
    dataset::check_root_encryption(&spec.name, properties, &guids, root_key)?;

    let facts = layout::examine(world, &spec.vdevs, spec.force).await?;
    let guid = loop {
        let guid = world.random.next_u64();
        if guid != 0 {
            break Guid::new(guid);
        }
    };
    features::check_classes(&spec.vdevs, |guid| guids.iter().any(|known| known == guid))?;
    features::check_parity(&spec.vdevs, version)?;
    let making = layout::Making {
        ashift,
        create_txg: Txg::INITIAL,
        random: &*world.random,
    };
    let root = layout::build_root(guid, &spec.vdevs, &facts, &making)?;
    let tops = config::children(&root);
    let known = BTreeSet::new();
    let auxiliary = NewAuxiliary::build(&spec.vdevs, tops, &facts, &making, &known)?;
    labelroom::check(&pairs_of_new(spec, version, guid, &changes), tops)?;
    let mut salt = [0; 32];
    world.random.fill(&mut salt);
    let options = OpenOptions {
        create: true,
        pool_guid: Some(guid),
        ..OpenOptions::default()
    };
    let ground = Ground::open(world, &root, options, salt, spec.cache()).await?;
    let totals = ground.pipeline.allocator().totals();
    let usable_bytes = totals
        .usable_deflated_bytes
        .saturating_sub(totals.slop_bytes);
    if let Err(error) = dataset::check_root_space(&spec.name, &spec.root_properties, usable_bytes) {
        ground.tree.close();
        return Err(error.into());
    }
    let choices = Choices {
        guid,
        version,
        features: guids,
        changes,
        cachefile,
        name: temporary_name.unwrap_or_else(|| spec.name.clone()),
        auxiliary,
        salt,
        root_key: None,
    };
    Ok((ground, choices))
}

/// What was made of a [`CreateSpec`].
struct Choices {
    guid: Guid,
    version: u64,
    features: Vec<String>,
    changes: Vec<Change>,
    cachefile: Option<String>,
    /// The name until it is exported.
    name: String,
    auxiliary: NewAuxiliary,
    salt: [u8; 32],
    root_key: Option<NewKey>,
}

async fn create_on(
    world: &World,
    spec: &CreateSpec,
    choices: Choices,
    ground: &Ground,
) -> Result<Arc<Core>, PoolError> {
    let Choices {
        guid,
        version,
        features: feature_guids,
        changes,
        cachefile,
        name,
        auxiliary,
        salt,
        root_key,
    } = choices;
    let before = Txg::new(Txg::INITIAL.get() - 1);
    let uberblock = Uberblock {
        txg: before,
        ..empty_uberblock(version)
    };
    let pairs = Pairs {
        version,
        dirty: true,
        ..Pairs::new(&name, &spec.name)
    };
    let props = PropValues {
        cachefile,
        ..PropValues::default()
    };
    let missing = Salt::default();
    missing.set_missing(salt);
    let labels = pairs_of_new(spec, version, guid, &[]).label_config();
    ground
        .tree
        .init_labels(&ground.tree.tops(), &labels, Txg::INITIAL)
        .await?;
    auxiliary.label(world, version).await?;

    let txgs = TxgManager::new(world.clone(), before, TxgLimits::default());
    let history = HistoryLog::new(world.clone(), &spec.host.hostname, &ground.events);
    let txg = txgs.quiesce().await;
    let ctx = object::SyncContext {
        txg,
        pass: 1,
        pipeline: ground.pipeline.clone(),
        world: world.clone(),
        txgs: Some(txgs.clone()),
    };
    let bootfs = Arc::new(BootFs::default());
    let scan = Arc::new(Scan::default());
    let env = DslEnvironment {
        pool_name: name,
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
        read_only: false,
        spa_version: version,
    };
    let params = CreateParams {
        features: feature_guids,
        root_properties: spec.root_properties.clone(),
        root_init: spec.root_init.clone(),
        root_key,
    };
    ground.space.start(&ground.shapes());
    let dsl = DslPool::create(env, &ctx, params).await?;
    ground.space.set_mos(dsl.mos());
    let dedup = dedup::of_pool(&dsl, &ground.pipeline);
    let spa = Arc::new(Spa {
        world: world.clone(),
        load_guid: world.random.next_u64(),
        host: Mutex::new(spec.host.clone()),
        read_only: false,
        altroot: spec.altroot.clone(),
        opened_ns: world.clock.monotonic_ns(),
        tree: ground.tree.clone(),
        pipeline: ground.pipeline.clone(),
        txgs: txgs.clone(),
        dsl,
        space: ground.space.clone(),
        dirty_times: DirtyTimes::default(),
        txg_times: TxgTimeLog::default(),
        history,
        errors: ground.errors.clone(),
        events: ground.events.clone(),
        bootfs,
        state: Mutex::new(State::new(uberblock)),
        identity: Identity::new(pairs),
        props: Props::new(props),
        admin: tokio::sync::Mutex::new(()),
    });
    let passes = Arc::new(Passes {
        spa: spa.clone(),
        gate: Gate::default(),
        autotrim: Autotrim::default(),
        activities: Activities::default(),
    });
    let scans = Arc::new(Scans {
        spa: spa.clone(),
        scan: scan.clone(),
        error_scrub: ErrorScrub::default(),
        rebuilds: Rebuilds::default(),
        expanding: Expanding {
            spa: spa.clone(),
            known: KnownExpansion::default(),
        },
    });
    let new_tops = Arc::default();
    let spares = Arc::default();
    let core = Arc::new(Core {
        evacuation: Evacuation::new(&spa, &scans, &passes, &new_tops, Found::default()),
        condensing: Condensing::new(&scans, condensing::Found::default()),
        heart: crate::heart::Heart::default(),
        auxiliary: Mutex::default(),
        checkpoint: Checkpoint::new(CheckpointState::None, &scan, &spares),
        claims: LogClaims::default(),
        salt: missing,
        deferred_frees: DeferredFrees::new(ObjectId::ZERO, &dedup),
        new_tops,
        replacements: Replacements::default(),
        spares,
        returned: Mutex::default(),
        shared_blocks: SharedBlocks {
            dedup,
            clones: CloneTables::none(&spec.name),
            forecast: Arc::default(),
        },
        looping: ground.pipeline.tasks().group(),
        passes,
        scans,
        spa,
    });
    let told = Arc::downgrade(&core);
    core.events
        .begin(&core.spa, told, spec.events.clone(), LoadState::Create);
    make_directory(&core, &ctx).await?;
    if !auxiliary.is_empty() {
        auxiliary::add_auxiliary(&core, &core.auxiliary, &zio::Tx::syncing(txg), &auxiliary)
            .await?;
        auxiliary::look_at_auxiliary(&core, &core.auxiliary).await;
    }
    for change in changes {
        crate::change::apply_change(&core, &change, &ctx).await?;
    }
    core.sync_txg(txg).await?;
    txgs.synced(txg);
    start(&core);
    core.events.tell(Sysevent::PoolCreate);
    core.tree.patience().set_opening(false);
    core.events.loaded();
    Ok(core)
}

/// The pool-level pairs of a new pool.
fn pairs_of_new(
    spec: &CreateSpec,
    version: u64,
    guid: Guid,
    changes: &[Change],
) -> config::PoolPairs {
    let text = |wanted: &str| {
        let mut given = changes.iter().rev();
        given.find_map(|change| match change {
            Change::Config(name, text) if *name == wanted => Some(text.clone()),
            _ => None,
        })
    };
    config::PoolPairs {
        version,
        name: spec.name.clone(),
        state: config::STATE_ACTIVE,
        guid: guid.get(),
        hostid: spec.host.hostid,
        hostname: spec.host.hostname.clone(),
        comment: text("comment"),
        compatibility: text("compatibility"),
        ..config::PoolPairs::default()
    }
}

fn empty_uberblock(version: u64) -> Uberblock {
    Uberblock {
        endian: format::Endian::Little,
        version,
        txg: Txg::ZERO,
        guid_sum: Guid::ZERO,
        timestamp_seconds: 0,
        root: format::BlockPointer::HOLE,
        software_version: Uberblock::VERSION_FEATURES,
        multihost: None,
        checkpoint_txg: Txg::ZERO,
        reflow_offset_bytes: 0,
        reflow_state: format::ReflowScratchState::from_code(0),
    }
}

/// What `spa_create` puts into the object directory after `dsl_pool_create`.
async fn make_directory(core: &Core, ctx: &object::SyncContext) -> Result<(), PoolError> {
    let mos = core.dsl.mos();
    let tx = zio::Tx::syncing(ctx.txg);
    let directory = Zap::hold(mos, ObjectId::POOL_DIRECTORY).await?;
    let normal_bytes = core.pipeline.allocator().totals().normal_deflated_bytes;
    core.history
        .set(History::create(mos, &tx, normal_bytes).await?);
    core.history.internal(&tx, "create", software()).await;

    let new = NewObject::new(ObjectType::PACKED_NVLIST)
        .with_block_bytes(CONFIG_BLOCK_BYTES)
        .with_bonus(ObjectType::PACKED_NVLIST_SIZE, vec![0; 8]);
    let object = mos.allocate(&tx, new).await?;
    directory
        .add_u64(&tx, directory::CONFIG, object.id().get())
        .await?;
    let version = core.dsl.version();
    directory
        .add_u64(&tx, directory::CREATION_VERSION, version)
        .await?;
    directory.add_u64(&tx, directory::DEFLATE, 1).await?;
    // Not compressed: syncing takes longer to converge while the block's size keeps changing.
    let deferred = core.dsl.create_list(&tx, 16 << 10).await?;
    mos.hold(deferred.id())
        .await?
        .set_compression(&tx, Compression::Off)?;
    directory
        .add_u64(&tx, directory::SYNC_BPLIST, deferred.id().get())
        .await?;
    core.identity.lock().object = object.id();
    core.deferred_frees.set(deferred.id());
    Ok(())
}
