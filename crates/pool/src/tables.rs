//! What a pool has besides datasets and space maps, as it is at import: the checkpoint, and the
//! state of RAID-Z expansions. What changes later is kept by those who change it.

use std::sync::Arc;

use format::{ObjectId, Uberblock};
use object::{ObjectSet, Zap};
use scan::ExpansionStatus;
use spa::{config, directory};
use vdev::{VdevKind, VdevTree};

use crate::PoolError;

/// All of these.
#[derive(Debug, Default)]
pub(crate) struct Tables {
    /// The checkpoint's uberblock.
    pub(crate) checkpoint: Option<Uberblock>,
    pub(crate) expansion: Option<ExpansionStatus>,
}

/// Reads all of them.
pub(crate) async fn load(mos: &Arc<ObjectSet>, tree: &VdevTree) -> Result<Tables, PoolError> {
    let directory = Zap::hold(mos, ObjectId::POOL_DIRECTORY).await?;
    let mut out = Tables::default();
    load_of_tops(mos, tree, &mut out).await?;
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
        if !matches!(top.kind(), VdevKind::Raidz(_)) {
            continue;
        }
        let zap = Zap::hold(mos, ObjectId::new(id)).await?;
        let Some(found) = ExpansionStatus::load(&zap, &top).await? else {
            continue;
        };
        let is_newer = out.expansion.as_ref().is_none_or(|other| {
            let ends = other.end_s.zip(found.end_s);
            ends.is_some_and(|(other, end)| end > other)
        });
        if found.end_s.is_none() || is_newer {
            out.expansion = Some(found);
        }
    }
    Ok(())
}
