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
    const LENGTH: usize = 200_000;
    let mut rng = StdRng::seed_from_u64(seed);
    let mut pool = TestPool::with_features(1 << 30, features).await;
    let mut model: BTreeMap<String, BTreeMap<u64, Vec<u8>>> = BTreeMap::new();
    let mut next = 0;
    pool.create("tank/fs0", &[]).await.expect("created");
    model.insert("tank/fs0".into(), BTreeMap::new());
    for step in 0..steps {
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

#[tokio::test]
async fn random_operations_keep_contents_and_accounts() {
    // More of them: MILLPOND_TEST_SEEDS=100.
    let seeds = std::env::var("MILLPOND_TEST_SEEDS")
        .ok()
        .and_then(|count| count.parse().ok())
        .unwrap_or(4);
    for seed in 0..seeds {
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
