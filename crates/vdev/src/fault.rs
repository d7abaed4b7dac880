//! Faulting and degrading devices by a diagnosis (`vdev_fault`, `vdev_degrade`, module/zfs/vdev.c).
//!
//! A faulted device gets no I/O any more. It misses what is written from then on, which its dirty
//! time log says: writes that it does not take note their txg, those that it took and did not flush
//! are forgotten at the next flush ([`crate::leaf::Leaf::forget_kept`]), and each txg that syncs
//! without it is noted whole. A degraded device goes on working, and is marked. Either state lasts
//! until the device is cleared.

use std::sync::Arc;

use format::Guid;

use crate::error::VdevError;
use crate::leaf::Leaf;
use crate::node::Vdev;
use crate::state::{VdevAux, VdevState};
use crate::tree::VdevTree;

impl VdevTree {
    /// Takes a device that works out of use for its errors; degrades it instead where some data is
    /// on it alone. Returns the state that it has now.
    ///
    /// # Errors
    /// [`VdevError::VdevUnavailable`] when it is not in use, or no device.
    pub fn fault(&self, guid: Guid) -> Result<VdevState, VdevError> {
        let (top, leaf) = self.working_leaf(guid)?;
        // Logs are needed after a crash alone, and the pool goes on without one.
        let state = match top.is_log() || !top.lacks_data_without(&[guid]) {
            true => VdevState::Faulted,
            false => VdevState::Degraded,
        };
        leaf.set_state(state, VdevAux::ErrorsExceeded);
        Ok(state)
    }

    /// Marks a device that works as one with too many errors.
    ///
    /// # Errors
    /// [`VdevError::VdevUnavailable`] when it is not in use, or no device.
    pub fn degrade(&self, guid: Guid) -> Result<VdevState, VdevError> {
        let (_, leaf) = self.working_leaf(guid)?;
        leaf.set_state(VdevState::Degraded, VdevAux::ErrorsExceeded);
        Ok(VdevState::Degraded)
    }

    fn working_leaf(&self, guid: Guid) -> Result<(Arc<Vdev>, Arc<Leaf>), VdevError> {
        let mut tops = self.tops().into_iter();
        let found = tops.find_map(|top| {
            let leaf = top.find(guid)?.leaf()?.clone();
            Some((top, leaf))
        });
        found
            .filter(|(_, leaf)| leaf.is_readable())
            .ok_or_else(|| VdevError::VdevUnavailable {
                vdev: guid.to_string(),
                cause: "it is not in use".to_owned(),
            })
    }
}
