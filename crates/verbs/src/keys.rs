//! Keys of encrypted datasets: what `zfs load-key`, `zfs unload-key` and `zfs change-key` ask for,
//! and the keys that new encryption roots come with.
//!
//! The command derives the wrapping key from what the user gives, so that a passphrase never leaves
//! it. Here it is loaded; then the volumes that it opens are, as after an import. Unloading closes
//! those first.

use api::{
    Empty, Failure, FailureKind, KeyDetails, KeyFormat as ApiFormat, KeyReport, ZfsChangeKey,
    ZfsKeys, ZfsKeysReply, ZfsLoadKey, ZfsUnloadKey,
};
use codec::crypt::{WRAPPING_KEY_BYTES, WrappingKey};
use dataset::{DatasetError, DatasetKind, KeyChange, KeyFormat, KeyInfo, ListOptions, NewKey};
use device::BoxFuture;
use serve_fuse::UnmountMode;

use crate::properties::by_full_names;
use crate::zpool::typed;
use service::error::from_dataset;
use service::pools::{OpenPool, Pools};
use serving::Serving;

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

/// What a property was set to, as typed; the last word counts.
fn given<'p>(properties: &'p [(String, String)], wanted: &str) -> Option<&'p str> {
    let mut given = properties.iter().rev();
    given
        .find(|(name, _)| name == wanted)
        .map(|(_, typed)| typed.as_str())
}

/// The key that comes with properties which say how it was given; `usual` is its format where they
/// do not (`populate_create_encryption_params_nvlists`, lib/libzfs/libzfs_crypto.c).
pub fn new_key(
    doing: &str,
    key: Option<&api::NewKey>,
    properties: &[(String, String)],
    usual: Option<KeyFormat>,
) -> Result<Option<NewKey>, Failure> {
    let invalid = |what: &str| Failure::new(FailureKind::Invalid, format!("{doing}: {what}"));
    let Some(key) = key else { return Ok(None) };
    let wrapping = wrapping_key(&key.key.0)
        .ok_or_else(|| invalid("the request holds no key of 32 bytes (64 hexadecimal digits)"))?;
    let format = match given(properties, "keyformat") {
        Some("raw") => KeyFormat::Raw,
        Some("hex") => KeyFormat::Hex,
        Some("passphrase") => KeyFormat::Passphrase,
        _ => usual.ok_or_else(|| invalid("Keyformat required for new encryption root."))?,
    };
    let iterations = given(properties, "pbkdf2iters");
    let made = if format == KeyFormat::Passphrase {
        let iterations = iterations
            .and_then(|typed| dataset::props::parse_size(typed).ok())
            .ok_or_else(|| {
                invalid("'pbkdf2iters' must say how the key was derived from its passphrase")
            })?;
        NewKey::of_passphrase(wrapping, key.salt, iterations)
    } else if iterations.is_some() {
        return Err(invalid(
            "Cannot specify pbkdf2iters with a non-passphrase keyformat.",
        ));
    } else if key.salt != 0 {
        return Err(invalid("only a passphrase has a salt"));
    } else {
        NewKey::new(format, wrapping)
    };
    made.map(Some).map_err(|error| from_dataset(doing, &error))
}

/// `zfs change-key` (`zfs_crypto_rewrap`, lib/libzfs/libzfs_crypto.c).
pub fn zfs_change_key<'a>(
    pools: &'a Pools,
    call: ZfsChangeKey,
) -> BoxFuture<'a, Result<Empty, Failure>> {
    Box::pin(async move {
        const DOING: &str = "Key change error";
        let invalid = |what: &str| Failure::new(FailureKind::Invalid, format!("{DOING}: {what}"));
        let failed = |error: DatasetError| match error {
            DatasetError::WrongKind { reason, .. } => invalid(&format!("{reason}.")),
            error => from_dataset(DOING, &error),
        };
        let open = pools.of_dataset(&call.name)?;
        let _admin = open.admin.lock().await;
        let dsl = open.pool.dsl();
        let keys = dsl.keys();
        let Some(info) = keys.info(&call.name).await.map_err(failed)? else {
            return Err(invalid("Dataset not encrypted."));
        };
        let typed = by_full_names(typed(&call.properties));
        let (of_user, of_key): (Vec<_>, Vec<_>) =
            typed.into_iter().partition(|(name, _)| name.contains(':'));
        let allowed: &[&str] = match call.key {
            Some(_) => &["keyformat", "keylocation", "pbkdf2iters"],
            None => &[],
        };
        if of_key
            .iter()
            .any(|(name, _)| !allowed.contains(&name.as_str()))
        {
            return Err(invalid(match call.key {
                Some(_) => {
                    "Only keyformat, keylocation and pbkdf2iters may be set with this command."
                }
                None => "Only user properties may be set with 'zfs change-key -i'",
            }));
        }
        dataset::check_new_properties(&of_key, DatasetKind::Filesystem).map_err(failed)?;
        let usual = info.is_root.then_some(info.format);
        let change = match new_key(DOING, call.key.as_ref(), &of_key, usual)? {
            None => KeyChange::Inherit,
            Some(key) => {
                let location = given(&of_key, "keylocation").map(str::to_owned);
                KeyChange::New {
                    key,
                    // A new root's is asked for where nothing is said.
                    location: location.or_else(|| (!info.is_root).then(|| "prompt".to_owned())),
                }
            }
        };
        keys.change(&call.name, change, &of_user)
            .await
            .map_err(failed)?;
        crate::zpool::log_command(&open.pool, &call.command).await;
        Ok(Empty {})
    })
}

/// The keys of datasets.
pub fn zfs_keys<'a>(
    pools: &'a Pools,
    call: &'a ZfsKeys,
) -> BoxFuture<'a, Result<ZfsKeysReply, Failure>> {
    Box::pin(async move {
        let everything = call.names.is_empty();
        let names: Vec<String> = if everything {
            pools.all().iter().map(|open| open.pool.name()).collect()
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
            let open = pools.of_dataset(&name)?;
            let dsl = open.pool.dsl();
            let failed = |error| from_dataset(&format!("cannot open '{name}'"), &error);
            if name.contains(['@', '#']) {
                return Err(Failure::new(
                    FailureKind::Invalid,
                    format!(
                        "cannot open '{name}': operation not applicable to datasets of this type"
                    ),
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
    })
}

/// `zfs load-key`.
pub fn zfs_load_key<'a>(
    serving: &'a Serving,
    call: ZfsLoadKey,
) -> BoxFuture<'a, Result<Empty, Failure>> {
    Box::pin(async move {
        let open = serving.pools.of_dataset(&call.name)?;
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
        // A dataset that was parted from its encryption root is part of that again: all that has
        // the root's key is open to use now.
        let info = dsl.keys().info(&call.name).await;
        let info = info.map_err(|error| from_dataset("Key load error", &error))?;
        let root = info.map_or_else(|| call.name.clone(), |info| info.root);
        // What a crash left in their logs comes before anything else is done to them.
        let unreplayed = open.replay_waiting(Some(&root)).await;
        let mut failures = Vec::new();
        for name in volumes_of_key(&open, &root).await? {
            if let Err(failure) = serving.volumes.open_volume(&open, &name).await {
                failures.push(failure.message);
            }
        }
        if call.mount {
            failures.extend(serving.mount_all(&open, &[]).await);
            failures.extend(serving.follow_nfs(&open, &root).await);
        }
        unreplayed.add_to(&mut failures);
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
    })
}

/// `zfs unload-key`.
pub fn zfs_unload_key<'a>(
    serving: &'a Serving,
    call: ZfsUnloadKey,
) -> BoxFuture<'a, Result<Empty, Failure>> {
    Box::pin(async move {
        let open = serving.pools.of_dataset(&call.name)?;
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
        let mounted = serving.mounts.below(&open.pool.name());
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
            serving
                .volumes
                .close_volume(volume, UnmountMode::Clean)
                .await?;
        }
        let result = open.pool.dsl().keys().unload(name).await;
        if result.is_err() {
            for volume in &volumes {
                if let Err(failure) = serving.volumes.open_volume(&open, volume).await {
                    tracing::warn!("{failure}");
                }
            }
        }
        result.map(|()| Empty {}).map_err(of_error)
    })
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
    // Clones may be anywhere.
    for info in dsl
        .directories()
        .list(&open.pool.name(), &options)
        .await
        .map_err(failed)?
    {
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

#[cfg(test)]
mod tests {
    use super::*;

    /// A key says how it was given, and only a passphrase has salt and iterations.
    #[test]
    fn new_keys_are_what_their_properties_say() {
        let key = |salt| api::NewKey {
            key: api::Secret("0f".repeat(32)),
            salt,
        };
        let made = |salt, properties: &[(&str, &str)], usual| {
            let own = |(name, typed): &(&str, &str)| ((*name).to_owned(), (*typed).to_owned());
            let properties: Vec<_> = properties.iter().map(own).collect();
            new_key("x", Some(&key(salt)), &properties, usual)
                .map(|key| format!("{:?}", key.expect("a key")))
                .map_err(|failure| failure.message)
        };
        let raw = [("keyformat", "raw")];
        assert_eq!(made(0, &raw, None).unwrap(), "NewKey(Raw)");
        let hex = Some(KeyFormat::Hex);
        assert_eq!(made(0, &[], hex).unwrap(), "NewKey(Hex)");
        let iterations = ("pbkdf2iters", "350000");
        let passphrase = [("keyformat", "passphrase"), iterations];
        assert_eq!(made(7, &passphrase, None).unwrap(), "NewKey(Passphrase)");
        for (salt, properties) in [
            (0, &[][..]),
            (7, &raw[..]),
            (0, &[raw[0], iterations][..]),
            (0, &passphrase[..]),
            (7, &passphrase[..1]),
        ] {
            let refused = made(salt, properties, None).unwrap_err();
            assert!(refused.starts_with("x: "), "{refused}");
        }
        assert!(new_key("x", None, &[], None).unwrap().is_none());
        let short = api::NewKey::default();
        assert!(new_key("x", Some(&short), &[], hex).is_err());
    }

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
