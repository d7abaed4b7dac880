//! The queue of PDUs on their way out: headers and digests inline, data by reference, so that a
//! read's data goes from the cache to the socket without a copy, many PDUs in one system call.

use super::{BHS_BYTES, Header};
use bytes::Bytes;
use std::collections::VecDeque;
use std::io::IoSlice;

/// A stretch of inline bytes: a header and its digest, or padding and a data digest.
#[derive(Debug, Clone, Copy)]
struct Inline {
    bytes: [u8; BHS_BYTES + 4],
    length: u8,
}

#[derive(Debug)]
enum Piece {
    Inline(Inline),
    Data(Bytes),
}

impl Piece {
    fn as_slice(&self) -> &[u8] {
        match self {
            Self::Inline(inline) => &inline.bytes[..usize::from(inline.length)],
            Self::Data(data) => data,
        }
    }
}

/// Bytes to be sent, in order.
#[derive(Debug, Default)]
pub(crate) struct OutQueue {
    pieces: VecDeque<Piece>,
    /// How much of the first piece has been sent.
    sent_bytes: usize,
    /// All that waits, in bytes.
    length_bytes: usize,
    has_header_digest: bool,
    has_data_digest: bool,
}

impl OutQueue {
    /// Digests for PDUs queued from now on.
    pub(crate) fn set_digests(&mut self, has_header_digest: bool, has_data_digest: bool) {
        self.has_header_digest = has_header_digest;
        self.has_data_digest = has_data_digest;
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.length_bytes == 0
    }

    pub(crate) fn length_bytes(&self) -> usize {
        self.length_bytes
    }

    fn push_inline(&mut self, parts: [&[u8]; 2]) {
        let mut inline = Inline {
            bytes: [0; BHS_BYTES + 4],
            length: (parts[0].len() + parts[1].len()) as u8,
        };
        inline.bytes[..parts[0].len()].copy_from_slice(parts[0]);
        inline.bytes[parts[0].len()..parts[0].len() + parts[1].len()].copy_from_slice(parts[1]);
        self.length_bytes += usize::from(inline.length);
        self.pieces.push_back(Piece::Inline(inline));
    }

    /// Queues a PDU; its data segment length is set from `data`, a scatter list.
    pub(crate) fn push(&mut self, mut header: Header, data: impl Iterator<Item = Bytes> + Clone) {
        let data_bytes = data.clone().map(|piece| piece.len()).sum();
        header.set_data_bytes(data_bytes);
        if self.has_header_digest {
            let digest = crc32c::crc32c(&header.0).to_le_bytes();
            self.push_inline([&header.0, &digest]);
        } else {
            self.push_inline([&header.0, &[]]);
        }
        if data_bytes == 0 {
            return;
        }
        let mut crc = 0;
        for piece in data {
            if piece.is_empty() {
                continue;
            }
            if self.has_data_digest {
                crc = crc32c::crc32c_append(crc, &piece);
            }
            self.length_bytes += piece.len();
            self.pieces.push_back(Piece::Data(piece));
        }
        let padding = &[0; 3][..data_bytes.next_multiple_of(4) - data_bytes];
        if self.has_data_digest {
            let digest = crc32c::crc32c_append(crc, padding).to_le_bytes();
            self.push_inline([padding, &digest]);
        } else if !padding.is_empty() {
            self.push_inline([padding, &[]]);
        }
    }

    /// Queues a PDU with one piece of data and no digests: a login's.
    pub(crate) fn push_plain(&mut self, header: Header, data: Bytes) {
        let digests = (self.has_header_digest, self.has_data_digest);
        self.set_digests(false, false);
        self.push_with(header, data);
        self.set_digests(digests.0, digests.1);
    }

    /// Queues a PDU without data.
    pub(crate) fn push_header(&mut self, header: Header) {
        self.push(header, std::iter::empty());
    }

    /// Queues a PDU with one piece of data.
    pub(crate) fn push_with(&mut self, header: Header, data: Bytes) {
        self.push(header, std::iter::once(data));
    }

    /// Fills `slices` with what is to be sent next; returns how many were filled.
    pub(crate) fn fill<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> usize {
        let mut skip = self.sent_bytes;
        let mut count = 0;
        for (slot, piece) in slices.iter_mut().zip(&self.pieces) {
            *slot = IoSlice::new(&piece.as_slice()[skip..]);
            skip = 0;
            count += 1;
        }
        count
    }

    /// Forgets the first `sent` bytes.
    pub(crate) fn consume(&mut self, mut sent: usize) {
        assert!(sent <= self.length_bytes, "more was sent than queued");
        self.length_bytes -= sent;
        while let Some(first) = self.pieces.front() {
            let left = first.as_slice().len() - self.sent_bytes;
            if sent < left {
                self.sent_bytes += sent;
                return;
            }
            sent -= left;
            self.sent_bytes = 0;
            self.pieces.pop_front();
        }
    }

    /// All that waits as one run of bytes (tests and simulation).
    #[cfg(test)]
    pub(crate) fn drain_all(&mut self) -> Vec<u8> {
        let mut all = Vec::new();
        for (index, piece) in self.pieces.iter().enumerate() {
            let from = if index == 0 { self.sent_bytes } else { 0 };
            all.extend_from_slice(&piece.as_slice()[from..]);
        }
        self.consume(self.length_bytes);
        all
    }
}
