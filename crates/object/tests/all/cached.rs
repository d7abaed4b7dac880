//! Goal: `primarycache` means what it says: of a dataset with `none` nothing stays in the cache,
//! with `metadata` no data does, whether it was written, changed in part, read again from an open
//! object set, or found through a root block that was just opened. Method: the cache's own figures
//! by kind; nobody else has anything in it.

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
