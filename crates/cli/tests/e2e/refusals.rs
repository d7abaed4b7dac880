//! What `zpool` refuses: in OpenZFS's words, and before anything is touched.

use std::fs::File;
use std::hash::{DefaultHasher, Hasher};

use crate::harness::{Server, can_mount};

/// A sum of a device's content.
fn sum(path: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(&std::fs::read(path).expect("the device"));
    hasher.finish()
}

/// Goal: a `zpool create` that is refused has not overwritten what was on the devices. Method: a
/// destroyed pool on one that must still be there afterwards, and every kind of setting that cannot
/// be.
#[test]
fn a_refused_create_leaves_its_devices_as_they_were() {
    let server = Server::start();
    let disk = &server.disks(1, 64 << 20)[0];
    server.ok(&format!("zpool create -m none old {disk}"));
    server.ok("zpool destroy old");
    let before = sum(disk);
    let used = server.path("used");
    std::fs::create_dir_all(used.join("something")).expect("a directory");
    let used = used.to_string_lossy();
    let in_use = format!("mountpoint '{used}' exists and is not empty\nuse '-m' option");
    let without = "without feature";
    for (options, reason) in [
        (
            "-O compresion=lz4",
            "property 'compresion' is not a valid filesystem property",
        ),
        ("-O compression=lz5", "compression"),
        ("-O recordsize=3k", "recordsize"),
        (
            "-O volsize=1",
            "'volsize' is not a valid filesystem property",
        ),
        ("-O encryption=on", "encryption"),
        ("-O sharesmb=guestok", "timemachine"),
        ("-O sharenfs=sec=krb5", "krb5"),
        ("-O mountpoint=foo", "mountpoint"),
        ("-m rel", "mountpoint"),
        ("-O millpond:iscsi=perhaps", "millpond:iscsi"),
        ("-d -O checksum=skein", without),
        ("-d -O compression=zstd", without),
        ("-d -O dnodesize=1k", without),
        ("-d -O dedup=edonr,verify", without),
        ("-d -o feature@skein=enabled -O checksum=edonr", without),
        ("-o compatibility=legacy -O recordsize=1M", without),
        (
            "-o readonly=on",
            "property 'readonly' can only be set at import time",
        ),
        ("-o cachefile=cache", "an absolute path, or 'none'"),
        ("-o cachefile=/etc/zfs/zpool.cache", "/etc/zfs"),
        (
            "-o cachefile=/none/such",
            "'/none' is not a valid directory",
        ),
        ("-o feature@skein=active", "'enabled' or 'disabled'"),
        ("-o version=10", "feature flags"),
        (
            "-o version=28 -o feature@skein=enabled",
            "cannot be specified together",
        ),
        ("-o version=19 -O compression=zle", "a version before 20"),
        ("-o version=20 -O dedup=on", "a version before 21"),
        ("-o version=23 -O version=5", "a pool of version 23"),
        ("-O reservation=1T", "one or more devices is out of space"),
        (
            "-O refreservation=64M",
            "one or more devices is out of space",
        ),
        ("-O quota=8M -O reservation=9M", "greater than available"),
        (
            "-O refquota=8M -O refreservation=9M",
            "greater than available",
        ),
        (
            "-R rel",
            "invalid alternate root 'rel': must be an absolute path",
        ),
        ("-o altroot=rel", "invalid alternate root"),
        (&format!("-m {used}"), &in_use),
        (
            &format!("-O mountpoint=/used -R {}", &used[..used.len() - 5]),
            &in_use,
        ),
    ] {
        // A dry run says the same.
        for dry in ["", "-n"] {
            let text = server.fails(&format!("zpool create {dry} -f {options} new {disk}"));
            assert!(text.contains(reason), "{dry} {options}: {text}");
            assert!(sum(disk) == before, "{options}: the device was written to");
        }
    }
    let text = server.fails(&format!("zpool create -n new {disk}x"));
    assert!(text.contains("cannot resolve path"), "{text}");
    let shown = server.ok(&format!(
        "zpool create -n -f -O reservation=1M -m none new {disk}"
    ));
    let wanted = format!("would create 'new' with the following layout:\n\n\tnew\n\t  {disk}\n");
    assert_eq!(shown, wanted);
    assert!(sum(disk) == before, "a dry run wrote to the device");
    assert!(server.ok("zpool list").contains("no pools available"));
    let listed = server.ok(&format!("zpool import -D -d {disk}"));
    assert!(listed.contains("pool: old"), "{listed}");

    // Features that are given along count, with those that they need.
    server.ok(&format!(
        "zpool create -d -o feature@skein=enabled -O checksum=skein -O canmount=off -m none new \
         {disk}"
    ));
    let text = server.fails("zpool set feature@edonr=active new");
    assert!(text.contains("'enabled' or 'disabled'"), "{text}");
    server.ok("zpool destroy new");
    // An alternate root keeps a pool from being imported at the next start.
    let root = server.text("root");
    server.ok(&format!(
        "zpool create -f -o altroot={root} -O canmount=off new {disk}"
    ));
    let get = "zpool get -H -o value altroot,cachefile new";
    assert_eq!(server.ok(get), format!("{root}\nnone\n"));
    server.ok("zpool set cachefile= new");
    assert_eq!(server.ok(get), format!("{root}\n-\n"));
}

/// Goal: commands about devices and pools that there are not, or not so, say so with exit status 1,
/// and with 2 when the words make no sense.
#[test]
fn what_is_not_there_is_named_and_the_exit_status_tells() {
    let server = Server::start();
    let disks = server.disks(4, 64 << 20);
    let (d0, d1, d2, d3) = (&disks[0], &disks[1], &disks[2], &disks[3]);
    server.ok(&format!("zpool create -m none tank mirror {d0} {d1}"));
    for (command, reason) in [
        (
            "zpool clear tank nosuch",
            "cannot clear errors for nosuch: no such device in pool",
        ),
        (
            "zpool scrub -s tank",
            "cannot cancel scrubbing tank: there is no active scrub",
        ),
        (
            "zpool scrub -p tank",
            "cannot pause scrubbing tank: there is no active scrub",
        ),
        (
            &format!("zpool remove tank {d0}"),
            "it is a part of mirror-0",
        ),
        ("zpool remove tank nosuch", "no such device in pool"),
        (
            &format!("zpool import -d {d0} tank"),
            "a pool with that name is already created/imported,\nand no additional pools with that \
             name were found",
        ),
    ] {
        let text = server.fails(command);
        assert!(text.starts_with("cannot "), "{command}: {text}");
        assert!(text.contains(reason), "{command}: {text}");
    }
    server.ok(&format!("zpool clear tank {d1}"));
    server.ok("zpool clear tank d1");

    for command in [
        "zpool import -n tank",
        "zpool import -X tank",
        "zpool iostat -lw",
        "zpool iostat -rw",
    ] {
        let words: Vec<&str> = command.split(' ').collect();
        let code = server.command(&words).status.code();
        assert_eq!(code, Some(2), "{command}");
    }

    // All that can be imported are, and the exit status tells that one could not.
    server.ok("zpool export tank");
    server.ok(&format!("zpool create -m none other {d2}"));
    server.ok("zpool export other");
    server.ok(&format!("zpool create -m none tank {d3}"));
    let directory = server.text("disks");
    let text = server.fails(&format!("zpool import -a -d {directory}"));
    assert!(
        text.contains("cannot import 'tank': a pool with that name already exists"),
        "{text}"
    );
    assert_eq!(server.ok("zpool list -H -o name"), "other\ntank\n");
    server.ok("zpool destroy other");
    server.ok("zpool destroy tank");
    server.ok(&format!("zpool create -m none -o comment=x tank {d0} -f"));
    let text = server.fails(&format!("zpool import -D -a -d {directory}"));
    assert!(text.contains("cannot import 'tank'"), "{text}");
    assert_eq!(server.ok("zpool list -H -o name"), "other\ntank\n");
}

/// Goal: of two servers on a host only one writes a pool, and none while another one reads it.
#[test]
fn a_pool_of_another_server_is_left_to_it() {
    let (server, other) = (Server::start(), Server::start());
    let disk = &server.disks(1, 64 << 20)[0];
    let directory = server.text("disks");
    server.ok(&format!("zpool create -m none tank {disk}"));
    let import = format!("zpool import -d {directory} tank");
    let reading = format!("zpool import -d {directory} -o readonly=on tank");
    let in_use = "the device is in use by another process";

    let listed = other.ok(&format!("zpool import -d {directory}"));
    let why = "status: The pool is in use by another process of this system.\n\
               action: The pool must be exported there";
    assert!(listed.contains(why), "{listed}");
    for command in [&import, &reading] {
        let text = other.fails(command);
        assert!(text.contains(in_use), "{text}");
    }

    server.ok("zpool export tank");
    server.ok(&reading);
    let text = other.fails(&import);
    assert!(text.contains(in_use), "{text}");
    // Who only looks is in nobody's way.
    let listed = other.ok(&format!("zpool import -d {directory}"));
    assert!(listed.contains("state: ONLINE"), "{listed}");
    other.ok(&reading);
    server.ok("zpool export tank");
    other.ok("zpool export tank");
    other.ok(&import);
    other.ok("zpool destroy tank");
}

/// Goal: of two servers that make or import a pool of the same devices at the same moment, one gets
/// it, not none.
#[test]
fn of_two_servers_at_once_one_gets_the_pool() {
    let (server, other) = (Server::start(), Server::start());
    let disks = server.disks(6, 64 << 20).join(" ");
    let directory = server.text("disks");
    let create = format!("zpool create -f -m none tank raidz {disks}");
    let import = format!("zpool import -d {directory} tank");
    let race = |words: &str| {
        let run = |server: &Server| {
            let output = server.command(&words.split(' ').collect::<Vec<_>>());
            (output.status.success(), format!("{output:?}"))
        };
        let (one, two) = std::thread::scope(|scope| {
            let one = scope.spawn(|| run(&server));
            let two = run(&other);
            (one.join().expect("the command"), two)
        });
        assert!(one.0 != two.0, "{words}: {} {}", one.1, two.1);
        if one.0 { &server } else { &other }
    };
    race(&create).ok("zpool export tank");
    for _ in 0..12 {
        race(&import).ok("zpool export tank");
    }
    race(&import).ok("zpool destroy tank");
    for _ in 0..4 {
        race(&create).ok("zpool destroy tank");
    }
}

/// Goal: a name that is not here, or a pool in use, keeps a command from none of the other pools.
/// Status 1 says that something failed, 2 that the words were wrong.
#[test]
fn what_fails_for_one_pool_is_done_for_the_others() {
    let server = Server::start();
    let disks = server.disks(2, 64 << 20);
    for (name, disk) in ["p1", "p2"].iter().zip(&disks) {
        server.ok(&format!("zpool create -m none {name} {disk}"));
    }
    let run = |words: &str, status: i32| {
        let output = server.command(&words.split(' ').collect::<Vec<_>>());
        assert_eq!(output.status.code(), Some(status), "{words}: {output:?}");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (text(&output.stdout), text(&output.stderr))
    };
    let absent = "cannot open 'x': no such pool";
    let (out, err) = run("zpool list -H -o name x p2 p1 p2", 0);
    assert_eq!(out, "p2\np1\n");
    assert!(err.contains(absent), "{err}");
    let (out, err) = run("zpool status p1 x", 1);
    assert!(out.contains("pool: p1") && err.contains(absent), "{err}");
    let (out, err) = run("zpool history x p1", 1);
    assert!(out.contains("zpool create -m none p1") && err.contains(absent));
    let (out, err) = run("zpool upgrade x p1", 1);
    assert!(
        out.contains("on 'p1'") && err.contains(absent),
        "{out}{err}"
    );
    for words in ["zpool list x y", "zpool status x y", "zpool history x"] {
        let (out, err) = run(words, 1);
        assert!(
            out.is_empty() && err.contains(absent),
            "{words}: {out}{err}"
        );
    }

    run("zfs rename p1 p1", 0);
    run("zfs rename p1/nosuch p1/nosuch", 1);
    for words in [
        "zpool list -o foo",
        "zpool get foo p1",
        "zpool get -o foo all p1",
        "zpool get size p1 nosuch",
        "zpool set comment p1",
        "zpool iostat p1 0",
        "zpool iostat p1 nosuch",
        "zpool add -o comment=x p1 /nosuch",
        "zfs list -t foo",
        "zfs list -o foo",
        "zfs list -s foo",
        "zfs get foo p1",
        "zfs get -o foo all p1",
        "zfs get -s foo all p1",
        "zfs userspace -s foo p1",
        "zfs snapshot p1",
        "zfs rename -r p1/a p1/b",
    ] {
        run(words, 2);
    }

    let (_, err) = run("zpool export x p1", 1);
    assert!(err.contains(absent), "{err}");
    assert_eq!(server.ok("zpool list -H -o name"), "p2\n");
    if can_mount() {
        let (disk, mount) = (&disks[0], server.text("mnt"));
        server.ok(&format!("zpool create -f -m {mount} p1 {disk}"));
        let file = File::create(format!("{mount}/file")).expect("a file");
        let (_, err) = run("zpool export -a", 1);
        assert!(err.contains("cannot export 'p1'"), "{err}");
        assert_eq!(server.ok("zpool list -H -o name"), "p1\n");
        drop(file);
    }
    server.ok("zpool export -a");
    let nothing = server.path("nothing");
    std::fs::create_dir(&nothing).expect("a directory");
    let (out, err) = run(&format!("zpool import -d {}", nothing.display()), 0);
    assert!(out.is_empty() && err.contains("no pools available to import"));
}

/// Goal: a pool without a vdev that holds data is imported on request, and only to be read. Method:
/// two files, of which one is away.
#[test]
fn a_pool_that_lacks_data_is_only_read() {
    let server = Server::start();
    let disks = server.disks(2, 64 << 20);
    server.ok(&format!(
        "zpool create -m none rest {} {}",
        disks[0], disks[1]
    ));
    server.ok("zfs create rest/kept");
    server.ok("zpool export rest");
    let away = server.text("away");
    std::fs::rename(&disks[1], &away).expect("away");
    let import = format!("zpool import -d {}", disks[0]);
    server.fails(&format!("{import} -o readonly=on rest"));
    let refused = server.fails(&format!("{import} --missing-data rest"));
    assert!(refused.contains("readonly=on"), "{refused}");
    let said = server.ok(&format!("{import} --missing-data -o readonly=on rest"));
    assert!(said.contains("without devices that hold data"), "{said}");
    assert!(said.contains(&disks[1]), "{said}");
    assert_eq!(
        server.ok("zfs list -H -o name -r rest"),
        "rest\nrest/kept\n"
    );
    let refused = server.fails("zfs create rest/more");
    assert!(refused.contains("read-only"), "{refused}");
    server.ok("zpool export rest");
    std::fs::rename(&away, &disks[1]).expect("back");
    server.ok(&format!(
        "zpool import -d {} -d {} rest",
        disks[0], disks[1]
    ));
    server.ok("zfs create rest/more");
}
