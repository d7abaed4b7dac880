//! What a block takes of the pool as users see it (`bp_get_dsize_sync`, module/zfs/spa_misc.c).

use format::BlockPointer;
use pool::Pipeline;

/// Deflated size of all copies in bytes; zero for holes and embedded blocks. A copy on a vdev that
/// is not known counts as it is.
pub(crate) fn dsize_bytes(pipeline: &Pipeline, pointer: &BlockPointer) -> u64 {
    pointer
        .dvas()
        .map(|dva| {
            let deflated = pipeline.allocator().deflated_bytes(&dva);
            deflated.unwrap_or(dva.asize_bytes())
        })
        .fold(0, u64::saturating_add)
}
