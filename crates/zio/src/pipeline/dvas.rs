//! Freeing and claiming single DVAs, which may be on removed vdevs.
//!
//! A DVA on a removed vdev is freed where its data was moved to. The ranges of the removed vdevs'
//! mappings that lead there are obsolete from then on, and are kept per txg until the sync loop
//! records them (`metaslab_free_impl`, module/zfs/metaslab.c; `vdev_indirect_mark_obsolete`,
//! module/zfs/vdev_indirect.c).
//!
//! Blocks that the pool's checkpoint has as well keep their space (module/zfs/spa_checkpoint.c).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use format::{BlockPointer, Dva, GANG_HEADER_BYTES, Txg, VdevId};
use parking_lot::Mutex;
use vdev::{RangeSet, VdevTree};

use crate::alloc::Allocator;
use crate::error::ZioError;

/// Frees and claims the space of single copies.
pub struct Dvas {
    tree: Arc<VdevTree>,
    allocator: Arc<Allocator>,
    /// Ranges of removed vdevs that nothing refers to any more, not recorded yet.
    obsolete: Mutex<BTreeMap<Txg, BTreeMap<VdevId, RangeSet>>>,
    /// Last txg of the pool's checkpoint, or zero.
    checkpoint_txg: AtomicU64,
}

impl Dvas {
    pub(super) fn new(tree: Arc<VdevTree>, allocator: Arc<Allocator>) -> Self {
        Dvas {
            tree,
            allocator,
            obsolete: Mutex::new(BTreeMap::new()),
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
        for (vdev, offset, length) in remapped.places {
            free(&Dva::new(vdev, offset, length, false)?)?;
        }
        for (vdev, offset, length) in remapped.passed {
            self.mark_obsolete(txg, vdev, offset, length);
        }
        Ok(())
    }

    /// Marks one copy as allocated by `txg` (import of an intent log).
    ///
    /// # Errors
    /// As [`Self::free`].
    pub(super) async fn claim(&self, txg: Txg, dva: &Dva) -> Result<(), ZioError> {
        let offset = dva.offset_bytes();
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
