//! Operations of a leaf that are under way, for those who have to know how they end.

use std::collections::BTreeSet;
use std::pin::pin;

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
}

/// One of them, until this is dropped.
pub(super) struct Turn<'a> {
    all: &'a UnderWay,
    number: u64,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
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
        Turn { all: self, number }
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
}
