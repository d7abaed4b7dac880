//! What the `zpool` command line asks for.

use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::sync::Arc;

use api::{
    DraidWord, Empty, Failure, FailureKind, VdevSpec as ApiVdev, ZpoolClear, ZpoolCreate,
    ZpoolCreateReply, ZpoolDestroy, ZpoolExport, ZpoolHistory, ZpoolHistoryReply, ZpoolList,
    ZpoolListReply, ZpoolSet, ZpoolStatus, ZpoolStatusReply, ZpoolSync,
};
use engine::{
    CreateSpec, EngineError, FeatureChoice, LeafSpec, Pool, VdevClass, VdevLayout, VdevSpec,
};
use filesystem::ZplInit;
use serve_fuse::UnmountMode;

use crate::compatibility::Compatibility;
use crate::error::from_engine;
use crate::replication;
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

pub(crate) fn layout(vdev: &ApiVdev) -> Result<VdevSpec, Failure> {
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
            let shape = DraidWord::parse(other, vdev.children.len())
                .unwrap_or_else(|| Err(format!("unknown vdev type '{other}'")))
                .map_err(|why| {
                    Failure::new(
                        FailureKind::Invalid,
                        format!("invalid vdev specification: {why}"),
                    )
                })?;
            VdevLayout::Draid {
                parity: shape.parity,
                data: shape.data,
                spares: shape.spares,
                leaves: leaves()?,
            }
        }
    };
    Ok(VdevSpec {
        layout,
        class: class(&vdev.class)?,
    })
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
        let named = call.properties.iter().find(|(name, _)| name == "tname");
        let name = named.map_or(&call.name, |(_, temporary)| temporary);
        if self.pool(name).is_ok() {
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
            replication::check(&[], &vdevs)?;
        }
        self.refuse_open_devices(&vdevs, call.force)?;
        if call.dry_run {
            return Ok(ZpoolCreateReply {
                layout: call.vdevs,
                warnings: Vec::new(),
            });
        }
        let (mut properties, uncached) = split_properties(call.properties);
        let cached = !uncached && call.altroot.is_none();
        let mut features = if call.no_features {
            FeatureChoice::None
        } else {
            FeatureChoice::All
        };
        let compatible = properties
            .iter()
            .find(|(name, _)| name == "compatibility")
            .map(|(_, value)| Compatibility::load(value))
            .transpose()?;
        if let Some(compatible) = compatible.filter(|_| !call.no_features) {
            features = FeatureChoice::None;
            let allowed = compatible.choose().map(|name| format!("feature@{name}"));
            // What was asked for by name comes later, and counts.
            let allowed = allowed.map(|name| (name, "enabled".to_owned()));
            properties = allowed.chain(properties).collect();
        }
        let spec = CreateSpec {
            name: call.name.clone(),
            vdevs,
            properties,
            features,
            root_properties: call.filesystem_properties,
            root_init: Arc::new(ZplInit::new()),
            altroot: call.altroot,
            force: call.force,
            host: self.host.clone(),
        };
        let pool = Pool::create(&self.world, spec)
            .await
            .map_err(|error| vdev_failure(&doing, &error))?;
        self.log_command(&pool, &call.command).await;
        let warnings = self.adopt(pool, cached, true).await;
        Ok(ZpoolCreateReply {
            layout: Vec::new(),
            warnings,
        })
    }

    /// A device that belongs to a pool that is open here cannot be used again, not even with force, whatever name it
    /// goes by.
    pub(crate) fn refuse_open_devices(
        &self,
        vdevs: &[VdevSpec],
        force: bool,
    ) -> Result<(), Failure> {
        for open in self.pools() {
            let used = reports::device_paths(&open.pool.status());
            let is_used =
                |leaf: &LeafSpec| used.iter().any(|path| is_same_device(path, &leaf.path));
            let mut leaves = vdevs.iter().flat_map(|vdev| vdev.layout.leaves());
            if let Some(leaf) = leaves.find(|leaf| is_used(leaf)) {
                let why = format!(
                    "{} is part of active pool '{}'",
                    leaf.path,
                    open.pool.name()
                );
                return Err(in_use(&why, force));
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
            pools: pools
                .iter()
                .map(|open| {
                    let mut report = reports::pool(&open.pool);
                    if call.io {
                        reports::add_io(&mut report.tree, &open.pool);
                    }
                    report
                })
                .collect(),
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

/// What `vdev_error` (cmd/zpool/zpool_vdev.c) prints of a device or layout.
pub(crate) fn in_use(why: &str, force: bool) -> Failure {
    let head = if force {
        "the following errors must be manually repaired:"
    } else {
        "use '-f' to override the following errors:"
    };
    let message = format!("invalid vdev specification\n{head}\n{why}");
    Failure::new(FailureKind::Busy, message)
}

/// A refused `zpool create` or `zpool add`.
pub(crate) fn vdev_failure(doing: &str, error: &EngineError) -> Failure {
    match error {
        EngineError::DeviceInUse { path, why } => in_use(&format!("{path} {why}"), false),
        _ => from_engine(doing, error),
    }
}

/// Whether two paths lead to the same file or block device.
pub(crate) fn is_same_device(a: &str, b: &str) -> bool {
    let identity = |path: &str| {
        let metadata = std::fs::metadata(path).ok()?;
        Some(if metadata.file_type().is_block_device() {
            (true, metadata.rdev(), 0)
        } else {
            (false, metadata.dev(), metadata.ino())
        })
    };
    a == b || identity(a).is_some_and(|a| identity(b) == Some(a))
}
