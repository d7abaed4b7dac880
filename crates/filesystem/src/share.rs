//! Sharing blocks between files instead of copying them (block cloning): `copy_file_range`.
//!
//! Whole blocks are shared when they are on disk and both files have blocks of the same size;
//! anything else is copied. A range is shared in parts, each one transaction and one log record, as
//! far as that goes.
//!
//! Locks: the ranges of both files, whole blocks, in the order of their numbers, so that two copies
//! in opposite directions do not wait for each other; then the target. A file of a snapshot comes
//! first: nothing is copied to it.
//!
//! Source: module/zfs/zfs_vnops.c (`zfs_clone_range_locked`, `zfs_clone_range_replay`).

use std::cmp::Ordering;
use std::sync::Arc;

use dataset::DirtyEstimate;
use dataset::features::guid;
use format::{BlockPointer, LogBody};
use zil::LogRecord;

use crate::content::{FILE_BYTES_MAX, content_told, grow_block, store_written};
use crate::error::Result;
use crate::files::Files;
use crate::node::{Locked, Node};
use crate::quota::Quotas;
use crate::types::Caller;
use crate::znode::{is_of_xattr, pflags};

/// Blocks shared in one transaction: their pointers fit into a log record.
const BLOCKS_MAX: u64 = 512;
/// And bytes of them, but for one block: they are accounted for as if they were written.
const BYTES_MAX: u64 = 32 << 20;

/// How two ranges may be shared: blocks, and bytes of them that count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Shared {
    block_bytes: u64,
    blocks: u64,
    length_bytes: u64,
}

/// Blocks to be put into a file, and where.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Blocks<'a> {
    pub(crate) offset_bytes: u64,
    pub(crate) length_bytes: u64,
    pub(crate) block_bytes: u64,
    pub(crate) pointers: &'a [BlockPointer],
}

/// A file as far as sharing asks.
#[derive(Debug, Clone, Copy)]
struct Shape {
    size: u64,
    block_bytes: u64,
}

/// Which part of a range can be shared, from its start; `None` when it must be copied.
fn plan(
    source: Shape,
    from: u64,
    target: Shape,
    to: u64,
    length: u64,
    record_bytes: u64,
) -> Option<Shared> {
    let block = source.block_bytes;
    let length = length.min(source.size.checked_sub(from)?);
    if block == 0 || to.checked_add(length)? > FILE_BYTES_MAX {
        return None;
    }
    let fits = target.block_bytes == block
        || target.block_bytes < block && target.size <= target.block_bytes;
    if length == 0 || !fits || !from.is_multiple_of(block) || !to.is_multiple_of(block) {
        return None;
    }
    if to != 0 && !block.is_power_of_two() {
        return None;
    }
    let whole = length / block;
    // The end of the source's last block is zeros: it may be shared where the target ends too.
    let ends =
        !length.is_multiple_of(block) && from + length == source.size && to + length >= target.size;
    let blocks = if ends { whole + 1 } else { whole };
    let blocks = blocks.min(BLOCKS_MAX).min((BYTES_MAX / block).max(1));
    let length_bytes = length.min(blocks.checked_mul(block)?);
    // A file of one small block would keep that size however large it gets.
    let is_stunted = length_bytes <= block
        && block < record_bytes
        && target.size <= block
        && to + length_bytes > block;
    (blocks > 0 && !is_stunted).then_some(Shared {
        block_bytes: block,
        blocks,
        length_bytes,
    })
}

fn shape(node: &Node) -> Shape {
    Shape {
        size: node.znode().size,
        block_bytes: node.object.info().data_block_bytes.into(),
    }
}

/// Shares blocks from the start of a range, as far as that goes at once; how many bytes: 0 when
/// they must be copied. The source is of this filesystem or of a snapshot of it.
pub(crate) async fn share_range(
    files: &Files,
    quotas: &Quotas,
    source: &Arc<Node>,
    from: u64,
    target: &Arc<Node>,
    to: u64,
    length: u64,
    caller: Caller,
) -> Result<u64> {
    let dataset = files.opening.dataset()?;
    let record_bytes = u64::from(files.opening.settings().record_bytes);
    let planned = || plan(shape(source), from, shape(target), to, length, record_bytes);
    if !dataset.has_feature(guid::BLOCK_CLONING) {
        return Ok(0);
    }
    let Some(wanted) = planned() else {
        return Ok(0);
    };
    let locked_bytes = wanted.blocks * wanted.block_bytes;
    let grows = shape(target).block_bytes != shape(source).block_bytes;
    let is_same = Arc::ptr_eq(source, target);
    // Of blocks that the cipher does not take there should not be more.
    let is_long = wanted.block_bytes > u64::from(files.objset.options().block_bytes_max);
    if grows && (is_same || is_long) {
        return Ok(0);
    }
    // Whole blocks: else somebody could write into the last one behind the range, so that the
    // source's were freed before anybody heard that it is shared, or what is written into the
    // target's were lost.
    let end = |start: u64| start.saturating_add(locked_bytes);
    let (start, whole_end) = if grows { (0, u64::MAX) } else { (to, end(to)) };
    let (_first, _second);
    let order = match source.ino.cmp(&target.ino) {
        Ordering::Equal if !is_same => Ordering::Less,
        order => order,
    };
    match order {
        Ordering::Less => {
            _first = source.ranges.lock(from, end(from), false).await;
            _second = Some(target.ranges.lock(start, whole_end, true).await);
        }
        // One lock over both: who waits for the first range, and what is between, is before us
        // at the second.
        Ordering::Equal => {
            _first = target
                .ranges
                .lock(from.min(to), end(from.max(to)), true)
                .await;
            _second = None;
        }
        Ordering::Greater => {
            _first = target.ranges.lock(start, whole_end, true).await;
            _second = Some(source.ranges.lock(from, end(from), false).await);
        }
    }
    let node = target.lock().await?;
    // Sizes may have changed before the locks were there.
    let Some(shared) = planned() else {
        return Ok(0);
    };
    let is_locked = shared.blocks * shared.block_bytes <= locked_bytes
        && (grows || shape(target).block_bytes == shared.block_bytes);
    // A file that is gone reads as holes.
    if !is_locked || !source.object.exists() {
        return Ok(0);
    }
    if node.znode().flags & (pflags::IMMUTABLE | pflags::APPENDONLY) != 0 {
        return Ok(0);
    }
    quotas.check_file(&node.znode()).await?;
    let found = source
        .object
        .shareable_blocks(
            from / shared.block_bytes,
            shared.blocks,
            dataset.synced_txg(),
        )
        .await?;
    let Some(pointers) = found else { return Ok(0) };
    let blocks = Blocks {
        offset_bytes: to,
        length_bytes: shared.length_bytes,
        block_bytes: shared.block_bytes,
        pointers: &pointers,
    };
    let done = put_shared(files, &node, blocks, caller).await?;
    Ok(if done { shared.length_bytes } else { 0 })
}

/// Puts pointers into a file, with size, times and a log record; `false`, and nothing is done,
/// when its blocks cannot be of that size. The range is locked by the caller.
async fn put_shared(
    files: &Files,
    node: &Locked,
    blocks: Blocks<'_>,
    caller: Caller,
) -> Result<bool> {
    let Blocks {
        offset_bytes: to,
        length_bytes: length,
        block_bytes,
        pointers,
    } = blocks;
    // They count for the dataset as copies would.
    let shared_bytes = pointers.len() as u64 * block_bytes;
    let size = node.znode().size;
    let has = u64::from(node.object.info().data_block_bytes);
    if has < block_bytes && size > 0 {
        node.object.read(0, size.min(has) as usize).await?;
    }
    node.object.prepare_write(to, shared_bytes).await?;
    let outlives = files.outlives_crash(node).await?;
    let tx = files.assign(DirtyEstimate::write(shared_bytes)).await?;
    if has < block_bytes {
        grow_block(node, &tx, block_bytes).await?;
    }
    if u64::from(node.object.info().data_block_bytes) != block_bytes {
        return Ok(false);
    }
    node.object
        .share_blocks(&tx, to / block_bytes, pointers)
        .await?;
    content_told(files, node, to, length);
    let changed = store_written(files, &tx, node, size.max(to + length), caller).await?;
    if outlives {
        let sync = is_of_xattr(&changed);
        let object = node.ino.into();
        let body = LogBody::CloneRange {
            object,
            offset: to,
            length,
            block_bytes,
            blocks: pointers.into(),
        };
        files.record(&tx, LogRecord::of_object(object, sync, &body));
    }
    Ok(true)
}

/// Shares what a clone record tells; `false` when the file's blocks are of another size.
pub(crate) async fn replay_shared(
    files: &Files,
    node: &Locked,
    blocks: Blocks<'_>,
) -> Result<bool> {
    let has = shape(node);
    let fits = has.block_bytes == blocks.block_bytes
        || has.block_bytes < blocks.block_bytes && has.size <= has.block_bytes;
    if !fits
        || !blocks.offset_bytes.is_multiple_of(blocks.block_bytes)
        || blocks.pointers.iter().any(BlockPointer::is_embedded)
    {
        return Ok(false);
    }
    put_shared(files, node, blocks, Caller::ROOT).await
}
