//! What may wait for ever, done where nobody waits for it for ever.
//!
//! Opening a file of a server that does not answer, looking at it, and closing it wait as reads do,
//! and no device is there yet (or any more) whose threads could. So each such call has a thread of
//! its own; what has been at a path for too long keeps others from joining it.

use std::collections::BTreeMap;
use std::io;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::{DeviceError, near};

/// After what time a call counts as stuck: longer than a disk takes to wake up.
const STUCK_AFTER: Duration = Duration::from_secs(15);
/// At how many stuck calls nothing more is begun at a path.
const STUCK_MAX: usize = 3;
/// How long to wait until something is closed. What is closed can be opened by others, and who
/// closes it counts on that; a disk that is well takes a few milliseconds.
const CLOSING_PATIENCE: Duration = Duration::from_secs(1);

/// When what is at work at a path began.
static AT_WORK: Mutex<BTreeMap<String, Vec<Instant>>> = Mutex::new(BTreeMap::new());

/// A call at work at a path.
struct AtWork {
    path: String,
    since: Instant,
}

impl AtWork {
    fn begin(path: &str) -> Option<Self> {
        let since = Instant::now();
        let mut at_work = AT_WORK.lock();
        let others = at_work.entry(path.to_owned()).or_default();
        let is_stuck = |begun: &&Instant| since.duration_since(**begun) >= STUCK_AFTER;
        if others.iter().filter(is_stuck).count() >= STUCK_MAX {
            return None;
        }
        others.push(since);
        Some(AtWork {
            path: path.to_owned(),
            since,
        })
    }
}

impl Drop for AtWork {
    fn drop(&mut self) {
        let mut at_work = AT_WORK.lock();
        if let Some(all) = at_work.get_mut(&self.path) {
            if let Some(own) = all.iter().position(|since| *since == self.since) {
                all.swap_remove(own);
            }
            if all.is_empty() {
                at_work.remove(&self.path);
            }
        }
    }
}

/// Runs what may block at `path` away from the caller's task. Also when nobody waits any more.
///
/// # Errors
/// [`DeviceError::Hung`] when too much is stuck there already, [`DeviceError::Open`] when the
/// system has no thread.
pub(crate) async fn away<T: Send + 'static>(
    path: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, DeviceError> {
    let hung = || DeviceError::Hung {
        path: path.to_owned(),
    };
    let at_work = AtWork::begin(path).ok_or_else(hung)?;
    let (send, receive) = oneshot::channel();
    let started = std::thread::Builder::new()
        .name("millpond-open".to_owned())
        .spawn(move || {
            let done = work();
            drop(at_work);
            let _ = send.send(done);
        });
    let no_answer = match started {
        Ok(_) => match receive.await {
            Ok(done) => return Ok(done),
            Err(_) => io::Error::other("the thread that was at it has ended"),
        },
        Err(error) => error,
    };
    Err(DeviceError::Open {
        path: path.to_owned(),
        source: no_answer,
    })
}

/// Drops open files on a thread of their own, and waits a moment for that; but not on a thread of
/// a device's, where a task may be the last that had them: others wait for what that thread does,
/// and whoever opens what is being closed is patient.
pub(super) fn close<T: Send + 'static>(files: T) {
    let closed = close_later(files);
    if !near::takes_tasks() {
        let _ = closed.recv_timeout(CLOSING_PATIENCE);
    }
}

/// Drops open files on a thread of their own; what is returned says when that is done.
pub(super) fn close_later<T: Send + 'static>(files: T) -> Receiver<()> {
    let (send, closed) = channel();
    // Where there is no thread, they are closed here, with the work that nobody does.
    let _ = std::thread::Builder::new()
        .name("millpond-close".to_owned())
        .spawn(move || {
            drop(files);
            let _ = send.send(());
        });
    closed
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a path where calls are stuck gets no more threads, and others do; when one comes back,
    /// there is room again. Method: calls that are noted as old.
    #[tokio::test]
    async fn a_path_where_calls_are_stuck_gets_no_more() {
        let stuck = "/of the tests/stuck";
        let old = Instant::now() - STUCK_AFTER;
        let mut calls: Vec<AtWork> = Vec::new();
        for _ in 0..STUCK_MAX {
            let begun = AtWork::begin(stuck).expect("not stuck yet");
            calls.push(begun);
        }
        assert_eq!(away(stuck, || 1).await.expect("they are young"), 1);
        for (call, since) in calls.iter_mut().zip(AT_WORK.lock().get_mut(stuck).unwrap()) {
            (call.since, *since) = (old, old);
        }
        let refused = away(stuck, || 2).await;
        assert!(matches!(refused, Err(DeviceError::Hung { .. })));
        assert_eq!(away("/of the tests/other", || 3).await.expect("done"), 3);
        calls.pop();
        assert_eq!(away(stuck, || 4).await.expect("room again"), 4);
        calls.clear();
        assert!(!AT_WORK.lock().contains_key(stuck));
    }
}
