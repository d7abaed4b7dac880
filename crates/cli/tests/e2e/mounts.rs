//! What is mounted where, in which order, and what properties, names and others' mounts make of it.

use std::fs;
use std::time::{Duration, UNIX_EPOCH};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::harness::{Server, can_mount, run};
use crate::properties::{done, tank, value};

/// Whatever the names say: what is mounted inside of another filesystem goes first, and all stay
/// when one is in use.
#[test]
fn what_was_mounted_last_is_unmounted_first() {
    if !can_mount() {
        return;
    }
    let server = tank();
    let is_mounted = |name: &str| value(&server, "mounted", name) == "yes";
    let outer = server.text("outer");
    server.ok(&format!("zfs create -o mountpoint={outer} tank/b"));
    server.ok(&format!("zfs create -o mountpoint={outer}/sub tank/a"));
    // What is mounted by hand only stays.
    let own = format!("-o canmount=noauto -o mountpoint={}", server.text("byhand"));
    server.ok(&format!("zfs create {own} tank/byhand"));
    server.ok("zfs mount tank/byhand");
    server.ok("zfs unmount -a");
    assert!(!is_mounted("tank/a") && !is_mounted("tank/b") && is_mounted("tank/byhand"));
    server.ok("zfs unmount tank/byhand");
    server.ok("zfs mount -a");
    assert!(is_mounted("tank/a") && is_mounted("tank/b"));
    server.ok("zpool export tank");
    server.ok(&format!("zpool import -d {} tank", server.text("disks")));
    assert!(is_mounted("tank/a") && is_mounted("tank/b"));

    server.ok("zfs create -p tank/h/x");
    server.ok("zfs create tank/h/y");
    let open = fs::File::create(server.path("mnt/h/x/open")).unwrap();
    assert!(server.fails("zfs unmount tank/h").contains("in use"));
    for name in ["tank/h", "tank/h/x", "tank/h/y"] {
        assert!(is_mounted(name), "{name}");
    }
    drop(open);
    server.ok("zfs unmount tank/h");
    for name in ["tank/h", "tank/h/x", "tank/h/y"] {
        assert!(!is_mounted(name), "{name}");
    }
    done(&server);
}

/// What is mounted inside of a directory is still to be reached, and to be unmounted, after that
/// has a filesystem of its own; one in use keeps it from being mounted.
#[test]
fn nothing_of_ours_is_covered() {
    if !can_mount() {
        return;
    }
    let server = tank();
    server.ok("zfs create -p tank/up/in");
    fs::write(server.path("mnt/up/in/file"), "x").unwrap();
    server.ok("zfs create tank/up/in/deep");
    server.ok("zfs snapshot tank/up@s");
    server.ok("zfs set canmount=off tank/up");
    let file = server.path("mnt/up/in/file");
    assert_eq!(fs::read_to_string(&file).unwrap(), "x");
    server.ok("zfs set canmount=noauto tank/up");
    let open = fs::File::open(&file).unwrap();
    let refused = server.fails("zfs mount tank/up");
    assert!(
        refused.contains("it would cover what is mounted inside") && refused.contains("in use"),
        "{refused}"
    );
    drop(open);
    server.ok("zfs mount tank/up");
    fs::write(server.path("mnt/up/above"), "y").unwrap();
    assert_eq!(fs::read_to_string(&file).unwrap(), "x");
    let mounts = || {
        let inside = format!(" {}", server.text("mnt/up"));
        let table = fs::read_to_string("/proc/mounts").unwrap();
        table.lines().filter(|line| line.contains(&inside)).count()
    };
    assert_eq!(mounts(), 3);
    let refused = server.fails("zfs mount tank/up");
    assert!(refused.contains("filesystem already mounted"), "{refused}");
    server.ok("zfs rollback -f tank/up@s");
    assert!(!server.path("mnt/up/above").exists());
    assert_eq!(fs::read_to_string(&file).unwrap(), "x");
    assert_eq!(mounts(), 3);
    // Into the place of another, and away again.
    server.ok("zfs create tank/other");
    let place = server.text("mnt/up");
    server.ok(&format!("zfs set mountpoint={place} tank/other"));
    server.ok("zfs inherit mountpoint tank/other");
    assert_eq!(fs::read_to_string(&file).unwrap(), "x");
    assert_eq!(mounts(), 3);
    server.ok("zfs unmount tank/up");
    assert_eq!(mounts(), 0);
    done(&server);
}

/// A rollback to before the directories of filesystems inside were made, where they cannot be made
/// anew, says that it was done, and names each that is not mounted any more.
#[test]
fn a_rollback_tells_what_has_lost_its_place() {
    if !can_mount() {
        return;
    }
    let server = tank();
    server.ok("zfs create tank/up");
    server.ok("zfs snapshot tank/up@empty");
    server.ok("zfs create tank/up/a");
    server.ok("zfs create tank/up/b");
    fs::write(server.path("mnt/up/new"), "x").unwrap();
    server.ok("zfs set readonly=on tank/up");
    let told = server.fails("zfs rollback tank/up@empty");
    assert!(
        told.starts_with("rolled back to 'tank/up@empty', but"),
        "{told}"
    );
    for child in ["cannot mount 'tank/up/a'", "cannot mount 'tank/up/b'"] {
        assert!(told.contains(child), "{told}");
    }
    assert!(!server.path("mnt/up/new").exists());
    server.ok("zfs set readonly=off tank/up");
    server.ok("zfs mount -a");
    assert_eq!(value(&server, "mounted", "tank/up/a"), "yes");
    done(&server);
}

/// What is refused has changed nothing, and what was to be destroyed is mounted again.
#[test]
fn a_refused_destroy_leaves_everything_mounted() {
    if !can_mount() {
        return;
    }
    let server = Server::start();
    let disks = server.disks(1, 256 << 20);
    let mount = server.text("mnt");
    server.ok(&format!("zpool create -d -m {mount} tank {}", disks[0]));
    server.ok("zfs create -p tank/c/d");
    server.ok("zfs snapshot tank/c/d@kept");
    server.ok("zfs hold keep tank/c/d@kept");
    server.fails("zfs destroy -r tank/c");
    for name in ["tank/c", "tank/c/d"] {
        assert_eq!(value(&server, "mounted", name), "yes");
    }
    fs::write(server.path("mnt/c/d/file"), "x").unwrap();
    // Without features, what is destroyed is freed at once.
    server.ok("zfs release keep tank/c/d@kept");
    server.ok("zfs destroy -r tank/c");
    server.fails("zfs list tank/c");
    done(&server);
}

#[test]
fn mounts_follow_canmount_mountpoint_and_names() {
    if !can_mount() {
        return;
    }
    let server = tank();
    let is_mounted = |name: &str| value(&server, "mounted", name) == "yes";
    // Only `off` takes a mount away, and what was mounted by hand is mounted again.
    server.ok("zfs create -p tank/up/m");
    let open = fs::File::create(server.path("mnt/up/m/open")).unwrap();
    for word in ["noauto", "on", "noauto"] {
        server.ok(&format!("zfs set canmount={word} tank/up/m"));
        assert!(is_mounted("tank/up/m"));
    }
    assert!(
        server
            .fails("zfs set canmount=off tank/up/m")
            .contains("in use")
    );
    drop(open);
    server.ok("zfs rename tank/up/m tank/up/n");
    assert!(server.path("mnt/up/n/open").exists());
    server.ok("zfs rename tank/up tank/down");
    assert!(server.path("mnt/down/n/open").exists());
    let elsewhere = server.text("elsewhere");
    server.ok(&format!("zfs set mountpoint={elsewhere} tank/down"));
    assert!(server.path("elsewhere/n/open").exists());
    // Directories that only names chose go with them, others stay.
    for gone in ["mnt/up", "mnt/down"] {
        assert!(!server.path(gone).exists(), "{gone}");
    }
    server.ok("zfs set canmount=off tank/down/n");
    assert!(!is_mounted("tank/down/n") && is_mounted("tank/down"));
    server.ok("zfs set canmount=on tank/down/n");
    assert!(!is_mounted("tank/down/n"));
    server.ok("zfs destroy -r tank/down");
    assert!(server.path("elsewhere").exists());
    server.ok("zfs create tank/gone");
    server.ok("zfs create tank/full");
    server.ok("zfs unmount tank/full");
    assert!(server.path("mnt/full").exists());
    fs::write(server.path("mnt/full/below"), "x").unwrap();
    server.ok("zfs mount tank/full");
    server.ok("zfs destroy tank/gone");
    server.ok("zfs destroy tank/full");
    assert!(!server.path("mnt/gone").exists());
    assert!(server.path("mnt/full/below").exists());
    // Options of one mount show as such, and give way to a property that is set.
    server.ok("zfs create tank/temporary");
    server.ok("zfs unmount tank/temporary");
    server.ok("zfs mount -o ro,noexec tank/temporary");
    let shown = || {
        let text = server.ok("zfs get -Ho value,source readonly,exec,setuid tank/temporary");
        let writes = fs::write(server.path("mnt/temporary/file"), "x").is_ok();
        (text.replace(['\t', '\n'], " "), writes)
    };
    let expected = "on temporary off temporary on default ";
    assert_eq!(shown(), (expected.to_owned(), false));
    server.ok("zfs set readonly=off tank/temporary");
    let expected = "off local off temporary on default ";
    assert_eq!(shown(), (expected.to_owned(), true));
    server.ok("zfs mount -o remount,ro,exec tank/temporary");
    let expected = "on temporary on default on default ";
    assert_eq!(shown(), (expected.to_owned(), false));
    server.ok("zfs mount -o remount,rw tank/temporary");
    let expected = "off local on default on default ";
    assert_eq!(shown(), (expected.to_owned(), true));
    assert!(
        server
            .fails("zfs mount -o remount,bad tank/temporary")
            .contains("'bad' is not supported")
    );
    // Access times are as the properties say, or as the mount does.
    let file = server.path("mnt/temporary/read");
    fs::write(&file, "x").unwrap();
    let old = UNIX_EPOCH + Duration::from_secs(1 << 29);
    let moves = || {
        // The kernel's page cache would answer, and attributes are good for a second.
        let input = format!("if={}", file.display());
        run(
            "dd",
            &["iflag=direct", "status=none", "of=/dev/null", &input],
        );
        std::thread::sleep(Duration::from_millis(1100));
        fs::metadata(&file).unwrap().accessed().unwrap() != old
    };
    let times = || {
        let text = server.ok("zfs get -Ho value,source atime,relatime tank/temporary");
        text.replace(['\t', '\n'], " ")
    };
    for (command, shown, moved) in [
        (
            "zfs set relatime=off tank/temporary",
            "on default off local ",
            true,
        ),
        (
            "zfs mount -o remount,noatime,relatime tank/temporary",
            "off temporary on temporary ",
            false,
        ),
        (
            "zfs mount -o remount,atime,norelatime tank/temporary",
            "on default off local ",
            true,
        ),
        (
            "zfs mount -o remount,noatime tank/temporary",
            "off temporary off local ",
            false,
        ),
        (
            "zfs set atime=on tank/temporary",
            "on local off local ",
            true,
        ),
        (
            "zfs mount -o remount,ro tank/temporary",
            "on local off local ",
            false,
        ),
        (
            "zfs mount -o remount,rw tank/temporary",
            "on local off local ",
            true,
        ),
    ] {
        server.ok("zfs mount -o remount,rw tank/temporary");
        let same = fs::FileTimes::new().set_accessed(old).set_modified(old);
        fs::File::open(&file).unwrap().set_times(same).unwrap();
        server.ok(command);
        assert_eq!(times(), shown, "{command}");
        assert_eq!(moves(), moved, "{command}");
    }
    // All that inherit a mount point follow it, from nowhere too.
    server.ok("zfs create -o mountpoint=none tank/none");
    server.ok("zfs create -p tank/none/a/b");
    server.ok("zfs create -o canmount=noauto tank/none/noauto");
    server.ok("zfs create -u -o mountpoint=/nowhere tank/none/own");
    let place = server.text("place");
    for (command, mounted) in [
        (format!("zfs set mountpoint={place} tank/none"), true),
        ("zfs set mountpoint=none tank/none".into(), false),
        ("zfs inherit mountpoint tank/none".into(), true),
        ("zfs set mountpoint=legacy tank/none".into(), false),
        (format!("zfs set mountpoint={place} tank/none/a"), true),
    ] {
        server.ok(&command);
        assert_eq!(is_mounted("tank/none/a/b"), mounted, "{command}");
        assert_eq!(is_mounted("tank/none/a"), mounted, "{command}");
        assert!(!is_mounted("tank/none/noauto"), "{command}");
        assert!(!is_mounted("tank/none/own"), "{command}");
    }
    assert!(!server.path("mnt/none").exists());
    server.ok("zpool export tank");
    assert!(server.path("mnt").exists() && server.path("place").exists());
    let disks = server.text("disks");
    let altroot = server.text("alt");
    server.ok(&format!("zpool import -R {altroot} -d {disks} tank"));
    server.ok("zfs inherit mountpoint tank");
    assert!(server.path("alt/tank/full").exists());
    done(&server);
    assert!(server.path("alt").exists() && !server.path("alt/tank").exists());
}

/// Goal: nobody's mount goes in place of one that it covers, and no dead one stays.
#[test]
fn covered_mounts_are_told_and_left_alone() {
    if !can_mount() {
        return;
    }
    let server = tank();
    let is_mounted = |name: &str| value(&server, "mounted", name) == "yes";
    let place = server.text("place");
    for name in ["lower", "upper"] {
        server.ok(&format!("zfs create -o mountpoint={place} tank/{name}"));
        fs::write(server.path("place").join(name), name).expect("a file");
    }
    let refused = server.fails("zfs unmount tank/lower");
    assert!(
        refused.contains("tank/upper is mounted over it"),
        "{refused}"
    );
    assert!(is_mounted("tank/lower") && is_mounted("tank/upper"));
    // By path it is the one that can be seen.
    server.ok(&format!("zfs unmount {place}"));
    assert!(is_mounted("tank/lower") && !is_mounted("tank/upper"));
    assert!(server.path("place/lower").exists());
    run("mount", &["-t", "tmpfs", "cover", &place]);
    let refused = server.fails("zpool export tank");
    assert!(refused.contains("cover is mounted over it"), "{refused}");
    run("umount", &[&place]);
    assert!(server.path("place/lower").exists());
    // Moved away it is mounted there, and bound to elsewhere as well it is in use.
    let moved = server.text("moved");
    fs::create_dir(&moved).expect("a directory");
    run("mount", &["--move", &place, &moved]);
    assert!(is_mounted("tank/lower"));
    let refused = server.fails("zfs mount tank/lower");
    assert!(refused.contains("already mounted"), "{refused}");
    let bound = server.text("bound");
    fs::create_dir(&bound).expect("a directory");
    run("mount", &["--bind", &moved, &bound]);
    let refused = server.fails("zpool export tank");
    assert!(refused.contains("still in use"), "{refused}");
    assert!(!server.path("moved/lower").exists() && server.path("bound/lower").exists());
    assert!(is_mounted("tank/lower"), "what is left of it");
    run("mount", &["--move", &bound, &place]);
    // By force nothing goes that others mounted inside.
    fs::create_dir(server.path("place/inner")).expect("a directory");
    let inner = format!("{place}/inner");
    run("mount", &["-t", "tmpfs", "inner", &inner]);
    for words in ["zfs unmount -f tank/lower", "zpool export -f tank"] {
        let refused = server.fails(words);
        assert!(
            refused.contains("inner is mounted inside of it"),
            "{words}: {refused}"
        );
    }
    run("umount", &[&inner]);
    done(&server);
    assert!(!server.path("place/lower").exists());
}

/// Goal: filesystems are cheap to have mounted, also when they are mounted again. (Zeroed buffers
/// of their threads, taken from memory that was used before, were there whole: 64 MiB for each
/// mount.)
#[test]
fn many_mounts_take_little_memory() {
    const COUNT: u64 = 40;
    if !can_mount() {
        return;
    }
    // The server is to raise its limit of descriptors to what it may have.
    let limit = getrlimit(Resource::Nofile);
    let lower = Rlimit {
        current: limit.maximum.map(|maximum| maximum - 1),
        ..limit
    };
    if limit.maximum.is_some() {
        setrlimit(Resource::Nofile, lower).expect("a lower limit");
    }
    let server = Server::start();
    let disk = &server.disks(1, 256 << 20)[0];
    let mount = server.text("mnt");
    server.ok(&format!("zpool create -m {mount} tank {disk}"));
    for i in 1..COUNT {
        server.ok(&format!("zfs create tank/d{i}"));
    }
    for _ in 0..2 {
        server.ok("zfs unmount -a");
        server.ok("zfs mount -a");
    }
    let mounted = server.ok("zfs mount");
    assert_eq!(mounted.lines().count() as u64, COUNT, "{mounted}");
    let lock = server.state().join("millpond.lock");
    let process = std::fs::read_to_string(lock).expect("the server's process");
    let told = |what: &str| {
        let path = format!("/proc/{}/{what}", process.trim());
        std::fs::read_to_string(path).expect("what the kernel tells of the server")
    };
    let status = told("status");
    let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = resident.and_then(|text| text.split_whitespace().next());
    let kib: u64 = kib.and_then(|text| text.parse().ok()).expect("a number");
    assert!(kib < COUNT * (16 << 10), "{kib} KiB");
    let limits = told("limits");
    let mut lines = limits.lines();
    let line = lines.find_map(|line| line.strip_prefix("Max open files"));
    let numbers: Vec<&str> = line.expect("the limit").split_whitespace().collect();
    assert_eq!(numbers[0], numbers[1]);
    server.ok("zpool destroy tank");
}
