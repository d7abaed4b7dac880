//! `zpool initialize` and `zpool trim`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Access, Call, Role};

/// What is done about a pass over the free space of devices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ActivityAction {
    /// Begins it, or goes on with a suspended one.
    #[default]
    Start,
    /// Stops it, and gives it up (`-c`).
    Cancel,
    /// Stops it, to go on some time (`-s`).
    Suspend,
    /// Forgets what was initialized (`-u`).
    Uninit,
}

/// `zpool initialize`: writes over free space. On each device it is a job,
/// [`crate::JobKind::Initialize`].
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ZpoolInitialize {
    /// Name of the pool.
    pub name: String,
    /// Names, paths or GUIDs of devices; all without.
    #[serde(default)]
    pub devices: Vec<String>,
    /// What to do.
    pub action: ActivityAction,
    /// Write zeros (`-z`).
    #[serde(default)]
    pub zero: bool,
    /// The command as typed, for the pool's history.
    #[serde(default)]
    pub command: String,
}

impl Call for ZpoolInitialize {
    const PATH: &'static str = "/v1/zpool/initialize";
    const ACCESS: Access<Self> =
        Access::Change(|call| format!("cannot initialize '{}'", call.name));
    const ROLE: Option<Role> = Some(Role::Operator);
    type Reply = ActivityReply;
}

/// `zpool trim`: tells devices of free space. On each device it is a job,
/// [`crate::JobKind::Trim`].
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ZpoolTrim {
    /// Name of the pool.
    pub name: String,
    /// Names, paths or GUIDs of devices; all without.
    #[serde(default)]
    pub devices: Vec<String>,
    /// What to do; nothing is to be forgotten.
    pub action: ActivityAction,
    /// Bytes per second, at most (`-r`); zero for no bound.
    #[serde(default)]
    pub rate: u64,
    /// Erase for good (`-d`).
    #[serde(default)]
    pub secure: bool,
    /// The command as typed, for the pool's history.
    #[serde(default)]
    pub command: String,
}

impl Call for ZpoolTrim {
    const PATH: &'static str = "/v1/zpool/trim";
    const ACCESS: Access<Self> = Access::Change(|call| format!("cannot trim '{}'", call.name));
    const ROLE: Option<Role> = Some(Role::Operator);
    type Reply = ActivityReply;
}

/// What became of such a request. Where a device has a name that the pool does not know, nothing
/// was done.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct ActivityReply {
    /// The devices that it was not done on.
    pub refused: Vec<ActivityRefusal>,
    /// How many devices were asked for.
    pub devices: usize,
    /// Numbers of the jobs that were begun.
    pub jobs: Vec<u64>,
}

/// A device that is not initialized or trimmed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ActivityRefusal {
    /// The device, as the request names it; else its path.
    pub device: String,
    /// Why.
    pub why: ActivityObstacle,
}

/// Why a device is not initialized or trimmed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ActivityObstacle {
    /// The pool has no such device.
    NoSuchDevice,
    /// It is a hot spare that stands by.
    Spare,
    /// It is a cache device.
    Cache,
    /// It is no device, or cannot be written to.
    NotWriteable,
    /// Discards do not reach its medium, or it cannot erase for good.
    TrimUnsupported,
    /// It is under way already, or the vdev is being expanded.
    Busy,
    /// It is not under way.
    NotActive,
    /// It is a part of an expanded RAID-Z vdev.
    Expanded,
}
