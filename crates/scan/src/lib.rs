//! Scrubs, resilvers and sequential rebuilds: they read all that a pool has, or all that a device
//! lacks, and put right what is wrong or missing.
//!
//! Three kinds of work, which know of each other because no two of them go on at a time:
//!
//! | Module | Does | In OpenZFS |
//! |---|---|---|
//! | `scan` | walks all datasets: a scrub verifies every block, a resilver writes what devices lack | dsl_scan.c; vdev.c: `vdev_dtl_reassess` |
//! | `errorscrub` | reads the blocks that the error log names | dsl_scan.c: `dsl_errorscrub_sync` |
//! | `rebuild` | copies what is allocated of one vdev, in the order of the medium | vdev_rebuild.c |
//!
//! All three are [`Scans`], which has one turn in each transaction group: scans first, as they find
//! out what goes into error and dirty time logs, rebuilds before changes of space are recorded.
//! They see the ground ([`spa::Spa`]) and each other; devices that come and go, and commands, are
//! the business of crate `pool`.

#![forbid(unsafe_code)]

mod errorscrub;
mod rebuild;
mod scan;
mod status;

use std::sync::Arc;

use format::Txg;
use spa::{Participant, Pass, Spa, Turn};

pub use errorscrub::{ErrorScrub, ErrorScrubStatus};
pub use rebuild::{RebuildState, RebuildStatus, Rebuilds, as_task_error};
pub use scan::{Scan, ScrubCommand, ScrubNumbers, command, is_deferred, resilver};
pub use status::{ScanFunction, ScanState, ScanStatus};

/// A pool's scrubs, resilvers and sequential rebuilds.
pub struct Scans {
    /// The pool.
    pub spa: Arc<Spa>,
    /// Scrub and resilver.
    pub scan: Arc<Scan>,
    /// The scrub of the error log.
    pub error_scrub: ErrorScrub,
    /// Sequential rebuilds.
    pub rebuilds: Rebuilds,
}

impl Scans {
    /// Whether a scan, or a rebuild, reaches the devices that were there when it began.
    pub fn is_scanning(&self) -> bool {
        self.scan.is_running() || self.is_rebuilding()
    }

    /// Whether a sequential rebuild is under way.
    pub fn is_rebuilding(&self) -> bool {
        self.rebuilds.is_active()
    }

    /// Goes on with what was loaded; the pool is open for writing.
    pub fn start(&self) {
        Scan::start(self);
        self.error_scrub.start(self);
    }

    /// The pool is closed: whoever waits for the end of one hears so.
    pub fn closed(&self) {
        self.scan.closed();
        self.rebuilds.closed();
        self.error_scrub.closed();
    }
}

impl Participant for Scans {
    fn has_work(&self, _spa: &Spa) -> bool {
        self.scan.has_work(self) || self.error_scrub.has_work(self) || self.rebuilds.has_work(self)
    }

    fn pass<'a>(&'a self, pass: &'a Pass<'a>) -> Turn<'a> {
        Box::pin(async move {
            if pass.is_first() {
                self.scan.turn(self, pass).await?;
                self.error_scrub.turn(self, pass).await?;
                self.rebuilds.turn(self, pass).await?;
            }
            Ok(())
        })
    }

    fn done(&self, _spa: &Spa, _txg: Txg, _wrote: bool) {
        self.scan.done(self);
        self.error_scrub.done(self);
        self.rebuilds.done(self);
    }
}
