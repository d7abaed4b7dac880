//! What is worth saying about vdevs and volumes that are about to be made (`zpool create`,
//! `zpool add`, `zfs create -V`).

use std::collections::BTreeSet;

use crate::sizes::{cache_memory, volume_cost};
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

/// Blocks with less data than this in what they take are told of, where others have more.
const POOR: f64 = 0.8;

/// Blocks of `block_bytes` that take much more on a layout than bigger ones would, in sectors of
/// 2^`ashift` bytes.
pub fn small_blocks(layout: Layout, ashift: u32, block_bytes: u64) -> Option<Note> {
    let efficiency = |bytes| volume_cost(layout, ashift, 1 << 30, bytes).efficiency;
    let volume = volume_cost(layout, ashift, 1 << 30, block_bytes);
    let better_block_bytes = volume.better_block_bytes;
    let is_poor = volume.efficiency < POOR * efficiency(better_block_bytes);
    is_poor.then_some(Note::SmallBlocks {
        layout,
        block_bytes,
        efficiency: volume.efficiency,
        better_block_bytes,
    })
}

/// A volume of `volume_bytes` in blocks of `block_bytes` that will cost much more on one of the
/// pool's vdevs, in sectors of 2^ashift bytes, than bigger blocks would; told for the vdev on which
/// it costs most.
pub fn look_at_volume(
    vdevs: &[(Layout, u32)],
    volume_bytes: u64,
    block_bytes: u64,
) -> Option<Note> {
    let cost = |(layout, ashift): (Layout, u32)| {
        let Some(Note::SmallBlocks {
            better_block_bytes, ..
        }) = small_blocks(layout, ashift, block_bytes)
        else {
            return None;
        };
        let of = |bytes| volume_cost(layout, ashift, volume_bytes, bytes);
        Some(Note::SmallVolume {
            layout,
            volume_bytes,
            block_bytes,
            on_disks_bytes: of(block_bytes).on_disks_bytes,
            counted_bytes: of(block_bytes).counted_bytes,
            better_block_bytes,
            better_on_disks_bytes: of(better_block_bytes).on_disks_bytes,
        })
    };
    let on_disks = |note: &Note| match note {
        Note::SmallVolume { on_disks_bytes, .. } => *on_disks_bytes,
        _ => 0,
    };
    let parity = vdevs.iter().filter(|(layout, _)| layout.parity() > 0);
    parity.filter_map(|vdev| cost(*vdev)).max_by_key(on_disks)
}

/// Cache devices of `device_bytes` together whose index takes more than an eighth of the memory
/// when they are full of blocks of `block_bytes`.
pub fn look_at_cache(device_bytes: u64, block_bytes: u64, memory_bytes: u64) -> Option<Note> {
    let index_bytes = cache_memory(device_bytes, block_bytes).bytes;
    (index_bytes > memory_bytes / 8).then_some(Note::CacheMemory {
        device_bytes,
        index_bytes,
        memory_bytes,
    })
}
