//! Keeps I/O on a RAID-Z vdev that is being expanded apart from the move of its sectors.
//!
//! I/O knows where a block is from the moment at which it looked; so nothing of that range may be
//! moved before the I/O ends, and none may begin while it is moved. Who moves announces a range
//! first, so that I/O without end does not keep it away.

use std::collections::BTreeMap;
use std::ops::Range;
use std::pin::pin;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;

/// I/O and moves of one vdev, by ranges of its bytes.
///
/// Lock: for operations on the map only. At most one moves at a time: the sync loop.
#[derive(Debug, Default)]
pub(crate) struct RangeGate {
    inside: Mutex<Inside>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct Inside {
    /// I/O under way, by number.
    shared: BTreeMap<u64, Range<u64>>,
    /// What is moved, or is to be when the I/O there has ended.
    closed: Option<Range<u64>>,
    next: u64,
}

fn overlap(a: &Range<u64>, b: &Range<u64>) -> bool {
    a.start < b.end && b.start < a.end
}

/// I/O on a range, until this is dropped.
#[derive(Debug)]
pub(crate) struct Shared<'a> {
    gate: &'a RangeGate,
    number: u64,
}

impl Drop for Shared<'_> {
    fn drop(&mut self) {
        self.gate.inside.lock().shared.remove(&self.number);
        self.gate.changed.notify_waiters();
    }
}

/// A range that no I/O is on, until this is dropped.
#[derive(Debug)]
pub(crate) struct Closed(Arc<RangeGate>);

impl Drop for Closed {
    fn drop(&mut self) {
        self.0.inside.lock().closed = None;
        self.0.changed.notify_waiters();
    }
}

impl RangeGate {
    /// Waits until nothing of the range is being moved; nothing is until the answer is dropped.
    pub(crate) async fn share(&self, range: Range<u64>) -> Shared<'_> {
        loop {
            let mut changed = pin!(self.changed.notified());
            changed.as_mut().enable();
            {
                let mut inside = self.inside.lock();
                if inside.closed.as_ref().is_none_or(|at| !overlap(at, &range)) {
                    let number = inside.next;
                    inside.next += 1;
                    inside.shared.insert(number, range);
                    return Shared { gate: self, number };
                }
            }
            changed.await;
        }
    }

    /// Lets no more I/O into the range, and waits for the end of what is there. Dropped in between,
    /// it is as if it had not been asked.
    pub(crate) async fn close(self: &Arc<Self>, range: Range<u64>) -> Closed {
        self.inside.lock().closed = Some(range.clone());
        let closed = Closed(self.clone());
        loop {
            let mut changed = pin!(self.changed.notified());
            changed.as_mut().enable();
            let is_used = {
                let inside = self.inside.lock();
                inside.shared.values().any(|at| overlap(at, &range))
            };
            if !is_used {
                return closed;
            }
            changed.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    /// Who moves waits for I/O on the range and keeps more of it out, and nothing else.
    #[test]
    fn what_is_moved_and_what_is_used_keep_apart() {
        let gate = Arc::new(RangeGate::default());
        let first = gate.share(0..10).now_or_never().expect("nothing is moved");
        let mut moves = Box::pin(gate.close(5..20));
        assert!(moves.as_mut().now_or_never().is_none(), "it is in use");
        assert!(
            gate.share(19..30).now_or_never().is_none(),
            "it is about to be moved"
        );
        drop(gate.share(20..30).now_or_never().expect("beyond"));
        drop(first);
        let closed = moves.as_mut().now_or_never().expect("nobody uses it");
        assert!(gate.share(5..6).now_or_never().is_none(), "it is moved");
        drop(closed);
        drop(gate.share(5..6).now_or_never().expect("it is over"));
        let held = gate.share(0..1).now_or_never().expect("free");
        let mut given_up = Box::pin(gate.close(0..1));
        assert!(given_up.as_mut().now_or_never().is_none());
        drop(given_up);
        drop(held);
        drop(gate.share(0..1).now_or_never().expect("it was given up"));
    }
}
