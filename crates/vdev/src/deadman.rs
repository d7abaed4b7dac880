//! Devices that do not answer (`vdev_deadman`, module/zfs/vdev.c; `zio_deadman`, module/zfs/zio.c).
//!
//! OpenZFS tells of such an I/O after five minutes, and waits on: a single device that hangs stops
//! the pool, whatever its redundancy. Here, a look at every device each second
//! ([`look_each_second`]) does more. By how long its oldest operation has been waiting
//! ([`DeadmanLimits`]):
//!
//! | After | What happens |
//! |---|---|
//! | 5 s | Reads that can be answered without the device are. |
//! | 40 s | It is told ([`ErrorReport::Deadman`]), and the device is given up where possible. |
//! | 300 s | Others may be told that the pool waits ([`Patience::longest_wait`]). |
//!
//! A device is given up if the pool has all its data without it. What waits for it fails, and what
//! it does not take it lacks from then on, as of a device that is gone.
//!
//! **Several at once.** Where devices beside it keep operations waiting as well, half as long at
//! least, and the pool cannot do without all of them, none is given up: it is the controller or the
//! host, and it would be chance which of them go. Devices that the pool does not have (any more, or
//! yet), and all of a pool that is being opened, are given up in any case, as somebody waits for an
//! answer.
//!
//! **Coming back.** What a device that was given up had taken, it may still carry out. That is
//! harmless as long as nobody relies on the device: it lacks the transaction groups of all that was
//! given up, and whatever is written to the same place later is written when it is back. So it is
//! not opened before it has answered everything ([`Leaf::is_busy`]). One that hung [`HANGS_MAX`]
//! times is faulted, and stays away until it is cleared.
//!
//! [`DeadmanLimits`]: crate::patience::DeadmanLimits
//! [`Patience::longest_wait`]: crate::patience::Patience::longest_wait

use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use device::{Device, DeviceError, World};
use format::Guid;
use futures::future::{Either, select};

use crate::common::Common;
use crate::leaf::Leaf;
use crate::patience::PATIENCE;
use crate::report::ErrorReport;
use crate::state::{VdevAux, VdevState};
use crate::tree::VdevTree;
use crate::watch::Watched;

/// How often a device may hang before it stays away, since its errors were cleared.
pub(super) const HANGS_MAX: u32 = 3;

/// The tree whose devices are looked at; empty while it is being opened.
pub(super) type Subject = Arc<OnceLock<Weak<VdevTree>>>;

/// Looks each second at the devices of a tree, until nobody has any of them.
pub(super) async fn look_each_second(world: World, common: Weak<Common>, subject: Subject) {
    loop {
        world.clock.sleep(Duration::from_secs(1)).await;
        let Some(common) = common.upgrade() else {
            return;
        };
        let tree = subject.get().and_then(Weak::upgrade);
        look(&common, tree.as_deref(), world.clock.monotonic_ns());
    }
}

/// A device of the tree that keeps operations waiting for too long.
struct Hung<'a> {
    leaf: Arc<Leaf>,
    device: &'a Arc<Watched>,
    overdue: u64,
}

fn look(common: &Common, tree: Option<&VdevTree>, now_ns: u64) {
    let limits = common.patience.limits();
    let (lag, overdue) = (limits.lag_s.max(1), limits.give_up_s.max(1));
    let all = common.watched();
    let seen: Vec<_> = all
        .iter()
        .map(|watched| (watched, watched.look(now_ns, lag, overdue)))
        .collect();
    let of = |leaf: &Leaf| {
        let own = leaf.watched()?;
        let mut seen = seen.iter();
        seen.find(|(watched, _)| Arc::ptr_eq(watched, &own))
    };
    // What a closed device had left to answer does not keep it open for longer than that.
    for vdev in tree.iter().flat_map(|tree| tree.leaves()) {
        if let Some(leaf) = vdev.leaf() {
            leaf.is_busy();
        }
    }
    let mut in_use: Vec<*const Watched> = Vec::new();
    let mut longest: Option<(Guid, u32)> = None;
    let is_opening = common.patience.is_opening();
    for top in tree.iter().flat_map(|tree| tree.tops()) {
        let (mut suspects, mut hung) = (Vec::new(), Vec::new());
        for vdev in top.leaves() {
            let Some(leaf) = vdev.leaf().filter(|leaf| leaf.is_readable()) else {
                continue;
            };
            let Some((watched, waiting)) = of(leaf) else {
                continue;
            };
            in_use.push(Arc::as_ptr(watched));
            if waiting.looks > longest.map_or(0, |(_, looks)| looks) {
                longest = Some((leaf.guid(), waiting.looks));
            }
            if waiting.looks >= overdue / 2 {
                suspects.push(leaf.guid());
            }
            if waiting.looks >= overdue {
                if let Some(io) = waiting.news {
                    let leaf = leaf.guid();
                    common.report(ErrorReport::Deadman { leaf, io });
                }
                hung.push(Hung {
                    leaf: leaf.clone(),
                    device: watched,
                    overdue: waiting.overdue,
                });
            }
        }
        let is_needed = || !is_opening && !top.is_log() && top.lacks_data_without(&suspects);
        if hung.is_empty() || is_needed() {
            continue;
        }
        for hung in hung {
            hung.leaf.give_up(hung.device, hung.overdue);
        }
    }
    for (watched, waiting) in &seen {
        if waiting.looks >= overdue && !in_use.contains(&Arc::as_ptr(watched)) {
            watched.give_up();
        }
    }
    common.patience.set_longest_wait(longest);
}

/// Opens a device that is no part of a pool's tree, to look at its labels or write them. Nobody
/// waits for it for ever: once it has kept an operation waiting for 30 seconds, it is given up.
///
/// # Errors
/// Those of the opening; [`DeviceError::Hung`].
pub async fn open_patiently(
    world: &World,
    path: &str,
    read_only: bool,
) -> Result<Arc<dyn Device>, DeviceError> {
    let opening = world.opener.open(path, read_only);
    let device = match select(opening, world.clock.sleep(PATIENCE)).await {
        Either::Left((device, _)) => device?,
        Either::Right(_) => {
            return Err(DeviceError::Hung {
                path: path.to_owned(),
            });
        }
    };
    let watched = Watched::new(device);
    let (weak, clock) = (Arc::downgrade(&watched), world.clock.clone());
    world.spawn.spawn(Box::pin(async move {
        let patience = PATIENCE.as_secs() as u32;
        loop {
            clock.sleep(Duration::from_secs(1)).await;
            let Some(watched) = weak.upgrade() else {
                return;
            };
            let waiting = watched.look(clock.monotonic_ns(), u32::MAX, patience);
            if waiting.looks >= patience {
                watched.give_up();
                return;
            }
        }
    }));
    Ok(watched)
}

impl Leaf {
    /// The pool goes on without its device, which does not answer: see the module's head. Unless it
    /// is out of use, or has another one, by now.
    fn give_up(&self, device: &Arc<Watched>, overdue: u64) {
        let is_its_own = |own: Arc<Watched>| Arc::ptr_eq(&own, device);
        if !self.is_readable() || !self.watched().is_some_and(is_its_own) {
            return;
        }
        let hangs = self.hangs.fetch_add(1, Ordering::Relaxed) + 1;
        tracing::error!(leaf = %self.guid(), hangs, "a device does not answer: given up");
        self.count_slow(overdue);
        self.given_up.store(true, Ordering::Relaxed);
        // First of all, so that what fails by it is not taken for errors of a device in use.
        match hangs < HANGS_MAX {
            true => self.set_state(VdevState::CantOpen, VdevAux::OpenFailed),
            false => self.set_state(VdevState::Faulted, VdevAux::ErrorsExceeded),
        }
        self.set_device(None);
        device.give_up();
    }

    /// Whether it was given up because it did not answer, and may be tried again when it does.
    pub fn is_given_up(&self) -> bool {
        self.state().0 == VdevState::CantOpen && self.given_up.load(Ordering::Relaxed)
    }

    /// Whether a device that it had before has not answered everything yet: it may still change.
    pub fn is_busy(&self) -> bool {
        let mut before = self.before.lock();
        before.retain(|watched| watched.outstanding() > 0);
        !before.is_empty()
    }
}
