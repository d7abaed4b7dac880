//! Messages about the people who use shares, and their groups. They are not the users of the
//! console ([`crate::UserAdd`]): files are theirs, by number. Passwords go to the daemon, and never
//! come back.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Access, Call, Empty, Secret};

/// Tells who there is.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PeopleList {}

/// Who there is, and what can be done for them here.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct PeopleListReply {
    /// By name.
    pub people: Vec<PersonReport>,
    /// By name.
    pub groups: Vec<GroupReport>,
    /// A number that nobody has, neither here nor among the host's users and groups.
    pub free_id: u32,
    /// Why nothing can be shared by SMB, so that a password is of no use; none where it can.
    pub no_smb: Option<String>,
    /// Why nothing can be shared by SMB with everybody; none where it can, or nothing can.
    pub no_guests: Option<String>,
}

/// What is told of somebody.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PersonReport {
    /// The name.
    pub name: String,
    /// The number that their files have.
    pub uid: u32,
    /// Whether they have a password for SMB.
    pub has_password: bool,
    /// The host has a user of this name, whom the server did not make and does not remove.
    pub is_of_host: bool,
}

/// What is told of a group.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct GroupReport {
    /// The name.
    pub name: String,
    /// The number that files of the group have.
    pub gid: u32,
    /// Names of people.
    pub members: Vec<String>,
}

impl Call for PeopleList {
    const PATH: &'static str = "/v1/people/list";
    const ACCESS: Access<Self> = Access::Change(|_| "cannot list people".to_owned());
    type Reply = PeopleListReply;

    fn changes(&self) -> bool {
        false
    }
}

/// Adds somebody. One whom the host knows as a user by this name keeps that number.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PersonAdd {
    /// The name: small letters, digits, `-` and `_`, a letter or `_` first, 32 at most.
    pub name: String,
    /// The password for SMB, with which they can log in. It makes a user of the host, who can log
    /// in nowhere else. By NFS numbers are enough.
    #[serde(default)]
    pub password: Option<Secret>,
    /// The number, from 1000 to 60000; one that is free, and that nobody had, unless said. Who is
    /// gone comes back with their number: files of it are theirs again.
    #[serde(default)]
    pub uid: Option<u32>,
}

/// Somebody was added.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct PersonAddReply {
    /// The number.
    pub uid: u32,
}

impl Call for PersonAdd {
    const PATH: &'static str = "/v1/people/add";
    const ACCESS: Access<Self> = Access::Change(|call| format!("cannot add '{}'", call.name));
    type Reply = PersonAddReply;
}

/// Gives somebody a password for SMB, the first one or another.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PersonPassword {
    /// Who.
    pub name: String,
    /// The password.
    pub password: Secret,
}

impl Call for PersonPassword {
    const PATH: &'static str = "/v1/people/password";
    const ACCESS: Access<Self> =
        Access::Change(|call| format!("cannot give '{}' a password", call.name));
    type Reply = Empty;
}

/// Removes somebody, also from groups. Files keep the number, which nobody else gets unless
/// somebody is added with it. Who has a password, and stays as a user of the host, is not removed
/// while SMB is off, as the password would stay as well.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PersonRemove {
    /// Who.
    pub name: String,
}

impl Call for PersonRemove {
    const PATH: &'static str = "/v1/people/remove";
    const ACCESS: Access<Self> = Access::Change(|call| format!("cannot remove '{}'", call.name));
    type Reply = Empty;
}

/// Makes a group.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GroupAdd {
    /// The name, of which the same holds as of those of people; none of theirs either, nor one that
    /// means power to hosts (`sudo`).
    pub name: String,
    /// The number, from 1000 to 60000, which nobody who is gone had; one that is free unless said.
    #[serde(default)]
    pub gid: Option<u32>,
    /// Names of people.
    pub members: Vec<String>,
}

/// A group was made.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct GroupAddReply {
    /// The number.
    pub gid: u32,
}

impl Call for GroupAdd {
    const PATH: &'static str = "/v1/groups/add";
    const ACCESS: Access<Self> =
        Access::Change(|call| format!("cannot make group '{}'", call.name));
    type Reply = GroupAddReply;
}

/// Says who is in a group. By SMB it holds for who logs in from then on.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GroupChange {
    /// The group.
    pub name: String,
    /// Names of people, all of them.
    pub members: Vec<String>,
}

impl Call for GroupChange {
    const PATH: &'static str = "/v1/groups/change";
    const ACCESS: Access<Self> =
        Access::Change(|call| format!("cannot change group '{}'", call.name));
    type Reply = Empty;
}

/// Removes a group. Files keep its number.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GroupRemove {
    /// The group.
    pub name: String,
}

impl Call for GroupRemove {
    const PATH: &'static str = "/v1/groups/remove";
    const ACCESS: Access<Self> =
        Access::Change(|call| format!("cannot remove group '{}'", call.name));
    type Reply = Empty;
}
