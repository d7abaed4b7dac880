//! A set of block numbers, kept as disjoint ranges: what was freed in a txg.

use std::collections::BTreeMap;

/// Disjoint, non-adjacent ranges of numbers.
#[derive(Debug, Clone, Default)]
pub(crate) struct RangeSet {
    /// Start (inclusive) to end (exclusive).
    ranges: BTreeMap<u64, u64>,
}

impl RangeSet {
    pub(crate) fn contains(&self, at: u64) -> bool {
        self.ranges
            .range(..=at)
            .next_back()
            .is_some_and(|(_, end)| at < *end)
    }

    /// The end of the range that holds `at`.
    pub(crate) fn end_of(&self, at: u64) -> Option<u64> {
        let (_, end) = self.ranges.range(..=at).next_back()?;
        (at < *end).then_some(*end)
    }

    /// Whether all of `start..end` is in the set.
    pub(crate) fn covers(&self, start: u64, end: u64) -> bool {
        self.ranges
            .range(..=start)
            .next_back()
            .is_some_and(|(_, last)| end <= *last)
    }

    /// Adds `start..end`.
    pub(crate) fn add(&mut self, start: u64, end: u64) {
        if start >= end {
            return;
        }
        let (mut start, mut end) = (start, end);
        while let Some((&from, &to)) = self.ranges.range(..=end).next_back() {
            if to < start {
                break;
            }
            start = start.min(from);
            end = end.max(to);
            self.ranges.remove(&from);
        }
        self.ranges.insert(start, end);
    }

    /// Removes `start..end`.
    pub(crate) fn remove(&mut self, start: u64, end: u64) {
        if start >= end {
            return;
        }
        while let Some((&from, &to)) = self.ranges.range(..end).next_back() {
            if to <= start {
                break;
            }
            self.ranges.remove(&from);
            if to > end {
                self.ranges.insert(end, to);
            }
            if from < start {
                self.ranges.insert(from, start);
                break;
            }
        }
    }

    /// The parts of the set within `start..end`.
    pub(crate) fn within(&self, start: u64, end: u64) -> impl Iterator<Item = (u64, u64)> + '_ {
        let first = self
            .ranges
            .range(..start)
            .next_back()
            .filter(|(_, to)| **to > start)
            .map(|(from, to)| (*from, *to));
        first
            .into_iter()
            .chain(
                self.ranges
                    .range(start..end.max(start))
                    .map(|(a, b)| (*a, *b)),
            )
            .map(move |(from, to)| (from.max(start), to.min(end)))
    }
}

#[cfg(test)]
mod tests {
    use super::RangeSet;

    /// Goal: every operation agrees with a set of single numbers. Method: all short sequences from
    /// a small generator.
    #[test]
    fn agrees_with_a_set_of_numbers() {
        let mut state = 7u64;
        let mut next = move |limit: u64| {
            state = state
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            (state >> 33) % limit
        };
        for _ in 0..300 {
            let (mut set, mut model) = (RangeSet::default(), [false; 40]);
            for _ in 0..20 {
                let start = next(40);
                let end = start + next(41 - start);
                let on = next(3) > 0;
                if on {
                    set.add(start, end);
                } else {
                    set.remove(start, end);
                }
                model[start as usize..end as usize].fill(on);
                let mut listed = [false; 40];
                for (a, b) in set.within(5, 33) {
                    listed[a as usize..b as usize].fill(true);
                }
                for at in 0..40usize {
                    assert_eq!(set.contains(at as u64), model[at]);
                    assert_eq!(listed[at], model[at] && (5..33).contains(&at));
                }
                let (a, b) = (next(39), 40);
                assert_eq!(
                    set.covers(a, b),
                    model[a as usize..b as usize].iter().all(|on| *on)
                );
            }
        }
    }
}
