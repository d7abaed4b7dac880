//! The command lines as a user of ZFS expects them.

use std::io::{BufRead, BufReader};
use std::os::unix::fs::FileExt;

use format::{NvEncoding, NvList, NvValue};

use crate::harness::{MILLPOND, Server, can_mount, run, text_of};

#[test]
fn a_first_zpool_create_starts_the_server_by_itself() {
    if !can_mount() {
        return;
    }
    let server = Server::prepare();
    let disk = &server.disks(1, 256 << 20)[0];
    server.ok(&format!(
        "zpool create -m {} tank {disk}",
        server.text("mnt")
    ));
    assert!(
        server
            .ok("zpool list -H -o name,health")
            .contains("tank\tONLINE")
    );
    server.ok("zpool destroy tank");
    server.ok("down");
}

/// Goal: a server that does not answer yet is not said to be none. Method: the lock that it has.
#[test]
fn a_server_that_still_starts_is_told_of_and_waited_for() {
    let server = Server::prepare();
    std::fs::create_dir_all(server.state()).expect("a directory");
    let lock = std::fs::File::create(server.state().join("millpond.lock")).expect("a lock");
    rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive).expect("locked");
    let starts = "the server does not answer yet: it imports its pools\n";
    assert_eq!(server.ok("info"), starts);
    assert_eq!(server.ok("shares"), starts);
    let mut down = server.begin(&["down"]);
    let mut told = BufReader::new(down.stdout.take().expect("its output")).lines();
    let first = told.next().expect("a line").expect("read");
    assert!(first.contains("still imports its pools"), "{first}");
    drop(lock);
    let last = told.next().expect("a line").expect("read");
    assert_eq!(last, "no server runs");
    assert!(down.wait().expect("it ends").success());
}

#[test]
fn a_server_that_is_stopped_has_exported_its_pools_and_another_may_follow_at_once() {
    if !can_mount() {
        return;
    }
    let server = Server::prepare();
    let disk = &server.disks(1, 256 << 20)[0];
    server.ok(&format!(
        "zpool create -m {} tank {disk}",
        server.text("mnt")
    ));
    for round in 0..5 {
        std::fs::write(server.path("mnt").join("file"), [round]).expect("the pool is mounted");
        server.ok("down");
        let info = server.ok("info");
        assert!(
            info.starts_with("no server runs; 'millpond up' starts one\n"),
            "{info}"
        );
        assert!(!server.path("mnt").join("file").exists());
        server.ok("start");
        assert_eq!(server.ok("zpool list -H -o name,health"), "tank\tONLINE\n");
        let found = std::fs::read(server.path("mnt").join("file"));
        assert_eq!(found.expect("the pool is mounted again"), [round]);
    }
    server.ok("zpool destroy tank");
    // An answer comes also when there is nothing to leave.
    for _ in 0..5 {
        server.ok("start");
        server.ok("down");
    }
}

/// Goal: after a stop no command imports the pools again by itself, also after a stop of a server
/// that was killed before; who wants them starts the server.
#[test]
fn no_command_starts_a_server_that_was_stopped() {
    let mut server = Server::start();
    let disk = server.disks(1, 128 << 20).remove(0);
    let directory = server.text("disks");
    server.ok(&format!("zpool create -O mountpoint=none tank {disk}"));
    let commands = [
        "zpool status".to_owned(),
        "zfs list".to_owned(),
        format!("zpool import -d {directory} tank"),
        format!("zpool create -O mountpoint=none -f other {disk}"),
    ];
    let is_down = |server: &Server| {
        for command in &commands {
            let told = server.fails(command);
            for part in ["no server runs", "it was stopped", "'millpond start'"] {
                assert!(told.contains(part), "{command}: {told}");
            }
        }
        assert_eq!(server.ok("down"), "no server runs\n");
        let info = server.ok("info");
        assert!(
            info.starts_with("no server runs; 'millpond up' starts one\n"),
            "{info}"
        );
    };
    server.stop();
    is_down(&server);
    server.launch(&["daemon"]);
    assert_eq!(server.ok("zpool list -H -o name"), "tank\n");
    server.kill_only();
    assert_eq!(server.ok("down"), "no server runs\n");
    is_down(&server);
    server.ok("start");
    assert_eq!(server.ok("zpool list -H -o name"), "tank\n");
    // There is one.
    server.ok("start");
    server.ok("down");
    is_down(&server);
}

#[test]
fn properties_sources_and_columns_are_those_of_zfs() {
    if !can_mount() {
        return;
    }
    let server = Server::start();
    let disk = &server.disks(1, 512 << 20)[0];
    server.ok(&format!(
        "zpool create -O compression=zstd -O mountpoint={} tank {disk}",
        server.text("mnt")
    ));
    server.ok("zfs create tank/a");
    server.ok("zfs create -o recordsize=1M -o com.example:note=x tank/a/b");
    assert_eq!(
        server.ok("zfs get -H -o value,source compression tank/a"),
        "zstd\tinherited from tank\n"
    );
    assert_eq!(
        server.ok("zfs get -H -o value,source recordsize tank/a/b"),
        "1M\tlocal\n"
    );
    assert_eq!(
        server.ok("zfs get -Hp -o value recordsize tank/a/b"),
        "1048576\n"
    );
    assert_eq!(
        server.ok("zfs get -H -o value,source com.example:note tank/a/b"),
        "x\tlocal\n"
    );
    assert_eq!(
        server.ok("zfs get -H -o value,source checksum tank"),
        "on\tdefault\n"
    );
    assert_eq!(
        server.ok("zfs get -H -o value mountpoint tank/a/b").trim(),
        server.text("mnt/a/b")
    );
    server.ok("zfs set atime=off tank/a");
    server.ok("zfs inherit compression tank");
    assert_eq!(
        server.ok("zfs get -H -o property,value,source compression,atime tank/a/b"),
        "compression\ton\tdefault\natime\toff\tinherited from tank/a\n"
    );
    let list = server.ok("zfs list");
    assert!(list.starts_with("NAME"), "{list}");
    assert_eq!(list.lines().count(), 4, "{list}");
    let json = server.ok("zfs list -j tank/a");
    assert!(
        json.contains(r#""vers_major":0"#)
            && json.contains("\"tank/a\"")
            && json.contains("\"FILESYSTEM\""),
        "{json}"
    );
    for (command, reason) in [
        ("zfs set recordsize=3K tank", "recordsize"),
        ("zfs set nonesuch=1 tank", "nonesuch"),
        ("zfs create tank/none/such", "parent"),
        ("zfs create tank/a", "exists"),
        ("zfs destroy tank/a", "children"),
        ("zpool create tank /dev/null", "exists"),
        ("zpool import nonesuch -d /nonexistent", "no such"),
    ] {
        let message = server.fails(command);
        assert!(message.contains(reason), "{command}: {message}");
    }
    let history = server.ok("zpool history tank");
    assert!(
        history.contains("zpool create -O compression=zstd")
            && history.contains("zfs create tank/a"),
        "{history}"
    );
    server.ok("zpool destroy tank");
}

#[test]
fn a_device_in_use_is_refused() {
    if !can_mount() {
        return;
    }
    let server = Server::start();
    let disk = &server.disks(1, 256 << 20)[0];
    server.ok(&format!("zpool create -m none tank {disk}"));
    assert!(
        server
            .fails(&format!("zpool create -f -m none other {disk}"))
            .contains("part of active pool 'tank'")
    );
    server.ok("zpool export tank");
    assert!(
        server
            .fails(&format!("zpool create -m none other {disk}"))
            .contains("-f")
    );
    server.ok(&format!("zpool create -f -m none other {disk}"));
    server.ok("zpool destroy other");
}

#[test]
fn snapshots_roll_back_and_are_seen_in_the_control_directory() {
    if !can_mount() {
        return;
    }
    let server = Server::start();
    let disk = &server.disks(1, 512 << 20)[0];
    server.ok(&format!(
        "zpool create -m {} tank {disk}",
        server.text("mnt")
    ));
    let file = server.path("mnt/file");
    std::fs::write(&file, "one").unwrap();
    server.ok("zfs snapshot tank@one");
    std::fs::write(&file, "two, and longer").unwrap();
    std::fs::write(server.path("mnt/new"), "new").unwrap();
    server.ok("zfs snapshot tank@two");
    assert_eq!(
        std::fs::read_to_string(server.path("mnt/.zfs/snapshot/one/file")).unwrap(),
        "one"
    );
    assert_eq!(
        std::fs::read_to_string(server.path("mnt/.zfs/snapshot/two/file")).unwrap(),
        "two, and longer"
    );
    // What is mounted inside moves along, or all stays as it is; a rollback leaves it where it is.
    server.ok("zfs create tank/inside");
    server.ok("zfs create tank/inside/deep");
    let deep = server.path("mnt/inside/deep/file");
    std::fs::write(&deep, "deep").unwrap();
    assert!(server.fails("zfs rollback tank@one").contains("-r"));
    let in_use = std::fs::File::open(server.path("mnt/inside")).unwrap();
    for command in [
        "zfs rename tank/inside tank/other",
        "zfs set mountpoint=none tank/inside",
    ] {
        assert!(server.fails(command).contains("in use"), "{command}");
        assert_eq!(std::fs::read_to_string(&deep).unwrap(), "deep");
    }
    server.ok("zfs rollback -r tank@one");
    assert_eq!(std::fs::read_to_string(&deep).unwrap(), "deep");
    drop(in_use);
    // To another name in the same place.
    server.ok("zfs rename tank/inside tank/other");
    let deep = server.path("mnt/other/deep/file");
    assert_eq!(std::fs::read_to_string(&deep).unwrap(), "deep");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "one");
    assert!(!server.path("mnt/new").exists());
    assert!(
        !server
            .ok("zfs list -t snapshot -H -o name")
            .contains("tank@two")
    );
    assert_eq!(
        std::fs::read_to_string(server.path("mnt/.zfs/snapshot/one/file")).unwrap(),
        "one"
    );
    // One that was looked at goes under its new name too.
    server.ok("zfs rename tank@one 1");
    assert!(!server.path("mnt/.zfs/snapshot/one").exists());
    server.ok("zfs destroy tank@1");
    server.ok("zpool export tank");
    crate::harness::zdb_is_clean(&server.path("disks"), "tank");
}

#[test]
fn a_volume_that_was_replaced_or_resized_is_seen_as_it_is_now() {
    if !can_mount() {
        return;
    }
    let mut server = Server::start();
    let disk = &server.disks(1, 512 << 20)[0];
    server.ok(&format!("zpool create -m none tank {disk}"));
    server.ok("zfs create -s -V 8M tank/vol");
    let file = server.state().join("zvol/tank/vol");
    let size = || std::fs::metadata(&file).unwrap().len();
    std::fs::write(&file, vec![1; 8 << 20]).unwrap();
    let open = std::fs::File::open(&file).unwrap();
    let mut read = vec![0; 8 << 20];
    open.read_exact_at(&mut read, 0).unwrap();
    assert!(read == vec![1; 8 << 20]);
    // Also where the kernel remembers what it read, and did not ask in between.
    server.ok("zfs set volsize=4M tank/vol");
    server.ok("zfs set volsize=8M tank/vol");
    let mut expected = vec![1; 4 << 20];
    expected.resize(8 << 20, 0);
    open.read_exact_at(&mut read, 0).unwrap();
    assert!(read == expected);
    drop(open);
    server.ok("zfs set volsize=4M tank/vol");
    assert_eq!(size(), 4 << 20);
    server.ok("zfs destroy tank/vol");
    assert!(!file.exists());
    server.ok("zfs create -s -V 16M tank/vol");
    assert_eq!(size(), 16 << 20);
    std::fs::write(&file, vec![2; 1 << 20]).unwrap();
    server.ok("zpool export tank");
    assert!(!file.exists());
    server.ok(&format!("zpool import -d {} tank", server.text("disks")));
    assert_eq!(&std::fs::read(&file).unwrap()[..1 << 20], vec![2; 1 << 20]);
    // What is answered is on disk.
    server.ok("zfs set volsize=32M tank/vol");
    server.kill();
    server.launch(&["daemon"]);
    server.wait_until("the pool is there again", || {
        server
            .command(&["zfs", "list", "tank/vol"])
            .status
            .success()
    });
    assert_eq!(
        server.ok("zfs get -Hp -o value volsize tank/vol").trim(),
        (32 << 20).to_string()
    );
    assert_eq!(size(), 32 << 20);
}

#[test]
fn a_volume_is_a_file_that_loop_devices_take() {
    if !can_mount() {
        return;
    }
    let server = Server::start();
    let disk = &server.disks(1, 512 << 20)[0];
    server.ok(&format!("zpool create -m none tank {disk}"));
    server.ok("zfs create -s -V 128M tank/vol");
    let file = server.state().join("zvol/tank/vol");
    assert_eq!(std::fs::metadata(&file).unwrap().len(), 128 << 20);
    run("mkfs.ext4", &["-q", "-F", &file.to_string_lossy()]);
    server.ok("zpool export tank");
    server.ok(&format!("zpool import -d {} tank", server.text("disks")));
    run("e2fsck", &["-f", "-n", &file.to_string_lossy()]);
    // Sizes are rounded up to whole blocks, as OpenZFS does.
    server.ok("zfs create -V 100000 tank/odd");
    assert_eq!(server.ok("zfs get -Hpo value volsize tank/odd"), "114688\n");
    server.ok("zpool export tank");
    crate::harness::zdb_is_clean(&server.path("disks"), "tank");
}

#[test]
fn renames_and_lists_of_snapshots_are_refused_or_taken_as_by_zfs() {
    if !can_mount() {
        return;
    }
    let server = Server::start();
    let disks = &server.disks(2, 256 << 20);
    for (pool, disk) in ["tank", "other"].iter().zip(disks) {
        server.ok(&format!("zpool create -m none {pool} {disk}"));
    }
    server.ok("zfs create tank/a");
    server.ok("zfs create tank/b");
    server.ok("zfs snapshot tank/a@x");
    server.ok("zfs snapshot tank/a@y");
    for (command, reason) in [
        ("zfs rename -r tank/a tank/c", "must be a snapshot"),
        ("zfs rename -p -u tank/a tank/c", "mutually exclusive"),
        ("zfs rename tank/a other/a", "within same pool"),
        ("zfs rename tank/a@x tank/b@y", "part of same dataset"),
        ("zfs destroy tank/a@no,nosuch", "could not find"),
    ] {
        let message = server.fails(command);
        assert!(message.contains(reason), "{command}: {message}");
    }
    server.ok("zfs rename tank/a@x tank/a@z");
    server.ok("zfs rename tank/a@z @x");
    server.ok("zfs destroy tank/a@x,nosuch");
    assert_eq!(server.ok("zfs list -Ho name -t snapshot"), "tank/a@y\n");
    // Nobody has to read to the end.
    let mut child = std::process::Command::new(crate::harness::MILLPOND)
        .args(["zpool", "history", "tank"])
        .env("MILLPOND_STATE", server.state())
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    assert_eq!(output.status.code(), Some(141));
    server.ok("zpool destroy tank");
    server.ok("zpool destroy other");
}

/// Goal: options that scripts written for OpenZFS give are understood, and do what they do there.
#[test]
fn options_that_scripts_give_are_understood() {
    if !can_mount() {
        return;
    }
    let server = Server::start();
    let disks = server.disks(3, 256 << 20);
    let mnt = server.text("mnt");
    server.ok(&format!("zpool create -m {mnt} tank {}", disks[0]));
    server.ok("zfs create tank/a");
    server.ok("zfs snapshot -r tank@one");
    // A path stands for the filesystem that it is in, whatever depth.
    let inside = server.path("mnt/a/b/c");
    std::fs::create_dir_all(&inside).expect("directories");
    let name = |words: &str| server.ok(&format!("zfs list -Ho name {words}"));
    assert_eq!(name(&inside.to_string_lossy()), "tank/a\n");
    let relative = std::process::Command::new(MILLPOND)
        .args(["zfs", "get", "-Ho", "name", "used", "./b"])
        .current_dir(server.path("mnt/a"))
        .env("MILLPOND_STATE", server.state())
        .output()
        .expect("millpond runs");
    assert_eq!(text_of(&relative), "tank/a\n");
    let refused = server.fails("zfs list /proc");
    assert!(
        refused.contains("'/proc': not a ZFS filesystem"),
        "{refused}"
    );
    assert_eq!(name("-t snapshot tank/a"), "tank/a@one\n");
    let got = server.ok("zfs get -Ho name -t snapshot used tank/a");
    assert_eq!(got, "tank/a@one\n");
    let all = server.ok("zfs list -o all tank/a");
    assert!(all.starts_with("NAME") && all.contains("COMPRESS"), "{all}");
    // What is to be added is shown as asked for.
    let planned = server.ok(&format!("zpool add -n -g tank {}", disks[1]));
    let of_disk = server.ok(&format!("zpool get -Ho value guid tank {}", disks[0]));
    assert!(
        planned.ends_with(&format!("\t  {}\n\t  0\n", of_disk.trim())),
        "{planned}"
    );
    server.ok(&format!("zpool add -n -P -L tank {}", disks[1]));
    server.ok("zpool sync -f tank");
    let refused = server.fails("zpool clear -n tank");
    assert!(
        refused.contains("-n or -X only meaningful with -F"),
        "{refused}"
    );
    server.ok("zpool clear -nF tank");
    server.ok("zpool clear -F tank");
    assert!(server.ok("zpool help").contains("Usage"));
    let guid = server.ok("zpool get -Hpo value guid tank");
    let guid: u64 = guid.trim().parse().expect("a number");
    server.ok("zpool export tank");
    // A cache file as OpenZFS keeps it says what to look for, and where.
    let mut disk = NvList::new();
    disk.set("type", "file").set("path", disks[0].as_str());
    let mut root = NvList::new();
    root.set("type", "root");
    root.set("children", NvValue::ListArray(vec![disk]));
    let mut pool = NvList::new();
    pool.set("name", "tank").set("pool_guid", guid);
    pool.set("vdev_tree", NvValue::List(root));
    let mut cache = NvList::new();
    cache.set("tank", NvValue::List(pool));
    let file = server.path("zpool.cache");
    let text = cache.encode(NvEncoding::Xdr).expect("it is encoded");
    std::fs::write(&file, text).expect("a cache file");
    let file = file.to_string_lossy();
    let found = server.ok(&format!("zpool import -c {file}"));
    assert!(found.contains("pool: tank"), "{found}");
    server.ok(&format!("zpool import -c {file} tank"));
    let other = server.text("other");
    std::fs::write(&other, "no list at all").expect("a file");
    let refused = server.fails(&format!("zpool import -c {other}"));
    assert!(refused.contains("is no cache file"), "{refused}");
    server.ok("zpool destroy tank");
}

/// Goal: who makes a usual mistake is told what to do, in words without numbers of the system's or
/// names of Rust's.
#[test]
fn errors_say_what_to_do() {
    let server = Server::start();
    let disk = server.disks(1, 128 << 20).remove(0);
    server.ok(&format!("zpool create -O mountpoint=none -d tank {disk}"));
    server.ok("zfs create -s -V 8M tank/vol");
    server.ok("zfs create -o mountpoint=none tank/fs");
    let says = |words: &str, expected: &str| {
        let said = server.fails(words);
        assert!(said.contains(expected), "{words}: {said}");
        for bad in ["os error", "Error {", "Some("] {
            assert!(!said.contains(bad), "{words}: {said}");
        }
    };
    says("zfs mount tank/vol", "it is a volume");
    says("zfs mount tank/vol", "zvol/tank/vol");
    says("zfs set sharenfs=rw=fe80::1 tank/fs", "in brackets");
    says("zfs list -o nope", "recordsize");
    says("zpool set compatibility=nope tank", "nope");
    let value = server.ok("zpool get -Ho value compatibility tank");
    assert_eq!(value, "off\n");
    says("zpool create two /nonexistent", "/nonexistent");
    says("zpool import none", "-d DIRECTORY");
    for force in ["", "-f "] {
        let words = format!("zpool replace {force}tank {disk} {disk}");
        says(&words, "must be manually repaired");
        says(&words, &format!("{disk} is part of active pool 'tank'"));
    }
    for words in [
        "zfs send --help",
        "zfs receive --help",
        "zfs help list",
        "zpool help add",
    ] {
        assert!(server.ok(words).contains("Usage"), "{words}");
    }
    server.ok("zpool destroy tank");
}

/// Goal: a change that has to mount filesystems anew is refused whole where one of them is in use.
#[test]
fn acltype_of_what_is_in_use_stays_as_it_is() {
    if !can_mount() {
        return;
    }
    let server = Server::start();
    let disk = server.disks(1, 128 << 20).remove(0);
    let top = server.path("tank");
    server.ok(&format!("zpool create -m {} tank {disk}", top.display()));
    server.ok("zfs create tank/a");
    server.ok("zfs create tank/a/b");
    let file = top.join("a/b/file");
    let values = || server.ok("zfs get -Ho value acltype tank/a tank/a/b");
    let before = values();
    for busy in [file.clone(), top.join("a/file")] {
        let held = std::fs::File::create(&busy).expect("a file");
        let refused = server.fails("zfs set acltype=posix tank/a");
        assert!(refused.contains("in use"), "{refused}");
        assert_eq!(values(), before);
        assert!(busy.exists() && file.exists());
        drop(held);
    }
    server.ok("zfs set acltype=posix tank/a");
    run("setfacl", &["-m", "u:1:r", &file.to_string_lossy()]);
    // What is so already is left mounted.
    let held = std::fs::File::open(&file).expect("a file");
    server.ok("zfs set acltype=posixacl tank/a");
    drop(held);
    server.ok("zpool destroy tank");
}

/// Goal: what somebody did on purpose is no emergency: a device that was faulted by hand is a
/// warning, and nothing is left of a pool that was destroyed.
#[test]
fn alerts_know_what_people_did_themselves() {
    let server = Server::start();
    let disks = server.disks(2, 128 << 20);
    server.ok(&format!(
        "zpool create -O mountpoint=none tank mirror {}",
        disks.join(" ")
    ));
    server.ok(&format!("zpool offline -f tank {}", disks[0]));
    server.wait_until("an alert", || server.ok("alerts").contains(&disks[0]));
    let alerts = server.ok("alerts");
    assert!(!alerts.contains("CRITICAL"), "{alerts}");
    server.ok("zpool destroy tank");
    server.wait_until("it is over", || !server.ok("alerts").contains("tank"));
}
