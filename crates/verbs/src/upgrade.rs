//! Raising versions of filesystems (`zfs upgrade`, `zfs set version=`), and `zfs wait`.

use device::BoxFuture;
use std::time::Duration;

use api::{Empty, Failure, FailureKind, ZfsWait};
use dataset::DatasetKind;
use filesystem::FsError;

use service::error::{from_access, from_dataset};
use service::pools::OpenPool;
use serving::Serving;

/// The newest version of filesystems (`ZPL_VERSION`).
const NEWEST: u64 = 5;
/// Versions of pools that filesystems of a version need, from version 1 on (`zfs_version_table`,
/// module/zcommon/zfs_comutil.c).
const POOL_VERSIONS: [u64; 5] = [1, 8, 9, 15, 24];
/// How often a delete queue is looked at: nobody tells when it is empty.
const LOOK: Duration = Duration::from_millis(50);

/// The version that a filesystem is to have instead of the one that it has; none where it has that.
pub async fn new_version(
    open: &OpenPool,
    name: &str,
    typed: &str,
    doing: &str,
) -> Result<Option<u64>, Failure> {
    let setting = open.pool.dsl().properties().get(name, "version").await;
    let is = setting
        .map_err(|error| from_dataset(doing, &error))?
        .value
        .number()
        .unwrap_or(0);
    let wanted = match typed {
        "current" => NEWEST,
        other => other.parse().unwrap_or(0),
    };
    let invalid = |what: String| Failure::new(FailureKind::Invalid, format!("{doing}: {what}"));
    if !(1..=NEWEST).contains(&wanted) {
        let what = "'version' must be one of '1 | 2 | 3 | 4 | 5 | current'";
        return Err(invalid(what.to_owned()));
    }
    if wanted < is {
        return Err(invalid(format!(
            "Can not downgrade; already at version {is}"
        )));
    }
    let needed = POOL_VERSIONS[wanted as usize - 1];
    if open.pool.status().version < needed {
        return Err(invalid(format!(
            "the pool must be upgraded to version {needed} first"
        )));
    }
    Ok((wanted > is).then_some(wanted))
}

/// Raises the version of a filesystem. Whoever uses it goes on with it.
pub async fn raise(open: &OpenPool, name: &str, version: u64) -> Result<(), Failure> {
    let doing = format!("cannot set property for '{name}'");
    let borrowed = crate::owners::borrow(open, name, &doing, "upgrade").await?;
    let before = borrowed.get().version();
    let raised = borrowed.get().raise_version(version).await;
    let closed = borrowed.close().await;
    closed.map_err(|error| from_access(&doing, &error))?;
    raised.map_err(|error| Failure::new(FailureKind::Io, format!("{doing}: {error}")))?;
    let text = format!("from {before} to {version}");
    let noted = open.pool.dsl().tasks().note(name, "upgrade", text).await;
    noted.map_err(|error| from_dataset(&doing, &error))?;
    let again = open.access.exchange(name, std::future::ready(())).await;
    again.map_err(|error| from_access(&doing, &error))
}

/// `zfs wait` (`dsl_dir_wait`, module/zfs/dsl_dir.c): a filesystem that is not mounted frees
/// nothing, so that there is nothing to wait for.
pub fn zfs_wait<'a>(
    serving: &'a Serving,
    call: &'a ZfsWait,
) -> BoxFuture<'a, Result<Empty, Failure>> {
    Box::pin(async move {
        let doing = format!("cannot wait for '{}'", call.name);
        let opened = async || {
            let open = serving.pools.of_dataset(&call.name)?;
            let found = open.pool.dsl().directories().lookup(&call.name).await;
            let info = found
                .map_err(|error| from_dataset(&format!("cannot open '{}'", call.name), &error))?;
            Ok::<_, Failure>((open, info))
        };
        let (_, info) = opened().await?;
        if info.kind != DatasetKind::Filesystem {
            let name = &call.name;
            let message =
                format!("cannot open '{name}': operation not applicable to datasets of this type");
            return Err(Failure::new(FailureKind::Invalid, message));
        }
        loop {
            // It may be gone by now, or another one.
            let Ok((open, now)) = opened().await else {
                return Ok(Empty {});
            };
            if now.object != info.object || serving.mounts.mountpoint(&call.name).is_none() {
                return Ok(Empty {});
            }
            let left = {
                let borrowed = crate::owners::borrow(&open, &call.name, &doing, "wait").await?;
                let left = borrowed.get().unlinked().count().await;
                let closed = borrowed.close().await;
                closed.map_err(|error| from_access(&doing, &error))?;
                left
            };
            match left {
                Ok(0) | Err(FsError::Closed) => return Ok(Empty {}),
                Ok(_) => tokio::time::sleep(LOOK).await,
                Err(error) => {
                    return Err(Failure::new(FailureKind::Io, format!("{doing}: {error}")));
                }
            }
        }
    })
}
