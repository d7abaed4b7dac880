//! Space map objects: logs of allocated and freed ranges.

use std::sync::Arc;

use format::{ObjectId, VdevId};
use pool::Tx;

use crate::error::Result;
use crate::objset::ObjectSet;

/// Whether a range was allocated or freed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SpaceMapKind {
    /// Allocated.
    Allocate,
    /// Freed.
    Free,
}

/// One entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SpaceMapEntry {
    /// What happened.
    pub kind: SpaceMapKind,
    /// Top-level vdev, in log space maps; `None` where the map belongs to one vdev.
    pub vdev: Option<VdevId>,
    /// First byte, from the start of the map's space.
    pub offset_bytes: u64,
    /// Length in bytes.
    pub length_bytes: u64,
}

/// A space map in an object of the MOS.
#[derive(Clone)]
pub struct SpaceMapObject {}

impl SpaceMapObject {
    /// Creates an empty map; `block_bytes` 0 for the default (128 KiB... as `zfs_metaslab_sm_blksz_with_log`).
    pub async fn create(objset: &Arc<ObjectSet>, tx: &Tx, block_bytes: u32) -> Result<ObjectId> {
        let _ = (objset, tx, block_bytes);
        todo!()
    }
    /// Opens a map that covers `start_bytes..start_bytes+size_bytes`, in units of `1 << shift`.
    pub async fn open(
        objset: &Arc<ObjectSet>,
        id: ObjectId,
        start_bytes: u64,
        size_bytes: u64,
        shift: u8,
    ) -> Result<Self> {
        let _ = (objset, id, start_bytes, size_bytes, shift);
        todo!()
    }
    /// Its number.
    pub fn id(&self) -> ObjectId {
        todo!()
    }
    /// Length of the log in bytes (`smp_length`).
    pub fn length_bytes(&self) -> u64 {
        todo!()
    }
    /// Allocated less freed, in bytes (`smp_alloc`).
    pub fn allocated_bytes(&self) -> i64 {
        todo!()
    }
    /// The histogram of free ranges: bucket i counts ranges of 2^(i+shift) bytes. Empty when the map has none.
    pub fn histogram(&self) -> Vec<u64> {
        todo!()
    }
    /// Appends ranges (offset, length in bytes; ascending). `vdev` for log space maps.
    pub async fn append(
        &self,
        tx: &Tx,
        kind: SpaceMapKind,
        vdev: Option<VdevId>,
        ranges: &[(u64, u64)],
    ) -> Result<()> {
        let _ = (tx, kind, vdev, ranges);
        todo!()
    }
    /// Calls `visit` with every entry, oldest first, up to `length_bytes` of the log.
    pub async fn for_each(
        &self,
        length_bytes: u64,
        visit: &mut (dyn FnMut(SpaceMapEntry) -> Result<()> + Send),
    ) -> Result<()> {
        let _ = (length_bytes, visit);
        todo!()
    }
    /// Empties the log (before writing it anew, condensed).
    pub async fn truncate(&self, tx: &Tx, block_bytes: u32) -> Result<()> {
        let _ = (tx, block_bytes);
        todo!()
    }
    /// Replaces the histogram (32 buckets).
    pub async fn set_histogram(&self, tx: &Tx, histogram: &[u64]) -> Result<()> {
        let _ = (tx, histogram);
        todo!()
    }
    /// Frees the object.
    pub async fn free(self, tx: &Tx) -> Result<()> {
        let _ = tx;
        todo!()
    }
    /// Upper bound of bytes that `ranges` take when appended (`space_map_estimate_optimal_size`).
    pub fn estimate_bytes(ranges: &[(u64, u64)], shift: u8, vdev: Option<VdevId>) -> u64 {
        let _ = (ranges, shift, vdev);
        todo!()
    }
}
