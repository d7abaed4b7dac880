//! Snapshots made, destroyed and renamed as directories of `.zfs/snapshot`
//! (module/os/linux/zfs/zfs_ctldir.c: `zfsctl_snapdir_mkdir`, `zfsctl_snapdir_remove`,
//! `zfsctl_snapdir_rename`).

use dataset::DatasetError;
use filesystem::FsError;

use crate::control::{ControlDirectory, ControlNode};
use crate::error::AccessError;
use crate::slot::Exclusion;

impl ControlDirectory {
    /// The full name of the snapshot of this name.
    async fn full_name(&self, name: &[u8]) -> Result<String, FsError> {
        let name = std::str::from_utf8(name).map_err(|_| FsError::BadName)?;
        let head = self
            .access()
            .dsl()
            .directories()
            .name_of(self.head())
            .await?;
        let full_name = format!("{head}@{name}");
        dataset::name::check_name(&full_name).map_err(|_| FsError::BadName)?;
        Ok(full_name)
    }

    /// Takes a snapshot of the filesystem.
    ///
    /// # Errors
    /// [`FsError::Exists`], [`FsError::BadName`], [`FsError::NoSpace`], ...
    pub async fn make_snapshot(&self, name: &[u8]) -> Result<(), FsError> {
        let full_name = self.full_name(name).await?;
        let snapshots = self.access().dsl().snapshots();
        snapshots.take(&[full_name], &[]).await.map_err(refused)
    }

    /// Destroys a snapshot of the filesystem. Files in it that a client of this server still has
    /// open are stale then.
    ///
    /// # Errors
    /// [`FsError::NotFound`]; [`FsError::Busy`] where it has holds, or another server or a command
    /// uses it; [`FsError::Exists`] where it has clones.
    pub async fn remove_snapshot(&self, name: &[u8]) -> Result<(), FsError> {
        let full_name = self.full_name(name).await?;
        let dsl = self.access().dsl();
        dsl.directories().lookup(&full_name).await?;
        self.close(std::str::from_utf8(name).ok()).await;
        let names = [full_name];
        let alone = self.access().exclusive(&names, Exclusion::Refused).await;
        let _nobody = alone.map_err(|error| match error {
            AccessError::InUse { .. } => busy(),
            AccessError::Dataset(error) => refused(error),
            error => error.into(),
        })?;
        let destroyed = dsl.destroyer().destroy_snapshots(&names, false).await;
        destroyed.map_err(refused)
    }

    /// Gives a snapshot of the filesystem another name.
    ///
    /// # Errors
    /// [`FsError::NotFound`], [`FsError::Exists`], [`FsError::BadName`], ...
    pub async fn rename_snapshot(&self, from: &[u8], to: &[u8]) -> Result<(), FsError> {
        let (old, new) = (self.full_name(from).await?, self.full_name(to).await?);
        if old == new {
            return Ok(());
        }
        let directories = self.access().dsl().directories();
        directories.rename(&old, &new).await.map_err(refused)?;
        // Under its old name nobody would close it.
        self.close(std::str::from_utf8(from).ok()).await;
        Ok(())
    }
}

fn busy() -> FsError {
    FsError::Busy {
        ino: ControlNode::Snapshots.number(),
    }
}

/// Why a change of snapshots is refused, as an error of files.
fn refused(error: DatasetError) -> FsError {
    let ino = ControlNode::Snapshots.number();
    match error {
        // `dsl_destroy_snapshot_check_impl` answers EEXIST for clones, and EBUSY for holds.
        DatasetError::Exists { .. } | DatasetError::HasClones { .. } => FsError::Exists { ino },
        DatasetError::Held { .. } | DatasetError::Busy { .. } => busy(),
        DatasetError::InvalidName { .. } => FsError::BadName,
        DatasetError::LimitReached { .. } => FsError::QuotaExceeded,
        error => error.into(),
    }
}
