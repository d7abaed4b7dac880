//! What a change adds to what its txg has to write: the first change of a block in a txg brings the block, the first
//! below an indirect block brings that one (`dbuf_dirty`, `dnode_willuse_space`, module/zfs/dbuf.c and dnode.c).

use std::collections::BTreeMap;
use std::ops::Range;

use format::{DNODE_BLOCK_BYTES, DNODES_PER_BLOCK, MAX_INDIRECT_SHIFT};
use zio::Added;

use crate::dnode::{DnodeState, Slot, shl, shr};

/// What a block costs besides itself and the blocks above it, in bytes: entries of space maps, deadlists and tables.
const ENTRY_BYTES: u64 = 1 << 10;
/// Levels of indirect blocks above dnodes that are counted: those of 2^35 objects.
const DNODE_LEVELS: u8 = 3;

/// Bytes of the indirect blocks above `number`, below which `is_first` finds no other change yet.
fn indirect_bytes(
    number: u64,
    levels: u8,
    indirect_shift: u8,
    is_first: impl Fn(Range<u64>) -> bool,
) -> u64 {
    let pointers_shift = u32::from(indirect_shift).saturating_sub(7);
    (1..levels)
        .map(|level| {
            let span_shift = pointers_shift * u32::from(level);
            let start = shl(shr(number, span_shift), span_shift);
            start..start.saturating_add(shl(1, span_shift).max(1))
        })
        .take_while(|span| is_first(span.clone()))
        .map(|_| shl(1, indirect_shift.into()))
        .sum()
}

/// What `length` more bytes of data block `block` add. It is not in `slot` yet when it `is_new` there.
pub(crate) fn by_block(
    state: &DnodeState,
    slot: &Slot,
    block: u64,
    length: u64,
    is_new: bool,
) -> Added {
    let meta = state.meta_at(slot.txg);
    let mut added = Added::default();
    match meta.object_type.is_metadata() {
        true => added.metadata_bytes = length,
        false => added.data_bytes = length,
    }
    if is_new {
        let levels = meta.levels_needed().max(state.tree.levels);
        added.metadata_bytes += ENTRY_BYTES
            + indirect_bytes(block, levels, meta.indirect_shift, |span| {
                !slot.has_blocks(span)
            });
    }
    added
}

/// What object `id` adds to the objects `dirty` by number.
pub(crate) fn by_dnode<T>(dirty: &BTreeMap<u64, T>, id: u64) -> Added {
    let is_first = |blocks: Range<u64>| {
        let start = blocks.start.saturating_mul(DNODES_PER_BLOCK);
        let end = blocks.end.saturating_mul(DNODES_PER_BLOCK);
        dirty.range(start..end).next().is_none()
    };
    let block = id / DNODES_PER_BLOCK;
    let mut metadata_bytes = 0;
    if is_first(block..block + 1) {
        metadata_bytes = DNODE_BLOCK_BYTES as u64
            + ENTRY_BYTES
            + indirect_bytes(block, 1 + DNODE_LEVELS, MAX_INDIRECT_SHIFT, is_first);
    }
    Added {
        data_bytes: 0,
        metadata_bytes,
    }
}
