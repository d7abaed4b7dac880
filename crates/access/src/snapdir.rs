//! Snapshots made, destroyed and renamed as directories of `.zfs/snapshot`
//! (module/os/linux/zfs/zfs_ctldir.c: `zfsctl_snapdir_mkdir`, `zfsctl_snapdir_remove`,
//! `zfsctl_snapdir_rename`).

use dataset::{Credentials, DatasetError};
use filesystem::FsError;

use crate::control::{ControlDirectory, ControlNode};
use crate::error::AccessError;
use crate::slot::Exclusion;

/// What somebody does to snapshots.
#[derive(Debug, Clone, Copy)]
pub enum SnapshotChange<'a> {
    /// Takes one.
    Make,
    /// Destroys the one of this name.
    Remove(&'a [u8]),
    /// Gives the one of this name another.
    Rename(&'a [u8]),
}

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

    /// Whether permissions let somebody change the filesystem's snapshots so (`zfs allow`;
    /// `zfs_secpolicy_snapshot_perms` and its like, module/zfs/zfs_ioctl.c).
    ///
    /// # Errors
    /// Of reading.
    pub async fn allows(
        &self,
        change: SnapshotChange<'_>,
        who: &Credentials,
    ) -> Result<bool, FsError> {
        let dsl = self.access().dsl();
        let head = dsl.directories().name_of(self.head()).await?;
        let of_snapshot = |name: &[u8]| format!("{head}@{}", String::from_utf8_lossy(name));
        let needed: Vec<(String, &str)> = match change {
            SnapshotChange::Make => vec![(head.clone(), "snapshot")],
            SnapshotChange::Remove(name) => ["mount", "destroy"]
                .map(|permission| (of_snapshot(name), permission))
                .into(),
            SnapshotChange::Rename(name) => vec![
                (of_snapshot(name), "rename"),
                (of_snapshot(name), "mount"),
                (head.clone(), "create"),
                (head.clone(), "mount"),
            ],
        };
        for (name, permission) in needed {
            if !dsl.delegation().allows(&name, permission, who).await? {
                return Ok(false);
            }
        }
        Ok(true)
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
