//! The metaslabs of one top-level vdev: choosing among them, and bookkeeping per txg.

use std::collections::BTreeSet;

use format::Txg;

use super::metaslab::{Loaded, Metaslab, txg_slot};
use super::pass::Passes;
use super::space::{TopSpace, deflate, fragmentation};
use super::trim::{TrimQueue, hold_budget};
use super::{COPIES_MAX, DEFER_TXGS, MetaslabChange, TopSpec};
use vdev::RangeSet;

/// Txgs after which an unused metaslab's free ranges are dropped from memory
/// (`metaslab_unload_delay`).
const UNLOAD_AFTER_TXGS: u64 = 32;
/// Fewer metaslabs than this are never dropped.
const LOADED_MIN: usize = 16;

/// What an attempt to allocate came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Attempt {
    /// Space at this offset.
    Done(u64),
    /// This metaslab must be loaded first; the caller does it (it is marked as loading).
    Load(usize),
    /// Somebody is loading a metaslab that may have room, or trimming holds space.
    Wait,
    /// No room.
    Full,
}

#[derive(Debug)]
pub(super) struct Top {
    pub(super) spec: TopSpec,
    metaslabs: Vec<Metaslab>,
    /// (inverted weight, index): the best first.
    order: BTreeSet<(u64, usize)>,
    /// The metaslab that first, second and third copies come from.
    active: [Option<usize>; COPIES_MAX],
    /// Metaslabs with changes under way.
    dirty: BTreeSet<usize>,
    loaded: usize,
    /// How often something was allocated or claimed.
    pub(super) taken: u64,
    /// Sum of the metaslabs' lengths.
    size_bytes: u64,
    pending_bytes: u64,
    /// Sum of the metaslabs' `recorded_bytes`.
    recorded_bytes: u64,
    /// Sum of the metaslabs' deferred bytes.
    deferred_bytes: u64,
    /// While trimming is on.
    trim: Option<Box<TrimQueue>>,
    /// The metaslab of which trimming holds space.
    held_in: Option<usize>,
    /// What passes over free space hold of it.
    pub(super) passes: Passes,
}

impl Top {
    pub(super) fn new(spec: TopSpec) -> Self {
        let mut top = Top {
            spec,
            metaslabs: Vec::new(),
            order: BTreeSet::new(),
            active: [None; COPIES_MAX],
            dirty: BTreeSet::new(),
            loaded: 0,
            taken: 0,
            size_bytes: 0,
            pending_bytes: 0,
            recorded_bytes: 0,
            deferred_bytes: 0,
            trim: None,
            held_in: None,
            passes: Passes::default(),
        };
        let count = top.spec.metaslab_count;
        top.grow(count);
        top
    }

    pub(super) fn grow(&mut self, count: u64) {
        for index in self.metaslabs.len()..count as usize {
            let span = self
                .spec
                .geometry
                .metaslab(index as u64, self.spec.metaslab_shift);
            let length = span.end - span.start;
            self.size_bytes += length;
            let mut metaslab = Metaslab::new(span.start, length);
            metaslab.weight = metaslab.compute_weight();
            self.order.insert((!metaslab.weight, index));
            self.metaslabs.push(metaslab);
        }
        self.spec.metaslab_count = self.metaslabs.len() as u64;
    }

    /// Bytes that are allocated as recorded, without what is freed and was not handed out.
    pub(super) fn remaining_bytes(&self) -> u64 {
        let of_metaslab = |metaslab: &Metaslab| {
            let freeing: u64 = metaslab.freeing.iter().map(RangeSet::space).sum();
            let recorded = metaslab.recorded_bytes;
            recorded
                .saturating_add_signed(metaslab.delta_bytes)
                .saturating_sub(freeing)
        };
        self.metaslabs.iter().map(of_metaslab).sum()
    }

    /// Bytes that it takes in memory, roughly; without what waits to be trimmed, of which there is
    /// little.
    pub(super) fn memory_bytes(&self) -> u64 {
        self.metaslabs.iter().map(Metaslab::memory_bytes).sum()
    }

    pub(super) fn metaslab_mut(&mut self, index: usize) -> Option<&mut Metaslab> {
        self.metaslabs.get_mut(index)
    }

    pub(super) fn metaslab(&self, index: usize) -> Option<&Metaslab> {
        self.metaslabs.get(index)
    }

    /// Index of the metaslab that the whole range lies in.
    pub(super) fn index_of(&self, start: u64, length: u64) -> Option<usize> {
        let index = usize::try_from(start >> self.spec.metaslab_shift).ok()?;
        let metaslab = self.metaslabs.get(index)?;
        let end = start.checked_add(length)?;
        let inside = start >= metaslab.start && end <= metaslab.start + metaslab.length;
        (length > 0 && inside).then_some(index)
    }

    pub(super) fn reweigh(&mut self, index: usize) {
        let metaslab = &mut self.metaslabs[index];
        let weight = metaslab.compute_weight();
        if weight != metaslab.weight {
            self.order.remove(&(!metaslab.weight, index));
            metaslab.weight = weight;
            self.order.insert((!weight, index));
        }
    }

    pub(super) fn set_recorded(
        &mut self,
        index: usize,
        allocated_bytes: u64,
        histogram: Option<[u64; 64]>,
    ) {
        let Some(metaslab) = self.metaslabs.get_mut(index) else {
            return;
        };
        self.recorded_bytes = self.recorded_bytes - metaslab.recorded_bytes + allocated_bytes;
        metaslab.recorded_bytes = allocated_bytes;
        metaslab.recorded_histogram = histogram.map(Box::new);
        self.reweigh(index);
    }

    /// Bytes that could be allocated now, roughly.
    pub(super) fn free_bytes(&self) -> u64 {
        self.size_bytes
            .saturating_sub(self.recorded_bytes)
            .saturating_sub(self.pending_bytes)
            .saturating_sub(self.deferred_bytes)
    }

    /// Tries to allocate `asize` bytes for copy number `copy`, at least `distance` away from the
    /// places in `avoid`.
    pub(super) fn allocate(
        &mut self,
        txg: Txg,
        asize: u64,
        copy: usize,
        avoid: &[u64],
        distance: u64,
    ) -> Attempt {
        if let Some(index) = self.active[copy]
            && self.is_far(index, avoid, distance)
        {
            if let Some(start) = self.take(index, txg, asize) {
                return Attempt::Done(start);
            }
            self.active[copy] = None;
            self.reweigh(index);
        }
        let mut waiting = false;
        let mut after = None;
        loop {
            // Weights change while we look: each turn takes the next best after the last one seen.
            let next = match after {
                None => self.order.first().copied(),
                Some(key) => self
                    .order
                    .range((std::ops::Bound::Excluded(key), std::ops::Bound::Unbounded))
                    .next()
                    .copied(),
            };
            let Some(key) = next else { break };
            after = Some(key);
            let (inverted, index) = key;
            if Metaslab::longest_of_weight(!inverted) < asize {
                break;
            }
            if !self.is_far(index, avoid, distance) || self.is_active_for_other(index, copy) {
                continue;
            }
            match &mut self.metaslabs[index].loaded {
                Loaded::Yes(_) => {
                    if let Some(start) = self.take(index, txg, asize) {
                        self.active[copy] = Some(index);
                        return Attempt::Done(start);
                    }
                    self.reweigh(index);
                }
                state @ Loaded::No => {
                    *state = Loaded::Loading;
                    return Attempt::Load(index);
                }
                Loaded::Loading => waiting = true,
                Loaded::Broken => {}
            }
        }
        // Last resort: what other copies are allocated from.
        for other in 0..COPIES_MAX {
            if let Some(index) = self.active[other]
                && other != copy
                && self.is_far(index, avoid, distance)
                && let Some(start) = self.take(index, txg, asize)
            {
                return Attempt::Done(start);
            }
        }
        // What trimming or initializing holds may be what is missing here: never fail for it.
        let held: Vec<usize> = self.held_in.into_iter().chain(self.passes.held()).collect();
        if held
            .into_iter()
            .any(|index| self.is_far(index, avoid, distance))
        {
            waiting = true;
            self.passes.note_wait();
            if let Some(queue) = &mut self.trim {
                queue.pause(txg);
            }
        }
        if waiting {
            Attempt::Wait
        } else {
            Attempt::Full
        }
    }

    fn is_active_for_other(&self, index: usize, copy: usize) -> bool {
        self.active
            .iter()
            .enumerate()
            .any(|(other, active)| other != copy && *active == Some(index))
    }

    fn is_far(&self, index: usize, avoid: &[u64], distance: u64) -> bool {
        let start = self.metaslabs[index].start;
        avoid.iter().all(|other| {
            let other_start = other >> self.spec.metaslab_shift << self.spec.metaslab_shift;
            start.abs_diff(other_start) >= distance
        })
    }

    fn take(&mut self, index: usize, txg: Txg, asize: u64) -> Option<u64> {
        let metaslab = &mut self.metaslabs[index];
        let length = metaslab.length;
        let start = metaslab.free_map_mut()?.allocate(asize, length)?;
        let new = metaslab.allocating[txg_slot(txg)].add(start, asize);
        assert_eq!(
            new, asize,
            "free space cannot be under allocation at the same time"
        );
        metaslab.used = metaslab.used.max(txg);
        self.taken += 1;
        self.pending_bytes += asize;
        self.dirty.insert(index);
        self.forget_trim(start, asize);
        Some(start)
    }

    /// Takes back an allocation of this txg that nobody was told of.
    pub(super) fn unallocate(&mut self, txg: Txg, start: u64, length: u64) {
        let Some(index) = self.index_of(start, length) else {
            return;
        };
        let metaslab = &mut self.metaslabs[index];
        let was = metaslab.allocating[txg_slot(txg)].remove(start, length);
        assert_eq!(was, length, "only what was just allocated is taken back");
        self.pending_bytes -= length;
        if let Some(map) = metaslab.free_map_mut() {
            map.add(start, length);
        }
        self.reweigh(index);
    }

    /// Marks a range as free from the end of `txg` on. Tells what is wrong with it, if anything.
    pub(super) fn free(&mut self, txg: Txg, start: u64, length: u64) -> Result<(), &'static str> {
        let index = self
            .index_of(start, length)
            .ok_or("not within a metaslab")?;
        let metaslab = &mut self.metaslabs[index];
        metaslab.check_allocated(start, length)?;
        let slot = txg_slot(txg);
        let fresh: Vec<_> = metaslab.allocating[slot]
            .intersection(start, length)
            .collect();
        metaslab.freeing[slot].add(start, length);
        for range in fresh {
            let part = range.end - range.start;
            metaslab.allocating[slot].remove(range.start, part);
            metaslab.freeing[slot].remove(range.start, part);
            metaslab.freed.add(range.start, part);
            self.pending_bytes = self.pending_bytes.saturating_sub(part);
        }
        metaslab.used = metaslab.used.max(txg);
        self.dirty.insert(index);
        Ok(())
    }

    /// Notes a range that was freed in `txg` but belongs to the checkpoint. Tells what is wrong
    /// with it, if anything.
    pub(super) fn keep(&mut self, txg: Txg, start: u64, length: u64) -> Result<(), &'static str> {
        let index = self
            .index_of(start, length)
            .ok_or("not within a metaslab")?;
        let metaslab = &mut self.metaslabs[index];
        metaslab.check_allocated(start, length)?;
        let set = &mut metaslab.keeping[txg_slot(txg)];
        if set.overlaps(start, length) {
            return Err("freed already");
        }
        set.add(start, length);
        self.dirty.insert(index);
        Ok(())
    }

    /// Marks free space of a loaded metaslab as allocated by `txg`.
    pub(super) fn claim(&mut self, txg: Txg, start: u64, length: u64) -> Result<(), &'static str> {
        let index = self
            .index_of(start, length)
            .ok_or("not within a metaslab")?;
        let metaslab = &mut self.metaslabs[index];
        let Some(map) = metaslab.free_map_mut() else {
            return Err("in a metaslab that cannot be loaded");
        };
        if !map.ranges().contains(start, length) {
            return Err("allocated already");
        }
        map.remove(start, length);
        metaslab.allocating[txg_slot(txg)].add(start, length);
        metaslab.used = metaslab.used.max(txg);
        self.taken += 1;
        self.pending_bytes += length;
        self.dirty.insert(index);
        self.forget_trim(start, length);
        Ok(())
    }

    pub(super) fn set_trimming(&mut self, on: bool) {
        match on {
            true => drop(self.trim.get_or_insert_default()),
            // What is held comes back when its discards are done.
            false => self.trim = None,
        }
    }

    pub(super) fn trim_queue(&mut self) -> Option<&mut TrimQueue> {
        self.trim.as_deref_mut()
    }

    fn forget_trim(&mut self, start: u64, length: u64) {
        if let Some(queue) = &mut self.trim {
            queue.forget(start, length);
        }
    }

    /// Takes free space of one metaslab out of everybody's reach, to have it discarded: the
    /// metaslab and the ranges.
    pub(super) fn hold_for_trim(&mut self) -> Option<(usize, RangeSet)> {
        let unit_bytes = self.spec.geometry.asize(1);
        let budget = hold_budget(self.free_bytes(), self.size_bytes, unit_bytes);
        let queue = self.trim.as_mut()?;
        if budget == 0 || !queue.is_ready() || self.held_in.is_some() {
            return None;
        }
        loop {
            let index = (queue.first()? >> self.spec.metaslab_shift) as usize;
            let metaslab = self.metaslabs.get_mut(index)?;
            let ranges = queue.take(metaslab.start + metaslab.length, budget);
            let held = metaslab.hold(&ranges);
            if !held.is_empty() {
                self.held_in = Some(index);
                self.reweigh(index);
                return Some((index, held));
            }
            if ranges.is_empty() && queue.first()? < metaslab.start + metaslab.length {
                // Less is left of the budget than is worth anything.
                return None;
            }
        }
    }

    /// Gives back what was held of a metaslab; without `ranges`, nobody knows whether it may be
    /// used.
    pub(super) fn release(&mut self, index: usize, ranges: Option<&RangeSet>) {
        self.held_in = None;
        if let Some(ranges) = ranges
            && let Some(metaslab) = self.metaslabs.get_mut(index)
        {
            metaslab.release(ranges);
            self.reweigh(index);
        }
    }

    pub(super) fn finish_load(&mut self, index: usize, free: Option<RangeSet>, txg: Txg) {
        let Some(metaslab) = self.metaslabs.get_mut(index) else {
            return;
        };
        let is_outdated = std::mem::take(&mut metaslab.is_outdated);
        match free {
            // Another space map is to be read.
            _ if is_outdated => metaslab.loaded = Loaded::No,
            Some(free) => {
                metaslab.finish_load(free);
                metaslab.used = metaslab.used.max(txg);
                self.loaded += 1;
            }
            None => metaslab.loaded = Loaded::Broken,
        }
        self.reweigh(index);
    }

    /// Whether a metaslab could not be loaded.
    pub(super) fn has_broken(&self) -> bool {
        let is_broken = |metaslab: &Metaslab| matches!(metaslab.loaded, Loaded::Broken);
        self.metaslabs.iter().any(is_broken)
    }

    /// Back to "not loaded" of those that could not be: the next who needs them tries again.
    pub(super) fn retry_broken(&mut self) {
        for index in 0..self.metaslabs.len() {
            let metaslab = &mut self.metaslabs[index];
            if matches!(metaslab.loaded, Loaded::Broken) {
                metaslab.loaded = Loaded::No;
                self.reweigh(index);
            }
        }
    }

    /// Back to "not loaded" when the load was given up (its future was dropped).
    pub(super) fn abort_load(&mut self, index: usize) {
        if let Some(metaslab) = self.metaslabs.get_mut(index)
            && matches!(metaslab.loaded, Loaded::Loading)
        {
            metaslab.loaded = Loaded::No;
            metaslab.is_outdated = false;
        }
    }

    /// A metaslab's space map is lost and begins anew: tells what it may call free (`known` among
    /// it).
    pub(super) fn begin_anew(&mut self, index: usize, known: &RangeSet) -> RangeSet {
        let Some(metaslab) = self.metaslabs.get_mut(index) else {
            return known.clone();
        };
        let mut free = metaslab.known_free();
        let (start, length) = (metaslab.start, metaslab.length);
        let is_loaded = metaslab.free_map().is_some();
        if !is_loaded {
            free.add_all(known);
        }
        metaslab.begin_anew(&free);
        if !is_loaded {
            // It takes for granted that what it has is free.
            self.forget_trim(start, length);
        }
        self.recorded_bytes = self.metaslabs.iter().map(|m| m.recorded_bytes).sum();
        self.reweigh(index);
        free
    }

    pub(super) fn take_changes(&mut self, txg: Txg, out: &mut Vec<MetaslabChange>) {
        for &index in &self.dirty {
            let metaslab = &mut self.metaslabs[index];
            let (allocated, freed) = metaslab.take_changes(txg);
            let kept = metaslab.keeping[txg_slot(txg)].take();
            if !allocated.is_empty() || !freed.is_empty() || !kept.is_empty() {
                out.push(MetaslabChange {
                    vdev: self.spec.vdev,
                    metaslab: index as u64,
                    allocated,
                    freed,
                    kept,
                });
            }
        }
    }

    /// `txg` is on disk.
    pub(super) fn sync_done(&mut self, txg: Txg, defer: bool) {
        let dirty = std::mem::take(&mut self.dirty);
        let mut pending = 0;
        for index in dirty {
            let metaslab = &mut self.metaslabs[index];
            let (ready, at_once) = metaslab.sync_done(txg, defer);
            if let Some(queue) = &mut self.trim {
                queue.collect(&ready, Txg::new(txg.get().saturating_sub(DEFER_TXGS)));
            }
            self.passes.came_free(ready);
            self.passes.came_free(at_once);
            if metaslab.is_dirty() {
                pending += metaslab.allocating.iter().map(RangeSet::space).sum::<u64>();
                self.dirty.insert(index);
            }
            self.reweigh(index);
        }
        self.pending_bytes = pending;
        self.recorded_bytes = self.metaslabs.iter().map(|m| m.recorded_bytes).sum();
        self.deferred_bytes = self.metaslabs.iter().map(Metaslab::deferred_bytes).sum();
        self.unload_idle(txg);
    }

    fn unload_idle(&mut self, txg: Txg) {
        for index in 0..self.metaslabs.len() {
            if self.loaded <= LOADED_MIN {
                return;
            }
            if self.metaslabs[index].used.get() + UNLOAD_AFTER_TXGS < txg.get() {
                self.unload(index);
            }
        }
    }

    /// Drops a metaslab's free ranges from memory, if nothing is under way there and many are
    /// loaded.
    pub(super) fn unload(&mut self, index: usize) {
        let Some(metaslab) = self.metaslabs.get_mut(index) else {
            return;
        };
        if self.loaded <= LOADED_MIN
            || metaslab.is_dirty()
            || self.active.contains(&Some(index))
            || metaslab.has_held()
        {
            return;
        }
        if let Loaded::Yes(map) = &metaslab.loaded {
            metaslab.recorded_histogram = Some(Box::new(map.ranges().histogram()));
            metaslab.loaded = Loaded::No;
            self.loaded -= 1;
            self.reweigh(index);
        }
    }

    /// Space, without fragmentation.
    pub(super) fn space(&self) -> TopSpace {
        let size = self.size_bytes;
        let ratio = self.spec.deflate_ratio;
        let allocated = self.recorded_bytes + self.deferred_bytes;
        TopSpace {
            vdev: self.spec.vdev,
            class: self.spec.class,
            size_bytes: size,
            allocated_bytes: allocated,
            deferred_bytes: self.deferred_bytes,
            pending_bytes: self.pending_bytes,
            size_deflated_bytes: deflate(size, ratio),
            allocated_deflated_bytes: deflate(allocated, ratio),
            deferred_deflated_bytes: deflate(self.deferred_bytes, ratio),
            fragmentation_percent: None,
        }
    }

    /// Mean fragmentation of the metaslabs that it is known of (`metaslab_group_fragmentation`).
    pub(super) fn fragmentation(&self) -> Option<u64> {
        let (mut weighted, mut known) = (0, 0);
        for metaslab in &self.metaslabs {
            let percent = match metaslab.histogram() {
                Some(histogram) => fragmentation(&histogram),
                None if metaslab.recorded_bytes == 0 => Some(0),
                None => None,
            };
            if let Some(percent) = percent {
                weighted += percent;
                known += 1;
            }
        }
        (known > 0).then(|| weighted / known)
    }
}
