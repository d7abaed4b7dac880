//! Which entries of dedup tables are the oldest, for `zpool ddtprune`.

use std::collections::BTreeMap;

/// Buckets of ages in memory; when there are more, each gets twice as wide.
const BUCKETS_MAX: usize = 16 << 10;

/// Which entries with one reference are to be removed from dedup tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PruneBy {
    /// Those that have not changed for longer than this.
    Age {
        /// In seconds.
        seconds: u64,
    },
    /// So many hundredths of them, those first that have not changed for the longest time.
    Percent(u8),
}

/// How many entries changed last at which time.
#[derive(Debug, Default)]
pub(crate) struct Ages {
    /// By time in seconds since 1970, less its last `shift` bits.
    buckets: BTreeMap<u64, u64>,
    shift: u32,
    entries: u64,
}

impl Ages {
    /// Counts an entry that changed at this time, in seconds since 1970.
    pub(crate) fn add(&mut self, seconds: u64) {
        self.entries += 1;
        *self.buckets.entry(seconds >> self.shift).or_default() += 1;
        while self.buckets.len() > BUCKETS_MAX {
            self.shift += 1;
            let narrow = std::mem::take(&mut self.buckets);
            for (bucket, count) in narrow {
                *self.buckets.entry(bucket >> 1).or_default() += count;
            }
        }
    }

    /// The oldest of them, so many hundredths.
    pub(crate) fn oldest(&self, percent: u8) -> Oldest {
        let wanted = u128::from(self.entries) * u128::from(percent.min(100)) / 100;
        let mut left = u64::try_from(wanted).unwrap_or(u64::MAX);
        let mut oldest = Oldest {
            shift: self.shift,
            before: 0,
            more: 0,
        };
        for (bucket, count) in &self.buckets {
            oldest.before = *bucket;
            oldest.more = left.min(*count);
            left -= oldest.more;
            if left == 0 {
                break;
            }
        }
        oldest
    }
}

/// A choice of entries by the time of their last change.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Oldest {
    shift: u32,
    /// All of the buckets before this one.
    before: u64,
    /// So many of this one.
    more: u64,
}

impl Oldest {
    /// Those that changed before a time, in seconds since 1970.
    pub(crate) fn before(seconds: u64) -> Self {
        Oldest {
            shift: 0,
            before: seconds,
            more: 0,
        }
    }

    /// Whether an entry that changed at this time is one of them; to be asked once for each.
    pub(crate) fn takes(&mut self, seconds: u64) -> bool {
        let bucket = seconds >> self.shift;
        if bucket == self.before && self.more > 0 {
            self.more -= 1;
            return true;
        }
        bucket < self.before
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(times: &[u64], mut oldest: Oldest) -> Vec<u64> {
        let times = times.iter().copied();
        times.filter(|time| oldest.takes(*time)).collect()
    }

    #[test]
    fn the_oldest_are_chosen() {
        let times = [50, 10, 30, 20, 40, 30, 30, 60, 70, 80];
        let mut ages = Ages::default();
        times.iter().for_each(|time| ages.add(*time));
        assert_eq!(taken(&times, ages.oldest(20)), [10, 20]);
        assert_eq!(taken(&times, ages.oldest(40)), [10, 30, 20, 30]);
        assert_eq!(taken(&times, ages.oldest(100)).len(), 10);
        assert_eq!(taken(&times, ages.oldest(9)), [0_u64; 0]);
        assert_eq!(taken(&times, Oldest::before(30)), [10, 20]);
        assert_eq!(taken(&[], Ages::default().oldest(50)), [0_u64; 0]);
    }

    #[test]
    fn many_times_take_little_memory() {
        let mut ages = Ages::default();
        let times: Vec<u64> = (0..100_000).map(|number| number * 7).collect();
        times.iter().for_each(|time| ages.add(*time));
        assert!(ages.buckets.len() <= BUCKETS_MAX);
        let taken = taken(&times, ages.oldest(25));
        assert_eq!(taken.len(), 25_000);
        // No more than a bucket's width is out of order.
        assert!(
            taken
                .iter()
                .all(|time| *time < 25_000 * 7 + (1 << ages.shift))
        );
    }
}
