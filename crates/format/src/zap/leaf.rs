//! Leaves of fat ZAPs (`zap_leaf_phys_t`, include/sys/zap_leaf.h).
//!
//! # Layout, for a block of `1 << shift` bytes
//!
//! | offset | bytes | holds |
//! |---|---|---|
//! | 0 | 8 | type |
//! | 8 | 8 | zero |
//! | 16 | 8 | prefix: high bits that all hashes here share |
//! | 24 | 4 | magic |
//! | 28 | 2 | free chunks |
//! | 30 | 2 | entries |
//! | 32 | 2 | bits of the prefix |
//! | 34 | 2 | first free chunk |
//! | 36 | 1 | flags: 1, chains are sorted by number |
//! | 37 | 11 | zero |
//! | 48 | 2 × (1 << shift − 5) | hash table: first entry of each chain |
//! | then | 24 × n | chunks |
//!
//! A chunk starts with its type. *Entry* (252): size of the value's integers (1 byte), next in the
//! chain (2), first chunk of the key (2), its integers (2), first chunk of the value (2), its
//! integers (2), number among keys of the same hash (4), hash (8). *Array* (251): 21 bytes of key
//! or value, big-endian, and the next chunk (2). *Free* (253): 21 zeros and the next free chunk
//! (2). 65535 ends every chain. Names are stored with their zero byte.
//!
//! Reading works on borrowed bytes in either byte order, checks every step and follows no chain
//! further than there are chunks. [`ZapLeaf::verify`] checks the whole structure.

use super::{
    BLOCK_TYPE_LEAF, ZapKey, ZapKeyBuf, ZapKeyKind, ZapValue, block_shift, zap_hash_index,
};
use crate::bytes::{Endian, exact};
use crate::error::{FormatError, Result, bad};

pub(super) const LEAF: &str = "zap_leaf_phys_t";
pub(super) const MAGIC: u32 = 0x2ab_1eaf;
pub(super) const HEADER_BYTES: usize = 48;
pub(super) const CHUNK_BYTES: usize = 24;
pub(super) const ARRAY_BYTES: usize = 21;
pub(super) const CHAIN_END: u16 = 0xffff;
pub(super) const CHUNK_FREE: u8 = 253;
pub(super) const CHUNK_ENTRY: u8 = 252;
pub(super) const CHUNK_ARRAY: u8 = 251;
pub(super) const FLAG_SORTED: u8 = 1;

// Offsets in the header.
pub(super) const PREFIX: usize = 16;
pub(super) const FREE_COUNT: usize = 28;
pub(super) const ENTRY_COUNT: usize = 30;
pub(super) const PREFIX_BITS: usize = 32;
pub(super) const FREE_LIST: usize = 34;
pub(super) const FLAGS: usize = 36;

/// An entry of a leaf: where it is, and what it says without its key and value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeafEntry {
    /// Hash of the key.
    pub hash: u64,
    /// Number among keys of the same hash.
    pub cd: u32,
    /// Size of the value's integers in bytes.
    pub value_integer_bytes: u8,
    /// Number of the value's integers.
    pub value_count: u16,
    pub(super) chunk: u16,
    pub(super) next: u16,
    pub(super) key_chunk: u16,
    pub(super) key_count: u16,
    pub(super) value_chunk: u16,
}

impl LeafEntry {
    pub(super) fn key_bytes(&self, kind: ZapKeyKind) -> usize {
        usize::from(self.key_count) * kind.unit_bytes()
    }

    pub(super) fn value_bytes(&self) -> usize {
        usize::from(self.value_count) * usize::from(self.value_integer_bytes)
    }
}

/// What came of adding to or changing a leaf.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "a leaf without room has not taken the entry"]
pub enum LeafInsert {
    /// Done; the entry has this number among keys of its hash.
    Done {
        /// The number.
        cd: u32,
    },
    /// There is no room: split the leaf and try again.
    NoRoom,
}

/// A leaf over its block's bytes: borrowed or shared to read it, owned to change it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ZapLeaf<B = Vec<u8>> {
    pub(super) block: B,
    pub(super) endian: Endian,
    pub(super) shift: u32,
    pub(super) keys: ZapKeyKind,
}

impl<B: AsRef<[u8]>> ZapLeaf<B> {
    /// Takes a block as a leaf to read; only its header is checked.
    ///
    /// # Errors
    /// [`FormatError`] when it is no leaf.
    pub fn open(block: B, endian: Endian, keys: ZapKeyKind) -> Result<Self> {
        let shift = block_shift(block.as_ref().len())?;
        let leaf = Self {
            block,
            endian,
            shift,
            keys,
        };
        let kind = leaf.u64_at(0);
        if kind != BLOCK_TYPE_LEAF {
            return Err(bad(LEAF, "lh_block_type", kind, "0x8000000000000000"));
        }
        let magic = leaf.u32_at(24);
        if magic != MAGIC {
            return Err(bad(LEAF, "lh_magic", magic.into(), "0x2ab1eaf"));
        }
        if leaf.prefix_bits() + leaf.hash_shift() > 64 {
            let found = leaf.prefix_bits().into();
            return Err(bad(
                LEAF,
                "lh_prefix_len",
                found,
                "no more bits than a hash has",
            ));
        }
        Ok(leaf)
    }

    pub(super) fn bytes(&self) -> &[u8] {
        self.block.as_ref()
    }

    pub(super) fn u16_at(&self, at: usize) -> u16 {
        self.endian.u16(exact(&self.bytes()[at..at + 2]))
    }

    fn u32_at(&self, at: usize) -> u32 {
        self.endian.u32(exact(&self.bytes()[at..at + 4]))
    }

    fn u64_at(&self, at: usize) -> u64 {
        self.endian.u64(exact(&self.bytes()[at..at + 8]))
    }

    /// log2 of the block's size.
    pub fn block_shift(&self) -> u32 {
        self.shift
    }

    pub(super) const fn hash_shift(&self) -> u32 {
        self.shift - 5
    }

    pub(super) const fn bucket_count(&self) -> usize {
        1 << self.hash_shift()
    }

    pub(super) const fn chunks_at(&self) -> usize {
        HEADER_BYTES + 2 * self.bucket_count()
    }

    /// Chunks that the block has.
    pub const fn chunk_count(&self) -> usize {
        ((1 << self.shift) - 2 * self.bucket_count()) / CHUNK_BYTES - 2
    }

    /// The prefix that all hashes here start with.
    pub fn prefix(&self) -> u64 {
        self.u64_at(PREFIX)
    }

    /// Bits of the prefix.
    pub fn prefix_bits(&self) -> u32 {
        self.u16_at(PREFIX_BITS).into()
    }

    /// Free chunks.
    pub fn free_chunks(&self) -> usize {
        self.u16_at(FREE_COUNT).into()
    }

    /// Number of entries.
    pub fn len(&self) -> usize {
        self.u16_at(ENTRY_COUNT).into()
    }

    /// Whether there are no entries.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether this leaf's prefix is that of the hash.
    pub fn owns(&self, hash: u64) -> bool {
        zap_hash_index(hash, self.prefix_bits()) == self.prefix()
    }

    /// The block's bytes in their byte order.
    pub fn as_bytes(&self) -> &[u8] {
        self.bytes()
    }

    pub(super) fn bucket(&self, hash: u64) -> usize {
        let shift = 64 - self.hash_shift() - self.prefix_bits();
        (hash >> shift) as usize & (self.bucket_count() - 1)
    }

    pub(super) fn bucket_at(bucket: usize) -> usize {
        HEADER_BYTES + 2 * bucket
    }

    /// Where a chunk of the given type is; an error when there is none.
    pub(super) fn chunk_at(&self, chunk: u16, kind: u8) -> Result<usize> {
        if usize::from(chunk) >= self.chunk_count() {
            return Err(bad(
                LEAF,
                "chunk",
                chunk.into(),
                "below the number of chunks",
            ));
        }
        let at = self.chunks_at() + usize::from(chunk) * CHUNK_BYTES;
        let found = self.bytes()[at];
        if found != kind {
            let expected = match kind {
                CHUNK_ENTRY => "252, an entry",
                CHUNK_ARRAY => "251, an array",
                _ => "253, a free chunk",
            };
            return Err(bad(LEAF, "chunk type", found.into(), expected));
        }
        Ok(at)
    }

    pub(super) fn entry(&self, chunk: u16) -> Result<LeafEntry> {
        let at = self.chunk_at(chunk, CHUNK_ENTRY)?;
        let entry = LeafEntry {
            hash: self.u64_at(at + 16),
            cd: self.u32_at(at + 12),
            value_integer_bytes: self.bytes()[at + 1],
            value_count: self.u16_at(at + 10),
            chunk,
            next: self.u16_at(at + 2),
            key_chunk: self.u16_at(at + 4),
            key_count: self.u16_at(at + 6),
            value_chunk: self.u16_at(at + 8),
        };
        if !matches!(entry.value_integer_bytes, 1 | 2 | 4 | 8) {
            let found = entry.value_integer_bytes.into();
            return Err(bad(
                "zap_leaf_entry",
                "le_value_intlen",
                found,
                "1, 2, 4 or 8",
            ));
        }
        Ok(entry)
    }

    /// Walks a chain of entries; every step is checked, and it ends.
    pub(super) fn chain(&self, bucket: usize) -> impl Iterator<Item = Result<LeafEntry>> + '_ {
        let mut next = self.u16_at(Self::bucket_at(bucket));
        let mut left = self.chunk_count() + 1;
        std::iter::from_fn(move || {
            if next == CHAIN_END {
                return None;
            }
            left -= 1;
            if left == 0 {
                next = CHAIN_END;
                let limit = self.chunk_count() as u64;
                return Some(Err(FormatError::TooDeep {
                    structure: LEAF,
                    limit,
                }));
            }
            let entry = self.entry(next);
            next = entry.as_ref().map_or(CHAIN_END, |entry| entry.next);
            Some(entry)
        })
    }

    /// Reads `length` bytes from a chain of array chunks; `visit` gets each piece and says whether
    /// to go on.
    fn array(&self, first: u16, length: usize, mut visit: impl FnMut(&[u8]) -> bool) -> Result<()> {
        if length > self.chunk_count() * ARRAY_BYTES {
            return Err(bad(
                LEAF,
                "array length",
                length as u64,
                "what fits into the leaf",
            ));
        }
        let mut chunk = first;
        let mut left = length;
        while left > 0 {
            let at = self.chunk_at(chunk, CHUNK_ARRAY)?;
            let take = left.min(ARRAY_BYTES);
            if !visit(&self.bytes()[at + 1..at + 1 + take]) {
                return Ok(());
            }
            left -= take;
            chunk = self.u16_at(at + 22);
        }
        Ok(())
    }

    fn array_equals(&self, first: u16, length: usize, expected: &[u8]) -> Result<bool> {
        if length != expected.len() {
            return Ok(false);
        }
        let mut rest = expected;
        self.array(first, length, |piece| match rest.strip_prefix(piece) {
            Some(after) => {
                rest = after;
                true
            }
            None => false,
        })?;
        Ok(rest.is_empty())
    }

    pub(super) fn array_bytes(&self, first: u16, length: usize) -> Result<Vec<u8>> {
        let mut out = Vec::new();
        self.array(first, length, |piece| {
            out.extend_from_slice(piece);
            true
        })?;
        Ok(out)
    }

    /// The entry of this key, whose hash is given.
    ///
    /// # Errors
    /// [`FormatError`] when the leaf is damaged.
    pub fn lookup(&self, hash: u64, key: ZapKey<'_>) -> Result<Option<LeafEntry>> {
        if key.kind() != self.keys {
            return Ok(None);
        }
        let stored = key.stored();
        for entry in self.chain(self.bucket(hash)) {
            let entry = entry?;
            if entry.hash == hash
                && self.array_equals(entry.key_chunk, entry.key_bytes(self.keys), &stored)?
            {
                return Ok(Some(entry));
            }
        }
        Ok(None)
    }

    /// The entry of this hash with the lowest number whose name matches: for ZAPs that normalize
    /// names.
    ///
    /// # Errors
    /// [`FormatError`] when the leaf is damaged.
    pub fn lookup_with(
        &self,
        hash: u64,
        mut matches: impl FnMut(&[u8]) -> bool,
    ) -> Result<Option<LeafEntry>> {
        let mut best: Option<LeafEntry> = None;
        for entry in self.chain(self.bucket(hash)) {
            let entry = entry?;
            if entry.hash != hash || best.is_some_and(|best| best.cd <= entry.cd) {
                continue;
            }
            if let ZapKeyBuf::Name(name) = self.key(&entry)?
                && matches(&name)
            {
                best = Some(entry);
            }
        }
        Ok(best)
    }

    /// The entry at a place or, when there is none, the next one after it by hash and number.
    ///
    /// # Errors
    /// [`FormatError`] when the leaf is damaged.
    pub fn lookup_closest(&self, hash: u64, cd: u32) -> Result<Option<LeafEntry>> {
        let mut best: Option<LeafEntry> = None;
        let start = if self.owns(hash) {
            self.bucket(hash)
        } else {
            0
        };
        for bucket in start..self.bucket_count() {
            for entry in self.chain(bucket) {
                let entry = entry?;
                let place = (entry.hash, entry.cd);
                if place >= (hash, cd) && best.is_none_or(|best| place < (best.hash, best.cd)) {
                    best = Some(entry);
                }
            }
            if best.is_some() {
                break;
            }
        }
        Ok(best)
    }

    /// All entries, ordered by hash and number: the order of cursors.
    ///
    /// # Errors
    /// [`FormatError`] when the leaf is damaged.
    pub fn entries(&self) -> Result<Vec<LeafEntry>> {
        let mut out = Vec::new();
        for bucket in 0..self.bucket_count() {
            for entry in self.chain(bucket) {
                out.push(entry?);
                if out.len() > self.chunk_count() {
                    let limit = self.chunk_count() as u64;
                    return Err(FormatError::TooDeep {
                        structure: LEAF,
                        limit,
                    });
                }
            }
        }
        out.sort_unstable_by_key(|entry| (entry.hash, entry.cd));
        Ok(out)
    }

    /// An entry's key.
    ///
    /// # Errors
    /// [`FormatError`] when the leaf is damaged.
    pub fn key(&self, entry: &LeafEntry) -> Result<ZapKeyBuf> {
        let mut bytes = self.array_bytes(entry.key_chunk, entry.key_bytes(self.keys))?;
        Ok(match self.keys {
            ZapKeyKind::Words => ZapKeyBuf::Words(Endian::Big.words(&bytes).collect()),
            ZapKeyKind::Name => {
                if bytes.pop() != Some(0) {
                    return Err(FormatError::BadText {
                        structure: LEAF,
                        field: "name",
                    });
                }
                ZapKeyBuf::Name(bytes)
            }
        })
    }

    /// An entry's value.
    ///
    /// # Errors
    /// [`FormatError`] when the leaf is damaged.
    pub fn value(&self, entry: &LeafEntry) -> Result<ZapValue> {
        let bytes = self.array_bytes(entry.value_chunk, entry.value_bytes())?;
        ZapValue::from_stored(entry.value_integer_bytes, bytes)
    }

    /// An entry's value when it is one 64-bit integer; `None` when it is of another shape.
    ///
    /// # Errors
    /// [`FormatError`] when the leaf is damaged.
    pub fn value_u64(&self, entry: &LeafEntry) -> Result<Option<u64>> {
        if entry.value_integer_bytes != 8 || entry.value_count != 1 {
            return Ok(None);
        }
        let mut value = 0;
        self.array(entry.value_chunk, 8, |piece| {
            value = Endian::Big.u64(exact(piece));
            true
        })?;
        Ok(Some(value))
    }

    /// Checks the whole structure: every chunk is used at most once, the counts are right, every
    /// entry has this leaf's prefix and is in its chain.
    ///
    /// # Errors
    /// [`FormatError`] naming what is wrong.
    pub fn verify(&self) -> Result<()> {
        let mut used = vec![false; self.chunk_count()];
        let mut claim = |chunk: u16| match used.get_mut(usize::from(chunk)) {
            Some(used) if !*used => {
                *used = true;
                Ok(())
            }
            _ => Err(bad(LEAF, "chunk", chunk.into(), "in one chain only")),
        };
        let mut free = 0u64;
        let mut next = self.u16_at(FREE_LIST);
        // A leaf without free chunks may keep any number as its list's head.
        while next != CHAIN_END && free < self.free_chunks() as u64 {
            let at = self.chunk_at(next, CHUNK_FREE)?;
            claim(next)?;
            free += 1;
            next = self.u16_at(at + 22);
        }
        if free != self.free_chunks() as u64 {
            return Err(bad(
                LEAF,
                "lh_nfree",
                self.free_chunks() as u64,
                "the free list's length",
            ));
        }
        let mut entries = 0u64;
        for bucket in 0..self.bucket_count() {
            for entry in self.chain(bucket) {
                let entry = entry?;
                claim(entry.chunk)?;
                entries += 1;
                if !self.owns(entry.hash) || self.bucket(entry.hash) != bucket {
                    return Err(bad(LEAF, "le_hash", entry.hash, "of this leaf and chain"));
                }
                let arrays = [
                    (entry.key_chunk, entry.key_bytes(self.keys)),
                    (entry.value_chunk, entry.value_bytes()),
                ];
                for (first, length) in arrays {
                    let mut chunk = first;
                    for _ in 0..length.div_ceil(ARRAY_BYTES) {
                        let at = self.chunk_at(chunk, CHUNK_ARRAY)?;
                        claim(chunk)?;
                        chunk = self.u16_at(at + 22);
                    }
                    if chunk != CHAIN_END {
                        return Err(bad(LEAF, "la_next", chunk.into(), "the end of the array"));
                    }
                }
            }
        }
        if entries != self.len() as u64 {
            return Err(bad(
                LEAF,
                "lh_nentries",
                self.len() as u64,
                "the number of entries",
            ));
        }
        Ok(())
    }
}
