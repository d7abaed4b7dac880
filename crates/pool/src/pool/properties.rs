//! Properties and features of an imported pool, as `zpool get` and `zpool set` have them.

use format::{Guid, Txg, Uberblock};
use spa::props::{Change, Kind, Row, Stored};
use spa::{bootfs, features, props, vdevprops};

use super::Pool;
use crate::change::ChangeTask;
use crate::{FeatureStatus, PoolError, PoolProperty, PropertySource, labelroom, reopen, status};

impl Pool {
    /// All properties, feature flags included, in the order of `zpool get all`.
    pub fn props(&self) -> Vec<PoolProperty> {
        let mut out: Vec<PoolProperty> = props::TABLE.iter().map(|row| self.native(row)).collect();
        out.extend(self.features().into_iter().map(|feature| PoolProperty {
            name: format!("feature@{}", feature.name),
            value: feature.state.word().to_owned(),
            number: None,
            source: PropertySource::Local,
        }));
        for (name, stored) in &self.core.props.lock().stored {
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
    pub fn prop(&self, name: &str) -> Option<PoolProperty> {
        match props::find(name) {
            Some(row) => Some(self.native(row)),
            None => self.props().into_iter().find(|prop| prop.name == name),
        }
    }

    fn native(&self, row: &Row) -> PoolProperty {
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
        let numbers = || self.numbers();
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
            "checkpoint" => match self.checkpoint_bytes() {
                0 => text("-", PropertySource::None),
                bytes => number(bytes),
            },
            "health" => {
                let health = status::health(&self.core);
                text(health.word(), PropertySource::None)
            }
            "guid" => number(self.core.guid().get()),
            "load_guid" => number(self.core.load_guid),
            "version" => {
                let version = self.core.identity.lock().version;
                if version == 5000 {
                    text("-", PropertySource::Default)
                } else {
                    PoolProperty {
                        source: PropertySource::Local,
                        ..number(version)
                    }
                }
            }
            "dedupratio" => ratio(self.core.shared_blocks.dedup.status().ratio_percent()),
            "dedup_table_size" => number(self.core.shared_blocks.dedup.status().table_bytes),
            "bcloneratio" => ratio(self.core.shared_blocks.clones.status().ratio_percent()),
            "bcloneused" => number(self.core.shared_blocks.clones.status().used_bytes),
            "bclonesaved" => number(self.core.shared_blocks.clones.status().saved_bytes),
            "last_scrubbed_txg" => number(self.core.scans.scan.last_scrubbed_txg().get()),
            "altroot" => optional(self.core.altroot.clone(), "-"),
            "cachefile" => optional(self.core.props.lock().cachefile.clone(), "-"),
            "comment" => optional(self.core.identity.lock().comment.clone(), "-"),
            "compatibility" => optional(self.core.identity.lock().compatibility.clone(), "off"),
            "readonly" => {
                let value = if self.core.read_only { "on" } else { "off" };
                text(value, PropertySource::None)
            }
            _ => self.stored(row),
        }
    }

    /// Full name of the dataset that property `bootfs` names. [`Self::props`] only has the place
    /// for it.
    ///
    /// # Errors
    /// When the dataset that is stored cannot be read.
    pub async fn bootfs(&self) -> Result<Option<String>, PoolError> {
        match self.core.bootfs.dataset() {
            Some(dataset) => Ok(Some(self.core.dsl.directories().name_of(dataset).await?)),
            None => Ok(None),
        }
    }

    /// Bytes that only the checkpoint uses, or what is left of it.
    pub fn checkpoint_bytes(&self) -> u64 {
        self.core.space.checkpoint_bytes().values().sum()
    }

    /// A property kept in the `pool_props` object.
    fn stored(&self, row: &Row) -> PoolProperty {
        let stored = self.core.props.get(row.name);
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
    pub async fn set_prop(&self, name: &str, value: &str) -> Result<(), PoolError> {
        self.change(props::parse(name, value)?).await
    }

    pub(super) async fn change(&self, change: Change) -> Result<(), PoolError> {
        let core = self.core.clone();
        if let Change::Session(name, value) = &change {
            if *name == "cachefile" {
                core.props.lock().cachefile = (!value.is_empty()).then(|| value.clone());
                return Ok(());
            }
            return Err(PoolError::BadProperty {
                property: (*name).to_owned(),
                value: value.clone(),
                why: "it can only be set while the pool is created or imported".into(),
            });
        }
        let change = match change {
            Change::Stored(name, Stored::Text(dataset)) if name == bootfs::NAME => {
                self.check_open()?;
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
        props::check_host(&change, core.host.hostid)?;
        self.check_writeable()?;
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
    pub async fn set_vdev_prop(
        &self,
        vdev: Guid,
        name: &str,
        value: &str,
    ) -> Result<(), PoolError> {
        self.check_open()?;
        let change = vdevprops::Change::parse(&self.core, vdev, name, value)?;
        self.check_writeable()?;
        vdevprops::set(&self.core.spa, change).await
    }

    /// Feature flags, in the order of `zpool get all`.
    pub fn features(&self) -> Vec<FeatureStatus> {
        features::status(self.core.dsl.features())
    }

    /// Names of the features that this release supports and the pool has not enabled. Upgrades
    /// leave some of them out ([`crate::SupportedFeature::no_upgrade`]).
    pub fn disabled_features(&self) -> Vec<String> {
        let is_disabled = |feature: &FeatureStatus| {
            feature.state == crate::FeatureState::Disabled
                && features::guid_to_enable(&feature.name).is_ok()
        };
        let features = self.features().into_iter().filter(is_disabled);
        features.map(|feature| feature.name).collect()
    }

    /// Enables the features that this release supports and `wanted` takes (by name), but those that
    /// upgrades leave out, after the step from version 28 to feature flags; returns their names.
    ///
    /// # Errors
    /// [`PoolError::ReadOnly`].
    pub async fn upgrade(
        &self,
        wanted: &(dyn Fn(&str) -> bool + Sync),
    ) -> Result<Vec<String>, PoolError> {
        self.check_writeable()?;
        let version = self.core.identity.lock().version;
        if version != Uberblock::VERSION_FEATURES {
            self.change(Change::Version).await?;
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
