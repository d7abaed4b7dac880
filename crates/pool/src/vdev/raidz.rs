//! RAID-Z I/O (module/zfs/vdev_raidz.c: `vdev_raidz_io_start`, `vdev_raidz_io_done`,
//! `vdev_raidz_combrec`).
//!
//! A read touches the data columns only. When some cannot be read, parity columns are read too and
//! the missing ones computed. When the result fails its checksum, some column is silently wrong:
//! every column is read, and every set of columns that parity can make up for is tried as
//! the wrong one, smallest sets first, until the checksum holds. Columns that turn out wrong
//! or unreadable are then written anew, and counted. A scrub reads all columns and compares the
//! parity as well.
//!
//! A write computes the parity, writes all columns, and succeeds when at most as many columns
//! failed as there is parity. Data columns are slices of the caller's buffer.

use std::collections::BTreeSet;

use bytes::{Bytes, BytesMut};
use codec::raidz;
use futures::future::join_all;

use super::geometry::Columns;
use super::leaf::IoContext;
use super::node::{ReadFailure, Vdev, Verify, WriteFailure};
use super::state::Counters;

/// Blocks from here on have their parity computed by a CPU worker.
const PARITY_ON_WORKER_BYTES: usize = 64 << 10;
/// Sets of columns that are tried when nothing says which one is wrong.
pub(super) const COMBINATIONS_MAX: usize = 20_000;

/// The columns of a block as far as they were read.
struct Row {
    map: Columns,
    data: Vec<Option<Bytes>>,
    /// Asked for, and an answer (or error) came.
    tried: Vec<bool>,
    cause: Option<String>,
}

impl Row {
    fn new(map: Columns) -> Self {
        let count = map.columns.len();
        Row {
            map,
            data: vec![None; count],
            tried: vec![false; count],
            cause: None,
        }
    }

    fn lengths(&self) -> Vec<usize> {
        self.map
            .columns
            .iter()
            .map(|column| column.length)
            .collect()
    }

    fn missing_data(&self) -> bool {
        self.data[self.map.parity..].iter().any(Option::is_none)
    }

    fn known(&self) -> usize {
        self.data.iter().flatten().count()
    }

    /// The block, when all data columns are there.
    fn assemble(&self) -> Option<Bytes> {
        assemble(&self.data[self.map.parity..])
    }
}

fn assemble(columns: &[Option<Bytes>]) -> Option<Bytes> {
    if let [Some(single)] = columns {
        return Some(single.clone());
    }
    let length = columns.iter().flatten().map(Bytes::len).sum();
    let mut out = BytesMut::with_capacity(length);
    for column in columns {
        out.extend_from_slice(column.as_ref()?);
    }
    Some(out.freeze())
}

/// The columns with those in `wrong` (and those that are missing) computed from the others.
pub(super) fn reconstruct(
    parity: usize,
    columns: &[Option<Bytes>],
    lengths: &[usize],
    wrong: &[usize],
) -> Option<Vec<Option<Bytes>>> {
    let kept: Vec<Option<&[u8]>> = columns
        .iter()
        .enumerate()
        .map(|(index, column)| column.as_deref().filter(|_| !wrong.contains(&index)))
        .collect();
    let computed = raidz::reconstruct(parity, &kept, lengths).ok()?;
    let mut out: Vec<Option<Bytes>> = columns.to_vec();
    for (index, column) in computed {
        out[index] = Some(column.into());
    }
    Some(out)
}

impl Vdev {
    fn row(&self, offset: u64, length: usize) -> Option<Row> {
        let map = self.geometry()?.columns(offset, length)?;
        // A block that reaches past the vdev's rows is no block of it.
        let fits = map
            .columns
            .iter()
            .all(|column| column.child < self.children.len());
        fits.then(|| Row::new(map))
    }

    /// Reads the columns in `wanted` that were not tried yet.
    async fn read_columns(&self, row: &mut Row, wanted: &[usize], context: &IoContext) {
        let wanted: Vec<usize> = wanted
            .iter()
            .copied()
            .filter(|index| !row.tried[*index])
            .collect();
        let reads = wanted.iter().map(|&index| {
            let column = row.map.columns[index];
            let child = &self.children[column.child];
            async move {
                // What the child lacks counts as an error; it may be read in need, see below.
                if child.is_missing(context.birth) || !child.is_readable() {
                    return Err(ReadFailure {
                        checksum: false,
                        cause: format!("{} is {}", child.display_name(), child.state().0),
                    });
                }
                child.read_part(column.offset, column.length, context).await
            }
        });
        let results = join_all(reads).await;
        for (index, result) in wanted.into_iter().zip(results) {
            row.tried[index] = true;
            match result {
                Ok(data) => row.data[index] = Some(data),
                Err(error) => row.cause = Some(error.cause),
            }
        }
    }

    pub(super) async fn read_raidz(
        &self,
        offset: u64,
        length: usize,
        context: &IoContext,
        verify: &dyn Verify,
    ) -> Result<Bytes, ReadFailure> {
        if let Some(expansion) = &self.expansion
            && let Some(geometry) = self.geometry()
            && !expansion.is_plain(context.birth)
        {
            let rows = expansion.rows(geometry, offset, length, context.birth);
            return self.read_expanded(offset, rows, context, verify).await;
        }
        let Some(mut row) = self.row(offset, length) else {
            return Err(ReadFailure {
                checksum: false,
                cause: format!("{}: it has too few devices", self.display_name()),
            });
        };
        let parity = row.map.parity;
        let all: Vec<usize> = (0..row.map.columns.len()).collect();
        if !context.scrub {
            self.read_columns(&mut row, &all[parity..], context).await;
            if !row.missing_data() {
                let block = row.assemble().expect("no data column is missing");
                if verify.verify(&block).await {
                    return Ok(block);
                }
            }
        }
        self.read_columns(&mut row, &all, context).await;
        self.solve(offset, row, context, verify).await
    }

    /// Finds the right content with everything read that can be, and repairs what is wrong.
    async fn solve(
        &self,
        offset: u64,
        mut row: Row,
        context: &IoContext,
        verify: &dyn Verify,
    ) -> Result<Bytes, ReadFailure> {
        let mut solution = self.find_right(&row, verify).await;
        // What stale children have may still be right (one that just missed the last uberblock before
        // a power cut lacks nothing else), the checksum will tell. All of it is needed: which of them
        // is right is not known.
        if solution.is_none() && self.read_stale(&mut row, context).await {
            solution = self.find_right(&row, verify).await;
        }
        if let Some((block, columns)) = solution {
            self.repair_columns(&row, &columns, context).await;
            return Ok(block);
        }
        let needed = row.map.columns.len() - row.map.parity;
        if row.known() < needed {
            Counters::add(&self.counters.read_errors, u64::from(!context.speculative));
            return Err(ReadFailure {
                checksum: false,
                cause: row
                    .cause
                    .unwrap_or_else(|| format!("{}: too few devices", self.display_name())),
            });
        }
        if !context.speculative {
            Counters::add(&self.counters.checksum_errors, 1);
            // Nobody knows which ones are wrong (vdev_raidz_io_done_unrecoverable).
            for (index, column) in row.map.columns.iter().enumerate() {
                if row.data[index].is_some() {
                    self.children[column.child].note_checksum_error(column.offset, context);
                }
            }
        }
        Err(ReadFailure {
            checksum: true,
            cause: format!(
                "{}: wrong checksum at {offset:#x}, and no set of columns is right",
                self.display_name()
            ),
        })
    }

    /// Tries which of the columns that were read are wrong: the block, and all columns as far as they
    /// are known to be right.
    async fn find_right(
        &self,
        row: &Row,
        verify: &dyn Verify,
    ) -> Option<(Bytes, Vec<Option<Bytes>>)> {
        let parity = row.map.parity;
        let lengths = row.lengths();
        let count = lengths.len();
        let known: Vec<usize> = (0..count)
            .filter(|index| row.data[*index].is_some())
            .collect();
        // Columns that may be wrong at the same time.
        let spare = known.len().checked_sub(count - parity)?;
        let mut tries = 0;
        for wrong_count in 0..=spare {
            for wrong in Combinations::new(&known, wrong_count) {
                // With all data columns there, parity columns make no difference.
                let parity_only = wrong.iter().all(|index| *index < parity);
                if wrong_count > 0 && parity_only && !row.missing_data() {
                    continue;
                }
                tries += 1;
                if tries > COMBINATIONS_MAX {
                    return None;
                }
                let Some(columns) = reconstruct(parity, &row.data, &lengths, &wrong) else {
                    continue;
                };
                let Some(block) = assemble(&columns[parity..]) else {
                    continue;
                };
                if verify.verify(&block).await {
                    return Some((block, columns));
                }
            }
        }
        None
    }

    /// Reads the columns that were not relied on (and once more those that failed, if there are too
    /// few); whether that gave any.
    async fn read_stale(&self, row: &mut Row, context: &IoContext) -> bool {
        let mut found = false;
        let too_few = row.known() < row.map.columns.len() - row.map.parity;
        for index in 0..row.map.columns.len() {
            if row.data[index].is_some() {
                continue;
            }
            let column = row.map.columns[index];
            let child = &self.children[column.child];
            if (too_few || child.is_missing(context.birth))
                && child.is_readable()
                && let Ok(data) = child.read_part(column.offset, column.length, context).await
            {
                row.data[index] = Some(data);
                found = true;
            }
        }
        found
    }

    /// Compares what was read with what is right (`columns`, of which parity columns may be stale)
    /// and writes what differs.
    async fn repair_columns(&self, row: &Row, columns: &[Option<Bytes>], context: &IoContext) {
        let parity = row.map.parity;
        let data: Vec<&[u8]> = columns[parity..]
            .iter()
            .map(|column| column.as_deref().unwrap_or_default())
            .collect();
        let Ok(right_parity) = raidz::generate_columns(parity, &data) else {
            return;
        };
        let right = right_parity
            .into_iter()
            .map(Bytes::from)
            .chain(columns[parity..].iter().flatten().cloned());
        let mut repairs = Vec::new();
        for (index, right) in right.enumerate() {
            let column = row.map.columns[index];
            let child = &self.children[column.child];
            match &row.data[index] {
                Some(found) if *found == right => continue,
                Some(_) => child.note_checksum_error(column.offset, context),
                // Not read, though it could have been, because it is a stale or failing device.
                None if row.tried[index] && child.is_readable() => {}
                None => continue,
            }
            repairs.push(child.repair(column.offset, right, context));
        }
        join_all(repairs).await;
    }

    pub(super) async fn write_raidz(
        &self,
        offset: u64,
        data: Bytes,
        context: &IoContext,
    ) -> Result<(), WriteFailure> {
        let row = self
            .row(offset, data.len())
            .filter(|_| self.expansion.is_none());
        let Some(row) = row else {
            return Err(WriteFailure {
                cause: format!(
                    "{}: a RAID-Z vdev that was expanded cannot be written yet",
                    self.display_name()
                ),
            });
        };
        let parity = row.map.parity;
        let mut rest = data;
        let columns: Vec<Bytes> = row.map.columns[parity..]
            .iter()
            .map(|column| rest.split_to(column.length))
            .collect();
        let total: usize = columns.iter().map(Bytes::len).sum();
        let generate = {
            let columns = columns.clone();
            move || {
                let borrowed: Vec<&[u8]> = columns.iter().map(|column| &column[..]).collect();
                raidz::generate_columns(parity, &borrowed)
            }
        };
        let parity_columns = if total >= PARITY_ON_WORKER_BYTES {
            self.world.compute(generate).await
        } else {
            generate()
        }
        .map_err(|error| WriteFailure {
            cause: error.to_string(),
        })?;
        for skip in &row.map.skips {
            self.children[skip.child].write_optional(skip.offset, skip.length);
        }
        let writes = parity_columns
            .into_iter()
            .map(Bytes::from)
            .chain(columns)
            .zip(&row.map.columns)
            .map(|(data, column)| {
                self.children[column.child].write_part(column.offset, data, context)
            });
        let results = join_all(writes).await;
        let failed: Vec<WriteFailure> = results.into_iter().filter_map(Result::err).collect();
        if failed.len() <= parity {
            return Ok(());
        }
        Counters::add(&self.counters.write_errors, 1);
        Err(WriteFailure {
            cause: failed
                .into_iter()
                .map(|failure| failure.cause)
                .collect::<BTreeSet<_>>()
                .into_iter()
                .collect::<Vec<_>>()
                .join("; "),
        })
    }
}

/// All ways to choose `count` of `items`, in lexicographic order.
pub(super) struct Combinations<'a> {
    items: &'a [usize],
    chosen: Vec<usize>,
    done: bool,
}

impl<'a> Combinations<'a> {
    pub(super) fn new(items: &'a [usize], count: usize) -> Self {
        Combinations {
            items,
            chosen: (0..count).collect(),
            done: count > items.len(),
        }
    }
}

impl Iterator for Combinations<'_> {
    type Item = Vec<usize>;

    fn next(&mut self) -> Option<Vec<usize>> {
        if self.done {
            return None;
        }
        let out = self.chosen.iter().map(|at| self.items[*at]).collect();
        let count = self.chosen.len();
        // The last position that can still move right.
        let movable = (0..count)
            .rev()
            .find(|at| self.chosen[*at] < self.items.len() - (count - at));
        match movable {
            Some(at) => {
                self.chosen[at] += 1;
                for next in at + 1..count {
                    self.chosen[next] = self.chosen[next - 1] + 1;
                }
            }
            None => self.done = true,
        }
        Some(out)
    }
}
