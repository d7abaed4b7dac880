//! Sizes of top-level vdevs by the devices that they have: of new ones, and of those whose devices
//! have shrunk or grown.

use std::sync::Arc;

use device::Device;
use format::{LABEL_BYTES, LABEL_END_BYTES, LABEL_START_BYTES};

use crate::error::{VdevError, bad};
use crate::kind::VdevKind;
use crate::metaslab::{METASLABS_MAX, metaslab_shift};
use crate::node::{Top, Vdev};
use crate::state::{VdevAux, VdevState};

/// Smallest sector size that a pool can have, as log2 (`ASHIFT_MIN`).
pub const ASHIFT_MIN: u32 = 9;
/// Largest sector size that a pool can have, as log2 (`ASHIFT_MAX`).
pub const ASHIFT_MAX: u32 = 16;

/// Determines ashift and asize of a new top-level vdev, or checks that its devices did not
/// shrink (`vdev_open`, module/zfs/vdev.c).
pub(crate) fn settle_size(top: &Arc<Vdev>) -> Result<(), VdevError> {
    let Some(numbers) = top.top() else {
        return Ok(());
    };
    if !top.kind().is_leaf() && top.children().is_empty() {
        return Ok(());
    }
    if top.asize_bytes() == 0 {
        let Some(asize) = measure(top) else {
            return Ok(());
        };
        let sectors = top.leaves();
        let device_shift = sectors
            .iter()
            .filter_map(|vdev| vdev.leaf()?.device())
            .map(|device| device.sector_bytes().max(1).ilog2())
            .max()
            .unwrap_or(ASHIFT_MIN);
        let ashift = top.config_u64("ashift").unwrap_or(0) as u32;
        let ashift = ashift.max(device_shift).max(ASHIFT_MIN);
        if ashift > ASHIFT_MAX {
            return Err(bad(format!(
                "{}: sectors of 2^{ashift} bytes are more than the format allows \
                 (2^{ASHIFT_MAX})",
                top.display_name()
            )));
        }
        numbers.set_size(ashift, asize);
        numbers.set_metaslabs(numbers.metaslab_array(), metaslab_shift(asize));
        return Ok(());
    }
    if !(ASHIFT_MIN..=ASHIFT_MAX).contains(&top.ashift()) {
        return Err(bad(format!(
            "{}: an ashift of {}",
            top.display_name(),
            top.ashift()
        )));
    }
    let needed = least_child_bytes(top);
    for vdev in top.leaves() {
        let Some(leaf) = vdev.leaf() else { continue };
        let Some(device) = leaf.device() else {
            continue;
        };
        if leaf_asize(&*device) < needed {
            tracing::error!(
                leaf = %vdev.guid(), path = device.path(), needed, "the device has shrunk"
            );
            leaf.set_device(None);
            leaf.set_state(VdevState::CantOpen, VdevAux::BadLabel);
        }
    }
    Ok(())
}

/// Whole metaslabs that would fit on a top-level vdev's devices beyond those it has, in bytes:
/// the devices are bigger than when it was made (`vs_esize` in `vdev_get_stats_ex`,
/// module/zfs/vdev.c). Zero unless all its devices are there, and while RAID-Z is being made
/// wider.
pub fn expandable_bytes(top: &Arc<Vdev>) -> u64 {
    let shift = top.metaslab_shift();
    let is_whole = top.state().0 == VdevState::Healthy && !top.is_expanding();
    if top.metaslab_count() == 0 || !is_whole {
        return 0;
    }
    (whole_asize(top) >> shift).saturating_sub(top.metaslab_count()) << shift
}

/// Lets a top-level vdev use all of its devices, as [`expandable_bytes`] tells
/// (`vdev_open`, `vdev_expand`, module/zfs/vdev.c). Nothing is on disk before the configuration
/// is written, which must be in the txg that first allocates there. Whether there was anything
/// to gain.
pub fn expand(top: &Arc<Vdev>) -> bool {
    match top.top() {
        Some(numbers) if expandable_bytes(top) > 0 => {
            numbers.set_size(top.ashift(), whole_asize(top));
            true
        }
        _ => false,
    }
}

/// Bytes that each device of a top-level vdev must offer, without labels (`vdev_get_min_asize`,
/// module/zfs/vdev.c).
pub fn least_child_bytes(top: &Vdev) -> u64 {
    let aligned = top.top().map_or(0, Top::aligned_asize_bytes);
    match top.kind() {
        VdevKind::Raidz(raidz) => aligned.div_ceil(raidz.rows_width() as u64),
        VdevKind::Draid(draid) => draid.layout.child_bytes_min(aligned),
        _ => aligned,
    }
}

/// Bytes of the device of a leaf that is open, or of what a dRAID spare stands for.
pub fn physical_bytes(vdev: &Vdev) -> Option<u64> {
    match vdev.kind() {
        VdevKind::Leaf(own) => Some(own.leaf.device()?.size_bytes()),
        VdevKind::DraidSpare(spare) => spare_bytes(&spare.top.get()?.upgrade()?),
        _ => None,
    }
}

/// Bytes that each spare of a dRAID vdev has: as many as its smallest device
/// (`vdev_draid_spare_open`).
pub fn spare_bytes(top: &Arc<Vdev>) -> Option<u64> {
    if !matches!(top.kind(), VdevKind::Draid(_)) {
        return None;
    }
    let leaves = top.leaves();
    let devices = leaves.iter().filter_map(|vdev| vdev.leaf()?.device());
    devices
        .map(|device| device.size_bytes() & !(LABEL_BYTES - 1))
        .min()
}

/// Bytes of a device that blocks can be on.
fn leaf_asize(device: &dyn Device) -> u64 {
    (device.size_bytes() & !(LABEL_BYTES - 1)).saturating_sub(LABEL_START_BYTES + LABEL_END_BYTES)
}

/// Allocatable bytes of a vdev by its devices: the smallest child's, times the children of RAID-Z
/// (`vdev_mirror_open`, `vdev_raidz_open`, `vdev_draid_open`). `None` when no device is there.
fn measure(vdev: &Arc<Vdev>) -> Option<u64> {
    if let Some(leaf) = vdev.leaf() {
        return leaf.device().map(|device| leaf_asize(&*device));
    }
    let smallest = vdev.children().iter().filter_map(measure).min()?;
    Some(match vdev.kind() {
        VdevKind::Raidz(_) => smallest * vdev.children().len() as u64,
        VdevKind::Draid(draid) => draid.layout.asize(smallest),
        _ => smallest,
    })
}

/// [`measure`] of a top-level vdev with metaslabs, as its configuration has it: in whole sectors,
/// no more than can be dealt with.
fn whole_asize(top: &Arc<Vdev>) -> u64 {
    let asize = measure(top).unwrap_or(0);
    let most = METASLABS_MAX.saturating_mul(1 << top.metaslab_shift());
    asize.min(most) >> top.ashift() << top.ashift()
}
