//! Aligned memory that the kernel fills: direct I/O wants aligned addresses, and a read buffer
//! that is about to be overwritten whole need not be zeroed first.

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::ptr::NonNull;

use bytes::Bytes;

/// Alignment of big buffers: a page, which suits direct I/O on every device.
pub(super) const ALIGN_BYTES: usize = 4096;

/// Owned, aligned memory of a fixed length, of which the first `filled` bytes are initialised.
pub(super) struct AlignedBuffer {
    start: NonNull<u8>,
    layout: Layout,
    length: usize,
    filled: usize,
}

// SAFETY: the buffer owns its memory, and hands out no shared mutable access.
unsafe impl Send for AlignedBuffer {}
// SAFETY: as above; `&AlignedBuffer` only reads.
unsafe impl Sync for AlignedBuffer {}

impl AlignedBuffer {
    /// A buffer of `length` bytes, none of them initialised.
    pub(super) fn with_length(length: usize) -> Self {
        let align = if length >= ALIGN_BYTES {
            ALIGN_BYTES
        } else {
            512
        };
        let layout = Layout::from_size_align(length.max(1), align)
            .expect("an I/O is shorter than half of the address space");
        // SAFETY: the layout's size is not zero.
        let memory = unsafe { alloc(layout) };
        let Some(start) = NonNull::new(memory) else {
            handle_alloc_error(layout)
        };
        AlignedBuffer {
            start,
            layout,
            length,
            filled: 0,
        }
    }

    /// A buffer that holds the concatenation of `parts`.
    pub(super) fn gather(parts: &[Bytes]) -> Self {
        let length = parts.iter().map(Bytes::len).sum();
        let mut buffer = AlignedBuffer::with_length(length);
        for part in parts {
            // SAFETY: `filled` plus what remains of `parts` is `length`, so the target lies within
            // the allocation, which is new and therefore does not overlap `part`.
            unsafe {
                std::ptr::copy_nonoverlapping(
                    part.as_ptr(),
                    buffer.start.as_ptr().add(buffer.filled),
                    part.len(),
                );
            }
            buffer.filled += part.len();
        }
        buffer
    }

    /// Bytes in the buffer, filled or not.
    pub(super) fn len(&self) -> usize {
        self.length
    }

    /// Where the kernel may store the next byte, and how many it may store from there.
    pub(super) fn unfilled(&mut self) -> (*mut u8, usize) {
        // SAFETY: `filled <= length`, so the address is within or one past the allocation.
        let at = unsafe { self.start.as_ptr().add(self.filled) };
        (at, self.length - self.filled)
    }

    /// Notes that the kernel stored `count` more bytes.
    ///
    /// # Safety
    ///
    /// The `count` bytes from [`AlignedBuffer::unfilled`] have been initialised.
    pub(super) unsafe fn advance(&mut self, count: usize) {
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
        // SAFETY: the first `filled` bytes are initialised and owned by `self`.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.filled) }
    }
}

impl Drop for AlignedBuffer {
    fn drop(&mut self) {
        // SAFETY: allocated in `with_length` with this very layout.
        unsafe { dealloc(self.start.as_ptr(), self.layout) }
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
        assert_eq!(buffer.start.as_ptr() as usize % ALIGN_BYTES, 0);
        assert_eq!(buffer.len(), 5003);
        let bytes = buffer.into_bytes();
        assert_eq!(bytes[..5000], [1u8; 5000]);
        assert_eq!(&bytes[5000..], b"end");
    }

    #[test]
    fn an_empty_buffer_is_fine() {
        assert!(AlignedBuffer::with_length(0).into_bytes().is_empty());
    }
}
