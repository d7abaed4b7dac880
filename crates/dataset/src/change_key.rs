//! Changing the key of an encryption root, making roots of datasets and datasets of roots, and what
//! a promotion changes (`spa_keystore_change_key`, `dsl_dataset_promote_crypt_sync`,
//! module/zfs/dsl_crypt.c).
//!
//! Data keys never change: they are wrapped anew, with fresh IVs, all that belong to one root in
//! one transaction group. A crash leaves the old key or the new one for all of them. What is open
//! stays open.
//!
//! A clone has the key object of its origin, so it is not wrapped itself; but what is below it may
//! have the same root.

use std::collections::HashSet;
use std::sync::Arc;

use codec::crypt::WrappingKey;
use device::BoxFuture;
use format::{NvList, ObjectId, names};
use object::{SyncContext, Zap};
use zio::Tx;

use crate::crypto::{Keys, StoredKey};
use crate::dsl::DslPool;
use crate::features::guid;
use crate::new_key::{NewKey, Wrapping, store};
use crate::state::{Dir, Ds};
use crate::task::{SpaceCheck, SyncTask};
use crate::{DatasetError, PropertyValue};

/// `DCP_CMD_NEW_KEY` and `DCP_CMD_INHERIT`, as the pool's history has them.
const COMMAND_NEW_KEY: u64 = 2;
const COMMAND_INHERIT: u64 = 3;

/// What `zfs change-key` changes.
#[derive(Debug, Clone)]
pub enum KeyChange {
    /// Another key; what was no encryption root becomes one.
    New {
        /// The key.
        key: NewKey,
        /// Property `keylocation`, which has to be given for a new root; a root may keep its own.
        location: Option<String>,
    },
    /// No key of its own any more: the parent's encryption root's.
    Inherit,
}

/// A directory with a key object of its own, and what is in that.
pub(crate) type Keyed = (Arc<Dir>, StoredKey);

impl Keys<'_> {
    /// Changes the key of a filesystem or volume, and of all that inherits it. Its key, and its
    /// parent's where that is to be inherited, must be loaded. User properties are set along.
    ///
    /// # Errors
    /// [`DatasetError::KeyNotLoaded`]; [`DatasetError::WrongKind`] of clones, snapshots and what is
    /// not encrypted; [`DatasetError::InvalidProperty`].
    pub async fn change(
        &self,
        name: &str,
        change: KeyChange,
        user_properties: &[(String, String)],
    ) -> Result<(), DatasetError> {
        for (property, value) in user_properties {
            if !crate::props::is_user_property(property) || !crate::props::fits_a_value(value) {
                return Err(DatasetError::InvalidProperty {
                    property: property.clone(),
                    reason: "Only keyformat, keylocation, pbkdf2iters, and user properties may be \
                             set with this command"
                        .into(),
                });
            }
        }
        let mut properties = NvList::new();
        for (property, value) in user_properties {
            properties.set(property, value.as_str());
        }
        let command = match &change {
            KeyChange::New { location, .. } => {
                if let Some(location) = location {
                    properties.set("keylocation", location.as_str());
                }
                COMMAND_NEW_KEY
            }
            KeyChange::Inherit => COMMAND_INHERIT,
        };
        let task = ChangeKeyTask {
            dsl: self.dsl.clone(),
            name: name.to_owned(),
            change,
            user_properties: user_properties.to_vec(),
        };
        self.dsl.tasks().run(Arc::new(task)).await?;
        let mut input = NvList::new();
        input.set("crypt_cmd", command);
        input.set("props", properties);
        self.dsl.env().hooks.fulfilled("change-key", input);
        Ok(())
    }

    /// Whose data keys are wrapped with `root`'s key, from `top` on
    /// (`spa_keystore_change_key_sync_impl`).
    pub(crate) async fn of_root(
        &self,
        root: ObjectId,
        top: &Arc<Dir>,
    ) -> Result<Vec<Keyed>, DatasetError> {
        let mut found = Vec::new();
        let mut seen = HashSet::new();
        // Clones of what was found are looked through, but their keys are their origin's.
        let mut pending = vec![(top.clone(), false)];
        while let Some((dir, is_shared)) = pending.pop() {
            let Some(stored) = self.stored(&dir).await? else {
                continue;
            };
            let is_clone = !dir.state().origin_txg.is_zero();
            if !is_shared && (stored.root != root || is_clone) || !seen.insert(dir.object) {
                continue;
            }
            if !is_shared {
                found.push((dir.clone(), stored));
            }
            let children = self.dsl.directories().children(&dir).await?;
            pending.extend(children.into_iter().map(|child| (child, false)));
            let clones = self.clones_of(&dir).await?;
            pending.extend(clones.into_iter().map(|clone| (clone, true)));
        }
        Ok(found)
    }

    /// The directories of a directory's clones.
    pub(crate) async fn clones_of(&self, dir: &Arc<Dir>) -> Result<Vec<Arc<Dir>>, DatasetError> {
        let clones = dir.state().phys.clones;
        let mut found = Vec::new();
        if clones.is_zero() {
            return Ok(found);
        }
        for entry in Zap::hold(self.dsl.mos(), clones).await?.all().await? {
            if let Some(head) = entry.value.to_u64s().first() {
                let head = self.dsl.directories().dataset((*head).into()).await?;
                found.push(head.dir());
            }
        }
        Ok(found)
    }

    /// What is below a directory and its clones and has `root`, without the directory itself: each
    /// topmost directory, with all whose keys go along with its.
    pub(crate) async fn below(
        &self,
        root: ObjectId,
        top: &Arc<Dir>,
    ) -> Result<Vec<(Arc<Dir>, Vec<Keyed>)>, DatasetError> {
        let (mut found, mut seen) = (Vec::new(), HashSet::new());
        let mut pending = vec![top.clone()];
        while let Some(dir) = pending.pop() {
            if !seen.insert(dir.object) {
                continue;
            }
            for child in self.dsl.directories().children(&dir).await? {
                let keyed = self.of_root(root, &child).await?;
                if !keyed.is_empty() {
                    found.push((child, keyed));
                }
            }
            pending.extend(self.clones_of(&dir).await?);
        }
        Ok(found)
    }

    /// Wraps data keys anew.
    async fn rewrap(
        &self,
        ctx: &SyncContext,
        found: &[Keyed],
        wrapping: &Wrapping<'_>,
    ) -> Result<(), DatasetError> {
        let tx = Tx::syncing(ctx.txg);
        for (dir, stored) in found {
            let key = self.unwrapped(stored, dir).await?;
            let wrapped = self.wrap(key.data(), wrapping.key)?;
            let zap = Zap::hold(self.dsl.mos(), stored.object).await?;
            store(&zap, &tx, &wrapped, wrapping).await?;
        }
        let objects: Vec<_> = found.iter().map(|(_, stored)| stored.object).collect();
        self.dsl.keys.move_to_root(&objects, wrapping.root);
        Ok(())
    }

    async fn wrapping_of(&self, dir: &Arc<Dir>) -> Result<(WrappingKey, StoredKey), DatasetError> {
        let name = dir.full_name(&self.dsl.pool_name());
        let Some(stored) = self.stored(dir).await? else {
            return Err(wrong_kind(name, "Dataset not encrypted"));
        };
        let wrapping = self.verified(stored.root, name).await?;
        Ok((wrapping, stored))
    }

    /// Whether a promotion can keep or move the encryption root
    /// (`dsl_dataset_promote_crypt_check`).
    pub(crate) async fn check_promote_encrypted(
        &self,
        target: &Arc<Dir>,
        origin: &Arc<Dir>,
    ) -> Result<(), DatasetError> {
        let Some(key) = self.stored(origin).await? else {
            return Ok(());
        };
        // The root moves to the promoted clone, or the origin's origin keeps it.
        if !origin.state().origin_txg.is_zero() || key.root == origin.object {
            return Ok(());
        }
        let mut roots = [None, None];
        for (root, dir) in roots.iter_mut().zip([origin, target]) {
            if let Some(parent) = dir.parent() {
                *root = self.stored(&parent).await?.map(|key| key.root);
            }
        }
        if roots[0].is_some() && roots[0] == roots[1] {
            return Ok(());
        }
        Err(wrong_kind(
            target.full_name(&self.dsl.pool_name()),
            "cannot promote dataset outside its encryption root",
        ))
    }

    /// Where an encryption root becomes a clone of its own clone, that is the root from then on
    /// (`dsl_dataset_promote_crypt_sync`). Before the promotion itself. Keys stay loaded.
    pub(crate) async fn promote(
        &self,
        ctx: &SyncContext,
        target: &Arc<Ds>,
        origin: &Arc<Ds>,
    ) -> Result<(), DatasetError> {
        let (to, from) = (target.dir(), origin.dir());
        let Some(key) = self.stored(&from).await? else {
            return Ok(());
        };
        if !from.state().origin_txg.is_zero() || key.root != from.object {
            return Ok(());
        }
        let properties = self.dsl.properties();
        let location = properties.effective(origin, "keylocation").await?;
        let location = location.map_or(PropertyValue::Text("prompt".into()), |(value, _)| value);
        properties
            .change_property(ctx, target, "keylocation", Some(&location))
            .await?;
        properties
            .change_property(ctx, origin, "keylocation", None)
            .await?;
        let tx = Tx::syncing(ctx.txg);
        let mut objects = Vec::new();
        for (_, stored) in self.of_root(from.object, &from).await? {
            let zap = Zap::hold(self.dsl.mos(), stored.object).await?;
            zap.update_u64(&tx, names::crypto_key::ROOT_DDOBJ, to.object.get())
                .await?;
            objects.push(stored.object);
        }
        if let Some(wrapping) = self.dsl.keys.take_root(from.object) {
            self.dsl.keys.load_root(to.object, wrapping);
        }
        self.dsl.keys.move_to_root(&objects, to.object);
        Ok(())
    }
}

fn wrong_kind(name: impl Into<String>, reason: &str) -> DatasetError {
    DatasetError::WrongKind {
        name: name.into(),
        reason: reason.to_owned(),
    }
}

struct ChangeKeyTask {
    dsl: Arc<DslPool>,
    name: String,
    change: KeyChange,
    user_properties: Vec<(String, String)>,
}

impl ChangeKeyTask {
    /// The dataset, and the root that it has now.
    async fn parts(&self) -> Result<(Arc<Ds>, StoredKey), DatasetError> {
        let wrong = |reason| wrong_kind(self.name.as_str(), reason);
        let dataset = self.dsl.directories().resolve(&self.name).await?;
        if dataset.is_snapshot() {
            return Err(wrong("a snapshot has its dataset's key"));
        }
        let dir = dataset.dir();
        let Some(stored) = self.dsl.keys().stored(&dir).await? else {
            return Err(wrong("Dataset not encrypted"));
        };
        if !dir.state().origin_txg.is_zero() {
            return Err(wrong("Keys cannot be changed on clones"));
        }
        Ok((dataset, stored))
    }

    async fn do_check(&self) -> Result<(), DatasetError> {
        let keys = self.dsl.keys();
        if !self.dsl.features().is_enabled(guid::ENCRYPTION) {
            return Err(DatasetError::Unsupported {
                name: self.name.clone(),
                what: "encryption without feature encryption".into(),
            });
        }
        let (dataset, stored) = self.parts().await?;
        let dir = dataset.dir();
        let is_root = stored.root == dir.object;
        match &self.change {
            KeyChange::New { location, .. } => {
                let refused = |reason: &str| DatasetError::InvalidProperty {
                    property: "keylocation".into(),
                    reason: reason.into(),
                };
                match location.as_deref() {
                    None if !is_root => {
                        return Err(refused("keylocation required for new encryption root"));
                    }
                    Some("none") => {
                        return Err(refused(
                            "keylocation must not be 'none' for encrypted datasets",
                        ));
                    }
                    _ => {}
                }
            }
            KeyChange::Inherit => {
                if !is_root {
                    return Err(wrong_kind(
                        self.name.as_str(),
                        "Key inheritting can only be performed on encryption roots",
                    ));
                }
                let Some(parent) = dir.parent() else {
                    return Err(wrong_kind(
                        self.name.as_str(),
                        "Root dataset cannot inherit key",
                    ));
                };
                if keys.stored(&parent).await?.is_none() {
                    return Err(wrong_kind(self.name.as_str(), "Parent must be encrypted"));
                }
                keys.wrapping_of(&parent).await?;
            }
        }
        keys.wrapping_of(&dir).await?;
        // Applying must not fail, so every key is opened now.
        for (dir, stored) in keys.of_root(stored.root, &dir).await? {
            keys.unwrapped(&stored, &dir).await?;
            self.dsl.readable().whole(stored.object).await?;
        }
        self.dsl.readable().properties(&dataset).await
    }

    async fn do_apply(&self, ctx: &SyncContext) -> Result<(), DatasetError> {
        let (keys, properties) = (self.dsl.keys(), self.dsl.properties());
        let (dataset, stored) = self.parts().await?;
        let dir = dataset.dir();
        for (property, value) in &self.user_properties {
            let value = PropertyValue::Text(value.clone());
            properties
                .change_property(ctx, &dataset, property, Some(&value))
                .await?;
        }
        let found = keys.of_root(stored.root, &dir).await?;
        match &self.change {
            KeyChange::New { key, location } => {
                if let Some(location) = location {
                    let location = PropertyValue::Text(location.clone());
                    properties
                        .change_property(ctx, &dataset, "keylocation", Some(&location))
                        .await?;
                }
                let wrapping = Wrapping::of_root(dir.object, key);
                keys.rewrap(ctx, &found, &wrapping).await?;
                self.dsl.keys.load_root(dir.object, key.wrapping.clone());
            }
            KeyChange::Inherit => {
                properties
                    .change_property(ctx, &dataset, "keylocation", None)
                    .await?;
                let Some(parent) = dir.parent() else {
                    return Err(DatasetError::corrupt(dir.object, "it has no parent"));
                };
                let (wrapping, of_parent) = keys.wrapping_of(&parent).await?;
                let wrapping = Wrapping {
                    root: of_parent.root,
                    key: &wrapping,
                    format: of_parent.format,
                    salt: of_parent.salt,
                    iterations: of_parent.iterations,
                };
                keys.rewrap(ctx, &found, &wrapping).await?;
                self.dsl.keys.take_root(dir.object);
            }
        }
        Ok(())
    }
}

impl SyncTask for ChangeKeyTask {
    fn name(&self) -> &'static str {
        "change key"
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
