//! Exactly one open filesystem or volume per dataset, shared by all who use it: mounts, files of
//! volumes, iSCSI targets, commands such as `zfs userspace`.
//!
//! Two on one dataset would both replay its log and free what its delete queue lists, and would
//! each keep locks and attributes of their own: what one changed, the other would write over. So
//! nobody opens a dataset but [`Access`], the registry of a pool, which gives out leases.
//!
//! | Module | What it does |
//! |---|---|
//! | `access` | the registry: leases, having datasets alone, rollbacks, leaving the pool |
//! | `slot` | the place of one dataset: its states, and who waits for what |
//! | `lease` | a share in what is open; for volumes also their operations, through rollbacks |
//! | `opened` | filesystem or volume |
//! | `control` | `.zfs`: its directories, and snapshots that are open on demand |
//! | `permission` | what callers may do whom no kernel checks |
//! | `traffic` | counters of what clients on the network do |
//! | `user` | who uses a dataset, as data |
//!
//! # Who gets what
//!
//! - A lease keeps the dataset open. The last one that is dropped closes it, in a task of the
//!   registry; whoever wants the dataset meanwhile waits and opens it anew.
//! - To destroy a dataset, or to export the pool, one has it alone ([`Access::exclusive`],
//!   [`Access::leave`]): users who are done in a moment are waited for, others stand in the way,
//!   and are named, or are cut off. Renaming and promoting need nothing of the kind: what is open
//!   is known by its object, and its name follows.
//! - A rollback leaves mounts, files and targets where they are ([`Access::exchange`]). Mounts are
//!   told before and after ([`Resident`]); a volume's users ask through their lease, which waits.
//! - Whoever keeps copies of what a filesystem has listens to its changes ([`Lease::changes`]): a
//!   mount has its kernel drop what others, or another server, changed ([`filesystem::Changes`]).
//!   Whoever else serves it says so, and answers clients when the mounts have been told.
//! - While the pool is suspended, closing waits in its task, and so does whoever wants the dataset
//!   next. Giving the pool up ends that with an error.
//! - Permissions are checked by who serves: for mounts that is the kernel, other servers ask
//!   [`permits`].
//!
//! # What a crash leaves
//!
//! Nothing of this is on disk. A dataset that was open then has a log, which is replayed once,
//! when the first lease on it is given out.

#![forbid(unsafe_code)]

mod access;
mod control;
mod error;
mod lease;
mod opened;
mod permission;
mod shadow;
mod slot;
mod snapdir;
mod traffic;
mod user;

pub use access::{Access, Exclusive, Leaving};
pub use control::{
    ControlAttributes, ControlDirectory, ControlEntry, ControlNode, Snapdir, Snapshot,
};
pub use error::{AccessError, Result};
pub use lease::Lease;
pub use opened::Served;
pub use permission::{Credentials, MAY_EXECUTE, MAY_READ, MAY_WRITE, permits};
pub use slot::{Exclusion, Paused, Resident};
pub use snapdir::SnapshotChange;
pub use traffic::{Traffic, TrafficCounts, TrafficKind};
pub use user::User;

/// Decodes bytes as a POSIX list of access: for fuzzers.
#[doc(hidden)]
pub fn decode_for_fuzzing(data: &[u8]) {
    if let Some(entries) = permission::decode(data) {
        assert_eq!(entries.len(), data.len() / 8);
    }
}
