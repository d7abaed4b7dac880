//! Verifying every copy of a block, and giving devices what they lack: the primitive that scrubs
//! and resilvers are made of.
//!
//! An ordinary read stops at the first copy that is right. Here every DVA of the pointer is read,
//! and below each DVA everything that its vdev keeps of the block: [`IoContext::scan`] goes down
//! with the read, and each kind of vdev obeys it by reading *all* physical copies or columns.
//! Mirrors read every child; RAID-Z reads every column and compares the parity with what it must
//! be. A vdev that only translates addresses hands the flag on. What is wrong is counted at the
//! device that returned it, and written anew where the pool may be written. A device that is known
//! to lack the block is not read; it is written. For a resilver, that is all that is done.
//!
//! Nothing here looks at the cache: what is in memory says nothing about the disks.

use bytes::Bytes;
use format::{BlockPointer, Pointer};
use vdev::{IoContext, ScanRead};

use super::ReadContext;
use super::copies::{ScrubOutcome, io_context};
use super::keys::Unlock;
use super::read::{Reader, validate, zeros};
use crate::cache::CacheKey;
use crate::error::ZioError;

impl Reader {
    /// Reads and verifies every copy of a block, parity included, and repairs what is wrong.
    /// Encrypted blocks are verified as far as that goes without their key: by checksum.
    ///
    /// # Errors
    /// As [`Self::read`], when no copy is good.
    pub async fn scrub(
        &self,
        bp: &BlockPointer,
        context: &ReadContext,
    ) -> Result<ScrubOutcome, ZioError> {
        self.scan(bp, context, ScanRead::Scrub).await
    }

    /// Reads a block as a scrub or resilver does.
    ///
    /// # Errors
    /// As [`Self::read`], when no copy is good.
    pub async fn scan(
        &self,
        bp: &BlockPointer,
        context: &ReadContext,
        scan: ScanRead,
    ) -> Result<ScrubOutcome, ZioError> {
        if CacheKey::of(bp).is_none() {
            return Ok(ScrubOutcome::default());
        }
        validate(bp)?;
        if bp.is_gang() {
            return self.gangs.scan(bp, context, scan).await;
        }
        Ok(self.scan_places(bp, context, scan).await?.1)
    }

    /// Does what [`Self::scan`] does, and gives the block: decompressed, but not decrypted.
    /// (Indirect blocks and dnodes are in the clear, but for the bonus, so that a scrub finds its
    /// way without keys.)
    ///
    /// # Errors
    /// As [`Self::scan`], and [`ZioError::Corrupt`].
    pub async fn scan_and_read(
        &self,
        bp: &BlockPointer,
        context: &ReadContext,
        scan: ScanRead,
    ) -> Result<Bytes, ZioError> {
        validate(bp)?;
        let stored = match bp.decoded() {
            Pointer::Hole(_) => return Ok(zeros(bp.lsize_bytes() as usize)),
            Pointer::Embedded(_) => return self.read(bp, context).await,
            Pointer::Regular(_) if bp.is_gang() => {
                self.gangs.scan(bp, context, scan).await?;
                self.gangs.read(bp, context).await?
            }
            Pointer::Regular(_) => self.scan_places(bp, context, scan).await?.0,
        };
        self.open(bp, Unlock::AsIs, stored).await
    }

    async fn scan_places(
        &self,
        bp: &BlockPointer,
        context: &ReadContext,
        scan: ScanRead,
    ) -> Result<(Bytes, ScrubOutcome), ZioError> {
        let io = IoContext {
            scan,
            ..io_context(bp, context)
        };
        self.copies.read(bp, bp.psize_bytes() as usize, &io).await
    }
}
