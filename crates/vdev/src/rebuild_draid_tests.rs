//! Goal: what a rebuild puts on a distributed spare is what was lost, and nothing else is believed
//! or written. Method: blocks on simulated disks, read with more of these gone than parity alone
//! makes up for.

use bytes::Bytes;
use device::BoxFuture;
use device::sim::{Latency, SimWorld};
use format::{Guid, LABEL_START_BYTES, NvList, Txg};

use crate::kind::{MirrorRole, VdevKind};
use crate::testing::{TOP, TestTree, group, noise, simulate};
use crate::{IoContext, REBUILD_TXG, RangeSet, Rebuilt, TopologyError, VdevAux, VdevState, Verify};

/// No txg that is open when a spare stands in reaches this.
const UNTIL: Txg = Txg::new(25);
const TXG: Txg = Txg::new(30);

struct Same(Vec<u8>);

impl Verify for Same {
    fn verify<'a>(&'a self, data: &'a Bytes) -> BoxFuture<'a, bool> {
        Box::pin(std::future::ready(self.0 == *data))
    }
}

fn context(birth: u64) -> IoContext {
    IoContext {
        birth: Txg::new(birth),
        ..IoContext::default()
    }
}

async fn draid() -> TestTree {
    with_parity(1).await
}

/// Six disks, or seven: groups of so many parity and two data columns, two spares.
async fn with_parity(parity: u64) -> TestTree {
    let sim = SimWorld::new(1);
    let count = 6 + parity / 3;
    for at in 0..count {
        let disk = sim.add_disk(&format!("d{at}"), 256 << 20);
        disk.set_latency(Latency::NONE);
    }
    let mut top = group(&sim, "draid", parity, "d", count, 10);
    // Groups of 3 in 4 columns, of 4 in 4, or of 5 in 5.
    top.set("draid_ndata", 2u64)
        .set("draid_nspares", 2u64)
        .set("draid_ngroups", if parity == 1 { 4u64 } else { 1 });
    TestTree::create(sim, vec![top], 12).await
}

/// Blocks in many groups, one of which goes on in the next, and how long they are.
fn blocks(test: &TestTree) -> Vec<(u64, usize)> {
    let width = 2 + test.tree.tops()[0].kind().parity();
    let (stripe, group) = (width << 12, width << 24);
    let spread = (0..60u64).map(|at| {
        let offset = at * 13_000_000 / stripe * stripe;
        (offset, 4096 * (1 + at as usize % 7))
    });
    let over_the_end = (2 * group - stripe, 5 * 4096);
    spread.chain([over_the_end]).collect()
}

async fn write_all(test: &TestTree, birth: u64) {
    for (offset, length) in blocks(test) {
        let data = Bytes::from(noise(length, offset + birth));
        let context = context(birth);
        let written = test.tree.write_block(TOP, offset, data, &context);
        written.await.expect("written");
    }
}

async fn check_all(test: &TestTree, birth: u64) {
    for (offset, length) in blocks(test) {
        let same = Same(noise(length, offset + birth));
        let context = context(birth);
        let read = test.tree.read_block(TOP, offset, length, &context, &same);
        read.await
            .unwrap_or_else(|failure| panic!("{offset:#x}: {}", failure.cause));
    }
}

/// A disk by the guid of its leaf does not work any more.
fn fail(test: &TestTree, guid: u64) {
    let vdev = test.tree.find(Guid::new(guid)).expect("a device");
    let leaf = vdev.leaf().expect("a leaf");
    leaf.set_state(VdevState::CantOpen, VdevAux::OpenFailed);
}

/// It works again.
fn works(test: &TestTree, guid: u64) {
    let vdev = test.tree.find(Guid::new(guid)).expect("a device");
    let leaf = vdev.leaf().expect("a leaf");
    leaf.set_state(VdevState::Healthy, VdevAux::None);
}

/// A distributed spare by its number, of this vdev or another one.
fn spare(number: u64, owner: u64) -> NvList {
    let mut config = NvList::new();
    config
        .set("type", "dspare")
        .set("guid", 40 + number)
        .set("path", format!("draid1-0-{number}").as_str())
        .set("is_spare", 1u64)
        .set("top_guid", owner)
        .set("spareid", number);
    config
}

/// A distributed spare stands in, to be rebuilt.
fn stand_in(test: &TestTree, to: u64, number: u64) {
    let new = test.tree.prepare_draid_spare(&spare(number, 10));
    let new = new.expect("a spare");
    let parent = Guid::new(700 + to);
    let attached = (test.tree).attach(Guid::new(to), &new, MirrorRole::Spare, parent, UNTIL);
    attached.expect("it stands in");
    let new = test.tree.find(Guid::new(40 + number)).expect("there");
    new.set_config(REBUILD_TXG, 24u64);
}

/// What the pool does when a rebuild is complete.
fn settle(test: &TestTree, number: u64) {
    let vdev = test.tree.find(Guid::new(40 + number)).expect("there");
    let spare = vdev.kind().draid_spare().expect("a spare");
    spare.set_missing(RangeSet::new());
    vdev.remove_config(REBUILD_TXG);
}

/// Rebuilds where blocks are: bytes that were written, and how many ranges could not be read.
async fn rebuild_all(test: &TestTree) -> (u64, u64) {
    let top = test.tree.tops()[0].clone();
    let geometry = top.geometry().expect("a geometry");
    let (mut written, mut unread) = (0, 0);
    for (offset, length) in blocks(test) {
        let end = offset + geometry.asize(length as u64);
        let mut at = offset;
        while at < end {
            let next = crate::copy_end(&top, at, end, 1 << 20);
            assert!(at < next && next <= end);
            let rebuilt = test.tree.rebuild(TOP, at, next - at, TXG).await;
            match rebuilt.expect("within the vdev") {
                Rebuilt::Copied { bytes } => written += bytes,
                Rebuilt::Unread => unread += 1,
                Rebuilt::Skipped => {}
                Rebuilt::Halted => panic!("nobody halts it"),
            }
            at = next;
        }
    }
    (written, unread)
}

#[test]
fn two_spares_take_what_two_devices_had() {
    simulate(async {
        let test = draid().await;
        write_all(&test, 20).await;
        fail(&test, 12);
        stand_in(&test, 12, 0);
        let (written, unread) = rebuild_all(&test).await;
        assert!(written > 0 && unread == 0, "{written} {unread}");
        settle(&test, 0);
        assert_eq!(rebuild_all(&test).await, (0, 0), "nobody wants anything");
        check_all(&test, 20).await;
        // A part of what the spare has is on this one.
        fail(&test, 14);
        check_all(&test, 20).await;
        // What it does not take, the spare need not note: it is away itself.
        write_all(&test, 26).await;
        let first = test.tree.find(Guid::new(40)).expect("there");
        assert!(first.own_missing().is_empty());
        assert!(!test.tree.tops()[0].lacks_data());
        check_all(&test, 26).await;

        stand_in(&test, 14, 1);
        let (written, unread) = rebuild_all(&test).await;
        assert!(written > 0 && unread == 0, "{written} {unread}");
        settle(&test, 1);
        for gone in [11, 13, 15, 16] {
            check_all(&test, 26).await;
            let vdev = test.tree.find(Guid::new(gone)).expect("a device");
            let leaf = vdev.leaf().expect("a leaf");
            leaf.set_state(VdevState::CantOpen, VdevAux::OpenFailed);
            check_all(&test, 26).await;
            leaf.set_state(VdevState::Healthy, VdevAux::None);
        }
    });
}

/// As many disks die at the same time as there is parity, or spares; their spares are rebuilt
/// together. Then any others may die.
#[test]
fn spares_are_rebuilt_at_the_same_time_with_all_parities() {
    for (parity, children) in [(2u64, 6u64), (3, 7)] {
        simulate(async move {
            let test = with_parity(parity).await;
            write_all(&test, 20).await;
            for (number, gone) in [11, 14].into_iter().enumerate() {
                fail(&test, gone);
                stand_in(&test, gone, number as u64);
            }
            let (written, unread) = rebuild_all(&test).await;
            assert!(written > 0 && unread == 0, "{written} {unread}");
            for number in [0, 1] {
                settle(&test, number);
            }
            assert_eq!(rebuild_all(&test).await, (0, 0), "nobody wants anything");
            let others: Vec<u64> = (11..11 + children)
                .filter(|guid| ![11, 14].contains(guid))
                .collect();
            for first in 0..others.len() {
                let gone = (0..parity as usize).map(|at| others[(first + at) % others.len()]);
                let gone: Vec<u64> = gone.collect();
                for guid in &gone {
                    fail(&test, *guid);
                }
                check_all(&test, 20).await;
                for guid in &gone {
                    works(&test, *guid);
                }
            }
        });
    }
}

/// A device that is back may be told to lack nothing by who does not know what other spares got on
/// it: where the spare has everything, it is not read.
#[test]
fn a_spare_is_asked_before_the_device_that_is_back() {
    simulate(async {
        let test = draid().await;
        write_all(&test, 20).await;
        fail(&test, 12);
        stand_in(&test, 12, 0);
        rebuild_all(&test).await;
        settle(&test, 0);
        works(&test, 12);
        let back = test.tree.find(Guid::new(12)).expect("a device");
        let before = back.counters().read_ops;
        check_all(&test, 20).await;
        assert_eq!(back.counters().read_ops, before);
        // Unless the spare lacks something.
        let spare = test.tree.find(Guid::new(40)).expect("a spare");
        let own = spare.kind().draid_spare().expect("a spare");
        own.set_missing(RangeSet::from_iter([(20, 1)]));
        check_all(&test, 20).await;
        assert!(back.counters().read_ops > before);
    });
}

/// A device that works gives what it has, also where others are away.
#[test]
fn what_a_device_has_is_copied() {
    simulate(async {
        let test = draid().await;
        write_all(&test, 20).await;
        stand_in(&test, 12, 0);
        for gone in [13, 14] {
            fail(&test, gone);
        }
        let (written, unread) = rebuild_all(&test).await;
        assert!(written > 0 && unread == 0, "{written} {unread}");
    });
}

#[test]
fn what_lacks_something_else_is_neither_believed_nor_written() {
    simulate(async {
        let test = draid().await;
        write_all(&test, 20).await;
        let vdev = test.tree.find(Guid::new(13)).expect("a device");
        let leaf = vdev.leaf().expect("a leaf");
        leaf.dirty_times()
            .set_missing(RangeSet::from_iter([(22, 1)]));
        assert_eq!(rebuild_all(&test).await, (0, 0));
        assert_eq!(test.tree.tops()[0].rebuild_txgs(), None);
        fail(&test, 12);
        stand_in(&test, 12, 0);
        let txgs = (Txg::new(3), UNTIL);
        assert_eq!(test.tree.tops()[0].rebuild_txgs(), Some(txgs));
        let (written, unread) = rebuild_all(&test).await;
        assert!(written > 0 && unread > 0, "{written} {unread}");
        // Until it has everything nobody asks it.
        check_all(&test, 20).await;
    });
}

/// What a device lies about is not made two lies of, as long as parity tells.
#[test]
fn columns_that_contradict_each_other_are_not_believed() {
    simulate(async {
        let test = with_parity(2).await;
        let data = Bytes::from(noise(8192, 1));
        let context = context(20);
        let written = test.tree.write_block(TOP, 0, data, &context);
        written.await.expect("written");
        // Parity, parity, data, data.
        let children: Vec<u64> = {
            let top = test.tree.tops()[0].clone();
            let VdevKind::Draid(draid) = top.kind() else {
                unreachable!()
            };
            let rows = draid.layout.rows(12, 0, 8192).expect("a block");
            let columns = rows[0].columns.iter();
            columns.map(|column| column.child as u64).collect()
        };
        fail(&test, 11 + children[2]);
        stand_in(&test, 11 + children[2], 0);
        let rebuild = || test.tree.rebuild(TOP, 0, 4 << 12, TXG);
        let rebuilt = rebuild().await.expect("within the vdev");
        assert_eq!(rebuilt, Rebuilt::Copied { bytes: 4096 });
        for child in [0, 1, 3].map(|column: usize| children[column]) {
            let disk = test.disk(&format!("d{child}"));
            let right = disk.peek(LABEL_START_BYTES, 4096);
            disk.poke(LABEL_START_BYTES, &noise(4096, 7));
            let rebuilt = rebuild().await.expect("within the vdev");
            assert_eq!(rebuilt, Rebuilt::Unread, "d{child}");
            disk.poke(LABEL_START_BYTES, &right);
        }
    });
}

#[test]
fn a_spare_is_for_devices_of_its_own_vdev() {
    simulate(async {
        let test = draid().await;
        let stranger = test.tree.prepare_draid_spare(&spare(0, 99));
        let stranger = stranger.expect("a spare");
        let (target, parent) = (Guid::new(12), Guid::new(700));
        let attached = (test.tree).attach(target, &stranger, MirrorRole::Spare, parent, UNTIL);
        assert!(matches!(attached, Err(TopologyError::OtherDraid { .. })));
        let top = test.tree.topology().check_own_spare(Guid::new(10), target);
        assert!(matches!(top, Err(TopologyError::NotADevice { .. })));
    });
}
