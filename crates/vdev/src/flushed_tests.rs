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
