//! RAID-Z I/O (module/zfs/vdev_raidz.c: `vdev_raidz_io_start`, `vdev_raidz_io_done`,
//! `vdev_raidz_combrec`).
//!
//! A read touches the data columns only. When some cannot be read, parity columns are read too and
//! the missing ones computed. When the result fails its checksum, some column is silently wrong:
//! every column is read, and every set of columns that parity can make up for is tried as
//! the wrong one, smallest sets first, until the checksum holds. Columns that turn out wrong
//! or unreadable are then written anew, and counted. Scrubs and resilvers read all columns and
//! compare the parity as well. Columns on devices that lack the block's txg are not read, and are
//! written without counting as errors.
//!
//! A write computes the parity, writes all columns, and succeeds when at most as many columns
//! failed as there is parity. Data columns are slices of the caller's buffer.
//!
//! On dRAID, where a block reaches the next group, it has two rows with parity of their own; a
//! child may be wrong in both or in one. Its columns are all written in the same length: what a
//! block does not fill is zeros, so that a whole row can be computed without knowing the blocks in
//! it (`vdev_draid_map_alloc_write`). Blocks from before a RAID-Z vdev was expanded are read by
//! `expansion`.

use std::collections::{BTreeMap, BTreeSet};

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use codec::raidz;
use futures::future::join_all;

use super::draid::Draid;
use super::geometry::{Column, Columns};
use super::kind::VdevKind;
use super::node::Vdev;
use super::state::Counters;
use crate::io::{IoContext, ReadFailure, Verify, WriteFailure};
use crate::report::ScanRead;

/// Blocks from here on have their parity computed by a CPU worker.
const PARITY_ON_WORKER_BYTES: usize = 64 << 10;
/// Sets of columns that are tried when nothing says which one is wrong.
pub(super) const COMBINATIONS_MAX: usize = 20_000;

/// The columns of one row of a block as far as they were read.
struct Row {
    map: Columns,
    data: Vec<Option<Bytes>>,
    /// Asked for, and an answer (or error) came.
    tried: Vec<bool>,
}

impl Row {
    fn new(map: Columns) -> Self {
        // Columns with nothing in them are known.
        let empty: Vec<bool> = map
            .columns
            .iter()
            .map(|column| column.length == 0)
            .collect();
        Row {
            data: empty.iter().map(|empty| empty.then(Bytes::new)).collect(),
            tried: empty,
            map,
        }
    }

    /// Makes zeros of what data columns have beyond so many bytes of the block. No checksum covers
    /// that, but parity does: where a device lies about it, parity is right and the device is not.
    fn clear_beyond(&self, columns: &mut [Option<Bytes>], covered: usize) {
        for (column, at) in columns[self.map.parity..].iter_mut().zip(&self.map.data_at) {
            let Some(data) = column else { continue };
            let kept = covered.saturating_sub(*at).min(data.len());
            if data[kept..].iter().any(|byte| *byte != 0) {
                let mut clear = BytesMut::zeroed(data.len());
                clear[..kept].copy_from_slice(&data[..kept]);
                *data = clear.freeze();
            }
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

    fn missing(&self) -> usize {
        self.data.iter().filter(|column| column.is_none()).count()
    }
}

/// A block as far as it was read. Blocks of plain RAID-Z vdevs have one row.
struct Rows {
    rows: Vec<Row>,
    length: usize,
    cause: Option<String>,
    /// A device that was there failed.
    device: bool,
    /// A device that lags was not waited for; its columns count as not tried.
    slow: bool,
    /// It has columns of devices that lack the block, and no checksum tells whether they are right.
    is_guess: bool,
}

/// A column by its row and its index there.
type At = (usize, usize);

impl Rows {
    fn all(&self) -> Vec<At> {
        let indices =
            |(row, state): (usize, &Row)| (0..state.data.len()).map(move |index| (row, index));
        self.rows.iter().enumerate().flat_map(indices).collect()
    }

    fn data_columns(&self) -> Vec<At> {
        let is_data = |(row, index): &At| *index >= self.rows[*row].map.parity;
        self.all().into_iter().filter(is_data).collect()
    }

    fn missing_data(&self) -> bool {
        self.rows.iter().any(Row::missing_data)
    }

    fn too_few(&self) -> bool {
        self.rows.iter().any(|row| row.missing() > row.map.parity)
    }

    /// The block, when all data columns are there.
    fn assemble(&self) -> Option<Bytes> {
        let columns: Vec<&[Option<Bytes>]> = self.rows.iter().map(|row| &row.data[..]).collect();
        assemble(&self.rows, &columns, self.length)
    }
}

fn assemble(rows: &[Row], columns: &[&[Option<Bytes>]], length: usize) -> Option<Bytes> {
    if let ([row], [columns]) = (rows, columns) {
        let data = &columns[row.map.parity..];
        if let [Some(single)] = data {
            return Some(single.clone());
        }
        // In one row, the data columns follow each other.
        let mut out = BytesMut::with_capacity(length);
        for column in data {
            out.extend_from_slice(column.as_ref()?);
        }
        return Some(out.freeze());
    }
    let mut out = BytesMut::zeroed(length);
    for (row, columns) in rows.iter().zip(columns) {
        for (column, at) in columns[row.map.parity..].iter().zip(&row.map.data_at) {
            let column = column.as_ref()?;
            out.get_mut(*at..at + column.len())?.copy_from_slice(column);
        }
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

/// A RAID-Z or dRAID vdev, for I/O.
#[derive(Clone, Copy)]
pub(crate) struct Striped<'a> {
    pub(crate) vdev: &'a Vdev,
    pub(crate) children: &'a [Arc<Vdev>],
    /// How a dRAID vdev's groups are spread.
    draid: Option<&'a Draid>,
}

impl<'a> Striped<'a> {
    /// Of a vdev that is one; `None` of other kinds.
    pub(crate) fn of(vdev: &'a Vdev) -> Option<Self> {
        let (children, draid) = match vdev.kind() {
            VdevKind::Raidz(raidz) => (&raidz.children, None),
            VdevKind::Draid(draid) => (&draid.children, Some(&draid.layout)),
            _ => return None,
        };
        Some(Striped {
            vdev,
            children,
            draid,
        })
    }

    /// How a block lies on the children.
    fn rows(&self, offset: u64, length: usize) -> Result<Rows, String> {
        let maps = match self.draid {
            Some(draid) => draid.rows(self.vdev.ashift(), offset, length),
            None => self
                .vdev
                .geometry()
                .and_then(|geometry| geometry.columns(offset, length))
                .map(|map| vec![map]),
        };
        let unplaceable = || {
            format!(
                "{}: no block can be at {offset:#x}",
                self.vdev.display_name()
            )
        };
        let maps = maps.ok_or_else(unplaceable)?;
        // A block that reaches past the vdev's rows is no block of it.
        let fits = maps
            .iter()
            .flat_map(|map| &map.columns)
            .all(|column| column.child < self.children.len());
        if !fits {
            return Err(unplaceable());
        }
        Ok(Rows {
            rows: maps.into_iter().map(Row::new).collect(),
            length,
            cause: None,
            device: false,
            slow: false,
            is_guess: false,
        })
    }

    /// Reads the columns in `wanted` that were not tried yet.
    async fn read_columns(&self, rows: &mut Rows, wanted: &[At], context: &IoContext) {
        let mut wanted: Vec<At> = wanted
            .iter()
            .copied()
            .filter(|(row, index)| !rows.rows[*row].tried[*index])
            .collect();
        let column = |rows: &Rows, (row, index): At| rows.rows[row].map.columns[index];
        // Columns of different rows that follow each other on a child are read at once, unless a
        // distributed spare stands in for it: that has them on different devices.
        wanted.sort_by_key(|at| {
            let column = column(rows, *at);
            (column.child, column.offset)
        });
        let mut runs: Vec<Vec<At>> = Vec::new();
        let mut end = None;
        for at in wanted {
            let column = column(rows, at);
            let is_apart = || !self.children[column.child].draid_spares().is_empty();
            if end != Some((column.child, column.offset)) || is_apart() {
                runs.push(Vec::new());
            }
            end = Some((column.child, column.offset + column.length as u64));
            runs.last_mut().expect("just pushed").push(at);
        }
        let reads = runs.iter().map(|run| {
            let first = column(rows, run[0]);
            let length = run.iter().map(|at| column(rows, *at).length).sum();
            let child = &self.children[first.child];
            async move {
                // What the child lacks counts as an error; it may be read in need, see below.
                if child.is_missing(first.offset, context.birth) || !child.is_readable() {
                    return Err(ReadFailure {
                        checksum: false,
                        device: false,
                        slow: false,
                        cause: format!("{} is {}", child.display_name(), child.state().0),
                    });
                }
                child.read_part(first.offset, length, context).await
            }
        });
        let results = join_all(reads).await;
        for (run, result) in runs.into_iter().zip(results) {
            match result {
                Ok(mut data) => {
                    for (row, index) in run {
                        let row = &mut rows.rows[row];
                        row.tried[index] = true;
                        row.data[index] = Some(data.split_to(row.map.columns[index].length));
                    }
                }
                Err(error) if error.slow => {
                    rows.slow = true;
                    rows.cause = Some(error.cause);
                }
                Err(error) if run.len() == 1 => {
                    let (row, index) = run[0];
                    rows.rows[row].tried[index] = true;
                    rows.device |= error.device;
                    rows.cause = Some(error.cause);
                }
                // Perhaps only one of them cannot be read.
                Err(error) => {
                    rows.device |= error.device;
                    for at in run {
                        let single = column(rows, at);
                        let child = &self.children[single.child];
                        let unusable =
                            child.is_missing(single.offset, context.birth) || !child.is_readable();
                        let (result, slow) = if unusable {
                            let cause = format!("{} is {}", child.display_name(), child.state().0);
                            (Err(cause), false)
                        } else {
                            let read = child.read_part(single.offset, single.length, context).await;
                            let slow = read.as_ref().is_err_and(|error| error.slow);
                            (read.map_err(|error| error.cause), slow)
                        };
                        let row = &mut rows.rows[at.0];
                        row.tried[at.1] = !slow;
                        rows.slow |= slow;
                        match result {
                            Ok(data) => row.data[at.1] = Some(data),
                            Err(cause) => rows.cause = Some(cause),
                        }
                    }
                }
            }
        }
    }

    pub(super) async fn read(
        &self,
        offset: u64,
        length: usize,
        context: &IoContext,
        verify: &dyn Verify,
    ) -> Result<Bytes, ReadFailure> {
        if let Some(expansion) = self.vdev.kind.expansion()
            && let Some(geometry) = self.vdev.geometry()
            && !expansion.is_plain(context.birth)
        {
            let held = expansion.hold(geometry, offset, length, context.birth);
            let _held = held.await;
            let rows = expansion.rows(geometry, offset, length, context.birth);
            // All of its columns are waited for.
            let context = IoContext {
                hasty: false,
                ..*context
            };
            return self.read_expanded(offset, rows, &context, verify).await;
        }
        let mut rows = self.rows(offset, length).map_err(|cause| ReadFailure {
            checksum: false,
            device: false,
            slow: false,
            cause,
        })?;
        if !context.scan.is_scan() {
            let data = rows.data_columns();
            self.read_columns(&mut rows, &data, context).await;
            if !rows.missing_data()
                && let Some(block) = rows.assemble()
                && verify.verify(&block).await
            {
                return Ok(block);
            }
        }
        let all = rows.all();
        self.read_columns(&mut rows, &all, context).await;
        // Boxed: futures of all that read hold this one, and rarely need it.
        Box::pin(self.solve(offset, rows, context, verify)).await
    }

    /// Finds the right content with everything read that can be, and repairs what is wrong.
    async fn solve(
        &self,
        offset: u64,
        mut rows: Rows,
        context: &IoContext,
        verify: &dyn Verify,
    ) -> Result<Bytes, ReadFailure> {
        let mut solution = self.find_right(&rows, verify).await;
        // What stale children have may still be right (one that just missed the last uberblock
        // before a power cut lacks nothing else), the checksum will tell. All of it is needed:
        // which of them is right is not known.
        let can_tell = verify.can_tell();
        if solution.is_none() && self.read_stale(&mut rows, context, can_tell).await {
            solution = self.find_right(&rows, verify).await;
        }
        if solution.is_none() && can_tell {
            solution = self.find_right_below(&mut rows, context, verify).await;
        }
        if let Some((block, mut columns)) = solution {
            if rows.is_guess {
                return Ok(block);
            }
            for (row, columns) in rows.rows.iter().zip(&mut columns) {
                if let Some(covered) = verify.covered_bytes() {
                    row.clear_beyond(columns, covered);
                }
                self.repair_columns(row, columns, context).await;
            }
            return Ok(block);
        }
        // It is read again, and waited for.
        if rows.slow {
            return Err(ReadFailure {
                checksum: false,
                device: rows.device,
                slow: true,
                cause: rows.cause.unwrap_or_default(),
            });
        }
        if rows.too_few() {
            Counters::add(
                &self.vdev.counters.read_errors,
                u64::from(!context.speculative),
            );
            return Err(ReadFailure {
                checksum: false,
                device: rows.device,
                slow: false,
                cause: rows
                    .cause
                    .unwrap_or_else(|| format!("{}: too few devices", self.vdev.display_name())),
            });
        }
        if !context.speculative {
            Counters::add(&self.vdev.counters.checksum_errors, 1);
            // Nobody knows which ones are wrong (vdev_raidz_io_done_unrecoverable).
            for (row, index) in rows.all() {
                let row = &rows.rows[row];
                let column = row.map.columns[index];
                if column.length > 0 && row.data[index].is_some() {
                    let child = &self.children[column.child];
                    child.note_checksum_error(column.offset, column.length, context);
                }
            }
        }
        Err(ReadFailure {
            checksum: true,
            device: rows.device,
            slow: false,
            cause: format!(
                "{}: wrong checksum at {offset:#x}, and no set of columns is right",
                self.vdev.display_name()
            ),
        })
    }

    /// Tries which children's columns are wrong: the block, and of each row all columns as
    /// far as they are known to be right.
    async fn find_right(
        &self,
        rows: &Rows,
        verify: &dyn Verify,
    ) -> Option<(Bytes, Vec<Vec<Option<Bytes>>>)> {
        if rows.too_few() {
            return None;
        }
        let known: BTreeSet<usize> = rows
            .all()
            .into_iter()
            .filter_map(|(row, index)| {
                let row = &rows.rows[row];
                let column = row.map.columns[index];
                (column.length > 0 && row.data[index].is_some()).then_some(column.child)
            })
            .collect();
        let known: Vec<usize> = known.into_iter().collect();
        // Children that may be wrong at the same time: each row has parity of its own.
        let spare: usize = rows
            .rows
            .iter()
            .map(|row| row.map.parity - row.missing())
            .sum();
        let mut tries = 0;
        for wrong_count in 0..=spare {
            for children in Combinations::new(&known, wrong_count) {
                let wrong: Vec<Vec<usize>> = rows
                    .rows
                    .iter()
                    .map(|row| {
                        (0..row.data.len())
                            .filter(|index| {
                                row.data[*index].is_some()
                                    && row.map.columns[*index].length > 0
                                    && children.contains(&row.map.columns[*index].child)
                            })
                            .collect()
                    })
                    .collect();
                let too_many = rows
                    .rows
                    .iter()
                    .zip(&wrong)
                    .any(|(row, wrong)| row.missing() + wrong.len() > row.map.parity);
                // With all data columns there, parity columns make no difference.
                let parity_only = rows.rows.iter().zip(&wrong).all(|(row, wrong)| {
                    !row.missing_data() && wrong.iter().all(|index| *index < row.map.parity)
                });
                if too_many || wrong_count > 0 && parity_only {
                    continue;
                }
                tries += 1;
                if tries > COMBINATIONS_MAX {
                    return None;
                }
                let columns: Option<Vec<Vec<Option<Bytes>>>> = rows
                    .rows
                    .iter()
                    .zip(&wrong)
                    .map(|(row, wrong)| {
                        if wrong.is_empty() && !row.missing_data() {
                            return Some(row.data.clone());
                        }
                        reconstruct(row.map.parity, &row.data, &row.lengths(), wrong)
                    })
                    .collect();
                let Some(columns) = columns else { continue };
                let borrowed: Vec<&[Option<Bytes>]> =
                    columns.iter().map(|columns| &columns[..]).collect();
                let Some(block) = assemble(&rows.rows, &borrowed, rows.length) else {
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
    /// few); whether that gave any. Without a checksum that `can_tell`, what lacks the block does
    /// not answer for devices that have it and failed.
    async fn read_stale(&self, rows: &mut Rows, context: &IoContext, can_tell: bool) -> bool {
        let may_guess = can_tell || !rows.device && !rows.slow;
        let mut found = false;
        let too_few = rows.too_few();
        for (row, index) in rows.all() {
            let row = &mut rows.rows[row];
            if row.data[index].is_some() {
                continue;
            }
            let column = row.map.columns[index];
            let child = &self.children[column.child];
            let is_missing = child.is_missing(column.offset, context.birth);
            let is_wanted = if is_missing { may_guess } else { too_few };
            if is_wanted && child.is_readable() {
                match child.read_part(column.offset, column.length, context).await {
                    Ok(data) => {
                        row.data[index] = Some(data);
                        found = true;
                        rows.is_guess |= is_missing && !can_tell;
                    }
                    Err(error) => rows.slow |= error.slow,
                }
            }
        }
        found
    }

    /// Finds the right content with what single devices have below a child that consists of several
    /// (one that is replaced, one that a spare stands in for), of which one was read. One child
    /// after the other: what a device has is put in place of what was read, and taken back, so that
    /// the repair sees what differs.
    async fn find_right_below(
        &self,
        rows: &mut Rows,
        context: &IoContext,
        verify: &dyn Verify,
    ) -> Option<(Bytes, Vec<Vec<Option<Bytes>>>)> {
        let mut below: BTreeMap<usize, Vec<At>> = BTreeMap::new();
        for (row, index) in rows.all() {
            let column = rows.rows[row].map.columns[index];
            if column.length > 0 && self.children[column.child].children().len() > 1 {
                below.entry(column.child).or_default().push((row, index));
            }
        }
        for (child, columns) in below {
            for member in self.children[child].children() {
                if !member.is_readable() {
                    continue;
                }
                let mut read = Vec::with_capacity(columns.len());
                for (row, index) in &columns {
                    let row = &mut rows.rows[*row];
                    let column = row.map.columns[*index];
                    let own = member
                        .read_part(column.offset, column.length, context)
                        .await;
                    rows.slow |= own.as_ref().is_err_and(|error| error.slow);
                    read.push(std::mem::replace(&mut row.data[*index], own.ok()));
                }
                let solution = self.find_right(rows, verify).await;
                for ((row, index), data) in columns.iter().zip(read) {
                    rows.rows[*row].data[*index] = data;
                }
                if solution.is_some() {
                    return solution;
                }
            }
        }
        None
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
        let right: Vec<Bytes> = right_parity
            .into_iter()
            .map(Bytes::from)
            .chain(columns[parity..].iter().flatten().cloned())
            .collect();
        let mut repairs = Vec::new();
        for (index, right) in right.iter().enumerate() {
            let column = row.map.columns[index];
            let child = &self.children[column.child];
            match &row.data[index] {
                Some(found) if found == right => continue,
                Some(_) => child.note_checksum_error(column.offset, column.length, context),
                // Not read, though it could have been, because it is a stale or failing device.
                None if row.tried[index] && child.is_readable() => {}
                None => continue,
            }
            repairs.push(child.repair(column.offset, right.clone(), context));
        }
        if self.draid.is_some() {
            // What lacks the block lacks the zeros around it as well, also below a child of which
            // others have them.
            for pad in &row.map.skips {
                let child = &self.children[pad.child];
                if child.needs_resilver(pad.offset, 0, context.birth) {
                    let zeros = Bytes::from(vec![0; pad.length]);
                    repairs.push(child.repair(pad.offset, zeros, context));
                }
            }
        }
        join_all(repairs).await;
        if context.scan == ScanRead::Scrub {
            for (column, right) in row.map.columns.iter().zip(&right) {
                self.scrub_below(column, right, context).await;
            }
        }
    }

    /// Below a child that consists of several devices one was read: a scrub looks at each.
    async fn scrub_below(&self, column: &Column, right: &Bytes, context: &IoContext) {
        let members = self.children[column.child].children();
        if members.len() < 2 || column.length == 0 {
            return;
        }
        for member in members {
            let has_it = !member.is_missing(column.offset, context.birth);
            if !member.is_readable() || !has_it {
                continue;
            }
            match member
                .read_part(column.offset, column.length, context)
                .await
            {
                Ok(found) if found == *right => continue,
                Ok(_) => member.note_checksum_error(column.offset, column.length, context),
                Err(_) => {}
            }
            member.repair(column.offset, right.clone(), context).await;
        }
    }

    pub(super) async fn write(
        &self,
        offset: u64,
        data: Bytes,
        context: &IoContext,
    ) -> Result<(), WriteFailure> {
        if let Some(expansion) = self.vdev.kind.expansion()
            && let Some(geometry) = self.vdev.geometry()
            && !expansion.is_plain(context.birth)
        {
            let held = expansion.hold(geometry, offset, data.len(), context.birth);
            let _held = held.await;
            let rows = expansion.rows(geometry, offset, data.len(), context.birth);
            return self.write_expanded(rows, &data, context).await;
        }
        let rows = self.rows(offset, data.len()).map_err(WriteFailure::new)?;
        if let [row] = &rows.rows[..] {
            return self.write_row(&row.map, &data, context).await;
        }
        let results = join_all(
            rows.rows
                .iter()
                .map(|row| self.write_row(&row.map, &data, context)),
        )
        .await;
        results.into_iter().collect()
    }

    /// Writes one row of a block, with its parity.
    async fn write_row(
        &self,
        map: &Columns,
        block: &Bytes,
        context: &IoContext,
    ) -> Result<(), WriteFailure> {
        let parity = map.parity;
        let fills_up = self.draid.is_some();
        // Parity columns are as long as the longest.
        let longest = map.columns.first().map_or(0, |column| column.length);
        let columns: Vec<Bytes> = map.columns[parity..]
            .iter()
            .zip(&map.data_at)
            .map(|(column, at)| {
                let data = block.slice(*at..*at + column.length);
                if !fills_up || data.len() == longest {
                    return data;
                }
                let mut padded = BytesMut::with_capacity(longest);
                padded.extend_from_slice(&data);
                padded.resize(longest, 0);
                padded.freeze()
            })
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
            self.vdev.world.compute(generate).await
        } else {
            generate()
        }
        .map_err(|error| WriteFailure::new(error.to_string()))?;
        if !fills_up {
            for skip in &map.skips {
                self.children[skip.child].write_optional(skip.offset, skip.length);
            }
        }
        let writes = parity_columns
            .into_iter()
            .map(Bytes::from)
            .chain(columns)
            .zip(&map.columns)
            .map(|(data, column)| {
                self.children[column.child].write_part(column.offset, data, context)
            });
        let results = join_all(writes).await;
        let failed: Vec<WriteFailure> = results.into_iter().filter_map(Result::err).collect();
        if failed.len() <= parity {
            return Ok(());
        }
        let failure = WriteFailure {
            halted: failed.iter().any(|failure| failure.halted),
            cause: failed
                .into_iter()
                .map(|failure| failure.cause)
                .collect::<BTreeSet<_>>()
                .into_iter()
                .collect::<Vec<_>>()
                .join("; "),
        };
        self.vdev.note_write_failure(&failure);
        Err(failure)
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
