//! Verifying every copy of a block: the primitive that scrubs are made of.
//!
//! An ordinary read stops at the first copy that is right. Here every place of the pointer is read, and
//! below each place everything that its vdev keeps of the block: [`IoContext::scrub`] goes down with the
//! read, and each kind of vdev obeys it by reading *all* physical copies or columns that it would list for
//! that place. Mirrors read every child, RAID-Z every column and compares the parity with what it must be.
//! A vdev that only translates places hands the flag on. What is wrong is counted at the device that
//! returned it, and written anew where the pool may be written.
//!
//! Nothing here looks at the cache: what is in memory says nothing about the disks.

use bytes::Bytes;
use format::{BlockPointer, Pointer};

use super::crypt::Unlock;
use super::read::io_context;
use super::{Pipeline, ReadContext, zeros};
use crate::cache::CacheKey;
use crate::error::ZioError;
use vdev::IoContext;

/// What a scrub of a block found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ScrubOutcome {
    /// Copies read.
    pub copies: usize,
    /// Copies that could not be read right, not even with their vdev's redundancy. Those were written anew
    /// from another copy if there was a good one.
    pub bad_copies: usize,
}

impl Pipeline {
    /// Reads and verifies every copy of a block, parity included, and repairs what is wrong. Encrypted
    /// blocks are verified as far as that goes without their key: by checksum.
    ///
    /// # Errors
    /// As [`Self::read`], when no copy is good.
    pub async fn scrub(
        &self,
        bp: &BlockPointer,
        context: &ReadContext,
    ) -> Result<ScrubOutcome, ZioError> {
        if CacheKey::of(bp).is_none() {
            return Ok(ScrubOutcome::default());
        }
        self.validate(bp)?;
        if bp.is_gang() {
            return self.scrub_gang(bp, context).await;
        }
        Ok(self.scrub_places(bp, context).await?.1)
    }

    /// Does what [`Self::scrub`] does, and gives the block: decompressed, but not decrypted. (Indirect blocks and dnodes
    /// are in the clear, but for the bonus, so that a scrub finds its way without keys.)
    ///
    /// # Errors
    /// As [`Self::scrub`], and [`ZioError::Corrupt`].
    pub async fn scrub_and_read(
        &self,
        bp: &BlockPointer,
        context: &ReadContext,
    ) -> Result<Bytes, ZioError> {
        self.validate(bp)?;
        let stored = match bp.decoded() {
            Pointer::Hole(_) => return Ok(zeros(bp.lsize_bytes() as usize)),
            Pointer::Embedded(_) => return self.read(bp, context).await,
            Pointer::Regular(_) if bp.is_gang() => {
                self.scrub_gang(bp, context).await?;
                self.read_gang(bp, context).await?
            }
            Pointer::Regular(_) => self.scrub_places(bp, context).await?.0,
        };
        self.open(bp, Unlock::AsIs, stored).await
    }

    async fn scrub_places(
        &self,
        bp: &BlockPointer,
        context: &ReadContext,
    ) -> Result<(Bytes, ScrubOutcome), ZioError> {
        let io = IoContext {
            scrub: true,
            ..io_context(bp, context)
        };
        self.read_copies(bp, bp.psize_bytes() as usize, &io).await
    }
}
