//! How much of each top-level vdev a scan has under way, in bytes of memory.
//!
//! Devices put together what waits for them (crate `vdev`, modules `sweep` and `queue`), so each is
//! to have enough waiting for long operations, reads and writes alike: as OpenZFS gives it
//! (`zfs_scan_vdev_limit`, module/zfs/dsl_scan.c). Vdevs have their shares for themselves: none
//! waits for another one that is slower. A block counts from when it is asked for until it is
//! verified, and written where it was wrong or missing; in all there are no more than [`BYTES_MAX`]
//! of up to 128 vdevs, and [`BYTES_MIN`] for each of more.
//!
//! A turn of the sync loop ends only when all of that is done: devices do it in a moment where it
//! lies in long runs; small blocks all over a disk that turns take half a minute at worst.
//!
//! Lock: that of [`Lanes`], for a map operation.

use std::collections::BTreeMap;
use std::sync::Arc;

use format::{BlockPointer, VdevId};
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use vdev::{ScanRead, Vdev, VdevKind, VdevTree};

/// Bytes for each device of a top-level vdev.
const BYTES_PER_DEVICE: u64 = 16 << 20;
/// Bytes of all vdevs; where there are many, each has its part of that.
const BYTES_MAX: u64 = 256 << 20;
/// Bytes of any vdev, at least.
const BYTES_MIN: u64 = 2 << 20;
/// A smaller block counts as this: it takes a task of its own.
const BLOCK_BYTES_MIN: u64 = 8 << 10;
/// Bytes are counted in pieces of this size.
const PIECE_BYTES: u64 = 1 << 10;

/// What is under way of one top-level vdev.
pub(super) struct Lane {
    pieces: Arc<Semaphore>,
    bytes_max: u64,
    /// How much memory each byte of a block takes that a scrub reads, and a resilver.
    factors: [u64; 2],
}

impl Lane {
    fn of(top: &Arc<Vdev>, vdevs: u64) -> Self {
        let factors = match top.kind() {
            // A scrub reads it from each child.
            VdevKind::Mirror(_) => [top.children().len().max(1) as u64, 1],
            // The columns, and the block that they are put together to.
            VdevKind::Raidz(_) | VdevKind::Draid(_) => [2, 2],
            _ => [1, 1],
        };
        Lane::new(top.leaves().len() as u64, vdevs, factors)
    }

    fn new(devices: u64, vdevs: u64, factors: [u64; 2]) -> Self {
        let bytes_max = (BYTES_PER_DEVICE * devices.max(1))
            .min(BYTES_MAX / vdevs.max(1))
            .max(BYTES_MIN);
        Lane {
            pieces: Arc::new(Semaphore::new((bytes_max / PIECE_BYTES) as usize)),
            bytes_max,
            factors,
        }
    }

    fn pieces_of(&self, bytes: u64, read: ScanRead, share: u64) -> u32 {
        let factor = self.factors[usize::from(!read.reads_all())];
        let bytes = bytes.saturating_mul(factor).max(BLOCK_BYTES_MIN);
        let bytes = bytes.saturating_mul(100) / share.clamp(1, 100);
        (bytes.min(self.bytes_max) / PIECE_BYTES) as u32
    }

    /// Room for a block, until the answer is dropped; a bigger one than all of it gets all of it.
    /// Of a scan that has a `share` of the devices' time, in percent, as much less is under way:
    /// else the turn of the sync loop would take as much longer.
    pub(super) async fn place(
        &self,
        pointer: &BlockPointer,
        read: ScanRead,
        share: Option<u8>,
    ) -> Option<OwnedSemaphorePermit> {
        let share = share.map_or(100, u64::from);
        let pieces = self.pieces_of(pointer.asize_bytes(), read, share);
        // It is never closed.
        self.pieces.clone().acquire_many_owned(pieces).await.ok()
    }
}

/// What is under way, by top-level vdev.
#[derive(Default)]
pub(super) struct Lanes(Mutex<BTreeMap<VdevId, Arc<Lane>>>);

impl Lanes {
    /// The lane of the vdev of a block's first copy. All that damaged pointers lead to have one.
    pub(super) fn of(&self, tree: &VdevTree, pointer: &BlockPointer) -> Arc<Lane> {
        let vdev = pointer.dva(0).map_or(VdevId::ZERO, |dva| dva.vdev());
        let top = tree.top(vdev);
        let vdev = top.as_ref().map_or(VdevId::ZERO, |_| vdev);
        if let Some(lane) = self.0.lock().get(&vdev) {
            return lane.clone();
        }
        let tops = tree.tops().into_iter();
        let vdevs = tops.filter(|top| !top.leaves().is_empty()).count() as u64;
        let new = match top {
            Some(top) => Lane::of(&top, vdevs),
            None => Lane::new(1, vdevs, [1, 1]),
        };
        let mut lanes = self.0.lock();
        lanes.entry(vdev).or_insert_with(|| Arc::new(new)).clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCK: u64 = 128 << 10;
    const HUGE: u64 = 1 << 40;

    #[test]
    fn devices_have_their_share_and_all_together_a_bound() {
        // A mirror of three, one of two vdevs.
        let mirror = Lane::new(3, 2, [3, 1]);
        let pieces = |bytes: u64, read: ScanRead| u64::from(mirror.pieces_of(bytes, read, 100));
        assert_eq!(mirror.bytes_max, 3 * BYTES_PER_DEVICE);
        assert_eq!(pieces(BLOCK, ScanRead::Scrub) * PIECE_BYTES, 3 * BLOCK);
        assert_eq!(pieces(BLOCK, ScanRead::Resilver) * PIECE_BYTES, BLOCK);
        for read in [ScanRead::Scrub, ScanRead::Resilver] {
            assert_eq!(pieces(512, read) * PIECE_BYTES, BLOCK_BYTES_MIN);
            assert_eq!(pieces(HUGE, read) * PIECE_BYTES, mirror.bytes_max);
        }
        let a_quarter = u64::from(mirror.pieces_of(BLOCK, ScanRead::Resilver, 25));
        assert_eq!(a_quarter * PIECE_BYTES, 4 * BLOCK);
        let small = u64::from(mirror.pieces_of(512, ScanRead::Scrub, 25));
        assert_eq!(small * PIECE_BYTES, 4 * BLOCK_BYTES_MIN);
        // Of many, or wide ones, all have less, but not too little for a run or two.
        let bytes_max = |devices, vdevs| Lane::new(devices, vdevs, [2, 2]).bytes_max;
        assert_eq!(bytes_max(12, 4), BYTES_MAX / 4);
        assert_eq!(bytes_max(12, 1000), BYTES_MIN);
        assert_eq!(bytes_max(0, 0), BYTES_PER_DEVICE);
    }

    /// No block is too big, and its room is there again when it is done with.
    #[test]
    fn a_lane_that_is_full_has_room_for_nothing_more() {
        let lane = Lane::new(1, 1, [1, 1]);
        let all = lane.pieces_of(HUGE, ScanRead::Scrub, 100);
        let held = lane.pieces.clone().try_acquire_many_owned(all);
        let held = held.expect("the biggest block has room in an empty lane");
        assert!(lane.pieces.clone().try_acquire_owned().is_err());
        drop(held);
        assert_eq!(lane.pieces.available_permits(), all as usize);
    }
}
