//! Goal: what a scrub or resilver does at once comes to each device in long operations, to no
//! device that does not need it, and everybody learns what became of his own block. Method: many
//! neighbours at a time on simulated disks that are slow, that fail, hang and stand still.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use device::BoxFuture;
use device::sim::{Fault, FaultEffect, Latency, SimOp, SimWorld};
use format::{LABEL_START_BYTES, Txg};
use futures::future::join_all;

use crate::meter::IoClass;
use crate::testing::{BLOCK, TOP, TestTree, group, noise, simulate, with_replacement};
use crate::{IoContext, Leaf, Priority, RangeSet, ReadFailure, ScanRead, VdevState, Verify};

const COUNT: u64 = 512;
const LENGTH: usize = 8192;

/// What a block must be.
struct Same(Vec<u8>);

impl Verify for Same {
    fn verify<'a>(&'a self, data: &'a Bytes) -> BoxFuture<'a, bool> {
        Box::pin(std::future::ready(self.0 == *data))
    }
}

fn block(number: u64) -> Vec<u8> {
    noise(LENGTH, 1000 + number)
}

fn place(number: u64) -> u64 {
    number * LENGTH as u64
}

/// One of the last blocks is of a later group.
fn birth(number: u64) -> Txg {
    Txg::new(if number == COUNT - 9 { 12 } else { 10 })
}

/// Mirrored blocks that lie side by side; the second disk lacks them where `lacks`, and is slow.
async fn blocks(lacks: bool) -> TestTree {
    let sim = SimWorld::new(1);
    let tops = vec![group(&sim, "mirror", 0, "m", 2, 10)];
    let test = TestTree::create(sim, tops, 12).await;
    for number in 0..COUNT {
        let at = LABEL_START_BYTES + place(number);
        test.disk("m0").poke(at, &block(number));
        if !lacks {
            test.disk("m1").poke(at, &block(number));
        }
    }
    if lacks {
        let missing = RangeSet::from_iter([(4, 20)]);
        leaf(&test).dirty_times().set_missing(missing);
    }
    for disk in ["m0", "m1"] {
        test.disk(disk).set_latency(Latency {
            read: Duration::from_millis(5),
            write: Duration::from_millis(5),
            ..Latency::NONE
        });
    }
    test
}

/// The second disk.
fn leaf(test: &TestTree) -> Arc<Leaf> {
    test.tree.leaves()[1].leaf().expect("a leaf").clone()
}

/// Reads all blocks as a scan does.
async fn scan(test: &TestTree, scan: ScanRead) -> Vec<Result<Bytes, ReadFailure>> {
    let reads = (0..COUNT).map(|number| async move {
        let verify = Same(block(number));
        let context = IoContext {
            birth: birth(number),
            priority: Priority::Scrub,
            scan,
            ..IoContext::default()
        };
        let read = test
            .tree
            .read_block(TOP, place(number), LENGTH, &context, &verify);
        read.await
    });
    join_all(reads).await
}

fn is_right(test: &TestTree, disk: &str, number: u64) -> bool {
    let found = test
        .disk(disk)
        .peek(LABEL_START_BYTES + place(number), LENGTH);
    found == block(number)
}

#[test]
fn a_resilver_reads_and_writes_in_long_operations() {
    simulate(async {
        let test = blocks(true).await;
        let before = ["m0", "m1"].map(|disk| test.disk(disk).counts());
        let read = scan(&test, ScanRead::Resilver).await;
        assert!(read.iter().all(Result::is_ok));
        assert!((0..COUNT).all(|number| is_right(&test, "m1", number)));
        // Four mebibytes.
        let writes = test.disk("m1").counts().writes - before[1].writes;
        assert!(writes <= 16, "{writes} operations");
        let reads = test.disk("m0").counts().reads - before[0].reads;
        assert!(reads <= 16, "{reads} operations");
        let leaf = leaf(&test);
        let counted = leaf.counters.values();
        assert_eq!(counted.scan_repaired_bytes, COUNT * LENGTH as u64);
        assert!(leaf.dirty_times().scan_failed().is_empty());
        let stats = leaf.io_stats();
        let class = IoClass::AsyncWrite as usize;
        assert!(stats.aggregated[class].iter().sum::<u64>() > 0);
        assert_eq!((stats.pending[class], stats.active[class]), (0, 0));
        // It has them, and no flush covered them: who forgets that has them missing.
        assert!(leaf.has_kept());
    });
}

/// Each block is read from each disk, so their neighbours come together.
#[test]
fn a_scrub_reads_all_children_in_long_operations() {
    simulate(async {
        let test = blocks(false).await;
        // What is wrong is written, and nothing else.
        let wrong = [3, 77, 78];
        for number in wrong {
            let at = LABEL_START_BYTES + place(number);
            test.disk("m1").corrupt(at, LENGTH);
        }
        let before = ["m0", "m1"].map(|disk| test.disk(disk).counts());
        let read = scan(&test, ScanRead::Scrub).await;
        assert!(read.iter().all(Result::is_ok));
        for (disk, before) in ["m0", "m1"].iter().zip(before) {
            let counts = test.disk(disk).counts();
            let reads = counts.get(SimOp::Read) - before.get(SimOp::Read);
            assert!(reads <= 16, "{disk}: {reads} operations");
            assert!((0..COUNT).all(|number| is_right(&test, disk, number)));
        }
        let writes = |at: usize, disk: &str| {
            test.disk(disk).counts().get(SimOp::Write) - before[at].get(SimOp::Write)
        };
        assert_eq!(writes(0, "m0"), 0);
        assert!((1..=3).contains(&writes(1, "m1")));
        assert_eq!(test.reports.checksum(), wrong.len());
        let repaired = leaf(&test).counters.values().scan_repaired_bytes;
        assert_eq!(repaired, (wrong.len() * LENGTH) as u64);
    });
}

/// The device that is being replaced has all: it is not written.
#[test]
fn a_resilver_writes_only_what_lacks_the_block() {
    simulate(async {
        for (kind, parity) in [("mirror", 0), ("raidz", 1)] {
            let data = noise(BLOCK, 3);
            let test = with_replacement(kind, parity, &data).await;
            let right = test.disk("r0").peek(LABEL_START_BYTES, BLOCK / 2);
            let disks = ["d0", "d1", "r0", "r1"];
            let before = disks.map(|disk| test.disk(disk).counts().get(SimOp::Write));
            let context = IoContext {
                birth: Txg::new(10),
                priority: Priority::Scrub,
                scan: ScanRead::Resilver,
                ..IoContext::default()
            };
            let verify = Same(data.clone());
            let read = test.tree.read_block(TOP, 0, BLOCK, &context, &verify);
            assert!(read.await.expect("right") == data);
            let after = disks.map(|disk| test.disk(disk).counts().get(SimOp::Write));
            assert_eq!(after[..3], before[..3], "{kind}");
            assert!(after[3] > before[3], "{kind}");
            assert!(test.disk("r1").peek(LABEL_START_BYTES, BLOCK / 2) == right);
        }
    });
}

/// A sector that cannot be written: only its block is missing when the resilver ends.
#[test]
fn a_repair_that_fails_is_noted_for_its_own_block() {
    simulate(async {
        let test = blocks(true).await;
        let bad = COUNT - 9;
        let at = LABEL_START_BYTES + place(bad);
        let fault = Fault::new(SimOp::Write, FaultEffect::Error);
        test.disk("m1").inject(fault.within(at..at + 512));
        let read = scan(&test, ScanRead::Resilver).await;
        assert!(read.iter().all(Result::is_ok), "the other disk has all");
        let leaf = leaf(&test);
        let mut others = (0..COUNT).filter(|number| *number != bad);
        assert!(others.all(|number| is_right(&test, "m1", number)));
        let failed = leaf.dirty_times().take_scan_failed();
        assert_eq!(failed, RangeSet::from_iter([(birth(bad).get(), 1)]));
        let repaired = leaf.counters.values().scan_repaired_bytes;
        assert_eq!(repaired, (COUNT - 1) * LENGTH as u64);
        // The device works: it was looked at.
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(leaf.state().0, VdevState::Healthy);
    });
}

/// A device that takes writes and does not answer is given up, with all that waits behind them.
#[test]
fn repairs_end_when_their_device_is_given_up() {
    simulate(async {
        let test = blocks(true).await;
        test.disk("m1")
            .inject(Fault::new(SimOp::Write, FaultEffect::Stall));
        let scanned = scan(&test, ScanRead::Resilver);
        let scanned = tokio::time::timeout(Duration::from_secs(90), scanned).await;
        let read = scanned.expect("nobody waits for ever");
        assert!(read.iter().all(Result::is_ok), "the other disk has all");
        let leaf = leaf(&test);
        assert!(leaf.is_given_up());
        let failed = leaf.dirty_times().take_scan_failed();
        assert_eq!(failed, RangeSet::from_iter([(10, 1), (12, 1)]));
        assert_eq!(leaf.counters.values().scan_repaired_bytes, 0);
        test.disk("m1").release();
    });
}

/// The pool stands still: what was not written is to be done again, and nothing is wrong with the
/// device.
#[test]
fn repairs_that_are_refused_are_told_apart() {
    simulate(async {
        let test = blocks(true).await;
        let halts = async {
            // While the first are being written.
            tokio::time::sleep(Duration::from_millis(7)).await;
            test.tree.halt().set(true);
        };
        let (read, ()) = tokio::join!(scan(&test, ScanRead::Resilver), halts);
        assert!(read.iter().all(Result::is_ok), "they were read");
        let leaf = leaf(&test);
        assert!(leaf.dirty_times().take_scan_refused());
        assert_eq!(leaf.state().0, VdevState::Healthy);
        let wrong: Vec<u64> = (0..COUNT)
            .filter(|number| !is_right(&test, "m1", *number))
            .collect();
        assert!(!wrong.is_empty());
        let failed = leaf.dirty_times().take_scan_failed();
        assert!(wrong.iter().all(|at| failed.contains(birth(*at).get(), 1)));
        test.tree.halt().set(false);
        scan(&test, ScanRead::Resilver).await;
        assert!((0..COUNT).all(|number| is_right(&test, "m1", number)));
    });
}

/// A read of a program waits for the repair of what it read, which does not wait behind others.
#[test]
fn what_a_program_read_is_repaired_at_once() {
    let scrub = IoContext {
        scan: ScanRead::Scrub,
        priority: Priority::Scrub,
        birth: Txg::new(7),
        ..IoContext::default()
    };
    let read = IoContext {
        scan: ScanRead::No,
        priority: Priority::Async,
        ..scrub
    };
    for (context, priority) in [(scrub, Priority::Async), (read, Priority::Sync)] {
        let repair = context.for_repair();
        assert_eq!((repair.priority, repair.repair), (priority, true));
        assert_eq!((repair.scan, repair.birth), (context.scan, Txg::new(7)));
    }
}
