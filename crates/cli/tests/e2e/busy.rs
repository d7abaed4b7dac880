//! Filesystems that are in use while something is done to them.

use std::fs;
use std::os::unix::fs::{FileExt, OpenOptionsExt};

use crate::harness::{can_mount, run};
use crate::properties::{done, tank};

/// Whoever asks for a filesystem that is open somewhere gets that one: a second would free what the
/// first still has open, and write over what it has changed.
#[test]
fn a_filesystem_is_open_once_whoever_asks() {
    if !can_mount() {
        return;
    }
    let server = tank();
    server.ok("zfs create tank/a");
    let (place, path) = (server.text("mnt/a"), server.path("mnt/a/gone"));
    let content = vec![0x5a; 1 << 20];
    fs::write(&path, &content).unwrap();
    server.ok("zpool sync tank");
    let mut how = fs::File::options();
    // Past the kernel's memory of it.
    how.read(true)
        .custom_flags(rustix::fs::OFlags::DIRECT.bits() as i32);
    let open = how.open(&path).unwrap();
    fs::remove_file(&path).unwrap();
    // Nowhere mounted, and in use all the same.
    run("umount", &["-l", &place]);
    server.ok("zfs userspace tank/a");
    let columns: Vec<String> = (0..50).map(|id| format!("userused@{id}")).collect();
    server.ok(&format!("zfs list -H -o {} tank/a", columns.join(",")));
    server.ok("zfs set userquota@4321=1G tank/a");
    let said = server.ok("zfs userspace -H -o name,quota -n tank/a");
    assert!(said.contains("4321\t1G"), "{said}");
    let mut room = vec![0; content.len() + 4096];
    let at = room.as_ptr().align_offset(4096);
    open.read_exact_at(&mut room[at..at + content.len()], 0)
        .unwrap();
    assert!(room[at..at + content.len()] == content[..]);
    drop(open);
    done(&server);
}

/// `zfs rename -u` leaves what is mounted where it is, in use or not, and a volume that is open
/// stays open under its new name.
#[test]
fn what_is_in_use_is_renamed() {
    if !can_mount() {
        return;
    }
    let server = tank();
    server.ok("zfs create -p tank/old/child");
    server.ok("zfs snapshot tank/old/child@s");
    let place = server.text("mnt/old/child");
    fs::write(server.path("mnt/old/child/file"), "x").unwrap();
    let open = fs::File::open(server.path("mnt/old/child/file")).unwrap();
    assert!(
        server
            .fails("zfs rename tank/old tank/new")
            .contains("in use")
    );
    server.ok("zfs rename -u tank/old tank/new");
    let mounted = server.ok("zfs mount");
    for (name, place) in [("tank/new", "mnt/old"), ("tank/new/child", "mnt/old/child")] {
        let place = server.text(place);
        let mut lines = mounted
            .lines()
            .map(|line| line.split_whitespace().collect::<Vec<_>>());
        assert!(lines.any(|line| line == [name, &*place]), "{mounted}");
    }
    assert_eq!(
        server.ok(&format!("zfs list -H -o name {place}")).trim(),
        "tank/new/child"
    );
    server.ok("zfs snapshot tank/new/child@t");
    let mut shown: Vec<_> = fs::read_dir(server.path("mnt/old/child/.zfs/snapshot"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    shown.sort();
    assert_eq!(shown, ["s", "t"]);
    assert!(!server.path("mnt/old/child/.zfs/snapshot/s/file").exists());
    let there = server.path("mnt/old/child/.zfs/snapshot/t/file");
    assert_eq!(fs::read_to_string(there).unwrap(), "x");
    drop(open);
    server.ok("zfs unmount tank/new");
    server.ok("zfs mount -R tank/new/child tank/new");
    assert!(server.path("mnt/new/child/file").exists());

    server.ok("zfs create -s -V 16M tank/vol");
    server.ok("zfs snapshot tank/vol@s");
    server.ok("zfs set snapdev=visible tank/vol");
    let mut how = fs::File::options();
    let device = how
        .read(true)
        .write(true)
        .open(server.state().join("zvol/tank/vol"))
        .unwrap();
    device.write_all_at(&[7; 4096], 0).unwrap();
    server.ok("zfs rename tank/vol tank/other");
    device.write_all_at(&[8; 4096], 4096).unwrap();
    device.sync_all().unwrap();
    let names = |of: &str| server.state().join("zvol/tank").join(of).exists();
    assert!(names("other") && names("other@s") && !names("vol") && !names("vol@s"));
    let content = fs::read(server.state().join("zvol/tank/other")).unwrap();
    assert_eq!((content[0], content[4096], content[8192]), (7, 8, 0));
    drop(device);
    server.ok("zfs destroy -r tank/other");
    done(&server);
}

/// What a pool has mounted inside of what another has is mounted after it, and unmounted before;
/// one in use does not keep others mounted.
#[test]
fn pools_mount_inside_of_each_other() {
    if !can_mount() {
        return;
    }
    let server = tank();
    let is_mounted = |name: &str| crate::properties::value(&server, "mounted", name) == "yes";
    let disk = server.path("other.disk");
    fs::File::create(&disk).unwrap().set_len(128 << 20).unwrap();
    // The one that comes first by name is the inner one.
    let (outer, inner) = (server.text("outer"), server.text("outer/inner"));
    server.ok(&format!("zfs create -o mountpoint={outer} tank/outer"));
    server.ok(&format!("zpool create -m {inner} inner {}", disk.display()));
    for _ in 0..2 {
        server.ok("zfs unmount -a");
        assert!(!is_mounted("tank/outer") && !is_mounted("inner"));
        server.ok("zfs mount -a");
        assert!(is_mounted("tank/outer") && is_mounted("inner"));
        fs::write(format!("{inner}/file"), "x").unwrap();
    }
    let open = fs::File::open(format!("{inner}/file")).unwrap();
    server.ok("zfs create tank/idle");
    assert!(server.fails("zfs unmount -a").contains("in use"));
    assert!(is_mounted("inner") && is_mounted("tank/outer") && !is_mounted("tank/idle"));
    drop(open);
    server.ok("zpool destroy inner");
    done(&server);
}

/// A rollback of a filesystem that is in use, with another mounted inside that is too: nothing is
/// unmounted, and whoever has files open goes on with what the snapshot has.
#[test]
fn what_is_in_use_is_rolled_back() {
    if !can_mount() {
        return;
    }
    let server = tank();
    server.ok("zfs create -p tank/fs/in");
    let path = |name: &str| server.path("mnt/fs").join(name);
    let write = |name: &str, text: &str| fs::write(path(name), text).unwrap();
    fs::create_dir(path("d")).unwrap();
    write("d/kept", "old");
    write("in/file", "inside");
    server.ok("zfs snapshot tank/fs@a");
    write("d/kept", "newer");
    write("d/more", "x");
    server.ok("zfs snapshot tank/fs@b");
    assert_eq!(
        fs::read_to_string(path(".zfs/snapshot/b/d/more")).unwrap(),
        "x"
    );
    let open = |name: &str| {
        fs::File::options()
            .read(true)
            .write(true)
            .open(path(name))
            .unwrap()
    };
    let (kept, more, inside) = (open("d/kept"), open("d/more"), open("in/file"));
    assert!(server.fails("zfs rollback tank/fs@a").contains("use '-r'"));
    server.ok("zfs rollback -r tank/fs@a");
    let content = |file: &fs::File| {
        let mut read = [0; 16];
        let length = file.read_at(&mut read, 0)?;
        Ok::<_, std::io::Error>(String::from_utf8_lossy(&read[..length]).into_owned())
    };
    assert_eq!(content(&kept).unwrap(), "old");
    assert!(content(&more).is_err() && !path("d/more").exists());
    assert_eq!(content(&inside).unwrap(), "inside");
    assert_eq!(fs::read_to_string(path("in/file")).unwrap(), "inside");
    kept.write_all_at(b"on", 0).unwrap();
    kept.sync_all().unwrap();
    assert_eq!(fs::read_to_string(path("d/kept")).unwrap(), "ond");
    let listed = server.ok("zfs list -Hr -t snapshot -o name tank/fs");
    assert_eq!(listed.trim(), "tank/fs@a");
    drop((kept, more, inside));
    server.ok("zfs unmount tank/fs");
    server.ok("zfs mount tank/fs");
    assert_eq!(fs::read_to_string(path("d/kept")).unwrap(), "ond");
    done(&server);
}
