//! Vdevs as a person asks for them, and who opens a pool.

use format::Txg;

/// Who opens a pool: stored in labels so that another host notices.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HostIdentity {
    /// `gethostid(3)`: zero when the host has none, and then no check is made.
    pub hostid: u64,
    /// The node's name.
    pub hostname: String,
}

/// One device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeafSpec {
    /// Absolute path, or the simulated disk's name.
    pub path: String,
    /// Whether it is a regular file (`file` in the configuration) and not a disk (`disk`).
    pub is_file: bool,
}

/// How a top-level vdev is built of devices.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum VdevLayout {
    /// One device.
    Leaf(LeafSpec),
    /// Every device holds the same.
    Mirror(Vec<LeafSpec>),
    /// RAID-Z with one to three devices' worth of parity.
    Raidz {
        /// 1, 2 or 3.
        parity: u8,
        /// The devices, in order.
        leaves: Vec<LeafSpec>,
    },
    /// dRAID: parity groups and room for spares, spread over all devices.
    Draid {
        /// Parity columns of a group: 1, 2 or 3.
        parity: u8,
        /// Data columns of a group.
        data: u8,
        /// Distributed spares.
        spares: u8,
        /// The devices, in order.
        leaves: Vec<LeafSpec>,
    },
}

impl VdevLayout {
    /// The devices, in order.
    pub fn leaves(&self) -> &[LeafSpec] {
        match self {
            Self::Leaf(leaf) => std::slice::from_ref(leaf),
            Self::Mirror(leaves) | Self::Raidz { leaves, .. } | Self::Draid { leaves, .. } => {
                leaves
            }
        }
    }
}

/// What a top-level vdev is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum VdevClass {
    /// Data and metadata.
    #[default]
    Normal,
    /// The intent log.
    Log,
    /// Metadata and small blocks.
    Special,
    /// Dedup tables.
    Dedup,
    /// A stand-in for a failed device.
    Spare,
    /// The second-level cache.
    Cache,
}

/// One top-level vdev (or spare, or cache device) of a pool to create.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VdevSpec {
    /// Its devices.
    pub layout: VdevLayout,
    /// Its purpose.
    pub class: VdevClass,
}

/// What a rewound import gave up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rewound {
    /// The transaction group that was imported.
    pub txg: Txg,
    /// When it was written, in seconds since the epoch.
    pub timestamp_s: u64,
    /// The newest transaction group found.
    pub newest_txg: Txg,
    /// Seconds between the two.
    pub lost_s: u64,
}
