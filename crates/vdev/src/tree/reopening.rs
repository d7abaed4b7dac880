//! Devices that are opened again while the pool is in use (`vdev_reopen`, `vdev_online`,
//! `vdev_clear`, module/zfs/vdev.c).
//!
//! A device that works is not closed for that, since nothing could be read meanwhile: it is looked
//! at again, and only one that has become something else is opened anew. What it had taken and not
//! flushed is written again then.
//!
//! One that is out of use is opened while its top-level vdev is written, without it: it may not
//! have answered yet what it was given before, or not answer now. Only what comes then is done with
//! writes stopped, so that none gets between.

use format::Guid;

use super::opening::is_rewritten;
use super::{VdevTree, settle_kept};
use crate::error::{VdevError, bad};
use crate::node::Vdev;
use crate::sizes::settle_size;
use crate::state::VdevState;

impl VdevTree {
    /// [`Self::reopen_some`] of all.
    ///
    /// # Errors
    /// The same.
    pub async fn reopen(&self, stood_still: bool) -> Result<usize, VdevError> {
        self.reopen_some(stood_still, &|_| true).await
    }

    /// Opens devices that are not usable (after reattaching them; 'zpool clear' and 'zpool
    /// online'), of those that are wanted. Faulted ones are tried again as well, offline ones are
    /// not. Tells how many came back.
    ///
    /// After a standstill of the pool (`stood_still`), also devices that seem to be well may have
    /// been reset: what they had not flushed is written again to all.
    ///
    /// # Errors
    /// [`VdevError::Stalled`] when a device is still at what it accepted before.
    pub async fn reopen_some(
        &self,
        stood_still: bool,
        which: &(dyn Fn(&Vdev) -> bool + Sync),
    ) -> Result<usize, VdevError> {
        let mut back = 0;
        for top in self.tops() {
            settle_kept(&top);
            for vdev in top.leaves().into_iter().filter(|vdev| which(vdev)) {
                let Some(leaf) = vdev.leaf() else { continue };
                let (state, _) = leaf.state();
                if state.is_usable() && !stood_still || state == VdevState::Offline {
                    continue;
                }
                if state.is_usable() {
                    // Whoever came first could flush what was lost, and it would count as written.
                    let stopped = self.opening.patiently(&vdev, leaf.stop_writes()).await?;
                    is_rewritten(&vdev, leaf, &stopped).await;
                    continue;
                }
                back += usize::from(self.opening.open_anew(&vdev, leaf).await?);
            }
            if let Err(error) = settle_size(&top) {
                tracing::error!(
                    vdev = %top.display_name(), %error, "a vdev that is back has no size"
                );
            }
        }
        Ok(back)
    }

    /// Opens a device that is offline, or was not there. One that failed stays as it is: see
    /// [`Self::reopen`]. Returns its state.
    ///
    /// # Errors
    /// [`VdevError::Stalled`] when the device is still at what it accepted before.
    pub async fn bring_back(&self, guid: Guid) -> Result<VdevState, VdevError> {
        let found = self
            .topology
            .top_of(guid)
            .and_then(|top| Some((top.find(guid)?, top)));
        let Some((vdev, top)) = found else {
            return Err(bad(format!("there is no device {guid}")));
        };
        let Some(leaf) = vdev.leaf() else {
            return Ok(vdev.state().0);
        };
        if leaf.is_readable() || leaf.state().0 == VdevState::Faulted {
            return Ok(leaf.state().0);
        }
        settle_kept(&top);
        self.opening.open_anew(&vdev, leaf).await?;
        settle_size(&top)?;
        Ok(leaf.state().0)
    }

    /// Looks at all devices again, or at those of the top-level vdev `only`: whether they are still
    /// there and whose they are, and how big they are by now. Those that could not be opened are
    /// tried again; those that are offline, or failed, are left alone.
    ///
    /// # Errors
    /// [`VdevError::Stalled`] when a device is still at what it accepted before.
    pub async fn look_again(&self, only: Option<Guid>) -> Result<(), VdevError> {
        let tops = self.tops().into_iter();
        for top in tops.filter(|top| only.is_none_or(|only| top.guid() == only)) {
            settle_kept(&top);
            for vdev in top.leaves() {
                let Some(leaf) = vdev.leaf() else { continue };
                let (state, _) = leaf.state();
                if matches!(state, VdevState::Offline | VdevState::Faulted) {
                    continue;
                }
                if state.is_usable() && self.opening.is_as_before(&vdev, leaf).await {
                    continue;
                }
                self.opening.open_anew(&vdev, leaf).await?;
            }
            settle_kept(&top);
            if let Err(error) = settle_size(&top) {
                tracing::error!(
                    vdev = %top.display_name(), %error, "a vdev that was reopened has no size"
                );
            }
        }
        Ok(())
    }

    /// After [`Self::take_out`]: waits until nothing is under way to the device.
    ///
    /// # Errors
    /// [`VdevError::Stalled`], [`VdevError::BadConfig`].
    pub async fn settle_taken(&self, guid: Guid) -> Result<(), VdevError> {
        let found = self
            .topology
            .top_of(guid)
            .and_then(|top| Some((top.find(guid)?, top)));
        let Some((vdev, top)) = found else {
            return Err(bad(format!("there is no device {guid}")));
        };
        if let Some(leaf) = vdev.leaf() {
            drop(self.opening.patiently(&vdev, leaf.stop_writes()).await?);
            settle_kept(&top);
        }
        Ok(())
    }
}
