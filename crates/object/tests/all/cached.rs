//! Goal: `primarycache` means what it says: of a dataset with `none` nothing stays in the cache,
//! with `metadata` no data does, whether it was written, changed in part, read again from an open
//! object set, or found through a root block that was just opened. What is read or written past
//! the cache leaves nothing there, and is the same as what others read. Method: the cache's own
//! figures by kind; nobody else has anything in it.

use std::sync::Arc;

use bytes::Bytes;
use format::{ObjectType, ObjsetKind};
use object::{Cached, NewObject, ObjectSet, ObjsetOptions, WriteProperties, Zap, ZapOptions};
use zio::BlockKind;

use crate::common::{Bed, Dice, id};

const BLOCK_BYTES: u64 = 4096;
/// More than a dnode has pointers to, so that there are indirect blocks.
const BLOCKS: u64 = 300;
const NAMES: u64 = 500;

/// Data and metadata in the cache, in blocks.
fn kept(bed: &Bed) -> (u64, u64) {
    let stats = bed.pipeline.cache().stats();
    let blocks = |kind| stats.of(kind).blocks;
    assert_eq!(blocks(BlockKind::DedupTable), 0);
    (blocks(BlockKind::Data), blocks(BlockKind::Metadata))
}

async fn read_all(set: &Arc<ObjectSet>, names: u64) {
    let object = set.hold(id(1)).await.expect("there");
    for number in 0..BLOCKS {
        let read = object.read_bytes(number * BLOCK_BYTES, BLOCK_BYTES as usize);
        read.await.expect("reads");
    }
    let zap = Zap::hold(set, id(names)).await.expect("there");
    for number in 0..NAMES {
        let name = format!("name {number}");
        let found = zap.lookup_u64(&name).await.expect("reads");
        assert_eq!(found, Some(number));
    }
}

/// Does with an object set what there is to do, and tells each time what the cache has by that.
async fn told(cached: Cached) -> Vec<(u64, u64)> {
    let options = ObjsetOptions {
        properties: WriteProperties {
            cached,
            ..WriteProperties::default()
        },
        ..ObjsetOptions::default()
    };
    let bed = Bed::new(ObjsetKind::Other, options).await;
    let mut told = Vec::new();
    let mut dice = Dice(44);
    let mut noise = |length: u64| {
        let bytes = (0..length).map(|_| dice.next(256) as u8);
        Bytes::from(bytes.collect::<Vec<u8>>())
    };
    // What is written.
    let tx = bed.tx().await;
    let new = NewObject::new(ObjectType::PLAIN_FILE_CONTENTS).with_block_bytes(BLOCK_BYTES as u32);
    let object = bed.set.allocate(&tx, new).await.expect("allocates");
    assert_eq!(object.id(), id(1));
    for number in 0..BLOCKS {
        let written = object.write(&tx, number * BLOCK_BYTES, noise(BLOCK_BYTES));
        written.await.expect("writes");
    }
    let options = ZapOptions::new(ObjectType::DIRECTORY_CONTENTS);
    let zap = Zap::create(&bed.set, &tx, options).await.expect("creates");
    let names = zap.id().get();
    for number in 0..NAMES {
        let name = format!("name {number}");
        zap.add_u64(&tx, &name, number).await.expect("adds");
    }
    drop((zap, tx));
    bed.sync().await;
    told.push(kept(&bed));
    // What is changed in part has to be read for that.
    bed.pipeline.cache().clear();
    let tx = bed.tx().await;
    for number in 0..BLOCKS / 4 {
        let written = object.write(&tx, number * 4 * BLOCK_BYTES + 100, noise(10));
        written.await.expect("writes");
    }
    drop((object, tx));
    let root = bed.sync().await;
    told.push(kept(&bed));
    // What is read.
    bed.pipeline.cache().clear();
    read_all(&bed.set, names).await;
    told.push(kept(&bed));
    bed.pipeline.cache().clear();
    let opened = bed.reopen(root).await;
    told.push(kept(&bed));
    read_all(&opened, names).await;
    told.push(kept(&bed));
    told
}

#[tokio::test]
async fn nothing_stays_with_none() {
    assert_eq!(told(Cached::None).await, [(0, 0); 5]);
}

#[tokio::test]
async fn only_metadata_stays_with_metadata() {
    let told = told(Cached::Metadata).await;
    assert!(
        told.iter()
            .all(|(data, metadata)| *data == 0 && *metadata > 0),
        "{told:?}"
    );
}

#[tokio::test]
async fn everything_stays_with_all() {
    let told = told(Cached::All).await;
    let [written, changed, read, opened, read_anew] = told[..] else {
        panic!("{told:?}");
    };
    assert_eq!(written.0, BLOCKS);
    assert_eq!(changed.0, BLOCKS / 4);
    assert!(read.0 == BLOCKS && read_anew.0 == BLOCKS, "{told:?}");
    assert_eq!(opened, (0, 1));
    assert!(read.1 > 0 && read_anew.1 > 5, "{told:?}");
}

#[tokio::test]
async fn what_goes_past_the_cache_leaves_nothing_there_and_is_the_same() {
    const FIRST: u64 = 20;
    const LAST: u64 = 219;
    let bed = Bed::new(ObjsetKind::Other, ObjsetOptions::default()).await;
    let mut dice = Dice(45);
    let mut content: Vec<u8> = (0..BLOCKS * BLOCK_BYTES)
        .map(|_| dice.next(256) as u8)
        .collect();
    let tx = bed.tx().await;
    let new = NewObject::new(ObjectType::PLAIN_FILE_CONTENTS).with_block_bytes(BLOCK_BYTES as u32);
    let object = bed.set.allocate(&tx, new).await.expect("allocates");
    let all = Bytes::from(content.clone());
    object.write(&tx, 0, all).await.expect("writes");
    // Blocks of which the range has only a part are not meant.
    let from = FIRST * BLOCK_BYTES - 100;
    let length = (LAST + 1) * BLOCK_BYTES + 100 - from;
    object.let_go_when_synced(&tx, from, length);
    // Of what others write since, whole or in part, that is not said.
    for (at, length) in [(50 * BLOCK_BYTES, BLOCK_BYTES), (51 * BLOCK_BYTES + 7, 9)] {
        let range = at as usize..(at + length) as usize;
        // Not the same over and over, which would be in the pointer.
        content[range.clone()].rotate_left(3);
        let part = Bytes::copy_from_slice(&content[range]);
        object.write(&tx, at, part).await.expect("writes");
    }
    let past = async |object: &object::Object| {
        let read = object.read_past_cache(0, (BLOCKS * BLOCK_BYTES) as usize);
        read.await.expect("reads").concat()
    };
    // What is not on disk yet is read from memory.
    assert!(past(&object).await == content);
    drop(tx);
    bed.sync().await;
    let passed = LAST + 1 - FIRST - 2;
    assert_eq!(kept(&bed).0, BLOCKS - passed);
    assert!(past(&object).await == content);
    assert_eq!(kept(&bed).0, BLOCKS - passed);

    bed.pipeline.cache().clear();
    assert!(past(&object).await == content);
    assert_eq!(kept(&bed).0, 0);
    // What others read is there for both.
    let read = object.read_bytes(70 * BLOCK_BYTES, 10);
    let expected = &content[70 * BLOCK_BYTES as usize..][..10];
    assert_eq!(read.await.expect("reads"), expected);
    assert!(past(&object).await == content);
    assert_eq!(kept(&bed).0, 1);

    // The next group has nothing of it.
    let tx = bed.tx().await;
    let all = Bytes::from(content.clone());
    object.write(&tx, 0, all).await.expect("writes");
    drop(tx);
    bed.pipeline.cache().clear();
    bed.sync().await;
    assert_eq!(kept(&bed).0, BLOCKS);
    assert!(past(&object).await == content);
}
