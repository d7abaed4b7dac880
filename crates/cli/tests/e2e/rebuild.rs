//! Devices that are rebuilt sequentially by the command lines.

use crate::harness::{Server, can_mount, run, zdb_is_clean};

/// Goal: `zpool attach -s` and `replace -s` do what OpenZFS's do, and are refused and told of in
/// its words.
#[test]
fn devices_are_rebuilt_sequentially() {
    if !can_mount() {
        return;
    }
    let mut server = Server::start();
    let d = server.disks(6, 128 << 20);
    let mountpoint = server.text("mnt");
    server.ok(&format!("zpool create -m {mountpoint} tank {}", d[0]));
    let script = format!("dd if=/dev/urandom of={mountpoint}/data bs=1M count=24 status=none");
    run("sh", &["-c", &script]);
    let sum = || run("sha256sum", &[&format!("{mountpoint}/data")]);
    let before = sum();
    let feature = || server.ok("zpool get -H -o value feature@device_rebuild tank");
    assert_eq!(feature().trim(), "enabled");
    server.ok(&format!("zpool attach -s -w tank {} {}", d[0], d[1]));
    server.ok("zpool wait -t resilver,scrub tank");
    let status = server.ok("zpool status tank");
    let rebuilt = status
        .lines()
        .find(|line| line.contains("scan: resilvered (mirror-0) "));
    let rebuilt = rebuilt.unwrap_or_else(|| panic!("{status}"));
    assert!(rebuilt.contains(" with 0 errors on "), "{rebuilt}");
    assert!(status.contains("scan: scrub repaired 0B in "), "{status}");
    assert!(!status.contains("(resilvering)"), "{status}");
    assert_eq!(feature().trim(), "enabled");
    server.ok(&format!("zpool replace -s tank {} {}", d[0], d[2]));
    server.ok("zpool wait -t resilver,replace,scrub tank");
    let status = server.ok("zpool status -P tank");
    assert!(
        !status.contains(&d[0]) && status.contains(&d[2]),
        "{status}"
    );
    let json: serde_json::Value =
        serde_json::from_str(&server.ok("zpool status -j --json-int tank")).expect("JSON");
    let stats = &json["pools"]["tank"]["scan_stats"];
    assert_eq!(stats["function"], "SCRUB", "{stats}");
    let rebuild = &stats["rebuild_stats"]["mirror-0"];
    assert_eq!(rebuild["state"], "COMPLETE", "{stats}");
    assert_eq!(rebuild["errors"], 0, "{stats}");
    assert!(rebuild["rebuilt"].as_u64() > Some(20 << 20), "{stats}");
    let events = server.ok("zpool events -v");
    assert!(
        events.contains("resilver_type = \"sequential\""),
        "{events}"
    );
    let history = server.ok("zpool history -i tank");
    for words in ["rebuild vdev_id=0 vdev_guid=", " started", " complete"] {
        assert!(history.contains(words), "{words}: {history}");
    }
    assert_eq!(sum(), before);
    // Without known errors there is nothing to scrub.
    server.ok("zpool scrub -e tank");
    assert!(!server.ok("zpool status tank").contains("error scrub"));
    let refused = server.fails("zpool scrub -e -p tank");
    assert!(
        refused.contains("-e and -p are mutually exclusive"),
        "{refused}"
    );
    server.ok("zpool export tank");
    zdb_is_clean(&server.path("disks"), "tank");

    let (raidz, new) = (&d[3..6], &d[0]);
    let raidz = raidz.join(" ");
    server.ok(&format!("zpool create -f -m none other raidz {raidz}"));
    let refused = server.fails(&format!("zpool replace -f -s other {} {new}", d[3]));
    let words = "only mirror and dRAID vdevs support sequential reconstruction";
    assert!(refused.contains(words), "{refused}");
    server.ok("zpool destroy other");
    server.ok(&format!("zpool create -f -d -m none other {}", d[3]));
    let refused = server.fails(&format!("zpool attach -f -s other {} {}", d[3], d[4]));
    let words = "device_rebuild feature must be enabled in order to use sequential reconstruction";
    assert!(refused.contains(words), "{refused}");
    server.ok("zpool destroy other");
    server.stop();
}
