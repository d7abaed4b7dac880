//! The configuration that the MOS holds, which alone knows all vdevs (`spa_ld_trusted_config`,
//! module/zfs/spa.c).

use std::collections::BTreeMap;
use std::sync::Arc;

use format::{Guid, NvList, NvValue, ObjectId};
use object::{ObjectSet, ObjsetOptions, WriteProperties, Zap};
use spa::{config, damaged, directory};

use crate::PoolError;

/// Longest packed configuration that is believed, in bytes.
const CONFIG_BYTES_MAX: u64 = 64 << 20;

/// How the MOS is opened just to be read.
pub(crate) fn mos_options() -> ObjsetOptions {
    ObjsetOptions {
        properties: WriteProperties::mos(),
        hole_birth: false,
        embedded_data: false,
        lz4_metadata: true,
        read_only: true,
        object_cache_limit: 1024,
        ..ObjsetOptions::default()
    }
}

/// The configuration that the MOS holds.
pub(crate) async fn read_trusted_config(
    pool: &str,
    mos: &Arc<ObjectSet>,
) -> Result<NvList, PoolError> {
    let mut config = read_config(pool, mos).await?;
    add_allocation_bias(mos, &mut config).await?;
    Ok(config)
}

pub(super) async fn read_config(pool: &str, mos: &Arc<ObjectSet>) -> Result<NvList, PoolError> {
    let directory = Zap::hold(mos, ObjectId::POOL_DIRECTORY).await?;
    let id = directory
        .lookup_u64(directory::CONFIG)
        .await?
        .ok_or_else(|| damaged(pool, "the object directory", "it has no configuration"))?;
    let object = mos.hold(ObjectId::new(id)).await?;
    let bonus = object.bonus();
    let length = bonus
        .get(..8)
        .map(|raw| u64::from_le_bytes(raw.try_into().expect("eight bytes")))
        .filter(|length| *length <= CONFIG_BYTES_MAX)
        .ok_or_else(|| damaged(pool, "the configuration", "its length is wrong"))?;
    let packed = object.read_bytes(0, length as usize).await?;
    Ok(NvList::decode(&packed)?)
}

/// What top-level vdevs are for is in their ZAPs (`vdev_load`).
pub(super) async fn add_allocation_bias(
    mos: &Arc<ObjectSet>,
    config: &mut NvList,
) -> Result<(), PoolError> {
    let Some(tree) = config.list_mut("vdev_tree") else {
        return Ok(());
    };
    let Some(NvValue::ListArray(tops)) = tree.get_mut("children") else {
        return Ok(());
    };
    for top in tops {
        let id = top.u64(config::TOP_ZAP).unwrap_or(0);
        if id != 0 {
            let zap = Zap::hold(mos, ObjectId::new(id)).await?;
            if let Some(value) = zap.lookup(directory::ALLOCATION_BIAS).await?
                && let Some(bias) = value.as_str()
            {
                top.set("alloc_bias", bias);
            }
        }
    }
    Ok(())
}

/// The guid of the top-level vdev of each leaf below one that may come to an end: a device that was
/// left alone there is that vdev itself from then on, and goes by its guid.
pub(super) fn successors(root: &NvList) -> BTreeMap<Guid, Guid> {
    let mut found = BTreeMap::new();
    for top in config::children(root) {
        let may_end = matches!(top.string("type"), Some("mirror" | "replacing" | "spare"));
        let Some(own) = top.u64("guid").filter(|_| may_end) else {
            continue;
        };
        config::for_each(top, &mut |vdev| {
            if config::children(vdev).is_empty()
                && let Some(guid) = vdev.u64("guid").filter(|guid| *guid != own)
            {
                found.insert(Guid::new(guid), Guid::new(own));
            }
        });
    }
    found
}
