//! Keys of encrypted datasets: what `zfs load-key` and `zfs unload-key` ask for.
//!
//! The command derives the wrapping key from what the user gives, so that a passphrase never leaves
//! it. Here it is loaded; then the volumes that it opens are, as after an import. Unloading closes
//! those first.

use api::{
    Empty, Failure, FailureKind, KeyDetails, KeyFormat as ApiFormat, KeyReport, ZfsKeys,
    ZfsKeysReply, ZfsLoadKey, ZfsUnloadKey,
};
use codec::crypt::{WRAPPING_KEY_BYTES, WrappingKey};
use dataset::{DatasetError, DatasetKind, KeyFormat, KeyInfo, ListOptions};
use serve_fuse::UnmountMode;

use crate::error::from_dataset;
use crate::mounts::is_at_or_below;
use crate::pools::OpenPool;
use crate::service::Service;

fn details(info: KeyInfo) -> KeyDetails {
    KeyDetails {
        root: info.root,
        is_loaded: info.is_loaded,
        format: match info.format {
            KeyFormat::Raw => ApiFormat::Raw,
            KeyFormat::Hex => ApiFormat::Hex,
            KeyFormat::Passphrase => ApiFormat::Passphrase,
        },
        location: info.location,
        salt: info.salt,
        iterations: info.iterations,
    }
}

fn wrapping_key(digits: &str) -> Option<WrappingKey> {
    let mut key = WrappingKey::new([0; WRAPPING_KEY_BYTES]);
    if digits.len() != 2 * WRAPPING_KEY_BYTES || !digits.is_ascii() {
        return None;
    }
    for (byte, pair) in key.iter_mut().zip(digits.as_bytes().chunks(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
    }
    Some(key)
}

/// The keys of datasets.
pub(crate) async fn zfs_keys(service: &Service, call: &ZfsKeys) -> Result<ZfsKeysReply, Failure> {
    let everything = call.names.is_empty();
    let names: Vec<String> = if everything {
        service
            .pools
            .all()
            .iter()
            .map(|open| open.pool.name())
            .collect()
    } else {
        call.names.clone()
    };
    let options = ListOptions {
        filesystems: true,
        volumes: true,
        snapshots: false,
        depth: (!everything && !call.recursive).then_some(0),
    };
    let mut reply = ZfsKeysReply::default();
    for name in names {
        let open = service.pools.of_dataset(&name)?;
        let dsl = open.pool.dsl();
        let failed = |error| from_dataset(&format!("cannot open '{name}'"), &error);
        if name.contains(['@', '#']) {
            return Err(Failure::new(
                FailureKind::Invalid,
                format!("cannot open '{name}': operation not applicable to datasets of this type"),
            ));
        }
        for info in dsl
            .directories()
            .list(&name, &options)
            .await
            .map_err(failed)?
        {
            let key = dsl.keys().info(&info.name).await.map_err(failed)?;
            reply.datasets.push(KeyReport {
                name: info.name,
                key: key.map(details),
            });
        }
    }
    Ok(reply)
}

/// `zfs load-key`.
pub(crate) async fn zfs_load_key(service: &Service, call: ZfsLoadKey) -> Result<Empty, Failure> {
    let open = service.pools.of_dataset(&call.name)?;
    let _admin = open.admin.lock().await;
    let Some(key) = wrapping_key(&call.key.0) else {
        return Err(Failure::new(
            FailureKind::Invalid,
            "the request holds no key of 32 bytes; is the command of another version than the \
             daemon?",
        ));
    };
    let dsl = open.pool.dsl();
    dsl.keys()
        .load(&call.name, key, call.only_check)
        .await
        .map_err(|error| from_dataset("Key load error", &error))?;
    if call.only_check {
        return Ok(Empty {});
    }
    let mut failures = Vec::new();
    for name in volumes_of_key(&open, &call.name).await? {
        if let Err(failure) = service.open_volume(&open, &name).await {
            failures.push(failure.message);
        }
    }
    if call.mount {
        failures.extend(service.mount_all(&open).await);
        failures.extend(service.follow_nfs(&open, &call.name).await);
    }
    if failures.is_empty() {
        return Ok(Empty {});
    }
    Err(Failure::new(
        FailureKind::Other,
        format!(
            "the key of '{}' is loaded, but: {}",
            call.name,
            failures.join("\n")
        ),
    ))
}

/// `zfs unload-key`.
pub(crate) async fn zfs_unload_key(
    service: &Service,
    call: ZfsUnloadKey,
) -> Result<Empty, Failure> {
    let open = service.pools.of_dataset(&call.name)?;
    let _admin = open.admin.lock().await;
    let name = &call.name;
    let of_error = |error: DatasetError| match error {
        DatasetError::KeyNotLoaded { .. } => Failure::new(
            FailureKind::Invalid,
            format!("Key unload error: Key already unloaded for '{name}'."),
        ),
        DatasetError::Busy { .. } => Failure::new(
            FailureKind::Busy,
            format!("Key unload error: '{name}' is busy."),
        ),
        error => from_dataset("Key unload error", &error),
    };
    let mounted = service.mounts.below(name);
    for dataset in mounted {
        let info = open
            .pool
            .dsl()
            .keys()
            .info(&dataset)
            .await
            .map_err(of_error)?;
        if info.is_some_and(|info| info.root == *name) {
            return Err(Failure::new(
                FailureKind::Busy,
                format!("Key unload error: '{name}' is busy."),
            ));
        }
    }
    let volumes = volumes_of_key(&open, name).await?;
    for volume in &volumes {
        service.close_volume(volume, UnmountMode::Clean).await?;
    }
    let result = open.pool.dsl().keys().unload(name).await;
    if result.is_err() {
        for volume in &volumes {
            if let Err(failure) = service.open_volume(&open, volume).await {
                tracing::warn!("{failure}");
            }
        }
    }
    result.map(|()| Empty {}).map_err(of_error)
}

/// Volumes whose encryption root this is.
async fn volumes_of_key(open: &OpenPool, root: &str) -> Result<Vec<String>, Failure> {
    let options = ListOptions {
        filesystems: false,
        volumes: true,
        snapshots: false,
        depth: None,
    };
    let dsl = open.pool.dsl();
    let failed = |error| from_dataset(&format!("cannot open '{root}'"), &error);
    let mut names = Vec::new();
    for info in dsl
        .directories()
        .list(root, &options)
        .await
        .map_err(failed)?
    {
        debug_assert!(is_at_or_below(&info.name, root));
        if info.kind != DatasetKind::Volume {
            continue;
        }
        let key = dsl.keys().info(&info.name).await.map_err(failed)?;
        if key.is_some_and(|key| key.root == root) {
            names.push(info.name);
        }
    }
    Ok(names)
}

/// Whether a dataset cannot be opened for want of its key.
pub(crate) async fn is_locked(open: &OpenPool, name: &str) -> bool {
    let info = open.pool.dsl().keys().info(name).await;
    matches!(info, Ok(Some(info)) if !info.is_loaded)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_sixty_four_digits_are_a_key() {
        assert_eq!(*wrapping_key(&"0f".repeat(32)).unwrap(), [15; 32]);
        for bad in [
            "",
            "0f",
            &"0f".repeat(33),
            &"0g".repeat(32),
            &"é".repeat(32),
        ] {
            assert!(wrapping_key(bad).is_none(), "{bad}");
        }
    }
}
