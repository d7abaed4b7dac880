//! `zfs set` and `zfs inherit`: properties, and what they mean for mounts and volumes that are open.

use api::{Empty, Failure, FailureKind, ZfsInherit, ZfsSet};
use dataset::{DatasetError, DatasetKind, ListOptions, PropertyChange};
use serve_fuse::UnmountMode;

use crate::error::from_dataset;
use crate::mounts::Place;
use crate::service::Service;
use crate::volumes::{ISCSI_PROPERTY, check_share};

impl Service {
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
}
