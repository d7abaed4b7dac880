//! `zpool reopen` and `zpool resilver`.

use api::{Empty, Failure, ZpoolReopen, ZpoolResilver};

use crate::service::Service;
use crate::topology::done;
use service::error::from_pool;

/// `zpool reopen`.
pub(crate) async fn zpool_reopen(service: &Service, call: &ZpoolReopen) -> Result<Empty, Failure> {
    let pools = match call.names.is_empty() {
        true => service.serving.pools.all(),
        false => service.serving.pools.named(&call.names)?,
    };
    for open in &pools {
        let _admin = open.admin.lock().await;
        let reopened = open.pool.reopen(!call.no_restart).await;
        reopened.map_err(|error| {
            let doing = format!("cannot reopen '{}'", open.pool.name());
            from_pool(&doing, &error)
        })?;
        done(service, open, &call.command).await;
    }
    Ok(Empty {})
}

/// `zpool resilver`.
pub(crate) async fn zpool_resilver(
    service: &Service,
    call: &ZpoolResilver,
) -> Result<Empty, Failure> {
    for open in &service.serving.pools.named(&call.names)? {
        let begun = open.pool.resilver().await;
        begun.map_err(|error| {
            let doing = format!("cannot restart resilver on '{}'", open.pool.name());
            from_pool(&doing, &error)
        })?;
        done(service, open, &call.command).await;
    }
    Ok(Empty {})
}
