//! A RAID-Z vdev that gets one more child (`spa_vdev_attach`, module/zfs/spa.c;
//! `vdev_raidz_attach_sync`, module/zfs/vdev_raidz.c). Its sectors are moved after that
//! ([`crate::reflow`]); until then nothing is on the new child.

use std::sync::{Arc, Weak};

use format::{Guid, NvValue};

use crate::kind::VdevKind;
use crate::node::Vdev;
use crate::reflow::has_scratch_room;
use crate::topology::{TopologyError, widened};
use crate::tree::VdevTree;

impl VdevTree {
    /// Whether the RAID-Z vdev `target` could be made wider now.
    ///
    /// # Errors
    /// [`TopologyError`].
    pub fn check_widen(&self, target: Guid) -> Result<Arc<Vdev>, TopologyError> {
        let tops = self.tops();
        let top = tops.iter().find(|top| top.guid() == target).cloned();
        let top = top.ok_or(TopologyError::NoSuchVdev { guid: target })?;
        let vdev = top.display_name();
        if !matches!(top.kind(), VdevKind::Raidz(_)) {
            return Err(TopologyError::CannotAttach { vdev });
        }
        if tops.iter().any(|top| top.is_expanding()) {
            return Err(TopologyError::Expanding);
        }
        let is_well = |child: &Arc<Vdev>| child.leaf().is_some_and(|leaf| leaf.is_writeable());
        if !top.children().iter().all(is_well) {
            return Err(TopologyError::NotWell { vdev });
        }
        if !has_scratch_room(&top) {
            return Err(TopologyError::CannotWiden { vdev });
        }
        Ok(top)
    }

    /// Makes the prepared device `new` one more child of the RAID-Z vdev `target`: in syncing
    /// context, in a txg that writes the configuration. Returns all that the top-level vdev was and
    /// I/O goes by that began before, which has to end before anything is moved; and what it is
    /// now.
    ///
    /// # Errors
    /// [`TopologyError`]; then nothing has changed.
    pub fn widen(
        &self,
        target: Guid,
        new: &Arc<Vdev>,
    ) -> Result<(Vec<Weak<Vdev>>, Arc<Vdev>), TopologyError> {
        let before = self.check_widen(target)?;
        if let Some(txg) = before.config_u64("create_txg") {
            new.set_config("create_txg", txg);
        }
        let after = widened(&before, new);
        after.set_config("raidz_expanding", NvValue::Boolean);
        self.topology.put(&after);
        Ok((self.topology.former(after.vdev_id()), after))
    }
}
