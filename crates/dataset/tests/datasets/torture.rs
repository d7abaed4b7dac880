//! Random operations on datasets, by seed.

use std::collections::BTreeMap;

use dataset::{DatasetError, DirtyEstimate, ListOptions};
use format::ObjectId;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::common::{TestPool, all_features};
use crate::{OBJECT, names, random, read, write};

/// Random operations against a model of contents; accounts are compared after each batch.
async fn torture(seed: u64, steps: usize, features: Vec<String>) {
    torture_versions(seed, steps, features, 5000, 5000).await;
}

/// The same in a pool of a version that is raised to another one half way.
async fn torture_versions(seed: u64, steps: usize, features: Vec<String>, from: u64, to: u64) {
    const LENGTH: usize = 200_000;
    let mut rng = StdRng::seed_from_u64(seed);
    let mut pool = TestPool::of_version(1 << 30, features, from).await;
    let mut model: BTreeMap<String, BTreeMap<u64, Vec<u8>>> = BTreeMap::new();
    let mut next = 0;
    pool.create("tank/fs0", &[]).await.expect("created");
    model.insert("tank/fs0".into(), BTreeMap::new());
    for step in 0..steps {
        if step == steps / 2 && from < to {
            pool.upgrade(to).await;
        }
        let heads: Vec<String> = model
            .keys()
            .filter(|name| !name.contains('@'))
            .cloned()
            .collect();
        let snapshots: Vec<String> = model
            .keys()
            .filter(|name| name.contains('@'))
            .cloned()
            .collect();
        let head = heads[rng.random_range(0..heads.len())].clone();
        next += 1;
        match rng.random_range(0..100) {
            0..45 => {
                let open = pool.dsl.open_dataset(&head).await.expect("opens");
                for _ in 0..rng.random_range(1..4) {
                    let object = OBJECT + rng.random_range(0..4);
                    let offset = rng.random_range(0..LENGTH / 2);
                    let length = rng.random_range(1..LENGTH / 2);
                    let data = random(&mut rng, length);
                    let content = model
                        .get_mut(&head)
                        .expect("known")
                        .entry(object)
                        .or_insert_with(|| vec![0; LENGTH]);
                    content[offset..offset + length].copy_from_slice(&data);
                    write(&open, object, offset as u64, data).await;
                    if rng.random_bool(0.3) {
                        pool.sync().await;
                    }
                }
            }
            45..50 => {
                let open = pool.dsl.open_dataset(&head).await.expect("opens");
                let content = model.get_mut(&head).expect("known");
                if let Some(object) = content.keys().next().copied() {
                    content.remove(&object);
                    let tx = open.assign(DirtyEstimate::free()).await.expect("frees");
                    open.objset()
                        .free(&tx, ObjectId::new(object))
                        .await
                        .expect("freed");
                    drop(tx);
                    // The number can be claimed again once the txg is synced.
                    pool.sync().await;
                }
            }
            50..65 => {
                let name = format!("{head}@s{next}");
                pool.dsl
                    .snapshots()
                    .take(std::slice::from_ref(&name), &[])
                    .await
                    .expect("taken");
                let content = model[&head].clone();
                model.insert(name, content);
            }
            65..78 if !snapshots.is_empty() => {
                let name = snapshots[rng.random_range(0..snapshots.len())].clone();
                match pool.dsl.destroyer().destroy(&name).await {
                    Ok(()) => {
                        model.remove(&name);
                    }
                    Err(DatasetError::HasClones { .. }) => {}
                    Err(error) => panic!("{name}: {error}"),
                }
            }
            78..84 if !snapshots.is_empty() && heads.len() < 8 => {
                let origin = snapshots[rng.random_range(0..snapshots.len())].clone();
                let name = format!("tank/fs{next}");
                pool.dsl
                    .datasets()
                    .clone_snapshot(&origin, &name, &[])
                    .await
                    .expect("cloned");
                let content = model[&origin].clone();
                model.insert(name, content);
            }
            84..88 => {
                let info = pool.dsl.directories().lookup(&head).await.expect("known");
                if info.origin.is_some() {
                    match pool.dsl.snapshots().promote(&head).await {
                        Ok(()) => {}
                        Err(error) => panic!("promote {head}: {error}"),
                    }
                    // Names of snapshots moved: read them anew, by their numbers.
                    let list = names(&pool).await;
                    let moved: Vec<(String, String)> = model
                        .keys()
                        .filter(|name| name.contains('@') && !list.contains(name))
                        .map(|old| {
                            let suffix = old.split_once('@').expect("a snapshot").1;
                            (old.clone(), format!("{head}@{suffix}"))
                        })
                        .collect();
                    for (old, new) in moved {
                        assert!(list.contains(&new), "{old} became {new}");
                        let content = model.remove(&old).expect("known");
                        model.insert(new, content);
                    }
                }
            }
            88..93 => {
                let prefix = format!("{head}@");
                let options = ListOptions {
                    snapshots: true,
                    depth: Some(1),
                    ..ListOptions::default()
                };
                let list = pool
                    .dsl
                    .directories()
                    .list(&head, &options)
                    .await
                    .expect("a list");
                let newest = list.iter().rfind(|info| info.name.starts_with(&prefix));
                if let Some(newest) = newest {
                    pool.dsl
                        .snapshots()
                        .rollback(&head, Some(&newest.name))
                        .await
                        .expect("rolled back");
                    let content = model[&newest.name].clone();
                    model.insert(head.clone(), content);
                }
            }
            93..96 if heads.len() > 1 => match pool.dsl.destroyer().destroy(&head).await {
                Ok(()) => {
                    model.remove(&head);
                }
                Err(DatasetError::HasSnapshots { .. }) => {}
                Err(error) => panic!("{head}: {error}"),
            },
            96..98 => pool = pool.reopen().await,
            _ => {
                let name = format!("tank/fs{next}");
                pool.create(&name, &[]).await.expect("created");
                model.insert(name, BTreeMap::new());
            }
        }
        if step % 10 == 9 || step + 1 == steps {
            pool.check().await;
            for (name, objects) in &model {
                let open = pool.dsl.open_dataset(name).await.expect("opens");
                for object in OBJECT..OBJECT + 4 {
                    let expected = objects
                        .get(&object)
                        .cloned()
                        .unwrap_or_else(|| vec![0; LENGTH]);
                    assert!(
                        read(&open, object, LENGTH).await == expected,
                        "object {object} of {name} (seed {seed}, step {step})"
                    );
                }
            }
        }
    }
}

/// How many seeds: more of them with `MILLPOND_TEST_SEEDS=100`.
fn seeds(default: u64) -> u64 {
    let given = std::env::var("MILLPOND_TEST_SEEDS").ok();
    given
        .and_then(|count| count.parse().ok())
        .unwrap_or(default)
}

#[tokio::test]
async fn random_operations_keep_contents_and_accounts() {
    for seed in 0..seeds(4) {
        torture(seed, 80, all_features()).await;
    }
}

/// Without `async_destroy` what is destroyed or rolled back is free when that is done; without any
/// feature the pool is as one of version 28.
#[tokio::test]
async fn random_operations_need_no_background_to_free_in() {
    let is_other = |guid: &String| {
        !matches!(
            guid.as_str(),
            "com.delphix:async_destroy" | "com.delphix:livelist"
        )
    };
    let others = all_features().into_iter().filter(is_other).collect();
    torture(11, 80, others).await;
    torture(12, 80, Vec::new()).await;
}

/// Goal: before version 26 deadlists are plain lists, and what is destroyed is freed at once; pools
/// that are upgraded go on with what was there. Method: as above, half of it in the old version.
#[tokio::test]
async fn random_operations_keep_contents_and_accounts_in_old_versions_and_after() {
    for (seed, from, to) in [(21, 13, 25), (22, 15, 26), (23, 25, 5000), (24, 24, 28)] {
        torture_versions(seed, 80, Vec::new(), from, to).await;
    }
    for seed in 0..seeds(0) {
        // Before version 13 nothing tells what uses the space, which is compared here.
        let from = 13 + seed % 15;
        let to = [from + 1, 26, 28, 5000][(seed % 4) as usize].max(from);
        torture_versions(seed, 80, Vec::new(), from, to).await;
    }
}

async fn take(pool: &TestPool, snapshot: &str) {
    let names = [snapshot.to_owned()];
    let taken = pool.dsl.snapshots().take(&names, &[]).await;
    taken.expect("taken");
}

/// Goal: lists that are longer than what is read at once lose no block, and keep none. Method: more
/// blocks than that die between snapshots, which go in the old version or after an upgrade.
#[tokio::test]
async fn long_lists_of_old_versions_lose_no_block() {
    const BLOCKS: usize = 2500;
    const BYTES: usize = 4096;
    for to in [25, 5000] {
        let mut rng = StdRng::seed_from_u64(to);
        let pool = TestPool::of_version(1 << 30, Vec::new(), 25).await;
        pool.create("tank/a", &[]).await.expect("created");
        let mut content = vec![0; BLOCKS * BYTES];
        let mut snapshots = BTreeMap::new();
        // Of what dies with the third snapshot some is as old as the first.
        for (number, changed) in [0..2500, 0..1500, 1000..2500, 0..2500].iter().enumerate() {
            let open = pool.dsl.open_dataset("tank/a").await.expect("opens");
            for start in changed.clone().step_by(100) {
                let start = start * BYTES;
                let data = random(&mut rng, 100 * BYTES);
                content[start..start + data.len()].copy_from_slice(&data);
                write(&open, OBJECT, start as u64, data).await;
            }
            drop(open);
            let name = format!("tank/a@{number}");
            take(&pool, &name).await;
            snapshots.insert(name, content.clone());
        }
        pool.upgrade(to).await;
        // Its list begins after the upgrade.
        let name = "tank/a@last".to_owned();
        take(&pool, &name).await;
        snapshots.insert(name, content.clone());
        for doomed in [
            "tank/a@1",
            "tank/a@0",
            "tank/a@3",
            "tank/a@2",
            "tank/a@last",
        ] {
            let destroyed = pool.dsl.destroyer().destroy(doomed).await;
            destroyed.expect("destroyed");
            snapshots.remove(doomed);
            pool.check().await;
            for (name, content) in &snapshots {
                let open = pool.dsl.open_dataset(name).await.expect("opens");
                let found = read(&open, OBJECT, content.len()).await;
                assert!(found == *content, "{name} without {doomed}, {to}");
            }
        }
        let open = pool.dsl.open_dataset("tank/a").await.expect("opens");
        assert!(read(&open, OBJECT, content.len()).await == content);
    }
}

/// Goal: a clone from before an upgrade gets the keys of all snapshots that it stands on with its
/// own first one, although what it was made of has a map since. Method: blocks die in it that are
/// older than its origin, which others have; then its snapshot goes.
#[tokio::test]
async fn clones_of_old_versions_free_nothing_of_others() {
    const LENGTH: usize = 300_000;
    async fn change(pool: &TestPool, name: &str, rng: &mut StdRng, to: usize) {
        let open = pool.dsl.open_dataset(name).await.expect("opens");
        write(&open, OBJECT, 0, random(rng, to)).await;
    }
    async fn content(pool: &TestPool, name: &str) -> Vec<u8> {
        let open = pool.dsl.open_dataset(name).await.expect("opens");
        read(&open, OBJECT, LENGTH).await
    }
    for to in [26, 28, 5000] {
        let mut rng = StdRng::seed_from_u64(to);
        let pool = TestPool::of_version(256 << 20, Vec::new(), 25).await;
        pool.create("tank/a", &[]).await.expect("created");
        change(&pool, "tank/a", &mut rng, LENGTH).await;
        take(&pool, "tank/a@1").await;
        change(&pool, "tank/a", &mut rng, LENGTH / 2).await;
        take(&pool, "tank/a@2").await;
        let datasets = pool.dsl.datasets();
        let cloned = datasets.clone_snapshot("tank/a@2", "tank/c", &[]).await;
        cloned.expect("cloned");
        change(&pool, "tank/c", &mut rng, LENGTH / 4).await;
        pool.upgrade(to).await;
        take(&pool, "tank/a@3").await;
        take(&pool, "tank/c@4").await;
        // One of its own snapshot, too.
        let cloned = datasets.clone_snapshot("tank/c@4", "tank/d", &[]).await;
        cloned.expect("cloned");
        let mut kept = Vec::new();
        for name in ["tank/a@1", "tank/a@2", "tank/a@3"] {
            kept.push((name, content(&pool, name).await));
        }
        for changed in ["tank/c", "tank/d"] {
            change(&pool, changed, &mut rng, LENGTH).await;
            kept.push((changed, content(&pool, changed).await));
        }
        pool.check().await;
        take(&pool, "tank/d@5").await;
        change(&pool, "tank/d", &mut rng, LENGTH / 3).await;
        kept.pop();
        for doomed in ["tank/d@5", "tank/d", "tank/c@4"] {
            let destroyed = pool.dsl.destroyer().destroy(doomed).await;
            destroyed.expect("destroyed");
            pool.check().await;
            for (name, wanted) in &kept {
                assert!(
                    content(&pool, name).await == *wanted,
                    "{name} without {doomed}"
                );
            }
        }
        let promoted = pool.dsl.snapshots().promote("tank/c").await;
        promoted.expect("promoted");
        pool.check().await;
        for doomed in ["tank/a@3", "tank/a", "tank/c@2", "tank/c@1"] {
            let destroyed = pool.dsl.destroyer().destroy(doomed).await;
            destroyed.expect("destroyed");
            pool.check().await;
        }
        let (name, wanted) = kept.last().expect("the clone");
        assert!(content(&pool, name).await == *wanted);
    }
}
