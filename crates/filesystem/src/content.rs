//! Content of files: blocks, sizes, holes.
//!
//! A file has one block as long as it fits into `recordsize`; the block grows in steps of 512
//! bytes. A bigger file has blocks of one size, a power of two, fixed from then on (`zfs_write`,
//! module/zfs/zfs_vnops.c; `zfs_grow_blocksize`, `zfs_extend`, `zfs_trunc`, `zfs_free_range`,
//! module/os/linux/zfs/zfs_znode_os.c).
//!
//! A write of many blocks is split into transactions of [`WRITE_BYTES_MAX`]; a crash may leave the
//! first ones. Readers see each write whole or not at all: both lock ranges.

use std::sync::Arc;

use bytes::Bytes;
use dataset::DirtyEstimate;
use format::{LogSetAttributes, ObjectId};
use object::ObjectError;
use zil::LogRecord;
use zio::Tx;

use crate::changes::Change;
use crate::checks::is_kept_by;
use crate::error::{FsError, Result};
use crate::files::Files;
use crate::log;
use crate::node::{Locked, Node};
use crate::quota::Quotas;
use crate::types::{Caller, FileKind, Via};
use crate::znode::{Znode, attr, is_of_xattr, pflags, touched, without_set_id};

/// Most bytes written in one transaction.
pub(crate) const WRITE_BYTES_MAX: u64 = 4 << 20;

/// Largest file (`MAXOFFSET_T`).
pub(crate) const FILE_BYTES_MAX: u64 = i64::MAX as u64;

/// Where a write goes.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Place {
    At(u64),
    End,
}

/// The content's attributes that a change of content changes.
const CONTENT_ATTRIBUTES: [object::SaAttribute; 4] =
    [attr::SIZE, attr::MTIME, attr::CTIME, attr::FLAGS];

/// The same, where the mode changes as well.
const CONTENT_AND_MODE: [object::SaAttribute; 5] = [
    attr::SIZE,
    attr::MTIME,
    attr::CTIME,
    attr::FLAGS,
    attr::MODE,
];

/// The block size for a file that is to hold `end` bytes (`zfs_write`): only files of one block
/// can change theirs.
pub(crate) fn grown_block_bytes(block: u64, size: u64, end: u64, record_bytes: u64) -> u64 {
    if size > block {
        return block;
    }
    let limit = if block > record_bytes && !block.is_power_of_two() {
        block.next_power_of_two()
    } else {
        record_bytes
    };
    let wanted = end.div_ceil(512).saturating_mul(512);
    limit.min(wanted).max(block)
}

/// Gives a file of one block a bigger one, if that is possible: a file that had more blocks keeps
/// their size, at least until those are freed on disk (`zfs_grow_blocksize`).
pub(crate) async fn grow_block(node: &Node, tx: &Tx, block_bytes: u64) -> Result<()> {
    match node.object.set_block_size(tx, block_bytes as u32, 0).await {
        Err(ObjectError::BlockSizeFixed { .. }) => Ok(()),
        done => Ok(done?),
    }
}

/// The pieces of a read in one.
pub(crate) fn join(pieces: Vec<Bytes>) -> Bytes {
    match <[Bytes; 1]>::try_from(pieces) {
        Ok([single]) => single,
        Err(pieces) => Bytes::from(pieces.concat()),
    }
}

/// Fails for all but regular files, which alone have content.
pub(crate) fn regular(node: &Node) -> Result<&Node> {
    match node.znode().kind() {
        FileKind::Regular => Ok(node),
        FileKind::Directory => Err(FsError::IsDirectory { ino: node.ino }),
        _ => Err(FsError::Invalid {
            what: "only regular files have content; use another file",
        }),
    }
}

/// Reads under a shared lock of the range; less than asked for at the end of the file.
/// `past_cache`: nothing of it is kept.
pub(crate) async fn read_node(
    node: &Node,
    offset_bytes: u64,
    length_bytes: usize,
    past_cache: bool,
) -> Result<Vec<Bytes>> {
    let end = offset_bytes.saturating_add(length_bytes as u64);
    let _range = node.ranges.lock(offset_bytes, end, false).await;
    let size = node.znode().size;
    if offset_bytes >= size {
        return Ok(Vec::new());
    }
    let length = (size.min(end) - offset_bytes) as usize;
    Ok(match past_cache {
        true => node.object.read_past_cache(offset_bytes, length).await?,
        false => node.object.read(offset_bytes, length).await?,
    })
}

/// Writes; `new_size` is the size that the file has afterwards, where that is not what the
/// write makes it. Of a write that leaves the cache out, whole records leave memory as soon as they
/// are on disk.
pub(crate) async fn write_node(
    files: &Files,
    quotas: &Quotas,
    node: &Arc<Node>,
    place: Place,
    data: Bytes,
    via: Via,
    caller: Caller,
    new_size: Option<u64>,
) -> Result<u64> {
    // Whether the block size must change shows under the lock only; a file of one block is
    // locked whole.
    let before = node.znode();
    let start = match place {
        Place::At(offset) => offset,
        Place::End => before.size,
    };
    let end = start
        .checked_add(data.len() as u64)
        .filter(|end| *end <= FILE_BYTES_MAX)
        .ok_or(FsError::FileTooLarge {
            limit_bytes: FILE_BYTES_MAX,
        })?;
    if data.is_empty() {
        return Ok(start);
    }
    let block = u64::from(node.object.info().data_block_bytes);
    let whole = matches!(place, Place::End) || before.size <= block && end > block;
    let (range_start, range_end) = if whole { (0, u64::MAX) } else { (start, end) };
    let _range = node.ranges.lock(range_start, range_end, true).await;
    let start = match place {
        Place::At(offset) => offset,
        Place::End => node.znode().size,
    };
    let node = node.lock().await?;
    if is_kept_by(&files.opening, &node, pflags::IMMUTABLE)
        || is_kept_by(&files.opening, &node, pflags::APPENDONLY) && start < node.znode().size
    {
        return Err(FsError::NotPermitted {
            ino: node.ino,
            what: "it is immutable or append-only; change that with chattr",
        });
    }
    let total_end = start + data.len() as u64;
    let past_cache = files
        .opening
        .leaves_cache_out(via, start, data.len() as u64);
    let mut offset = start;
    let mut rest = data;
    while !rest.is_empty() {
        let block = u64::from(node.object.info().data_block_bytes);
        let size = node.znode().size;
        // Whole blocks where it can be, so that they need not be put together.
        let phase = offset % block.max(512);
        let limit = (WRITE_BYTES_MAX - phase % WRITE_BYTES_MAX).max(512);
        let chunk = rest.split_to((rest.len() as u64).min(limit) as usize);
        let chunk_end = offset + chunk.len() as u64;
        quotas.check_file(&node.znode()).await?;
        let record_bytes = u64::from(files.opening.settings().record_bytes);
        let wanted = grown_block_bytes(block, size, size.max(total_end), record_bytes);
        let estimate = DirtyEstimate::write(chunk.len() as u64 + 2 * wanted.min(1 << 24))
            .in_blocks_of(wanted.min(1 << 24) as u32);
        fetch_edges(&node, offset, chunk_end, block).await?;
        if wanted > block && size > 0 {
            node.object.read(0, size.min(block) as usize).await?;
        }
        node.object
            .prepare_write(offset, chunk.len() as u64)
            .await?;
        let outlives = files.outlives_crash(&node).await?;
        let tx = files.assign(estimate).await?;
        if wanted > block && whole {
            grow_block(&node, &tx, wanted).await?;
        }
        let length = chunk.len() as u64;
        let written = node.object.write(&tx, offset, chunk).await;
        content_told(files, &node, offset, length);
        written?;
        if past_cache {
            node.object.let_go_when_synced(&tx, offset, length);
        }
        let size = new_size.unwrap_or_else(|| size.max(chunk_end));
        let changed = store_written(files, &tx, &node, size, caller).await?;
        if outlives {
            let sync = is_of_xattr(&changed);
            let written = LogRecord::write(ObjectId::new(node.ino), sync, offset, length);
            let cut = (size < chunk_end).then(|| log::truncated(node.ino, sync, size, 0));
            // An extended attribute has its old value or its new one, wherever the log ends.
            if sync || cut.is_some() {
                files.record_together(&tx, [written].into_iter().chain(cut));
            } else {
                files.record(&tx, written);
            }
        }
        offset = chunk_end;
    }
    Ok(start)
}

/// Brings blocks that will be written in part into memory, so that the txg is not held up by
/// the disk.
async fn fetch_edges(node: &Node, start: u64, end: u64, block: u64) -> Result<()> {
    let size = node.znode().size;
    let block = block.max(512);
    for edge in [start, end] {
        let first = edge - edge % block;
        if edge % block != 0 && first < size {
            let length = block.min(size - first) as usize;
            node.object.read(first, length).await?;
        }
    }
    Ok(())
}

/// Tells of bytes that changed. The caller has their range locked: whoever reads them again gets
/// them when all is done.
pub(crate) fn content_told(files: &Files, node: &Node, offset_bytes: u64, length_bytes: u64) {
    files.tell(Change::Content {
        ino: node.ino,
        offset_bytes,
        length_bytes,
    });
}

fn content_changed(files: &Files, znode: Znode) -> Znode {
    let now = files.opening.now();
    let archive = files.uses_fuids();
    let mut changed = touched(znode, now, archive);
    changed.mtime = now;
    if archive {
        changed.flags |= pflags::AV_MODIFIED;
    }
    changed
}

/// Stores the size and times of a file whose content changed in `tx`; one that somebody who is
/// not root wrote loses its set-id bits, which is logged.
pub(crate) async fn store_written(
    files: &Files,
    tx: &Tx,
    node: &Locked,
    size: u64,
    caller: Caller,
) -> Result<Znode> {
    let mut changed = content_changed(files, node.znode());
    changed.size = size;
    let mut list = &CONTENT_ATTRIBUTES[..];
    let mode = without_set_id(&changed, caller);
    if caller.uid != 0 && mode != changed.mode {
        changed.mode = mode;
        list = &CONTENT_AND_MODE;
        let record = log::attributes_set(node.ino, LogSetAttributes::MODE, &changed, None);
        files.record(tx, record);
    }
    files.store(tx, node, changed, list, []).await?;
    Ok(changed)
}

/// Sets the size: cuts, or grows with a hole. The range must be locked whole by the caller;
/// attributes of size and times are stored, but nothing is logged.
pub(crate) async fn resize(files: &Files, node: &Locked, size: u64) -> Result<()> {
    if size > FILE_BYTES_MAX {
        return Err(FsError::FileTooLarge {
            limit_bytes: FILE_BYTES_MAX,
        });
    }
    let old = node.znode().size;
    let block = u64::from(node.object.info().data_block_bytes);
    if size > old {
        let record_bytes = u64::from(files.opening.settings().record_bytes);
        let wanted = grown_block_bytes(block, old, size, record_bytes);
        if wanted > block && old > 0 {
            node.object.read(0, old.min(block) as usize).await?;
        }
        let tx = files.assign(DirtyEstimate::write(wanted)).await?;
        if wanted > block {
            grow_block(node, &tx, wanted).await?;
        }
        let changed = Znode {
            size,
            ..node.znode()
        };
        files.store(&tx, node, changed, &[attr::SIZE], []).await?;
        content_told(files, node, old, u64::MAX);
        return Ok(());
    }
    if size == old {
        return Ok(());
    }
    // From the end, in parts: at each crash point the file is just not yet as short.
    let mut end = old;
    loop {
        let start = node.object.last_part(size, end).await?;
        fetch_edges(node, start, start, block).await?;
        node.object.prepare_free(start, u64::MAX).await?;
        let tx = files.assign(DirtyEstimate::free()).await?;
        node.object.free_range(&tx, start, u64::MAX).await?;
        content_told(files, node, start, u64::MAX);
        let mut changed = Znode {
            size: start,
            ..node.znode()
        };
        if start == 0 {
            changed.flags &= !pflags::SPARSE;
        }
        files
            .store(&tx, node, changed, &[attr::SIZE, attr::FLAGS], [])
            .await?;
        if start == size {
            return Ok(());
        }
        files.opening.check_not_closing()?;
        end = start;
    }
}

/// Frees `offset..offset + length` within the file (`zfs_free_range`).
async fn punch(files: &Files, node: &Locked, offset: u64, length: u64) -> Result<()> {
    let end = offset.saturating_add(length).min(node.znode().size);
    let block = u64::from(node.object.info().data_block_bytes);
    let mut start = offset;
    while start < end {
        files.opening.check_not_closing()?;
        let part_end = node.object.first_part(start, end).await?;
        fetch_edges(node, start, part_end, block).await?;
        // To the end of the file means to the end of the object: its last block goes too.
        let to_end = part_end == node.znode().size;
        let length = if to_end { u64::MAX } else { part_end - start };
        node.object.prepare_free(start, length).await?;
        let tx = files.assign(DirtyEstimate::free()).await?;
        node.object.free_range(&tx, start, length).await?;
        content_told(files, node, start, length);
        files
            .store(&tx, node, node.znode(), &[attr::SIZE], [])
            .await?;
        start = part_end;
    }
    Ok(())
}

/// Frees a range, with times and a log record (`zfs_freesp` with `log`). A length of 0 cuts the
/// file off at the offset.
pub(crate) async fn free_space(
    files: &Files,
    node: &Arc<Node>,
    offset: u64,
    length: u64,
) -> Result<()> {
    let _range = node.ranges.lock(0, u64::MAX, true).await;
    let node = node.lock().await?;
    let kept = pflags::IMMUTABLE | pflags::READONLY | pflags::APPENDONLY;
    if is_kept_by(&files.opening, &node, kept) {
        return Err(FsError::NotPermitted {
            ino: node.ino,
            what: "it is immutable, append-only (change that with chattr), or has the attribute \
                   READONLY of DOS; take that away first",
        });
    }
    let size = node.znode().size;
    let end = offset
        .checked_add(length)
        .filter(|end| *end <= FILE_BYTES_MAX)
        .ok_or(FsError::FileTooLarge {
            limit_bytes: FILE_BYTES_MAX,
        })?;
    if offset > size {
        resize(files, &node, end).await?;
    } else if length == 0 {
        resize(files, &node, offset).await?;
    } else {
        punch(files, &node, offset, length).await?;
        if end > size {
            resize(files, &node, end).await?;
        }
    }
    let outlives = files.outlives_crash(&node).await?;
    // It is done: for want of space its record must not be refused.
    let tx = files.assign(DirtyEstimate::free()).await?;
    let changed = content_changed(files, node.znode());
    files
        .store(
            &tx,
            &node,
            changed,
            &[attr::MTIME, attr::CTIME, attr::FLAGS],
            [],
        )
        .await?;
    if outlives {
        let sync = is_of_xattr(&changed);
        files.record(&tx, log::truncated(node.ino, sync, offset, length));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::grown_block_bytes;

    #[test]
    fn one_block_grows_until_recordsize_and_then_stays() {
        const K: u64 = 1024;
        assert_eq!(grown_block_bytes(512, 0, 1, 128 * K), 512);
        assert_eq!(grown_block_bytes(512, 0, 513, 128 * K), 1024);
        assert_eq!(grown_block_bytes(512, 512, 100_000, 128 * K), 100_352);
        assert_eq!(grown_block_bytes(512, 100, 10 << 20, 128 * K), 128 * K);
        // Two blocks: never again.
        assert_eq!(
            grown_block_bytes(128 * K, 200 * K, 10 << 20, 1 << 20),
            128 * K
        );
        // recordsize was made smaller: only to the next power of two.
        assert_eq!(
            grown_block_bytes(100_352, 100_000, 10 << 20, 4 * K),
            128 * K
        );
        assert_eq!(
            grown_block_bytes(128 * K, 128 * K, 10 << 20, 4 * K),
            128 * K
        );
        // One full block of recordsize, which then was made bigger.
        assert_eq!(
            grown_block_bytes(128 * K, 128 * K, 300 * K, 1 << 20),
            300 * K
        );
    }
}
