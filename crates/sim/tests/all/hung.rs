//! Goal: a device that does not answer stops nobody as long as the pool can do without it, and
//! what it does when it wakes up does no harm; where the pool needs it, the pool waits, says so,
//! and goes on. Method: scripts with disks that take operations and do not answer until they are
//! told to.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use crate::common::{data, get, open, put, remove};
use crate::spares::{Told, add_spare, is_whole, leave, scrub_finds_nothing, until};
use crate::topology::{add_disk, find, shape, spec};
use dataset::PropertyChange;
use device::sim::{Fault, FaultEffect, SimDisk, SimOp, SimWorld};
use format::{LABEL_START_BYTES, ObjectId};
use pool::{OfflineSpec, Pool, ScrubCommand, VdevState};
use sim::torture::{Layout, create, create_told, import, inspect, patiently, simulate, zdb};

const DISK_MIB: u64 = 96;
/// How long a client may have to wait: until the device is given up, and a bit.
const BEARABLE: Duration = Duration::from_secs(45);
/// How long a read may take that can be answered elsewhere, for each disk that hangs.
const READ_BEARABLE: Duration = Duration::from_secs(8);

/// The disk takes what it is given, and does not answer.
fn hang(disk: &SimDisk) {
    for op in [SimOp::Read, SimOp::Write, SimOp::Flush] {
        disk.inject(Fault::new(op, FaultEffect::Stall));
    }
}

fn disks(sim: &SimWorld, count: usize) -> Vec<SimDisk> {
    (0..count)
        .map(|index| sim.disk(&format!("disk{index}")).unwrap())
        .collect()
}

fn state(pool: &Pool, disk: &str) -> VdevState {
    find(&pool.status().root, disk).unwrap().state
}

async fn within<T>(longest: Duration, what: &str, work: impl Future<Output = T>) -> T {
    let done = tokio::time::timeout(longest, work).await;
    done.unwrap_or_else(|_| panic!("{what} takes longer than {longest:?}"))
}

async fn end(sim: &SimWorld, pool: Arc<Pool>) {
    pool.export(false).await.unwrap();
    drop(pool);
    inspect(sim, "in the end", true).await.unwrap();
    zdb(sim).unwrap();
}

/// As many disks as there is parity hang under load: reads are answered elsewhere after seconds,
/// writes once the disks are given up. Then the places of what they were given are freed and used
/// again; the disks wake up, do what they had been told, and get what they lack.
#[test]
fn hung_disks_are_done_without_and_come_back() {
    for (seed, layout, count, hung) in [
        (901, Layout::Mirror(2), 2, vec![0]),
        (902, Layout::Mirror(3), 3, vec![2, 0]),
        (903, Layout::Raidz(1, 3), 3, vec![1]),
        (904, Layout::Raidz(2, 5), 5, vec![4, 1]),
        (905, Layout::Draid(1, 2, 1, 5), 5, vec![3]),
    ] {
        simulate(async move {
            let sim = SimWorld::new(seed);
            let told = Arc::new(Told::default());
            let size = if matches!(layout, Layout::Draid(..)) {
                128
            } else {
                DISK_MIB
            };
            let pool = create_told(&sim, layout, size, told.clone()).await.unwrap();
            let disks = disks(&sim, count);
            let fs = open(&sim, &pool).await.unwrap();
            for file in 0..8 {
                let name = format!("old{file}");
                put(&fs, &name, &data(file, 400_000)).await.unwrap();
            }
            pool.sync().await.unwrap();
            hung.iter().for_each(|index| hang(&disks[*index]));

            // What has to be read meanwhile, before the disks are given up.
            pool.pipeline().cache().clear();
            let old = within(
                READ_BEARABLE * hung.len() as u32,
                &format!("a read, {layout:?}"),
                get(&fs, "old1"),
            )
            .await;
            assert_eq!(old.unwrap(), data(1, 400_000));
            for index in &hung {
                assert_eq!(state(&pool, &format!("disk{index}")), VdevState::Online);
            }
            // Now that they lag nobody waits for them again.
            let old = within(Duration::from_secs(1), "another read", get(&fs, "old2")).await;
            assert_eq!(old.unwrap(), data(2, 400_000));
            let content = data(20, 3_000_000);
            let late = put(&fs, "late", &content);
            within(BEARABLE, "a write", late).await.unwrap();
            within(BEARABLE, "a sync", pool.sync()).await.unwrap();
            for index in &hung {
                let name = format!("disk{index}");
                assert_eq!(state(&pool, &name), VdevState::CantOpen, "{}", shape(&pool));
            }
            assert!(pool.suspended().is_none());
            let deadman = told.of("ereport.fs.zfs.deadman");
            assert_eq!(deadman.len(), hung.len());
            for event in &deadman {
                assert!(event.pairs.u64("zio_delta").unwrap() >= 39_000_000_000);
                assert!(event.pairs.u64("vdev_guid").is_some());
            }

            // The places are used for something else.
            remove(&fs, "late").await;
            for file in 0..8 {
                remove(&fs, &format!("old{file}")).await;
            }
            for _ in 0..4 {
                pool.sync().await.unwrap();
            }
            for file in 0..30 {
                let name = format!("new{file}");
                put(&fs, &name, &data(100 + file, 400_000)).await.unwrap();
            }
            pool.sync().await.unwrap();
            tokio::time::sleep(Duration::from_secs(600)).await;
            for index in &hung {
                let name = format!("disk{index}");
                assert_eq!(state(&pool, &name), VdevState::CantOpen, "it is asleep");
                let error = pool.online(&name, false).await;
                let works = error.is_ok_and(|onlined| onlined.state == VdevState::Online);
                assert!(!works, "{name} has not answered everything");
                disks[*index].release();
            }
            let whole = |pool: &Pool| {
                let mut hung = hung.iter();
                hung.all(|index| is_whole(pool, &format!("disk{index}")))
            };
            until(&pool, "the disks are back", whole).await;
            pool.pipeline().cache().clear();
            for file in 0..30 {
                let found = get(&fs, &format!("new{file}")).await.unwrap();
                assert!(found == data(100 + file, 400_000), "new{file}");
            }
            pool.clear(None).await.unwrap();
            scrub_finds_nothing(&pool).await;
            fs.close().await.unwrap();
            drop(fs);
            end(&sim, pool).await;
        });
    }
}

/// Flushes alone hang, with what was written before them: it may be lost when the disk is back.
#[test]
fn a_flush_that_hangs_is_given_up() {
    simulate(async {
        let sim = SimWorld::new(911);
        let pool = create(&sim, Layout::Mirror(2), DISK_MIB, false)
            .await
            .unwrap();
        let disk = sim.disk("disk1").unwrap();
        let fs = open(&sim, &pool).await.unwrap();
        disk.inject(Fault::new(SimOp::Flush, FaultEffect::Stall));
        put(&fs, "file", &data(1, 2_000_000)).await.unwrap();
        within(BEARABLE, "a sync", pool.sync()).await.unwrap();
        assert_eq!(state(&pool, "disk1"), VdevState::CantOpen);
        disk.lose_cache(device::sim::PowerCut::LoseUnflushed);
        disk.release();
        until(&pool, "the disk is back", |pool| is_whole(pool, "disk1")).await;
        scrub_finds_nothing(&pool).await;
        leave(pool, fs).await;
        inspect(&sim, "in the end", true).await.unwrap();
    });
}

/// All disks hang: nothing is given up, as the host may be what hangs. The pool waits, is suspended
/// in the end, and goes on by itself when they answer; nobody has lost anything.
#[test]
fn a_pool_that_needs_the_disks_waits_and_goes_on() {
    for (seed, layout, count) in [
        (921, Layout::Single, 1),
        (922, Layout::Mirror(2), 2),
        (923, Layout::Raidz(1, 3), 2),
    ] {
        for after_s in [60, 900] {
            simulate(async move {
                let sim = SimWorld::new(seed);
                let pool = create(&sim, layout, DISK_MIB, false).await.unwrap();
                let fs = open(&sim, &pool).await.unwrap();
                let disks = disks(&sim, count);
                disks.iter().for_each(hang);
                let syncing = {
                    let (pool, fs) = (pool.clone(), fs.clone());
                    tokio::spawn(async move {
                        put(&fs, "file", &data(1, 2_000_000)).await.unwrap();
                        pool.sync().await
                    })
                };
                tokio::time::sleep(Duration::from_secs(after_s)).await;
                assert!(!syncing.is_finished());
                let is_long = after_s > 300;
                let why = pool.suspended().unwrap_or_default();
                assert_eq!(why.contains("does not answer"), is_long, "{why}");
                if is_long {
                    // Nor does the one who leaves wait for ever.
                    let export = within(BEARABLE, "an export", pool.export(false)).await;
                    assert!(export.is_err());
                }
                for index in 0..count {
                    assert_eq!(state(&pool, &format!("disk{index}")), VdevState::Online);
                }
                disks.iter().for_each(SimDisk::release);
                let synced = within(BEARABLE, "the sync", syncing).await;
                synced.unwrap().unwrap();
                assert!(pool.suspended().is_none());
                pool.pipeline().cache().clear();
                assert_eq!(get(&fs, "file").await.unwrap(), data(1, 2_000_000));
                scrub_finds_nothing(&pool).await;
                fs.close().await.unwrap();
                drop(fs);
                end(&sim, pool).await;
            });
        }
    }
}

/// One disk hangs while others beside it take long: nothing is given up before these answer.
#[test]
fn disks_that_hang_together_are_not_given_up_by_chance() {
    simulate(async {
        let sim = SimWorld::new(931);
        let pool = create(&sim, Layout::Mirror(2), DISK_MIB, false)
            .await
            .unwrap();
        let fs = open(&sim, &pool).await.unwrap();
        let disks = disks(&sim, 2);
        disks.iter().for_each(hang);
        let writing = {
            let (pool, fs) = (pool.clone(), fs.clone());
            tokio::spawn(async move {
                put(&fs, "file", &data(1, 300_000)).await.unwrap();
                pool.sync().await.unwrap();
            })
        };
        tokio::time::sleep(Duration::from_secs(70)).await;
        assert_eq!(state(&pool, "disk0"), VdevState::Online);
        disks[1].release();
        within(Duration::from_secs(5), "the rest", writing)
            .await
            .unwrap();
        assert_eq!(state(&pool, "disk0"), VdevState::CantOpen);
        assert_eq!(state(&pool, "disk1"), VdevState::Online);
        disks[0].release();
        until(&pool, "the disk is back", |pool| is_whole(pool, "disk0")).await;
        scrub_finds_nothing(&pool).await;
        leave(pool, fs).await;
    });
}

/// A spare stands in for a disk that hangs, and goes when that is back. One that hangs again and
/// again stays away until it is cleared.
#[test]
fn a_spare_stands_in_for_a_disk_that_hangs() {
    simulate(async {
        let sim = SimWorld::new(941);
        let pool = create(&sim, Layout::Raidz(1, 3), DISK_MIB, false)
            .await
            .unwrap();
        let fs = open(&sim, &pool).await.unwrap();
        add_spare(&sim, &pool, "spare").await;
        let disk = sim.disk("disk1").unwrap();
        for round in 0..3 {
            let name = format!("file{round}");
            put(&fs, &name, &data(round, 2_000_000)).await.unwrap();
            hang(&disk);
            within(BEARABLE, "a sync", pool.sync()).await.unwrap();
            let stands_in = |pool: &Pool| is_whole(pool, "spare");
            until(&pool, "the spare stands in", stands_in).await;
            disk.release();
            if round < 2 {
                until(&pool, "the disk is back", |pool| is_whole(pool, "disk1")).await;
                let has_left = |pool: &Pool| find(&pool.status().root, "spare").is_none();
                until(&pool, "the spare goes", has_left).await;
            }
        }
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert_eq!(state(&pool, "disk1"), VdevState::Faulted);
        pool.clear(Some("disk1")).await.unwrap();
        until(&pool, "the disk is back", |pool| is_whole(pool, "disk1")).await;
        scrub_finds_nothing(&pool).await;
        leave(pool, fs).await;
    });
}

/// Whoever wants something of a pool with a disk that hangs gets an answer.
#[test]
fn nobody_waits_for_ever_for_a_hung_disk() {
    let longest = Duration::from_secs(120);
    for what in ["offline", "replace", "detach", "export", "hung import"] {
        simulate(async move {
            let sim = SimWorld::new(951);
            let layout = match what {
                "detach" => Layout::Mirror(3),
                _ => Layout::Raidz(1, 3),
            };
            let pool = create(&sim, layout, DISK_MIB, false).await.unwrap();
            let fs = open(&sim, &pool).await.unwrap();
            put(&fs, "file", &data(1, 2_000_000)).await.unwrap();
            let disk = sim.disk("disk1").unwrap();
            if what == "hung import" {
                leave(pool, fs).await;
                hang(&disk);
                let imported = within(2 * longest, what, import(&sim, false)).await;
                let pool = imported.unwrap();
                let fs = open(&sim, &pool).await.unwrap();
                assert_eq!(get(&fs, "file").await.unwrap(), data(1, 2_000_000));
                disk.release();
                pool.reopen(false).await.unwrap();
                until(&pool, "the disk is back", |pool| is_whole(pool, "disk1")).await;
                leave(pool, fs).await;
                return;
            }
            hang(&disk);
            match what {
                "offline" => {
                    let spec = OfflineSpec {
                        temporary: false,
                        fault: false,
                    };
                    let done = within(longest, what, pool.offline("disk1", spec)).await;
                    done.unwrap();
                    disk.release();
                    pool.online("disk1", false).await.unwrap();
                    until(&pool, "the disk is back", |pool| is_whole(pool, "disk1")).await;
                }
                "replace" => {
                    add_disk(&sim, "new");
                    let spec = spec("new", true);
                    let done = within(longest, what, pool.attach("disk1", &spec)).await;
                    done.unwrap();
                    until(&pool, "the new one has all", |pool| is_whole(pool, "new")).await;
                    let is_gone = |pool: &Pool| find(&pool.status().root, "disk1").is_none();
                    until(&pool, "the old one goes", is_gone).await;
                }
                "detach" => {
                    within(longest, what, pool.detach("disk1")).await.unwrap();
                }
                _ => {
                    fs.close().await.unwrap();
                    within(longest, what, pool.export(false)).await.unwrap();
                    drop((fs, pool));
                    disk.release();
                    let pool = import(&sim, false).await.unwrap();
                    until(&pool, "the disk is back", |pool| is_whole(pool, "disk1")).await;
                    scrub_finds_nothing(&pool).await;
                    end(&sim, pool).await;
                    return;
                }
            }
            scrub_finds_nothing(&pool).await;
            leave(pool, fs).await;
        });
    }
    // A disk that hangs can be had for nothing new either.
    simulate(async move {
        let sim = SimWorld::new(952);
        let pool = create(&sim, Layout::Mirror(2), DISK_MIB, false)
            .await
            .unwrap();
        add_disk(&sim, "new");
        hang(&sim.disk("new").unwrap());
        let new = spec("new", false);
        let attach = pool.attach("disk0", &new);
        let attached = patiently("attach", within(longest, "attach", attach)).await;
        attached.unwrap().unwrap_err();
        pool.export(false).await.unwrap();
    });
}

/// While a disk that had hung is brought back, another one hangs that the pool needs now: who
/// brings the first one back waits for that, and the pool is told to stand still all the same.
#[test]
fn another_disk_hangs_while_one_is_brought_back() {
    simulate(async {
        let sim = SimWorld::new(961);
        let pool = create(&sim, Layout::Mirror(2), DISK_MIB, false)
            .await
            .unwrap();
        let fs = open(&sim, &pool).await.unwrap();
        let disks = disks(&sim, 2);
        hang(&disks[1]);
        put(&fs, "file", &data(1, 2_000_000)).await.unwrap();
        within(BEARABLE, "a sync", pool.sync()).await.unwrap();
        assert_eq!(state(&pool, "disk1"), VdevState::CantOpen);
        // What it lacks only the other one has.
        hang(&disks[0]);
        disks[1].release();
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert!(pool.suspended().is_none());
        assert_ne!(state(&pool, "disk1"), VdevState::CantOpen, "it is tried");
        tokio::time::sleep(Duration::from_secs(340)).await;
        let why = pool.suspended().unwrap_or_default();
        assert!(why.contains("does not answer"), "{why}");
        disks[0].release();
        until(&pool, "the disk is back", |pool| is_whole(pool, "disk1")).await;
        assert!(pool.suspended().is_none());
        scrub_finds_nothing(&pool).await;
        fs.close().await.unwrap();
        drop(fs);
        end(&sim, pool).await;
    });
}

/// A disk that was given up and has not answered yet is asked for by all commands that open
/// devices: what is written meanwhile does not wait for it.
#[test]
fn looking_for_a_disk_that_hangs_stops_no_writes() {
    for what in ["reopen", "clear", "scrub", "online", "online the other"] {
        simulate(async move {
            let sim = SimWorld::new(971);
            let pool = create(&sim, Layout::Mirror(2), DISK_MIB, false)
                .await
                .unwrap();
            let fs = open(&sim, &pool).await.unwrap();
            let disk = sim.disk("disk1").unwrap();
            hang(&disk);
            put(&fs, "file", &data(1, 2_000_000)).await.unwrap();
            within(BEARABLE, "a sync", pool.sync()).await.unwrap();
            assert_eq!(state(&pool, "disk1"), VdevState::CantOpen);
            let looking = {
                let pool = pool.clone();
                tokio::spawn(async move {
                    match what {
                        "reopen" => drop(pool.reopen(false).await),
                        "clear" => drop(pool.clear(None).await),
                        "scrub" => drop(pool.scans().scrub(ScrubCommand::Start).await),
                        "online" => drop(pool.online("disk1", false).await),
                        _ => drop(pool.online("disk0", false).await),
                    }
                })
            };
            for round in 0..5 {
                tokio::time::sleep(Duration::from_secs(1)).await;
                let longest = Duration::from_secs(2);
                let content = data(10 + round, 300_000);
                let name = format!("file{round}");
                let written = async {
                    put(&fs, &name, &content).await.unwrap();
                    pool.sync().await.unwrap();
                };
                within(longest, &format!("a sync during {what}"), written).await;
            }
            assert!(pool.suspended().is_none());
            // It is waited for twice.
            within(3 * BEARABLE, what, looking).await.unwrap();
            disk.release();
            until(&pool, "the disk is back", |pool| is_whole(pool, "disk1")).await;
            scrub_finds_nothing(&pool).await;
            leave(pool, fs).await;
            inspect(&sim, "in the end", true).await.unwrap();
        });
    }
}

/// Makes a sector of what a disk has of `content` at these places wrong, and has what would put it
/// right hang; false if it has nothing of it there.
fn spoil(disk: &SimDisk, content: &[u8], places: Range<u64>) -> bool {
    let is_of_it = |sector: &[u8]| content.chunks_exact(4096).any(|chunk| chunk == sector);
    let mut places = places.step_by(512);
    let Some(at) = places.find(|at| is_of_it(&disk.peek(*at, 4096))) else {
        return false;
    };
    disk.corrupt(at, 4096);
    let here = Fault::new(SimOp::Write, FaultEffect::Stall).within(at..at + 4096);
    disk.inject(here);
    true
}

/// What a reader found wrong is put right on a disk that hangs. The end of a transaction group
/// waits for that, and what becomes of it is what becomes of the group's own writes: where the pool
/// can do without the disk, that is given up; where it cannot, the pool is told to stand still, and
/// goes on when the disk answers.
#[test]
fn a_repair_that_hangs_holds_up_a_group_as_its_own_writes_do() {
    for (seed, layout, is_needed) in [
        (981, Layout::Mirror(2), false),
        (982, Layout::Raidz(1, 3), false),
        (983, Layout::Single, true),
    ] {
        simulate(async move {
            let sim = SimWorld::new(seed);
            let pool = create(&sim, layout, DISK_MIB, false).await.unwrap();
            let copies = [("copies".into(), PropertyChange::Set("2".into()))];
            let (properties, name) = (pool.dsl().properties(), pool.name());
            properties.set(&name, &copies).await.unwrap();
            let fs = open(&sim, &pool).await.unwrap();
            let content = data(1, 400_000);
            let ino = put(&fs, "file", &content).await.unwrap();
            pool.sync().await.unwrap();
            let read_first = {
                let dataset = fs.dataset().unwrap();
                let object = dataset.objset().hold(ObjectId::new(ino)).await.unwrap();
                object.block_pointer(0).await.unwrap().dva(0).unwrap()
            };
            let columns = if matches!(layout, Layout::Raidz(..)) {
                3
            } else {
                1
            };
            let start = LABEL_START_BYTES + read_first.offset_bytes() / columns / 512 * 512;
            let places = start..start + read_first.asize_bytes() / columns;
            pool.pipeline().cache().clear();
            // On RAID-Z one of them has parity there.
            let name = ["disk0", "disk1", "disk2"].into_iter().find(|name| {
                let disk = sim.disk(name).unwrap();
                spoil(&disk, &content, places.clone())
            });
            let name = name.expect("one has a part of it");
            let disk = sim.disk(name).unwrap();
            let reading = {
                let fs = fs.clone();
                tokio::spawn(async move { get(&fs, "file").await.unwrap() })
            };
            tokio::time::sleep(Duration::from_secs(1)).await;
            let writing = {
                let (pool, fs) = (pool.clone(), fs.clone());
                tokio::spawn(async move {
                    put(&fs, "other", &data(2, 400_000)).await.unwrap();
                    pool.sync().await.unwrap();
                })
            };
            tokio::time::sleep(Duration::from_secs(30)).await;
            assert!(!writing.is_finished(), "{layout:?}: it is waited for");
            tokio::time::sleep(Duration::from_secs(330)).await;
            assert_eq!(writing.is_finished(), !is_needed, "{layout:?}");
            let given_up = state(&pool, name) == VdevState::CantOpen;
            assert_eq!(given_up, !is_needed, "{}", shape(&pool));
            let why = pool.suspended().unwrap_or_default();
            assert_eq!(why.contains("does not answer"), is_needed, "{why}");
            disk.release();
            within(BEARABLE, "the sync", writing).await.unwrap();
            let read = within(BEARABLE, "the read", reading).await;
            assert!(read.unwrap() == content, "{layout:?}");
            let goes_on = |pool: &Pool| is_whole(pool, name) && pool.suspended().is_none();
            until(&pool, "the disk is back", goes_on).await;
            pool.clear(None).await.unwrap();
            pool.pipeline().cache().clear();
            assert!(get(&fs, "file").await.unwrap() == content);
            scrub_finds_nothing(&pool).await;
            fs.close().await.unwrap();
            drop(fs);
            end(&sim, pool).await;
        });
    }
}
