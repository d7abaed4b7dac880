//! `zpool reopen` and `zpool resilver`.

use api::{Empty, Failure, ZpoolReopen, ZpoolResilver};
use device::BoxFuture;

use crate::topology::done;
use service::error::from_pool;
use serving::Serving;

/// `zpool reopen`.
pub fn zpool_reopen<'a>(
    serving: &'a Serving,
    call: &'a ZpoolReopen,
) -> BoxFuture<'a, Result<Empty, Failure>> {
    Box::pin(async move {
        let pools = match call.names.is_empty() {
            true => serving.pools.all(),
            false => serving.pools.named(&call.names)?,
        };
        for open in &pools {
            let _admin = open.admin.lock().await;
            let reopened = open.pool.reopen(!call.no_restart).await;
            reopened.map_err(|error| {
                let doing = format!("cannot reopen '{}'", open.pool.name());
                from_pool(&doing, &error)
            })?;
            done(serving, open, &call.command).await;
        }
        Ok(Empty {})
    })
}

/// `zpool resilver`.
pub fn zpool_resilver<'a>(
    serving: &'a Serving,
    call: &'a ZpoolResilver,
) -> BoxFuture<'a, Result<Empty, Failure>> {
    Box::pin(async move {
        for open in &serving.pools.named(&call.names)? {
            let begun = open.pool.scans().resilver().await;
            begun.map_err(|error| {
                let doing = format!("cannot restart resilver on {}", open.pool.name());
                from_pool(&doing, &error)
            })?;
            done(serving, open, &call.command).await;
        }
        Ok(Empty {})
    })
}
