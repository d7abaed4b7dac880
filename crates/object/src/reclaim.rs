//! Making an object another one under the same number (`dmu_object_reclaim_dnsize`,
//! module/zfs/dmu_object.c; `dnode_reallocate`, module/zfs/dnode.c), as receiving a stream does
//! where the sender gave a number of a freed object to a new one.

use zio::Tx;

use crate::dnode::Dnode;
use crate::error::{ObjectError, Result};
use crate::object::{Object, put_bonus};
use crate::options::NewObject;
use crate::tree::Blocks;

impl Object {
    /// Whether [`Self::reclaim`] can make it that: the dnode must not change its size, nor lose
    /// block pointers.
    ///
    /// # Errors
    /// [`ObjectError::TooBig`] of what no object can be.
    pub fn can_reclaim(&self, new: &NewObject) -> Result<bool> {
        let wanted = new.meta(self.id())?;
        let info = self.info();
        Ok(wanted.slots == info.slots && wanted.pointers >= info.pointers)
    }

    /// Makes it another object: its type, block size and bonus are those of `new`, its indirect
    /// blocks stay as big as they are. Where the block size changes, all of its blocks must have
    /// been freed in this txg or earlier ([`Self::free_range`]). The spill block is removed unless
    /// `keeps_spill`.
    ///
    /// # Errors
    /// [`ObjectError::Misuse`] where [`Self::can_reclaim`] says no;
    /// [`ObjectError::BlockSizeFixed`] while it has blocks; [`ObjectError::NoSuchObject`];
    /// [`ObjectError::TooBig`].
    pub async fn reclaim(&self, tx: &Tx, new: &NewObject, keeps_spill: bool) -> Result<()> {
        let wanted = new.meta(self.id())?;
        if !self.can_reclaim(new)? {
            return Err(ObjectError::Misuse {
                object: self.id(),
                what: "the dnode would become smaller",
            });
        }
        if self.info().data_block_bytes != wanted.block_bytes
            && has_blocks(&self.objset().blocks, &self.dnode, tx).await?
        {
            return Err(ObjectError::BlockSizeFixed { object: self.id() });
        }
        self.prepare_dnode().await?;
        if !keeps_spill {
            self.remove_spill(tx)?;
        }
        self.change_meta(tx, |meta| {
            meta.object_type = wanted.object_type;
            meta.bonus_type = wanted.bonus_type;
            meta.block_bytes = wanted.block_bytes;
            meta.pointers = wanted.pointers;
            meta.checksum = wanted.checksum;
            meta.compression = wanted.compression;
            put_bonus(self.id(), meta, new.bonus.clone())
        })
    }
}

/// Whether it has data as of the txg.
async fn has_blocks(blocks: &Blocks, dnode: &Dnode, tx: &Tx) -> Result<bool> {
    let (freed_all, has_unwritten) = {
        let state = dnode.lock();
        let end = state.meta_at(tx.txg()).max_block.saturating_add(1);
        let freed_all = state
            .layers(tx.txg())
            .next()
            .is_some_and(|slot| slot.txg == tx.txg() && slot.freed.covers(0, end));
        let has_unwritten = state
            .layers(tx.txg())
            .any(|slot| slot.has_blocks(0..u64::MAX));
        (freed_all, has_unwritten)
    };
    if freed_all {
        let state = dnode.lock();
        return Ok(state
            .layers(tx.txg())
            .next()
            .is_some_and(|slot| slot.has_blocks(0..u64::MAX)));
    }
    Ok(has_unwritten || blocks.next_data(dnode, 0, false).await?.is_some())
}
