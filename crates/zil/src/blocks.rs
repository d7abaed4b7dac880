//! From records to log blocks: what goes into which block, in which form.
//!
//! A record's length is a multiple of 8. Writes are cut where a block ends; each piece is a record
//! of its own, with the data behind its fixed part ([`LogWriteBody`]). What belongs together
//! ([`EntryBody::Together`]) begins in a block that has room for all of it.
//!
//! A block is put together in the memory that it is written from: records are copied into it once,
//! behind room for the link to the next block, which is known last.

use bytes::Bytes;
use device::WriteBuffer;
use format::{
    BlockPointer, Endian, LogHeader, LogWrite, LogWriteBody, Txg, ZIL_MIN_BLOCK_BYTES, ZilLink,
    link_log_block,
};
use zio::ZioError;

use crate::pending::{Entry, EntryBody};

/// Biggest log block (`zil_maxblocksize`).
pub(crate) const BLOCK_BYTES_MAX: u64 = 128 << 10;
/// Room for records in it.
pub(crate) const RECORD_BYTES_MAX: usize = BLOCK_BYTES_MAX as usize - ZilLink::BYTES;
/// A write's record without its data.
const WRITE_BYTES: usize = LogHeader::BYTES + LogWriteBody::BYTES;
/// Pieces of writes end at multiples of this in their object, except the last one: what was not
/// acknowledged may be there in part after a crash, but no sector of a volume and no page of a file
/// is torn by that.
const PIECE_ALIGN_BYTES: u64 = 4096;

/// Records of one block, where they are in it.
#[derive(Debug)]
pub(crate) struct Records {
    /// The block as far as it is used; the link is zeros.
    block: WriteBuffer,
    /// Highest txg of any.
    pub txg: Txg,
}

impl Records {
    /// None, with room for a block of so many bytes.
    fn with_capacity(block_bytes: usize) -> Self {
        let mut block = WriteBuffer::with_capacity(block_bytes);
        block.resize(ZilLink::BYTES);
        Records {
            block,
            txg: Txg::ZERO,
        }
    }

    /// Bytes of the records.
    pub fn len(&self) -> usize {
        self.block.len() - ZilLink::BYTES
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Size that a block for them needs.
    pub fn block_bytes(&self) -> u64 {
        block_bytes(self.len() as u64)
    }

    /// The block that leads to `next`, as far as it has to be written: whole multiples of
    /// [`ZIL_MIN_BLOCK_BYTES`]. `checksum` has the words of the pointer that leads to it; the
    /// checksum itself is missing.
    ///
    /// # Errors
    /// [`ZioError::Vdev`] where the records did not fit, which the [`Packer`] sees to.
    pub fn into_block(
        self,
        next: &BlockPointer,
        checksum: [u64; 4],
    ) -> Result<WriteBuffer, ZioError> {
        let mut block = self.block;
        let used = block.len();
        block.resize(used.next_multiple_of(ZIL_MIN_BLOCK_BYTES as usize));
        link_log_block(block.as_mut(), next, used, checksum)?;
        Ok(block)
    }

    /// The records one after another.
    #[cfg(test)]
    pub fn bytes(&self) -> &[u8] {
        &self.block.as_ref()[ZilLink::BYTES..]
    }
}

/// Size of a block for so many bytes of records.
pub(crate) fn block_bytes(records: u64) -> u64 {
    (records + ZilLink::BYTES as u64)
        .next_multiple_of(ZIL_MIN_BLOCK_BYTES)
        .min(BLOCK_BYTES_MAX)
}

/// Bytes of an entry in the log, where no write of it is cut.
fn record_bytes(entry: &Entry) -> usize {
    match &entry.body {
        EntryBody::Encoded(body) => LogHeader::BYTES + body.len().next_multiple_of(8),
        EntryBody::Write { length_bytes, .. } => {
            WRITE_BYTES + (*length_bytes as usize).next_multiple_of(8)
        }
        EntryBody::Together(entries) => entries.iter().map(record_bytes).sum(),
        EntryBody::Overflow => 0,
    }
}

/// Puts records into blocks: the first one has the given size, more are as big as they need to be.
pub(crate) struct Packer {
    full: Vec<Records>,
    current: Records,
    room: usize,
    sequence: u64,
}

impl Packer {
    /// Records are numbered from `sequence + 1` on.
    pub fn new(first_block_bytes: u64, sequence: u64) -> Self {
        Packer {
            full: Vec::new(),
            current: Records::with_capacity(first_block_bytes as usize),
            room: first_block_bytes as usize - ZilLink::BYTES,
            sequence,
        }
    }

    /// Adds a record, or those that belong together. `false` when they are too long for any block:
    /// they cannot be logged.
    #[must_use]
    pub fn add(&mut self, entry: &Entry) -> bool {
        match &entry.body {
            EntryBody::Encoded(body) => {
                let length = record_bytes(entry);
                if length > RECORD_BYTES_MAX {
                    return false;
                }
                self.make_room(length);
                self.start(entry, length);
                self.current.block.append(body);
                self.pad();
            }
            EntryBody::Write {
                offset_bytes,
                length_bytes,
                data,
            } => self.add_write(entry, *offset_bytes, *length_bytes, data),
            EntryBody::Together(entries) => {
                let length = record_bytes(entry);
                if length > RECORD_BYTES_MAX {
                    return false;
                }
                self.make_room(length);
                return entries.iter().all(|entry| self.add(entry));
            }
            EntryBody::Overflow => return false,
        }
        true
    }

    fn add_write(&mut self, entry: &Entry, offset: u64, length: u64, data: &[Bytes]) {
        let mut source = Source {
            data,
            index: 0,
            at: 0,
        };
        let (mut offset, mut left) = (offset, length as usize);
        while left > 0 {
            let free = self.free();
            let piece = if WRITE_BYTES + left <= free {
                left
            } else {
                let end = offset + free.saturating_sub(WRITE_BYTES) as u64;
                let end = end / PIECE_ALIGN_BYTES * PIECE_ALIGN_BYTES;
                if free < WRITE_BYTES || end <= offset {
                    self.next_block();
                    continue;
                }
                (end - offset) as usize
            };
            self.start(entry, WRITE_BYTES + piece.next_multiple_of(8));
            let out = &mut self.current.block;
            let head = LogWrite::new(entry.object, offset, piece as u64);
            out.append(&LogWriteBody::encode(&head));
            source.copy(out, piece);
            self.pad();
            offset += piece as u64;
            left -= piece;
        }
    }

    fn free(&self) -> usize {
        self.room - self.current.len()
    }

    fn make_room(&mut self, length: usize) {
        if length > self.free() {
            self.next_block();
        }
    }

    /// Goes on in a new block. An empty first block stays, as the chain leads through it.
    fn next_block(&mut self) {
        let next = Records::with_capacity(BLOCK_BYTES_MAX as usize);
        self.full.push(std::mem::replace(&mut self.current, next));
        self.room = RECORD_BYTES_MAX;
    }

    fn start(&mut self, entry: &Entry, length: usize) {
        self.sequence += 1;
        self.current.txg = self.current.txg.max(entry.txg);
        let header = LogHeader {
            kind: entry.kind,
            case_insensitive: false,
            length_bytes: length,
            txg: entry.txg,
            sequence: self.sequence,
        };
        self.current.block.append(&header.encode(Endian::Little));
    }

    fn pad(&mut self) {
        // The link's length is a multiple of 8 as well.
        let length = self.current.block.len().next_multiple_of(8);
        self.current.block.resize(length);
    }

    /// The blocks' records, and the number of the last one.
    pub fn finish(mut self) -> (Vec<Records>, u64) {
        if !self.current.is_empty() {
            self.full.push(self.current);
        }
        (self.full, self.sequence)
    }
}

/// Slices read one after another.
struct Source<'a> {
    data: &'a [Bytes],
    index: usize,
    at: usize,
}

impl Source<'_> {
    /// Copies the next `length` bytes; zeros if there are not as many.
    fn copy(&mut self, out: &mut WriteBuffer, length: usize) {
        let end = out.len() + length;
        while out.len() < end
            && let Some(slice) = self.data.get(self.index)
        {
            let part = (slice.len() - self.at).min(end - out.len());
            out.append(&slice[self.at..self.at + part]);
            self.at += part;
            if self.at == slice.len() {
                self.index += 1;
                self.at = 0;
            }
        }
        out.resize(end);
    }
}

/// How big the next block should be, from what was written lately (`zil_lwb_predict`).
#[derive(Debug, Default)]
pub(crate) struct Bursts {
    bytes: [u64; Self::COUNT],
    at: usize,
}

impl Bursts {
    const COUNT: usize = 4;

    /// So many bytes of records were written at once.
    pub fn note(&mut self, bytes: u64) {
        self.bytes[self.at] = bytes;
        self.at = (self.at + 1) % Self::COUNT;
    }

    /// Size of a block for the next burst: as for the second biggest of the last ones, so that a
    /// single big one does not make all others waste space.
    pub fn next_block_bytes(&self) -> u64 {
        let mut sorted = self.bytes;
        sorted.sort_unstable();
        block_bytes(sorted[Self::COUNT - 2])
    }
}
