//! Many snapshots: all are listed and destroyed, and nothing leaks. Prints what it took, so that
//! somebody sees when that explodes; 3000 with `MILLPOND_LONG=1`.

use std::time::Instant;

use crate::common::TestPool;
use dataset::{DirtyEstimate, ListOptions};
use format::{ObjectId, ObjectType};
use object::NewObject;

#[tokio::test]
async fn many_snapshots() {
    let is_long = std::env::var_os("MILLPOND_LONG").is_some_and(|value| value == "1");
    let count = if is_long { 3000 } else { 300 };
    let pool = TestPool::new(4 << 30).await;
    pool.create("tank/a", &[]).await.expect("created");
    let open = pool.dsl.open_dataset("tank/a").await.expect("opens");
    let tx = open.assign(DirtyEstimate::metadata()).await.expect("room");
    let new = NewObject::new(ObjectType::PLAIN_FILE_CONTENTS).with_block_bytes(4096);
    let object = open
        .objset()
        .claim(&tx, ObjectId::new(100), new)
        .await
        .expect("claimed");
    drop(tx);
    let mut since = Instant::now();
    for index in 0..count {
        let tx = open.assign(DirtyEstimate::metadata()).await.expect("room");
        let data = vec![(index % 255) as u8 + 1; 4096];
        object
            .write(&tx, (index % 16) * 4096, data.into())
            .await
            .expect("written");
        drop(tx);
        pool.dsl
            .snapshots()
            .take(&[format!("tank/a@s{index:06}")], &[])
            .await
            .expect("taken");
        if index % 500 == 499 {
            eprintln!("{} snapshots: 500 in {:?}", index + 1, since.elapsed());
            since = Instant::now();
        }
    }
    let options = ListOptions {
        snapshots: true,
        ..ListOptions::default()
    };
    since = Instant::now();
    let list = pool
        .dsl
        .directories()
        .list("tank", &options)
        .await
        .expect("a list");
    eprintln!("list of {}: {:?}", list.len(), since.elapsed());
    since = Instant::now();
    let list = pool
        .dsl
        .directories()
        .list("tank", &options)
        .await
        .expect("a list");
    eprintln!("list again: {:?}", since.elapsed());
    since = Instant::now();
    let names: Vec<String> = list
        .iter()
        .map(|info| info.name.clone())
        .filter(|name| name.contains('@'))
        .collect();
    assert_eq!(names.len() as u64, count);
    for (index, names) in names.chunks(100).enumerate() {
        pool.dsl
            .destroyer()
            .destroy_snapshots(names, false)
            .await
            .expect("destroyed");
        if index % 5 == 4 {
            eprintln!("500 destroyed: {:?}", since.elapsed());
            since = Instant::now();
        }
    }
    drop((object, open));
    pool.check().await;
}
