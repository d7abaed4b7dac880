//! What the `zpool` command line asks for.

use std::os::unix::fs::FileTypeExt;
use std::sync::Arc;

use api::{
    Empty, Failure, FailureKind, VdevSpec as ApiVdev, ZpoolClear, ZpoolCreate, ZpoolCreateReply,
    ZpoolDestroy, ZpoolExport, ZpoolHistory, ZpoolHistoryReply, ZpoolList, ZpoolListReply,
    ZpoolSet, ZpoolStatus, ZpoolStatusReply, ZpoolSync,
};
use engine::{CreateSpec, FeatureChoice, LeafSpec, Pool, VdevClass, VdevLayout, VdevSpec};
use filesystem::ZplInit;
use serve_fuse::UnmountMode;

use crate::error::from_engine;
use crate::reports;
use crate::service::{OpenPool, Service};

fn mode(force: bool) -> UnmountMode {
    if force {
        UnmountMode::Force
    } else {
        UnmountMode::Clean
    }
}

fn class(word: &str) -> Result<VdevClass, Failure> {
    Ok(match word {
        "" => VdevClass::Normal,
        "log" => VdevClass::Log,
        "special" => VdevClass::Special,
        "dedup" => VdevClass::Dedup,
        "spare" => VdevClass::Spare,
        "cache" => VdevClass::Cache,
        other => {
            return Err(Failure::new(
                FailureKind::Invalid,
                format!("invalid vdev specification: unknown class '{other}'"),
            ));
        }
    })
}

fn leaf(path: &str) -> Result<LeafSpec, Failure> {
    let metadata = std::fs::metadata(path).map_err(|error| {
        Failure::new(
            FailureKind::NotFound,
            format!("cannot open '{path}': {error}; give an existing file or block device"),
        )
    })?;
    let kind = metadata.file_type();
    if !kind.is_file() && !kind.is_block_device() {
        return Err(Failure::new(
            FailureKind::Invalid,
            format!("cannot use '{path}': must be a block device or regular file"),
        ));
    }
    Ok(LeafSpec {
        path: path.to_owned(),
        is_file: kind.is_file(),
    })
}

fn layout(vdev: &ApiVdev) -> Result<VdevSpec, Failure> {
    let leaves = || {
        vdev.children
            .iter()
            .map(|child| leaf(&child.path))
            .collect::<Result<Vec<_>, _>>()
    };
    let layout = match vdev.kind.as_str() {
        "mirror" => VdevLayout::Mirror(leaves()?),
        "raidz1" => VdevLayout::Raidz {
            parity: 1,
            leaves: leaves()?,
        },
        "raidz2" => VdevLayout::Raidz {
            parity: 2,
            leaves: leaves()?,
        },
        "raidz3" => VdevLayout::Raidz {
            parity: 3,
            leaves: leaves()?,
        },
        "leaf" | "disk" | "file" => VdevLayout::Leaf(leaf(&vdev.path)?),
        other => {
            return Err(Failure::new(
                FailureKind::Invalid,
                format!("invalid vdev specification: unknown vdev type '{other}'"),
            ));
        }
    };
    Ok(VdevSpec {
        layout,
        class: class(&vdev.class)?,
    })
}

/// Mixed redundancy is refused without `-f` (check_replication, cmd/zpool/zpool_vdev.c).
fn check_replication(vdevs: &[VdevSpec]) -> Result<(), Failure> {
    let describe = |vdev: &VdevSpec| match &vdev.layout {
        VdevLayout::Leaf(_) => (0, "disk or file", 1),
        VdevLayout::Mirror(leaves) => (leaves.len() - 1, "mirror", leaves.len()),
        VdevLayout::Raidz { parity, leaves } => (usize::from(*parity), "raidz", leaves.len()),
    };
    let mut data = vdevs
        .iter()
        .filter(|vdev| vdev.class == VdevClass::Normal)
        .map(describe);
    let Some(first) = data.next() else {
        return Ok(());
    };
    for other in data {
        let why = if other.1 != first.1 {
            format!("both {} and {} vdevs are present", first.1, other.1)
        } else if other.0 != first.0 {
            format!(
                "both {}-parity and {}-parity {} vdevs are present",
                first.0, other.0, first.1
            )
        } else if other.2 != first.2 {
            format!(
                "both {}-way and {}-way {} vdevs are present",
                first.2, other.2, first.1
            )
        } else {
            continue;
        };
        return Err(Failure::new(
            FailureKind::Invalid,
            format!(
                "invalid vdev specification\nuse '-f' to override the following errors:\nmismatched replication level: {why}"
            ),
        ));
    }
    Ok(())
}

pub(crate) fn split_properties(properties: Vec<(String, String)>) -> (Vec<(String, String)>, bool) {
    let uncached = properties
        .iter()
        .any(|(name, value)| name == "cachefile" && value == "none");
    (
        properties
            .into_iter()
            .filter(|(name, _)| name != "cachefile")
            .collect(),
        uncached,
    )
}

impl Service {
    /// `zpool create`.
    pub(crate) async fn zpool_create(
        &self,
        call: ZpoolCreate,
    ) -> Result<ZpoolCreateReply, Failure> {
        let doing = format!("cannot create '{}'", call.name);
        if self.pool(&call.name).is_ok() {
            return Err(Failure::new(
                FailureKind::Exists,
                format!("{doing}: pool already exists"),
            ));
        }
        let vdevs = call
            .vdevs
            .iter()
            .map(layout)
            .collect::<Result<Vec<_>, _>>()?;
        if !call.force {
            check_replication(&vdevs)?;
        }
        self.refuse_open_devices(&doing, &vdevs)?;
        if call.dry_run {
            return Ok(ZpoolCreateReply {
                layout: call.vdevs,
                warnings: Vec::new(),
            });
        }
        let (properties, uncached) = split_properties(call.properties);
        let cached = !uncached && call.altroot.is_none();
        let spec = CreateSpec {
            name: call.name.clone(),
            vdevs,
            properties,
            features: if call.no_features {
                FeatureChoice::None
            } else {
                FeatureChoice::All
            },
            root_properties: call.filesystem_properties,
            root_init: Arc::new(ZplInit::new()),
            altroot: call.altroot,
            force: call.force,
            host: self.host.clone(),
        };
        let pool = Pool::create(&self.world, spec)
            .await
            .map_err(|error| from_engine(&doing, &error))?;
        self.log_command(&pool, &call.command).await;
        let warnings = self.adopt(pool, cached, true).await;
        Ok(ZpoolCreateReply {
            layout: Vec::new(),
            warnings,
        })
    }

    /// A device that belongs to a pool that is open here cannot be used again, not even with force.
    fn refuse_open_devices(&self, doing: &str, vdevs: &[VdevSpec]) -> Result<(), Failure> {
        for open in self.pools() {
            let used = reports::device_paths(&open.pool.status());
            for leaf in vdevs.iter().flat_map(|vdev| vdev.layout.leaves()) {
                if used.contains(&leaf.path) {
                    let message = format!(
                        "{doing}: {} is part of active pool '{}'",
                        leaf.path,
                        open.pool.name()
                    );
                    return Err(Failure::new(FailureKind::Busy, message));
                }
            }
        }
        Ok(())
    }

    pub(crate) async fn log_command(&self, pool: &Pool, command: &str) {
        if pool.is_read_only() || command.is_empty() {
            return;
        }
        if let Err(error) = pool.log_history(command).await {
            tracing::warn!(
                "the history of '{}' could not be written: {error}",
                pool.name()
            );
        }
    }

    /// `zpool destroy`.
    pub(crate) async fn zpool_destroy(&self, call: ZpoolDestroy) -> Result<Empty, Failure> {
        let open = self.pool(&call.name)?;
        let doing = format!("cannot destroy '{}'", call.name);
        let work = async {
            let _admin = open.admin.lock().await;
            self.release_pool(&open, mode(call.force)).await?;
            let destroyed = open.pool.destroy(call.force).await;
            destroyed.map_err(|error| from_engine(&doing, &error))
        };
        self.leaving(&open, &doing, call.force, work).await?;
        self.forget(&call.name, false);
        Ok(Empty {})
    }

    /// `zpool export`.
    pub(crate) async fn zpool_export(&self, call: ZpoolExport) -> Result<Empty, Failure> {
        let pools = if call.all {
            self.pools()
        } else {
            self.pools_named(&call.names)?
        };
        for open in pools {
            let name = open.pool.name();
            let doing = format!("cannot export '{name}'");
            let work = async {
                let _admin = open.admin.lock().await;
                if let Err(failure) = self.release_pool(&open, mode(call.force)).await {
                    // What was unmounted is mounted again: an export that fails changes nothing.
                    let _ = self.mount_all(&open).await;
                    let _ = self.open_volumes(&open).await;
                    let message = format!("{doing}: {failure}");
                    return Err(Failure::new(failure.kind, message));
                }
                self.replay_clones(&open).await;
                let exported = open.pool.export(call.force).await;
                exported.map_err(|error| from_engine(&doing, &error))
            };
            self.leaving(&open, &doing, call.force, work).await?;
            self.forget(&name, false);
        }
        Ok(Empty {})
    }

    /// `zpool list` and `zpool get`.
    pub(crate) fn zpool_list(&self, call: &ZpoolList) -> Result<ZpoolListReply, Failure> {
        let pools = self.pools_named(&call.names)?;
        Ok(ZpoolListReply {
            pools: pools.iter().map(|open| reports::pool(&open.pool)).collect(),
        })
    }

    /// `zpool status`.
    pub(crate) async fn zpool_status(
        &self,
        call: &ZpoolStatus,
    ) -> Result<ZpoolStatusReply, Failure> {
        let mut reply = ZpoolStatusReply::default();
        for open in self.pools_named(&call.names)? {
            let mut report = reports::pool_status(&open.pool);
            if call.verbose {
                report.damaged = self.damaged_names(&open).await;
            }
            reply.pools.push(report);
        }
        Ok(reply)
    }

    /// `zpool set`.
    pub(crate) async fn zpool_set(&self, call: ZpoolSet) -> Result<Empty, Failure> {
        let open = self.pool(&call.name)?;
        let _admin = open.admin.lock().await;
        let doing = format!("cannot set property for '{}'", call.name);
        open.pool
            .set_prop(&call.property, &call.value)
            .await
            .map_err(|error| from_engine(&doing, &error))?;
        self.log_command(&open.pool, &call.command).await;
        Ok(Empty {})
    }

    /// `zpool history`.
    pub(crate) async fn zpool_history(
        &self,
        call: &ZpoolHistory,
    ) -> Result<ZpoolHistoryReply, Failure> {
        let mut reply = ZpoolHistoryReply::default();
        for open in self.pools_named(&call.names)? {
            let name = open.pool.name();
            let records = open.pool.history().await.map_err(|error| {
                from_engine(&format!("cannot get history for '{name}'"), &error)
            })?;
            reply
                .pools
                .push((name, records.into_iter().map(reports::history).collect()));
        }
        Ok(reply)
    }

    /// `zpool sync`.
    pub(crate) async fn zpool_sync(&self, call: &ZpoolSync) -> Result<Empty, Failure> {
        for open in self.pools_named(&call.names)? {
            open.pool.sync().await.map_err(|error| {
                from_engine(&format!("cannot sync '{}'", open.pool.name()), &error)
            })?;
        }
        Ok(Empty {})
    }

    /// `zpool clear`.
    pub(crate) async fn zpool_clear(&self, call: &ZpoolClear) -> Result<Empty, Failure> {
        let open: Arc<OpenPool> = self.pool(&call.name)?;
        open.pool
            .clear(call.vdev.as_deref())
            .await
            .map_err(|error| {
                from_engine(&format!("cannot clear errors for '{}'", call.name), &error)
            })?;
        Ok(Empty {})
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mirror(paths: &[&str]) -> VdevSpec {
        let leaves = paths
            .iter()
            .map(|path| LeafSpec {
                path: (*path).to_owned(),
                is_file: true,
            })
            .collect();
        VdevSpec {
            layout: VdevLayout::Mirror(leaves),
            class: VdevClass::Normal,
        }
    }

    #[test]
    fn uneven_redundancy_needs_force() {
        assert!(check_replication(&[mirror(&["/a", "/b"]), mirror(&["/c", "/d"])]).is_ok());
        let error =
            check_replication(&[mirror(&["/a", "/b"]), mirror(&["/c", "/d", "/e"])]).unwrap_err();
        assert!(
            error.message.contains("mismatched replication level"),
            "{error}"
        );
        let single = VdevSpec {
            layout: VdevLayout::Leaf(LeafSpec {
                path: "/f".into(),
                is_file: true,
            }),
            class: VdevClass::Normal,
        };
        assert!(check_replication(&[mirror(&["/a", "/b"]), single]).is_err());
    }
}
