//! `kill -9` at random moments under load: the pool imports each time, zdb finds nothing, and
//! everything that fsync had acknowledged is there. `MILLPOND_KILLS=N`: so many.

use std::fs;
use std::io::{Seek, SeekFrom, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::harness::{Server, can_mount, is_long, zdb_is_clean};

/// What a writer was told is safe: file, length, seed of its content.
pub type Acknowledged = Arc<Mutex<Vec<(String, u64)>>>;

/// Content that tells its own file and place.
pub fn content(name: &str, length: usize) -> Vec<u8> {
    let mut state = name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    (0..length)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state as u8
        })
        .collect()
}

/// Writes files with fsync, and notes which are safe, until the server is gone or `stop` is set.
pub fn write_until_dead(
    root: &Path,
    round: usize,
    writer: usize,
    acknowledged: &Acknowledged,
    stop: &AtomicBool,
) {
    // Once the server is dead and its mount gone, a name leads to the directory below.
    let Ok(mounted) = std::fs::metadata(root).map(|data| data.dev()) else {
        return;
    };
    let mut count = 0;
    while !stop.load(Ordering::Relaxed) {
        count += 1;
        let name = format!("r{round}-w{writer}-{count}");
        let length = 1 + (count * 7919 * (writer + 1)) % 300_000;
        let data = content(&name, length);
        let path = root.join(&name);
        let attempt = || -> std::io::Result<()> {
            let mut file = std::fs::File::create(&path)?;
            if file.metadata()?.dev() != mounted {
                std::fs::remove_file(&path)?;
                eprintln!("{name} went to the directory below");
                return Err(std::io::ErrorKind::NotConnected.into());
            }
            let half = length / 2;
            file.write_all(&data[..half])?;
            file.sync_all()?;
            file.seek(SeekFrom::Start(half as u64))?;
            file.write_all(&data[half..])?;
            file.sync_data()?;
            Ok(())
        };
        if attempt().is_err() {
            return;
        }
        acknowledged
            .lock()
            .unwrap()
            .push((name.clone(), length as u64));
        if count % 5 == 0 {
            // Renames and removals under load; a removal is forgotten first, since it need not be
            // durable.
            let renamed = format!("{name}-renamed");
            acknowledged
                .lock()
                .unwrap()
                .retain(|(known, _)| *known != name);
            if std::fs::rename(&path, root.join(&renamed)).is_err() {
                return;
            }
            let _ = std::fs::remove_file(root.join(&renamed));
        }
    }
}

#[test]
fn what_fsync_acknowledged_survives_kills_at_random_moments() {
    if !can_mount() {
        return;
    }
    let rounds = match std::env::var("MILLPOND_KILLS") {
        Ok(count) => count.parse().expect("a number"),
        Err(_) if is_long() => 200,
        Err(_) => 8,
    };
    let mut server = Server::start();
    let disks = server.disks(3, 2 << 30);
    let root = server.path("mnt");
    server.ok(&format!(
        "zpool create -m {} tank raidz1 {}",
        root.display(),
        disks.join(" ")
    ));
    let acknowledged: Acknowledged = Arc::default();
    let mut seed = std::env::var("MILLPOND_SEED")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(std::process::id() as u64);
    eprintln!("MILLPOND_SEED={seed} replays the moments of the kills");
    for round in 0..rounds {
        let stop = Arc::new(AtomicBool::new(false));
        let writers: Vec<_> = (0..4)
            .map(|writer| {
                let (root, acknowledged, stop) =
                    (root.clone(), Arc::clone(&acknowledged), Arc::clone(&stop));
                std::thread::spawn(move || {
                    write_until_dead(&root, round, writer, &acknowledged, &stop)
                })
            })
            .collect();
        seed = seed
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        std::thread::sleep(Duration::from_millis(100 + (seed >> 33) % 3000));
        server.kill();
        stop.store(true, Ordering::Relaxed);
        for writer in writers {
            writer.join().expect("a writer ends");
        }
        zdb_is_clean(&server.path("disks"), "tank");
        server.launch(&["daemon"]);
        server.wait_until("the pool is imported again", || {
            server.ok("zfs mount").contains("tank")
        });
        let mut known = acknowledged.lock().unwrap();
        let mut wrong = Vec::new();
        for (name, length) in known.iter() {
            match std::fs::read(root.join(name)) {
                Ok(data) if data == content(name, *length as usize) => {}
                Ok(data) => {
                    wrong.push(format!("{name} differs ({} of {length} bytes)", data.len()))
                }
                Err(error) => wrong.push(format!("{name}, acknowledged, is lost: {error}")),
            }
        }
        if !wrong.is_empty() {
            server.directory.disable_cleanup(true);
            panic!(
                "round {round}, {} files; what is left is in {}:\n{}",
                known.len(),
                server.directory.path().display(),
                wrong.join("\n")
            );
        }
        // Room for the next rounds.
        if known.len() > 400 {
            for (name, _) in known.drain(..) {
                std::fs::remove_file(root.join(name)).expect("an old file goes");
            }
        }
    }
    server.ok("zpool export tank");
    zdb_is_clean(&server.path("disks"), "tank");
}

/// The dead mounts of a server that was killed are taken away by the next one, also while the
/// kernel still remembers what was in them.
#[test]
fn the_next_server_takes_over_what_was_mounted() {
    if !can_mount() {
        return;
    }
    let mut server = Server::start();
    let disk = &server.disks(1, 256 << 20)[0];
    let places = [server.path("mnt"), server.path("mnt/a")];
    server.ok(&format!(
        "zpool create -m {} tank {disk}",
        places[0].display()
    ));
    server.ok("zfs create tank/a");
    server.ok("zfs create -V 1M tank/v");
    server.ok("zfs destroy tank/v");
    let content = content("f", 100_000);
    fs::write(places[1].join("f"), &content).expect("a file");
    server.ok("zpool sync tank");
    for _ in 0..4 {
        for place in &places {
            fs::metadata(place).expect("it is mounted");
        }
        server.kill_only();
        server.launch(&["daemon"]);
        server.wait_until("the pool is there again", || {
            server.command(&["zfs", "list", "tank/a"]).status.success()
        });
        for name in ["tank", "tank/a"] {
            let mounted = server.ok(&format!("zfs get -Ho value mounted {name}"));
            assert_eq!(mounted, "yes\n", "{name}:\n{}", server.log());
        }
        assert!(fs::read(places[1].join("f")).expect("the file") == content);
        fs::read_dir(server.state().join("zvol")).expect("no dead mount");
    }
    server.ok("zpool destroy tank");
}
