//! Reading through the second level of the cache.
//!
//! A block that is not in memory is asked of the cache devices first, and what the pool's own
//! devices gave is offered to them. Both is of its stored form: what comes from there is verified
//! as any other copy, and opened (decrypted, decompressed) behind. So a wrong copy is nobody's
//! error: the pool is asked.
//!
//! Not for blocks that nothing can be verified by (`checksum=off`), and not for gang blocks, which
//! are read in parts.

use bytes::Bytes;
use format::BlockPointer;
use l2arc::{Block, Worth};
use vdev::Verify;

use super::check::BlockCheck;
use super::read::Reader;
use super::{CacheUse, ReadContext};
use crate::cache::CacheKey;
use crate::error::ZioError;

/// How the second level knows a block; `None` for what it does not hold.
fn block_of(bp: &BlockPointer) -> Option<Block> {
    if bp.is_gang() {
        return None;
    }
    Some(Block {
        dva: bp.dva(0)?,
        birth: bp.physical_birth(),
        logical_bytes: bp.lsize_bytes(),
        stored_bytes: bp.psize_bytes(),
        compression: bp.compression(),
        metadata: bp.is_metadata(),
        protected: bp.uses_crypt(),
    })
}

impl Reader {
    /// The stored bytes of a block with a place, from where they are had fastest.
    pub(super) async fn read_nearest(
        &self,
        bp: &BlockPointer,
        context: &ReadContext,
    ) -> Result<Bytes, ZioError> {
        if self.second.is_empty() || context.cache == CacheUse::Bypass {
            return self.read_stored(bp, context).await;
        }
        let check = BlockCheck::new(bp, &self.world, self.copies.salt.get());
        let Some(block) = block_of(bp).filter(|_| check.can_tell()) else {
            return self.read_stored(bp, context).await;
        };
        if let Some(copy) = self.second.read(&block).await {
            if check.verify(&copy.stored).await {
                return Ok(copy.stored);
            }
            self.second.was_wrong(&copy);
        }
        let stored = self.read_stored(bp, context).await?;
        if context.second {
            let was_here = CacheKey::of(bp).is_some_and(|key| self.cache.remembers(key));
            let worth = match was_here {
                true => Worth::Again,
                false => Worth::First,
            };
            self.second.offer(&block, &stored, worth);
        }
        Ok(stored)
    }
}
