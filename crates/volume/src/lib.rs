//! A block volume on a dataset: what OpenZFS calls a ZVOL.
//!
//! On disk a volume is an object set with two objects: 1 holds the data, 2 is a ZAP whose entry
//! `size` is the volume's size in bytes (`zvol_create_cb`, module/zfs/zvol.c).

mod error;
mod volume;

pub use error::{Result, VolumeError};
pub use volume::{Extent, Volume};
