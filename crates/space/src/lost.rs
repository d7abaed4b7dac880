//! Space maps that cannot be continued.
//!
//! To append to a map, its last block is read first. Where no copy of that can be read, the map
//! cannot be continued, and what its last entries said is not known. The group of changes is not
//! given up for it (OpenZFS stops: `space_map_write`, module/zfs/space_map.c): another map begins.
//!
//! - **A metaslab's.** The allocator has all of it while the metaslab is loaded, and nothing is
//!   lost. Else the new map calls free what is known to be, and everything else allocated: so much
//!   space leaks, and nothing that is in use is ever given to anybody. What was handed out to
//!   groups that are not written yet is free in the new map as it was in the old one: after a crash
//!   the intent log's blocks can be claimed.
//! - **A checkpoint's.** What it listed stays allocated when the checkpoint goes: it leaks.
//! - **A removed vdev's obsolete ranges.** They count as used, and its mapping stays longer. Its
//!   ZAP no longer says that all that is obsolete is recorded.

use std::sync::Arc;
use std::time::Duration;

use dataset::DatasetError;
use format::ObjectId;
use format::names::top_vdev::OBSOLETE_COUNTS_ARE_PRECISE;
use object::{ObjectError, ObjectSet, SpaceMapKind, SpaceMapObject, Zap};
use vdev::RangeSet;
use zio::ZioError;
use zio::pipeline::waits_for_devices;

use crate::names::{LOG_SPACEMAP, OBSOLETE_COUNTS, OBSOLETE_SPACE_MAP};
use crate::{
    MAP_BLOCK_BYTES, MAP_BLOCK_BYTES_NO_LOG, Metaslab, Space, SpaceSync, Top, free_map, lengths,
    new_map, writeable,
};

/// How often a block is read again that a device did not give, before its map is given up.
const TRIES_MAX: u32 = 3;
/// How long it waits before each time.
const PAUSE: Duration = Duration::from_secs(1);

/// Whether no copy of a block can be read, though what works was waited for.
pub(super) fn is_lost(error: &ObjectError) -> bool {
    matches!(
        error,
        ObjectError::Zio(
            ZioError::Checksum { .. }
                | ZioError::Unreadable { .. }
                | ZioError::Corrupt { .. }
                | ZioError::BadPointer { .. }
                | ZioError::Vdev(vdev::VdevError::Format(_))
        )
    )
}

/// Waits a moment where reading again may succeed, as a device failed that is there: what one
/// hiccup of a bus would make lost is lost for good. `false` when it was tried often enough.
pub(super) async fn may_try_again(
    sync: &SpaceSync<'_>,
    tries: &mut u32,
    error: &ObjectError,
) -> bool {
    let device_failed = match error {
        ObjectError::Zio(
            ZioError::Checksum { device_failed, .. } | ZioError::Unreadable { device_failed, .. },
        ) => *device_failed,
        _ => false,
    };
    if !device_failed || *tries == TRIES_MAX {
        return false;
    }
    *tries += 1;
    sync.pipeline.world().clock.sleep(PAUSE).await;
    true
}

/// Appends to a map; tells whether that could be done, or the map is lost.
async fn append(
    sync: &SpaceSync<'_>,
    map: &SpaceMapObject,
    changes: &[(SpaceMapKind, &RangeSet)],
) -> Result<bool, DatasetError> {
    let mut tries = 0;
    let mut left = changes;
    while let [(kind, ranges), rest @ ..] = left {
        let appended = waits_for_devices(map.append(sync.tx, *kind, None, &lengths(ranges))).await;
        match appended {
            Ok(()) => left = rest,
            Err(error) if may_try_again(sync, &mut tries, &error).await => {}
            Err(error) if is_lost(&error) => {
                tracing::error!(
                    map = map.id().get(), %error, "a space map cannot be continued; another begins"
                );
                return Ok(false);
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(true)
}

/// Appends ranges to a map of a whole vdev that a ZAP lists, with its size and unit; one that is
/// lost is replaced by one that has only them. Returns the map.
pub(super) async fn append_listed(
    sync: &SpaceSync<'_>,
    (mos, map): (&Arc<ObjectSet>, SpaceMapObject),
    (kind, ranges): (SpaceMapKind, &RangeSet),
    (zap, name): (ObjectId, &str),
    (size_bytes, shift): (u64, u8),
) -> Result<SpaceMapObject, DatasetError> {
    let map = writeable(sync, map);
    if append(sync, &map, &[(kind, ranges)]).await? {
        return Ok(map);
    }
    let id = new_map(sync, mos, MAP_BLOCK_BYTES).await?;
    let zap = Zap::hold(mos, zap).await?;
    zap.update_u64(sync.tx, name, id.get()).await?;
    let precise = OBSOLETE_COUNTS_ARE_PRECISE;
    if name == OBSOLETE_SPACE_MAP && zap.lookup_u64(precise).await?.is_some() {
        zap.remove(sync.tx, precise).await?;
        if sync.features.is_active(OBSOLETE_COUNTS) {
            sync.features.decrement(sync.ctx, OBSOLETE_COUNTS).await?;
        }
    }
    let new = writeable(
        sync,
        SpaceMapObject::open(mos, id, 0, size_bytes, shift).await?,
    );
    new.append(sync.tx, kind, None, &lengths(ranges)).await?;
    free_map(sync, map).await?;
    Ok(new)
}

impl Space {
    /// Appends changes to a metaslab's own space map, or begins another one with them.
    pub(super) async fn append_to_map(
        &self,
        sync: &SpaceSync<'_>,
        (top, index): (&Top, u64),
        metaslab: &mut Metaslab,
        (allocated, freed): (&RangeSet, &RangeSet),
    ) -> Result<(), DatasetError> {
        let Some(map) = metaslab.map.clone() else {
            return Ok(());
        };
        let map = writeable(sync, map);
        let changes = [
            (SpaceMapKind::Allocate, allocated),
            (SpaceMapKind::Free, freed),
        ];
        if append(sync, &map, &changes).await? {
            return Ok(());
        }
        let block_bytes = match sync.features.is_enabled(LOG_SPACEMAP) {
            true => MAP_BLOCK_BYTES,
            false => MAP_BLOCK_BYTES_NO_LOG,
        };
        let new = writeable(sync, self.create_map(sync, top, index, block_bytes).await?);
        let allocator = sync.pipeline.allocator();
        let free = allocator.begin_anew(top.shape.vdev, index, freed);
        let span = top.span(index);
        let mut used = RangeSet::new();
        used.add(span.start, span.end - span.start);
        used.remove_all(&free);
        new.append(sync.tx, SpaceMapKind::Allocate, None, &lengths(&used))
            .await?;
        metaslab.map = Some(new);
        metaslab.considered_bytes = 0;
        free_map(sync, map).await
    }
}
