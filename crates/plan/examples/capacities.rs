//! Lists random layouts with the bytes that the planner says they have, one a line: layout, bytes
//! of a disk, ashift, SIZE of `zpool list`, USED and AVAIL of `zfs list` together.
//!
//! `cargo run -p plan --example capacities -- COUNT SEED MOST_DISKS`: what tests compare with pools
//! that are made of sparse files.

use plan::Layout;
use plan::capacity::Capacity;

/// A generator that is good enough to choose layouts (splitmix64).
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % bound
    }

    fn layout(&mut self) -> Layout {
        let vdevs = 1 + self.below(4);
        let parity = 1 + self.below(3);
        match self.below(5) {
            0 => Layout::Stripe { disks: vdevs },
            1 => Layout::Mirror {
                vdevs,
                ways: 2 + self.below(3),
            },
            2 | 3 => Layout::Raidz {
                parity,
                vdevs,
                disks: parity + 1 + self.below(12),
            },
            _ => {
                let (data, spares) = (1 + self.below(8), self.below(3));
                Layout::Draid {
                    parity,
                    data,
                    vdevs: 1 + self.below(2),
                    children: (parity + data + spares + self.below(10)).max(2),
                    spares,
                }
            }
        }
    }
}

fn main() {
    let words: Vec<u64> = std::env::args()
        .skip(1)
        .filter_map(|word| word.parse().ok())
        .collect();
    let word = |index: usize, usual| words.get(index).copied().unwrap_or(usual);
    let (count, most_disks) = (word(0, 200), word(2, 24));
    let mut random = Random(word(1, 1));
    let mut listed = 0;
    while listed < count {
        let layout = random.layout();
        // From 256 MiB to 16 TiB, every power of two as often as the others, and odd.
        let power = 28 + random.below(16);
        let disk_bytes = (1 << power) + random.below(1 << power);
        let ashift = [9, 12, 13][random.below(3) as usize];
        if layout.disks() > most_disks {
            continue;
        }
        let Ok(capacity) = Capacity::of(layout, disk_bytes, ashift) else {
            continue;
        };
        let (raw, usable) = (capacity.raw_bytes, capacity.usable_bytes);
        println!("{layout} {disk_bytes} {ashift} {raw} {usable}");
        listed += 1;
    }
}
