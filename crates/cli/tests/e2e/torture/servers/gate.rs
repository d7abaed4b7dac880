//! What clients know of the disturbances that they work under.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How long a client tries to go on after a disturbance. (Machines of CI are slow.)
const AGAIN: Duration = Duration::from_secs(180);

/// Disturbances, counted: odd while one is under way.
#[derive(Debug, Default)]
pub struct Gate {
    epoch: AtomicU64,
    is_over: AtomicBool,
}

impl Gate {
    /// A disturbance: what it does to clients while this runs is no failure of theirs.
    pub fn disturb<T>(&self, work: impl FnOnce() -> T) -> T {
        self.epoch.fetch_add(1, Ordering::SeqCst);
        let done = work();
        self.epoch.fetch_add(1, Ordering::SeqCst);
        done
    }

    pub fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::SeqCst)
    }

    /// Clients end, once they are connected.
    pub fn end(&self) {
        self.is_over.store(true, Ordering::SeqCst);
    }

    pub fn is_over(&self) -> bool {
        self.is_over.load(Ordering::SeqCst)
    }
}

/// A client under disturbances.
pub trait Client: Send {
    fn name(&self) -> String;
    /// One operation. The outer error is of the connection, of which what comes of the operation is
    /// not known; the inner one a fault.
    fn operate(&mut self) -> std::io::Result<Result<(), String>>;
    /// Connects anew, and compares what there is with what there may be.
    fn recover(&mut self) -> std::io::Result<Result<(), String>>;
    /// Compares with what there must be.
    fn check(&mut self) -> std::io::Result<Result<(), String>>;
}

/// Works until it is over. The number of operations, or what failed.
pub fn work(client: &mut dyn Client, gate: &Gate) -> Result<u64, String> {
    // The count of disturbances at the last operation that none came into.
    let mut calm = gate.epoch();
    let mut done = 0;
    while !gate.is_over() {
        let before = gate.epoch();
        match client.operate() {
            Ok(result) => {
                result.map_err(|why| format!("{}: {why}", client.name()))?;
                done += 1;
                if before.is_multiple_of(2) && gate.epoch() == before {
                    calm = before;
                }
            }
            Err(error) => {
                if gate.epoch() == calm && calm.is_multiple_of(2) {
                    return Err(format!("{}: {error}, undisturbed", client.name()));
                }
                recover(client, gate)?;
            }
        }
    }
    // Nobody is left with a connection that a disturbance has broken.
    if gate.epoch() != calm {
        recover(client, gate)?;
    }
    Ok(done)
}

/// Connects anew as soon as that can be.
pub fn recover(client: &mut dyn Client, gate: &Gate) -> Result<(), String> {
    let begin = Instant::now();
    loop {
        let error = match client.recover() {
            Ok(result) => return result.map_err(|why| format!("{}: {why}", client.name())),
            Err(error) => error,
        };
        if gate.epoch().is_multiple_of(2) && begin.elapsed() > AGAIN {
            return Err(format!("{} cannot go on: {error}", client.name()));
        }
        std::thread::sleep(Duration::from_millis(30));
    }
}
