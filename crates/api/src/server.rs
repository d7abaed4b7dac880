//! Messages about the daemon itself.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Access, Call};

/// Nothing to say.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Empty {}

/// Asks what the daemon is and what it serves.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ServerInfo {}

/// What the daemon is.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ServerInfoReply {
    /// Millpond's version.
    pub version: String,
    /// Process number.
    pub process_id: u32,
    /// Imported pools.
    pub pools: Vec<String>,
    /// What is offered on the network.
    pub shares: Vec<ShareInfo>,
    /// What is meant to be offered and is not.
    #[serde(default)]
    pub not_shared: Vec<NotShared>,
    /// The options that it was started with.
    #[serde(default)]
    pub options: Vec<ServerOption>,
}

/// One option that the server was started with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ServerOption {
    /// Its name, as `millpond daemon` has it.
    pub name: String,
    /// Its value; several are separated by commas.
    pub value: String,
    /// Who says so.
    pub source: OptionSource,
}

/// Where an option of the server is from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum OptionSource {
    /// From the command line.
    CommandLine,
    /// From `millpond.toml` in the state directory.
    File,
    /// It holds without a word.
    Default,
}

/// How something is offered on the network.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum Protocol {
    /// iSCSI.
    Iscsi,
    /// NFS.
    Nfs,
    /// SMB.
    Smb,
}

/// One thing that is offered on the network.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ShareInfo {
    /// How.
    pub protocol: Protocol,
    /// The dataset behind it.
    pub dataset: String,
    /// Name on the network: for iSCSI the IQN, for NFS the path, for SMB the share.
    pub name: String,
    /// `ADDRESS:PORT`.
    pub address: String,
    /// Other addresses where it is offered as well.
    #[serde(default)]
    pub other_addresses: Vec<String>,
    /// The CHAP name that initiators give; none where everybody is let in.
    #[serde(default)]
    pub user: Option<String>,
    /// Name of the secret that initiators prove themselves with.
    #[serde(default)]
    pub secret: Option<String>,
    /// Name of the secret that the target proves itself with.
    #[serde(default)]
    pub mutual: Option<String>,
    /// By SMB, the users, and with an `@` the groups, that are let in; all users where none are
    /// named.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub only: Vec<String>,
    /// By SMB, everybody is let in without a password.
    #[serde(default)]
    pub is_open: bool,
}

/// One thing that is meant to be offered on the network, and is not.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct NotShared {
    /// How.
    pub protocol: Protocol,
    /// The dataset behind it.
    pub dataset: String,
    /// Why it is not, and what to do, for people.
    pub why: String,
}

impl Call for ServerInfo {
    const PATH: &'static str = "/v1/server/info";
    const ACCESS: Access<Self> = Access::Read;
    type Reply = ServerInfoReply;
}

/// Exports every pool cleanly and ends the daemon.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ServerStop {}

impl Call for ServerStop {
    const PATH: &'static str = "/v1/server/stop";
    const ACCESS: Access<Self> = Access::Change(|_| "cannot stop the server".to_owned());
    type Reply = Empty;
}
