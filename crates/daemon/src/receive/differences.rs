//! What a package says of datasets that are here: which were destroyed or renamed where it was sent,
//! and which of their snapshots (`recv_incremental_replication`,
//! lib/libzfs/libzfs_sendrecv.c). Done with `-F` only, as what is destroyed here is not asked for.

use api::Failure;
use dataset::ListOptions;

use super::{Packed, Run};
use crate::error::from_dataset;

/// Destroys snapshots that the package does not have, and renames those and datasets that have
/// other names now.
pub(super) async fn apply(run: &Run<'_>, packed: &Packed) -> Result<(), Failure> {
    let _admin = run.open.admin.lock().await;
    let dsl = run.open.pool.dsl();
    let target = run.call.target.split('@').next().unwrap_or_default();
    let doing = format!("cannot receive into '{target}'");
    let failed = |error| from_dataset(&doing, &error);
    let heads = match dsl
        .directories()
        .list(target, &ListOptions::default())
        .await
    {
        Ok(heads) => heads,
        // It is to be made.
        Err(dataset::DatasetError::NotFound { .. }) => return Ok(()),
        Err(error) => return Err(failed(error)),
    };
    for head in heads {
        let snapshots = run.snapshots_of(&head.name).await?;
        // A dataset is the package's that has one of the snapshots that it has here.
        let sent = packed.package.datasets.iter().find(|sent| {
            let mut guids = sent.snapshots.iter().map(|(_, guid)| *guid);
            guids.any(|guid| snapshots.iter().any(|own| own.guid.get() == guid))
        });
        let Some(sent) = sent else { continue };
        let mut doomed = Vec::new();
        let mut renamed = Vec::new();
        for own in &snapshots {
            let Some((_, short)) = own.name.split_once('@') else {
                continue;
            };
            match sent
                .snapshots
                .iter()
                .find(|(_, guid)| *guid == own.guid.get())
            {
                None => doomed.push(own.name.clone()),
                Some((name, _)) if name != short => {
                    renamed.push((own.name.clone(), format!("{}@{name}", head.name)));
                }
                Some(_) => {}
            }
        }
        if !doomed.is_empty() {
            dsl.destroyer()
                .destroy_snapshots(&doomed, false)
                .await
                .map_err(failed)?;
        }
        for (from, to) in renamed {
            dsl.directories().rename(&from, &to).await.map_err(failed)?;
        }
    }
    Ok(())
}
