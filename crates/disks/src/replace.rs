//! Property `autoreplace` by bays: a disk that is put where one of a pool's failed takes its place.
//!
//! A pool itself takes another device at the path of the one that it lacks. A disk that was put
//! into the bay of another one has a path of its own; where that bay is, the book of places knows.
//! Nothing that anybody may want is overwritten: a disk with partitions is left alone, and the pool
//! refuses one with a filesystem, a label of whatever pool, be it destroyed, or anything else that
//! is known on it. What an enclosure tells has to be so at two looks ten seconds apart, and again
//! when the pool is about to take the disk. What was refused for what the disk is or has is not
//! tried again while that stays; what something else was in the way of is.
//!
//! A crash leaves the pool with the replacement or without it: then the next looks find the same.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use api::{DiskCondition, DiskMember, DiskState, EventKind, Guid};
use device::BoxFuture;
use pool::{AttachSpec, LeafSpec, PoolError, TopologyError};
use service::events::Events;
use service::pools::Pools;
use tokio::time::Instant;

/// How long what was found has to be so: whoever moves disks may take one back, or another one.
pub(super) const LASTS: Duration = Duration::from_secs(10);

/// A disk, or one that a pool lacks.
#[derive(Clone, Debug)]
pub(super) struct InBay {
    pub(super) state: DiskState,
    /// It is there, without partitions, and nothing of the kernel's is made of it.
    pub(super) is_blank: bool,
}

/// A disk that may take the place of a pool's device.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Successor {
    pool: String,
    /// The device that failed.
    device: Guid,
    /// What the disk is known by.
    disk: String,
    path: String,
}

/// What was found at looks before.
pub(super) type Seen = BTreeMap<Successor, Sighting>;

/// Something that was found.
pub(super) struct Sighting {
    since: Instant,
    /// It is being tried, or the disk was refused.
    is_tried: Arc<AtomicBool>,
}

/// Looks what is in the bays now.
pub(super) type Look = Arc<dyn Fn() -> BoxFuture<'static, Vec<InBay>> + Send + Sync>;

/// Has disks take the places of those that failed in their bays, in pools that want it. Whether
/// something was found that has to be seen once more, after [`LASTS`].
pub(super) fn in_bays(
    (pools, events, look): (&Arc<Pools>, &Arc<Events>, &Look),
    disks: &[InBay],
    seen: &mut Seen,
) -> bool {
    let mut found = successors(disks);
    found.retain(|successor| is_wanted(pools, successor));
    seen.retain(|known, _| found.contains(known));
    let mut is_new = false;
    for successor in found {
        match seen.get(&successor) {
            Some(sighting) if sighting.is_tried.load(Ordering::Relaxed) => {}
            Some(sighting) if sighting.since.elapsed() < LASTS => is_new = true,
            Some(_) if !takes_any(pools, &successor) => {}
            Some(sighting) => {
                let is_tried = Arc::clone(&sighting.is_tried);
                is_tried.store(true, Ordering::Relaxed);
                begin((pools, events, look), successor, is_tried);
            }
            None => {
                is_new = true;
                let sighting = Sighting {
                    since: Instant::now(),
                    is_tried: Arc::default(),
                };
                seen.insert(successor, sighting);
            }
        }
    }
    is_new
}

/// Blank disks in the bays of those that pools lack: one in a bay, else nobody knows which.
fn successors(disks: &[InBay]) -> Vec<Successor> {
    let mut out = Vec::new();
    let is_missing = |disk: &&InBay| disk.state.condition == DiskCondition::Missing;
    let missing = disks.iter().filter(is_missing);
    for gone in missing.filter(|disk| disk.state.bay.is_some()) {
        let mut there = disks.iter().filter(|disk| {
            let (here, place) = (&disk.state, &gone.state);
            !is_missing(disk) && here.enclosure == place.enclosure && here.bay == place.bay
        });
        let (Some(new), None) = (there.next(), there.next()) else {
            continue;
        };
        if !new.is_blank || !new.state.members.is_empty() || new.state.id == gone.state.id {
            continue;
        }
        let is_alone = |member: &&DiskMember| !member.vdev.starts_with("replacing");
        for member in gone.state.members.iter().filter(is_alone) {
            out.push(Successor {
                pool: member.pool.clone(),
                device: member.guid,
                disk: new.state.id.clone(),
                path: new.state.path.clone(),
            });
        }
    }
    // One disk for one device.
    let all = out.clone();
    out.retain(|one| all.iter().filter(|other| other.path == one.path).count() == 1);
    out
}

/// Whether the pool is to take disks by itself.
fn is_wanted(pools: &Pools, successor: &Successor) -> bool {
    let Ok(open) = pools.get(&successor.pool) else {
        return false;
    };
    let wanted = open.pool.properties().get("autoreplace");
    wanted.is_some_and(|property| property.value == "on")
}

/// Whether the pool takes disks at the moment, as far as can be told.
fn takes_any(pools: &Pools, successor: &Successor) -> bool {
    pools.get(&successor.pool).is_ok_and(|open| {
        let pool = &open.pool;
        !pool.is_read_only() && pool.suspended().is_none() && !pool.scans().is_rebuilding()
    })
}

/// Whether a pool refused the disk for what that is or has.
fn is_of_disk(error: &PoolError) -> bool {
    matches!(
        error,
        PoolError::DeviceInUse { .. }
            | PoolError::TooSmall { .. }
            | PoolError::Topology(TopologyError::TooSmall { .. } | TopologyError::Ashift { .. })
    )
}

/// Begins a replacement. A pool that hangs holds up nothing but that.
fn begin(
    (pools, events, look): (&Arc<Pools>, &Arc<Events>, &Look),
    successor: Successor,
    is_tried: Arc<AtomicBool>,
) {
    let Ok(open) = pools.get(&successor.pool) else {
        is_tried.store(false, Ordering::Relaxed);
        return;
    };
    let (pools, events, look) = (Arc::clone(pools), Arc::clone(events), Arc::clone(look));
    tokio::spawn(async move {
        let _admin = open.admin.lock().await;
        // Somebody may have changed their mind while this waited, or the disk.
        let is_there = successors(&look().await).contains(&successor);
        if !is_there || !is_wanted(&pools, &successor) {
            is_tried.store(false, Ordering::Relaxed);
            return;
        }
        let spec = AttachSpec {
            device: LeafSpec {
                path: successor.path.clone(),
                is_file: false,
            },
            ashift: None,
            force: false,
            replace: true,
            sequential: false,
            untouched: true,
        };
        let Successor {
            pool, device, path, ..
        } = &successor;
        match open.pool.attach(&device.to_string(), &spec).await {
            Ok(()) => {
                tracing::info!(pool, %device, path, "a disk in its bay takes its place");
                pools.save_cached();
                open.background.poke(&open.pool);
                events.tell_of(&open.pool, EventKind::PoolChanged);
            }
            Err(error) if is_of_disk(&error) => {
                tracing::warn!(pool, %device, path, %error, "the disk in its bay is not taken");
            }
            Err(error) => {
                tracing::info!(pool, %device, path, %error, "the disk in its bay is not taken yet");
                is_tried.store(false, Ordering::Relaxed);
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use api::VdevState;

    use super::*;

    fn disk(id: &str, bay: &str, guid: Option<u64>) -> InBay {
        let member = |guid| DiskMember {
            pool: "tank".to_owned(),
            guid: Guid(guid),
            path: format!("/dev/{id}"),
            vdev: "mirror-0".to_owned(),
            state: VdevState::Removed,
        };
        InBay {
            state: DiskState {
                id: id.to_owned(),
                path: format!("/dev/{id}"),
                enclosure: Some("A".to_owned()),
                bay: Some(bay.to_owned()),
                members: guid.map(member).into_iter().collect(),
                condition: match guid {
                    Some(_) => DiskCondition::Missing,
                    None => DiskCondition::Good,
                },
                ..DiskState::default()
            },
            is_blank: guid.is_none(),
        }
    }

    #[test]
    fn only_a_blank_disk_in_its_bay_follows() {
        let paths = |disks: &[InBay]| -> Vec<String> {
            let found = successors(disks).into_iter();
            found.map(|successor| successor.path).collect()
        };
        let gone = || disk("old", "3", Some(7));
        let new = || disk("new", "3", None);
        assert_eq!(paths(&[gone(), new()]), ["/dev/new"]);
        assert!(paths(&[gone(), disk("new", "4", None)]).is_empty());
        assert!(paths(&[gone(), new(), disk("other", "3", None)]).is_empty());
        let mut parted = new();
        parted.is_blank = false;
        assert!(paths(&[gone(), parted]).is_empty());
        let mut replaced = gone();
        replaced.state.members[0].vdev = "replacing-0".to_owned();
        assert!(paths(&[replaced, new()]).is_empty());
        // Two devices that were on one disk.
        let mut both = gone();
        let mut second = both.state.members[0].clone();
        second.guid = Guid(8);
        both.state.members.push(second);
        assert!(paths(&[both, new()]).is_empty());
    }
}
