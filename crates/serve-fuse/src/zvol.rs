//! Volumes as files `POOL/VOLUME` in one FUSE filesystem.
#![allow(clippy::todo, unused_variables, clippy::unused_async, missing_docs)]

use std::path::Path;
use std::sync::Arc;

use volume::Volume;

use crate::error::Result;
use crate::mount::UnmountMode;

/// A directory of volumes, mounted. Dropping it unmounts lazily.
pub struct ZvolDirectory {
    _private: (),
}

impl ZvolDirectory {
    /// Mounts an empty one at `mountpoint`.
    pub async fn mount(mountpoint: &Path) -> Result<Self> {
        todo!()
    }
    /// Shows a volume at `name` (`pool/dir/volume`; `@snapshot` may follow). Replaces what was there.
    pub fn insert(&self, name: &str, volume: Arc<Volume>) {
        todo!()
    }
    /// Takes a volume away: open files of it fail from now on. Returns it if it was there.
    pub fn remove(&self, name: &str) -> Option<Arc<Volume>> {
        todo!()
    }
    /// Whether some process (or loop device) has the volume's file open.
    pub fn is_open(&self, name: &str) -> bool {
        todo!()
    }
    /// Names shown.
    pub fn names(&self) -> Vec<String> {
        todo!()
    }
    /// Where it is mounted.
    pub fn mountpoint(&self) -> &Path {
        todo!()
    }
    /// Unmounts.
    pub async fn unmount(&self, mode: UnmountMode) -> Result<()> {
        todo!()
    }
}
