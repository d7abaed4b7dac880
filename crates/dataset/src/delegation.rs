//! Delegated permissions: what users other than root may do with a dataset (`zfs allow`;
//! module/zfs/dsl_deleg.c, module/zcommon/zfs_deleg.c).
//!
//! A directory's ZAP of permissions maps keys to ZAPs whose names are permissions. A key says whom
//! it is about, and whether it is for the dataset itself or for those below it:
//!
//! | key | whom |
//! |---|---|
//! | `ul$ID`, `ud$ID` | a user: here, and below |
//! | `gl$ID`, `gd$ID` | a group |
//! | `el$`, `ed$` | everyone |
//! | `c-$` | who makes a dataset below: in that one |
//! | `s-$@NAME` | what a set of permissions has |
//!
//! With a capital letter first, the names are those of sets.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use device::BoxFuture;
use format::{ObjectId, ObjectType, names};
use object::{SyncContext, Zap, ZapOptions};
use zio::Tx;

use crate::DatasetError;
use crate::credentials::Credentials;
use crate::dsl::DslPool;
use crate::props::find;
use crate::state::Dir;
use crate::task::{BLOCKS_MIN, SpaceCheck, SyncTask};

/// Permissions that are no property's name (`zfs_deleg_perm_tab`).
const PERMISSIONS: [&str; 34] = [
    "allow",
    "bookmark",
    "change-key",
    "clone",
    "create",
    "destroy",
    "diff",
    "groupobjquota",
    "groupobjused",
    "groupquota",
    "groupused",
    "hold",
    "load-key",
    "mount",
    "projectobjquota",
    "projectobjused",
    "projectquota",
    "projectused",
    "promote",
    "receive",
    "receive:append",
    "release",
    "rename",
    "rollback",
    "send",
    "send:encrypted",
    "send:raw",
    "share",
    "snapshot",
    "userobjquota",
    "userobjused",
    "userprop",
    "userquota",
    "userused",
];
/// Longest name of a set, its `@` included (`ZFS_PERMSET_MAXLEN`).
const SET_NAME_MAX_BYTES: usize = 63;

/// Whom permissions are given to.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Grantee {
    /// A set of permissions, by its name with the `@` before it.
    Set(String),
    /// Who makes a dataset below: in that one.
    Create,
    /// A user.
    User(u64),
    /// A group.
    Group(u64),
    /// Everyone.
    Everyone,
}

/// Where permissions are good.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scope {
    /// For the dataset itself.
    Local,
    /// For those below it.
    Descendent,
}

impl Grantee {
    /// The key under which permissions are stored, or `sets` of them (`zfs_deleg_whokey`).
    fn key(&self, scope: Scope, sets: bool) -> String {
        let letter = |plain: char| match sets {
            true => plain.to_ascii_uppercase(),
            false => plain,
        };
        let at = match scope {
            Scope::Local => 'l',
            Scope::Descendent => 'd',
        };
        match self {
            Grantee::Set(name) => format!("{}-${name}", letter('s')),
            Grantee::Create => format!("{}-$", letter('c')),
            Grantee::User(id) => format!("{}{at}${id}", letter('u')),
            Grantee::Group(id) => format!("{}{at}${id}", letter('g')),
            Grantee::Everyone => format!("{}{at}$", letter('e')),
        }
    }

    /// What a stored key is about.
    fn of_key(key: &str) -> Option<(Self, Option<Scope>)> {
        let mut letters = key.chars();
        let (who, at, separator) = (letters.next()?, letters.next()?, letters.next()?);
        let rest = letters.as_str();
        let scope = match at {
            'l' => Some(Scope::Local),
            'd' => Some(Scope::Descendent),
            '-' => None,
            _ => return None,
        };
        let grantee = match who.to_ascii_lowercase() {
            's' => Grantee::Set(rest.to_owned()),
            'c' => Grantee::Create,
            'u' => Grantee::User(rest.parse().ok()?),
            'g' => Grantee::Group(rest.parse().ok()?),
            'e' => Grantee::Everyone,
            _ => return None,
        };
        (separator == '$').then_some((grantee, scope))
    }

    /// Whether scopes tell anything of it.
    fn has_scope(&self) -> bool {
        !matches!(self, Grantee::Set(_) | Grantee::Create)
    }
}

/// Permissions of one grantee on one dataset.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grant {
    /// Whom they are given to.
    pub grantee: Grantee,
    /// Permissions and sets for the dataset itself; those of a set or at creation.
    pub local: BTreeSet<String>,
    /// Permissions and sets for those below.
    pub descendent: BTreeSet<String>,
}

/// Permissions that are set on one dataset.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grants {
    /// The dataset.
    pub name: String,
    /// In order of grantees.
    pub grants: Vec<Grant>,
}

/// What to change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GrantChange {
    /// Whom it is about.
    pub grantee: Grantee,
    /// For the dataset itself.
    pub local: bool,
    /// For those below.
    pub descendent: bool,
    /// Permissions and sets; `None` for all that there are, to be taken away.
    pub permissions: Option<Vec<String>>,
}

/// Delegated permissions: [`DslPool::delegation`].
#[derive(Clone, Copy)]
pub struct Delegation<'a> {
    pub(crate) dsl: &'a Arc<DslPool>,
}

impl DslPool {
    /// What users other than root may do.
    pub fn delegation(self: &Arc<Self>) -> Delegation<'_> {
        Delegation { dsl: self }
    }
}

/// The full name of a permission; `None` where there is no such (`zfs_deleg_canonicalize_perm`).
pub fn permission_name(typed: &str) -> Option<&str> {
    if let Some(name) = typed.strip_prefix('@') {
        let is_good = |c: char| c.is_ascii_alphanumeric() || "-_.: ".contains(c);
        let is_name = typed.len() <= SET_NAME_MAX_BYTES && name.chars().all(is_good);
        return is_name.then_some(typed);
    }
    if PERMISSIONS.contains(&typed) {
        return Some(typed);
    }
    let property = find(typed)?;
    (!property.is_read_only()).then_some(property.name)
}

impl Delegation<'_> {
    /// Gives permissions, or with `take` takes them away, all or none.
    ///
    /// # Errors
    /// [`DatasetError::NotFound`]; [`DatasetError::InvalidProperty`] for a permission that there is
    /// not.
    pub async fn change(
        &self,
        name: &str,
        changes: &[GrantChange],
        take: bool,
    ) -> Result<(), DatasetError> {
        let mut checked = Vec::new();
        for change in changes {
            let mut change = change.clone();
            if change.permissions.is_none() && !take {
                return Err(invalid("(none)"));
            }
            if let Grantee::Set(set) = &change.grantee
                && (!set.starts_with('@') || permission_name(set).is_none())
            {
                return Err(invalid(set));
            }
            for permission in change.permissions.iter_mut().flatten() {
                let full = permission_name(permission).ok_or_else(|| invalid(permission))?;
                *permission = full.to_owned();
            }
            checked.push(change);
        }
        let task = DelegateTask {
            dsl: self.dsl.clone(),
            name: name.to_owned(),
            changes: checked,
            take,
        };
        self.dsl.tasks().run(Arc::new(task)).await
    }

    /// What is set on a dataset and on those above it, itself first.
    ///
    /// # Errors
    /// [`DatasetError::NotFound`].
    pub async fn list(&self, name: &str) -> Result<Vec<Grants>, DatasetError> {
        let _config = self.dsl.config.read().await;
        let mut levels = Vec::new();
        let mut at = Some(self.dsl.directories().resolve_dir(name).await?);
        while let Some(dir) = at {
            let grants = self.grants_of(&dir).await?;
            if !grants.is_empty() {
                levels.push(Grants {
                    name: dir.full_name(&self.dsl.pool_name()),
                    grants,
                });
            }
            at = dir.parent();
        }
        Ok(levels)
    }

    async fn grants_of(&self, dir: &Arc<Dir>) -> Result<Vec<Grant>, DatasetError> {
        let Some(zap) = self.zap_of(dir).await? else {
            return Ok(Vec::new());
        };
        let mut grants: BTreeMap<Grantee, Grant> = BTreeMap::new();
        for entry in zap.all().await? {
            let key = String::from_utf8_lossy(&entry.name).into_owned();
            let Some((grantee, scope)) = Grantee::of_key(&key) else {
                continue;
            };
            let names = names_in(self.dsl, entry.value.as_u64().unwrap_or(0).into()).await?;
            let grant = grants.entry(grantee.clone()).or_insert_with(|| Grant {
                grantee,
                local: BTreeSet::new(),
                descendent: BTreeSet::new(),
            });
            match scope {
                Some(Scope::Descendent) => grant.descendent.extend(names),
                _ => grant.local.extend(names),
            }
        }
        Ok(grants.into_values().collect())
    }

    async fn zap_of(&self, dir: &Arc<Dir>) -> Result<Option<Zap>, DatasetError> {
        let object = dir.state().phys.delegation;
        match object.is_zero() {
            true => Ok(None),
            false => Ok(Some(Zap::hold(self.dsl.mos(), object).await?)),
        }
    }

    /// Whether somebody has a permission on a dataset or snapshot, or would have it on one that is
    /// made of this name (`dsl_deleg_access_impl`). For a snapshot, what is for those below counts.
    /// Nobody has any where the pool's property `delegation` is off.
    ///
    /// # Errors
    /// Of reading.
    pub async fn allows(
        &self,
        name: &str,
        permission: &str,
        who: &Credentials,
    ) -> Result<bool, DatasetError> {
        let _config = self.dsl.config.read().await;
        let mut is_local = !name.contains(['@', '#']);
        let mut head = name.split(['@', '#']).next().unwrap_or(name);
        let dir = loop {
            match self.dsl.directories().resolve_dir(head).await {
                Ok(dir) => break dir,
                Err(DatasetError::NotFound { .. }) => match head.rsplit_once('/') {
                    Some((above, _)) => (head, is_local) = (above, false),
                    None => return Ok(false),
                },
                Err(error) => return Err(error),
            }
        };
        self.allows_from(dir, is_local, permission, who).await
    }

    /// Whether somebody has a permission on a dataset, for who has the configuration's lock or
    /// changes it.
    pub(crate) async fn allows_at(
        &self,
        dir: &Arc<Dir>,
        permission: &str,
        who: &Credentials,
    ) -> Result<bool, DatasetError> {
        self.allows_from(Arc::clone(dir), true, permission, who)
            .await
    }

    /// Whether somebody has a permission by what is said here, for the dataset itself if that is
    /// local, or above.
    async fn allows_from(
        &self,
        dir: Arc<Dir>,
        mut is_local: bool,
        permission: &str,
        who: &Credentials,
    ) -> Result<bool, DatasetError> {
        if !self.is_on().await? {
            return Ok(false);
        }
        let mut at = Some(dir);
        // Sets that somebody has, and whether one level has said already what is in them.
        let mut sets = BTreeMap::new();
        while let Some(dir) = at {
            let scope = match is_local {
                true => Scope::Local,
                false => Scope::Descendent,
            };
            if let Some(zap) = self.zap_of(&dir).await?
                && self
                    .level_allows(&zap, scope, permission, who, &mut sets)
                    .await?
            {
                return Ok(true);
            }
            is_local = false;
            at = dir.parent();
        }
        Ok(false)
    }

    /// Whether permissions count: the pool's property `delegation`, on unless stored otherwise.
    async fn is_on(&self) -> Result<bool, DatasetError> {
        let Some(props) = self.dsl.directory.lookup_u64(names::pool::PROPS).await? else {
            return Ok(true);
        };
        let props = Zap::hold(self.dsl.mos(), props.into()).await?;
        Ok(props.lookup_u64("delegation").await? != Some(0))
    }

    /// Whether one level has it. Sets that somebody was given below are looked up above too, unless
    /// a level below says what is in them.
    async fn level_allows(
        &self,
        zap: &Zap,
        scope: Scope,
        permission: &str,
        who: &Credentials,
        sets: &mut BTreeMap<String, bool>,
    ) -> Result<bool, DatasetError> {
        let groups = who.gids.iter().map(|gid| Grantee::Group(*gid));
        let grantees: Vec<Grantee> = [Grantee::User(who.uid), Grantee::Everyone]
            .into_iter()
            .chain(groups)
            .collect();
        for grantee in &grantees {
            if self
                .has(zap, &grantee.key(scope, false), permission)
                .await?
                == Some(true)
            {
                return Ok(true);
            }
            for name in self.names_at(zap, &grantee.key(scope, true)).await? {
                sets.entry(name).or_insert(false);
            }
        }
        let is_open = |(name, is_told): (&String, &bool)| (!is_told).then(|| name.clone());
        let mut pending: Vec<String> = sets.iter().filter_map(is_open).collect();
        while let Some(name) = pending.pop() {
            let set = Grantee::Set(name.clone());
            let plain = self
                .has(zap, &set.key(Scope::Local, false), permission)
                .await?;
            if plain == Some(true) {
                return Ok(true);
            }
            let inner = self.names_at(zap, &set.key(Scope::Local, true)).await?;
            if plain.is_some() || !inner.is_empty() {
                sets.insert(name, true);
            }
            for name in inner {
                if !sets.contains_key(&name) {
                    sets.insert(name.clone(), false);
                    pending.push(name);
                }
            }
        }
        Ok(false)
    }

    /// Whether a key has a permission; `None` where there is no such key.
    async fn has(
        &self,
        zap: &Zap,
        key: &str,
        permission: &str,
    ) -> Result<Option<bool>, DatasetError> {
        let Some(object) = zap.lookup_u64(key).await? else {
            return Ok(None);
        };
        let names = Zap::hold(self.dsl.mos(), object.into()).await?;
        Ok(Some(names.lookup(permission).await?.is_some()))
    }

    async fn names_at(&self, zap: &Zap, key: &str) -> Result<Vec<String>, DatasetError> {
        match zap.lookup_u64(key).await? {
            Some(object) => names_in(self.dsl, object.into()).await,
            None => Ok(Vec::new()),
        }
    }

    /// Gives who made a dataset what is given to makers above it (`dsl_deleg_set_create_perms`).
    ///
    /// # Errors
    /// [`DatasetError::NotFound`], errors of reading.
    pub async fn note_maker(&self, name: &str, uid: u64) -> Result<(), DatasetError> {
        let mut permissions = BTreeSet::new();
        for level in self.list(name).await? {
            if level.name == name {
                continue;
            }
            for grant in level.grants {
                if grant.grantee == Grantee::Create {
                    permissions.extend(grant.local);
                }
            }
        }
        if permissions.is_empty() {
            return Ok(());
        }
        let change = GrantChange {
            grantee: Grantee::User(uid),
            local: true,
            descendent: false,
            permissions: Some(permissions.into_iter().collect()),
        };
        self.change(name, &[change], false).await
    }
}

fn invalid(permission: &str) -> DatasetError {
    DatasetError::InvalidProperty {
        property: permission.to_owned(),
        reason: format!("invalid permission '{permission}'"),
    }
}

async fn names_in(dsl: &Arc<DslPool>, object: ObjectId) -> Result<Vec<String>, DatasetError> {
    let entries = Zap::hold(dsl.mos(), object).await?.all().await?;
    let names = entries.into_iter();
    Ok(names
        .map(|entry| String::from_utf8_lossy(&entry.name).into_owned())
        .collect())
}

struct DelegateTask {
    dsl: Arc<DslPool>,
    name: String,
    changes: Vec<GrantChange>,
    take: bool,
}

impl DelegateTask {
    async fn do_apply(&self, ctx: &SyncContext) -> Result<(), DatasetError> {
        let dir = self.dsl.directories().resolve_dir(&self.name).await?;
        for change in &self.changes {
            let scopes: &[Scope] = match (change.grantee.has_scope(), change.local) {
                (false, _) => &[Scope::Local],
                (true, true) if change.descendent => &[Scope::Local, Scope::Descendent],
                (true, true) => &[Scope::Local],
                (true, false) => &[Scope::Descendent],
            };
            for scope in scopes {
                for sets in [false, true] {
                    let key = change.grantee.key(*scope, sets);
                    match &change.permissions {
                        None => self.forget(ctx, &dir, &key).await?,
                        Some(names) => {
                            let of_kind = |name: &&String| name.starts_with('@') == sets;
                            let names: Vec<&String> = names.iter().filter(of_kind).collect();
                            match self.take {
                                true => self.take(ctx, &dir, &key, &names).await?,
                                false => self.give(ctx, &dir, &key, &names).await?,
                            }
                        }
                    }
                }
            }
        }
        Ok(())
    }

    async fn told(
        &self,
        ctx: &SyncContext,
        dir: &Arc<Dir>,
        event: &'static str,
        text: String,
    ) -> Result<(), DatasetError> {
        let name = dir.full_name(&self.dsl.pool_name());
        let head = dir.state().phys.head_dataset;
        self.dsl.history(ctx, event, name, head, text).await
    }

    async fn give(
        &self,
        ctx: &SyncContext,
        dir: &Arc<Dir>,
        key: &str,
        names: &[&String],
    ) -> Result<(), DatasetError> {
        if names.is_empty() {
            return Ok(());
        }
        let tx = Tx::syncing(ctx.txg);
        let mos = self.dsl.mos();
        let mut object = dir.state().phys.delegation;
        if object.is_zero() {
            let options = ZapOptions::new(ObjectType::DSL_PERMS);
            object = Zap::create(mos, &tx, options).await?.id();
            dir.change(|state| state.phys.delegation = object);
        }
        let zap = Zap::hold(mos, object).await?;
        let of_key = match zap.lookup_u64(key).await? {
            Some(object) => Zap::hold(mos, object.into()).await?,
            None => {
                let options = ZapOptions::new(ObjectType::DSL_PERMS);
                let of_key = Zap::create(mos, &tx, options).await?;
                zap.add_u64(&tx, key, of_key.id().get()).await?;
                of_key
            }
        };
        for name in names {
            of_key.update_u64(&tx, name, 0).await?;
            self.told(ctx, dir, "permission update", format!("{key} {name}"))
                .await?;
        }
        Ok(())
    }

    async fn take(
        &self,
        ctx: &SyncContext,
        dir: &Arc<Dir>,
        key: &str,
        names: &[&String],
    ) -> Result<(), DatasetError> {
        let tx = Tx::syncing(ctx.txg);
        let Some(zap) = self.dsl.delegation().zap_of(dir).await? else {
            return Ok(());
        };
        for name in names {
            let Some(object) = zap.lookup_u64(key).await? else {
                return Ok(());
            };
            let of_key = Zap::hold(self.dsl.mos(), object.into()).await?;
            match of_key.remove(&tx, name.as_str()).await {
                Err(error) if !error.is_not_found() => return Err(error.into()),
                _ => {}
            }
            if of_key.count().await? == 0 {
                zap.remove(&tx, key).await?;
                self.dsl.mos().free(&tx, object.into()).await?;
            }
            self.told(ctx, dir, "permission remove", format!("{key} {name}"))
                .await?;
        }
        Ok(())
    }

    async fn forget(
        &self,
        ctx: &SyncContext,
        dir: &Arc<Dir>,
        key: &str,
    ) -> Result<(), DatasetError> {
        let tx = Tx::syncing(ctx.txg);
        let Some(zap) = self.dsl.delegation().zap_of(dir).await? else {
            return Ok(());
        };
        if let Some(object) = zap.lookup_u64(key).await? {
            zap.remove(&tx, key).await?;
            self.dsl.mos().free(&tx, object.into()).await?;
        }
        self.told(ctx, dir, "permission who remove", key.to_owned())
            .await
    }
}

impl SyncTask for DelegateTask {
    fn name(&self) -> &'static str {
        "delegate"
    }
    fn space_check(&self) -> SpaceCheck {
        SpaceCheck::Reserved
    }
    fn blocks(&self) -> u64 {
        BLOCKS_MIN.max(self.changes.len() as u64)
    }
    fn check<'a>(&'a self, _ctx: &'a SyncContext) -> BoxFuture<'a, Result<(), DatasetError>> {
        Box::pin(async {
            let dir = self.dsl.directories().resolve_dir(&self.name).await?;
            self.dsl.readable().whole(dir.object).await?;
            self.dsl.readable().delegation(&dir).await
        })
    }
    fn apply<'a>(&'a self, ctx: &'a SyncContext) -> BoxFuture<'a, Result<(), DatasetError>> {
        Box::pin(self.do_apply(ctx))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_read_as_they_are_written() {
        for grantee in [
            Grantee::Set("@a".into()),
            Grantee::Create,
            Grantee::User(1000),
            Grantee::Group(0),
            Grantee::Everyone,
        ] {
            for (scope, sets) in [(Scope::Local, false), (Scope::Descendent, true)] {
                let key = grantee.key(scope, sets);
                let (read, at) = Grantee::of_key(&key).unwrap();
                assert_eq!(read, grantee, "{key}");
                assert!(at.is_none_or(|at| at == scope), "{key}");
            }
        }
        assert_eq!(Grantee::User(12).key(Scope::Local, false), "ul$12");
        assert_eq!(Grantee::Everyone.key(Scope::Descendent, true), "Ed$");
        assert_eq!(Grantee::Set("@x".into()).key(Scope::Local, true), "S-$@x");
        for bad in ["", "u", "xl$1", "ul$x", "uq$1", "ul#1"] {
            assert!(Grantee::of_key(bad).is_none(), "{bad}");
        }
    }

    #[test]
    fn permissions_are_known_by_name() {
        assert_eq!(permission_name("create"), Some("create"));
        assert_eq!(permission_name("compress"), Some("compression"));
        assert_eq!(permission_name("@set"), Some("@set"));
        for bad in ["used", "no", "@a/b", "creation"] {
            assert_eq!(permission_name(bad), None, "{bad}");
        }
    }
}
