//! Bytes at offsets in memory, sparse, cheap to snapshot: the body of the memory device and of
//! simulated disks.
//!
//! A page that is mostly zeros, as are those of data that simulations make up, is kept as its words
//! that are not: a pool of gigabytes takes a thirtieth of them.

use std::collections::BTreeMap;
use std::sync::Arc;

/// Bytes per page.
const PAGE_BYTES: usize = 4096;
/// Bytes per word.
const WORD_BYTES: usize = 8;
/// Words of a page's map, which has a bit for each word.
const MAP_WORDS: usize = PAGE_BYTES / WORD_BYTES / 64;
/// A page with more words that are not zero is kept whole.
const WORDS_MAX: usize = 128;

type Bytes = [u8; PAGE_BYTES];

#[derive(Clone)]
enum Page {
    Whole(Arc<Bytes>),
    /// The map: `MAP_WORDS` words, in which bit `n % 64` of word `n / 64` tells whether word `n` of
    /// the page is there. Behind it those words, in order.
    Few(Arc<[u64]>),
}

impl Page {
    fn new(bytes: &Bytes) -> Self {
        let mut kept = [0u64; MAP_WORDS + WORDS_MAX];
        let mut end = MAP_WORDS;
        for (number, word) in bytes.as_chunks::<WORD_BYTES>().0.iter().enumerate() {
            let word = u64::from_le_bytes(*word);
            if word == 0 {
                continue;
            }
            if end == kept.len() {
                return Page::Whole(Arc::new(*bytes));
            }
            kept[number / 64] |= 1 << (number % 64);
            kept[end] = word;
            end += 1;
        }
        Page::Few(kept[..end].into())
    }

    /// Bytes from `start` of the page on.
    fn read(&self, start: usize, out: &mut [u8]) {
        match self {
            Page::Whole(bytes) => out.copy_from_slice(&bytes[start..start + out.len()]),
            Page::Few(_) => out.copy_from_slice(&self.bytes()[start..start + out.len()]),
        }
    }

    fn bytes(&self) -> Bytes {
        let kept = match self {
            Page::Whole(bytes) => return **bytes,
            Page::Few(kept) => kept,
        };
        let mut bytes = [0; PAGE_BYTES];
        let (map, words) = kept.split_at(MAP_WORDS);
        let mut words = words.iter();
        for (number, bits) in map.iter().enumerate() {
            let mut bits = *bits;
            while bits != 0
                && let Some(word) = words.next()
            {
                let start = (number * 64 + bits.trailing_zeros() as usize) * WORD_BYTES;
                bytes[start..start + WORD_BYTES].copy_from_slice(&word.to_le_bytes());
                bits &= bits - 1;
            }
        }
        bytes
    }

    /// Stores `data` from `start` of the page on.
    fn write(&mut self, start: usize, data: &[u8]) {
        if let Ok(whole) = data.try_into() {
            *self = Page::new(whole);
            return;
        }
        if let Page::Whole(bytes) = self {
            Arc::make_mut(bytes)[start..start + data.len()].copy_from_slice(data);
            return;
        }
        let mut bytes = self.bytes();
        bytes[start..start + data.len()].copy_from_slice(data);
        *self = Page::new(&bytes);
    }

    /// Makes `length` bytes from `start` of the page on zeros.
    fn clear(&mut self, start: usize, length: usize) {
        let mut bytes = self.bytes();
        bytes[start..start + length].fill(0);
        *self = Page::new(&bytes);
    }

    fn resident_bytes(&self) -> usize {
        match self {
            Page::Whole(_) => PAGE_BYTES,
            Page::Few(kept) => kept.len() * WORD_BYTES,
        }
    }
}

/// A sparse array of bytes; what was never written reads as zeros. A clone shares its pages until
/// either side writes to them.
#[derive(Clone, Default)]
pub(crate) struct Sparse {
    pages: BTreeMap<u64, Page>,
}

/// The pieces of a range, page by page: page number, start in the page, start in the range, length.
fn pieces(offset_bytes: u64, length: usize) -> impl Iterator<Item = (u64, usize, usize, usize)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        if done == length {
            return None;
        }
        let at = offset_bytes + done as u64;
        let in_page = (at % PAGE_BYTES as u64) as usize;
        let take = (PAGE_BYTES - in_page).min(length - done);
        let piece = (at / PAGE_BYTES as u64, in_page, done, take);
        done += take;
        Some(piece)
    })
}

impl Sparse {
    /// Fills `out` with the bytes at `offset_bytes`.
    pub(crate) fn read(&self, offset_bytes: u64, out: &mut [u8]) {
        for (page, in_page, in_range, take) in pieces(offset_bytes, out.len()) {
            let target = &mut out[in_range..in_range + take];
            match self.pages.get(&page) {
                Some(bytes) => bytes.read(in_page, target),
                None => target.fill(0),
            }
        }
    }

    /// Stores `data` at `offset_bytes`.
    pub(crate) fn write(&mut self, offset_bytes: u64, data: &[u8]) {
        for (page, in_page, in_range, take) in pieces(offset_bytes, data.len()) {
            let source = &data[in_range..in_range + take];
            let nothing = || Page::new(&[0; PAGE_BYTES]);
            let bytes = self.pages.entry(page).or_insert_with(nothing);
            bytes.write(in_page, source);
        }
    }

    /// Takes over the pages that a range touches from another array, and shares them.
    pub(crate) fn share(&mut self, from: &Sparse, offset_bytes: u64, length_bytes: u64) {
        let end = (offset_bytes + length_bytes).div_ceil(PAGE_BYTES as u64);
        let touched = offset_bytes / PAGE_BYTES as u64..end;
        let own: Vec<u64> = (self.pages.range(touched.clone()))
            .map(|(page, _)| *page)
            .filter(|page| !from.pages.contains_key(page))
            .collect();
        for page in own {
            self.pages.remove(&page);
        }
        for (page, bytes) in from.pages.range(touched) {
            self.pages.insert(*page, bytes.clone());
        }
    }

    /// Makes the range read as zeros again, giving back whole pages.
    pub(crate) fn clear(&mut self, offset_bytes: u64, length_bytes: u64) {
        let end = offset_bytes + length_bytes;
        let first_whole = offset_bytes.div_ceil(PAGE_BYTES as u64);
        let end_whole = end / PAGE_BYTES as u64;
        if first_whole >= end_whole {
            // Shorter than two pages: the range fits a usize for certain.
            self.zero_within_pages(offset_bytes, length_bytes as usize);
            return;
        }
        let head = first_whole * PAGE_BYTES as u64 - offset_bytes;
        self.zero_within_pages(offset_bytes, head as usize);
        let tail_start = end_whole * PAGE_BYTES as u64;
        self.zero_within_pages(tail_start, (end - tail_start) as usize);
        let doomed: Vec<u64> = self
            .pages
            .range(first_whole..end_whole)
            .map(|(page, _)| *page)
            .collect();
        for page in doomed {
            self.pages.remove(&page);
        }
    }

    fn zero_within_pages(&mut self, offset_bytes: u64, length: usize) {
        for (page, in_page, _, take) in pieces(offset_bytes, length) {
            if let Some(bytes) = self.pages.get_mut(&page) {
                bytes.clear(in_page, take);
            }
        }
    }

    /// The pages that were written, with their offsets, in order.
    pub(crate) fn pages(&self) -> impl Iterator<Item = (u64, Bytes)> {
        let pages = self.pages.iter();
        pages.map(|(page, bytes)| (page * PAGE_BYTES as u64, bytes.bytes()))
    }

    /// Bytes of memory that the pages take.
    pub(crate) fn resident_bytes(&self) -> u64 {
        let pages = self.pages.values();
        pages.map(Page::resident_bytes).sum::<usize>() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Debug, Clone)]
    enum Step {
        Write(u64, Vec<u8>),
        Clear(u64, u64),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            (
                0u64..40_000,
                proptest::collection::vec(any::<u8>(), 0..9000)
            )
                .prop_map(|(at, data)| Step::Write(at, data)),
            // Mostly zeros.
            (0u64..40_000, 1..9000usize, any::<u64>(), 8..600usize).prop_map(
                |(at, length, word, every)| {
                    let mut data = vec![0; length];
                    for piece in data.chunks_mut(every) {
                        let bytes = piece.iter_mut().zip(word.to_le_bytes());
                        bytes.for_each(|(byte, with)| *byte = with);
                    }
                    Step::Write(at, data)
                }
            ),
            (0u64..40_000, 0u64..20_000).prop_map(|(at, length)| Step::Clear(at, length)),
        ]
    }

    proptest! {
        #[test]
        fn behaves_like_a_plain_array(steps in proptest::collection::vec(step(), 1..20)) {
            let mut plain = vec![0u8; 64 * 1024];
            let mut sparse = Sparse::default();
            let untouched = sparse.clone();
            for step in steps {
                match step {
                    Step::Write(at, data) => {
                        plain[at as usize..at as usize + data.len()].copy_from_slice(&data);
                        sparse.write(at, &data);
                    }
                    Step::Clear(at, length) => {
                        plain[at as usize..(at + length) as usize].fill(0);
                        sparse.clear(at, length);
                    }
                }
            }
            let mut seen = vec![0xaa; plain.len()];
            sparse.read(0, &mut seen);
            prop_assert_eq!(seen, plain);
            prop_assert_eq!(untouched.resident_bytes(), 0);
        }
    }

    #[test]
    fn zeros_take_little_memory() {
        let mut sparse = Sparse::default();
        let mut data = vec![0; 1 << 20];
        for sector in data.chunks_mut(512) {
            sector[..8].fill(7);
        }
        sparse.write(0, &data);
        let few = sparse.resident_bytes();
        assert!(
            few < 1 << 15,
            "{few} bytes for a mebibyte that is mostly zeros"
        );
        let untouched = sparse.clone();
        sparse.write(4096, &[9; 4096]);
        assert_eq!(sparse.resident_bytes() - few, 4096 - 128);
        let (mut before, mut after) = ([0; 8192], [0; 8192]);
        untouched.read(2048, &mut before);
        assert_eq!(before, data[2048..10240]);
        sparse.read(2048, &mut after);
        assert!(after[2048..6144].iter().all(|byte| *byte == 9));
        assert_eq!(after[..2048], data[2048..4096]);
        assert_eq!(after[6144..], data[8192..10240]);
    }
}
