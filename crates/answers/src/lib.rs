//! What other programs answer, taken apart: text in, values out. No I/O, no clock, so that fuzzers
//! can call it; the daemon asks the programs.
//!
//! | Part | Whose answers |
//! |---|---|
//! | [`nut`] | NUT's server `upsd`, which knows how a UPS is |
//! | [`zfs_list`] | `zfs list` at the target of a replication, OpenZFS's or Millpond's |
//!
//! These programs may run on other hosts. Nothing that they print is trusted.

#![forbid(unsafe_code)]

pub mod nut;
pub mod zfs_list;
