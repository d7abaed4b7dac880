//! What a package says of datasets that are here: which were destroyed, renamed or promoted where
//! it was sent, and which of their snapshots (`recv_incremental_replication`,
//! lib/libzfs/libzfs_sendrecv.c). Done with `-F` only, as what is destroyed here is not asked for.

use std::collections::HashMap;

use api::{Failure, ZfsDestroy, ZfsPromote, ZfsRename};
use dataset::{DatasetError, DatasetInfo, KeyRoot, ListOptions};
use stream::{Naming, PackageDataset, received_name};

use super::{Packed, Run};
use crate::order::behind_what_they_need;
use service::error::from_dataset;

/// A snapshot of the package.
struct Sent<'a> {
    dataset: &'a PackageDataset,
    /// After the `@`.
    name: &'a str,
}

/// A dataset that is here, and what the package says of it.
struct Matched<'a> {
    name: String,
    /// The snapshot that it is a clone of.
    origin: Option<String>,
    snapshots: Vec<DatasetInfo>,
    sent: Option<&'a PackageDataset>,
}

/// Promotes clones that are none any more, destroys snapshots and datasets that the package does
/// not have, and renames those that have other names now. `sent` is the snapshot that was sent, by
/// its name there.
pub(super) async fn apply(run: &Run<'_>, packed: &Packed, sent: &str) -> Result<(), Failure> {
    let naming = super::naming_of(run.call.naming);
    // With `-d` and `-e` that is below what was asked for, and nothing beside it is touched.
    let Some(target) = received_name(&run.call.target, naming, &packed.top, sent) else {
        return Ok(());
    };
    let target = target.split('@').next().unwrap_or_default();
    let doing = format!("cannot receive into '{target}'");
    let failed = |error| from_dataset(&doing, &error);
    let sent: HashMap<u64, Sent<'_>> = packed
        .package
        .datasets
        .iter()
        .flat_map(|dataset| {
            let snapshots = dataset.snapshots.iter();
            snapshots.map(move |(name, guid)| (*guid, Sent { dataset, name }))
        })
        .collect();
    // Each promotion moves snapshots, and may be what another one waits for.
    let mut all = matched(run, target, &sent).await?;
    for _ in 0..all.len() {
        let Some(name) = promoted_there(&all) else {
            break;
        };
        promote(run, &name).await?;
        all = matched(run, target, &sent).await?;
    }
    destroy_datasets(run, target, &all).await?;
    for one in &all {
        if one.sent.is_some() {
            change_snapshots(run, one, &sent).await.map_err(failed)?;
        }
    }
    rename_datasets(run, packed, &all).await
}

/// What is here, with what the package says of it; nothing where it is to be made.
async fn matched<'a>(
    run: &Run<'_>,
    target: &str,
    sent: &HashMap<u64, Sent<'a>>,
) -> Result<Vec<Matched<'a>>, Failure> {
    let directories = run.open.pool.dsl().directories();
    let heads = match directories.list(target, &ListOptions::default()).await {
        Ok(heads) => heads,
        Err(DatasetError::NotFound { .. }) => return Ok(Vec::new()),
        Err(error) => {
            let doing = format!("cannot receive into '{target}'");
            return Err(from_dataset(&doing, &error));
        }
    };
    let mut all = Vec::new();
    for head in heads {
        let mut snapshots = run.snapshots_of(&head.name).await?;
        snapshots.sort_by_key(|info| info.createtxg);
        // The last ones are its own also where it was a clone, or its origin was promoted.
        let mut newest_first = snapshots.iter().rev();
        let dataset = newest_first.find_map(|own| Some(sent.get(&own.guid.get())?.dataset));
        all.push(Matched {
            name: head.name,
            origin: head.origin,
            snapshots,
            sent: dataset,
        });
    }
    Ok(all)
}

/// A clone that was promoted where it was sent: it is none there any more, or one of a later
/// snapshot (`created_before`).
fn promoted_there(all: &[Matched<'_>]) -> Option<String> {
    let snapshots = || all.iter().flat_map(|one| &one.snapshots);
    let is_promoted = |one: &&Matched<'_>| {
        let (Some(sent), Some(origin)) = (one.sent, &one.origin) else {
            return false;
        };
        let Some(here) = snapshots().find(|info| info.name == *origin) else {
            return false;
        };
        match sent.origin {
            None => true,
            Some(guid) => snapshots()
                .find(|info| info.guid.get() == guid)
                .is_some_and(|there| there.createtxg > here.createtxg),
        }
    };
    let found = all.iter().find(is_promoted);
    found.map(|one| one.name.clone())
}

/// Promotes a clone. Where it would leave its encryption root so, what it is a clone of in the end
/// becomes one first (`recv_promote`).
async fn promote(run: &Run<'_>, name: &str) -> Result<(), Failure> {
    let again = || ZfsPromote {
        name: name.to_owned(),
        command: String::new(),
    };
    let Err(failure) = crate::snapshots::zfs_promote(run.serving, again()).await else {
        return Ok(());
    };
    let dsl = run.open.pool.dsl();
    let mut at = name.to_owned();
    while let Ok(info) = dsl.directories().lookup(&at).await
        && let Some(origin) = info.origin
    {
        at = origin.split('@').next().unwrap_or_default().to_owned();
    }
    if dsl.keys().set_root(&at, KeyRoot::Own).await.is_err() {
        return Err(failure);
    }
    crate::snapshots::zfs_promote(run.serving, again()).await?;
    Ok(())
}

/// Destroys what was received before and is not sent any more, from below, clones before what they
/// are clones of. What has something below it that stays, stays as well.
async fn destroy_datasets(run: &Run<'_>, target: &str, all: &[Matched<'_>]) -> Result<(), Failure> {
    let mut kept: Vec<&str> = Vec::new();
    let mut doomed: Vec<&Matched<'_>> = Vec::new();
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
        doomed.push(one);
    }
    let numbered = doomed.iter().enumerate();
    let place: HashMap<&str, usize> = numbered.map(|(at, one)| (one.name.as_str(), at)).collect();
    let mut needs = vec![Vec::new(); doomed.len()];
    for (at, one) in doomed.iter().enumerate() {
        let above = one.name.rsplit_once('/').map(|(above, _)| above);
        let of = one.origin.as_deref().and_then(|of| of.split('@').next());
        for behind in [above, of].into_iter().flatten() {
            if let Some(behind) = place.get(behind) {
                needs[*behind].push(at);
            }
        }
    }
    for at in behind_what_they_need(&needs) {
        let call = ZfsDestroy {
            target: doomed[at].name.clone(),
            recursive: true,
            ..ZfsDestroy::default()
        };
        crate::destroy::zfs_destroy(run.serving, call, run.work).await?;
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
        crate::zfs::zfs_rename(run.serving, call).await?;
        done.push((now, wanted));
    }
    Ok(())
}
