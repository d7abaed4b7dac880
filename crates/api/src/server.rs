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

/// Asks who has how much of the server's memory.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ServerMemory {}

impl Call for ServerMemory {
    const PATH: &'static str = "/v1/server/memory";
    const ACCESS: Access<Self> = Access::Read;
    type Reply = ServerMemoryReply;
}

/// Who has how much of the server's memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ServerMemoryReply {
    /// Bytes of the process that are in memory, as the kernel counts them; nothing where it does
    /// not tell.
    pub resident_bytes: Option<u64>,
    /// Bytes that the cache may have now, with what counts in its limit.
    pub cache_limit_bytes: u64,
    /// Bytes that it may have unless memory is short, or much is used beside it.
    pub cache_limit_max_bytes: u64,
    /// Who has how much. What nobody has now is there as well.
    pub uses: Vec<MemoryUseReport>,
    /// Bytes that are resident and nobody's of these: what the allocator keeps or cannot use,
    /// stacks, and what is small. Nothing where the kernel does not tell.
    pub unexplained_bytes: Option<u64>,
}

/// What somebody has of the server's memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct MemoryUseReport {
    /// Who.
    pub user: MemoryUser,
    /// Bytes now, as they are accounted for.
    pub bytes: u64,
    /// Bytes at most; nothing where there is no bound.
    pub bound_bytes: Option<u64>,
    /// Whether it counts in the limit of the cache, which keeps so much less.
    pub counts_in_cache: bool,
}

/// Who has memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum MemoryUser {
    /// Blocks in the cache, of all pools.
    CacheBlocks,
    /// Objects and files in memory.
    Objects,
    /// Indexes of what cache devices hold.
    CacheDeviceIndexes,
    /// What the cache's tables take beyond what its blocks are counted with.
    CacheTables,
    /// Data that is written and not on disk yet.
    Dirty,
    /// Ranges of free space.
    FreeSpace,
    /// Datasets and snapshots that were looked at.
    Datasets,
    /// Blocks that scrubs and resilvers are about to read.
    ScanQueues,
    /// Changes of dedup tables.
    DedupChanges,
    /// Buffers that are kept for reuse.
    SpareBuffers,
    /// What iSCSI's sessions have under way.
    Iscsi,
    /// What NFS's clients have under way.
    Nfs,
    /// The program, and files that are mapped.
    Program,
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
