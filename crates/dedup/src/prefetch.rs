//! `zpool prefetch`: has tables in memory before they are asked for.
//!
//! A table that is not in memory costs a read of the disks for each block that is written or freed
//! with dedup, or freed after cloning. All of it is read here, a block after the other in the order
//! of the object, through the cache, which keeps what it has room for.
//!
//! Behaviour as of zpool-prefetch(8); module/zfs/ddt.c (`ddt_prefetch_all`), module/zfs/brt.c
//! (`brt_prefetch_all`).

use std::sync::Arc;

use format::ObjectId;
use futures::{StreamExt, TryStreamExt};
use object::ObjectSet;
use spa::PoolError;

/// Blocks of a table that are read at a time.
const READS_AT_ONCE: usize = 16;

/// Reads these objects whole; how many bytes they have in memory. Being dropped ends it.
///
/// # Errors
/// Of reading.
pub(crate) async fn read_whole(
    mos: &Arc<ObjectSet>,
    objects: &[ObjectId],
) -> Result<u64, PoolError> {
    let mut read_bytes = 0_u64;
    for id in objects {
        let object = &mos.hold(*id).await?;
        let info = object.info();
        let block_bytes = u64::from(info.data_block_bytes);
        let blocks = futures::stream::iter(0..=info.max_block_id);
        let blocks = blocks.map(|block| async move {
            let offset = block.saturating_mul(block_bytes);
            object.read_bytes(offset, block_bytes as usize).await
        });
        let mut blocks = blocks.buffered(READS_AT_ONCE);
        while let Some(block) = blocks.try_next().await? {
            read_bytes += block.len() as u64;
        }
    }
    Ok(read_bytes)
}
