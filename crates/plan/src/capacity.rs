//! How much fits: the arithmetic by which a pool is made, so that the figure is the one that
//! `zfs list` tells of it.
//!
//! 1. A disk is used in multiples of 256 KiB, less two labels of 256 KiB and the boot block of
//!    3.5 MiB at its start, and two labels at its end (`vdev_open`, module/zfs/vdev.c;
//!    `VDEV_LABEL_START_SIZE`, `VDEV_LABEL_END_SIZE`).
//! 2. A vdev has the smallest disk's bytes, RAID-Z those times its disks (`vdev_raidz_open`). dRAID
//!    keeps 32 MiB of each disk, and has whole rows of 16 MiB in whole groups, without its spares
//!    (`vdev_draid_open`).
//! 3. It is cut into about 200 metaslabs of 512 MiB to 16 GiB; what is left over at its end is not
//!    used (`vdev_metaslab_set_size`). On dRAID a metaslab has whole stripes only
//!    (`vdev_draid_metaslab_init`).
//! 4. Raw bytes become usable ones by the ratio that blocks of 128 KiB have, rounded down to 512ths
//!    (`vdev_set_deflate_ratio`).
//! 5. 1/32 of that is kept back, at least 128 MiB (or half the pool), at most 128 GiB
//!    (`spa_get_slop_space`, module/zfs/spa_misc.c).
//!
//! OpenZFS also sets a metaslab of each vdev with more than 64 of them aside for the intent log,
//! and keeps that much less back (at most half), so that its figure is the same but for the biggest
//! pools. Millpond sets none aside, and this module neither.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::PlanError;
use crate::layout::{Footprint, Layout};

/// Labels and boot block at the start of a disk, labels at its end (`VDEV_LABEL_START_SIZE`,
/// `VDEV_LABEL_END_SIZE`), in bytes.
const LABELS_BYTES: u64 = (512 << 10) + (3584 << 10) + (512 << 10);
/// What a disk's size is rounded down to (`sizeof (vdev_label_t)`), in bytes.
const LABEL_BYTES: u64 = 256 << 10;
/// A row of a dRAID vdev on one disk (`VDEV_DRAID_ROWHEIGHT`), in bytes.
const ROW_BYTES: u64 = 16 << 20;
/// What dRAID keeps of each disk (`VDEV_DRAID_REFLOW_RESERVE`), in bytes.
const RESERVE_BYTES: u64 = 2 * ROW_BYTES;
/// Record sizes of which [`Capacity::by_block`] tells.
const BLOCKS_BYTES: [u64; 7] = [
    4 << 10,
    8 << 10,
    16 << 10,
    32 << 10,
    64 << 10,
    128 << 10,
    1 << 20,
];

/// How much fits on a layout.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "PlanCapacity")]
pub struct Capacity {
    /// Bytes of all disks of the layout, as they are sold.
    pub disk_bytes: u64,
    /// Bytes in metaslabs, with parity: what `zpool list` tells as SIZE.
    pub raw_bytes: u64,
    /// Bytes kept back so that one can delete when the pool is full.
    pub slop_bytes: u64,
    /// What `zfs list` tells as USED and AVAIL together: for blocks of 128 KiB.
    pub usable_bytes: u64,
    /// Metaslabs of each vdev.
    pub metaslabs: u64,
    /// Bytes of each.
    pub metaslab_bytes: u64,
    /// Usable 512ths of raw bytes.
    pub deflate_ratio: u64,
    /// log2 of the bytes of a sector.
    pub ashift: u32,
    /// The same for other sizes of blocks.
    pub by_block: Vec<BlockCapacity>,
}

/// How much fits of blocks of one size that compression does not make smaller.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "PlanBlockCapacity")]
pub struct BlockCapacity {
    /// Bytes of a block, as stored.
    pub block_bytes: u64,
    /// Bytes that it takes on all disks of its vdev together.
    pub on_disks_bytes: u64,
    /// Bytes of such blocks that fit, of what is not kept back.
    pub usable_bytes: u64,
}

impl Capacity {
    /// Of a layout on disks that are alike, in sectors of 2^`ashift` bytes.
    ///
    /// # Errors
    /// The layout cannot be, or has no metaslab on disks so small.
    pub fn of(layout: Layout, disk_bytes: u64, ashift: u32) -> Result<Self, PlanError> {
        layout.check()?;
        if u128::from(layout.disks()) * u128::from(disk_bytes) > 1 << 62 {
            return Err(PlanError::BadLayout {
                layout: layout.to_string(),
                why: "its disks have more than 4 EiB together".to_owned(),
            });
        }
        let too_small = || PlanError::TooSmall {
            layout: layout.to_string(),
            size_bytes: disk_bytes,
        };
        let asize = asize(layout, disk_bytes).ok_or_else(too_small)? >> ashift << ashift;
        let shift = metaslab_shift(asize);
        let metaslabs = asize >> shift;
        if metaslabs == 0 {
            return Err(too_small());
        }
        let stripe_bytes = match layout {
            Layout::Draid { parity, data, .. } => (parity + data) << ashift,
            _ => 0,
        };
        let vdev_bytes = bytes_in_metaslabs(metaslabs, shift, stripe_bytes);
        if vdev_bytes == 0 {
            return Err(too_small());
        }
        let big = Footprint::of(layout, ashift, 128 << 10).allocated_bytes;
        let deflate_ratio = (128 << 10) / (big >> 9);
        let deflated = (vdev_bytes >> 9) * deflate_ratio * layout.vdevs();
        let slop_bytes = slop_bytes(deflated);
        let usable_bytes = deflated - slop_bytes;
        let mut capacity = Capacity {
            disk_bytes: disk_bytes.saturating_mul(layout.disks()),
            raw_bytes: vdev_bytes * layout.vdevs(),
            slop_bytes,
            usable_bytes,
            metaslabs,
            metaslab_bytes: 1 << shift,
            deflate_ratio,
            ashift,
            by_block: Vec::new(),
        };
        let of_block = |bytes: &u64| capacity.for_blocks_of(layout, *bytes);
        capacity.by_block = BLOCKS_BYTES.iter().map(of_block).collect();
        Ok(capacity)
    }

    /// How much fits of blocks of one size on the layout that this is the capacity of.
    pub fn for_blocks_of(&self, layout: Layout, block_bytes: u64) -> BlockCapacity {
        let copies = match layout {
            Layout::Mirror { ways, .. } => ways,
            _ => 1,
        };
        let allocated = Footprint::of(layout, self.ashift, block_bytes).allocated_bytes;
        // Usable bytes count what a block takes by the same ratio.
        let counted = allocated / 512 * self.deflate_ratio;
        BlockCapacity {
            block_bytes,
            on_disks_bytes: allocated * copies,
            usable_bytes: self.usable_bytes / counted.max(1) * block_bytes,
        }
    }
}

/// Bytes of a disk that blocks can be on.
pub fn disk_asize(disk_bytes: u64) -> u64 {
    (disk_bytes / LABEL_BYTES * LABEL_BYTES).saturating_sub(LABELS_BYTES)
}

/// Allocatable bytes of a vdev; `None` where it has none.
fn asize(layout: Layout, disk_bytes: u64) -> Option<u64> {
    let of_disk = disk_asize(disk_bytes);
    let bytes = match layout {
        Layout::Stripe { .. } | Layout::Mirror { .. } => of_disk,
        Layout::Raidz { disks, .. } => of_disk.checked_mul(disks)?,
        Layout::Draid {
            parity,
            data,
            children,
            spares,
            ..
        } => {
            let rows = of_disk.saturating_sub(RESERVE_BYTES) / ROW_BYTES;
            let group_rows = parity + data;
            rows.checked_mul(children - spares)? / group_rows * group_rows * ROW_BYTES
        }
    };
    (bytes > 0).then_some(bytes)
}

/// log2 of the bytes of a metaslab: of 200 of them, 512 MiB to 16 GiB; fewer than 16 of 512 MiB are
/// made smaller, and more than 131,072 of 16 GiB bigger.
pub fn metaslab_shift(asize_bytes: u64) -> u32 {
    const USUAL_SHIFT: u32 = 29;
    const LEAST_SHIFT: u32 = 24;
    const MOST_SHIFT: u32 = 34;
    // `highbit64` counts bits from one.
    let bits = |value: u64| u64::BITS - value.leading_zeros();
    let wanted = match asize_bytes >> USUAL_SHIFT {
        0..16 => bits(asize_bytes / 16),
        16..=200 => USUAL_SHIFT,
        _ => bits(asize_bytes / 200),
    };
    if wanted > MOST_SHIFT && asize_bytes >> MOST_SHIFT > 1 << 17 {
        return bits(asize_bytes >> 17);
    }
    wanted.clamp(LEAST_SHIFT, MOST_SHIFT)
}

/// Bytes that can be allocated in so many metaslabs of 2^`shift` bytes. Where stripes are always
/// whole (`stripe_bytes` is not zero), those that a metaslab has whole.
pub fn bytes_in_metaslabs(count: u64, shift: u32, stripe_bytes: u64) -> u64 {
    if stripe_bytes == 0 {
        return count << shift;
    }
    let whole = |index: u64| {
        let start = index << shift;
        let end = start + (1 << shift);
        let first = start.next_multiple_of(stripe_bytes);
        end.saturating_sub(first) / stripe_bytes * stripe_bytes
    };
    (0..count).map(whole).sum()
}

/// What a pool keeps back of so many usable bytes: 1/32, at most 128 GiB, at least 128 MiB or half.
pub fn slop_bytes(usable_bytes: u64) -> u64 {
    let least = (usable_bytes / 2).min(128 << 20);
    (usable_bytes / 32).min(128 << 30).max(least)
}
