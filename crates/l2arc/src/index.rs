//! Which blocks the cache devices hold, at 16 bytes each: a hash table without pointers, filled to
//! between two thirds and seven eighths, so that a block costs at most 24 bytes of memory.
//!
//! An entry has 48 bits of the hash of the block's place and birth, the sectors that the block
//! takes as stored, the device, and the *position* on it. A position counts sectors from the
//! device's first round on and never goes back: a ring that was written three times over is at
//! three times its length. So one number for each device tells which entries are still true (those
//! from there on), and nobody needs to find and remove the entries of what is overwritten: they are
//! passed over, and go when their slot is needed or their part of the table grows.
//!
//! Two blocks whose 48 bits are equal are taken for each other. Who reads verifies checksums, so
//! that is a lost hit and nothing else; with a billion blocks it is one read in ten million.
//!
//! The table is cut into shards, each with a lock of its own, which grow by a quarter, one at a
//! time. Its memory comes from somebody's limit ([`Memory`]). A shard that may not grow any more
//! forgets the oldest quarter of each device's blocks for new ones, so that what was written last
//! is found; of what was written before a restart it takes no more than fits. What there was no
//! memory for is counted. Where the limit shrinks, shards are
//! forgotten one after the other until the table fits: their blocks are on the device for nobody,
//! and come back when they are read from the pool again.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use format::{Dva, Txg};
use parking_lot::Mutex;

/// Parts of the table; a power of two.
const SHARDS: usize = 64;
const SHARD_BITS: u32 = SHARDS.ilog2();
/// Slots of a shard that holds something, at least.
const SLOTS_MIN: usize = 64;
/// Bits of a hash that an entry keeps.
const TAG_BITS: u32 = 48;
const POSITION_BITS: u32 = 56;
/// Devices at most, of one pool.
pub(crate) const DEVICES_MAX: usize = 256;
/// Bytes of a slot.
pub(crate) const SLOT_BYTES: u64 = 16;

/// A limit that the table's memory counts in. Its functions must not wait, and must not call the
/// table.
pub trait Memory: Send + Sync {
    /// Bytes that may be taken now.
    fn left_bytes(&self) -> u64;

    /// Takes up to so many bytes; returns how many.
    fn take(&self, bytes: u64) -> u64;

    /// Gives back so many of those that were taken.
    fn give_back(&self, bytes: u64);

    /// Whether more is taken than may be: the limit is lower than it was.
    fn is_over(&self) -> bool;
}

/// A block by its first place in the pool and the txg in which that was written, as a hash: equal
/// for equal blocks in each run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Hashed(u64);

impl Hashed {
    pub(crate) fn of(dva: Dva, birth: Txg) -> Self {
        let words = [
            u64::from(dva.vdev().get()),
            dva.offset_bytes() >> 9,
            birth.get(),
        ];
        let mut hash = 0x243f_6a88_85a3_08d3u64;
        for word in words {
            hash = (hash ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            hash ^= hash >> 32;
        }
        hash = hash.wrapping_mul(0xd6e8_feb8_6659_fd93);
        Self(hash ^ (hash >> 32))
    }

    fn shard(self) -> usize {
        (self.0 >> (64 - SHARD_BITS)) as usize
    }

    fn tag(self) -> u64 {
        (self.0 >> (64 - SHARD_BITS - TAG_BITS)) & ((1 << TAG_BITS) - 1)
    }
}

/// Where a block is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Found {
    /// Which device: its number in the table.
    pub(crate) device: u8,
    /// The position on it, in sectors.
    pub(crate) position: u64,
    /// Sectors that it takes as stored.
    pub(crate) sectors: u32,
}

#[derive(Debug, Clone, Copy, Default)]
struct Slot {
    /// Tag, and sectors less one.
    tag_and_size: u64,
    /// Device, and position plus one: zero is an empty slot.
    place: u64,
}

impl Slot {
    fn new(tag: u64, found: Found) -> Self {
        let size = u64::from(found.sectors.clamp(1, 1 << 16) - 1);
        Self {
            tag_and_size: tag << 16 | size,
            place: u64::from(found.device) << POSITION_BITS | (found.position + 1),
        }
    }

    fn is_empty(&self) -> bool {
        self.place == 0
    }

    fn tag(&self) -> u64 {
        self.tag_and_size >> 16
    }

    fn found(&self) -> Found {
        Found {
            device: (self.place >> POSITION_BITS) as u8,
            position: (self.place & ((1 << POSITION_BITS) - 1)) - 1,
            sectors: (self.tag_and_size & 0xffff) as u32 + 1,
        }
    }
}

/// From which position on entries of each device are true; `u64::MAX` without such a device.
struct Truth {
    from: [AtomicU64; DEVICES_MAX],
    /// How often it changed.
    changes: AtomicU64,
}

impl Truth {
    fn holds(&self, found: Found) -> bool {
        let from = self.from[usize::from(found.device)].load(Ordering::Acquire);
        found.position >= from
    }
}

#[derive(Debug, Default)]
struct Shard {
    slots: Vec<Slot>,
    used: usize,
    /// Changes of the truth when it was built.
    built_at: u64,
}

impl Shard {
    fn home(&self, tag: u64) -> usize {
        ((u128::from(tag) * self.slots.len() as u128) >> TAG_BITS) as usize
    }

    fn next(&self, at: usize) -> usize {
        if at + 1 == self.slots.len() {
            0
        } else {
            at + 1
        }
    }

    /// The slot with this tag, or the empty one where it would go.
    fn find(&self, tag: u64) -> Option<usize> {
        if self.slots.is_empty() {
            return None;
        }
        let mut at = self.home(tag);
        loop {
            let slot = &self.slots[at];
            if slot.is_empty() || slot.tag() == tag {
                return Some(at);
            }
            at = self.next(at);
        }
    }

    /// Empties a slot, and moves those behind it up that would not be found any more.
    fn remove(&mut self, mut hole: usize) {
        self.slots[hole] = Slot::default();
        self.used -= 1;
        let length = self.slots.len();
        let mut at = self.next(hole);
        while !self.slots[at].is_empty() {
            let home = self.home(self.slots[at].tag());
            // How far it is from its home, and from the hole.
            let from_home = (at + length - home) % length;
            let from_hole = (at + length - hole) % length;
            if from_home >= from_hole {
                self.slots[hole] = std::mem::take(&mut self.slots[at]);
                hole = at;
            }
            at = self.next(at);
        }
    }

    fn is_full(&self) -> bool {
        self.used >= self.slots.len() / 8 * 7
    }

    fn live(&self, truth: &Truth) -> usize {
        let slots = self.slots.iter();
        let live = slots.filter(|slot| !slot.is_empty() && truth.holds(slot.found()));
        live.count()
    }

    /// Forgets the oldest quarter of what each device has, and all that is not true; how many that
    /// are.
    fn forget_oldest(&mut self, truth: &Truth) -> usize {
        let mut by_device: BTreeMap<u8, Vec<u64>> = BTreeMap::new();
        let slots = self.slots.iter().filter(|slot| !slot.is_empty());
        for found in slots.map(Slot::found) {
            by_device
                .entry(found.device)
                .or_default()
                .push(found.position);
        }
        let oldest_kept: BTreeMap<u8, u64> = by_device
            .into_iter()
            .map(|(device, mut positions)| {
                // Of few there may be less than four.
                let at = (positions.len() / 4).max(1).min(positions.len() - 1);
                (device, *positions.select_nth_unstable(at).1)
            })
            .collect();
        let before = self.used;
        self.rebuild(self.slots.len(), |found| {
            truth.holds(found) && found.position >= oldest_kept[&found.device]
        });
        before - self.used
    }

    /// Builds it anew with what it `keeps`, in so many slots, which have room for that.
    fn rebuild(&mut self, length: usize, keeps: impl Fn(Found) -> bool) {
        let is_kept = |slot: &&Slot| !slot.is_empty() && keeps(slot.found());
        let old = std::mem::replace(&mut self.slots, vec![Slot::default(); length]);
        self.used = 0;
        for slot in old.iter().filter(is_kept) {
            if let Some(at) = self.find(slot.tag()) {
                self.slots[at] = *slot;
                self.used += 1;
            }
        }
    }
}

/// The table.
pub(crate) struct Index {
    shards: Box<[Mutex<Shard>]>,
    truth: Truth,
    memory: Arc<dyn Memory>,
    slots: AtomicU64,
    left_out: AtomicU64,
    /// The shard that is forgotten next.
    hand: AtomicUsize,
}

impl Index {
    /// A table whose memory is part of somebody's limit.
    pub(crate) fn new(memory: Arc<dyn Memory>) -> Self {
        Self {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            truth: Truth {
                from: std::array::from_fn(|_| AtomicU64::new(u64::MAX)),
                changes: AtomicU64::new(1),
            },
            memory,
            slots: AtomicU64::new(0),
            left_out: AtomicU64::new(0),
            hand: AtomicUsize::new(0),
        }
    }

    /// What the table takes, in bytes.
    pub(crate) fn size_bytes(&self) -> u64 {
        self.slots.load(Ordering::Relaxed) * SLOT_BYTES
    }

    /// Blocks that found no room, as often as they were to be noted, and such that made room.
    pub(crate) fn left_out(&self) -> u64 {
        self.left_out.load(Ordering::Relaxed)
    }

    /// Forgets shards until the table is no longer over its limit, or `is_enough` says so.
    pub(crate) fn give_back(&self, is_enough: &dyn Fn() -> bool) {
        for _ in 0..SHARDS {
            if !self.memory.is_over() || is_enough() {
                return;
            }
            let at = self.hand.fetch_add(1, Ordering::Relaxed) % SHARDS;
            let mut shard = self.shards[at].lock();
            let forgotten = std::mem::take(&mut *shard);
            self.resized(forgotten.slots.len(), 0);
        }
    }

    /// Counts a shard whose memory is taken already, or is given back here.
    fn resized(&self, before: usize, after: usize) {
        let (before, after) = (before as u64, after as u64);
        self.slots.fetch_add(after, Ordering::Relaxed);
        self.slots.fetch_sub(before, Ordering::Relaxed);
        let less_bytes = before.saturating_sub(after) * SLOT_BYTES;
        self.memory.give_back(less_bytes);
    }

    /// Builds a shard anew, with room for a quarter more than what is true if there is the memory
    /// for that, and where it `may_grow`.
    fn rebuild(&self, shard: &mut Shard, may_grow: bool) {
        let built_at = self.truth.changes.load(Ordering::Acquire);
        let before = shard.slots.len();
        let live = shard.live(&self.truth);
        let mut length = (live / 2 * 3).max(SLOTS_MIN);
        if length > before {
            let wanted_bytes = (length - before) as u64 * SLOT_BYTES;
            let taken_bytes = match may_grow {
                true => self.memory.take(wanted_bytes),
                false => 0,
            };
            self.memory.give_back(taken_bytes % SLOT_BYTES);
            length = before + (taken_bytes / SLOT_BYTES) as usize;
        }
        if length < SLOTS_MIN {
            self.memory.give_back((length - before) as u64 * SLOT_BYTES);
            return;
        }
        shard.rebuild(length, |found| self.truth.holds(found));
        shard.built_at = built_at;
        self.resized(before, length);
    }

    /// Entries of this device are true from this position on.
    pub(crate) fn set_truth(&self, device: u8, position: u64) {
        let before = self.truth.from[usize::from(device)].swap(position, Ordering::AcqRel);
        if before != position {
            self.truth.changes.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// Where the block is.
    pub(crate) fn find(&self, key: Hashed) -> Option<Found> {
        let shard = self.shards[key.shard()].lock();
        let slot = shard.slots.get(shard.find(key.tag())?)?;
        (!slot.is_empty())
            .then(|| slot.found())
            .filter(|found| self.truth.holds(*found))
    }

    /// Notes where a block is; `false` where there is no room for it. An entry that is true is
    /// replaced only with `replace`, and only then others make room.
    pub(crate) fn insert(&self, key: Hashed, found: Found, replace: bool) -> bool {
        let is_noted = self.note(key, found, replace);
        if !is_noted {
            self.left_out.fetch_add(1, Ordering::Relaxed);
        }
        is_noted
    }

    fn note(&self, key: Hashed, found: Found, replace: bool) -> bool {
        let mut shard = self.shards[key.shard()].lock();
        if shard.slots.is_empty() || shard.is_full() {
            let before = shard.slots.len() as u64;
            let left = self.memory.left_bytes() / SLOT_BYTES;
            // It is built anew even where it may not grow, if there is something that is no longer
            // true.
            let may_grow = left > before / 8 && before + left >= SLOTS_MIN as u64;
            let may_shrink = shard.built_at < self.truth.changes.load(Ordering::Acquire);
            if may_grow || may_shrink && before > 0 {
                self.rebuild(&mut shard, may_grow);
            }
            if shard.slots.is_empty() || shard.is_full() && !replace {
                return false;
            }
            if shard.is_full() {
                let forgotten = shard.forget_oldest(&self.truth);
                self.left_out.fetch_add(forgotten as u64, Ordering::Relaxed);
                if shard.is_full() {
                    return false;
                }
            }
        }
        let Some(at) = shard.find(key.tag()) else {
            return false;
        };
        let slot = shard.slots[at];
        if slot.is_empty() {
            shard.used += 1;
        } else if !replace && self.truth.holds(slot.found()) {
            return true;
        }
        shard.slots[at] = Slot::new(key.tag(), found);
        true
    }

    /// Forgets a block, if it is there.
    pub(crate) fn remove(&self, key: Hashed, found: Found) {
        let mut shard = self.shards[key.shard()].lock();
        if let Some(at) = shard.find(key.tag())
            && !shard.slots[at].is_empty()
            && shard.slots[at].found() == found
        {
            shard.remove(at);
        }
    }

    /// Drops what is no longer true, one shard after the other.
    pub(crate) fn sweep(&self) {
        for shard in &self.shards {
            let mut shard = shard.lock();
            if shard.slots.is_empty() {
                continue;
            }
            self.rebuild(&mut shard, false);
            if shard.used == 0 {
                let forgotten = std::mem::take(&mut *shard);
                self.resized(forgotten.slots.len(), 0);
            }
        }
    }

    /// How many blocks it names that are there.
    pub(crate) fn count(&self) -> u64 {
        let live = self
            .shards
            .iter()
            .map(|shard| shard.lock().live(&self.truth));
        live.sum::<usize>() as u64
    }
}

impl Drop for Index {
    fn drop(&mut self) {
        self.memory.give_back(self.size_bytes());
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use format::VdevId;

    use super::*;
    use crate::tests::Limit;

    fn key(number: u64) -> Hashed {
        let dva = Dva::new(VdevId::new(0), number * 4096, 4096, false).expect("it fits");
        Hashed::of(dva, Txg::new(7 + number % 3))
    }

    fn found(position: u64) -> Found {
        Found {
            device: (position % 3) as u8,
            position,
            sectors: 1 + (position % 65_536) as u32,
        }
    }

    fn index(limit_bytes: u64) -> Index {
        let index = Index::new(Limit::new(limit_bytes));
        (0..3).for_each(|device| index.set_truth(device, 0));
        index
    }

    #[test]
    fn a_block_costs_at_most_24_bytes() {
        let index = index(u64::MAX);
        let mut worst = 0.0f64;
        for number in 0..1_000_000 {
            assert!(index.insert(key(number), found(number), true));
            if number > 100_000 && number % 1000 == 0 {
                worst = worst.max(index.size_bytes() as f64 / number as f64);
            }
        }
        assert!(worst <= 24.5, "{worst} bytes");
        for number in 0..1_000_000 {
            assert_eq!(index.find(key(number)), Some(found(number)), "{number}");
        }
        let strangers = (1_000_000..2_000_000).filter(|number| index.find(key(*number)).is_some());
        assert_eq!(strangers.count(), 0);
    }

    #[test]
    fn it_says_what_a_model_says() {
        let index = index(u64::MAX);
        let mut model: HashMap<u64, u64> = HashMap::new();
        let mut state = 1u64;
        let mut random = |below: u64| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (state >> 33) % below
        };
        let mut truth = [0u64; 3];
        for position in 0..200_000 {
            let number = random(5000);
            match random(10) {
                0..6 => {
                    index.insert(key(number), found(position), true);
                    model.insert(number, position);
                }
                6..9 => {
                    let is_true = |at: &u64| *at >= truth[(*at % 3) as usize];
                    let expected = model.get(&number).copied().filter(is_true);
                    assert_eq!(index.find(key(number)), expected.map(found));
                    if let Some(at) = expected.filter(|_| random(2) == 0) {
                        index.remove(key(number), found(at));
                        model.remove(&number);
                    }
                }
                _ => {
                    let device = random(3) as usize;
                    truth[device] = position.saturating_sub(10_000).max(truth[device]);
                    index.set_truth(device as u8, truth[device]);
                }
            }
            if position % 50_000 == 49_999 {
                index.sweep();
            }
        }
        let is_true = |at: &&u64| **at >= truth[(**at % 3) as usize];
        assert_eq!(
            index.count() as usize,
            model.values().filter(is_true).count()
        );
    }

    #[test]
    fn what_does_not_fit_is_not_kept() {
        let index = index(1 << 20);
        let kept = (0..200_000).filter(|number| index.insert(key(*number), found(*number), false));
        let kept = kept.count();
        assert!((30_000..65_536).contains(&kept), "{kept}");
        assert!(index.size_bytes() <= 1 << 20);
        // What is overwritten makes room.
        (0..3).for_each(|device| index.set_truth(device, 300_000));
        for number in 300_000..320_000 {
            assert!(index.insert(key(number), found(number), true), "{number}");
        }
        assert!(index.size_bytes() <= 1 << 20);
        assert_eq!(index.count(), 20_000);
        (0..3).for_each(|device| index.set_truth(device, u64::MAX));
        index.sweep();
        assert_eq!((index.count(), index.size_bytes()), (0, 0));
    }

    #[test]
    fn the_newest_of_each_device_are_found_where_there_is_no_room_for_all() {
        let index = index(1 << 20);
        for number in 0..200_000 {
            assert!(index.insert(key(number), found(number), true), "{number}");
        }
        assert!(index.size_bytes() <= 1 << 20);
        let there = |number: &u64| index.find(key(*number)) == Some(found(*number));
        assert_eq!((170_000..200_000).filter(there).count(), 30_000);
        let count = (0..200_000).filter(there).count() as u64;
        assert_eq!((index.count(), index.left_out()), (count, 200_000 - count));
        // A device that is written less keeps what it has longer.
        for device in 0..3 {
            let is_of = |number: &u64| found(*number).device == device;
            let of_device = (0..200_000).filter(is_of).filter(there).count();
            assert!(of_device > 10_000, "{of_device} of {device}");
        }
    }

    #[test]
    fn it_gives_back_what_is_over_a_limit_that_shrank_and_all_of_it_in_the_end() {
        let limit = Limit::new(1 << 20);
        let index = Index::new(limit.clone());
        index.set_truth(0, 0);
        let at = |position| Found {
            device: 0,
            position,
            sectors: 8,
        };
        let noted = (0..200_000).filter(|number| index.insert(key(*number), at(*number), false));
        let noted = noted.count() as u64;
        assert_eq!(index.left_out(), 200_000 - noted);
        assert_eq!(index.count(), noted);
        assert_eq!(limit.taken_bytes(), index.size_bytes());
        // Nothing as long as it is within its limit, or others gave enough.
        index.give_back(&|| false);
        limit.set(1 << 19);
        index.give_back(&|| true);
        assert_eq!(index.count(), noted);
        index.give_back(&|| false);
        assert!(index.size_bytes() <= 1 << 19);
        assert!(index.size_bytes() > 7 << 16, "{}", index.size_bytes());
        assert_eq!(limit.taken_bytes(), index.size_bytes());
        // What is left is found, and what was forgotten is not kept again.
        let left = (0..200_000).filter(|number| index.find(key(*number)) == Some(at(*number)));
        assert_eq!(left.count() as u64, index.count());
        for number in 0..200_000 {
            index.insert(key(number), at(number), true);
        }
        assert!(index.size_bytes() <= 1 << 19);
        index.sweep();
        assert_eq!(limit.taken_bytes(), index.size_bytes());
        drop(index);
        assert_eq!(limit.taken_bytes(), 0);
    }

    #[test]
    fn the_older_of_two_is_kept_where_nothing_is_to_be_replaced() {
        let index = index(1 << 20);
        assert!(index.insert(key(1), found(100), false));
        assert!(index.insert(key(1), found(50), false));
        assert_eq!(index.find(key(1)), Some(found(100)));
        index.remove(key(1), found(50));
        assert_eq!(index.find(key(1)), Some(found(100)));
        index.set_truth(1, 101);
        assert_eq!(index.find(key(1)), None);
        assert!(index.insert(key(1), found(60), false));
        assert_eq!(index.find(key(1)), Some(found(60)));
    }
}
