//! RAID-Z vdevs that were widened, or are being widened (`vdev_raidz_map_alloc_expanded`,
//! `vdev_raidz_get_logical_width` and `vdev_raidz_combrec`, module/zfs/vdev_raidz.c).
//!
//! # Layout
//!
//! A block keeps the rows it was written with: the vdev's width at its (physical) birth, its
//! *logical* width. The vdev's configuration says from which txg on it was how wide
//! (`raidz_expand_txgs`, rising; the last one is today's width, unless `raidz_expanding` says that
//! one more child is being taken in).
//!
//! Widening moves every sector of the vdev: sector `b` goes from row `b / w` of child `b % w` to
//! row `b / (w+1)` of child `b % (w+1)`. So an old block's rows wrap around the children: the
//! sectors of one of its columns are on many children, those of one of its rows on as many as it
//! has columns.
//!
//! While sectors are being moved, the uberblock says how far that has come, in bytes of the vdev. A
//! row of a block that lies wholly below that is in its new place, and any other in its old one. At
//! the very beginning new places overlap old ones: then they are in the space for boot loaders in
//! front of each child's data (*scratch*), if the uberblock says so.
//!
//! # Reading
//!
//! All sectors of a block's rows are read (those that follow each other on a child at once), and
//! each row is solved by itself. What is wrong without saying so is looked for by *child*: a child
//! that lies, lies in every row. It may as well have lied before the vdev was widened, and its
//! sectors then were moved to all children; so the children of every width that the vdev ever had
//! are tried.
//!
//! # Writing
//!
//! New blocks take the newest width, except in the few txgs between the end of an expansion and the
//! one from which on it counts; those, and old blocks one of whose copies is repaired, are written
//! row by row, each with parity of its own. While an expansion is under way nothing is written:
//! nobody here moves sectors.

use bytes::{Bytes, BytesMut};
use codec::raidz;
use format::{BOOT_BYTES, NvList, Txg, Uberblock};
use futures::future::join_all;
use parking_lot::Mutex;

use super::geometry::Geometry;
use super::raidz::Striped;
use super::raidz::{COMBINATIONS_MAX, Combinations, reconstruct};
use super::state::Counters;
use crate::error::{VdevError, bad};
use crate::io::{IoContext, ReadFailure, Verify, WriteFailure};

/// How far sectors have been moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Reflow {
    /// Rows below this offset of the vdev (bytes) are in their new place.
    offset_bytes: u64,
    /// And that is the scratch space.
    scratch: bool,
}

/// The widths that a RAID-Z vdev had.
#[derive(Debug)]
pub(crate) struct Expansion {
    /// From which txg on it was how wide, rising.
    widths: Vec<(Txg, u64)>,
    /// Width that it was made with.
    original: u64,
    /// Children that it has now.
    children: u64,
    /// What the uberblock says of the expansion that is under way; `None` while none is.
    reflow: Option<Mutex<Reflow>>,
}

/// Where a sector of a block is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Sector {
    /// Which child.
    pub(super) child: usize,
    /// Offset on the child in bytes. Scratch space is in front of offset zero, so this wraps.
    pub(super) offset: u64,
    /// Number of the sector in the vdev.
    number: u64,
}

/// The sectors of a block, row by row; all rows have all columns (parity first), but the last
/// columns of the last row may have no sector.
#[derive(Debug)]
pub(super) struct Rows {
    parity: usize,
    sector_bytes: usize,
    pub(super) rows: Vec<Vec<Option<Sector>>>,
}

/// What was read of each sector; those that do not exist are empty.
type Content = Vec<Vec<Option<Bytes>>>;

impl Expansion {
    /// What a RAID-Z vdev's configuration says; `None` when it was never widened.
    ///
    /// # Errors
    /// [`VdevError::BadConfig`].
    pub(super) fn from_config(
        config: &NvList,
        children: usize,
        parity: u64,
    ) -> Result<Option<Self>, VdevError> {
        let txgs = config.u64s("raidz_expand_txgs").unwrap_or(&[]);
        let expanding = config.contains("raidz_expanding");
        let children = children as u64;
        let steps = txgs.len() as u64 + u64::from(expanding);
        if steps == 0 {
            return Ok(None);
        }
        let original = children.saturating_sub(steps);
        if original <= parity || !txgs.is_sorted() {
            return Err(bad(format!(
                "a raidz{parity} vdev of {children} children that was widened {steps} times"
            )));
        }
        Ok(Some(Self {
            widths: (original + 1..)
                .zip(txgs)
                .map(|(width, txg)| (Txg::new(*txg), width))
                .collect(),
            original,
            children,
            reflow: expanding.then(|| {
                Mutex::new(Reflow {
                    offset_bytes: 0,
                    scratch: false,
                })
            }),
        }))
    }

    /// The state that an uberblock tells.
    pub(super) fn set_reflow(&self, uberblock: &Uberblock) {
        if let Some(reflow) = &self.reflow {
            *reflow.lock() = Reflow {
                offset_bytes: uberblock.reflow_offset_bytes,
                scratch: uberblock.reflow_state == format::ReflowScratchState::Valid,
            };
        }
    }

    /// Width that the vdev was made with: it decides how space is counted.
    pub(super) fn original_width(&self) -> usize {
        self.original as usize
    }

    /// Width of what is written today.
    pub(super) fn newest_width(&self) -> usize {
        self.width_at(Txg::new(u64::MAX)) as usize
    }

    /// The txg from which on blocks have the newest width, and the width of those before it; `None`
    /// while that is the original one.
    pub(super) fn last_change(&self) -> Option<(Txg, usize)> {
        let (from, _) = *self.widths.last()?;
        let before = self.widths.len().checked_sub(2).map(|at| self.widths[at].1);
        Some((from, before.unwrap_or(self.original) as usize))
    }

    /// Whether sectors are still being moved.
    pub(super) fn is_running(&self) -> bool {
        self.reflow.is_some()
    }

    /// Width of blocks written in this txg.
    fn width_at(&self, txg: Txg) -> u64 {
        self.widths
            .iter()
            .rev()
            .find(|(from, _)| *from <= txg)
            .map_or(self.original, |(_, width)| *width)
    }

    /// Whether a block of this birth lies as if the vdev had always been as wide as today.
    pub(super) fn is_plain(&self, birth: Txg) -> bool {
        self.width_at(birth) == self.children
    }

    /// The sectors of `length` bytes (whole sectors) at `offset`.
    pub(super) fn rows(&self, geometry: Geometry, offset: u64, length: usize, birth: Txg) -> Rows {
        let (shift, parity) = (geometry.ashift(), geometry.parity());
        let width = self.width_at(birth);
        let first = offset >> shift;
        let data = length as u64 >> shift;
        let rest = data % (width - parity);
        let row_count = data.div_ceil(width - parity);
        let total = data + parity * row_count;
        let columns = width.min(total);
        // Columns of the last row.
        let last_columns = if rest == 0 { columns } else { rest + parity };
        let reflow = self.reflow.as_ref().map(|reflow| *reflow.lock());
        let swapped = parity == 1 && offset & (1 << 20) != 0;
        let rows = (0..row_count)
            .map(|row| {
                let begin = first.saturating_add(row * width);
                let moved = reflow.is_none_or(|reflow| {
                    begin.saturating_add(columns) <= reflow.offset_bytes >> shift
                });
                let scratch = moved && reflow.is_some_and(|reflow| reflow.scratch);
                let spread = self.children - u64::from(!moved);
                let mut row: Vec<Option<Sector>> = (0..columns)
                    .map(|column| {
                        if row + 1 == row_count && column >= last_columns {
                            return None;
                        }
                        let number = begin.saturating_add(column);
                        let offset = (number / spread) << shift;
                        Some(Sector {
                            child: (number % spread) as usize,
                            offset: offset.wrapping_sub(if scratch { BOOT_BYTES } else { 0 }),
                            number,
                        })
                    })
                    .collect();
                if swapped {
                    row.swap(0, 1);
                }
                row
            })
            .collect();
        Rows {
            parity: parity as usize,
            sector_bytes: 1 << shift,
            rows,
        }
    }

    /// All children of all widths that may have lied: width and index.
    fn suspects(&self) -> Vec<(u64, u64)> {
        (self.original..=self.children)
            .rev()
            .flat_map(|width| (0..width).map(move |index| (width, index)))
            .collect()
    }

    fn is_suspect(&self, sector: &Sector, (width, index): (u64, u64)) -> bool {
        if width == self.children {
            sector.child as u64 == index
        } else {
            sector.number % width == index
        }
    }
}

impl Rows {
    /// Sectors with their row and column.
    fn sectors(&self) -> impl Iterator<Item = (usize, usize, Sector)> {
        self.rows.iter().enumerate().flat_map(|(row, sectors)| {
            let each = sectors.iter().enumerate();
            each.filter_map(move |(column, sector)| Some((row, column, (*sector)?)))
        })
    }

    /// The content of a block that is to be written, with parity.
    fn content_of(&self, block: &Bytes) -> Option<Content> {
        let mut content = self.blank();
        let columns = self.rows.first()?.len();
        let mut at = 0;
        for column in self.parity..columns {
            for (sectors, content) in self.rows.iter().zip(&mut content) {
                if sectors[column].is_some() {
                    let end = at + self.sector_bytes;
                    content[column] = (end <= block.len()).then(|| block.slice(at..end));
                    at = end;
                }
            }
        }
        for row in &mut content {
            let data: Option<Vec<&[u8]>> =
                row[self.parity..].iter().map(Option::as_deref).collect();
            let parity = raidz::generate_columns(self.parity, &data?).ok()?;
            for (column, parity) in parity.into_iter().enumerate() {
                row[column] = Some(parity.into());
            }
        }
        Some(content)
    }

    /// Nothing read yet.
    fn blank(&self) -> Content {
        let blank = |sector: &Option<Sector>| sector.is_none().then(Bytes::new);
        self.rows
            .iter()
            .map(|row| row.iter().map(blank).collect())
            .collect()
    }

    fn lengths(&self, row: usize) -> Vec<usize> {
        self.rows[row]
            .iter()
            .map(|sector| sector.map_or(0, |_| self.sector_bytes))
            .collect()
    }

    /// The block: data runs down the columns.
    fn assemble(&self, content: &Content) -> Option<Bytes> {
        let columns = self.rows.first()?.len();
        let mut out =
            BytesMut::with_capacity(self.rows.len() * (columns - self.parity) * self.sector_bytes);
        for column in self.parity..columns {
            for row in content {
                out.extend_from_slice(row[column].as_ref()?);
            }
        }
        Some(out.freeze())
    }

    /// What is missing in all rows, and what `is_wrong` says, computed from the rest. `None` when
    /// there is too little of a row, or when that makes no difference.
    fn solve(&self, content: &Content, is_wrong: impl Fn(&Sector) -> bool) -> Option<Content> {
        let mut out = content.clone();
        let mut changed = false;
        for (row, sectors) in self.rows.iter().enumerate() {
            let wrong: Vec<usize> = sectors
                .iter()
                .enumerate()
                .filter(|(column, sector)| {
                    content[row][*column].is_some() && sector.is_some_and(|s| is_wrong(&s))
                })
                .map(|(column, _)| column)
                .collect();
            let missing = content[row].iter().filter(|part| part.is_none()).count();
            if wrong.len() + missing > self.parity {
                return None;
            }
            let missing_data = content[row][self.parity..].iter().any(Option::is_none);
            if missing_data || wrong.iter().any(|column| *column >= self.parity) {
                changed = true;
                out[row] = reconstruct(self.parity, &content[row], &self.lengths(row), &wrong)?;
            }
        }
        changed.then_some(out)
    }
}

impl Striped<'_> {
    /// Reads a block that has another width than the vdev.
    pub(super) async fn read_expanded(
        &self,
        offset: u64,
        rows: Rows,
        context: &IoContext,
        verify: &dyn Verify,
    ) -> Result<Bytes, ReadFailure> {
        let mut content = rows.blank();
        let mut cause: Option<ReadFailure> = None;
        // Of a single row, parity is not needed as long as all is well.
        let only_data = rows.rows.len() == 1 && !context.scan.is_scan();
        for parity_too in [false, true] {
            if only_data || parity_too {
                let wanted = |column| parity_too || column >= rows.parity;
                self.read_rows(&rows, wanted, false, &mut content, &mut cause, context)
                    .await;
            }
            if !context.scan.is_scan()
                && let Some(block) = rows.assemble(&content)
                && verify.verify(&block).await
            {
                return Ok(block);
            }
        }
        let mut solution = self.find_rows(&rows, &content, verify).await;
        let mut is_guess = false;
        if solution.is_none() {
            // What stale children have may still be right. Without a checksum they do not answer
            // for those that have it and failed, which are tried once more.
            let has_failed = cause.as_ref().is_some_and(|failure| failure.device);
            let stale = verify.can_tell() || !has_failed;
            is_guess = stale && !verify.can_tell();
            let read = self.read_rows(&rows, |_| true, stale, &mut content, &mut cause, context);
            if read.await {
                solution = self.find_rows(&rows, &content, verify).await;
            }
        }
        if let Some((block, right)) = solution {
            if !is_guess {
                self.repair_rows(&rows, &content, &right, context).await;
            }
            return Ok(block);
        }
        let too_few = content
            .iter()
            .any(|row| row.iter().filter(|part| part.is_none()).count() > rows.parity);
        if too_few {
            Counters::add(
                &self.vdev.counters.read_errors,
                u64::from(!context.speculative),
            );
            return Err(cause.unwrap_or_else(|| ReadFailure {
                checksum: false,
                device: false,
                slow: false,
                cause: format!("{}: too few devices", self.vdev.display_name()),
            }));
        }
        if !context.speculative {
            Counters::add(&self.vdev.counters.checksum_errors, 1);
            for (row, column, sector) in rows.sectors() {
                if let Some(found) = &content[row][column] {
                    let child = &self.children[sector.child];
                    child.note_checksum_error(sector.offset, found.len(), context);
                }
            }
        }
        Err(ReadFailure {
            checksum: true,
            device: cause.is_some_and(|failure| failure.device),
            slow: false,
            cause: format!(
                "{}: wrong checksum at {offset:#x}, and no set of devices is right",
                self.vdev.display_name()
            ),
        })
    }

    /// Writes a block that has another width than the vdev.
    pub(super) async fn write_expanded(
        &self,
        rows: Rows,
        block: &Bytes,
        context: &IoContext,
    ) -> Result<(), WriteFailure> {
        let content = rows.content_of(block).ok_or_else(|| {
            WriteFailure::new(format!(
                "{}: no block can be written so",
                self.vdev.display_name()
            ))
        })?;
        let mut sectors: Vec<(usize, Sector, &Bytes)> = rows
            .sectors()
            .filter_map(|(row, column, at)| Some((row, at, content[row][column].as_ref()?)))
            .collect();
        sectors.sort_by_key(|(_, at, _)| (at.child, at.offset));
        let step = rows.sector_bytes as u64;
        let runs: Vec<&[(usize, Sector, &Bytes)]> = sectors
            .chunk_by(|(_, a, _), (_, b, _)| a.child == b.child && a.offset + step == b.offset)
            .collect();
        let writes = runs.iter().map(|run| {
            let (_, first, _) = run[0];
            let mut data = BytesMut::with_capacity(run.len() * rows.sector_bytes);
            for (_, _, sector) in run.iter() {
                data.extend_from_slice(sector);
            }
            self.children[first.child].write_part(first.offset, data.freeze(), context)
        });
        let mut failed = vec![0; rows.rows.len()];
        let mut cause: Option<WriteFailure> = None;
        for (run, result) in runs.iter().zip(join_all(writes).await) {
            if let Err(failure) = result {
                run.iter().for_each(|(row, _, _)| failed[*row] += 1);
                cause = Some(WriteFailure {
                    halted: failure.halted || cause.is_some_and(|cause| cause.halted),
                    ..failure
                });
            }
        }
        match cause {
            Some(failure) if failed.iter().any(|count| *count > rows.parity) => {
                self.vdev.note_write_failure(&failure);
                Err(failure)
            }
            _ => Ok(()),
        }
    }

    /// Reads those sectors of the wanted columns that are not there yet; whether that gave any.
    /// Children that miss the block are asked only if `stale`.
    async fn read_rows(
        &self,
        rows: &Rows,
        wanted: impl Fn(usize) -> bool,
        stale: bool,
        content: &mut Content,
        cause: &mut Option<ReadFailure>,
        context: &IoContext,
    ) -> bool {
        let mut sectors: Vec<(usize, usize, Sector)> = rows
            .sectors()
            .filter(|(row, column, _)| wanted(*column) && content[*row][*column].is_none())
            .filter(|(_, _, sector)| {
                let child = &self.children[sector.child];
                let usable = child.is_readable() && (stale || !child.is_missing(0, context.birth));
                if !usable {
                    let state = child.state().0;
                    let device = cause.as_ref().is_some_and(|failure| failure.device);
                    *cause = Some(ReadFailure {
                        checksum: false,
                        device,
                        slow: false,
                        cause: format!("{} is {state}", child.display_name()),
                    });
                }
                usable
            })
            .collect();
        // Scratch space comes first, as it does on the device.
        sectors.sort_by_key(|(_, _, at)| (at.child, at.offset.wrapping_add(BOOT_BYTES)));
        let step = rows.sector_bytes as u64;
        let runs: Vec<&[(usize, usize, Sector)]> = sectors
            .chunk_by(|(_, _, a), (_, _, b)| {
                a.child == b.child && a.offset.wrapping_add(step) == b.offset
            })
            .collect();
        let reads = runs.iter().map(|run| async move {
            let (_, _, first) = run[0];
            let child = &self.children[first.child];
            let length = run.len() * rows.sector_bytes;
            let whole = child.read_part(first.offset, length, context).await;
            match whole {
                Err(_) if run.len() > 1 && child.is_readable() => {
                    // One bad sector must not take its neighbours along.
                    join_all(run.iter().map(|(_, _, sector)| {
                        child.read_part(sector.offset, rows.sector_bytes, context)
                    }))
                    .await
                }
                Err(error) => run.iter().map(|_| Err(error.clone())).collect(),
                Ok(data) => (0..run.len())
                    .map(|index| {
                        let start = index * rows.sector_bytes;
                        Ok(data.slice(start..start + rows.sector_bytes))
                    })
                    .collect(),
            }
        });
        let mut found = false;
        for (run, results) in runs.iter().zip(join_all(reads).await) {
            for ((row, column, _), result) in run.iter().zip(results) {
                match result {
                    Ok(data) => {
                        content[*row][*column] = Some(data);
                        found = true;
                    }
                    Err(error) => {
                        let device = cause.as_ref().is_some_and(|failure| failure.device);
                        *cause = Some(ReadFailure {
                            checksum: false,
                            device: device || error.device,
                            slow: false,
                            cause: error.cause,
                        });
                    }
                }
            }
        }
        found
    }

    /// Tries which children are wrong, fewest first: the block, and all rows.
    async fn find_rows(
        &self,
        rows: &Rows,
        content: &Content,
        verify: &dyn Verify,
    ) -> Option<(Bytes, Content)> {
        let expansion = self.vdev.kind.expansion()?;
        if let Some(block) = rows.assemble(content)
            && verify.verify(&block).await
        {
            return Some((block, content.clone()));
        }
        let suspects = expansion.suspects();
        let indexes: Vec<usize> = (0..suspects.len()).collect();
        let mut tries = 0;
        for wrong_count in 0..=rows.parity {
            for wrong in Combinations::new(&indexes, wrong_count) {
                let is_wrong = |sector: &Sector| {
                    wrong
                        .iter()
                        .any(|index| expansion.is_suspect(sector, suspects[*index]))
                };
                let Some(solved) = rows.solve(content, is_wrong) else {
                    continue;
                };
                tries += 1;
                if tries > COMBINATIONS_MAX {
                    return None;
                }
                if let Some(block) = rows.assemble(&solved)
                    && verify.verify(&block).await
                {
                    return Some((block, solved));
                }
            }
        }
        None
    }

    /// Compares what was read with what is right (`right`, of which parity may be stale), counts
    /// and writes what differs.
    async fn repair_rows(
        &self,
        rows: &Rows,
        content: &Content,
        right: &Content,
        context: &IoContext,
    ) {
        let mut repairs = Vec::new();
        for (row, sectors) in rows.rows.iter().enumerate() {
            let data: Vec<&[u8]> = right[row][rows.parity..]
                .iter()
                .map(|part| part.as_deref().unwrap_or_default())
                .collect();
            let Ok(parity) = raidz::generate_columns(rows.parity, &data) else {
                return;
            };
            let parity = parity.into_iter().map(Bytes::from);
            let whole = parity.chain(right[row][rows.parity..].iter().flatten().cloned());
            for (column, good) in whole.enumerate() {
                let Some(sector) = sectors[column] else {
                    continue;
                };
                let child = &self.children[sector.child];
                match &content[row][column] {
                    Some(found) if *found == good => continue,
                    Some(_) => child.note_checksum_error(sector.offset, good.len(), context),
                    None if child.is_readable() => {}
                    None => continue,
                }
                repairs.push(child.repair(sector.offset, good, context));
            }
        }
        join_all(repairs).await;
    }
}
