//! Where filesystems belong by their properties.
//!
//! Rules are those of `zfs mount` (zfs_mount_at, lib/libzfs/libzfs_mount.c): `canmount`,
//! `mountpoint` (`none`, `legacy` or a path below the pool's altroot).

use std::path::{Path, PathBuf};

use api::Failure;
use dataset::ListOptions;
use service::error::from_dataset;
use service::pools::OpenPool;

/// The word for what lacks blocks ([`Place::Nowhere`]).
pub const REDACTED: &str = "redacted";

/// Where a filesystem goes by its properties.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// At this path (altroot included).
    At(PathBuf),
    /// Nowhere by itself: `none`, `legacy`, or `canmount=off`, or as it is redacted; the word says
    /// which.
    Nowhere(&'static str),
}

/// Where a filesystem belongs, and whether `canmount` lets it be mounted by itself. One that is
/// redacted belongs nowhere (`zfs_is_mountable`).
pub async fn place(open: &OpenPool, name: &str) -> Result<(Place, bool), Failure> {
    let found = open.pool.dsl().directories().lookup(name).await;
    let doing = format!("cannot mount '{name}'");
    let info = found.map_err(|error| from_dataset(&doing, &error))?;
    match info.is_redacted {
        true => Ok((Place::Nowhere(REDACTED), false)),
        false => place_of_any(open, name).await,
    }
}

/// The same, also of one that is redacted.
pub async fn place_of_any(open: &OpenPool, name: &str) -> Result<(Place, bool), Failure> {
    let doing = format!("cannot mount '{name}'");
    let failed = |error| from_dataset(&doing, &error);
    let dsl = open.pool.dsl();
    let mountpoint = dsl
        .properties()
        .get(name, "mountpoint")
        .await
        .map_err(failed)?;
    let canmount = dsl
        .properties()
        .get(name, "canmount")
        .await
        .map_err(failed)?
        .value
        .number()
        .unwrap_or(1);
    let place = match mountpoint.value.text() {
        _ if canmount == 0 => Place::Nowhere("canmount=off"),
        Some("none") => Place::Nowhere("mountpoint=none"),
        Some("legacy") => Place::Nowhere("mountpoint=legacy"),
        Some(path) => Place::At(below_altroot(open.pool.altroot(), path)),
        None => Place::Nowhere("mountpoint=none"),
    };
    Ok((place, canmount == 1))
}

/// Which filesystems of a pool want to be mounted, and where; and why that cannot be told of
/// others.
pub async fn wanted_mounts(open: &OpenPool) -> (Vec<(PathBuf, String)>, Vec<String>) {
    let (name, options) = (
        open.pool.name(),
        ListOptions {
            volumes: false,
            ..ListOptions::default()
        },
    );
    let listed = open.pool.dsl().directories();
    let (listed, lost) = match listed.list_readable(&name, &options).await {
        Ok(found) => found,
        Err(error) => {
            let failure = format!("cannot list the filesystems of '{name}': {error}");
            return (Vec::new(), vec![failure]);
        }
    };
    let mut wanted = Vec::new();
    let failures = lost.into_iter();
    let failures = failures.map(|(name, error)| format!("cannot mount '{name}': {error}"));
    let mut failures: Vec<String> = failures.collect();
    for info in listed {
        // What has no key loaded is left alone, as `zfs mount -a` does.
        if info.is_inconsistent || open.is_locked(&info.name).await {
            continue;
        }
        match place(open, &info.name).await {
            Ok((Place::At(path), true)) => wanted.push((path, info.name)),
            Ok(_) => {}
            Err(failure) => failures.push(failure.message),
        }
    }
    (wanted, failures)
}

/// A mount point below the pool's altroot.
pub fn below_altroot(altroot: Option<&str>, path: &str) -> PathBuf {
    match altroot {
        Some(root) if root != "/" => Path::new(root).join(path.trim_start_matches('/')),
        _ => PathBuf::from(path),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn altroot_stands_before_every_mountpoint() {
        assert_eq!(below_altroot(None, "/tank/a"), Path::new("/tank/a"));
        assert_eq!(below_altroot(Some("/"), "/tank/a"), Path::new("/tank/a"));
        assert_eq!(
            below_altroot(Some("/mnt"), "/tank/a"),
            Path::new("/mnt/tank/a")
        );
    }
}
