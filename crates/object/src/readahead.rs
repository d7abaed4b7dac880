//! Read-ahead: reads of one handle that follow a pattern start reading what comes next.
//!
//! A handle may have several streams at a time (many clients read one volume): forward, where a
//! read begins where another one ended; backward, where it ends where another one began; strided,
//! where three reads of one length are equally far apart. A stream's window doubles with each read
//! that comes as expected, up to its part of [`WINDOW_MAX_BYTES`]; reads that belong to no stream
//! are remembered for a while, as one may begin with them. A stream that nobody reads on makes room
//! for others, and what was read ahead for it is all that was in vain.
//!
//! Reads that overtook each other on their way here (the kernel has several under way) come soon
//! before or after the expected place, and belong to the stream as well. Blocks are found through
//! the tree and handed to the pipeline's own background reads, which bound how much is under way.
//!
//! Behaviour as of OpenZFS's module/zfs/dmu_zfetch.c, which has forward streams alone.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::dnode::{Dnode, Found};
use crate::objset::ObjectSet;
use crate::tree::NEWEST;

const WINDOW_MIN_BYTES: u64 = 256 << 10;
/// Windows of all streams of a handle.
const WINDOW_MAX_BYTES: u64 = 8 << 20;
/// What each stream may have, however many there are.
const WINDOW_SHARE_BYTES: u64 = 1 << 20;
/// Reads of a stream that are under way together, at most: by so many their order may be mixed up.
const READS_AT_ONCE: u64 = 4;
const STREAMS_MAX: usize = 16;
/// Reads that belong to no stream, of which each may be the beginning of one.
const ALONE_MAX: usize = 16;
/// Of these the newest, each of which may be the second of three that are strided.
const SECONDS_MAX: usize = 4;
/// After so many reads of others a stream is over.
const PATIENCE: u64 = 1024;
/// Strided reads that are read ahead, at most.
const STRIDES_MAX: u64 = 64;

/// Bytes of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Range {
    from: u64,
    to: u64,
}

impl Range {
    fn length(self) -> u64 {
        self.to - self.from
    }
}

/// Where the next read of a stream is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    /// Behind the last one.
    Forward,
    /// Before the last one.
    Backward,
    /// So far from the last one, with the same length.
    Strided { by: i64 },
}

#[derive(Debug)]
struct Stream {
    way: Way,
    /// The last read.
    last: Range,
    /// Up to where was read ahead, in the stream's way; of a strided one, how many reads.
    ahead: u64,
    window: u64,
    /// The number of its last read.
    used: u64,
}

impl Stream {
    fn new(way: Way, last: Range, used: u64) -> Self {
        let ahead = match way {
            Way::Forward => last.to,
            Way::Backward => last.from,
            Way::Strided { .. } => 0,
        };
        Self {
            way,
            last,
            ahead,
            window: 0,
            used,
        }
    }

    /// How far a read is from what was expected, if it may be of this stream.
    fn distance(&self, read: Range) -> Option<u64> {
        let reach = read.length().saturating_mul(READS_AT_ONCE);
        let near = |distance: u64| (distance <= reach).then_some(distance);
        match self.way {
            Way::Forward => near(read.from.abs_diff(self.last.to)),
            Way::Backward => near(read.to.abs_diff(self.last.from)),
            Way::Strided { by } => {
                let is_next = self.last.from.checked_add_signed(by) == Some(read.from);
                (is_next && read.length() == self.last.length()).then_some(0)
            }
        }
    }

    /// Goes on with a read; what should be read ahead now.
    fn go_on(&mut self, read: Range, window_max: u64, used: u64) -> Vec<Range> {
        self.used = used;
        let is_late = match self.way {
            Way::Forward => read.to <= self.last.to,
            Way::Backward => read.from >= self.last.from,
            Way::Strided { .. } => false,
        };
        if is_late {
            return Vec::new();
        }
        self.last = read;
        let window_max = window_max.max(WINDOW_MIN_BYTES);
        self.window = (self.window * 2).clamp(WINDOW_MIN_BYTES, window_max);
        // In pieces of half a window, so that not every small read does something.
        match self.way {
            Way::Forward => {
                let from = self.ahead.max(read.to);
                let to = read.to.saturating_add(self.window);
                if to.saturating_sub(from) < self.window / 2 {
                    return Vec::new();
                }
                self.ahead = to;
                vec![Range { from, to }]
            }
            Way::Backward => {
                let to = self.ahead.min(read.from);
                let from = read.from.saturating_sub(self.window);
                let is_little = to.saturating_sub(from) < self.window / 2 && from > 0;
                if is_little || from >= to {
                    return Vec::new();
                }
                self.ahead = from;
                vec![Range { from, to }]
            }
            Way::Strided { by } => {
                let most = (self.window / read.length().max(1)).clamp(2, STRIDES_MAX);
                let done = self.ahead.saturating_sub(1);
                if most.saturating_sub(done) < most / 2 {
                    self.ahead = done;
                    return Vec::new();
                }
                self.ahead = most;
                let place = |number: u64| {
                    let from = by.checked_mul(number as i64 + 1)?;
                    let from = read.from.checked_add_signed(from)?;
                    let to = from.checked_add(read.length())?;
                    Some(Range { from, to })
                };
                (done..most).map_while(place).collect()
            }
        }
    }
}

#[derive(Debug, Default)]
struct Streams {
    streams: Vec<Stream>,
    /// The newest last.
    alone: VecDeque<Range>,
    reads: u64,
}

impl Streams {
    /// Notes a read; returns what should be read ahead now.
    fn note(&mut self, offset: u64, length: u64) -> Vec<Range> {
        self.reads += 1;
        let read = Range {
            from: offset,
            to: offset.saturating_add(length),
        };
        let far = |(at, stream): (usize, &Stream)| Some((stream.distance(read)?, at));
        let nearest = self.streams.iter().enumerate().filter_map(far).min();
        let at = match nearest {
            Some((_, at)) => at,
            None => {
                let Some(way) = self.beginning(read) else {
                    if self.alone.len() == ALONE_MAX {
                        self.alone.pop_front();
                    }
                    self.alone.push_back(read);
                    return Vec::new();
                };
                self.begin(way, read)
            }
        };
        let window_max = (WINDOW_MAX_BYTES / self.streams.len() as u64).max(WINDOW_SHARE_BYTES);
        let stream = &mut self.streams[at];
        // From the very start counts as the beginning of a stream, if it is read on.
        if nearest.is_none() && offset == 0 {
            return Vec::new();
        }
        stream.go_on(read, window_max, self.reads)
    }

    /// Which way a stream goes that this read makes of one that was alone, if it does.
    fn beginning(&mut self, read: Range) -> Option<Way> {
        // Small reads must have been sequential for that, lest random ones seem to be.
        let reach = match read.length() >= WINDOW_MIN_BYTES {
            true => read.length().saturating_mul(READS_AT_ONCE),
            false => 0,
        };
        if read.from == 0 {
            return Some(Way::Forward);
        }
        let alone = self.alone.iter();
        let two = alone.rev().find_map(|before| {
            if read.to > before.to && read.from.abs_diff(before.to) <= reach {
                Some(Way::Forward)
            } else if read.to == before.from {
                Some(Way::Backward)
            } else {
                None
            }
        });
        two.or_else(|| self.strided(read))
    }

    fn strided(&self, read: Range) -> Option<Way> {
        let same = |before: &&Range| before.length() == read.length();
        let newest_first = || self.alone.iter().rev().filter(same);
        // Every read that belongs to no stream comes here.
        let seconds = newest_first().take(SECONDS_MAX);
        seconds.enumerate().find_map(|(at, second)| {
            let by = i64::try_from(i128::from(read.from) - i128::from(second.from)).ok()?;
            let first = second.from.checked_add_signed(by.checked_neg()?)?;
            let mut before = newest_first().skip(at + 1);
            let is_third = by.unsigned_abs() > read.length() && before.any(|one| one.from == first);
            is_third.then_some(Way::Strided { by })
        })
    }

    /// Begins a stream; its place.
    fn begin(&mut self, way: Way, read: Range) -> usize {
        let reads = self.reads;
        self.streams.retain(|stream| reads - stream.used < PATIENCE);
        if self.streams.len() == STREAMS_MAX {
            let ages = self.streams.iter().enumerate();
            let oldest = ages.min_by_key(|(_, stream)| stream.used);
            oldest
                .map(|(at, _)| at)
                .map(|at| self.streams.swap_remove(at));
        }
        let last = match way {
            // As if the read before it were the last one, so that it goes on.
            Way::Forward => Range {
                from: read.from,
                to: if read.from == 0 { read.to } else { read.from },
            },
            Way::Backward => Range {
                from: read.to,
                to: read.to,
            },
            Way::Strided { .. } => read,
        };
        self.streams.push(Stream::new(way, last, reads));
        self.streams.len() - 1
    }
}

#[derive(Debug, Default)]
pub(crate) struct ReadAhead {
    streams: Mutex<Streams>,
}

impl ReadAhead {
    /// Notes a read and starts reading what comes next.
    pub(crate) fn read(&self, set: &Arc<ObjectSet>, dnode: &Arc<Dnode>, offset: u64, length: u64) {
        let ranges = self.streams.lock().note(offset, length);
        if ranges.is_empty() {
            return;
        }
        let properties = set.properties();
        let (object_type, block_bytes, last) = {
            let state = dnode.lock();
            let meta = state.meta();
            let block_bytes = u64::from(meta.block_bytes);
            (meta.object_type, block_bytes, meta.max_block)
        };
        if !properties.prefetched.has(object_type, 0) || !properties.cached.has(object_type, 0) {
            return;
        }
        let of_range = |range: Range| {
            let end = range.to.div_ceil(block_bytes).min(last.saturating_add(1));
            range.from / block_bytes..end
        };
        let mut blocks: Vec<u64> = ranges.into_iter().flat_map(of_range).collect();
        blocks.dedup();
        if let Some(at) = blocks.iter().position(|block| !start(set, dnode, *block)) {
            // An indirect block is not in memory: wait for it elsewhere.
            blocks.drain(..at);
            let (set, dnode) = (set.clone(), dnode.clone());
            let tasks = set.pipeline().tasks().clone();
            tasks.spawn("read ahead", async move {
                for block in blocks {
                    let tree = dnode.lock().tree.clone();
                    if set.blocks.resolve(dnode.id, &tree, block).await.is_err() {
                        return;
                    }
                    start(&set, &dnode, block);
                }
            });
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

    const M: u64 = 1 << 20;

    fn one(ranges: &[Range]) -> Option<(u64, u64)> {
        assert!(ranges.len() <= 1, "{ranges:?}");
        ranges.first().map(|range| (range.from, range.to))
    }

    #[test]
    fn only_sequential_reads_open_a_window() {
        let mut ahead = Streams::default();
        assert_eq!(ahead.note(M, 4096), []);
        assert_eq!(ahead.note(5 * M, 4096), []);
        let (from, to) = one(&ahead.note(5 * M + 4096, 4096)).expect("sequential");
        assert_eq!(from, 5 * M + 8192);
        assert_eq!(to - from, WINDOW_MIN_BYTES);
        // Enough is under way: the next small read starts nothing unless the window grew enough.
        let mut at = 5 * M + 8192;
        let mut reached = to;
        for _ in 0..10_000 {
            if let Some((from, to)) = one(&ahead.note(at, 4096)) {
                assert_eq!(from, reached.max(at + 4096));
                reached = to;
            }
            at += 4096;
            assert!(reached >= at);
            assert!(reached - at <= WINDOW_MAX_BYTES);
        }
        assert!(reached - at > WINDOW_MAX_BYTES / 4);
    }

    #[test]
    fn reads_that_overtake_each_other_are_one_stream() {
        let mut ahead = Streams::default();
        let mut reached = 0;
        // By fours, the last one first.
        for group in 0..16 {
            for place in [0, 3, 1, 2] {
                if let Some((from, to)) = one(&ahead.note((group * 4 + place) * M, M)) {
                    assert!(from >= reached && to > from);
                    reached = to;
                }
            }
        }
        assert!(reached > 64 * M, "read ahead only up to {reached}");
        assert_eq!(ahead.streams.len(), 1);
        assert_eq!(ahead.note(500 * M, 4096), []);
        assert_eq!(ahead.note(400 * M, 4096), []);
        assert_eq!(ahead.note(400 * M + 8192, 4096), [], "random reads");
    }

    #[test]
    fn streams_side_by_side_each_have_a_window() {
        let mut ahead = Streams::default();
        let mut reached = [0; 9];
        for step in 0..400 {
            for (stream, reached) in reached.iter_mut().enumerate() {
                let at = ((1000 * M) << stream) + step * 16_384;
                if let Some((from, to)) = one(&ahead.note(at, 16_384)) {
                    assert!(from >= *reached && from >= at);
                    assert!(to - at <= WINDOW_SHARE_BYTES + 16_384);
                    *reached = to;
                }
                assert!(step < 2 || *reached > at, "stream {stream} at {step}");
            }
        }
        assert_eq!(ahead.streams.len(), 9);
        // Random reads end none of them, nor begin one.
        let mut random = 12_345_u64;
        for _ in 0..500 {
            random = random.wrapping_mul(6_364_136_223_846_793_005) | 1;
            assert_eq!(ahead.note((random >> 20) * 4096, 4096), []);
        }
        let at = 1000 * M + 400 * 16_384;
        assert!(reached[0] > at);
        ahead.note(at, 16_384);
        assert_eq!(ahead.streams.len(), 9);
    }

    #[test]
    fn who_reads_backward_is_read_ahead_of_too() {
        let mut ahead = Streams::default();
        let mut reached = u64::MAX;
        for step in 0..400 {
            let at = 100 * M - step * 16_384;
            if let Some((from, to)) = one(&ahead.note(at, 16_384)) {
                assert!(to <= reached.min(at) && from < to);
                reached = from;
            }
            assert!(step < 1 || reached < at, "at {step}");
        }
        // Down to the start, and no further.
        let mut ahead = Streams::default();
        let down = (0..64)
            .rev()
            .map(|block| ahead.note(block * 16_384 + 1, 16_384));
        let lowest = down.flatten().map(|range| range.from).min();
        assert_eq!(lowest, Some(0));
    }

    #[test]
    fn strides_are_found_in_both_directions() {
        for by in [5 * 16_384_i64, -3 * 16_384] {
            let mut ahead = Streams::default();
            let mut known = std::collections::BTreeSet::new();
            let mut missed = 0;
            let mut at = 500 * M;
            for _ in 0..200 {
                missed += u64::from(!known.contains(&at));
                let ranges = ahead.note(at, 16_384);
                assert!(ranges.iter().all(|range| range.length() == 16_384));
                for range in ranges {
                    assert!(known.insert(range.from), "{range:?} again");
                }
                at = at.checked_add_signed(by).expect("it stays within");
            }
            assert_eq!(missed, 3, "{by}");
            let past = known
                .iter()
                .filter(|from| (**from > at) == (by > 0))
                .count();
            assert!(past as u64 <= STRIDES_MAX, "{past}");
        }
    }
}
