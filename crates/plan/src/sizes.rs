//! How big to make what is beside the data: log devices, cache devices, dedup tables, special
//! vdevs.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::PlanError;
use crate::layout::{Footprint, Layout};

/// Seconds that a log device has to hold synchronous writes for: five until a transaction group
/// ends (`zfs_txg_timeout`), three until it is on disk.
pub const LOG_SECONDS: f64 = 8.0;
/// A group is being filled while the one before is written.
const LOG_GROUPS: f64 = 2.0;

/// How big a log device should be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "PlanLogSize")]
pub struct LogSize {
    /// By what the network brings: nothing more can come.
    pub by_network_bytes: Option<u64>,
    /// By the most that was seen in use, and half as much again.
    pub by_use_bytes: Option<u64>,
    /// The advice: what was seen counts more than what might come.
    pub bytes: u64,
}

/// The size of a log device for clients behind a network of `network_rate` bytes a second, whose
/// writes stay in the log for `seconds`, and of which the log had `seen_bytes` in use at most.
/// `None` when neither is known.
pub fn log_size(
    network_rate: Option<u64>,
    seconds: f64,
    seen_bytes: Option<u64>,
) -> Option<LogSize> {
    let by_network = |rate: u64| (rate as f64 * seconds.clamp(0.0, 3600.0) * LOG_GROUPS) as u64;
    let by_network_bytes = network_rate.map(by_network);
    let by_use_bytes = seen_bytes.map(|bytes| bytes.saturating_add(bytes / 2));
    Some(LogSize {
        by_network_bytes,
        by_use_bytes,
        bytes: by_use_bytes.or(by_network_bytes)?,
    })
}

/// Bytes of memory for each block on a cache device, at most (crate `l2arc`, `index`: 16 bytes each
/// in a table that is two thirds full or more).
const CACHE_INDEX_BYTES: u64 = 24;
/// The same in OpenZFS (`HDR_L2ONLY_SIZE`, module/zfs/arc.c), about.
const CACHE_INDEX_OPENZFS_BYTES: u64 = 96;

/// What a cache device takes of memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct CacheMemory {
    /// Blocks that fit on it.
    pub blocks: u64,
    /// Bytes of memory for their index, at most.
    pub bytes: u64,
    /// The same in OpenZFS, for who imports the pool there.
    pub openzfs_bytes: u64,
}

/// The memory that a cache device of `device_bytes` takes when it is full of blocks of
/// `block_bytes` as stored.
pub fn cache_memory(device_bytes: u64, block_bytes: u64) -> CacheMemory {
    let blocks = device_bytes / block_bytes.max(512);
    CacheMemory {
        blocks,
        bytes: blocks * CACHE_INDEX_BYTES,
        openzfs_bytes: blocks.saturating_mul(CACHE_INDEX_OPENZFS_BYTES),
    }
}

/// Bytes of memory for each entry of a dedup table. An entry takes about five chunks of 24 bytes of
/// a ZAP's leaf: one for itself, two for the key of 40 bytes, two or three for the value. Leaves
/// are split when they are full, so that they are between half and quite full: 130 to 260 bytes,
/// on average at ln 2 of full. Tables of 16,384 to 114,688 entries had 130 to 171
/// (`zpool status -D`).
const DEDUP_MEMORY_BYTES: u64 = 188;
/// Bytes on disk for each: leaves are compressed, and there are two copies of each. The same tables
/// had 213 to 239.
const DEDUP_DISK_BYTES: u64 = 225;

/// What a dedup table takes, and what it saves.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct DedupSize {
    /// Blocks that are kept, each with an entry.
    pub entries: u64,
    /// Bytes of memory for the whole table.
    pub memory_bytes: u64,
    /// Bytes on disk.
    pub disk_bytes: u64,
    /// Bytes of data that need not be stored.
    pub saved_bytes: u64,
    /// Random reads of the disks for each block that is written, for what is not in memory.
    pub reads_of_write: f64,
}

/// Bytes of memory, and bytes on disk, that a dedup table of so many entries takes.
pub fn dedup_table(entries: u64) -> (u64, u64) {
    (
        entries.saturating_mul(DEDUP_MEMORY_BYTES),
        entries.saturating_mul(DEDUP_DISK_BYTES),
    )
}

/// A dedup table for `data_bytes` of data in blocks of `block_bytes` as stored, each of which is
/// there `ratio` times, with `memory_bytes` for the table.
///
/// # Errors
/// [`PlanError::OutOfRange`] for a ratio below 1.
pub fn dedup_size(
    data_bytes: u64,
    block_bytes: u64,
    ratio: f64,
    memory_bytes: u64,
) -> Result<DedupSize, PlanError> {
    if !(1.0..=1e9).contains(&ratio) {
        return Err(PlanError::OutOfRange {
            what: "the dedup ratio",
            value: ratio.to_string(),
            wanted: "1 or more: the blocks that are written for one that is kept",
        });
    }
    let blocks = data_bytes / block_bytes.max(512);
    let entries = (blocks as f64 / ratio).ceil() as u64;
    let (needed, disk_bytes) = dedup_table(entries);
    let missing = 1.0 - (memory_bytes as f64 / needed.max(1) as f64).min(1.0);
    Ok(DedupSize {
        entries,
        memory_bytes: needed,
        disk_bytes,
        saved_bytes: (data_bytes as f64 * (1.0 - 1.0 / ratio)) as u64,
        reads_of_write: missing,
    })
}

/// Bytes of a block pointer (`blkptr_t`).
const POINTER_BYTES: u64 = 128;
/// Bytes of a dnode with its attributes, usually (`DNODE_MIN_SIZE`).
const DNODE_BYTES: u64 = 512;
/// Copies of metadata (`redundant_metadata=all`).
const METADATA_COPIES: u64 = 2;

/// What a special vdev has to hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpecialSize {
    /// Pointers to blocks, in bytes.
    pub pointers_bytes: u64,
    /// Dnodes, in bytes.
    pub dnodes_bytes: u64,
    /// Blocks of files that are small enough to be there, in bytes.
    pub small_blocks_bytes: u64,
    /// A dedup table, in bytes.
    pub dedup_bytes: u64,
    /// The advice: all of it, and a quarter more, since new blocks stop going there before it is
    /// full (`zfs_special_class_metadata_reserve_pct`).
    pub bytes: u64,
}

/// The size of a special vdev for `data_bytes` in blocks of `block_bytes`, in `files` files, with
/// `small_blocks_bytes` of blocks that go there too, and `dedup_bytes` of a dedup table. Metadata
/// is counted as it is before compression, which makes it about half as big.
pub fn special_size(
    data_bytes: u64,
    block_bytes: u64,
    files: u64,
    small_blocks_bytes: u64,
    dedup_bytes: u64,
) -> SpecialSize {
    let blocks = data_bytes / block_bytes.max(512);
    let pointers_bytes = blocks.saturating_mul(POINTER_BYTES * METADATA_COPIES);
    let dnodes_bytes = files.saturating_mul(DNODE_BYTES * METADATA_COPIES);
    let all = pointers_bytes
        .saturating_add(dnodes_bytes)
        .saturating_add(small_blocks_bytes)
        .saturating_add(dedup_bytes);
    SpecialSize {
        pointers_bytes,
        dnodes_bytes,
        small_blocks_bytes,
        dedup_bytes,
        bytes: all.saturating_add(all / 4),
    }
}

/// What a volume of small blocks takes of a layout.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct VolumeCost {
    /// Bytes of a block of the volume.
    pub block_bytes: u64,
    /// Bytes that the volume takes of what `zfs list` tells as available, when it is full.
    pub counted_bytes: u64,
    /// Bytes that it takes on disks, with parity and padding or copies.
    pub on_disks_bytes: u64,
    /// Part of what it takes on disks that is its data, 0 to 1.
    pub efficiency: f64,
    /// The smallest block size that has within a twentieth of the best efficiency that blocks of up
    /// to 128 KiB have there.
    pub better_block_bytes: u64,
}

/// What a volume of `volume_bytes` in blocks of `block_bytes` will cost on a layout in sectors of
/// 2^`ashift` bytes, without compression.
pub fn volume_cost(layout: Layout, ashift: u32, volume_bytes: u64, block_bytes: u64) -> VolumeCost {
    let block_bytes = block_bytes.max(512);
    let copies = match layout {
        Layout::Mirror { ways, .. } => ways,
        _ => 1,
    };
    let on_disks =
        |block_bytes| Footprint::of(layout, ashift, block_bytes).allocated_bytes * copies;
    let efficiency = |block_bytes: u64| block_bytes as f64 / on_disks(block_bytes) as f64;
    let sizes = || (9..=17).map(|shift| 1u64 << shift);
    let best = sizes().map(efficiency).fold(0.0, f64::max);
    let better = sizes().find(|size| efficiency(*size) >= best * 0.95);
    let blocks = volume_bytes.div_ceil(block_bytes);
    let usual = Footprint::of(layout, ashift, 128 << 10).allocated_bytes;
    let ratio = (128 << 10) / (usual >> 9);
    let counted = on_disks(block_bytes) / copies / 512 * ratio;
    VolumeCost {
        block_bytes,
        counted_bytes: blocks.saturating_mul(counted),
        on_disks_bytes: blocks.saturating_mul(on_disks(block_bytes)),
        efficiency: efficiency(block_bytes),
        better_block_bytes: better.unwrap_or(128 << 10),
    }
}
