//! Order in which blocks get their places.
//!
//! Blocks are compressed side by side and are ready in any order. Those of one object get their
//! places in the order of the object all the same: who reads it again finds neighbours side by
//! side, which a disk reads at once. Only places wait for their turn, nothing else.
//!
//! A turn ends when it is dropped, whatever became of its block. Where that happens before the turn
//! has come (a block needs no place), the next one does not wait for those before it: the order is
//! what is best, and nothing depends on it. Whoever makes turns starts the work of an earlier one
//! first: else a later one, which holds what an earlier one needs, would wait forever.

use tokio::sync::oneshot;

/// Makes turns, each after the one before.
#[derive(Debug, Default)]
pub struct Turns {
    last: Option<oneshot::Receiver<()>>,
}

/// The turn of one of several; dropped, it is the next one's.
#[derive(Debug)]
pub struct Turn {
    before: Option<oneshot::Receiver<()>>,
    /// That it is dropped is what the next one waits for.
    _over: oneshot::Sender<()>,
}

impl Turns {
    /// The turn after those that were made before.
    pub fn next_turn(&mut self) -> Turn {
        let (over, receiver) = oneshot::channel();
        Turn {
            before: self.last.replace(receiver),
            _over: over,
        }
    }
}

impl Turn {
    /// Completes when the one before it is over.
    pub async fn come(&mut self) {
        if let Some(before) = &mut self.before {
            // Nothing is ever sent.
            let _ = before.await;
            self.before = None;
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
        let mut third = all.pop().unwrap();
        assert!(futures::poll!(std::pin::pin!(last.come())).is_pending());
        all[0].come().await;
        // One that is given up ends as well: the next one waits for it alone.
        drop(all.pop());
        assert!(futures::poll!(std::pin::pin!(last.come())).is_pending());
        assert!(futures::poll!(std::pin::pin!(third.come())).is_ready());
        drop(all);
        drop(third);
        last.come().await;
    }
}
