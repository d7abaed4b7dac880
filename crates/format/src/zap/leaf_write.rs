//! Changing the leaves of fat ZAPs; the layout is in the head of `leaf.rs`. A leaf that is changed
//! is little-endian. All that a change will touch is checked before anything is changed, so that an
//! error leaves the leaf as it was, also in a block that was not checked as a whole.

use super::leaf::{
    ARRAY_BYTES, CHAIN_END, CHUNK_ARRAY, CHUNK_BYTES, CHUNK_ENTRY, CHUNK_FREE, ENTRY_COUNT,
    FLAG_SORTED, FLAGS, FREE_COUNT, FREE_LIST, HEADER_BYTES, LEAF, LeafEntry, LeafInsert, MAGIC,
    PREFIX, PREFIX_BITS, ZapLeaf,
};
use super::{
    BLOCK_TYPE_LEAF, ZAP_MAX_VALUE_BYTES, ZapKey, ZapKeyKind, ZapValue, check_name, check_shift,
    zap_hash_index,
};
use crate::bytes::Endian;
use crate::error::{FormatError, Result, bad, does_not_fit};

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

    pub(super) fn set_prefix(&mut self, prefix: u64, bits: u16) {
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

    /// What must hold before a change, so that it does not stop half-way in a damaged leaf: the
    /// bytes are in the order in which we write, and the free list has this many chunks.
    fn check_free(&self, count: usize) -> Result<()> {
        if self.endian != Endian::Little {
            return Err(bad(
                LEAF,
                "byte order",
                0,
                "little-endian, as ZapLeaf::decode makes it",
            ));
        }
        let mut seen = Vec::with_capacity(count.min(self.chunk_count()));
        let mut chunk = self.u16_at(FREE_LIST);
        for _ in 0..count {
            let at = self.chunk_at(chunk, CHUNK_FREE)?;
            seen.push(chunk);
            chunk = self.u16_at(at + 22);
        }
        seen.sort_unstable();
        match seen.windows(2).find(|pair| pair[0] == pair[1]) {
            Some(pair) => Err(bad(
                LEAF,
                "lf_next",
                pair[0].into(),
                "a list without a loop",
            )),
            None => Ok(()),
        }
    }

    /// The chunks of an array of this length, which must end there.
    fn array_chunks(&self, first: u16, length: usize) -> Result<Vec<u16>> {
        let mut chunks = Vec::new();
        let mut chunk = first;
        for _ in 0..length.div_ceil(ARRAY_BYTES) {
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
        if chunk != CHAIN_END {
            return Err(bad(LEAF, "la_next", chunk.into(), "the end of the array"));
        }
        Ok(chunks)
    }

    /// Frees an array's chunks so that they stand in the free list in their order.
    fn release_array(&mut self, chunks: Vec<u16>) {
        for chunk in chunks.into_iter().rev() {
            self.release(chunk);
        }
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

    /// Puts an entry into free chunks, of which there must be enough; a leaf that lacks them is
    /// damaged.
    pub(super) fn put_entry(
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
        self.put_u16(ENTRY_COUNT, entries.saturating_add(1));
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
        self.check_free(chunks)?;
        self.chain(self.bucket(hash))
            .try_for_each(|entry| entry.map(drop))?;
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
        let old_chunks = self.array_chunks(now.value_chunk, now.value_bytes())?;
        let needed = bytes.len().div_ceil(ARRAY_BYTES);
        if needed > self.free_chunks() + old_chunks.len() {
            return Ok(LeafInsert::NoRoom);
        }
        self.check_free(needed.saturating_sub(old_chunks.len()))?;
        self.release_array(old_chunks);
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
        self.check_free(0)?;
        let value_chunks = self.array_chunks(now.value_chunk, now.value_bytes())?;
        let key_chunks = self.array_chunks(now.key_chunk, now.key_bytes(self.keys))?;
        self.put_u16(link, now.next);
        self.release_array(value_chunks);
        self.release_array(key_chunks);
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
        self.check_free(0)?;
        self.verify()?;
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
            self.release_array(self.array_chunks(entry.value_chunk, entry.value_bytes())?);
            self.release_array(self.array_chunks(entry.key_chunk, entry.key_bytes(self.keys))?);
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
