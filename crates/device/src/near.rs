//! Tasks that go on where they are woken.
//!
//! A synchronous write waits for one write of the intent log, which a thread of the device's does.
//! To have the runtime answer it then costs the wake-up of another thread, mostly on a processor
//! that sleeps: about as long as a fast disk takes for the write. So a task that was started with
//! [`start_near`] goes on on the device's thread itself, as soon as that is done with what it was
//! asked for; woken by anybody else it goes on on the runtime, as tasks do.
//!
//! # Which tasks
//! Those that have little left to do when they are woken: to answer, to write on in the log. Until
//! they wait again their thread does nothing for its device, which has others, up to a bound. They
//! must not block, least of all for the device.
//!
//! # Locks
//! A task never runs inside of the call that wakes it, whose caller may hold locks, but once the
//! thread is back in its loop and holds none. Where the runtime has shut down, it is dropped there.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};

use async_task::{Builder, Runnable};
use tokio::runtime::Handle;

type Woken = VecDeque<Runnable<Handle>>;

thread_local! {
    /// Tasks that were woken here and are to go on here; nothing where they are not to.
    static WOKEN: RefCell<Option<Woken>> = const { RefCell::new(None) };
}

/// Runs `task`, here until it has to wait, then on the thread of a device's that wakes it, or on
/// `runtime`. It is always polled within `runtime`. A panic here is the caller's.
pub fn start_near(runtime: &Handle, task: impl Future<Output = ()> + Send + 'static) {
    let builder = Builder::new().metadata(runtime.clone());
    let (runnable, task) = builder.spawn(|_| task, wake);
    task.detach();
    poll(runnable);
}

/// Tasks that this thread wakes from now on go on here, when it calls [`go_on`].
pub(crate) fn take_tasks() {
    WOKEN.set(Some(VecDeque::new()));
}

/// Most tasks that a thread goes on with before it is there for its device again: the writer of a
/// log, and some who waited for it.
const IN_A_ROW_MAX: usize = 4;

/// Runs tasks that were woken here, up to a bound; the runtime takes the others.
pub(crate) fn go_on() {
    let next = || WOKEN.with_borrow_mut(|woken| woken.as_mut().and_then(VecDeque::pop_front));
    for _ in 0..IN_A_ROW_MAX {
        let Some(runnable) = next() else { return };
        // A panic has ended the task; those who wait for it see its end of a channel closed.
        let _ = catch_unwind(AssertUnwindSafe(|| poll(runnable)));
    }
    while let Some(runnable) = next() {
        hand_on(runnable);
    }
}

/// Has the runtime go on with a task. One that has shut down drops it.
fn hand_on(runnable: Runnable<Handle>) {
    let runtime = runnable.metadata().clone();
    runtime.spawn(async move { poll(runnable) });
}

/// Has a task go on that something happened for.
fn wake(runnable: Runnable<Handle>) {
    let mut runnable = Some(runnable);
    // A thread that is ending takes none.
    let _ = WOKEN.try_with(|woken| {
        if let Some(woken) = woken.borrow_mut().as_mut() {
            woken.extend(runnable.take());
        }
    });
    if let Some(runnable) = runnable {
        hand_on(runnable);
    }
}

fn poll(runnable: Runnable<Handle>) {
    let runtime = runnable.metadata().clone();
    let _inside = runtime.enter();
    runnable.run();
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;

    use super::*;

    /// Starts a task that waits for two words, and tells after each on which thread it is.
    fn start(
        runtime: &Handle,
    ) -> (
        [tokio::sync::oneshot::Sender<()>; 2],
        mpsc::Receiver<thread::ThreadId>,
    ) {
        let (first, wait_first) = tokio::sync::oneshot::channel();
        let (second, wait_second) = tokio::sync::oneshot::channel();
        let (tell, told) = mpsc::channel();
        start_near(runtime, async move {
            for wait in [wait_first, wait_second] {
                tell.send(thread::current().id()).unwrap();
                wait.await.unwrap();
            }
            // Within the runtime, wherever that is.
            tokio::spawn(async {}).await.unwrap();
            tell.send(thread::current().id()).unwrap();
        });
        ([first, second], told)
    }

    #[test]
    fn a_task_goes_on_on_the_thread_that_wakes_it_but_not_within_the_call() {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let ([first, second], told) = start(runtime.handle());
        assert_eq!(told.recv().unwrap(), thread::current().id());
        let runtime_handle = runtime.handle().clone();
        thread::spawn(move || {
            take_tasks();
            first.send(()).unwrap();
            assert!(told.try_recv().is_err());
            go_on();
            assert_eq!(told.try_recv().unwrap(), thread::current().id());
            // One that panics takes nobody else with it.
            let (word, wait) = tokio::sync::oneshot::channel::<()>();
            start_near(&runtime_handle, async move {
                wait.await.unwrap();
                panic!("a test's deliberate panic");
            });
            word.send(()).unwrap();
            second.send(()).unwrap();
            go_on();
            told.recv().unwrap();
        })
        .join()
        .unwrap();
    }

    #[test]
    fn woken_by_anybody_else_it_goes_on_on_the_runtime() {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let ([first, second], told) = start(runtime.handle());
        told.recv().unwrap();
        first.send(()).unwrap();
        assert_ne!(told.recv().unwrap(), thread::current().id());
        second.send(()).unwrap();
        assert_ne!(told.recv().unwrap(), thread::current().id());
    }
}
