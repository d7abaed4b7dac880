//! Rates of the object layer over a device in memory: `cargo run --release -p object --example
//! rates`.

#[path = "../tests/all/common/mod.rs"]
#[allow(dead_code, reason = "only tests use all of it")]
mod common;

use std::time::Instant;

use bytes::Bytes;
use common::{Bed, Dice};
use format::{ObjectType, ObjsetKind};
use object::{NewObject, ObjsetOptions, Zap, ZapCursor, ZapOptions};

fn report(what: &str, count: u64, start: Instant) {
    let seconds = start.elapsed().as_secs_f64();
    println!(
        "{what:<44} {:>10.0} /s {:>8.0} ns",
        count as f64 / seconds,
        seconds * 1e9 / count as f64
    );
}

#[tokio::main]
async fn main() {
    let bed = Bed::with_cache(ObjsetKind::Volume, ObjsetOptions::default(), 1 << 30).await;
    let tx = bed.tx().await;
    let new = NewObject::new(ObjectType::ZVOL).with_block_bytes(16 << 10);
    let volume = bed.set.allocate(&tx, new).await.expect("allocates");
    drop(tx);
    let mut dice = Dice(1);
    let (blocks, chunk) = (16 << 10, Bytes::from(dice.bytes(128 << 10)));
    let start = Instant::now();
    for at in 0..blocks / 8 {
        let tx = bed.tx().await;
        volume
            .write(&tx, at * (128 << 10), chunk.clone())
            .await
            .expect("writes");
    }
    report("write 128K into 16K blocks, in memory", blocks / 8, start);
    let start = Instant::now();
    bed.sync().await;
    report("sync of 16K blocks", blocks, start);
    let start = Instant::now();
    for _ in 0..1_000_000 {
        let at = dice.next(blocks * 4) * 4096;
        assert!(volume.try_read(at, 4096).is_some());
    }
    report("cached 4K random read", 1_000_000, start);
    let start = Instant::now();
    let data = Bytes::from(vec![1u8; 4096]);
    for _ in 0..200_000 {
        let at = dice.next(blocks * 4) * 4096;
        let tx = bed.tx().await;
        volume.write(&tx, at, data.clone()).await.expect("writes");
    }
    report("4K random write into 16K blocks, in memory", 200_000, start);
    let start = Instant::now();
    bed.sync().await;
    report("sync of those blocks", blocks, start);

    let bed = Bed::with_cache(ObjsetKind::Filesystem, ObjsetOptions::default(), 1 << 30).await;
    let tx = bed.tx().await;
    let directory = Zap::create(
        &bed.set,
        &tx,
        ZapOptions::new(ObjectType::DIRECTORY_CONTENTS),
    )
    .await
    .expect("creates");
    drop(tx);
    let count = 1_000_000;
    let start = Instant::now();
    for number in 0..count {
        let tx = bed.tx().await;
        directory
            .add_u64(&tx, format!("file-{number:08}"), number)
            .await
            .expect("adds");
        drop(tx);
        if number % 250_000 == 249_999 {
            bed.sync().await;
        }
    }
    report("add a name to a directory of a million", count, start);
    let start = Instant::now();
    for _ in 0..count {
        let number = dice.next(count);
        assert_eq!(
            directory
                .lookup_u64(format!("file-{number:08}"))
                .await
                .expect("looks up"),
            Some(number)
        );
    }
    report("look up a name in it", count, start);
    let start = Instant::now();
    let (mut cursor, mut seen) = (ZapCursor::START, 0);
    loop {
        let entries = directory.entries(cursor, 1000).await.expect("lists");
        let Some(last) = entries.last() else { break };
        cursor = last.next;
        seen += entries.len() as u64;
    }
    assert_eq!(seen, count);
    report("list it", count, start);
    let start = Instant::now();
    let files = 200_000;
    for _ in 0..files {
        let tx = bed.tx().await;
        let new = NewObject::new(ObjectType::PLAIN_FILE_CONTENTS)
            .with_bonus(ObjectType::SA, vec![0u8; 168]);
        bed.set.allocate(&tx, new).await.expect("allocates");
    }
    report("allocate an object", files, start);
    let start = Instant::now();
    bed.sync().await;
    report("sync of those objects", files, start);
}
