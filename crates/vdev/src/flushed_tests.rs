//! Tests of writes that are flushed in one go: what is durable behind them, and who knows when the flush fails.

use std::time::Duration;

use bytes::Bytes;
use device::sim::{Fault, FaultEffect, Latency, PowerCut, SimOp, SimWorld};
use format::{Guid, LABEL_START_BYTES, Txg, VdevId};

use super::*;
use crate::error::VdevError;
use crate::report::Priority;
use crate::testing::{TestTree, group, leaf, simulate};

const TOP: VdevId = VdevId::new(0);

fn context(txg: u64, flush: bool) -> IoContext {
    IoContext {
        priority: Priority::Sync,
        birth: Txg::new(txg),
        flush,
        ..IoContext::default()
    }
}

fn block(content: u8) -> Bytes {
    Bytes::from(vec![content; 4096])
}

#[test]
fn what_is_flushed_with_a_write_outlives_the_power() {
    simulate(async {
        for kind in ["single", "mirror", "raidz"] {
            let sim = SimWorld::new(3);
            let top = match kind {
                "single" => leaf(&sim, "d0", 11),
                "mirror" => group(&sim, "mirror", 0, "d", 2, 10),
                _ => group(&sim, "raidz", 1, "d", 3, 10),
            };
            let pool = TestTree::create(sim, vec![top], 12).await;
            let tree = &pool.tree;
            let before = pool.sim.counts().flushes;
            tree.write_block(TOP, 0, block(1), &context(5, false))
                .await
                .expect("written");
            assert_eq!(pool.sim.counts().flushes, before);
            tree.write_block(TOP, 1 << 20, block(2), &context(5, true))
                .await
                .expect("written");
            tree.settle_written(TOP).expect("durable");
            assert!(pool.sim.counts().flushes > before);
            if kind != "raidz" {
                // Nothing waits for the next flush: not what was written before either.
                for vdev in tree.tops()[0].leaves() {
                    assert!(!vdev.leaf().expect("a leaf").has_kept());
                }
                pool.sim.power_cut(PowerCut::LoseUnflushed);
                let disk = pool.disk("d0");
                assert_eq!(disk.peek(LABEL_START_BYTES, 4096), block(1));
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
        let fault = Fault::new(SimOp::Flush, FaultEffect::Error).times(1);
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
        disk.inject(Fault::new(SimOp::Flush, FaultEffect::Error).times(1));
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
