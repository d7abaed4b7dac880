//! Keeps writes of log blocks and copies of a sequential rebuild apart.
//!
//! A copy reads a range from one device and writes it to others. A log's write that reached the
//! range between the two would be undone on the device that is to be trusted from then on.

use std::collections::BTreeMap;
use std::ops::Range;
use std::pin::pin;

use format::VdevId;
use parking_lot::Mutex;
use tokio::sync::Notify;

/// Keeps writes of log blocks and copies of a rebuild apart where they overlap.
///
/// Lock: for operations on maps only.
#[derive(Debug, Default)]
pub(crate) struct Fence {
    under_way: Mutex<UnderWay>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct UnderWay {
    /// By top-level vdev and number, where they are.
    writes: BTreeMap<(VdevId, u64), Range<u64>>,
    copies: BTreeMap<(VdevId, u64), Range<u64>>,
    next: u64,
}

/// The two that do not mix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    Write,
    Copy,
}

impl UnderWay {
    fn side(&mut self, side: Side) -> &mut BTreeMap<(VdevId, u64), Range<u64>> {
        match side {
            Side::Write => &mut self.writes,
            Side::Copy => &mut self.copies,
        }
    }

    fn enter(&mut self, side: Side, vdev: VdevId, range: &Range<u64>) -> Option<u64> {
        let other = match side {
            Side::Write => &self.copies,
            Side::Copy => &self.writes,
        };
        let mut there = other.range((vdev, 0)..=(vdev, u64::MAX));
        if there.any(|(_, at)| at.start < range.end && range.start < at.end) {
            return None;
        }
        let number = self.next;
        self.next += 1;
        self.side(side).insert((vdev, number), range.clone());
        Some(number)
    }
}

/// A range that one side has, until this is dropped.
pub(crate) struct Entered<'a> {
    fence: &'a Fence,
    side: Side,
    key: (VdevId, u64),
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        self.fence
            .under_way
            .lock()
            .side(self.side)
            .remove(&self.key);
        self.fence.changed.notify_waiters();
    }
}

impl Fence {
    /// Waits until nothing of the other side is where `range` is; until the answer is dropped,
    /// nothing of it begins there.
    pub(crate) async fn enter(&self, side: Side, vdev: VdevId, range: Range<u64>) -> Entered<'_> {
        loop {
            let mut changed = pin!(self.changed.notified());
            changed.as_mut().enable();
            if let Some(number) = self.under_way.lock().enter(side, vdev, &range) {
                return Entered {
                    fence: self,
                    side,
                    key: (vdev, number),
                };
            }
            changed.await;
        }
    }
}
