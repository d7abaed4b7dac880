//! Goal: a scrub by date reads what was written then, by what the pool notes of its transaction
//! groups; OpenZFS 2.4 goes by what we noted, and we by what it did.
//! Method: simulated hours; one trip to the machine with OpenZFS 2.4.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::common::*;
use device::World;
use device::sim::SimWorld;
use format::{LABEL_START_BYTES, TxgRing, TxgTimes};
use pool::{
    ImportSpec, LeafSpec, Pool, ScanSpec, ScanState, ScrubCommand, ScrubNumbers, VdevLayout,
};

const NAMES: [&str; 3] = ["minutes", "days", "months"];

/// What a pool's object directory says of its transaction groups.
async fn noted(pool: &Pool) -> TxgTimes {
    let mut rings = Vec::new();
    for name in NAMES {
        let name = format!("com.klarasystems:txg_log_time:{name}");
        let value = pool.dsl().directory().lookup(&name).await.expect("lookup");
        let value = value.unwrap_or_else(|| panic!("no {name}"));
        assert_eq!((value.integer_bytes, value.len()), (8, 515), "{name}");
        rings.push(TxgRing::from_words(&value.to_u64s()).expect("a ring"));
    }
    let months = rings.pop().expect("three");
    let days = rings.pop().expect("three");
    let minutes = rings.pop().expect("three");
    TxgTimes {
        minutes,
        days,
        months,
    }
}

fn txgs(ring: &TxgRing) -> Vec<u64> {
    ring.moments().map(|moment| moment.txg.get()).collect()
}

/// Scrubs what was written between two moments; what the scan was of, exclusive on both sides.
async fn scrub(pool: &Pool, from_s: Option<u64>, until_s: Option<u64>) -> (ScrubNumbers, u64, u64) {
    let command = ScrubCommand::Between { from_s, until_s };
    pool.scans().scrub(command).await.expect("start");
    pool.scans().wait_for_scrub(true).await;
    let scan = pool.status().scan.expect("a scan");
    assert_eq!((scan.state, scan.errors), (ScanState::Finished, 0));
    if !pool.is_read_only() {
        // Its state is stored in the group in which it ended.
        pool.sync().await.expect("sync");
    }
    let value = pool.dsl().directory().lookup("scan").await.expect("lookup");
    let words = value.map_or_else(|| vec![0; 24], |value| value.to_u64s());
    let numbers = pool.scans().scrub_numbers().expect("numbers");
    (numbers, words[3], words[4])
}

async fn import_sim(sim: &SimWorld, read_only: bool) -> Arc<Pool> {
    let found = ScanSpec {
        paths: sim.disk_names(),
        ..ScanSpec::default()
    };
    let found = pool::scan(&sim.world(), &found).await.expect("scan");
    let found = found.into_iter().next().expect("a pool");
    let mut import = ImportSpec::new(found, host());
    import.read_only = read_only;
    Pool::import(&sim.world(), import).await.expect("import")
}

async fn last_scrubbed(pool: &Pool) -> Option<u64> {
    let directory = pool.dsl().directory();
    let found = directory.lookup_u64("last_scrubbed_txg").await;
    found.expect("lookup")
}

#[tokio::test(start_paused = true)]
async fn a_scrub_by_date_reads_what_was_written_then() {
    let sim = SimWorld::new(975);
    let leaves = (0..2).map(|index| {
        let path = format!("disk{index}");
        sim.add_disk(&path, 96 << 20);
        LeafSpec {
            path,
            is_file: false,
        }
    });
    let vdevs = vec![normal(VdevLayout::Mirror(leaves.collect()))];
    let world = sim.world();
    let now_s = || world.clock.wall_ns() / 1_000_000_000;
    let pool = Pool::create(&world, spec("tank", vdevs)).await;
    let pool = pool.expect("create");
    let dataset = pool.dsl().open_dataset("tank").await.expect("open");
    // Something of 128 blocks, 96 and 64, each with a noted group before it.
    let mut after = Vec::new();
    for (objects, blocks) in [(16, 8), (1, 1), (12, 8), (1, 1), (8, 8), (1, 1)] {
        write_objects(&dataset, objects, blocks).await;
        pool.sync().await.expect("sync");
        tokio::time::sleep(Duration::from_secs(5)).await;
        after.push(now_s());
        tokio::time::sleep(Duration::from_secs(660)).await;
    }
    let times = noted(&pool).await;
    assert_eq!(txgs(&times.months).len(), 1);
    assert_eq!(txgs(&times.days).len(), 1);
    assert_eq!(txgs(&times.minutes).len(), 4);

    // From the first small one to the second.
    let (numbers, min, max) = scrub(&pool, Some(after[1]), Some(after[3] - 60)).await;
    assert_eq!([min], txgs(&times.days)[..]);
    assert_eq!(max, txgs(&times.minutes)[1]);
    assert!((96..180).contains(&numbers.verified_blocks), "{numbers:?}");
    // It left out older blocks: a scrub since the last one (`-C`) is still of all.
    assert_eq!(last_scrubbed(&pool).await, None);
    // From the second on.
    let (numbers, min, max) = scrub(&pool, Some(after[3]), None).await;
    assert_eq!(min, txgs(&times.minutes)[1]);
    assert!(max > txgs(&times.minutes)[3]);
    assert!((64..150).contains(&numbers.verified_blocks), "{numbers:?}");
    assert_eq!(last_scrubbed(&pool).await, None);
    // Up to the first.
    let (numbers, min, max) = scrub(&pool, None, Some(after[1] - 60)).await;
    assert_eq!((min, vec![max]), (0, txgs(&times.days)));
    assert!((128..230).contains(&numbers.verified_blocks), "{numbers:?}");
    assert_eq!(last_scrubbed(&pool).await, Some(max));
    // What was noted does not reach so far: all is read.
    let (numbers, min, max) = scrub(&pool, Some(1), Some(now_s() + 9999)).await;
    assert_eq!(min, 0);
    assert!(numbers.verified_blocks > 288, "{numbers:?}");
    assert_eq!(last_scrubbed(&pool).await, Some(max));
    drop(dataset);
    tokio::time::sleep(Duration::from_secs(5)).await;
    let newest = noted(&pool).await.minutes;
    pool.export(false).await.expect("export");

    let images = Images::new();
    for name in sim.disk_names() {
        let disk = sim.disk(&name).expect("a disk");
        let path = images.path().join(format!("{name}.img"));
        disk.save_image(path).expect("save");
    }
    zdb_is_clean(images.path(), "tank");
    let pool = import_sim(&sim, true).await;
    // Nothing is lost, and ten minutes had not passed.
    assert_eq!(txgs(&noted(&pool).await.minutes), txgs(&newest));
    // Nothing is written, and no more is read.
    let (numbers, ..) = scrub(&pool, Some(after[1]), Some(after[3] - 60)).await;
    assert!((96..180).contains(&numbers.verified_blocks), "{numbers:?}");
    pool.export(false).await.expect("export");
}

/// Begins a scrub, or goes on with one, and waits for its end; how many blocks are known to be lost
/// then.
async fn lost_after(pool: &Pool, command: ScrubCommand) -> usize {
    pool.scans().scrub(command).await.expect("start");
    pool.scans().wait_for_scrub(true).await;
    let scan = pool.status().scan.expect("a scan");
    assert_eq!(scan.state, ScanState::Finished);
    pool.damaged().await.len()
}

/// What a scrub leaves out may be as bad as before, also where the scrub goes on after an import.
#[tokio::test(start_paused = true)]
async fn a_scrub_by_date_forgets_no_error() {
    let sim = SimWorld::new(976);
    sim.add_disk("disk", 96 << 20);
    let leaf = LeafSpec {
        path: "disk".into(),
        is_file: false,
    };
    let world = sim.world();
    let vdevs = vec![normal(VdevLayout::Leaf(leaf))];
    let pool = Pool::create(&world, spec("tank", vdevs)).await;
    let pool = pool.expect("create");
    let dataset = pool.dsl().open_dataset("tank").await.expect("open");
    let objects = write_objects(&dataset, 1, 4).await;
    pool.sync().await.expect("sync");
    tokio::time::sleep(Duration::from_secs(660)).await;
    write_objects(&dataset, 1, 1).await;
    pool.sync().await.expect("sync");
    tokio::time::sleep(Duration::from_secs(20)).await;

    let object = dataset.objset().hold(objects[0]).await.expect("hold");
    let pointer = object.block_pointer(1).await.expect("a pointer");
    let at = LABEL_START_BYTES + pointer.dva(0).expect("a copy").offset_bytes();
    drop((object, dataset));
    pool.export(false).await.expect("export");
    let device = world.opener.open("disk", false).await.expect("open");
    let before = device.read(at, 4096).await.expect("read");
    drop(device);
    sim.disk("disk").expect("a disk").corrupt(at, 4096);
    let pool = import_sim(&sim, false).await;
    assert_eq!(lost_after(&pool, ScrubCommand::Start).await, 1);
    pool.export(false).await.expect("export");
    let device = world.opener.open("disk", false).await.expect("open");
    device.write(at, before).await.expect("write");
    drop(device);
    let pool = import_sim(&sim, false).await;

    let old = ScrubCommand::Between {
        from_s: None,
        until_s: Some(1),
    };
    assert_eq!(lost_after(&pool, old).await, 1);
    pool.scans().hold(true);
    pool.scans().scrub(old).await.expect("start");
    pool.scans()
        .scrub(ScrubCommand::Pause)
        .await
        .expect("pause");
    pool.export(false).await.expect("export");
    let pool = import_sim(&sim, false).await;
    assert_eq!(lost_after(&pool, ScrubCommand::Start).await, 1);
    assert_eq!(lost_after(&pool, ScrubCommand::Start).await, 0);
    pool.export(false).await.expect("export");
}

const SCRIPT: &str = r"
set -e
zpool import -d /dev/disk/peer -N tank
zpool scrub -w -E 2020-01-01 tank
zpool scrub -w -S 2000-01-01 -E 2020-01-01 tank
zpool history -i tank | grep 'scan setup' | sed 's/^/SETUP /'
cd /sys/module/zfs/parameters
echo 1 > spa_note_txg_time
echo 1 > spa_flush_txg_time
for i in 1 2 3 4; do
  zfs create -o mountpoint=none tank/fs$i
  zpool sync tank
  sleep 2
done
cd /
zpool export tank
zdb -e -p /dev/disk/peer -bcc tank | grep 'No leaks' | sed 's/^/CLEAN /'
echo PEER-DONE
";

async fn create(world: &World, images: &Images) -> Arc<Pool> {
    let leaves = images.make(2, 256).into_iter().map(|leaf| LeafSpec {
        is_file: false,
        ..leaf
    });
    let vdevs = vec![normal(VdevLayout::Mirror(leaves.collect()))];
    let pool = Pool::create(world, spec("tank", vdevs)).await;
    pool.expect("create")
}

async fn scrub_and_check(world: &World, dir: &Path) -> TxgTimes {
    let pool = import(world, dir).await;
    let times = noted(&pool).await;
    // Of what was noted in one second, the last.
    let ours = times.since(1).expect("the first");
    let theirs: Vec<_> = times.minutes.moments().collect();
    let (from, until) = (theirs[0], theirs[theirs.len() - 1]);
    let (_, min, max) = scrub(&pool, Some(from.time_s), Some(until.time_s)).await;
    assert_eq!((min, max), (from.txg.get(), until.txg.get()));
    let (_, min, max) = scrub(&pool, None, Some(1)).await;
    assert_eq!((min, max), (0, ours.txg.get()));
    pool.export(false).await.expect("export");
    zdb_is_clean(dir, "tank");
    times
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn openzfs_2_4_goes_by_our_notes_and_we_by_its() {
    let Some(peer) = Peer::find_2_4() else { return };
    let images = Images::new();
    let world = World::system(2);
    let pool = create(&world, &images).await;
    let dataset = pool.dsl().open_dataset("tank").await.expect("open");
    write_objects(&dataset, 10, 8).await;
    drop(dataset);
    pool.sync().await.expect("sync");
    let ours = noted(&pool).await;
    let first = txgs(&ours.months)[0];
    pool.export(false).await.expect("export");
    zdb_is_clean(images.path(), "tank");

    let text = run_in_peer(&peer, images.path(), SCRIPT).replace('\r', "");
    assert!(text.contains("PEER-DONE"), "{text}");
    assert!(text.contains("CLEAN"), "{text}");
    let setups = text.lines().filter(|line| line.starts_with("SETUP "));
    let ours_found = setups.filter(|line| line.contains(&format!("mintxg=0 maxtxg={first}")));
    assert_eq!(ours_found.count(), 2, "{text}");

    let theirs = scrub_and_check(&world, images.path()).await;
    // What we noted is still there, and more.
    assert_eq!(txgs(&theirs.months), [first]);
    let times = theirs.minutes.moments().map(|moment| moment.time_s);
    assert!(
        times.is_sorted() && theirs.minutes.moments().count() >= 3,
        "{theirs:?}"
    );
}
