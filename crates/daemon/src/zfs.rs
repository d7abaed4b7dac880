//! What the `zfs` command line asks for.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

use api::{
    DatasetKind as ApiKind, DatasetReport, Empty, Failure, FailureKind, Property, ZfsCreate,
    ZfsDestroy, ZfsDestroyReply, ZfsInherit, ZfsList, ZfsListReply, ZfsMount, ZfsRename,
    ZfsRollback, ZfsSet, ZfsSnapshot, ZfsUnmount,
};
use dataset::{DatasetError, DatasetInfo, DatasetKind, ListOptions, PropertyChange};
use filesystem::ZplInit;
use serve_fuse::UnmountMode;
use volume::ZvolInit;

use crate::error::from_dataset;
use crate::mounts::{Place, is_at_or_below};
use crate::reports;
use crate::service::{OpenPool, Service};
use crate::volumes::{ISCSI_PROPERTY, check_share};

/// Block size of a volume that is not told one (`ZVOL_DEFAULT_BLOCKSIZE`, OpenZFS 2.2 on).
const VOLUME_BLOCK_BYTES: u64 = 16 << 10;

fn mode(force: bool) -> UnmountMode {
    if force {
        UnmountMode::Force
    } else {
        UnmountMode::Clean
    }
}

fn everything(depth: Option<usize>) -> ListOptions {
    ListOptions {
        filesystems: true,
        volumes: true,
        snapshots: true,
        depth,
    }
}

impl Service {
    /// `zfs list` and `zfs get`.
    pub(crate) async fn zfs_list(&self, call: &ZfsList) -> Result<ZfsListReply, Failure> {
        let names: Vec<String> = if call.names.is_empty() {
            self.pools().iter().map(|open| open.pool.name()).collect()
        } else {
            call.names.clone()
        };
        let has = |kind| call.kinds.contains(&kind);
        let options = ListOptions {
            filesystems: call.kinds.is_empty() || has(ApiKind::Filesystem),
            volumes: call.kinds.is_empty() || has(ApiKind::Volume),
            snapshots: has(ApiKind::Snapshot),
            depth: call.depth.map(|depth| depth as usize),
        };
        let mut reply = ZfsListReply::default();
        let mut seen = BTreeSet::new();
        for name in names {
            // A path stands for the filesystem that is mounted there.
            let name = if name.starts_with('/') {
                self.mounted_dataset_at(&name).ok_or_else(|| {
                    Failure::new(
                        FailureKind::NotFound,
                        format!("cannot open '{name}': no filesystem is mounted there"),
                    )
                })?
            } else {
                name
            };
            let open = self.pool_of(&name)?;
            let doing = format!("cannot open '{name}'");
            let failed = |error| from_dataset(&doing, &error);
            if let Some((head, _)) = name.split_once('#') {
                let found = self.bookmark_reports(&open, head, Some(&name)).await?;
                if found.is_empty() {
                    let message = format!("{doing}: dataset does not exist");
                    return Err(Failure::new(FailureKind::NotFound, message));
                }
                reply.datasets.extend(found);
                continue;
            }
            let alone = call.depth == Some(0) || name.contains('@');
            let listed = if alone {
                vec![open.pool.dsl().lookup(&name).await.map_err(failed)?]
            } else {
                // A pool may have its snapshots listed by themselves.
                let listsnapshots = call.kinds.is_empty()
                    && open
                        .pool
                        .prop("listsnapshots")
                        .is_some_and(|on| on.value == "on");
                let options = ListOptions {
                    snapshots: options.snapshots || listsnapshots,
                    ..options.clone()
                };
                open.pool
                    .dsl()
                    .list(&name, &options)
                    .await
                    .map_err(failed)?
            };
            for info in listed {
                if seen.insert(info.name.clone()) {
                    let mut report = self.report(&open, info).await?;
                    for property in &call.properties {
                        if let Some(found) = self.owned(&open, &report.name, property).await {
                            report.properties.insert(property.clone(), found);
                        }
                    }
                    reply.datasets.push(report);
                }
            }
            if !has(ApiKind::Bookmark) || alone {
                continue;
            }
            // Bookmarks of a dataset are one level below it, as snapshots are.
            let heads = ListOptions {
                depth: call.depth.map(|depth| depth.saturating_sub(1) as usize),
                ..ListOptions::default()
            };
            for head in open.pool.dsl().list(&name, &heads).await.map_err(failed)? {
                for bookmark in self.bookmark_reports(&open, &head.name, None).await? {
                    if seen.insert(bookmark.name.clone()) {
                        reply.datasets.push(bookmark);
                    }
                }
            }
        }
        Ok(reply)
    }

    async fn report(&self, open: &OpenPool, info: DatasetInfo) -> Result<DatasetReport, Failure> {
        let settings = open
            .pool
            .dsl()
            .properties(&info.name)
            .await
            .map_err(|error| from_dataset(&format!("cannot open '{}'", info.name), &error))?;
        let mut properties = reports::properties(settings);
        if info.kind == DatasetKind::Filesystem {
            let mounted = if self.mounts.mountpoint(&info.name).is_some() {
                "yes"
            } else {
                "no"
            };
            properties.insert("mounted".into(), Property::statistic(mounted));
            reports::put_in_order(&mut properties);
            if let Some(property) = properties.get_mut("mountpoint")
                && property.value.starts_with('/')
            {
                property.value = crate::mounts::below_altroot(open.pool.altroot(), &property.value)
                    .to_string_lossy()
                    .into_owned();
            }
        }
        Ok(DatasetReport {
            kind: reports::kind(info.kind),
            create_txg: info.createtxg.get(),
            name: info.name,
            properties,
        })
    }

    /// `zfs create`.
    pub(crate) async fn zfs_create(&self, call: ZfsCreate) -> Result<Empty, Failure> {
        let open = self.pool_of(&call.name)?;
        let _admin = open.admin.lock().await;
        let doing = format!("cannot create '{}'", call.name);
        let failed = |error: DatasetError| from_dataset(&doing, &error);
        for (name, value) in &call.properties {
            if name == ISCSI_PROPERTY {
                check_share(value)?;
            }
        }
        if !call.parents
            && let (Some(parent), _) = dataset::name::split_parent(&call.name)
            && matches!(
                open.pool.dsl().lookup(parent).await,
                Err(DatasetError::NotFound { .. })
            )
        {
            let message =
                format!("{doing}: parent does not exist; use '-p' to create missing parents");
            return Err(Failure::new(FailureKind::NotFound, message));
        }
        if call.parents {
            if open.pool.dsl().lookup(&call.name).await.is_ok() {
                return Ok(Empty {});
            }
            let parts: Vec<&str> = call.name.split('/').collect();
            for end in 1..parts.len() {
                let parent = parts[..end].join("/");
                if open.pool.dsl().lookup(&parent).await.is_err() {
                    open.pool
                        .dsl()
                        .create_dataset(&parent, &[], Arc::new(ZplInit::new()))
                        .await
                        .map_err(failed)?;
                    self.mount_created(&open, &parent).await?;
                }
            }
        }
        if let Some(size_bytes) = call.volume_size_bytes {
            self.create_volume(&open, &call, size_bytes).await?;
        } else {
            open.pool
                .dsl()
                .create_dataset(&call.name, &call.properties, Arc::new(ZplInit::new()))
                .await
                .map_err(failed)?;
        }
        self.log_command(&open.pool, &call.command).await;
        if call.volume_size_bytes.is_some() {
            self.open_volume(&open, &call.name).await
        } else if call.no_mount {
            Ok(())
        } else {
            self.mount_created(&open, &call.name).await
        }
        .map(|()| Empty {})
        .map_err(|failure| {
            Failure::new(
                failure.kind,
                format!("'{}' was created, but: {failure}", call.name),
            )
        })
    }

    async fn create_volume(
        &self,
        open: &OpenPool,
        call: &ZfsCreate,
        size_bytes: u64,
    ) -> Result<(), Failure> {
        let doing = format!("cannot create '{}'", call.name);
        let mut properties = call.properties.clone();
        let block_bytes = match properties
            .iter()
            .position(|(name, _)| name == "volblocksize")
        {
            Some(at) => {
                let (_, text) = properties.remove(at);
                dataset::props::parse_size(&text)
                    .ok()
                    .filter(|size| size.is_power_of_two() && (512..=16 << 20).contains(size))
                    .ok_or_else(|| {
                        Failure::new(
                            FailureKind::Invalid,
                            format!(
                                "{doing}: 'volblocksize' must be a power of 2 from 512B to 16M"
                            ),
                        )
                    })?
            }
            None => VOLUME_BLOCK_BYTES,
        };
        if size_bytes == 0 || !size_bytes.is_multiple_of(block_bytes) {
            let rounded = size_bytes.div_ceil(block_bytes).max(1) * block_bytes;
            let message = format!(
                "{doing}: volume size must be a multiple of volume block size; use {rounded}"
            );
            return Err(Failure::new(FailureKind::Invalid, message));
        }
        if !call.sparse
            && !properties
                .iter()
                .any(|(name, _)| name == "refreservation" || name == "reservation")
        {
            properties.push(("refreservation".into(), "auto".into()));
        }
        let init = ZvolInit::new(size_bytes, u32::try_from(block_bytes).unwrap_or(u32::MAX));
        properties.push(("volsize".into(), size_bytes.to_string()));
        properties.push(("volblocksize".into(), block_bytes.to_string()));
        open.pool
            .dsl()
            .create_dataset(&call.name, &properties, Arc::new(init))
            .await
            .map_err(|error| from_dataset(&doing, &error))
    }

    async fn mount_created(&self, open: &OpenPool, name: &str) -> Result<(), Failure> {
        match self.place(open, name).await? {
            (Place::At(path), true) => self.mount_at(open, name, &path, false, &[]).await,
            _ => Ok(()),
        }
    }

    /// `zfs destroy`.
    pub(crate) async fn zfs_destroy(&self, call: ZfsDestroy) -> Result<ZfsDestroyReply, Failure> {
        let open = self.pool_of(&call.target)?;
        let _admin = open.admin.lock().await;
        let reply = match call.target.split_once('@') {
            Some((head, words)) => self.destroy_snapshots(&open, &call, head, words).await?,
            None => self.destroy_datasets(&open, &call).await?,
        };
        if !call.dry_run {
            self.log_command(&open.pool, &call.command).await;
        }
        Ok(reply)
    }

    async fn destroy_snapshots(
        &self,
        open: &OpenPool,
        call: &ZfsDestroy,
        head: &str,
        words: &str,
    ) -> Result<ZfsDestroyReply, Failure> {
        let doing = format!("cannot destroy '{}'", call.target);
        let failed = |error: DatasetError| from_dataset(&doing, &error);
        let listed = open
            .pool
            .dsl()
            .list(
                head,
                &everything(if call.recursive { None } else { Some(1) }),
            )
            .await
            .map_err(failed)?;
        let mut names = Vec::new();
        for word in words.split(',') {
            let before = names.len();
            let mut heads: Vec<&str> = listed
                .iter()
                .filter(|info| info.kind != DatasetKind::Snapshot)
                .map(|info| info.name.as_str())
                .collect();
            if !call.recursive {
                heads.retain(|name| *name == head);
            }
            for head in heads {
                let of_head: Vec<&DatasetInfo> = listed
                    .iter()
                    .filter(|info| info.name.split_once('@').is_some_and(|(of, _)| of == head))
                    .collect();
                names.extend(
                    snapshot_range(&of_head, word)
                        .into_iter()
                        .map(str::to_owned),
                );
            }
            if names.len() == before {
                let message = format!(
                    "could not find any snapshots to destroy; check snapshot names: '{head}@{word}' does not exist"
                );
                return Err(Failure::new(FailureKind::NotFound, message));
            }
        }
        if !call.dry_run {
            self.release_snapshots(&names).await;
            open.pool
                .dsl()
                .destroy_snapshots(&names, false)
                .await
                .map_err(failed)?;
        }
        Ok(ZfsDestroyReply {
            names,
            reclaimed_bytes: None,
        })
    }

    async fn destroy_datasets(
        &self,
        open: &OpenPool,
        call: &ZfsDestroy,
    ) -> Result<ZfsDestroyReply, Failure> {
        let doing = format!("cannot destroy '{}'", call.target);
        let failed = |error: DatasetError| from_dataset(&doing, &error);
        let dsl = open.pool.dsl();
        if !call.target.contains('/') {
            let message = format!(
                "{doing}: operation does not apply to pools\nuse 'zfs destroy -r {0}' to destroy all datasets in the pool\nuse 'zpool destroy {0}' to destroy the pool itself",
                call.target
            );
            if !call.recursive && !call.dependents {
                return Err(Failure::new(FailureKind::Invalid, message));
            }
        }
        let mut doomed = dsl
            .list(&call.target, &everything(None))
            .await
            .map_err(failed)?;
        if !call.recursive && !call.dependents && doomed.len() > 1 {
            let children = doomed[1..]
                .iter()
                .map(|info| info.name.as_str())
                .collect::<Vec<_>>()
                .join("\n");
            let kind = doomed[0].kind.name();
            let message = format!(
                "{doing}: {kind} has children\nuse '-r' to destroy the following datasets:\n{children}"
            );
            return Err(Failure::new(FailureKind::Busy, message));
        }
        self.add_clones(open, call, &mut doomed).await?;
        // Children before parents, snapshots before what they are of, clones before their origins.
        let mut names: Vec<String> = doomed.iter().rev().map(|info| info.name.clone()).collect();
        if !call.target.contains('/') {
            names.retain(|name| name != &call.target);
        }
        if call.dry_run {
            return Ok(ZfsDestroyReply {
                names,
                reclaimed_bytes: None,
            });
        }
        for info in doomed
            .iter()
            .filter(|info| info.kind != DatasetKind::Snapshot)
        {
            if names.contains(&info.name) {
                self.close_volume(&info.name, mode(call.force)).await?;
                self.unmount(&info.name, mode(call.force)).await?;
            }
        }
        self.release_snapshots(&names).await;
        for name in &names {
            dsl.destroy(name)
                .await
                .map_err(|error| from_dataset(&format!("cannot destroy '{name}'"), &error))?;
        }
        Ok(ZfsDestroyReply {
            names,
            reclaimed_bytes: None,
        })
    }

    /// Adds clones of the doomed snapshots that lie elsewhere, with all below them (`-R`), or refuses.
    async fn add_clones(
        &self,
        open: &OpenPool,
        call: &ZfsDestroy,
        doomed: &mut Vec<DatasetInfo>,
    ) -> Result<(), Failure> {
        let doing = format!("cannot destroy '{}'", call.target);
        let failed = |error: DatasetError| from_dataset(&doing, &error);
        let all = open
            .pool
            .dsl()
            .list(&open.pool.name(), &everything(None))
            .await
            .map_err(failed)?;
        loop {
            let names: BTreeSet<&str> = doomed.iter().map(|info| info.name.as_str()).collect();
            let clone = all.iter().find(|info| {
                !names.contains(info.name.as_str())
                    && info
                        .origin
                        .as_deref()
                        .is_some_and(|origin| names.contains(origin))
            });
            let Some(clone) = clone else { break };
            if !call.dependents {
                let message = format!(
                    "{doing}: filesystem has dependent clones\nuse '-R' to destroy the following datasets:\n{}",
                    clone.name
                );
                return Err(Failure::new(FailureKind::Busy, message));
            }
            let more: Vec<DatasetInfo> = all
                .iter()
                .filter(|info| {
                    is_at_or_below(
                        info.name.split('@').next().unwrap_or(&info.name),
                        &clone.name,
                    ) && !names.contains(info.name.as_str())
                })
                .cloned()
                .collect();
            doomed.extend(more);
        }
        Ok(())
    }

    /// `zfs snapshot`.
    pub(crate) async fn zfs_snapshot(&self, call: ZfsSnapshot) -> Result<Empty, Failure> {
        let Some(first) = call.names.first() else {
            return Err(Failure::new(
                FailureKind::Invalid,
                "missing snapshot argument",
            ));
        };
        let open = self.pool_of(first)?;
        if let Some(other) = call.names.iter().find(|name| {
            self.pool_of(name)
                .map_or(true, |pool| !Arc::ptr_eq(&pool, &open))
        }) {
            let message = format!(
                "cannot create snapshots: '{other}' is not in the same pool as '{first}'; snapshots must be in one pool"
            );
            return Err(Failure::new(FailureKind::Invalid, message));
        }
        let _admin = open.admin.lock().await;
        let mut names = Vec::new();
        for name in &call.names {
            let (head, snapshot) = name.split_once('@').unwrap_or((name, ""));
            if call.recursive {
                let listed = open
                    .pool
                    .dsl()
                    .list(head, &ListOptions::default())
                    .await
                    .map_err(|error| {
                        from_dataset(&format!("cannot create snapshot '{name}'"), &error)
                    })?;
                names.extend(
                    listed
                        .iter()
                        .map(|info| format!("{}@{snapshot}", info.name)),
                );
            } else {
                names.push(name.clone());
            }
        }
        let doing = format!("cannot create snapshot '{first}'");
        open.pool
            .dsl()
            .snapshot(&names, &call.properties)
            .await
            .map_err(|error| from_dataset(&doing, &error))?;
        self.log_command(&open.pool, &call.command).await;
        for name in &names {
            let head = name.split('@').next().unwrap_or(name);
            self.show_volume_snapshots(&open, head).await?;
        }
        Ok(Empty {})
    }

    /// `zfs rollback`.
    pub(crate) async fn zfs_rollback(&self, call: ZfsRollback) -> Result<Empty, Failure> {
        let open = self.pool_of(&call.snapshot)?;
        let _admin = open.admin.lock().await;
        let doing = format!("cannot rollback to '{}'", call.snapshot);
        let failed = |error: DatasetError| from_dataset(&doing, &error);
        let Some((head, _)) = call.snapshot.split_once('@') else {
            return Err(Failure::new(
                FailureKind::Invalid,
                format!("{doing}: it is not a snapshot; give FILESYSTEM@SNAPSHOT"),
            ));
        };
        let dsl = open.pool.dsl();
        let target = dsl.lookup(&call.snapshot).await.map_err(failed)?;
        let listed = dsl.list(head, &everything(Some(1))).await.map_err(failed)?;
        let newer: Vec<String> = listed
            .iter()
            .filter(|info| {
                info.name.split_once('@').is_some_and(|(of, _)| of == head)
                    && (info.createtxg, info.object) > (target.createtxg, target.object)
            })
            .map(|info| info.name.clone())
            .collect();
        if !newer.is_empty() && !call.destroy_newer && !call.destroy_clones {
            let message = format!(
                "{doing}: more recent snapshots or bookmarks exist\nuse '-r' to force deletion of the following snapshots and bookmarks:\n{}",
                newer.join("\n")
            );
            return Err(Failure::new(FailureKind::Busy, message));
        }
        if call.destroy_clones {
            let mut doomed: Vec<DatasetInfo> = listed
                .iter()
                .filter(|info| newer.contains(&info.name))
                .cloned()
                .collect();
            let destroy = ZfsDestroy {
                target: call.snapshot.clone(),
                dependents: true,
                force: call.force,
                ..ZfsDestroy::default()
            };
            self.add_clones(&open, &destroy, &mut doomed).await?;
            for info in doomed
                .iter()
                .rev()
                .filter(|info| !newer.contains(&info.name))
            {
                self.close_volume(&info.name, mode(call.force)).await?;
                self.unmount(&info.name, mode(call.force)).await?;
                dsl.destroy(&info.name).await.map_err(failed)?;
            }
        }
        // The head is closed while its content is replaced, then put back where it was.
        let mountpoint = self.mounts.mountpoint(head);
        let was_volume = self.volumes.get(head).is_some();
        self.close_volume(head, mode(call.force)).await?;
        self.unmount(head, mode(call.force)).await?;
        let outcome = async {
            if !newer.is_empty() {
                dsl.destroy_snapshots(&newer, false).await?;
            }
            dsl.rollback(head, Some(&call.snapshot)).await.map(|_| ())
        }
        .await;
        let back = self.put_back(&open, head, mountpoint, was_volume).await;
        outcome.map_err(failed)?;
        self.log_command(&open.pool, &call.command).await;
        back.map(|()| Empty {})
    }

    async fn put_back(
        &self,
        open: &OpenPool,
        name: &str,
        mountpoint: Option<PathBuf>,
        is_volume: bool,
    ) -> Result<(), Failure> {
        if let Some(path) = mountpoint {
            self.mount_at(open, name, &path, true, &[]).await?;
        }
        if is_volume {
            self.open_volume(open, name).await?;
        }
        Ok(())
    }

    /// `zfs set`.
    pub(crate) async fn zfs_set(&self, call: ZfsSet) -> Result<Empty, Failure> {
        let changes: Vec<(String, PropertyChange)> = call
            .properties
            .iter()
            .map(|(name, value)| (name.clone(), PropertyChange::Set(value.clone())))
            .collect();
        for (name, value) in &call.properties {
            if name == ISCSI_PROPERTY {
                check_share(value)?;
            }
        }
        for name in &call.names {
            self.change_properties(name, &changes, call.no_mount, &call.command)
                .await?;
        }
        Ok(Empty {})
    }

    /// `zfs inherit`.
    pub(crate) async fn zfs_inherit(&self, call: ZfsInherit) -> Result<Empty, Failure> {
        for name in &call.names {
            let names = if call.recursive {
                let open = self.pool_of(name)?;
                let listed = open
                    .pool
                    .dsl()
                    .list(name, &ListOptions::default())
                    .await
                    .map_err(|error| from_dataset(&format!("cannot open '{name}'"), &error))?;
                listed.into_iter().map(|info| info.name).collect()
            } else {
                vec![name.clone()]
            };
            for name in names {
                self.change_properties(
                    &name,
                    &[(call.property.clone(), PropertyChange::Inherit)],
                    false,
                    &call.command,
                )
                .await?;
            }
        }
        Ok(Empty {})
    }

    /// Changes properties, then does what they mean for mounts and shares.
    async fn change_properties(
        &self,
        name: &str,
        changes: &[(String, PropertyChange)],
        no_mount: bool,
        command: &str,
    ) -> Result<(), Failure> {
        let open = self.pool_of(name)?;
        let _admin = open.admin.lock().await;
        let doing = format!("cannot set property for '{name}'");
        let failed = |error: DatasetError| from_dataset(&doing, &error);
        let changes_any = |names: &[&str]| {
            changes
                .iter()
                .any(|(changed, _)| names.contains(&changed.as_str()))
        };
        let is_filesystem =
            open.pool.dsl().lookup(name).await.map_err(failed)?.kind == DatasetKind::Filesystem;
        let moves = is_filesystem && !no_mount && changes_any(&["mountpoint", "canmount"]);
        let mut moved = Vec::new();
        let before = if moves {
            Some(self.place(&open, name).await?)
        } else {
            None
        };
        if moves {
            for mounted in self.mounts.below(name).into_iter().rev() {
                self.unmount(&mounted, UnmountMode::Clean).await?;
                moved.push(mounted);
            }
        }
        let mut rest = Vec::new();
        let mut new_size_bytes = None;
        for (property, change) in changes {
            match (property.as_str(), change) {
                ("volsize", PropertyChange::Set(text)) => {
                    let size = dataset::props::parse_size(text).map_err(|error| {
                        Failure::new(FailureKind::Invalid, format!("{doing}: {error}"))
                    })?;
                    new_size_bytes = Some(size);
                }
                _ => rest.push((property.clone(), change.clone())),
            }
        }
        let outcome = async {
            if let Some(size_bytes) = new_size_bytes {
                let volume = self.volumes.get(name).ok_or_else(|| {
                    Failure::new(
                        FailureKind::Invalid,
                        format!("{doing}: '{name}' is not an open volume"),
                    )
                })?;
                volume.resize(size_bytes).await.map_err(|error| {
                    Failure::new(FailureKind::Invalid, format!("{doing}: {error}"))
                })?;
            }
            if rest.is_empty() {
                Ok(())
            } else {
                open.pool
                    .dsl()
                    .set_properties(name, &rest)
                    .await
                    .map_err(failed)
            }
        }
        .await;
        // Whatever was unmounted comes back where it belongs now; a filesystem that had no place and now has one is mounted.
        let had_no_place =
            matches!(before, Some((Place::Nowhere(why), _)) if why != "canmount=off");
        if moves && outcome.is_ok() && had_no_place && !moved.iter().any(|mounted| mounted == name)
        {
            moved.push(name.to_owned());
        }
        moved.sort();
        let mut remount = Ok(());
        for mounted in moved {
            if let Err(failure) = self.mount_created(&open, &mounted).await {
                remount = Err(Failure::new(
                    failure.kind,
                    format!("property set, but {failure}"),
                ));
            }
        }
        outcome?;
        if changes_any(&[ISCSI_PROPERTY]) {
            let listed = open
                .pool
                .dsl()
                .list(
                    name,
                    &ListOptions {
                        filesystems: false,
                        ..ListOptions::default()
                    },
                )
                .await
                .map_err(failed)?;
            for info in listed {
                self.share_volume(&open, &info.name).await?;
            }
        }
        if changes_any(&["snapdev"]) {
            self.show_snapshots_below(&open, name).await?;
        }
        self.log_command(&open.pool, command).await;
        remount
    }

    /// `zfs rename`.
    pub(crate) async fn zfs_rename(&self, call: ZfsRename) -> Result<Empty, Failure> {
        let open = self.pool_of(&call.from)?;
        let _admin = open.admin.lock().await;
        let doing = format!("cannot rename '{}'", call.from);
        let failed = |error: DatasetError| from_dataset(&doing, &error);
        let dsl = open.pool.dsl();
        if let Some((head, old)) = call.from.split_once('@') {
            let new = call
                .to
                .split_once('@')
                .map_or(call.to.as_str(), |(_, new)| new);
            self.hide_snapshots_below(head, mode(call.force)).await?;
            let outcome = if call.recursive {
                dsl.rename_snapshots(head, old, new).await
            } else {
                dsl.rename(&call.from, &format!("{head}@{new}")).await
            };
            let shown = self.show_snapshots_below(&open, head).await;
            outcome.map_err(failed)?;
            shown?;
            self.log_command(&open.pool, &call.command).await;
            return Ok(Empty {});
        }
        if call.parents {
            let parts: Vec<&str> = call.to.split('/').collect();
            for end in 1..parts.len() {
                let parent = parts[..end].join("/");
                if dsl.lookup(&parent).await.is_err() {
                    dsl.create_dataset(&parent, &[], Arc::new(ZplInit::new()))
                        .await
                        .map_err(failed)?;
                    self.mount_created(&open, &parent).await?;
                }
            }
        }
        let listed = dsl
            .list(&call.from, &ListOptions::default())
            .await
            .map_err(failed)?;
        let mut back = Vec::new();
        for info in listed.iter().rev() {
            let was_mounted = self.mounts.mountpoint(&info.name).is_some();
            let was_volume = self.volumes.get(&info.name).is_some();
            if was_mounted || was_volume {
                back.push((info.name.clone(), was_volume));
            }
            self.close_volume(&info.name, mode(call.force)).await?;
            self.unmount(&info.name, mode(call.force)).await?;
        }
        let outcome = dsl.rename(&call.from, &call.to).await;
        let now = if outcome.is_ok() {
            &call.to
        } else {
            &call.from
        };
        let mut put_back = Ok(());
        for (name, is_volume) in back.iter().rev() {
            let name = format!("{now}{}", &name[call.from.len()..]);
            let done = if *is_volume {
                self.open_volume(&open, &name).await
            } else {
                self.mount_created(&open, &name).await
            };
            if let Err(failure) = done {
                put_back = Err(failure);
            }
        }
        outcome.map_err(failed)?;
        self.log_command(&open.pool, &call.command).await;
        put_back.map(|()| Empty {})
    }

    /// `zfs mount`.
    pub(crate) async fn zfs_mount(&self, call: ZfsMount) -> Result<Empty, Failure> {
        let Some(name) = &call.name else {
            let mut failures = Vec::new();
            for open in self.pools() {
                let _admin = open.admin.lock().await;
                failures.extend(self.mount_all(&open).await);
            }
            return if failures.is_empty() {
                Ok(Empty {})
            } else {
                Err(Failure::new(FailureKind::Other, failures.join("\n")))
            };
        };
        let open = self.pool_of(name)?;
        let _admin = open.admin.lock().await;
        if self.mounts.mountpoint(name).is_some() {
            return Err(Failure::new(
                FailureKind::Busy,
                format!("cannot mount '{name}': filesystem already mounted"),
            ));
        }
        match self.place(&open, name).await? {
            (Place::At(path), _) => self
                .mount_at(&open, name, &path, call.overlay, &call.options)
                .await
                .map(|()| Empty {}),
            (Place::Nowhere("mountpoint=legacy"), _) => Err(Failure::new(
                FailureKind::Invalid,
                format!(
                    "cannot mount '{name}': legacy mountpoint\nset 'mountpoint' to a path to mount it"
                ),
            )),
            (Place::Nowhere("mountpoint=none"), _) => Err(Failure::new(
                FailureKind::Invalid,
                format!("cannot mount '{name}': no mountpoint set"),
            )),
            (Place::Nowhere(why), _) => Err(Failure::new(
                FailureKind::Invalid,
                format!("cannot mount '{name}': '{why}'"),
            )),
        }
    }

    /// `zfs unmount`.
    pub(crate) async fn zfs_unmount(&self, call: ZfsUnmount) -> Result<Empty, Failure> {
        if call.all {
            for open in self.pools() {
                let _admin = open.admin.lock().await;
                self.unmount_below(&open.pool.name(), mode(call.force))
                    .await?;
            }
            return Ok(Empty {});
        }
        let word = call.name.unwrap_or_default();
        let name = if word.starts_with('/') {
            self.mounted_dataset_at(&word).unwrap_or(word)
        } else {
            word
        };
        if self.mounts.mountpoint(&name).is_none() {
            return Err(Failure::new(
                FailureKind::NotFound,
                format!("cannot unmount '{name}': not currently mounted"),
            ));
        }
        let open = self.pool_of(&name)?;
        let _admin = open.admin.lock().await;
        self.unmount_below(&name, mode(call.force)).await?;
        Ok(Empty {})
    }
}

/// Snapshots that a word after `@` means: one, or `first%last` in the order of creation, either end open.
fn snapshot_range<'a>(of_head: &[&'a DatasetInfo], word: &str) -> Vec<&'a str> {
    let short = |info: &'a DatasetInfo| info.name.split_once('@').map_or("", |(_, name)| name);
    let Some((first, last)) = word.split_once('%') else {
        return of_head
            .iter()
            .filter(|info| short(info) == word)
            .map(|info| info.name.as_str())
            .collect();
    };
    let mut ordered: Vec<&'a DatasetInfo> = of_head.to_vec();
    ordered.sort_by_key(|info| (info.createtxg, info.object));
    let begin = if first.is_empty() {
        Some(0)
    } else {
        ordered.iter().position(|info| short(info) == first)
    };
    let end = if last.is_empty() {
        ordered.len().checked_sub(1)
    } else {
        ordered.iter().position(|info| short(info) == last)
    };
    match (begin, end) {
        (Some(begin), Some(end)) if begin <= end => ordered[begin..=end]
            .iter()
            .map(|info| info.name.as_str())
            .collect(),
        _ => Vec::new(),
    }
}
