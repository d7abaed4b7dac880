//! Which keys a dedup table has, in little memory: a split block Bloom filter.
//!
//! Of a key that it was given it never says that it is not there. Of one that it was not given it
//! says so in about 98 of 100 cases, and in fewer when it was given more keys than it has room for:
//! in 83 with twice as many. A key sets one bit in each of the eight words of a block of 64
//! bytes, so asking touches one line of the processor's cache (Putze, Sanders and Singler, Cache-,
//! Hash- and Space-Efficient Bloom Filters, 2007; the form of Apache Parquet's).

use object::ZapCursor;

/// Bits for each key.
const BITS: u64 = 10;
/// A table with no more entries than these is read whole at once.
const SMALL: u64 = 4_000;
/// Bits in a block.
const BLOCK_BITS: u64 = 512;

/// A filter with room for a number of keys.
pub(crate) struct Filter {
    blocks: Vec<[u64; 8]>,
    /// For how many keys it is.
    keys: u64,
    /// How many were added.
    added: u64,
}

impl Filter {
    /// What a filter for so many keys takes in memory.
    pub(crate) const fn bytes_for(keys: u64) -> u64 {
        keys.saturating_mul(BITS) / 8
    }

    /// For so many keys.
    pub(crate) fn new(keys: u64) -> Self {
        let count = keys.saturating_mul(BITS).div_ceil(BLOCK_BITS).max(1);
        Filter {
            blocks: vec![[0; 8]; usize::try_from(count).unwrap_or(usize::MAX)],
            keys,
            added: 0,
        }
    }

    /// What it takes in memory.
    pub(crate) fn bytes(&self) -> u64 {
        (self.blocks.len() * 64) as u64
    }

    /// Whether as many keys were added as there is room for: with more it gets worse.
    pub(crate) fn is_full(&self) -> bool {
        self.added >= self.keys
    }

    /// Whether so many were added that it is hardly worth its memory.
    fn is_useless(&self) -> bool {
        self.added >= self.keys.saturating_mul(2)
    }

    /// Adds a key.
    pub(crate) fn add(&mut self, key: &[u64; 5]) {
        let (block, bits) = self.place(key);
        for (word, bit) in self.blocks[block].iter_mut().zip(bits) {
            *word |= 1 << bit;
        }
        self.added = self.added.saturating_add(1);
    }

    /// Whether a key may have been added; if not, it was not.
    pub(crate) fn may_have(&self, key: &[u64; 5]) -> bool {
        let (block, bits) = self.place(key);
        let mut words = self.blocks[block].iter().zip(bits);
        words.all(|(word, bit)| word >> bit & 1 != 0)
    }

    /// Its block, and a bit in each word of that.
    fn place(&self, key: &[u64; 5]) -> (usize, [u8; 8]) {
        let hash = key.iter().fold(0, |hash, word| mix(hash ^ word));
        let block = (u128::from(hash) * self.blocks.len() as u128) >> 64;
        let bits = mix(hash);
        (
            block as usize,
            [0, 1, 2, 3, 4, 5, 6, 7].map(|word| (bits >> (word * 8) & 63) as u8),
        )
    }
}

/// A filter that a table is being read into.
pub(crate) struct Learning {
    filter: Filter,
    /// It has the keys of the ZAPs before this one, and of this one those before the cursor; and
    /// whatever was put into any of them since it was begun.
    at: (usize, ZapCursor),
    /// The full one whose place it is to take, which still has all keys.
    old: Option<Filter>,
    /// Keys that the table had when it was begun.
    count: u64,
    /// Keys that were read, and that were put into the ZAPs, since.
    read: u64,
    put: u64,
}

impl Learning {
    /// An empty filter for so many keys of a table that has `count`.
    pub(crate) fn new(keys: u64, count: u64, old: Option<Filter>) -> Self {
        Learning {
            filter: Filter::new(keys),
            at: (0, ZapCursor::START),
            old,
            count,
            read: 0,
            put: 0,
        }
    }

    /// Which ZAP is read, and where in it.
    pub(crate) fn at(&self) -> (usize, ZapCursor) {
        self.at
    }

    /// How many more keys should be read by now. Of a small table, and without an old filter, all.
    /// With one, so many that it has them all when half of the room that it has for new ones is
    /// taken.
    pub(crate) fn owed(&self) -> u64 {
        if self.old.is_none() || self.count <= SMALL {
            return u64::MAX;
        }
        let room = (self.filter.keys.saturating_sub(self.count) / 2).max(1);
        let due = u128::from(self.count) * u128::from(self.put) / u128::from(room);
        u64::try_from(due)
            .unwrap_or(u64::MAX)
            .saturating_sub(self.read)
    }

    /// Adds keys that were read, up to a place.
    pub(crate) fn add_read(&mut self, keys: &[[u64; 5]], to: (usize, ZapCursor)) {
        keys.iter().for_each(|key| self.filter.add(key));
        self.read = self.read.saturating_add(keys.len() as u64);
        self.at = to;
    }

    /// Adds a key that is about to be put into one of the ZAPs.
    fn add_put(&mut self, key: &[u64; 5]) {
        self.filter.add(key);
        self.put = self.put.saturating_add(1);
        if let Some(old) = &mut self.old {
            old.add(key);
        }
        if self.old.as_ref().is_some_and(Filter::is_useless) {
            self.old = None;
        }
    }
}

/// What is known of the keys of a table's ZAPs.
#[derive(Default)]
pub(crate) enum Known {
    /// Nothing yet.
    #[default]
    Nothing,
    /// A filter has a part of them, and the one before it may have all.
    Part(Learning),
    /// The filter has them all, though it may be full.
    All(Filter),
    /// They cannot be read.
    Never,
}

impl Known {
    /// Whether a key is certainly in none of the ZAPs.
    pub(crate) fn lacks(&self, key: &[u64; 5]) -> bool {
        match self {
            Known::All(filter)
            | Known::Part(Learning {
                old: Some(filter), ..
            }) => !filter.may_have(key),
            Known::Part(_) | Known::Nothing | Known::Never => false,
        }
    }

    /// Adds a key that is about to be put into one of the ZAPs. A filter that is hardly worth its
    /// memory any more is dropped, and one that is full before it has all keys.
    pub(crate) fn add(&mut self, key: &[u64; 5]) {
        match self {
            Known::Part(learning) => {
                learning.add_put(key);
                if learning.filter.is_full() {
                    let old = learning.old.take();
                    *self = old.map_or(Known::Nothing, Known::All);
                }
            }
            Known::All(filter) => {
                filter.add(key);
                if filter.is_useless() {
                    *self = Known::Nothing;
                }
            }
            Known::Nothing | Known::Never => {}
        }
    }

    /// The table was read to its end: the filter has them all.
    pub(crate) fn complete(&mut self) {
        *self = match std::mem::take(self) {
            Known::Part(learning) => Known::All(learning.filter),
            other => other,
        };
    }

    /// What it takes in memory.
    pub(crate) fn bytes(&self) -> u64 {
        match self {
            Known::Part(learning) => {
                let old = learning.old.as_ref().map_or(0, Filter::bytes);
                learning.filter.bytes() + old
            }
            Known::All(filter) => filter.bytes(),
            Known::Nothing | Known::Never => 0,
        }
    }
}

/// Spreads the bits of a word over all of it (the last steps of MurmurHash3).
fn mix(mut word: u64) -> u64 {
    word ^= word >> 33;
    word = word.wrapping_mul(0xff51_afd7_ed55_8ccd);
    word ^= word >> 33;
    word = word.wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    word ^ word >> 33
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_who_knows_all_says_that_a_key_is_missing() {
        let (one, other) = ([1; 5], [2; 5]);
        let mut known = Known::Part(Learning::new(10, 1, None));
        known.add(&one);
        assert!(!known.lacks(&one) && !known.lacks(&other));
        known.complete();
        assert!(!known.lacks(&one) && known.lacks(&other));
        known.add(&other);
        assert!(!known.lacks(&other));
        // One with twice the keys that it has room for knows nothing any more.
        (0..17).for_each(|_| known.add(&other));
        assert!(known.lacks(&[3; 5]));
        known.add(&other);
        assert!(matches!(known, Known::Nothing) && !known.lacks(&[3; 5]));
    }

    #[test]
    fn one_that_is_full_answers_until_the_next_one_has_all() {
        let key = |number: u64| [number, number, 0, 0, 1];
        let mut full = Filter::new(10_000);
        (0..10_000).for_each(|number| full.add(&key(number)));
        assert!(full.is_full());
        let mut known = Known::Part(Learning::new(20_000, 10_000, Some(full)));
        let lacking = |known: &Known| {
            let others = 100_000..101_000;
            others.filter(|number| known.lacks(&key(*number))).count()
        };
        assert!(lacking(&known) > 900);
        // What is put meanwhile, both have.
        (10_000..12_000).for_each(|number| known.add(&key(number)));
        assert!((0..12_000).all(|number| !known.lacks(&key(number))));
        let Known::Part(learning) = &mut known else {
            unreachable!("it is a part");
        };
        // A part of it is due, as a part of the room is taken.
        assert_eq!(learning.owed(), 4_000);
        let keys: Vec<_> = (0..10_000).map(key).collect();
        learning.add_read(&keys, (3, ZapCursor::START));
        assert_eq!((learning.owed(), learning.at().0), (0, 3));
        known.complete();
        assert!((0..12_000).all(|number| !known.lacks(&key(number))));
        assert!(lacking(&known) > 900);
        // A small one is due at once.
        let small = Learning::new(1_000, 100, Some(Filter::new(10)));
        assert_eq!(small.owed(), u64::MAX);
    }

    #[test]
    fn a_filter_that_is_full_too_soon_leaves_the_one_before_it() {
        let key = |number: u64| [number, 7, 0, 0, 1];
        let mut full = Filter::new(100);
        (0..100).for_each(|number| full.add(&key(number)));
        let mut known = Known::Part(Learning::new(50, 100, Some(full)));
        (100..150).for_each(|number| known.add(&key(number)));
        assert!(matches!(known, Known::All(_)));
        assert!((0..150).all(|number| !known.lacks(&key(number))));
        // Without one before it, nothing is left.
        let mut known = Known::Part(Learning::new(50, 100, None));
        (100..150).for_each(|number| known.add(&key(number)));
        assert!(matches!(known, Known::Nothing));
    }

    #[test]
    fn what_was_added_is_there_and_little_else() {
        // Keys that differ in any one word.
        for place in 0..5 {
            let key = |number: u64| {
                let mut key = [7; 5];
                key[place] = number;
                key
            };
            let mut filter = Filter::new(10_000);
            (0..10_000).for_each(|number| filter.add(&key(number)));
            assert!(filter.is_full());
            assert!((0..10_000).all(|number| filter.may_have(&key(number))));
            let wrong = (10_000..110_000).filter(|number| filter.may_have(&key(*number)));
            assert!(wrong.count() < 3_000);
            assert!(filter.bytes() <= Filter::bytes_for(10_000) + 64);
        }
    }
}
