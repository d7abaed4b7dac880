//! Properties of snapshots: what a package says of those that come, and of those that are here
//! already, which may have got others since (`recv_incremental_replication`,
//! lib/libzfs/libzfs_sendrecv.c).

use std::collections::HashMap;
use std::sync::Arc;

use api::{Failure, ReceiveGuard};
use dataset::{DatasetError, DatasetKind, ListOptions, PropertyValue};
use format::NvValue;
use stream::received_name;

use super::{Run, naming_of, values};
use service::error::from_dataset;

/// What of the properties of a snapshot that was sent is received. Snapshots keep those of users
/// only.
pub(super) fn values_of(
    run: &Run<'_>,
    properties: &[(String, NvValue)],
) -> Vec<(String, PropertyValue)> {
    let (call, is_user_property) = (run.call, |name: &str| name.contains(':'));
    values(properties, |name| {
        let is_excluded = call.exclude.iter().any(|other| other == name);
        is_excluded || call.guard.leaves_out(name) || !is_user_property(name)
    })
}

/// Gives snapshots that are here the properties that the package has of them, in place of those
/// that an earlier one had. `sent` is the snapshot that was sent, by its name there. Who may do no
/// more than receive changes nothing of those that are here.
///
/// # Errors
/// Of listing what is here.
pub(super) async fn receive_properties(run: &mut Run<'_>, sent: &str) -> Result<(), Failure> {
    if !matches!(run.call.guard, ReceiveGuard::None | ReceiveGuard::Operator) {
        return Ok(());
    }
    let Some(packed) = &run.package else {
        return Ok(());
    };
    let naming = naming_of(run.call.naming);
    let Some(target) = received_name(&run.call.target, naming, &packed.top, sent) else {
        return Ok(());
    };
    let (target, _) = dataset::name::split_snapshot(&target);
    let mut of_sent: HashMap<u64, &[(String, NvValue)]> = HashMap::new();
    for one in &packed.package.datasets {
        let guids: HashMap<&str, u64> = one
            .snapshots
            .iter()
            .map(|(name, guid)| (name.as_str(), *guid))
            .collect();
        for (name, properties) in &one.snapshot_properties {
            if let Some(guid) = guids.get(name.as_str()) {
                of_sent.insert(*guid, properties);
            }
        }
    }
    let snapshots = ListOptions {
        filesystems: false,
        volumes: false,
        snapshots: true,
        depth: None,
    };
    let open = Arc::clone(&run.open);
    let dsl = open.pool.dsl();
    let listed = match dsl.directories().list(target, &snapshots).await {
        Ok(listed) => listed,
        Err(DatasetError::NotFound { .. }) => return Ok(()),
        Err(error) => {
            let doing = format!("cannot receive into '{target}'");
            return Err(from_dataset(&doing, &error));
        }
    };
    let mut outcomes = Vec::new();
    for info in listed {
        let Some(properties) = of_sent.get(&info.guid.get()) else {
            continue;
        };
        if info.kind != DatasetKind::Snapshot {
            continue;
        }
        let mut wanted = values_of(run, properties);
        wanted.sort_by(|one, other| one.0.cmp(&other.0));
        // Each is a transaction group of its own: most are as they were.
        let is_same = match dsl.properties().received(&info.name).await {
            Ok(there) => {
                let there = there
                    .into_iter()
                    .map(|setting| (setting.name, setting.value));
                there.eq(wanted.iter().cloned())
            }
            Err(_) => false,
        };
        if !is_same {
            let doing = format!("cannot set the received properties of '{}'", info.name);
            let _admin = run.admin().await?;
            let set = dsl.properties().receive(&info.name, &wanted).await;
            outcomes.push((doing, set.map(|_| ())));
        }
    }
    run.warn(outcomes);
    Ok(())
}
