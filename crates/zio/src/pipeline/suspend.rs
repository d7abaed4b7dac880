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
//! A panic in one of the pool's tasks ([`Pipeline::tasks`]) suspends it too, for good: only `abandon` is left then.
//!
//! In `Suspended` writes wait, and devices get nothing (`vdev::common`): another host may take the pool. What was under
//! way is not answered before the pool is resumed, and then done again. What a device had taken and not flushed when it failed is written to it again
//! when it is back (see [`crate::vdev`], `leaf`), before the pool resumes; so nothing is lost.
//!
//! Reads fail at once, but for those of the sync loop ([`Pipeline::syncing`]) and of space maps: a txg cannot be written
//! without them, nor given up. When a device that stopped working may have the block (a mirror of which the other one
//! lacks it), or one that works failed to read it, they suspend the pool as writes do (`zio_done`, module/zfs/zio.c: what
//! must succeed is executed again).

use std::sync::Arc;

use format::BlockPointer;
use parking_lot::Mutex;
use tokio::sync::watch;

use super::{FailMode, Pipeline};
use crate::error::ZioError;
use vdev::AllocClass;

/// Whether a pipeline writes.
#[derive(Debug, Clone)]
pub enum Suspension {
    /// All is well.
    Running,
    /// Writes wait for [`Pipeline::resume`].
    Suspended(ZioError),
    /// Given up: writes fail.
    Abandoned(ZioError),
}

impl Suspension {
    /// Why it does not write.
    pub fn error(&self) -> Option<&ZioError> {
        match self {
            Suspension::Running => None,
            Suspension::Suspended(error) | Suspension::Abandoned(error) => Some(error),
        }
    }
}

/// Who is told of every change of the suspension or the `failmode`.
pub type SuspendHook = Arc<dyn Fn(Option<ZioError>, FailMode) + Send + Sync>;

pub(super) struct Gate {
    state: watch::Sender<Suspension>,
    fail_mode: Mutex<FailMode>,
    hook: Mutex<Option<SuspendHook>>,
}

impl Gate {
    pub(super) fn new(fail_mode: FailMode) -> Self {
        Gate {
            state: watch::Sender::new(Suspension::Running),
            fail_mode: Mutex::new(fail_mode),
            hook: Mutex::new(None),
        }
    }
}

tokio::task_local! {
    static SYNCING: ();
}

/// Whether this is called from within [`Pipeline::syncing`].
pub(super) fn is_syncing() -> bool {
    SYNCING.try_with(|()| ()).is_ok()
}

/// What it reads, on this task, must not fail for a device that may come back: see [`Pipeline::syncing`].
pub(crate) async fn must_succeed<T>(work: impl Future<Output = T>) -> T {
    SYNCING.scope((), work).await
}

impl Pipeline {
    /// Runs the writing of a txg: what it reads, on this task, must not fail for a device that may come back;
    /// such a read suspends the pool and waits.
    pub async fn syncing<T>(&self, work: impl Future<Output = T>) -> T {
        must_succeed(work).await
    }

    /// Why the pool does not write, if so.
    pub fn suspended(&self) -> Option<ZioError> {
        self.gate.state.borrow().error().cloned()
    }

    /// The state, and its changes.
    pub fn suspension(&self) -> watch::Receiver<Suspension> {
        self.gate.state.subscribe()
    }

    /// What to do when a write fails beyond redundancy. The pipeline's own writes wait in every
    /// mode; who admits new transactions asks this.
    pub fn fail_mode(&self) -> FailMode {
        *self.gate.fail_mode.lock()
    }

    /// Replaces the `failmode`.
    pub fn set_fail_mode(&self, mode: FailMode) {
        *self.gate.fail_mode.lock() = mode;
        self.tell_hook();
    }

    /// Says who is told of every change (the txgs' admission); it is told the present state at once. It must
    /// not block.
    pub fn set_suspend_hook(&self, hook: SuspendHook) {
        *self.gate.hook.lock() = Some(hook);
        self.tell_hook();
    }

    fn tell_hook(&self) {
        let hook = self.gate.hook.lock().clone();
        if let Some(hook) = hook {
            hook(self.suspended(), self.fail_mode());
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

    /// Suspends: writes wait from now on, and devices get nothing any more but what they have accepted.
    pub fn suspend(&self, error: ZioError) {
        let changed = self.gate.state.send_if_modified(|state| {
            let is_news = match state {
                Suspension::Running => true,
                Suspension::Suspended(before) => error.is_final() && !before.is_final(),
                Suspension::Abandoned(_) => false,
            };
            if is_news {
                self.tree.set_halted(true);
                *state = Suspension::Suspended(error.clone());
            }
            is_news
        });
        if changed {
            tracing::error!(%error, "the pool is suspended");
            self.tell_hook();
        }
    }

    /// Tries the writes that suspended the pool again. Reopen devices before
    /// ([`crate::VdevTree::reopen`]).
    ///
    /// # Errors
    /// The error of [`Self::abandon`] after that; [`ZioError::TaskPanicked`].
    pub fn resume(&self) -> Result<(), ZioError> {
        let mut result = Ok(());
        self.gate.state.send_if_modified(|state| match state {
            Suspension::Running => false,
            Suspension::Suspended(error) if !error.is_final() => {
                self.tree.set_halted(false);
                *state = Suspension::Running;
                true
            }
            Suspension::Suspended(error) | Suspension::Abandoned(error) => {
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

    /// [`crate::VdevTree::reopen`]; vdevs that are back get new blocks again.
    ///
    /// # Errors
    /// [`vdev::VdevError::Stalled`].
    pub async fn reopen(&self) -> Result<(), ZioError> {
        self.tree.reopen(self.suspended().is_some()).await?;
        for top in self.tree.tops() {
            if let Some(spec) = self.tree.top_spec(&top) {
                self.allocator.set_allocatable(spec.vdev, spec.allocatable);
            }
        }
        Ok(())
    }

    /// Log vdevs that cannot be written get no blocks any more: intent logs go to the main vdevs.
    pub(super) fn leave_failed_logs(&self) {
        for top in self.tree.tops() {
            let is_log = top.top().is_some_and(|top| top.class == AllocClass::Log);
            if is_log && !top.state().0.is_usable() {
                self.allocator.set_allocatable(top.vdev_id(), false);
            }
        }
    }

    /// Gives up: every write that waits, and every later one, fails with `error` (export of a
    /// suspended pool).
    pub fn abandon(&self, error: ZioError) {
        self.gate.state.send_modify(|state| {
            self.tree.set_halted(true);
            *state = Suspension::Abandoned(error);
        });
        self.tell_hook();
    }

    /// Waits until the pool is given up.
    pub async fn until_abandoned(&self) {
        let mut changes = self.gate.state.subscribe();
        let is_abandoned = |state: &Suspension| matches!(state, Suspension::Abandoned(_));
        // The sender is in this very value.
        let _ = changes.wait_for(is_abandoned).await;
    }

    /// Waits until writes are possible.
    ///
    /// # Errors
    /// When they never will be: what [`Self::abandon`] said.
    pub async fn wait_resumed(&self) -> Result<(), ZioError> {
        // The common case, without registering anything.
        if matches!(*self.gate.state.borrow(), Suspension::Running) {
            return Ok(());
        }
        let mut changes = self.gate.state.subscribe();
        loop {
            match &*changes.borrow_and_update() {
                Suspension::Running => return Ok(()),
                Suspension::Suspended(_) => {}
                Suspension::Abandoned(error) => {
                    return Err(error.clone());
                }
            }
            if changes.changed().await.is_err() {
                return Err(ZioError::Closing);
            }
        }
    }
}

/// A block's name in messages.
pub(super) fn name_of(bp: &BlockPointer) -> String {
    match bp.dva(0) {
        Some(dva) => format!("block {dva} of txg {}", bp.physical_birth()),
        None => "block without a place".to_owned(),
    }
}
