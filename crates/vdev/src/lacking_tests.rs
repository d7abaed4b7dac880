//! Goal: what a device has in the place of a block that it lacks is never taken for the block where
//! no checksum tells, and nothing is repaired with it. Method: replacements on simulated disks, of
//! which the one that is replaced fails once.

use bytes::Bytes;
use device::BoxFuture;
use device::sim::{Fault, FaultEffect, SimOp};
use format::{LABEL_START_BYTES, Txg};

use crate::testing::{BLOCK, TOP, TestTree, noise, simulate, with_replacement};
use crate::{IoContext, Priority, ScanRead, Verify};

/// What a block must be.
struct Same(Vec<u8>);

impl Verify for Same {
    fn verify<'a>(&'a self, data: &'a Bytes) -> BoxFuture<'a, bool> {
        Box::pin(std::future::ready(self.0 == *data))
    }
}

/// A block without a checksum.
struct Unsummed;

impl Verify for Unsummed {
    fn verify<'a>(&'a self, _data: &'a Bytes) -> BoxFuture<'a, bool> {
        Box::pin(std::future::ready(true))
    }

    fn can_tell(&self) -> bool {
        false
    }
}

fn context(scan: ScanRead) -> IoContext {
    IoContext {
        birth: Txg::new(10),
        scan,
        priority: match scan {
            ScanRead::No => Priority::Sync,
            _ => Priority::Scrub,
        },
        ..IoContext::default()
    }
}

/// Fails reads of the block: whoever probes the device finds it working.
fn fail_reads(test: &TestTree, disk: &str, times: u64) {
    let place = LABEL_START_BYTES..LABEL_START_BYTES + BLOCK as u64;
    let fault = Fault::new(SimOp::Read, FaultEffect::Error).within(place);
    test.disk(disk).inject(fault.times(times));
}

/// RAID-Z without a device to spare: the one that is replaced is the only one with its column. A
/// read of it fails, which passes.
#[test]
fn an_error_that_passes_does_not_give_the_only_copy_to_what_its_successor_has() {
    simulate(async {
        for scan in [ScanRead::No, ScanRead::Scrub, ScanRead::Resilver] {
            for times in 1..6 {
                let data = noise(BLOCK, 3);
                let test = with_replacement("raidz", 1, &data).await;
                let column = test.disk("r0").peek(LABEL_START_BYTES, BLOCK / 2);
                test.disk("d0").set_gone(true);
                fail_reads(&test, "r0", times);
                let verify = Same(data.clone());
                let context = context(scan);
                let read = test.tree.read_block(TOP, 0, BLOCK, &context, &verify);
                let read = read.await;
                let found = test.disk("r0").peek(LABEL_START_BYTES, BLOCK / 2);
                assert!(found == column, "{scan:?} overwrote it, {times} errors");
                assert_eq!(test.reports.checksum(), 0, "{scan:?}, {times} errors");
                test.disk("r0").clear_faults();
                if let Ok(read) = read {
                    assert!(read == data);
                }
                let read = test.tree.read_block(TOP, 0, BLOCK, &context, &verify);
                assert!(read.await.expect("the error passed") == data);
            }
        }
    });
}

/// A block that has no checksum, on a mirror and on RAID-Z: what fails is an error, and no other
/// data.
#[test]
fn a_block_without_a_checksum_is_not_what_a_device_has_that_lacks_it() {
    simulate(async {
        for (kind, parity) in [("mirror", 0), ("raidz", 1)] {
            for scan in [ScanRead::No, ScanRead::Scrub, ScanRead::Resilver] {
                let data = noise(BLOCK, 3);
                let test = with_replacement(kind, parity, &data).await;
                let column = test.disk("r0").peek(LABEL_START_BYTES, BLOCK / 2);
                test.disk("d0").set_gone(true);
                if kind == "mirror" {
                    test.disk("d1").set_gone(true);
                }
                fail_reads(&test, "r0", u64::MAX);
                let context = context(scan);
                let read = test.tree.read_block(TOP, 0, BLOCK, &context, &Unsummed);
                let read = read.await.map(|_| ());
                read.expect_err("nobody else has it");
                test.disk("r0").clear_faults();
                let found = test.disk("r0").peek(LABEL_START_BYTES, BLOCK / 2);
                assert!(found == column, "{kind}, {scan:?}: it was overwritten");
                let read = test.tree.read_block(TOP, 0, BLOCK, &context, &Unsummed);
                assert!(read.await.expect("the error passed") == data);
            }
        }
    });
}
