//! Who uses how much of a filesystem, who holds which snapshot, and bookmarks: what `zfs
//! userspace`, `zfs holds` and `zfs list -t bookmark` ask for.

use device::BoxFuture;
use std::collections::BTreeMap;

use access::User;
use api::{
    DatasetKind as ApiKind, DatasetReport, Failure, FailureKind, HoldReport, Property, SpaceOwner,
    SpaceReport, Usage, ZfsHolds, ZfsHoldsReply, ZfsSpace, ZfsSpaceReply,
};
use dataset::{BookmarkInfo, ListOptions};
use filesystem::QuotaKind;
use format::{RedactionListPhys, SnapshotBookmark};

use host::accounts::{id_of, names_in};

use service::error::{from_access, from_dataset};
use service::opened::{Takes, check_name};
use service::pools::{OpenPool, Pools};
use serving::Serving;

/// `zfs userspace`, `zfs groupspace`, `zfs projectspace`.
pub fn zfs_space<'a>(
    serving: &'a Serving,
    call: &'a ZfsSpace,
) -> BoxFuture<'a, Result<ZfsSpaceReply, Failure>> {
    Box::pin(async move {
        let name = &call.name;
        check_name(name, Takes::Datasets)?;
        let open = serving.pools.of_dataset(name)?;
        let doing = format!("cannot get used/quota for {name}");
        let failed = |error| from_dataset(&format!("cannot open '{name}'"), &error);
        let dsl = open.pool.dsl();
        let info = dsl.directories().lookup(name).await.map_err(failed)?;
        if info.head_kind != dataset::DatasetKind::Filesystem {
            // A volume is not opened; of its snapshots it is said later (`zfs_do_userspace`).
            let message = match info.kind {
                dataset::DatasetKind::Snapshot => {
                    "operation is only applicable to filesystems and their snapshots".to_owned()
                }
                _ => format!(
                    "cannot open '{name}': operation not applicable to datasets of this type"
                ),
            };
            return Err(Failure::new(FailureKind::Invalid, message));
        }
        // What is not mounted is opened for this: nobody shall find the dataset busy for that.
        let is_mounted = serving.mounts.mountpoint(name).is_some();
        let _admin = match is_mounted {
            true => None,
            false => Some(open.admin.lock().await),
        };
        let user = User::Command { name: "userspace" };
        let borrowed = open.access.filesystem_to_read(name, user).await;
        let borrowed = borrowed.map_err(|error| {
            let failure = from_access(&doing, &error);
            match failure.message.contains("encryption key not loaded") {
                true => {
                    let message = format!("{doing}: permission denied\n{}", failure.message);
                    Failure::new(failure.kind, message)
                }
                false => failure,
            }
        })?;
        let filesystem = borrowed.get();
        let mut reply = ZfsSpaceReply::default();
        let mut outcome = Ok(());
        for owner in &call.owners {
            if *owner == SpaceOwner::Project && !filesystem.has_projects() {
                let message = format!("{doing}: unsupported version or feature");
                outcome = Err(Failure::new(FailureKind::Unsupported, message));
                continue;
            }
            let (kind, names) = match owner {
                SpaceOwner::User => (QuotaKind::User, names_in("/etc/passwd")),
                SpaceOwner::Group => (QuotaKind::Group, names_in("/etc/group")),
                SpaceOwner::Project => (QuotaKind::Project, BTreeMap::new()),
            };
            // What is not used and has no quota is not kept.
            let kept = |used, quota| (used != 0 || quota != 0).then_some(Usage { used, quota });
            match filesystem.quotas().space_by(kind).await {
                Ok(uses) => reply.uses.extend(uses.into_iter().map(|used| SpaceReport {
                    owner: *owner,
                    id: used.id,
                    name: names.get(&used.id).cloned(),
                    bytes: kept(used.used_bytes, used.quota_bytes),
                    objects: kept(used.used_objects, used.quota_objects),
                })),
                Err(error) => {
                    outcome = Err(Failure::new(FailureKind::Io, format!("{doing}: {error}")));
                }
            }
        }
        if let Err(error) = borrowed.close().await {
            tracing::warn!("{name}: {error}");
        }
        outcome.map(|()| reply)
    })
}

/// A property that names whose it is: `written@SNAPSHOT`, `userused@USER`, `groupobjquota@GROUP`
/// and such (`zfs_userquota_prop_prefixes`, module/zcommon/zfs_prop.c). None where it does not
/// apply.
pub async fn owned(
    serving: &Serving,
    open: &OpenPool,
    name: &str,
    property: &str,
) -> Option<Property> {
    if QuotaKind::of_default_property(property).is_some() {
        let mut all = default_quotas(open, name).await.into_iter();
        return all
            .find(|(found, _)| *found == property)
            .map(|(_, quota)| quota);
    }
    let (prefix, whose) = property.split_once(['@', '#'])?;
    if prefix == "written" {
        let setting = open
            .pool
            .dsl()
            .properties()
            .get(name, property)
            .await
            .ok()?;
        let value = setting.value.number()?;
        return Some(Property {
            value: value.to_string(),
            source: api::Source::Local,
        });
    }
    let (owner, what) = [
        ("user", SpaceOwner::User),
        ("group", SpaceOwner::Group),
        ("project", SpaceOwner::Project),
    ]
    .iter()
    .find_map(|(word, owner)| Some((*owner, prefix.strip_prefix(word)?)))?;
    let id = id_of(owner, whose)?;
    let call = ZfsSpace {
        name: name.to_owned(),
        owners: vec![owner],
    };
    let uses = zfs_space(serving, &call).await.ok()?.uses;
    let found = uses.into_iter().find(|used| used.id == id);
    let (bytes, objects) = found.map_or((None, None), |used| (used.bytes, used.objects));
    let value = match what {
        "used" => bytes.map_or(0, |usage| usage.used),
        "quota" => bytes.map_or(0, |usage| usage.quota),
        "objused" => objects.map_or(0, |usage| usage.used),
        "objquota" => objects.map_or(0, |usage| usage.quota),
        _ => return None,
    };
    Some(Property {
        value: value.to_string(),
        source: api::Source::Local,
    })
}

/// Quotas of those who have none, of a filesystem or snapshot of one. Not what was set and what is
/// the default: the property has no source (OpenZFS 2.4).
pub async fn default_quotas(open: &OpenPool, name: &str) -> Vec<(&'static str, Property)> {
    let Ok(dataset) = open.pool.dsl().open_dataset(name).await else {
        return Vec::new();
    };
    let quotas = QuotaKind::defaults_of(&dataset).await;
    let quotas = quotas.unwrap_or_else(|error| {
        tracing::debug!("{name}: default quotas cannot be read: {error}");
        Vec::new()
    });
    let quotas = quotas.into_iter();
    quotas
        .map(|(property, quota)| (property, Property::statistic(quota.to_string())))
        .collect()
}

/// `zfs holds`.
pub fn zfs_holds<'a>(
    pools: &'a Pools,
    call: &'a ZfsHolds,
) -> BoxFuture<'a, Result<ZfsHoldsReply, Failure>> {
    Box::pin(async move {
        let mut reply = ZfsHoldsReply::default();
        for name in &call.names {
            let Some((head, short)) = name.split_once('@') else {
                return Err(Failure::new(
                    FailureKind::Invalid,
                    format!("'{name}' is not a snapshot"),
                ));
            };
            let open = pools.of_dataset(name)?;
            let doing = format!("cannot get holds for '{name}'");
            let failed = |error| from_dataset(&doing, &error);
            let dsl = open.pool.dsl();
            let mut snapshots = vec![name.clone()];
            if call.recursive {
                let options = ListOptions {
                    snapshots: true,
                    ..ListOptions::default()
                };
                let listed = dsl
                    .directories()
                    .list(head, &options)
                    .await
                    .map_err(failed)?;
                snapshots = listed
                    .into_iter()
                    .filter(|info| info.name.split_once('@').is_some_and(|(_, of)| of == short))
                    .map(|info| info.name)
                    .collect();
            }
            for snapshot in snapshots {
                let holds = dsl.holds().list(&snapshot).await.map_err(failed)?;
                reply
                    .holds
                    .extend(holds.into_iter().map(|(tag, time_s)| HoldReport {
                        name: snapshot.clone(),
                        tag,
                        time_s,
                    }));
            }
        }
        Ok(reply)
    })
}

/// Bookmarks of a dataset, or the one that `only` names.
pub async fn bookmark_reports(
    open: &OpenPool,
    head: &str,
    only: Option<&str>,
) -> Result<Vec<DatasetReport>, Failure> {
    let bookmarks = open
        .pool
        .dsl()
        .bookmarks()
        .list(head)
        .await
        .map_err(|error| from_dataset(&format!("cannot open '{head}'"), &error))?;
    let mut reports = Vec::new();
    for bookmark in bookmarks {
        if only.is_none_or(|only| bookmark.name == only) {
            let list = open.pool.dsl().bookmarks().redaction(&bookmark.phys).await;
            let list = list.map_err(|error| {
                from_dataset(&format!("cannot open '{}'", bookmark.name), &error)
            })?;
            reports.push(bookmark_report(bookmark, list));
        }
    }
    Ok(reports)
}

/// What a bookmark tells (`dsl_bookmark_fetch_props`, module/zfs/dsl_bookmark.c).
fn bookmark_report(bookmark: BookmarkInfo, list: Option<RedactionListPhys>) -> DatasetReport {
    let phys = &bookmark.phys;
    let mut properties = api::PropertyMap::new();
    let mut tell = |name: &str, value: String| {
        properties.insert(name.to_owned(), Property::statistic(value));
    };
    tell("type", ApiKind::Bookmark.name().to_owned());
    tell("creation", phys.creation_time_seconds.to_string());
    tell("createtxg", phys.creation_txg.get().to_string());
    tell("guid", phys.guid.get().to_string());
    if phys.flags & SnapshotBookmark::FLAG_HAS_FREED_BEFORE_NEXT != 0 {
        tell("referenced", phys.referenced_bytes.to_string());
        tell("logicalreferenced", phys.uncompressed_bytes.to_string());
        let ratio = (u128::from(phys.uncompressed_bytes) * 100)
            .checked_div(u128::from(phys.compressed_bytes))
            .unwrap_or(100);
        tell(
            "refcompressratio",
            format!("{}.{:02}", ratio / 100, ratio % 100),
        );
    }
    if phys.ivset_guid != 0 {
        tell("ivsetguid", phys.ivset_guid.to_string());
    }
    if let Some(list) = list {
        let guids: Vec<String> = list.snapshots.iter().map(|guid| guid.to_string()).collect();
        tell("redact_snaps", guids.join(","));
    }
    service::reports::put_in_order(&mut properties);
    DatasetReport {
        kind: ApiKind::Bookmark,
        create_txg: phys.creation_txg.get(),
        name: bookmark.name,
        properties,
        received: api::PropertyMap::default(),
    }
}
