//! What the leaves of a tree share: who hears of their errors, and whether they may be written.
//!
//! While a pool is suspended another host may take it (multi-host protection suspends it for that
//! very reason), and from then on nothing of ours may reach its devices. The pipeline alone cannot
//! see to that: when it is suspended, writes wait in leaves' queues behind a device that does not
//! answer, and labels are half written. So the last question before a write, flush or discard goes
//! to a device is [`Halt::is_halted`], and what it stops fails as
//! [`crate::io::LeafError::Halted`]: no error of the device, and done again when the pool
//! resumes. What a device has accepted by then cannot be taken back.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use device::{Clock, Device};
use parking_lot::{Mutex, RwLock};

use crate::copies::Copies;
use crate::error::VdevError;
use crate::fence::Fence;
use crate::inject::Injector;
use crate::patience::Patience;
use crate::repairs::Repairs;
use crate::report::{ErrorReport, ErrorSink, IgnoreErrors};
use crate::watch::Watched;

/// Shared by all leaves of a tree.
pub(super) struct Common {
    errors: RwLock<Arc<dyn ErrorSink>>,
    pub(super) halt: Halt,
    /// All devices that were opened, also those that no leaf has (yet).
    watched: Mutex<Vec<Weak<Watched>>>,
    pub(super) patience: Patience,
    /// The percentage of each device's time that scans have; zero: none is said.
    pub(super) scan_share: Arc<AtomicU8>,
    /// Between intent logs and sequential rebuilds.
    pub(super) fence: Fence,
    /// Between readers and whoever lets go of freed space.
    pub(super) repairs: Arc<Repairs>,
    /// Who knows where copies are of what is repaired.
    copies: RwLock<Option<Arc<dyn Copies>>>,
    /// What devices are made to do wrong.
    pub(super) faults: Arc<Injector>,
}

impl Common {
    pub(super) fn new(clock: Arc<dyn Clock>) -> Self {
        Common {
            errors: RwLock::new(Arc::new(IgnoreErrors)),
            halt: Halt::default(),
            watched: Mutex::default(),
            patience: Patience::default(),
            scan_share: Arc::default(),
            fence: Fence::default(),
            repairs: Arc::default(),
            copies: RwLock::default(),
            faults: Injector::new(clock),
        }
    }

    /// Says who hears of errors.
    pub(super) fn set_error_sink(&self, sink: Arc<dyn ErrorSink>) {
        *self.errors.write() = sink;
    }

    /// Says who knows of copies.
    pub(super) fn set_copies(&self, copies: Arc<dyn Copies>) {
        *self.copies.write() = Some(copies);
    }

    pub(super) fn copies(&self) -> Option<Arc<dyn Copies>> {
        self.copies.read().clone()
    }

    /// Watches a device that was just opened.
    pub(super) fn watch(&self, device: Arc<dyn Device>) -> Arc<Watched> {
        let watched = Watched::with_faults(device, Some(self.faults.clone()));
        self.watched.lock().push(Arc::downgrade(&watched));
        watched
    }

    /// The devices that somebody still has.
    pub(super) fn watched(&self) -> Vec<Arc<Watched>> {
        let mut watched = self.watched.lock();
        watched.retain(|device| device.strong_count() > 0);
        watched.iter().filter_map(Weak::upgrade).collect()
    }

    pub(super) fn report(&self, report: ErrorReport) {
        let sink = self.errors.read().clone();
        sink.report(report);
    }
}

/// Whether devices get nothing any more.
#[derive(Debug, Default)]
pub struct Halt {
    /// How often that changed: odd while halted.
    changes: AtomicU64,
}

impl Halt {
    /// Lets no write, flush or discard go to a device any more, or again. Callers take turns.
    pub fn set(&self, halted: bool) {
        if self.is_halted() != halted {
            self.changes.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// Whether nothing may go to a device now.
    pub fn is_halted(&self) -> bool {
        !self.changes.load(Ordering::Acquire).is_multiple_of(2)
    }

    /// The present state, for [`Self::is_unchanged`].
    pub(super) fn mark(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    /// Whether nothing was halted since `mark`: what began then was not stopped half-way.
    pub(super) fn is_unchanged(&self, mark: u64) -> bool {
        self.mark() == mark && mark.is_multiple_of(2)
    }

    /// # Errors
    /// [`VdevError::NotDurable`] when devices may not have got something since `mark`.
    pub(super) fn check_unchanged(&self, mark: u64) -> Result<(), VdevError> {
        if self.is_unchanged(mark) {
            return Ok(());
        }
        Err(VdevError::NotDurable {
            reason: "it was suspended before all was written".to_owned(),
        })
    }
}
