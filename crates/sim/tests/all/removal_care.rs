//! Goal: a removal of a vdev with data ends well or is given up, and loses nothing either way.
//! Method: what may go wrong on the way is made to go wrong: blocks that come to the vdev all the
//! same, a mapping that gets too big, sides that cannot be read, pools without the room; and what
//! makes it harder: copies that are moved once more, blocks in pieces, deduplicated ones. Every
//! block and every range of the space maps is verified in the end, by zdb as well.

use std::sync::Arc;
use std::time::Duration;

use crate::common::{data, get, open, put, remove};
use crate::redaction::heal;
use crate::spares::{add_spare, is_whole, spares, until};
use crate::vdevs::power_cycle;
use dataset::PropertyChange;
use device::sim::{Fault, FaultEffect, SimOp, SimWorld};
use filesystem::Filesystem;
use format::{Dva, LABEL_START_BYTES, ObjectId, VdevId};
use pool::{
    AddSpec, LeafSpec, OfflineSpec, Pool, RemovalState, ScrubCommand, VdevClass, VdevLayout,
    VdevSpec, removal, stop_removal,
};
use sim::torture::{Layout, POOL, create, import, inspect, simulate, zdb};
use stream::{Progress, SendOptions};

const DISK_MIB: u64 = 128;
const FILES: u64 = 24;
const FILE_BYTES: usize = 300_000;

fn name(number: u64) -> String {
    format!("file{number}")
}

async fn fill(fs: &Filesystem, from: u64) {
    for number in from..from + FILES {
        let content = data(number, FILE_BYTES);
        put(fs, &name(number), &content).await.unwrap();
    }
}

async fn check(fs: &Filesystem, from: u64, step: usize) {
    for number in (from..from + FILES).step_by(step) {
        let read = get(fs, &name(number)).await.unwrap();
        assert!(read == data(number, FILE_BYTES), "file {number}");
    }
}

/// A pool with files, whose removals copy half a MiB in a group.
async fn prepare(sim: &SimWorld, layout: Layout) -> (Arc<Pool>, Arc<Filesystem>) {
    let pool = create(sim, layout, DISK_MIB, false).await.unwrap();
    let fs = open(sim, &pool).await.unwrap();
    fill(&fs, 0).await;
    pool.sync().await.unwrap();
    removal(&pool).set_turn_bytes(512 << 10);
    (pool, fs)
}

/// Where on the second vdev blocks of files are, in order.
async fn places(pool: &Pool, fs: &Filesystem) -> Vec<u64> {
    let dataset = pool.dsl().open_dataset(POOL).await.unwrap();
    let mut out = Vec::new();
    for number in 0..FILES {
        let found = fs.lookup(fs.root(), name(number).as_bytes()).await.unwrap();
        let object = dataset.objset().hold(ObjectId::new(found.ino)).await;
        for block in 0..2 {
            let pointer = object.as_ref().unwrap().block_pointer(block).await.unwrap();
            let place = pointer.dva(0).expect("it has a place");
            if place.vdev() == VdevId::new(1) {
                out.push(place.offset_bytes());
            }
        }
    }
    out.sort_unstable();
    out
}

fn state(pool: &Pool) -> Option<RemovalState> {
    removal(pool).status().map(|status| status.state)
}

async fn copy_a_part(pool: &Pool) {
    for _ in 0..100 {
        let status = removal(pool).status().expect("one is under way");
        assert_eq!(status.state, RemovalState::Running);
        if status.copied_bytes > 1 << 20 {
            return;
        }
        pool.sync().await.unwrap();
    }
    panic!("nothing is copied: {:?}", removal(pool).status());
}

async fn end(pool: &Pool) -> RemovalState {
    for _ in 0..1000 {
        if !removal(pool).is_active() {
            return state(pool).expect("there was one");
        }
        pool.sync().await.unwrap();
        // Time passes, which devices need that leave.
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("it does not end: {:?}", removal(pool).status());
}

async fn close(fs: Arc<Filesystem>, pool: Arc<Pool>) {
    fs.close().await.unwrap();
    pool.export(false).await.unwrap();
}

/// Verifies a pool that nobody has.
async fn verify(sim: &SimWorld, about: &str) {
    inspect(sim, about, true).await.unwrap();
    zdb(sim).unwrap();
}

async fn reopen(sim: &SimWorld) -> (Arc<Pool>, Arc<Filesystem>) {
    let pool = import(sim, false).await.unwrap();
    let fs = open(sim, &pool).await.unwrap();
    (pool, fs)
}

fn disk(sim: &SimWorld, name: &str) -> LeafSpec {
    sim.add_disk(name, DISK_MIB << 20).set_sector_bytes(4096);
    LeafSpec {
        path: name.to_owned(),
        is_file: false,
    }
}

fn addition(layout: VdevLayout, ashift: Option<u8>) -> AddSpec {
    AddSpec {
        vdevs: vec![VdevSpec {
            layout,
            class: VdevClass::Normal,
        }],
        ashift,
        force: true,
        allow_ashift_mismatch: true,
    }
}

/// Whoever looks at devices says where blocks may go, and cannot say so of a vdev that is being
/// emptied.
#[test]
fn nothing_is_allocated_on_the_vdev_whoever_looks_at_devices() {
    simulate(async {
        let sim = SimWorld::new(1);
        let (pool, fs) = prepare(&sim, Layout::Mirrors).await;
        let gone = VdevId::new(1);
        let gets_blocks = || pool.pipeline().allocator().is_allocatable(gone);
        assert!(gets_blocks());
        let look = async {
            for number in 0..200 {
                pool.clear(None).await.unwrap();
                let _ = pool.scans().scrub(ScrubCommand::Start).await;
                let content = data(1000 + number, 40_000);
                let ino = put(&fs, &format!("more{number}"), &content).await.unwrap();
                fs.sync_file(ino).await.unwrap();
                if removal(&pool).is_active() {
                    assert!(!gets_blocks(), "{number}");
                    if number > 20 && removal(&pool).status().unwrap().copied_bytes > 1 << 20 {
                        break;
                    }
                }
                tokio::task::yield_now().await;
            }
        };
        let (begun, ()) = tokio::join!(pool.remove("mirror-1"), look);
        begun.unwrap();
        assert_eq!(end(&pool).await, RemovalState::Finished);
        check(&fs, 0, 1).await;
        close(fs, pool).await;
        for name in ["disk2", "disk3"] {
            sim.disk(name).unwrap().set_gone(true);
        }
        verify(&sim, "finished").await;
    });
}

/// One that is held waits where it is, goes on, and can be stopped all the same.
#[test]
fn a_removal_that_is_held_waits() {
    simulate(async {
        let sim = SimWorld::new(12);
        let (pool, fs) = prepare(&sim, Layout::Mirrors).await;
        pool::hold_work(&pool, false, true);
        pool.remove("mirror-1").await.unwrap();
        for _ in 0..20 {
            pool.sync().await.unwrap();
        }
        let status = removal(&pool).status().unwrap();
        let expected = (RemovalState::Running, 0);
        assert_eq!((status.state, status.copied_bytes), expected);
        pool::hold_work(&pool, false, false);
        copy_a_part(&pool).await;
        pool::hold_work(&pool, false, true);
        stop_removal(&pool).await.unwrap();
        assert_eq!(end(&pool).await, RemovalState::Canceled);
        check(&fs, 0, 1).await;
        close(fs, pool).await;
        verify(&sim, "stopped while it was held").await;
    });
}

/// Should something be on the vdev that is not in the mapping, it stays.
#[test]
fn a_vdev_with_something_that_was_not_copied_stays() {
    simulate(async {
        let sim = SimWorld::new(2);
        let (pool, fs) = prepare(&sim, Layout::Mirrors).await;
        for number in (0..FILES).step_by(4) {
            remove(&fs, &name(number)).await;
        }
        for _ in 0..6 {
            pool.sync().await.unwrap();
        }
        let gone = VdevId::new(1);
        pool.remove("mirror-1").await.unwrap();
        copy_a_part(&pool).await;
        removal(&pool).set_turn_bytes(0);
        pool.sync().await.unwrap();
        // As nobody may: something in a hole that was passed over.
        let (dvas, allocator) = (pool.pipeline().dvas(), pool.pipeline().allocator());
        let open = pool.synced_txg().next();
        let mut offset = 0;
        loop {
            assert!(removal(&pool).is_active());
            let is_copied = dvas.with_removal(|map| map.covers(offset, 4096));
            let place = Dva::new(gone, offset, 4096, false).unwrap();
            if is_copied == Some(false) && allocator.claim(open, &place).await.is_ok() {
                break;
            }
            offset += 4096;
        }
        assert!(dvas.with_removal(|map| offset < map.end_bytes()).unwrap());
        pool.sync().await.unwrap();
        removal(&pool).set_turn_bytes(u64::MAX);
        assert_eq!(end(&pool).await, RemovalState::Canceled);
        check(&fs, 1, 4).await;
        close(fs, pool).await;
        let (pool, fs) = reopen(&sim).await;
        assert_eq!(state(&pool), Some(RemovalState::Canceled));
        check(&fs, 1, 4).await;
        close(fs, pool).await;
    });
}

/// A mapping never gets bigger than one that an import believes.
#[test]
fn a_mapping_that_would_be_too_big_is_given_up() {
    simulate(async {
        // A batch has 32768 entries at most.
        for (entries, births) in [(32768 + 2, u64::MAX), (u64::MAX, 3)] {
            let sim = SimWorld::new(3);
            let (pool, fs) = prepare(&sim, Layout::Mirrors).await;
            for number in (0..FILES).step_by(2) {
                remove(&fs, &name(number)).await;
            }
            removal(&pool).set_mapping_limits(entries, births);
            removal(&pool).set_turn_bytes(128 << 10);
            pool.remove("mirror-1").await.unwrap();
            assert_eq!(end(&pool).await, RemovalState::Canceled);
            check(&fs, 1, 2).await;
            removal(&pool).set_mapping_limits(u64::MAX, u64::MAX);
            close(fs, pool).await;
            verify(&sim, "given up").await;
            let (pool, fs) = reopen(&sim).await;
            pool.remove("mirror-1").await.unwrap();
            assert_eq!(end(&pool).await, RemovalState::Finished);
            check(&fs, 1, 2).await;
            close(fs, pool).await;
            verify(&sim, "finished").await;
        }
    });
}

/// Goal: what one side of a mirror has is never lost because the other one was copied. Method: one
/// side cannot be read in one place, and the other one is wrong elsewhere: the removal is given up,
/// a scrub repairs both, and the next one ends.
#[test]
fn a_side_that_cannot_be_read_has_the_removal_given_up() {
    simulate(async {
        let sim = SimWorld::new(4);
        let (pool, fs) = prepare(&sim, Layout::Mirrors).await;
        let side = sim.disk("disk2").unwrap();
        let places = places(&pool, &fs).await;
        let (first, last) = (places[places.len() / 2], places[places.len() - 1]);
        let bad = LABEL_START_BYTES + first;
        let fault = Fault::new(SimOp::Read, FaultEffect::Error).within(bad..bad + (64 << 10));
        side.inject(fault);
        let other = sim.disk("disk3").unwrap();
        other.poke(LABEL_START_BYTES + last, &data(5, 16 << 10));
        pool.remove("mirror-1").await.unwrap();
        let ended = end(&pool).await;
        assert_eq!(ended, RemovalState::Canceled);
        side.clear_faults();
        pool.clear(None).await.unwrap();
        pool.scans().scrub(ScrubCommand::Start).await.unwrap();
        pool.scans().wait_for_scrub(true).await;
        pool.remove("mirror-1").await.unwrap();
        assert_eq!(end(&pool).await, RemovalState::Finished);
        check(&fs, 0, 1).await;
        close(fs, pool).await;
        verify(&sim, "finished").await;
    });
}

fn change(name: &str, value: &str) -> [(String, PropertyChange); 1] {
    [(name.to_owned(), PropertyChange::Set(value.to_owned()))]
}

/// A pool keeps what is reserved, and what it keeps back for itself.
#[test]
fn what_is_reserved_must_have_room_without_the_vdev() {
    simulate(async {
        let sim = SimWorld::new(5);
        let (pool, fs) = prepare(&sim, Layout::Mirrors).await;
        let properties = pool.dsl().properties();
        let set = properties.set(POOL, &change("reservation", "64M")).await;
        set.unwrap();
        let refused = pool.remove("mirror-1").await;
        let text = refused.expect_err("there is no room").to_string();
        assert!(text.contains("out of space"), "{text}");
        let set = properties.set(POOL, &change("reservation", "16M")).await;
        set.unwrap();
        pool.remove("mirror-1").await.unwrap();
        // It cannot be spoken for twice.
        let set = properties.set(POOL, &change("reservation", "80M")).await;
        assert!(set.is_err(), "{set:?}");
        assert_eq!(end(&pool).await, RemovalState::Finished);
        check(&fs, 0, 1).await;
        close(fs, pool).await;
        verify(&sim, "finished").await;
    });
}

async fn refused(pool: &Pool, vdev: &str, words: &str) {
    let error = pool.remove(vdev).await.expect_err("refused");
    assert!(error.to_string().contains(words), "{error}");
}

/// Goal: what cannot be removed is refused, and nothing has changed. Method: a checkpoint, parity,
/// sectors of another size, the last vdev, a removal that is under way.
#[test]
fn what_cannot_be_removed_is_refused() {
    simulate(async {
        let sim = SimWorld::new(6);
        let (pool, fs) = prepare(&sim, Layout::Mirrors).await;
        pool.checkpoint().await.unwrap();
        refused(&pool, "mirror-1", "checkpoint").await;
        pool.discard_checkpoint().await.unwrap();
        for _ in 0..20 {
            pool.sync().await.unwrap();
        }
        pool.remove("mirror-1").await.unwrap();
        copy_a_part(&pool).await;
        assert!(pool.checkpoint().await.is_err());
        refused(&pool, "mirror-1", "already in progress").await;
        refused(&pool, "mirror-0", "already be in progress").await;
        let raidz = VdevLayout::Raidz {
            parity: 1,
            leaves: ["r0", "r1", "r2"].map(|name| disk(&sim, name)).to_vec(),
        };
        let raidz = addition(raidz, None);
        assert!(
            pool.add(&raidz).await.is_err(),
            "it gets nothing that is copied"
        );
        let other = addition(VdevLayout::Leaf(disk(&sim, "n0")), Some(13));
        assert!(pool.add(&other).await.is_err(), "nor does this");
        stop_removal(&pool).await.unwrap();
        assert_eq!(state(&pool), Some(RemovalState::Canceled));
        pool.add(&other).await.unwrap();
        refused(&pool, "mirror-1", "same sector size").await;
        check(&fs, 0, 1).await;
        close(fs, pool).await;
        inspect(&sim, "nothing has changed", true).await.unwrap();
    });
    simulate(async {
        let sim = SimWorld::new(7);
        let (pool, fs) = prepare(&sim, Layout::Classes).await;
        refused(&pool, "mirror-1", "not be raidz").await;
        refused(&pool, "raidz1-0", "not be raidz").await;
        check(&fs, 0, 1).await;
        close(fs, pool).await;
        inspect(&sim, "raidz", true).await.unwrap();
    });
    simulate(async {
        let sim = SimWorld::new(8);
        let (pool, fs) = prepare(&sim, Layout::Mirror(2)).await;
        refused(&pool, "mirror-0", "out of space").await;
        close(fs, pool).await;
        inspect(&sim, "the last one", true).await.unwrap();
    });
}

/// Goal: what was moved is moved again, and freed through both mappings. Method: three mirrors; one
/// is removed to the others, then another one of these, with a power cut in the middle and frees
/// before, meanwhile and after.
#[test]
fn what_was_moved_is_moved_again() {
    simulate(async {
        let sim = SimWorld::new(9);
        let (pool, fs) = prepare(&sim, Layout::Mirrors).await;
        let third = VdevLayout::Mirror(["disk4", "disk5"].map(|name| disk(&sim, name)).to_vec());
        pool.add(&addition(third, None)).await.unwrap();
        fill(&fs, 100).await;
        pool.sync().await.unwrap();
        pool.remove("mirror-1").await.unwrap();
        assert_eq!(end(&pool).await, RemovalState::Finished);
        for number in (0..FILES).step_by(4) {
            remove(&fs, &name(number)).await;
        }
        pool.remove("mirror-0").await.unwrap();
        copy_a_part(&pool).await;
        for number in (1..FILES).step_by(4) {
            remove(&fs, &name(number)).await;
        }
        pool.sync().await.unwrap();
        assert_eq!(state(&pool), Some(RemovalState::Running));
        drop((fs, pool));
        power_cycle(&sim).await;
        verify(&sim, "in the middle").await;
        let (pool, fs) = reopen(&sim).await;
        removal(&pool).set_turn_bytes(512 << 10);
        for number in (2..FILES).step_by(4) {
            remove(&fs, &name(number)).await;
        }
        assert_eq!(end(&pool).await, RemovalState::Finished);
        check(&fs, 3, 4).await;
        check(&fs, 100, 1).await;
        close(fs, pool).await;
        for name in ["disk0", "disk1", "disk2", "disk3"] {
            sim.disk(name).unwrap().set_gone(true);
        }
        verify(&sim, "twice").await;
        let (pool, fs) = reopen(&sim).await;
        for number in (3..FILES).step_by(4) {
            remove(&fs, &name(number)).await;
        }
        check(&fs, 100, 1).await;
        for number in (100..100 + FILES).step_by(2) {
            remove(&fs, &name(number)).await;
        }
        pool.sync().await.unwrap();
        close(fs, pool).await;
        verify(&sim, "freed").await;
    });
}

/// Blocks that many refer to, and copies beside others, are moved and freed as any other.
#[test]
fn deduplicated_blocks_and_second_copies_are_moved() {
    simulate(async {
        let sim = SimWorld::new(10);
        let (pool, fs) = prepare(&sim, Layout::Stripe).await;
        let properties = pool.dsl().properties();
        for (name, value) in [("dedup", "on"), ("copies", "2")] {
            properties.set(POOL, &change(name, value)).await.unwrap();
        }
        fill(&fs, 100).await;
        for number in 100..100 + FILES {
            let twin = data(number, FILE_BYTES);
            put(&fs, &format!("twin{number}"), &twin).await.unwrap();
        }
        pool.sync().await.unwrap();
        pool.remove("disk1").await.unwrap();
        copy_a_part(&pool).await;
        for number in (100..100 + FILES).step_by(2) {
            remove(&fs, &name(number)).await;
        }
        for number in (100..100 + FILES).step_by(4) {
            remove(&fs, &format!("twin{number}")).await;
        }
        assert_eq!(end(&pool).await, RemovalState::Finished);
        check(&fs, 0, 1).await;
        check(&fs, 101, 2).await;
        close(fs, pool).await;
        sim.disk("disk1").unwrap().set_gone(true);
        verify(&sim, "finished").await;
        let (pool, fs) = reopen(&sim).await;
        for number in 100..100 + FILES {
            if number % 4 != 0 {
                remove(&fs, &format!("twin{number}")).await;
            }
        }
        check(&fs, 0, 1).await;
        close(fs, pool).await;
        verify(&sim, "freed").await;
    });
}

/// Goal: what a stream heals on the vdev is healed in its copy too. Method: blocks of files are
/// damaged on both sides of the vdev, in the same way or not; some of them are copied, damage and
/// all; then a stream of their snapshot heals all of them, the removal ends, and the devices go.
#[test]
fn what_a_stream_heals_is_healed_in_its_copy() {
    simulate(async {
        let sim = SimWorld::new(11);
        let (pool, fs) = prepare(&sim, Layout::Mirrors).await;
        let snapshot = "tank@s".to_owned();
        pool.dsl()
            .snapshots()
            .take(std::slice::from_ref(&snapshot), &[])
            .await
            .unwrap();
        let source = pool.dsl().sends().source(&snapshot, None).await.unwrap();
        let mut bytes = Vec::new();
        let (options, progress) = (SendOptions::default(), Progress::default());
        stream::send(&source, &options, &mut bytes, &progress)
            .await
            .unwrap();
        drop(source);
        let places = places(&pool, &fs).await;
        for (index, offset) in places.iter().enumerate() {
            for side in ["disk2", "disk3"] {
                let (side, at) = (sim.disk(side).unwrap(), LABEL_START_BYTES + offset);
                match index % 2 {
                    0 => side.poke(at, &[0xa5; 4096]),
                    _ => side.corrupt(at, 4096),
                }
            }
        }
        pool.pipeline().cache().clear();
        pool.remove("mirror-1").await.unwrap();
        copy_a_part(&pool).await;
        removal(&pool).set_turn_bytes(0);
        pool.sync().await.unwrap();
        let copied_to = pool.pipeline().dvas().with_removal(|map| map.end_bytes());
        let copied = places.iter().filter(|at| Some(**at) < copied_to).count();
        assert!(copied > 0 && copied < places.len(), "{copied} {places:?}");
        assert_eq!(heal(&pool, &bytes).await.unwrap(), places.len() as u64);
        removal(&pool).set_turn_bytes(512 << 10);
        assert_eq!(end(&pool).await, RemovalState::Finished);
        pool.pipeline().cache().clear();
        check(&fs, 0, 1).await;
        close(fs, pool).await;
        for name in ["disk2", "disk3"] {
            sim.disk(name).unwrap().set_gone(true);
        }
        verify(&sim, "healed").await;
    });
}

/// Goal: a device that fails while its vdev is being removed gets no spare, and gets one when the
/// removal is given up. Method: a side of the vdev vanishes in the middle.
#[test]
fn a_side_that_failed_gets_a_spare_when_its_vdev_stays() {
    simulate(async {
        let sim = SimWorld::new(12);
        let (pool, fs) = prepare(&sim, Layout::Mirrors).await;
        disk(&sim, "s0");
        add_spare(&sim, &pool, "s0").await;
        pool.remove("mirror-1").await.unwrap();
        copy_a_part(&pool).await;
        removal(&pool).set_turn_bytes(0);
        let fault = OfflineSpec {
            temporary: true,
            fault: true,
        };
        pool.offline("disk3", fault).await.unwrap();
        for _ in 0..20 {
            pool.sync_config().await.unwrap();
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        assert_eq!(spares(&pool), "s0 waits");
        stop_removal(&pool).await.unwrap();
        until(&pool, "a spare stands in", |pool| {
            spares(pool) == "s0 used" && is_whole(pool, "s0")
        })
        .await;
        check(&fs, 0, 1).await;
        close(fs, pool).await;
        inspect(&sim, "with a spare", false).await.unwrap();
    });
}
