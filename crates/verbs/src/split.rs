//! `zpool split`.

use api::{Failure, FailureKind, Guid, ZpoolSplit, ZpoolSplitReply};
use device::BoxFuture;
use pool::SplitSpec;

use crate::topology::done;
use service::error::from_pool;
use serving::Serving;

/// `zpool split`. The new pool is exported when this returns; who wants it imports it.
pub fn zpool_split<'a>(
    serving: &'a Serving,
    call: &'a ZpoolSplit,
) -> BoxFuture<'a, Result<ZpoolSplitReply, Failure>> {
    Box::pin(async move {
        let open = serving.pools.get(&call.name)?;
        let _admin = open.admin.lock().await;
        let doing = format!("Unable to split {}", call.name);
        serving::mounts::check_options(&doing, &call.mount_options)?;
        if serving.pools.get(&call.new_name).is_ok() {
            let message = format!(
                "{doing}: pool already exists\n'{}' is imported",
                call.new_name
            );
            return Err(Failure::new(FailureKind::Exists, message));
        }
        let devices = open.pool.plan_split(&call.devices);
        let devices = devices.map_err(|error| from_pool(&doing, &error))?;
        if !call.dry_run {
            let spec = SplitSpec {
                new_name: call.new_name.clone(),
                devices: call.devices.clone(),
                properties: call.properties.clone().into_iter().collect(),
            };
            let split = open.pool.split(&spec).await;
            split.map_err(|error| from_pool(&doing, &error))?;
            done(serving, &open, &call.command).await;
        }
        let devices = devices.into_iter();
        Ok(ZpoolSplitReply {
            devices: devices.map(|guid| Guid(guid.get())).collect(),
        })
    })
}
