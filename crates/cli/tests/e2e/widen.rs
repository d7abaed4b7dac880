//! Goal: `zpool attach` makes a RAID-Z vdev wider, and what is asked of that is told in OpenZFS's
//! words. Method: a pool on files, on a server without mounts; zdb agrees in the end.

use crate::harness::{Server, zdb_is_clean};

#[test]
fn raidz_is_made_wider_and_what_cannot_be_is_refused() {
    let server = Server::start();
    let paths = server.disks(5, 96 << 20);
    let create = |options: &str| {
        let first = paths[..3].join(" ");
        server.ok(&format!(
            "zpool create {options} -m none wide raidz1 {first}"
        ));
    };
    create("-o feature@raidz_expansion=disabled");
    let attach = |disk: usize| format!("zpool attach -f wide raidz1-0 {}", paths[disk]);
    let error = server.fails(&attach(3));
    let words = "raidz_expansion feature must be enabled in order to attach a device to raidz";
    assert!(error.contains(words), "{error}");
    server.ok("zpool set feature@raidz_expansion=enabled wide");
    server.ok("zpool checkpoint wide");
    let error = server.fails(&attach(3));
    assert!(error.contains("checkpoint exists"), "{error}");
    server.ok("zpool checkpoint -d -w wide");
    server.ok(&attach(3));
    server.ok("zpool wait -t raidz_expand wide");
    let status = server.ok("zpool status wide");
    assert!(
        status.contains("expand: expanded raidz1-0 copied "),
        "{status}"
    );
    let listed = server.ok("zpool get -Ho value feature@raidz_expansion wide");
    assert_eq!(listed.trim(), "active");
    server.ok(&format!("zpool attach -f -w wide raidz1-0 {}", paths[4]));
    // A scrub follows, which is not waited for.
    let status = server.ok("zpool status wide");
    let is_over = status.contains("expand: expanded raidz1-0 copied ");
    assert!(is_over && !status.contains("expansion of"), "{status}");
    server.ok("zpool export wide");
    zdb_is_clean(&server.path("disks"), "wide");
}
