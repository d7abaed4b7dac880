//! Small things that OpenZFS's own tests ask for.

use std::fs;
use std::os::unix::fs::MetadataExt;

use crate::harness::{can_mount, finds, run};
use crate::properties::{done, tank};

/// What the kernel was told of files and directories is asked anew when it has changed.
#[test]
fn attributes_are_never_old() {
    if !can_mount() {
        return;
    }
    let server = tank();
    server.ok("zfs create -o compression=off -o copies=2 tank/a");
    let path = server.path("mnt/a/file");
    fs::write(&path, vec![1; 1 << 20]).unwrap();
    let _ = fs::metadata(&path).unwrap();
    server.ok("zpool sync tank");
    let taken = fs::metadata(&path).unwrap().blocks() * 512;
    assert!(taken >= 2 << 20, "{taken}");

    let links = || fs::metadata(server.path("mnt/a")).unwrap().nlink();
    assert_eq!(links(), 2);
    server.ok("zfs set snapdir=visible tank/a");
    assert_eq!(links(), 3);
    server.ok("zfs set snapdir=hidden tank/a");
    assert_eq!(links(), 2);

    let snapshots = server.path("mnt/a/.zfs/snapshot");
    for command in ["snapshot", "destroy"] {
        let _ = fs::metadata(&snapshots).unwrap();
        server.ok(&format!("zfs {command} tank/a@s"));
        let changed = server.ok("zfs get -Hpo value snapshots_changed tank/a");
        let shown = fs::metadata(&snapshots).unwrap().mtime().to_string();
        assert_eq!(shown, changed.trim(), "{command}");
        // The next change is in another second.
        let now = || {
            std::time::SystemTime::UNIX_EPOCH
                .elapsed()
                .unwrap()
                .as_secs()
        };
        while now().to_string() <= shown {
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    }
    done(&server);
}

/// `mount -o noxattr`, projects of files with attributes in a directory, words that win over earlier ones.
#[test]
fn extended_attributes_and_projects() {
    if !can_mount() || !finds("setfattr") || !finds("chattr") {
        return;
    }
    let server = tank();
    server.ok("zfs create -o xattr=dir tank/a");
    let (file, dir) = (server.text("mnt/a/file"), server.text("mnt/a/dir"));
    fs::write(&file, "x").unwrap();
    fs::create_dir(&dir).unwrap();
    for name in ["user.one", "user.two", "trusted.three"] {
        run("setfattr", &["-n", name, "-v", "value", &file]);
    }
    run("chattr", &["-p", "77", &file]);
    server.ok("zpool sync tank");
    let said = server.ok("zfs projectspace -Hpo name,objused tank/a");
    // The file, the directory of its attributes, three attributes.
    assert!(said.lines().any(|line| line == "77\t5"), "{said}");

    server.ok("zfs unmount tank/a");
    server.ok("zfs mount -o noxattr tank/a");
    let get = |name: &str| {
        let mut get = std::process::Command::new("getfattr");
        get.args(["-n", name, &*file])
            .output()
            .unwrap()
            .status
            .success()
    };
    assert!(!get("user.one") && get("trusted.three"));
    let said = server.ok("zfs get -Ho value,source xattr tank/a");
    assert_eq!(said.trim(), "off\ttemporary");
    server.ok("zfs mount -o remount,xattr tank/a");
    assert!(get("user.one"));

    server.ok(&format!("zfs project -c -d -r {dir}"));
    server.ok(&format!("zfs project -c -r -d {dir}"));
    done(&server);
}
