//! What the allocator has to know of top-level vdevs.

use format::{Txg, VdevId};

use crate::geometry::Geometry;
use crate::kind::VdevKind;
use crate::node::Vdev;

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
    /// Until when (exclusive) blocks take what another geometry says: on a RAID-Z vdev that was
    /// expanded.
    pub before: Option<(Txg, Geometry)>,
    /// `vdev_deflate_ratio`: usable 512ths of raw space.
    pub deflate_ratio: u64,
    /// Whether new blocks may go there (not while it is removed, or unavailable).
    pub allocatable: bool,
    /// Nothing of its space is offered to datasets, not even what is in use: what is written over
    /// moves to other vdevs (`allocating=off`; `spa_update_dspace`, module/zfs/spa_misc.c).
    pub is_withheld: bool,
}

impl TopSpec {
    /// What the allocator needs to know of a top-level vdev; `None` for holes and the like.
    pub fn of(top: &Vdev) -> Option<TopSpec> {
        let geometry = top.geometry()?;
        let deflate_ratio = deflate_ratio(top)?;
        let about = top.top()?;
        let is_set = |pair| top.config_u64(pair).unwrap_or(0) != 0;
        (top.metaslab_count() > 0).then(|| TopSpec {
            vdev: about.id,
            class: about.class,
            metaslab_shift: top.metaslab_shift(),
            metaslab_count: top.metaslab_count(),
            geometry,
            before: geometry_before(top),
            deflate_ratio,
            allocatable: !is_set("removing")
                && !is_set("non_allocating")
                && top.state().0.is_usable(),
            is_withheld: is_set("non_allocating"),
        })
    }
}

/// Usable 512ths of raw space (`vdev_deflate_ratio`): by the width that a RAID-Z vdev was made
/// with, however wide it is now.
fn deflate_ratio(top: &Vdev) -> Option<u64> {
    let geometry = match (top.kind(), top.kind().expansion()) {
        (VdevKind::Raidz(raidz), Some(expansion)) => {
            Geometry::raidz(top.ashift(), expansion.original_width(), raidz.parity)
        }
        _ => top.geometry(),
    };
    geometry.map(|geometry| geometry.deflate_ratio())
}

/// How blocks of earlier txgs than this lie on a RAID-Z vdev that was expanded then; of later
/// ones [`Vdev::geometry`] tells.
fn geometry_before(top: &Vdev) -> Option<(Txg, Geometry)> {
    let (from, width) = top.kind().expansion()?.last_change()?;
    let geometry = Geometry::raidz(top.ashift(), width, top.kind().parity())?;
    Some((from, geometry))
}

/// What sizes of stored blocks are rounded up to (`spa_min_alloc` and `spa_gcd_alloc`,
/// `zio_roundup_alloc_size`; module/zfs/zio.c).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AllocUnits {
    /// The least that any vdev allocates, in bytes.
    pub min_bytes: u64,
    /// What all sizes above are multiples of, in bytes.
    pub step_bytes: u64,
}

impl AllocUnits {
    /// The size that so many bytes are stored with.
    pub fn round_up(&self, bytes: usize) -> usize {
        if bytes as u64 <= self.min_bytes {
            self.min_bytes as usize
        } else {
            bytes.next_multiple_of(self.step_bytes as usize)
        }
    }
}

/// The greatest common divisor.
pub(crate) fn common_divisor(mut a: u64, mut b: u64) -> u64 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}
