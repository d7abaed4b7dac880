//! Small things that OpenZFS's own tests ask for.

use std::fs;
use std::os::unix::fs::MetadataExt;

use crate::harness::{MILLPOND, Server, can_mount, finds, run, text_of};
use crate::properties::{done, tank, value};

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

/// `mount -o noxattr`, projects of files with attributes in a directory, words that win over
/// earlier ones.
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

/// Properties are set, inherited and shown by the names of their columns, too, and stored by their
/// own.
#[test]
fn properties_go_by_the_names_of_their_columns() {
    let server = Server::start();
    let disk = &server.disks(1, 256 << 20)[0];
    server.ok(&format!(
        "zpool create -m none -O compress=gzip -O userquota@7=5M -O projectobjquota@8=9 tank {disk}"
    ));
    assert_eq!(value(&server, "userquota@7", "tank"), (5 << 20).to_string());
    assert_eq!(value(&server, "projectobjquota@8", "tank"), "9");
    server.ok("zfs create -o recsize=8K tank/a");
    server.ok("zfs set rdonly=on reserv=1M refreserv=2M dnsize=1k fslimit=7 tank/a");
    for (column, name, set) in [
        ("compress", "compression", "gzip"),
        ("recsize", "recordsize", "8192"),
        ("rdonly", "readonly", "on"),
        ("reserv", "reservation", "1048576"),
        ("refreserv", "refreservation", "2097152"),
        ("dnsize", "dnodesize", "1k"),
        ("fslimit", "filesystem_limit", "7"),
    ] {
        let shown = server.ok(&format!("zfs get -Hpo property,value {column} tank/a"));
        assert_eq!(shown, format!("{name}\t{set}\n"));
        let shown = server.ok(&format!("zfs list -Hppo {column} tank/a"));
        assert_eq!(shown.trim(), set, "{column}");
    }
    server.ok("zfs inherit recsize tank/a");
    assert_eq!(value(&server, "recordsize", "tank/a"), "131072");
    let said = server.fails("zfs inherit reserv tank/a");
    assert!(
        said.contains("use 'zfs set reserv=none' to clear"),
        "{said}"
    );
    done(&server);
}

/// What `zfs create` and `zpool create` are content with, and what not.
#[test]
fn creation_is_refused_as_by_openzfs() {
    let server = Server::start();
    let disks = server.disks(3, 128 << 20);
    let (one, rest) = (&disks[0], disks[1..].join(" "));
    for (options, vdevs, reason) in [
        (
            "-O special_small_blocks=4K",
            one.clone(),
            "requires a special vdev",
        ),
        (
            "-O recordsize=512 -O special_small_blocks=1K",
            format!("{one} special mirror {rest}"),
            "must be zero or a power of 2 from 512B to 512B",
        ),
        (
            "-O keylocation=prompt",
            one.clone(),
            "Encryption must be turned on",
        ),
        (
            "-O userquota@nobody-of-that-name=1M",
            one.clone(),
            "unable to lookup",
        ),
    ] {
        let said = server.fails(&format!("zpool create -f -m none {options} tank {vdevs}"));
        assert!(said.contains(reason), "{options}: {said}");
    }
    server.ok(&format!("zpool create -m none tank {one}"));
    for (words, reason) in [
        ("-p -s -V 1M tank", "already exists"),
        ("-s -V 1Z tank/v", "value is too large"),
        (
            "-o keylocation=prompt tank/a",
            "Encryption must be turned on",
        ),
        (
            "-o pbkdf2iters=400000 tank/a",
            "Encryption must be turned on",
        ),
        ("-o utf8only=off -o normalization=formC tank/a", "utf8only"),
    ] {
        let said = server.fails(&format!("zfs create {words}"));
        assert!(said.contains(reason), "{words}: {said}");
    }
    server.ok("zfs create -o normalization=formD tank/n");
    server.ok("zfs create -p tank/n");
    server.ok("zfs create -o utf8only=off tank/n/plain");
    assert_eq!(value(&server, "normalization", "tank/n/plain"), "none");
    assert_eq!(value(&server, "utf8only", "tank/n/plain"), "off");
    done(&server);
}

/// A new mount point counts though the filesystem cannot be mounted there; snapshots go with those
/// of datasets below; `inherit -r` passes over what does not have the property.
#[test]
fn changes_reach_what_they_can() {
    if !can_mount() {
        return;
    }
    let server = tank();
    server.ok("zfs create -o mountpoint=legacy tank/a");
    let file = server.text("file");
    fs::write(&file, "").unwrap();
    let output = server.command(&["zfs", "set", &format!("mountpoint={file}"), "tank/a"]);
    assert!(output.status.success(), "{output:?}");
    let said = text_of(&output);
    assert!(
        said.contains("property set, but cannot mount 'tank/a'"),
        "{said}"
    );
    assert_eq!(value(&server, "mountpoint", "tank/a"), file);
    assert_eq!(value(&server, "mounted", "tank/a"), "no");

    server.ok("zfs create -p tank/b/c");
    server.ok("zfs create -s -V 1M -o org.example:kept=x tank/b/v");
    server.ok("zfs snapshot -r tank/b@s");
    server.ok("zfs destroy -R tank/b@s");
    assert_eq!(server.ok("zfs list -Ht snapshot -o name -r tank"), "");

    server.ok("zfs set atime=off tank/b");
    server.ok("zfs set atime=off tank/b/c");
    server.ok("zfs inherit -r atime tank/b");
    assert_eq!(value(&server, "atime", "tank/b/c"), "on");
    server.ok("zfs snapshot tank/b/v@s");
    server.ok("zfs inherit -r org.example:kept tank");
    assert_eq!(value(&server, "org.example:kept", "tank/b/v"), "-");
    server.fails("zfs inherit -r recordsiz tank/b/v@s");
    done(&server);
}

/// `-h` is no option of any command, though it shows how to use it.
#[test]
fn help_of_a_command_is_an_answer_to_a_wrong_option() {
    let directory = tempfile::tempdir().unwrap();
    let zfs = directory.path().join("zfs");
    std::os::unix::fs::symlink(MILLPOND, &zfs).unwrap();
    let status = |words: &[&str], posix: bool| {
        let mut command = std::process::Command::new(&zfs);
        command.args(words).env("MILLPOND_STATE", directory.path());
        if posix {
            command.env("POSIXLY_CORRECT", "1");
        }
        command.output().unwrap().status.code()
    };
    for words in [
        &["get", "-h", "all"][..],
        &["get", "-rph"],
        &["get", "-?", "all"],
    ] {
        assert_eq!(status(words, false), Some(2), "{words:?}");
    }
    for words in [&["-?"][..], &["-h"], &["get", "--help"]] {
        assert_eq!(status(words, false), Some(0), "{words:?}");
    }
}

/// What was written through a mapping, and is in nobody's hands but the kernel's, is no hole.
#[test]
fn a_mapping_is_searched_for_data() {
    if !can_mount() || !finds("python3") {
        return;
    }
    let server = tank();
    server.ok("zfs create -o recordsize=4K tank/a");
    let script = r#"
import mmap, os, sys
MIB = 1 << 20
fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
os.ftruncate(fd, MIB)
data = mmap.mmap(fd, MIB)
def seek(offset, whence):
    try:
        return os.lseek(fd, offset, whence)
    except OSError:
        return -1
found = [seek(0, os.SEEK_DATA), seek(0, os.SEEK_HOLE)]
data[0] = 1
found += [seek(0, os.SEEK_DATA), seek(4096, os.SEEK_DATA), seek(0, os.SEEK_HOLE)]
data[0:MIB // 2] = b"b" * (MIB // 2)
found += [seek(4096, os.SEEK_DATA), seek(0, os.SEEK_HOLE), seek(8192, os.SEEK_HOLE)]
data[MIB - 5000] = 1
found += [seek(MIB // 2, os.SEEK_DATA), seek(MIB // 2, os.SEEK_HOLE), seek(MIB, os.SEEK_DATA)]
print(*found)
"#;
    let said = run("python3", &["-c", script, &server.text("mnt/a/file")]);
    let half = 1 << 19;
    let last = (1 << 20) - 8192;
    assert_eq!(
        said.trim(),
        format!("-1 0 0 -1 4096 4096 {half} {half} {last} {half} -1")
    );
    done(&server);
}
