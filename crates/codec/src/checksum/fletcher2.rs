//! Fletcher-2: two interleaved pairs of 64-bit sums (module/zcommon/zfs_fletcher.c,
//! `fletcher_2_incremental_native`). Only old pools and old log blocks have it.

use format::Endian;

use super::ChecksumWords;

/// Sums so far: of the even words and the odd words, then the sums of those sums.
#[derive(Default)]
pub(super) struct Fletcher2 {
    words: ChecksumWords,
}

impl Fletcher2 {
    /// Takes in `data`, pairs of words; bytes after the last whole pair are ignored.
    pub(super) fn update(&mut self, endian: Endian, data: &[u8]) {
        let [mut even, mut odd, mut even_sum, mut odd_sum] = self.words;
        for pair in data.as_chunks::<16>().0 {
            let [first, second] = pair.as_chunks::<8>().0 else {
                continue;
            };
            even = even.wrapping_add(endian.u64(*first));
            odd = odd.wrapping_add(endian.u64(*second));
            even_sum = even_sum.wrapping_add(even);
            odd_sum = odd_sum.wrapping_add(odd);
        }
        self.words = [even, odd, even_sum, odd_sum];
    }

    /// The checksum.
    pub(super) fn words(&self) -> ChecksumWords {
        self.words
    }
}
