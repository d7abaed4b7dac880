//! Flushes and durable writes of a leaf that are under way, and whether one of them failed.
//!
//! The system tells once that it could not write something back, to whoever asks first, and has
//! dropped it then. So whoever flushed, or wrote durably, and was told that all is well, waits for
//! those that are under way still, and looks whether any of them failed: what that one was told of
//! may have been his.
//!
//! Nobody waits for others while he has a turn himself.

use std::collections::BTreeSet;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use tokio::sync::Notify;

#[derive(Debug, Default)]
struct Numbers {
    next: u64,
    under_way: BTreeSet<u64>,
}

/// Operations under way. Whoever waits for those that there are holds up none that comes later.
#[derive(Debug, Default)]
pub(super) struct UnderWay {
    numbers: Mutex<Numbers>,
    ended: Notify,
    doubted: AtomicBool,
}

/// One of them, until this is dropped. It has failed unless it says otherwise ([`Self::end`]): how
/// one ends that nobody waits for any more, nobody will know.
pub(super) struct Turn<'a> {
    all: &'a UnderWay,
    number: u64,
    is_well: bool,
}

impl Turn<'_> {
    pub(super) fn end(mut self, is_well: bool) {
        self.is_well = is_well;
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        // First, so that who waited for it sees that.
        if !self.is_well {
            self.all.doubted.store(true, Ordering::Release);
        }
        self.all.numbers.lock().under_way.remove(&self.number);
        self.all.ended.notify_waiters();
    }
}

impl UnderWay {
    pub(super) fn begin(&self) -> Turn<'_> {
        let mut numbers = self.numbers.lock();
        let number = numbers.next;
        numbers.next += 1;
        numbers.under_way.insert(number);
        Turn {
            all: self,
            number,
            is_well: false,
        }
    }

    /// Waits until all have ended that are under way now.
    pub(super) async fn wait_for_these(&self) {
        let later = self.numbers.lock().next;
        loop {
            // Before it is looked, so that no end is missed.
            let mut ended = pin!(self.ended.notified());
            ended.as_mut().enable();
            let first = self.numbers.lock().under_way.first().copied();
            if first.is_none_or(|first| first >= later) {
                return;
            }
            ended.await;
        }
    }

    /// Whether one failed: what was not durable before may be lost, whatever a flush says, until it
    /// was written again.
    pub(super) fn is_doubted(&self) -> bool {
        self.doubted.load(Ordering::Acquire)
    }

    /// All that may be lost was written again, or there is nothing. None is under way.
    pub(super) fn believe(&self) {
        self.doubted.store(false, Ordering::Release);
    }
}
