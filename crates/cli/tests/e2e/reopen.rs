//! Goal: pools change with their devices while they are in use: grow, lose and find devices again,
//! and become two. zdb and the real OpenZFS agree.

use std::fs::File;
use std::path::Path;

use crate::harness::{Peer, Server, can_mount, need, run, zdb_is_clean};

const BEFORE_BYTES: u64 = 128 << 20;
const AFTER_BYTES: u64 = 448 << 20;

fn size(server: &Server, pool: &str) -> u64 {
    let text = server.ok(&format!("zpool get -Hpo value size {pool}"));
    text.trim().parse().expect("a number")
}

fn grow(disk: &str) {
    let file = File::options().write(true).open(disk);
    file.and_then(|file| file.set_len(AFTER_BYTES))
        .expect("grown");
}

/// `online -e`, `reopen` and the property make a pool larger at once, and what is written then is
/// there after an import.
#[test]
fn a_pool_in_use_grows_with_its_devices() {
    if !can_mount() {
        return;
    }
    let server = Server::start();
    let disks = server.disks(5, BEFORE_BYTES);
    let at = server.text("mnt");
    server.ok(&format!(
        "zpool create -O compression=off -m {at} tank mirror {} {}",
        disks[0], disks[1]
    ));
    server.ok(&format!(
        "zpool create -O compression=off -m {at}2 wide raidz1 {} {} {}",
        disks[2], disks[3], disks[4]
    ));
    let before = (size(&server, "tank"), size(&server, "wide"));
    grow(&disks[0]);
    server.ok(&format!("zpool online -e tank {}", disks[0]));
    assert_eq!(
        size(&server, "tank"),
        before.0,
        "the other one is as small as it was"
    );
    grow(&disks[1]);
    server.ok("zpool reopen tank");
    assert_eq!(size(&server, "tank"), before.0, "nobody asked for it");
    server.ok(&format!("zpool online -e tank {}", disks[1]));
    assert!(size(&server, "tank") > 3 * before.0);
    disks[2..].iter().for_each(|disk| grow(disk));
    server.ok("zpool set autoexpand=on wide");
    assert_eq!(size(&server, "wide"), before.1, "nobody has looked at them");
    server.ok("zpool reopen");
    assert!(size(&server, "wide") > 3 * before.1);
    let history = server.ok("zpool history -i wide");
    assert!(
        history.contains("vdev online") && history.contains("(+"),
        "{history}"
    );
    for mnt in [at.clone(), format!("{at}2")] {
        let script =
            format!("cd '{mnt}' && head -c 200M /dev/urandom > big && sync && sha256sum big > sum");
        run("sh", &["-c", &script]);
    }
    for name in ["tank", "wide"] {
        let grown = size(&server, name);
        server.ok(&format!("zpool export {name}"));
        let directory = server.path("disks");
        zdb_is_clean(&directory, name);
        server.ok(&format!("zpool import -d {} {name}", directory.display()));
        assert_eq!(size(&server, name), grown);
        server.ok(&format!("zpool scrub -w {name}"));
        let status = server.ok(&format!("zpool status {name}"));
        assert!(status.contains("with 0 errors"), "{status}");
    }
    for mnt in [at.clone(), format!("{at}2")] {
        run("sh", &["-c", &format!("cd '{mnt}' && sha256sum -c sum")]);
    }
}

/// A device that is gone is found out by `zpool reopen`, and found again.
#[test]
fn a_device_is_looked_at_again() {
    if !can_mount() {
        return;
    }
    let server = Server::start();
    let disks = server.disks(2, BEFORE_BYTES);
    let at = server.text("mnt");
    server.ok(&format!(
        "zpool create -m {at} tank mirror {} {}",
        disks[0], disks[1]
    ));
    let away = format!("{}.away", disks[1]);
    std::fs::rename(&disks[1], &away).expect("moved");
    server.ok("zpool reopen -n tank");
    let status = server.ok("zpool status tank");
    assert!(
        status.contains("UNAVAIL") && status.contains("DEGRADED"),
        "{status}"
    );
    std::fs::write(server.path("mnt").join("missed"), vec![7; 5 << 20]).expect("a file");
    server.ok("zpool sync tank");
    std::fs::rename(&away, &disks[1]).expect("moved");
    // Another device does not bring it back.
    server.ok("zpool clear tank");
    server.ok("zpool reopen tank");
    server.ok("zpool wait -t resilver tank");
    let status = server.ok("zpool status tank");
    assert!(
        status.contains(" state: ONLINE") && status.contains("with 0 errors"),
        "{status}"
    );
    server.ok("zpool resilver tank");
    server.ok("zpool export tank");
    zdb_is_clean(&server.path("disks"), "tank");
}

/// One device of each mirror becomes a pool of its own; log devices stay behind.
#[test]
fn a_pool_is_split() {
    if !can_mount() || !need("loop devices", Path::new("/dev/loop-control").exists()) {
        return;
    }
    let mut server = Server::start();
    let disks = server.disks(5, BEFORE_BYTES);
    let d = server.attach(&disks);
    let at = server.text("mnt");
    server.ok(&format!(
        "zpool create -m {at} tank mirror {} {} mirror {} {} log {}",
        d[0], d[1], d[2], d[3], d[4]
    ));
    let script =
        format!("cd '{at}' && head -c 20M /dev/urandom > big && sync && sha256sum big > sum");
    run("sh", &["-c", &script]);
    let plan = server.ok(&format!("zpool split -n -P tank half {}", d[2]));
    let expected = format!(
        "would create 'half' with the following layout:\n\n\thalf\n\t  {}\n\t  {}\n",
        d[1], d[2]
    );
    assert_eq!(plan, expected);
    let twice = server.fails(&format!("zpool split tank half {} {}", d[2], d[3]));
    assert!(
        twice.contains("at most one disk from each mirror"),
        "{twice}"
    );
    server.ok(&format!("zpool split -o comment=second tank half {}", d[2]));
    let status = server.ok("zpool status -P tank");
    assert!(
        !status.contains("mirror-") && status.contains("No known data"),
        "{status}"
    );
    let root = server.text("root");
    server.ok(&format!(
        "zpool import -d {} -d {} -R {root} half",
        d[1], d[2]
    ));
    assert_eq!(server.ok("zpool get -Ho value comment half"), "second\n");
    run(
        "sh",
        &[
            "-c",
            &format!("cd '{root}{at}' && sha256sum -c sum && echo new > new"),
        ],
    );
    run(
        "sh",
        &[
            "-c",
            &format!("cd '{at}' && sha256sum -c sum && echo old > old"),
        ],
    );
    for name in ["tank", "half"] {
        server.ok(&format!("zpool scrub -w {name}"));
        let status = server.ok(&format!("zpool status {name}"));
        assert!(status.contains("with 0 errors"), "{status}");
        server.ok(&format!("zpool export {name}"));
    }
    server.detach();
    for name in ["tank", "half"] {
        zdb_is_clean(&server.path("disks"), name);
    }
    let Some(peer) = Peer::find() else { return };
    let script: String = ["tank", "half"]
        .iter()
        .map(|name| {
            format!(
                "zpool import -d /dev/disk/peer -R /mnt {name} 2>&1\nzpool scrub -w {name}\n\
                 zpool status {name}\nzpool export {name}\n"
            )
        })
        .collect();
    let text = peer.run(&disks, &format!("set -e\n{script}"));
    assert_eq!(text.matches("with 0 errors").count(), 2, "{text}");
}
