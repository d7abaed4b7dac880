//! Trees to be freed in the background (bptree, module/zfs/bptree.c; feature `async_destroy`).
//!
//! The object is an array of entries; those from `begin` to `end` (in the bonus) wait. It lives in
//! the MOS and is changed in syncing context only.

use std::sync::Arc;

use bytes::Bytes;
use format::{BlockPointer, Bookmark, BptreePhys, Endian, ObjectId, ObjectType, ObjsetId, Txg};
use zio::Tx;

use crate::bpobj::BpobjSpace;
use crate::error::{ObjectError, OfObject, Result};
use crate::object::Object;
use crate::objset::ObjectSet;
use crate::options::NewObject;

const BLOCK_BYTES: u32 = 128 << 10;
const ENTRY_BYTES: u64 = format::BptreeEntry::BYTES as u64;

/// One tree that waits to be freed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BptreeEntry {
    /// Root block of the dataset.
    pub root: BlockPointer,
    /// Only blocks born after this txg are freed.
    pub birth_txg: Txg,
    /// Where an interrupted traversal goes on: objset, object, level, block.
    pub bookmark: [u64; 4],
}

impl BptreeEntry {
    /// The `birth_txg` of an entry of which everything is free.
    pub const FINISHED: Txg = Txg::new(u64::MAX);

    fn to_format(self) -> format::BptreeEntry {
        let [objset, object, level, block] = self.bookmark;
        let bookmark = Bookmark::new(
            ObjsetId::new(objset),
            ObjectId::new(object),
            level as i64,
            block,
        );
        format::BptreeEntry {
            block: self.root,
            birth: self.birth_txg,
            bookmark,
        }
    }

    fn from_format(entry: &format::BptreeEntry) -> Self {
        BptreeEntry {
            root: entry.block,
            birth_txg: entry.birth,
            bookmark: entry.bookmark.to_words(),
        }
    }
}

/// A queue of trees.
#[derive(Clone, Debug)]
pub struct Bptree {
    object: Object,
}

impl Bptree {
    /// Creates an empty queue.
    ///
    /// # Errors
    /// As [`ObjectSet::allocate`].
    pub async fn create(objset: &Arc<ObjectSet>, tx: &Tx) -> Result<Self> {
        let kind = ObjectType::OTN_UINT64_METADATA;
        let bonus = Bytes::copy_from_slice(&BptreePhys::default().encode());
        let new = NewObject::new(kind)
            .with_block_bytes(BLOCK_BYTES)
            .with_bonus(kind, bonus);
        let object = objset.allocate(tx, new).await?;
        Ok(Bptree { object })
    }

    /// Opens a queue.
    ///
    /// # Errors
    /// [`ObjectError::NoSuchObject`], [`ObjectError::Format`].
    pub async fn open(objset: &Arc<ObjectSet>, id: ObjectId) -> Result<Self> {
        let tree = Bptree {
            object: objset.hold(id).await?,
        };
        BptreePhys::decode(&tree.object.bonus(), Endian::Little).of(id)?;
        Ok(tree)
    }

    fn phys(&self) -> BptreePhys {
        BptreePhys::decode(&self.object.bonus(), Endian::Little).unwrap_or_default()
    }

    fn set_phys(&self, tx: &Tx, phys: &BptreePhys) -> Result<()> {
        let bonus = Bytes::copy_from_slice(&phys.encode());
        self.object.set_bonus(tx, bonus)
    }

    /// Its number.
    pub fn id(&self) -> ObjectId {
        self.object.id()
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        let phys = self.phys();
        phys.begin >= phys.end
    }

    /// Space that waits to be freed.
    pub fn space(&self) -> BpobjSpace {
        let phys = self.phys();
        BpobjSpace {
            used_bytes: phys.used_bytes,
            compressed_bytes: phys.compressed_bytes,
            uncompressed_bytes: phys.uncompressed_bytes,
        }
    }

    fn put_space(phys: &mut BptreePhys, space: BpobjSpace) {
        phys.used_bytes = space.used_bytes;
        phys.compressed_bytes = space.compressed_bytes;
        phys.uncompressed_bytes = space.uncompressed_bytes;
    }

    async fn write_entry(&self, tx: &Tx, index: u64, entry: BptreeEntry) -> Result<()> {
        let bytes = Bytes::copy_from_slice(&entry.to_format().encode());
        self.object.write(tx, index * ENTRY_BYTES, bytes).await
    }

    async fn entry(&self, index: u64) -> Result<BptreeEntry> {
        let offset = index * ENTRY_BYTES;
        let bytes = self.object.read_bytes(offset, ENTRY_BYTES as usize).await?;
        let entry = format::BptreeEntry::decode(&bytes, Endian::Little).of(self.id())?;
        Ok(BptreeEntry::from_format(&entry))
    }

    /// Appends a tree.
    ///
    /// # Errors
    /// Errors of reading the last block.
    pub async fn add(&self, tx: &Tx, entry: BptreeEntry, space: BpobjSpace) -> Result<()> {
        let mut phys = self.phys();
        self.write_entry(tx, phys.end, entry).await?;
        phys.end += 1;
        Self::put_space(&mut phys, self.space().plus(space));
        self.set_phys(tx, &phys)
    }

    /// The trees that wait, oldest first, with their places in the queue.
    ///
    /// # Errors
    /// Errors of reading.
    pub async fn entries(&self) -> Result<Vec<(u64, BptreeEntry)>> {
        let phys = self.phys();
        let mut out = Vec::new();
        for index in phys.begin..phys.end {
            out.push((index, self.entry(index).await?));
        }
        Ok(out)
    }

    /// Replaces the entry at `index`, and takes freed space off the totals. An entry that was
    /// written once in a txg can be written again in it without being read.
    ///
    /// # Errors
    /// [`ObjectError::Misuse`] when that entry does not wait; errors of reading.
    pub async fn put(
        &self,
        tx: &Tx,
        index: u64,
        entry: BptreeEntry,
        freed: BpobjSpace,
    ) -> Result<()> {
        let mut phys = self.phys();
        self.check_waiting(&phys, index)?;
        self.write_entry(tx, index, entry).await?;
        Self::put_space(&mut phys, self.space().minus(freed));
        self.set_phys(tx, &phys)
    }

    /// Drops the entry at `index`, of which everything was freed. Behind one that still waits it
    /// stays, and says that there is nothing to free (`bptree_iterate`). The last one takes all
    /// space that is left with it.
    ///
    /// # Errors
    /// [`ObjectError::Misuse`] when that entry does not wait; errors of reading.
    pub async fn finish(
        &self,
        tx: &Tx,
        index: u64,
        entry: BptreeEntry,
        freed: BpobjSpace,
    ) -> Result<()> {
        let mut phys = self.phys();
        self.check_waiting(&phys, index)?;
        if index > phys.begin {
            let entry = BptreeEntry {
                birth_txg: BptreeEntry::FINISHED,
                ..entry
            };
            return self.put(tx, index, entry, freed).await;
        }
        let offset = phys.begin * ENTRY_BYTES;
        self.object.free_range(tx, offset, ENTRY_BYTES).await?;
        phys.begin += 1;
        let left = if phys.begin == phys.end {
            BpobjSpace::default()
        } else {
            self.space().minus(freed)
        };
        Self::put_space(&mut phys, left);
        self.set_phys(tx, &phys)
    }

    fn check_waiting(&self, phys: &BptreePhys, index: u64) -> Result<()> {
        if !(phys.begin..phys.end).contains(&index) {
            return Err(ObjectError::Misuse {
                object: self.id(),
                what: "a tree was taken from a queue in which it does not wait",
            });
        }
        Ok(())
    }

    /// Frees the queue's object.
    ///
    /// # Errors
    /// As [`ObjectSet::free`].
    pub async fn destroy(self, tx: &Tx) -> Result<()> {
        self.object.objset().free(tx, self.id()).await
    }
}
