//! The arithmetic of space accounts.

use format::BlockPointer;
use zio::Pipeline;

/// Space in bytes: allocated (deflated), compressed and uncompressed. May be a difference.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Space {
    pub used: i64,
    pub compressed: i64,
    pub uncompressed: i64,
}

impl Space {
    /// Space of one block.
    pub(crate) fn of(pipeline: &Pipeline, block: &BlockPointer) -> Space {
        Space {
            used: pipeline.dsize_bytes(block) as i64,
            compressed: block.psize_bytes() as i64,
            uncompressed: uncompressed_bytes(block) as i64,
        }
    }

    pub(crate) fn add(&mut self, other: Space) {
        self.used += other.used;
        self.compressed += other.compressed;
        self.uncompressed += other.uncompressed;
    }

    pub(crate) fn negated(self) -> Space {
        Space {
            used: -self.used,
            compressed: -self.compressed,
            uncompressed: -self.uncompressed,
        }
    }

    pub(crate) fn is_zero(self) -> bool {
        self == Space::default()
    }
}

impl From<object::BpobjSpace> for Space {
    fn from(space: object::BpobjSpace) -> Self {
        Space {
            used: space.used_bytes as i64,
            compressed: space.compressed_bytes as i64,
            uncompressed: space.uncompressed_bytes as i64,
        }
    }
}

impl From<Space> for object::BpobjSpace {
    fn from(space: Space) -> Self {
        object::BpobjSpace {
            used_bytes: space.used.max(0) as u64,
            compressed_bytes: space.compressed.max(0) as u64,
            uncompressed_bytes: space.uncompressed.max(0) as u64,
        }
    }
}

/// What a block counts as uncompressed (`BP_GET_UCSIZE`): metadata counts as it is stored.
fn uncompressed_bytes(block: &BlockPointer) -> u64 {
    if block.level() > 0 || block.object_type().is_metadata() {
        block.psize_bytes()
    } else {
        block.lsize_bytes()
    }
}

/// Adds a difference to a total. A total below zero means that the accounts on disk were wrong
/// before: it stays at zero, and says so in the log.
pub(crate) fn apply(total: &mut u64, delta: i64) {
    match total.checked_add_signed(delta) {
        Some(sum) => *total = sum,
        None => {
            tracing::error!(total = *total, delta, "space account would be below zero");
            *total = if delta < 0 { 0 } else { u64::MAX };
        }
    }
}

/// Change of `max(used, reserved)` when `used` changes by `delta`.
pub(crate) fn accounted_delta(used: u64, reserved: u64, delta: i64) -> i64 {
    let before = used.max(reserved);
    let after = used.saturating_add_signed(delta).max(reserved);
    after as i64 - before as i64
}
