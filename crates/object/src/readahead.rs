//! Read-ahead: reads of one handle that follow a pattern start reading what comes next.
//!
//! A handle may have several streams at a time (many clients read one volume): forward, where a
//! read begins where another one ended; backward, where it ends where another one began; strided,
//! where three reads of one length are equally far apart. A stream's window doubles with each read
//! that comes as expected, up to its part of [`WINDOW_MAX_BYTES`], and to half of what the stream
//! has read where that is more, up to its part of [`LONG_WINDOW_MAX_BYTES`]: many disks that turn
//! want much under way, and when a stream ends, little more was read in vain than that. Reads that
//! belong to no stream are remembered for a while, as one may begin with them. A stream that nobody
//! reads on makes room for others, and what was read ahead for it is all that was in vain.
//!
//! Reads that overtook each other on their way here (clients have several under way) come soon
//! before or after the expected place, and belong to the stream as well. What such a read passes
//! over is soon read: a stream that leaves out more than it should is none, and ends. Blocks are
//! found through the tree and handed to the pipeline's own background reads, which bound how much
//! is under way.
//!
//! Who lists a directory tells which objects come next ([`read_dnodes_ahead`]).
//!
//! Behaviour as of OpenZFS's module/zfs/dmu_zfetch.c, which has forward streams alone.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use format::{DNODES_PER_BLOCK, ObjectId, ObjectType};
use parking_lot::Mutex;

use crate::dnode::{Dnode, Found};
use crate::object::Object;
use crate::objset::ObjectSet;
use crate::tree::NEWEST;

const WINDOW_MIN_BYTES: u64 = 64 << 10;
/// Windows of all streams of a handle.
const WINDOW_MAX_BYTES: u64 = 8 << 20;
/// The window of a stream that has been read for long, if it is alone.
const LONG_WINDOW_MAX_BYTES: u64 = 32 << 20;
/// The part of the cache's limit that a long window may be.
const CACHE_PART: u64 = 16;
/// Reading ahead is asked for in pieces of half a window, and of no more than this.
const PIECE_BYTES_MAX: u64 = 4 << 20;
/// What each stream may have, however many there are.
const WINDOW_SHARE_BYTES: u64 = 1 << 20;
/// Reads of a stream that are under way together, at most: by so many their order may be mixed up.
const READS_AT_ONCE: u64 = 16;
/// Reads from this size on are large.
const LARGE_BYTES: u64 = 256 << 10;
const STREAMS_MAX: usize = 16;
/// Reads that belong to no stream, of which each may be the beginning of one.
const ALONE_MAX: usize = 16;
/// Of these the newest, each of which may be the second of three that are strided.
const SECONDS_MAX: usize = 4;
/// After so many reads of others a stream is over.
const PATIENCE: u64 = 1024;
/// Strided reads that are read ahead, in the beginning (three random reads may be as far apart by
/// chance) and at most.
const STRIDES_MIN: u64 = 2;
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
    /// How much is to be read ahead: bytes; of a strided one, reads.
    window: u64,
    /// Bytes that were passed over and did not come since.
    skipped: u64,
    /// Bytes of its reads.
    read_bytes: u64,
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
            skipped: 0,
            read_bytes: 0,
            used,
        }
    }

    /// Whether it leaves out more than reads that overtook each other do. What it leaves out for
    /// good may be a third of all.
    fn is_over(&self) -> bool {
        self.skipped > self.last.length().saturating_mul(READS_AT_ONCE)
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
    ///
    /// `window_max` is the window of a stream of any length, `long_max` that of a long one.
    fn go_on(&mut self, read: Range, window_max: u64, long_max: u64, used: u64) -> Vec<Range> {
        self.used = used;
        self.read_bytes = self.read_bytes.saturating_add(read.length());
        let is_late = match self.way {
            Way::Forward => read.to <= self.last.to,
            Way::Backward => read.from >= self.last.from,
            Way::Strided { .. } => false,
        };
        if is_late {
            self.skipped = self.skipped.saturating_sub(read.length());
            return Vec::new();
        }
        let passed_over = match self.way {
            Way::Forward => read.from.saturating_sub(self.last.to),
            Way::Backward => self.last.from.saturating_sub(read.to),
            Way::Strided { .. } => 0,
        };
        let made_up = read.length() / 2;
        self.skipped = self
            .skipped
            .saturating_add(passed_over)
            .saturating_sub(made_up);
        self.last = read;
        let (least, most) = match self.way {
            Way::Forward | Way::Backward => {
                let long_bytes = (self.read_bytes / 2).min(long_max);
                (WINDOW_MIN_BYTES, window_max.max(long_bytes))
            }
            Way::Strided { .. } => {
                let reads = window_max / read.length().max(1);
                (STRIDES_MIN, reads.clamp(STRIDES_MIN, STRIDES_MAX))
            }
        };
        if passed_over == 0 {
            self.window = (self.window * 2).clamp(least, most);
        } else if self.window <= least {
            // Near the end of what was hardly a stream yet: it may be a random read.
            return Vec::new();
        }
        // Other streams may have come since.
        self.window = self.window.min(most);
        // In pieces, so that not every small read does something.
        let piece_bytes = (self.window / 2).min(PIECE_BYTES_MAX);
        match self.way {
            Way::Forward => {
                let from = self.ahead.max(read.to);
                let to = read.to.saturating_add(self.window);
                if to.saturating_sub(from) < piece_bytes {
                    return Vec::new();
                }
                self.ahead = to;
                vec![Range { from, to }]
            }
            Way::Backward => {
                let to = self.ahead.min(read.from);
                let from = read.from.saturating_sub(self.window);
                let is_little = to.saturating_sub(from) < piece_bytes && from > 0;
                if is_little || from >= to {
                    return Vec::new();
                }
                self.ahead = from;
                vec![Range { from, to }]
            }
            Way::Strided { by } => {
                let most = self.window;
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
    /// Bytes of the windows of all streams that have been read for long.
    long_max: u64,
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
        let mut nearest = self.streams.iter().enumerate().filter_map(far).min();
        if let Some((_, at)) = nearest
            && self.streams[at].is_over()
        {
            self.streams.swap_remove(at);
            nearest = None;
        }
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
        let reads = self.reads;
        let is_read = |stream: &&Stream| reads - stream.used < PATIENCE;
        let streams = self.streams.iter().filter(is_read).count().max(1) as u64;
        let window_max = (WINDOW_MAX_BYTES / streams).max(WINDOW_SHARE_BYTES);
        let long_max = self.long_max / streams;
        let stream = &mut self.streams[at];
        // From the very start counts as the beginning of a stream, if it is read on.
        if nearest.is_none() && offset == 0 {
            return Vec::new();
        }
        stream.go_on(read, window_max, long_max, self.reads)
    }

    /// Which way a stream goes that this read makes of one that was alone, if it does.
    fn beginning(&mut self, read: Range) -> Option<Way> {
        // Small reads must have been sequential for that, lest random ones seem to be.
        let reach = match read.length() >= LARGE_BYTES {
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
        let cache_bytes = set.pipeline().cache().shared().limit_bytes();
        let ranges = {
            let mut streams = self.streams.lock();
            streams.long_max = (cache_bytes / CACHE_PART).min(LONG_WINDOW_MAX_BYTES);
            streams.note(offset, length)
        };
        if ranges.is_empty() {
            return;
        }
        let (object_type, block_bytes, last) = {
            let state = dnode.lock();
            let meta = state.meta();
            let block_bytes = u64::from(meta.block_bytes);
            (meta.object_type, block_bytes, meta.max_block)
        };
        if !is_read_ahead(set, object_type) {
            return;
        }
        let of_range = |range: Range| {
            let end = range.to.div_ceil(block_bytes).min(last.saturating_add(1));
            range.from / block_bytes..end
        };
        let mut blocks: Vec<u64> = ranges.into_iter().flat_map(of_range).collect();
        blocks.dedup();
        start_all(set, dnode, blocks);
    }
}

/// Starts reading blocks of dnodes of objects that are about to be asked for, side by side
/// (`dmu_prefetch_dnode`, module/zfs/dmu.c); of those that are tables, which is said with them, the
/// first block as well. As all that is read ahead this is bounded by the pipeline; nothing is read
/// where metadata is not to be read ahead, or not to be kept.
pub fn read_dnodes_ahead(set: &Arc<ObjectSet>, objects: impl Iterator<Item = (ObjectId, bool)>) {
    if !is_read_ahead(set, ObjectType::DNODE) {
        return;
    }
    let mut blocks = BTreeSet::new();
    let mut tables = Vec::new();
    for (id, is_table) in objects {
        if id.get() >= ObjectId::LIMIT || set.table.get(id.get()).is_some() {
            continue;
        }
        blocks.insert(id.get() / DNODES_PER_BLOCK);
        if is_table {
            tables.push(id);
        }
    }
    if !blocks.is_empty() {
        start_all(set, &set.meta_dnode, blocks.into_iter().collect());
    }
    if !tables.is_empty() {
        let set = set.clone();
        let tasks = set.pipeline().tasks().clone();
        tasks.spawn("read ahead", async move {
            for table in tables {
                // Whoever needs it will hear of errors.
                if let Ok(object) = set.hold(table).await {
                    start_all(&set, &object.dnode, vec![0]);
                }
            }
        });
    }
}

/// Starts reading blocks of an object that are about to be asked for.
pub(crate) fn read_blocks_ahead(object: &Object, blocks: Vec<u64>) {
    let object_type = object.dnode.lock().meta().object_type;
    if is_read_ahead(object.objset(), object_type) {
        start_all(object.objset(), &object.dnode, blocks);
    }
}

fn is_read_ahead(set: &ObjectSet, object_type: ObjectType) -> bool {
    let properties = set.properties();
    properties.prefetched.has(object_type, 0) && properties.cached.has(object_type, 0)
}

/// Starts reading blocks in this order.
fn start_all(set: &Arc<ObjectSet>, dnode: &Arc<Dnode>, mut blocks: Vec<u64>) {
    let Some(at) = blocks.iter().position(|block| !start(set, dnode, *block)) else {
        return;
    };
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
    fn a_long_stream_has_a_window_of_half_of_it() {
        let mut ahead = Streams {
            long_max: LONG_WINDOW_MAX_BYTES,
            ..Streams::default()
        };
        let mut reached = 0;
        for at in (0..128 * M).step_by(131_072) {
            if let Some((_, to)) = one(&ahead.note(at, 131_072)) {
                reached = to;
            }
            let window = (at / 2 + 131_072).clamp(WINDOW_MAX_BYTES, LONG_WINDOW_MAX_BYTES);
            assert!(reached <= at + 131_072 + window, "{reached} at {at}");
        }
        assert!(reached - 128 * M > LONG_WINDOW_MAX_BYTES - 2 * PIECE_BYTES_MAX);
        // With a second one it has its part.
        for at in (1000 * M..1016 * M).step_by(131_072) {
            ahead.note(at, 131_072);
        }
        let asked = (128 * M..256 * M).step_by(131_072).find_map(|at| {
            let (_, to) = one(&ahead.note(at, 131_072))?;
            Some(to - at)
        });
        assert!(asked.expect("more") <= LONG_WINDOW_MAX_BYTES / 2 + 131_072);
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
    fn nine_reads_at_a_time_are_one_stream_in_any_order() {
        let mut ahead = Streams::default();
        let mut random = 77_u64;
        let mut read = std::collections::BTreeSet::new();
        let mut known = 0;
        for group in 0..400 {
            let mut places: Vec<u64> = (group * 9..group * 9 + 9).collect();
            while !places.is_empty() {
                random = random.wrapping_mul(6_364_136_223_846_793_005) | 1;
                let place = places.swap_remove((random >> 33) as usize % places.len());
                for range in ahead.note(place * 16_384, 16_384) {
                    assert!(range.from >= known, "{range:?} again");
                    known = range.to;
                }
                read.insert(place);
            }
            assert!(
                group < 2 || known > (group + 1) * 9 * 16_384,
                "{group}: {known}"
            );
        }
        assert_eq!(ahead.streams.len(), 1);
    }

    #[test]
    fn who_leaves_out_much_is_not_read_ahead_of_as_if_all_were_read() {
        for steps in [3, 5, 12] {
            let mut ahead = Streams::default();
            let mut bytes = 0;
            for step in 0..1000 {
                let ranges = ahead.note(step * steps * 16_384, 16_384);
                bytes += ranges.iter().map(|range| range.length()).sum::<u64>();
            }
            let asked = 1000 * 16_384;
            assert!(bytes > asked * 9 / 10, "{steps}: {bytes} bytes read ahead");
            assert!(bytes < asked + 3 * M, "{steps}: {bytes} bytes read ahead");
        }
        // Who leaves out a little is read ahead of all the same.
        let mut ahead = Streams::default();
        let places = (0..10_000).filter(|place| place % 10 != 0);
        let mut known = 0;
        for place in places {
            if let Some((_, to)) = one(&ahead.note(M + place * 16_384, 16_384)) {
                known = to;
            }
            assert!(place < 4 || known > M + place * 16_384, "{place}");
        }
    }

    #[test]
    fn reads_that_are_strided_by_chance_cost_little() {
        let mut ahead = Streams::default();
        let mut random = 12_345_u64;
        let mut bytes = 0;
        for _ in 0..10_000 {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            // A small file, so that chance is high.
            let place = (random >> 33) % 4096;
            let ranges = ahead.note(place * 16_384, 16_384);
            bytes += ranges.iter().map(|range| range.length()).sum::<u64>();
        }
        assert!(bytes < 10_000 * 16_384 / 5, "{bytes}");
    }

    #[test]
    fn streams_that_are_over_take_nothing_of_others_windows() {
        let mut ahead = Streams::default();
        for stream in 0..15 {
            for step in 0..3 {
                ahead.note(((1000 * M) << stream) + step * 16_384, 16_384);
            }
        }
        let mut most = 0;
        for step in 0..4000 {
            let at = 7 * M + step * 16_384;
            if let Some((from, to)) = one(&ahead.note(at, 16_384)) {
                most = most.max(to - from);
            }
        }
        assert!(most > WINDOW_SHARE_BYTES, "{most}");
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
