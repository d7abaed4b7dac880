//! Goal: the distributed spares of a dRAID vdev stand in for disks that die, one after the other,
//! have everything then, and are free again when the disks are; whatever moment the power goes at,
//! nothing is lost. Method: scripts in the simulated world; power cuts at writes and flushes of a
//! rebuild (a sample of them by default, all with `MILLPOND_LONG=1`) while files are written,
//! overwritten and removed, and other disks refuse writes, come and go, or die; then what was
//! acknowledged is read with as many more disks gone as there is parity, a scrub finds nothing when
//! all are back, and zdb agrees.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use crate::common::{ROOT, data, get, open, put, remove};
use crate::spares::{
    files_are_whole, is_whole, leave, scrub_finds_nothing, spares, until, write_files,
};
use crate::topology::{shape, spec};
use crate::vdevs::{CUTS, count, power_cycle, until_cut};
use bytes::Bytes;
use device::sim::{Fault, FaultEffect, Latency, PowerCut, SimOp, SimWorld};
use filesystem::Filesystem;
use parking_lot::Mutex;
use pool::{
    AddSpec, AttachSpec, LeafSpec, OfflineSpec, Pool, PoolError, RebuildState, RebuildStatus,
    TopologyError, VdevClass, VdevLayout, VdevSpec, VdevState, VdevStatus,
};
use sim::torture::{Layout, create, import, inspect, simulate, zdb, zdb_without};
use sim::verify::Failure;

/// OpenZFS opens no dRAID with less space than the least device has.
const DISK_MIB: u64 = 128;
/// Of the files that are there before a rebuild: they are on several metaslabs.
const OLD_BYTES: usize = 500_000;

/// So much is acknowledged at least while a rebuild copies.
const LOAD_MIN: u64 = 3;

fn rebuild(pool: &Pool) -> Option<RebuildStatus> {
    pool.status().root.children[0].rebuild
}

fn state(pool: &Pool) -> Option<RebuildState> {
    rebuild(pool).map(|rebuild| rebuild.state)
}

/// Whether a rebuild is under way, and has come to something.
fn is_copying(pool: &Pool) -> bool {
    let is_it = |rebuild: RebuildStatus| {
        rebuild.state == RebuildState::Active && rebuild.pass_scanned_bytes > 0
    };
    rebuild(pool).is_some_and(is_it)
}

fn sequential(new: &str) -> AttachSpec {
    AttachSpec {
        sequential: true,
        ..spec(new, true)
    }
}

/// Two disks die, one after the other, and a third while both spares are in use; one comes back,
/// one is replaced.
#[test]
fn two_disks_die_and_both_spares_are_free_again() {
    simulate(async {
        let sim = SimWorld::new(701);
        let layout = Layout::Draid(1, 2, 2, 6);
        let pool = create(&sim, layout, DISK_MIB, false).await.unwrap();
        let fs = open(&sim, &pool).await.unwrap();
        write_files(&fs, 0..20).await;
        pool.sync().await.unwrap();
        let whole = shape(&pool);
        assert_eq!(spares(&pool), "draid1-0-0 waits, draid1-0-1 waits");

        sim.disk("disk4").unwrap().set_gone(true);
        write_files(&fs, 20..30).await;
        until(&pool, "the first spare", |pool| {
            is_whole(pool, "draid1-0-0")
        })
        .await;
        assert_eq!(spares(&pool), "draid1-0-0 used, draid1-0-1 waits");
        assert_eq!(
            shape(&pool),
            whole.replace("disk4", "spare(disk4 draid1-0-0)")
        );
        let rebuild = pool.status().root.children[0].rebuild.unwrap();
        assert_eq!((rebuild.state, rebuild.errors), (RebuildState::Complete, 0));
        assert!(rebuild.rebuilt_bytes > 1 << 20, "{rebuild:?}");
        // The one that follows by itself, and another one.
        pool.scans().wait_for_scrub(true).await;
        scrub_finds_nothing(&pool).await;

        sim.disk("disk3").unwrap().set_gone(true);
        write_files(&fs, 30..40).await;
        until(&pool, "the second spare", |pool| {
            is_whole(pool, "draid1-0-1")
        })
        .await;
        assert_eq!(state(&pool), Some(RebuildState::Complete));
        pool.scans().wait_for_scrub(true).await;
        scrub_finds_nothing(&pool).await;
        leave(pool, fs).await;
        inspect(&sim, "with both spares", true).await.unwrap();
        // A scrub of OpenZFS, and so zdb, compares what is below a spare, old disks with it
        // (`vdev_mirror_io_start`): where blocks have two such columns, none is left to tell who is
        // right. With the old ones and any other disk away, all of it must be on the spares.
        for third in ["disk0", "disk1", "disk2", "disk5"] {
            let result = zdb_without(&sim, &["disk3", "disk4", third]);
            result.unwrap_or_else(|error| panic!("without {third}: {error}"));
        }

        // Both are taken at their word.
        let pool = import(&sim, false).await.unwrap();
        let fs = open(&sim, &pool).await.unwrap();
        sim.disk("disk0").unwrap().set_gone(true);
        write_files(&fs, 40..45).await;
        pool.sync().await.unwrap();
        files_are_whole(&pool, &fs, 0..45).await;
        assert!(!is_whole(&pool, "disk0") && !is_whole(&pool, "disk4"));
        for name in ["disk4", "disk0"] {
            sim.disk(name).unwrap().set_gone(false);
        }
        pool.look_for_devices().await.unwrap();
        until(&pool, "one is free", |pool| {
            spares(pool) == "draid1-0-0 waits, draid1-0-1 used" && is_whole(pool, "disk0")
        })
        .await;
        pool.scans().wait_for_scrub(true).await;
        scrub_finds_nothing(&pool).await;
        add_disk_of(&sim, "new");
        pool.scans().wait_for_scrub(true).await;
        pool.attach("disk3", &sequential("new")).await.unwrap();
        until(&pool, "both are free", |pool| {
            shape(pool) == whole.replace("disk3", "new")
        })
        .await;
        assert_eq!(spares(&pool), "draid1-0-0 waits, draid1-0-1 waits");
        files_are_whole(&pool, &fs, 0..45).await;
        pool.scans().wait_for_scrub(true).await;
        scrub_finds_nothing(&pool).await;
        leave(pool, fs).await;
        inspect(&sim, "at last", true).await.unwrap();
        zdb(&sim).unwrap();
    });
}

/// What the second spare has on the disk that died first went to the first spare instead. When that
/// disk is back, it needs all of that, and not only what came since it died.
#[test]
fn a_disk_that_is_back_gets_what_another_spare_has_on_it() {
    simulate(async {
        let sim = SimWorld::new(704);
        let layout = Layout::Draid(1, 2, 2, 6);
        let pool = create(&sim, layout, DISK_MIB, false).await.unwrap();
        let fs = open(&sim, &pool).await.unwrap();
        write_files(&fs, 0..30).await;
        pool.sync().await.unwrap();
        // Where these files are, this one has nothing but what spare 1 puts there.
        for (name, spare) in [("disk5", "draid1-0-0"), ("disk4", "draid1-0-1")] {
            sim.disk(name).unwrap().set_gone(true);
            write_files(&fs, 30..31).await;
            fs.unlink(fs.root(), b"file30").await.unwrap();
            until(&pool, spare, |pool| is_whole(pool, spare)).await;
            pool.scans().wait_for_scrub(true).await;
        }
        let rebuild = pool.status().root.children[0].rebuild.unwrap();
        assert!(rebuild.rebuilt_bytes > 1 << 20, "{rebuild:?}");
        leave(pool, fs).await;
        // Also while it is only known by its label that it is old.
        let away = sim.disk("disk0").unwrap();
        for is_there_at_import in [true, false] {
            sim.disk("disk5").unwrap().set_gone(!is_there_at_import);
            away.set_gone(is_there_at_import);
            let pool = import(&sim, false).await.unwrap();
            let fs = open(&sim, &pool).await.unwrap();
            files_are_whole(&pool, &fs, 0..30).await;
            leave(pool, fs).await;
            away.set_gone(false);
        }
        sim.disk("disk5").unwrap().set_gone(false);
        let pool = import(&sim, false).await.unwrap();
        pool.clear(None).await.unwrap();
        until(&pool, "one is free", |pool| {
            spares(pool) == "draid1-0-0 waits, draid1-0-1 used" && is_whole(pool, "disk5")
        })
        .await;
        pool.scans().wait_for_scrub(true).await;
        scrub_finds_nothing(&pool).await;
        let fs = open(&sim, &pool).await.unwrap();
        leave(pool, fs).await;
        zdb(&sim).unwrap();
        away.set_gone(true);
        let pool = import(&sim, false).await.unwrap();
        let fs = open(&sim, &pool).await.unwrap();
        files_are_whole(&pool, &fs, 0..30).await;
        leave(pool, fs).await;
    });
}

/// A disk of the size of the others.
fn add_disk_of(sim: &SimWorld, name: &str) {
    sim.add_disk(name, DISK_MIB << 20).set_sector_bytes(4096);
}

/// Two disks go at once, of which one does not answer any more. Their spares are theirs, and not
/// for the disks of another vdev of the pool; with both, as many others may go as there is parity.
#[test]
fn spares_stand_in_for_disks_that_hang_and_not_for_strangers() {
    simulate(async {
        let sim = SimWorld::new(705);
        let layout = Layout::Draid(3, 2, 2, 7);
        let pool = create(&sim, layout, DISK_MIB, false).await.unwrap();
        let special = ["special0", "special1"].map(|name| {
            add_disk_of(&sim, name);
            LeafSpec {
                path: name.to_owned(),
                is_file: false,
            }
        });
        let addition = AddSpec {
            vdevs: vec![VdevSpec {
                layout: VdevLayout::Mirror(special.to_vec()),
                class: VdevClass::Special,
            }],
            ashift: None,
            force: true,
            allow_ashift_mismatch: false,
        };
        pool.add(&addition).await.unwrap();
        let fs = open(&sim, &pool).await.unwrap();
        write_files(&fs, 0..20).await;
        pool.sync().await.unwrap();
        let whole = shape(&pool);
        for name in ["special1", "disk1"] {
            sim.disk(name).unwrap().set_gone(true);
        }
        let hung = sim.disk("disk5").unwrap();
        for op in [SimOp::Read, SimOp::Write, SimOp::Flush] {
            hung.inject(Fault::new(op, FaultEffect::Stall));
        }
        write_files(&fs, 20..30).await;
        until(&pool, "both spares", |pool| {
            is_whole(pool, "draid3-0-0") && is_whole(pool, "draid3-0-1")
        })
        .await;
        assert_eq!(spares(&pool), "draid3-0-0 used, draid3-0-1 used");
        let status = pool.status();
        let others = &status.root.children[1];
        let names: Vec<&str> = (others.children.iter())
            .map(|child| child.name.as_str())
            .collect();
        assert_eq!(names, ["special0", "special1"]);
        pool.scans().wait_for_scrub(true).await;
        scrub_finds_nothing(&pool).await;
        let more = ["disk0", "disk3", "disk6"];
        for name in more {
            sim.disk(name).unwrap().set_gone(true);
        }
        write_files(&fs, 30..35).await;
        files_are_whole(&pool, &fs, 0..35).await;
        hung.release();
        for name in more.into_iter().chain(["special1", "disk1"]) {
            sim.disk(name).unwrap().set_gone(false);
        }
        pool.look_for_devices().await.unwrap();
        until(&pool, "all are back", |pool| {
            pool.status().root.children.iter().all(is_whole_below)
                && spares(pool) == "draid3-0-0 waits, draid3-0-1 waits"
        })
        .await;
        assert_eq!(shape(&pool), whole);
        pool.scans().wait_for_scrub(true).await;
        scrub_finds_nothing(&pool).await;
        files_are_whole(&pool, &fs, 0..35).await;
        leave(pool, fs).await;
        inspect(&sim, "with all disks", true).await.unwrap();
        zdb(&sim).unwrap();
    });
}

/// Whether all disks of a vdev work and lack nothing.
fn is_whole_below(vdev: &VdevStatus) -> bool {
    let mut leaves = sim::failures::disks::leaves(vdev).into_iter();
    leaves.all(|leaf| leaf.state == VdevState::Online && !leaf.is_stale)
}

/// A person lets a spare stand in by checksums, and takes it back; who is detached in its place
/// leaves it there, until another disk takes that. What cannot be is refused.
#[test]
fn a_distributed_spare_is_used_by_hand() {
    simulate(async {
        let sim = SimWorld::new(702);
        let layout = Layout::Draid(1, 2, 1, 5);
        let pool = create(&sim, layout, DISK_MIB, false).await.unwrap();
        let fs = open(&sim, &pool).await.unwrap();
        write_files(&fs, 0..10).await;
        let whole = shape(&pool);
        let by_hand = spec("draid1-0-0", true);
        pool.attach("disk3", &by_hand).await.unwrap();
        until(&pool, "resilvered", |pool| is_whole(pool, "draid1-0-0")).await;
        assert_eq!(state(&pool), None);
        let refused = pool.remove("draid1-0-0").await;
        assert!(matches!(refused, Err(PoolError::CannotRemove { .. })));
        let refused = pool.offline("draid1-0-0", OfflineSpec::default()).await;
        assert!(matches!(
            refused,
            Err(PoolError::Topology(TopologyError::NotADevice { .. }))
        ));
        pool.detach("draid1-0-0").await.unwrap();
        assert_eq!(shape(&pool), whole);
        assert_eq!(spares(&pool), "draid1-0-0 waits");
        let refused = pool.remove("draid1-0-0").await;
        assert!(matches!(refused, Err(PoolError::CannotRemove { .. })));

        // Also for a disk that is not there, while it misses something in every group.
        let offline = OfflineSpec::default();
        pool.offline("disk3", offline).await.unwrap();
        pool.attach("disk3", &by_hand).await.unwrap();
        write_files(&fs, 10..12).await;
        until(&pool, "resilvered without it", |pool| {
            is_whole(pool, "draid1-0-0")
        })
        .await;
        scrub_finds_nothing(&pool).await;
        sim.disk("disk0").unwrap().set_gone(true);
        files_are_whole(&pool, &fs, 0..12).await;
        sim.disk("disk0").unwrap().set_gone(false);
        pool.clear(None).await.unwrap();
        until(&pool, "disk0 is back", |pool| is_whole(pool, "disk0")).await;
        pool.detach("draid1-0-0").await.unwrap();
        pool.online("disk3", false).await.unwrap();
        until(&pool, "it is back", |pool| is_whole(pool, "disk3")).await;
        assert_eq!(shape(&pool), whole);

        pool.attach("disk3", &by_hand).await.unwrap();
        until(&pool, "resilvered", |pool| is_whole(pool, "draid1-0-0")).await;
        pool.detach("disk3").await.unwrap();
        assert_eq!(shape(&pool), whole.replace("disk3", "draid1-0-0"));
        assert_eq!(spares(&pool), "draid1-0-0 used");
        leave(pool, fs).await;
        zdb(&sim).unwrap();
        let pool = import(&sim, false).await.unwrap();
        let fs = open(&sim, &pool).await.unwrap();
        files_are_whole(&pool, &fs, 0..10).await;
        add_disk_of(&sim, "new");
        pool.attach("draid1-0-0", &spec("new", true)).await.unwrap();
        until(&pool, "replaced", |pool| {
            shape(pool) == whole.replace("disk3", "new")
        })
        .await;
        assert_eq!(spares(&pool), "draid1-0-0 waits");
        scrub_finds_nothing(&pool).await;
        leave(pool, fs).await;
        inspect(&sim, "by hand", true).await.unwrap();
        zdb(&sim).unwrap();
    });
}

fn content(number: u64) -> Bytes {
    data(number, 20_000 + (number as usize * 7919) % 60_000)
}

/// Content of a file that is overwritten again and again, in one block.
fn version(number: u64) -> Bytes {
    data(500_000 + number, 90_000)
}

/// What goes wrong beside the disk that dies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Trouble {
    None,
    /// Another disk does not take some writes.
    Refuses,
    /// Others are away for moments.
    Blinks,
    /// Another one dies as well, while the first one's spare is rebuilt.
    Second,
}

impl Trouble {
    fn layout(self) -> Layout {
        match self {
            Trouble::None | Trouble::Refuses => Layout::Draid(1, 2, 1, 5),
            Trouble::Blinks | Trouble::Second => Layout::Draid(2, 2, 2, 7),
        }
    }

    /// Who dies.
    fn dead(self) -> &'static [&'static str] {
        match self {
            // What the first one's spare has is on the other one.
            Trouble::Second => &["disk1", "disk2"],
            _ => &["disk1"],
        }
    }

    /// Disks that may be gone at the same time when the spares are whole, by number.
    fn others(self, number: u64) -> &'static [&'static str] {
        const ONE: [&[&str]; 4] = [&["disk0"], &["disk2"], &["disk3"], &["disk4"]];
        const TWO: [&[&str]; 4] = [
            &["disk0", "disk3"],
            &["disk3", "disk6"],
            &["disk5", "disk6"],
            &["disk3", "disk5"],
        ];
        let turn = number as usize % 4;
        match self {
            Trouble::None | Trouble::Refuses => ONE[turn],
            Trouble::Blinks | Trouble::Second => TWO[turn],
        }
    }
}

/// What was acknowledged as on disk.
#[derive(Default)]
struct Told {
    /// Files that are there.
    there: Vec<u64>,
    /// Files that were being removed.
    may_be_gone: Vec<u64>,
    /// Of the file that is overwritten.
    version: u64,
    /// Writes and flushes since the beginning when the rebuild was let go.
    let_go: Option<[u64; 2]>,
    /// Acknowledged while the rebuild was somewhere in the middle.
    while_copying: u64,
}

/// What was told until now.
type Acknowledged = Arc<Mutex<Told>>;

/// A dRAID with spares, files, and holes between them.
async fn prepare(sim: &SimWorld, layout: Layout) -> (Arc<Pool>, Arc<Filesystem>) {
    let pool = create(sim, layout, DISK_MIB, false).await.unwrap();
    let fs = open(sim, &pool).await.unwrap();
    for number in 0..24 {
        put(&fs, &format!("old{number}"), &data(number, OLD_BYTES))
            .await
            .unwrap();
    }
    put(&fs, "over", &version(0)).await.unwrap();
    pool.sync().await.unwrap();
    for number in (1..24).step_by(2) {
        remove(&fs, &format!("old{number}")).await;
    }
    // Reads take time, so that writes come in between.
    let slow = Latency {
        read: Duration::from_millis(20),
        bytes_per_second: 2 << 20,
        ..Latency::default()
    };
    for name in sim.disk_names() {
        sim.disk(&name).unwrap().set_latency(slow);
    }
    (pool, fs)
}

/// A disk dies. Until its spare is whole files are written, overwritten and removed, and what is
/// durable is told. The rebuild goes on in steps, so that it is on record how far it has come.
async fn run(
    sim: &SimWorld,
    (pool, fs): (&Pool, &Filesystem),
    (trouble, pace): (Trouble, u64),
    acknowledged: &Acknowledged,
) -> Result<(), Failure> {
    // With a log, synchronous writes do not wait for groups.
    let ino = put(fs, "first", &content(99)).await?;
    fs.sync_file(ino).await?;
    let over = fs.lookup(fs.root(), b"over").await?.ino;
    // Until it is recorded that a disk is gone, they do. The rebuild waits for that.
    pool.scans().hold(true);
    sim.disk("disk1").unwrap().set_gone(true);
    for number in 100.. {
        let ino = put(fs, &format!("sync{number}"), &content(number)).await?;
        fs.sync_file(ino).await?;
        acknowledged.lock().there.push(number);
        let next = acknowledged.lock().version + 1;
        fs.write(over, 0, version(next), false, ROOT).await?;
        fs.sync_file(over).await?;
        {
            let mut told = acknowledged.lock();
            told.version = next;
            told.while_copying += u64::from(is_copying(pool));
        }
        if number % 3 == 0 {
            let gone = number - 1 - pace;
            let was_there = {
                let mut told = acknowledged.lock();
                let count = told.there.len();
                told.there.retain(|there| *there != gone);
                let was_there = told.there.len() < count;
                told.may_be_gone.extend(was_there.then_some(gone));
                was_there
            };
            if was_there {
                let name = format!("sync{gone}");
                fs.unlink(fs.root(), name.as_bytes()).await?;
            }
        }
        let has_begun = state(pool) == Some(RebuildState::Active);
        if has_begun && number > 103 {
            let counts = [SimOp::Write, SimOp::Flush].map(|op| count(sim, op));
            acknowledged.lock().let_go.get_or_insert(counts);
            pool.scans().hold(number % 8 >= 4);
        }
        // What is written then may wait for a group, and so for the rebuild's turn.
        let is_time = acknowledged.lock().while_copying >= LOAD_MIN;
        match trouble {
            Trouble::Blinks if is_time && number % 4 == 1 && are_others_there(pool) => {
                let name = ["disk5", "disk2", "disk2"][number as usize % 3];
                let disk = sim.disk(name).unwrap();
                disk.set_gone(true);
                if number % 8 == 1 {
                    let ino = put(fs, &format!("blink{number}"), &content(number)).await?;
                    fs.sync_file(ino).await?;
                }
                tokio::time::sleep(Duration::from_millis(pace * 20)).await;
                disk.set_gone(false);
                let _ = pool.look_for_devices().await;
            }
            Trouble::Second if is_time => sim.disk("disk2").unwrap().set_gone(true),
            _ => {}
        }
        let is_over = matches!(state(pool), Some(state) if state != RebuildState::Active)
            && (trouble != Trouble::Second || !spares(pool).contains("waits"));
        if number > 400 || number > 106 && is_over {
            break;
        }
        tokio::time::sleep(Duration::from_millis(1 + 15 * pace)).await;
    }
    pool.scans().hold(false);
    Ok(())
}

/// Whether all disks work but the one that died.
fn are_others_there(pool: &Pool) -> bool {
    let root = pool.status().root;
    let leaves = sim::failures::disks::leaves(&root.children[0]);
    let mut others = leaves.iter().filter(|leaf| leaf.name != "disk1");
    others.all(|leaf| leaf.state == VdevState::Online)
}

async fn check(fs: &Filesystem, acknowledged: &Acknowledged, about: &str) {
    for number in (0..24).step_by(2) {
        let read = get(fs, &format!("old{number}")).await.unwrap();
        assert!(read == data(number, OLD_BYTES), "{about}: old{number}");
    }
    let (there, may_be_gone, last) = {
        let told = acknowledged.lock();
        (told.there.clone(), told.may_be_gone.clone(), told.version)
    };
    for number in there {
        let read = get(fs, &format!("sync{number}")).await.unwrap();
        assert!(read == content(number), "{about}: sync{number}");
    }
    for number in may_be_gone {
        let name = format!("sync{number}");
        if fs.lookup(fs.root(), name.as_bytes()).await.is_ok() {
            let read = get(fs, &name).await.unwrap();
            assert!(read == content(number), "{about}: {name}");
        }
    }
    let read = get(fs, "over").await.unwrap();
    let is_one = read == version(last) || read == version(last + 1);
    assert!(is_one, "{about}: over, {last}");
}

/// With more disks gone.
async fn check_without(sim: &SimWorld, disks: &[&str], acknowledged: &Acknowledged, about: &str) {
    let set_gone = |gone| {
        for name in disks {
            sim.disk(name).unwrap().set_gone(gone);
        }
    };
    set_gone(true);
    let pool = import(sim, false)
        .await
        .unwrap_or_else(|error| panic!("{about}: without {disks:?}: {error}"));
    let fs = open(sim, &pool).await.unwrap();
    check(&fs, acknowledged, about).await;
    leave(pool, fs).await;
    set_gone(false);
}

/// Whether every child has everything, on itself or on a spare, and disks that are not dead do.
fn is_done(pool: &Pool, dead: &[&str]) -> bool {
    let has_all = |leaf: &VdevStatus| leaf.state == VdevState::Online && !leaf.is_stale;
    let root = pool.status().root;
    let mut children = root.children[0].children.iter();
    children.all(|child| {
        let leaves = sim::failures::disks::leaves(child);
        let mut others = leaves.iter().filter(|leaf| !dead.contains(&&*leaf.name));
        others.all(|leaf| has_all(leaf)) && leaves.iter().any(|leaf| has_all(leaf))
    })
}

/// Until the spares are whole, and all other disks are; also by checksums, where the rebuild could
/// not do it.
async fn finish(pool: &Pool, dead: &[&str], about: &str) {
    pool.clear(None).await.unwrap();
    until(pool, about, |pool| is_done(pool, dead)).await;
}

/// Another disk does not take some writes meanwhile.
fn begin_trouble(sim: &SimWorld, trouble: Trouble) {
    if trouble == Trouble::Refuses {
        // What the spare has is on this one.
        let disk = sim.disk("disk0").unwrap();
        let fault = Fault::new(SimOp::Write, FaultEffect::Error);
        disk.inject(fault.chance(100).times(6));
    }
}

fn end_trouble(sim: &SimWorld) {
    for name in sim.disk_names() {
        sim.disk(&name).unwrap().clear_faults();
    }
}

/// Without a power cut; which writes and flushes there are while it is rebuilt, by number.
async fn undisturbed(seed: u64, trouble: Trouble) -> [Range<u64>; 2] {
    let sim = SimWorld::new(seed);
    let (pool, fs) = prepare(&sim, trouble.layout()).await;
    let start = [SimOp::Write, SimOp::Flush].map(|op| count(&sim, op));
    begin_trouble(&sim, trouble);
    let acknowledged = Acknowledged::default();
    let how = (trouble, seed % 3);
    run(&sim, (&pool, &fs), how, &acknowledged).await.unwrap();
    end_trouble(&sim);
    let end = [SimOp::Write, SimOp::Flush].map(|op| count(&sim, op));
    let about = format!("{trouble:?} {seed}: whole");
    finish(&pool, trouble.dead(), &about).await;
    let (let_go, while_copying) = {
        let told = acknowledged.lock();
        (told.let_go, told.while_copying)
    };
    assert!(
        while_copying >= LOAD_MIN,
        "{about}: no load: {while_copying}"
    );
    let let_go = let_go.unwrap_or_else(|| panic!("{about}: no rebuild"));
    if trouble == Trouble::None {
        let rebuild = rebuild(&pool).unwrap();
        assert!(rebuild.rebuilt_bytes > 1 << 20, "{about}: {rebuild:?}");
    }
    check(&fs, &acknowledged, &about).await;
    leave(pool, fs).await;
    inspect(&sim, &about, true).await.unwrap();
    let gone = [trouble.dead(), trouble.others(seed)].concat();
    zdb_without(&sim, &gone).unwrap_or_else(|error| panic!("{about}, without {gone:?}: {error}"));
    check_without(&sim, trouble.others(seed), &acknowledged, &about).await;
    [0, 1].map(|op| let_go[op] - start[op]..end[op] - start[op])
}

/// The power goes at a moment; how far the rebuild was on record that was under way.
async fn cut_at(trouble: Trouble, (op, how): (SimOp, PowerCut), at: u64) -> Option<u64> {
    let sim = SimWorld::new(at);
    let (pool, fs) = prepare(&sim, trouble.layout()).await;
    begin_trouble(&sim, trouble);
    let acknowledged = Acknowledged::default();
    sim.cut_power_at(op, at, how);
    let about = format!("{trouble:?} {op:?} {at} {how:?}");
    let running = run(&sim, (&pool, &fs), (trouble, at % 3), &acknowledged);
    if let Some(result) = until_cut(&sim, running).await {
        result.unwrap();
    }
    drop((fs, pool));
    power_cycle(&sim).await;
    end_trouble(&sim);
    // Some were away when the power went.
    for name in sim.disk_names() {
        let is_dead = trouble.dead().contains(&&*name);
        sim.disk(&name).unwrap().set_gone(is_dead);
    }
    inspect(&sim, &about, false).await.unwrap();
    let pool = import(&sim, false)
        .await
        .unwrap_or_else(|error| panic!("{about}: {error}"));
    let under_way = rebuild(&pool).filter(|rebuild| rebuild.state == RebuildState::Active);
    let fs = open(&sim, &pool).await.unwrap();
    check(&fs, &acknowledged, &about).await;
    // More of it, and then the spares are taken at their word, after a crash.
    let ino = put(&fs, "sync7", &content(7)).await.unwrap();
    finish(&pool, trouble.dead(), &about).await;
    fs.sync_file(ino).await.unwrap();
    acknowledged.lock().there.push(7);
    drop((fs, pool));
    power_cycle(&sim).await;
    let others = trouble.others(at);
    check_without(&sim, others, &acknowledged, &about).await;
    // All are back: the spares are free, and nobody was trusted with what it has not.
    for name in trouble.dead() {
        sim.disk(name).unwrap().set_gone(false);
    }
    let pool = import(&sim, false)
        .await
        .unwrap_or_else(|error| panic!("{about}: all: {error}"));
    pool.clear(None).await.unwrap();
    until(&pool, &about, |pool| {
        !spares(pool).contains("used") && is_done(pool, &[])
    })
    .await;
    pool.scans().wait_for_scrub(true).await;
    scrub_finds_nothing(&pool).await;
    let fs = open(&sim, &pool).await.unwrap();
    check(&fs, &acknowledged, &about).await;
    leave(pool, fs).await;
    inspect(&sim, &about, true).await.unwrap();
    zdb(&sim).unwrap_or_else(|error| panic!("{about}: {error}"));
    under_way.map(|rebuild| rebuild.scanned_bytes)
}

/// Moments in which the power goes: some before the rebuild copies anything, more while it does.
fn moments(copying: &Range<u64>) -> Vec<u64> {
    if std::env::var_os("MILLPOND_LONG").is_some() {
        return (1..=copying.end).collect();
    }
    let before = std::iter::once((copying.start / 2).max(1));
    let length = copying.end.saturating_sub(copying.start);
    let meanwhile = copying.clone().step_by((length / 4).max(1) as usize);
    before.chain(meanwhile).collect()
}

fn power_cuts(trouble: Trouble) {
    let mut copying: [Range<u64>; 2] = [0..u64::MAX, 0..u64::MAX];
    for seed in 1..=3 {
        let found = simulate(undisturbed(seed, trouble));
        for (all, found) in copying.iter_mut().zip(found) {
            *all = all.start.max(found.start)..all.end.min(found.end);
        }
    }
    let mut on_record = BTreeSet::new();
    for (op, how) in CUTS {
        for at in moments(&copying[usize::from(op == SimOp::Flush)]) {
            on_record.extend(simulate(cut_at(trouble, (op, how), at)));
        }
    }
    assert!(on_record.len() > 1, "cuts in the middle: {on_record:?}");
}

#[test]
fn power_cuts_while_a_spare_is_rebuilt_lose_nothing() {
    power_cuts(Trouble::None);
}

#[test]
fn power_cuts_while_another_disk_refuses_writes_lose_nothing() {
    power_cuts(Trouble::Refuses);
}

#[test]
fn power_cuts_while_other_disks_come_and_go_lose_nothing() {
    power_cuts(Trouble::Blinks);
}

#[test]
fn power_cuts_while_a_second_disk_dies_lose_nothing() {
    power_cuts(Trouble::Second);
}

/// Two disks are dead, and both spares have everything, one of them on the other one instead of on
/// the disk that died first.
async fn with_both_spares(sim: &SimWorld) -> (Arc<Pool>, Arc<Filesystem>) {
    let (pool, fs) = prepare(sim, Layout::Draid(1, 2, 2, 6)).await;
    for (name, spare) in [("disk5", "draid1-0-0"), ("disk4", "draid1-0-1")] {
        sim.disk(name).unwrap().set_gone(true);
        put(&fs, name, &content(7)).await.unwrap();
        until(&pool, spare, |pool| is_whole(pool, spare)).await;
        pool.scans().wait_for_scrub(true).await;
    }
    (pool, fs)
}

fn is_one_free(pool: &Pool) -> bool {
    spares(pool) == "draid1-0-0 waits, draid1-0-1 used" && is_whole(pool, "disk5")
}

/// The disk that died first is back. Files are written until its spare is free.
async fn come_back(
    sim: &SimWorld,
    (pool, fs): (&Pool, &Filesystem),
    acknowledged: &Acknowledged,
) -> Result<(), Failure> {
    let ino = put(fs, "first", &content(99)).await?;
    fs.sync_file(ino).await?;
    sim.disk("disk5").unwrap().set_gone(false);
    pool.look_for_devices().await?;
    for number in 100..1000 {
        let ino = put(fs, &format!("sync{number}"), &content(number)).await?;
        fs.sync_file(ino).await?;
        acknowledged.lock().there.push(number);
        if is_one_free(pool) {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    Err(format!("it is not free: {} {}", shape(pool), spares(pool)).into())
}

/// Without and with a power cut; writes and flushes until the spare was free, if none.
async fn come_back_with(cut: Option<(SimOp, PowerCut, u64)>) -> [u64; 2] {
    let seed = cut.map_or(0, |(_, _, at)| at);
    let sim = SimWorld::new(seed);
    let (pool, fs) = with_both_spares(&sim).await;
    let counts = || [SimOp::Write, SimOp::Flush].map(|op| count(&sim, op));
    let start = counts();
    let acknowledged = Acknowledged::default();
    if let Some((op, how, at)) = cut {
        sim.cut_power_at(op, at, how);
    }
    let about = format!("return {cut:?}");
    let coming = come_back(&sim, (&pool, &fs), &acknowledged);
    if let Some(result) = until_cut(&sim, coming).await {
        result.unwrap_or_else(|error| panic!("{about}: {error}"));
    }
    let end = counts();
    drop((fs, pool));
    power_cycle(&sim).await;
    sim.disk("disk5").unwrap().set_gone(false);
    inspect(&sim, &about, false).await.unwrap();
    let pool = import(&sim, false)
        .await
        .unwrap_or_else(|error| panic!("{about}: {error}"));
    let fs = open(&sim, &pool).await.unwrap();
    check(&fs, &acknowledged, &about).await;
    pool.clear(None).await.unwrap();
    until(&pool, &about, is_one_free).await;
    leave(pool, fs).await;
    // It was not trusted with what it has not, and neither was the spare.
    let other = ["disk0", "disk1", "disk2", "disk3"][seed as usize % 4];
    let gone = ["disk4", other];
    zdb_without(&sim, &gone).unwrap_or_else(|error| panic!("{about}, without {gone:?}: {error}"));
    check_without(&sim, &[other], &acknowledged, &about).await;
    [0, 1].map(|op| end[op] - start[op])
}

#[test]
fn power_cuts_while_a_disk_comes_back_lose_nothing() {
    let total = simulate(come_back_with(None));
    for (op, how) in CUTS {
        let most = total[usize::from(op == SimOp::Flush)];
        let stride = match std::env::var_os("MILLPOND_LONG") {
            Some(_) => 1,
            None => (most / 4).max(1),
        };
        for at in (1..=most).step_by(stride as usize) {
            simulate(come_back_with(Some((op, how, at))));
        }
    }
}

/// What a rebuild left behind satisfies zdb, also in the middle of it.
#[test]
fn zdb_is_content_with_a_rebuild_of_a_spare() {
    simulate(async {
        let sim = SimWorld::new(703);
        let (pool, fs) = prepare(&sim, Trouble::None.layout()).await;
        pool.scans().hold(true);
        let attach = sequential("draid1-0-0");
        pool.attach("disk1", &attach).await.unwrap();
        leave(pool, fs).await;
        zdb(&sim).unwrap();
        let pool = import(&sim, false).await.unwrap();
        assert_eq!(state(&pool), Some(RebuildState::Active));
        finish(&pool, &[], "after an export").await;
        let fs = open(&sim, &pool).await.unwrap();
        check(&fs, &Acknowledged::default(), "after an export").await;
        leave(pool, fs).await;
        zdb(&sim).unwrap();
    });
}
