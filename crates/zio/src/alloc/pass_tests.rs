//! Tests of passes over free space: what is held is free, also in older states, and nobody gets it.

use super::tests::{allocator, spec};
use super::*;
use crate::testing::simulate;

const MIB: u64 = 1 << 20;
const BLOCK: u64 = 128 << 10;

/// An allocator, and the txg that is open.
struct Bench {
    allocator: Allocator,
    txg: u64,
}

impl Bench {
    /// One vdev of so many metaslabs of 16 MiB, of which two uberblocks were written.
    fn new(metaslabs: u64) -> Self {
        let mut bench = Bench {
            allocator: allocator(&[spec(0, AllocClass::Normal, metaslabs)]),
            txg: 1,
        };
        bench.sync(true);
        bench.sync(true);
        bench
    }

    fn request(&self) -> Request {
        Request {
            txg: Txg::new(self.txg),
            psize_bytes: BLOCK,
            copies: 1,
            class: AllocClass::Normal,
            fallback: false,
            gang: false,
        }
    }

    async fn allocate(&self) -> Option<Dva> {
        let request = self.request();
        self.allocator.allocate(&request).await.ok()?[0]
    }

    fn free(&self, dva: &Dva) {
        let freed = self.allocator.free(Txg::new(self.txg), dva);
        freed.expect("it was allocated");
    }

    fn sync(&mut self, wrote: bool) {
        let txg = Txg::new(self.txg);
        self.allocator.take_changes(txg);
        self.allocator.sync_done(txg);
        if wrote {
            self.allocator.note_written();
        }
        self.txg += 1;
    }

    async fn hold(&self, from: u64, bytes: u64) -> FreeHoldResult {
        let txg = Txg::new(self.txg);
        let id = VdevId::new(0);
        self.allocator.hold_free(txg, id, from, bytes).await
    }

    /// All that a pass gets.
    async fn pass(&self) -> RangeSet {
        let (mut all, mut from) = (RangeSet::new(), 0);
        loop {
            match self.hold(from, MIB).await {
                FreeHoldResult::Held(hold) => {
                    for (start, length) in hold.ranges().iter() {
                        assert!(start >= from && start + length <= hold.next());
                        assert_eq!(all.add(start, length), length);
                    }
                    from = hold.next();
                    hold.done();
                }
                FreeHoldResult::End => return all,
                FreeHoldResult::Busy => panic!("nobody waits"),
            }
        }
    }
}

/// Goal: a pass gets everything that is free, and nothing that was freed less than two uberblocks
/// ago. Method: txgs with and without uberblocks.
#[test]
fn a_pass_gets_what_is_free_in_older_states_too() {
    simulate(async {
        for empty in [0, 1, 5] {
            let mut bench = Bench::new(4);
            let all = 64 * MIB;
            let (kept, gone) = (bench.allocate().await, bench.allocate().await);
            let (kept, gone) = (kept.expect("space"), gone.expect("space"));
            let got = bench.pass().await;
            assert_eq!(got.space(), all - 2 * BLOCK);
            assert!(!got.overlaps(kept.offset_bytes(), BLOCK));
            bench.sync(true);
            bench.free(&gone);
            bench.sync(true);
            for _ in 0..empty {
                bench.sync(false);
                assert!(!bench.pass().await.overlaps(gone.offset_bytes(), BLOCK));
            }
            let mut written = 0;
            while !bench.pass().await.overlaps(gone.offset_bytes(), BLOCK) {
                bench.sync(true);
                written += 1;
                assert!(written < 8);
            }
            assert!(written >= DEFER_TXGS);
            assert_eq!(bench.pass().await.space(), all - BLOCK);
        }
    });
}

/// Nothing is held before enough uberblocks were written: what an import finds free may have been
/// freed by the newest txg.
#[test]
fn a_pool_that_was_just_opened_is_left_alone() {
    simulate(async {
        let mut bench = Bench {
            allocator: allocator(&[spec(0, AllocClass::Normal, 2)]),
            txg: 1,
        };
        for wrote in [true, false, true] {
            assert!(matches!(bench.hold(0, MIB).await, FreeHoldResult::Busy));
            bench.sync(wrote);
        }
        assert!(matches!(bench.hold(0, MIB).await, FreeHoldResult::Held(_)));
    });
}

/// Goal: nobody gets what is held until the last of those who hold it is done, and what nobody was
/// done with stays away. Method: two passes at the same place.
#[test]
fn passes_share_what_they_hold() {
    simulate(async {
        let bench = Bench::new(1);
        let FreeHoldResult::Held(first) = bench.hold(0, MIB).await else {
            panic!("all is free");
        };
        let FreeHoldResult::Held(second) = bench.hold(0, MIB).await else {
            panic!("all is free");
        };
        assert_eq!(first.ranges(), second.ranges());
        let held = first.ranges().clone();
        let is_held = |dva: &Dva| held.overlaps(dva.offset_bytes(), dva.asize_bytes());
        first.done();
        let mut count = 0;
        for _ in 0..60 {
            let dva = bench.allocate().await.expect("space");
            assert!(!is_held(&dva));
            count += 1;
        }
        second.done();
        // The rest of the metaslab, what was held included.
        while count < 16 * MIB / BLOCK {
            bench.allocate().await.expect("what was held is back");
            count += 1;
        }
        assert!(bench.allocate().await.is_none());
    });
}

/// Goal: an allocation that needs what is held waits for it instead of failing, and the pass is
/// told to rest. Method: a metaslab that is full but for what is held.
#[test]
fn an_allocation_waits_for_what_is_held() {
    simulate(async {
        let bench = Bench::new(1);
        let blocks = 16 * MIB / BLOCK;
        for _ in 0..blocks - 1 {
            bench.allocate().await.expect("space");
        }
        let FreeHoldResult::Held(hold) = bench.hold(0, MIB).await else {
            panic!("a block is free");
        };
        assert!(hold.ranges().space() <= BLOCK);
        let release = async {
            tokio::task::yield_now().await;
            assert!(matches!(bench.hold(0, MIB).await, FreeHoldResult::Busy));
            hold.done();
        };
        let (dva, ()) = futures::join!(bench.allocate(), release);
        assert!(dva.is_some());
    });
}

/// A hold that is dropped stays: nobody knows what a device is still about to do.
#[test]
fn what_is_not_done_stays_held() {
    simulate(async {
        let bench = Bench::new(2);
        let FreeHoldResult::Held(hold) = bench.hold(0, MIB).await else {
            panic!("all is free");
        };
        let held = hold.ranges().clone();
        drop(hold);
        let got = bench.pass().await;
        assert_eq!(got.space(), 32 * MIB);
        let mut count = 0;
        while let Some(dva) = {
            let request = bench.request();
            let allocated = bench.allocator.allocate(&request);
            // It waits for ever for the rest.
            tokio::select! {
                biased;
                dva = allocated => dva.ok(),
                () = async { for _ in 0..10 { tokio::task::yield_now().await } } => None,
            }
        } {
            let dva = dva[0].expect("a place");
            assert!(!held.overlaps(dva.offset_bytes(), dva.asize_bytes()));
            count += 1;
        }
        assert_eq!(count, (32 * MIB - held.space()) / BLOCK);
    });
}
