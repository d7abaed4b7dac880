//! Where memory comes from: mimalloc, but for the very big.
//!
//! Blocks of 128 KiB and more come and go all the time. The C library's allocator takes each from
//! the kernel and gives it back, page by page, or trims its heap after each file that is deleted;
//! mimalloc does not.
//!
//! Each thread that reads FUSE requests has a zeroed buffer of 16 MiB and a page, of which it
//! mostly needs little. From an allocator that has such memory again it would be cleared, and so be
//! there whole: for each mount 64 MiB. What is bigger than the biggest block is therefore mapped by
//! itself, and costs what is touched of it.
//!
//! Requests may hold keys and passwords. Buffers of connections are other people's (HTTP, TLS, the
//! reader of JSON), who free them with what was in them. What is freed while such a connection is
//! worked at is therefore overwritten first ([`wipe_freed`]), and so is what is left on the stack:
//! futures are moved there before they are on the heap.

use std::alloc::{GlobalAlloc, Layout};
use std::cell::Cell;
use std::pin::Pin;
use std::ptr::null_mut;
use std::task::{Context, Poll};

use mimalloc::MiMalloc;
use rustix::mm::{MapFlags, MremapFlags, ProtFlags, mmap_anonymous, mremap, munmap};

/// Blocks have at most so many bytes (`SPA_MAXBLOCKSIZE`); what is bigger is mapped.
const BLOCK_BYTES_MAX: usize = 16 << 20;
/// How far down what was on the stack is overwritten, in bytes.
const STACK_BYTES: usize = 256 << 10;
/// What mapped memory is aligned to at least.
const PAGE_BYTES: usize = 4096;

thread_local! {
    /// Whether what this thread frees is overwritten.
    static WIPES: Cell<bool> = const { Cell::new(false) };
}

/// As long as there is one, what its thread frees is overwritten.
struct Wiping {
    before: bool,
}

impl Wiping {
    fn begin() -> Self {
        Self {
            before: WIPES.replace(true),
        }
    }
}

impl Drop for Wiping {
    fn drop(&mut self) {
        WIPES.set(self.before);
    }
}

/// Overwrites what calls that have returned left on the stack.
#[inline(never)]
fn wipe_stack() {
    let mut waste = [0_u8; STACK_BYTES];
    std::hint::black_box(&mut waste);
}

/// A future of which all memory that it frees is overwritten with zeros, whether it runs or is
/// dropped, and after each poll what that left on the stack. The tasks that it begins are not part
/// of it. It takes [`Allocator`].
#[derive(Debug)]
pub struct WipeFreed<F> {
    /// None once it has ended.
    future: Option<Pin<Box<F>>>,
}

/// Has what a future frees overwritten.
pub fn wipe_freed<F: Future>(future: F) -> WipeFreed<F> {
    WipeFreed {
        future: Some(Box::pin(future)),
    }
}

impl<F: Future> Future for WipeFreed<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let _wiping = Wiping::begin();
        let Some(future) = &mut self.future else {
            return Poll::Pending;
        };
        let polled = future.as_mut().poll(context);
        if polled.is_ready() {
            self.future = None;
        }
        wipe_stack();
        polled
    }
}

impl<F> Drop for WipeFreed<F> {
    fn drop(&mut self) {
        if self.future.is_some() {
            let _wiping = Wiping::begin();
            self.future = None;
            wipe_stack();
        }
    }
}

unsafe extern "C" {
    /// Gives back what is free of the calling thread's memory (`mi_collect`, mimalloc.h).
    fn mi_collect(force: bool);
    /// Leaves what the calling thread has to all threads (`mi_thread_done`, mimalloc.h).
    fn mi_thread_done();
    /// Has the calling thread begin anew, where it does not have any (`mi_thread_init`,
    /// mimalloc.h).
    fn mi_thread_init();
}

/// Gives memory back to the system that is free of what the calling thread had, and leaves the rest
/// to all threads, as a thread does that ends: for one that is going to rest. A page that has an
/// owner returns to it alone, however long it rests; of what is left, whoever frees the last block
/// of a page frees the page. So what a thread made and others drop later (nodes of a filesystem
/// that is not used any more) costs nothing then.
pub fn give_back_freed() {
    // SAFETY: these touch nothing but the allocator's own notes and what is free; blocks that are
    // in use stay where they are, and any thread may free them. Each may be called by any thread at
    // any time, whether it has memory of mimalloc or not; it has notes of its own again at the end,
    // so that what the thread's end finds is valid.
    unsafe {
        mi_collect(true);
        mi_thread_done();
        mi_thread_init();
    }
}

/// Gives memory back to the system that is free, of whatever thread it was, but what threads keep.
pub fn give_back_free() {
    // SAFETY: it touches nothing but what is free, and any thread may call it at any time.
    unsafe { mi_collect(true) }
}

/// The allocator of the process: to be its `#[global_allocator]`.
#[derive(Debug, Clone, Copy, Default)]
pub struct Allocator;

fn is_mapped(layout: &Layout) -> bool {
    layout.size() > BLOCK_BYTES_MAX && layout.align() <= PAGE_BYTES
}

/// New pages, which are zero.
fn map(length: usize) -> *mut u8 {
    let access = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new private mapping where the kernel likes, which touches no memory that anybody
    // has.
    let mapped = unsafe { mmap_anonymous(null_mut(), length, access, MapFlags::PRIVATE) };
    mapped.map_or(null_mut(), <*mut _>::cast)
}

// SAFETY: memory of one layout always comes from the same place and goes back there, as `is_mapped`
// depends on the layout alone; what mimalloc promises holds for its part, and the kernel's mappings
// are zeroed, of page alignment and of the size asked for.
unsafe impl GlobalAlloc for Allocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        match is_mapped(&layout) {
            true => map(layout.size()),
            // SAFETY: the caller's promise.
            false => unsafe { MiMalloc.alloc(layout) },
        }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        match is_mapped(&layout) {
            true => map(layout.size()),
            // SAFETY: the caller's promise.
            false => unsafe { MiMalloc.alloc_zeroed(layout) },
        }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        match is_mapped(&layout) {
            true => {
                // SAFETY: mapped with this length, and the caller gives it up. Where unmapping
                // fails (the process has too many mappings), the memory stays lost.
                let _ = unsafe { munmap(memory.cast(), layout.size()) };
            }
            // SAFETY: the caller's promise; it came from there, and has so many bytes.
            false => unsafe {
                if WIPES.get() {
                    memory.write_bytes(0, layout.size());
                    // It is not to be left out as what nobody reads.
                    std::hint::black_box(memory);
                }
                MiMalloc.dealloc(memory, layout);
            },
        }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, length: usize) -> *mut u8 {
        // SAFETY: the caller promises that `length` is valid for this alignment.
        let wanted = unsafe { Layout::from_size_align_unchecked(length, layout.align()) };
        match (is_mapped(&layout), is_mapped(&wanted)) {
            // SAFETY: the caller's promise; it came from there.
            (false, false) if !WIPES.get() => unsafe { MiMalloc.realloc(memory, layout, length) },
            (true, true) => {
                let may_move = MremapFlags::MAYMOVE;
                // SAFETY: mapped with this length, and nobody but the caller refers to it.
                let mapped = unsafe { mremap(memory.cast(), layout.size(), length, may_move) };
                mapped.map_or(null_mut(), <*mut _>::cast)
            }
            // SAFETY: two allocations do not overlap, and both have the bytes that are copied;
            // where there is no new one the old one stays the caller's.
            _ => unsafe {
                let new = self.alloc(wanted);
                if !new.is_null() {
                    new.copy_from_nonoverlapping(memory, layout.size().min(length));
                    self.dealloc(memory, layout);
                }
                new
            },
        }
    }
}

/// [`Allocator`], which counts how often each thread asks it for memory: for tests that bound what
/// an operation takes.
#[derive(Debug, Clone, Copy, Default)]
pub struct CountingAllocator;

thread_local! {
    /// How often this thread asked for memory.
    static ASKED: Cell<u64> = const { Cell::new(0) };
}

impl CountingAllocator {
    /// How often this thread has asked for memory: also for more of what it had.
    pub fn asked() -> u64 {
        ASKED.get()
    }

    fn count() {
        ASKED.set(ASKED.get() + 1);
    }
}

// SAFETY: all is the other allocator's, which keeps these promises; counting allocates nothing.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        Self::count();
        // SAFETY: the caller's promise.
        unsafe { Allocator.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        Self::count();
        // SAFETY: the caller's promise.
        unsafe { Allocator.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise; it came from there.
        unsafe { Allocator.dealloc(memory, layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, length: usize) -> *mut u8 {
        Self::count();
        // SAFETY: the caller's promise; it came from there.
        unsafe { Allocator.realloc(memory, layout, length) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;

    #[global_allocator]
    static ALLOCATOR: Allocator = Allocator;

    const BIG: usize = BLOCK_BYTES_MAX + PAGE_BYTES;

    #[test]
    fn growing_and_shrinking_over_the_limit_keeps_what_is_stored() {
        let mut bytes: Vec<u8> = (0..100_000u32).map(|at| (at % 251) as u8).collect();
        let is_kept = |bytes: &[u8]| {
            let mut all = bytes[..100_000].iter().enumerate();
            all.all(|(at, byte)| *byte == (at % 251) as u8)
        };
        for length in [BIG, 3 * BIG, BIG + 1, 100_000, 2 * BIG, 200_000] {
            let before = bytes.len();
            bytes.resize(length, 7);
            bytes.shrink_to_fit();
            assert_eq!(bytes.capacity(), length);
            assert!(is_kept(&bytes), "{before} to {length}");
            assert!(bytes[before.min(length)..].iter().all(|byte| *byte == 7));
        }
    }

    /// What is in this process's memory there, whoever has it.
    fn bytes_at(address: usize, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        let memory = std::fs::File::open("/proc/self/mem").expect("of this process");
        memory
            .read_exact_at(&mut bytes, address as u64)
            .expect("mapped");
        bytes
    }

    #[tokio::test]
    async fn what_a_future_frees_is_overwritten_whether_it_ends_or_not() {
        const LENGTH: usize = 5000;
        let secret = || vec![0xa5u8; LENGTH];
        let left = |address| {
            let bytes = bytes_at(address, LENGTH);
            bytes.iter().filter(|byte| **byte == 0xa5).count()
        };
        let ended = wipe_freed(async {
            let mut secret = secret();
            let first = secret.as_ptr().addr();
            secret.reserve_exact(9 * LENGTH);
            (first, secret.as_ptr().addr())
        });
        let (first, second) = ended.await;
        // A list of what is free may be in it.
        assert!(left(first) < 16 && left(second) < 16);

        let (tell, told) = tokio::sync::oneshot::channel();
        let mut dropped = wipe_freed(async move {
            let secret = secret();
            tell.send(secret.as_ptr().addr()).expect("heard");
            std::future::pending::<()>().await;
            drop(secret);
        });
        assert!(futures::poll!(&mut dropped).is_pending());
        let address = told.await.expect("told");
        assert_eq!(left(address), LENGTH);
        drop(dropped);
        assert!(left(address) < 16);
        assert!(!WIPES.get());
    }

    #[test]
    fn a_thread_that_rests_gives_back_what_others_freed() {
        const LENGTH: usize = 10_000;
        const BLOCKS: usize = 20;
        let (give, taken) = std::sync::mpsc::channel();
        let (tell, told) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            // Less than what the allocator gives a thread at a time for blocks of one size.
            let blocks: Vec<_> = (0..BLOCKS).map(|_| vec![0xa5u8; LENGTH]).collect();
            give.send(blocks).expect("taken");
            told.recv().expect("told");
            give_back_freed();
        });
        let blocks: Vec<Vec<u8>> = taken.recv().expect("given");
        let places: Vec<_> = blocks.iter().map(|block| block.as_ptr().addr()).collect();
        drop(blocks);
        let left = || {
            let is_there = |place: &&usize| bytes_at(**place, LENGTH)[LENGTH / 2] == 0xa5;
            places.iter().filter(is_there).count()
        };
        assert!(left() > BLOCKS / 2, "of {BLOCKS}: {}", left());
        tell.send(()).expect("heard");
        thread.join().expect("no panic");
        assert!(left() < BLOCKS / 2, "of {BLOCKS}: {}", left());
    }

    #[test]
    fn what_others_free_of_a_thread_that_rests_already_comes_back() {
        const LENGTH: usize = 10_000;
        const BLOCKS: usize = 20;
        let (give, taken) = std::sync::mpsc::channel();
        let (tell, told) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            let blocks: Vec<_> = (0..BLOCKS).map(|_| vec![0xa5u8; LENGTH]).collect();
            give_back_freed();
            give.send(blocks).expect("taken");
            told.recv().expect("told");
            // It has memory again as before.
            assert_eq!(
                vec![7u8; LENGTH].iter().filter(|byte| **byte == 7).count(),
                LENGTH
            );
        });
        let blocks: Vec<Vec<u8>> = taken.recv().expect("given");
        let places: Vec<_> = blocks.iter().map(|block| block.as_ptr().addr()).collect();
        drop(blocks);
        give_back_free();
        let is_there = |place: &&usize| bytes_at(**place, LENGTH)[LENGTH / 2] == 0xa5;
        let left = places.iter().filter(is_there).count();
        assert!(left < BLOCKS / 2, "of {BLOCKS}: {left}");
        tell.send(()).expect("heard");
        thread.join().expect("no panic");
    }

    #[test]
    fn what_is_not_touched_of_a_big_buffer_costs_nothing() {
        let resident_bytes = || {
            let text = std::fs::read_to_string("/proc/self/statm").expect("of this process");
            let pages = text.split(' ').nth(1).map(str::parse::<usize>);
            pages.expect("a number").expect("a number") * PAGE_BYTES
        };
        let buffers = || (0..16).map(|_| vec![0u8; BIG]).collect::<Vec<_>>();
        let mut first = buffers();
        first.iter_mut().for_each(|buffer| buffer.fill(1));
        drop(first);
        let before = resident_bytes();
        let again = buffers();
        let more = resident_bytes().saturating_sub(before);
        assert!(more < 4 * BIG, "{more} bytes");
        assert!(
            again
                .iter()
                .all(|buffer| buffer.iter().all(|byte| *byte == 0))
        );
    }
}
