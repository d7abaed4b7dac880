//! Scrubs, resilvers and sequential rebuilds: they read all that a pool has, or all that a device
//! lacks, and put right what is wrong or missing. And expansions of RAID-Z vdevs, which move it.
//!
//! Kinds of work; of the first three no two go on at a time:
//!
//! | Module | Does | In OpenZFS |
//! |---|---|---|
//! | `scan` | walks all datasets: a scrub verifies every block, a resilver writes what devices lack | dsl_scan.c; vdev.c: `vdev_dtl_reassess` |
//! | `errorscrub` | reads the blocks that the error log names | dsl_scan.c: `dsl_errorscrub_sync` |
//! | `rebuild` | copies what is allocated of one vdev, in the order of the medium | vdev_rebuild.c |
//! | `expand` | moves the sectors of a RAID-Z vdev that got one more device | vdev_raidz.c |
//!
//! All are [`Scans`], which has one turn in each transaction group: scans first, as they find
//! out what goes into error and dirty time logs, rebuilds before changes of space are recorded.
//! They see the ground ([`spa::Spa`]) and each other; devices that come and go, and commands, are
//! the business of crate `pool`.

#![forbid(unsafe_code)]

mod errorscrub;
mod expand;
mod rebuild;
mod scan;
mod scans;
mod status;

pub use errorscrub::{ErrorScrub, ErrorScrubStatus};
pub use expand::{Expanding, ExpansionStatus, KnownExpansion};
pub use rebuild::{RebuildState, RebuildStatus, Rebuilds, as_task_error};
pub use scan::{
    Scan, ScanCost, ScanCosts, ScrubCommand, ScrubNumbers, command, is_deferred, resilver,
};
pub use scans::Scans;
pub use status::{ScanFunction, ScanState, ScanStatus};
