//! Repairs under way: writes that put right what was found wrong while somebody read it.
//!
//! A reader holds nothing that keeps its block from being freed, and may go away while a device
//! takes its time. What is written then must not come to the place after somebody else got it. So a
//! repair is a task of its own, which the end of a transaction group waits for before it lets go of
//! freed space ([`RepairsHeld`]); and a reader that began before such an end repairs nothing any
//! more: the next one will.
//!
//! A device that takes a repair and does not answer holds up that end, and what becomes of it is
//! what becomes of the group's own writes (`crate::deadman`): where the pool has all without the
//! device, it is given up, the repair fails, and the group ends; where the pool needs it, the pool
//! is told to stand still, and goes on when the device answers. A pool that is given up waits for
//! no repair.

use std::pin::pin;
use std::sync::Arc;

use device::World;
use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot};

/// Between two times at which freed space came free. A read that began in one of them may repair
/// what it read until that one ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RepairEpoch(u64);

/// The repairs of a tree.
#[derive(Debug, Default)]
pub(crate) struct Repairs {
    state: Mutex<State>,
    ended: Notify,
}

#[derive(Debug, Default)]
struct State {
    epoch: u64,
    is_held: bool,
    under_way: usize,
}

/// One repair under way.
pub(crate) struct Turn(Arc<Repairs>);

impl Drop for Turn {
    fn drop(&mut self) {
        self.0.state.lock().under_way -= 1;
        self.0.ended.notify_waiters();
    }
}

/// No repair of a reader is under way, and none begins before this is dropped. Then another epoch
/// begins.
#[derive(Debug)]
pub struct RepairsHeld(Arc<Repairs>);

impl Drop for RepairsHeld {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.is_held = false;
        state.epoch += 1;
    }
}

impl Repairs {
    pub(crate) fn epoch(&self) -> RepairEpoch {
        RepairEpoch(self.state.lock().epoch)
    }

    /// Begins a repair of what was read since `since`; `None` when the block may be free by now.
    /// Without `since` nobody can free it (scans, which the sync loop runs).
    pub(crate) fn begin(self: &Arc<Self>, since: Option<RepairEpoch>) -> Option<Turn> {
        let mut state = self.state.lock();
        let is_late = |since: RepairEpoch| state.is_held || since.0 != state.epoch;
        if since.is_some_and(is_late) {
            return None;
        }
        state.under_way += 1;
        Some(Turn(self.clone()))
    }

    /// Waits for those under way, and lets no other begin.
    pub(crate) async fn hold(self: &Arc<Self>) -> RepairsHeld {
        self.state.lock().is_held = true;
        let held = RepairsHeld(self.clone());
        loop {
            let mut ended = pin!(self.ended.notified());
            ended.as_mut().enable();
            if self.state.lock().under_way == 0 {
                return held;
            }
            ended.await;
        }
    }
}

impl Turn {
    /// Does the repair, also when nobody waits for it any more. `None` when the process or the
    /// simulated machine ends.
    pub(crate) async fn run<T: Send + 'static>(
        self,
        world: &World,
        work: impl Future<Output = T> + Send + 'static,
    ) -> Option<T> {
        let (done, result) = oneshot::channel();
        world.spawn.spawn(Box::pin(async move {
            let out = work.await;
            drop(self);
            // The reader may be gone.
            let _ = done.send(out);
        }));
        result.await.ok()
    }
}
