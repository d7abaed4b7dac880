//! The transaction groups whose writes a device lacks (`DTL_MISSING`, and `DTL_SCRUB` of what scans
//! failed to write; `vdev_dtl_*`, module/zfs/vdev.c).
//!
//! Locks: `missing`, `scan_failed`; each for operations on a set, never nested.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use format::Txg;
use parking_lot::Mutex;

use crate::range_set::RangeSet;

/// The transaction groups whose writes a device lacks.
#[derive(Debug, Default)]
pub struct DirtyTimes {
    missing: Mutex<RangeSet>,
    /// Txgs of which a scrub or resilver could not write a block to it.
    scan_failed: Mutex<RangeSet>,
    /// Some of these only because the pool was suspended.
    scan_refused: AtomicBool,
    /// Whether `missing` holds anything, for the fast path.
    has_missing: AtomicBool,
    /// The last txg of which it failed to take a write since it was opened; zero is none.
    failed_txg: AtomicU64,
    /// How many writes it failed to take.
    lost_writes: AtomicU64,
}

impl DirtyTimes {
    /// Whether it lacks writes of this txg.
    pub(crate) fn is_missing(&self, txg: Txg) -> bool {
        self.has_missing.load(Ordering::Acquire)
            && !txg.is_zero()
            && self.missing.lock().contains(txg.get(), 1)
    }

    /// The txgs that it lacks writes of.
    pub fn missing(&self) -> RangeSet {
        self.missing.lock().clone()
    }

    /// Replaces the txgs that it lacks writes of (from the pool's DTL objects; after a resilver).
    pub fn set_missing(&self, missing: RangeSet) {
        self.has_missing
            .store(!missing.is_empty(), Ordering::Release);
        *self.missing.lock() = missing;
    }

    /// Changes the txgs that it lacks writes of in one step: others may add some at any time.
    pub fn change_missing(&self, change: impl FnOnce(&mut RangeSet)) {
        let mut missing = self.missing.lock();
        change(&mut missing);
        self.has_missing
            .store(!missing.is_empty(), Ordering::Release);
    }

    /// It lacks writes of this txg.
    pub fn add_missing(&self, txg: Txg) {
        if txg.is_zero() {
            return;
        }
        self.missing.lock().add(txg.get(), 1);
        self.has_missing.store(true, Ordering::Release);
    }

    /// It failed to take a write of this txg.
    pub(crate) fn note_lost_write(&self, txg: Txg) {
        self.add_missing(txg);
        self.failed_txg.fetch_max(txg.get(), Ordering::Relaxed);
        self.lost_writes.fetch_add(1, Ordering::Relaxed);
    }

    /// How many writes it failed to take since the pool was opened, whatever their txg.
    pub fn lost_writes(&self) -> u64 {
        self.lost_writes.load(Ordering::Relaxed)
    }

    /// The last txg of which it failed to take a write since it was opened, or its errors were
    /// cleared; zero is none.
    pub fn last_failed_txg(&self) -> Txg {
        Txg::new(self.failed_txg.load(Ordering::Relaxed))
    }

    /// The txgs whose blocks scans could not write to it since the last call.
    pub fn take_scan_failed(&self) -> RangeSet {
        self.scan_failed.lock().take()
    }

    /// The same, which stay noted.
    pub fn scan_failed(&self) -> RangeSet {
        self.scan_failed.lock().clone()
    }

    /// Whether scans could not write to it since the last call because the pool was suspended: the
    /// device may be as good as any.
    pub fn take_scan_refused(&self) -> bool {
        self.scan_refused.swap(false, Ordering::Relaxed)
    }

    /// Its device was opened, or its errors were cleared.
    pub(crate) fn forget_failures(&self) {
        self.failed_txg.store(0, Ordering::Relaxed);
    }

    /// It may have lost what it took in these txgs and did not flush, what scans gave it as well.
    pub(crate) fn note_unflushed(&self, first: u64, last: u64) {
        self.missing.lock().add(first, last - first + 1);
        self.has_missing.store(true, Ordering::Release);
        self.scan_failed.lock().add(first, last - first + 1);
    }

    /// A scan could not write a block of this txg to it.
    pub(crate) fn note_scan_failed(&self, txg: Txg) {
        self.scan_failed.lock().add(txg.get(), 1);
    }

    /// A scan could not write to it because the pool was suspended.
    pub(crate) fn note_scan_refused(&self) {
        self.scan_refused.store(true, Ordering::Relaxed);
    }
}
