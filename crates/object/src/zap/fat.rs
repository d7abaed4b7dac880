//! Fat ZAPs: a header, a pointer table indexed by the first bits of the hash, and leaves.
//!
//! Block 0 is the header; its second half is the pointer table while that is small enough, later
//! the table is a run of blocks of its own. A leaf that is full is split in two by one more bit of
//! the hash; when that needs more bits than the table has, the table is doubled first (at once;
//! a doubling that OpenZFS left half done is finished first).
//!
//! Leaves are changed in place within the open slot's block, so adding a name costs two hash
//! lookups and the bytes of the entry.

use bytes::Bytes;
use format::{
    Endian, FAT_ZAP_BLOCK_SHIFT, FatZapHeader, LeafEntry, LeafInsert, ZapFlags, ZapKey, ZapKeyKind,
    ZapLeaf, double_pointers, zap_hash_index,
};
use zio::Tx;

use super::value::{ZapCursor, ZapEntry, ZapValue};
use crate::error::{ObjectError, OfObject, Result, damaged};
use crate::object::Object;
use crate::readahead::read_blocks_ahead;

/// Leaves that are read ahead of who goes through all entries, and entries of the pointer table in
/// which they are looked for.
const LEAVES_AHEAD: usize = 32;
const TABLE_AHEAD: usize = 2048;

/// A fat ZAP; the caller holds the ZAP's lock.
pub(super) struct Fat<'a> {
    pub object: &'a Object,
}

/// A leaf that was found for a hash.
pub(super) struct FoundLeaf {
    pub header: FatZapHeader,
    pub block: u64,
    pub leaf: ZapLeaf<Bytes>,
}

/// Where a leaf is, without its content.
#[derive(Clone, Copy)]
struct LeafPlace {
    header: FatZapHeader,
    block: u64,
    prefix_bits: u32,
}

impl FoundLeaf {
    fn place(&self) -> LeafPlace {
        LeafPlace {
            header: self.header,
            block: self.block,
            prefix_bits: self.leaf.prefix_bits(),
        }
    }

    /// The first hash of the next leaf; `None` after the last one.
    fn next_hash(&self, hash: u64) -> Option<u64> {
        let bits = self.leaf.prefix_bits();
        let low = u64::MAX.checked_shr(bits).unwrap_or(0);
        // Without a prefix this is the only leaf.
        (hash | low).checked_add(1)
    }
}

/// Where blocks come from: out of memory (no: try again when it was read), or an error.
enum Miss {
    NotInMemory,
    Failed(ObjectError),
}

impl From<ObjectError> for Miss {
    fn from(error: ObjectError) -> Self {
        Miss::Failed(error)
    }
}

/// Whether two names are equal after normalisation.
pub(super) type SameName<'a> = dyn Fn(&[u8], &[u8]) -> bool + Send + Sync + 'a;

/// Called with the name and the value of an entry ([`Fat::visit_u64`]).
pub(super) type Visit<'v> = &'v mut (dyn FnMut(&[u8], Option<u64>) -> Result<()> + Send);

/// What an entry's key may be compared by.
pub(super) enum Matches<'a> {
    Exactly,
    By(&'a (dyn Fn(&[u8]) -> bool + Send + Sync)),
}

impl Fat<'_> {
    fn missing_block(&self, block: u64) -> ObjectError {
        damaged(
            self.object.id(),
            "zap_phys_t",
            format!("block {block} is a hole"),
        )
    }

    /// A block in memory.
    fn try_block(&self, block: u64) -> std::result::Result<Bytes, Miss> {
        match self.object.try_block(block) {
            None => Err(Miss::NotInMemory),
            Some(Err(error)) => Err(Miss::Failed(error)),
            Some(Ok(None)) => Err(Miss::Failed(self.missing_block(block))),
            Some(Ok(Some(data))) => Ok(data),
        }
    }

    async fn block(&self, block: u64) -> Result<Bytes> {
        let data = self.object.block(block).await?;
        data.ok_or_else(|| self.missing_block(block))
    }

    fn header_of(&self, data: &[u8]) -> Result<FatZapHeader> {
        FatZapHeader::decode(data, Endian::Little).of(self.object.id())
    }

    pub(super) async fn header(&self) -> Result<FatZapHeader> {
        let data = self.block(0).await?;
        self.header_of(&data)
    }

    pub(super) fn try_header(&self) -> Option<Result<FatZapHeader>> {
        match self.try_block(0) {
            Ok(data) => Some(self.header_of(&data)),
            Err(Miss::NotInMemory) => None,
            Err(Miss::Failed(error)) => Some(Err(error)),
        }
    }

    fn open_leaf(&self, data: Bytes, keys: ZapKeyKind) -> Result<ZapLeaf<Bytes>> {
        ZapLeaf::open(data, Endian::Little, keys).of(self.object.id())
    }

    /// Entries per block of the pointer table as log2.
    fn table_shift(&self) -> u32 {
        (self.object.dnode.block_bytes() / 8)
            .max(1)
            .trailing_zeros()
    }

    /// Where a table's entry is: block and index in it.
    fn table_place(&self, first_block: u64, index: u64) -> (u64, usize) {
        let shift = self.table_shift();
        let block = first_block.saturating_add(index >> shift);
        (block, (index & ((1 << shift) - 1)) as usize)
    }

    fn find_with(
        &self,
        hash: u64,
        get: &mut dyn FnMut(u64) -> std::result::Result<Bytes, Miss>,
    ) -> std::result::Result<FoundLeaf, Miss> {
        let head = get(0)?;
        let header = self.header_of(&head)?;
        let index = zap_hash_index(hash, header.table.shift);
        let block = if header.has_embedded_table() {
            FatZapHeader::embedded_pointer(&head, Endian::Little, index)
        } else {
            let (block, at) = self.table_place(header.table.first_block, index);
            get(block)?
                .as_chunks::<8>()
                .0
                .get(at)
                .map(|word| u64::from_le_bytes(*word))
        };
        let id = self.object.id();
        let block = block
            .filter(|block| *block != 0 && *block < header.free_block)
            .ok_or_else(|| damaged(id, "zap_ptrtbl", format!("entry {index} points to no leaf")))?;
        let leaf = self.open_leaf(get(block)?, header.flags.key_kind())?;
        if !leaf.owns(hash) {
            let detail = format!("the leaf in block {block} has another prefix than its place");
            return Err(Miss::Failed(damaged(id, "zap_leaf_phys_t", detail)));
        }
        Ok(FoundLeaf {
            header,
            block,
            leaf,
        })
    }

    /// The leaf of a hash when everything is in memory.
    pub(super) fn try_find(&self, hash: u64) -> Option<Result<FoundLeaf>> {
        match self.find_with(hash, &mut |block| self.try_block(block)) {
            Ok(found) => Some(Ok(found)),
            Err(Miss::NotInMemory) => None,
            Err(Miss::Failed(error)) => Some(Err(error)),
        }
    }

    /// The leaf of a hash.
    pub(super) async fn find(&self, hash: u64) -> Result<FoundLeaf> {
        // The blocks read so far are kept, as the cache may drop them at once.
        let mut read: Vec<(u64, Bytes)> = Vec::new();
        loop {
            let mut wanted = None;
            let result = self.find_with(hash, &mut |block| {
                if let Some((_, data)) = read.iter().find(|(number, _)| *number == block) {
                    return Ok(data.clone());
                }
                let result = self.try_block(block);
                if let Err(Miss::NotInMemory) = result {
                    wanted = Some(block);
                }
                result
            });
            match (result, wanted) {
                (Ok(found), _) => return Ok(found),
                (Err(Miss::Failed(error)), _) => return Err(error),
                (Err(Miss::NotInMemory), Some(block)) => {
                    let data = self.block(block).await?;
                    read.push((block, data));
                }
                (Err(Miss::NotInMemory), None) => {
                    return Err(damaged(
                        self.object.id(),
                        "zap_phys_t",
                        "no block was asked for",
                    ));
                }
            }
        }
    }

    /// The entry of a key in its leaf.
    pub(super) fn entry(
        &self,
        found: &FoundLeaf,
        hash: u64,
        key: ZapKey<'_>,
        matches: &Matches<'_>,
    ) -> Result<Option<LeafEntry>> {
        match matches {
            Matches::Exactly => found.leaf.lookup(hash, key),
            Matches::By(matches) => found.leaf.lookup_with(hash, matches),
        }
        .of(self.object.id())
    }

    /// Changes a leaf in place. A leaf that comes from disk is checked whole first. What was found
    /// is given back before: a block that somebody else has is copied to be changed.
    async fn change_leaf<T: Send>(
        &self,
        tx: &Tx,
        found: FoundLeaf,
        change: impl FnOnce(&mut ZapLeaf<&mut [u8]>) -> format::Result<T> + Send,
    ) -> Result<T> {
        if !self.object.dnode.is_block_unwritten(found.block) {
            found.leaf.verify().of(self.object.id())?;
        }
        let place = found.place();
        drop(found);
        self.change_leaf_at(tx, place, change).await
    }

    /// The same of a leaf that was checked.
    async fn change_leaf_at<T: Send>(
        &self,
        tx: &Tx,
        place: LeafPlace,
        change: impl FnOnce(&mut ZapLeaf<&mut [u8]>) -> format::Result<T> + Send,
    ) -> Result<T> {
        let keys = place.header.flags.key_kind();
        self.object
            .modify_block(tx, place.block, |bytes| {
                let mut leaf = ZapLeaf::open(bytes, Endian::Little, keys)?;
                change(&mut leaf)
            })
            .await?
            .of(self.object.id())
    }

    async fn change_header(
        &self,
        tx: &Tx,
        change: impl FnOnce(&mut FatZapHeader) + Send,
    ) -> Result<()> {
        self.object
            .modify_block(tx, 0, |bytes| {
                let mut header = FatZapHeader::decode(bytes, Endian::Little)?;
                change(&mut header);
                header.encode_into(bytes)
            })
            .await?
            .of(self.object.id())
    }

    /// Brings a block into the open slot, so that changing it later needs no read: a change of
    /// several blocks then fails, or is dropped, before it begins or not at all.
    async fn touch(&self, tx: &Tx, block: u64) -> Result<()> {
        self.object.modify_block(tx, block, |_| ()).await
    }

    /// Adds an entry whose key is known not to be there.
    pub(super) async fn insert(
        &self,
        tx: &Tx,
        hash: u64,
        key: ZapKey<'_>,
        value: &format::ZapValue,
        cd: Option<u32>,
    ) -> Result<()> {
        let found = self.find(hash).await?;
        self.insert_into(tx, found, hash, key, value, cd).await
    }

    /// Adds an entry; false where there is one of this key.
    pub(super) async fn add(
        &self,
        tx: &Tx,
        hash: u64,
        key: ZapKey<'_>,
        value: &format::ZapValue,
    ) -> Result<bool> {
        let found = self.find(hash).await?;
        if self.entry(&found, hash, key, &Matches::Exactly)?.is_some() {
            return Ok(false);
        }
        self.insert_into(tx, found, hash, key, value, None).await?;
        Ok(true)
    }

    /// Adds an entry to the leaf of its hash, which is split as long as there is no room.
    async fn insert_into(
        &self,
        tx: &Tx,
        mut found: FoundLeaf,
        hash: u64,
        key: ZapKey<'_>,
        value: &format::ZapValue,
        cd: Option<u32>,
    ) -> Result<()> {
        self.touch(tx, 0).await?;
        loop {
            let place = found.place();
            let done = self
                .change_leaf(tx, found, |leaf| leaf.insert(hash, key, value, cd))
                .await?;
            match done {
                LeafInsert::Done { .. } => break,
                LeafInsert::NoRoom => self.split(tx, hash, place).await?,
            }
            found = self.find(hash).await?;
        }
        self.change_header(tx, |header| header.entries += 1).await
    }

    /// Replaces the value of an entry; false when there is none of this key.
    pub(super) async fn update(
        &self,
        tx: &Tx,
        hash: u64,
        key: ZapKey<'_>,
        value: &format::ZapValue,
    ) -> Result<bool> {
        loop {
            let found = self.find(hash).await?;
            let Some(entry) = self.entry(&found, hash, key, &Matches::Exactly)? else {
                return Ok(false);
            };
            let place = found.place();
            let done = self
                .change_leaf(tx, found, |leaf| leaf.update(&entry, value))
                .await?;
            match done {
                LeafInsert::Done { .. } => return Ok(true),
                LeafInsert::NoRoom => self.split(tx, hash, place).await?,
            }
        }
    }

    /// Removes an entry; false when there is none of this key.
    pub(super) async fn remove(&self, tx: &Tx, hash: u64, key: ZapKey<'_>) -> Result<bool> {
        let found = self.find(hash).await?;
        let Some(entry) = self.entry(&found, hash, key, &Matches::Exactly)? else {
            return Ok(false);
        };
        self.touch(tx, 0).await?;
        self.change_leaf(tx, found, |leaf| leaf.remove(&entry))
            .await?;
        self.change_header(tx, |header| {
            header.entries = header.entries.saturating_sub(1);
        })
        .await?;
        Ok(true)
    }

    /// Splits a leaf in two, doubling the pointer table first when it must be.
    async fn split(&self, tx: &Tx, hash: u64, leaf: LeafPlace) -> Result<()> {
        let bits = leaf.prefix_bits;
        self.touch(tx, 0).await?;
        let mut header = self.finish_doubling(tx, leaf.header).await?;
        while bits >= header.table.shift {
            header = self.double_table(tx, header).await?;
        }
        let sorted = header.normalization != 0;
        let spread = header.table.shift - (bits + 1);
        let first = (zap_hash_index(hash, bits + 1) | 1) << spread;
        let count = 1u64 << spread;
        if !header.has_embedded_table() {
            let (start, _) = self.table_place(header.table.first_block, first);
            let (end, _) = self.table_place(header.table.first_block, first + count - 1);
            for block in start..=end {
                self.touch(tx, block).await?;
            }
        }
        // From here on nothing may fail: entries would be in neither leaf.
        let block = header.free_block;
        let block_bytes = self.object.dnode.block_bytes();
        let offset = block.saturating_mul(block_bytes);
        self.object.prepare_write(offset, block_bytes).await?;
        let sibling = self
            .change_leaf_at(tx, leaf, |leaf| leaf.split(sorted))
            .await?;
        header.free_block += 1;
        header.leaves += 1;
        let bytes = Bytes::from(sibling.into_bytes());
        self.object.write_prepared(tx, offset, bytes).await?;
        self.change_header(tx, |now| {
            now.free_block = header.free_block;
            now.leaves = header.leaves;
        })
        .await?;
        self.set_pointers(tx, &header, first, count, block).await
    }

    pub(super) async fn write_block(&self, tx: &Tx, block: u64, bytes: Vec<u8>) -> Result<()> {
        let offset = block * self.object.dnode.block_bytes();
        self.object.write(tx, offset, Bytes::from(bytes)).await
    }

    /// Lets `count` entries of the table from `first` on point to a leaf.
    async fn set_pointers(
        &self,
        tx: &Tx,
        header: &FatZapHeader,
        first: u64,
        count: u64,
        leaf: u64,
    ) -> Result<()> {
        if header.has_embedded_table() {
            let all_there = self
                .object
                .modify_block(tx, 0, |bytes| {
                    (first..first + count).fold(true, |all, index| {
                        all & FatZapHeader::set_embedded_pointer(bytes, index, leaf)
                    })
                })
                .await?;
            return if all_there {
                Ok(())
            } else {
                Err(damaged(
                    self.object.id(),
                    "zap_ptrtbl",
                    "the table is too short",
                ))
            };
        }
        let mut index = first;
        while index < first + count {
            let (block, at) = self.table_place(header.table.first_block, index);
            let run = ((1usize << self.table_shift()) - at).min((first + count - index) as usize);
            self.object
                .modify_block(tx, block, |bytes| {
                    for word in &mut bytes.as_chunks_mut::<8>().0[at..at + run] {
                        *word = leaf.to_le_bytes();
                    }
                })
                .await?;
            index += run as u64;
        }
        Ok(())
    }

    /// Makes the table twice as long (`zap_grow_ptrtbl`).
    async fn double_table(&self, tx: &Tx, header: FatZapHeader) -> Result<FatZapHeader> {
        let limit = header.hasher().bits() - 2;
        if header.table.shift >= limit {
            // ENOSPC of `zap_grow_ptrtbl`: what does not fit differs in none of the bits that
            // count.
            return Err(ObjectError::NoRoomForName {
                object: self.object.id(),
            });
        }
        if header.has_embedded_table() {
            let head = self.block(0).await?;
            let half = &head[head.len() / 2..];
            let doubled = double_pointers(Endian::Little.words(half));
            let block = header.free_block;
            self.write_block(tx, block, doubled).await?;
            let mut new = header;
            new.free_block += 1;
            new.table.first_block = block;
            new.table.blocks = 1;
            new.table.shift += 1;
            self.object
                .modify_block(tx, 0, |bytes| {
                    // What was the table means nothing any more.
                    let half = bytes.len() / 2;
                    bytes[half..].fill(0);
                    new.encode_into(bytes)
                })
                .await?
                .of(self.object.id())?;
            return Ok(new);
        }
        let mut new = header;
        new.table.next_first_block = header.free_block;
        new.table.blocks_copied = 0;
        new.free_block += header.table.blocks * 2;
        self.finish_doubling(tx, new).await
    }

    /// Copies what is left to be copied to a table of double length, and switches to it.
    async fn finish_doubling(&self, tx: &Tx, header: FatZapHeader) -> Result<FatZapHeader> {
        if header.table.next_first_block == 0 {
            return Ok(header);
        }
        for number in header.table.blocks_copied..header.table.blocks {
            let old = self.block(header.table.first_block + number).await?;
            let doubled = double_pointers(Endian::Little.words(&old));
            let half = doubled.len() / 2;
            let target = header.table.next_first_block + number * 2;
            self.write_block(tx, target, doubled[..half].to_vec())
                .await?;
            self.write_block(tx, target + 1, doubled[half..].to_vec())
                .await?;
        }
        let mut new = header;
        new.table.first_block = header.table.next_first_block;
        new.table.blocks *= 2;
        new.table.shift += 1;
        new.table.next_first_block = 0;
        new.table.blocks_copied = 0;
        self.change_header(tx, |now| {
            now.table = new.table;
            now.free_block = new.free_block;
        })
        .await?;
        let block_bytes = self.object.dnode.block_bytes();
        self.object
            .free_range(
                tx,
                header.table.first_block * block_bytes,
                header.table.blocks * block_bytes,
            )
            .await?;
        Ok(new)
    }

    /// Makes block 0 and 1 of an empty ZAP.
    pub(super) async fn format(
        &self,
        tx: &Tx,
        salt: u64,
        normalization: u64,
        flags: ZapFlags,
    ) -> Result<()> {
        let id = self.object.id();
        let shift = self.object.dnode.block_bytes().trailing_zeros();
        let header = FatZapHeader::new(shift, salt, normalization, flags);
        let block = header.encode_new_block(shift).of(id)?;
        let leaf = ZapLeaf::new(shift, normalization != 0, flags.key_kind()).of(id)?;
        self.write_block(tx, 0, block).await?;
        self.write_block(tx, 1, leaf.into_bytes()).await
    }

    /// Starts reading the leaves at and after a hash, as far as the table that leads to them is in
    /// memory.
    fn read_leaves_ahead(&self, hash: u64) {
        let Ok(head) = self.try_block(0) else { return };
        let Ok(header) = self.header_of(&head) else {
            return;
        };
        let first = zap_hash_index(hash, header.table.shift);
        let indexes = (first..=zap_hash_index(u64::MAX, header.table.shift)).take(TABLE_AHEAD);
        let pointer = |index| {
            if header.has_embedded_table() {
                return FatZapHeader::embedded_pointer(&head, Endian::Little, index);
            }
            let (block, at) = self.table_place(header.table.first_block, index);
            let table = self.try_block(block).ok()?;
            let word = table.as_chunks::<8>().0.get(at)?;
            Some(u64::from_le_bytes(*word))
        };
        let mut blocks: Vec<u64> = indexes.map_while(pointer).collect();
        // Several entries in a row lead to a leaf that was not split as often.
        blocks.dedup();
        blocks.retain(|block| *block != 0 && *block < header.free_block);
        blocks.truncate(LEAVES_AHEAD);
        read_blocks_ahead(self.object, blocks);
    }

    /// Up to `limit` entries at or after a cursor, in order.
    pub(super) async fn entries(
        &self,
        cursor: ZapCursor,
        limit: usize,
        same_name: Option<&SameName<'_>>,
    ) -> Result<Vec<ZapEntry>> {
        let id = self.object.id();
        let bits = self.header().await?.hasher().bits();
        let mut out = Vec::new();
        let Some((mut hash, mut cd)) = cursor.place(bits) else {
            return Ok(out);
        };
        while out.len() < limit {
            let found = self.find_ahead(hash).await?;
            let leaf = &found.leaf;
            let entries = leaf.entries().of(id)?;
            let first = entries.partition_point(|entry| (entry.hash, entry.cd) < (hash, cd));
            for entry in entries[first..].iter().take(limit - out.len()) {
                let name = match leaf.key(entry).of(id)? {
                    format::ZapKeyBuf::Name(name) => Bytes::from(name),
                    format::ZapKeyBuf::Words(words) => {
                        words.iter().flat_map(|word| word.to_le_bytes()).collect()
                    }
                };
                let mut conflict = false;
                if let Some(same_name) = same_name {
                    for other in entries
                        .iter()
                        .filter(|other| other.hash == entry.hash && other.cd != entry.cd)
                    {
                        if let format::ZapKeyBuf::Name(other) = leaf.key(other).of(id)? {
                            conflict |= same_name(&name, &other);
                        }
                    }
                }
                out.push(ZapEntry {
                    name,
                    value: ZapValue::from_format(&leaf.value(entry).of(id)?),
                    normalization_conflict: conflict,
                    next: ZapCursor::at(entry.hash, entry.cd.saturating_add(1), bits),
                });
            }
            let Some(next) = found.next_hash(hash) else {
                break;
            };
            (hash, cd) = (next, 0);
        }
        Ok(out)
    }

    /// The leaf of a hash, where those after it will be asked for.
    async fn find_ahead(&self, hash: u64) -> Result<FoundLeaf> {
        if let Some(found) = self.try_find(hash) {
            return found;
        }
        self.read_leaves_ahead(hash);
        self.find(hash).await
    }

    /// Calls `visit` with the name and the value of each entry, in no order; a value that is not
    /// one 64-bit integer is `None`. Each leaf is looked at once, and no entry is copied twice.
    pub(super) async fn visit_u64(&self, visit: Visit<'_>) -> Result<()> {
        let id = self.object.id();
        let mut at = Some(0);
        while let Some(hash) = at {
            let found = self.find_ahead(hash).await?;
            for entry in found.leaf.entries().of(id)? {
                let format::ZapKeyBuf::Name(name) = found.leaf.key(&entry).of(id)? else {
                    return Err(damaged(id, "zap_leaf_phys_t", "a key is not a name"));
                };
                visit(&name, found.leaf.value_u64(&entry).of(id)?)?;
            }
            at = found.next_hash(hash);
        }
        Ok(())
    }

    /// log2 of a fat ZAP's default block size.
    pub(super) const DEFAULT_SHIFT: u32 = FAT_ZAP_BLOCK_SHIFT;
}
