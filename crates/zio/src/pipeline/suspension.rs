//! Suspension: what happens when a write fails beyond redundancy.
//!
//! ```text
//!            write, flush or label failed        resume
//!  Running --------------------------> Suspended --------> Running
//!                                          | abandon
//!                                          v
//!                                      Abandoned
//! ```
//!
//! A panic in one of the pool's tasks ([`super::Pipeline::tasks`]) suspends it too, for good: only
//! `abandon` is left then.
//!
//! While suspended, writes wait and devices get nothing (`vdev::common`), because another host may
//! take the pool. I/O that was under way is not answered before the pool is resumed, and is then
//! done again. What a device had accepted but not flushed when it failed is written to it again
//! when it is back (`vdev::leaf`), before the pool resumes; so nothing is lost.
//!
//! Reads fail at once, except those of the sync loop ([`must_succeed`]): a txg can be neither
//! written nor given up without them. When a device that stopped working may have the block (one
//! side of a mirror whose other side lacks it), or a working one failed to read it, they suspend
//! the pool as writes do (`zio_done`, module/zfs/zio.c, executes again what must succeed). What
//! a txg can do without does not wait for a bad sector ([`waits_for_devices`]), or for nothing at
//! all ([`may_fail`]).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use tokio::sync::watch;
use vdev::VdevTree;

use super::FailMode;
use crate::alloc::Allocator;
use crate::error::ZioError;

/// Whether a pipeline writes.
#[derive(Debug, Clone)]
pub enum SuspendState {
    /// All is well.
    Running,
    /// Writes wait for [`Suspension::resume`].
    Suspended(ZioError),
    /// Given up: writes fail.
    Abandoned(ZioError),
}

impl SuspendState {
    /// Why it does not write.
    pub fn error(&self) -> Option<&ZioError> {
        match self {
            SuspendState::Running => None,
            SuspendState::Suspended(error) | SuspendState::Abandoned(error) => Some(error),
        }
    }
}

/// Who is told of every change of the suspension or the `failmode`.
pub type SuspendHook = Arc<dyn Fn(Option<ZioError>, FailMode) + Send + Sync>;

/// Whether the pool writes, and the only way to change that.
pub struct Suspension {
    tree: Arc<VdevTree>,
    allocator: Arc<Allocator>,
    read_only: bool,
    state: watch::Sender<SuspendState>,
    fail_mode: Mutex<FailMode>,
    hook: Mutex<Option<SuspendHook>>,
    reopened: AtomicU64,
}

/// What a failed read suspends the pool and waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Waits {
    /// Nothing: it fails.
    Never,
    /// Devices that stopped working and may have the block.
    ForDevices,
    /// Those, and devices that work and failed to read it.
    Always,
}

tokio::task_local! {
    static WAITS: Waits;
}

/// What reads on this task wait for.
pub(super) fn waits() -> Waits {
    WAITS.try_with(|waits| *waits).unwrap_or(Waits::Never)
}

/// Runs the writing of a txg: what it reads, on this task, must not fail because of a device that
/// may come back. Such a read suspends the pool and waits.
pub async fn must_succeed<T>(work: impl Future<Output = T>) -> T {
    WAITS.scope(Waits::Always, work).await
}

/// Runs a part of the writing of a txg that has another way where a block is damaged, but a worse
/// one: what it reads waits for devices that stopped working, and fails where one that works cannot
/// read it.
pub async fn waits_for_devices<T>(work: impl Future<Output = T>) -> T {
    WAITS.scope(Waits::ForDevices, work).await
}

/// Runs a part of the writing of a txg that need not be done: what it reads fails at once.
pub async fn may_fail<T>(work: impl Future<Output = T>) -> T {
    WAITS.scope(Waits::Never, work).await
}

impl Suspension {
    pub(super) fn new(
        tree: Arc<VdevTree>,
        allocator: Arc<Allocator>,
        read_only: bool,
        fail_mode: FailMode,
    ) -> Self {
        Suspension {
            read_only: read_only || tree.is_read_only(),
            tree,
            allocator,
            state: watch::Sender::new(SuspendState::Running),
            fail_mode: Mutex::new(fail_mode),
            hook: Mutex::new(None),
            reopened: AtomicU64::new(0),
        }
    }

    /// Whether writes are refused.
    pub fn is_read_only(&self) -> bool {
        self.read_only
    }

    pub(super) fn check_writable(&self) -> Result<(), ZioError> {
        if self.read_only {
            Err(ZioError::ReadOnly)
        } else {
            Ok(())
        }
    }

    /// Why the pool does not write, if so.
    pub fn error(&self) -> Option<ZioError> {
        self.state.borrow().error().cloned()
    }

    /// The state, and its changes.
    pub fn watch(&self) -> watch::Receiver<SuspendState> {
        self.state.subscribe()
    }

    /// What to do when a write fails beyond redundancy. The pipeline's own writes wait in every
    /// mode; who admits new transactions asks this.
    pub fn fail_mode(&self) -> FailMode {
        *self.fail_mode.lock()
    }

    /// Replaces the `failmode`.
    pub fn set_fail_mode(&self, mode: FailMode) {
        *self.fail_mode.lock() = mode;
        self.tell_hook();
    }

    /// Says who is told of every change (the txgs' admission); it is told the present state at
    /// once. It must not block.
    pub fn set_hook(&self, hook: SuspendHook) {
        *self.hook.lock() = Some(hook);
        self.tell_hook();
    }

    fn tell_hook(&self) {
        let hook = self.hook.lock().clone();
        if let Some(hook) = hook {
            hook(self.error(), self.fail_mode());
        }
    }

    /// [`Self::suspend`], then [`Self::wait_resumed`].
    ///
    /// # Errors
    /// As [`Self::wait_resumed`].
    pub async fn suspend_and_wait(&self, error: ZioError) -> Result<(), ZioError> {
        self.suspend(error);
        self.wait_resumed().await
    }

    /// Suspends: writes wait from now on, and devices get nothing any more but what they have
    /// accepted.
    pub fn suspend(&self, error: ZioError) {
        let changed = self.state.send_if_modified(|state| {
            let is_news = match state {
                SuspendState::Running => true,
                SuspendState::Suspended(before) => error.is_final() && !before.is_final(),
                SuspendState::Abandoned(_) => false,
            };
            if is_news {
                self.tree.halt().set(true);
                *state = SuspendState::Suspended(error.clone());
            }
            is_news
        });
        if changed {
            tracing::error!(%error, "the pool is suspended");
            self.tell_hook();
        }
    }

    /// Tries the writes that suspended the pool again. Reopen devices before
    /// ([`VdevTree::reopen`]).
    ///
    /// # Errors
    /// The error of [`Self::abandon`] after that; [`ZioError::TaskPanicked`].
    pub fn resume(&self) -> Result<(), ZioError> {
        let mut result = Ok(());
        self.state.send_if_modified(|state| match state {
            SuspendState::Running => false,
            SuspendState::Suspended(error) if !error.is_final() => {
                self.tree.halt().set(false);
                *state = SuspendState::Running;
                true
            }
            SuspendState::Suspended(error) | SuspendState::Abandoned(error) => {
                result = Err(error.clone());
                false
            }
        });
        self.tell_hook();
        result
    }

    /// Clears error counters, reopens devices, and resumes ('zpool clear').
    ///
    /// # Errors
    /// As [`Self::resume`] and [`Self::reopen`].
    pub async fn clear(&self) -> Result<(), ZioError> {
        self.tree.tops().iter().for_each(|top| top.clear_errors());
        self.reopen().await?;
        self.resume()
    }

    /// [`VdevTree::reopen`]; metaslabs whose space maps could not be read are tried again, and
    /// vdevs that are back get new blocks, but for logs: these get some when the state on disk
    /// tells that they are back, which is for the caller to see to.
    ///
    /// # Errors
    /// [`vdev::VdevError::Stalled`].
    pub async fn reopen(&self) -> Result<(), ZioError> {
        self.reopen_some(&|_| true).await
    }

    /// The same with those devices only that are wanted; of a suspended pool with all.
    ///
    /// # Errors
    /// As [`Self::reopen`].
    pub async fn reopen_some(
        &self,
        which: &(dyn Fn(&vdev::Vdev) -> bool + Sync),
    ) -> Result<(), ZioError> {
        let logs = || self.tree.tops().into_iter().filter(|top| top.is_log());
        for log in logs().filter(|log| !log.state().0.is_usable()) {
            self.allocator.set_allocatable(log.vdev_id(), false);
        }
        match self.error().is_some() {
            true => self.tree.reopen(true).await?,
            false => self.tree.reopen_some(false, which).await?,
        };
        for top in self.tree.tops() {
            if let Some(spec) = vdev::TopSpec::of(&top)
                && !(top.is_log() && spec.allocatable)
            {
                self.allocator.set_allocatable(spec.vdev, spec.allocatable);
            }
        }
        self.allocator.retry_broken();
        self.note_reopened();
        Ok(())
    }

    /// How often devices were looked at again since the pool was opened. What could not be read is
    /// worth another try when this has grown.
    pub fn reopened(&self) -> u64 {
        self.reopened.load(Ordering::Acquire)
    }

    /// Notes that devices were looked at again, otherwise than by [`Self::reopen`].
    pub fn note_reopened(&self) {
        self.reopened.fetch_add(1, Ordering::AcqRel);
    }

    /// Gives up: every write that waits, and every later one, fails with `error` (export of a
    /// suspended pool).
    pub fn abandon(&self, error: ZioError) {
        self.state.send_modify(|state| {
            self.tree.halt().set(true);
            *state = SuspendState::Abandoned(error);
        });
        self.tell_hook();
    }

    /// Waits until the pool is given up.
    pub async fn until_abandoned(&self) {
        let mut changes = self.state.subscribe();
        let is_abandoned = |state: &SuspendState| matches!(state, SuspendState::Abandoned(_));
        // The sender is in this very value.
        let _ = changes.wait_for(is_abandoned).await;
    }

    /// Waits until writes are possible.
    ///
    /// # Errors
    /// When they never will be: what [`Self::abandon`] said.
    pub async fn wait_resumed(&self) -> Result<(), ZioError> {
        // The common case, without registering anything.
        if matches!(*self.state.borrow(), SuspendState::Running) {
            return Ok(());
        }
        let mut changes = self.state.subscribe();
        loop {
            match &*changes.borrow_and_update() {
                SuspendState::Running => return Ok(()),
                SuspendState::Suspended(_) => {}
                SuspendState::Abandoned(error) => {
                    return Err(error.clone());
                }
            }
            if changes.changed().await.is_err() {
                return Err(ZioError::Closing);
            }
        }
    }
}
