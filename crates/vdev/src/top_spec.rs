//! What the allocator has to know of a top-level vdev.

use format::{Txg, VdevId};

use crate::geometry::Geometry;

/// Which vdevs a block would like to be on. Falls back to [`AllocClass::Normal`] when its class has
/// no vdevs or no room.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum AllocClass {
    /// Ordinary vdevs.
    #[default]
    Normal,
    /// Intent log vdevs.
    Log,
    /// Special vdevs (metadata and small blocks).
    Special,
    /// Dedup-table vdevs; falls back to special, then normal.
    Dedup,
}

/// A top-level vdev, as the allocator sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TopSpec {
    /// Its id.
    pub vdev: VdevId,
    /// What it is used for.
    pub class: AllocClass,
    /// log2 of the metaslab size.
    pub metaslab_shift: u32,
    /// Number of metaslabs.
    pub metaslab_count: u64,
    /// How much a block takes.
    pub geometry: Geometry,
    /// Until when (exclusive) blocks take what another geometry says: on a RAID-Z vdev that was expanded.
    pub before: Option<(Txg, Geometry)>,
    /// `vdev_deflate_ratio`: usable 512ths of raw space.
    pub deflate_ratio: u64,
    /// Whether new blocks may go there (not while it is removed, or unavailable).
    pub allocatable: bool,
    /// Nothing of its space is offered to datasets, not even what is in use: what is written over moves to other vdevs
    /// (`allocating=off`; `spa_update_dspace`, module/zfs/spa_misc.c).
    pub is_withheld: bool,
}
