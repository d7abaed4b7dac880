//! After a package of raw streams: encryption roots as they were where it was sent
//! (`recv_fix_encryption_hierarchy`, lib/libzfs/libzfs_sendrecv.c).
//!
//! A raw stream makes its new dataset an encryption root. Those that inherited their key inherit it
//! again here, and roots get the `keylocation` that they had.

use api::Failure;
use dataset::{KeyRoot, PropertyChange};
use format::NvValue;
use stream::{PackageDataset, received_name};

use super::{Run, naming_of};
use service::error::from_dataset;

/// Restores what the package says, if it is of raw streams.
pub(super) async fn restore(run: &mut Run<'_>) -> Result<(), Failure> {
    let Some(packed) = run.package.as_ref().filter(|packed| packed.package.is_raw) else {
        return Ok(());
    };
    if run.call.dry_run {
        return Ok(());
    }
    let sent = format!("{}@", packed.top);
    let naming = naming_of(run.call.naming);
    let Some(top) = received_name(&run.call.target, naming, &packed.top, &sent) else {
        return Ok(());
    };
    let (top, _) = dataset::name::split_snapshot(&top);
    let top = top.to_owned();
    let is_recursive = !packed.package.is_not_recursive;
    let directories = run.open.pool.dsl().directories();
    let listed = directories
        .list(&top, &dataset::ListOptions::default())
        .await;
    let listed = listed.map_err(|error| from_dataset("cannot receive", &error))?;
    let names = listed.into_iter().map(|info| info.name);
    let names: Vec<String> = names.filter(|name| is_recursive || *name == top).collect();
    let open = run.open.clone();
    let _admin = open.admin.lock().await;
    let mut warnings = Vec::new();
    for name in names {
        if let Err(failure) = restore_one(run, &name, name == top).await {
            warnings.push(failure.message);
        }
    }
    run.reply.warnings.extend(warnings);
    Ok(())
}

async fn restore_one(run: &Run<'_>, name: &str, is_top: bool) -> Result<(), Failure> {
    let dsl = run.open.pool.dsl();
    let doing = format!("cannot restore the encryption root of '{name}'");
    let failed = |error| from_dataset(&doing, &error);
    let Some(key) = dsl.keys().info(name).await.map_err(failed)? else {
        return Ok(());
    };
    let Some(sent) = sent_as(run, name).await? else {
        return Ok(());
    };
    if !sent.is_encryption_root {
        // What was asked for stays a root: nothing is known of the key above it.
        if key.is_root && !is_top {
            let set = dsl.keys().set_root(name, KeyRoot::Inherited).await;
            set.map_err(failed)?;
        }
        return Ok(());
    }
    let info = dsl.directories().lookup(name).await.map_err(failed)?;
    if !key.is_root {
        // Clones have the root of what they are clones of.
        if info.origin.is_some() {
            return Ok(());
        }
        dsl.keys()
            .set_root(name, KeyRoot::Own)
            .await
            .map_err(failed)?;
    }
    let mut properties = sent.properties.iter();
    let location = properties.find_map(|(property, value)| match value {
        NvValue::String(text) if property == "keylocation" => Some(text.clone()),
        _ => None,
    });
    match location {
        Some(location) if location != key.location => {
            let change = PropertyChange::Set(location);
            let changes = [("keylocation".to_owned(), change)];
            dsl.properties().set(name, &changes).await.map_err(failed)
        }
        _ => Ok(()),
    }
}

/// What the package says of a dataset that is here.
async fn sent_as(run: &Run<'_>, name: &str) -> Result<Option<PackageDataset>, Failure> {
    let Some(packed) = &run.package else {
        return Ok(None);
    };
    let snapshots = run.snapshots_of(name).await?;
    let found = snapshots
        .iter()
        .find_map(|info| packed.package.find(info.guid.get()));
    Ok(found.map(|(sent, _)| sent.clone()))
}
