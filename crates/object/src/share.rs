//! Sharing blocks between objects (block cloning): reading the pointers of one and putting them
//! into another.
//!
//! Only blocks of the last synced state are shared: what is dirty has no pointer yet, and a pointer
//! to what a crash would take away must not get into the intent log. Whoever shares blocks keeps
//! the source as it is until it has the transaction ([`Object::share_blocks`] announces them; from
//! then on nobody frees them unasked).
//!
//! Source: module/zfs/dmu.c (`dmu_read_l0_bps`, `dmu_brt_clone`).

use format::{BlockPointer, Txg};
use zio::{Added, CloneKey, Tx};

use crate::dnode::{Dnode, Found, shr};
use crate::error::{ObjectError, Result};
use crate::object::Object;
use crate::tree::{Blocks, NEWEST};

/// What a shared block counts as dirty: its entry in the table of cloned blocks, in bytes.
const DIRTY_BYTES: u64 = 512;

impl Object {
    /// The pointers of `count` blocks from `first` on, holes included, for [`Self::share_blocks`].
    /// `None` when some are not on disk as of `synced`, the last synced txg, or cannot be shared
    /// (those in their pointers, deduplicated ones, and those that lie nowhere, which damage made:
    /// no table could count them).
    ///
    /// # Errors
    /// Errors of reading indirect blocks.
    pub async fn shareable_blocks(
        &self,
        first: u64,
        count: u64,
        synced: Txg,
    ) -> Result<Option<Vec<BlockPointer>>> {
        let block_bytes = self.dnode.block_bytes();
        let dvas = self.objset().pipeline().dvas();
        let mut out = Vec::new();
        for block in first..first.saturating_add(count) {
            let Some(pointer) = self
                .objset()
                .blocks
                .newest_pointer(&self.dnode, block)
                .await?
            else {
                return Ok(None);
            };
            let shareable = pointer.is_hole()
                || CloneKey::of(&pointer).is_some()
                    && !pointer.is_embedded()
                    && !pointer.is_dedup()
                    && pointer.lsize_bytes() == block_bytes
                    && pointer.physical_birth() <= synced
                    && dvas.has_place(&pointer);
            if !shareable || pointer.is_redacted() {
                return Ok(None);
            }
            out.push(pointer);
        }
        Ok(Some(out))
    }

    /// Puts pointers that [`Self::shareable_blocks`] gave in the place of blocks from `first` on.
    /// Blocks keep their size, so it must be the same here; holes are made.
    ///
    /// # Errors
    /// [`ObjectError::NoSuchObject`]; [`ObjectError::Misuse`] when sizes differ; errors of reading
    /// what the sync has to read. Nothing is changed then.
    pub async fn share_blocks(&self, tx: &Tx, first: u64, pointers: &[BlockPointer]) -> Result<()> {
        let Some(more) = (pointers.len() as u64).checked_sub(1) else {
            return Ok(());
        };
        let last = first.saturating_add(more);
        self.prepare_dnode().await?;
        self.objset()
            .blocks
            .prepare(&self.dnode, first, last)
            .await?;
        let clones = self.objset().pipeline().clones();
        for pointer in pointers {
            clones.announce(tx.txg(), pointer);
        }
        self.objset().dirty.note(tx.txg());
        let mut state = self.dnode.lock();
        let meta = state.meta_at(tx.txg());
        if !meta.exists {
            return Err(ObjectError::NoSuchObject { object: self.id() });
        }
        let block_bytes = u64::from(meta.block_bytes);
        let indirect_bytes =
            (shr(pointers.len() as u64, meta.pointers_shift()) + 2) << meta.indirect_shift;
        if pointers
            .iter()
            .any(|pointer| !pointer.is_hole() && pointer.lsize_bytes() != block_bytes)
        {
            return Err(ObjectError::Misuse {
                object: self.id(),
                what: "blocks of another size cannot be shared",
            });
        }
        if last > meta.max_block {
            let meta = self.objset().dirty.meta_mut(&self.dnode, &mut state, tx);
            meta.max_block = last;
        }
        let slot = self.objset().dirty.slot_mut(&self.dnode, &mut state, tx);
        for (block, pointer) in (first..).zip(pointers) {
            slot.drop_blocks(block, block + 1);
            if pointer.is_hole() {
                slot.freed.add(block, block + 1);
            } else {
                slot.freed.remove(block, block + 1);
                slot.cloned.to_mut().insert(block, *pointer);
            }
        }
        tx.dirtied(DIRTY_BYTES * pointers.len() as u64);
        // They count for the file's owner and dataset like blocks that are written.
        tx.adds(Added {
            data_bytes: block_bytes.saturating_mul(pointers.len() as u64),
            metadata_bytes: indirect_bytes,
        });
        Ok(())
    }
}

impl Blocks {
    /// The pointer of a block with all changes; `None` when it is to be written.
    async fn newest_pointer(&self, dnode: &Dnode, block: u64) -> Result<Option<BlockPointer>> {
        loop {
            let tree = {
                let state = dnode.lock();
                match state.find(block, NEWEST) {
                    Found::Data(_) | Found::Raw(_) => return Ok(None),
                    Found::Zeros => return Ok(Some(BlockPointer::HOLE)),
                    Found::Cloned(pointer) => return Ok(Some(pointer)),
                    Found::Disk => state.tree.clone(),
                }
            };
            let found = self.resolve(dnode.id, &tree, block).await;
            let state = dnode.lock();
            // Another txg was synced meanwhile: what was found may be gone.
            if state.tree.generation == tree.generation {
                return found.map(Some);
            }
        }
    }
}
