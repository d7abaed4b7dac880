//! Filesystems and who is told of their changes.

use std::sync::Arc;

use crate::changes::Changes;
use crate::filesystem::Filesystem;

impl Changes {
    /// Has a filesystem tell of its changes here, from now on.
    pub fn attach(self: &Arc<Self>, filesystem: &Filesystem) {
        filesystem.files.outlet.set(self);
    }

    /// Where a filesystem tells of its changes, if anywhere.
    pub fn of(filesystem: &Filesystem) -> Option<&Arc<Self>> {
        filesystem.files.outlet.get()
    }
}
