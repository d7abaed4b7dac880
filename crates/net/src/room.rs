//! Memory that a request is received in.

use bytes::{Buf, BytesMut};

/// What whoever stores content wants it aligned to, so as to take it where it is: a page, which
/// suits direct I/O on every device.
const PAGE_BYTES: usize = 4096;

/// Content from this size on is worth a place of its own ([`room_for`]), in bytes. What is shorter
/// is copied in less time than it takes to make one.
pub const PLACED_BYTES_MIN: usize = 16 << 10;

/// Empty room for the `length_bytes` of a request whose content begins `content_at` bytes into it:
/// that will begin with a page, so that a device that is written directly needs no copy of it. As
/// long as no more comes into it, it stays where it is. It costs a page more than the request has
/// bytes.
pub fn room_for(length_bytes: usize, content_at: usize) -> BytesMut {
    let mut room = BytesMut::with_capacity(length_bytes + PAGE_BYTES);
    let at = (room.as_ptr() as usize).wrapping_add(content_at);
    let gap = at.wrapping_neg() % PAGE_BYTES;
    room.resize(gap, 0);
    room.advance(gap);
    room
}

/// Gives a request of `length_bytes`, of which `received` has the beginning, such room as
/// [`room_for`] makes, unless it has that: then nothing is moved.
pub fn place(received: &mut BytesMut, length_bytes: usize, content_at: usize) {
    let at = (received.as_ptr() as usize).wrapping_add(content_at);
    if at.is_multiple_of(PAGE_BYTES) && received.capacity() >= length_bytes {
        return;
    }
    let mut room = room_for(length_bytes, content_at);
    room.extend_from_slice(received);
    *received = room;
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: content lies at the beginning of a page when all of the request is there, wherever in
    /// it the content begins.
    #[test]
    fn content_begins_with_a_page() {
        for content_at in [0, 1, 48, 136, 4095, 4096, 5000] {
            let length = content_at + (64 << 10);
            let mut room = room_for(length, content_at);
            assert!(room.is_empty() && room.capacity() >= length);
            // In pieces, as it comes.
            while room.len() < length {
                let piece = (length - room.len()).min(1000);
                room.extend_from_slice(&[7; 1000][..piece]);
            }
            let content = room.freeze().slice(content_at..);
            assert_eq!(content.as_ptr() as usize % PAGE_BYTES, 0, "{content_at}");
            assert_eq!(content, vec![7; 64 << 10]);
        }
    }
    /// Goal: what has begun to come is moved once at most.
    #[test]
    fn a_request_gets_its_place_once() {
        let mut received = BytesMut::from(&[1; 100][..]);
        place(&mut received, 70_000, 48);
        let at = received.as_ptr();
        assert_eq!((at as usize + 48) % PAGE_BYTES, 0);
        assert_eq!(received, [1; 100][..]);
        received.extend_from_slice(&[2; 1000]);
        place(&mut received, 70_000, 48);
        assert_eq!(received.as_ptr(), at);
        received.extend_from_slice(&vec![3; 70_000 - 1100]);
        assert_eq!(received.as_ptr(), at);
        // Of another request it is not the place.
        place(&mut received, 70_000, 50);
        assert_eq!((received.as_ptr() as usize + 50) % PAGE_BYTES, 0);
        assert_eq!(received.len(), 70_000);
    }
}
