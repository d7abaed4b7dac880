//! Devices that come and go below top-level vdevs: `zpool attach`, `replace`, `detach`, `offline`,
//! `online`.

use api::{
    Empty, EventKind, Failure, FailureKind, Refusal, TopologyObstacle, ZpoolAttach, ZpoolDetach,
    ZpoolOffline, ZpoolOnline, ZpoolOnlineReply,
};
use device::{BoxFuture, World};
use pool::{AttachSpec, DeviceUse, LeafSpec, OfflineSpec, PoolError, TopologyError};

use crate::zpool::{Found, find_device, in_use, is_of_pool, leaf, vdev_failure};
use service::pools::OpenPool;
use service::reports;
use service::spares;
use serving::Serving;

/// What was in the way, where it is the shape of the pool.
fn obstacle(error: &PoolError) -> Option<TopologyObstacle> {
    let error = match error {
        PoolError::NotInPool { .. } => return Some(TopologyObstacle::NoSuchDevice),
        PoolError::IsSpare { .. } => return Some(TopologyObstacle::Spare),
        PoolError::IsCache { .. } => return Some(TopologyObstacle::Cache),
        PoolError::TooSmall { .. } => return Some(TopologyObstacle::TooSmall),
        PoolError::CannotRebuild { .. } => return Some(TopologyObstacle::SequentialUnsupported),
        PoolError::RebuildDisabled { .. } => return Some(TopologyObstacle::SequentialDisabled),
        PoolError::ExpansionDisabled { .. } => return Some(TopologyObstacle::ExpansionDisabled),
        PoolError::ResilverUnderWay { .. } => return Some(TopologyObstacle::Resilvering),
        PoolError::RebuildUnderWay { .. } => return Some(TopologyObstacle::Rebuilding),
        PoolError::Topology(error) => error,
        _ => return None,
    };
    Some(match error {
        TopologyError::NoSuchVdev { .. } => TopologyObstacle::NoSuchDevice,
        TopologyError::NotADevice { .. } => TopologyObstacle::NotADevice,
        TopologyError::CannotAttach { .. } => TopologyObstacle::CannotAttach,
        TopologyError::CannotReplace { .. } => TopologyObstacle::CannotReplace,
        TopologyError::OnlyBySpare { .. } => TopologyObstacle::OnlyBySpare,
        TopologyError::IsLog { .. } => TopologyObstacle::LogBySpare,
        TopologyError::OtherDraid { .. } => TopologyObstacle::OtherDraid,
        TopologyError::TooSmall { .. } => TopologyObstacle::TooSmall,
        TopologyError::Ashift { .. } => TopologyObstacle::Ashift,
        TopologyError::Expanding => TopologyObstacle::Expanding,
        TopologyError::NotWell { .. } => TopologyObstacle::NotWell,
        TopologyError::CannotWiden { .. } => TopologyObstacle::CannotAttach,
        TopologyError::CannotDetach { .. } => TopologyObstacle::CannotDetach,
        TopologyError::OnlyCopy { .. } => TopologyObstacle::OnlyCopy,
        _ => TopologyObstacle::Busy,
    })
}

fn failure(doing: String, error: &PoolError) -> Failure {
    let Some(why) = obstacle(error) else {
        return vdev_failure(&doing, error);
    };
    let kind = match why {
        TopologyObstacle::NoSuchDevice => FailureKind::NotFound,
        TopologyObstacle::OnlyCopy
        | TopologyObstacle::Busy
        | TopologyObstacle::Resilvering
        | TopologyObstacle::Rebuilding
        | TopologyObstacle::Expanding
        | TopologyObstacle::NotWell => FailureKind::Busy,
        TopologyObstacle::SequentialUnsupported
        | TopologyObstacle::SequentialDisabled
        | TopologyObstacle::ExpansionDisabled => FailureKind::Unsupported,
        _ => FailureKind::Invalid,
    };
    let message = format!("{doing}: {error}");
    Failure::new(kind, message).with_refusal(Refusal::Topology { doing, why })
}

pub(crate) async fn done(serving: &Serving, open: &OpenPool, command: &str) {
    crate::zpool::log_command(&open.pool, command).await;
    serving.pools.save_cached();
    open.background.poke(&open.pool);
    serving.events.tell_of(&open.pool, EventKind::PoolChanged);
}

/// `zpool attach` and `zpool replace`.
pub fn zpool_attach<'a>(
    serving: &'a Serving,
    call: ZpoolAttach,
) -> BoxFuture<'a, Result<Empty, Failure>> {
    Box::pin(async move {
        let open = serving.pools.get(&call.name)?;
        let _admin = open.admin.lock().await;
        // A distributed spare has a name, and no path.
        let is_spread = call.replace && is_distributed_spare(&open, &call.new_device);
        let mut device = match is_spread {
            true => LeafSpec {
                path: call.new_device.clone(),
                is_file: false,
            },
            false => leaf(&serving.world, &call.new_device).await?,
        };
        // A spare of the pool is known by the path in its list.
        let spare = match call.replace && !is_spread {
            true => waiting_spare(&serving.world, &open, &device.path).await,
            false => None,
        };
        if let Some(path) = &spare {
            device.path.clone_from(path);
        }
        let others = match is_spread {
            true => Vec::new(),
            false => serving.pools.all(),
        };
        for other in others {
            let name = other.pool.name();
            let used = reports::device_paths(&other.pool.status());
            let is_used = is_of_pool(&serving.world, &other.pool, &used, &device.path).await?;
            // Another device under the path of the one that it replaces: the pool knows which that
            // is.
            let is_in_place = call.replace && name == call.name && used.contains(&device.path);
            if is_used && !is_in_place && spare.is_none() {
                let why = format!("{} is part of active pool '{name}'", device.path);
                return Err(in_use(why, true));
            }
        }
        let spec = AttachSpec {
            device,
            ashift: call.ashift,
            force: call.allow_in_use,
            replace: call.replace,
            sequential: call.sequential,
            untouched: false,
        };
        let attached = open.pool.attach(&call.device, &spec).await;
        attached.map_err(|error| {
            let doing = match call.replace {
                true => format!("cannot replace {} with {}", call.device, call.new_device),
                false => format!("cannot attach {} to {}", call.new_device, call.device),
            };
            match &error {
                // What works for a pool is taken from it by no force.
                PoolError::DeviceInUse {
                    path,
                    device_use: DeviceUse::ActivePool { pool },
                } if call.allow_in_use || *pool == call.name => {
                    in_use(format!("{path} is part of active pool '{pool}'"), true)
                }
                _ => failure(doing, &error),
            }
        })?;
        done(serving, &open, &call.command).await;
        Ok(Empty {})
    })
}

/// Whether the pool has a distributed spare of this name.
fn is_distributed_spare(open: &OpenPool, name: &str) -> bool {
    let spares = open.pool.status().spares;
    let mut spread = spares.iter().filter(|spare| spare.kind == "dspare");
    spread.any(|spare| spare.path.as_deref() == Some(name))
}

/// The path by which the pool has this device as a spare that stands by.
async fn waiting_spare(world: &World, open: &OpenPool, path: &str) -> Option<String> {
    let status = open.pool.status();
    let used = reports::tree_paths(&status);
    let listed = status.spares.into_iter().filter_map(|spare| spare.path);
    let waiting: Vec<String> = listed.filter(|listed| !used.contains(listed)).collect();
    match find_device(world, &waiting, path).await {
        Found::At(path) => Some(path),
        Found::Nowhere | Found::Unsure => None,
    }
}

/// `zpool detach`.
pub fn zpool_detach<'a>(
    serving: &'a Serving,
    call: ZpoolDetach,
) -> BoxFuture<'a, Result<Empty, Failure>> {
    Box::pin(async move {
        let open = serving.pools.get(&call.name)?;
        let _admin = open.admin.lock().await;
        let before = spares::guids(&open.pool);
        let detached = open.pool.detach(&call.device).await;
        detached.map_err(|error| failure(format!("cannot detach {}", call.device), &error))?;
        spares::remove_from_others(&serving.pools, &open, &before).await;
        done(serving, &open, &call.command).await;
        Ok(Empty {})
    })
}

/// `zpool offline`.
pub fn zpool_offline<'a>(
    serving: &'a Serving,
    call: ZpoolOffline,
) -> BoxFuture<'a, Result<Empty, Failure>> {
    Box::pin(async move {
        let open = serving.pools.get(&call.name)?;
        let _admin = open.admin.lock().await;
        let spec = OfflineSpec {
            temporary: call.temporary,
            fault: call.fault,
        };
        let doing = match call.fault {
            true => format!("cannot fault {}", call.device),
            false => format!("cannot offline {}", call.device),
        };
        let offline = open.pool.offline(&call.device, spec).await;
        offline.map_err(|error| failure(doing, &error))?;
        done(serving, &open, &call.command).await;
        Ok(Empty {})
    })
}

/// `zpool online`.
pub fn zpool_online<'a>(
    serving: &'a Serving,
    call: ZpoolOnline,
) -> BoxFuture<'a, Result<ZpoolOnlineReply, Failure>> {
    Box::pin(async move {
        let open = serving.pools.get(&call.name)?;
        let _admin = open.admin.lock().await;
        let online = open.pool.online(&call.device, call.expand).await;
        let online = online.map_err(|error| {
            let failure = failure(format!("cannot online {}", call.device), &error);
            match failure.kind {
                // In the words of `zpool_do_online` (cmd/zpool/zpool_main.c).
                FailureKind::NotFound => {
                    let (device, pool) = (&call.device, open.pool.name());
                    let message = format!("couldn't find device \"{device}\" in pool \"{pool}\"");
                    Failure::new(FailureKind::NotFound, message)
                }
                _ => failure,
            }
        })?;
        done(serving, &open, &call.command).await;
        Ok(ZpoolOnlineReply {
            state: reports::state(online.state),
            was_usable: online.was_usable,
        })
    })
}
