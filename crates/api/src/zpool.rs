//! Messages of the `zpool` command.

use std::path::Path;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::common::quoted;
use crate::{
    Access, CacheCounts, Call, Empty, Failure, FoundCondition, Guid, JobKind, NewKey, PoolHealth,
    PropertyMap, Role, Settings, VdevReport, VdevSpec, VdevState,
};

/// `zpool create`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ZpoolCreate {
    /// Name of the new pool.
    pub name: String,
    /// Its top-level vdevs, in order.
    pub vdevs: Vec<VdevSpec>,
    /// Pool properties and `feature@NAME` settings (`-o`).
    #[serde(default)]
    pub properties: Settings,
    /// Properties of the root filesystem (`-O`).
    #[serde(default)]
    pub filesystem_properties: Settings,
    /// Use devices that look in use, accept mismatched redundancy (`-f`).
    #[serde(default)]
    pub force: bool,
    /// Only say what would be done (`-n`).
    #[serde(default)]
    pub dry_run: bool,
    /// Enable no features (`-d`).
    #[serde(default)]
    pub no_features: bool,
    /// Directory below which everything is mounted (`-R`).
    pub altroot: Option<String>,
    /// The key of the root filesystem, where that is an encryption root; its properties are to say
    /// its `keyformat`.
    #[serde(default)]
    pub key: Option<NewKey>,
    /// The command as typed, for the pool's history.
    #[serde(default)]
    pub command: String,
}

/// What `zpool create -n` would make.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct ZpoolCreateReply {
    /// The layout.
    pub layout: Vec<VdevSpec>,
    /// What went less than perfectly (the root filesystem could not be mounted, for example), and
    /// what is worth knowing of the vdevs: sectors that are too small, sizes that differ.
    pub warnings: Vec<String>,
}

impl Call for ZpoolCreate {
    const PATH: &'static str = "/v1/zpool/create";
    const ACCESS: Access<Self> = Access::Change(|call| format!("cannot create '{}'", call.name));
    const BRINGS_POOLS: bool = true;
    type Reply = ZpoolCreateReply;

    fn changes(&self) -> bool {
        !self.dry_run
    }
}

/// `zpool add`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ZpoolAdd {
    /// Name of the pool.
    pub name: String,
    /// The vdevs to add.
    pub vdevs: Vec<VdevSpec>,
    /// `ashift` of the new vdevs.
    pub ashift: Option<u8>,
    /// Use devices that look in use.
    #[serde(default)]
    pub allow_in_use: bool,
    /// Accept mismatched redundancy.
    #[serde(default)]
    pub allow_replication_mismatch: bool,
    /// Accept another `ashift` than the pool's.
    #[serde(default)]
    pub allow_ashift_mismatch: bool,
    /// Only say what would be done (`-n`).
    #[serde(default)]
    pub dry_run: bool,
    /// The command as typed, for the pool's history.
    #[serde(default)]
    pub command: String,
}

/// The pool before a `zpool add -n`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct ZpoolAddReply {
    /// Its vdevs.
    pub tree: VdevReport,
    /// Those that it would get, in full.
    #[serde(default)]
    pub layout: Vec<VdevSpec>,
    /// What of it is not used, and what is worth knowing of the new vdevs.
    #[serde(default)]
    pub warnings: Vec<String>,
}

impl Call for ZpoolAdd {
    const PATH: &'static str = "/v1/zpool/add";
    const ACCESS: Access<Self> = Access::Change(|call| format!("cannot add to '{}'", call.name));
    const ROLE: Option<Role> = Some(Role::Operator);
    type Reply = ZpoolAddReply;

    fn changes(&self) -> bool {
        !self.dry_run
    }
}

/// `zpool remove`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ZpoolRemove {
    /// Name of the pool.
    pub name: String,
    /// Top-level vdevs, spares and cache devices: names, paths or GUIDs. None to stop.
    pub devices: Vec<String>,
    /// What to do.
    #[serde(default)]
    pub action: RemoveAction,
    /// The command as typed, for the pool's history.
    #[serde(default)]
    pub command: String,
}

/// What [`ZpoolRemove`] does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum RemoveAction {
    /// Removes devices. What has data is emptied first, in the background: a job of kind `remove`.
    #[default]
    Remove,
    /// Tells how much memory mappings of removed vdevs would take; nothing is removed.
    Estimate,
    /// Stops the removal that is under way.
    Stop,
}

/// Reply of [`ZpoolRemove`].
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct ZpoolRemoveReply {
    /// Of an estimate: memory in bytes, for each of the devices.
    #[serde(default)]
    pub mapping_bytes: Vec<u64>,
}

impl Call for ZpoolRemove {
    const PATH: &'static str = "/v1/zpool/remove";
    const ACCESS: Access<Self> =
        Access::Change(|call| format!("cannot remove devices from '{}'", call.name));
    const ROLE: Option<Role> = Some(Role::Operator);
    type Reply = ZpoolRemoveReply;
}

/// `zpool attach` and `zpool replace`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ZpoolAttach {
    /// Name of the pool.
    pub name: String,
    /// The device that is there: a name, path or GUID.
    pub device: String,
    /// The new one, as an absolute path.
    pub new_device: String,
    /// It takes the other one's place, which leaves the pool when the new one has everything.
    #[serde(default)]
    pub replace: bool,
    /// It is rebuilt in the order of the disk, without checksums, and everything verified then.
    #[serde(default)]
    pub sequential: bool,
    /// `ashift` of the new device.
    pub ashift: Option<u8>,
    /// Use a device that looks in use.
    #[serde(default)]
    pub allow_in_use: bool,
    /// The command as typed, for the pool's history.
    #[serde(default)]
    pub command: String,
}

impl Call for ZpoolAttach {
    const PATH: &'static str = "/v1/zpool/attach";
    const ACCESS: Access<Self> = Access::Change(|call| match call.replace {
        true => format!("cannot replace {} with {}", call.device, call.new_device),
        false => format!("cannot attach {} to {}", call.new_device, call.device),
    });
    const ROLE: Option<Role> = Some(Role::Operator);
    type Reply = Empty;
}

/// `zpool detach`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ZpoolDetach {
    /// Name of the pool.
    pub name: String,
    /// The device: a name, path or GUID.
    pub device: String,
    /// The command as typed, for the pool's history.
    #[serde(default)]
    pub command: String,
}

impl Call for ZpoolDetach {
    const PATH: &'static str = "/v1/zpool/detach";
    const ACCESS: Access<Self> = Access::Change(|call| format!("cannot detach {}", call.device));
    const ROLE: Option<Role> = Some(Role::Operator);
    type Reply = Empty;
}

/// `zpool offline`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ZpoolOffline {
    /// Name of the pool.
    pub name: String,
    /// The device: a name, path or GUID.
    pub device: String,
    /// Only until the next import (`-t`).
    #[serde(default)]
    pub temporary: bool,
    /// As a device that failed (`-f`).
    #[serde(default)]
    pub fault: bool,
    /// The command as typed, for the pool's history.
    #[serde(default)]
    pub command: String,
}

impl Call for ZpoolOffline {
    const PATH: &'static str = "/v1/zpool/offline";
    const ACCESS: Access<Self> = Access::Change(|call| format!("cannot offline {}", call.device));
    const ROLE: Option<Role> = Some(Role::Operator);
    type Reply = Empty;
}

/// `zpool online`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ZpoolOnline {
    /// Name of the pool.
    pub name: String,
    /// The device: a name, path or GUID.
    pub device: String,
    /// Use all of devices that have become larger (`-e`).
    #[serde(default)]
    pub expand: bool,
    /// The command as typed, for the pool's history.
    #[serde(default)]
    pub command: String,
}

/// What became of a device that is to be used again.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct ZpoolOnlineReply {
    /// Its state now.
    pub state: VdevState,
    /// Whether it was in use before.
    pub was_usable: bool,
}

impl Call for ZpoolOnline {
    const PATH: &'static str = "/v1/zpool/online";
    const ACCESS: Access<Self> = Access::Change(|call| format!("cannot online {}", call.device));
    const ROLE: Option<Role> = Some(Role::Operator);
    type Reply = ZpoolOnlineReply;
}

/// `zpool split`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ZpoolSplit {
    /// Name of the pool.
    pub name: String,
    /// Name of the new pool, which is exported when it is made.
    pub new_name: String,
    /// Devices to take, at most one of each mirror; of others the last one.
    pub devices: Vec<String>,
    /// Only say which devices it would take (`-n`).
    #[serde(default)]
    pub dry_run: bool,
    /// Pool properties of the new pool (`-o`).
    #[serde(default)]
    pub properties: Settings,
    /// Options of mounts with which somebody wants to import it then: nothing is split where one is
    /// not supported.
    #[serde(default)]
    pub mount_options: Vec<String>,
    /// The command as typed, for the pool's history.
    #[serde(default)]
    pub command: String,
}

/// What was split off, or would be.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct ZpoolSplitReply {
    /// The devices, in the order of their mirrors.
    pub devices: Vec<Guid>,
}

impl Call for ZpoolSplit {
    const PATH: &'static str = "/v1/zpool/split";
    const ACCESS: Access<Self> = Access::Change(|call| format!("Unable to split {}", call.name));
    type Reply = ZpoolSplitReply;

    fn changes(&self) -> bool {
        !self.dry_run
    }
}

/// `zpool reopen`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ZpoolReopen {
    /// Names of pools; all if empty.
    pub names: Vec<String>,
    /// A scrub or resilver that is under way ends before what came back is resilvered (`-n`).
    #[serde(default)]
    pub no_restart: bool,
    /// The command as typed, for the pools' histories.
    #[serde(default)]
    pub command: String,
}

impl Call for ZpoolReopen {
    const PATH: &'static str = "/v1/zpool/reopen";
    const ACCESS: Access<Self> =
        Access::Change(|call| format!("cannot reopen {}", quoted(&call.names)));
    const ROLE: Option<Role> = Some(Role::Operator);
    type Reply = Empty;
}

/// `zpool resilver`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ZpoolResilver {
    /// Names of pools.
    pub names: Vec<String>,
    /// The command as typed, for the pools' histories.
    #[serde(default)]
    pub command: String,
}

impl Call for ZpoolResilver {
    const PATH: &'static str = "/v1/zpool/resilver";
    const ACCESS: Access<Self> =
        Access::Change(|call| format!("cannot restart resilver on {}", quoted(&call.names)));
    const ROLE: Option<Role> = Some(Role::Operator);
    type Reply = Empty;
}

/// `zpool reguid`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ZpoolReguid {
    /// Name of the pool.
    pub name: String,
    /// The new GUID; a random one unless given.
    pub guid: Option<Guid>,
    /// The command as typed, for the pool's history.
    #[serde(default)]
    pub command: String,
}

impl Call for ZpoolReguid {
    const PATH: &'static str = "/v1/zpool/reguid";
    const ACCESS: Access<Self> = Access::Change(|call| format!("cannot reguid '{}'", call.name));
    const ROLE: Option<Role> = Some(Role::Operator);
    type Reply = Empty;
}

/// `zpool labelclear`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ZpoolLabelClear {
    /// The device, as an absolute path.
    pub device: String,
    /// Also that of a pool that is exported, or may be in use elsewhere (`-f`).
    #[serde(default)]
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
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ZpoolUpgrade {
    /// Names; empty means all.
    pub names: Vec<String>,
    /// Only tell what is not enabled.
    #[serde(default)]
    pub dry_run: bool,
    /// To this version of before features (28 at most), without any; pools that have it, or a newer
    /// one, stay as they are.
    #[serde(default)]
    pub version: Option<u64>,
    /// The command as typed, for the pools' history.
    #[serde(default)]
    pub command: String,
}

/// What was enabled, or could be.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct ZpoolUpgradeReply {
    /// By pool.
    pub pools: Vec<PoolUpgrade>,
    /// Every feature that is supported.
    pub supported: Vec<SupportedFeature>,
    /// As [`ZpoolListReply::absent`].
    #[serde(default)]
    pub absent: Vec<Failure>,
}

/// A feature that is supported.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SupportedFeature {
    /// Name.
    pub name: String,
    /// Whether a release without it may read the pool.
    pub is_read_only_compatible: bool,
    /// Whether an upgrade enables it only when it is set by name.
    pub is_left_out_of_upgrades: bool,
}

/// One pool of a [`ZpoolUpgradeReply`].
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct PoolUpgrade {
    /// Name.
    pub name: String,
    /// Version of its format; 5000 has features.
    pub version: u64,
    /// The version it was upgraded from, if it was.
    #[serde(default)]
    pub upgraded_from: Option<u64>,
    /// Features enabled now, or (in a dry run, or where a version is named) not enabled.
    pub features: Vec<String>,
}

impl Call for ZpoolUpgrade {
    const PATH: &'static str = "/v1/zpool/upgrade";
    const ACCESS: Access<Self> = Access::Read;
    type Reply = ZpoolUpgradeReply;

    fn changes(&self) -> bool {
        !self.dry_run
    }
}

/// `zpool destroy`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ZpoolDestroy {
    /// Name of the pool.
    pub name: String,
    /// Unmount even what is in use.
    #[serde(default)]
    pub force: bool,
    /// The command as typed, for the history of the pool; empty for none.
    #[serde(default)]
    pub command: String,
}

impl Call for ZpoolDestroy {
    const PATH: &'static str = "/v1/zpool/destroy";
    const ACCESS: Access<Self> = Access::Change(|call| format!("cannot destroy '{}'", call.name));
    type Reply = Empty;
}

/// `zpool import`, both its listing and its importing form.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ZpoolImport {
    /// Directories and devices to look at (`-d`), absolute.
    pub search: Vec<String>,
    /// Look only at pools of these GUIDs, those of a cache file (`-c`); at all where there are
    /// none.
    #[serde(default)]
    pub guids: Vec<Guid>,
    /// Name or GUID; none lists what there is.
    pub pool: Option<String>,
    /// Import everything found (`-a`).
    #[serde(default)]
    pub all: bool,
    /// New name.
    pub new_name: Option<String>,
    /// Show or import destroyed pools (`-D`).
    #[serde(default)]
    pub destroyed: bool,
    /// Import what seems to be in use elsewhere (`-f`).
    #[serde(default)]
    pub force: bool,
    /// Mount nothing (`-N`).
    #[serde(default)]
    pub no_mount: bool,
    /// Import without the devices of the intent log (`-m`).
    #[serde(default)]
    pub missing_log: bool,
    /// Import without vdevs that hold data, which goes with `readonly=on` alone (`--missing-data`).
    #[serde(default)]
    pub missing_data: bool,
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
    /// Properties of the pool (`-o`), `readonly=on` among them.
    #[serde(default)]
    pub properties: Settings,
    /// Options that all of its filesystems are mounted with, until they are mounted anew (`-o`).
    #[serde(default)]
    pub mount_options: Vec<String>,
    /// The command as typed, for the pool's history.
    #[serde(default)]
    pub command: String,
}

/// What was found or imported.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct ZpoolImportReply {
    /// Pools that could be imported.
    pub found: Vec<FoundPoolReport>,
    /// Pools that were imported, or would be.
    pub imported: Vec<ImportedPool>,
    /// Why pools could not be imported, where all were to be.
    #[serde(default)]
    pub failures: Vec<Failure>,
}

/// A pool that was imported.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct ImportedPool {
    /// Its name before.
    pub name: String,
    /// The older state that it went back to, where it had to.
    pub rewound: Option<RewindReport>,
    /// Datasets whose intent logs were not replayed, as the pool was imported read-only: what was
    /// written just before the pool was lost does not show.
    pub awaiting_replay: Vec<String>,
    /// Devices with data that it was imported without, as was asked for: blocks that are on these
    /// alone cannot be read.
    #[serde(default)]
    pub missing_data: Vec<String>,
    /// What could not be mounted or shared.
    pub warnings: Vec<String>,
}

/// An older state that an import went back to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RewindReport {
    /// When it was written, in seconds since 1970.
    pub timestamp_s: u64,
    /// How much was lost, in seconds.
    pub lost_s: u64,
}

/// A pool seen on devices but not imported.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct FoundPoolReport {
    /// Name.
    pub name: String,
    /// GUID.
    pub guid: Guid,
    /// How it would be.
    pub state: VdevState,
    /// It was destroyed.
    #[serde(default)]
    pub is_destroyed: bool,
    /// Whether it can be imported, for all that can be told before.
    pub is_importable: bool,
    /// What is to be said of it, if anything.
    pub condition: Option<FoundCondition>,
    /// Where log devices are missing or damaged, so that it is imported only without them: the
    /// datasets whose intent logs are on them.
    #[serde(default)]
    pub lost_logs: Option<Vec<String>>,
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
    const JOB: Option<JobKind> = Some(JobKind::Import);
    type Reply = ZpoolImportReply;

    fn changes(&self) -> bool {
        !self.dry_run && (self.pool.is_some() || self.all)
    }

    fn pool(&self) -> Option<String> {
        self.new_name.clone().or_else(|| self.pool.clone())
    }
}

/// `zpool export`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ZpoolExport {
    /// Names; empty with `all`.
    pub names: Vec<String>,
    /// Every pool (`-a`).
    #[serde(default)]
    pub all: bool,
    /// Unmount even what is in use (`-f`).
    #[serde(default)]
    pub force: bool,
    /// The command as typed, for the history of the pool; empty for none.
    #[serde(default)]
    pub command: String,
}

impl Call for ZpoolExport {
    const PATH: &'static str = "/v1/zpool/export";
    const ACCESS: Access<Self> = Access::Change(|call| match call.all {
        true => "cannot export pools".to_owned(),
        false => format!("cannot export {}", quoted(&call.names)),
    });
    const JOB: Option<JobKind> = Some(JobKind::Export);
    type Reply = Empty;

    fn pool(&self) -> Option<String> {
        match &self.names[..] {
            [name] => Some(name.clone()),
            _ => None,
        }
    }
}

/// `zpool list` and `zpool get`: every property of the named pools.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ZpoolList {
    /// Names; empty means all.
    pub names: Vec<String>,
    /// Tell of each vdev how long its I/O takes (`zpool iostat -l -q -r -w`).
    #[serde(default)]
    pub io: bool,
}

/// Pools with their properties.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct ZpoolListReply {
    /// In order of name.
    pub pools: Vec<PoolReport>,
    /// Of every pool that was named and is not here, why; where all pools are asked for, of every
    /// one that could not be imported when the server started.
    #[serde(default)]
    pub absent: Vec<Failure>,
}

/// One pool.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct PoolReport {
    /// Name.
    pub name: String,
    /// GUID.
    pub guid: Guid,
    /// How it is.
    pub health: PoolHealth,
    /// Last synced transaction group.
    pub txg: u64,
    /// Nanoseconds since it was imported: since then the vdevs' counters count.
    #[serde(default)]
    pub uptime_ns: u64,
    /// Every property, `feature@NAME` among them.
    pub properties: PropertyMap,
    /// The vdev tree.
    pub tree: VdevReport,
    /// What its cache did since then.
    #[serde(default)]
    pub cache: CacheCounts,
}

impl Call for ZpoolList {
    const PATH: &'static str = "/v1/zpool/list";
    const ACCESS: Access<Self> = Access::Read;
    type Reply = ZpoolListReply;
}

/// A vdev of a pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct VdevName {
    /// Its GUID; the pool's for the root vdev.
    pub guid: Guid,
    /// As it was called, for messages.
    pub name: String,
}

/// `zpool set`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
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
    #[serde(default)]
    pub command: String,
}

impl Call for ZpoolSet {
    const PATH: &'static str = "/v1/zpool/set";
    const ACCESS: Access<Self> =
        Access::Change(|call| format!("cannot set property for '{}'", call.name));
    const ROLE: Option<Role> = Some(Role::Operator);
    type Reply = Empty;

    fn narrow_mounts(&mut self, _root: Option<&Path>) -> Result<(), String> {
        // The server makes, replaces and removes the file, as root.
        match self.property == "cachefile" && self.value.starts_with('/') {
            true => {
                let why = "permission denied: where a cache file is, an admin of the host says";
                Err(why.to_owned())
            }
            false => Ok(()),
        }
    }
}

/// `zpool history`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ZpoolHistory {
    /// Names; empty means all.
    pub names: Vec<String>,
}

/// Histories by pool.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct ZpoolHistoryReply {
    /// By pool.
    pub pools: Vec<PoolHistory>,
    /// As [`ZpoolListReply::absent`].
    #[serde(default)]
    pub absent: Vec<Failure>,
}

/// A pool's history.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct PoolHistory {
    /// Name of the pool.
    pub name: String,
    /// Its records, oldest first.
    pub records: Vec<HistoryRecord>,
}

/// One record of a pool's history.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
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
    const ROLE: Option<Role> = Some(Role::Operator);
    type Reply = ZpoolHistoryReply;

    fn changes(&self) -> bool {
        false
    }
}

/// `zpool sync`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
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

/// What `zpool prefetch` reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Prefetched {
    /// Dedup tables.
    Ddt,
    /// Tables of cloned blocks.
    Brt,
}

/// `zpool prefetch`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ZpoolPrefetch {
    /// Name of the pool.
    pub name: String,
    /// What of it; without a word all.
    #[serde(default)]
    pub what: Option<Prefetched>,
}

/// What was read.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct ZpoolPrefetchReply {
    /// Bytes of the tables, as they are in memory.
    pub read_bytes: u64,
}

impl Call for ZpoolPrefetch {
    const PATH: &'static str = "/v1/zpool/prefetch";
    const ACCESS: Access<Self> =
        Access::Change(|call| format!("cannot prefetch tables of '{}'", call.name));
    const ROLE: Option<Role> = Some(Role::Operator);
    type Reply = ZpoolPrefetchReply;
}

/// Which entries of dedup tables `zpool ddtprune` removes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum DdtPruned {
    /// Those that have not changed for so many days; one at least.
    Days(u32),
    /// So many hundredths of those with one reference, 1 to 100, the oldest first.
    Percent(u8),
}

/// `zpool ddtprune`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ZpoolDdtPrune {
    /// Name of the pool.
    pub name: String,
    /// Which entries.
    pub what: DdtPruned,
    /// The command as typed, for the history of the pool; empty for none.
    #[serde(default)]
    pub command: String,
}

/// What was removed.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct ZpoolDdtPruneReply {
    /// Entries.
    pub pruned: u64,
}

impl Call for ZpoolDdtPrune {
    const PATH: &'static str = "/v1/zpool/ddtprune";
    const ACCESS: Access<Self> =
        Access::Change(|call| format!("cannot prune the dedup tables of '{}'", call.name));
    const ROLE: Option<Role> = Some(Role::Operator);
    type Reply = ZpoolDdtPruneReply;
}

/// `zpool clear`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ZpoolClear {
    /// Name of the pool.
    pub name: String,
    /// A vdev of it, or all.
    pub vdev: Option<String>,
    /// The command as typed, for the history of the pool; empty for none.
    #[serde(default)]
    pub command: String,
}

impl Call for ZpoolClear {
    const PATH: &'static str = "/v1/zpool/clear";
    const ACCESS: Access<Self> =
        Access::Change(|call| format!("cannot clear errors for {}", call.name));
    const ROLE: Option<Role> = Some(Role::Operator);
    type Reply = Empty;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operators_choose_no_cache_files() {
        let root = Some(Path::new("/srv"));
        for (property, value, may) in [
            ("cachefile", "/srv/cache", false),
            ("cachefile", "none", true),
            ("cachefile", "", true),
            ("comment", "/srv", true),
        ] {
            let mut call = ZpoolSet {
                name: "tank".into(),
                vdev: None,
                property: property.into(),
                value: value.into(),
                command: String::new(),
            };
            assert_eq!(call.narrow_mounts(root).is_ok(), may, "{property} {value}");
        }
    }
}
