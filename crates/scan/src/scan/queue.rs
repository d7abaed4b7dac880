//! Blocks that were found and are to be read, in the order in which they lie on the devices.
//!
//! By top-level vdev and offset of a block's first copy (`scan_io_queue`, module/zfs/dsl_scan.c):
//! what files and snapshots scattered becomes one sweep. Blocks that several files share (dedup,
//! clones) meet here and are read once. A block whose space is freed leaves the queue at once
//! ([`Queue::freed`], `dsl_scan_freed`).
//!
//! One lock, held for a map operation.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use format::{BlockPointer, Bookmark, VdevId};
use parking_lot::Mutex;

/// A block that was found.
#[derive(Debug, Clone)]
pub(super) struct Found {
    pub(super) pointer: BlockPointer,
    pub(super) bookmark: Bookmark,
    /// Of an intent log: the last one of a chain may not have been written.
    pub(super) is_log: bool,
    /// Who else has it.
    pub(super) others: Vec<Bookmark>,
}

/// The blocks.
#[derive(Debug, Default)]
pub(super) struct Queue {
    lanes: Mutex<BTreeMap<VdevId, BTreeMap<u64, Found>>>,
    /// Blocks in all lanes.
    length: AtomicUsize,
}

impl Queue {
    pub(super) fn len(&self) -> usize {
        self.length.load(Ordering::Acquire)
    }

    /// Bytes that it takes in memory, roughly: a block, its key, and a part of the tree's nodes.
    pub(super) fn memory_bytes(&self) -> u64 {
        const TREE_BYTES: usize = 64;
        (self.len() * (size_of::<Found>() + TREE_BYTES)) as u64
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Adds a block; false when it has no place.
    pub(super) fn add(&self, found: Found) -> bool {
        let Some(dva) = found.pointer.dva(0) else {
            return false;
        };
        let mut lanes = self.lanes.lock();
        let lane = lanes.entry(dva.vdev()).or_default();
        match lane.entry(dva.offset_bytes()) {
            std::collections::btree_map::Entry::Vacant(entry) => {
                entry.insert(found);
                self.length.fetch_add(1, Ordering::AcqRel);
            }
            std::collections::btree_map::Entry::Occupied(mut entry) => {
                let known = entry.get_mut();
                // A dedup table's entry may have got more copies since the other pointer was made.
                if found.pointer.copies() > known.pointer.copies() {
                    known.pointer = found.pointer;
                }
                known.others.push(found.bookmark);
                known.others.extend(found.others);
                known.is_log &= found.is_log;
            }
        }
        true
    }

    /// Vdevs that have blocks.
    pub(super) fn lanes(&self) -> Vec<VdevId> {
        let lanes = self.lanes.lock();
        let used = lanes.iter().filter(|(_, lane)| !lane.is_empty());
        used.map(|(vdev, _)| *vdev).collect()
    }

    /// The next block of a vdev.
    pub(super) fn first(&self, vdev: VdevId) -> Option<BlockPointer> {
        let lanes = self.lanes.lock();
        let (_, found) = lanes.get(&vdev)?.first_key_value()?;
        Some(found.pointer)
    }

    /// Takes the next block of a vdev.
    pub(super) fn take(&self, vdev: VdevId) -> Option<Found> {
        let (_, found) = self.lanes.lock().get_mut(&vdev)?.pop_first()?;
        self.length.fetch_sub(1, Ordering::AcqRel);
        Some(found)
    }

    /// Takes everything.
    pub(super) fn take_all(&self) -> Queue {
        let lanes = std::mem::take(&mut *self.lanes.lock());
        let length = self.length.swap(0, Ordering::AcqRel);
        Queue {
            lanes: Mutex::new(lanes),
            length: AtomicUsize::new(length),
        }
    }

    /// A block's space was freed: it is not to be read any more. Its pointer, if it was here.
    pub(super) fn freed(&self, pointer: &BlockPointer) -> Option<BlockPointer> {
        if self.is_empty() {
            return None;
        }
        let mut lanes = self.lanes.lock();
        // A dedup table may have the copies in another order.
        for dva in pointer.dvas() {
            let lane = lanes.get_mut(&dva.vdev());
            if let Some(found) = lane.and_then(|lane| lane.remove(&dva.offset_bytes())) {
                self.length.fetch_sub(1, Ordering::AcqRel);
                return Some(found.pointer);
            }
        }
        None
    }
}
