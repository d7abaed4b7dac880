//! Opening the devices of a tree, and what their sizes make of its top-level vdevs.
//!
//! A device is taken only if its labels say that it is the leaf it is looked for as. One that
//! cannot be used is noted in its leaf's state, and the tree does without; but when another process
//! has it, that process has the pool.

use std::sync::Arc;
use std::time::Duration;

use device::{Device, DeviceError};
use format::{
    Guid, LABEL_BYTES, LABEL_END_BYTES, LABEL_START_BYTES, MIN_DEVICE_BYTES, NvList, Txg,
};
use futures::future::join_all;

use super::{ASHIFT_MAX, ASHIFT_MIN, VdevTree};
use crate::error::{VdevError, bad};
use crate::kind::VdevKind;
use crate::label::read_labels;
use crate::leaf::Leaf;
use crate::metaslab::{METASLABS_MAX, metaslab_shift};
use crate::node::Vdev;
use crate::state::{VdevAux, VdevState};
use crate::watch::Watched;

/// How often it is asked whether a device has answered everything.
const ANSWER_PAUSE: Duration = Duration::from_millis(100);

/// A device that was opened, or why that cannot be used.
pub(super) type Opened = Result<Arc<Watched>, (VdevAux, VdevError)>;

/// Gives a leaf its device, and says what state that makes.
pub(super) fn take_opened(vdev: &Vdev, leaf: &Leaf, opened: Opened) -> Result<(), VdevError> {
    let before = leaf.state().0;
    match opened {
        Ok(device) => {
            leaf.set_device(Some(device));
            match before {
                // It was so when the pool was last in use.
                VdevState::Degraded => {
                    leaf.set_state(VdevState::Degraded, VdevAux::ErrorsExceeded);
                }
                _ => leaf.set_state(VdevState::Healthy, VdevAux::None),
            }
            Ok(())
        }
        Err((aux, error)) => {
            tracing::warn!(leaf = %vdev.guid(), %error, "a device of the pool is not usable");
            leaf.set_device(None);
            match (before, aux) {
                // Still nothing in its place (`vdev_set_state`, module/zfs/vdev.c).
                (VdevState::Removed, VdevAux::OpenFailed) => {}
                _ => leaf.set_state(VdevState::CantOpen, aux),
            }
            Err(error)
        }
    }
}

impl VdevTree {
    /// Opens the devices of top-level vdevs and settles how big these are.
    pub(super) async fn open_tops(&self, tops: &[Arc<Vdev>]) -> Result<(), VdevError> {
        let mut leaves: Vec<Arc<Vdev>> = tops.iter().flat_map(Vdev::leaves).collect();
        // First one alone, the same for everybody: of two processes that open the same devices at
        // once, one gets it and then the others, instead of each getting some and both being
        // refused.
        leaves.sort_by_cached_key(|leaf| self.device_path(leaf));
        let mut opened = false;
        let mut rest = leaves.iter();
        while !opened && let Some(leaf) = rest.next() {
            opened = self.open_known(leaf).await?;
        }
        let opened = join_all(rest.map(|leaf| self.open_known(leaf))).await;
        opened.into_iter().collect::<Result<Vec<_>, _>>()?;
        for top in tops {
            self.settle_size(top)?;
        }
        Ok(())
    }

    /// [`Self::open_leaf`]; tells whether it is open. Fails where the pool must do without none of
    /// its devices, or where another process has this one.
    async fn open_known(&self, leaf: &Arc<Vdev>) -> Result<bool, VdevError> {
        match self.open_leaf(leaf).await {
            Ok(()) => Ok(leaf.leaf().is_some_and(|leaf| leaf.device().is_some())),
            Err(error) if self.options.create || self.is_held_elsewhere(leaf, &error) => Err(error),
            Err(_) => Ok(false),
        }
    }

    /// Opens a leaf's device unless it is offline or faulted; on failure sets its state.
    pub(super) async fn open_leaf(&self, vdev: &Arc<Vdev>) -> Result<(), VdevError> {
        let Some(leaf) = vdev.leaf() else {
            return Ok(());
        };
        if matches!(leaf.state().0, VdevState::Offline | VdevState::Faulted) {
            return Ok(());
        }
        let opened = self.open_device(vdev).await;
        take_opened(vdev, leaf, opened)
    }

    /// Whether another process has a device that is known to be the leaf's: then it has the pool,
    /// and the devices left over, half of a mirror perhaps, must not become a second one.
    fn is_held_elsewhere(&self, leaf: &Vdev, error: &VdevError) -> bool {
        matches!(error, VdevError::Device(error) if matches!(**error, DeviceError::InUse { .. }))
            && self.paths.lock().contains_key(&leaf.guid())
    }

    /// Where a leaf's device is looked for.
    pub(crate) fn device_path(&self, vdev: &Vdev) -> Option<String> {
        let known = self.paths.lock().get(&vdev.guid()).cloned();
        known.or_else(|| vdev.path())
    }

    /// Opens the device of a leaf, which has none yet; nothing of the leaf changes.
    pub(super) async fn open_device(&self, vdev: &Arc<Vdev>) -> Opened {
        let path = self.device_path(vdev).ok_or_else(|| {
            (
                VdevAux::OpenFailed,
                bad(format!("{} has no path", vdev.guid())),
            )
        })?;
        if let Some(leaf) = vdev.leaf() {
            // What it took before may else come over what it takes from now on.
            let answered = self.patiently(vdev, self.until_answered(leaf)).await;
            answered.map_err(|error| (VdevAux::OpenFailed, error))?;
        }
        let opening = self.world.opener.open(&path, self.options.read_only);
        let device = match self.patiently(vdev, opening).await {
            Ok(Ok(device)) => self.common.watch(device),
            Ok(Err(error)) => return Err((VdevAux::OpenFailed, error.into())),
            Err(error) => return Err((VdevAux::OpenFailed, error)),
        };
        let size = device.size_bytes() & !(LABEL_BYTES - 1);
        if size < MIN_DEVICE_BYTES {
            let error = VdevError::TooSmall {
                path,
                size_bytes: device.size_bytes(),
                needed_bytes: MIN_DEVICE_BYTES,
            };
            return Err((VdevAux::TooSmall, error));
        }
        // One of a pool that was open before has labels, whoever made them.
        let has_pool = self.pool_guid.lock().is_some();
        let was_open = has_pool && vdev.leaf().is_some_and(|leaf| leaf.is_out());
        let is_new = self.options.create && !was_open;
        if !is_new {
            self.check_label(vdev, &*device).await?;
        }
        if self.options.keep_writers_out {
            let kept = device.keep_writers_out().await;
            kept.map_err(|error| (VdevAux::OpenFailed, error.into()))?;
        }
        Ok(device)
    }

    /// Waits until the devices that a leaf had before have answered everything.
    async fn until_answered(&self, leaf: &Leaf) {
        while leaf.is_busy() {
            self.world.clock.sleep(ANSWER_PAUSE).await;
        }
    }

    /// Whether the device's labels say that it is this leaf (`vdev_validate`).
    pub(super) async fn check_label(
        &self,
        vdev: &Arc<Vdev>,
        device: &dyn Device,
    ) -> Result<(), (VdevAux, VdevError)> {
        let path = device.path().to_owned();
        let labels = read_labels(device)
            .await
            .map_err(|error| (VdevAux::OpenFailed, error))?;
        let expected = *self.pool_guid.lock();
        if expected.is_some_and(|pool| labels.was_split_from(pool)) {
            return Err((VdevAux::SplitPool, VdevError::SplitOff { path }));
        }
        let config = match expected {
            Some(pool) => labels.config_in(pool),
            None => labels.config(Txg::new(u64::MAX)),
        };
        let Some(config) = config else {
            return Err((VdevAux::CorruptData, VdevError::NoLabel { path }));
        };
        let guid = Guid::new(config.u64("guid").unwrap_or(0));
        let is_it = guid == vdev.guid()
            || labels.has_been(vdev.guid(), expected)
            || is_not_told_yet(vdev, config);
        if !is_it {
            let error = VdevError::WrongDevice {
                path,
                found: guid,
                expected: vdev.guid(),
            };
            return Err((VdevAux::BadLabel, error));
        }
        let pool = config.u64("pool_guid").map(Guid::new);
        match (expected, pool) {
            (Some(expected), Some(found)) if expected != found => Err((
                VdevAux::BadLabel,
                VdevError::WrongDevice {
                    path,
                    found,
                    expected,
                },
            )),
            _ => Ok(()),
        }
    }

    /// Determines ashift and asize of a new top-level vdev, or checks that its devices did not
    /// shrink (`vdev_open`, module/zfs/vdev.c).
    pub(super) fn settle_size(&self, top: &Arc<Vdev>) -> Result<(), VdevError> {
        if top.top().is_none() || (!top.kind().is_leaf() && top.children().is_empty()) {
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
            let ashift = top
                .top()
                .map_or(0, |_| top.config_u64("ashift").unwrap_or(0) as u32);
            let ashift = ashift.max(device_shift).max(ASHIFT_MIN);
            if ashift > ASHIFT_MAX {
                return Err(bad(format!(
                    "{}: sectors of 2^{ashift} bytes are more than the format allows \
                     (2^{ASHIFT_MAX})",
                    top.display_name()
                )));
            }
            top.set_size(ashift, asize);
            top.set_metaslabs(top.metaslab_array(), metaslab_shift(asize));
            return Ok(());
        }
        if !(ASHIFT_MIN..=ASHIFT_MAX).contains(&top.ashift()) {
            return Err(bad(format!(
                "{}: an ashift of {}",
                top.display_name(),
                top.ashift()
            )));
        }
        let needed = top.least_child_bytes();
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
    pub fn expandable_bytes(&self, top: &Arc<Vdev>) -> u64 {
        let shift = top.metaslab_shift();
        let is_whole = top.state().0 == VdevState::Healthy && !top.is_expanding();
        if top.metaslab_count() == 0 || !is_whole {
            return 0;
        }
        (whole_asize(top) >> shift).saturating_sub(top.metaslab_count()) << shift
    }

    /// Lets a top-level vdev use all of its devices, as [`Self::expandable_bytes`] tells
    /// (`vdev_open`, `vdev_expand`, module/zfs/vdev.c). Nothing is on disk before the configuration
    /// is written, which must be in the txg that first allocates there. Whether there was anything
    /// to gain.
    pub fn expand(&self, top: &Arc<Vdev>) -> bool {
        let grows = self.expandable_bytes(top) > 0;
        if grows {
            top.set_size(top.ashift(), whole_asize(top));
        }
        grows
    }
}

/// Whether this is the label of a device that has become a top-level vdev in the group that is
/// being written: it has taken over that vdev's guid already, and its label tells the one that it
/// had. `vdev_validate` takes any label with the top-level vdev's guid, also one of the device that
/// was replaced, whose labels a crash may have left.
pub(crate) fn is_not_told_yet(vdev: &Vdev, label: &NvList) -> bool {
    let former = vdev.leaf().and_then(|leaf| leaf.former_guid());
    former.is_some_and(|former| label.u64("guid") == Some(former.get()))
        && label.u64("top_guid") == Some(vdev.guid().get())
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
