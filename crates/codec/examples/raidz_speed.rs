//! RAID-Z arithmetic measured as `raidz_test -B` measures it (cmd/raidz_test/raidz_bench.c), and
//! printed in its columns: the same operations on the same sizes of block, `ashift` 12, 8 data
//! columns in page-aligned memory, each repeated until as many bytes are through.
//!
//! `cargo run --release -p codec --example raidz_speed [NAME...]` measures what everybody calls, or
//! the implementations named, or those that there are: `all`. `bench/raidz.sh` compares the two
//! programs.

use std::hint::black_box;
use std::time::Instant;

use codec::raidz::{self, Implementation};

const DATA_COLUMNS: usize = 8;
const SECTOR_SHIFT: usize = 12;
const SHIFTS: std::ops::RangeInclusive<usize> = SECTOR_SHIFT..=24;
/// What goes through one measured operation, in bytes of blocks.
const GENERATE_BYTES: usize = 1 << 32;
const RECONSTRUCT_BYTES: usize = 1 << 29;
/// Each reconstruction, by the parity that it uses, and what is lost then of P, Q and R.
const RECONSTRUCTIONS: [(&str, &[usize], usize); 7] = [
    ("rec_p", &[1, 2], 1),
    ("rec_q", &[0, 2], 1),
    ("rec_r", &[0, 1], 1),
    ("rec_pq", &[2], 2),
    ("rec_pr", &[1], 2),
    ("rec_qr", &[0], 2),
    ("rec_pqr", &[], 3),
];

/// Memory from the beginning of a page on.
struct Pages {
    memory: Vec<u8>,
    start: usize,
    length: usize,
}

impl Pages {
    fn noise(length: usize) -> Self {
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let memory: Vec<u8> = (0..length + (1 << SECTOR_SHIFT))
            .map(|_| {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                (state >> 24) as u8
            })
            .collect();
        let start = memory.as_ptr().align_offset(1 << SECTOR_SHIFT);
        Self {
            memory,
            start,
            length,
        }
    }

    fn get(&self) -> &[u8] {
        &self.memory[self.start..][..self.length]
    }

    fn get_mut(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..][..self.length]
    }
}

/// A block's data columns.
fn columns(block: &[u8]) -> Vec<&[u8]> {
    let sectors = block.len() >> SECTOR_SHIFT;
    let mut rest = block;
    (0..DATA_COLUMNS.min(sectors))
        .map(|index| {
            let long = usize::from(index < sectors % DATA_COLUMNS);
            let (column, after) = rest.split_at((sectors / DATA_COLUMNS + long) << SECTOR_SHIFT);
            rest = after;
            column
        })
        .collect()
}

/// Repeats `work` on blocks of `size` bytes, and prints one line.
fn measure(
    implementation: &str,
    operation: &str,
    column_count: usize,
    size: usize,
    total: usize,
    mut work: impl FnMut(),
) {
    let times = total / size;
    let start = Instant::now();
    for _ in 0..times {
        work();
    }
    let seconds = start.elapsed().as_secs_f64();
    let per_disk = (times * (size / DATA_COLUMNS)) as f64 / seconds / f64::from(1 << 20);
    let all = per_disk * column_count as f64;
    println!(
        "{implementation:>10}, {operation:>8}, {DATA_COLUMNS}, {size:>10}, {per_disk:.6}, \
         {all:.6}, {times}"
    );
}

fn generate(implementation: Option<&Implementation>, name: &str, block: &[u8]) {
    for (parity_count, operation) in [(1, "gen_p"), (2, "gen_pq"), (3, "gen_pqr")] {
        for shift in SHIFTS {
            let data = columns(&block[..1 << shift]);
            let mut parity: Vec<Pages> = (0..parity_count)
                .map(|_| Pages::noise(data[0].len()))
                .collect();
            let mut room: Vec<&mut [u8]> = parity.iter_mut().map(Pages::get_mut).collect();
            let column_count = DATA_COLUMNS + parity_count;
            measure(
                name,
                operation,
                column_count,
                1 << shift,
                GENERATE_BYTES,
                || {
                    let data = black_box(&data[..]);
                    let done = match implementation {
                        Some(implementation) => implementation.generate(data, &mut room),
                        None => raidz::generate(data, &mut room),
                    };
                    black_box(done).expect("a row");
                },
            );
        }
    }
}

fn reconstruct(implementation: Option<&Implementation>, name: &str, block: &[u8]) {
    for (operation, lost_parity, lost_data) in RECONSTRUCTIONS {
        for shift in SHIFTS.filter(|shift| (1 << shift) / DATA_COLUMNS >= 1 << SECTOR_SHIFT) {
            let data = columns(&block[..1 << shift]);
            let mut parity: Vec<Pages> = (0..3).map(|_| Pages::noise(data[0].len())).collect();
            let mut room: Vec<&mut [u8]> = parity.iter_mut().map(Pages::get_mut).collect();
            raidz::generate(&data, &mut room).expect("a row");
            let row: Vec<Option<&[u8]>> = parity
                .iter()
                .enumerate()
                .map(|(index, pages)| (!lost_parity.contains(&index)).then_some(pages.get()))
                .chain(
                    data.iter()
                        .enumerate()
                        .map(|(index, column)| (index >= lost_data).then_some(*column)),
                )
                .collect();
            let mut found: Vec<Pages> = (0..lost_data)
                .map(|_| Pages::noise(data[0].len()))
                .collect();
            let mut missing: Vec<(usize, &mut [u8])> = found
                .iter_mut()
                .enumerate()
                .map(|(index, pages)| (3 + index, pages.get_mut()))
                .collect();
            let column_count = DATA_COLUMNS + 3;
            measure(
                name,
                operation,
                column_count,
                1 << shift,
                RECONSTRUCT_BYTES,
                || {
                    let row = black_box(&row[..]);
                    let done = match implementation {
                        Some(implementation) => {
                            implementation.reconstruct_into(3, row, &mut missing)
                        }
                        None => raidz::reconstruct_into(3, row, &mut missing),
                    };
                    black_box(done).expect("enough parity");
                },
            );
            for (pages, column) in found.iter().zip(&data) {
                assert!(pages.get() == *column, "{operation} gave something else");
            }
        }
    }
}

fn main() {
    let block = Pages::noise(1 << SHIFTS.end());
    let names: Vec<String> = std::env::args().skip(1).collect();
    println!("impl, math, dcols, iosize, disk_bw, total_bw, iter");
    if names.is_empty() {
        generate(None, "millpond", block.get());
        reconstruct(None, "millpond", block.get());
    }
    for implementation in raidz::implementations() {
        let name = implementation.name();
        if names.iter().any(|other| other == name || other == "all") {
            generate(Some(&implementation), name, block.get());
            reconstruct(Some(&implementation), name, block.get());
        }
    }
}
