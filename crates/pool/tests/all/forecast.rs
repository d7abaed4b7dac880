//! Goal: what dedup tables would hold is foretold as zdb does it, of a pool in use. Method: objects
//! that share their contents, in a filesystem, its snapshot and its clone, of which some were
//! overwritten; the forecast beside what `zdb -S` tells of the exported pool.

use bytes::Bytes;
use dataset::{Dataset, DirtyEstimate};
use device::World;
use format::{DdtStat, ObjectId, ObjectType};
use object::NewObject;
use pool::{Forecasted, Pool, PoolError, VdevLayout};

use crate::common::*;

const BLOCK: u64 = 128 << 10;
/// Blocks of each object.
const BLOCKS: u64 = 4;

fn block(content_of: u64, number: u64) -> Bytes {
    content(content_of, number, BLOCK as usize)
}

/// Writes an object whose blocks are those of all that are told the same number.
async fn write(dataset: &Dataset, content_of: u64) -> ObjectId {
    let tx = dataset.assign(DirtyEstimate::write(BLOCKS * BLOCK)).await;
    let tx = tx.expect("assign");
    let new = NewObject::new(ObjectType::PLAIN_FILE_CONTENTS).with_block_bytes(BLOCK as u32);
    let object = dataset.objset().allocate(&tx, new).await.expect("allocate");
    for number in 0..BLOCKS {
        let data = block(content_of, number);
        object
            .write(&tx, number * BLOCK, data)
            .await
            .expect("write");
    }
    object.id()
}

async fn overwrite_first(dataset: &Dataset, id: ObjectId, content_of: u64) {
    let tx = dataset.assign(DirtyEstimate::write(BLOCK)).await;
    let tx = tx.expect("assign");
    let object = dataset.objset().hold(id).await.expect("hold");
    object
        .write(&tx, 0, block(content_of, 0))
        .await
        .expect("write");
}

async fn forecast(pool: &Pool, blocks_max: usize) -> Forecasted {
    let begin = || pool::forecast_dedup(pool, blocks_max).expect("a pool that is written");
    let mut forecasting = begin().expect("no other one");
    assert!(begin().is_none(), "one at a time");
    while !forecasting.next().await.expect("a turn") {}
    assert!(forecasting.met_bytes() > 0);
    forecasting.result()
}

fn total(found: &Forecasted) -> DdtStat {
    let mut sum = DdtStat::default();
    for stat in &found.histogram {
        sum.add(stat);
    }
    sum
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_forecast_tells_what_zdb_tells() {
    let images = Images::new();
    let leaf = images.make(1, 256).remove(0);
    let world = World::system(2);
    let pool = Pool::create(&world, spec("tank", vec![normal(VdevLayout::Leaf(leaf))]))
        .await
        .expect("create");
    let dsl = pool.dsl().clone();
    let dataset = dsl.open_dataset("tank").await.expect("open");
    // Contents 0 to 9 three times each, 100 to 119 once.
    let mut objects = Vec::new();
    for number in 0..30 {
        objects.push(write(&dataset, number % 10).await);
    }
    for number in 100..120 {
        write(&dataset, number).await;
    }
    pool.sync().await.expect("sync");
    let taken = dsl.snapshots().take(&["tank@one".to_owned()], &[]).await;
    taken.expect("snapshot");
    let cloned = dsl
        .datasets()
        .clone_snapshot("tank@one", "tank/c", &[])
        .await;
    cloned.expect("clone");
    // Of the snapshot and of the filesystem: the former's block and the latter's are different.
    for object in &objects[..3] {
        overwrite_first(&dataset, *object, 200).await;
    }
    let clone = dsl.open_dataset("tank/c").await.expect("open");
    overwrite_first(&clone, objects[5], 200).await;
    pool.sync().await.expect("sync");

    let found = forecast(&pool, 1 << 20).await;
    assert_eq!(
        (found.sampled, found.unreadable, found.ratio_error),
        (1.0, 0, 0.0)
    );
    let sum = total(&found);
    // 30 contents of four blocks, and the one that was written over others, four times.
    assert_eq!((sum.blocks, sum.referenced_blocks), (121, 204));
    assert_eq!(sum.referenced_lsize_bytes, 204 * BLOCK);
    assert_eq!(found.histogram[0].blocks, 80);
    assert_eq!(found.histogram[1].blocks, 40);
    assert_eq!(
        (
            found.histogram[2].blocks,
            found.histogram[2].referenced_blocks
        ),
        (1, 4)
    );

    // A sample, which always has the same blocks.
    let sampled = forecast(&pool, 40).await;
    assert!(sampled.sampled < 1.0 && sampled.ratio_error > 0.0);
    let off = (sampled.ratio - found.ratio).abs();
    assert!(off < 3.0 * sampled.ratio_error, "{sampled:?}");

    drop((dataset, clone, dsl));
    pool.export(false).await.expect("export");
    let text = zdb(images.path(), "tank", &["-S"]);
    let row = text
        .lines()
        .find(|line| line.trim_start().starts_with("Total"))
        .expect("a total");
    let words: Vec<&str> = row.split_whitespace().collect();
    assert_eq!((words[1], words[5]), ("121", "204"), "{text}");
    let ratio = text.split("dedup = ").nth(1).expect("a ratio");
    let ratio = ratio.split(',').next().expect("a number");
    assert_eq!(format!("{:.2}", found.ratio), ratio, "{text}");

    // Nothing is written to a pool that is imported read-only, so it has no turns.
    let found = find(&world, images.path()).await;
    let mut spec = pool::ImportSpec::new(found, host());
    spec.read_only = true;
    let pool = Pool::import(&world, spec).await.expect("import");
    let refused = pool::forecast_dedup(&pool, 100);
    assert!(matches!(refused, Err(PoolError::ReadOnly { .. })));
    pool.export(false).await.expect("export");
}

/// Goal: who waits for a forecast is told when the pool is closed, and one that nobody waits for
/// any more asks for no turns and makes room for another.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_forecast_ends_with_its_pool_and_with_who_waits() {
    let images = Images::new();
    let leaf = images.make(1, 64).remove(0);
    let world = World::system(2);
    let pool = Pool::create(&world, spec("tank", vec![normal(VdevLayout::Leaf(leaf))]))
        .await
        .expect("create");
    let begin = || pool::forecast_dedup(&pool, 100).expect("a pool that is written");
    drop(begin().expect("no other one"));
    let mut forecasting = begin().expect("the other one is gone");
    pool.export(false).await.expect("export");
    // The pool's last transaction group may have been the turn that was missing.
    match forecasting.next().await {
        Ok(is_whole) => assert!(is_whole),
        Err(why) => assert!(why.contains("closed"), "{why}"),
    }
}
