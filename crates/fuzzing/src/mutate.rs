//! Seeded changes of inputs.

use crate::INPUT_BYTES_MAX;

/// Numbers that overflow, underflow or mean something special somewhere.
const NUMBERS: [u64; 14] = [
    0,
    1,
    2,
    7,
    0x7f,
    0xff,
    0xffff,
    0x7fff_ffff,
    0xffff_ffff,
    1 << 47,
    1 << 62,
    i64::MAX as u64,
    1 << 63,
    u64::MAX,
];

/// xorshift64*: the same numbers everywhere for a seed.
#[derive(Debug, Clone)]
pub struct Seeded(u64);

impl Seeded {
    /// A sequence of its own for each seed.
    pub fn new(seed: u64) -> Self {
        let mixed = (seed ^ 0x5851_f42d_4c95_7f2d).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut seeded = Self(mixed | 1);
        seeded.next();
        seeded
    }

    /// The next number.
    #[allow(clippy::should_implement_trait, reason = "it never ends")]
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// The next number below `count`; 0 when that is 0.
    pub fn below(&mut self, count: u64) -> u64 {
        (self.next() >> 11) % count.max(1)
    }
}

/// Changes an input in one to eight places.
pub fn mutate(random: &mut Seeded, input: &mut Vec<u8>, others: &[Vec<u8>]) {
    for _ in 0..=random.below(8) {
        if input.is_empty() {
            input.push(random.next() as u8);
        }
        // The beginning, where headers are, more often than chance would.
        let span = if random.below(2) == 0 { 128 } else { u64::MAX };
        let at = random.below(span.min(input.len() as u64)) as usize;
        match random.below(8) {
            0 => input[at] ^= 1 << random.below(8),
            1 => input[at] = random.next() as u8,
            2 | 3 => {
                let width = 1 << random.below(4);
                let start = at - at % width;
                let number = NUMBERS[random.below(NUMBERS.len() as u64) as usize];
                let bytes = if random.below(2) == 0 {
                    u64::to_le_bytes(number)
                } else {
                    u64::to_be_bytes(number.rotate_left(64 - 8 * width as u32))
                };
                if let Some(place) = input.get_mut(start..start + width) {
                    place.copy_from_slice(&bytes[..width]);
                }
            }
            4 => input.truncate(at),
            5 => {
                let end = (at + 1 + random.below(64) as usize).min(input.len());
                let copy = input[at..end].to_vec();
                let to = random.below(input.len() as u64) as usize;
                input.splice(to..to, copy);
            }
            6 => {
                let end = (at + 1 + random.below(64) as usize).min(input.len());
                input[at..end].fill(random.next() as u8);
            }
            _ => {
                let Some(other) = others.get(random.below(others.len() as u64) as usize) else {
                    continue;
                };
                let end = at.min(other.len());
                input.splice(..end, other[..end].iter().copied());
            }
        }
    }
    input.truncate(INPUT_BYTES_MAX);
}
