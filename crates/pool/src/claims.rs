//! The first transaction group after an import: the logs of all datasets are claimed.
//!
//! A crash before that group is on disk leaves everything as it was, and the next import does it
//! again.

use dataset::LogClaim;
use format::Txg;
use parking_lot::Mutex;
use spa::{Participant, Pass, Spa, Turn};

/// What is to be claimed.
#[derive(Default)]
pub(crate) struct LogClaims {
    pending: Mutex<Option<LogClaim>>,
    newest: Mutex<Txg>,
}

impl LogClaims {
    /// Claims logs in the next transaction group.
    pub(crate) fn new(claim: Option<LogClaim>) -> Self {
        LogClaims {
            pending: Mutex::new(claim),
            newest: Mutex::default(),
        }
    }

    /// Newest birth of what was claimed: users wait until this transaction group is on disk.
    pub(crate) fn newest(&self) -> Txg {
        *self.newest.lock()
    }
}

impl Participant for LogClaims {
    fn has_work(&self, _spa: &Spa) -> bool {
        self.pending.lock().is_some()
    }

    fn early<'a>(&'a self, pass: &'a Pass<'a>) -> Turn<'a> {
        Box::pin(async move {
            let claim = self.pending.lock().take();
            if let Some(claim) = claim {
                let newest = pass.spa.dsl.logs().claim(pass.ctx, claim).await?;
                *self.newest.lock() = newest;
            }
            Ok(())
        })
    }
}
