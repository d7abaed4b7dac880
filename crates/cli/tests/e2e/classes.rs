//! Pools with log, cache, spare, special and dedup devices, made and changed by the command lines;
//! then zdb, then the real OpenZFS, then back here.

use std::path::Path;

use crate::harness::{Peer, Server, can_mount, need, run, zdb_is_clean};

/// Goal: a pool with vdevs of every class, some there from the start, some added, some removed, is
/// right for OpenZFS.
#[test]
fn pools_of_every_class_go_to_openzfs_and_back() {
    if !can_mount() || !need("loop devices", Path::new("/dev/loop-control").exists()) {
        return;
    }
    let mut server = Server::start();
    let disks = server.disks(14, 96 << 20);
    let d = server.attach(&disks);
    let mountpoint = server.path("mnt");
    server.ok(&format!(
        "zpool create -o ashift=12 -O special_small_blocks=16K -m {} tank mirror {} {} special \
         mirror {} {} log {} spare {}",
        mountpoint.display(),
        d[0],
        d[1],
        d[2],
        d[3],
        d[4],
        d[5]
    ));
    let refused = server.fails(&format!("zpool add tank {}", d[6]));
    assert!(
        refused.contains("invalid vdev specification")
            && refused
                .contains("mismatched replication level: pool uses mirror and new vdev is disk"),
        "{refused}"
    );
    let refused = server.fails(&format!("zpool add -f tank mirror {} {}", d[6], d[0]));
    assert!(
        refused.contains("is part of active pool 'tank'"),
        "{refused}"
    );
    let shown = server.ok(&format!("zpool add -n tank log mirror {} {}", d[6], d[7]));
    assert!(
        shown.contains("would update 'tank'") && shown.contains("logs"),
        "{shown}"
    );
    assert!(
        !shown.contains("/dev/"),
        "disks by their short names: {shown}"
    );
    server.ok(&format!(
        "zpool add tank mirror {} {} log mirror {} {} cache {} {} dedup mirror {} {}",
        d[12], d[13], d[6], d[7], d[8], d[9], d[10], d[11]
    ));
    let write = |name: &str| {
        let script = format!(
            "cd '{}' && mkdir {name} && for i in $(seq 200); do head -c $((i * 100)) /dev/urandom \
             > {name}/s$i; done && for i in 1 2 3 4; do dd if=/dev/urandom of={name}/b$i bs=1M \
             count=4 conv=fsync status=none; done",
            mountpoint.display()
        );
        run("sh", &["-c", &script]);
    };
    write("one");
    server.ok(&format!("zpool remove tank {} {}", d[4], d[8]));
    write("two");
    let status = server.ok("zpool status tank");
    for heading in ["special", "dedup", "logs", "cache", "spares"] {
        assert!(status.contains(heading), "{heading}: {status}");
    }
    assert!(
        !status.contains(d[4].trim_start_matches("/dev/")) || d[4].ends_with("loop1"),
        "{status}"
    );
    let before = server.ok("zpool get -H -o value guid tank");
    server.ok("zpool reguid tank");
    assert_ne!(server.ok("zpool get -H -o value guid tank"), before);
    let said = server.ok("zpool upgrade tank");
    // What 2.3 does not know, it does not mind as long as it is not in use.
    assert!(said.contains("block_cloning_endian"), "{said}");
    server.ok("zpool export tank");
    server.detach();
    zdb_is_clean(&server.path("disks"), "tank");

    let Some(peer) = Peer::find() else { return };
    let script = "set -e\nzpool import -d /dev/disk/peer -R /mnt tank 2>&1\n\
                  zpool scrub -w tank\nzpool status -P tank\n\
                  cd /mnt$(zfs get -H -o value mountpoint tank | sed 's,^/mnt,,')\n\
                  mkdir three && cp -a /bin/busybox three/ && \
                  (cd three && sha256sum busybox > sum)\n\
                  for i in $(seq 50); do head -c 3000 /dev/urandom > three/s$i; done\nsync\n\
                  cd /\nzpool export tank\n";
    let text = peer.run(&disks, script);
    assert!(
        text.contains("scrub repaired 0B") && text.contains("No known data errors"),
        "{text}"
    );
    for heading in ["special", "dedup", "logs", "cache", "spares"] {
        assert!(text.contains(heading), "{heading}: {text}");
    }
    assert!(
        !text.contains("UNAVAIL") && !text.contains("DEGRADED"),
        "{text}"
    );
    let search = server.attach_to_import(&disks);
    server.ok(&format!("zpool import {search} tank"));
    run(
        "sh",
        &[
            "-c",
            &format!("cd '{}/three' && sha256sum -c sum", mountpoint.display()),
        ],
    );
    write("four");
    server.ok("zpool export tank");
    server.detach();
    zdb_is_clean(&server.path("disks"), "tank");
    server.stop();
}

/// Goal: the options of `zpool create`, and what is refused, are those of OpenZFS.
#[test]
fn options_and_refusals_are_those_of_zpool() {
    if !can_mount() {
        return;
    }
    let mut server = Server::start();
    let disks = server.disks(4, 128 << 20);
    let mountpoint = server.text("mnt");
    let refused = server.fails(&format!(
        "zpool create -m {mountpoint} tank mirror {} {} {}",
        disks[0], disks[1], disks[1]
    ));
    assert!(refused.contains("given twice"), "{refused}");
    server.ok(&format!(
        "zpool create -t short -d -o comment=hello -o feature@lz4_compress=enabled -m {mountpoint} \
         tank {} log {}",
        disks[0], disks[1]
    ));
    assert_eq!(server.ok("zpool list -H -o name"), "short\n");
    assert_eq!(server.ok("zpool get -H -o value comment short"), "hello\n");
    let listed = server.ok("zpool upgrade");
    assert!(
        listed.contains("short") && listed.contains("      large_blocks"),
        "{listed}"
    );
    assert!(server.ok("zpool upgrade -v").contains("allocation_classes"));
    let refused = server.fails(&format!("zpool add -f short special {}", disks[2]));
    assert!(refused.contains("feature@allocation_classes"), "{refused}");
    let said = server.ok("zpool upgrade short");
    assert!(
        said.contains("Enabled the following features on 'short'"),
        "{said}"
    );
    server.ok(&format!("zpool add -f short special {}", disks[2]));
    let refused = server.fails(&format!("zpool labelclear -f {}", disks[0]));
    assert!(
        refused.contains("is a member (ACTIVE) of pool \"short\""),
        "{refused}"
    );
    server.ok("zpool export short");
    let refused = server.fails(&format!("zpool create -m {mountpoint} other {}", disks[0]));
    assert!(
        refused.contains("use '-f' to override the following errors:")
            && refused.contains("is part of exported pool 'tank'"),
        "{refused}"
    );
    zdb_is_clean(&server.path("disks"), "tank");

    // Without its log device.
    std::fs::rename(&disks[1], server.path("away")).expect("the log goes");
    let search = server.text("disks");
    let refused = server.fails(&format!("zpool import -d {search} tank"));
    assert!(
        refused.contains("The devices below are missing or corrupted, use '-m'"),
        "{refused}"
    );
    server.ok(&format!("zpool import -m -d {search} tank"));
    let status = server.ok("zpool status tank");
    assert!(
        status.contains("DEGRADED") && status.contains("UNAVAIL"),
        "{status}"
    );
    server.ok(&format!("zpool remove tank {}", disks[1]));
    assert_eq!(server.ok("zpool list -H -o health tank"), "ONLINE\n");
    server.ok("zpool destroy -f tank");
    assert!(
        server
            .fails(&format!("zpool import -d {search} tank"))
            .contains("no such pool")
    );
    server.ok(&format!("zpool import -D -f -d {search} tank"));
    server.ok("zpool export tank");
    zdb_is_clean(&server.path("disks"), "tank");

    let refused = server.fails(&format!("zpool labelclear {}", disks[0]));
    assert!(
        refused.contains("is a member of exported pool 'tank'"),
        "{refused}"
    );
    server.ok(&format!("zpool labelclear -f {}", disks[0]));
    let refused = server.fails(&format!("zpool labelclear -f {}", disks[0]));
    assert!(refused.contains("failed to read label"), "{refused}");
    server.ok(&format!("zpool create -m {mountpoint} other {}", disks[0]));
    server.ok("zpool destroy other");
    server.stop();
}
