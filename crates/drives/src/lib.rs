//! The host's disks: what the kernel and `smartctl` tell of them, how they were, their bays and
//! lights.
//!
//! | Part | What it does |
//! |---|---|
//! | [`Sysfs`] | disks, partitions, multipath, enclosures: the kernel's tree, without I/O to disks |
//! | [`buses`] | what lies between memory, disks and network: PCI Express, SATA, SAS |
//! | [`Smartctl`] | asks a disk how it is, and has it test itself; leaves one alone that hangs |
//! | [`History`] | how a disk was, a bounded number of times, in the state directory |
//! | [`Lamps`] | switches lights: SES, NPEM, `ledctl` |
//! | [`Sysfs::switch_power`] | switches the power of bays: SES, slots of PCI Express |
//! | [`Book`] | which lights are to be on and which are, and in which bay each device of a pool was |
//!
//! All of it blocks; the daemon calls it from threads that it can do without for a while. Nothing
//! here knows of pools: what is to be lit is given.
//!
//! Files in the state directory: `lights.json` (the book), `smart/ID.json` (how a disk was). Each
//! is replaced whole, so a crash leaves the old one or the new one. The book is stored before a
//! light goes on and after one has gone off, so that none stays on that nobody remembers.

#![forbid(unsafe_code)]

mod book;
pub mod buses;
mod history;
mod lights;
mod power;
mod smart;
mod smartctl;
mod sysfs;
#[cfg(test)]
mod tree;

pub use book::{Book, Failed, Remembered};
pub use device::private::FileError;
pub use history::{History, bad_sectors, is_testing};
pub use lights::{Lamp, Lamps, Light};
pub use smartctl::{Answer, Smartctl};
pub use sysfs::{Disk, Sysfs, order};

/// Decodes bytes as what `smartctl` prints of a disk, and of a test that is to begin: for fuzzers.
#[doc(hidden)]
pub fn decode_for_fuzzing(data: &[u8]) {
    let _ = smart::understand(data, 1_700_000_000);
    let _ = smart::refusal(data);
}
