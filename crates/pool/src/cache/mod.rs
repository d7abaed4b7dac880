//! Verified logical blocks in memory.

/// The cache.
pub struct Cache {}

impl Cache {
    /// A cache of at most `limit_bytes`.
    pub fn new(_limit_bytes: u64) -> Self {
        todo!()
    }

    /// Changes the limit; evicts at once when it shrinks.
    pub fn set_limit_bytes(&self, _limit_bytes: u64) {
        todo!()
    }
}
