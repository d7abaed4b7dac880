//! Torture in the simulated world: one binary, since every binary compiles all that its tests wait
//! for anew.

mod clones;
mod common;
mod condensing;
mod crash;
mod datasets;
mod diagnosis;
mod draid;
pub mod encrypted;
mod expansion;
mod failures;
mod faults;
mod hung;
mod multihost;
mod newkeys;
mod panics;
mod passes;
pub mod readahead;
mod rebuild;
mod redaction;
pub mod removal;
mod removal_care;
mod resilver;
mod scanning;
mod second;
mod spare_work;
pub mod spares;
mod split;
mod stale_logs;
pub mod topology;
mod transient;
mod trim;
mod upgrade;
pub mod vdevs;
