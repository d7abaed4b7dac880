//! Hot spares by the command lines: they stand in, return and stay; several pools have one; then
//! zdb and the real OpenZFS.

use std::path::Path;

use crate::harness::{Peer, Server, can_mount, need, run, zdb_is_clean};

/// The line of a device or vdev, in single spaces.
fn line(status: &str, name: &str) -> String {
    let mut lines = status.lines();
    let found = lines.rfind(|line| line.split_whitespace().next() == Some(name));
    let words: Vec<&str> = found.unwrap_or("").split_whitespace().collect();
    words.join(" ")
}

fn fill(server: &Server, mountpoint: &str) {
    let script = format!(
        "cd '{mountpoint}' && for i in $(seq 40); do head -c $((i * 4000)) /dev/urandom > f$i; \
         done && sha256sum f* > sum"
    );
    run("sh", &["-c", &script]);
    server.ok("zpool sync");
}

fn check(mountpoint: &str) {
    let check = format!("cd '{mountpoint}' && sha256sum -c --quiet sum");
    run("sh", &["-c", &check]);
}

/// Goal: the commands do with spares what OpenZFS's do, and refuse what those refuse, in their
/// words.
#[test]
fn spares_stand_in_return_and_stay() {
    if !can_mount() {
        return;
    }
    let mut server = Server::start();
    let d = server.disks(8, 128 << 20);
    let mountpoint = server.text("mnt");
    server.ok(&format!(
        "zpool create -m {mountpoint} tank raidz1 {} {} {} spare {} {}",
        d[0], d[1], d[2], d[3], d[4]
    ));
    fill(&server, &mountpoint);
    let status = || server.ok("zpool status -P tank");
    assert_eq!(line(&status(), &d[3]), format!("{} AVAIL", d[3]));

    // By hand, and back.
    server.ok(&format!("zpool replace -w tank {} {}", d[1], d[3]));
    let told = status();
    assert_eq!(line(&told, "spare-1"), "spare-1 ONLINE 0 0 0", "{told}");
    let in_use = format!("{} INUSE currently in use", d[3]);
    assert_eq!(line(&told, &d[3]), in_use, "{told}");
    for (command, words) in [
        (format!("zpool remove tank {}", d[3]), "in use"),
        (
            format!("zpool replace tank {} {}", d[3], d[5]),
            "can only be replaced by another hot spare",
        ),
        (
            format!("zpool replace tank {} {}", d[4], d[5]),
            "device is reserved as a hot spare",
        ),
        (
            format!("zpool replace tank {} {}", d[1], d[4]),
            "already in replacing/spare config",
        ),
        (
            format!("zpool attach tank {} {}", d[0], d[4]),
            "is part of active pool 'tank'",
        ),
        (
            format!("zpool detach tank {}", d[4]),
            "device is reserved as a hot spare",
        ),
    ] {
        let refused = server.fails(&command);
        assert!(refused.contains(words), "{command}: {refused}");
    }
    server.ok(&format!("zpool detach tank {}", d[3]));
    let told = status();
    assert!(!told.contains("spare-"), "{told}");
    assert_eq!(line(&told, &d[3]), format!("{} AVAIL", d[3]), "{told}");

    // By itself, and with the clear back.
    server.ok(&format!("zpool offline -f tank {}", d[1]));
    server.wait_until("a spare stands in", || status().contains("spare-1"));
    server.ok("zpool wait -t resilver,replace tank");
    let told = status();
    assert_eq!(line(&told, "spare-1"), "spare-1 DEGRADED 0 0 0", "{told}");
    assert!(told.contains("external device fault"), "{told}");
    assert_eq!(line(&told, &d[3]), in_use, "{told}");
    check(&mountpoint);
    server.ok("zpool clear tank");
    server.wait_until("it is back", || {
        line(&status(), &d[3]) == format!("{} AVAIL", d[3])
    });
    assert!(!status().contains("spare-"));

    // Another pool has the same spare: whoever needs it first gets it.
    let other = server.text("other");
    server.ok(&format!(
        "zpool create -m {other} two mirror {} {} spare {}",
        d[5], d[6], d[4]
    ));
    server.ok(&format!("zpool replace -w tank {} {}", d[0], d[4]));
    let told = server.ok("zpool status -P two");
    let taken = format!("{} INUSE in use by pool 'tank'", d[4]);
    assert_eq!(line(&told, &d[4]), taken, "{told}");
    let refused = server.fails(&format!("zpool replace two {} {}", d[5], d[4]));
    assert!(refused.contains("active pool 'tank'"), "{refused}");
    let refused = server.fails("zpool export tank");
    assert!(
        refused.contains("has an active shared spare which could be used by other pools"),
        "{refused}"
    );
    // It stays for good, and nobody has it as a spare any more.
    server.ok(&format!("zpool detach tank {}", d[0]));
    let told = status();
    assert!(!told.contains("spare-"), "{told}");
    assert_eq!(
        line(&told, &d[4]),
        format!("{} ONLINE 0 0 0", d[4]),
        "{told}"
    );
    assert!(!server.ok("zpool status -P two").contains(&d[4]));
    let history = server.ok("zpool history -i tank");
    for words in ["spare in vdev=", "zpool replace -w tank"] {
        assert!(history.contains(words), "{words}: {history}");
    }
    server.ok("zpool destroy two");

    // A disk that is not there at the import, and a new one in its place.
    server.ok("zpool set autoreplace=on tank");
    server.ok("zpool export tank");
    std::fs::remove_file(&d[2]).expect("removed");
    let search = server.text("disks");
    server.ok(&format!("zpool import -d {search} tank"));
    server.wait_until("a spare stands in for what is not there", || {
        line(&status(), &d[3]) == in_use
    });
    let file = std::fs::File::create(&d[2]).expect("a new file");
    file.set_len(160 << 20).expect("its size");
    server.wait_until("the new one has its place", || {
        let told = status();
        !told.contains("replacing-") && line(&told, &d[3]) == format!("{} AVAIL", d[3])
    });
    let told = status();
    assert!(
        !told.contains("spare-") && !told.contains("DEGRADED"),
        "{told}"
    );
    check(&mountpoint);
    server.ok("zpool scrub -w tank");
    assert!(status().contains("scrub repaired 0B"), "{}", status());
    server.ok("zpool export tank");
    zdb_is_clean(&server.path("disks"), "tank");
    server.stop();
}

/// The vdevs of a status, devices by the names that `rename` gives them.
fn vdevs(status: &str, rename: impl Fn(&str) -> String) -> Vec<String> {
    let lines = status.lines().skip_while(|line| !line.contains("NAME "));
    let lines = lines.take_while(|line| !line.starts_with("errors:"));
    lines
        .filter(|line| !line.trim().is_empty())
        .map(|line| {
            let depth = line.len() - line.trim_start().len();
            let words: Vec<String> = line.split_whitespace().map(&rename).collect();
            format!("{depth} {}", words.join(" "))
        })
        .collect()
}

/// Goal: OpenZFS imports a pool with a spare of ours in use, shows what we show, ends it and leaves
/// one of its own, which we import and end.
#[test]
fn openzfs_takes_over_our_spares_and_we_take_over_its() {
    if !can_mount() || !need("loop devices", Path::new("/dev/loop-control").exists()) {
        return;
    }
    let Some(peer) = Peer::find() else { return };
    let mut server = Server::start();
    let disks = server.disks(6, 96 << 20);
    let d = server.attach(&disks);
    let mountpoint = server.text("mnt");
    server.ok(&format!(
        "zpool create -o ashift=12 -m {mountpoint} tank raidz1 {} {} {} spare {} {}",
        d[0], d[1], d[2], d[3], d[4]
    ));
    fill(&server, &mountpoint);
    server.ok(&format!("zpool offline -f tank {}", d[1]));
    server.wait_until("a spare stands in", || {
        server.ok("zpool status tank").contains("spare-1")
    });
    server.ok("zpool wait -t resilver,replace tank");
    let ours = server.ok("zpool status -P tank");
    server.ok("zpool export tank");
    server.detach();
    let script = "set -e\nzpool import -d /dev/disk/peer -R /mnt tank 2>&1\n\
                  echo FIRST; zpool status -P tank; echo SECOND\n\
                  zpool scrub -w tank; zpool status tank | grep -e scan: -e errors:\n\
                  zpool clear tank; zpool wait -t resilver tank\n\
                  for i in $(seq 60); do zpool status tank | grep -q spare- || break\n\
                  sleep 1; done\n\
                  echo THIRD; zpool status -P tank; echo FOURTH\n\
                  zpool replace tank /dev/disk/peer/d2 /dev/disk/peer/d4\n\
                  zpool wait -t resilver tank\n\
                  zpool status -P tank; echo FIFTH\nzpool export tank\n";
    let text = format!("\n{}", peer.run(&disks, script));
    let part = |from: &str, to: &str| {
        let from = text.split(&format!("\n{from}\n")).nth(1).unwrap_or("");
        from.split(&format!("\n{to}\n"))
            .next()
            .unwrap_or("")
            .to_owned()
    };
    let here = |word: &str| match d.iter().position(|device| device == word) {
        Some(at) => format!("d{at}"),
        None => word.to_owned(),
    };
    let there = |word: &str| word.trim_start_matches("/dev/disk/peer/").to_owned();
    let theirs = vdevs(&part("FIRST", "SECOND"), there);
    assert!(theirs.iter().any(|line| line.contains("spare-1")), "{text}");
    assert_eq!(vdevs(&ours, here), theirs, "{text}");
    let scrub = part("SECOND", "THIRD");
    assert!(
        scrub.contains("scrub repaired 0B") && scrub.contains("No known data errors"),
        "{text}"
    );
    let cleared = part("THIRD", "FOURTH");
    assert!(!cleared.contains("spare-"), "{text}");
    let left = vdevs(&part("FOURTH", "FIFTH"), there);
    assert!(left.iter().any(|line| line.contains("spare-2")), "{text}");

    let devices = server.attach(&disks);
    let search: String = devices
        .iter()
        .map(|device| format!("-d {device} "))
        .collect();
    server.ok(&format!("zpool import {search} tank"));
    let told = server.ok("zpool status -P tank");
    let here = |word: &str| match devices.iter().position(|device| device == word) {
        Some(at) => format!("d{at}"),
        None => word.to_owned(),
    };
    assert_eq!(vdevs(&told, here), left, "{told}");
    check(&mountpoint);
    // What it stood in for goes: the spare stays.
    server.ok(&format!("zpool detach tank {}", devices[2]));
    let told = server.ok("zpool status -P tank");
    assert!(!told.contains("spare-"), "{told}");
    assert_eq!(
        line(&told, &devices[4]),
        format!("{} ONLINE 0 0 0", devices[4])
    );
    assert_eq!(line(&told, &devices[3]), format!("{} AVAIL", devices[3]));
    server.ok("zpool export tank");
    server.detach();
    zdb_is_clean(&server.path("disks"), "tank");
    server.stop();
}

/// Goal: distributed spares are used by the commands as OpenZFS's are, and refused in its words.
#[test]
fn distributed_spares_are_used_by_name() {
    let mut server = Server::start();
    let d = server.disks(11, 128 << 20);
    let first = d[..5].join(" ");
    let second = d[5..10].join(" ");
    server.ok(&format!(
        "zpool create -O mountpoint=none tank draid1:2d:5c:1s {first} draid1:2d:5c:1s {second}"
    ));
    let state = |name: &str| line(&server.ok("zpool status tank"), name);
    assert_eq!(state("draid1-0-0"), "draid1-0-0 AVAIL");
    let refused = server.fails(&format!("zpool replace tank {} draid1-1-0", d[0]));
    let words = "dRAID spares can only replace child devices in their parent's dRAID vdev";
    assert!(refused.contains(words), "{refused}");
    let refused = server.fails("zpool remove tank draid1-0-0");
    assert!(refused.contains("goes with that"), "{refused}");
    server.ok(&format!("zpool replace -s -w tank {} draid1-0-0", d[0]));
    assert_eq!(state("draid1-0-0"), "draid1-0-0 INUSE currently in use");
    assert!(state("spare-0").contains("ONLINE"), "{}", state("spare-0"));
    let refused = server.fails(&format!("zpool replace tank {} draid1-0-0", d[1]));
    assert!(refused.contains("part of active pool"), "{refused}");
    server.ok("zpool wait -t scrub,resilver tank");
    server.ok("zpool detach tank draid1-0-0");
    assert_eq!(state("draid1-0-0"), "draid1-0-0 AVAIL");
    server.ok("zpool export tank");
    zdb_is_clean(&server.path("disks"), "tank");
    server.stop();
}
