//! Devices that have left the pool, until their labels say so.

use std::sync::Arc;

use format::{NvList, Uberblock};
use parking_lot::Mutex;
use vdev::{Vdev, write_labels_of_left};

/// A device that is out of the tree, and what its labels are to say.
pub(crate) struct Gone {
    pub(crate) vdev: Arc<Vdev>,
    pub(crate) label: NvList,
    /// The last state on disk that it was part of, where somebody may want it back.
    pub(crate) last: Option<Uberblock>,
}

impl Gone {
    /// Lets go of the device, and leaves its labels alone.
    pub(crate) fn close(self) {
        self.vdev.close();
    }

    /// Lets go of the device, when the pool on disk is without it. Nothing is under way to it.
    pub(crate) async fn leave(self) {
        let device = self.vdev.leaf().and_then(|leaf| leaf.device());
        self.vdev.close();
        let Some(device) = device else { return };
        let written = write_labels_of_left(&*device, &self.label, self.last.as_ref());
        if let Err(error) = written.await {
            tracing::warn!(
                %error, device = self.vdev.display_name(),
                "the label of a detached device stays as it was"
            );
        }
    }
}

/// Devices whose replacement has ended, until they are told so.
#[derive(Default)]
pub(crate) struct Replacements {
    pub(crate) gone: Mutex<Vec<Gone>>,
}
