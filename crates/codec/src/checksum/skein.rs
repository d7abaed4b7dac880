//! Skein-512 with 256 bits of output, keyed (Skein 1.3, sections 3.4 and 3.5): Threefish-512
//! chained by UBI.
//!
//! ZFS keys it with the pool's salt (module/zfs/skein_zfs.c, `Skein_512_InitExt` with a key).

const BLOCK_BYTES: usize = 64;

/// Types of UBI input, bits 120 to 125 of the tweak (section 3.5.1, table 6).
const TYPE_KEY: u64 = 0;
const TYPE_CONFIG: u64 = 4;
const TYPE_MESSAGE: u64 = 48;
const TYPE_OUTPUT: u64 = 63;
const FIRST: u64 = 1 << 62;
const FINAL: u64 = 1 << 63;
/// "SHA3", version 1 (section 3.5.2, table 7).
const SCHEMA: u64 = 0x1_3341_4853;

/// A hash in progress.
#[derive(Clone)]
pub(super) struct Skein512 {
    chain: [u64; 8],
    /// Low and high word of the tweak; the low one counts bytes.
    tweak: [u64; 2],
    buffer: [u8; BLOCK_BYTES],
    buffered: usize,
}

/// Rotations of the four pairs in each of eight rounds (section 3.3.1, table 4).
const ROTATIONS: [[u32; 4]; 8] = [
    [46, 36, 19, 37],
    [33, 27, 14, 42],
    [17, 49, 36, 39],
    [44, 9, 54, 56],
    [39, 30, 34, 24],
    [13, 50, 10, 17],
    [25, 29, 39, 43],
    [8, 35, 56, 22],
];
/// Which words pair up in each of four rounds: the permutation of words between rounds (table 3)
/// has the order four, and permuting the indices instead of the words saves moving them.
const PAIRS: [[[usize; 2]; 4]; 4] = [
    [[0, 1], [2, 3], [4, 5], [6, 7]],
    [[2, 1], [4, 7], [6, 5], [0, 3]],
    [[4, 1], [6, 3], [0, 5], [2, 7]],
    [[6, 1], [0, 7], [2, 5], [4, 3]],
];
/// `C_240` of the key schedule (section 3.3.2).
const KEY_PARITY: u64 = 0x1bd1_1bda_a9fc_1a22;

/// Threefish-512: 72 rounds, a subkey before every fourth and after the last.
fn threefish(key: &[u64; 8], tweak: [u64; 2], plain: &[u64; 8]) -> [u64; 8] {
    // The key's words and their parity, over and over, so that subkey `s` starts at word `s`.
    let parity = key.iter().fold(KEY_PARITY, |parity, word| parity ^ word);
    let keys: [u64; 27] = std::array::from_fn(|index| match index % 9 {
        8 => parity,
        word => key[word],
    });
    let both = tweak[0] ^ tweak[1];
    let tweaks = [tweak[0], tweak[1], both, tweak[0]];
    let add_subkey = |state: &mut [u64; 8], number: usize| {
        for (word, key) in state.iter_mut().zip(&keys[number..number + 8]) {
            *word = word.wrapping_add(*key);
        }
        state[5] = state[5].wrapping_add(tweaks[number % 3]);
        state[6] = state[6].wrapping_add(tweaks[number % 3 + 1]);
        state[7] = state[7].wrapping_add(number as u64);
    };
    let mut state = *plain;
    for eight_rounds in 0..9 {
        add_subkey(&mut state, 2 * eight_rounds);
        four_rounds::<0>(&mut state);
        add_subkey(&mut state, 2 * eight_rounds + 1);
        four_rounds::<4>(&mut state);
    }
    add_subkey(&mut state, 18);
    state
}

/// Four rounds, the first of which has the rotations of row `FIRST_ROW`.
#[inline(always)]
fn four_rounds<const FIRST_ROW: usize>(state: &mut [u64; 8]) {
    for (round, pairs) in PAIRS.iter().enumerate() {
        for ([left, right], rotation) in pairs.iter().zip(ROTATIONS[FIRST_ROW + round]) {
            state[*left] = state[*left].wrapping_add(state[*right]);
            state[*right] = state[*right].rotate_left(rotation) ^ state[*left];
        }
    }
}

fn process(chain: &mut [u64; 8], tweak: &mut [u64; 2], block: &[u8; BLOCK_BYTES], count: usize) {
    tweak[0] = tweak[0].wrapping_add(count as u64);
    let mut message = [0u64; 8];
    for (word, bytes) in message.iter_mut().zip(block.as_chunks::<8>().0) {
        *word = u64::from_le_bytes(*bytes);
    }
    let state = threefish(chain, *tweak, &message);
    for ((chain, state), message) in chain.iter_mut().zip(state).zip(message) {
        *chain = state ^ message;
    }
    tweak[1] &= !FIRST;
}

/// UBI of an input of one block at most.
fn single(chain: &mut [u64; 8], kind: u64, input: &[u8]) {
    let mut block = [0; BLOCK_BYTES];
    block[..input.len()].copy_from_slice(input);
    let mut tweak = [0, kind << 56 | FIRST | FINAL];
    process(chain, &mut tweak, &block, input.len());
}

impl Skein512 {
    /// A hash keyed with `key`.
    pub(super) fn keyed(key: &[u8; 32]) -> Self {
        let mut chain = [0; 8];
        single(&mut chain, TYPE_KEY, key);
        Self::configured(chain, 256)
    }

    /// A hash without a key, for the specification's test vectors.
    #[cfg(test)]
    pub(super) fn unkeyed(output_bits: u64) -> Self {
        Self::configured([0; 8], output_bits)
    }

    fn configured(mut chain: [u64; 8], output_bits: u64) -> Self {
        let mut config = [0u8; 32];
        config[..8].copy_from_slice(&SCHEMA.to_le_bytes());
        config[8..16].copy_from_slice(&output_bits.to_le_bytes());
        single(&mut chain, TYPE_CONFIG, &config);
        Skein512 {
            chain,
            tweak: [0, TYPE_MESSAGE << 56 | FIRST],
            buffer: [0; BLOCK_BYTES],
            buffered: 0,
        }
    }

    /// Takes in `data`.
    pub(super) fn update(&mut self, mut data: &[u8]) {
        // The last block is processed by `finish`, which marks it, so a full buffer waits until
        // more comes.
        if self.buffered > 0 {
            let take = data.len().min(BLOCK_BYTES - self.buffered);
            self.buffer[self.buffered..self.buffered + take].copy_from_slice(&data[..take]);
            self.buffered += take;
            data = &data[take..];
            if data.is_empty() {
                return;
            }
            process(&mut self.chain, &mut self.tweak, &self.buffer, BLOCK_BYTES);
            self.buffered = 0;
        }
        while let Some((block, rest)) = data.split_first_chunk::<BLOCK_BYTES>() {
            if rest.is_empty() {
                break;
            }
            process(&mut self.chain, &mut self.tweak, block, BLOCK_BYTES);
            data = rest;
        }
        self.buffer[..data.len()].copy_from_slice(data);
        self.buffered = data.len();
    }

    /// The first 512 bits of output, of which as many as were configured are the digest.
    pub(super) fn finish(mut self) -> [u8; 64] {
        self.buffer[self.buffered..].fill(0);
        self.tweak[1] |= FINAL;
        process(
            &mut self.chain,
            &mut self.tweak,
            &self.buffer,
            self.buffered,
        );
        single(&mut self.chain, TYPE_OUTPUT, &0u64.to_le_bytes());
        let mut digest = [0; 64];
        for (bytes, word) in digest.as_chunks_mut::<8>().0.iter_mut().zip(self.chain) {
            *bytes = word.to_le_bytes();
        }
        digest
    }
}
