//! The order of locks that are held across awaits, checked where debug assertions are on: in tests,
//! and in the binary that `scripts/torture` runs.
//!
//! A circle of waits shows itself only when the right operations meet. The order shows itself
//! whenever one operation runs: so whoever is about to wait for a lock says which
//! ([`about_to_wait`], also where it is free), and whoever has it keeps a [`Held`]. What a task
//! holds has to come before what it waits for. A release build neither looks nor stores anything.
//!
//! Tasks of tokio are told apart; what is not run by one (a test's own future) is not looked at.
//! What is got without waiting is held like anything else, but need not come in order.

#[cfg(debug_assertions)]
use std::collections::HashMap;

#[cfg(debug_assertions)]
use parking_lot::Mutex;
#[cfg(debug_assertions)]
use tokio::task::Id;

/// Locks in the order in which they are taken ("The whole order" in docs/locks.md).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Lock {
    /// A lease of a dataset that others wait for (`access`), as commands have it; also having one
    /// alone. Who has one waits for no other, whichever it is.
    Lease,
    /// A filesystem's lock of renames across directories.
    Renames,
    /// What changes a node, by its rank and its object number (`filesystem`, module `locking`).
    Node(u8, u64),
}

/// What this task holds. Goes with the lock's own guard.
#[derive(Debug)]
#[must_use = "it says that the lock is held"]
pub struct Held {
    #[cfg(debug_assertions)]
    of: Option<(Id, Lock)>,
}

#[cfg(debug_assertions)]
static HELD: Mutex<Option<HashMap<Id, Vec<Lock>>>> = Mutex::new(None);

/// Says that this task may be about to wait for a lock.
///
/// # Panics
/// With debug assertions, where it holds one that does not come before it.
#[inline]
pub fn about_to_wait(lock: Lock) {
    #[cfg(debug_assertions)]
    if let Some(task) = tokio::task::try_id() {
        let held = HELD.lock().as_ref().and_then(|all| all.get(&task).cloned());
        let in_the_way = held.iter().flatten().find(|held| **held >= lock);
        assert!(
            in_the_way.is_none(),
            "{lock:?} is waited for while {in_the_way:?} is held: see docs/locks.md"
        );
    }
    #[cfg(not(debug_assertions))]
    let _ = lock;
}

/// Says that this task holds a lock, until what it gets is dropped, by whichever task.
#[inline]
pub fn holds(lock: Lock) -> Held {
    #[cfg(debug_assertions)]
    {
        let of = tokio::task::try_id().map(|task| (task, lock));
        if let Some((task, lock)) = of {
            let mut all = HELD.lock();
            let held = all.get_or_insert_default().entry(task).or_default();
            held.push(lock);
        }
        Held { of }
    }
    #[cfg(not(debug_assertions))]
    {
        let _ = lock;
        Held {}
    }
}

#[cfg(debug_assertions)]
impl Drop for Held {
    fn drop(&mut self) {
        let Some((task, lock)) = self.of else { return };
        let mut all = HELD.lock();
        let Some(all) = all.as_mut() else { return };
        if let Some(held) = all.get_mut(&task) {
            if let Some(at) = held.iter().rposition(|held| *held == lock) {
                held.remove(at);
            }
            if held.is_empty() {
                all.remove(&task);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a task does with locks; whether that is in order.
    async fn is_in_order(work: impl FnOnce() + Send + 'static) -> bool {
        tokio::spawn(async move { work() }).await.is_ok()
    }

    /// Goal: a wait out of order is told where it is made, not when somebody hangs.
    #[tokio::test]
    async fn waits_out_of_order_are_found() {
        let in_order = is_in_order(|| {
            let _lease = holds(Lock::Lease);
            for lock in [Lock::Renames, Lock::Node(0, 9), Lock::Node(1, 3)] {
                about_to_wait(lock);
                std::mem::forget(holds(lock));
            }
        });
        assert!(in_order.await);
        let given_back = is_in_order(|| {
            drop(holds(Lock::Node(0, 9)));
            about_to_wait(Lock::Node(0, 3));
        });
        assert!(given_back.await);
        let second_lease = is_in_order(|| {
            let _lease = holds(Lock::Lease);
            about_to_wait(Lock::Lease);
        });
        assert!(!second_lease.await);
        let lower_number = is_in_order(|| {
            let _node = holds(Lock::Node(0, 9));
            about_to_wait(Lock::Node(0, 3));
        });
        assert!(!lower_number.await);
    }
}
