//! How fast checksums, parity and compression are here: GB/s, and as a ratio to the scalar code.
//!
//! `cargo run --release -p codec --example codec_speed`

use std::hint::black_box;
use std::time::{Duration, Instant};

use codec::checksum::{self, Salt};
use codec::compress::{self, ZstdLevel};
use codec::raidz;
use format::{Checksum, Compression, Endian};

/// The best rate of a few rounds, in GB/s, of work on `bytes` bytes.
fn rate(bytes: usize, mut work: impl FnMut()) -> f64 {
    let mut best = Duration::MAX;
    let began = Instant::now();
    while began.elapsed() < Duration::from_millis(250) {
        let start = Instant::now();
        work();
        best = best.min(start.elapsed());
    }
    bytes as f64 / best.as_secs_f64() / 1e9
}

fn noise(length: usize, seed: u64) -> Vec<u8> {
    let mut state = seed | 1;
    (0..length)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 24) as u8
        })
        .collect()
}

fn main() {
    let block = noise(128 << 10, 1);
    println!("fletcher4 of 128 KiB");
    let mut scalar = 0.0;
    for (name, sum) in checksum::fletcher4_implementations() {
        for endian in [Endian::Little, Endian::Big] {
            let speed = rate(block.len(), || {
                black_box(sum(endian, black_box(&block)));
            });
            if scalar == 0.0 {
                scalar = speed;
            }
            println!(
                "  {name:12} {endian:6?} {speed:7.2} GB/s  x{:.1}",
                speed / scalar
            );
        }
    }

    println!("other checksums of 128 KiB");
    let salt = Salt::new([1; 32]);
    for kind in [
        Checksum::Fletcher2,
        Checksum::Sha256,
        Checksum::Sha512,
        Checksum::Skein,
        Checksum::EdonR,
        Checksum::Blake3,
    ] {
        let speed = rate(block.len(), || {
            let _ = black_box(checksum::compute(
                kind,
                Endian::Little,
                black_box(&block),
                Some(&salt),
            ));
        });
        println!("  {kind:19} {speed:7.2} GB/s");
    }

    println!("RAID-Z, 8 data columns of 128 KiB (rate counts data)");
    let data: Vec<Vec<u8>> = (0..8).map(|column| noise(128 << 10, column + 5)).collect();
    let columns: Vec<&[u8]> = data.iter().map(Vec::as_slice).collect();
    let total: usize = data.iter().map(Vec::len).sum();
    for parity_count in 1..=3 {
        let mut parity = vec![vec![0; 128 << 10]; parity_count];
        let mut scalar = 0.0;
        for implementation in raidz::implementations() {
            let speed = rate(total, || {
                let mut room: Vec<&mut [u8]> = parity.iter_mut().map(Vec::as_mut_slice).collect();
                let _ = black_box(implementation.generate(black_box(&columns), &mut room));
            });
            if scalar == 0.0 {
                scalar = speed;
            }
            let name = implementation.name();
            println!(
                "  generate {parity_count}    {name:12} {speed:7.2} GB/s  x{:.1}",
                speed / scalar
            );
        }
        let mut scalar = 0.0;
        for implementation in raidz::implementations() {
            let row: Vec<Option<&[u8]>> = parity
                .iter()
                .map(|column| Some(column.as_slice()))
                .chain(
                    columns
                        .iter()
                        .enumerate()
                        .map(|(index, column)| (index >= parity_count).then_some(*column)),
                )
                .collect();
            let mut rooms = vec![vec![0; 128 << 10]; parity_count];
            let speed = rate(total, || {
                let mut missing: Vec<(usize, &mut [u8])> = rooms
                    .iter_mut()
                    .enumerate()
                    .map(|(index, room)| (parity_count + index, room.as_mut_slice()))
                    .collect();
                let _ =
                    black_box(implementation.reconstruct_into(parity_count, &row, &mut missing));
            });
            if scalar == 0.0 {
                scalar = speed;
            }
            let name = implementation.name();
            println!(
                "  reconstruct {parity_count} {name:12} {speed:7.2} GB/s  x{:.1}",
                speed / scalar
            );
        }
    }

    println!("compression of 128 KiB of half-random text");
    let words: Vec<u8> = noise(128 << 10, 9)
        .iter()
        .map(|byte| b'a' + byte % 6)
        .collect();
    for kind in [
        Compression::Lz4,
        Compression::Zstd,
        Compression::Gzip(6),
        Compression::Lzjb,
        Compression::Zle,
    ] {
        let compressed = compress::compress(kind, ZstdLevel::DEFAULT, &words, words.len() + 4096);
        let Ok(Some(compressed)) = compressed else {
            continue;
        };
        let pack = rate(words.len(), || {
            let _ = black_box(compress::compress(
                kind,
                ZstdLevel::DEFAULT,
                black_box(&words),
                words.len() + 4096,
            ));
        });
        let unpack = rate(words.len(), || {
            let _ = black_box(compress::decompress(
                kind,
                black_box(&compressed),
                words.len(),
            ));
        });
        let share = compressed.len() as f64 / words.len() as f64;
        println!("  {kind:12} to {share:.2}  {pack:6.2} GB/s, back {unpack:6.2} GB/s");
    }
}
