//! Spares and cache devices: what they are and whether they are there. None is used by this release: a spare
//! stands in only once an administrator said so (then it is part of the vdev tree), and second-level caches hold
//! nothing but copies.
//!
//! Their list is in the MOS; a device's own label has nothing but its guid, by which a scan finds it.
//!
//! Source: module/zfs/spa.c (`spa_load_spares`, `spa_load_l2cache`), module/zfs/arc.c
//! (`l2arc_add_vdev`).

use std::collections::BTreeMap;
use std::sync::Arc;

use ::pool::vdev::{VdevTree, read_labels};
use device::{Device, World};
use format::{Guid, LABEL_BYTES, LABEL_END_BYTES, LABEL_START_BYTES, NvList, ObjectId, Txg};
use object::ObjectSet;

use crate::{EngineError, VdevClass, VdevState, VdevStatus, directory};

/// Longest packed list that is believed, in bytes.
const LIST_BYTES_MAX: u64 = 16 << 20;
/// Least size of the header in front of what a cache device holds (`l2arc_dev_hdr_phys_t`), in bytes.
const CACHE_HEADER_BYTES: u64 = 512;

/// Where devices are.
pub(crate) struct Places<'a> {
    pub(crate) world: &'a World,
    pub(crate) tree: &'a VdevTree,
    /// Where a scan found devices, by guid.
    pub(crate) paths: &'a BTreeMap<Guid, String>,
}

/// Spares or cache devices, from their list in the MOS (`spares` or `l2cache`).
pub(crate) async fn read(
    mos: &Arc<ObjectSet>,
    id: ObjectId,
    name: &str,
    places: &Places<'_>,
) -> Result<Vec<VdevStatus>, EngineError> {
    let object = mos.hold(id).await?;
    let bonus = object.bonus();
    let Some(raw) = bonus.get(..8) else {
        return Ok(Vec::new());
    };
    let length = u64::from_le_bytes(raw.try_into().expect("eight bytes")).min(LIST_BYTES_MAX);
    let list = NvList::decode(&object.read_bytes(0, length as usize).await?)?;
    let class = if name == directory::SPARES {
        VdevClass::Spare
    } else {
        VdevClass::Cache
    };
    let mut out = Vec::new();
    for config in list.lists(name).unwrap_or(&[]) {
        out.push(status(config, class, places).await);
    }
    Ok(out)
}

async fn status(config: &NvList, class: VdevClass, places: &Places<'_>) -> VdevStatus {
    let guid = Guid::new(config.u64("guid").unwrap_or(0));
    let kind = config.string("type").unwrap_or("disk").to_owned();
    let path = places
        .paths
        .get(&guid)
        .cloned()
        .or_else(|| config.string("path").map(str::to_owned));
    let mut out = VdevStatus {
        name: path.clone().unwrap_or_else(|| guid.to_string()),
        kind,
        parity: 0,
        path,
        guid,
        class,
        state: VdevState::Online,
        why: None,
        note: None,
        read_errors: 0,
        write_errors: 0,
        checksum_errors: 0,
        read_ops: 0,
        read_bytes: 0,
        write_ops: 0,
        write_bytes: 0,
        size_bytes: 0,
        physical_bytes: 0,
        allocated_bytes: 0,
        fragmentation_percent: None,
        ashift: 0,
        children: Vec::new(),
    };
    if let Some(vdev) = places.tree.find(guid) {
        out.why = Some("currently in use".to_owned());
        out.physical_bytes = vdev.physical_bytes().unwrap_or(0);
        return out;
    }
    let found = if out.kind == "dspare" {
        let top = Guid::new(config.u64("top_guid").unwrap_or(0));
        let top = places.tree.find(top);
        top.and_then(|top| top.spare_bytes()).ok_or("cannot open")
    } else {
        measure(&out, places.world).await
    };
    match found {
        Ok(bytes) => out.physical_bytes = bytes,
        Err(why) => {
            out.state = VdevState::CantOpen;
            out.why = Some(why.to_owned());
        }
    }
    if class == VdevClass::Cache && out.state == VdevState::Online {
        let sector = 1u64 << config.u64("ashift").unwrap_or(0).min(16);
        out.size_bytes = (out.physical_bytes & !(LABEL_BYTES - 1))
            .saturating_sub(LABEL_START_BYTES + LABEL_END_BYTES)
            .saturating_sub(sector.max(CACHE_HEADER_BYTES));
        out.fragmentation_percent = Some(0);
    }
    out
}

/// Size of the device in bytes, if it is the right one; else why it cannot be used.
async fn measure(vdev: &VdevStatus, world: &World) -> Result<u64, &'static str> {
    let path = vdev.path.as_deref().ok_or("cannot open")?;
    let device: Arc<dyn Device> = match world.opener.open(path, true).await {
        Ok(device) => device,
        Err(error) => {
            tracing::warn!(path, %error, "a spare or cache device cannot be opened");
            return Err("cannot open");
        }
    };
    let labels = read_labels(&*device).await.map_err(|_| "cannot open")?;
    let config = labels.config(Txg::new(u64::MAX)).ok_or("corrupted data")?;
    if config.u64("guid") != Some(vdev.guid.get()) {
        return Err("corrupted data");
    }
    Ok(device.size_bytes())
}
