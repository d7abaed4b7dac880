//! How long scrubs and rebuilds take, on a pool that has nothing else to do.
//!
//! Scrubs and resilvers sort what they read by its place, so that disks are read in one sequence;
//! a pool of many small blocks in pieces takes longer. All disks of the pool work at the same
//! time, as far as buses let them.

use serde::{Deserialize, Serialize};

use crate::capacity::Capacity;
use crate::hardware::through;
use crate::{Bus, Disks, Layout};

/// Times of passes over a pool.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Passes {
    /// Reading and verifying all that is in use, in seconds.
    pub scrub_seconds: f64,
    /// Until a disk that failed is rebuilt on its spare, in seconds; `None` without redundancy.
    pub rebuild_seconds: Option<f64>,
}

impl Passes {
    /// On a layout of which the part `filled` (0 to 1) is in use.
    pub fn of(
        layout: Layout,
        disks: &Disks,
        capacity: &Capacity,
        buses: &[Bus],
        filled: f64,
    ) -> Self {
        let used_bytes = used_of_disk(layout, capacity, filled);
        let disk_rate = disks.rate as f64;
        // What each of `count` disks gets through the buses, when they all move as much.
        let each = |count: u64, rate_of: fn(&Bus) -> u64| {
            through(buses, count, rate_of).map_or(disk_rate, |(rate, _)| {
                disk_rate.min(rate / count.max(1) as f64)
            })
        };
        let reading = |count| each(count, |bus| bus.read_rate);
        let writing = |count| each(count, |bus| bus.write_rate);
        let others = layout.disks_of_vdev() - 1;
        let rebuild_seconds = match layout {
            Layout::Stripe { .. } => None,
            Layout::Mirror { .. } => Some(used_bytes / reading(1).min(writing(1))),
            Layout::Raidz { .. } => Some(used_bytes / reading(others).min(writing(1))),
            // Each of the others reads its part of the groups that had the disk, and writes its
            // part of the distributed spare (`vdev_rebuild`).
            Layout::Draid { data, spares, .. } if spares > 0 => {
                let moved = used_bytes * (data + 1) as f64 / others as f64;
                Some(moved / reading(others).min(writing(others)))
            }
            Layout::Draid { data, .. } => {
                let read = used_bytes * data as f64 / others as f64;
                Some((read / reading(others)).max(used_bytes / writing(1)))
            }
        };
        Passes {
            scrub_seconds: used_bytes / reading(layout.disks()),
            rebuild_seconds,
        }
    }
}

/// Bytes that are in use on each disk, with parity, when the part `filled` (0 to 1) of the pool is.
/// Distributed spares are spread over all disks: each has a part less.
pub fn used_of_disk(layout: Layout, capacity: &Capacity, filled: f64) -> f64 {
    let copies = match layout {
        Layout::Mirror { ways, .. } => ways,
        _ => 1,
    };
    (capacity.raw_bytes * copies) as f64 / layout.disks() as f64 * filled.clamp(0.0, 1.0)
}
