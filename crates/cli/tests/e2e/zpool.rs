//! What OpenZFS's own tests ask of `zpool`: properties that name datasets, histories, what is
//! refused.

use crate::harness::{Server, ZDB, can_mount, finds, need, run};

/// A server with a pool `tank` of one file, and three files more.
fn tank() -> (Server, Vec<String>) {
    let server = Server::start();
    let disks = server.disks(4, 128 << 20);
    server.ok(&format!("zpool create -m none tank {}", disks[0]));
    (server, disks)
}

/// `bootfs` is stored by object number: renames follow, a destroyed dataset takes it away.
#[test]
fn bootfs_follows_its_dataset() {
    if !can_mount() {
        return;
    }
    let (server, disks) = tank();
    let bootfs = || server.ok("zpool get -Ho value,source bootfs tank");
    assert_eq!(bootfs(), "-\tdefault\n");
    server.ok("zfs create tank/a");
    server.ok("zfs create -V 8M tank/volume");
    for (wrong, why) in [
        ("tank/none", "no such dataset"),
        ("tank/volume", "not supported on volumes"),
        ("other/a", "invalid name"),
        ("tank@s", "invalid name"),
    ] {
        let said = server.fails(&format!("zpool set bootfs={wrong} tank"));
        assert!(said.contains(why), "{wrong}: {said}");
    }
    let said = server.fails(&format!("zpool create -o bootfs=b b {}", disks[1]));
    assert!(said.contains("creation or import time"), "{said}");

    server.ok("zpool set bootfs=tank/a tank");
    assert_eq!(bootfs(), "tank/a\tlocal\n");
    server.ok("zfs rename tank/a tank/b");
    assert_eq!(bootfs(), "tank/b\tlocal\n");
    let id = server.ok("zfs get -Hpo value objsetid tank/b");
    server.ok("zpool export tank");
    if need("zdb", finds("zdb")) {
        let stored = run(ZDB, &["-e", "-p", &server.text("disks"), "-dddd", "tank"]);
        let line = format!("bootfs = {}", id.trim());
        assert!(stored.contains(&line), "{line}:\n{stored}");
    }
    server.ok(&format!("zpool import -d {} tank", server.text("disks")));
    assert_eq!(bootfs(), "tank/b\tlocal\n");
    assert_eq!(server.ok("zpool list -Ho bootfs tank"), "tank/b\n");

    server.ok("zfs snapshot tank/b@s");
    server.ok("zpool set bootfs=tank/b@s tank");
    assert_eq!(bootfs(), "tank/b@s\tlocal\n");
    server.ok("zfs destroy tank/b@s");
    assert_eq!(bootfs(), "-\tdefault\n");
    server.ok("zpool set bootfs=tank/b tank");
    server.ok("zfs destroy tank/b");
    assert_eq!(bootfs(), "-\tdefault\n");
    server.ok("zpool set bootfs=tank tank");
    server.ok("zpool set bootfs= tank");
    assert_eq!(bootfs(), "-\tdefault\n");
    server.ok("zpool export tank");
    server.ok(&format!("zpool import -d {} tank", server.text("disks")));
    assert_eq!(bootfs(), "-\tdefault\n");
}

/// `-i` shows what was asked for and what it did, `-l` who asked and where.
#[test]
fn histories_tell_requests_and_who_made_them() {
    if !can_mount() {
        return;
    }
    let (server, _) = tank();
    server.ok("zfs create tank/a");
    server.ok("zfs create tank/a/b");
    server.ok("zfs snapshot -r tank/a@s");
    server.ok("zfs rollback tank/a@s");
    server.ok("zfs destroy -r tank/a@s");
    let host = run("hostname", &[]);
    let by = format!("[user 0 (root) on {}:linux]", host.trim());
    let long = server.ok("zpool history -l tank");
    let line = format!("zfs snapshot -r tank/a@s {by}");
    assert!(long.contains(&line), "{line}:\n{long}");
    assert!(!long.contains("ioctl"), "{long}");

    let all = server.ok("zpool history -il tank");
    for request in ["snapshot", "rollback", "destroy_snaps"] {
        assert!(
            all.contains(&format!(" ioctl {request}\n    input:\n        ")),
            "{request}:\n{all}"
        );
    }
    let snapshots = "        snaps:\n            tank/a@s\n            tank/a/b@s\n";
    assert!(all.contains(&format!("{snapshots} {by}\n")), "{all}");
    assert!(all.contains("] clone swap tank/a/%rollback ("), "{all}");
    assert!(all.contains(") parent=a [on "), "{all}");
    assert!(all.contains("] destroy tank/a/%rollback ("), "{all}");
    server.ok("zpool export tank");
    if need("zdb", finds("zdb")) {
        let disks = server.text("disks");
        let read = run(ZDB, &["-e", "-p", &disks, "-h", "tank"]);
        assert!(
            read.contains(&format!(" ioctl snapshot\n    input:\n{snapshots}")),
            "{read}"
        );
    }
}

/// What is done to a pool as a whole is in its history, also what takes it away.
#[test]
fn histories_tell_how_a_pool_went() {
    let (server, _) = tank();
    let at = server.text("disks");
    let commands = [
        "zpool scrub tank".to_owned(),
        "zpool clear tank".to_owned(),
        "zpool export tank".to_owned(),
        format!("zpool import -d {at} tank"),
        "zpool destroy tank".to_owned(),
        format!("zpool import -D -f -d {at} tank"),
    ];
    for command in &commands {
        server.ok(command);
    }
    let history = server.ok("zpool history tank");
    let told: Vec<&str> = history
        .lines()
        .filter_map(|line| Some(line.split_once(' ')?.1))
        .filter(|command| command.starts_with("zpool") && !command.starts_with("zpool create"))
        .collect();
    assert_eq!(told, commands, "{history}");
}

/// Errors are not cleared of a spare that stands by, nor of a pool that is only read.
#[test]
fn what_has_no_errors_to_clear_is_refused() {
    if !can_mount() {
        return;
    }
    let (server, disks) = tank();
    server.ok(&format!("zpool add tank spare {}", disks[1]));
    let said = server.fails(&format!("zpool clear tank {}", disks[1]));
    assert!(said.contains("device is reserved as a hot spare"), "{said}");
    server.ok(&format!("zpool clear tank {}", disks[0]));
    server.ok("zpool export tank");
    server.ok(&format!(
        "zpool import -o readonly=on -d {} tank",
        server.text("disks")
    ));
    for device in ["", &disks[0]] {
        let said = server.fails(&format!("zpool clear tank {device}"));
        assert!(said.contains("read-only"), "{said}");
    }
    // Nothing is written to it, so it is there as before.
    server.ok("zpool destroy tank");
    server.ok(&format!("zpool import -d {} tank", server.text("disks")));
}

/// Properties that users took away, those of one kind of vdevs, GUIDs as strtoull reads them, and
/// the plan of an addition.
#[test]
fn small_things_are_as_with_openzfs() {
    if !can_mount() {
        return;
    }
    let (server, disks) = tank();
    server.ok("zpool set cool:pool=hello tank");
    server.ok("zpool set cool:pool= tank");
    server.ok("zpool set cool:vdev=hello tank root");
    server.ok("zpool set cool:vdev= tank root");
    for of in ["cool:pool tank", "cool:vdev tank root"] {
        let said = server.ok(&format!("zpool get -Ho value,source {of}"));
        assert_eq!(said, "-\tdefault\n", "{of}");
    }
    let all = server.ok("zpool get -H all tank root");
    assert!(!all.contains("raidz_expanding"), "{all}");
    server.ok("zpool reguid -g -1 tank");
    assert_eq!(
        server.ok("zpool get -Ho value guid tank").trim(),
        u64::MAX.to_string()
    );

    let [_, b, c, d] = &disks[..] else {
        panic!("four disks")
    };
    server.ok(&format!("zpool add -f tank dedup mirror {b} {c}"));
    let plan = server.ok(&format!("zpool add -n tank spare {d}"));
    let expected = format!("\tdedup\n\t  mirror\n\t    {b}\n\t    {c}\n\tspares\n\t  {d}\n");
    assert!(plan.ends_with(&expected), "{plan}");
    let said = server.fails(&format!("zpool create other {b} log {c} log {d}"));
    assert!(said.contains("'log' can be specified only once"), "{said}");
}

/// A pool that encrypts without the feature bookmark_v2, which OpenZFS's suite has, is known to
/// lack something; enabling the feature mends it.
#[test]
fn errata_are_told() {
    let tool = need("bzcat", finds("bzcat"));
    let Some(suite) = oracles::zfs_test_suite().filter(|_| tool && can_mount()) else {
        return;
    };
    let server = Server::start();
    let images = "tests/functional/cli_root/zpool_import/blockfiles/missing_ivset.dat.bz2";
    let image = suite.join(images);
    std::fs::create_dir(server.path("disks")).unwrap();
    let copy = format!("bzcat {} > {}", image.display(), server.text("disks/d0"));
    run("sh", &["-c", &copy]);
    let disks = server.text("disks");
    let listed = server.ok(&format!("zpool import -d {disks}"));
    assert!(listed.contains("status: Errata #4 detected."), "{listed}");
    server.ok(&format!("zpool import -N -d {disks} missing_ivset"));
    let said = server.ok("zpool status -x");
    assert!(said.contains("status: Errata #4 detected."), "{said}");
    assert!(said.contains("msg/ZFS-8000-ER"), "{said}");
    // Again, now that its configuration says so too.
    server.ok("zpool export missing_ivset");
    server.ok(&format!("zpool import -N -d {disks} missing_ivset"));
    server.ok("zpool set feature@bookmark_v2=enabled missing_ivset");
    let said = server.ok("zpool status missing_ivset");
    assert!(!said.contains("Errata"), "{said}");
    server.ok("zpool export missing_ivset");
}
