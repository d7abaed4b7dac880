//! Locks on ranges of bytes of a file or volume, held across awaits (`zfs_rangelock`).
//!
//! Shared locks (readers) go together; an exclusive one (a writer) excludes all that overlap it.
//! Who came first goes first, so nobody starves. Locks are taken before a txg is joined
//! (`Dataset::assign`), never while one is held.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::oneshot;

#[derive(Debug, Clone, Copy)]
struct Range {
    id: u64,
    start: u64,
    end: u64,
    exclusive: bool,
}

impl Range {
    fn conflicts(&self, other: &Self) -> bool {
        (self.exclusive || other.exclusive) && self.start < other.end && other.start < self.end
    }
}

#[derive(Default)]
struct State {
    next_id: u64,
    held: Vec<Range>,
    waiting: VecDeque<(Range, oneshot::Sender<()>)>,
}

impl State {
    fn is_free(&self, range: &Range) -> bool {
        !self.held.iter().any(|held| held.conflicts(range))
            && !self
                .waiting
                .iter()
                .any(|(waiting, _)| waiting.conflicts(range))
    }

    /// Lets in, in order of arrival, who conflicts with nobody inside or before.
    fn admit(&mut self) {
        let mut index = 0;
        while index < self.waiting.len() {
            let range = self.waiting[index].0;
            let blocked = self.held.iter().any(|held| held.conflicts(&range))
                || self
                    .waiting
                    .iter()
                    .take(index)
                    .any(|(before, _)| before.conflicts(&range));
            if blocked {
                index += 1;
                continue;
            }
            if let Some((range, wake)) = self.waiting.remove(index) {
                self.held.push(range);
                // Where the waiter is gone, its guard removes the range again.
                let _ = wake.send(());
            }
        }
    }
}

/// The locked ranges of one file or volume. Cheap to clone: clones are the same lock.
#[derive(Clone, Default)]
pub struct RangeLock(Arc<Mutex<State>>);

/// A locked range; unlocked when dropped.
#[must_use = "dropping it unlocks the range"]
pub struct RangeGuard {
    lock: RangeLock,
    id: u64,
}

impl Drop for RangeGuard {
    fn drop(&mut self) {
        let mut state = self.lock.0.lock();
        state.held.retain(|range| range.id != self.id);
        state.waiting.retain(|(range, _)| range.id != self.id);
        state.admit();
    }
}

impl RangeLock {
    /// Locks `start..end` (an empty range conflicts with nothing), exclusively or shared.
    pub async fn lock(&self, start: u64, end: u64, exclusive: bool) -> RangeGuard {
        let (guard, wait) = {
            let mut state = self.0.lock();
            let range = state.range(start, end, exclusive);
            let guard = RangeGuard {
                lock: self.clone(),
                id: range.id,
            };
            if state.is_free(&range) {
                state.held.push(range);
                return guard;
            }
            let (wake, wait) = oneshot::channel();
            state.waiting.push_back((range, wake));
            (guard, wait)
        };
        // The sender lives in the queue until it is used, and the queue until the guard is gone.
        let _ = wait.await;
        guard
    }

    /// Locks if that needs no waiting.
    pub fn try_lock(&self, start: u64, end: u64, exclusive: bool) -> Option<RangeGuard> {
        let mut state = self.0.lock();
        let range = state.range(start, end, exclusive);
        if !state.is_free(&range) {
            return None;
        }
        state.held.push(range);
        Some(RangeGuard {
            lock: self.clone(),
            id: range.id,
        })
    }
}

impl State {
    fn range(&mut self, start: u64, end: u64, exclusive: bool) -> Range {
        self.next_id += 1;
        Range {
            id: self.next_id,
            start,
            end,
            exclusive,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;

    #[test]
    fn readers_share_and_writers_do_not() {
        let lock = RangeLock::default();
        let first = lock.try_lock(0, 10, false).unwrap();
        let second = lock.try_lock(5, 15, false).unwrap();
        assert!(lock.try_lock(9, 11, true).is_none());
        assert!(lock.try_lock(15, 20, true).is_some());
        drop((first, second));
        assert!(lock.try_lock(0, u64::MAX, true).is_some());
    }

    #[test]
    fn a_waiting_writer_goes_before_later_readers() {
        let lock = RangeLock::default();
        let reader = lock.try_lock(0, 10, false).unwrap();
        let mut writer = Box::pin(lock.lock(0, 10, true));
        assert!((&mut writer).now_or_never().is_none());
        assert!(
            lock.try_lock(0, 10, false).is_none(),
            "the writer came first"
        );
        let mut late = Box::pin(lock.lock(0, 1, false));
        assert!((&mut late).now_or_never().is_none());
        drop(reader);
        assert!((&mut late).now_or_never().is_none());
        let held = (&mut writer).now_or_never().expect("the writer is in");
        drop(held);
        assert!((&mut late).now_or_never().is_some());
    }

    #[test]
    fn a_waiter_that_gives_up_frees_those_behind_it() {
        let lock = RangeLock::default();
        let reader = lock.try_lock(0, 10, false).unwrap();
        let mut writer = Box::pin(lock.lock(0, 10, true));
        assert!((&mut writer).now_or_never().is_none());
        let mut late = Box::pin(lock.lock(0, 10, false));
        assert!((&mut late).now_or_never().is_none());
        drop(writer);
        assert!((&mut late).now_or_never().is_some());
        drop(reader);
        // A waiter dropped after it was let in, before it noticed.
        let held = lock.try_lock(0, 10, true).unwrap();
        let mut waiter = Box::pin(lock.lock(0, 10, true));
        assert!((&mut waiter).now_or_never().is_none());
        drop(held);
        drop(waiter);
        assert!(lock.try_lock(0, 10, true).is_some());
    }
}
