//! Faults that are asked for ([`pool::Injector`]): whether any may be, their numbers, and imports
//! and exports that are to take long, which no pool knows of; and what holds up work in all pools.
//!
//! Locks: `delays` and `held`, for a few instructions each.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use api::{Failure, FailureKind, InjectCommand, InjectFault, InjectRecord};
use device::Clock;
use parking_lot::Mutex;
use pool::Pool;

/// What a server has of faults beside those of its pools.
#[derive(Debug, Default)]
pub struct Injections {
    allowed: AtomicBool,
    last: AtomicU64,
    delays: Mutex<Vec<InjectRecord>>,
    held: Mutex<Option<Held>>,
}

/// Which work waits where it is, in all pools.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Held {
    /// Scrubs, resilvers and rebuilds.
    scans: bool,
    /// Removals of vdevs with data.
    removals: bool,
}

impl Injections {
    /// Lets faults be asked for from now on.
    pub fn allow(&self) {
        self.allowed.store(true, Ordering::Relaxed);
    }

    /// # Errors
    /// That the server is no one for tests.
    pub fn check_allowed(&self) -> Result<(), Failure> {
        match self.allowed.load(Ordering::Relaxed) {
            true => Ok(()),
            false => Err(Failure::new(
                FailureKind::Unsupported,
                "failed to add handler: faults are injected only where the server was started \
                 with '--inject'",
            )),
        }
    }

    /// A number for another fault.
    pub fn next_id(&self) -> u64 {
        self.last.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Has the next import or export of a pool take long, once (`zio_inject_fault`,
    /// module/zfs/zio_inject.c).
    ///
    /// # Errors
    /// There is such a delay.
    pub fn delay(
        &self,
        pool: &str,
        command: InjectCommand,
        seconds: u64,
    ) -> Result<InjectRecord, Failure> {
        let mut delays = self.delays.lock();
        if delays.iter().any(|delay| is_of(delay, pool, command)) {
            let message = "failed to add handler: a handler already exists";
            return Err(Failure::new(FailureKind::Exists, message));
        }
        let record = InjectRecord {
            id: self.next_id(),
            pool: pool.to_owned(),
            fault: InjectFault::PoolDelay { command, seconds },
            percent: None,
            matched: 0,
            injected: 0,
        };
        delays.push(record.clone());
        Ok(record)
    }

    /// Sets a tunable of OpenZFS; whether it is one of those that are here. Pools are told by
    /// [`Self::tune_pool`].
    pub fn tune(&self, name: &str, value: u64) -> bool {
        let mut kept = self.held.lock();
        let mut held = kept.unwrap_or_default();
        match name {
            "zfs_scan_suspend_progress" => held.scans = value != 0,
            "zfs_removal_suspend_progress" => held.removals = value != 0,
            _ => return false,
        }
        *kept = Some(held);
        true
    }

    /// Has a pool do as the tunables say, if any was set.
    pub fn tune_pool(&self, pool: &Pool) {
        // The lock stays: of two that tell, the later one is heard.
        if let Some(held) = &*self.held.lock() {
            pool::hold_work(pool, held.scans, held.removals);
        }
    }

    /// The delays of imports and exports.
    pub fn delays(&self) -> Vec<InjectRecord> {
        self.delays.lock().clone()
    }

    /// Forgets one; whether there was one of this number.
    pub fn cancel_delay(&self, id: u64) -> bool {
        let mut delays = self.delays.lock();
        let before = delays.len();
        delays.retain(|delay| delay.id != id);
        delays.len() < before
    }

    /// Waits until what began at `begun_ns` of the monotonic clock has taken as long as was asked
    /// for, if it was, and forgets that.
    pub async fn take_long(
        &self,
        clock: &dyn Clock,
        pool: &str,
        command: InjectCommand,
        begun_ns: u64,
    ) {
        let found = {
            let mut delays = self.delays.lock();
            let at = delays.iter().position(|delay| is_of(delay, pool, command));
            at.map(|at| delays.remove(at))
        };
        let Some(InjectFault::PoolDelay { seconds, .. }) = found.map(|found| found.fault) else {
            return;
        };
        let taken = Duration::from_nanos(clock.monotonic_ns().saturating_sub(begun_ns));
        let rest = Duration::from_secs(seconds).saturating_sub(taken);
        if !rest.is_zero() {
            clock.sleep(rest).await;
        }
    }
}

fn is_of(delay: &InjectRecord, name: &str, what: InjectCommand) -> bool {
    let is_meant = |fault: &InjectFault| match fault {
        InjectFault::PoolDelay { command, .. } => *command == what,
        _ => false,
    };
    delay.pool == name && is_meant(&delay.fault)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: none may be asked for without the flag; delays are one of a kind for a pool, and each
    /// is told until it is cancelled.
    #[test]
    fn faults_are_for_servers_that_allow_them() {
        let injections = Injections::default();
        let refused = injections.check_allowed().unwrap_err();
        assert!(refused.message.contains("--inject"), "{}", refused.message);
        injections.allow();
        injections.check_allowed().unwrap();
        let import = injections.delay("a", InjectCommand::Import, 5).unwrap();
        injections.delay("a", InjectCommand::Export, 5).unwrap();
        assert!(injections.delay("a", InjectCommand::Import, 6).is_err());
        assert_eq!(injections.delays().len(), 2);
        assert!(injections.cancel_delay(import.id) && !injections.cancel_delay(import.id));
        injections.delay("a", InjectCommand::Import, 6).unwrap();
        assert!(injections.held.lock().is_none());
        assert!(!injections.tune("zfs_txg_timeout", 1));
        assert!(injections.tune("zfs_scan_suspend_progress", 1));
        assert!(injections.tune("zfs_removal_suspend_progress", 0));
        let held = Held {
            scans: true,
            removals: false,
        };
        assert_eq!(*injections.held.lock(), Some(held));
    }
}
