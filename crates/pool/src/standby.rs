//! Spares that stand by: who uses one, by its label, and which devices want one.

use std::sync::atomic::{AtomicBool, Ordering};

use format::{Guid, NvList};
use parking_lot::Mutex;
use spa::config;
use tokio::sync::Notify;
use vdev::{VdevAux, VdevState, VdevTree};

/// What a spare's label says of who uses it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum SpareUse {
    /// It stands by.
    Waits,
    /// This pool, or a change of it that a crash cut short.
    Own,
    /// Another pool, which may be exported.
    Other {
        /// Its name.
        pool: String,
    },
}

/// Who uses a spare of the pool `own`, by its label.
pub(crate) fn spare_use(label: &NvList, own: Guid) -> SpareUse {
    let has_txg = label.u64("txg").unwrap_or(0) != 0;
    match label.u64("state") {
        Some(config::STATE_SPARE) => SpareUse::Waits,
        _ if label.u64("pool_guid") == Some(own.get()) => SpareUse::Own,
        Some(config::STATE_ACTIVE | config::STATE_EXPORTED) if has_txg => SpareUse::Other {
            pool: label.string("name").unwrap_or("?").to_owned(),
        },
        _ => SpareUse::Waits,
    }
}

/// Devices that spares are to stand in for.
#[derive(Debug, Default)]
pub(crate) struct Spares {
    wanted: Mutex<Vec<Guid>>,
    /// Devices that got none because their vdev is being removed.
    refused: Mutex<Vec<Guid>>,
    /// The lists are to be looked at.
    look: AtomicBool,
    wake: Notify,
    /// People say when a spare stands in.
    by_hand: AtomicBool,
}

impl Spares {
    /// No device wants one yet. `by_hand`: none will.
    pub(crate) fn new(by_hand: bool) -> Self {
        Self {
            by_hand: AtomicBool::new(by_hand),
            ..Self::default()
        }
    }

    /// From now on people alone say when a spare stands in.
    pub(crate) fn set_by_hand(&self) {
        self.by_hand.store(true, Ordering::Relaxed);
    }

    /// A spare is to stand in for this device, unless people say when.
    pub(crate) fn want(&self, device: Guid) {
        if self.by_hand.load(Ordering::Relaxed) {
            return;
        }
        let mut wanted = self.wanted.lock();
        if !wanted.contains(&device) {
            wanted.push(device);
        }
        self.wake.notify_one();
    }

    /// The vdev of this device may be being removed, so that it gets none; or it is not after all.
    pub(crate) fn set_refused(&self, device: Guid, is_refused: bool) {
        let mut refused = self.refused.lock();
        refused.retain(|other| *other != device);
        if is_refused {
            refused.push(device);
        }
    }

    /// The vdev stays: its devices want spares again.
    pub(crate) fn want_refused(&self) {
        let refused = std::mem::take(&mut *self.refused.lock());
        for device in refused {
            self.want(device);
        }
    }

    /// Wants spares for all devices that are bad now.
    pub(crate) fn want_all(&self, tree: &VdevTree) {
        let leaves = tree.leaves();
        for vdev in leaves.iter().filter(|vdev| is_bad(vdev.state())) {
            self.want(vdev.guid());
        }
    }

    /// A spare has returned.
    pub(crate) fn look(&self) {
        self.look.store(true, Ordering::Relaxed);
        self.wake.notify_one();
    }

    /// Waits until there is something to do, or the pool is gone.
    pub(crate) async fn woken(&self) {
        self.wake.notified().await;
    }

    /// Whether the lists are to be looked at; it is up to the caller from now on.
    pub(crate) fn take_look(&self) -> bool {
        self.look.swap(false, Ordering::Relaxed)
    }

    /// The next device that wants a spare.
    pub(crate) fn next(&self) -> Option<Guid> {
        let mut wanted = self.wanted.lock();
        (!wanted.is_empty()).then(|| wanted.remove(0))
    }

    /// The pool is gone.
    pub(crate) fn end(&self) {
        self.wake.notify_one();
    }
}

/// Whether a device is one that a spare is for. Who was taken offline is not.
pub(crate) fn is_bad((state, aux): (VdevState, VdevAux)) -> bool {
    match state {
        VdevState::Removed | VdevState::CantOpen | VdevState::Faulted => true,
        VdevState::Degraded => aux == VdevAux::ErrorsExceeded,
        VdevState::Closed | VdevState::Offline | VdevState::Healthy => false,
    }
}
