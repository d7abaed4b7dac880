//! Freeing and claiming single DVAs, which may be on removed vdevs.
//!
//! A DVA on a removed vdev is freed where its data was moved to. The ranges of the removed vdevs'
//! mappings that lead there are obsolete from then on, and are kept per txg until the sync loop
//! records them (`metaslab_free_impl`, module/zfs/metaslab.c; `vdev_indirect_mark_obsolete`,
//! module/zfs/vdev_indirect.c).
//!
//! Of a vdev that is being removed, module `leaving` tells what a free comes to.
//!
//! Blocks that the pool's checkpoint has as well keep their space (module/zfs/spa_checkpoint.c).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use format::{BlockPointer, Dva, GANG_HEADER_BYTES, Txg, VdevId};
use parking_lot::Mutex;
use vdev::{IndirectMap, RangeSet, VdevTree, evacuation};

use super::leaving::{Leaving, Place, Settled, unmapped};
use crate::alloc::Allocator;
use crate::error::{LEAKED, ZioError};

/// Frees and claims the space of single copies.
pub struct Dvas {
    tree: Arc<VdevTree>,
    allocator: Arc<Allocator>,
    /// Ranges of removed vdevs that nothing refers to any more, not recorded yet.
    obsolete: Mutex<BTreeMap<Txg, BTreeMap<VdevId, RangeSet>>>,
    leaving: Arc<Leaving>,
    /// Last txg of the pool's checkpoint, or zero.
    checkpoint_txg: AtomicU64,
}

impl Dvas {
    pub(super) fn new(tree: Arc<VdevTree>, allocator: Arc<Allocator>) -> Self {
        let leaving = Arc::new(Leaving::default());
        evacuation::set_copies(&tree, leaving.clone());
        Dvas {
            tree,
            allocator,
            obsolete: Mutex::new(BTreeMap::new()),
            leaving,
            checkpoint_txg: AtomicU64::new(0),
        }
    }

    /// Blocks born up to `txg` belong to the pool's checkpoint from now on, and freeing them keeps
    /// their space; zero: there is no checkpoint.
    pub fn set_checkpoint(&self, txg: Txg) {
        self.checkpoint_txg.store(txg.get(), Ordering::Relaxed);
    }

    /// Whether the pool has a checkpoint.
    pub fn has_checkpoint(&self) -> bool {
        self.checkpoint_txg.load(Ordering::Relaxed) != 0
    }

    /// Bytes that a DVA on a removed vdev takes: of a gang block only its header's.
    fn own_bytes(&self, dva: &Dva) -> u64 {
        if !dva.is_gang() {
            return dva.asize_bytes();
        }
        let sector = self
            .tree
            .top(dva.vdev())
            .map_or(512, |top| 1u64 << top.ashift().clamp(9, 16));
        (GANG_HEADER_BYTES as u64).next_multiple_of(sector)
    }

    /// Frees one copy of `bp` at the end of `txg`; what the checkpoint has as well stays allocated
    /// (`metaslab_free`).
    ///
    /// # Errors
    /// As [`Allocator::free`]; [`vdev::VdevError::VdevUnavailable`] when it is not known where a
    /// removed vdev's data is now.
    pub(super) fn free(&self, txg: Txg, bp: &BlockPointer, dva: &Dva) -> Result<(), ZioError> {
        let place = (dva.vdev(), dva.offset_bytes());
        // No pool has a checkpoint meanwhile.
        if self.leaving.is(place.0)
            && self
                .leaving
                .queue(txg, (place.0, place.1, self.own_bytes(dva)))
        {
            return Ok(());
        }
        let kept = bp.physical_birth().get() <= self.checkpoint_txg.load(Ordering::Relaxed);
        let free = |place: &Dva| match kept {
            true => self.allocator.keep(txg, place),
            false => self.allocator.free(txg, place),
        };
        let offset = dva.offset_bytes();
        let Some(remapped) = self
            .tree
            .topology()
            .remap(dva.vdev(), offset, self.own_bytes(dva))?
        else {
            return free(dva);
        };
        for place in remapped.places {
            // What an earlier removal moved here may be moved again.
            if !self.leaving.queue(txg, place) {
                let (vdev, offset, length) = place;
                free(&Dva::new(vdev, offset, length, false)?)?;
            }
        }
        for (vdev, offset, length) in remapped.passed {
            self.mark_obsolete(txg, vdev, offset, length);
        }
        Ok(())
    }

    /// A vdev is being removed from now on, and this is the mapping that it has by now: in syncing
    /// context. What was freed for groups that are open now may not be in the queue; it is settled
    /// when they are on disk, and nothing may be copied before that.
    pub fn begin_removal(&self, vdev: VdevId, map: IndirectMap) {
        self.leaving.begin(vdev, map);
    }

    /// Reads or changes the mapping of the vdev that is being removed, if one is: changes in
    /// syncing context only.
    pub fn with_removal<T>(&self, act: impl FnOnce(&mut IndirectMap) -> T) -> Option<T> {
        self.leaving.with_map(act)
    }

    /// Before ranges of the vdev that is being removed are read, to be copied.
    pub fn begin_copies(&self) {
        self.leaving.begin_copies();
    }

    /// Changes its mapping, in syncing context; `act` is told what was written anew of the vdev
    /// since [`Self::begin_copies`]: what was read of that is perhaps not what is there now.
    pub fn with_copies<T>(&self, act: impl FnOnce(&mut IndirectMap, &RangeSet) -> T) -> Option<T> {
        self.leaving.with_copies(act)
    }

    /// Whether something was healed on the vdev that is being removed, and not in its copy.
    pub fn has_spoilt_copies(&self) -> bool {
        self.leaving.is_spoilt()
    }

    /// No vdev is being removed any more, in syncing context. `put` gets the mapping, and makes the
    /// vdev tree what it is from then on; whoever frees waits for it. It must not free anything.
    pub fn end_removal<T>(&self, put: impl FnOnce(IndirectMap) -> T) -> Option<T> {
        self.leaving.end(put)
    }

    /// Frees what was freed in `txg` of the vdev that is being removed, in syncing context.
    pub fn settle_removal(&self, txg: Txg) {
        // What was on a vdev that is removed by now may be on one that is being removed now.
        loop {
            let places = self.leaving.take(txg);
            if places.is_empty() {
                break;
            }
            for place in places {
                if let Err(error) = self.settle(txg, place) {
                    let (vdev, offset, length) = place;
                    tracing::error!(
                        %error, %vdev, offset, length,
                        "what was freed of a vdev that is being removed cannot be; {LEAKED}"
                    );
                }
            }
        }
    }

    fn settle(&self, txg: Txg, place: Place) -> Result<(), ZioError> {
        let (vdev, offset, length) = place;
        match self.leaving.settle(place) {
            Settled::Copied { bytes, places } => {
                self.allocator.free_range(txg, vdev, offset, length)?;
                for (vdev, offset, length) in places {
                    self.allocator.free_range(txg, vdev, offset, length)?;
                }
                if bytes > 0 {
                    self.mark_obsolete(txg, vdev, offset, bytes);
                }
                Ok(())
            }
            Settled::Unmapped => {
                self.allocator.free_range(txg, vdev, offset, length)?;
                Err(unmapped(place).into())
            }
            Settled::Elsewhere => {
                let Some(remapped) = self.tree.topology().remap(vdev, offset, length)? else {
                    return self.allocator.free_range(txg, vdev, offset, length);
                };
                for place in remapped.places {
                    if !self.leaving.queue(txg, place) {
                        let (vdev, offset, length) = place;
                        self.allocator.free_range(txg, vdev, offset, length)?;
                    }
                }
                for (vdev, offset, length) in remapped.passed {
                    self.mark_obsolete(txg, vdev, offset, length);
                }
                Ok(())
            }
        }
    }

    /// Bytes of the vdev that is being removed that were freed before they were copied, since the
    /// last call.
    pub fn take_uncopied(&self) -> u64 {
        self.leaving.take_uncopied()
    }

    /// Nobody wants to know any more what became obsolete of a vdev: it stays.
    pub fn forget_obsolete(&self, vdev: VdevId) {
        for ranges in self.obsolete.lock().values_mut() {
            ranges.remove(&vdev);
        }
    }

    /// Marks one copy as allocated by `txg` (import of an intent log).
    ///
    /// # Errors
    /// As [`Self::free`]; [`vdev::VdevError::BadAddress`] on a vdev that is being removed, where
    /// nothing was allocated since that began.
    pub(super) async fn claim(&self, txg: Txg, dva: &Dva) -> Result<(), ZioError> {
        let offset = dva.offset_bytes();
        if self.leaving.is(dva.vdev()) {
            return Err(unmapped((dva.vdev(), offset, self.own_bytes(dva))).into());
        }
        let Some(remapped) = self
            .tree
            .topology()
            .remap(dva.vdev(), offset, self.own_bytes(dva))?
        else {
            return self.allocator.claim(txg, dva).await;
        };
        for (vdev, offset, length) in remapped.places {
            let place = Dva::new(vdev, offset, length, false)?;
            self.allocator.claim(txg, &place).await?;
        }
        Ok(())
    }

    /// Whether every copy of a block lies where a block may be: within a metaslab, or where the
    /// mappings of removed vdevs lead to one (`metaslab_check_free`, module/zfs/metaslab.c). True
    /// for blocks without a place.
    pub fn has_place(&self, bp: &BlockPointer) -> bool {
        bp.dvas().all(|dva| {
            let (vdev, offset) = (dva.vdev(), dva.offset_bytes());
            match self
                .tree
                .topology()
                .remap(vdev, offset, self.own_bytes(&dva))
            {
                Ok(None) => self.allocator.contains(&dva),
                Ok(Some(remapped)) => remapped.places.into_iter().all(|(vdev, offset, length)| {
                    Dva::new(vdev, offset, length, false)
                        .is_ok_and(|place| self.allocator.contains(&place))
                }),
                Err(_) => false,
            }
        })
    }

    /// Notes that nothing refers to a range of a removed vdev any more.
    pub fn mark_obsolete(&self, txg: Txg, vdev: VdevId, offset: u64, length: u64) {
        let mut obsolete = self.obsolete.lock();
        let ranges = obsolete.entry(txg).or_default().entry(vdev).or_default();
        if ranges.add(offset, length) != length {
            tracing::error!(
                %vdev, offset, length, "a range of a removed vdev became obsolete twice"
            );
        }
    }

    /// What became obsolete of removed vdevs in `txg` since the last call.
    pub fn take_obsolete(&self, txg: Txg) -> Vec<(VdevId, RangeSet)> {
        let taken = self.obsolete.lock().remove(&txg);
        taken.unwrap_or_default().into_iter().collect()
    }
}
