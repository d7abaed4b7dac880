//! Aligned memory that the kernel fills, recycled.
//!
//! Direct I/O wants aligned addresses. And big buffers are dear to get: the allocator takes
//! them from the kernel page by page and gives them back at once, which costs more than the
//! copy of the data into them. So freed buffers of [`RECYCLED_BYTES_MIN`] and more are kept, up to
//! [`KEPT_BYTES_MAX`] in total for the process, or less ([`keep_at_most`]), and the next one of
//! about that size takes one; what nobody took for a while is given back ([`give_back_unused`]).
//!
//! Where copies of a size are wanted faster than such buffers come back, a thread of its own gets
//! some in advance ([`READY_BYTES`]), with pages, so that who copies does not wait for each page.
//!
//! Fresh memory is not cleared: the kernel mostly fills all of it. How much of it holds something
//! is kept track of, and only that can be seen; what a recycled buffer held before is never shown,
//! as only what was filled is.

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::collections::BTreeMap;
use std::ptr::NonNull;
use std::sync::OnceLock;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use bytes::Bytes;
use parking_lot::Mutex;
use rustix::mm::{Advice, madvise};

/// Alignment of big buffers: a page, which suits direct I/O on every device.
pub(super) const ALIGN_BYTES: usize = 4096;
/// Alignment of small ones: a sector.
const SMALL_ALIGN_BYTES: usize = 512;
/// Smallest buffer that is kept for reuse.
const RECYCLED_BYTES_MIN: usize = 16 << 10;
/// Most that is kept for reuse.
const KEPT_BYTES_MAX: usize = 128 << 20;
/// Smallest buffer whose pages are asked for at once, rather than one by one when they are touched.
const POPULATED_BYTES_MIN: usize = 64 << 10;
/// Smallest buffer of which some are got in advance.
const READY_BYTES_MIN: usize = 128 << 10;
/// So much of a size that is copied into is got in advance.
const READY_BYTES: usize = 32 << 20;

/// Memory of one allocation.
struct Memory {
    start: NonNull<u8>,
    layout: Layout,
    /// So many bytes from the start have been stored some time.
    initialised: usize,
}

// SAFETY: it owns its memory alone.
unsafe impl Send for Memory {}
// SAFETY: as above; shared references only read.
unsafe impl Sync for Memory {}

impl Memory {
    fn new(layout: Layout) -> Self {
        // SAFETY: no layout here has size zero, see `layout_for`.
        let memory = unsafe { alloc(layout) };
        match NonNull::new(memory) {
            Some(start) => Memory {
                start,
                layout,
                initialised: 0,
            },
            None => handle_alloc_error(layout),
        }
    }

    /// New memory that has its pages, for somebody who is going to store all of it.
    fn populated(layout: Layout) -> Self {
        let memory = Memory::new(layout);
        if layout.size() >= POPULATED_BYTES_MIN {
            // SAFETY: whole pages (`layout_for`) of memory that was just allocated and belongs to
            // nobody else; what they hold stays as it is. Old kernels do not know this advice
            // (before 5.14), and do nothing.
            let _ = unsafe {
                let start = memory.start.as_ptr().cast();
                madvise(start, layout.size(), Advice::LinuxPopulateWrite)
            };
        }
        memory
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this very layout.
        unsafe { dealloc(self.start.as_ptr(), self.layout) }
    }
}

/// Freed buffers, by size.
struct Kept {
    by_size: BTreeMap<usize, Vec<Memory>>,
    total_bytes: usize,
    /// What `total_bytes` may be.
    most_bytes: usize,
    /// The least that `total_bytes` was since [`give_back_unused`] looked.
    least_bytes: usize,
}

static KEPT: Mutex<Kept> = Mutex::new(Kept {
    by_size: BTreeMap::new(),
    total_bytes: 0,
    most_bytes: KEPT_BYTES_MAX,
    least_bytes: 0,
});

impl Kept {
    fn take(&mut self, size: usize) -> Option<Memory> {
        let memory = self.by_size.get_mut(&size).and_then(Vec::pop)?;
        self.total_bytes -= size;
        self.least_bytes = self.least_bytes.min(self.total_bytes);
        Some(memory)
    }

    /// Keeps it if there is room.
    fn put(&mut self, memory: Memory) -> Option<Memory> {
        let size = memory.layout.size();
        if self.total_bytes + size > self.most_bytes {
            return Some(memory);
        }
        self.total_bytes += size;
        self.by_size.entry(size).or_default().push(memory);
        None
    }

    /// Takes out one of the size that is kept most of.
    fn take_fullest(&mut self, but: Option<usize>) -> Option<Memory> {
        let fullest = self
            .by_size
            .iter()
            .max_by_key(|(size, stored)| **size * stored.len())
            .map(|(size, _)| *size)?;
        if but == Some(fullest) {
            return None;
        }
        self.take(fullest)
    }

    fn bytes_of(&self, size: usize) -> usize {
        self.by_size.get(&size).map_or(0, |kept| kept.len() * size)
    }
}

/// Bytes that are kept for reuse, and how many may be.
pub(super) fn kept_bytes() -> (usize, usize) {
    let kept = KEPT.lock();
    (kept.total_bytes, kept.most_bytes)
}

/// From now on no more is kept, nor more than [`KEPT_BYTES_MAX`].
pub(super) fn keep_at_most(bytes: usize) {
    KEPT.lock().most_bytes = bytes.min(KEPT_BYTES_MAX);
}

/// Gives back to the system what nobody needed since this was called last.
pub(super) fn give_back_unused() {
    let mut left = {
        let mut kept = KEPT.lock();
        let total_bytes = kept.total_bytes;
        std::mem::replace(&mut kept.least_bytes, total_bytes)
    };
    while left > 0 {
        // One at a time, as freeing takes its time and must not hold up anybody.
        let Some(memory) = KEPT.lock().take_fullest(None) else {
            return;
        };
        left = left.saturating_sub(memory.layout.size());
    }
    // Taking these out was no need.
    let mut kept = KEPT.lock();
    kept.least_bytes = kept.total_bytes;
}

/// Asks for more buffers of this layout in advance, if the last request has been taken up.
fn get_ready(layout: Layout) {
    static REQUESTS: OnceLock<Option<SyncSender<Layout>>> = OnceLock::new();
    let requests = REQUESTS.get_or_init(|| {
        let (send, receive) = sync_channel(1);
        std::thread::Builder::new()
            .name("memory".to_owned())
            .spawn(move || prepare(&receive))
            .ok()
            .map(|_| send)
    });
    if let Some(requests) = requests {
        let _ = requests.try_send(layout);
    }
}

/// The thread that gets buffers in advance.
fn prepare(requests: &Receiver<Layout>) {
    while let Ok(layout) = requests.recv() {
        while KEPT.lock().bytes_of(layout.size()) < READY_BYTES {
            let memory = Memory::populated(layout);
            if KEPT.lock().put(memory).is_some() {
                break;
            }
        }
    }
}

/// The layout for a buffer of `length` bytes: sizes are rounded up by an eighth at most, so that
/// similar ones can stand in for each other.
fn layout_for(length: usize) -> Layout {
    let (size, align) = if length < ALIGN_BYTES {
        (length.max(1), SMALL_ALIGN_BYTES)
    } else {
        let step = (length.next_power_of_two() / 16).max(ALIGN_BYTES);
        (length.next_multiple_of(step), ALIGN_BYTES)
    };
    Layout::from_size_align(size, align).expect("an I/O is shorter than half of the address space")
}

/// A freed buffer of this size, if one is kept.
fn take_kept(layout: Layout) -> Option<Memory> {
    if layout.size() < RECYCLED_BYTES_MIN {
        return None;
    }
    KEPT.lock().take(layout.size())
}

/// Memory to copy into: recycled, or got in advance, or new.
fn take_to_fill(layout: Layout) -> Memory {
    let size = layout.size();
    if size < READY_BYTES_MIN {
        return take_kept(layout).unwrap_or_else(|| Memory::populated(layout));
    }
    let (found, left_bytes) = {
        let mut kept = KEPT.lock();
        (kept.take(size), kept.bytes_of(size))
    };
    if left_bytes < READY_BYTES / 2 {
        get_ready(layout);
    }
    found.unwrap_or_else(|| Memory::populated(layout))
}

/// Owned, aligned memory of a fixed length, of which the first `filled` bytes hold data.
pub(super) struct AlignedBuffer {
    /// Present until dropped.
    memory: Option<Memory>,
    length: usize,
    /// No more than what is initialised of the memory.
    filled: usize,
}

impl AlignedBuffer {
    fn of(memory: Memory, length: usize) -> Self {
        AlignedBuffer {
            memory: Some(memory),
            length,
            filled: 0,
        }
    }

    /// A buffer of `length` bytes, none of them filled.
    pub(super) fn with_length(length: usize) -> Self {
        let layout = layout_for(length);
        let memory = take_kept(layout).unwrap_or_else(|| Memory::new(layout));
        AlignedBuffer::of(memory, length)
    }

    /// A buffer of `length` bytes, none of them filled, for somebody who is going to copy into it.
    pub(super) fn with_room(length: usize) -> Self {
        AlignedBuffer::of(take_to_fill(layout_for(length)), length)
    }

    /// A buffer that holds a copy of `data`.
    pub(super) fn copy_of(data: &[u8]) -> Self {
        let mut buffer = AlignedBuffer::with_room(data.len());
        buffer.append(data);
        buffer
    }

    /// A buffer that holds the concatenation of `parts`.
    pub(super) fn gather(parts: &[Bytes]) -> Self {
        let length = parts.iter().map(Bytes::len).sum();
        let mut buffer = AlignedBuffer::with_room(length);
        for part in parts {
            buffer.append(part);
        }
        buffer
    }

    /// Copies `data` behind what is filled.
    pub(super) fn append(&mut self, data: &[u8]) {
        assert!(data.len() <= self.length - self.filled);
        // SAFETY: `length` bytes from `start` are allocated, and owned by `self`, which is borrowed
        // mutably; `data` fits behind the first `filled` of them, and so they do not overlap. All
        // that is said to be filled then has been stored.
        unsafe {
            let target = self.start().as_ptr().add(self.filled);
            target.copy_from_nonoverlapping(data.as_ptr(), data.len());
            self.assume_filled(data.len());
        }
    }

    /// Puts `count` zeros behind what is filled.
    pub(super) fn append_zeros(&mut self, count: usize) {
        assert!(count <= self.length - self.filled);
        // SAFETY: as in `append`; what is recycled may hold anything, so the zeros are stored.
        unsafe {
            self.start().as_ptr().add(self.filled).write_bytes(0, count);
            self.assume_filled(count);
        }
    }

    /// Forgets what is filled behind the first `length` bytes.
    pub(super) fn truncate(&mut self, length: usize) {
        self.filled = self.filled.min(length);
    }

    /// What is filled.
    pub(super) fn filled_mut(&mut self) -> &mut [u8] {
        // SAFETY: `filled` bytes from `start` are allocated, have been stored, and are owned by
        // `self`, which is borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.start().as_ptr(), self.filled) }
    }

    /// How many bytes it has room for.
    pub(super) fn capacity(&self) -> usize {
        self.length
    }

    /// Hands over what is filled, without a copy, however much room there is behind it.
    pub(super) fn into_filled(mut self) -> Bytes {
        self.length = self.filled;
        self.into_bytes()
    }

    fn memory(&mut self) -> &mut Memory {
        self.memory
            .as_mut()
            .expect("a buffer has its memory until it is dropped")
    }

    fn start(&self) -> NonNull<u8> {
        self.memory
            .as_ref()
            .expect("a buffer has its memory until it is dropped")
            .start
    }

    /// How many bytes are filled.
    pub(super) fn filled(&self) -> usize {
        self.filled
    }

    /// Where the kernel may store the next byte, and how many it may store from there.
    pub(super) fn unfilled(&self) -> (*mut u8, usize) {
        // SAFETY: `filled <= length`, and `length` bytes from `start` are allocated.
        let next = unsafe { self.start().as_ptr().add(self.filled) };
        (next, self.length - self.filled)
    }

    /// The part that is not filled yet.
    pub(super) fn unfilled_slice(&mut self) -> &mut [u8] {
        let (filled, length) = (self.filled, self.length);
        let memory = self.memory();
        // SAFETY: `filled <= initialised`, and `filled <= length`; `length` bytes from `start` are
        // allocated and owned by `self`, which is borrowed mutably. Those of them that were not
        // stored yet are zeroed first.
        unsafe {
            let start = memory.start.as_ptr();
            if memory.initialised < length {
                let missing = length - memory.initialised;
                start.add(memory.initialised).write_bytes(0, missing);
                memory.initialised = length;
            }
            std::slice::from_raw_parts_mut(start.add(filled), length - filled)
        }
    }

    /// Notes that `count` more bytes have been stored in [`Self::unfilled_slice`].
    pub(super) fn advance(&mut self, count: usize) {
        let initialised = self.memory().initialised;
        assert!(
            count <= self.length - self.filled && self.filled + count <= initialised,
            "only what was asked for is stored, and in the slice that was given"
        );
        self.filled += count;
    }

    /// Notes that `count` more bytes have been stored, be it by the kernel in [`Self::unfilled`].
    ///
    /// # Safety
    /// They have: the first `count` bytes behind those that were filled hold something.
    pub(super) unsafe fn assume_filled(&mut self, count: usize) {
        assert!(
            count <= self.length - self.filled,
            "the kernel never stores more than it was asked for"
        );
        self.filled += count;
        let filled = self.filled;
        let memory = self.memory();
        memory.initialised = memory.initialised.max(filled);
    }

    /// Hands the memory over, without a copy. The buffer must be full.
    pub(super) fn into_bytes(self) -> Bytes {
        assert_eq!(self.filled, self.length, "only a full buffer is handed on");
        Bytes::from_owner(self)
    }
}

impl AsRef<[u8]> for AlignedBuffer {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: `filled` bytes from `start` are allocated, have been stored, and are owned by
        // `self`.
        unsafe { std::slice::from_raw_parts(self.start().as_ptr(), self.filled) }
    }
}

impl Drop for AlignedBuffer {
    fn drop(&mut self) {
        let Some(memory) = self.memory.take() else {
            return;
        };
        let size = memory.layout.size();
        if size < RECYCLED_BYTES_MIN {
            return;
        }
        let mut kept = KEPT.lock();
        let Some(memory) = kept.put(memory) else {
            return;
        };
        // Make room by giving back buffers of the size that is kept most of, lest sizes that
        // nobody uses any more fill the store for good.
        let evicted = kept.take_fullest(Some(size));
        let refused = kept.put(memory);
        // What is given back to the allocator is freed without the lock.
        drop(kept);
        drop((evicted, refused));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gathers_aligned() {
        let parts = [
            Bytes::from(vec![1u8; 5000]),
            Bytes::new(),
            Bytes::from_static(b"end"),
        ];
        let buffer = AlignedBuffer::gather(&parts);
        assert_eq!(buffer.start().as_ptr() as usize % ALIGN_BYTES, 0);
        let bytes = buffer.into_bytes();
        assert_eq!(bytes[..5000], [1u8; 5000]);
        assert_eq!(&bytes[5000..], b"end");
    }

    #[test]
    fn copies_are_aligned_and_whole() {
        for length in [0, 1, 4096, 5000, 65_537, 1 << 20] {
            let data: Vec<u8> = (0..length).map(|at| (at % 251) as u8).collect();
            for _ in 0..3 {
                let buffer = AlignedBuffer::copy_of(&data);
                assert_eq!(buffer.start().as_ptr() as usize % SMALL_ALIGN_BYTES, 0);
                assert_eq!(buffer.into_bytes(), data);
            }
        }
    }

    #[test]
    fn what_was_not_stored_is_zero_or_not_seen() {
        for length in [100, 5000, 200_000, 3 << 20] {
            let mut buffer = AlignedBuffer::with_length(length);
            buffer.append(&[7; 50]);
            assert_eq!(buffer.as_ref(), [7; 50]);
            assert_eq!(buffer.unfilled().1, length - 50);
            buffer.unfilled_slice()[..10].fill(8);
            buffer.advance(10);
            assert_eq!(buffer.as_ref(), [&[7; 50][..], &[8; 10]].concat());
        }
        let fresh = Layout::from_size_align(1 << 20, ALIGN_BYTES).unwrap();
        let mut buffer = AlignedBuffer::of(Memory::new(fresh), 1 << 20);
        assert!(buffer.unfilled_slice().iter().all(|byte| *byte == 0));
    }

    #[test]
    #[should_panic(expected = "only what was asked for")]
    fn nothing_is_taken_for_stored_without_reason() {
        let memory = Memory::new(layout_for(1 << 20));
        AlignedBuffer::of(memory, 1 << 20).advance(1);
    }

    #[test]
    fn no_more_is_kept_than_is_to_be() {
        let mut kept = Kept {
            by_size: BTreeMap::new(),
            total_bytes: 0,
            most_bytes: 1 << 20,
            least_bytes: 0,
        };
        let mut put = || kept.put(Memory::new(layout_for(600_000))).is_none();
        assert!(put() && !put());
    }

    #[test]
    fn buffers_are_got_in_advance_and_given_back() {
        // A size that no other test here uses.
        let data = vec![1; 1_500_000];
        let size = layout_for(data.len()).size();
        let mut held = Vec::new();
        for round in 0.. {
            held.push(AlignedBuffer::copy_of(&data));
            if KEPT.lock().bytes_of(size) > 0 {
                break;
            }
            assert!(round < 1000, "nobody gets buffers in advance");
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        assert!(held.iter().all(|buffer| buffer.as_ref() == data));
        drop(held);
        // Other tests need some meanwhile, so it may take a few times.
        for _ in 0..1000 {
            give_back_unused();
            if KEPT.lock().bytes_of(size) == 0 {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        panic!("what nobody needs is kept");
    }

    #[test]
    fn an_empty_buffer_is_fine() {
        assert!(AlignedBuffer::with_length(0).into_bytes().is_empty());
    }

    #[test]
    fn sizes_grow_by_an_eighth_at_most() {
        for length in [
            1,
            511,
            4095,
            4096,
            4097,
            65_537,
            131_072,
            131_073,
            (16 << 20) - 1,
        ] {
            let layout = layout_for(length);
            assert!(layout.size() >= length);
            assert!(layout.size() <= (length + length / 8).max(length + ALIGN_BYTES));
        }
        assert_eq!(layout_for(131_072).size(), 131_072);
    }

    #[test]
    fn recycled_buffers_show_nothing_of_their_past() {
        for round in 0..100 {
            let mut buffers: Vec<AlignedBuffer> = (0..20)
                .map(|_| AlignedBuffer::with_length(300_000 + round * 1000))
                .collect();
            for buffer in &mut buffers {
                assert!(buffer.as_ref().is_empty());
                buffer.unfilled_slice().fill(round as u8);
                buffer.advance(300_000);
                assert!(buffer.as_ref().iter().all(|byte| *byte == round as u8));
            }
        }
        assert!(KEPT.lock().total_bytes <= KEPT_BYTES_MAX);
    }
}
