//! Messages of the `zpool` command.

use serde::{Deserialize, Serialize};

use crate::common::quoted;
use crate::{Access, Call, Empty, PropertyMap};

/// A vdev as given on the command line of `zpool create`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VdevSpec {
    /// `disk`, `file`, `mirror`, `raidz1`, `raidz2`, `raidz3`, or what [`DraidWord`] reads. A leaf whose kind is not yet known says `leaf`.
    pub kind: String,
    /// Allocation class: empty for ordinary data, or `log`, `special`, `dedup`, `spare`, `cache`.
    #[serde(default)]
    pub class: String,
    /// Absolute path of a leaf; empty otherwise.
    #[serde(default)]
    pub path: String,
    /// Members of a mirror or raidz.
    #[serde(default)]
    pub children: Vec<VdevSpec>,
}

/// What a word such as `draid2:4d:11c:1s` asks for (zpoolconcepts(7)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DraidWord {
    /// Parity columns of a group.
    pub parity: u8,
    /// Data columns of a group.
    pub data: u8,
    /// Distributed spares.
    pub spares: u8,
}

impl DraidWord {
    /// Reads the word for so many devices (`draid_config_by_type`, cmd/zpool/zpool_vdev.c). `None` when it is
    /// none that begins a dRAID vdev.
    ///
    /// # Errors
    /// Why there can be no such vdev.
    pub fn parse(word: &str, devices: usize) -> Option<Result<Self, String>> {
        let parity = Self::parity_of(word)?;
        let options = word.split(':').skip(1);
        Some(Self::with_options(word, parity, options, devices))
    }

    /// The parity that the word asks for, if it begins a dRAID vdev.
    pub fn parity_of(word: &str) -> Option<u8> {
        match word.split(':').next()? {
            "draid" | "draid1" => Some(1),
            "draid2" => Some(2),
            "draid3" => Some(3),
            _ => None,
        }
    }

    fn with_options<'a>(
        word: &str,
        parity: u8,
        options: impl Iterator<Item = &'a str>,
        devices: usize,
    ) -> Result<Self, String> {
        let (mut data, mut spares) = (None, 0usize);
        for option in options {
            let syntax =
                || format!("invalid dRAID syntax; expected [:<number><c|d|s>], not '{word}'");
            let end = option.len().saturating_sub(1);
            let (number, suffix) = option.split_at_checked(end).ok_or_else(syntax)?;
            let number: usize = number.parse().map_err(|_| syntax())?;
            match suffix {
                "d" | "D" => data = Some(number),
                "s" | "S" => spares = number,
                "c" | "C" if number != devices => {
                    return Err(format!(
                        "invalid number of dRAID children; {number} required but {devices} provided"
                    ));
                }
                "c" | "C" => {}
                _ => return Err(syntax()),
            }
        }
        let parity_columns = usize::from(parity);
        let room = devices
            .checked_sub(spares.saturating_add(parity_columns))
            .filter(|room| *room > 0)
            .ok_or_else(|| {
                format!(
                    "requested number of distributed spares {spares} and parity level {parity} leaves no disks available for data"
                )
            })?;
        // Wide enough to be economical, narrow enough to be quick.
        const DATA_DEFAULT: usize = 8;
        let data = data.unwrap_or(room.min(DATA_DEFAULT));
        if data == 0 || data > room {
            return Err(format!(
                "requested number of dRAID data disks per group {data} is too high, at most {room} disks are available for data"
            ));
        }
        if spares > 100 {
            return Err(format!(
                "invalid number of dRAID spares {spares}; there are at most 100"
            ));
        }
        if devices > 255 {
            return Err(format!(
                "{devices} disks were provided, but dRAID only supports up to 255 disks"
            ));
        }
        Ok(Self {
            parity,
            data: data as u8,
            spares: spares as u8,
        })
    }
}

/// `zpool create`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ZpoolCreate {
    /// Name of the new pool.
    pub name: String,
    /// Its top-level vdevs, in order.
    pub vdevs: Vec<VdevSpec>,
    /// Pool properties and `feature@NAME` settings (`-o`).
    pub properties: Vec<(String, String)>,
    /// Properties of the root filesystem (`-O`).
    pub filesystem_properties: Vec<(String, String)>,
    /// Use devices that look in use, accept mismatched redundancy (`-f`).
    pub force: bool,
    /// Only say what would be done (`-n`).
    pub dry_run: bool,
    /// Enable no features (`-d`).
    pub no_features: bool,
    /// Directory below which everything is mounted (`-R`).
    pub altroot: Option<String>,
    /// The command as typed, for the pool's history.
    pub command: String,
}

/// What `zpool create -n` would make.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ZpoolCreateReply {
    /// The layout.
    pub layout: Vec<VdevSpec>,
    /// What went less than perfectly (the root filesystem could not be mounted, for example).
    pub warnings: Vec<String>,
}

impl Call for ZpoolCreate {
    const PATH: &'static str = "/v1/zpool/create";
    const ACCESS: Access<Self> = Access::Change(|call| format!("cannot create '{}'", call.name));
    const BRINGS_POOLS: bool = true;
    type Reply = ZpoolCreateReply;
}

/// `zpool add`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ZpoolAdd {
    /// Name of the pool.
    pub name: String,
    /// The vdevs to add.
    pub vdevs: Vec<VdevSpec>,
    /// `ashift` of the new vdevs.
    pub ashift: Option<u8>,
    /// Use devices that look in use.
    pub allow_in_use: bool,
    /// Accept mismatched redundancy.
    pub allow_replication_mismatch: bool,
    /// Accept another `ashift` than the pool's.
    pub allow_ashift_mismatch: bool,
    /// Only say what would be done (`-n`).
    pub dry_run: bool,
    /// The command as typed, for the pool's history.
    pub command: String,
}

/// The pool before a `zpool add -n`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ZpoolAddReply {
    /// Its vdevs.
    pub tree: VdevReport,
    /// Those that it would get, in full.
    #[serde(default)]
    pub layout: Vec<VdevSpec>,
}

impl Call for ZpoolAdd {
    const PATH: &'static str = "/v1/zpool/add";
    const ACCESS: Access<Self> = Access::Change(|call| format!("cannot add to '{}'", call.name));
    type Reply = ZpoolAddReply;
}

/// `zpool remove`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ZpoolRemove {
    /// Name of the pool.
    pub name: String,
    /// Log vdevs, spares and cache devices: names, paths or GUIDs.
    pub devices: Vec<String>,
    /// The command as typed, for the pool's history.
    pub command: String,
}

impl Call for ZpoolRemove {
    const PATH: &'static str = "/v1/zpool/remove";
    const ACCESS: Access<Self> =
        Access::Change(|call| format!("cannot remove devices from '{}'", call.name));
    type Reply = Empty;
}

/// `zpool reguid`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ZpoolReguid {
    /// Name of the pool.
    pub name: String,
    /// The new GUID; a random one unless given.
    pub guid: Option<u64>,
    /// The command as typed, for the pool's history.
    pub command: String,
}

impl Call for ZpoolReguid {
    const PATH: &'static str = "/v1/zpool/reguid";
    const ACCESS: Access<Self> = Access::Change(|call| format!("cannot reguid '{}'", call.name));
    type Reply = Empty;
}

/// `zpool labelclear`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ZpoolLabelClear {
    /// The device, as an absolute path.
    pub device: String,
    /// Also that of a pool that is exported, or may be in use elsewhere (`-f`).
    pub force: bool,
}

impl Call for ZpoolLabelClear {
    const PATH: &'static str = "/v1/zpool/labelclear";
    const ACCESS: Access<Self> =
        Access::Change(|call| format!("failed to clear label for {}", call.device));
    const BRINGS_POOLS: bool = true;
    type Reply = Empty;
}

/// `zpool upgrade`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ZpoolUpgrade {
    /// Names; empty means all.
    pub names: Vec<String>,
    /// Only tell what is not enabled.
    pub dry_run: bool,
    /// The command as typed, for the pools' history.
    pub command: String,
}

/// What was enabled, or could be.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ZpoolUpgradeReply {
    /// By pool.
    pub pools: Vec<PoolUpgrade>,
    /// Every feature that is supported: name, and whether it is compatible for reading.
    pub supported: Vec<(String, bool)>,
    /// As [`ZpoolListReply::absent`].
    #[serde(default)]
    pub absent: Vec<String>,
}

/// One pool of a [`ZpoolUpgradeReply`].
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct PoolUpgrade {
    /// Name.
    pub name: String,
    /// Version of its format; 5000 has features.
    pub version: u64,
    /// The version it was upgraded from, if it was.
    #[serde(default)]
    pub upgraded_from: Option<u64>,
    /// Features enabled now, or (in a dry run) not enabled.
    pub features: Vec<String>,
}

impl Call for ZpoolUpgrade {
    const PATH: &'static str = "/v1/zpool/upgrade";
    const ACCESS: Access<Self> = Access::Read;
    type Reply = ZpoolUpgradeReply;
}

/// `zpool destroy`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ZpoolDestroy {
    /// Name of the pool.
    pub name: String,
    /// Unmount even what is in use.
    pub force: bool,
}

impl Call for ZpoolDestroy {
    const PATH: &'static str = "/v1/zpool/destroy";
    const ACCESS: Access<Self> = Access::Change(|call| format!("cannot destroy '{}'", call.name));
    type Reply = Empty;
}

/// `zpool import`, both its listing and its importing form.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ZpoolImport {
    /// Directories and devices to look at (`-d`), absolute.
    pub search: Vec<String>,
    /// Name or GUID; none lists what there is.
    pub pool: Option<String>,
    /// Import everything found (`-a`).
    pub all: bool,
    /// New name.
    pub new_name: Option<String>,
    /// Show or import destroyed pools (`-D`).
    pub destroyed: bool,
    /// Import what seems to be in use elsewhere (`-f`).
    pub force: bool,
    /// Mount nothing (`-N`).
    pub no_mount: bool,
    /// Import without the devices of the intent log (`-m`).
    #[serde(default)]
    pub missing_log: bool,
    /// The new name holds only until export (`-t`).
    #[serde(default)]
    pub temporary_name: bool,
    /// Go back to an older state when the newest cannot be read (`-F`).
    #[serde(default)]
    pub rewind: bool,
    /// As far back as it takes (`-X`).
    #[serde(default)]
    pub extreme: bool,
    /// With `rewind`, only say whether it would work and what would be lost (`-n`).
    #[serde(default)]
    pub dry_run: bool,
    /// Go back to this transaction group (`-T`).
    #[serde(default)]
    pub txg: Option<u64>,
    /// Go back to the checkpoint (`--rewind-to-checkpoint`).
    #[serde(default)]
    pub checkpoint: bool,
    /// Directory below which everything is mounted (`-R`).
    pub altroot: Option<String>,
    /// Pool and mount properties (`-o`), `readonly=on` among them.
    pub properties: Vec<(String, String)>,
    /// The command as typed, for the pool's history.
    pub command: String,
}

/// What was found or imported.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ZpoolImportReply {
    /// Pools that could be imported.
    pub found: Vec<FoundPoolReport>,
    /// Names of pools that were imported.
    pub imported: Vec<String>,
    /// What to tell: states gone back to.
    #[serde(default)]
    pub notes: Vec<String>,
    /// What went less than perfectly (a filesystem that could not be mounted).
    pub warnings: Vec<String>,
    /// Why pools could not be imported, where all were to be.
    #[serde(default)]
    pub failures: Vec<String>,
}

/// A pool seen on devices but not imported.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct FoundPoolReport {
    /// Name.
    pub name: String,
    /// GUID.
    pub guid: u64,
    /// ONLINE, DEGRADED, UNAVAIL, or any of these with ` (DESTROYED)`.
    pub state: String,
    /// What is wrong, if anything.
    pub status: Option<String>,
    /// What to do.
    pub action: String,
    /// A page that tells more.
    #[serde(default)]
    pub see: Option<String>,
    /// What to say below the tree.
    #[serde(default)]
    pub footer: Option<String>,
    /// A comment set on the pool.
    pub comment: Option<String>,
    /// The vdev tree.
    pub tree: VdevReport,
}

impl Call for ZpoolImport {
    const PATH: &'static str = "/v1/zpool/import";
    const ACCESS: Access<Self> = Access::Change(|call| match &call.pool {
        Some(pool) => format!("cannot import '{pool}'"),
        None => "cannot discover pools".to_owned(),
    });
    const BRINGS_POOLS: bool = true;
    type Reply = ZpoolImportReply;
}

/// `zpool export`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ZpoolExport {
    /// Names; empty with `all`.
    pub names: Vec<String>,
    /// Every pool (`-a`).
    pub all: bool,
    /// Unmount even what is in use (`-f`).
    pub force: bool,
}

impl Call for ZpoolExport {
    const PATH: &'static str = "/v1/zpool/export";
    const ACCESS: Access<Self> = Access::Change(|call| match call.all {
        true => "cannot export pools".to_owned(),
        false => format!("cannot export {}", quoted(&call.names)),
    });
    type Reply = Empty;
}

/// `zpool list` and `zpool get`: every property of the named pools.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ZpoolList {
    /// Names; empty means all.
    pub names: Vec<String>,
    /// Tell of each vdev how long its I/O takes (`zpool iostat -l -q -r -w`).
    #[serde(default)]
    pub io: bool,
}

/// Pools with their properties.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ZpoolListReply {
    /// In order of name.
    pub pools: Vec<PoolReport>,
    /// Of every pool that was named and is not here, why; where all pools are asked for, of every one that could not be
    /// imported when the server started.
    #[serde(default)]
    pub absent: Vec<String>,
}

/// One pool.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PoolReport {
    /// Name.
    pub name: String,
    /// GUID.
    pub guid: u64,
    /// Last synced transaction group.
    pub txg: u64,
    /// Nanoseconds since it was imported: since then the vdevs' counters count.
    #[serde(default)]
    pub uptime_ns: u64,
    /// Every property, `feature@NAME` among them.
    pub properties: PropertyMap,
    /// The vdev tree.
    pub tree: VdevReport,
}

impl Call for ZpoolList {
    const PATH: &'static str = "/v1/zpool/list";
    const ACCESS: Access<Self> = Access::Read;
    type Reply = ZpoolListReply;
}

/// A vdev with its state and counters.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct VdevReport {
    /// `tank`, `mirror-0`, or a leaf's path.
    pub name: String,
    /// `root`, `mirror`, `raidz`, `file`, `disk`.
    pub kind: String,
    /// GUID.
    pub guid: u64,
    /// Allocation class: empty, `log`, `special`, `dedup`, `spare`, `cache`.
    #[serde(default)]
    pub class: String,
    /// Path of a leaf.
    pub path: Option<String>,
    /// ONLINE, DEGRADED, FAULTED, OFFLINE, UNAVAIL, REMOVED; of spares AVAIL, INUSE, UNAVAIL.
    pub state: String,
    /// Why it is not ONLINE, as printed at the end of its line.
    pub note: Option<String>,
    /// A leaf that is there but lacks writes that were made while it was away.
    #[serde(default)]
    pub is_stale: bool,
    /// Bytes of space, for top-level vdevs and the root.
    pub size_bytes: u64,
    /// Bytes allocated.
    pub allocated_bytes: u64,
    /// Bytes of a leaf's device.
    #[serde(default)]
    pub physical_bytes: u64,
    /// Bytes of a top-level vdev, or of a leaf's device without its labels.
    #[serde(default)]
    pub asize_bytes: u64,
    /// Bytes by which the devices are bigger than what is used of them, for top-level vdevs and the root.
    #[serde(default)]
    pub expandable_bytes: u64,
    /// Bytes that only the checkpoint uses, for top-level vdevs.
    #[serde(default)]
    pub checkpoint_bytes: u64,
    /// Fragmentation in percent, where known.
    pub fragmentation_percent: Option<u64>,
    /// Read errors.
    pub read_errors: u64,
    /// Write errors.
    pub write_errors: u64,
    /// Checksum errors.
    pub checksum_errors: u64,
    /// I/Os of a leaf that took longer than 30 seconds.
    #[serde(default)]
    pub slow_ios: u64,
    /// Of a leaf: its last `zpool initialize`.
    #[serde(default)]
    pub initialize: ActivityReport,
    /// Of a leaf: its last `zpool trim`.
    #[serde(default)]
    pub trim: ActivityReport,
    /// A leaf that discards do not reach.
    #[serde(default)]
    pub cannot_trim: bool,
    /// Reads done, and writes.
    #[serde(default)]
    pub operations: [u64; 2],
    /// Bytes read, and written.
    #[serde(default)]
    pub transferred_bytes: [u64; 2],
    /// Discards done, their bytes, and (of a leaf) those that failed.
    #[serde(default)]
    pub trims: [u64; 3],
    /// Parity of a raidz or draid, else zero.
    #[serde(default)]
    pub parity: u8,
    /// `log2` of the smallest block, of top-level vdevs.
    #[serde(default)]
    pub ashift: u8,
    /// Properties that were set: native ones where they differ from their defaults, and those of users.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub properties: Vec<(String, String)>,
    /// Latencies, sizes and queue depths, if they were asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub io: Option<Box<IoReport>>,
    /// Members.
    #[serde(default)]
    pub children: Vec<VdevReport>,
}

/// How far a leaf was initialized or trimmed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ActivityReport {
    /// `ACTIVE`, `CANCELED`, `SUSPENDED`, `COMPLETE`; empty when it never was.
    pub state: String,
    /// When it became that, in seconds since 1970.
    pub time_s: u64,
    /// Free bytes that it came to, while it is not complete.
    pub done_bytes: u64,
    /// Free bytes in all.
    pub total_bytes: u64,
}

/// Latencies, sizes and queue depths of a vdev's I/O since the import.
///
/// Classes are in this order: synchronous reads and writes, asynchronous reads and writes, scrub, trim, rebuild.
/// Bucket *n* of a histogram counts values from 2^n to 2^(n+1)-1, of bytes (25 buckets) or nanoseconds (37).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct IoReport {
    /// Requests that wait now, by class.
    pub pending: Vec<u64>,
    /// Operations that devices are at now, by class.
    pub active: Vec<u64>,
    /// Sizes of operations of one request, by class.
    pub individual: Vec<Vec<u64>>,
    /// Sizes of operations put together from several, by class.
    pub aggregated: Vec<Vec<u64>>,
    /// Times of requests in all, of reads and of writes.
    pub total: Vec<Vec<u64>>,
    /// Times of devices for operations, of reads and of writes.
    pub disk: Vec<Vec<u64>>,
    /// Times that requests waited, by class.
    pub queued: Vec<Vec<u64>>,
}

/// `zpool status`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ZpoolStatus {
    /// Names; empty means all.
    pub names: Vec<String>,
    /// Name damaged files (`-v`).
    #[serde(default)]
    pub verbose: bool,
}

/// What `zpool status` prints.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ZpoolStatusReply {
    /// In order of name.
    pub pools: Vec<PoolStatusReport>,
    /// As [`ZpoolListReply::absent`].
    #[serde(default)]
    pub absent: Vec<String>,
}

/// One pool's condition.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct PoolStatusReport {
    /// Name.
    pub name: String,
    /// GUID.
    pub guid: u64,
    /// Last synced transaction group.
    pub txg: u64,
    /// ONLINE, DEGRADED, SUSPENDED, ...
    pub state: String,
    /// What is wrong.
    pub status: Option<String>,
    /// Nothing is wrong that `zpool status -x` would tell: the pool could be upgraded.
    #[serde(default)]
    pub is_healthy: bool,
    /// What to do about it.
    pub action: Option<String>,
    /// A page that tells more.
    pub see: Option<String>,
    /// The last or running scrub or resilver.
    pub scan: Option<ScanReport>,
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

/// A scrub or resilver, running or ended.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ScanReport {
    /// `scrub` or `resilver`.
    pub function: String,
    /// `scanning`, `finished` or `canceled`.
    pub state: String,
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

/// What `zpool scrub` does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ScrubAction {
    /// Starts a scrub, or goes on with a paused one.
    #[default]
    Start,
    /// Pauses it (`-p`).
    Pause,
    /// Stops it (`-s`).
    Stop,
}

/// `zpool scrub`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ZpoolScrub {
    /// Names; empty with `all`.
    pub names: Vec<String>,
    /// Every pool (`-a`).
    pub all: bool,
    /// What to do.
    pub action: ScrubAction,
    /// Answer when it has ended or was paused (`-w`).
    pub wait: bool,
}

impl Call for ZpoolScrub {
    const PATH: &'static str = "/v1/zpool/scrub";
    const ACCESS: Access<Self> = Access::Change(|call| match call.all {
        true => "cannot scrub pools".to_owned(),
        false => format!("cannot scrub {}", quoted(&call.names)),
    });
    type Reply = Empty;
}

/// `zpool checkpoint`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ZpoolCheckpoint {
    /// Name of the pool.
    pub name: String,
    /// Discard the checkpoint (`-d`).
    pub discard: bool,
    /// Answer when what it kept is free (`-w`).
    pub wait: bool,
    /// The command as typed, for the pool's history.
    pub command: String,
}

impl Call for ZpoolCheckpoint {
    const PATH: &'static str = "/v1/zpool/checkpoint";
    const ACCESS: Access<Self> =
        Access::Change(|call| format!("cannot checkpoint '{}'", call.name));
    type Reply = Empty;
}

/// `zpool wait`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ZpoolWait {
    /// Name of the pool.
    pub name: String,
    /// Activities to wait for: `scrub`, `free`, ...; empty means all.
    pub activities: Vec<String>,
}

impl Call for ZpoolWait {
    const PATH: &'static str = "/v1/zpool/wait";
    const ACCESS: Access<Self> = Access::Read;
    const WAITS: bool = true;
    type Reply = Empty;
}

/// A pool's checkpoint.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct CheckpointReport {
    /// When it was made, in seconds since the epoch; `None` while it is being discarded.
    pub created_s: Option<u64>,
    /// Bytes that only it uses.
    pub space_bytes: u64,
}

/// The removal of a vdev, running or ended.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct RemovalReport {
    /// `running`, `finished` or `canceled`.
    pub state: String,
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
}

/// A RAID-Z expansion, running or ended.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
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
}

/// A pool's dedup tables, in sum.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct DedupReport {
    /// Entries.
    pub entries: u64,
    /// Bytes that the tables take on disk.
    pub disk_bytes: u64,
    /// Bytes that they would take in memory.
    pub core_bytes: u64,
    /// Of the blocks with 2^n references and more: n, then blocks, logical, physical and allocated bytes,
    /// then the same four times their references. Only where there are any.
    pub histogram: Vec<(u32, [u64; 8])>,
}

impl Call for ZpoolStatus {
    const PATH: &'static str = "/v1/zpool/status";
    const ACCESS: Access<Self> = Access::Read;
    type Reply = ZpoolStatusReply;
}

/// A vdev of a pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VdevName {
    /// Its GUID; the pool's for the root vdev.
    pub guid: u64,
    /// As it was called, for messages.
    pub name: String,
}

/// `zpool set`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ZpoolSet {
    /// Name of the pool.
    pub name: String,
    /// The vdev whose property it is; the pool's own without.
    #[serde(default)]
    pub vdev: Option<VdevName>,
    /// Property.
    pub property: String,
    /// New value, as typed.
    pub value: String,
    /// The command as typed, for the pool's history.
    pub command: String,
}

impl Call for ZpoolSet {
    const PATH: &'static str = "/v1/zpool/set";
    const ACCESS: Access<Self> =
        Access::Change(|call| format!("cannot set property for '{}'", call.name));
    type Reply = Empty;
}

/// `zpool history`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ZpoolHistory {
    /// Names; empty means all.
    pub names: Vec<String>,
}

/// Histories by pool.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ZpoolHistoryReply {
    /// Pool name and its records, oldest first.
    pub pools: Vec<(String, Vec<HistoryRecord>)>,
    /// As [`ZpoolListReply::absent`].
    #[serde(default)]
    pub absent: Vec<String>,
}

/// One record of a pool's history.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct HistoryRecord {
    /// Seconds since the epoch.
    pub time_s: u64,
    /// The command line, for records of commands.
    pub command: Option<String>,
    /// The event, for internal records (`-i`), complete as printed after the time.
    pub internal: Option<String>,
    /// User number of who typed it.
    pub user: Option<u64>,
    /// Host name.
    pub host: Option<String>,
    /// Zone of that host; `linux`.
    #[serde(default)]
    pub zone: Option<String>,
}

impl Call for ZpoolHistory {
    const PATH: &'static str = "/v1/zpool/history";
    const ACCESS: Access<Self> = Access::Change(|call| match call.names.is_empty() {
        true => "cannot get history".to_owned(),
        false => format!("cannot get history for {}", quoted(&call.names)),
    });
    type Reply = ZpoolHistoryReply;
}

/// `zpool sync`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ZpoolSync {
    /// Names; empty means all.
    pub names: Vec<String>,
    /// Write the configuration even where nothing changed (`-f`).
    #[serde(default)]
    pub force: bool,
}

impl Call for ZpoolSync {
    const PATH: &'static str = "/v1/zpool/sync";
    const ACCESS: Access<Self> = Access::Read;
    type Reply = Empty;
}

/// `zpool clear`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ZpoolClear {
    /// Name of the pool.
    pub name: String,
    /// A vdev of it, or all.
    pub vdev: Option<String>,
}

impl Call for ZpoolClear {
    const PATH: &'static str = "/v1/zpool/clear";
    const ACCESS: Access<Self> =
        Access::Change(|call| format!("cannot clear errors for {}", call.name));
    type Reply = Empty;
}
