//! Measures a pool's reading side without a mount in the way: `pool_speed WHAT DIRECTORY [MORE]`.
//!
//! * `make DIR MEGABYTES`: a pool `bench` in the image `DIR/d0.img`: a file of half that size, many
//!   small ones.
//! * `scrub DIR`: verifies the pool there; prints bytes and seconds.
//! * `read DIR DATASET PATH`: reads a file from its begin to its end in pieces of 1 MiB; prints
//!   bytes and seconds.
//! * `raw FILE BYTES`: the same of so much of any file, by plain reads.

use std::io::Read;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use device::World;
use filesystem::{Caller, Filesystem, ZplInit};
use pool::{
    CreateSpec, FeatureChoice, HostIdentity, ImportSpec, LeafSpec, Pool, ScanSpec, ScrubCommand,
    VdevClass, VdevLayout, VdevSpec,
};

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

const READ_BYTES: usize = 1 << 20;

fn host() -> HostIdentity {
    HostIdentity {
        hostid: 0,
        hostname: "bench".into(),
    }
}

async fn import(world: &World, dir: &str) -> Outcome<Arc<Pool>> {
    let spec = ScanSpec {
        paths: vec![dir.to_owned()],
        ..ScanSpec::default()
    };
    let found = pool::scan(world, &spec).await?.pop();
    let mut spec = ImportSpec::new(found.ok_or("no pool there")?, host());
    spec.read_only = true;
    Ok(Pool::import(world, spec).await?)
}

/// Bytes that do not compress.
fn noise(seed: u64, length: usize) -> Bytes {
    let mut state = seed | 1;
    let mut out = Vec::with_capacity(length + 8);
    while out.len() < length {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        out.extend_from_slice(&state.to_le_bytes());
    }
    out.truncate(length);
    out.into()
}

async fn make(world: &World, dir: &str, megabytes: u64) -> Outcome<()> {
    let path = Path::new(dir).join("d0.img");
    std::fs::File::create(&path)?.set_len((megabytes << 20) * 3 / 2 + (256 << 20))?;
    let leaf = LeafSpec {
        path: path.to_string_lossy().into_owned(),
        is_file: true,
    };
    let spec = CreateSpec {
        name: "bench".into(),
        vdevs: vec![VdevSpec {
            layout: VdevLayout::Leaf(leaf),
            class: VdevClass::Normal,
        }],
        properties: vec![("ashift".into(), "12".into())],
        features: FeatureChoice::All,
        root_properties: Vec::new(),
        root_init: Arc::new(ZplInit::new()),
        altroot: None,
        force: false,
        host: host(),
        events: None,
        cache: None,
    };
    let pool = Pool::create(world, spec).await?;
    let dataset = pool.dsl().open_dataset("bench").await?;
    let filesystem = Filesystem::open(dataset, world.clone()).await?;
    let half = (megabytes << 20) / 2;
    let file = filesystem
        .create(filesystem.root(), b"big", 0o644, Caller::ROOT)
        .await?;
    let mut at = 0;
    while at < half {
        let data = noise(at.wrapping_mul(0x9e37_79b9_7f4a_7c15), READ_BYTES);
        filesystem
            .write(file.ino, at, data, false, Caller::ROOT)
            .await?;
        at += READ_BYTES as u64;
    }
    let (mut written, mut count) = (0, 0u64);
    let mut directory = filesystem.root();
    while written < half {
        if count.is_multiple_of(500) {
            let name = format!("d{count}");
            directory = filesystem
                .make_directory(filesystem.root(), name.as_bytes(), 0o755, Caller::ROOT)
                .await?
                .ino;
        }
        // 8 KiB to 1 MiB.
        let length = 8192usize << (count % 8);
        let name = format!("f{count}");
        let file = filesystem
            .create(directory, name.as_bytes(), 0o644, Caller::ROOT)
            .await?;
        let data = noise(count + 77, length);
        filesystem
            .write(file.ino, 0, data, false, Caller::ROOT)
            .await?;
        written += length as u64;
        count += 1;
    }
    filesystem.close().await?;
    drop(filesystem);
    pool.export(false).await?;
    println!("{count} files");
    Ok(())
}

fn report(bytes: u64, begin: Instant) {
    let seconds = begin.elapsed().as_secs_f64();
    println!(
        "{bytes} bytes {seconds:.3} s {:.0} MB/s",
        bytes as f64 / seconds / 1e6
    );
}

async fn scrub(world: &World, dir: &str) -> Outcome<()> {
    let pool = import(world, dir).await?;
    let begin = Instant::now();
    pool.scans().scrub(ScrubCommand::Start).await?;
    pool.scans().wait_for_scrub(true).await;
    let numbers = pool.scans().scrub_numbers().ok_or("no scrub")?;
    report(numbers.verified_bytes, begin);
    println!("{numbers:?}");
    pool.export(false).await?;
    Ok(())
}

async fn read(world: &World, dir: &str, dataset: &str, path: &str) -> Outcome<()> {
    let pool = import(world, dir).await?;
    let dataset = pool.dsl().open_dataset(dataset).await?;
    let filesystem = Filesystem::open(dataset, world.clone()).await?;
    let mut ino = filesystem.root();
    for name in path.split('/').filter(|name| !name.is_empty()) {
        ino = filesystem.lookup(ino, name.as_bytes()).await?.ino;
    }
    let begin = Instant::now();
    let mut at = 0;
    loop {
        let parts = filesystem.read(ino, at, READ_BYTES).await?;
        let length: usize = parts.iter().map(Bytes::len).sum();
        if length == 0 {
            break;
        }
        at += length as u64;
    }
    report(at, begin);
    filesystem.close().await?;
    drop(filesystem);
    pool.export(false).await?;
    Ok(())
}

fn raw(path: &str, limit: u64) -> Outcome<()> {
    let mut file = std::fs::File::open(path)?.take(limit);
    let mut buffer = vec![0; READ_BYTES];
    let begin = Instant::now();
    let mut total = 0;
    loop {
        let count = file.read(&mut buffer)?;
        if count == 0 {
            break;
        }
        total += count as u64;
    }
    report(total, begin);
    Ok(())
}

#[tokio::main]
async fn main() -> Outcome<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let threads = std::thread::available_parallelism().map_or(2, usize::from);
    let world = World::system(threads);
    match words.as_slice() {
        ["make", dir, megabytes] => make(&world, dir, megabytes.parse()?).await,
        ["scrub", dir] => scrub(&world, dir).await,
        ["read", dir, dataset, path] => read(&world, dir, dataset, path).await,
        ["raw", file, bytes] => raw(file, bytes.parse()?),
        _ => Err(
            "usage: pool_speed make DIR MEGABYTES | scrub DIR | read DIR DATASET PATH | raw FILE \
             BYTES"
                .into(),
        ),
    }
}
