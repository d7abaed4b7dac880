//! The intent log (include/sys/zil.h): chains of blocks that hold records of what was promised to
//! be durable before its txg was.
//!
//! # A log block
//!
//! With the checksum [`Checksum::Zilog2`] the chain's link comes first, then the records up to the
//! link's used bytes (which count the link). With [`Checksum::Zilog`] (old pools) records come
//! first and the link is at the block's end (and is not counted). The link ([`ZilLink`], 184
//! bytes): zero (8), pointer to the next block (128), used bytes (8), [`Eck`] (40).
//!
//! The next block's pointer is written before that block is: the block exists when its checksum
//! holds, and its sequence number is one more than this block's. In a log block's pointer, the
//! checksum's words are two random guids, the dataset's object number and the sequence number
//! ([`ZilSequence`]); a chain ends at the first block that does not carry what its pointer says.
//!
//! # A record
//!
//! Type (8 bytes, bit 63: names without regard to case), length with this header (8, a multiple
//! of 8), txg (8), sequence number (8), then what the type says: see [`LogBody`], the one codec of
//! it that logging and replay use. [`LogHeader`], [`LogWriteBody`] and [`LogCloneBody`] are for
//! whatever needs only pointers or object numbers, which are in the clear in encrypted logs.

mod kind;
mod raw;
mod record;

pub use kind::LogKind;
pub use raw::{LogCloneBody, LogHeader, LogWriteBody, log_object, log_word};
pub use record::{
    Log64Time, LogAcl, LogAttributes, LogBody, LogCreate, LogCreateKind, LogObject, LogRecord,
    LogRename, LogSetAttributes, LogWhiteout, LogWrite, RenameKind,
};

use crate::blkptr::{BlockPointer, read_pointer};
use crate::bytes::{Endian, Put, Reader, exact};
use crate::error::{FormatError, Result, bad, does_not_fit};
use crate::ids::ObjsetId;
use crate::kinds::Checksum;
use crate::label::Eck;

const CHAIN: &str = "zil_chain_t";
/// Smallest log block (`ZIL_MIN_BLKSZ`).
pub const ZIL_MIN_BLOCK_BYTES: u64 = 4096;

/// What identifies a log block: the checksum's words in its pointer and, with [`Checksum::Zilog2`]
/// computed in, in its link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ZilSequence {
    /// Random, per log.
    pub guids: [u64; 2],
    /// The dataset.
    pub objset: ObjsetId,
    /// Number of the block in the chain, from 1.
    pub sequence: u64,
}

impl ZilSequence {
    /// From the pointer's checksum.
    pub const fn from_checksum(words: [u64; 4]) -> Self {
        Self {
            guids: [words[0], words[1]],
            objset: ObjsetId::new(words[2]),
            sequence: words[3],
        }
    }

    /// The pointer's checksum.
    pub const fn checksum(&self) -> [u64; 4] {
        [
            self.guids[0],
            self.guids[1],
            self.objset.get(),
            self.sequence,
        ]
    }

    /// That of the next block.
    pub const fn next(&self) -> Self {
        Self {
            sequence: self.sequence.wrapping_add(1),
            ..*self
        }
    }
}

/// A log block's link (`zil_chain_t`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ZilLink {
    /// The next block, which may not have been written.
    pub next: BlockPointer,
    /// Bytes used.
    pub used_bytes: u64,
    /// The block's own checksum.
    pub eck: Eck,
}

impl ZilLink {
    /// Size in bytes.
    pub const BYTES: usize = 184;
    /// Offset of the [`Eck`] in it.
    pub const ECK_OFFSET: usize = 144;

    /// Decodes 184 bytes; the magic tells the byte order.
    ///
    /// # Errors
    /// [`FormatError`] when they are too few or the magic is not there.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let mut r = Reader::new(CHAIN, bytes, Endian::Little);
        r.skip(Self::ECK_OFFSET)?;
        let eck = Eck::decode(&r.array()?)?;
        let mut r = Reader::new(CHAIN, bytes, eck.endian);
        r.skip(8)?;
        let next = read_pointer(&mut r, eck.endian)?;
        Ok(Self {
            next,
            used_bytes: r.u64()?,
            eck,
        })
    }

    /// The 184 bytes, little-endian.
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let mut out = Vec::with_capacity(Self::BYTES);
        out.put_u64(0);
        out.extend_from_slice(&self.next.encode());
        out.put_u64(self.used_bytes);
        out.extend_from_slice(&Eck::new(self.eck.checksum).encode());
        exact(&out)
    }
}

/// Takes a log block apart: its link, and the bytes of its records. The checksum must have been
/// verified, as the pointer says.
///
/// # Errors
/// [`FormatError`] when it is no log block.
pub fn decode_log_block(block: &[u8], checksum: Checksum) -> Result<(ZilLink, &[u8])> {
    let short = || FormatError::TooShort {
        structure: CHAIN,
        needed_bytes: ZilLink::BYTES as u64,
        found_bytes: block.len() as u64,
    };
    let used = |link: &ZilLink| usize::try_from(link.used_bytes).unwrap_or(usize::MAX);
    let (link, records) = match checksum {
        Checksum::Zilog2 => {
            let link = ZilLink::decode(block)?;
            let records = block.get(ZilLink::BYTES..used(&link));
            (link, records)
        }
        Checksum::Zilog => {
            let at = block.len().checked_sub(ZilLink::BYTES).ok_or_else(short)?;
            let link = ZilLink::decode(&block[at..])?;
            (link, block[..at].get(..used(&link)))
        }
        other => {
            let found = other.code().into();
            return Err(bad(CHAIN, "checksum", found, "that of an intent log"));
        }
    };
    let records =
        records.ok_or_else(|| bad(CHAIN, "zc_nused", link.used_bytes, "within the block"))?;
    Ok((link, records))
}

/// Makes a log block, as we write them, of one whose records are in place behind the first
/// [`ZilLink::BYTES`]: puts the link there ([`Checksum::Zilog2`]), with magic and the given words
/// where the checksum goes. `used_bytes` is where the records end; what follows is not looked at.
///
/// # Errors
/// [`FormatError::DoesNotFit`] when the block ends before that.
pub fn link_log_block(
    block: &mut [u8],
    next: &BlockPointer,
    used_bytes: usize,
    checksum: [u64; 4],
) -> Result<()> {
    let too_long = || does_not_fit(CHAIN, "zc_nused", used_bytes as u64, "the block's size");
    if used_bytes > block.len() {
        return Err(too_long());
    }
    let link = ZilLink {
        next: *next,
        used_bytes: used_bytes as u64,
        eck: Eck::new(checksum),
    };
    let place = block.first_chunk_mut().ok_or_else(too_long)?;
    *place = link.encode();
    Ok(())
}

/// The records of a log block, one after the other. After an error there are no more.
#[derive(Debug, Clone)]
pub struct LogRecords<'a> {
    rest: &'a [u8],
    endian: Endian,
}

impl<'a> LogRecords<'a> {
    /// Over the bytes that [`decode_log_block`] gave, in the order that the link's [`Eck`] tells.
    pub const fn new(records: &'a [u8], endian: Endian) -> Self {
        Self {
            rest: records,
            endian,
        }
    }
}

impl<'a> Iterator for LogRecords<'a> {
    type Item = Result<LogRecord<'a>>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        match LogRecord::decode(self.rest, self.endian) {
            Ok((record, length)) => {
                self.rest = self.rest.get(length..).unwrap_or_default();
                Some(Ok(record))
            }
            Err(error) => {
                self.rest = &[];
                Some(Err(error))
            }
        }
    }
}

#[cfg(test)]
mod tests;
