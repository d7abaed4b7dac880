//! What a seed stands for.

use crate::rng::Rng;
use crate::torture::Layout;
use crate::work::WorkOptions;

/// A run.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    /// What decides everything that is left to chance.
    pub seed: u64,
    /// Disks.
    pub layout: Layout,
    /// Size of each disk.
    pub disk_mib: u64,
    /// Sectors of 512 bytes (else 4 KiB).
    pub small_sectors: bool,
    /// How often work begins; in between the power is cut.
    pub cycles: u32,
    /// Of a hundred cycles, in how many the power is cut in the middle.
    pub cut_percent: u64,
    /// What the operator does in each cycle.
    pub steps: u32,
    /// Longest time between two steps of the operator, in milliseconds.
    pub pause_ms_max: u64,
    /// Workers at the same time.
    pub workers: usize,
    /// What each does before it begins anew.
    pub work: WorkOptions,
    /// Blocks that a scan gathers before it reads them.
    pub scan_queue: usize,
    /// Hot spares.
    pub spares: u32,
    /// Reads go elsewhere after so many seconds.
    pub lag_s: u32,
    /// Devices may fail to read. A log's end is then not certain where one did, and imports and
    /// mounts are refused until it reads again or logs are given up (`zpool import -m`).
    pub read_faults: bool,
    /// Have zdb look at the images in the end.
    pub zdb: bool,
}

/// Those that seeds choose from.
const LAYOUTS: [Layout; 11] = [
    Layout::Mirror(2),
    Layout::Raidz(1, 3),
    Layout::Raidz(2, 5),
    Layout::Mirror(3),
    Layout::Classes,
    Layout::Raidz(3, 7),
    Layout::Draid(1, 2, 1, 5),
    Layout::MirrorAndLogs,
    Layout::Draid(2, 2, 2, 7),
    Layout::Raidz(2, 6),
    Layout::Mirrors,
];

impl Plan {
    /// What one seed stands for.
    pub fn of(seed: u64) -> Self {
        let mut rng = Rng::new(seed ^ 0x6661_696c);
        let layout = LAYOUTS[(seed % LAYOUTS.len() as u64) as usize];
        Plan {
            seed,
            layout,
            // OpenZFS opens no dRAID with less space than the least device has.
            disk_mib: match layout {
                Layout::Draid(..) => 128,
                _ => 96,
            },
            small_sectors: rng.percent(40),
            cycles: 1 + rng.below(3) as u32,
            cut_percent: [40, 80][rng.below(2) as usize],
            steps: 15 + rng.below(40) as u32,
            pause_ms_max: [200, 600, 2000][rng.below(3) as usize],
            workers: 1 + rng.below(2) as usize,
            work: WorkOptions {
                steps: 20 + rng.below(40) as usize,
                file_bytes_max: 300 << 10,
                dataset_percent: [4, 10][rng.below(2) as usize],
                sync_percent: [4, 15][rng.below(2) as usize],
                copies: rng.percent(30),
                ..WorkOptions::default()
            },
            scan_queue: [8, 64, 1 << 18][rng.below(3) as usize],
            read_faults: rng.percent(50),
            spares: [0, 0, 1, 2][rng.below(4) as usize],
            lag_s: [1, 5, 20][rng.below(3) as usize],
            zdb: true,
        }
    }
}
