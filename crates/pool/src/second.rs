//! The pool's cache devices at work: the second level of the cache has those that are there.
//!
//! Whoever changes the list of cache devices, or looks at them again, has the second level follow
//! ([`follow`]): it opens what is there and not in use, and lets go of what is gone, offline or no
//! longer listed. A device that failed stays with it, unused, and is told as faulted until `zpool
//! clear`, `zpool online` or an import tries it again ([`let_go_of_failed`]). None of this is ever
//! a reason to refuse something else: what cannot be used is warned of, and told as unavailable.
//!
//! A pool that is open read-only has none: its devices would have to be written.
//!
//! Source: module/zfs/spa.c (`spa_load_l2cache`), module/zfs/arc.c (`l2arc_add_vdev`,
//! `l2arc_remove_vdev`).

use std::collections::BTreeMap;
use std::sync::Arc;

use device::{Device, World};
use format::{Guid, Txg};
use l2arc::{CacheDevice, Figures, Identity, SecondLevel, State};
use parking_lot::Mutex;
use vdev::{VdevAux, read_labels};

use crate::auxiliary::Auxiliary;
use crate::{PoolError, VdevState, VdevStatus};

/// Where a cache device is, and the size of its sectors.
struct Place {
    path: String,
    ashift: u32,
}

fn usable(lists: &Mutex<Auxiliary>) -> BTreeMap<Guid, Place> {
    let lists = lists.lock();
    let there = lists.caches.statuses.iter();
    let there = there.filter(|status| status.state == VdevState::Online);
    there
        .filter_map(|status| {
            let place = Place {
                path: status.path.clone()?,
                ashift: status.ashift.into(),
            };
            Some((status.guid, place))
        })
        .collect()
}

/// Has the second level of a pool that is written use the devices that are there, and no others.
pub(crate) async fn follow(
    level: &SecondLevel,
    world: &World,
    pool: Guid,
    lists: &Mutex<Auxiliary>,
) {
    let there = usable(lists);
    for figures in level.figures() {
        if !there.contains_key(&figures.device) {
            level.remove(figures.device).await;
        }
    }
    let used: Vec<Guid> = level.figures().iter().map(|f| f.device).collect();
    for (guid, place) in there {
        if used.contains(&guid) {
            continue;
        }
        // Who opens it for writing keeps others off from then on.
        lists.lock().caches.release(guid);
        world.opener.lend(&place.path).await;
        let device = match open(world, &place.path, guid).await {
            Ok(device) => device,
            Err(error) => {
                let path = place.path;
                tracing::warn!(path, %error, "a cache device cannot be used");
                leave(world, lists, guid, &path, VdevAux::OpenFailed).await;
                continue;
            }
        };
        let is_used = level.add(CacheDevice {
            device,
            identity: Identity { pool, device: guid },
            ashift: place.ashift,
        });
        if !is_used {
            let path = place.path;
            tracing::warn!(path, "a cache device is too small, or there are too many");
            leave(world, lists, guid, &path, VdevAux::TooSmall).await;
        }
    }
}

/// Says why a device is not used until it is looked at again, and keeps others off it as before.
async fn leave(world: &World, lists: &Mutex<Auxiliary>, guid: Guid, path: &str, why: VdevAux) {
    let hold = world.opener.hold(path).await;
    lists.lock().caches.leave(guid, why, hold.ok());
}

/// The device, if it is still the right one.
async fn open(world: &World, path: &str, guid: Guid) -> Result<Arc<dyn Device>, PoolError> {
    let device = vdev::open_patiently(world, path, false).await?;
    let labels = read_labels(&*device).await?;
    let found = labels
        .config(Txg::new(u64::MAX))
        .and_then(|label| label.u64("guid"));
    if found != Some(guid.get()) {
        return Err(PoolError::NotInPool {
            device: path.to_owned(),
        });
    }
    Ok(device)
}

/// Lets go of those of these devices that failed: who looks at them again tries them again.
pub(crate) async fn let_go_of_failed(level: &SecondLevel, is_meant: impl Fn(Guid) -> bool) {
    for figures in level.figures() {
        if figures.state == State::Failed && is_meant(figures.device) {
            level.remove(figures.device).await;
        }
    }
}

/// How a cache device is.
pub(crate) fn state_of(level: &SecondLevel, lists: &Mutex<Auxiliary>, guid: Guid) -> VdevState {
    let caches = statuses(level, lists);
    let found = caches.iter().find(|status| status.guid == guid);
    found.map_or(VdevState::CantOpen, |status| status.state)
}

/// How the cache devices are, with what they hold and did.
pub(crate) fn statuses(level: &SecondLevel, lists: &Mutex<Auxiliary>) -> Vec<VdevStatus> {
    let figures = level.figures();
    let mut statuses = lists.lock().caches.statuses.clone();
    for status in &mut statuses {
        let of_it = |figures: &&Figures| figures.device == status.guid;
        if let Some(figures) = figures.iter().find(of_it) {
            tell(status, figures);
        }
    }
    statuses
}

fn tell(status: &mut VdevStatus, figures: &Figures) {
    if figures.state == State::Failed && status.state == VdevState::Online {
        status.state = VdevState::Faulted;
        status.aux = VdevAux::ErrorsExceeded;
    }
    status.size_bytes = figures.size_bytes;
    status.allocated_bytes = figures.used_bytes;
    status.read_ops = figures.hits;
    status.read_bytes = figures.read_bytes;
    status.write_ops = figures.writes;
    status.write_bytes = figures.written_bytes;
    status.trim_ops = figures.trimmed.commands;
    status.trim_bytes = figures.trimmed.bytes;
    status.trim_errors = figures.trimmed.errors;
    status.read_errors = figures.read_errors;
    status.write_errors = figures.write_errors;
    status.checksum_errors = figures.wrong;
}
