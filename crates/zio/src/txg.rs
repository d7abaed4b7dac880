//! Transaction groups: which one is open, who holds it, and how much is dirty.
//!
//! ```text
//!   assign -> [ open N+1 ] --quiesce--> [ syncing N+1 ] --synced--> on disk
//!               ^ holders (Tx)             (the sync loop)
//! ```
//!
//! One txg is open and at most one is being synced. [`TxgManager::quiesce`] stops admitting, waits
//! for the holders of the open txg, and opens the next one; only the sync loop calls it, after
//! [`TxgManager::synced`] for the one before. While a [`Tx`] is held, never assign another one and
//! never wait for a txg to sync: both would wait for the holder itself.
//!
//! **Throttle** (`dmu_tx_delay` and `dsl_pool_need_dirty_delay`, module/zfs/dmu_tx.c and
//! dsl_pool.c): from 60 % of the allowed dirty data on, every assignment is delayed by
//! `scale * (dirty - 60 %) / (max - dirty)`, at most 100 ms, and delayed assignments are spaced by
//! that time; at 100 % they wait until the sync loop has written some.
//!
//! State is behind one lock, held for a few instructions. Wake-ups: `admit` (open txg or dirty
//! total changed), `drained` (last holder left), `progress` (a txg synced), `work` (the sync loop).
//! Nothing here is on disk: a crash loses exactly what was not synced.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use device::World;
use format::Txg;
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::error::ZioError;
use crate::pipeline::FailMode;

/// How much may be dirty, and when a txg is closed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TxgLimits {
    /// Dirty bytes at which assignments wait (`zfs_dirty_data_max`), until
    /// [`TxgManager::set_dirty_max_bytes`].
    pub dirty_max_bytes: u64,
    /// Percent of that at which delays begin (`zfs_delay_min_dirty_percent`).
    pub delay_min_percent: u64,
    /// Slope of the delay (`zfs_delay_scale`).
    pub delay_scale_ns: u64,
    /// Longest delay of one assignment (`zfs_delay_max_ns`).
    pub delay_max_ns: u64,
    /// Percent of `dirty_max_bytes` in the open txg at which it is closed
    /// (`zfs_dirty_data_sync_percent`, there 20): the open txg and the one being synced together
    /// just do not delay anybody. Small changes of big blocks meet the more often in one txg, which
    /// writes each block once, the bigger it gets.
    pub sync_percent: u64,
    /// Bytes of blocks that were written whole at which it is closed: they are hardly written again
    /// before the timeout, so the devices may as well begin with them. Blocks written in part are,
    /// when they wait: each time saves copying and writing all of them.
    pub sync_whole_bytes: u64,
    /// Time after which a txg is closed (`zfs_txg_timeout`).
    pub timeout: Duration,
}

impl Default for TxgLimits {
    fn default() -> Self {
        TxgLimits {
            dirty_max_bytes: 512 << 20,
            delay_min_percent: 60,
            delay_scale_ns: 500_000,
            delay_max_ns: 100_000_000,
            sync_percent: 30,
            sync_whole_bytes: 100 << 20,
            timeout: Duration::from_secs(5),
        }
    }
}

/// Why the sync loop was woken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Work {
    /// Somebody waits for the open txg, or enough is dirty.
    Wanted,
    /// The timeout passed; `assigned` says whether the open txg was ever held.
    Timeout {
        /// Whether anybody held the open txg.
        assigned: bool,
    },
    /// The manager was stopped: no more txgs.
    Stopped,
}

#[derive(Debug)]
struct State {
    open: Txg,
    open_since_ns: u64,
    holders: usize,
    /// Whether the open txg was ever held.
    assigned: bool,
    quiescing: bool,
    syncing: Option<Txg>,
    synced: Txg,
    /// The sync loop is asked to get at least this far.
    wanted: Txg,
    /// The same, for work in the background: nobody waits.
    background: Txg,
    /// Dirty bytes by txg modulo 2 (open and syncing).
    dirty: [u64; 2],
    /// Those of them that are of blocks written whole.
    dirty_whole: [u64; 2],
    last_wakeup_ns: u64,
    suspended: Option<ZioError>,
    fail_mode: FailMode,
    stopped: Option<ZioError>,
}

impl State {
    fn dirty_total(&self) -> u64 {
        self.dirty[0].saturating_add(self.dirty[1])
    }
}

fn slot(txg: Txg) -> usize {
    (txg.get() & 1) as usize
}

/// The transaction groups of one pool.
pub struct TxgManager {
    world: World,
    limits: TxgLimits,
    dirty_max_bytes: AtomicU64,
    state: Mutex<State>,
    admit: Notify,
    drained: Notify,
    progress: Notify,
    work: Notify,
}

impl TxgManager {
    /// The txg after `synced` is open.
    pub fn new(world: World, synced: Txg, limits: TxgLimits) -> Arc<Self> {
        let state = State {
            open: synced.next(),
            open_since_ns: world.clock.monotonic_ns(),
            holders: 0,
            assigned: false,
            quiescing: false,
            syncing: None,
            synced,
            wanted: synced,
            background: synced,
            dirty: [0; 2],
            dirty_whole: [0; 2],
            last_wakeup_ns: 0,
            suspended: None,
            fail_mode: FailMode::Wait,
            stopped: None,
        };
        Arc::new(TxgManager {
            world,
            dirty_max_bytes: AtomicU64::new(limits.dirty_max_bytes),
            limits,
            state: Mutex::new(state),
            admit: Notify::new(),
            drained: Notify::new(),
            progress: Notify::new(),
            work: Notify::new(),
        })
    }

    /// Holds the open txg, after waiting its turn when much is dirty. `estimate_bytes` is what the
    /// caller expects to dirty.
    ///
    /// # Errors
    /// The error given to [`Self::stop`]; [`ZioError::Suspended`] with `failmode=continue`.
    pub async fn assign(self: &Arc<Self>, estimate_bytes: u64) -> Result<Tx, ZioError> {
        let started_ns = self.world.clock.monotonic_ns();
        let mut delayed = false;
        loop {
            let mut changed = pin!(self.admit.notified());
            changed.as_mut().enable();
            let delay_ns = {
                let mut state = self.state.lock();
                if let Some(error) = &state.stopped {
                    return Err(error.clone());
                }
                let suspended = match (&state.suspended, state.fail_mode) {
                    (Some(error), FailMode::Continue) => return Err(error.clone()),
                    (Some(_), FailMode::Wait) => true,
                    (None, _) => false,
                };
                let full = self.is_full(&state, estimate_bytes);
                if full {
                    // Whatever can be written must be, or nobody would ever be admitted.
                    state.wanted = state.wanted.max(state.open);
                    self.work.notify_one();
                }
                if suspended || state.quiescing || full {
                    None
                } else {
                    let delay_ns = if delayed {
                        0
                    } else {
                        self.delay_ns(&mut state, started_ns)
                    };
                    if delay_ns == 0 {
                        return Ok(self.hold(&mut state));
                    }
                    Some(delay_ns)
                }
            };
            match delay_ns {
                Some(delay_ns) => {
                    delayed = true;
                    self.world.clock.sleep(Duration::from_nanos(delay_ns)).await;
                }
                None => changed.await,
            }
        }
    }

    /// Holds the open txg if that needs no waiting at all.
    pub fn try_assign(self: &Arc<Self>, estimate_bytes: u64) -> Option<Tx> {
        let mut state = self.state.lock();
        let blocked = state.stopped.is_some()
            || state.suspended.is_some()
            || state.quiescing
            || self.is_full(&state, estimate_bytes)
            || state.dirty_total() >= self.delay_from_bytes();
        (!blocked).then(|| self.hold(&mut state))
    }

    fn hold(self: &Arc<Self>, state: &mut State) -> Tx {
        state.holders += 1;
        state.assigned = true;
        Tx {
            txg: state.open,
            manager: Some(self.clone()),
            data_bytes: AtomicU64::new(0),
            metadata_bytes: AtomicU64::new(0),
            settle: None,
        }
    }

    fn is_full(&self, state: &State, estimate_bytes: u64) -> bool {
        let dirty = state.dirty_total();
        // One assignment bigger than the limit must still get through, alone.
        dirty > 0 && dirty.saturating_add(estimate_bytes) > self.dirty_max_bytes()
    }

    fn delay_from_bytes(&self) -> u64 {
        self.dirty_max_bytes() / 100 * self.limits.delay_min_percent
    }

    /// Whether so much is dirty in a txg that it is to be closed.
    fn is_much(&self, state: &State, txg: Txg) -> bool {
        let most = self.dirty_max_bytes() / 100 * self.limits.sync_percent;
        state.dirty[slot(txg)] > most
            || state.dirty_whole[slot(txg)] > most.min(self.limits.sync_whole_bytes)
    }

    /// How much may be dirty, in bytes.
    pub fn dirty_max_bytes(&self) -> u64 {
        self.dirty_max_bytes.load(Ordering::Relaxed)
    }

    /// Changes how much may be dirty.
    pub fn set_dirty_max_bytes(&self, bytes: u64) {
        self.dirty_max_bytes.store(bytes, Ordering::Relaxed);
        self.admit.notify_waiters();
    }

    /// How long this assignment is to be delayed, from now; books its place in the queue of
    /// delayed ones.
    fn delay_ns(&self, state: &mut State, started_ns: u64) -> u64 {
        let dirty = state.dirty_total();
        let from = self.delay_from_bytes();
        if dirty <= from {
            return 0;
        }
        let room = self.dirty_max_bytes().saturating_sub(dirty).max(1);
        let spacing =
            u128::from(self.limits.delay_scale_ns) * u128::from(dirty - from) / u128::from(room);
        let spacing = spacing.min(u128::from(self.limits.delay_max_ns)) as u64;
        let now = self.world.clock.monotonic_ns();
        if now > started_ns.saturating_add(spacing) {
            return 0;
        }
        let wakeup = (started_ns + spacing).max(state.last_wakeup_ns + spacing);
        // Bounded also when many wait, as each waits for those before it.
        let wakeup = wakeup.min(now + self.limits.delay_max_ns);
        state.last_wakeup_ns = wakeup;
        wakeup.saturating_sub(now)
    }

    /// Closes the open txg: waits for its holders, opens the next one and returns the closed one.
    /// Only the sync loop calls this, after the previous txg was [`Self::synced`]. When the future
    /// is dropped before it is done, the txg stays open.
    ///
    /// # Panics
    /// When a txg is still being synced: that is a bug in the sync loop.
    pub async fn quiesce(&self) -> Txg {
        struct Reopen<'a>(&'a TxgManager);
        impl Drop for Reopen<'_> {
            fn drop(&mut self) {
                self.0.state.lock().quiescing = false;
                self.0.admit.notify_waiters();
            }
        }
        {
            let mut state = self.state.lock();
            assert!(
                state.syncing.is_none(),
                "txg {} must be synced before the next one is closed",
                state.syncing.unwrap_or_default()
            );
            state.quiescing = true;
        }
        let reopen = Reopen(self);
        loop {
            let mut drained = pin!(self.drained.notified());
            drained.as_mut().enable();
            {
                let mut state = self.state.lock();
                if state.holders == 0 {
                    let closed = state.open;
                    state.syncing = Some(closed);
                    state.open = closed.next();
                    state.open_since_ns = self.world.clock.monotonic_ns();
                    state.assigned = false;
                    drop(state);
                    drop(reopen);
                    self.progress.notify_waiters();
                    return closed;
                }
            }
            drained.await;
        }
    }

    /// The sync loop has `txg` on disk.
    ///
    /// # Panics
    /// When `txg` is not the one being synced: that is a bug in the sync loop.
    pub fn synced(&self, txg: Txg) {
        {
            let mut state = self.state.lock();
            assert_eq!(
                state.syncing,
                Some(txg),
                "only the closed txg can have been synced"
            );
            state.syncing = None;
            state.synced = txg;
            state.dirty[slot(txg)] = 0;
            state.dirty_whole[slot(txg)] = 0;
        }
        self.admit.notify_waiters();
        self.progress.notify_waiters();
        self.work.notify_one();
    }

    /// Waits until `txg` is on disk, asking the sync loop for it. A txg in the future is waited for
    /// too, as `txg_wait_synced` does.
    ///
    /// # Errors
    /// The error given to [`Self::stop`].
    pub async fn wait_synced(&self, txg: Txg) -> Result<(), ZioError> {
        loop {
            let mut progress = pin!(self.progress.notified());
            progress.as_mut().enable();
            {
                let mut state = self.state.lock();
                if state.synced >= txg {
                    return Ok(());
                }
                if let Some(error) = &state.stopped {
                    return Err(error.clone());
                }
                if state.wanted < txg {
                    state.wanted = txg;
                }
            }
            self.work.notify_one();
            progress.await;
        }
    }

    /// Waits until a txg after `txg` is on disk, without asking the sync loop for it.
    ///
    /// # Errors
    /// The error given to [`Self::stop`].
    pub async fn synced_after(&self, txg: Txg) -> Result<Txg, ZioError> {
        loop {
            let mut progress = pin!(self.progress.notified());
            progress.as_mut().enable();
            {
                let state = self.state.lock();
                if state.synced > txg {
                    return Ok(state.synced);
                }
                if let Some(error) = &state.stopped {
                    return Err(error.clone());
                }
            }
            progress.await;
        }
    }

    /// Waits until the txg that is open now is on disk.
    ///
    /// # Errors
    /// As [`Self::wait_synced`].
    pub async fn sync(&self) -> Result<Txg, ZioError> {
        let txg = self.open_txg();
        self.wait_synced(txg).await.map(|()| txg)
    }

    /// Waits until `txg` or a later one is open, asking the sync loop to close those before it.
    ///
    /// # Errors
    /// The error given to [`Self::stop`].
    pub async fn wait_open(&self, txg: Txg) -> Result<(), ZioError> {
        loop {
            let mut progress = pin!(self.progress.notified());
            progress.as_mut().enable();
            {
                let mut state = self.state.lock();
                if state.open >= txg {
                    return Ok(());
                }
                if let Some(error) = &state.stopped {
                    return Err(error.clone());
                }
                let before = Txg::new(txg.get() - 1);
                state.wanted = state.wanted.max(before);
            }
            self.work.notify_one();
            progress.await;
        }
    }

    /// Has the sync loop close the open txg soon for more work in the background, without
    /// [`Self::is_waited_for`].
    pub fn go_on(&self) {
        {
            let mut state = self.state.lock();
            state.background = state.background.max(state.open);
        }
        self.work.notify_one();
    }

    /// Whether somebody waits for `txg`, or a later one, to be on disk (`txg_sync_waiting`,
    /// module/zfs/txg.c).
    pub fn is_waited_for(&self, txg: Txg) -> bool {
        self.state.lock().wanted >= txg
    }

    /// Whether so much is dirty that writing it should not wait
    /// (`zfs_vdev_async_write_active_min_dirty_percent`, 30).
    pub fn is_much_dirty(&self) -> bool {
        let dirty = self.dirty_bytes();
        dirty >= self.dirty_max_bytes() / 100 * 30
    }

    /// Whether anybody held the open txg.
    pub fn is_open_used(&self) -> bool {
        self.state.lock().assigned
    }

    /// Asks the sync loop to close the open txg soon; does not wait.
    pub fn kick(&self) {
        {
            let mut state = self.state.lock();
            state.wanted = state.wanted.max(state.open);
        }
        self.work.notify_one();
    }

    /// For the sync loop: waits until the open txg should be closed.
    pub async fn wait_for_work(&self) -> Work {
        loop {
            let mut work = pin!(self.work.notified());
            work.as_mut().enable();
            let left_ns = {
                let state = self.state.lock();
                if state.stopped.is_some() {
                    return Work::Stopped;
                }
                let wanted = state.wanted.max(state.background);
                if wanted >= state.open || self.is_much(&state, state.open) {
                    return Work::Wanted;
                }
                let age_ns = self
                    .world
                    .clock
                    .monotonic_ns()
                    .saturating_sub(state.open_since_ns);
                let timeout_ns = self.limits.timeout.as_nanos() as u64;
                if age_ns >= timeout_ns {
                    return Work::Timeout {
                        assigned: state.assigned,
                    };
                }
                timeout_ns - age_ns
            };
            let sleep = self.world.clock.sleep(Duration::from_nanos(left_ns));
            futures::future::select(work, sleep).await;
        }
    }

    /// For the sync loop, instead of closing an open txg that nobody held: starts its timeout anew.
    pub fn skip_timeout(&self) {
        self.state.lock().open_since_ns = self.world.clock.monotonic_ns();
    }

    /// The open txg.
    pub fn open_txg(&self) -> Txg {
        self.state.lock().open
    }

    /// The txg being synced, if any.
    pub fn syncing_txg(&self) -> Option<Txg> {
        self.state.lock().syncing
    }

    /// The last txg that is on disk.
    pub fn synced_txg(&self) -> Txg {
        self.state.lock().synced
    }

    /// Dirty bytes of the open and the syncing txg.
    pub fn dirty_bytes(&self) -> u64 {
        self.state.lock().dirty_total()
    }

    /// The sync loop wrote `bytes` of what was dirty in `txg`: lets more in.
    pub fn sync_progress(&self, txg: Txg, bytes: u64) {
        {
            let mut state = self.state.lock();
            let dirty = &mut state.dirty[slot(txg)];
            *dirty = dirty.saturating_sub(bytes);
        }
        self.admit.notify_waiters();
    }

    fn add_dirty(&self, txg: Txg, bytes: u64, whole: bool) {
        let wake = {
            let mut state = self.state.lock();
            let before = self.is_much(&state, txg);
            let dirty = &mut state.dirty[slot(txg)];
            *dirty = dirty.saturating_add(bytes);
            if whole {
                let dirty = &mut state.dirty_whole[slot(txg)];
                *dirty = dirty.saturating_add(bytes);
            }
            !before && self.is_much(&state, txg)
        };
        if wake {
            self.work.notify_one();
        }
    }

    /// The pool is suspended (or no longer, `None`): assignments wait, or fail with
    /// [`FailMode::Continue`].
    pub fn set_suspended(&self, error: Option<ZioError>, fail_mode: FailMode) {
        {
            let mut state = self.state.lock();
            state.suspended = error;
            state.fail_mode = fail_mode;
        }
        self.admit.notify_waiters();
    }

    /// No more txgs: every wait, now and later, ends with `error`. For closing a pool, and for
    /// leaving a suspended one.
    pub fn stop(&self, error: ZioError) {
        self.state.lock().stopped.get_or_insert(error);
        self.admit.notify_waiters();
        self.progress.notify_waiters();
        self.work.notify_one();
    }

    fn release(&self) {
        let drained = {
            let mut state = self.state.lock();
            state.holders -= 1;
            state.holders == 0 && state.quiescing
        };
        if drained {
            self.drained.notify_waiters();
        }
    }
}

impl std::fmt::Debug for TxgManager {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.state.lock().fmt(out)
    }
}

/// A hold on a txg: it is not closed before this is dropped. Or, made by [`Tx::syncing`], the
/// sync loop's own way to say "the txg being synced".
#[must_use = "dropping it releases the txg"]
pub struct Tx {
    txg: Txg,
    manager: Option<Arc<TxgManager>>,
    data_bytes: AtomicU64,
    metadata_bytes: AtomicU64,
    settle: Option<Settle>,
}

/// What a transaction added to what its txg has to write: bytes before compression, copies and
/// parity.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Added {
    /// Of blocks of data.
    pub data_bytes: u64,
    /// Of blocks of metadata, indirect blocks and blocks of dnodes included.
    pub metadata_bytes: u64,
}

/// Hears of what a transaction added, while its txg is still held.
pub type Settle = Box<dyn FnOnce(Added) + Send + Sync>;

impl Tx {
    /// For the sync loop only: changes made with it go into `txg`, which is being synced.
    pub fn syncing(txg: Txg) -> Tx {
        Tx {
            txg,
            manager: None,
            data_bytes: AtomicU64::new(0),
            metadata_bytes: AtomicU64::new(0),
            settle: None,
        }
    }

    /// The txg.
    pub fn txg(&self) -> Txg {
        self.txg
    }

    /// Whether it was made by [`Tx::syncing`].
    pub fn is_syncing(&self) -> bool {
        self.manager.is_none()
    }

    /// Says that `bytes` more are dirty in this txg.
    pub fn dirtied(&self, bytes: u64) {
        if let Some(manager) = &self.manager
            && bytes > 0
        {
            manager.add_dirty(self.txg, bytes, false);
        }
    }

    /// [`Self::dirtied`] for blocks that were written whole ([`TxgLimits::sync_whole_bytes`]).
    pub fn dirtied_whole(&self, bytes: u64) {
        if let Some(manager) = &self.manager
            && bytes > 0
        {
            manager.add_dirty(self.txg, bytes, true);
        }
    }

    /// Says that the txg has to write so much more than before. Counts space, not memory: see
    /// [`Self::settle_with`].
    pub fn adds(&self, added: Added) {
        self.data_bytes
            .fetch_add(added.data_bytes, Ordering::Relaxed);
        self.metadata_bytes
            .fetch_add(added.metadata_bytes, Ordering::Relaxed);
    }

    /// When this is released, `settle` hears of what was added meanwhile: who reserved space for
    /// the worst case gives back what was not needed.
    pub fn settle_with(&mut self, settle: Settle) {
        self.settle = Some(settle);
    }
}

impl Drop for Tx {
    fn drop(&mut self) {
        if let Some(settle) = self.settle.take() {
            settle(Added {
                data_bytes: *self.data_bytes.get_mut(),
                metadata_bytes: *self.metadata_bytes.get_mut(),
            });
        }
        if let Some(manager) = &self.manager {
            manager.release();
        }
    }
}

impl std::fmt::Debug for Tx {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let kind = if self.is_syncing() { "syncing" } else { "open" };
        write!(out, "Tx({kind} {})", self.txg)
    }
}

#[cfg(test)]
mod tests;
