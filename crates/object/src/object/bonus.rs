//! What belongs to an object beside its blocks: the bonus in its dnode, and the spill block behind
//! it.

use bytes::{Bytes, BytesMut};
use format::{BlockPointer, Bookmark, ObjectId, ObjectType, SECTOR_BYTES};
use zio::{Added, Tx};

use crate::byteswap::to_native;
use crate::dnode::{Dnode, DnodeState, Meta, SpillChange};
use crate::error::{ObjectError, OfObject, Result};
use crate::tree::NEWEST;

use super::Object;

/// Largest spill block (`SPA_OLD_MAXBLOCKSIZE`).
const SPILL_MAX_BYTES: usize = 128 << 10;

/// A bonus with the spill block of the same time.
pub(crate) struct BonusAndSpill {
    pub(crate) bonus_type: ObjectType,
    pub(crate) bonus: Bytes,
    pub(crate) spill: Option<Bytes>,
}

impl Object {
    /// Its bonus, newest.
    pub fn bonus(&self) -> Bytes {
        self.dnode.lock().meta().bonus.clone()
    }

    /// Replaces the bonus (its length may change).
    ///
    /// # Errors
    /// [`ObjectError::TooBig`] when the dnode has no room for it.
    pub fn set_bonus(&self, tx: &Tx, bonus: impl Into<Bytes>) -> Result<()> {
        let bonus = bonus.into();
        self.change_meta(tx, |meta| put_bonus(self.id(), meta, bonus))
    }

    /// Replaces the bonus and its type.
    ///
    /// # Errors
    /// As [`Self::set_bonus`].
    pub fn set_bonus_typed(
        &self,
        tx: &Tx,
        bonus_type: ObjectType,
        bonus: impl Into<Bytes>,
    ) -> Result<()> {
        let bonus = bonus.into();
        self.change_meta(tx, |meta| {
            meta.bonus_type = bonus_type;
            put_bonus(self.id(), meta, bonus)
        })
    }

    /// Replaces bonus and spill block in one step, so that no reader sees only one of them.
    ///
    /// # Errors
    /// [`ObjectError::TooBig`].
    pub fn set_bonus_and_spill(&self, tx: &Tx, bonus: Bytes, spill: Option<Bytes>) -> Result<()> {
        let spill = spill
            .map(|data| padded_spill(self.id(), data))
            .transpose()?;
        self.set.dirty.note(tx.txg());
        let mut state = self.dnode.lock();
        let mut meta = state.meta_at(tx.txg()).clone();
        if !meta.exists {
            return Err(self.dnode.missing());
        }
        let had_spill = meta.has_spill;
        meta.has_spill = spill.is_some();
        put_bonus(self.id(), &mut meta, bonus)?;
        let slot = self.set.dirty.slot_mut(&self.dnode, &mut state, tx);
        slot.meta = Some(meta);
        match spill {
            Some(data) => {
                tx.dirtied(data.len() as u64);
                tx.adds(Added {
                    data_bytes: 0,
                    metadata_bytes: data.len() as u64,
                });
                slot.spill = SpillChange::Write(data);
            }
            None if had_spill => slot.spill = SpillChange::Remove,
            None => {}
        }
        Ok(())
    }

    /// Content of the spill block, if there is one (with the padding to whole sectors).
    ///
    /// # Errors
    /// Errors of reading.
    pub async fn spill(&self) -> Result<Option<Bytes>> {
        Ok(self.bonus_and_spill().await?.spill)
    }

    /// The bonus and the spill block that belongs to it: what moves from one to the other is in
    /// one of them.
    ///
    /// # Errors
    /// Errors of reading the spill block.
    pub(crate) async fn bonus_and_spill(&self) -> Result<BonusAndSpill> {
        loop {
            let (mut found, place) = bonus_and_place(&self.dnode);
            let Some((pointer, written_as)) = place else {
                return Ok(found);
            };
            let context = self.set.blocks.read_context(
                self.id(),
                ObjectType::SA,
                0,
                Bookmark::SPILL_BLOCK_ID,
            );
            let read = match self.set.pipeline().read_cached(&pointer) {
                Some(data) => Ok(data),
                None => self.set.pipeline().read(&pointer, &context).await,
            };
            match read {
                Ok(data) => {
                    let native = to_native(written_as, data, pointer.endian()).of(self.id())?;
                    found.spill = Some(native);
                    return Ok(found);
                }
                // Its place may belong to another block by now.
                Err(_) if bonus_and_place(&self.dnode).1.map(|(at, _)| at) != Some(pointer) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Like [`Self::bonus_and_spill`] without waiting; `None` when a block must be read.
    pub(crate) fn try_bonus_and_spill(&self) -> Option<Result<BonusAndSpill>> {
        let (mut found, place) = bonus_and_place(&self.dnode);
        let Some((pointer, written_as)) = place else {
            return Some(Ok(found));
        };
        let data = self.set.pipeline().read_cached(&pointer)?;
        let native = to_native(written_as, data, pointer.endian()).of(self.id());
        Some(native.map(|native| {
            found.spill = Some(native);
            found
        }))
    }

    /// Writes the spill block; `data` is padded to whole sectors (512 bytes to 128 KiB).
    ///
    /// # Errors
    /// [`ObjectError::TooBig`], also when the bonus is in the way of the spill block's pointer.
    pub fn set_spill(&self, tx: &Tx, data: Bytes) -> Result<()> {
        let bonus = self.dnode.lock().meta_at(tx.txg()).bonus.clone();
        self.set_bonus_and_spill(tx, bonus, Some(data))
    }

    /// Removes the spill block.
    ///
    /// # Errors
    /// [`ObjectError::NoSuchObject`].
    pub fn remove_spill(&self, tx: &Tx) -> Result<()> {
        let bonus = self.dnode.lock().meta_at(tx.txg()).bonus.clone();
        self.set_bonus_and_spill(tx, bonus, None)
    }

    /// Pointer of the spill block as of the last sync.
    pub fn spill_pointer(&self) -> Option<BlockPointer> {
        self.dnode.lock().spill
    }
}

/// Changes bytes of an object's bonus where they are, without a copy if `tx` has changed it before.
/// `change` runs under the object's lock: it must not block. It says whether it changed anything;
/// where it did not, or fails, it has left everything as it was.
///
/// # Errors
/// [`ObjectError::NoSuchObject`]; those of `change`.
pub(crate) fn change_bonus(
    object: &Object,
    tx: &Tx,
    change: impl FnOnce(ObjectType, &mut [u8]) -> Result<bool>,
) -> Result<bool> {
    let (dirty, dnode) = (&object.set.dirty, &object.dnode);
    dirty.note(tx.txg());
    let mut state = dnode.lock();
    if !state.meta_at(tx.txg()).exists {
        return Err(dnode.missing());
    }
    let meta = dirty.meta_mut(dnode, &mut state, tx);
    let mut bytes = match std::mem::take(&mut meta.bonus).try_into_mut() {
        Ok(bytes) => bytes,
        Err(shared) => BytesMut::from(&shared[..]),
    };
    let changed = change(meta.bonus_type, &mut bytes);
    meta.bonus = bytes.freeze();
    if let Ok(true) = changed {
        meta.bonus_tail = Bytes::new();
    }
    changed
}

/// Replaces the bonus of object `object`.
pub(crate) fn put_bonus(object: ObjectId, meta: &mut Meta, bonus: Bytes) -> Result<()> {
    let room = meta.bonus_room(meta.has_spill);
    if meta.has_spill && !meta.has_spill_room() {
        return Err(ObjectError::TooBig {
            object,
            what: format!(
                "a spill block beside {} block pointers in a dnode of {} slots",
                meta.pointers, meta.slots
            ),
        });
    }
    if bonus.len() > room {
        return Err(ObjectError::TooBig {
            object,
            what: format!("a bonus of {} bytes, where {room} fit", bonus.len()),
        });
    }
    meta.bonus = bonus;
    meta.bonus_tail = Bytes::new();
    Ok(())
}

fn padded_spill(object: ObjectId, data: Bytes) -> Result<Bytes> {
    if data.is_empty() || data.len() > SPILL_MAX_BYTES {
        return Err(ObjectError::TooBig {
            object,
            what: format!("a spill block of {} bytes", data.len()),
        });
    }
    let whole = data.len().next_multiple_of(SECTOR_BYTES as usize);
    if whole == data.len() {
        return Ok(data);
    }
    let mut padded = data.to_vec();
    padded.resize(whole, 0);
    Ok(Bytes::from(padded))
}

/// The bonus, with the spill block where that is in memory; else where to read it, and the type
/// of the bonus that it was written with.
fn bonus_and_place(dnode: &Dnode) -> (BonusAndSpill, Option<(BlockPointer, ObjectType)>) {
    let state = dnode.lock();
    let meta = state.meta();
    let mut found = BonusAndSpill {
        bonus_type: meta.bonus_type,
        bonus: meta.bonus.clone(),
        spill: None,
    };
    let place = match (unwritten_spill(&state), &state.spill) {
        (Some(unwritten), _) => {
            found.spill = unwritten;
            None
        }
        (None, Some(pointer)) if meta.exists && !pointer.is_hole() => {
            Some((*pointer, state.disk.bonus_type))
        }
        _ => None,
    };
    (found, place)
}

/// The spill block as the slots have it: `None` when they do not change it.
fn unwritten_spill(state: &DnodeState) -> Option<Option<Bytes>> {
    for slot in state.layers(NEWEST) {
        match &slot.spill {
            SpillChange::Write(data) => return Some(Some(data.clone())),
            // Nobody reads what is raw.
            SpillChange::WriteRaw(_) | SpillChange::Remove => return Some(None),
            SpillChange::Keep => {}
        }
        if slot.meta.as_ref().is_some_and(|meta| !meta.exists) {
            return Some(None);
        }
    }
    None
}
