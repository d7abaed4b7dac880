//! Tests of durable writes: that they are, what else is by that and what is not, and who knows when
//! one fails.

use std::time::Duration;

use bytes::Bytes;
use device::sim::{Fault, FaultEffect, Latency, PowerCut, SimOp, SimWorld};
use format::{Guid, LABEL_START_BYTES, Txg, VdevId};

use super::*;
use crate::error::VdevError;
use crate::report::Priority;
use crate::testing::{TestTree, group, leaf, simulate};

const TOP: VdevId = VdevId::new(0);

fn context(txg: u64, durable: bool) -> IoContext {
    IoContext {
        priority: Priority::Sync,
        birth: Txg::new(txg),
        durable,
        ..IoContext::default()
    }
}

fn block(content: u8) -> Bytes {
    Bytes::from(vec![content; 4096])
}

#[test]
fn a_durable_write_outlives_the_power_and_what_was_before_waits_for_a_flush() {
    simulate(async {
        let kinds = ["single", "mirror", "raidz"];
        for (kind, through) in kinds
            .into_iter()
            .flat_map(|kind| [(kind, false), (kind, true)])
        {
            let sim = SimWorld::new(3);
            let top = match kind {
                "single" => leaf(&sim, "d0", 11),
                "mirror" => group(&sim, "mirror", 0, "d", 2, 10),
                _ => group(&sim, "raidz", 1, "d", 3, 10),
            };
            let pool = TestTree::create(sim, vec![top], 12).await;
            let tree = &pool.tree;
            for name in pool.sim.disk_names() {
                pool.disk(&name).set_durable_writes(through);
            }
            let before = pool.sim.counts().flushes;
            tree.write_block(TOP, 0, block(1), &context(5, false))
                .await
                .expect("written");
            assert_eq!(pool.sim.counts().flushes, before);
            tree.write_block(TOP, 1 << 20, block(2), &context(5, true))
                .await
                .expect("written");
            tree.settle_written(TOP).expect("durable");
            assert_eq!(pool.sim.counts().flushes == before, through);
            if kind != "raidz" {
                // What was written before is kept until somebody flushes, whatever the disk did.
                for vdev in tree.tops()[0].leaves() {
                    assert!(vdev.leaf().expect("a leaf").has_kept());
                }
                pool.sim.power_cut(PowerCut::LoseUnflushed);
                let disk = pool.disk("d0");
                let first = block(u8::from(!through));
                assert_eq!(disk.peek(LABEL_START_BYTES, 4096), first);
                assert_eq!(disk.peek(LABEL_START_BYTES + (1 << 20), 4096), block(2));
            }
        }
    });
}

#[test]
fn a_mirror_goes_on_without_the_device_whose_flush_failed() {
    simulate(async {
        let sim = SimWorld::new(4);
        let mirror = group(&sim, "mirror", 0, "m", 2, 20);
        let pool = TestTree::create(sim, vec![mirror], 12).await;
        let tree = &pool.tree;
        tree.write_block(TOP, 0, block(1), &context(5, false))
            .await
            .expect("written");
        // Again when what it may have lost has been written again.
        let fault = Fault::new(SimOp::Flush, FaultEffect::Error).times(2);
        pool.disk("m0").inject(fault);
        tree.write_block(TOP, 1 << 20, block(2), &context(7, true))
            .await
            .expect("the other device has it");
        tree.settle_written(TOP)
            .expect("the other device has all of it");
        let m0 = tree.find(Guid::new(21)).expect("m0");
        assert_eq!(m0.state().0, VdevState::Faulted);
        // It took both, and nobody knows whether it has them.
        assert!(m0.is_missing(0, Txg::new(5)) && m0.is_missing(0, Txg::new(7)));
        let m1 = tree.find(Guid::new(22)).expect("m1");
        assert!(!m1.is_missing(0, Txg::new(5)) && !m1.is_missing(0, Txg::new(7)));
    });
}

#[test]
fn what_a_lone_device_did_not_flush_is_written_again() {
    simulate(async {
        let sim = SimWorld::new(5);
        let single = leaf(&sim, "single", 10);
        let pool = TestTree::create(sim, vec![single], 12).await;
        let tree = &pool.tree;
        let disk = pool.disk("single");
        tree.write_block(TOP, 0, block(1), &context(5, false))
            .await
            .expect("written");
        disk.inject(Fault::new(SimOp::Flush, FaultEffect::Error).times(2));
        tree.write_block(TOP, 1 << 20, block(2), &context(5, true))
            .await
            .expect_err("not durable");
        let leaf = tree.find(Guid::new(10)).expect("the device");
        assert_eq!(leaf.state().0, VdevState::Faulted);
        assert!(!leaf.is_missing(0, Txg::new(5)), "it is kept instead");
        let error = tree.settle_written(TOP).expect_err("nothing else has it");
        assert!(matches!(error, VdevError::NotDurable { .. }));
        let places = [0, 1 << 20].map(|offset| LABEL_START_BYTES + offset);
        for place in places {
            disk.corrupt(place, 4096);
        }
        pool.clear().await.expect("cleared");
        for (place, content) in places.into_iter().zip([1, 2]) {
            assert_eq!(disk.peek(place, 4096), block(content));
        }
        assert!(!leaf.leaf().expect("a leaf").has_kept());
    });
}

/// Goal: what is kept is not forgotten by a durable write, and is written again when the device is
/// back; nor does an older write come back over the durable one. Method: a disk that writes through
/// its cache loses the rest of it, and comes back.
#[test]
fn a_durable_write_makes_nothing_else_durable() {
    simulate(async {
        let sim = SimWorld::new(8);
        let single = leaf(&sim, "single", 10);
        let pool = TestTree::create(sim, vec![single], 12).await;
        let tree = &pool.tree;
        let disk = pool.disk("single");
        disk.set_durable_writes(true);
        let writes = [(1, 9, false), (0, 1, false), (1, 2, true), (2, 3, false)];
        for (place, content, durable) in writes {
            tree.write_block(TOP, place << 20, block(content), &context(5, durable))
                .await
                .expect("written");
        }
        disk.lose_cache(PowerCut::LoseUnflushed);
        let at = |place: u64| disk.peek(LABEL_START_BYTES + (place << 20), 4096);
        assert_eq!([at(0), at(1), at(2)], [block(0), block(2), block(0)]);
        disk.set_gone(true);
        tree.write_block(TOP, 3 << 20, block(4), &context(5, true))
            .await
            .expect_err("gone");
        tree.settle_written(TOP).expect_err("nothing else has it");
        disk.set_gone(false);
        pool.clear().await.expect("cleared");
        assert_eq!([at(0), at(1), at(2)], [block(1), block(2), block(3)]);
        let vdev = tree.find(Guid::new(10)).expect("the device");
        assert!(!vdev.leaf().expect("a leaf").has_kept());
    });
}

/// Goal: a flush that fails within a durable write, and that the device then says is well, loses
/// nothing of what was written before. Method: a disk without such writes, whose flush fails once
/// and takes its cache with it.
#[test]
fn what_a_durable_write_may_have_lost_is_written_again() {
    simulate(async {
        let sim = SimWorld::new(9);
        let single = leaf(&sim, "single", 10);
        let pool = TestTree::create(sim, vec![single], 12).await;
        let tree = &pool.tree;
        let disk = pool.disk("single");
        tree.write_block(TOP, 0, block(1), &context(5, false))
            .await
            .expect("written");
        disk.lose_cache(PowerCut::LoseUnflushed);
        disk.inject(Fault::new(SimOp::Flush, FaultEffect::Error).times(1));
        tree.write_block(TOP, 1 << 20, block(2), &context(5, true))
            .await
            .expect("durable in the end");
        tree.settle_written(TOP).expect("durable");
        pool.sim.power_cut(PowerCut::LoseUnflushed);
        for (place, content) in [(0, 1), (1 << 20, 2)] {
            assert_eq!(disk.peek(LABEL_START_BYTES + place, 4096), block(content));
        }
    });
}

/// Goal: nor is it lost by a flush of somebody else that is under way then and succeeds. Method:
/// one that takes a second; within that the disk loses its cache, and a durable write's own flush
/// fails.
#[test]
fn a_flush_does_not_count_when_a_durable_write_failed_meanwhile() {
    simulate(async {
        let sim = SimWorld::new(10);
        let single = leaf(&sim, "single", 10);
        let pool = TestTree::create(sim, vec![single], 12).await;
        let tree = &pool.tree;
        let disk = pool.disk("single");
        tree.write_block(TOP, 0, block(1), &context(5, false))
            .await
            .expect("written");
        let slow = FaultEffect::Delay(Duration::from_secs(1));
        disk.inject(Fault::new(SimOp::Flush, slow).times(1));
        let failing = async {
            tokio::time::sleep(Duration::from_millis(100)).await;
            disk.lose_cache(PowerCut::LoseUnflushed);
            disk.inject(Fault::new(SimOp::Flush, FaultEffect::Error).times(1));
            tree.write_block(TOP, 1 << 20, block(2), &context(5, true))
                .await
        };
        let (flushed, written) = futures::join!(tree.flush(), failing);
        flushed.expect("in the end");
        written.expect("in the end");
        pool.sim.power_cut(PowerCut::LoseUnflushed);
        for (place, content) in [(0, 1), (1 << 20, 2)] {
            assert_eq!(disk.peek(LABEL_START_BYTES + place, 4096), block(content));
        }
    });
}

/// Goal: nor is a durable write lost whose own flush succeeds after that of another one failed.
/// Method: as above, with a durable write in place of the flush: it is in the cache that is lost.
#[test]
fn a_durable_write_does_not_count_when_another_failed_meanwhile() {
    simulate(async {
        let sim = SimWorld::new(11);
        let single = leaf(&sim, "single", 10);
        let pool = TestTree::create(sim, vec![single], 12).await;
        let tree = &pool.tree;
        let disk = pool.disk("single");
        let slow = FaultEffect::Delay(Duration::from_secs(1));
        disk.inject(Fault::new(SimOp::Flush, slow).times(1));
        let context = context(5, true);
        let failing = async {
            tokio::time::sleep(Duration::from_millis(100)).await;
            disk.lose_cache(PowerCut::LoseUnflushed);
            disk.inject(Fault::new(SimOp::Flush, FaultEffect::Error).times(1));
            tree.write_block(TOP, 1 << 20, block(2), &context).await
        };
        let slow = tree.write_block(TOP, 0, block(1), &context);
        let (slow, failing) = futures::join!(slow, failing);
        slow.expect("in the end");
        failing.expect("in the end");
        pool.sim.power_cut(PowerCut::LoseUnflushed);
        for (place, content) in [(0, 1), (1 << 20, 2)] {
            assert_eq!(disk.peek(LABEL_START_BYTES + place, 4096), block(content));
        }
    });
}

/// Goal: nor is it answered before the other one's flush has failed, however late that is told: a
/// crash may come as soon as it is. Method: power is cut at that moment.
#[test]
fn a_durable_write_is_answered_after_those_that_were_under_way() {
    simulate(async {
        let sim = SimWorld::new(12);
        let single = leaf(&sim, "single", 10);
        let pool = TestTree::create(sim, vec![single], 12).await;
        let tree = &pool.tree;
        let disk = pool.disk("single");
        let context = context(5, true);
        let in_time = async |seconds| tokio::time::sleep(Duration::from_secs(seconds)).await;
        // The write whose flush fails: that takes its answer ten seconds.
        disk.inject(Fault::new(SimOp::Write, FaultEffect::Delay(Duration::from_secs(10))).times(1));
        let failing = async {
            // In the end it finds that there is no power.
            let _ = tree.write_block(TOP, 1 << 20, block(2), &context).await;
        };
        let quick = async {
            in_time(1).await;
            let flush = FaultEffect::Delay(Duration::from_secs(2));
            disk.inject(Fault::new(SimOp::Flush, flush).times(1));
            let losing = async {
                in_time(1).await;
                disk.lose_cache(PowerCut::LoseUnflushed);
                in_time(5).await;
                disk.inject(Fault::new(SimOp::Flush, FaultEffect::Error).times(1));
            };
            let written = async {
                let written = tree.write_block(TOP, 0, block(1), &context).await;
                written.expect("in the end");
                pool.sim.power_cut(PowerCut::LoseUnflushed);
                assert_eq!(disk.peek(LABEL_START_BYTES, 4096), block(1));
            };
            futures::join!(losing, written);
        };
        futures::join!(failing, quick);
    });
}

async fn after_ms(ms: u64) {
    tokio::time::sleep(Duration::from_millis(ms)).await;
}

/// A flush of the tree that one of its disks fails after so many milliseconds.
async fn failing_flush(pool: &TestTree, name: &str, fails_ms: u64) -> Result<(), VdevError> {
    let disk = pool.disk(name);
    disk.inject(Fault::new(SimOp::Flush, FaultEffect::Error).times(1));
    disk.set_latency(Latency {
        flush: Duration::from_millis(fails_ms),
        ..Latency::NONE
    });
    let at_others = async {
        after_ms(1).await;
        disk.set_latency(Latency::NONE);
        std::future::pending::<()>().await;
    };
    tokio::select! {
        flushed = pool.tree.flush() => flushed,
        () = at_others => unreachable!("it is pending"),
    }
}

/// A durable write half a second from now on. In the second that its own flush takes the disk loses
/// its cache, and that flush does not tell: another one that is under way does.
async fn write_that_is_lost(pool: &TestTree, name: &str, txg: u64) -> Result<(), WriteFailure> {
    let disk = pool.disk(name);
    after_ms(500).await;
    let slow = FaultEffect::Delay(Duration::from_secs(1));
    disk.inject(Fault::new(SimOp::Flush, slow).times(1));
    let losing = async {
        after_ms(300).await;
        disk.lose_cache(PowerCut::LoseUnflushed);
    };
    let context = context(txg, true);
    let written = pool.tree.write_block(TOP, 0, block(1), &context);
    futures::join!(written, losing).0
}

/// Goal: a plain flush that fails beside a durable write takes nothing along that was answered,
/// whichever of them ends first. Method: a disk that loses its cache and tells only the flush.
#[test]
fn a_durable_write_does_not_count_when_a_flush_beside_it_failed() {
    for fails_ms in [1000, 10_000] {
        simulate(async {
            let sim = SimWorld::new(13);
            let single = leaf(&sim, "single", 10);
            let pool = TestTree::create(sim, vec![single], 12).await;
            let (tree, disk) = (&pool.tree, pool.disk("single"));
            tree.write_block(TOP, 1 << 20, block(2), &context(5, false))
                .await
                .expect("written");
            let flushed = failing_flush(&pool, "single", fails_ms);
            let written = write_that_is_lost(&pool, "single", 7);
            let (flushed, written) = futures::join!(flushed, written);
            flushed.expect_err("it was told");
            written.expect_err("it is not there");
            assert_eq!(disk.peek(LABEL_START_BYTES, 4096), block(0));
            let leaf = tree.find(Guid::new(10)).expect("the device");
            assert_eq!(leaf.state().0, VdevState::Faulted);
            assert!(!leaf.is_missing(0, Txg::new(7)), "it is kept instead");
            pool.clear().await.expect("cleared");
            pool.sim.power_cut(PowerCut::LoseUnflushed);
            for (place, content) in [(0, 1), (1 << 20, 2)] {
                assert_eq!(disk.peek(LABEL_START_BYTES + place, 4096), block(content));
            }
        });
    }
}

/// Goal: a mirror knows of the half that it lacks such a write. Method: the same.
#[test]
fn a_device_misses_the_durable_write_that_a_failed_flush_took_along() {
    for fails_ms in [1000, 10_000] {
        simulate(async {
            let sim = SimWorld::new(14);
            let mirror = group(&sim, "mirror", 0, "m", 2, 20);
            let pool = TestTree::create(sim, vec![mirror], 12).await;
            let tree = &pool.tree;
            let flushed = failing_flush(&pool, "m0", fails_ms);
            let written = write_that_is_lost(&pool, "m0", 7);
            let (flushed, written) = futures::join!(flushed, written);
            flushed.expect("the other device has all");
            written.expect("the other device has it");
            tree.settle_written(TOP).expect("the other device has it");
            let [m0, m1] = [21, 22].map(|guid| tree.find(Guid::new(guid)).expect("a device"));
            assert_eq!(m0.state().0, VdevState::Faulted);
            assert!(m0.is_missing(0, Txg::new(7)));
            assert!(!m1.is_missing(0, Txg::new(7)));
        });
    }
}

/// Goal: nor does a flush count beside which another one failed, and of two that failed the writes
/// are made again in the order in which the disk took them. Method: the disk loses its cache while
/// one of them is under way, and another block was written to the same place in between.
#[test]
fn what_two_flushes_were_to_cover_is_written_again_when_one_of_them_failed() {
    // When the first one ends, of those that fail; the second one fails after two seconds.
    for fails_ms in [None, Some(1500), Some(10_000)] {
        simulate(async {
            let sim = SimWorld::new(15);
            let single = leaf(&sim, "single", 10);
            let pool = TestTree::create(sim, vec![single], 12).await;
            let (tree, disk) = (&pool.tree, pool.disk("single"));
            let write = async |place, content| {
                let context = context(5, false);
                let written = tree.write_block(TOP, place, block(content), &context);
                written.await.expect("written");
            };
            write(0, 1).await;
            write(1 << 20, 2).await;
            let first = async {
                match fails_ms {
                    Some(fails_ms) => failing_flush(&pool, "single", fails_ms).await,
                    None => {
                        let slow = FaultEffect::Delay(Duration::from_secs(4));
                        disk.inject(Fault::new(SimOp::Flush, slow).times(1));
                        tree.flush().await
                    }
                }
            };
            let second = async {
                after_ms(500).await;
                disk.lose_cache(PowerCut::LoseUnflushed);
                write(0, 3).await;
                disk.lose_cache(PowerCut::LoseUnflushed);
                failing_flush(&pool, "single", 1500).await
            };
            let (first, second) = futures::join!(first, second);
            first.expect_err("lost");
            second.expect_err("it was told");
            pool.clear().await.expect("cleared");
            pool.sim.power_cut(PowerCut::LoseUnflushed);
            for (place, content) in [(0, 3), (1 << 20, 2)] {
                let found = disk.peek(LABEL_START_BYTES + place, 4096);
                assert_eq!(found, block(content), "{fails_ms:?}");
            }
        });
    }
}

/// Goal: how a flush ends that nobody waits for any more, nobody knows: it counts as failed.
/// Method: one that is dropped, while the disk loses what both it and a durable write had in the
/// cache.
#[test]
fn a_flush_that_nobody_waits_for_counts_as_failed() {
    simulate(async {
        let sim = SimWorld::new(16);
        let single = leaf(&sim, "single", 10);
        let pool = TestTree::create(sim, vec![single], 12).await;
        let (tree, disk) = (&pool.tree, pool.disk("single"));
        tree.write_block(TOP, 1 << 20, block(2), &context(5, false))
            .await
            .expect("written");
        let left = failing_flush(&pool, "single", 10_000);
        let left = tokio::time::timeout(Duration::from_secs(5), left);
        let (left, written) = futures::join!(left, write_that_is_lost(&pool, "single", 7));
        left.expect_err("it takes longer");
        written.expect("in the end");
        pool.sim.power_cut(PowerCut::LoseUnflushed);
        for (place, content) in [(0, 1), (1 << 20, 2)] {
            assert_eq!(disk.peek(LABEL_START_BYTES + place, 4096), block(content));
        }
    });
}

/// Goal: a durable write waits for no flush that begins later, nor for ever for one that the device
/// does not answer. Method: disks that write through their caches, with slow flushes, and one that
/// stalls.
#[test]
fn a_durable_write_waits_only_for_what_was_under_way() {
    simulate(async {
        let sim = SimWorld::new(17);
        let mirror = group(&sim, "mirror", 0, "m", 2, 20);
        let pool = TestTree::create(sim, vec![mirror], 12).await;
        let tree = &pool.tree;
        for name in ["m0", "m1"] {
            pool.disk(name).set_durable_writes(true);
            pool.disk(name).set_latency(Latency {
                flush: Duration::from_secs(1),
                ..Latency::NONE
            });
        }
        // One flush after the other, each of which begins before the one before has ended.
        let begun = tokio::time::Instant::now();
        let flushes = (0..20).map(|number| async move {
            after_ms(number * 500).await;
            tree.flush().await.expect("flushed");
        });
        let written = async {
            after_ms(700).await;
            let context = context(7, true);
            let written = tree.write_block(TOP, 0, block(1), &context);
            written.await.expect("written");
            assert!(begun.elapsed() < Duration::from_millis(1600));
        };
        futures::join!(futures::future::join_all(flushes), written);

        pool.disk("m1")
            .inject(Fault::new(SimOp::Flush, FaultEffect::Stall));
        let written = async {
            after_ms(100).await;
            tree.write_block(TOP, 0, block(2), &context(8, true)).await
        };
        let both = async { futures::join!(tree.flush(), written) };
        let both = tokio::time::timeout(Duration::from_secs(90), both).await;
        let (flushed, written) = both.expect("nobody waits for ever");
        flushed.expect("the other disk has all");
        written.expect("the other disk has it");
        tree.settle_written(TOP).expect("the other disk has it");
        let m1 = tree.find(Guid::new(22)).expect("a device");
        assert!(m1.is_missing(0, Txg::new(8)));
        pool.disk("m1").release();
    });
}

#[test]
fn a_write_that_fails_is_not_flushed_and_faults_nothing() {
    simulate(async {
        let sim = SimWorld::new(6);
        let single = leaf(&sim, "single", 10);
        let pool = TestTree::create(sim, vec![single], 12).await;
        let tree = &pool.tree;
        let before = pool.sim.counts().flushes;
        let fault = Fault::new(SimOp::Write, FaultEffect::NoSpace).times(2);
        pool.disk("single").inject(fault);
        tree.write_block(TOP, 0, block(1), &context(5, true))
            .await
            .expect_err("no space");
        assert_eq!(pool.sim.counts().flushes, before);
        let leaf = tree.find(Guid::new(10)).expect("the device");
        assert_eq!(leaf.state().0, VdevState::Healthy);
        assert!(!leaf.leaf().expect("a leaf").has_kept());
    });
}

#[test]
fn a_flush_does_not_pass_by_a_device_that_another_one_is_flushing() {
    simulate(async {
        for kind in ["single", "mirror"] {
            let sim = SimWorld::new(7);
            let top = match kind {
                "single" => leaf(&sim, "m0", 21),
                _ => group(&sim, "mirror", 0, "m", 2, 20),
            };
            let pool = TestTree::create(sim, vec![top], 12).await;
            let tree = &pool.tree;
            let tops = tree.tops();
            let names: Vec<String> = pool.sim.disk_names();
            for name in &names {
                pool.disk(name).set_latency(Latency {
                    flush: Duration::from_millis(10),
                    ..Latency::NONE
                });
            }
            tree.write_block(TOP, 0, block(1), &context(5, false))
                .await
                .expect("written");
            let first = tree.flush_tops(&tops);
            let second = async {
                tokio::time::sleep(Duration::from_millis(2)).await;
                for name in &names {
                    pool.disk(name).set_gone(true);
                }
                // Somebody finds out.
                tree.write_block(TOP, 1 << 20, block(2), &context(5, false))
                    .await
                    .expect_err("gone");
                tree.flush_tops(&tops).await
            };
            let (first, second) = futures::join!(first, second);
            first.expect_err("not flushed");
            second.expect_err("the first one has it, and fails");
        }
    });
}
