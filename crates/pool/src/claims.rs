//! The first transaction group after an import: the logs of all datasets are claimed, and a scan
//! that another release left is ended.
//!
//! A crash before that group is on disk leaves everything as it was, and the next import does it
//! again.

use dataset::LogClaim;
use format::{ObjectId, ScanPhys, Txg};
use object::{Zap, ZapValue};
use parking_lot::Mutex;

use crate::core::Core;
use crate::directory;
use crate::participant::{Participant, Pass, Turn};
use crate::{PoolError, ScanFunction, ScanState, ScanStatus};

/// Words of [`ScanPhys`].
const WORDS: usize = ScanPhys::BYTES / 8;

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
    fn has_work(&self, _core: &Core) -> bool {
        self.pending.lock().is_some()
    }

    fn early<'a>(&'a self, pass: &'a Pass<'a>) -> Turn<'a> {
        Box::pin(async move {
            let claim = self.pending.lock().take();
            if let Some(claim) = claim {
                let newest = pass.core.dsl.logs().claim(pass.ctx, claim).await?;
                *self.newest.lock() = newest;
                pass.core.stored_scan.cancel(pass).await?;
            }
            Ok(())
        })
    }
}

/// The last scrub or resilver, as the MOS has it.
#[derive(Default)]
pub(crate) struct StoredScan {
    /// `None` if there was none.
    phys: Mutex<Option<ScanPhys>>,
    /// Words that follow it, of a newer release.
    rest: Vec<u64>,
    /// An older release's, with fewer words: it is left as it is.
    is_short: bool,
}

impl StoredScan {
    /// From the value in the MOS's directory.
    ///
    /// # Errors
    /// [`format::FormatError`], by its type: any number of words can be read.
    pub(crate) fn load(value: &ZapValue) -> Result<Self, PoolError> {
        let mut words = value.to_u64s();
        let is_short = words.len() < WORDS;
        words.resize(words.len().max(WORDS), 0);
        let rest = words.split_off(WORDS);
        Ok(StoredScan {
            phys: Mutex::new(Some(ScanPhys::from_words(&words)?)),
            rest,
            is_short,
        })
    }

    /// For people.
    pub(crate) fn status(&self) -> Option<ScanStatus> {
        let phys = (*self.phys.lock())?;
        let function = match phys.function {
            ScanPhys::FUNCTION_SCRUB => ScanFunction::Scrub,
            ScanPhys::FUNCTION_RESILVER => ScanFunction::Resilver,
            _ => return None,
        };
        let state = match phys.state {
            ScanPhys::STATE_SCANNING => ScanState::Scanning,
            ScanPhys::STATE_FINISHED => ScanState::Finished,
            ScanPhys::STATE_CANCELED => ScanState::Canceled,
            _ => return None,
        };
        Some(ScanStatus {
            function,
            state,
            start_time_s: phys.start_time_seconds,
            end_time_s: phys.end_time_seconds,
            to_examine_bytes: phys.to_examine_bytes,
            examined_bytes: phys.examined_bytes,
            issued_bytes: phys.examined_bytes,
            repaired_bytes: phys.processed_bytes,
            errors: phys.errors,
            pause_time_s: 0,
            elapsed_s: phys
                .end_time_seconds
                .saturating_sub(phys.start_time_seconds),
            verify_only: false,
        })
    }

    /// Ends a scrub or resilver that another release left in progress (`dsl_scan_cancel`): its
    /// queue of datasets would not follow what happens to them here. What a device lacks stays
    /// known, so that OpenZFS starts the resilver again.
    async fn cancel(&self, pass: &Pass<'_>) -> Result<(), PoolError> {
        let running = |phys: &ScanPhys| phys.state == ScanPhys::STATE_SCANNING && !self.is_short;
        let running = (*self.phys.lock()).filter(running);
        let Some(mut phys) = running else {
            return Ok(());
        };
        let (core, mos) = (pass.core, pass.core.dsl.mos());
        if !phys.queue.is_zero() {
            mos.free(pass.tx, phys.queue).await?;
        }
        phys.queue = ObjectId::ZERO;
        phys.state = ScanPhys::STATE_CANCELED;
        phys.end_time_seconds = core.world.clock.wall_ns() / 1_000_000_000;
        phys.flags = 0;
        let directory = Zap::hold(mos, ObjectId::POOL_DIRECTORY).await?;
        directory
            .update(
                pass.tx,
                directory::SCAN,
                ZapValue::from_u64s(&[phys.to_words(), self.rest.clone()].concat()),
            )
            .await?;
        core.history
            .internal(
                pass.tx,
                "scan aborted",
                "the pool was imported by millpond".into(),
            )
            .await?;
        *self.phys.lock() = Some(phys);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(words: &[u64]) -> StoredScan {
        StoredScan::load(&ZapValue::from_u64s(words)).expect("any number of words")
    }

    /// Goal: scans of older and newer releases are shown, and what we do not know of them is kept.
    #[test]
    fn scans_of_other_releases_are_read() {
        let mut words = vec![0; WORDS + 2];
        (words[0], words[1], words[13]) = (ScanPhys::FUNCTION_SCRUB, ScanPhys::STATE_SCANNING, 3);
        words[WORDS + 1] = 7;
        let newer = load(&words);
        let status = newer.status().expect("a scrub");
        assert_eq!(
            (status.function, status.state, status.errors),
            (ScanFunction::Scrub, ScanState::Scanning, 3)
        );
        assert_eq!((&newer.rest[..], newer.is_short), (&[0, 7][..], false));
        let older = load(&words[..14]);
        assert_eq!(older.status(), newer.status());
        assert!(older.is_short);
        assert_eq!(load(&[]).status(), None);
    }
}
