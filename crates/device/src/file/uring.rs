//! The engine of io_uring: rings, each with a thread that owns it.
//!
//! Only its owner touches a ring. Others put requests into the ring's inbox, and wake the owner
//! through an eventfd if it sleeps in the kernel. The owner moves requests into slots, submits an
//! entry for each, and on completion continues it (short transfers) or answers. With many
//! operations in flight a trip into the kernel submits and reaps many at once.
//!
//! # Nothing that blocks
//!
//! A ring is a way for one device to stop all that share it. What the kernel cannot do at once it
//! hands on to threads that belong to the ring's owner, four per CPU, and a device that does not
//! answer takes all of them. So every entry says that it is not to block (`RWF_NOWAIT`): what would
//! is done by the device's own threads ([`Lane`]), and so is everything once the kernel has said
//! that it cannot promise this for the device. Operations that are not answered hold slots; so a
//! device has [`IN_FLIGHT_MAX`] at most, and a ring has room for those of [`DEVICES_MAX`].
//!
//! Some filesystems and drivers sleep in the submission all the same, and the owner with them.
//! Files and such devices have rings to themselves. Others share theirs: with one for each of four
//! devices, as many owners had to be woken, and small operations took twice as long
//! (`examples/device_spread.rs`).
//!
//! # Memory
//!
//! The kernel reads and fills memory by address until it reports completion. All of it
//! (buffers, parts, vectors of addresses) is owned by the slot, which is freed only after the
//! completion has been reaped; whoever waits may give up at any time. If a ring ever fails as
//! such, its slots are leaked, never freed.
//!
//! # What does not come here
//!
//! Only direct reads and writes do that need not be durable when they are done. All else ends on
//! the kernel's threads anyhow, which take twice as long as ours to answer: filesystems refuse a
//! durable write that is not to block. Where a device would take it here, its owner would have to
//! be woken for it twice, and its answer handed to a third thread; the device's own thread goes on
//! with the log by itself ([`crate::near`]).
//!
//! # Waking
//!
//! Lost wake-ups are impossible: the owner announces its sleep before it looks at the inbox a last
//! time under its lock, and a sender looks for the announcement after it has put its request
//! there under the same lock.
//!
//! # The end
//!
//! A device that is closed says so in the inbox. The owner ends when the kernel has nothing more of
//! the ring's, so that no memory of it is written to later.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use io_uring::types::Fd;
use io_uring::{IoUring, Probe, opcode, squeue};
use parking_lot::Mutex;
use rustix::event::EventfdFlags;
use rustix::io::Errno;

use super::blocking;
use super::lane::Lane;
use super::request::{Action, CALL_BYTES_MAX, Durability, Progress, Request};

/// Entries of a submission queue.
const SUBMISSION_ENTRIES: u32 = 128;
/// Operations of a device that are in flight; more than a leaf's queues let through. What is more
/// goes to the device's threads.
const IN_FLIGHT_MAX: usize = 255;
/// Devices that share rings.
const DEVICES_MAX: usize = 16;
/// Entries of a completion queue: one for each operation and one for the eventfd.
const COMPLETION_ENTRIES: u32 = 4096;
/// Most rings that a device's operations are spread over.
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
    seat: Arc<Seat>,
    /// Addresses of the parts of a vectored write, for as long as the kernel may read them.
    vectors: Vec<Vector>,
}

/// What of the rings belongs to one device.
struct Seat {
    /// Where to go with what would block.
    lane: Lane,
    /// The kernel cannot promise for this device that nothing blocks: nothing more is tried here.
    blocks: AtomicBool,
    /// Operations in the rings' hands.
    in_flight: AtomicUsize,
}

/// A request on its way to a slot.
type Job = (Request, Arc<Seat>);

#[derive(Default)]
struct Inbox {
    requests: VecDeque<Job>,
    /// The owner has given up; requests go elsewhere.
    dead: bool,
    /// The devices are closed; nothing more comes.
    closing: bool,
}

struct Mailbox {
    inbox: Mutex<Inbox>,
    sleeping: AtomicBool,
    wake: OwnedFd,
}

/// Rings that operations are spread over.
struct Set {
    mailboxes: Vec<Arc<Mailbox>>,
    next: AtomicUsize,
}

/// Those that devices share; they stay. One device each is that many more references.
static SHARED: Mutex<Vec<Arc<Set>>> = Mutex::new(Vec::new());

/// A device's place at rings. Those of its own end with it.
pub(super) struct Ring {
    seat: Arc<Seat>,
    set: Arc<Set>,
}

/// Whether the system has io_uring, with all that is asked of it.
pub(super) fn is_available() -> bool {
    static AVAILABLE: OnceLock<bool> = OnceLock::new();
    *AVAILABLE.get_or_init(|| match make_ring() {
        Ok(_) => true,
        Err(error) => {
            tracing::info!(%error, "no io_uring here: I/O runs on threads");
            false
        }
    })
}

impl Ring {
    /// A place at rings, which others share if `shared`.
    ///
    /// # Errors
    /// The system has no ring or no thread.
    pub(super) fn start(lane: Lane, shared: bool) -> io::Result<Self> {
        let set = match shared {
            true => Set::shared()?,
            false => Arc::new(Set::start()?),
        };
        let seat = Arc::new(Seat {
            lane,
            blocks: AtomicBool::new(false),
            in_flight: AtomicUsize::new(0),
        });
        Ok(Ring { seat, set })
    }

    /// Carries out `request`, here or where it may block.
    pub(super) fn submit(&self, request: Request) {
        let seat = &self.seat;
        let transfers = match request.action {
            Action::Read { .. } => true,
            Action::Write { durability, .. } => durability == Durability::Later,
            _ => false,
        };
        let suited = transfers && request.direct && !seat.blocks.load(Ordering::Relaxed);
        if !suited || seat.in_flight.load(Ordering::Relaxed) >= IN_FLIGHT_MAX {
            blocking::submit(&seat.lane, request);
            return;
        }
        // Several at once may go beyond by as many; the owner sees to the completion queue.
        seat.in_flight.fetch_add(1, Ordering::Relaxed);
        let turn = self.set.next.fetch_add(1, Ordering::Relaxed);
        let mailbox = &self.set.mailboxes[turn % self.set.mailboxes.len()];
        {
            let mut inbox = mailbox.inbox.lock();
            if inbox.dead {
                drop(inbox);
                seat.in_flight.fetch_sub(1, Ordering::Relaxed);
                blocking::submit(&seat.lane, request);
                return;
            }
            inbox.requests.push_back((request, seat.clone()));
        }
        mailbox.wake_owner();
    }
}

impl std::fmt::Debug for Ring {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Ring")
            .field("blocks", &self.seat.blocks)
            .field("in_flight", &self.seat.in_flight)
            .finish_non_exhaustive()
    }
}

impl Set {
    fn start() -> io::Result<Set> {
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        let rings = (cpus / 2).clamp(1, RINGS_MAX);
        let mut mailboxes = Vec::new();
        for index in 0..rings {
            match start_ring() {
                Ok(mailbox) => mailboxes.push(mailbox),
                Err(error) if mailboxes.is_empty() => return Err(error),
                Err(error) => {
                    tracing::warn!(%error, started = index, "fewer I/O rings than wanted");
                    break;
                }
            }
        }
        Ok(Set {
            mailboxes,
            next: AtomicUsize::new(0),
        })
    }

    /// One with room for a device more.
    fn shared() -> io::Result<Arc<Set>> {
        let mut shared = SHARED.lock();
        let mut sets = shared.iter();
        if let Some(set) = sets.find(|set| Arc::strong_count(set) <= DEVICES_MAX) {
            return Ok(set.clone());
        }
        let set = Arc::new(Set::start()?);
        shared.push(set.clone());
        Ok(set)
    }
}

impl Drop for Set {
    fn drop(&mut self) {
        for mailbox in &self.mailboxes {
            mailbox.inbox.lock().closing = true;
            mailbox.wake_owner();
        }
    }
}

impl Mailbox {
    /// Wakes the owner, if it sleeps, after something was put into the inbox.
    fn wake_owner(&self) {
        if self.sleeping.swap(false, Ordering::SeqCst) {
            self.ring_bell();
        }
    }

    /// Ends the read of the eventfd.
    fn ring_bell(&self) {
        // The kernel reads a number in the machine's order; this is not zero in any, and the
        // counter can't overflow from one writer per sleep.
        let _ = rustix::io::write(&self.wake, &[0, 0, 0, 1, 1, 0, 0, 0]);
    }
}

/// Starts a thread that makes a ring and owns it.
fn start_ring() -> io::Result<Arc<Mailbox>> {
    let mailbox = Arc::new(Mailbox {
        inbox: Mutex::new(Inbox::default()),
        sleeping: AtomicBool::new(false),
        wake: rustix::event::eventfd(0, EventfdFlags::CLOEXEC)?,
    });
    let (report, started) = std::sync::mpsc::channel();
    let owned = mailbox.clone();
    std::thread::Builder::new()
        .name("millpond-ring".to_owned())
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
    /// Requests beyond what completions have room for.
    waiting: VecDeque<Job>,
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
            let closing = self.take_inbox();
            self.fill_slots();
            // First, so that it finds room in the queue.
            if !self.wake_armed && !closing {
                self.arm_wake();
            }
            if closing && self.in_flight == 0 {
                if !self.wake_armed {
                    return;
                }
                // The read of the eventfd is the last thing that the kernel has to end.
                self.mailbox.ring_bell();
            }
            self.push_ready();
            let sleeping = self.prepare_to_sleep(closing);
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

    /// Takes what came in; true when nothing more comes.
    fn take_inbox(&mut self) -> bool {
        let mut inbox = self.mailbox.inbox.lock();
        self.waiting.append(&mut inbox.requests);
        inbox.closing
    }

    /// Announces a sleep, unless there is something to do first.
    fn prepare_to_sleep(&mut self, closing: bool) -> bool {
        let busy = !self.ready.is_empty() || !self.ring.completion().is_empty();
        if busy {
            return false;
        }
        if closing {
            // Only completions are waited for.
            return true;
        }
        if !self.wake_armed {
            return false;
        }
        self.mailbox.sleeping.store(true, Ordering::SeqCst);
        let full = self.is_full();
        // With every slot taken there is nothing to do with new requests.
        let inbox = self.mailbox.inbox.lock();
        full || inbox.requests.is_empty() && !inbox.closing
    }

    /// Whether there is no room for the completion of one more.
    fn is_full(&self) -> bool {
        self.in_flight + 1 >= COMPLETION_ENTRIES as usize
    }

    fn fill_slots(&mut self) {
        while !self.is_full() {
            let Some((request, seat)) = self.waiting.pop_front() else {
                return;
            };
            let slot = Slot {
                request,
                seat,
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
            let mut slot = self.slots[index]
                .take()
                .expect("a completion belongs to a slot in use");
            let progress = match result {
                count @ 0.. => slot.request.on_result(Ok(count as usize)),
                error => match Errno::from_raw_os_error(-error) {
                    // It would have to wait here.
                    Errno::AGAIN => Progress::Elsewhere,
                    Errno::OPNOTSUPP => {
                        slot.seat.blocks.store(true, Ordering::Relaxed);
                        Progress::Elsewhere
                    }
                    error => slot.request.on_result(Err(error)),
                },
            };
            if matches!(progress, Progress::More) && slot.request.direct {
                self.slots[index] = Some(slot);
                self.ready.push_back(index);
                continue;
            }
            self.free.push(index);
            self.in_flight -= 1;
            let Slot { request, seat, .. } = slot;
            seat.in_flight.fetch_sub(1, Ordering::Relaxed);
            match progress {
                Progress::Finished(result) => request.finish(result),
                Progress::More | Progress::Elsewhere => blocking::submit(&seat.lane, request),
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
        for (request, seat) in self.waiting.drain(..).chain(queued) {
            blocking::submit(&seat.lane, request);
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
                .rw_flags(libc::RWF_NOWAIT)
                .build()
        }
        Action::Write { parts, done, .. } => {
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
                    .rw_flags(libc::RWF_NOWAIT)
                    .build(),
                several => opcode::Writev::new(file, several.as_ptr().cast(), several.len() as u32)
                    .offset(offset)
                    .rw_flags(libc::RWF_NOWAIT)
                    .build(),
            }
        }
        // They do not come here, see `Ring::submit`.
        Action::Flush | Action::PunchHole { .. } | Action::BlockDiscard { .. } => {
            opcode::Nop::new().build()
        }
    }
}
