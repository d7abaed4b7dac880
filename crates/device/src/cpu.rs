//! CPU workers: a small pool of threads for work that would hold up an async task.
//!
//! One first-in first-out queue under one lock, taken once per piece of work; pieces are tens of
//! microseconds and more (checksums and compression of whole blocks), so the lock is not felt.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use parking_lot::{Condvar, Mutex};

use crate::Cpu;

type Work = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct Queue {
    work: VecDeque<Work>,
    closing: bool,
}

struct Shared {
    queue: Mutex<Queue>,
    ready: Condvar,
}

/// A fixed number of worker threads that take work in the order it was given.
///
/// Dropping the pool lets the workers finish what was queued, then end; it does not wait for them.
pub struct CpuPool {
    shared: Arc<Shared>,
    threads: usize,
}

impl CpuPool {
    /// Starts `threads` workers; 0 stands for one per CPU.
    ///
    /// # Panics
    ///
    /// When the system refuses to start a single thread.
    pub fn new(threads: usize) -> Self {
        let wanted = match threads {
            0 => std::thread::available_parallelism().map_or(1, usize::from),
            given => given,
        };
        let shared = Arc::new(Shared {
            queue: Mutex::new(Queue::default()),
            ready: Condvar::new(),
        });
        let mut started = 0;
        for index in 0..wanted {
            let shared = shared.clone();
            let thread = std::thread::Builder::new()
                .name(format!("millpond-cpu-{index}"))
                .spawn(move || run(&shared));
            match thread {
                Ok(_) => started += 1,
                Err(error) => {
                    tracing::warn!(%error, started, wanted, "fewer CPU workers than asked for");
                    break;
                }
            }
        }
        assert!(started > 0, "the system refuses to start any thread");
        CpuPool {
            shared,
            threads: started,
        }
    }
}

/// Takes work until the pool closes.
fn run(shared: &Shared) {
    loop {
        let work = {
            let mut queue = shared.queue.lock();
            loop {
                if let Some(work) = queue.work.pop_front() {
                    break work;
                }
                if queue.closing {
                    return;
                }
                shared.ready.wait(&mut queue);
            }
        };
        // A panic in one piece of work reaches whoever waits for its result (its channel closes);
        // it must not take the worker away from everybody else.
        let _ = catch_unwind(AssertUnwindSafe(work));
    }
}

impl Cpu for CpuPool {
    fn run(&self, work: Work) {
        self.shared.queue.lock().work.push_back(work);
        self.shared.ready.notify_one();
    }

    fn parallelism(&self) -> usize {
        self.threads
    }
}

impl Drop for CpuPool {
    fn drop(&mut self) {
        self.shared.queue.lock().closing = true;
        self.shared.ready.notify_all();
    }
}

impl std::fmt::Debug for CpuPool {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("CpuPool")
            .field("threads", &self.threads)
            .finish_non_exhaustive()
    }
}

/// Runs work at once, in the caller: for simulation, where one thread does everything in order.
#[derive(Debug, Default, Clone, Copy)]
pub struct InlineCpu;

impl Cpu for InlineCpu {
    fn run(&self, work: Work) {
        work();
    }

    fn parallelism(&self) -> usize {
        1
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn work_runs_in_order_on_one_worker_and_outlives_the_pool() {
        let pool = CpuPool::new(1);
        let (send, receive) = mpsc::channel();
        for index in 0..100 {
            let send = send.clone();
            pool.run(Box::new(move || send.send(index).expect("receiver lives")));
        }
        drop(pool);
        drop(send);
        assert_eq!(
            receive.iter().collect::<Vec<_>>(),
            (0..100).collect::<Vec<_>>()
        );
    }

    #[test]
    fn a_panic_in_one_piece_leaves_the_worker_alive() {
        let pool = CpuPool::new(1);
        pool.run(Box::new(|| panic!("a test's deliberate panic")));
        let (send, receive) = mpsc::channel();
        pool.run(Box::new(move || send.send(7).expect("receiver lives")));
        assert_eq!(receive.recv(), Ok(7));
    }
}
