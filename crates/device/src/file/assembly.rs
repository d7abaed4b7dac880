//! A write that is put together where it will be written from.
//!
//! What goes to a device directly must be in aligned memory, and in one piece. Who gathers a write
//! from small parts, and changes it after that (an intent log's block gets its checksum last),
//! would else gather it twice.

use bytes::Bytes;

use super::buffer::AlignedBuffer;

/// Bytes of a write that is being put together, in memory that direct I/O takes as it is.
pub struct WriteBuffer(AlignedBuffer);

impl WriteBuffer {
    /// An empty one, with room for so many bytes.
    pub fn with_capacity(bytes: usize) -> Self {
        WriteBuffer(AlignedBuffer::with_room(bytes))
    }

    /// How many bytes there are.
    pub fn len(&self) -> usize {
        self.0.filled()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies `data` behind what is there.
    pub fn append(&mut self, data: &[u8]) {
        self.make_room(self.len() + data.len());
        self.0.append(data);
    }

    /// Makes it `length` bytes long: cuts it off there, or puts zeros behind what is there.
    pub fn resize(&mut self, length: usize) {
        match length.checked_sub(self.len()) {
            Some(missing) => {
                self.make_room(length);
                self.0.append_zeros(missing);
            }
            None => self.0.truncate(length),
        }
    }

    /// Hands it over, without a copy.
    pub fn into_bytes(self) -> Bytes {
        self.0.into_filled()
    }

    /// Moves it to where there is room for `length` bytes, unless there is.
    fn make_room(&mut self, length: usize) {
        if length > self.0.capacity() {
            let mut larger = AlignedBuffer::with_room(length.max(2 * self.0.capacity()));
            larger.append(self.0.as_ref());
            self.0 = larger;
        }
    }
}

impl From<&[u8]> for WriteBuffer {
    fn from(data: &[u8]) -> Self {
        WriteBuffer(AlignedBuffer::copy_of(data))
    }
}

impl AsRef<[u8]> for WriteBuffer {
    fn as_ref(&self) -> &[u8] {
        self.0.as_ref()
    }
}

impl AsMut<[u8]> for WriteBuffer {
    fn as_mut(&mut self) -> &mut [u8] {
        self.0.filled_mut()
    }
}

impl std::fmt::Debug for WriteBuffer {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("WriteBuffer")
            .field("len", &self.len())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: what is handed over is what was put in, at the place where it was put, and nothing of
    /// what recycled memory held before. Method: buffers with room and without, filled, cut off and
    /// extended, round after round.
    #[test]
    fn what_is_put_together_is_not_moved_unless_it_grows() {
        for round in 1..4u8 {
            for capacity in [4096, 8192, 128 << 10] {
                let mut buffer = WriteBuffer::with_capacity(capacity);
                let start = buffer.as_ref().as_ptr();
                assert!(buffer.is_empty());
                buffer.append(&[round; 1000]);
                buffer.append(&[round; 3000]);
                buffer.resize(3500);
                buffer.resize(4096);
                buffer.as_mut()[0] = 0xff;
                let mut wanted = vec![round; 3500];
                wanted.resize(4096, 0);
                wanted[0] = 0xff;
                assert_eq!(buffer.as_ref(), wanted);
                let bytes = buffer.into_bytes();
                assert_eq!(bytes, wanted);
                assert_eq!(bytes.as_ptr(), start);
                assert_eq!(start as usize % 4096, 0);

                let mut buffer = WriteBuffer::from(&wanted[..]);
                buffer.append(&[round; 100_000]);
                buffer.resize(200_000);
                wanted.resize(104_096, round);
                wanted.resize(200_000, 0);
                assert_eq!(buffer.into_bytes(), wanted);
            }
        }
    }
}
