//! The vdev tree: bytes at (top-level vdev, offset), with redundancy.
//!
//! | File | Holds |
//! |---|---|
//! | `tree` | [`VdevTree`]: flushing, I/O by [`format::VdevId`] |
//! | `tree/opening`, `tree/reopening` | whose a device is; opening it, and opening it again |
//! | `topology` | [`Topology`]: top-level vdevs, redundancy, removed vdevs, attach and detach |
//! | `node` | [`Vdev`]: what all kinds have, and where I/O branches |
//! | `kind` | [`VdevKind`]: the kinds, each with its own data |
//! | `mirror` | mirror reads and writes |
//! | `lacking`, `recorded` | writes that a vdev lacks, and blocks that it may lack for that reason |
//! | `raidz` | RAID-Z reads, reconstruction, writes |
//! | `geometry` | [`Geometry`]: allocated sizes, RAID-Z columns |
//! | `expansion` | RAID-Z vdevs that were widened, or are being widened |
//! | `widen` | one more child of a RAID-Z vdev |
//! | [`reflow`], `range_gate` | moving the sectors of these, and keeping I/O away meanwhile |
//! | `draid`, `draid_maps` | dRAID's groups, rows and permutations |
//! | `indirect_map` | the mapping of a removed vdev |
//! | `evacuation`, `copies` | copying what is on a vdev that is being removed; where copies are |
//! | `leaf`, `queue` | one device: state, counters, bounded and aggregated I/O |
//! | `dirty_times` | [`DirtyTimes`]: the transaction groups whose writes a device lacks |
//! | `io` | circumstances and failures of I/O, and the check of what was read |
//! | `inject` | [`Injector`]: faults that somebody asked for |
//! | `watch`, `patience`, `deadman` | devices that do not answer |
//! | `meter` | latencies, sizes and queue depths of a leaf's I/O |
//! | `label` | labels and uberblocks |
//! | `survey` | labels and uberblocks with what is wrong of them, for people |
//! | `config` | configurations to trees and back |
//! | `sizes` | sizes of vdevs by the devices that they have |
//! | `metaslab`, `top_spec` | how a top-level vdev is cut, and what the allocator has to know |
//! | `rebuild`, `rebuild_draid` | sequential rebuilds of mirrors, and of dRAID |
//! | `fence` | keeps sequential rebuilds apart from writes of log blocks |
//! | `common` | what the leaves of a tree share, [`Halt`] among it |
//! | `state`, `report` | states, reasons, counters; what I/O reports |
//! | `range_set` | [`RangeSet`]: sets of offsets or transaction groups |
//! | `error` | [`VdevError`] |
//! | `trim` | discarding free space |
//! | `testing` | trees on simulated disks, for tests here and above |
//!
//! Ownership: the tree owns its vdevs, a leaf its device. The shape of a vdev never changes:
//! another one takes its place in the list of top-level vdevs, in syncing context ([`topology`]);
//! states change at any time. Locks: the topology's `list` (read-mostly), then a vdev's `config`,
//! then a leaf's; none is held across I/O.

#![forbid(unsafe_code)]

mod common;
mod config;
mod copies;
mod deadman;
mod dirty_times;
mod draid;
mod draid_maps;
mod error;
pub mod evacuation;
mod expansion;
#[cfg(test)]
mod expansion_tests;
mod fault;
mod fence;
#[cfg(test)]
mod flushed_tests;
mod geometry;
#[cfg(test)]
mod hung_tests;
mod indirect_map;
mod inject;
mod io;
mod kind;
mod label;
mod lacking;
#[cfg(test)]
mod lacking_tests;
mod leaf;
#[cfg(test)]
mod mapping_tests;
mod metaslab;
mod meter;
#[cfg(test)]
mod meter_tests;
mod mirror;
mod node;
mod patience;
mod queue;
mod raidz;
mod range_gate;
mod range_set;
mod rebuild;
mod rebuild_draid;
#[cfg(test)]
mod rebuild_draid_tests;
#[cfg(test)]
mod rebuild_tests;
mod recorded;
pub mod reflow;
mod repairs;
mod report;
#[cfg(test)]
mod scan_tests;
pub mod sizes;
mod state;
#[cfg(test)]
mod stopped_tests;
mod survey;
mod sweep;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
#[cfg(test)]
mod tests;
mod top_spec;
mod topology;
#[cfg(test)]
mod topology_tests;
mod tree;
mod trim;
mod watch;
mod widen;

pub use common::Halt;
pub use config::Scope;
pub use copies::{Copies, CopyPlace};
pub use deadman::open_patiently;
pub use dirty_times::DirtyTimes;
pub use draid::Draid;
pub use error::VdevError;
pub use evacuation::Copied;
pub use geometry::{Column, Columns, Geometry, metaslab_span};
pub use indirect_map::IndirectMap;
pub use inject::{FAULT_LANES_MAX, FaultError, FaultIo, FaultKind, Injected, Injector};
pub use io::{IoContext, ReadFailure, Verify, WriteFailure};
pub use kind::{
    DraidSpareVdev, DraidVdev, IndirectVdev, LeafType, LeafVdev, MirrorRole, MirrorVdev, OtherVdev,
    RaidzVdev, VdevKind,
};
pub use label::{
    HeartbeatTarget, Label, LabelSync, Labels, best_uberblock, clear_labels, leaf_label_config,
    read_labels, write_detached_labels, write_labels_of_left,
};
pub use lacking::{REBUILD_TXG, RESILVER_TXG, is_rebuilding, spares_that_took_all};
pub use leaf::Leaf;
pub use metaslab::{METASLABS_MAX, metaslab_shift};
pub use meter::{IO_CLASSES, IoStats, LATENCY_BUCKETS, SIZE_BUCKETS};
pub use node::{Top, Vdev};
pub use patience::{DeadmanLimits, Patience};
pub use range_set::RangeSet;
pub use rebuild::{Rebuilt, copy_end};
pub use recorded::Recorded;
pub use repairs::{RepairEpoch, RepairsHeld};
pub use report::{DeviceIo, ErrorReport, ErrorSink, IgnoreErrors, Operation, Priority, ScanRead};
pub use sizes::{ASHIFT_MAX, ASHIFT_MIN};
pub use state::{CounterValues, Counters, VdevAux, VdevState};
pub use survey::{LabelSurvey, SlotSurvey, survey_labels};
pub use top_spec::{AllocClass, AllocUnits, TopSpec};
pub use topology::{Detached, Remapped, Replaced, Topology, TopologyError, mapping_of};
pub use tree::opening::OpenOptions;
pub use tree::{VdevTree, forget_successors, injector, scan_share, set_scan_share};
pub use trim::{TRIM_EXTENT_BYTES_MAX, TRIM_EXTENT_BYTES_MIN};
