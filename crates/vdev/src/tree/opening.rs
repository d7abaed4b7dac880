//! Opening the devices of a tree, for the first time and again.
//!
//! A device is taken only if its labels say that it is the leaf it is looked for as. One that
//! cannot be used is noted in its leaf's state, and the tree does without; but when another process
//! has it, that process has the pool.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use device::{Device, DeviceError, World};
use format::{Guid, LABEL_BYTES, MIN_DEVICE_BYTES, NvList, Txg};
use futures::future::{Either, join_all, select};
use parking_lot::Mutex;

use crate::common::Common;
use crate::error::{VdevError, bad};
use crate::label::read_labels;
use crate::leaf::{Leaf, Stopped};
use crate::node::Vdev;
use crate::patience::PATIENCE;
use crate::sizes::settle_size;
use crate::state::{VdevAux, VdevState};
use crate::watch::Watched;

/// How often it is asked whether a device has answered everything.
const ANSWER_PAUSE: Duration = Duration::from_millis(100);

/// A device that was opened, or why that cannot be used.
type Opened = Result<Arc<Watched>, (VdevAux, VdevError)>;

/// Gives a leaf its device, and says what state that makes.
fn take_opened(vdev: &Vdev, leaf: &Leaf, opened: Opened) -> Result<(), VdevError> {
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

/// How to open a tree.
#[derive(Debug, Clone, Default)]
pub struct OpenOptions {
    /// Open the devices for reading only.
    pub read_only: bool,
    /// What is opened for reading nobody else gets for writing meanwhile
    /// ([`Device::keep_writers_out`]).
    pub keep_writers_out: bool,
    /// Where devices are, by their leaf's guid; instead of the paths in the configuration.
    pub paths: BTreeMap<Guid, String>,
    /// The pool's guid, when labels must belong to it.
    pub pool_guid: Option<Guid>,
    /// New devices: they have no labels yet, and their sizes are still to be determined.
    pub create: bool,
    /// Where an older state is gone back to: another guid by which a leaf's device may go, which
    /// has become the top-level vdev itself since then (`vdev_validate`, module/zfs/vdev.c).
    pub successors: BTreeMap<Guid, Guid>,
}

/// How the devices of a tree are opened.
///
/// Locks: `paths`, `pool_guid`, `successors`; for one value each.
pub(crate) struct Opening {
    world: World,
    common: Arc<Common>,
    options: OpenOptions,
    /// Where devices are, as [`OpenOptions::paths`] said, until other devices take their places.
    paths: Mutex<BTreeMap<Guid, String>>,
    /// The pool's guid, when labels must belong to it.
    pool_guid: Mutex<Option<Guid>>,
    /// As [`OpenOptions::successors`] said, until the labels are those of the older state.
    successors: Mutex<BTreeMap<Guid, Guid>>,
}

impl Opening {
    pub(super) fn new(world: &World, common: &Arc<Common>, options: OpenOptions) -> Self {
        Opening {
            world: world.clone(),
            common: common.clone(),
            paths: Mutex::new(options.paths.clone()),
            pool_guid: Mutex::new(options.pool_guid),
            successors: Mutex::new(options.successors.clone()),
            options,
        }
    }

    /// How devices are opened that are to become a part of the tree: they have no labels yet.
    pub(super) fn of_new_devices(&self) -> Opening {
        Opening {
            world: self.world.clone(),
            common: self.common.clone(),
            paths: Mutex::default(),
            pool_guid: Mutex::new(None),
            successors: Mutex::default(),
            options: OpenOptions {
                create: true,
                ..self.options.clone()
            },
        }
    }

    /// Whether devices are opened for reading only.
    pub(super) fn is_read_only(&self) -> bool {
        self.options.read_only
    }

    /// From now on labels must belong to this pool.
    pub(super) fn expect_pool_guid(&self, guid: Guid) {
        *self.pool_guid.lock() = Some(guid);
    }

    /// The pool has another guid: where labels must belong to it, they must tell that one.
    pub(super) fn change_pool_guid(&self, guid: Guid) {
        if let Some(expected) = &mut *self.pool_guid.lock() {
            *expected = guid;
        }
    }

    /// A device goes by its leaf's guid alone from now on.
    pub(super) fn forget_successors(&self) {
        self.successors.lock().clear();
    }

    /// Looks for a device where the configuration says from now on.
    pub(crate) fn forget_path(&self, guid: Guid) {
        self.paths.lock().remove(&guid);
    }

    /// Waits for a device, but not for ever.
    ///
    /// # Errors
    /// [`VdevError::Stalled`].
    pub(crate) async fn patiently<T>(
        &self,
        vdev: &Vdev,
        work: impl Future<Output = T>,
    ) -> Result<T, VdevError> {
        match select(pin!(work), self.world.clock.sleep(PATIENCE)).await {
            Either::Left((done, _)) => Ok(done),
            Either::Right(_) => Err(VdevError::Stalled {
                vdev: vdev.display_name(),
            }),
        }
    }

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
            settle_size(top)?;
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
    async fn open_leaf(&self, vdev: &Arc<Vdev>) -> Result<(), VdevError> {
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
    async fn open_device(&self, vdev: &Arc<Vdev>) -> Opened {
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
        if self.common.faults.fails_to_open(vdev.guid()) {
            let error = DeviceError::Gone { path };
            return Err((VdevAux::OpenFailed, error.into()));
        }
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
    async fn check_label(
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
        let successor = self.successors.lock().get(&vdev.guid()).copied();
        let is_it = guid == vdev.guid()
            || labels.has_been(vdev.guid(), expected)
            || successor == Some(guid)
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

    /// Whether the device of a leaf that works is the one that it was.
    pub(super) async fn is_as_before(&self, vdev: &Arc<Vdev>, leaf: &Leaf) -> bool {
        let Some(device) = leaf.device() else {
            return false;
        };
        if let Err(error) = device.look_again().await {
            tracing::warn!(leaf = %vdev.guid(), %error, "a device is not what it was");
            return false;
        }
        match self.check_label(vdev, &*device).await {
            Ok(()) => true,
            Err((_, error)) => {
                tracing::warn!(leaf = %vdev.guid(), %error, "a device is not what it was");
                false
            }
        }
    }

    /// Opens the device of a leaf anew; whether it works.
    ///
    /// # Errors
    /// [`VdevError::Stalled`] when the device is still at what it accepted before.
    pub(super) async fn open_anew(
        &self,
        vdev: &Arc<Vdev>,
        leaf: &Arc<Leaf>,
    ) -> Result<bool, VdevError> {
        let mut stopped = self.patiently(vdev, leaf.stop_writes()).await?;
        let is_in_use = leaf.is_readable();
        leaf.set_device(None);
        let close = || {
            leaf.set_temporary(false);
            leaf.set_state(VdevState::Closed, VdevAux::None);
        };
        let opened = if is_in_use {
            // Whatever is to be written waits: it may have nowhere else to go.
            close();
            self.open_device(vdev).await
        } else {
            // It gets nothing in any case, and lacks what is written meanwhile.
            drop(stopped);
            let opened = self.open_device(vdev).await;
            stopped = self.patiently(vdev, leaf.stop_writes()).await?;
            if leaf.is_readable() {
                // Somebody else was quicker.
                return Ok(true);
            }
            close();
            opened
        };
        // Taking it tells itself what is in the way.
        let is_open = take_opened(vdev, leaf, opened).is_ok();
        Ok(is_open && is_rewritten(vdev, leaf, &stopped).await)
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

/// Whether a device that is back has what it took and did not flush before.
pub(super) async fn is_rewritten(vdev: &Vdev, leaf: &Arc<Leaf>, stopped: &Stopped<'_>) -> bool {
    let result = leaf.rewrite_kept(stopped, true).await;
    if let Err(error) = &result {
        tracing::warn!(leaf = %vdev.guid(), %error, "a device does not take writes yet");
    }
    result.is_ok()
}
