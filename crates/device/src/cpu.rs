//! CPU workers: a small pool of threads for work that would hold up an async task.
//!
//! [`CpuPool::elastic`] is for work that may block for good, such as system calls on a device that
//! does not answer: where all workers are stuck, others are started, so that other devices' work
//! goes on.
//!
//! One first-in first-out queue under one lock, taken once per piece of work; pieces are tens of
//! microseconds and more (checksums and compression of whole blocks), so the lock is not felt.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use crate::Cpu;

type Work = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct Queue {
    work: VecDeque<Work>,
    /// How much was taken from it so far.
    taken: u64,
    /// Workers beyond the fixed number.
    extra: usize,
    closing: bool,
}

/// For how long nobody may take what is queued, before the workers count as stuck.
const STUCK_AFTER: Duration = Duration::from_millis(250);

struct Shared {
    queue: Mutex<Queue>,
    ready: Condvar,
    /// Something was queued.
    queued: Condvar,
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
            queued: Condvar::new(),
        });
        let mut started = 0;
        for index in 0..wanted {
            let shared = shared.clone();
            let thread = std::thread::Builder::new()
                .name(format!("millpond-cpu-{index}"))
                .spawn(move || run(&shared, false));
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

    /// The same, with up to `extra_max` workers more while all are stuck in what they are at.
    ///
    /// # Panics
    ///
    /// As [`Self::new`].
    pub fn elastic(threads: usize, extra_max: usize) -> Self {
        let pool = CpuPool::new(threads);
        let shared = pool.shared.clone();
        let attendant = std::thread::Builder::new()
            .name("millpond-cpu-extra".to_owned())
            .spawn(move || attend(&shared, extra_max));
        if let Err(error) = attendant {
            tracing::warn!(%error, "the number of I/O threads stays as it is");
        }
        pool
    }
}

/// Starts a worker whenever nobody has taken what is queued for a while.
fn attend(shared: &Arc<Shared>, extra_max: usize) {
    loop {
        let before = {
            let mut queue = shared.queue.lock();
            while queue.work.is_empty() {
                if queue.closing {
                    return;
                }
                shared.queued.wait(&mut queue);
            }
            queue.taken
        };
        std::thread::sleep(STUCK_AFTER);
        let mut queue = shared.queue.lock();
        let is_stuck = !queue.work.is_empty() && queue.taken == before;
        if !is_stuck || queue.extra >= extra_max {
            continue;
        }
        let own = shared.clone();
        let worker = std::thread::Builder::new()
            .name("millpond-cpu-more".to_owned())
            .spawn(move || run(&own, true));
        match worker {
            Ok(_) => queue.extra += 1,
            Err(error) => tracing::warn!(%error, "all I/O threads are stuck, and no other starts"),
        }
    }
}

/// Takes work until the pool closes; one that is `extra`, until there is none.
fn run(shared: &Shared, extra: bool) {
    loop {
        let work = {
            let mut queue = shared.queue.lock();
            loop {
                if let Some(work) = queue.work.pop_front() {
                    queue.taken += 1;
                    break work;
                }
                if extra {
                    queue.extra -= 1;
                    return;
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
        self.shared.queued.notify_one();
    }

    fn parallelism(&self) -> usize {
        self.threads
    }
}

impl Drop for CpuPool {
    fn drop(&mut self) {
        self.shared.queue.lock().closing = true;
        self.shared.ready.notify_all();
        self.shared.queued.notify_all();
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

    /// Workers that wait for what never comes do not keep others' work waiting, and those that were
    /// started for it end.
    #[test]
    fn an_elastic_pool_gets_round_workers_that_are_stuck() {
        let pool = CpuPool::elastic(2, 3);
        let (free, stuck) = mpsc::channel::<()>();
        let stuck = Arc::new(Mutex::new(stuck));
        let (send, receive) = mpsc::channel();
        for index in 0..4 {
            let (stuck, send) = (stuck.clone(), send.clone());
            pool.run(Box::new(move || {
                let _ = stuck.lock().recv();
                send.send(index).expect("receiver lives");
            }));
        }
        let other = send.clone();
        pool.run(Box::new(move || other.send(99).expect("receiver lives")));
        assert_eq!(receive.recv_timeout(Duration::from_secs(60)), Ok(99));
        drop(free);
        let mut rest: Vec<i32> = (0..4).map(|_| receive.recv().expect("an answer")).collect();
        rest.sort_unstable();
        assert_eq!(rest, [0, 1, 2, 3]);
        for _ in 0..600 {
            if pool.shared.queue.lock().extra == 0 {
                return;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        panic!("workers that are not needed stay");
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
