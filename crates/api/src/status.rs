//! `zpool status`, and what it tells of: scans, checkpoints, removals, expansions, deduplication.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::common::quoted;
use crate::{Access, Call, Empty, Failure, Guid, PoolCondition, Role, VdevReport};

/// `zpool status`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ZpoolStatus {
    /// Names; empty means all.
    pub names: Vec<String>,
    /// Name damaged files (`-v`).
    #[serde(default)]
    pub verbose: bool,
}

/// What `zpool status` prints.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct ZpoolStatusReply {
    /// In order of name.
    pub pools: Vec<PoolStatusReport>,
    /// As [`ZpoolListReply::absent`].
    #[serde(default)]
    pub absent: Vec<Failure>,
}

/// How a whole pool is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum PoolHealth {
    /// Everything works.
    #[default]
    Online,
    /// Works with less redundancy than it has.
    Degraded,
    /// Cannot work.
    Faulted,
    /// Stopped after an I/O failure, until it is cleared.
    Suspended,
}

/// One pool's condition.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct PoolStatusReport {
    /// Name.
    pub name: String,
    /// GUID.
    pub guid: Guid,
    /// Last synced transaction group.
    pub txg: u64,
    /// How it is.
    pub health: PoolHealth,
    /// What is to be said of it, if anything.
    pub condition: Option<PoolCondition>,
    /// Nothing is wrong ([`PoolCondition::is_healthy`]).
    #[serde(default)]
    pub is_healthy: bool,
    /// The last or running scrub or resilver.
    pub scan: Option<ScanReport>,
    /// The last scrub of the error log, if there was one since.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error_scrub: Option<ErrorScrubReport>,
    /// The checkpoint, or what is left of one.
    #[serde(default)]
    pub checkpoint: Option<CheckpointReport>,
    /// The last or running removal of a vdev.
    #[serde(default)]
    pub removal: Option<RemovalReport>,
    /// The RAID-Z expansion that is under way, else the last one.
    #[serde(default)]
    pub expansion: Option<ExpansionReport>,
    /// Dedup tables; `None` without.
    #[serde(default)]
    pub dedup: Option<DedupReport>,
    /// The vdev tree.
    pub tree: VdevReport,
    /// Number of known data errors.
    pub error_count: u64,
    /// Names of damaged files, where known and asked for.
    pub damaged: Vec<String>,
    /// They were asked for by somebody who may not know them.
    #[serde(default)]
    pub damaged_denied: bool,
}

/// A scrub of the blocks that the error log names, running or ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ErrorScrubReport {
    /// How far it is.
    pub state: ScanState,
    /// When it began, in seconds since the epoch.
    pub start_time_s: u64,
    /// When it ended; zero while it runs.
    pub end_time_s: u64,
    /// Since when it is paused; zero when it is not.
    pub pause_time_s: u64,
    /// Blocks that were read.
    pub examined: u64,
    /// Blocks that are left.
    pub to_examine: u64,
    /// Blocks that are still lost.
    pub errors: u64,
}

/// A scrub or resilver, running or ended.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct ScanReport {
    /// What it does.
    pub function: ScanFunction,
    /// How far it is.
    pub state: ScanState,
    /// When it began, in seconds since the epoch.
    pub start_time_s: u64,
    /// When it ended; zero while it runs.
    pub end_time_s: u64,
    /// Since when it is paused; zero when it is not.
    pub pause_time_s: u64,
    /// Seconds at work since it was started here, pauses deducted.
    pub elapsed_s: u64,
    /// Bytes to find and verify.
    pub to_examine_bytes: u64,
    /// Bytes found.
    pub examined_bytes: u64,
    /// Bytes verified.
    pub issued_bytes: u64,
    /// Bytes found since it was started here.
    pub pass_examined_bytes: u64,
    /// Bytes verified since it was started here.
    pub pass_issued_bytes: u64,
    /// Bytes repaired.
    pub repaired_bytes: u64,
    /// Blocks that are lost.
    pub errors: u64,
    /// Nothing is repaired, because the pool was imported read-only.
    pub verify_only: bool,
}

/// What a scan does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ScanFunction {
    /// Verifies everything.
    #[default]
    Scrub,
    /// Writes what devices lack.
    Resilver,
}

/// How far a scan is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ScanState {
    /// Under way, or paused.
    #[default]
    Scanning,
    /// Done.
    Finished,
    /// Stopped before it was done.
    Canceled,
}

/// What `zpool scrub` does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ScrubAction {
    /// Starts a scrub, or goes on with a paused one.
    #[default]
    Start,
    /// The same, of what was written since the last scrub that was finished (`-C`).
    Continue,
    /// Starts one of the blocks that the error log names, or goes on with a paused one (`-e`).
    Errors,
    /// Pauses it (`-p`).
    Pause,
    /// Stops it (`-s`).
    Stop,
}

/// `zpool scrub`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ZpoolScrub {
    /// Names; empty with `all`.
    pub names: Vec<String>,
    /// Every pool (`-a`).
    #[serde(default)]
    pub all: bool,
    /// What to do.
    pub action: ScrubAction,
    /// To start one of what was written since then (`-S`), in seconds since 1970.
    #[serde(default)]
    pub from_s: Option<u64>,
    /// To start one of what was written until then (`-E`), in seconds since 1970.
    #[serde(default)]
    pub until_s: Option<u64>,
    /// The command as typed, for the history of the pool; empty for none.
    #[serde(default)]
    pub command: String,
}

impl Call for ZpoolScrub {
    const PATH: &'static str = "/v1/zpool/scrub";
    const ACCESS: Access<Self> = Access::Change(|call| match call.all {
        true => "cannot scrub pools".to_owned(),
        false => format!("cannot scrub {}", quoted(&call.names)),
    });
    const ROLE: Option<Role> = Some(Role::Operator);
    type Reply = Empty;
}

/// What the last scrub or resilver of a pool read of each dataset, since the pool was imported.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ZpoolScanCost {
    /// Name of the pool.
    pub name: String,
}

/// What it read.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct ZpoolScanCostReply {
    /// It began before the import: what it read until then is not among this.
    pub is_continued: bool,
    /// Most first. A block that several have counts for the one that has it longest.
    pub datasets: Vec<ScanCostReport>,
}

/// What a scan read of a dataset.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ScanCostReport {
    /// A filesystem or volume, with its snapshots; none for the pool's own metadata, and what is
    /// destroyed by now.
    pub dataset: Option<String>,
    /// Blocks.
    pub blocks: u64,
    /// Bytes allocated for them: all copies, with parity.
    pub bytes: u64,
}

impl Call for ZpoolScanCost {
    const PATH: &'static str = "/v1/zpool/scan-cost";
    const ACCESS: Access<Self> = Access::Read;
    type Reply = ZpoolScanCostReply;
}

/// `zpool checkpoint`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ZpoolCheckpoint {
    /// Name of the pool.
    pub name: String,
    /// Discard the checkpoint (`-d`).
    #[serde(default)]
    pub discard: bool,
    /// The command as typed, for the pool's history.
    #[serde(default)]
    pub command: String,
}

impl Call for ZpoolCheckpoint {
    const PATH: &'static str = "/v1/zpool/checkpoint";
    const ACCESS: Access<Self> =
        Access::Change(|call| format!("cannot checkpoint '{}'", call.name));
    const ROLE: Option<Role> = Some(Role::Operator);
    type Reply = Empty;
}

/// A pool's checkpoint.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct CheckpointReport {
    /// When it was made, in seconds since the epoch; `None` while it is being discarded.
    pub created_s: Option<u64>,
    /// Bytes that only it uses.
    pub space_bytes: u64,
}

/// The removal of a vdev, running or ended.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct RemovalReport {
    /// How far it is.
    pub state: RemovalState,
    /// Index of the vdev.
    pub vdev: u64,
    /// Its type or path, while it is there.
    pub name: String,
    /// When it began, in seconds since the epoch.
    pub start_s: u64,
    /// When it ended.
    pub end_s: u64,
    /// Bytes copied.
    pub copied_bytes: u64,
    /// Bytes to copy in all.
    pub total_bytes: u64,
    /// Memory that the mappings of removed vdevs take.
    pub mapping_bytes: u64,
    /// Why nothing is copied at present.
    #[serde(default)]
    pub waits_for: Option<String>,
}

/// How far a removal is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum RemovalState {
    /// Data is copied to other vdevs.
    #[default]
    Running,
    /// Done.
    Finished,
    /// Given up.
    Canceled,
}

/// A RAID-Z expansion, running or ended.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct ExpansionReport {
    /// The vdev, with its number: `raidz1-0`.
    pub vdev: String,
    /// When it began, in seconds since the epoch.
    pub start_s: u64,
    /// When it ended; `None` while it runs.
    pub end_s: Option<u64>,
    /// Bytes moved.
    pub copied_bytes: u64,
    /// Bytes to move in all.
    pub total_bytes: u64,
    /// Why nothing is moved at present.
    #[serde(default)]
    pub waits_for: Option<String>,
}

/// A pool's dedup tables, in sum.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct DedupReport {
    /// Entries.
    pub entries: u64,
    /// Bytes that the tables take on disk.
    pub disk_bytes: u64,
    /// Bytes that they would take in memory.
    pub core_bytes: u64,
    /// Blocks by how often they are referenced; only where there are any.
    pub histogram: Vec<DedupBucket>,
}

/// Blocks with 2^n references and more, up to twice as many.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DedupBucket {
    /// n.
    pub references_log2: u32,
    /// The blocks.
    pub allocated: DedupCounts,
    /// The blocks, each as often as it is referenced.
    pub referenced: DedupCounts,
}

/// Blocks and their sizes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DedupCounts {
    /// How many.
    pub blocks: u64,
    /// Bytes of their contents.
    pub lsize_bytes: u64,
    /// Bytes compressed.
    pub psize_bytes: u64,
    /// Bytes allocated, without what RAID-Z adds.
    pub dsize_bytes: u64,
}

impl Call for ZpoolStatus {
    const PATH: &'static str = "/v1/zpool/status";
    const ACCESS: Access<Self> = Access::Read;
    type Reply = ZpoolStatusReply;
}
