//! Moving the sectors of a RAID-Z vdev that is made wider (`raidz_reflow_impl`,
//! `raidz_reflow_scratch_sync` and `vdev_raidz_reflow_copy_scratch`, module/zfs/vdev_raidz.c).
//! Where sectors are, and how they are read and written meanwhile, is told in module `expansion`.
//!
//! # Steps
//!
//! All are made by the sync loop, in the first pass of a transaction group, and the uberblock of
//! that group tells of them:
//!
//! 1. [`ReflowStep::ToScratch`]: the first sectors go to the scratch space, where nothing is.
//! 2. [`ReflowStep::FromScratch`]: from there to their new places, which overlap their old ones; in
//!    a later group, since only the state on disk with the scratch space can do without these.
//! 3. [`ReflowStep::Move`]: what follows goes from old to new places, in any number of parts.
//! 4. [`ReflowStep::End`]: all is in its new place, on disk as well.
//!
//! OpenZFS makes steps 1 and 2 in one group and writes two uberblocks in between; it goes on from
//! either.
//!
//! # What is written over
//!
//! A new place is the old place of a sector further in front. With `w` old children and `s` sectors
//! moved by the newest uberblock on disk, moves end where that would be a sector behind `s - w`: a
//! row that reaches across `s` is still in its old place, and begins behind that. So both states
//! that a crash may leave have everything: the one on disk, since nothing of it was written over,
//! and the next one, since it is written after the devices were flushed.
//!
//! # What is moved
//!
//! Whatever is or may become allocated, as it is: right or wrong, data or parity. A device that
//! lacks something would have it spread over all others, which are trusted. So nothing is moved
//! unless all devices work and lack nothing, before and after; and a part counts as moved once all
//! devices have flushed it. Else the part is moved again later.

use std::ops::Range;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use format::{BOOT_BYTES, NvValue, ReflowScratchState, Txg};
use futures::future::{Either, join_all, select};
use futures::stream::StreamExt;

use crate::error::VdevError;
use crate::expansion::{Expansion, Reflow};
use crate::io::IoContext;
use crate::kind::VdevKind;
use crate::node::Vdev;
use crate::range_gate::Closed;
use crate::range_set::RangeSet;
use crate::report::Priority;
use crate::tree::VdevTree;

/// Bytes per device that one step moves, at most: for so long I/O there waits.
const STEP_BYTES: u64 = 8 << 20;
/// Bytes per device that are read at once.
const RUN_BYTES: u64 = 1 << 20;
/// So many of these at the same time.
const RUNS: usize = 4;
/// Bytes of all devices that are read at once: of a wide vdev, less of each.
const RUN_BYTES_MAX: u64 = 16 << 20;
/// Free space between two ranges, per device, that is moved with them: sooner done than two
/// operations.
const GAP_BYTES: u64 = 32 << 10;
/// For how long I/O on what is to be moved is waited for.
const PATIENCE: Duration = Duration::from_secs(1);

/// What an expansion does next. Offsets are of the vdev, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReflowStep {
    /// What is in front of this offset goes to the scratch space.
    ToScratch(u64),
    /// What is in front of this offset goes from the scratch space to its new place.
    FromScratch(u64),
    /// What is from the one offset to the other goes to its new place.
    Move(u64, u64),
    /// Everything is in its new place.
    End,
    /// An uberblock has to be written first.
    Waits,
    /// What the uberblock says cannot be.
    Damaged,
}

impl ReflowStep {
    /// What is moved.
    pub fn range(self) -> Range<u64> {
        match self {
            Self::ToScratch(end) | Self::FromScratch(end) => 0..end,
            Self::Move(from, until) => from..until,
            Self::End | Self::Waits | Self::Damaged => 0..0,
        }
    }
}

/// Where moved sectors go.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Target {
    Scratch,
    New,
}

/// A vdev whose sectors are being moved.
struct Mover<'a> {
    top: &'a Vdev,
    children: &'a [Arc<Vdev>],
    expansion: &'a Expansion,
    context: IoContext,
}

/// Bytes of each child's scratch space that are used: whole sectors.
fn scratch_bytes(shift: u32) -> u64 {
    BOOT_BYTES >> shift << shift
}

/// Whether the first sectors of a RAID-Z vdev fit into the scratch space when it gets one more
/// child (`vdev_raidz_attach_check`), and there are so many at all.
pub(crate) fn has_scratch_room(top: &Vdev) -> bool {
    let children = top.children().len() as u64 + 1;
    let scratch = scratch_bytes(top.ashift());
    let end = top.metaslab_count() << top.metaslab_shift();
    children << top.ashift() <= scratch && scratch * children <= end
}

/// What the expansion of this top-level vdev that is under way does next; `None` when none is.
pub fn next(top: &Vdev) -> Option<ReflowStep> {
    let reflows = top.kind.expansion()?.reflows()?;
    let shift = top.ashift();
    let children = top.children().len() as u64;
    let old = children - 1;
    let end = top.metaslab_count() << top.metaslab_shift();
    let Reflow {
        offset_bytes: now,
        scratch,
    } = reflows.now;
    let is_told = reflows.told == reflows.now;
    let in_scratch = scratch_bytes(shift) * children;
    let can_be = !reflows.is_strange
        && now <= end
        && now.is_multiple_of(1 << shift)
        && (!scratch || now <= in_scratch && now.is_multiple_of(children << shift));
    if !can_be || in_scratch > end {
        return Some(ReflowStep::Damaged);
    }
    if now == 0 || scratch || now == end {
        return Some(match is_told {
            false => ReflowStep::Waits,
            true if now == 0 => ReflowStep::ToScratch(in_scratch),
            true if scratch => ReflowStep::FromScratch(now),
            true => ReflowStep::End,
        });
    }
    if reflows.told.scratch {
        return Some(ReflowStep::Waits);
    }
    let told = reflows.told.offset_bytes >> shift;
    let limit = (told + told / old).saturating_sub(old);
    if limit <= told {
        return Some(ReflowStep::Damaged);
    }
    let until = (limit << shift).min(end).min(now + STEP_BYTES * children);
    Some(match until > now {
        true => ReflowStep::Move(now, until),
        false => ReflowStep::Waits,
    })
}

/// Whether an expansion of this top-level vdev is under way of which the uberblock says what cannot
/// be. Writes would go to places that others have then: such a pool is only read.
pub fn is_damaged(top: &Vdev) -> bool {
    next(top) == Some(ReflowStep::Damaged)
}

/// How far the expansion under way is, as an offset of the vdev in bytes.
pub fn moved_bytes(top: &Vdev) -> Option<u64> {
    Some(top.kind.expansion()?.reflows()?.now.offset_bytes)
}

/// Why sectors of this top-level vdev cannot be moved now, if they cannot: a device does not work,
/// lacks something, or is being replaced.
pub fn obstacle(top: &Vdev) -> Option<String> {
    let mut children = top.children().iter();
    children.find_map(|child| match child.leaf() {
        None => Some(format!("{} is being replaced", child.display_name())),
        Some(leaf) if !leaf.is_writeable() => {
            Some(format!("{} is {}", child.display_name(), child.state().0))
        }
        Some(leaf) if !leaf.dirty_times().missing().is_empty() => {
            Some(format!("{} is to be resilvered", child.display_name()))
        }
        Some(_) => None,
    })
}

impl VdevTree {
    /// What the uberblock of the txg that is written has to tell of the expansion under way: an
    /// offset in bytes, and the state of the scratch space.
    pub fn reflow(&self) -> (u64, ReflowScratchState) {
        let tops = self.tops();
        let mut reflows = tops
            .iter()
            .filter_map(|top| top.kind.expansion()?.reflows());
        match reflows.next().map(|reflows| reflows.now) {
            None => (0, ReflowScratchState::NotInUse),
            Some(now) => {
                let state = match now {
                    Reflow { scratch: true, .. } => ReflowScratchState::Valid,
                    Reflow {
                        offset_bytes: 0, ..
                    } => ReflowScratchState::NotInUse,
                    _ => ReflowScratchState::InvalidSyncedReflow,
                };
                (now.offset_bytes, state)
            }
        }
    }

    /// That uberblock is on disk.
    pub fn reflow_told(&self) {
        for top in self.tops() {
            if let Some(expansion) = top.kind.expansion() {
                expansion.change_reflows(|reflows| reflows.told = reflows.now);
            }
        }
    }

    /// Waits for writes under way that go to where older states than the one on disk have blocks;
    /// what is there may be written over then. To be called before each group's steps.
    ///
    /// Repairs as well: they go on when their reader, who kept the range, has gone away.
    ///
    /// # Errors
    /// [`VdevError::NotMoved`] when they take too long.
    pub async fn settle_reflow(&self, top: &Vdev) -> Result<(), VdevError> {
        let Some(expansion) = top.kind.expansion() else {
            return Ok(());
        };
        let Some(reflows) = expansion.reflows().filter(|at| at.told != at.kept) else {
            return Ok(());
        };
        let from = match reflows.told.scratch == reflows.kept.scratch {
            true => reflows.kept.offset_bytes,
            false => 0,
        };
        let _held = self.soon(top, pin!(self.hold_repairs())).await?;
        let _closed = self
            .close_range(top, expansion, from..reflows.told.offset_bytes)
            .await?;
        expansion.change_reflows(|at| at.kept = reflows.told);
        Ok(())
    }

    /// Everything is in its new place, in syncing context: blocks from txg `from` on are as wide as
    /// the vdev. The configuration has to be written in this txg.
    ///
    /// # Errors
    /// [`VdevError::NotMoved`]: then nothing has changed.
    pub async fn end_expansion(&self, top: &Vdev, from: Txg) -> Result<(), VdevError> {
        let Some(expansion) = top.kind.expansion() else {
            return Ok(());
        };
        // The last rows of blocks may have been taken to be in their old places until now.
        let _closed = self.close_range(top, expansion, 0..u64::MAX).await?;
        let txgs = expansion.end(from);
        top.remove_config("raidz_expanding");
        top.set_config("raidz_expand_txgs", NvValue::UInt64Array(txgs));
        Ok(())
    }

    /// Keeps I/O out of a range.
    async fn close_range(
        &self,
        top: &Vdev,
        expansion: &Expansion,
        range: Range<u64>,
    ) -> Result<Closed, VdevError> {
        self.soon(top, pin!(expansion.gate.close(range))).await
    }

    /// Waits for the end of I/O, but not for long.
    async fn soon<T>(
        &self,
        top: &Vdev,
        end: impl Future<Output = T> + Unpin,
    ) -> Result<T, VdevError> {
        match select(end, self.world().clock.sleep(PATIENCE)).await {
            Either::Left((ended, _)) => Ok(ended),
            Either::Right(_) => Err(not_moved(top, "I/O under way does not end")),
        }
    }

    /// Makes one step of an expansion, in syncing context of `txg`, in its first pass. `occupied`
    /// tells, once no I/O is there any more, what of the range is not free in every state that may
    /// be imported. Returns how many bytes were moved; an uberblock has to be written now.
    ///
    /// # Errors
    /// [`VdevError::NotMoved`]: then nothing has changed.
    pub async fn reflow_step(
        &self,
        top: &Arc<Vdev>,
        step: ReflowStep,
        txg: Txg,
        occupied: impl FnOnce() -> RangeSet + Send,
    ) -> Result<u64, VdevError> {
        let (VdevKind::Raidz(raidz), Some(expansion)) = (top.kind(), top.kind.expansion()) else {
            return Err(not_moved(top, "it is not being expanded"));
        };
        let mark = self.common.halt.mark();
        let closed = self.close_range(top, expansion, step.range()).await?;
        check_well(top)?;
        let mover = Mover {
            top,
            children: &raidz.children,
            expansion,
            context: IoContext {
                priority: Priority::Async,
                birth: txg,
                ..IoContext::default()
            },
        };
        let range = step.range();
        let moved_bytes = match step {
            ReflowStep::ToScratch(_) => {
                mover.copy_all(&range, &occupied(), Target::Scratch).await?
            }
            ReflowStep::FromScratch(end) => mover.empty_scratch(end).await?,
            ReflowStep::Move(..) => mover.copy_all(&range, &occupied(), Target::New).await?,
            ReflowStep::Damaged => {
                return Err(not_moved(top, "what the uberblock says of it cannot be"));
            }
            ReflowStep::End | ReflowStep::Waits => {
                return Err(not_moved(top, "there is nothing to move"));
            }
        };
        let now = Reflow {
            offset_bytes: range.end,
            scratch: matches!(step, ReflowStep::ToScratch(_)),
        };
        // Of free space nothing was moved, of which there may be very much.
        if moved_bytes > 0 || matches!(step, ReflowStep::FromScratch(_)) {
            self.flush_tops(std::slice::from_ref(top)).await?;
        }
        check_well(top)?;
        if !self.common.halt.is_unchanged(mark) {
            return Err(not_moved(top, "the pool is suspended"));
        }
        mover.expansion.change_reflows(|reflows| reflows.now = now);
        drop(closed);
        Ok(moved_bytes)
    }
}

fn not_moved(top: &Vdev, cause: impl Into<String>) -> VdevError {
    VdevError::NotMoved {
        vdev: top.display_name(),
        cause: cause.into(),
    }
}

fn check_well(top: &Vdev) -> Result<(), VdevError> {
    match obstacle(top) {
        Some(cause) => Err(not_moved(top, cause)),
        None => Ok(()),
    }
}

/// The parts of a range that are occupied, those that are close to each other put together, none
/// longer than `longest`.
fn runs(range: &Range<u64>, occupied: &RangeSet, gap: u64, longest: u64) -> Vec<Range<u64>> {
    let mut out: Vec<Range<u64>> = Vec::new();
    for part in occupied.from(range.start) {
        let part = part.start.max(range.start)..part.end.min(range.end);
        if part.is_empty() {
            break;
        }
        match out.last_mut() {
            Some(last) if part.start - last.end <= gap => last.end = part.end,
            _ => out.push(part),
        }
    }
    let cut = |run: Range<u64>| {
        let starts = run.clone().step_by(longest as usize);
        starts.map(move |start| start..run.end.min(start + longest))
    };
    out.into_iter().flat_map(cut).collect()
}

impl Mover<'_> {
    /// Copies what is occupied of a range from old places; tells how much that was.
    async fn copy_all(
        &self,
        range: &Range<u64>,
        occupied: &RangeSet,
        to: Target,
    ) -> Result<u64, VdevError> {
        let old = self.children.len() as u64 - 1;
        let longest = (RUN_BYTES * old).min(RUN_BYTES_MAX);
        let all = runs(range, occupied, GAP_BYTES * old, longest);
        let copies = all.iter().cloned();
        let copies = copies.map(|run| self.copy_occupied(run, occupied, to));
        let mut copies = futures::stream::iter(copies).buffered(RUNS);
        let mut failure = None;
        // What is under way is waited for: devices may carry it out as long as nobody has told how
        // it ended.
        while let Some(copied) = copies.next().await {
            if let Err(error) = copied {
                failure.get_or_insert(error);
            }
        }
        match failure {
            Some(error) => Err(error),
            None => Ok(all.iter().map(|run| run.end - run.start).sum()),
        }
    }

    /// Copies a run, and when that fails what is occupied of it: free sectors that cannot be read,
    /// which nothing would ever repair, must not hold the expansion up for good. What was copied
    /// already is copied once more; nothing that is still to be read was written over.
    async fn copy_occupied(
        &self,
        run: Range<u64>,
        occupied: &RangeSet,
        to: Target,
    ) -> Result<(), VdevError> {
        let Err(failure) = self.copy(run.clone(), to).await else {
            return Ok(());
        };
        let parts = runs(&run, occupied, 0, run.end - run.start);
        if parts == [run] {
            return Err(failure);
        }
        for part in parts {
            self.copy(part, to).await?;
        }
        Ok(())
    }

    /// Copies sectors from their old places: one read of each child, and one write.
    async fn copy(&self, run: Range<u64>, to: Target) -> Result<(), VdevError> {
        let shift = self.top.ashift();
        let sector = 1usize << shift;
        let (first, count) = (run.start >> shift, (run.end - run.start) >> shift);
        let (new, old) = (self.children.len() as u64, self.children.len() as u64 - 1);
        let reads = (0..old.min(count)).map(|index| {
            let number = first + index;
            let child = &self.children[(number % old) as usize];
            let length = (count - index).div_ceil(old) << shift;
            child.read_part((number / old) << shift, length as usize, &self.context)
        });
        let mut columns: Vec<Bytes> = Vec::with_capacity(old as usize);
        for read in join_all(reads).await {
            columns.push(read.map_err(|failure| not_moved(self.top, failure.cause))?);
        }
        let base = match to {
            Target::Scratch => BOOT_BYTES,
            Target::New => 0,
        };
        let writes = (0..new.min(count)).map(|index| {
            let number = first + index;
            let child = &self.children[(number % new) as usize];
            let length = (count - index).div_ceil(new) << shift;
            let mut data = BytesMut::with_capacity(length as usize);
            for at in (index..count).step_by(new as usize) {
                let start = ((at / old) << shift) as usize;
                let column = &columns[(at % old) as usize];
                data.extend_from_slice(&column[start..start + sector]);
            }
            let offset = ((number / new) << shift).wrapping_sub(base);
            child.write_part(offset, data.freeze(), &self.context)
        });
        match join_all(writes).await.into_iter().find_map(Result::err) {
            Some(failure) => Err(not_moved(self.top, failure.cause)),
            None => Ok(()),
        }
    }

    /// Copies all that the scratch space has of what is in front of `end`, which counts as moved
    /// already.
    async fn empty_scratch(&self, end: u64) -> Result<u64, VdevError> {
        let length = end / self.children.len() as u64;
        for start in (0..length).step_by(RUN_BYTES as usize) {
            let part = (length - start).min(RUN_BYTES) as usize;
            let copies = self.children.iter().map(|child| async move {
                let from = start.wrapping_sub(BOOT_BYTES);
                let read = child.read_part(from, part, &self.context).await;
                let data = read.map_err(|failure| not_moved(self.top, failure.cause))?;
                let written = child.write_part(start, data, &self.context).await;
                written.map_err(|failure| not_moved(self.top, failure.cause))
            });
            let copied = join_all(copies).await.into_iter();
            copied.collect::<Result<(), VdevError>>()?;
        }
        Ok(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_are_moved_together_and_long_runs_in_parts() {
        let occupied = RangeSet::from_iter([(0, 10), (14, 6), (100, 250), (600, 5)]);
        let found = runs(&(2..400), &occupied, 4, 100);
        assert_eq!(found, [2..20, 100..200, 200..300, 300..350]);
        assert!(runs(&(20..100), &occupied, 4, 100).is_empty());
    }
}
