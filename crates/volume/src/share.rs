//! Sharing blocks between volumes of one pool instead of copying them (block cloning).
//!
//! Whole blocks are shared when they are on disk and both volumes have blocks of the same size;
//! whoever asks copies the rest. One call is one transaction and one log record.
//!
//! Locks: both volumes are kept open, then the ranges are locked, each in the order of their guids,
//! so that two copies in opposite directions do not wait for each other. A crash before the
//! transaction is on disk leaves the target as it was, or as the log record says.
//!
//! Source: module/zfs/zvol.c (`zvol_clone_range`, `zvol_log_clone_range`).

use dataset::DirtyEstimate;
use dataset::features::guid;
use format::LogBody;
use std::sync::Arc;
use zil::LogRecord;

use crate::error::Result;
use crate::init::DATA;
use crate::volume::Volume;

/// Blocks shared in one transaction: their pointers fit into a log record.
const BLOCKS_MAX: u64 = 512;
/// And bytes of them, but for one block: they are accounted for as if they were written.
const BYTES_MAX: u64 = 32 << 20;

impl Volume {
    /// Whether blocks of the other volume can be this one's at all. Encrypted ones are tied to
    /// their dataset.
    fn may_share_with(&self, source: &Self) -> bool {
        let (here, there) = (self.objset(), source.objset());
        Arc::ptr_eq(here.pipeline(), there.pipeline())
            && self.block_bytes() == source.block_bytes()
            && !here.options().encrypted
            && !there.options().encrypted
    }

    /// Has a range of this volume share the blocks of another one's, or of its own elsewhere, as
    /// far from its start as that goes at once; answers how many bytes, 0 where they must be
    /// copied. The two ranges do not overlap.
    ///
    /// # Errors
    /// As those of writing; nothing has changed then.
    pub async fn clone_range(
        &self,
        source: &Self,
        source_bytes: u64,
        offset_bytes: u64,
        length_bytes: u64,
    ) -> Result<u64> {
        let block_bytes = u64::from(self.block_bytes());
        let blocks = (length_bytes / block_bytes)
            .min(BLOCKS_MAX)
            .min((BYTES_MAX / block_bytes).max(1));
        let is_whole =
            source_bytes.is_multiple_of(block_bytes) && offset_bytes.is_multiple_of(block_bytes);
        if blocks == 0 || !is_whole || !self.may_share_with(source) {
            return Ok(0);
        }
        let is_same = std::ptr::eq(self, source);
        // The same volume as it was before a rollback: it is about to be closed.
        if !is_same && self.guid() == source.guid() {
            return Ok(0);
        }
        let length_bytes = blocks * block_bytes;
        let is_first = self.guid().get() <= source.guid().get();
        let (_here, _there);
        if is_first {
            _here = self.enter_to_change().await?;
            _there = match is_same {
                true => None,
                false => Some(source.enter().await?),
            };
        } else {
            _there = Some(source.enter().await?);
            _here = self.enter_to_change().await?;
        }
        let from_end = source.check_range(source_bytes, length_bytes)?;
        let to_end = self.check_range(offset_bytes, length_bytes)?;
        let (_first, _second);
        if is_same {
            let (start, end) = (source_bytes.min(offset_bytes), from_end.max(to_end));
            _first = self.ranges().lock(start, end, true).await;
            _second = None;
        } else if is_first {
            _first = self.ranges().lock(offset_bytes, to_end, true).await;
            _second = Some(source.ranges().lock(source_bytes, from_end, false).await);
        } else {
            _first = source.ranges().lock(source_bytes, from_end, false).await;
            _second = Some(self.ranges().lock(offset_bytes, to_end, true).await);
        }
        // They may have waited for a resize.
        source.check_range(source_bytes, length_bytes)?;
        self.check_range(offset_bytes, length_bytes)?;
        let dataset = self.dataset()?;
        if !dataset.has_feature(guid::BLOCK_CLONING) {
            return Ok(0);
        }
        let found = source
            .data()
            .shareable_blocks(source_bytes / block_bytes, blocks, dataset.synced_txg())
            .await
            .map_err(|error| source.damaged_at(source_bytes, error))?;
        let Some(pointers) = found else { return Ok(0) };
        self.data()
            .prepare_write(offset_bytes, length_bytes)
            .await
            .map_err(|error| self.damaged_at(offset_bytes, error))?;
        // They count for the dataset as copies would.
        let estimate = DirtyEstimate::write(length_bytes).in_blocks_of(self.block_bytes());
        let tx = self.assign(estimate).await?;
        self.data()
            .share_blocks(&tx, offset_bytes / block_bytes, &pointers)
            .await
            .map_err(|error| self.of_object(error))?;
        if let Some(log) = self.log() {
            let body = LogBody::CloneRange {
                object: DATA,
                offset: offset_bytes,
                length: length_bytes,
                block_bytes,
                blocks: pointers.into(),
            };
            log.record(&tx, LogRecord::of_object(DATA, false, &body));
        }
        drop(tx);
        self.finish(false).await?;
        Ok(length_bytes)
    }
}
