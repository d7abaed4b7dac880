//! Goal: bookmarks go by themselves, and before a rollback past them. Method: bookmarks that
//! OpenZFS made, of snapshots that are there and of one that is gone; what features count, and zdb.

use std::path::Path;

use crate::golden::Golden;
use crate::harness::{ZDB, finds, run, zdb_finds_no_leaks};

const COUNTED: &str =
    "zpool get -Ho value feature@bookmarks,feature@bookmark_v2,feature@bookmark_written plain";

fn import() -> Option<Golden> {
    let golden = Golden::unpack("plain")?;
    let words = format!("zpool import -N -d {} plain", golden.directory);
    golden.server.ok(&words);
    Some(golden)
}

fn left(golden: &Golden) -> Vec<String> {
    let text = golden.text("zfs list -H -o name -t bookmark -r plain");
    text.lines().map(str::to_owned).collect()
}

fn export(golden: &Golden) {
    golden.server.ok("zpool export plain");
    zdb_finds_no_leaks(Path::new(&golden.directory), "plain");
    if !finds("zdb") {
        return;
    }
    let words = format!("{ZDB} -e -p {} -d plain || true", golden.directory);
    let text = run("sh", &["-c", &words]);
    assert!(
        text.contains("Verified bookmark_written feature refcount"),
        "{text}"
    );
    // It does not look for what 'zfs allow' stored.
    let told = text
        .lines()
        .filter(|line| !line.contains("(DSL permissions) leaked"));
    for line in told {
        let is_bad = ["leaked", "ERROR", "mismatch"]
            .iter()
            .any(|bad| line.contains(bad));
        assert!(!is_bad, "{line}");
    }
}

#[test]
fn a_rollback_destroys_newer_bookmarks() {
    let Some(golden) = import() else { return };
    let server = &golden.server;
    let said = server.fails("zfs rollback plain/data@third");
    let named = "use '-r' to force deletion of the following snapshots and bookmarks:\n\
                 plain/data#of_destroyed";
    assert!(said.contains(named) && !said.contains("#b3"), "{said}");
    server.ok("zfs rollback -r plain/data@third");
    assert_eq!(
        left(&golden),
        ["plain/data#b1", "plain/data#b1copy", "plain/data#b3"]
    );

    server.ok("zfs snapshot plain/data@later");
    let said = server.fails("zfs rollback plain/data@s2");
    for newer in ["data@third", "data@later", "data#b3"] {
        assert!(said.contains(newer), "{said}");
    }
    server.ok("zfs rollback -r plain/data@s2");
    assert_eq!(left(&golden), ["plain/data#b1", "plain/data#b1copy"]);
    export(&golden);
}

#[test]
fn a_bookmark_is_destroyed() {
    let Some(golden) = import() else { return };
    let server = &golden.server;
    let said = server.fails("zfs destroy plain/data#nothing");
    assert!(
        said.contains("bookmark 'plain/data#nothing' does not exist."),
        "{said}"
    );
    for option in ["-n", "-d", "-r", "-R"] {
        let said = server.fails(&format!("zfs destroy {option} plain/data#b1"));
        assert!(said.contains("not supported with bookmark"), "{said}");
    }
    // What died around the snapshot that is gone is told apart for its bookmark, and then not any
    // more.
    server.ok("zfs snapshot plain/data@later");
    server.ok("zfs destroy plain/data#of_destroyed");
    // The snapshot that two bookmarks stand for goes before them; a third goes before its snapshot.
    server.ok("zfs destroy plain/data@third");
    server.ok("zfs destroy plain/data#b1copy");
    assert_eq!(left(&golden), ["plain/data#b1", "plain/data#b3"]);
    assert_eq!(server.ok(COUNTED), "active\nactive\nactive\n");
    export(&golden);

    let words = format!("zpool import -N -d {} plain", golden.directory);
    server.ok(&words);
    server.ok("zfs destroy plain/data#b3");
    server.ok("zfs destroy plain/data#b1");
    assert!(left(&golden).is_empty());
    assert_eq!(server.ok(COUNTED), "enabled\nenabled\nenabled\n");
    let said = server.ok("zpool history -i plain");
    assert!(said.contains("remove bookmark plain/data"), "{said}");
    assert!(said.contains("name=b1"), "{said}");
    export(&golden);
}
