//! Goal: the mapping of a removed vdev gets smaller when what was on it is no longer in use, and
//! nothing is lost by that, whatever moment the power goes at, and whoever goes on with it. Method:
//! a mapping of many entries, of which some are obsolete as a whole and others in part; cuts at
//! writes and flushes (a few by default, all with `MILLPOND_LONG=1`); by turns with the real
//! OpenZFS. Every block and every range of the space maps is verified, and zdb agrees on what is
//! obsolete of each entry.

use std::sync::Arc;
use std::time::Duration;

use crate::common::{data, get, open, put, remove};
use crate::vdevs::{CUTS, count, power_cycle, until_cut};
use device::sim::{SimOp, SimWorld};
use filesystem::Filesystem;
use oracles::Peer;
use pool::{CondenseLimits, Pool, RemovalState, condensing, removal};
use sim::torture::{Layout, create, import, inspect, simulate, zdb};
use sim::verify::Failure;

const DISK_MIB: u64 = 128;
const FILES: u64 = 72;

/// All that is obsolete counts, and a group writes an entry or so.
fn eager(turn_entries: usize) -> CondenseLimits {
    CondenseLimits {
        obsolete_percent: 1,
        mapping_bytes_min: 0,
        turn_entries,
        ..CondenseLimits::default()
    }
}

fn never() -> CondenseLimits {
    CondenseLimits {
        enabled: false,
        ..CondenseLimits::default()
    }
}

fn moments(count: u64) -> impl Iterator<Item = u64> {
    let stride = match std::env::var_os("MILLPOND_LONG") {
        Some(_) => 1,
        None => (count / 4).max(1),
    };
    (1..=count).step_by(stride as usize)
}

fn content(number: u64) -> bytes::Bytes {
    data(number, 100_000)
}

/// Those that are there before what was on the vdev is freed: there are holes between runs of them.
fn is_old(number: u64) -> bool {
    number % 3 != 1
}

/// Those that stay: of the first half one of each run, so that entries are obsolete in part.
fn stays(number: u64) -> bool {
    number % 3 == 2 && number < FILES / 2 || number + 6 >= FILES && is_old(number)
}

/// A pool of which a vdev was removed.
async fn prepare(sim: &SimWorld) -> (Arc<Pool>, Arc<Filesystem>) {
    let pool = create(sim, Layout::Mirrors, DISK_MIB, false).await.unwrap();
    condensing(&pool).set_limits(never());
    let fs = open(sim, &pool).await.unwrap();
    for number in 0..FILES {
        put(&fs, &number.to_string(), &content(number))
            .await
            .unwrap();
    }
    pool.sync().await.unwrap();
    for number in (0..FILES).filter(|number| !is_old(*number)) {
        remove(&fs, &number.to_string()).await;
    }
    pool.sync().await.unwrap();
    pool.remove("mirror-1").await.unwrap();
    for _ in 0..1000 {
        if !removal(&pool).is_active() {
            break;
        }
        pool.sync().await.unwrap();
        // Time passes, which devices need that leave.
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let ended = removal(&pool).status().map(|status| status.state);
    assert_eq!(ended, Some(RemovalState::Finished));
    (pool, fs)
}

fn mapping_bytes(pool: &Pool) -> u64 {
    removal(pool).status().expect("there was one").mapping_bytes
}

/// Frees most files, with synchronous writes in between.
async fn free(fs: &Filesystem) -> Result<(), Failure> {
    for number in (0..FILES).filter(|number| is_old(*number) && !stays(*number)) {
        fs.unlink(fs.root(), number.to_string().as_bytes()).await?;
        if number % 16 == 0 {
            let ino = put(fs, &format!("sync{number}"), &content(number)).await?;
            fs.sync_file(ino).await?;
        }
    }
    Ok(())
}

/// Has groups written until all is condensed that is to be.
async fn condense(pool: &Pool) -> Result<(), Failure> {
    condensing(pool).set_limits(eager(1));
    let mut quiet = 0;
    for _ in 0..2000 {
        pool.sync().await?;
        quiet = if condensing(pool).is_active() {
            0
        } else {
            quiet + 1
        };
        if quiet == 4 {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    panic!("it does not end");
}

/// Has it begin, write an entry or a few, and stand still.
async fn begin(pool: &Pool) {
    for turn_entries in [0, 0, 0, 1, 0, 0] {
        condensing(pool).set_limits(eager(turn_entries));
        pool.sync().await.unwrap();
        condensing(pool).set_limits(eager(0));
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert!(condensing(pool).is_active());
}

async fn check(fs: &Filesystem, about: &str) {
    for number in (0..FILES).filter(|number| stays(*number)) {
        let read = get(fs, &number.to_string()).await;
        let read = read.unwrap_or_else(|error| panic!("{about}: file {number}: {error:?}"));
        assert!(read == content(number), "{about}: file {number}");
    }
}

async fn close(fs: Arc<Filesystem>, pool: Arc<Pool>) {
    fs.close().await.unwrap();
    pool.export(false).await.unwrap();
}

/// Has nobody's pool verified.
async fn verify(sim: &SimWorld, about: &str) {
    inspect(sim, about, true).await.unwrap();
    zdb(sim).unwrap_or_else(|error| panic!("{about}: {error}"));
}

/// A mapping gets smaller, in any number of groups, and what is freed meanwhile and after that is
/// recorded as ever.
#[test]
fn a_mapping_gets_smaller() {
    simulate(async {
        let sim = SimWorld::new(1);
        let (pool, fs) = prepare(&sim).await;
        let whole = mapping_bytes(&pool);
        free(&fs).await.unwrap();
        pool.sync().await.unwrap();
        assert!(!condensing(&pool).is_active());
        begin(&pool).await;
        assert_eq!(mapping_bytes(&pool), whole, "the old mapping stays");
        remove(&fs, "2").await;
        put(&fs, "2", &content(2)).await.unwrap();
        pool.sync().await.unwrap();
        close(fs, pool).await;
        verify(&sim, "in the middle").await;

        let pool = import(&sim, false).await.unwrap();
        let fs = open(&sim, &pool).await.unwrap();
        condense(&pool).await.unwrap();
        assert!(condensing(&pool).ended() > 0);
        let smaller = mapping_bytes(&pool);
        assert!(smaller > 0 && smaller < whole, "{smaller} of {whole}");
        check(&fs, "condensed").await;
        close(fs, pool).await;
        verify(&sim, "condensed").await;

        // Once more, until nothing is left.
        let pool = import(&sim, false).await.unwrap();
        let fs = open(&sim, &pool).await.unwrap();
        assert!(mapping_bytes(&pool) <= smaller);
        check(&fs, "condensed and imported").await;
        for number in (0..FILES).filter(|number| stays(*number)) {
            remove(&fs, &number.to_string()).await;
        }
        pool.sync().await.unwrap();
        condense(&pool).await.unwrap();
        assert!(mapping_bytes(&pool) < smaller);
        close(fs, pool).await;
        verify(&sim, "in the end").await;
    });
}

/// By OpenZFS's thresholds a small mapping stays as it is.
#[test]
fn a_small_mapping_stays() {
    simulate(async {
        let sim = SimWorld::new(2);
        let (pool, fs) = prepare(&sim).await;
        let whole = mapping_bytes(&pool);
        condensing(&pool).set_limits(CondenseLimits::default());
        free(&fs).await.unwrap();
        for _ in 0..8 {
            pool.sync().await.unwrap();
        }
        assert!(!condensing(&pool).is_active() && condensing(&pool).ended() == 0);
        assert_eq!(mapping_bytes(&pool), whole);
        check(&fs, "small").await;
        close(fs, pool).await;
        verify(&sim, "small").await;
    });
}

#[test]
fn power_cuts_while_a_mapping_is_condensed_lose_nothing() {
    let total = simulate(async {
        let sim = SimWorld::new(1);
        let (pool, fs) = prepare(&sim).await;
        let start = (count(&sim, SimOp::Write), count(&sim, SimOp::Flush));
        free(&fs).await.unwrap();
        condense(&pool).await.unwrap();
        assert!(condensing(&pool).ended() > 0);
        let total = (
            count(&sim, SimOp::Write) - start.0,
            count(&sim, SimOp::Flush) - start.1,
        );
        check(&fs, "whole").await;
        close(fs, pool).await;
        verify(&sim, "whole").await;
        total
    });
    let mut went_on = 0;
    for (op, how) in CUTS {
        let most = if op == SimOp::Write { total.0 } else { total.1 };
        for at in moments(most) {
            went_on += simulate(async {
                let sim = SimWorld::new(at);
                let (pool, fs) = prepare(&sim).await;
                sim.cut_power_at(op, at, how);
                let about = format!("{op:?} {at} {how:?}");
                let work = async {
                    free(&fs).await?;
                    condense(&pool).await
                };
                if let Some(result) = until_cut(&sim, work).await {
                    result.unwrap();
                }
                drop((fs, pool));
                power_cycle(&sim).await;
                inspect(&sim, &about, false).await.unwrap();
                zdb(&sim).unwrap_or_else(|error| panic!("{about}: {error}"));
                let pool = import(&sim, false)
                    .await
                    .unwrap_or_else(|error| panic!("{about}: {error}"));
                let went_on = condensing(&pool).is_active() || condensing(&pool).ended() > 0;
                let fs = open(&sim, &pool).await.unwrap();
                check(&fs, &about).await;
                // What was not freed before the cut.
                let names = (0..FILES).filter(|number| is_old(*number) && !stays(*number));
                for number in names {
                    let name = number.to_string();
                    if get(&fs, &name).await.is_ok() {
                        remove(&fs, &name).await;
                    }
                }
                pool.sync().await.unwrap();
                condense(&pool).await.unwrap();
                check(&fs, &about).await;
                close(fs, pool).await;
                verify(&sim, &about).await;
                u32::from(went_on)
            });
        }
    }
    assert!(went_on > 0, "no cut was in the middle");
}

/// OpenZFS begins to condense, and leaves the pool in the middle.
const BEGINS: &str = r#"
set -e
params=/sys/module/zfs/parameters
echo 1 > $params/zfs_condense_min_mapping_bytes
echo 1 > $params/zfs_condense_indirect_obsolete_pct
echo 3000 > $params/zfs_condense_indirect_commit_entry_delay_ms
echo 1 > $params/zfs_dbgmsg_enable
zpool import -f -N -d /dev/disk/peer tank
zfs set mountpoint=/mnt/tank tank
zfs mount tank || true
for file in GONE; do rm /mnt/tank/$file; done
zpool sync tank
touch /mnt/tank/late
zpool sync tank
sleep 1
grep -a "starting condense" /proc/spl/kstat/zfs/dbgmsg | sed "s/^/BEGIN /" || true
grep -a "finished condense" /proc/spl/kstat/zfs/dbgmsg | sed "s/^/TOO EARLY /" || true
zpool export tank
echo PEER-DONE
"#;

/// OpenZFS goes on with what was begun here.
const ENDS: &str = r#"
set -e
params=/sys/module/zfs/parameters
echo 1 > $params/zfs_dbgmsg_enable
zpool import -f -N -d /dev/disk/peer tank
for second in 1 2 3 4 5 6 7 8; do
  zpool sync tank
  grep -aq "finished condense" /proc/spl/kstat/zfs/dbgmsg && break
  sleep 1
done
grep -a "finished condense" /proc/spl/kstat/zfs/dbgmsg | sed "s/^/END /" || true
zpool scrub -w tank
zpool status tank | sed "s/^/STATUS /"
zpool export tank
echo PEER-DONE
"#;

/// Goal: what OpenZFS left half condensed is written and ended here, and the other way round.
/// Method: it is slow about it, and exports the pool; we have it stand still.
#[test]
fn openzfs_begins_to_condense_and_we_end_it_and_back() {
    let Some(peer) = Peer::find() else { return };
    let directory = tempfile::tempdir().expect("a directory");
    let path = |name: &str| directory.path().join(name);
    let names = ["disk0", "disk1"];
    let disks = names.map(|name| format!("{},{name}", path(name).display()));
    let save = |sim: &SimWorld| {
        for name in names {
            let disk = sim.disk(name).unwrap();
            disk.save_image(path(name)).unwrap();
        }
    };
    let load = || {
        let sim = SimWorld::new(12);
        for name in names {
            let image = std::fs::read(path(name)).unwrap();
            let disk = sim.add_disk(name, image.len() as u64);
            disk.set_sector_bytes(4096);
            crate::removal::load(&disk, &image);
        }
        sim
    };
    let has = |text: &str, mark: &str, word: &str| {
        let mut lines = text.lines();
        lines.any(|line| line.starts_with(mark) && line.contains(word))
    };
    let whole = simulate(async {
        let sim = SimWorld::new(11);
        let (pool, fs) = prepare(&sim).await;
        let whole = mapping_bytes(&pool);
        close(fs, pool).await;
        save(&sim);
        whole
    });
    let gone: Vec<String> = (0..FILES)
        .filter(|number| is_old(*number) && !stays(*number))
        .map(|number| number.to_string())
        .collect();
    let text = peer.run(&disks, &BEGINS.replace("GONE", &gone.join(" ")));
    assert!(text.contains("PEER-DONE"), "{text}");
    assert!(has(&text, "BEGIN", "starting condense"), "{text}");
    assert!(!has(&text, "TOO EARLY", "finished"), "{text}");
    simulate(async {
        let sim = load();
        zdb(&sim).unwrap();
        let pool = import(&sim, false).await.unwrap();
        let fs = open(&sim, &pool).await.unwrap();
        // It may have ended by now.
        condense(&pool).await.unwrap();
        assert!(condensing(&pool).ended() > 0 && mapping_bytes(&pool) < whole);
        check(&fs, "ended here").await;
        close(fs, pool).await;
        zdb(&sim).unwrap();
    });
    // The other way round, in another pool: OpenZFS had pointers say where those files are now.
    simulate(async {
        let sim = SimWorld::new(13);
        let (pool, fs) = prepare(&sim).await;
        free(&fs).await.unwrap();
        pool.sync().await.unwrap();
        begin(&pool).await;
        close(fs, pool).await;
        zdb(&sim).unwrap();
        save(&sim);
    });
    let text = peer.run(&disks, ENDS);
    assert!(text.contains("PEER-DONE"), "{text}");
    assert!(has(&text, "END", "finished condense"), "{text}");
    for words in ["scrub repaired 0B", "No known data errors"] {
        assert!(has(&text, "STATUS", words), "{words}: {text}");
    }
    simulate(async {
        let sim = load();
        zdb(&sim).unwrap();
        let pool = import(&sim, false).await.unwrap();
        let fs = open(&sim, &pool).await.unwrap();
        assert!(!condensing(&pool).is_active());
        check(&fs, "ended there").await;
        close(fs, pool).await;
        zdb(&sim).unwrap();
    });
}
