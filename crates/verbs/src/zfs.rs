//! What the `zfs` command line asks for.

use device::BoxFuture;
use std::collections::BTreeSet;
use std::sync::Arc;

use access::{AccessError, Exclusion};
use api::{
    DatasetKind as ApiKind, DatasetReport, Empty, EventKind, Failure, FailureKind, Property,
    Refusal, ZfsDestroy, ZfsList, ZfsListReply, ZfsMount, ZfsRename, ZfsRollback, ZfsSnapshot,
    ZfsUnmount,
};
use dataset::{DatasetError, DatasetInfo, DatasetKind, ListOptions};
use serve_fuse::{MountTable, UnmountMode};

use crate::zpool::typed;
use service::error::{all_done, and_back, from_access, from_dataset};
use service::opened::{Takes, check_name, check_new_name, opened, place_of_new};
use service::pools::OpenPool;
use service::reports;
use serving::Serving;
use serving::mounts::{MountWay, Mounts, Taken, remove_directories};
use serving::place::{Place, REDACTED, place, place_of_any};

pub(crate) fn mode(force: bool) -> UnmountMode {
    if force {
        UnmountMode::Force
    } else {
        UnmountMode::Clean
    }
}

/// All kinds of datasets, so many levels deep.
pub fn everything(depth: Option<usize>) -> ListOptions {
    ListOptions {
        filesystems: true,
        volumes: true,
        snapshots: true,
        depth,
    }
}

/// `zfs list` and `zfs get`.
pub fn zfs_list<'a>(
    serving: &'a Serving,
    call: &'a ZfsList,
) -> BoxFuture<'a, Result<ZfsListReply, Failure>> {
    Box::pin(async move {
        let names: Vec<String> = if call.names.is_empty() {
            serving
                .pools
                .all()
                .iter()
                .map(|open| open.pool.name())
                .collect()
        } else {
            call.names.clone()
        };
        let mut reply = ZfsListReply::default();
        let mut seen = BTreeSet::new();
        for name in names {
            // What is wrong with one does not keep the others from being shown.
            if let Err(failure) =
                list_one(serving, call, name, &mut seen, &mut reply.datasets).await
            {
                reply.failures.push(failure);
            }
        }
        match reply.datasets.is_empty() {
            true => all_done(&reply.failures).map(|_| reply),
            false => Ok(reply),
        }
    })
}

/// Adds a dataset and what is asked for below it to a list, as far as it is not there yet.
async fn list_one(
    serving: &Serving,
    call: &ZfsList,
    name: String,
    seen: &mut BTreeSet<String>,
    datasets: &mut Vec<DatasetReport>,
) -> Result<(), Failure> {
    let has = |kind| call.kinds.contains(&kind);
    let options = ListOptions {
        filesystems: call.kinds.is_empty() || has(ApiKind::Filesystem),
        volumes: call.kinds.is_empty() || has(ApiKind::Volume),
        snapshots: has(ApiKind::Snapshot),
        depth: call.depth.map(|depth| depth as usize),
    };
    let open = serving.pools.of_dataset(&name)?;
    let doing = format!("cannot open '{name}'");
    let failed = |error| from_dataset(&doing, &error);
    if let Some((head, _)) = name.split_once('#') {
        let found = crate::usage::bookmark_reports(&open, head, Some(&name)).await?;
        if found.is_empty() {
            let message = format!("{doing}: dataset does not exist");
            return Err(Failure::new(FailureKind::NotFound, message));
        }
        datasets.extend(found);
        return Ok(());
    }
    let alone = call.depth == Some(0) || name.contains('@');
    let listed = if alone {
        vec![
            open.pool
                .dsl()
                .directories()
                .lookup(&name)
                .await
                .map_err(failed)?,
        ]
    } else {
        // A pool may have its snapshots listed by themselves.
        let listsnapshots = call.kinds.is_empty()
            && open
                .pool
                .properties()
                .get("listsnapshots")
                .is_some_and(|on| on.value == "on");
        let options = ListOptions {
            snapshots: options.snapshots || listsnapshots,
            ..options.clone()
        };
        open.pool
            .dsl()
            .directories()
            .list(&name, &options)
            .await
            .map_err(failed)?
    };
    let table = MountTable::now();
    for info in listed {
        if seen.insert(info.name.clone()) {
            let wanted = call.properties.as_deref();
            let mut report = report(&serving.mounts, &open, table.as_ref(), info, wanted).await?;
            if call.received {
                let received = open.pool.dsl().properties().received(&report.name).await;
                report.received = reports::properties(received.map_err(failed)?);
            }
            if wanted.is_none() {
                let quotas = crate::usage::default_quotas(&open, &report.name).await;
                reports::put_before_users(&mut report.properties, quotas);
            }
            for property in wanted.unwrap_or_default() {
                if let Some(found) =
                    crate::usage::owned(serving, &open, &report.name, property).await
                {
                    report.properties.insert(property.clone(), found);
                }
            }
            datasets.push(report);
        }
    }
    if !has(ApiKind::Bookmark) || alone {
        return Ok(());
    }
    // Bookmarks of a dataset are one level below it, as snapshots are.
    let heads = ListOptions {
        depth: call.depth.map(|depth| depth.saturating_sub(1) as usize),
        ..ListOptions::default()
    };
    for head in open
        .pool
        .dsl()
        .directories()
        .list(&name, &heads)
        .await
        .map_err(failed)?
    {
        for bookmark in crate::usage::bookmark_reports(&open, &head.name, None).await? {
            if seen.insert(bookmark.name.clone()) {
                datasets.push(bookmark);
            }
        }
    }
    Ok(())
}

async fn report(
    mounts: &Mounts,
    open: &OpenPool,
    table: Option<&MountTable>,
    info: DatasetInfo,
    wanted: Option<&[String]>,
) -> Result<DatasetReport, Failure> {
    let dsl = open.pool.dsl();
    let settings = match wanted {
        None => dsl.properties().all(&info.name).await,
        Some(wanted) => dsl.properties().named(&info.name, wanted).await,
    };
    let settings =
        settings.map_err(|error| from_dataset(&format!("cannot open '{}'", info.name), &error))?;
    let mut properties = reports::properties(settings);
    if info.kind == DatasetKind::Filesystem {
        let is_mounted = mounts.is_mounted_in(table, &info.name);
        if wanted.is_none_or(|wanted| wanted.iter().any(|name| name == "mounted")) {
            let mounted = if is_mounted { "yes" } else { "no" };
            properties.insert("mounted".into(), Property::statistic(mounted));
        }
        let temporary = is_mounted.then(|| mounts.temporary(&info.name));
        for (name, word) in temporary.unwrap_or_default() {
            if let Some(property) = properties.get_mut(name)
                && property.value != word
                // A filesystem that may not be written is not writable by its mount.
                && (name, word) != ("readonly", "off")
            {
                property.value = word.to_owned();
                property.source = api::Source::Temporary;
            }
        }
        reports::put_in_order(&mut properties);
        if let Some(property) = properties.get_mut("mountpoint")
            && property.value.starts_with('/')
        {
            property.value = serving::place::below_altroot(open.pool.altroot(), &property.value)
                .to_string_lossy()
                .into_owned();
        }
    }
    Ok(DatasetReport {
        kind: reports::kind(info.kind),
        create_txg: info.createtxg.get(),
        name: info.name,
        properties,
        received: api::PropertyMap::default(),
    })
}

pub(crate) async fn mount_created(
    serving: &Serving,
    open: &OpenPool,
    name: &str,
) -> Result<(), Failure> {
    let mounted = match place(open, name).await? {
        (Place::At(path), true) => serving.mount_at(open, name, &path, false, &[]).await,
        _ => Ok(()),
    };
    // The network share works without a mount.
    for warning in serving.follow_nfs(open, name).await {
        tracing::warn!("{warning}");
    }
    mounted
}

/// `zfs snapshot`.
pub fn zfs_snapshot<'a>(
    serving: &'a Serving,
    call: ZfsSnapshot,
) -> BoxFuture<'a, Result<Empty, Failure>> {
    Box::pin(async move {
        let Some(first) = call.names.first() else {
            return Err(Failure::new(
                FailureKind::Invalid,
                "missing snapshot argument",
            ));
        };
        let head_of = |name: &str| name.split('@').next().unwrap_or_default().to_owned();
        let open = serving.pools.of_dataset(&head_of(first))?;
        let many = call.recursive || call.names.len() > 1;
        let failed = |error: &DatasetError| snapshot_words(first, many, error);
        for other in &call.names {
            let pool = serving.pools.of_dataset(&head_of(other))?;
            if !Arc::ptr_eq(&pool, &open) {
                let message = format!(
                    "{ONE_EACH}\n'{other}' is not in the same pool as '{first}'\n{NONE_MADE}"
                );
                return Err(Failure::new(FailureKind::Invalid, message));
            }
        }
        let _admin = open.admin.lock().await;
        for name in &call.names {
            opened(&open, &head_of(name), Takes::Heads).await?;
        }
        let mut names = Vec::new();
        for name in &call.names {
            let (head, snapshot) = name.split_once('@').unwrap_or((name, ""));
            if call.recursive {
                let listed = open
                    .pool
                    .dsl()
                    .directories()
                    .list(head, &ListOptions::default())
                    .await
                    .map_err(|error| failed(&error))?;
                // Nobody takes snapshots of what is being received.
                names.extend(
                    listed
                        .iter()
                        .filter(|info| !info.is_inconsistent)
                        .map(|info| format!("{}@{snapshot}", info.name)),
                );
            } else {
                names.push(name.clone());
            }
        }
        open.pool
            .dsl()
            .snapshots()
            .take(&names, &typed(&call.properties))
            .await
            .map_err(|error| failed(&error))?;
        crate::zpool::log_command(&open.pool, &call.command).await;
        serving.events.tell(EventKind::DatasetsCreated {
            names: names.clone(),
        });
        for name in &names {
            let head = name.split('@').next().unwrap_or(name);
            serving.volumes.show_volume_snapshots(&open, head).await?;
        }
        Ok(Empty {})
    })
}

/// What is said of several snapshots that cannot be taken together (`zfs_snapshot_nvl`,
/// lib/libzfs/libzfs_dataset.c).
const ONE_EACH: &str = "cannot create snapshots : multiple snapshots of same fs not allowed";
/// What is said of several where one cannot be taken (`zfs_do_snapshot`, cmd/zfs/zfs_main.c).
const NONE_MADE: &str = "no snapshots were created";

/// Why snapshots were not taken, of which `first` was asked for first.
fn snapshot_words(first: &str, many: bool, error: &DatasetError) -> Failure {
    let of = |name: &str| from_dataset(&format!("cannot create snapshot '{name}'"), error);
    let mut failure = match error {
        DatasetError::InvalidName { name, reason } if reason.contains("one snapshot") => {
            let message = format!("{ONE_EACH}\n'{name}': {reason}");
            Failure::new(FailureKind::Invalid, message)
        }
        DatasetError::InvalidProperty { .. } => {
            let why = from_dataset("cannot create snapshots ", error);
            let not_for_them =
                "cannot create snapshots : this property can not be modified for snapshots";
            match why.message.contains(": invalid property '") {
                true => Failure::new(why.kind, format!("{not_for_them}\n{}", why.message)),
                false => why,
            }
        }
        DatasetError::InvalidName { name, .. } | DatasetError::Exists { name } => of(name),
        _ => of(first),
    };
    // Where a name is to be made (`zfs_validate_name`).
    failure.message = (failure.message).replace("invalid character '%'", "invalid character %");
    if many {
        failure.message = format!("{}\n{NONE_MADE}", failure.message);
    }
    failure
}

/// `zfs rollback`.
pub fn zfs_rollback<'a>(
    serving: &'a Serving,
    call: ZfsRollback,
) -> BoxFuture<'a, Result<Empty, Failure>> {
    Box::pin(async move {
        check_name(&call.snapshot, Takes::Snapshot)?;
        let open = serving.pools.of_dataset(&call.snapshot)?;
        let _admin = open.admin.lock().await;
        let doing = format!("cannot rollback to '{}'", call.snapshot);
        let failed = |error: DatasetError| from_dataset(&doing, &error);
        let head = call.snapshot.split('@').next().unwrap_or_default();
        let dsl = open.pool.dsl();
        let target = dsl
            .directories()
            .lookup(&call.snapshot)
            .await
            .map_err(failed)?;
        let listed = dsl
            .directories()
            .list(head, &everything(Some(1)))
            .await
            .map_err(failed)?;
        let newer: Vec<String> = listed
            .iter()
            .filter(|info| {
                info.name.split_once('@').is_some_and(|(of, _)| of == head)
                    && (info.createtxg, info.object) > (target.createtxg, target.object)
            })
            .map(|info| info.name.clone())
            .collect();
        let bookmarks = dsl
            .bookmarks()
            .list(head)
            .await
            .map_err(failed)?
            .into_iter();
        let newer_bookmarks: Vec<String> = bookmarks
            .filter(|bookmark| bookmark.phys.creation_txg > target.createtxg)
            .map(|bookmark| bookmark.name)
            .collect();
        let in_the_way = [newer.as_slice(), &newer_bookmarks].concat();
        if !in_the_way.is_empty() && !call.destroy_newer && !call.destroy_clones {
            let message = format!(
                "{doing}: more recent snapshots or bookmarks exist\nuse '-r' to force deletion of \
             the following snapshots and bookmarks:\n{}",
                in_the_way.join("\n")
            );
            let refusal = Refusal::Newer { names: in_the_way };
            return Err(Failure::new(FailureKind::Busy, message).with_refusal(refusal));
        }
        let mut doomed: Vec<DatasetInfo> = listed
            .iter()
            .filter(|info| newer.contains(&info.name))
            .cloned()
            .collect();
        if call.destroy_clones {
            let destroy = ZfsDestroy {
                target: call.snapshot.clone(),
                dependents: true,
                force: call.force,
                ..ZfsDestroy::default()
            };
            crate::destroy::add_clones(&open, &destroy, &mut doomed).await?;
        }
        // What refuses the rollback does so before anything is destroyed.
        if let Some(held) = doomed.iter().rev().find(|info| info.user_holds > 0) {
            let name = &held.name;
            let message = format!(
                "cannot destroy '{name}': dataset is busy\n\
                 it's being held. Run 'zfs holds -r {name}' to see holders."
            );
            return Err(Failure::new(FailureKind::Busy, message));
        }
        let fits = dsl.snapshots().check_fits(head, &call.snapshot).await;
        fits.map_err(failed)?;
        let mut clones = crate::destroy::in_order(&doomed);
        clones.retain(|name| !newer.contains(name));
        // A filesystem is unmounted, then put back where it was, with what is mounted inside; who
        // uses it, or a volume, goes on with what the snapshot has.
        let was_volume = serving.volumes.get(head).is_some();
        serving
            .volumes
            .hide_volume_snapshots(head, mode(call.force))
            .await?;
        let clones_gone = async {
            if clones.is_empty() {
                return Ok(());
            }
            // Of clones, and of the snapshots that go next, none is in use, or none goes.
            serving.release_unused_snapshots(&newer).await?;
            let in_use = |error| from_access(&doing, &error);
            open.access.settled(&newer).await.map_err(in_use)?;
            // Who cannot go on with what the snapshot has is found before anything is destroyed.
            match open.access.exchange(head, std::future::ready(())).await {
                Err(AccessError::InUse { name, .. }) if name == head && call.force => {}
                tried => tried.map_err(in_use)?,
            }
            // They are not kept alone: what puts the clones back may open them.
            drop(crate::destroy::alone(&open, &newer, UnmountMode::Clean).await?);
            let mode = mode(call.force);
            crate::destroy::put_away_and_destroy(serving, &open, &clones, mode, false, None).await
        };
        if let Err(failure) = clones_gone.await {
            let back = match was_volume {
                true => serving.volumes.open_volume(&open, head).await,
                false => Ok(()),
            };
            return and_back(Err(failure), back);
        }
        let inside = match serving.mounts.mountpoint(head) {
            Some(path) => serving.mounts.inside(&path, &open.pool.name()),
            None => Vec::new(),
        };
        let mut away = serving.mounts.last_first(&open.pool.name());
        away.retain(|name| name == head || inside.contains(name));
        let roll_back = async || {
            let (dsl, access) = (Arc::clone(dsl), Arc::clone(&open.access));
            let (newer, newer_bookmarks) = (newer.clone(), newer_bookmarks.clone());
            let (head_name, snapshot) = (head.to_owned(), call.snapshot.clone());
            // Whoever has one of them for a moment is waited for before anybody's requests wait.
            access.settled(&newer).await?;
            let work = async move {
                if !newer.is_empty() {
                    let _nobody = access.exclusive(&newer, Exclusion::Refused).await?;
                    dsl.destroyer().destroy_snapshots(&newer, false).await?;
                }
                if !newer_bookmarks.is_empty() {
                    dsl.bookmarks().destroy(&newer_bookmarks).await?;
                }
                dsl.snapshots()
                    .rollback(&head_name, Some(&snapshot))
                    .await?;
                Ok(())
            };
            open.access.exchange(head, work).await.and_then(|done| done)
        };
        let mut taken = Vec::new();
        let outcome = match serving
            .take_away(&open, away.clone(), UnmountMode::Clean)
            .await
        {
            Ok(unmounted) => {
                taken = unmounted;
                roll_back().await
            }
            Err(busy) => match roll_back().await {
                Err(AccessError::InUse { name, .. }) if name == head => {
                    if !call.force {
                        return Err(busy);
                    }
                    taken = serving.take_away(&open, away, mode(true)).await?;
                    roll_back().await
                }
                outcome => outcome,
            },
        };
        let mut back = serving.bring_back(&open, taken).await;
        if let Err(AccessError::NotReopened { .. }) = &outcome {
            serving.share_anew(&open, head).await;
        }
        if was_volume {
            if let Err(AccessError::NotReopened { .. }) = &outcome {
                back = and_back(back, serving.volumes.close_volume(head, mode(true)).await);
            }
            back = and_back(back, serving.volumes.open_volume(&open, head).await);
        }
        if let Err(error) = &outcome {
            return and_back(Err(from_access(&doing, error)), back);
        }
        crate::zpool::log_command(&open.pool, &call.command).await;
        let done = format!(
            "rolled back to '{}', but not all is as it was",
            call.snapshot
        );
        back.map(|()| Empty {})
            .map_err(|failure| Failure::new(FailureKind::Other, format!("{done}:\n{failure}")))
    })
}

/// `zfs rename`.
pub fn zfs_rename<'a>(
    serving: &'a Serving,
    call: ZfsRename,
) -> BoxFuture<'a, Result<Empty, Failure>> {
    Box::pin(async move {
        let takes = match call.parents {
            true => Takes::Heads,
            false => Takes::Datasets,
        };
        check_name(&call.from, takes)?;
        let open = serving.pools.of_dataset(&call.from)?;
        let _admin = open.admin.lock().await;
        let doing = format!("cannot rename '{}'", call.from);
        let doing_to = format!("cannot rename to '{}'", call.to);
        let failed = |error: DatasetError| match &error {
            DatasetError::InvalidName { .. } => from_dataset(&doing_to, &error),
            DatasetError::Exists { .. } if call.recursive => {
                let what = "a child dataset already has a snapshot with the new name";
                Failure::new(FailureKind::Exists, format!("{doing}: {what}"))
            }
            _ => from_dataset(&doing, &error),
        };
        let dsl = open.pool.dsl();
        let refused = |what: &str| Failure::new(FailureKind::Invalid, format!("{doing}: {what}"));
        let refused_to =
            |what: &str| Failure::new(FailureKind::Invalid, format!("{doing_to}: {what}"));
        if call.from.contains('%') {
            // The hidden clone of a receive is nobody's to move (`zfs_validate_name`).
            return Err(refused("invalid character '%' in name"));
        }
        if let Some((head, old)) = call.from.split_once('@') {
            let (new_head, new) = call.to.split_once('@').unwrap_or((head, &call.to));
            if !call.recursive {
                opened(&open, &call.from, takes).await?;
            }
            if new_head != head && !new_head.is_empty() {
                return Err(refused_to("snapshots must be part of same dataset"));
            }
            serving
                .volumes
                .hide_snapshots_below(head, mode(call.force))
                .await?;
            let outcome = if call.recursive {
                dsl.snapshots().rename_all(head, old, new).await
            } else {
                dsl.directories()
                    .rename(&call.from, &format!("{head}@{new}"))
                    .await
            };
            let shown = serving.volumes.show_snapshots_below(&open, head).await;
            if let Err(error) = outcome {
                return and_back(Err(failed(error)), shown);
            }
            // What is open through `.zfs/snapshot` is known there by the old name, under which
            // nobody would close it.
            let old_names: Vec<String> = serving
                .mounts
                .below(head)
                .into_iter()
                .map(|of| format!("{of}@{old}"))
                .collect();
            serving.release_snapshots(&old_names).await;
            crate::zpool::log_command(&open.pool, &call.command).await;
            return shown.map(|()| Empty {});
        }
        if call.recursive {
            return Err(refused("only snapshots are renamed recursively"));
        }
        opened(&open, &call.from, takes).await?;
        if call.from == call.to {
            return Ok(Empty {});
        }
        // The order of `zfs_rename` (lib/libzfs/libzfs_dataset.c).
        check_new_name(&doing_to, &call.to)?;
        let making = format!("cannot create '{}'", call.to);
        let place = place_of_new(&serving.pools, &making, &call.to, call.parents).await?;
        // Of a pool's own filesystem the same is said, wherever it is to go.
        if !Arc::ptr_eq(&place, &open) || !call.from.contains('/') {
            return Err(refused_to("datasets must be within same pool"));
        }
        if call.to.starts_with(&format!("{}/", call.from)) {
            let what = "New dataset name cannot be a descendant of current dataset name";
            return Err(refused_to(what));
        }
        if call.parents {
            crate::create::make_parents(serving, &open, &call.to, &making, false).await?;
        }
        let away = match call.no_mount {
            true => Vec::new(),
            false => serving.mounts.last_first(&call.from),
        };
        let taken = serving.take_away(&open, away, mode(call.force)).await?;
        let outcome = dsl
            .directories()
            .rename(&call.from, &call.to)
            .await
            .map_err(failed);
        let new_name = |name: &str| format!("{}{}", call.to, &name[call.from.len()..]);
        let mut put_back = Ok(());
        if outcome.is_ok() {
            let moved = serving.mounts.below(&call.from);
            serving.mounts.renamed(&call.from, &call.to);
            serving.withheld.renamed(&call.from, &call.to);
            serving.smb.withdraw(&moved).await;
            for name in serving.mounts.below(&call.to) {
                serving.share_by_smb(&open, &name).await;
            }
            remove_directories(taken.iter().filter_map(Taken::own_directory).collect()).await;
            for one in taken.iter().rev() {
                let mounted = serving.mount_again(&open, &new_name(&one.name)).await;
                put_back = and_back(put_back, mounted);
            }
            for name in serving.volumes.below(&call.from) {
                let now = new_name(&name);
                let renamed = serving.volumes.volume_renamed(&open, &name, &now).await;
                put_back = and_back(put_back, renamed);
            }
            for warning in serving.nfs_renamed(&open, &call.from, &call.to).await {
                let failure = Failure::new(FailureKind::Other, warning);
                put_back = and_back(put_back, Err(failure));
            }
        } else {
            put_back = serving.bring_back(&open, taken).await;
        }
        if let Err(failure) = outcome {
            return and_back(Err(failure), put_back);
        }
        crate::zpool::log_command(&open.pool, &call.command).await;
        put_back.map(|()| Empty {})
    })
}

/// `zfs mount`.
pub fn zfs_mount<'a>(
    serving: &'a Serving,
    call: ZfsMount,
    user: Option<u32>,
) -> BoxFuture<'a, Result<Empty, Failure>> {
    Box::pin(async move {
        let Some(name) = &call.name else {
            let failures = serving.mount_everything().await;
            for open in serving.pools.all() {
                let _admin = open.admin.lock().await;
                let pool = open.pool.name();
                for warning in serving.share_again(&open, &pool, None).await {
                    tracing::warn!("{warning}");
                }
            }
            return if failures.is_empty() {
                Ok(Empty {})
            } else {
                Err(Failure::new(FailureKind::Other, failures.join("\n")))
            };
        };
        let open = serving.pools.of_dataset(name)?;
        let _admin = open.admin.lock().await;
        if call.discard_log {
            let doing = format!("cannot give up the intent log of '{name}'");
            let given_up = open.access.discard_log(name).await;
            given_up.map_err(|error| from_access(&doing, &error))?;
            let dataset = open.pool.dsl().directories().lookup(name).await;
            let dataset = dataset.map_err(|error| from_dataset(&doing, &error))?;
            if dataset.kind == DatasetKind::Volume {
                return serving
                    .volumes
                    .open_volume(&open, name)
                    .await
                    .map(|()| Empty {});
            }
        }
        if serving.mounts.mountpoint(name).is_some()
            && call.options.iter().any(|option| option == "remount")
        {
            let remounted = serving.remount(&open, name, &call.options).await;
            return remounted.map(|()| Empty {});
        }
        if let Err(failure) = opened(&open, name, Takes::Filesystem).await {
            let help = match (&failure.kind, name.contains('@')) {
                (FailureKind::Invalid, true) => {
                    "\nsnapshots are in '.zfs/snapshot' of their filesystem".to_owned()
                }
                (FailureKind::Invalid, false) => format!(
                    "\nit is a volume, which is a file to use as a disk: {}",
                    serving.volumes.file(name).display()
                ),
                _ => String::new(),
            };
            let message = format!("{}{help}", failure.message);
            return Err(Failure::new(failure.kind, message));
        }
        let place = match call.force {
            true => place_of_any(&open, name).await?,
            false => place(&open, name).await?,
        };
        match place {
            (Place::Nowhere(REDACTED), _) => Err(Failure::new(
                FailureKind::Invalid,
                format!(
                    "cannot mount '{name}': Dataset is not complete, was created by receiving a \
                 redacted zfs send stream.\nuse '-f' to mount it all the same: what it lacks \
                 reads as zeros"
                ),
            )),
            (Place::At(path), _) => {
                let way = MountWay {
                    overlay: call.overlay,
                    user,
                };
                let mounting = serving.mount_at(&open, name, &path, way, &call.options);
                mounting.await?;
                for warning in serving.share_again(&open, name, None).await {
                    tracing::warn!("{warning}");
                }
                Ok(Empty {})
            }
            (Place::Nowhere("mountpoint=legacy"), _) => Err(Failure::new(
                FailureKind::Invalid,
                format!(
                    "cannot mount '{name}': legacy mountpoint\nset 'mountpoint' to a path to \
                     mount it"
                ),
            )),
            (Place::Nowhere("mountpoint=none"), _) => Err(Failure::new(
                FailureKind::Invalid,
                format!("cannot mount '{name}': no mountpoint set"),
            )),
            (Place::Nowhere("canmount=off"), _) => Err(Failure::new(
                FailureKind::Invalid,
                format!("cannot mount '{name}': 'canmount' property is set to 'off'"),
            )),
            (Place::Nowhere(why), _) => Err(Failure::new(
                FailureKind::Invalid,
                format!("cannot mount '{name}': '{why}'"),
            )),
        }
    })
}

/// Whether a filesystem is mounted by nobody but who names it, and unmounted so
/// (`unshare_unmount`, cmd/zfs/zfs_main.c).
async fn is_by_hand(open: &OpenPool, name: &str) -> bool {
    const NOAUTO: u64 = 2;
    let dsl = open.pool.dsl();
    let mountpoint = dsl.properties().get(name, "mountpoint").await;
    let canmount = dsl.properties().get(name, "canmount").await;
    mountpoint.is_ok_and(|found| found.value.text() == Some("legacy"))
        || canmount.is_ok_and(|found| found.value.number() == Some(NOAUTO))
}

/// `zfs unmount`.
pub fn zfs_unmount<'a>(
    serving: &'a Serving,
    call: ZfsUnmount,
) -> BoxFuture<'a, Result<Empty, Failure>> {
    Box::pin(async move {
        if call.all {
            // What a pool has mounted may be inside of what another has.
            let mut failures = Vec::new();
            for name in serving.mounts.all_last_first() {
                let Ok(open) = serving.pools.of_dataset(&name) else {
                    continue;
                };
                let _admin = open.admin.lock().await;
                if is_by_hand(&open, &name).await {
                    continue;
                }
                match serving.unmount(&name, mode(call.force)).await {
                    Ok(()) => serving.withhold_nfs(&[name]).await,
                    Err(failure) => failures.push(failure),
                }
            }
            return service::error::all_done(&failures);
        }
        let word = call.name.unwrap_or_default();
        let name = if word.starts_with('/') {
            serving.mounts.dataset_at(&word).unwrap_or(word)
        } else {
            word
        };
        let open = match name.starts_with('/') {
            false => Some(serving.pools.of_dataset(&name)?),
            true => None,
        };
        if serving.mounts.mountpoint(&name).is_none() {
            if let Some(open) = &open {
                opened(open, &name, Takes::Filesystem).await?;
                if let (Place::Nowhere("mountpoint=legacy"), _) = place(open, &name).await? {
                    let message = format!(
                        "cannot unmount '{name}': legacy mountpoint\n\
                         use umount(8) to unmount this filesystem"
                    );
                    return Err(Failure::new(FailureKind::Invalid, message));
                }
            }
            return Err(Failure::new(
                FailureKind::NotFound,
                format!("cannot unmount '{name}': not currently mounted"),
            ));
        }
        let open = match open {
            Some(open) => open,
            None => serving.pools.of_dataset(&name)?,
        };
        let _admin = open.admin.lock().await;
        let names = serving.mounts.last_first(&name);
        let taken = serving.take_away(&open, names, mode(call.force)).await?;
        let unmounted: Vec<String> = taken.into_iter().map(|one| one.name).collect();
        serving.withhold_nfs(&unmounted).await;
        Ok(Empty {})
    })
}
