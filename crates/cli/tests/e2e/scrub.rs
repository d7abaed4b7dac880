//! Goal: a damaged file is named, by its path and nothing else with it. Method: files with content that can be found on the
//! disk, of which some is overwritten there; then the pool imported read-only, and scrubbed.

use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::harness::{Server, can_mount};

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
    let refused = server.fails("zpool scrub tank");
    assert!(refused.contains("readonly=on"), "{refused}");
}
