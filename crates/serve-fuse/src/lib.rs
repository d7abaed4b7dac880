//! Filesystems and volumes in the host's file tree, through FUSE.
//!
//! [`Mount`] serves a filesystem at a mountpoint, with `.zfs/snapshot`; [`ZvolDirectory`] shows
//! volumes as files `POOL/VOLUME` that `losetup` takes. Both have leases on what is open
//! ([`access::Access`]).
//!
//! | Module | What it does |
//! |---|---|
//! | `mount`, `attach`, `host` | mounting, unmounting, what can be mounted where |
//! | `aside` | a thread for system calls that may lead into what is served here |
//! | `mountinfo` | what is mounted, told from others at the same place |
//! | `mountpoint` | the directory to mount at, found and made without following others' links |
//! | `exchange` | another state of a filesystem under the same mount (rollback) |
//! | `handler` | the kernel's requests, and what the kernel may cache |
//! | `inside` | what is mounted inside of a mount, for who changes it otherwise |
//! | `listing` | entries of directories |
//! | `nodes` | node numbers: filesystem, snapshots, `.zfs` |
//! | `flags` | ioctls for `chattr` and projects |
//! | `groups` | of which groups a caller is |
//! | `readers` | which thread reads the next request |
//! | `task` | requests run at once or as tasks |
//! | `teller` | telling the kernel of what others changed |
//! | `zvol` | volumes as files |
//!
//! A few threads read requests. A request that finds what it needs in memory is answered on its
//! thread; one that has to wait goes on as a task, so any number is under way at once. Permissions
//! are checked by the kernel (`default_permissions`). A crash of this process leaves a dead mount,
//! which the next one at the same place takes away.

#![forbid(unsafe_code)]

mod aside;
mod attach;
mod convert;
mod error;
mod exchange;
mod flags;
mod groups;
mod handler;
mod host;
mod inside;
mod listing;
mod mount;
mod mountinfo;
mod mountpoint;
mod nodes;
mod readers;
mod seek;
mod slots;
mod snapdir;
mod task;
mod teller;
mod zvol;

pub use aside::{aside, find_aside};
pub use error::{MountError, Result};
pub use host::{filesystem_of, is_dead, mounted_at, take_away_dead_mounts};
pub use mount::{Mount, MountOptions, UnmountMode};
pub use mountinfo::MountTable;
pub use mountpoint::remove_mountpoint;
pub use zvol::ZvolDirectory;
