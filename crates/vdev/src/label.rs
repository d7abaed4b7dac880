//! Labels: reading them, and writing them in the order that survives a crash at any point.
//!
//! For the layout see `format::label`. Order of a sync (`vdev_config_sync`,
//! module/zfs/vdev_label.c):
//!
//! 1. flush: every block of the txg is on disk;
//! 2. configurations into labels 0 and 2 of every leaf, flush;
//! 3. the uberblock into its slot of all four labels, flush;
//! 4. configurations into labels 1 and 3, flush.
//!
//! A crash before 3 leaves the old uberblock as the newest, and labels 1 and 3 describe it; a crash
//! in or after 3 leaves the new one, which labels 0 and 2 describe. An uberblock slot that was torn
//! fails its checksum and counts as not there.
//!
//! A device has four labels so that it can lose some. One of a pair is enough in steps 2 and 4, and
//! one of the four in step 3 (`vdev_label_sync_done`, `vdev_uberblock_sync_done`).
//!
//! A pool does without its log vdevs, so a group is on disk only when a vdev with data has its
//! uberblock; logs get one when the configuration is written (`spa_sync_rewrite_vdev_config`,
//! module/zfs/spa.c). Else an import without the logs would find an older state.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use codec::checksum::{label_verifier, seal, verify_embedded};
use device::{Device, DeviceError};
use format::{
    Checksum, Endian, Guid, LABEL_BOOT_ENV_BYTES, LABEL_BOOT_ENV_OFFSET, LABEL_BYTES,
    LABEL_CONFIG_BYTES, LABEL_CONFIG_OFFSET, LABEL_COUNT, LABEL_UBERBLOCK_OFFSET,
    LABEL_UBERBLOCK_RING_BYTES, NvList, Txg, Uberblock, VdevId, decode_label_config,
    encode_label_config, label_offset, uberblock_shift, uberblock_slot, uberblock_slot_offset,
    uberblock_slots,
};
use futures::future::join_all;

use super::leaf::Leaf;
use super::node::Vdev;
use super::tree::VdevTree;
use super::tree::opening::is_not_told_yet;
use crate::error::VdevError;
use crate::io::LeafError;

/// Top-level vdevs that get the uberblock when no configuration changes (`SPA_SYNC_MIN_VDEVS`).
const UBERBLOCK_TOPS: usize = 3;
/// A part of a ring that is read by itself: the largest slot.
const RING_PART_BYTES: usize = 8 << 10;

/// One of a leaf's four labels, as far as its checksums hold.
#[derive(Debug, Clone, Default)]
pub struct Label {
    /// The configuration.
    pub config: Option<NvList>,
    /// Uberblocks in its ring, in order of slots.
    pub uberblocks: Vec<Uberblock>,
}

/// All labels of a device.
#[derive(Debug, Clone, Default)]
pub struct Labels {
    /// The four labels.
    pub labels: [Label; LABEL_COUNT],
}

impl Labels {
    /// The configuration to use: of those not newer than `txg_max`, the one of the highest txg; one
    /// without a txg (spare, cache, not yet part of a pool) only when there is no other
    /// (`vdev_label_read_config`).
    pub fn config(&self, txg_max: Txg) -> Option<&NvList> {
        let configs = || self.labels.iter().filter_map(|label| label.config.as_ref());
        let txg = |config: &NvList| config.u64("txg").unwrap_or(0);
        // The first one among equals, as zdb and zpool take it.
        configs()
            .filter(|config| (1..=txg_max.get()).contains(&txg(config)))
            .fold(None, |best: Option<&NvList>, config| match best {
                Some(best) if txg(best) >= txg(config) => Some(best),
                _ => Some(config),
            })
            .or_else(|| configs().find(|config| txg(config) == 0))
    }

    /// The configuration to use for a device of `pool`: the newest one. Where that is of another
    /// pool, but others of the very same device are of `pool`, those: a crash may have come between
    /// labels when the pool's guid was changed.
    pub fn config_in(&self, pool: Guid) -> Option<&NvList> {
        let newest = self.config(Txg::new(u64::MAX))?;
        let is_of_pool = |config: &NvList| config.u64("pool_guid") == Some(pool.get());
        if is_of_pool(newest) {
            return Some(newest);
        }
        let configs = self.labels.iter().filter_map(|label| label.config.as_ref());
        configs
            .filter(|config| is_of_pool(config) && config.u64("guid") == newest.u64("guid"))
            .max_by_key(|config| config.u64("txg"))
            .or(Some(newest))
    }

    /// Whether some label says that the device is this one of `pool`. Of the newest that need not
    /// be so: a crash may have come between labels when the device took over its mirror's guid
    /// (`vdev_validate`, module/zfs/vdev.c).
    pub(crate) fn has_been(&self, guid: Guid, pool: Option<Guid>) -> bool {
        let mut configs = self.labels.iter().filter_map(|label| label.config.as_ref());
        configs.any(|config| {
            let is_of_pool = pool.is_none_or(|pool| config.u64("pool_guid") == Some(pool.get()));
            is_of_pool && config.u64("guid") == Some(guid.get())
        })
    }

    /// Whether some label says that the device was split off `pool` (`vdev_validate`). Then it is
    /// none of that pool's any more, although a crash may have left others that say it is.
    pub(crate) fn was_split_from(&self, pool: Guid) -> bool {
        let mut configs = self.labels.iter().filter_map(|label| label.config.as_ref());
        configs.any(|config| config.u64("split_guid") == Some(pool.get()))
    }

    /// The newest uberblock, of those not newer than `txg_max`.
    pub fn best_uberblock(&self, txg_max: Txg) -> Option<Uberblock> {
        best_uberblock(
            self.labels.iter().flat_map(|label| &label.uberblocks),
            txg_max,
        )
    }
}

/// The pool's state among uberblocks: the newest one not newer than `txg_max`.
pub fn best_uberblock<'a>(
    uberblocks: impl IntoIterator<Item = &'a Uberblock>,
    txg_max: Txg,
) -> Option<Uberblock> {
    uberblocks
        .into_iter()
        .filter(|uberblock| uberblock.txg <= txg_max)
        .max_by_key(|uberblock| uberblock.recency())
        .copied()
}

/// Reads all labels of a device; what is damaged or not there is left out. A device without any
/// label gives four empty ones.
///
/// # Errors
/// [`VdevError::Device`] when nothing at all could be read, [`VdevError::TooSmall`].
pub async fn read_labels(device: &dyn Device) -> Result<Labels, VdevError> {
    let size = device.size_bytes();
    if label_offset(size, 0).is_none() {
        return Err(VdevError::TooSmall {
            path: device.path().to_owned(),
            size_bytes: size,
            needed_bytes: format::MIN_DEVICE_BYTES,
        });
    }
    let reads = (0..LABEL_COUNT).map(|index| async move {
        let start = label_offset(size, index).expect("the size was checked");
        let data = match device.read(start, LABEL_BYTES as usize).await {
            Err(error @ DeviceError::Io { .. }) => match read_parts(device, start).await {
                Some(parts) => Ok(parts),
                None => Err(error),
            },
            whole => whole,
        };
        (start, data)
    });
    let results = join_all(reads).await;
    let mut out = Labels::default();
    let mut error = None;
    let mut raw = Vec::new();
    for (index, (start, data)) in results.into_iter().enumerate() {
        match data {
            Ok(data) => {
                out.labels[index].config = decode_config(start, &data);
                raw.push((index, start, data));
            }
            Err(failure) => error = Some(failure),
        }
    }
    if let (Some(error), true) = (error, raw.is_empty()) {
        return Err(error.into());
    }
    // The slots' size comes from the configuration; any label's will do.
    let ashift = out
        .labels
        .iter()
        .filter_map(|label| label.config.as_ref())
        .find_map(|config| config.list("vdev_tree")?.u64("ashift"));
    for (index, start, data) in raw {
        out.labels[index].uberblocks = decode_ring(start, &data, ashift);
    }
    Ok(out)
}

/// What can be read of a label with bad sectors: its configuration, and parts of its ring. The rest
/// is zeros, which no checksum agrees with. `None` when nothing can be read.
async fn read_parts(device: &dyn Device, start: u64) -> Option<Bytes> {
    let config = LABEL_CONFIG_OFFSET as usize;
    let ring = LABEL_UBERBLOCK_OFFSET as usize;
    let slots = (ring..ring + LABEL_UBERBLOCK_RING_BYTES as usize).step_by(RING_PART_BYTES);
    let parts = slots.map(|at| (at, RING_PART_BYTES));
    let mut label = vec![0; LABEL_BYTES as usize];
    let mut is_any = false;
    for (at, length) in std::iter::once((config, LABEL_CONFIG_BYTES)).chain(parts) {
        if let Ok(data) = device.read(start + at as u64, length).await {
            label[at..at + length].copy_from_slice(&data);
            is_any = true;
        }
    }
    is_any.then(|| label.into())
}

fn decode_config(start: u64, label: &[u8]) -> Option<NvList> {
    let from = LABEL_CONFIG_OFFSET as usize;
    let bytes = label.get(from..from + LABEL_CONFIG_BYTES)?;
    let verifier = label_verifier(start + LABEL_CONFIG_OFFSET);
    verify_embedded(Checksum::Label, &verifier, bytes).ok()?;
    decode_label_config(bytes).ok()
}

fn decode_ring(start: u64, label: &[u8], ashift: Option<u64>) -> Vec<Uberblock> {
    let shifts = match ashift {
        Some(ashift) => {
            let shift = uberblock_shift(ashift.min(63) as u32);
            shift..=shift
        }
        // Without a configuration every size is tried; a slot's checksum covers its length.
        None => 10..=13,
    };
    let mut out: Vec<Uberblock> = Vec::new();
    for shift in shifts {
        let slot_bytes = 1usize << shift;
        let ring = LABEL_UBERBLOCK_OFFSET as usize;
        for at in (ring..ring + LABEL_UBERBLOCK_RING_BYTES as usize).step_by(slot_bytes) {
            let Some(slot) = label.get(at..at + slot_bytes) else {
                break;
            };
            // Cheap test first: most slots of a new pool are empty.
            let Ok(uberblock) = Uberblock::decode(slot) else {
                continue;
            };
            let verifier = label_verifier(start + at as u64);
            if verify_embedded(Checksum::Label, &verifier, slot).is_ok() {
                out.push(uberblock);
            }
        }
    }
    out
}

/// A device that heartbeats can be written to.
#[derive(Debug, Clone)]
pub struct HeartbeatTarget {
    /// Its top-level vdev.
    pub top: VdevId,
    ashift: u32,
    leaf: Arc<Leaf>,
}

impl HeartbeatTarget {
    /// The device's guid.
    pub fn guid(&self) -> Guid {
        self.leaf.guid()
    }

    /// Writes a heartbeat of multi-host protection: an uberblock into the last slot of one label's
    /// ring (`mmp_write_uberblock`, module/zfs/mmp.c).
    ///
    /// # Errors
    /// [`VdevError::VdevUnavailable`].
    pub async fn write(&self, uberblock: &Uberblock, label: usize) -> Result<(), VdevError> {
        let gone = |cause: String| VdevError::VdevUnavailable {
            vdev: self.guid().to_string(),
            cause,
        };
        let start = self
            .leaf
            .device()
            .and_then(|device| label_offset(device.size_bytes(), label))
            .ok_or_else(|| gone("it is closed".to_owned()))?;
        let last = uberblock_slots(self.ashift) - 1;
        let offset = start + uberblock_slot_offset(self.ashift, last);
        let mut bytes = uberblock.encode_slot(1usize << uberblock_shift(self.ashift))?;
        seal_label(&label_verifier(offset), &mut bytes)?;
        self.leaf
            .write_unkept(offset, bytes.into())
            .await
            .map_err(|error| gone(error.to_string()))
    }
}

/// What to write into the labels.
pub struct LabelSync<'a> {
    /// The new uberblock.
    pub uberblock: &'a Uberblock,
    /// Whether multihost keeps the last slot for itself.
    pub multihost: bool,
    /// Pool-level pairs of the configuration (version, name, state, txg, pool_guid, ...,
    /// features_for_read), when it changed or must be brought up to date: all leaves of all
    /// top-level vdevs get it, with their own `top_guid`, `guid`, `is_log`, `vdev_children` and
    /// `vdev_tree`. `None`: only the uberblock is written, to some vdevs.
    pub config: Option<&'a NvList>,
    /// Asked after the flush: whether the state that the uberblock leads to tells of everything
    /// that devices lack. Else a crash would let it be forgotten what the flush has lost.
    pub is_recorded: &'a (dyn Fn() -> bool + Sync),
}

/// A leaf's configuration in its label (`spa_config_generate`, module/zfs/spa_config.c): the
/// pool-level pairs, then who it is and its top-level vdev's tree, then `features_for_read`.
pub fn leaf_label_config(pool: &NvList, tree: &VdevTree, top: &Vdev, leaf: &Vdev) -> NvList {
    let mut out = NvList::new();
    for (name, value) in pool.iter().filter(|(name, _)| *name != "features_for_read") {
        out.set(name, value.clone());
    }
    out.set("top_guid", top.guid().get());
    out.set("guid", leaf.guid().get());
    if leaf.config_u64("is_spare") == Some(1) {
        out.set("is_spare", 1u64);
    }
    if top.is_log() {
        out.set("is_log", 1u64);
    }
    out.set("vdev_children", tree.top_count() as u64);
    out.set("vdev_tree", top.to_config(super::config::Scope::Label));
    if let Some(features) = pool.get("features_for_read") {
        out.set("features_for_read", features.clone());
    }
    out
}

/// A sealed configuration for the label that starts at `start`.
fn sealed_config(config: &NvList, start: u64) -> Result<Bytes, VdevError> {
    let mut bytes = encode_label_config(config)?;
    let verifier = label_verifier(start + LABEL_CONFIG_OFFSET);
    seal_label(&verifier, &mut bytes)?;
    Ok(bytes.into())
}

/// Labels a device that is no part of a vdev tree: a spare or a cache device, or one that was
/// removed. All four labels get `config`, the boot area and the ring of uberblocks are zeroed; then
/// a flush (`vdev_label_init`, module/zfs/vdev_label.c). What can be written is, also when some
/// cannot: the less is left of what the device was, the better.
///
/// # Errors
/// [`VdevError::TooSmall`], or what the device says.
pub async fn write_detached_labels(device: &dyn Device, config: &NvList) -> Result<(), VdevError> {
    write_labels_of_left(device, config, None).await
}

/// The same of a device that has all that the pool has at `last`, a state from before it left: this
/// is noted where the first uberblock would be, as one of no transaction group and without a
/// checksum, which is none. `zhack label repair -u` makes one of it (`zhack_repair_undetach`,
/// cmd/zhack.c).
///
/// # Errors
/// The same.
pub async fn write_labels_of_left(
    device: &dyn Device,
    config: &NvList,
    last: Option<&Uberblock>,
) -> Result<(), VdevError> {
    let mut writes = Vec::new();
    for index in 0..LABEL_COUNT {
        writes.extend(fresh_label(device, index, config)?);
    }
    if let Some(last) = last {
        let none = Uberblock {
            txg: Txg::ZERO,
            ..*last
        };
        let starts = (0..LABEL_COUNT).filter_map(|label| label_offset(device.size_bytes(), label));
        writes.extend(starts.map(|start| {
            let mut bytes = none.encode().to_vec();
            bytes.resize(RING_PART_BYTES, 0);
            (start + LABEL_UBERBLOCK_OFFSET, Bytes::from(bytes))
        }));
    }
    write_all(device, writes).await
}

/// Writes all that can be written, then flushes.
///
/// # Errors
/// The first one of the device.
async fn write_all(device: &dyn Device, writes: Vec<(u64, Bytes)>) -> Result<(), VdevError> {
    let mut result = Ok(());
    for (offset, data) in writes {
        let written = device.write(offset, data).await;
        result = result.and(written);
    }
    result.and(device.flush().await)?;
    Ok(())
}

/// The parts of a device's label when it becomes one of ours, and where they go.
///
/// The first label starts with zeros, and what follows the last one becomes zeros: there other
/// software keeps what it knows its data by (boot sectors, superblocks, partition tables and their
/// copies), which would be found beside ours from then on. OpenZFS clears the first and last 4 KiB
/// (`zero_label`, cmd/zpool/zpool_vdev.c).
fn fresh_label(
    device: &dyn Device,
    index: usize,
    config: &NvList,
) -> Result<Vec<(u64, Bytes)>, VdevError> {
    let start = label_offset(device.size_bytes(), index).ok_or_else(|| VdevError::TooSmall {
        path: device.path().to_owned(),
        size_bytes: device.size_bytes(),
        needed_bytes: format::MIN_DEVICE_BYTES,
    })?;
    let zeros = |length: usize| Bytes::from(vec![0; length]);
    let mut parts = vec![
        (start + LABEL_BOOT_ENV_OFFSET, zeros(LABEL_BOOT_ENV_BYTES)),
        (
            start + LABEL_UBERBLOCK_OFFSET,
            zeros(LABEL_UBERBLOCK_RING_BYTES as usize),
        ),
        (start + LABEL_CONFIG_OFFSET, sealed_config(config, start)?),
    ];
    if index == 0 {
        parts.push((start, zeros(LABEL_BOOT_ENV_OFFSET as usize)));
    }
    let end = start + LABEL_BYTES;
    // Less than a label: labels lie at multiples of their size.
    let rest = device.size_bytes() - end;
    if index + 1 == LABEL_COUNT && rest > 0 {
        parts.push((end, zeros(rest as usize)));
    }
    Ok(parts)
}

/// Makes a device one that holds no pool (`zpool labelclear`): configurations, uberblocks and the
/// boot area of those labels that have a configuration become zeros. What lies before them (a
/// partition table, perhaps) stays.
///
/// # Errors
/// [`VdevError::TooSmall`], or what the device says.
pub async fn clear_labels(device: &dyn Device) -> Result<(), VdevError> {
    let labels = read_labels(device).await?;
    let mut writes = Vec::new();
    for (index, label) in labels.labels.iter().enumerate() {
        let Some(start) =
            label_offset(device.size_bytes(), index).filter(|_| label.config.is_some())
        else {
            continue;
        };
        let length = (LABEL_BYTES - LABEL_BOOT_ENV_OFFSET) as usize;
        let zeros = Bytes::from(vec![0; length]);
        writes.push((start + LABEL_BOOT_ENV_OFFSET, zeros));
    }
    write_all(device, writes).await
}

fn seal_label(verifier: &[u64; 4], bytes: &mut [u8]) -> Result<(), VdevError> {
    seal(Checksum::Label, Endian::Little, verifier, bytes).map_err(|error| VdevError::BadConfig {
        what: error.to_string(),
    })
}

/// Whether the pool's state can be on a top-level vdev, so that an uberblock there is one that no
/// import does without: not logs, nor what has no devices.
fn holds_data(top: &Vdev) -> bool {
    !top.is_log() && (top.kind().is_leaf() || !top.children().is_empty())
}

/// Leaves that labels can be written to.
fn writeable_leaves(top: &Arc<Vdev>) -> Vec<(Arc<Vdev>, Arc<Leaf>)> {
    top.leaves()
        .into_iter()
        .filter_map(|vdev| {
            let leaf = vdev.leaf()?.clone();
            leaf.is_writeable().then_some((vdev, leaf))
        })
        .collect()
}

impl VdevTree {
    /// The labels of every open leaf, by guid. Leaves that cannot be read are left out.
    pub async fn read_all_labels(&self) -> BTreeMap<u64, Labels> {
        let reads = self.leaves().into_iter().filter_map(|vdev| {
            let device = vdev.leaf()?.device()?;
            Some(async move { (vdev.guid().get(), read_labels(&*device).await) })
        });
        join_all(reads)
            .await
            .into_iter()
            .filter_map(|(guid, labels)| Some((guid, labels.ok()?)))
            .collect()
    }

    /// Every distinct uberblock on any leaf, the newest first.
    pub async fn uberblocks(&self) -> Vec<Uberblock> {
        let labels = self.read_all_labels().await;
        let mut all: Vec<Uberblock> = labels
            .values()
            .flat_map(|labels| labels.labels.iter().flat_map(|label| &label.uberblocks))
            .copied()
            .collect();
        all.sort_by_key(|uberblock| std::cmp::Reverse(uberblock.recency()));
        all.dedup();
        all
    }

    /// Labels the leaves of new top-level vdevs (`vdev_label_init`): the configuration with txg
    /// 0 and `create_txg` into all four labels, the boot area and the ring of uberblocks zeroed,
    /// then a flush. `config` as in [`LabelSync`].
    ///
    /// # Errors
    /// When any leaf cannot be labelled.
    pub async fn init_labels(
        &self,
        tops: &[Arc<Vdev>],
        config: &NvList,
        create_txg: Txg,
    ) -> Result<(), VdevError> {
        for top in tops {
            for vdev in top.leaves() {
                let leaf = vdev.leaf().filter(|leaf| leaf.is_writeable()).cloned();
                let (Some(leaf), Some(device)) =
                    (leaf.clone(), leaf.as_ref().and_then(|leaf| leaf.device()))
                else {
                    return Err(VdevError::VdevUnavailable {
                        vdev: vdev.display_name(),
                        cause: "it cannot be written".to_owned(),
                    });
                };
                let mut own = leaf_label_config(config, self, top, &vdev);
                own.set("txg", 0u64);
                own.set("create_txg", create_txg.get());
                for index in 0..LABEL_COUNT {
                    for (offset, data) in fresh_label(&*device, index, &own)? {
                        leaf.write_raw(offset, data)
                            .await
                            .map_err(|error| unavailable(&vdev, &error))?;
                    }
                }
                leaf.flush()
                    .await
                    .map_err(|error| unavailable(&vdev, &error))?;
            }
        }
        Ok(())
    }

    /// Writes the uberblock, and the configuration if given, in the order that the module's head
    /// tells. Flushes first, so that all completed writes are durable before.
    ///
    /// # Errors
    /// [`VdevError::NotDurable`] when the flush before failed beyond redundancy, when no leaf of
    /// some top-level vdev took its configuration, or no leaf with data the uberblock, or the pool
    /// was suspended meanwhile; which of them did is then unknown: retry with the same uberblock,
    /// or leave the pool. [`VdevError::Unrecorded`] before anything was written.
    pub async fn sync_labels(&self, sync: &LabelSync<'_>) -> Result<(), VdevError> {
        let mark = self.common.halt.mark();
        self.flush().await?;
        if !(sync.is_recorded)() {
            return Err(VdevError::Unrecorded);
        }
        let tops: Vec<Arc<Vdev>> = self
            .tops()
            .into_iter()
            .filter(|top| top.kind().is_leaf() || !top.children().is_empty())
            .collect();
        if let Some(config) = sync.config {
            self.write_configs(&tops, config, 0).await?;
        }
        let targets: Vec<Arc<Vdev>> = match sync.config {
            Some(_) => tops.clone(),
            None => {
                // In turn, so that every ring stays reasonably recent.
                let takes = |top: &&Arc<Vdev>| holds_data(top) && !writeable_leaves(top).is_empty();
                let mut targets: Vec<Arc<Vdev>> = tops.iter().filter(takes).cloned().collect();
                let from = sync.uberblock.txg.get() % targets.len().max(1) as u64;
                targets.rotate_left(from as usize);
                targets.truncate(UBERBLOCK_TOPS);
                targets
            }
        };
        self.write_uberblock(&targets, sync.uberblock, sync.multihost)
            .await?;
        if let Some(config) = sync.config {
            self.write_configs(&tops, config, 1).await?;
        }
        self.common.halt.check_unchanged(mark)
    }

    /// Devices that heartbeats can be written to.
    pub fn heartbeat_targets(&self) -> Vec<HeartbeatTarget> {
        let of_top = |top: Arc<Vdev>| {
            let (id, ashift) = (top.vdev_id(), top.ashift());
            writeable_leaves(&top)
                .into_iter()
                .map(move |(_, leaf)| HeartbeatTarget {
                    top: id,
                    ashift,
                    leaf,
                })
        };
        self.tops().into_iter().flat_map(of_top).collect()
    }

    /// Every uberblock on the devices at the leaves' paths, opened anew, whatever the state of the
    /// leaves. Devices that cannot be read are left out.
    ///
    /// # Errors
    /// [`VdevError::Stalled`] when one neither answers nor fails: nobody knows what is on it.
    pub async fn uberblocks_on_paths(&self) -> Result<Vec<Uberblock>, VdevError> {
        let reads = self.leaves().into_iter().map(|vdev| async move {
            let read = async {
                let path = self.opening.device_path(&vdev)?;
                let device = self.world().opener.open(&path, true).await.ok()?;
                let labels = read_labels(&*device).await.ok()?;
                let own = labels.config(Txg::new(u64::MAX))?;
                let is_it = own.u64("guid") == Some(vdev.guid().get());
                (is_it || is_not_told_yet(&vdev, own)).then_some(labels)
            };
            self.opening.patiently(&vdev, read).await
        });
        let found: Vec<Option<Labels>> = join_all(reads)
            .await
            .into_iter()
            .collect::<Result<_, _>>()?;
        let labels = found.iter().flatten().flat_map(|labels| &labels.labels);
        Ok(labels
            .flat_map(|label| &label.uberblocks)
            .copied()
            .collect())
    }

    /// Configurations into labels `first` and `first + 2` of all leaves, then a flush. Of a device,
    /// one of the two is enough.
    async fn write_configs(
        &self,
        tops: &[Arc<Vdev>],
        config: &NvList,
        first: usize,
    ) -> Result<(), VdevError> {
        let mut writes = Vec::new();
        let mut full = vec![false; tops.len()];
        for (top_index, top) in tops.iter().enumerate() {
            for (vdev, leaf) in writeable_leaves(top) {
                let Some(device) = leaf.device() else {
                    continue;
                };
                let own = leaf_label_config(config, self, top, &vdev);
                if encode_label_config(&own).is_err() {
                    // What it says is older then, and leads to the same pool.
                    let device = vdev.display_name();
                    tracing::warn!(device, "its labels have no room for the configuration");
                    full[top_index] = true;
                    continue;
                }
                let mut images = Vec::new();
                for index in [first, first + 2] {
                    if let Some(start) = label_offset(device.size_bytes(), index) {
                        let data = sealed_config(&own, start)?;
                        images.push((start + LABEL_CONFIG_OFFSET, data));
                    }
                }
                let name = vdev.display_name();
                writes.push(async move { (top_index, write_images(&leaf, &name, images).await) });
            }
        }
        let mut good = full;
        let mut cause = "no device is there".to_owned();
        for (top_index, written) in join_all(writes).await {
            match written {
                Ok(()) => good[top_index] = true,
                Err(failure) => cause = failure,
            }
        }
        // A log vdev may be gone: the pool does without it.
        let lost = tops
            .iter()
            .zip(good)
            .find(|(top, good)| !good && !top.is_log());
        match lost {
            None => Ok(()),
            Some((top, _)) => Err(VdevError::NotDurable {
                reason: format!(
                    "no label of {} could be written ({cause})",
                    top.display_name()
                ),
            }),
        }
    }

    /// The uberblock into its slot of all labels of the leaves of `tops`, then a flush. One device
    /// with data has to have it.
    async fn write_uberblock(
        &self,
        tops: &[Arc<Vdev>],
        uberblock: &Uberblock,
        multihost: bool,
    ) -> Result<(), VdevError> {
        let mut writes = Vec::new();
        for top in tops {
            let counts = holds_data(top);
            let ashift = top.ashift();
            let slot = uberblock_slot(ashift, uberblock.txg, multihost);
            let in_label = uberblock_slot_offset(ashift, slot);
            let slot_bytes = 1usize << uberblock_shift(ashift);
            for (vdev, leaf) in writeable_leaves(top) {
                let Some(device) = leaf.device() else {
                    continue;
                };
                let name = vdev.display_name();
                let mut images = Vec::new();
                for index in 0..LABEL_COUNT {
                    if let Some(start) = label_offset(device.size_bytes(), index) {
                        let mut bytes = uberblock.encode_slot(slot_bytes)?;
                        seal_label(&label_verifier(start + in_label), &mut bytes)?;
                        images.push((start + in_label, Bytes::from(bytes)));
                    }
                }
                writes.push(async move { (counts, write_images(&leaf, &name, images).await) });
            }
        }
        let results = join_all(writes).await;
        if results
            .iter()
            .any(|(counts, written)| *counts && written.is_ok())
        {
            return Ok(());
        }
        let counting = results.into_iter().filter(|(counts, _)| *counts);
        let cause = counting.map(|(_, written)| written).find_map(Result::err);
        let cause = cause.unwrap_or_else(|| "no device is there".to_owned());
        Err(VdevError::NotDurable {
            reason: format!(
                "the uberblock of txg {} could not be written ({cause})",
                uberblock.txg
            ),
        })
    }
}

/// Writes the same into several labels of a device and flushes it; or says why none of them is
/// durable.
async fn write_images(
    leaf: &Arc<Leaf>,
    name: &str,
    images: Vec<(u64, Bytes)>,
) -> Result<(), String> {
    let writes = images
        .into_iter()
        .map(|(offset, data)| leaf.write_raw(offset, data));
    let results = join_all(writes).await;
    let is_written = results.iter().any(Result::is_ok);
    let failed = results.into_iter().find_map(Result::err);
    match (leaf.flush().await, failed) {
        (Ok(()), _) if is_written => Ok(()),
        (Err(error), _) | (_, Some(error)) => Err(format!("{name}: {error}")),
        (Ok(()), None) => Err(format!("{name} is too small")),
    }
}

fn unavailable(vdev: &Vdev, error: &LeafError) -> VdevError {
    VdevError::VdevUnavailable {
        vdev: vdev.display_name(),
        cause: error.to_string(),
    }
}
