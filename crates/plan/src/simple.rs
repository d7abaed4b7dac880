//! The model of which everybody has the table in mind: rates as multiples of what one disk does,
//! *y* random accesses and *z* sequential bytes a second.
//!
//! Each vdev of RAID-Z does what one of its disks does at random, since each block is on all of
//! them, and reads and writes at the rate of its data disks. Each disk of a mirror reads for
//! itself; all of them write the same.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Layout;

/// Rates in multiples of one disk's.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "PlanMultiples")]
pub struct Simple {
    /// Random reads, in multiples of a disk's accesses a second (y).
    pub iops_read: f64,
    /// Random writes (y).
    pub iops_write: f64,
    /// Sequential reads, in multiples of a disk's rate (z).
    pub rate_read: f64,
    /// Sequential writes (z).
    pub rate_write: f64,
    /// Data that fits, in bytes: the data disks' sizes as they are sold.
    pub data_bytes: u64,
}

impl Simple {
    /// Of a layout on disks of `disk_bytes`.
    pub fn of(layout: Layout, disk_bytes: u64) -> Self {
        let vdevs = layout.vdevs() as f64;
        let data = vdevs * layout.data_disks_of_vdev();
        let (iops_read, iops_write, rate_read) = match layout {
            Layout::Stripe { .. } | Layout::Raidz { .. } => (vdevs, vdevs, data),
            Layout::Mirror { .. } => (layout.disks() as f64, vdevs, layout.disks() as f64),
            // As many groups as its columns are enough for work at the same time.
            Layout::Draid {
                parity,
                data: data_of_group,
                children,
                spares,
                ..
            } => {
                let groups = (children - spares) as f64 / (parity + data_of_group) as f64;
                (vdevs * groups, vdevs * groups, data)
            }
        };
        Simple {
            iops_read,
            iops_write,
            rate_read,
            rate_write: data,
            data_bytes: (data * disk_bytes as f64) as u64,
        }
    }
}
