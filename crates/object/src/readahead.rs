//! Read-ahead: sequential reads of one handle start reading what comes next.
//!
//! A read that begins where the last one ended doubles the window, from two blocks' worth up to
//! [`WINDOW_MAX_BYTES`]; one elsewhere closes it. Reads that overtook each other on their way here
//! (the kernel has several under way) come soon before or after that place, and belong to the
//! stream as well. Blocks are found through the tree and handed to the pipeline's own background
//! reads, which bound how much is under way.

use std::sync::Arc;

use parking_lot::Mutex;

use crate::dnode::{Dnode, Found};
use crate::objset::ObjectSet;
use crate::tree::NEWEST;

const WINDOW_MIN_BYTES: u64 = 256 << 10;
const WINDOW_MAX_BYTES: u64 = 8 << 20;
/// Reads of a stream that are under way together, at most: by so many their order may be mixed up.
const READS_AT_ONCE: u64 = 4;

#[derive(Debug, Default)]
struct Stream {
    /// Where a sequential read would begin.
    next: u64,
    /// Up to where was read ahead.
    ahead: u64,
    window: u64,
}

#[derive(Debug, Default)]
pub(crate) struct ReadAhead {
    stream: Mutex<Stream>,
}

impl ReadAhead {
    /// Notes a read; returns the range of bytes that should be read ahead now.
    fn note(&self, offset: u64, length: u64) -> Option<(u64, u64)> {
        let mut stream = self.stream.lock();
        let end = offset.saturating_add(length);
        // Small reads must have been sequential for that, lest random ones seem to be.
        let has_reach = stream.window > 0 || length >= WINDOW_MIN_BYTES;
        let reach = length.saturating_mul(READS_AT_ONCE);
        let is_near = has_reach && offset.abs_diff(stream.next) <= reach;
        if offset == 0 || offset != stream.next && !is_near {
            // From the very start counts as the beginning of a stream.
            *stream = Stream {
                next: end,
                ahead: end,
                window: if offset == 0 { WINDOW_MIN_BYTES / 2 } else { 0 },
            };
            return None;
        }
        if end <= stream.next {
            return None;
        }
        stream.next = end;
        stream.window = (stream.window * 2).clamp(WINDOW_MIN_BYTES, WINDOW_MAX_BYTES);
        let next = stream.next;
        let target = next.saturating_add(stream.window);
        // In pieces of half a window, so that not every small read does something.
        if target.saturating_sub(stream.ahead.max(next)) < stream.window / 2 {
            return None;
        }
        let from = stream.ahead.max(next);
        stream.ahead = target;
        Some((from, target))
    }

    /// Notes a read and starts reading what comes next.
    pub(crate) fn read(&self, set: &Arc<ObjectSet>, dnode: &Arc<Dnode>, offset: u64, length: u64) {
        let Some((from, to)) = self.note(offset, length) else {
            return;
        };
        let properties = set.properties();
        let object_type = dnode.lock().meta().object_type;
        if !properties.prefetched.has(object_type, 0) || !properties.cached.has(object_type, 0) {
            return;
        }
        let (block_bytes, last) = {
            let state = dnode.lock();
            let meta = state.meta();
            (u64::from(meta.block_bytes), meta.max_block)
        };
        let first = from.div_ceil(block_bytes);
        let end = to.div_ceil(block_bytes).min(last.saturating_add(1));
        let mut block = first;
        while block < end {
            if !start(set, dnode, block) {
                // An indirect block is not in memory: wait for it elsewhere.
                let (set, dnode) = (set.clone(), dnode.clone());
                let tasks = set.pipeline().tasks().clone();
                tasks.spawn("read ahead", async move {
                    for block in block..end {
                        let tree = dnode.lock().tree.clone();
                        if set.blocks.resolve(dnode.id, &tree, block).await.is_err() {
                            return;
                        }
                        start(&set, &dnode, block);
                    }
                });
                return;
            }
            block += 1;
        }
    }
}

/// Starts reading one block; false when its pointer is not in memory.
fn start(set: &ObjectSet, dnode: &Dnode, block: u64) -> bool {
    let (pointer, object_type) = {
        let state = dnode.lock();
        if !matches!(state.find(block, NEWEST), Found::Disk) {
            return true;
        }
        let pointer = set.blocks.try_resolve(dnode.id, &state.tree, block);
        (pointer, state.meta().object_type)
    };
    let Some(pointer) = pointer else {
        return false;
    };
    if !pointer.is_hole() && !pointer.is_embedded() && !set.options().without_key {
        let context = set.blocks.read_context(dnode.id, object_type, 0, block);
        set.pipeline().prefetch(&pointer, &context);
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_sequential_reads_open_a_window() {
        let ahead = ReadAhead::default();
        assert_eq!(ahead.note(1 << 20, 4096), None);
        assert_eq!(ahead.note(5 << 20, 4096), None);
        let (from, to) = ahead.note((5 << 20) + 4096, 4096).expect("sequential");
        assert_eq!(from, (5 << 20) + 8192);
        assert_eq!(to - from, WINDOW_MIN_BYTES);
        // Enough is under way: the next small read starts nothing unless the window grew enough.
        let mut at = (5 << 20) + 8192;
        let mut reached = to;
        for _ in 0..10_000 {
            if let Some((from, to)) = ahead.note(at, 4096) {
                assert_eq!(from, reached.max(at + 4096));
                reached = to;
            }
            at += 4096;
            assert!(reached >= at);
            assert!(reached - at <= WINDOW_MAX_BYTES);
        }
    }

    #[test]
    fn reads_that_overtake_each_other_are_one_stream() {
        const M: u64 = 1 << 20;
        let ahead = ReadAhead::default();
        let mut reached = 0;
        // By fours, the last one first.
        for group in 0..16 {
            for place in [0, 3, 1, 2] {
                if let Some((from, to)) = ahead.note((group * 4 + place) * M, M) {
                    assert!(from >= reached && to > from);
                    reached = to;
                }
            }
        }
        assert!(reached > 64 * M, "read ahead only up to {reached}");
        assert_eq!(ahead.note(500 * M, 4096), None);
        assert_eq!(ahead.note(400 * M, 4096), None);
        assert_eq!(ahead.note(400 * M + 8192, 4096), None, "random reads");
    }
}
