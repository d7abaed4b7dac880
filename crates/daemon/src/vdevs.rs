//! Changes to what pools are made of: `zpool add`, `remove`, `reguid`, `labelclear`, `upgrade`.

use api::{
    Empty, Failure, FailureKind, PoolUpgrade, ZpoolAdd, ZpoolAddReply, ZpoolLabelClear,
    ZpoolReguid, ZpoolRemove, ZpoolUpgrade, ZpoolUpgradeReply,
};
use format::{Guid, Uberblock};
use pool::AddSpec;

use crate::caller::denied;
use crate::compatibility::Compatibility;
use crate::error::from_engine;
use crate::service::Service;
use crate::zpool::{described, is_same_device, layout, vdev_failure};
use crate::{replication, reports};

impl Service {
    /// `zpool add`.
    pub(crate) async fn zpool_add(&self, call: ZpoolAdd) -> Result<ZpoolAddReply, Failure> {
        let open = self.pool(&call.name)?;
        let _admin = open.admin.lock().await;
        let vdevs = call
            .vdevs
            .iter()
            .map(layout)
            .collect::<Result<Vec<_>, _>>()?;
        if !call.allow_replication_mismatch {
            replication::check(&open.pool.status().root.children, &vdevs)?;
        }
        self.refuse_open_devices(&vdevs, call.allow_in_use)?;
        let tree = reports::pool(&open.pool).tree;
        if call.dry_run {
            let layout = described(&call.vdevs, &vdevs);
            return Ok(ZpoolAddReply { tree, layout });
        }
        let spec = AddSpec {
            vdevs,
            ashift: call.ashift,
            force: call.allow_in_use,
            allow_ashift_mismatch: call.allow_ashift_mismatch,
        };
        open.pool
            .add(&spec)
            .await
            .map_err(|error| vdev_failure(&format!("cannot add to '{}'", call.name), &error))?;
        self.log_command(&open.pool, &call.command).await;
        self.save_cached_pools();
        Ok(ZpoolAddReply {
            tree,
            layout: Vec::new(),
        })
    }

    /// `zpool remove`.
    pub(crate) async fn zpool_remove(&self, call: ZpoolRemove) -> Result<Empty, Failure> {
        let open = self.pool(&call.name)?;
        let _admin = open.admin.lock().await;
        let mut first = None;
        for device in &call.devices {
            if let Err(error) = open.pool.remove(device).await {
                let doing = format!("cannot remove {device}");
                first = first.or(Some(from_engine(&doing, &error)));
            }
        }
        self.save_cached_pools();
        if let Some(failure) = first {
            return Err(failure);
        }
        self.log_command(&open.pool, &call.command).await;
        Ok(Empty {})
    }

    /// A guid for a pool.
    fn new_guid(&self) -> u64 {
        loop {
            match self.world.random.next_u64() {
                0 => {}
                guid => return guid,
            }
        }
    }

    /// `zpool reguid`.
    pub(crate) async fn zpool_reguid(&self, call: ZpoolReguid) -> Result<Empty, Failure> {
        let open = self.pool(&call.name)?;
        let _admin = open.admin.lock().await;
        let doing = format!("cannot reguid '{}'", call.name);
        if let Some(guid) = call.guid {
            let mut others = self.pools().into_iter();
            if guid == 0 || others.any(|other| other.pool.guid().get() == guid) {
                let message = format!("{doing}: {guid} cannot be its GUID; choose another");
                return Err(Failure::new(FailureKind::Invalid, message));
            }
        }
        let guid = call.guid.unwrap_or_else(|| self.new_guid());
        // Wherever a crash stops it, the next start finds the pool by the guid that it has then.
        *open.next_guid.lock() = Some(guid);
        self.save_cached_pools();
        let changed = open.pool.change_guid(Guid::new(guid)).await;
        if changed.is_ok() {
            self.log_command(&open.pool, &call.command).await;
        }
        *open.next_guid.lock() = None;
        self.save_cached_pools();
        changed.map_err(|error| from_engine(&doing, &error))?;
        Ok(Empty {})
    }

    /// `zpool labelclear`.
    pub(crate) async fn zpool_labelclear(&self, call: &ZpoolLabelClear) -> Result<Empty, Failure> {
        for open in self.pools() {
            let used = reports::device_paths(&open.pool.status());
            if used.iter().any(|path| is_same_device(path, &call.device)) {
                let name = open.pool.name();
                let message = format!(
                    "{} is a member (ACTIVE) of pool \"{name}\"; export or destroy the pool first, or remove the device",
                    call.device
                );
                return Err(Failure::new(FailureKind::Busy, message));
            }
        }
        pool::clear_label(&self.world, &call.device, call.force)
            .await
            .map_err(|error| match &error {
                pool::PoolError::DeviceInUse { path, why } => {
                    let why = why.replace("is part of", "is a member of");
                    let message =
                        format!("use '-f' to override the following error:\n{path} {why}");
                    Failure::new(FailureKind::Busy, message)
                }
                _ => from_engine(
                    &format!("failed to clear label for {}", call.device),
                    &error,
                ),
            })?;
        Ok(Empty {})
    }

    /// `zpool upgrade`; who may not change anything is told so where something is left to be done.
    pub(crate) async fn zpool_upgrade(
        &self,
        call: &ZpoolUpgrade,
        may_change: bool,
    ) -> Result<ZpoolUpgradeReply, Failure> {
        let supported = pool::supported_features();
        let mut reply = ZpoolUpgradeReply {
            supported: supported
                .into_iter()
                .map(|(name, compatible)| (name.to_owned(), compatible))
                .collect(),
            ..ZpoolUpgradeReply::default()
        };
        let (pools, absent) = self.pools_found(&call.names)?;
        reply.absent = absent;
        for open in pools {
            let name = open.pool.name();
            let value = |property: &str| open.pool.prop(property).map(|prop| prop.value);
            let before = open.pool.status().version;
            let features = if call.dry_run {
                open.pool.disabled_features()
            } else {
                let _admin = open.admin.lock().await;
                let allowed = Compatibility::load(&value("compatibility").unwrap_or_default())?;
                let missing = open.pool.disabled_features();
                let is_complete = before == Uberblock::VERSION_FEATURES
                    && !missing.iter().any(|feature| allowed.allows(feature));
                if !may_change && !is_complete {
                    return Err(denied(&format!("cannot upgrade '{name}'")));
                }
                let enabled = open
                    .pool
                    .upgrade(&|feature| allowed.allows(feature))
                    .await
                    .map_err(|error| from_engine(&format!("cannot upgrade '{name}'"), &error))?;
                if !enabled.is_empty() || open.pool.status().version != before {
                    self.log_command(&open.pool, &call.command).await;
                }
                enabled
            };
            let version = open.pool.status().version;
            reply.pools.push(PoolUpgrade {
                name,
                version,
                upgraded_from: (version != before).then_some(before),
                features,
            });
        }
        Ok(reply)
    }
}
