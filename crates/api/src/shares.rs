//! Messages about what is shared on the network, who uses it and how much.

use serde::{Deserialize, Serialize};

use crate::{Access, Call, Protocol};

/// `millpond shares`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ShareList {}

/// All shares.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ShareListReply {
    /// By protocol and dataset.
    pub shares: Vec<ShareReport>,
}

/// One share.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ShareReport {
    /// How it is shared.
    pub protocol: Protocol,
    /// The dataset behind it.
    pub dataset: String,
    /// Name on the network, for iSCSI the IQN.
    pub name: String,
    /// What all clients have done since it is shared, those that have left included.
    pub traffic: ShareTraffic,
    /// Clients that are connected.
    pub clients: Vec<ShareClient>,
}

/// One client of a share.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ShareClient {
    /// Who it says it is, for iSCSI the initiator's name.
    pub name: String,
    /// Where it comes from, `ADDRESS:PORT`.
    pub address: String,
    /// What it has done since it connected.
    pub traffic: ShareTraffic,
}

/// What has been read and written, counted by the server where it answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShareTraffic {
    /// Reads that ended well.
    pub reads: u64,
    /// What they gave, in bytes.
    pub read_bytes: u64,
    /// How long they took together, in nanoseconds.
    pub read_ns: u64,
    /// Writes that ended well.
    pub writes: u64,
    /// What came with them, in bytes.
    pub written_bytes: u64,
    /// How long they took together, in nanoseconds.
    pub write_ns: u64,
    /// Other operations that ended well.
    pub others: u64,
    /// Operations that failed.
    pub failures: u64,
}

impl Call for ShareList {
    const PATH: &'static str = "/v1/shares/list";
    const ACCESS: Access<Self> = Access::Change(|_| "cannot list the clients of shares".to_owned());
    type Reply = ShareListReply;
}
