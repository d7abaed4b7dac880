//! Memory for what sessions have under way: one budget for all of them.
//!
//! A session has a [`Share`] of it. One part it has for being there, its base: buffers of its
//! connection, and a place for each command that it may send unasked (its command window). The
//! other part, the extra, it takes for commands that need more than their place: bytes of a write
//! before they are asked for, bytes of a read before it begins. What does not fit waits; nothing
//! fails for it, and what has been taken in was paid for before.
//!
//! So that none lives at the cost of others:
//!
//! - A session that has an extra may only take as much more as leaves at least as much free as it
//!   then has. `n` greedy sessions thus leave a part in `n + 1` to the next, also where theirs
//!   never come to an end (their pool is suspended).
//! - While a session without an extra waits for one, no other gets more.
//! - Bases leave a quarter of the budget to extras, windows beyond the smallest half of it. A wide
//!   window leaves at least as much to others as it then has.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::task::Waker;

#[derive(Debug, Default)]
struct State {
    /// Bases and extras.
    used_bytes: u64,
    base_bytes: u64,
    /// Sessions without an extra that wait for one.
    starving_count: usize,
    /// How often memory has come free.
    release_count: u64,
    /// Who is to be woken when memory comes free, by share.
    waiting: BTreeMap<u64, Waker>,
    next_share: u64,
}

impl State {
    /// Bytes that bases may still take, of a budget that leaves `bases_bytes` of its limit to them.
    fn room_for_base(&self, limit_bytes: u64, bases_bytes: u64) -> u64 {
        let free_bytes = limit_bytes - self.used_bytes;
        free_bytes.min(bases_bytes.saturating_sub(self.base_bytes))
    }
}

/// See the head of the module.
#[derive(Debug)]
pub(crate) struct Budget {
    limit_bytes: u64,
    state: Mutex<State>,
}

impl Budget {
    pub(crate) fn new(limit_bytes: u64) -> Self {
        Self {
            limit_bytes,
            state: Mutex::default(),
        }
    }

    /// Bytes that there are for all sessions.
    pub(crate) fn limit_bytes(&self) -> u64 {
        self.limit_bytes
    }

    /// Bytes taken by all sessions.
    pub(crate) fn used_bytes(&self) -> u64 {
        self.state.lock().used_bytes
    }
}

/// What one session has of the budget; dropping it gives all back.
#[derive(Debug)]
pub(crate) struct Share {
    budget: Arc<Budget>,
    number: u64,
    base_bytes: u64,
    extra_bytes: u64,
    is_starving: bool,
    /// [`State::release_count`] when something last did not fit.
    seen_release: u64,
}

impl Share {
    /// A new session's share; `None` if there is no room for another session.
    pub(crate) fn open(budget: &Arc<Budget>, base_bytes: u64) -> Option<Self> {
        let mut state = budget.state.lock();
        if base_bytes > state.room_for_base(budget.limit_bytes, budget.limit_bytes / 4 * 3) {
            return None;
        }
        state.used_bytes += base_bytes;
        state.base_bytes += base_bytes;
        let number = state.next_share;
        state.next_share += 1;
        Some(Self {
            budget: budget.clone(),
            number,
            base_bytes,
            extra_bytes: 0,
            is_starving: false,
            seen_release: 0,
        })
    }

    /// Adds up to `count` pieces to the base, as many as there is room for; returns how many.
    pub(crate) fn grow(&mut self, count: u32, piece_bytes: u64) -> u32 {
        let mut state = self.budget.state.lock();
        let limit_bytes = self.budget.limit_bytes;
        let room = state.room_for_base(limit_bytes, limit_bytes / 2);
        let fair = room.saturating_sub(self.base_bytes) / 2;
        let pieces = (fair / piece_bytes).min(count.into());
        state.used_bytes += pieces * piece_bytes;
        state.base_bytes += pieces * piece_bytes;
        self.base_bytes += pieces * piece_bytes;
        // At most `count`.
        pieces as u32
    }

    /// Gives a part of the base back.
    pub(crate) fn shrink(&mut self, bytes: u64) {
        self.base_bytes -= bytes;
        self.release(bytes, bytes);
    }

    /// Takes an extra, or says that it has to wait.
    pub(crate) fn take(&mut self, bytes: u64) -> bool {
        if bytes == 0 {
            return true;
        }
        let mut state = self.budget.state.lock();
        let free_bytes = self.budget.limit_bytes - state.used_bytes;
        let fits = match self.extra_bytes {
            0 => bytes <= free_bytes,
            extra_bytes => state.starving_count == 0 && extra_bytes + 2 * bytes <= free_bytes,
        };
        if !fits {
            self.seen_release = state.release_count;
            if self.extra_bytes == 0 && !self.is_starving {
                self.is_starving = true;
                state.starving_count += 1;
            }
            return false;
        }
        state.used_bytes += bytes;
        self.extra_bytes += bytes;
        drop(state);
        self.is_fed();
        true
    }

    /// Gives a part of the extra back.
    pub(crate) fn give_back(&mut self, bytes: u64) {
        self.extra_bytes -= bytes;
        self.release(bytes, 0);
    }

    /// Nothing waits for memory any more.
    pub(crate) fn is_fed(&mut self) {
        if self.is_starving {
            self.is_starving = false;
            let mut state = self.budget.state.lock();
            state.starving_count -= 1;
            // Others were held back for its sake.
            self.wake(state);
        }
    }

    /// Has `waker` woken when memory comes free. False if it has since something did not fit, and
    /// it is worth trying again.
    pub(crate) fn wait(&self, waker: &Waker) -> bool {
        let mut state = self.budget.state.lock();
        if state.release_count != self.seen_release {
            return false;
        }
        state.waiting.insert(self.number, waker.clone());
        true
    }

    /// Gives `bytes` back, of which `base_bytes` were a base's.
    fn release(&self, bytes: u64, base_bytes: u64) {
        if bytes == 0 {
            return;
        }
        let mut state = self.budget.state.lock();
        state.used_bytes -= bytes;
        state.base_bytes -= base_bytes;
        self.wake(state);
    }

    fn wake(&self, mut state: parking_lot::MutexGuard<'_, State>) {
        state.release_count += 1;
        let waiting = std::mem::take(&mut state.waiting);
        drop(state);
        for waker in waiting.into_values() {
            waker.wake();
        }
    }

    /// Base and extra, in bytes.
    #[cfg(test)]
    pub(crate) fn held_bytes(&self) -> (u64, u64) {
        (self.base_bytes, self.extra_bytes)
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.is_fed();
        self.budget.state.lock().waiting.remove(&self.number);
        self.release(self.base_bytes + self.extra_bytes, self.base_bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    fn budget(limit_bytes: u64) -> Arc<Budget> {
        Arc::new(Budget::new(limit_bytes))
    }

    #[test]
    fn greedy_sessions_leave_a_part_to_the_next() {
        let budget = budget(1000);
        let mut shares: Vec<Share> = Vec::new();
        for greedy in 1..=5 {
            let mut share = Share::open(&budget, 0).unwrap();
            while share.take(10) {}
            shares.push(share);
            let free_bytes = 1000 - budget.used_bytes();
            assert!(free_bytes >= 1000 >> greedy, "{greedy}: {free_bytes}");
        }
        // All the time one takes as others give back, they come to equal parts.
        for _ in 0..100 {
            for share in &mut shares {
                share.give_back(10);
                while share.take(10) {}
            }
        }
        let free_bytes = 1000 - budget.used_bytes();
        assert!(free_bytes >= 1000 / 6 - 10, "{free_bytes}");
    }

    #[test]
    fn a_session_with_nothing_comes_before_those_with_more() {
        let budget = budget(1000);
        let mut rich = Share::open(&budget, 0).unwrap();
        let mut poor = Share::open(&budget, 0).unwrap();
        assert!(rich.take(400));
        assert!(!poor.take(700));
        // It would fit, but who has nothing waits.
        assert!(!rich.take(10));
        rich.give_back(300);
        assert!(!rich.take(10));
        assert!(poor.take(700));
        assert!(rich.take(10));
        // Giving up is as good.
        let mut third = Share::open(&budget, 0).unwrap();
        assert!(!third.take(900));
        poor.give_back(700);
        assert!(!rich.take(10));
        drop(third);
        assert!(rich.take(10));
    }

    #[test]
    fn new_sessions_and_windows_leave_room_for_commands() {
        let budget = budget(1000);
        let mut first = Share::open(&budget, 100).unwrap();
        // Of 500, as much is left as it has.
        assert_eq!(first.grow(1, 100), 1);
        assert_eq!(first.grow(3, 50), 1);
        assert_eq!(first.grow(3, 100), 0);
        let second = Share::open(&budget, 500).unwrap();
        assert!(Share::open(&budget, 10).is_none());
        assert!(first.take(250));
        drop(second);
        first.shrink(150);
        assert_eq!(first.held_bytes(), (100, 250));
        assert_eq!(budget.used_bytes(), 350);
        drop(first);
        assert_eq!(budget.used_bytes(), 0);
    }

    #[test]
    fn who_waits_is_woken_and_misses_nothing() {
        struct Count(AtomicUsize);
        impl std::task::Wake for Count {
            fn wake(self: Arc<Self>) {
                self.0.fetch_add(1, Ordering::Relaxed);
            }
        }
        let count = Arc::new(Count(AtomicUsize::new(0)));
        let waker = Waker::from(count.clone());
        let budget = budget(100);
        let mut one = Share::open(&budget, 0).unwrap();
        let mut other = Share::open(&budget, 0).unwrap();
        assert!(one.take(100));
        assert!(!other.take(50));
        assert!(other.wait(&waker));
        one.give_back(60);
        assert_eq!(count.0.load(Ordering::Relaxed), 1);
        // What came free in between is noticed.
        assert!(!other.wait(&waker));
        assert!(other.take(50));
    }
}
