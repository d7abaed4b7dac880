//! What the engines give against plain system calls in a loop, on one file, as ratios.
//!
//! `cargo run --release -p device --example device_speed -- PATH [MIB]`: PATH is created, used and
//! removed.

use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use device::{Device, FileDevice, FileOptions, IoEngine, create_sparse_file};

const MIB: usize = 1 << 20;

/// Runs `count` operations, one after the other in each of `depth` tasks.
async fn in_flight<F>(count: u64, depth: u64, operation: impl Fn(u64) -> F + Send + Sync + 'static)
where
    F: Future<Output = ()> + Send + 'static,
{
    let mut tasks = tokio::task::JoinSet::new();
    let operation = Arc::new(operation);
    for task in 0..depth {
        let operation = operation.clone();
        tasks.spawn(async move {
            let mut index = task;
            while index < count {
                operation(index).await;
                index += depth;
            }
        });
    }
    while tasks.join_next().await.is_some() {}
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().expect("usage: device_speed PATH [MIB]");
    let mib: usize = arguments
        .next()
        .map_or(1024, |text| text.parse().expect("MIB is a number"));
    create_sparse_file(&path, (mib * MIB) as u64).expect("PATH can be created");

    let runtime = tokio::runtime::Runtime::new().expect("a runtime starts");
    let cases = [
        ("1 MiB", MIB, 16),
        ("128 KiB", 128 << 10, 32),
        ("4 KiB", 4096, 64),
    ];
    for (label, size, depth) in cases {
        let count = ((mib * MIB / size) as u64).min(100_000);
        let total = count as f64 * size as f64 / 1e9;
        // Far apart and in no order.
        let place = move |index: u64| (index * 7919 % count) * size as u64;

        let raw = std::fs::OpenOptions::new()
            .read(true)
            .write(true)
            .open(&path)
            .expect("PATH opens");
        let mut buffer = vec![7; size];
        // Once unmeasured, so that all start with a warm cache.
        for index in 0..count {
            raw.write_all_at(&buffer, place(index)).expect("raw write");
        }
        let start = Instant::now();
        for index in 0..count {
            raw.write_all_at(&buffer, place(index)).expect("raw write");
        }
        let raw_write = total / start.elapsed().as_secs_f64();
        let start = Instant::now();
        for index in 0..count {
            raw.read_exact_at(&mut buffer, place(index))
                .expect("raw read");
        }
        let raw_read = total / start.elapsed().as_secs_f64();
        println!("{label}: raw loop: write {raw_write:.2} GB/s, read {raw_read:.2} GB/s");
        drop(raw);

        for engine in [IoEngine::Blocking, IoEngine::Uring] {
            for direct in [false, true] {
                let options = FileOptions {
                    engine,
                    direct: Some(direct),
                    ..FileOptions::default()
                };
                let Ok(device) = FileDevice::open(path.clone(), &options) else {
                    continue;
                };
                let device = Arc::new(device);
                let data = Bytes::from(vec![7; size]);
                // Twice: the first round brings the page cache back that direct I/O dropped.
                let (mut write, mut read) = (0.0, 0.0);
                for _ in 0..2 {
                    let start = Instant::now();
                    let (target, data) = (device.clone(), data.clone());
                    runtime.block_on(in_flight(count, depth, move |index| {
                        let (device, data) = (target.clone(), data.clone());
                        async move { device.write(place(index), data).await.expect("write") }
                    }));
                    write = total / start.elapsed().as_secs_f64();
                    let start = Instant::now();
                    let source = device.clone();
                    runtime.block_on(in_flight(count, depth, move |index| {
                        let device = source.clone();
                        async move {
                            device.read(place(index), size).await.expect("read");
                        }
                    }));
                    read = total / start.elapsed().as_secs_f64();
                }
                let way = if direct { "direct" } else { "buffered" };
                println!(
                    "  {engine:?} {way}: write {write:.2} GB/s (x{:.2}), read {read:.2} GB/s \
                     (x{:.2})",
                    write / raw_write,
                    read / raw_read
                );
            }
        }
    }
    let _ = std::fs::remove_file(&path);
}
