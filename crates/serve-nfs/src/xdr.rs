//! External data representation (RFC 4506): integers of four bytes, big-endian, and opaque bytes
//! filled up to a multiple of four.
//!
//! [`Reader`] takes values off a request and never sizes memory by a number in it: opaque bytes are
//! slices of the request. [`Writer`] makes a reply of pieces, so that blocks of the cache get from
//! there to the socket without a copy.

use bytes::{BufMut, Bytes, BytesMut};

/// Why bytes are not what they should be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum XdrError {
    /// There are fewer bytes than the value has.
    #[error("the message is cut short")]
    Short,
    /// A length is more than the protocol allows.
    #[error("a field of {length_bytes} bytes is longer than {limit_bytes}")]
    TooLong {
        /// What it says.
        length_bytes: u32,
        /// What may be.
        limit_bytes: u32,
    },
    /// A number is none of those that mean something.
    #[error("{number} is not a {what}")]
    BadValue {
        /// What it should be.
        what: &'static str,
        /// The number.
        number: u32,
    },
}

/// Short for results of decoding.
pub type Result<T> = std::result::Result<T, XdrError>;

/// Takes values off the front of a message.
#[derive(Debug, Clone)]
pub struct Reader {
    rest: Bytes,
}

impl Reader {
    /// Reads `message`.
    pub fn new(message: Bytes) -> Self {
        Self { rest: message }
    }

    /// What has not been read.
    pub fn rest(&self) -> &Bytes {
        &self.rest
    }

    fn take(&mut self, count: usize) -> Result<Bytes> {
        if count > self.rest.len() {
            return Err(XdrError::Short);
        }
        Ok(self.rest.split_to(count))
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let found = *self.rest.first_chunk::<N>().ok_or(XdrError::Short)?;
        let _ = self.rest.split_to(N);
        Ok(found)
    }

    /// An unsigned integer.
    pub fn u32(&mut self) -> Result<u32> {
        Ok(u32::from_be_bytes(self.array()?))
    }

    /// An unsigned hyper integer.
    pub fn u64(&mut self) -> Result<u64> {
        Ok(u64::from_be_bytes(self.array()?))
    }

    /// A boolean: zero or one.
    pub fn bool(&mut self) -> Result<bool> {
        match self.u32()? {
            0 => Ok(false),
            1 => Ok(true),
            number => Err(XdrError::BadValue {
                what: "boolean",
                number,
            }),
        }
    }

    /// Opaque bytes of a fixed length, which is a multiple of four.
    pub fn fixed<const N: usize>(&mut self) -> Result<[u8; N]> {
        const { assert!(N.is_multiple_of(4)) };
        self.array()
    }

    /// Opaque bytes of a length that comes first, at most `limit_bytes`.
    pub fn opaque(&mut self, limit_bytes: u32) -> Result<Bytes> {
        let length_bytes = self.u32()?;
        if length_bytes > limit_bytes {
            return Err(XdrError::TooLong {
                length_bytes,
                limit_bytes,
            });
        }
        let found = self.take(length_bytes as usize)?;
        // Some clients leave the filling of the last field out.
        let fill = fill_bytes(length_bytes as usize).min(self.rest.len());
        let _ = self.rest.split_to(fill);
        Ok(found)
    }

    /// A value that may be there.
    pub fn optional<T>(&mut self, value: impl FnOnce(&mut Self) -> Result<T>) -> Result<Option<T>> {
        match self.bool()? {
            true => value(self).map(Some),
            false => Ok(None),
        }
    }
}

/// Pieces of a message that have so many bytes at most are copied to what comes before them: a
/// piece of its own costs more.
pub const JOINED_BYTES_MAX: usize = 512;

/// Bytes that fill a field of `length` up to a multiple of four.
fn fill_bytes(length: usize) -> usize {
    length.wrapping_neg() % 4
}

/// Makes a message.
#[derive(Debug, Default)]
pub struct Writer {
    done: Vec<Bytes>,
    done_bytes: usize,
    open: BytesMut,
}

impl Writer {
    /// Makes an empty message.
    pub fn new() -> Self {
        Self {
            done: Vec::new(),
            done_bytes: 0,
            open: BytesMut::with_capacity(256),
        }
    }

    /// A message that was made before.
    pub fn of(message: Bytes) -> Self {
        Self {
            done_bytes: message.len(),
            done: vec![message],
            open: BytesMut::new(),
        }
    }

    /// Bytes written.
    pub fn len(&self) -> usize {
        self.done_bytes + self.open.len()
    }

    /// The integer that the message begins with.
    pub fn first_u32(&self) -> Option<u32> {
        let first = self.done.first().map_or(&self.open[..], |piece| &piece[..]);
        first.first_chunk().map(|bytes| u32::from_be_bytes(*bytes))
    }

    /// An unsigned integer.
    pub fn u32(&mut self, value: u32) {
        self.open.put_u32(value);
    }

    /// An unsigned hyper integer.
    pub fn u64(&mut self, value: u64) {
        self.open.put_u64(value);
    }

    /// A boolean.
    pub fn bool(&mut self, value: bool) {
        self.open.put_u32(value.into());
    }

    /// Opaque bytes of a fixed length.
    pub fn fixed(&mut self, bytes: &[u8]) {
        self.open.put_slice(bytes);
        self.open.put_bytes(0, fill_bytes(bytes.len()));
    }

    /// Opaque bytes after their length.
    pub fn opaque(&mut self, bytes: &[u8]) {
        // Nothing that is sent has more bytes than a `u32` counts.
        self.open.put_u32(bytes.len() as u32);
        self.fixed(bytes);
    }

    /// Opaque bytes that lie in pieces, after their length; they are not copied.
    pub fn pieces(&mut self, pieces: Vec<Bytes>) {
        let length: usize = pieces.iter().map(Bytes::len).sum();
        self.open.put_u32(length as u32);
        self.flush();
        self.done_bytes += length;
        self.done
            .extend(pieces.into_iter().filter(|piece| !piece.is_empty()));
        self.open.put_bytes(0, fill_bytes(length));
    }

    /// What is written in `other`, after what is written here.
    pub fn append(&mut self, other: Writer) {
        for piece in other.done {
            self.join(piece);
        }
        match other.open.len() <= JOINED_BYTES_MAX {
            true => self.open.put_slice(&other.open),
            false => self.join(other.open.freeze()),
        }
    }

    fn join(&mut self, piece: Bytes) {
        if piece.len() <= JOINED_BYTES_MAX {
            self.open.put_slice(&piece);
            return;
        }
        self.flush();
        self.done_bytes += piece.len();
        self.done.push(piece);
    }

    /// A value that may be there.
    pub fn optional<T>(&mut self, value: Option<T>, write: impl FnOnce(&mut Self, T)) {
        self.bool(value.is_some());
        if let Some(value) = value {
            write(self, value);
        }
    }

    /// Takes back all that was written after the first `length` bytes.
    ///
    /// # Panics
    /// When pieces came after that.
    pub fn truncate(&mut self, length: usize) {
        let kept = length.checked_sub(self.done_bytes);
        self.open.truncate(kept.expect("pieces are not taken back"));
    }

    fn flush(&mut self) {
        if !self.open.is_empty() {
            let open = self.open.split().freeze();
            self.done_bytes += open.len();
            self.done.push(open);
        }
    }

    /// The message, in pieces.
    pub fn finish(mut self) -> Vec<Bytes> {
        if !self.open.is_empty() {
            self.done.push(self.open.freeze());
        }
        self.done
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let mut writer = Writer::new();
        writer.u32(7);
        writer.opaque(b"abcde");
        writer.pieces(vec![Bytes::from_static(b"xy"), Bytes::from_static(b"z")]);
        writer.optional(Some(9u64), Writer::u64);
        writer.optional(None::<u64>, Writer::u64);
        let mut other = Writer::new();
        other.bool(true);
        writer.append(other);
        writer.u32(3);
        let length = writer.len();
        let message = Bytes::from(writer.finish().concat());
        assert_eq!(message.len(), length);
        let mut reader = Reader::new(message);
        assert_eq!(reader.u32(), Ok(7));
        assert_eq!(&reader.opaque(5).unwrap()[..], b"abcde");
        assert_eq!(&reader.opaque(9).unwrap()[..], b"xyz");
        assert_eq!(reader.optional(Reader::u64), Ok(Some(9)));
        assert_eq!(reader.optional(Reader::u64), Ok(None));
        assert_eq!(reader.bool(), Ok(true));
        assert_eq!(reader.bool().unwrap_err().to_string(), "3 is not a boolean");
        assert_eq!(reader.u32(), Err(XdrError::Short));
    }

    /// Goal: an answer with content has two pieces, head and content, which is not copied.
    #[test]
    fn heads_are_joined_and_content_is_not_copied() {
        let content = Bytes::from(vec![7; 4096]);
        let mut result = Writer::new();
        result.u32(1);
        result.pieces(vec![content.clone()]);
        let mut reply = Writer::new();
        reply.u32(2);
        reply.append(result);
        let length = reply.len();
        assert_eq!(reply.first_u32(), Some(2));
        let pieces = reply.finish();
        assert_eq!(pieces.len(), 2);
        assert_eq!(pieces[0], [0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 16, 0][..]);
        assert_eq!(pieces[1].as_ptr(), content.as_ptr());
        assert_eq!(pieces.concat().len(), length);
        // What is long and in one piece is not copied either.
        let mut listing = Writer::new();
        (0..1000).for_each(|word| listing.u32(word));
        let at = listing.open.as_ptr();
        let mut reply = Writer::new();
        reply.u32(3);
        reply.append(listing);
        reply.u32(4);
        let pieces = reply.finish();
        assert_eq!(pieces.len(), 3);
        assert_eq!(pieces[1].as_ptr(), at);
        assert_eq!(pieces[2], [0, 0, 0, 4][..]);
    }

    #[test]
    fn lengths_are_checked_before_anything_is_taken() {
        let message = Bytes::from_static(&[0xff, 0xff, 0xff, 0xff, 1, 2, 3, 4]);
        let limit_bytes = 64;
        let too_long = XdrError::TooLong {
            length_bytes: u32::MAX,
            limit_bytes,
        };
        assert_eq!(
            Reader::new(message.clone()).opaque(limit_bytes),
            Err(too_long)
        );
        assert_eq!(Reader::new(message).opaque(u32::MAX), Err(XdrError::Short));
    }

    #[test]
    fn what_did_not_fit_is_taken_back() {
        let mut writer = Writer::new();
        writer.pieces(vec![Bytes::from_static(b"four")]);
        writer.u32(1);
        let before = writer.len();
        writer.opaque(b"too much");
        writer.truncate(before);
        assert_eq!(writer.finish().concat(), b"\0\0\0\x04four\0\0\0\x01");
    }
}
