//! Goal: a damaged file is named, by its path and nothing else with it. Method: files with content
//! that can be found on the disk, of which some is overwritten there; then the pool imported
//! read-only, and scrubbed.

use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::harness::{Peer, Server, can_mount, is_long, zdb_is_clean};

/// 256 KiB of text that says which file it belongs to, no part like another.
fn content(name: &str) -> Vec<u8> {
    let lines = (0..).flat_map(|line| format!("line {line} of {name}\n").into_bytes());
    lines.take(256 << 10).collect()
}

/// Destroys the second record of a file on the disk; how often it was there.
fn destroy(disk: &str, name: &str) -> usize {
    let image = std::fs::read(disk).expect("the disk");
    let content = content(name);
    // Blocks begin at sectors.
    let needle = &content[128 << 10..132 << 10];
    let places: Vec<usize> = (0..image.len() - needle.len())
        .step_by(4096)
        .filter(|at| &image[*at..*at + needle.len()] == needle)
        .collect();
    let file = std::fs::File::options()
        .write(true)
        .open(disk)
        .expect("open");
    for at in &places {
        file.write_all_at(b"noise", *at as u64 + 100)
            .expect("write");
    }
    places.len()
}

#[test]
fn a_damaged_file_is_named() {
    if !can_mount() {
        return;
    }
    let server = Server::start();
    let disks = server.disks(2, 128 << 20);
    let (mount, disk) = (server.text("mount"), server.text("disks"));
    server.ok(&format!(
        "zpool create -o ashift=12 -O compression=off -m {mount} tank mirror {} {}",
        disks[0], disks[1]
    ));
    server.ok("zfs create tank/home");
    let write = |path: &str, name: &str| {
        let path = Path::new(&mount).join(path);
        std::fs::create_dir_all(path.parent().expect("a directory")).expect("directories");
        std::fs::write(path, content(name)).expect("write");
    };
    write("home/deep/er/lost", "lost");
    write("home/deep/er/kept", "kept");
    write("home/snapped", "snapped");
    write("half", "half");
    server.ok("zfs snapshot tank/home@monday");
    std::fs::remove_file(Path::new(&mount).join("home/snapped")).expect("remove");
    // After the snapshot, so that it is the head's.
    write("home/deep/later", "later");
    server.ok("zpool export tank");

    server.ok(&format!("zpool import -o readonly=on -d {disk} tank"));
    server.ok("zpool scrub -w tank");
    let status = server.ok("zpool status -v tank");
    assert!(status.contains("scrub repaired 0B in 00:00:0"), "{status}");
    assert!(status.contains(" with 0 errors on "), "{status}");
    assert!(status.contains("verify only"), "{status}");
    assert!(status.contains("errors: No known data errors"), "{status}");
    server.ok("zpool export tank");

    for file in ["later", "snapped", "lost"] {
        assert_eq!(destroy(&disks[0], file), 1, "{file}");
        assert_eq!(destroy(&disks[1], file), 1, "{file}");
    }
    assert_eq!(destroy(&disks[1], "half"), 1);
    server.ok(&format!("zpool import -o readonly=on -N -d {disk} tank"));
    server.ok("zpool scrub tank");
    server.ok("zpool wait -t scrub tank");
    let brief = server.ok("zpool status tank");
    assert!(
        brief.contains("errors: 3 data errors, use '-v' for a list"),
        "{brief}"
    );
    let status = server.ok("zpool status -v tank");
    assert!(status.contains(" with 3 errors on "), "{status}");
    let files: Vec<&str> = status
        .split("following files:")
        .nth(1)
        .expect("a list")
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty())
        .collect();
    // The snapshot and the live filesystem share a lost block.
    assert_eq!(files.len(), 4, "{status}");
    for name in ["tank/home@monday", "tank/home"] {
        let path = format!("{name}:/deep/er/lost");
        assert!(files.contains(&path.as_str()), "{status}");
    }
    assert!(files.contains(&"tank/home:/deep/later"), "{status}");
    assert!(files.contains(&"tank/home@monday:/snapped"), "{status}");
    let refused = server.fails("zpool scrub -s tank");
    assert!(refused.contains("there is no active scrub"), "{refused}");
    server.ok("zpool export tank");

    // Mounted, files are named as their users know them.
    server.ok(&format!("zpool import -o readonly=on -d {disk} tank"));
    server.ok("zpool scrub -w tank");
    let status = server.ok("zpool status -v tank");
    assert!(
        status.contains(&format!(" {mount}/home/deep/later\n")),
        "{status}"
    );
    server.ok("zpool export tank");
    server.ok(&format!("zpool import -d {disk} tank"));
    server.ok("zpool scrub -w tank");
    let status = server.ok("zpool status -v tank");
    assert!(
        status.contains(&format!(" {mount}/home/deep/later\n")),
        "{status}"
    );
}

/// What `zpool status -v` lists.
fn listed(server: &Server) -> Vec<String> {
    let status = server.ok("zpool status -v tank");
    let list = status.split("following files:").nth(1).unwrap_or_default();
    let lines = list.lines().map(|line| line.trim().to_owned());
    lines.filter(|line| !line.is_empty()).collect()
}

/// Goal: what was found damaged is on record across imports, named as OpenZFS names it, until
/// nobody has it any more. Method: files that are read where they are damaged.
#[test]
fn damaged_files_stay_on_record() {
    if !can_mount() {
        return;
    }
    let server = Server::start();
    let disks = server.disks(1, 128 << 20);
    let (mount, disk) = (server.text("mount"), server.text("disks"));
    server.ok(&format!(
        "zpool create -o ashift=12 -O compression=off -m {mount} tank {}",
        disks[0]
    ));
    server.ok("zfs create tank/home");
    let home = Path::new(&mount).join("home");
    std::fs::create_dir(home.join("deep")).expect("a directory");
    std::fs::write(home.join("deep/lost"), content("lost")).expect("write");
    std::fs::write(home.join("deep/kept"), content("kept")).expect("write");
    server.ok("zfs snapshot tank/home@monday");
    server.ok("zpool export tank");
    assert_eq!(destroy(&disks[0], "lost"), 1);
    server.ok(&format!("zpool import -d {disk} tank"));
    std::fs::read(home.join("deep/kept")).expect("it is well");
    std::fs::read(home.join("deep/lost")).expect_err("it is damaged");
    assert!(
        server
            .ok("zpool status tank")
            .contains("errors: 1 data errors, use '-v' for a list"),
    );
    let both = [
        format!("{mount}/home/deep/lost"),
        "tank/home@monday:/deep/lost".to_owned(),
    ];
    assert_eq!(listed(&server), both);
    server.ok("zpool export tank");

    server.ok(&format!("zpool import -N -d {disk} tank"));
    let both = ["tank/home:/deep/lost", "tank/home@monday:/deep/lost"];
    assert_eq!(listed(&server), both);
    server.ok("zpool clear tank");
    assert_eq!(listed(&server), both);
    let json = server.ok("zpool status -v -j tank");
    let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!(json["pools"]["tank"]["error_count"], "1");
    assert_eq!(json["pools"]["tank"]["errlist"], serde_json::json!(both));

    server.ok("zfs mount -a");
    server.ok("zfs destroy tank/home@monday");
    // Deleted, but open: it has no name any more.
    let open = std::fs::File::open(home.join("deep/lost")).expect("open");
    std::fs::remove_file(home.join("deep/lost")).expect("remove");
    server.ok("zpool sync tank");
    let names = listed(&server);
    assert!(
        names.len() == 1 && names[0].starts_with("tank/home:<0x"),
        "{names:?}"
    );
    drop(open);
    server.wait_until("it is freed", || {
        server.ok("zpool sync tank");
        listed(&server).is_empty()
    });
    server.ok("zpool sync tank");
    assert!(
        server
            .ok("zpool status -v tank")
            .contains("errors: No known data errors")
    );
    server.ok("zpool export tank");
    zdb_is_clean(Path::new(&disk), "tank");
}

/// Goal: OpenZFS names what we found, and we name what it found, in both forms of the log; and what
/// it initialized is told here. Method: a pool with feature `head_errlog` and one without; OpenZFS
/// scrubs, which replaces the logs.
#[test]
fn openzfs_and_we_read_each_others_error_logs() {
    // A visit of its own, as its pools are damaged: with `MILLPOND_LONG=1` only.
    if !is_long() || !can_mount() {
        return;
    }
    let Some(peer) = Peer::find() else { return };
    let mut server = Server::start();
    let disks = server.disks(2, 128 << 20);
    let mount = server.text("mount");
    let pools = [("new", "enabled"), ("old", "disabled")];
    let read = |pool: &str| std::fs::read(format!("{mount}/{pool}/home/deep/lost"));
    for ((pool, feature), disk) in pools.iter().zip(&disks) {
        // OpenZFS opens disks as such only where they were disks.
        let disk = std::slice::from_ref(disk);
        let device = server.attach(disk).remove(0);
        server.ok(&format!(
            "zpool create -o ashift=12 -o feature@head_errlog={feature} -O compression=off -R \
             {mount}/{pool} -m / {pool} {device}"
        ));
        server.ok(&format!("zfs create {pool}/home"));
        let directory = format!("{mount}/{pool}/home/deep");
        std::fs::create_dir(&directory).expect("a directory");
        std::fs::write(format!("{directory}/lost"), content(pool)).expect("write");
        // OpenZFS looks in snapshots of later txgs only (check_filesystem).
        server.ok(&format!("zpool sync {pool}"));
        server.ok(&format!("zfs snapshot {pool}/home@monday"));
        server.ok(&format!("zpool export {pool}"));
        server.detach();
        assert_eq!(destroy(&disk[0], pool), 1);
        let search = server.attach_to_import(disk);
        server.ok(&format!("zpool import -R {mount}/{pool} {search} {pool}"));
        read(pool).expect_err("it is damaged");
        server.ok(&format!("zpool export {pool}"));
        server.detach();
    }
    let script = "set -eu\nlist() { zpool status -v $1 | sed -n '/following files/,$p'; }\n\
        for p in new old; do zpool import -N -d /dev/disk/peer $p; echo BEFORE $p; list $p; done\n\
        for p in new old; do zpool scrub -w $p; echo AFTER $p; list $p; \
        zpool initialize -w $p; zpool export $p; done\necho END\n";
    let text = peer.run(&disks, script).replace('\r', "");
    let part = |from: &str, to: &str| -> Vec<String> {
        let rest = text.split_once(&format!("{from}\n")).expect(from).1;
        let part = rest.split_once(&format!("{to}\n")).expect(to).0;
        let lines = part.lines().map(|line| line.trim().to_owned());
        lines.filter(|line| line.contains(":/")).collect()
    };
    let both = ["new/home:/deep/lost", "new/home@monday:/deep/lost"];
    let mut found = part("BEFORE new", "BEFORE old");
    found.sort();
    assert_eq!(found, both, "{text}");
    // Without the feature it is told where it was found: here in the live dataset, by a scrub in
    // the oldest snapshot.
    assert_eq!(part("BEFORE old", "AFTER new"), ["old/home:/deep/lost"]);
    let mut found = part("AFTER new", "AFTER old");
    found.sort();
    assert_eq!(found, both, "{text}");
    let found = part("AFTER old", "END");
    assert_eq!(found, ["old/home@monday:/deep/lost"], "{text}");

    let search = server.attach_to_import(&disks);
    for (pool, _) in pools {
        server.ok(&format!("zpool import -N {search} {pool}"));
    }
    for (pool, expected) in [
        ("new", &both[..]),
        ("old", &["old/home@monday:/deep/lost"][..]),
    ] {
        let status = server.ok(&format!("zpool status -v -i {pool}"));
        let list = status.split("following files:").nth(1).expect("a list");
        let list: Vec<&str> = list.split_whitespace().collect();
        assert_eq!(list, expected, "{status}");
        assert!(
            status.contains("  (100% initialized, completed at "),
            "{status}"
        );
        server.ok(&format!("zpool export {pool}"));
    }
    server.detach();
}
