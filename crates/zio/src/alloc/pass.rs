//! Passes over all free space, to initialize or discard it: holding a part of it after the other.
//!
//! A pass takes free ranges of one metaslab at a time out of everybody's reach, does something with
//! them on a device, and gives them back. Several passes, for several devices of a vdev, may hold
//! the same ranges; these come back when the last of them is done. As with `trim`, totals go on
//! counting what is held as free, and an allocation that finds no place meanwhile waits for it: so
//! little is held at any time, and who was waited for is told ([`FreeHoldResult::Busy`]).
//!
//! **What is not held.** Only what can be allocated: not what is allocated, also for a checkpoint
//! or by an intent log, nor what was freed and waits. And not what came free just now: a range must
//! be free in every state that an import may choose, the newest and [`DEFER_TXGS`] uberblocks
//! before it (`import -F`). What allocations take may have been freed less than so many uberblocks
//! ago, since txgs without one count for them, and where space is short freed space does not wait
//! at all. Hence what comes free is remembered until enough uberblocks were *written* after that,
//! and nothing is held before so many were written since the pool was opened.
//!
//! Source: module/zfs/metaslab.c (`metaslab_disable`, `metaslab_enable`).

use std::collections::{BTreeMap, VecDeque};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use format::{Txg, VdevId};
use tokio::sync::Notify;
use vdev::RangeSet;

use super::metaslab::Loaded;
use super::top::Top;
use super::{Allocator, DEFER_TXGS, Entry};

/// At most this part of what is free is held by one pass.
const HOLD_FRACTION: u64 = 16;

/// What passes hold of one vdev, and may not hold.
#[derive(Debug, Default)]
pub(super) struct Passes {
    /// The metaslabs that something is held of, by the number of who holds it.
    held: BTreeMap<u64, usize>,
    /// Uberblocks that were written since the vdev is here.
    written: u64,
    /// What came free lately, with how many uberblocks were written by then.
    recent: VecDeque<(u64, RangeSet)>,
    /// An allocation waits, or waited.
    was_waited_for: bool,
}

impl Passes {
    /// The metaslabs that something is held of.
    pub(super) fn held(&self) -> impl Iterator<Item = usize> + '_ {
        self.held.values().copied()
    }

    /// An allocation waits for what is held.
    pub(super) fn note_wait(&mut self) {
        self.was_waited_for = !self.held.is_empty();
    }

    /// Ranges can be used again from now on; the uberblock of their txg is on its way to count.
    pub(super) fn came_free(&mut self, ranges: RangeSet) {
        if ranges.is_empty() {
            return;
        }
        match self.recent.back_mut() {
            Some((written, recent)) if *written == self.written => recent.add_all(&ranges),
            _ => self.recent.push_back((self.written, ranges)),
        }
    }

    fn note_written(&mut self) {
        self.written += 1;
        // One more than those after it: the first to be counted is that of the txg itself.
        let is_old = |written: u64| self.written > written + DEFER_TXGS;
        while self.recent.front().is_some_and(|(at, _)| is_old(*at)) {
            self.recent.pop_front();
        }
    }

    fn is_settled(&self) -> bool {
        self.written >= DEFER_TXGS
    }
}

/// What [`Allocator::hold_free`] found.
#[derive(Debug)]
pub enum FreeHoldResult {
    /// Free space; the next is to be asked for from [`FreeHold::next`] on.
    Held(FreeHold),
    /// Not now: an allocation had to wait for what was held, or too few uberblocks were written.
    Busy,
    /// There is no more free space.
    End,
}

/// Free space of a vdev that nobody gets until [`FreeHold::done`]. One that is dropped stays held
/// for as long as the pool is open: nobody knows what devices are still about to do with it.
pub struct FreeHold {
    entry: Arc<Entry>,
    loads: Arc<Notify>,
    metaslab: usize,
    id: u64,
    ranges: RangeSet,
    next: u64,
    is_done: bool,
}

impl FreeHold {
    /// The ranges, as offsets on the vdev.
    pub fn ranges(&self) -> &RangeSet {
        &self.ranges
    }

    /// Where what was not looked at begins.
    pub fn next(&self) -> u64 {
        self.next
    }

    /// The devices have answered: the space can be used again.
    pub fn done(mut self) {
        self.is_done = true;
    }
}

impl Drop for FreeHold {
    fn drop(&mut self) {
        if !self.is_done {
            return;
        }
        {
            let mut top = self.entry.top.lock();
            top.passes.held.remove(&self.id);
            if let Some(metaslab) = top.metaslab_mut(self.metaslab) {
                metaslab.release_shared(self.id);
                top.reweigh(self.metaslab);
            }
        }
        self.loads.notify_waiters();
    }
}

impl std::fmt::Debug for FreeHold {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("FreeHold")
            .field("vdev", &self.entry.vdev)
            .field("ranges", &self.ranges)
            .finish_non_exhaustive()
    }
}

/// What an attempt came to.
enum Attempt {
    Held {
        metaslab: usize,
        ranges: RangeSet,
        next: u64,
    },
    Load(usize),
    Wait,
    Busy,
    End,
}

impl Top {
    /// Holds free space from `from` on, for the pass `id`.
    fn hold_free(&mut self, id: u64, mut from: u64, bytes_max: u64) -> Attempt {
        if !self.passes.is_settled() || std::mem::take(&mut self.passes.was_waited_for) {
            return Attempt::Busy;
        }
        let unit_bytes = self.spec.geometry.asize(1).max(1);
        let budget = (self.free_bytes() / HOLD_FRACTION).min(bytes_max);
        let mut index = (from >> self.spec.metaslab_shift) as usize;
        loop {
            let Some(metaslab) = self.metaslab(index) else {
                return Attempt::End;
            };
            from = from.max(metaslab.start);
            let end = metaslab.start + metaslab.length;
            match metaslab.loaded {
                _ if from >= end => {
                    index += 1;
                    continue;
                }
                Loaded::Yes(_) => {}
                Loaded::Loading => return Attempt::Wait,
                Loaded::Broken => {
                    from = end;
                    continue;
                }
                Loaded::No => {
                    if let Some(metaslab) = self.metaslab_mut(index) {
                        metaslab.loaded = Loaded::Loading;
                    }
                    return Attempt::Load(index);
                }
            }
            let recent = std::mem::take(&mut self.passes.recent);
            let held = self.metaslab_mut(index).and_then(|metaslab| {
                let recent = recent.iter().map(|(_, ranges)| ranges);
                let next = metaslab.hold_shared(id, from, (budget, unit_bytes), recent)?;
                Some((next, metaslab.shared(id).cloned()))
            });
            self.passes.recent = recent;
            match held {
                Some((next, Some(ranges))) => {
                    self.passes.held.insert(id, index);
                    self.reweigh(index);
                    return Attempt::Held {
                        metaslab: index,
                        ranges,
                        next,
                    };
                }
                Some((next, None)) => from = next,
                None => return Attempt::End,
            }
        }
    }
}

impl Allocator {
    /// Notes that a txg left an uberblock; after [`Self::sync_done`].
    pub fn note_written(&self) {
        for entry in self.tops.read().values() {
            entry.top.lock().passes.note_written();
        }
    }

    /// Takes free space of a vdev from offset `from` on that may be written over or discarded:
    /// about `bytes_max`, less where little is free.
    pub async fn hold_free(
        &self,
        txg: Txg,
        vdev: VdevId,
        from: u64,
        bytes_max: u64,
    ) -> FreeHoldResult {
        let Some(entry) = self.entry(vdev) else {
            return FreeHoldResult::End;
        };
        let id = self.pass_ids.fetch_add(1, Ordering::Relaxed);
        loop {
            let mut loads = pin!(self.loads.notified());
            loads.as_mut().enable();
            let attempt = entry.top.lock().hold_free(id, from, bytes_max);
            match attempt {
                Attempt::Held {
                    metaslab,
                    ranges,
                    next,
                } => {
                    return FreeHoldResult::Held(FreeHold {
                        entry,
                        loads: self.loads.clone(),
                        metaslab,
                        id,
                        ranges,
                        next,
                        is_done: false,
                    });
                }
                Attempt::Load(index) => self.load(txg, &entry, index, false).await,
                Attempt::Wait => loads.await,
                Attempt::Busy => return FreeHoldResult::Busy,
                Attempt::End => return FreeHoldResult::End,
            }
        }
    }
}
