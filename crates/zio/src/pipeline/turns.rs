//! Order in which blocks get their places.
//!
//! Blocks are compressed side by side and are ready in any order. Those of one object get their
//! places in the order of the object all the same: who reads it again finds neighbours side by
//! side, which a disk reads at once. Only places wait for their turn, nothing else.
//!
//! A turn ends when it is dropped, whatever became of its block: it may need no place, and then its
//! turn need not have come. Whoever makes turns starts the work of an earlier one first: else a
//! later one, which holds what an earlier one needs, would wait forever.
//!
//! Lock: that of the turns which are not over, for a map operation.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Poll, Waker};

use parking_lot::Mutex;

/// Turns that are not over, by number, and who waits for each. The first one has come.
type Open = Arc<Mutex<BTreeMap<u64, Option<Waker>>>>;

/// Makes turns, each after the one before.
#[derive(Debug, Default)]
pub struct Turns {
    next: u64,
    open: Open,
}

/// The turn of one of several; dropped, it is the next one's.
#[derive(Debug)]
pub struct Turn {
    number: u64,
    open: Open,
}

impl Turns {
    /// The turn after those that were made before.
    pub fn next_turn(&mut self) -> Turn {
        let (number, open) = (self.next, self.open.clone());
        self.next += 1;
        open.lock().insert(number, None);
        Turn { number, open }
    }
}

impl Turn {
    /// Completes when all that were made before it are over.
    pub async fn come(&mut self) {
        poll_fn(|context| {
            let mut open = self.open.lock();
            if open.range(..self.number).next().is_none() {
                return Poll::Ready(());
            }
            open.insert(self.number, Some(context.waker().clone()));
            Poll::Pending
        })
        .await;
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let next = {
            let mut open = self.open.lock();
            open.remove(&self.number);
            // One that does not come next wakes nobody.
            match open.first_entry() {
                Some(mut first) if *first.key() > self.number => first.get_mut().take(),
                _ => None,
            }
        };
        if let Some(next) = next {
            next.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn turns_come_in_order_and_end_when_they_are_dropped() {
        let mut turns = Turns::default();
        let mut all: Vec<Turn> = (0..4).map(|_| turns.next_turn()).collect();
        let mut last = all.pop().unwrap();
        assert!(futures::poll!(std::pin::pin!(last.come())).is_pending());
        all[0].come().await;
        // One whose turn has not come needs no place: the next one waits for those before it.
        drop(all.pop());
        assert!(futures::poll!(std::pin::pin!(last.come())).is_pending());
        drop(all.pop());
        assert!(futures::poll!(std::pin::pin!(last.come())).is_pending());
        drop(all);
        last.come().await;
        // What is made later waits as well.
        let mut later = turns.next_turn();
        assert!(futures::poll!(std::pin::pin!(later.come())).is_pending());
        drop(last);
        later.come().await;
        drop(later);
        turns.next_turn().come().await;
    }

    /// Whoever waits is woken when the last one before it is over, in whatever order they end.
    #[tokio::test]
    async fn who_waits_is_woken() {
        for order in [[0, 1, 2], [2, 0, 1], [1, 2, 0], [2, 1, 0]] {
            let mut turns = Turns::default();
            let mut before: Vec<_> = (0..3).map(|_| Some(turns.next_turn())).collect();
            let mut last = turns.next_turn();
            let waits = tokio::spawn(async move { last.come().await });
            for at in order {
                tokio::task::yield_now().await;
                assert!(!waits.is_finished(), "{order:?}");
                before[at] = None;
            }
            waits.await.unwrap();
        }
    }
}
