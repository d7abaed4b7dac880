//! Shared blocks: references, copies, comparison of data, frees, with tables in memory.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use device::BoxFuture;
use device::sim::SimWorld;
use format::{BlockPointer, Checksum, DdtClass, DdtPhys, ObjectType, Txg};
use futures::future::join_all;
use parking_lot::Mutex;

use super::{
    CacheUse, DedupName, DedupPolicy, DedupTables, ReadContext, StoredEntry, WritePolicy,
    pointer_of_place,
};
use crate::error::ZioError;
use crate::testing::{TestPool, leaf, noise, simulate};

const TXG: Txg = Txg::new(7);

/// Tables as the engine keeps them, without a disk.
struct InMemory {
    flat: bool,
    may_grow: Mutex<bool>,
    entries: Mutex<HashMap<DedupName, StoredEntry>>,
    damaged: Mutex<bool>,
    /// What was looked for, in order.
    asked: Mutex<Vec<DedupName>>,
}

impl DedupTables for InMemory {
    fn lookup<'a>(
        &'a self,
        name: &'a DedupName,
        _: bool,
    ) -> BoxFuture<'a, Result<Option<StoredEntry>, ZioError>> {
        Box::pin(async move {
            if *self.damaged.lock() {
                return Err(ZioError::Corrupt {
                    block: "a leaf".into(),
                    what: "it is damaged".into(),
                });
            }
            self.asked.lock().push(*name);
            Ok(self.entries.lock().get(name).cloned())
        })
    }

    fn new_entries_are_flat(&self, _: Checksum) -> Option<bool> {
        self.may_grow.lock().then_some(self.flat)
    }

    fn may_be_pruned(&self, _: Checksum) -> bool {
        self.flat
    }
}

struct Ground {
    pool: TestPool,
    tables: Arc<InMemory>,
}

impl Ground {
    async fn new(flat: bool) -> Self {
        let sim = SimWorld::new(3);
        let config = leaf(&sim, "one", 10);
        let pool = TestPool::create(sim, vec![config], 12).await;
        let tables = Arc::new(InMemory {
            flat,
            may_grow: Mutex::new(true),
            entries: Mutex::default(),
            damaged: Mutex::new(false),
            asked: Mutex::default(),
        });
        let known: Arc<dyn DedupTables> = tables.clone();
        pool.pipeline.dedup().set_tables(&known);
        Ground { pool, tables }
    }

    async fn write(&self, txg: Txg, data: &Bytes, policy: &WritePolicy) -> BlockPointer {
        let pipeline = &self.pool.pipeline;
        let bp = pipeline.write(txg, data.clone(), policy).await.unwrap();
        bp.validate().unwrap();
        let direct = ReadContext {
            cache: CacheUse::Bypass,
            ..ReadContext::default()
        };
        assert!(pipeline.read(&bp, &direct).await.unwrap() == *data);
        bp
    }

    /// What the engine does at the end of a pass; references of all entries.
    async fn settle(&self, txg: Txg) -> u64 {
        let pipeline = &self.pool.pipeline;
        while pipeline
            .frees()
            .drop_dedup_references(txg, 2)
            .await
            .unwrap()
            > 0
        {}
        let mut entries = self.tables.entries.lock();
        for (name, mut entry) in pipeline.dedup().take_changes() {
            for place in entry.value.places_mut() {
                if place.is_used() && place.references == 0 {
                    pipeline.free(txg, &pointer_of_place(&name, place).unwrap());
                    *place = Default::default();
                }
            }
            let references = references(&entry.value);
            if references == 0 {
                entries.remove(&name);
            } else {
                let class = Some(DdtClass::of_references(references));
                let value = entry.value;
                entries.insert(name, StoredEntry { class, value });
            }
        }
        entries.values().map(|entry| references(&entry.value)).sum()
    }

    fn allocated(&self) -> u64 {
        self.pool.pipeline.allocator().totals().allocated_bytes
    }
}

fn references(value: &DdtPhys) -> u64 {
    value.places().iter().map(|place| place.references).sum()
}

fn policy(copies: u8, verify: bool) -> WritePolicy {
    WritePolicy {
        checksum: Checksum::Sha256,
        copies,
        cache: false,
        dedup: Some(DedupPolicy { verify }),
        ..WritePolicy::data(ObjectType::PLAIN_FILE_CONTENTS)
    }
}

fn data(seed: u64) -> Bytes {
    noise(32 << 10, seed).into()
}

#[test]
fn the_same_data_is_stored_once() {
    for flat in [true, false] {
        for verify in [true, false] {
            simulate(async move {
                let ground = Ground::new(flat).await;
                let policy = policy(1, verify);
                let (one, other) = (data(1), data(2));
                // At the same time, and one after the other.
                let same = join_all((0..8).map(|_| ground.write(TXG, &one, &policy))).await;
                assert!(same.iter().all(|bp| bp == &same[0] && bp.is_dedup()));
                let unlike = ground.write(TXG, &other, &policy).await;
                assert_ne!(unlike.dva(0), same[0].dva(0));
                assert_eq!(ground.settle(TXG).await, 9);
                let later = ground.write(TXG.next(), &one, &policy).await;
                assert_eq!(later.dva(0), same[0].dva(0));
                assert_eq!(later.birth(), TXG.next());
                assert_eq!(later.physical_birth(), TXG);
                assert_eq!(ground.settle(TXG.next()).await, 10);
                for bp in same.iter().chain([&later]) {
                    ground.pool.pipeline.free(TXG.next(), bp);
                }
                assert_eq!(ground.settle(TXG.next()).await, 1);
            });
        }
    }
}

#[test]
fn references_are_dropped_in_the_order_of_the_table() {
    simulate(async {
        let ground = Ground::new(true).await;
        let pipeline = &ground.pool.pipeline;
        let mut blocks = Vec::new();
        for seed in 0..20 {
            blocks.push(ground.write(TXG, &data(seed), &policy(1, false)).await);
        }
        assert_eq!(ground.settle(TXG).await, 20);
        let drop_some = async |limit| {
            ground.tables.asked.lock().clear();
            let count = pipeline.frees().drop_dedup_references(TXG, limit).await;
            let asked = std::mem::take(&mut *ground.tables.asked.lock());
            assert_eq!(count.unwrap(), asked.len());
            asked
        };
        let (last, first) = blocks.split_last().unwrap();
        first.iter().for_each(|bp| pipeline.free(TXG, bp));
        let mut names: Vec<_> = first.iter().filter_map(DedupName::of).collect();
        names.sort_unstable_by_key(DedupName::order);
        assert_eq!(drop_some(8).await, names[11..]);
        assert_eq!(drop_some(8).await, names[3..11]);
        // One that comes between the pieces has its place among the rest.
        pipeline.free(TXG, last);
        names.truncate(3);
        names.extend(DedupName::of(last));
        names.sort_unstable_by_key(DedupName::order);
        assert_eq!(drop_some(8).await, names);
        assert!(drop_some(8).await.is_empty());
        assert_eq!(ground.settle(TXG).await, 0);
    });
}

#[test]
fn more_copies_are_added_or_kept_apart() {
    simulate(async {
        let flat = Ground::new(true).await;
        let old = Ground::new(false).await;
        let block = data(5);
        for ground in [&flat, &old] {
            let one = ground.write(TXG, &block, &policy(1, false)).await;
            assert_eq!(ground.settle(TXG).await, 1);
            let three = ground.write(TXG.next(), &block, &policy(3, false)).await;
            assert_eq!((one.copies(), three.copies()), (1, 3));
            assert_eq!(one.dva(0) == three.dva(0), ground.tables.flat);
            assert_eq!(ground.settle(TXG.next()).await, 2);
            let again = ground.write(TXG.next(), &block, &policy(1, false)).await;
            assert_eq!(again.dva(0), one.dva(0));
            assert_eq!(ground.settle(TXG.next()).await, 3);
            for bp in [one, three, again] {
                ground.pool.pipeline.free(TXG.next(), &bp);
            }
            assert_eq!(ground.settle(TXG.next()).await, 0);
            assert!(ground.tables.entries.lock().is_empty());
        }
    });
}

#[test]
fn what_cannot_be_shared_is_an_ordinary_block() {
    simulate(async {
        let ground = Ground::new(true).await;
        let (one, other) = (data(1), data(2));
        // Over the quota: what is there is still shared.
        let first = ground.write(TXG, &one, &policy(1, false)).await;
        ground.settle(TXG).await;
        *ground.tables.may_grow.lock() = false;
        assert!(
            !ground
                .write(TXG, &other, &policy(1, false))
                .await
                .is_dedup()
        );
        assert_eq!(
            ground.write(TXG, &one, &policy(1, false)).await.dva(0),
            first.dva(0)
        );
        assert_eq!(ground.settle(TXG).await, 2);
        *ground.tables.may_grow.lock() = true;
        // A damaged table: written without it, and a free only loses space.
        *ground.tables.damaged.lock() = true;
        assert!(!ground.write(TXG, &one, &policy(1, false)).await.is_dedup());
        ground.pool.pipeline.free(TXG, &first);
        assert_eq!(ground.settle(TXG).await, 2);
        *ground.tables.damaged.lock() = false;
        // Data of the same checksum that differs.
        let name = DedupName::of(&first).unwrap();
        let stored = ground.tables.entries.lock()[&name].clone();
        let lie = ground.write(TXG, &other, &policy(1, false)).await;
        ground.settle(TXG).await;
        let lying = DedupName::of(&lie).unwrap();
        ground.tables.entries.lock().insert(lying, stored);
        assert!(!ground.write(TXG, &other, &policy(1, true)).await.is_dedup());
    });
}

#[test]
fn a_block_whose_entry_was_pruned_is_freed() {
    simulate(async {
        for flat in [true, false] {
            let ground = Ground::new(flat).await;
            let bp = ground.write(TXG, &data(9), &policy(1, false)).await;
            ground.settle(TXG).await;
            ground
                .pool
                .pipeline
                .frees()
                .take_changes(TXG)
                .await
                .unwrap();
            ground.pool.pipeline.sync_done(TXG);
            let before = ground.allocated();
            ground.tables.entries.lock().clear();
            ground.pool.pipeline.free(TXG.next(), &bp);
            ground.settle(TXG.next()).await;
            let changes = ground
                .pool
                .pipeline
                .frees()
                .take_changes(TXG.next())
                .await
                .unwrap();
            assert_eq!(
                changes.is_empty(),
                !flat,
                "old tables are never pruned: {before}"
            );
        }
    });
}
