//! Lists of block pointers (bpobj, module/zfs/bpobj.c): deadlists, deferred frees, what is to be
//! freed in the background.
//!
//! The object is an array of block pointers; its bonus counts them and their space. A list may
//! include others ("subobjs"): an object that is an array of their numbers; their space is part of
//! the including list's. Pointers are stored without what freeing does not need (checksums unless
//! deduplicated, payloads of embedded blocks), which compresses well.
//!
//! Lists live in the MOS and are changed in syncing context only, by one task.

use std::sync::Arc;

use bytes::Bytes;
use device::BoxFuture;
use format::{
    BLOCK_POINTER_BYTES, BlockPointer, BpobjPhys, BpobjSizes, BpobjSublists, Endian, ObjectId,
    ObjectType, Txg,
};
use zio::Tx;

use crate::error::{ObjectError, OfObject, Result, damaged};
use crate::object::Object;
use crate::objset::ObjectSet;
use crate::options::NewObject;

/// Block size of lists and of arrays of their numbers (`SPA_OLD_MAXBLOCKSIZE`).
const BLOCK_BYTES: u32 = 128 << 10;
/// Lists that include lists that include lists ...: deeper is damage.
const DEPTH_MAX: u32 = 64;

/// Space that a list's blocks take, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct BpobjSpace {
    /// Allocated, deflated (`bpo_bytes`).
    pub used_bytes: u64,
    /// Compressed (`bpo_comp`).
    pub compressed_bytes: u64,
    /// Uncompressed (`bpo_uncomp`).
    pub uncompressed_bytes: u64,
}

impl BpobjSpace {
    /// Space of one block, as lists count it (`bpobj_enqueue`).
    pub fn of_block(pipeline: &zio::Pipeline, block: &BlockPointer) -> Self {
        let uncompressed_bytes = if block.is_metadata() {
            block.psize_bytes()
        } else {
            block.lsize_bytes()
        };
        BpobjSpace {
            used_bytes: pipeline.dsize_bytes(block),
            compressed_bytes: block.psize_bytes(),
            uncompressed_bytes,
        }
    }

    /// The sum. Wraps, as a livelist's entries may be taken away before the ones they cancel.
    pub fn plus(self, other: Self) -> Self {
        BpobjSpace {
            used_bytes: self.used_bytes.wrapping_add(other.used_bytes),
            compressed_bytes: self.compressed_bytes.wrapping_add(other.compressed_bytes),
            uncompressed_bytes: self
                .uncompressed_bytes
                .wrapping_add(other.uncompressed_bytes),
        }
    }

    /// The difference. Wraps.
    pub fn minus(self, other: Self) -> Self {
        BpobjSpace {
            used_bytes: self.used_bytes.wrapping_sub(other.used_bytes),
            compressed_bytes: self.compressed_bytes.wrapping_sub(other.compressed_bytes),
            uncompressed_bytes: self
                .uncompressed_bytes
                .wrapping_sub(other.uncompressed_bytes),
        }
    }
}

/// A list of block pointers, which may include other lists.
#[derive(Clone, Debug)]
pub struct Bpobj {
    object: Object,
}

/// Called with a block and whether it is marked "freed" (livelists).
type Visit<'v> = &'v mut (dyn FnMut(&BlockPointer, bool) -> Result<()> + Send);

impl Bpobj {
    /// Opens a list.
    ///
    /// # Errors
    /// [`ObjectError::WrongType`]; errors of reading.
    pub async fn open(objset: &Arc<ObjectSet>, id: ObjectId) -> Result<Self> {
        let object = objset.hold(id).await?;
        let info = object.info();
        if info.object_type != ObjectType::BPOBJ || info.bonus_type != ObjectType::BPOBJ_HDR {
            return Err(ObjectError::WrongType {
                object: id,
                found: info.object_type,
                expected: "a list of block pointers (bpobj)",
            });
        }
        let list = Bpobj { object };
        list.phys()?;
        Ok(list)
    }

    /// Creates an empty list; `block_bytes` 0 for the default (128 KiB).
    ///
    /// # Errors
    /// As [`ObjectSet::allocate`].
    pub async fn create(objset: &Arc<ObjectSet>, tx: &Tx, block_bytes: u32) -> Result<Self> {
        // Without the word that counts "freed" entries: only livelists have those.
        let phys = BpobjPhys {
            freed: None,
            ..BpobjPhys::new()
        };
        Self::create_as(objset, tx, block_bytes, &phys).await
    }

    /// Creates an empty list as pools before version 26 have it, which cannot include others.
    ///
    /// # Errors
    /// As [`ObjectSet::allocate`].
    pub async fn create_plain(objset: &Arc<ObjectSet>, tx: &Tx, block_bytes: u32) -> Result<Self> {
        let phys = BpobjPhys {
            sublists: None,
            freed: None,
            ..BpobjPhys::new()
        };
        Self::create_as(objset, tx, block_bytes, &phys).await
    }

    /// Creates an empty livelist, whose entries may say "freed".
    ///
    /// # Errors
    /// As [`ObjectSet::allocate`].
    pub async fn create_livelist(objset: &Arc<ObjectSet>, tx: &Tx) -> Result<Self> {
        Self::create_as(objset, tx, 0, &BpobjPhys::new()).await
    }

    async fn create_as(
        objset: &Arc<ObjectSet>,
        tx: &Tx,
        block_bytes: u32,
        phys: &BpobjPhys,
    ) -> Result<Self> {
        let size = match block_bytes {
            0 => BLOCK_BYTES,
            bytes => bytes,
        };
        let new = NewObject::new(ObjectType::BPOBJ)
            .with_block_bytes(size)
            .with_bonus(ObjectType::BPOBJ_HDR, phys.encode());
        let object = objset.allocate(tx, new).await?;
        Ok(Bpobj { object })
    }

    fn objset(&self) -> &Arc<ObjectSet> {
        self.object.objset()
    }

    /// Its number.
    pub fn id(&self) -> ObjectId {
        self.object.id()
    }

    /// Its head.
    ///
    /// # Errors
    /// [`ObjectError::Format`].
    pub fn phys(&self) -> Result<BpobjPhys> {
        BpobjPhys::decode(&self.object.bonus(), Endian::Little).of(self.id())
    }

    fn set_phys(&self, tx: &Tx, phys: &BpobjPhys) -> Result<()> {
        self.object.set_bonus(tx, phys.encode())
    }

    /// Frees the list and all lists it includes, not the blocks that they name.
    ///
    /// # Errors
    /// Errors of reading the lists' heads.
    pub async fn destroy(self, tx: &Tx) -> Result<()> {
        self.destroy_at(tx, 0).await
    }

    fn destroy_at<'a>(&'a self, tx: &'a Tx, depth: u32) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let sublists = self.phys()?.sublists.unwrap_or_default();
            if !sublists.object.is_zero() {
                for index in 0..sublists.count {
                    let list = self.sublist(&sublists, index, depth).await?;
                    list.destroy_at(tx, depth + 1).await?;
                }
                self.objset().free(tx, sublists.object).await?;
            }
            self.objset().free(tx, self.id()).await
        })
    }

    /// Opens an included list.
    async fn sublist(&self, sublists: &BpobjSublists, index: u64, depth: u32) -> Result<Bpobj> {
        if depth >= DEPTH_MAX {
            let detail = format!("lists include each other more than {DEPTH_MAX} deep");
            return Err(damaged(self.id(), "bpobj_phys_t", detail));
        }
        let array = self.objset().hold(sublists.object).await?;
        let word = array.read_bytes(index * 8, 8).await?;
        let id = word
            .first_chunk()
            .map_or(0, |word| u64::from_le_bytes(*word));
        Bpobj::open(self.objset(), ObjectId::new(id)).await
    }

    /// Appends a block; `freed` is for livelists.
    ///
    /// # Errors
    /// Errors of reading the last block.
    pub async fn append(&self, tx: &Tx, block: &BlockPointer, freed: bool) -> Result<()> {
        self.append_with(tx, std::slice::from_ref(block), freed)
            .await
    }

    /// Appends many blocks at once.
    ///
    /// # Errors
    /// As [`Self::append`].
    pub async fn append_all(&self, tx: &Tx, blocks: &[BlockPointer]) -> Result<()> {
        self.append_with(tx, blocks, false).await
    }

    /// Appends many blocks at once; `freed` is for livelists.
    ///
    /// # Errors
    /// As [`Self::append`].
    pub async fn append_with(&self, tx: &Tx, blocks: &[BlockPointer], freed: bool) -> Result<()> {
        let mut phys = self.phys()?;
        if freed && phys.freed.is_none() {
            return Err(ObjectError::Misuse {
                object: self.id(),
                what: "a freed block was appended to a list that is no livelist",
            });
        }
        let pipeline = self.objset().pipeline();
        let mut bytes = Vec::with_capacity(blocks.len() * BLOCK_POINTER_BYTES);
        let mut space = BpobjSpace::default();
        for block in blocks.iter().filter(|block| !block.is_hole()) {
            bytes.extend_from_slice(&stored(block, freed).encode());
            space = space.plus(BpobjSpace::of_block(pipeline, block));
        }
        let count = (bytes.len() / BLOCK_POINTER_BYTES) as u64;
        if count == 0 {
            return Ok(());
        }
        let offset = phys.pointers * BLOCK_POINTER_BYTES as u64;
        self.object.write(tx, offset, Bytes::from(bytes)).await?;
        phys.pointers += count;
        if freed {
            phys.freed = phys.freed.map(|freed| freed + count);
            add_space(&mut phys, BpobjSpace::default().minus(space));
        } else {
            add_space(&mut phys, space);
        }
        self.set_phys(tx, &phys)
    }

    /// Whether the object's data fits one of its blocks.
    fn is_one_block(object: &Object) -> bool {
        object.info().max_block_id == 0
    }

    /// Includes another list, which belongs to this one from then on (`bpobj_enqueue_subobj`). An
    /// empty one is freed instead; a short one's content is copied and the list freed.
    ///
    /// # Errors
    /// [`ObjectError::Misuse`] when this list is of a version without included lists; errors of
    /// reading.
    pub async fn include(&self, tx: &Tx, other: ObjectId) -> Result<()> {
        let list = Bpobj::open(self.objset(), other).await?;
        if list.is_empty().await? {
            return list.destroy(tx).await;
        }
        let space = list.space().await?;
        let mut theirs = list.phys()?;
        let mut phys = self.phys()?;
        let Some(mut sublists) = phys.sublists else {
            return Err(ObjectError::Misuse {
                object: self.id(),
                what: "a list of an old version cannot include others",
            });
        };
        let mut copy_blocks = Self::is_one_block(&list.object);
        if let Some(subs) = theirs.sublists.filter(|subs| !subs.object.is_zero()) {
            let array = self.objset().hold(subs.object).await?;
            if Self::is_one_block(&array) {
                let length = usize::try_from(subs.count * 8).unwrap_or(usize::MAX);
                if length as u64 > u64::from(array.info().data_block_bytes) {
                    let detail = format!("{} included lists do not fit their block", subs.count);
                    return Err(damaged(other, "bpobj_phys_t", detail));
                }
                let numbers = array.read_bytes(0, length).await?;
                self.append_sublists(tx, &mut sublists, numbers).await?;
                theirs.sublists = Some(BpobjSublists::default());
                list.set_phys(tx, &theirs)?;
                self.objset().free(tx, subs.object).await?;
            } else {
                copy_blocks = false;
            }
        }
        if copy_blocks {
            let length = theirs.pointers.saturating_mul(BLOCK_POINTER_BYTES as u64);
            if length > u64::from(list.object.info().data_block_bytes) {
                let detail = format!("{} pointers do not fit their block", theirs.pointers);
                return Err(damaged(other, "bpobj_phys_t", detail));
            }
            let blocks = list.object.read_bytes(0, length as usize).await?;
            let offset = phys.pointers * BLOCK_POINTER_BYTES as u64;
            self.object.write(tx, offset, blocks).await?;
            phys.pointers += theirs.pointers;
            self.objset().free(tx, other).await?;
        } else {
            let number = Bytes::copy_from_slice(&other.get().to_le_bytes());
            self.append_sublists(tx, &mut sublists, number).await?;
        }
        phys.sublists = Some(sublists);
        add_space(&mut phys, space);
        self.set_phys(tx, &phys)
    }

    /// Reads what [`Self::include`] and [`Self::append`] need of this list, as the one that is
    /// joined or the one that joins, before either begins. Answers the object of the lists that it
    /// includes, zero for none.
    ///
    /// # Errors
    /// Errors of reading.
    pub async fn prepare_join(&self) -> Result<ObjectId> {
        let phys = self.phys()?;
        self.object.prepare_dnode().await?;
        if let Some(last) = phys.pointers.checked_sub(1) {
            self.pointers(last, 1).await?;
        }
        let end = phys.pointers * BLOCK_POINTER_BYTES as u64;
        self.object.prepare_write(end, 1).await?;
        let sublists = phys.sublists.unwrap_or_default();
        if !sublists.object.is_zero() {
            let array = self.objset().hold(sublists.object).await?;
            array.prepare_write(sublists.count * 8, 8).await?;
            if let Some(last) = sublists.count.checked_sub(1) {
                array.read_bytes(last * 8, 8).await?;
            }
        }
        Ok(sublists.object)
    }

    async fn append_sublists(
        &self,
        tx: &Tx,
        sublists: &mut BpobjSublists,
        numbers: Bytes,
    ) -> Result<()> {
        if numbers.is_empty() {
            return Ok(());
        }
        let array = if sublists.object.is_zero() {
            let new = NewObject::new(ObjectType::BPOBJ_SUBOBJ).with_block_bytes(BLOCK_BYTES);
            let array = self.objset().allocate(tx, new).await?;
            sublists.object = array.id();
            array
        } else {
            self.objset().hold(sublists.object).await?
        };
        let count = numbers.len() as u64 / 8;
        array.write(tx, sublists.count * 8, numbers).await?;
        sublists.count += count;
        Ok(())
    }

    /// Space of all blocks, included lists' too.
    ///
    /// # Errors
    /// Errors of reading, for lists of the oldest version, which do not count all of it.
    pub async fn space(&self) -> Result<BpobjSpace> {
        let phys = self.phys()?;
        match phys.sizes {
            Some(sizes) => Ok(BpobjSpace {
                used_bytes: phys.used_bytes,
                compressed_bytes: sizes.compressed_bytes,
                uncompressed_bytes: sizes.uncompressed_bytes,
            }),
            None => self.sum_space(Txg::ZERO, Txg::new(u64::MAX)).await,
        }
    }

    /// Space of blocks born in `(min_txg, max_txg]`.
    ///
    /// # Errors
    /// Errors of reading.
    pub async fn space_range(&self, min_txg: Txg, max_txg: Txg) -> Result<BpobjSpace> {
        let whole = min_txg < Txg::INITIAL && max_txg.get() == u64::MAX;
        if whole && self.phys()?.sizes.is_some() {
            return self.space().await;
        }
        self.sum_space(min_txg, max_txg).await
    }

    async fn sum_space(&self, min_txg: Txg, max_txg: Txg) -> Result<BpobjSpace> {
        let pipeline = self.objset().pipeline().clone();
        let mut sum = BpobjSpace::default();
        self.for_each(&mut |block, freed| {
            if block.birth() > min_txg && block.birth() <= max_txg {
                let space = BpobjSpace::of_block(&pipeline, block);
                sum = if freed {
                    sum.minus(space)
                } else {
                    sum.plus(space)
                };
            }
            Ok(())
        })
        .await?;
        Ok(sum)
    }

    /// Whether it names no block.
    ///
    /// # Errors
    /// [`ObjectError::Format`].
    pub async fn is_empty(&self) -> Result<bool> {
        let phys = self.phys()?;
        Ok(phys.pointers == 0 && phys.sublists.unwrap_or_default().count == 0)
    }

    /// Calls `visit` with every block and whether it is marked "freed", oldest first, then those of
    /// included lists; changes nothing.
    ///
    /// # Errors
    /// Errors of reading, and what `visit` returns.
    pub async fn for_each(
        &self,
        visit: &mut (dyn FnMut(&BlockPointer, bool) -> Result<()> + Send),
    ) -> Result<()> {
        self.for_each_at(visit, 0).await
    }

    /// Blocks of the list itself from the `first`th on, as many as one read gives; none at its end.
    /// Those of included lists are not among them.
    ///
    /// # Errors
    /// Errors of reading.
    pub async fn own_blocks(&self, first: u64) -> Result<Vec<BlockPointer>> {
        let left = self.phys()?.pointers.saturating_sub(first);
        if left == 0 {
            return Ok(Vec::new());
        }
        let bytes = self.pointers(first, self.per_block().min(left)).await?;
        Ok(BlockPointer::decode_all(&bytes, Endian::Little).collect())
    }

    fn for_each_at<'a>(&'a self, visit: Visit<'a>, depth: u32) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let phys = self.phys()?;
            let per_block = self.per_block();
            let mut at = 0;
            while at < phys.pointers {
                let count = per_block.min(phys.pointers - at);
                let bytes = self.pointers(at, count).await?;
                for block in BlockPointer::decode_all(&bytes, Endian::Little) {
                    visit(&block, is_freed(&phys, &block))?;
                }
                at += count;
            }
            let sublists = phys.sublists.unwrap_or_default();
            for index in 0..sublists.count {
                let list = self.sublist(&sublists, index, depth).await?;
                list.for_each_at(&mut *visit, depth + 1).await?;
            }
            Ok(())
        })
    }

    fn per_block(&self) -> u64 {
        (u64::from(self.object.info().data_block_bytes) / BLOCK_POINTER_BYTES as u64).max(1)
    }

    /// `count` pointers from `first` on; at most a block's.
    async fn pointers(&self, first: u64, count: u64) -> Result<Bytes> {
        let bytes = BLOCK_POINTER_BYTES as u64;
        self.object
            .read_bytes(first * bytes, (count * bytes) as usize)
            .await
    }

    /// Takes up to `limit` blocks off the end, calling `visit` with each; included lists that
    /// become empty are freed. Where a list cannot be read, exactly what was visited is off the
    /// list. When `visit` fails, nothing of the batch (at most a block of pointers) that it failed
    /// in is taken off.
    pub async fn drain(
        &self,
        tx: &Tx,
        limit: u64,
        visit: &mut (dyn FnMut(&BlockPointer) -> Result<()> + Send),
    ) -> Drained {
        let mut visit = |block: &BlockPointer, _: bool| visit(block);
        let mut taken = Taken::default();
        let result = self.drain_at(tx, limit, &mut visit, 0, &mut taken).await;
        Drained {
            taken: taken.count,
            failed: result.err(),
        }
    }

    /// Takes blocks off; adds them to `taken` as soon as they are off this list, their space too.
    fn drain_at<'a>(
        &'a self,
        tx: &'a Tx,
        limit: u64,
        visit: Visit<'a>,
        depth: u32,
        taken: &'a mut Taken,
    ) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let pipeline = self.objset().pipeline().clone();
            let mut phys = self.phys()?;
            while phys.pointers > 0 && taken.count < limit {
                let per_block = self.per_block();
                let start = (phys.pointers - 1) / per_block * per_block;
                let first = start.max(phys.pointers.saturating_sub(limit - taken.count));
                let count = phys.pointers - first;
                let bytes = self.pointers(first, count).await?;
                let mut batch = BpobjSpace::default();
                let blocks: Vec<_> = BlockPointer::decode_all(&bytes, Endian::Little).collect();
                for block in blocks.iter().rev() {
                    let freed = is_freed(&phys, block);
                    visit(block, freed)?;
                    let of_block = BpobjSpace::of_block(&pipeline, block);
                    batch = if freed {
                        batch.minus(of_block)
                    } else {
                        batch.plus(of_block)
                    };
                }
                let freed = blocks.iter().filter(|block| is_freed(&phys, block)).count() as u64;
                phys.freed = phys.freed.map(|count| count.saturating_sub(freed));
                phys.pointers = first;
                add_space(&mut phys, BpobjSpace::default().minus(batch));
                taken.add(count, batch);
                self.set_phys(tx, &phys)?;
                // Where this fails, what is behind the list's end stays there, and nobody reads it.
                let offset = first * BLOCK_POINTER_BYTES as u64;
                self.object.free_range(tx, offset, u64::MAX).await?;
            }
            while taken.count < limit
                && let Some(mut sublists) = phys.sublists.filter(|lists| lists.count > 0)
            {
                let last = sublists.count - 1;
                let list = self.sublist(&sublists, last, depth).await?;
                let mut below = Taken::default();
                let left = limit - taken.count;
                let result = list.drain_at(tx, left, &mut *visit, depth + 1, &mut below);
                let result = result.await;
                taken.add(below.count, below.space);
                add_space(&mut phys, BpobjSpace::default().minus(below.space));
                let is_empty = result.is_ok() && list.is_empty().await?;
                if is_empty {
                    sublists.count = last;
                    phys.sublists = Some(sublists);
                }
                self.set_phys(tx, &phys)?;
                result?;
                if is_empty {
                    // Nothing names it any more, should this fail.
                    list.destroy(tx).await?;
                    let array = self.objset().hold(sublists.object).await?;
                    array.free_range(tx, last * 8, 8).await?;
                }
            }
            Ok(())
        })
    }
}

/// What [`Bpobj::drain`] did.
#[derive(Debug)]
pub struct Drained {
    /// Blocks that were taken off.
    pub taken: u64,
    /// Why it ended before its limit and the list's begin: a list could not be read, or what
    /// `visit` said.
    pub failed: Option<ObjectError>,
}

/// What was taken off a list.
#[derive(Debug, Default)]
struct Taken {
    count: u64,
    space: BpobjSpace,
}

impl Taken {
    fn add(&mut self, count: u64, space: BpobjSpace) {
        self.count += count;
        self.space = self.space.plus(space);
    }
}

/// A pointer as lists store it.
fn stored(block: &BlockPointer, freed: bool) -> BlockPointer {
    // Words of a block pointer (include/sys/spa.h): properties, logical birth, fill.
    const PROP: usize = 6;
    const LOGICAL_BIRTH: usize = 10;
    const FILL: usize = 11;
    let mut words = if block.is_embedded() {
        let mut words = [0; 16];
        words[PROP] = block.words()[PROP];
        words[LOGICAL_BIRTH] = block.words()[LOGICAL_BIRTH];
        words
    } else {
        let mut out = *block;
        if !block.is_dedup() {
            out.set_checksum([0; 4]);
        }
        *out.words()
    };
    words[FILL] = 0;
    let mut out = BlockPointer::from_words(words);
    out.set_livelist_free(freed);
    out
}

fn is_freed(phys: &BpobjPhys, block: &BlockPointer) -> bool {
    phys.freed.is_some() && block.livelist_free()
}

fn add_space(phys: &mut BpobjPhys, space: BpobjSpace) {
    phys.used_bytes = phys.used_bytes.wrapping_add(space.used_bytes);
    if let Some(sizes) = &mut phys.sizes {
        *sizes = BpobjSizes {
            compressed_bytes: sizes.compressed_bytes.wrapping_add(space.compressed_bytes),
            uncompressed_bytes: sizes
                .uncompressed_bytes
                .wrapping_add(space.uncompressed_bytes),
        };
    }
}
