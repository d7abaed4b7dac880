//! Operations per second over several devices at once, as a pool of many disks asks for them, and
//! what one costs this process. The latter depends less on what else the machine does.
//!
//! `cargo run --release -p device --example device_spread -- SECONDS DEVICE...`: what is on the
//! devices is overwritten. Run it by turns with another build: the machine's load changes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use device::{Device, FileDevice, FileOptions, IoEngine};

const CASES: [(usize, usize); 4] = [(4096, 1), (4096, 64), (128 << 10, 32), (1 << 20, 16)];

fn main() {
    let mut arguments = std::env::args().skip(1);
    let usage = "usage: device_spread SECONDS DEVICE...";
    let seconds: f64 = arguments
        .next()
        .and_then(|text| text.parse().ok())
        .expect(usage);
    let options = FileOptions {
        engine: IoEngine::Uring,
        direct: Some(true),
        ..FileOptions::default()
    };
    let devices: Arc<Vec<FileDevice>> = Arc::new(
        arguments
            .map(|path| FileDevice::open(path, &options).expect("the device opens"))
            .collect(),
    );
    assert!(!devices.is_empty(), "{usage}");
    let runtime = tokio::runtime::Runtime::new().expect("a runtime starts");
    for (size, depth) in CASES {
        for writes in [true, false] {
            let done = Arc::new(AtomicU64::new(0));
            let (start, cpu_before) = (Instant::now(), cpu_us());
            let end = start + Duration::from_secs_f64(seconds);
            runtime.block_on(async {
                let mut tasks = tokio::task::JoinSet::new();
                for task in 0..depth as u64 {
                    let (devices, done) = (devices.clone(), done.clone());
                    let data = FileDevice::aligned_copy(&vec![7; size]);
                    tasks.spawn(run(devices, done, data, task, writes, end));
                }
                while tasks.join_next().await.is_some() {}
            });
            let count = done.load(Ordering::Relaxed) as f64;
            let rate = count / start.elapsed().as_secs_f64();
            let cost = (cpu_us() - cpu_before) / count;
            let what = if writes { "write" } else { "read" };
            println!(
                "{size:>8} x{depth:<3} {what:<5} {rate:>10.0} per second, {cost:>8.2} us of CPU"
            );
        }
    }
}

/// The CPU time that this process has used, in microseconds.
fn cpu_us() -> f64 {
    const TICK_US: f64 = 10_000.0;
    let stat = std::fs::read_to_string("/proc/self/stat").expect("proc is mounted");
    // Behind the name, which may have spaces: fields 3 and so on of proc_pid_stat(5).
    let fields = stat.rsplit(')').next().expect("fields").split_whitespace();
    let ticks = fields.skip(11).take(2);
    ticks
        .map(|text| text.parse::<f64>().expect("a number"))
        .sum::<f64>()
        * TICK_US
}

/// One operation after the other, each on the next device at some place, until `end`.
async fn run(
    devices: Arc<Vec<FileDevice>>,
    done: Arc<AtomicU64>,
    data: Bytes,
    task: u64,
    writes: bool,
    end: Instant,
) {
    let mut turn = task;
    while Instant::now() < end {
        let device = &devices[turn as usize % devices.len()];
        let places = device.size_bytes() / data.len() as u64;
        let offset = turn.wrapping_mul(0x9e37_79b9_7f4a_7c15) % places * data.len() as u64;
        match writes {
            true => device.write(offset, data.clone()).await.expect("written"),
            false => drop(device.read(offset, data.len()).await.expect("read")),
        }
        done.fetch_add(1, Ordering::Relaxed);
        turn += 1;
    }
}
