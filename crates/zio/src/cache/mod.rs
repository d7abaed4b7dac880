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
//! **One for all pools of a process** ([`SharedCache`]), with one limit: pools compete, as if all
//! their blocks were in the same queues, but what a pool has is passed over while that is no more
//! than its floor ([`floor_bytes`]). So a pool that is read once in a while finds something of its
//! own, whatever the others do, and who is alone has everything. (Before, each pool had an even
//! part: pools that nobody used kept theirs.) A [`Cache`] is what a pool has of it; with the last
//! handle of a pool, its blocks go.
//!
//! A block's key is the first copy's place, the physical birth, and the checksum's words: together
//! no other content ever has them within one pool, not even when a block is written again in place
//! in the same txg.
//!
//! Sharded by key; one lock per shard, held for a lookup or an insertion with its evictions. A hit
//! is that lock, a hash lookup, and a clone of [`Bytes`] (one atomic increment). The limit and the
//! floors hold per shard, so in total as well; a block bigger than a quarter of a shard's share is
//! not kept. A crash loses it all.
//!
//! What others keep in memory beside blocks counts in the limit as well ([`Charge`]): each block
//! that comes in finds so much less room, but at least half of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use device::{MemoryUser, MemoryUses};
use format::{BlockPointer, ObjectType, VdevId};
use parking_lot::Mutex;

pub use self::charge::{Charge, Charged, Holder};

use self::charge::Charges;
use self::shard::{Hashed, Shard};

mod charge;
mod shard;
#[cfg(test)]
mod tests;

/// Shards at most; a small cache has fewer, so that big blocks fit.
const SHARDS_MAX: usize = 64;
/// A shard has at least room for this.
const SHARD_BYTES_MIN: u64 = 64 << 20;
/// A floor is the limit divided by this, or by more.
const FLOOR_PARTS_MIN: usize = 16;

/// What a pool keeps of `limit_bytes` whatever others want: a sixteenth, or an even part of half of
/// it where there are more than eight pools.
fn floor_bytes(limit_bytes: u64, pools: usize) -> u64 {
    limit_bytes / (2 * pools).max(FLOOR_PARTS_MIN) as u64
}

/// Kinds of blocks that are told apart in figures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BlockKind {
    /// What files and volumes hold.
    Data,
    /// Everything else.
    Metadata,
    /// The metadata that dedup tables are.
    DedupTable,
}

impl BlockKind {
    /// Each of them.
    pub const ALL: [BlockKind; 3] = [Self::Data, Self::Metadata, Self::DedupTable];

    /// Of which kind a block is, by its object's type and its level (`BP_GET_BUFC_TYPE`,
    /// include/sys/spa.h, which has no kind of its own for dedup tables).
    pub fn of(bp: &BlockPointer) -> Self {
        match bp.object_type() {
            ObjectType::DDT_ZAP | ObjectType::DDT_STATS => Self::DedupTable,
            _ if bp.is_metadata() => Self::Metadata,
            _ => Self::Data,
        }
    }
}

/// Which block: the place of its first copy, when it was written there, and its checksum (mixed to
/// one word), which tells apart versions written in the same place by one txg. Its kind comes with
/// it and tells nothing apart.
#[derive(Debug, Clone, Copy)]
pub struct CacheKey {
    vdev: VdevId,
    offset_bytes: u64,
    birth: u64,
    sum: u64,
    kind: BlockKind,
}

impl PartialEq for CacheKey {
    fn eq(&self, other: &Self) -> bool {
        self.vdev == other.vdev
            && self.offset_bytes == other.offset_bytes
            && self.birth == other.birth
            && self.sum == other.sum
    }
}

impl Eq for CacheKey {}

impl std::hash::Hash for CacheKey {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        state.write_u64(self.mixed());
    }
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
            kind: BlockKind::of(bp),
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

/// Blocks of a kind, and lookups of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CacheCounts {
    /// Lookups that found their block.
    pub hits: u64,
    /// Lookups that did not.
    pub misses: u64,
    /// Those of them whose block had left not long before: about those that a cache of twice the
    /// size had found.
    pub ghost_hits: u64,
    /// Bytes in use.
    pub size_bytes: u64,
    /// Blocks.
    pub blocks: u64,
}

/// Numbers about what a pool has of a cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CacheStats {
    by_kind: [CacheCounts; BlockKind::ALL.len()],
    /// Bytes in use by what else counts ([`Charge`]).
    pub charged_bytes: u64,
}

impl CacheStats {
    /// Of one kind of blocks.
    pub fn of(&self, kind: BlockKind) -> CacheCounts {
        self.by_kind[kind as usize]
    }

    /// Of all blocks.
    pub fn total(&self) -> CacheCounts {
        let zero = CacheCounts::default();
        self.by_kind.iter().fold(zero, |sum, counts| CacheCounts {
            hits: sum.hits + counts.hits,
            misses: sum.misses + counts.misses,
            ghost_hits: sum.ghost_hits + counts.ghost_hits,
            size_bytes: sum.size_bytes + counts.size_bytes,
            blocks: sum.blocks + counts.blocks,
        })
    }
}

/// The cache of all pools of a process.
pub struct SharedCache {
    shards: Box<[Mutex<Shard>]>,
    limit_bytes: AtomicU64,
    charges: Arc<Charges>,
    /// Which pool numbers are in use. It comes before the locks of shards.
    pools: Mutex<Vec<bool>>,
}

impl SharedCache {
    /// A cache of at most `limit_bytes`, bookkeeping included (roughly).
    pub fn new(limit_bytes: u64) -> Arc<Self> {
        let count = (limit_bytes / SHARD_BYTES_MIN).clamp(1, SHARDS_MAX as u64);
        // A power of two, for the choice by the hash's top bits.
        let count = 1usize << count.ilog2();
        let cache = SharedCache {
            shards: (0..count).map(|_| Mutex::default()).collect(),
            limit_bytes: AtomicU64::new(0),
            charges: Arc::default(),
            pools: Mutex::default(),
        };
        cache.set_limit_bytes(limit_bytes);
        Arc::new(cache)
    }

    /// What one more pool has of it: nothing yet.
    pub fn join(self: &Arc<Self>) -> Cache {
        let mut pools = self.pools.lock();
        let free = pools.iter().position(|is_used| !is_used);
        let pool = free.unwrap_or(pools.len());
        match free {
            Some(free) => pools[free] = true,
            None => pools.push(true),
        }
        Cache {
            shared: Arc::clone(self),
            pool,
            salt: mix(&[pool as u64]),
            charge: self.charges.join(),
            hits: Default::default(),
            misses: Default::default(),
            ghost_hits: Default::default(),
        }
    }

    fn leave(&self, pool: usize) {
        let mut pools = self.pools.lock();
        self.clear(pool);
        pools[pool] = false;
        while pools.last() == Some(&false) {
            pools.pop();
        }
    }

    fn clear(&self, pool: usize) {
        for shard in &self.shards {
            // Giving the memory back takes its time.
            let blocks = shard.lock().clear(pool);
            drop(blocks);
        }
    }

    /// How many pools there are.
    pub fn pools(&self) -> usize {
        self.pools.lock().iter().filter(|is_used| **is_used).count()
    }

    /// What counts in the limit beside blocks: of all pools together.
    pub fn charged_bytes(&self) -> u64 {
        self.charges.used_bytes()
    }

    /// Adds what the cache has, and what else counts in its limit: of all pools together.
    pub fn add_memory(&self, uses: &mut MemoryUses) {
        let (mut blocks_bytes, mut tables_bytes) = (0, 0);
        for shard in &self.shards {
            let (blocks, tables) = shard.lock().memory_bytes();
            blocks_bytes += blocks;
            tables_bytes += tables;
        }
        let limit_bytes = Some(self.limit_bytes());
        uses.add(MemoryUser::CacheBlocks, blocks_bytes, limit_bytes);
        uses.add(MemoryUser::CacheTables, tables_bytes, None);
        self.charges.add_memory(uses);
    }

    /// What blocks, and what counts beside them, may take: of all pools together.
    pub fn limit_bytes(&self) -> u64 {
        self.limit_bytes.load(Ordering::Relaxed)
    }

    /// Changes the limit; evicts at once when it shrinks.
    pub fn set_limit_bytes(&self, limit_bytes: u64) {
        self.limit_bytes.store(limit_bytes, Ordering::Relaxed);
        self.charges.set_share_bytes(limit_bytes / 2);
        for shard in &self.shards {
            shard.lock().set_limit_bytes(self.shard_limit_bytes());
        }
    }

    /// What a shard may have now: its part of what the charges leave.
    fn shard_limit_bytes(&self) -> u64 {
        let limit_bytes = self.limit_bytes();
        let charged_bytes = self.charges.used_bytes().min(limit_bytes / 2);
        (limit_bytes - charged_bytes) / self.shards.len() as u64
    }
}

impl std::fmt::Debug for SharedCache {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "SharedCache(limit {} bytes)", self.limit_bytes())
    }
}

/// What a pool has of a cache.
pub struct Cache {
    shared: Arc<SharedCache>,
    /// Its number, which no other pool has as long as this lives.
    pool: usize,
    /// Tells the hashes of its keys from those of other pools.
    salt: u64,
    charge: Arc<Charge>,
    /// By kind of block.
    hits: [AtomicU64; BlockKind::ALL.len()],
    misses: [AtomicU64; BlockKind::ALL.len()],
    ghost_hits: [AtomicU64; BlockKind::ALL.len()],
}

impl Cache {
    /// A cache that no other pool has anything of ([`SharedCache::new`]).
    pub fn new(limit_bytes: u64) -> Self {
        SharedCache::new(limit_bytes).join()
    }

    /// The whole of which this is a part.
    pub fn shared(&self) -> &Arc<SharedCache> {
        &self.shared
    }

    /// What counts in the limit beside blocks.
    pub fn charge(&self) -> &Arc<Charge> {
        &self.charge
    }

    fn shard(&self, key: CacheKey) -> (&Mutex<Shard>, Hashed) {
        let hash = key.mixed() ^ self.salt;
        let shards = &self.shared.shards;
        let index = (hash >> 40) as usize & (shards.len() - 1);
        (&shards[index], Hashed { key, hash })
    }

    /// The block, if it is there.
    pub fn get(&self, key: CacheKey) -> Option<Bytes> {
        let kind = key.kind as usize;
        let (shard, key) = self.shard(key);
        let (found, is_ghost) = {
            let mut shard = shard.lock();
            let found = shard.get(self.pool, &key);
            let is_ghost = found.is_none() && shard.remembers(&key);
            (found, is_ghost)
        };
        let counters = if found.is_some() {
            &self.hits
        } else {
            &self.misses
        };
        counters[kind].fetch_add(1, Ordering::Relaxed);
        if is_ghost {
            self.ghost_hits[kind].fetch_add(1, Ordering::Relaxed);
        }
        found
    }

    /// Whether the block is there; counts as nothing.
    pub fn contains(&self, key: CacheKey) -> bool {
        let (shard, key) = self.shard(key);
        shard.lock().contains(self.pool, &key)
    }

    /// Whether the block was here not long ago and had to leave; counts as nothing.
    pub fn remembers(&self, key: CacheKey) -> bool {
        let (shard, key) = self.shard(key);
        shard.lock().remembers(&key)
    }

    /// Keeps a block, replacing what was there under this key.
    pub fn insert(&self, key: CacheKey, data: Bytes) {
        let (shard, key) = self.shard(key);
        let limit_bytes = self.shared.shard_limit_bytes();
        shard.lock().insert(self.pool, key, data, limit_bytes);
    }

    /// Drops a block.
    pub fn remove(&self, key: CacheKey) {
        let (shard, key) = self.shard(key);
        shard.lock().remove(self.pool, &key);
    }

    /// Drops every block of this pool.
    pub fn clear(&self) {
        self.shared.clear(self.pool);
    }

    /// Numbers of this pool.
    pub fn stats(&self) -> CacheStats {
        let mut out = CacheStats {
            charged_bytes: self.charge.used_bytes(),
            ..CacheStats::default()
        };
        for (kind, counts) in out.by_kind.iter_mut().enumerate() {
            counts.hits = self.hits[kind].load(Ordering::Relaxed);
            counts.misses = self.misses[kind].load(Ordering::Relaxed);
            counts.ghost_hits = self.ghost_hits[kind].load(Ordering::Relaxed);
        }
        for shard in &self.shared.shards {
            let held = shard.lock().held(self.pool);
            for (counts, held) in out.by_kind.iter_mut().zip(held) {
                counts.size_bytes += held.bytes;
                counts.blocks += held.blocks;
            }
        }
        out
    }
}

impl Drop for Cache {
    fn drop(&mut self) {
        self.shared.leave(self.pool);
    }
}

impl std::fmt::Debug for Cache {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.stats().fmt(out)
    }
}
