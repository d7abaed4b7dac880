//! RAID-Z expansion: the sectors of a vdev that got one more device are moved, so that they are
//! spread over all of them.
//!
//! # Rhythm
//! In the first pass of each transaction group the sectors are moved a part further (`vdev`, module
//! `reflow`), for as long as a resilver's turn takes, or until the uberblock has to tell of it
//! before more can be. What is moved is what is not free for everybody
//! ([`zio::alloc::Allocator::occupied`]), looked up once no I/O is on the range. While a device of
//! the vdev does not work, lacks something or is being replaced, nothing is moved; nothing else has
//! to be remembered to go on later.
//!
//! The group after the one that moved the last sector says from when on new blocks are as wide as
//! the vdev. A scrub follows: sectors were moved as they were, right or wrong. Blocks that are
//! there keep the ratio of data to parity that they have.
//!
//! # What a crash leaves
//! The uberblock tells how far it is, of the same state as the configuration, which tells that
//! there is an expansion at all. An import goes on from there; so does OpenZFS, and we with what
//! that began. What is in the vdev's ZAP is for people.
//!
//! Lock: that of [`KnownExpansion`], for a few instructions; nothing else is locked under it.
//!
//! Source: module/zfs/vdev_raidz.c (`vdev_raidz_attach_sync`, `spa_raidz_expand_thread`,
//! `raidz_reflow_sync`, `raidz_reflow_complete_sync`, `spa_raidz_expand_get_stats`).

use std::ops::Range;
use std::sync::{Arc, Weak};
use std::time::Duration;

use dataset::DatasetError;
use format::{Guid, ObjectId, Txg};
use object::{SyncContext, Zap};
use parking_lot::Mutex;
use spa::{Pass, PoolError, Spa, config, directory, features};
use vdev::reflow::{self, ReflowStep};
use vdev::{RangeSet, Vdev, VdevError};
use zio::Tx;

/// States in the vdev's ZAP (`DSS_SCANNING` and `DSS_FINISHED`, include/sys/fs/zfs.h).
const SCANNING: u64 = 1;
const FINISHED: u64 = 2;
/// How long nothing is tried again after something could not be moved.
const REST: Duration = Duration::from_secs(2);
/// Txgs that can be under way at once (`TXG_CONCURRENT_STATES`).
const CONCURRENT_TXGS: u64 = 3;

/// A RAID-Z expansion.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ExpansionStatus {
    /// The vdev.
    pub vdev: Guid,
    /// Its name with its number: `raidz1-0`.
    pub name: String,
    /// When it began, in seconds since 1970.
    pub start_s: u64,
    /// When it ended; `None` while it is under way.
    pub end_s: Option<u64>,
    /// What has been moved.
    pub copied_bytes: u64,
    /// Why nothing is moved at present.
    pub waits_for: Option<String>,
}

impl ExpansionStatus {
    /// Of a vdev of which nothing was moved yet.
    fn of(top: &Vdev) -> Self {
        Self {
            vdev: top.guid(),
            name: top.display_name(),
            ..Self::default()
        }
    }

    /// What a vdev's ZAP tells of its last expansion, if there was one (`vdev_raidz_load`).
    ///
    /// # Errors
    /// When it cannot be read.
    pub async fn load(zap: &Zap, top: &Vdev) -> Result<Option<Self>, PoolError> {
        let number = async |name: &str| zap.lookup_u64(name).await;
        let is_under_way = match number(directory::RAIDZ_EXPAND_STATE).await? {
            Some(SCANNING) => true,
            Some(FINISHED) => false,
            _ => return Ok(None),
        };
        let end_s = number(directory::RAIDZ_EXPAND_END).await?.unwrap_or(0);
        Ok(Some(Self {
            start_s: number(directory::RAIDZ_EXPAND_START).await?.unwrap_or(0),
            end_s: (!is_under_way).then_some(end_s),
            copied_bytes: number(directory::RAIDZ_EXPAND_COPIED).await?.unwrap_or(0),
            ..Self::of(top)
        }))
    }
}

/// The expansion of a pool that is under way, or the last one.
pub struct Expanding {
    /// The pool.
    pub spa: Arc<Spa>,
    /// What is known of it beside what the vdevs tell.
    pub known: KnownExpansion,
}

/// What is known of an expansion.
#[derive(Default)]
pub struct KnownExpansion(Mutex<State>);

impl KnownExpansion {
    /// What the vdevs' ZAPs tell at import.
    pub fn new(status: Option<ExpansionStatus>) -> Self {
        Self(Mutex::new(State {
            status,
            ..State::default()
        }))
    }
}

#[derive(Default)]
struct State {
    status: Option<ExpansionStatus>,
    /// What the vdev was before; I/O that began then goes by these.
    former: Vec<Weak<Vdev>>,
    /// The txg in which the device was attached.
    begun: Txg,
    /// Until when nothing is tried, by the monotonic clock.
    rests_until_ns: u64,
    /// Why something could not be moved.
    cause: Option<String>,
    /// The vdev whose expansion ended just now: it may grow.
    ended: Option<Arc<Vdev>>,
}

/// What a turn came to.
#[derive(Default)]
struct Turned {
    copied_bytes: u64,
    has_moved: bool,
    is_over: bool,
}

/// The metaslabs of a range.
fn metaslabs(top: &Vdev, range: &Range<u64>) -> Range<u64> {
    let shift = top.metaslab_shift();
    range.start >> shift..range.end.div_ceil(1 << shift)
}

impl Expanding {
    /// The vdev whose sectors are being moved.
    fn vdev(&self) -> Option<Arc<Vdev>> {
        let tops = self.spa.tree.tops();
        tops.into_iter().find(|top| top.is_expanding())
    }

    /// What is told of it.
    pub fn status(&self) -> Option<ExpansionStatus> {
        let top = self.vdev();
        let state = self.known.0.lock();
        let mut status = state.status.clone();
        if let Some(top) = top {
            let status = status.get_or_insert_with(|| ExpansionStatus::of(&top));
            if !self.spa.read_only {
                let cause = || state.cause.clone();
                status.waits_for = reflow::obstacle(&top).or_else(cause);
            }
        }
        status
    }

    /// How much of a vdev was moved, and how much there is to move; in bytes of the vdev. `None`
    /// while no expansion goes on.
    pub fn progress(&self) -> Option<(u64, u64)> {
        let top = self.vdev().filter(|_| !self.spa.read_only)?;
        let total_bytes = top.metaslab_count() << top.metaslab_shift();
        Some((reflow::moved_bytes(&top)?.min(total_bytes), total_bytes))
    }

    /// The vdev whose expansion ended in the pass that is made: it may grow now.
    pub fn take_ended(&self) -> Option<Arc<Vdev>> {
        self.known.0.lock().ended.take()
    }

    async fn zap(&self, top: &Vdev) -> Result<Option<Zap>, DatasetError> {
        let id = top.config_u64(config::TOP_ZAP).filter(|id| *id != 0);
        Ok(match id {
            Some(id) => Some(Zap::hold(self.spa.dsl.mos(), ObjectId::new(id)).await?),
            None => None,
        })
    }

    /// Reads what [`Self::begin`] will need, so that damage refuses it.
    ///
    /// # Errors
    /// When something cannot be read.
    pub async fn check(&self, top: &Vdev) -> Result<(), DatasetError> {
        if let Some(zap) = self.zap(top).await? {
            zap.lookup_u64(directory::RAIDZ_EXPAND_STATE).await?;
        }
        Ok(())
    }

    /// A device was made one more child of the vdev `after`, in syncing context; I/O goes on with
    /// what that was before (`former`).
    ///
    /// # Errors
    /// When something cannot be read.
    pub async fn begin(
        &self,
        ctx: &SyncContext,
        former: Vec<Weak<Vdev>>,
        after: &Vdev,
    ) -> Result<(), DatasetError> {
        let features = self.spa.dsl.features();
        features.increment(ctx, features::RAIDZ_EXPANSION).await?;
        let tx = Tx::syncing(ctx.txg);
        let start_s = self.now_s();
        if let Some(zap) = self.zap(after).await? {
            zap.update_u64(&tx, directory::RAIDZ_EXPAND_STATE, SCANNING)
                .await?;
            zap.update_u64(&tx, directory::RAIDZ_EXPAND_START, start_s)
                .await?;
            for name in [directory::RAIDZ_EXPAND_END, directory::RAIDZ_EXPAND_COPIED] {
                if zap.lookup_u64(name).await?.is_some() {
                    zap.remove(&tx, name).await?;
                }
            }
        }
        *self.known.0.lock() = State {
            status: Some(ExpansionStatus {
                start_s,
                ..ExpansionStatus::of(after)
            }),
            former,
            begun: ctx.txg,
            ..State::default()
        };
        self.log(&tx, after, "started").await;
        Ok(())
    }

    fn now_s(&self) -> u64 {
        self.spa.world.clock.wall_ns() / 1_000_000_000
    }

    /// What the pool's history says.
    async fn log(&self, tx: &Tx, top: &Vdev, what: &str) {
        let text = format!(
            "{} vdev {} new width {}",
            self.spa.identity.name(),
            top.vdev_id(),
            top.children().len()
        );
        let event = format!("raidz vdev expansion {what}");
        self.spa.history.internal(tx, &event, text).await;
    }

    /// Whether a turn could move something.
    fn is_ready(&self, top: &Vdev) -> bool {
        if self.spa.suspended().is_some() || reflow::obstacle(top).is_some() {
            return false;
        }
        let mut state = self.known.0.lock();
        state.former.retain(|former| former.strong_count() > 0);
        if !state.former.is_empty() {
            return false;
        }
        self.spa.world.clock.monotonic_ns() >= state.rests_until_ns
    }

    /// Whether it needs a transaction group although nobody asked for one.
    pub(crate) fn has_work(&self) -> bool {
        !self.spa.read_only && self.vdev().is_some_and(|top| self.is_ready(&top))
    }

    /// A transaction group is on disk, with an uberblock of its own if it `wrote` something; it
    /// goes on at once unless it `rests`.
    pub(crate) fn done(&self, wrote: bool, rests: bool) {
        if wrote {
            self.spa.tree.reflow_told();
        }
        if !rests && self.has_work() {
            self.spa.txgs.go_on();
        }
    }

    /// The turn in the first pass of a transaction group. Whether the expansion ended by that.
    pub(crate) async fn turn(
        &self,
        pass: &Pass<'_>,
        is_over: &(dyn Fn() -> bool + Send + Sync),
    ) -> Result<bool, PoolError> {
        let begun = self.known.0.lock().begun;
        let is_due = |top: &Arc<Vdev>| pass.ctx.txg > begun && self.is_ready(top);
        let Some(top) = self.vdev().filter(is_due) else {
            return Ok(false);
        };
        let mut turned = Turned::default();
        let moved = self.move_on(pass.ctx.txg, &top, is_over, &mut turned).await;
        {
            let mut state = self.known.0.lock();
            state.cause = moved.as_ref().err().map(ToString::to_string);
            if let Err(error) = &moved {
                tracing::info!(%error, "nothing is moved for now");
                let now_ns = self.spa.world.clock.monotonic_ns();
                state.rests_until_ns = now_ns.saturating_add(REST.as_nanos() as u64);
            }
        }
        if turned.has_moved {
            self.store(pass, &top, turned.copied_bytes).await?;
        }
        if turned.is_over {
            self.end(pass, &top).await?;
        }
        Ok(turned.is_over)
    }

    /// Moves what can be moved in this turn.
    async fn move_on(
        &self,
        txg: Txg,
        top: &Arc<Vdev>,
        is_over: &(dyn Fn() -> bool + Send + Sync),
        turned: &mut Turned,
    ) -> Result<(), VdevError> {
        let (tree, allocator) = (&self.spa.tree, self.spa.pipeline.allocator());
        tree.settle_reflow(top).await?;
        while let Some(step) = reflow::next(top) {
            match step {
                ReflowStep::Waits => break,
                ReflowStep::End => {
                    let from = Txg::new(txg.get().saturating_add(CONCURRENT_TXGS));
                    tree.end_expansion(top, from).await?;
                    turned.is_over = true;
                    break;
                }
                _ => {}
            }
            let range = step.range();
            for metaslab in metaslabs(top, &range) {
                // It is in memory then: nothing can be read once the range is closed.
                allocator.settled(txg, top.vdev_id(), metaslab).await;
            }
            let occupied = || self.occupied(top, &range);
            turned.copied_bytes += tree.reflow_step(top, step, txg, occupied).await?;
            turned.has_moved = true;
            if is_over() {
                break;
            }
        }
        Ok(())
    }

    /// What may be allocated of a range.
    fn occupied(&self, top: &Vdev, range: &Range<u64>) -> RangeSet {
        let shift = top.metaslab_shift();
        let mut all = RangeSet::new();
        for metaslab in metaslabs(top, range) {
            let allocator = self.spa.pipeline.allocator();
            match allocator.occupied(top.vdev_id(), metaslab) {
                Some(occupied) => all.add_all(&occupied),
                // Nobody knows.
                None => {
                    all.add(metaslab << shift, 1 << shift);
                }
            }
        }
        all
    }

    /// Stores that so many bytes more were moved. This also sees to it that the group is written,
    /// whose uberblock tells of it.
    async fn store(&self, pass: &Pass<'_>, top: &Vdev, more_bytes: u64) -> Result<(), PoolError> {
        let copied_bytes = {
            let mut state = self.known.0.lock();
            let new = || ExpansionStatus::of(top);
            let status = state.status.get_or_insert_with(new);
            status.copied_bytes = status.copied_bytes.saturating_add(more_bytes);
            status.copied_bytes
        };
        if let Some(zap) = self.zap(top).await? {
            zap.update_u64(pass.tx, directory::RAIDZ_EXPAND_COPIED, copied_bytes)
                .await?;
        }
        if !pass.is_dirty() {
            self.spa.identity.mark_dirty();
        }
        Ok(())
    }

    /// The vdev is as wide as its children, since a moment ago.
    async fn end(&self, pass: &Pass<'_>, top: &Arc<Vdev>) -> Result<(), PoolError> {
        let end_s = self.now_s();
        if let Some(zap) = self.zap(top).await? {
            zap.update_u64(pass.tx, directory::RAIDZ_EXPAND_STATE, FINISHED)
                .await?;
            zap.update_u64(pass.tx, directory::RAIDZ_EXPAND_END, end_s)
                .await?;
        }
        {
            let mut state = self.known.0.lock();
            let new = || ExpansionStatus::of(top);
            state.status.get_or_insert_with(new).end_s = Some(end_s);
            state.ended = Some(top.clone());
        }
        self.spa.identity.mark_dirty();
        if let Some(spec) = vdev::TopSpec::of(top) {
            self.spa.pipeline.allocator().widen(&spec);
        }
        self.log(pass.tx, top, "completed").await;
        Ok(())
    }
}
