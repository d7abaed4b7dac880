//! Sets of byte ranges: disjoint, merged, ordered.

use std::collections::BTreeMap;

/// A set of bytes, kept as disjoint ranges that do not touch.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Ranges {
    /// Start to end (exclusive).
    map: BTreeMap<u64, u64>,
    bytes: u64,
}

impl Ranges {
    /// An empty set.
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// Number of bytes in the set.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Number of ranges.
    pub(crate) fn len(&self) -> usize {
        self.map.len()
    }

    /// Whether the set is empty.
    pub(crate) fn is_empty(&self) -> bool {
        self.map.is_empty()
    }

    /// The ranges, in order: (start, end).
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.map.iter().map(|(start, end)| (*start, *end))
    }

    /// As offsets and lengths.
    pub(crate) fn to_lengths(&self) -> Vec<(u64, u64)> {
        self.iter()
            .map(|(start, end)| (start, end - start))
            .collect()
    }

    /// Empties the set and gives what was in it.
    pub(crate) fn take(&mut self) -> Self {
        std::mem::take(self)
    }

    /// Adds `start..end`; returns how many bytes were not in the set before.
    pub(crate) fn add(&mut self, start: u64, end: u64) -> u64 {
        if start >= end {
            return 0;
        }
        let (mut low, mut high, mut had) = (start, end, 0);
        if let Some((&before, &before_end)) = self.map.range(..=start).next_back()
            && before_end >= start
        {
            low = before;
        }
        let touched: Vec<(u64, u64)> = self.map.range(low..=end).map(|(s, e)| (*s, *e)).collect();
        for (s, e) in touched {
            self.map.remove(&s);
            had += e - s;
            high = high.max(e);
        }
        self.map.insert(low, high);
        let added = high - low - had;
        self.bytes += added;
        added
    }

    /// Removes `start..end`; returns how many bytes were in the set before.
    pub(crate) fn remove(&mut self, start: u64, end: u64) -> u64 {
        let mut removed = 0;
        for (s, e) in self.overlapping(start, end) {
            self.map.remove(&s);
            if s < start {
                self.map.insert(s, start);
            }
            if e > end {
                self.map.insert(end, e);
            }
            removed += e.min(end) - s.max(start);
        }
        self.bytes -= removed;
        removed
    }

    /// The ranges that share bytes with `start..end`, whole.
    fn overlapping(&self, start: u64, end: u64) -> Vec<(u64, u64)> {
        if start >= end {
            return Vec::new();
        }
        let from = match self.map.range(..=start).next_back() {
            Some((&s, &e)) if e > start => s,
            _ => start,
        };
        self.map.range(from..end).map(|(s, e)| (*s, *e)).collect()
    }

    /// Moves `start..end` from one set to another, where only what is not in `from` gets into `to`:
    /// the bytes that were in `from` leave it, the others enter `to` (`range_tree_remove_xor_add`).
    pub(crate) fn cancel_or_add(from: &mut Ranges, to: &mut Ranges, start: u64, end: u64) {
        let mut at = start;
        for (s, e) in from.overlapping(start, end) {
            let (s, e) = (s.max(start), e.min(end));
            if at < s {
                to.add(at, s);
            }
            from.remove(s, e);
            at = e;
        }
        if at < end {
            to.add(at, end);
        }
    }

    /// How many ranges have a size of at least 2^i and less than 2^(i+1) bytes.
    pub(crate) fn histogram(&self) -> [u64; 64] {
        let mut histogram = [0; 64];
        for (start, end) in self.iter() {
            histogram[(end - start).ilog2() as usize] += 1;
        }
        histogram
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The same set as a vector of booleans.
    fn check(ranges: &Ranges, model: &[bool]) {
        let mut flat = vec![false; model.len()];
        let mut last_end = None;
        for (start, end) in ranges.iter() {
            assert!(start < end);
            assert!(last_end.is_none_or(|last| start > last), "ranges touch");
            last_end = Some(end);
            flat[start as usize..end as usize].fill(true);
        }
        assert_eq!(flat, model);
        assert_eq!(
            ranges.bytes(),
            model.iter().filter(|set| **set).count() as u64
        );
    }

    #[test]
    fn behaves_like_a_vector_of_booleans() {
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let mut random = |limit: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state % limit
        };
        let (mut first, mut second) = (Ranges::new(), Ranges::new());
        let (mut model_first, mut model_second) = (vec![false; 200], vec![false; 200]);
        for _ in 0..3000 {
            let start = random(190);
            let end = start + 1 + random(200 - start);
            let span = start as usize..end as usize;
            match random(4) {
                0 => {
                    let new = model_first[span.clone()]
                        .iter()
                        .filter(|set| !**set)
                        .count();
                    assert_eq!(first.add(start, end), new as u64);
                    model_first[span].fill(true);
                }
                1 => {
                    let old = model_first[span.clone()].iter().filter(|set| **set).count();
                    assert_eq!(first.remove(start, end), old as u64);
                    model_first[span].fill(false);
                }
                2 => {
                    Ranges::cancel_or_add(&mut first, &mut second, start, end);
                    for at in span {
                        if model_first[at] {
                            model_first[at] = false;
                        } else {
                            model_second[at] = true;
                        }
                    }
                }
                _ => {
                    Ranges::cancel_or_add(&mut second, &mut first, start, end);
                    for at in span {
                        if model_second[at] {
                            model_second[at] = false;
                        } else {
                            model_first[at] = true;
                        }
                    }
                }
            }
            check(&first, &model_first);
            check(&second, &model_second);
        }
    }

    #[test]
    fn sizes_are_counted_by_their_logarithm() {
        let mut ranges = Ranges::new();
        ranges.add(0, 512);
        ranges.add(1024, 2047);
        ranges.add(4096, 8192);
        let histogram = ranges.histogram();
        assert_eq!((histogram[9], histogram[12]), (2, 1));
        assert_eq!(histogram.iter().sum::<u64>(), 3);
    }
}
