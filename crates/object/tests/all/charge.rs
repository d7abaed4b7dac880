//! Goal: objects in memory count in the cache's limit; those that are idle and clean are given back
//! down to the share, and nothing that is not on disk is lost by that. Method: the bytes that are
//! charged, while there are more objects than the share holds.

use bytes::Bytes;
use format::{ObjectType, ObjsetKind};
use object::{NewObject, ObjsetOptions, Zap, ZapOptions};

use crate::common::{Bed, id};

const CACHE_BYTES: u64 = 8 << 20;
const OBJECTS: u64 = 6000;
/// The share, and the step above it until memory is asked back.
const BOUND_BYTES: u64 = CACHE_BYTES / 2 + CACHE_BYTES / 2 / 64 + (16 << 10);

fn new(number: u64) -> NewObject {
    let bonus = number.to_le_bytes().to_vec();
    NewObject::new(ObjectType::PLAIN_FILE_CONTENTS).with_bonus(ObjectType::UINT64_OTHER, bonus)
}

async fn bed() -> Bed {
    Bed::with_cache(ObjsetKind::Volume, ObjsetOptions::default(), CACHE_BYTES).await
}

#[tokio::test]
async fn objects_are_given_back_down_to_the_share() {
    let bed = bed().await;
    let charged = || bed.pipeline.cache().stats().charged_bytes;
    let dirty_before = bed.txgs.dirty_bytes();
    let tx = bed.tx().await;
    for number in 0..OBJECTS {
        bed.set.allocate(&tx, new(number)).await.expect("allocates");
    }
    drop(tx);
    // They cannot go before they are on disk: that is for the throttle to bound.
    assert!(charged() > BOUND_BYTES);
    assert!(bed.txgs.dirty_bytes() - dirty_before >= charged());
    let txg = bed.txgs.quiesce().await;
    bed.sync_pass(txg, 1).await;
    // They are written, and do not hold up writers any more.
    assert!(bed.txgs.dirty_bytes() <= dirty_before);
    bed.finish(txg).await;
    assert!(charged() <= BOUND_BYTES, "{}", charged());
    for number in 0..OBJECTS {
        let object = bed.set.hold(id(number + 1)).await.expect("there");
        assert_eq!(object.bonus()[..8], number.to_le_bytes());
        assert!(charged() <= BOUND_BYTES, "{}", charged());
    }
    bed.pipeline.cache().shared().set_limit_bytes(0);
    assert!(charged() < 64 << 10, "{}", charged());
}

#[tokio::test]
async fn what_is_held_or_dirty_stays() {
    let bed = bed().await;
    let tx = bed.tx().await;
    for number in 0..100 {
        bed.set.allocate(&tx, new(number)).await.expect("allocates");
    }
    let options = ZapOptions::new(ObjectType::DIRECTORY_CONTENTS);
    let zap = Zap::create(&bed.set, &tx, options).await.expect("creates");
    let names = zap.id();
    drop(tx);
    bed.sync().await;
    let give_back = || bed.pipeline.cache().shared().set_limit_bytes(0);
    give_back();
    let held = bed.set.hold(id(1)).await.expect("there");
    let tx = bed.tx().await;
    let dirty = bed.set.hold(id(2)).await.expect("there");
    let bytes = Bytes::from(vec![3; 512]);
    dirty.write(&tx, 0, bytes.clone()).await.expect("writes");
    zap.add_u64(&tx, "name", 7).await.expect("adds");
    drop((dirty, zap, tx));
    for _ in 0..3 {
        give_back();
        let dirty = bed.set.hold(id(2)).await.expect("there");
        assert_eq!(dirty.read_bytes(0, 512).await.expect("reads"), bytes);
        drop(dirty);
        // What is changed through one handle is seen through another.
        let tx = bed.tx().await;
        let other = bed.set.hold(id(1)).await.expect("there");
        other.write(&tx, 512, bytes.clone()).await.expect("writes");
        drop((other, tx));
        assert_eq!(held.read_bytes(512, 512).await.expect("reads"), bytes);
        let zap = Zap::hold(&bed.set, names).await.expect("there");
        assert_eq!(zap.lookup_u64("name").await.expect("reads"), Some(7));
        drop(zap);
        bed.sync().await;
    }
    bed.check().await;
}

/// The pointers of a file's blocks are charged as far as they are kept.
#[tokio::test]
async fn indirect_blocks_that_are_kept_count() {
    let bed = bed().await;
    let tx = bed.tx().await;
    let new = NewObject::new(ObjectType::PLAIN_FILE_CONTENTS).with_block_bytes(512);
    let object = bed.set.allocate(&tx, new).await.expect("allocates");
    let step = 512 << 10;
    for number in 0..32 {
        let bytes = Bytes::from(vec![9; 512]);
        let written = object.write(&tx, number * step, bytes).await;
        written.expect("writes");
    }
    drop(tx);
    bed.sync().await;
    let charged = || bed.pipeline.cache().stats().charged_bytes;
    let before = charged();
    for number in 0..32 {
        object.read(number * step, 512).await.expect("reads");
    }
    let kept = charged() - before;
    assert!(kept >= 2 * (128 << 10), "{kept}");
    bed.pipeline.cache().shared().set_limit_bytes(0);
    assert!(charged() <= before, "{}", charged());
    let bytes = object.read_bytes(step, 512).await.expect("reads");
    assert_eq!(bytes[..], [9; 512]);
}
