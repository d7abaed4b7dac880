//! The engine of io_uring: a few rings, each with a thread that owns it.
//!
//! Only its owner touches a ring. Others put requests into the ring's inbox, and wake the owner
//! through an eventfd if it sleeps in the kernel. The owner moves requests into slots, submits an
//! entry for each, and on completion continues it (short transfers) or answers. With many
//! operations in flight a trip into the kernel submits and reaps many at once.
//!
//! # Memory
//!
//! The kernel reads and fills memory by address until it reports completion. All of it
//! (buffers, parts, vectors of addresses) is owned by the slot, which is freed only after the
//! completion has been reaped; whoever waits may give up at any time. If a ring ever fails as
//! such, its slots are leaked, never freed.
//!
//! # Buffered writes
//!
//! Do not come here: many filesystems cannot promise to write to the page cache without blocking,
//! so that io_uring hands such writes on to kernel threads. Threads of our own do it with half the
//! latency.
//!
//! # Waking
//!
//! Lost wake-ups are impossible: the owner announces its sleep before it looks at the inbox a last
//! time under its lock, and a sender looks for the announcement after it has put its request
//! there under the same lock.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use io_uring::types::{Fd, FsyncFlags};
use io_uring::{IoUring, Probe, opcode, squeue};
use parking_lot::Mutex;
use rustix::event::EventfdFlags;
use rustix::fs::FallocateFlags;
use rustix::io::Errno;

use super::blocking;
use super::request::{Action, CALL_BYTES_MAX, Progress, Request};

/// Entries of a submission queue.
const SUBMISSION_ENTRIES: u32 = 256;
/// Operations that a ring has in flight; completions always fit its completion queue.
const IN_FLIGHT_MAX: usize = 1023;
/// Entries of a completion queue: one for each operation and one for the eventfd.
const COMPLETION_ENTRIES: u32 = 1024;
/// Most rings.
const RINGS_MAX: usize = 4;
/// `user_data` of the read of the eventfd; slots start at 1.
const WAKE: u64 = 0;

/// The address and length of a part, laid out as `struct iovec`.
#[repr(C)]
struct Vector {
    start: *const u8,
    length: usize,
}

// SAFETY: the address belongs to the request in the same slot, which is `Send`.
unsafe impl Send for Vector {}

/// A request in a ring's hands.
struct Slot {
    request: Request,
    /// Addresses of the parts of a vectored write, for as long as the kernel may read them.
    vectors: Vec<Vector>,
}

#[derive(Default)]
struct Inbox {
    requests: VecDeque<Request>,
    /// The owner has given up; requests go elsewhere.
    dead: bool,
}

struct Mailbox {
    inbox: Mutex<Inbox>,
    sleeping: AtomicBool,
    wake: OwnedFd,
}

struct Engine {
    mailboxes: Vec<Arc<Mailbox>>,
    next: AtomicUsize,
}

/// The process's rings, made at first use; `None` where the system has no io_uring.
fn engine() -> Option<&'static Engine> {
    static ENGINE: OnceLock<Option<Engine>> = OnceLock::new();
    ENGINE
        .get_or_init(|| match Engine::start() {
            Ok(engine) => Some(engine),
            Err(error) => {
                tracing::info!(%error, "no io_uring here: I/O runs on threads");
                None
            }
        })
        .as_ref()
}

pub(super) fn is_available() -> bool {
    engine().is_some()
}

/// Whether a ring is the place for `request`.
pub(super) fn is_suited(request: &Request) -> bool {
    match request.action {
        Action::Read { .. } => true,
        Action::Write { .. } => request.direct,
        Action::PunchHole { .. } => true,
        // A flush always blocks: io_uring would hand it on to a kernel thread, and it has no ioctl.
        Action::Flush | Action::BlockDiscard { .. } => false,
    }
}

/// Carries out `request` on a ring.
pub(super) fn submit(request: Request) {
    match engine() {
        Some(engine) => engine.submit(request),
        None => blocking::submit(request),
    }
}

impl Engine {
    fn start() -> io::Result<Engine> {
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        let rings = (cpus / 2).clamp(1, RINGS_MAX);
        let mut mailboxes = Vec::new();
        for index in 0..rings {
            match start_ring(index) {
                Ok(mailbox) => mailboxes.push(mailbox),
                Err(error) if mailboxes.is_empty() => return Err(error),
                Err(error) => {
                    tracing::warn!(%error, started = index, "fewer I/O rings than wanted");
                    break;
                }
            }
        }
        Ok(Engine {
            mailboxes,
            next: AtomicUsize::new(0),
        })
    }

    fn submit(&self, request: Request) {
        let turn = self.next.fetch_add(1, Ordering::Relaxed);
        self.mailboxes[turn % self.mailboxes.len()].put(request);
    }
}

impl Mailbox {
    fn put(&self, request: Request) {
        {
            let mut inbox = self.inbox.lock();
            if inbox.dead {
                drop(inbox);
                blocking::submit(request);
                return;
            }
            inbox.requests.push_back(request);
        }
        if self.sleeping.swap(false, Ordering::SeqCst) {
            // The kernel reads a number in the machine's order; this is not zero in any, and the
            // counter can't overflow from one writer per sleep.
            let _ = rustix::io::write(&self.wake, &[0, 0, 0, 1, 1, 0, 0, 0]);
        }
    }
}

/// Starts a thread that makes a ring and owns it.
fn start_ring(index: usize) -> io::Result<Arc<Mailbox>> {
    let mailbox = Arc::new(Mailbox {
        inbox: Mutex::new(Inbox::default()),
        sleeping: AtomicBool::new(false),
        wake: rustix::event::eventfd(0, EventfdFlags::CLOEXEC)?,
    });
    let (report, started) = std::sync::mpsc::channel();
    let owned = mailbox.clone();
    std::thread::Builder::new()
        .name(format!("millpond-ring-{index}"))
        .spawn(move || match make_ring() {
            Ok(ring) => {
                let _ = report.send(Ok(()));
                Owner::new(ring, owned).run();
            }
            Err(error) => {
                let _ = report.send(Err(error));
            }
        })?;
    started
        .recv()
        .unwrap_or_else(|_| Err(io::Error::other("the ring's thread ended")))?;
    Ok(mailbox)
}

/// A ring that can do all that is asked of it.
fn make_ring() -> io::Result<IoUring> {
    let mut plain = IoUring::builder();
    plain.setup_cqsize(COMPLETION_ENTRIES).dontfork();
    // Newer kernels need fewer interrupts when one thread does everything.
    let mut lean = plain.clone();
    lean.setup_single_issuer().setup_defer_taskrun();
    let ring = match lean.build(SUBMISSION_ENTRIES) {
        Ok(ring) => ring,
        Err(_) => plain.build(SUBMISSION_ENTRIES)?,
    };
    let mut probe = Probe::new();
    ring.submitter().register_probe(&mut probe)?;
    let needed = [
        opcode::Read::CODE,
        opcode::Write::CODE,
        opcode::Writev::CODE,
        opcode::Fsync::CODE,
        opcode::Fallocate::CODE,
    ];
    if needed.iter().all(|code| probe.is_supported(*code)) {
        Ok(ring)
    } else {
        Err(io::ErrorKind::Unsupported.into())
    }
}

/// A ring and what is in flight on it.
struct Owner {
    ring: IoUring,
    mailbox: Arc<Mailbox>,
    slots: Vec<Option<Slot>>,
    free: Vec<usize>,
    in_flight: usize,
    /// Slots that await (re)submission.
    ready: VecDeque<usize>,
    /// Requests beyond what may be in flight.
    waiting: VecDeque<Request>,
    /// Where the kernel stores the eventfd's counter.
    wake_counter: Box<[u8; 8]>,
    wake_armed: bool,
}

impl Owner {
    fn new(ring: IoUring, mailbox: Arc<Mailbox>) -> Self {
        Owner {
            ring,
            mailbox,
            slots: Vec::new(),
            free: Vec::new(),
            in_flight: 0,
            ready: VecDeque::new(),
            waiting: VecDeque::new(),
            wake_counter: Box::new([0; 8]),
            wake_armed: false,
        }
    }

    fn run(mut self) {
        loop {
            self.take_inbox();
            self.fill_slots();
            // First, so that it finds room in the queue.
            if !self.wake_armed {
                self.arm_wake();
            }
            self.push_ready();
            let sleeping = self.prepare_to_sleep();
            let result = self.ring.submit_and_wait(usize::from(sleeping));
            self.mailbox.sleeping.store(false, Ordering::SeqCst);
            if let Err(error) = result {
                let passing = matches!(
                    Errno::from_io_error(&error),
                    Some(Errno::INTR | Errno::AGAIN | Errno::BUSY | Errno::TIME)
                );
                if !passing {
                    self.give_up(&error);
                    return;
                }
            }
            self.reap();
        }
    }

    fn take_inbox(&mut self) {
        let mut inbox = self.mailbox.inbox.lock();
        self.waiting.append(&mut inbox.requests);
    }

    /// Announces a sleep, unless there is something to do first.
    fn prepare_to_sleep(&mut self) -> bool {
        let busy = !self.ready.is_empty() || !self.ring.completion().is_empty();
        if busy || !self.wake_armed {
            return false;
        }
        self.mailbox.sleeping.store(true, Ordering::SeqCst);
        let full = self.in_flight >= IN_FLIGHT_MAX;
        // With every slot taken there is nothing to do with new requests.
        full || self.mailbox.inbox.lock().requests.is_empty()
    }

    fn fill_slots(&mut self) {
        while self.in_flight < IN_FLIGHT_MAX {
            let Some(request) = self.waiting.pop_front() else {
                return;
            };
            let slot = Slot {
                request,
                vectors: Vec::new(),
            };
            let index = match self.free.pop() {
                Some(index) => {
                    self.slots[index] = Some(slot);
                    index
                }
                None => {
                    self.slots.push(Some(slot));
                    self.slots.len() - 1
                }
            };
            self.in_flight += 1;
            self.ready.push_back(index);
        }
    }

    fn push_ready(&mut self) {
        while let Some(index) = self.ready.pop_front() {
            let slot = self.slots[index]
                .as_mut()
                .expect("a slot that is ready holds a request");
            let entry = entry(slot).user_data(index as u64 + 1);
            // SAFETY: every address in the entry belongs to the slot, which keeps its request until
            // the completion is reaped (or forever).
            if unsafe { self.ring.submission().push(&entry) }.is_err() {
                self.ready.push_front(index);
                return;
            }
        }
    }

    fn arm_wake(&mut self) {
        let entry = opcode::Read::new(
            Fd(self.mailbox.wake.as_raw_fd()),
            self.wake_counter.as_mut_ptr(),
            8,
        )
        .build()
        .user_data(WAKE);
        // SAFETY: the counter lives in its own allocation as long as `self`, which outlives the
        // ring or is leaked with it; the eventfd likewise.
        self.wake_armed = unsafe { self.ring.submission().push(&entry) }.is_ok();
    }

    fn reap(&mut self) {
        let completed: Vec<(u64, i32)> = self
            .ring
            .completion()
            .map(|entry| (entry.user_data(), entry.result()))
            .collect();
        for (user_data, result) in completed {
            if user_data == WAKE {
                self.wake_armed = false;
                continue;
            }
            let index = (user_data - 1) as usize;
            let slot = self.slots[index]
                .as_mut()
                .expect("a completion belongs to a slot in use");
            let result = match result {
                count @ 0.. => Ok(count as usize),
                error => Err(Errno::from_raw_os_error(-error)),
            };
            match slot.request.on_result(result) {
                Progress::More => self.ready.push_back(index),
                Progress::Finished(result) => {
                    if let Some(slot) = self.slots[index].take() {
                        slot.request.finish(result);
                    }
                    self.free.push(index);
                    self.in_flight -= 1;
                }
            }
        }
    }

    /// The ring itself fails, which no known kernel does: what it has is lost, what comes goes to
    /// the threads.
    fn give_up(mut self, error: &io::Error) {
        tracing::error!(%error, "an io_uring ring failed; I/O goes on with threads");
        let queued = {
            let mut inbox = self.mailbox.inbox.lock();
            inbox.dead = true;
            std::mem::take(&mut inbox.requests)
        };
        for request in self.waiting.drain(..).chain(queued) {
            blocking::submit(request);
        }
        for slot in self.slots.iter_mut().filter_map(Option::take) {
            slot.request
                .abandon(io::Error::other("the io_uring ring failed"));
            std::mem::forget(slot.vectors);
        }
        // The kernel may still write to what these own.
        std::mem::forget(self);
    }
}

/// The submission queue entry for the next step of a slot's request.
fn entry(slot: &mut Slot) -> squeue::Entry {
    let file = Fd(slot.request.descriptor().as_fd().as_raw_fd());
    let offset = slot.request.offset_bytes;
    match &mut slot.request.action {
        Action::Read { buffer } => {
            let offset = offset + buffer.filled() as u64;
            let (start, length) = buffer.unfilled();
            opcode::Read::new(file, start, length.min(CALL_BYTES_MAX) as u32)
                .offset(offset)
                .build()
        }
        Action::Write { parts, done } => {
            slot.vectors.clear();
            let parts = Request::remaining_parts(parts, *done).map(|part| Vector {
                start: part.as_ptr(),
                length: part.len(),
            });
            slot.vectors.extend(parts);
            let offset = offset + *done as u64;
            match &slot.vectors[..] {
                [single] => opcode::Write::new(file, single.start, single.length as u32)
                    .offset(offset)
                    .build(),
                several => opcode::Writev::new(file, several.as_ptr().cast(), several.len() as u32)
                    .offset(offset)
                    .build(),
            }
        }
        Action::Flush => opcode::Fsync::new(file).flags(FsyncFlags::DATASYNC).build(),
        Action::PunchHole { length_bytes } => {
            let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            opcode::Fallocate::new(file, *length_bytes)
                .offset(offset)
                .mode(mode.bits() as i32)
                .build()
        }
        // Not suited, see `is_suited`.
        Action::BlockDiscard { .. } => opcode::Nop::new().build(),
    }
}
