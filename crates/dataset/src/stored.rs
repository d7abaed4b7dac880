//! Properties as they are stored: lookups along the chain of directories (module/zfs/dsl_prop.c).
//! Changes are in `change.rs`.
//!
//! Beside `name`, a ZAP of properties may hold `name$recvd` (what a receive brought),
//! `name$inherit` (inherit although a receive brought something) and `name$iuv` (a value that old
//! releases do not know; `name` then holds the default for them).

use std::sync::Arc;

use format::ObjectId;
use object::{Zap, ZapValue};

use crate::dsl::DslPool;
use crate::props::{Property, find};
use crate::state::{Dir, Ds};
use crate::{DatasetError, PropertySource, PropertyValue};

/// Behind the name of what a receive brought.
pub(crate) const RECEIVED: &str = "$recvd";
/// Behind the name of what is inherited although a receive brought something.
pub(crate) const INHERIT: &str = "$inherit";
/// Behind the name of a value that old releases do not know.
pub(crate) const UNKNOWN_VALUE: &str = "$iuv";

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

/// Where a stored value was found.
enum Found {
    Local(PropertyValue),
    Received(PropertyValue),
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
