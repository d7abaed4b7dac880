//! Tests of the cache.

use proptest::prelude::*;

use super::*;

fn key(number: u64) -> CacheKey {
    CacheKey {
        vdev: VdevId::new(0),
        offset_bytes: number << 12,
        birth: 5,
        sum: number,
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
    let stats = cache.stats();
    assert_eq!((stats.hits, stats.misses, stats.blocks), (2, 1, 1));
    assert_eq!(stats.size_bytes, 512 + OVERHEAD_BYTES);
    cache.remove(key(1));
    assert_eq!(cache.get(key(1)), None);
    assert_eq!(cache.stats().size_bytes, 0);
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
    assert!(cache.stats().size_bytes > 32 << 20);
    cache.set_limit_bytes(4 << 20);
    assert!(cache.stats().size_bytes <= 4 << 20);
    cache.set_limit_bytes(0);
    assert_eq!(cache.stats().size_bytes, 0);
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
        (stats.size_bytes, stats.charged_bytes)
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

proptest! {
    /// The limit holds, sizes add up, and nothing is ever found under a wrong key.
    #[test]
    fn the_limit_holds(ops in prop::collection::vec((0u64..60, 0u8..10, 1usize..80_000), 1..400)) {
        let limit = 1 << 20;
        let cache = Cache::new(limit);
        let mut last: std::collections::HashMap<u64, usize> = Default::default();
        for (number, what, length) in ops {
            match what {
                0 => {
                    cache.remove(key(number));
                    prop_assert!(!cache.contains(key(number)));
                }
                1..=4 => {
                    if let Some(found) = cache.get(key(number)) {
                        prop_assert_eq!(Some(&found.len()), last.get(&number));
                        prop_assert!(found.iter().all(|byte| *byte == number as u8));
                    }
                }
                _ => {
                    cache.insert(key(number), block(length, number));
                    last.insert(number, length);
                }
            }
            prop_assert!(cache.stats().size_bytes <= limit);
            let sum: u64 = cache.shards.iter()
                .map(|shard| {
                    let shard = shard.lock();
                    let weights = shard.entries.values().map(|entry| weight(&entry.data));
                    weights.sum::<u64>()
                })
                .sum();
            prop_assert_eq!(sum, cache.stats().size_bytes);
        }
    }
}
