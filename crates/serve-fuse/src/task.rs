//! Running requests: at once if they need not wait, else as tasks of the runtime.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Waker};

use dataset::lock_order;
use filesystem::{By, Origin};
use tokio::runtime::Handle;

use crate::readers::Readers;

/// Reads and writes of so many bytes copy for some tens of microseconds.
pub(crate) const LONG_BYTES: usize = 64 << 10;

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

/// What is known of a request before it is run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Course {
    /// It may take long even when it need not wait.
    Long,
    /// It may do anything once it has waited: it goes on as a task of the runtime's.
    Any,
    /// Where it waits, it is mostly for the intent log, and then it answers: it goes on on the
    /// device's thread that wakes it. Such a thread must not be held up, so this is for the few
    /// requests that do nothing else.
    Logged,
}

impl Course {
    /// That of a write of so many bytes, which are copied.
    pub(crate) fn of_write(bytes: usize) -> Self {
        match bytes >= LONG_BYTES {
            true => Self::Long,
            false => Self::Logged,
        }
    }
}

/// Runs a request. Most find all they need in memory: they are done, and answered, on the thread
/// that read them from the kernel. One that has to wait goes on as a task of its own, so that the
/// thread takes the next request.
pub(crate) fn run(runner: &Runner, request: impl Future<Output = ()> + Send + 'static) {
    run_as(runner, Course::Any, request);
}

/// [`run`] for a request of which something is known.
pub(crate) fn run_as(
    runner: &Runner,
    course: Course,
    request: impl Future<Output = ()> + Send + 'static,
) {
    runner.readers.begin(course == Course::Long);
    let request = lock_order::operation(request);
    start(&runner.handle, course, By::new(runner.origin, request));
    runner.readers.end();
}

fn start<F>(runtime: &Handle, course: Course, mut request: By<F>)
where
    F: Future<Output = ()> + Send + 'static,
{
    let _inside = runtime.enter();
    // The waker does nothing: whoever it goes to polls again, with one of its own, in any case.
    let mut context = Context::from_waker(Waker::noop());
    if Pin::new(&mut request).poll(&mut context).is_pending() {
        match course {
            Course::Logged => device::start_near(runtime, request),
            Course::Long | Course::Any => drop(runtime.spawn(request)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;

    use device::BoxFuture;
    use filesystem::{By, Origin};

    use super::Course;

    #[test]
    fn what_need_not_wait_runs_here_and_the_rest_elsewhere() {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        for course in [Course::Long, Course::Any, Course::Logged] {
            let (send, receive) = mpsc::channel();
            let also = send.clone();
            let run = |request: BoxFuture<'static, ()>| {
                super::start(runtime.handle(), course, By::new(Origin::NONE, request));
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

    /// Goal: only what does nothing but wait for the log and answer goes on on a device's thread.
    /// Method: requests that wait for a durable write of a real file, as the log's writer does.
    #[test]
    fn only_what_waits_for_the_log_goes_on_on_a_devices_thread() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("disk");
        device::create_sparse_file(&path, 1 << 20).unwrap();
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let path = path.to_str().unwrap().to_owned();
        let options = device::FileOptions::default();
        let device = device::FileDevice::open(path, &options).unwrap();
        let device = std::sync::Arc::new(device);
        for (course, is_near) in [
            (Course::Long, false),
            (Course::Any, false),
            (Course::Logged, true),
        ] {
            let (send, receive) = mpsc::channel();
            let waits = || {
                let (device, send) = (device.clone(), send.clone());
                let request = async move {
                    let data = bytes::Bytes::from(vec![1; 4096]);
                    device::Device::write_durable(&*device, 0, data)
                        .await
                        .unwrap();
                    let name = thread::current().name().map(str::to_owned);
                    send.send(name.unwrap_or_default()).unwrap();
                };
                super::start(runtime.handle(), course, By::new(Origin::NONE, request));
                receive.recv().unwrap() == "millpond-io"
            };
            // A write may be done before the request waits for it with a waker of its own.
            let near = (0..50).filter(|_| waits()).count();
            assert_eq!(near > 0, is_near, "{course:?}: {near} of 50");
        }
    }

    #[test]
    fn long_writes_are_the_runtimes() {
        assert_eq!(Course::of_write(4096), Course::Logged);
        assert_eq!(Course::of_write(super::LONG_BYTES), Course::Long);
    }
}
