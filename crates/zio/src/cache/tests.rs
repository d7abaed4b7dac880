//! Tests of the cache.

use device::MemoryUse;
use format::{Checksum, Compression, Dva, Endian, RegularPointer, Txg};
use proptest::prelude::*;

use super::shard::OVERHEAD_BYTES;
use super::*;

fn key(number: u64) -> CacheKey {
    key_of(BlockKind::Data, number)
}

fn key_of(kind: BlockKind, number: u64) -> CacheKey {
    CacheKey {
        vdev: VdevId::new(0),
        offset_bytes: number << 12,
        birth: 5,
        sum: number,
        kind,
    }
}

fn block(length: usize, number: u64) -> Bytes {
    Bytes::from(vec![number as u8; length])
}

#[test]
fn what_is_kept_is_found_and_counted() {
    let cache = Cache::new(8 << 20);
    assert_eq!(cache.get(key(1)), None);
    cache.insert(key(1), block(4096, 1));
    assert_eq!(cache.get(key(1)), Some(block(4096, 1)));
    cache.insert(key(1), block(512, 2));
    assert_eq!(cache.get(key(1)), Some(block(512, 2)));
    let counts = cache.stats().total();
    assert_eq!((counts.hits, counts.misses, counts.blocks), (2, 1, 1));
    assert_eq!(counts.size_bytes, 512 + OVERHEAD_BYTES);
    cache.remove(key(1));
    assert_eq!(cache.get(key(1)), None);
    assert_eq!(cache.stats().total().size_bytes, 0);
}

#[test]
fn memory_is_told_as_it_counts_and_what_tables_take_beyond_that() {
    let cache = Cache::new(8 << 20);
    let told = || {
        let mut uses = MemoryUses::default();
        cache.shared().add_memory(&mut uses);
        uses
    };
    assert_eq!(told().total_bytes(), 0);
    for number in 0..1000 {
        cache.insert(key(number), block(4096, number));
    }
    let charged = cache.charge().take(300_000);
    let index_bytes = l2arc::Memory::take(&**cache.charge(), 1000);
    assert_eq!(index_bytes, 1000);
    let uses = told();
    let tables_bytes = uses.of(MemoryUser::CacheTables);
    let of = |bytes, bound_bytes| MemoryUse { bytes, bound_bytes };
    let blocks_bytes = 1000 * (4096 + OVERHEAD_BYTES);
    assert_eq!(
        uses.iter().collect::<Vec<_>>(),
        [
            (MemoryUser::CacheBlocks, of(blocks_bytes, Some(8 << 20))),
            (MemoryUser::Objects, of(300_000, Some(4 << 20))),
            (MemoryUser::CacheDeviceIndexes, of(1000, Some(2 << 20))),
            (MemoryUser::CacheTables, of(tables_bytes, None)),
        ]
    );
    // A block has a place in a table and one in a queue.
    assert!((1..512_000).contains(&tables_bytes), "{tables_bytes}");
    assert_eq!(uses.beside_cache_bytes(), tables_bytes);
    drop(charged);
    assert_eq!(told().of(MemoryUser::Objects), 0);
}

#[test]
fn a_scan_does_not_drive_out_what_is_used() {
    let cache = Cache::new(8 << 20);
    let hot = 200;
    for round in 0..3 {
        for number in 0..hot {
            if cache.get(key(number)).is_none() {
                cache.insert(key(number), block(4096, number));
            }
        }
        assert_eq!(round, round);
    }
    // A hundred times the cache's size, once each, while the hot blocks are asked for now and then.
    for number in 0..200_000u64 {
        cache.insert(key(1_000_000 + number), block(4096, number));
        if number.is_multiple_of(50) {
            cache.get(key(number / 50 % hot));
        }
    }
    let kept = (0..hot)
        .filter(|number| cache.contains(key(*number)))
        .count();
    assert!(kept as u64 > hot * 9 / 10, "{kept} of {hot}");
}

#[test]
fn a_smaller_limit_evicts_at_once() {
    let cache = Cache::new(256 << 20);
    for number in 0..1000 {
        cache.insert(key(number), block(64 << 10, number));
    }
    assert!(cache.stats().total().size_bytes > 32 << 20);
    cache.shared().set_limit_bytes(4 << 20);
    assert!(cache.stats().total().size_bytes <= 4 << 20);
    cache.shared().set_limit_bytes(0);
    assert_eq!(cache.stats().total().size_bytes, 0);
    cache.insert(key(1), block(512, 1));
    assert_eq!(cache.get(key(1)), None);
}

#[test]
fn what_is_charged_leaves_that_much_less_room_for_blocks() {
    let limit = 32 << 20;
    let cache = Cache::new(limit);
    let fill = || {
        for number in 0..1000 {
            cache.insert(key(number), block(64 << 10, number));
        }
        let stats = cache.stats();
        (stats.total().size_bytes, stats.charged_bytes)
    };
    let (full, _) = fill();
    assert!(full > limit / 10 * 9 && full <= limit);
    let some = cache.charge().take(limit / 4);
    let (less, charged) = fill();
    assert!(less + charged <= limit && less > limit / 2);
    // Half of it is for blocks in any case.
    let much = cache.charge().take(limit);
    let (half, _) = fill();
    assert!(half > limit / 10 * 4 && half <= limit / 2);
    drop((some, much));
    assert_eq!(fill().0, full);
}

/// Fills a cache as a scan would.
fn scan(cache: &Cache, blocks: std::ops::Range<u64>) {
    for number in blocks {
        cache.insert(key(number), block(4096, number));
    }
}

#[test]
fn kinds_are_counted_apart_and_tell_no_blocks_apart() {
    let cache = Cache::new(8 << 20);
    for (number, kind) in BlockKind::ALL.into_iter().enumerate() {
        for number in 0..=number as u64 {
            let key = key_of(kind, number << 4 | kind as u64);
            assert_eq!(cache.get(key), None);
            cache.insert(key, block(4096, number));
            assert_eq!(cache.get(key), Some(block(4096, number)));
        }
    }
    for (number, kind) in BlockKind::ALL.into_iter().enumerate() {
        let blocks = number as u64 + 1;
        let counts = CacheCounts {
            hits: blocks,
            misses: blocks,
            ghost_hits: 0,
            size_bytes: blocks * (4096 + OVERHEAD_BYTES),
            blocks,
        };
        assert_eq!(cache.stats().of(kind), counts);
    }
    assert_eq!(cache.stats().total().blocks, 6);
    // A dedup table's pointer tells less of a block than the file's that it is freed for.
    cache.remove(key_of(BlockKind::Metadata, BlockKind::Data as u64));
    assert!(!cache.contains(key(0)));
    assert_eq!(cache.stats().of(BlockKind::Data).blocks, 0);
    assert_eq!(cache.stats().total().blocks, 5);
}

#[test]
fn misses_of_blocks_that_left_not_long_before_are_counted_apart() {
    let cache = Cache::new(8 << 20);
    let hot = 1200;
    scan(&cache, 0..hot);
    (0..hot).for_each(|number| assert!(cache.get(key(number)).is_some()));
    // Nearly three times what there is room for, the first of which are forgotten.
    let scanned = 10_000..15_000;
    scan(&cache, scanned.clone());
    let gone = scanned.filter(|number| !cache.contains(key(*number)));
    let gone: Vec<u64> = gone.collect();
    let remembered = gone.iter().filter(|number| cache.remembers(key(**number)));
    let remembered = remembered.count() as u64;
    assert!((1000..2000).contains(&remembered), "{remembered}");
    assert_eq!(cache.stats().total().ghost_hits, 0);
    for number in &gone {
        assert_eq!(cache.get(key(*number)), None);
    }
    let counts = cache.stats().of(BlockKind::Data);
    assert_eq!(counts.misses, gone.len() as u64);
    assert_eq!(counts.ghost_hits, remembered);
    // Neither a hit nor a block that was never here.
    assert!(cache.get(key(0)).is_some());
    assert_eq!(cache.get(key(20_000)), None);
    assert_eq!(cache.stats().total().ghost_hits, remembered);
}

#[test]
fn a_pointer_tells_the_kind_of_its_block() {
    let kind = |object_type, level| {
        let dva = Dva::new(VdevId::new(0), 1 << 20, 4096, false).expect("a place");
        let pointer = RegularPointer {
            dvas: [Some(dva), None, None],
            lsize_bytes: 4096,
            psize_bytes: 4096,
            compression: Compression::Off,
            checksum_kind: Checksum::Fletcher4,
            object_type,
            level,
            dedup: false,
            uses_crypt: false,
            rewritten: false,
            endian: Endian::Little,
            fill: 1,
            logical_birth: Txg::new(5),
            physical_birth: Txg::new(5),
            checksum: [1, 2, 3, 4],
            crypt: None,
        };
        BlockKind::of(&BlockPointer::regular(&pointer).expect("a pointer"))
    };
    for (object_type, level, expected) in [
        (ObjectType::PLAIN_FILE_CONTENTS, 0, BlockKind::Data),
        (ObjectType::PLAIN_FILE_CONTENTS, 1, BlockKind::Metadata),
        (ObjectType::ZVOL, 0, BlockKind::Data),
        (ObjectType::DEDUP, 0, BlockKind::Data),
        (ObjectType::DNODE, 0, BlockKind::Metadata),
        (ObjectType::DIRECTORY_CONTENTS, 0, BlockKind::Metadata),
        (ObjectType::OTN_UINT64_DATA, 0, BlockKind::Data),
        (ObjectType::DDT_ZAP, 0, BlockKind::DedupTable),
        (ObjectType::DDT_ZAP, 2, BlockKind::DedupTable),
    ] {
        assert_eq!(
            kind(object_type, level),
            expected,
            "{object_type:?} {level}"
        );
    }
}

#[test]
fn pools_compete_and_each_has_a_floor() {
    let limit = 8 << 20;
    let shared = SharedCache::new(limit);
    let (one, two) = (shared.join(), shared.join());
    let size = |cache: &Cache| cache.stats().total().size_bytes;
    // Who is alone has everything.
    scan(&one, 0..4000);
    assert!(size(&one) > limit / 10 * 9);
    // Who comes later drives out what is not used, but for a floor: the newest of it.
    scan(&two, 0..4000);
    let floor = floor_bytes(limit, 2);
    assert_eq!(floor, limit / 16);
    assert!(
        size(&one) <= floor && size(&one) + 5000 > floor,
        "{}",
        size(&one)
    );
    assert!(size(&one) + size(&two) <= limit && size(&two) > limit / 10 * 8);
    assert!(one.contains(key(3999)) && !one.contains(key(3000)));
    // What is used stays, more than a floor of it.
    for _ in 0..3 {
        for number in 0..800 {
            if one.get(key(number)).is_none() {
                one.insert(key(number), block(4096, number));
            }
        }
    }
    scan(&two, 10_000..14_000);
    assert!(size(&one) > limit / 3);
    assert!(size(&one) + size(&two) <= limit);
}

#[test]
fn floors_of_many_pools_leave_half_for_who_needs_more() {
    let limit = 8 << 20;
    let shared = SharedCache::new(limit);
    let pools: Vec<Cache> = (0..40).map(|_| shared.join()).collect();
    for pool in &pools {
        scan(pool, 0..500);
    }
    scan(&pools[7], 0..4000);
    let size = |cache: &Cache| cache.stats().total().size_bytes;
    let floor = floor_bytes(limit, 40);
    assert_eq!(floor, limit / 80);
    assert!(pools.iter().all(|pool| size(pool) + 5000 > floor));
    assert!(size(&pools[7]) > limit / 5 * 2);
    assert!(pools.iter().map(size).sum::<u64>() <= limit);
    // Without memory there are no floors either.
    shared.set_limit_bytes(0);
    assert!(pools.iter().all(|pool| size(pool) == 0));
}

#[test]
fn a_pool_sees_and_clears_its_own_blocks_only_and_takes_them_with_it() {
    let shared = SharedCache::new(8 << 20);
    let (one, two) = (shared.join(), shared.join());
    one.insert(key(1), block(4096, 1));
    assert_eq!(two.get(key(1)), None);
    two.insert(key(1), block(4096, 2));
    assert_eq!(one.get(key(1)), Some(block(4096, 1)));
    two.remove(key(1));
    assert!(one.contains(key(1)));
    two.insert(key(1), block(4096, 2));
    one.clear();
    assert!(!one.contains(key(1)) && two.contains(key(1)));
    one.insert(key(1), block(4096, 1));
    let charged = one.charge().take(1000);
    assert_eq!(
        (one.stats().charged_bytes, two.stats().charged_bytes),
        (1000, 0)
    );
    drop(charged);
    drop(one);
    let held = |shard: &Mutex<Shard>| {
        let shard = shard.lock();
        let blocks = (0..3).map(|pool| shard.held(pool).iter().map(|held| held.blocks).sum());
        blocks.collect::<Vec<u64>>()
    };
    assert_eq!(
        shared.shards.iter().map(held).collect::<Vec<_>>(),
        [[0, 1, 0]]
    );
    // Its number is another one's now.
    let three = shared.join();
    assert_eq!(three.pool, 0);
    assert_eq!(three.get(key(1)), None);
    assert_eq!(two.get(key(1)), Some(block(4096, 2)));
}

proptest! {
    /// The limit holds, sizes add up, nothing is ever found under a wrong key or in a wrong pool,
    /// and no pool loses by others what is below its floor.
    #[test]
    fn the_limit_holds(
        ops in prop::collection::vec((0usize..3, 0u64..60, 0u8..10, 1usize..80_000), 1..400),
    ) {
        let limit = 1 << 20;
        let shared = SharedCache::new(limit);
        let pools: Vec<Cache> = (0..3).map(|_| shared.join()).collect();
        let sizes = || {
            let sizes = pools.iter().map(|pool| pool.stats().total().size_bytes);
            sizes.collect::<Vec<u64>>()
        };
        let mut last: std::collections::HashMap<(usize, u64), usize> = Default::default();
        for (pool, number, what, length) in ops {
            let cache = &pools[pool];
            let before = sizes();
            match what {
                0 => {
                    cache.remove(key(number));
                    prop_assert!(!cache.contains(key(number)));
                }
                1..=4 => {
                    if let Some(found) = cache.get(key(number)) {
                        prop_assert_eq!(Some(&found.len()), last.get(&(pool, number)));
                        let byte = (pool as u64 * 60 + number) as u8;
                        prop_assert!(found.iter().all(|found| *found == byte));
                    }
                }
                _ => {
                    cache.insert(key(number), block(length, pool as u64 * 60 + number));
                    last.insert((pool, number), length);
                }
            }
            let after = sizes();
            prop_assert!(after.iter().sum::<u64>() <= limit);
            for other in (0..3).filter(|other| *other != pool) {
                let is_below = before[other] <= floor_bytes(limit, 3);
                prop_assert!(!is_below || after[other] == before[other]);
            }
            let sums = shared.shards[0].lock().sums();
            prop_assert_eq!(&sums[..], &after[..sums.len()]);
            prop_assert!(after[sums.len()..].iter().all(|size| *size == 0));
        }
    }
}
