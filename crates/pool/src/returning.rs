//! Devices that come back, and new ones in their places.
//!
//! A look at a pool's devices that are not there ([`Core::look_for_devices`]). One that is there
//! again is used again, and resilvered; a spare that stands in for it goes when that is done. With
//! property `autoreplace`, a device without a label of this pool that is at the path of one that
//! does not work replaces that one.
//!
//! OpenZFS hears of devices from the system, and knows bays by their physical paths; here, a bay is
//! the path by which the pool knows the device, and somebody has to look. What is at that path is
//! taken only where nothing would be lost: not when any pool has or had something there, also one
//! that was destroyed, nor when it has a filesystem or a partition table. It is looked at again
//! once it has been away.
//!
//! Source: cmd/zed/agents/zfs_mod.c (`zfs_process_add`).

use std::sync::Arc;

use format::{Guid, Txg};
use spa::props::Stored;
use vdev::{LeafType, Vdev, VdevKind, VdevState};

use crate::core::Core;
use crate::topology::AttachSpec;
use crate::{LeafSpec, PoolError, spares, topology};

/// What is at the path of a device.
enum Found {
    Nothing,
    /// The device itself.
    Itself,
    Another,
}

impl Core {
    /// Looks for devices that are not there. Returns how many came back or are being replaced.
    pub(crate) async fn look_for_devices(self: &Arc<Self>) -> usize {
        let is_out = |vdev: &Arc<Vdev>| {
            let (state, _) = vdev.state();
            let is_away = matches!(state, VdevState::Removed | VdevState::CantOpen);
            is_away || state == VdevState::Faulted
        };
        let mut leaves = self.tree.leaves();
        leaves.retain(is_out);
        self.returned
            .lock()
            .retain(|guid| leaves.iter().any(|vdev| vdev.guid() == *guid));
        let mut count = 0;
        let devices: Vec<Guid> = leaves.iter().map(|vdev| vdev.guid()).collect();
        // Whoever changes vdevs waits until nobody has them.
        drop(leaves);
        for guid in devices {
            if self.suspended().is_some() {
                break;
            }
            match self.look_for(guid).await {
                Ok(true) => count += 1,
                Ok(false) => {}
                // A spare is rebuilt: then it is looked at again.
                Err(PoolError::RebuildUnderWay { .. }) => {}
                Err(error) => {
                    self.returned.lock().insert(guid);
                    let pool = self.identity.name();
                    tracing::warn!(pool, device = %guid, %error, "it stays away");
                }
            }
        }
        count
    }

    /// Looks whether a device that is not there is back, or another one in its place; whether that
    /// is used now.
    pub(crate) async fn look_for(self: &Arc<Self>, guid: Guid) -> Result<bool, PoolError> {
        let Some(vdev) = self.tree.find(guid) else {
            return Ok(false);
        };
        let Some(path) = vdev.path() else {
            return Ok(false);
        };
        let is_file = match vdev.kind() {
            VdevKind::Leaf(leaf) => leaf.leaf_type == LeafType::File,
            _ => return Ok(false),
        };
        let is_faulted = vdev.state().0 == VdevState::Faulted;
        let is_replaced = spares::is_in_replacement(self, &vdev);
        drop(vdev);
        let found = self.found_at(&path, guid).await;
        if let Found::Nothing = found {
            self.returned.lock().remove(&guid);
            return Ok(false);
        }
        if self.returned.lock().contains(&guid) {
            return Ok(false);
        }
        let name = guid.to_string();
        match found {
            // Too many errors are forgotten by 'zpool clear' alone.
            Found::Itself if !is_faulted => {
                let onlined = topology::online(self, &name, false).await?;
                let works = matches!(
                    onlined.state,
                    crate::VdevState::Online | crate::VdevState::Degraded
                );
                if works && self.tree.topology().unspare(guid) {
                    self.identity.mark_dirty();
                    self.txgs.kick();
                }
                Ok(works)
            }
            Found::Another
                if !is_replaced && self.props.get("autoreplace") == Some(Stored::Number(1)) =>
            {
                let spec = AttachSpec {
                    device: LeafSpec { path, is_file },
                    ashift: None,
                    force: false,
                    replace: true,
                    sequential: false,
                    untouched: true,
                };
                topology::attach(self, &name, &spec).await?;
                Ok(true)
            }
            _ => Ok(false),
        }
    }

    async fn found_at(&self, path: &str, guid: Guid) -> Found {
        let Ok(device) = vdev::open_patiently(&self.world, path, true).await else {
            return Found::Nothing;
        };
        let Ok(labels) = vdev::read_labels(&*device).await else {
            return Found::Nothing;
        };
        let own = labels.config(Txg::new(u64::MAX)).filter(|label| {
            label.u64("pool_guid") == Some(self.guid().get())
                && label.u64("guid") == Some(guid.get())
        });
        match own {
            Some(_) => Found::Itself,
            None => Found::Another,
        }
    }
}
