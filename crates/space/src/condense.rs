//! Condensing: a space map that is much longer than it needs to be is written anew.

use dataset::DatasetError;
use object::{SpaceMapKind, SpaceMapObject};
use vdev::RangeSet;
use zio::pipeline::may_fail;

use crate::names::LOG_SPACEMAP;
use crate::{
    MAP_BLOCK_BYTES, MAP_BLOCK_BYTES_NO_LOG, Metaslab, Space, SpaceSync, Top, lengths, writeable,
};

/// A space map this many times as long as it could be is condensed (`zfs_metaslab_condense_pct`).
const CONDENSE_FACTOR: u64 = 2;
/// Space maps of up to this many blocks are left alone (`zfs_metaslab_condense_block_threshold`).
const CONDENSE_BLOCKS: u64 = 4;

impl Space {
    /// Writes a space map anew if it is much longer than it needs to be, unflushed changes
    /// included; returns whether it did.
    pub(super) async fn condense(
        &self,
        sync: &SpaceSync<'_>,
        top: &Top,
        index: u64,
        metaslab: &mut Metaslab,
    ) -> Result<bool, DatasetError> {
        let Some(map) = metaslab.map.clone() else {
            return Ok(false);
        };
        let map = writeable(sync, map);
        let length = map.length_bytes();
        let threshold = CONDENSE_BLOCKS * u64::from(MAP_BLOCK_BYTES).max(1 << top.shape.ashift);
        // Looking costs reading the whole map: only when it has grown by a quarter since.
        if length <= threshold || length < metaslab.considered_bytes / 4 * 5 {
            return Ok(false);
        }
        metaslab.considered_bytes = length;
        // A longer map does no harm: what cannot be read does not keep the txg from being written.
        // The allocator does without this metaslab.
        let free = match may_fail(Self::free_ranges(top, index, metaslab)).await {
            Ok(free) => free,
            Err(error) => {
                let vdev = top.shape.vdev;
                tracing::error!(
                    %vdev, metaslab = index, %error, "a space map stays as long as it is"
                );
                return Ok(false);
            }
        };
        let span = top.span(index);
        let mut allocated = RangeSet::default();
        allocated.add(span.start, span.end - span.start);
        allocated.remove_all(&free);
        let allocated = lengths(&allocated);
        let best = SpaceMapObject::estimate_bytes(&allocated, top.shape.ashift, None);
        if length < best * CONDENSE_FACTOR {
            return Ok(false);
        }
        let block_bytes = if sync.features.is_enabled(LOG_SPACEMAP) {
            MAP_BLOCK_BYTES
        } else {
            MAP_BLOCK_BYTES_NO_LOG
        };
        map.truncate(sync.tx, block_bytes).await?;
        map.append(sync.tx, SpaceMapKind::Allocate, None, &allocated)
            .await?;
        metaslab.considered_bytes = map.length_bytes();
        Ok(true)
    }
}
