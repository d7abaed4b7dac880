//! Writing blocks again as they are, to other places and as the properties say now.
//!
//! A block that is rewritten is like one that was overwritten by the same bytes; or, *physically*
//! rewritten, like one that was moved: its pointer stays as old as it was, so that nobody takes it
//! for changed ([`zio::Pipeline::relocate`]). Whatever else changes the block in the same txg takes
//! that back: then it did change (`dbuf_redirty`, module/zfs/dbuf.c).
//!
//! Source: module/zfs/dbuf.c (`dmu_buf_will_rewrite`), module/zfs/zfs_vnops.c (`zfs_rewrite`).

use zio::Tx;

use crate::error::Result;
use crate::object::{Object, native};
use crate::tree::Block;

impl Object {
    /// Has blocks `first..=last` written again as they are, but for holes and those that this txg
    /// writes anyway; `physically`, they keep their age. How many bytes are written. Keep others
    /// from changing the blocks meanwhile.
    ///
    /// # Errors
    /// [`crate::ObjectError::NoSuchObject`]; errors of reading, also of what the sync has to read.
    /// Blocks before the one that fails are written all the same, which changes nothing in them.
    pub async fn rewrite_blocks(
        &self,
        tx: &Tx,
        first: u64,
        last: u64,
        physically: bool,
    ) -> Result<u64> {
        self.prepare_dnode().await?;
        self.objset()
            .blocks
            .prepare(&self.dnode, first, last)
            .await?;
        let mut written = 0;
        for block in first..=last {
            if self.dnode.is_of_open_txg(tx, block) {
                continue;
            }
            let data = match self
                .objset()
                .blocks
                .block_at(&self.dnode, block, tx.txg())
                .await?
            {
                Block::Zeros => continue,
                found => native(&self.dnode, found)?,
            };
            let Some(data) = data else { continue };
            self.objset().dirty.note(tx.txg());
            let mut state = self.dnode.lock();
            // A last block that is shorter than the others ends in zeros.
            let block_bytes = state.meta_at(tx.txg()).block_bytes as usize;
            let data = if data.len() == block_bytes {
                data
            } else {
                let mut whole = data.to_vec();
                whole.resize(block_bytes, 0);
                whole.into()
            };
            let more = self.insert_block(&mut state, tx, block, data)?;
            let slot = self.objset().dirty.slot_mut(&self.dnode, &mut state, tx);
            match physically {
                true => slot.moved.add(block, block + 1),
                false => slot.again.add(block, block + 1),
            };
            drop(state);
            tx.dirtied_whole(more);
            written += more;
        }
        Ok(written)
    }
}
