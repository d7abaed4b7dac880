//! Messages about caches: the one in memory, which all pools share, and each pool's second level.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Access, Call, Guid, VdevState};

/// Tells how caches are.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CacheGet {
    /// Of these pools; of each where none is named.
    #[serde(default)]
    pub pools: Vec<String>,
}

impl Call for CacheGet {
    const PATH: &'static str = "/v1/cache/get";
    const ACCESS: Access<Self> = Access::Read;
    type Reply = CacheGetReply;
}

/// How caches are.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct CacheGetReply {
    /// Bytes that may be in memory now, of all pools.
    pub limit_bytes: u64,
    /// Bytes that may be unless memory is short, or much is used beside the cache.
    pub limit_max_bytes: u64,
    /// Pools, by name.
    pub pools: Vec<PoolCacheReport>,
}

/// What a pool has of the cache in memory, and its second level.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct PoolCacheReport {
    /// The pool.
    pub pool: String,
    /// Bytes of objects, files and the index of the second level, which count in the limit.
    pub charged_bytes: u64,
    /// Blocks, each kind.
    pub kinds: Vec<CacheKindReport>,
    /// Lookups of the last minute; nothing where that was not counted.
    pub minute: Option<CacheLookups>,
    /// Of the last hour.
    pub hour: Option<CacheLookups>,
    /// Of the last day.
    pub day: Option<CacheLookups>,
    /// Of the last week.
    pub week: Option<CacheLookups>,
    /// The second level; nothing without cache devices.
    pub second: Option<SecondLevelReport>,
}

/// Kinds of blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum CacheKind {
    /// What files and volumes hold.
    Data,
    /// Everything else.
    Metadata,
    /// The metadata that dedup tables are.
    DedupTable,
}

/// What the cache of a pool did since the pool was imported.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CacheCounts {
    /// Blocks in memory, each kind.
    pub kinds: Vec<CacheKindReport>,
    /// Reads that a cache device answered.
    pub device_hits: u64,
    /// Reads that no cache device had the block of.
    pub device_misses: u64,
    /// Bytes of memory that the index of what cache devices hold takes.
    pub index_bytes: u64,
}

/// Blocks of a kind in memory. Lookups are counted since the pool was imported.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CacheKindReport {
    /// The kind.
    pub kind: CacheKind,
    /// Bytes that they take.
    pub size_bytes: u64,
    /// Blocks.
    pub blocks: u64,
    /// Lookups that found their block.
    pub hits: u64,
    /// Lookups that did not.
    pub misses: u64,
    /// Those misses whose block had left not long before: about those that twice as much memory had
    /// turned into hits.
    pub ghost_hits: u64,
}

/// Lookups over a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CacheLookups {
    /// Those that found their block in memory.
    pub hits: u64,
    /// Those that did not.
    pub misses: u64,
}

/// A pool's cache devices, and the index of what they hold.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct SecondLevelReport {
    /// Blocks that the devices hold.
    pub blocks: u64,
    /// Bytes of memory that their index takes.
    pub index_bytes: u64,
    /// Blocks that were not kept as there was no memory for them in the index.
    pub left_out: u64,
    /// Reads that no device had the block of.
    pub misses: u64,
    /// The devices.
    pub devices: Vec<CacheDeviceReport>,
}

/// A cache device. Figures are counted since it came into use.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct CacheDeviceReport {
    /// What it is known by.
    pub guid: Guid,
    /// Its path, or what else it is called.
    pub name: String,
    /// How it is.
    pub state: VdevState,
    /// Whether what it holds from before is being read.
    pub is_rebuilding: bool,
    /// Whether it was full once.
    pub is_filled: bool,
    /// Bytes that there are.
    pub size_bytes: u64,
    /// Bytes that hold something.
    pub used_bytes: u64,
    /// Reads that found their block here.
    pub hits: u64,
    /// Bytes of these.
    pub read_bytes: u64,
    /// Bytes that were written.
    pub written_bytes: u64,
    /// Reads that failed, or took too long.
    pub read_errors: u64,
    /// Writes that failed.
    pub write_errors: u64,
    /// Copies that were wrong.
    pub checksum_errors: u64,
    /// Bytes that were written in a second, over the last minute; nothing where that was not
    /// counted.
    pub fill_bytes_per_s: Option<u64>,
    /// Seconds until it is full at that rate; nothing where it is, or nothing is written.
    pub full_in_s: Option<u64>,
    /// Bytes that were written in the last day.
    pub day_written_bytes: Option<u64>,
}
