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
//! While sectors are being moved (module `reflow`), the uberblock says how far that has come, in
//! bytes of the vdev. A row of a block that lies wholly below that is in its new place, and any
//! other in its old one. At the very beginning new places overlap old ones: then they are in the
//! space for boot loaders in front of each child's data (*scratch*), if the uberblock says so.
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
//! row by row, each with parity of its own.
//!
//! While an expansion is under way, moves are ahead of the uberblock on disk by what the txg that
//! is being written has moved. Blocks there are read from their new places. They are written to
//! these and to where the state on disk has them: after a crash, that is where an intent log is
//! looked for. A row that lies across the boundary is in its old place, and those sectors of it
//! that were moved already are written there as well, since they will not be moved once more.
//!
//! I/O holds its range ([`RangeGate`]) from before it looks where a block is until it has ended.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use codec::raidz;
use format::{BOOT_BYTES, NvList, ReflowScratchState, Txg, Uberblock};
use futures::future::join_all;
use parking_lot::RwLock;

use super::geometry::Geometry;
use super::raidz::Striped;
use super::raidz::{COMBINATIONS_MAX, Combinations, reconstruct};
use super::state::Counters;
use crate::error::{VdevError, bad};
use crate::io::{IoContext, ReadFailure, Verify, WriteFailure};
use crate::range_gate::{RangeGate, Shared};

/// How far sectors have been moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Reflow {
    /// Rows below this offset of the vdev (bytes) are in their new place.
    pub(crate) offset_bytes: u64,
    /// And that is the scratch space.
    pub(crate) scratch: bool,
}

/// Where a row of a block is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Old,
    Scratch,
    New,
}

impl Reflow {
    /// Where moved sectors are.
    fn moved_to(self) -> Place {
        match self.scratch {
            true => Place::Scratch,
            false => Place::New,
        }
    }

    /// Where a row is that ends at the sector `end`.
    fn place(self, end: u64, shift: u32) -> Place {
        match end <= self.offset_bytes >> shift {
            true => self.moved_to(),
            false => Place::Old,
        }
    }
}

/// States of an expansion that is under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Reflows {
    /// By which blocks are read, and which the next uberblock tells.
    pub(crate) now: Reflow,
    /// What the newest uberblock on disk tells.
    pub(crate) told: Reflow,
    /// Writes go also to where this has blocks: `told`, or the one before it while there may be
    /// writes that know nothing newer.
    pub(crate) kept: Reflow,
    /// The uberblock tells a state of the scratch space that nobody here knows.
    pub(crate) is_strange: bool,
}

#[derive(Debug)]
struct Widths {
    /// From which txg on the vdev was how wide, rising.
    since: Vec<(Txg, u64)>,
    /// Of the expansion that is under way; `None` while none is.
    reflows: Option<Reflows>,
}

/// The widths that a RAID-Z vdev had. It is shared by all vdevs that follow each other as one
/// ([`crate::topology`]), until the next expansion begins.
///
/// Lock: `widths`, for a few instructions.
#[derive(Debug)]
pub(crate) struct Expansion {
    widths: RwLock<Widths>,
    /// Width that it was made with.
    original: u64,
    /// Children that it has now.
    children: u64,
    /// Keeps I/O and moves apart.
    pub(crate) gate: Arc<RangeGate>,
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
    /// Where the same is written as well.
    more: Vec<More>,
}

/// Another place for a sector.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct More {
    row: usize,
    column: usize,
    /// Sectors of a row with the same number make up for each other.
    image: usize,
    sector: Sector,
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
        let since = (original + 1..)
            .zip(txgs)
            .map(|(width, txg)| (Txg::new(*txg), width))
            .collect();
        Ok(Some(Self {
            widths: RwLock::new(Widths {
                since,
                reflows: expanding.then(Reflows::default),
            }),
            original,
            children,
            gate: Arc::default(),
        }))
    }

    /// Of a vdev of `children` children, to which one more is attached: nothing is moved yet.
    /// `before` has its earlier expansions.
    pub(crate) fn begin(before: Option<&Self>, children: usize) -> Self {
        let since = before.map_or_else(Vec::new, |before| before.widths.read().since.clone());
        Self {
            widths: RwLock::new(Widths {
                since,
                reflows: Some(Reflows::default()),
            }),
            original: before.map_or(children as u64, |before| before.original),
            children: children as u64 + 1,
            gate: Arc::default(),
        }
    }

    /// Everything has been moved: blocks from txg `from` on are as wide as the vdev. Returns the
    /// txgs of all expansions.
    pub(crate) fn end(&self, from: Txg) -> Vec<u64> {
        let mut widths = self.widths.write();
        widths.reflows = None;
        widths.since.push((from, self.children));
        widths.since.iter().map(|(txg, _)| txg.get()).collect()
    }

    /// The state that an uberblock on disk tells.
    pub(super) fn set_reflow(&self, uberblock: &Uberblock) {
        if let Some(reflows) = &mut self.widths.write().reflows {
            let told = Reflow {
                offset_bytes: uberblock.reflow_offset_bytes,
                scratch: uberblock.reflow_state == ReflowScratchState::Valid,
            };
            *reflows = Reflows {
                now: told,
                told,
                kept: told,
                is_strange: matches!(uberblock.reflow_state, ReflowScratchState::Unknown(_)),
            };
        }
    }

    /// How far the expansion is that is under way.
    pub(crate) fn reflows(&self) -> Option<Reflows> {
        self.widths.read().reflows
    }

    /// Changes that, if one is under way.
    pub(crate) fn change_reflows(&self, change: impl FnOnce(&mut Reflows)) {
        if let Some(reflows) = &mut self.widths.write().reflows {
            change(reflows);
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
        let widths = &self.widths.read().since;
        let (from, _) = *widths.last()?;
        let before = widths.len().checked_sub(2).map(|at| widths[at].1);
        Some((from, before.unwrap_or(self.original) as usize))
    }

    /// Whether sectors are still being moved.
    pub(super) fn is_running(&self) -> bool {
        self.reflows().is_some()
    }

    /// Width of blocks written in this txg.
    fn width_at(&self, txg: Txg) -> u64 {
        let widths = &self.widths.read().since;
        let mut newest_first = widths.iter().rev();
        newest_first
            .find(|(from, _)| *from <= txg)
            .map_or(self.original, |(_, width)| *width)
    }

    /// Whether a block of this birth lies as if the vdev had always been as wide as today.
    pub(super) fn is_plain(&self, birth: Txg) -> bool {
        self.width_at(birth) == self.children
    }

    /// Holds what `length` bytes at `offset` may lie on, so that it stays where it is, while
    /// sectors are being moved.
    pub(super) async fn hold(
        &self,
        geometry: Geometry,
        offset: u64,
        length: usize,
        birth: Txg,
    ) -> Option<Shared<'_>> {
        if !self.is_running() {
            return None;
        }
        // To the end of the last row, although the block may not fill it: it decides where the row
        // is.
        let width = self.width_at(birth);
        let data = length as u64 >> geometry.ashift();
        let rows = data.div_ceil(width - geometry.parity());
        let span = rows.saturating_mul(width) << geometry.ashift();
        Some(self.gate.share(offset..offset.saturating_add(span)).await)
    }

    /// The place of a sector by its number in the vdev.
    fn sector(&self, number: u64, place: Place, shift: u32) -> Sector {
        let spread = self.children - u64::from(place == Place::Old);
        let offset = (number / spread) << shift;
        let scratch = place == Place::Scratch;
        Sector {
            child: (number % spread) as usize,
            offset: offset.wrapping_sub(if scratch { BOOT_BYTES } else { 0 }),
            number,
        }
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
        let reflows = self.reflows();
        let swapped = parity == 1 && offset & (1 << 20) != 0;
        let mut rows = Vec::with_capacity(row_count as usize);
        let mut more = Vec::new();
        for row in 0..row_count {
            let begin = first.saturating_add(row * width);
            let end = begin.saturating_add(columns);
            let mut numbers: Vec<Option<u64>> = (0..columns)
                .map(|column| {
                    let is_there = row + 1 < row_count || column < last_columns;
                    is_there.then(|| begin.saturating_add(column))
                })
                .collect();
            if swapped {
                numbers.swap(0, 1);
            }
            let place = reflows.map_or(Place::New, |reflows| reflows.now.place(end, shift));
            let sectors: Vec<Option<Sector>> = numbers
                .iter()
                .map(|number| number.map(|number| self.sector(number, place, shift)))
                .collect();
            if let Some(reflows) = reflows
                && (reflows.now != reflows.kept || place == Place::Old)
            {
                self.add_more(&reflows, (row as usize, end, shift), &sectors, &mut more);
            }
            rows.push(sectors);
        }
        Rows {
            parity: parity as usize,
            sector_bytes: 1 << shift,
            rows,
            more,
        }
    }

    /// Where else a row is written that ends at the sector `end`: where the state on disk has it,
    /// and where sectors of it were moved to already.
    fn add_more(
        &self,
        reflows: &Reflows,
        (row, end, shift): (usize, u64, u32),
        sectors: &[Option<Sector>],
        more: &mut Vec<More>,
    ) {
        let is_at = |a: &Sector, b: &Sector| (a.child, a.offset) == (b.child, b.offset);
        let known = more.len();
        for (index, reflow) in [reflows.now, reflows.kept].into_iter().enumerate() {
            let place = reflow.place(end, shift);
            for (column, own) in sectors.iter().enumerate() {
                let Some(own) = own else { continue };
                let mut places = vec![(2 * index, place)];
                if place == Place::Old && own.number < reflow.offset_bytes >> shift {
                    places.push((2 * index + 1, reflow.moved_to()));
                }
                for (image, place) in places {
                    let sector = self.sector(own.number, place, shift);
                    let is_known = more[known..].iter().any(|at| is_at(&at.sector, &sector));
                    if !is_at(own, &sector) && !is_known {
                        more.push(More {
                            row,
                            column,
                            image,
                            sector,
                        });
                    }
                }
            }
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

/// The order of sectors on their devices: scratch space comes first.
fn place_order(at: &Sector) -> (usize, u64) {
    (at.child, at.offset.wrapping_add(BOOT_BYTES))
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
        // Row, image (see `More`), place, content.
        let own = rows
            .sectors()
            .map(|(row, column, at)| (row, usize::MAX, at, &content[row][column]));
        let more = rows.more.iter().map(|more| {
            let content = &content[more.row][more.column];
            (more.row, more.image, more.sector, content)
        });
        let mut sectors: Vec<(usize, usize, Sector, &Bytes)> = own
            .chain(more)
            .filter_map(|(row, image, at, content)| Some((row, image, at, content.as_ref()?)))
            .collect();
        sectors.sort_by_key(|(_, _, at, _)| place_order(at));
        let step = rows.sector_bytes as u64;
        let runs: Vec<&[(usize, usize, Sector, &Bytes)]> = sectors
            .chunk_by(|(_, _, a, _), (_, _, b, _)| {
                a.child == b.child && a.offset.wrapping_add(step) == b.offset
            })
            .collect();
        let writes = runs.iter().map(|run| {
            let (_, _, first, _) = run[0];
            let mut data = BytesMut::with_capacity(run.len() * rows.sector_bytes);
            for (_, _, _, sector) in run.iter() {
                data.extend_from_slice(sector);
            }
            self.children[first.child].write_part(first.offset, data.freeze(), context)
        });
        let mut failed: BTreeMap<(usize, usize), usize> = BTreeMap::new();
        let mut cause: Option<WriteFailure> = None;
        for (run, result) in runs.iter().zip(join_all(writes).await) {
            if let Err(failure) = result {
                for (row, image, _, _) in run.iter() {
                    *failed.entry((*row, *image)).or_default() += 1;
                }
                cause = Some(WriteFailure {
                    halted: failure.halted || cause.is_some_and(|cause| cause.halted),
                    ..failure
                });
            }
        }
        match cause {
            Some(failure) if failed.values().any(|count| *count > rows.parity) => {
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
        sectors.sort_by_key(|(_, _, at)| place_order(at));
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
    /// and writes what differs; where a sector has more places, to all of these, and also what
    /// devices lack there.
    async fn repair_rows(
        &self,
        rows: &Rows,
        content: &Content,
        right: &Content,
        context: &IoContext,
    ) {
        let mut repairs = Vec::new();
        let mut whole = Vec::with_capacity(rows.rows.len());
        let mut repaired = BTreeSet::new();
        for (row, sectors) in rows.rows.iter().enumerate() {
            let data: Vec<&[u8]> = right[row][rows.parity..]
                .iter()
                .map(|part| part.as_deref().unwrap_or_default())
                .collect();
            let Ok(parity) = raidz::generate_columns(rows.parity, &data) else {
                return;
            };
            let parity = parity.into_iter().map(Bytes::from);
            let data = right[row][rows.parity..].iter().flatten().cloned();
            let good: Vec<Bytes> = parity.chain(data).collect();
            for (column, good) in good.iter().enumerate() {
                let Some(sector) = sectors[column] else {
                    continue;
                };
                let child = &self.children[sector.child];
                match &content[row][column] {
                    Some(found) if found == good => continue,
                    Some(_) => child.note_checksum_error(sector.offset, good.len(), context),
                    None if child.is_readable() => {}
                    None => continue,
                }
                repaired.insert((row, column));
                repairs.push(child.repair(sector.offset, good.clone(), context));
            }
            whole.push(good);
        }
        for more in &rows.more {
            let child = &self.children[more.sector.child];
            let offset = more.sector.offset;
            // Nobody reads what is there. So nothing else tells that one of the devices below lacks
            // it, which is to replace another one.
            let is_wrong = repaired.contains(&(more.row, more.column))
                || child.is_missing(offset, context.birth)
                || context.scan.is_scan() && child.needs_resilver(offset, 0, context.birth);
            if is_wrong && child.is_readable() {
                let good = whole[more.row][more.column].clone();
                repairs.push(child.repair(more.sector.offset, good, context));
            }
        }
        join_all(repairs).await;
    }
}
