//! Raw streams: blocks of an encrypted object set that are stored as the sender stored them, by
//! somebody who has not got the key (module/zfs/dmu_recv.c; `dmu_convert_mdn_block_to_raw` and
//! `arc_convert_to_raw`, module/zfs/dbuf.c and arc.c).
//!
//! # What comes from where
//! | Block | Bytes | Salt, IV, MAC |
//! |---|---|---|
//! | data, spill | the stream's | the stream's, with each block |
//! | dnodes | dnodes made here, with the stream's bonuses, which are encrypted | the stream's, for each block of dnodes |
//! | indirect | made here | sum of the MACs below, which needs no key |
//! | root | made here | the stream's portable MAC; none of what is not sent, which is the accounting of space |
//!
//! A MAC holds only when all that it covers is what the sender had: sizes of blocks, levels of
//! trees, last blocks. So these are set here, and follow from nothing. While a stream is received
//! a block of dnodes may be on disk with only some of its dnodes: it is not of use then, as its
//! object set is not.

use std::collections::BTreeMap;

use bytes::Bytes;
use format::{
    BlockPointer, Checksum, Compression, CryptParams, DNODE_BLOCK_BYTES, OBJSET_FLAG_PROJECT_QUOTA,
    OBJSET_FLAG_USER_ACCOUNTING, OBJSET_FLAG_USER_OBJECT_ACCOUNTING, ObjectId, ObjectType,
    ObjsetPhys, Txg,
};
use parking_lot::Mutex;
use zio::{Added, RawBlock, Tx};

use crate::added;
use crate::dnode::{RawData, Slot, SpillChange, parity};
use crate::error::{ObjectError, Result};
use crate::object::Object;
use crate::objset::ObjectSet;

/// What an object of a raw stream is, beside its number and what [`crate::NewObject`] says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RawObject {
    /// Its type.
    pub object_type: ObjectType,
    /// Type of its bonus.
    pub bonus_type: ObjectType,
    /// Bytes of the bonus; all of [`Self::room`] may be encrypted.
    pub bonus_bytes: usize,
    /// All of the dnode's room for the bonus, as it is to be stored.
    pub room: Bytes,
    /// Its own checksum.
    pub checksum: Checksum,
    /// Its own compression.
    pub compression: Compression,
    /// Size of its data blocks in bytes.
    pub block_bytes: u32,
    /// log2 of the size of its indirect blocks.
    pub indirect_shift: u8,
    /// Block pointers in its dnode.
    pub pointers: u8,
    /// Levels of its tree.
    pub levels: u8,
    /// Number of its last data block.
    pub max_block: u64,
    /// Whether it has a spill block; one that it has not any more is removed.
    pub has_spill: bool,
}

/// What the root of an object set is to be (`dsl_crypto_recv_raw_objset_sync`,
/// module/zfs/dsl_crypt.c).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RawRoot {
    /// MAC of the object of dnodes.
    pub portable_mac: [u8; 32],
    /// Checksum of the object of dnodes.
    pub checksum: Checksum,
    /// Compression of the object of dnodes.
    pub compression: Compression,
    /// Number of its last block.
    pub max_block: u64,
}

impl RawRoot {
    /// Into the root; space is not counted per user any more.
    pub(crate) fn apply(&self, phys: &mut ObjsetPhys) {
        phys.portable_mac = self.portable_mac;
        phys.local_mac = [0; 32];
        phys.flags &= !(OBJSET_FLAG_USER_ACCOUNTING
            | OBJSET_FLAG_USER_OBJECT_ACCOUNTING
            | OBJSET_FLAG_PROJECT_QUOTA);
    }
}

/// Blocks of dnodes that are written as they are, or read so.
#[derive(Default)]
pub(crate) struct RawDnodeBlocks {
    known: Mutex<Known>,
    /// The one that was read last: the cache must not have them, and dnodes are read in order.
    last: Mutex<Option<(BlockPointer, Bytes)>>,
}

/// Salts, IVs and MACs of blocks of dnodes that are still to be written with them.
#[derive(Default)]
struct Known {
    by_block: BTreeMap<u64, (CryptParams, [u8; 16])>,
    /// The block that the stream is at: it may be written, become a hole as its objects make room
    /// for others, and be written again.
    current: Option<u64>,
}

impl RawDnodeBlocks {
    /// What was read last, if it was this.
    pub(crate) fn recent(&self, pointer: &BlockPointer) -> Option<Bytes> {
        let last = self.last.lock();
        let (of, data) = last.as_ref()?;
        (of == pointer).then(|| data.clone())
    }

    /// This was read last.
    pub(crate) fn note(&self, pointer: &BlockPointer, data: &Bytes) {
        *self.last.lock() = Some((*pointer, data.clone()));
    }

    /// Has these blocks of dnodes written; those without dnodes become holes.
    pub(crate) fn put(&self, blocks: BTreeMap<u64, Bytes>, slot: &mut Slot) {
        let mut known = self.known.lock();
        let mut raw = BTreeMap::new();
        for (number, stored) in blocks {
            if stored.iter().all(|byte| *byte == 0) {
                slot.freed.add(number, number + 1);
                continue;
            }
            let found = match known.current == Some(number) {
                true => known.by_block.get(&number).copied(),
                false => known.by_block.remove(&number),
            };
            let (crypt, mac) = found.unzip();
            let block = RawBlock {
                logical_bytes: DNODE_BLOCK_BYTES as u64,
                compression: Compression::Off,
                crypt,
                mac,
            };
            raw.insert(number, RawData { stored, block });
        }
        slot.raw = raw.into();
    }
}

impl ObjectSet {
    /// What block `number` of dnodes is written with, from its next change on.
    pub fn set_raw_dnodes(&self, number: u64, crypt: CryptParams, mac: [u8; 16]) {
        let mut known = self.blocks.raw_dnodes.known.lock();
        known.by_block.insert(number, (crypt, mac));
        known.current = Some(number);
    }

    /// What the root is, from this txg on. The object set is one that is received raw.
    pub fn set_raw_root(&self, tx: &Tx, root: RawRoot) {
        self.dirty_head(tx, |slot| slot.raw = Some(root));
    }

    /// Before a txg is written: the object of dnodes as the txg's [`RawRoot`] says.
    pub(crate) fn begin_raw(&self, txg: Txg) {
        let raw = {
            let head = self.head.lock();
            let slot = &head.slots[parity(txg)];
            slot.raw.filter(|_| slot.dirty && slot.txg == txg)
        };
        let Some(raw) = raw else { return };
        let mut state = self.meta_dnode.lock();
        state.disk.max_block = raw.max_block;
        state.disk.checksum = raw.checksum;
        state.disk.compression = raw.compression;
        if let Some(base) = &mut state.base {
            base.max_block_id = raw.max_block;
            base.checksum = raw.checksum;
            base.compression = raw.compression;
        }
    }
}

impl Object {
    /// Whether [`Self::set_raw`] can make it that: the dnode must not change its size, lose block
    /// pointers or levels, nor have indirect blocks of another size.
    pub fn can_become_raw(&self, raw: &RawObject, slots: u8) -> bool {
        let info = self.info();
        slots == info.slots
            && raw.pointers >= info.pointers
            && raw.levels >= info.levels
            && (info.levels == 1 || raw.indirect_shift == info.indirect_block_shift)
    }

    /// Makes it what a raw stream says. Where the size of blocks changes, all blocks must have been
    /// freed in this txg or earlier; in any case those behind the last one.
    ///
    /// # Errors
    /// [`ObjectError::TooBig`] where the bonus does not fit, or the tree would need more levels;
    /// [`ObjectError::NoSuchObject`].
    pub async fn set_raw(&self, tx: &Tx, raw: &RawObject) -> Result<()> {
        self.prepare_dnode().await?;
        if !raw.has_spill {
            self.remove_spill(tx)?;
        }
        let too_big = |what: &str| ObjectError::TooBig {
            object: self.id(),
            what: what.to_owned(),
        };
        self.change_meta(tx, |meta| {
            meta.object_type = raw.object_type;
            meta.bonus_type = raw.bonus_type;
            meta.checksum = raw.checksum;
            meta.compression = raw.compression;
            meta.block_bytes = raw.block_bytes;
            meta.indirect_shift = raw.indirect_shift;
            meta.pointers = raw.pointers;
            meta.max_block = raw.max_block;
            meta.levels_min = raw.levels;
            if meta.levels_needed() != raw.levels {
                return Err(too_big("a tree of fewer levels than its last block needs"));
            }
            if raw.room.len() > meta.bonus_room(raw.has_spill)
                || raw.bonus_bytes > raw.room.len()
                || raw.has_spill && !meta.has_spill_room()
            {
                return Err(too_big("a bonus that is longer than its room"));
            }
            meta.bonus = raw.room.slice(..raw.bonus_bytes);
            meta.bonus_tail = raw.room.slice(raw.bonus_bytes..);
            Ok(())
        })
    }

    /// Writes a whole block as it is to be stored.
    ///
    /// # Errors
    /// [`ObjectError::Misuse`] where the object set is not received raw, or the block is not one of
    /// the object's; [`ObjectError::NoSuchObject`].
    pub fn put_raw(&self, tx: &Tx, block: u64, data: RawData) -> Result<()> {
        let set = self.objset();
        set.dirty.note(tx.txg());
        let mut state = self.dnode.lock();
        let meta = state.meta_at(tx.txg());
        if !meta.exists {
            return Err(ObjectError::NoSuchObject { object: self.id() });
        }
        if !set.options().raw
            || block > meta.max_block
            || data.block.logical_bytes != u64::from(meta.block_bytes)
        {
            return Err(not_raw(self.id()));
        }
        let slot = set.dirty.slot_mut(&self.dnode, &mut state, tx);
        slot.drop_blocks(block, block + 1);
        slot.freed.remove(block, block + 1);
        let length = data.stored.len() as u64;
        if let Some(slot) = state.slots[parity(tx.txg())].as_deref() {
            tx.adds(added::by_block(&state, slot, block, length, true));
        }
        let slot = set.dirty.slot_mut(&self.dnode, &mut state, tx);
        slot.raw.to_mut().insert(block, data);
        drop(state);
        tx.dirtied_whole(length);
        Ok(())
    }

    /// Writes the spill block as it is to be stored.
    ///
    /// # Errors
    /// As [`Self::put_raw`]; [`ObjectError::TooBig`] where the bonus is in the way of its pointer.
    pub fn put_raw_spill(&self, tx: &Tx, data: RawData) -> Result<()> {
        if !self.objset().options().raw {
            return Err(not_raw(self.id()));
        }
        let bytes = data.stored.len() as u64;
        self.change_meta(tx, |meta| {
            let room = meta.bonus_room(true);
            if !meta.has_spill_room() || meta.bonus.len() + meta.bonus_tail.len() > room {
                return Err(ObjectError::TooBig {
                    object: self.id(),
                    what: "a spill block beside a bonus that takes all of the dnode".into(),
                });
            }
            meta.has_spill = true;
            Ok(())
        })?;
        let mut state = self.dnode.lock();
        let slot = self.objset().dirty.slot_mut(&self.dnode, &mut state, tx);
        slot.spill = SpillChange::WriteRaw(data);
        drop(state);
        tx.dirtied(bytes);
        tx.adds(Added {
            data_bytes: 0,
            metadata_bytes: bytes,
        });
        Ok(())
    }
}

fn not_raw(object: ObjectId) -> ObjectError {
    ObjectError::Misuse {
        object,
        what: "a block of a raw stream does not fit it",
    }
}
