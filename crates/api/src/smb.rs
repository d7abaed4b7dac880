//! Messages about the users of SMB. Passwords go to the daemon, and never come back.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Access, Call, Empty, Secret};

/// `millpond user add`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SmbUserAdd {
    /// Its name, which is that of a user of the system.
    pub name: String,
    /// The password for SMB.
    pub password: Secret,
}

impl Call for SmbUserAdd {
    const PATH: &'static str = "/v1/smb/user/add";
    const ACCESS: Access<Self> = Access::Change(|_| "cannot add a user".to_owned());
    type Reply = Empty;
}

/// `millpond user passwd`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SmbUserPassword {
    /// Whose.
    pub name: String,
    /// The new password.
    pub password: Secret,
}

impl Call for SmbUserPassword {
    const PATH: &'static str = "/v1/smb/user/password";
    const ACCESS: Access<Self> = Access::Change(|_| "cannot change a password".to_owned());
    type Reply = Empty;
}

/// `millpond user remove`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SmbUserRemove {
    /// Its name.
    pub name: String,
}

impl Call for SmbUserRemove {
    const PATH: &'static str = "/v1/smb/user/remove";
    const ACCESS: Access<Self> = Access::Change(|_| "cannot remove a user".to_owned());
    type Reply = Empty;
}

/// `millpond user list`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SmbUserList {}

/// All users.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct SmbUserListReply {
    /// In Samba's order.
    pub users: Vec<SmbUserReport>,
}

/// What is told of a user.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct SmbUserReport {
    /// Its name.
    pub name: String,
    /// The number of the system's user, whose files the user's are.
    pub uid: u32,
}

impl Call for SmbUserList {
    const PATH: &'static str = "/v1/smb/user/list";
    const ACCESS: Access<Self> = Access::Change(|_| "cannot list users".to_owned());
    type Reply = SmbUserListReply;

    fn changes(&self) -> bool {
        false
    }
}
