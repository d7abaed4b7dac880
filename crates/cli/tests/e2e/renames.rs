//! Goal: a replica follows what happens to the names of what it is of, while it is mounted, and
//! where it is encrypted. Method: packages (`send -R -I`) of a tree whose names are passed on are
//! received with `-F`; mount points, files, volumes, bookmarks, properties and encryption roots are
//! compared. What random trees come to is tested in crate `daemon`.

use std::path::Path;

use crate::harness::{Server, can_mount, zdb_is_clean};
use crate::streams::{pool, receive, refused, send, value};

fn read(server: &Server, dataset: &str, file: &str) -> String {
    let at = value(server, dataset, "mountpoint");
    let path = Path::new(&at).join(file);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Sends the difference of all below two snapshots.
fn package(server: &Server, options: &str, from: u32, to: u32) -> std::path::PathBuf {
    server.ok(&format!("zfs snapshot -r tank/src@{to}"));
    let words = format!("zfs send -R {options} -I @{from} tank/src@{to}");
    send(server, &words, &format!("package{to}"))
}

/// Names and snapshots of a tree.
fn names(server: &Server, top: &str) -> Vec<String> {
    let listed = server.ok(&format!(
        "zfs list -Hrpt filesystem,volume,snapshot -o name,guid {top}"
    ));
    let rows = listed.lines().filter_map(|row| row.split_once('\t'));
    rows.map(|(name, guid)| {
        let guid = if name.contains('@') { guid } else { "" };
        format!("{} {guid}", name.replacen(top, "", 1))
    })
    .collect()
}

#[test]
fn a_mounted_replica_follows_names_that_are_passed_on() {
    if !can_mount() {
        return;
    }
    let server = Server::start();
    pool(&server);
    let (root, copy) = (server.text("source"), server.text("copy"));
    server.ok(&format!("zfs create -o mountpoint={root} tank/src"));
    for name in ["a", "b", "c", "a/x"] {
        server.ok(&format!("zfs create -o user:was={name} tank/src/{name}"));
        std::fs::write(Path::new(&root).join(name).join("file"), name).expect("a file");
    }
    server.ok("zfs create -V 8M tank/src/v1");
    server.ok("zfs create -V 8M tank/src/v2");
    server.ok("zfs snapshot -r tank/src@1");
    let full = send(&server, "zfs send -R tank/src@1", "full");
    receive(
        &server,
        &format!("zfs receive -o mountpoint={copy} tank/copy"),
        &full,
    );
    server.ok("zfs bookmark tank/copy/a@1 tank/copy/a#mark");
    server.ok("zfs set user:here=a tank/copy/a");
    server.ok("zfs hold keep tank/copy/b@1");

    // Each has the name of the one before; what was below `a` is below a new one.
    for (from, to) in [("a", "t"), ("c", "a"), ("b", "c"), ("t", "b"), ("v1", "t")] {
        server.ok(&format!("zfs rename tank/src/{from} tank/src/{to}"));
    }
    server.ok("zfs rename tank/src/v2 tank/src/v1");
    server.ok("zfs rename tank/src/t tank/src/v2");
    server.ok("zfs create tank/src/new");
    server.ok("zfs rename tank/src/b/x tank/src/new/x");
    std::fs::write(Path::new(&root).join("b/more"), "more").expect("a file");
    let second = package(&server, "", 1, 2);

    // A file is open in one of them. The rest is as it should be.
    let open = std::fs::File::open(Path::new(&copy).join("a/file")).expect("a file");
    let why = refused(&server, "zfs receive -F tank/copy", &second);
    assert!(why.contains("could be followed"), "{why}");
    assert!(why.contains("tank/copy/a"), "{why}");
    assert_eq!(read(&server, "tank/copy/new/x", "file"), "a/x");
    drop(open);
    let third = package(&server, "", 2, 3);
    receive(&server, "zfs receive -F tank/copy", &third);
    assert_eq!(names(&server, "tank/src"), names(&server, "tank/copy"));
    for (name, was) in [("a", "c"), ("b", "a"), ("c", "b"), ("new/x", "a/x")] {
        let name = format!("tank/copy/{name}");
        assert_eq!(value(&server, &name, "mounted"), "yes", "{name}");
        let below = name.strip_prefix("tank/copy").expect("it is below");
        assert_eq!(
            value(&server, &name, "mountpoint"),
            format!("{copy}{below}")
        );
        assert_eq!(read(&server, &name, "file"), was);
        assert_eq!(value(&server, &name, "user:was"), was);
    }
    assert_eq!(read(&server, "tank/copy/b", "more"), "more");
    // What belongs to it here went with it.
    assert_eq!(value(&server, "tank/copy/b", "user:here"), "a");
    let marks = server.ok("zfs list -Hrt bookmark -o name tank/copy");
    assert_eq!(marks, "tank/copy/b#mark\n");
    let held = server.ok("zfs holds -H tank/copy/c@1");
    assert!(held.contains("keep"), "{held}");

    // What is held here stays, if that was destroyed where it was sent, and is told.
    server.ok("zfs destroy tank/src/c@1");
    server.ok("zfs rename tank/src/c@2 1");
    let fourth = package(&server, "", 3, 4);
    let why = refused(&server, "zfs receive -F tank/copy", &fourth);
    assert!(
        why.contains("cannot destroy snapshot tank/copy/c@"),
        "{why}"
    );
    assert_eq!(
        value(&server, "tank/src/c@1", "guid"),
        value(&server, "tank/copy/c@1", "guid")
    );
    let held = server.ok("zfs list -Hrt snapshot -o name tank/copy/c");
    let aside = held
        .lines()
        .find(|name| name.contains("@recv-"))
        .expect("it is there");
    server.ok(&format!("zfs release keep {aside}"));
    let fifth = package(&server, "", 4, 5);
    receive(&server, "zfs receive -F tank/copy", &fifth);
    assert_eq!(names(&server, "tank/src"), names(&server, "tank/copy"));
    server.ok("zpool export tank");
    zdb_is_clean(&server.path("disks"), "tank");
}

#[test]
fn an_encrypted_replica_follows_names_and_roots() {
    if !can_mount() {
        return;
    }
    let server = Server::start();
    pool(&server);
    let (root, copy) = (server.text("source"), server.text("copy"));
    for name in ["e", "f", "z"] {
        let secret = format!("the secret of {name}\n");
        std::fs::write(server.path(name), secret).expect("a key");
    }
    let key = |name: &str| {
        let file = server.text(name);
        format!("-o keyformat=passphrase -o keylocation=file://{file}")
    };
    server.ok(&format!("zfs create -o mountpoint={root} tank/src"));
    for name in ["e", "f"] {
        server.ok(&format!(
            "zfs create -o encryption=on {} tank/src/{name}",
            key(name)
        ));
    }
    for name in ["e/x", "e/y", "e/z", "f/q"] {
        server.ok(&format!("zfs create tank/src/{name}"));
        std::fs::write(Path::new(&root).join(name).join("file"), name).expect("a file");
    }
    server.ok("zfs snapshot -r tank/src@1");
    let full = send(&server, "zfs send -R -w tank/src@1", "full");
    receive(
        &server,
        &format!("zfs receive -o mountpoint={copy} tank/copy"),
        &full,
    );
    let roots = |top: &str| {
        let listed = server.ok(&format!("zfs list -Hro name,encryptionroot {top}"));
        listed.replace(top, "")
    };
    assert_eq!(roots("tank/src"), roots("tank/copy"));

    // Swapped below the same root; moved to another root, and both roots changed their names.
    for (from, to) in [("e/x", "e/t"), ("e/y", "e/x"), ("e/t", "e/y")] {
        server.ok(&format!("zfs rename tank/src/{from} tank/src/{to}"));
    }
    server.ok(&format!("zfs change-key {} tank/src/e/z", key("z")));
    server.ok("zfs rename tank/src/e/z tank/src/f/z");
    server.ok("zfs change-key -i tank/src/f/z");
    for (from, to) in [("e", "t"), ("f", "e"), ("t", "f")] {
        server.ok(&format!("zfs rename tank/src/{from} tank/src/{to}"));
    }
    let second = package(&server, "-w", 1, 2);
    receive(&server, "zfs receive -F tank/copy", &second);
    assert_eq!(names(&server, "tank/src"), names(&server, "tank/copy"));
    assert_eq!(roots("tank/src"), roots("tank/copy"));
    server.ok("zfs load-key -r tank/copy");
    server.ok("zfs mount -a");
    for (name, was) in [
        ("f/x", "e/y"),
        ("f/y", "e/x"),
        ("e/z", "e/z"),
        ("e/q", "f/q"),
    ] {
        assert_eq!(read(&server, &format!("tank/copy/{name}"), "file"), was);
    }
    server.ok("zpool export tank");
    zdb_is_clean(&server.path("disks"), "tank");
}
