//! Importing a pool at an older state than its newest.
//!
//! Every sync leaves its uberblock in a ring of 32 to 128, so the roots of that many past
//! transaction groups are known. Their blocks are still there as long as nothing was written over
//! them: what is freed in a transaction group is used again two groups later at the earliest
//! (`TXG_DEFER_SIZE`), so the states of the last two groups before the newest are whole after a
//! crash, unless groups without anything to write passed meanwhile (they count as well) or an
//! import (it does not know what waits). Further back, whatever was freed since may be lost.
//!
//! While a RAID-Z vdev is made wider, its sectors are moved over their own old places, so that only
//! states that agree with the newest about how far that has come can be read
//! (`vdev_uberblock_load`, module/zfs/vdev_label.c).
//!
//! A state counts as readable when the whole import works with it read-only and every dataset of it
//! opens. Nothing is written while looking. Read-only, the newer uberblocks stay on disk, and an
//! import without rewind finds them again; for writing, the newer states are given up
//! ([`crate::open::Past`]).
//!
//! Source: module/zfs/spa.c (`spa_load_best`, `spa_load_retry`, `spa_ld_checkpoint_rewind`).

use std::sync::Arc;

use dataset::{DatasetError, ListOptions};
use device::{DeviceError, World};
use format::{ObjectId, Txg, Uberblock};
use object::Zap;
use spa::dtl::distrust_stale;
use spa::{damaged, directory};
use vdev::VdevError;
use vdev::{OpenOptions, best_uberblock};

use crate::core::Core;
use crate::open::{self, Ground, Past, check_known, check_tree};
use crate::{FoundPool, ImportSpec, PoolError, Rewind, Rewound, multihost};

/// Transaction groups for which freed blocks are kept (`TXG_DEFER_SIZE`, include/sys/txg.h). Those
/// in which nothing was written have no uberblock and do not count.
const DEFER_TXGS: usize = 2;

/// A device of the pool that another process, or another pool, has for writing. Spares and cache
/// devices do not count: whose they are the pool's own state tells, and several pools may share a
/// spare.
pub(crate) async fn held<'a>(world: &World, found: &'a FoundPool) -> Option<&'a String> {
    let paths = found.paths.iter();
    for (_, path) in paths.filter(|(guid, _)| !found.standing_by.contains(guid)) {
        if world.opener.is_held(path).await {
            return Some(path);
        }
    }
    None
}

/// Imports a pool at the state that `spec.rewind` asks for.
pub(crate) async fn import(world: &World, spec: ImportSpec) -> Result<Arc<Core>, PoolError> {
    if let Err(error) = open::check_spec(&spec) {
        if matches!(error, PoolError::ForeignHost { .. }) {
            check_not_active(world, &spec).await?;
        }
        return Err(error);
    }
    // Nor is it read while somebody writes it: what it reads may be overwritten, its mounts would
    // cover the writer's.
    if let Some(path) = held(world, &spec.found).await {
        let path = path.clone();
        return Err(VdevError::from(DeviceError::InUse { path }).into());
    }
    let (limit, states) = match spec.rewind {
        Rewind::No => return open::import(world, &spec, None).await,
        Rewind::Checkpoint => return import_checkpoint(world, &spec).await,
        Rewind::Recent => (Txg::new(u64::MAX), DEFER_TXGS + 1),
        Rewind::Extreme => (Txg::new(u64::MAX), usize::MAX),
        Rewind::To(txg) => (txg, usize::MAX),
    };
    let pool = spec.found.name.clone();
    let all = uberblocks(world, &spec).await?;
    let newest = *all
        .first()
        .ok_or_else(|| damaged(&pool, "every uberblock", "none has the right checksum"))?;
    // While a RAID-Z vdev is expanded, what older states have is written over.
    let reflow = |at: &Uberblock| (at.reflow_offset_bytes, at.reflow_state);
    let ground = untrusted(world, &spec).await?;
    let unused = multihost::check_unused(world, &spec, &ground.tree, &newest).await;
    ground.tree.close();
    unused?;
    let spec = ImportSpec {
        unwatched: true,
        ..spec
    };
    let mut tried: Vec<Txg> = Vec::new();
    let mut first_error = None;
    let wanted = all
        .iter()
        .take_while(|uberblock| reflow(uberblock) == reflow(&newest))
        .filter(|uberblock| uberblock.txg <= limit)
        .take(states);
    for uberblock in wanted {
        tried.push(uberblock.txg);
        match attempt(world, &spec, *uberblock).await {
            Ok(core) if spec.read_only => {
                note(&core, uberblock, &newest);
                return Ok(core);
            }
            Ok(core) => {
                core.close();
                let past = Past {
                    uberblock: *uberblock,
                    newest,
                    is_checkpoint: false,
                };
                let past = (*uberblock != newest).then_some(past);
                let core = open::import(world, &spec, past.as_ref()).await?;
                note(&core, uberblock, &newest);
                return Ok(core);
            }
            Err(error) if is_final(&error) => return Err(error),
            Err(error) => {
                tracing::warn!(
                    txg = %uberblock.txg, %error,
                    "a past state of '{pool}' cannot be read"
                );
                first_error.get_or_insert(error);
            }
        }
    }
    Err(PoolError::NoState {
        pool,
        tried: tried.len(),
        oldest: tried.last().map_or(0, |txg| txg.get()),
        newest: tried.first().map_or(0, |txg| txg.get()),
        why: first_error.map_or_else(
            || "there is none that old".to_owned(),
            |error| error.to_string(),
        ),
    })
}

/// Tells a pool that another host has imported from one that it left, for which one may use force:
/// the latter is believed when the devices cannot be read, as an import with force looks again.
///
/// # Errors
/// [`PoolError::RemoteActive`], [`PoolError::NoHostid`].
async fn check_not_active(world: &World, spec: &ImportSpec) -> Result<(), PoolError> {
    let Ok(ground) = untrusted(world, spec).await else {
        return Ok(());
    };
    distrust_stale(&ground.tree).await;
    let newest = best_uberblock(&ground.tree.uberblocks().await, Txg::new(u64::MAX));
    let result = match newest {
        Some(newest) => multihost::check_unused(world, spec, &ground.tree, &newest).await,
        None => Ok(()),
    };
    ground.tree.close();
    result
}

/// Errors that an older state would meet too.
const fn is_final(error: &PoolError) -> bool {
    matches!(
        error,
        PoolError::UnsupportedFeatures { .. }
            | PoolError::UnsupportedForWrite { .. }
            | PoolError::UnsupportedVersion { .. }
            | PoolError::RemoteActive { .. }
            | PoolError::NoHostid { .. }
            | PoolError::BadName { .. }
    )
}

fn note(core: &Core, uberblock: &Uberblock, newest: &Uberblock) {
    if uberblock != newest {
        core.state.lock().rewound = Some(Rewound {
            txg: uberblock.txg,
            timestamp_s: uberblock.timestamp_seconds,
            newest_txg: newest.txg,
            lost_s: newest
                .timestamp_seconds
                .saturating_sub(uberblock.timestamp_seconds),
        });
    }
}

/// Opens the pool read-only at one uberblock and reads the root of every dataset.
async fn attempt(
    world: &World,
    spec: &ImportSpec,
    uberblock: Uberblock,
) -> Result<Arc<Core>, PoolError> {
    let spec = ImportSpec {
        read_only: true,
        // To be written, it is opened anew.
        only_looked_at: !spec.read_only,
        ..spec.clone()
    };
    let past = Past {
        uberblock,
        newest: uberblock,
        is_checkpoint: false,
    };
    let core = open::import(world, &spec, Some(&past)).await?;
    match verify(&core).await {
        Ok(()) => Ok(core),
        Err(error) => {
            core.close();
            Err(error)
        }
    }
}

async fn verify(core: &Core) -> Result<(), PoolError> {
    let everything = ListOptions {
        filesystems: true,
        volumes: true,
        snapshots: true,
        depth: None,
    };
    let datasets = core
        .dsl
        .directories()
        .list(&core.dsl.pool_name(), &everything)
        .await?;
    for info in datasets {
        match core.dsl.open_dataset(&info.name).await {
            Ok(_) => {}
            Err(
                error @ (DatasetError::Zio(_)
                | DatasetError::Object(_)
                | DatasetError::Format(_)
                | DatasetError::Corrupt { .. }),
            ) => return Err(error.into()),
            // A dataset that this release does not open, or whose key is not there, is not damaged.
            Err(error) => {
                tracing::debug!(dataset = info.name, %error, "not looked at");
            }
        }
    }
    Ok(())
}

/// Every distinct uberblock of the pool's devices, the newest first.
async fn uberblocks(world: &World, spec: &ImportSpec) -> Result<Vec<Uberblock>, PoolError> {
    let ground = untrusted(world, spec).await?;
    // Labels do not tell which vdevs were removed, so what looks missing may not be needed.
    let result = match check_known(&spec.found.name, &ground.tree, spec.missing_logs) {
        Ok(_) => {
            distrust_stale(&ground.tree).await;
            Ok(ground.tree.uberblocks().await)
        }
        Err(error) => Err(error),
    };
    ground.tree.close();
    result
}

/// The vdevs as the labels tell, read-only.
pub(crate) async fn untrusted(world: &World, spec: &ImportSpec) -> Result<Ground, PoolError> {
    let root = spec.found.config.require_list("vdev_tree")?;
    let options = OpenOptions {
        read_only: true,
        paths: spec.found.paths.clone(),
        pool_guid: Some(spec.found.guid),
        ..OpenOptions::default()
    };
    Ground::open(world, root, options, [0; 32], spec.cache()).await
}

/// Imports the pool as it was when its checkpoint was made.
async fn import_checkpoint(world: &World, spec: &ImportSpec) -> Result<Arc<Core>, PoolError> {
    let (newest, checkpoint) = read_checkpoint(world, spec).await?;
    let core = attempt(world, spec, checkpoint).await?;
    let core = if spec.read_only {
        core
    } else {
        core.close();
        let past = Past {
            uberblock: checkpoint,
            newest,
            is_checkpoint: true,
        };
        open::import(world, spec, Some(&past)).await?
    };
    note(&core, &checkpoint, &newest);
    Ok(core)
}

/// The newest uberblock, and the one that its MOS keeps as the checkpoint.
async fn read_checkpoint(
    world: &World,
    spec: &ImportSpec,
) -> Result<(Uberblock, Uberblock), PoolError> {
    let pool = &spec.found.name;
    let (newest, config) = open::read_trusted(world, spec, None).await?;
    let ground = open::open_trusted(world, spec, &config).await?;
    let result = async {
        check_tree(pool, &ground.tree, spec.missing_logs)?;
        distrust_stale(&ground.tree).await;
        let mos = open::open_mos(world, &ground, &newest).await?;
        let directory = Zap::hold(&mos, ObjectId::POOL_DIRECTORY).await?;
        Ok::<_, PoolError>(directory.lookup(directory::CHECKPOINT).await?)
    }
    .await;
    ground.tree.close();
    let value = result?.ok_or_else(|| PoolError::NoCheckpoint { pool: pool.clone() })?;
    let checkpoint = crate::tables::decode_checkpoint(&value.to_u64s())?;
    if checkpoint.txg > newest.txg {
        return Err(damaged(
            pool,
            "the checkpoint",
            format!(
                "it is of transaction group {}, after the newest",
                checkpoint.txg
            ),
        ));
    }
    Ok((newest, checkpoint))
}
