//! Messages about the host's disks.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Access, Call, Role};

/// Asks for the host's disks, and what each is used for: what a pool can be made of.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DiskList {}

/// The host's disks.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct DiskListReply {
    /// By name: `sda` before `sdb`, `sdz` before `sdaa`.
    pub disks: Vec<DiskReport>,
}

/// A whole disk: no partition of one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DiskReport {
    /// The path that stays the same when the host starts anew, below `/dev/disk/by-id`; that of
    /// `/dev` where there is none.
    pub path: String,
    /// Name that the kernel gave it: `sda`.
    pub name: String,
    /// Its size in bytes.
    pub size_bytes: u64,
    /// What it says that it is.
    pub model: Option<String>,
    /// Its serial number.
    pub serial: Option<String>,
    /// Whether it turns.
    pub is_rotational: bool,
    /// What it is used for; none where a pool could have it, and nothing would be lost.
    pub in_use: Option<DiskUse>,
}

/// What a disk is used for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "use", rename_all = "kebab-case")]
pub enum DiskUse {
    /// It, or a partition of it, belongs to a pool that is imported here.
    Pool {
        /// The pool.
        pool: String,
    },
    /// It belongs to a pool that is not imported here, by its label.
    OtherPool {
        /// The pool.
        pool: String,
        /// Whether it was exported. If not, another host may have it.
        is_exported: bool,
    },
    /// It, or a partition of it, is mounted.
    Mounted {
        /// Where.
        at: String,
    },
    /// The host swaps to it.
    Swap,
    /// Another device of the kernel is made of it.
    Holder {
        /// Name of that one: `dm-0`.
        by: String,
    },
    /// Something is on it.
    Content {
        /// What: "an ext4 filesystem".
        what: String,
    },
    /// It could not be looked at.
    Unreadable {
        /// Why.
        why: String,
    },
}

impl Call for DiskList {
    const PATH: &'static str = "/v1/disks/list";
    /// Each disk is read for it.
    const ACCESS: Access<Self> = Access::Change(|_| "cannot list disks".to_owned());
    const ROLE: Option<Role> = Some(Role::Operator);
    type Reply = DiskListReply;

    fn changes(&self) -> bool {
        false
    }
}
