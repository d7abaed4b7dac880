//! States of vdevs, and of a pool as a whole, as `zpool status` shows them.

use format::Guid;
use scan::RebuildStatus;
use trim::ActivityStatus;
use vdev::VdevAux;

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

/// What a vdev is written in, where its device has bigger sectors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SmallSectors {
    /// Bytes of a sector, as the top-level vdev has it (`vs_configured_ashift`).
    pub configured_bytes: u32,
    /// Bytes of a sector of the device, physically (`vs_physical_ashift`).
    pub native_bytes: u32,
}

/// One vdev, with those below it.
#[derive(Debug, Clone)]
pub struct VdevStatus {
    /// Name as `zpool status` prints it: `raidz1-0`, `mirror-1`, or the device's path.
    pub name: String,
    /// `root`, `mirror`, `raidz`, `disk`, `file`, `missing`, `hole`, ...
    pub kind: String,
    /// Parity of a raidz or draid, else zero.
    pub parity: u8,
    /// Path of a device.
    pub path: Option<String>,
    /// Identity.
    pub guid: Guid,
    /// Purpose; that of the top-level vdev for those below one.
    pub class: VdevClass,
    /// State.
    pub state: VdevState,
    /// Why the state is what it is.
    pub aux: VdevAux,
    /// Of a spare that another pool uses: that pool's name.
    pub used_by: Option<String>,
    /// It is being removed.
    pub is_removing: bool,
    /// It gets no new blocks.
    pub is_non_allocating: bool,
    /// Of a device: it is there but lacks writes that were made while it was away.
    pub is_stale: bool,
    /// Of a device: it stopped working since the pool was opened.
    pub is_out: bool,
    /// Of a device: its resilver waits for the one that is under way.
    pub is_deferred: bool,
    /// Bytes that the scan or sequential rebuild under way has written to a device.
    pub scan_repaired_bytes: u64,
    /// Of a top-level vdev: its last sequential rebuild.
    pub rebuild: Option<RebuildStatus>,
    /// Failed reads.
    pub read_errors: u64,
    /// Failed writes.
    pub write_errors: u64,
    /// Wrong checksums.
    pub checksum_errors: u64,
    /// A RAID-Z vdev that is being made wider.
    pub is_expanding: bool,
    /// I/Os of a leaf that took longer than 30 seconds.
    pub slow_ios: u64,
    /// Of a leaf: its last `zpool initialize`.
    pub initialize: ActivityStatus,
    /// Of a leaf: its last `zpool trim`.
    pub trim: ActivityStatus,
    /// Of a leaf: whether discards reach the medium.
    pub can_trim: bool,
    /// Reads done, and their bytes.
    pub read_ops: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Writes done.
    pub write_ops: u64,
    /// Bytes written.
    pub write_bytes: u64,
    /// Discards done.
    pub trim_ops: u64,
    /// Bytes discarded.
    pub trim_bytes: u64,
    /// Of a leaf: discards that failed.
    pub trim_errors: u64,
    /// Bytes of space (top-level vdevs; zero below).
    pub size_bytes: u64,
    /// Bytes by which a top-level vdev's devices are bigger than what it uses.
    pub expandable_bytes: u64,
    /// Bytes of a leaf's device, while it is open.
    pub physical_bytes: u64,
    /// Bytes of a top-level vdev, or of a leaf's device without its labels (`vdev_asize`).
    pub asize_bytes: u64,
    /// Bytes allocated (top-level vdevs; zero below).
    pub allocated_bytes: u64,
    /// Fragmentation in percent, where known (top-level vdevs).
    pub fragmentation_percent: Option<u8>,
    /// `log2` of the smallest block of a top-level vdev, or of the sector of a leaf's device; else
    /// zero.
    pub ashift: u8,
    /// Of a leaf that is open: its device has bigger sectors than the vdev is written in.
    pub small_sectors: Option<SmallSectors>,
    /// Settable properties that differ from their defaults, and those of users, as text.
    pub properties: Vec<(String, String)>,
    /// Those below.
    pub children: Vec<VdevStatus>,
}

impl VdevStatus {
    /// Whether a person may mean this one by `name`: its name, guid, path, or the path's last part.
    pub(crate) fn is_called(&self, name: &str) -> bool {
        self.name == name
            || self.guid.to_string() == name
            || self.path.as_deref().is_some_and(|path| {
                path == name || path.rsplit('/').next().is_some_and(|last| last == name)
            })
    }
}
