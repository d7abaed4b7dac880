//! The threads of one device.
//!
//! A system call on a device may take for ever, and nothing in this process ends it. So each device
//! has threads of its own, as many as there is something to do for, up to [`THREADS_MAX`]: those of
//! a device that does not answer are stuck, and what is asked of it after that is queued; nobody
//! else's are. One thread is there from the start, so that a system which is out of threads
//! refuses to open a device rather than to use it. The others end when they have nothing to do for
//! [`IDLE`].
//!
//! # Tasks
//!
//! Tasks that wait for nothing but what a thread has done go on on it ([`near`]). Nothing that is
//! asked of the device waits for them: a thread goes on with tasks only while nothing is queued and
//! another thread waits for work (it is started for that where there is none), and no more than
//! [`NEAR_MAX`] do so at once. So even tasks that never came back would leave the device most of
//! its threads.

use std::collections::VecDeque;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::near;

/// Most threads of a device, and so most calls at once. Enough to keep a disk's queue busy; the
/// threads sleep in the kernel, so they cost memory, not CPU.
const THREADS_MAX: usize = 32;
/// Most threads of a device that go on with tasks at once.
const NEAR_MAX: usize = 4;
/// How long a thread waits for work before it ends.
const IDLE: Duration = Duration::from_secs(10);
/// How long a thread that has gone on with tasks waits before it gives back what memory they left
/// it, and how long it works on before it does.
const REST: Duration = Duration::from_secs(1);
const REST_BUSY: Duration = Duration::from_secs(10);

pub(super) type Work = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct State {
    work: VecDeque<Work>,
    threads: usize,
    /// Threads that wait for work.
    idle: usize,
    /// Threads that go on with tasks.
    near: usize,
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
fn serve(shared: &Arc<Shared>, stays: bool) {
    near::take_tasks();
    // When it first went on with tasks since it gave memory back.
    let mut has_memory: Option<Instant> = None;
    let mut state = shared.state.lock();
    loop {
        if let Some(work) = state.work.pop_front() {
            drop(state);
            // A panic reaches whoever waits for the answer, as its channel closes.
            let _ = catch_unwind(AssertUnwindSafe(work));
            if go_on(shared) {
                has_memory.get_or_insert_with(Instant::now);
            }
            if has_memory.is_some_and(|since| since.elapsed() >= REST_BUSY) {
                has_memory = None;
                crate::give_back_freed();
            }
            state = shared.state.lock();
            continue;
        }
        if state.closing {
            break;
        }
        let patience = match has_memory {
            Some(_) => Some(REST),
            None => (!stays).then_some(IDLE),
        };
        state.idle += 1;
        let is_over = match patience {
            Some(patience) => shared.ready.wait_for(&mut state, patience).timed_out(),
            None => {
                shared.ready.wait(&mut state);
                false
            }
        };
        state.idle -= 1;
        if !is_over || !state.work.is_empty() {
            continue;
        }
        if has_memory.take().is_none() {
            break;
        }
        MutexGuard::unlocked(&mut state, crate::give_back_freed);
    }
    state.threads -= 1;
    drop(state);
    near::leave_tasks();
}

/// Goes on with tasks that were woken by what this thread has done, where it is not missed
/// meanwhile. Whether it did.
fn go_on(shared: &Arc<Shared>) -> bool {
    if !near::are_woken() {
        return false;
    }
    let may = may_go_on(shared);
    if may {
        near::go_on(|| shared.state.lock().work.is_empty());
        shared.state.lock().near -= 1;
    } else {
        near::hand_on_behind(0);
    }
    may
}

/// Whether a thread may go on with tasks; it is counted then.
fn may_go_on(shared: &Arc<Shared>) -> bool {
    let mut state = shared.state.lock();
    if !state.work.is_empty() || state.near >= NEAR_MAX {
        return false;
    }
    let has_other = state.idle > 0 || state.closing;
    if !has_other && state.threads >= THREADS_MAX {
        return false;
    }
    state.near += 1;
    if has_other {
        return true;
    }
    state.threads += 1;
    drop(state);
    let started = start_thread(shared, false);
    if started.is_err() {
        let mut state = shared.state.lock();
        state.threads -= 1;
        state.near -= 1;
    }
    started.is_ok()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::mpsc;

    use tokio::runtime::{Handle as Runtime, Runtime as OwnedRuntime};
    use tokio::sync::oneshot;

    use super::*;
    use crate::near::start_near;

    /// Longer than anything takes that does not wait for ever.
    const PATIENCE: Duration = Duration::from_secs(120);

    fn runtime() -> OwnedRuntime {
        OwnedRuntime::new().expect("a runtime")
    }

    fn is_here() -> bool {
        std::thread::current().name() == Some("millpond-io")
    }

    /// Starts a task that waits for a word and then does something.
    fn after_word(runtime: &Runtime, then: impl FnOnce() + Send + 'static) -> oneshot::Sender<()> {
        let (word, wait) = oneshot::channel();
        start_near(runtime, async move {
            if wait.await.is_ok() {
                then();
            }
        });
        word
    }

    /// Says a word on a thread of the device's.
    fn say(lane: &Lane, word: oneshot::Sender<()>) {
        lane.run(Box::new(move || word.send(()).expect("somebody waits")));
    }

    /// Goal: tasks go on after the work that woke them, in the order in which it did, on its
    /// thread; but not more than a few, of which one panics.
    #[test]
    fn tasks_go_on_in_order_and_a_few_in_a_row() {
        const TASKS: usize = 10;
        let (runtime, lane) = (runtime(), Lane::start().expect("a thread"));
        for _ in 0..20 {
            let (send, receive) = mpsc::channel();
            let mut words = Vec::new();
            for index in 0..TASKS {
                let send = send.clone();
                words.push(after_word(runtime.handle(), move || {
                    send.send((index, is_here())).expect("somebody waits");
                    if index == 1 {
                        panic!("a test's deliberate panic");
                    }
                }));
            }
            let (ends, ended) = mpsc::channel();
            lane.run(Box::new(move || {
                for word in words {
                    word.send(()).expect("somebody waits");
                }
                // Nothing goes on here as long as this does.
                std::thread::sleep(Duration::from_millis(2));
                ends.send(()).expect("somebody waits");
            }));
            drop(send);
            let first = receive.recv().expect("it goes on");
            ended.try_recv().expect("the work has ended before");
            let all: Vec<(usize, bool)> = [first].into_iter().chain(receive.iter()).collect();
            assert_eq!(all.len(), TASKS);
            let here = all.iter().filter(|(_, here)| *here);
            let here: Vec<usize> = here.map(|(index, _)| *index).collect();
            assert!(here.iter().copied().eq(0..here.len()), "{all:?}");
            assert!((1..=4).contains(&here.len()), "{all:?}");
        }
    }

    /// Goal: tasks that block hold up neither the device nor, beyond a bound, each other, and when
    /// they go on all is as before. Method: tasks that wait for a word without giving their thread
    /// back.
    #[test]
    fn tasks_that_block_leave_the_device_its_threads() {
        let (runtime, lane) = (runtime(), Lane::start().expect("a thread"));
        let mut blocked = Vec::new();
        for index in 0..=NEAR_MAX {
            let (free, stuck) = mpsc::channel::<()>();
            let (send, receive) = mpsc::channel();
            let word = after_word(runtime.handle(), move || {
                send.send(is_here()).expect("somebody waits");
                let _ = stuck.recv();
            });
            say(&lane, word);
            let is_here = receive.recv_timeout(PATIENCE).expect("it goes on");
            assert_eq!(is_here, index < NEAR_MAX, "{index}");
            blocked.push(free);
        }
        let (send, receive) = mpsc::channel();
        for index in 0..THREADS_MAX * 3 {
            let send = send.clone();
            lane.run(Box::new(move || send.send(index).expect("somebody waits")));
        }
        for _ in 0..THREADS_MAX * 3 {
            receive.recv_timeout(PATIENCE).expect("it is done");
        }
        drop(blocked);
        while lane.0.0.state.lock().near > 0 {
            std::thread::yield_now();
        }
    }

    /// Goal: what the device is asked goes before tasks. Method: a thread ends its work while all
    /// that there may be are at work and more is queued; the task that it woke goes on elsewhere.
    #[test]
    fn no_task_goes_on_here_while_work_waits() {
        let (runtime, lane) = (runtime(), Lane::start().expect("a thread"));
        let (free, stuck) = mpsc::channel::<()>();
        let stuck = Arc::new(Mutex::new(stuck));
        let (send, receive) = mpsc::channel();
        let word = after_word(runtime.handle(), move || {
            send.send(is_here()).expect("somebody waits");
        });
        let (go, wait) = mpsc::channel::<()>();
        lane.run(Box::new(move || {
            let _ = wait.recv();
            word.send(()).expect("somebody waits");
        }));
        for _ in 0..THREADS_MAX * 2 {
            let stuck = stuck.clone();
            lane.run(Box::new(move || {
                let _ = stuck.lock().recv();
            }));
        }
        assert_eq!(lane.0.0.state.lock().threads, THREADS_MAX);
        drop(go);
        let is_here = receive.recv_timeout(PATIENCE).expect("it goes on");
        assert!(!is_here);
        drop(free);
    }

    /// Goal: the end of a runtime ends its tasks, as it does those of its own: those that wait are
    /// dropped, one that is at work here is waited for, and nothing goes on afterwards.
    #[test]
    fn tasks_end_with_their_runtime() {
        /// Says when it is dropped.
        struct Dropped(mpsc::Sender<&'static str>, &'static str);
        impl Drop for Dropped {
            fn drop(&mut self) {
                let _ = self.0.send(self.1);
            }
        }
        let lane = Lane::start().expect("a thread");
        for _ in 0..20 {
            let runtime = runtime();
            let (send, receive) = mpsc::channel();
            let waits = Dropped(send.clone(), "waits");
            let (kept, never) = oneshot::channel::<()>();
            start_near(runtime.handle(), async move {
                let _waits = waits;
                let _ = never.await;
            });
            let (begins, began) = mpsc::channel();
            let is_done = Arc::new(AtomicBool::new(false));
            let done = is_done.clone();
            let (word, wait) = oneshot::channel::<()>();
            let (second, wait_second) = oneshot::channel::<()>();
            let works = Dropped(send, "works");
            start_near(runtime.handle(), async move {
                let _works = works;
                wait.await.expect("a word");
                begins.send(()).expect("somebody waits");
                std::thread::sleep(Duration::from_millis(20));
                done.store(true, Ordering::SeqCst);
                wait_second.await.expect("it does not go on");
                panic!("a task goes on without its runtime");
            });
            say(&lane, word);
            began.recv_timeout(PATIENCE).expect("it began");
            let handle = runtime.handle().clone();
            drop(runtime);
            assert!(is_done.load(Ordering::SeqCst));
            let mut dropped = [receive.recv().unwrap(), receive.recv().unwrap()];
            dropped.sort_unstable();
            assert_eq!(dropped, ["waits", "works"]);
            assert!(kept.is_closed() && second.is_closed());
            // One that comes later does not even begin.
            let (send, receive) = mpsc::channel();
            let late = Dropped(send, "late");
            start_near(&handle, async move {
                let _late = late;
                panic!("a task begins without its runtime");
            });
            assert_eq!(receive.try_recv(), Ok("late"));
        }
    }

    /// Goal: what an ended runtime does not take is not dropped by whoever woke it, who may have
    /// locks that dropping it needs. Method: a runtime that never gets to what it was handed ends
    /// under such a lock.
    #[test]
    fn a_task_is_not_dropped_by_who_wakes_it() {
        struct Locks(Arc<Mutex<()>>, mpsc::Sender<()>);
        impl Drop for Locks {
            fn drop(&mut self) {
                drop(self.0.lock());
                let _ = self.1.send(());
            }
        }
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .expect("a runtime");
        let lock = Arc::new(Mutex::new(()));
        let (send, receive) = mpsc::channel();
        let locks = Locks(lock.clone(), send);
        let (word, wait) = oneshot::channel::<()>();
        start_near(runtime.handle(), async move {
            let _locks = locks;
            let _ = wait.await;
        });
        let held = lock.lock();
        word.send(()).expect("it waits");
        drop(runtime);
        assert!(receive.try_recv().is_err());
        drop(held);
        receive.recv_timeout(PATIENCE).expect("it is dropped");
    }

    /// Goal: a task that is the last to have a device does not keep the thread until that is
    /// closed. Method: files that take until they are let to close.
    #[test]
    fn closing_is_not_waited_for_here() {
        struct Slow(mpsc::Receiver<()>);
        impl Drop for Slow {
            fn drop(&mut self) {
                let _ = self.0.recv();
            }
        }
        let (runtime, lane) = (runtime(), Lane::start().expect("a thread"));
        let (free, stuck) = mpsc::channel();
        let (send, receive) = mpsc::channel();
        let files = Slow(stuck);
        let word = after_word(runtime.handle(), move || {
            let begin = Instant::now();
            super::super::aside::close(files);
            send.send((is_here(), begin.elapsed()))
                .expect("somebody waits");
        });
        say(&lane, word);
        let (is_here, took) = receive.recv_timeout(PATIENCE).expect("it goes on");
        assert!(is_here);
        // Elsewhere it would have waited for a second.
        assert!(took < Duration::from_millis(900), "{took:?}");
        drop(free);
    }

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
