//! The order of locks that are held across awaits, checked where debug assertions are on: in tests,
//! and in the binary that `scripts/torture` runs.
//!
//! A circle of waits shows itself only when the right operations meet. The order shows itself
//! whenever one operation runs: so whoever is about to wait for a lock says which
//! ([`about_to_wait`], also where it is free), and whoever has it keeps a [`Held`]. What an
//! operation holds has to come before what it waits for. A release build neither looks nor stores
//! anything.
//!
//! Operations are told apart ([`operation`]), since one may begin on the task, or the thread, that
//! took the request for it and go on as a task of its own, while the next one begins there. Where
//! there is none, tasks of tokio are told apart; what is not run by one either (a test's own
//! future) is not looked at. What is got without waiting is held like anything else, but need not
//! come in order.

#[cfg(debug_assertions)]
use std::cell::Cell;
#[cfg(debug_assertions)]
use std::collections::HashMap;
#[cfg(debug_assertions)]
use std::pin::pin;
#[cfg(debug_assertions)]
use std::sync::atomic::{AtomicU64, Ordering};

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

/// Who takes locks.
#[cfg(debug_assertions)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Holder {
    Operation(u64),
    Task(Id),
}

#[cfg(debug_assertions)]
impl Holder {
    /// The one that this thread works for now.
    fn current() -> Option<Self> {
        let operation = OPERATION.get().map(Self::Operation);
        operation.or_else(|| tokio::task::try_id().map(Self::Task))
    }
}

#[cfg(debug_assertions)]
thread_local! {
    static OPERATION: Cell<Option<u64>> = const { Cell::new(None) };
}

/// `work`, which is one operation wherever it is polled: for what is polled in turn with others, or
/// outside of any task. In a release build nothing but `work`.
#[cfg(debug_assertions)]
pub fn operation<F: Future>(work: F) -> impl Future<Output = F::Output> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    /// Also when the work panics.
    struct Before(Option<u64>);
    impl Drop for Before {
        fn drop(&mut self) {
            OPERATION.set(self.0);
        }
    }
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    async move {
        let mut work = pin!(work);
        std::future::poll_fn(move |context| {
            let _before = Before(OPERATION.replace(Some(number)));
            work.as_mut().poll(context)
        })
        .await
    }
}

/// `work`, which is one operation wherever it is polled: for what is polled in turn with others, or
/// outside of any task. In a release build nothing but `work`.
#[cfg(not(debug_assertions))]
#[inline]
pub fn operation<F: Future>(work: F) -> F {
    work
}

/// What this operation holds. Goes with the lock's own guard.
#[derive(Debug)]
#[must_use = "it says that the lock is held"]
pub struct Held {
    #[cfg(debug_assertions)]
    of: Option<(Holder, Lock)>,
}

#[cfg(debug_assertions)]
static HELD: Mutex<Option<HashMap<Holder, Vec<Lock>>>> = Mutex::new(None);

/// Says that this operation may be about to wait for a lock.
///
/// # Panics
/// With debug assertions, where it holds one that does not come before it.
#[inline]
pub fn about_to_wait(lock: Lock) {
    #[cfg(debug_assertions)]
    if let Some(holder) = Holder::current() {
        let held = HELD
            .lock()
            .as_ref()
            .and_then(|all| all.get(&holder).cloned());
        let in_the_way = held.iter().flatten().find(|held| **held >= lock);
        assert!(
            in_the_way.is_none(),
            "{lock:?} is waited for while {in_the_way:?} is held: see docs/locks.md"
        );
    }
    #[cfg(not(debug_assertions))]
    let _ = lock;
}

/// Says that this operation holds a lock, until what it gets is dropped, by whichever.
#[inline]
pub fn holds(lock: Lock) -> Held {
    #[cfg(debug_assertions)]
    {
        let of = Holder::current().map(|holder| (holder, lock));
        if let Some((holder, lock)) = of {
            let mut all = HELD.lock();
            let held = all.get_or_insert_default().entry(holder).or_default();
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
        let Some((holder, lock)) = self.of else {
            return;
        };
        let mut all = HELD.lock();
        let Some(all) = all.as_mut() else { return };
        if let Some(held) = all.get_mut(&holder) {
            if let Some(at) = held.iter().rposition(|held| *held == lock) {
                held.remove(at);
            }
            if held.is_empty() {
                all.remove(&holder);
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

    /// Goal: what a task begins for several is not taken for one, nor for another when it goes on
    /// elsewhere, and what is begun outside of tasks is looked at.
    #[tokio::test]
    async fn operations_are_told_apart_wherever_they_are_polled() {
        let one_node = |number| {
            operation(async move {
                about_to_wait(Lock::Node(0, number));
                let _held = holds(Lock::Node(0, number));
                tokio::task::yield_now().await;
                about_to_wait(Lock::Node(0, 5));
            })
        };
        let side_by_side = tokio::spawn(async move {
            let mut first = Box::pin(one_node(4));
            assert!(futures::poll!(first.as_mut()).is_pending());
            one_node(3).await;
            tokio::spawn(first).await
        });
        let first = side_by_side.await.expect("the second is in order");
        first.expect("the first is in order");
        let mut late = Box::pin(one_node(9));
        let outside = std::thread::spawn(move || {
            let mut context = std::task::Context::from_waker(std::task::Waker::noop());
            assert!(late.as_mut().poll(&mut context).is_pending());
            late
        });
        let late = outside.join().expect("polled");
        assert!(tokio::spawn(late).await.is_err(), "out of order");
    }
}
