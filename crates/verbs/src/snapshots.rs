//! `zfs clone`, `promote`, `bookmark`, `hold` and `release`.

use device::BoxFuture;
use std::sync::Arc;

use access::Exclusion;
use api::{
    Empty, EventKind, Failure, FailureKind, ZfsBookmark, ZfsClone, ZfsHold, ZfsPromote, ZfsRelease,
};
use dataset::{DatasetError, DatasetInfo, DatasetKind, ListOptions};

use crate::create::{Maker, check_shares, make_parents, volume_reservation};
use crate::owners::OwnedQuota;
use crate::properties::by_full_names;
use crate::zfs::mode;
use crate::zpool::{log_command, typed};
use service::error::{all_done, from_access, from_dataset, name_fault, suspended};
use service::opened::{Takes, check_name, check_new_name, place_of_new};
use service::pools::{OpenPool, Pools};
use serving::Serving;

/// What does not exist, in OpenZFS's words.
fn missing(doing: &str) -> Failure {
    Failure::new(
        FailureKind::NotFound,
        format!("{doing}: dataset does not exist"),
    )
}

/// Looks a dataset up that a command is about.
async fn opened(open: &OpenPool, name: &str) -> Result<DatasetInfo, Failure> {
    let doing = format!("cannot open '{name}'");
    let found = open.pool.dsl().directories().lookup(name).await;
    found.map_err(|error| match error {
        DatasetError::NotFound { .. } => missing(&doing),
        error => from_dataset(&doing, &error),
    })
}

/// `zfs clone` (`zfs_clone`, lib/libzfs/libzfs_dataset.c).
pub fn zfs_clone<'a>(
    serving: &'a Serving,
    call: ZfsClone,
    maker: Maker,
) -> BoxFuture<'a, Result<Empty, Failure>> {
    Box::pin(async move {
        check_name(&call.origin, Takes::Snapshot)?;
        let open = serving.pools.of_dataset(&call.origin)?;
        let _admin = open.admin.lock().await;
        let doing = format!("cannot create '{}'", call.name);
        let failed = |error: DatasetError| from_dataset(&doing, &error);
        let invalid = |what: &str| Failure::new(FailureKind::Invalid, format!("{doing}: {what}"));
        let origin = opened(&open, &call.origin).await?;
        check_new_name(&doing, &call.name)?;
        let place = place_of_new(&serving.pools, &doing, &call.name, call.parents).await?;
        let dsl = open.pool.dsl();
        if !Arc::ptr_eq(&place, &open) {
            return Err(invalid("source and target pools differ"));
        }
        let exists = dsl.directories().lookup(&call.name).await.is_ok();
        if exists && call.parents {
            return Ok(Empty {});
        }
        if exists {
            return Err(Failure::new(
                FailureKind::Exists,
                format!("{doing}: dataset already exists"),
            ));
        }
        let typed = by_full_names(typed(&call.properties));
        check_shares(serving, &doing, &typed)?;
        let (quotas, mut properties) = OwnedQuota::split(&doing, &typed)?;
        if !quotas.is_empty() && origin.head_kind == DatasetKind::Volume {
            return Err(invalid("only filesystems have quotas of users and groups"));
        }
        fix_reservation(&open, &origin, &mut properties).await?;
        let mut version = None;
        if let Some(at) = properties.iter().position(|(name, _)| name == "version") {
            let (_, typed) = properties.remove(at);
            version = crate::upgrade::new_version(&open, &call.origin, &typed, &doing).await?;
        }
        if call.parents {
            make_parents(serving, &open, &call.name, &doing, call.parents_unmounted).await?;
        }
        dsl.datasets()
            .clone_snapshot(&call.origin, &call.name, &properties)
            .await
            .map_err(failed)?;
        maker.note(&open, &call.name).await?;
        log_command(&open.pool, &call.command).await;
        serving.events.tell(EventKind::DatasetsCreated {
            names: vec![call.name.clone()],
        });
        let after = async {
            if let Some(version) = version {
                crate::upgrade::raise(&open, &call.name, version).await?;
            }
            if origin.head_kind == DatasetKind::Volume {
                return serving.volumes.open_volume(&open, &call.name).await;
            }
            crate::owners::set_owned_quotas(&serving.pools, &open, &call.name, &quotas).await?;
            match call.no_mount {
                true => Ok(()),
                false => crate::zfs::mount_created(serving, &open, &call.name).await,
            }
        };
        after.await.map(|()| Empty {}).map_err(|failure| {
            let name = &call.name;
            Failure::new(
                failure.kind,
                format!("'{name}' was created, but: {failure}"),
            )
        })
    })
}

/// Works out `refreservation=auto` of a clone of a volume (`zfs_fix_auto_resv`).
async fn fix_reservation(
    open: &OpenPool,
    origin: &DatasetInfo,
    properties: &mut [(String, String)],
) -> Result<(), Failure> {
    let is_auto = |(name, text): &&mut (String, String)| name == "refreservation" && text == "auto";
    let Some((_, text)) = properties.iter_mut().find(is_auto) else {
        return Ok(());
    };
    let doing = "cannot set property".to_owned();
    if origin.head_kind != DatasetKind::Volume {
        let message = format!("{doing}: 'refreservation=auto' is for volumes");
        return Err(Failure::new(FailureKind::Invalid, message));
    }
    let wanted = ["volsize", "volblocksize", "copies"].map(str::to_owned);
    // Snapshots tell no size of blocks, which never changes.
    let head = origin.name.split('@').next().unwrap_or(&origin.name);
    let found = open
        .pool
        .dsl()
        .properties()
        .named(head, &wanted)
        .await
        .map_err(|error| from_dataset(&doing, &error))?;
    let found = service::reports::properties(found);
    let number = |name: &str| {
        let property = found.get(name);
        property.and_then(|property| property.value.parse::<u64>().ok())
    };
    let size = number("volsize").unwrap_or(0);
    let block = number("volblocksize").unwrap_or(0).max(512);
    let copies = number("copies").unwrap_or(1);
    *text = volume_reservation(open, size, block, copies).to_string();
    Ok(())
}

/// `zfs promote`.
pub fn zfs_promote<'a>(
    serving: &'a Serving,
    call: ZfsPromote,
) -> BoxFuture<'a, Result<Empty, Failure>> {
    Box::pin(async move {
        check_name(&call.name, Takes::Heads)?;
        let open = serving.pools.of_dataset(&call.name)?;
        let _admin = open.admin.lock().await;
        let doing = format!("cannot promote '{}'", call.name);
        let refused = |what: &str| Failure::new(FailureKind::Invalid, format!("{doing}: {what}"));
        let clone = opened(&open, &call.name).await?;
        let Some(origin) = &clone.origin else {
            return Err(refused("not a cloned filesystem"));
        };
        let dsl = open.pool.dsl();
        let head = origin.split('@').next().unwrap_or(origin).to_owned();
        let until = opened(&open, origin).await?.createtxg;
        let options = ListOptions {
            snapshots: true,
            depth: Some(1),
            ..ListOptions::default()
        };
        let listed = dsl.directories().list(&head, &options).await;
        let moved: Vec<String> = listed
            .map_err(|error| from_dataset(&doing, &error))?
            .into_iter()
            .filter(|info| {
                let of = info.name.split_once('@').map(|(of, _)| of);
                of == Some(head.as_str()) && info.createtxg <= until
            })
            .map(|info| info.name)
            .collect();
        // What is open through `.zfs/snapshot`, and the files of snapshots of volumes, go by the
        // names that they have now.
        serving
            .volumes
            .hide_volume_snapshots(&head, mode(false))
            .await?;
        serving.release_snapshots(&moved).await;
        let outcome = {
            let alone = open.access.exclusive(&moved, Exclusion::Forced).await;
            let _nobody = alone.map_err(|error| from_access(&doing, &error))?;
            dsl.snapshots().promote(&call.name).await
        };
        for of in [&head, &call.name] {
            if let Err(failure) = serving.volumes.show_volume_snapshots(&open, of).await {
                tracing::warn!("{failure}");
            }
        }
        outcome.map_err(|error| match &error {
            DatasetError::Exists { name } => {
                let short = name.split(['@', '#']).next_back().unwrap_or(name);
                let what = format!("conflicting snapshot '{short}' from parent '{origin}'");
                Failure::new(FailureKind::Exists, format!("{doing}: {what}"))
            }
            _ => from_dataset(&doing, &error),
        })?;
        log_command(&open.pool, &call.command).await;
        Ok(Empty {})
    })
}

/// Names of the datasets at and below one, itself first.
async fn heads_below(open: &OpenPool, head: &str) -> Result<Vec<String>, Failure> {
    let options = ListOptions::default();
    let listed = open.pool.dsl().directories().list(head, &options).await;
    let listed = listed.map_err(|error| from_dataset(&format!("cannot open '{head}'"), &error))?;
    Ok(listed.into_iter().map(|info| info.name).collect())
}

/// `zfs bookmark` (`zfs_do_bookmark`, cmd/zfs/zfs_main.c).
pub fn zfs_bookmark<'a>(
    pools: &'a Pools,
    call: ZfsBookmark,
) -> BoxFuture<'a, Result<Empty, Failure>> {
    Box::pin(async move {
        let open = pools.of_dataset(&call.source)?;
        let _admin = open.admin.lock().await;
        let doing = format!("cannot create bookmark '{}'", call.name);
        let dsl = open.pool.dsl();
        let told = |error: DatasetError| {
            let (kind, what) = match &error {
                DatasetError::Exists { .. } => (FailureKind::Exists, "bookmark exists"),
                DatasetError::NotFound { .. } => (FailureKind::NotFound, "dataset does not exist"),
                DatasetError::NotAncestor { .. } => (
                    FailureKind::Invalid,
                    "source is not an ancestor of the new bookmark's dataset",
                ),
                DatasetError::InvalidName { reason, .. } => {
                    let message = format!("{doing}: invalid argument\n{reason}");
                    return Failure::new(FailureKind::Invalid, message);
                }
                _ => return from_dataset(&doing, &error),
            };
            Failure::new(kind, format!("{doing}: {what}"))
        };
        if let Some(fault) = name_fault(&call.source) {
            let message = format!("cannot open '{}': {fault}", call.source);
            return Err(Failure::new(FailureKind::Invalid, message));
        }
        match call.source.split_once('#') {
            None => {
                opened(&open, &call.source).await?;
            }
            Some((head, _)) => {
                opened(&open, head).await?;
                let known = dsl.bookmarks().list(head).await.map_err(told)?;
                if !known.iter().any(|bookmark| bookmark.name == call.source) {
                    let message = format!("cannot open '{}': no such pool or dataset", call.source);
                    return Err(Failure::new(FailureKind::NotFound, message));
                }
            }
        }
        if call.name.split(['/', '#']).next() != Some(open.pool.name().as_str()) {
            let message = format!("{doing}: bookmark is in a different pool");
            return Err(Failure::new(FailureKind::Invalid, message));
        }
        let mut bookmarks = vec![(call.name.clone(), call.source.clone())];
        if call.recursive {
            let (head, snapshot) = call.source.split_once('@').unwrap_or((&call.source, ""));
            let short = call.name.split_once('#').map_or("", |(_, short)| short);
            bookmarks.clear();
            for below in heads_below(&open, head).await? {
                let source = format!("{below}@{snapshot}");
                if dsl.directories().lookup(&source).await.is_ok() {
                    bookmarks.push((format!("{below}#{short}"), source));
                }
            }
        }
        dsl.bookmarks().create(&bookmarks).await.map_err(told)?;
        log_command(&open.pool, &call.command).await;
        Ok(Empty {})
    })
}

/// `zfs hold` (`zfs_hold`, lib/libzfs/libzfs_dataset.c).
pub fn zfs_hold<'a>(serving: &'a Serving, call: ZfsHold) -> BoxFuture<'a, Result<Empty, Failure>> {
    Box::pin(async move {
        let hold = HoldChange {
            serving,
            tag: &call.tag,
            recursive: call.recursive,
            is_release: false,
        };
        hold.all(&call.names, &call.command).await
    })
}

/// `zfs release` (`zfs_release`, lib/libzfs/libzfs_dataset.c).
pub fn zfs_release<'a>(
    serving: &'a Serving,
    call: ZfsRelease,
) -> BoxFuture<'a, Result<Empty, Failure>> {
    Box::pin(async move {
        let release = HoldChange {
            serving,
            tag: &call.tag,
            recursive: call.recursive,
            is_release: true,
        };
        release.all(&call.names, &call.command).await
    })
}

struct HoldChange<'a> {
    serving: &'a Serving,
    tag: &'a str,
    recursive: bool,
    is_release: bool,
}

impl HoldChange<'_> {
    async fn all(&self, names: &[String], command: &str) -> Result<Empty, Failure> {
        let mut failures = Vec::new();
        let mut changed: Vec<Arc<OpenPool>> = Vec::new();
        for name in names {
            match self.one(name).await {
                Ok(open) if changed.iter().any(|other| Arc::ptr_eq(other, &open)) => {}
                Ok(open) => changed.push(open),
                Err(failure) => failures.push(failure),
            }
        }
        if failures.is_empty() {
            for open in changed {
                log_command(&open.pool, command).await;
            }
        }
        all_done(&failures)
    }

    fn doing(&self, name: &str) -> String {
        match self.is_release {
            true => format!("cannot release hold from snapshot '{name}'"),
            false => format!("cannot hold snapshot '{name}'"),
        }
    }

    /// Closes snapshots that go with their last hold, unless somebody uses them.
    async fn let_go(&self, open: &OpenPool, names: &[String]) {
        let wanted = ["defer_destroy".to_owned()];
        for name in names {
            let found = open.pool.dsl().properties().named(name, &wanted).await;
            let properties = service::reports::properties(found.unwrap_or_default());
            let is_doomed = (properties.get("defer_destroy")).is_some_and(|it| it.value == "on");
            if is_doomed {
                let names = std::slice::from_ref(name);
                // One in use stays until it is not any more.
                self.serving.release_unused_snapshots(names).await.ok();
            }
        }
    }

    /// The snapshots of one name, of which all are changed or none.
    async fn one(&self, name: &str) -> Result<Arc<OpenPool>, Failure> {
        let Some((head, snapshot)) = name.split_once('@') else {
            let message = format!("'{name}' is not a snapshot");
            return Err(Failure::new(FailureKind::Invalid, message));
        };
        let open = self.serving.pools.of_dataset(head)?;
        let _admin = open.admin.lock().await;
        opened(&open, head).await?;
        let heads = match self.recursive {
            true => heads_below(&open, head).await?,
            false => vec![head.to_owned()],
        };
        let dsl = open.pool.dsl();
        let mut names = Vec::new();
        let mut untagged = false;
        for head in heads {
            let full_name = format!("{head}@{snapshot}");
            if dsl.directories().lookup(&full_name).await.is_err() {
                continue;
            }
            if self.is_release {
                let holds = dsl.holds().list(&full_name).await;
                let holds = holds.map_err(|error| from_dataset(&self.doing(&full_name), &error))?;
                if !holds.iter().any(|(tag, _)| tag == self.tag) {
                    untagged = true;
                    continue;
                }
            }
            names.push(full_name);
        }
        let doing = self.doing(name);
        if names.is_empty() {
            return Err(match untagged {
                true => Failure::new(
                    FailureKind::NotFound,
                    format!("{doing}: no such tag on this dataset"),
                ),
                false => missing(&doing),
            });
        }
        let outcome = match self.is_release {
            true => {
                self.let_go(&open, &names).await;
                dsl.holds().release(&names, self.tag).await
            }
            false => dsl.holds().hold(&names, self.tag).await,
        };
        outcome.map_err(|error| match &error {
            DatasetError::Exists { name } => {
                let snapshot = name.split('#').next().unwrap_or(name);
                let doing = self.doing(snapshot);
                let message = format!("{doing}: tag already exists on this dataset");
                Failure::new(FailureKind::Exists, message)
            }
            DatasetError::InvalidName { .. } => {
                Failure::new(FailureKind::Invalid, format!("{doing}: tag too long"))
            }
            DatasetError::Closed => suspended(&doing),
            _ => from_dataset(&doing, &error),
        })?;
        open.background.poke(&open.pool);
        Ok(Arc::clone(&open))
    }
}
