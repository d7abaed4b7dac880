//! The part of the disks' time that a scrub has: said of a pool, and told to the devices for as
//! long as a scrub reads what waits in its queues. What its walk reads to find that has no share:
//! else a turn of the sync loop would end before the walk got on. Neither have resilvers and
//! rebuilds: until they are done, data is in danger.

use std::sync::atomic::Ordering;

use vdev::VdevTree;

use super::Scan;

/// While this lives, reads of scans have the share.
pub(super) struct Sharing<'a> {
    tree: &'a VdevTree,
}

impl<'a> Sharing<'a> {
    pub(super) fn new(tree: &'a VdevTree, percent: Option<u8>) -> Self {
        vdev::set_scan_share(tree, percent);
        Sharing { tree }
    }
}

impl Drop for Sharing<'_> {
    fn drop(&mut self) {
        vdev::set_scan_share(self.tree, None);
    }
}

impl Scan {
    /// Which part of the disks' time scrubs of a pool in use have, in percent, from their next turn
    /// on. Unless one is said, it is half of a disk's that others read from, else all.
    pub fn set_share(&self, percent: Option<u8>) {
        let percent = percent.map_or(0, |percent| percent.clamp(1, 100));
        self.share_percent.store(percent, Ordering::Relaxed);
    }

    /// What was said by [`Self::set_share`].
    pub fn share(&self) -> Option<u8> {
        let percent = self.share_percent.load(Ordering::Relaxed);
        (percent != 0).then_some(percent)
    }
}
