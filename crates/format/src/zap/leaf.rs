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
//! integers (2), number among keys of the same hash (4), hash (8). *Array* (251): 21 bytes of key or
//! value, big-endian, and the next chunk (2). *Free* (253): 21 zeros and the next free chunk (2).
//! 65535 ends every chain. Names are stored with their zero byte.
//!
//! Reading works on borrowed bytes in either byte order, checks every step and follows no chain
//! further than there are chunks. Before a leaf can be changed its whole structure is checked once
//! ([`ZapLeaf::decode`]), so that damage is found before it is made worse.

use super::{
    BLOCK_TYPE_LEAF, ZAP_MAX_VALUE_BYTES, ZapKey, ZapKeyBuf, ZapKeyKind, ZapValue, block_shift,
    check_name, check_shift, zap_hash_index,
};
use crate::bytes::{Endian, exact};
use crate::error::{FormatError, Result, bad, does_not_fit};

const LEAF: &str = "zap_leaf_phys_t";
const MAGIC: u32 = 0x2ab_1eaf;
const HEADER_BYTES: usize = 48;
const CHUNK_BYTES: usize = 24;
const ARRAY_BYTES: usize = 21;
const CHAIN_END: u16 = 0xffff;
const CHUNK_FREE: u8 = 253;
const CHUNK_ENTRY: u8 = 252;
const CHUNK_ARRAY: u8 = 251;
const FLAG_SORTED: u8 = 1;

// Offsets in the header.
const PREFIX: usize = 16;
const FREE_COUNT: usize = 28;
const ENTRY_COUNT: usize = 30;
const PREFIX_BITS: usize = 32;
const FREE_LIST: usize = 34;
const FLAGS: usize = 36;

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
    chunk: u16,
    next: u16,
    key_chunk: u16,
    key_count: u16,
    value_chunk: u16,
}

impl LeafEntry {
    fn key_bytes(&self, kind: ZapKeyKind) -> usize {
        usize::from(self.key_count) * kind.unit_bytes()
    }

    fn value_bytes(&self) -> usize {
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
    endian: Endian,
    shift: u32,
    keys: ZapKeyKind,
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

    fn bytes(&self) -> &[u8] {
        self.block.as_ref()
    }

    fn u16_at(&self, at: usize) -> u16 {
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

    const fn hash_shift(&self) -> u32 {
        self.shift - 5
    }

    const fn bucket_count(&self) -> usize {
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

    fn bucket(&self, hash: u64) -> usize {
        let shift = 64 - self.hash_shift() - self.prefix_bits();
        (hash >> shift) as usize & (self.bucket_count() - 1)
    }

    fn bucket_at(bucket: usize) -> usize {
        HEADER_BYTES + 2 * bucket
    }

    /// Where a chunk of the given type is; an error when there is none.
    fn chunk_at(&self, chunk: u16, kind: u8) -> Result<usize> {
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

    fn entry(&self, chunk: u16) -> Result<LeafEntry> {
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
    fn chain(&self, bucket: usize) -> impl Iterator<Item = Result<LeafEntry>> + '_ {
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

    fn array_bytes(&self, first: u16, length: usize) -> Result<Vec<u8>> {
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

impl ZapLeaf<Vec<u8>> {
    /// A new, empty leaf with no prefix (`zap_leaf_init`). `sorted` is for ZAPs that normalize
    /// names.
    ///
    /// # Errors
    /// [`FormatError::DoesNotFit`] when the block size is none that ZAPs have.
    pub fn new(block_shift: u32, sorted: bool, keys: ZapKeyKind) -> Result<Self> {
        check_shift(block_shift)?;
        let block = vec![0; 1 << block_shift];
        let mut leaf = Self {
            block,
            endian: Endian::Little,
            shift: block_shift,
            keys,
        };
        leaf.block[..8].copy_from_slice(&BLOCK_TYPE_LEAF.to_le_bytes());
        leaf.block[24..28].copy_from_slice(&MAGIC.to_le_bytes());
        leaf.block[FLAGS] = if sorted { FLAG_SORTED } else { 0 };
        leaf.clear_buckets();
        let chunks = leaf.chunk_count();
        leaf.put_u16(FREE_COUNT, chunks as u16);
        for chunk in 0..chunks {
            let at = leaf.chunks_at() + chunk * CHUNK_BYTES;
            leaf.block[at] = CHUNK_FREE;
            let next = if chunk + 1 == chunks {
                CHAIN_END
            } else {
                chunk as u16 + 1
            };
            leaf.put_u16(at + 22, next);
        }
        Ok(leaf)
    }

    /// Takes a block as a leaf to change: its whole structure is checked, and a big-endian block
    /// becomes little-endian.
    ///
    /// # Errors
    /// [`FormatError`] when it is no leaf, or a damaged one.
    pub fn decode(block: Vec<u8>, endian: Endian, keys: ZapKeyKind) -> Result<Self> {
        let mut leaf = Self::open(block, endian, keys)?;
        leaf.verify()?;
        if endian == Endian::Big {
            leaf.swap();
        }
        Ok(leaf)
    }

    /// The block, little-endian.
    pub fn into_bytes(self) -> Vec<u8> {
        self.block
    }
}

impl<B: AsRef<[u8]> + AsMut<[u8]>> ZapLeaf<B> {
    fn bytes_mut(&mut self) -> &mut [u8] {
        self.block.as_mut()
    }

    fn swap(&mut self) {
        let mut fields = vec![(0, 8), (PREFIX, 8), (24, 4)];
        fields.extend([FREE_COUNT, ENTRY_COUNT, PREFIX_BITS, FREE_LIST].map(|at| (at, 2)));
        fields.extend((0..self.bucket_count()).map(|bucket| (Self::bucket_at(bucket), 2)));
        for chunk in 0..self.chunk_count() {
            let at = self.chunks_at() + chunk * CHUNK_BYTES;
            if self.bytes()[at] == CHUNK_ENTRY {
                fields.extend([2, 4, 6, 8, 10].map(|field| (at + field, 2)));
                fields.extend([(at + 12, 4), (at + 16, 8)]);
            } else {
                fields.push((at + 22, 2));
            }
        }
        for (at, length) in fields {
            self.bytes_mut()[at..at + length].reverse();
        }
        self.endian = Endian::Little;
    }

    /// Swaps all numbers, whatever the order was.
    #[cfg(test)]
    pub(super) fn swap_for_tests(&mut self) {
        self.swap();
    }

    fn put_u16(&mut self, at: usize, value: u16) {
        self.bytes_mut()[at..at + 2].copy_from_slice(&value.to_le_bytes());
    }

    fn set_prefix(&mut self, prefix: u64, bits: u16) {
        self.bytes_mut()[PREFIX..PREFIX + 8].copy_from_slice(&prefix.to_le_bytes());
        self.put_u16(PREFIX_BITS, bits);
    }

    fn clear_buckets(&mut self) {
        let end = self.chunks_at();
        self.bytes_mut()[HEADER_BYTES..end].fill(0xff);
    }

    fn is_sorted(&self) -> bool {
        self.bytes()[FLAGS] & FLAG_SORTED != 0
    }

    /// Takes a chunk off the free list; it still says that it is free.
    fn allocate(&mut self) -> Result<(u16, usize)> {
        let chunk = self.u16_at(FREE_LIST);
        let at = self.chunk_at(chunk, CHUNK_FREE)?;
        let next = self.u16_at(at + 22);
        self.put_u16(FREE_LIST, next);
        let free = self.u16_at(FREE_COUNT);
        self.put_u16(FREE_COUNT, free.saturating_sub(1));
        Ok((chunk, at))
    }

    /// Puts a chunk at the head of the free list, zeroed: that compresses well.
    fn release(&mut self, chunk: u16) {
        let at = self.chunks_at() + usize::from(chunk) * CHUNK_BYTES;
        self.bytes_mut()[at..at + CHUNK_BYTES].fill(0);
        self.bytes_mut()[at] = CHUNK_FREE;
        let head = self.u16_at(FREE_LIST);
        self.put_u16(at + 22, head);
        self.put_u16(FREE_LIST, chunk);
        let free = self.u16_at(FREE_COUNT);
        self.put_u16(FREE_COUNT, free.saturating_add(1));
    }

    fn put_array(&mut self, bytes: &[u8]) -> Result<u16> {
        let mut first = CHAIN_END;
        let mut link = None;
        for piece in bytes.chunks(ARRAY_BYTES) {
            let (chunk, at) = self.allocate()?;
            self.bytes_mut()[at..at + CHUNK_BYTES].fill(0);
            self.bytes_mut()[at] = CHUNK_ARRAY;
            self.bytes_mut()[at + 1..at + 1 + piece.len()].copy_from_slice(piece);
            self.put_u16(at + 22, CHAIN_END);
            match link {
                None => first = chunk,
                Some(link) => self.put_u16(link, chunk),
            }
            link = Some(at + 22);
        }
        Ok(first)
    }

    /// Frees an array so that its chunks stand in the free list in their order.
    fn release_array(&mut self, first: u16) -> Result<()> {
        let mut chunks = Vec::new();
        let mut chunk = first;
        while chunk != CHAIN_END {
            let at = self.chunk_at(chunk, CHUNK_ARRAY)?;
            chunks.push(chunk);
            if chunks.len() > self.chunk_count() {
                let limit = self.chunk_count() as u64;
                return Err(FormatError::TooDeep {
                    structure: LEAF,
                    limit,
                });
            }
            chunk = self.u16_at(at + 22);
        }
        for chunk in chunks.into_iter().rev() {
            self.release(chunk);
        }
        Ok(())
    }

    /// Puts an entry into its chain: before the first one with a higher number.
    fn link(&mut self, chunk: u16, hash: u64, cd: u32) -> Result<()> {
        let bucket = self.bucket(hash);
        let mut link = Self::bucket_at(bucket);
        for entry in self.chain(bucket) {
            let entry = entry?;
            if entry.cd > cd {
                break;
            }
            link = self.chunks_at() + usize::from(entry.chunk) * CHUNK_BYTES + 2;
        }
        let at = self.chunks_at() + usize::from(chunk) * CHUNK_BYTES;
        let next = self.u16_at(link);
        self.put_u16(at + 2, next);
        self.put_u16(link, chunk);
        Ok(())
    }

    fn put_entry(
        &mut self,
        hash: u64,
        cd: u32,
        key: (&[u8], u16),
        value: (&[u8], u16, u8),
    ) -> Result<()> {
        let (chunk, at) = self.allocate()?;
        self.bytes_mut()[at..at + CHUNK_BYTES].fill(0);
        self.bytes_mut()[at] = CHUNK_ENTRY;
        self.bytes_mut()[at + 1] = value.2;
        self.put_u16(at + 2, CHAIN_END);
        let key_chunk = self.put_array(key.0)?;
        let value_chunk = self.put_array(value.0)?;
        self.put_u16(at + 4, key_chunk);
        self.put_u16(at + 6, key.1);
        self.put_u16(at + 8, value_chunk);
        self.put_u16(at + 10, value.1);
        self.bytes_mut()[at + 12..at + 16].copy_from_slice(&cd.to_le_bytes());
        self.bytes_mut()[at + 16..at + 24].copy_from_slice(&hash.to_le_bytes());
        self.link(chunk, hash, cd)?;
        let entries = self.u16_at(ENTRY_COUNT);
        self.put_u16(ENTRY_COUNT, entries + 1);
        Ok(())
    }

    /// Adds an entry (`zap_entry_create`). That there is none of this key, and that the hash is the
    /// key's and of this leaf, is for the caller to know. `cd` is `None` but when entries of a
    /// micro ZAP are moved here.
    ///
    /// # Errors
    /// [`FormatError::DoesNotFit`] when key and value would not even fit an empty leaf, or are
    /// none that ZAPs hold; other variants when the leaf is damaged.
    pub fn insert(
        &mut self,
        hash: u64,
        key: ZapKey<'_>,
        value: &ZapValue,
        cd: Option<u32>,
    ) -> Result<LeafInsert> {
        if !self.owns(hash) {
            return Err(does_not_fit(
                LEAF,
                "le_hash",
                hash,
                "a hash with this leaf's prefix",
            ));
        }
        if key.kind() != self.keys {
            return Err(does_not_fit(
                LEAF,
                "key",
                0,
                "the kind of keys that this ZAP has",
            ));
        }
        if let ZapKey::Name(name) = key {
            check_name(name)?;
        }
        let key_bytes = key.stored();
        let value_bytes = check_value(value)?;
        let chunks =
            1 + key_bytes.len().div_ceil(ARRAY_BYTES) + value_bytes.len().div_ceil(ARRAY_BYTES);
        if chunks > self.chunk_count() {
            let found = (key_bytes.len() + value_bytes.len()) as u64;
            return Err(does_not_fit(LEAF, "entry", found, "what one leaf holds"));
        }
        let cd = match cd {
            Some(cd) => cd,
            None => self.lowest_free_cd(hash)?,
        };
        if self.free_chunks() < chunks {
            return Ok(LeafInsert::NoRoom);
        }
        let key_count = (key_bytes.len() / self.keys.unit_bytes()) as u16;
        let value = (
            value_bytes.as_slice(),
            value.len() as u16,
            value.integer_bytes(),
        );
        self.put_entry(hash, cd, (&key_bytes, key_count), value)?;
        Ok(LeafInsert::Done { cd })
    }

    fn lowest_free_cd(&self, hash: u64) -> Result<u32> {
        let mut used = Vec::new();
        for entry in self.chain(self.bucket(hash)) {
            let entry = entry?;
            if entry.hash == hash {
                used.push(entry.cd);
            }
        }
        used.sort_unstable();
        let mut cd = 0;
        for taken in used {
            if taken == cd {
                cd += 1;
            }
        }
        Ok(cd)
    }

    /// Replaces an entry's value (`zap_entry_update`). The entry must have been looked up in this
    /// leaf since its last change.
    ///
    /// # Errors
    /// [`FormatError::DoesNotFit`] when the value is none that ZAPs hold; other variants when the
    /// leaf is damaged.
    pub fn update(&mut self, entry: &LeafEntry, value: &ZapValue) -> Result<LeafInsert> {
        let bytes = check_value(value)?;
        let now = self.entry(entry.chunk)?;
        let old_chunks = now.value_bytes().div_ceil(ARRAY_BYTES);
        if bytes.len().div_ceil(ARRAY_BYTES) > self.free_chunks() + old_chunks {
            return Ok(LeafInsert::NoRoom);
        }
        self.release_array(now.value_chunk)?;
        let chunk = self.put_array(&bytes)?;
        let at = self.chunk_at(entry.chunk, CHUNK_ENTRY)?;
        self.bytes_mut()[at + 1] = value.integer_bytes();
        self.put_u16(at + 8, chunk);
        self.put_u16(at + 10, value.len() as u16);
        Ok(LeafInsert::Done { cd: now.cd })
    }

    /// Removes an entry (`zap_entry_remove`). The entry must have been looked up in this leaf since
    /// its last change.
    ///
    /// # Errors
    /// [`FormatError`] when the leaf is damaged.
    pub fn remove(&mut self, entry: &LeafEntry) -> Result<()> {
        let bucket = self.bucket(entry.hash);
        let mut link = Self::bucket_at(bucket);
        let mut found = None;
        for other in self.chain(bucket) {
            let other = other?;
            if other.chunk == entry.chunk {
                found = Some(other);
                break;
            }
            link = self.chunks_at() + usize::from(other.chunk) * CHUNK_BYTES + 2;
        }
        let Some(now) = found else {
            return Err(bad(
                LEAF,
                "chunk",
                entry.chunk.into(),
                "an entry of its hash's chain",
            ));
        };
        self.put_u16(link, now.next);
        self.release_array(now.value_chunk)?;
        self.release_array(now.key_chunk)?;
        self.release(now.chunk);
        let entries = self.u16_at(ENTRY_COUNT);
        self.put_u16(ENTRY_COUNT, entries.saturating_sub(1));
        Ok(())
    }

    /// Splits the leaf (`zap_leaf_split`): its prefix gets one bit longer, and entries whose hash
    /// has that bit set move to the leaf that is returned.
    ///
    /// # Errors
    /// [`FormatError::DoesNotFit`] when the prefix cannot get longer; other variants when the
    /// leaf is damaged.
    pub fn split(&mut self, sorted: bool) -> Result<ZapLeaf<Vec<u8>>> {
        let bits = self.prefix_bits() + 1;
        if bits + self.hash_shift() > 64 {
            return Err(does_not_fit(
                LEAF,
                "lh_prefix_len",
                bits.into(),
                "bits that a hash has",
            ));
        }
        let entries = self.entries()?;
        let sorted = sorted || self.is_sorted();
        let mut sibling = ZapLeaf::new(self.shift, sorted, self.keys)?;
        let prefix = self.prefix() << 1;
        self.set_prefix(prefix, bits as u16);
        sibling.set_prefix(prefix | 1, bits as u16);
        if sorted {
            self.bytes_mut()[FLAGS] |= FLAG_SORTED;
        }
        self.clear_buckets();
        for entry in entries {
            if zap_hash_index(entry.hash, bits) & 1 == 0 {
                self.link(entry.chunk, entry.hash, entry.cd)?;
                continue;
            }
            let key = self.array_bytes(entry.key_chunk, entry.key_bytes(self.keys))?;
            let value = self.array_bytes(entry.value_chunk, entry.value_bytes())?;
            let value = (
                value.as_slice(),
                entry.value_count,
                entry.value_integer_bytes,
            );
            sibling.put_entry(entry.hash, entry.cd, (&key, entry.key_count), value)?;
            self.release_array(entry.value_chunk)?;
            self.release_array(entry.key_chunk)?;
            self.release(entry.chunk);
            let count = self.u16_at(ENTRY_COUNT);
            self.put_u16(ENTRY_COUNT, count.saturating_sub(1));
        }
        Ok(sibling)
    }
}

fn check_value(value: &ZapValue) -> Result<Vec<u8>> {
    let bytes = value.stored();
    if bytes.len() > ZAP_MAX_VALUE_BYTES {
        return Err(does_not_fit(
            LEAF,
            "value",
            bytes.len() as u64,
            "at most 8192 bytes",
        ));
    }
    Ok(bytes)
}
