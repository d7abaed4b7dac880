//! Records without looking into them further than claiming, freeing and replaying a log need:
//! their header, and the block pointers in them.

use super::{LogKind, LogWrite};
use crate::blkptr::{BLOCK_POINTER_BYTES, BlockPointer};
use crate::bytes::{Endian, Reader};
use crate::error::{Result, bad};
use crate::ids::{ObjectId, Txg};

const LR: &str = "lr_t";

/// What a record begins with (`lr_t`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogHeader {
    /// What the record says.
    pub kind: LogKind,
    /// Names are compared without regard to case (`TX_CI`).
    pub case_insensitive: bool,
    /// Length of the record with this header.
    pub length_bytes: usize,
    /// The record's transaction group.
    pub txg: Txg,
    /// Number of the record in its log, from 1.
    pub sequence: u64,
}

impl LogHeader {
    /// Size of the header.
    pub const BYTES: usize = 32;
    /// Bit of the stored kind (`TX_CI`).
    const CASE_INSENSITIVE: u64 = 1 << 63;

    /// Decodes the header of the record that `bytes` begin with.
    ///
    /// # Errors
    /// [`FormatError`](crate::FormatError) when the record's length is not within `bytes`.
    pub fn decode(bytes: &[u8], endian: Endian) -> Result<Self> {
        let [kind, length, txg, sequence] = Reader::new(LR, bytes, endian).words()?;
        let length_bytes = usize::try_from(length)
            .ok()
            .filter(|length| (Self::BYTES..=bytes.len()).contains(length))
            .ok_or_else(|| bad(LR, "lrc_reclen", length, "32 bytes up to the block's end"))?;
        Ok(Self {
            kind: LogKind::from_code(kind & !Self::CASE_INSENSITIVE),
            case_insensitive: kind & Self::CASE_INSENSITIVE != 0,
            length_bytes,
            txg: txg.into(),
            sequence,
        })
    }

    /// The 32 bytes.
    pub fn encode(&self, endian: Endian) -> [u8; Self::BYTES] {
        let flag = match self.case_insensitive {
            true => Self::CASE_INSENSITIVE,
            false => 0,
        };
        let words = [
            self.kind.code() | flag,
            self.length_bytes as u64,
            self.txg.get(),
            self.sequence,
        ];
        let mut out = [0; Self::BYTES];
        for (place, word) in out.chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&endian.u64_bytes(word));
        }
        out
    }
}

/// A word of a record's body.
pub fn log_word(body: &[u8], index: usize, endian: Endian) -> Option<u64> {
    let raw = body.get(index * 8..)?.first_chunk::<8>()?;
    Some(endian.u64(*raw))
}

/// An object number that is a word of a record's body, without the dnode slots above it.
pub fn log_object(body: &[u8], index: usize, endian: Endian) -> Option<ObjectId> {
    let word = log_word(body, index, endian)?;
    Some(ObjectId::new(word & (ObjectId::LIMIT - 1)))
}

/// The body of a write (`lr_write_t`), in words: object, offset in bytes, length in bytes, offset
/// in the block; then a block pointer. Data follows, unless the pointer leads to it.
pub struct LogWriteBody;

impl LogWriteBody {
    /// Where the block pointer is in the body.
    pub const POINTER: usize = 32;
    /// Length of the body without data.
    pub const BYTES: usize = Self::POINTER + BLOCK_POINTER_BYTES;

    /// The body up to the data, little-endian.
    pub fn encode(write: &LogWrite<'_>) -> [u8; Self::BYTES] {
        let mut body = [0; Self::BYTES];
        let (head, pointer) = body.split_at_mut(Self::POINTER);
        let words = [
            write.object.get(),
            write.offset,
            write.length,
            write.block_offset,
        ];
        for (place, word) in head.chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        pointer.copy_from_slice(&write.block.encode());
        body
    }

    /// The block pointer, and whether the data is where it leads and not in the record. `None` for
    /// a body that is too short.
    pub fn pointer(body: &[u8], endian: Endian) -> Option<(BlockPointer, bool)> {
        let raw = body.get(Self::POINTER..Self::BYTES)?;
        let pointer = BlockPointer::decode_slice(raw, endian).ok()?;
        Some((pointer, body.len() == Self::BYTES))
    }
}

/// The body of a clone (`lr_clone_range_t`), in words: object, offset, length and block size in
/// bytes, number of block pointers; these follow.
pub struct LogCloneBody;

impl LogCloneBody {
    /// Where the number of block pointers is in the body.
    pub const COUNT: usize = 32;
    /// Where the block pointers begin in the body.
    pub const POINTERS: usize = Self::COUNT + 8;

    /// The block pointers, as many as there are.
    pub fn pointers(body: &[u8], endian: Endian) -> impl Iterator<Item = BlockPointer> + '_ {
        let count = log_word(body, Self::COUNT / 8, endian).unwrap_or(0);
        BlockPointer::decode_all(body.get(Self::POINTERS..).unwrap_or_default(), endian)
            .take(usize::try_from(count).unwrap_or(usize::MAX))
    }
}
