//! Vdevs that are kept for OpenZFS, and that nothing here uses yet: who adds one is told so.

use api::{VdevLayout, VdevSpec};

/// What is said of vdevs that a pool has and that do nothing yet.
pub(crate) fn not_used(vdevs: &[VdevSpec]) -> Vec<String> {
    let is_spare =
        |vdev: &&VdevSpec| matches!(vdev.layout, VdevLayout::Draid { spares, .. } if spares > 0);
    let spares = vdevs.iter().find(is_spare).map(|_| {
        "distributed spares of dRAID are kept for OpenZFS and do not step in here yet: add a \
         device as a spare ('zpool add POOL spare DEVICE')"
            .to_owned()
    });
    spares.into_iter().collect()
}
