//! `zfs allow` and `zfs unallow`, and what permissions let ordinary users ask.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Access, Call, Empty};

/// A permission that a request needs where who asks is neither root nor who runs the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Needed {
    /// A dataset or snapshot; of one that is to be made, what those above it say of those below
    /// counts.
    pub dataset: String,
    /// On all datasets at and below it. A snapshot's name is then that of those of all of them.
    pub recursive: bool,
    /// On the snapshot that it is a clone of, instead.
    pub of_origin: bool,
    /// Name of the permission.
    pub permission: String,
    /// Another one that does as well.
    pub or: Option<&'static str>,
    /// Another one that does as well on a dataset that is encrypted.
    pub or_if_encrypted: Option<&'static str>,
}

impl Needed {
    /// A permission on one dataset.
    pub fn on(dataset: &str, permission: &str) -> Self {
        Self {
            dataset: dataset.to_owned(),
            recursive: false,
            of_origin: false,
            permission: permission.to_owned(),
            or: None,
            or_if_encrypted: None,
        }
    }

    /// The same, or another permission.
    #[must_use]
    pub fn or(mut self, permission: &'static str) -> Self {
        self.or = Some(permission);
        self
    }

    /// The same, or another permission where the dataset is encrypted.
    #[must_use]
    pub fn or_if_encrypted(mut self, permission: &'static str) -> Self {
        self.or_if_encrypted = Some(permission);
        self
    }

    /// The same, perhaps also on all below it.
    #[must_use]
    pub fn and_below(mut self, recursive: bool) -> Self {
        self.recursive = recursive;
        self
    }

    /// What setting a property needs: `userquota@joe` needs `userquota`, a property of users
    /// `userprop` (`zfs_check_settable`, module/zfs/zfs_ioctl.c). Those of this program share
    /// datasets with others, which no permission lets anybody do.
    pub fn to_set(dataset: &str, property: &str) -> Self {
        let permission = match property {
            property if property.starts_with("millpond:") => "",
            property if property.contains(':') => "userprop",
            property => property.split('@').next().unwrap_or(property),
        };
        Self::on(dataset, permission)
    }
}

/// The filesystem that a snapshot or bookmark is of.
pub(crate) fn head(name: &str) -> &str {
    name.split(['@', '#']).next().unwrap_or(name)
}

/// What is above a dataset: the pool itself has nothing above it.
pub(crate) fn parent(name: &str) -> &str {
    head(name).rsplit_once('/').map_or("", |(above, _)| above)
}

/// Whom permissions are given to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Grantee {
    /// A set of permissions, by its name with the `@` before it.
    Set(String),
    /// Who makes a dataset below: in that one.
    Create,
    /// A user, by number.
    User(u64),
    /// A group, by number.
    Group(u64),
    /// Everyone.
    Everyone,
}

/// `zfs allow DATASET`: what is set on it and above it.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ZfsAllowList {
    /// A filesystem or volume.
    pub name: String,
}

/// Permissions, those of the dataset first, then those of what is above it.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct ZfsAllowListReply {
    /// Datasets on which some are set.
    pub levels: Vec<GrantsReport>,
}

/// Permissions that are set on one dataset.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct GrantsReport {
    /// The dataset.
    pub name: String,
    /// Sets first, then those at creation, of users, of groups, of everyone.
    pub grants: Vec<GrantReport>,
}

/// Permissions of one grantee.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct GrantReport {
    /// Whom they are given to.
    pub grantee: Grantee,
    /// Name of the user or group, where this host knows one.
    pub name: Option<String>,
    /// For the dataset itself; those of a set, or at creation. In order.
    pub local: Vec<String>,
    /// For those below it.
    pub descendent: Vec<String>,
}

impl Call for ZfsAllowList {
    const PATH: &'static str = "/v1/zfs/allow-list";
    const ACCESS: Access<Self> = Access::Read;
    type Reply = ZfsAllowListReply;
}

/// `zfs allow` and `zfs unallow`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ZfsAllow {
    /// A filesystem or volume.
    pub name: String,
    /// Whom it is about.
    pub grantees: Vec<Grantee>,
    /// For the dataset itself.
    pub local: bool,
    /// For those below it.
    pub descendent: bool,
    /// Permissions and sets; none for all that there are, to be taken away.
    pub permissions: Option<Vec<String>>,
    /// Take them away.
    pub take: bool,
    /// On all datasets below too (`zfs unallow -r`).
    #[serde(default)]
    pub recursive: bool,
    /// The command as typed, for the pool's history.
    #[serde(default)]
    pub command: String,
}

impl Call for ZfsAllow {
    const PATH: &'static str = "/v1/zfs/allow";
    const ACCESS: Access<Self> =
        Access::Change(|call| format!("cannot set permissions on '{}'", call.name));
    type Reply = Empty;

    /// Who gives a permission has it, and `allow`, which nobody but root gives; who takes one away
    /// takes it from no other user (`dsl_deleg_can_allow`, `dsl_deleg_can_unallow`).
    fn needs(&self, uid: u32) -> Option<Vec<Needed>> {
        let needed = |permission: &str| Needed::on(&self.name, permission);
        let allow = needed("allow").and_below(self.recursive);
        if self.take {
            let own = Grantee::User(uid.into());
            let is_own = self.grantees.iter().all(|grantee| *grantee == own);
            return is_own.then(|| vec![allow]);
        }
        // Taking all away is not giving.
        let permissions = self.permissions.as_deref()?;
        if permissions.iter().any(|permission| permission == "allow") {
            return None;
        }
        let given = permissions
            .iter()
            .map(|permission| needed(permission).and_below(self.recursive));
        Some(std::iter::once(allow).chain(given).collect())
    }
}
