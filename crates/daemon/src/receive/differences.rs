//! What a package says of datasets that are here: which were destroyed or renamed where it was
//! sent,
//! and which of their snapshots (`recv_incremental_replication`,
//! lib/libzfs/libzfs_sendrecv.c). Done with `-F` only, as what is destroyed here is not asked for.

use api::{Failure, ZfsDestroy, ZfsRename};
use dataset::{DatasetError, DatasetInfo, ListOptions};
use stream::{Naming, PackageDataset, received_name};

use super::{Packed, Run};
use crate::error::from_dataset;

/// A dataset that is here, and what the package says of it.
struct Matched<'a> {
    name: String,
    snapshots: Vec<DatasetInfo>,
    sent: Option<&'a PackageDataset>,
}

/// Destroys snapshots and datasets that the package does not have, and renames those that have
/// other names now.
pub(super) async fn apply(run: &Run<'_>, packed: &Packed) -> Result<(), Failure> {
    let target = run.call.target.split('@').next().unwrap_or_default();
    let doing = format!("cannot receive into '{target}'");
    let failed = |error| from_dataset(&doing, &error);
    let dsl = run.open.pool.dsl();
    let below = ListOptions::default();
    let heads = match dsl.directories().list(target, &below).await {
        Ok(heads) => heads,
        // It is to be made.
        Err(DatasetError::NotFound { .. }) => return Ok(()),
        Err(error) => return Err(failed(error)),
    };
    let mut all = Vec::new();
    for head in heads {
        let snapshots = run.snapshots_of(&head.name).await?;
        // A dataset is the package's that has one of the snapshots that it has here.
        let sent = packed.package.datasets.iter().find(|sent| {
            let mut guids = sent.snapshots.iter().map(|(_, guid)| *guid);
            guids.any(|guid| snapshots.iter().any(|own| own.guid.get() == guid))
        });
        all.push(Matched {
            name: head.name,
            snapshots,
            sent,
        });
    }
    destroy_datasets(run, target, &all).await?;
    for one in &all {
        if let Some(sent) = one.sent {
            change_snapshots(run, one, sent).await.map_err(failed)?;
        }
    }
    rename_datasets(run, packed, &all).await
}

/// Destroys what was received before and is not sent any more, from below.
async fn destroy_datasets(run: &Run<'_>, target: &str, all: &[Matched<'_>]) -> Result<(), Failure> {
    for one in all.iter().rev() {
        let inside = format!("{}/", one.name);
        let is_kept = one.name == target
            || one.snapshots.is_empty()
            || all
                .iter()
                .any(|other| other.sent.is_some() && other.name.starts_with(&inside));
        if one.sent.is_some() || is_kept {
            continue;
        }
        let call = ZfsDestroy {
            target: one.name.clone(),
            recursive: true,
            ..ZfsDestroy::default()
        };
        crate::destroy::zfs_destroy(run.service, call, run.work).await?;
    }
    Ok(())
}

async fn change_snapshots(
    run: &Run<'_>,
    one: &Matched<'_>,
    sent: &PackageDataset,
) -> Result<(), DatasetError> {
    let dsl = run.open.pool.dsl();
    let mut doomed = Vec::new();
    let mut renamed = Vec::new();
    for own in &one.snapshots {
        let Some((head, short)) = own.name.split_once('@') else {
            continue;
        };
        let guid = own.guid.get();
        match sent.snapshots.iter().find(|(_, other)| *other == guid) {
            None => doomed.push(own.name.clone()),
            Some((name, _)) if name != short => {
                renamed.push((own.name.clone(), format!("{head}@{name}")));
            }
            Some(_) => {}
        }
    }
    let _admin = run.open.admin.lock().await;
    if !doomed.is_empty() {
        dsl.destroyer().destroy_snapshots(&doomed, false).await?;
    }
    for (from, to) in renamed {
        dsl.directories().rename(&from, &to).await?;
    }
    Ok(())
}

/// Gives datasets the names that they have where they were sent, those above first.
async fn rename_datasets(
    run: &Run<'_>,
    packed: &Packed,
    all: &[Matched<'_>],
) -> Result<(), Failure> {
    let naming = super::naming_of(run.call.naming);
    let mut done: Vec<(String, String)> = Vec::new();
    for one in all {
        let Some(sent) = one.sent else { continue };
        // The target keeps the name that was asked for.
        let is_top = sent.name == packed.top && naming == Naming::Exact;
        let wanted = received_name(&run.call.target, naming, &packed.top, &sent.name);
        let Some(wanted) = wanted.filter(|_| !is_top) else {
            continue;
        };
        // What is above it may have been renamed before.
        let mut now = one.name.clone();
        for (from, to) in &done {
            if let Some(rest) = now.strip_prefix(from.as_str())
                && rest.starts_with('/')
            {
                now = format!("{to}{rest}");
            }
        }
        if now == wanted {
            continue;
        }
        let call = ZfsRename {
            from: now.clone(),
            to: wanted.clone(),
            ..ZfsRename::default()
        };
        crate::zfs::zfs_rename(run.service, call).await?;
        done.push((now, wanted));
    }
    Ok(())
}
