//! Properties and features of an imported pool, as `zpool get` and `zpool set` have them.

use format::{Guid, Txg, Uberblock};
use spa::props::{Change, Kind, Row, Stored};
use spa::{bootfs, features, props, vdevprops};

use super::Pool;
use crate::change::ChangeTask;
use crate::{FeatureStatus, PoolError, PoolProperty, PropertySource, labelroom, reopen, status};

/// Properties and features of a pool. [`Pool::properties`] gives them.
#[derive(Clone, Copy)]
pub struct Properties<'p> {
    pool: &'p Pool,
}

impl Pool {
    /// Properties and features.
    pub fn properties(&self) -> Properties<'_> {
        Properties { pool: self }
    }
}

impl Properties<'_> {
    /// All properties, feature flags included, in the order of `zpool get all`.
    pub fn all(self) -> Vec<PoolProperty> {
        let mut out: Vec<PoolProperty> = props::TABLE.iter().map(|row| self.native(row)).collect();
        out.extend(self.features().into_iter().map(|feature| PoolProperty {
            name: format!("feature@{}", feature.name),
            value: feature.state.word().to_owned(),
            number: None,
            source: PropertySource::Local,
        }));
        for (name, stored) in &self.pool.core.props.lock().stored {
            if let (true, Stored::Text(text)) = (props::is_user(name), stored) {
                out.push(PoolProperty {
                    name: name.clone(),
                    value: text.clone(),
                    number: None,
                    source: PropertySource::Local,
                });
            }
        }
        out
    }

    /// One property.
    pub fn get(self, name: &str) -> Option<PoolProperty> {
        match props::find(name) {
            Some(row) => Some(self.native(row)),
            None => self.all().into_iter().find(|prop| prop.name == name),
        }
    }

    fn native(self, row: &Row) -> PoolProperty {
        let number = |number: u64| PoolProperty {
            name: row.name.to_owned(),
            value: number.to_string(),
            number: Some(number),
            source: PropertySource::None,
        };
        let text = |value: &str, source| PoolProperty {
            name: row.name.to_owned(),
            value: value.to_owned(),
            number: None,
            source,
        };
        let ratio = |percent: u64| {
            let value = format!("{}.{:02}", percent / 100, percent % 100);
            text(&value, PropertySource::None)
        };
        let optional = |value: Option<String>, unset: &str| match value {
            Some(value) => text(&value, PropertySource::Local),
            None => text(unset, PropertySource::Default),
        };
        let numbers = || self.pool.numbers();
        match row.name {
            "size" => number(numbers().size_bytes),
            "capacity" => number(numbers().capacity_percent()),
            "free" => number(numbers().free_bytes),
            "allocated" => number(numbers().allocated_bytes),
            "freeing" => number(numbers().freeing_bytes),
            "leaked" => number(numbers().leaked_bytes),
            "fragmentation" => match numbers().fragmentation_percent {
                Some(percent) => number(u64::from(percent)),
                None => text("-", PropertySource::None),
            },
            "expandsize" => match numbers().expandsize_bytes {
                0 => text("-", PropertySource::None),
                bytes => number(bytes),
            },
            "checkpoint" => match self.pool.checkpoint_bytes() {
                0 => text("-", PropertySource::None),
                bytes => number(bytes),
            },
            "health" => {
                let health = status::health(&self.pool.core);
                text(health.word(), PropertySource::None)
            }
            "guid" => number(self.pool.core.guid().get()),
            "load_guid" => number(self.pool.core.load_guid),
            "version" => {
                let version = self.pool.core.identity.lock().version;
                if version == 5000 {
                    text("-", PropertySource::Default)
                } else {
                    PoolProperty {
                        source: PropertySource::Local,
                        ..number(version)
                    }
                }
            }
            "dedupratio" => ratio(self.pool.core.shared_blocks.dedup.status().ratio_percent()),
            "dedup_table_size" => number(self.pool.core.shared_blocks.dedup.status().table_bytes),
            "bcloneratio" => ratio(self.pool.core.shared_blocks.clones.status().ratio_percent()),
            "bcloneused" => number(self.pool.core.shared_blocks.clones.status().used_bytes),
            "bclonesaved" => number(self.pool.core.shared_blocks.clones.status().saved_bytes),
            "last_scrubbed_txg" => number(self.pool.core.scans.scan.last_scrubbed_txg().get()),
            "altroot" => optional(self.pool.core.altroot.clone(), "-"),
            "cachefile" => optional(self.pool.core.props.lock().cachefile.clone(), "-"),
            "comment" => optional(self.pool.core.identity.lock().comment.clone(), "-"),
            "compatibility" => {
                optional(self.pool.core.identity.lock().compatibility.clone(), "off")
            }
            "readonly" => {
                let value = if self.pool.core.read_only {
                    "on"
                } else {
                    "off"
                };
                text(value, PropertySource::None)
            }
            _ => self.stored(row),
        }
    }

    /// Full name of the dataset that property `bootfs` names. [`Self::all`] only has the place
    /// for it.
    ///
    /// # Errors
    /// When the dataset that is stored cannot be read.
    pub async fn bootfs(self) -> Result<Option<String>, PoolError> {
        match self.pool.core.bootfs.dataset() {
            Some(dataset) => Ok(Some(
                self.pool.core.dsl.directories().name_of(dataset).await?,
            )),
            None => Ok(None),
        }
    }

    /// A property kept in the `pool_props` object.
    fn stored(self, row: &Row) -> PoolProperty {
        let stored = self.pool.core.props.get(row.name);
        let (default, is_number) = match row.kind {
            Kind::Number(default) => (default, true),
            Kind::Word(_, default) => (default, false),
            Kind::Text => (0, false),
        };
        let (value, number, source) = match (stored, row.kind) {
            (Some(Stored::Text(text)), _) => (text, None, PropertySource::Local),
            (None, Kind::Text) => ("-".to_owned(), None, PropertySource::Default),
            (Some(Stored::Number(number)), _) if number != default => (
                props::render(row, number),
                Some(number),
                PropertySource::Local,
            ),
            _ => (
                props::render(row, default),
                Some(default),
                PropertySource::Default,
            ),
        };
        PoolProperty {
            name: row.name.to_owned(),
            value,
            number: number.filter(|_| is_number),
            source,
        }
    }

    /// Sets a property; `feature@NAME` with `enabled` enables a feature.
    ///
    /// # Errors
    /// [`PoolError::BadProperty`], [`PoolError::BadFeature`], [`PoolError::ReadOnly`].
    pub async fn set(self, name: &str, value: &str) -> Result<(), PoolError> {
        self.change(props::parse(name, value)?).await
    }

    pub(super) async fn change(self, change: Change) -> Result<(), PoolError> {
        let core = self.pool.core.clone();
        if let Change::Session(name, value) = &change {
            if *name == "cachefile" {
                core.props.lock().cachefile = (!value.is_empty()).then(|| value.clone());
                return Ok(());
            }
            return Err(PoolError::BadProperty {
                property: (*name).to_owned(),
                value: value.clone(),
                why: match *name {
                    "readonly" => format!("property '{name}' can only be set at import time"),
                    _ => {
                        format!("property '{name}' can only be set during pool creation or import")
                    }
                },
            });
        }
        let change = match change {
            Change::Stored(name, Stored::Text(dataset)) if name == bootfs::NAME => {
                self.pool.core.check_open()?;
                let object = bootfs::find(&core.dsl, &dataset).await?;
                Change::Stored(name, Stored::Number(object.get()))
            }
            change => change,
        };
        if let Change::Feature(name) = &change {
            features::guid_to_enable(name)?;
            let version = core.identity.lock().version;
            if version != Uberblock::VERSION_FEATURES {
                return Err(PoolError::BadFeature {
                    feature: name.clone(),
                    why: format!(
                        "the pool is of version {version}, without features: use 'zpool upgrade'"
                    ),
                });
            }
        }
        if let Change::Version(wanted) = &change {
            let version = core.identity.lock().version;
            if *wanted < version {
                return Err(PoolError::BadProperty {
                    property: "version".to_owned(),
                    value: wanted.to_string(),
                    why: format!("the pool is of version {version}, and versions only rise"),
                });
            }
        }
        let hostid = core.host.lock().hostid;
        props::check_host(&change, hostid)?;
        self.pool.core.check_writeable()?;
        if let Change::Config(name, text) = &change {
            let mut pairs = core.pairs(Txg::ZERO);
            match *name {
                "comment" => pairs.comment = Some(text.clone()),
                _ => pairs.compatibility = Some(text.clone()),
            }
            labelroom::check_property(&pairs, &core.tree, name, text)?;
        }
        if let Change::Feature(name) = &change
            && features::guid_to_enable(name)? == features::HEAD_ERRLOG
        {
            core.prepare_error_upgrade().await;
        }
        let grows = matches!(&change, Change::Stored(name, _) if name == "autoexpand");
        let task = ChangeTask {
            core: core.clone(),
            change,
        };
        core.run_task(task).await?;
        core.start_heart();
        core.passes.start_trim();
        if grows {
            reopen::grow_if_wanted(&core).await?;
        }
        Ok(())
    }

    /// Sets a property of a vdev, or of the root vdev by the pool's guid (`zpool set PROPERTY=VALUE
    /// POOL VDEV`). Returns once it is on disk.
    ///
    /// # Errors
    /// [`PoolError::BadVdevProperty`], [`PoolError::NoSuchDevice`], [`PoolError::ReadOnly`].
    pub async fn set_of_vdev(self, vdev: Guid, name: &str, value: &str) -> Result<(), PoolError> {
        self.pool.core.check_open()?;
        let change = vdevprops::Change::parse(&self.pool.core, vdev, name, value)?;
        self.pool.core.check_writeable()?;
        vdevprops::set(&self.pool.core.spa, change).await
    }

    /// Feature flags, in the order of `zpool get all`.
    pub fn features(self) -> Vec<FeatureStatus> {
        features::status(self.pool.core.dsl.features())
    }

    /// Names of the features that this release supports and the pool has not enabled. Upgrades
    /// leave some of them out ([`crate::SupportedFeature::no_upgrade`]).
    pub fn disabled_features(self) -> Vec<String> {
        let is_disabled = |feature: &FeatureStatus| {
            feature.state == crate::FeatureState::Disabled
                && features::guid_to_enable(&feature.name).is_ok()
        };
        let features = self.features().into_iter().filter(is_disabled);
        features.map(|feature| feature.name).collect()
    }

    /// Raises the version of the pool's format, without enabling features. One that has it, or a
    /// newer one, is left as it is.
    ///
    /// # Errors
    /// [`PoolError::ReadOnly`]; of reading what the step changes.
    pub async fn raise_version(self, version: u64) -> Result<(), PoolError> {
        self.pool.core.check_writeable()?;
        if self.pool.core.identity.lock().version < version {
            self.change(Change::Version(version)).await?;
        }
        Ok(())
    }

    /// Enables the features that this release supports and `wanted` takes (by name), but those that
    /// upgrades leave out, after the step from an older version to feature flags; returns their
    /// names.
    ///
    /// # Errors
    /// [`PoolError::ReadOnly`].
    pub async fn upgrade(
        self,
        wanted: &(dyn Fn(&str) -> bool + Sync),
    ) -> Result<Vec<String>, PoolError> {
        self.pool.core.check_writeable()?;
        let version = self.pool.core.identity.lock().version;
        if version != Uberblock::VERSION_FEATURES {
            self.change(Change::Version(Uberblock::VERSION_FEATURES))
                .await?;
        }
        let mut enabled = Vec::new();
        for name in self.disabled_features() {
            if wanted(&name) && !features::is_left_out_of_upgrades(&name) {
                self.change(Change::Feature(name.clone())).await?;
                enabled.push(name);
            }
        }
        Ok(enabled)
    }
}
