//! When a pool's transaction groups were written: three rings of moments.
//!
//! OpenZFS 2.4 notes every ten minutes which group was written, in the object directory of any
//! pool, without a feature flag. Older releases leave the entries as they are.
//!
//! # Layout
//! Each ring (`rrd_t`, include/zfs_crrd.h) is an entry of the object directory
//! (include/sys/dmu.h `DMU_POOL_TXG_LOG_TIME_*`): 515 integers of 8 bytes, which a ZAP stores
//! big-endian as all its integers.
//!
//! | Word | |
//! |---|---|
//! | 0 | place of the oldest moment |
//! | 1 | place of the next moment |
//! | 2 | moments that are there, 256 at most |
//! | 3 + 2 n | place n: seconds since 1970, UTC |
//! | 4 + 2 n | place n: the transaction group |
//!
//! A moment goes into one of them: the first of these whose newest is as old as that (30 days: the
//! ring of months; a day: that of days), or else that of minutes. So a pool's first goes into the
//! ring of months. Moments in a ring never go back: what comes while the clock is behind is left
//! out.
//!
//! Source: module/zfs/zfs_crrd.c (`dbrrd_add`, `dbrrd_query`).

use crate::{FormatError, Txg};

/// Places of a ring (`RRD_MAX_ENTRIES`).
const PLACES: usize = 256;
/// Words before the places.
const HEAD_WORDS: usize = 3;
/// Seconds between two moments in the ring of days.
const DAY_S: u64 = 24 * 60 * 60;
/// Seconds between two moments in the ring of months.
const MONTH_S: u64 = 30 * DAY_S;
/// The structure's name.
const RING: &str = "rrd_t";

/// A place, or a number of places.
fn small(word: u64) -> usize {
    usize::try_from(word).map_or(PLACES, |place| place.min(PLACES))
}

/// When a group was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TxgMoment {
    /// Seconds since 1970.
    pub time_s: u64,
    /// The transaction group.
    pub txg: Txg,
}

/// The newest moments of one resolution, oldest first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TxgRing {
    head: usize,
    length: usize,
    /// All places, those without a moment too, as they were read.
    places: Vec<TxgMoment>,
}

impl Default for TxgRing {
    fn default() -> Self {
        TxgRing {
            head: 0,
            length: 0,
            places: vec![TxgMoment::default(); PLACES],
        }
    }
}

impl TxgRing {
    /// Integers of a ring.
    pub const WORDS: usize = HEAD_WORDS + 2 * PLACES;

    /// From the integers of a ZAP's entry.
    ///
    /// # Errors
    /// [`FormatError::TooShort`]; [`FormatError::BadField`] where places do not fit together.
    pub fn from_words(words: &[u64]) -> crate::Result<Self> {
        let Some(words) = words.get(..Self::WORDS) else {
            return Err(FormatError::TooShort {
                structure: RING,
                needed_bytes: 8 * Self::WORDS as u64,
                found_bytes: 8 * words.len() as u64,
            });
        };
        let bad = |field, found, expected| FormatError::BadField {
            structure: RING,
            field,
            found,
            expected,
        };
        let (head, tail, length) = (words[0], words[1], words[2]);
        let places = PLACES as u64;
        if head >= places {
            return Err(bad("rrd_head", head, "below 256"));
        }
        if length > places {
            return Err(bad("rrd_length", length, "256 at most"));
        }
        if tail != (head + length) % places {
            return Err(bad("rrd_tail", tail, "the place after the last entry"));
        }
        let (pairs, _) = words[HEAD_WORDS..].as_chunks::<2>();
        let moment = |pair: &[u64; 2]| TxgMoment {
            time_s: pair[0],
            txg: Txg::new(pair[1]),
        };
        Ok(TxgRing {
            head: small(head),
            length: small(length),
            places: pairs.iter().map(moment).collect(),
        })
    }

    /// The integers of a ZAP's entry.
    pub fn to_words(&self) -> Vec<u64> {
        let head = [self.head, self.next(), self.length].map(|place| place as u64);
        let places = self.places.iter();
        let pairs = places.flat_map(|moment| [moment.time_s, moment.txg.get()]);
        head.into_iter().chain(pairs).collect()
    }

    fn next(&self) -> usize {
        (self.head + self.length) % PLACES
    }

    /// Moments, oldest first.
    pub fn moments(&self) -> impl DoubleEndedIterator<Item = TxgMoment> + '_ {
        (0..self.length).map(|index| self.places[(self.head + index) % PLACES])
    }

    /// How long ago the newest moment was; all time where there is none, `None` if it is yet to
    /// come.
    fn age_s(&self, now_s: u64) -> Option<u64> {
        let newest = self.moments().next_back().unwrap_or_default();
        now_s.checked_sub(newest.time_s)
    }

    fn push(&mut self, moment: TxgMoment) {
        if self.length > 0 {
            let last = (self.head + self.length - 1) % PLACES;
            if self.places[last].time_s == moment.time_s {
                self.places[last].txg = self.places[last].txg.max(moment.txg);
                return;
            }
        }
        let next = self.next();
        self.places[next] = moment;
        if self.length < PLACES {
            self.length += 1;
        } else {
            self.head = (self.head + 1) % PLACES;
        }
    }
}

/// What is noted of a pool's transaction groups (`dbrrd_t`).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TxgTimes {
    /// Every ten minutes or so.
    pub minutes: TxgRing,
    /// Every day.
    pub days: TxgRing,
    /// Every thirty days.
    pub months: TxgRing,
}

impl TxgTimes {
    /// Notes that a group is being written (`dbrrd_add`).
    pub fn note(&mut self, moment: TxgMoment) {
        let at_least = |ring: &TxgRing, span_s: u64| {
            let age_s = ring.age_s(moment.time_s);
            age_s.is_some_and(|age_s| age_s >= span_s)
        };
        for (ring, span_s) in [
            (&mut self.months, MONTH_S),
            (&mut self.days, DAY_S),
            (&mut self.minutes, 0),
        ] {
            if at_least(ring, span_s) {
                ring.push(moment);
                return;
            }
        }
    }

    /// All that is noted, in no order.
    fn moments(&self) -> impl Iterator<Item = TxgMoment> + '_ {
        let rings = [&self.minutes, &self.days, &self.months];
        rings.into_iter().flat_map(TxgRing::moments)
    }

    /// The last group noted that was written until then: what was born later is in later groups
    /// (`DBRRD_FLOOR`). Of several at the same moment the first.
    pub fn until(&self, time_s: u64) -> Option<TxgMoment> {
        let known = self.moments().filter(|moment| moment.time_s <= time_s);
        known.max_by_key(|moment| (moment.time_s, std::cmp::Reverse(moment.txg)))
    }

    /// The first group noted that was written then or later (`DBRRD_CEILING`). Of several at the
    /// same moment the last.
    pub fn since(&self, time_s: u64) -> Option<TxgMoment> {
        let known = self.moments().filter(|moment| moment.time_s >= time_s);
        known.min_by_key(|moment| (moment.time_s, std::cmp::Reverse(moment.txg)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Endian;

    fn moment(time_s: u64, txg: u64) -> TxgMoment {
        TxgMoment {
            time_s,
            txg: Txg::new(txg),
        }
    }

    fn txgs(ring: &TxgRing) -> Vec<u64> {
        ring.moments().map(|moment| moment.txg.get()).collect()
    }

    /// Byte for byte, by include/zfs_crrd.h: the head's three words, then pairs, in a ZAP
    /// big-endian.
    #[test]
    fn the_layout_is_that_of_openzfs() {
        let mut ring = TxgRing::default();
        ring.push(moment(0x6930_0000, 0x1122));
        ring.push(moment(0x6930_0258, 0x1133));
        let bytes: Vec<u8> = (ring.to_words().iter())
            .flat_map(|word| word.to_be_bytes())
            .collect();
        assert_eq!(bytes.len(), 4120);
        let mut expected = vec![0; 4120];
        // rrd_head 0, rrd_tail 2, rrd_length 2.
        expected[15] = 2;
        expected[23] = 2;
        expected[24..56].copy_from_slice(&[
            0, 0, 0, 0, 0x69, 0x30, 0, 0, 0, 0, 0, 0, 0, 0, 0x11, 0x22, //
            0, 0, 0, 0, 0x69, 0x30, 0x02, 0x58, 0, 0, 0, 0, 0, 0, 0x11, 0x33,
        ]);
        assert_eq!(bytes, expected);
        let words: Vec<u64> = Endian::Big.words(&bytes).collect();
        assert_eq!(TxgRing::from_words(&words).unwrap(), ring);
    }

    #[test]
    fn a_full_ring_forgets_the_oldest() {
        let mut ring = TxgRing::default();
        for number in 0..300 {
            ring.push(moment(600 * number, number + 1));
        }
        assert_eq!(txgs(&ring), (45..=300).collect::<Vec<_>>());
        let words = ring.to_words();
        assert_eq!(words[..5], [44, 44, 256, 600 * 256, 257]);
        assert_eq!(TxgRing::from_words(&words).unwrap(), ring);
        // The same moment once more is no other one.
        ring.push(moment(600 * 299, 301));
        assert_eq!(txgs(&ring).len(), 256);
        assert_eq!(txgs(&ring).last(), Some(&301));
    }

    #[test]
    fn what_does_not_fit_together_is_refused() {
        let words = TxgRing::default().to_words();
        assert_eq!(words.len(), TxgRing::WORDS);
        assert!(TxgRing::from_words(&words[..514]).is_err());
        for (word, value) in [(0, 256), (1, 1), (2, 257), (2, 1), (0, u64::MAX)] {
            let mut bad = words.clone();
            bad[word] = value;
            assert!(TxgRing::from_words(&bad).is_err(), "{word} {value}");
        }
    }

    /// As `dbrrd_add` has it: one ring takes a moment, the coarsest whose time has come.
    #[test]
    fn moments_go_into_the_ring_whose_time_has_come() {
        let mut times = TxgTimes::default();
        let start = 1_800_000_000;
        for step in 0..=(31 * 144) {
            times.note(moment(start + step * 600, step + 1));
        }
        assert_eq!(txgs(&times.months), [1, 30 * 144 + 1]);
        // The second of all is the first of the days.
        let days = txgs(&times.days);
        assert_eq!((days[0], days[1], days.len()), (2, 146, 31));
        assert_eq!(times.minutes.moments().count(), 256);
        // A clock that is behind adds nothing.
        let before = times.clone();
        times.note(moment(start + 31 * DAY_S - 1, 9999));
        assert_eq!(times, before);
    }

    #[test]
    fn the_nearest_moments_are_found_in_all_rings() {
        let mut times = TxgTimes::default();
        assert_eq!((times.until(5), times.since(5)), (None, None));
        times.months.push(moment(1000, 10));
        times.days.push(moment(2000, 20));
        times.minutes.push(moment(1500, 15));
        times.minutes.push(moment(2600, 26));
        let until = |time_s| times.until(time_s).map(|moment| moment.txg.get());
        let since = |time_s| times.since(time_s).map(|moment| moment.txg.get());
        assert_eq!(
            [until(999), until(1000), until(1499)],
            [None, Some(10), Some(10)]
        );
        assert_eq!([until(2599), until(9999)], [Some(20), Some(26)]);
        assert_eq!(
            [since(0), since(1001), since(1501)],
            [Some(10), Some(15), Some(20)]
        );
        assert_eq!([since(2600), since(2601)], [Some(26), None]);
    }
}
