//! Devices that are attached, replaced, detached, taken offline and brought back by the command
//! lines; then zdb, then the real OpenZFS, then back here.

use std::path::Path;

use crate::harness::{Peer, Server, can_mount, need, run, zdb_is_clean};

/// Goal: the commands do what OpenZFS's do, and refuse what those refuse, in their words.
#[test]
fn commands_and_refusals_are_those_of_zpool() {
    if !can_mount() {
        return;
    }
    let mut server = Server::start();
    let d = server.disks(5, 128 << 20);
    let small = server.text("disks/small");
    let file = std::fs::File::create(&small).expect("a file");
    file.set_len(80 << 20).expect("its size");
    let mountpoint = server.text("mnt");
    server.ok(&format!("zpool create -m {mountpoint} tank {}", d[0]));
    run(
        "dd",
        &[
            "if=/dev/urandom",
            &format!("of={mountpoint}/data"),
            "bs=1M",
            "count=8",
            "status=none",
        ],
    );
    let sum = || run("sha256sum", &[&format!("{mountpoint}/data")]);
    let before = sum();
    for (command, words) in [
        (
            format!("zpool detach tank {}", d[0]),
            "only applicable to mirror and replacing vdevs",
        ),
        (format!("zpool offline tank {}", d[0]), "no valid replicas"),
        (
            format!("zpool attach tank {} {small}", d[0]),
            "device is too small",
        ),
        (
            format!("zpool attach tank nosuch {}", d[1]),
            "no such device in pool",
        ),
        (
            format!("zpool attach tank {} {}", d[0], d[0]),
            "is part of active pool 'tank'",
        ),
    ] {
        let refused = server.fails(&command);
        assert!(refused.contains(words), "{command}: {refused}");
    }
    server.ok(&format!("zpool attach tank {} {}", d[0], d[1]));
    let status = server.ok("zpool status tank");
    assert!(
        status.contains("mirror-0") && status.contains(&d[1]),
        "{status}"
    );
    server.ok(&format!("zpool replace tank {} {}", d[1], d[2]));
    let status = server.ok("zpool status tank");
    let is_done = !status.contains("replacing-1");
    if !is_done {
        // Out of a replacement that is given up, or that has ended meanwhile.
        let gone = server.command(&["zpool", "detach", "tank", &d[2]]);
        assert!(gone.status.success(), "{gone:?}");
    }
    server.wait_until("no replacement is left", || {
        !server.ok("zpool status tank").contains("replacing")
    });
    let status = server.ok("zpool status tank");
    let second = match status.contains(&d[2]) {
        true => &d[2],
        false => &d[1],
    };
    server.ok(&format!("zpool offline tank {second}"));
    let status = server.ok("zpool status tank");
    assert!(
        status.contains("OFFLINE") && status.contains("DEGRADED"),
        "{status}"
    );
    assert!(
        status.contains("has been taken offline by the administrator"),
        "{status}"
    );
    // That outlasts an import, and -t does not.
    server.ok("zpool export tank");
    let search = server.text("disks");
    server.ok(&format!("zpool import -d {search} tank"));
    assert!(server.ok("zpool status tank").contains("OFFLINE"));
    server.ok(&format!("zpool online tank {second}"));
    assert!(!server.ok("zpool status tank").contains("OFFLINE"));
    let events = server.ok("zpool events -H tank");
    assert!(events.contains("sysevent.fs.zfs.vdev_online"), "{events}");
    server.ok(&format!("zpool offline -t tank {second}"));
    server.ok("zpool export tank");
    server.ok(&format!("zpool import -d {search} tank"));
    assert!(!server.ok("zpool status tank").contains("OFFLINE"));
    server.ok(&format!("zpool offline -f tank {second}"));
    assert!(server.ok("zpool status tank").contains("FAULTED"));
    let said = server.ok(&format!("zpool online tank {second}"));
    assert!(
        said.contains("onlined, but remains in faulted state"),
        "{said}"
    );
    server.ok("zpool clear tank");
    assert!(!server.ok("zpool status tank").contains("FAULTED"));
    server.ok(&format!("zpool detach tank {second}"));
    let status = server.ok("zpool status tank");
    assert!(
        !status.contains("mirror") && status.contains(&d[0]),
        "{status}"
    );
    // Its device is free.
    server.ok(&format!("zpool attach tank {} {second}", d[0]));
    let history = server.ok("zpool history -i tank");
    for words in ["vdev attach", "attach vdev=", "detach", "zpool attach tank"] {
        assert!(history.contains(words), "{words}: {history}");
    }
    assert_eq!(sum(), before);
    server.ok("zpool export tank");
    zdb_is_clean(&server.path("disks"), "tank");
    server.stop();
}

/// Goal: OpenZFS ends a replacement that began here, and the pool comes back.
#[test]
fn openzfs_ends_our_replacement() {
    if !can_mount() || !need("loop devices", Path::new("/dev/loop-control").exists()) {
        return;
    }
    let Some(peer) = Peer::find() else { return };
    let mut server = Server::start();
    let disks = server.disks(5, 96 << 20);
    let d = server.attach(&disks);
    let mountpoint = server.text("mnt");
    server.ok(&format!(
        "zpool create -o ashift=12 -m {mountpoint} tank raidz1 {} {} {}",
        d[0], d[1], d[2]
    ));
    let script = format!(
        "cd '{mountpoint}' && for i in $(seq 60); do head -c $((i * 4000)) /dev/urandom > f$i; \
         done && sha256sum f* > sum"
    );
    run("sh", &["-c", &script]);
    server.ok(&format!("zpool replace tank {} {}", d[1], d[3]));
    // Before anybody has copied anything.
    let away = server.command(&["zpool", "offline", "-t", "tank", &d[3]]);
    server.ok("zpool export tank");
    server.detach();
    let script = "set -e\nzpool import -d /dev/disk/peer -R /mnt tank 2>&1\n\
                  zpool wait -t resilver,replace tank\nzpool scrub -w tank\nzpool status -P tank\n\
                  zpool history -i tank | tail -20\nzpool export tank\n";
    let text = peer.run(&disks, script);
    assert!(
        text.contains("scrub repaired 0B") && text.contains("No known data errors"),
        "{away:?} {text}"
    );
    assert!(!text.contains("replacing-"), "{text}");
    let search = server.attach_to_import(&disks);
    server.ok(&format!("zpool import {search} tank"));
    let status = server.ok("zpool status tank");
    assert!(
        !status.contains("replacing") && !status.contains("DEGRADED"),
        "{status}"
    );
    let check = format!("cd '{mountpoint}' && sha256sum -c sum");
    run("sh", &["-c", &check]);
    server.ok("zpool export tank");
    server.detach();
    zdb_is_clean(&server.path("disks"), "tank");
    server.stop();
}
