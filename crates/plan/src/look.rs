//! What is worth saying about vdevs that are about to be made (`zpool create`, `zpool add`).

use std::collections::BTreeSet;

use crate::{Layout, Note};

/// A vdev that holds data: one that is about to be made, or one of the pool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Vdev {
    /// Its layout, with one vdev.
    pub layout: Layout,
    /// Bytes of each of its disks.
    pub disks_bytes: Vec<u64>,
    /// Bytes of the biggest sector that its disks have, physically.
    pub sector_bytes: u64,
}

impl Vdev {
    fn smallest(&self) -> u64 {
        self.disks_bytes.iter().copied().min().unwrap_or(0)
    }

    /// Bytes that are not used since another disk of the vdev is smaller.
    fn unused_bytes(&self) -> u64 {
        let beyond = |bytes: &u64| bytes - self.smallest();
        self.disks_bytes.iter().map(beyond).sum()
    }
}

/// Vdevs whose smallest disks differ by more than this part of the bigger one fill unevenly.
const ALIKE: f64 = 0.05;

/// What is worth saying about new vdevs in sectors of 2^`ashift` bytes, beside those that the pool
/// has: sectors smaller than the disks', disks of which a part is not used, and vdevs that differ
/// in what may fail or in size.
pub fn look_at(new: &[Vdev], pool: &[Vdev], ashift: u32) -> Vec<Note> {
    let mut notes = Vec::new();
    let native_bytes = new.iter().map(|vdev| vdev.sector_bytes).max().unwrap_or(0);
    let configured_bytes = 1u64.checked_shl(ashift).unwrap_or(u64::MAX);
    if configured_bytes < native_bytes {
        notes.push(Note::SmallSectors {
            configured_bytes,
            native_bytes,
        });
    }
    for vdev in new {
        let unused_bytes = vdev.unused_bytes();
        if unused_bytes as f64 > ALIKE * vdev.smallest() as f64 {
            notes.push(Note::UnequalDisks {
                layout: vdev.layout,
                unused_bytes,
            });
        }
    }
    let all = || pool.iter().chain(new);
    let may_fail: BTreeSet<u64> = all().map(|vdev| vdev.layout.may_fail()).collect();
    if may_fail.len() > 1 {
        let weakest = all().min_by_key(|vdev| vdev.layout.may_fail());
        notes.extend(weakest.map(|vdev| Note::WeakestVdev {
            layout: vdev.layout,
            may_fail: vdev.layout.may_fail(),
        }));
    }
    let data_bytes = |vdev: &Vdev| {
        vdev.smallest() as f64 * vdev.layout.data_disks_of_vdev() * vdev.layout.vdevs() as f64
    };
    let sizes = || all().map(data_bytes);
    let (least, most) = (
        sizes().fold(f64::MAX, f64::min),
        sizes().fold(0.0, f64::max),
    );
    if most - least > ALIKE * most {
        notes.push(Note::UnequalVdevs {
            smallest_bytes: least as u64,
            biggest_bytes: most as u64,
        });
    }
    notes
}
