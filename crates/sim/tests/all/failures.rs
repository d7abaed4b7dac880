//! Goal: whatever disks do, as long as no more fail than redundancy can do without, nobody notices,
//! and once they were mended or replaced nothing is wrong any more. With one failure more, what is
//! damaged is told to the block, and the rest can be read.
//! Method: seeds (see `sim::failures`), and scripts for what they found. `MILLPOND_SIM_SEEDS=n`
//! runs so many seeds that no run had before, from `MILLPOND_SIM_FIRST=n` on if that is given, and
//! prints which; `MILLPOND_SEED=n` runs that one. About one in a hundred still fails, so that a run
//! of the tests takes the first ones.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::common::{ROOT, data, get, open, put, remove};
use crate::crash::run_seeds;
use crate::vdevs::power_cycle;
use device::sim::{Fault, FaultEffect, PowerCut, SimOp, SimWorld};
use filesystem::Filesystem;
use format::LABEL_START_BYTES;
use pool::{Pool, ScanStatus, ScrubCommand, VdevStatus};
use sim::failures::{Plan, run_plan};
use sim::torture::{Layout, create, import, inspect, patiently, simulate};

const DISK_MIB: u64 = 96;
const RECORD: usize = 128 << 10;

/// The first seeds, `most` with `MILLPOND_LONG` and else half, unless the environment says which.
fn seeds(most: u64) -> Vec<u64> {
    let default = match std::env::var_os("MILLPOND_LONG") {
        Some(_) => most,
        None => most.div_ceil(2),
    };
    let number = |name: &str| -> Option<u64> { std::env::var(name).ok()?.parse().ok() };
    if let Some(seed) = number("MILLPOND_SEED") {
        return vec![seed];
    }
    let Some(count) = number("MILLPOND_SIM_SEEDS") else {
        return (1..=default).collect();
    };
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let first = number("MILLPOND_SIM_FIRST").unwrap_or(now.as_millis() as u64 % 1_000_000_000);
    println!("seeds {first} to {}", first + count - 1);
    (first..first + count).collect()
}

#[test]
fn no_more_failures_than_parity_are_noticed() {
    run_seeds(&seeds(11), |seed| run_plan(&Plan::of(seed)));
}

/// The same seeds each time.
#[test]
fn known_failures_are_not_noticed() {
    run_seeds(
        &[121, 141, 1000, 1045, 1241, 1255, 3105, 574491891],
        |seed| run_plan(&Plan::of(seed)),
    );
}

/// A new device gets its last blocks from a resilver in the txg that says that it has all; when it
/// does not make them durable, and the power goes right after that txg, it lacks them. It was once
/// trusted, and the device that it replaced was let go.
#[test]
fn a_flush_that_fails_as_a_resilver_ends_is_on_record() {
    let mut failed = 0;
    for skip in 0..24 {
        let is_stale = simulate(async move {
            let sim = SimWorld::new(skip);
            let pool = create(&sim, Layout::Mirror(2), DISK_MIB, false)
                .await
                .unwrap();
            let fs = open(&sim, &pool).await.unwrap();
            put(&fs, "file", &data(1, 2_000_000)).await.unwrap();
            fs.close().await.unwrap();
            pool.sync().await.unwrap();
            let new = sim.add_disk("new", DISK_MIB << 20);
            new.set_sector_bytes(4096);
            let spec = sim::failures::operator::spec("new", true);
            pool.attach("disk0", &spec).await.unwrap();
            new.inject(Fault::new(SimOp::Flush, FaultEffect::Error).after(skip));
            // Until it has failed, and the txg of that is on disk.
            let works = || {
                find(&pool.status().root, "new")
                    .is_some_and(|new| new.state == pool::VdevState::Online)
            };
            let mut rounds = 0;
            while works() && rounds < 3000 {
                tokio::time::sleep(Duration::from_millis(1)).await;
                rounds += 1;
            }
            let txg = pool.synced_txg();
            while !works() && pool.synced_txg() == txg {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            let has_failed = !works();
            sim.power_cut(PowerCut::LoseUnflushed);
            pool.dsl().tasks().close();
            drop((fs, pool));
            power_cycle(&sim).await;
            new.clear_faults();
            let pool = import(&sim, false).await.unwrap();
            pool.scans().hold(true);
            let found = find(&pool.status().root, "new").map(|new| new.is_stale);
            pool.scans().hold(false);
            let ready = async {
                while pool.scans().is_resilver_due() || pool.is_replacing() {
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            };
            patiently("the resilver", ready).await.unwrap();
            let done = scrub(&pool).await;
            assert_eq!(done.repaired_bytes, 0, "{skip}: {found:?}, {done:?}");
            pool.export(false).await.unwrap();
            has_failed
        });
        failed += u32::from(is_stale);
    }
    assert!(failed > 3, "{failed}");
}

fn find<'a>(vdev: &'a VdevStatus, name: &str) -> Option<&'a VdevStatus> {
    if vdev.path.as_deref() == Some(name) {
        return Some(vdev);
    }
    vdev.children.iter().find_map(|child| find(child, name))
}

/// A scan does not meet what only a checkpoint has. So what a resilver gave a device meanwhile does
/// not count, and is given to it again when the checkpoint is gone.
#[test]
fn a_resilver_under_a_checkpoint_is_repeated_without_it() {
    simulate(async {
        let sim = SimWorld::new(21);
        let pool = create(&sim, Layout::Mirror(2), DISK_MIB, false)
            .await
            .unwrap();
        let fs = open(&sim, &pool).await.unwrap();
        let disk = sim.disk("disk1").unwrap();
        disk.set_gone(true);
        put(&fs, "kept", &data(1, 2_000_000)).await.unwrap();
        pool.sync().await.unwrap();
        pool.checkpoint().await.unwrap();
        remove(&fs, "kept").await;
        put(&fs, "file", &data(2, 2_000_000)).await.unwrap();
        pool.sync().await.unwrap();
        disk.set_gone(false);
        pool.online("disk1", false).await.unwrap();
        let is_stale = || find(&pool.status().root, "disk1").unwrap().is_stale;
        let resilvered = async |least: u64| {
            let ended = || {
                let scan = pool.scans().scrub_status();
                scan.is_some_and(|scan| scan.end_time_s > 0 && scan.start_time_s >= least)
            };
            while !ended() {
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
            pool.scans().scrub_status().unwrap()
        };
        let first = patiently("a resilver", resilvered(0)).await.unwrap();
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert!(is_stale(), "the checkpoint's blocks are not on it");
        assert_eq!(
            pool.scans().scrub_status().unwrap().start_time_s,
            first.start_time_s
        );
        pool.discard_checkpoint().await.unwrap();
        let again = resilvered(first.start_time_s + 1);
        patiently("another resilver", again).await.unwrap();
        for _ in 0..60 {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        assert!(!is_stale());
        let done = scrub(&pool).await;
        assert_eq!((done.errors, done.repaired_bytes), (0, 0), "{done:?}");
        fs.close().await.unwrap();
        pool.export(false).await.unwrap();
    });
}

/// What a block leads to that a resilver cannot read, it does not meet: devices go on lacking all
/// that may be. They were trusted with it otherwise, as the block is younger than that.
#[test]
fn what_an_unreadable_block_leads_to_goes_on_being_lacked() {
    let mut unreadable = 0;
    for skip in 0..30 {
        unreadable += simulate(async move {
            let sim = SimWorld::new(22);
            let pool = create(&sim, Layout::Mirror(2), DISK_MIB, false)
                .await
                .unwrap();
            let fs = open(&sim, &pool).await.unwrap();
            put(&fs, "before", &data(1, 300_000)).await.unwrap();
            pool.sync().await.unwrap();
            let (whole, lacking) = (sim.disk("disk0").unwrap(), sim.disk("disk1").unwrap());
            lacking.set_gone(true);
            // Their dnodes are in one block, which is of the last of these txgs.
            for file in 0..6 {
                let name = format!("file{file}");
                put(&fs, &name, &data(file, 300_000)).await.unwrap();
                pool.sync().await.unwrap();
            }
            fs.close().await.unwrap();
            pool.scans().hold(true);
            lacking.set_gone(false);
            pool.online("disk1", false).await.unwrap();
            let blocks = LABEL_START_BYTES..(DISK_MIB << 20) - LABEL_START_BYTES;
            let fault = Fault::new(SimOp::Read, FaultEffect::Error).within(blocks);
            // All copies, of blocks that are read together or alone.
            whole.inject(fault.after(skip).times(14));
            pool.scans().hold(false);
            let ended = async {
                while pool
                    .scans()
                    .scrub_status()
                    .is_none_or(|scan| scan.end_time_s == 0)
                {
                    tokio::time::sleep(Duration::from_secs(1)).await;
                }
            };
            patiently("the resilver", ended).await.unwrap();
            let first = pool.scans().scrub_status().unwrap();
            let is_stale = || find(&pool.status().root, "disk1").unwrap().is_stale;
            assert_eq!(is_stale(), first.errors > 0, "{skip}: {first:?}");
            whole.clear_faults();
            pool.clear(None).await.unwrap();
            let mended = async {
                while is_stale() || pool.scans().is_resilver_due() {
                    tokio::time::sleep(Duration::from_secs(1)).await;
                }
            };
            patiently("another resilver", mended).await.unwrap();
            let done = scrub(&pool).await;
            assert_eq!(
                (done.errors, done.repaired_bytes),
                (0, 0),
                "{skip}: {done:?}"
            );
            pool.export(false).await.unwrap();
            u32::from(first.errors > 0)
        });
    }
    assert!(unreadable > 3, "{unreadable}");
}

/// A disk that failed two writes of an idle pool gets what it missed, though nobody writes.
#[test]
fn an_idle_pool_resilvers_what_a_failed_write_left() {
    simulate(async {
        let sim = SimWorld::new(3);
        let pool = create(&sim, Layout::Mirror(2), DISK_MIB, false)
            .await
            .unwrap();
        let fs = open(&sim, &pool).await.unwrap();
        let disk = sim.disk("disk1").unwrap();
        // A write, and once more the same.
        let blocks = LABEL_START_BYTES..(DISK_MIB << 20) - LABEL_START_BYTES;
        let fault = Fault::new(SimOp::Write, FaultEffect::Error).within(blocks);
        disk.inject(fault.times(2));
        put(&fs, "file", &data(1, 4000)).await.unwrap();
        fs.close().await.unwrap();
        pool.sync().await.unwrap();
        let is_stale = || find(&pool.status().root, "disk1").unwrap().is_stale;
        assert!(is_stale(), "nothing was missed");
        assert!(pool.scans().is_resilver_due());
        tokio::time::sleep(Duration::from_secs(120)).await;
        assert!(!is_stale(), "{:?}", pool.scans().scrub_status());
        let synced = pool.synced_txg();
        tokio::time::sleep(Duration::from_secs(120)).await;
        assert_eq!(pool.synced_txg(), synced, "it is not idle any more");
        pool.export(false).await.unwrap();
        inspect(&sim, "resilvered", true).await.unwrap();
    });
}

/// Where each sector of these files is, on all disks, by its content.
fn places(sim: &SimWorld, contents: &[bytes::Bytes]) -> BTreeMap<Vec<u8>, Vec<(String, u64)>> {
    let mut places: BTreeMap<Vec<u8>, Vec<(String, u64)>> = BTreeMap::new();
    for content in contents {
        for sector in content.chunks(4096) {
            places.insert(sector.to_vec(), Vec::new());
        }
    }
    for name in sim.disk_names() {
        let disk = sim.disk(&name).unwrap();
        let content = disk.peek(0, (DISK_MIB << 20) as usize);
        for (index, sector) in content.chunks(4096).enumerate() {
            if let Some(found) = places.get_mut(sector) {
                found.push((name.clone(), index as u64 * 4096));
            }
        }
    }
    places
}

async fn scrub(pool: &Pool) -> ScanStatus {
    pool.scans().scrub(ScrubCommand::Start).await.unwrap();
    patiently("a scrub", pool.scans().wait_for_scrub(true))
        .await
        .unwrap();
    pool.scans().scrub_status().unwrap()
}

/// File and record of what the pool lists as damaged.
async fn damaged(pool: &Pool) -> BTreeSet<(u64, u64)> {
    let damaged = pool.damaged().await;
    assert!(damaged.iter().all(|block| block.level == 0), "{damaged:?}");
    let blocks = damaged.iter();
    blocks
        .map(|block| (block.object.get(), block.block_id))
        .collect()
}

/// Reads every record: those that cannot be read; the others must be right.
async fn unreadable(fs: &Arc<Filesystem>, files: &[(u64, bytes::Bytes)]) -> BTreeSet<(u64, u64)> {
    let mut lost = BTreeSet::new();
    for (ino, content) in files {
        for (index, wanted) in content.chunks(RECORD).enumerate() {
            match fs.read(*ino, (index * RECORD) as u64, wanted.len()).await {
                Ok(pieces) => assert!(pieces.concat() == wanted, "{ino} {index}: wrong data"),
                Err(_) => assert!(lost.insert((*ino, index as u64))),
            }
        }
    }
    lost
}

/// Blocks are spoiled on one disk more than redundancy makes up for.
#[test]
fn one_failure_too_many_is_told_exactly() {
    let layouts = [
        (Layout::Mirror(2), 2),
        (Layout::Mirror(3), 3),
        (Layout::Raidz(1, 3), 2),
        (Layout::Raidz(2, 5), 3),
        (Layout::Draid(1, 2, 1, 5), 2),
    ];
    for (layout, too_many) in layouts {
        for is_unreadable in [false, true] {
            simulate(async move {
                let sim = SimWorld::new(77);
                let pool = create(&sim, layout, DISK_MIB, false).await.unwrap();
                let fs = open(&sim, &pool).await.unwrap();
                let mut files = Vec::new();
                for number in 0..8 {
                    let content = data(number, 3 * RECORD);
                    let ino = put(&fs, &format!("file{number}"), &content).await.unwrap();
                    files.push((ino, content));
                }
                pool.sync().await.unwrap();
                let contents: Vec<_> = files.iter().map(|(_, content)| content.clone()).collect();
                let places = places(&sim, &contents);
                // One record each of three files, and one on as many disks as can do without.
                let mut lost = BTreeSet::new();
                for (file, record) in [(1, 0), (4, 2), (6, 1), (2, 2)] {
                    let (ino, content) = &files[file];
                    let is_lost = file != 2;
                    let count = if is_lost { too_many } else { too_many - 1 };
                    let mut hit = BTreeSet::new();
                    let bytes = &content[record * RECORD..(record + 1) * RECORD];
                    for (disk, at) in bytes.chunks(4096).flat_map(|sector| &places[sector]) {
                        if hit.len() < count && hit.insert(disk.clone()) {
                            let disk = sim.disk(disk).unwrap();
                            match is_unreadable {
                                true => disk.make_unreadable(*at, 4096),
                                false => disk.corrupt(*at, 4096),
                            }
                        }
                    }
                    assert_eq!(hit.len(), count);
                    if is_lost {
                        lost.insert((*ino, record as u64));
                    }
                }
                let about = format!("{layout:?} {is_unreadable}");
                let done = scrub(&pool).await;
                assert_eq!(done.errors, lost.len() as u64, "{about}");
                assert_eq!(damaged(&pool).await, lost, "{about}: by the scrub");
                pool.pipeline().cache().clear();
                assert_eq!(unreadable(&fs, &files).await, lost, "{about}");
                fs.close().await.unwrap();
                pool.export(false).await.unwrap();
                drop((fs, pool));
                let pool = import(&sim, false).await.unwrap();
                assert_eq!(damaged(&pool).await, lost, "{about}: by the logs");
                let fs = open(&sim, &pool).await.unwrap();
                // Written anew, or gone: then nothing is damaged.
                let anew = data(99, RECORD);
                fs.write(files[1].0, 0, anew.clone(), false, ROOT)
                    .await
                    .unwrap();
                remove(&fs, "file4").await;
                remove(&fs, "file6").await;
                pool.sync().await.unwrap();
                pool.clear(None).await.unwrap();
                for _ in 0..2 {
                    assert_eq!(scrub(&pool).await.errors, 0, "{about}");
                }
                assert!(damaged(&pool).await.is_empty(), "{about}");
                assert!(get(&fs, "file1").await.unwrap()[..RECORD] == anew);
                fs.close().await.unwrap();
                pool.export(false).await.unwrap();
            });
        }
    }
}
