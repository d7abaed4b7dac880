//! Fletcher-4 with AVX2 (four lanes) and AVX-512 (eight lanes).

use std::arch::x86_64::*;

use format::Endian;

use super::{ChecksumWords, merge_lanes};

/// Needs AVX2, which the caller has detected.
pub(super) fn sum_avx2(endian: Endian, data: &[u8]) -> ChecksumWords {
    // SAFETY: `available` offers this function only after detecting the feature.
    unsafe {
        match endian {
            Endian::Little => avx2::<false>(data),
            Endian::Big => avx2::<true>(data),
        }
    }
}

/// Needs AVX-512F and AVX2, which the caller has detected.
pub(super) fn sum_avx512(endian: Endian, data: &[u8]) -> ChecksumWords {
    // SAFETY: `available` offers this function only after detecting the features.
    unsafe {
        match endian {
            Endian::Little => avx512::<false>(data),
            Endian::Big => avx512::<true>(data),
        }
    }
}

/// Shuffle that swaps the bytes of each 32-bit word in 16 bytes.
const SWAP: [u8; 16] = [3, 2, 1, 0, 7, 6, 5, 4, 11, 10, 9, 8, 15, 14, 13, 12];

#[target_feature(enable = "avx2")]
fn avx2<const SWAPPED: bool>(data: &[u8]) -> ChecksumWords {
    let mut sums = [_mm256_setzero_si256(); 4];
    // SAFETY: reads the 16 bytes of `SWAP`.
    let swap = unsafe { _mm_loadu_si128(SWAP.as_ptr().cast()) };
    for piece in data.as_chunks::<64>().0 {
        for quarter in piece.as_chunks::<16>().0 {
            // SAFETY: reads the 16 bytes of `quarter`.
            let mut words = unsafe { _mm_loadu_si128(quarter.as_ptr().cast()) };
            if SWAPPED {
                words = _mm_shuffle_epi8(words, swap);
            }
            sums[0] = _mm256_add_epi64(sums[0], _mm256_cvtepu32_epi64(words));
            sums[1] = _mm256_add_epi64(sums[1], sums[0]);
            sums[2] = _mm256_add_epi64(sums[2], sums[1]);
            sums[3] = _mm256_add_epi64(sums[3], sums[2]);
        }
    }
    let mut lanes = [[0u64; 4]; 4];
    for (out, sum) in lanes.iter_mut().zip(sums) {
        // SAFETY: writes the 32 bytes of `out`.
        unsafe { _mm256_storeu_si256(out.as_mut_ptr().cast(), sum) };
    }
    merge_lanes(&lanes)
}

#[target_feature(enable = "avx512f,avx2")]
fn avx512<const SWAPPED: bool>(data: &[u8]) -> ChecksumWords {
    let mut sums = [_mm512_setzero_si512(); 4];
    // SAFETY: reads the 16 bytes of `SWAP`.
    let swap = unsafe { _mm256_broadcastsi128_si256(_mm_loadu_si128(SWAP.as_ptr().cast())) };
    for piece in data.as_chunks::<64>().0 {
        for half in piece.as_chunks::<32>().0 {
            // SAFETY: reads the 32 bytes of `half`.
            let mut words = unsafe { _mm256_loadu_si256(half.as_ptr().cast()) };
            if SWAPPED {
                words = _mm256_shuffle_epi8(words, swap);
            }
            sums[0] = _mm512_add_epi64(sums[0], _mm512_cvtepu32_epi64(words));
            sums[1] = _mm512_add_epi64(sums[1], sums[0]);
            sums[2] = _mm512_add_epi64(sums[2], sums[1]);
            sums[3] = _mm512_add_epi64(sums[3], sums[2]);
        }
    }
    let mut lanes = [[0u64; 8]; 4];
    for (out, sum) in lanes.iter_mut().zip(sums) {
        // SAFETY: writes the 64 bytes of `out`.
        unsafe { _mm512_storeu_si512(out.as_mut_ptr().cast(), sum) };
    }
    merge_lanes(&lanes)
}
