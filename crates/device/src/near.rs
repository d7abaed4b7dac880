//! Tasks that go on where they are woken.
//!
//! A synchronous write waits for one write of the intent log, which a thread of the device's does.
//! To have the runtime answer it then costs the wake-up of another thread, mostly on a processor
//! that sleeps: about as long as a fast disk takes for the write. So a task that was started with
//! [`start_near`] goes on on the device's thread itself, as soon as that is done with what it was
//! asked for; woken by anybody else it goes on on the runtime, as tasks do.
//!
//! # Which tasks
//! Those that have little left to do when they are woken: to answer, to write on in the log. They
//! must not block. Nothing interrupts one that does all the same, so its thread must not be missed:
//! a device's thread goes on with tasks only while another one waits for what the device is asked,
//! a few of its threads at most do so at a time (`file/lane.rs`), and each is back in its loop
//! after [`IN_A_ROW_MAX`] tasks, after [`IN_A_ROW_TIME`], or as soon as its device is asked for
//! something. What it does not come to goes on on the runtime.
//!
//! # Locks
//! A task never runs, and is never dropped, inside of the call that wakes it, whose caller may hold
//! locks: a device's thread does that once it is back in its loop and holds none.
//!
//! # The end of a runtime
//! It ends its tasks that were started here, as it does its own: when it is shut down none of them
//! is polled any more, nor begun; those that wait are dropped, by the thread that drops the
//! runtime's own; those that are being polled are waited for. One that is woken at that moment is
//! dropped by a thread for that.

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::thread;
use std::time::{Duration, Instant};

use async_task::{Builder, Runnable, Task};
use parking_lot::{Mutex, RwLock};
use tokio::runtime::Handle;

/// A task of any kind.
type AnyTask = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Most tasks that a thread goes on with before it is there for its device again: the writer of a
/// log, and some who waited for it.
const IN_A_ROW_MAX: usize = 4;
/// After so long it begins with no other: to wake a thread of the runtime takes no longer.
const IN_A_ROW_TIME: Duration = Duration::from_micros(100);
/// How long the end of a runtime waits for polls under way.
const END_PATIENCE: Duration = Duration::from_secs(1);

type Woken = Runnable<Arc<Home>>;

thread_local! {
    /// Tasks that were woken here and are to go on here; nothing where they are not to.
    static WOKEN: RefCell<Option<VecDeque<Woken>>> = const { RefCell::new(None) };
}

/// A runtime, and its tasks that were started here.
struct Home {
    runtime: Handle,
    /// None of its tasks is polled any more.
    has_ended: AtomicBool,
    /// Polls under way.
    polls: AtomicUsize,
    next_number: AtomicU64,
    /// Those that have not ended, by number. Dropping one ends it. Short; nothing else is locked
    /// under it, and no task dropped.
    tasks: Mutex<HashMap<u64, Task<(), Arc<Home>>>>,
}

/// Runtimes that have not ended. Few, mostly one.
static HOMES: RwLock<Vec<Arc<Home>>> = RwLock::new(Vec::new());

impl Home {
    fn of(runtime: &Handle) -> Arc<Self> {
        let known = Self::find(&HOMES.read(), runtime);
        if let Some(home) = known {
            return home;
        }
        let home = {
            let mut homes = HOMES.write();
            if let Some(home) = Self::find(&homes, runtime) {
                return home;
            }
            let home = Arc::new(Self {
                runtime: runtime.clone(),
                has_ended: AtomicBool::new(false),
                polls: AtomicUsize::new(0),
                next_number: AtomicU64::new(0),
                tasks: Mutex::default(),
            });
            homes.push(home.clone());
            home
        };
        // A task of the runtime's is dropped when that is shut down: at once, where it was before.
        let keeper = Keeper(home.clone());
        runtime.spawn(async move {
            let _keeper = keeper;
            std::future::pending::<()>().await;
        });
        home
    }

    fn find(homes: &[Arc<Self>], runtime: &Handle) -> Option<Arc<Self>> {
        let mut homes = homes.iter();
        homes
            .find(|home| home.runtime.id() == runtime.id())
            .cloned()
    }

    /// A poll begins, unless the runtime has ended.
    fn begin(&self) -> Option<Polling<'_>> {
        self.polls.fetch_add(1, Ordering::SeqCst);
        let polling = Polling(self);
        (!self.has_ended.load(Ordering::SeqCst)).then_some(polling)
    }
}

struct Polling<'a>(&'a Home);

impl Drop for Polling<'_> {
    fn drop(&mut self) {
        self.0.polls.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Belongs to a task of the runtime's: when that is dropped, the runtime ends.
struct Keeper(Arc<Home>);

impl Drop for Keeper {
    fn drop(&mut self) {
        let home = &self.0;
        home.has_ended.store(true, Ordering::SeqCst);
        HOMES.write().retain(|other| !Arc::ptr_eq(other, home));
        let begin = Instant::now();
        while home.polls.load(Ordering::SeqCst) > 0 && begin.elapsed() < END_PATIENCE {
            thread::sleep(Duration::from_millis(1));
        }
        let tasks = std::mem::take(&mut *home.tasks.lock());
        // One that waits is woken to be dropped: here. A thread that is ending takes none, so that
        // another one has to.
        let before = WOKEN.try_with(|woken| woken.replace(Some(VecDeque::new())));
        drop(tasks);
        if let Ok(before) = before {
            drop(WOKEN.replace(before));
        }
    }
}

/// A task. A panic in it, also while it is dropped, ends it and nothing else.
struct Contained {
    task: Option<AnyTask>,
    number: u64,
    home: Arc<Home>,
}

impl Future for Contained {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let Some(task) = &mut self.task else {
            return Poll::Ready(());
        };
        // Those who wait for a task that a panic has ended see its end of a channel closed.
        let polled = catch_unwind(AssertUnwindSafe(|| task.as_mut().poll(context)));
        match polled {
            Ok(Poll::Pending) => Poll::Pending,
            Ok(Poll::Ready(())) | Err(_) => {
                self.let_go();
                Poll::Ready(())
            }
        }
    }
}

impl Contained {
    fn let_go(&mut self) {
        let Some(task) = self.task.take() else { return };
        let runtime = &self.home.runtime;
        let _ = catch_unwind(AssertUnwindSafe(move || {
            let _inside = runtime.enter();
            drop(task);
        }));
        let handle = self.home.tasks.lock().remove(&self.number);
        if let Some(handle) = handle {
            handle.detach();
        }
    }
}

impl Drop for Contained {
    fn drop(&mut self) {
        self.let_go();
    }
}

/// Runs `task`, here until it has to wait, then on the thread of a device's that wakes it, or on
/// `runtime`. It is always polled within `runtime`. A panic ends the task alone.
pub fn start_near(runtime: &Handle, task: impl Future<Output = ()> + Send + 'static) {
    let home = Home::of(runtime);
    let number = home.next_number.fetch_add(1, Ordering::Relaxed);
    let contained = Contained {
        task: Some(Box::pin(task)),
        number,
        home: home.clone(),
    };
    let builder = Builder::new().metadata(home.clone());
    let (runnable, handle) = builder.spawn(|_| contained, wake);
    // Where the runtime has ended meanwhile, the poll finds that.
    home.tasks.lock().insert(number, handle);
    poll(runnable);
}

/// Tasks that this thread wakes from now on go on here, when it calls [`go_on`].
pub(crate) fn take_tasks() {
    WOKEN.set(Some(VecDeque::new()));
}

/// Takes none any more.
pub(crate) fn leave_tasks() {
    let left = WOKEN.take();
    left.into_iter().flatten().for_each(hand_on);
}

/// Whether this thread takes tasks: it is a device's.
pub(crate) fn takes_tasks() -> bool {
    let takes = WOKEN.try_with(|woken| woken.borrow().is_some());
    takes.unwrap_or(false)
}

/// Whether tasks are to go on here.
pub(crate) fn are_woken() -> bool {
    WOKEN.with_borrow(|woken| woken.as_ref().is_some_and(|woken| !woken.is_empty()))
}

/// Runs tasks that were woken here, up to a bound, as long as it `is_free`; the runtime takes the
/// others.
pub(crate) fn go_on(is_free: impl Fn() -> bool) {
    let begin = Instant::now();
    for left in (1..=IN_A_ROW_MAX).rev() {
        // Who does not have a turn here anyhow need not wait for the others to end.
        hand_on_behind(left);
        if left < IN_A_ROW_MAX && (begin.elapsed() >= IN_A_ROW_TIME || !is_free()) {
            break;
        }
        let next = WOKEN.with_borrow_mut(|woken| woken.as_mut().and_then(VecDeque::pop_front));
        match next {
            Some(runnable) => poll(runnable),
            None => return,
        }
    }
    hand_on_behind(0);
}

/// Has the runtime go on with those that were woken here, but for the first `kept`.
pub(crate) fn hand_on_behind(kept: usize) {
    let behind = WOKEN.with_borrow_mut(|woken| {
        let woken = woken.as_mut().filter(|woken| woken.len() > kept);
        woken.map(|woken| woken.split_off(kept))
    });
    behind.into_iter().flatten().for_each(hand_on);
}

/// A task on its way to the runtime. One that has shut down does not take it, and it must not be
/// dropped here, within the call that wakes it.
struct OnTheWay(Option<Woken>);

impl Drop for OnTheWay {
    fn drop(&mut self) {
        if let Some(runnable) = self.0.take() {
            drop_elsewhere(runnable);
        }
    }
}

/// Has the runtime go on with a task.
fn hand_on(runnable: Woken) {
    let home = runnable.metadata().clone();
    let mut on_the_way = OnTheWay(Some(runnable));
    if !home.has_ended.load(Ordering::SeqCst) {
        home.runtime.spawn(async move {
            if let Some(runnable) = on_the_way.0.take() {
                poll(runnable);
            }
        });
    }
}

/// Tasks that are to be dropped, and whether a thread does so.
static LEFT: Mutex<(Vec<Woken>, bool)> = Mutex::new((Vec::new(), false));

fn drop_elsewhere(runnable: Woken) {
    {
        let mut left = LEFT.lock();
        left.0.push(runnable);
        if std::mem::replace(&mut left.1, true) {
            return;
        }
    }
    let drops = || {
        loop {
            let tasks = {
                let mut left = LEFT.lock();
                left.1 = !left.0.is_empty();
                std::mem::take(&mut left.0)
            };
            if tasks.is_empty() {
                return;
            }
            drop(tasks);
        }
    };
    let thread = thread::Builder::new().name("millpond-end".to_owned());
    if thread.spawn(drops).is_err() {
        // They stay until there is a thread.
        LEFT.lock().1 = false;
    }
}

/// Has a task go on that something happened for.
fn wake(runnable: Woken) {
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

/// Polls a task; drops it where its runtime has ended.
fn poll(runnable: Woken) {
    let home = runnable.metadata().clone();
    let Some(_polling) = home.begin() else {
        return drop(runnable);
    };
    let _inside = home.runtime.enter();
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
            go_on(|| true);
            assert_eq!(told.try_recv().unwrap(), thread::current().id());
            // One that panics takes nobody else with it.
            let (word, wait) = tokio::sync::oneshot::channel::<()>();
            start_near(&runtime_handle, async move {
                wait.await.unwrap();
                panic!("a test's deliberate panic");
            });
            word.send(()).unwrap();
            second.send(()).unwrap();
            go_on(|| true);
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
