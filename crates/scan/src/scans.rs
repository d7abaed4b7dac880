//! All kinds of scans put together, and their turn in a transaction group.

use std::sync::Arc;

use format::Txg;
use spa::{Participant, Pass, Spa, Turn};

use crate::{ErrorScrub, Expanding, Rebuilds, Scan};

/// A pool's scrubs, resilvers, sequential rebuilds and expansions.
pub struct Scans {
    /// The pool.
    pub spa: Arc<Spa>,
    /// Scrub and resilver.
    pub scan: Arc<Scan>,
    /// The scrub of the error log.
    pub error_scrub: ErrorScrub,
    /// Sequential rebuilds.
    pub rebuilds: Rebuilds,
    /// The expansion of a RAID-Z vdev.
    pub expanding: Expanding,
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
        let is_expanding = || !self.scan.rests() && self.expanding.has_work();
        self.scan.has_work(self)
            || self.error_scrub.has_work(self)
            || self.rebuilds.has_work(self)
            || is_expanding()
    }

    fn pass<'a>(&'a self, pass: &'a Pass<'a>) -> Turn<'a> {
        Box::pin(async move {
            if pass.is_first() {
                self.scan.turn(self, pass).await?;
                self.error_scrub.turn(self, pass).await?;
                self.rebuilds.turn(self, pass).await?;
                let is_over = self.scan.turn_is_over(self, pass.ctx.txg);
                if !self.scan.rests() && self.expanding.turn(pass, &*is_over).await? {
                    // What was moved was not verified (`raidz_reflow_complete_sync`).
                    self.scan.verify_rebuilt(self, pass.ctx).await?;
                }
            }
            Ok(())
        })
    }

    fn done(&self, _spa: &Spa, _txg: Txg, wrote: bool) {
        self.scan.done(self);
        self.error_scrub.done(self);
        self.rebuilds.done(self);
        self.expanding.done(wrote, self.scan.rests());
    }
}
