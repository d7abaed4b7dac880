//! Which of a mount's threads waits for the next request.
//!
//! # What it is for
//! Every thread of a session reads a request, answers it, and reads the next. When several sleep in
//! the kernel's read, requests go round them: each one wakes the thread that has slept longest,
//! whose caches are cold. A client that waits for each answer before it asks again (most do) pays
//! for that every time. So one thread has the *turn*: it reads, answers, and stays; it looks for
//! the next request for a few tens of microseconds before it goes to sleep, as long as that has
//! been worth it lately. The others are parked.
//!
//! ```text
//!            request read, more wait or it is long: the turn is offered
//!   reader ---------------------------------------------------------------> worker
//!     ^ \                                                                  /   |
//!     |  `--- answered: looks for the next one, reads                     /    |
//!     |                                                                  /     |
//!     +------ more wait, or nobody reads  <------------------------------      |
//!     |                                                                        v
//!     +------ offered the turn  <--------------------------------------------- parked
//! ```
//!
//! # Who may park
//! Only while another thread that is known here reads (it has a [`Seat`]). When the session ends,
//! that one's read fails, it ends, its seat is dropped, and that lets all others go: nobody is left
//! behind.
//!
//! # Memory
//! What a thread had for a request and others freed stays with the thread until it asks for memory
//! again. There may be hundreds of mounts, most of which rest: a thread that has nothing to do for
//! a while ([`REST`]) gives that back once, and then waits for as long as it takes.
//!
//! # Locks
//! `state`, for a few instructions. A thread never parks with another lock held.

use std::cell::RefCell;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// How long a reader looks for the next request before it sleeps: about what waking it costs, with
/// the time that a client needs between two requests.
const LOOK_MAX: Duration = Duration::from_micros(50);
/// So many times in a row it was in vain: then not any more, until requests come fast again.
const VAIN_MAX: u32 = 3;
/// After so long without a request a thread gives memory back.
const REST: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
struct State {
    /// Threads with a seat that read, or will as soon as they have answered a short request.
    readers: usize,
    parked: usize,
    /// Turns offered to parked threads.
    offers: usize,
    /// A thread has ended: the session does.
    closed: bool,
}

#[derive(Debug, Default)]
struct Shared {
    device: OnceLock<OwnedFd>,
    state: Mutex<State>,
    turn: Condvar,
    /// Whether there is another CPU for the client while a thread looks.
    looks: bool,
}

/// A session's threads, as far as they have read a request.
#[derive(Debug, Clone, Default)]
pub(crate) struct Readers(Arc<Shared>);

/// A thread of the session.
struct Seat {
    shared: Arc<Shared>,
    /// It has the turn.
    is_reader: bool,
    /// When it was done with the request before, others waited (or that is not known): asking costs
    /// a system call, which a client that is alone need not pay for each request.
    is_crowded: bool,
    ended: Instant,
    in_vain: u32,
    /// It has answered requests since it gave memory back.
    has_worked: bool,
}

impl Seat {
    /// Looks for the next request, where that is worth it. Where there is none for a while, gives
    /// memory back.
    fn look(&mut self) {
        self.ended = Instant::now();
        let found = match self.shared.looks && self.is_reader && self.in_vain < VAIN_MAX {
            true => self.shared.look(),
            false => Found::Unknown,
        };
        self.is_crowded = matches!(found, Found::More | Found::Unknown);
        let is_known = matches!(found, Found::More | Found::One);
        if self.has_worked && self.is_reader && !is_known && !self.shared.is_asked_within(REST) {
            device::give_back_freed();
            self.has_worked = false;
        }
    }
}

/// What a thread has found that looked for a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Found {
    /// One was there already.
    More,
    /// One came meanwhile.
    One,
    None,
    /// It has not looked.
    Unknown,
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.shared.state.lock().closed = true;
        self.shared.turn.notify_all();
    }
}

thread_local! {
    static SEAT: RefCell<Option<Seat>> = const { RefCell::new(None) };
}

impl Readers {
    pub(crate) fn new() -> Self {
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        Readers(Arc::new(Shared {
            looks: cpus > 1,
            ..Shared::default()
        }))
    }

    /// Tells where requests come from. Without that, threads just read.
    pub(crate) fn attach(&self, device: OwnedFd) {
        let _ = self.0.device.set(device);
    }

    /// This thread has read a request. When more wait, or this one may take `long`, another thread
    /// reads on.
    pub(crate) fn begin(&self, long: bool) {
        if self.0.device.get().is_none() {
            return;
        }
        SEAT.with_borrow_mut(|place| {
            let seat = place.get_or_insert_with(|| self.0.sit_down());
            seat.has_worked = true;
            let gap = seat.ended.elapsed();
            seat.in_vain = if gap < LOOK_MAX {
                0
            } else {
                seat.in_vain.saturating_add(1)
            };
            if seat.is_reader && (long || seat.is_crowded && self.0.more_wait()) {
                seat.is_reader = !self.0.give_turn(long);
            }
        });
    }

    /// This thread has read what needs no answer: if it has the turn, it looks for the next
    /// request. Never waits for a turn.
    pub(crate) fn stay(&self) {
        if self.0.device.get().is_none() {
            return;
        }
        SEAT.with_borrow_mut(|place| {
            if let Some(seat) = place.as_mut().filter(|seat| seat.is_reader) {
                seat.look();
            }
        });
    }

    /// This thread has answered a request, or handed it on: waits until it should read again.
    pub(crate) fn end(&self) {
        if self.0.device.get().is_none() {
            return;
        }
        SEAT.with_borrow_mut(|place| {
            let Some(seat) = place else { return };
            seat.is_reader = self.0.take_turn(seat.is_reader, &mut seat.has_worked);
            seat.look();
        });
    }
}

impl Shared {
    fn sit_down(self: &Arc<Self>) -> Seat {
        self.state.lock().readers += 1;
        Seat {
            shared: self.clone(),
            is_reader: true,
            is_crowded: true,
            ended: Instant::now(),
            in_vain: 0,
            has_worked: false,
        }
    }

    /// Whether a read would return at once (with a request, or because the session has ended).
    fn more_wait(&self) -> bool {
        self.is_asked_within(Duration::ZERO)
    }

    /// Whether a read would return at some time within so long.
    fn is_asked_within(&self, time: Duration) -> bool {
        let timeout = Timespec {
            tv_sec: time.as_secs().cast_signed(),
            tv_nsec: i64::from(time.subsec_nanos()),
        };
        self.device.get().is_none_or(|device| {
            let mut devices = [PollFd::new(device, PollFlags::IN)];
            // An error, which there should not be, is what the read will meet as well.
            poll(&mut devices, Some(&timeout)).map_or(true, |ready| ready > 0)
        })
    }

    /// Gives the turn to a parked thread. If there is none, whoever is busy for `long` gives it up
    /// all the same: a thread that is about to park must not take it for one that reads. Whether it
    /// was given.
    fn give_turn(&self, long: bool) -> bool {
        let mut state = self.state.lock();
        if state.parked > state.offers {
            // The reader's turn becomes that of whoever takes it up.
            state.offers += 1;
            drop(state);
            self.turn.notify_one();
            return true;
        }
        if long {
            state.readers -= 1;
        }
        long
    }

    /// Waits until this thread is to read; true with the turn. One that `has_worked` gives memory
    /// back when that takes a while.
    fn take_turn(&self, is_reader: bool, has_worked: &mut bool) -> bool {
        // The usual case first: it has the turn, and alone.
        let mut state = self.state.lock();
        if state.closed || is_reader && state.readers <= 1 {
            return is_reader;
        }
        drop(state);
        let more = self.more_wait();
        state = self.state.lock();
        match is_reader {
            true if more || state.readers <= 1 => return true,
            true => state.readers -= 1,
            false if more || state.readers == 0 => {
                state.readers += 1;
                return true;
            }
            false => {}
        }
        state.parked += 1;
        while state.offers == 0 && !state.closed {
            if !*has_worked {
                self.turn.wait(&mut state);
            } else if self.turn.wait_for(&mut state, REST).timed_out() {
                *has_worked = false;
                MutexGuard::unlocked(&mut state, device::give_back_freed);
            }
        }
        state.parked -= 1;
        if state.offers > 0 {
            state.offers -= 1;
            return true;
        }
        false
    }

    /// Looks for a request for a moment.
    fn look(&self) -> Found {
        if self.more_wait() {
            return Found::More;
        }
        let begin = Instant::now();
        while begin.elapsed() < LOOK_MAX {
            // Whoever wants this CPU may have it.
            std::thread::yield_now();
            if self.more_wait() {
                return Found::One;
            }
        }
        Found::None
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc;
    use std::thread;

    use super::*;

    /// A session in small: requests are bytes of a pipe; 1 is a long one. Returns how many were
    /// answered, by how many threads each.
    fn serve(requests: usize, in_flight: usize, long_every: usize) -> Vec<usize> {
        const THREADS: usize = 4;
        let readers = Readers::new();
        let (source, mut sink) = std::io::pipe().unwrap();
        readers.attach(source.try_clone().unwrap().into());
        let (answer, answers) = mpsc::channel();
        let served: Arc<Vec<AtomicUsize>> = Arc::new((0..THREADS).map(|_| 0.into()).collect());
        let threads: Vec<_> = (0..THREADS)
            .map(|index| {
                let (readers, served, answer) = (readers.clone(), served.clone(), answer.clone());
                let mut source = source.try_clone().unwrap();
                thread::spawn(move || {
                    let mut request = [0];
                    while source.read(&mut request).unwrap() == 1 {
                        let long = request == [1];
                        readers.begin(long);
                        if long {
                            thread::sleep(Duration::from_millis(1));
                        }
                        served[index].fetch_add(1, Ordering::Relaxed);
                        answer.send(()).unwrap();
                        readers.end();
                    }
                })
            })
            .collect();
        drop(source);
        let mut waiting = 0;
        for request in 0..requests {
            let long = long_every > 0 && request % long_every == 0;
            sink.write_all(&[u8::from(long)]).unwrap();
            waiting += 1;
            if waiting == in_flight {
                answers.recv().unwrap();
                waiting -= 1;
            }
        }
        (0..waiting).for_each(|_| answers.recv().unwrap());
        drop(sink);
        // Nobody is left behind, wherever they were.
        for thread in threads {
            thread.join().unwrap();
        }
        served
            .iter()
            .map(|count| count.load(Ordering::Relaxed))
            .collect()
    }

    #[test]
    fn all_requests_are_answered_and_all_threads_end() {
        for round in 0..20 {
            for (in_flight, long_every) in [(1, 0), (1, 3), (3, 0), (8, 0), (8, 2), (16, 7)] {
                let served = serve(50 + round, in_flight, long_every);
                assert_eq!(served.iter().sum::<usize>(), 50 + round);
            }
        }
        // Also when hardly anybody has begun.
        for requests in 0..4 {
            serve(requests, 1, 0);
        }
    }

    #[test]
    fn who_stays_never_waits_for_a_turn() {
        let readers = Readers::new();
        let (source, _sink) = std::io::pipe().unwrap();
        readers.attach(source.into());
        readers.begin(false);
        // Another one reads: after an answer this thread would park until it is offered the turn.
        readers.0.state.lock().readers += 1;
        let (done, wait) = mpsc::channel();
        let other = thread::spawn(move || {
            readers.begin(false);
            (0..10).for_each(|_| readers.stay());
            done.send(()).unwrap();
        });
        wait.recv_timeout(Duration::from_secs(60)).unwrap();
        other.join().unwrap();
    }

    #[test]
    fn who_has_nothing_to_do_gives_memory_back_once() {
        let has_worked = || SEAT.with_borrow(|place| place.as_ref().unwrap().has_worked);
        let readers = Readers::new();
        let (source, mut sink) = std::io::pipe().unwrap();
        readers.attach(source.try_clone().unwrap().into());
        readers.begin(false);
        // As long as there is a request, it goes on.
        sink.write_all(&[0]).unwrap();
        readers.end();
        assert!(has_worked());
        (&source).read_exact(&mut [0]).unwrap();
        readers.begin(false);
        readers.end();
        assert!(!has_worked());
        // One that is parked does, and takes up its turn afterwards.
        readers.begin(false);
        readers.0.state.lock().readers += 1;
        let shared = Arc::clone(&readers.0);
        let offers = thread::spawn(move || {
            while shared.state.lock().parked == 0 {
                thread::yield_now();
            }
            thread::sleep(2 * REST);
            assert!(shared.give_turn(false));
        });
        let mut worked = true;
        assert!(readers.0.take_turn(true, &mut worked));
        assert!(!worked);
        offers.join().unwrap();
    }

    #[test]
    fn who_is_busy_for_long_does_not_count_as_reading() {
        let readers = Readers::new();
        let (source, mut sink) = std::io::pipe().unwrap();
        readers.attach(source.into());
        readers.begin(false);
        // Another one has answered its request; nobody is parked yet who could be offered the turn.
        readers.0.state.lock().readers += 1;
        readers.begin(true);
        // The other one must not park now.
        assert_eq!(readers.0.state.lock().readers, 1);
        sink.write_all(&[0]).unwrap();
        readers.end();
        assert_eq!(readers.0.state.lock().readers, 2);
    }

    #[test]
    fn requests_one_by_one_stay_with_one_thread() {
        // On a busy machine two may take turns for a while; without seats, all four always do.
        let rounds: Vec<_> = (0..20).map(|_| serve(2000, 1, 0)).collect();
        let most = rounds.iter().flatten().max().unwrap();
        assert!(*most > 1900, "{rounds:?}");
    }

    #[test]
    fn a_long_request_holds_up_nobody() {
        let readers = Readers::new();
        let (source, mut sink) = std::io::pipe().unwrap();
        readers.attach(source.try_clone().unwrap().into());
        let (answer, answers) = mpsc::channel();
        let (release, released) = mpsc::channel::<()>();
        let released = Arc::new(Mutex::new(released));
        let threads: Vec<_> = (0..3)
            .map(|_| {
                let (readers, answer, released) =
                    (readers.clone(), answer.clone(), released.clone());
                let mut source = source.try_clone().unwrap();
                thread::spawn(move || {
                    let mut request = [0];
                    while source.read(&mut request).unwrap() == 1 {
                        readers.begin(request == [1]);
                        if request == [1] {
                            released.lock().recv().unwrap();
                        }
                        answer.send(request[0]).unwrap();
                        readers.end();
                    }
                })
            })
            .collect();
        drop(source);
        // All threads have a seat, and all but one are parked.
        for _ in 0..100 {
            sink.write_all(&[0]).unwrap();
            answers.recv().unwrap();
        }
        sink.write_all(&[1]).unwrap();
        for _ in 0..100 {
            sink.write_all(&[0]).unwrap();
            assert_eq!(answers.recv().unwrap(), 0);
        }
        release.send(()).unwrap();
        assert_eq!(answers.recv().unwrap(), 1);
        drop(sink);
        threads
            .into_iter()
            .for_each(|thread| thread.join().unwrap());
    }
}
