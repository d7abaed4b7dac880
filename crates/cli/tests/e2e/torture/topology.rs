//! Devices that are attached, replaced, taken offline, brought back and detached below files that
//! are written with fsync, while the server is killed.
//!
//! Oracles: the pool is imported each time, everything that fsync acknowledged is there, and when
//! all devices are back a scrub finds nothing and zdb no leak. A device is asked to go only by
//! commands that refuse where its data would be missed, so nothing may be lost.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use sim::rng::Rng;

use crate::harness::{Server, text_of, zdb_is_clean};
use crate::kill::{Acknowledged, content, write_until_dead};

/// Rounds of a story: each ends with a kill.
const ROUNDS: usize = 4;

/// Most files that a story remembers.
const FILES_MAX: usize = 300;

/// Words of the next command; `d` are all disks, `at` the one that is chosen.
fn command(rng: &mut Rng, d: &[String]) -> String {
    let one = rng.pick(d).unwrap_or_default();
    let other = rng.pick(d).unwrap_or_default();
    match rng.below(16) {
        0 | 1 => format!("zpool attach tank {one} {other}"),
        2 => format!("zpool detach tank {one}"),
        3..6 => format!("zpool replace tank {one} {other}"),
        6 | 7 => format!("zpool offline tank {one}"),
        8 => format!("zpool offline -t tank {one}"),
        9..12 => format!("zpool online tank {one}"),
        12 => format!("zpool add -f tank log {one}"),
        13 => format!("zpool remove tank {one}"),
        14 => "zpool clear tank".to_owned(),
        _ => "zpool scrub tank".to_owned(),
    }
}

fn story(seed: u64) {
    let mut rng = Rng::new(seed);
    let mut server = Server::start();
    let d = server.disks(8, 512 << 20);
    let vdevs = match rng.below(4) {
        0 => format!("mirror {} {}", d[0], d[1]),
        1 => format!("mirror {} {} log {}", d[0], d[1], d[2]),
        2 => format!(
            "raidz1 {} {} {} log mirror {} {}",
            d[0], d[1], d[2], d[3], d[4]
        ),
        _ => format!("raidz2 {} {} {} {}", d[0], d[1], d[2], d[3]),
    };
    let root = server.path("mnt");
    let words = format!("zpool create -m {} tank {vdevs}", root.display());
    eprintln!("{words}");
    server.ok(&words);
    let acknowledged = Acknowledged::default();
    let mut story = Vec::new();
    for round in 0..ROUNDS {
        let stop = Arc::new(AtomicBool::new(false));
        let writers: Vec<_> = (0..3)
            .map(|writer| {
                let (root, acknowledged, stop) =
                    (root.clone(), Arc::clone(&acknowledged), Arc::clone(&stop));
                std::thread::spawn(move || {
                    write_until_dead(&root, round, writer, &acknowledged, &stop);
                })
            })
            .collect();
        let until = Instant::now() + Duration::from_millis(500 + rng.below(3000));
        while Instant::now() < until {
            let words = command(&mut rng, &d);
            let output = server.command(&words.split(' ').collect::<Vec<_>>());
            story.push(format!("{words}: {}", text_of(&output).trim()));
            std::thread::sleep(Duration::from_millis(rng.below(120)));
        }
        // Often in the middle of one.
        let words = command(&mut rng, &d);
        let under_way = rng.percent(60).then(|| {
            let child = server.begin(&words.split(' ').collect::<Vec<_>>());
            std::thread::sleep(Duration::from_millis(5 + rng.below(60)));
            story.push(format!("{words}: until the kill"));
            child
        });
        let ended_early = writers.iter().any(|writer| writer.is_finished());
        server.kill_only();
        stop.store(true, Ordering::Relaxed);
        if let Some(mut child) = under_way {
            child.wait().expect("the command ends");
        }
        for writer in writers {
            writer.join().expect("a writer ends");
        }
        let _ = server.command(&["down"]);
        server.clear_mounts();
        server.launch(&["daemon"]);
        let begin = Instant::now();
        while !server.ok("zfs mount").contains("tank") {
            if begin.elapsed() > Duration::from_secs(60) {
                server.kill();
                server.directory.disable_cleanup(true);
                panic!(
                    "seed {seed}, round {round}: the pool is not imported; what is left is in {}\n\
                     {}\n{}",
                    server.directory.path().display(),
                    story.join("\n"),
                    server.log()
                );
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        let mut known = acknowledged.lock().expect("no writer panicked");
        let wrong =
            known
                .iter()
                .filter_map(|(name, length)| match std::fs::read(root.join(name)) {
                    Ok(data) if data == content(name, *length as usize) => None,
                    Ok(data) => Some(format!(
                        "{name}: {} bytes for {length}, or others",
                        data.len()
                    )),
                    Err(error) => Some(format!("{name}: {error}")),
                });
        let wrong: Vec<String> = wrong.collect();
        if !wrong.is_empty() || ended_early {
            let status = server.ok("zpool status -v tank");
            server.kill();
            server.directory.disable_cleanup(true);
            panic!(
                "seed {seed}, round {round}: {} of {} files are wrong (writers ended before the \
                 kill: {ended_early}); what is left is in {}\n{}\n{status}\n{}",
                wrong.len(),
                known.len(),
                server.directory.path().display(),
                wrong.join("\n"),
                story.join("\n")
            );
        }
        if known.len() > FILES_MAX {
            for (name, _) in known.drain(..) {
                std::fs::remove_file(root.join(name)).expect("an old file goes");
            }
        }
    }
    // All is brought back, and nothing is missing.
    for disk in &d {
        server.command(&["zpool", "online", "tank", disk]);
    }
    server.ok("zpool wait -t resilver,replace tank");
    server.command(&["zpool", "scrub", "-s", "tank"]);
    server.ok("zpool scrub -w tank");
    let status = server.ok("zpool status -v tank");
    assert!(
        status.contains("errors: No known data errors"),
        "seed {seed}:\n{}\n{status}",
        story.join("\n")
    );
    server.ok("zpool export tank");
    // A disk that was offline when it was detached keeps labels of a pool of long ago, which zdb
    // takes for those of today.
    for disk in d.iter().filter(|disk| !status.contains(*disk)) {
        std::fs::remove_file(disk).expect("a file");
    }
    // What zdb complains of is kept.
    server.directory.disable_cleanup(true);
    zdb_is_clean(&server.path("disks"), "tank");
    server.directory.disable_cleanup(false);
}

#[test]
fn nothing_acknowledged_goes_with_a_device() {
    super::tell(story);
}
