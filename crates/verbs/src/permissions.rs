//! `zfs allow` and `zfs unallow`, and whether permissions let an ordinary user make a request.

use device::BoxFuture;
use std::sync::Arc;

use api::{
    Empty, Failure, FailureKind, GrantReport, Grantee, GrantsReport, Needed, ZfsAllow,
    ZfsAllowList, ZfsAllowListReply,
};
use dataset::{Credentials, DatasetError, DatasetKind, GrantChange, ListOptions};

use crate::zpool::log_command;
use host::accounts::{groups_of, user_and_group_names};
use service::error::from_dataset;
use service::opened::{Takes, check_name};
use service::pools::{OpenPool, Pools};
use serving::Serving;

/// A user of this host, with all groups.
pub fn credentials(uid: u32, gid: u32) -> Credentials {
    let mut gids = vec![u64::from(gid)];
    gids.extend(groups_of(uid));
    Credentials {
        uid: uid.into(),
        gids,
    }
}

/// Whether a user has the permissions that a request needs, and it needs some.
pub fn may<'a>(
    serving: Arc<Serving>,
    needs: Vec<Needed>,
    uid: u32,
    gid: u32,
) -> BoxFuture<'a, bool> {
    Box::pin(async move {
        if needs.is_empty() {
            return false;
        }
        let who = credentials(uid, gid);
        for need in &needs {
            match has(&serving.pools, need, &who).await {
                Ok(true) => {}
                Ok(false) => return false,
                Err(failure) => {
                    tracing::debug!("a permission could not be looked up: {failure}");
                    return false;
                }
            }
        }
        true
    })
}

async fn has(pools: &Pools, need: &Needed, who: &Credentials) -> Result<bool, Failure> {
    let open = pools.of_dataset(&need.dataset)?;
    let Some(permission) = dataset::permission_name(&need.permission) else {
        return Ok(false);
    };
    let failed = |error: DatasetError| from_dataset("cannot look permissions up", &error);
    let mut names = vec![need.dataset.clone()];
    if need.of_origin {
        let found = open.pool.dsl().directories().lookup(&need.dataset).await;
        match found.map_err(failed)?.origin {
            Some(origin) => names = vec![origin],
            None => return Ok(false),
        }
    }
    if need.recursive {
        let at = need.dataset.find(['@', '#']).unwrap_or(need.dataset.len());
        let (head, rest) = need.dataset.split_at(at);
        let options = ListOptions::default();
        let listed = open.pool.dsl().directories().list(head, &options).await;
        let listed = listed.map_err(failed)?.into_iter();
        names = listed.map(|info| format!("{}{rest}", info.name)).collect();
    }
    let delegation = open.pool.dsl().delegation();
    for name in &names {
        let mut allows = delegation.allows(name, permission, who).await;
        if let (Ok(false), Some(or)) = (&allows, need.or) {
            allows = delegation.allows(name, or, who).await;
        }
        if let (Ok(false), Some(or)) = (&allows, need.or_if_encrypted) {
            let head = name.split('@').next().unwrap_or(name);
            let key = open.pool.dsl().keys().info(head).await;
            if key.map_err(failed)?.is_some() {
                allows = delegation.allows(name, or, who).await;
            }
        }
        if !allows.map_err(failed)? {
            return Ok(false);
        }
    }
    Ok(true)
}

async fn opened(open: &OpenPool, name: &str) -> Result<(), Failure> {
    check_name(name, Takes::Heads)?;
    let doing = format!("cannot open '{name}'");
    let found = open.pool.dsl().directories().lookup(name).await;
    match found {
        Ok(info) if info.kind != DatasetKind::Snapshot => Ok(()),
        Ok(_) => Err(Failure::new(
            FailureKind::Invalid,
            format!("{doing}: operation not applicable to datasets of this type"),
        )),
        Err(DatasetError::NotFound { .. }) => Err(Failure::new(
            FailureKind::NotFound,
            format!("{doing}: dataset does not exist"),
        )),
        Err(error) => Err(from_dataset(&doing, &error)),
    }
}

/// `zfs allow DATASET`.
pub fn zfs_allow_list<'a>(
    pools: &'a Pools,
    call: &'a ZfsAllowList,
) -> BoxFuture<'a, Result<ZfsAllowListReply, Failure>> {
    Box::pin(async move {
        let open = pools.of_dataset(&call.name)?;
        opened(&open, &call.name).await?;
        let doing = format!("cannot get permissions on '{}'", call.name);
        let levels = open.pool.dsl().delegation().list(&call.name).await;
        let levels = levels.map_err(|error| from_dataset(&doing, &error))?;
        let (users, groups) = user_and_group_names();
        let levels = levels.into_iter().map(|level| GrantsReport {
            name: level.name,
            grants: level
                .grants
                .into_iter()
                .map(|grant| GrantReport {
                    name: match &grant.grantee {
                        dataset::Grantee::User(id) => users.get(id).cloned(),
                        dataset::Grantee::Group(id) => groups.get(id).cloned(),
                        _ => None,
                    },
                    grantee: as_told(grant.grantee),
                    local: grant.local.into_iter().collect(),
                    descendent: grant.descendent.into_iter().collect(),
                })
                .collect(),
        });
        Ok(ZfsAllowListReply {
            levels: levels.collect(),
        })
    })
}

/// `zfs allow` and `zfs unallow`.
pub fn zfs_allow<'a>(pools: &'a Pools, call: ZfsAllow) -> BoxFuture<'a, Result<Empty, Failure>> {
    Box::pin(async move {
        let open = pools.of_dataset(&call.name)?;
        let _admin = open.admin.lock().await;
        opened(&open, &call.name).await?;
        let doing = format!("cannot set permissions on '{}'", call.name);
        let failed = |error: DatasetError| match error {
            // `zfs_set_fsacl`, lib/libzfs/libzfs_dataset.c.
            DatasetError::InvalidProperty { reason, .. } => Failure::new(
                FailureKind::Invalid,
                format!(
                    "{doing}: operation not applicable to datasets of this type\n\
                     {reason}; see zfs-allow(8)"
                ),
            ),
            error => from_dataset(&doing, &error),
        };
        let changes: Vec<GrantChange> = (call.grantees.iter())
            .map(|grantee| GrantChange {
                grantee: as_asked(grantee.clone()),
                local: call.local,
                descendent: call.descendent,
                permissions: call.permissions.clone(),
            })
            .collect();
        let dsl = open.pool.dsl();
        let mut names = vec![call.name.clone()];
        if call.recursive {
            let options = ListOptions::default();
            let listed = dsl.directories().list(&call.name, &options).await;
            let listed = listed.map_err(failed)?.into_iter();
            names = listed.map(|info| info.name).collect();
        }
        for name in &names {
            let changed = dsl.delegation().change(name, &changes, call.take).await;
            changed.map_err(failed)?;
        }
        log_command(&open.pool, &call.command).await;
        Ok(Empty {})
    })
}

fn as_told(grantee: dataset::Grantee) -> Grantee {
    match grantee {
        dataset::Grantee::Set(name) => Grantee::Set(name),
        dataset::Grantee::Create => Grantee::Create,
        dataset::Grantee::User(id) => Grantee::User(id),
        dataset::Grantee::Group(id) => Grantee::Group(id),
        dataset::Grantee::Everyone => Grantee::Everyone,
    }
}

fn as_asked(grantee: Grantee) -> dataset::Grantee {
    match grantee {
        Grantee::Set(name) => dataset::Grantee::Set(name),
        Grantee::Create => dataset::Grantee::Create,
        Grantee::User(id) => dataset::Grantee::User(id),
        Grantee::Group(id) => dataset::Grantee::Group(id),
        Grantee::Everyone => dataset::Grantee::Everyone,
    }
}
