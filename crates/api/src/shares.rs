//! Messages about what is shared on the network.

use serde::{Deserialize, Serialize};

use crate::{Access, Call, Empty, NotShared, Protocol};

/// `zfs share`: shares filesystems as `sharenfs` says, also those that `zfs unshare` took away.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ZfsShare {
    /// The filesystem.
    pub name: Option<String>,
    /// All of them (`-a`).
    pub all: bool,
}

impl Call for ZfsShare {
    const PATH: &'static str = "/v1/zfs/share";
    const ACCESS: Access<Self> = Access::Change(|call| match &call.name {
        Some(name) => format!("cannot share '{name}'"),
        None => "cannot share filesystems".to_owned(),
    });
    type Reply = Empty;
}

/// `zfs unshare`: ends shares until `zfs share`, or until the property or the pool comes anew.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ZfsUnshare {
    /// A filesystem, or the path that it is shared as.
    pub name: Option<String>,
    /// All of them (`-a`).
    pub all: bool,
}

impl Call for ZfsUnshare {
    const PATH: &'static str = "/v1/zfs/unshare";
    const ACCESS: Access<Self> = Access::Change(|call| match &call.name {
        Some(name) => format!("cannot unshare '{name}'"),
        None => "cannot unshare filesystems".to_owned(),
    });
    type Reply = Empty;
}

/// `millpond shares`: what is shared, and who uses it.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ShareList {}

impl Call for ShareList {
    const PATH: &'static str = "/v1/shares";
    const ACCESS: Access<Self> = Access::Read;
    type Reply = ShareListReply;
}

/// What is shared.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ShareListReply {
    /// By dataset.
    pub shares: Vec<ShareUse>,
    /// What is meant to be shared and is not.
    pub not_shared: Vec<NotShared>,
}

/// A share, and what its clients did.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ShareUse {
    /// How.
    pub protocol: Protocol,
    /// The dataset behind it.
    pub dataset: String,
    /// Name on the network: for NFS the path, for iSCSI the IQN.
    pub name: String,
    /// `ADDRESS:PORT`.
    pub address: String,
    /// What all clients did since it began; nothing where the server does not count it.
    pub traffic: Option<ShareTraffic>,
    /// Its clients.
    pub clients: Vec<ShareClient>,
}

/// What clients did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShareTraffic {
    /// Requests of any kind.
    pub operations: u64,
    /// Requests that read content.
    pub reads: u64,
    /// Bytes that they gave.
    pub read_bytes: u64,
    /// Requests that wrote content.
    pub writes: u64,
    /// Bytes that they took.
    pub written_bytes: u64,
}

/// A client of a share.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ShareClient {
    /// Its address.
    pub address: String,
    /// Whether it has a connection.
    pub is_connected: bool,
    /// What it did since the share began.
    pub traffic: ShareTraffic,
    /// Seconds since its last request.
    pub idle_seconds: u64,
}
