//! `zfs set` and `zfs inherit`: properties, and what they mean for mounts and volumes that are open.

use api::{Empty, Failure, FailureKind, ZfsInherit, ZfsSet};
use dataset::{DatasetError, DatasetKind, ListOptions, PropertyChange};
use serve_fuse::UnmountMode;

use crate::create::volume_reservation;
use crate::error::from_dataset;
use crate::mounts::Place;
use crate::owners::OwnedQuota;
use crate::service::{OpenPool, Service};
use crate::volumes::{ISCSI_PROPERTY, check_share};

/// Properties that the kernel's mount has a part in.
const ON_MOUNTS: [&str; 6] = [
    "readonly", "devices", "exec", "setuid", "snapdir", "acltype",
];

/// What is to be reserved as the size of a volume changes.
#[derive(Debug, Default)]
struct VolumeChange {
    reserve_before: Option<u64>,
    reserve_after: Option<u64>,
}

impl Service {
    /// What `refreservation=auto` and a new size mean for what a volume reserves: one that reserved
    /// all of its size goes on doing so (`zfs_fix_auto_resv`, `zfs_add_synthetic_resv`,
    /// lib/libzfs/libzfs_dataset.c).
    async fn plan_volume_change(
        &self,
        open: &OpenPool,
        name: &str,
        new_size_bytes: Option<u64>,
        wants_auto: bool,
        others: &[(String, PropertyChange)],
    ) -> Result<VolumeChange, Failure> {
        let mut change = VolumeChange::default();
        if new_size_bytes.is_none() && !wants_auto {
            return Ok(change);
        }
        let doing = format!("cannot set property for '{name}'");
        let dsl = open.pool.dsl();
        let kind = dsl
            .lookup(name)
            .await
            .map_err(|error| from_dataset(&doing, &error))?
            .kind;
        if kind != DatasetKind::Volume {
            let message = match wants_auto {
                true => format!("{doing}: 'refreservation=auto' only allowed on volumes"),
                false => format!("{doing}: 'volsize' does not apply to datasets of this type"),
            };
            return Err(Failure::new(FailureKind::Invalid, message));
        }
        let mut numbers = [0; 4];
        let asked = ["volsize", "volblocksize", "copies", "refreservation"];
        for (number, property) in numbers.iter_mut().zip(asked) {
            let setting = dsl.property(name, property).await;
            let setting = setting.map_err(|error| from_dataset(&doing, &error))?;
            *number = setting.value.number().unwrap_or(0);
        }
        let [old_bytes, block_bytes, copies, reserved] = numbers;
        let block_bytes = block_bytes.max(512);
        let new_bytes = new_size_bytes.unwrap_or(old_bytes);
        let set_otherwise = others.iter().any(|(other, _)| other == "refreservation");
        let was_full = reserved == volume_reservation(open, old_bytes, block_bytes, copies.max(1));
        if wants_auto || was_full && !set_otherwise {
            let bytes = volume_reservation(open, new_bytes, block_bytes, copies.max(1));
            if new_bytes >= old_bytes {
                change.reserve_before = Some(bytes);
            } else {
                change.reserve_after = Some(bytes);
            }
        }
        Ok(change)
    }

    async fn reserve(&self, open: &OpenPool, name: &str, bytes: u64) -> Result<(), Failure> {
        let change = PropertyChange::Set(bytes.to_string());
        open.pool
            .dsl()
            .set_properties(name, &[("refreservation".into(), change)])
            .await
            .map_err(|error| from_dataset(&format!("cannot set property for '{name}'"), &error))
    }

    /// A filesystem's version can be set to what it is, and to nothing else.
    async fn check_version(&self, open: &OpenPool, name: &str, typed: &str) -> Result<(), Failure> {
        let doing = format!("cannot set property for '{name}'");
        let setting = open.pool.dsl().property(name, "version").await;
        let is = setting
            .map_err(|error| from_dataset(&doing, &error))?
            .value
            .number()
            .unwrap_or(0);
        let wanted = match typed {
            "current" => 5,
            other => other.parse().unwrap_or(0),
        };
        if wanted == is {
            return Ok(());
        }
        Err(Failure::new(
            FailureKind::Unsupported,
            format!(
                "{doing}: 'version={typed}' has no effect here: filesystems keep the version that they were made with ({is}); copy the files into a new one"
            ),
        ))
    }

    /// `zfs set`.
    pub(crate) async fn zfs_set(&self, call: ZfsSet) -> Result<Empty, Failure> {
        let (quotas, properties) = OwnedQuota::split("cannot set property", &call.properties)?;
        let changes: Vec<(String, PropertyChange)> = properties
            .into_iter()
            .map(|(name, value)| (name, PropertyChange::Set(value)))
            .collect();
        for (name, value) in &call.properties {
            if name == ISCSI_PROPERTY {
                check_share(value)?;
            }
        }
        for name in &call.names {
            if !changes.is_empty() || quotas.is_empty() {
                self.change_properties(name, &changes, call.no_mount, &call.command)
                    .await?;
            }
            if !quotas.is_empty() {
                self.set_quotas_of(name, &quotas).await?;
                if changes.is_empty() {
                    let open = self.pool_of(name)?;
                    self.log_command(&open.pool, &call.command).await;
                }
            }
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
                let change = match call.received {
                    true => PropertyChange::Received,
                    false => PropertyChange::Inherit,
                };
                self.change_properties(
                    &name,
                    &[(call.property.clone(), change)],
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
            let mut names = self.mounts.below(name);
            names.reverse();
            let taken = self.take_away(&open, names, UnmountMode::Clean).await?;
            moved.extend(taken.into_iter().map(|one| one.name));
        }
        let mut rest = Vec::new();
        let mut new_size_bytes = None;
        let mut wants_auto = false;
        for (property, change) in changes {
            match (property.as_str(), change) {
                ("volsize", PropertyChange::Set(text)) => {
                    let size = dataset::props::parse_size(text).map_err(|error| {
                        Failure::new(FailureKind::Invalid, format!("{doing}: {error}"))
                    })?;
                    new_size_bytes = Some(size);
                }
                ("refreservation", PropertyChange::Set(text)) if text == "auto" => {
                    wants_auto = true;
                }
                ("version", PropertyChange::Set(text)) => {
                    self.check_version(&open, name, text).await?;
                }
                _ => rest.push((property.clone(), change.clone())),
            }
        }
        let volume_change = self
            .plan_volume_change(&open, name, new_size_bytes, wants_auto, &rest)
            .await?;
        let outcome = async {
            // What a bigger volume needs is reserved before it is bigger; of a smaller one it is let go after.
            if let Some(bytes) = volume_change.reserve_before {
                self.reserve(&open, name, bytes).await?;
            }
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
                // What is written beyond the old end, and flushed, must find room there after a crash too
                // (`zvol_update_volsize` waits likewise).
                open.pool
                    .sync()
                    .await
                    .map_err(|error| Failure::new(FailureKind::Io, format!("{doing}: {error}")))?;
                self.show_new_size(name).await;
            }
            if let Some(bytes) = volume_change.reserve_after {
                self.reserve(&open, name, bytes).await?;
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
        if is_filesystem && changes_any(&ON_MOUNTS) {
            self.refresh_mounts(&open, name, changes_any(&["acltype"]))
                .await?;
        }
        if changes_any(&["volmode"]) {
            self.show_volumes_below(&open, name).await?;
        }
        if changes_any(&["snapdev"]) {
            self.show_snapshots_below(&open, name).await?;
        }
        self.log_command(&open.pool, command).await;
        remount
    }
}
