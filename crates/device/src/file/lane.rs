//! The threads of one device.
//!
//! A system call on a device may take for ever, and nothing in this process ends it. So each device
//! has threads of its own, as many as there is something to do for, up to [`THREADS_MAX`]: those of
//! a device that does not answer are stuck, and what is asked of it after that is queued; nobody
//! else's are. One thread is there from the start, so that a system which is out of threads
//! refuses to open a device rather than to use it. The others end when they have nothing to do for
//! [`IDLE`]. Tasks that wait for nothing but what a thread has done go on on it ([`near`]).

use std::collections::VecDeque;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use crate::near;

/// Most threads of a device, and so most calls at once. Enough to keep a disk's queue busy; the
/// threads sleep in the kernel, so they cost memory, not CPU.
const THREADS_MAX: usize = 32;
/// How long a thread waits for work before it ends.
const IDLE: Duration = Duration::from_secs(10);

pub(super) type Work = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct State {
    work: VecDeque<Work>,
    threads: usize,
    /// Threads that wait for work.
    idle: usize,
    closing: bool,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    ready: Condvar,
}

/// Ends the threads once all is done that was asked of them.
struct Handle(Arc<Shared>);

impl Drop for Handle {
    fn drop(&mut self) {
        self.0.state.lock().closing = true;
        self.0.ready.notify_all();
    }
}

/// The threads of one device. All clones are the same; when the last one is dropped, they do what
/// was asked of them and end.
#[derive(Clone)]
pub(super) struct Lane(Arc<Handle>);

impl Lane {
    /// Starts the first thread.
    ///
    /// # Errors
    /// The system has no thread.
    pub(super) fn start() -> io::Result<Self> {
        let shared = Arc::new(Shared::default());
        shared.state.lock().threads = 1;
        start_thread(&shared, true)?;
        Ok(Lane(Arc::new(Handle(shared))))
    }

    /// Has `work` done, on a thread of the device's.
    pub(super) fn run(&self, work: Work) {
        let shared = &self.0.0;
        {
            let mut state = shared.state.lock();
            state.work.push_back(work);
            if state.work.len() <= state.idle || state.threads >= THREADS_MAX {
                shared.ready.notify_one();
                return;
            }
            state.threads += 1;
        }
        if let Err(error) = start_thread(shared, false) {
            // Those that there are do it in their turn.
            tracing::warn!(%error, "a device has fewer threads than it needs");
            shared.state.lock().threads -= 1;
            shared.ready.notify_one();
        }
    }
}

impl std::fmt::Debug for Lane {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let state = self.0.0.state.lock();
        out.debug_struct("Lane")
            .field("threads", &state.threads)
            .field("queued", &state.work.len())
            .finish_non_exhaustive()
    }
}

fn start_thread(shared: &Arc<Shared>, stays: bool) -> io::Result<()> {
    let shared = shared.clone();
    std::thread::Builder::new()
        .name("millpond-io".to_owned())
        .spawn(move || serve(&shared, stays))
        .map(drop)
}

/// Does what is asked for; one that `stays`, until the device is closed.
fn serve(shared: &Shared, stays: bool) {
    near::take_tasks();
    let mut state = shared.state.lock();
    loop {
        if let Some(work) = state.work.pop_front() {
            drop(state);
            // A panic reaches whoever waits for the answer, as its channel closes.
            let _ = catch_unwind(AssertUnwindSafe(work));
            near::go_on();
            state = shared.state.lock();
            continue;
        }
        if state.closing {
            break;
        }
        state.idle += 1;
        let idle = match stays {
            true => {
                shared.ready.wait(&mut state);
                false
            }
            false => shared.ready.wait_for(&mut state, IDLE).timed_out(),
        };
        state.idle -= 1;
        if idle && state.work.is_empty() {
            break;
        }
    }
    state.threads -= 1;
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    /// Goal: a device whose threads are all stuck keeps what is asked of it, starts no more of
    /// them, and does it all when it answers again. Method: work that waits for a word.
    #[test]
    fn stuck_threads_are_bounded_and_nothing_is_lost() {
        let lane = Lane::start().expect("a thread");
        let (free, stuck) = mpsc::channel::<()>();
        let stuck = Arc::new(Mutex::new(stuck));
        let (send, receive) = mpsc::channel();
        let wanted = THREADS_MAX * 3;
        for index in 0..wanted {
            let (stuck, send) = (stuck.clone(), send.clone());
            lane.run(Box::new(move || {
                // Until there is nobody who could send.
                let _ = stuck.lock().recv();
                let _ = send.send(index);
            }));
        }
        assert_eq!(lane.0.0.state.lock().threads, THREADS_MAX);
        assert!(receive.try_recv().is_err());
        drop((free, lane, send));
        let mut done: Vec<usize> = receive.iter().collect();
        done.sort_unstable();
        assert!(done.into_iter().eq(0..wanted));
    }

    #[test]
    fn a_panic_leaves_the_device_its_threads() {
        let lane = Lane::start().expect("a thread");
        lane.run(Box::new(|| panic!("a test's deliberate panic")));
        let (send, receive) = mpsc::channel();
        lane.run(Box::new(move || send.send(7).expect("somebody waits")));
        assert_eq!(receive.recv(), Ok(7));
        assert!(lane.0.0.state.lock().threads >= 1);
    }
}
