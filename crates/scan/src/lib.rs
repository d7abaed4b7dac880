//! Scrubs, resilvers and sequential rebuilds: they read all that a pool has, or all that a device
//! lacks, and put right what is wrong or missing.
//!
//! Three kinds of work, which know of each other because no two of them go on at a time:
//!
//! | Module | Does | In OpenZFS |
//! |---|---|---|
//! | `scan` | walks all datasets: a scrub verifies every block, a resilver writes what devices lack | dsl_scan.c; vdev.c: `vdev_dtl_reassess` |
//! | `errorscrub` | reads the blocks that the error log names | dsl_scan.c: `dsl_errorscrub_sync` |
//! | `rebuild` | copies what is allocated of one vdev, in the order of the medium | vdev_rebuild.c |
//!
//! All three are [`Scans`], which has one turn in each transaction group: scans first, as they find
//! out what goes into error and dirty time logs, rebuilds before changes of space are recorded.
//! They see the ground ([`spa::Spa`]) and each other; devices that come and go, and commands, are
//! the business of crate `pool`.

#![forbid(unsafe_code)]

mod errorscrub;
mod rebuild;
mod scan;
mod scans;
mod status;

pub use errorscrub::{ErrorScrub, ErrorScrubStatus};
pub use rebuild::{RebuildState, RebuildStatus, Rebuilds, as_task_error};
pub use scan::{Scan, ScrubCommand, ScrubNumbers, command, is_deferred, resilver};
pub use scans::Scans;
pub use status::{ScanFunction, ScanState, ScanStatus};
