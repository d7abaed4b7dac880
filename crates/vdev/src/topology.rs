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

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use format::{Guid, NvList, Txg};
use parking_lot::Mutex;
use thiserror::Error;

use crate::error::{VdevError, bad};
use crate::kind::{
    DraidSpareVdev, DraidVdev, LeafVdev, MirrorRole, MirrorVdev, OtherVdev, RaidzVdev, VdevKind,
};
use crate::node::Vdev;
use crate::range_set::RangeSet;
use crate::state::Counters;
use crate::tree::VdevTree;

/// Pairs of the configuration that belong to the top-level vdev, whatever it is made of
/// (`vdev_top_transfer`, module/zfs/vdev.c).
const TOP_PAIRS: [&str; 12] = [
    "metaslab_array",
    "metaslab_shift",
    "ashift",
    "asize",
    "is_log",
    "alloc_bias",
    "removing",
    "non_allocating",
    "com.delphix:vdev_zap_top",
    "com.delphix:indirect_object",
    "com.delphix:indirect_births",
    "com.delphix:prev_indirect_vdev",
];
/// What a device's path gets behind it when another one takes its place under the same path.
const OLD: &str = "/old";
/// How long I/O may take that began before a change; then the change is put off.
const DRAIN: Duration = Duration::from_secs(2);
/// Between two looks whether it has ended.
const DRAIN_STEP: Duration = Duration::from_millis(1);

/// Why a tree does not change.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum TopologyError {
    /// There is no such vdev.
    #[error("there is no vdev {guid} in the pool; see 'zpool status -g'")]
    NoSuchVdev {
        /// Which one was meant.
        guid: Guid,
    },
    /// It has children.
    #[error("{vdev} is not a device; name one of its devices")]
    NotADevice {
        /// The vdev.
        vdev: String,
    },
    /// It is neither a top-level device nor one of a mirror.
    #[error("{vdev}: can only attach to mirrors and top-level disks; replace it instead")]
    CannotAttach {
        /// The vdev.
        vdev: String,
    },
    /// It is a part of something that a device of this kind cannot be a part of.
    #[error(
        "{vdev} is already in replacing/spare config; wait for completion or use 'zpool detach'"
    )]
    CannotReplace {
        /// The vdev.
        vdev: String,
    },
    /// It is a spare that stands in, which other devices do not replace.
    #[error("{vdev} is a hot spare in use, and can only be replaced by another hot spare")]
    OnlyBySpare {
        /// The spare.
        vdev: String,
    },
    /// Spares do not stand in for devices of logs.
    #[error("{vdev} holds intent logs, and a hot spare cannot replace it; use another device")]
    IsLog {
        /// The device.
        vdev: String,
    },
    /// The new device has not got the room that the vdev needs.
    #[error(
        "{path} has room for {usable_bytes} bytes, and {needed_bytes} are needed; use a larger \
         device"
    )]
    TooSmall {
        /// The new device.
        path: String,
        /// What blocks can be on.
        usable_bytes: u64,
        /// What they may be on already.
        needed_bytes: u64,
    },
    /// The new device wants larger sectors than its top-level vdev has.
    #[error(
        "the new device wants an ashift of {wanted}, and the top-level vdev has {known}; give '-o \
         ashift={known}' if the device can do that"
    )]
    Ashift {
        /// log2 of the device's sectors.
        wanted: u32,
        /// That of the vdev.
        known: u32,
    },
    /// No other device has all that it has, by its vdev's layout.
    #[error("{vdev}: only applicable to mirror and replacing vdevs; use 'zpool replace'")]
    CannotDetach {
        /// The vdev.
        vdev: String,
    },
    /// Some of what is on it is on no other device that works.
    #[error("{vdev} has the only valid copy of some data; wait for the resilver of the others")]
    OnlyCopy {
        /// The vdev.
        vdev: String,
    },
    /// It has another parent than when it was looked at.
    #[error("{vdev} has become a part of something else meanwhile; look at 'zpool status' again")]
    Changed {
        /// The vdev.
        vdev: String,
    },
    /// I/O that began before does not end.
    #[error("{vdev} is busy: its devices do not answer; try again when they do")]
    Busy {
        /// The vdev.
        vdev: String,
    },
}

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

impl VdevKind {
    /// The same over other children; what is not theirs is shared.
    fn with_children(&self, children: Vec<Arc<Vdev>>) -> VdevKind {
        match self {
            VdevKind::Leaf(leaf) => VdevKind::Leaf(LeafVdev {
                leaf_type: leaf.leaf_type,
                leaf: leaf.leaf.clone(),
                recorded: leaf.recorded.clone(),
            }),
            VdevKind::Mirror(mirror) => VdevKind::Mirror(MirrorVdev {
                role: mirror.role,
                children,
            }),
            VdevKind::Raidz(raidz) => VdevKind::Raidz(RaidzVdev {
                parity: raidz.parity,
                children,
                expansion: raidz.expansion.clone(),
            }),
            VdevKind::Draid(draid) => VdevKind::Draid(DraidVdev {
                layout: draid.layout.clone(),
                children,
            }),
            // Its dRAID vdev is another one now: see `link_spares`.
            VdevKind::DraidSpare(spare) => VdevKind::DraidSpare(DraidSpareVdev {
                top_guid: spare.top_guid,
                spare: spare.spare,
                top: OnceLock::new(),
                missing: spare.missing.clone(),
                recorded: spare.recorded.clone(),
            }),
            VdevKind::Hole => VdevKind::Hole,
            VdevKind::Missing => VdevKind::Missing,
            VdevKind::Indirect(indirect) => VdevKind::Indirect(indirect.clone()),
            VdevKind::Other(other) => VdevKind::Other(OtherVdev {
                name: other.name.clone(),
                children,
            }),
        }
    }
}

impl Vdev {
    /// The same, at the same place, over other children.
    fn with_children(&self, children: Vec<Arc<Vdev>>) -> Arc<Vdev> {
        Arc::new(Vdev {
            guid: self.guid,
            id: self.id,
            kind: self.kind.with_children(children),
            top: self.top.clone(),
            config: self.config.clone(),
            world: self.world.clone(),
            repairs: self.repairs.clone(),
            counters: self.counters.clone(),
        })
    }

    /// The same as child `id` of another vdev: no top-level vdev (any more).
    fn as_child(&self, id: u64) -> Arc<Vdev> {
        let mut moved = self.with_children(self.children().to_vec());
        let own = Arc::get_mut(&mut moved).expect("nobody else has it yet");
        own.id = id;
        if own.top.take().is_some() {
            let mut config = self.config.lock().clone();
            for pair in TOP_PAIRS {
                config.remove(pair);
            }
            own.config = Arc::new(Mutex::new(config));
        }
        moved
    }

    /// The same in place of its parent `top`, which is a top-level vdev and lends it its guid.
    fn as_top(&self, top: &Vdev) -> Arc<Vdev> {
        let mut moved = self.with_children(self.children().to_vec());
        let own = Arc::get_mut(&mut moved).expect("nobody else has it yet");
        let mut config = self.config.lock().clone();
        take_top_pairs(&mut config, &top.config.lock());
        own.guid = top.guid;
        own.id = top.id;
        own.top = top.top.clone();
        own.config = Arc::new(Mutex::new(config));
        moved
    }

    /// The vdev right above the one with this guid, here or below.
    fn parent_of(self: &Arc<Self>, guid: Guid) -> Option<Arc<Vdev>> {
        if self.children().iter().any(|child| child.guid == guid) {
            return Some(self.clone());
        }
        self.children()
            .iter()
            .find_map(|child| child.parent_of(guid))
    }

    /// This vdev with `new` in the place of `old`, which is here or below; `None` when it is not.
    fn with_replaced(self: &Arc<Self>, old: &Arc<Vdev>, new: &Arc<Vdev>) -> Option<Arc<Vdev>> {
        if Arc::ptr_eq(self, old) {
            return Some(new.clone());
        }
        let children = self.children();
        let (index, child) = children.iter().enumerate().find_map(|(index, child)| {
            let child = child.with_replaced(old, new)?;
            Some((index, child))
        })?;
        let mut children = children.to_vec();
        children[index] = child;
        Some(self.with_children(children))
    }

    /// Whether a dRAID spare stands in for a device here or below.
    fn has_draid_spare(&self) -> bool {
        matches!(self.kind, VdevKind::DraidSpare(_))
            || self.children().iter().any(|child| child.has_draid_spare())
    }

    /// This vdev, with all dRAID spares in it made anew.
    fn with_new_spares(self: &Arc<Self>) -> Arc<Vdev> {
        if !self.has_draid_spare() {
            return self.clone();
        }
        let children = self.children().iter();
        self.with_children(children.map(Vdev::with_new_spares).collect())
    }

    /// The transaction groups some of whose data is lost without the device `without`
    /// (`vdev_dtl_reassess` of `DTL_OUTAGE`, module/zfs/vdev.c).
    fn outage(&self, without: Guid) -> RangeSet {
        let all = || RangeSet::from_iter([(0, u64::MAX)]);
        match &self.kind {
            VdevKind::Leaf(vdev) if self.guid != without && vdev.leaf.is_readable() => {
                vdev.leaf.missing()
            }
            VdevKind::DraidSpare(spare) if self.guid != without && spare.top.get().is_some() => {
                spare.missing.lock().clone()
            }
            VdevKind::Leaf(_)
            | VdevKind::DraidSpare(_)
            | VdevKind::Missing
            | VdevKind::Other(_) => all(),
            VdevKind::Hole | VdevKind::Indirect(_) => RangeSet::new(),
            VdevKind::Mirror(_) | VdevKind::Raidz(_) | VdevKind::Draid(_) => {
                let children = self.children().iter();
                let sets: Vec<RangeSet> = children.map(|child| child.outage(without)).collect();
                in_more_than(&sets, self.redundancy())
            }
        }
    }

    /// Whether a resilver of this device, or of one that holds the same, has ended, in the pool's
    /// state on disk as well.
    fn misses_nothing(&self) -> bool {
        match &self.kind {
            VdevKind::Mirror(mirror) => mirror.children.iter().any(|child| child.misses_nothing()),
            _ => {
                self.leaf()
                    .is_some_and(|leaf| leaf.is_readable() && leaf.missing().is_empty())
                    && self.is_recorded_whole()
            }
        }
    }
}

/// What is in more than `count` of the sets.
fn in_more_than(sets: &[RangeSet], count: usize) -> RangeSet {
    let mut ends: Vec<(u64, i64)> = Vec::new();
    for range in sets.iter().flat_map(RangeSet::ranges) {
        ends.push((range.start, 1));
        ends.push((range.end, -1));
    }
    ends.sort_unstable();
    let mut out = RangeSet::new();
    let (mut depth, mut from) = (0, 0);
    for (at, step) in ends {
        if depth > count as i64 {
            out.add(from, at - from);
        }
        depth += step;
        from = at;
    }
    out
}

/// Gives a configuration the pairs of its top-level vdev in place of its own.
fn take_top_pairs(config: &mut NvList, top: &NvList) {
    for pair in TOP_PAIRS {
        match top.get(pair) {
            Some(value) => config.set(pair, value.clone()),
            None => {
                config.remove(pair);
                &mut *config
            }
        };
    }
}

/// A vdev of `role` in the place of `below`, over it and `new`.
fn parent_over(below: &Arc<Vdev>, new: &Arc<Vdev>, role: MirrorRole, guid: Guid) -> Arc<Vdev> {
    let mut config = NvList::new();
    if let Some(txg) = below.config_u64("create_txg") {
        config.set("create_txg", txg);
    }
    if below.top.is_some() {
        take_top_pairs(&mut config, &below.config.lock());
    }
    Arc::new(Vdev {
        guid,
        id: below.id,
        kind: VdevKind::Mirror(MirrorVdev {
            role,
            children: vec![below.as_child(0), new.as_child(1)],
        }),
        top: below.top.clone(),
        config: Arc::new(Mutex::new(config)),
        world: below.world.clone(),
        repairs: below.repairs.clone(),
        counters: Arc::new(Counters::default()),
    })
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

impl VdevTree {
    /// The top-level vdev that a vdev is, or is below.
    pub fn top_of(&self, guid: Guid) -> Option<Arc<Vdev>> {
        self.tops().into_iter().find(|top| top.find(guid).is_some())
    }

    /// The vdev above a vdev; `None` of a top-level vdev.
    pub fn parent_of(&self, guid: Guid) -> Option<Arc<Vdev>> {
        self.tops().iter().find_map(|top| top.parent_of(guid))
    }

    fn device(&self, guid: Guid) -> Result<(Arc<Vdev>, Arc<Vdev>), TopologyError> {
        let top = self.top_of(guid);
        let top = top.ok_or(TopologyError::NoSuchVdev { guid })?;
        let vdev = top.find(guid);
        let vdev = vdev.ok_or(TopologyError::NoSuchVdev { guid })?;
        match &vdev.kind {
            VdevKind::Leaf(_) | VdevKind::DraidSpare(_) => Ok((top, vdev)),
            _ => Err(TopologyError::NotADevice {
                vdev: vdev.display_name(),
            }),
        }
    }

    /// Whether some data is on no other device that works than this one (`vdev_dtl_required`,
    /// module/zfs/vdev.c): always of a top-level vdev that is a device.
    pub fn is_required(&self, guid: Guid) -> bool {
        self.top_of(guid)
            .is_some_and(|top| !top.outage(guid).is_empty())
    }

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
        let parent = top.parent_of(target);
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
        let grand = parent.and_then(|parent| top.parent_of(parent.guid));
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
        let needed_bytes = top.least_child_bytes();
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
        self.check_attach(target, as_role, is_spare(new))?;
        let (top, old) = self.device(target)?;
        let first = Txg::INITIAL.get();
        let missing = RangeSet::from_iter([(first, until.get().saturating_sub(first))]);
        if let Some(leaf) = new.leaf() {
            leaf.set_missing(missing.clone());
        }
        // A crash before this txg is on disk leaves a device that is no part of the pool.
        new.set_recorded_missing(missing, until);
        if let Some(txg) = old.config_u64("create_txg") {
            new.set_config("create_txg", txg);
        }
        if old.path().is_some() && old.path() == new.path() {
            self.rename_old(&old);
        }
        let above = top.parent_of(target);
        let (changed, with) = match above {
            Some(above) if role(&above) == Some(as_role) => {
                let mut children = above.children().to_vec();
                children.push(new.as_child(children.len() as u64));
                let with = above.with_children(children);
                (above, with)
            }
            _ => {
                let with = parent_over(&old, new, as_role, parent);
                (old, with)
            }
        };
        Ok(self.swap(&top, &changed, &with))
    }

    /// Another device is at the path of this one, which must not be opened there again.
    fn rename_old(&self, old: &Arc<Vdev>) {
        if let Some(path) = old.path() {
            old.set_path(&format!("{path}{OLD}"));
        }
        old.remove_config("devid");
        self.forget_path(old.guid());
    }

    /// Takes `with` for `changed`, which is `top` or below it.
    fn swap(&self, top: &Arc<Vdev>, changed: &Arc<Vdev>, with: &Arc<Vdev>) -> Arc<Vdev> {
        let after = renewed(top, changed, with);
        self.put_top(&after);
        after
    }

    fn plan_detach(&self, target: Guid, parent: Option<Guid>) -> Result<Plan, TopologyError> {
        let (top, gone) = self.device(target)?;
        let named = || gone.display_name();
        let above = top.parent_of(target);
        if parent.is_some() && above.as_ref().map(|above| above.guid) != parent {
            return Err(TopologyError::Changed { vdev: named() });
        }
        let mirror = above.filter(|above| role(above).is_some() && above.children().len() > 1);
        let Some(above) = mirror else {
            return Err(TopologyError::CannotDetach { vdev: named() });
        };
        if !top.outage(target).is_empty() {
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
            .map(|(id, child)| child.as_child(id as u64))
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
                let moved = last.as_top(&above);
                if moved.kind.is_leaf() {
                    renamed = Some((last.clone(), moved.guid));
                }
                moved
            }
            [last] => last.as_child(above.id),
            _ => above.with_children(left),
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
        let plan = self.plan_detach(target, parent)?;
        let top = self.top_of(target);
        let before = top.ok_or(TopologyError::NoSuchVdev { guid: target })?;
        self.put_top(&plan.after);
        let drained = self.drained(&before).await;
        // By the tree that still has the device: what came in meanwhile went by it.
        let required = !before.outage(target).is_empty();
        if !drained || required {
            self.put_top(&before);
            if let Some(leaf) = plan.gone.leaf() {
                for txg in from.get()..until.get() {
                    leaf.add_missing(Txg::new(txg));
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
            vdev.set_path(&path);
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

    /// Waits for I/O that began on a top-level vdev which is not in the tree any more; tells
    /// whether it has ended.
    async fn drained(&self, before: &Arc<Vdev>) -> bool {
        let clock = &self.world().clock;
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

    /// A device that has been replaced, or that a spare was to stand in for or did, with what it is
    /// a part of (`spa_vdev_resilver_done_hunt`, module/zfs/spa.c): it can be detached. Its
    /// successor lacks nothing, and the pool's state on disk tells so.
    ///
    /// The first child is taken for the oldest, and the last one for the newest. Where the newest
    /// does not work, a person has to choose.
    pub fn replaced(&self) -> Option<Replaced> {
        self.tops().iter().find_map(|top| replaced_below(top, top))
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

/// `top` with `with` for `changed`. Of dRAID vdevs, spares know the new one.
fn renewed(top: &Arc<Vdev>, changed: &Arc<Vdev>, with: &Arc<Vdev>) -> Arc<Vdev> {
    let replaced = top.with_replaced(changed, with);
    let mut after = replaced.expect("what changes is a part of its top-level vdev");
    if matches!(after.kind, VdevKind::Draid(_)) {
        after = after.with_new_spares();
        link_spares(&after);
    }
    after
}

/// Tells the dRAID spares of a dRAID vdev what they are a part of: each once, and within its own
/// vdev; else two could stand for each other.
pub(crate) fn link_spares(top: &Arc<Vdev>) {
    let VdevKind::Draid(draid) = top.kind() else {
        return;
    };
    let mut used = std::collections::BTreeSet::new();
    for vdev in top.draid_spares() {
        if let VdevKind::DraidSpare(spare) = vdev.kind()
            && spare.top_guid == top.guid()
            && spare.spare < draid.layout.spares
            && used.insert(spare.spare)
        {
            let _ = spare.top.set(Arc::downgrade(top));
        }
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
        old.kind.is_leaf() && new.misses_nothing() && top.outage(old.guid).is_empty()
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
    let grand = top.parent_of(vdev.guid);
    let was_spared = grand.is_some_and(|grand| {
        role(&grand) == Some(MirrorRole::Spare) && vdev.id == 0 && grand.children().len() == 2
    });
    let is_last = vdev.children().len() == 2 && role_here == MirrorRole::Replacing;
    Some(Replaced {
        unspares: (was_spared && is_last && new.kind.is_leaf()).then_some(new.guid),
        ..found(old)
    })
}
