//! What `zpool status` says of pools that are not quite as they should be.

use crate::harness::{Server, can_mount};

/// Goal: a device that comes back without what was written while it was away is not passed off as
/// healthy. Method: one side of a mirror is hidden for an import, and what is read afterwards is
/// the new data.
#[test]
fn a_device_that_comes_back_lacks_data_and_status_says_so() {
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

    let says = |status: &str| {
        for part in [
            " state: ONLINE",
            "status: One or more devices lack data that was written while they were away.",
            "redundancy is reduced until",
            "action: Export the pool and import it with OpenZFS",
        ] {
            assert!(status.contains(part), "'{part}' is not in:\n{status}");
        }
        let marked = |line: &&str| line.contains("(awaiting resilver)");
        let lines: Vec<&str> = status.lines().filter(marked).collect();
        assert!(
            matches!(&lines[..], [line] if line.contains(away.as_str()) && line.contains("ONLINE")),
            "{status}"
        );
    };
    says(&server.ok("zpool status tank"));
    says(&server.ok("zpool status -x"));
    says(&server.ok("zpool status -e tank"));
    let json = server.ok("zpool status -j tank");
    assert_eq!(json.matches(r#""resilver_deferred""#).count(), 1, "{json}");
    assert!(json.contains("lack data"), "{json}");
    // Also after the next import, and what is read is what was written.
    server.ok("zpool export tank");
    server.ok(&format!("zpool import -d {directory} tank"));
    says(&server.ok("zpool status tank"));
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
