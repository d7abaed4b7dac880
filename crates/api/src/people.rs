//! Messages about who may use the server over the network: sessions of the console, users with
//! their roles, API keys, and the record of what was changed. Passwords and keys go to the daemon;
//! a key comes back once, when it is made.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Access, Call, Empty, FailureKind, Replica, Secret};

/// What somebody may do who comes over the network. Each may do what those before it may.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// Looks, as ordinary users of the socket may.
    Viewer,
    /// Everything but users, keys, secrets, which pools there are, and stopping the server.
    Operator,
    /// Everything.
    Admin,
}

/// The header that has [`SessionReply::csrf`] with every `POST` of a session.
pub const CSRF_HEADER: &str = "x-millpond-csrf";

/// The cookie of a session.
pub const SESSION_COOKIE: &str = "__Host-millpond_session";

/// What the session's cookie and [`CSRF_HEADER`] are given for.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SessionLogin {
    /// Name of the user.
    pub user: String,
    /// Its password.
    pub password: Secret,
    /// The six digits of this moment, of who has them (RFC 6238). Without them a right password is
    /// answered with [`FailureKind::CodeNeeded`].
    #[serde(default)]
    pub totp: Option<Secret>,
}

/// A session has begun; its cookie is in the answer's header.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct SessionReply {
    /// What [`CSRF_HEADER`] has from now on.
    pub csrf: String,
    /// Whose session it is.
    pub user: String,
    /// What they may do.
    pub role: Role,
}

impl Call for SessionLogin {
    const PATH: &'static str = "/v1/session/login";
    const ROLE: Option<Role> = None;
    type Reply = SessionReply;
}

/// Makes the first user, an admin, and logs in as that.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SessionSetup {
    /// What `millpond up` and `millpond console` print, good for once.
    pub token: Secret,
    /// Name of the user to make.
    pub user: String,
    /// Its password.
    pub password: Secret,
}

impl Call for SessionSetup {
    const PATH: &'static str = "/v1/session/setup";
    const ROLE: Option<Role> = None;
    type Reply = SessionReply;
}

/// Asks whose session it is; may be asked without one, and without [`CSRF_HEADER`].
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SessionInfo {}

/// Whose session it is.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct SessionInfoReply {
    /// The user, or the name of the key; none without a session.
    pub user: Option<String>,
    /// What they may do.
    pub role: Option<Role>,
    /// What [`CSRF_HEADER`] has.
    pub csrf: Option<String>,
    /// There is no user yet: [`SessionSetup`] makes the first one.
    pub setup_needed: bool,
}

impl Call for SessionInfo {
    const PATH: &'static str = "/v1/session/info";
    const ACCESS: Access<Self> = Access::Read;
    const ROLE: Option<Role> = None;
    type Reply = SessionInfoReply;
}

/// Ends the session.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SessionLogout {}

impl Call for SessionLogout {
    const PATH: &'static str = "/v1/session/logout";
    const ROLE: Option<Role> = Some(Role::Viewer);
    type Reply = Empty;
}

/// Changes one's own password. Other sessions of the user end.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SessionPassword {
    /// The one until now.
    pub password: Secret,
    /// The one from now on.
    pub new_password: Secret,
}

impl Call for SessionPassword {
    const PATH: &'static str = "/v1/session/password";
    const ROLE: Option<Role> = Some(Role::Viewer);
    type Reply = Empty;
}

/// Lists the users that have a role.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct UserList {}

/// Users that have a role.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct UserListReply {
    /// By name.
    pub users: Vec<UserReport>,
}

/// What is told of a user.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct UserReport {
    /// Its name.
    pub name: String,
    /// What it may do.
    pub role: Role,
    /// Whether logging in takes six digits as well.
    pub totp: bool,
    /// When it was made, in seconds since 1970.
    pub created_s: u64,
    /// When it logged in last since the server started, likewise.
    pub last_login_s: Option<u64>,
}

impl Call for UserList {
    const PATH: &'static str = "/v1/users/list";
    const ACCESS: Access<Self> = Access::Change(|_| "cannot list users".to_owned());
    type Reply = UserListReply;

    fn changes(&self) -> bool {
        false
    }
}

/// Makes a user.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct UserAdd {
    /// Its name.
    pub name: String,
    /// What it may do.
    pub role: Role,
    /// Its password.
    pub password: Secret,
}

impl Call for UserAdd {
    const PATH: &'static str = "/v1/users/add";
    const ACCESS: Access<Self> = Access::Change(|_| "cannot add a user".to_owned());
    type Reply = Empty;
}

/// Changes a user. One with another password, or another role, has to log in again.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct UserChange {
    /// Its name.
    pub name: String,
    /// What it may do from now on.
    #[serde(default)]
    pub role: Option<Role>,
    /// Its password from now on.
    #[serde(default)]
    pub password: Option<Secret>,
    /// Whether logging in takes six digits as well. `true` makes a new secret for them.
    #[serde(default)]
    pub totp: Option<bool>,
}

/// A user was changed.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct UserChangeReply {
    /// What an authenticator app is given (`otpauth://totp/...`), where a secret was made; it is
    /// never told again.
    pub totp_uri: Option<Secret>,
}

impl Call for UserChange {
    const PATH: &'static str = "/v1/users/change";
    const ACCESS: Access<Self> =
        Access::Change(|call| format!("cannot change user '{}'", call.name));
    type Reply = UserChangeReply;
}

/// Removes a user, its sessions and its keys.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct UserRemove {
    /// Its name.
    pub name: String,
}

impl Call for UserRemove {
    const PATH: &'static str = "/v1/users/remove";
    const ACCESS: Access<Self> =
        Access::Change(|call| format!("cannot remove user '{}'", call.name));
    type Reply = Empty;
}

/// Lists API keys.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ApiKeyList {}

/// API keys.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct ApiKeyListReply {
    /// In the order in which they were made.
    pub keys: Vec<ApiKeyReport>,
}

/// What is told of a key.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ApiKeyReport {
    /// What it is removed by; the key begins with it.
    pub id: String,
    /// What it is for.
    pub name: String,
    /// What may be done with it; of no meaning with `replica`.
    pub role: Role,
    /// It is for replications alone, into this dataset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replica: Option<Replica>,
    /// Who made it; none for who did so through the socket.
    pub made_by: Option<String>,
    /// When it was made, in seconds since 1970.
    pub created_s: u64,
    /// From when on it is not taken any more, likewise.
    pub expires_s: Option<u64>,
    /// When it was used last since the server started, likewise.
    pub last_used_s: Option<u64>,
}

impl Call for ApiKeyList {
    const PATH: &'static str = "/v1/keys/list";
    const ACCESS: Access<Self> = Access::Change(|_| "cannot list API keys".to_owned());
    type Reply = ApiKeyListReply;

    fn changes(&self) -> bool {
        false
    }
}

/// Makes an API key.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ApiKeyMake {
    /// What it is for.
    pub name: String,
    /// What may be done with it; of no meaning with `replica`.
    pub role: Role,
    /// It is to be for replications alone, into this dataset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replica: Option<Replica>,
    /// From when on it is not taken any more, in seconds since 1970.
    #[serde(default)]
    pub expires_s: Option<u64>,
}

/// A key was made.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ApiKeyMakeReply {
    /// What it is removed by.
    pub id: String,
    /// The key (`mpk_...`), for the header `Authorization: Bearer`; it is never told again.
    pub key: Secret,
}

impl Call for ApiKeyMake {
    const PATH: &'static str = "/v1/keys/make";
    const ACCESS: Access<Self> = Access::Change(|_| "cannot make an API key".to_owned());
    type Reply = ApiKeyMakeReply;
}

/// Removes an API key.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ApiKeyRemove {
    /// Which.
    pub id: String,
}

impl Call for ApiKeyRemove {
    const PATH: &'static str = "/v1/keys/remove";
    const ACCESS: Access<Self> =
        Access::Change(|call| format!("cannot remove the API key '{}'", call.id));
    type Reply = Empty;
}

/// Asks what was changed lately, by whom.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AuditList {
    /// So many of the last records, 1000 at most; 100 where not given.
    #[serde(default)]
    pub limit: Option<u32>,
}

/// What was changed lately.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct AuditListReply {
    /// The last one first.
    pub entries: Vec<AuditEntry>,
}

/// A request that changed something, or was to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AuditEntry {
    /// When it was answered, in seconds since 1970.
    pub time_s: u64,
    /// How who asked came.
    pub via: AuditVia,
    /// Who asked: a user's name, or that of a key. Of the socket none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Number of the system's user who asked through the socket.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
    /// Address where it came from, over the network.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// Path of the request.
    pub path: String,
    /// Pools, datasets, devices or users that it was about.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub about: Vec<String>,
    /// Why it failed; none where it worked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<FailureKind>,
}

/// How somebody came.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum AuditVia {
    /// By the server's socket.
    Socket,
    /// By a session of the console.
    Session,
    /// With an API key.
    Key,
    /// Over the network, without either of them.
    Nobody,
}

impl Call for AuditList {
    const PATH: &'static str = "/v1/audit/list";
    const ACCESS: Access<Self> = Access::Change(|_| "cannot read the record of changes".to_owned());
    type Reply = AuditListReply;

    fn changes(&self) -> bool {
        false
    }
}

/// Asks where the console is, and while no user exists, for what makes the first one.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ConsoleLink {}

/// Where the console is.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct ConsoleLinkReply {
    /// `https://ADDRESS:PORT/`; none where the server does not listen.
    pub url: Option<String>,
    /// SHA-256 of its certificate in DER, 64 hexadecimal digits; none where the server does not
    /// listen.
    #[serde(default)]
    pub fingerprint: Option<String>,
    /// [`SessionSetup::token`], while no user exists.
    pub setup_token: Option<Secret>,
}

impl Call for ConsoleLink {
    const PATH: &'static str = "/v1/console/link";
    const ACCESS: Access<Self> =
        Access::Change(|_| "cannot tell how the first user is made".to_owned());
    type Reply = ConsoleLinkReply;

    fn changes(&self) -> bool {
        false
    }
}
