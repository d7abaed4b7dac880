//! Messages about what lies between disks and clients: controllers, their links, the network.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Access, Call};

/// What a controller speaks with its disks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ControllerKind {
    /// Serial ATA.
    Sata,
    /// Serial attached SCSI.
    Sas,
    /// A RAID controller, whatever its disks speak.
    Raid,
    /// NVMe: it is the disk itself.
    Nvme,
    /// A virtual machine's.
    Virtio,
    /// USB.
    Usb,
    /// Another one.
    #[default]
    Other,
}

/// A controller of disks on PCI.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Controller {
    /// Its address: `0000:03:00.0`.
    pub address: String,
    /// What it speaks.
    pub kind: ControllerKind,
    /// Vendor and device, as `lspci -n` prints them: `1000:0097`.
    pub model: Option<String>,
    /// The kernel's driver: `mpt3sas`.
    pub driver: Option<String>,
    /// The slot that it is in, where the firmware says so.
    pub slot: Option<String>,
    /// Disks behind it.
    pub disks: Vec<String>,
}

/// Speed and width of a link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LinkWidth {
    /// Generation of the standard: 3 for PCI Express of 8 GT/s, SATA of 6 Gbit/s and SAS of
    /// 12 Gbit/s.
    pub generation: u32,
    /// Lanes.
    pub lanes: u32,
}

/// What kind of link it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum LinkKind {
    /// PCI Express.
    #[default]
    Pcie,
    /// A port of SATA; behind a multiplier, of several disks.
    Sata,
    /// A port of SAS, of one disk or one expander.
    Sas,
}

/// A link between memory and disks, or the network.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct BusLink {
    /// What it is known by: a PCI device's address (`0000:03:00`), or what the kernel calls the
    /// port (`ata3`, `port-6:0`).
    pub id: String,
    /// What it is.
    pub kind: LinkKind,
    /// As it runs.
    pub width: LinkWidth,
    /// As both of its ends could run; none where that is not known.
    pub could: Option<LinkWidth>,
    /// Bytes a second that it carries in each direction, beside headers and acknowledgements; none
    /// where this release does not know the generation.
    pub rate: Option<u64>,
    /// The next link on the way to memory.
    pub above: Option<String>,
    /// Disks behind it.
    pub disks: Vec<String>,
    /// Bytes a second of all disks behind it together.
    pub disks_rate: u64,
}

/// A disk, and how it is reached.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct BusDisk {
    /// Name that the kernel gave it.
    pub name: String,
    /// Sequential bytes a second: what is usual for its kind, not measured.
    pub rate: u64,
    /// Its controller.
    pub controller: Option<String>,
    /// The link that is nearest to it.
    pub link: Option<String>,
    /// Pools that have something on it.
    pub pools: Vec<String>,
}

/// A port of the network.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NetworkPort {
    /// What the kernel calls it: `eth0`, `bond0`.
    pub name: String,
    /// Whether it works.
    pub is_up: bool,
    /// Bytes a second in each direction; none where it does not say.
    pub rate: Option<u64>,
    /// The bond or bridge that it is a part of.
    pub part_of: Option<String>,
    /// The link of PCI Express that it is behind.
    pub link: Option<String>,
}

/// What lets a pool's disks not read and write faster, all at the same time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "by", rename_all = "kebab-case")]
pub enum PoolLimit {
    /// Nothing before the disks themselves, as far as is known.
    #[default]
    Disks,
    /// A link.
    Link {
        /// Which.
        id: String,
    },
    /// The network: clients get less over it than the pool can read.
    Network,
}

/// A pool on its links.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PoolBuses {
    /// The pool.
    pub pool: String,
    /// Disks that hold its data.
    pub disks: Vec<String>,
    /// Devices of the pool whose way is not known: files, devices of other kinds.
    pub unknown_devices: u64,
    /// Bytes a second of its disks together.
    pub disks_rate: u64,
    /// Bytes a second that its links let through when all of its disks are as busy as each other.
    pub rate: u64,
    /// Of these, bytes of data when clients read: without parity.
    pub data_rate: u64,
    /// What the bottleneck is.
    pub limited_by: PoolLimit,
}

/// Asks what is between the host's disks and its clients. No disk is asked for it.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HostBuses {}

/// Controllers, links, disks, the network, and what they are to pools.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct HostBusesReply {
    /// Controllers of disks, by address.
    pub controllers: Vec<Controller>,
    /// Links, those nearer to memory before those behind them.
    pub links: Vec<BusLink>,
    /// Disks, by name.
    pub disks: Vec<BusDisk>,
    /// Ports of the network, by name.
    pub networks: Vec<NetworkPort>,
    /// Bytes a second of all ports that work, in each direction; none where no port says.
    pub network_rate: Option<u64>,
    /// Pools.
    pub pools: Vec<PoolBuses>,
}

impl Call for HostBuses {
    const PATH: &'static str = "/v1/host/buses";
    const ACCESS: Access<Self> = Access::Read;
    type Reply = HostBusesReply;
}
