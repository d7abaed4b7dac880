//! The pool's cache devices at work: the second level of the cache has those that are there.
//!
//! Whoever changes the list of cache devices, or looks at them again, has the second level follow
//! ([`follow`]): it opens what is there and not in use, and lets go of what is gone, offline or no
//! longer listed. A device that failed stays with it, unused, and is told as faulted until `zpool
//! clear`, `zpool online` or an import tries it again ([`try_again`]). None of this is ever a
//! reason to refuse or to delay something else: what cannot be used is warned of.
//!
//! A pool that is open read-only has none: its devices would have to be written.
//!
//! Source: module/zfs/spa.c (`spa_load_l2cache`), module/zfs/arc.c (`l2arc_add_vdev`,
//! `l2arc_remove_vdev`).

use std::collections::BTreeMap;

use device::Device;
use format::{Guid, Txg};
use l2arc::{CacheDevice, Figures, Identity, State};
use parking_lot::Mutex;
use spa::Spa;
use std::sync::Arc;
use vdev::{VdevAux, read_labels};

use crate::auxiliary::Auxiliary;
use crate::core::Core;
use crate::{PoolError, VdevState, VdevStatus, auxiliary};

/// Has the pool's events tell of cache devices that fail.
pub(crate) fn watch(core: &Arc<Core>) {
    let weak = Arc::downgrade(core);
    core.pipeline
        .second_level()
        .on_failure(Box::new(move |guid| {
            let Some(core) = weak.upgrade() else { return };
            let path = {
                let lists = core.auxiliary.lock();
                let status = lists.caches.status(guid);
                status.and_then(|status| status.path.clone())
            };
            core.events.cache_failed(guid, path);
        }));
}

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

/// Has the second level use the devices that are there, and no others.
pub(crate) async fn follow(spa: &Spa, lists: &Mutex<Auxiliary>) {
    let second = spa.pipeline.second_level();
    if spa.read_only {
        return;
    }
    let there = usable(lists);
    for figures in second.figures() {
        if !there.contains_key(&figures.device) {
            second.remove(figures.device).await;
        }
    }
    let used: Vec<Guid> = second.figures().iter().map(|f| f.device).collect();
    for (guid, place) in there {
        if used.contains(&guid) {
            continue;
        }
        // Who opens it for writing keeps others off from then on.
        lists.lock().caches.release(guid);
        spa.world.opener.lend(&place.path).await;
        let device = match open(spa, &place.path, guid).await {
            Ok(device) => device,
            Err(error) => {
                let path = place.path;
                tracing::warn!(path, %error, "a cache device cannot be used");
                continue;
            }
        };
        let pool = spa.guid();
        let is_used = second.add(CacheDevice {
            device,
            identity: Identity { pool, device: guid },
            ashift: place.ashift,
        });
        if !is_used {
            let path = place.path;
            tracing::warn!(path, "a cache device is too small, or there are too many");
        }
    }
}

/// The device, if it is still the right one.
async fn open(spa: &Spa, path: &str, guid: Guid) -> Result<Arc<dyn Device>, PoolError> {
    let device = vdev::open_patiently(&spa.world, path, false).await?;
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

/// Which cache device a person calls so.
pub(crate) fn called(core: &Core, name: &str) -> Option<Guid> {
    core.auxiliary.lock().caches.find(name)
}

/// Takes a cache device out of use until it is brought back, or the pool is imported anew.
pub(crate) async fn offline(core: &Core, guid: Guid) {
    core.auxiliary.lock().caches.set_offline(guid, true);
    auxiliary::look_at_auxiliary(core, &core.auxiliary).await;
}

/// Uses a cache device that was taken out of use, or that failed. Returns how it is, and whether it
/// was in use before.
pub(crate) async fn online(core: &Core, guid: Guid) -> (VdevState, bool) {
    let state = || {
        let caches = statuses(core);
        let found = caches.iter().find(|status| status.guid == guid);
        found.map_or(VdevState::CantOpen, |status| status.state)
    };
    let before = state();
    core.auxiliary.lock().caches.set_offline(guid, false);
    try_again(core, |figures| figures.device == guid).await;
    (state(), before == VdevState::Online)
}

/// Tries those devices again that failed.
pub(crate) async fn try_again(core: &Core, is_meant: impl Fn(&Figures) -> bool) {
    let second = core.pipeline.second_level();
    for figures in second.figures() {
        if figures.state == State::Failed && is_meant(&figures) {
            second.remove(figures.device).await;
        }
    }
    auxiliary::look_at_auxiliary(core, &core.auxiliary).await;
}

/// How the cache devices are, with what they hold and did.
pub(crate) fn statuses(core: &Core) -> Vec<VdevStatus> {
    let figures = core.pipeline.second_level().figures();
    let mut statuses = core.auxiliary.lock().caches.statuses.clone();
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
    status.read_errors = figures.read_errors;
    status.write_errors = figures.write_errors;
    status.checksum_errors = figures.wrong;
}
