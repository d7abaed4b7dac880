//! Checks of properties and their values as they are typed, without a dataset.

use format::Compression;

use crate::features::{guid, with_dependencies};
use crate::props::{
    Attr, Kinds, Property, ValueKind, find, fits_a_value, is_user_property, parse_value, refusal,
};
use crate::settings::dedup_of;
use crate::version::PoolVersion;
use crate::{DatasetError, DatasetKind, PropertyValue};

/// Fewest iterations of PBKDF2 for a new passphrase (`MIN_PBKDF2_ITERATIONS`).
pub const PBKDF2_ITERATIONS_MIN: u64 = 100_000;

/// Checks the properties of a dataset that is to be made, as far as they say themselves.
///
/// # Errors
/// [`DatasetError::InvalidProperty`], [`DatasetError::Unsupported`].
pub fn check_new_properties(
    properties: &[(String, String)],
    kind: DatasetKind,
) -> Result<(), DatasetError> {
    for (name, typed) in properties {
        parse_setting(name, typed, kind.kinds(), true)?;
    }
    Ok(())
}

/// Checks the properties of the root filesystem of a pool that is to be made of a version, with
/// these features (by guid), before anything is written.
///
/// # Errors
/// As [`check_new_properties`]; also for a value that needs another feature, or a newer version.
pub fn check_root_properties(
    pool: &str,
    properties: &[(String, String)],
    features: &[String],
    version: u64,
) -> Result<(), DatasetError> {
    let enabled = with_dependencies(features);
    let version = PoolVersion::new(version);
    let kinds = DatasetKind::Filesystem.kinds();
    for (name, typed) in properties {
        if let Some(number) = parse_setting(name, typed, kinds, true)?.number() {
            check_version(pool, name, number, &version)?;
            check_feature(pool, name, number, |needs| enabled.contains(needs))?;
        }
    }
    Ok(())
}

/// Checks that the root filesystem of a pool that is to be made finds what it reserves, before
/// anything is written: not more than the pool has for users (`usable_bytes`), nor than its own
/// quotas allow (`dsl_dir_set_reservation_check`, module/zfs/dsl_dir.c;
/// `dsl_dataset_set_refreservation_check`, dsl_dataset.c). The properties are checked already.
///
/// # Errors
/// [`DatasetError::NoSpace`]; [`DatasetError::InvalidProperty`] where a quota forbids it.
pub fn check_root_space(
    pool: &str,
    properties: &[(String, String)],
    usable_bytes: u64,
) -> Result<(), DatasetError> {
    let kinds = DatasetKind::Filesystem.kinds();
    let number = |wanted: &str| {
        // The last word counts.
        let mut given = properties.iter().rev();
        let (name, typed) = given.find(|(name, _)| name == wanted)?;
        let value = parse_setting(name, typed, kinds, true).ok()?;
        value.number()
    };
    for name in ["reservation", "refreservation"] {
        if number(name).is_some_and(|bytes| bytes > usable_bytes) {
            return Err(DatasetError::NoSpace {
                name: pool.to_owned(),
            });
        }
    }
    check_together(number)
}

/// Checks properties that are set together against each other; `number` gives their values.
///
/// # Errors
/// [`DatasetError::InvalidProperty`] where a quota forbids a reservation, or names that are
/// normalized need not be UTF-8.
pub(crate) fn check_together(number: impl Fn(&str) -> Option<u64>) -> Result<(), DatasetError> {
    let refuse = |property: &str, reason: &str| {
        Err(DatasetError::InvalidProperty {
            property: property.to_owned(),
            reason: reason.to_owned(),
        })
    };
    for (name, quotas) in [
        ("reservation", &["quota"][..]),
        ("refreservation", &["refquota", "quota"]),
    ] {
        let bytes = number(name).unwrap_or(0);
        let quotas = quotas.iter().filter_map(|quota| number(quota));
        if quotas.filter(|quota| *quota > 0).any(|quota| bytes > quota) {
            return refuse(name, "size is greater than available space");
        }
    }
    if number("normalization").unwrap_or(0) > 0 && number("utf8only") == Some(0) {
        let why = "'utf8only' must be set 'on' if normalization chosen";
        return refuse("utf8only", why);
    }
    Ok(())
}

/// Checks that a user may set a property of that name on a dataset of that kind; `at_creation`
/// allows those that are set once.
pub(crate) fn check_settable(
    name: &str,
    kinds: Kinds,
    at_creation: bool,
) -> Result<Option<&'static Property>, DatasetError> {
    let refuse = |reason: String| DatasetError::InvalidProperty {
        property: name.to_owned(),
        reason,
    };
    let Some(property) = find(name).filter(|property| property.name == name) else {
        if is_user_property(name) {
            return Ok(None);
        }
        return Err(refuse(format!("invalid property '{name}'")));
    };
    if kinds == Kinds::SNAPSHOT {
        return Err(refuse(
            "this property can not be modified for snapshots".into(),
        ));
    }
    if !property.kinds.meets(kinds) {
        return Err(refuse(format!(
            "'{name}' does not apply to datasets of this type"
        )));
    }
    if property.is_read_only() && !(at_creation && property.is_set_once()) {
        return Err(refuse(format!("'{name}' is readonly")));
    }
    if matches!(property.attr, Attr::ReadOnly) || !property.visible {
        return Err(refuse(format!("'{name}' is readonly")));
    }
    Ok(Some(property))
}

/// Parses and checks one property that a user typed; user properties are text.
pub(crate) fn parse_setting(
    name: &str,
    typed: &str,
    kinds: Kinds,
    at_creation: bool,
) -> Result<PropertyValue, DatasetError> {
    match check_settable(name, kinds, at_creation)? {
        Some(property) => {
            let value = parse_value(property, kinds, typed)?;
            if let Some(reason) = refusal(property, &value) {
                return Err(
                    property.invalid(format!("'{name}={typed}' has no effect here: {reason}"))
                );
            }
            if name == "refreservation" && value == PropertyValue::Number(u64::MAX) {
                return Err(property.invalid(
                    "'refreservation=auto' must be worked out from the volume's size first",
                ));
            }
            if let ("pbkdf2iters", PropertyValue::Number(iterations)) = (name, &value) {
                check_iterations(*iterations)?;
            }
            debug_assert!(matches!(
                (property.kind, &value),
                (ValueKind::Text, PropertyValue::Text(_))
                    | (
                        ValueKind::Number | ValueKind::Index(_),
                        PropertyValue::Number(_)
                    )
            ));
            Ok(value)
        }
        None if !fits_a_value(typed) => Err(DatasetError::InvalidProperty {
            property: name.to_owned(),
            reason: format!("'{name}' is too long, or has a zero byte"),
        }),
        None => Ok(PropertyValue::Text(typed.to_owned())),
    }
}

/// Whether a filesystem or volume that is there can have a property set to what was typed; limits
/// and features are not looked at.
///
/// # Errors
/// [`DatasetError::InvalidProperty`].
pub fn check_setting(kind: DatasetKind, name: &str, typed: &str) -> Result<(), DatasetError> {
    parse_setting(name, typed, kind.kinds(), false).map(|_| ())
}

/// Refuses properties of a snapshot in a pool that cannot have them.
pub(crate) fn check_of_snapshot(snapshot: &str, pool: &PoolVersion) -> Result<(), DatasetError> {
    match pool.has_snapshot_properties() {
        true => Ok(()),
        false => Err(DatasetError::Unsupported {
            name: snapshot.to_owned(),
            what: "a property of a snapshot in a pool of a version before 12".into(),
        }),
    }
}

/// Refuses a value that came with a newer version of pools (`zfs_check_settable`,
/// module/zfs/zfs_ioctl.c).
pub(crate) fn check_version(
    dataset: &str,
    property: &str,
    number: u64,
    pool: &PoolVersion,
) -> Result<(), DatasetError> {
    let what = match (property, number) {
        ("dedup", dedup) if dedup_of(dedup).is_some() && !pool.has_dedup_tables() => {
            "dedup in a pool of a version before 21".to_owned()
        }
        ("compression", stored) if stored == u64::from(Compression::Zle.code()) => {
            if pool.has_zle() {
                return Ok(());
            }
            "compression=zle in a pool of a version before 20".to_owned()
        }
        // passthrough-x.
        ("aclinherit", 5) if !pool.has_passthrough_x() => {
            "aclinherit=passthrough-x in a pool of a version before 14".to_owned()
        }
        ("version", of_filesystem) if of_filesystem > pool.newest_filesystem() => {
            let pool = pool.get();
            format!("a filesystem of version {of_filesystem} in a pool of version {pool}")
        }
        _ => return Ok(()),
    };
    Err(DatasetError::Unsupported {
        name: dataset.to_owned(),
        what,
    })
}

/// Refuses a value that needs a feature which `is_enabled` denies.
pub(crate) fn check_feature(
    dataset: &str,
    property: &str,
    number: u64,
    is_enabled: impl Fn(&str) -> bool,
) -> Result<(), DatasetError> {
    let needs = match (property, number) {
        ("filesystem_limit" | "snapshot_limit", _) => guid::FILESYSTEM_LIMITS,
        ("recordsize" | "volblocksize", 131_073..) => guid::LARGE_BLOCKS,
        ("dnodesize", 1..) => guid::LARGE_DNODE,
        ("compression", stored) if stored & 0x7f == 16 => guid::ZSTD_COMPRESS,
        ("compression", 15) => guid::LZ4_COMPRESS,
        ("checksum" | "dedup", stored) if stored & 0xff == 11 => guid::SHA512,
        ("checksum" | "dedup", stored) if stored & 0xff == 12 => guid::SKEIN,
        ("checksum" | "dedup", stored) if stored & 0xff == 13 => guid::EDONR,
        ("checksum" | "dedup", stored) if stored & 0xff == 14 => guid::BLAKE3,
        ("longname", 1) => guid::LONGNAME,
        _ => return Ok(()),
    };
    if is_enabled(needs) {
        return Ok(());
    }
    Err(DatasetError::Unsupported {
        name: dataset.to_owned(),
        what: format!("this value of '{property}' without feature {needs}"),
    })
}

/// Refuses iterations that would make guessing too cheap.
pub(crate) fn check_iterations(iterations: u64) -> Result<(), DatasetError> {
    let refused = |reason| DatasetError::InvalidProperty {
        property: "pbkdf2iters".to_owned(),
        reason,
    };
    // PBKDF2 counts in 32 bits.
    if iterations > u64::from(u32::MAX) {
        let reason = format!("maximum pbkdf2 iterations is {}", u32::MAX);
        return Err(refused(reason));
    }
    if iterations >= PBKDF2_ITERATIONS_MIN {
        return Ok(());
    }
    let reason = format!("minimum pbkdf2 iterations is {PBKDF2_ITERATIONS_MIN}");
    Err(refused(reason))
}
