//! Goal: options that came late do what they do in OpenZFS: scripts that tell more of devices,
//! options of mounts for a whole pool, keys that go with a mount, rows of `zpool wait`, bays
//! without power. What is JSON here alone can be read. Method: the commands on pools of files.

use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Output};

use serde_json::Value;

use crate::disks::Fake;
use crate::harness::{MILLPOND, Server, can_mount, text_of};
use crate::keys::with_input;

const DISK_BYTES: u64 = 128 << 20;

fn json(server: &Server, words: &str) -> Value {
    let text = server.ok(words);
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{words}: {error}:\n{text}"))
}

/// A command with variables in its environment.
fn with(server: &Server, words: &str, variables: &[(&str, &str)]) -> Output {
    Command::new(MILLPOND)
        .args(words.split_whitespace())
        .env("MILLPOND_STATE", server.state())
        .envs(variables.iter().copied())
        .output()
        .expect("millpond runs")
}

#[test]
fn scripts_tell_more_of_each_device() {
    let server = Server::start();
    let disks = server.disks(2, DISK_BYTES);
    let (d0, d1) = (&disks[0], &disks[1]);
    server.ok(&format!(
        "zpool create -O canmount=off tank mirror {d0} {d1}"
    ));
    let scripts = server.path("scripts");
    std::fs::create_dir(&scripts).expect("a directory");
    let script = scripts.join("tail");
    std::fs::write(
        &script,
        "#!/bin/sh\necho last=${VDEV_PATH##*/}\necho pool=$POOL_NAME\n",
    )
    .expect("a script");
    std::fs::set_permissions(&script, PermissionsExt::from_mode(0o755)).expect("it runs");
    let at = scripts.to_string_lossy().into_owned();
    let path = ("ZPOOL_SCRIPTS_PATH", at.as_str());
    let allowed = ("ZPOOL_SCRIPTS_AS_ROOT", "1");
    for command in ["zpool status -c tail tank", "zpool iostat -c tail tank"] {
        if rustix::process::geteuid().is_root() {
            let refused = with(&server, command, &[path]);
            assert_eq!(refused.status.code(), Some(1), "{command}");
            assert!(text_of(&refused).contains("with root privileges"));
        }
        let forbidden = ("ZPOOL_SCRIPTS_ENABLED", "0");
        let refused = with(&server, command, &[path, allowed, forbidden]);
        assert!(text_of(&refused).contains("disabled by ZPOOL_SCRIPTS_ENABLED"));
        let told = text_of(&with(&server, command, &[path, allowed]));
        let ends = |first: &str, ends: &str| {
            let mut lines = told.lines().map(str::trim);
            lines.any(|line| line.starts_with(first) && line.ends_with(ends))
        };
        assert!(
            ends(d0, "d0  tank") && ends(d1, "d1  tank"),
            "{command}:\n{told}"
        );
        assert!(told.contains("  last  pool\n"), "{command}:\n{told}");
    }
    let told = with(
        &server,
        "zpool status -j -c tail,none,/bin/sh tank",
        &[path, allowed],
    );
    let told: Value = serde_json::from_slice(&told.stdout).expect("JSON");
    let mirror = &told["pools"]["tank"]["vdevs"]["tank"]["vdevs"]["mirror-0"];
    assert_eq!(mirror["vdevs"][d1]["last"], "d1", "{told}");
    assert!(mirror["last"].is_null(), "{told}");
}

#[test]
fn whole_pools_are_mounted_with_options() {
    if !can_mount() {
        return;
    }
    let server = Server::start();
    let disks = server.disks(2, DISK_BYTES);
    let at = server.text("mnt");
    server.ok(&format!(
        "zpool create -O mountpoint={at} tank mirror {} {}",
        disks[0], disks[1]
    ));
    server.ok("zfs create tank/a");
    server.ok("zpool export tank");
    let directory = server.text("disks");
    let refused = server.fails(&format!("zpool import -d {directory} -o noexec,bad tank"));
    assert!(refused.contains("'bad' is not supported"), "{refused}");
    server.ok(&format!(
        "zpool import -d {directory} -o noexec -o nosuid tank"
    ));
    let shown = |name: &str| {
        let text = server.ok(&format!(
            "zfs get -Ho value,source exec,setuid,devices {name}"
        ));
        text.replace(['\t', '\n'], " ")
    };
    let expected = "off temporary off temporary on default ";
    assert_eq!(
        (shown("tank"), shown("tank/a")),
        (expected.into(), expected.into())
    );
    // What is refused is found out before anything is split.
    let root = server.text("root");
    let refused = server.fails(&format!("zpool split -R {root} -o bad tank half"));
    assert!(refused.contains("'bad' is not supported"), "{refused}");
    assert!(server.ok("zpool status tank").contains("mirror-0"));
    server.ok(&format!("zpool split -R {root} -o nodev tank half"));
    assert_eq!(shown("half/a"), "on default on default off temporary ");
}

#[test]
fn keys_go_with_mounts() {
    if !can_mount() {
        return;
    }
    let server = Server::start();
    let disks = server.disks(1, DISK_BYTES);
    let at = server.text("mnt");
    server.ok(&format!(
        "zpool create -O mountpoint={at} tank {}",
        disks[0]
    ));
    let made = with_input(
        &server,
        "zfs create -o encryption=on -o keyformat=passphrase -o keylocation=prompt tank/enc",
        b"password\npassword\n",
    );
    assert!(made.status.success(), "{}", text_of(&made));
    server.ok("zfs set sharenfs=rw=127.0.0.1 tank/enc");
    server.ok("zfs create tank/enc/below");
    let status = || {
        server
            .ok("zfs get -Ho value keystatus tank/enc")
            .trim()
            .to_owned()
    };
    server.ok("zfs unmount tank/enc/below");
    // What is no encryption root keeps its key.
    server.ok("zfs mount tank/enc/below");
    server.ok("zfs unmount -u tank/enc/below");
    assert_eq!(status(), "available");
    server.ok("zfs unmount -u tank/enc");
    assert_eq!(status(), "unavailable");
    let shared = with_input(&server, "zfs share -l tank/enc", b"password\n");
    assert_eq!(status(), "available", "{}", text_of(&shared));
    server.ok("zfs mount -a");
    // Another one needs the key: it stays, and so do the mounts.
    server.ok("zfs create tank/enc/other");
    server.ok("zfs snapshot tank/enc@1");
    let other = server.text("other");
    server.ok(&format!(
        "zfs clone -o mountpoint={other} tank/enc@1 tank/clone"
    ));
    assert!(
        server
            .fails("zfs unmount -u tank/enc")
            .contains("Key unload")
    );
    assert_eq!(status(), "available");
    for name in ["tank/enc", "tank/enc/other"] {
        let mounted = server.ok(&format!("zfs get -Ho value mounted {name}"));
        assert_eq!(mounted, "yes\n", "{name}");
    }
}

#[test]
fn what_is_waited_for_is_told() {
    let server = Server::start();
    let disks = server.disks(1, DISK_BYTES);
    server.ok(&format!("zpool create -O canmount=off tank {}", disks[0]));
    assert_eq!(server.ok("zpool wait tank"), "");
    assert_eq!(server.ok("zpool wait -t remove,raidz_expand tank"), "");
    let rows = server.ok("zpool wait -t scrub,remove tank 10");
    assert_eq!(rows, "  REMOVE   SCRUB\n       0       0\n");
    assert_eq!(server.ok("zpool wait -Hpt scrub,remove tank 10"), "0\t0\n");
    let stamped = server.ok("zpool wait -H -T u -t free tank 10");
    assert_eq!(stamped.lines().count(), 2, "{stamped}");
    for words in ["tank 10 5", "-t sleep tank", "10"] {
        let words: Vec<&str> = ["zpool", "wait"]
            .into_iter()
            .chain(words.split(' '))
            .collect();
        let output = server.command(&words);
        assert_eq!(
            output.status.code(),
            Some(2),
            "{words:?}: {}",
            text_of(&output)
        );
    }
}

#[test]
fn json_is_there_where_openzfs_has_none() {
    let server = Server::start();
    let disks = server.disks(1, DISK_BYTES);
    server.ok(&format!("zpool create -O canmount=off tank {}", disks[0]));
    server.ok("zfs snapshot tank@a");
    server.ok("zfs hold keep tank@a");
    let told = json(&server, "zfs holds -jp tank@a");
    assert!(
        told["datasets"]["tank@a"]["holds"]["keep"].is_string(),
        "{told}"
    );
    let told = json(&server, "zpool history -j tank");
    let first = &told["pools"]["tank"][0];
    assert!(
        first["command"]
            .as_str()
            .is_some_and(|text| text.starts_with("zpool create"))
    );
    let told = json(&server, "zpool iostat -vj tank");
    assert!(
        told["pools"]["tank"]["vdevs"][&disks[0]]["operations"]["read"].is_string(),
        "{told}"
    );
    let events = server.ok("zpool events -j");
    let classes: Vec<Value> = events
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect();
    let is_created = |event: &Value| {
        event["class"] == "sysevent.fs.zfs.pool_create" && event["pairs"]["pool"] == "tank"
    };
    assert!(classes.iter().any(is_created), "{events}");
    let told = json(&server, "zfs send -nvj tank@a");
    assert_eq!(told["streams"][0]["snapshot"], "tank@a");
    server.ok("zpool export tank");
    let told = json(
        &server,
        &format!("zpool import -j -d {}", server.text("disks")),
    );
    let pools = told["pools"].as_object().expect("pools");
    let pool = pools.values().next().expect("one");
    assert_eq!(
        (&pool["name"], &pool["state"]),
        (&"tank".into(), &"ONLINE".into())
    );
}

#[test]
fn bays_are_switched_off_and_on() {
    if !can_mount() {
        return;
    }
    let mut server = Server::prepare();
    let files = server.disks(2, DISK_BYTES);
    let devices = server.attach(&files);
    let fake = Fake::of(&mut server, &devices);
    let switch = fake.light(1, "power_status");
    std::fs::write(&switch, "on\n").expect("a switch");
    server.launch(&["daemon"]);
    let pool = format!("power{}", std::process::id());
    let (d0, d1) = (&devices[0], &devices[1]);
    server.ok(&format!("zpool create -m none {pool} mirror {d0} {d1}"));
    let is_on = || std::fs::read_to_string(&switch).expect("a switch").trim() == "on";
    let state = |name: &str| {
        let told = json(&server, &format!("zpool status -j --power {pool}"));
        let mirror = told["pools"][&pool]["vdevs"][&pool]["vdevs"]["mirror-0"].clone();
        let vdev = &mirror["vdevs"][name.trim_start_matches("/dev/")];
        (vdev["power_state"].clone(), vdev["state"].clone())
    };
    assert_eq!(state(d1), ("on".into(), "ONLINE".into()));
    assert_eq!(state(d0).0, "-");
    let refused = server.fails(&format!("zpool offline --power {pool} {d0}"));
    assert!(refused.contains("Power control not supported"), "{refused}");
    assert_eq!(state(d0).1, "ONLINE");
    server.wait_until("its place is noted", || {
        let book = std::fs::read_to_string(server.state().join("lights.json"));
        book.is_ok_and(|book| book.contains("Slot 01"))
    });
    server.ok(&format!("zpool offline --power {pool} {d1}"));
    assert!(!is_on());
    assert_eq!(state(d1), ("off".into(), "OFFLINE".into()));
    // Its bay is remembered when the kernel knows it no more.
    fake.pull(1);
    assert_eq!(state(d1).0, "off");
    server.ok(&format!("zpool online --power {pool} {d1}"));
    assert!(is_on());
    assert_eq!(state(d1), ("on".into(), "ONLINE".into()));
    server.ok(&format!("zpool wait -t resilver {pool}"));
    // A device that alone has some data keeps its power.
    server.ok(&format!("zpool offline {pool} {d0}"));
    server.fails(&format!("zpool offline --power {pool} {d1}"));
    assert!(is_on());
    server.ok(&format!("zpool online {pool} {d0}"));
    server.ok(&format!("zpool clear --power {pool} {d1}"));
    assert!(is_on());
}
