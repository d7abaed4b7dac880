//! The free space of a loaded metaslab: ranges by offset and by size, and the dynamic fit.

use std::collections::BTreeSet;
use std::ops::Range;

use vdev::RangeSet;

/// Below this largest free run, fit by size (`metaslab_df_alloc_threshold`).
const BEST_FIT_BELOW_BYTES: u64 = 128 << 10;
/// Below this percentage of free space, fit by size (`metaslab_df_free_pct`).
const BEST_FIT_BELOW_PERCENT: u64 = 4;
/// How far a search from a cursor goes before fitting by size (`metaslab_df_max_search`).
const SEARCH_BYTES_MAX: u64 = 16 << 20;
/// How many runs such a search looks at.
const SEARCH_RUNS_MAX: usize = 2048;

/// Free ranges of one metaslab, with an index by size and cursors.
#[derive(Debug, Clone, Default)]
pub(super) struct FreeMap {
    ranges: RangeSet,
    /// (length, start).
    by_size: BTreeSet<(u64, u64)>,
    histogram: Histogram,
    /// Where the last allocation of a size class ended, by log2 of the size's alignment: like
    /// sizes stay together (`ms_lbas`).
    cursors: Cursors,
}

#[derive(Debug, Clone)]
struct Histogram([u32; 64]);

impl Default for Histogram {
    fn default() -> Self {
        Histogram([0; 64])
    }
}

#[derive(Debug, Clone)]
struct Cursors([u64; 64]);

impl Default for Cursors {
    fn default() -> Self {
        Cursors([0; 64])
    }
}

impl FreeMap {
    pub(super) fn new(free: &RangeSet) -> Self {
        let mut out = FreeMap::default();
        for (start, length) in free.iter() {
            out.add(start, length);
        }
        out
    }

    pub(super) fn ranges(&self) -> &RangeSet {
        &self.ranges
    }

    /// Bytes that it takes in memory, roughly: each range is in the index by size as well.
    pub(super) fn memory_bytes(&self) -> u64 {
        size_of::<Self>() as u64 + 2 * self.ranges.memory_bytes()
    }

    pub(super) fn space(&self) -> u64 {
        self.ranges.space()
    }

    /// Length of the longest free run.
    pub(super) fn longest(&self) -> u64 {
        self.by_size.last().map_or(0, |(length, _)| *length)
    }

    /// Number of free runs whose length has this log2.
    pub(super) fn runs(&self, log2: u32) -> u64 {
        u64::from(self.histogram.0[log2 as usize & 63])
    }

    /// Adds free space; returns how much of it was not free before.
    pub(super) fn add(&mut self, start: u64, length: u64) -> u64 {
        let mut index = Index {
            by_size: &mut self.by_size,
            histogram: &mut self.histogram,
        };
        self.ranges
            .add_observed(start, length, &mut |new, range| index.note(new, &range))
    }

    /// Removes free space; returns how much of it was free.
    pub(super) fn remove(&mut self, start: u64, length: u64) -> u64 {
        let mut index = Index {
            by_size: &mut self.by_size,
            histogram: &mut self.histogram,
        };
        self.ranges
            .remove_observed(start, length, &mut |new, range| index.note(new, &range))
    }

    /// Takes `length` bytes (`metaslab_df_alloc`, module/zfs/metaslab.c): the first fit after where
    /// the last allocation of such a size was, unless space is short or the search is long; then
    /// the tightest fit.
    pub(super) fn allocate(&mut self, length: u64, metaslab_bytes: u64) -> Option<u64> {
        if length == 0 || self.longest() < length {
            return None;
        }
        let class = length.trailing_zeros() as usize & 63;
        let short = self.longest() < BEST_FIT_BELOW_BYTES
            || self.space().saturating_mul(100) / metaslab_bytes.max(1) < BEST_FIT_BELOW_PERCENT;
        let mut found = None;
        if !short {
            let cursor = self.cursors.0[class];
            found = self.first_fit(cursor, length, SEARCH_BYTES_MAX);
            if found.is_none() && cursor != 0 {
                found = self.first_fit(0, length, SEARCH_BYTES_MAX);
            }
        }
        let start = match found {
            Some(start) => start,
            None => self
                .by_size
                .range((length, 0)..)
                .next()
                .map(|(_, start)| *start)?,
        };
        self.remove(start, length);
        self.cursors.0[class] = start + length;
        Some(start)
    }

    fn first_fit(&self, from: u64, length: u64, search_bytes_max: u64) -> Option<u64> {
        let mut origin = None;
        for range in self.ranges.from(from).take(SEARCH_RUNS_MAX) {
            let start = range.start.max(from);
            let origin = *origin.get_or_insert(start);
            if start - origin > search_bytes_max {
                return None;
            }
            if range.end - start >= length {
                return Some(start);
            }
        }
        None
    }
}

struct Index<'a> {
    by_size: &'a mut BTreeSet<(u64, u64)>,
    histogram: &'a mut Histogram,
}

impl Index<'_> {
    fn note(&mut self, new: bool, range: &Range<u64>) {
        let length = range.end - range.start;
        let count = &mut self.histogram.0[length.ilog2() as usize];
        if new {
            *count += 1;
            self.by_size.insert((length, range.start));
        } else {
            *count -= 1;
            self.by_size.remove(&(length, range.start));
        }
    }
}
