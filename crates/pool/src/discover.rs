//! Finding pools: read the labels of devices and put the pools' configurations together.
//!
//! A label tells only about its own top-level vdev; a pool's configuration is put together of the
//! newest label of each top-level vdev. What is found here is *untrusted*: it is good enough to
//! read the MOS, whose own copy of the configuration then replaces it (spa.c
//! `spa_ld_trusted_config`). Source: lib/libzutil/zutil_import.c (`get_configs`, `fix_paths`).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use device::{Device, World};
use format::{Guid, NvList, NvValue, Txg, Uberblock};
use futures::StreamExt;
use spa::config;

use crate::{PoolError, PoolHealth};

/// Labels read at the same time.
const READS_IN_FLIGHT: usize = 16;

/// Where to look.
#[derive(Debug, Clone, Default)]
pub struct ScanSpec {
    /// Devices or files (`-d DEVICE`) and directories (`-d DIR`), in order.
    pub paths: Vec<String>,
    /// Only this pool.
    pub guid: Option<Guid>,
    /// Only pools of this name.
    pub name: Option<String>,
}

/// What a pool's labels say about its last use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FoundState {
    /// In use, or its host went down.
    Active,
    /// Exported.
    Exported,
    /// Destroyed.
    Destroyed,
}

/// A pool that can be imported.
#[derive(Debug, Clone)]
pub struct FoundPool {
    /// Name in the labels.
    pub name: String,
    /// Identity.
    pub guid: Guid,
    /// How it was left.
    pub state: FoundState,
    /// Configuration put together of all labels, with today's paths: a root vdev over the top-level
    /// vdevs.
    pub config: NvList,
    /// The newest transaction group of any label's configuration.
    pub config_txg: Txg,
    /// The newest uberblock's transaction group.
    pub uberblock_txg: Txg,
    /// The newest uberblock's time, in seconds since the epoch.
    pub timestamp_s: u64,
    /// Host that used it last.
    pub hostid: u64,
    /// Its name.
    pub hostname: String,
    /// Comment.
    pub comment: Option<String>,
    /// Whether enough devices are there.
    pub health: PoolHealth,
    /// Devices that are missing, as their labels' paths or guids.
    pub missing: Vec<String>,
    /// Path where each leaf was found; and spares and cache devices of any pool.
    pub paths: BTreeMap<Guid, String>,
    /// Those of `paths` that stand by, as spares or cache devices of any pool: another one may have
    /// them, and this one does without.
    pub standing_by: BTreeSet<Guid>,
}

/// The newest label of one device.
#[derive(Debug, Clone)]
pub(crate) struct DeviceLabel {
    pub(crate) path: String,
    pub(crate) config: NvList,
    /// A label of the same device that says another pool: one of the two is from before the pool's
    /// guid was changed.
    pub(crate) other: Option<NvList>,
    pub(crate) uberblock: Option<Uberblock>,
}

/// Reads labels below `spec.paths` and puts pools together.
///
/// # Errors
/// None for devices that cannot be read: they hold no pool then.
pub async fn scan(world: &World, spec: &ScanSpec) -> Result<Vec<FoundPool>, PoolError> {
    let mut paths = Vec::new();
    let mut seen = BTreeSet::new();
    for path in &spec.paths {
        for candidate in candidates(world, path).await {
            if seen.insert(candidate.clone()) {
                paths.push(candidate);
            }
        }
    }
    let labels: Vec<Option<DeviceLabel>> = futures::stream::iter(paths)
        .map(|path| {
            let is_named = spec.paths.contains(&path);
            read_device(world, path, is_named)
        })
        .buffered(READS_IN_FLIGHT)
        .collect()
        .await;
    let mut pools = assemble(labels.into_iter().flatten().collect());
    pools.retain(|pool| {
        spec.guid.is_none_or(|guid| pool.guid == guid)
            && spec.name.as_ref().is_none_or(|name| &pool.name == name)
    });
    Ok(pools)
}

/// A directory's files, in order; anything else (also a name that only the opener knows) as it is.
async fn candidates(world: &World, path: &str) -> Vec<String> {
    match world.storage_in(path).await {
        Ok(Some(files)) => files,
        Ok(None) => vec![path.to_owned()],
        Err(error) => {
            tracing::warn!(path, %error, "a directory cannot be searched");
            Vec::new()
        }
    }
}

async fn read_device(world: &World, path: String, is_named: bool) -> Option<DeviceLabel> {
    let device = match vdev::open_patiently(world, &path, true).await {
        Ok(device) => device,
        Err(error) => {
            // Who names a device wonders why its pool is not found.
            if is_named {
                tracing::warn!(path, %error, "a device cannot be looked at");
            }
            return None;
        }
    };
    read_label(&device, &path).await
}

/// The newest label of an open device.
pub(crate) async fn read_label(device: &Arc<dyn Device>, path: &str) -> Option<DeviceLabel> {
    let any = Txg::new(u64::MAX);
    let labels = vdev::read_labels(&**device).await.ok()?;
    let config = labels.config(any)?.clone();
    let uberblock = labels.best_uberblock(any);
    let pool = config.u64("pool_guid");
    let all = labels.labels.iter();
    let other = all
        .filter_map(|label| label.config.as_ref()?.u64("pool_guid").map(Guid::new))
        .find(|other| Some(other.get()) != pool)
        .and_then(|other| labels.config_in(other))
        .filter(|other| other.u64("pool_guid") != pool)
        .cloned();
    Some(DeviceLabel {
        path: path.to_owned(),
        config,
        other,
        uberblock,
    })
}

/// A txg that changes the pool's guid writes half of the labels, then uberblocks, then the other
/// half. Where a crash came before any of the uberblocks, the pool has its old guid still, and only
/// the old labels tell of it.
fn forget_unfinished_guids(labels: &mut [DeviceLabel]) {
    let changes: BTreeSet<(u64, u64)> = labels
        .iter()
        .filter_map(|label| {
            let guid = |config: &NvList| config.u64("pool_guid");
            Some((guid(&label.config)?, guid(label.other.as_ref()?)?))
        })
        .collect();
    for (new, old) in changes {
        let is_of_both = |label: &&DeviceLabel| {
            let guid = label.config.u64("pool_guid");
            guid == Some(new) || guid == Some(old)
        };
        let synced = labels
            .iter()
            .filter(is_of_both)
            .filter_map(|label| label.uberblock.as_ref())
            .map(|uberblock| uberblock.txg.get())
            .max();
        for label in &mut *labels {
            let is_newer = Some(label_txg(label)) > synced;
            if is_newer
                && label.config.u64("pool_guid") == Some(new)
                && let Some(other) = label.other.take()
            {
                label.config = other;
            }
        }
    }
}

/// Puts labels together to pools, ordered by name.
pub(crate) fn assemble(mut labels: Vec<DeviceLabel>) -> Vec<FoundPool> {
    forget_unfinished_guids(&mut labels);
    let mut pools: BTreeMap<Guid, Vec<DeviceLabel>> = BTreeMap::new();
    // Spares and cache devices: which pool's they are, only the pools know.
    let mut auxiliary = BTreeMap::new();
    for label in labels {
        let (Some(guid), Some(state)) = (label.config.u64("pool_guid"), label.config.u64("state"))
        else {
            if let Some(guid) = label.config.u64("guid") {
                auxiliary.insert(Guid::new(guid), label.path);
            }
            continue;
        };
        if state <= config::STATE_DESTROYED
            && label.config.u64("txg").is_some_and(|txg| txg != 0)
            && label.config.list("vdev_tree").is_some()
        {
            pools.entry(Guid::new(guid)).or_default().push(label);
        }
    }
    let mut found: Vec<FoundPool> = pools
        .into_iter()
        .filter_map(|(guid, labels)| assemble_pool(guid, &labels))
        .collect();
    for pool in &mut found {
        for (guid, path) in &auxiliary {
            pool.paths.entry(*guid).or_insert_with(|| {
                pool.standing_by.insert(*guid);
                path.clone()
            });
        }
    }
    found.sort_by(|a, b| (&a.name, a.guid).cmp(&(&b.name, b.guid)));
    found
}

fn label_txg(label: &DeviceLabel) -> u64 {
    label.config.u64("txg").unwrap_or(0)
}

fn assemble_pool(guid: Guid, labels: &[DeviceLabel]) -> Option<FoundPool> {
    let newest = labels.iter().max_by_key(|label| label_txg(label))?;
    let uberblock = labels
        .iter()
        .filter_map(|label| label.uberblock.as_ref())
        .max_by_key(|uberblock| uberblock.recency());
    let paths: BTreeMap<Guid, String> = labels
        .iter()
        .rev()
        .filter_map(|label| Some((Guid::new(label.config.u64("guid")?), label.path.clone())))
        .collect();

    // The newest label of each top-level vdev.
    let mut tops: BTreeMap<u64, &DeviceLabel> = BTreeMap::new();
    for label in labels {
        let Some(id) = label
            .config
            .list("vdev_tree")
            .and_then(|tree| tree.u64("id"))
        else {
            continue;
        };
        let best = tops.entry(id).or_insert(label);
        if label_txg(label) > label_txg(best) {
            *best = label;
        }
    }
    let count = newest
        .config
        .u64("vdev_children")
        .unwrap_or_else(|| tops.keys().next_back().map_or(0, |last| last + 1))
        .min(config::TOPS_MAX);
    let holes = newest.config.u64s("hole_array").unwrap_or(&[]);
    let mut children = Vec::new();
    for id in 0..count {
        let child = match tops
            .get(&id)
            .and_then(|label| label.config.list("vdev_tree"))
        {
            _ if holes.contains(&id) => placeholder("hole", id),
            Some(tree) => {
                let mut tree = tree.clone();
                config::fix_paths(&mut tree, &paths);
                tree
            }
            None => placeholder("missing", id),
        };
        children.push(child);
    }
    let mut missing = Vec::new();
    // Where vdevs were removed, what looks missing may be one of them; an import will tell.
    let removals = newest
        .config
        .list("features_for_read")
        .is_some_and(|features| features.contains("com.delphix:device_removal"));
    let counted: Vec<&NvList> = children
        .iter()
        .filter(|child| !(removals && child.string("type") == Some("missing")))
        .collect();
    for child in &counted {
        config::missing_leaves(child, &paths, &mut missing);
    }
    let works = counted
        .iter()
        .all(|child| config::redundancy_left(child, &paths) > 0);
    let health = if works && missing.is_empty() {
        PoolHealth::Online
    } else if works {
        PoolHealth::Degraded
    } else {
        PoolHealth::Faulted
    };

    let mut tree = NvList::new();
    tree.set("type", "root")
        .set("id", 0u64)
        .set("guid", guid.get());
    tree.set("children", NvValue::ListArray(children));
    let mut found = newest.config.clone();
    found.remove("top_guid");
    found.remove("guid");
    found.set("vdev_tree", NvValue::List(tree));
    Some(FoundPool {
        name: newest.config.string("name")?.to_owned(),
        guid,
        state: match newest.config.u64("state")? {
            config::STATE_EXPORTED => FoundState::Exported,
            config::STATE_DESTROYED => FoundState::Destroyed,
            _ => FoundState::Active,
        },
        config_txg: Txg::new(label_txg(newest)),
        uberblock_txg: uberblock.map_or(Txg::ZERO, |uberblock| uberblock.txg),
        timestamp_s: uberblock.map_or(0, |uberblock| uberblock.timestamp_seconds),
        hostid: newest.config.u64("hostid").unwrap_or(0),
        hostname: newest.config.string("hostname").unwrap_or("").to_owned(),
        comment: newest.config.string("comment").map(str::to_owned),
        health,
        missing,
        paths,
        standing_by: BTreeSet::new(),
        config: found,
    })
}

fn placeholder(kind: &str, id: u64) -> NvList {
    let mut list = NvList::new();
    list.set("type", kind).set("id", id).set("guid", 0u64);
    list
}

/// What to import from a cached configuration, its devices' labels read afresh.
///
/// # Errors
/// [`PoolError::MissingDevices`] when no device of the pool can be found.
pub async fn found_in_cache(world: &World, config: &NvList) -> Result<FoundPool, PoolError> {
    let name = config.require_string("name")?.to_owned();
    let guid = Guid::new(config.require_u64("pool_guid")?);
    let mut paths = Vec::new();
    config::for_each(config.require_list("vdev_tree")?, &mut |vdev| {
        paths.extend(vdev.string("path").map(str::to_owned));
    });
    let spec = ScanSpec {
        paths,
        guid: Some(guid),
        name: None,
    };
    let mut found = scan(world, &spec).await?;
    found.pop().ok_or(PoolError::MissingDevices {
        pool: name,
        why: "none of its devices could be found".into(),
    })
}
