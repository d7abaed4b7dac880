//! One pass over the free space of a device.

use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use format::LABEL_START_BYTES;
use vdev::{
    Leaf, RangeSet, TRIM_EXTENT_BYTES_MAX, TRIM_EXTENT_BYTES_MIN, Vdev, VdevError, VdevKind,
};
use zio::alloc::{DEFER_TXGS, FreeHoldResult};

use super::{Activity, ActivityKind, ActivityState, Key, VALUE, leaf_of};
use crate::Passes;

/// Bytes of one write (`zfs_initialize_chunk_size`).
const WRITE_BYTES: u64 = 1 << 20;
/// Bytes that are held at the same time to be initialized, and to be trimmed.
const HOLD_BYTES: [u64; 2] = [16 << 20, 512 << 20];
/// Txgs that are written before a pass begins, so that what was freed before it counts as free.
const SETTLING_TXGS: u64 = 2 * DEFER_TXGS + 1;
/// How long a pass rests for an allocation that had to wait.
const REST: Duration = Duration::from_secs(1);
/// How often one that waits looks whether it is to stop.
const LOOK: Duration = Duration::from_millis(100);
/// How long it rests for somebody who wants the vdevs for himself: longer than a txg takes.
const RESTS_FOR_GATE: u32 = 70;

/// How a step ended.
enum Step {
    /// There is more.
    More,
    /// Not now.
    Rest,
    /// That was all.
    Whole,
    /// It cannot go on, or is not to.
    Interrupted,
}

/// Runs a pass until it is whole or cannot go on.
pub(super) async fn run(weak: Weak<Passes>, key: Key) {
    let mut pass = LeafPass::new(key);
    let is_whole = loop {
        let step = {
            let Some(passes) = weak.upgrade() else { return };
            match pass.is_settled {
                true => pass.step(&passes).await,
                false => pass.settle(&passes).await,
            }
        };
        match step {
            Step::More => {}
            Step::Rest => pass.pause(&weak, REST).await,
            Step::Whole => break true,
            Step::Interrupted => break false,
        }
        pass.keep_rate(&weak).await;
        let mut rests = 0;
        while weak.upgrade().is_some_and(|passes| passes.gate.is_wanted()) {
            pass.pause(&weak, LOOK).await;
            rests += 1;
            if rests == RESTS_FOR_GATE
                && let Some(passes) = weak.upgrade()
            {
                passes.gate.forget_wanted();
            }
        }
    };
    if let Some(passes) = weak.upgrade() {
        passes.activities.ended(&passes.spa, key, is_whole);
    }
}

struct LeafPass {
    key: Key,
    is_settled: bool,
    /// The next offset on the top-level vdev.
    from: Option<u64>,
    /// What `zpool initialize` writes.
    pattern: Option<Bytes>,
    /// Bytes per second.
    rate: u64,
    /// Bytes since then, by the monotonic clock.
    done_bytes: u64,
    since_ns: Option<u64>,
}

/// What a step works on.
struct Ground {
    leaf: Arc<Leaf>,
    top: Arc<Vdev>,
    at: Activity,
}

impl LeafPass {
    fn new(key: Key) -> Self {
        LeafPass {
            key,
            is_settled: false,
            from: None,
            pattern: None,
            rate: 0,
            done_bytes: 0,
            since_ns: None,
        }
    }

    fn at(&self, passes: &Passes) -> Option<Activity> {
        let all = passes.activities.all.lock();
        let at = all.get(&self.key);
        at.filter(|at| at.state == ActivityState::Active && !at.is_stopped)
            .cloned()
    }

    /// Changes what is known of the pass, to be stored.
    fn note(&self, passes: &Passes, change: impl FnOnce(&mut Activity)) {
        let mut all = passes.activities.all.lock();
        if let Some(at) = all.get_mut(&self.key) {
            change(at);
            at.is_dirty = true;
        }
    }

    /// What it works on, if it is to go on.
    fn ground(&self, passes: &Passes) -> Option<Ground> {
        if passes.spa.state.lock().closed || passes.spa.suspended().is_some() {
            return None;
        }
        let at = self.at(passes)?;
        let vdev = leaf_of(&passes.spa.tree, self.key.0)?;
        let leaf = vdev.leaf()?.clone();
        let top = passes.spa.tree.topology().top_of(vdev.guid())?;
        (leaf.is_writeable() && top.can_discard_free()).then_some(Ground { leaf, top, at })
    }

    /// Has enough uberblocks written.
    async fn settle(&mut self, passes: &Passes) -> Step {
        for _ in 0..SETTLING_TXGS {
            if self.ground(passes).is_none() {
                return Step::Interrupted;
            }
            passes.spa.identity.mark_dirty();
            if passes.spa.txgs.sync().await.is_err() {
                return Step::Interrupted;
            }
        }
        self.is_settled = true;
        Step::More
    }

    /// The first offset on the top-level vdev where something is left to do, roughly.
    fn begin_at(&self, passes: &Passes, ground: &Ground, done: u64) -> u64 {
        if matches!(ground.top.kind(), VdevKind::Draid(_)) {
            return 0;
        }
        let allocator = passes.spa.pipeline.allocator();
        for (range, _) in allocator.metaslab_spaces(ground.top.vdev_id()) {
            let whole = RangeSet::from_iter([(range.start, range.end - range.start)]);
            let there = ground.top.free_on(ground.leaf.guid(), &whole);
            let end = there.and_then(|there| there.ranges().next_back().map(|last| last.end));
            if end.is_some_and(|end| end > done) {
                return range.start;
            }
        }
        u64::MAX
    }

    /// Works at the next part of free space.
    async fn step(&mut self, passes: &Passes) -> Step {
        // Nobody holds a vdev without the gate: it may change.
        let _gate = passes.gate.enter().await;
        let Some(ground) = self.ground(passes) else {
            return Step::Interrupted;
        };
        let done = ground
            .at
            .next_offset_bytes
            .saturating_sub(LABEL_START_BYTES);
        self.rate = ground.at.rate;
        let from = match self.from {
            Some(from) => from,
            None => self.begin_at(passes, &ground, done),
        };
        self.from = Some(from);
        let mut bytes = HOLD_BYTES[self.key.1 as usize];
        if self.rate > 0 {
            bytes = bytes.min(self.rate.max(WRITE_BYTES));
        }
        let (txg, id) = (passes.spa.txgs.open_txg(), ground.top.vdev_id());
        let allocator = passes.spa.pipeline.allocator();
        let hold = match allocator.hold_free(txg, id, from, bytes).await {
            FreeHoldResult::Held(hold) => hold,
            FreeHoldResult::Busy => return Step::Rest,
            FreeHoldResult::End => return Step::Whole,
        };
        let mut step = Step::Interrupted;
        if let Some(ranges) = ground.top.free_on(ground.leaf.guid(), hold.ranges()) {
            step = self.work(passes, &ground.leaf, &ranges, done).await;
        }
        if matches!(step, Step::More) {
            self.from = Some(hold.next());
        }
        // Nothing is under way to the device any more.
        hold.done();
        step
    }

    /// Works at ranges of the device that are held, as far as it is not done yet.
    async fn work(
        &mut self,
        passes: &Passes,
        leaf: &Arc<Leaf>,
        ranges: &RangeSet,
        done: u64,
    ) -> Step {
        let is_trim = self.key.1 == ActivityKind::Trim;
        let piece_max = match is_trim {
            true => TRIM_EXTENT_BYTES_MAX,
            false => WRITE_BYTES,
        };
        for range in ranges.ranges() {
            let mut start = range.start.max(done);
            if range.end <= start || is_trim && range.end - start < TRIM_EXTENT_BYTES_MIN {
                continue;
            }
            while start < range.end {
                if self.at(passes).is_none() || passes.spa.suspended().is_some() {
                    return Step::Interrupted;
                }
                let length = (range.end - start).min(piece_max);
                let result = match is_trim {
                    true => leaf.trim(start, length).await,
                    false => self.write(passes, leaf, start, length).await,
                };
                if let Err(error) = result {
                    if passes.spa.suspended().is_some() || !leaf.is_writeable() {
                        return Step::Interrupted;
                    }
                    // Whether it is the device's fault is found out elsewhere.
                    tracing::debug!(leaf = %leaf.guid(), %error, "free space was left as it was");
                }
                start += length;
                self.done_bytes += length;
                self.note(passes, |at| {
                    at.next_offset_bytes = LABEL_START_BYTES + start
                });
            }
        }
        Step::More
    }

    async fn write(
        &mut self,
        passes: &Passes,
        leaf: &Arc<Leaf>,
        start: u64,
        length: u64,
    ) -> Result<(), VdevError> {
        let value = self.at(passes).and_then(|at| at.value).unwrap_or(VALUE);
        let pattern = self.pattern.get_or_insert_with(|| {
            let words = WRITE_BYTES as usize / 8;
            Bytes::from(value.to_le_bytes().repeat(words))
        });
        leaf.initialize(start, pattern.slice(..length as usize))
            .await
    }

    /// Waits, unless it is to stop.
    async fn pause(&self, weak: &Weak<Passes>, time: Duration) {
        let mut left = time;
        while !left.is_zero() {
            let Some(clock) = weak.upgrade().and_then(|passes| {
                self.at(&passes)?;
                Some(passes.spa.world.clock.clone())
            }) else {
                return;
            };
            let part = left.min(LOOK);
            clock.sleep(part).await;
            left -= part;
        }
    }

    /// Waits as long as the rate asks for.
    async fn keep_rate(&mut self, weak: &Weak<Passes>) {
        if self.rate == 0 {
            return;
        }
        let Some(now_ns) = weak
            .upgrade()
            .map(|passes| passes.spa.world.clock.monotonic_ns())
        else {
            return;
        };
        let since_ns = *self.since_ns.get_or_insert(now_ns);
        let due_ns = u128::from(self.done_bytes) * 1_000_000_000 / u128::from(self.rate);
        let due_ns = since_ns.saturating_add(u64::try_from(due_ns).unwrap_or(u64::MAX));
        let wait = Duration::from_nanos(due_ns.saturating_sub(now_ns));
        self.pause(weak, wait).await;
    }
}
