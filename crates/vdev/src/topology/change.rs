//! Changes of the vdev tree below top-level vdevs, while the pool is in use (`spa_vdev_attach`,
//! `spa_vdev_detach`, module/zfs/spa.c; `vdev_add_parent`, `vdev_remove_parent`,
//! `vdev_compact_children`, module/zfs/vdev.c).
//!
//! # Copy on write
//!
//! A vdev's children never change. A change makes the vdevs on the way from the one that differs up
//! to the top-level vdev anew, and puts the new top-level vdev in the old one's place in the list.
//! What lives on is shared by both: the [`Leaf`](crate::Leaf) with its device, queue and dirty
//! times, the numbers of a top-level vdev ([`Top`](crate::Top)), counters, and the pairs of the
//! configuration. Changes are made in syncing context, one at a time, in a transaction group that
//! writes the configuration; so nobody but I/O sees a tree change.
//!
//! # I/O under way
//!
//! I/O finishes on the top-level vdev that it began on.
//!
//! - **A device that comes in** gets nothing of such I/O. It is taken to lack every transaction
//!   group up to the last one that can be open then, and is resilvered.
//! - **A device that goes** may be the only one that took such a write, when all others failed. So
//!   the last reference to the old vdev is waited for, and then looked whether the others have
//!   everything ([`VdevTree::detach`]); else the change is undone.
//!
//! # What a crash leaves
//!
//! Labels and MOS tell of the tree before or the one after the change, as of any other change of
//! the configuration. A top-level vdev keeps its guid when its last but one child goes: the child
//! takes it over, so that labels from before and after are of the same top-level vdev.

use std::sync::Arc;
use std::time::Duration;

use device::Clock;
use format::{Guid, NvList, Txg};

use super::Topology;
use super::error::TopologyError;
use super::redundancy::{misses_nothing, outage};
use super::shape::{as_child, as_top, parent_in, parent_over, renewed, with_children};
use crate::error::{VdevError, bad};
use crate::kind::{MirrorRole, VdevKind};
use crate::node::Vdev;
use crate::range_set::RangeSet;
use crate::sizes::least_child_bytes;
use crate::tree::VdevTree;
use crate::tree::opening::Opening;

/// What a device's path gets behind it when another one takes its place under the same path.
const OLD: &str = "/old";
/// How long I/O may take that began before a change; then the change is put off.
const DRAIN: Duration = Duration::from_secs(2);
/// Between two looks whether it has ended.
const DRAIN_STEP: Duration = Duration::from_millis(1);

/// A device that is no part of the tree any more.
#[derive(Debug, Clone)]
pub struct Detached {
    /// The device; its [`Vdev`] has no top-level vdev.
    pub vdev: Arc<Vdev>,
    /// What the top-level vdev was.
    pub before: Arc<Vdev>,
    /// What it is now.
    pub after: Arc<Vdev>,
    /// A device that has taken over the guid of its top-level vdev: its own before, and that.
    pub renamed: Option<(Guid, Guid)>,
    /// The hot spare that has become a device like any other, by the guid that it had.
    pub unspared: Option<Guid>,
}

/// A device that its successor has made superfluous.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Replaced {
    /// The device.
    pub old: Guid,
    /// What it is a part of.
    pub parent: Guid,
    /// The successor of a device that a spare stood in for: that spare is to go next.
    pub unspares: Option<Guid>,
}

/// A vdev to replace the tree's, and what has to be undone with it.
struct Plan {
    gone: Arc<Vdev>,
    after: Arc<Vdev>,
    /// The leaf whose guid changes.
    renamed: Option<(Arc<Vdev>, Guid)>,
    unspared: Option<Arc<Vdev>>,
    /// The device for which a spare stood in, or the spare, that is left alone.
    alone: Option<Arc<Vdev>>,
    /// The device that gets its path back.
    restored: Option<(Arc<Vdev>, String)>,
}

/// What a mirror-like vdev is for; `None` of other vdevs.
fn role(vdev: &Vdev) -> Option<MirrorRole> {
    match &vdev.kind {
        VdevKind::Mirror(mirror) => Some(mirror.role),
        _ => None,
    }
}

fn is_spare(vdev: &Vdev) -> bool {
    vdev.config_u64("is_spare") == Some(1)
}

impl Topology {
    /// Whether a device could be attached to the device `target`, as `role` says: for good, or to
    /// replace it, or to stand in for it.
    ///
    /// # Errors
    /// [`TopologyError`].
    pub fn check_attach(
        &self,
        target: Guid,
        as_role: MirrorRole,
        is_new_spare: bool,
    ) -> Result<(), TopologyError> {
        let (top, old) = self.device(target)?;
        let parent = parent_in(&top, target);
        let above = parent.as_deref().and_then(role);
        if as_role == MirrorRole::Mirror {
            return match (&parent, above) {
                (None, _) | (_, Some(MirrorRole::Mirror)) => Ok(()),
                _ => Err(TopologyError::CannotAttach {
                    vdev: old.display_name(),
                }),
            };
        }
        let vdev = old.display_name();
        if is_new_spare && top.is_log() {
            return Err(TopologyError::IsLog { vdev });
        }
        let grand = parent.and_then(|parent| parent_in(&top, parent.guid));
        match above {
            // Spares stand in for each other, other devices replace each other.
            Some(MirrorRole::Spare) if is_spare(&old) && !is_new_spare => {
                Err(TopologyError::OnlyBySpare { vdev })
            }
            Some(MirrorRole::Spare) if !is_spare(&old) && is_new_spare => {
                Err(TopologyError::CannotReplace { vdev })
            }
            // A second spare for what has one (`spa_vdev_new_spare_would_cause_double_spares`).
            Some(MirrorRole::Replacing)
                if is_new_spare && grand.as_deref().and_then(role) == Some(MirrorRole::Spare) =>
            {
                Err(TopologyError::CannotReplace { vdev })
            }
            _ => Ok(()),
        }
    }

    /// Whether a distributed spare of the dRAID vdev `owner` could stand in for the device
    /// `target`: only if that is one of its own (`spa_vdev_attach`, module/zfs/spa.c).
    ///
    /// # Errors
    /// [`TopologyError::OtherDraid`], [`TopologyError::NoSuchVdev`], [`TopologyError::NotADevice`].
    pub fn check_own_spare(&self, target: Guid, owner: Guid) -> Result<(), TopologyError> {
        let (top, old) = self.device(target)?;
        match &top.kind {
            VdevKind::Draid(_) if top.guid == owner => Ok(()),
            _ => Err(TopologyError::OtherDraid {
                vdev: old.display_name(),
            }),
        }
    }

    /// Whether a device has the room and the sectors that the vdev `target` needs.
    ///
    /// # Errors
    /// [`TopologyError::TooSmall`], [`TopologyError::Ashift`], [`TopologyError::NoSuchVdev`].
    pub fn check_fits(
        &self,
        target: Guid,
        path: &str,
        usable_bytes: u64,
        ashift: u32,
    ) -> Result<(), TopologyError> {
        let top = self.top_of(target);
        let top = top.ok_or(TopologyError::NoSuchVdev { guid: target })?;
        let needed_bytes = least_child_bytes(&top);
        if usable_bytes < needed_bytes {
            return Err(TopologyError::TooSmall {
                path: path.to_owned(),
                usable_bytes,
                needed_bytes,
            });
        }
        if ashift > top.ashift() {
            return Err(TopologyError::Ashift {
                wanted: ashift,
                known: top.ashift(),
            });
        }
        Ok(())
    }

    /// Takes `with` for `changed`, which is `top` or below it.
    fn swap(&self, top: &Arc<Vdev>, changed: &Arc<Vdev>, with: &Arc<Vdev>) -> Arc<Vdev> {
        let after = renewed(top, changed, with);
        self.put(&after);
        after
    }

    fn plan_detach(&self, target: Guid, parent: Option<Guid>) -> Result<Plan, TopologyError> {
        let (top, gone) = self.device(target)?;
        let named = || gone.display_name();
        let above = parent_in(&top, target);
        if parent.is_some() && above.as_ref().map(|above| above.guid) != parent {
            return Err(TopologyError::Changed { vdev: named() });
        }
        let mirror = above.filter(|above| role(above).is_some() && above.children().len() > 1);
        let Some(above) = mirror else {
            return Err(TopologyError::CannotDetach { vdev: named() });
        };
        if !outage(&top, target).is_empty() {
            return Err(TopologyError::OnlyCopy { vdev: named() });
        }
        // A replacement by a device under the same path that is given up.
        let as_old = gone.path().map(|path| format!("{path}{OLD}"));
        let restored = above
            .children()
            .iter()
            .filter(|_| role(&above) == Some(MirrorRole::Replacing) && gone.id > 0)
            .find(|child| child.path().is_some() && child.path() == as_old)
            .and_then(|child| Some((child.clone(), gone.path()?)));
        let left: Vec<Arc<Vdev>> = above
            .children()
            .iter()
            .filter(|child| child.guid != target)
            .enumerate()
            .map(|(id, child)| as_child(child, id as u64))
            .collect();
        // The device is gone for good: the spare stays.
        let unspared = left
            .last()
            .filter(|last| {
                role(&above) == Some(MirrorRole::Spare) && gone.id == 0 && is_spare(last)
            })
            .filter(|last| last.kind.is_leaf())
            .cloned();
        let alone = left
            .first()
            .filter(|_| role(&above) == Some(MirrorRole::Spare) && left.len() == 1)
            .cloned();
        let mut renamed = None;
        let with = match left.as_slice() {
            [last] if above.top.is_some() => {
                let moved = as_top(last, &above);
                if moved.kind.is_leaf() {
                    renamed = Some((last.clone(), moved.guid));
                }
                moved
            }
            [last] => as_child(last, above.id),
            _ => with_children(&above, left),
        };
        Ok(Plan {
            gone,
            after: renewed(&top, &above, &with),
            renamed,
            unspared,
            alone,
            restored,
        })
    }

    /// Whether a device can be detached now.
    ///
    /// # Errors
    /// As [`Self::detach`].
    pub fn check_detach(&self, target: Guid) -> Result<(), TopologyError> {
        self.plan_detach(target, None).map(|_| ())
    }

    /// A device that has been replaced, or that a spare was to stand in for or did, with what it is
    /// a part of (`spa_vdev_resilver_done_hunt`, module/zfs/spa.c): it can be detached. Its
    /// successor lacks nothing, and the pool's state on disk tells so.
    ///
    /// The first child is taken for the oldest, and the last one for the newest. Where the newest
    /// does not work, a person has to choose.
    pub fn replaced(&self) -> Option<Replaced> {
        self.all().iter().find_map(|top| replaced_below(top, top))
    }

    /// Says that a device works again, or has been replaced: a spare that stands in for it goes as
    /// soon as the device lacks nothing (`vdev_unspare`). Whether there is such a spare. The
    /// configuration has to be written then.
    pub fn unspare(&self, guid: Guid) -> bool {
        let Some(above) = self.parent_of(guid) else {
            return false;
        };
        let first = above.children().first();
        let first = first.filter(|first| first.guid == guid && first.state().0.is_usable());
        match first {
            Some(first) if role(&above) == Some(MirrorRole::Spare) => {
                first.set_config("unspare", 1u64);
                true
            }
            _ => false,
        }
    }
}

impl VdevTree {
    /// Opens the device of a leaf that is to be attached, by its configuration as a top-level vdev
    /// of its own. It is no part of the tree yet: label it with [`Self::init_labels`].
    ///
    /// # Errors
    /// When it cannot be opened.
    pub async fn prepare_leaf(&self, config: &NvList) -> Result<Arc<Vdev>, VdevError> {
        let prepared = self.prepare_tops(std::slice::from_ref(config)).await?;
        prepared
            .into_iter()
            .next()
            .filter(|vdev| vdev.kind().is_leaf())
            .ok_or_else(|| bad("the new vdev is not a device"))
    }

    /// Makes a distributed spare by its configuration in the pool's list, which is no part of the
    /// tree yet. There is nothing to open, and no label.
    ///
    /// # Errors
    /// [`VdevError::BadConfig`], [`VdevError::Format`].
    pub fn prepare_draid_spare(&self, config: &NvList) -> Result<Arc<Vdev>, VdevError> {
        let made = self.build(config)?;
        let is_it = matches!(made.kind, VdevKind::DraidSpare(_));
        let made = is_it.then_some(made);
        made.ok_or_else(|| bad("the spare is not a distributed one"))
    }

    /// Attaches the prepared device `new` to the device `target`: in syncing context, in a txg that
    /// writes the configuration. Where they need a new vdev above them, it gets the guid `parent`.
    /// The new device is taken to lack all before `until`, which no txg that is open now reaches.
    /// Returns the top-level vdev.
    ///
    /// # Errors
    /// [`TopologyError`]; then nothing has changed.
    pub fn attach(
        &self,
        target: Guid,
        new: &Arc<Vdev>,
        as_role: MirrorRole,
        parent: Guid,
        until: Txg,
    ) -> Result<Arc<Vdev>, TopologyError> {
        self.topology.check_attach(target, as_role, is_spare(new))?;
        if let VdevKind::DraidSpare(spare) = &new.kind {
            self.topology.check_own_spare(target, spare.top_guid)?;
        }
        let (top, old) = self.topology.device(target)?;
        let first = Txg::INITIAL.get();
        let missing = RangeSet::from_iter([(first, until.get().saturating_sub(first))]);
        match &new.kind {
            VdevKind::Leaf(own) => own.leaf.dirty_times().set_missing(missing.clone()),
            VdevKind::DraidSpare(spare) => spare.set_missing(missing.clone()),
            _ => {}
        }
        // A crash before this txg is on disk leaves a device that is no part of the pool.
        if let Some(recorded) = new.recorded() {
            recorded.set(missing, until);
        }
        if let Some(txg) = old.config_u64("create_txg") {
            new.set_config("create_txg", txg);
        }
        if old.path().is_some() && old.path() == new.path() {
            rename_old(&self.opening, &old);
        }
        let above = parent_in(&top, target);
        let (changed, with) = match above {
            Some(above) if role(&above) == Some(as_role) => {
                let mut children = above.children().to_vec();
                children.push(as_child(new, children.len() as u64));
                let with = with_children(&above, children);
                (above, with)
            }
            _ => {
                let with = parent_over(&old, new, as_role, parent);
                (old, with)
            }
        };
        Ok(self.topology.swap(&top, &changed, &with))
    }

    /// Takes a device out of its mirror, or out of the replacement that it is a part of: in syncing
    /// context, in a txg that writes the configuration. `parent` is what it has to be a part of.
    /// Its device stays open.
    ///
    /// Nobody may hold the top-level vdev meanwhile but I/O, whose end is waited for. What others
    /// lack because of that I/O, the device lacks as well if the change is undone: all before
    /// `until`, which no txg that is open now reaches.
    ///
    /// # Errors
    /// [`TopologyError`]; then nothing has changed.
    pub async fn detach(
        &self,
        target: Guid,
        parent: Option<Guid>,
        from: Txg,
        until: Txg,
    ) -> Result<Detached, TopologyError> {
        let plan = self.topology.plan_detach(target, parent)?;
        let top = self.topology.top_of(target);
        let before = top.ok_or(TopologyError::NoSuchVdev { guid: target })?;
        self.topology.put(&plan.after);
        let drained = drained(&*self.world().clock, &before).await;
        // By the tree that still has the device: what came in meanwhile went by it.
        let required = !outage(&before, target).is_empty();
        if !drained || required {
            self.topology.put(&before);
            for txg in from.get()..until.get() {
                match &plan.gone.kind {
                    VdevKind::Leaf(own) => own.leaf.dirty_times().add_missing(Txg::new(txg)),
                    VdevKind::DraidSpare(spare) => {
                        spare.missing.lock().add(txg, 1);
                    }
                    _ => {}
                }
            }
            let vdev = plan.gone.display_name();
            return Err(match required {
                true => TopologyError::OnlyCopy { vdev },
                false => TopologyError::Busy { vdev },
            });
        }
        let renamed = plan.renamed.map(|(vdev, guid)| {
            let own = vdev.guid;
            if let Some(leaf) = vdev.leaf() {
                leaf.set_guid(guid);
            }
            (own, guid)
        });
        // It may have become a top-level vdev, which has pairs of its own.
        let now = |vdev: &Vdev| {
            let renamed = renamed.filter(|(own, _)| *own == vdev.guid);
            plan.after.find(renamed.map_or(vdev.guid, |(_, guid)| guid))
        };
        if let Some((vdev, path)) = plan.restored
            && let Some(vdev) = now(&vdev)
        {
            vdev.set_config("path", path);
        }
        let unspared = plan.unspared.map(|vdev| {
            if let Some(vdev) = now(&vdev) {
                vdev.remove_config("is_spare");
                // Other spares that stand in with it go as soon as it lacks nothing.
                vdev.set_config("unspare", 1u64);
            }
            vdev.guid
        });
        if let Some(vdev) = plan.alone.and_then(|vdev| now(&vdev)) {
            vdev.remove_config("unspare");
        }
        Ok(Detached {
            vdev: plan.gone,
            before,
            after: plan.after,
            renamed,
            unspared,
        })
    }
}

fn replaced_below(top: &Arc<Vdev>, vdev: &Arc<Vdev>) -> Option<Replaced> {
    let mut below = vdev.children().iter();
    if let found @ Some(_) = below.find_map(|child| replaced_below(top, child)) {
        return found;
    }
    let role_here = role(vdev)?;
    let [first, .., last] = vdev.children() else {
        return None;
    };
    let is_set = |vdev: &Vdev| vdev.config_u64("unspare") == Some(1);
    let is_superfluous = |old: &Vdev, new: &Vdev| {
        let is_device = matches!(old.kind, VdevKind::Leaf(_) | VdevKind::DraidSpare(_));
        is_device && misses_nothing(new) && outage(top, old.guid).is_empty()
    };
    let found = |old: &Vdev| Replaced {
        old: old.guid,
        parent: vdev.guid,
        unspares: None,
    };
    let (old, new) = match role_here {
        MirrorRole::Mirror => return None,
        MirrorRole::Replacing => (first, last),
        MirrorRole::Spare if is_set(last) => (first, last),
        MirrorRole::Spare if is_set(first) => (last, first),
        // Of several spares that stand in with each other, the last one is enough.
        MirrorRole::Spare => {
            let [_, second, .., last] = vdev.children() else {
                return None;
            };
            let are_spares = is_spare(second) && is_spare(last);
            let is_done = are_spares && is_superfluous(second, last);
            return is_done.then(|| found(second));
        }
    };
    // A spare stands in for what is replaced: it goes first.
    if let (MirrorRole::Replacing, Some(MirrorRole::Spare), [.., spare]) =
        (role_here, role(old), old.children())
    {
        return is_superfluous(spare, new).then_some(Replaced {
            old: spare.guid,
            parent: old.guid,
            unspares: None,
        });
    }
    if !is_superfluous(old, new) {
        return None;
    }
    let grand = parent_in(top, vdev.guid);
    let was_spared = grand.is_some_and(|grand| {
        role(&grand) == Some(MirrorRole::Spare) && vdev.id == 0 && grand.children().len() == 2
    });
    let is_last = vdev.children().len() == 2 && role_here == MirrorRole::Replacing;
    Some(Replaced {
        unspares: (was_spared && is_last && new.kind.is_leaf()).then_some(new.guid),
        ..found(old)
    })
}

/// Waits for I/O that began on a top-level vdev which is not in the tree any more; tells
/// whether it has ended.
async fn drained(clock: &dyn Clock, before: &Arc<Vdev>) -> bool {
    let from = clock.monotonic_ns();
    // Our own reference.
    while Arc::strong_count(before) > 1 {
        if clock.monotonic_ns().saturating_sub(from) > DRAIN.as_nanos() as u64 {
            return false;
        }
        clock.sleep(DRAIN_STEP).await;
    }
    true
}

/// Another device is at the path of this one, which must not be opened there again.
fn rename_old(opening: &Opening, old: &Arc<Vdev>) {
    if let Some(path) = old.path() {
        old.set_config("path", format!("{path}{OLD}"));
    }
    old.remove_config("devid");
    opening.forget_path(old.guid());
}
