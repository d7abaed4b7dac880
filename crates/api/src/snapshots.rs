//! Messages of the `zfs` command about clones, bookmarks and holds, and `zfs wait`.

use serde::{Deserialize, Serialize};

use crate::common::quoted;
use crate::{Access, Call, Empty, Settings};

/// `zfs clone`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ZfsClone {
    /// `pool/fs@snapshot`.
    pub origin: String,
    /// Full name of the clone.
    pub name: String,
    /// Properties (`-o`).
    pub properties: Settings,
    /// Create missing parents, and succeed if it exists (`-p`).
    pub parents: bool,
    /// Parents that are made are never mounted (`-pp`).
    #[serde(default)]
    pub parents_unmounted: bool,
    /// Do not mount (`-u`).
    pub no_mount: bool,
    /// The command as typed, for the pool's history.
    pub command: String,
}

impl Call for ZfsClone {
    const PATH: &'static str = "/v1/zfs/clone";
    const ACCESS: Access<Self> = Access::Change(|call| format!("cannot create '{}'", call.name));
    type Reply = Empty;
}

/// `zfs promote`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ZfsPromote {
    /// The clone.
    pub name: String,
    /// The command as typed, for the pool's history.
    pub command: String,
}

impl Call for ZfsPromote {
    const PATH: &'static str = "/v1/zfs/promote";
    const ACCESS: Access<Self> = Access::Change(|call| format!("cannot promote '{}'", call.name));
    type Reply = Empty;
}

/// `zfs bookmark`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ZfsBookmark {
    /// `pool/fs@snapshot` or `pool/fs#bookmark`.
    pub source: String,
    /// `pool/fs#bookmark`.
    pub name: String,
    /// The snapshots of the same name of children too, each in its own dataset (`-r`).
    pub recursive: bool,
    /// The command as typed, for the pool's history.
    pub command: String,
}

impl Call for ZfsBookmark {
    const PATH: &'static str = "/v1/zfs/bookmark";
    const ACCESS: Access<Self> =
        Access::Change(|call| format!("cannot create bookmark '{}'", call.name));
    type Reply = Empty;
}

/// `zfs hold`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ZfsHold {
    /// Snapshots.
    pub names: Vec<String>,
    /// Name of the hold.
    pub tag: String,
    /// The snapshots of the same name of children too (`-r`).
    pub recursive: bool,
    /// The command as typed, for the pool's history.
    pub command: String,
}

impl Call for ZfsHold {
    const PATH: &'static str = "/v1/zfs/hold";
    const ACCESS: Access<Self> =
        Access::Change(|call| format!("cannot hold snapshot {}", quoted(&call.names)));
    type Reply = Empty;
}

/// `zfs release`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ZfsRelease {
    /// Snapshots.
    pub names: Vec<String>,
    /// Name of the hold.
    pub tag: String,
    /// The snapshots of the same name of children too (`-r`).
    pub recursive: bool,
    /// The command as typed, for the pool's history.
    pub command: String,
}

impl Call for ZfsRelease {
    const PATH: &'static str = "/v1/zfs/release";
    const ACCESS: Access<Self> =
        Access::Change(|call| format!("cannot release hold from snapshot {}", quoted(&call.names)));
    type Reply = Empty;
}

/// `zfs wait`: until a filesystem has freed what was removed from it.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ZfsWait {
    /// The filesystem.
    pub name: String,
}

impl Call for ZfsWait {
    const PATH: &'static str = "/v1/zfs/wait";
    const ACCESS: Access<Self> = Access::Read;
    type Reply = Empty;
}
