//! Aligned memory that the kernel fills, recycled.
//!
//! Direct I/O wants aligned addresses. And big buffers are dear to get: the allocator takes
//! them from the kernel page by page and gives them back at once, which costs more than the
//! copy of the data into them. So freed buffers of [`RECYCLED_BYTES_MIN`] and more are kept, up to
//! [`KEPT_BYTES_MAX`] in total for the process, and the next read of about that size takes one.
//!
//! Memory is zeroed when it comes from the allocator, so that it is always initialised; what a
//! recycled buffer held before is never shown, as only what was filled is.

use std::alloc::{Layout, alloc, alloc_zeroed, dealloc, handle_alloc_error};
use std::collections::BTreeMap;
use std::ptr::NonNull;

use bytes::Bytes;
use parking_lot::Mutex;

/// Alignment of big buffers: a page, which suits direct I/O on every device.
pub(super) const ALIGN_BYTES: usize = 4096;
/// Alignment of small ones: a sector.
const SMALL_ALIGN_BYTES: usize = 512;
/// Smallest buffer that is kept for reuse.
const RECYCLED_BYTES_MIN: usize = 16 << 10;
/// Most that is kept for reuse.
const KEPT_BYTES_MAX: usize = 64 << 20;

/// Memory of one allocation, initialised.
struct Memory {
    start: NonNull<u8>,
    layout: Layout,
}

// SAFETY: it owns its memory alone.
unsafe impl Send for Memory {}
// SAFETY: as above; shared references only read.
unsafe impl Sync for Memory {}

impl Memory {
    fn new(layout: Layout) -> Self {
        // SAFETY: no layout here has size zero, see `layout_for`.
        let memory = unsafe { alloc_zeroed(layout) };
        match NonNull::new(memory) {
            Some(start) => Memory { start, layout },
            None => handle_alloc_error(layout),
        }
    }
}

impl Memory {
    /// Memory that starts with a copy of `data`, zeros behind.
    fn copy_of(data: &[u8], layout: Layout) -> Self {
        assert!(data.len() <= layout.size());
        // SAFETY: no layout here has size zero, see `layout_for`.
        let memory = unsafe { alloc(layout) };
        let Some(start) = NonNull::new(memory) else {
            handle_alloc_error(layout)
        };
        // SAFETY: `layout.size()` bytes from `start` were just allocated and belong to nobody else; `data` is no
        // longer than that. Every byte is written, so all are initialised.
        unsafe {
            start
                .as_ptr()
                .copy_from_nonoverlapping(data.as_ptr(), data.len());
            let rest = layout.size() - data.len();
            start.as_ptr().add(data.len()).write_bytes(0, rest);
        }
        Memory { start, layout }
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
}

static KEPT: Mutex<Kept> = Mutex::new(Kept {
    by_size: BTreeMap::new(),
    total_bytes: 0,
});

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
    let mut kept = KEPT.lock();
    let memory = kept.by_size.get_mut(&layout.size()).and_then(Vec::pop)?;
    kept.total_bytes -= layout.size();
    Some(memory)
}

/// Owned, aligned memory of a fixed length, of which the first `filled` bytes hold data.
pub(super) struct AlignedBuffer {
    /// Present until dropped.
    memory: Option<Memory>,
    length: usize,
    filled: usize,
}

impl AlignedBuffer {
    /// A buffer of `length` bytes, none of them filled.
    pub(super) fn with_length(length: usize) -> Self {
        let layout = layout_for(length);
        let recycled = take_kept(layout);
        AlignedBuffer {
            memory: Some(recycled.unwrap_or_else(|| Memory::new(layout))),
            length,
            filled: 0,
        }
    }

    /// A buffer that holds a copy of `data`.
    pub(super) fn copy_of(data: &[u8]) -> Self {
        let layout = layout_for(data.len());
        if let Some(memory) = take_kept(layout) {
            let mut buffer = AlignedBuffer {
                memory: Some(memory),
                length: data.len(),
                filled: 0,
            };
            buffer.unfilled_slice().copy_from_slice(data);
            buffer.advance(data.len());
            return buffer;
        }
        AlignedBuffer {
            memory: Some(Memory::copy_of(data, layout)),
            length: data.len(),
            filled: data.len(),
        }
    }

    /// A buffer that holds the concatenation of `parts`.
    pub(super) fn gather(parts: &[Bytes]) -> Self {
        let length = parts.iter().map(Bytes::len).sum();
        let mut buffer = AlignedBuffer::with_length(length);
        for part in parts {
            buffer.unfilled_slice()[..part.len()].copy_from_slice(part);
            buffer.advance(part.len());
        }
        buffer
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
    pub(super) fn unfilled(&mut self) -> (*mut u8, usize) {
        let slice = self.unfilled_slice();
        (slice.as_mut_ptr(), slice.len())
    }

    /// The part that is not filled yet.
    pub(super) fn unfilled_slice(&mut self) -> &mut [u8] {
        // SAFETY: `filled <= length`, and `length` bytes from `start` are allocated, initialised
        // and owned by `self`, which is borrowed mutably.
        unsafe {
            std::slice::from_raw_parts_mut(
                self.start().as_ptr().add(self.filled),
                self.length - self.filled,
            )
        }
    }

    /// Notes that `count` more bytes have been stored.
    pub(super) fn advance(&mut self, count: usize) {
        assert!(
            count <= self.length - self.filled,
            "the kernel never stores more than it was asked for"
        );
        self.filled += count;
    }

    /// Hands the memory over, without a copy. The buffer must be full.
    pub(super) fn into_bytes(self) -> Bytes {
        assert_eq!(self.filled, self.length, "only a full buffer is handed on");
        Bytes::from_owner(self)
    }
}

impl AsRef<[u8]> for AlignedBuffer {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: `filled` bytes from `start` are allocated, initialised and owned by `self`.
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
        if kept.total_bytes + size <= KEPT_BYTES_MAX {
            kept.total_bytes += size;
            kept.by_size.entry(size).or_default().push(memory);
            return;
        }
        // Make room by giving back buffers of the size that is kept most of, lest sizes that
        // nobody uses any more fill the store for good.
        let fullest = kept
            .by_size
            .iter()
            .max_by_key(|(size, stored)| **size * stored.len())
            .map(|(size, _)| *size);
        let evicted = fullest
            .filter(|fullest| *fullest != size)
            .and_then(|fullest| {
                let evicted = kept.by_size.get_mut(&fullest).and_then(Vec::pop);
                if evicted.is_some() {
                    kept.total_bytes -= fullest;
                }
                evicted
            });
        if kept.total_bytes + size <= KEPT_BYTES_MAX {
            kept.total_bytes += size;
            kept.by_size.entry(size).or_default().push(memory);
        }
        // What is given back to the allocator is freed without the lock.
        drop(kept);
        drop(evicted);
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
