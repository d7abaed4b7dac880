//! Arithmetic of space: deflation, slop, fragmentation.

use format::VdevId;

use vdev::AllocClass;

/// Space that is kept back so that one can still delete when the pool is full
/// (`spa_get_slop_space`, module/zfs/spa_misc.c): 1/32 of the (deflated) space, at most 128 GiB, at
/// least 128 MiB or half the pool.
pub fn slop_bytes(dspace_bytes: u64) -> u64 {
    const SHIFT: u32 = 5;
    const MAX: u64 = 128 << 30;
    const MIN: u64 = 128 << 20;
    let slop = (dspace_bytes >> SHIFT).min(MAX);
    slop.max((dspace_bytes >> 1).min(MIN))
}

/// `bytes` of raw space as users see it: less parity, for 128 KiB blocks (`vdev_deflated_space`).
/// `ratio` is in 1/512ths.
pub fn deflate(bytes: u64, ratio: u64) -> u64 {
    (bytes >> 9).saturating_mul(ratio)
}

/// How fragmented free space is, in percent, from numbers of free runs by log2 of their length
/// (`metaslab_set_fragmentation` and `zfs_frag_table`, module/zfs/metaslab.c). `None` when nothing
/// is free.
pub fn fragmentation(histogram: &[u64; 64]) -> Option<u64> {
    /// Percent for runs of 512 bytes, 1 KiB, 2 KiB, ...; 0 from 512 MiB on.
    const PERCENT: [u64; 20] = [
        100, 99, 97, 93, 88, 83, 77, 71, 64, 57, 50, 43, 36, 29, 23, 17, 12, 7, 3, 1,
    ];
    let (mut weighted, mut total) = (0u128, 0u128);
    for (log2, count) in histogram.iter().enumerate() {
        let space = u128::from(*count) << log2;
        let percent = PERCENT.get(log2.saturating_sub(9)).copied().unwrap_or(0);
        weighted += space * u128::from(percent);
        total += space;
    }
    (total > 0).then(|| (weighted / total) as u64)
}

/// Space of one top-level vdev, in raw bytes unless said otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TopSpace {
    /// The vdev.
    pub vdev: VdevId,
    /// What it is used for.
    pub class: AllocClass,
    /// Bytes in metaslabs. No bound of offsets: on dRAID there are gaps between metaslabs
    /// ([`super::Allocator::contains`]).
    pub size_bytes: u64,
    /// Allocated, including freed space that cannot be used yet; as of the last synced txg.
    pub allocated_bytes: u64,
    /// Freed space that cannot be used yet.
    pub deferred_bytes: u64,
    /// Allocated by txgs that are not synced yet.
    pub pending_bytes: u64,
    /// `size_bytes` as users see it.
    pub size_deflated_bytes: u64,
    /// `allocated_bytes` as users see it.
    pub allocated_deflated_bytes: u64,
    /// `deferred_bytes` as users see it.
    pub deferred_deflated_bytes: u64,
    /// Fragmentation of free space in percent, as far as it is known.
    pub fragmentation_percent: Option<u64>,
}

/// Space of the pool: sums of [`TopSpace`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SpaceTotals {
    /// Raw bytes in metaslabs of all classes but log vdevs.
    pub size_bytes: u64,
    /// Allocated raw bytes of those (including deferred).
    pub allocated_bytes: u64,
    /// Deferred raw bytes of those.
    pub deferred_bytes: u64,
    /// Raw bytes of the normal class that are not allocated, and may be.
    pub normal_free_bytes: u64,
    /// Raw bytes of the special class.
    pub special_size_bytes: u64,
    /// Allocated raw bytes of the special class.
    pub special_allocated_bytes: u64,
    /// Raw bytes of the dedup class.
    pub dedup_size_bytes: u64,
    /// Allocated raw bytes of the dedup class.
    pub dedup_allocated_bytes: u64,
    /// Bytes of the normal class as users see them (`spa_rdspace`).
    pub normal_deflated_bytes: u64,
    /// Bytes of all classes but log as users see them.
    pub size_deflated_bytes: u64,
    /// Bytes that the pool offers (`spa_dspace`): all of the normal class but vdevs that are
    /// withheld, of the others what is in use, and what dedup and cloning save.
    pub usable_deflated_bytes: u64,
    /// Allocated, as users see it.
    pub allocated_deflated_bytes: u64,
    /// Deferred, as users see it.
    pub deferred_deflated_bytes: u64,
    /// Kept back ([`slop_bytes`] of the normal class).
    pub slop_bytes: u64,
}
