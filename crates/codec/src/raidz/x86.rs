//! RAID-Z in vectors: SSSE3, AVX2, AVX-512, and AVX2 or AVX-512 with GFNI.
//!
//! Every set has two kernels. [`super::Kernels::generate`] is Horner's scheme with the sums kept in
//! registers for a tile of a few vectors while all columns pass; doubling is an addition and a
//! conditional XOR. [`super::Kernels::combine`] multiplies by constants: with two
//! table look-ups per byte (`pshufb`, low and high nibble), or with GFNI's affine transform, as
//! multiplying by a constant is a linear map of bits in whatever field.
//!
//! What is left over after whole tiles goes by single vectors, of which the last overlaps what is
//! already done; a segment shorter than a vector goes to the scalar kernels.

use std::arch::x86_64::*;
use std::ops::Range;

use super::field::{POLYNOMIAL, multiply};
use super::{Kernels, Source, scalar};

/// Products of each constant with all low nibbles, then with all high nibbles.
static NIBBLE_PRODUCTS: [[u8; 32]; 256] = nibble_products();

const fn nibble_products() -> [[u8; 32]; 256] {
    let mut tables = [[0; 32]; 256];
    let mut constant = 0;
    while constant < 256 {
        let mut nibble = 0;
        while nibble < 16 {
            tables[constant][nibble] = multiply(constant as u8, nibble as u8);
            tables[constant][16 + nibble] = multiply(constant as u8, (nibble as u8) << 4);
            nibble += 1;
        }
        constant += 1;
    }
    tables
}

/// For each constant the 8×8 bit matrix of multiplying with it, as `gf2p8affineqb` takes it: byte
/// `7 - i` selects the bits of the operand that add up to bit `i` of the product.
static MATRICES: [u64; 256] = matrices();

const fn matrices() -> [u64; 256] {
    let mut all = [0u64; 256];
    let mut constant = 0;
    while constant < 256 {
        let mut input = 0;
        while input < 8 {
            let product = multiply(constant as u8, 1 << input);
            let mut output = 0;
            while output < 8 {
                if product >> output & 1 != 0 {
                    all[constant] |= 1 << (8 * (7 - output) + input);
                }
                output += 1;
            }
            input += 1;
        }
        constant += 1;
    }
    all
}

/// The sets that this CPU runs, slowest first.
pub(super) fn available() -> Vec<Kernels> {
    let mut all = Vec::new();
    let mut offer = |runs: bool, kernels: Kernels| {
        if runs {
            all.push(kernels);
        }
    };
    let avx2 = is_x86_feature_detected!("avx2");
    let gfni = is_x86_feature_detected!("gfni");
    let avx512 = is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bw");
    offer(is_x86_feature_detected!("ssse3"), ssse3::KERNELS);
    offer(avx2, avx2::KERNELS);
    offer(avx2 && gfni, avx2_gfni::KERNELS);
    offer(avx512, avx512::KERNELS);
    offer(avx512 && gfni, avx512_gfni::KERNELS);
    all
}

/// Defines a module with one set of kernels.
///
/// `load`, `store`, `xor`, `zero` are the plain vector operations; `double` doubles each byte in
/// the field, `quadruple` does so twice; `prepare` turns a constant into what `multiply` takes.
/// The tiles are how many vectors of every column are worked on at once, by the number of columns
/// computed, for `generate` and for `combine`: as many as measured fastest, which is about what the
/// registers hold of sums and of what `double` or `multiply` needs.
macro_rules! kernels {
    ($module:ident, $features:literal, $vector:ty, $width:literal,
     tiles [$one:literal, $two:literal, $three:literal]
     [$one_output:literal, $two_outputs:literal, $three_outputs:literal],
     load $load:expr, store $store:expr, xor $xor:expr, zero $zero:expr,
     double $double:expr, quadruple $quadruple:expr,
     prepare $prepare:expr, multiply $multiply:expr) => {
        mod $module {
            use super::*;

            pub(super) const KERNELS: Kernels = Kernels {
                name: stringify!($module),
                generate,
                combine,
            };

            fn generate(data: &[&[u8]], parity: &mut [&mut [u8]], segment: Range<usize>) {
                // SAFETY: `available` offers this set only after detecting its features.
                unsafe {
                    match parity.len() {
                        1 => generate_some::<1, $one>(data, parity, segment),
                        2 => generate_some::<2, $two>(data, parity, segment),
                        _ => generate_some::<3, $three>(data, parity, segment),
                    }
                }
            }

            fn combine(sources: &[Source<'_>], outputs: &mut [&mut [u8]], segment: Range<usize>) {
                // SAFETY: as above.
                unsafe {
                    match outputs.len() {
                        1 => combine_some::<1, $one_output>(sources, outputs, segment),
                        2 => combine_some::<2, $two_outputs>(sources, outputs, segment),
                        _ => combine_some::<3, $three_outputs>(sources, outputs, segment),
                    }
                }
            }

            #[target_feature(enable = $features)]
            fn generate_some<const PARITY: usize, const TILE: usize>(
                data: &[&[u8]],
                parity: &mut [&mut [u8]],
                segment: Range<usize>,
            ) {
                let columns: &mut [&mut [u8]; PARITY] =
                    (&mut *parity).try_into().expect("chosen by their number");
                let Range { start, end } = segment;
                assert!(columns.iter().all(|column| column.len() >= end));
                let mut at = start;
                while end - at >= TILE * $width {
                    // SAFETY: the tile ends at or before `end`, up to where the parity columns
                    // reach.
                    unsafe { generate_tile::<PARITY, TILE>(data, columns, at, end) };
                    at += TILE * $width;
                }
                while end - at >= $width {
                    // SAFETY: as above.
                    unsafe { generate_tile::<PARITY, 1>(data, columns, at, end) };
                    at += $width;
                }
                if at < end && end - start >= $width {
                    // SAFETY: as above; it begins in the segment as well. Some of it is computed
                    // for the second time.
                    unsafe { generate_tile::<PARITY, 1>(data, columns, end - $width, end) };
                } else if at < end {
                    scalar::generate(data, parity, start..end);
                }
            }

            /// Columns shorter than `end` count as zeros.
            ///
            /// # Safety
            ///
            /// The tile at `at` ends at or before `end`, and no parity column before `end`.
            #[inline]
            #[target_feature(enable = $features)]
            unsafe fn generate_tile<const PARITY: usize, const TILE: usize>(
                data: &[&[u8]],
                parity: &mut [&mut [u8]; PARITY],
                at: usize,
                end: usize,
            ) {
                let mut sums = [[$zero; TILE]; PARITY];
                for (number, column) in data.iter().enumerate() {
                    if number > 0 && PARITY > 1 {
                        for sum in &mut sums[1] {
                            *sum = $double(*sum);
                        }
                    }
                    if number > 0 && PARITY > 2 {
                        for sum in &mut sums[2] {
                            *sum = $quadruple(*sum);
                        }
                    }
                    if column.len() < end {
                        continue;
                    }
                    for index in 0..TILE {
                        // SAFETY: the column reaches to `end`.
                        let piece =
                            unsafe { $load(column.as_ptr().add(at + index * $width).cast()) };
                        for sums in &mut sums {
                            sums[index] = $xor(sums[index], piece);
                        }
                    }
                }
                for (column, sums) in parity.iter_mut().zip(sums) {
                    for (index, sum) in sums.into_iter().enumerate() {
                        // SAFETY: the parity column reaches to `end`.
                        unsafe { $store(column.as_mut_ptr().add(at + index * $width).cast(), sum) };
                    }
                }
            }

            #[target_feature(enable = $features)]
            fn combine_some<const OUTPUTS: usize, const TILE: usize>(
                sources: &[Source<'_>],
                outputs: &mut [&mut [u8]],
                segment: Range<usize>,
            ) {
                let columns: &mut [&mut [u8]; OUTPUTS] =
                    (&mut *outputs).try_into().expect("chosen by their number");
                let Range { start, end } = segment;
                assert!(columns.iter().all(|column| column.len() >= end));
                let mut at = start;
                while end - at >= TILE * $width {
                    // SAFETY: the tile ends at or before `end`, up to where the outputs reach.
                    unsafe { combine_tile::<OUTPUTS, TILE>(sources, columns, at, end) };
                    at += TILE * $width;
                }
                while end - at >= $width {
                    // SAFETY: as above.
                    unsafe { combine_tile::<OUTPUTS, 1>(sources, columns, at, end) };
                    at += $width;
                }
                if at < end && end - start >= $width {
                    // SAFETY: as above; it begins in the segment as well. Some of it is computed
                    // for the second time.
                    unsafe { combine_tile::<OUTPUTS, 1>(sources, columns, end - $width, end) };
                } else if at < end {
                    scalar::combine(sources, outputs, start..end);
                }
            }

            /// Sources shorter than `end` count as zeros.
            ///
            /// # Safety
            ///
            /// The tile at `at` ends at or before `end`, and no output before `end`.
            #[inline]
            #[target_feature(enable = $features)]
            unsafe fn combine_tile<const OUTPUTS: usize, const TILE: usize>(
                sources: &[Source<'_>],
                outputs: &mut [&mut [u8]; OUTPUTS],
                at: usize,
                end: usize,
            ) {
                let mut sums = [[$zero; TILE]; OUTPUTS];
                for source in sources {
                    if source.column.len() < end {
                        continue;
                    }
                    let mut pieces = [$zero; TILE];
                    for (index, piece) in pieces.iter_mut().enumerate() {
                        let place = at + index * $width;
                        // SAFETY: the source reaches to `end`.
                        *piece = unsafe { $load(source.column.as_ptr().add(place).cast()) };
                    }
                    for (output, sums) in sums.iter_mut().enumerate() {
                        let factor = source.factors[output];
                        if factor == 1 {
                            for (sum, piece) in sums.iter_mut().zip(pieces) {
                                *sum = $xor(*sum, piece);
                            }
                            continue;
                        }
                        let prepared = $prepare(factor);
                        for (sum, piece) in sums.iter_mut().zip(pieces) {
                            *sum = $xor(*sum, $multiply(prepared, piece));
                        }
                    }
                }
                for (output, sums) in outputs.iter_mut().zip(sums) {
                    for (index, sum) in sums.into_iter().enumerate() {
                        // SAFETY: the output reaches to `end`.
                        unsafe { $store(output.as_mut_ptr().add(at + index * $width).cast(), sum) };
                    }
                }
            }
        }
    };
}

kernels!(
    ssse3, "ssse3", __m128i, 16, tiles [4, 2, 2] [4, 2, 2],
    load _mm_loadu_si128, store _mm_storeu_si128,
    xor _mm_xor_si128, zero _mm_setzero_si128(),
    double double_128, quadruple (|value| double_128(double_128(value))),
    prepare prepare_128, multiply multiply_128
);
kernels!(
    avx2, "avx2", __m256i, 32, tiles [4, 2, 2] [4, 2, 2],
    load _mm256_loadu_si256, store _mm256_storeu_si256,
    xor _mm256_xor_si256, zero _mm256_setzero_si256(),
    double double_256, quadruple (|value| double_256(double_256(value))),
    prepare prepare_256, multiply multiply_256
);
kernels!(
    avx2_gfni, "avx2,gfni", __m256i, 32, tiles [8, 4, 2] [8, 2, 2],
    load _mm256_loadu_si256, store _mm256_storeu_si256,
    xor _mm256_xor_si256, zero _mm256_setzero_si256(),
    double (|value| affine_256(matrix_256(2), value)),
    quadruple (|value| affine_256(matrix_256(4), value)),
    prepare matrix_256, multiply affine_256
);
kernels!(
    avx512, "avx512f,avx512bw", __m512i, 64, tiles [8, 4, 4] [8, 4, 4],
    load _mm512_loadu_si512, store _mm512_storeu_si512,
    xor _mm512_xor_si512, zero _mm512_setzero_si512(),
    double double_512, quadruple (|value| double_512(double_512(value))),
    prepare prepare_512, multiply multiply_512
);
kernels!(
    avx512_gfni, "avx512f,avx512bw,gfni", __m512i, 64, tiles [8, 8, 4] [8, 8, 4],
    load _mm512_loadu_si512, store _mm512_storeu_si512,
    xor _mm512_xor_si512, zero _mm512_setzero_si512(),
    double (|value| affine_512(matrix_512(2), value)),
    quadruple (|value| affine_512(matrix_512(4), value)),
    prepare matrix_512, multiply affine_512
);

#[inline]
#[target_feature(enable = "sse2")]
fn double_128(value: __m128i) -> __m128i {
    let carried = _mm_cmpgt_epi8(_mm_setzero_si128(), value);
    let reduction = _mm_and_si128(carried, _mm_set1_epi8(POLYNOMIAL as i8));
    _mm_xor_si128(_mm_add_epi8(value, value), reduction)
}

#[inline]
#[target_feature(enable = "avx2")]
fn double_256(value: __m256i) -> __m256i {
    let carried = _mm256_cmpgt_epi8(_mm256_setzero_si256(), value);
    let reduction = _mm256_and_si256(carried, _mm256_set1_epi8(POLYNOMIAL as i8));
    _mm256_xor_si256(_mm256_add_epi8(value, value), reduction)
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn double_512(value: __m512i) -> __m512i {
    let carried = _mm512_movepi8_mask(value);
    let reduction = _mm512_maskz_mov_epi8(carried, _mm512_set1_epi8(POLYNOMIAL as i8));
    _mm512_xor_si512(_mm512_add_epi8(value, value), reduction)
}

#[inline]
#[target_feature(enable = "sse2")]
fn prepare_128(constant: u8) -> [__m128i; 2] {
    let table = &NIBBLE_PRODUCTS[usize::from(constant)];
    // SAFETY: reads the table's two halves of 16 bytes.
    unsafe {
        [
            _mm_loadu_si128(table.as_ptr().cast()),
            _mm_loadu_si128(table.as_ptr().add(16).cast()),
        ]
    }
}

#[inline]
#[target_feature(enable = "ssse3")]
fn multiply_128(tables: [__m128i; 2], value: __m128i) -> __m128i {
    let nibble = _mm_set1_epi8(0x0f);
    let low = _mm_and_si128(value, nibble);
    let high = _mm_and_si128(_mm_srli_epi64::<4>(value), nibble);
    _mm_xor_si128(
        _mm_shuffle_epi8(tables[0], low),
        _mm_shuffle_epi8(tables[1], high),
    )
}

#[inline]
#[target_feature(enable = "avx2")]
fn prepare_256(constant: u8) -> [__m256i; 2] {
    prepare_128(constant).map(|half| _mm256_broadcastsi128_si256(half))
}

#[inline]
#[target_feature(enable = "avx2")]
fn multiply_256(tables: [__m256i; 2], value: __m256i) -> __m256i {
    let nibble = _mm256_set1_epi8(0x0f);
    let low = _mm256_and_si256(value, nibble);
    let high = _mm256_and_si256(_mm256_srli_epi64::<4>(value), nibble);
    _mm256_xor_si256(
        _mm256_shuffle_epi8(tables[0], low),
        _mm256_shuffle_epi8(tables[1], high),
    )
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn prepare_512(constant: u8) -> [__m512i; 2] {
    prepare_128(constant).map(|quarter| _mm512_broadcast_i32x4(quarter))
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn multiply_512(tables: [__m512i; 2], value: __m512i) -> __m512i {
    let nibble = _mm512_set1_epi8(0x0f);
    let low = _mm512_and_si512(value, nibble);
    let high = _mm512_and_si512(_mm512_srli_epi64::<4>(value), nibble);
    _mm512_xor_si512(
        _mm512_shuffle_epi8(tables[0], low),
        _mm512_shuffle_epi8(tables[1], high),
    )
}

#[inline]
#[target_feature(enable = "avx2")]
fn matrix_256(constant: u8) -> __m256i {
    _mm256_set1_epi64x(MATRICES[usize::from(constant)] as i64)
}

#[inline]
#[target_feature(enable = "avx2,gfni")]
fn affine_256(matrix: __m256i, value: __m256i) -> __m256i {
    _mm256_gf2p8affine_epi64_epi8::<0>(value, matrix)
}

#[inline]
#[target_feature(enable = "avx512f")]
fn matrix_512(constant: u8) -> __m512i {
    _mm512_set1_epi64(MATRICES[usize::from(constant)] as i64)
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,gfni")]
fn affine_512(matrix: __m512i, value: __m512i) -> __m512i {
    _mm512_gf2p8affine_epi64_epi8::<0>(value, matrix)
}
