//! A block volume on a dataset: what OpenZFS calls a ZVOL.
//!
//! On disk a volume is an object set with two objects: 1 holds the data, in blocks of
//! `volblocksize`; 2 is a ZAP whose entry `size` is the volume's size in bytes (`zvol_create_cb`,
//! module/zfs/zvol.c). [`ZvolInit`] makes them, [`Volume`] reads and writes.
//!
//! # Locks, in order
//!
//! The ranges of bytes that an operation is about (readers share); then the open txg
//! (`Dataset::assign`). The intent log is committed after these are gone.
//!
//! # What a crash leaves
//!
//! Writes up to some txg, and after it those that were flushed or durable: they are in the intent
//! log (records `TX_WRITE` and `TX_TRUNCATE` of object 1) and done again when the volume is opened.
//! A write of more than 4 MiB may be there in part.

#![forbid(unsafe_code)]

mod error;
mod init;
mod replay;
mod share;
mod volume;

pub use error::{Result, VolumeError};
pub use init::ZvolInit;
pub use volume::{Extent, Volume};
