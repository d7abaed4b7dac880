//! What an open pool has in memory beside the cache: its part of [`MemoryUses`].

use device::{MemoryUser, MemoryUses};

use crate::Pool;

/// What a change of space takes that is in a log and not in its metaslab's own map yet: two words
/// in a tree, as all sets of ranges have them.
const UNFLUSHED_BYTES: u64 = 32;

/// Adds what a pool has in memory that the cache of all pools does not know of: figures that are
/// kept anyway, so that this can be asked each second. Also of a pool that is suspended: nothing
/// here waits for it.
pub fn add_memory(pool: &Pool, uses: &mut MemoryUses) {
    let core = &pool.core;
    let dirty_max_bytes = Some(core.txgs.dirty_max_bytes());
    uses.add(MemoryUser::Dirty, core.txgs.dirty_bytes(), dirty_max_bytes);
    let unflushed_bytes = core.space.unflushed_ranges() * UNFLUSHED_BYTES;
    let free_bytes = core.pipeline.allocator().memory_bytes() + unflushed_bytes;
    uses.add(MemoryUser::FreeSpace, free_bytes, None);
    uses.add(MemoryUser::Datasets, core.dsl.memory_bytes(), None);
    let scan_bytes = core.scans.scan.memory_bytes();
    uses.add(MemoryUser::ScanQueues, scan_bytes, None);
    let tables_bytes = core.shared_blocks.dedup.memory_bytes();
    let dedup_bytes = core.pipeline.dedup().memory_bytes() + tables_bytes;
    uses.add(MemoryUser::DedupChanges, dedup_bytes, None);
}
