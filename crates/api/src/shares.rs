//! Messages about what is shared on the network, who uses it and how much.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Access, Call, Empty, Needed, NotShared, Protocol, Role, ShareInfo};

/// `zfs share`: shares filesystems as `sharenfs` and `sharesmb` say, also those that `zfs unshare`
/// took away.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ZfsShare {
    /// The filesystem.
    pub name: Option<String>,
    /// All of them (`-a`).
    #[serde(default)]
    pub all: bool,
    /// Of all, those that are shared by this protocol, and only by it.
    #[serde(default)]
    pub protocol: Option<Protocol>,
}

impl Call for ZfsShare {
    const PATH: &'static str = "/v1/zfs/share";
    const ACCESS: Access<Self> = Access::Change(|call| match &call.name {
        Some(name) => format!("cannot share '{name}'"),
        None => "cannot share filesystems".to_owned(),
    });
    const ROLE: Option<Role> = Some(Role::Operator);
    type Reply = Empty;

    /// As its properties say, which are others' to set (`zfs_secpolicy_share`,
    /// usr/src/uts/common/fs/zfs/zfs_ioctl.c of illumos).
    fn needs(&self, _uid: u32) -> Option<Vec<Needed>> {
        let name = self.name.as_ref().filter(|_| !self.all)?;
        Some(vec![Needed::on(name, "share")])
    }
}

/// `zfs unshare`: ends shares until `zfs share`, or until the property or the pool comes anew.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ZfsUnshare {
    /// A filesystem, or the path that it is shared as.
    pub name: Option<String>,
    /// All of them (`-a`).
    #[serde(default)]
    pub all: bool,
    /// Of all, the shares by this protocol.
    #[serde(default)]
    pub protocol: Option<Protocol>,
}

impl Call for ZfsUnshare {
    const PATH: &'static str = "/v1/zfs/unshare";
    const ACCESS: Access<Self> = Access::Change(|call| match &call.name {
        Some(name) => format!("cannot unshare '{name}'"),
        None => "cannot unshare filesystems".to_owned(),
    });
    const ROLE: Option<Role> = Some(Role::Operator);
    type Reply = Empty;

    fn needs(&self, _uid: u32) -> Option<Vec<Needed>> {
        // What is shared as a path has a name that permissions go by.
        let name = self.name.as_ref().filter(|name| !name.starts_with('/'))?;
        (!self.all).then(|| vec![Needed::on(name, "share")])
    }
}

/// `millpond shares`: what is shared, who uses it and how much. Who the clients are is told to
/// those only who may change things: an initiator's name is all that some shares ask for.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ShareList {}

impl Call for ShareList {
    const PATH: &'static str = "/v1/shares/list";
    const ACCESS: Access<Self> = Access::Change(|_| "cannot list the clients of shares".to_owned());
    const ROLE: Option<Role> = Some(Role::Operator);
    type Reply = ShareListReply;

    fn changes(&self) -> bool {
        false
    }
}

/// What is shared, by whatever protocol.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct ShareListReply {
    /// By dataset, then by protocol.
    pub shares: Vec<ShareReport>,
    /// What is meant to be shared and is not.
    pub not_shared: Vec<NotShared>,
}

/// A share, and what its clients did.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ShareReport {
    /// What is offered, and how.
    #[serde(flatten)]
    pub share: ShareInfo,
    /// What all clients have done since it is shared, those that have left included. Nothing is
    /// counted by SMB, whose server is another process.
    pub traffic: Option<ShareTraffic>,
    /// Clients that are connected, and, where the protocol lets them come and go (NFS), those that
    /// were.
    pub clients: Vec<ShareClient>,
}

/// One client of a share.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ShareClient {
    /// Who it says it is: for iSCSI the initiator's name, for SMB the user's.
    pub name: Option<String>,
    /// Where it comes from: `ADDRESS:PORT`, or the address alone where it is a host with whatever
    /// connections it has (NFS, SMB).
    pub address: String,
    /// Whether it is connected.
    pub is_connected: bool,
    /// Seconds since it last asked for something, where that is known.
    pub idle_seconds: Option<u64>,
    /// What it has done since it connected; for NFS since the share began.
    pub traffic: Option<ShareTraffic>,
}

/// What has been read and written, counted by the server where it answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
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
    /// Other operations that ended well; for NFS also those that were answered with what is no
    /// fault of the server, such as that there is no such file.
    pub others: u64,
    /// Operations that failed.
    pub failures: u64,
}

impl ShareTraffic {
    /// Operations of any kind.
    pub fn operations(&self) -> u64 {
        self.reads + self.writes + self.others + self.failures
    }
}
