//! Writing files again as they are (`zfs rewrite`): to other places, and as the dataset's
//! properties say now (checksum, compression, copies, dedup; not `recordsize`).
//!
//! Nothing that a file holds or says of itself changes, its times neither, so nothing is logged:
//! each part is in its txg on disk whole or not at all, and a crash leaves the same file in older
//! places. Blocks that a snapshot has, or another file shares, are kept for those: rewriting them
//! takes space. Holes stay holes.
//!
//! Source: module/zfs/zfs_vnops.c (`zfs_rewrite`). Other than there the file is locked part by
//! part, so that those who write into it wait for one part only.

use dataset::DirtyEstimate;
use dataset::features::guid;

use crate::content::WRITE_BYTES_MAX;
use crate::error::{FsError, Result};
use crate::filesystem::Filesystem;
use crate::types::FileKind;

impl Filesystem {
    /// Writes a part of a file again, from `offset_bytes` on and not further than `end_bytes`: a
    /// few MiB at once. Where to go on, and nothing when that was all. `physically` blocks stay as
    /// old as they are, so that they do not count as changed (feature `physical_rewrite`); not in
    /// an encrypted filesystem. There a block gets another IV and MAC, and a raw difference that
    /// OpenZFS makes later leaves out what is no younger than its source: where that was received,
    /// the MACs above the block would not fit.
    ///
    /// # Errors
    /// [`FsError::Unsupported`] without that feature; [`FsError::IsDirectory`],
    /// [`FsError::Invalid`] for what is no regular file; [`FsError::ReadOnly`],
    /// [`FsError::QuotaExceeded`], [`FsError::NoSpace`]; errors of reading.
    pub async fn rewrite_part(
        &self,
        ino: u64,
        offset_bytes: u64,
        end_bytes: u64,
        physically: bool,
    ) -> Result<Option<u64>> {
        let _entered = self.opening.enter_to_change().await?;
        if physically && !self.opening.dataset()?.has_feature(guid::PHYSICAL_REWRITE) {
            return Err(FsError::Unsupported {
                what: "a rewrite with -P in a pool without the feature physical_rewrite (enable it \
                       with 'zpool upgrade')",
            });
        }
        let physically = physically && !self.files.objset.options().encrypted;
        let node = self.files.node(ino).await?;
        match node.znode().kind() {
            FileKind::Regular => {}
            FileKind::Directory => return Err(FsError::IsDirectory { ino }),
            _ => {
                return Err(FsError::Invalid {
                    what: "only regular files can be rewritten; name those",
                });
            }
        }
        let end_bytes = end_bytes.min(node.znode().size);
        if offset_bytes >= end_bytes {
            return Ok(None);
        }
        let Some(data_bytes) = node.object.next_data(offset_bytes).await? else {
            return Ok(None);
        };
        if data_bytes >= end_bytes {
            return Ok(None);
        }
        let block_bytes = u64::from(node.object.info().data_block_bytes);
        let start_bytes = data_bytes - data_bytes % block_bytes;
        let part_bytes = (WRITE_BYTES_MAX / block_bytes).max(1) * block_bytes;
        let wanted_end = end_bytes.div_ceil(block_bytes).saturating_mul(block_bytes);
        let part_end = wanted_end.min(start_bytes.saturating_add(part_bytes));
        // A file of one block may get a bigger one: then it is another's whole.
        let is_single = node.znode().size <= block_bytes;
        let (from, to) = if is_single {
            (0, u64::MAX)
        } else {
            (start_bytes, part_end)
        };
        let _range = node.ranges.lock(from, to, true).await;
        let node = node.lock().await?;
        if u64::from(node.object.info().data_block_bytes) != block_bytes {
            // It has just grown, and so was written.
            return Ok(Some(offset_bytes));
        }
        // The end may have been cut off before the lock was there.
        let part_end = part_end.min(node.znode().size.div_ceil(block_bytes) * block_bytes);
        if !node.object.exists() || start_bytes >= part_end {
            return Ok(None);
        }
        let length = part_end - start_bytes;
        self.quotas.check_file(&node.znode()).await?;
        // The disk is waited for before the txg is.
        drop(node.object.read(start_bytes, length as usize).await?);
        let estimate = DirtyEstimate::write(length).in_blocks_of(block_bytes as u32);
        let tx = self.files.assign(estimate).await?;
        let (first, last) = (start_bytes / block_bytes, part_end / block_bytes - 1);
        node.object
            .rewrite_blocks(&tx, first, last, physically)
            .await?;
        Ok((part_end < end_bytes).then_some(part_end))
    }
}
