//! Freeing and claiming single places, which may be on removed vdevs.
//!
//! Those are freed where they were moved to; the ranges of the removed vdevs' mappings that lead there are
//! obsolete from then on, and kept per txg until the engine records them (`metaslab_free_impl`, module/zfs/metaslab.c;
//! `vdev_indirect_mark_obsolete`, module/zfs/vdev_indirect.c).

use format::{Dva, GANG_HEADER_BYTES, Txg, VdevId};

use super::Pipeline;
use crate::error::ZioError;
use vdev::RangeSet;

impl Pipeline {
    /// Bytes that a place on a removed vdev takes: of a gang block only its header's.
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

    /// Frees one copy's place at the end of `txg`; if it is `kept`, it stays allocated, for the checkpoint has it.
    ///
    /// # Errors
    /// As [`crate::alloc::Allocator::free`]; [`vdev::VdevError::VdevUnavailable`] when nobody knows where it is now.
    pub(super) fn free_place(&self, txg: Txg, dva: &Dva, kept: bool) -> Result<(), ZioError> {
        let free = |place: &Dva| match kept {
            true => self.allocator.keep(txg, place),
            false => self.allocator.free(txg, place),
        };
        let offset = dva.offset_bytes();
        let Some(remapped) = self.tree.remap(dva.vdev(), offset, self.own_bytes(dva))? else {
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

    /// Marks one copy's place as allocated by `txg` (import of an intent log).
    ///
    /// # Errors
    /// As [`Self::free_place`].
    pub(super) async fn claim_place(&self, txg: Txg, dva: &Dva) -> Result<(), ZioError> {
        let offset = dva.offset_bytes();
        let Some(remapped) = self.tree.remap(dva.vdev(), offset, self.own_bytes(dva))? else {
            return self.allocator.claim(txg, dva).await;
        };
        for (vdev, offset, length) in remapped.places {
            let place = Dva::new(vdev, offset, length, false)?;
            self.allocator.claim(txg, &place).await?;
        }
        Ok(())
    }

    /// Notes that nothing refers to a range of a removed vdev any more.
    pub fn mark_obsolete(&self, txg: Txg, vdev: VdevId, offset: u64, length: u64) {
        let mut obsolete = self.obsolete.lock();
        let ranges = obsolete.entry(txg).or_default().entry(vdev).or_default();
        if ranges.add(offset, length) != length {
            tracing::error!(%vdev, offset, length, "a range of a removed vdev became obsolete twice");
        }
    }

    /// What became obsolete of removed vdevs in `txg` since the last call.
    pub fn take_obsolete(&self, txg: Txg) -> Vec<(VdevId, RangeSet)> {
        let taken = self.obsolete.lock().remove(&txg);
        taken.unwrap_or_default().into_iter().collect()
    }
}
