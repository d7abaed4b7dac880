//! What a package says of datasets that are here: which were destroyed or renamed where it was
//! sent, and which of their snapshots (`recv_incremental_replication`,
//! lib/libzfs/libzfs_sendrecv.c). Done with `-F` only, as what is destroyed here is not asked for.

use std::collections::HashMap;

use api::{Failure, ZfsDestroy, ZfsRename};
use dataset::{DatasetError, DatasetInfo, ListOptions};
use stream::{Naming, PackageDataset, received_name};

use super::{Packed, Run};
use crate::error::from_dataset;

/// A snapshot of the package.
struct Sent<'a> {
    dataset: &'a PackageDataset,
    /// After the `@`.
    name: &'a str,
}

/// A dataset that is here, and what the package says of it.
struct Matched<'a> {
    name: String,
    snapshots: Vec<DatasetInfo>,
    sent: Option<&'a PackageDataset>,
}

/// Destroys snapshots and datasets that the package does not have, and renames those that have
/// other names now. `sent` is the snapshot that was sent, by its name there.
pub(super) async fn apply(run: &Run<'_>, packed: &Packed, sent: &str) -> Result<(), Failure> {
    let naming = super::naming_of(run.call.naming);
    // With `-d` and `-e` that is below what was asked for, and nothing beside it is touched.
    let Some(target) = received_name(&run.call.target, naming, &packed.top, sent) else {
        return Ok(());
    };
    let target = target.split('@').next().unwrap_or_default();
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
    let sent: HashMap<u64, Sent<'_>> = packed
        .package
        .datasets
        .iter()
        .flat_map(|dataset| {
            let snapshots = dataset.snapshots.iter();
            snapshots.map(move |(name, guid)| (*guid, Sent { dataset, name }))
        })
        .collect();
    let mut all = Vec::new();
    for head in heads {
        let mut snapshots = run.snapshots_of(&head.name).await?;
        snapshots.sort_by_key(|info| info.createtxg);
        // The last ones are its own also where it was a clone, or its origin was promoted.
        let mut newest_first = snapshots.iter().rev();
        let dataset = newest_first.find_map(|own| Some(sent.get(&own.guid.get())?.dataset));
        all.push(Matched {
            name: head.name,
            snapshots,
            sent: dataset,
        });
    }
    destroy_datasets(run, target, &all).await?;
    for one in &all {
        if one.sent.is_some() {
            change_snapshots(run, one, &sent).await.map_err(failed)?;
        }
    }
    rename_datasets(run, packed, &all).await
}

/// Destroys what was received before and is not sent any more, from below. What has something below
/// it that stays, stays as well.
async fn destroy_datasets(run: &Run<'_>, target: &str, all: &[Matched<'_>]) -> Result<(), Failure> {
    let mut kept: Vec<&str> = Vec::new();
    for one in all.iter().rev() {
        let inside = format!("{}/", one.name);
        if one.sent.is_some()
            || one.name == target
            || one.snapshots.is_empty()
            || kept.iter().any(|name| name.starts_with(&inside))
        {
            kept.push(&one.name);
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

/// Destroys snapshots that the package has nowhere, and renames those that it has by other names.
async fn change_snapshots(
    run: &Run<'_>,
    one: &Matched<'_>,
    sent: &HashMap<u64, Sent<'_>>,
) -> Result<(), DatasetError> {
    let dsl = run.open.pool.dsl();
    let mut doomed = Vec::new();
    let mut renamed = Vec::new();
    for own in &one.snapshots {
        let Some((head, short)) = own.name.split_once('@') else {
            continue;
        };
        match sent.get(&own.guid.get()) {
            None => doomed.push(own.name.clone()),
            Some(Sent { name, .. }) if *name != short => {
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
