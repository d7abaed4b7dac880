//! Torture with deduplication: small records, of few kinds, so that most blocks are shared and many
//! entries come and go; logs of tables that are flushed a few entries at a time, so that there are
//! always some left; every other time little memory, so that leaves of tables are read ahead.

use dataset::PropertyChange;
use pool::{LogLimits, Pool};

use crate::rng::Rng;
use crate::torture::POOL;
use crate::verify::Failure;

/// Size of a record, and of what repeats.
const RECORD_BYTES: usize = 4096;
/// Kinds of records.
const KINDS: u64 = 7;
/// Memory of which two of a table's ZAPs, empty ones, take more than half.
const LITTLE_MEMORY_BYTES: u64 = 200 << 10;

/// Turns property `dedup` on for the whole pool.
///
/// # Errors
/// Of setting properties.
pub async fn prepare(pool: &Pool, dedup: &str) -> Result<(), Failure> {
    let set = |name: &str, value: &str| (name.to_owned(), PropertyChange::Set(value.to_owned()));
    let changes = [set("dedup", dedup), set("recordsize", "4K")];
    Ok(pool.dsl().properties().set(POOL, &changes).await?)
}

/// Has logs written, and flushed in many small steps; every other time, there is little memory.
pub fn limit_logs(pool: &Pool, seed: u64) {
    let limits = LogLimits {
        is_written: true,
        entries_max: [None, Some(4), Some(12)][(seed % 3) as usize],
        flushed_least: 1 + (seed % 4) as usize,
        flushed_at_rest: 1 + (seed % 5) as usize,
        active_txgs: 1 + seed % 3,
    };
    pool::set_dedup_log_limits(pool, limits);
    let memory = pool.pipeline().cache().shared();
    if seed % 2 == 1 {
        memory.set_limit_bytes(memory.limit_bytes().min(LITTLE_MEMORY_BYTES));
    }
}

/// Content of a file from `offset_bytes` on: records of which there are few kinds.
pub fn content(rng: &mut Rng, offset_bytes: u64, length: usize) -> Vec<u8> {
    let skip = offset_bytes as usize % RECORD_BYTES;
    let mut out = Vec::with_capacity(length + 2 * RECORD_BYTES);
    while out.len() < skip + length {
        let kind = rng.below(KINDS);
        out.extend(Rng::new(kind + 1).content(RECORD_BYTES));
    }
    out.drain(..skip);
    out.truncate(length);
    out
}

/// Seed of a volume's sector.
pub fn sector_seed(rng: &mut Rng) -> u64 {
    1 + rng.below(KINDS)
}
