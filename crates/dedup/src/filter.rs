//! Which keys a dedup table has, in little memory: a split block Bloom filter.
//!
//! Of a key that it was given it never says that it is not there. Of one that it was not given it
//! says so in about 98 of 100 cases. A key sets one bit in each of the eight words of a block of 64
//! bytes, so asking touches one line of the processor's cache (Putze, Sanders and Singler, Cache-,
//! Hash- and Space-Efficient Bloom Filters, 2007; the form of Apache Parquet's).

use object::ZapCursor;

/// Bits for each key.
const BITS: u64 = 10;
/// Bits in a block.
const BLOCK_BITS: u64 = 512;

/// A filter with room for a number of keys.
pub(crate) struct Filter {
    blocks: Vec<[u64; 8]>,
    /// How many more keys may be added before it gets worse than it says.
    room: u64,
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
            room: keys,
        }
    }

    /// What it takes in memory.
    pub(crate) fn bytes(&self) -> u64 {
        (self.blocks.len() * 64) as u64
    }

    /// Whether more keys were added than there is room for.
    pub(crate) fn is_full(&self) -> bool {
        self.room == 0
    }

    /// Adds a key.
    pub(crate) fn add(&mut self, key: &[u64; 5]) {
        let (block, bits) = self.place(key);
        for (word, bit) in self.blocks[block].iter_mut().zip(bits) {
            *word |= 1 << bit;
        }
        self.room = self.room.saturating_sub(1);
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

/// What is known of the keys of a table's ZAPs.
#[derive(Default)]
pub(crate) enum Known {
    /// Nothing yet.
    #[default]
    Nothing,
    /// The filter has the keys of the ZAPs before this one, and of this one those before the
    /// cursor; and whatever was put into any of them since it was begun.
    Part(Filter, (usize, ZapCursor)),
    /// The filter has them all.
    All(Filter),
    /// They cannot be read.
    Never,
}

impl Known {
    /// Whether a key is certainly in none of the ZAPs.
    pub(crate) fn lacks(&self, key: &[u64; 5]) -> bool {
        matches!(self, Known::All(filter) if !filter.may_have(key))
    }

    /// Adds a key that is about to be put into one of the ZAPs. A filter that is full is dropped.
    pub(crate) fn add(&mut self, key: &[u64; 5]) {
        if let Known::Part(filter, _) | Known::All(filter) = self {
            filter.add(key);
            if filter.is_full() {
                *self = Known::Nothing;
            }
        }
    }

    /// What it takes in memory.
    pub(crate) fn bytes(&self) -> u64 {
        match self {
            Known::Part(filter, _) | Known::All(filter) => filter.bytes(),
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
        let mut filter = Filter::new(10);
        filter.add(&one);
        let mut known = Known::Part(filter, (0, ZapCursor::START));
        assert!(!known.lacks(&one) && !known.lacks(&other));
        let Known::Part(filter, _) = known else {
            unreachable!("it is a part");
        };
        known = Known::All(filter);
        assert!(!known.lacks(&one) && known.lacks(&other));
        known.add(&other);
        assert!(!known.lacks(&other));
        // One that is full knows nothing any more.
        (0..8).for_each(|_| known.add(&other));
        assert!(matches!(known, Known::Nothing) && !known.lacks(&[3; 5]));
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
