//! Property `autotrim`: a task that has devices discard what came free.
//!
//! What may be discarded, and that nobody gets it meanwhile, is the allocator's business
//! (`zio::alloc`, module `trim`); which sectors of which device that is, the vdev's (crate `vdev`,
//! `trim`). The sync loop only tells the former what each txg made free, and wakes the task. The
//! task takes a part of one vdev's free space, waits for its discards, gives it back, and takes the
//! next.
//!
//! It runs while the property is on, beside everything else; while the pool is suspended no discard
//! begins (another host may have it by then). Whoever takes devices out of the pool's hands
//! (export, removal of a log) holds [`Gate`] over that: then no discard is under way, and none
//! begins. A crash while it runs leaves what was free, discarded or not.
//!
//! An idle pool writes no uberblocks, but nothing gets ripe without them: so it writes its
//! configuration anew, as often as that takes, for what was freed while it was not idle
//! ([`TrimWait`]).
//!
//! Source: module/zfs/vdev_trim.c (`vdev_autotrim_thread`, `vdev_autotrim`,
//! `vdev_autotrim_restart`).

use std::sync::Arc;
use std::sync::Weak;
use std::sync::atomic::{AtomicBool, Ordering};

use format::{Txg, VdevId};
use spa::props::Stored;
use spa::{Participant, Spa};
use tokio::sync::watch;
use zio::alloc::TrimWait;

use crate::Passes;

/// The task of property `autotrim`.
pub struct Autotrim {
    /// Wakes the task; its end, with the pool, ends the task.
    wake: watch::Sender<()>,
    running: AtomicBool,
}

impl Default for Autotrim {
    fn default() -> Self {
        Autotrim {
            wake: watch::Sender::new(()),
            running: AtomicBool::new(false),
        }
    }
}

impl Participant for Autotrim {
    /// Whether trimming needs another txg, though nobody else does.
    fn has_work(&self, spa: &Spa) -> bool {
        spa.pipeline.allocator().trim_waits().is_some()
    }

    fn done(&self, spa: &Spa, txg: Txg, wrote: bool) {
        if is_autotrim(spa) {
            spa.pipeline.allocator().age_trim(txg, wrote);
            self.wake.send_replace(());
        }
    }
}

/// Whether property `autotrim` is on.
fn is_autotrim(spa: &Spa) -> bool {
    spa.props.get("autotrim") == Some(Stored::Number(1))
}

impl Passes {
    /// Tells the allocator what property `autotrim` says.
    pub fn apply_autotrim(&self) {
        let on = is_autotrim(&self.spa) && !self.spa.read_only;
        self.spa.pipeline.allocator().set_trimming(on);
        self.autotrim.wake.send_replace(());
    }

    /// Starts the task, if the property is on and it does not run.
    pub fn start_trim(self: &Arc<Self>) {
        if self.spa.read_only
            || !is_autotrim(&self.spa)
            || self.autotrim.running.swap(true, Ordering::AcqRel)
        {
            return;
        }
        let (wake, weak) = (self.autotrim.wake.subscribe(), Arc::downgrade(self));
        let trimming = trim_until_closed(wake, weak);
        self.spa.pipeline.tasks().spawn("autotrim", trimming);
    }

    /// Whether the task goes on; ends it if not, without a gap in which nobody would start it
    /// again.
    fn trim_goes_on(&self) -> bool {
        let goes_on = || is_autotrim(&self.spa) && !self.spa.state.lock().closed;
        if goes_on() {
            return true;
        }
        self.autotrim.running.store(false, Ordering::Release);
        goes_on() && !self.autotrim.running.swap(true, Ordering::AcqRel)
    }

    /// Before `txg` is written: has it leave an uberblock if trimming waits for one.
    pub fn write_for_trim(&self, txg: Txg) {
        let allocator = self.spa.pipeline.allocator();
        if allocator.trim_waits() == Some(TrimWait::Uberblock)
            && !self.spa.dsl.syncer().has_dirty(txg)
        {
            allocator.note_forced_by_trim(txg);
            self.spa.identity.mark_dirty();
        }
    }

    /// Discards all that is ripe.
    async fn trim_ripe(&self) {
        // Nobody holds a vdev without the gate: it may change.
        let ids: Vec<VdevId> = self
            .spa
            .tree
            .tops()
            .iter()
            .map(|top| top.vdev_id())
            .collect();
        for id in ids {
            while self.trim_some(id).await {}
        }
    }

    /// Discards a part of what is ripe on a vdev; tells whether there was any.
    async fn trim_some(&self, id: VdevId) -> bool {
        let _gate = self.gate.enter().await;
        let Some(top) = self.spa.tree.top(id).filter(|top| top.can_discard_free()) else {
            return false;
        };
        if !is_autotrim(&self.spa) || self.spa.state.lock().closed || self.spa.suspended().is_some()
        {
            return false;
        }
        let Some(hold) = self.spa.pipeline.allocator().hold_for_trim(top.vdev_id()) else {
            return false;
        };
        let held_bytes = hold.ranges().space();
        let goes_on = || self.spa.suspended().is_none();
        let discarded = top.discard_free(hold.ranges(), &goes_on).await;
        hold.done();
        tracing::debug!(vdev = %top.vdev_id(), held_bytes, ?discarded, "trimmed");
        true
    }
}

async fn trim_until_closed(mut wake: watch::Receiver<()>, weak: Weak<Passes>) {
    loop {
        {
            let Some(passes) = weak.upgrade() else { return };
            if !passes.trim_goes_on() {
                return;
            }
            passes.trim_ripe().await;
        }
        if wake.changed().await.is_err() {
            return;
        }
    }
}
