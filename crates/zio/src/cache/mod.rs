//! Verified logical blocks in memory: the ARC's place, with another algorithm.
//!
//! **S3-FIFO** (Yang, Zhang, Qiu, Yue, Rashmi: "FIFO queues are all you need for cache eviction",
//! SOSP 2023), weighed by bytes: new blocks enter a small queue (a tenth of the memory); those that
//! are asked for again before they reach its end move on to the main queue, the others leave and
//! only their key is remembered (ghosts); a block that comes back while it is remembered enters the
//! main queue at once. The main queue gives blocks that were hit another round. So a scan, however
//! long, passes through the small queue only, and a hit changes one counter: no list is relinked,
//! which is why this and not ARC or LRU. Hot metadata is hit often and stays.
//!
//! A block's key is the first copy's place, the physical birth, and the checksum's words: together
//! no other content ever has them within one pool, not even when a block is written again in place
//! in the same txg.
//!
//! Sharded by key; one lock per shard, held for a lookup or an insertion with its evictions. A hit
//! is that lock, a hash lookup, and a clone of [`Bytes`] (one atomic increment). The limit holds
//! per shard, so in total as well; a block bigger than a quarter of a shard's share is not kept. A
//! crash loses it all.
//!
//! What others keep in memory beside blocks counts in the limit as well ([`Charge`]): each block
//! that comes in finds so much less room, but at least half of it.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use format::{BlockPointer, VdevId};
use parking_lot::Mutex;

pub use self::charge::{Charge, Charged, Holder};

mod charge;
#[cfg(test)]
mod tests;

/// Shards at most; a small cache has fewer, so that big blocks fit.
const SHARDS_MAX: usize = 64;
/// A shard has at least room for this.
const SHARD_BYTES_MIN: u64 = 64 << 20;
/// Hits that count.
const HITS_MAX: u8 = 3;
/// What an entry costs beside its data.
const OVERHEAD_BYTES: u64 = 128;
/// Keys that are remembered per shard, at most.
const GHOSTS_MAX: usize = 1 << 16;

/// Which block: the place of its first copy, when it was written there, and its checksum (mixed to
/// one word), which tells apart versions written in the same place by one txg.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct CacheKey {
    vdev: VdevId,
    offset_bytes: u64,
    birth: u64,
    sum: u64,
}

impl CacheKey {
    /// The key of a block on disk; `None` for holes and embedded blocks.
    pub fn of(bp: &BlockPointer) -> Option<Self> {
        if bp.is_hole() {
            return None;
        }
        let dva = bp.dva(0)?;
        Some(CacheKey {
            vdev: dva.vdev(),
            offset_bytes: dva.offset_bytes(),
            birth: bp.physical_birth().get(),
            sum: mix(&bp.checksum()),
        })
    }

    /// A number to choose a shard of anything keyed by blocks by.
    pub(crate) fn spread(&self) -> usize {
        (self.mixed() >> 20) as usize
    }

    /// A well mixed hash, the same in every run.
    fn mixed(&self) -> u64 {
        mix(&[
            u64::from(self.vdev.get()),
            self.offset_bytes >> 9,
            self.birth,
            self.sum,
        ])
    }
}

fn mix(words: &[u64]) -> u64 {
    words.iter().fold(0x9e37_79b9_7f4a_7c15, |hash, word| {
        let hash = (hash ^ word).wrapping_mul(0xff51_afd7_ed55_8ccd);
        hash ^ (hash >> 32)
    })
}

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

/// A key with its hash computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Hashed {
    key: CacheKey,
    hash: u64,
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
    /// Tells a queued key of this entry from one left by an earlier entry of the same key.
    generation: u64,
}

fn weight(data: &Bytes) -> u64 {
    data.len() as u64 + OVERHEAD_BYTES
}

type Table<K, V> = HashMap<K, V, BuildHasherDefault<Through>>;

#[derive(Debug, Default)]
struct Shard {
    entries: Table<Hashed, Entry>,
    small: VecDeque<(Hashed, u64)>,
    main: VecDeque<(Hashed, u64)>,
    ghosts: VecDeque<u64>,
    /// Hash to how many times it is in `ghosts`.
    ghost_counts: Table<u64, u32>,
    small_bytes: u64,
    main_bytes: u64,
    generation: u64,
    limit_bytes: u64,
}

impl Shard {
    fn get(&mut self, key: &Hashed) -> Option<Bytes> {
        let entry = self.entries.get_mut(key)?;
        entry.hits = (entry.hits + 1).min(HITS_MAX);
        Some(entry.data.clone())
    }

    fn remove(&mut self, key: &Hashed) -> bool {
        // Its place in the queue is skipped when it comes up.
        match self.entries.remove(key) {
            Some(entry) => {
                self.discount(&entry);
                true
            }
            None => false,
        }
    }

    fn discount(&mut self, entry: &Entry) {
        let bytes = weight(&entry.data);
        if entry.main {
            self.main_bytes -= bytes;
        } else {
            self.small_bytes -= bytes;
        }
    }

    fn insert(&mut self, key: Hashed, data: Bytes) {
        if weight(&data) > self.limit_bytes / 4 {
            self.remove(&key);
            return;
        }
        if let Some(entry) = self.entries.get_mut(&key) {
            let (before, after) = (weight(&entry.data), weight(&data));
            entry.data = data;
            let bytes = if entry.main {
                &mut self.main_bytes
            } else {
                &mut self.small_bytes
            };
            *bytes = *bytes - before + after;
        } else {
            let main = self.ghost_counts.contains_key(&key.hash);
            self.generation += 1;
            let generation = self.generation;
            let bytes = weight(&data);
            if main {
                self.main.push_back((key, generation));
                self.main_bytes += bytes;
            } else {
                self.small.push_back((key, generation));
                self.small_bytes += bytes;
            }
            let entry = Entry {
                data,
                hits: 0,
                main,
                generation,
            };
            self.entries.insert(key, entry);
        }
        self.shrink();
    }

    fn shrink(&mut self) {
        while self.small_bytes + self.main_bytes > self.limit_bytes {
            let from_small = self.small_bytes > self.limit_bytes / 10 || self.main_bytes == 0;
            if from_small {
                self.evict_small();
            } else {
                self.evict_main();
            }
        }
        // Keys of removed entries must not pile up.
        let live = self.entries.len();
        if self.small.len() + self.main.len() > 2 * live + 1024 {
            let entries = &self.entries;
            let is_live = |(key, generation): &(Hashed, u64)| {
                entries
                    .get(key)
                    .is_some_and(|e| e.generation == *generation)
            };
            self.small.retain(is_live);
            self.main.retain(is_live);
        }
    }

    /// The entry that a queued key stands for, unless it was removed or replaced since.
    fn live(&mut self, key: &Hashed, generation: u64, main: bool) -> Option<&mut Entry> {
        self.entries
            .get_mut(key)
            .filter(|entry| entry.generation == generation && entry.main == main)
    }

    fn evict_small(&mut self) {
        while let Some((key, generation)) = self.small.pop_front() {
            let Some(entry) = self.live(&key, generation, false) else {
                continue;
            };
            let bytes = weight(&entry.data);
            if entry.hits > 0 {
                entry.hits = 0;
                entry.main = true;
                self.small_bytes -= bytes;
                self.main_bytes += bytes;
                self.main.push_back((key, generation));
            } else {
                self.entries.remove(&key);
                self.small_bytes -= bytes;
                self.remember(key.hash);
            }
            return;
        }
        debug_assert_eq!(self.small_bytes, 0, "every entry is queued");
    }

    fn evict_main(&mut self) {
        while let Some((key, generation)) = self.main.pop_front() {
            let Some(entry) = self.live(&key, generation, true) else {
                continue;
            };
            if entry.hits > 0 {
                entry.hits -= 1;
                self.main.push_back((key, generation));
                continue;
            }
            let bytes = weight(&entry.data);
            self.entries.remove(&key);
            self.main_bytes -= bytes;
            return;
        }
        debug_assert_eq!(self.main_bytes, 0, "every entry is queued");
    }

    /// Remembers a key that left; as many as there are entries in the main queue.
    fn remember(&mut self, hash: u64) {
        let room = self.main.len().clamp(64, GHOSTS_MAX);
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

/// Numbers about a cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CacheStats {
    /// Lookups that found their block.
    pub hits: u64,
    /// Lookups that did not.
    pub misses: u64,
    /// Bytes in use by blocks.
    pub size_bytes: u64,
    /// Bytes in use by what else counts ([`Charge`]).
    pub charged_bytes: u64,
    /// The limit of both.
    pub limit_bytes: u64,
    /// Blocks.
    pub blocks: u64,
}

/// The cache.
pub struct Cache {
    shards: Box<[Mutex<Shard>]>,
    limit_bytes: AtomicU64,
    charge: Arc<Charge>,
    hits: AtomicU64,
    misses: AtomicU64,
}

impl Cache {
    /// A cache of at most `limit_bytes`, bookkeeping included (roughly).
    pub fn new(limit_bytes: u64) -> Self {
        let count = (limit_bytes / SHARD_BYTES_MIN).clamp(1, SHARDS_MAX as u64);
        // A power of two, for the choice by the hash's top bits.
        let count = 1usize << count.ilog2();
        let cache = Cache {
            shards: (0..count).map(|_| Mutex::default()).collect(),
            limit_bytes: AtomicU64::new(0),
            charge: Arc::default(),
            hits: AtomicU64::new(0),
            misses: AtomicU64::new(0),
        };
        cache.set_limit_bytes(limit_bytes);
        cache
    }

    /// Changes the limit; evicts at once when it shrinks.
    pub fn set_limit_bytes(&self, limit_bytes: u64) {
        self.limit_bytes.store(limit_bytes, Ordering::Relaxed);
        self.charge.set_share_bytes(limit_bytes / 2);
        for shard in &self.shards {
            let mut shard = shard.lock();
            shard.limit_bytes = self.shard_limit_bytes();
            shard.shrink();
        }
    }

    /// What counts in the limit beside blocks.
    pub fn charge(&self) -> &Arc<Charge> {
        &self.charge
    }

    /// What a shard may have now: its part of what the charge leaves.
    fn shard_limit_bytes(&self) -> u64 {
        let limit_bytes = self.limit_bytes.load(Ordering::Relaxed);
        let charged_bytes = self.charge.used_bytes().min(limit_bytes / 2);
        (limit_bytes - charged_bytes) / self.shards.len() as u64
    }

    fn shard(&self, key: CacheKey) -> (&Mutex<Shard>, Hashed) {
        let hash = key.mixed();
        let index = (hash >> 40) as usize & (self.shards.len() - 1);
        (&self.shards[index], Hashed { key, hash })
    }

    /// The block, if it is there.
    pub fn get(&self, key: CacheKey) -> Option<Bytes> {
        let (shard, key) = self.shard(key);
        let found = shard.lock().get(&key);
        let counter = if found.is_some() {
            &self.hits
        } else {
            &self.misses
        };
        counter.fetch_add(1, Ordering::Relaxed);
        found
    }

    /// Whether the block is there; counts as nothing.
    pub fn contains(&self, key: CacheKey) -> bool {
        let (shard, key) = self.shard(key);
        shard.lock().entries.contains_key(&key)
    }

    /// Keeps a block, replacing what was there under this key.
    pub fn insert(&self, key: CacheKey, data: Bytes) {
        let (shard, key) = self.shard(key);
        let limit_bytes = self.shard_limit_bytes();
        let mut shard = shard.lock();
        shard.limit_bytes = limit_bytes;
        shard.insert(key, data);
    }

    /// Drops a block.
    pub fn remove(&self, key: CacheKey) {
        let (shard, key) = self.shard(key);
        shard.lock().remove(&key);
    }

    /// Drops everything.
    pub fn clear(&self) {
        for shard in &self.shards {
            let mut shard = shard.lock();
            let limit_bytes = shard.limit_bytes;
            *shard = Shard {
                limit_bytes,
                ..Shard::default()
            };
        }
    }

    /// Numbers.
    pub fn stats(&self) -> CacheStats {
        let mut out = CacheStats {
            hits: self.hits.load(Ordering::Relaxed),
            misses: self.misses.load(Ordering::Relaxed),
            limit_bytes: self.limit_bytes.load(Ordering::Relaxed),
            charged_bytes: self.charge.used_bytes(),
            ..CacheStats::default()
        };
        for shard in &self.shards {
            let shard = shard.lock();
            out.size_bytes += shard.small_bytes + shard.main_bytes;
            out.blocks += shard.entries.len() as u64;
        }
        out
    }
}

impl std::fmt::Debug for Cache {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.stats().fmt(out)
    }
}
