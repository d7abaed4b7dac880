//! What the `zpool` command line asks for.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use api::{
    DeviceKind, DeviceSpec, Empty, EventKind, Failure, FailureKind, InjectCommand, PoolHistory,
    Prefetched, Refusal, Settings, VdevLayout as ApiLayout, VdevSpec as ApiVdev, ZpoolClear,
    ZpoolCreate, ZpoolCreateReply, ZpoolDdtPrune, ZpoolDdtPruneReply, ZpoolDestroy,
    ZpoolEventsClearReply, ZpoolEventsReply, ZpoolExport, ZpoolHistory, ZpoolHistoryReply,
    ZpoolList, ZpoolListReply, ZpoolPrefetch, ZpoolPrefetchReply, ZpoolSet, ZpoolStatus,
    ZpoolStatusReply, ZpoolSync,
};
use dataset::DatasetError;
use device::{BoxFuture, DeviceError, PathKind, Place, World};
use format::Guid;
use futures::StreamExt;
use pool::{CreateSpec, FeatureChoice, LeafSpec, Pool, PoolError, VdevClass, VdevLayout, VdevSpec};
use serve_fuse::UnmountMode;

use crate::look;
use crate::owners::OwnedQuota;
use crate::properties::by_full_names;
use crate::replication;
use service::cache_files;
use service::compatibility::Compatibility;
use service::error::{all_done, from_pool, suspended};
use service::events::Events;
use service::pools::{Arrival, OpenPool, Pools};
use service::reports;
use serving::Serving;
use serving::iscsi::ISCSI_PROPERTY;
use serving::nfs::NFS_PROPERTY;
use serving::place::below_altroot;
use serving::smb::SMB_PROPERTY;

/// Paths that are looked at at the same time.
const LOOKS_IN_FLIGHT: usize = 8;

/// How long `zpool clear` looks whether the pool goes on.
const CURED_AFTER: Duration = Duration::from_secs(2);

/// How long the place of a cache file is looked at.
const CACHE_FILE_PATIENCE: Duration = Duration::from_secs(5);

fn mode(force: bool) -> UnmountMode {
    if force {
        UnmountMode::Force
    } else {
        UnmountMode::Clean
    }
}

fn class(class: api::VdevClass) -> VdevClass {
    match class {
        api::VdevClass::Normal => VdevClass::Normal,
        api::VdevClass::Log => VdevClass::Log,
        api::VdevClass::Special => VdevClass::Special,
        api::VdevClass::Dedup => VdevClass::Dedup,
        api::VdevClass::Spare => VdevClass::Spare,
        api::VdevClass::Cache => VdevClass::Cache,
    }
}

/// A device that somebody names. One that does not answer is refused.
pub(crate) async fn leaf(world: &World, path: &str) -> Result<LeafSpec, Failure> {
    let place = match world.look_at(path).await {
        Ok(place) => place,
        Err(DeviceError::Open { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => {
            return Err(Failure::new(
                FailureKind::NotFound,
                format!("cannot resolve path '{path}'\ngive an existing file or block device"),
            ));
        }
        Err(DeviceError::Open { source, .. }) => {
            return Err(Failure::new(
                FailureKind::NotFound,
                format!("cannot open '{path}': {source}\ngive an existing file or block device"),
            ));
        }
        Err(error) => {
            let message = format!("cannot open '{path}': {error}");
            return Err(Failure::new(FailureKind::Io, message));
        }
    };
    if place.kind == PathKind::Other {
        return Err(Failure::new(
            FailureKind::Invalid,
            format!("cannot use '{path}': must be a block device or regular file"),
        ));
    }
    Ok(LeafSpec {
        path: path.to_owned(),
        is_file: place.kind == PathKind::File,
    })
}

/// The vdevs that somebody asks for.
pub(crate) fn layouts<'a>(
    world: &'a World,
    vdevs: &'a [ApiVdev],
) -> BoxFuture<'a, Result<Vec<VdevSpec>, Failure>> {
    Box::pin(async move {
        let mut out = Vec::new();
        for vdev in vdevs {
            out.push(layout(world, vdev).await?);
        }
        Ok(out)
    })
}

async fn leaves(world: &World, devices: &[DeviceSpec]) -> Result<Vec<LeafSpec>, Failure> {
    let mut leaves = Vec::new();
    for device in devices {
        leaves.push(leaf(world, &device.path).await?);
    }
    Ok(leaves)
}

async fn layout(world: &World, vdev: &ApiVdev) -> Result<VdevSpec, Failure> {
    let layout = match &vdev.layout {
        ApiLayout::Device(device) => VdevLayout::Leaf(leaf(world, &device.path).await?),
        ApiLayout::Mirror { devices } => VdevLayout::Mirror(leaves(world, devices).await?),
        ApiLayout::Raidz { parity, devices } => VdevLayout::Raidz {
            parity: *parity,
            leaves: leaves(world, devices).await?,
        },
        ApiLayout::Draid {
            parity,
            data,
            spares,
            devices,
        } => VdevLayout::Draid {
            parity: *parity,
            data: *data,
            spares: *spares,
            leaves: leaves(world, devices).await?,
        },
    };
    Ok(VdevSpec {
        layout,
        class: class(vdev.class),
    })
}

/// The vdevs as they were asked for; each device says whether it is a disk or a file.
pub fn described(asked: &[ApiVdev], specs: &[VdevSpec]) -> Vec<ApiVdev> {
    let mut out = asked.to_vec();
    for (vdev, spec) in out.iter_mut().zip(specs) {
        let devices = match &mut vdev.layout {
            ApiLayout::Device(device) => std::slice::from_mut(device),
            ApiLayout::Mirror { devices }
            | ApiLayout::Raidz { devices, .. }
            | ApiLayout::Draid { devices, .. } => devices,
        };
        for (device, leaf) in devices.iter_mut().zip(spec.layout.leaves()) {
            device.kind = Some(match leaf.is_file {
                true => DeviceKind::File,
                false => DeviceKind::Disk,
            });
        }
    }
    out
}

/// Names and values, as typed.
type Properties = Vec<(String, String)>;

/// What was typed, as a list to which more can be added.
pub fn typed(settings: &Settings) -> Properties {
    settings.clone().into_iter().collect()
}

/// Takes the alternate root (`-R`, or `-o altroot=`) out of the properties that a pool is created
/// or imported with. As with OpenZFS, a pool that has one is not imported again at the next start,
/// unless `cachefile` is given as well.
pub fn take_altroot(
    doing: &str,
    option: Option<String>,
    mut properties: Properties,
) -> Result<(Option<String>, Properties), Failure> {
    let typed = properties.iter().find(|(name, _)| name == "altroot");
    // In the words of `zpool_do_create` (cmd/zpool/zpool_main.c), and of `zpool_valid_proplist`.
    if let Some(root) = option.as_ref().filter(|root| !root.starts_with('/')) {
        let message = format!("invalid alternate root '{root}': must be an absolute path");
        return Err(Failure::new(FailureKind::Invalid, message));
    }
    let altroot = option.or_else(|| typed.map(|(_, value)| value.clone()));
    properties.retain(|(name, _)| name != "altroot");
    if let Some(root) = &altroot {
        if !root.starts_with('/') {
            let message =
                format!("{doing}: bad alternate root '{root}'\nit must be an absolute path");
            return Err(Failure::new(FailureKind::Invalid, message));
        }
        not_at_the_next_start(&mut properties);
    }
    Ok((altroot, properties))
}

/// Checks that a cache file can be where a property wants it, in a directory that is there, and in
/// the place of nothing else (`zpool_valid_proplist`, lib/libzfs/libzfs_pool.c). It waits, though
/// not for ever: nothing is to be held meanwhile.
pub async fn check_cache_file(doing: &str, properties: &[(String, String)]) -> Result<(), Failure> {
    let mut typed = properties.iter();
    let Some((_, value)) =
        typed.rfind(|(name, value)| name == "cachefile" && value.starts_with('/'))
    else {
        return Ok(());
    };
    let path = PathBuf::from(value);
    let Some(directory) = path.parent().map(Path::to_owned) else {
        return Ok(());
    };
    let look = move || match cache_files::obstacle(&path) {
        Ok(why) => why.map(str::to_owned),
        Err(_) if !directory.is_dir() => Some(format!(
            "'{}' is not a valid directory",
            directory.display()
        )),
        Err(error) => Some(error.to_string()),
    };
    // Links may lead into a filesystem that this process serves.
    let looked = tokio::time::timeout(CACHE_FILE_PATIENCE, serve_fuse::aside(look)).await;
    match looked.unwrap_or_else(|_| Some("it does not answer".to_owned())) {
        None => Ok(()),
        Some(why) => Err(Failure::new(
            FailureKind::Invalid,
            format!("{doing}: no cache file can be at '{value}': {why}"),
        )),
    }
}

/// Has a pool not imported at the next start, unless `cachefile` is given.
pub fn not_at_the_next_start(properties: &mut Properties) {
    if !properties.iter().any(|(name, _)| name == "cachefile") {
        properties.push(("cachefile".to_owned(), "none".to_owned()));
    }
}

/// Refuses a new pool whose root filesystem would hide what is in a directory (`zpool_do_create`,
/// cmd/zpool/zpool_main.c).
async fn refuse_used_mountpoint(
    name: &str,
    altroot: Option<&str>,
    properties: &[(String, String)],
    dry_run: bool,
) -> Result<(), Failure> {
    let mut typed = properties.iter().rev();
    let mountpoint = match typed.find(|(name, _)| name == "mountpoint") {
        None => format!("/{name}"),
        Some((_, path)) if path.starts_with('/') => path.clone(),
        // Mounted nowhere, or refused later.
        Some(_) => return Ok(()),
    };
    let path = below_altroot(altroot, &mountpoint);
    // It may be in a filesystem that this process serves.
    let directory = path.clone();
    let look = move || {
        // The mount of a server that crashed would be taken away before its place is used; what is
        // below it counts.
        if !dry_run {
            let _ = serve_fuse::take_away_dead_mounts(&directory);
        }
        std::fs::read_dir(directory).map(|mut entries| entries.next().is_some())
    };
    let why = match serve_fuse::aside(look).await {
        Ok(true) => "exists and is not empty".to_owned(),
        Ok(false) => return Ok(()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(error) if dry_run && serve_fuse::is_dead(&error) => return Ok(()),
        Err(error) => format!("cannot be used: {error}"),
    };
    let path = path.display().to_string();
    let message = format!("the mountpoint '{path}' {why}; choose another one");
    Err(Failure::new(FailureKind::Invalid, message).with_refusal(Refusal::Mountpoint { path, why }))
}

/// Only a pool with a special vdev has a use for `special_small_blocks`, which is at most the
/// record size (`zpool_create`, lib/libzfs/libzfs_pool.c; `zfs_valid_proplist`, libzfs_dataset.c).
fn check_special_small_blocks(
    doing: &str,
    vdevs: &[ApiVdev],
    properties: &[(String, String)],
) -> Result<(), Failure> {
    const USUAL_RECORD_BYTES: u64 = 128 << 10;
    let number = |wanted: &str| {
        let given = properties.iter().rev().find(|(name, _)| name == wanted);
        given.and_then(|(_, typed)| dataset::props::parse_size(typed).ok())
    };
    let Some(bytes) = number("special_small_blocks") else {
        return Ok(());
    };
    let most = number("recordsize").unwrap_or(USUAL_RECORD_BYTES);
    let why = if bytes > most {
        format!(
            "invalid 'special_small_blocks={bytes}' property: must be zero or a power of 2 from \
             512B to {}",
            dataset::props::format_size(most)
        )
    } else if !vdevs
        .iter()
        .any(|vdev| vdev.class == api::VdevClass::Special)
    {
        "special_small_blocks property requires a special vdev".to_owned()
    } else {
        return Ok(());
    };
    Err(Failure::new(
        FailureKind::Invalid,
        format!("{doing}: {why}"),
    ))
}

/// `zpool create`.
pub fn zpool_create<'a>(
    serving: &'a Arc<Serving>,
    call: ZpoolCreate,
) -> BoxFuture<'a, Result<ZpoolCreateReply, Failure>> {
    Box::pin(async move {
        let doing = format!("cannot create '{}'", call.name);
        let given = by_full_names(typed(&call.filesystem_properties));
        check_special_small_blocks(&doing, &call.vdevs, &given)?;
        let (quotas, root_properties) = OwnedQuota::split(&doing, &given)?;
        let name = call.properties.get("tname").unwrap_or(&call.name);
        check_cache_file(&doing, &typed(&call.properties)).await?;
        let _claim = serving.pools.claim(&doing, name, None).await?;
        if serving.pools.get(name).is_ok() {
            return Err(Failure::new(
                FailureKind::Exists,
                format!("{doing}: pool already exists"),
            ));
        }
        let vdevs = layouts(&serving.world, &call.vdevs).await?;
        if !call.force {
            replication::check(&[], &vdevs, &serving.volumes.file(""))?;
        }
        refuse_open_devices(serving, &vdevs, call.force).await?;
        let (altroot, mut properties) =
            take_altroot(&doing, call.altroot.clone(), typed(&call.properties))?;
        if properties.iter().any(|(name, _)| name == "tname") {
            not_at_the_next_start(&mut properties);
        }
        refuse_used_mountpoint(
            &call.name,
            altroot.as_deref(),
            &root_properties,
            call.dry_run,
        )
        .await?;
        for (name, value) in &root_properties {
            if name == ISCSI_PROPERTY {
                serving.volumes.check_share(value)?;
            }
            if name == NFS_PROPERTY {
                serving.nfs.check_share(value)?;
            }
            if name == SMB_PROPERTY {
                serving::smb::check_property(value)?;
            }
        }
        let mut features = if call.no_features {
            FeatureChoice::None
        } else {
            FeatureChoice::All
        };
        let compatible = properties
            .iter()
            .find(|(name, _)| name == "compatibility")
            .map(|(_, value)| Compatibility::load(value))
            .transpose()?;
        if let Some(compatible) = compatible.filter(|_| !call.no_features) {
            features = FeatureChoice::None;
            let allowed = compatible.choose().map(|name| format!("feature@{name}"));
            // What was asked for by name comes later, and counts.
            let allowed = allowed.map(|name| (name, "enabled".to_owned()));
            properties = allowed.chain(properties).collect();
        }
        let spec = CreateSpec {
            name: call.name.clone(),
            vdevs,
            properties,
            features,
            root_properties,
            root_init: Arc::new(crate::create::new_filesystem()),
            altroot,
            force: call.force,
            host: (serving.host)(),
            events: Some(serving.events.clone()),
            cache: Some(Arc::clone(serving.pools.cache())),
        };
        let ashift = asked_ashift(&spec.properties);
        let mut warnings = look::at_vdevs(&serving.world, None, &spec.vdevs, ashift).await;
        if call.dry_run {
            let checked = pool::check_create(&serving.world, &spec).await;
            checked.map_err(|error| create_failure(&doing, &error))?;
            return Ok(ZpoolCreateReply {
                layout: described(&call.vdevs, &spec.vdevs),
                warnings,
            });
        }
        let key = crate::keys::new_key(&doing, call.key.as_ref(), &spec.root_properties, None)?;
        let pool = Pool::create_with_key(&serving.world, spec, key)
            .await
            .map_err(|error| create_failure(&doing, &error))?;
        log_command(&pool, &call.command).await;
        let root = pool.name();
        let mount = Some(Vec::new());
        warnings.extend(serving.adopt(pool, Arrival::Created, mount).await);
        let open = serving.pools.of_dataset(&root)?;
        let set_quotas = async {
            let _admin = open.admin.lock().await;
            crate::owners::set_owned_quotas(&serving.pools, &open, &root, &quotas).await
        };
        let doing = format!("cannot set the quotas of '{root}'");
        if let Err(failure) = open.leaving(&doing, false, set_quotas).await {
            warnings.push(format!("'{root}' was created, but: {failure}"));
        }
        Ok(ZpoolCreateReply {
            layout: Vec::new(),
            warnings,
        })
    })
}

/// The sectors that properties ask for, as log2 of their bytes; zero where they are the devices'.
fn asked_ashift(properties: &[(String, String)]) -> u32 {
    let mut typed = properties.iter().rev();
    let ashift = typed.find(|(name, _)| name == "ashift");
    ashift
        .and_then(|(_, value)| value.parse().ok())
        .unwrap_or(0)
}

/// A device that belongs to a pool that is open here cannot be used again, not even with force,
/// whatever name it goes by.
pub(crate) async fn refuse_open_devices(
    serving: &Serving,
    vdevs: &[VdevSpec],
    force: bool,
) -> Result<(), Failure> {
    for open in serving.pools.all() {
        let status = open.pool.status();
        let mut own = reports::tree_paths(&status);
        let all = reports::device_paths(&status);
        own.extend(status.caches.into_iter().filter_map(|cache| cache.path));
        // Pools may have the same spares.
        let used = |vdev: &VdevSpec| match vdev.class {
            VdevClass::Spare => &own,
            _ => &all,
        };
        for vdev in vdevs {
            for leaf in vdev.layout.leaves() {
                if is_of_pool(&serving.world, &open.pool, used(vdev), &leaf.path).await? {
                    let name = open.pool.name();
                    let why = format!("{} is part of active pool '{name}'", leaf.path);
                    return Err(in_use(why, force));
                }
            }
        }
    }
    Ok(())
}

/// Puts a command line into a pool's history, for the user whose request the task works at.
pub async fn log_command(pool: &Pool, command: &str) {
    if pool.is_read_only() || command.is_empty() {
        return;
    }
    if let Err(error) = pool.log_history(command, service::asking::asking()).await {
        tracing::warn!(
            "the history of '{}' could not be written: {error}",
            pool.name()
        );
    }
}

/// `zpool destroy`.
pub fn zpool_destroy<'a>(
    serving: &'a Serving,
    call: ZpoolDestroy,
) -> BoxFuture<'a, Result<Empty, Failure>> {
    Box::pin(async move {
        let open = serving.pools.get(&call.name)?;
        let doing = format!("cannot destroy '{}'", call.name);
        let work = async {
            let _admin = open.admin.lock().await;
            let _nobody = serving.release_pool(&open, mode(call.force)).await?;
            // It is there when the pool is imported again (`zfs_ioc_pool_destroy`).
            if !pool::is_frozen(&open.pool) {
                log_command(&open.pool, &call.command).await;
            }
            let destroyed = open.pool.destroy(call.force).await;
            destroyed.map_err(|error| from_pool(&doing, &error))
        };
        let force = call.force || pool::is_frozen(&open.pool);
        open.leaving(&doing, force, work).await?;
        serving.pools.remove(&open, &doing)?;
        Ok(Empty {})
    })
}

/// `zpool export`.
/// A pool that cannot be exported keeps no other from it.
pub fn zpool_export<'a>(
    serving: &'a Serving,
    call: ZpoolExport,
) -> BoxFuture<'a, Result<Empty, Failure>> {
    Box::pin(async move {
        let (mut pools, mut failures) = (Vec::new(), Vec::new());
        if call.all {
            pools = serving.pools.all();
        }
        for name in &call.names {
            match serving.pools.get(name) {
                Ok(open) => pools.push(open),
                // One that could not be imported at the start is not here, but waited for.
                Err(_) if serving.pools.forget_absent(name) => {}
                Err(failure) => failures.push(failure),
            }
        }
        for open in pools {
            let name = open.pool.name();
            let doing = format!("cannot export '{name}'");
            let work = async {
                let _admin = open.admin.lock().await;
                // `spa_inject_ref` (`spa_export_common`, module/zfs/spa.c).
                let is_struck = pool::injector(&open.pool).is_on();
                if is_struck && !call.force && !pool::is_frozen(&open.pool) {
                    let message = format!(
                        "{doing}: pool is busy\ncancel its handlers first: 'zinject -c all'"
                    );
                    return Err(Failure::new(FailureKind::Busy, message));
                }
                if !call.force && service::spares::has_shared_in_use(&serving.pools, &open) {
                    return Err(Failure::new(
                        FailureKind::Busy,
                        format!(
                            "{doing}: use '-f' to override the following errors:\n\
                         '{name}' has an active shared spare which could be used by other pools \
                         once '{name}' is exported."
                        ),
                    ));
                }
                let released = serving.release_pool(&open, mode(call.force)).await;
                let _nobody = released.map_err(|failure| {
                    // What is in use is told of as it is, and then what it keeps from happening.
                    let message = match failure.message.starts_with("cannot unmount ") {
                        true => format!("{failure}\n{doing}"),
                        false => format!("{doing}: {failure}"),
                    };
                    Failure::new(failure.kind, message)
                })?;
                if !pool::is_frozen(&open.pool) {
                    log_command(&open.pool, &call.command).await;
                }
                let clock = &*serving.world.clock;
                let begun_ns = clock.monotonic_ns();
                let exported = open.pool.export(call.force).await;
                let injections = &serving.pools.injections;
                let what = InjectCommand::Export;
                injections.take_long(clock, &name, what, begun_ns).await;
                exported.map_err(|error| from_pool(&doing, &error))
            };
            let force = call.force || pool::is_frozen(&open.pool);
            let left = open.leaving(&doing, force, work).await;
            let forgotten = left.and_then(|()| serving.pools.remove(&open, &doing));
            failures.extend(forgotten.err());
        }
        all_done(&failures)
    })
}

/// `zpool list` and `zpool get`.
pub fn zpool_list<'a>(
    pools: &'a Pools,
    call: &'a ZpoolList,
) -> BoxFuture<'a, Result<ZpoolListReply, Failure>> {
    Box::pin(async move {
        let (pools, absent) = pools.found(&call.names)?;
        let mut reply = ZpoolListReply {
            absent,
            ..ZpoolListReply::default()
        };
        for open in pools {
            let mut report = reports::pool(&open.pool);
            if call.io {
                reports::add_io(&mut report.tree, &open.pool);
            }
            match open.pool.properties().bootfs().await {
                Ok(None) => {}
                Ok(Some(dataset)) => reports::set_bootfs(&mut report, dataset),
                Err(error) => tracing::warn!("'bootfs' of '{}': {error}", report.name),
            }
            reply.pools.push(report);
        }
        Ok(reply)
    })
}

/// `zpool status`.
pub fn zpool_status<'a>(
    serving: &'a Serving,
    call: &'a ZpoolStatus,
    may_name_damaged: bool,
) -> BoxFuture<'a, Result<ZpoolStatusReply, Failure>> {
    Box::pin(async move {
        let (pools, absent) = serving.pools.found(&call.names)?;
        let mut reply = ZpoolStatusReply {
            absent,
            ..ZpoolStatusReply::default()
        };
        for open in pools {
            service::spares::refresh(&serving.pools, &open).await;
            let mut report = reports::pool_status(&open.pool);
            match call.verbose {
                true if may_name_damaged => {
                    report.damaged = crate::damage::damaged_names(serving, &open).await
                }
                true => report.damaged_denied = true,
                false => {}
            }
            reply.pools.push(report);
        }
        Ok(reply)
    })
}

/// `zpool set`.
pub fn zpool_set<'a>(
    serving: &'a Serving,
    call: ZpoolSet,
) -> BoxFuture<'a, Result<Empty, Failure>> {
    Box::pin(async move {
        let open = serving.pools.get(&call.name)?;
        let doing = format!("cannot set property for '{}'", call.name);
        if call.vdev.is_none() {
            let given = (call.property.clone(), call.value.clone());
            check_cache_file(&doing, std::slice::from_ref(&given)).await?;
        }
        let _admin = open.admin.lock().await;
        match &call.vdev {
            None => {
                let checked = serving::identity::check_property(&call.property, &call.value);
                checked.map_err(|failure| {
                    Failure::new(failure.kind, format!("{doing}: {}", failure.message))
                })?;
                if call.property == "compatibility" {
                    // `zpool_valid_proplist` (lib/libzfs/libzfs_pool.c) refuses it likewise.
                    Compatibility::load(&call.value).map_err(|failure| {
                        Failure::new(failure.kind, format!("{doing}: {}", failure.message))
                    })?;
                }
                if call.property == "multihost" {
                    pool::set_host(&open.pool, (serving.host)());
                }
                let set = open
                    .pool
                    .properties()
                    .set(&call.property, &call.value)
                    .await;
                set.map_err(|error| from_pool(&doing, &error))?;
            }
            Some(vdev) => {
                let doing = format!(
                    "cannot set property {} for {} on {}",
                    call.property, vdev.name, call.name
                );
                let guid = Guid::new(vdev.guid.0);
                let set = open
                    .pool
                    .properties()
                    .set_of_vdev(guid, &call.property, &call.value);
                set.await.map_err(|error| from_pool(&doing, &error))?;
            }
        }
        log_command(&open.pool, &call.command).await;
        serving.events.tell_of(&open.pool, EventKind::PoolChanged);
        if call.vdev.is_none() && call.property == "cachefile" {
            serving.pools.save_cached();
        }
        Ok(Empty {})
    })
}

/// `zpool history`.
pub fn zpool_history<'a>(
    pools: &'a Pools,
    call: &'a ZpoolHistory,
) -> BoxFuture<'a, Result<ZpoolHistoryReply, Failure>> {
    Box::pin(async move {
        let (pools, absent) = pools.found(&call.names)?;
        let mut reply = ZpoolHistoryReply {
            absent,
            ..ZpoolHistoryReply::default()
        };
        for open in pools {
            let name = open.pool.name();
            let records =
                open.pool.history().await.map_err(|error| {
                    from_pool(&format!("cannot get history for '{name}'"), &error)
                })?;
            reply.pools.push(PoolHistory {
                name,
                records: records.into_iter().map(reports::history).collect(),
            });
        }
        Ok(reply)
    })
}

/// `zpool sync`. A pool that cannot be written, or not now, keeps no other from it.
pub fn zpool_sync<'a>(
    pools: &'a Pools,
    call: &'a ZpoolSync,
) -> BoxFuture<'a, Result<Empty, Failure>> {
    Box::pin(async move {
        let mut failures = Vec::new();
        for open in pools.named(&call.names)? {
            let doing = format!("sync of pool '{}' failed", open.pool.name());
            let work = async {
                let synced = match call.force {
                    true => open.pool.sync_config().await,
                    false => open.pool.sync().await,
                };
                synced.map_err(|error| from_pool(&doing, &error))
            };
            if let Err(failure) = open.leaving(&doing, false, work).await {
                failures.push(failure);
            }
        }
        all_done(&failures)
    })
}

/// `zpool prefetch`.
pub fn zpool_prefetch<'a>(
    pools: &'a Pools,
    call: &'a ZpoolPrefetch,
) -> BoxFuture<'a, Result<ZpoolPrefetchReply, Failure>> {
    Box::pin(async move {
        let open = pools.get(&call.name)?;
        let doing = format!("cannot prefetch tables of '{}'", call.name);
        let has = |what| call.what.is_none_or(|wanted| wanted == what);
        let work = async {
            let (dedup, clones) = (has(Prefetched::Ddt), has(Prefetched::Brt));
            let read = pool::prefetch_tables(&open.pool, dedup, clones).await;
            read.map_err(|error| from_pool(&doing, &error))
        };
        let read_bytes = open.leaving(&doing, false, work).await?;
        Ok(ZpoolPrefetchReply { read_bytes })
    })
}

/// `zpool ddtprune`: refused, as long as zdb and OpenZFS have not seen what it leaves
/// ([`pool::prune_dedup`]).
pub fn zpool_ddtprune<'a>(
    pools: &'a Pools,
    call: &'a ZpoolDdtPrune,
) -> BoxFuture<'a, Result<ZpoolDdtPruneReply, Failure>> {
    Box::pin(async move {
        pools.get(&call.name)?;
        let message = format!(
            "cannot prune the dedup tables of '{}': this release does not do that; export the pool \
             and prune them with OpenZFS",
            call.name
        );
        Err(Failure::new(FailureKind::Unsupported, message))
    })
}

/// `zpool clear`.
pub fn zpool_clear<'a>(
    serving: &'a Serving,
    call: &'a ZpoolClear,
) -> BoxFuture<'a, Result<Empty, Failure>> {
    Box::pin(async move {
        let open: Arc<OpenPool> = serving.pools.get(&call.name)?;
        let doing = format!("cannot clear errors for {}", call.name);
        let was_suspended = open.pool.suspended().is_some();
        open.pool
            .clear(call.vdev.as_deref())
            .await
            .map_err(|error| from_pool(&doing, &error))?;
        log_command(&open.pool, &call.command).await;
        open.background.poke(&open.pool);
        let looked = look_whether_it_goes(&serving.world, &open, &doing).await;
        if was_suspended {
            looked?;
        }
        Ok(Empty {})
    })
}

/// `zpool events`.
pub fn zpool_events(events: &Events) -> ZpoolEventsReply {
    let (events, sequence) = events.of_zfs();
    ZpoolEventsReply { events, sequence }
}

/// `zpool events -c`.
pub fn zpool_events_clear(events: &Events) -> ZpoolEventsClearReply {
    ZpoolEventsClearReply {
        cleared: events.clear_zfs(),
    }
}

/// Waits until what was done is on disk (`spa_vdev_state_exit`, module/zfs/spa_misc.c). A pool that
/// was resumed and stops again at once was not cured.
async fn look_whether_it_goes(world: &World, open: &OpenPool, doing: &str) -> Result<(), Failure> {
    tokio::select! {
        biased;
        () = open.pool.until_suspended() => Err(suspended(doing)),
        _ = open.pool.sync() => Ok(()),
        () = world.clock.sleep(CURED_AFTER) => Ok(()),
    }
}

/// Vdevs that are in use, or do not go together.
pub fn in_use(why: String, force: bool) -> Failure {
    let message = format!("the vdevs cannot be used: {why}");
    Failure::new(FailureKind::Busy, message).with_refusal(Refusal::Vdevs {
        why,
        can_be_forced: !force,
    })
}

/// A refused `zpool create` or `zpool add`.
pub fn vdev_failure(doing: &str, error: &PoolError) -> Failure {
    match error {
        PoolError::DeviceInUse { path, device_use } => {
            in_use(format!("{path} {device_use}"), false)
        }
        _ => from_pool(doing, error),
    }
}

/// A refused `zpool create`; what is reserved for the root filesystem and is not there is said in
/// OpenZFS's words (`zpool_create`, lib/libzfs/libzfs_pool.c).
fn create_failure(doing: &str, error: &PoolError) -> Failure {
    match error {
        PoolError::Dataset(DatasetError::NoSpace { .. }) => {
            let message = format!(
                "{doing}: one or more devices is out of space; reserve less, or use larger devices"
            );
            Failure::new(FailureKind::NoSpace, message)
        }
        _ => vdev_failure(doing, error),
    }
}

/// What is found out about a device beside the devices of a pool.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// It is at this path of the pool's.
    At(String),
    /// It is none of them.
    Nowhere,
    /// It is none that answers.
    Unsure,
}

/// Whether one of `paths` leads to the same file or block device as `device`.
pub(crate) fn find_device<'a>(
    world: &'a World,
    paths: &'a [String],
    device: &'a str,
) -> BoxFuture<'a, Found> {
    Box::pin(async move {
        if let Some(path) = paths.iter().find(|path| *path == device) {
            return Found::At(path.clone());
        }
        if paths.is_empty() {
            return Found::Nowhere;
        }
        let wanted = match world.look_at(device).await {
            Ok(place) => place,
            Err(error) if is_answer(&error) => return Found::Nowhere,
            Err(_) => return Found::Unsure,
        };
        let mut looks = Vec::new();
        for path in paths {
            looks.push(place_of(world.clone(), path.clone()));
        }
        let mut looks = futures::stream::iter(looks).buffered(LOOKS_IN_FLIGHT);
        let mut found = Found::Nowhere;
        while let Some((path, place)) = looks.next().await {
            match place {
                Ok(place) if place == wanted => return Found::At(path),
                Err(error) if !is_answer(&error) => found = Found::Unsure,
                _ => {}
            }
        }
        found
    })
}

/// Whether a device is one of a pool's, by `paths` of the pool's devices; where some do not answer,
/// by its label, as the device may be known to the pool under one of those.
///
/// # Errors
/// When its label cannot be read then.
pub(crate) async fn is_of_pool(
    world: &World,
    pool: &Pool,
    paths: &[String],
    device: &str,
) -> Result<bool, Failure> {
    match find_device(world, paths, device).await {
        Found::At(_) => Ok(true),
        Found::Nowhere => Ok(false),
        Found::Unsure => {
            let guid = pool::label_guid(world, device).await.map_err(|error| {
                from_pool(&format!("cannot tell whose device {device} is"), &error)
            })?;
            let own = reports::device_guids(&pool.status());
            Ok(guid.is_some_and(|guid| own.contains(&guid)))
        }
    }
}

/// Whether the system said what is wrong with a path: it neither hangs, nor was no thread left to
/// ask it with.
fn is_answer(error: &DeviceError) -> bool {
    let DeviceError::Open { source, .. } = error else {
        return false;
    };
    source.kind() != std::io::ErrorKind::WouldBlock
}

/// What a path leads to.
pub async fn place_of(world: World, path: String) -> (String, Result<Place, DeviceError>) {
    let place = world.look_at(&path).await;
    (path, place)
}
