//! Bytes at offsets in memory, sparse, cheap to snapshot: the body of the memory device and of
//! simulated disks.

use std::collections::BTreeMap;
use std::sync::Arc;

/// Bytes per page.
const PAGE_BYTES: usize = 4096;

type Page = [u8; PAGE_BYTES];

/// A sparse array of bytes; what was never written reads as zeros. A clone shares its pages until
/// either side writes to them.
#[derive(Clone, Default)]
pub(crate) struct Sparse {
    pages: BTreeMap<u64, Arc<Page>>,
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
                Some(bytes) => target.copy_from_slice(&bytes[in_page..in_page + take]),
                None => target.fill(0),
            }
        }
    }

    /// Stores `data` at `offset_bytes`.
    pub(crate) fn write(&mut self, offset_bytes: u64, data: &[u8]) {
        for (page, in_page, in_range, take) in pieces(offset_bytes, data.len()) {
            let source = &data[in_range..in_range + take];
            let bytes = self
                .pages
                .entry(page)
                .or_insert_with(|| Arc::new([0; PAGE_BYTES]));
            Arc::make_mut(bytes)[in_page..in_page + take].copy_from_slice(source);
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
                Arc::make_mut(bytes)[in_page..in_page + take].fill(0);
            }
        }
    }

    /// The pages that were written, with their offsets, in order.
    pub(crate) fn pages(&self) -> impl Iterator<Item = (u64, &[u8])> {
        self.pages
            .iter()
            .map(|(page, bytes)| (page * PAGE_BYTES as u64, &bytes[..]))
    }

    /// Bytes of memory that the pages take.
    pub(crate) fn resident_bytes(&self) -> u64 {
        self.pages.len() as u64 * PAGE_BYTES as u64
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
}
