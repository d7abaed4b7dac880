//! What is asked of a pool about its caches and tables: tables in memory before they are used,
//! dedup tables made smaller, and how much cache devices may wear.

use dedup::{LogLimits, PruneBy};
use l2arc::LevelOptions;

use crate::{Pool, PoolError};

/// Reads tables of deduplicated (`dedup`) and of cloned blocks (`clones`) into the cache
/// (`zpool prefetch`); how many bytes they have. Being dropped ends it.
///
/// # Errors
/// Of reading.
pub async fn prefetch_tables(pool: &Pool, dedup: bool, clones: bool) -> Result<u64, PoolError> {
    let shared = &pool.core.shared_blocks;
    let mut read_bytes = 0;
    if dedup {
        read_bytes += shared.dedup.prefetch().await?;
    }
    if clones {
        read_bytes += shared.clones.prefetch(pool.dsl().mos()).await?;
    }
    Ok(read_bytes)
}

/// Removes entries with one reference from the dedup tables, so that these get smaller
/// (`zpool ddtprune`); how many these were. Being dropped ends it.
///
/// # Errors
/// Of a pool that nothing may be written to; of reading, and of writing transaction groups.
pub async fn prune_dedup(pool: &Pool, by: PruneBy) -> Result<u64, PoolError> {
    let core = &pool.core;
    core.check_writeable()?;
    let now_seconds = core.world.clock.wall_ns() / 1_000_000_000;
    let dedup = &core.shared_blocks.dedup;
    dedup.prune(&core.txgs, now_seconds, by).await
}

/// Changes how far the logs of dedup tables grow.
pub fn set_dedup_log_limits(pool: &Pool, limits: LogLimits) {
    pool.core.shared_blocks.dedup.set_log_limits(limits);
}

/// What may be set of the cache devices of a pool.
#[derive(Debug, Clone, Copy)]
pub struct CacheDeviceOptions {
    /// How often a day one that is full may be written over, in hundredths; `None` without limit.
    pub rounds_a_day_percent: Option<u32>,
    /// How much more than is about to be overwritten is trimmed, in hundredths of that, but 64 MiB
    /// at least; 0: nothing is.
    pub trim_ahead_percent: u32,
}

/// Changes how cache devices are written and trimmed.
pub fn set_cache_devices(pool: &Pool, options: CacheDeviceOptions) {
    pool.pipeline().second_level().set_options(LevelOptions {
        rounds_a_day_percent: options.rounds_a_day_percent,
        trim_ahead_percent: options.trim_ahead_percent,
        ..LevelOptions::default()
    });
}
