//! The gate of those who work at free space, and of those who must not have any of that.

use std::sync::atomic::{AtomicBool, Ordering};

use device::BoxFuture;
use tokio::sync::{RwLockReadGuard, RwLockWriteGuard, TryLockError};

/// Held by those who discard or initialize free space, side by side, while devices are at it; and
/// by those who must not have any of that, alone.
#[derive(Default)]
pub struct Gate {
    lock: tokio::sync::RwLock<()>,
    /// Somebody wants it alone who does not wait for it.
    is_wanted: AtomicBool,
}

impl Gate {
    /// Waits until nothing is under way, and keeps it so. In a box: what waits for it would else be
    /// a future too deep for the compiler.
    pub fn lock(&self) -> BoxFuture<'_, RwLockWriteGuard<'_, ()>> {
        Box::pin(self.lock.write())
    }

    /// The same for who must not wait. Who fails is let through soon: [`Self::is_wanted`].
    pub fn try_lock(&self) -> Result<RwLockWriteGuard<'_, ()>, TryLockError> {
        let guard = self.lock.try_write();
        self.is_wanted.store(guard.is_err(), Ordering::Release);
        guard
    }

    /// For those who discard or initialize.
    pub fn enter(&self) -> BoxFuture<'_, RwLockReadGuard<'_, ()>> {
        Box::pin(self.lock.read())
    }

    /// Whether whoever enters again and again should pause for somebody.
    pub fn is_wanted(&self) -> bool {
        self.is_wanted.load(Ordering::Acquire)
    }

    /// He was paused for, long enough.
    pub fn forget_wanted(&self) {
        self.is_wanted.store(false, Ordering::Release);
    }
}
