//! Every layout through its whole life: a real tree copied in, changed, snapshotted, rolled back, the
//! pool filled and emptied; then zdb, then the real OpenZFS, then back here.

use std::path::Path;

use crate::harness::{Peer, Server, can_mount, is_long, need, run, zdb_is_clean};

/// What is copied: a part of the system; in the long run `MILLPOND_TREE`, or all of `/usr` (over a gigabyte, over
/// 50,000 files).
fn source() -> String {
    if is_long() {
        std::env::var("MILLPOND_TREE").unwrap_or_else(|_| "/usr".to_owned())
    } else {
        "/usr/include".to_owned()
    }
}

fn same_tree(left: &Path, right: &Path) {
    run(
        "diff",
        &[
            "-r",
            "--no-dereference",
            &left.to_string_lossy(),
            &right.to_string_lossy(),
        ],
    );
}

fn sums(root: &Path) -> String {
    let script = format!(
        "cd '{}' && find . -path ./from-peer -prune -o -type f -print0 | LC_ALL=C sort -z | xargs -0 -r sha256sum",
        root.display()
    );
    run("sh", &["-c", &script])
}

/// How many disks of a layout hold data, as far as space goes.
fn data_disks(words: &str) -> u64 {
    let disks = words.split(' ').filter(|word| *word == "D").count() as u64;
    match words.split(' ').next() {
        Some("mirror") => 1,
        Some(raidz) if raidz.starts_with("raidz") => disks - u64::from(raidz.as_bytes()[5] - b'0'),
        _ => disks,
    }
}

fn live(words: &str, disk_count: usize, ashift: u32, extra: &str) {
    if !can_mount() || !need("diff of diffutils", Path::new("/usr/bin/diff").exists()) {
        return;
    }
    let mut server = Server::start();
    let bytes = if is_long() {
        (9 << 30) / data_disks(words)
    } else {
        384 << 20
    };
    let disks = server.disks(disk_count, bytes);
    if !need("loop devices", Path::new("/dev/loop-control").exists()) {
        return;
    }
    let devices = server.attach(&disks);
    let mut next = devices.iter();
    let vdevs: Vec<String> = words
        .split(' ')
        .map(|word| {
            if word == "D" {
                next.next().expect("enough disks").clone()
            } else {
                word.to_owned()
            }
        })
        .collect();
    let mountpoint = server.path("mnt");
    server.ok(&format!(
        "zpool create -o ashift={ashift} {extra} -m {} tank {}",
        mountpoint.display(),
        vdevs.join(" ")
    ));
    server.ok("zfs create tank/tree");
    let tree = mountpoint.join("tree");
    let inside = tree.join("copy");
    run("cp", &["-a", &source(), &inside.to_string_lossy()]);
    same_tree(Path::new(&source()), &inside);
    server.ok("zfs snapshot tank/tree@full");

    // Change and delete a part, then return to the snapshot.
    let script = format!(
        "cd '{}' && find . -type f | LC_ALL=C sort | awk 'NR%3==0' | tr '\\n' '\\0' | xargs -0 -r rm -f && find . -type f | LC_ALL=C sort | awk 'NR%5==0' | while read -r f; do echo changed >> \"$f\"; done",
        inside.display()
    );
    run("sh", &["-c", &script]);
    server.ok("zfs snapshot tank/tree@less");
    server.ok("zfs rollback -r tank/tree@full");
    same_tree(Path::new(&source()), &inside);

    // The same changes again, to stay.
    run("sh", &["-c", &script]);
    server.ok("zfs destroy tank/tree@full");

    // Fill the pool; it says so, and can be emptied again.
    server.ok("zfs create -o compression=off tank/fill");
    let full = std::process::Command::new("dd")
        .args([
            "if=/dev/urandom",
            &format!("of={}", mountpoint.join("fill/big").display()),
            "bs=1M",
        ])
        .output()
        .expect("dd runs");
    assert!(!full.status.success(), "a full pool takes everything");
    assert!(
        String::from_utf8_lossy(&full.stderr).contains("No space left"),
        "{}",
        String::from_utf8_lossy(&full.stderr)
    );
    std::fs::remove_file(mountpoint.join("fill/big"))
        .expect("a file can be removed from a full pool");
    server.ok("zfs destroy tank/fill");
    std::fs::write(mountpoint.join("after"), "room again").expect("there is room again");
    let expected = sums(&mountpoint);
    server.ok("zpool export tank");
    server.detach();
    zdb_is_clean(&server.path("disks"), "tank");

    // The real OpenZFS takes it, finds nothing wrong, writes to it, gives it back.
    let Some(peer) = Peer::find() else { return };
    let out = server.path("out");
    let script = "set -e\nzpool import -d /dev/disk/peer -R /mnt tank 2>&1\nzpool scrub -w tank\nzpool status tank\n\
                  cd /mnt && p=$(zfs get -H -o value mountpoint tank) && cd \"$p\" && mkdir -p /peer/out\n\
                  find . -type f -print0 | LC_ALL=C sort -z | xargs -0 -r sha256sum > /peer/out/sums\n\
                  mkdir from-peer && cp -a /bin/busybox from-peer/ && (cd from-peer && sha256sum busybox > sum) && cd /\nzpool export tank\n";
    let text = peer.run(&disks, &["-o", &out.to_string_lossy()], script);
    assert!(
        text.contains("scrub repaired 0B")
            && text.contains("with 0 errors")
            && text.contains("No known data errors"),
        "{text}"
    );
    assert_eq!(
        std::fs::read_to_string(out.join("sums")).expect("the peer's sums"),
        expected,
        "the peer sees other contents"
    );
    drop(peer);
    let search = server.attach_to_import(&disks);
    server.ok(&format!("zpool import {search} tank"));
    assert_eq!(sums(&mountpoint), expected);
    run(
        "sh",
        &[
            "-c",
            &format!(
                "cd '{}/from-peer' && sha256sum -c sum",
                mountpoint.display()
            ),
        ],
    );
    server.ok("zpool export tank");
    server.detach();
    zdb_is_clean(&server.path("disks"), "tank");
    server.stop();
}

#[test]
fn a_single_disk() {
    live("D", 1, 9, "");
}

#[test]
fn a_stripe_of_disks() {
    live("D D", 2, 12, "-O compression=zstd");
}

#[test]
fn a_mirror() {
    live("mirror D D", 2, 12, "-O checksum=sha256");
}

#[test]
fn a_raidz1() {
    live("raidz1 D D D", 3, 9, "-O recordsize=16K");
}

#[test]
fn a_raidz2() {
    live("raidz2 D D D D D", 5, 12, "-O compression=gzip");
}

#[test]
fn a_raidz3() {
    live(
        "raidz3 D D D D D D",
        6,
        13,
        "-O recordsize=1M -O compression=off",
    );
}
