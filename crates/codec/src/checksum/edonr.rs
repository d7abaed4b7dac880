//! Edon-R-512 in its tweaked second-round form ("Edon-R v2", D. Gligoroski et al.), as ZFS uses it
//! (module/icp/algs/edonr/edonr.c; salted as module/zfs/edonr_zfs.c).
//!
//! The compression function applies a quasigroup operation on pairs of eight 64-bit words eight
//! times, mixing the two halves of the message block with the two halves of a double pipe. The
//! operation is two sums over Latin-square rows, rotated, then XORs over another pair.

const BLOCK_BYTES: usize = 128;

type Half = [u64; 8];

/// Which words of the left operand add up to each word, and how far that is rotated.
const LEFT: [([usize; 5], u32); 8] = [
    ([0, 1, 2, 4, 7], 0),
    ([0, 1, 3, 4, 7], 5),
    ([0, 1, 4, 6, 7], 15),
    ([2, 3, 5, 6, 7], 22),
    ([1, 2, 3, 5, 6], 31),
    ([0, 2, 3, 4, 5], 40),
    ([0, 1, 5, 6, 7], 50),
    ([2, 3, 4, 5, 6], 59),
];
/// The same for the right operand.
const RIGHT: [([usize; 5], u32); 8] = [
    ([0, 1, 2, 5, 7], 0),
    ([0, 1, 3, 4, 6], 10),
    ([0, 1, 2, 3, 5], 19),
    ([2, 3, 4, 6, 7], 29),
    ([0, 1, 3, 4, 5], 36),
    ([2, 4, 5, 6, 7], 44),
    ([1, 2, 5, 6, 7], 48),
    ([0, 3, 4, 6, 7], 55),
];
/// Which three left and three right results are XORed, then added, for each word of the product.
const MIX: [([usize; 3], [usize; 3]); 8] = [
    ([0, 1, 4], [0, 1, 5]),
    ([0, 4, 7], [2, 6, 7]),
    ([1, 6, 7], [0, 1, 3]),
    ([2, 3, 4], [0, 3, 4]),
    ([0, 1, 7], [1, 2, 5]),
    ([3, 5, 6], [3, 4, 6]),
    ([2, 5, 6], [2, 5, 7]),
    ([2, 3, 5], [4, 6, 7]),
];
/// Added to the first sum of the left operand; its complement to that of the right one.
const OFFSET: u64 = 0xaaaa_aaaa_aaaa_aaaa;

#[inline(always)]
fn sums(operand: &Half, rows: &[([usize; 5], u32); 8], offset: u64) -> Half {
    let mut out = [0u64; 8];
    for (index, (out, (row, rotation))) in out.iter_mut().zip(rows).enumerate() {
        let sum = row
            .iter()
            .fold(0u64, |sum, word| sum.wrapping_add(operand[*word]));
        *out = if index == 0 {
            sum.wrapping_add(offset)
        } else {
            sum.rotate_left(*rotation)
        };
    }
    out
}

/// The quasigroup operation.
#[inline(always)]
fn product(left: &Half, right: &Half) -> Half {
    let s = sums(left, &LEFT, OFFSET);
    let t = sums(right, &RIGHT, !OFFSET);
    let mut out = [0u64; 8];
    for (out, (left, right)) in out.iter_mut().zip(&MIX) {
        *out = (s[left[0]] ^ s[left[1]] ^ s[left[2]])
            .wrapping_add(t[right[0]] ^ t[right[1]] ^ t[right[2]]);
    }
    out
}

fn reversed(half: &Half) -> Half {
    let mut out = *half;
    out.reverse();
    out
}

/// A hash in progress.
#[derive(Clone)]
pub(super) struct EdonR512 {
    pipe: [Half; 2],
    buffer: [u8; BLOCK_BYTES],
    buffered: usize,
    length_bytes: u64,
}

fn compress(pipe: &mut [Half; 2], block: &[u8; BLOCK_BYTES]) {
    let mut low: Half = [0; 8];
    let mut high: Half = [0; 8];
    let words = block.as_chunks::<8>().0;
    for (index, bytes) in words.iter().enumerate() {
        let word = u64::from_le_bytes(*bytes);
        if index < 8 {
            low[index] = word;
        } else {
            high[index - 8] = word;
        }
    }
    let p = product(&reversed(&high), &low);
    let q = product(&p, &high);
    let p = product(&pipe[1], &p);
    let q = product(&p, &q);
    let p = product(&p, &pipe[0]);
    let q = product(&q, &p);
    let p = product(&reversed(&low), &p);
    let q = product(&p, &q);
    // The tweak of the second round: pipe and message are fed forward.
    for index in 0..8 {
        pipe[0][index] ^= high[index] ^ p[index];
        pipe[1][index] ^= low[index] ^ q[index];
    }
}

impl EdonR512 {
    /// A hash of nothing yet.
    pub(super) fn new() -> Self {
        // The initial pipe is the bytes 0x80, 0x81, … 0xff read as big-endian words.
        let mut pipe = [[0u64; 8]; 2];
        for (index, word) in pipe.iter_mut().flatten().enumerate() {
            let first = 0x80 + 8 * index as u64;
            *word = (0..8).fold(0, |word, step| word << 8 | (first + step));
        }
        EdonR512 {
            pipe,
            buffer: [0; BLOCK_BYTES],
            buffered: 0,
            length_bytes: 0,
        }
    }

    /// A hash that starts with a block made of the salt: its hash, then the hash of that.
    pub(super) fn salted(salt: &[u8; 32]) -> Self {
        let once = Self::digest(salt);
        let twice = Self::digest(&once);
        let mut hash = Self::new();
        hash.update(&once);
        hash.update(&twice);
        hash
    }

    /// The hash of `data`.
    pub(super) fn digest(data: &[u8]) -> [u8; 64] {
        let mut hash = Self::new();
        hash.update(data);
        hash.finish()
    }

    /// Takes in `data`.
    pub(super) fn update(&mut self, mut data: &[u8]) {
        self.length_bytes = self.length_bytes.wrapping_add(data.len() as u64);
        if self.buffered > 0 {
            let take = data.len().min(BLOCK_BYTES - self.buffered);
            self.buffer[self.buffered..self.buffered + take].copy_from_slice(&data[..take]);
            self.buffered += take;
            data = &data[take..];
            if self.buffered < BLOCK_BYTES {
                return;
            }
            compress(&mut self.pipe, &self.buffer);
            self.buffered = 0;
        }
        let (blocks, rest) = data.as_chunks::<BLOCK_BYTES>();
        for block in blocks {
            compress(&mut self.pipe, block);
        }
        self.buffer[..rest.len()].copy_from_slice(rest);
        self.buffered = rest.len();
    }

    /// The digest.
    pub(super) fn finish(mut self) -> [u8; 64] {
        let length_at = BLOCK_BYTES - 8;
        self.buffer[self.buffered..].fill(0);
        self.buffer[self.buffered] = 0x80;
        if self.buffered >= length_at {
            compress(&mut self.pipe, &self.buffer);
            self.buffer.fill(0);
        }
        let length_bits = self.length_bytes.wrapping_mul(8);
        self.buffer[length_at..].copy_from_slice(&length_bits.to_le_bytes());
        compress(&mut self.pipe, &self.buffer);
        let mut digest = [0; 64];
        for (bytes, word) in digest.as_chunks_mut::<8>().0.iter_mut().zip(self.pipe[1]) {
            *bytes = word.to_le_bytes();
        }
        digest
    }
}
