//! Every settable property takes effect, or is refused by name with the reason; quotas; options of
//! `zfs create`, `destroy`, `rename`, `inherit`.

use std::fs;
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, chown};
use std::path::Path;

use crate::harness::{Server, can_mount, run, text_of, zdb_is_clean};
use crate::users::{as_nobody, can_be_others, program};

/// A server with a pool `tank` mounted at `mnt`.
pub(crate) fn tank() -> Server {
    let server = Server::start();
    let disk = &server.disks(1, 1 << 30)[0];
    let mountpoint = server.text("mnt");
    server.ok(&format!(
        "zpool create -O mountpoint={mountpoint} tank {disk}"
    ));
    server
}

pub(crate) fn done(server: &Server) {
    server.ok("zpool export tank");
    zdb_is_clean(&server.path("disks"), "tank");
}

pub(crate) fn value(server: &Server, property: &str, name: &str) -> String {
    let text = server.ok(&format!("zfs get -Hpo value {property} {name}"));
    text.trim().to_owned()
}

/// Data that does not compress.
fn noise(bytes: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    (0..bytes)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 32) as u8
        })
        .collect()
}

fn raw(error: &std::io::Error) -> i32 {
    error.raw_os_error().unwrap_or(0)
}

#[test]
fn what_would_have_no_effect_is_refused_by_name() {
    if !can_mount() {
        return;
    }
    let server = tank();
    server.ok("zfs create -s -V 16M tank/vol");
    for (name, setting) in [
        ("tank", "nbmand=on"),
        ("tank", "vscan=on"),
        ("tank", "zoned=on"),
        ("tank", "sharenfs=crossmnt"),
        ("tank", "sharesmb=guestok"),
        ("tank", "context=system_u:object_r:tmp_t:s0"),
        ("tank", "fscontext=x"),
        ("tank", "defcontext=x"),
        ("tank", "rootcontext=x"),
        ("tank", "mlslabel=x"),
        ("tank", "acltype=nfsv4"),
        ("tank", "version=4"),
        ("tank/vol", "volthreading=off"),
    ] {
        let property = setting.split('=').next().unwrap();
        let message = server.fails(&format!("zfs set {setting} {name}"));
        assert!(message.contains(property), "{setting}: {message}");
        assert_eq!(
            server
                .ok(&format!("zfs get -Hp -o source {property} {name}"))
                .trim()
                .replace("default", "-"),
            "-",
            "{setting}"
        );
        if property != "version" && name == "tank" {
            let message = server.fails(&format!("zfs create -o {setting} tank/no"));
            assert!(message.contains(property), "{setting}: {message}");
        }
    }
    // The default is no setting worth refusing, nor is what is.
    for setting in [
        "dedup=off",
        "nbmand=off",
        "sharenfs=off",
        "direct=disabled",
        "direct=always",
        "version=5",
    ] {
        server.ok(&format!("zfs set {setting} tank"));
    }
    for (name, setting, reason) in [
        ("tank", "recordsize=3K", "power of 2"),
        ("tank", "quota=1K", "less than current"),
        ("tank", "reservation=100G", "available space"),
        ("tank", "casesensitivity=mixed", "readonly"),
        ("tank", "volblocksize=8K", "does not apply"),
        ("tank/vol", "quota=1G", "does not apply"),
        ("tank", "refreservation=auto", "only allowed on volumes"),
        ("tank", "used=1", "readonly"),
        ("tank", "copies=4", "must be one of"),
        ("tank", "mountpoint=here", "absolute path"),
    ] {
        let message = server.fails(&format!("zfs set {setting} {name}"));
        assert!(message.contains(reason), "{setting}: {message}");
    }
    done(&server);
}

#[test]
fn properties_of_mounted_filesystems_take_effect_at_once() {
    if !can_mount() {
        return;
    }
    let server = tank();
    server.ok("zfs create tank/fs");
    let top = server.path("mnt/fs");
    let script = top.join("script");
    fs::write(&script, "#!/bin/sh\nexit 0\n").unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    let runs = || std::process::Command::new(&script).status().is_ok();
    assert!(runs());
    server.ok("zfs set exec=off setuid=off devices=off tank");
    assert!(!runs(), "exec=off on a parent");
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    // By its mount point: tests that run beside this one have a tank/fs as well.
    let start = format!("tank/fs {} ", top.display());
    let line = mounts
        .lines()
        .find(|line| line.starts_with(&start))
        .unwrap();
    assert!(
        ["noexec", "nosuid", "nodev"]
            .iter()
            .all(|word| line.contains(word)),
        "{line}"
    );
    server.ok("zfs inherit exec tank");
    server.ok("zfs set setuid=on devices=on tank");
    assert!(runs());
    // readonly, with a file open for writing, and back.
    let open = fs::File::create(top.join("open")).unwrap();
    server.ok("zfs set readonly=on tank/fs");
    assert_eq!(
        fs::write(top.join("x"), "x").unwrap_err().kind(),
        ErrorKind::ReadOnlyFilesystem
    );
    drop(open);
    server.ok("zfs set readonly=off tank/fs");
    fs::write(top.join("x"), "x").unwrap();
    // snapdir.
    server.ok("zfs snapshot tank/fs@one");
    let listed = || {
        fs::read_dir(&top)
            .unwrap()
            .any(|entry| entry.unwrap().file_name() == ".zfs")
    };
    assert!(!listed() && top.join(".zfs/snapshot/one/x").exists());
    server.ok("zfs set snapdir=visible tank/fs");
    server.wait_until(".zfs is listed", || {
        fs::write(top.join("x"), "y").is_ok() && listed()
    });
    server.ok("zfs set snapdir=disabled tank/fs");
    assert!(!top.join(".zfs").exists() && !top.join(".zfs/snapshot").exists());
    server.ok("zfs set snapdir=hidden tank/fs");
    server.wait_until(".zfs is back", || top.join(".zfs/snapshot/one/x").exists());
    // atime, relatime.
    let times = || {
        fs::metadata(&script)
            .map(|found| (found.atime(), found.atime_nsec()))
            .unwrap()
    };
    server.ok("zfs set atime=off tank/fs");
    let before = times();
    fs::read(&script).unwrap();
    assert_eq!(times(), before);
    // acltype: the kernel learns of it as the filesystem is mounted anew.
    assert_eq!(
        run("getfacl", &["-cp", &script.to_string_lossy()])
            .lines()
            .filter(|l| l.starts_with("user:"))
            .count(),
        1
    );
    let set_acl = || {
        std::process::Command::new("setfacl")
            .args(["-m", "u:1:r"])
            .arg(&script)
            .output()
            .unwrap()
    };
    assert!(!set_acl().status.success());
    server.ok("zfs set acltype=posix tank/fs");
    let outcome = set_acl();
    assert!(outcome.status.success(), "{}", text_of(&outcome));
    assert!(run("getfacl", &["-cpn", &script.to_string_lossy()]).contains("user:1:r--"));
    // xattr=off refuses, sa and dir keep.
    for (setting, works) in [("sa", true), ("off", false), ("dir", true), ("on", true)] {
        server.ok(&format!("zfs set xattr={setting} tank/fs"));
        let outcome = std::process::Command::new("setfattr")
            .args(["-n", &format!("user.{setting}"), "-v", "x"])
            .arg(&script)
            .output()
            .unwrap();
        assert_eq!(
            outcome.status.success(),
            works,
            "xattr={setting}: {}",
            text_of(&outcome)
        );
    }
    // What files are made of.
    for (setting, file, bytes) in [
        ("recordsize=16K", "small", 16384),
        ("recordsize=1M", "big", 1 << 20),
    ] {
        server.ok(&format!("zfs set {setting} tank/fs"));
        fs::write(top.join(file), noise(3 << 20)).unwrap();
        assert_eq!(fs::metadata(top.join(file)).unwrap().blksize(), bytes);
    }
    let space = |settings: &str, name: &str, data: &[u8]| {
        server.ok(&format!("zfs set {settings} tank/fs"));
        fs::write(top.join(name), data).unwrap();
        server.ok("zpool sync tank");
        fs::metadata(top.join(name)).unwrap().blocks() * 512
    };
    let plain = space(
        "compression=off copies=1 recordsize=128K",
        "plain",
        &vec![7; 4 << 20],
    );
    let double = space("copies=2", "double", &vec![7; 4 << 20]);
    assert!(
        plain > 4 << 20 && double > plain * 19 / 10,
        "{plain} {double}"
    );
    for compression in [
        "on",
        "lz4",
        "lzjb",
        "gzip-1",
        "gzip-9",
        "zle",
        "zstd",
        "zstd-19",
        "zstd-fast-100",
    ] {
        let packed = space(
            &format!("copies=1 compression={compression}"),
            compression,
            &vec![0x55; 1 << 20],
        );
        let most = if compression == "zle" {
            2 << 20
        } else {
            200 << 10
        };
        assert!(packed < most, "{compression}: {packed}");
    }
    for checksum in [
        "off",
        "fletcher2",
        "fletcher4",
        "sha256",
        "sha512",
        "skein",
        "edonr",
        "blake3",
        "on",
    ] {
        space(
            &format!("checksum={checksum} compression=off"),
            &format!("sum-{checksum}"),
            &noise(100_000),
        );
    }
    for (setting, word) in [
        ("primarycache", "none"),
        ("primarycache", "metadata"),
        ("secondarycache", "metadata"),
        ("prefetch", "none"),
        ("logbias", "throughput"),
        ("sync", "always"),
        ("sync", "disabled"),
        ("redundant_metadata", "none"),
        ("redundant_metadata", "some"),
        ("special_small_blocks", "4096"),
        ("dnodesize", "16k"),
        ("aclinherit", "passthrough"),
        ("aclmode", "restricted"),
        ("longname", "on"),
        ("overlay", "off"),
        ("snapshot_limit", "9"),
        ("filesystem_limit", "9"),
    ] {
        server.ok(&format!("zfs set {setting}={word} tank/fs"));
        assert_eq!(value(&server, setting, "tank/fs"), word);
        let file = top.join(format!("with-{setting}-{word}"));
        fs::write(&file, noise(300_000)).unwrap();
        assert_eq!(fs::read(&file).unwrap(), noise(300_000));
    }
    let long = "n".repeat(700);
    fs::write(top.join(&long), "long").unwrap();
    server.ok("zfs set longname=off tank/fs");
    assert_eq!(
        raw(&fs::write(top.join("m".repeat(300)), "").unwrap_err()),
        rustix::io::Errno::NAMETOOLONG.raw_os_error()
    );
    assert_eq!(fs::read_to_string(top.join(&long)).unwrap(), "long");
    // canmount and mountpoint.
    server.ok("zfs set canmount=off tank/fs");
    assert!(!script.exists());
    server.ok("zfs set canmount=on tank/fs");
    server.ok(&format!(
        "zfs set mountpoint={} tank/fs",
        server.text("elsewhere")
    ));
    server.command(&["zfs", "mount", "tank/fs"]);
    assert!(server.path("elsewhere/script").exists());
    done(&server);
}

#[test]
fn quotas_and_reservations_hold() {
    if !can_mount() {
        return;
    }
    let server = tank();
    let mib = 1 << 20;
    let full = |error: std::io::Error| {
        assert!(
            matches!(
                error.kind(),
                ErrorKind::QuotaExceeded | ErrorKind::StorageFull
            ),
            "{error}"
        );
    };
    // Writes until it is refused; answers how much went in.
    let fill = |path: &Path, most: usize| -> Result<(), std::io::Error> {
        let mut file = fs::File::create(path)?;
        for _ in 0..most {
            file.write_all(&noise(mib))?;
            file.sync_data()?;
        }
        Ok(())
    };
    for property in ["quota", "refquota"] {
        server.ok(&format!(
            "zfs create -o compression=off -o {property}=20M tank/{property}"
        ));
        let file = server.path(&format!("mnt/{property}/file"));
        full(fill(&file, 64).unwrap_err());
        let used: u64 = value(&server, "referenced", &format!("tank/{property}"))
            .parse()
            .unwrap();
        assert!((10 << 20..=24 << 20).contains(&used), "{property}: {used}");
        // Deleting works when it is full.
        fs::remove_file(&file).unwrap();
        server.wait_until("there is room again", || fill(&file, 4).is_ok());
    }
    let before: u64 = value(&server, "available", "tank").parse().unwrap();
    server.ok("zfs create -o reservation=100M -o refreservation=200M tank/kept");
    let after: u64 = value(&server, "available", "tank").parse().unwrap();
    assert!(before - after >= 199 << 20, "{before} {after}");
    server.ok("zfs set reservation=none refreservation=none tank/kept");
    // Users, groups, projects.
    server.ok("zfs create -o compression=off -o userquota@7=4M tank/own");
    let top = server.path("mnt/own");
    fs::set_permissions(&top, fs::Permissions::from_mode(0o777)).unwrap();
    let owned = |name: &str, uid: Option<u32>, gid: Option<u32>| -> Result<(), std::io::Error> {
        let path = top.join(name);
        let file = fs::File::create(&path)?;
        chown(&path, uid, gid)?;
        for at in 0..16 {
            file.write_all_at(&noise(mib), at * mib as u64)?;
            file.sync_data()?;
            server.ok("zpool sync tank");
        }
        Ok(())
    };
    let edquot = |outcome: Result<(), std::io::Error>| {
        assert_eq!(
            raw(&outcome.unwrap_err()),
            rustix::io::Errno::DQUOT.raw_os_error()
        );
    };
    edquot(owned("seven", Some(7), None));
    server.ok("zfs set groupquota@8=3M tank/own");
    edquot(owned("eight", None, Some(8)));
    // Nothing can be given to somebody who has too much.
    fs::write(top.join("gift"), "x").unwrap();
    edquot(chown(top.join("gift"), Some(7), None));
    edquot(chown(top.join("gift"), None, Some(8)));
    let shown = server.ok("zfs userspace -Hpo name,used,quota -n tank/own");
    assert!(
        shown
            .lines()
            .any(|line| line.starts_with("7\t") && line.ends_with("\t4194304")),
        "{shown}"
    );
    assert_eq!(
        value(&server, "groupquota@8", "tank/own"),
        (3 << 20).to_string()
    );
    server.ok("zfs set userobjquota@9=3 groupobjquota@9=100 tank/own");
    let mut made = 0;
    for n in 0..10 {
        let path = top.join(format!("o{n}"));
        if fs::write(&path, "")
            .and_then(|()| chown(&path, Some(9), None))
            .is_err()
        {
            break;
        }
        server.ok("zpool sync tank");
        made += 1;
    }
    assert_eq!(made, 3);
    // Projects.
    let project = top.join("project");
    fs::create_dir(&project).unwrap();
    let path = project.to_string_lossy().into_owned();
    server.ok(&format!("zfs project -s -p 77 {path}"));
    server.ok("zfs set projectquota@77=2M projectobjquota@77=50 tank/own");
    fs::create_dir(project.join("sub")).unwrap();
    edquot(owned("project/sub/file", None, None));
    let shown = server.ok(&format!("zfs project -r {path}"));
    assert!(
        shown.lines().count() == 3
            && shown
                .lines()
                .all(|line| line.trim_start().starts_with("77 ")),
        "{shown}"
    );
    assert!(
        server
            .ok("zfs projectspace -Hpo name,quota tank/own")
            .contains("77\t2097152")
    );
    assert_eq!(server.ok(&format!("zfs project -c -r {path}")), "");
    // A directory of a project has the room that the project has.
    let room = rustix::fs::statvfs(&project).unwrap();
    assert_eq!(room.f_blocks * room.f_frsize, 2 << 20);
    assert_eq!((room.f_bfree, room.f_bavail, room.f_files), (0, 0, 50));
    let whole = rustix::fs::statvfs(&top).unwrap();
    assert!(whole.f_blocks * whole.f_frsize > 100 << 20 && whole.f_bavail > 0);
    // Out of the project nothing is moved or linked into it.
    assert_eq!(
        raw(&fs::hard_link(top.join("gift"), project.join("gift")).unwrap_err()),
        rustix::io::Errno::XDEV.raw_os_error()
    );
    server.ok(&format!("zfs project -C -r {path}"));
    let shown = server.ok(&format!("zfs project -r {path}"));
    assert!(
        shown
            .lines()
            .all(|line| line.trim_start().starts_with("0 - ")),
        "{shown}"
    );
    // Those that have no quota have the default one.
    server.ok("zfs set defaultuserquota=6M defaultprojectobjquota=70 tank/own");
    let default = server.ok("zfs get -H -o value,source defaultuserquota tank/own");
    assert_eq!(default, "6M\t-\n");
    let all = server.ok("zfs get -H -o property,value,source all tank/own");
    let quotas = "defaultuserquota\t6M\t-\ndefaultgroupquota\t0\t-\n\
                  defaultprojectquota\t0\t-\ndefaultuserobjquota\t0\t-\n\
                  defaultgroupobjquota\t0\t-\ndefaultprojectobjquota\t70\t-\n";
    assert!(all.contains(quotas), "{all}");
    let said = server.fails("zfs inherit defaultuserquota tank/own");
    assert!(said.contains("cannot be inherited"), "{said}");
    assert_eq!(value(&server, "defaultprojectobjquota", "tank/own"), "70");
    server.ok("zfs set defaultuserquota=none tank/own");
    let default = server.ok("zfs get -H -o value,source defaultuserquota tank/own");
    assert_eq!(default, "0\t-\n");
    server.ok("zfs set userquota@7=none groupquota@8=0 tank/own");
    assert_eq!(value(&server, "userquota@7", "tank/own"), "0");
    chown(top.join("gift"), Some(7), Some(8)).unwrap();
    for (setting, reason) in [
        ("userquota@nobody-of-that-name=1G", "nobody-of-that-name"),
        ("userused@7=1", "readonly"),
        ("userquota@7=x", "bad numeric value"),
    ] {
        let message = server.fails(&format!("zfs set {setting} tank/own"));
        assert!(message.contains(reason), "{message}");
    }
    // What was made before there were limits, and comes by another name, counts too.
    server.ok("zfs create -p tank/before/below");
    server.ok("zfs create tank/few");
    server.ok("zfs set filesystem_limit=3 snapshot_limit=1 tank/few");
    server.ok("zfs create tank/few/a");
    server.ok("zfs rename tank/before tank/few/before");
    server.ok("zfs snapshot tank/few@a");
    limits_bind_users(&server);
    // What stays below the limit may move.
    server.ok("zfs rename tank/few/a tank/few/before/a");
    assert_eq!(value(&server, "filesystem_count", "tank/few"), "3");
    done(&server);
}

#[test]
fn volumes_reserve_grow_shrink_and_hide() {
    if !can_mount() {
        return;
    }
    let server = tank();
    // OpenZFS 2.3 reserves this much (`zvol_volsize_to_reservation`).
    server.ok("zfs create -V 100M tank/thick");
    assert_eq!(value(&server, "refreservation", "tank/thick"), "108789760");
    server.ok("zfs set volsize=200M tank/thick");
    let grown: u64 = value(&server, "refreservation", "tank/thick")
        .parse()
        .unwrap();
    assert!(grown > 200 << 20);
    server.ok("zfs set volsize=50M tank/thick");
    assert!(
        value(&server, "refreservation", "tank/thick")
            .parse::<u64>()
            .unwrap()
            < 100 << 20
    );
    server.ok("zfs set refreservation=none tank/thick");
    server.ok("zfs set refreservation=auto tank/thick");
    assert!(
        value(&server, "refreservation", "tank/thick")
            .parse::<u64>()
            .unwrap()
            > 50 << 20
    );
    assert!(
        server
            .fails("zfs create -V 100G tank/huge")
            .contains("out of space")
    );
    // A size is rounded up to whole blocks.
    server.ok("zfs create -s -V 1000000 -b 64K tank/odd");
    assert_eq!(value(&server, "volsize", "tank/odd"), "1048576");
    for shift in 9..=24 {
        let (name, block) = (format!("tank/b{shift}"), 1u64 << shift);
        server.ok(&format!("zfs create -s -V 32M -b {block} {name}"));
        assert_eq!(value(&server, "volblocksize", &name), block.to_string());
        let file = server.state().join("zvol").join(&name);
        let file = fs::File::options()
            .read(true)
            .write(true)
            .open(file)
            .unwrap();
        let data = noise(3 << 20);
        file.write_all_at(&data, 12345).unwrap();
        file.sync_all().unwrap();
        let mut back = vec![0; data.len()];
        file.read_exact_at(&mut back, 12345).unwrap();
        assert!(back == data, "blocks of {block}");
        rustix::fs::fallocate(
            &file,
            rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE,
            0,
            32 << 20,
        )
        .unwrap();
        file.read_exact_at(&mut back, 12345).unwrap();
        assert!(back.iter().all(|byte| *byte == 0));
        drop(file);
        server.ok("zpool sync tank");
    }
    let file = server.state().join("zvol/tank/odd");
    assert!(file.exists());
    server.ok("zfs set volmode=none tank/odd");
    server.wait_until("the file is gone", || !file.exists());
    server.ok("zfs set volmode=dev tank/odd");
    server.wait_until("the file is back", || file.exists());
    // A file that is open stays until it is closed, or for good where the property is taken back.
    for stays in [false, true] {
        let open = fs::File::options()
            .read(true)
            .write(true)
            .open(&file)
            .unwrap();
        server.ok("zfs set volmode=none tank/odd");
        assert_eq!(value(&server, "volmode", "tank/odd"), "none");
        open.write_all_at(&[7; 4096], 8192).unwrap();
        open.sync_all().unwrap();
        assert!(file.exists());
        if stays {
            server.ok("zfs set volmode=dev tank/odd");
        }
        drop(open);
        if stays {
            assert_eq!(fs::read(&file).unwrap()[8192..8192 + 4096], [7; 4096]);
        } else {
            server.wait_until("the file is gone", || !file.exists());
            server.ok("zfs set volmode=dev tank/odd");
        }
    }
    server.ok("zfs snapshot tank/odd@s");
    server.ok("zfs set snapdev=visible tank");
    let snapshot = server.state().join("zvol/tank/odd@s");
    assert!(snapshot.exists());
    // What cannot be hidden is not set to be.
    let open = fs::File::open(&snapshot).unwrap();
    for command in ["zfs set snapdev=hidden tank", "zfs inherit snapdev tank"] {
        let message = server.fails(command);
        assert!(
            message.starts_with("cannot set property for 'tank'") && message.contains("busy"),
            "{message}"
        );
        assert_eq!(value(&server, "snapdev", "tank/odd"), "visible");
        assert!(snapshot.exists());
    }
    drop(open);
    server.ok("zfs set snapdev=visible tank/odd");
    server.ok("zfs set snapdev=hidden tank");
    assert!(snapshot.exists());
    server.ok("zfs inherit snapdev tank/odd");
    assert!(!snapshot.exists());
    server.ok("zfs set readonly=on tank/odd");
    let outcome = fs::File::options().write(true).open(&file);
    assert!(outcome.and_then(|file| file.write_all_at(b"x", 0)).is_err());
    done(&server);
}

#[test]
fn options_of_create_destroy_rename_and_inherit() {
    if !can_mount() {
        return;
    }
    let server = tank();
    assert_eq!(
        server.ok("zfs create -nv -p -o recordsize=1M tank/a/b/c"),
        "would create ancestors of tank/a/b/c\nwould create tank/a/b/c\n\trecordsize=1M\n"
    );
    assert!(server.fails("zfs list tank/a").contains("does not exist"));
    assert_eq!(
        server.ok("zfs create -nP -s -V 1000000 tank/v"),
        "create\ttank/v\nproperty\tvolsize\t1015808\n"
    );
    server.ok("zfs create -pp tank/a/b/c");
    assert_eq!(value(&server, "canmount", "tank/a/b"), "off");
    assert_eq!(value(&server, "mounted", "tank/a/b/c"), "yes");
    server.ok("zfs create -u tank/u");
    assert_eq!(value(&server, "mounted", "tank/u"), "no");
    server.ok("zfs mount -a");
    assert_eq!(value(&server, "mounted", "tank/u"), "yes");
    server.ok("zfs unmount -a");
    assert_eq!(value(&server, "mounted", "tank/u"), "no");
    server.ok("zfs mount -a");
    // Snapshots: ranges, what they would free, later.
    let file = server.path("mnt/u/file");
    for n in 0..5 {
        fs::write(&file, noise((n + 1) << 20)).unwrap();
        server.ok(&format!("zfs snapshot tank/u@s{n}"));
    }
    fs::write(&file, "x").unwrap();
    server.ok("zpool sync tank");
    let plan = server.ok("zfs destroy -nvp tank/u@s1%s3");
    let names: Vec<&str> = plan
        .lines()
        .filter_map(|line| line.strip_prefix("destroy\t"))
        .collect();
    assert_eq!(names, ["tank/u@s1", "tank/u@s2", "tank/u@s3"]);
    let freed: u64 = plan
        .lines()
        .find_map(|line| line.strip_prefix("reclaim\t"))
        .unwrap()
        .parse()
        .unwrap();
    assert!((9 << 20..10 << 20).contains(&freed), "{freed}");
    let before: u64 = value(&server, "usedbysnapshots", "tank/u").parse().unwrap();
    server.ok("zfs destroy tank/u@s1%s3");
    let after: u64 = value(&server, "usedbysnapshots", "tank/u").parse().unwrap();
    assert_eq!(before - after, freed);
    assert!(
        server
            .ok("zfs destroy -nv tank/u@%")
            .contains("would destroy tank/u@s0")
    );
    assert!(server.fails("zfs destroy -d tank/u").contains("snapshots"));
    server.ok("zfs destroy -d tank/u@s0,s4");
    assert!(
        !server
            .ok("zfs list -t snapshot -Ho name")
            .contains("tank/u@")
    );
    // A mounted filesystem in use is not destroyed, unless by force.
    server.ok("zfs create tank/busy");
    let inside = fs::File::create(server.path("mnt/busy/open")).unwrap();
    assert!(server.fails("zfs destroy tank/busy").contains("busy"));
    server.ok("zfs destroy -f tank/busy");
    drop(inside);
    // Renames.
    server.ok("zfs snapshot -r tank/a@x");
    server.ok("zfs rename -r tank/a@x y");
    assert!(
        server
            .ok("zfs list -t snapshot -Ho name")
            .contains("tank/a/b/c@y")
    );
    server.ok("zfs rename -p tank/a/b/c tank/new/deep/c");
    assert_eq!(
        value(&server, "mountpoint", "tank/new/deep/c"),
        server.text("mnt/new/deep/c")
    );
    assert_eq!(value(&server, "mounted", "tank/new/deep/c"), "yes");
    // Inheritance.
    server.ok("zfs set compression=gzip com.example:mine=1 tank/new");
    server.ok("zfs set compression=zle tank/new/deep/c");
    server.ok("zfs inherit -r compression tank/new");
    assert_eq!(value(&server, "compression", "tank/new/deep/c"), "on");
    server.ok("zfs set quota=100M tank/new");
    assert!(
        server
            .fails("zfs inherit quota tank/new")
            .contains("cannot be inherited")
    );
    server.ok("zfs inherit -S quota tank/new");
    assert_eq!(value(&server, "quota", "tank/new"), "0");
    server.ok("zfs inherit com.example:mine tank/new");
    server.ok("zfs destroy -r tank/new");
    done(&server);
}

#[test]
fn a_refused_list_of_properties_changes_nothing() {
    if !can_mount() {
        return;
    }
    let server = tank();
    server.ok("zfs create -s -V 32M tank/vol");
    let file = server.state().join("zvol/tank/vol");
    let data = noise(32 << 20);
    fs::write(&file, &data).unwrap();
    for (settings, reason) in [
        ("volsize=8M compression=bad", "compression"),
        ("volsize=8M reservation=100T", "available space"),
        ("volsize=8M quota=1M", "does not apply"),
        (
            "volsize=8M userquota@7=1M",
            "'userquota@7' is of filesystems",
        ),
        ("volsize=8M nosuch=1", "nosuch"),
        ("compression=gzip volsize=5000", "volume block size (16K)"),
        ("compression=gzip volsize=bad", "bad"),
        ("refreservation=auto reservation=100T", "available space"),
    ] {
        let message = server.fails(&format!("zfs set {settings} tank/vol"));
        assert!(message.contains(reason), "{settings}: {message}");
        assert_eq!(value(&server, "volsize", "tank/vol"), "33554432");
        assert_eq!(value(&server, "compression", "tank/vol"), "on");
        assert_eq!(value(&server, "refreservation", "tank/vol"), "0");
        assert!(fs::read(&file).unwrap() == data, "{settings}");
    }
    server.ok("zfs set volsize=16M compression=gzip tank/vol");
    assert_eq!(value(&server, "compression", "tank/vol"), "gzip");
    assert!(fs::read(&file).unwrap() == data[..16 << 20]);
    // The same twice.
    for command in [
        "zfs set quota=1m quota=2m tank",
        "zfs create -o atime=on -o atime=off tank/no",
        "zfs snapshot -o a:b=1 -o a:b=2 tank@no",
        "zpool create -o ashift=12 -o ashift=13 other /dev/null",
        "zpool import -o ro -o readonly=off other",
    ] {
        let message = server.fails(command);
        assert!(message.contains("specified multiple times"), "{message}");
    }
    // One that is missing does not keep the others from it.
    server.ok("zfs create tank/a");
    for (command, shown) in [
        ("zfs list -Ho name", "tank\ntank/a\n"),
        ("zfs get -Ho name type", "tank\ntank/a\n"),
        ("zfs set atime=off", ""),
        ("zfs inherit exec", ""),
    ] {
        server.ok("zfs set atime=on exec=off tank tank/a");
        let words: Vec<&str> = command.split(' ').collect();
        let output = server.command(&[&words[..], &["tank", "tank/no", "tank/a"]].concat());
        assert_eq!(output.status.code(), Some(1), "{command}");
        assert_eq!(String::from_utf8_lossy(&output.stdout), shown, "{command}");
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(message.lines().count(), 1, "{command}: {message}");
        assert!(message.contains("'tank/no'"), "{command}: {message}");
        for name in ["tank", "tank/a"] {
            let changed = (
                value(&server, "atime", name) == "off",
                value(&server, "exec", name) == "on",
            );
            let expected = (command.contains("atime"), command.contains("exec"));
            assert_eq!(changed, expected, "{command}");
        }
    }
    done(&server);
}

#[test]
fn names_in_a_new_filesystem_are_as_in_its_parent() {
    if !can_mount() {
        return;
    }
    let server = tank();
    let own = ["normalization", "utf8only", "casesensitivity"];
    let values = |name: &str| own.map(|property| value(&server, property, name)).join(" ");
    server.ok("zfs create -o normalization=formD -o casesensitivity=insensitive tank/p");
    server.ok("zfs create tank/p/a");
    server.ok("zfs create -p tank/p/b/c");
    server.ok("zfs create -o casesensitivity=sensitive -o normalization=none tank/p/s");
    server.ok("zfs create -s -V 8M tank/p/vol");
    server.ok("zfs create -o utf8only=on tank/utf8");
    server.ok("zfs create tank/utf8/a");
    server.ok("zfs create tank/plain");
    for (name, expected) in [
        ("tank/p/a", "formD on insensitive"),
        ("tank/p/b", "formD on insensitive"),
        ("tank/p/b/c", "formD on insensitive"),
        ("tank/p/s", "none on sensitive"),
        ("tank/utf8/a", "none on sensitive"),
        ("tank/plain", "none off sensitive"),
    ] {
        assert_eq!(values(name), expected, "{name}");
    }
    fs::write(server.path("mnt/p/b/c/Caf\u{e9}"), "x").unwrap();
    assert!(server.path("mnt/p/b/c/cafe\u{301}").exists());
    fs::write(server.path("mnt/p/s/Name"), "x").unwrap();
    assert!(!server.path("mnt/p/s/name").exists());
    done(&server);
}

/// Limits of filesystems and snapshots that are reached bind who may not change them, and not root.
fn limits_bind_users(server: &Server) {
    if !can_be_others() {
        return;
    }
    let program = program(server);
    server.ok("zfs allow nobody create,mount,snapshot,rename,destroy tank");
    server.ok("zfs create -o canmount=off tank/away");
    let refused = |words: &str| {
        let output = as_nobody(server, &program, words);
        let told = text_of(&output);
        assert!(
            !output.status.success() && told.contains("limit"),
            "{words}: {told}"
        );
    };
    for words in [
        "zfs create -u tank/few/b",
        "zfs snapshot tank/few@b",
        "zfs rename tank/away tank/few/away",
    ] {
        refused(words);
        server.ok(words);
    }
    for words in [
        "zfs rename tank/few/away tank/away",
        "zfs destroy tank/few@b",
        "zfs destroy tank/few/b",
        // zdb takes what is stored of permissions for lost.
        "zfs unallow nobody tank",
    ] {
        server.ok(words);
    }
}
