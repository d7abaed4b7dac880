//! What `zpool status` says of pools that are not quite as they should be.

use crate::harness::{Server, can_mount};

/// Goal: a device that comes back without what was written while it was away is resilvered by
/// itself. Method: one side of a mirror is hidden for an import, and after the next one the other
/// side; what is read then is the new data.
#[test]
fn a_device_that_comes_back_is_resilvered() {
    if !can_mount() {
        return;
    }
    let server = Server::start();
    let disks = server.disks(2, 64 << 20);
    let (root, directory) = (server.path("mnt"), server.text("disks"));
    let (away, hidden) = (&disks[1], server.path("hidden"));
    server.ok(&format!(
        "zpool create -m {} tank mirror {} {away}",
        root.display(),
        disks[0]
    ));
    assert!(server.ok("zpool status -x").contains("healthy"));
    server.ok("zpool export tank");
    std::fs::rename(away, &hidden).expect("the device is hidden");
    server.ok(&format!("zpool import -d {directory} tank"));
    std::fs::write(root.join("new"), "while it was away").expect("a file");
    server.ok("zpool export tank");
    std::fs::rename(&hidden, away).expect("the device is back");
    server.ok(&format!("zpool import -d {directory} tank"));

    // What it missed it is given without being asked.
    server.ok("zpool wait -t resilver tank");
    let status = server.ok("zpool status tank");
    for part in [" state: ONLINE", "scan: resilvered ", "with 0 errors"] {
        assert!(status.contains(part), "'{part}' is not in:\n{status}");
    }
    assert!(!status.contains("resilver)"), "{status}");
    assert!(server.ok("zpool status -x").contains("healthy"));
    // So it can do without the other one.
    server.ok("zpool export tank");
    std::fs::rename(&disks[0], &hidden).expect("the other device is hidden");
    server.ok(&format!("zpool import -d {directory} tank"));
    let read = std::fs::read_to_string(root.join("new"));
    assert_eq!(read.expect("the file"), "while it was away");
    server.ok("zpool destroy tank");
}

/// Goal: features are missing or too many only with regard to what the property `compatibility`
/// requests.
#[test]
fn features_are_judged_by_the_compatibility_that_is_asked_for() {
    let server = Server::start();
    let disk = &server.disks(1, 64 << 20)[0];
    let missing = "Some supported and requested features are not enabled";
    let superfluous = "despite not being\n\trequested by the 'compatibility' property";
    server.ok(&format!(
        "zpool create -o compatibility=legacy -m none tank {disk}"
    ));
    let status = server.ok("zpool status tank");
    assert!(!status.contains("status:"), "{status}");
    server.ok("zpool set compatibility=off tank");
    let status = server.ok("zpool status tank");
    assert!(status.contains(missing), "{status}");
    server.ok("zpool set feature@lz4_compress=enabled tank");
    server.ok("zpool set compatibility=legacy tank");
    let status = server.ok("zpool status tank");
    assert!(status.contains(superfluous), "{status}");
    assert!(server.ok("zpool status -x tank").contains("is healthy"));
    server.ok("zpool destroy tank");
}
