//! A shard of the cache: blocks of all pools whose keys have the same bits, in S3-FIFO queues.
//!
//! Each pool has a table and two queues of its own, so that looking for a victim never goes through
//! the blocks of a pool that is below its floor, and a pool's blocks go all at once. That they are
//! evicted as from one small queue and one main queue of all pools comes from numbers: what is
//! queued gets the shard's next one, and the lowest among the heads of queues is next. Ghosts are
//! common to all pools, by hashes in which the pool is mixed.
//!
//! Work is bounded: what is evicted, or given another round, is the head of a queue; each block
//! gets as many rounds as it has hits. Floors together are half of the limit at most, so whenever a
//! shard is over its limit some pool is above its floor.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};

use bytes::Bytes;

use super::{BlockKind, CacheKey, floor_bytes};

/// Hits that count.
const HITS_MAX: u8 = 3;
/// What an entry costs beside its data.
pub(super) const OVERHEAD_BYTES: u64 = 128;
/// Keys that are remembered per shard, at most.
const GHOSTS_MAX: usize = 1 << 16;

/// Hands through the one number that is hashed: keys are hashed already.
#[derive(Debug, Default, Clone, Copy)]
struct Through(u64);

impl Hasher for Through {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }

    fn write_u64(&mut self, value: u64) {
        self.0 = value;
    }
}

/// A key with its hash computed, in which its pool is mixed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Hashed {
    pub(super) key: CacheKey,
    pub(super) hash: u64,
}

impl std::hash::Hash for Hashed {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.hash);
    }
}

#[derive(Debug)]
struct Entry {
    data: Bytes,
    hits: u8,
    main: bool,
    /// The kind of block as what it is counted.
    kind: BlockKind,
    /// Its number in its queue; tells the queued key from one that an earlier entry of the same key
    /// left, or that this one had in the other queue.
    number: u64,
}

fn weight(data: &Bytes) -> u64 {
    data.len() as u64 + OVERHEAD_BYTES
}

/// What the owner of a block's bytes takes, who counts the references to them.
const SHARED_BYTES: usize = 32;

/// Bytes that a table takes: an eighth of its places is never used, and each has a byte beside.
fn table_bytes<K, V>(table: &Table<K, V>) -> usize {
    table.capacity() / 7 * 8 * (size_of::<(K, V)>() + 1)
}

type Table<K, V> = HashMap<K, V, BuildHasherDefault<Through>>;

/// Keys in the order in which they came, with their numbers.
#[derive(Debug, Default)]
struct Queue {
    keys: VecDeque<(Hashed, u64)>,
    /// Weight of the entries that are in it.
    bytes: u64,
}

/// What there is of something.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Held {
    pub(super) blocks: u64,
    pub(super) bytes: u64,
}

/// By kind of block.
pub(super) type HeldByKind = [Held; BlockKind::ALL.len()];

/// What a shard has of a pool.
#[derive(Debug, Default)]
pub(super) struct Part {
    entries: Table<Hashed, Entry>,
    small: Queue,
    main: Queue,
    held: HeldByKind,
}

impl Part {
    fn bytes(&self) -> u64 {
        self.small.bytes + self.main.bytes
    }

    fn queue(&mut self, main: bool) -> &mut Queue {
        match main {
            true => &mut self.main,
            false => &mut self.small,
        }
    }

    /// Takes an entry away; its queued key is skipped when it comes up.
    fn remove(&mut self, key: &Hashed) -> Option<Entry> {
        let entry = self.entries.remove(key)?;
        let bytes = weight(&entry.data);
        self.queue(entry.main).bytes -= bytes;
        let held = &mut self.held[entry.kind as usize];
        held.blocks -= 1;
        held.bytes -= bytes;
        Some(entry)
    }

    /// Queues an entry that is not there.
    fn insert(&mut self, key: Hashed, entry: Entry) {
        let bytes = weight(&entry.data);
        let held = &mut self.held[entry.kind as usize];
        held.blocks += 1;
        held.bytes += bytes;
        let queue = self.queue(entry.main);
        queue.keys.push_back((key, entry.number));
        queue.bytes += bytes;
        self.entries.insert(key, entry);
    }

    /// Gives the entry of this key, if there is one, other data.
    fn replace(&mut self, key: &Hashed, data: &Bytes) -> bool {
        let Some(entry) = self.entries.get_mut(key) else {
            return false;
        };
        let (before, after) = (weight(&entry.data), weight(data));
        entry.data = data.clone();
        let (main, kind) = (entry.main, entry.kind);
        let held = &mut self.held[kind as usize];
        held.bytes = held.bytes - before + after;
        let queue = self.queue(main);
        queue.bytes = queue.bytes - before + after;
        true
    }

    /// The number of what is next in a queue; takes keys away whose entries are not there any more.
    fn next(&mut self, main: bool) -> Option<u64> {
        let queue = match main {
            true => &mut self.main,
            false => &mut self.small,
        };
        while let Some((key, number)) = queue.keys.front() {
            let is_live = |entry: &Entry| entry.number == *number;
            if self.entries.get(key).is_some_and(is_live) {
                return Some(*number);
            }
            queue.keys.pop_front();
        }
        debug_assert_eq!(queue.bytes, 0, "every entry is queued");
        None
    }

    /// Keeps the keys of removed entries from piling up.
    fn forget_removed(&mut self) {
        let live = self.entries.len();
        if self.small.keys.len() + self.main.keys.len() > 2 * live + 1024 {
            let entries = &self.entries;
            let is_live = |(key, number): &(Hashed, u64)| {
                let entry = entries.get(key);
                entry.is_some_and(|entry| entry.number == *number)
            };
            self.small.keys.retain(is_live);
            self.main.keys.retain(is_live);
        }
    }
}

/// Blocks of all pools.
#[derive(Debug, Default)]
pub(super) struct Shard {
    /// By number of the pool; none of it where there is nothing at the end.
    parts: Vec<Part>,
    ghosts: VecDeque<u64>,
    /// Hash to how many times it is in `ghosts`.
    ghost_counts: Table<u64, u32>,
    /// The last number that was given to something queued.
    number: u64,
    limit_bytes: u64,
}

impl Shard {
    pub(super) fn get(&mut self, pool: usize, key: &Hashed) -> Option<Bytes> {
        let entry = self.parts.get_mut(pool)?.entries.get_mut(key)?;
        entry.hits = (entry.hits + 1).min(HITS_MAX);
        Some(entry.data.clone())
    }

    pub(super) fn contains(&self, pool: usize, key: &Hashed) -> bool {
        let part = self.parts.get(pool);
        part.is_some_and(|part| part.entries.contains_key(key))
    }

    /// Whether it left not long ago; the key says of which pool.
    pub(super) fn remembers(&self, key: &Hashed) -> bool {
        self.ghost_counts.contains_key(&key.hash)
    }

    pub(super) fn remove(&mut self, pool: usize, key: &Hashed) {
        if let Some(part) = self.parts.get_mut(pool) {
            part.remove(key);
        }
    }

    /// Takes all of a pool away.
    #[must_use]
    pub(super) fn clear(&mut self, pool: usize) -> Part {
        let cleared = self.parts.get_mut(pool).map(std::mem::take);
        while self.parts.last().is_some_and(|part| part.bytes() == 0) {
            self.parts.pop();
        }
        cleared.unwrap_or_default()
    }

    /// What there is of a pool.
    pub(super) fn held(&self, pool: usize) -> HeldByKind {
        let part = self.parts.get(pool);
        part.map_or_else(HeldByKind::default, |part| part.held)
    }

    /// Bytes of all blocks as they count in the limit, and what tables and remembered keys take
    /// beyond what they count with.
    pub(super) fn memory_bytes(&self) -> (u64, u64) {
        let (small, main) = self.bytes();
        let blocks: usize = self.parts.iter().map(|part| part.entries.len()).sum();
        let parts = self.parts.iter().map(|part| {
            let queued = part.small.keys.capacity() + part.main.keys.capacity();
            table_bytes(&part.entries) + queued * size_of::<(Hashed, u64)>()
        });
        let ghosts = table_bytes(&self.ghost_counts) + self.ghosts.capacity() * size_of::<u64>();
        let kept = parts.sum::<usize>() + ghosts + blocks * SHARED_BYTES;
        let counted = blocks as u64 * OVERHEAD_BYTES;
        (small + main, (kept as u64).saturating_sub(counted))
    }

    pub(super) fn set_limit_bytes(&mut self, limit_bytes: u64) {
        self.limit_bytes = limit_bytes;
        self.shrink();
    }

    /// Keeps a block, of which there is none if it is too big, and evicts what is over the limit.
    pub(super) fn insert(&mut self, pool: usize, key: Hashed, data: Bytes, limit_bytes: u64) {
        self.limit_bytes = limit_bytes;
        if weight(&data) > limit_bytes / 4 {
            return self.remove(pool, &key);
        }
        if self.parts.len() <= pool {
            self.parts.resize_with(pool + 1, Part::default);
        }
        let number = self.next_number();
        let part = &mut self.parts[pool];
        if !part.replace(&key, &data) {
            let entry = Entry {
                data,
                hits: 0,
                main: self.ghost_counts.contains_key(&key.hash),
                kind: key.key.kind,
                number,
            };
            part.insert(key, entry);
        }
        self.shrink();
        self.parts[pool].forget_removed();
    }

    fn next_number(&mut self) -> u64 {
        self.number += 1;
        self.number
    }

    /// Bytes in the small and in the main queues.
    fn bytes(&self) -> (u64, u64) {
        let sum = |(small, main), part: &Part| (small + part.small.bytes, main + part.main.bytes);
        self.parts.iter().fold((0, 0), sum)
    }

    fn shrink(&mut self) {
        loop {
            let (small, main) = self.bytes();
            if small + main <= self.limit_bytes {
                return;
            }
            let from_main = small <= self.limit_bytes / 10 && main > 0;
            if !self.evict(from_main) && !self.evict(!from_main) {
                debug_assert!(false, "some pool is above its floor");
                return;
            }
        }
    }

    /// Evicts what is next in the main queues, or in the small ones, of pools above their floor, or
    /// gives it another round; `false` where they have nothing there.
    fn evict(&mut self, main: bool) -> bool {
        let floor = floor_bytes(self.limit_bytes, self.parts.len());
        let above = self.parts.iter_mut().enumerate();
        let above = above.filter(|(_, part)| part.bytes() > floor);
        let next = above.filter_map(|(pool, part)| Some((part.next(main)?, pool)));
        let Some((_, pool)) = next.min() else {
            return false;
        };
        let number = self.next_number();
        let part = &mut self.parts[pool];
        let head = part.queue(main).keys.pop_front();
        let Some((key, mut entry)) = head.and_then(|(key, _)| Some((key, part.remove(&key)?)))
        else {
            return false;
        };
        if entry.hits > 0 {
            // In the main queue one hit less, into it with none.
            entry.hits = if main { entry.hits - 1 } else { 0 };
            entry.main = true;
            entry.number = number;
            part.insert(key, entry);
        } else if !main {
            self.remember(key.hash);
        }
        true
    }

    /// What the entries of each pool weigh, which queues and kinds must come to as well.
    #[cfg(test)]
    pub(super) fn sums(&self) -> Vec<u64> {
        let sum = |part: &Part| {
            let weights = part.entries.values().map(|entry| weight(&entry.data));
            let sum = weights.sum::<u64>();
            assert_eq!(part.bytes(), sum);
            assert_eq!(part.held.iter().map(|held| held.bytes).sum::<u64>(), sum);
            let blocks: u64 = part.held.iter().map(|held| held.blocks).sum();
            assert_eq!(blocks, part.entries.len() as u64);
            sum
        };
        self.parts.iter().map(sum).collect()
    }

    /// Remembers a key that left; as many as there are entries in the main queues.
    fn remember(&mut self, hash: u64) {
        let main: usize = self.parts.iter().map(|part| part.main.keys.len()).sum();
        let room = main.clamp(64, GHOSTS_MAX);
        while self.ghosts.len() >= room {
            let Some(oldest) = self.ghosts.pop_front() else {
                break;
            };
            if let Some(count) = self.ghost_counts.get_mut(&oldest) {
                *count -= 1;
                if *count == 0 {
                    self.ghost_counts.remove(&oldest);
                }
            }
        }
        self.ghosts.push_back(hash);
        *self.ghost_counts.entry(hash).or_default() += 1;
    }
}
