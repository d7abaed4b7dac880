//! What a pool leaves to people.

use crate::Pool;

/// From now on spares stand in by `zpool replace` alone, as where OpenZFS runs without zed. They
/// return to their list as ever. An import says so in its specification, as it looks for devices
/// that are bad.
pub fn leave_spares_to_people(pool: &Pool) {
    pool.core.spares.set_by_hand();
}
