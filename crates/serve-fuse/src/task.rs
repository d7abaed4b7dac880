//! Running requests: at once if they need not wait, else as tasks of the runtime.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Waker};

use dataset::lock_order;
use filesystem::{By, Origin};
use tokio::runtime::Handle;

use crate::readers::Readers;

/// Runs a session's requests.
pub(crate) struct Runner {
    pub(crate) handle: Handle,
    pub(crate) readers: Readers,
    /// For whom they are run: by whom changes are made.
    origin: Origin,
}

impl Runner {
    /// One that runs tasks on this runtime, for a listener to changes if there is one.
    pub(crate) fn current(origin: Origin) -> Self {
        Self {
            handle: Handle::current(),
            readers: Readers::new(),
            origin,
        }
    }

    /// Answers a request that need not wait, as [`run`] does.
    pub(crate) fn at_once<T>(&self, answer: impl FnOnce() -> T) -> T {
        self.readers.begin(false);
        let result = answer();
        self.readers.end();
        result
    }
}

/// Runs a request. Most find all they need in memory: they are done, and answered, on the thread
/// that read them from the kernel. One that has to wait goes on as a task of its own, so that the
/// thread takes the next request: where it waited for a device, on the thread that wakes it.
pub(crate) fn run(runner: &Runner, request: impl Future<Output = ()> + Send + 'static) {
    run_sized(runner, false, request);
}

/// [`run`] for a request that may take `long` even when it need not wait.
pub(crate) fn run_sized(
    runner: &Runner,
    long: bool,
    request: impl Future<Output = ()> + Send + 'static,
) {
    runner.readers.begin(long);
    let request = lock_order::operation(request);
    start(&runner.handle, long, By::new(runner.origin, request));
    runner.readers.end();
}

fn start<F>(runtime: &Handle, long: bool, mut request: By<F>)
where
    F: Future<Output = ()> + Send + 'static,
{
    let _inside = runtime.enter();
    // The waker does nothing: the runtime polls again, with its own, in any case.
    let mut context = Context::from_waker(Waker::noop());
    if Pin::new(&mut request).poll(&mut context).is_pending() {
        match long {
            true => drop(runtime.spawn(request)),
            false => device::start_near(runtime, request),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;

    use device::BoxFuture;
    use filesystem::{By, Origin};

    #[test]
    fn what_need_not_wait_runs_here_and_the_rest_elsewhere() {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let (send, receive) = mpsc::channel();
        let also = send.clone();
        let run = |request: BoxFuture<'static, ()>| {
            super::start(runtime.handle(), false, By::new(Origin::NONE, request));
        };
        run(Box::pin(async move {
            send.send(thread::current().id()).unwrap();
        }));
        assert_eq!(receive.try_recv().unwrap(), thread::current().id());
        let (wake, wait) = tokio::sync::oneshot::channel::<()>();
        run(Box::pin(async move {
            wait.await.unwrap();
            also.send(thread::current().id()).unwrap();
        }));
        assert!(receive.try_recv().is_err());
        wake.send(()).unwrap();
        assert_ne!(receive.recv().unwrap(), thread::current().id());
    }
}
