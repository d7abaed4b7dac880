//! Goal: synchronous writes into a pool that is getting full end with "no space", as others do:
//! what the intent log holds leaves room for what is to be written, and for the replay after a
//! power cut. Method: pools of several sizes and writers, until nobody can write any more; then a
//! copy of the disk as it is at that moment is imported.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use device::World;
use filesystem::{Filesystem, FsError};

use crate::common::*;

/// Who writes nothing for so long waits for a txg.
const PAUSE: Duration = Duration::from_secs(1);

/// Writes synchronously until there is no room, and counts what was acknowledged.
async fn write_until_full(fs: Arc<Filesystem>, ino: u64, length: usize, done: Arc<AtomicU64>) {
    let mut refused = 0;
    while refused < 3 {
        let offset = done.load(Ordering::Acquire);
        let data = Bytes::from(vec![1 + (offset / length as u64 % 250) as u8; length]);
        match fs.write(ino, offset, data, true, ROOT).await {
            Ok(()) => {
                done.fetch_add(length as u64, Ordering::Release);
            }
            Err(FsError::NoSpace) => refused += 1,
            Err(error) => panic!("not full, but: {error}"),
        }
    }
}

async fn fill(mib: u64, before_mib: usize, lengths: &[usize]) {
    let world = World::system(2);
    let image = Image::new(mib);
    let pool = create(&world, &image, &[("compression", "off")]).await;
    let fs = open(&world, &pool, "tank").await;
    let create_file = async |name: &[u8]| {
        let made = fs.create(fs.root(), name, 0o644, ROOT).await;
        made.expect("a file").ino
    };
    let before = create_file(b"before").await;
    for part in 0..before_mib {
        let data = Bytes::from(vec![part as u8 | 1; 1 << 20]);
        fs.write(before, (part as u64) << 20, data, false, ROOT)
            .await
            .expect("there is room for that");
    }
    pool.sync().await.expect("sync");
    let mut writers = Vec::new();
    for (index, length) in lengths.iter().enumerate() {
        let ino = create_file(format!("w{index}").as_bytes()).await;
        let done = Arc::new(AtomicU64::new(0));
        let writing = write_until_full(fs.clone(), ino, *length, done.clone());
        writers.push((ino, *length, done, tokio::spawn(writing)));
    }
    // A slow txg, so that as much as can be is in the log and under way.
    let dataset = pool.dsl().open_dataset("tank").await.expect("open");
    let held = dataset.assign(dataset::DirtyEstimate::free()).await;
    let written = || -> u64 {
        let counts = writers.iter().map(|(_, _, done, _)| done);
        counts.map(|done| done.load(Ordering::Acquire)).sum()
    };
    let mut before_pause = u64::MAX;
    while before_pause != written() {
        before_pause = written();
        tokio::time::sleep(PAUSE).await;
    }
    drop((held.expect("a transaction"), dataset));
    let mut acknowledged = Vec::new();
    for (ino, length, done, task) in writers {
        task.await.expect("it ends without room");
        acknowledged.push((ino, length, done.load(Ordering::Acquire)));
    }
    // As a power cut leaves it: with whatever the log has.
    let image_cut = cut(&image);
    fs.unlink(fs.root(), b"before").await.expect("deletes work");
    fs.close().await.expect("close");
    pool.export(false).await.expect("the pool never stopped");
    zdb_is_clean(image.path(), "tank");

    let pool = import_after_cut(&world, image_cut.path()).await;
    let fs = open(&world, &pool, "tank").await;
    for (ino, length, done) in acknowledged {
        for offset in (0..done).step_by(length) {
            let data = fs.read(ino, offset, length).await.expect("a read").concat();
            let expected = 1 + (offset / length as u64 % 250) as u8;
            assert!(
                data.len() == length && data.iter().all(|byte| *byte == expected),
                "{mib} MiB: what was acknowledged at {offset} of {ino} is not there"
            );
        }
    }
    fs.unlink(fs.root(), b"before").await.expect("deletes work");
    fs.close().await.expect("close");
    pool.export(false).await.expect("export");
    zdb_is_clean(image_cut.path(), "tank");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn synchronous_writes_fill_a_pool_and_do_not_stop_it() {
    fill(200, 0, &[4096]).await;
    fill(256, 20, &[32 << 10, 32 << 10]).await;
    fill(512, 200, &[32 << 10, 8 << 10, 128 << 10]).await;
}
