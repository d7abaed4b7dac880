//! What commands open by name, and what is said of names that they do not take (`zfs_open`,
//! `zfs_validate_name`, `check_parents`, lib/libzfs/libzfs_dataset.c).

use api::{Failure, FailureKind};
use dataset::{DatasetError, DatasetInfo, DatasetKind};

use crate::error::{from_dataset, name_fault};
use crate::pools::{OpenPool, Pools};

/// What a command takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Takes {
    /// Filesystems, volumes and snapshots.
    Datasets,
    /// Filesystems and volumes.
    Heads,
    /// Filesystems.
    Filesystem,
    /// Snapshots.
    Snapshot,
}

/// Refuses a name that cannot be one of what a command takes.
///
/// # Errors
/// [`FailureKind::Invalid`].
pub fn check_name(name: &str, takes: Takes) -> Result<(), Failure> {
    let is_snapshot = name.contains('@');
    let fault: String = match takes {
        Takes::Heads | Takes::Filesystem if is_snapshot => {
            "snapshot delimiter '@' is not expected here".to_owned()
        }
        Takes::Snapshot if !is_snapshot => "missing '@' delimiter in snapshot name".to_owned(),
        _ if name.contains('#') => "bookmark delimiter '#' is not expected here".to_owned(),
        _ => match name_fault(name) {
            Some(fault) => fault,
            None => return Ok(()),
        },
    };
    let message = format!("cannot open '{name}': {fault}");
    Err(Failure::new(FailureKind::Invalid, message))
}

/// Finds the dataset of this name that a command takes.
///
/// # Errors
/// [`FailureKind::Invalid`], [`FailureKind::NotFound`], errors of reading.
pub async fn opened(open: &OpenPool, name: &str, takes: Takes) -> Result<DatasetInfo, Failure> {
    check_name(name, takes)?;
    let found = open.pool.dsl().directories().lookup(name).await;
    let found = found.map_err(|error| from_dataset(&format!("cannot open '{name}'"), &error))?;
    if takes == Takes::Filesystem && found.kind != DatasetKind::Filesystem {
        let message =
            format!("cannot open '{name}': operation not applicable to datasets of this type");
        return Err(Failure::new(FailureKind::Invalid, message));
    }
    Ok(found)
}

/// The pool that a new dataset would be in, whose parent is there unless `parents` are made.
///
/// # Errors
/// In the words of `doing`: [`FailureKind::NotFound`], [`FailureKind::Invalid`].
pub async fn place_of_new(
    pools: &Pools,
    doing: &str,
    name: &str,
    parents: bool,
) -> Result<std::sync::Arc<OpenPool>, Failure> {
    let refused = |kind, why: String| Failure::new(kind, format!("{doing}: {why}"));
    let Some((parent, _)) = name.rsplit_once('/') else {
        if let (true, Ok(open)) = (parents, pools.of_dataset(name)) {
            return Ok(open);
        }
        let why = "missing dataset name\nit goes below a pool: POOL/NAME".to_owned();
        return Err(refused(FailureKind::Invalid, why));
    };
    let pool = name.split('/').next().unwrap_or(name);
    let Ok(open) = pools.of_dataset(pool) else {
        let why = format!("no such pool '{pool}'");
        return Err(refused(FailureKind::NotFound, why));
    };
    if parents {
        return Ok(open);
    }
    let found = open.pool.dsl().directories().lookup(parent).await;
    match found {
        Err(DatasetError::NotFound { .. } | DatasetError::InvalidName { .. }) => {
            let why = "parent does not exist\nuse '-p' to create missing parents".to_owned();
            Err(refused(FailureKind::NotFound, why))
        }
        Err(error) => Err(from_dataset(doing, &error)),
        Ok(found) if found.kind != DatasetKind::Filesystem => {
            let why = "parent is not a filesystem".to_owned();
            Err(refused(FailureKind::Invalid, why))
        }
        Ok(_) => Ok(open),
    }
}

/// Refuses a name that no new dataset can have.
///
/// # Errors
/// In the words of `doing`: [`FailureKind::Invalid`].
pub fn check_new_name(doing: &str, name: &str) -> Result<(), Failure> {
    let fault = match name.contains('@') {
        true => Some("snapshot delimiter '@' is not expected here".to_owned()),
        false if name.contains('#') => {
            Some("bookmark delimiter '#' is not expected here".to_owned())
        }
        // Of temporary names (`zfs_validate_name`, where a name is to be made).
        false if name.contains('%') => Some("invalid character % in name".to_owned()),
        false => name_fault(name),
    };
    match fault {
        None => Ok(()),
        Some(why) => {
            let message =
                format!("{doing}: {why}\nuse letters, digits and -_.: with '/' between components");
            Err(Failure::new(FailureKind::Invalid, message))
        }
    }
}
