//! Goal: many transaction groups of concurrent writes, overwrites, frees and snapshots, a pool
//! filled to the last block and emptied again: zdb has nothing to say.
//! Method: random operations through datasets; `MILLPOND_TEST_ROUNDS` makes it longer.

use std::sync::Arc;

use crate::common::*;
use bytes::Bytes;
use dataset::{Dataset, DirtyEstimate};
use device::World;
use format::{ObjectId, ObjectType};
use object::NewObject;
use pool::{Pool, VdevLayout};

const RECORD: u64 = 128 << 10;

fn rounds() -> u64 {
    std::env::var("MILLPOND_TEST_ROUNDS")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(40)
}

struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}

/// One writer with its own objects: each object's blocks hold the version last written.
async fn writer(dataset: Dataset, seed: u64, rounds: u64) -> Vec<(ObjectId, Vec<u64>)> {
    let mut random = Random(seed | 1);
    let mut objects: Vec<(ObjectId, Vec<u64>)> = Vec::new();
    for version in 1..=rounds * 20 {
        match random.below(10) {
            0..=2 => {
                let tx = dataset
                    .assign(DirtyEstimate::write(RECORD))
                    .await
                    .expect("assign");
                let new =
                    NewObject::new(ObjectType::PLAIN_FILE_CONTENTS).with_block_bytes(RECORD as u32);
                let object = dataset.objset().allocate(&tx, new).await.expect("allocate");
                objects.push((object.id(), Vec::new()));
            }
            3..=8 if !objects.is_empty() => {
                let index = random.below(objects.len() as u64) as usize;
                let (id, versions) = &mut objects[index];
                let block = random.below(versions.len().min(30) as u64 + 1);
                let tx = dataset
                    .assign(DirtyEstimate::write(RECORD))
                    .await
                    .expect("assign");
                let object = dataset.objset().hold(*id).await.expect("hold");
                let data = content(version, block, RECORD as usize);
                object
                    .write(&tx, block * RECORD, data)
                    .await
                    .expect("write");
                if block == versions.len() as u64 {
                    versions.push(version);
                } else {
                    versions[block as usize] = version;
                }
            }
            9 if objects.len() > 5 => {
                let (id, _) = objects.swap_remove(random.below(objects.len() as u64) as usize);
                let tx = dataset.assign(DirtyEstimate::free()).await.expect("assign");
                dataset.objset().free(&tx, id).await.expect("free");
            }
            _ => {}
        }
    }
    objects
}

async fn verify(dataset: &Dataset, objects: &[(ObjectId, Vec<u64>)]) {
    for (id, versions) in objects {
        let object = dataset.objset().hold(*id).await.expect("hold");
        for (block, version) in versions.iter().enumerate() {
            let data = object
                .read_bytes(block as u64 * RECORD, RECORD as usize)
                .await
                .expect("read");
            assert!(
                data == content(*version, block as u64, RECORD as usize),
                "object {id} block {block}"
            );
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn random_work_leaves_a_clean_pool() {
    let world = World::system(2);
    let images = Images::new();
    let leaves = images.make(4, 512);
    let vdevs = vec![normal(VdevLayout::Raidz { parity: 1, leaves })];
    let pool = Pool::create(&world, spec("tank", vdevs))
        .await
        .expect("create");
    pool.dsl()
        .datasets()
        .create("tank/a", &[], Arc::new(BareFilesystem))
        .await
        .expect("create");
    let mut names = Vec::new();
    let mut writers = Vec::new();
    for (index, name) in ["tank", "tank/a", "tank/a"].into_iter().enumerate() {
        let dataset = pool.dsl().open_dataset(name).await.expect("open");
        writers.push(tokio::spawn(writer(dataset, 77 + index as u64, rounds())));
        names.push(name);
    }
    // Snapshots come and go meanwhile.
    for round in 0..rounds() {
        let snapshot = format!("tank/a@s{round}");
        pool.dsl()
            .snapshots()
            .take(std::slice::from_ref(&snapshot), &[])
            .await
            .expect("snapshot");
        if round >= 3 {
            let old = format!("tank/a@s{}", round - 3);
            pool.dsl()
                .destroyer()
                .destroy_snapshots(&[old], false)
                .await
                .expect("destroy");
        }
        pool.sync().await.expect("sync");
    }
    let mut written = Vec::new();
    for writer in writers {
        written.push(writer.await.expect("writer"));
    }
    pool.sync().await.expect("sync");
    for (name, objects) in names.iter().zip(&written) {
        let dataset = pool.dsl().open_dataset(name).await.expect("open");
        verify(&dataset, objects).await;
    }
    // As after a crash first, then exported.
    drop(pool);
    tokio::time::sleep(std::time::Duration::from_millis(500)).await;
    zdb_is_clean(images.path(), "tank");
    let pool = import(&world, images.path()).await;
    for (name, objects) in names.iter().zip(&written) {
        let dataset = pool.dsl().open_dataset(name).await.expect("open");
        verify(&dataset, objects).await;
    }
    pool.dsl()
        .destroyer()
        .destroy_snapshots(
            &(rounds() - 3..rounds())
                .map(|round| format!("tank/a@s{round}"))
                .collect::<Vec<_>>(),
            false,
        )
        .await
        .expect("destroy");
    pool.dsl()
        .destroyer()
        .destroy("tank/a")
        .await
        .expect("destroy");
    for _ in 0..100 {
        pool.sync().await.expect("sync");
        if pool.numbers().freeing_bytes == 0 {
            break;
        }
    }
    assert_eq!(pool.numbers().freeing_bytes, 0);
    pool.export(false).await.expect("export");
    zdb_is_clean(images.path(), "tank");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pool_is_filled_and_emptied() {
    let world = World::system(2);
    let images = Images::new();
    let leaves = images.make(2, 96);
    let vdevs = vec![normal(VdevLayout::Mirror(leaves))];
    let pool = Pool::create(&world, spec("tank", vdevs))
        .await
        .expect("create");
    let empty = pool.numbers().allocated_bytes;
    let dataset = pool.dsl().open_dataset("tank").await.expect("open");
    for round in 0..3u64 {
        let mut objects = Vec::new();
        let full = loop {
            let tx = match dataset.assign(DirtyEstimate::write(RECORD * 4)).await {
                Ok(tx) => tx,
                Err(error) => break error,
            };
            let new =
                NewObject::new(ObjectType::PLAIN_FILE_CONTENTS).with_block_bytes(RECORD as u32);
            let object = dataset.objset().allocate(&tx, new).await.expect("allocate");
            for block in 0..4 {
                let data: Bytes = content(object.id().get(), block + round, RECORD as usize);
                object
                    .write(&tx, block * RECORD, data)
                    .await
                    .expect("write");
            }
            objects.push(object.id());
            assert!(objects.len() < 1000, "a pool of 96 MiB takes no 500 MiB");
        };
        assert!(full.to_string().contains("space"), "{full}");
        pool.sync().await.expect("sync of a full pool");
        assert!(objects.len() > 100, "only {} objects fit", objects.len());
        // Half of so small a pool is kept back (`spa_get_slop_space`).
        assert!(
            pool.numbers().capacity_percent() > 45,
            "{:?}",
            pool.numbers()
        );
        for id in objects {
            let tx = dataset
                .assign(DirtyEstimate::free())
                .await
                .expect("a full pool can be emptied");
            dataset.objset().free(&tx, id).await.expect("free");
        }
        for _ in 0..4 {
            pool.sync().await.expect("sync");
        }
    }
    let left = pool.numbers().allocated_bytes;
    assert!(
        left < empty + (4 << 20),
        "{left} bytes are allocated, {empty} at first"
    );
    drop(dataset);
    pool.export(false).await.expect("export");
    zdb_is_clean(images.path(), "tank");
}
