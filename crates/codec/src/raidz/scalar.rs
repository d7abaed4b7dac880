//! RAID-Z without SIMD: eight bytes at a time in a u64 where that works, tables where not.

use std::ops::Range;

use super::Source;
use super::field::{POLYNOMIAL, double, multiply};

const HIGH_BITS: u64 = 0x8080_8080_8080_8080;
const LOW_BITS: u64 = 0x0101_0101_0101_0101;

/// Doubles each of eight bytes.
fn double_each(value: u64) -> u64 {
    let carried = (value & HIGH_BITS) >> 7;
    ((value & !HIGH_BITS) << 1) ^ (carried & LOW_BITS).wrapping_mul(u64::from(POLYNOMIAL))
}

fn load(bytes: &[u8; 8]) -> u64 {
    u64::from_le_bytes(*bytes)
}

/// Horner's scheme over a segment, column by column, in pieces that stay in the L1 cache.
pub(super) fn generate(data: &[&[u8]], parity: &mut [&mut [u8]], segment: Range<usize>) {
    const PIECE: usize = 4096;
    for start in segment.clone().step_by(PIECE) {
        let range = start..segment.end.min(start + PIECE);
        for (times, output) in parity.iter_mut().enumerate() {
            let output = &mut output[range.clone()];
            output.fill(0);
            for column in data {
                // `None` where it ended before this segment.
                accumulate(output, column.get(range.clone()), times);
            }
        }
    }
}

/// `output = 2^times · output + column`.
fn accumulate(output: &mut [u8], column: Option<&[u8]>, times: usize) {
    let (words, tail) = output.as_chunks_mut::<8>();
    let tail_start = words.len() * 8;
    for (index, word) in words.iter_mut().enumerate() {
        let mut value = load(word);
        for _ in 0..times {
            value = double_each(value);
        }
        if let Some(column) = column {
            value ^= load(&column.as_chunks::<8>().0[index]);
        }
        *word = value.to_le_bytes();
    }
    for (index, byte) in tail.iter_mut().enumerate() {
        for _ in 0..times {
            *byte = double(*byte);
        }
        if let Some(column) = column {
            *byte ^= column[tail_start + index];
        }
    }
}

/// `outputs[o] = Σ source.factors[o] · source.column` over a segment.
pub(super) fn combine(sources: &[Source<'_>], outputs: &mut [&mut [u8]], segment: Range<usize>) {
    for (number, output) in outputs.iter_mut().enumerate() {
        let output = &mut output[segment.clone()];
        output.fill(0);
        for source in sources {
            let Some(column) = source.column.get(segment.clone()) else {
                continue;
            };
            match source.factors[number] {
                0 => {}
                1 => {
                    for (byte, source) in output.iter_mut().zip(column) {
                        *byte ^= source;
                    }
                }
                factor => {
                    let products: [u8; 256] =
                        std::array::from_fn(|value| multiply(factor, value as u8));
                    for (byte, source) in output.iter_mut().zip(column) {
                        *byte ^= products[usize::from(*source)];
                    }
                }
            }
        }
    }
}
