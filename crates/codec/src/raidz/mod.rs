//! RAID-Z arithmetic: up to three parity columns over GF(2^8) (module/zfs/vdev_raidz.c; the field's
//! polynomial is x^8 + x^4 + x^3 + x^2 + 1, 0x11d).
//!
//! With data columns `D_0 … D_{n-1}`, for each byte position:
//!
//! ```text
//! P = Σ D_i        Q = Σ 2^(n-1-i) · D_i        R = Σ 4^(n-1-i) · D_i
//! ```
//!
//! so each is Horner's scheme: multiply by 1, 2 or 4, add the next column. Columns may be
//! shorter than the first, which count as padded with zeros (a RAID-Z row's columns differ by one
//! sector).
//!
//! Missing columns come back by solving the same equations: every square part of that Vandermonde
//! matrix is invertible for up to 255 data columns, so any `k` surviving parity columns
//! give back any `k` missing data columns. The solution is written out as a matrix of
//! coefficients from what survives to what is missing, and applied as one pass over the survivors.
//!
//! Everything is done in vectors of 16 to 64 bytes where the CPU has them; see [`implementations`].

mod field;
mod scalar;
#[cfg(test)]
mod tests;
#[cfg(target_arch = "x86_64")]
mod x86;

use std::cmp::Reverse;
use std::ops::Range;
use std::sync::OnceLock;

/// Most parity columns.
pub const PARITY_COLUMNS_MAX: usize = 3;
/// Most data columns (`VDEV_RAIDZ_MAXPARITY` and the 255 powers of the generator bound it).
pub const DATA_COLUMNS_MAX: usize = 255;

/// Why columns could not be computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RaidzError {
    /// More columns are missing than there is parity for.
    #[error(
        "{missing} columns are missing and {parity} parity columns are left; bring back a device \
         of this vdev, or restore the data"
    )]
    TooManyMissing {
        /// Missing columns, data and parity.
        missing: usize,
        /// Parity columns that survive.
        parity: usize,
    },
    /// The columns do not form a row.
    #[error(
        "{columns} columns, {parity} of them parity, with these lengths form no RAID-Z row; report \
         this as a bug"
    )]
    Shape {
        /// Columns given.
        columns: usize,
        /// Parity columns among them.
        parity: usize,
    },
}

/// What a column is computed from, and what it is multiplied with for each output.
struct Source<'a> {
    column: &'a [u8],
    factors: [u8; PARITY_COLUMNS_MAX],
}

/// Horner's scheme over one segment, a range that every column either covers or ends before: data
/// columns (those that end before it are zeros there) to parity columns (which all cover it).
type Generate = fn(&[&[u8]], &mut [&mut [u8]], Range<usize>);
/// `outputs[o] = Σ source.factors[o] · source.column` over one segment: sources (those that end
/// before it are zeros there), and outputs (which all cover it).
type Combine = fn(&[Source<'_>], &mut [&mut [u8]], Range<usize>);

/// A set of kernels.
#[derive(Clone, Copy)]
struct Kernels {
    name: &'static str,
    generate: Generate,
    combine: Combine,
}

fn available() -> Vec<Kernels> {
    let mut all = vec![Kernels {
        name: "scalar",
        generate: scalar::generate,
        combine: scalar::combine,
    }];
    #[cfg(target_arch = "x86_64")]
    all.extend(x86::available());
    all
}

fn best() -> &'static Kernels {
    static BEST: OnceLock<Kernels> = OnceLock::new();
    BEST.get_or_init(|| {
        *available()
            .last()
            .expect("the scalar kernels are always there")
    })
}

/// A choice of SIMD (or none), for tests and benchmarks; everybody else calls [`generate`] and
/// [`reconstruct`], which use the best.
#[derive(Clone, Copy)]
pub struct Implementation(Kernels);

/// Every implementation that runs on this CPU, slowest first.
pub fn implementations() -> Vec<Implementation> {
    available().into_iter().map(Implementation).collect()
}

impl Implementation {
    /// What it is called.
    pub fn name(&self) -> &'static str {
        self.0.name
    }

    /// [`generate`] with this implementation.
    ///
    /// # Errors
    ///
    /// As [`generate`].
    pub fn generate(&self, data: &[&[u8]], parity: &mut [&mut [u8]]) -> Result<(), RaidzError> {
        generate_with(&self.0, data, parity)
    }

    /// [`reconstruct_into`] with this implementation.
    ///
    /// # Errors
    ///
    /// As [`reconstruct_into`].
    pub fn reconstruct_into(
        &self,
        parity_count: usize,
        columns: &[Option<&[u8]>],
        missing: &mut [(usize, &mut [u8])],
    ) -> Result<(), RaidzError> {
        reconstruct_with(&self.0, parity_count, columns, missing)
    }
}

/// Computes the parity columns of `data`: one (P), two (P, Q) or three (P, Q, R). Each parity
/// column is as long as the longest data column; what shorter ones lack counts as zeros.
///
/// # Errors
///
/// [`RaidzError::Shape`] when there are no or too many columns, or a parity column has another
/// length.
pub fn generate(data: &[&[u8]], parity: &mut [&mut [u8]]) -> Result<(), RaidzError> {
    generate_with(best(), data, parity)
}

/// [`generate`] into new columns.
///
/// # Errors
///
/// As [`generate`].
pub fn generate_columns(parity_count: usize, data: &[&[u8]]) -> Result<Vec<Vec<u8>>, RaidzError> {
    let length = data.iter().map(|column| column.len()).max().unwrap_or(0);
    // Each by itself: a clone would copy zeros that the allocator may have at hand.
    let mut parity: Vec<Vec<u8>> = (0..parity_count).map(|_| vec![0; length]).collect();
    let mut borrowed: Vec<&mut [u8]> = parity.iter_mut().map(Vec::as_mut_slice).collect();
    generate(data, &mut borrowed)?;
    Ok(parity)
}

/// Computes the missing columns of a row.
///
/// `columns` are the row's columns in ZFS's order, the `parity_count` parity columns first, `None`
/// where missing. `missing` names each column that is to be computed (by its index) with room of
/// its exact length. A column that is `None` but not named is taken for lost all the same, it is
/// only not written.
///
/// # Errors
///
/// [`RaidzError::TooManyMissing`] when the surviving parity does not suffice, [`RaidzError::Shape`]
/// when the columns form no row.
pub fn reconstruct_into(
    parity_count: usize,
    columns: &[Option<&[u8]>],
    missing: &mut [(usize, &mut [u8])],
) -> Result<(), RaidzError> {
    reconstruct_with(best(), parity_count, columns, missing)
}

/// [`reconstruct_into`] into new columns: the index and content of every column that is `None`.
/// `lengths` are the lengths of all columns.
///
/// # Errors
///
/// As [`reconstruct_into`].
pub fn reconstruct(
    parity_count: usize,
    columns: &[Option<&[u8]>],
    lengths: &[usize],
) -> Result<Vec<(usize, Vec<u8>)>, RaidzError> {
    let shape = RaidzError::Shape {
        columns: columns.len(),
        parity: parity_count,
    };
    let fits = |(column, length): (&Option<&[u8]>, &usize)| {
        column.is_none_or(|column| column.len() == *length)
    };
    if columns.len() != lengths.len() || !columns.iter().zip(lengths).all(fits) {
        return Err(shape);
    }
    let mut out: Vec<(usize, Vec<u8>)> = columns
        .iter()
        .zip(lengths)
        .enumerate()
        .filter(|(_, (column, _))| column.is_none())
        .map(|(index, (_, length))| (index, vec![0; *length]))
        .collect();
    let mut borrowed: Vec<(usize, &mut [u8])> = out
        .iter_mut()
        .map(|(index, column)| (*index, column.as_mut_slice()))
        .collect();
    reconstruct_into(parity_count, columns, &mut borrowed)?;
    Ok(out)
}

/// Calls `work` with each segment, in rising order: the ranges over which the set of columns that
/// reach that far is the same.
fn each_segment(lengths: impl Iterator<Item = usize> + Clone, mut work: impl FnMut(Range<usize>)) {
    let mut start = 0;
    while let Some(end) = lengths.clone().filter(|length| *length > start).min() {
        work(start..end);
        start = end;
    }
}

fn generate_with(
    kernels: &Kernels,
    data: &[&[u8]],
    parity: &mut [&mut [u8]],
) -> Result<(), RaidzError> {
    let lengths = data.iter().map(|column| column.len());
    let length = lengths.clone().max().unwrap_or(0);
    if data.is_empty()
        || data.len() > DATA_COLUMNS_MAX
        || !(1..=PARITY_COLUMNS_MAX).contains(&parity.len())
        || parity.iter().any(|column| column.len() != length)
    {
        return Err(RaidzError::Shape {
            columns: data.len() + parity.len(),
            parity: parity.len(),
        });
    }
    each_segment(lengths, |segment| {
        (kernels.generate)(data, parity, segment);
    });
    Ok(())
}

/// The indices for which `is_lost` says so: the first of them, and how many there are.
fn indices(count: usize, is_lost: impl Fn(usize) -> bool) -> ([usize; PARITY_COLUMNS_MAX], usize) {
    let mut first = [0; PARITY_COLUMNS_MAX];
    let mut found = 0;
    for index in (0..count).filter(|index| is_lost(*index)) {
        if let Some(place) = first.get_mut(found) {
            *place = index;
        }
        found += 1;
    }
    (first, found)
}

fn reconstruct_with(
    kernels: &Kernels,
    parity_count: usize,
    columns: &[Option<&[u8]>],
    missing: &mut [(usize, &mut [u8])],
) -> Result<(), RaidzError> {
    let shape = RaidzError::Shape {
        columns: columns.len(),
        parity: parity_count,
    };
    let data_count = columns.len().saturating_sub(parity_count);
    if !(1..=PARITY_COLUMNS_MAX).contains(&parity_count)
        || !(1..=DATA_COLUMNS_MAX).contains(&data_count)
        || missing.len() > columns.len()
    {
        return Err(shape);
    }
    for (position, (index, _)) in missing.iter().enumerate() {
        let twice = missing[..position].iter().any(|(other, _)| other == index);
        if twice || !columns.get(*index).is_some_and(Option::is_none) {
            return Err(shape);
        }
    }
    let (parity, data) = columns.split_at(parity_count);
    let (lost_data, lost_count) = indices(data_count, |index| data[index].is_none());
    let (used_parity, parity_left) = indices(parity_count, |index| parity[index].is_some());
    if parity_left < lost_count {
        return Err(RaidzError::TooManyMissing {
            missing: columns.iter().filter(|column| column.is_none()).count(),
            parity: parity_left,
        });
    }
    let (lost_data, used_parity) = (&lost_data[..lost_count], &used_parity[..lost_count]);
    // A row's parity columns are as long as its longest data column.
    let row_bytes = columns.iter().flatten().map(|column| column.len()).max();
    let row_bytes = row_bytes.unwrap_or(0);
    let parity_fits = parity
        .iter()
        .flatten()
        .all(|column| column.len() == row_bytes)
        && missing.iter().all(|(index, room)| {
            room.len() == row_bytes || (*index >= parity_count && room.len() < row_bytes)
        });
    if !parity_fits {
        return Err(shape);
    }

    // The longest outputs come first, so that those that reach into a segment are the first few.
    // There are no more of them than parity columns, or more would be missing than those make up
    // for.
    let output_count = missing.len();
    let mut outputs: [(usize, &mut [u8]); PARITY_COLUMNS_MAX] = Default::default();
    for (output, (index, room)) in outputs.iter_mut().zip(missing) {
        *output = (*index, room);
    }
    outputs[..output_count].sort_unstable_by_key(|(_, room)| Reverse(room.len()));
    let solution = field::Solution::of(data_count, lost_data, used_parity);
    let mut sums: [Option<field::Sum<'_>>; PARITY_COLUMNS_MAX] = Default::default();
    for ((index, _), sum) in outputs[..output_count].iter().zip(&mut sums) {
        *sum = Some(match index.checked_sub(parity_count) {
            None => solution.parity(*index),
            Some(lost) => {
                let position = lost_data.iter().position(|other| *other == lost);
                solution.lost(position.expect("a missing data column is among the lost ones"))
            }
        });
    }
    let source = |column, factor: &dyn Fn(&field::Sum<'_>) -> u8| Source {
        column,
        factors: std::array::from_fn(|output| sums[output].as_ref().map_or(0, factor)),
    };
    // Sources: surviving data columns, then the parity columns that stand in for the lost ones.
    let mut sources = Vec::with_capacity(data_count);
    for (index, column) in data.iter().enumerate() {
        if let Some(column) = column {
            sources.push(source(column, &|sum| sum.of_survivor(index)));
        }
    }
    for (place, index) in used_parity.iter().enumerate() {
        if let Some(column) = parity[*index] {
            sources.push(source(column, &|sum| sum.of_parity(place)));
        }
    }

    let mut outputs = outputs.map(|(_, room)| room);
    let output_lengths = outputs.each_ref().map(|output| output.len());
    let lengths = sources
        .iter()
        .map(|source| source.column.len())
        .chain(output_lengths);
    each_segment(lengths, |segment| {
        let reach = output_lengths.partition_point(|length| *length >= segment.end);
        if reach > 0 {
            (kernels.combine)(&sources, &mut outputs[..reach], segment);
        }
    });
    Ok(())
}
