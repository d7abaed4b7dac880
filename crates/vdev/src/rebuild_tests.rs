//! Goal: a copy of a rebuild is of a device that has everything, and comes neither before nor after
//! a log's write in the wrong way. Method: mirrors on simulated disks with slow reads.

use std::time::Duration;

use bytes::Bytes;
use device::sim::{Fault, FaultEffect, Latency, SimOp, SimWorld};
use format::{LABEL_START_BYTES, Txg, VdevId};

use crate::testing::{TestTree, group, noise, simulate};
use crate::{IoContext, RangeSet, Rebuilt};

const TOP: VdevId = VdevId::ZERO;
const BLOCK: usize = 16 << 10;
const TXG: Txg = Txg::new(30);

fn context() -> IoContext {
    IoContext {
        birth: Txg::new(29),
        ..IoContext::default()
    }
}

/// A mirror of three, the last of which lacks everything.
async fn mirror() -> TestTree {
    let sim = SimWorld::new(1);
    let tops = vec![group(&sim, "mirror", 0, "disk", 3, 10)];
    let test = TestTree::create(sim, tops, 12).await;
    lack(&test, 2, 4..25);
    test
}

fn lack(test: &TestTree, at: usize, txgs: std::ops::Range<u64>) {
    let missing = RangeSet::from_iter([(txgs.start, txgs.end - txgs.start)]);
    let leaves = test.tree.leaves();
    leaves[at]
        .leaf()
        .expect("a leaf")
        .dirty_times()
        .set_missing(missing);
}

fn on(test: &TestTree, at: usize, offset: u64) -> Vec<u8> {
    let disk = test.sim.disk(&format!("disk{at}")).expect("a disk");
    disk.peek(LABEL_START_BYTES + offset, BLOCK)
}

/// So many devices took it.
fn copied(devices: u64) -> Rebuilt {
    Rebuilt::Copied {
        bytes: devices * BLOCK as u64,
    }
}

async fn rebuild(test: &TestTree) -> Rebuilt {
    let rebuilt = test.tree.rebuild(TOP, 0, BLOCK as u64, TXG).await;
    rebuilt.expect("within the vdev")
}

#[test]
fn only_devices_that_lack_nothing_are_read_and_only_others_written() {
    simulate(async {
        let test = mirror().await;
        let (old, new) = (noise(BLOCK, 1), noise(BLOCK, 2));
        for (at, data) in [(0, &new), (1, &old)] {
            let disk = test.sim.disk(&format!("disk{at}")).expect("a disk");
            disk.poke(LABEL_START_BYTES, data);
        }
        // It came back, and has old data.
        lack(&test, 1, 20..22);
        assert_eq!(rebuild(&test).await, copied(2));
        for at in 0..3 {
            assert!(on(&test, at, 0) == new, "{at}");
        }
        // Now all lack something: none is to be believed.
        lack(&test, 0, 23..24);
        assert_eq!(rebuild(&test).await, Rebuilt::Unread);
        for at in 0..3 {
            lack(&test, at, 4..4);
        }
        assert_eq!(rebuild(&test).await, Rebuilt::Skipped);
    });
}

#[test]
fn a_device_that_does_not_take_a_copy_lacks_the_txg() {
    simulate(async {
        let test = mirror().await;
        let disk = test.sim.disk("disk2").expect("a disk");
        // The second one is the write tried again.
        let at = LABEL_START_BYTES..LABEL_START_BYTES + BLOCK as u64;
        disk.inject(
            Fault::new(SimOp::Write, FaultEffect::Error)
                .within(at)
                .times(2),
        );
        assert_eq!(rebuild(&test).await, copied(0));
        let leaves = test.tree.leaves();
        let missing = leaves[2].leaf().expect("a leaf").dirty_times().missing();
        assert!(missing.contains(TXG.get(), 1), "{missing:?}");
        assert_eq!(rebuild(&test).await, copied(1));
        assert!(on(&test, 2, 0) == on(&test, 0, 0));
    });
}

/// The log's write is neither overtaken nor overwritten by a copy of what was there before, whoever
/// comes first; elsewhere they do not wait for each other.
#[test]
fn a_copy_does_not_take_back_a_logs_write() {
    for (copy_ms, write_ms) in [(0, 5), (0, 50), (5, 0), (3, 0)] {
        simulate(async {
            let test = mirror().await;
            for at in 0..3 {
                let disk = test.sim.disk(&format!("disk{at}")).expect("a disk");
                disk.set_latency(Latency {
                    read: Duration::from_millis(20),
                    write: Duration::from_millis(4 * (3 - at)),
                    ..Latency::NONE
                });
            }
            let data = noise(BLOCK, 7);
            let copy = async {
                tokio::time::sleep(Duration::from_millis(copy_ms)).await;
                rebuild(&test).await
            };
            let write = async {
                tokio::time::sleep(Duration::from_millis(write_ms)).await;
                let data = Bytes::from(data.clone());
                let context = context();
                let written = test.tree.write_log_block(TOP, 0, data, &context);
                written.await.expect("written");
            };
            let elsewhere = async {
                tokio::time::sleep(Duration::from_millis(write_ms)).await;
                let begun = tokio::time::Instant::now();
                let (data, context) = (Bytes::from(noise(BLOCK, 8)), context());
                let offset = 4 * BLOCK as u64;
                let written = test.tree.write_log_block(TOP, offset, data, &context);
                written.await.expect("written");
                assert!(begun.elapsed() < Duration::from_millis(15));
            };
            let (rebuilt, (), ()) = tokio::join!(copy, write, elsewhere);
            assert_eq!(rebuilt, copied(1));
            for at in 0..3 {
                assert!(on(&test, at, 0) == data, "{copy_ms} {write_ms}: disk{at}");
            }
        });
    }
}
