//! Goal: what a file's size costs goes by what is in it: files of exabytes with a few blocks are
//! cut, punched and deleted at once; and closing does not wait for those with many. Method: sizes
//! up to the largest, with blocks far apart; freeing them by length would take years.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use device::World;
use filesystem::{Allocate, Filesystem, FsError, SeekTo, SetAttributes};

use crate::common::*;

const LARGEST: u64 = i64::MAX as u64;

async fn resize(fs: &Filesystem, ino: u64, size_bytes: u64) {
    let set = SetAttributes {
        size_bytes: Some(size_bytes),
        ..SetAttributes::default()
    };
    fs.set_attributes(ino, &set, ROOT).await.expect("the size");
}

async fn write(fs: &Filesystem, ino: u64, offset: u64) {
    let data = Bytes::from(vec![7; 5000]);
    fs.write(ino, offset, data, false, ROOT)
        .await
        .expect("a write");
}

/// Where data begins.
async fn places(fs: &Filesystem, ino: u64) -> Vec<u64> {
    let (mut found, mut at) = (Vec::new(), 0);
    while let Ok(data) = fs.seek(ino, at, SeekTo::Data).await {
        found.push(data);
        at = fs.seek(ino, data, SeekTo::Hole).await.expect("a hole");
    }
    found
}

async fn cut_punch_and_delete(synced: bool) {
    let world = World::system(2);
    let image = Image::new(128);
    let pool = create(&world, &image, &[]).await;
    let fs = open(&world, &pool, "tank").await;
    let ino = fs
        .create(fs.root(), b"file", 0o644, ROOT)
        .await
        .unwrap()
        .ino;
    let sync = async || {
        if synced {
            pool.sync().await.expect("sync");
        }
    };
    // Nothing but a size.
    resize(&fs, ino, LARGEST).await;
    sync().await;
    resize(&fs, ino, 0).await;
    // Blocks that are far apart.
    let offsets = [0, 1 << 20, 1 << 40, 1 << 50, 1 << 61, LARGEST - 4999];
    for offset in offsets.into_iter().rev() {
        write(&fs, ino, offset & !4095).await;
    }
    sync().await;
    let block = 128 << 10;
    let blocks = offsets.map(|offset| offset & !(block - 1));
    assert_eq!(places(&fs, ino).await, blocks);
    fs.allocate(
        ino,
        Allocate::PunchHole,
        1 << 39,
        (1 << 60) - (1 << 39),
        ROOT,
    )
    .await
    .expect("a hole");
    assert_eq!(
        places(&fs, ino).await,
        [blocks[0], blocks[1], blocks[4], blocks[5]]
    );
    sync().await;
    resize(&fs, ino, 1 << 62).await;
    assert_eq!(places(&fs, ino).await, [blocks[0], blocks[1], blocks[4]]);
    let data = fs.read(ino, 1 << 61, 5000).await.expect("a read").concat();
    assert_eq!(data, [7; 5000]);
    fs.unlink(fs.root(), b"file").await.expect("unlink");
    // It is freed in the background.
    while fs.attributes(ino).await.is_ok() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    fs.close().await.expect("close");
    pool.export(false).await.expect("export");
    zdb_is_clean(image.path(), "tank");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_of_holes_are_cut_and_deleted_at_once() {
    for synced in [false, true] {
        tokio::time::timeout(Duration::from_secs(120), cut_punch_and_delete(synced))
            .await
            .expect("time goes by size, not by content");
    }
}

/// Waits until a file is shorter than `size`; how long it is.
async fn until_shorter(fs: &Filesystem, ino: u64, size: u64) -> u64 {
    loop {
        let found = fs.attributes(ino).await.expect("the file").size_bytes;
        if found < size {
            return found;
        }
        tokio::task::yield_now().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn closing_does_not_wait_for_the_parts_of_a_long_file() {
    const BLOCKS: u64 = 3000;
    const APART: u64 = 8 << 30;
    let world = World::system(2);
    let image = Image::new(8 << 10);
    let settings = [("recordsize", "1M"), ("compression", "off")];
    let pool = create(&world, &image, &settings).await;
    let fs = open(&world, &pool, "tank").await;
    let root = fs.root();
    let block = fs.create(root, b"block", 0o644, ROOT).await.unwrap().ino;
    let data = Bytes::from(vec![7; 1 << 20]);
    fs.write(block, 0, data, false, ROOT).await.expect("write");
    pool.sync().await.expect("sync");
    // Each block is a part of its own; they are all the same one.
    let long = fs.create(root, b"long", 0o644, ROOT).await.unwrap().ino;
    for number in 0..BLOCKS {
        let copied = fs.copy_range(block, 0, long, number * APART, 1 << 20, ROOT);
        assert_eq!(copied.await.expect("copy"), 1 << 20);
    }
    pool.sync().await.expect("sync");
    let size = fs.attributes(long).await.expect("attributes").size_bytes;

    // A user cuts it.
    let cutting = tokio::spawn({
        let fs = Arc::clone(&fs);
        let set = SetAttributes {
            size_bytes: Some(0),
            ..SetAttributes::default()
        };
        async move { fs.set_attributes(long, &set, ROOT).await }
    });
    until_shorter(&fs, long, size).await;
    fs.close().await.expect("close");
    let cut = cutting.await.expect("no panic");
    assert!(matches!(cut, Err(FsError::Closed)), "{cut:?}");
    let fs = open(&world, &pool, "tank").await;
    let size = until_shorter(&fs, long, size).await;
    assert!(size > BLOCKS / 2 * APART, "it was cut to {size}");

    // It is deleted, in the background.
    fs.unlink(root, b"long").await.expect("unlink");
    until_shorter(&fs, long, size).await;
    fs.close().await.expect("close");
    let dataset = pool.dsl().open_dataset("tank").await.expect("open");
    let object = dataset.objset().hold(format::ObjectId::new(long)).await;
    assert!(object.is_ok(), "it was freed to its start");
    drop((object, dataset));
    let fs = open(&world, &pool, "tank").await;
    while fs.attributes(long).await.is_ok() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    fs.close().await.expect("close");
    pool.export(false).await.expect("export");
    zdb_is_clean(image.path(), "tank");
}
