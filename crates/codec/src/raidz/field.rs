//! GF(2^8) with polynomial 0x11d, and the linear algebra of missing columns.
//!
//! All of it is on the stack and by tables: for the small blocks that most of a pool is, it would
//! otherwise take longer than the arithmetic on their bytes.

use super::PARITY_COLUMNS_MAX;

/// The polynomial without its leading term.
pub(super) const POLYNOMIAL: u8 = 0x1d;

/// `2 · value`.
pub(super) const fn double(value: u8) -> u8 {
    (value << 1) ^ (if value & 0x80 != 0 { POLYNOMIAL } else { 0 })
}

/// `left · right`, bit by bit, for tables.
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

/// The powers of the generator, 2, which are every element but zero.
static POWERS: [u8; 255] = powers();

const fn powers() -> [u8; 255] {
    let mut powers = [1; 255];
    let mut exponent = 1;
    while exponent < 255 {
        powers[exponent] = double(powers[exponent - 1]);
        exponent += 1;
    }
    powers
}

/// The exponents of the generator that give each element; the one for zero stands for nothing.
static LOGARITHMS: [u8; 256] = logarithms();

const fn logarithms() -> [u8; 256] {
    let mut logarithms = [0; 256];
    let powers = powers();
    let mut exponent = 0;
    while exponent < 255 {
        logarithms[powers[exponent] as usize] = exponent as u8;
        exponent += 1;
    }
    logarithms
}

/// `2^exponent`.
pub(super) fn power(exponent: usize) -> u8 {
    POWERS[exponent % 255]
}

/// `left · right` by tables.
fn product(left: u8, right: u8) -> u8 {
    if left == 0 || right == 0 {
        return 0;
    }
    let exponent = |value: u8| usize::from(LOGARITHMS[usize::from(value)]);
    power(exponent(left) + exponent(right))
}

/// `1 / value`, for `value` other than zero.
pub(super) fn inverse(value: u8) -> u8 {
    power(255 - usize::from(LOGARITHMS[usize::from(value)]))
}

/// What parity column `parity` (0 to 2) multiplies data column `data` of `data_count` with.
pub(super) fn coefficient(parity: usize, data: usize, data_count: usize) -> u8 {
    power(parity * (data_count - 1 - data))
}

type Square = [[u8; PARITY_COLUMNS_MAX]; PARITY_COLUMNS_MAX];

/// A row's columns as sums over what is left of it.
pub(super) struct Solution<'a> {
    data_count: usize,
    /// The lost data columns.
    lost: &'a [usize],
    /// As many parity columns, which stand in for them.
    used_parity: &'a [usize],
    /// Lost column `i` is the sum of `inverse[i][j]` times what used parity column `j` has beyond
    /// the data columns that survive.
    inverse: Square,
}

impl<'a> Solution<'a> {
    /// Solves for `lost` data columns by `used_parity` columns, as many of them.
    pub(super) fn of(data_count: usize, lost: &'a [usize], used_parity: &'a [usize]) -> Self {
        let size = lost.len();
        // For each used parity column p: Σ_lost c(p, l)·D_l = Σ_survivors c(p, s)·D_s + P_p.
        let mut left: Square = Default::default();
        let mut inverse: Square = Default::default();
        for (row, parity) in used_parity.iter().enumerate() {
            inverse[row][row] = 1;
            for (column, data) in lost.iter().enumerate() {
                left[row][column] = coefficient(*parity, *data, data_count);
            }
        }
        // Gauss-Jordan elimination: as the left side becomes the identity, the identity becomes
        // its inverse.
        for pivot in 0..size {
            let row = (pivot..size)
                .find(|row| left[*row][pivot] != 0)
                .expect("every square part of the parity matrix is invertible");
            left.swap(pivot, row);
            inverse.swap(pivot, row);
            let scale = self::inverse(left[pivot][pivot]);
            for value in left[pivot].iter_mut().chain(&mut inverse[pivot]) {
                *value = product(*value, scale);
            }
            for row in (0..size).filter(|row| *row != pivot) {
                let factor = left[row][pivot];
                for matrix in [&mut left, &mut inverse] {
                    let source = matrix[pivot];
                    for (value, source) in matrix[row].iter_mut().zip(source) {
                        *value ^= product(factor, source);
                    }
                }
            }
        }
        Solution {
            data_count,
            lost,
            used_parity,
            inverse,
        }
    }

    /// The lost data column `index` of those lost.
    pub(super) fn lost(&self, index: usize) -> Sum<'_> {
        Sum {
            solution: self,
            own: None,
            weights: self.inverse[index],
        }
    }

    /// A parity column: the survivors directly, the lost columns through their solution.
    pub(super) fn parity(&self, parity: usize) -> Sum<'_> {
        let mut weights = [0; PARITY_COLUMNS_MAX];
        for (data, inverse) in self.lost.iter().zip(&self.inverse) {
            let factor = coefficient(parity, *data, self.data_count);
            for (weight, value) in weights.iter_mut().zip(inverse) {
                *weight ^= product(factor, *value);
            }
        }
        Sum {
            solution: self,
            own: Some(parity),
            weights,
        }
    }
}

/// One column as a sum over the surviving data columns and the used parity columns.
pub(super) struct Sum<'a> {
    solution: &'a Solution<'a>,
    /// The parity column that this is.
    own: Option<usize>,
    /// What each used parity column, less the survivors in it, is multiplied with.
    weights: [u8; PARITY_COLUMNS_MAX],
}

impl Sum<'_> {
    /// What a data column that survives is multiplied with.
    pub(super) fn of_survivor(&self, data: usize) -> u8 {
        let data_count = self.solution.data_count;
        let direct = self
            .own
            .map_or(0, |parity| coefficient(parity, data, data_count));
        let used = self.solution.used_parity.iter().zip(self.weights);
        used.fold(direct, |sum, (parity, weight)| {
            sum ^ product(weight, coefficient(*parity, data, data_count))
        })
    }

    /// What the used parity column `index` of those used is multiplied with.
    pub(super) fn of_parity(&self, index: usize) -> u8 {
        self.weights[index]
    }
}
