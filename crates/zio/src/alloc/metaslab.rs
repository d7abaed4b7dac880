//! One metaslab in memory: its free space when loaded, and what txgs in flight did to it.
//!
//! ```text
//!  allocatable --allocate--> allocating[txg] --take_changes--> (recorded as allocated)
//!      ^                                                                |
//!      |                                                               free
//!      |                                                                v
//!   defer[2] <--sync_done-- freed <--take_changes-- freeing[txg]  (recorded as free)
//! ```
//!
//! A free of what was allocated in the same txg and not yet handed out by `take_changes` goes from
//! `allocating` straight to `freed`: the space maps never hear of it, and it is reused no sooner
//! than any other freed space.
//!
//! What an unloaded metaslab's space map says may be read while changes are handed out. Therefore
//! changes handed out since the last txg that synced are kept (`log`), and applied again, in order,
//! to what was read: applying a change twice is harmless as long as all later ones follow.

use std::collections::{BTreeMap, VecDeque};

use format::Txg;

use super::free_map::FreeMap;
use super::{DEFER_TXGS, Range};
use vdev::RangeSet;

/// Txgs that may have unsynced changes at the same time, as a power of two (`TXG_SIZE`).
pub(super) const TXG_SLOTS: usize = 4;

pub(super) fn txg_slot(txg: Txg) -> usize {
    (txg.get() as usize) & (TXG_SLOTS - 1)
}

/// Ranges that a pass over free space holds at the same time.
const SHARED_RANGES_MAX: usize = 4096;

/// Whether the free ranges are in memory.
#[derive(Debug)]
pub(super) enum Loaded {
    /// Never asked for, or dropped again.
    No,
    /// Being read.
    Loading,
    /// In memory.
    Yes(Box<FreeMap>),
    /// Cannot be read: nothing is allocated from it.
    Broken,
}

#[derive(Debug)]
pub(super) struct Logged {
    txg: Txg,
    allocated: bool,
    range: Range,
}

/// A metaslab.
#[derive(Debug)]
pub(super) struct Metaslab {
    pub(super) start: u64,
    pub(super) length: u64,
    pub(super) loaded: Loaded,
    /// Allocated bytes as recorded, after the last `sync_done`.
    pub(super) recorded_bytes: u64,
    /// Change of `recorded_bytes` in the txg being synced.
    pub(super) delta_bytes: i64,
    pub(super) allocating: [RangeSet; TXG_SLOTS],
    pub(super) freeing: [RangeSet; TXG_SLOTS],
    pub(super) freed: RangeSet,
    /// Freed, but the checkpoint's; not yet handed out.
    pub(super) keeping: [RangeSet; TXG_SLOTS],
    pub(super) defer: [RangeSet; DEFER_TXGS as usize],
    /// Free, and in nobody's reach while it is discarded or initialized (`metaslab_disable`).
    held: RangeSet,
    /// Of that, what each pass over free space holds; several may hold the same.
    shared: BTreeMap<u64, RangeSet>,
    log: VecDeque<Logged>,
    /// The space map that is being read is not the metaslab's any more.
    pub(super) is_outdated: bool,
    /// Free runs by log2 of their length, from the space map; used while not loaded.
    pub(super) recorded_histogram: Option<Box<[u64; 64]>>,
    /// Last txg that allocated or freed here.
    pub(super) used: Txg,
    /// Current key in the top's order.
    pub(super) weight: u64,
}

impl Metaslab {
    pub(super) fn new(start: u64, length: u64) -> Self {
        Metaslab {
            start,
            length,
            loaded: Loaded::No,
            recorded_bytes: 0,
            delta_bytes: 0,
            allocating: Default::default(),
            freeing: Default::default(),
            freed: RangeSet::new(),
            keeping: Default::default(),
            defer: Default::default(),
            held: RangeSet::new(),
            shared: BTreeMap::new(),
            log: VecDeque::new(),
            is_outdated: false,
            recorded_histogram: None,
            used: Txg::ZERO,
            weight: 0,
        }
    }

    /// Bytes that it takes in memory, roughly.
    pub(super) fn memory_bytes(&self) -> u64 {
        let by_txg = [&self.allocating, &self.freeing, &self.keeping];
        let sets = by_txg.into_iter().flatten().chain(&self.defer);
        let sets = sets.chain([&self.freed, &self.held]);
        let sets = sets.chain(self.shared.values());
        let logged = self.log.len() * size_of::<Logged>();
        size_of::<Self>() as u64
            + self.free_map().map_or(0, FreeMap::memory_bytes)
            + sets.map(RangeSet::memory_bytes).sum::<u64>()
            + logged as u64
    }

    pub(super) fn free_map(&self) -> Option<&FreeMap> {
        match &self.loaded {
            Loaded::Yes(map) => Some(map),
            _ => None,
        }
    }

    pub(super) fn free_map_mut(&mut self) -> Option<&mut FreeMap> {
        match &mut self.loaded {
            Loaded::Yes(map) => Some(map),
            _ => None,
        }
    }

    /// The records say from now on that `free` is free and nothing else.
    pub(super) fn begin_anew(&mut self, free: &RangeSet) {
        let allocated = self.length.saturating_sub(free.space());
        self.recorded_bytes = allocated.saturating_add_signed(-self.delta_bytes);
        match self.loaded {
            Loaded::Yes(_) => return,
            Loaded::Loading => self.is_outdated = true,
            Loaded::No | Loaded::Broken => self.loaded = Loaded::No,
        }
        // The new records have all changes that were handed out. What these say to be free may be
        // allocated in them, and would be allocated once more.
        self.log.clear();
        self.recorded_histogram = Some(Box::new(free.histogram()));
    }

    pub(super) fn deferred_bytes(&self) -> u64 {
        self.defer.iter().map(RangeSet::space).sum()
    }

    /// Whether anything is under way that a later `take_changes` or `sync_done` must look at.
    pub(super) fn is_dirty(&self) -> bool {
        self.delta_bytes != 0
            || !self.log.is_empty()
            || !self.freed.is_empty()
            || self.allocating.iter().any(|set| !set.is_empty())
            || self.freeing.iter().any(|set| !set.is_empty())
            || self.keeping.iter().any(|set| !set.is_empty())
            || self.defer.iter().any(|set| !set.is_empty())
    }

    /// Tells what is wrong with freeing a range, as far as that is known.
    pub(super) fn check_allocated(&self, start: u64, length: u64) -> Result<(), &'static str> {
        let overlaps = |sets: &[RangeSet]| sets.iter().any(|set| set.overlaps(start, length));
        let is_free = self
            .free_map()
            .is_some_and(|map| map.ranges().overlaps(start, length));
        if is_free || self.held.overlaps(start, length) {
            return Err("free already");
        }
        if self.freed.overlaps(start, length) || overlaps(&self.freeing) || overlaps(&self.defer) {
            return Err("freed already");
        }
        Ok(())
    }

    /// Bytes that can be allocated now (an estimate while not loaded).
    pub(super) fn free_bytes(&self) -> u64 {
        match &self.loaded {
            Loaded::Yes(map) => map.space(),
            Loaded::Broken => 0,
            Loaded::No | Loaded::Loading => self.length.saturating_sub(
                self.recorded_bytes
                    .saturating_add_signed(self.delta_bytes)
                    .saturating_add(self.freed.space())
                    .saturating_add(self.deferred_bytes()),
            ),
        }
    }

    /// Order of choice: the size class of the longest free run (or of the best guess at it), then
    /// how many such runs there are (`metaslab_segment_weight`, module/zfs/metaslab.c).
    pub(super) fn compute_weight(&self) -> u64 {
        let (log2, count) = match &self.loaded {
            Loaded::Broken => return 0,
            Loaded::Yes(map) => match map.longest() {
                0 => return 0,
                longest => (longest.ilog2(), map.runs(longest.ilog2())),
            },
            Loaded::No | Loaded::Loading => {
                let free = self.free_bytes();
                if free == 0 {
                    return 0;
                }
                let best = self.recorded_histogram.as_ref().and_then(|histogram| {
                    let log2 = histogram.iter().rposition(|count| *count > 0)?;
                    Some((log2 as u32, histogram[log2]))
                });
                // A guess never says more than is free.
                match best {
                    Some((log2, count)) if log2 <= free.ilog2() => (log2, count),
                    _ => (free.ilog2(), 1),
                }
            }
        };
        (u64::from(log2) << 48) | count.min((1 << 48) - 1)
    }

    /// The longest run that a metaslab of this weight can hold.
    pub(super) fn longest_of_weight(weight: u64) -> u64 {
        if weight == 0 {
            return 0;
        }
        let log2 = (weight >> 48) as u32;
        u64::MAX.checked_shr(63 - log2.min(63)).unwrap_or(u64::MAX)
    }

    /// Takes over what the space map says is free.
    pub(super) fn finish_load(&mut self, mut free: RangeSet) {
        for change in &self.log {
            let length = change.range.end - change.range.start;
            if change.allocated {
                free.remove(change.range.start, length);
            } else {
                free.add(change.range.start, length);
            }
        }
        free.remove_all(&self.freed);
        self.defer.iter().for_each(|set| free.remove_all(set));
        // Nothing is allocated from a metaslab that is not loaded, but a claim may come back to one
        // that was dropped.
        self.allocating.iter().for_each(|set| free.remove_all(set));
        free.remove_all(&self.held);
        self.log.clear();
        self.recorded_histogram = None;
        self.loaded = Loaded::Yes(Box::new(FreeMap::new(&free)));
    }

    /// Hands out what changed in `txg`: (allocated, freed).
    pub(super) fn take_changes(&mut self, txg: Txg) -> (RangeSet, RangeSet) {
        let slot = txg_slot(txg);
        let allocated = self.allocating[slot].take();
        let freed = self.freeing[slot].take();
        self.freed.add_all(&freed);
        self.delta_bytes += allocated.space() as i64 - freed.space() as i64;
        if !matches!(self.loaded, Loaded::Yes(_)) {
            for (set, is_allocated) in [(&allocated, true), (&freed, false)] {
                self.log.extend(set.ranges().map(|range| Logged {
                    txg,
                    allocated: is_allocated,
                    range,
                }));
            }
        }
        (allocated, freed)
    }

    /// `txg` is on disk: what it freed waits `DEFER_TXGS` more (unless `defer` is off, when space
    /// is short), and what waited that long can be used again. Returns the latter, and what did not
    /// wait.
    pub(super) fn sync_done(&mut self, txg: Txg, defer: bool) -> (RangeSet, RangeSet) {
        self.recorded_bytes = self.recorded_bytes.saturating_add_signed(self.delta_bytes);
        self.delta_bytes = 0;
        let slot = (txg.get() % DEFER_TXGS) as usize;
        let ready = self.defer[slot].take();
        let at_once = match defer {
            true => {
                self.defer[slot] = self.freed.take();
                RangeSet::new()
            }
            false => self.freed.take(),
        };
        match &mut self.loaded {
            Loaded::Yes(map) => {
                for (start, length) in ready.iter().chain(at_once.iter()) {
                    map.add(start, length);
                }
            }
            Loaded::Loading => {}
            Loaded::No | Loaded::Broken => self.log.retain(|change| change.txg > txg),
        }
        (ready, at_once)
    }

    /// Takes ranges that are free out of reach; returns those that it took. While the free ranges
    /// are not in memory, nothing can be allocated, and what is held is left out when they come.
    /// What a pass over free space holds is left to it.
    pub(super) fn hold(&mut self, ranges: &RangeSet) -> RangeSet {
        let mut out = RangeSet::new();
        for (start, length) in ranges.iter() {
            if self.held.overlaps(start, length) {
                continue;
            }
            let is_free = match &self.loaded {
                Loaded::Yes(map) => map.ranges().contains(start, length),
                Loaded::No | Loaded::Loading => true,
                Loaded::Broken => false,
            };
            if !is_free {
                debug_assert!(
                    matches!(self.loaded, Loaded::Broken),
                    "what is allocated is not trimmed"
                );
                tracing::error!(start, length, "not trimmed: it is not free");
                continue;
            }
            if let Some(map) = self.free_map_mut() {
                map.remove(start, length);
            }
            self.held.add(start, length);
            out.add(start, length);
        }
        out
    }

    /// Gives back what was held.
    pub(super) fn release(&mut self, ranges: &RangeSet) {
        self.held.remove_all(ranges);
        if let Some(map) = self.free_map_mut() {
            for (start, length) in ranges.iter() {
                map.add(start, length);
            }
        }
    }

    /// Whether anything is held.
    pub(super) fn has_held(&self) -> bool {
        !self.held.is_empty()
    }

    /// Takes free ranges from `from` on out of reach for the pass `id`, also those that other
    /// passes hold: about `bytes_max` of them, in pieces of `unit_bytes`, and none of `recent`.
    /// Tells up to where it looked; what is free before that and not held was left out. `None`
    /// while the free ranges are not in memory.
    pub(super) fn hold_shared<'a>(
        &mut self,
        id: u64,
        from: u64,
        (bytes_max, unit_bytes): (u64, u64),
        recent: impl Iterator<Item = &'a RangeSet>,
    ) -> Option<u64> {
        let Loaded::Yes(map) = &mut self.loaded else {
            return None;
        };
        let end = self.start + self.length;
        let mut until = end;
        let mut ranges = RangeSet::new();
        for source in std::iter::once(map.ranges()).chain(self.shared.values()) {
            let (mut left, mut count) = (bytes_max.max(unit_bytes), 0);
            for range in source.from(from) {
                let start = range.start.max(from);
                if start >= until {
                    break;
                }
                let mut length = range.end - start;
                if length > left {
                    // What is left over begins where an allocation may.
                    length = (left / unit_bytes * unit_bytes).max(unit_bytes.min(length));
                }
                ranges.add(start, length);
                left = left.saturating_sub(length);
                count += 1;
                if left < unit_bytes || count >= SHARED_RANGES_MAX {
                    until = until.min(start + length);
                    break;
                }
            }
        }
        ranges.remove(until, end - until);
        for recent in recent {
            let parts: Vec<_> = recent.intersection(from, until - from).collect();
            for part in parts {
                ranges.remove(part.start, part.end - part.start);
            }
        }
        if !ranges.is_empty() {
            for (start, length) in ranges.iter() {
                map.remove(start, length);
            }
            self.held.add_all(&ranges);
            self.shared.insert(id, ranges);
        }
        Some(until)
    }

    /// What the pass `id` holds.
    pub(super) fn shared(&self, id: u64) -> Option<&RangeSet> {
        self.shared.get(&id)
    }

    /// Gives back what the pass `id` held and no other does.
    pub(super) fn release_shared(&mut self, id: u64) {
        let Some(mut own) = self.shared.remove(&id) else {
            return;
        };
        self.shared.values().for_each(|set| own.remove_all(set));
        self.release(&own);
    }

    /// What the space map will say is free, with all changes handed out so far.
    pub(super) fn recorded_free(&self) -> Option<RangeSet> {
        self.free_map().map(|_| self.known_free())
    }

    /// Of that, what is known here: all of it while the metaslab is loaded.
    pub(super) fn known_free(&self) -> RangeSet {
        let map = self.free_map().map(FreeMap::ranges);
        let sets = map.into_iter().chain([&self.held, &self.freed]);
        let mut all = RangeSet::new();
        // What is being allocated is not recorded yet: still free as far as the space map knows.
        for set in sets.chain(&self.defer).chain(&self.allocating) {
            all.add_all(set);
        }
        all
    }

    /// What was allocated in earlier txgs than the one that is being written, and is not free in it
    /// already; as long as that one's changes of this pass were not handed out. What it and later
    /// ones free is a part of it. `None` while the free ranges are not in memory.
    pub(super) fn settled(&self) -> Option<RangeSet> {
        let mut all = RangeSet::from_iter([(self.start, self.length)]);
        all.remove_all(self.free_map()?.ranges());
        all.remove_all(&self.held);
        all.remove_all(&self.freed);
        self.defer.iter().for_each(|set| all.remove_all(set));
        self.allocating.iter().for_each(|set| all.remove_all(set));
        Some(all)
    }

    /// [`Self::settled`] without what is freed and was not handed out.
    pub(super) fn remaining(&self) -> Option<RangeSet> {
        let mut all = self.settled()?;
        self.freeing.iter().for_each(|set| all.remove_all(set));
        Some(all)
    }

    /// What is not free for whoever allocates next; `None` while it is not loaded.
    pub(super) fn occupied(&self) -> Option<RangeSet> {
        let mut all = RangeSet::from_iter([(self.start, self.length)]);
        all.remove_all(self.free_map()?.ranges());
        Some(all)
    }

    /// Free runs by log2 of their length, including those that will be usable soon: what the space
    /// map's histogram would say (`space_map_histogram_add` with the defer trees).
    pub(super) fn histogram(&self) -> Option<[u64; 64]> {
        match &self.loaded {
            Loaded::Yes(map) => {
                if self.freed.is_empty()
                    && self.held.is_empty()
                    && self.defer.iter().all(RangeSet::is_empty)
                {
                    return Some(map.ranges().histogram());
                }
                let mut all = map.ranges().clone();
                all.add_all(&self.freed);
                all.add_all(&self.held);
                self.defer.iter().for_each(|set| all.add_all(set));
                Some(all.histogram())
            }
            _ => self.recorded_histogram.as_deref().copied(),
        }
    }
}
