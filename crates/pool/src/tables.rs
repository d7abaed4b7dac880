//! What a pool has besides datasets and space maps, as it is at import: the checkpoint, the state
//! of RAID-Z expansions and removals, and of what leaves were initialized and trimmed. What changes
//! later is kept by those who change it.

use std::sync::Arc;

use format::{Guid, ObjectId, Uberblock};
use object::{ObjectSet, Zap};
use spa::{config, directory};
use vdev::{VdevKind, VdevTree};

use crate::PoolError;
use crate::removed::{self, RemovalStatus};

/// A RAID-Z expansion.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ExpansionStatus {
    /// The vdev.
    pub vdev: Guid,
    /// Its name with its number: `raidz1-0`.
    pub name: String,
    /// When it began, in seconds since 1970.
    pub start_s: u64,
    /// When it ended; `None` while it is under way.
    pub end_s: Option<u64>,
    /// What has been moved.
    pub copied_bytes: u64,
}

/// All of these.
#[derive(Debug, Default)]
pub(crate) struct Tables {
    /// The checkpoint's uberblock.
    pub(crate) checkpoint: Option<Uberblock>,
    pub(crate) expansion: Option<ExpansionStatus>,
    pub(crate) removal: Option<RemovalStatus>,
}

/// Reads all of them.
pub(crate) async fn load(mos: &Arc<ObjectSet>, tree: &VdevTree) -> Result<Tables, PoolError> {
    let directory = Zap::hold(mos, ObjectId::POOL_DIRECTORY).await?;
    let mut out = Tables::default();
    load_of_tops(mos, tree, &mut out).await?;
    out.removal = removed::report(mos, tree).await?;
    if let Some(value) = directory.lookup(directory::CHECKPOINT).await? {
        out.checkpoint = Some(decode_checkpoint(&value.to_u64s())?);
    }
    Ok(out)
}

/// A checkpoint's uberblock is stored as 64-bit integers, fewer in pools of older releases.
pub(crate) fn decode_checkpoint(words: &[u64]) -> Result<Uberblock, format::FormatError> {
    let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    bytes.resize(bytes.len().max(Uberblock::BYTES), 0);
    Uberblock::decode(&bytes)
}

/// What top-level vdevs' ZAPs say (`vdev_load`, module/zfs/vdev.c; `vdev_raidz_load` and
/// `spa_raidz_expand_get_stats`, module/zfs/vdev_raidz.c).
async fn load_of_tops(
    mos: &Arc<ObjectSet>,
    tree: &VdevTree,
    out: &mut Tables,
) -> Result<(), PoolError> {
    for top in tree.tops() {
        let id = top.config_u64(config::TOP_ZAP).unwrap_or(0);
        if id == 0 {
            continue;
        }
        let zap = Zap::hold(mos, ObjectId::new(id)).await?;
        let number = async |name: &str| zap.lookup_u64(name).await;
        if !matches!(top.kind(), VdevKind::Raidz(_)) {
            continue;
        }
        const SCANNING: u64 = 1;
        const FINISHED: u64 = 2;
        let state = number(directory::RAIDZ_EXPAND_STATE).await?.unwrap_or(0);
        let end_s = number(directory::RAIDZ_EXPAND_END).await?.unwrap_or(0);
        let newer = out
            .expansion
            .as_ref()
            .is_none_or(|other| other.end_s.is_some_and(|other| end_s > other));
        let under_way = state == SCANNING;
        if under_way || state == FINISHED && newer {
            out.expansion = Some(ExpansionStatus {
                vdev: top.guid(),
                name: top.display_name(),
                start_s: number(directory::RAIDZ_EXPAND_START).await?.unwrap_or(0),
                end_s: (!under_way).then_some(end_s),
                copied_bytes: number(directory::RAIDZ_EXPAND_COPIED).await?.unwrap_or(0),
            });
        }
    }
    Ok(())
}
