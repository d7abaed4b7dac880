//! Properties as they are stored: lookups along the chain of directories, and changes
//! (module/zfs/dsl_prop.c).
//!
//! Beside `name`, a ZAP of properties may hold `name$recvd` (what a receive brought),
//! `name$inherit` (inherit although a receive brought something) and `name$iuv` (a value that old
//! releases do not know; `name` then holds the default for them).

use device::BoxFuture;
use std::sync::Arc;

use format::{Compression, ObjectId, ObjectType};
use object::{SyncContext, Zap, ZapOptions, ZapValue};
use zio::Tx;

use crate::dsl::DslPool;
use crate::features::guid;
use crate::new_key::RootKey;
use crate::props::{Attr, Kinds, Property, ValueKind, find, fits_a_value, refusal};
use crate::set::check_feature;
use crate::settings::compression_of;
use crate::state::{Dir, Ds};
use crate::{DatasetError, DatasetKind, PropertySource, PropertyValue};

const RECEIVED: &str = "$recvd";
const INHERIT: &str = "$inherit";
const UNKNOWN_VALUE: &str = "$iuv";

/// A stored value, as a property's.
fn from_zap(value: &ZapValue) -> Option<PropertyValue> {
    if value.integer_bytes == 1 {
        return Some(PropertyValue::Text(value.as_str().map_or_else(
            || {
                String::from_utf8_lossy(&value.data)
                    .trim_end_matches('\0')
                    .to_owned()
            },
            str::to_owned,
        )));
    }
    value.as_u64().map(PropertyValue::Number)
}

fn to_zap(value: &PropertyValue) -> ZapValue {
    match value {
        PropertyValue::Number(number) => ZapValue::from_u64(*number),
        PropertyValue::Text(text) => ZapValue::from_str_z(text),
    }
}

/// Where a stored value was found.
enum Found {
    Local(PropertyValue),
    Received(PropertyValue),
}

/// Values that releases before them take for something else: those store the default beside.
fn is_unknown_to_old(name: &str, value: &PropertyValue) -> bool {
    match (name, value) {
        ("redundant_metadata", PropertyValue::Number(number)) => *number >= 2,
        ("snapdir", PropertyValue::Number(number)) => *number == 2,
        _ => false,
    }
}

async fn found_in(zap: &Zap, name: &str) -> Result<Option<Found>, DatasetError> {
    let newer = format!("{name}{UNKNOWN_VALUE}");
    if let Some(value) = zap.lookup(&newer).await?
        && let Some(PropertyValue::Number(number)) = from_zap(&value)
        && find(name).is_some_and(|property| property.word(number).is_some())
    {
        return Ok(Some(Found::Local(PropertyValue::Number(number))));
    }
    if let Some(value) = zap.lookup(name).await?
        && let Some(value) = from_zap(&value)
    {
        return Ok(Some(Found::Local(value)));
    }
    if zap.lookup(format!("{name}{INHERIT}")).await?.is_some() {
        return Ok(None);
    }
    Ok(zap
        .lookup(format!("{name}{RECEIVED}"))
        .await?
        .as_ref()
        .and_then(from_zap)
        .map(Found::Received))
}

/// Properties of datasets: [`DslPool::properties`].
#[derive(Clone, Copy)]
pub struct Properties<'a> {
    pub(crate) dsl: &'a Arc<DslPool>,
}

impl DslPool {
    /// Properties.
    pub fn properties(self: &Arc<Self>) -> Properties<'_> {
        Properties { dsl: self }
    }
}

impl Properties<'_> {
    async fn property_zap(&self, zap: ObjectId) -> Result<Option<Zap>, DatasetError> {
        if zap.is_zero() {
            return Ok(None);
        }
        Ok(Some(Zap::hold(self.dsl.mos(), zap).await?))
    }

    /// A directory's own setting of a number that is not inherited; zero without.
    pub(crate) async fn own_number(&self, dir: &Arc<Dir>, name: &str) -> Result<u64, DatasetError> {
        Ok(self.own_setting(dir, name).await?.unwrap_or(0))
    }

    /// The same; `None` without.
    pub(crate) async fn own_setting(
        &self,
        dir: &Arc<Dir>,
        name: &str,
    ) -> Result<Option<u64>, DatasetError> {
        let properties = dir.state().phys.properties;
        let Some(zap) = self.property_zap(properties).await? else {
            return Ok(None);
        };
        Ok(match found_in(&zap, name).await? {
            Some(Found::Local(value) | Found::Received(value)) => value.number(),
            None => None,
        })
    }

    /// The value of a property of a directory or (with its own ZAP) a snapshot, and where it comes
    /// from; `None` when nobody set it and it has no default (`dsl_prop_get_dd`).
    pub(crate) async fn effective(
        &self,
        dataset: &Arc<Ds>,
        name: &str,
    ) -> Result<Option<(PropertyValue, PropertySource)>, DatasetError> {
        let (dir, own_zap, is_snapshot) = {
            let state = dataset.state();
            let is_snapshot = state.phys.is_snapshot();
            let own_zap = if is_snapshot {
                state.phys.properties
            } else {
                ObjectId::ZERO
            };
            (state.dir.clone(), own_zap, is_snapshot)
        };
        let property = find(name);
        let inheritable = property.is_none_or(Property::is_inheritable);
        if let Some(zap) = self.property_zap(own_zap).await?
            && let Some(found) = found_in(&zap, name).await?
        {
            return Ok(Some(match found {
                Found::Local(value) => (value, PropertySource::Local),
                Found::Received(value) => (value, PropertySource::Received),
            }));
        }
        if !is_snapshot || inheritable {
            let mut at = Some(dir.clone());
            while let Some(dir_at) = at {
                let is_own = !is_snapshot && Arc::ptr_eq(&dir_at, &dir);
                if !is_own && !inheritable {
                    break;
                }
                let (zap, parent) = {
                    let state = dir_at.state();
                    (state.phys.properties, state.parent.clone())
                };
                if let Some(zap) = self.property_zap(zap).await?
                    && let Some(found) = found_in(&zap, name).await?
                {
                    let (value, source) = match found {
                        Found::Local(value) if is_own => (value, PropertySource::Local),
                        Found::Received(value) if is_own => (value, PropertySource::Received),
                        Found::Local(value) | Found::Received(value) => (
                            value,
                            PropertySource::Inherited(dir_at.full_name(&self.dsl.pool_name())),
                        ),
                    };
                    let value = if name == "mountpoint" {
                        below_mountpoint(value, &dir_at, &dir)
                    } else {
                        value
                    };
                    return Ok(Some((value, source)));
                }
                at = parent;
            }
        }
        Ok(property.and_then(Property::default_value).map(|value| {
            let value = if name == "mountpoint" {
                default_mountpoint(&dir, &self.dsl.pool_name())
            } else {
                value
            };
            (value, PropertySource::Default)
        }))
    }

    /// The number of a number or index property.
    pub(crate) async fn effective_number(
        &self,
        dataset: &Arc<Ds>,
        name: &str,
    ) -> Result<u64, DatasetError> {
        let value = self.effective(dataset, name).await?;
        Ok(value.and_then(|(value, _)| value.number()).unwrap_or(0))
    }

    /// All user properties of a dataset: its own and inherited ones.
    pub(crate) async fn user_properties(
        &self,
        dataset: &Arc<Ds>,
    ) -> Result<Vec<(String, PropertyValue, PropertySource)>, DatasetError> {
        let mut names = std::collections::BTreeSet::new();
        let (own_zap, dir) = {
            let state = dataset.state();
            (
                if state.phys.is_snapshot() {
                    state.phys.properties
                } else {
                    ObjectId::ZERO
                },
                state.dir.clone(),
            )
        };
        let mut zaps = vec![own_zap];
        let mut at = Some(dir);
        while let Some(dir) = at {
            let state = dir.state();
            zaps.push(state.phys.properties);
            at = state.parent.clone();
        }
        for zap in zaps {
            if let Some(zap) = self.property_zap(zap).await? {
                for entry in zap.all().await? {
                    let name = String::from_utf8_lossy(&entry.name);
                    let name = name.strip_suffix(RECEIVED).unwrap_or(&name);
                    if name.contains(':') && !name.contains('$') {
                        names.insert(name.to_owned());
                    }
                }
            }
        }
        let mut out = Vec::new();
        for name in names {
            if let Some((value, source)) = self.effective(dataset, &name).await? {
                out.push((name, value, source));
            }
        }
        Ok(out)
    }

    /// Values that a receive brought.
    pub(crate) async fn received_values(
        &self,
        dataset: &Arc<Ds>,
    ) -> Result<Vec<(String, PropertyValue)>, DatasetError> {
        let zap = match dataset.is_snapshot() {
            true => dataset.state().phys.properties,
            false => dataset.dir().state().phys.properties,
        };
        let Some(zap) = self.property_zap(zap).await? else {
            return Ok(Vec::new());
        };
        let mut out = Vec::new();
        for entry in zap.all().await? {
            let stored = String::from_utf8_lossy(&entry.name);
            if let Some(name) = stored.strip_suffix(RECEIVED)
                && let Some(value) = from_zap(&entry.value)
            {
                out.push((name.to_owned(), value));
            }
        }
        out.sort_by(|one, other| one.0.cmp(&other.0));
        Ok(out)
    }

    /// Sets a property's stored value (`dsl_prop_set_sync_impl` with a local source).
    async fn store(
        &self,
        ctx: &SyncContext,
        zap: &Zap,
        name: &str,
        value: &PropertyValue,
    ) -> Result<(), DatasetError> {
        let tx = Tx::syncing(ctx.txg);
        remove_if_there(zap, &tx, &format!("{name}{INHERIT}")).await?;
        let newer = format!("{name}{UNKNOWN_VALUE}");
        if is_unknown_to_old(name, value)
            && let Some(default) = find(name).and_then(Property::default_value)
        {
            zap.update(&tx, &newer, to_zap(value)).await?;
            zap.update(&tx, name, to_zap(&default)).await?;
        } else {
            remove_if_there(zap, &tx, &newer).await?;
            zap.update(&tx, name, to_zap(value)).await?;
        }
        Ok(())
    }

    /// Sets or (`None`) inherits a property of a dataset, with all that follows from it, in
    /// syncing context. What is open is told by the caller.
    pub(crate) async fn change_property(
        &self,
        ctx: &SyncContext,
        dataset: &Arc<Ds>,
        name: &str,
        value: Option<&PropertyValue>,
    ) -> Result<(), DatasetError> {
        self.change_property_from(ctx, dataset, name, value, false)
            .await
    }

    /// The same; with `received`, nothing means what a receive brought (`ZPROP_SRC_NONE`).
    pub(crate) fn change_property_from<'a>(
        &'a self,
        ctx: &'a SyncContext,
        dataset: &'a Arc<Ds>,
        name: &'a str,
        value: Option<&'a PropertyValue>,
        received: bool,
    ) -> BoxFuture<'a, Result<(), DatasetError>> {
        Box::pin(async move {
            let tx = Tx::syncing(ctx.txg);
            let dir = dataset.dir();
            let is_snapshot = dataset.is_snapshot();
            let mut zap = if is_snapshot {
                dataset.state().phys.properties
            } else {
                dir.state().phys.properties
            };
            if zap.is_zero() {
                if value.is_none() {
                    return Ok(());
                }
                zap = Zap::create(self.dsl.mos(), &tx, ZapOptions::new(ObjectType::DSL_PROPS))
                    .await?
                    .id();
                dataset.change(|state| state.phys.properties = zap);
            }
            let zap = Zap::hold(self.dsl.mos(), zap).await?;
            match value {
                Some(value) => self.store(ctx, &zap, name, value).await?,
                None => {
                    remove_if_there(&zap, &tx, name).await?;
                    remove_if_there(&zap, &tx, &format!("{name}{UNKNOWN_VALUE}")).await?;
                    if received {
                        remove_if_there(&zap, &tx, &format!("{name}{INHERIT}")).await?;
                    } else if zap.lookup("$hasrecvd").await?.is_some() {
                        zap.update_u64(&tx, format!("{name}{INHERIT}"), 0).await?;
                    }
                }
            }
            if is_snapshot {
                if zap.count().await? == 0 {
                    dataset.change(|state| state.phys.properties = ObjectId::ZERO);
                    self.dsl.mos().free(&tx, zap.id()).await?;
                }
            } else {
                let number = match value {
                    // Of what is not inherited, that is the received value or none.
                    None => self.own_number(&dir, name).await?,
                    Some(value) => value.number().unwrap_or(0),
                };
                self.property_took_effect(ctx, dataset, &dir, name, number, value.is_some())
                    .await?;
            }
            let event = if value.is_some() { "set" } else { "inherit" };
            let shown = match self.effective(dataset, name).await? {
                Some((PropertyValue::Number(number), _)) => number.to_string(),
                Some((PropertyValue::Text(text), _)) => text,
                None => String::new(),
            };
            let full_name = self.dsl.directories().full_name(dataset).await?;
            self.dsl
                .history(
                    ctx,
                    event,
                    full_name,
                    dataset.object,
                    format!("{}={shown}", name.strip_suffix(RECEIVED).unwrap_or(name)),
                )
                .await
        })
    }

    /// Stores what a receive brought in place of what an earlier one brought, in syncing context.
    pub(crate) async fn store_received(
        &self,
        ctx: &SyncContext,
        dataset: &Arc<Ds>,
        values: &[(String, PropertyValue)],
    ) -> Result<(), DatasetError> {
        if dataset.is_snapshot() {
            for (name, value) in values {
                let name = format!("{name}{RECEIVED}");
                self.change_property(ctx, dataset, &name, Some(value))
                    .await?;
            }
            return Ok(());
        }
        let tx = Tx::syncing(ctx.txg);
        let dir = dataset.dir();
        let zap = dir.state().phys.properties;
        let zap = Zap::hold(self.dsl.mos(), zap).await?;
        let mut changed: Vec<String> = Vec::new();
        for entry in zap.all().await? {
            let stored = String::from_utf8_lossy(&entry.name).into_owned();
            if let Some(name) = stored.strip_suffix(RECEIVED)
                && !values.iter().any(|(kept, _)| kept == name)
            {
                remove_if_there(&zap, &tx, &stored).await?;
                changed.push(name.to_owned());
            }
        }
        zap.update_u64(&tx, "$hasrecvd", 0).await?;
        for (name, value) in values {
            zap.update(&tx, format!("{name}{RECEIVED}"), to_zap(value))
                .await?;
            changed.push(name.clone());
        }
        for name in changed {
            if zap.lookup(&name).await?.is_some() {
                continue;
            }
            let number = self.own_number(&dir, &name).await?;
            self.property_took_effect(ctx, dataset, &dir, &name, number, number != 0)
                .await?;
        }
        Ok(())
    }

    async fn property_took_effect(
        &self,
        ctx: &SyncContext,
        dataset: &Arc<Ds>,
        dir: &Arc<Dir>,
        name: &str,
        number: u64,
        is_set: bool,
    ) -> Result<(), DatasetError> {
        match name {
            "quota" => dir.change(|state| state.phys.quota_bytes = number),
            "reservation" => dir.set_reservation(number),
            "refquota" => dataset.state().refquota_bytes = number,
            "refreservation" => self.dsl.space().set_refreservation(dataset, number),
            "filesystem_limit" | "snapshot_limit" if is_set => {
                self.dsl.limits().count_below(ctx, dir).await?;
            }
            // With the first block would be soon enough; OpenZFS does not wait for that
            // (`dsl_dataset_set_compression_sync`, module/zfs/dsl_dataset.c).
            "compression" if is_set && compression_of(number, true).0 == Compression::Zstd => {
                let marked = dataset.state().features.contains_key(guid::ZSTD_COMPRESS);
                if !marked {
                    let marker = ZapValue::from_u64(0);
                    self.dsl
                        .activate_feature(ctx, dataset, guid::ZSTD_COMPRESS, marker)
                        .await?;
                }
            }
            _ => {}
        }
        Ok(())
    }
}

async fn remove_if_there(zap: &Zap, tx: &Tx, name: &str) -> Result<(), DatasetError> {
    match zap.remove(tx, name).await {
        Err(error) if !error.is_not_found() => Err(error.into()),
        _ => Ok(()),
    }
}

/// Names from `top` (exclusive) down to `dir`, joined by slashes.
fn path_below(top: &Arc<Dir>, dir: &Arc<Dir>) -> String {
    let mut parts = Vec::new();
    let mut at = dir.clone();
    while !Arc::ptr_eq(&at, top) {
        let (name, parent) = {
            let state = at.state();
            (state.name.clone(), state.parent.clone())
        };
        parts.push(name);
        match parent {
            Some(parent) => at = parent,
            None => break,
        }
    }
    parts.reverse();
    parts.join("/")
}

/// What a mount point set on an ancestor is for a directory below it (`zfs_prop_get`,
/// lib/libzfs/libzfs_dataset.c).
fn below_mountpoint(value: PropertyValue, set_on: &Arc<Dir>, dir: &Arc<Dir>) -> PropertyValue {
    match value {
        PropertyValue::Text(text) if text.starts_with('/') => {
            let below = path_below(set_on, dir);
            PropertyValue::Text(if below.is_empty() {
                text
            } else {
                format!("{}/{below}", text.trim_end_matches('/'))
            })
        }
        other => other,
    }
}

fn default_mountpoint(dir: &Arc<Dir>, pool_name: &str) -> PropertyValue {
    PropertyValue::Text(format!("/{}", dir.full_name(pool_name)))
}

/// Checks the properties of a dataset that is to be made, as far as they say themselves.
///
/// # Errors
/// [`DatasetError::InvalidProperty`], [`DatasetError::Unsupported`].
pub fn check_new_properties(
    properties: &[(String, String)],
    kind: crate::DatasetKind,
) -> Result<(), DatasetError> {
    for (name, typed) in properties {
        parse_setting(name, typed, kind.kinds(), true)?;
    }
    Ok(())
}

/// Checks the properties of the root filesystem of a pool that is to be made with these features
/// (by guid), before anything is written.
///
/// # Errors
/// As [`check_new_properties`]; also for a value that needs another feature.
pub fn check_root_properties(
    pool: &str,
    properties: &[(String, String)],
    features: &[String],
) -> Result<(), DatasetError> {
    let enabled = crate::features::with_dependencies(features);
    let kinds = crate::DatasetKind::Filesystem.kinds();
    for (name, typed) in properties {
        if let Some(number) = parse_setting(name, typed, kinds, true)?.number() {
            check_feature(pool, name, number, |needs| enabled.contains(needs))?;
        }
    }
    Ok(())
}

/// Checks whether the root filesystem of a pool that is to be made with these features (by guid)
/// can be encrypted as its properties say.
///
/// # Errors
/// [`DatasetError::InvalidProperty`], [`DatasetError::Unsupported`].
pub fn check_root_encryption(
    pool: &str,
    properties: &[(String, String)],
    features: &[String],
    key: RootKey<'_>,
) -> Result<(), DatasetError> {
    let enabled = crate::features::with_dependencies(features);
    let kinds = crate::DatasetKind::Filesystem.kinds();
    let mut parsed = Vec::new();
    for (name, typed) in properties {
        parsed.push((name.clone(), parse_setting(name, typed, kinds, true)?));
    }
    crate::new_key::check_root(pool, &parsed, key, |needs| enabled.contains(needs))
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
    let kinds = crate::DatasetKind::Filesystem.kinds();
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
        if crate::props::is_user_property(name) {
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
            let value = crate::props::parse_value(property, kinds, typed)?;
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
                crate::new_key::check_iterations(*iterations)?;
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
