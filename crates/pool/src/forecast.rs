//! What is foretold of a pool: what dedup tables would hold.

use dedup::Forecasting;

use crate::{Pool, PoolError};

/// Begins a forecast of what dedup tables would hold if all of the pool's blocks were deduplicated
/// (`zdb -S`), which remembers so many different blocks; `None` while another one is under way.
///
/// # Errors
/// [`PoolError::ReadOnly`]: a pool is walked as its transaction groups are written.
pub fn forecast_dedup(pool: &Pool, blocks_max: usize) -> Result<Option<Forecasting>, PoolError> {
    if pool.is_read_only() {
        return Err(PoolError::ReadOnly { pool: pool.name() });
    }
    let core = &pool.core;
    Ok(core.shared_blocks.forecast.begin(&core.txgs, blocks_max))
}
