//! How a top-level vdev is cut into metaslabs.

/// Metaslabs of a top-level vdev, each of which takes memory, at most: what an import believes, and
/// so what a vdev may grow to. OpenZFS makes at most half as many (`zfs_vdev_ms_count_limit`).
pub const METASLABS_MAX: u64 = 1 << 18;

/// log2 of the metaslab size of a new top-level vdev (`vdev_metaslab_set_size`, module/zfs/vdev.c):
/// about 200 metaslabs of 512 MiB to 16 GiB, at least 16 of them, at most 131,072.
pub fn metaslab_shift(asize_bytes: u64) -> u32 {
    const DEFAULT_SHIFT: u32 = 29;
    const SHIFT_MIN: u32 = 24;
    const SHIFT_MAX: u32 = 34;
    const COUNT_MIN: u64 = 16;
    const COUNT_DEFAULT: u64 = 200;
    const COUNT_MAX: u64 = 1 << 17;
    // Position of the highest bit, counted from one.
    let high_bit = |value: u64| 64 - value.leading_zeros();
    let count = asize_bytes >> DEFAULT_SHIFT;
    let shift = if count < COUNT_MIN {
        high_bit(asize_bytes / COUNT_MIN)
    } else if count > COUNT_DEFAULT {
        high_bit(asize_bytes / COUNT_DEFAULT)
    } else {
        DEFAULT_SHIFT
    };
    if shift < SHIFT_MIN {
        SHIFT_MIN
    } else if shift > SHIFT_MAX {
        if asize_bytes >> SHIFT_MAX > COUNT_MAX {
            high_bit(asize_bytes / COUNT_MAX)
        } else {
            SHIFT_MAX
        }
    } else {
        shift
    }
}
