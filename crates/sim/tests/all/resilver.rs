//! Goal: a device that is told to have everything has everything, whatever moves behind the back of
//! who walks the pool: blocks that gain a reference where the walk has been, by a clone or by
//! deduplication, and lose the one that it has not come to. Method: files whose blocks go from late
//! objects to early ones during resilvers, scrubs and rebuilds, with renames, exports and power
//! cuts; then every copy of every block is read from every device, and the files from the new one
//! alone.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::common::{ROOT, data, get, open, put, remove};
use crate::topology::{add_disk, find, spec};
use crate::vdevs::power_cycle;
use dataset::PropertyChange;
use device::sim::{Latency, SimWorld};
use filesystem::{Filesystem, RenameMode};
use format::{LABEL_BYTES, LABEL_START_BYTES};
use pool::{AttachSpec, OfflineSpec, Pool, ScanState, ScrubCommand};
use sim::rng::Rng;
use sim::torture::{Layout, create, import, inspect, simulate};

const DISK_MIB: u64 = 96;
const FILE_BYTES: usize = 140_000;
const FILES: u64 = 14;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Story {
    Attach,
    Replace,
    Rebuild,
    Scrub,
}

/// How blocks move.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Clone,
    Dedup,
}

/// What happens in the middle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Break {
    Nothing,
    Export,
    PowerCut,
}

/// Names of files and the seeds of their content.
type Files = BTreeMap<String, u64>;

/// A pool with empty files, and others with content behind them.
async fn prepare(sim: &SimWorld, story: Story, way: Way) -> (Arc<Pool>, Arc<Filesystem>, Files) {
    let layout = match story {
        Story::Attach | Story::Replace | Story::Rebuild => Layout::Single,
        Story::Scrub => Layout::Mirror(2),
    };
    let pool = create(sim, layout, DISK_MIB, false).await.unwrap();
    if way == Way::Dedup {
        let on = PropertyChange::Set("on".to_owned());
        let changes = [("dedup".to_owned(), on)];
        let properties = pool.dsl().properties();
        properties.set(&pool.name(), &changes).await.unwrap();
    }
    let fs = open(sim, &pool).await.unwrap();
    for number in 0..FILES {
        let name = format!("early{number}");
        let made = fs.create(fs.root(), name.as_bytes(), 0o644, ROOT).await;
        made.unwrap();
    }
    let mut files = Files::new();
    for number in 0..FILES {
        let name = format!("late{number}");
        put(&fs, &name, &data(number, FILE_BYTES)).await.unwrap();
        files.insert(name, number);
    }
    pool.sync().await.unwrap();
    // Few blocks at a time, and slowly: much happens while they are read.
    pool.scans().set_queue(2);
    let slow = Latency {
        read: Duration::from_millis(8),
        bytes_per_second: 4 << 20,
        ..Latency::default()
    };
    for name in sim.disk_names() {
        sim.disk(&name).unwrap().set_latency(slow);
    }
    (pool, fs, files)
}

async fn begin(sim: &SimWorld, pool: &Pool, story: Story) {
    if story == Story::Scrub {
        let disk = sim.disk("disk1").unwrap();
        let end = (DISK_MIB << 20) - 2 * LABEL_BYTES;
        disk.corrupt(LABEL_START_BYTES, (end - LABEL_START_BYTES) as usize);
        return pool.scans().scrub(ScrubCommand::Start).await.unwrap();
    }
    add_disk(sim, "new");
    let attach = AttachSpec {
        sequential: story == Story::Rebuild,
        ..spec("new", story == Story::Replace)
    };
    pool.attach("disk0", &attach).await.unwrap();
}

fn is_done(pool: &Pool, story: Story) -> bool {
    let status = pool.status();
    let runs = status
        .scan
        .as_ref()
        .is_some_and(|scan| scan.state == ScanState::Scanning);
    let has_begun = status.scan.is_some();
    let new = find(&status.root, "new");
    !runs && has_begun && (story == Story::Scrub || new.is_some_and(|new| !new.is_stale))
}

/// Moves the content of a late file into an early one that is empty, and removes the late one.
async fn move_one(fs: &Filesystem, way: Way, from: &str, to: &str, seed: u64) {
    let target = fs.lookup(fs.root(), to.as_bytes()).await.unwrap().ino;
    match way {
        Way::Clone => {
            let source = fs.lookup(fs.root(), from.as_bytes()).await.unwrap().ino;
            let length = FILE_BYTES as u64;
            let copied = fs.copy_range(source, 0, target, 0, length, ROOT).await;
            assert_eq!(copied.unwrap(), length);
        }
        Way::Dedup => {
            let content = data(seed, FILE_BYTES);
            let written = fs.write(target, 0, content, false, ROOT).await;
            written.unwrap();
        }
    }
    remove(fs, from).await;
}

async fn check(fs: &Filesystem, files: &Files, about: &str) {
    for (name, seed) in files {
        let read = get(fs, name).await;
        let read = read.unwrap_or_else(|error| panic!("{about}: {name}: {error}"));
        assert!(read == data(*seed, FILE_BYTES), "{about}: {name}");
    }
}

async fn run(seed: u64, story: Story, way: Way, middle: Break) {
    let about = format!("{seed}: {story:?} {way:?} {middle:?}");
    let sim = SimWorld::new(seed);
    let mut rng = Rng::new(seed);
    let (mut pool, mut fs, mut files) = prepare(&sim, story, way).await;
    begin(&sim, &pool, story).await;
    let mut is_left = middle != Break::Nothing;
    for round in 0.. {
        // Now and then much at once, from the end.
        let moves = if rng.percent(70) { 1 } else { 3 };
        for _ in 0..moves {
            let late: Vec<String> = files
                .keys()
                .filter(|name| name.starts_with("late"))
                .cloned()
                .collect();
            let Some(from) = rng.pick(&late) else { break };
            let seed = files.remove(&from).unwrap();
            let to = format!("early{}", seed);
            move_one(&fs, way, &from, &to, seed).await;
            files.insert(to.clone(), seed);
            if rng.percent(30) {
                let name = format!("renamed{seed}");
                let (root, from, to) = (fs.root(), to.as_bytes(), name.as_bytes());
                fs.rename(root, from, root, to, RenameMode::Replace)
                    .await
                    .unwrap();
                files.remove(&format!("early{seed}"));
                files.insert(name, seed);
            }
        }
        if round == 2 && is_left {
            is_left = false;
            // What was moved is on disk, and nothing was looked at since.
            pool.scans().hold(true);
            let late: Vec<String> = files
                .keys()
                .filter(|name| name.starts_with("late"))
                .cloned()
                .collect();
            for from in late.into_iter().rev().take(5) {
                let seed = files.remove(&from).unwrap();
                let to = format!("early{seed}");
                move_one(&fs, way, &from, &to, seed).await;
                files.insert(to, seed);
            }
            pool.sync().await.unwrap();
            pool.sync_config().await.unwrap();
            if middle == Break::Export {
                fs.close().await.unwrap();
                pool.export(false).await.unwrap();
                drop((fs, pool));
            } else {
                drop((fs, pool));
                power_cycle(&sim).await;
            }
            pool = import(&sim, false).await.unwrap();
            fs = open(&sim, &pool).await.unwrap();
            pool.scans().set_queue(2);
        }
        pool.sync().await.unwrap();
        if is_done(&pool, story) {
            break;
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    check(&fs, &files, &about).await;
    while find(&pool.status().root, "disk0").is_some() && story == Story::Replace {
        pool.sync_config().await.unwrap();
    }
    pool.scans().wait_for_scrub(true).await;
    let status = pool.status().scan.unwrap();
    assert_eq!(status.errors, 0, "{about}");
    fs.close().await.unwrap();
    pool.export(false).await.unwrap();
    drop((fs, pool));
    inspect(&sim, &about, true).await.unwrap();
    // As the device alone has it that has everything now.
    for name in sim.disk_names() {
        let is_new = name
            == if story == Story::Scrub {
                "disk1"
            } else {
                "new"
            };
        sim.disk(&name).unwrap().set_gone(!is_new);
    }
    let pool = import(&sim, false).await.unwrap();
    let fs = open(&sim, &pool).await.unwrap();
    check(&fs, &files, &about).await;
    fs.close().await.unwrap();
    pool.export(false).await.unwrap();
}

fn run_all(way: Way) {
    let runs = [
        (Story::Attach, Break::Nothing),
        (Story::Attach, Break::Export),
        (Story::Attach, Break::PowerCut),
        (Story::Replace, Break::Nothing),
        (Story::Scrub, Break::Nothing),
        (Story::Scrub, Break::PowerCut),
        (Story::Rebuild, Break::Nothing),
    ];
    let seeds = match std::env::var_os("MILLPOND_LONG") {
        Some(_) => 40,
        None => 1,
    };
    for seed in 0..seeds {
        for (story, middle) in runs {
            simulate(run(seed, story, way, middle));
        }
    }
}

#[test]
fn blocks_that_are_cloned_behind_a_walk_are_on_all_devices() {
    run_all(Way::Clone);
}

#[test]
fn blocks_that_are_deduplicated_behind_a_walk_are_on_all_devices() {
    run_all(Way::Dedup);
}

/// A deduplicated block gets a second copy while a device is away. The block is older than what the
/// device lacks.
#[test]
fn copies_that_a_shared_block_gets_later_are_resilvered() {
    simulate(async {
        let sim = SimWorld::new(1);
        let pool = create(&sim, Layout::Mirror(2), DISK_MIB, false)
            .await
            .unwrap();
        let set = async |name: &str, value: &str| {
            let change = PropertyChange::Set(value.to_owned());
            let changes = [(name.to_owned(), change)];
            let properties = pool.dsl().properties();
            properties.set(&pool.name(), &changes).await.unwrap();
        };
        set("dedup", "on").await;
        let fs = open(&sim, &pool).await.unwrap();
        let content = data(1, 256 << 10);
        put(&fs, "one", &content).await.unwrap();
        pool.sync().await.unwrap();
        set("copies", "2").await;
        let away = OfflineSpec::default();
        pool.offline("disk1", away).await.unwrap();
        put(&fs, "two", &content).await.unwrap();
        pool.sync().await.unwrap();
        pool.online("disk1", false).await.unwrap();
        while find(&pool.status().root, "disk1").unwrap().is_stale {
            pool.sync_config().await.unwrap();
        }
        fs.close().await.unwrap();
        pool.export(false).await.unwrap();
        drop((fs, pool));
        inspect(&sim, "resilvered", true).await.unwrap();
    });
}
