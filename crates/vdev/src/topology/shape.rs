//! Vdevs made anew over other children, at another place, or with another parent: a vdev's own
//! children never change (see [`super::change`]).
//!
//! The device, the counters, the dirty times and the numbers of a top-level vdev are shared between
//! the vdev before and the one after.

use std::collections::BTreeSet;
use std::sync::{Arc, OnceLock};

use format::{Guid, NvList};
use parking_lot::Mutex;

use crate::expansion::Expansion;
use crate::kind::{
    DraidSpareVdev, DraidVdev, LeafVdev, MirrorRole, MirrorVdev, OtherVdev, RaidzVdev, VdevKind,
};
use crate::node::Vdev;
use crate::state::Counters;

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

/// The same vdev, at the same place, over other children.
pub(super) fn with_children(vdev: &Vdev, children: Vec<Arc<Vdev>>) -> Arc<Vdev> {
    Arc::new(Vdev {
        guid: vdev.guid,
        id: vdev.id,
        kind: vdev.kind.with_children(children),
        top: vdev.top.clone(),
        config: vdev.config.clone(),
        world: vdev.world.clone(),
        repairs: vdev.repairs.clone(),
        counters: vdev.counters.clone(),
    })
}

/// The same vdev as child `id` of another vdev: no top-level vdev (any more).
pub(super) fn as_child(vdev: &Vdev, id: u64) -> Arc<Vdev> {
    let mut moved = with_children(vdev, vdev.children().to_vec());
    let own = Arc::get_mut(&mut moved).expect("nobody else has it yet");
    own.id = id;
    if own.top.take().is_some() {
        let mut config = vdev.config.lock().clone();
        for pair in TOP_PAIRS {
            config.remove(pair);
        }
        own.config = Arc::new(Mutex::new(config));
    }
    moved
}

/// The same vdev in place of its parent `top`, which is a top-level vdev and lends it its guid.
pub(super) fn as_top(vdev: &Vdev, top: &Vdev) -> Arc<Vdev> {
    let mut moved = with_children(vdev, vdev.children().to_vec());
    let own = Arc::get_mut(&mut moved).expect("nobody else has it yet");
    let mut config = vdev.config.lock().clone();
    take_top_pairs(&mut config, &top.config.lock());
    own.guid = top.guid;
    own.id = top.id;
    own.top = top.top.clone();
    own.config = Arc::new(Mutex::new(config));
    moved
}

/// A RAID-Z vdev with one more child, from which on an expansion of it is under way.
pub(crate) fn widened(vdev: &Vdev, new: &Vdev) -> Arc<Vdev> {
    let mut children = vdev.children().to_vec();
    let expansion = Expansion::begin(vdev.kind.expansion(), children.len());
    children.push(as_child(new, children.len() as u64));
    let mut wider = with_children(vdev, children);
    let own = Arc::get_mut(&mut wider).expect("nobody else has it yet");
    if let VdevKind::Raidz(raidz) = &mut own.kind {
        raidz.expansion = Some(Arc::new(expansion));
    }
    wider
}

/// The vdev right above the one with this guid, at `vdev` or below it.
pub(super) fn parent_in(vdev: &Arc<Vdev>, guid: Guid) -> Option<Arc<Vdev>> {
    if vdev.children().iter().any(|child| child.guid == guid) {
        return Some(vdev.clone());
    }
    vdev.children()
        .iter()
        .find_map(|child| parent_in(child, guid))
}

/// This vdev with `new` in the place of `old`, which is here or below; `None` when it is not.
fn with_replaced(vdev: &Arc<Vdev>, old: &Arc<Vdev>, new: &Arc<Vdev>) -> Option<Arc<Vdev>> {
    if Arc::ptr_eq(vdev, old) {
        return Some(new.clone());
    }
    let children = vdev.children();
    let (index, child) = children.iter().enumerate().find_map(|(index, child)| {
        let child = with_replaced(child, old, new)?;
        Some((index, child))
    })?;
    let mut children = children.to_vec();
    children[index] = child;
    Some(with_children(vdev, children))
}

/// Whether a dRAID spare stands in for a device here or below.
fn has_draid_spare(vdev: &Vdev) -> bool {
    matches!(vdev.kind, VdevKind::DraidSpare(_))
        || vdev.children().iter().any(|child| has_draid_spare(child))
}

/// This vdev, with all dRAID spares in it made anew.
fn with_new_spares(vdev: &Arc<Vdev>) -> Arc<Vdev> {
    if !has_draid_spare(vdev) {
        return vdev.clone();
    }
    let children = vdev.children().iter();
    with_children(vdev, children.map(with_new_spares).collect())
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
pub(super) fn parent_over(
    below: &Arc<Vdev>,
    new: &Arc<Vdev>,
    role: MirrorRole,
    guid: Guid,
) -> Arc<Vdev> {
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
            children: vec![as_child(below, 0), as_child(new, 1)],
        }),
        top: below.top.clone(),
        config: Arc::new(Mutex::new(config)),
        world: below.world.clone(),
        repairs: below.repairs.clone(),
        counters: Arc::new(Counters::default()),
    })
}

/// `top` with `with` for `changed`. Of dRAID vdevs, spares know the new one.
pub(super) fn renewed(top: &Arc<Vdev>, changed: &Arc<Vdev>, with: &Arc<Vdev>) -> Arc<Vdev> {
    let replaced = with_replaced(top, changed, with);
    let mut after = replaced.expect("what changes is a part of its top-level vdev");
    if matches!(after.kind, VdevKind::Draid(_)) {
        after = with_new_spares(&after);
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
    let mut used = BTreeSet::new();
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
