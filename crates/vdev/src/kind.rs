//! What a vdev is, with what only such a vdev has (`vdev_ops_t` and `vdev_tsd` in OpenZFS).
//!
//! A kind owns its children and its state; what all vdevs have (guid, counters, pairs of the
//! configuration) is in [`Vdev`]. What outlives a change of the tree ([`crate::topology`]) is
//! shared between the vdev before and the one after it.

use std::sync::{Arc, OnceLock, Weak};

use format::Guid;
use parking_lot::{Mutex, RwLock};

use crate::draid::Draid;
use crate::expansion::Expansion;
use crate::indirect_map::IndirectMap;
use crate::leaf::Leaf;
use crate::node::Vdev;
use crate::range_set::RangeSet;
use crate::recorded::Recorded;

/// Kinds of vdevs.
pub enum VdevKind {
    /// A device.
    Leaf(LeafVdev),
    /// Every child holds everything.
    Mirror(MirrorVdev),
    /// Rotating parity.
    Raidz(RaidzVdev),
    /// Parity groups spread over all children, with room for spares among them.
    Draid(DraidVdev),
    /// The spare room of a dRAID vdev, standing in for one of its devices.
    DraidSpare(DraidSpareVdev),
    /// Was removed; its id is not reused.
    Hole,
    /// Was removed and its blocks moved to others.
    Indirect(IndirectVdev),
    /// Unknown because its devices are not there.
    Missing,
    /// Something that we do not know: I/O is not supported.
    Other(OtherVdev),
}

/// What a leaf is on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LeafType {
    /// A block device.
    Disk,
    /// A regular file.
    File,
}

/// A device.
pub struct LeafVdev {
    /// What it is on.
    pub leaf_type: LeafType,
    pub(crate) leaf: Arc<Leaf>,
    /// What the pool's state on disk says of the transaction groups whose writes it lacks.
    pub(crate) recorded: Arc<Recorded>,
}

/// Why several vdevs hold the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum MirrorRole {
    /// For good.
    Mirror,
    /// While a device is being replaced.
    Replacing,
    /// While a hot spare stands in.
    Spare,
}

/// Children that each hold everything.
pub struct MirrorVdev {
    /// Why.
    pub role: MirrorRole,
    pub(crate) children: Vec<Arc<Vdev>>,
}

/// Rotating parity.
pub struct RaidzVdev {
    /// Parity columns, 1 to 3.
    pub parity: u64,
    pub(crate) children: Vec<Arc<Vdev>>,
    /// The widths it had, if it was or is being expanded.
    pub(crate) expansion: Option<Arc<Expansion>>,
}

/// Parity groups over all children.
pub struct DraidVdev {
    /// How they are spread.
    pub layout: Draid,
    pub(crate) children: Vec<Arc<Vdev>>,
}

/// The spare room of a dRAID vdev.
pub struct DraidSpareVdev {
    /// The dRAID vdev's guid.
    pub top_guid: Guid,
    /// Which of its spares.
    pub spare: u64,
    /// The dRAID vdev, once the tree stands.
    pub(crate) top: OnceLock<Weak<Vdev>>,
    /// The transaction groups whose writes it lacks (a leaf knows its own).
    pub(crate) missing: Arc<Mutex<RangeSet>>,
    /// What the pool's state on disk says of those.
    pub(crate) recorded: Arc<Recorded>,
}

/// A removed vdev whose blocks are on others.
#[derive(Clone, Default)]
pub struct IndirectVdev {
    /// Where they are, once that is known: another map takes the place of one that was condensed.
    pub(crate) map: Arc<RwLock<Option<Arc<IndirectMap>>>>,
}

/// A kind that we do not know.
pub struct OtherVdev {
    /// Its name in configurations.
    pub name: String,
    pub(crate) children: Vec<Arc<Vdev>>,
}

impl VdevKind {
    /// The type's name in configurations.
    pub fn name(&self) -> &str {
        match self {
            VdevKind::Leaf(leaf) => match leaf.leaf_type {
                LeafType::Disk => "disk",
                LeafType::File => "file",
            },
            VdevKind::Mirror(mirror) => match mirror.role {
                MirrorRole::Mirror => "mirror",
                MirrorRole::Replacing => "replacing",
                MirrorRole::Spare => "spare",
            },
            VdevKind::Raidz(_) => "raidz",
            VdevKind::Draid(_) => "draid",
            VdevKind::DraidSpare(_) => "dspare",
            VdevKind::Hole => "hole",
            VdevKind::Indirect(_) => "indirect",
            VdevKind::Missing => "missing",
            VdevKind::Other(other) => &other.name,
        }
    }

    /// Its children; none of most kinds.
    pub fn children(&self) -> &[Arc<Vdev>] {
        match self {
            VdevKind::Mirror(mirror) => &mirror.children,
            VdevKind::Raidz(raidz) => &raidz.children,
            VdevKind::Draid(draid) => &draid.children,
            VdevKind::Other(other) => &other.children,
            VdevKind::Leaf(_)
            | VdevKind::DraidSpare(_)
            | VdevKind::Hole
            | VdevKind::Indirect(_)
            | VdevKind::Missing => &[],
        }
    }

    /// Whether it is a device.
    pub fn is_leaf(&self) -> bool {
        matches!(self, VdevKind::Leaf(_))
    }

    /// Whether it was removed without leaving blocks behind.
    pub fn is_hole(&self) -> bool {
        matches!(self, VdevKind::Hole)
    }

    /// Whether it was removed and its blocks moved to others.
    pub fn is_indirect(&self) -> bool {
        matches!(self, VdevKind::Indirect(_))
    }

    /// The spare room of a dRAID vdev, if it is that.
    pub fn draid_spare(&self) -> Option<&DraidSpareVdev> {
        match self {
            VdevKind::DraidSpare(spare) => Some(spare),
            _ => None,
        }
    }

    /// Parity columns; zero of kinds without.
    pub fn parity(&self) -> u64 {
        match self {
            VdevKind::Raidz(raidz) => raidz.parity,
            VdevKind::Draid(draid) => draid.layout.parity,
            _ => 0,
        }
    }

    /// The widths that a RAID-Z vdev had, if it was or is being expanded.
    pub(crate) fn expansion(&self) -> Option<&Expansion> {
        match self {
            VdevKind::Raidz(raidz) => raidz.expansion.as_deref(),
            _ => None,
        }
    }
}

impl RaidzVdev {
    /// Children that what is written today is spread over.
    pub(crate) fn width(&self) -> usize {
        match &self.expansion {
            Some(expansion) => expansion.newest_width(),
            None => self.children.len(),
        }
    }

    /// Children that have a part of every row: not yet the new one while sectors are being moved.
    pub(crate) fn rows_width(&self) -> usize {
        let is_expanding = self.expansion.as_ref().is_some_and(|at| at.is_running());
        self.children.len() - usize::from(is_expanding)
    }
}

impl DraidSpareVdev {
    /// The transaction groups whose writes it lacks.
    pub fn missing(&self) -> RangeSet {
        self.missing.lock().clone()
    }

    /// Says which transaction groups' writes it lacks; until it was rebuilt, that is most of them.
    pub fn set_missing(&self, missing: RangeSet) {
        *self.missing.lock() = missing;
    }

    /// Changes the transaction groups whose writes it lacks in one step: others may add some at any
    /// time.
    pub fn change_missing(&self, change: impl FnOnce(&mut RangeSet)) {
        change(&mut self.missing.lock());
    }

    /// Whether it lacks writes of `txg`.
    pub(crate) fn is_missing(&self, txg: format::Txg) -> bool {
        !txg.is_zero() && self.missing.lock().contains(txg.get(), 1)
    }

    /// The vdev behind it at this offset, which must be one of a block's columns: elsewhere a
    /// device may be told to stand in for itself.
    pub(crate) fn child(&self, offset: u64) -> Option<Arc<Vdev>> {
        let top = self.top.get()?.upgrade()?;
        let VdevKind::Draid(draid) = top.kind() else {
            return None;
        };
        let child = draid.layout.spare_child(self.spare, offset)?;
        draid.children.get(child).cloned()
    }
}
