//! The top-level vdevs of a pool, and what is asked of them together.
//!
//! | File | Holds |
//! |---|---|
//! | `topology` | [`Topology`]: the list, lookups, addresses |
//! | `redundancy` | whether the devices that are there make up for the others |
//! | `indirect` | blocks of removed vdevs |
//! | `change` | attach, replace, detach: what is allowed, and doing it |
//! | `shape` | vdevs made anew over other children |
//! | `error` | [`TopologyError`] |
//!
//! Locks: `list`, for lookups and for one vdev put in another's place; `former`, for a few
//! instructions. Neither is taken under the other. I/O goes on with the top-level vdev that it
//! found.

mod change;
mod error;
mod indirect;
mod redundancy;
mod shape;

use std::sync::{Arc, Weak};

use format::{Guid, VdevId};
use parking_lot::{Mutex, RwLock};

pub use self::change::{Detached, Replaced};
pub use self::error::TopologyError;
pub use self::indirect::{Remapped, mapping_of};
use self::shape::parent_in;
pub(crate) use self::shape::{link_spares, widened};
use crate::error::{VdevError, bad};
use crate::kind::VdevKind;
use crate::node::Vdev;
use crate::top_spec::{AllocClass, AllocUnits, common_divisor};

/// The top-level vdevs of a pool.
pub struct Topology {
    /// By index; ids have no gaps (removed vdevs are holes).
    list: RwLock<Vec<Arc<Vdev>>>,
    /// What others have taken the place of, as long as I/O goes on there.
    former: Mutex<Vec<(VdevId, Weak<Vdev>)>>,
}

impl Topology {
    pub(crate) fn new(list: Vec<Arc<Vdev>>) -> Self {
        Topology {
            list: RwLock::new(list),
            former: Mutex::default(),
        }
    }

    /// Number of top-level vdevs, holes included.
    pub fn count(&self) -> usize {
        self.list.read().len()
    }

    /// The top-level vdevs, holes included.
    pub fn all(&self) -> Vec<Arc<Vdev>> {
        self.list.read().clone()
    }

    /// A top-level vdev.
    pub fn get(&self, id: VdevId) -> Option<Arc<Vdev>> {
        self.list.read().get(id.get() as usize).cloned()
    }

    /// All leaves.
    pub fn leaves(&self) -> Vec<Arc<Vdev>> {
        self.all().iter().flat_map(Vdev::leaves).collect()
    }

    /// The vdev with this guid.
    pub fn find(&self, guid: Guid) -> Option<Arc<Vdev>> {
        self.all().iter().find_map(|top| top.find(guid))
    }

    /// Appends prepared vdevs.
    ///
    /// # Errors
    /// [`VdevError::BadConfig`] when others were added since they were prepared.
    pub(crate) fn append(&self, prepared: &[Arc<Vdev>]) -> Result<(), VdevError> {
        let mut list = self.list.write();
        let first = list.len();
        let follow =
            |(index, top): (usize, &Arc<Vdev>)| top.vdev_id().get() as usize == first + index;
        if !prepared.iter().enumerate().all(follow) {
            return Err(bad("vdevs were added by somebody else at the same time"));
        }
        list.extend(prepared.iter().cloned());
        Ok(())
    }

    /// Puts a top-level vdev in the place of the one that has its number, which is returned.
    pub(crate) fn put(&self, top: &Arc<Vdev>) -> Option<Arc<Vdev>> {
        let id = top.vdev_id();
        let before = {
            let mut list = self.list.write();
            let slot = list.get_mut(id.get() as usize)?;
            std::mem::replace(slot, top.clone())
        };
        let mut former = self.former.lock();
        former.retain(|(_, vdev)| vdev.strong_count() > 0);
        former.push((id, Arc::downgrade(&before)));
        Some(before)
    }

    /// All that a top-level vdev was before and that I/O may still go on with; those without any
    /// are gone.
    pub(crate) fn former(&self, id: VdevId) -> Vec<Weak<Vdev>> {
        let former = self.former.lock();
        let own = former.iter().filter(|(of, _)| *of == id);
        own.map(|(_, vdev)| vdev.clone()).collect()
    }

    /// The top-level vdev that a vdev is, or is below.
    pub fn top_of(&self, guid: Guid) -> Option<Arc<Vdev>> {
        self.all().into_iter().find(|top| top.find(guid).is_some())
    }

    /// The vdev above a vdev; `None` of a top-level vdev.
    pub fn parent_of(&self, guid: Guid) -> Option<Arc<Vdev>> {
        self.all().iter().find_map(|top| parent_in(top, guid))
    }

    /// A device or dRAID spare, behind its top-level vdev.
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

    /// What stored sizes are rounded up to, by the vdevs that hold data; sectors of 512 bytes while
    /// there are none.
    pub fn alloc_units(&self) -> AllocUnits {
        let tops = self.list.read();
        let units = tops
            .iter()
            .filter(|top| {
                top.asize_bytes() > 0 && top.top().is_some_and(|top| top.class != AllocClass::Log)
            })
            .filter_map(|top| top.geometry())
            .map(|geometry| geometry.alloc_unit_bytes());
        let both = units.fold(None, |both: Option<AllocUnits>, unit| {
            let (min, step) = both.map_or((unit, unit), |both| (both.min_bytes, both.step_bytes));
            Some(AllocUnits {
                min_bytes: min.min(unit),
                step_bytes: common_divisor(step, unit),
            })
        });
        both.unwrap_or(AllocUnits {
            min_bytes: 512,
            step_bytes: 512,
        })
    }

    /// A top-level vdev that blocks can be on.
    ///
    /// # Errors
    /// [`VdevError::NoSuchVdev`], [`VdevError::UnsupportedVdev`], [`VdevError::VdevUnavailable`].
    pub(crate) fn usable_top(&self, id: VdevId) -> Result<Arc<Vdev>, VdevError> {
        let top = self.get(id).ok_or(VdevError::NoSuchVdev { vdev: id })?;
        match top.kind() {
            VdevKind::Other(_) => Err(VdevError::UnsupportedVdev {
                vdev: top.display_name(),
                kind: top.kind().name().to_owned(),
            }),
            VdevKind::Hole | VdevKind::Missing | VdevKind::Indirect(_) => {
                Err(VdevError::VdevUnavailable {
                    vdev: top.display_name(),
                    cause: format!("it is {}", top.kind().name()),
                })
            }
            _ => Ok(top),
        }
    }

    /// Checks that a block lies on its vdev (`zfs_dva_valid` and friends).
    ///
    /// # Errors
    /// [`VdevError::NoSuchVdev`], [`VdevError::UnsupportedVdev`], [`VdevError::VdevUnavailable`],
    /// [`VdevError::BadAddress`].
    pub fn check_range(&self, id: VdevId, offset: u64, psize: u64) -> Result<Arc<Vdev>, VdevError> {
        let top = self.usable_top(id)?;
        let geometry = top.geometry().ok_or(VdevError::NoSuchVdev { vdev: id })?;
        let end = offset.checked_add(geometry.asize(psize));
        let aligned = offset.is_multiple_of(geometry.sector_bytes());
        if !aligned || end.is_none_or(|end| end > top.asize_bytes()) {
            return Err(VdevError::BadAddress {
                place: format!("{id}:{offset:#x}"),
                what: format!("{psize} bytes there are not within {}", top.display_name()),
            });
        }
        Ok(top)
    }

    /// All dRAID spares that stand in for a device.
    pub fn draid_spares(&self) -> Vec<Arc<Vdev>> {
        self.all().iter().flat_map(Vdev::draid_spares).collect()
    }
}
