//! GF(2^8) with polynomial 0x11d, and the linear algebra of missing columns.

/// The polynomial without its leading term.
pub(super) const POLYNOMIAL: u8 = 0x1d;

/// `2 · value`.
pub(super) const fn double(value: u8) -> u8 {
    (value << 1) ^ (if value & 0x80 != 0 { POLYNOMIAL } else { 0 })
}

/// `left · right`.
pub(super) const fn multiply(left: u8, right: u8) -> u8 {
    let mut product = 0;
    let mut term = left;
    let mut bits = right;
    while bits != 0 {
        if bits & 1 != 0 {
            product ^= term;
        }
        term = double(term);
        bits >>= 1;
    }
    product
}

/// `base^exponent`.
pub(super) fn power(base: u8, mut exponent: usize) -> u8 {
    let mut result = 1;
    let mut square = base;
    while exponent != 0 {
        if exponent & 1 != 0 {
            result = multiply(result, square);
        }
        square = multiply(square, square);
        exponent >>= 1;
    }
    result
}

/// `1 / value`, for `value` other than zero: the field's multiplicative group has 255 elements.
pub(super) fn inverse(value: u8) -> u8 {
    power(value, 254)
}

/// What parity column `parity` (0 to 2) multiplies data column `data` of `data_count` with.
pub(super) fn coefficient(parity: usize, data: usize, data_count: usize) -> u8 {
    power(1 << parity, data_count - 1 - data)
}

/// The lost data columns as sums over the sources: `survivors` (data columns), then `used_parity`
/// (as many parity columns as columns are lost). One row of coefficients for each lost column.
pub(super) fn solve(
    data_count: usize,
    lost: &[usize],
    used_parity: &[usize],
    survivors: &[usize],
) -> Vec<Vec<u8>> {
    let size = lost.len();
    // For each used parity column p: Σ_lost c(p, l)·D_l = Σ_survivors c(p, s)·D_s + P_p.
    let mut left: Vec<Vec<u8>> = used_parity
        .iter()
        .map(|parity| {
            lost.iter()
                .map(|data| coefficient(*parity, *data, data_count))
                .collect()
        })
        .collect();
    let mut right: Vec<Vec<u8>> = used_parity
        .iter()
        .enumerate()
        .map(|(row, parity)| {
            survivors
                .iter()
                .map(|data| coefficient(*parity, *data, data_count))
                .chain((0..size).map(|column| u8::from(column == row)))
                .collect()
        })
        .collect();
    // Gauss-Jordan elimination; the left side becomes the identity.
    for pivot in 0..size {
        let row = (pivot..size)
            .find(|row| left[*row][pivot] != 0)
            .expect("every square part of the parity matrix is invertible");
        left.swap(pivot, row);
        right.swap(pivot, row);
        let scale = inverse(left[pivot][pivot]);
        for value in left[pivot].iter_mut().chain(right[pivot].iter_mut()) {
            *value = multiply(*value, scale);
        }
        for row in (0..size).filter(|row| *row != pivot) {
            let factor = left[row][pivot];
            if factor == 0 {
                continue;
            }
            for matrix in [&mut left, &mut right] {
                let source = matrix[pivot].clone();
                for (value, source) in matrix[row].iter_mut().zip(source) {
                    *value ^= multiply(factor, source);
                }
            }
        }
    }
    right
}

/// A parity column as a sum over the same sources: the survivors directly, the lost columns
/// through their solution.
pub(super) fn parity_of_solution(
    parity: usize,
    data_count: usize,
    lost: &[usize],
    survivors: &[usize],
    solution: &[Vec<u8>],
) -> Vec<u8> {
    let mut row: Vec<u8> = survivors
        .iter()
        .map(|data| coefficient(parity, *data, data_count))
        .chain(lost.iter().map(|_| 0))
        .collect();
    for (data, solved) in lost.iter().zip(solution) {
        let factor = coefficient(parity, *data, data_count);
        for (value, solved) in row.iter_mut().zip(solved) {
            *value ^= multiply(factor, *solved);
        }
    }
    row
}
