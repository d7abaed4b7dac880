//! Changes to what pools are made of: `zpool add`, `remove`, `reguid`, `labelclear`, `upgrade`.

use api::{
    DeviceUse, Empty, EventKind, Failure, FailureKind, PoolUpgrade, Refusal, RemoveAction,
    SupportedFeature, ZpoolAdd, ZpoolAddReply, ZpoolLabelClear, ZpoolReguid, ZpoolRemove,
    ZpoolRemoveReply, ZpoolUpgrade, ZpoolUpgradeReply,
};
use device::{BoxFuture, World};
use format::{Guid, Uberblock};
use pool::AddSpec;

use crate::look;
use crate::replication;
use crate::zpool::{described, is_of_pool, layouts, vdev_failure};
use service::compatibility::Compatibility;
use service::error::from_pool;
use service::pools::OpenPool;
use service::reports;
use serving::Serving;

/// `zpool add`.
pub fn zpool_add<'a>(
    serving: &'a Serving,
    call: ZpoolAdd,
) -> BoxFuture<'a, Result<ZpoolAddReply, Failure>> {
    Box::pin(async move {
        let open = serving.pools.get(&call.name)?;
        let _admin = open.admin.lock().await;
        let vdevs = layouts(&serving.world, &call.vdevs).await?;
        if !call.allow_replication_mismatch {
            let volumes = serving.volumes.file("");
            replication::check(&open.pool.status().root.children, &vdevs, &volumes)?;
        }
        crate::zpool::refuse_open_devices(serving, &vdevs, call.allow_in_use).await?;
        let tree = reports::pool(&open.pool).tree;
        let stored = open.pool.properties().get("ashift");
        let stored = stored.and_then(|ashift| ashift.value.parse().ok());
        let ashift = call.ashift.map(u32::from).or(stored).unwrap_or(0);
        let warnings = look::at_vdevs(&serving.world, Some(&tree), &vdevs, ashift).await;
        if call.dry_run {
            let layout = described(&call.vdevs, &vdevs);
            return Ok(ZpoolAddReply {
                tree,
                layout,
                warnings,
            });
        }
        let spec = AddSpec {
            vdevs,
            ashift: call.ashift,
            force: call.allow_in_use,
            allow_ashift_mismatch: call.allow_ashift_mismatch,
        };
        open.pool
            .add(&spec)
            .await
            .map_err(|error| vdev_failure(&format!("cannot add to '{}'", call.name), &error))?;
        crate::zpool::log_command(&open.pool, &call.command).await;
        serving.pools.save_cached();
        serving.events.tell_of(&open.pool, EventKind::PoolChanged);
        Ok(ZpoolAddReply {
            tree,
            layout: Vec::new(),
            warnings,
        })
    })
}

/// `zpool remove`.
pub fn zpool_remove<'a>(
    serving: &'a Serving,
    call: ZpoolRemove,
) -> BoxFuture<'a, Result<ZpoolRemoveReply, Failure>> {
    Box::pin(async move {
        let open = serving.pools.get(&call.name)?;
        let mut reply = ZpoolRemoveReply::default();
        if call.action == RemoveAction::Estimate {
            for device in &call.devices {
                let bytes = pool::removal_memory(&open.pool, device);
                let bytes = bytes.map_err(|error| from_pool("cannot remove", &error))?;
                reply.mapping_bytes.push(bytes);
            }
            return Ok(reply);
        }
        let _admin = open.admin.lock().await;
        let mut first = None;
        if call.action == RemoveAction::Stop
            && let Err(error) = pool::stop_removal(&open.pool).await
        {
            first = Some(from_pool("cannot cancel removal", &error));
        }
        for device in &call.devices {
            if let Err(error) = open.pool.remove(device).await {
                let doing = format!("cannot remove {device}");
                first = first.or(Some(from_pool(&doing, &error)));
            }
        }
        serving.pools.save_cached();
        serving.events.tell_of(&open.pool, EventKind::PoolChanged);
        // There is a job before anybody waits for it.
        open.background.poke(&open.pool);
        if let Some(failure) = first {
            return Err(failure);
        }
        crate::zpool::log_command(&open.pool, &call.command).await;
        Ok(reply)
    })
}

/// A guid for a pool.
fn new_guid(world: &World) -> u64 {
    loop {
        match world.random.next_u64() {
            0 => {}
            guid => return guid,
        }
    }
}

/// `zpool reguid`.
pub fn zpool_reguid<'a>(
    serving: &'a Serving,
    call: ZpoolReguid,
) -> BoxFuture<'a, Result<Empty, Failure>> {
    Box::pin(async move {
        let open = serving.pools.get(&call.name)?;
        let _admin = open.admin.lock().await;
        let doing = format!("cannot reguid '{}'", call.name);
        if let Some(guid) = call.guid.map(|guid| guid.0) {
            let mut others = serving.pools.all().into_iter();
            if guid == 0 || others.any(|other| other.pool.guid().get() == guid) {
                let message = format!(
                    "{doing}: invalid argument for this pool operation\n\
                     {guid} cannot be its GUID; choose another"
                );
                return Err(Failure::new(FailureKind::Invalid, message));
            }
        }
        let guid = call
            .guid
            .map_or_else(|| new_guid(&serving.world), |guid| guid.0);
        // Wherever a crash stops it, the next start finds the pool by the guid that it has then.
        *open.next_guid.lock() = Some(guid);
        serving.pools.save_cached();
        let before = open.pool.guid().get();
        let changed = open.pool.change_guid(Guid::new(guid)).await;
        if changed.is_ok() {
            serving.owners.pool_changed(before, guid);
            crate::zpool::log_command(&open.pool, &call.command).await;
        }
        *open.next_guid.lock() = None;
        serving.pools.save_cached();
        changed.map_err(|error| from_pool(&doing, &error))?;
        serving.events.tell_of(&open.pool, EventKind::PoolChanged);
        Ok(Empty {})
    })
}

/// `zpool labelclear`.
pub fn zpool_labelclear<'a>(
    serving: &'a Serving,
    call: &'a ZpoolLabelClear,
) -> BoxFuture<'a, Result<Empty, Failure>> {
    Box::pin(async move {
        for open in serving.pools.all() {
            let used = reports::device_paths(&open.pool.status());
            if is_of_pool(&serving.world, &open.pool, &used, &call.device).await? {
                let name = open.pool.name();
                let message = format!(
                    "{} is a member (ACTIVE) of pool \"{name}\"\nexport or destroy the pool first, \
                 or remove the device",
                    call.device
                );
                return Err(Failure::new(FailureKind::Busy, message));
            }
        }
        pool::clear_label(&serving.world, &call.device, call.force)
            .await
            .map_err(|error| match &error {
                pool::PoolError::DeviceInUse { path, device_use } => {
                    let message =
                        format!("{path} {device_use}; force clears its label all the same");
                    Failure::new(FailureKind::Busy, message).with_refusal(Refusal::Label {
                        path: path.clone(),
                        device_use: match device_use.clone() {
                            pool::DeviceUse::ActivePool { pool } => DeviceUse::ActivePool { pool },
                            pool::DeviceUse::ExportedPool { pool } => {
                                DeviceUse::ExportedPool { pool }
                            }
                            pool::DeviceUse::Other { what } => DeviceUse::Other { what },
                        },
                    })
                }
                // In the words of `zpool_do_labelclear` (cmd/zpool/zpool_main.c).
                pool::PoolError::Device(device::DeviceError::Open { source, .. }) => {
                    let message = format!("failed to open {}: {source}", call.device);
                    Failure::new(from_pool("", &error).kind, message)
                }
                _ => from_pool(
                    &format!("failed to clear label for {}", call.device),
                    &error,
                ),
            })?;
        Ok(Empty {})
    })
}

/// Raises the version of a pool to one of before features, if it is lower.
async fn raise_version(
    serving: &Serving,
    call: &ZpoolUpgrade,
    open: &OpenPool,
    (before, version): (u64, u64),
    may_change: bool,
) -> Result<(), Failure> {
    let cannot = format!("cannot upgrade '{}'", open.pool.name());
    if !(1..=Uberblock::VERSION_BEFORE_FEATURES).contains(&version) {
        let what = format!("{cannot}: there is no version {version} of before features");
        return Err(Failure::new(FailureKind::Invalid, what));
    }
    if before >= version {
        return Ok(());
    }
    if !may_change {
        return Err(Failure::denied(&cannot));
    }
    let _admin = open.admin.lock().await;
    let raised = open.pool.properties().raise_version(version).await;
    raised.map_err(|error| from_pool(&cannot, &error))?;
    crate::zpool::log_command(&open.pool, &call.command).await;
    serving.events.tell_of(&open.pool, EventKind::PoolChanged);
    Ok(())
}

/// `zpool upgrade`; who may not change anything is told so where something is left to be done.
pub fn zpool_upgrade<'a>(
    serving: &'a Serving,
    call: &'a ZpoolUpgrade,
    may_change: bool,
) -> BoxFuture<'a, Result<ZpoolUpgradeReply, Failure>> {
    Box::pin(async move {
        let supported = pool::supported_features();
        let mut reply = ZpoolUpgradeReply {
            supported: supported
                .into_iter()
                .map(|feature| SupportedFeature {
                    name: feature.name.to_owned(),
                    is_read_only_compatible: feature.read_only_compatible,
                    is_left_out_of_upgrades: feature.no_upgrade,
                })
                .collect(),
            ..ZpoolUpgradeReply::default()
        };
        let (pools, absent) = serving.pools.found(&call.names)?;
        reply.absent = absent;
        for open in pools {
            let name = open.pool.name();
            let value =
                |property: &str| open.pool.properties().get(property).map(|prop| prop.value);
            let before = open.pool.status().version;
            let features = if call.dry_run {
                open.pool.properties().disabled_features()
            } else if let Some(version) = call.version {
                raise_version(serving, call, &open, (before, version), may_change).await?;
                open.pool.properties().disabled_features()
            } else {
                let _admin = open.admin.lock().await;
                let allowed = Compatibility::load(&value("compatibility").unwrap_or_default())?;
                let missing = open.pool.properties().disabled_features();
                let is_complete = before == Uberblock::VERSION_FEATURES
                    && !missing.iter().any(|feature| {
                        allowed.allows(feature) && !pool::is_left_out_of_upgrades(feature)
                    });
                if !may_change && !is_complete {
                    return Err(Failure::denied(&format!("cannot upgrade '{name}'")));
                }
                let enabled = open
                    .pool
                    .properties()
                    .upgrade(&|feature| allowed.allows(feature))
                    .await
                    .map_err(|error| from_pool(&format!("cannot upgrade '{name}'"), &error))?;
                if !enabled.is_empty() || open.pool.status().version != before {
                    crate::zpool::log_command(&open.pool, &call.command).await;
                    serving.events.tell_of(&open.pool, EventKind::PoolChanged);
                }
                enabled
            };
            let version = open.pool.status().version;
            reply.pools.push(PoolUpgrade {
                name,
                version,
                upgraded_from: (version != before).then_some(before),
                features,
            });
        }
        Ok(reply)
    })
}
