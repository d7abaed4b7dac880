//! dRAID: parity groups spread over more devices than a group is wide, by permutations
//! (module/zfs/vdev_draid.c).
//!
//! # Layout
//!
//! Of `c` children, `s` children's worth of space is kept for distributed spares, which leaves
//! `n = c - s` columns. Every child is cut into chunks of 16 MiB; one chunk of each child is a
//! *row*. A *group* is `w = data + parity` chunks that follow each other over the columns of a row
//! and go on in the next one. `g` groups fill `w·g / n` rows exactly, a *slice*. Which child a
//! column is, a permutation of the children says, a different one for each slice; the last `s`
//! columns are the spares.
//!
//! The address space counts group by group, within a group sector by sector over its `w` chunks. A
//! block takes whole stripes of `w` sectors (what it does not fill is zeros), parity first, then
//! data in columns as in RAID-Z. A block that reaches the end of its group goes on in the next.
//!
//! # Permutations
//!
//! A map has 256 rows (512 from 32 children on), each a shuffle of the row before, by a generator
//! that starts from a seed given per number of children. Slice `i` uses row `(i / c) mod rows`,
//! with `i mod c` added to each child's number.

use std::sync::Arc;

use format::NvList;

use super::draid_maps::MAPS;
use super::geometry::{Column, Columns};
use crate::error::{VdevError, bad};

/// log2 of a chunk (`VDEV_DRAID_ROWSHIFT`).
const ROW_SHIFT: u32 = 24;
/// A chunk, in bytes.
const ROW_BYTES: u64 = 1 << ROW_SHIFT;
/// Bytes at the end of each child that hold no chunk (`VDEV_DRAID_REFLOW_RESERVE`).
const RESERVE_BYTES: u64 = 2 * ROW_BYTES;
/// First half of every generator's seed (`VDEV_DRAID_SEED`).
const SEED: u64 = 0x000d_7a1d_5eed;
/// Most data of one copy of a rebuild, in bytes (`SPA_MAXBLOCKSIZE`).
const COPY_DATA_BYTES_MAX: u64 = 16 << 20;
/// Most distributed spares (`VDEV_DRAID_MAX_SPARES`).
const SPARES_MAX: u64 = 100;

/// The shape of a dRAID vdev.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Draid {
    /// Parity columns of a group, 1 to 3.
    pub parity: u64,
    /// Data columns of a group.
    pub data: u64,
    /// Distributed spares.
    pub spares: u64,
    /// Devices.
    pub children: u64,
    /// Groups in a slice.
    groups: u64,
    /// Permutation after permutation, `children` numbers each.
    map: Arc<Vec<u8>>,
}

impl Draid {
    /// The shape that a configuration tells.
    pub(super) fn from_config(config: &NvList, children: usize) -> Result<Self, VdevError> {
        let number = |name| config.u64(name).unwrap_or(0);
        let (parity, data) = (number("nparity"), number("draid_ndata"));
        let (spares, groups) = (number("draid_nspares"), number("draid_ngroups"));
        let children = children as u64;
        if config
            .u64("draid_nchildren")
            .is_some_and(|per_row| per_row != children)
        {
            return Err(bad(
                "a draid vdev with failure domains, which only newer releases know",
            ));
        }
        Self::with_groups(parity, data, spares, children, groups).ok_or_else(|| {
            bad(format!(
                "a draid vdev of {children} children with {parity} parity, {data} data, {spares} \
                 spares, {groups} groups"
            ))
        })
    }

    /// The shape of a new vdev, with as few groups as make whole rows (`draid_config_by_type`,
    /// cmd/zpool/zpool_vdev.c); `None` when that cannot be.
    pub fn new(parity: u64, data: u64, spares: u64, children: u64) -> Option<Self> {
        let columns = children.checked_sub(spares).filter(|count| *count > 0)?;
        let width = parity.checked_add(data).filter(|width| *width <= columns)?;
        let groups = (1..=columns).find(|groups| (groups * width).is_multiple_of(columns))?;
        Self::with_groups(parity, data, spares, children, groups)
    }

    fn with_groups(
        parity: u64,
        data: u64,
        spares: u64,
        children: u64,
        groups: u64,
    ) -> Option<Self> {
        let fits = (1..=3).contains(&parity)
            && (1..=255).contains(&data)
            && (2..=255).contains(&children)
            && spares <= SPARES_MAX
            && spares + parity + data <= children
            && (1..=255 * 255).contains(&groups)
            && (groups * (parity + data)).is_multiple_of(children - spares);
        let map = fits.then(|| permutations(children as usize)).flatten()?;
        Some(Draid {
            parity,
            data,
            spares,
            children,
            groups,
            map: Arc::new(map),
        })
    }

    /// Groups in a slice.
    pub fn groups(&self) -> u64 {
        self.groups
    }

    /// Sectors of a stripe.
    pub(super) fn width(&self) -> u64 {
        self.parity + self.data
    }

    fn columns_in_row(&self) -> u64 {
        self.children - self.spares
    }

    fn group_bytes(&self) -> u64 {
        self.width() << ROW_SHIFT
    }

    /// The child behind a column (or spare) of a slice.
    fn child(&self, slice: u64, column: u64) -> usize {
        let rows = self.map.len() as u64 / self.children;
        let at = slice % (rows * self.children);
        let row = at / self.children;
        let first = self.map[(row * self.children + column) as usize];
        ((u64::from(first) + at % self.children) % self.children) as usize
    }

    /// The child that holds what a distributed spare has at an offset
    /// (`vdev_draid_spare_get_child`).
    pub(super) fn spare_child(&self, spare: u64, offset: u64) -> Option<usize> {
        let slice_bytes = self.group_bytes() * self.groups / self.columns_in_row();
        let column = self.children.checked_sub(1 + spare)?;
        (spare < self.spares).then(|| self.child(offset / slice_bytes, column))
    }

    /// The one or two rows of a block of `length` bytes (whole sectors) at `offset`
    /// (`vdev_draid_map_alloc`); `None` where no block can be.
    pub(super) fn rows(&self, ashift: u32, offset: u64, length: usize) -> Option<Vec<Columns>> {
        let sectors = length as u64 >> ashift;
        let stripe = self.width() << ashift;
        if !offset.is_multiple_of(stripe) || sectors == 0 {
            return None;
        }
        let group_end = (offset / self.group_bytes() + 1).checked_mul(self.group_bytes())?;
        let room = (group_end - offset) / stripe * self.data;
        let first = sectors.min(room);
        let mut rows = vec![self.row(ashift, offset, first, 0)];
        if first < sectors {
            let rest = sectors - first;
            if rest > (self.group_bytes() / stripe) * self.data {
                return None;
            }
            rows.push(self.row(ashift, group_end, rest, (first << ashift) as usize));
        }
        Some(rows)
    }

    /// The columns of whole stripes that are all of one group; `None` of other ranges.
    pub(super) fn stripes(&self, ashift: u32, range: std::ops::Range<u64>) -> Option<Columns> {
        let stripe = self.width() << ashift;
        let length = range.end.checked_sub(range.start)?;
        let is_whole =
            length > 0 && range.start.is_multiple_of(stripe) && length.is_multiple_of(stripe);
        let group = |offset| offset / self.group_bytes();
        let is_one = is_whole && group(range.start) == group(range.end - 1);
        is_one.then(|| self.row(ashift, range.start, length / stripe * self.data, 0))
    }

    /// Where a copy of whole stripes ends that begins at `start`, of a range that ends at `end`:
    /// with its group, or with so many bytes of each column (`vdev_draid_rebuild_asize`).
    pub(super) fn copy_end(&self, ashift: u32, start: u64, end: u64, column_bytes: u64) -> u64 {
        let stripe = self.width() << ashift;
        let data_bytes = (column_bytes * self.data).min(COPY_DATA_BYTES_MAX);
        let stripes = (data_bytes / (self.data << ashift)).max(1);
        let group_end = (start / self.group_bytes() + 1) * self.group_bytes();
        end.min(group_end)
            .min(start.saturating_add(stripes * stripe))
    }

    /// Bytes of data in so many bytes of whole stripes.
    pub(super) fn data_bytes(&self, stripe_bytes: u64) -> u64 {
        stripe_bytes / self.width() * self.data
    }

    /// The places of all whole stripes in a range of the address space.
    pub(super) fn whole_stripes(&self, ashift: u32, range: std::ops::Range<u64>) -> Vec<Column> {
        let stripe = self.width() << ashift;
        let end = range.end / stripe * stripe;
        let mut at = range.start.next_multiple_of(stripe);
        let mut out = Vec::new();
        while at < end {
            let group_end = (at / self.group_bytes() + 1) * self.group_bytes();
            let stripes = (group_end.min(end) - at) / stripe;
            out.extend(self.row(ashift, at, stripes * self.data, 0).columns);
            at += stripes * stripe;
        }
        out
    }

    fn row(&self, ashift: u32, offset: u64, sectors: u64, data_at: usize) -> Columns {
        let (width, in_row) = (self.width(), self.columns_in_row());
        let group = offset / self.group_bytes();
        let (slice, group) = (group / self.groups, group % self.groups);
        let slice_rows = width * self.groups / in_row;
        let start = group * width % in_row;
        let row = slice * slice_rows + group * width / in_row;
        let stripe = (offset % self.group_bytes()) / (width << ashift);
        let base = (row << ROW_SHIFT) + (stripe << ashift);
        let (full, rest) = (sectors / self.data, sectors % self.data);
        let big = if rest == 0 { 0 } else { rest + self.parity };
        let mut at = data_at;
        let mut data_at = Vec::with_capacity(self.data as usize);
        let columns = (0..width)
            .map(|index| {
                // What does not fit into this row of chunks goes on in the next.
                let wraps = start + index >= in_row;
                let length = ((full + u64::from(index < big)) << ashift) as usize;
                if index >= self.parity {
                    data_at.push(at);
                    at += length;
                }
                Column {
                    child: self.child(slice, (start + index) % in_row),
                    offset: base + if wraps { ROW_BYTES } else { 0 },
                    length,
                }
            })
            .collect();
        // Places that the block does not fill, at the ends of the shorter columns.
        let columns: Vec<Column> = columns;
        let longest = columns.first().map_or(0, |column| column.length);
        let skips = columns
            .iter()
            .filter(|column| column.length < longest)
            .map(|column| Column {
                child: column.child,
                offset: column.offset + column.length as u64,
                length: longest - column.length,
            })
            .collect();
        Columns {
            parity: self.parity as usize,
            columns,
            skips,
            data_at,
        }
    }

    /// Allocatable bytes, when the smallest child has so many: whole groups (`vdev_draid_open`).
    pub fn asize(&self, child_bytes: u64) -> u64 {
        let rows = child_bytes.saturating_sub(RESERVE_BYTES) / ROW_BYTES;
        let bytes = rows * ROW_BYTES * self.columns_in_row();
        bytes / self.group_bytes() * self.group_bytes()
    }

    /// Least size of a child in bytes, for so many allocatable bytes (`vdev_draid_min_asize`).
    pub(super) fn child_bytes_min(&self, asize_bytes: u64) -> u64 {
        RESERVE_BYTES
            + asize_bytes
                .div_ceil(self.columns_in_row())
                .next_multiple_of(ROW_BYTES)
    }
}

/// The generator of permutations (`vdev_draid_rand`): xoroshiro128++.
fn random(state: &mut [u64; 2]) -> u64 {
    let [first, second] = *state;
    let out = first
        .wrapping_add(second)
        .rotate_left(17)
        .wrapping_add(first);
    let mixed = second ^ first;
    *state = [
        first.rotate_left(49) ^ mixed ^ (mixed << 21),
        mixed.rotate_left(28),
    ];
    out
}

/// The map for so many children, checked against its sum (`vdev_draid_generate_perms`).
fn permutations(children: usize) -> Option<Vec<u8>> {
    let (seed, sum) = *MAPS.get(children.checked_sub(2)?)?;
    let rows = if children < 32 { 256 } else { 512 };
    let mut state = [SEED, seed];
    let mut row: Vec<u8> = (0..children).map(|child| child as u8).collect();
    let mut map = Vec::with_capacity(rows * children);
    for _ in 0..rows {
        // Fisher and Yates.
        for at in (1..children).rev() {
            row.swap(at, (random(&mut state) % (at as u64 + 1)) as usize);
        }
        map.extend_from_slice(&row);
    }
    // The first sum of fletcher4 over little-endian words.
    let found = map
        .chunks_exact(4)
        .map(|word| u64::from(u32::from_le_bytes(word.try_into().expect("four bytes"))))
        .fold(0u64, u64::wrapping_add);
    (found == sum).then_some(map)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn shape(parity: u64, data: u64, children: u64, spares: u64) -> Draid {
        let (width, columns) = (parity + data, children - spares);
        let mut groups = 1;
        while !(groups * width).is_multiple_of(columns) {
            groups += 1;
        }
        let mut config = NvList::new();
        config
            .set("nparity", parity)
            .set("draid_ndata", data)
            .set("draid_nspares", spares)
            .set("draid_ngroups", groups);
        Draid::from_config(&config, children as usize).expect("a shape")
    }

    #[test]
    fn every_map_has_its_sum_and_permutes() {
        for children in 2..=255usize {
            let map = permutations(children).expect("the sum is right");
            for row in map.chunks_exact(children) {
                let seen: BTreeSet<u8> = row.iter().copied().collect();
                assert_eq!(seen.len(), children);
                assert!(row.iter().all(|child| usize::from(*child) < children));
            }
        }
    }

    /// No two sectors share a place, and a stripe never uses a child twice.
    #[test]
    fn sectors_lie_apart() {
        for (parity, data, children, spares) in [(1, 2, 5, 1), (2, 3, 11, 2), (3, 8, 14, 2)] {
            let draid = shape(parity, data, children, spares);
            let ashift = 20; // Big sectors, to see many groups.
            let stripe = draid.width() << ashift;
            let mut places = BTreeSet::new();
            for number in 0..(draid.group_bytes() * draid.groups * 3 / stripe) {
                let rows = draid
                    .rows(ashift, number * stripe, (data << ashift) as usize)
                    .expect("a block");
                for column in rows.iter().flat_map(|row| &row.columns) {
                    assert!(places.insert((column.child, column.offset)));
                    assert!(column.child < children as usize);
                }
                for row in &rows {
                    let used: BTreeSet<usize> =
                        row.columns.iter().map(|column| column.child).collect();
                    assert_eq!(used.len(), row.columns.len());
                }
            }
            // What no stripe uses is the spares': they never meet data, and each has a child for
            // itself.
            for offset in (0..4 * ROW_BYTES).step_by(1 << ashift) {
                let spare: BTreeSet<usize> = (0..spares)
                    .map(|spare| draid.spare_child(spare, offset).expect("a spare"))
                    .collect();
                assert_eq!(spare.len(), spares as usize);
                assert!(
                    spare
                        .iter()
                        .all(|child| !places.contains(&(*child, offset)))
                );
            }
        }
    }

    /// A block over the end of a group keeps all its bytes in order.
    #[test]
    fn blocks_go_on_in_the_next_group() {
        let draid = shape(1, 2, 5, 1);
        let ashift = 12;
        let stripe = draid.width() << ashift;
        let offset = draid.group_bytes() - stripe;
        let rows = draid.rows(ashift, offset, 5 << ashift).expect("a block");
        assert_eq!(rows.len(), 2);
        let mut parts: Vec<(usize, usize)> = rows
            .iter()
            .flat_map(|row| row.data_at.iter().zip(&row.columns[row.parity..]))
            .map(|(at, column)| (*at, column.length))
            .collect();
        parts.sort_unstable();
        let mut end = 0;
        for (at, length) in parts {
            assert_eq!(at, end);
            end += length;
        }
        assert_eq!(end, 5 << ashift);
    }

    #[test]
    fn shapes_that_cannot_be_are_refused() {
        for (parity, data, spares, groups) in
            [(0, 2, 1, 4), (1, 4, 1, 4), (4, 1, 0, 1), (1, 2, 1, 3)]
        {
            let mut config = NvList::new();
            config
                .set("nparity", parity as u64)
                .set("draid_ndata", data as u64)
                .set("draid_nspares", spares as u64)
                .set("draid_ngroups", groups as u64);
            assert!(Draid::from_config(&config, 5).is_err());
        }
    }
}
