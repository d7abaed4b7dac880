//! Choices of a run: one seed, one sequence.

/// A small generator (splitmix64): the same numbers for the same seed, for ever.
#[derive(Debug, Clone)]
pub struct Rng(u64);

impl Rng {
    /// From a seed.
    pub fn new(seed: u64) -> Self {
        Rng(seed ^ 0x6d69_6c6c_706f_6e64)
    }

    /// Any number.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `limit` (0 when that is 0).
    pub fn below(&mut self, limit: u64) -> u64 {
        if limit == 0 {
            0
        } else {
            self.next_u64() % limit
        }
    }

    /// True this often in a hundred.
    pub fn percent(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// One of these; `None` of nothing.
    pub fn pick<T: Clone>(&mut self, from: &[T]) -> Option<T> {
        from.get(self.below(from.len() as u64) as usize).cloned()
    }

    /// Bytes: zeros, compressible or random.
    pub fn content(&mut self, length: usize) -> Vec<u8> {
        let word = self.next_u64();
        let kind = self.below(5);
        if kind == 0 {
            return vec![0; length];
        }
        let mut out = Vec::with_capacity(length + 8);
        while out.len() < length {
            let next = if kind == 1 { word } else { self.next_u64() };
            out.extend_from_slice(&next.to_le_bytes());
            if kind == 2 {
                out.extend_from_slice(&word.to_le_bytes());
            }
        }
        out.truncate(length);
        out
    }
}
