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
use crate::core::Core;

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
pub(super) async fn run(weak: Weak<Core>, key: Key) {
    let mut pass = LeafPass::new(key);
    let is_whole = loop {
        let step = {
            let Some(core) = weak.upgrade() else { return };
            match pass.is_settled {
                true => pass.step(&core).await,
                false => pass.settle(&core).await,
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
        while weak
            .upgrade()
            .is_some_and(|core| core.trim.gate.is_wanted())
        {
            pass.pause(&weak, LOOK).await;
            rests += 1;
            if rests == RESTS_FOR_GATE
                && let Some(core) = weak.upgrade()
            {
                core.trim.gate.forget_wanted();
            }
        }
    };
    if let Some(core) = weak.upgrade() {
        core.tables.activities.ended(&core, key, is_whole);
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

    fn at(&self, core: &Core) -> Option<Activity> {
        let all = core.tables.activities.all.lock();
        let at = all.get(&self.key);
        at.filter(|at| at.state == ActivityState::Active && !at.is_stopped)
            .cloned()
    }

    /// Changes what is known of the pass, to be stored.
    fn note(&self, core: &Core, change: impl FnOnce(&mut Activity)) {
        let mut all = core.tables.activities.all.lock();
        if let Some(at) = all.get_mut(&self.key) {
            change(at);
            at.is_dirty = true;
        }
    }

    /// What it works on, if it is to go on.
    fn ground(&self, core: &Core) -> Option<Ground> {
        if core.state.lock().closed || core.suspended().is_some() {
            return None;
        }
        let at = self.at(core)?;
        let vdev = leaf_of(&core.tree, self.key.0)?;
        let leaf = vdev.leaf()?.clone();
        let top = core.tree.top_of(vdev.guid())?;
        (leaf.is_writeable() && top.can_discard_free()).then_some(Ground { leaf, top, at })
    }

    /// Has enough uberblocks written.
    async fn settle(&mut self, core: &Core) -> Step {
        for _ in 0..SETTLING_TXGS {
            if self.ground(core).is_none() {
                return Step::Interrupted;
            }
            core.identity.mark_dirty();
            if core.txgs.sync().await.is_err() {
                return Step::Interrupted;
            }
        }
        self.is_settled = true;
        Step::More
    }

    /// The first offset on the top-level vdev where something is left to do, roughly.
    fn begin_at(&self, core: &Core, ground: &Ground, done: u64) -> u64 {
        if matches!(ground.top.kind(), VdevKind::Draid(_)) {
            return 0;
        }
        let allocator = core.pipeline.allocator();
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
    async fn step(&mut self, core: &Core) -> Step {
        // Nobody holds a vdev without the gate: it may change.
        let _gate = core.trim.gate.enter().await;
        let Some(ground) = self.ground(core) else {
            return Step::Interrupted;
        };
        let done = ground
            .at
            .next_offset_bytes
            .saturating_sub(LABEL_START_BYTES);
        self.rate = ground.at.rate;
        let from = match self.from {
            Some(from) => from,
            None => self.begin_at(core, &ground, done),
        };
        self.from = Some(from);
        let mut bytes = HOLD_BYTES[self.key.1 as usize];
        if self.rate > 0 {
            bytes = bytes.min(self.rate.max(WRITE_BYTES));
        }
        let (txg, id) = (core.txgs.open_txg(), ground.top.vdev_id());
        let allocator = core.pipeline.allocator();
        let hold = match allocator.hold_free(txg, id, from, bytes).await {
            FreeHoldResult::Held(hold) => hold,
            FreeHoldResult::Busy => return Step::Rest,
            FreeHoldResult::End => return Step::Whole,
        };
        let mut step = Step::Interrupted;
        if let Some(ranges) = ground.top.free_on(ground.leaf.guid(), hold.ranges()) {
            step = self.work(core, &ground.leaf, &ranges, done).await;
        }
        if matches!(step, Step::More) {
            self.from = Some(hold.next());
        }
        // Nothing is under way to the device any more.
        hold.done();
        step
    }

    /// Works at ranges of the device that are held, as far as it is not done yet.
    async fn work(&mut self, core: &Core, leaf: &Arc<Leaf>, ranges: &RangeSet, done: u64) -> Step {
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
                if self.at(core).is_none() || core.suspended().is_some() {
                    return Step::Interrupted;
                }
                let length = (range.end - start).min(piece_max);
                let result = match is_trim {
                    true => leaf.trim(start, length).await,
                    false => self.write(core, leaf, start, length).await,
                };
                if let Err(error) = result {
                    if core.suspended().is_some() || !leaf.is_writeable() {
                        return Step::Interrupted;
                    }
                    // Whether it is the device's fault is found out elsewhere.
                    tracing::debug!(leaf = %leaf.guid(), %error, "free space was left as it was");
                }
                start += length;
                self.done_bytes += length;
                self.note(core, |at| at.next_offset_bytes = LABEL_START_BYTES + start);
            }
        }
        Step::More
    }

    async fn write(
        &mut self,
        core: &Core,
        leaf: &Arc<Leaf>,
        start: u64,
        length: u64,
    ) -> Result<(), VdevError> {
        let value = self.at(core).and_then(|at| at.value).unwrap_or(VALUE);
        let pattern = self.pattern.get_or_insert_with(|| {
            let words = WRITE_BYTES as usize / 8;
            Bytes::from(value.to_le_bytes().repeat(words))
        });
        leaf.initialize(start, pattern.slice(..length as usize))
            .await
    }

    /// Waits, unless it is to stop.
    async fn pause(&self, weak: &Weak<Core>, time: Duration) {
        let mut left = time;
        while !left.is_zero() {
            let Some(clock) = weak.upgrade().and_then(|core| {
                self.at(&core)?;
                Some(core.world.clock.clone())
            }) else {
                return;
            };
            let part = left.min(LOOK);
            clock.sleep(part).await;
            left -= part;
        }
    }

    /// Waits as long as the rate asks for.
    async fn keep_rate(&mut self, weak: &Weak<Core>) {
        if self.rate == 0 {
            return;
        }
        let Some(now_ns) = weak.upgrade().map(|core| core.world.clock.monotonic_ns()) else {
            return;
        };
        let since_ns = *self.since_ns.get_or_insert(now_ns);
        let due_ns = u128::from(self.done_bytes) * 1_000_000_000 / u128::from(self.rate);
        let due_ns = since_ns.saturating_add(u64::try_from(due_ns).unwrap_or(u64::MAX));
        let wait = Duration::from_nanos(due_ns.saturating_sub(now_ns));
        self.pause(weak, wait).await;
    }
}
