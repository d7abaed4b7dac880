//! Fletcher-4: four running sums over 32-bit words (module/zcommon/zfs_fletcher.c).
//!
//! For each word `w`: `a += w; b += a; c += b; d += c`, all modulo 2^64. With `m` the number of
//! words from `w` to the end, including `w`, that is
//!
//! ```text
//! a = Σ w    b = Σ m·w    c = Σ m(m+1)/2·w    d = Σ m(m+1)(m+2)/6·w
//! ```
//!
//! These polynomials are what makes the sum parallel. With `L` lanes, lane `j` sums the words `j,
//! j+L, j+2L, …` on its own; a word with `m` lane-words left has `M = L·m − j` words left overall,
//! and the polynomials in `M`, written in the basis `1, m, m(m+1)/2, m(m+1)(m+2)/6`, say how to add
//! up the lanes ([`merge_lanes`]). Likewise a piece summed from zero is appended to what came
//! before it ([`Fletcher4::append`]), so the sum can be computed in pieces.

use std::sync::OnceLock;

use format::Endian;

use super::ChecksumWords;

#[cfg(target_arch = "x86_64")]
mod x86;

/// Sums a piece from zero; the piece's length is a multiple of [`PIECE_BYTES`].
type SumPieces = fn(Endian, &[u8]) -> ChecksumWords;

/// What SIMD implementations handle at once; the rest is done word by word.
const PIECE_BYTES: usize = 64;

/// A fletcher4 sum in progress. Data comes in whole words of four bytes; bytes after the last
/// whole word of an update are ignored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fletcher4 {
    endian: Endian,
    words: ChecksumWords,
}

impl Fletcher4 {
    /// The sum of nothing, for words of byte order `endian`.
    pub fn new(endian: Endian) -> Self {
        Fletcher4 {
            endian,
            words: [0; 4],
        }
    }

    /// Continues from a sum that was computed before.
    pub fn resume(endian: Endian, words: ChecksumWords) -> Self {
        Fletcher4 { endian, words }
    }

    /// Takes in `data`.
    pub fn update(&mut self, data: &[u8]) {
        self.update_with(best(), data);
    }

    fn update_with(&mut self, sum_pieces: SumPieces, data: &[u8]) {
        let whole = data.len() - data.len() % PIECE_BYTES;
        // Short data is not worth the merging of lanes.
        let (pieces, rest) = data.split_at(if whole >= 2 * PIECE_BYTES { whole } else { 0 });
        if !pieces.is_empty() {
            self.append(sum_pieces(self.endian, pieces), (pieces.len() / 4) as u64);
        }
        self.words = scalar_from(self.words, self.endian, rest);
    }

    /// Takes in `count` words of four bytes of which somebody else computed the sum, in the same
    /// byte order and from nothing: every earlier word now has `count` more words after it.
    pub fn append(&mut self, piece: ChecksumWords, count: u64) {
        let [a, b, c, d] = self.words;
        let [two, three] = figurate(count);
        self.words = [
            a.wrapping_add(piece[0]),
            b.wrapping_add(a.wrapping_mul(count)).wrapping_add(piece[1]),
            c.wrapping_add(b.wrapping_mul(count))
                .wrapping_add(a.wrapping_mul(two))
                .wrapping_add(piece[2]),
            d.wrapping_add(c.wrapping_mul(count))
                .wrapping_add(b.wrapping_mul(two))
                .wrapping_add(a.wrapping_mul(three))
                .wrapping_add(piece[3]),
        ];
    }

    /// The checksum of everything so far.
    pub fn words(&self) -> ChecksumWords {
        self.words
    }
}

/// `n(n+1)/2` and `n(n+1)(n+2)/6`, modulo 2^64.
fn figurate(n: u64) -> [u64; 2] {
    let n = u128::from(n);
    // Exact in 128 bits: data is far shorter than 2^42 words.
    [(n * (n + 1) / 2) as u64, (n * (n + 1) * (n + 2) / 6) as u64]
}

/// The definition, word by word.
fn scalar_from(start: ChecksumWords, endian: Endian, data: &[u8]) -> ChecksumWords {
    let [mut a, mut b, mut c, mut d] = start;
    let words = data.as_chunks::<4>().0;
    let mut step = |word: u32| {
        a = a.wrapping_add(u64::from(word));
        b = b.wrapping_add(a);
        c = c.wrapping_add(b);
        d = d.wrapping_add(c);
    };
    match endian {
        Endian::Little => words
            .iter()
            .for_each(|word| step(u32::from_le_bytes(*word))),
        Endian::Big => words
            .iter()
            .for_each(|word| step(u32::from_be_bytes(*word))),
    }
    [a, b, c, d]
}

fn scalar(endian: Endian, data: &[u8]) -> ChecksumWords {
    scalar_from([0; 4], endian, data)
}

/// Adds up lanes that each summed every `LANES`-th word; `lanes[k][j]` is sum `k` of lane `j`.
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
fn merge_lanes<const LANES: usize>(lanes: &[[u64; LANES]; 4]) -> ChecksumWords {
    let l = LANES as i64;
    let mut out = [0u64; 4];
    for lane in 0..LANES {
        let j = lane as i64;
        let [a, b, c, d] = lanes.map(|sums| sums[lane]);
        let times = |value: u64, factor: i64| value.wrapping_mul(factor as u64);
        let terms = [
            a,
            times(b, l).wrapping_add(times(a, -j)),
            times(c, l * l)
                .wrapping_add(times(b, -(l * l - l * (1 - 2 * j)) / 2))
                .wrapping_add(times(a, j * (j - 1) / 2)),
            times(d, l * l * l)
                .wrapping_add(times(c, -(l * l * l - l * l * (1 - j))))
                .wrapping_add(times(
                    b,
                    (l * l * l - 3 * l * l * (1 - j) + 3 * l * j * j - 6 * l * j + 2 * l) / 6,
                ))
                .wrapping_add(times(a, -(j * (j - 1) * (j - 2)) / 6)),
        ];
        for (sum, term) in out.iter_mut().zip(terms) {
            *sum = sum.wrapping_add(term);
        }
    }
    out
}

fn available() -> Vec<(&'static str, SumPieces)> {
    let mut all: Vec<(&'static str, SumPieces)> = vec![("scalar", scalar)];
    #[cfg(target_arch = "x86_64")]
    {
        if is_x86_feature_detected!("avx2") {
            all.push(("avx2", x86::sum_avx2));
        }
        if is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx2") {
            all.push(("avx512", x86::sum_avx512));
        }
    }
    all
}

fn best() -> SumPieces {
    static BEST: OnceLock<SumPieces> = OnceLock::new();
    *BEST.get_or_init(|| {
        available()
            .pop()
            .map_or(scalar as SumPieces, |(_, sum)| sum)
    })
}

/// A named way to compute fletcher4.
pub type Implementation = (&'static str, Box<dyn Fn(Endian, &[u8]) -> ChecksumWords>);

/// Every implementation that runs on this CPU, by name, slowest first: for tests and benchmarks.
pub fn implementations() -> Vec<Implementation> {
    available()
        .into_iter()
        .map(|(name, sum_pieces)| {
            let sum = move |endian: Endian, data: &[u8]| {
                let mut sum = Fletcher4::new(endian);
                sum.update_with(sum_pieces, data);
                sum.words()
            };
            (name, Box::new(sum) as Box<dyn Fn(Endian, &[u8]) -> _>)
        })
        .collect()
}
