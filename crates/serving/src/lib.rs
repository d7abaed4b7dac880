//! What is served of the imported pools: filesystems mounted, volumes as files, and both shared by
//! iSCSI, NFS and SMB.
//!
//! [`Serving`] holds the pools and the servers. It takes a pool in (module `adopt`; at the start
//! those of the last run, module `start`) and leaves it (module `leave`); in between a dataset is
//! mounted ([`mounts`], where [`mod@place`] says), opened ([`volumes`]) and shared ([`iscsi`],
//! [`nfs`], [`smb`]) as its properties say. Each server owns its state; [`shares`] are overviews of
//! all, with who uses them. What has to do with one part only is that part's; [`Serving`] does what
//! needs several: a filesystem that is mounted is shared too, one that is to be unmounted no more.
//!
//! Locks, in the order in which they are taken: a pool's `admin` lock (one change to its datasets,
//! mounts or shares at a time; held across awaits), then the short locks of [`mounts::Mounts`] and
//! [`volumes::Volumes`], then that of the table of pools. Short locks are never held across an
//! await, so a pool that hangs stops only requests about itself.

#![forbid(unsafe_code)]

use std::sync::Arc;

use device::{FileDevice, MemoryUser, MemoryUses, World};
use pool::HostIdentity;
use service::events::Events;
use service::jobs::Jobs;
use service::pools::Pools;

mod adopt;
pub mod identity;
pub mod iscsi;
mod leave;
pub mod mounts;
pub mod nfs;
pub mod owners;
pub mod people;
pub mod place;
mod reservations;
pub mod secrets;
pub mod shares;
pub mod smb;
mod start;
pub mod unit_states;
pub mod volumes;

pub use leave::exclusion;

use mounts::Mounts;
use nfs::Nfs;
use owners::Owners;
use people::People;
use shares::Withheld;
use smb::Smb;
use volumes::Volumes;

/// Imported pools, and what is served of them. See the crate's header for the order of locks.
pub struct Serving {
    /// Devices, clock, randomness and tasks.
    pub world: World,
    /// Looks at what the host is, as pools know it: its id may be set while the server runs.
    pub host: fn() -> HostIdentity,
    /// The imported pools.
    pub pools: Arc<Pools>,
    /// What happens.
    pub events: Arc<Events>,
    /// What takes long.
    pub jobs: Arc<Jobs>,
    /// Mounted filesystems.
    pub mounts: Mounts,
    /// Open volumes, as files and by iSCSI, with its secrets.
    pub volumes: Volumes,
    /// The NFS server.
    pub nfs: Nfs,
    /// Samba.
    pub smb: Arc<Smb>,
    /// Who uses shares.
    pub people: People,
    /// Whose the names are that clients use.
    pub owners: Arc<Owners>,
    /// Shares that somebody ended by hand.
    pub withheld: Withheld,
}

impl Serving {
    /// Who has how much of the process's memory, as it is accounted for. Waits for nobody, and
    /// takes a few milliseconds where there is much.
    pub fn memory(&self) -> MemoryUses {
        let mut uses = MemoryUses::default();
        self.pools.add_memory(&mut uses);
        FileDevice::add_memory(&mut uses);
        let (iscsi_bytes, iscsi_most_bytes) = self.volumes.targets().memory_bytes();
        uses.add(MemoryUser::Iscsi, iscsi_bytes, Some(iscsi_most_bytes));
        let (nfs_bytes, nfs_most_bytes) = self.nfs.memory_bytes();
        uses.add(MemoryUser::Nfs, nfs_bytes, Some(nfs_most_bytes));
        uses
    }
}
