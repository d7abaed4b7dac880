//! A pool's state, as `zpool status` and `zpool list` show it.

use format::{Guid, Txg};

use crate::VdevClass;

/// State of a vdev (`vdev_state_t`, include/sys/fs/zfs.h), best last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum VdevState {
    /// Not opened.
    Closed,
    /// Taken offline by a person.
    Offline,
    /// Removed from the system.
    Removed,
    /// Could not be opened.
    CantOpen,
    /// Faulted: too many errors, or by hand.
    Faulted,
    /// Works with less redundancy than it has.
    Degraded,
    /// Works.
    Online,
}

impl VdevState {
    /// The word that `zpool status` prints.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Closed | Self::CantOpen => "UNAVAIL",
            Self::Offline => "OFFLINE",
            Self::Removed => "REMOVED",
            Self::Faulted => "FAULTED",
            Self::Degraded => "DEGRADED",
            Self::Online => "ONLINE",
        }
    }
}

/// Health of a whole pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PoolHealth {
    /// Everything works.
    Online,
    /// Works with less redundancy than it has.
    Degraded,
    /// Cannot work.
    Faulted,
    /// Stopped after an I/O failure, until it is cleared.
    Suspended,
}

impl PoolHealth {
    /// The word that `zpool list` prints.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Online => "ONLINE",
            Self::Degraded => "DEGRADED",
            Self::Faulted => "FAULTED",
            Self::Suspended => "SUSPENDED",
        }
    }
}

/// One vdev, with those below it.
#[derive(Debug, Clone)]
pub struct VdevStatus {
    /// Name as `zpool status` prints it: `raidz1-0`, `mirror-1`, or the device's path.
    pub name: String,
    /// `root`, `mirror`, `raidz`, `disk`, `file`, `missing`, `hole`, ...
    pub kind: String,
    /// Parity of a raidz, else zero.
    pub parity: u8,
    /// Path of a device.
    pub path: Option<String>,
    /// Identity.
    pub guid: Guid,
    /// Purpose; that of the top-level vdev for those below one.
    pub class: VdevClass,
    /// State.
    pub state: VdevState,
    /// Why the state is what it is, when it is not [`VdevState::Online`].
    pub why: Option<String>,
    /// Failed reads.
    pub read_errors: u64,
    /// Failed writes.
    pub write_errors: u64,
    /// Wrong checksums.
    pub checksum_errors: u64,
    /// Reads done, and their bytes.
    pub read_ops: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Writes done.
    pub write_ops: u64,
    /// Bytes written.
    pub write_bytes: u64,
    /// Bytes of space (top-level vdevs; zero below).
    pub size_bytes: u64,
    /// Bytes allocated (top-level vdevs; zero below).
    pub allocated_bytes: u64,
    /// Fragmentation in percent, where known (top-level vdevs).
    pub fragmentation_percent: Option<u8>,
    /// `log2` of the smallest block (top-level vdevs; zero below).
    pub ashift: u8,
    /// Those below.
    pub children: Vec<VdevStatus>,
}

/// The last scrub or resilver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScanStatus {
    /// `scrub` or `resilver`.
    pub function: String,
    /// `scanning`, `finished` or `canceled`.
    pub state: String,
    /// Seconds since the epoch.
    pub start_time_s: u64,
    /// Seconds since the epoch; zero while it runs.
    pub end_time_s: u64,
    /// Bytes to examine.
    pub to_examine_bytes: u64,
    /// Bytes examined.
    pub examined_bytes: u64,
    /// Bytes repaired.
    pub repaired_bytes: u64,
    /// Errors found.
    pub errors: u64,
}

/// A pool's state.
#[derive(Debug, Clone)]
pub struct PoolStatus {
    /// Name.
    pub name: String,
    /// Identity.
    pub guid: Guid,
    /// Health.
    pub health: PoolHealth,
    /// Why it is suspended.
    pub suspended_why: Option<String>,
    /// Whether it was imported read-only.
    pub read_only: bool,
    /// Last transaction group on disk.
    pub synced_txg: Txg,
    /// The vdevs; the root's children are the top-level vdevs of all classes.
    pub root: VdevStatus,
    /// Spares.
    pub spares: Vec<VdevStatus>,
    /// Second-level cache devices.
    pub caches: Vec<VdevStatus>,
    /// The last scrub or resilver, when there was one.
    pub scan: Option<ScanStatus>,
    /// Number of blocks with permanent errors in the error log.
    pub data_errors: u64,
    /// Whether features that this release supports are disabled.
    pub features_disabled: bool,
    /// Errata number stored in the configuration.
    pub errata: u64,
}

/// State of one feature flag.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FeatureState {
    /// The pool knows nothing of it.
    Disabled,
    /// It may be used.
    Enabled,
    /// It is used.
    Active,
}

impl FeatureState {
    /// The word that `zpool get feature@...` prints.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Disabled => "disabled",
            Self::Enabled => "enabled",
            Self::Active => "active",
        }
    }
}

/// One feature flag of a pool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FeatureStatus {
    /// Name on disk: `org.illumos:lz4_compress`.
    pub guid: String,
    /// Name in properties: `lz4_compress`.
    pub name: String,
    /// State.
    pub state: FeatureState,
    /// Reference count as stored.
    pub refcount: u64,
    /// Whether this release supports it.
    pub supported: bool,
    /// Whether a release without it may import the pool read-only.
    pub read_only_compatible: bool,
}
