//! Goal: pools that are given the same cache have it together, tell their parts of it by kind, and
//! leave it free when they are exported. Method: two pools on files, which dedup, and their
//! figures.

use std::sync::Arc;

use dataset::DirtyEstimate;
use device::{MemoryUser, MemoryUses, World};
use format::ObjectType;
use object::NewObject;
use pool::{CreateSpec, ImportSpec, Pool, VdevLayout};
use zio::{BlockKind, SharedCache};

use crate::common::*;

const LIMIT_BYTES: u64 = 48 << 20;

fn size_bytes(pool: &Pool) -> u64 {
    pool.pipeline().cache().stats().total().size_bytes
}

/// Writes 32 MiB into the root dataset.
async fn write(pool: &Pool) {
    let dataset = pool.dsl().open_dataset(&pool.name()).await.expect("open");
    write_objects(&dataset, 4, 64).await;
    pool.sync().await.expect("sync");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pools_have_a_cache_together_and_leave_it_when_they_are_exported() {
    let world = World::system(1);
    let shared = SharedCache::new(LIMIT_BYTES);
    let (images, others) = (Images::new(), Images::new());
    let mut pools = Vec::new();
    for (name, images) in [("one", &images), ("two", &others)] {
        let leaves = images.make(1, 256);
        let create = CreateSpec {
            cache: Some(Arc::clone(&shared)),
            root_properties: vec![("dedup".into(), "on".into())],
            // A table without logs is written at once.
            properties: vec![("feature@fast_dedup".into(), "disabled".into())],
            ..spec(name, vec![normal(VdevLayout::Leaf(leaves[0].clone()))])
        };
        pools.push(Pool::create(&world, create).await.expect("create"));
    }
    let [one, two] = &pools[..] else { panic!() };
    write(one).await;
    // Nobody else needs it: more than half of it.
    let alone = size_bytes(one);
    assert!(alone > 30 << 20, "{alone}");
    write(two).await;
    assert!(size_bytes(one) < alone);
    assert!(size_bytes(one) + size_bytes(two) <= LIMIT_BYTES);
    for pool in [one, two] {
        assert!(size_bytes(pool) > LIMIT_BYTES / 17);
        assert_eq!(shared.limit_bytes(), LIMIT_BYTES);
        assert!(Arc::ptr_eq(pool.pipeline().cache().shared(), &shared));
    }
    let stats = two.pipeline().cache().stats();
    for kind in BlockKind::ALL {
        assert!(stats.of(kind).blocks > 0, "{kind:?}: {stats:?}");
    }
    // At once, although the pool is still known here.
    let before = size_bytes(two);
    one.export(false).await.expect("export");
    assert_eq!(size_bytes(one), 0);
    assert_eq!(size_bytes(two), before);
    let import = ImportSpec {
        cache: Some(Arc::clone(&shared)),
        ..ImportSpec::new(find(&world, images.path()).await, host())
    };
    let again = Pool::import(&world, import).await.expect("import");
    assert!(Arc::ptr_eq(again.pipeline().cache().shared(), &shared));
    let stats = again.pipeline().cache().stats();
    assert!(stats.of(BlockKind::Metadata).blocks > 0);
    assert_eq!(stats.of(BlockKind::Data).blocks, 0);
    again.export(false).await.expect("export");
    two.export(false).await.expect("export");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_pool_has_beside_the_cache_is_told_by_who_has_it() {
    const BLOCK_BYTES: u64 = 128 << 10;
    let world = World::system(1);
    let images = Images::new();
    let leaves = images.make(1, 128);
    let create = spec("tank", vec![normal(VdevLayout::Leaf(leaves[0].clone()))]);
    let pool = Pool::create(&world, create).await.expect("create");
    let told = || {
        let mut uses = MemoryUses::default();
        pool::add_memory(&pool, &mut uses);
        uses
    };
    let dataset = pool.dsl().open_dataset("tank").await.expect("open");
    // The transaction group stays open, so what is written stays dirty.
    let estimate = DirtyEstimate::write(BLOCK_BYTES);
    let tx = dataset.assign(estimate).await.expect("assign");
    let new = NewObject::new(ObjectType::PLAIN_FILE_CONTENTS).with_block_bytes(BLOCK_BYTES as u32);
    let object = dataset.objset().allocate(&tx, new).await.expect("object");
    let data = content(1, 0, BLOCK_BYTES as usize);
    object.write(&tx, 0, data).await.expect("write");
    let uses = told();
    assert!(uses.of(MemoryUser::Dirty) >= BLOCK_BYTES);
    let dirty = uses.iter().find(|(user, _)| *user == MemoryUser::Dirty);
    let bound_bytes = dirty.and_then(|(_, has)| has.bound_bytes);
    assert!(bound_bytes.is_some_and(|bound_bytes| bound_bytes > BLOCK_BYTES));
    assert!(uses.of(MemoryUser::FreeSpace) > 0);
    assert_eq!(uses.of(MemoryUser::ScanQueues), 0);
    assert_eq!(uses.of(MemoryUser::DedupChanges), 0);
    assert_eq!(uses.beside_cache_bytes(), uses.total_bytes());
    drop(tx);
    pool.sync().await.expect("sync");
    let before = uses.of(MemoryUser::Datasets);
    for number in 0..20 {
        let name = [format!("tank@{number}")];
        let taken = pool.dsl().snapshots().take(&name, &[]).await;
        taken.expect("a snapshot");
    }
    // Each is known, and none of them keeps a list of dead blocks.
    let each = (told().of(MemoryUser::Datasets) - before) / 20;
    assert!((200..4000).contains(&each), "{each} bytes a snapshot");
    drop((object, dataset));
    pool.export(false).await.expect("export");
}
