//! Goal: encrypted datasets are received without their keys. Method: a package of raw streams that
//! OpenZFS made is received where no key is; encryption roots, and after the key was loaded
//! contents through mounts, are compared with the manifest.

use crate::harness::{Server, can_mount, text_of, zdb_is_clean};
use crate::keys::with_input;
use crate::streams::{compare, pool, receive, unpack, value};

const PASSPHRASE: &[u8] = b"correct horse battery\n";

fn load_key(server: &Server, name: &str, key: &[u8]) {
    let output = with_input(server, &format!("zfs load-key {name}"), key);
    assert!(output.status.success(), "{name}: {}", text_of(&output));
}

/// A package of OpenZFS's: children inherit their key again.
#[test]
fn a_tree_of_openzfs_is_received_with_its_roots() {
    if !can_mount() {
        return;
    }
    let server = Server::start();
    let Some((stream, manifest)) = unpack(&server, "Rraw") else {
        return;
    };
    pool(&server);
    let mountpoint = server.text("mounted");
    let words = format!("zfs receive -o mountpoint={mountpoint} tank/target");
    receive(&server, &words, &stream);
    let below = server.ok("zfs list -Hro name tank/target");
    for name in below.lines() {
        assert_eq!(
            value(&server, name, "encryptionroot"),
            "tank/target",
            "{name}"
        );
        assert_eq!(value(&server, name, "keystatus"), "unavailable", "{name}");
        assert_eq!(value(&server, name, "mounted"), "no", "{name}");
    }
    assert!(below.lines().count() > 1, "{below}");
    load_key(&server, "tank/target", PASSPHRASE);
    server.ok("zfs mount -a");
    compare(&server, &manifest, "tank/target");
    server.ok("zpool export tank");
    zdb_is_clean(&server.path("disks"), "tank");
}
