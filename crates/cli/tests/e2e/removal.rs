//! Removing vdevs with data by the command line: what it says before, meanwhile and after.

use crate::harness::{Server, zdb_is_clean};

/// Goal: `zpool remove` with its options says what OpenZFS's does. Method: two files; what it would
/// cost, the removal, waiting, and what is refused.
#[test]
fn a_vdev_with_data_is_removed_by_the_command_line() {
    let server = Server::start();
    let disks = server.disks(2, 256 << 20);
    let (kept, gone) = (&disks[0], &disks[1]);
    server.ok(&format!("zpool create -m none tank {kept} {gone}"));
    server.ok("zfs create -o mountpoint=none tank/one");
    let text = server.ok(&format!("zpool remove -n tank {gone}"));
    let wanted = format!("Memory that will be used after removing {gone}: ");
    assert!(text.starts_with(&wanted), "{text}");
    let text = server.ok(&format!("zpool remove -np tank {gone}"));
    let bytes = text.trim_end().strip_prefix(&format!("{gone} "));
    let bytes: u64 = bytes.expect("a size").parse().expect("a number");
    assert!(bytes > 0 && bytes.is_multiple_of(24), "{text}");
    let text = server.fails("zpool remove -s tank");
    assert!(text.contains("no vdev is being removed"), "{text}");
    server.ok(&format!("zpool remove -w tank {gone}"));
    server.ok("zpool wait -t remove tank");
    let text = server.ok("zpool status tank");
    let mut lines = text.lines();
    let found = lines.any(|line| {
        line.starts_with("remove: Removal of vdev 1 copied ") && line.contains("completed on")
    });
    assert!(found, "{text}");
    assert!(
        text.contains("memory used for removed device mappings"),
        "{text}"
    );
    assert!(!text.contains(gone.as_str()), "{text}");
    let text = server.fails(&format!("zpool remove tank {kept}"));
    assert!(text.contains("out of space"), "{text}");
    // The device is free for any pool.
    server.ok(&format!("zpool create -m none other {gone}"));
    server.ok("zpool export other");
    server.ok("zpool export tank");
    let directory = std::path::Path::new(kept).parent().expect("a directory");
    zdb_is_clean(directory, "tank");
}

/// What cannot be removed is refused with OpenZFS's words, and what is named wrongly with a hint.
#[test]
fn what_cannot_be_removed_is_refused_with_why() {
    let server = Server::start();
    let disks = server.disks(5, 256 << 20);
    server.ok(&format!(
        "zpool create -m none rz raidz1 {} {} {}",
        disks[0], disks[1], disks[2]
    ));
    let text = server.fails("zpool remove rz raidz1-0");
    let words =
        "invalid config; all top-level vdevs must have the same sector size and not be raidz.";
    assert!(text.contains(words), "{text}");
    let text = server.fails(&format!("zpool remove rz {}", disks[0]));
    assert!(text.contains("only whole vdevs"), "{text}");
    server.ok(&format!(
        "zpool create -m none tank {} {}",
        disks[3], disks[4]
    ));
    server.ok("zpool checkpoint tank");
    let text = server.fails(&format!("zpool remove tank {}", disks[4]));
    assert!(text.contains("checkpoint"), "{text}");
    server.ok("zpool checkpoint -d -w tank");
    server.ok(&format!("zpool remove -w tank {}", disks[4]));
    server.ok("zpool export -a");
}
