//! What the pool's state on disk says of the writes that a device lacks: all that a crash leaves of
//! its dirty times.

use format::Txg;
use parking_lot::Mutex;

use crate::range_set::RangeSet;

/// Which txgs' writes a device lacks, as a crash would leave it.
#[derive(Debug, Default)]
pub struct Recorded(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    missing: RangeSet,
    /// The pool's state is of this txg.
    synced: Txg,
}

impl Recorded {
    /// Notes which transaction groups' writes the device lacks by the state of the pool that is on
    /// disk, which is of `synced`: when that was written or read.
    pub fn set(&self, missing: RangeSet, synced: Txg) {
        *self.0.lock() = State { missing, synced };
    }

    /// Whether no crash would tell that the device lacks anything.
    pub(crate) fn is_whole(&self) -> bool {
        self.0.lock().missing.is_empty()
    }

    /// Whether it lacks writes of `txg`; a device that lacks the last txg lacks what came later as
    /// well.
    pub(crate) fn contains(&self, txg: Txg) -> bool {
        let state = self.0.lock();
        let txg = txg.min(state.synced);
        !txg.is_zero() && state.missing.contains(txg.get(), 1)
    }
}
