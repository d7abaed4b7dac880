//! Messages of `zinject`: faults in the pools of a server that was started with `--inject`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Access, Call, Empty};

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum InjectError {
    /// Operations fail, though they are done.
    Io,
    /// What was read fails its checksum.
    Checksum,
    /// What was read does not decompress.
    Decompress,
    /// What was read is not what was encrypted.
    Decrypt,
    /// Operations fail, and opening the device again does.
    Nxio,
    /// The device seems to be needed: it is neither detached nor taken offline.
    Dtl,
    /// A bit of what was read is flipped.
    Corrupt,
    /// Operations are not done, and seem to succeed.
    Noop,
    /// Operations are not done, and fail.
    IoPrefail,
}

/// Which operations go wrong.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum InjectIo {
    /// None.
    Null,
    /// Reads.
    Read,
    /// Writes.
    Write,
    /// Frees, which no device sees.
    Free,
    /// Claims, which no device sees.
    Claim,
    /// Flushes.
    Flush,
    /// Discards.
    Trim,
    /// All of these.
    #[default]
    All,
    /// The question whether a device that failed still works.
    Probe,
}

/// A part of a device's labels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum InjectRegion {
    /// The configuration.
    Nvlist,
    /// The first padding.
    Pad1,
    /// The second padding.
    Pad2,
    /// The uberblocks.
    Uber,
}

/// What a device is made to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum InjectState {
    /// It has too many errors, and goes on.
    Degrade,
    /// It has too many errors, and is not used.
    Fault,
}

/// What of a pool takes longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum InjectCommand {
    /// Its import.
    Import,
    /// Its export.
    Export,
}

/// A fault. Devices are named by name, path or GUID; in answers by GUID.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum InjectFault {
    /// Of operations of a device.
    Device {
        /// The device.
        device: String,
        /// What happens.
        error: InjectError,
        /// To which operations.
        io: InjectIo,
    },
    /// Of the labels of a device: reads and writes of a part of them fail.
    Label {
        /// The device.
        device: String,
        /// What happens, as it is told.
        error: InjectError,
        /// Which part.
        region: InjectRegion,
    },
    /// Reads and writes of a device take a time at least.
    Delay {
        /// The device.
        device: String,
        /// The time, in milliseconds.
        delay_ms: u64,
        /// How many go on at the same time.
        lanes: u64,
        /// Which operations.
        io: InjectIo,
    },
    /// Of blocks that are read.
    Block {
        /// The dataset, by its `objsetid`; zero is the pool's own metadata.
        objset: u64,
        /// The object. Zero in the pool's own metadata stands for all of it.
        object: u64,
        /// The type of an object of the pool's own metadata, by its number.
        #[serde(default)]
        object_type: Option<u8>,
        /// The level of the blocks.
        level: i64,
        /// The first block.
        first: u64,
        /// The last block; none for all that follow.
        last: Option<u64>,
        /// `first` and `last` are bytes of a file, whose blocks are meant.
        #[serde(default)]
        bytes: bool,
        /// The copies, a bit each; zero for all.
        #[serde(default)]
        copies: u8,
        /// What happens.
        error: InjectError,
    },
    /// A device is degraded or faulted, at once.
    State {
        /// The device.
        device: String,
        /// What it becomes.
        state: InjectState,
    },
    /// The next import or export of the pool takes a time at least.
    PoolDelay {
        /// Which.
        command: InjectCommand,
        /// The time, in seconds.
        seconds: u64,
    },
}

/// Asks for a fault.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct InjectAdd {
    /// The pool; none where only the cache is to be emptied.
    #[serde(default)]
    pub pool: Option<String>,
    /// Empty the caches in memory first (`-a`).
    #[serde(default)]
    pub flush_cache: bool,
    /// The fault.
    #[serde(default)]
    pub fault: Option<InjectFault>,
    /// How often it comes where it can, in percent; always without (`-f`).
    #[serde(default)]
    pub percent: Option<f64>,
}

/// What was asked for.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct InjectAddReply {
    /// The fault as it is kept, unless it is over already.
    pub record: Option<InjectRecord>,
}

/// A fault that somebody asked for.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct InjectRecord {
    /// Its number.
    pub id: u64,
    /// The pool.
    pub pool: String,
    /// The fault.
    pub fault: InjectFault,
    /// How often it comes where it can, in percent; always without.
    pub percent: Option<f64>,
    /// How often it could have come.
    pub matched: u64,
    /// How often it came.
    pub injected: u64,
}

impl Call for InjectAdd {
    const PATH: &'static str = "/v1/inject/add";
    const ACCESS: Access<Self> = Access::Change(|_| "failed to add handler".to_owned());
    type Reply = InjectAddReply;
}

/// Lists the faults that were asked for.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct InjectList {}

/// The faults, by their numbers.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct InjectListReply {
    /// They.
    pub records: Vec<InjectRecord>,
}

impl Call for InjectList {
    const PATH: &'static str = "/v1/inject/list";
    const ACCESS: Access<Self> = Access::Change(|_| "cannot list handlers".to_owned());
    type Reply = InjectListReply;

    fn changes(&self) -> bool {
        false
    }
}

/// Ends a fault, or all of them.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct InjectCancel {
    /// Its number; all without.
    #[serde(default)]
    pub id: Option<u64>,
}

impl Call for InjectCancel {
    const PATH: &'static str = "/v1/inject/cancel";
    const ACCESS: Access<Self> = Access::Change(|_| "failed to remove handlers".to_owned());
    type Reply = Empty;
}

/// Sets a tunable of OpenZFS's module, in all pools, those that come later too.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct InjectTune {
    /// `zfs_scan_suspend_progress` or `zfs_removal_suspend_progress`.
    pub name: String,
    /// What it is to be.
    pub value: u64,
}

impl Call for InjectTune {
    const PATH: &'static str = "/v1/inject/tune";
    const ACCESS: Access<Self> = Access::Change(|call| format!("cannot tune '{}'", call.name));
    type Reply = Empty;
}

/// `zpool freeze`: the pool writes no more transaction groups, until it is exported as if it had
/// crashed.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ZpoolFreeze {
    /// Name of the pool.
    pub name: String,
}

impl Call for ZpoolFreeze {
    const PATH: &'static str = "/v1/zpool/freeze";
    const ACCESS: Access<Self> = Access::Change(|call| format!("cannot freeze '{}'", call.name));
    type Reply = Empty;
}
