//! Redaction lists: which blocks of a snapshot are left out of a redacted stream
//! (`redaction_list_phys_t`, `redact_block_phys_t`; include/sys/dsl_bookmark.h).
//!
//! A list is an object of the MOS that a bookmark names. Its data are [`RedactBlock`]s in rising
//! order, without gaps; what is said of all of them is in its bonus, or in its spill block if there
//! are more snapshots than the bonus has room for (feature `redaction_list_spill`).
//!
//! | Offset | Field |
//! |---|---|
//! | 0 | object that was reached; all ones: the list is whole |
//! | 8 | block of it that was reached; all ones: the list is whole |
//! | 16 | number of entries |
//! | 24 | number of snapshots |
//! | 32 | GUIDs of the snapshots |
//!
//! All are words in the byte order of the object.

use crate::{Endian, FormatError, Guid, ObjectId, RedactBlock, Result};

/// Words before the snapshots.
const HEAD_WORDS: usize = 4;
/// Bits of the number of blocks of an entry.
const COUNT_BITS: u32 = 48;

/// The head of a redaction list.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RedactionListPhys {
    /// The object that was reached, and the block of it, while the list is made.
    pub reached: (u64, u64),
    /// Number of entries.
    pub entries: u64,
    /// The snapshots whose changes say what is left out.
    pub snapshots: Vec<Guid>,
}

impl RedactionListPhys {
    /// [`Self::reached`] of a list that is whole.
    pub const WHOLE: (u64, u64) = (u64::MAX, u64::MAX);

    /// Whether it lists all that there is to list.
    pub fn is_whole(&self) -> bool {
        self.reached == Self::WHOLE
    }

    /// Bytes that it takes with so many snapshots.
    pub const fn bytes_with(snapshots: usize) -> usize {
        (HEAD_WORDS + snapshots) * 8
    }

    /// Decodes it; what is behind the last snapshot is padding.
    ///
    /// # Errors
    /// [`FormatError::TooShort`].
    pub fn decode(data: &[u8], endian: Endian) -> Result<Self> {
        let too_short = |needed: usize| FormatError::TooShort {
            structure: "redaction_list_phys_t",
            needed_bytes: needed as u64,
            found_bytes: data.len() as u64,
        };
        let mut words = endian.words(data);
        let mut next = || words.next().ok_or_else(|| too_short(HEAD_WORDS * 8));
        let reached = (next()?, next()?);
        let (entries, count) = (next()?, next()?);
        let mut snapshots = Vec::new();
        for _ in 0..count {
            let guid = words.next();
            let guid = guid.ok_or_else(|| too_short((HEAD_WORDS + snapshots.len() + 1) * 8))?;
            snapshots.push(Guid::new(guid));
        }
        Ok(Self {
            reached,
            entries,
            snapshots,
        })
    }

    /// Encodes it, little-endian.
    pub fn encode(&self) -> Vec<u8> {
        let head = [
            self.reached.0,
            self.reached.1,
            self.entries,
            self.snapshots.len() as u64,
        ];
        let guids = self.snapshots.iter().map(|guid| guid.get());
        head.into_iter()
            .chain(guids)
            .flat_map(u64::to_le_bytes)
            .collect()
    }
}

impl RedactBlock {
    /// Most blocks in one entry (`REDACT_BLOCK_MAX_COUNT`).
    pub const COUNT_MAX: u64 = 1 << COUNT_BITS;

    /// Blocks of an object, one behind the other: `count` of them, of this size. One less is
    /// stored (`redact_block_set_count`).
    pub fn new(object: ObjectId, block_id: u64, count: u64, block_bytes: u64) -> Self {
        Self {
            object,
            block_id,
            size_and_count: (block_bytes >> 9) << COUNT_BITS
                | (count.clamp(1, Self::COUNT_MAX) - 1),
        }
    }

    /// How many blocks.
    pub fn count(&self) -> u64 {
        (self.size_and_count & (Self::COUNT_MAX - 1)) + 1
    }

    /// Size of one, in bytes.
    pub fn block_bytes(&self) -> u64 {
        (self.size_and_count >> COUNT_BITS) << 9
    }

    /// The block behind the last one.
    pub fn end(&self) -> u64 {
        self.block_id.saturating_add(self.count())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_come_back_in_both_byte_orders() {
        let list = RedactionListPhys {
            reached: (5, 77),
            entries: 3,
            snapshots: vec![Guid::new(0x1122_3344_5566_7788), Guid::new(9)],
        };
        let mut bytes = list.encode();
        assert_eq!(bytes.len(), RedactionListPhys::bytes_with(2));
        bytes.extend([0; 16]);
        let decoded = RedactionListPhys::decode(&bytes, Endian::Little);
        assert_eq!(decoded.as_ref(), Ok(&list));
        bytes.chunks_exact_mut(8).for_each(<[u8]>::reverse);
        let decoded = RedactionListPhys::decode(&bytes, Endian::Big);
        assert_eq!(decoded, Ok(list));
        assert!(RedactionListPhys::decode(&bytes[..40], Endian::Big).is_err());
        assert!(RedactionListPhys::decode(&[], Endian::Little).is_err());
        // A number of snapshots that is a lie takes no memory.
        let lie = [u64::MAX; 8].map(u64::to_le_bytes).concat();
        assert!(RedactionListPhys::decode(&lie, Endian::Little).is_err());
    }

    #[test]
    fn entries_have_size_and_number() {
        let entry = RedactBlock::new(ObjectId::new(7), 100, 5, 16 << 20);
        assert_eq!((entry.count(), entry.end()), (5, 105));
        assert_eq!(entry.block_bytes(), 16 << 20);
        assert_eq!(entry.size_and_count, 0x8000 << 48 | 4);
        let most = RedactBlock::new(ObjectId::new(7), 0, RedactBlock::COUNT_MAX, 512);
        assert_eq!(most.count(), 1 << 48);
    }
}
