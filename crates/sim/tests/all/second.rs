//! Goal: a cache device that fails, lies, hangs, vanishes and loses its power changes nothing of
//! what a pool gives, before and after crashes. Method: torture with hardly any memory, so that
//! much is read from the cache device; small ones begin empty after each import, large ones are
//! warm. Two of three are trimmed, where that does not fail.

use sim::torture::{Plan, run_plan, seeds};

use crate::crash::run_all;

fn with_a_bad_cache(seed: u64) -> Plan {
    let plan = Plan::of(seed);
    Plan {
        cached_mib: Some(if seed.is_multiple_of(2) { 64 } else { 1100 }),
        cache_trim: !seed.is_multiple_of(3),
        zdb: seed.is_multiple_of(5),
        ..plan
    }
}

#[test]
fn nothing_shows_of_a_bad_cache_device() {
    run_all(&seeds(24), with_a_bad_cache);
}

/// It is used.
#[test]
fn much_is_read_from_it() {
    let reads = (1..5).map(|seed| run_plan(&with_a_bad_cache(seed)).unwrap().0.cached_reads);
    let reads: u64 = reads.sum();
    assert!(reads > 100, "{reads}");
}
