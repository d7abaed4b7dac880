//! Setting and inheriting properties: checks, and the sync task.

use std::sync::Arc;

use device::BoxFuture;
use format::ObjsetKind;
use object::SyncContext;

use crate::check::{
    check_feature, check_of_snapshot, check_settable, check_together, check_version, parse_setting,
};
use crate::dsl::DslPool;
use crate::info::{PropertyChange, kind_of};
use crate::props::{Kinds, ValueKind, find};
use crate::stored::Properties;
use crate::task::{BLOCKS_MIN, SpaceCheck, SyncTask};
use crate::{DatasetError, PropertyValue};

/// Properties that are set, but that `zfs inherit` refuses.
const NOT_INHERITABLE: &[&str] = &[
    "quota",
    "refquota",
    "reservation",
    "refreservation",
    "volsize",
    "version",
];

impl Properties<'_> {
    /// Sets or inherits properties, all or none.
    ///
    /// # Errors
    /// [`DatasetError::InvalidProperty`], [`DatasetError::NotFound`], ...
    pub async fn set(
        &self,
        name: &str,
        changes: &[(String, PropertyChange)],
    ) -> Result<(), DatasetError> {
        let task = {
            let _config = self.dsl.config.read().await;
            self.new_set_task(name, changes).await?
        };
        self.dsl.tasks().run(Arc::new(task)).await
    }

    /// Whether [`Self::set`] would do so now.
    ///
    /// # Errors
    /// As [`Self::set`].
    pub async fn check(
        &self,
        name: &str,
        changes: &[(String, PropertyChange)],
    ) -> Result<(), DatasetError> {
        let _config = self.dsl.config.read().await;
        let task = self.new_set_task(name, changes).await?;
        task.do_check().await
    }

    /// The task that changes one property, for who runs tasks in syncing context
    /// ([`crate::ProgramPool`]).
    ///
    /// # Errors
    /// As [`Self::set`].
    pub async fn set_task(
        &self,
        name: &str,
        property: &str,
        change: PropertyChange,
    ) -> Result<Arc<dyn SyncTask>, DatasetError> {
        let changes = [(property.to_owned(), change)];
        Ok(Arc::new(self.new_set_task(name, &changes).await?))
    }

    async fn new_set_task(
        &self,
        name: &str,
        changes: &[(String, PropertyChange)],
    ) -> Result<SetTask, DatasetError> {
        let dataset = self.dsl.directories().resolve(name).await?;
        let kinds = if dataset.is_snapshot() {
            check_of_snapshot(name, self.dsl.pool_version())?;
            Kinds::SNAPSHOT
        } else {
            kind_of(self.dsl.directories().objset_kind(&dataset).await?).kinds()
        };
        let mut parsed = Vec::new();
        for (property, change) in changes {
            let value = parse_change(property, change, kinds)?;
            if matches!(property.as_str(), "version" | "volsize") {
                return Err(DatasetError::Unsupported {
                    name: name.to_owned(),
                    what: format!(
                        "setting '{property}' here; it is kept by what is in the dataset and"
                    ),
                });
            }
            let received = *change == PropertyChange::Received;
            parsed.push((property.clone(), value, received));
        }
        Ok(SetTask {
            dsl: self.dsl.clone(),
            name: name.to_owned(),
            changes: parsed,
        })
    }

    /// Refuses a value that needs a feature which is not enabled, or a newer version of the pool
    /// (`zfs_check_settable`, module/zfs/zfs_ioctl.c).
    pub(crate) fn check_feature_of(
        &self,
        dataset: &str,
        property: &str,
        number: u64,
    ) -> Result<(), DatasetError> {
        check_version(dataset, property, number, self.dsl.pool_version())?;
        check_feature(dataset, property, number, |needs| {
            self.dsl.features().is_enabled(needs)
        })
    }
}

impl Properties<'_> {
    /// Sets what a receive brought, in place of what an earlier one brought: values count where
    /// nothing is set locally (`dsl_props_set` with `ZPROP_SRC_RECEIVED`). What a dataset has no
    /// use for, or cannot have here, is left out; its names are answered.
    ///
    /// # Errors
    /// [`DatasetError::NotFound`], and of writing.
    pub async fn receive(
        &self,
        name: &str,
        values: &[(String, PropertyValue)],
    ) -> Result<Vec<String>, DatasetError> {
        let kinds = {
            let _config = self.dsl.config.read().await;
            let dataset = self.dsl.directories().resolve(name).await?;
            match dataset.is_snapshot() {
                true => Kinds::SNAPSHOT,
                false => kind_of(self.dsl.directories().objset_kind(&dataset).await?).kinds(),
            }
        };
        let (mut taken, mut left_out) = (Vec::new(), Vec::new());
        for (property, value) in values {
            let is_known = match find(property) {
                None => crate::props::is_user_property(property),
                Some(native) => {
                    let is_of_type = matches!(
                        (native.kind, value),
                        (ValueKind::Text, PropertyValue::Text(_))
                            | (
                                ValueKind::Number | ValueKind::Index(_),
                                PropertyValue::Number(_)
                            )
                    );
                    let needs = value.number().unwrap_or(0);
                    kinds != Kinds::SNAPSHOT
                        && is_of_type
                        && check_settable(property, kinds, false).is_ok()
                        && !matches!(
                            property.as_str(),
                            "version" | "volsize" | "keylocation" | "keyformat" | "encryption"
                        )
                        && self.check_feature_of(name, property, needs).is_ok()
                }
            };
            let fits = value.text().is_none_or(crate::props::fits_a_value);
            match is_known && fits {
                true => taken.push((property.clone(), value.clone())),
                false => left_out.push(property.clone()),
            }
        }
        let task = ReceivedTask {
            dsl: self.dsl.clone(),
            name: name.to_owned(),
            values: taken,
        };
        self.dsl.tasks().run(Arc::new(task)).await?;
        Ok(left_out)
    }
}

struct ReceivedTask {
    dsl: Arc<DslPool>,
    name: String,
    values: Vec<(String, PropertyValue)>,
}

impl SyncTask for ReceivedTask {
    fn name(&self) -> &'static str {
        "set received properties"
    }
    fn space_check(&self) -> SpaceCheck {
        SpaceCheck::Reserved
    }
    fn blocks(&self) -> u64 {
        BLOCKS_MIN.max(self.values.len() as u64)
    }
    fn check<'a>(&'a self, _ctx: &'a SyncContext) -> BoxFuture<'a, Result<(), DatasetError>> {
        Box::pin(async {
            let dataset = self.dsl.directories().resolve(&self.name).await?;
            let limits = ["filesystem_limit", "snapshot_limit"];
            if self
                .values
                .iter()
                .any(|(name, _)| limits.contains(&name.as_str()))
            {
                self.dsl.readable().counted_below(&dataset.dir()).await?;
            }
            self.dsl.readable().properties(&dataset).await?;
            let dir = dataset.dir();
            self.dsl.readable().settings_of_open(&dir).await
        })
    }
    fn apply<'a>(&'a self, ctx: &'a SyncContext) -> BoxFuture<'a, Result<(), DatasetError>> {
        Box::pin(async {
            let dataset = self.dsl.directories().resolve(&self.name).await?;
            self.dsl
                .properties()
                .store_received(ctx, &dataset, &self.values)
                .await?;
            self.dsl.properties().refresh_open(&dataset.dir()).await
        })
    }
}

/// The value that a change stores; none where it removes one.
fn parse_change(
    property: &str,
    change: &PropertyChange,
    kinds: Kinds,
) -> Result<Option<PropertyValue>, DatasetError> {
    match change {
        PropertyChange::Set(typed) => parse_setting(property, typed, kinds, false).map(Some),
        PropertyChange::Inherit => {
            let native = check_settable(property, kinds, false)?;
            if native.is_some_and(|native| NOT_INHERITABLE.contains(&native.name)) {
                return Err(DatasetError::InvalidProperty {
                    property: property.to_owned(),
                    reason: format!("'{property}' property cannot be inherited"),
                });
            }
            Ok(None)
        }
        PropertyChange::Received => {
            check_settable(property, kinds, false)?;
            Ok(None)
        }
    }
}

/// Properties that may be set while three quarters of what is kept back is in use: to lower them is
/// what helps then (`dsl_dir_set_quota`, `dsl_dataset_set_refreservation`, ...).
const OF_SPACE: &[&str] = &["quota", "refquota", "reservation", "refreservation"];

struct SetTask {
    dsl: Arc<DslPool>,
    name: String,
    /// Names, values (nothing: inherit), and whether to go back to what was received.
    changes: Vec<(String, Option<PropertyValue>, bool)>,
}

impl SetTask {
    async fn do_check(&self) -> Result<(), DatasetError> {
        let dsl = &self.dsl;
        let dataset = dsl.directories().resolve(&self.name).await?;
        check_together(|wanted| {
            let (_, value, _) = self.changes.iter().find(|(name, ..)| name == wanted)?;
            value.as_ref()?.number()
        })?;
        for (name, value, _) in &self.changes {
            let number = value.as_ref().and_then(PropertyValue::number).unwrap_or(0);
            if dataset.is_snapshot() {
                continue;
            }
            dsl.space().check_space_property(&dataset, name, number)?;
            dsl.keys().check_block_bytes(&dataset, name, number).await?;
            if name == "keylocation" {
                let location = value.as_ref().and_then(PropertyValue::text);
                dsl.keys().check_key_location(&dataset, location).await?;
            }
            if value.is_some() {
                dsl.properties()
                    .check_feature_of(&self.name, name, number)?;
            }
            if name == "mountpoint" || name == "canmount" {
                debug_assert!(dsl.directories().objset_kind(&dataset).await? != ObjsetKind::Volume);
            }
            if name == "filesystem_limit" || name == "snapshot_limit" {
                dsl.readable().counted_below(&dataset.dir()).await?;
            }
        }
        dsl.readable().properties(&dataset).await?;
        dsl.readable().settings_of_open(&dataset.dir()).await
    }

    async fn do_apply(&self, ctx: &SyncContext) -> Result<(), DatasetError> {
        let dataset = self.dsl.directories().resolve(&self.name).await?;
        for (name, value, received) in &self.changes {
            self.dsl
                .properties()
                .change_property_from(ctx, &dataset, name, value.as_ref(), *received)
                .await?;
        }
        self.dsl.properties().refresh_open(&dataset.dir()).await
    }
}

impl SyncTask for SetTask {
    fn name(&self) -> &'static str {
        "set"
    }
    fn space_check(&self) -> SpaceCheck {
        let is_of_space = |name: &String| OF_SPACE.contains(&name.as_str());
        match self.changes.iter().all(|(name, ..)| is_of_space(name)) {
            true => SpaceCheck::ExtraReserved,
            false => SpaceCheck::Reserved,
        }
    }
    fn blocks(&self) -> u64 {
        BLOCKS_MIN.max(self.changes.len() as u64)
    }
    fn check<'a>(&'a self, _ctx: &'a SyncContext) -> BoxFuture<'a, Result<(), DatasetError>> {
        Box::pin(self.do_check())
    }
    fn apply<'a>(&'a self, ctx: &'a SyncContext) -> BoxFuture<'a, Result<(), DatasetError>> {
        Box::pin(self.do_apply(ctx))
    }
}
