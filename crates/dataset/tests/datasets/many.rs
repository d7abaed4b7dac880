//! Many snapshots and datasets: what is done with some of them does not depend on how many there
//! are beside, and those that go together go in any order. Counts look-ups of blocks, not time.

use rand::seq::SliceRandom;

use super::*;
use dataset::DslPool;

/// Blocks that were looked for in the cache, found there or not.
fn lookups(pool: &TestPool) -> u64 {
    let all = pool.pipeline.cache().stats().total();
    all.hits + all.misses
}

async fn take(dsl: &Arc<DslPool>, name: &str) {
    let taken = dsl.snapshots().take(&[name.to_owned()], &[]).await;
    taken.expect("taken");
}

/// A pool with `tank/a` and so many snapshots, named by their numbers; between each two one of
/// several blocks is written anew, so that most deadlists have something on several lists.
async fn with_snapshots(count: u64) -> TestPool {
    let pool = TestPool::new(1 << 30).await;
    pool.create("tank/a", &[]).await.expect("created");
    let open = pool.dsl.open_dataset("tank/a").await.expect("opens");
    let tx = open.assign(DirtyEstimate::metadata()).await.expect("room");
    let new = NewObject::new(ObjectType::PLAIN_FILE_CONTENTS).with_block_bytes(4096);
    let claimed = open.objset().claim(&tx, ObjectId::new(OBJECT), new).await;
    let object = claimed.expect("claimed");
    drop(tx);
    for number in 0..count {
        let tx = open.assign(DirtyEstimate::metadata()).await.expect("room");
        for block in [number % 7, 7 + number % 3] {
            let data = vec![number as u8 + 1; 4096];
            let written = object.write(&tx, block * 4096, data.into()).await;
            written.expect("written");
        }
        drop(tx);
        take(&pool.dsl, &format!("tank/a@{number}")).await;
    }
    drop((object, open));
    pool
}

fn names(numbers: impl IntoIterator<Item = u64>) -> Vec<String> {
    let numbers = numbers.into_iter();
    numbers.map(|number| format!("tank/a@{number}")).collect()
}

async fn destroy(pool: &TestPool, names: &[String]) {
    let destroyed = pool.dsl.destroyer().destroy_snapshots(names, false).await;
    destroyed.expect("destroyed");
}

/// Goal: snapshots that are destroyed together are gone, whatever order they are named in and how
/// often, and what the others have is counted as it is. Method: runs, single ones and the ends of
/// a chain, shuffled; after each the accounts are compared with a walk over every block.
#[tokio::test]
async fn snapshots_go_together_in_any_order() {
    let pool = with_snapshots(40).await;
    let mut rng = StdRng::seed_from_u64(7);
    for going in [
        vec![10, 11, 12, 13],
        vec![20, 22, 24, 25, 26],
        vec![0, 1, 39, 38],
        vec![2, 37, 36, 14, 15, 9, 8],
    ] {
        let mut going = names(going);
        going.extend(going.clone());
        going.shuffle(&mut rng);
        destroy(&pool, &going).await;
        pool.check().await;
    }
    let pool = pool.reopen().await;
    pool.check().await;
    let left: Vec<u64> = (3..36)
        .filter(|number| !matches!(number, 8..=15 | 20 | 22 | 24..=26))
        .collect();
    destroy(&pool, &names(left)).await;
    pool.check().await;
    let options = ListOptions {
        snapshots: true,
        ..ListOptions::default()
    };
    let listed = pool.dsl.directories().list("tank", &options).await;
    assert_eq!(listed.expect("a list").len(), 2);
}

/// Goal: what snapshots share that go together is looked for once, not for each. Method: as many
/// are destroyed one by one, and together; blocks that were looked for are counted.
#[tokio::test]
async fn snapshots_that_go_together_share_what_is_read() {
    let pool = with_snapshots(60).await;
    let before = lookups(&pool);
    for name in names(0..20) {
        destroy(&pool, &[name]).await;
    }
    let alone = lookups(&pool) - before;
    let before = lookups(&pool);
    destroy(&pool, &names(20..40)).await;
    let together = lookups(&pool) - before;
    assert!(
        together * 2 < alone,
        "{together} look-ups instead of {alone}"
    );
}
