//! Sets of byte ranges that merge when they touch, kept in a B-tree by start.

use std::collections::BTreeMap;
use std::ops::Range;

/// What a range takes in the tree: two words, in nodes that are two thirds full, and a part of the
/// nodes above.
const RANGE_BYTES: u64 = 32;

/// Disjoint ranges of `u64`, merged when they touch. The total length is kept up to date.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RangeSet {
    /// Start to end (exclusive).
    ranges: BTreeMap<u64, u64>,
    space: u64,
}

impl RangeSet {
    /// An empty set.
    pub const fn new() -> Self {
        RangeSet {
            ranges: BTreeMap::new(),
            space: 0,
        }
    }

    /// Total length of the ranges.
    pub fn space(&self) -> u64 {
        self.space
    }

    /// Number of ranges.
    pub fn segments(&self) -> usize {
        self.ranges.len()
    }

    /// Bytes that it takes in memory, roughly.
    pub fn memory_bytes(&self) -> u64 {
        self.ranges.len() as u64 * RANGE_BYTES
    }

    /// Whether nothing is in it.
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// The ranges as (start, length), in order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (u64, u64)> + '_ {
        self.ranges.iter().map(|(start, end)| (*start, end - start))
    }

    /// The ranges, in order.
    pub fn ranges(&self) -> impl DoubleEndedIterator<Item = Range<u64>> + '_ {
        self.ranges.iter().map(|(start, end)| *start..*end)
    }

    /// Adds `length` from `start` on, merging with what is there. Returns how many were new.
    ///
    /// # Panics
    /// When the range's end does not fit 64 bits.
    pub fn add(&mut self, start: u64, length: u64) -> u64 {
        self.add_observed(start, length, &mut |_, _| {})
    }

    /// Removes what is there of `length` from `start` on. Returns how many were there.
    ///
    /// # Panics
    /// When the range's end does not fit 64 bits.
    pub fn remove(&mut self, start: u64, length: u64) -> u64 {
        self.remove_observed(start, length, &mut |_, _| {})
    }

    /// Like [`Self::add`]; `observe` is told of every range that vanishes (`false`) or comes into
    /// being (`true`).
    pub fn add_observed(
        &mut self,
        start: u64,
        length: u64,
        observe: &mut impl FnMut(bool, Range<u64>),
    ) -> u64 {
        if length == 0 {
            return 0;
        }
        let end = start
            .checked_add(length)
            .expect("a range on a vdev ends below 2^64");
        let (mut from, mut to) = (start, end);
        let mut merged = 0;
        // Touching or overlapping ranges: the one that starts before, and all that start within.
        while let Some((&other_start, &other_end)) = self.ranges.range(..=to).next_back() {
            if other_end < from {
                break;
            }
            self.ranges.remove(&other_start);
            observe(false, other_start..other_end);
            merged += other_end - other_start;
            from = from.min(other_start);
            to = to.max(other_end);
        }
        self.ranges.insert(from, to);
        observe(true, from..to);
        let new = to - from - merged;
        self.space += new;
        new
    }

    /// Like [`Self::remove`]; for `observe` see [`Self::add_observed`].
    pub fn remove_observed(
        &mut self,
        start: u64,
        length: u64,
        observe: &mut impl FnMut(bool, Range<u64>),
    ) -> u64 {
        if length == 0 {
            return 0;
        }
        let end = start
            .checked_add(length)
            .expect("a range on a vdev ends below 2^64");
        let mut removed = 0;
        while let Some((&other_start, &other_end)) = self.ranges.range(..end).next_back() {
            if other_end <= start {
                break;
            }
            self.ranges.remove(&other_start);
            observe(false, other_start..other_end);
            if other_start < start {
                self.ranges.insert(other_start, start);
                observe(true, other_start..start);
            }
            if other_end > end {
                self.ranges.insert(end, other_end);
                observe(true, end..other_end);
            }
            removed += other_end.min(end) - other_start.max(start);
        }
        self.space -= removed;
        removed
    }

    /// Adds all of `other`.
    pub fn add_all(&mut self, other: &RangeSet) {
        for (start, length) in other.iter() {
            self.add(start, length);
        }
    }

    /// Removes all of `other`.
    pub fn remove_all(&mut self, other: &RangeSet) {
        for (start, length) in other.iter() {
            self.remove(start, length);
        }
    }

    /// Whether all of `length` from `start` on is there.
    pub fn contains(&self, start: u64, length: u64) -> bool {
        if length == 0 {
            return true;
        }
        let Some(end) = start.checked_add(length) else {
            return false;
        };
        self.ranges
            .range(..=start)
            .next_back()
            .is_some_and(|(_, other_end)| *other_end >= end)
    }

    /// Whether any of `length` from `start` on is there.
    pub fn overlaps(&self, start: u64, length: u64) -> bool {
        self.intersection(start, length).next().is_some()
    }

    /// The parts of `length` from `start` on that are there, in descending order.
    pub fn intersection(&self, start: u64, length: u64) -> impl Iterator<Item = Range<u64>> + '_ {
        let end = start.saturating_add(length);
        self.ranges
            .range(..end)
            .rev()
            .take_while(move |(_, other_end)| **other_end > start)
            .map(move |(other_start, other_end)| (*other_start).max(start)..(*other_end).min(end))
    }

    /// The ranges that end after `at`, in order: the first one may start before it.
    pub fn from(&self, at: u64) -> impl Iterator<Item = Range<u64>> + '_ {
        let first = self
            .ranges
            .range(..at)
            .next_back()
            .filter(|(_, end)| **end > at);
        first
            .into_iter()
            .chain(self.ranges.range(at..))
            .map(|(start, end)| *start..*end)
    }

    /// Numbers of ranges by log2 of their length (`zfs_range_tree_t.rt_histogram`).
    pub fn histogram(&self) -> [u64; 64] {
        let mut out = [0; 64];
        for (_, length) in self.iter() {
            out[length.ilog2() as usize] += 1;
        }
        out
    }

    /// Empties the set and returns what was in it.
    pub fn take(&mut self) -> RangeSet {
        std::mem::take(self)
    }
}

impl FromIterator<(u64, u64)> for RangeSet {
    fn from_iter<T: IntoIterator<Item = (u64, u64)>>(pairs: T) -> Self {
        let mut out = RangeSet::new();
        for (start, length) in pairs {
            out.add(start, length);
        }
        out
    }
}
