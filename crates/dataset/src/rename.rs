//! Renaming filesystems and volumes, with all below them (`dsl_dir_rename_sync`), and setting
//! properties.

use std::sync::Arc;

use device::BoxFuture;
use format::{ObjsetKind, UsedBy};
use object::{SyncContext, Zap};
use zio::Tx;

use crate::create::{FILESYSTEM_COUNT, SNAPSHOT_COUNT, kind_of};
use crate::dsl::DslPool;
use crate::features::guid;
use crate::info::PropertyChange;
use crate::name::{NAME_MAX_BYTES, check_name, split_parent, split_snapshot};
use crate::props::Kinds;
use crate::settings::dedup_of;
use crate::state::{Dir, Space, accounted_delta};
use crate::stored::{check_settable, check_together, parse_setting};
use crate::task::{SpaceCheck, SyncTask};
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

impl DslPool {
    /// The closest directory that two are at or below.
    fn common_ancestor(&self, one: &Arc<Dir>, other: &Arc<Dir>) -> Arc<Dir> {
        let mut ancestor = Some(one.clone());
        while let Some(dir) = &ancestor {
            if other.is_within(dir) {
                break;
            }
            ancestor = dir.parent();
        }
        ancestor.unwrap_or_else(|| self.root_dir().clone())
    }

    /// Whether space can change from one directory to another (`dsl_dir_transfer_possible`).
    pub(crate) fn check_transfer(
        &self,
        from: &Arc<Dir>,
        to: &Arc<Dir>,
        bytes: u64,
        name: &str,
    ) -> Result<(), DatasetError> {
        let ancestor = self.common_ancestor(from, to);
        let mut delta = -(bytes as i64);
        let mut at = from.clone();
        while !Arc::ptr_eq(&at, &ancestor) {
            let state = at.state();
            delta = accounted_delta(state.phys.used_bytes, state.phys.reserved_bytes, delta);
            let Some(parent) = state.parent.clone() else {
                break;
            };
            drop(state);
            at = parent;
        }
        if self.space_available(to, Some((&ancestor, delta)), false) < bytes {
            return Err(DatasetError::NoSpace {
                name: name.to_owned(),
            });
        }
        Ok(())
    }

    /// Gives a filesystem or volume (with all below it) or a snapshot another name. What is open
    /// stays open.
    ///
    /// # Errors
    /// [`DatasetError::Exists`], [`DatasetError::NotFound`], [`DatasetError::InvalidName`], ...
    pub async fn rename(self: &Arc<Self>, from: &str, to: &str) -> Result<(), DatasetError> {
        check_name(to)?;
        if let (head, Some(old)) = split_snapshot(from) {
            let (to_head, new) = match split_snapshot(to) {
                (to_head, Some(new)) => (to_head, new),
                (new, None) => (head, new),
            };
            if to_head != head {
                return Err(DatasetError::InvalidName {
                    name: to.to_owned(),
                    reason: "snapshots must be part of same dataset".into(),
                });
            }
            return self.rename_snapshot(head, old, new).await;
        }
        self.run_task(Arc::new(RenameTask {
            dsl: self.clone(),
            from: from.to_owned(),
            to: to.to_owned(),
        }))
        .await
    }

    /// Sets or inherits properties, all or none.
    ///
    /// # Errors
    /// [`DatasetError::InvalidProperty`], [`DatasetError::NotFound`], ...
    pub async fn set_properties(
        self: &Arc<Self>,
        name: &str,
        changes: &[(String, PropertyChange)],
    ) -> Result<(), DatasetError> {
        let task = self.set_task(name, changes).await?;
        self.run_task(Arc::new(task)).await
    }

    /// Whether [`Self::set_properties`] would do so now.
    ///
    /// # Errors
    /// As [`Self::set_properties`].
    pub async fn check_properties(
        self: &Arc<Self>,
        name: &str,
        changes: &[(String, PropertyChange)],
    ) -> Result<(), DatasetError> {
        let task = self.set_task(name, changes).await?;
        let _config = self.config.read().await;
        task.do_check().await
    }

    async fn set_task(
        self: &Arc<Self>,
        name: &str,
        changes: &[(String, PropertyChange)],
    ) -> Result<SetTask, DatasetError> {
        let kinds = {
            let _config = self.config.read().await;
            let dataset = self.resolve(name).await?;
            if dataset.is_snapshot() {
                Kinds::SNAPSHOT
            } else {
                kind_of(self.objset_kind(&dataset).await?).kinds()
            }
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
            dsl: self.clone(),
            name: name.to_owned(),
            changes: parsed,
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

struct RenameTask {
    dsl: Arc<DslPool>,
    from: String,
    to: String,
}

impl RenameTask {
    async fn do_check(&self, ctx: &SyncContext) -> Result<(), DatasetError> {
        let dsl = &self.dsl;
        let dir = dsl.resolve_dir(&self.from).await?;
        let (Some(parent_name), _) = split_parent(&self.to) else {
            return Err(DatasetError::Exists {
                name: self.to.clone(),
            });
        };
        let Some(old_parent) = dir.parent() else {
            return Err(DatasetError::WrongKind {
                name: self.from.clone(),
                reason: "a pool is renamed by exporting it and importing it by its new name".into(),
            });
        };
        let (new_parent, _) = dsl.check_new_name(&self.to).await?;
        if new_parent.is_within(&dir) {
            return Err(DatasetError::InvalidName {
                name: self.to.clone(),
                reason: format!("New dataset name cannot be a descendant of '{parent_name}'"),
            });
        }
        // Names below get longer too.
        let longer = self.to.len().saturating_sub(self.from.len());
        let deeper = self
            .to
            .matches('/')
            .count()
            .saturating_sub(self.from.matches('/').count());
        if longer > 0 || deeper > 0 {
            let mut pending = vec![dir.clone()];
            while let Some(at) = pending.pop() {
                let name = at.full_name(&dsl.pool_name());
                let head = dsl.head(&at).await?;
                let mut longest = 0;
                for (snapshot, _) in dsl.snapshots(&head).await? {
                    longest = longest.max(snapshot.len() + 1);
                }
                if name.len() + longest + longer >= NAME_MAX_BYTES
                    || name.matches('/').count() + deeper >= crate::name::NESTING_MAX
                {
                    return Err(DatasetError::InvalidName {
                        name: self.to.clone(),
                        reason: "a name below it would be too long".into(),
                    });
                }
                pending.extend(dsl.children(&at).await?);
            }
        }
        if !Arc::ptr_eq(&old_parent, &new_parent) {
            let bytes = {
                let state = dir.state();
                state.phys.used_bytes.max(state.phys.reserved_bytes)
            };
            dsl.check_transfer(&old_parent, &new_parent, bytes, &self.to)?;
            dsl.check_move_encrypted(&dir, &new_parent).await?;
            // What was made before there were limits is counted first (`dsl_dir_rename_check`).
            if dsl.features().is_active(guid::FILESYSTEM_LIMITS) {
                dsl.count_below(ctx, &dir).await?;
            }
            // What is below both parents before and after counts no more than it did.
            let ancestor = dsl.common_ancestor(&old_parent, &new_parent);
            let (filesystems, snapshots) = self.counts(&dir).await?;
            for (more, which) in [(filesystems, FILESYSTEM_COUNT), (snapshots, SNAPSHOT_COUNT)] {
                dsl.check_limit(&new_parent, more, which, Some(&ancestor))
                    .await?;
            }
        }
        Ok(())
    }

    /// Filesystems (itself included) and snapshots that move along, as far as they are counted.
    async fn counts(&self, dir: &Arc<Dir>) -> Result<(u64, u64), DatasetError> {
        let dsl = &self.dsl;
        if !dir.state().is_zapified {
            return Ok((1, 0));
        }
        let zap = Zap::hold(dsl.mos(), dir.object).await?;
        Ok((
            zap.lookup_u64(FILESYSTEM_COUNT).await?.unwrap_or(0) + 1,
            zap.lookup_u64(SNAPSHOT_COUNT).await?.unwrap_or(0),
        ))
    }

    async fn do_apply(&self, ctx: &SyncContext) -> Result<(), DatasetError> {
        let dsl = &self.dsl;
        let tx = Tx::syncing(ctx.txg);
        let dir = dsl.resolve_dir(&self.from).await?;
        let old_parent = dir
            .parent()
            .ok_or_else(|| DatasetError::corrupt(dir.object, "it has no parent"))?;
        let (new_parent, last) = dsl.check_new_name(&self.to).await?;
        let head_object = dir.state().phys.head_dataset;
        dsl.history(
            ctx,
            "rename",
            self.from.clone(),
            head_object,
            format!("-> {}", self.to),
        )
        .await?;
        if !Arc::ptr_eq(&old_parent, &new_parent) {
            let (filesystems, snapshots) = self.counts(&dir).await?;
            for (parent, sign) in [(&old_parent, -1), (&new_parent, 1)] {
                dsl.adjust_count(ctx, parent, sign * filesystems as i64, FILESYSTEM_COUNT)
                    .await?;
                dsl.adjust_count(ctx, parent, sign * snapshots as i64, SNAPSHOT_COUNT)
                    .await?;
            }
            let (space, unused) = {
                let phys = dir.state().phys;
                (
                    Space {
                        used: phys.used_bytes as i64,
                        compressed: phys.compressed_bytes as i64,
                        uncompressed: phys.uncompressed_bytes as i64,
                    },
                    phys.reserved_bytes.saturating_sub(phys.used_bytes) as i64,
                )
            };
            let reserved = Space {
                used: unused,
                ..Space::default()
            };
            old_parent.did_use(UsedBy::Children, space.negated());
            new_parent.did_use(UsedBy::Children, space);
            old_parent.did_use(UsedBy::ChildrenReservation, reserved.negated());
            new_parent.did_use(UsedBy::ChildrenReservation, reserved);
        }
        // One after the other: both may be the same directory, and its lock is held until a statement ends.
        let old_zap = old_parent.state().phys.child_directories;
        let new_zap = new_parent.state().phys.child_directories;
        let old_name = dir.state().name.clone();
        Zap::hold(dsl.mos(), old_zap)
            .await?
            .remove(&tx, &old_name)
            .await?;
        dir.change(|state| {
            state.phys.parent = new_parent.object;
            state.parent = Some(new_parent.clone());
            state.name = last.clone();
        });
        Zap::hold(dsl.mos(), new_zap)
            .await?
            .add_u64(&tx, &last, dir.object.get())
            .await?;
        dsl.refresh_open(&dir).await
    }
}

impl SyncTask for RenameTask {
    fn name(&self) -> &'static str {
        "rename"
    }
    fn space_check(&self) -> SpaceCheck {
        SpaceCheck::Reserved
    }
    fn check<'a>(&'a self, ctx: &'a SyncContext) -> BoxFuture<'a, Result<(), DatasetError>> {
        Box::pin(self.do_check(ctx))
    }
    fn apply<'a>(&'a self, ctx: &'a SyncContext) -> BoxFuture<'a, Result<(), DatasetError>> {
        Box::pin(self.do_apply(ctx))
    }
}

struct SetTask {
    dsl: Arc<DslPool>,
    name: String,
    /// Names, values (nothing: inherit), and whether to go back to what was received.
    changes: Vec<(String, Option<PropertyValue>, bool)>,
}

impl DslPool {
    /// Refuses a value that needs a feature which is not enabled (`zfs_check_settable`, module/zfs/zfs_ioctl.c).
    pub(crate) fn check_feature_of(
        &self,
        dataset: &str,
        property: &str,
        number: u64,
    ) -> Result<(), DatasetError> {
        if property == "dedup" && dedup_of(number).is_some() && !self.has_dedup_tables() {
            return Err(DatasetError::Unsupported {
                name: dataset.to_owned(),
                what: "dedup in a pool of a version before 21".into(),
            });
        }
        check_feature(dataset, property, number, |needs| {
            self.features().is_enabled(needs)
        })
    }
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

impl SetTask {
    async fn do_check(&self) -> Result<(), DatasetError> {
        let dsl = &self.dsl;
        let dataset = dsl.resolve(&self.name).await?;
        check_together(|wanted| {
            let (_, value, _) = self.changes.iter().find(|(name, ..)| name == wanted)?;
            value.as_ref()?.number()
        })?;
        for (name, value, _) in &self.changes {
            let number = value.as_ref().and_then(PropertyValue::number).unwrap_or(0);
            if dataset.is_snapshot() {
                continue;
            }
            dsl.check_space_property(&dataset, name, number)?;
            if name == "keylocation" {
                let location = value.as_ref().and_then(PropertyValue::text);
                dsl.check_key_location(&dataset, location).await?;
            }
            if value.is_some() {
                dsl.check_feature_of(&self.name, name, number)?;
            }
            if name == "mountpoint" || name == "canmount" {
                debug_assert!(dsl.objset_kind(&dataset).await? != ObjsetKind::Volume);
            }
        }
        Ok(())
    }

    async fn do_apply(&self, ctx: &SyncContext) -> Result<(), DatasetError> {
        let dataset = self.dsl.resolve(&self.name).await?;
        for (name, value, received) in &self.changes {
            self.dsl
                .change_property_from(ctx, &dataset, name, value.as_ref(), *received)
                .await?;
        }
        self.dsl.refresh_open(&dataset.dir()).await
    }
}

impl SyncTask for SetTask {
    fn name(&self) -> &'static str {
        "set"
    }
    fn space_check(&self) -> SpaceCheck {
        SpaceCheck::Reserved
    }
    fn check<'a>(&'a self, _ctx: &'a SyncContext) -> BoxFuture<'a, Result<(), DatasetError>> {
        Box::pin(self.do_check())
    }
    fn apply<'a>(&'a self, ctx: &'a SyncContext) -> BoxFuture<'a, Result<(), DatasetError>> {
        Box::pin(self.do_apply(ctx))
    }
}
