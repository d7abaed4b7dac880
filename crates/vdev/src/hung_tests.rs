//! Goal: a device that does not answer hides no device that will, and stops nobody who can do
//! without it. Method: trees on simulated disks that stall.

use std::time::Duration;

use bytes::Bytes;
use device::BoxFuture;
use device::sim::{Fault, FaultEffect, SimOp, SimWorld};
use format::{LABEL_START_BYTES, Txg};

use crate::testing::{BLOCK, TOP, TestTree, group, noise, simulate, with_replacement};
use crate::{IoContext, VdevState, Verify};

/// What a block must be.
struct Same(Vec<u8>);

impl Verify for Same {
    fn verify<'a>(&'a self, data: &'a Bytes) -> BoxFuture<'a, bool> {
        Box::pin(std::future::ready(self.0 == *data))
    }
}

fn context() -> IoContext {
    IoContext {
        birth: Txg::new(10),
        ..IoContext::default()
    }
}

fn stall_reads(test: &TestTree, disk: &str) {
    let fault = Fault::new(SimOp::Read, FaultEffect::Stall);
    test.disk(disk).inject(fault);
}

/// The device that is replaced lags. Its successor lacks the block, and what it has there is not
/// taken for the block's: parity is, and nobody is blamed.
#[test]
fn a_successor_does_not_answer_for_a_device_that_lags() {
    simulate(async {
        let data = noise(BLOCK, 3);
        let test = with_replacement("raidz", 1, &data).await;
        stall_reads(&test, "r0");
        let verify = Same(data.clone());
        let context = context();
        let read = test.tree.read_block(TOP, 0, BLOCK, &context, &verify);
        let read = tokio::time::timeout(Duration::from_secs(8), read).await;
        assert!(read.expect("without the disk").expect("read") == data);
        assert_eq!(test.reports.checksum(), 0);
    });
}

/// Another device is gone as well, so that only the one that lags has the column: it is waited for.
#[test]
fn a_device_that_lags_is_waited_for_where_its_successor_lacks_the_block() {
    simulate(async {
        let data = noise(BLOCK, 3);
        let test = with_replacement("raidz", 1, &data).await;
        test.disk("d0").set_gone(true);
        stall_reads(&test, "r0");
        let disk = test.disk("r0");
        let wakes_up = async {
            tokio::time::sleep(Duration::from_secs(20)).await;
            disk.release();
        };
        let verify = Same(data.clone());
        let context = context();
        let read = test.tree.read_block(TOP, 0, BLOCK, &context, &verify);
        let (read, ()) = tokio::join!(read, wakes_up);
        assert!(read.expect("it answers in the end") == data);
        assert_eq!(test.reports.checksum(), 0);
    });
}

/// Where the checksum of the whole block tells, a device that lacks it may still have it: nobody
/// waits for the one that lags.
#[test]
fn what_a_checksum_tells_to_be_right_needs_no_device_that_lags() {
    simulate(async {
        let data = noise(BLOCK, 3);
        let test = with_replacement("mirror", 0, &data).await;
        // It was resilvered by now.
        test.disk("r1").poke(LABEL_START_BYTES, &data);
        for disk in ["d0", "d1", "r0"] {
            stall_reads(&test, disk);
        }
        let verify = Same(data.clone());
        let context = context();
        let read = test.tree.read_block(TOP, 0, BLOCK, &context, &verify);
        let read = tokio::time::timeout(Duration::from_secs(25), read).await;
        assert!(read.expect("without the disks").expect("read") == data);
        assert_eq!(test.reports.checksum(), 0);
    });
}

/// A device that hung once, and came back, is one like others when it goes away later: nobody looks
/// for it every second.
#[test]
fn a_device_that_came_back_is_given_up_no_more() {
    simulate(async {
        let sim = SimWorld::new(4);
        let test = TestTree::create(sim.clone(), vec![group(&sim, "mirror", 0, "d", 2, 10)], 12);
        let test = test.await;
        let (disk, tree) = (test.disk("d1"), &test.tree);
        let write = || async {
            let (data, context) = (Bytes::from(noise(BLOCK, 3)), context());
            let written = tree.write_block(TOP, 0, data, &context);
            let written = tokio::time::timeout(Duration::from_secs(45), written).await;
            written.expect("in time").expect("on the other");
        };
        disk.inject(Fault::new(SimOp::Write, FaultEffect::Stall));
        write().await;
        let leaves = tree.leaves();
        let leaf = leaves[1].leaf().expect("a leaf");
        assert!(leaf.is_given_up() && leaf.is_busy());
        tree.reopen(false).await.expect("nobody writes to it");
        assert!(
            leaf.is_given_up() && leaf.is_busy(),
            "it stays so until it answers"
        );
        disk.release();
        assert!(!leaf.is_busy());
        let state = tree.bring_back(leaf.guid()).await.expect("a device");
        assert_eq!((state, leaf.is_given_up()), (VdevState::Healthy, false));
        disk.set_gone(true);
        write().await;
        tree.reopen(false).await.expect("nobody writes to it");
        assert_eq!(leaf.state().0, VdevState::CantOpen);
        assert!(!leaf.is_given_up());
    });
}
