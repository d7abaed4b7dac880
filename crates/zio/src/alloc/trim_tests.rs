//! Tests of what is held back for trimming.

use super::tests::{allocator, spec};
use super::trim::hold_budget;
use super::*;
use crate::testing::simulate;

const MIB: u64 = 1 << 20;
const BLOCK: u64 = 128 << 10;

fn request(txg: u64, psize_bytes: u64) -> Request {
    Request {
        txg: Txg::new(txg),
        psize_bytes,
        copies: 1,
        class: AllocClass::Normal,
        fallback: false,
        gang: false,
    }
}

/// An allocator with trimming on, and what it was told of txgs.
struct Bench {
    allocator: Allocator,
    txg: u64,
}

impl Bench {
    /// One vdev of so many metaslabs of 16 MiB.
    fn new(metaslabs: u64) -> Self {
        let allocator = allocator(&[spec(0, AllocClass::Normal, metaslabs)]);
        allocator.set_trimming(true);
        allocator.set_trim_batch_txgs(0);
        Bench { allocator, txg: 1 }
    }

    async fn allocate(&self, psize_bytes: u64) -> Dva {
        let request = request(self.txg, psize_bytes);
        self.allocator.allocate(&request).await.expect("space")[0].expect("a place")
    }

    fn free(&self, dva: &Dva) {
        self.allocator
            .free(Txg::new(self.txg), dva)
            .expect("it was allocated");
    }

    fn sync(&mut self, wrote: bool) {
        let txg = Txg::new(self.txg);
        self.allocator.take_changes(txg);
        self.allocator.sync_done(txg);
        self.allocator.age_trim(txg, wrote);
        self.txg += 1;
    }

    fn hold(&self) -> Option<TrimHold> {
        self.allocator.hold_for_trim(VdevId::new(0))
    }

    /// Txgs that are written until something can be held.
    fn sync_until_ripe(&mut self) -> u64 {
        for count in 1..20 {
            self.sync(true);
            if let Some(hold) = self.hold() {
                drop_back(self, hold);
                return count;
            }
        }
        panic!("nothing gets ripe");
    }
}

/// Gives back what was held, to be held again: the ranges came free, and nobody used them.
fn drop_back(bench: &Bench, hold: TrimHold) {
    let ranges = hold.ranges().clone();
    hold.done();
    let entry = bench.allocator.entry(VdevId::new(0)).expect("the vdev");
    let mut top = entry.top.lock();
    let queue = top.trim_queue().expect("trimming is on");
    queue.collect(&ranges, Txg::ZERO);
    for txg in 0..3 {
        queue.age(Txg::new(bench.txg + txg), true, 0);
    }
}

/// Goal: what is freed in a txg is discarded only when two more uberblocks than its own were written after it had come
/// free, so that no state which `import -F` may choose has it. Method: txgs with and without uberblocks.
#[test]
fn what_older_states_may_need_is_not_discarded() {
    simulate(async {
        for empty in [0, 1, 5, 40] {
            let mut bench = Bench::new(16);
            let dva = bench.allocate(BLOCK).await;
            bench.sync(true);
            bench.free(&dva);
            bench.sync(true);
            let freed = bench.txg - 1;
            for _ in 0..empty {
                bench.sync(false);
                assert!(bench.hold().is_none(), "no uberblock was written since");
            }
            let mut written = 0;
            let hold = loop {
                bench.sync(true);
                written += 1;
                if let Some(hold) = bench.hold() {
                    break hold;
                }
                assert!(written < 8);
            };
            assert!(written >= DEFER_TXGS && bench.txg - 1 - freed >= DEFER_TXGS);
            assert_eq!(
                hold.ranges().iter().collect::<Vec<_>>(),
                [(dva.offset_bytes(), BLOCK)]
            );
            hold.done();
        }
    });
}

/// Goal: nobody gets what is held, and everybody what was given back; what is used again is not discarded. Method: one
/// block's place in an otherwise full metaslab.
#[test]
fn what_is_held_is_not_allocated() {
    simulate(async {
        let mut bench = Bench::new(64);
        let mut places = Vec::new();
        for _ in 0..300 {
            places.push(bench.allocate(BLOCK).await);
        }
        bench.sync(true);
        let freed = places[7];
        bench.free(&freed);
        assert!(bench.sync_until_ripe() >= 2 * DEFER_TXGS);
        let totals = bench.allocator.totals();
        let hold = bench.hold().expect("it is ripe");
        assert_eq!(hold.ranges().space(), BLOCK);
        assert_eq!(bench.allocator.totals(), totals, "figures do not move");
        // Its space map goes on calling it free.
        let index = freed.offset_bytes() >> 24;
        let free = bench
            .allocator
            .recorded_free(VdevId::new(0), index)
            .expect("loaded");
        assert!(free.contains(freed.offset_bytes(), BLOCK));
        assert!(bench.allocator.free(Txg::new(bench.txg), &freed).is_err());
        for _ in 0..500 {
            assert_ne!(
                bench.allocate(BLOCK).await.offset_bytes(),
                freed.offset_bytes()
            );
        }
        hold.done();
        let found = async {
            loop {
                let dva = bench.allocate(BLOCK).await;
                if dva.offset_bytes() == freed.offset_bytes() {
                    return;
                }
            }
        };
        found.await;
        bench.sync(true);
        for _ in 0..9 {
            bench.sync(true);
            assert!(bench.hold().is_none());
        }
    });
}

/// Goal: what was allocated after it had come free is forgotten, in each of the sets that it may be in.
#[test]
fn what_is_used_again_is_not_discarded() {
    simulate(async {
        for wait in 2..6 {
            // So small that everything is used.
            let mut bench = Bench::new(8);
            let mut places = Vec::new();
            while bench.allocator.totals().normal_free_bytes > 72 * MIB {
                places.push(bench.allocate(MIB).await);
                if places.len() % 8 == 0 {
                    bench.sync(true);
                }
            }
            bench.sync(true);
            bench.free(&places[3]);
            for _ in 0..wait {
                bench.sync(true);
            }
            let mut taken = Vec::new();
            while let Ok(dvas) = bench.allocator.allocate(&request(bench.txg, MIB)).await {
                taken.push(dvas[0].expect("a place"));
            }
            let again = |dva: &Dva| dva.offset_bytes() == places[3].offset_bytes();
            let was_taken = taken.iter().any(again);
            assert_eq!(was_taken, wait > DEFER_TXGS);
            for dva in taken.iter().filter(|dva| !again(dva)) {
                bench.allocator.unallocate(Txg::new(bench.txg), dva);
            }
            for _ in 0..8 {
                bench.sync(true);
                if was_taken {
                    assert!(bench.hold().is_none(), "{wait}");
                }
            }
        }
    });
}

/// Goal: an allocation that finds no place while something is held waits for it, and then gets it; meanwhile and for a
/// while after nothing else is held. Method: all but what is held is taken.
#[test]
fn what_is_held_never_costs_an_allocation() {
    simulate(async {
        let mut bench = Bench::new(8);
        let mut places = Vec::new();
        for _ in 0..40 {
            places.push(bench.allocate(MIB).await);
        }
        bench.sync(true);
        for dva in &places {
            bench.free(dva);
        }
        bench.sync_until_ripe();
        let hold = bench.hold().expect("it is ripe");
        let held = hold.ranges().space();
        assert!(held > 0 && held <= 8 * 16 * MIB / 16);
        assert!(bench.hold().is_none(), "one at a time");
        let (allocator, txg) = (&bench.allocator, bench.txg);
        let fill = async {
            let mut bytes = 0;
            while allocator.allocate(&request(txg, BLOCK)).await.is_ok() {
                bytes += BLOCK;
            }
            bytes
        };
        let give_back = async {
            tokio::time::sleep(std::time::Duration::from_secs(60)).await;
            hold.done();
        };
        let (bytes, ()) = futures::future::join(fill, give_back).await;
        assert_eq!(bytes, 8 * 16 * MIB, "all of it, also what was held");
    });
}

/// Goal: what is freed while space is short is not discarded, as it does not wait. Method: a vdev with less free than is
/// kept back for deleting.
#[test]
fn what_did_not_wait_is_not_discarded() {
    simulate(async {
        let mut bench = Bench::new(8);
        let mut places = Vec::new();
        for _ in 0..90 {
            places.push(bench.allocate(MIB).await);
        }
        bench.sync(true);
        let totals = bench.allocator.totals();
        assert!(totals.normal_free_bytes < totals.slop_bytes);
        for dva in &places[..30] {
            bench.free(dva);
        }
        bench.sync(true);
        // Now space is not short any more.
        for dva in &places[30..60] {
            bench.free(dva);
        }
        for _ in 0..6 {
            bench.sync(true);
        }
        let mut seen = RangeSet::new();
        while let Some(hold) = bench.hold() {
            seen.add_all(hold.ranges());
            hold.done();
        }
        assert!(!seen.is_empty());
        for dva in &places[..30] {
            assert!(!seen.overlaps(dva.offset_bytes(), MIB));
        }
    });
}

/// What is dropped without an answer stays out of reach: a device may still be at work on it.
#[test]
fn a_hold_that_was_given_up_stays() {
    simulate(async {
        let mut bench = Bench::new(8);
        let dva = bench.allocate(MIB).await;
        bench.sync(true);
        bench.free(&dva);
        bench.sync_until_ripe();
        drop(bench.hold().expect("it is ripe"));
        let mut bytes = 0;
        while let Ok(dvas) = bench.allocator.allocate(&request(bench.txg, BLOCK)).await {
            let offset = dvas[0].expect("a place").offset_bytes();
            assert!(offset + BLOCK <= dva.offset_bytes() || offset >= dva.offset_bytes() + MIB);
            bytes += BLOCK;
        }
        assert_eq!(bytes, 8 * 16 * MIB - MIB);
    });
}

#[test]
fn little_is_held_and_nothing_where_little_is_free() {
    const GIB: u64 = 1 << 30;
    assert_eq!(hold_budget(GIB, 1000 * GIB, 4096), 0);
    assert_eq!(hold_budget(900 * GIB, 1000 * GIB, 4096), 128 * MIB);
    assert_eq!(hold_budget(160 * MIB, GIB, 4096), 10 * MIB);
    assert_eq!(hold_budget(160 * MIB, GIB, 3 * 4096) % (3 * 4096), 0);
}

/// An idle pool is asked for txgs and uberblocks until what was freed is ripe, and not for what these free themselves.
#[test]
fn an_idle_pool_comes_to_rest() {
    simulate(async {
        let mut bench = Bench::new(16);
        bench.allocator.set_trim_batch_txgs(TRIM_BATCH_TXGS);
        assert_eq!(bench.allocator.trim_waits(), None);
        let mut place = bench.allocate(BLOCK).await;
        // Too small to matter, and on its way already.
        let small = bench.allocate(4096).await;
        bench.sync(true);
        bench.free(&small);
        for _ in 0..=DEFER_TXGS {
            bench.sync(false);
        }
        assert_eq!(bench.allocator.trim_waits(), None);
        bench.free(&place);
        bench.sync(true);
        let (mut uberblocks, mut held) = (0, RangeSet::new());
        for _ in 0..200 {
            let wait = bench.allocator.trim_waits();
            let wrote = wait == Some(TrimWait::Uberblock);
            if wrote {
                uberblocks += 1;
                bench.allocator.note_forced_by_trim(Txg::new(bench.txg));
                // Writing frees what was written before, and takes new places.
                let new = bench.allocate(BLOCK).await;
                if uberblocks > 1 {
                    bench.free(&place);
                }
                place = new;
            }
            bench.sync(wrote);
            while let Some(hold) = bench.hold() {
                held.add_all(hold.ranges());
                hold.done();
            }
        }
        assert_eq!(bench.allocator.trim_waits(), None);
        assert!(
            (DEFER_TXGS..=2 * DEFER_TXGS).contains(&uberblocks),
            "{uberblocks}"
        );
        assert_eq!(held.space(), BLOCK);
    });
}
