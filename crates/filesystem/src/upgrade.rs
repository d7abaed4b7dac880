//! Raising a filesystem's version (`zfs_set_version`, module/os/linux/zfs/zfs_vfsops.c), and what
//! is told of it as a whole: its delete queue, and how it differs from an older state.
//!
//! What is there stays in the layout that it has: files of older versions are read, and changed, as
//! before.

use std::ops::Range;

use format::Txg;
use object::Sa;

use crate::error::{FsError, Result};
use crate::filesystem::Filesystem;
use crate::znode::{ZPL_VERSION, ZPL_VERSION_SA};

impl Filesystem {
    /// The version that new files are written in.
    pub fn version(&self) -> u64 {
        self.files.version
    }

    /// Raises the version. Files are written in it once the filesystem is opened again.
    ///
    /// # Errors
    /// [`FsError::Invalid`] for one that is lower than the filesystem's, or unknown.
    pub async fn raise_version(&self, version: u64) -> Result<()> {
        if version > ZPL_VERSION || version < self.files.version {
            return Err(FsError::Invalid {
                what: "a version that is lower than the filesystem's, or unknown",
            });
        }
        let _entered = self.opening.enter_to_change().await?;
        let _lock = self.quotas.master_lock().await;
        let tx = self
            .files
            .assign(dataset::DirtyEstimate::metadata())
            .await?;
        self.master.update_u64(&tx, "VERSION", version).await?;
        let has_attributes = self.master.lookup_u64("SA_ATTRS").await?.is_some();
        if version >= ZPL_VERSION_SA && !has_attributes {
            let id = Sa::create_master(&self.files.objset, &tx).await?;
            self.master.add_u64(&tx, "SA_ATTRS", id.get()).await?;
        }
        Ok(())
    }

    /// The object of the directory of shares (`ZFS_SHARES_DIR`), which has no path.
    ///
    /// # Errors
    /// Of reading.
    pub async fn shares_directory(&self) -> Result<Option<u64>> {
        Ok(self.master.lookup_u64("SHARES").await?)
    }

    /// Numbers of objects that may differ from an older state of it, made in `since`: ranges, in
    /// rising order. Both are snapshots.
    ///
    /// # Errors
    /// Of reading.
    pub async fn changed_since(&self, older: &Self, since: Txg) -> Result<Vec<Range<u64>>> {
        Ok(object::changed_objects(&older.files.objset, &self.files.objset, since).await?)
    }
}
